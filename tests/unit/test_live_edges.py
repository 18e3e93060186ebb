"""Bounds, orders and sentences of the live scheduler's parts, each on the smallest case that shows it."""

from __future__ import annotations

import gc
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fake_views import attempt, record
from gpuloom.core.book import Book
from gpuloom.core.decision import Placement, Reason, WaitCode
from gpuloom.core.errors import InputError, NotFoundError
from gpuloom.core.job import DeviceKind, EndReason, Gpu, GpuState, Job, Needed, NodeRecord, NodeSource, NodeState, Phase
from gpuloom.facts.gpus import known_memory_mib
from gpuloom.facts.inputs import load_policy
from gpuloom.live.clock import ServiceClock
from gpuloom.live.planning import standby
from gpuloom.live.planning.asking import Call, PolicyFailure
from gpuloom.live.planning.eligible import Throttles, blocked, throttle_of
from gpuloom.live.planning.estimates import NOW_S, Estimates, left_s, stands_s
from gpuloom.live.planning.lacks import lacks
from gpuloom.live.planning.lines import Lines
from gpuloom.live.planning.model_speeds import ModelSpeeds
from gpuloom.live.planning.reserve import Reservation, _reserved
from gpuloom.live.planning.roster import Roster
from gpuloom.live.planning.shortage import nothing_to_give, unplaceable
from gpuloom.live.planning.standby import Standby
from gpuloom.live.planning.times import Times
from gpuloom.live.records.fleet import Needs, fleet_of, models_of, open_slots, slots_of, why_never
from gpuloom.live.records.ledger import Ledger
from gpuloom.live.records.work import WorkDone
from gpuloom.live.submission.actions import Action, impossible, so_already
from gpuloom.live.submission.fields import interval
from gpuloom.live.submission.lookup import JobRecords
from gpuloom.live.submission.spec import job_spec
from gpuloom.live.views.jobs import attempt_view, preemptions_of, where
from gpuloom.store.memory import MemoryStore
from store_builders import submitted

FAILED = PolicyFailure(Call.DECIDE, KeyError(3), None)


def node(name: str, *models: str, **changes: Any) -> NodeRecord:
    gpus = tuple(Gpu(index, f"GPU-{name}{index}", model) for index, model in enumerate(models))
    return NodeRecord(name, changes.pop("gpus", gpus), **changes)


def spec_of(**given: Any) -> Any:
    return job_spec({"command": ["./a"], **given}).named().kept()


# -- a policy that fails -------------------------------------------------------------------------------------


def test_the_pause_before_a_policy_that_fails_is_asked_again_doubles_up_to_a_bound() -> None:
    there = Standby()
    assert not there.asks_again(1e9, ())
    now, pauses = 100.0, []
    for times in range(1, 10):
        there.fails("p", FAILED, now, "jobs")
        pauses.append(there.again_s - now)
        assert there.failure is not None
        assert (there.failure.times, there.failure.since_s, there.failure.last_s) == (times, 100.0, now)
        assert (there.serving, there.failure.serves) == (True, "fifo")
        assert not there.asks_again(there.again_s - 0.001, "jobs")
        assert there.asks_again(there.again_s, "jobs")
        now = there.again_s
        there.tries()
        assert (there.serving, there.again_s, there.failure.serves) == (False, math.inf, "p")
        assert not there.asks_again(now, "jobs")
    assert pauses == [5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 600.0, 600.0]


def test_other_jobs_bring_the_policy_back_sooner() -> None:
    there = Standby()
    for now in (0.0, 5.0, 15.0):
        there.fails("p", FAILED, now, "jobs")
    assert there.again_s == 35.0
    assert not there.asks_again(19.9, "others")
    assert there.asks_again(20.0, "others")


def test_a_policy_has_recovered_once_it_has_worked_for_its_last_pause() -> None:
    there = Standby()
    there.decided(0.0)
    assert there.settles_s == math.inf
    there.fails("p", FAILED, 0.0, ())
    there.decided(1.0)  # the fallback decides
    assert there.settles_s == math.inf
    there.tries()
    there.decided(10.0)
    there.decided(12.0)
    assert there.settles_s == 15.0
    assert there.recovered(14.9) is None
    assert there.recovered(15.0) is there.failure is not None
    there.reset()
    assert (there.failure, there.serving, there.again_s, there.settles_s) == (None, False, math.inf, math.inf)
    there.fails("p", FAILED, 20.0, ())
    assert there.again_s == 25.0
    there.tries()
    there.decided(26.0)
    there.fails("p", FAILED, 27.0, ())
    assert there.settles_s == math.inf


def test_a_failure_in_a_sentence() -> None:
    there = Standby()
    there.fails("p", FAILED, 0.0, ())
    assert there.failure is not None
    why = "policy p fails since noon: KeyError: 3, in decide; "
    assert there.failure.text("noon") == f"{why}fifo is used in its place until it works again"
    assert there.failure.to_json()["call"] == "decide"
    there.nobody_serves()
    assert there.failure.text("noon") == f"{why}the fallback policy fails as well: no job is started"
    there.tries()
    assert there.failure.text("noon") == f"{why}it is in use again, on trial"
    there.fails("p", FAILED, 9.0, ())
    assert "since noon, 2 times: KeyError" in there.failure.text("noon")
    for times in (1, 2):
        there.cannot_write("p", PolicyFailure(Call.WRITE_MEMORY, ValueError("x"), None), 50.0 + times)
        assert there.unwritten is not None
        assert (there.unwritten.times, there.unwritten.since_s, there.unwritten.last_s) == (times, 51.0, 50.0 + times)
    assert there.unwritten is not None
    assert there.unwritten.text("noon").startswith(
        "the memory of policy p can't be saved since noon: ValueError: x; it"
    )
    assert standby.Standby().unwritten is None


# -- what is kept for those who wait -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("free", "ends", "within", "spare"),
    [
        (2, [], 0.0, 0),
        (3, [], 0.0, 1),
        (1, [(30.0, 1), (20.0, 3)], 10.0, 2),
        (0, [(30.0, 1), (20.0, 1)], 20.0, 0),
        (0, [(5.0, 2)], 0.0, 0),  # it is overdue
    ],
)
def test_when_gpus_will_be_there(free: int, ends: list[tuple[float, int]], within: float, spare: int) -> None:
    found = _reserved(record(gpus=2), free, ends, None, now_s=10.0)
    assert found is not None
    assert (found.within_s, found.spare) == (within, spare)


def test_of_two_reservations_the_stricter_counts() -> None:
    before = Reservation(record(id=9), 50.0, 3)
    assert _reserved(record(gpus=2), 0, [(10.0, 1)], before, now_s=0.0) is before
    assert _reserved(record(gpus=2), 0, [(math.inf, 2)], before, now_s=0.0) is before
    for end_s, spare, holder in ((60.0, 1, 9), (50.0, 1, 9), (40.0, 1, 1), (60.0, 4, 9)):
        found = _reserved(record(gpus=2), 0, [(end_s, 2 + spare)], before, now_s=0.0)
        assert found is not None
        assert (found.job.id, found.within_s, found.spare) == (holder, min(end_s, 50.0), min(spare, 3))


def test_who_may_go_before_a_job_of_higher_priority() -> None:
    kept = Reservation(record(id=9, priority=2), 60.0, 3)
    left = {1: 60.0, 2: 61.0, 3: 61.0, 4: 61.0}
    jobs = [record(id=1, gpus=8), record(id=2, gpus=2), record(id=3, gpus=2), record(id=4, gpus=1)]
    found, out = kept.admitted(jobs, lambda job: left[job.id])
    assert (found, list(out), kept.spare) == ({1, 2, 4}, [3], 0)
    assert out[3] == Reason(
        WaitCode.RESERVATION,
        "GPUs are kept for job 9 (priority 2), which is expected to start in about 1m 00s; this job would not end "
        "before that.",
        {"job": 9, "start_in_s": 60.0, "runs_s": 61.0},
    )


# -- times ---------------------------------------------------------------------------------------------------


def test_when_a_pass_is_due() -> None:
    now = [100.0]
    times = Times(lambda: now[0])
    assert times.due_s(anew=True) == math.inf
    times.next_s, times.overrun_s, times.pause_s = 3.0, 2.0, 4.0
    assert times.due_s(anew=False) == 2.0
    times.again = True
    assert times.due_s(anew=False) == times.due_s(anew=True) == -math.inf
    assert times.deciding_s() == 0.0
    with times.a_pass(50.0, anew=False):
        now[0] += 3.0
        assert times.deciding_s() == 3.0
        assert not gc.isenabled()
    assert gc.isenabled()
    assert (times.last_pass_s, times.deciding_s(), times.quiet_until_s) == (3.0, 0.0, -math.inf)
    with times.a_pass(50.0, anew=True):
        now[0] += 2.0
    assert times.quiet_until_s == times.due_s(anew=True) == 70.0
    times.rest(9.0)
    assert (times.due_s(anew=True), times.overrun_s, times.pause_s) == (9.0, math.inf, math.inf)


@pytest.mark.parametrize(("jump", "told"), [(1.9, 0.0), (2.0, 2.0), (-1.9, 0.0), (-2.0, -2.0)])
def test_a_wall_clock_that_jumps_is_told_and_moves_nothing(jump: float, told: float) -> None:
    wall, steady = [1000.0], [5.0]
    clock = ServiceClock(1010.0, wall=lambda: wall[0], monotonic=lambda: steady[0])
    assert clock.now() == 1010.0
    steady[0] += 7.0
    wall[0] += 7.0 + jump
    assert clock.now() == 1017.0
    assert clock.jumped_s() == pytest.approx(told)
    assert clock.jumped_s() == 0.0
    assert clock.from_wall(wall[0] - 3.0) == 1014.0
    assert clock.from_wall(wall[0] + 3.0) == 1017.0


@pytest.mark.parametrize(
    ("done", "left", "stands"),
    [
        (40.0, 60.0, 10.0),
        (99.0, 1.0, 10.0),
        (100.0, NOW_S, 10.0),
        (109.0, NOW_S, 1.0),
        (110.0, 10.0, 0.0),
        (119.0, 1.0, 0.0),
        (120.0, 20.0, 0.0),
        (140.0, 40.0, 0.0),
    ],
)
def test_a_job_that_overruns(done: float, left: float, stands: float) -> None:
    assert left_s(100.0, done) == pytest.approx(left)
    assert left_s(7.0, done, told_s=100.0) == pytest.approx(left)
    assert stands_s(100.0, done) == stands_s(7.0, done, 100.0) == pytest.approx(stands)


def test_a_long_job_may_overrun_by_more() -> None:
    assert left_s(1000.0, 1099.0) == NOW_S
    assert left_s(1000.0, 1100.0) == pytest.approx(100.0)


def test_work_of_a_run_that_is_frozen_stands_still() -> None:
    work = WorkDone()
    work.at(5.0)
    assert (work.since(1), work.of(1, 9.0), work.knows(1)) == (5.0, 0.0, False)
    for unknown in (work.pause, work.resume):
        unknown(1, 5.0)
    work.begin(1, 10.0, done_s=3.0)
    assert (work.since(1), work.of(1, 14.0), work.of(1, 9.0)) == (10.0, 7.0, 3.0)
    work.pause(1, 20.0)
    work.at(25.0)
    work.rate(1, 0.5)
    assert work.of(1, 30.0) == 13.0
    work.resume(1, 40.0)
    assert (work.since(1), work.of(1, 44.0)) == (40.0, 15.0)
    work.at(44.0)
    work.rate(1, 2.0)
    assert work.of(1, 46.0) == 19.0
    work.begin(2, 50.0, 42.0)
    assert work.since(2) == 42.0
    work.end(1)
    work.end(1)
    assert not work.knows(1)


def test_the_usual_start_up_is_the_median_of_the_last_thirty() -> None:
    work = WorkDone()
    for job in range(31):
        work.begin(job, 0.0)
        work.started_up(job, 1000.0 if job == 0 else float(job))
        work.started_up(job, 5000.0)
    assert work.usual_s == 15.5
    work.begin(99, 100.0)
    work.started_up(99, 100.0)  # at once: that tells nothing of others
    assert work.usual_s == 15.5
    work.begin(100, 100.0)
    assert work.starting_s(100, 104.0) == work.usual_s - 4.0
    assert work.starting_s(100, 200.0) == work.starting_s(99, 100.0) == 0.0
    assert work.expected(100, 110.0) == 0.0
    assert work.expected(100, 120.0) == 20.0 - work.usual_s


@pytest.mark.parametrize(
    ("fraction", "at_s", "told"),
    [
        (0.05, 1.0, 20.0),
        (0.04, 1.0, None),
        (0.04, 59.9, None),
        (0.04, 60.0, 1500.0),
        (0.0, 99.0, None),
        (1.0, 9.0, 9.0),
    ],
)
def test_when_a_report_of_progress_is_trusted(fraction: float, at_s: float, told: float | None) -> None:
    work = WorkDone()
    work.begin(1, 0.0)
    work.report(1, fraction, at_s, 0.0)
    assert work.told_s.get(1) == (None if told is None else pytest.approx(told))


# -- jobs in lines -------------------------------------------------------------------------------------------


def lines() -> Lines:
    return Lines(lambda job: job.gpus, lambda job: job.array_id)


def test_equals_stand_in_line_by_submission_and_others_do_not() -> None:
    found = lines()
    jobs = [record(id=number, submitted_s=at, queued_s=at) for number, at in ((1, 5.0), (2, 3.0), (3, 5.0))]
    other = record(id=4, gpus=2)
    never = [
        record(id=5, attempts=1),
        record(id=6, after=((1, Needed.OK),)),
        record(id=7, not_before_s=1.0),
        record(id=8, phase=Phase.RUNNING),
    ]
    found.take([*jobs, other, *never, record(id=9, phase=Phase.HELD), record(id=10, phase=Phase.FAILED)])
    line = found.line_of(1)
    assert line is not None
    assert (list(line), len(line), line.first(2), line.one() in (1, 2, 3)) == ([2, 1, 3], 3, [2, 1], True)
    assert 2 in line
    assert 4 not in line
    assert len(list(found)) == 2
    assert list(found.others) == [5, 6, 7, 8]
    found.take([record(id=2, phase=Phase.RUNNING), record(id=4, phase=Phase.HELD), record(id=5, phase=Phase.FINISHED)])
    assert (list(line), len(list(found)), list(found.others)) == ([1, 3], 1, [6, 7, 8, 2])
    found.take([record(id=1, submitted_s=9.0), record(id=3, gpus=2, submitted_s=5.0)])
    assert list(line) == [1]
    assert found.line_of(3) is not line
    found.take([record(id=1, submitted_s=2.0)])  # requeued, and then at another time again
    found.take([record(id=1, submitted_s=9.0)])
    assert list(line) == [1]
    found.take([record(id=1, phase=Phase.CANCELLED)])
    assert (len(line), found.line_of(1), [len(each) for each in found]) == (0, None, [1])


def test_those_who_have_left_a_line_are_dropped_from_it() -> None:
    found = lines()
    found.take(record(id=number, submitted_s=float(number)) for number in range(1, 301))
    found.take(record(id=number, phase=Phase.RUNNING) for number in range(2, 300))
    line = found.line_of(1)
    assert line is not None
    assert list(line) == [1, 300]
    assert len(line._order) == 2


def test_an_array_has_a_line_of_its_own() -> None:
    found = lines()
    found.take([record(id=1), record(id=2, array_id=2), record(id=3, array_id=2), record(id=4, array_id=4)])
    assert [(line.throttle, list(line)) for line in found] == [(None, [1]), (2, [2, 3]), (4, [4])]


def test_jobs_as_a_policy_sees_them() -> None:
    estimates = Estimates(lambda user, name, limit: ())
    roster = Roster(estimates, ModelSpeeds(lambda user, name, limit: (), estimates))
    plain, other = (
        record(id=4, submitted_s=9.0),
        record(id=5, submitted_s=9.0, user="bo", priority=-1, spec=spec_of(gpu_memory=100)),
    )
    alone = roster.columns([plain]).workload(np.array([5.0]), None, 4, {}, slower=False)
    assert (alone.gpu_memory_mib, alone.model, alone.gpu_type, alone.share_class) == (None, None, None, None)
    found = roster.columns([plain, other])
    assert found.total_s.tolist() == [3600.0, 3600.0]
    both = found.workload(np.array([5.0, 6.0]), np.array([2.0, 0.0]), 4, {}, slower=False)
    assert both.gpu_memory_mib is not None
    assert [math.isnan(mib) for mib in both.gpu_memory_mib] == [True, False]
    assert (both.submit_s.tolist(), both.duration_s.tolist(), both.job_ids) == ([7.0, 9.0], [5.0, 6.0], ("4", "5"))
    assert both.priority is not None
    assert both.priority.tolist() == [0, 1]
    typed = roster.columns([record(spec=spec_of(gpu_types=["V100", "K80"], model="m"))]).workload(
        np.ones(1), None, 4, {}, slower=False
    )
    assert (typed.gpu_type is not None and typed.gpu_type[0], typed.model is not None and typed.model[0]) == (
        "V100|K80",
        "m",
    )


# -- who may start -------------------------------------------------------------------------------------------


def test_an_array_may_run_so_many_at_once() -> None:
    spec = spec_of(array="0-9%2")
    jobs = [record(id=number, array_id=1, spec=spec) for number in (1, 2, 3)]
    assert [throttle_of(job) for job in (jobs[0], record(spec=spec), record(array_id=1))] == [2, 0, 0]
    throttles = Throttles([jobs[0]])
    assert throttles.take(jobs[1]) is None
    assert throttles.take(jobs[2]) == Reason(
        WaitCode.ARRAY_THROTTLE,
        "Its array 1 may run 2 jobs at once, and that many run or come before it.",
        {"throttle": 2},
    )
    assert throttles.take(record()) is None


def test_what_keeps_a_job_from_starting() -> None:
    ok, ends = Needed.OK, Needed.ANY
    jobs = {1: record(phase=Phase.RUNNING), 2: record(phase=Phase.FAILED), 3: record(phase=Phase.CANCELLED)}

    def why(**changes: Any) -> tuple[str, str, dict[str, Any]] | None:
        found = blocked(record(id=9, **changes), jobs, 10.0)
        return None if found is None else (found.code, found.text, dict(found.numbers))

    assert why() is None
    assert why(phase=Phase.HELD) == ("held", "It is held; `gpuloom release 9` releases it.", {})
    assert why(after=((2, ends), (8, ok))) is None
    text = "It can't start, as job {}, which it waits for, {}; `gpuloom cancel 9` removes it."
    assert why(after=((1, ok), (2, ok))) == ("dependency_failed", text.format(2, "failed"), {})
    assert why(after=((3, ok),)) == ("dependency_failed", text.format(3, "was cancelled"), {})
    assert why(after=((1, ok),)) == ("dependency", "It waits for job 1 (running) to succeed.", {"first": 1, "jobs": 1})
    two = ((1, ends), (1, ends))
    assert why(after=two) == ("dependency", "It waits for job 1 (running) and 1 more to end.", {"first": 1, "jobs": 2})
    assert why(not_before_s=10.0) is None
    paused = "Its last attempt failed; the next one is in 5 s."
    assert why(not_before_s=15.0) == ("pause_before_retry", paused, {"seconds": 5.0})
    stuck: dict[str, Any] = {"reason": EndReason.NOT_STARTED, "message": "no room"}
    text = "It could not be started, through no fault of its own: no room. The next attempt is in 1 s."
    assert why(not_before_s=10.5, **stuck) == ("start_failed", text, {"seconds": 0.5})


# -- machines ------------------------------------------------------------------------------------------------


def test_the_memory_of_gpus_that_do_not_tell_is_that_of_their_model_and_slots_have_none() -> None:
    nodes = [
        node("gpus", "K80"),
        node("unheard-of", "Moon 9000"),
        node("slots", "K80", kind=DeviceKind.CPU),
        node("tells", gpus=(Gpu(0, "a", "K80", 11_000),)),
    ]
    fleet = fleet_of(nodes)
    assert fleet is not None
    found = {one.name: one.gpu_memory_mib for one in fleet.cluster.nodes}
    assert found == {"gpus": known_memory_mib("K80"), "unheard-of": None, "slots": None, "tells": 11_000}
    assert found["gpus"] == pytest.approx(12_000, rel=0.1)


def test_which_gpus_may_be_given_away() -> None:
    bad = [Gpu(number, "x", "V100", state=state) for number, state in enumerate(GpuState, 4) if state != GpuState.OK]
    gpus = (Gpu(0, "a", "V100", 16_000), Gpu(2, "b", "K80"), Gpu(3, "c", "V100", 32_000), *bad)
    nodes = [
        node("up", gpus=gpus),
        node("down", "V100", state=NodeState.DOWN),
        node("drains", "V100", state=NodeState.DRAINING),
    ]
    assert open_slots(nodes) == {("up", 0), ("up", 2), ("up", 3)}
    fleet = fleet_of(nodes, without=[("up", 2)])
    assert fleet is not None
    assert [(one.name, one.gpus, one.gpu_model, one.gpu_memory_mib) for one in fleet.cluster.nodes] == [
        ("up", 2, "V100", 16_000)
    ]
    whole = fleet_of(nodes, everything=True)
    assert whole is not None
    assert [one.name for one in whole.cluster.nodes] == ["up", "up#K80", "down", "drains"]
    assert fleet_of([nodes[1]]) is None
    placement = fleet.placement((("up", (0, 3)),), layer=2)
    assert placement == Placement((0,), (3,), 2)
    assert placement is not None
    assert fleet.allocation(placement) == (("up", (0, 3)),)
    assert fleet.placement((("up", (2,)),)) is None
    assert slots_of((("a", (0, 1)), ("b", (2,)))) == [("a", 0), ("a", 1), ("b", 2)]


def test_models_are_words() -> None:
    fleet = fleet_of([node("a", "NVIDIA A100 (80GB)"), node("b", "()")])
    assert fleet is not None
    assert [one.gpu_model for one in fleet.cluster.nodes] == ["NVIDIA-A100--80GB", "GPU"]


@pytest.mark.parametrize(
    ("asks", "says"),
    [
        ({}, ""),
        ({"memory": 64_000, "cpus": 8}, ""),
        ({"memory": 64_001}, "it asks for 64001 MiB of main memory, and the largest machine has 64000"),
        ({"cpus": 8.5}, "it asks for 8.5 CPU cores, and the largest machine has 8"),
    ],
)
def test_what_no_machine_has(asks: dict[str, Any], says: str) -> None:
    nodes = [node("a", "V100", memory_mib=64_000, cpus=4), node("b", "V100", memory_mib=100, cpus=8), node("c", "V100")]
    plain: dict[str, Any] = {"gpus": 1, "gpu_types": (), "gpu_memory": None, "memory": None, "cpus": None}
    assert why_never(nodes, Needs(**{**plain, **asks})) == says
    assert why_never([nodes[2]], Needs(**{**plain, **asks})) == ""
    assert why_never([], Needs(**plain)) == "no machine has a GPU or a CPU slot"
    slots = [node("s", "CPU", "CPU", kind=DeviceKind.CPU), node("t", "CPU", kind=DeviceKind.CPU)]
    many = why_never(slots, Needs(**{**plain, "gpus": 9}))
    assert many == "it asks for 9 GPUs; all 2 machines together have only 3 CPU slots in their place"
    assert why_never(slots, Needs(**{**plain, "gpus": 3})) == ""
    alone = why_never(slots[:1], Needs(**{**plain, "gpus": 9}))
    assert alone == "it asks for 9 GPUs; this machine has only 2 CPU slots in their place"
    joined = why_never([node("s", "CPU", kind=DeviceKind.CPU, source=NodeSource.JOINED)], Needs(**{**plain, "gpus": 9}))
    assert joined == "it asks for 9 GPUs; s has only 1 CPU slot in their place"
    typed = why_never(slots, Needs(**{**plain, "gpu_types": ("V100", "K80")}))
    assert typed == "it asks for GPUs of model V100 or K80, and this cluster has only CPU slots"


def book_of(*nodes: NodeRecord, **attempts: tuple[tuple[str, tuple[int, ...]], ...]) -> Book:
    book = Book()
    book.nodes.update({each.name: each for each in nodes})
    book.attempts.update({int(key[1:]): attempt(job=int(key[1:]), allocation=held) for key, held in attempts.items()})
    return book


@pytest.mark.parametrize(
    ("nodes", "code", "text"),
    [
        ((), "no_gpu_in_service", "No GPU in service accepts new jobs (no machine has joined yet)."),
        (
            (node("a", "V100", state=NodeState.DOWN), node("b", "V100", state=NodeState.DRAINING)),
            "no_gpu_in_service",
            "No GPU in service accepts new jobs (a is down, b is draining).",
        ),
        (
            (node("a", "V100"),),
            "not_enough_free_gpus",
            "The one GPU in service is held by jobs that are not preempted for it.",
        ),
        (
            (node("a", "V100", "V100"),),
            "not_enough_free_gpus",
            "All 2 GPUs in service are held by jobs that are not preempted for it.",
        ),
    ],
)
def test_why_there_is_nothing_to_give(nodes: tuple[NodeRecord, ...], code: str, text: str) -> None:
    found = nothing_to_give(book_of(*nodes), {})
    assert (found.code, found.text) == (code, text)


@pytest.mark.parametrize(
    ("kept", "out", "why"),
    [
        (0, 0, "; 4 of 4 could be given to it, but not together as it needs them."),
        (1, 0, "; 3 of 4 could be given to it, as job 1, which is not preempted for it, holds others."),
        (2, 1, "; 2 of 5 could be given to it, as jobs 1, 2, which are not preempted for it, hold others and 1 is out "
               "of service."),
        (6, 0, "; 1 of 7 could be given to it, as jobs 1, 2, 3, 4, 5…, which are not preempted for it, hold others."),
    ],
)  # fmt: skip
def test_why_what_could_be_given_does_not_do(kept: int, out: int, why: str) -> None:
    total = 7 if kept == 6 else 4
    nodes = [node("a", *["V100"] * total), *[node(f"x{n}", "V100", state=NodeState.DOWN) for n in range(out)]]
    book = book_of(*nodes, **{f"j{n}": (("a", (n - 1,)),) for n in range(1, kept + 1)})
    fleet = fleet_of(book.nodes.values(), without=[("a", n) for n in range(kept)])
    world: Any = SimpleNamespace(fleet=fleet)
    found = unplaceable(book, {}, record(gpus=2, spec=spec_of(gpu_types=["V100", "K80"])), world)
    assert found.text == f"It needs 2 GPUs of V100 or K80{why}"
    assert found.numbers == {"gpus": 2, "gpus_in_service": total - kept}
    assert unplaceable(book, {}, record(), world).text.startswith("It needs 1 GPU; ")


def planning(text: str, *jobs: Job, nodes: tuple[NodeRecord, ...] = (), known: object = None) -> Any:
    policy, book = load_policy(text), book_of(*nodes)
    book.jobs.update({job.id: job for job in jobs})

    class Known:
        """Of every model that is named, and of no script."""

        def find(self, model: str, gpus: int) -> Any:
            return known

        def __contains__(self, key: str) -> bool:
            return False

    profiles = Known()
    seat = SimpleNamespace(written=text)
    estimates = Estimates(lambda user, name, limit: ())
    speeds = ModelSpeeds(lambda user, name, limit: (), estimates)
    speeds.see(models_of(nodes))
    scene = SimpleNamespace(pace=speeds.of_job)
    return SimpleNamespace(policy=policy, book=book, seat=seat, worlds=SimpleNamespace(profiles=profiles), scene=scene)


MIXED = (node("a", "V100"), node("b", "K80"))


@pytest.mark.parametrize(
    ("there", "found"),
    [
        (planning("fifo", record(), nodes=MIXED), []),
        (planning("muri-s"), []),
        (planning("muri-s", record(), record(id=2, phase=Phase.FAILED)), [("stages", 1, "unknown for 1 of 1 job:")]),
        (planning("muri-s", *[record(id=n, spec=spec_of(model="x")) for n in (1, 2)], known=1), []),
        (planning("muri-s", record(spec=spec_of(model="x")), record(id=2), known=1), [("stages", 1, "1 of 2 jobs:")]),
        (planning("muri-s", *[record(id=n, spec=spec_of(model="x")) for n in (1, 2)]), [("stages", 2, "2 of 2 jobs:")]),
        (planning("elastic", record(), record(id=2)), [("sizes", 2, "none is elastic")]),
        (planning("elastic", record(spec=spec_of(elastic="1-2")), record(id=2)), [("sizes", 1, "1 of 1 elastic job")]),
        (planning("elastic", record(phase=Phase.FINISHED)), []),
        (planning("hlas", record(), nodes=MIXED), [("speeds", 1, "1 of 1 job: it is estimated from the facts")]),
        (planning("hlas", record(), nodes=(MIXED[0], node("b", "Odd"))), [("speeds", 1, "slow as the slowest")]),
        (planning("hlas", record(spec=spec_of(speeds={"v100": 4, "Tesla K80": 1})), nodes=MIXED), []),
        (planning("hlas", record(spec=spec_of(speeds={"V100": 4}, gpu_types=["V100"])), nodes=MIXED), []),
        (planning("hlas", record(), nodes=MIXED[:1]), []),
        (planning("hlas", nodes=MIXED), []),
        (planning("hlas", record(), nodes=(MIXED[0], node("b", "K80", state=NodeState.DOWN))), []),
    ],
)
def test_what_a_policy_is_not_told(there: Any, found: list[tuple[str, int, str]]) -> None:
    lacking = lacks(there)
    assert [(lack.input.value, lack.jobs) for lack in lacking] == [(name, jobs) for name, jobs, _ in found]
    for lack, (_, _, text) in zip(lacking, found, strict=True):
        assert lack.text.startswith(f"Policy {there.seat.written} ")
        assert text in lack.text


# -- what users do to jobs -----------------------------------------------------------------------------------

ALREADY = {
    Action.CANCEL: {Phase.CANCELLED},
    Action.HOLD: {Phase.HELD},
    Action.RELEASE: {Phase.QUEUED, Phase.STARTING, Phase.RUNNING, Phase.STOPPING, Phase.FROZEN},
    Action.SUSPEND: set(),
    Action.RESUME: {Phase.QUEUED, Phase.STARTING, Phase.RUNNING, Phase.STOPPING, Phase.FROZEN},
    Action.REQUEUE: {Phase.QUEUED},
    Action.UPDATE: set(),
    Action.TOP: {Phase.STARTING, Phase.RUNNING},
}


@pytest.mark.parametrize("action", Action)
def test_what_is_so_already(action: Action) -> None:
    assert {phase for phase in Phase if so_already(action, record(phase=phase), None)} == ALREADY[action]
    requeued = attempt(stop_reason=EndReason.REQUEUED)
    so = {Action.RELEASE, Action.RESUME, Action.REQUEUE}
    assert so_already(action, record(phase=Phase.STOPPING), requeued) is (action in so)
    suspended = record(phase=Phase.FROZEN, suspended=True)
    assert so_already(action, suspended, attempt()) is (action in (Action.RELEASE, Action.SUSPEND))


@pytest.mark.parametrize(
    ("action", "phase", "says"),
    [
        (Action.CANCEL, Phase.FINISHED, "job 1 is finished and can't be cancelled"),
        (Action.CANCEL, Phase.CANCELLED, ""),
        (Action.HOLD, Phase.FAILED, "job 1 is failed and can't be held; submit it again, or requeue it"),
        (Action.HOLD, Phase.RUNNING, "job 1 is running and can't be held; requeue it first"),
        (Action.HOLD, Phase.QUEUED, ""),
        (Action.RELEASE, Phase.HELD, ""),
        (Action.SUSPEND, Phase.QUEUED, "job 1 is queued and can't be suspended; `gpuloom hold` keeps it back"),
        (Action.SUSPEND, Phase.STARTING, "job 1 is starting and can't be suspended; it can once it runs"),
        (Action.SUSPEND, Phase.STOPPING, "job 1 is stopping and can't be suspended; it is about to leave its GPUs"),
        (Action.SUSPEND, Phase.FAILED, "job 1 is failed and can't be suspended; submit it again, or requeue it"),
        (Action.SUSPEND, Phase.FROZEN, ""),
        (Action.RESUME, Phase.HELD, ""),
        (Action.RESUME, Phase.FINISHED, "job 1 is finished and can't be resumed; submit it again, or requeue it"),
        (Action.REQUEUE, Phase.FAILED, ""),
        (Action.REQUEUE, Phase.HELD, "job 1 is held and can't be requeued; it is in the queue; release lets it go"),
        (Action.TOP, Phase.STOPPING, "job 1 is stopping and can't be moved to the top; it was told to stop"),
        (Action.TOP, Phase.FROZEN, ""),
        (Action.UPDATE, Phase.FINISHED, "job 1 is finished and can't be changed; submit it again, or requeue it"),
        (Action.UPDATE, Phase.RUNNING, ""),
    ],
)
def test_what_can_not_be_done(action: Action, phase: Phase, says: str) -> None:
    assert impossible(action, record(phase=phase), None) == says


def test_who_makes_way_can_be_moved_to_the_top() -> None:
    assert impossible(Action.TOP, record(phase=Phase.STOPPING), attempt(stop_reason=EndReason.PREEMPTED)) == ""


@pytest.mark.parametrize(
    ("value", "fits"), [(0.0, True), (0.1, True), (0.09, False), (1e9, True), (1.1e9, False), (-1.0, False)]
)
def test_the_time_between_passes(value: float, fits: bool) -> None:
    if fits:
        assert interval(value) == value
    else:
        with pytest.raises(InputError, match=r"must be 0 \(at every event\), or 0.1 to 1e\+09"):
            interval(value)


# -- records -------------------------------------------------------------------------------------------------


def ledger() -> Ledger:
    store, now = MemoryStore(), iter([100.0, 90.0, 110.0, 120.0, 130.0])
    clock: Any = SimpleNamespace(now=lambda: next(now))
    return Ledger(store, store.load(), clock)


def test_a_ledger_numbers_and_dates_what_is_written() -> None:
    book = ledger()
    assert book.write([]) == []
    assert (book.writes, book.newest) == (0, 0)
    first = book.write([("jobs.submitted", 1, submitted(1)), ("jobs.submitted", 2, submitted(2, after=[[1, "ok"]]))])
    later = book.write([("job.held", 1, {})])
    assert [(event.id, event.at_s) for event in (*first, *later)] == [(1, 100.0), (2, 100.0), (3, 100.0)]
    assert (book.writes, book.newest, book.store.load().last_event) == (2, 3, 3)
    assert book.wait(2, 0.0) == book.wait(3, 0.0) == 3
    assert book.waits_for(1) == [2]
    assert book.waits_for(2) == []
    again = Ledger(book.store, book.store.load(), book.clock)
    assert (again.waits_for(1), again.newest, again.book.next_job, set(again.book.jobs)) == ([2], 3, 3, {1, 2})
    book.write([("job.cancelled", 2, {})])
    assert book.waits_for(1) == []
    assert book._waiting == {}


def test_values_of_environments_are_kept_by_the_event_that_brings_a_spec() -> None:
    book = ledger()
    drafts: list[Any] = [("jobs.submitted", n, submitted(n)) for n in (1, 2)]
    book.write(drafts, environments={0: {}, 1: {"A": "b"}})
    assert [book.store.environment(number) for number in (1, 2)] == [None, {"A": "b"}]


def test_a_job_that_there_is_not() -> None:
    book = ledger()
    scheduler: Any = SimpleNamespace(book=book.book, store=book.store)
    found = JobRecords(scheduler)
    with pytest.raises(NotFoundError, match="there is no job 7; none yet"):
        found.get(7)
    book.write([("jobs.submitted", 1, submitted(1))])
    with pytest.raises(NotFoundError, match="there is no job 7; the last job is 1"):
        found.get(7)
    assert found.get(1).id == 1
    book.book.jobs.clear()
    assert found.get(1).id == 1


def test_an_attempt_as_it_is_shown() -> None:
    assert where((("a", (0, 1)), ("b", (2,)))) == "a:0,1 b:2"
    plain = attempt_view(attempt(), 0.0)
    assert (plain["state"], plain["reason"], plain["saved_by"], plain["stop_reason"]) == ("running", None, None, None)
    over = attempt_view(attempt(phase=None, reason=EndReason.FINISHED, stop_reason=EndReason.PREEMPTED), 0.0)
    assert (over["state"], over["reason"], over["stop_reason"], over["gpus"]) == ("ended", "finished", "preempted", 1)
    ends = [EndReason.PREEMPTED, EndReason.NODE, EndReason.FINISHED]
    assert preemptions_of({1: [attempt(reason=reason) for reason in ends]}, 1) == 2
    assert preemptions_of({}, 1) == 0
