"""The options of `gpuloom submit`, and the fields of a job spec that they set."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from gpuloom.cli.groups import Choice, Priority
from gpuloom.cli.live import Memory
from gpuloom.cli.run_options import Duration
from gpuloom.core.errors import InputError
from gpuloom.core.share_class import CLASSES, IMPORTANCES, INTERACTIVE, TASK_TYPES

KEY_OF_COMMAND = "gpuloom.command"
KEY_OF_ARGUMENTS = "gpuloom.arguments"


class SubmitCommand(click.Command):
    """Keeps apart what stands before and after --."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[KEY_OF_ARGUMENTS] = list(args)
        if "--" in args:
            at = args.index("--")
            ctx.meta[KEY_OF_COMMAND] = args[at + 1 :]
            return super().parse_args(ctx, args[:at])
        try:
            return super().parse_args(ctx, list(args))
        except click.NoSuchOption as error:
            if line := self.instead(args):  # probably an option of the command
                raise click.UsageError(
                    f"{error.format_message()} What goes to the command stands after --: {line}", ctx
                ) from None
            raise

    def instead(self, args: Sequence[str]) -> str | None:
        """The line to type where -- is missing before the command."""
        from gpuloom.cli.scripts import instead

        options = [one for one in self.params if isinstance(one, click.Option) and one.is_flag]
        return instead(args, {name for one in options for name in one.opts})


OPTIONS = (
    click.option("--gpus", "-g", type=click.IntRange(1), metavar="N", help="Number of GPUs, all given at once [1]."),
    click.option(
        "--elastic",
        metavar="N1-N2",
        help="Fewest and most replicas (1-8): policies that resize jobs change their number while it runs.",
    ),
    click.option("--replica-gpus", type=click.IntRange(1), metavar="N", help="With --elastic: GPUs of a replica [1]."),
    click.option(
        "--replica-cpus",
        type=click.FloatRange(0, min_open=True),
        metavar="N",
        help="With --elastic: CPU cores for each replica.",
    ),
    click.option(
        "--replica-memory",
        type=Memory(),
        metavar="SIZE",
        help="With --elastic: main memory for each replica (32GiB).",
    ),
    click.option(
        "--per",
        type=Choice(["node", "gpu"]),
        help="Run the command once per node, or once per GPU with torchrun's variables [node].",
    ),
    click.option(
        "--launcher",
        type=Choice(["direct", "torchrun", "horovod", "tensorflow"]),
        help="What starts its processes and tells each where it stands [as the command says].",
    ),
    click.option(
        "--ps",
        type=click.IntRange(0),
        metavar="N",
        help="With --launcher tensorflow: parameter servers, which need no GPU [0].",
    ),
    click.option(
        "--gpu-type",
        "gpu_types",
        multiple=True,
        metavar="MODELS",
        help="Acceptable GPU models, best first (A100,V100).",
    ),
    click.option(
        "--speed",
        "speeds",
        multiple=True,
        metavar="MODEL=X,…",
        help="How fast the job is on GPU models, as ratios or it/s (V100=4,K80=1) [measured].",
    ),
    click.option(
        "--gpu-memory",
        type=Memory(),
        metavar="SIZE",
        help="Memory that the job needs on each GPU (12GiB); no more, if it shares it.",
    ),
    click.option(
        "--cpus", type=click.FloatRange(0, min_open=True), metavar="N", help="CPU cores that the job may use."
    ),
    click.option("--memory", type=Memory(), metavar="SIZE", help="Main memory that the job may use (16GiB)."),
    click.option("--priority", type=Priority(), metavar="N", help="Higher goes first [0]; high is 10, low is -10."),
    click.option("--after", multiple=True, metavar="JOBS", help="Wait until these jobs have succeeded (12,13 or 12_)."),
    click.option(
        "--after-any", multiple=True, metavar="JOBS", help="Wait until these jobs have ended, in whatever way."
    ),
    click.option(
        "--array", metavar="INDICES", help="One job for each index (0-9, 1,5,7, 0-99:10), 0-9%3: three at once."
    ),
    click.option(
        "--time-limit", type=Duration(), metavar="TIME", help="Running time after which the job is stopped (4h)."
    ),
    click.option(
        "--estimate", type=Duration(), metavar="TIME", help="Expected running time [learnt from earlier runs]."
    ),
    click.option(
        "--retries",
        type=click.IntRange(0),
        metavar="N",
        help="How often to retry after a failure or a reached time limit [0].",
    ),
    click.option(
        "--env",
        multiple=True,
        metavar="KEY=VALUE",
        help="Environment variable (repeatable); KEY alone takes the value from this shell.",
    ),
    click.option(
        "--env-file",
        multiple=True,
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help="File of KEY=VALUE lines (repeatable).",
    ),
    click.option(
        "--export",
        type=Choice(["all", "none"]),
        default="all",
        show_default=True,
        help="Which part of this shell's environment the job gets.",
    ),
    click.option("--venv", metavar="DIR", help="Virtual environment to run in."),
    click.option("--conda", metavar="NAME|DIR", help="Conda environment to run in."),
    click.option("--container", metavar="IMAGE", help="Image to run in (apptainer, podman or docker)."),
    click.option("--name", metavar="TEXT", help="Name shown in lists [the script's]."),
    click.option("--workdir", metavar="DIR", help="Working directory [the current one]."),
    click.option("--grace", type=Duration(), metavar="TIME", help="Time between notice and kill [30s]."),
    click.option(
        "--checkpoint",
        metavar="PATH",
        help="File, folder or pattern that the job saves to. If it is newer than the notice, the job has saved.",
    ),
    click.option(
        "--on-preempt",
        type=Choice(["auto", "checkpoint", "freeze", "suspend", "never"]),
        help="What preemption does: notice and stop, freeze in place, suspend (also frees its GPU memory), or nothing; "
        "auto: suspend where the program was seen to bear it, else notice and stop [auto].",
    ),
    click.option(
        "--suspend-limit",
        type=Duration(),
        metavar="TIME",
        help="Longest time that it lies suspended; then it begins anew from its last checkpoint [no limit].",
    ),
    click.option("--model", metavar="NAME", help="Name of the training model, for profiles (gpuloom profiles)."),
    click.option(
        "--class",
        "share_class",
        type=Choice([*CLASSES, INTERACTIVE]),
        help="May share its GPU: high keeps its latency, best-effort takes what high leaves. interactive: as high, and "
        "with a --time-limit of an hour or less running jobs of a lower priority are suspended for it.",
    ),
    click.option(
        "--task-type",
        type=Choice(TASK_TYPES),
        help="Without --class: inference and interactive are high, others best-effort.",
    ),
    click.option(
        "--importance",
        type=Choice(IMPORTANCES),
        help="Importance to the business. Without --class, high makes it class high.",
    ),
    click.option(
        "--real-time", is_flag=True, help="It must answer in real time. Without --class, this makes it class high."
    ),
    click.option(
        "--kernel-profile",
        metavar="FILE|NAME|auto",
        help="Profile of its kernels (gpuloom share profiles ls), for sharing its GPU; auto: taken while it runs, if "
        "there is none [the one named as its model].",
    ),
    click.option("--slurm-env", is_flag=True, help="Set Slurm's variables too (SLURM_JOB_ID, SLURM_ARRAY_TASK_ID, …)."),
    click.option(
        "--hooks/--no-hooks",
        default=None,
        help="Whether hooks that time its stages enter its Python [yes, unless in a container].",
    ),
    click.option("--hold", is_flag=True, help="Hold it until gpuloom release."),
)


def job_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options about the job."""
    for option in reversed(OPTIONS):
        command = option(command)
    return command


def fields_of(flags: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that were given, paths made absolute from here.

    Raises:
        InputError: the present folder has been removed.
    """
    try:
        here = Path.cwd()
    except FileNotFoundError:
        raise InputError("the current folder has been removed: cd to one that exists") from None
    given = {name: value for name, value in flags.items() if value is not None and value is not False and value != ()}
    if flags.get("hooks") is False:
        given["hooks"] = False
    if "gpu_types" in given:
        given["gpu_types"] = [word.strip() for text in given["gpu_types"] for word in text.split(",") if word.strip()]
    if "speeds" in given:
        given["speeds"] = speeds_of(given["speeds"])
    return absolute(given, here)


def speeds_of(texts: Sequence[str]) -> dict[str, float]:
    """Speeds by GPU model from MODEL=X,…

    Raises:
        UsageError: one of them is not of that form.
    """
    found: dict[str, float] = {}
    for word in [word.strip() for text in texts for word in text.split(",") if word.strip()]:
        model, _, speed = word.partition("=")
        try:
            found[model.strip()] = float(speed)
        except ValueError:
            raise click.UsageError(f"--speed {word}: write MODEL=NUMBER, such as V100=4") from None
    return found


def absolute(spec: Mapping[str, Any], base: Path) -> dict[str, Any]:
    """The same with `workdir`, `venv`, and `conda` and `container` where they are paths, absolute from `base`."""
    found = dict(spec)
    for name in ("workdir", "venv", "conda", "container"):
        value = found.get(name)
        if not isinstance(value, str) or not value:
            continue
        is_path = name in ("workdir", "venv") or value.startswith((".", "~", "/")) or value.endswith(".sif")
        if name == "conda":
            is_path = is_path or "/" in value
        if is_path:
            found[name] = str(_joined(base, value))
    return found


def _joined(base: Path, value: str) -> Path:
    try:
        path = Path(value).expanduser()
    except RuntimeError as error:
        raise InputError(f"{value}: {error}") from None
    import os.path

    return Path(os.path.normpath(base / path))


def environment(files: Sequence[Path], written: Sequence[str]) -> dict[str, str]:
    """Variables of --env-file and --env; later ones win, and --env over files."""
    import os

    found: dict[str, str] = {}
    for file in files:
        found.update(read_env_file(file))
    for text in written:
        key, equals, value = text.partition("=")
        if not equals and key in os.environ:
            value = os.environ[key]
        elif not equals or not key:
            raise InputError(f"--env {text!r}: write KEY=VALUE, or the KEY of a variable of this shell")
        found[key] = value
    return found


def read_env_file(path: Path) -> dict[str, str]:
    """Variables of a file: KEY=VALUE a line, # comments, `export` before them and quotes around values allowed.

    Nothing is expanded in values.

    Raises:
        InputError: names file and line.
    """
    try:
        lines = path.expanduser().read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: is not UTF-8 text (byte {error.start})") from None
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    found: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        match = re.fullmatch(r"(?:export\s+)?([A-Za-z_][A-Za-z0-9_.]*)=(.*)", text)
        if match is None:
            raise InputError(f"{path}:{number}: {text[:60]!r} is not KEY=VALUE")
        value = match[2]
        if value[:1] in ("'", '"'):
            try:
                words = shlex.split(value, comments=True)
            except ValueError as error:
                raise InputError(f"{path}:{number}: {match[1]}: {error}") from None
            if len(words) != 1:
                raise InputError(f"{path}:{number}: {match[1]}: there is text after the closing quote")
            value = words[0]
        found[match[1]] = value
    return found
