"""`gpuloom explain`."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click

from gpuloom.cli.run_options import checked, run_options
from gpuloom.core.cluster import ANY_MODEL
from gpuloom.core.errors import InputError
from gpuloom.core.units import format_duration, money
from gpuloom.core.words import plural

if TYPE_CHECKING:
    from gpuloom.sim.explain import Alternative, Explanation, Step

FIRST_SHOWN, LAST_SHOWN = 40, 10
"""Most steps that are printed."""
WHAT = {
    "submit": "is submitted",
    "start": "starts on",
    "restart": "starts again on",
    "resume": "was suspended, and goes on on",
    "move": "moves to",
    "resize": "is resized to",
    "stop": "is stopped",
    "rise": "rises",
    "lose": "loses its node",
    "end": "ends",
}


@click.command()
@run_options
@click.option(
    "--job",
    required=True,
    metavar="ID",
    help="The job, by the trace's own id or, if none has it, its number in order of submission, from 0.",
)
@click.option("--policy", default="hlas", show_default=True, metavar="POLICY", help="Policy id, with parameters.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--quiet", "-q", is_flag=True, help="No notes.")
def explain(job: str, policy: str, as_json: bool, quiet: bool, **options: Any) -> None:
    """Simulate, and explain one job: where it ran, what the alternatives were, and why it was moved or stopped.

    \b
    Examples:
      gpuloom explain jobs.csv --cluster 4x8:V100,16x4:K80 --speeds facts --policy hlas --job 17
      gpuloom explain jobs.csv --cluster 8x8 --policy tiresias --job j5 --json
    """
    from gpuloom.sim import explain as story

    run = checked([policy], **options)
    if len(run.ways) > 1:
        raise InputError(f"explain takes one --preempt, not {len(run.ways)}")
    workload, _ = run.read(quiet=quiet)
    known = run.settings_of(workload, quiet=quiet)
    settings = {name: value for name, value in known.items() if name != "parameters"}  # the policy has them
    if story.find_job(workload, job) < 0:
        raise InputError(story.no_such_job(workload, job))
    run.fitting(workload, quiet=quiet)  # refuses what can't be placed, or says what is left out
    settings["skip_impossible"] = run.skip_impossible
    found = story.explain(workload, run.cluster, run.policies[0], job, name=policy, **settings)
    if as_json:
        click.echo(json.dumps(story.plain(found), indent=2))
    else:
        _print(found)
    if found.result.interrupted:
        click.echo("interrupted: only what had been simulated is shown", err=True)
        sys.exit(1)


def _print(found: Explanation) -> None:
    needs = f"{plural(found.gpus, 'GPU')}"
    click.echo(f"job {found.job_id} ({needs}) of {found.result.trace} under {found.policy} on {found.result.cluster}")
    zero = found.steps[0].time_s if found.steps else 0.0
    last: Step | None = None
    cut = len(found.steps) - FIRST_SHOWN - LAST_SHOWN
    for index, step in enumerate(found.steps):
        if cut > 1 and FIRST_SHOWN <= index < FIRST_SHOWN + cut:
            if index == FIRST_SHOWN:
                click.echo(f"\n… {cut:,} of {len(found.steps):,} steps are left out here (--json has all)")
            last = step if step.alternatives else last
            continue
        at = format_duration(step.time_s - zero)
        line = f"\n+{at}  {WHAT[step.what]}"
        if step.alternatives:
            line += f" {_gpus(step)}, node {', '.join(step.nodes)}"
            if last is not None and step.what in {"move", "resize"}:
                line += f" (from {_gpus(last)}, node {', '.join(last.nodes)})"
            elif step.waited_s > 0:
                line += f", after waiting {format_duration(step.waited_s)}"
            last = step
        elif step.model:
            line += f" on {step.model}, node {', '.join(step.nodes)}"
        click.echo(line)
        for alternative in step.alternatives:
            click.echo(f"  {_line(alternative, step)}")
        if step.company is not None:
            beside, share = step.company.jobs, step.company.share
            jobs = f"job{'s' if len(beside) > 1 else ''} {', '.join(beside)}"
            click.echo(f"  Beside {jobs} it keeps {share:.0%} of its speed alone ({step.company.source}).")
        if step.why is not None:
            click.echo(f"  {step.why.text} [{step.why.code}]")
        elif step.alternatives:
            click.echo(f"  {_generic(step)}")
    if found.cost_usd:
        click.echo(f"\nIts GPUs cost {money(found.cost_usd)}, at on-demand prices (gpuloom gpus).")


def _gpus(step: Step) -> str:
    """'2 V100'; '2 GPUs' where the cluster names no model."""
    return plural(step.gpus, "GPU") if step.model == ANY_MODEL else f"{step.gpus:,} {step.model}"


def _line(a: Alternative, step: Step) -> str:
    chosen = next(other for other in step.alternatives if other.chosen)
    mark = ">" if a.chosen else " "
    speed = f"{a.it_per_s:.4g} it/s" if a.it_per_s is not None else f"speed {a.speed:.3g}"
    price = "" if a.price_usd_per_hour is None else f", {money(a.price_usd_per_hour)}/h each"
    text = f"{mark} {a.model}: {speed} ({a.source}), {plural(a.free, 'GPU')} free{price}"
    if a.cant:
        return f"{mark} {a.model}: can't run there ({a.cant})"
    if a.chosen:
        return text
    ratio = chosen.speed / a.speed if a.speed > 0 else float("inf")
    return text + f"{'' if a.fits_now else ', not enough for it'}; {chosen.model} is {ratio:.2f} times as fast"


def _generic(step: Step) -> str:
    """An explanation that holds for any policy's placement."""
    fits = [a for a in step.alternatives if a.fits_now or a.chosen]
    best = max(fits, key=lambda a: a.speed)
    chosen = next(a for a in step.alternatives if a.chosen)
    if len(step.alternatives) == 1:
        return "The cluster has one GPU model."
    if len(fits) > 1 and all(a.speed == chosen.speed for a in fits):
        return "All GPU models that had room for it are equally fast for it, as far as is known."
    if best.speed > chosen.speed:
        faster = best.speed / chosen.speed
        return f"{best.model} had room for it and is {faster:.2f} times as fast; the policy chose otherwise."
    if len(fits) == 1:
        return "No other GPU model had room for it."
    return "It is the fastest of the GPU models that had room for it."
