"""`gpuloom profiles measure`: the stage profile of an unmodified script, and what would make it faster."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpuloom.cli.dry_runs import Result, keep, measured_on
from gpuloom.cli.job_options import KEY_OF_COMMAND, SubmitCommand
from gpuloom.cli.live_tables import show_table
from gpuloom.cli.run_options import Duration
from gpuloom.cli.stage_table import PART_COLUMNS, measured_lines, part_rows
from gpuloom.core.errors import GpuloomError, InputError
from gpuloom.core.script_key import script_key
from gpuloom.core.units import format_duration
from gpuloom.core.words import plural

if TYPE_CHECKING:
    from gpuloom.core.profile import Profile
    from gpuloom.files.hook_records import Sight


@click.command(cls=SubmitCommand)
@click.option(
    "--iterations", type=click.IntRange(4), default=40, show_default=True, help="Iterations to time, after the first 3."
)
@click.option("--on", "models", metavar="MODELS", help="GPU models of the running scheduler (V100,K80) [this machine].")
@click.option("--gpus", "-g", type=click.IntRange(1), default=1, show_default=True, metavar="N", help="Number of GPUs.")
@click.option("--name", metavar="KEY", help="Key of the profile [the script and its arguments that matter].")
@click.option("--save/--dry-run", default=True, help="Keep the profile in your library, replacing an older one [save].")
@click.option(
    "--timeout", type=Duration(), default="10m", show_default=True, metavar="TIME", help="End it after so long."
)
@click.option("--plot", metavar="FILE", help="Draw the stages (.svg, .png or .pdf).")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "--home", type=click.Path(path_type=Path, file_okay=False), metavar="DIR", help="With --on: home of the scheduler."
)
@click.option(
    "--library", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Your profiles, a CSV file."
)
@click.pass_context
def measure(
    ctx: click.Context,
    iterations: int,
    models: str | None,
    gpus: int,
    name: str | None,
    save: bool,
    timeout: float,
    plot: str | None,
    as_json: bool,
    home: Path | None,
    library: Path | None,
) -> None:
    """Run a script for some iterations and show where its time goes.

    Says how long an iteration takes on storage, CPU, GPU and network, and the one change that would save most. With
    PyTorch, Lightning, HF Trainer, Accelerate and Keras; of other programs the speed, where they tell it
    (docs/howto/profiles.md).

    \b
    Examples:
      gpuloom profiles measure -- python train.py --batch-size 64
      gpuloom profiles measure --on V100,K80 --json -- python train.py
    """
    command: list[str] = ctx.meta.get(KEY_OF_COMMAND) or []
    if not command:
        raise click.UsageError("name what to run: gpuloom profiles measure -- python train.py")
    if plot is not None:
        from gpuloom.report.picture import check_picture

        check_picture(Path(plot))
    key = (name or "").strip() or script_key(command)
    if not key.isprintable():  # before it has run for long
        raise InputError(f"--name {key!r}: must be printable")
    wanted = [word.strip() for word in (models or "").split(",") if word.strip()]
    if wanted:
        from gpuloom.cli.live import connect
        from gpuloom.cli.submit import shell_environment

        spec = {"command": command, "gpus": gpus, "workdir": os.getcwd(), "env": shell_environment()}
        with connect(home) as client:
            results = measured_on(client, {**spec, "on_preempt": "checkpoint"}, wanted, iterations, timeout)
    else:
        results = [_here(command, iterations, timeout)]
    kept = keep(results, key, gpus, command, library, save=save)
    if plot is not None:
        drawn = [(one.where, one.measured) for one in results if one.measured is not None]
        if not drawn:
            raise InputError(f"--plot {plot}: there is nothing to draw: no stage was measured")
        from gpuloom.report.stages import save_stages

        save_stages(key, drawn, Path(plot))
    if as_json:
        click.echo(json.dumps(_as_json(key, results, kept), indent=2, ensure_ascii=False, allow_nan=False))
    else:
        _print(key, results)
    if kept:
        click.echo(f"kept {plural(len(kept), 'profile')} of {key!r}; later jobs of this script use it", err=True)
    if all(one.it_per_s is None for one in results):
        ctx.exit(1)


# -- measuring --------------------------------------------------------------------------------------------------------


def _here(command: Sequence[str], iterations: int, timeout_s: float) -> Result:
    from gpuloom.cli.measuring import From, blind, run_here

    shows = sys.stderr.isatty()

    def told(done: int) -> None:
        if shows:
            click.echo(f"\r{done} iterations ", nl=False, err=True)

    def unseen(sight: Sight) -> None:
        click.echo(
            f"nothing to measure yet: {blind(sight)}; it is ended after {format_duration(timeout_s)} (--timeout)",
            err=True,
        )

    seen = run_here(command, iterations=iterations, timeout_s=timeout_s, env=os.environ, told=told, unseen=unseen)
    if shows:
        click.echo("\r", nl=False, err=True)
    if seen.source is From.NOTHING:
        last = "\n".join(seen.log.splitlines()[-8:])
        ended = f"it ended with code {seen.exit_code}" if seen.exit_code is not None else f"it ran {seen.took_s:.0f} s"
        raise GpuloomError(
            f"nothing could be measured: {blind(seen.hooked.sight)}; {ended} and reported no progress and no it/s"
            + (f"; its last lines:\n{last}" if last else "")
        )
    why = "" if seen.source is From.HOOKS else blind(seen.hooked.sight)
    return Result("here", seen.measured, seen.it_per_s, seen.source.value, why)


# -- keeping and showing ----------------------------------------------------------------------------------------------


def _as_json(key: str, results: Sequence[Result], kept: Sequence[Profile]) -> list[dict[str, Any]]:
    from gpuloom.live.views.measured import measured_view

    return [
        {
            "key": key,
            "on": None if one.where == "here" else one.where,
            "it_per_s": one.it_per_s,
            "source": one.source,
            "why": one.why or None,
            "kept": bool(kept) and one.measured is not None,
            "measured": None if one.measured is None else measured_view(one.measured),
        }
        for one in results
    ]


def _print(key: str, results: Sequence[Result]) -> None:
    for at, one in enumerate(results):
        if at:
            click.echo()
        click.echo(f"{key}{'' if one.where == 'here' else f' on {one.where}'}")
        if one.measured is not None:
            show_table(PART_COLUMNS, part_rows(one.measured))
            for line in measured_lines(one.measured):
                click.echo(line)
        elif one.it_per_s is not None:
            click.echo(f"{one.it_per_s:,.4g} it/s by its own {one.source}; no stages: {one.why}")
        else:
            click.echo(f"nothing measured: {one.why}")
