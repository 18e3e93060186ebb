"""Events and stories of live jobs for tests of the book and of stores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import strategies as st

from gpuloom.core.book import Book
from gpuloom.core.events import Event
from gpuloom.core.job import ACTIVE, ENDED, TRANSITIONS, WAITING, EndReason, Job, Phase
from gpuloom.store.port import Loaded, Store, Submission

JOB_EVENTS = tuple(TRANSITIONS)
NODE = {
    "name": "host",
    "gpus": [
        {
            "index": 0,
            "uuid": "GPU-0",
            "model": "V100",
            "memory_mib": 16384,
            "state": "ok",
            "reason": "",
            "since_s": None,
        }
    ],
    "state": "up",
    "reason": "",
    "since_s": 1.5,
    "cpus": 8,
    "memory_mib": 64000,
    "kind": "gpu",
    "topology": [[0, 1, "NVLINK"]],
}


def spec(name: str = "train", **given: Any) -> dict[str, Any]:
    return {"command": ["python", "train.py"], "name": name, "gpus": 1, "priority": 0, **given}


def submitted(
    first: int,
    *,
    name: str = "train",
    user: str = "ada",
    count: int = 1,
    indices: Sequence[int] | None = None,
    **given: Any,
) -> Mapping[str, Any]:
    """Data of jobs.submitted."""
    held = bool(given.pop("held", False))
    after = given.pop("after", [])
    return {
        "user": user,
        "spec": spec(name, **given),
        "first": first,
        "count": count,
        "indices": None if indices is None else list(indices),
        "held": held,
        "after": after,
        "estimates": [[3600.0, "default"]],
    }


def starting(attempt: int = 1, allocation: object = (("host", (0,)),)) -> Mapping[str, Any]:
    return {"attempt": attempt, "allocation": [[node, list(gpus)] for node, gpus in allocation]}  # type: ignore[attr-defined]


def ended(reason: str = "finished", after: str = "finished", work_s: float = 10.0, **given: Any) -> Mapping[str, Any]:
    return {"reason": reason, "next": after, "work_s": work_s, "exit_code": 0, "signal": None, **given}


class Writer:
    """Book and store as a scheduler keeps them: `write` gives events numbers, stages, appends, commits."""

    def __init__(self, store: Store) -> None:
        self.store, self.book, self.last, self.now = store, Book(), 0, 1000.0
        self.events: list[Event] = []

    def write(
        self,
        *drafts: tuple[str, int | None, Mapping[str, Any]],
        at: float | None = None,
        submissions: Sequence[Submission] = (),
    ) -> list[Event]:
        self.now = self.now + 1.0 if at is None else at
        events = [Event(self.last + n, self.now, *draft) for n, draft in enumerate(drafts, 1)]
        self.put(events, submissions)
        return events

    def put(self, events: Sequence[Event], submissions: Sequence[Submission] = ()) -> None:
        changes = self.book.stage(events)
        self.store.append(events, changes, submissions)
        self.book.commit(changes)
        self.last = events[-1].id
        self.events += events

    def submit(self, **given: Any) -> int:
        first = self.book.next_job
        self.write(("jobs.submitted", first, submitted(first, **given)))
        return first

    def start(
        self, job: int, at: float | None = None, allocation: object = (("host", (0,)),), gpu_model: str = ""
    ) -> None:
        data = {**starting(self.book.jobs[job].attempts + 1, allocation), "gpu_model": gpu_model}
        self.write(("attempt.starting", job, data), at=at)
        self.write(("attempt.running", job, {"pid": 7, "start_ticks": 99, "boot_id": "boot"}), at=at)

    def end(self, job: int, at: float | None = None, **given: Any) -> None:
        self.write(("attempt.ended", job, ended(**given)), at=at)


def same(loaded: Loaded, book: Book) -> None:
    """Asserts that a store holds what the book does."""
    assert {job.id: job for job in loaded.jobs} == book.jobs
    assert {attempt.job: attempt for attempt in loaded.attempts} == book.attempts
    assert {node.name: node for node in loaded.nodes} == book.nodes
    assert dict(loaded.settings) == book.settings
    assert loaded.next_job == book.next_job


# -- random stories ------------------------------------------------------------------------------------------------

_REASONS = [reason.value for reason in EndReason if reason is not EndReason.PEER]  # that is of a member only
_NAMES = st.sampled_from(["train", "a b", "größe", "x\udcff", "n[1]", "null\0byte", "'; DROP TABLE jobs; --", "*"])
_ALLOCATIONS = st.sampled_from([[["host", [0]]], [["host", [0, 1]]], [["a", [0]], ["b", [1, 2, 3]]]])


@st.composite
def stories(draw: st.DrawFn, most: int = 40, late: bool = False, without: str = "") -> list[Event]:
    """Events in an order that the table of transitions allows, with times that never go back.

    late: ends may be written down later than they came. without: a type of event that does not come.
    """
    book, events, now = Book(), list[Event](), 0.0
    for number in range(1, draw(st.integers(1, most)) + 1):
        now += draw(st.sampled_from([0.0, 0.1, 1.0, 3599.7]))
        kind, job, data = draw(_next(book, without))
        if late and kind == "attempt.ended":
            data = {**data, "ended_s": now - draw(st.sampled_from([0.0, 0.5, 2000.0]))}
        event = Event(number, now, kind, job, data)
        book.commit(book.stage((event,)))
        events.append(event)
    return events


@st.composite
def _next(draw: st.DrawFn, book: Book, without: str) -> tuple[str, int | None, Mapping[str, Any]]:
    kind = draw(st.integers(0, 9))
    if kind == 0 or not book.jobs:
        return draw(_submission(book))
    if kind == 1:
        return draw(_about_no_job())
    job = draw(st.sampled_from(list(book.jobs.values())))
    kinds = [each for each, (before, _) in TRANSITIONS.items() if job.phase in before]
    kinds = [each for each in kinds if each != "job.updated" or job.phase in WAITING | ACTIVE]
    kinds = [each for each in kinds if each != without]
    if not kinds:
        return draw(_submission(book))
    return draw(about(job, draw(st.sampled_from(kinds))))


@st.composite
def _submission(draw: st.DrawFn, book: Book) -> tuple[str, int | None, Mapping[str, Any]]:
    indices = draw(st.none() | st.lists(st.integers(0, 99), min_size=1, max_size=4, unique=True))
    data = submitted(
        book.next_job + draw(st.integers(0, 2)),
        name=draw(_NAMES),
        user=draw(st.sampled_from(["ada", "bob"])),
        count=1 if indices is None else len(indices),
        indices=indices,
        held=draw(st.booleans()),
        gpus=draw(st.integers(1, 8)),
        priority=draw(st.integers(-3, 3)),
        after=draw(st.sampled_from([[], [[1, "ok"]], [[1, "any"], [2, "ok"]]])),
    )
    return "jobs.submitted", None, data


@st.composite
def _about_no_job(draw: st.DrawFn) -> tuple[str, int | None, Mapping[str, Any]]:
    state = draw(st.sampled_from(["up", "draining", "down"]))
    return draw(
        st.sampled_from(
            [
                ("node.changed", None, {"node": {**NODE, "state": state}}),
                ("policy.set", None, {"policy": "srtf:promote=2", "interval_s": 0.5}),
                ("scheduler.started", None, {"version": "1"}),
            ]
        )
    )


KEPT = {"step": 12.0, "at_s": 7.5, "keeper": "hook", "framework": "Lightning"}


@st.composite
def about(draw: st.DrawFn, job: Job, kind: str) -> tuple[str, int | None, Mapping[str, Any]]:
    """An event of this type about this job; valid where the job's phase is."""
    data: Mapping[str, Any] = {}
    if kind == "job.updated":
        changed = spec(draw(_NAMES), gpus=draw(st.integers(1, 4)))
        data = {"spec": changed, "after": [], "estimate_s": 7.5, "estimate_from": "user"}
    elif kind == "job.cancelled":
        data = {"message": draw(_NAMES), "reason": draw(st.sampled_from(["cancelled", "failed"]))}
    elif kind == "job.flagged":
        data = {"flag": draw(st.sampled_from(["idle", "log"])), "text": draw(st.sampled_from(["", "for 300 s"]))}
    elif kind == "attempt.starting":
        model = draw(st.sampled_from(["", "V100", "K80"]))
        data = {"attempt": job.attempts + 1, "allocation": draw(_ALLOCATIONS), "gpu_model": model}
    elif kind == "attempt.running":
        data = {"pid": draw(st.none() | st.integers(2, 4_000_000)), "start_ticks": 2**40, "boot_id": "b"}
    elif kind == "attempt.stopping":
        data = {"reason": "preempted", "deadline_s": draw(st.none() | st.just(17.25))}
    elif kind == "attempt.thawed":
        data = {"allocation": draw(_ALLOCATIONS)}
    elif kind == "attempt.ended":
        data = {
            "reason": draw(st.sampled_from(_REASONS)),
            "next": draw(st.sampled_from(sorted(ENDED | {Phase.QUEUED, Phase.HELD}))).value,
            "work_s": draw(st.floats(0, 1e9)),
            "exit_code": draw(st.none() | st.integers(-64, 255)),
            "signal": draw(st.none() | st.just(9)),
            "saved": draw(st.booleans()),
            "failure": draw(st.booleans()),
            "not_before_s": draw(st.none() | st.just(12.5)),
            "peak_memory_mib": draw(st.none() | st.just(100.5)),
            "it_per_s": draw(st.none() | st.just(12.25)),
            "gpu_memory_mib": draw(st.none() | st.just(2048.5)),
            "kept": draw(st.just({}) | st.just(KEPT)),
        }
    return kind, job.id, data
