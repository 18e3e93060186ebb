"""What is no failure of a job: GPUs that broke, ends that nobody saw; and the GPU memory that the monitor saw, which is
planned with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fake_views import attempt
from gpuloom.core.job import DeviceKind, EndReason, Gpu, GpuState, NodeRecord, Phase
from gpuloom.core.usage import RunUsage
from gpuloom.executors.port import Cause, RunExit
from gpuloom.live.dispatch.faults import MOST_LOST, Fault, fault_of
from gpuloom.live.dispatch.peaks import Peaks
from gpuloom.live.planning.gpu_memory import SETTLED_S, GpuMemory, MemorySource, Need, least_of_largest
from gpuloom.live.submission.spec import job_spec
from gpuloom.live.trial.rehearsal import Rehearsal
from gpuloom.store.port import MeasuredRun

GPU = Gpu(0, "gpu-0", "V100", 16_000)
NODE = NodeRecord("node0", (GPU, replace(GPU, index=1)))


def fault(code: int | None = 1, *, node: NodeRecord = NODE, **given: Any) -> Fault | None:
    how = RunExit(code, None, given.pop("reason", None), "", 100.0, cause=given.pop("cause", Cause.NONE))
    one = attempt(stop_reason=given.pop("stop", None), number=given.pop("number", 1), started_s=50.0)
    return fault_of(one, how, {"node0": node}, before=given.pop("before", ()))


def test_a_gpu_that_broke_while_the_job_ran_is_to_blame() -> None:
    def with_gpu(**changes: Any) -> NodeRecord:
        return replace(NODE, gpus=(replace(GPU, state=GpuState.UNHEALTHY, reason="XID 79", **changes), NODE.gpus[1]))

    found = fault(node=with_gpu(since_s=60.0))
    assert found == Fault(EndReason.NODE, "1 GPU of it failed (GPU 0 of node0: XID 79)")
    assert fault(node=with_gpu(since_s=40.0)) is None, "it was so before"
    assert fault(node=with_gpu(since_s=60.0, index=1)) is None, "another one"
    assert fault(node=replace(with_gpu(since_s=60.0), kind=DeviceKind.CPU)) is None


def test_an_end_that_nobody_saw_is_no_failure_a_few_times() -> None:
    found = fault(None, reason=EndReason.LOST)
    assert found is not None
    assert found.reason is EndReason.LOST
    ends = [attempt(number=n, phase=None, reason=EndReason.LOST) for n in range(1, 1 + MOST_LOST)]
    assert fault(None, reason=EndReason.LOST, number=1 + MOST_LOST, before=ends) is None
    ends[-1] = replace(ends[-1], reason=EndReason.PREEMPTED)
    assert fault(None, reason=EndReason.LOST, number=1 + MOST_LOST, before=ends) is not None
    assert fault(None, reason=EndReason.TIMED_OUT) is None


# -- memory -----------------------------------------------------------------------------------------------------------


def usage(mib: float | None, **progress: object) -> RunUsage:
    return RunUsage("1.1", gpu_memory_mib=mib, progress=progress)


def test_the_peak_on_one_gpu_counts_once_it_has_settled() -> None:
    peaks = Peaks()
    one = attempt(allocation=(("node0", (0, 1)),), running_s=100.0)
    assert peaks.take(one, "1.1", usage(4000.0), beside=(), now_s=101.0) is None
    assert peaks.take(one, "1.1", usage(4000.0, first_s=1.0), beside=(), now_s=101.0) == 2000.0
    assert peaks.take(one, "1.1", usage(1000.0), beside=(), now_s=100.0 + SETTLED_S) == 2000.0
    assert peaks.take(one, "1.1", usage(9000.0, first_s=1.0), beside={2}, now_s=500.0) is None, "whose is it?"
    assert peaks.take(one, "1.1", usage(None, first_s=1.0), beside=(), now_s=500.0) is None
    assert (peaks.of(one.run), peaks.ended(one.run), peaks.of(one.run)) == (2000.0, 2000.0, None)


def runs(*peaks: tuple[str, float]) -> list[MeasuredRun]:
    spec = job_spec({"command": ["./a"], "name": "a", "workdir": "/"}).kept()
    return [MeasuredRun(1, None, spec, model, 0.0, 0, mib) for model, mib in peaks]


def test_what_earlier_runs_used_counts_and_more_if_it_used_more_itself() -> None:
    it = Rehearsal("fifo", models=["V100"])
    (number,) = it.submit({"name": "a", "workdir": "/", "command": ["./a"]})
    job = it.jobs[number]
    memory = GpuMemory(lambda user, name, limit: runs(("A100", 30_000.0), ("V100", 9_000.5), ("V100", 8_000.0)))
    assert memory.of_job(job) == Need(9_001, MemorySource.MEASURED, 3), "a framework may take what there is"
    assert memory.saw(number, 5_000.0)
    assert memory.of_job(job) == Need(9_001, MemorySource.MEASURED, 3)
    assert memory.saw(number, 12_000.0)
    assert not memory.saw(number, 12_100.0), "hardly more"
    assert memory.of_job(job) == Need(12_100, MemorySource.MEASURED)
    memory.ended(number)
    given = replace(job, spec=replace(job.spec, gpu_memory=700))
    assert memory.of_job(given) == Need(700, MemorySource.GIVEN)
    assert GpuMemory(lambda user, name, limit: ()).of_job(job) is None


def test_the_last_runs_on_a_model_count() -> None:
    assert least_of_largest({"V100": [9.0, 1.0, 2.0, 3.0, 2.0, 1.0], "A100": [4.0]}) == 3.0


def told(it: Rehearsal, job: int, mib: float) -> None:
    """The monitor looks, some time after the job began."""
    it.now_s += SETTLED_S
    run = it.scheduler.book.attempts[job].run
    it.scheduler.sampled("here", {run: RunUsage(run, gpu_memory_mib=mib)}, [], [])
    it.turn()


def planned_mib(it: Rehearsal) -> list[float]:
    it.scheduler.planning.stale()
    it.turn()
    world = it.scheduler.planning.seen[-1]
    return [] if world.workload.gpu_memory_mib is None else world.workload.gpu_memory_mib.tolist()


def test_what_the_monitor_saw_is_planned_with_shown_and_remembered() -> None:
    it = Rehearsal("muri-s", models=["V100"] * 2)
    (job,) = it.submit({"name": "a"})
    told(it, job, 3_000.0)
    assert planned_mib(it) == [3_000.0]
    assert it.service.show(job)["gpu_memory"] == {"mib": 3_000, "source": "measured", "runs": 0}
    it.restart(orderly=False)
    told(it, job, 2_000.0)
    it.end(it.scheduler.book.attempts[job].run)
    assert it.service.show(job)["attempts"][0]["gpu_memory_mib"] == 2_000.0
    again, given = it.submit({"name": "a"}, {"name": "b", "gpu_memory": 5_000})
    assert sorted(planned_mib(it)) == [2_000.0, 5_000.0]
    assert it.service.show(again)["gpu_memory"] == {"mib": 2_000, "source": "measured", "runs": 1}
    assert it.service.show(given)["gpu_memory"] == {"mib": 5_000, "source": "given", "runs": 0}


def test_before_it_is_requeued_counts_as_well_also_after_a_restart() -> None:
    it = Rehearsal("fifo", models=["V100"])
    (job,) = it.submit({"name": "a"})
    told(it, job, 3_000.0)
    it.tell(lambda: it.service.requeue([job]))
    it.restart(orderly=False)
    assert it.service.show(job)["gpu_memory"] == {"mib": 3_000, "source": "measured", "runs": 0}


def test_a_run_that_was_lost_is_tried_again_without_a_retry() -> None:
    it = Rehearsal("fifo", models=["V100"])
    (job,) = it.submit({})
    for number in range(1, 2 + MOST_LOST):
        del it.executor.states[f"{job}.{number}"]
        it.restart(orderly=False)
        view = it.service.show(job)
        assert view["attempts"][number - 1]["reason"] == "lost"
        assert view["job"]["state"] == ("running" if number <= MOST_LOST else "failed")
    assert it.jobs[job].phase is Phase.FAILED


PROFILES = """model,gpus,iteration_s,storage_s,cpu_s,gpu_s,network_s
reader,1,1,1.0,0,0,0
learner,1,1,0,0,1.0,0
"""


@pytest.fixture
def woven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two models whose jobs don't hinder each other."""
    monkeypatch.setenv("GPULOOM_HOME", str(tmp_path))
    (tmp_path / "profiles.csv").write_text(PROFILES)


def running(it: Rehearsal) -> list[int]:
    return [job for job in sorted(it.jobs) if it.service.job(job)["state"] == "running"]


@pytest.mark.usefixtures("woven")
@pytest.mark.parametrize("policy", ["muri-s", "muri-l", "muri-xs", "muri-xl", "weave", "gavel:packed"])
def test_unknown_memory_is_put_beside_nobody_until_it_is_measured(policy: str) -> None:
    it = Rehearsal(policy, models=["V100"], interval_s=0.0)
    one, two = it.submit({"model": "reader", "estimate": "1h"}, {"model": "learner", "estimate": "1h"})
    (first,) = running(it)
    told(it, first, 3_000.0)
    (second,) = running(it)  # of the other one nothing is known yet
    if second == first:
        it.tell(lambda: it.service.cancel([one + two - first]))
    else:
        told(it, second, 3_000.0)
    it.submit({"model": "learner" if first == one else "reader", "estimate": "1h", "gpu_memory": 3_000})
    assert (len(running(it)) > 1) == (policy != "gavel:packed")  # live nothing is measured of its pairs


def sharers(it: Rehearsal) -> list[list[int]]:
    """Jobs by the slots that they hold, where they are several."""
    held: dict[object, list[int]] = {}
    for job, one in it.scheduler.book.attempts.items():
        held.setdefault(one.allocation, []).append(job)
    return sorted(sorted(jobs) for jobs in held.values() if len(jobs) > 1)


def test_antman_puts_nobody_beside_unknown_memory_nor_more_than_there_is() -> None:
    it = Rehearsal("antman", models=["V100"], interval_s=0.0)
    guest = {"priority": -1, "gpu_memory": 4_000}
    (first,) = it.submit({})
    known, large = it.submit(guest, {**guest, "gpu_memory": 15_000})
    assert running(it) == [first], "nothing is known of the one that runs"
    assert (
        "antman puts jobs together only where their GPU memory is known"
        in it.service.status()["policy_lacks"][-1]["text"]
    )
    told(it, first, 3_000.0)
    assert sharers(it) == [[first, known]], "16,000 MiB do for both"
    assert "of known GPU memory, if there is enough for both" in it.service.why(large)["text"]
    it.end(it.scheduler.book.attempts[first].run)
    (unknown,) = it.submit({"command": ["./new"]})
    assert running(it) == [known], "now the guaranteed one is of unknown memory"
    assert "is unknown, so it shares no GPU" in it.service.why(unknown)["text"]
    it.end(it.scheduler.book.attempts[known].run)
    assert running(it) == [unknown], "and it goes before what was submitted earlier"


def test_a_gang_of_antman_keeps_nodes_until_its_guests_have_left() -> None:
    it = Rehearsal("antman", models=["V100", "V100", "K80", "K80"], interval_s=0.0)
    one, two = it.submit(*[{"priority": -1, "gpu_types": ["V100"], "gpu_memory": 15_000}] * 2)
    (gang,) = it.submit({"gpus": 2, "gpu_types": ["V100"], "gpu_memory": 2_000})
    assert running(it) == [one, two]
    it.end(it.scheduler.book.attempts[one].run)
    assert running(it) == [two]
    (late,) = it.submit({"priority": -1, "gpu_types": ["V100"], "gpu_memory": 15_000})
    assert running(it) == [two], "it would leave the gang no memory on the GPU that it keeps"
    it.end(it.scheduler.book.attempts[two].run)
    assert running(it) == [gang]
    (small,) = it.submit({"priority": -1, "gpu_types": ["V100"], "gpu_memory": 2_000})
    assert running(it) == [gang, small]
    it.end(it.scheduler.book.attempts[gang].run)
    assert running(it) == [late, small]


def test_what_is_expected_under_antman_goes_by_memory_as_well() -> None:
    it = Rehearsal("antman", models=["V100"] * 2, interval_s=0.0)
    it.submit({"estimate": "1h"}, {"estimate": "30m", "gpu_memory": 15_000}, {"estimate": "1h"})
    (guest,) = it.submit({"priority": -1, "gpu_memory": 4_000, "estimate": "1h"})
    start_s = it.service.why(guest)["start_s_low"]
    assert start_s == it.now_s + 3600.0, "not beside the third job, which starts in half an hour"
