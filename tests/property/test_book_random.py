"""The book and the stores under random stories of jobs."""

from __future__ import annotations

import copy
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuloom.core.book import Book
from gpuloom.core.errors import InvalidTransition
from gpuloom.core.events import Event
from gpuloom.core.job import ACTIVE, ENDED, TRANSITIONS, Phase
from gpuloom.store.memory import MemoryStore
from gpuloom.store.sqlite import SqliteStore
from store_builders import JOB_EVENTS, Writer, about, same, stories
from tiers import examples

pytestmark = pytest.mark.slow


def told(events: list[Event]) -> Book:
    book = Book()
    for event in events:
        book.commit(book.stage((event,)))
    return book


def state(book: Book) -> tuple[Any, ...]:
    return book.jobs, book.attempts, book.nodes, book.settings, book.next_job


def cut(events: list[Event], data: st.DataObject) -> list[list[Event]]:
    """In batches of random lengths."""
    batches = []
    while events:
        size = data.draw(st.integers(1, len(events)))
        batches.append(events[:size])
        events = events[size:]
    return batches


@settings(max_examples=examples(40))
@given(stories(), st.data())
def test_batches_tell_what_single_events_tell(events: list[Event], data: st.DataObject) -> None:
    book = Book()
    for batch in cut(events, data):
        book.commit(book.stage(batch))
    assert state(book) == state(told(events))


@settings(max_examples=examples(40))
@given(stories(), st.data())
def test_staging_leaves_the_book_as_it_is(events: list[Event], data: st.DataObject) -> None:
    known = data.draw(st.integers(0, len(events)))
    book = told(events[:known])
    before = copy.deepcopy(state(book))
    first, second = book.stage(events[known:]), book.stage(events[known:])
    assert state(book) == before
    assert first == second


@settings(max_examples=examples(40))
@given(stories())
def test_records_agree_with_each_other(events: list[Event]) -> None:
    book = told(events)
    assert set(book.attempts) == {job.id for job in book.jobs.values() if job.phase in ACTIVE}
    for job in book.jobs.values():
        assert (job.ended_s is not None) == (job.phase in ENDED)
        assert job.id < book.next_job
        if job.id in book.attempts:
            assert book.attempts[job.id].phase is job.phase
            assert book.attempts[job.id].number == job.attempts


@settings(max_examples=examples(40))
@given(stories(), st.data())
def test_what_may_not_come_is_refused_with_the_story(events: list[Event], data: st.DataObject) -> None:
    book = told(events)
    refused = [
        (job, kind) for job in book.jobs.values() for kind in JOB_EVENTS if job.phase not in TRANSITIONS[kind][0]
    ]
    if not refused:
        return
    job, kind = data.draw(st.sampled_from(refused))
    before = copy.deepcopy(state(book))
    event = Event(events[-1].id + 1, events[-1].at_s, *data.draw(about(job, kind)))
    with pytest.raises(InvalidTransition) as error:
        book.stage((event,))
    assert f"job {job.id} ({job.name}, {job.phase})" in str(error.value)
    assert f"last changed by event {job.cause}" in str(error.value)
    assert state(book) == before


@settings(max_examples=examples(40))
@given(stories())
def test_time_held_is_what_passed_while_gpus_were_held(events: list[Event]) -> None:
    """Told plainly: from event to event, whoever is starting, running or stopping holds its GPUs."""
    book, held, last_s = Book(), dict[int, float](), 0.0
    for event in events:
        for job in book.jobs.values():
            if job.phase in {Phase.STARTING, Phase.RUNNING, Phase.STOPPING}:
                held[job.id] = held.get(job.id, 0.0) + event.at_s - last_s
        book.commit(book.stage((event,)))
        if event.type == "job.requeued":
            held.pop(event.job or 0, None)  # a new life
        last_s = event.at_s
    for job in book.jobs.values():
        open_s = 0.0
        if job.phase in {Phase.STARTING, Phase.RUNNING, Phase.STOPPING}:
            open_s = last_s - book.attempts[job.id].since_s
        assert job.held_s + open_s == pytest.approx(held.get(job.id, 0.0), abs=1e-6)


@settings(max_examples=examples(20))
@given(stories(most=60, late=True), st.data())
def test_stores_hold_what_the_book_does(events: list[Event], data: st.DataObject) -> None:
    batches = cut(events, data)
    with tempfile.TemporaryDirectory() as folder, SqliteStore(Path(folder) / "store.db") as lasting:
        in_memory = MemoryStore()
        for store in (lasting, in_memory):
            writer = Writer(store)
            for batch in batches:
                writer.put(batch)
            same(store.load(), writer.book)
            assert list(store.events()) == events
            assert store.check().findings == ()
        everyone = range(1, 200)
        assert lasting.attempts(everyone) == in_memory.attempts(everyone)
        assert lasting.counts() == in_memory.counts()
        until_s = events[-1].at_s + 5.0
        since_s = data.draw(st.floats(0.0, until_s))
        for by in ("user", "name", "day", "node"):
            found, expected = (each.usage(since_s=since_s, until_s=until_s, by=by) for each in (lasting, in_memory))
            assert found == expected


@settings(max_examples=examples(40))
@given(stories(most=60, late=True, without="job.requeued"))  # its attempts alone say what a job held in a life before
def test_usage_adds_up_to_what_jobs_held(events: list[Event]) -> None:
    store = MemoryStore()
    writer = Writer(store)
    writer.put(events)
    now = events[-1].at_s
    held = gpu_s = 0.0
    for job in writer.book.jobs.values():
        held, gpu_s = held + job.held_s, gpu_s + job.held_gpu_s
        attempt = writer.book.attempts.get(job.id)
        if attempt is not None and attempt.phase is not Phase.FROZEN:
            held += now - attempt.since_s
            gpu_s += (now - attempt.since_s) * sum(len(gpus) for _, gpus in attempt.allocation)
    for by in ("user", "name", "day"):
        usage = store.usage(since_s=0.0, until_s=now, by=by)
        assert sum(each.held_s for each in usage) == pytest.approx(held, abs=1e-6)
        assert sum(each.gpu_s for each in usage) == pytest.approx(gpu_s, abs=1e-6)
