"""What is told of suspending: the answer made of events, and a job that is to make way on a node that can or can't."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpuloom.core.events import Event
from gpuloom.executors import suspending
from gpuloom.live.views.suspensions import suspension_views


def events(*told: tuple[str, dict[str, Any]]) -> list[Event]:
    return [Event(number, 10.0 * number, kind, 1, data) for number, (kind, data) in enumerate(told, 1)]


def test_events_make_the_answer() -> None:
    earnest = {"rehearsal": False}
    where: dict[str, Any] = {"allocation": [["n", [0]]]}
    found = suspension_views(
        events(
            ("attempt.frozen", {}),  # of an older gpuloom, which only froze
            ("attempt.thawed", where),
            ("attempt.frozen", {"suspended_mib": 512.0, "moved_s": 1.5}),
            ("attempt.thawed", {**where, "moved_s": 0.5}),
            ("attempt.not_suspended", {"why": "error 801"}),
            ("attempt.frozen", {"suspended_mib": 64.0, "moved_s": 1.0}),
        )
    )
    assert found == [
        {"at_s": 30.0, "mib": 512.0, "out_s": 1.5, "back_at_s": 40.0, "in_s": 0.5, "why_not": "", **earnest},
        {"at_s": 50.0, "mib": None, "out_s": None, "back_at_s": None, "in_s": None, "why_not": "error 801", **earnest},
        {"at_s": 60.0, "mib": 64.0, "out_s": 1.0, "back_at_s": None, "in_s": None, "why_not": "", **earnest},
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
        {"at_s": 9.5, "mib": 512.0, "out_s": 1.5, "back_at_s": 10.0, "in_s": 0.5, "why_not": "", "rehearsal": True},
        {"at_s": 20.0, "mib": None, "out_s": None, "back_at_s": None, "in_s": None, "why_not": "error 999",
         "rehearsal": True},
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
