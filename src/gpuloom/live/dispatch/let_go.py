"""Ends runs that have lain suspended or frozen for too long, or that take memory which their node lacks.

Such a job begins anew from its last checkpoint, on any GPUs. Without its own it can't save. So where these are free it
has them back first, and its notice there; else it ends at once with what it had saved before.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from gpuloom.core.job import EndReason, Job, Phase
from gpuloom.core.units import format_duration
from gpuloom.executors.suspending import KEEP_MIB
from gpuloom.live.dispatch.dispatch import Dispatch
from gpuloom.live.planning.claims import State, Step
from gpuloom.live.planning.estimates import left_s
from gpuloom.live.planning.planning import Planning
from gpuloom.live.records.fleet import slots_of
from gpuloom.live.records.ledger import Ledger
from gpuloom.live.sights import Sights

SETTLES_S = 10.0
"""After one has ended until its node's memory is looked at again: the monitor has to see it first."""


class LetGo:
    """Used by the scheduler's thread alone."""

    def __init__(self, ledger: Ledger, planning: Planning, dispatch: Dispatch, sights: Sights) -> None:
        self._ledger, self._planning, self._dispatch, self._sights = ledger, planning, dispatch, sights
        self._lie: set[int] = set()
        """Jobs whose runs stand still."""
        self._settled_s: dict[str, float] = {}
        """Nodes on which one was told to end for their memory, and until when they are left alone."""
        ledger.book.watch(self._changed)

    def _changed(self, jobs: Iterable[Job]) -> None:
        for job in jobs:
            if job.phase is Phase.FROZEN:
                self._lie.add(job.id)
            else:
                self._lie.discard(job.id)

    def look(self, now_s: float) -> None:
        """Tell those to end for whom it is time. Raises StoreError."""
        if not self._lie:
            return
        book = self._ledger.book
        for number in sorted(self._lie):
            limit_s, attempt = book.jobs[number].spec.suspend_limit, book.attempts[number]
            if limit_s is None or not self._may_end(number):
                continue
            due_s = attempt.since_s + limit_s
            if now_s >= due_s:
                way = "suspended" if self._mib(number) else "frozen"
                self._end(number, f"it lay {way} for {format_duration(limit_s)}, the longest that it may", now_s)
            else:
                self._dispatch.retry_s = min(self._dispatch.retry_s, due_s)
        for node in sorted({book.attempts[number].nodes[0] for number in self._lie}):
            self._free_memory(node, now_s)

    def _free_memory(self, node: str, now_s: float) -> None:
        """End the one that would wait longest of those that lie on a node without memory."""
        record = self._ledger.book.nodes.get(node)
        free_mib = None if record is None else self._sights.free_mib(record)
        if free_mib is None or free_mib >= KEEP_MIB or now_s < self._settled_s.get(node, now_s):
            return
        book = self._ledger.book
        lie = [n for n in sorted(self._lie) if book.attempts[n].nodes[0] == node and self._may_end(n)]
        holds = {number: mib for number in lie if (mib := self._mib(number))}
        if not holds:
            return

        def waits(number: int) -> tuple[bool, int, float, int]:
            """The longer the larger. Who was suspended by hand waits until somebody says otherwise."""
            job = book.jobs[number]
            return job.suspended, -job.priority, self._left_s(job, now_s), number

        number = max(holds, key=waits)
        text = f"while it lay suspended it held {holds[number]:,.0f} MiB of its node's memory, which had only "
        self._settled_s[node] = now_s + SETTLES_S
        self._dispatch.retry_s = min(self._dispatch.retry_s, now_s + SETTLES_S)
        self._end(number, f"{text}{free_mib:,.0f} MiB left", now_s)

    def _end(self, number: int, why: str, now_s: float) -> None:
        planning, attempt = self._planning, self._ledger.book.attempts[number]
        slots, scene = set(slots_of(attempt.allocation)), planning.scene
        planning.claims.take_back(number)
        if scene.free_slots.issuperset(slots):
            planning.claims.give(number, attempt.allocation)
            planning.claims.on(Step.GO_ON, number)
            self._dispatch.tell(partial(self._dispatch.gangs.thaw, attempt.run))
        self._dispatch.end(number, EndReason.PREEMPTED, why, now_s)
        planning.stale()

    def _may_end(self, number: int) -> bool:
        """Whether its run stands still, is not about to go on, and its node can be told."""
        node = self._ledger.book.attempts[number].nodes[0]
        return self._planning.claims.state(number) is State.FROZEN and node not in self._planning.scene.shut

    def _mib(self, number: int) -> float:
        """GPU memory of a job that is in its node's memory."""
        for event in self._ledger.store.events(job=number, types=("attempt.frozen",), limit=1, newest=True):
            return float(event.data.get("suspended_mib") or 0.0)
        return 0.0

    def _left_s(self, job: Job, now_s: float) -> float:
        """For how long it is expected to run yet, where it is."""
        known = self._planning.scene.known(job, self._ledger.book.attempts[job.id].allocation, now_s)
        return left_s(known.total_s, known.done_s, known.told_s) / known.speed
