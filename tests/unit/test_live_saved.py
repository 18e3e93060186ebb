"""Whether a job that made way has saved: its word, its reports, its files."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from gpuloom.core.end_reason import EndReason
from gpuloom.core.job import NodeState, SavedBy
from gpuloom.core.kept import Keeper, Kept, kept_data, kept_of
from gpuloom.executors.local_files import LocalFiles
from gpuloom.executors.port import ExecutorError, RunExit, RunPhase, RunStatus
from gpuloom.live.dispatch.last_words import LastWords, Where, Words
from gpuloom.live.dispatch.saved import Saved, saved
from gpuloom.live.trial.rehearsal import Rehearsal
from gpuloom.store.errors import StoreError

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
    def by(**told: object) -> tuple[SavedBy, float | None]:
        found = of(0, **told)
        return found.by, found.part

    assert by(step=10, saved_step=10) == (SavedBy.SAVED_STEP, 1.0)
    assert by(step=10, saved_step=8, saved_s=NOTICE_S + 1) == (SavedBy.SAVED_STEP, 0.8)
    assert by(step=10, saved_step=8, saved_s=NOTICE_S - 1) == (SavedBy.NOTHING, 0.8)
    assert by(step=10, saved_step=8) == (SavedBy.NOTHING, 0.8)
    assert of(0, saved_s=NOTICE_S + 1) == Saved()  # of what?
    assert of(0, step=0, saved_step=0).part == 1.0
    for odd in ("8", True, None, -3, float("nan")):
        assert of(0, step=10, saved_step=odd).by is SavedBy.NOTHING


def test_what_is_kept_and_by_whom() -> None:
    assert of(85).kept is None
    assert of(1, saved_step=8).kept == Kept(8.0, None, Keeper.SCRIPT, "")
    hook = of(0, step=9, saved_step=8, saved_s=3.5, saved_who="hook", saved_what="Lightning").kept
    assert hook == Kept(8.0, 3.5, Keeper.HOOK, "Lightning") == kept_of(kept_data(hook))
    odd = of(0, saved_step=8, saved_s="now", saved_who=["me"], saved_what=7).kept
    assert odd == Kept(8.0, None, Keeper.SCRIPT, "")
    assert kept_of(kept_data(None)) is None
    assert of(0, not_saved="Keras: not on this backend").why_not == "Keras: not on this backend"
    assert of(0, not_saved=7).why_not == ""


def test_its_files() -> None:
    assert of(0, checkpoint_s=NOTICE_S + 1).by is SavedBy.CHECKPOINT
    assert of(143, checkpoint_s=NOTICE_S).by is SavedBy.CHECKPOINT
    assert of(0, checkpoint_s=NOTICE_S - 1).by is SavedBy.NOTHING
    assert of(1, checkpoint_s=NOTICE_S + 1).by is SavedBy.NOTHING  # half of it may be there
    without = saved(RunExit(0, None, EndReason.PREEMPTED, "", 1.0), {}, notice_s=None, checkpoint_s=5.0)
    assert without.by is SavedBy.NOTHING


def exited(run: str = "1.1-a", *, reason: EndReason = EndReason.PREEMPTED, released: bool = True) -> RunStatus:
    return RunStatus(run, RunPhase.EXITED, exit=RunExit(0, None, reason, "", 1.0, released=released))


class Taken:
    def __init__(self) -> None:
        self.all: list[tuple[RunStatus, Words | None]] = []
        self.come = threading.Semaphore(0)

    def __call__(self, status: RunStatus, words: Words | None) -> None:
        self.all.append((status, words))
        self.come.release()

    def wait(self) -> None:
        assert self.come.acquire(timeout=30.0)


def test_the_end_waits_for_the_look_and_for_no_other(tmp_path: Path) -> None:
    (tmp_path / "a.ckpt").write_text("x")
    os.utime(tmp_path / "a.ckpt", (7.0, 7.0))
    taken = Taken()
    files = LocalFiles(tmp_path)
    looks = LastWords(lambda run: Where(files, True, "*.ckpt", str(tmp_path)) if run == "1.1-a" else None)
    looks.first_look(exited("2.1-b"), taken)
    assert taken.all == [(exited("2.1-b"), None)]
    looks.first_look(exited(reason=EndReason.CANCELLED), taken)
    assert taken.all[1:] == [(exited(reason=EndReason.CANCELLED), None)]
    looks.first_look(exited(), taken)
    for _ in range(3):
        taken.wait()
    assert taken.all[2:] == [(exited(), Words(checkpoint_s=7.0))]


def test_what_lies_on_another_node_is_looked_at_in_a_thread_whatever_the_end_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files, looking = LocalFiles(Path("/nowhere")), []

    def progress(run: str) -> dict[str, object]:
        looking.append(threading.current_thread().name)
        return {"step": 7}

    monkeypatch.setattr(files, "progress", progress)
    monkeypatch.setattr(files, "noticed_s", lambda run: 5.0)
    taken = Taken()
    looks = LastWords(lambda run: Where(files, False, None, "/"))
    looks.first_look(exited(reason=EndReason.CANCELLED), taken)
    taken.wait()
    assert taken.all == [(exited(reason=EndReason.CANCELLED), Words({"step": 7}, 5.0))]
    assert looking == ["last-words"]


def test_a_node_that_does_not_answer_leaves_no_words(monkeypatch: pytest.MonkeyPatch) -> None:
    files = LocalFiles(Path("/nowhere"))

    def cut(run: str) -> dict[str, object]:
        raise ExecutorError("the link is cut")

    monkeypatch.setattr(files, "progress", cut)
    taken = Taken()
    LastWords(lambda run: Where(files, False, "x", "/")).first_look(exited(), taken)
    taken.wait()
    assert taken.all == [(exited(), Words())]


def test_a_look_that_never_returns_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on, begun = threading.Event(), threading.Event()

    def hangs(*_: str) -> float:
        begun.set()
        go_on.wait(60.0)
        return 9.0

    files = LocalFiles(Path("/nowhere"))
    monkeypatch.setattr(files, "checkpoint_s", hangs)
    taken = Taken()
    looks = LastWords(lambda run: Where(files, True, "x", "/"), look_s=0.3)
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
    live.scheduler._take_status(RunStatus(run, RunPhase.EXITED, exit=how), Words(checkpoint_s=time.time() + 3600.0))

    def full(*_: object) -> None:
        raise StoreError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(live.store, "append", full)
        live.scheduler._turn()
    live.now_s += 10.0
    live.turn()
    assert live.service.show(job)["attempts"][0]["saved_by"] == "checkpoint"
    assert not live.scheduler.intake.words
