"""The trace of past live jobs: durations, overheads and submissions from hand-made records."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from gpuloom.cli.main import cli
from gpuloom.core.errors import InputError
from gpuloom.core.events import Event
from gpuloom.core.job import Attempt, EndReason, Gpu, Job, NodeRecord, Phase
from gpuloom.core.pace import ModelSpeed, Pace, SpeedSource
from gpuloom.core.ran import Run, Runs, Together
from gpuloom.core.spec import spec_of
from gpuloom.live.records.fleet import fleet_of
from gpuloom.live.records.history import trace_csv, trace_of
from gpuloom.sim.simulator import simulate
from gpuloom.traces import read_trace

START = 1_000_000.0
"""A multiple of every interval used here."""


def run(
    number: int,
    start: float,
    end: float,
    reason: str,
    work_s: float,
    *,
    job: int = 1,
    slots: tuple[int, ...] = (0,),
    held_s: float | None = None,
) -> Attempt:
    """An attempt that ended, times counted from START. work_s: the job's after it. held_s: less if it was frozen."""
    return Attempt(
        job,
        number,
        None,
        (("host", slots),),
        START + start,
        START + start,
        running_s=START + start,
        ended_s=START + end,
        reason=EndReason(reason),
        held_s=end - start if held_s is None else held_s,
        work_s=work_s,
    )


def of(
    *attempts: Attempt, job: int = 1, submitted: float = 0.0, phase: str = "finished", **given: Any
) -> tuple[Job, tuple[Attempt, ...]]:
    """A job with these attempts."""
    spec = spec_of({"command": ["train"], "name": f"job{job}", **given.pop("spec", {})})
    record = Job(
        job,
        spec.name,
        "ann",
        given.pop("gpus", 1),
        given.pop("priority", 0),
        Phase(phase),
        1,
        spec,
        START + submitted,
        START + submitted,
        first_start_s=attempts[0].started_s if attempts else None,
        ended_s=attempts[-1].ended_s if attempts and phase in ("finished", "failed", "cancelled") else None,
        attempts=len(attempts),
        held_s=sum(attempt.held_s for attempt in attempts),
        work_s=attempts[-1].work_s if attempts else 0.0,
        **given,
    )
    return record, attempts


def one(*attempts: Attempt, **given: Any) -> tuple[float, float]:
    """(duration, overhead of a start) of the trace's only job."""
    found = trace_of([of(*attempts, **given)], 60.0)
    assert len(found) == 1
    assert found.restart_overhead_s is not None
    return float(found.duration_s[0]), float(found.restart_overhead_s[0])


def test_a_start_up_that_was_reported_is_overhead_and_the_rest_is_work() -> None:
    assert one(run(1, 5, 105, "finished", 90.0)) == (90.0, 10.0)


def test_preemptions_split_the_work_and_share_its_overhead_evenly() -> None:
    first, second, third = (
        run(1, 0, 50, "preempted", 46.0),
        run(2, 80, 100, "node", 60.0),
        run(3, 200, 250, "finished", 100.0),
    )
    duration, overhead = one(first, second, third)
    assert duration == 100.0
    assert overhead == pytest.approx((120 - 100) / 3)
    # What the job held is what a replay with as many starts holds.
    assert duration + 3 * overhead == pytest.approx(120.0)


def test_work_that_a_preemption_lost_is_the_cost_of_starts_not_work() -> None:
    assert one(run(1, 0, 50, "preempted", 0.0), run(2, 60, 170, "finished", 100.0)) == (100.0, 30.0)


def test_a_job_that_only_ever_lost_its_work_counts_its_longest_run() -> None:
    lost = (run(1, 0, 50, "preempted", 0.0), run(2, 60, 80, "preempted", 0.0))
    assert one(*lost, phase="cancelled") == (50.0, 10.0)


@pytest.mark.parametrize("reason", ["failed", "timed_out", "out_of_memory", "lost", "cancelled", "not_started"])
def test_what_ended_badly_by_itself_would_do_so_under_any_policy(reason: str) -> None:
    phase = "cancelled" if reason == "cancelled" else "failed"
    assert one(run(1, 0, 70, reason, 0.0), phase=phase) == (70.0, 0.0)
    # After it had made way once: the saved part and the last run.
    duration, overhead = one(run(1, 0, 50, "preempted", 45.0), run(2, 60, 130, reason, 45.0), phase=phase)
    assert (duration, overhead) == (45.0 + 70.0, 5.0)


def test_attempts_that_failed_before_one_that_did_not_are_work_and_cost_no_start() -> None:
    failed, good = run(1, 0, 30, "failed", 0.0), run(2, 40, 150, "finished", 100.0)
    assert one(failed, good) == (130.0, 10.0)


def test_a_job_that_was_requeued_after_its_end_did_it_all_twice() -> None:
    duration, overhead = one(run(1, 0, 110, "finished", 100.0), run(2, 200, 290, "finished", 80.0))
    assert (duration, overhead) == (180.0, 10.0)
    assert one(run(1, 0, 40, "requeued", 0.0), run(2, 50, 150, "finished", 90.0)) == (130.0, 10.0)


def test_frozen_time_is_not_held_and_frozen_jobs_do_not_count_as_sharing() -> None:
    frozen = of(run(1, 0, 100, "finished", 55.0, held_s=60.0))
    other = of(run(1, 30, 70, "finished", 38.0, job=2), job=2, submitted=10)
    found = trace_of([frozen, other], 60.0)
    assert found.duration_s.tolist() == [55.0, 38.0]
    assert found.restart_overhead_s is not None
    assert found.restart_overhead_s.tolist() == [5.0, 2.0]


def test_of_jobs_that_shared_the_work_is_the_models_and_the_overhead_that_of_others() -> None:
    together = (
        of(run(1, 0, 100, "finished", 60.0)),
        of(run(1, 20, 90, "finished", 40.0, job=2), job=2, submitted=20),
        of(run(1, 30, 80, "finished", 43.0, job=3, slots=(1,)), job=3, submitted=30),
    )
    found = trace_of(together, 60.0)
    assert found.duration_s.tolist() == [60.0, 40.0, 43.0]
    assert found.restart_overhead_s is not None
    assert found.restart_overhead_s.tolist() == [7.0, 7.0, 7.0]


def test_one_that_follows_another_on_its_gpu_has_not_shared_it() -> None:
    jobs = (of(run(1, 0, 50, "finished", 48.0)), of(run(1, 50, 90, "finished", 36.0, job=2), job=2))
    overhead = trace_of(jobs, 60.0).restart_overhead_s
    assert overhead is not None
    assert overhead.tolist() == [2.0, 4.0]


@pytest.mark.parametrize("interval_s", [60.0, 2.0, 0.0])
def test_time_0_is_a_multiple_of_the_interval_or_of_an_hour(interval_s: float) -> None:
    jobs = [
        of(run(1, 40, 80, "finished", 40.0), submitted=25.0),
        of(run(1, 80, 90, "finished", 9.0, job=2), job=2, submitted=75.5),
    ]
    first = (START + 25.0) % (interval_s or 3600.0)
    assert trace_of(jobs, interval_s).submit_s.tolist() == pytest.approx([first, first + 50.5])


def test_a_job_that_waited_for_another_comes_with_its_end() -> None:
    before = of(run(1, 10, 110, "finished", 95.0))
    after = of(run(1, 120, 150, "finished", 28.0, job=2), job=2, submitted=5.0, after=((1, "ok"),))
    # One that was requeued after the job that waited for it had started says nothing.
    late = of(run(1, 20, 90, "finished", 60.0, job=3), job=3, submitted=6.0, after=((2, "any"),))
    found = trace_of([before, after, late], 10.0)
    by_id = dict(zip(found.job_ids or (), found.submit_s.tolist(), strict=True))
    assert by_id == {"1": 0.0, "2": 110.0, "3": 6.0}


def test_jobs_that_never_ran_or_have_not_ended_are_left_out() -> None:
    ran = of(run(1, 0, 10, "finished", 9.0))
    waits = of(job=2, phase="queued")
    never = of(job=3, phase="cancelled")
    runs = of(run(1, 0, 10, "preempted", 8.0, job=4), job=4, phase="running")
    assert trace_of([ran, waits, never, runs], 60.0).job_ids == ("1",)
    with pytest.raises(InputError, match="nothing to replay"):
        trace_of([waits, never, runs], 60.0)


def test_columns_say_what_the_specs_said() -> None:
    jobs = [
        of(run(1, 0, 10, "finished", 9.0, slots=(0, 1)), gpus=2, spec={"model": "gpt2", "gpu_types": ["V100", "A100"]}),
        of(run(1, 20, 30, "finished", 9.0, job=2), job=2, submitted=15, priority=-1, spec={"gpu_memory": 4096}),
    ]
    found = trace_of(jobs, 60.0)
    assert found.gpus.tolist() == [2, 1]
    assert found.model is not None
    assert found.gpu_type is not None
    assert [found.model.names[code] for code in found.model.codes] == ["gpt2", ""]
    assert [found.gpu_type.names[code] for code in found.gpu_type.codes] == ["V100|A100", ""]
    assert found.priority is not None
    assert found.priority.tolist() == [0, 1]
    assert found.gpu_memory_mib is not None
    assert np.isnan(found.gpu_memory_mib[0])
    assert found.gpu_memory_mib[1] == 4096


def test_the_file_is_read_back_and_a_replay_holds_gpus_as_long_as_the_jobs_did(tmp_path: Any) -> None:
    """Two slots; the second job waits for the first, and its replay ends when it did."""
    jobs = [
        of(run(1, 3, 103, "finished", 90.0, slots=(0, 1)), gpus=2, submitted=3.0),
        of(run(1, 103, 153, "finished", 46.0, job=2, slots=(0, 1)), gpus=2, job=2, submitted=20.0),
    ]
    file = tmp_path / "history.csv"
    file.write_text(trace_csv(jobs, 60.0))
    result = simulate(read_trace(file).workload, "1x2", "fifo", interval_s=60.0)
    assert result.jct_s.tolist() == pytest.approx([100.0, 133.0])


def test_an_elastic_job_replays_with_its_range_and_its_speeds() -> None:
    """10 s on two GPUs, at 1.5 times the speed of one, and 5 s on one: 20 s of work at the size that it asks for."""
    runs = (run(1, 0, 10, "resized", 10.0, slots=(0, 1)), run(2, 10, 15, "finished", 15.0))
    past = [of(*runs, spec={"elastic": "1-2"})]
    sizes = {1: ModelSpeed(1.0, SpeedSource.MEASURED), 2: ModelSpeed(1.5, SpeedSource.MEASURED)}
    found = trace_of(past, 0.0, pace_of=lambda job: Pace({}, sizes))
    assert found.duration_s.tolist() == [20.0]
    assert found.ran is not None
    assert found.ran.held_s.tolist() == [25.0]  # GPU-seconds over the one GPU that it asks for
    assert found.scaling is not None
    assert (found.scaling.min_gpus.tolist(), found.scaling.max_gpus.tolist()) == ([1], [2])
    text = trace_csv(past, 0.0, pace_of=lambda job: Pace({}, sizes))
    assert "1:1.0/2:1.5" in text


class Log:
    """The events of a store, page by page."""

    def __init__(self, *events: tuple[float, str, int | None, dict[str, Any]]) -> None:
        self._all = [Event(n, START + at_s, kind, job, data) for n, (at_s, kind, job, data) in enumerate(events, 1)]

    def __call__(
        self, *, after: int = 0, job: int | None = None, types: Sequence[str] = (), limit: int = 1000
    ) -> Sequence[Event]:
        found = [one for one in self._all if one.id > after and job in (None, one.job) and one.type in types]
        return found[:2]


def told(past: Any, events: Log, **given: Any) -> Runs:
    """What the trace says of runs."""
    ran = trace_of(past, 10.0, events=events, **given).ran
    assert ran is not None
    assert ran.runs is not None
    return ran.runs


def test_a_run_that_begins_with_a_resize_says_what_that_cost(tmp_path: Path) -> None:
    runs = (
        run(1, 0, 10, "resized", 10.0, slots=(0, 1)),
        run(2, 10, 15, "resized", 15.0),
        run(3, 15, 20, "finished", 20.0),
    )
    past = [of(*runs, spec={"elastic": "1-2"})]
    paid = {"attempt": 2, "cost_s": 3.5, "lost_steps": 2.0}
    unsaid = {**paid, "attempt": 3, "lost_steps": None}
    events = Log((12.0, "job.resize_cost", 1, paid), (16.0, "job.resize_cost", 1, unsaid))
    (found,) = told(past, events).runs
    assert [(one.stood_s, one.lost_steps) for one in found] == [(None, None), (3.5, 2.0), (3.5, None)]
    file = tmp_path / "history.csv"
    file.write_text(trace_csv(past, 10.0, events=events))
    assert "+3.5/2.0" in file.read_text()
    ran = read_trace(file).workload.ran
    assert ran is not None
    assert ran.runs is not None
    assert ran.runs.runs == (found,)
    assert ran.runs.stood_s() == [3.5, 3.5]


@pytest.mark.parametrize(("given", "costs"), [((), 3.5), (("--resize-overhead", "9s"), 9.0)])
def test_a_replay_takes_what_resizes_cost_then_if_nobody_says(
    tmp_path: Path, given: tuple[str, ...], costs: float
) -> None:
    runs = (run(1, 0, 10, "resized", 10.0, slots=(0, 1)), run(2, 10, 15, "finished", 15.0))
    past = [of(*runs, spec={"elastic": "1-2"})]
    paid = {"attempt": 2, "cost_s": 3.5, "lost_steps": 2.0}
    file = tmp_path / "history.csv"
    file.write_text(trace_csv(past, 10.0, events=Log((12.0, "job.resize_cost", 1, paid))))
    done = CliRunner().invoke(cli, ["simulate", str(file), "--cluster", "1x2", *given, "--json", "-"])
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["settings"]["resize_overhead_s"] == costs
    note = "note: a resize costs 3.5 s, the median of 1 resize that the trace measured (see --resize-overhead)"
    assert (note in done.stderr) == (not given)


def test_groups_are_told_with_their_times_and_a_member_that_leaves_changes_them() -> None:
    past = [
        of(run(1, 0, 100, "finished", 60.0)),
        of(run(1, 20, 90, "finished", 40.0, job=2), job=2, submitted=20),
        of(run(1, 30, 80, "finished", 43.0, job=3), job=3, submitted=30),
    ]
    two = {"members": [1, 2], "was": [], "gpus": {"host": [0]}, "order": [2, 1], "rates": {}, "efficiency": 0.9}
    three = {"members": [1, 2, 3], "was": [1, 2], "gpus": {"host": [0]}, "order": None, "rates": {}, "efficiency": None}
    events = Log(
        (20.0, "group.changed", None, two),
        (30.0, "group.changed", None, three),
        (81.0, "group.changed", None, {**two, "was": [1, 2, 3]}),
        (90.5, "group.changed", None, {"members": [], "was": [1, 2], "gpus": {}}),
        (95.0, "group.changed", None, {**two, "members": [8, 9]}),
    )
    first = Together(20.0, 30.0, ("2", "1"), True, 0.9)
    all_three = Together(30.0, 80.0, ("1", "2", "3"), False, None)
    last = Together(81.0, 90.0, ("2", "1"), True, 0.9)
    assert told(past, events).together == ((first, all_three, last), (first, all_three, last), (all_three,))
    assert told(past, events).groups() == [first, all_three, last]
    # Nobody wrote down how it ended (the machine went down): it ended with its members.
    assert told(past[:2], Log((20.0, "group.changed", None, two))).groups() == [first._replace(until_s=90.0)]


def test_a_job_that_was_frozen_has_a_run_for_each_span_and_the_gpus_of_each() -> None:
    past = [of(run(1, 0, 100, "finished", 55.0, held_s=60.0, slots=(1,)))]
    events = Log(
        (0.0, "attempt.starting", 1, {"attempt": 1, "allocation": [["host", [0]]]}),
        (30.0, "attempt.frozen", 1, {}),
        (70.0, "attempt.thawed", 1, {"allocation": [["host", [1]]]}),
    )
    assert told(past, events).runs == (
        (Run(0.0, 30.0, "frozen", (("host", (0,)),)), Run(70.0, 100.0, "finished", (("host", (1,)),))),
    )


def test_a_node_is_called_as_in_the_cluster() -> None:
    gpus = tuple(Gpu(index, str(index), model) for index, model in enumerate(("V100", "V100", "K80")))
    fleet = fleet_of([NodeRecord("host", gpus)])
    past = [of(run(1, 0, 9, "finished", 9.0, slots=(2,)))]
    found = told(past, Log(), fleet=fleet)
    assert found.nodes == ("host", "host#K80")
    assert found.runs[0][0].parts == (("host#K80", (0,)),)
