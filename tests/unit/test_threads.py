"""Threads that can't end unseen."""

from __future__ import annotations

import threading

import pytest

from gpuloom import threads
from gpuloom.threads import Worker


def test_what_ends_one_is_told_and_its_work_begun_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "FIRST_PAUSE_S", 0.0)
    told: list[str] = []
    again, go = threading.Event(), threading.Event()

    def work() -> None:
        if not told:
            raise RuntimeError("can't start new thread")
        again.set()
        go.wait(10)

    worker = Worker("looker", work, told.append)
    assert worker.start()
    assert again.wait(10)
    assert "'looker' was ended by RuntimeError: can't start new thread" in worker.problem
    assert told == [worker.problem]
    go.set()
    assert worker.end(10)


def test_one_that_can_not_be_had_is_told_and_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    done = threading.Event()
    worker = Worker("looker", done.set)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", lambda self: (_ for _ in ()).throw(RuntimeError("no more threads")))
        assert not worker.start()
    assert "can't be started: no more threads" in worker.problem
    assert worker.start()
    assert done.wait(10)
    assert worker.end(10)


def test_whether_it_has_ended_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    go, ends = threading.Event(), list[bool]()
    assert Worker("never begun", go.set).end(0.0)
    worker = Worker("waits", lambda: (go.wait(10), ends.append(worker.end(10)))[1])
    assert worker.start()
    assert not worker.end(0.01), "it works on"
    assert worker.start(), "nor is it begun again"
    go.set()
    assert worker.end(10)
    assert ends == [True], "its own thread does not wait for itself"


def test_what_has_ended_is_not_begun_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "FIRST_PAUSE_S", 60.0)
    begun, told = [], threading.Event()

    def work() -> None:
        begun.append(1)
        raise RuntimeError("no")

    worker = Worker("fails", work, lambda text: told.set())
    assert worker.start()
    assert told.wait(10)
    assert worker.end(10), "it pauses before it is begun again, and need not"
    assert begun == [1]


def test_a_problem_is_forgotten_by_one_that_works_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "FIRST_PAUSE_S", 0.0)
    go, runs, works = threading.Event(), [], threading.Event()

    def work() -> None:
        runs.append(1)
        if len(runs) == 1:
            raise RuntimeError("once")
        works.set()
        go.wait(10)

    worker = Worker("fails", work)
    assert worker.start()
    assert works.wait(10)
    assert "once" in worker.problem
    monkeypatch.setattr(threads, "TOLD_S", 0.0)
    assert worker.problem == ""
    go.set()
    assert worker.end(10)
    assert "once" in worker.problem, "one that no longer works tells what the last problem was"
