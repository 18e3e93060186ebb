"""`gpuloom profiles`: the stage times of models, shipped and the user's own."""

from __future__ import annotations

import json
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpuloom.cli.groups import Group
from gpuloom.cli.live_tables import Column, show_table
from gpuloom.cli.measure import measure
from gpuloom.cli.outputs import overwrite_option
from gpuloom.core.errors import InputError
from gpuloom.core.profile import STAGES_3, STAGES_4, Profile
from gpuloom.core.units import parse_duration_s, parse_memory_mib
from gpuloom.core.words import plural

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuloom.core.profile import Profiles

library_option = click.option(
    "--library",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Your profiles, a CSV file [$GPULOOM_HOME/profiles.csv, else ~/.local/share/gpuloom/profiles.csv].",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
replace_option = overwrite_option("profiles")


@click.group(cls=Group, aliases={"list": "ls"})
def profiles() -> None:
    """Show and store profiles: how long each stage of a model's iteration takes.

    Profiles of eight models ship with gpuloom. Your own are kept in a CSV file, your library; they replace shipped ones
    of the same model and number of GPUs (docs/howto/profiles.md).
    """


@profiles.command("ls")
@json_option
@library_option
def ls(as_json: bool, library: Path | None) -> None:
    """List all profiles.

    \b
    Examples:
      gpuloom profiles ls
      gpuloom profiles ls --json
    """
    from gpuloom.facts.profiles import load_profiles

    _print(load_profiles(library), None, as_json)


@profiles.command()
@click.argument("model")
@json_option
@library_option
def show(model: str, as_json: bool, library: Path | None) -> None:
    """Show the profiles of one model, by number of GPUs.

    \b
    Example:
      gpuloom profiles show bert
    """
    from gpuloom.facts.profiles import load_profiles

    _print(load_profiles(library), model, as_json)


@profiles.command()
@click.argument("model")
@click.option("--gpus", type=click.IntRange(1), required=True, metavar="N", help="Number of GPUs it was measured on.")
@click.option(
    "--iteration", required=True, metavar="TIME", help="Time of an iteration when it runs alone (0.2s, 200ms)."
)
@click.option(
    "--stages",
    required=True,
    metavar="TIMES",
    help="Stage times with commas: load,compute,network or storage,cpu,gpu,network (0.1,0.05,0.02 or 100ms,50ms,20ms).",
)
@click.option("--batch-size", type=click.IntRange(1), metavar="N", help="Samples per iteration and GPU.")
@click.option("--gpu-model", metavar="MODEL", help="GPU model it was measured on.")
@click.option("--memory", metavar="SIZE", help="Peak memory on each GPU (12GiB).")
@click.option("--start", metavar="TIME", help="Time to start training (10s).")
@click.option("--source", default="", metavar="TEXT", help="Who measured it, and how.")
@replace_option
@library_option
def add(
    model: str,
    gpus: int,
    iteration: str,
    stages: str,
    batch_size: int | None,
    gpu_model: str | None,
    memory: str | None,
    start: str | None,
    source: str,
    overwrite: bool,
    library: Path | None,
) -> None:
    """Add a profile to your library.

    \b
    Examples:
      gpuloom profiles add llama --gpus 8 --iteration 0.2s --stages 0.1,0.05,0.02
      gpuloom profiles add llama --gpus 8 --iteration 200ms --stages 30ms,60ms,80ms,20ms --memory 12GiB --overwrite
    """
    from gpuloom.facts.profiles import add_profiles, library_path

    times = [_time("--stages", text) for text in stages.split(",")]
    if len(times) not in (3, 4):
        raise InputError(
            f"--stages {stages!r} has {len(times)} times, must have 3 ({', '.join(STAGES_3)}) "
            f"or 4 ({', '.join(STAGES_4)})"
        )
    profile = Profile(
        model=model.strip(),
        gpus=gpus,
        iteration_s=_time("--iteration", iteration),
        stage_s=tuple(times),
        batch_size=batch_size,
        gpu_model=gpu_model,
        gpu_memory_mib=None if memory is None else _memory(memory),
        start_s=None if start is None else _time("--start", start),
        source=source,
    )
    path = library or library_path()
    replaced = add_profiles(path, [profile], replacing=overwrite)
    _warn([profile])
    click.echo(f"{'replaced' if replaced else 'added'} the {profile} in {path}", err=True)


@profiles.command("import", short_help="Add all profiles of a CSV file to your library.")
@click.argument("file", metavar="FILE.csv")
@replace_option
@library_option
def import_(file: str, overwrite: bool, library: Path | None) -> None:
    """Add all profiles of a CSV file to your library, or none if one is wrong.

    FILE.csv (- for standard input) has the columns of docs/howto/profiles.md, or those of the Muri artifact's table in
    milliseconds (model, num_gpu, batch_size, iteration_time_ms, stage0_dataload_ms, …).

    \b
    Example:
      gpuloom profiles import measured.csv --overwrite
    """
    from gpuloom.facts.profile_tables import read_profiles
    from gpuloom.facts.profiles import add_profiles, library_path

    found = read_profiles(file)
    path = library or library_path()
    replaced = add_profiles(path, found, replacing=overwrite)
    _warn(found)
    more = f", {replaced} of them replaced others" if replaced else ""
    click.echo(f"imported {plural(len(found), 'profile')} into {path}{more}", err=True)


@profiles.command("from-usage", short_help="Add a profile from samples of what a program used.")
@click.argument("file", metavar="FILE.csv")
@click.argument("model")
@click.option("--gpus", type=click.IntRange(1), required=True, metavar="N", help="Number of GPUs it ran on.")
@click.option("--iterations", type=click.FloatRange(0, min_open=True), metavar="N", help="Iterations it did meanwhile.")
@click.option("--iteration", metavar="TIME", help="In place of --iterations: time of one (0.2s, 200ms).")
@click.option(
    "--peak",
    "peaks",
    multiple=True,
    metavar="RESOURCE=NUMBER",
    help="Most that a resource can give, in its column's unit (network=1250) [its largest sample]. Repeatable.",
)
@click.option(
    "--threshold",
    type=click.FloatRange(0, 1),
    default=0.1,
    show_default=True,
    metavar="SHARE",
    help="A resource used below this share of its peak counts as not used.",
)
@click.option("--batch-size", type=click.IntRange(1), metavar="N", help="Samples per iteration and GPU.")
@click.option("--gpu-model", metavar="MODEL", help="GPU model it ran on.")
@click.option("--memory", metavar="SIZE", help="Peak memory on each GPU (12GiB).")
@click.option("--dry-run", is_flag=True, help="Show the profile, and keep nothing.")
@json_option
@replace_option
@library_option
def from_usage(
    file: str,
    model: str,
    gpus: int,
    iterations: float | None,
    iteration: str | None,
    peaks: tuple[str, ...],
    threshold: float,
    batch_size: int | None,
    gpu_model: str | None,
    memory: str | None,
    dry_run: bool,
    as_json: bool,
    overwrite: bool,
    library: Path | None,
) -> None:
    """Add a profile of a program that can't be measured from inside, from samples of what it used.

    FILE.csv (- for standard input) has a row per sample: time_s, and one column or more of storage, cpu, gpu, network,
    in any unit. At each moment the resource that is nearest its peak counts (docs/howto/profiles.md).

    \b
    Examples:
      gpuloom profiles from-usage samples.csv mymodel --gpus 1 --iterations 120 --dry-run
      gpuloom profiles from-usage samples.csv mymodel --gpus 8 --iteration 0.5s --peak network=1250
    """
    from gpuloom.facts.profiles import add_profiles, library_path
    from gpuloom.facts.usage_stages import read_usage, stages_of

    if (iterations is None) == (iteration is None):
        raise InputError("give --iterations (how many it did) or --iteration (how long one takes), one of the two")
    told = dict(map(_peak, peaks))
    usage = read_usage(file)
    found = stages_of(
        usage,
        iterations=iterations,
        iteration_s=None if iteration is None else _time("--iteration", iteration),
        peaks=told,
        threshold=threshold,
    )
    profile = Profile(
        model=model.strip(),
        gpus=gpus,
        iteration_s=found.iteration_s,
        stage_s=found.stage_s,
        batch_size=batch_size,
        gpu_model=gpu_model,
        gpu_memory_mib=None if memory is None else _memory(memory),
        source=f"{found.samples} usage samples of {Path(usage.source).name}, threshold {threshold:g}",
    )
    path = library or library_path()
    replaced = 0 if dry_run else add_profiles(path, [profile], replacing=overwrite)
    _warn([profile])
    if found.doubt is not None:
        click.echo(f"warning: {found.doubt}", err=True)
    if as_json:
        more = {"idle_s": found.idle_s, "iterations": found.iterations, "peaks": dict(found.peaks), "kept": not dry_run}
        click.echo(json.dumps({**as_dict(profile, True), **more}, indent=2, ensure_ascii=False, allow_nan=False))
    else:
        show_table(COLUMNS, [_cells(profile, True)])
        share = found.idle_s / found.iteration_s
        click.echo(f"\nTimes are in ms. In {share:.0%} of the time nothing was used above the threshold.")
    if not dry_run:
        click.echo(f"{'replaced' if replaced else 'added'} the {profile} in {path}", err=True)


def _peak(text: str) -> tuple[str, float]:
    name, equals, number = text.partition("=")
    try:
        if name not in STAGES_4 or not equals:
            raise ValueError
        return name, float(number)
    except ValueError:
        raise InputError(
            f"--peak {text}: must be RESOURCE=NUMBER, the resource one of {', '.join(STAGES_4)} (network=1250)"
        ) from None


@profiles.command()
@click.argument("model")
@click.option("--gpus", type=click.IntRange(1), metavar="N", help="Only the profiles of this number of GPUs.")
@library_option
def remove(model: str, gpus: int | None, library: Path | None) -> None:
    """Remove a model's profiles from your library.

    \b
    Example:
      gpuloom profiles remove llama --gpus 8
    """
    from gpuloom.facts.profiles import library_path, remove_profiles

    path = library or library_path()
    removed = remove_profiles(path, model, gpus)
    click.echo(f"removed {plural(removed, 'profile')} of {model} from {path}", err=True)


profiles.add_command(measure)


def as_dict(profile: Profile, own: bool) -> dict[str, Any]:
    """A profile as plain values, units in the names."""
    return {
        "model": profile.model,
        "gpus": profile.gpus,
        "batch_size": profile.batch_size,
        "gpu_model": profile.gpu_model,
        "iteration_s": profile.iteration_s,
        "stage_s": dict(zip(profile.stage_names, profile.stage_s, strict=True)),
        "gpu_memory_mib": profile.gpu_memory_mib,
        "start_s": profile.start_s,
        "noise": profile.noise,
        "date": profile.date or None,
        "source": profile.source,
        "own": own,
    }


COLUMNS = (
    Column("model", itemgetter(0)),
    Column("GPUs", itemgetter(1), right=True),
    Column("batch", itemgetter(2), right=True, least=74),
    Column("GPU model", itemgetter(3), least=88),
    Column("iteration", itemgetter(4), right=True),
    Column("load", itemgetter(5), right=True, gives=True, least=50),
    Column("compute", itemgetter(6), right=True, least=50),
    Column("network", itemgetter(7), right=True, least=60),
    Column("memory", itemgetter(8), right=True, least=110),
    Column("start", itemgetter(9), right=True, least=100),
    Column("of", itemgetter(10)),
)


def _print(known: Profiles, model: str | None, as_json: bool) -> None:
    rows = known.all() if model is None else known.of(model)
    if as_json:
        click.echo(json.dumps([as_dict(*row) for row in rows], indent=2, ensure_ascii=False, allow_nan=False))
        return
    show_table(COLUMNS, [_cells(profile, own) for profile, own in rows])
    own = sum(own for _, own in rows)
    click.echo("\nTimes are in ms. Load is storage and CPU together, or storage + CPU.")
    if model is None:
        of = plural(len({p.model for p, _ in rows}), "model")
        click.echo(f"{plural(len(rows), 'profile')} of {of}, {own} yours ({known.library})")
    else:
        for source in dict.fromkeys(profile.source for profile, _ in rows if profile.source):
            click.echo(f"source: {source}")


def _cells(profile: Profile, own: bool) -> tuple[str, ...]:
    *load, compute, network = map(_ms, profile.stage_s)
    return (
        profile.model,
        str(profile.gpus),
        "" if profile.batch_size is None else str(profile.batch_size),
        profile.gpu_model or "",
        _ms(profile.iteration_s),
        " + ".join(load),
        compute,
        network,
        "" if profile.gpu_memory_mib is None else f"{profile.gpu_memory_mib:,} MiB",
        "" if profile.start_s is None else f"{profile.start_s:g} s",
        "yours" if own else "shipped",
    )


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:,.4g}" if seconds < 10 else f"{seconds * 1000:,.0f}"


def _time(option: str, text: str) -> float:
    try:
        return parse_duration_s(text)
    except InputError as error:
        raise InputError(f"{option}: {error}") from error


def _memory(text: str) -> int:
    try:
        return parse_memory_mib(text)
    except InputError as error:
        raise InputError(f"--memory: {error}") from error


def _warn(found: Sequence[Profile]) -> None:
    for profile in found:
        if profile.doubt is not None:
            click.echo(f"warning: {profile.doubt}", err=True)
