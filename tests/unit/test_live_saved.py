"""Whether a job that made way has saved: its word, its reports, its files."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from gpuloom.core.end_reason import EndReason
from gpuloom.core.job import NodeState, SavedBy
from gpuloom.executors.port import RunExit, RunPhase, RunStatus
from gpuloom.live.dispatch.checkpoints import Checkpoints
from gpuloom.live.dispatch.saved import Saved, checkpoint_written_s, noticed_s, saved
from gpuloom.live.trial.rehearsal import Rehearsal
from gpuloom.store.port import StoreError

NOTICE_S = 1000.0


def of(code: int | None = 0, *, checkpoint_s: float | None = None, **told: object) -> Saved:
    return saved(
        RunExit(code, None, EndReason.PREEMPTED, "", 1010.0), told, notice_s=NOTICE_S, checkpoint_s=checkpoint_s
    )


def test_its_word() -> None:
    assert of(85).by is SavedBy.EXIT_CODE
    assert of(0).by is SavedBy.NOTHING
    assert of(1).by is SavedBy.NOTHING


def test_its_reports() -> None:
    assert of(0, step=10, saved_step=10) == Saved(SavedBy.SAVED_STEP, 1.0)
    assert of(1, step=10, saved_step=8, saved_s=NOTICE_S + 1) == Saved(SavedBy.SAVED_STEP, 0.8)
    assert of(0, step=10, saved_step=8, saved_s=NOTICE_S - 1) == Saved(SavedBy.NOTHING, 0.8)
    assert of(0, step=10, saved_step=8) == Saved(SavedBy.NOTHING, 0.8)
    assert of(0, saved_s=NOTICE_S + 1) == Saved()  # of what?
    assert of(0, step=0, saved_step=0).part == 1.0
    for odd in ("8", True, None, -3, float("nan")):
        assert of(0, step=10, saved_step=odd).by is SavedBy.NOTHING


def test_its_files() -> None:
    assert of(0, checkpoint_s=NOTICE_S + 1).by is SavedBy.CHECKPOINT
    assert of(143, checkpoint_s=NOTICE_S).by is SavedBy.CHECKPOINT
    assert of(0, checkpoint_s=NOTICE_S - 1).by is SavedBy.NOTHING
    assert of(1, checkpoint_s=NOTICE_S + 1).by is SavedBy.NOTHING  # half of it may be there
    without = saved(RunExit(0, None, EndReason.PREEMPTED, "", 1.0), {}, notice_s=None, checkpoint_s=5.0)
    assert without.by is SavedBy.NOTHING


def test_where_a_checkpoint_may_lie(tmp_path: Path) -> None:
    def write(name: str, at_s: float, text: str = "x") -> None:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        os.utime(path, (at_s, at_s))

    write("out/a/1.ckpt", 10.0)
    write("out/b/2.ckpt", 20.0)
    write("out/b/log.txt", 30.0)
    write("out/b/empty.ckpt", 40.0, text="")
    write("odd [1].ckpt", 50.0)
    there = str(tmp_path)
    assert checkpoint_written_s("out/a/1.ckpt", there) == 10.0
    assert checkpoint_written_s("out", there) == 30.0
    assert checkpoint_written_s("out/**/*.ckpt", there) == 20.0
    assert checkpoint_written_s(f"{there}/out/*/*.ckpt", "/elsewhere") == 20.0
    assert checkpoint_written_s("odd [1].ckpt", there) == 50.0  # as it is, before it is a pattern
    assert checkpoint_written_s("none/*.ckpt", there) is None
    assert checkpoint_written_s("out/b/empty.ckpt", there) is None


def test_when_it_got_notice(tmp_path: Path) -> None:
    assert noticed_s(tmp_path) is None
    (tmp_path / "notice").write_text("{}")
    os.utime(tmp_path / "notice", (5.0, 5.0))
    assert noticed_s(tmp_path) == 5.0


def exited(run: str = "1.1-a", *, reason: EndReason = EndReason.PREEMPTED, released: bool = True) -> RunStatus:
    return RunStatus(run, RunPhase.EXITED, exit=RunExit(0, None, reason, "", 1.0, released=released))


class Taken:
    def __init__(self) -> None:
        self.all: list[tuple[RunStatus, float | None]] = []
        self.come = threading.Semaphore(0)

    def __call__(self, status: RunStatus, checkpoint_s: float | None) -> None:
        self.all.append((status, checkpoint_s))
        self.come.release()

    def wait(self) -> None:
        assert self.come.acquire(timeout=30.0)


def test_the_end_waits_for_the_look_and_for_no_other(tmp_path: Path) -> None:
    (tmp_path / "a.ckpt").write_text("x")
    os.utime(tmp_path / "a.ckpt", (7.0, 7.0))
    taken = Taken()
    looks = Checkpoints(lambda run: ("*.ckpt", str(tmp_path)) if run == "1.1-a" else None)
    looks.first_look(exited("2.1-b"), taken)
    assert taken.all == [(exited("2.1-b"), None)]
    looks.first_look(exited(reason=EndReason.CANCELLED), taken)
    assert taken.all[1:] == [(exited(reason=EndReason.CANCELLED), None)]
    looks.first_look(exited(), taken)
    for _ in range(3):
        taken.wait()
    assert taken.all[2:] == [(exited(), 7.0)]


def test_a_look_that_never_returns_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on, begun = threading.Event(), threading.Event()

    def hangs(*_: str) -> float:
        begun.set()
        go_on.wait(60.0)
        return 9.0

    monkeypatch.setattr("gpuloom.live.dispatch.checkpoints.checkpoint_written_s", hangs)
    taken = Taken()
    looks = Checkpoints(lambda run: ("x", "/"), look_s=0.3)
    looks.first_look(exited(released=False), taken)
    assert begun.wait(30.0)
    looks.first_look(exited(), taken)  # told again while it is being looked at: the newest counts
    taken.wait()
    assert taken.all[0][1] is None
    go_on.set()
    assert len(taken.all) == 1


def test_what_is_known_of_a_checkpoint_outlasts_a_store_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    live = Rehearsal("fifo", models=["V100"])
    monkeypatch.setattr(live.executor, "_stops", lambda status, reason: None)
    (job,) = live.submit({"gpus": 1, "checkpoint": "out.ckpt"})
    live.now_s += 1000.0
    live.tell(lambda: live.service.set_node("here", NodeState.DRAINING))
    run = live.scheduler.book.attempts[job].run
    how = RunExit(0, None, EndReason.NODE, "", time.time())
    live.scheduler._take_status(RunStatus(run, RunPhase.EXITED, exit=how), time.time() + 3600.0)

    def full(*_: object) -> None:
        raise StoreError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(live.store, "append", full)
        live.scheduler._turn()
    live.now_s += 10.0
    live.turn()
    assert live.service.show(job)["attempts"][0]["saved_by"] == "checkpoint"
    assert not live.scheduler.intake.checkpoints
