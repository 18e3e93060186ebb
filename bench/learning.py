"""Learning curves of the policy `rl` on streams of Pollux' jobs; rewrites docs/results/learning.md and its plot.

python bench/learning.py            everything (about two minutes)
python bench/learning.py --print    only print, at a fraction of the size
"""

from __future__ import annotations

import argparse
import math
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from charts import Curve, keys_of, lines, page
from gpuloom.core.snapshot import Snapshot
from gpuloom.core.workload import Workload
from gpuloom.facts.scaling import pollux_fit
from gpuloom.placement.even import FRAGMENTATION
from gpuloom.policies.registry import parse_policy
from gpuloom.policies.rl import Memory, Rl
from gpuloom.report.axis import linear_ticks, log_time_ticks
from gpuloom.report.picture import save_picture
from gpuloom.report.svg import Frame, Scale
from gpuloom.sim import simulate
from gpuloom.traces import read_trace
from gpuloom.traces.pollux import load_profiles
from public_data import DATA, need

ROOT = Path(__file__).resolve().parents[1]
PROFILES = DATA / "pollux" / "profiles_traces.tar.gz"
CLUSTER = "16x4"
FIXED = ("1x1", "1x2", "1x3", "1x4", "2x2", "2x4", "4x4", "8x4")
ZERO = "rl:initial=zero"
EAGER = f"{ZERO};alpha=0.5;epsilon_start=1;epsilon_jobs=400;accept=0"
LEARNERS = {
    "rl": "starting values of the model",
    ZERO: "starting values of 0",
    EAGER: "starting values of 0, exploring more",
}
YARDSTICKS = {"rl:mode=random": "random", "rl:mode=greedy": "most GPUs that fit"}
WINDOW = 100
GAP_S, HEAVY_GAP_S = 450.0, 300.0
"""Seconds between submissions, on average."""
F8 = NDArray[np.float64]


class Watched(Rl):
    """`rl`, with its last memory and the time of its decisions kept."""

    seen: Memory
    times: list[float]

    def decide(self, snapshot: Snapshot, memory: Memory) -> tuple[Any, Memory]:
        begun = time.thread_time()
        decision, self.seen = super().decide(snapshot, memory)
        if decision.run:
            self.times.append((time.thread_time() - begun) / len(decision.run))
        return decision, self.seen


def all_jobs() -> Workload:
    """The jobs of Pollux' eight workloads; jobs of an application and a batch size share one curve."""
    files = [f"{DATA / 'pollux' / 'workloads.tar.gz'}::workloads/workload-{number}.csv" for number in range(1, 9)]
    whole = read_trace(files, throughputs=PROFILES).workload
    scaling = whole.scaling
    assert scaling is not None
    curves: dict[bytes, int] = {}
    same = np.array([curves.setdefault(curve.tobytes(), len(curves)) for curve in scaling.curves], dtype=np.int32)
    kept = [scaling.curves[int(np.flatnonzero(same == index)[0])] for index in range(len(curves))]
    return replace(whole, scaling=replace(scaling, curve=same[scaling.curve], curves=tuple(kept)))


def stream(jobs: Workload, count: int, gap_s: float, seed: int) -> Workload:
    """`count` of the jobs, drawn with replacement, arriving at random (Poisson) every `gap_s` seconds on average."""
    rng = np.random.default_rng(seed)
    drawn = rng.integers(0, len(jobs), count)
    assert jobs.scaling is not None
    submit = np.cumsum(rng.exponential(gap_s, count))
    return Workload(
        f"stream {seed}", submit, jobs.duration_s[drawn], jobs.gpus[drawn], scaling=jobs.scaling.take(drawn)
    )


@dataclass
class Runs:
    """Of one policy: reward and completion time of each job, shape (seeds, jobs); processor seconds per decision, and
    of the first decision of each run."""

    reward: F8
    jct_s: F8
    decisions_s: F8
    first_s: F8


def runs(text: str, streams: list[Workload], thrift: float) -> Runs:
    rewards, jcts, decisions, first = [], [], [], []
    for seed, workload in enumerate(streams):
        policy = Watched(**{"seed": seed, **parse_policy(text)[1]})
        policy.times = []
        result = simulate(workload, CLUSTER, policy)
        rewards.append(rewards_of(workload, policy.seen, thrift))
        jcts.append(result.jct_s)
        first.append(policy.times[0])
        decisions.extend(policy.times[1:])
    return Runs(np.array(rewards), np.array(jcts), np.array(decisions), np.array(first))


def rewards_of(workload: Workload, memory: Memory, thrift: float) -> F8:
    """R of the placement that each job got, by its true curve: alike for all policies."""
    scaling = workload.scaling
    assert scaling is not None
    found = np.zeros(len(workload))
    for job, choice in enumerate(memory.choice.tolist()):
        nodes, per_node = map(int, memory.choices[choice].split("x"))
        curve = scaling.curves[scaling.curve[job]]
        speed = curve[nodes * per_node, nodes - 1] / curve.max()
        spread = nodes / math.ceil(nodes * per_node / 4)
        found[job] = speed / (nodes * per_node / 64 * spread**FRAGMENTATION) ** thrift
    return found


def windows(values: F8) -> F8:
    """Means of successive windows: shape (seeds, windows)."""
    whole = values.shape[1] // WINDOW * WINDOW
    found: F8 = values[:, :whole].reshape(len(values), -1, WINDOW).mean(axis=2)
    return found


def band(values: F8) -> tuple[F8, F8]:
    """Mean over the seeds and half the width of its 95 % confidence band (Student's t)."""
    t = {4: 3.182, 10: 2.262}.get(len(values), 2.0)
    return values.mean(axis=0), t * values.std(axis=0, ddof=1) / math.sqrt(len(values))


def first_better(mine: F8, other: F8, *, larger: bool) -> str:
    """Job from which on, up to the end, the mean over the seeds is better than the other's in all windows but noise:
    the first window from which the mean of all later windows' paired differences is better with 95 % confidence and
    the window itself is better."""
    gain = (mine - other) if larger else (other - mine)
    for window in range(gain.shape[1]):
        mean, half = band(gain[:, window:].mean(axis=1, keepdims=True))
        if gain[:, window].mean() > 0 and mean[0] > half[0]:
            return f"{window * WINDOW}"
    return "never"


Band = tuple[F8, F8, F8]
"""Mean of each window over the seeds, and the lower and upper edge of its 95 % confidence band."""


def bands(found: Runs) -> tuple[Band, Band]:
    """Of the reward; and of the completion time in seconds, whose means and bands are those of logarithms."""
    middle, half = band(windows(found.reward))
    mean, width = band(np.log(windows(found.jct_s)))
    return (middle, middle - half, middle + half), (np.exp(mean), np.exp(mean - width), np.exp(mean + width))


def plot(path: Path, found: dict[str, tuple[Band, Band]]) -> None:
    """Draw reward and completion time by jobs seen as SVG. found: `bands` by the name of a choice."""
    frame = Frame(width=500, height=330)
    curves: list[list[Curve]] = []
    for which in (0, 1):
        curves.append([])
        for number, (name, both) in enumerate(found.items()):
            middle, low, high = (values.tolist() for values in both[which])
            jobs = [(window + 0.5) * WINDOW for window in range(len(middle))]
            curves[-1].append(Curve(number, name, jobs, middle, low, high))
    last = WINDOW * max(len(curve.ys) for curve in curves[0])
    (least, most), (short, long) = (
        [pick(value for curve in each for value in curve.drawn) for pick in (min, max)] for each in curves
    )
    room = 0.04 * (most - least)
    reward = frame.y(least - room, most + room)
    jct = Scale(short / 1.05, long * 1.05, frame.height - frame.bottom, frame.top, log=True)
    y_ticks = linear_ticks(reward.low, reward.high), log_time_ticks(jct.low, jct.high)
    x_ticks, below = linear_ticks(0, last), "jobs seen"
    panels = [
        lines(frame, "Mean reward", curves[0], x_ticks, below, reward, y_ticks[0], "reward", keys=False),
        lines(frame, "Mean completion time", curves[1], x_ticks, below, jct, y_ticks[1], "logarithmic", keys=False),
    ]
    save_picture(page([panels], keys_of(curves[0])), path)


def fits() -> list[str]:
    rows = [
        "| application | measurements | rms error | largest | compute / communication of a sample |",
        "|---|---|---|---|---|",
    ]
    for name, profile in sorted(load_profiles(PROFILES).items()):
        found = pollux_fit(profile)
        count = sum(len(table) for table in profile.steps.values())
        model = found.model
        rows.append(
            f"| {name} | {count} | {math.expm1(found.error):.1%} | {math.expm1(found.worst):.0%} | "
            f"{model.per_sample_s * 1e3:.3g} ms / {model.inter_s * 1e3:.3g} ms "
            f"(in a node {model.intra_s * 1e3:.3g} ms) |"
        )
    return rows


def table(all_runs: dict[str, Runs], names: dict[str, str]) -> list[str]:
    rows = [
        "| choice | mean reward | the last half | mean JCT | the last half | median JCT |",
        "|---|---|---|---|---|---|",
    ]
    for text, name in names.items():
        found = all_runs[text]
        half = found.reward.shape[1] // 2
        reward, width = band(found.reward.mean(axis=1, keepdims=True))
        jct, jct_width = band(found.jct_s.mean(axis=1, keepdims=True))
        rows.append(
            f"| {name} (`{text}`) | {reward[0]:.2f} ± {width[0]:.2f} | {found.reward[:, half:].mean():.2f} | "
            f"{jct[0] / 3600:.2f} ± {jct_width[0] / 3600:.2f} h | {found.jct_s[:, half:].mean() / 3600:.2f} h | "
            f"{np.median(found.jct_s) / 3600:.2f} h |"
        )
    return rows


def scenario(jobs: Workload, gap_s: float, count: int, seeds: int) -> tuple[dict[str, Runs], str, str]:
    """All policies on the same streams; the best fixed placement by reward and by completion time."""
    streams = [stream(jobs, count, gap_s, seed) for seed in range(seeds)]
    thrift = Rl().values["thrift"]
    texts = [*LEARNERS, *YARDSTICKS, *(f"rl:mode=fixed;fixed={name}" for name in FIXED)]
    found = {text: runs(text, streams, thrift) for text in texts}
    fixed = [text for text in texts if "fixed=" in text]
    return (
        found,
        max(fixed, key=lambda text: found[text].reward.mean()),
        min(fixed, key=lambda text: found[text].jct_s.mean()),
    )


def load(jobs: Workload, gap_s: float) -> float:
    """Work that arrives, with every job on one GPU, over what 64 GPUs can do."""
    scaling = jobs.scaling
    assert scaling is not None
    alone = [scaling.speed(job, 1, 1) for job in range(len(jobs))]
    return float((jobs.duration_s / alone).mean() / (64 * gap_s))


def speed(jobs: Workload) -> list[str]:
    """Time of `rl` and of `tiresias` on the same traces, best of three."""
    rows = ["| trace | rl | tiresias | ratio |", "|---|---|---|---|"]
    elastic = stream(jobs, 5000, 300.0, 0)
    rigid = replace(elastic, scaling=None, name="the same jobs, rigid")
    for name, workload in (("5,000 jobs of Pollux", elastic), ("the same jobs, rigid", rigid)):
        wall = {
            policy: min(simulate(workload, CLUSTER, policy).wall_s for _ in range(3)) for policy in ("rl", "tiresias")
        }
        rows.append(f"| {name} | {wall['rl']:.2f} s | {wall['tiresias']:.2f} s | {wall['rl'] / wall['tiresias']:.2f} |")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--print", action="store_true", dest="only_print")
    small = parser.parse_args().only_print
    need(DATA, "pollux/profiles_traces.tar.gz", "pollux/workloads.tar.gz")
    count, seeds = (200, 4) if small else (1000, 10)
    jobs = all_jobs()
    calm, by_reward, by_jct = scenario(jobs, GAP_S, count, seeds)
    busy, busy_by_reward, busy_by_jct = scenario(jobs, HEAVY_GAP_S, count, seeds)

    def named(best: tuple[str, str]) -> dict[str, str]:
        which = {best[0]: "best fixed by reward", best[1]: "best fixed by JCT"}
        if best[0] == best[1]:
            which = {best[0]: "best fixed"}
        return {**LEARNERS, **which, **YARDSTICKS}

    names = named((by_reward, by_jct))
    rl, zero, eager = calm["rl"], calm[ZERO], calm[EAGER]
    early = slice(0, 100)
    times = np.concatenate([rl.decisions_s, zero.decisions_s]) * 1e3
    reach = first_at_level(windows(zero.reward), windows(rl.reward)[:, :1].mean())
    text = TEXT.format(
        count=f"{count:,}",
        seeds=seeds,
        window=WINDOW,
        fits="\n".join(fits()),
        calm="\n".join(table(calm, names)),
        busy="\n".join(table(busy, named((busy_by_reward, busy_by_jct)))),
        gap=f"{GAP_S:.0f}",
        heavy_gap=f"{HEAVY_GAP_S:.0f}",
        load=f"{load(jobs, GAP_S):.0%}",
        heavy_load=f"{load(jobs, HEAVY_GAP_S):.0%}",
        reward_jobs=first_better(windows(rl.reward), windows(calm[by_reward].reward), larger=True),
        jct_jobs=first_better(windows(rl.jct_s), windows(calm[by_jct].jct_s), larger=False),
        zero_reward_jobs=first_better(windows(zero.reward), windows(calm[by_reward].reward), larger=True),
        zero_jct_jobs=first_better(windows(zero.jct_s), windows(calm[by_jct].jct_s), larger=False),
        eager_reward_jobs=first_better(windows(eager.reward), windows(calm[by_reward].reward), larger=True),
        eager_jct_jobs=first_better(windows(eager.jct_s), windows(calm[by_jct].jct_s), larger=False),
        busy_reward_jobs=first_better(windows(busy["rl"].reward), windows(busy[busy_by_reward].reward), larger=True),
        busy_jct_jobs=first_better(windows(busy["rl"].jct_s), windows(busy[busy_by_jct].jct_s), larger=False),
        reach=reach,
        eager_reach=first_at_level(windows(eager.reward), windows(rl.reward)[:, :1].mean()),
        early_model=f"{rl.reward[:, early].mean():.2f}",
        early_zero=f"{zero.reward[:, early].mean():.2f}",
        early_model_jct=f"{rl.jct_s[:, early].mean() / 3600:.2f}",
        early_zero_jct=f"{zero.jct_s[:, early].mean() / 3600:.2f}",
        mean_ms=f"{times.mean():.3f}",
        p99_ms=f"{np.quantile(times, 0.99):.3f}",
        max_ms=f"{times.max():.2f}",
        first_ms=f"{rl.first_s.max() * 1e3:.0f}",
        heavy=f"{np.sort(rl.jct_s.ravel())[-int(rl.jct_s.size * 0.03) :].sum() / rl.jct_s.sum():.0%}",
        speed="\n".join(speed(jobs)),
    )
    print(text)
    if not small:
        (ROOT / "docs" / "results" / "learning.md").write_text(text, encoding="utf-8")
        curves = {name: bands(calm[key]) for key, name in names.items()}
        plot(ROOT / "docs" / "results" / "figures" / "learning.svg", curves)


def first_at_level(values: F8, level: float) -> str:
    """Jobs until the mean over the seeds of a window first reaches a level."""
    reached = np.flatnonzero(values.mean(axis=0) >= level)
    return f"{int(reached[0]) * WINDOW}" if len(reached) else f"more than {values.shape[1] * WINDOW}"


TEXT = """\
# Learnt placement, measured

How fast [`rl`](../reference/policies.md#rl) learns, against choices that don't learn. Made by `make learning`
(`bench/learning.py`) from Pollux' profiles and jobs; figures of time are of the machine that ran it.

## The model of throughput

The [model](../explanation/learning.md#the-model-of-throughput) fitted to every measurement of an application:
placements on 1 to 16 nodes of 4 T4 GPUs, and local batch sizes.

{fits}

## Learning curves

{seeds} streams of {count} jobs, drawn from Pollux' eight workloads and arriving at random every {gap} s on average, on
16 nodes of 4 GPUs. (With every job on one GPU, the leanest it can be, that is {load} of what the cluster can do.)
Bands: 95 % confidence over the streams; points: means of {window} jobs. Rewards are those of the placements that jobs
got, by their true curves, with `rl`'s default `thrift`.

![Mean reward and completion time against jobs seen](figures/learning.svg)

{calm}

Best fixed: of {{1, 2, 3, 4}} GPUs on a node and 2, 4, 8 nodes. `fixed` waits until its placement is free; so may `rl`
(`accept`, which the patent does not have), while `random` and `greedy` take what fits.

From which job on `rl` is better than the best fixed placement. That is the first window of {window} jobs that is
better, if all from it on are better together with 95 % confidence. 0: at once; never: not within {count} jobs.

| | by reward | by completion time |
|---|---|---|
| starting values of the model | {reward_jobs} | {jct_jobs} |
| starting values of 0 | {zero_reward_jobs} | {zero_jct_jobs} |
| starting values of 0, exploring more | {eager_reward_jobs} | {eager_jct_jobs} |
| starting values of the model, heavier load (below) | {busy_reward_jobs} | {busy_jct_jobs} |

**What the model's starting values save.** Over the first 100 jobs the mean reward is {early_model} with them and
{early_zero} with 0; the mean completion time {early_model_jct} h and {early_zero_jct} h. Starting from 0, the reward of
the model's first 100 jobs is reached after {reach} jobs, exploring more after {eager_reach}.

**Heavier load.** The same with a job every {heavy_gap} s, {heavy_load} of what the cluster can do in the long run:

{busy}

## A few long jobs

A job keeps its placement until it ends. A few jobs that scale well and last for days on one GPU decide the mean
completion time: the longest 3 % of the jobs are {heavy} of the sum. One of them that takes the last free GPU counts
more than a hundred good choices. `accept` and `patience` are there for that. (Unlike in the patent, a job may wait more
than once; `accept=0` is the patent's rule.) The method does not resize running jobs.

## Cost

A decision takes {mean_ms} ms of processor time on average, {p99_ms} ms at the 99th percentile, {max_ms} ms at most; the
first of a run, which fits the models of all curves, up to {first_ms} ms. Whole simulations, best of three:

{speed}
"""


if __name__ == "__main__":
    main()
