"""Jobs with on_preempt auto: suspended where their program was seen to bear it, told to end where it was not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fake_executor import Suspends
from gpuloom.executors.port import Rehearsal
from live_builders import Live, living

BORE = Rehearsal(True, 512.0, 1.5, 0.5)
LOST = Rehearsal(False, why="error 999")
COMMAND = ["python", "train.py", "--batch-size", "64"]


def asked_for(live: Live, executor: Suspends, **fields: Any) -> tuple[int, float | None]:
    """A job that is to make way soon, and when its rehearsal was asked for."""
    job = live.submit(estimate=1000, **{"command": COMMAND, **fields})
    live.until(lambda: live.state(job) == ["running"])
    return job, executor.requests[f"{job}.1"].rehearse_s


def makes_way(live: Live, job: int) -> str:
    """Its state once another job needs its slot."""
    other = live.submit(estimate=10)
    live.until(lambda: live.state(other) == ["running"])
    (state,) = live.state(job)
    live.end(other)
    live.until(lambda: live.state(job) == ["running"])
    return state


def told(live: Live, job: int) -> tuple[str, str]:
    found = live.service.show(job)["makes_way"]
    assert found is not None
    return found["way"], found["why"]


def test_a_program_is_rehearsed_once_and_suspended_from_then_on(tmp_path: Path) -> None:
    executor = Suspends()
    with living(tmp_path, executor, slots=1, policy="srtf") as live:
        job, wanted = asked_for(live, executor)
        assert wanted == 60.0
        assert told(live, job) == ("checkpoint", "its program was not rehearsed yet")
        executor.rehearsed(job, BORE)
        live.until(lambda: told(live, job) == ("suspend", ""))
        executor.rehearsed(job, BORE)  # the runner says it again with everything that it says
        live.settle()
        (moved,) = live.service.show(job)["suspensions"]
        assert (moved["rehearsal"], moved["mib"], moved["out_s"], moved["in_s"]) == (True, 512.0, 1.5, 0.5)
        assert makes_way(live, job) == "frozen"
        live.end(job)
        again, wanted = asked_for(live, executor, command=[*COMMAND, "--epochs", "9"])
        assert wanted is None, "these arguments change nothing of it"
        assert told(live, again) == ("suspend", "")
        assert makes_way(live, again) == "frozen"
        live.end(again)
        other, wanted = asked_for(live, executor, command=["python", "train.py", "--batch-size", "128"])
        assert (wanted, told(live, other)[0]) == (60.0, "checkpoint")


def test_one_that_is_not_rehearsed_yet_is_told_to_end(tmp_path: Path) -> None:
    executor = Suspends()
    with living(tmp_path, executor, slots=1, policy="srtf") as live:
        job, _ = asked_for(live, executor)
        assert makes_way(live, job) == "queued"
        assert executor.stops == {f"{job}.1": "preempted"}
        assert [one["why_not"] for one in live.service.show(job)["suspensions"]] == [
            "its program was not rehearsed yet"
        ]


def test_one_that_does_not_bear_it_is_never_suspended_again(tmp_path: Path) -> None:
    executor = Suspends()
    with living(tmp_path, executor, slots=1, policy="srtf") as live:
        job, _ = asked_for(live, executor)
        executor.rehearsed(job, BORE)
        live.until(lambda: told(live, job)[0] == "suspend")
        executor.rehearsed(job, LOST)  # in earnest
        live.until(lambda: told(live, job) == ("checkpoint", "its program does not bear it: error 999"))
        executor.rehearsed(job, BORE)
        assert makes_way(live, job) == "queued"
        assert executor.requests[f"{job}.2"].rehearse_s is None


def test_what_was_seen_is_known_to_the_next_scheduler_but_not_of_another_driver(tmp_path: Path) -> None:
    executor = Suspends()
    with living(tmp_path, executor, slots=1, policy="srtf") as live:
        job, _ = asked_for(live, executor)
        executor.rehearsed(job, BORE)
        live.until(lambda: told(live, job)[0] == "suspend")
        live.end(job)
    with living(tmp_path, executor, slots=1, policy="srtf") as live:
        job, wanted = asked_for(live, executor)
        assert (wanted, told(live, job)) == (None, ("suspend", ""))
        live.end(job)
    executor.driver = "590.2"
    with living(tmp_path, executor, slots=1, policy="srtf") as live:
        job, wanted = asked_for(live, executor)
        assert (wanted, told(live, job)[0]) == (60.0, "checkpoint")


@pytest.mark.parametrize(
    ("fields", "why"),
    [({"share_class": "best-effort"}, "it may share its GPU"), ({"elastic": "1-2"}, "it is elastic")],
)
def test_who_is_not_rehearsed(tmp_path: Path, fields: dict[str, Any], why: str) -> None:
    executor = Suspends()
    with living(tmp_path, executor, slots=1, policy="srtf") as live:
        job, wanted = asked_for(live, executor, **fields)
        assert (wanted, told(live, job)) == (None, ("checkpoint", why))


def test_others_are_as_they_were_asked_to_be(tmp_path: Path) -> None:
    executor = Suspends()
    with living(tmp_path, executor, slots=1, policy="srtf") as live:
        for on_preempt in ("checkpoint", "freeze", "suspend", "never"):
            job, wanted = asked_for(live, executor, on_preempt=on_preempt)
            assert (wanted, told(live, job)) == (None, (on_preempt, ""))
            live.end(job)
