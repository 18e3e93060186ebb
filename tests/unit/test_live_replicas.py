"""A replica of an elastic job that fails by itself: it is dropped, and the job goes on with the rest."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fake_node import FakeFiles
from fake_views import attempt, record
from gpuloom.core.job import Allocation, EndReason, Job, NodeState, Phase, SavedBy
from gpuloom.executors.port import MemberStatus, RunExit, RunPhase, RunStatus
from gpuloom.live.dispatch.replicas import (
    HEALTHY_S,
    MOST_IN_A_ROW,
    Dropped,
    dropped,
    goes_on_with,
    how_others_ended,
)
from gpuloom.live.dispatch.saved import SAVED, Saved
from gpuloom.live.submission.spec import job_spec
from rehearsed_nodes import Cluster

GPUS: Allocation = (("a", (0, 1)), ("b", (2, 3)))


def how(code: int | None = 1, **changes: Any) -> RunExit:
    return RunExit(code, None if code is not None else 9, None, "", 100.0, **changes)


PEER = replace(how(85), reason=EndReason.PEER)


def elastic_job(sizes: str, **fields: Any) -> Job:
    spec = job_spec({"command": ["./a"], "elastic": sizes, **fields}).kept()
    return record(phase=Phase.RUNNING, gpus=spec.gpus, spec=spec)


def found(*given: Any, **named: Any) -> Dropped:
    """The same, where replicas did fail."""
    dropped_ = failed(*given, **named)
    assert dropped_ is not None
    return dropped_


def failed(
    decider: RunExit = how(member=1),  # noqa: B008 - it is frozen
    other: RunExit | None = PEER,
    *,
    allocation: Allocation = GPUS,
    told: dict[str, object] | None = None,
    before: dict[str, Any] | None = None,
    saves: Saved = Saved(),  # noqa: B008
    ran_s: float = 5.0,
    stop: EndReason | None = None,
    **spec: Any,
) -> Dropped | None:
    job = elastic_job("2-4", **spec)
    one = attempt(allocation=allocation, stop_reason=stop)
    ends = [other, replace(decider, member=None)] if len(allocation) > 1 else []
    members = tuple(
        MemberStatus(rank, node, RunStatus(f"1.1.{rank}", RunPhase.EXITED, exit=end))
        for rank, (end, (node, _)) in enumerate(zip(ends, allocation, strict=False))
    )
    status = RunStatus("1.1", RunPhase.EXITED, exit=decider, members=members)
    return dropped(job, one, status, told=told or {}, before=before, saves=saves, ran_s=ran_s)


def test_a_member_that_fails_takes_its_replicas_and_the_others_are_left() -> None:
    one = found()
    assert (one.gpus, one.kept) == ((("b", 2), ("b", 3)), (("a", (0, 1)),))
    assert (one.replicas, one.left, one.in_a_row, one.forgiven) == (4, 2, 1, True)
    assert found(how(None, member=1)).left == 2, "it was killed"
    assert found(replace(how(137, member=1), reason=EndReason.OUT_OF_MEMORY)).left == 2


def test_of_a_process_for_each_gpu_the_one_that_failed_is_known() -> None:
    alone: Allocation = (("a", (0, 1, 2, 3)),)
    one = found(how(failed_rank=2, others_code=85), allocation=alone)
    assert (one.gpus, one.kept, one.left) == ((("a", 2),), (("a", (0, 1, 3)),), 3)
    wide = found(how(failed_rank=2, others_code=0), allocation=alone, gpus=4, replica_gpus=2)
    assert (wide.gpus, wide.kept, wide.left) == ((("a", 2), ("a", 3)), (("a", (0, 1)),), 1)
    second = found(how(member=1, failed_rank=0))
    assert (second.gpus, second.kept) == ((("b", 2),), (("a", (0, 1)), ("b", (3,))))
    assert found(how(member=1, failed_rank=7)) == found(), "a file of the job's own: the member is known to have ended"


def test_a_job_of_one_process_tree_has_nobody_who_could_go_on() -> None:
    assert failed(how(), allocation=(("a", (0, 1)),)) is None


@pytest.mark.parametrize(
    "end",
    [
        how(0, member=1),
        replace(how(None, member=1), reason=EndReason.NODE),
        replace(how(None, member=1), reason=EndReason.TIMED_OUT),
        replace(how(None, member=1), reason=EndReason.NOT_STARTED),
    ],
)
def test_other_ends_are_no_failures_of_replicas(end: RunExit) -> None:
    assert failed(end) is None
    assert failed(stop=EndReason.CANCELLED) is None
    assert failed(stop=EndReason.PREEMPTED) is not None


def test_if_nobody_was_well_and_nothing_was_done_the_program_is_broken() -> None:
    assert failed(other=how(1)) is None
    assert failed(other=how(1), told={"step": 5, "first_step": 5}) is None
    assert failed(other=how(1), told={"step": 6, "first_step": 5}) is not None, "the others fell with the one"
    assert failed(other=how(0)) is not None


def test_failures_in_a_row_are_counted_until_there_is_progress() -> None:
    before = {"in_a_row": 2, "step": 10.0}
    same = found(before=before, told={"step": 10})
    assert (same.in_a_row, same.step, same.forgiven) == (3, 10.0, True)
    more = found(before={"in_a_row": MOST_IN_A_ROW, "step": 10.0}, told={"step": 9})
    assert (more.forgiven, more.step) == (False, 10.0)
    assert found(before=before, told={"step": 11}).in_a_row == 1
    silent, saves = {"in_a_row": 2, "step": None}, Saved(SavedBy.EXIT_CODE)
    assert found(before=silent, saves=saves, ran_s=HEALTHY_S).in_a_row == 1
    assert found(before=silent, ran_s=HEALTHY_S).in_a_row == 3
    assert found(before=silent, saves=saves).in_a_row == 3


def test_which_gpus_it_keeps() -> None:
    one = attempt(allocation=GPUS)
    everywhere = {(node, gpu) for node, gpus in GPUS for gpu in gpus}
    job = elastic_job("2-4")
    assert goes_on_with(job, one, found(), resizes=True, usable=everywhere) == (("a", (0, 1)),)
    assert goes_on_with(job, one, found(), resizes=False, usable=everywhere) == GPUS
    assert goes_on_with(job, one, found(), resizes=False, usable={("a", 0), ("a", 1)}) == ()
    assert goes_on_with(elastic_job("3-4"), one, found(), resizes=True, usable=everywhere) == GPUS


def test_what_the_others_saved_counts() -> None:
    end = how(failed_rank=1, others_code=85)
    assert how_others_ended(RunStatus("1.1", RunPhase.EXITED, exit=end), end).exit_code == 85


class Told(FakeFiles):
    """Files of a job that reports the steps that a test says."""

    step: int | None = None

    def progress(self, run: str) -> dict[str, object]:
        return {} if self.step is None else {"step": self.step, "first_step": 0}


def elastic(policy: str, count: int = 2, **spec: Any) -> tuple[Cluster, int]:
    it = Cluster("a", policy=policy)
    (job,) = it.submit({"elastic": f"{count}-6", **spec})
    assert gpus(it, job) == {"here": 2, "a": 4}, it.scheduler.problem
    return it, job


def gpus(it: Cluster, job: int) -> dict[str, int]:
    """GPUs of each node that it has."""
    there = it.scheduler.book.attempts.get(job)
    return {} if there is None else {node: len(gpus) for node, gpus in there.allocation}


def fail(it: Cluster, job: int, code: int | None = 1) -> None:
    there = it.scheduler.book.attempts[job]
    it.machines["a"].end(there.runs[there.nodes.index("a")], code, signal=9 if code is None else None)
    it.turn()


def test_it_goes_on_at_once_with_those_that_are_left_if_others_take_the_room() -> None:
    it, job = elastic("elastic-goodput")
    it.tell(lambda: it.service.set_node("a", NodeState.CORDONED))
    fail(it, job, None)
    assert gpus(it, job) == {"here": 2}
    shown = it.service.show(job)
    assert [one["reason"] for one in shown["attempts"]] == ["resized", None]
    message = shown["attempts"][0]["message"]
    assert message.endswith(" on a: ended by SIGKILL; 4 replicas of 6 failed; the job goes on")
    assert (shown["job"]["retries_left"], shown["job"]["preemptions"]) == (0, 0)
    events = {event["type"]: event["data"] for event in shown["events"]}
    assert events["job.replica_failed"]["left"] == 2
    resized = events["job.resized"]
    assert (resized["from_replicas"], resized["to_replicas"], resized["why"]) == (6, 2, "replica")
    assert "a replica failed, and it went on with the rest" in " ".join(it.service.why(job)["sentences"])
    it.tell(lambda: it.service.set_node("a", NodeState.UP))
    assert gpus(it, job) == {"here": 2, "a": 4}, "and has a replacement once there is room"


def test_with_room_the_replacement_comes_with_the_same_start() -> None:
    it, job = elastic("elastic-goodput")
    fail(it, job)
    assert gpus(it, job) == {"here": 2, "a": 4}
    assert [one["reason"] for one in it.service.show(job)["attempts"]] == ["resized", None]


def test_its_other_gpus_stay_its_own_whoever_waits() -> None:
    it, job = elastic("elastic-goodput:base=sjf", estimate="10h")
    (short,) = it.submit({"gpus": 6, "estimate": "1m"})
    fail(it, job)
    assert it.states(job, short) == ["running", "queued"]
    assert it.service.job(job)["replicas"]["now"] >= 2


def test_below_its_fewest_it_waits_and_does_not_fail() -> None:
    it, job = elastic("elastic-goodput", 3)
    it.tell(lambda: it.service.set_node("a", NodeState.CORDONED))
    fail(it, job)
    assert (it.states(job), it.service.job(job)["retries_left"]) == (["queued"], 0)
    it.tell(lambda: it.service.set_node("a", NodeState.UP))
    assert gpus(it, job) == {"here": 2, "a": 4}


def test_under_a_policy_that_does_not_resize_it_is_replaced_where_it_was() -> None:
    it = Cluster("a", policy="fifo")
    (job,) = it.submit({"elastic": "2-6", "gpus": 6})
    (waits,) = it.submit({"gpus": 4})
    fail(it, job)
    assert (gpus(it, job), it.states(waits)) == ({"here": 2, "a": 4}, ["queued"])


def test_one_that_was_told_to_go_leaves_its_gpus_to_whom_they_were_given() -> None:
    it = Cluster("a", policy="srtf")
    it.machines["a"].obedient = False
    (job,) = it.submit({"elastic": "2-4", "gpus": 4, "per": "gpu", "estimate": "10h"})
    (short,) = it.submit({"gpus": 4, "estimate": "1m"})
    assert it.states(job, short) == ["stopping", "queued"]
    run = it.scheduler.book.attempts[job].run
    del it.machines["a"].stops[run]  # a process had failed before it was told
    it.machines["a"].end(run, 1, failed_rank=1, others_code=SAVED)
    it.turn()
    assert job not in it.scheduler.planning.claims.grants
    assert it.states(job, short) == ["queued", "running"]


def test_a_program_that_fails_again_and_again_fails() -> None:
    it, job = elastic("elastic-goodput")
    for _ in range(MOST_IN_A_ROW):
        fail(it, job)
        assert it.states(job) != ["failed"]
        it.later(60.0)
        assert it.states(job) == ["running"]
    fail(it, job)
    view = it.service.job(job)
    assert view["state"] == "failed"
    assert f"replicas failed {MOST_IN_A_ROW + 1} times without new progress" in view["message"]


def test_with_progress_in_between_it_never_does() -> None:
    it, job = elastic("elastic-goodput")
    here = it.scheduler.intake.files
    told = Told(it.ports["a"])
    it.scheduler.intake.files = lambda node: told if node == "here" else here(node)
    for step in range(1, 3 * MOST_IN_A_ROW):
        told.step = step
        fail(it, job)
        assert it.states(job) == ["running"]
    assert it.service.show(job)["attempts"][-1]["number"] == 3 * MOST_IN_A_ROW


# -- who stays keeps rank and node -------------------------------------------------------------------------------------


def test_those_that_stay_keep_their_ranks_and_who_joins_comes_last() -> None:
    it = Cluster("a", policy="elastic-goodput")
    (job,) = it.submit({"elastic": "1-10"})
    it.join_new("b")
    it.later(7200.0)
    assert it.where(job) == ["here:0,1 a:0,1,2,3 b:0,1,2,3"], it.scheduler.problem
    (other,) = it.submit({"gpus": 4})
    assert (it.where(job), it.where(other)) == (["here:0,1 b:0,1,2,3"], ["a:0,1,2,3"])
    it.machines["a"].end(it.scheduler.book.attempts[other].run)
    it.turn()
    it.later(7200.0)
    assert it.where(job) == ["here:0,1 b:0,1,2,3 a:0,1,2,3"], "node a comes last now"
    it.restart(orderly=False)
    assert it.where(job) == ["here:0,1 b:0,1,2,3 a:0,1,2,3"]
