"""The live scheduler on a large cluster: joined nodes on paper, a long queue; what a pass, `ls` and `status` cost.

    python bench/large_cluster.py [--nodes 1000] [--gpus 8] [--jobs 10000] [--policy NAME] [--json]

CPU seconds of this process, the median of three. Nothing but processes and the network is left out: nodes join as
`gpuloom node join` has them join, and their runs begin at once (executors/paper.py).
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

from gpuloom.core.job import Gpu, NodeRecord, NodeSource
from gpuloom.executors.local_node import LocalNode
from gpuloom.executors.paper import PaperExecutor
from gpuloom.live.trial.rehearsal import NOWHERE, Rehearsal
from gpuloom.store.port import JobQuery


def cpu_s(call: Callable[[], object], times: int = 3) -> float:
    """CPU seconds of a call, the median."""
    taken = []
    for _ in range(times):
        began = time.process_time()
        call()
        taken.append(time.process_time() - began)
    return statistics.median(taken)


def join(it: Rehearsal, executors: dict[str, PaperExecutor], gpus: int) -> None:
    """These nodes are there."""
    for name, executor in executors.items():
        there = tuple(Gpu(index, f"{name}-{index}", "V100", 16_000) for index in range(gpus))
        it.scheduler.gangs.add(LocalNode(name, executor, NOWHERE))
        it.scheduler.arrivals.joined(NodeRecord(name, there, source=NodeSource.JOINED, address=name))
    it.turn()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--policy", default="fifo:backfill=easy")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    it = Rehearsal(given.policy, models=["V100"], interval_s=0.0)
    executors = {f"n{number}": PaperExecutor() for number in range(given.nodes)}
    found = {"nodes join": cpu_s(lambda: join(it, executors, given.gpus), 1)}
    specs = [{"gpus": 1 + number % 4, "time_limit": 3600 + number} for number in range(given.jobs)]
    found["submitted, and all started that fit"] = cpu_s(lambda: it.submit(*specs), 1)
    planning, clock = it.scheduler.planning, it.scheduler.clock

    def whole_pass() -> None:
        planning.stale()
        planning.run(clock.now())

    found["a pass over all"] = cpu_s(whole_pass)
    nodes = {attempt.run: attempt.nodes[0] for attempt in it.scheduler.book.attempts.values()}
    ends = iter([run for run, node in nodes.items() if node in executors])

    def one_ends() -> None:
        run = next(ends)
        executors[nodes[run]].end(run, 0)
        it.turn()

    found["a job ends, the next one starts"] = cpu_s(one_ends)
    found["status"] = cpu_s(it.service.status)
    found["ls (100 jobs)"] = cpu_s(lambda: it.service.jobs(JobQuery(limit=100)))
    found["nodes"] = cpu_s(it.service.nodes)
    if given.json:
        print(json.dumps({"policy": given.policy, "gpus": given.nodes * given.gpus, "jobs": given.jobs, **found}))
        return
    print(f"{given.jobs:,} jobs, {given.nodes * given.gpus:,} GPUs on {given.nodes:,} nodes, {given.policy}; CPU:")
    for what, seconds in found.items():
        print(f"  {what:36}{seconds * 1000:10,.0f} ms")


if __name__ == "__main__":
    main()
