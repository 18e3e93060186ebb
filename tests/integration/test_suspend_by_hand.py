"""`suspend` and `resume`: jobs leave their GPUs because somebody says so, and go on when somebody says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from fake_executor import FakeExecutor, Suspends
from gpuloom.core.errors import ConflictError
from gpuloom.executors.port import Capabilities
from gpuloom.live.submission.actions import Action
from gpuloom.policies.registry import policy_ids
from live_builders import Live, living, spec
from tiers import mostly_slow


class Slow(FakeExecutor):
    """Freezes only where `freezes`."""

    freezes = False

    def freeze(self, run: str) -> None:
        if self.freezes:
            super().freeze(run)


class Stuck(FakeExecutor):
    """On a node that stops no processes."""

    def capabilities(self) -> Capabilities:
        return Capabilities(freezes=False)


def attempts(live: Live, job: int) -> int:
    return live.job(job).attempts


@pytest.mark.parametrize("policy", mostly_slow(policy_ids(), "fifo", "srtf", "weave"))
def test_under_every_policy_it_leaves_its_gpus_until_it_is_resumed(policy: str, tmp_path: Path) -> None:
    with living(tmp_path, slots=2, policy=policy) as live:
        first = live.submit(2, estimate=1000, on_preempt="freeze")
        live.until(lambda: live.state(first) == ["running"])
        other = live.submit(2, estimate=1000)
        (view,) = live.service.suspend([first])
        assert view["changed"]
        live.until(lambda: live.state(first, other) == ["frozen", "running"])
        live.end(other)
        live.settle()
        assert live.state(first) == ["frozen"], "the GPUs are free, and it stays where it is"
        assert live.why(first)["code"] == "suspended"
        said = live.service.why(first)["sentences"]
        assert f"gpuloom resume {first}" in said[0]
        assert any("it was suspended by hand" in text for text in said[1:])
        (again,) = live.service.suspend([first])
        assert not again["changed"]
        assert live.service.resume([first])[0]["changed"]
        live.until(lambda: live.state(first) == ["running"])
        assert attempts(live, first) == 1
        assert not live.service.resume([first])[0]["changed"]
        live.end(first)
        assert live.state(first) == ["finished"]


def test_one_that_a_policy_has_suspended_stays_so(tmp_path: Path) -> None:
    with living(tmp_path, Suspends(), slots=1, policy="srtf") as live:
        long = live.submit(estimate=1000, on_preempt="suspend")
        short_one = live.submit(estimate=10)
        live.until(lambda: live.state(long, short_one) == ["frozen", "running"])
        live.service.suspend([long])
        live.end(short_one)
        live.settle()
        assert live.state(long) == ["frozen"]
        live.service.resume([long])
        live.until(lambda: live.state(long) == ["running"])


@pytest.mark.parametrize(
    ("executor", "how", "why"),
    [
        (
            FakeExecutor,
            "checkpoint",
            "its --on-preempt is checkpoint; after `gpuloom update 1 --on-preempt freeze` it can",
        ),
        (FakeExecutor, "suspend", "its node can't suspend; gpuloom share doctor there says why"),
        (Stuck, "freeze", "can't stop processes where they are"),
    ],
)
def test_who_can_not_is_told_why_and_runs_on(executor: type[FakeExecutor], how: str, why: str, tmp_path: Path) -> None:
    with living(tmp_path, executor(), slots=2) as live:
        can_not = live.submit(on_preempt=how)
        with pytest.raises(ConflictError, match=why):
            live.service.suspend([can_not])
        assert live.state(can_not) == ["running"]
        assert not live.job(can_not).suspended


def test_jobs_that_do_not_run(tmp_path: Path) -> None:
    with living(tmp_path, slots=1) as live:
        runs, waits = live.submit(on_preempt="freeze"), live.submit(on_preempt="freeze")
        with pytest.raises(ConflictError, match=f"job {waits} is queued and can't be suspended; `gpuloom hold` keeps"):
            live.service.suspend([runs, waits])
        live.settle()
        assert live.state(runs) == ["running"], "all or none"
        live.end(runs)
        with pytest.raises(ConflictError, match="is finished and can't be suspended"):
            live.service.suspend([runs])
        live.service.hold([waits := live.submit(hold=True)])
        live.service.resume([waits])
        assert live.state(waits) in (["queued"], ["running"])


def test_an_array(tmp_path: Path) -> None:
    with living(tmp_path, slots=4) as live:
        live.submit_all([spec(1, array="0-2", on_preempt="freeze")])
        live.settle()
        assert live.service.act_on_array(1, Action.SUSPEND) == {"running": 3}
        live.until(lambda: live.state(1, 2, 3) == ["frozen"] * 3)
        assert live.service.act_on_array(1, Action.RESUME) == {"frozen": 3}
        live.until(lambda: live.state(1, 2, 3) == ["running"] * 3)


@pytest.mark.parametrize("frozen", [False, True])
def test_a_scheduler_that_is_killed_knows_it_still(tmp_path: Path, frozen: bool) -> None:
    executor = Slow()
    executor.freezes = frozen
    with living(tmp_path, executor, slots=1) as live:
        job = live.submit(on_preempt="freeze")
        live.service.suspend([job])
        if frozen:
            live.until(lambda: live.state(job) == ["frozen"])
        live.crash()
    executor.freezes = True
    with living(tmp_path, executor, slots=1) as live:
        live.until(lambda: live.state(job) == ["frozen"])
        assert live.why(job)["code"] == "suspended"
        assert attempts(live, job) == 1
        live.service.resume([job])
        live.until(lambda: live.state(job) == ["running"])


def test_one_that_goes_on_by_itself_is_frozen_again(tmp_path: Path) -> None:
    executor = FakeExecutor()
    with living(tmp_path, executor, slots=1) as live:
        job = live.submit(on_preempt="freeze")
        live.service.suspend([job])
        live.until(lambda: live.state(job) == ["frozen"])
        executor.thaw(f"{job}.1")
        live.until(lambda: [one.type for one in live.scheduler.store.events(job=job)].count("attempt.frozen") == 2)
        assert live.state(job) == ["frozen"]


def test_who_is_refused_ends_and_is_held_until_it_is_resumed(tmp_path: Path) -> None:
    executor = Suspends()
    executor.refuses = "error 801"
    with living(tmp_path, executor, slots=1) as live:
        job = live.submit(on_preempt="suspend")
        live.service.suspend([job])
        live.until(lambda: live.state(job) == ["held"])
        assert executor.stops == {f"{job}.1": "preempted"}
        assert live.service.show(job)["suspensions"][0]["why_not"] == "error 801"
        live.settle()
        assert live.state(job) == ["held"]
        live.service.resume([job])
        live.until(lambda: live.state(job) == ["running"])
        assert attempts(live, job) == 2


def test_requeued_cancelled_and_ended(tmp_path: Path) -> None:
    with living(tmp_path, slots=3) as live:
        jobs = [live.submit(on_preempt="freeze") for _ in range(3)]
        live.service.suspend(jobs)
        live.until(lambda: live.state(*jobs) == ["frozen"] * 3)
        live.service.requeue(jobs[:1])
        live.service.cancel(jobs[1:2])
        live.until(lambda: live.state(*jobs[:2]) == ["running", "cancelled"])
        assert attempts(live, jobs[0]) == 2
        assert not live.job(jobs[0]).suspended
        live.end(jobs[2])  # its process was killed where it stood
        assert live.state(jobs[2]) == ["finished"]
