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
