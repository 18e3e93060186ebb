"""What the executor is told and what is made of what it says, on a clock that stands still."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from gpuloom.core.job import EndReason, GpuState
from gpuloom.executors.local_files import LocalFiles
from gpuloom.executors.port import Cause, ExecutorError, RunExit, RunPhase, RunStatus, RunUsage
from gpuloom.live.dispatch import intake
from gpuloom.live.dispatch.saved import Saved
from gpuloom.live.trial.rehearsal import Rehearsal
from gpuloom.live.views.job_answers import WhyView


class Told:
    """A rehearsal, and what its executor is told.

    deaf: so many of the next messages can't reach it. silent: what it is told changes nothing.
    """

    def __init__(self, *, gpus: int = 2, policy: str = "fifo") -> None:
        self.live = Rehearsal(policy, models=["V100"] * gpus)
        self.said: list[tuple[Any, ...]] = []
        self.deaf = 0
        self.silent: set[str] = set()
        executor: Any = self.live.executor
        for name in ("start", "stop", "freeze", "thaw", "limit", "acknowledge"):
            setattr(executor, name, self._noted(name, getattr(executor, name)))

    def _noted(self, name: str, real: Any) -> Any:
        def call(what: Any, *more: Any, **named: Any) -> None:
            if self.deaf > 0:
                self.deaf -= 1
                raise ExecutorError("it does not listen")
            run = (what if isinstance(what, str) else what.run).partition("-")[0]
            self.said.append((name, run, *more, *named.values()))
            if name not in self.silent:
                real(what, *more, **named)

        return call

    def take(self) -> list[tuple[Any, ...]]:
        """What it was told since this was asked last."""
        found, self.said = self.said, []
        return found

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [dict(event.data) for event in self.live.store.events(after=0, limit=1000) if event.type == kind]

    def states(self) -> list[str]:
        return [job.phase.value for job in self.live.jobs.values()]

    def say(self, run: str, phase: RunPhase, **how: Any) -> None:
        """The executor says this of a run that it may not have started."""
        status = self.live.executor.states.get(run, RunStatus(run, phase, 77, 1, "boot"))
        status = replace(status, phase=phase)
        if how:
            plain = {"exit_code": 0, "signal": None, "reason": None, "message": "", "at_s": self.live.now_s}
            status = replace(status, exit=RunExit(**{**plain, **how}))
        self.live.executor._say(status)
        self.live.turn()


def test_a_start_and_a_good_end() -> None:
    told = Told()
    told.live.submit({"gpus": 1, "time_limit": 60.0})
    assert told.take() == [("start", "1.1")]
    told.live.later(10.0)
    told.live.tell(lambda: told.live.service.update([1], {"time_limit": 90.0}))
    assert told.take() == [("limit", "1.1", 90.0)]
    told.say("1.1", RunPhase.EXITED, exit_code=0)
    assert (told.take(), told.states()) == ([("acknowledge", "1.1")], ["finished"])


def test_graces() -> None:
    """The spec's, or what was asked for; who is told again has no more time than before, and may have less."""
    told = Told(gpus=3)
    told.silent.add("stop")
    told.live.submit(*[{"gpus": 1, "grace": 40.0}] * 3)
    told.take()
    service = told.live.service
    told.live.tell(lambda: service.cancel([1]))
    told.live.tell(lambda: service.cancel([2], grace_s=5.0))
    assert told.take() == [("stop", "1.1", EndReason.CANCELLED, 40.0), ("stop", "2.1", EndReason.CANCELLED, 5.0)]
    now = told.live.now_s
    assert [event["deadline_s"] - now for event in told.events("attempt.stopping")] == [40.0, 5.0]
    told.live.later(10.0)
    told.live.tell(lambda: service.cancel([1]))
    told.live.tell(lambda: service.cancel([1], grace_s=3.0))
    told.live.tell(lambda: service.cancel([2]))
    assert [message[3] for message in told.take()] == [30.0, 3.0, 0.0]
    told.live.tell(lambda: service.requeue([3]))
    assert told.take() == [("stop", "3.1", EndReason.REQUEUED, 40.0)]
    told.live.later(10.0)
    told.live.tell(lambda: service.cancel([3]))
    assert told.take() == [("stop", "3.1", EndReason.CANCELLED, 40.0)], "for another reason it has all its time"


def test_an_executor_that_does_not_listen_is_told_later_and_in_order() -> None:
    told = Told()
    told.live.submit({"gpus": 1})
    told.take()
    dispatch, now = told.live.scheduler.dispatch, told.live.now_s
    run, executor = told.live.scheduler.book.attempts[1].run, told.live.executor
    told.deaf = 2
    dispatch.retry_s = math.inf
    for seconds in (10.0, 20.0):
        dispatch.tell(lambda seconds=seconds: executor.limit(run, seconds))
    assert (told.take(), told.deaf) == ([], 1), "the second one waits for the first"
    assert (dispatch.problem, dispatch.retry_s) == ("it does not listen", now + 1.0)
    dispatch.hand_over(now)
    assert (told.take(), told.deaf, dispatch.problem) == ([], 0, "it does not listen")
    dispatch.hand_over(now)
    assert (told.take(), dispatch.problem) == ([("limit", "1.1", 10.0), ("limit", "1.1", 20.0)], "")
    told.deaf = 1
    told.live.submit({"gpus": 1})
    assert told.take() == [("start", "2.1")], "at the next try"


def test_who_does_not_freeze_in_time_is_told_to_end() -> None:
    told = Told(gpus=1, policy="srtf")
    told.silent.add("freeze")
    told.live.submit({"gpus": 1, "estimate": 1000.0, "on_preempt": "freeze", "grace": 7.0})
    told.live.submit({"gpus": 1, "estimate": 10.0})
    told.take()
    began = told.live.now_s + 20.0  # the next full minute
    told.live.later(25.0)
    assert told.take() == [("freeze", "1.1")]
    assert told.live.scheduler.planning.claims.freezing() == {1: began}
    told.live.now_s = began + 5.001
    told.live.turn()
    assert told.take()[:1] == [("stop", "1.1", EndReason.PREEMPTED, 7.0)]


def test_who_froze_goes_on_where_it_was() -> None:
    told = Told(gpus=1, policy="srtf")
    told.live.submit({"gpus": 1, "estimate": 1000.0, "on_preempt": "freeze"})
    told.live.submit({"gpus": 1, "estimate": 10.0})
    told.take()
    told.live.later(60.0)
    assert [message[:2] for message in told.take()] == [("freeze", "1.1"), ("start", "2.1")]
    assert told.states() == ["frozen", "running"]
    told.live.end("2.1")
    assert [message[:2] for message in told.take()] == [("acknowledge", "2.1"), ("thaw", "1.1")]
    assert told.states() == ["running", "finished"]
    assert told.events("attempt.thawed") == [{"allocation": [["here", [0]]]}]


@pytest.mark.parametrize(("keeps", "way"), [(False, "checkpoint"), (True, "checkpoint"), (False, "freeze")])
def test_policies_are_told_what_a_stop_costs_a_job_that_keeps_nothing(keeps: bool, way: str) -> None:
    """After an attempt of which nothing was kept it would do all again that it has done since it started."""
    told = Told(gpus=1, policy="srtf")
    told.live.submit({"gpus": 1, "estimate": 1000.0, "retries": 1, "on_preempt": way})
    told.live.later(200.0)
    run = told.live.scheduler.book.attempts[1].run
    if keeps:
        told.live.submit({"gpus": 1, "estimate": 10.0})
        told.live.later(60.0)
        assert ("stop", "1.1") in [message[:2] for message in told.take()]  # it ends with 85: it has saved
        told.live.end(told.live.scheduler.book.attempts[2].run)
    else:
        told.live.end(run, 1)
    told.live.later(100.0)
    (other,) = told.live.submit({"gpus": 1, "estimate": 5000.0})  # the policy's world is built anew
    world = told.live.scheduler.planning.worlds.now
    assert world is not None
    snapshot, row = world.engine.snapshot, world.row_of[1]
    ran_s = told.live.now_s - told.live.scheduler.book.attempts[1].since_s
    assert ran_s > 50.0
    lost_s = 0.0 if keeps or way == "freeze" else ran_s
    assert snapshot.again_s[row] == pytest.approx(snapshot.restart_overhead_s[row] + lost_s)
    assert snapshot.again_s[world.row_of[other]] == snapshot.restart_overhead_s[row]


@pytest.mark.parametrize("anew", [False, True])
def test_who_froze_gets_its_own_gpu_back_though_another_one_comes_first(anew: bool) -> None:
    """A policy takes the first free GPU; on another one than its own a job would have to begin anew."""
    told = Told(gpus=2, policy="srtf")
    told.live.submit({"gpus": 1, "estimate": 900.0})
    told.live.submit({"gpus": 1, "estimate": 1000.0, "on_preempt": "freeze"})
    told.live.submit({"gpus": 1, "estimate": 500.0})
    told.live.later(60.0)
    assert [message[:2] for message in told.take()][-2:] == [("freeze", "2.1"), ("start", "3.1")]
    if anew:  # the policy's world is built from the records
        told.live.submit({"gpus": 1, "estimate": 5000.0})
    told.live.executor.end(told.live.scheduler.book.attempts[1].run, 0)
    told.live.executor.end(told.live.scheduler.book.attempts[3].run, 0)
    told.live.turn()
    (thawed,) = told.events("attempt.thawed")
    assert thawed == {"allocation": [["here", [1]]]}
    assert told.events("attempt.stopping") == []


def test_a_run_that_is_not_known_is_ended_before_anything_starts() -> None:
    told = Told()
    told.silent.add("stop")
    for number in (99, 98, 97, 96, 95, 94):
        told.live.executor._say(RunStatus(f"{number}.1-ab", RunPhase.RUNNING, 77, 1, "boot"))
    told.live.turn()
    told.live.submit({"gpus": 1})
    assert sorted(told.take()) == [("stop", f"{number}.1", EndReason.CANCELLED, 10.0) for number in range(94, 100)]
    intake = told.live.scheduler.intake
    assert intake.strangers_text == (
        "runs that this store does not know to be running (an older backup was restored): 94.1-ab, 95.1-ab, 96.1-ab, "
        "97.1-ab, 98.1-ab and 1 more; they were told to stop, which takes at most 10 s; no job starts on their nodes "
        "before they have"
    )
    assert told.states() == ["queued"]
    for run in list(told.live.executor.states):
        told.say(run, RunPhase.EXITED, exit_code=0)
    assert intake.strangers_text == ""
    assert [message[0] for message in told.take()] == ["acknowledge"] * 6 + ["start"]
    assert told.states() == ["running"]


def test_gpus_that_an_ended_run_still_holds_are_given_to_nobody() -> None:
    told = Told()
    told.live.submit({"gpus": 2})
    told.take()
    told.say("1.1", RunPhase.EXITED, exit_code=0, released=False)
    told.live.submit({"gpus": 1})
    node = told.live.scheduler.book.nodes["here"]
    assert [(gpu.state, gpu.reason) for gpu in node.gpus] == [
        (GpuState.UNHEALTHY, "still in use after its job ended")
    ] * 2
    assert (told.take(), told.states()) == ([], ["finished", "queued"])
    told.say("1.1", RunPhase.EXITED, exit_code=0, released=True)
    node = told.live.scheduler.book.nodes["here"]
    assert [(gpu.state, gpu.reason) for gpu in node.gpus] == [(GpuState.OK, "")] * 2
    assert sorted(told.take()) == [("acknowledge", "1.1"), ("start", "2.1")]


@pytest.mark.parametrize(
    ("cause", "state", "problem"),
    [
        (Cause.JOB, "failed", ""),
        (Cause.PLACE, "queued", ""),
        (Cause.EXECUTOR, "queued", "no space (jobs wait; the next try is within 30s)"),
    ],
)
def test_starts_that_fail(cause: Cause, state: str, problem: str) -> None:
    told = Told()
    told.silent.add("start")
    told.live.submit({"gpus": 1})
    run = told.live.scheduler.book.attempts[1].run
    how = RunExit(None, None, EndReason.NOT_STARTED, "no space", told.live.now_s, cause=cause)
    told.live.executor._say(RunStatus(run, RunPhase.EXITED, exit=how))
    told.live.turn()
    assert told.states() == [state]
    assert told.live.scheduler.dispatch.starts.problem == problem
    assert told.events("attempt.running") == [], "it never ran"
    if state == "queued":
        why: WhyView = told.live.service.why(1)
        assert why["code"] in ("start_failed", "executor_in_trouble")


def test_what_can_never_start_ends_with_what_it_waits_for() -> None:
    """Through several jobs; not those that wait for an end of any kind."""
    told = Told()
    told.live.submit({"gpus": 1})
    told.live.submit({"after": [1]}, {"after_any": [1]})
    told.live.submit({"after": [2]}, {"after_any": [2]}, {"after": [2], "after_any": [1]})
    told.say("1.1", RunPhase.EXITED, exit_code=3)
    assert told.states() == ["failed", "cancelled", "running", "cancelled", "running", "cancelled"]
    assert told.live.jobs[2].message == "cancelled, as job 1, which it waits for, failed"
    assert told.live.jobs[4].message == "cancelled, as job 2, which it waits for, was cancelled"
    assert len(told.events("job.cancelled")) == 3


def test_all_make_way_when_the_scheduler_stops_them() -> None:
    told = Told()
    told.live.submit({"gpus": 1}, {"gpus": 1, "grace": 3.0}, {"gpus": 1})
    told.take()
    told.live.scheduler.dispatch.stop_all()
    told.live.scheduler.dispatch.stop_all()
    assert told.take() == [
        ("stop", "1.1", EndReason.PREEMPTED, 30.0), ("stop", "2.1", EndReason.PREEMPTED, 3.0),
    ]  # fmt: skip


def test_reports_of_progress_and_flags() -> None:
    told = Told()
    told.live.submit({"gpus": 1, "estimate": 1000.0})
    run, scheduler = told.live.scheduler.book.attempts[1].run, told.live.scheduler
    told.live.later(100.0)
    usage = RunUsage(run, progress={"fraction": 0.25, "first_s": told.live.now_s - 80.0, "at_s": told.live.now_s})
    told.live.tell(
        lambda: scheduler.sampled(scheduler.here, {run: usage, "9.1-x": usage}, [], [(run, "stuck", "it idles")])
    )
    assert told.events("job.flagged") == [{"flag": "stuck", "text": "it idles"}]
    assert scheduler.work.told_s[1] == pytest.approx(80.0 / 0.25)
    told.live.tell(lambda: scheduler.sampled(scheduler.here, {}, [], [("9.1-x", "stuck", "x")]))
    assert len(told.events("job.flagged")) == 1


def test_a_policy_that_can_not_make_its_memory_costs_one_decision() -> None:
    told = Told()
    planning = told.live.scheduler.planning

    def fails(*_: object) -> None:
        raise ZeroDivisionError("no memory")

    planning.policy.new_memory = fails  # type: ignore[method-assign]
    told.live.submit({"gpus": 1})
    failure = planning.seat.standby.failure
    assert failure is not None
    assert (failure.call.value, failure.error, failure.serves) == ("new_memory", "ZeroDivisionError: no memory", "fifo")
    assert told.states() == ["running"]


@pytest.mark.parametrize(("noticed", "expected"), [(500.0, 500.0), (None, 2_000.0 - (10.0 - 40.0) - 40.0)])
def test_when_it_got_notice(noticed: float | None, expected: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the file that says so; where it could not be written, by the deadline."""
    told = Told()
    told.silent.add("stop")
    told.live.submit({"gpus": 1, "grace": 40.0})
    told.live.tell(lambda: told.live.service.cancel([1]))
    told.live.later(10.0)
    notices: list[float | None] = []

    def saved(how: Any, reported: Any, *, notice_s: float | None, checkpoint_s: float | None) -> Saved:
        notices.append(notice_s)
        return Saved()

    monkeypatch.setattr(intake, "saved", saved)
    monkeypatch.setattr(LocalFiles, "noticed_s", lambda files, run: noticed)
    monkeypatch.setattr(intake, "time", SimpleNamespace(time=lambda: 2_000.0))
    told.say("1.1", RunPhase.EXITED, exit_code=1)
    assert notices == [expected]


@pytest.mark.parametrize(
    ("how", "called"),
    [
        ({"reason": EndReason.NOT_STARTED, "exit_code": None, "cause": Cause.JOB}, ("began",)),
        ({"reason": EndReason.NOT_STARTED, "exit_code": None, "cause": Cause.EXECUTOR}, ("failed", True)),
        ({"reason": EndReason.NOT_STARTED, "exit_code": None, "cause": Cause.PLACE}, ("failed", False)),
        ({"exit_code": 0}, ("began",)),
        ({"exit_code": None, "signal": 9}, ("began",)),
        ({"exit_code": None, "reason": EndReason.LOST}, ("gone",)),
    ],
)
def test_what_an_end_says_of_starts(
    how: dict[str, Any], called: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    told, calls = Told(), list[tuple[Any, ...]]()
    told.silent.add("start")
    told.live.submit({"gpus": 1})
    run, starts = told.live.scheduler.book.attempts[1].run, told.live.scheduler.dispatch.starts
    monkeypatch.setattr(starts, "began", lambda run, job: calls.append(("began",)))
    monkeypatch.setattr(starts, "gone", lambda run, job: calls.append(("gone",)))
    monkeypatch.setattr(starts, "failed", lambda *_, everywhere, why: calls.append(("failed", everywhere)))
    plain = {"exit_code": 0, "signal": None, "reason": None, "message": "", "at_s": told.live.now_s}
    told.live.executor._say(RunStatus(run, RunPhase.EXITED, 77, 1, "boot", exit=RunExit(**{**plain, **how})))
    told.live.turn()
    assert calls == [called]
