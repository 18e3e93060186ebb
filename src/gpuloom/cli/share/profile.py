"""`gpuloom share profile`: the kernel profile of an unmodified PyTorch program."""

from __future__ import annotations

import json
import os
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuloom.cli.groups import Choice
from gpuloom.cli.outputs import overwrite_option
from gpuloom.cli.run_options import Duration
from gpuloom.cli.share.attending import attend, end_as
from gpuloom.cli.share.profiles import say_if_hidden
from gpuloom.core.errors import GpuloomError, InputError
from gpuloom.core.words import plural
from gpuloom.sharing import profiler
from gpuloom.sharing.profiles import BOUND, SUFFIX, check_name, library_folder

if TYPE_CHECKING:
    from gpuloom.sharing.profiles import KernelProfile

LOOK_EVERY_S = 0.1


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--name", metavar="NAME", help="Name of the profile [the program's].")
@click.option(
    "--warm-up",
    type=click.IntRange(0),
    default=10,
    show_default=True,
    metavar="K",
    help="Iterations to skip first (seconds with --seconds).",
)
@click.option(
    "--iterations", type=click.IntRange(1), default=5, show_default=True, metavar="N", help="Iterations to record."
)
@click.option("--seconds", type=Duration(), metavar="TIME", help="Record for this long, instead of by iterations.")
@click.option(
    "--by",
    type=Choice(["auto", "step", "forward"]),
    default="auto",
    show_default=True,
    help="What ends an iteration: a step of the first optimizer, or the next outermost forward pass.",
)
@click.option(
    "--class-threshold",
    type=click.FloatRange(0, 1, min_open=True),
    default=0.6,
    show_default=True,
    metavar="SHARE",
    help="Utilisation above which a kernel counts as compute-bound or memory-bound.",
)
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the profile to this file [your library].",
)
@overwrite_option("a profile of that name")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, as the last line after the program's output.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def profile(
    name: str | None,
    warm_up: int,
    iterations: int,
    seconds: float | None,
    by: str,
    class_threshold: float,
    output: Path | None,
    overwrite: bool,
    as_json: bool,
    command: tuple[str, ...],
) -> None:
    """Run COMMAND, an unmodified PyTorch program, and keep the profile of its kernels.

    It needs no administrator rights. The profile is written as soon as the iterations are recorded, and COMMAND runs on
    to its end. The exit code is that of COMMAND; or 1 if COMMAND succeeded but no profile could be made.

    \b
    Examples:
      gpuloom share profile -- python serve.py
      gpuloom share profile --name bert-train --warm-up 20 -- python train.py --epochs 1
      gpuloom share profile --seconds 5s --output serve.kernels.jsonl -- python serve.py
    """
    title = _title(command) if name is None else name
    if output is None:
        check_name(title)
    if output is None and not overwrite and (library_folder() / f"{title}{SUFFIX}").exists():
        raise InputError(
            f"there is a profile {title} already; --overwrite replaces it, --name or --output choose another"
        )
    if output is not None and not output.absolute().parent.is_dir():
        raise InputError(f"--output {output}: there is no folder {output.absolute().parent}")
    if seconds is not None and seconds <= 0:
        raise InputError("--seconds must be above 0")
    request = profiler.Request(warm_up, iterations, seconds, "time" if seconds is not None else by)
    with tempfile.TemporaryDirectory(prefix="gpuloom-profile-") as scratch:
        folder = Path(scratch)
        watch = _Watch(folder, title, class_threshold, output, overwrite)
        environment = profiler.prepare(folder, request, dict(os.environ))
        watch.start()
        try:
            code = attend(command, environment)
        finally:
            watch.ended.set()
            watch.join()
        error = watch.error
        if watch.profile is None and error is None:
            error = profiler.ProfileError(profiler.why_not(folder, request))
    if as_json:
        from gpuloom.cli.share.profiles import _summary

        told = _summary(watch.profile, watch.where) if watch.profile else {"error": str(error)}
        click.echo(json.dumps(told | {"exit_code": code if code >= 0 else 128 - code}, allow_nan=False))
    if error is not None and code == 0:
        raise error
    if error is not None:
        click.echo(f"gpuloom: no profile: {error}", err=True)
    end_as(code)


@contextmanager
def taking(file: Path, environment: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """The environment of a program whose profile is taken while it runs, into a file. What goes wrong with that is said
    on stderr; the program runs on."""
    request = profiler.Request()
    title = file.name.removesuffix(SUFFIX)
    with ExitStack() as around:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            folder = Path(around.enter_context(tempfile.TemporaryDirectory(prefix="gpuloom-profile-")))
            made = profiler.prepare(folder, request, dict(environment))
        except (OSError, profiler.ProfileError) as error:
            click.echo(f"gpuloom: no kernel profile: {error}", err=True)
            yield dict(environment)
            return
        watch = _Watch(folder, title, BOUND, file, overwrite=True)
        watch.start()
        try:
            yield made
        finally:
            watch.ended.set()
            watch.join()
            if watch.profile is None:
                click.echo(f"gpuloom: no kernel profile: {watch.error or profiler.why_not(folder, request)}", err=True)


class _Watch(threading.Thread):
    """Turns the trace into a profile as soon as the program has left it."""

    def __init__(self, folder: Path, title: str, threshold: float, output: Path | None, overwrite: bool) -> None:
        super().__init__(name="profile")
        self.folder, self.title, self.threshold = folder, title, threshold
        self.output, self.overwrite = output, overwrite
        self.ended = threading.Event()
        self.profile: KernelProfile | None = None
        self.where = ""
        self.error: GpuloomError | None = None

    def run(self) -> None:
        while not profiler.is_done(self.folder):
            if self.ended.wait(LOOK_EVERY_S) and not profiler.is_done(self.folder):
                return
        try:
            found = profiler.made(self.folder, self.title, self.threshold)
            self.where = str(self.keep(found))
            self.profile = found
        except GpuloomError as error:
            self.error = error
            return
        if self.output is None:
            say_if_hidden(found.name)
        click.echo(
            f"gpuloom: profiled {found.name}: {plural(len(found.order), 'kernel')}, {found.duration_ns / 1e6:.3f} ms, "
            f"{found.device} ({found.sm_count} SMs), into {self.where}",
            err=True,
        )

    def keep(self, found: KernelProfile) -> Path:
        from gpuloom.sharing.profiles import dumps, save

        if self.output is not None:
            profiler.write(found, dumps(found), self.output)
            return self.output
        try:
            return save(found, library_folder(), self.overwrite)
        except OSError as error:
            raise profiler.ProfileError(
                f"{library_folder()}: the profile can't be kept ({error.strerror}); use --output FILE elsewhere"
            ) from error


def _title(command: tuple[str, ...]) -> str:
    """The program's name: of the first Python file or module of the command, else the command."""
    for index, word in enumerate(command):
        if word.endswith(".py"):
            return Path(word).stem
        if word == "-m" and index + 1 < len(command) and not command[index + 1].startswith("torch.distributed"):
            return command[index + 1].rpartition(".")[2]
    return Path(command[0]).name
