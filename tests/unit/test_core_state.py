"""The only mutator: transitions, lazy progress, GPUs taken and given back."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import jobs
from gpuloom.core.cluster import parse_cluster
from gpuloom.core.decision import Placement
from gpuloom.core.errors import InvalidTransition, PlanError
from gpuloom.core.state import TRANSITIONS, JobState, State

ONE = Placement((0,), (0b1,))


def state(*rows: tuple[float, float, int], cluster: str = "1x4", layers: int = 1) -> State:
    return State(jobs(rows or [(0, 100, 1)]), parse_cluster(cluster), layers=layers)


def running(overhead_s: float = 0.0, rate: float = 1.0) -> State:
    made = state()
    made.submit(0, 0.0)
    made.start(0, ONE, 0.0, overhead_s, rate)
    return made


def adopt(made: State, *placements: Placement, run_from_s: float, work_from_s: float, rate: float = 1.0) -> None:
    n = len(placements)
    made.adopt(
        np.arange(n),
        placements,
        run_from_s=np.full(n, run_from_s),
        work_from_s=np.full(n, work_from_s),
        rate=np.full(n, rate),
    )


def restore(
    made: State, held_gpu_s: object, *, held_s: float, starts: int, first_start_s: float, left_s: float
) -> None:
    made.restore(
        np.arange(1),
        held_s=np.array([held_s]),
        held_gpu_s=np.array(held_gpu_s),
        starts=np.array([starts], dtype=np.int32),
        first_start_s=np.array([first_start_s]),
        remaining_s=np.array([left_s]),
    )


def resized(made: State) -> None:
    made.vacate(0, 1.0)
    made.resize(0, ONE, 1.0, 0.0, 0.5)


REACH: dict[JobState, Callable[[], State]] = {
    JobState.FUTURE: state,
    JobState.WAITING: lambda: reach("submit"),
    JobState.RUNNING: lambda: reach("submit", "start"),
    JobState.FINISHED: lambda: reach("submit", "start", "finish"),
}
STEPS: dict[str, Callable[[State], None]] = {
    "submit": lambda s: s.submit(0, 1.0),
    "start": lambda s: s.start(0, ONE, 1.0, 0.0, 1.0),
    "stop": lambda s: s.stop(0, 1.0),
    "retime": lambda s: s.retime(0, 1.0, 0.5),
    "resize": resized,
    "finish": lambda s: s.finish(0, 1.0),
    "adopt": lambda s: adopt(s, ONE, run_from_s=0.0, work_from_s=1.0),
}


def reach(*steps: str) -> State:
    made = state()
    for step in steps:
        STEPS[step](made)
    return made


def test_the_table_names_every_step() -> None:
    assert set(STEPS) == set(TRANSITIONS)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("before", list(JobState), ids=lambda s: s.name)
def test_only_the_table_s_steps_are_taken(before: JobState, step: str) -> None:
    made = REACH[before]()
    wanted, after = TRANSITIONS[step]
    if before is wanted:
        STEPS[step](made)
        assert made.status[0] == after
        return
    columns = [made.remaining_s[0], made.held_s[0], made.starts[0], made.waiting, made.unfinished, made.busy_gpus]
    with pytest.raises(InvalidTransition) as caught:
        STEPS[step](made)
    text = str(caught.value)
    assert f"job 0 can't {step}" in text
    assert f"it is {before.name.lower()}, must be {wanted.name.lower()}" in text
    assert "Submitted at 0.0 s, started" in text
    assert "of work left" in text
    after_columns = [made.remaining_s[0], made.held_s[0], made.starts[0], made.waiting, made.unfinished, made.busy_gpus]
    assert after_columns == columns, "a refused step changes nothing"
    assert made.status[0] == before


def test_every_transition_carries_the_step_that_caused_it() -> None:
    made = state()
    made.step = 7
    made.submit(0, 0.0)
    assert made.cause[0] == 7
    made.step = 9
    made.start(0, ONE, 0.0, 0.0, 1.0)
    assert made.cause[0] == 9
    assert "last changed by step 9" in made.story(0)


def test_nothing_is_done_during_the_restart_overhead() -> None:
    made = running(overhead_s=30.0)
    assert [made.remaining_at(0, now) for now in (0.0, 15.0, 30.0, 40.0, 130.0, 500.0)] == [100, 100, 100, 90, 0, 0]
    assert made.predicted_end_s(0) == 130.0
    assert made.held_at(0, 15.0) == 15.0, "GPUs are held during the overhead"


def test_progress_follows_the_rate() -> None:
    made = running(rate=0.5)
    assert made.remaining_at(0, 100.0) == 50.0
    assert made.predicted_end_s(0) == 200.0


def test_a_job_at_rate_zero_never_ends() -> None:
    made = running(rate=0.0)
    assert made.predicted_end_s(0) == math.inf
    assert made.remaining_at(0, 1e9) == 100.0


def test_a_new_rate_counts_from_now_on() -> None:
    made = running()
    made.retime(0, 40.0, 0.5)
    assert made.remaining_at(0, 40.0) == 60.0
    assert made.predicted_end_s(0) == 160.0
    made.retime(0, 60.0, 2.0)
    assert made.remaining_at(0, 60.0) == 50.0
    assert made.predicted_end_s(0) == 85.0


def test_a_new_rate_during_the_overhead_does_not_shorten_it() -> None:
    made = running(overhead_s=30.0)
    made.retime(0, 10.0, 0.5)
    assert made.remaining_at(0, 30.0) == 100.0
    assert made.predicted_end_s(0) == 230.0


def test_stopping_keeps_progress_and_service_and_a_restart_pays_again() -> None:
    made = running(overhead_s=10.0)
    made.stop(0, 50.0)
    assert made.remaining_s[0] == 60.0
    assert made.held_at(0, 80.0) == 50.0, "nothing is held while waiting"
    assert made.remaining_at(0, 80.0) == 60.0
    made.start(0, ONE, 80.0, 10.0, 1.0)
    assert made.predicted_end_s(0) == 150.0
    made.finish(0, 150.0)
    assert (made.held_s[0], made.end_s[0], made.starts[0], made.first_start_s[0]) == (120.0, 150.0, 2, 0.0)
    assert made.unfinished == 0


def test_stopping_during_the_overhead_has_done_no_work() -> None:
    made = running(overhead_s=10.0)
    made.stop(0, 4.0)
    assert (made.remaining_s[0], made.held_s[0]) == (100.0, 4.0)


def test_lost_work_is_done_again_but_never_more_than_all_of_it() -> None:
    made = running()
    made.stop(0, 50.0, lost_s=20.0)
    assert made.remaining_s[0] == 70.0
    made.start(0, ONE, 50.0, 0.0, 1.0)
    made.stop(0, 60.0, lost_s=1000.0)
    assert made.remaining_s[0] == 100.0


def test_gpus_are_taken_and_given_back() -> None:
    made = state((0, 10, 3), (0, 10, 2), cluster="2x2")
    for job in (0, 1):
        made.submit(job, 0.0)
    made.start(0, Placement((0, 1), (0b11, 0b01)), 0.0, 0.0, 1.0)
    assert made.free == [[0b00, 0b10]]
    assert made.busy_gpus == 3
    with pytest.raises(PlanError, match=r"job 1 was given GPUs 0x3 of node n1, of which only 0x2 are free"):
        made.start(1, Placement((1,), (0b11,)), 0.0, 0.0, 1.0)
    made.finish(0, 10.0)
    assert made.free == [[0b11, 0b11]]
    assert made.busy_gpus == 0
    assert made.placements == {}


def test_layers_share_a_gpu_and_count_it_once() -> None:
    made = state((0, 10, 1), (0, 10, 2), layers=2)
    for job in (0, 1):
        made.submit(job, 0.0)
    made.start(0, Placement((0,), (0b0001,), 0), 0.0, 0.0, 1.0)
    made.start(1, Placement((0,), (0b0011,), 1), 0.0, 0.0, 1.0)
    assert made.busy_gpus == 2
    assert made.idle == [0b1100]
    assert made.owners[0][0] == {0: 0}
    assert made.owners[1][0] == {0: 1, 1: 1}
    made.finish(1, 10.0)
    assert made.busy_gpus == 1
    assert made.idle == [0b1110]
    assert made.owners[1][0] == {}
    made.finish(0, 10.0)
    assert made.busy_gpus == 0
    assert made.free == [[0b1111], [0b1111]]


def test_a_layer_holds_one_job_per_gpu() -> None:
    made = state((0, 10, 1), (0, 10, 1), layers=2)
    for job in (0, 1):
        made.submit(job, 0.0)
    made.start(0, Placement((0,), (1,), 1), 0.0, 0.0, 1.0)
    with pytest.raises(PlanError, match="of which only 0xe are free"):
        made.start(1, Placement((0,), (1,), 1), 0.0, 0.0, 1.0)


def test_a_node_out_of_service_has_no_free_gpus_until_it_is_back() -> None:
    made = state(cluster="2x2")
    made.submit(0, 0.0)
    made.node_down(0)
    made.node_down(0)
    assert made.free == [[0, 0b11]]
    assert made.idle == [0, 0b11]
    with pytest.raises(PlanError):
        made.start(0, ONE, 0.0, 0.0, 1.0)
    made.node_up(0)
    made.node_up(1)
    assert made.free == [[0b11, 0b11]]


def test_jobs_on_a_node_are_those_with_a_gpu_there() -> None:
    made = state((0, 10, 2), (0, 10, 1), (0, 10, 1), cluster="2x2")
    for job in range(3):
        made.submit(job, 0.0)
    made.start(2, Placement((1,), (0b10,)), 0.0, 0.0, 1.0)
    made.start(0, Placement((0, 1), (0b10, 0b01)), 0.0, 0.0, 1.0)
    assert (made.jobs_on(0), made.jobs_on(1)) == ([0], [0, 2])
    assert np.flatnonzero(made.status_column == JobState.WAITING).tolist() == [1]


def test_charging_every_step_takes_the_overhead_off_each_step() -> None:
    made = state((0, 100, 1), (0, 100, 1), cluster="1x2")
    for job in (0, 1):
        made.submit(job, 0.0)
        made.start(job, Placement((0,), (1 << job,)), 0.0, 0.0, 1.0)
    both, overhead = np.array([0, 1]), np.array([5.0, 20.0])
    made.charge_every_step(both, 30.0, overhead)
    assert made.remaining_s_column.tolist() == [75.0, 90.0]
    made.charge_every_step(both, 40.0, overhead)
    assert made.remaining_s_column.tolist() == [70.0, 90.0], "a step shorter than the overhead does no work"


OPS = st.lists(st.tuples(st.sampled_from(["go", "stop", "retime"]), st.floats(0, 50), st.floats(0, 3)), max_size=20)


@given(ops=OPS, overhead=st.sampled_from([0.0, 5.0]))
def test_lazy_progress_equals_progress_second_by_second(ops: list[tuple[str, float, float]], overhead: float) -> None:
    made = state((0, 1000, 1))
    made.submit(0, 0.0)
    now, left, held, rate, pause = 0.0, 1000.0, 0.0, 0.0, 0.0
    on = False
    for what, dt, value in ops:
        now += dt
        if on:
            held += dt
            worked = max(dt - pause, 0.0)
            pause = max(pause - dt, 0.0)
            left = max(left - worked * rate, 0.0)
        if what == "go" and not on:
            made.start(0, ONE, now, overhead, value)
            on, rate, pause = True, value, overhead
        elif what == "stop" and on:
            made.stop(0, now)
            on = False
        elif what == "retime" and on:
            made.retime(0, now, value)
            rate = value
        assert made.remaining_at(0, now) == pytest.approx(left, abs=1e-6)
        assert made.held_at(0, now) == pytest.approx(held, abs=1e-6)
        assert made.busy_gpus == on


# -- a state of jobs that began before it was built ---------------------------------------------------------


def test_a_restored_job_has_its_history() -> None:
    made = state((0, 100, 2), cluster="1x4")
    restore(made, [80.0], held_s=40.0, starts=2, first_start_s=5.0, left_s=70.0)
    made.submit(0, 50.0)
    adopt(made, Placement((0,), (0b11,)), run_from_s=45.0, work_from_s=50.0)
    assert made.held_at(0, 60.0) == 55.0
    assert made.held_gpu_s_at(0, 60.0) == 110.0
    assert made.remaining_at(0, 60.0) == 60.0
    assert (made.starts[0], made.first_start_s[0]) == (2, 5.0)
    with pytest.raises(InvalidTransition, match="must be waiting"):
        restore(made, [0.0], held_s=0.0, starts=0, first_start_s=math.nan, left_s=60.0)
    made.stop(0, 60.0)
    restore(made, [[3.0]], held_s=1.0, starts=0, first_start_s=math.nan, left_s=61.0)
    assert (made.held_gpu_s_at(0, 60.0), made.remaining_s[0]) == (3.0, 61.0)
    assert math.isnan(made.first_start_s[0])


@pytest.mark.parametrize(("end_s", "spare_s"), [(100.0, 0.0), (100.0 + 1e-9, 0.0), (40.0, 60.0), (130.0, -30.0)])
def test_work_that_an_ended_job_did_not_need(end_s: float, spare_s: float) -> None:
    made = running()
    made.finish(0, end_s)
    assert made.spare_s[0] == spare_s


def test_a_copy_is_equal_and_its_own() -> None:
    made = State(jobs([(0, 100, 2), (0, 50, 1), (0, 9, 1)]), parse_cluster("1x4,1x2"), layers=2)
    for job in range(3):
        made.submit(job, 0.0)
    made.start(0, Placement((0,), (0b11,)), 0.0, 5.0, 1.0)
    made.start(1, Placement((0,), (0b1,), 1), 0.0, 5.0, 1.0)
    made.node_down(1)
    twin = made.copy()
    for name in State.__slots__:
        if name.endswith("_column"):
            assert np.array_equal(getattr(twin, name), getattr(made, name), equal_nan=True), name
        elif name not in ("workload", "cluster") and not isinstance(getattr(made, name), memoryview):
            assert getattr(twin, name) == getattr(made, name), name
    story = made.story(0)
    twin.finish(0, 30.0)
    twin.node_up(1)
    twin.start(2, ONE, 30.0, 0.0, 1.0)
    assert made.story(0) == story
    assert (made.waiting, made.busy_gpus, made.down, made.free[0]) == (1, 2, {1}, [0b1100, 0])
