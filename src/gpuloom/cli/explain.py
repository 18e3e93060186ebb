"""`gpuloom explain`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from gpuloom.cli.reading import read_for_use, reading_options
from gpuloom.cli.simulate import Duration, Overhead, with_cluster_speeds
from gpuloom.core.errors import InputError
from gpuloom.core.units import format_duration

if TYPE_CHECKING:
    from gpuloom.sim.explain import Alternative, Explanation, Step

WHAT = {
    "submit": "is submitted",
    "start": "starts",
    "restart": "starts again",
    "move": "moves",
    "resize": "is resized",
    "stop": "is stopped",
    "rise": "rises",
    "lose": "loses its node",
    "end": "ends",
}


@click.command()
@reading_options
@click.option("--job", required=True, metavar="ID", help="The job, by the trace's own id (or its number, from 0).")
@click.option("--cluster", required=True, metavar="SPEC", help="As for simulate (4x8:V100,16x4:K80, or a YAML file).")
@click.option("--policy", default="hlas", show_default=True, metavar="POLICY", help="Policy id, with parameters.")
@click.option("--interval", type=Duration(), default="360", show_default=True, metavar="TIME", help="As for simulate.")
@click.option("--schedule", type=click.Choice(["events", "rounds"]), default="events", show_default=True)
@click.option(
    "--restart-overhead",
    type=Overhead(),
    default="profile",
    show_default=True,
    metavar="TIME|profile",
    help="What every (re)start costs.",
)
@click.option("--mtbf", type=Duration(), metavar="TIME", help="Mean time between failures of a node.")
@click.option("--repair", type=Duration(), default="1h", show_default=True, metavar="TIME", help="Mean time to repair.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of what is random.")
@click.option("--compat", type=click.Choice(["muri"]), help="Semantics of another simulator.")
@click.option("--speeds", type=click.Choice(["measured", "facts"]), default="measured", help="As for simulate.")
@click.option("--skip-impossible", is_flag=True, help="Leave out jobs that can never be placed.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--quiet", "-q", is_flag=True, help="No notes.")
def explain(
    job: str,
    cluster: str,
    policy: str,
    speeds: str,
    seed: int,
    compat: str | None,
    skip_impossible: bool,
    as_json: bool,
    quiet: bool,
    **options: Any,
) -> None:
    """Simulate, and explain one job: where it ran, what the alternatives were, and why it was moved or stopped.

    \b
    Examples:
      gpuloom explain jobs.csv --cluster 4x8:V100,16x4:K80 --policy hlas --job 17
      gpuloom explain jobs.csv --cluster 8x8 --policy tiresias --job j5 --json
    """
    from gpuloom.sim import explain as story
    from gpuloom.sim.compat import compat_mode
    from gpuloom.sim.gpus import with_known_memory
    from gpuloom.sim.inputs import load_cluster, load_policy

    nodes = with_known_memory(load_cluster(cluster))
    preset = compat_mode(compat).parameters.get(policy.partition(":")[0], {})
    chosen = load_policy(policy, seed=seed, **preset)
    settings = {
        "interval_s": options.pop("interval"),
        "schedule": options.pop("schedule"),
        "restart_overhead_s": options.pop("restart_overhead"),
        "mtbf_s": options.pop("mtbf"),
        "repair_s": options.pop("repair"),
        "seed": seed,
        "compat": compat,
        "skip_impossible": skip_impossible,
    }
    reference = options["gpu_model"]
    workload = read_for_use(quiet=quiet, **options)
    workload = with_cluster_speeds(workload, nodes, speeds, reference, quiet=quiet)
    if story.find_job(workload, job) < 0:
        raise InputError(story.no_such_job(workload, job))
    found = story.explain(workload, nodes, chosen, job, name=policy, **settings)
    if as_json:
        click.echo(json.dumps(story.plain(found), indent=2))
        return
    _print(found)


def _print(found: Explanation) -> None:
    needs = f"{found.gpus} GPU{'s' * (found.gpus > 1)}"
    click.echo(f"job {found.job_id} ({needs}) of {found.result.trace} under {found.policy} on {found.result.cluster}")
    zero = found.steps[0].time_s if found.steps else 0.0
    last: Step | None = None
    for step in found.steps:
        at = format_duration(step.time_s - zero)
        line = f"\n+{at}  {WHAT[step.what]}"
        if step.alternatives:
            line += f" on {step.gpus} {step.model}, node {', '.join(step.nodes)}"
            if last is not None and step.what in {"move", "resize"}:
                line += f" (from {last.gpus} {last.model}, node {', '.join(last.nodes)})"
            elif step.waited_s > 0:
                line += f", having waited {format_duration(step.waited_s)}"
            last = step
        elif step.model:
            line += f" on {step.model}, node {', '.join(step.nodes)}"
        click.echo(line)
        for alternative in step.alternatives:
            click.echo(f"  {_line(alternative, step)}")
        if step.why is not None:
            click.echo(f"  {step.why.text} [{step.why.code}]")
        elif step.alternatives:
            click.echo(f"  {_generic(step)}")


def _line(a: Alternative, step: Step) -> str:
    chosen = next(other for other in step.alternatives if other.chosen)
    mark = ">" if a.chosen else " "
    speed = f"{a.it_per_s:.4g} it/s" if a.it_per_s is not None else f"speed {a.speed:.3g}"
    text = f"{mark} {a.model}: {speed}{' (estimated)' if a.estimated else ' (measured)'}, {a.free} GPUs free"
    if a.cant:
        return f"{mark} {a.model}: can't run there ({a.cant})"
    if a.chosen:
        return text
    ratio = chosen.speed / a.speed if a.speed > 0 else float("inf")
    return text + f"{'' if a.fits_now else ', not enough for it'}; {chosen.model} is {ratio:.2f} times as fast"


def _generic(step: Step) -> str:
    """What can be said of any policy's placement."""
    fits = [a for a in step.alternatives if a.fits_now or a.chosen]
    best = max(fits, key=lambda a: a.speed)
    chosen = next(a for a in step.alternatives if a.chosen)
    if len(step.alternatives) == 1:
        return "The cluster has one GPU model."
    if best.speed > chosen.speed:
        faster = best.speed / chosen.speed
        return f"{best.model} had room for it and is {faster:.2f} times as fast; the policy chose otherwise."
    if len(fits) == 1:
        return "No other GPU model had room for it."
    return "It is the fastest of the GPU models that had room for it."
