"""Does the simulator say what the live scheduler does? Real jobs on CPU slots, then a replay of their history.

    python bench/live_equals_simulated.py
    python bench/live_equals_simulated.py --jobs 20 --policies srtf --json -

A workload is drawn from a seed: sizes, durations and gaps between submissions. Under each policy a scheduler of its
own is started in a temporary home and runs the whole workload: each job is a process that trains, saves, and goes on
from its checkpoint after a preemption (gpuloom.training.sample). The history is exported through the API and replayed
by the simulator under the same policy and interval, with its default settings. The average JCTs must agree within 3 %.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gpuloom.cli.demo.home import TemporaryScheduler
from gpuloom.cli.demo.replay import BOUND, Compared, compared, replay
from gpuloom.core.errors import GpuloomError

POLICIES = (
    "fifo:backfill=easy",
    "fifo",
    "sjf",
    "srtf",
    "tiresias:thresholds=5/15",
    "muri-s:group_size=2;processes=own;interleave_overhead=none",
)
"""Limits of Tiresias that no whole number of intervals on 1 to 4 slots meets exactly: at such a moment a millisecond
would decide who is stopped."""
STEP_S = 0.05
START_S = 0.4
"""About what a start costs, to draw the load; what it really cost is in the history."""
PARTS = {"reader": "1.01,0,0,0", "learner": "0,0,1.01,0"}
"""Stages of jobs (storage, CPU, GPU, network) over their time alone, for policies that weave: a reader and a learner
don't slow each other down, as jobs that mostly sleep don't; two of a kind would, so they are never put together."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A job: submitted so long after the first one; work in steps."""

    at_s: float
    gpus: int
    steps: int
    model: str


def drawn(jobs: int, slots: int, load: float, seed: int, scale: float = 1.0) -> list[Planned]:
    """The workload: 1 to 4 slots, 1 to 8 s of work (log-uniform) times `scale`, Poisson arrivals for this load."""
    random = np.random.default_rng(seed)
    gpus = random.choice([1, 2, 4], jobs, p=[0.5, 0.3, 0.2])
    gpus[random.random(jobs) < 0.1] = 3
    work = scale * np.exp(random.uniform(np.log(1.0), np.log(8.0), jobs))
    gap = float(((work + START_S) * gpus).mean()) / (slots * load)
    at = np.concatenate([[0.0], np.cumsum(random.exponential(gap, jobs - 1))])
    models = random.choice(list(PARTS), jobs)
    return [
        Planned(float(a), int(g), max(round(float(w) / STEP_S), 1), str(m))
        for a, g, w, m in zip(at, gpus, work, models, strict=True)
    ]


def profiles() -> str:
    """The library of profiles of `PARTS`."""
    lines = ["model,gpus,iteration_s,storage_s,cpu_s,gpu_s,network_s"]
    for model, parts in PARTS.items():
        lines.append(f"{model},1,{STEP_S}," + ",".join(str(float(part) * STEP_S) for part in parts.split(",")))
    return "\n".join(lines) + "\n"


def live(plan: list[Planned], policy: str, *, slots: int, interval_s: float, keep: Path | None) -> Compared:
    """Run the workload under a policy, and replay it."""
    with TemporaryScheduler(slots=slots, policy=policy, interval_s=interval_s, profiles=profiles()) as scheduler:
        numbers = []
        began = time.monotonic()
        for index, job in enumerate(plan):
            time.sleep(max(began + job.at_s - time.monotonic(), 0.0))
            spec = scheduler.sample(f"job{index}", gpus=job.gpus, steps=job.steps, step_s=STEP_S, seed=index)
            spec |= {"estimate": job.steps * STEP_S, "model": job.model}
            numbers.append(scheduler.client.submit(spec)[0][0])
        views = scheduler.client.wait(numbers, timeout_s=600.0)
        bad = [view for view in views if view["state"] != "finished"]
        if bad:
            raise GpuloomError(f"job {bad[0]['id']} has {bad[0]['state']}: {bad[0]['message']}")
        path = (keep or scheduler.folder) / f"{policy.partition(':')[0]}.csv"
        path.write_text(scheduler.client.history())
        again = replay(path, [policy], slots=slots, interval_s=interval_s, home=scheduler.home)
        if keep is not None:
            attempts = [scheduler.client.show(number)["attempts"] for number in numbers]
            path.with_suffix(".json").write_text(json.dumps({"jobs": views, "attempts": attempts}))
        return compared(views, again[policy])


def say(policy: str, what: Compared) -> None:
    live_starts, simulated_starts = sum(row[3] for row in what.rows), sum(row[4] for row in what.rows)
    print(
        f"{policy:<34} {what.live_s:7.2f} s {what.simulated_s:8.2f} s {100 * what.difference:+7.2f} % "
        f"{live_starts:6} {simulated_starts:9} {'' if what.within else '  outside'}",
        file=sys.stderr,
        flush=True,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=60)
    parser.add_argument("--slots", type=int, default=8, help="CPU slots")
    parser.add_argument("--load", type=float, default=0.9, help="offered load")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--interval", type=float, default=2.0, metavar="S", help="between preemptions")
    parser.add_argument(
        "--scale",
        type=float,
        default=1.0,
        help="jobs and interval so many times as long: starts weigh less, it takes longer",
    )
    parser.add_argument("--policies", type=lambda text: text.split(","), default=list(POLICIES))
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep histories and attempts there")
    parser.add_argument("--json", metavar="FILE|-", help="write the figures, with every job's")
    given = parser.parse_args()
    plan = drawn(given.jobs, given.slots, given.load, given.seed, given.scale)
    print(f"{'policy':<34} {'live':>9} {'simulated':>10} {'differ':>9} {'starts':>6} {'simulated':>9}", file=sys.stderr)
    found: dict[str, Compared] = {}
    failed = False
    for policy in given.policies:
        try:
            found[policy] = live(
                plan, policy, slots=given.slots, interval_s=given.interval * given.scale, keep=given.keep
            )
            say(policy, found[policy])
        except GpuloomError as error:
            print(f"{policy}: {error}", file=sys.stderr)
            failed = True
    if given.json is not None:
        text = json.dumps({policy: found[policy].as_json() for policy in given.policies if policy in found}, indent=2)
        if given.json == "-":
            print(text)
        else:
            Path(given.json).write_text(text + "\n")
    outside = [policy for policy, what in found.items() if not what.within]
    if outside:
        print(f"more than {100 * BOUND:g} % apart: {', '.join(outside)}", file=sys.stderr)
    return 1 if failed or outside else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:  # the scheduler under way has been ended, and its home removed
        sys.exit(130)
