"""The book: what each event does to a job's records."""

from __future__ import annotations

import dataclasses

import pytest

from gpuloom.core.book import Book, node_data, node_of
from gpuloom.core.errors import InvalidTransition
from gpuloom.core.events import Event
from gpuloom.core.job import RESET_WORDS, EndReason, Gpu, Phase
from store_builders import NODE, ended, spec, starting, submitted


class Told:
    """A book that is told events at given times."""

    def __init__(self) -> None:
        self.book, self.number = Book(), 0

    def __call__(self, at_s: float, kind: str, job: int | None = None, **data: object) -> None:
        self.number += 1
        self.book.commit(self.book.stage([Event(self.number, at_s, kind, job, data)]))


@pytest.fixture
def tell() -> Told:
    told = Told()
    told(10.0, "jobs.submitted", **submitted(1, gpus=2))
    return told


def test_tasks_of_an_array_share_a_spec_and_have_names_of_their_own(tell: Told) -> None:
    tell(11.0, "jobs.submitted", **submitted(5, name="sweep", count=2, indices=[3, 8], after=[[1, "ok"]]))
    one, two = tell.book.jobs[5], tell.book.jobs[6]
    assert (one.name, two.name) == ("sweep[3]", "sweep[8]")
    assert one.spec is two.spec
    assert (one.array_id, two.array_id, two.array_index) == (5, 5, 8)
    assert one.after == ((1, "ok"),)
    assert tell.book.next_job == 7


def test_a_run_from_start_to_end(tell: Told) -> None:
    tell(20.0, "attempt.starting", 1, **starting(allocation=(("a", (0,)), ("b", (3,)))))
    tell(21.0, "attempt.running", 1, pid=7, start_ticks=99, boot_id="b")
    attempt = tell.book.attempts[1]
    assert (attempt.run, attempt.phase, attempt.running_s, attempt.pid) == ("1.1", Phase.RUNNING, 21.0, 7)
    tell(50.0, "attempt.ended", 1, **ended(work_s=29.0, message="done"))
    job = tell.book.jobs[1]
    assert (job.phase, job.reason, job.ended_s, job.exit_code) == (Phase.FINISHED, EndReason.FINISHED, 50.0, 0)
    assert (job.held_s, job.held_gpu_s, job.work_s, job.first_start_s) == (30.0, 60.0, 29.0, 20.0)
    assert tell.book.attempts == {}


def test_a_preempted_job_waits_again_and_has_not_failed(tell: Told) -> None:
    tell(20.0, "attempt.starting", 1, **starting())
    tell(21.0, "attempt.running", 1)
    tell(30.0, "attempt.stopping", 1, reason="preempted", deadline_s=60.0)
    assert tell.book.attempts[1].stop_reason is EndReason.PREEMPTED
    tell(35.0, "attempt.ended", 1, **ended("preempted", "queued", saved=True, exit_code=85))
    job = tell.book.jobs[1]
    assert (job.phase, job.failures, job.ended_s, job.queued_s) == (Phase.QUEUED, 0, None, 35.0)
    tell(40.0, "attempt.starting", 1, **starting(2))
    assert tell.book.attempts[1].run == "1.2"
    assert tell.book.jobs[1].first_start_s == 20.0


def test_a_failure_counts_and_the_retry_waits(tell: Told) -> None:
    tell(20.0, "attempt.starting", 1, **starting())
    tell(25.0, "attempt.ended", 1, **ended("failed", "queued", failure=True, not_before_s=40.0, exit_code=1))
    job = tell.book.jobs[1]
    assert (job.failures, job.not_before_s, job.exit_code) == (1, 40.0, 1)


def test_frozen_time_is_not_held(tell: Told) -> None:
    tell(20.0, "attempt.starting", 1, **starting(allocation=(("a", (0, 1)),)))
    tell(20.0, "attempt.running", 1)
    tell(30.0, "attempt.frozen", 1)
    assert (tell.book.jobs[1].held_s, tell.book.jobs[1].queued_s) == (10.0, 30.0)
    tell(100.0, "attempt.thawed", 1, allocation=[["a", [2, 3]]])
    assert tell.book.attempts[1].allocation == (("a", (2, 3)),)
    tell(105.0, "attempt.frozen", 1)
    tell(200.0, "attempt.stopping", 1, reason="cancelled", deadline_s=None)
    tell(201.0, "attempt.stopping", 1, reason="timed_out", deadline_s=None)
    tell(203.0, "attempt.ended", 1, **ended("cancelled", "cancelled"))
    assert (tell.book.jobs[1].held_s, tell.book.jobs[1].held_gpu_s) == (18.0, 36.0)


def test_an_end_that_is_written_down_later_counts_when_it_came(tell: Told) -> None:
    tell(20.0, "attempt.starting", 1, **starting())
    tell(90.0, "attempt.ended", 1, **ended(ended_s=50.0))
    job = tell.book.jobs[1]
    assert (job.ended_s, job.held_s) == (50.0, 30.0)


def test_one_that_ends_while_frozen_held_nothing_since(tell: Told) -> None:
    tell(20.0, "attempt.starting", 1, **starting())
    tell(20.0, "attempt.running", 1)
    tell(30.0, "attempt.frozen", 1)
    tell(90.0, "attempt.ended", 1, **ended("lost", "queued"))
    assert tell.book.jobs[1].held_s == 10.0


@pytest.mark.parametrize("together", [True, False])
def test_jobs_that_share_a_spec_go_on_sharing_the_changed_one(tell: Told, together: bool) -> None:
    tell(11.0, "jobs.submitted", **submitted(5, name="sweep", count=2, indices=[3, 8]))
    rest = {"after": [], "estimate_s": 5.0, "estimate_from": "user"}
    events = [
        Event(3, 12.0, "job.updated", 5, {"spec": spec("late", gpus=2, priority=9), **rest}),
        Event(4, 12.0, "job.updated", 6, {"changes": {"name": "late", "gpus": 2, "priority": 9}, "spec_of": 3, **rest}),
    ]
    brought: list[int] = []
    for some in [events] if together else [[event] for event in events]:
        changes = tell.book.stage(some)
        tell.book.commit(changes)
        brought += changes.specs
    one, two = tell.book.jobs[5], tell.book.jobs[6]
    assert brought == [one.spec_id] == [two.spec_id] == [3]
    assert one.spec == two.spec
    assert (one.name, two.name, two.priority, two.gpus, two.cause) == ("late[3]", "late[8]", 9, 2, 4)


def test_hold_release_update_cancel_requeue(tell: Told) -> None:
    tell(11.0, "job.held", 1)
    tell(12.0, "job.released", 1)
    assert tell.book.jobs[1].queued_s == 12.0
    changed = spec("other", gpus=4, priority=9)
    tell(13.0, "job.updated", 1, spec=changed, after=[[3, "any"]], estimate_s=5.0, estimate_from="user")
    job = tell.book.jobs[1]
    assert (job.name, job.gpus, job.priority, job.after, job.spec_id) == ("other", 4, 9, ((3, "any"),), 4)
    tell(14.0, "job.cancelled", 1, message="no more")
    assert (tell.book.jobs[1].reason, tell.book.jobs[1].ended_s) == (EndReason.CANCELLED, 14.0)
    tell(15.0, "job.requeued", 1)
    job = tell.book.jobs[1]
    assert (job.phase, job.ended_s, job.queued_s, job.submitted_s) == (Phase.QUEUED, None, 15.0, 15.0)


def test_flags_come_and_go_and_a_start_clears_them(tell: Told) -> None:
    tell(11.0, "job.flagged", 1, flag="idle", text="for 600 s")
    tell(12.0, "job.flagged", 1, flag="log", text="full")
    assert tell.book.jobs[1].flags == {"idle": "for 600 s", "log": "full"}
    tell(13.0, "job.flagged", 1, flag="idle", text="")
    assert tell.book.jobs[1].flags == {"log": "full"}
    tell(14.0, "attempt.starting", 1, **starting())
    assert tell.book.jobs[1].flags == {}


def test_nodes_and_settings(tell: Told) -> None:
    tell(11.0, "node.changed", node=NODE)
    node = tell.book.nodes["host"]
    assert node.gpus == (Gpu(0, "GPU-0", "V100", 16384),)
    assert (node.topology, node.cause) == (((0, 1, "NVLINK"),), 2)
    tell(12.0, "policy.set", policy="rl", interval_s=6)
    assert tell.book.settings == {"policy": "rl", "interval_s": 6.0}
    before = dict(tell.book.jobs)
    tell(13.0, "clock.jumped", by_s=-3600.0)
    assert tell.book.jobs == before


def test_an_ended_job_can_be_forgotten_and_no_other(tell: Told) -> None:
    tell.book.forget(1)
    assert 1 in tell.book.jobs
    tell(11.0, "job.cancelled", 1)
    tell.book.forget(1)
    assert tell.book.jobs == {}
    with pytest.raises(InvalidTransition, match="job 1, which does not exist"):
        tell(12.0, "job.requeued", 1)


def test_numbers_are_given_once(tell: Told) -> None:
    with pytest.raises(InvalidTransition, match="submits job 1, but numbers up to 1 are taken"):
        tell(11.0, "jobs.submitted", **submitted(1))


@pytest.mark.parametrize("number", [1, 3])
def test_attempts_follow_each_other(tell: Told, number: int) -> None:
    tell(20.0, "attempt.starting", 1, **starting())
    tell(21.0, "attempt.ended", 1, **ended("preempted", "queued"))
    with pytest.raises(InvalidTransition, match=f"attempt {number} can't follow attempt 1 of job 1"):
        tell(22.0, "attempt.starting", 1, **starting(number))


def test_where_an_event_may_lead_is_held_too(tell: Told) -> None:
    tell(20.0, "attempt.starting", 1, **starting())
    with pytest.raises(InvalidTransition, match=r"attempt.ended can't lead to running"):
        tell(21.0, "attempt.ended", 1, **ended(after="running"))
    assert tell.book.jobs[1].phase is Phase.STARTING


def test_that_a_gpu_needs_a_reset_is_a_field_and_old_stores_tell_it_by_its_reason() -> None:
    gpu = {"index": 0, "uuid": "GPU-0", "model": "V100", "state": "unhealthy", "reason": f"XID 48; {RESET_WORDS}"}
    node = node_of({"name": "host", "gpus": [gpu, {**gpu, "reason": "hot"}]})
    assert [one.needs_reset for one in node.gpus] == [True, False]
    written = node_data(node)["gpus"]
    assert [one.get("needs_reset") for one in written] == [True, None]
    assert node_of(node_data(node)) == node
    reworded = {**written[0], "reason": "reset it"}
    assert node_of({"name": "host", "gpus": [reworded]}).gpus[0].needs_reset


def test_a_job_that_is_put_back_is_as_one_that_was_just_submitted(tell: Told) -> None:
    fresh = tell.book.jobs[1]
    for attempt in (1, 2):
        tell(20.0 * attempt, "attempt.starting", 1, **starting(attempt=attempt))
        tell(20.0 * attempt + 1, "attempt.running", 1)
        tell(
            20.0 * attempt + 9,
            "attempt.ended",
            1,
            **ended("failed", "queued" if attempt == 1 else "failed", failure=True, work_s=3.0, not_before_s=77.0),
        )
    failed = tell.book.jobs[1]
    assert failed.failures > 0
    assert failed.held_s > 0
    tell(90.0, "job.requeued", 1)
    again = tell.book.jobs[1]
    kept = {"submitted_s": 90.0, "queued_s": 90.0, "attempts": failed.attempts}
    for field in dataclasses.fields(fresh):
        if field.name not in ("reason", "message", "exit_code", "cause"):
            assert getattr(again, field.name) == kept.get(field.name, getattr(fresh, field.name)), field.name
