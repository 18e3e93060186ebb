"""The options of every command that simulates a trace, and the settings they make."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import click

from gpuloom.cli.groups import Choice
from gpuloom.cli.kernel_profiles import profiles_by_model, with_kernels
from gpuloom.cli.reading import read, reading_options, say_notes
from gpuloom.core.errors import InputError
from gpuloom.core.units import parse_duration_s
from gpuloom.core.words import are, plural

if TYPE_CHECKING:
    from gpuloom.core.cluster import Cluster
    from gpuloom.core.workload import Workload
    from gpuloom.policies.base import Policy
    from gpuloom.traces import TraceRead


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
        click.option("--group-size", metavar="1..4", help="Weaving: most jobs that share a GPU."),
        click.option("--ordering", metavar="best|worst|none", help="Weaving: order of the jobs inside a group."),
        click.option(
            "--grouping", metavar="multiround|exact|greedy", help="Weaving: how muri-s and muri-l form groups."
        ),
        click.option("--profile-noise", metavar="0..1", help="Weaving: relative error added to profiled stage times."),
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
        click.option("--base", metavar="POLICY", help="Elastic: the policy that decides which jobs run (tiresias)."),
        click.option(
            "--elastic-config",
            type=click.Path(dir_okay=False),
            metavar="FILE",
            help="Elastic: YAML file with thresholds and other settings.",
        ),
        click.option(
            "--elastic",
            "elastic_range",
            metavar="MIN-MAX",
            help="Make jobs elastic: a range of GPUs (1-8), or factors on what each asks for (0.5x-4x).",
        ),
        click.option(
            "--scaling-profiles",
            type=click.Path(exists=True, file_okay=False, path_type=Path),
            metavar="DIR",
            help="With --elastic: folder of <model>.csv with throughputs by GPUs, for jobs that have none in the "
            "trace.",
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def model_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options about clusters of several GPU models, and about jobs beside each other on them."""
    command = click.option(
        "--kernel-profile",
        "kernel_profiles",
        multiple=True,
        metavar="MODEL=NAME",
        help="Kernel profile of jobs of a model that have none in the trace: NAME or FILE, of a service with its load "
        "(resnet50:30%, resnet50:15rps) [half busy]; for beside=yes.",
    )(command)
    command = click.option(
        "--pair-speeds",
        "pairs",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Measured speeds of jobs that share GPUs, by GPU model: CSV, or Gavel's JSON "
        "[of a Gavel trace: its throughputs].",
    )(command)
    command = click.option(
        "--speeds",
        type=Choice(["measured", "facts"]),
        default="measured",
        show_default=True,
        help="Speeds by GPU model where the trace has none: all equal, or estimated from facts about the models.",
    )(command)
    return click.option(
        "--hlas",
        type=Choice(["literal"]),
        help="hlas: the patent's method without gpuloom's additions (hlas:literal=yes).",
    )(command)


def run_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options that decide what happens in a run: what every command that simulates a trace takes."""
    options = [
        click.option(
            "--cluster",
            metavar="SPEC",
            help="NODESxGPUS[:MODEL], several with commas (8x8, 4x8:V100,16x4:K80), or a YAML file [where the "
            "trace was taken, if it says so, as those of gpuloom history do].",
        ),
        click.option(
            "--interval",
            type=Duration(),
            default="360",
            show_default=True,
            metavar="TIME",
            help="Jobs are preempted at multiples of this time only (seconds, or 6m); 0: at every event.",
        ),
        click.option(
            "--schedule",
            type=Choice(["events", "rounds"]),
            default="events",
            show_default=True,
            help="When free GPUs are allocated: at every event, or in rounds (at intervals only).",
        ),
        click.option(
            "--restart-overhead",
            type=Overhead(),
            default="profile",
            show_default=True,
            metavar="TIME|profile",
            help="What every start and restart of a job costs; profile: by the trace or the job's model, else 10 s.",
        ),
        click.option(
            "--resize-overhead",
            type=Duration(),
            metavar="TIME",
            help="What resizing a running job costs [the median that the trace measured, else as a restart].",
        ),
        click.option(
            "--preempt",
            "ways",
            multiple=True,
            metavar="restart|kill|suspend",
            help="How jobs are stopped for others: they save first; they lose what they did since their last "
            "checkpoint; they go on later where they were (suspend:out=1.7,in=4: GB/s out and back). compare takes "
            "several [restart].",
        ),
        click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Random seed."),
        click.option(
            "--compat", type=Choice(["muri"]), help="Follow the rules of another simulator (docs/results/fidelity.md)."
        ),
        click.option("--mtbf", type=Duration(), metavar="TIME", help="Mean time between failures of a node (30d)."),
        click.option(
            "--repair",
            type=Duration(),
            default="1h",
            show_default=True,
            metavar="TIME",
            help="Mean time to repair a node.",
        ),
        click.option(
            "--checkpoint",
            type=Duration(),
            default="0",
            show_default=True,
            metavar="TIME",
            help="Work between checkpoints; a job that is killed or whose node fails goes back to the last one. 0: it "
            "loses nothing.",
        ),
        click.option(
            "--skip-impossible",
            is_flag=True,
            help="Leave out jobs that can never be placed on the cluster, and say how many.",
        ),
    ]
    for option in reversed(options):
        command = option(command)
    decorated: Callable[..., Any] = reading_options(model_options(elastic_options(weaving_options(command))))
    return decorated


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Checked options of a run, before the trace is read.

    names, policies: as asked for; these with the parameters that options stand for. settings: of
    `gpuloom.sim.simulate`. inputs: files that the run reads, as far as they are known before the trace is read.
    ways: in which jobs make way; settings has the first.
    """

    cluster: Cluster
    names: list[str]
    policies: list[Policy]
    settings: dict[str, Any]
    inputs: list[Path]
    sizes: Any
    profiles: Path | None
    speeds: str
    skip_impossible: bool
    reading: dict[str, Any]
    kernel_profiles: dict[str, str]
    ways: tuple[str, ...]
    found: TraceRead | None = None
    """The trace, where it was read for what it says of the cluster."""

    def read(self, *, quiet: bool) -> tuple[Workload, list[Path]]:
        """The trace as it is to be simulated, jobs that can never be placed included, and the files that it is of.

        What was left out or assumed is told on standard error.
        """
        from gpuloom.traces.elastic import make_elastic

        found = self.found or read(**self.reading)
        if not quiet:
            say_notes(found)
        workload = found.workload
        workload = with_cluster_speeds(workload, self.cluster, self.speeds, self.reading["gpu_model"], quiet=quiet)
        if self.sizes is not None:
            workload = make_elastic(workload, self.sizes, self.profiles)
            if not quiet:
                click.echo(f"note: {workload.notes[-1]}", err=True)
        workload = with_kernels(workload, self.kernel_profiles, self.policies, quiet=quiet)
        if not quiet:
            _say_unknown_models(self.cluster, self.policies)
            _say_profiled(workload, self.policies)
            _say_weights(workload, self.names, self.policies)
        return workload, [Path(str(file)) for file in found.files]

    def settings_of(self, workload: Workload, *, quiet: bool) -> dict[str, Any]:
        """The settings, with what resizes cost where the trace was taken, if it was not said what they cost."""
        runs = None if workload.ran is None else workload.ran.runs
        stood_s = [] if runs is None else runs.stood_s()
        if not stood_s or self.settings["resize_overhead_s"] is not None or workload.scaling is None:
            return self.settings
        cost_s = median(stood_s)
        if not quiet:
            of = plural(len(stood_s), "resize")
            text = f"a resize costs {cost_s:.3g} s, the median of {of} that the trace measured (see --resize-overhead)"
            click.echo(f"note: {text}", err=True)
        return {**self.settings, "resize_overhead_s": cost_s}

    def fitting(self, workload: Workload, *, quiet: bool) -> Workload:
        """The workload without what `--skip-impossible` leaves out."""
        from gpuloom.sim.simulator import without_impossible

        workload = _fitting(workload, self.cluster, without_impossible, self.skip_impossible, quiet)
        if workload.gpu_milli is not None and not quiet and (parts := int((workload.gpu_milli < 1000).sum())):
            asks = are(parts, "job", ("asks", "ask"))
            click.echo(f"note: {asks} for a part of a GPU; each is given a whole one", err=True)
        return workload


def checked(
    policies: list[str],
    *,
    cluster: str | None,
    interval: float,
    schedule: str,
    restart_overhead: float | None,
    resize_overhead: float | None,
    ways: tuple[str, ...],
    seed: int,
    compat: str | None,
    mtbf: float | None,
    repair: float,
    checkpoint: float,
    skip_impossible: bool,
    elastic_range: str | None,
    scaling_profiles: Path | None,
    hlas: str | None,
    speeds: str,
    **others: Any,
) -> RunOptions:
    """What `run_options` stand for; all that can be wrong is found here, before the long work begins.

    Raises:
        InputError: an option, a policy or the cluster is wrong.
    """
    from gpuloom.facts.gpus import with_known_memory
    from gpuloom.facts.inputs import load_cluster, load_policy
    from gpuloom.policies.registry import parse_policy
    from gpuloom.sim.compat import compat_mode
    from gpuloom.sim.simulator import Settings
    from gpuloom.sim.suspend import RESTART
    from gpuloom.traces.elastic import parse_range

    chosen = None if cluster is None else with_known_memory(load_cluster(cluster))
    option_of = {**{name: name for name in WEAVING_OPTIONS}, **{p: o for o, p in ELASTIC_OPTIONS.items()}}
    given = {name: others.pop(option) for name, option in option_of.items()}
    parameters = {name: value for name, value in given.items() if value is not None}
    sizes = None if elastic_range is None else parse_range(elastic_range)
    kernels = profiles_by_model(others.pop("kernel_profiles"))
    if scaling_profiles is not None and sizes is None:
        raise InputError("--scaling-profiles needs --elastic MIN-MAX, which says how many GPUs the jobs may have")
    if hlas is not None:
        if not any(parse_policy(policy)[0] == "hlas" for policy in policies):
            raise InputError(f"--hlas is for hlas, which is not among {', '.join(policies)}")
        parameters["literal"] = "yes"
    settings = {
        "interval_s": interval,
        "schedule": schedule,
        "restart_overhead_s": restart_overhead,
        "resize_overhead_s": resize_overhead,
        "preempt": ways[0] if ways else RESTART,
        "seed": seed,
        "compat": compat,
        "mtbf_s": mtbf,
        "repair_s": repair,
        "checkpoint_s": checkpoint,
        "parameters": parameters,
    }
    for way in ways or (RESTART,):
        Settings(**{**settings, "preempt": way})  # type: ignore[arg-type]
    if len(set(ways)) < len(ways):
        raise InputError(f"--preempt names a way twice: {', '.join(ways)}")
    mode = compat_mode(compat)
    loaded = []
    for policy in policies:
        preset = mode.parameters.get(parse_policy(policy)[0], {})
        loaded.append(load_policy(policy, **{"seed": seed, **preset, **parameters}))
    _each_is_taken(parameters, loaded, policies, option_of)
    found = None
    if chosen is None:
        found = read(**others)
        chosen = with_known_memory(load_cluster(_where_taken(found)))
    files = [*others["traces"], cluster, others["throughputs"], others["pairs"], given["config"]]
    scalings = [] if scaling_profiles is None else sorted(scaling_profiles.glob("*.csv"))
    named = [file for policy in policies for file in _files_of(policy)]
    return RunOptions(
        chosen,
        policies,
        loaded,
        settings,
        [*(Path(file) for file in files if file is not None), *scalings, *named],
        sizes,
        scaling_profiles,
        speeds,
        skip_impossible,
        others,
        kernels,
        ways or (RESTART,),
        found,
    )


def _each_is_taken(
    parameters: Mapping[str, Any], loaded: Sequence[Policy], policies: Sequence[str], option_of: Mapping[str, str]
) -> None:
    """Raises InputError: an option is for a parameter that none of the policies has."""
    from gpuloom.policies.registry import BUILT_IN, policy_class

    for name in parameters:
        if not any(name in policy.values for policy in loaded):
            takers = [known for known in BUILT_IN if any(p.name == name for p in policy_class(known).parameters)]
            option = option_of[name].replace("_", "-")
            raise InputError(f"--{option} is for {', '.join(takers)}; none of {', '.join(policies)} takes it")


def _files_of(policy: str) -> list[Path]:
    """The files that a policy's parameters name."""
    from gpuloom.policies.registry import parse_policy, policy_class

    name, values = parse_policy(policy)
    files = [parameter.name for parameter in policy_class(name).parameters if parameter.names_file]
    return [Path(str(values[file])) for file in files if values.get(file) is not None]


def _where_taken(found: TraceRead) -> str:
    """The cluster on which a trace was taken.

    Raises:
        InputError: the trace does not say.
    """
    if not found.workload.cluster:
        raise InputError(
            f"the trace {found.workload.name} names no cluster: give --cluster, "
            "NODESxGPUS[:MODEL] (8x8, 4x8:V100,16x4:K80) or a YAML file"
        )
    return found.workload.cluster


def with_cluster_speeds(
    workload: Workload, cluster: Cluster, speeds: str, reference: str | None, *, quiet: bool
) -> Workload:
    """The workload with speeds on all GPU models of the cluster, as far as `--speeds` says so."""
    from gpuloom.facts.speeds import all_alike, from_facts, with_speeds

    filled = from_facts(workload, cluster, reference) if speeds == "facts" else with_speeds(workload, cluster)
    if not quiet and (alike := all_alike(filled, cluster)) is not None:
        click.echo(f"note: {alike}", err=True)
    if not quiet:
        for note in filled.notes[len(workload.notes) :]:
            click.echo(f"note: {note}", err=True)
    return filled


def _say_unknown_models(cluster: Cluster, policies: list[Any]) -> None:
    """Say which GPU models count as the slowest because the table of facts does not know them."""
    from gpuloom.facts.gpus import find_gpu

    if len(cluster.models) < 2 or not any(
        p.names_measure and p.name == "performance" for policy in policies for p in policy.parameters
    ):
        return
    if unknown := [model for model in cluster.models if find_gpu(model) is None]:
        click.echo(f"note: nothing is known of GPU model {', '.join(unknown)}: its performance counts as 1", err=True)


def _say_weights(workload: Workload, names: list[str], policies: list[Policy]) -> None:
    """Say which policies, as they were asked for, ignore the weights that jobs have."""
    ignoring = dict.fromkeys(name for name, policy in zip(names, policies, strict=True) if not policy.heeds_weights)
    if workload.weights is not None and ignoring:
        verb = "ignores" if len(ignoring) == 1 else "ignore"
        click.echo(f"note: {', '.join(ignoring)} {verb} the weights of jobs", err=True)


def _say_profiled(workload: Workload, policies: list[Any]) -> None:
    """Say what `simulate` will fill in from the profile library, and whom nothing is known of."""
    import numpy as np

    from gpuloom.facts.profiles import load_profiles, with_profiles

    profiles = load_profiles()
    if not profiles.own and not any(policy.uses_stages for policy in policies):
        return
    filled = with_profiles(workload, profiles)
    for note in filled.notes[len(workload.notes) :]:
        click.echo(f"note: {note}", err=True)
    known = np.zeros(len(filled), dtype=bool)
    if filled.stage_s is not None:
        known |= filled.stage_s.sum(axis=1) > 0
    if filled.pairs is not None:
        known |= filled.pairs.may_share()
    lacking = len(filled) - int(known.sum())
    if lacking and any("group_size" in policy.values for policy in policies):
        what = "no job has" if lacking == len(filled) else f"{lacking:,} of {plural(len(filled), 'job')} have no"
        click.echo(
            f"note: {what} known stage times or pairs: they are not woven with other jobs (see: gpuloom profiles "
            "--help, and --pair-speeds)",
            err=True,
        )


def _fitting(
    workload: Workload, cluster: Cluster, without_impossible: Callable[..., Workload], skip: bool, quiet: bool
) -> Workload:
    kept = without_impossible(workload, cluster, skip=skip)
    if len(kept) == 0:
        which = "its one job can't" if len(workload) == 1 else f"none of its {len(workload):,} jobs can"
        raise InputError(f"{workload.name}: {which} be placed on {cluster}")
    if kept is not workload and not quiet:
        click.echo(f"note: {kept.notes[-1]}", err=True)
    return kept
