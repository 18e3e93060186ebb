"""What becomes of a job when an attempt of it has ended."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuloom.core.job import Attempt, EndReason, Job, Phase, SavedBy
from gpuloom.core.kept import Kept
from gpuloom.core.spec import Spec
from gpuloom.executors.port import Cause, RunExit
from gpuloom.live.dispatch.ends import ended
from gpuloom.live.dispatch.faults import Fault
from gpuloom.live.dispatch.saved import Saved

JOB = Job(
    id=1,
    name="train",
    user="ann",
    gpus=1,
    priority=0,
    phase=Phase.RUNNING,
    spec_id=1,
    spec=Spec(("train",), retries=1),
    submitted_s=0.0,
    queued_s=0.0,
    attempts=1,
    work_s=50.0,
)
ATTEMPT = Attempt(1, 1, Phase.RUNNING, (("host", (0,)),), 0.0, 0.0, pid=7)
NO_RETRIES = {"spec": Spec(("train",))}


def told(
    code: int | None,
    *,
    reason: str = "",
    stop: EndReason | None = None,
    signal: int | None = None,
    message: str = "",
    complete: bool = False,
    saves: Saved = Saved(),  # noqa: B008 - it is frozen
    cause: Cause = Cause.NONE,
    **job: object,
) -> tuple[str, str, float, bool]:
    """(reason, what is next, work kept, counts as a failure) of an attempt that worked for 100 s."""
    how = RunExit(code, signal, EndReason(reason) if reason else None, message, 100.0, cause=cause)
    attempt = replace(ATTEMPT, stop_reason=stop)
    data = ended(replace(JOB, **job), attempt, how, work_s=100.0, complete=complete, now_s=100.0, saves=saves)  # type: ignore[arg-type]
    return data["reason"], data["next"], data["work_s"], data["failure"]


def test_what_the_executor_says_goes_with_the_exit_code() -> None:
    def said(code: int | None) -> str:
        how = RunExit(code, None, None, "processes 7 and 8 are left", 100.0)
        message = ended(JOB, ATTEMPT, how, work_s=1.0, complete=False, now_s=1.0)["message"]
        assert isinstance(message, str)
        return message

    assert said(3) == "processes 7 and 8 are left; exit code 3"
    assert said(0) == said(None) == "processes 7 and 8 are left"


def test_by_itself() -> None:
    assert told(0) == ("finished", "finished", 150.0, False)
    assert told(1) == ("failed", "queued", 50.0, True)
    assert told(1, failures=1) == ("failed", "failed", 50.0, True)
    assert told(None, signal=11, failures=1) == ("failed", "failed", 50.0, True)
    assert told(85, failures=1) == ("failed", "failed", 50.0, True)  # nobody asked it to stop


@pytest.mark.parametrize("stop", [EndReason.PREEMPTED, EndReason.NODE])
def test_making_way_is_no_failure(stop: EndReason) -> None:
    for by in (SavedBy.EXIT_CODE, SavedBy.SAVED_STEP, SavedBy.CHECKPOINT):  # it left in time: what it saved is kept
        assert told(0, reason=stop, stop=stop, saves=Saved(by)) == (stop, "queued", 150.0, False)
    for code in (0, 3, 143):  # nothing says that it did
        assert told(code, reason=stop, stop=stop) == (stop, "queued", 50.0, False)
        assert told(code, reason=stop, stop=stop, saves=Saved(part=0.5)) == (stop, "queued", 75.0, False)
    assert told(None, signal=9, reason=stop, stop=stop) == (stop, "queued", 50.0, False)
    assert told(None, reason="lost", stop=stop) == (stop, "queued", 50.0, False)
    assert told(0, reason=stop, stop=stop, complete=True) == ("finished", "finished", 150.0, False)


def test_it_failed_on_its_own_while_it_was_to_make_way() -> None:
    assert told(1, stop=EndReason.PREEMPTED) == ("failed", "queued", 50.0, True)
    assert told(None, reason="out_of_memory", stop=EndReason.PREEMPTED)[0] == "out_of_memory"


def test_a_fault_that_is_not_its_own_is_no_failure() -> None:
    how = RunExit(1, None, None, "", 100.0)
    fault = Fault(EndReason.NODE, "1 GPU of it failed")
    data = ended(replace(JOB, failures=1), ATTEMPT, how, work_s=100.0, complete=False, now_s=100.0, fault=fault)
    assert (data["reason"], data["next"], data["failure"]) == ("node", "queued", False)
    assert data["message"] == "exit code 1; 1 GPU of it failed"
    cancelled = replace(ATTEMPT, stop_reason=EndReason.CANCELLED)
    assert ended(JOB, cancelled, how, work_s=1.0, complete=False, now_s=1.0, fault=fault)["next"] == "cancelled"


def test_one_that_was_done_and_was_not_seen_to_end_does_not_begin_anew() -> None:
    assert told(None, reason="lost", complete=True) == ("finished", "finished", 150.0, False)


def test_what_its_user_wants_counts() -> None:
    for code, reason in ((85, "cancelled"), (None, "lost"), (85, "timed_out"), (1, "")):
        assert told(code, reason=reason, stop=EndReason.CANCELLED)[:2] == ("cancelled", "cancelled")
    assert told(0, stop=EndReason.CANCELLED)[:2] == ("finished", "finished")  # it was done before
    assert told(None, reason="requeued", stop=EndReason.REQUEUED) == ("requeued", "queued", 0.0, False)


def test_what_was_saved_before_is_kept_however_it_ends() -> None:
    half, first = Saved(part=0.5), Saved(part=0.1)
    assert told(None, signal=9, reason="preempted", stop=EndReason.PREEMPTED, saves=half)[2] == 75.0
    assert told(None, reason="lost", saves=half)[2] == 75.0
    assert told(1, saves=half)[2] == 75.0
    assert told(1, saves=first)[2] == 50.0  # never less than it began with
    assert told(None, reason="requeued", stop=EndReason.REQUEUED, saves=half)[2] == 0.0


def test_an_end_without_proof_is_said() -> None:
    def message(code: int, saves: Saved) -> str:
        how = RunExit(code, None, EndReason.PREEMPTED, "", 100.0)
        attempt = replace(ATTEMPT, stop_reason=EndReason.PREEMPTED)
        data = ended(JOB, attempt, how, work_s=100.0, complete=False, now_s=100.0, saves=saves)
        assert (data["saved"], data["saved_by"]) == (bool(saves.by), saves.by.value)
        return str(data["message"])

    assert "exit code 0 after the notice, without proof that it saved: its work in this attempt" in message(0, Saved())
    assert "since the last save it reported counts as lost" in message(0, Saved(part=0.9))
    assert "proof" not in message(0, Saved(SavedBy.CHECKPOINT))
    assert "counts as lost (Keras: no place to save)." in message(0, Saved(why_not="Keras: no place to save"))


def test_one_that_dies_of_the_notice_says_why_it_was_not_saved() -> None:
    how = RunExit(None, 15, EndReason.PREEMPTED, "", 100.0)
    attempt = replace(ATTEMPT, stop_reason=EndReason.PREEMPTED)
    saves = Saved(why_not="Keras: no place to save", kept=Kept(3.0, 7.5))
    data = ended(JOB, attempt, how, work_s=100.0, complete=False, now_s=100.0, saves=saves)
    assert data["message"] == "ended by SIGTERM; not saved: Keras: no place to save"
    assert data["kept"] == {"step": 3.0, "at_s": 7.5, "keeper": "script", "framework": ""}


def test_limits() -> None:
    assert told(None, reason="timed_out") == ("timed_out", "queued", 50.0, True)
    assert told(None, reason="timed_out", **NO_RETRIES)[1] == "failed"
    assert told(None, reason="out_of_memory", **NO_RETRIES)[:2] == ("out_of_memory", "failed")
    assert told(None, reason="not_started") == ("not_started", "failed", 50.0, False)


def test_a_restart_of_the_machine_queues_jobs_again_and_words_decide_nothing() -> None:
    assert told(None, reason="lost", cause=Cause.RESTARTED, **NO_RETRIES) == ("lost", "queued", 50.0, False)
    found = told(None, reason="lost", message="the machine was restarted", **NO_RETRIES)
    assert found == ("lost", "failed", 50.0, True)


@pytest.mark.parametrize("cause", [Cause.EXECUTOR, Cause.PLACE])
def test_what_the_surroundings_kept_from_starting_waits_and_has_not_failed(cause: Cause) -> None:
    assert told(None, reason="not_started", cause=cause, **NO_RETRIES) == ("not_started", "queued", 50.0, False)
    how = RunExit(None, None, EndReason.NOT_STARTED, "no space", 100.0, cause=cause)
    data = ended(JOB, ATTEMPT, how, work_s=0.0, complete=False, now_s=100.0, pause_s=3.0)
    assert (data["not_before_s"], data["began"]) == (103.0, False)
    stopped = replace(ATTEMPT, stop_reason=EndReason.CANCELLED)
    assert ended(JOB, stopped, how, work_s=0.0, complete=False, now_s=100.0, pause_s=3.0)["next"] == "cancelled"


def test_pauses_grow_and_containers_are_explained() -> None:
    how = RunExit(1, None, None, "", 100.0)
    spec = Spec(("train",), retries=9)
    pauses = [
        ended(replace(JOB, failures=n, spec=spec), ATTEMPT, how, work_s=1.0, complete=False, now_s=100.0)[
            "not_before_s"
        ]
        for n in (0, 1, 2, 8)
    ]
    assert pauses == [101.0, 102.0, 104.0, 160.0]
    job = replace(JOB, spec=Spec(("train",), container="image"))
    data = ended(job, ATTEMPT, replace(how, exit_code=125), work_s=1.0, complete=False, now_s=1.0)
    assert "container could not be started" in data["message"]
