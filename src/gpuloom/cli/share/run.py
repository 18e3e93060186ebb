"""`gpuloom share run`: run a program under the shim."""

from __future__ import annotations

import dataclasses
import os
import re
from contextlib import ExitStack
from pathlib import Path

import click

from gpuloom.cli.groups import Choice
from gpuloom.cli.live import Memory
from gpuloom.cli.run_options import Duration
from gpuloom.cli.share.attending import attend, end_as, replace
from gpuloom.core.errors import InputError
from gpuloom.core.share_class import CLASSES, IMPORTANCES, TASK_TYPES, job_class
from gpuloom.sharing.rule import RULES
from gpuloom.sharing.shim import attach as shim
from gpuloom.sharing.shim import build, mps

MOST_HOLD_S = 3600.0
GPU = re.compile(r"[0-9]{1,4}|(GPU|MIG)-[0-9A-Za-z/-]+")
"""An index, or a UUID as the driver tells it; MIG-GPU-UUID/1/0 is the older form of a MIG instance."""


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--class", "klass", type=Choice(CLASSES), help="The program's class.")
@click.option(
    "--task-type", type=Choice(TASK_TYPES), help="Without --class, inference and interactive make it class high."
)
@click.option(
    "--importance",
    type=Choice(IMPORTANCES),
    help="Importance to the business. Without --class, high makes it class high.",
)
@click.option(
    "--real-time", is_flag=True, help="It must answer in real time. Without --class, this makes it class high."
)
@click.option("--gpu", metavar="GPU", help="Its index or UUID (CUDA_VISIBLE_DEVICES).")
@click.option("--rule", type=Choice(RULES), help="Rule by which best-effort launches are admitted.  [default: gpuloom]")
@click.option(
    "--max-hold", "max_hold_s", type=Duration(), metavar="TIME", help="Longest time a launch is held.  [default: 0.1]"
)
@click.option(
    "--gpu-memory",
    "memory_mib",
    type=Memory(),
    metavar="SIZE",
    help="GPU memory that it may have (8GiB): what would pass it is out of memory.  [default: all there is]",
)
@click.option("--profile", metavar="NAME|FILE", help="Profile of its kernels: a stored one, or a file.")
@click.option(
    "--profile-if-there", is_flag=True, help="Run without the profile, with a warning, where it can't be read."
)
@click.option(
    "--take-profile",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Take the profile of its kernels while it runs, as share profile does, and keep it in FILE.",
)
@click.option("--log", type=click.Path(dir_okay=False, path_type=Path), help="Log file of the shim.")
@click.option("--name", metavar="NAME", help="Name in `share top`.")
@click.option(
    "--mps/--no-mps",
    "use_mps",
    default=None,
    help="Start a private MPS.  [default: where it is installed and one GPU is used]",
)
@click.option("--require", is_flag=True, help="Fail if the shim can't be active, instead of running without it.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def run(
    klass: str | None,
    task_type: str | None,
    importance: str | None,
    real_time: bool,
    gpu: str | None,
    rule: str | None,
    max_hold_s: float | None,
    memory_mib: int | None,
    profile: str | None,
    profile_if_there: bool,
    take_profile: Path | None,
    log: Path | None,
    name: str | None,
    use_mps: bool | None,
    require: bool,
    command: tuple[str, ...],
) -> None:
    """Run COMMAND on a shared GPU: as the protected program (high), or as one that takes what is left (best-effort).

    The exit code is COMMAND's; 127 if there is no such program, 126 if it can't be run. If the shim can't be active (no
    driver, no compiler, GPULOOM_SHARE=off), COMMAND runs without it, with a warning.

    \b
    Examples:
      gpuloom share run --class high -- python serve.py
      gpuloom share run --class best-effort --gpu 0 --profile train -- python train.py
      gpuloom share run --task-type inference -- ./server
    """
    if klass is None and task_type is None and importance is None and not real_time:
        raise click.UsageError("give --class, or what determines the class: --task-type, --importance, --real-time")
    chosen = job_class(klass, task_type, importance, real_time=real_time)
    check(gpu, max_hold_s, name, log)
    settings = shim.ShimSettings(chosen, gpu or "", name or "", rule or "", max_hold_s, log=log, memory_mib=memory_mib)
    text = ""
    if profile is not None:
        from gpuloom.sharing.table import table_of, write_table

        try:
            text = table_of(profile)
        except InputError as error:
            if not profile_if_there:
                raise
            click.echo(f"gpuloom: without its kernel profile, kernels are learnt as they run: {error}", err=True)
    base = dict(os.environ)
    if gpu:
        base["CUDA_VISIBLE_DEVICES"] = gpu
    try:
        if base.get("GPULOOM_SHARE") == "off":
            raise InputError("GPULOOM_SHARE=off: the shim passes everything through; unset it")
        driver = shim.find_driver(base)
        if driver is None:
            raise InputError("no NVIDIA driver (libcuda.so.1) was found; set GPULOOM_SHARE_DRIVER to where it is")
        shared = shim.shared_folder(base)
        if text:
            settings = dataclasses.replace(settings, profile=write_table(text, shared))
        made = shim.program_environment(settings, base, shim=build.shim_path(driver), driver=driver, shared=shared)
    except InputError as error:
        if require:
            raise
        click.echo(f"gpuloom: not shared: {error}", err=True)
        replace(command, base)
        return
    one = mps.gpu_of(made) if use_mps is not False and mps.control() is not None else None
    if one is None and use_mps:
        why = f"{mps.CONTROL} or {mps.SERVER} is not on the PATH" if mps.control() is None else "give one GPU (--gpu)"
        if require:
            raise InputError(f"--mps: {why}; --no-mps goes without it")
        click.echo(f"gpuloom: without MPS: {why}", err=True)
    if one is None and take_profile is None:
        replace(command, made)
        return
    with ExitStack() as around:
        if one is not None:
            made |= mps.client_environment(around.enter_context(mps.private(shared, one, base)), one, chosen)
        if take_profile is not None:
            from gpuloom.cli.share.profile import taking

            made = around.enter_context(taking(take_profile, made))
        code = attend(command, made)
    end_as(code)


def check(gpu: str | None, max_hold_s: float | None, name: str | None, log: Path | None) -> None:
    """Refuse, before anything starts, what the shim would pass over in silence.

    Raises:
        InputError: says which option, and what it must be.
    """
    if gpu is not None and not GPU.fullmatch(gpu):
        raise InputError(f"--gpu is {gpu!r}: must be one GPU's index or its UUID (GPU-..., MIG-...)")
    if max_hold_s is not None and not 0 < max_hold_s <= MOST_HOLD_S:
        raise InputError(f"--max-hold is {max_hold_s:g} s: must be above 0 and at most an hour")
    if name is not None and not (name.strip() and name.isprintable()):
        raise InputError(f"--name is {name!r}: must be printable text, not empty")
    if log is not None:
        try:  # as the shim opens it: O_NONBLOCK, so that a pipe that nobody reads is an error instead of a wait
            os.close(os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC, 0o600))
        except OSError as error:
            raise InputError(f"--log {log}: can't be written ({error.strerror}); name another file") from error
