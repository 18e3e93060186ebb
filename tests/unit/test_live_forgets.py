"""Ended jobs leave memory, and nobody looks through all jobs for them when none can have ended."""

from __future__ import annotations

from collections.abc import ItemsView
from typing import Any

import pytest

from gpuloom.core.job import ENDED, Job
from gpuloom.live.records import forgetting
from gpuloom.live.trial.rehearsal import Rehearsal


class Watched(dict[int, Job]):
    looks = 0

    def items(self) -> ItemsView[int, Job]:  # type: ignore[override]
        self.looks += 1
        return super().items()


def test_ended_jobs_are_forgotten_and_not_looked_for_at_each_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forgetting, "KEEP_ENDED", 8)
    live = Rehearsal("fifo", models=["V100"])
    spec: dict[str, Any] = {"gpus": 1, "array": "0-99"}
    jobs = live.submit(spec)
    watched = live.scheduler.book.jobs = Watched(live.scheduler.book.jobs)
    for first in (40, 60, 80):
        live.tell(lambda first=first: live.service.cancel(jobs[first : first + 20]))  # type: ignore[misc]
        assert sum(job.phase in ENDED for job in watched.values()) <= 16 + 2
    looks = watched.looks
    for _ in range(20):
        live.turn()
    assert watched.looks == looks
    live.end(live.scheduler.book.attempts[jobs[0]].run)
    assert live.service.job(jobs[40])["state"] == "cancelled"  # the store has all


def test_environments_are_looked_through_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    live = Rehearsal("fifo", models=["V100"])
    forgets, times = forgetting.Forgetting(live.scheduler.ledger), []
    monkeypatch.setattr(live.store, "forget_environments", times.append)
    every_s = forgetting.FORGET_EVERY_S
    for now in (0.0, 1.0, every_s - 1.0, every_s, every_s + 1.0, 2 * every_s):
        forgets.environments(now)
    assert times == [now - forgetting.KEEP_ENVIRONMENTS_S for now in (0.0, every_s, 2 * every_s)]
