"""A GPU for ten minutes, now: running jobs that lose nothing are suspended for an interactive one, under any policy."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from fake_executor import Suspends
from gpuloom.core.errors import InputError
from gpuloom.executors.port import Rehearsal
from gpuloom.live.dispatch import room
from gpuloom.live.submission.spec import job_spec
from live_builders import Live, living

NOW: dict[str, Any] = {"share_class": "interactive", "priority": 10, "time_limit": 600}


def bears(live: Live, executor: Suspends, job: int, mib: float = 512.0) -> None:
    """Its program was rehearsed."""
    live.until(lambda: live.state(job) == ["running"])
    executor.rehearsed(job, Rehearsal(True, mib, 1.5, 0.5))
    live.until(lambda: (live.service.show(job)["makes_way"] or {}).get("way") == "suspend")


def running(live: Live, executor: Suspends, count: int = 1, *, mib: float = 512.0, **fields: Any) -> list[int]:
    """Jobs that run, each of a program of its own that bears being suspended; of each later one half as much moves."""
    found = []
    for number in range(count):
        found.append(live.submit(command=["train", f"--model={number}"], **fields))
        bears(live, executor, found[-1], mib / 2**number)
    return found


@pytest.mark.parametrize("policy", ["fifo", "srtf", "tiresias", "hlas", "weave", "gavel"])
def test_it_runs_at_once_and_the_other_goes_on_in_the_same_attempt(tmp_path: Path, policy: str) -> None:
    executor = Suspends()
    with living(tmp_path, executor, slots=1, policy=policy) as live:
        (long,) = running(live, executor, estimate=1000)
        waits = live.submit(estimate=5000)
        now = live.submit(**NOW)
        live.until(lambda: live.state(long, now) == ["frozen", "running"])
        assert live.state(waits) == ["queued"]
        assert f"It makes room for job {now}, which is interactive" in live.service.why(long)["sentences"][0]
        assert live.service.show(long)["suspensions"][-1]["mib"] == 512.0
        live.end(now)
        live.until(lambda: "running" in live.state(long, waits))
        if live.state(waits) == ["running"]:  # as the policy says: what nobody makes room for is its business
            live.end(waits)
        live.until(lambda: live.state(long) == ["running"])
        assert live.job(long).attempts == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"time_limit": None},
        {"time_limit": 3601},
        {"priority": 0},
        {"share_class": None},
        {"share_class": "high"},
    ],
)
def test_for_whom_no_room_is_made(tmp_path: Path, fields: dict[str, Any]) -> None:
    executor = Suspends()
    with living(tmp_path, executor, slots=2, policy="fifo") as live:
        both = running(live, executor, 2)
        other = live.service.submit([job_spec({"command": ["train"], **NOW, **fields})], user="ann")[0][0]
        time.sleep(0.3)
        assert (live.state(*both), live.state(other)) == (["running"] * 2, ["queued"])


def test_who_would_lose_something_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "AGAIN_S", 0.05)
    executor = Suspends()
    with living(tmp_path, executor, slots=1, policy="fifo") as live:
        unknown = live.submit()
        now = live.submit_unsettled(job_spec({"command": ["train"], **NOW}))
        time.sleep(0.3)
        assert live.state(unknown, now) == ["running", "queued"]
        bears(live, executor, unknown)  # now it is known to lose nothing
        live.until(lambda: live.state(unknown, now) == ["frozen", "running"])


def test_as_little_as_needed_is_moved(tmp_path: Path) -> None:
    executor = Suspends()
    with living(tmp_path, executor, slots=4, policy="fifo") as live:
        large, small, smallest = running(live, executor, 3, mib=4096.0)
        one = live.submit(**NOW)  # there is a free one
        assert live.state(one) == ["running"]
        two = live.submit(**NOW, gpus=2)
        live.until(lambda: live.state(two) == ["running"])
        assert live.state(large, small, smallest) == ["running", "frozen", "frozen"]
        live.end(one)
        live.settle()
        assert live.state(small, smallest) == ["frozen", "frozen"]
        live.end(two)
        live.until(lambda: live.state(small, smallest) == ["running", "running"])


def test_nobody_makes_room_where_it_may_run_beside_another(tmp_path: Path) -> None:
    executor = Suspends()
    with living(tmp_path, executor, slots=2, policy="fifo") as live:
        (plain,) = running(live, executor)
        training = live.submit(task_type="training")
        now = live.submit(**NOW)
        assert live.state(plain, training, now) == ["running"] * 3
        assert live.book.attempts[now].allocation == live.book.attempts[training].allocation
        more = live.submit(**NOW)
        live.until(lambda: live.state(plain, more) == ["frozen", "running"])


def test_those_who_make_room_go_on_if_it_is_cancelled_or_kept_back(tmp_path: Path) -> None:
    executor = Suspends()
    with living(tmp_path, executor, slots=1, policy="fifo") as live:
        (long,) = running(live, executor)
        now = live.submit(**NOW)
        live.until(lambda: live.state(long, now) == ["frozen", "running"])
        live.service.cancel([now])
        live.until(lambda: live.state(long) == ["running"])
        assert live.job(long).attempts == 1


def test_a_scheduler_that_is_killed_lets_them_go_on_afterwards(tmp_path: Path) -> None:
    executor = Suspends()
    with living(tmp_path, executor, slots=1, policy="fifo") as live:
        (long,) = running(live, executor)
        now = live.submit(**NOW)
        live.until(lambda: live.state(long, now) == ["frozen", "running"])
        live.crash()
    with living(tmp_path, executor, slots=1, policy="fifo") as live:
        live.settle()
        assert live.state(long, now) == ["frozen", "running"]
        live.end(now)
        live.until(lambda: live.state(long) == ["running"])
        assert live.job(long).attempts == 1


@pytest.mark.parametrize("crash", [False, True])
def test_one_that_could_not_be_suspended_after_all_is_queued_again(tmp_path: Path, crash: bool) -> None:
    executor = Suspends()
    with living(tmp_path, executor, slots=1, policy="fifo") as live:
        (long,) = running(live, executor)
        executor.refuses = "error 999"
        now = live.submit(**NOW)
        live.until(lambda: live.state(long, now) == ["held", "running"])
        if crash:
            live.crash()
        else:
            live.end(now)
            live.until(lambda: live.state(long) == ["running"])
            assert live.job(long).attempts == 2
            return
    with living(tmp_path, executor, slots=1, policy="fifo") as live:
        live.settle()
        assert live.state(long, now) == ["held", "running"]
        live.end(now)
        live.until(lambda: live.state(long) == ["running"])
        assert live.job(long).attempts == 2


def test_one_that_is_resumed_by_hand_waits_for_its_gpu_like_others(tmp_path: Path) -> None:
    executor = Suspends()
    with living(tmp_path, executor, slots=1, policy="fifo") as live:
        (long,) = running(live, executor)
        now = live.submit(**NOW)
        live.until(lambda: live.state(long, now) == ["frozen", "running"])
        live.service.resume([long])
        live.settle()
        assert live.state(long, now) == ["frozen", "running"]
        assert "makes room" not in live.service.why(long)["sentences"][0]
        live.end(now)
        live.until(lambda: live.state(long) == ["running"])


def test_what_the_class_means() -> None:
    spec = job_spec({"command": ["a"], "share_class": "interactive"})
    assert (spec.share_class, spec.task_type) == (None, "interactive")
    with pytest.raises(InputError, match="class is 'interactive', but task_type is 'training'"):
        job_spec({"command": ["a"], "share_class": "interactive", "task_type": "training"})
