"""What is told of suspending: the answer made of events, and a job that is to make way on a node that can or can't."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from gpuloom.core.events import Event
from gpuloom.executors import suspending
from gpuloom.executors.runner import suspender
from gpuloom.live.views.suspensions import suspension_views


def events(*told: tuple[str, dict[str, Any]]) -> list[Event]:
    return [Event(number, 10.0 * number, kind, 1, data) for number, (kind, data) in enumerate(told, 1)]


def test_events_make_the_answer() -> None:
    earnest = {"rehearsal": False, "why_ended": ""}
    where: dict[str, Any] = {"allocation": [["n", [0]]]}
    found = suspension_views(
        events(
            ("attempt.frozen", {}),  # of an older gpuloom, which only froze
            ("attempt.thawed", where),
            ("attempt.frozen", {"suspended_mib": 512.0, "moved_s": 1.5}),
            ("attempt.thawed", {**where, "moved_s": 0.5}),
            ("attempt.not_suspended", {"why": "error 801"}),
            ("attempt.stopping", {"reason": "preempted", "deadline_s": 1.0}),
            ("attempt.frozen", {"suspended_mib": 64.0, "moved_s": 1.0}),
            ("attempt.stopping", {"reason": "preempted", "deadline_s": 1.0, "text": "too long"}),
        )
    )
    assert found == [
        {"at_s": 30.0, "mib": 512.0, "out_s": 1.5, "back_at_s": 40.0, "in_s": 0.5, "why_not": "", **earnest},
        {"at_s": 50.0, "mib": None, "out_s": None, "back_at_s": None, "in_s": None, "why_not": "error 801", **earnest},
        {
            "at_s": 70.0,
            "mib": 64.0,
            "out_s": 1.0,
            "back_at_s": None,
            "in_s": None,
            "why_not": "",
            **earnest,
            "why_ended": "too long",
        },
    ]


def test_rehearsals_are_told_as_such() -> None:
    seen = {"ok": True, "mib": 512.0, "out_s": 1.5, "in_s": 0.5, "why": "", "earnest": False}
    lost = {**seen, "ok": False, "why": "error 999"}
    found = suspension_views(
        events(
            ("attempt.rehearsed", seen), ("attempt.rehearsed", lost), ("attempt.rehearsed", {**seen, "earnest": True})
        )
    )
    assert found == [
        {"at_s": 9.5, "mib": 512.0, "out_s": 1.5, "back_at_s": 10.0, "in_s": 0.5, "why_not": "",
         "why_ended": "", "rehearsal": True},
        {"at_s": 20.0, "mib": None, "out_s": None, "back_at_s": None, "in_s": None, "why_not": "error 999",
         "why_ended": "", "rehearsal": True},
    ]  # fmt: skip


def test_a_memory_limit_is_raised_once_and_brought_back(tmp_path: Path) -> None:
    limit = tmp_path / "memory.max"
    limit.write_text(f"{100 << 20}\n")
    for _ in range(2):  # the first was killed before it came to anything
        record = suspending._write(str(tmp_path), {"mib": 50.0, "limit": suspending._limit(str(limit))})
        suspending._set_limit(str(limit), record["limit"], 50.0)
    assert suspending._read(str(tmp_path)) == record == {"mib": 50.0, "limit": str(100 << 20)}
    assert int(limit.read_text()) == (100 + 50 + 64) << 20
    suspending._set_limit(str(limit), record["limit"])
    assert limit.read_text() == str(100 << 20)
    limit.write_text("max\n")
    assert suspending._limit(str(limit)) == suspending._limit("") == ""
    suspending._set_limit(str(limit), "", 50.0)
    assert limit.read_text() == "max\n"


def test_without_a_driver_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GPULOOM_SHARE_DRIVER", str(tmp_path / "none.so"))
    assert suspending.check()["why"] == "no NVIDIA driver (libcuda.so.1) is here"


class TwoGpus:
    """Two of 80 GiB, of which others have something, by NVML."""

    def __init__(self, *free_mib: list[float]) -> None:
        self._free = list(free_mib)

    def free_mib(self) -> list[float]:
        return self._free.pop(0) if len(self._free) > 1 else self._free[0]


class Restores:
    """A driver that has one program suspended, and brings it back."""

    def __init__(self) -> None:
        self.did: list[str] = []

    def state(self, pid: int) -> tuple[int, int]:
        return suspending.OK, suspending.CHECKPOINTED

    def restore(self, pid: int) -> int:
        self.did.append("restore")
        return suspending.OK

    def unlock(self, pid: int) -> int:
        self.did.append("unlock")
        return suspending.OK


def brought_back(folder: Path, gpus: Any) -> float:
    driver: Any = Restores()
    mib = suspending.resume(driver, gpus, [os.getpid()], str(folder), "")
    assert driver.did == ["restore", "unlock"]
    return mib


def test_a_program_on_two_gpus_needs_of_each_what_it_had_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    suspending._write(str(tmp_path), {"mib": 110_000.0, "each": [70_000.0, 40_000.0], "limit": ""})
    assert brought_back(tmp_path, TwoGpus([80_000.0, 50_000.0])) == 110_000.0
    assert brought_back(tmp_path, TwoGpus([60_000.0, 80_000.0], [75_000.0, 45_000.0])) == 110_000.0, "it waits"
    monkeypatch.setattr(suspending, "ROOM_S", 0.0)
    with pytest.raises(suspending.CantError, match="needs 70,000, 40,000 MiB on its GPU, and 80,000, 30,000 are free"):
        brought_back(tmp_path, TwoGpus([80_000.0, 30_000.0]))
    suspending._write(str(tmp_path), {"mib": 60_000.0, "limit": ""})  # by an older gpuloom
    assert brought_back(tmp_path, TwoGpus([70_000.0, 65_000.0])) == 60_000.0


def test_the_runner_waits_for_as_long_as_the_program_that_moves_memory_may_take() -> None:
    assert suspender.LONGEST_S == suspending.LONGEST_S
