"""From the jobs of a cluster that is watched, as they stand, to the events that make records of them.

What the cluster shows is compared with what the records have, and the events that lie between are made, dated as the
cluster's clocks have it. So what was missed (a watch that was cut, hours in which nobody watched) is caught up with,
and nothing is written twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import NamedTuple

from gpuloom.agent.inventory import model_name
from gpuloom.core.book import node_data
from gpuloom.core.end_reason import EndReason
from gpuloom.core.job import ACTIVE, ENDED, Allocation, Gpu, GpuState, Job, NodeRecord, NodeSource, NodeState, Phase
from gpuloom.core.spec import Spec
from gpuloom.core.sums import sum_ints
from gpuloom.kubernetes.jobs import Ended, Part, Standing, State, base_name
from gpuloom.kubernetes.objects import NodeSeen, Toleration
from gpuloom.live.planning.cluster_jobs import submitted, updated
from gpuloom.live.planning.estimates import Estimates
from gpuloom.live.records.fleet import model_of
from gpuloom.live.records.ledger import Draft, Ledger
from gpuloom.store.port import Submission

_GONE = "its pods were deleted"
_LEFT = "it is not in the cluster any more"


class _At(IntEnum):
    """The order of what happens at one moment: GPUs are left before others get them."""

    ENDS = 0
    ASKS = 1
    STARTS = 2
    RUNS = 3
    ENDS_AT_ONCE = 4


class _Step(NamedTuple):
    """Something that happened to a job. make: its event, once all before it are made."""

    at_s: float
    order: _At
    make: Callable[[], Draft]


@dataclass(frozen=True, slots=True)
class Caught:
    """What lies between the records and the cluster: events with their times, submissions with the keys by which jobs
    are known again; by job, what the cluster has to say of one that waits, and how each that has not ended stands."""

    drafts: Sequence[Draft] = ()
    at_s: Sequence[float] = ()
    submissions: Sequence[Submission] = ()
    says: Mapping[int, str] = field(default_factory=dict)
    standing: Mapping[int, Standing] = field(default_factory=dict)


class WatchedJobs:
    """Used by the scheduler's thread alone.

    Kubernetes gives GPUs away by number only: which ones a pod has is made up here, the free ones of lowest index.
    """

    def __init__(self, ledger: Ledger, estimates: Estimates) -> None:
        self._ledger, self._estimates = ledger, estimates
        self._numbers: dict[str, int] = {}
        self._over: set[str] = set()
        """Keys of what has ended, as long as it is there to be seen."""
        self._pods: dict[int, frozenset[str]] = {}
        """By job that holds GPUs: uids of its pods, where they have been seen since this process began."""

    def catch_up(self, standings: Iterable[Standing], nodes: Sequence[NodeSeen], now_s: float) -> Caught:
        """All that has happened since the records were written. now_s: of the ledger's clock."""
        return _Look(self, self._ledger, self._estimates, now_s).caught(list(standings), nodes)

    def written(self, caught: Caught) -> None:
        """It is in the records now."""
        for one in caught.submissions:
            self._numbers[one.key] = one.jobs[0]
        self._pods = {
            number: frozenset(part.uid for part in one.parts)
            for number, one in caught.standing.items()
            if one.state is State.HOLDS
        }

    def number_of(self, key: str) -> int | None:
        """The job that is known by this key."""
        found = self._numbers.get(key)
        if found is None and (stored := self._ledger.store.submission(key)) is not None:
            found = self._numbers[key] = stored.jobs[0]
        return found

    def is_over(self, key: str) -> bool:
        return key in self._over

    def goes_over(self, key: str) -> None:
        self._over.add(key)

    def only(self, keys: set[str]) -> None:
        """Nothing else is to be seen any more."""
        self._over &= keys
        self._numbers = {key: number for key, number in self._numbers.items() if key in keys}

    def same(self, number: int, parts: Sequence[Part], allocation: Allocation) -> bool:
        """Whether the job has the pods that it had, or, if these were never seen, as many GPUs on the same nodes."""
        if (known := self._pods.get(number)) is not None:
            return known == {part.uid for part in parts}
        return _by_node(parts) == {node: len(gpus) for node, gpus in allocation}

    def shares(self, number: int, parts: Sequence[Part]) -> bool:
        """Whether it has a pod that it had before."""
        return not self._pods.get(number, frozenset()).isdisjoint(part.uid for part in parts)


class _Look:
    """One comparison."""

    def __init__(self, known: WatchedJobs, ledger: Ledger, estimates: Estimates, now_s: float) -> None:
        self._known, self._book, self._store, self._estimates = known, ledger.book, ledger.store, estimates
        self._now_s, self._next = now_s, ledger.book.next_job
        self._steps: list[_Step] = []
        self._from_s = -math.inf
        """When the last thing happened to the job at hand."""
        self._submissions: list[Submission] = []
        self._standing: dict[int, Standing] = {}
        self._seen: set[int] = set()
        """Jobs of which something is there."""
        self._nodes: dict[str, NodeRecord] = dict(ledger.book.nodes)
        self._held: dict[str, dict[int, int]] = {}
        """By node: the job that has a GPU, by index."""
        self._has: dict[int, Allocation] = {}
        """The same by job."""
        for number, attempt in ledger.book.attempts.items():
            self._hold(number, attempt.allocation)
        self._models: dict[str, str] = {}
        self._ending: set[int] = set()
        """Jobs whose run ends, by an event that is still to be made."""
        self._starts: dict[str, float] = {}
        """By node, when the first pod came to it since the last look."""

    def caught(self, standings: list[Standing], nodes: Sequence[NodeSeen]) -> Caught:
        self._see_models(nodes)
        self._known.only({one.key for one in standings})
        self._see_starts(standings)
        for one in sorted(standings, key=lambda one: (one.submitted_s, one.namespace, one.name)):
            self._take(one)
        for number, job in self._book.jobs.items():
            if job.phase not in ENDED and number not in self._seen:
                self._vanished(number, job)
        tolerated = {each for one in standings for each in one.asked.tolerations}
        room = self._room(standings)
        first_s = min([step.at_s for step in self._steps], default=self._now_s)
        drafts: list[Draft] = []
        times: list[float] = []
        for record in self._records(nodes, tolerated, room):
            self._nodes[record.name] = record
            drafts.append(("node.changed", None, {"node": node_data(record)}))
            times.append(self._now_s if self._book.nodes else first_s)
        for step in sorted(self._steps, key=lambda step: step[:2]):
            drafts.append(step.make())
            times.append(step.at_s)
        says = {number: one.waits for number, one in self._standing.items() if one.waits}
        return Caught(drafts, times, self._submissions, says, self._standing)

    def _see_starts(self, standings: Sequence[Standing]) -> None:
        """When pods came to nodes since the last look."""
        for one in standings:
            if one.began_s is None or self._is_as_before(one):
                continue
            for part in one.parts:
                self._starts[part.node] = min(self._starts.get(part.node, math.inf), one.began_s)

    def _is_as_before(self, one: Standing) -> bool:
        """Whether a job holds the GPUs that the records have."""
        number = self._known.number_of(one.key)
        attempt = None if number is None else self._book.attempts.get(number)
        if number is None or attempt is None:
            return self._known.is_over(one.key)
        return one.state is State.HOLDS and self._known.same(number, one.parts, attempt.allocation)

    def _left_s(self, allocation: Allocation) -> float:
        """When GPUs were left, if nobody tells: before others came to their nodes, else now."""
        return min([self._starts[node] for node, _ in allocation if node in self._starts], default=self._now_s)

    # -- nodes --------------------------------------------------------------------------------------------------

    def _see_models(self, nodes: Sequence[NodeSeen]) -> None:
        for node in nodes:
            if node.model:
                self._models[node.model] = model_name(node.model, node.memory_mib)

    def _room(self, standings: Sequence[Standing]) -> Mapping[str, int]:
        """GPUs that pods have on each node: more than it offers, where it offers less than before."""
        found: dict[str, int] = {}
        for one in standings:
            for part in one.parts if one.state is State.HOLDS else ():
                found[part.node] = found.get(part.node, 0) + part.gpus
        return found

    def _records(
        self, nodes: Sequence[NodeSeen], tolerated: set[Toleration], room: Mapping[str, int]
    ) -> Iterable[NodeRecord]:
        """Records of nodes that are other than before."""
        for node in nodes:
            before = self._book.nodes.get(node.name)
            record = self._record(node, tolerated, room.get(node.name, 0), before)
            if before is None or replace(before, cause=0) != record:
                yield record
        there = {node.name for node in nodes}
        for name, known in self._book.nodes.items():
            if name in there or known.state is NodeState.DOWN:
                continue
            busy = name in room
            state = NodeState.CORDONED if busy else NodeState.DOWN
            if (known.state, known.reason) != (state, _LEFT):
                yield replace(known, state=state, reason=_LEFT, since_s=self._now_s, cause=0)

    def _record(self, node: NodeSeen, tolerated: set[Toleration], used: int, before: NodeRecord | None) -> NodeRecord:
        why = node.away
        kept = [taint for taint in node.taints if not any(one.bears(taint) for one in tolerated)]
        if not why and kept:
            why = f"tainted {kept[0]}, which no pod with GPUs tolerates"
        whole = max(node.whole, used, len(before.gpus) if before is not None and used > node.whole else 0)
        held = self._held.get(node.name, {})
        spare = [index for index in reversed(range(whole)) if index not in held]
        ill = set(spare[: max(whole - node.gpus, 0)]) if whole > node.gpus else set()
        model = self._models.get(node.model, "") or "GPU"
        known = {} if before is None else {gpu.index: gpu for gpu in before.gpus}
        gpus = []
        for index in range(whole):
            gpu = Gpu(index, f"{node.name}/{index}", model, node.share_mib)
            if index in ill:
                text = f"the node offers {node.gpus} of its {node.whole} GPUs" if whole == node.whole else "not offered"
                was = known.get(index)
                since_s = was.since_s if was is not None and was.state is GpuState.UNHEALTHY else self._now_s
                gpu = replace(gpu, state=GpuState.UNHEALTHY, reason=text, since_s=since_s)
            gpus.append(gpu)
        state = NodeState.CORDONED if why else NodeState.UP
        since_s = node.since_s
        if before is not None and (before.state, before.reason) == (state, why):
            since_s = before.since_s
        elif since_s is None:
            since_s = self._now_s if why or before is not None else None
        return NodeRecord(
            name=node.name,
            gpus=tuple(gpus),
            state=state,
            reason=why,
            since_s=since_s,
            cpus=node.cpus,
            memory_mib=node.main_mib,
            source=NodeSource.KUBERNETES,
            address=node.address,
        )

    # -- jobs ---------------------------------------------------------------------------------------------------

    def _take(self, one: Standing) -> None:
        """What has happened to a job."""
        self._from_s = -math.inf
        number = self._known.number_of(one.key)
        job = None if number is None else self._book.jobs.get(number)
        if one.state is State.ENDED and (self._known.is_over(one.key) or (number is not None and job is None)):
            return
        if number is not None and job is None:  # it had ended long ago, and has begun anew
            job = self._store.job(number)
            if job is not None:
                self._book.jobs[number] = job
        if job is None:
            if one.state is State.ENDED and (one.began_s is None or not one.parts):
                self._known.goes_over(one.key)
                return
            number = self._next
            self._next += 1
            self._submit(number, one)
            phase, attempts, gpus = Phase.QUEUED, 0, one.gpus
        else:
            assert number is not None  # noqa: S101 - the job is known by it
            phase, attempts, gpus = job.phase, job.attempts, job.gpus
        self._seen.add(number)
        if one.state is State.ENDED:
            self._known.goes_over(one.key)
        else:
            self._standing[number] = one
        self._follow(number, job, one, phase, attempts, gpus)

    def _follow(self, number: int, job: Job | None, one: Standing, phase: Phase, attempts: int, gpus: int) -> None:
        """From where the records have it to where it stands."""
        if phase in ENDED:
            if one.state is State.ENDED:
                return
            self._add(one.began_s if one.state is State.HOLDS else None, _At.ASKS, ("job.requeued", number, {}))
            phase = Phase.QUEUED
        if phase in ACTIVE:
            attempt = self._book.attempts[number]
            if one.state is State.HOLDS and self._known.same(number, one.parts, attempt.allocation):
                return
            self._end(number, one, attempt.since_s, 0.0 if job is None else job.work_s, order=_At.ENDS)
            phase = Phase.QUEUED
        if one.state is State.WAITS:
            if job is not None and (gpus, job.priority) != (one.gpus, one.priority):
                self._add(None, _At.ASKS, self._asks(number, one, one.gpus))
            if one.held is not (phase is Phase.HELD):
                at_s = one.submitted_s if job is None else None
                self._add(at_s, _At.ASKS, ("job.held" if one.held else "job.released", number, {}))
            return
        if phase is Phase.HELD:
            self._add(one.began_s, _At.ASKS, ("job.released", number, {}))
        if one.began_s is None or not one.parts:  # it ended without having had a GPU, as far as is known
            if one.state is State.ENDED and job is not None:
                self._give_up(job, one)
            return
        if one.state is State.ENDED and job is not None and not self._is_new(job, one.began_s):
            return self._give_up(job, one)
        held = sum_ints(part.gpus for part in one.parts)
        if held != gpus:
            self._add(one.began_s, _At.ASKS, self._asks(number, one, held))
        self._start(number, one, attempts + 1)
        if one.state is State.ENDED:
            self._end(number, one, one.began_s, 0.0 if job is None else job.work_s, order=_At.ENDS_AT_ONCE)

    def _is_new(self, job: Job, began_s: float) -> bool:
        """Whether a run that began then is not in the records yet."""
        if job.phase in ACTIVE:
            return False
        known = self._store.attempts([job.id]) if job.attempts else ()
        return not known or began_s > known[-1].started_s

    def _give_up(self, job: Job, one: Standing) -> None:
        """Its last run is in the records, and it is not tried again."""
        if job.phase not in ACTIVE:
            ended = one.ended or Ended(EndReason.FAILED, None)
            data = {"message": ended.message or "it is not tried again", "reason": ended.reason.value}
            self._push(None, _At.ASKS, lambda: ("job.cancelled", job.id, data))

    def _submit(self, number: int, one: Standing) -> None:
        self._submissions.append(Submission(one.key, one.kind, (number,), one.submitted_s))
        spec = self._spec(one, one.gpus)
        self._add(one.submitted_s, _At.ASKS, submitted(number, one.namespace, spec, one.name, self._estimates))

    def _asks(self, number: int, one: Standing, gpus: int) -> Draft:
        return updated(number, one.namespace, self._spec(one, gpus), one.name, self._estimates)

    def _spec(self, one: Standing, gpus: int) -> Spec:
        asked = one.asked
        models = tuple(dict.fromkeys(self._models.get(name) or model_name(name, None) for name in asked.models))
        return Spec(
            command=tuple(filter(None, (asked.image, *asked.command))) or ("pod",),
            name=base_name(one.name),
            gpus=gpus,
            gpu_types=models,
            priority=one.priority,
            time_limit=asked.deadline_s,
            estimate=asked.estimate_s,
            container=asked.image or None,
        )

    def _start(self, number: int, one: Standing, attempt: int) -> None:
        def starting() -> Draft:
            allocation = self._free(number, one.parts)
            data = {
                "attempt": attempt,
                "allocation": [[node, list(gpus)] for node, gpus in allocation],
                "identity": "",
                "gpu_model": model_of(self._nodes, allocation),
            }
            return "attempt.starting", number, data

        assert one.began_s is not None  # noqa: S101 - who calls has looked
        self._push(one.began_s, _At.STARTS, starting)
        self._add(
            one.began_s, _At.RUNS, ("attempt.running", number, {"pid": None, "start_ticks": None, "boot_id": None})
        )

    def _free(self, number: int, parts: Sequence[Part]) -> Allocation:
        """GPUs for these pods: the free ones of lowest index on each node."""
        found = []
        for node, count in _by_node(parts).items():
            held = self._held.setdefault(node, {})
            record = self._nodes.get(node)
            well = [gpu.index for gpu in record.gpus if gpu.state is GpuState.OK] if record is not None else []
            free = [index for index in well if index not in held]
            # Clocks of a cluster differ: who leaves them may seem to do so a moment later.
            free += [index for index in well if held.get(index) in self._ending]
            free += [index for index in range(len(held) + len(well) + count) if index not in held and index not in well]
            found.append((node, tuple(sorted(free[:count]))))
        self._hold(number, tuple(found))
        return tuple(found)

    def _hold(self, number: int, allocation: Allocation) -> None:
        """A job has these GPUs from now on."""
        self._has[number] = allocation
        for node, gpus in allocation:
            self._held.setdefault(node, {}).update(dict.fromkeys(gpus, number))

    def _end(self, number: int, one: Standing, since_s: float, work_s: float, *, order: _At) -> None:
        """Its run has ended. work_s: of earlier runs."""
        ended, after = one.ended, _phase_after(one)
        if ended is None and one.state is State.HOLDS:
            shares = self._known.shares(number, one.parts)
            reason = EndReason.RESIZED if shares else EndReason.PREEMPTED
            # A pod that came tells when; of one that went nobody does.
            at_s = one.began_s if one.began_s is not None and one.began_s > since_s else None
            ended = Ended(reason, at_s, message="" if shares else "its pods were replaced")
        ended = ended or Ended(EndReason.PREEMPTED, None, message="its pods were taken away")
        attempt = self._book.attempts.get(number)
        left_s = self._now_s if attempt is None else self._left_s(attempt.allocation)
        at_s = max(min(left_s if ended.at_s is None else ended.at_s, self._now_s), since_s)
        well = ended.reason in (EndReason.FINISHED, EndReason.RESIZED)
        self._finish(number, ended, after, at_s, work_s + (at_s - since_s if well else 0.0), order)

    def _finish(self, number: int, ended: Ended, after: Phase, at_s: float, work_s: float, order: _At) -> None:
        data = {
            "reason": ended.reason.value,
            "exit_code": ended.exit_code,
            "signal": None,
            "message": ended.message,
            "saved": ended.reason is EndReason.RESIZED,
            "saved_by": "",
            "work_s": work_s,
            "peak_memory_mib": None,
            "next": after.value,
            "not_before_s": 0.0,
            "failure": after is Phase.FAILED,
            "ended_s": at_s,
        }

        self._ending.add(number)

        def end() -> Draft:
            self._ending.discard(number)
            for node, gpus in self._has.pop(number, ()):
                held = self._held[node]
                for index in gpus:
                    if held.get(index) == number:
                        del held[index]
            return "attempt.ended", number, data

        self._push(at_s, order, end)

    def _vanished(self, number: int, job: Job) -> None:
        """Nothing is left of a job."""
        self._from_s = -math.inf
        if job.phase in ACTIVE:
            ended = Ended(EndReason.CANCELLED, None, message=_GONE)
            attempt = self._book.attempts[number]
            at_s = max(self._left_s(attempt.allocation), attempt.since_s)
            self._finish(number, ended, Phase.CANCELLED, at_s, job.work_s, _At.ENDS)
        else:
            self._add(None, _At.ASKS, ("job.cancelled", number, {"message": _GONE, "reason": "cancelled"}))

    def _add(self, at_s: float | None, order: _At, draft: Draft) -> None:
        self._push(at_s, order, lambda: draft)

    def _push(self, at_s: float | None, order: _At, make: Callable[[], Draft]) -> None:
        """Something that happens to the job at hand, not before what has happened to it already. at_s: None: now."""
        at_s = self._now_s if at_s is None else min(at_s, self._now_s)
        self._from_s = max(self._from_s, at_s)
        self._steps.append(_Step(self._from_s, order, make))


def _by_node(parts: Iterable[Part]) -> dict[str, int]:
    found: dict[str, int] = {}
    for part in parts:
        found[part.node] = found.get(part.node, 0) + part.gpus
    return found


def _phase_after(one: Standing) -> Phase:
    if one.state is not State.ENDED or one.ended is None:
        return Phase.QUEUED
    match one.ended.reason:
        case EndReason.FINISHED:
            return Phase.FINISHED
        case EndReason.CANCELLED | EndReason.PREEMPTED:
            return Phase.CANCELLED
        case _:
            return Phase.FAILED
