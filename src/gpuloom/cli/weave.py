"""`gpuloom weave`: which jobs to weave on shared GPUs."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpuloom.cli.groups import Choice
from gpuloom.cli.profiles import library_option
from gpuloom.core.errors import InputError
from gpuloom.core.units import parse_memory_mib
from gpuloom.core.words import are, plural

if TYPE_CHECKING:
    from gpuloom.core.workload import F8
    from gpuloom.facts.profile_tables import JobSet
    from gpuloom.interleave.efficiency import Interleaving
    from gpuloom.report.weaving import WovenGroup

OBJECTIVES = {"throughput": "normalised throughput", "efficiency": "γ, the mean busy share of the resources"}


@click.command()
@click.argument("profiles", metavar="PROFILES.csv")
@click.option("--group-size", type=click.IntRange(1, 4), metavar="1..4", help="Most jobs in a group [4].")
@click.option(
    "--groups",
    type=click.IntRange(1),
    metavar="N",
    help="At most N groups per number of GPUs [as few as full groups need].",
)
@click.option(
    "--method",
    type=Choice(["auto", "exact", "multiround", "greedy"]),
    default="auto",
    show_default=True,
    help="multiround: the Muri paper's rounds of matching; auto: exact for up to 40 different jobs, else multiround.",
)
@click.option(
    "--objective",
    type=Choice([*OBJECTIVES]),
    default="throughput",
    show_default=True,
    help="What the groups are chosen by.",
)
@click.option(
    "--ordering",
    type=Choice(["best", "worst", "none"]),
    default="best",
    show_default=True,
    help="Order of the jobs inside a group.",
)
@click.option(
    "--model",
    type=Choice(["auto", "measured", "barrier"]),
    default="auto",
    show_default=True,
    help="Model of how woven jobs slow each other down; auto: measured for 3 stages, barrier for 4.",
)
@click.option(
    "--interleave-overhead",
    metavar="measured|none|F|F2/F3/F4",
    help="Slowdown of a group of 2, 3, 4 jobs [as measured with the measured model; none with barrier].",
)
@click.option(
    "--pair-speeds",
    "pairs",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Measured speeds of jobs beside each other, by their names: CSV, or Gavel's JSON. They go before the model.",
)
@click.option("--gpu-model", metavar="MODEL", help="With --pair-speeds: the GPU model [the only one in FILE].")
@click.option("--gpu-memory", metavar="SIZE", help="Memory of a GPU (16GiB); a group must fit.")
@click.option(
    "--json",
    "json_target",
    is_flag=False,
    flag_value="-",
    metavar="[FILE]",
    help="Write JSON to FILE; without FILE, or with -, print only that.",
)
@click.option(
    "--plot", "plot_target", type=click.Path(dir_okay=False), metavar="FILE", help="Plot to .png, .svg, .pdf."
)
@library_option
def weave(
    profiles: str,
    group_size: int | None,
    groups: int | None,
    method: str,
    objective: str,
    ordering: str,
    model: str,
    interleave_overhead: str | None,
    pairs: Path | None,
    gpu_model: str | None,
    gpu_memory: str | None,
    json_target: str | None,
    plot_target: str | None,
    library: Path | None,
) -> None:
    """Find which jobs to weave on shared GPUs, in which order, and what it gains.

    PROFILES.csv (- for standard input) has a row per job: its name, its GPUs, and its stage times per iteration or a
    model whose profile has them (docs/howto/profiles.md). Jobs are woven only with jobs of the same number of GPUs.

    \b
    Examples:
      gpuloom weave jobs.csv
      gpuloom weave jobs.csv --group-size 2 --plot woven.png
      gpuloom weave jobs.csv --method multiround --objective efficiency --json out.json
    """
    from gpuloom.cli.outputs import check_outputs, check_overwrites
    from gpuloom.facts.profile_tables import read_jobs
    from gpuloom.facts.profiles import load_profiles

    check_outputs([json_target], plot_target)
    inputs = [path for path in (library, pairs) if path is not None]
    check_overwrites([json_target, plot_target], [Path(profiles), *inputs])
    memory_mib = None if gpu_memory is None else _memory(gpu_memory)
    jobs = read_jobs(profiles, lambda: load_profiles(library))
    jobs, interleaving = _model(jobs, model, ordering, interleave_overhead)
    stages = jobs.stage_s.shape[1]
    most = stages if interleaving.model == "barrier" else 4
    if group_size is not None and group_size > most:
        raise InputError(f"--group-size {group_size}: the barrier model weaves at most as many jobs as stages, {most}")
    size = min(4, most) if group_size is None else group_size
    notes = [*jobs.notes]
    if memory_mib is not None:
        notes += _check_memory(jobs, memory_mib)
    if method == "auto":
        kinds = max(jobs.gpus.count(gpus) for gpus in set(jobs.gpus))
        method = "exact" if kinds <= MOST_EXACT else "multiround"
    share = _shares(jobs, pairs, gpu_model)
    found, summary = _weave(jobs, interleaving, size, groups, method, objective, memory_mib, share)
    if json_target is not None:
        _write_json(found, summary, notes, json_target)
    if json_target != "-":
        for note in notes:
            click.echo(f"note: {note}", err=True)
        _print(found, summary)
    if plot_target is not None:
        from gpuloom.report.weaving import save_weaving

        save_weaving(found, interleaving, Path(plot_target))
    for target in (json_target, plot_target):
        if target is not None and target != "-":
            click.echo(f"wrote {target}", err=True)


def _model(jobs: JobSet, model: str, ordering: str, overhead: str | None) -> tuple[JobSet, Interleaving]:
    """The jobs with the stages of the model, and the model."""
    import numpy as np

    from gpuloom.interleave.efficiency import Interleaving

    stages = jobs.stage_s.shape[1]
    if model == "auto":
        model = "measured" if stages == 3 else "barrier"
    if model == "measured" and stages == 4:
        load = jobs.stage_s[:, :2].sum(axis=1, keepdims=True)
        note = "the measured model has 3 stages: storage and CPU are added up as load"
        jobs = replace(jobs, stage_s=np.hstack([load, jobs.stage_s[:, 2:]]), notes=(*jobs.notes, note))
    return jobs, Interleaving(model, ordering, overhead_factors(overhead, model))


def overhead_factors(text: str | None, model: str) -> tuple[float, ...]:
    """Factors on the iteration of 1 to 4 jobs, written as for the policies that weave."""
    from gpuloom.policies.weaving import overhead

    if text is None:
        text = "measured" if model == "measured" else "none"
    try:
        return overhead(text)
    except ValueError as error:
        raise InputError(f"--interleave-overhead {text!r}: {error}") from error


def _memory(text: str) -> int:
    try:
        return parse_memory_mib(text)
    except InputError as error:
        raise InputError(f"--gpu-memory: {error}") from error


def _check_memory(jobs: JobSet, gpu_memory_mib: int) -> list[str]:
    unknown = 0
    for name, count, needs in zip(jobs.job, jobs.count, jobs.memory_mib.tolist(), strict=True):
        if needs > gpu_memory_mib:
            raise InputError(f"job {name!r} needs {needs:,.0f} MiB on each GPU, --gpu-memory is {gpu_memory_mib:,} MiB")
        unknown += count if math.isnan(needs) else 0
    if not unknown:
        return []
    return [
        f"the memory of {unknown:,} of {plural(sum(jobs.count), 'job')} is unknown and counts as 0: "
        "give column gpu_memory_mib"
    ]


MOST_EXACT = 40
"""Most different jobs for which the exact method takes a few seconds at most."""


def _weave(
    jobs: JobSet,
    interleaving: Interleaving,
    size: int,
    groups: int | None,
    method: str,
    objective: str,
    gpu_memory_mib: int | None,
    share: F8 | None,
) -> tuple[list[WovenGroup], dict[str, Any]]:
    """The groups, alike ones counted together, and what is said of the whole.

    Args:
        share: of its speed alone that a kind of job keeps beside another, NaN where it was not measured.
    """
    import numpy as np

    from gpuloom.interleave.grouping import Measured, group_jobs

    found: list[WovenGroup] = []
    solvers = []
    for gpus in sorted({*jobs.gpus}):
        kinds = [kind for kind, of_kind in enumerate(jobs.gpus) if of_kind == gpus]
        rows = np.repeat(kinds, [jobs.count[kind] for kind in kinds])
        grouping = group_jobs(
            jobs.stage_s[rows],
            method=method,
            size=size,
            groups=groups,
            interleaving=interleaving,
            objective=objective,
            solo_s=jobs.solo_s[rows],
            memory_mib=np.nan_to_num(jobs.memory_mib[rows]),
            gpu_memory_mib=math.inf if gpu_memory_mib is None else gpu_memory_mib,
            measured=None if share is None else Measured(rows.tolist(), share + share.T),
        )
        found += _alike(jobs, rows.tolist(), grouping, gpus, interleaving, share)
        value, bound = float(grouping.value), float(grouping.bound)
        solvers.append(
            {
                "gpus": gpus,
                "jobs": len(rows),
                "groups": len(grouping.groups),
                "groups_wanted": grouping.wanted,
                "solver": grouping.solver,
                "optimal": bool(grouping.optimal),
                "value": value,
                "bound": bound if math.isfinite(bound) else None,
                "gap": max(0.0, bound / value - 1) if value > 0 and math.isfinite(bound) else None,
            }
        )
    found.sort(key=lambda group: (group.gpus, -len(group.jobs), -group.throughput * group.count))
    before = sum(group.gpus_before * group.count for group in found)
    after = sum(group.gpus * group.count for group in found)
    work = sum(group.throughput * group.gpus * group.count for group in found)
    woven = sum(len(group.jobs) * group.count for group in found)
    return found, {
        "jobs": sum(jobs.count),
        "jobs_in_groups": woven,
        "group_count": sum(group.count for group in found),
        "gpus_before": before,
        "gpus_after": after,
        "normalised_throughput": work / after if after else None,
        "method": method,
        "objective": objective,
        "group_size": size,
        "ordering": interleaving.ordering,
        "model": interleaving.model,
        "overhead_factors": {str(n): factor for n, factor in enumerate(interleaving.overhead, 1) if n > 1},
        "gpu_memory_mib": gpu_memory_mib,
        "solvers": solvers,
    }


def _shares(jobs: JobSet, path: Path | None, gpu_model: str | None) -> F8 | None:
    """What was measured of the kinds of jobs beside each other, by their names: shape (kinds, kinds)."""
    import numpy as np

    from gpuloom.facts.pairs import read_pairs

    if path is None:
        if gpu_model is not None:
            raise InputError("--gpu-model is for --pair-speeds, which says how fast jobs run beside each other on it")
        return None
    table = read_pairs(path)
    models = sorted({model for model, _, _ in table.share})
    if gpu_model is None and len(models) > 1:
        raise InputError(f"{path} has pairs on {', '.join(models)}: choose one with --gpu-model")
    wanted = (gpu_model or models[0]).upper()
    if wanted not in models:
        raise InputError(f"{path} has no pairs on GPU model {gpu_model!r}; it has {', '.join(models)}")
    share = np.full((len(jobs), len(jobs)), np.nan)
    kinds = list(zip(jobs.job, jobs.gpus, strict=True))
    for one, mine in enumerate(kinds):
        for two, its in enumerate(kinds):
            found = table.share.get((wanted, mine, its))
            if found is None and (reverse := table.share.get((wanted, its, mine))) is not None:
                found = reverse[::-1]
            if found is not None:
                share[one, two] = sum(found) / 2 if mine == its else found[0]
    if np.isnan(share).all():
        raise InputError(f"{path} knows none of the jobs beside each other on {wanted} (by name and GPUs)")
    return share


def _alike(
    jobs: JobSet, rows: list[int], grouping: Any, gpus: int, interleaving: Interleaving, share: F8 | None
) -> list[WovenGroup]:
    """The groups of one number of GPUs; those of the same kinds of jobs in the same order as one."""
    from gpuloom.report.weaving import WovenGroup, WovenJob, solo_efficiency

    kinds: dict[tuple[tuple[int, int], ...], list[int]] = {}
    for at, (members, slots) in enumerate(zip(grouping.groups, grouping.slots, strict=True)):
        in_order = sorted(zip((int(slot) for slot in slots), (rows[member] for member in members), strict=True))
        kinds.setdefault(tuple(in_order), []).append(at)
    found = []
    for order, places in kinds.items():
        members = tuple(
            WovenJob(jobs.job[kind], slot, tuple(jobs.stage_s[kind].tolist()), float(jobs.solo_s[kind]))
            for slot, kind in order
        )
        alone = solo_efficiency(
            [member.stage_s for member in members], [member.solo_s for member in members], interleaving
        )
        single = len(members) == 1  # not woven: as fast as alone
        measured = None
        if share is not None and len(order) == 2:
            (_, one), (_, two) = order
            if share[one, two] == share[one, two]:
                measured = (float(share[one, two]), float(share[two, one]))
        found.append(
            WovenGroup(
                members,
                gpus,
                members[0].solo_s if single else float(grouping.iteration_s[places[0]]),
                alone if single else float(grouping.efficiency[places[0]]),
                alone,
                1.0 if single or measured is not None else interleaving.overhead[len(members) - 1],
                len(places),
                measured,
            )
        )
    return found


def _write_json(found: Sequence[WovenGroup], summary: dict[str, Any], notes: Sequence[str], target: str) -> None:
    from gpuloom.files.whole import text_output

    data = {**summary, "notes": [*notes], "groups": [group.to_dict() for group in found]}
    with text_output(target) as file:
        file.write(json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def _print(found: Sequence[WovenGroup], summary: dict[str, Any]) -> None:
    from gpuloom.core.words import plural
    from gpuloom.report.weaving import print_groups

    print_groups(found)
    click.echo()
    left_out = summary["jobs"] - summary["jobs_in_groups"]
    total = summary["normalised_throughput"]
    click.echo(
        f"{plural(summary['jobs_in_groups'], 'job')} in {plural(summary['group_count'], 'group')} on "
        f"{plural(summary['gpus_after'], 'GPU')} "
        f"instead of {summary['gpus_before']:,}"
        + (f"; each GPU does {total:.2f} times the work" if total is not None else "")
        + (f"; {are(left_out, 'job')} in no group" if left_out else "")
    )
    by_quality: dict[str, list[int]] = {}
    for solver in summary["solvers"]:
        if solver["optimal"]:
            quality = "optimal"
        elif solver["gap"] is None:
            quality = "no bound is known"
        else:
            quality = f"at most {solver['gap']:.2%} below the optimum"
        by_quality.setdefault(f"{solver['solver']}, {quality}", []).append(solver["gpus"])
    for said, gpus in by_quality.items():
        of_gpus = f" ({', '.join(map(str, gpus))}-GPU jobs)" if len(by_quality) > 1 else ""
        click.echo(f"solver: {said}, by {OBJECTIVES[summary['objective']]}{of_gpus}")
    if more := [solver for solver in summary["solvers"] if solver["groups"] > solver["groups_wanted"]]:
        many = ", ".join(f"{s['groups']} in place of {s['groups_wanted']} of {s['gpus']}-GPU jobs" for s in more)
        fewer = "" if summary["method"] == "exact" else "; --method exact may need fewer"
        click.echo(
            f"more groups than wanted: {many} (a group has at most {summary['group_size']} jobs, fits the memory and "
            f"is not slower than one after another{fewer})"
        )
    factors = [f"{factor:.3g}" for factor in summary["overhead_factors"].values()]
    said = "none" if set(factors) == {"1"} else f"× {', '.join(factors)} for 2, 3, 4 jobs"
    click.echo(f"model: {summary['model']}, ordering {summary['ordering']}, overhead {said}")
