"""Makes room for interactive jobs: running jobs that lose nothing are suspended until such a job has ended.

"A GPU for ten minutes, now", under any policy: an interactive job with a short time limit that finds no free GPUs gets
those of jobs of a lower priority whose programs bear being suspended. They are suspended as by `gpuloom suspend`, out
of the policy's sight, and go on when it has ended. It is made once for each job, on one node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import combinations

from gpuloom.core.job import ENDED, Job, NodeRecord, Phase
from gpuloom.core.share_class import BEST_EFFORT, HIGH, INTERACTIVE
from gpuloom.core.spec import OnPreempt
from gpuloom.executors.suspending import KEEP_MIB
from gpuloom.live.dispatch.dispatch import Dispatch
from gpuloom.live.planning.claims import State
from gpuloom.live.planning.eligible import blocked
from gpuloom.live.planning.planning import Planning
from gpuloom.live.records.fleet import Slot, slots_of, wanted_types
from gpuloom.live.records.ledger import Draft, Ledger
from gpuloom.live.sights import Sights
from gpuloom.placement.shapes import model_allowed

LONGEST_S = 3600.0
"""Time limit up to which room is made for an interactive job: others wait for its end."""
KEEPS_BACK = ("job.suspended", "job.resumed", "job.held", "job.released")
"""Events of which the last one of a job says whether it makes room."""
AGAIN_S = 5.0
"""Until room is looked for again where there was none: programs are rehearsed meanwhile, and memory comes free."""
MOST_LOOKED_AT = 12
"""Jobs of a node of which the best set is looked for, the smallest first."""


class Room:
    """Used by the scheduler's thread alone."""

    def __init__(self, ledger: Ledger, planning: Planning, dispatch: Dispatch, sights: Sights) -> None:
        self._ledger, self._planning, self._dispatch, self._sights = ledger, planning, dispatch, sights
        self._made: set[int] = set()
        """Waiting jobs for which room was made."""
        self._again_s: dict[int, float] = {}
        """Those for which there was none to be made, and when it is looked for again."""
        self._passed: set[int] = set()
        """Of these, those that could have had a GPU beside a best-effort job: the policy was asked first."""
        self._hurried: set[int] = set()
        """Waiting jobs for which room is to be made."""
        ledger.book.watch(self._changed)
        for job in ledger.book.jobs.values():
            if job.suspended or job.phase is Phase.HELD:
                for event in ledger.store.events(job=job.id, types=KEEPS_BACK, limit=1, newest=True):
                    if (other := event.data.get("for")) is not None:
                        planning.scene.room[job.id] = other
                        self._made.add(other)

    def look(self, now_s: float) -> None:
        """Let go on who need not make room any more, and make room. Raises StoreError."""
        if self._planning.scene.room:
            self._give_back()
        jobs = self._ledger.book.jobs
        self._made.intersection_update(jobs)
        self._passed &= self._hurried
        self._again_s = {number: due_s for number, due_s in self._again_s.items() if number in self._hurried}
        waiting = [jobs[number] for number in self._hurried if number not in self._made]
        for job in sorted(waiting, key=lambda job: (-job.priority, job.submitted_s, job.id)):
            if job.id in self._planning.claims.grants or blocked(job, jobs, now_s):
                continue
            free = self._planning.scene.free_slots
            if self._starts_on_free(job, free):
                continue
            if self._may_share(job) and (job.id not in self._passed or self._planning.times.again):
                self._passed.add(job.id)
                due_s = max(now_s, self._planning.due_s())  # once the pass that is due has been made
                self._dispatch.retry_s = min(self._dispatch.retry_s, due_s)
                continue
            if (due_s := self._again_s.get(job.id, now_s)) > now_s:
                self._dispatch.retry_s = min(self._dispatch.retry_s, due_s)
                continue
            if found := self._least(job, free):
                self._made.add(job.id)
                drafts: list[Draft] = [("job.suspended", number, {"for": job.id}) for number in found]
                self._ledger.write(drafts)
                self._planning.scene.room.update(dict.fromkeys(found, job.id))
                self._dispatch.suspend(found, now_s)
                self._planning.stale()
            else:
                self._again_s[job.id] = now_s + AGAIN_S
                self._dispatch.retry_s = min(self._dispatch.retry_s, now_s + AGAIN_S)

    def _changed(self, jobs: Iterable[Job]) -> None:
        for job in jobs:
            if job.phase is Phase.QUEUED and hurries(job):
                self._hurried.add(job.id)
            else:
                self._hurried.discard(job.id)

    def _give_back(self) -> None:
        """Jobs that were suspended for one that has ended, is kept back, or runs elsewhere go on."""
        room, jobs = self._planning.scene.room, self._ledger.book.jobs
        over: list[Draft] = []
        for number, other in list(room.items()):
            job = jobs.get(number)
            if (
                job is None or job.phase in ENDED or not (job.suspended or job.phase is Phase.HELD)
            ):  # or resumed by hand
                del room[number]
            elif self._needs(jobs.get(other), number):
                continue
            elif job.phase in (Phase.RUNNING, Phase.FROZEN, Phase.STOPPING):
                over.append(("job.resumed", number, {}))
            elif job.phase is Phase.HELD:  # it could not be suspended, and was told to end
                over.append(("job.released", number, {}))
        if over:
            self._ledger.write(over)
            for _, back, _ in over:
                if back is not None:
                    room.pop(back, None)
                    self._planning.asks_anew(back)
            self._planning.stale()

    def _needs(self, other: Job | None, number: int) -> bool:
        """Whether a job still needs the GPUs of the one that made room for it."""
        if other is None or other.phase in ENDED or other.phase is Phase.HELD:
            return False
        attempt = self._ledger.book.attempts.get(other.id)
        has = self._planning.claims.grants.get(other.id) or (attempt.allocation if attempt is not None else None)
        gave = self._ledger.book.attempts.get(number)
        if has is None or gave is None:
            return True
        return not set(slots_of(gave.allocation)).isdisjoint(slots_of(has))

    def _starts_on_free(self, job: Job, free: Collection[Slot]) -> bool:
        """Whether it needs nobody's GPUs."""
        nodes = self._ledger.book.nodes
        fitting = [slot for slot in free if _fits(job, nodes[slot[0]], slot[1])]
        return len(fitting) >= job.gpus

    def _may_share(self, job: Job) -> bool:
        """Whether it may run beside a best-effort job that has a GPU for itself."""
        if job.spec.sharing_class != HIGH or not self._planning.policy.pairs:
            return False
        book = self._ledger.book
        used = Counter(slot for attempt in book.attempts.values() for slot in slots_of(attempt.allocation))
        return any(
            book.jobs[number].spec.sharing_class == BEST_EFFORT
            and all(used[slot] == 1 for slot in slots_of(attempt.allocation))
            for number, attempt in book.attempts.items()
        )

    def _least(self, job: Job, free: Collection[Slot]) -> Sequence[int]:
        """The jobs of a node that have least on their GPUs, and make enough room; none: there are none."""
        best: tuple[float, Sequence[int]] | None = None
        open_slots = self._planning.scene.open_slots
        for node in self._ledger.book.nodes.values():
            there = {slot for slot in free if slot[0] == node.name and _fits(job, node, slot[1])}
            able = self._able(job, node, open_slots)
            needed, room_mib = job.gpus - len(there), self._sights.free_mib(node)
            for count in range(1, min(len(able), needed) + 1):
                for some in combinations(able, count):
                    mib = sum(able[number][1] for number in some)
                    if sum(able[number][0] for number in some) < needed or (
                        room_mib is not None and mib + KEEP_MIB > room_mib
                    ):
                        continue
                    if best is None or mib < best[0]:
                        best = mib, some
        return () if best is None else best[1]

    def _able(self, job: Job, node: NodeRecord, open_slots: Collection[Slot]) -> Mapping[int, tuple[int, float]]:
        """GPUs that this job can have, and MiB on them, of each job of the node that would lose nothing."""
        book, scene = self._ledger.book, self._planning.scene
        on: dict[Slot, list[int]] = {}
        for number, attempt in book.attempts.items():
            for slot in slots_of(attempt.allocation) if attempt.phase is not Phase.FROZEN else ():
                on.setdefault(slot, []).append(number)
        found: dict[int, tuple[int, float]] = {}
        for number, attempt in book.attempts.items():
            other, slots = book.jobs[number], slots_of(attempt.allocation)
            if (
                self._planning.claims.state(number) is not State.RUNNING
                or attempt.nodes != (node.name,)
                or other.priority >= job.priority
                or number in self._planning.claims.grants
                or any(len(on[slot]) > 1 or slot not in open_slots for slot in slots)
                or scene.rehearsals.way(other, attempt) is not OnPreempt.SUSPEND
            ):
                continue
            mib = scene.rehearsals.mib(other, attempt)
            usable = sum(1 for _, gpu in slots if _fits(job, node, gpu))
            if usable and mib is not None:
                found[number] = usable, mib
        return dict(sorted(found.items(), key=lambda item: item[1][1])[:MOST_LOOKED_AT])


def hurries(job: Job) -> bool:
    """Whether room is made for a job."""
    return job.spec.task_type == INTERACTIVE and job.spec.time_limit is not None and job.spec.time_limit <= LONGEST_S


def _fits(job: Job, node: NodeRecord, index: int) -> bool:
    """Whether the job may have this GPU."""
    gpu = next(one for one in node.gpus if one.index == index)
    memory_mib = job.spec.gpu_memory
    enough = memory_mib is None or gpu.memory_mib is None or gpu.memory_mib >= memory_mib
    return enough and model_allowed(wanted_types(job.spec), gpu.model)
