"""A policy that fails costs one decision: the fallback serves, it is said, and the policy is asked again."""

from __future__ import annotations

import math
import queue
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from threading import Event
from typing import Any

import pytest

import failing_policy
from failing_policy import Failing, Memory, everyone_everywhere, raises, recursion
from gpuloom.core.decision import Decision, Placement
from gpuloom.core.errors import PolicyError
from gpuloom.core.job import Phase
from gpuloom.live.planning.standby import FIRST_PAUSE_S, MOST_PAUSE_S
from gpuloom.live.trial.rehearsal import Rehearsal
from gpuloom.policies.registry import BUILT_IN
from gpuloom.store.errors import StoreError
from gpuloom.store.port import JobQuery
from live_builders import living, spec


class MuteError(Exception):
    """An error that can't even be printed."""

    def __str__(self) -> str:
        raise ValueError("no text")


DECISIONS = {
    "an error": raises(KeyError(3)),
    "endless recursion": recursion,
    "no memory": raises(MemoryError()),
    "the end of the program": raises(SystemExit(3)),
    "an interrupt": raises(KeyboardInterrupt()),
    "an error of the store": raises(StoreError("not yours")),
    "an error without text": raises(MuteError()),
    "a stop of an iteration": raises(StopIteration()),
    "nothing": lambda snapshot, memory: "nothing",
    "no pair": lambda snapshot, memory: (Decision(), memory, 1),
    "no decision": lambda snapshot, memory: ({}, memory),
    "no time": lambda snapshot, memory: (Decision(wake_at_s=math.nan), memory),
    "a time in words": lambda snapshot, memory: (Decision(wake_at_s="soon"), memory),  # type: ignore[arg-type]
    "GPUs given twice": everyone_everywhere,
    "a job that is not there": lambda snapshot, memory: (Decision({99: Placement((0,), (1,))}), memory),
    "a job that is no number": lambda snapshot, memory: (Decision({"1": Placement((0,), (1,))}), memory),  # type: ignore[dict-item]
    "no placement": lambda snapshot, memory: (Decision({0: (0, 1)}), memory),  # type: ignore[dict-item]
    "a stop of one that waits": lambda snapshot, memory: (Decision({}, [len(snapshot.workload) - 1]), memory),
}


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    monkeypatch.setitem(BUILT_IN, "failing", "failing_policy:Failing")
    Failing.faults.clear()
    Failing.seen.clear()
    yield Failing.faults
    Failing.faults.clear()


@pytest.fixture
def live(faults: dict[str, Any]) -> Rehearsal:
    return Rehearsal("failing", models=["V100"] * 2)


def running(live: Rehearsal) -> list[int]:
    return [number for number, job in live.jobs.items() if job.phase is Phase.RUNNING]


def told(live: Rehearsal, *types: str) -> list[str]:
    return [event.type for event in live.store.events(types=types, limit=1000)]


@pytest.mark.parametrize("what", DECISIONS)
def test_what_it_decides_costs_one_decision(live: Rehearsal, faults: dict[str, Any], what: str) -> None:
    (first,) = live.submit({"gpus": 1})
    assert running(live) == [first]
    faults["decide"] = DECISIONS[what]
    second, third = live.submit({"gpus": 1}, {"gpus": 1})
    assert running(live) == [first, second]  # at once, by the fallback
    failure = live.service.status()["policy_failure"]
    assert failure["policy"] == "failing"
    assert failure["call"] == "decide"
    assert failure["serves"] == "fifo"
    assert failure["times"] == 1
    assert failure["since_s"] == live.now_s
    assert "policy failing fails since" in live.service.status()["policy_problem"]
    assert live.service.policy()["serves"] == "fifo"
    why = live.service.why(third)
    assert "failing" in why["text"]
    assert "fifo is used in its place" in why["text"]
    live.end(f"{first}.1")
    assert running(live) == [second, third]
    faults.clear()
    live.later(10 * MOST_PAUSE_S)
    assert live.service.status()["policy_failure"] is None
    assert not live.service.status()["policy_problem"]
    assert told(live, "policy.failed", "policy.recovered") == ["policy.failed", "policy.recovered"]


@pytest.mark.parametrize("call", ["new_memory", "carried", "sharing", "learn_from", "begin"])
def test_every_other_call_as_well(live: Rehearsal, faults: dict[str, Any], call: str) -> None:
    live.submit({"gpus": 1})
    live.tell(lambda: live.service.set_policy("failing:beside=no"))  # with it, sharing is not the policy's own
    faults[call] = raises(SystemExit("out"))
    if call in ("learn_from", "begin", "new_memory"):
        live.restart(orderly=False)
    jobs = live.submit({"gpus": 1}, {"gpus": 1})
    if call != "new_memory":  # not asked for where there is a memory
        assert live.service.status()["policy_failure"]["call"] == call
    assert len(running(live)) == 2
    faults.clear()
    live.later(10 * MOST_PAUSE_S)
    assert not live.scheduler.problem
    for _ in range(3):
        for run in sorted(live.executor.live()):
            live.end(run)
    assert not live.going(), jobs


def test_where_it_failed_is_said(live: Rehearsal, faults: dict[str, Any]) -> None:
    faults["decide"] = raises(KeyError("which"))
    live.submit({"gpus": 1})
    failure = live.service.status()["policy_failure"]
    assert failure["error"] == "KeyError: 'which'"
    name, _, line = failure["where"].partition(":")
    assert name == failing_policy.__file__.rpartition("/")[2]
    assert int(line) > 0


def test_it_is_asked_again_after_a_pause_that_grows(live: Rehearsal, faults: dict[str, Any]) -> None:
    times: list[float] = []

    def fails(*arguments: Any) -> Any:
        times.append(live.now_s)
        raise ValueError("again")

    faults["decide"] = fails
    live.submit({"gpus": 2}, {"gpus": 2})
    live.later(3600.0)
    gaps = [b - a for a, b in pairwise(times)]
    assert gaps[0] == FIRST_PAUSE_S
    assert gaps == sorted(gaps)
    assert max(gaps) == MOST_PAUSE_S
    assert told(live, "policy.failed") == ["policy.failed"]  # once, not for each
    assert live.service.status()["policy_failure"]["times"] == len(times)


def test_each_failure_is_logged_once_and_the_first_with_where_it_was(
    live: Rehearsal, faults: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    times: list[float] = []

    def fails(*arguments: Any) -> Any:
        times.append(live.now_s)
        raise ValueError("again")

    def lines() -> list[bool]:
        found = [one for one in caplog.records if one.getMessage().startswith("policy failing failed: ")]
        return [bool(one.exc_info) for one in found]

    faults["decide"] = fails
    live.submit({"gpus": 2}, {"gpus": 2})
    live.later(300.0)
    assert len(times) > 2
    assert lines() == [True] + [False] * (len(times) - 1)
    faults.clear()
    live.later(10 * MOST_PAUSE_S)
    live.submit({"gpus": 1})
    assert len(lines()) == len(times)


def test_it_is_asked_again_when_jobs_have_come(live: Rehearsal, faults: dict[str, Any]) -> None:
    faults["decide"] = raises(ValueError("again"))
    live.submit({"gpus": 2}, {"gpus": 2})
    live.later(1000.0)
    faults.clear()
    live.submit({"gpus": 1})
    failure = live.service.status()["policy_failure"]
    assert failure["serves"] == "failing"  # on trial
    assert "on trial" in live.service.status()["policy_problem"]


def test_now_and_then_is_one_failure(live: Rehearsal, faults: dict[str, Any]) -> None:
    live.submit({"gpus": 2}, {"gpus": 2})
    for _ in range(5):
        faults["decide"] = raises(ValueError("now"))
        live.submit({"gpus": 1})
        faults.clear()
        live.submit({"gpus": 1})
        live.later(FIRST_PAUSE_S / 2)
    assert told(live, "policy.failed", "policy.recovered") == ["policy.failed"]


def test_what_it_remembers_is_kept_over_one_failure(live: Rehearsal, faults: dict[str, Any]) -> None:
    for _ in range(3):
        live.submit({"gpus": 2})
    live.later(60.0)  # written down
    known = Failing.seen[-1]
    faults["decide"] = raises(ValueError("once"))
    live.submit({"gpus": 2})
    faults.clear()
    live.later(2 * FIRST_PAUSE_S)
    assert Failing.seen[-1] > known


def test_a_memory_that_makes_it_fail_is_given_up(live: Rehearsal, faults: dict[str, Any]) -> None:
    def poisoned(snapshot: Any, memory: Memory) -> Any:
        if memory.calls > 1:
            raise ValueError("poisoned")

    live.submit({"gpus": 2})
    live.submit({"gpus": 2})
    live.later(60.0)
    faults["decide"] = poisoned
    live.submit({"gpus": 2})
    assert live.service.status()["policy_failure"]["serves"] == "fifo"
    live.later(5 * FIRST_PAUSE_S)
    assert Failing.seen[-1] == 1  # begun anew


def test_a_memory_that_cannot_be_written_down(live: Rehearsal, faults: dict[str, Any]) -> None:
    def odd(snapshot: Any, memory: Memory) -> Any:
        memory.odd = {1, 2}

    faults["decide"] = odd
    (first,) = live.submit({"gpus": 1})
    live.later(60.0)
    failure = live.service.status()["policy_failure"]
    assert failure["call"] == "write memory"
    assert failure["serves"] == "failing"  # it decides all the same
    assert "memory.odd is a set" in live.service.status()["policy_problem"]
    live.scheduler._save_memory(force=True)  # as at the end
    faults.clear()
    live.restart(orderly=True)
    assert running(live) == [first]
    live.submit({"gpus": 1})
    live.later(60.0)
    assert not live.scheduler.problem


DAMAGED = [
    b"",
    b"\xff" * 99,
    b"[]\n",
    b'{"jobs": [1]}\n',
    b"[" * 100_000,
    b'{"jobs":[],"nodes":[],"met":[],"empty":false}\nx',
]


@pytest.mark.parametrize("saved", DAMAGED, ids=range(len(DAMAGED)))
def test_it_comes_up_with_a_memory_that_cannot_be_read(live: Rehearsal, saved: bytes) -> None:
    live.submit({"gpus": 1})
    live.store.save_memory("failing", saved)
    live.restart(orderly=False)
    live.submit({"gpus": 1})
    assert len(running(live)) == 2
    assert not live.scheduler.problem


@pytest.mark.usefixtures("faults")
def test_it_comes_up_when_the_policy_is_gone(live: Rehearsal, monkeypatch: pytest.MonkeyPatch) -> None:
    live.submit({"gpus": 1})
    monkeypatch.delitem(BUILT_IN, "failing")  # its package was uninstalled
    live.restart(orderly=True)
    live.submit({"gpus": 1})
    assert len(running(live)) == 2
    failure = live.service.status()["policy_failure"]
    assert "unknown policy 'failing'" in failure["error"]
    assert live.service.policy()["policy"] == "failing"
    monkeypatch.setitem(BUILT_IN, "failing", "failing_policy:Failing")
    live.later(10 * FIRST_PAUSE_S)
    assert not live.scheduler.problem
    assert live.service.policy()["serves"] == "failing"


def test_one_that_is_asked_for_now_must_be_there(live: Rehearsal, faults: dict[str, Any]) -> None:
    with pytest.raises(PolicyError, match="unknown policy 'nobody'"):
        live.service.set_policy("nobody")
    faults["begin"] = raises(SystemExit(1))
    with pytest.raises(PolicyError, match="can't be made: SystemExit: 1"):
        live.service.set_policy("failing")
    assert live.service.policy()["policy"] == "failing"  # the one before goes on
    assert not live.scheduler.problem


def test_another_policy_ends_the_failure(live: Rehearsal, faults: dict[str, Any]) -> None:
    faults["decide"] = raises(ValueError("bad"))
    live.submit({"gpus": 2}, {"gpus": 2})
    live.tell(lambda: live.service.set_policy("srtf"))
    assert not live.scheduler.problem
    assert live.service.policy()["serves"] == "srtf"


def test_a_reason_that_cannot_be_given_costs_no_list(live: Rehearsal, faults: dict[str, Any]) -> None:
    faults["reason"] = raises(SystemExit(1))
    *_, last = live.submit({"gpus": 2}, {"gpus": 2})
    waiting = live.service.job(last)["waiting"]
    assert waiting is not None
    assert waiting["code"] == "policy_failed"
    assert live.service.why(last)["text"]


def test_one_that_wants_to_be_asked_at_once_leaves_time_for_others(live: Rehearsal, faults: dict[str, Any]) -> None:
    faults["decide"] = lambda snapshot, memory: (Decision(wake_at_s=snapshot.now_s - 1), memory)
    live.submit({"gpus": 1})
    assert live.scheduler.planning.due_s() > live.now_s


@pytest.mark.usefixtures("faults")
def test_one_that_does_not_come_back_is_said_to(
    faults: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread of the scheduler is the policy's until it answers; all else is told so, and nothing waits for ever."""
    monkeypatch.setattr("gpuloom.live.scheduler.SLOW_PASS_S", 0.1)
    deciding, answers = Event(), Event()

    def waits(*arguments: Any) -> None:
        deciding.set()
        answers.wait()

    with living(tmp_path / "home", policy="failing") as live:
        try:
            first = live.submit(gpus=4)
            faults["decide"] = waits
            second = live.submit_unsettled(spec(gpus=1))
            assert deciding.wait(30.0)
            live.until(lambda: "has been deciding for" in live.service.status()["policy_problem"])
            views = {view["id"]: view for view in live.service.jobs(JobQuery())}
            assert views[first]["state"] == "running"
            assert "has been deciding for" in views[second]["waiting"]["text"]
            with pytest.raises(StoreError, match="has been deciding for"):
                live.service.cancel([second])
        finally:
            faults.clear()
            answers.set()
        live.settle()
        assert not live.service.status()["policy_problem"]
        assert live.state(second) == ["queued"]  # what was given up is not done later


def test_one_that_cannot_begin_is_refused_by_name(live: Rehearsal, faults: dict[str, Any]) -> None:
    faults["learn_from"] = raises(KeyError("what"))
    with pytest.raises(PolicyError, match="policy 'failing' can't start: KeyError: 'what'"):
        live.service.set_policy("failing")
    with pytest.raises(PolicyError, match="policy 'failing' can't start"):
        Rehearsal("failing")
    assert not live.scheduler.problem


def test_that_it_works_again_is_written_down_once_the_store_can_be_written(
    live: Rehearsal, faults: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    faults["decide"] = raises(KeyError(3))
    live.submit({"gpus": 1})
    faults.clear()
    live.later(FIRST_PAUSE_S)  # it is on trial
    with monkeypatch.context() as patch:
        patch.setattr(live.store, "append", raises(StoreError("the disk is full")))
        live.now_s += MOST_PAUSE_S
        live.scheduler._turn()
        assert live.service.status()["policy_failure"] is not None
    live.later(MOST_PAUSE_S)
    assert live.service.status()["policy_failure"] is None
    assert told(live, "policy.failed", "policy.recovered") == ["policy.failed", "policy.recovered"]


def test_while_the_store_can_not_be_written_the_scheduler_rests(live: Rehearsal) -> None:
    """Also if the policy's memory waits to be written."""
    scheduler, waits = live.scheduler, []

    class Inbox:
        def get(self, timeout: float | None) -> None:
            waits.append(timeout)
            raise queue.Empty

    scheduler._inbox = Inbox()  # type: ignore[assignment]
    scheduler._blocked_until_s = live.now_s + 1.0
    scheduler.policy_record.unsaved, scheduler.policy_record.saved_s = True, 0.0
    scheduler._turn()
    assert waits == [1.0]
