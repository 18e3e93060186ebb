"""`gpuloom demo`: real jobs on a real scheduler, in a minute; everything is removed afterwards."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpuloom.cli.demo.home import TemporaryScheduler
from gpuloom.cli.demo.jobs import PLAN, STEP_S, Planned, Story
from gpuloom.cli.demo.replay import BOUND, Compared, Replay, compared, replay
from gpuloom.cli.live import say_json
from gpuloom.core.errors import GpuloomError
from gpuloom.core.words import plural

if TYPE_CHECKING:
    from gpuloom.live.views.job_answers import JobView

SLOTS = 4
POLICY = "srtf"
INTERVAL_S = 2.0
ALSO = ("fifo:backfill=easy", "sjf")
"""The same jobs run under these at the same time, on schedulers of their own: the default policy, and one more."""
OTHERS = ("fifo", "fifo:backfill=easy", "sjf", "srtf", "tiresias:thresholds=5/15")
"""Queue limits of Tiresias in GPU-seconds, for jobs that take seconds."""
MOST_S = 120.0
"""How long the jobs may take."""


class DemoError(GpuloomError):
    """The demo did not come out as it should."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How it went: the jobs, live beside simulated, also under further policies, and the same history under others.

    load, cores: the machine's load average of the last minute, and its cores.
    """

    jobs: Sequence[JobView]
    compared: Compared
    also: Mapping[str, Compared]
    others: Mapping[str, Replay]
    chart: Sequence[str]
    load: float = 0.0
    cores: int = 1

    @property
    def busy(self) -> bool:
        """Whether more wanted to run than there are cores (the demo's jobs mostly sleep), so that times say little."""
        return self.load > self.cores

    @property
    def within(self) -> bool:
        """Whether all that ran is within the bound."""
        return all(what.within for what in (self.compared, *self.also.values()))


def run_live(
    plan: Sequence[Planned] = PLAN,
    *,
    slots: int = SLOTS,
    policy: str = POLICY,
    interval_s: float = INTERVAL_S,
    also: Sequence[str] = ALSO,
    others: Sequence[str] = OTHERS,
    err: bool = False,
) -> Outcome:
    """Start a scheduler in a temporary home, run the plan, replay it, and clean up, whatever happens.

    Raises:
        DemoError: a job did not finish, or not in time.
    """
    from gpuloom.cli.demo.view import shown

    click.echo(f"starting {plural(1 + len(also), 'scheduler')} in temporary homes …", err=err)
    leave = threading.Event()
    with (
        ThreadPoolExecutor(max(len(also), 1)) as threads,  # left last: its jobs end when their schedulers have
        ExitStack() as stack,
        TemporaryScheduler(slots=slots, policy=policy, interval_s=interval_s) as scheduler,
    ):
        beside = {
            name: stack.enter_context(TemporaryScheduler(slots=slots, policy=name, interval_s=interval_s))
            for name in also
        }
        stack.callback(leave.set)  # called first
        running = {name: threads.submit(_run_unseen, there, plan, leave) for name, there in beside.items()}
        title = (
            f"{slots} CPU slots in place of GPUs, policy {policy}, which stops jobs for others every {interval_s:g} s"
        )
        click.echo(f"{scheduler.ready['url']}: {title}\n", err=err)
        story = Story(scheduler.home)
        with shown(story, plan, slots, title, err=err) as look:
            views = _run(scheduler, plan, story, look)
        chart = story.chart(slots, max(view["ended_s"] or 0.0 for view in views), 72)
        found = _replayed(scheduler, list(dict.fromkeys([policy, *others])))
        told = {
            name: compared(running[name].result(), _replayed(there, [name])[name]) for name, there in beside.items()
        }
        load, cores = os.getloadavg()[0], os.cpu_count() or 1
        return Outcome(views, compared(views, found[policy]), told, found, chart, load, cores)


def _replayed(scheduler: TemporaryScheduler, policies: Sequence[str]) -> dict[str, Replay]:
    """What the simulator makes of the history of a scheduler, under these policies."""
    history = scheduler.folder / "history.csv"
    history.write_text(scheduler.client.history(), encoding="utf-8")
    return replay(history, policies, slots=scheduler.slots, interval_s=scheduler.interval_s, home=scheduler.home)


def _run_unseen(scheduler: TemporaryScheduler, plan: Sequence[Planned], leave: threading.Event) -> list[JobView]:
    """The same beside what is shown; DemoError as soon as it is to `leave`."""

    def look(lines: Sequence[str], now_s: float) -> None:
        if leave.is_set():
            raise DemoError("interrupted")

    return _run(scheduler, plan, Story(scheduler.home), look)


def _run(scheduler: TemporaryScheduler, plan: Sequence[Planned], story: Story, look: Any) -> list[JobView]:
    """Submit the jobs at their times; the jobs once all have ended."""
    client = scheduler.client
    # At a fixed place between two intervals, so that the demo goes the same way each time.
    time.sleep(scheduler.interval_s - time.time() % scheduler.interval_s)
    began = time.monotonic()
    waiting = list(plan)
    while len(story.state) < len(plan) or not {"finished", "failed", "cancelled"}.issuperset(story.state.values()):
        now = time.monotonic() - began
        while waiting and waiting[0].at_s <= now:
            job = waiting.pop(0)
            spec = scheduler.sample(job.name, gpus=job.gpus, steps=job.steps, step_s=STEP_S)
            client.submit({**spec, "estimate": job.work_s})
        look(story.tell(client.events(after=story.last)), time.time())
        if now > MOST_S:
            left = [story.names[job] for job, state in story.state.items() if state not in ("finished", "failed")]
            raise DemoError(f"jobs {', '.join(left)} had not ended after {MOST_S:g} s; the log:\n{scheduler.log()}")
        time.sleep(0.1)
    views = list(client.jobs(oldest_first=True))
    for view in views:
        if view["state"] != "finished":
            raise DemoError(f"job {view['name']} has {view['state']}: {view['reason']} {view['message']}".rstrip())
    return views


@click.command()
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print the results as JSON; the account of what happens goes to standard error.",
)
@click.option("--simulate", is_flag=True, help="Only simulate: compare policies on a generated trace.")
@click.option("--jobs", type=click.IntRange(1), default=2000, show_default=True, help="--simulate: jobs of the trace.")
@click.option(
    "--load",
    type=click.FloatRange(0, min_open=True),
    default=1.1,
    show_default=True,
    help="--simulate: offered load of the trace.",
)
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="--simulate: seed of the trace.")
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("out"),
    show_default=True,
    help="--simulate: folder for the report.",
)
@click.pass_context
def demo(ctx: click.Context, as_json: bool, simulate: bool, jobs: int, load: float, seed: int, output: Path) -> None:
    """Run eight small training jobs on a scheduler of their own, and compare with what the simulator says.

    They queue, run, are preempted, go on from their checkpoints and finish on four CPU slots, within a minute. The same
    jobs run under two more policies at the same time; one of these is the default. Schedulers, jobs and files are
    removed afterwards. Exit code 1 if a job failed, or the average JCTs, live and simulated, differ by more than 3 % on
    a machine that has no other work to do.

    With --simulate nothing is run: policies are compared on a generated trace and, where ../shared/data exists, a real
    one.
    """
    given = [
        f"--{name}"
        for name in ("jobs", "load", "seed", "output")
        if ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
    ]
    if simulate:
        if as_json:
            raise click.UsageError("--json is for the live demo; gpuloom compare --json - prints simulations as JSON")
        from gpuloom.cli.demo.simulated import compare_policies

        compare_policies(jobs, load, seed, output)
        return
    if given:
        raise click.UsageError(f"{', '.join(given)}: only with --simulate")
    if not sys.platform.startswith("linux"):
        raise DemoError("the live scheduler runs on Linux only; gpuloom demo --simulate runs everywhere")
    began = time.monotonic()
    outcome = run_live(err=as_json)
    took_s = time.monotonic() - began
    if as_json:
        say_json(_as_json(outcome, took_s))
    else:
        _say(outcome, took_s)
    ctx.exit(0 if outcome.within or outcome.busy else 1)


def _say(outcome: Outcome, took_s: float) -> None:
    from gpuloom.cli.demo.view import result_lines

    click.echo("\nwho had which slot (a letter for each job, time to the right):")
    for slot, line in enumerate(outcome.chart):
        click.echo(f"  {slot}  {line}")
    click.echo()
    for line in result_lines(outcome.jobs, outcome.compared, outcome.others, POLICY):
        click.echo(line)
    click.echo("\nLive and simulated, average JCT of the same jobs:")
    for name, what in ((POLICY, outcome.compared), *outcome.also.items()):
        verdict = "" if what.within else f"  NOT within {100 * BOUND:g} %"
        click.echo(
            f"  {name:<26} live {what.live_s:6.2f} s  simulated {what.simulated_s:6.2f} s  "
            f"{100 * what.difference:+.1f} %{verdict}"
        )
    click.echo(f"\nSchedulers, jobs and files are removed. It all took {took_s:.0f} s.")
    if not outcome.within:
        cause = ""
        if outcome.busy:
            cause = (
                f"; this machine has other work to do (load {outcome.load:.1f} on {plural(outcome.cores, 'core')}), "
                "and jobs start and save later than they would alone: run it again when the machine is free"
            )
        click.echo(f"gpuloom: live and simulated differ by more than {100 * BOUND:g} %{cause}", err=True)


def _as_json(outcome: Outcome, took_s: float) -> dict[str, Any]:
    names = ("id", "name", "gpus", "state", "jct_s", "run_s", "waited_s", "attempts", "preemptions")
    jobs: list[dict[str, object]] = [dict(job) for job in outcome.jobs]
    return {
        "policy": POLICY,
        "interval_s": INTERVAL_S,
        "slots": SLOTS,
        "jobs": [{name: job[name] for name in names} for job in jobs],
        **{key: value for key, value in outcome.compared.as_json().items() if key != "jobs"},
        "simulated": {
            job["job"]: {"jct_s": job["simulated_jct_s"], "starts": job["simulated_starts"]}
            for job in outcome.compared.as_json()["jobs"]
        },
        "also": {
            name: {key: value for key, value in what.as_json().items() if key != "jobs"}
            for name, what in outcome.also.items()
        },
        "avg_jct_s_by_policy": {name: other.avg_jct_s for name, other in outcome.others.items()},
        "load": outcome.load,
        "cores": outcome.cores,
        "took_s": took_s,
    }
