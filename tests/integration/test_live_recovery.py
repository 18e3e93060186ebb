"""What a scheduler that was killed leaves behind, the next one takes up: no job lost, none run twice."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from fake_executor import FakeExecutor, short
from gpuloom.core.end_reason import EndReason
from gpuloom.core.job import Phase
from gpuloom.executors.port import RunPhase, RunStatus
from gpuloom.store.errors import StoreError
from live_builders import Live, living, spec

pytestmark = pytest.mark.slow


def test_running_jobs_are_taken_up_again(tmp_path: Path) -> None:
    executor = FakeExecutor()
    before = Live(tmp_path, executor)
    jobs = [before.submit(1, retries=1) for _ in range(6)]
    assert before.state(*jobs) == ["running"] * 4 + ["queued"] * 2
    before.crash()
    executor.end(f"{jobs[0]}.1", 0)  # ends that nobody saw
    executor.end(f"{jobs[1]}.1", 7)
    del executor.states[f"{jobs[2]}.1"]  # gone without a trace
    with living(tmp_path, executor) as after:
        after.settle()
        assert after.state(*jobs) == ["finished", "queued", "running", "running", "running", "running"]
        (lost,) = after.service.events(job=jobs[2], types=("attempt.ended",))
        assert (lost.data["reason"], after.job(jobs[2]).failures) == ("lost", 0)
        after.until(lambda: after.job(jobs[1]).attempts == 1 and after.job(jobs[1]).failures == 1)
        assert set(executor.starts.values()) == {1}
        assert after.executor.acknowledged >= {f"{jobs[0]}.1", f"{jobs[1]}.1"}


@pytest.mark.parametrize("boot", ["boot", "another boot", ""])
def test_a_run_whose_files_are_gone_is_no_failure_of_its_job(tmp_path: Path, boot: str) -> None:
    """Whether a power failure took them, and the machine was started anew, or something else."""
    executor = FakeExecutor()
    before = Live(tmp_path, executor)
    job = before.submit()
    assert before.state(job) == ["running"]
    before.crash()
    executor.states.clear()
    executor.boot = boot
    with living(tmp_path, executor) as after:
        after.settle()
        (ended,) = after.service.events(job=job, types=("attempt.ended",))
        assert (ended.data["reason"], ended.data["next"]) == ("lost", "queued")
        assert after.job(job).failures == 0


def test_an_end_that_is_told_while_the_runs_are_asked_for_is_the_newer_one(tmp_path: Path) -> None:
    executor = Telling()
    before = Live(tmp_path, executor)
    job = before.submit()
    before.crash()
    with living(tmp_path, executor) as after:
        after.until(lambda: after.state(job) == ["finished"])


class Telling(FakeExecutor):
    """Has a run end between looking at it and answering."""

    def runs(self, *, patience_s: float = 10.0) -> list[RunStatus]:
        found = super().runs(patience_s=patience_s)
        for status in found:
            self.end(status.run.partition("-")[0])
        return found


def test_an_attempt_that_was_written_down_and_not_begun_begins_once(tmp_path: Path) -> None:
    executor = FakeExecutor()
    before = Live(tmp_path, executor)
    executor.broken = True
    job = before.submit_unsettled(spec())
    before.until(lambda: before.job(job).phase is Phase.STARTING)
    before.until(lambda: "broken" in before.scheduler.problem)
    before.crash()
    executor.broken = False
    with living(tmp_path, executor) as after:
        after.settle()
        assert after.state(job) == ["running"]
        assert executor.starts == {f"{job}.1": 1}


def test_a_run_that_no_job_knows_is_ended(tmp_path: Path) -> None:
    executor = FakeExecutor()
    executor.states["99.1"] = RunStatus("99.1", RunPhase.RUNNING, 4242, 1, "boot")
    with living(tmp_path, executor) as live:
        live.until(lambda: "99.1" in executor.acknowledged)
        assert not executor.live()


def test_a_stop_under_way_goes_on(tmp_path: Path) -> None:
    executor = FakeExecutor(obedient=False)
    before = Live(tmp_path, executor)
    job = before.submit(4)
    before.service.cancel([job])
    before.settle()
    assert before.state(job) == ["stopping"]
    before.crash()
    executor.stops.clear()
    with living(tmp_path, executor) as after:
        after.settle()
        assert executor.stops == {f"{job}.1": "cancelled"}
        executor.end(f"{job}.1", None, signal=9, reason=EndReason.CANCELLED)
        after.settle()
        assert after.state(job) == ["cancelled"]


def test_what_a_policy_has_learnt_and_chosen_is_kept(tmp_path: Path) -> None:
    executor = FakeExecutor()
    with living(tmp_path, executor, policy="tiresias:thresholds=0.05/0.1", interval_s=0.0) as before:
        job = before.submit(4)
        before.until(lambda: before.scheduler.planning.worlds.memory().value.base.level[0] == 2)
    with living(tmp_path, executor) as after:
        after.settle()
        assert after.service.policy()["policy"] == "tiresias:thresholds=0.05/0.1"
        assert after.scheduler.planning.worlds.memory().value.base.level[0] == 2
        assert after.state(job) == ["running"]


class _Failing:
    """A store whose writes fail while `failing`."""

    def __init__(self, store: object) -> None:
        self._store, self.failing = store, False

    def append(self, *args: object) -> None:
        if self.failing:
            raise StoreError("store.db can't be written: no space left on the disk")
        self._store.append(*args)  # type: ignore[attr-defined]

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)


def test_a_store_that_cannot_be_written_loses_nothing_and_starts_nothing(tmp_path: Path) -> None:
    from gpuloom.store.home import home_of
    from gpuloom.store.sqlite import SqliteStore

    executor = FakeExecutor()
    store = _Failing(SqliteStore(home_of(tmp_path).create().db))
    with living(tmp_path, executor, store=store) as live:
        running = [live.submit(1) for _ in range(4)]
        waits = live.submit(4)
        store.failing = True
        with pytest.raises(StoreError, match="no space left"):
            live.submit(1)
        with pytest.raises(StoreError):
            live.service.cancel([waits])
        for job in running:
            executor.end(f"{job}.1")
        live.until(lambda: "no space left" in live.scheduler.problem)
        assert live.state(*running, waits) == ["running"] * 4 + ["queued"]
        assert not executor.acknowledged
        assert f"{waits}.1" not in executor.starts
        assert not live.service.status()["store"]["ok"]
        store.failing = False
        live.until(lambda: live.state(waits) == ["running"])
        assert live.state(*running) == ["finished"] * 4
        live.until(lambda: live.service.status()["store"]["ok"])
        assert live.submit(1) == waits + 1  # the one that failed took no number


@pytest.mark.parametrize("seed", range(4))
def test_whatever_happens_jobs_end_once_and_the_log_tells_the_same_story(tmp_path: Path, seed: int) -> None:
    """Random submissions, ends, changes, policies and crashes."""
    random.seed(seed)
    draw = random.Random(seed)
    executor = FakeExecutor()
    live = Live(tmp_path, executor, policy="srtf")
    jobs: list[int] = []
    for _ in range(120):
        what = draw.random()
        mine = [job for job in jobs if live.job(job).phase in ("queued", "running", "held", "frozen")]
        if what < 0.3:
            jobs.append(
                live.submit(
                    draw.randint(1, 4),
                    estimate=draw.uniform(1, 100),
                    priority=draw.choice([0, 0, 0, 5]),
                    retries=draw.choice([0, 2]),
                    on_preempt=draw.choice(["checkpoint", "freeze", "never"]),
                )
            )
        elif what < 0.6 and executor.live():
            executor.end(draw.choice(sorted(executor.live())), draw.choice([0, 0, 0, 1]))
        elif what < 0.7 and mine:
            live.service.cancel([draw.choice(mine)])
        elif what < 0.75 and mine:
            job = draw.choice(mine)
            if live.job(job).phase == "queued":
                live.service.hold([job])
        elif what < 0.85:
            live.service.release([job for job in jobs if live.job(job).phase == "held"] or jobs[:0]) if any(
                live.job(job).phase == "held" for job in jobs
            ) else None
        elif what < 0.9:
            live.service.set_policy(draw.choice(["fifo", "srtf", "tiresias", "muri-xl", "antman", "gavel"]))
        elif what < 0.94:
            live.crash()
            live = Live(tmp_path, executor)
        live.settle()
        active = [short(attempt.run) for attempt in live.book.attempts.values()]
        assert set(active) == executor.live()
    held = [job for job in jobs if live.job(job).phase == "held"]
    if held:
        live.service.release(held)
    live.service.set_policy("fifo")

    def all_ended() -> bool:
        for run in sorted(executor.live()):
            executor.end(run)
        return all(live.job(job).phase in ("finished", "failed", "cancelled") for job in jobs)

    live.until(all_ended, timeout_s=30.0)  # pauses before retries included
    live.settle()
    left = {job: (live.job(job), live.why(job)) for job in jobs if live.job(job).phase == "queued"}
    assert not left
    assert {live.job(job).phase.value for job in jobs} <= {"finished", "failed", "cancelled"}
    assert set(executor.starts.values()) <= {1}
    live.close()
    with living(tmp_path, executor):
        pass  # checks the store
