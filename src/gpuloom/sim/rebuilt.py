"""A policy that decides in a world that is rebuilt each time, as on the live scheduler."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuloom.core.cluster import Cluster
from gpuloom.core.decision import Decision
from gpuloom.core.sharing import Sharing
from gpuloom.core.snapshot import Snapshot
from gpuloom.core.state import JobState, State
from gpuloom.core.workload import Workload
from gpuloom.facts.inputs import load_policy
from gpuloom.policies.base import Policy
from gpuloom.policies.memory import dump, load
from gpuloom.sim import Failure

OUTAGES = (Failure(0, 5000.0, 9000.0), Failure(1, 20_000.0, 30_000.0))


class Rebuilt(Policy):
    """Decides with a world that is rebuilt each time.

    Args:
        compact: the world holds only jobs that wait, run, or have just ended, under other numbers.
    """

    id = "rebuilt"

    def __init__(self, text: str, *, compact: bool) -> None:
        self._text, self._compact = text, compact
        inner = self._anew()
        self.stands_for(inner)
        self._first = inner
        self._kept: bytes | None = None
        self._rows = np.zeros(0, dtype=np.intp)
        self.times = 0

    def _anew(self) -> Policy:
        return load_policy(self._text)

    def sharing(self, workload: Workload) -> Sharing | None:
        return self._first.sharing(workload)

    def new_memory(self, workload: Workload, cluster: Cluster) -> Any:
        return self._first.new_memory(workload, cluster)

    def decide(self, snapshot: Snapshot, memory: Any) -> tuple[Decision, Any]:
        self.times += 1
        policy = self._anew()
        if not self._compact:
            before = dump(memory, policy)
            decision, memory = policy.decide(snapshot, load(before, policy))
            return decision, memory
        rows, world = _compacted(snapshot, policy)
        nodes = np.arange(len(snapshot.cluster.nodes))
        if self._kept is None:
            memory, self._rows = (
                self._first.new_memory(snapshot.workload, snapshot.cluster),
                np.arange(len(snapshot.workload)),
            )
        else:
            memory = load(self._kept, policy)
        old = {row: index for index, row in enumerate(self._rows.tolist())}
        carried = np.array([old.get(row, -1) for row in rows.tolist()], dtype=np.intp)
        memory = policy.carried(memory, carried, nodes, world.workload, world.cluster)
        decision, memory = policy.decide(world, memory)
        self._kept, self._rows = dump(memory, policy), rows
        run = {int(rows[job]): placement for job, placement in decision.run.items()}
        wait = [int(rows[job]) for job in decision.wait]
        return Decision(run, wait, decision.wake_at_s), None


def _compacted(snapshot: Snapshot, policy: Policy) -> tuple[np.ndarray[Any, Any], Snapshot]:
    """(row of each job, the same world of these jobs alone)."""
    state: State = snapshot._state
    present = (state.status_column == JobState.WAITING) | (state.status_column == JobState.RUNNING)
    present[list(snapshot.finished)] = True
    rows = np.flatnonzero(present)
    workload = snapshot.workload.take(rows)
    new = {row: index for index, row in enumerate(rows.tolist())}
    twin = State(workload, snapshot.cluster, layers=state.layers)
    for node in snapshot.nodes_out:
        twin.node_down(node)
    finished = set(snapshot.finished)
    twin.restore(
        np.arange(len(rows)),
        held_s=state.held_s_column[rows],
        held_gpu_s=state.held_gpu_s_column[rows],
        starts=state.starts_column[rows],
        first_start_s=state.first_start_s_column[rows],
        remaining_s=state.remaining_s_column[rows],
    )
    for row, job in new.items():
        if row in finished:
            twin.status[job] = JobState.FINISHED
        else:
            twin.submit(job, snapshot.now_s)
    running = np.fromiter(state.placements, dtype=np.intp, count=len(state.placements))
    twin.adopt(
        np.array([new[row] for row in state.placements], dtype=np.intp),
        list(state.placements.values()),
        run_from_s=state.run_from_s_column[running],
        work_from_s=state.work_from_s_column[running],
        rate=state.rate_column[running],
    )
    overhead = np.array(snapshot.restart_overhead_s)[rows]
    resize = np.array(snapshot.resize_overhead_s)[rows]
    world = Snapshot(twin, overhead, resize, np.array(snapshot.again_s)[rows])
    world.now_s, world.may_preempt = snapshot.now_s, snapshot.may_preempt
    for name in ("arrived", "finished", "evicted", "resized"):
        setattr(world, name, [new[row] for row in getattr(snapshot, name)])
    world.nodes_down, world.nodes_up = snapshot.nodes_down, snapshot.nodes_up
    return rows, world
