"""How long one scheduling pass takes on a large cluster with a long queue, as the live scheduler makes it.

    python bench/scheduling_pass.py                       tiresias and muri-l
    python bench/scheduling_pass.py --all                 every policy that runs without further input
    python bench/scheduling_pass.py --jobs 1000 --cluster 100x8 --policies tiresias,srtf
    python bench/scheduling_pass.py --collector off       Python's garbage collector is off during a pass
    python bench/scheduling_pass.py --json FILE

By default 10,000 jobs wait for 1,000 nodes of 8 GPUs. Each policy first runs the cluster for some intervals, until
it is full and that many jobs wait; the state that comes of it is what the cases begin with:
    event        one job has ended; between two scheduling intervals (running jobs are left alone)
    interval     one job has ended; at an interval (running jobs may be stopped for others)
    cold event   the same as `event`, with everything built anew from what the store holds: workload, state, speeds,
                 rates, engine, and the policy's orderings; its memory is kept, as the live scheduler keeps it
    cold         the same at an interval
    build        how much of `cold` is not the policy: workload, state, speeds, rates, engine
    idle         all built anew, all GPUs idle, all jobs waiting, none has ever run
    crossing     (tiresias, gittins) the next job has crossed to a lower queue
    sort, walk   the baseline, in the same state as `cold`: sort all jobs by a key (NumPy), walk down the list and give
                 each the first node with enough free GPUs (NumPy); it keeps nobody's place and shares no GPU

Milliseconds of CPU of this process, which runs on one core; the median of several runs. A pass is what lies between
an event and the commands to the executor: the event is applied, the policy decides, its plan is checked and applied.
Policies that need further input (sizes of jobs, several GPU models) run as they do without it.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # one core: before NumPy is loaded

import argparse
import copy
import gc
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuloom.core.cluster import Cluster, parse_cluster
from gpuloom.core.commands import Command
from gpuloom.core.decision import Placement
from gpuloom.core.errors import GpuloomError
from gpuloom.core.profile import Profiles
from gpuloom.core.state import JobState, State
from gpuloom.core.workload import Workload
from gpuloom.engine.engine import Engine
from gpuloom.engine.progress import Progress
from gpuloom.facts.gpus import hand_in_facts, with_known_memory
from gpuloom.facts.profiles import shipped, with_profiles
from gpuloom.interleave.worth import GroupSharing
from gpuloom.placement.shapes import impossible_jobs, shapes_of
from gpuloom.policies.base import Policy
from gpuloom.policies.registry import create_policy, policy_ids
from gpuloom.sim.overheads import restart_overheads_s
from gpuloom.traces.generate import GeneratorConfig, generate

TARGETS_MS = {"tiresias": 100.0, "muri-l": 500.0}
INTERVAL_S = 360.0
WARM_UP = 6
"""Intervals that the cluster runs before anything is measured."""


class Nobody:
    """An executor that does nothing: what executors cost is not part of a pass."""

    def apply(self, commands: Sequence[Command], now_s: float) -> None:
        return


@dataclass(frozen=True)
class Scene:
    """A cluster in the middle of things: what a store would hold of it."""

    workload: Workload
    cluster: Cluster
    now_s: float
    status: NDArray[np.int8]
    columns: dict[str, NDArray[Any]]
    placements: dict[int, Placement]
    memory: Any

    def idle(self, policy: Policy) -> Scene:
        """Nobody has ever run, and the jobs that wait are all there are."""
        rows = np.flatnonzero(self.status == JobState.WAITING)
        workload = self.workload.take(rows)
        fresh = State(workload, self.cluster)
        status = np.full(len(rows), JobState.WAITING, dtype=np.int8)
        columns = {name: getattr(fresh, name + "_column").copy() for name in self.columns}
        memory = policy.new_memory(workload, self.cluster)
        return replace(self, workload=workload, status=status, columns=columns, placements={}, memory=memory)


KEPT = ("remaining_s", "work_from_s", "run_from_s", "held_s", "held_gpu_s", "first_start_s", "starts")


def columns_at(state: State, rows: NDArray[np.intp], now_s: float) -> dict[str, NDArray[Any]]:
    """What the live scheduler knows of these jobs: how much is left of each now, and when it goes on."""
    columns = {name: getattr(state, name + "_column")[rows] for name in KEPT}
    columns["remaining_s"] = np.array([state.remaining_at(job, now_s) for job in rows.tolist()])
    columns["work_from_s"] = np.maximum(columns["work_from_s"], now_s)
    return columns


def build(scene: Scene, policy: Policy) -> Engine:
    """An engine in that state, all made anew, as after a start of the scheduler."""
    workload, cluster = replace(scene.workload), scene.cluster
    state = State(workload, cluster, layers=policy.max_jobs_per_gpu)
    if len(impossible_jobs(shapes_of(workload, cluster), cluster)):
        raise SystemExit("some jobs fit the cluster never")
    overheads = restart_overheads_s(workload)
    progress = Progress(workload, cluster, overheads, policy.sharing(workload), overheads)
    columns, everyone = scene.columns, np.arange(len(workload))
    state.restore(
        everyone,
        held_s=columns["held_s"],
        held_gpu_s=columns["held_gpu_s"].sum(axis=1),
        starts=columns["starts"],
        first_start_s=columns["first_start_s"],
        remaining_s=columns["remaining_s"],
    )
    state.submit_all(everyone)
    running = np.array(sorted(scene.placements), dtype=np.intp)
    placements = [scene.placements[job] for job in running.tolist()]
    jobs = running.tolist()
    rate = np.array([progress.solo_rate(*pair) for pair in zip(jobs, placements, strict=True)], dtype=np.float64)
    shares = progress.sharing.rates(jobs, placements) if isinstance(progress.sharing, GroupSharing) else None
    state.adopt(
        running,
        placements,
        run_from_s=columns["run_from_s"][running],
        work_from_s=columns["work_from_s"][running],
        rate=rate if shares is None else rate * np.array(shares),
    )
    same = np.arange(len(workload)), np.arange(len(cluster.nodes))
    memory = None if scene.memory is None else policy.carried(scene.memory, *same, workload, cluster)
    engine = Engine(state, policy, progress, Nobody(), memory=memory)
    if progress.sharing is not None and shares is None:
        engine.settle(scene.now_s)
    return engine


def lived_in(policy: Policy, workload: Workload, cluster: Cluster, queued: int) -> Scene:
    """The cluster after some intervals under the policy: full, and about so many jobs wait."""
    state = State(workload, cluster, layers=policy.max_jobs_per_gpu)
    overheads = restart_overheads_s(workload)
    progress = Progress(workload, cluster, overheads, policy.sharing(workload), overheads)
    engine = Engine(state, policy, progress, Nobody())
    coming = iter(range(len(workload)))
    now_s = 0.0
    for _ in range(WARM_UP):
        ended = [job for job in state.placements if state.predicted_end_s(job) <= now_s]
        while ended or state.waiting < 0.99 * queued:
            arrived = [job for job, _ in zip(coming, range(queued - state.waiting), strict=False)]
            if not ended and not arrived:
                raise SystemExit(f"{len(workload):,} jobs are too few to fill the cluster and keep {queued:,} waiting")
            engine.take_in(now_s, finished=ended, arrived=arrived)
            engine.decide(now_s)
            ended = []
        now_s += INTERVAL_S
    now_s -= INTERVAL_S / 2
    waiting = np.flatnonzero(state.status_column == JobState.WAITING)
    # Jobs that were stopped for others wait on top of those that were submitted: every so many are left out.
    waiting = waiting[np.linspace(0, len(waiting) - 1, min(queued, len(waiting))).astype(np.intp)]
    rows = np.union1d(waiting, np.flatnonzero(state.status_column == JobState.RUNNING))
    row_of = {job: row for row, job in enumerate(rows.tolist())}
    kept = workload.take(rows)
    return Scene(
        workload=kept,
        cluster=cluster,
        now_s=now_s,
        status=state.status_column[rows],
        columns=columns_at(state, rows, now_s),
        placements={row_of[job]: placement for job, placement in state.placements.items()},
        memory=policy.carried(engine.memory, rows, np.arange(len(cluster.nodes)), kept, cluster),
    )


def sort_and_walk(scene: Scene) -> int:
    """The baseline: jobs that got a place, in order of attained service, on GPUs that are only counted by node."""
    gpus = scene.workload.gpus
    attained = scene.columns["held_gpu_s"].sum(axis=1)
    free = np.array([node.gpus for node in scene.cluster.nodes])
    most, placed = int(free.max()), 0
    left = int(free.sum())
    for job in np.lexsort((np.arange(len(gpus)), attained)).tolist():
        wanted = int(gpus[job])
        if wanted > left:
            continue
        if wanted <= most:
            node = int((free >= wanted).argmax())
            if free[node] < wanted:
                continue
            free[node] -= wanted
        else:
            whole = np.flatnonzero(free == most)[: -(-wanted // most)]
            if len(whole) * most < wanted:
                continue
            free[whole] = 0
        left -= wanted
        placed += 1
        if left == 0:
            break
    return placed


def partners(scene: Scene) -> list[int]:
    """A running job, and those on the same GPUs: one group that ends."""
    first = next(iter(scene.placements.values()))
    place = (first.nodes, first.masks)
    return [job for job, p in scene.placements.items() if (p.nodes, p.masks) == place]


class Clock:
    """CPU seconds since it was made, the collector off if so wanted; garbage of what was before is collected first."""

    def __init__(self, collector: bool) -> None:
        gc.enable()
        gc.collect()
        if not collector:
            gc.disable()
        self._begun = time.process_time()

    def read(self) -> float:
        return time.process_time() - self._begun


class Bench:
    """Prints each figure as it comes and keeps it."""

    def __init__(self, times: int, collector: bool) -> None:
        self.times, self.collector = times, collector
        self.rows: list[dict[str, Any]] = []

    def policy(self, text: str, workload: Workload, cluster: Cluster, queued: int) -> None:
        policy = create_policy(text)
        hand_in_facts(policy)
        scene = lived_in(policy, workload, cluster, queued)
        ended = partners(scene)
        figures: dict[str, list[float]] = {}
        baselines = []
        idle = scene.idle(policy)
        for _ in range(self.times):
            clock = Clock(self.collector)
            sort_and_walk(scene)
            baselines.append(clock.read())
            for name, may_preempt in (("cold event", False), ("cold", True)):
                held = replace(scene, memory=copy.deepcopy(scene.memory))
                clock = Clock(self.collector)
                engine = build(held, policy)
                built_s = clock.read()
                engine.take_in(scene.now_s, finished=ended)
                engine.decide(scene.now_s, may_preempt=may_preempt)
                figures.setdefault(name, []).append(clock.read())
                figures.setdefault("build", []).append(built_s)
            self.warm(engine, scene.now_s, figures)
            held = replace(idle, memory=copy.deepcopy(idle.memory))
            clock = Clock(self.collector)
            engine = build(held, policy)
            engine.decide(scene.now_s)
            figures.setdefault("idle", []).append(clock.read())
        gc.enable()
        baseline = statistics.median(baselines)
        running, waiting = len(scene.placements), int((scene.status == JobState.WAITING).sum())
        print(f"{text}: {waiting:,} jobs wait, {running:,} run; sort, walk {1000 * baseline:.1f} ms", flush=True)
        for case in ("event", "interval", "crossing", "cold event", "cold", "build", "idle"):
            if case in figures:
                self.row(text, case, statistics.median(figures[case]), baseline, running, waiting)

    def warm(self, engine: Engine, now_s: float, figures: dict[str, list[float]]) -> None:
        """Passes of an engine that keeps running."""
        wake_s = np.inf
        for name, may_preempt in (("event", False), ("interval", True)) * 2:
            now_s += 1.0
            job = next(iter(engine.state.placements))
            clock = Clock(self.collector)
            engine.take_in(now_s, finished=[job])
            wake_s = engine.decide(now_s, may_preempt=may_preempt)
            figures.setdefault(name, []).append(clock.read())
        levels = getattr(engine.memory, "levels", engine.memory)
        if hasattr(levels, "level") and now_s < wake_s < np.inf:
            clock = Clock(self.collector)
            engine.take_in(wake_s)
            engine.decide(wake_s)
            figures.setdefault("crossing", []).append(clock.read())

    def row(self, policy: str, case: str, seconds: float, baseline: float, running: int, waiting: int) -> None:
        target = TARGETS_MS.get(policy) if case != "build" else None
        self.rows.append(
            {
                "policy": policy,
                "case": case,
                "ms": 1000 * seconds,
                "sort_and_walk_ms": 1000 * baseline,
                "ratio": seconds / baseline,
                "target_ms": target,
                "running": running,
                "waiting": waiting,
            }
        )
        against = "" if target is None else f"   target {target:.0f} ms{'' if 1000 * seconds <= target else ': MISSED'}"
        print(f"    {case:12} {1000 * seconds:9.2f} ms   {seconds / baseline:8.2f} x sort, walk{against}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cluster", default="1000x8:V100")
    parser.add_argument("--jobs", type=int, default=10_000, help="jobs that wait")
    parser.add_argument("--policies", default=",".join(TARGETS_MS), help="separated by commas")
    parser.add_argument("--all", action="store_true", help="every policy of the registry")
    parser.add_argument("--times", type=int, default=5, help="runs of each case")
    parser.add_argument("--profiles", type=int, default=0, help="so many kinds of stage times, instead of the shipped")
    parser.add_argument("--collector", choices=("on", "off"), default="on", help="Python's garbage collector")
    parser.add_argument("--json", type=Path, help="write the figures as JSON")
    arguments = parser.parse_args()
    cluster = with_known_memory(parse_cluster(arguments.cluster))
    jobs = 8 * arguments.jobs + 6 * cluster.gpus
    config = GeneratorConfig(jobs=jobs, gpus=cluster.gpus, arrival="batch", seed=1)
    workload = with_profiles(generate(config), Profiles(shipped(), (), ""))
    if arguments.profiles:
        workload = varied(workload, arguments.profiles)
    names = policy_ids() if arguments.all else arguments.policies.split(",")
    bench = Bench(arguments.times, arguments.collector == "on")
    for name in names:
        try:
            bench.policy(name, workload, cluster, arguments.jobs)
        except (GpuloomError, MemoryError) as error:
            print(f"{name}: no figures: {error or type(error).__name__}", flush=True)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(bench.rows, indent=2) + "\n", encoding="utf-8")


def varied(workload: Workload, kinds: int) -> Workload:
    """The same jobs with so many different profiles: every stage off by up to a third."""
    if workload.stage_s is None or workload.iteration_s is None:
        raise SystemExit("no job has stage times")
    rng = np.random.default_rng(1)
    factor = rng.uniform(0.75, 1.33, (kinds, 3))[rng.integers(0, kinds, len(workload))]
    stage_s = workload.stage_s * factor
    return replace(workload, stage_s=stage_s, iteration_s=stage_s.sum(axis=1))


if __name__ == "__main__":
    main()
