"""`gpuloom simulate` and `gpuloom compare`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from gpuloom.cli.progress import task_progress
from gpuloom.cli.reading import read_for_use, reading_options
from gpuloom.core.cluster import Cluster
from gpuloom.core.errors import InputError
from gpuloom.core.units import parse_duration_s
from gpuloom.core.workload import Workload

DEFAULT_POLICIES = "fifo,sjf,srtf,srsf,tiresias,gittins,themis,antman,muri-xs,muri-xl,weave"


class Duration(click.ParamType[Any]):
    """Seconds, or a number with a unit."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            return parse_duration_s(value)
        except InputError as error:
            self.fail(str(error), param, ctx)


class Overhead(Duration):
    """A duration, or 'profile' (None)."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return None if value is None or value == "profile" else super().convert(value, param, ctx)


WEAVING_OPTIONS = ("group_size", "ordering", "grouping", "profile_noise", "interleave_overhead")


def weaving_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options of the policies that interleave jobs; each stands for the policy parameter of its name."""
    options = [
        click.option("--group-size", metavar="1..4", help="Weaving: most jobs that share GPUs."),
        click.option("--ordering", metavar="best|worst|none", help="Weaving: order of the jobs inside a group."),
        click.option(
            "--grouping", metavar="multiround|exact|greedy", help="Weaving: how muri-s and muri-l form groups."
        ),
        click.option("--profile-noise", metavar="0..1", help="Weaving: by how much profiled stage times may be off."),
        click.option(
            "--interleave-overhead",
            metavar="FACTORS",
            help="Weaving: what sharing costs: measured, none, one factor, or three for 2, 3, 4 jobs (1.3/1.5/1.4).",
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


ELASTIC_OPTIONS = {"base": "base", "elastic_config": "config"}
"""Options of the policies for elastic jobs, and the policy parameters that they stand for."""


def elastic_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options about jobs of several sizes."""
    options = [
        click.option("--base", metavar="POLICY", help="Elastic: the policy that decides who runs (tiresias)."),
        click.option(
            "--elastic-config",
            type=click.Path(dir_okay=False),
            metavar="FILE",
            help="Elastic: YAML file with the thresholds and their like.",
        ),
        click.option(
            "--elastic",
            "elastic_range",
            metavar="MIN-MAX",
            help="Make the jobs elastic: GPUs (1-8), or factors on what each asks for (0.5x-4x).",
        ),
        click.option(
            "--scaling-profiles",
            type=click.Path(exists=True, file_okay=False, path_type=Path),
            metavar="DIR",
            help="With --elastic: throughputs by GPUs, a <model>.csv each, for jobs of which the trace has none.",
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def model_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options about clusters of several GPU models."""
    command = click.option(
        "--speeds",
        type=click.Choice(["measured", "facts"]),
        default="measured",
        show_default=True,
        help="Speeds by GPU model where the trace has none: all alike, or estimated from the models' facts.",
    )(command)
    return click.option(
        "--hlas",
        type=click.Choice(["literal"]),
        help="hlas: the patent's method without gpuloom's additions (hlas:literal=yes).",
    )(command)


def simulation_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options that `simulate` and `compare` share."""
    options = [
        click.option(
            "--cluster",
            required=True,
            metavar="SPEC",
            help="NODESxGPUS[:MODEL], several with commas (8x8, 4x8:V100,16x4:K80), or a YAML file.",
        ),
        click.option(
            "--interval",
            type=Duration(),
            default="360",
            show_default=True,
            metavar="TIME",
            help="Jobs are stopped for others at multiples of this (seconds, or 6m); 0: at every event.",
        ),
        click.option(
            "--schedule",
            type=click.Choice(["events", "rounds"]),
            default="events",
            show_default=True,
            help="events: free GPUs are given away at once; rounds: at intervals only.",
        ),
        click.option(
            "--restart-overhead",
            type=Overhead(),
            default="profile",
            show_default=True,
            metavar="TIME|profile",
            help="What every (re)start of a job costs; profile: by the trace or the job's model, else 10 s.",
        ),
        click.option(
            "--resize-overhead",
            type=Duration(),
            metavar="TIME",
            help="What a change of a running job's size costs; as much as a restart unless given.",
        ),
        click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of what is random."),
        click.option(
            "--compat", type=click.Choice(["muri"]), help="Semantics of another simulator (docs/fidelity.md)."
        ),
        click.option("--mtbf", type=Duration(), metavar="TIME", help="Mean time between failures of a node (30d)."),
        click.option(
            "--repair", type=Duration(), default="1h", show_default=True, metavar="TIME", help="Mean time to repair."
        ),
        click.option(
            "--checkpoint",
            type=Duration(),
            default="0",
            show_default=True,
            metavar="TIME",
            help="Work between checkpoints; a job that loses its node goes back to the last. 0: loses nothing.",
        ),
        click.option(
            "--skip-impossible", is_flag=True, help="Leave out jobs that can never be placed on the cluster, counted."
        ),
        click.option(
            "--json", "json_target", metavar="FILE|-", help="Write the results as JSON; - prints nothing else."
        ),
        click.option("--csv", "csv_target", metavar="FILE|-", help="Write the table as CSV, a row per policy."),
        click.option("--jobs-csv", "jobs_target", metavar="FILE|-", help="Write a row per policy and job."),
        click.option(
            "--html",
            "html_target",
            type=click.Path(dir_okay=False),
            metavar="FILE",
            help="Write a report: one page, readable offline.",
        ),
        click.option(
            "--plot",
            "plot_target",
            type=click.Path(dir_okay=False),
            metavar="FILE",
            help="Plot to FILE.png, .svg or .pdf.",
        ),
        click.option("--quiet", "-q", is_flag=True, help="No progress, no notes."),
    ]
    for option in reversed(options):
        command = option(command)
    decorated: Callable[..., Any] = reading_options(model_options(elastic_options(weaving_options(command))))
    return decorated


@click.command()
@simulation_options
@click.option(
    "--policy",
    default="srtf",
    show_default=True,
    metavar="POLICY",
    help="Policy id, with parameters as in tiresias:thresholds=3250/7200 (see: gpuloom policies).",
)
@click.option(
    "--save-memory",
    "memory_target",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Write what the policy has learnt; rl:state=FILE begins with it.",
)
def simulate(policy: str, **options: Any) -> None:
    """Replay a trace on a cluster under one policy.

    \b
    Examples:
      gpuloom simulate jobs.csv --cluster 8x8 --policy srtf
      gpuloom simulate trace3.csv.gz --cluster 8x8 --policy tiresias --compat muri --json -
      gpuloom simulate traces/ --format itp --cluster 64x8 --policy fifo:backfill=easy --html report.html
    """
    _run([policy], processes=1, single=True, **options)


@click.command()
@simulation_options
@click.option(
    "--policies",
    default=DEFAULT_POLICIES,
    show_default=True,
    metavar="LIST",
    help="Policies, separated by commas (see: gpuloom policies).",
)
@click.option(
    "--jobs", "-j", "processes", type=click.IntRange(1), default=1, show_default=True, help="Processes to run at once."
)
def compare(policies: str, processes: int, **options: Any) -> None:
    """Replay a trace on a cluster under several policies and compare them.

    Interrupted (Ctrl-C), it prints what is done so far.

    \b
    Examples:
      gpuloom compare jobs.csv --cluster 8x8 --policies fifo,srtf,srsf,tiresias,themis,antman
      gpuloom compare jobs.csv --cluster 4x8:V100,16x4:K80 --policies srtf,gavel --jobs 2 --html report.html
    """
    names = [name.strip() for name in policies.split(",") if name.strip()]
    if not names:
        raise InputError("--policies names no policy (see: gpuloom policies)")
    _run(names, processes=processes, single=False, **options)


def _run(
    policies: list[str],
    *,
    processes: int,
    single: bool,
    cluster: str,
    interval: float,
    schedule: str,
    restart_overhead: float | None,
    resize_overhead: float | None,
    seed: int,
    compat: str | None,
    mtbf: float | None,
    repair: float,
    checkpoint: float,
    skip_impossible: bool,
    json_target: str | None,
    csv_target: str | None,
    jobs_target: str | None,
    html_target: str | None,
    plot_target: str | None,
    quiet: bool,
    memory_target: str | None = None,
    **reading: Any,
) -> None:
    from gpuloom.policies.base import Policy
    from gpuloom.policies.registry import BUILT_IN, policy_class
    from gpuloom.sim.elastic_inputs import make_elastic, parse_range
    from gpuloom.sim.gpus import with_known_memory
    from gpuloom.sim.inputs import load_cluster, load_policy
    from gpuloom.sim.runner import Task, run_all
    from gpuloom.sim.simulator import Settings, without_impossible

    to_stdout = [target for target in (json_target, csv_target, jobs_target) if target == "-"]
    if len(to_stdout) > 1:
        raise InputError("only one of --json, --csv and --jobs-csv can go to standard output (-)")
    # All that can be wrong is checked before the long work begins.
    chosen = with_known_memory(load_cluster(cluster))
    hlas, speeds = reading.pop("hlas"), reading.pop("speeds")
    weaving = {name: reading.pop(name) for name in WEAVING_OPTIONS}
    parameters = {name: value for name, value in weaving.items() if value is not None}
    elastic_range, profiles = reading.pop("elastic_range"), reading.pop("scaling_profiles")
    sizes = None if elastic_range is None else parse_range(elastic_range)
    if profiles is not None and sizes is None:
        raise InputError("--scaling-profiles goes with --elastic MIN-MAX, which says how many GPUs the jobs may have")
    option_of = dict(zip(WEAVING_OPTIONS, WEAVING_OPTIONS, strict=True))
    for option, name in ELASTIC_OPTIONS.items():
        value = reading.pop(option)
        if value is not None:
            parameters[name], option_of[name] = value, option
    if hlas is not None:
        if not any(policy.partition(":")[0] == "hlas" for policy in policies):
            raise InputError(f"--hlas is for hlas, which is not among {', '.join(policies)}")
        parameters["literal"] = "yes"
    loaded = [load_policy(policy, **parameters) for policy in policies]
    for name in parameters:
        if not any(name in policy.values for policy in loaded):
            takers = [known for known in BUILT_IN if any(p.name == name for p in policy_class(known).parameters)]
            option = option_of[name].replace("_", "-")
            raise InputError(f"--{option} is for {', '.join(takers)}; none of {', '.join(policies)} takes it")
    settings = {
        "interval_s": interval,
        "schedule": schedule,
        "restart_overhead_s": restart_overhead,
        "resize_overhead_s": resize_overhead,
        "seed": seed,
        "compat": compat,
        "mtbf_s": mtbf,
        "repair_s": repair,
        "checkpoint_s": checkpoint,
        "record_segments": html_target is not None,
        "parameters": parameters,
    }
    Settings(**settings)  # type: ignore[arg-type]
    check_outputs([json_target, csv_target, jobs_target, html_target, memory_target], plot_target)
    if memory_target is not None and type(loaded[0]).saved is Policy.saved:
        raise InputError(f"--save-memory: {policies[0]} learns nothing that could be saved; rl does")
    reference = reading["gpu_model"]
    workload = with_cluster_speeds(read_for_use(quiet=quiet, **reading), chosen, speeds, reference, quiet=quiet)
    if sizes is not None:
        workload = make_elastic(workload, sizes, profiles)
        if not quiet:
            click.echo(f"note: {workload.notes[-1]}", err=True)
    if not quiet:
        _say_unknown_models(chosen, loaded)
        _say_profiled(workload, loaded)
    workload = _fitting(workload, chosen, without_impossible, skip_impossible, quiet)
    if workload.gpu_milli is not None and not quiet and (parts := int((workload.gpu_milli < 1000).sum())):
        click.echo(f"note: {parts:,} jobs ask for a part of a GPU; each is given a whole one", err=True)
    tasks = [Task(workload, chosen, policy) for policy in policies]
    with task_progress([(policy, len(workload)) for policy in policies], quiet=quiet) as report:
        outcome = run_all(tasks, settings, processes=processes, on_progress=report)
    results = outcome.done
    if results:
        _write(results, single, json_target, csv_target, jobs_target, html_target, plot_target, quiet)
        if memory_target is not None and results[0].saved is not None:
            Path(memory_target).write_text(results[0].saved, encoding="utf-8")
            if not quiet:
                click.echo(f"wrote {memory_target}", err=True)
    for policy, error in zip(policies, outcome.errors, strict=True):
        if error is not None:
            click.echo(f"gpuloom: policy {policy}: {error}", err=True)
    if outcome.interrupted:
        ended = sum(not result.interrupted for result in results)
        click.echo(f"interrupted: {ended} of {len(policies)} simulations were complete", err=True)
    failed = [error for error in outcome.errors if error is not None]
    if failed:
        sys.exit(max(error.exit_code for error in failed))
    if outcome.interrupted:
        sys.exit(1)


def check_outputs(targets: list[str | None], plot_target: str | None) -> None:
    """Refuse at once what would fail at the end."""
    files = [str(Path(target).absolute()) for target in (*targets, plot_target) if target not in {None, "-"} and target]
    for file in files:
        if files.count(file) > 1:
            raise InputError(f"two outputs go to the same file {file}")
    for target in (*targets, plot_target):
        if target is None or target == "-":
            continue
        if not Path(target).absolute().parent.is_dir():
            raise InputError(f"{target}: the folder {Path(target).parent} does not exist")
        if Path(target).is_dir():
            raise InputError(f"{target} is a folder, must be a file to write")
        if not os.access(target if Path(target).exists() else Path(target).absolute().parent, os.W_OK):
            raise InputError(f"{target}: no permission to write there")
    if plot_target is not None:
        from gpuloom.sim.report.plot import SUFFIXES

        if Path(plot_target).suffix.lower() not in SUFFIXES:
            raise InputError(f"{plot_target}: a plot is written to a file that ends in {', '.join(SUFFIXES)}")


def with_cluster_speeds(
    workload: Workload, cluster: Cluster, speeds: str, reference: str | None, *, quiet: bool
) -> Workload:
    """The workload with speeds on all GPU models of the cluster, as far as `--speeds` says so."""
    from gpuloom.sim.speeds import from_facts, with_speeds

    filled = from_facts(workload, cluster, reference) if speeds == "facts" else with_speeds(workload, cluster)
    if not quiet:
        for note in filled.notes[len(workload.notes) :]:
            click.echo(f"note: {note}", err=True)
    return filled


def _say_unknown_models(cluster: Cluster, policies: list[Any]) -> None:
    """Say which GPU models count as the slowest because the table of facts does not know them."""
    from gpuloom.sim.gpus import find_gpu

    if len(cluster.models) < 2 or not any(p.names_measure for policy in policies for p in policy.parameters):
        return
    if unknown := [model for model in cluster.models if find_gpu(model) is None]:
        click.echo(f"note: nothing is known of GPU model {', '.join(unknown)}: its performance counts as 1", err=True)


def _say_profiled(workload: Workload, policies: list[Any]) -> None:
    """Say what `simulate` will fill in from the profile library, and whom nothing is known of."""
    from gpuloom.sim.profiles import load_profiles, with_profiles

    profiles = load_profiles()
    if not profiles.own and not any(policy.uses_stages for policy in policies):
        return
    filled = with_profiles(workload, profiles)
    for note in filled.notes[len(workload.notes) :]:
        click.echo(f"note: {note}", err=True)
    lacking = len(filled)
    if filled.stage_s is not None:
        total = filled.stage_s.sum(axis=1)
        lacking -= int((total > 0).sum())
    if lacking and any("group_size" in policy.values for policy in policies):
        what = "no job has" if lacking == len(filled) else f"{lacking:,} of {len(filled):,} jobs have no"
        click.echo(
            f"note: {what} known stage times: they share GPUs with nobody by weaving (see: gpuloom profiles --help)",
            err=True,
        )


def _fitting(
    workload: Workload, cluster: Cluster, without_impossible: Callable[..., Workload], skip: bool, quiet: bool
) -> Workload:
    kept = without_impossible(workload, cluster, skip=skip)
    if len(kept) == 0:
        raise InputError(f"{workload.name}: none of its {len(workload):,} jobs can be placed on {cluster}")
    if kept is not workload and not quiet:
        click.echo(f"note: {kept.notes[-1]}", err=True)
    return kept


def _write(
    results: list[Any],
    single: bool,
    json_target: str | None,
    csv_target: str | None,
    jobs_target: str | None,
    html_target: str | None,
    plot_target: str | None,
    quiet: bool,
) -> None:
    from gpuloom.sim import report

    if "-" not in (json_target, csv_target, jobs_target):
        report.print_comparison(results)
    if json_target is not None:
        report.write_json(results[0] if single else results, json_target)
    if csv_target is not None:
        report.write_csv(results, csv_target)
    if jobs_target is not None:
        report.write_jobs_csv(results, jobs_target)
    if html_target is not None:
        report.write_html(results, html_target)
    if plot_target is not None:
        report.save_plot(results, Path(plot_target))
    if not quiet:
        for target in (json_target, csv_target, jobs_target, html_target, plot_target):
            if target is not None and target != "-":
                click.echo(f"wrote {target}", err=True)
