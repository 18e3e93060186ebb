"""The records of live jobs, built from events. The only place where they change.

`Book.stage(events)` works out the new records, `Book.commit` puts them in place. Between the two a store writes events
and records down, so that memory is never ahead of the disk. Replaying a log from its first event on an empty book gives
the same records (`gpuloom db check` does that).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from operator import attrgetter
from typing import Any

from gpuloom.core.errors import InvalidTransition
from gpuloom.core.events import Event
from gpuloom.core.job import (
    ENDED,
    RESET_WORDS,
    TRANSITIONS,
    Allocation,
    Attempt,
    DeviceKind,
    EndReason,
    Gpu,
    GpuState,
    Job,
    Member,
    Needed,
    NodeRecord,
    NodeSource,
    NodeState,
    Phase,
    SavedBy,
    gpus_in,
)
from gpuloom.core.kept import kept_of
from gpuloom.core.pace import RanOn
from gpuloom.core.spec import Spec, spec_of


@dataclass(slots=True)
class Changes:
    """The records that some events change, as they are afterwards.

    specs: by number of the event that brought them. settings: 'policy', 'interval_s'. next_job: the next free number.
    environments: values of environment variables by spec; no event tells them (core/masked.py).
    """

    specs: dict[int, Spec] = field(default_factory=dict)
    jobs: dict[int, Job] = field(default_factory=dict)
    attempts: dict[tuple[int, int], Attempt] = field(default_factory=dict)
    nodes: dict[str, NodeRecord] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    next_job: int | None = None
    environments: dict[int, Mapping[str, str]] = field(default_factory=dict)


class Book:
    """Jobs by number, the open attempt of each active job, nodes, settings."""

    def __init__(self) -> None:
        self.jobs: dict[int, Job] = {}
        self.attempts: dict[int, Attempt] = {}
        self.nodes: dict[str, NodeRecord] = {}
        self.settings: dict[str, Any] = {}
        self.next_job = 1
        self._watch: list[Callable[[Iterable[Job]], None]] = []

    def watch(self, call: Callable[[Iterable[Job]], None]) -> None:
        """Call `call` with jobs that are new or changed: first with all, then at each commit."""
        call(self.jobs.values())
        self._watch.append(call)

    def stage(self, events: Iterable[Event]) -> Changes:
        """Compute what these events change. The book itself stays as it is.

        Raises:
            InvalidTransition: an event can't come in the job's phase; with the job's story.
        """
        view = _View(self)
        for event in events:
            _REDUCERS.get(event.type, _nothing)(view, event)
        return view.changes

    def commit(self, changes: Changes) -> None:
        """Put staged changes in place."""
        self.jobs.update(changes.jobs)
        for (job, _), attempt in changes.attempts.items():
            if attempt.phase is None:
                self.attempts.pop(job, None)
            else:
                self.attempts[job] = attempt
        self.nodes.update(changes.nodes)
        self.settings.update(changes.settings)
        if changes.next_job is not None:
            self.next_job = changes.next_job
        for call in self._watch:
            call(changes.jobs.values())

    def copy(self) -> Book:
        """The same records in a book of its own."""
        twin = Book()
        twin.jobs, twin.attempts, twin.nodes = dict(self.jobs), dict(self.attempts), dict(self.nodes)
        twin.settings, twin.next_job = dict(self.settings), self.next_job
        return twin

    def forget(self, job: int) -> None:
        """Drop the record of an ended job from memory."""
        if self.jobs[job].phase in ENDED:
            del self.jobs[job]


class _View:
    """The book with changes laid over it."""

    def __init__(self, book: Book) -> None:
        self.book, self.changes = book, Changes()

    def job(self, event: Event) -> Job:
        job = self.changes.jobs.get(event.job or 0) or self.book.jobs.get(event.job or 0)
        if job is None:
            raise InvalidTransition(f"event {event.id} ({event.type}) is about job {event.job}, which does not exist")
        before, _ = TRANSITIONS[event.type]
        if job.phase not in before:
            raise InvalidTransition(f"{event.type} can't come to {story(job)}; it must be {_or(before)}")
        return job

    def attempt(self, job: Job) -> Attempt:
        attempt = self.changes.attempts.get((job.id, job.attempts)) or self.book.attempts.get(job.id)
        if attempt is None:
            raise InvalidTransition(f"no attempt is open of {story(job)}")
        return attempt

    def put(self, event: Event, job: Job, **changes: Any) -> Job:
        job = _other(job, cause=event.id, **changes)
        _, after = TRANSITIONS[event.type]
        if job.phase not in after:
            raise InvalidTransition(f"{event.type} can't lead to {job.phase}, only to {_or(after)}: {story(job)}")
        self.changes.jobs[job.id] = job
        return job

    def put_attempt(self, event: Event, attempt: Attempt, **changes: Any) -> Attempt:
        attempt = replace(attempt, cause=event.id, **changes)
        self.changes.attempts[attempt.job, attempt.number] = attempt
        return attempt


_FIELDS = tuple(field.name for field in fields(Job))
_values = attrgetter(*_FIELDS)
_AT = {name: index for index, name in enumerate(_FIELDS)}


def _other(job: Job, **changes: Any) -> Job:
    """Like `dataclasses.replace`, in half the time: an array may change a hundred thousand jobs at once."""
    values = list(_values(job))
    for name, value in changes.items():
        values[_AT[name]] = value
    return Job(*values)


def story(job: Job) -> str:
    """What is known of a job, for messages."""
    return (
        f"job {job.id} ({job.name}, {job.phase}): submitted at {job.submitted_s:.3f}, {job.attempts} attempts, "
        f"held GPUs for {job.held_s:.3f} s, last changed by event {job.cause}"
    )


def _or(phases: Iterable[Phase]) -> str:
    return " or ".join(sorted(phases))


# -- one function per type of event ---------------------------------------------------------------------------


def _nothing(view: _View, event: Event) -> None:
    pass


def _submitted(view: _View, event: Event) -> None:
    data, changes = event.data, view.changes
    spec = spec_of(data["spec"])
    first, indices = int(data["first"]), data.get("indices")
    changes.specs[event.id] = spec
    own_name = str(data.get("name") or spec.name)
    next_job = view.book.next_job if changes.next_job is None else changes.next_job
    if first < next_job:
        raise InvalidTransition(f"event {event.id} submits job {first}, but numbers up to {next_job - 1} are taken")
    for offset in range(int(data["count"])):
        index = None if indices is None else int(indices[offset])
        estimate_s, source = data["estimates"][min(offset, len(data["estimates"]) - 1)]
        job = first + offset
        changes.jobs[job] = Job(
            id=job,
            name=own_name if index is None else f"{own_name}[{index}]",
            user=str(data["user"]),
            gpus=spec.gpus,
            priority=spec.priority,
            phase=Phase.HELD if data["held"] else Phase.QUEUED,
            spec_id=event.id,
            spec=spec,
            submitted_s=event.at_s,
            queued_s=event.at_s,
            array_id=None if index is None else first,
            array_index=index,
            after=tuple((int(other), Needed(how)) for other, how in data["after"]),
            estimate_s=float(estimate_s),
            estimate_from=str(source),
            cause=event.id,
        )
    changes.next_job = first + int(data["count"])


def _held(view: _View, event: Event) -> None:
    view.put(event, view.job(event), phase=Phase.HELD)


def _released(view: _View, event: Event) -> None:
    view.put(event, view.job(event), phase=Phase.QUEUED, queued_s=event.at_s)


def _suspended(view: _View, event: Event) -> None:
    view.put(event, view.job(event), suspended=True)


def _resumed(view: _View, event: Event) -> None:
    view.put(event, view.job(event), suspended=False)


def _updated(view: _View, event: Event) -> None:
    job, data, specs = view.job(event), event.data, view.changes.specs
    shared = data.get("spec_of")
    if shared is None:
        spec = specs[event.id] = spec_of(data["spec"])
    else:
        spec = specs.get(shared) or spec_of({**job.spec.to_json(), **data["changes"]})
    name = str(data.get("name") or spec.name)
    view.put(
        event,
        job,
        spec=spec,
        spec_id=event.id if shared is None else int(shared),
        name=name if job.array_index is None else f"{name}[{job.array_index}]",
        gpus=spec.gpus,
        priority=spec.priority,
        after=tuple((int(other), Needed(how)) for other, how in data["after"]),
        estimate_s=float(data["estimate_s"]),
        estimate_from=str(data["estimate_from"]),
    )


def _cancelled(view: _View, event: Event) -> None:
    view.put(
        event,
        view.job(event),
        phase=Phase.CANCELLED,
        ended_s=event.at_s,
        reason=EndReason(event.data.get("reason", EndReason.CANCELLED)),
        message=str(event.data.get("message", "")),
    )


def _requeued(view: _View, event: Event) -> None:
    view.put(
        event,
        view.job(event),
        phase=Phase.QUEUED,
        # The job begins anew; what it took so far stays with its attempts and in the log.
        submitted_s=event.at_s,
        queued_s=event.at_s,
        first_start_s=None,
        not_before_s=0.0,
        ended_s=None,
        failures=0,
        held_s=0.0,
        held_gpu_s=0.0,
        work_s=0.0,
        work_on={},
        flags={},
    )


def _flagged(view: _View, event: Event) -> None:
    job = view.job(event)
    flags = dict(job.flags)
    flag, text = str(event.data["flag"]), str(event.data["text"])
    if text:
        flags[flag] = text
    else:
        flags.pop(flag, None)
    view.put(event, job, flags=flags)


def _starting(view: _View, event: Event) -> None:
    job, number = view.job(event), int(event.data["attempt"])
    if number != job.attempts + 1:
        raise InvalidTransition(f"attempt {number} can't follow attempt {job.attempts} of {story(job)}")
    first = event.at_s if job.first_start_s is None else job.first_start_s
    view.put(event, job, phase=Phase.STARTING, attempts=number, first_start_s=first, flags={})
    allocation = allocation_of(event.data["allocation"])
    gang = len(allocation) > 1
    view.put_attempt(
        event,
        Attempt(
            job.id,
            number,
            Phase.STARTING,
            allocation,
            event.at_s,
            event.at_s,
            identity=str(event.data.get("identity", "")),
            gpu_model=str(event.data.get("gpu_model", "")),
            members=tuple(Member(node, gpus) for node, gpus in allocation) if gang else (),
        ),
    )


def _running(view: _View, event: Event) -> None:
    job, data = view.job(event), event.data
    attempt = view.attempt(job)
    members = _begun(attempt.members, data["members"]) if "members" in data else attempt.members
    view.put(event, job, phase=Phase.RUNNING)
    view.put_attempt(
        event,
        attempt,
        phase=Phase.RUNNING,
        running_s=event.at_s,
        members=members,
        pid=data.get("pid"),
        start_ticks=data.get("start_ticks"),
        boot_id=data.get("boot_id"),
    )


def _stopping(view: _View, event: Event) -> None:
    job = view.job(event)
    attempt = view.attempt(job)
    # A frozen job has held nothing since it was frozen.
    changes = {"since_s": event.at_s} if attempt.phase is Phase.FROZEN else {}
    deadline = event.data.get("deadline_s")
    view.put(event, job, phase=Phase.STOPPING)
    view.put_attempt(
        event,
        attempt,
        phase=Phase.STOPPING,
        stop_reason=EndReason(event.data["reason"]),
        deadline_s=None if deadline is None else float(deadline),
        **changes,
    )


def _frozen(view: _View, event: Event) -> None:
    job = view.job(event)
    attempt = view.attempt(job)
    held = max(event.at_s - attempt.since_s, 0.0)
    view.put_attempt(event, attempt, phase=Phase.FROZEN, held_s=attempt.held_s + held, since_s=event.at_s)
    view.put(
        event,
        job,
        phase=Phase.FROZEN,
        queued_s=event.at_s,
        held_s=job.held_s + held,
        held_gpu_s=job.held_gpu_s + held * gpus_in(attempt.allocation),
    )


def _thawed(view: _View, event: Event) -> None:
    job = view.job(event)
    allocation = allocation_of(event.data["allocation"])
    view.put_attempt(event, view.attempt(job), phase=Phase.RUNNING, since_s=event.at_s, allocation=allocation)
    view.put(event, job, phase=Phase.RUNNING)


def _ended(view: _View, event: Event) -> None:
    job, data = view.job(event), event.data
    attempt = view.attempt(job)
    at = float(data.get("ended_s") or event.at_s)
    held = 0.0 if attempt.phase is Phase.FROZEN else max(at - attempt.since_s, 0.0)
    reason, after = EndReason(data["reason"]), Phase(data["next"])
    begun = data.get("began", True) or job.first_start_s != attempt.started_s
    code = data.get("exit_code")
    view.put_attempt(
        event,
        attempt,
        phase=None,
        members=_over(attempt.members, data["members"]) if "members" in data else attempt.members,
        ended_s=at,
        reason=reason,
        exit_code=code,
        signal=data.get("signal"),
        saved=bool(data.get("saved", False)),
        saved_by=SavedBy(data.get("saved_by", "")),
        held_s=attempt.held_s + held,
        work_s=float(data["work_s"]),
        message=str(data.get("message", "")),
        peak_memory_mib=data.get("peak_memory_mib"),
        it_per_s=data.get("it_per_s"),
        kept=kept_of(data.get("kept")),
        gpu_memory_mib=data.get("gpu_memory_mib"),
    )
    view.put(
        event,
        job,
        phase=after,
        queued_s=at if after not in ENDED else job.queued_s,
        not_before_s=float(data.get("not_before_s") or 0.0),
        first_start_s=job.first_start_s if begun else None,
        ended_s=at if after in ENDED else None,
        failures=job.failures + bool(data.get("failure", False)),
        held_s=job.held_s + held,
        held_gpu_s=job.held_gpu_s + held * gpus_in(attempt.allocation),
        work_s=float(data["work_s"]),
        work_on=_work_on(job, attempt, float(data["work_s"])),
        reason=reason,
        exit_code=code,
        message=str(data.get("message", "")),
        flags={},
        suspended=False,
    )


def _work_on(job: Job, attempt: Attempt, work_s: float) -> Mapping[str, float]:
    """A job's work by GPU model and size, with what an attempt there has brought it to."""
    if work_s == 0.0:
        return {}
    gained = work_s - job.work_s
    where = str(RanOn(attempt.gpu_model, gpus_in(attempt.allocation) if job.spec.elastic else None))
    if not where or gained <= 0.0:
        return job.work_on
    return {**job.work_on, where: job.work_on.get(where, 0.0) + gained}


def _node(view: _View, event: Event) -> None:
    node = node_of(event.data["node"])
    view.changes.nodes[node.name] = replace(node, cause=event.id)


def _policy(view: _View, event: Event) -> None:
    view.changes.settings.update(policy=str(event.data["policy"]), interval_s=float(event.data["interval_s"]))


_REDUCERS: Mapping[str, Callable[[_View, Event], None]] = {
    "jobs.submitted": _submitted,
    "job.held": _held,
    "job.released": _released,
    "job.suspended": _suspended,
    "job.resumed": _resumed,
    "job.updated": _updated,
    "job.cancelled": _cancelled,
    "job.requeued": _requeued,
    "job.flagged": _flagged,
    "attempt.starting": _starting,
    "attempt.running": _running,
    "attempt.stopping": _stopping,
    "attempt.frozen": _frozen,
    "attempt.thawed": _thawed,
    "attempt.ended": _ended,
    "node.changed": _node,
    "policy.set": _policy,
}


# -- JSON ------------------------------------------------------------------------------------------------------


def allocation_of(data: Iterable[Any]) -> Allocation:
    """An allocation from its JSON form [[node, [gpu, …]], …]."""
    return tuple((str(node), tuple(int(gpu) for gpu in gpus)) for node, gpus in data)


def node_of(data: Mapping[str, Any]) -> NodeRecord:
    """A node's record from its JSON form."""
    return NodeRecord(
        **{
            **data,
            "gpus": tuple(_gpu_of(gpu) for gpu in data["gpus"]),
            "state": NodeState(data.get("state", NodeState.UP)),
            "kind": DeviceKind(data.get("kind", DeviceKind.GPU)),
            "topology": tuple((int(a), int(b), str(link)) for a, b, link in data.get("topology", ())),
            "source": NodeSource(data.get("source", NodeSource.HERE)),
        }
    )


def _gpu_of(data: Mapping[str, Any]) -> Gpu:
    # Older stores lack the field; there only the last words of the reason tell it.
    needs_reset = data.get("needs_reset", RESET_WORDS in data.get("reason", ""))
    return Gpu(**{**data, "state": GpuState(data.get("state", GpuState.OK)), "needs_reset": needs_reset})


def node_data(node: NodeRecord) -> dict[str, Any]:
    """A node's record in its JSON form, for events and the store."""
    data = {name: getattr(node, name) for name in _OF_NODE}
    data["gpus"] = [_gpu_data(gpu) for gpu in node.gpus]
    for name, usual in _USUAL:
        if data[name] == usual:
            del data[name]
    return data


def _gpu_data(gpu: Gpu) -> dict[str, Any]:
    data = {name: getattr(gpu, name) for name in _OF_GPU}
    if not data["needs_reset"]:
        del data["needs_reset"]
    return data


_OF_NODE = tuple(f.name for f in fields(NodeRecord) if f.name != "cause")
_OF_GPU = tuple(f.name for f in fields(Gpu))
_USUAL = tuple(
    (f.name, f.default) for f in fields(NodeRecord) if f.name in ("source", "address", "until_s", "engine_job")
)
"""Of a node, what its JSON form has only where it is another: older stores know nothing of it."""


def members_of(data: Iterable[Mapping[str, Any]]) -> tuple[Member, ...]:
    """The members of an attempt from their JSON form, which leaves out what is as usual."""
    return tuple(
        Member(
            **{
                **one,
                "gpus": tuple(one["gpus"]),
                "reason": None if one.get("reason") is None else EndReason(one["reason"]),
            }
        )
        for one in data
    )


def members_data(members: Iterable[Member]) -> list[dict[str, Any]]:
    """Members in their JSON form."""
    return [
        {
            one.name: getattr(member, one.name)
            for one in fields(Member)
            if one.default is MISSING or getattr(member, one.name) != one.default
        }
        for member in members
    ]


def _begun(members: tuple[Member, ...], told: Iterable[Sequence[Any]]) -> tuple[Member, ...]:
    """Members of a gang that runs. told: (pid, start_ticks, boot_id) of each."""
    return tuple(
        replace(member, pid=pid, start_ticks=ticks, boot_id=boot)
        for member, (pid, ticks, boot) in zip(members, told, strict=True)
    )


def _over(members: tuple[Member, ...], told: Iterable[Mapping[str, Any]]) -> tuple[Member, ...]:
    """Members of a gang that ended. told: how each ended."""
    return tuple(
        replace(member, **{**how, "reason": EndReason(how["reason"])})
        for member, how in zip(members, told, strict=True)
    )
