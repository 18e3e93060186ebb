"""Jobs that lie suspended: for how long they may, and what they take of their node's memory."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fake_executor import FakeExecutor, Suspends
from gpuloom.core.errors import ConflictError
from gpuloom.core.job import EndReason, NodeRecord
from gpuloom.executors.port import Cause, Rehearsal, RunExit, RunPhase
from gpuloom.live.dispatch import let_go
from gpuloom.live.sights import Sights
from live_builders import Live, living

PLENTY_MIB = 64_000.0


class Memory:
    """What the monitor says that nodes have left."""

    mib: float | None = PLENTY_MIB


@pytest.fixture(autouse=True)
def memory(monkeypatch: pytest.MonkeyPatch) -> type[Memory]:
    def free_mib(_: Sights, node: NodeRecord) -> float | None:
        return Memory.mib

    monkeypatch.setattr(Sights, "free_mib", free_mib)
    Memory.mib = PLENTY_MIB
    return Memory


def leaves(live: Live, memory: type[Memory], mib: float) -> None:
    """The monitor has looked, and the node has so much left."""
    memory.mib = mib
    live.scheduler.post(live.scheduler.planning.stale)


def killed(**more: Any) -> Suspends:
    """Of which runs that are told to end die without a word."""
    return Suspends(stop_code=None, **more)


def told(live: Live, job: int) -> str:
    """How its last attempt ended."""
    last = live.service.show(job)["attempts"][-1]
    assert last["reason"] == "preempted"
    return last["message"]


def suspended(live: Live, **fields: Any) -> tuple[int, int]:
    """A job that lies suspended, and the one for which it made way, on the only GPU."""
    long = live.submit(estimate=1000, on_preempt="suspend", **fields)
    live.until(lambda: live.state(long) == ["running"])
    short = live.submit(estimate=10)
    live.until(lambda: live.job(short).phase.value == "running")
    return long, short


def test_at_its_limit_it_begins_anew_wherever_there_is_room(tmp_path: Path) -> None:
    with living(tmp_path, killed(), slots=1, policy="srtf") as live:
        long, short = suspended(live, suspend_limit=0.4)
        live.until(lambda: live.state(long) == ["queued"])
        assert told(live, long) == "it lay suspended for 0.4s, the longest that it may"
        (time_away,) = live.service.show(long)["suspensions"]
        assert (time_away["why_ended"], time_away["back_at_s"]) == (told(live, long), None)
        assert live.state(short) == ["running"]
        assert (live.job(long).failures, live.job(long).attempts) == (0, 1)
        live.end(short)
        live.until(lambda: live.state(long) == ["running"])
        assert live.job(long).attempts == 2


@pytest.mark.parametrize("limit", [None, 3600])
def test_before_it_it_goes_on_in_the_same_attempt(tmp_path: Path, limit: float | None) -> None:
    with living(tmp_path, killed(), slots=1, policy="srtf") as live:
        long, short = suspended(live, suspend_limit=limit)
        time.sleep(0.3)
        assert live.state(long) == ["frozen"]
        said = " ".join(live.service.why(long)["sentences"])
        assert ("It may lie so for 1h 00m at a time" in said) == (limit is not None)
        live.end(short)
        live.until(lambda: live.state(long) == ["running"])
        assert live.job(long).attempts == 1


def test_where_its_gpus_are_free_it_has_them_back_to_save(tmp_path: Path) -> None:
    executor = Suspends(obedient=False)
    with living(tmp_path, executor, slots=1, policy="fifo") as live:
        job = live.submit(on_preempt="suspend")
        live.until(lambda: live.state(job) == ["running"])
        live.service.suspend([job])
        live.until(lambda: live.state(job) == ["frozen"])
        thawed: list[str] = []
        thaw, executor.thaw = executor.thaw, lambda run: (thawed.append(run), thaw(run))[1]  # type: ignore[func-returns-value, method-assign]
        live.service.update([job], {"suspend_limit": 0.1})
        live.until(lambda: live.state(job) == ["stopping"])
        assert len(thawed) == 1
        assert executor.states["1.1"].phase is RunPhase.STOPPING
        other = live.submit()
        assert live.state(other) == ["queued"], "the GPU is in use until it has saved"
        executor.end("1.1", 85, reason=EndReason.PREEMPTED)
        live.until(lambda: live.state(job, other) == ["held", "running"])
        ended = live.service.show(job)["attempts"][-1]
        assert (ended["saved"], ended["saved_by"]) == (True, "exit_code")
        live.service.release([job])
        live.end(other)
        live.until(lambda: live.state(job) == ["running"])


@pytest.mark.slow
def test_a_frozen_job_has_a_limit_as_well(tmp_path: Path) -> None:
    with living(tmp_path, FakeExecutor(stop_code=None), slots=1, policy="srtf") as live:
        long = live.submit(estimate=1000, on_preempt="freeze", suspend_limit=0.2)
        live.until(lambda: live.state(long) == ["running"])
        live.submit(estimate=10)
        live.until(lambda: live.state(long) == ["queued"])
        assert told(live, long) == "it lay frozen for 0.2s, the longest that it may"


@pytest.mark.slow
def test_the_limit_counts_from_when_it_made_way_for_a_scheduler_that_comes_later_too(tmp_path: Path) -> None:
    executor = killed()
    with living(tmp_path, executor, slots=1, policy="srtf") as live:
        long, _ = suspended(live, suspend_limit=3600)
        live.service.update([long], {"suspend_limit": 1.0})
        live.crash()
    time.sleep(1.0)
    with living(tmp_path, executor, slots=1, policy="srtf") as live:
        live.until(lambda: live.state(long) == ["queued"])
        assert live.job(long).attempts == 1


@pytest.mark.slow
def test_where_memory_runs_short_the_one_that_would_wait_longest_ends(
    tmp_path: Path, memory: type[Memory], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(let_go, "SETTLES_S", 0.4)
    with living(tmp_path, killed(), slots=3, policy="srtf") as live:
        longer, shorter = (live.submit(estimate=time_s, on_preempt="suspend") for time_s in (5000, 1000))
        high = live.submit(estimate=9000, on_preempt="suspend", priority=5)
        live.until(lambda: live.state(longer, shorter, high) == ["running"] * 3)
        urgent = live.submit(3, estimate=10, priority=9)
        live.until(lambda: live.state(longer, shorter, high) == ["frozen"] * 3)
        leaves(live, memory, 700.0)
        live.until(lambda: live.state(longer) == ["queued"])
        assert live.state(shorter, high) == ["frozen", "frozen"], "one after another"
        assert told(live, longer) == (
            "while it lay suspended it held 512 MiB of its node's memory, which had only 700 MiB left"
        )
        live.until(lambda: live.state(shorter) == ["queued"])
        assert live.state(high, urgent) == ["frozen", "running"]
        leaves(live, memory, PLENTY_MIB)
        time.sleep(0.6)
        live.scheduler.post(live.scheduler.planning.stale)
        live.settle()
        assert live.state(high) == ["frozen"]


@pytest.mark.slow
def test_one_that_was_suspended_by_hand_ends_first(
    tmp_path: Path, memory: type[Memory], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(let_go, "SETTLES_S", 60.0)
    with living(tmp_path, killed(), slots=2, policy="srtf") as live:
        long, by_hand = (live.submit(estimate=time_s, on_preempt="suspend") for time_s in (5000, 1000))
        live.until(lambda: live.state(long, by_hand) == ["running"] * 2)
        live.service.suspend([by_hand])
        live.submit(2, estimate=10)
        live.until(lambda: live.state(long, by_hand) == ["frozen"] * 2)
        leaves(live, memory, 700.0)
        live.until(lambda: live.state(by_hand) == ["held"])
        assert live.state(long) == ["frozen"]


def bears(live: Live, executor: Suspends, job: int, mib: float) -> None:
    executor.rehearsed(job, Rehearsal(True, mib, 1.5, 0.5))
    live.until(lambda: (live.service.show(job)["makes_way"] or {}).get("way") == "suspend")


def test_who_does_not_fit_into_the_nodes_memory_has_its_notice(tmp_path: Path, memory: type[Memory]) -> None:
    executor = Suspends()
    with living(tmp_path, executor, slots=2, policy="srtf") as live:
        long, longer = (live.submit(estimate=time_s, command=[f"train{time_s}"]) for time_s in (1000, 2000))
        live.until(lambda: live.state(long, longer) == ["running"] * 2)
        bears(live, executor, long, 4000.0)
        bears(live, executor, longer, 6000.0)
        memory.mib = 6500.0  # for one of them alone
        with pytest.raises(ConflictError, match=r"6,000 MiB on its GPUs, and node .* has 6,500 MiB of memory left"):
            live.service.suspend([longer])
        scene, book = live.scheduler.planning.scene, live.scheduler.book
        assert [scene.stays(book.jobs[job]) for job in (long, longer)] == [True, False]
        memory.mib = 8500.0
        assert [scene.stays(book.jobs[job]) for job in (long, longer)] == [True, True]
        memory.mib = 6500.0
        live.submit(2, estimate=10)
        live.until(lambda: live.state(long, longer) == ["frozen", "queued"])
        (time_away,) = [one for one in live.service.show(longer)["suspensions"] if not one["rehearsal"]]
        assert "6,000 MiB" in time_away["why_not"]


@pytest.mark.slow
def test_what_is_on_its_way_into_the_memory_counts(tmp_path: Path, memory: type[Memory]) -> None:
    executor = Suspends()
    executor.freeze = lambda run: None  # type: ignore[method-assign] # it takes its time
    with living(tmp_path, executor, slots=2, policy="srtf") as live:
        both = [live.submit(estimate=time_s, command=[f"train{time_s}"]) for time_s in (1000, 2000)]
        live.until(lambda: live.state(*both) == ["running"] * 2)
        for job in both:
            bears(live, executor, job, 4000.0)
        memory.mib = 6500.0
        live.service.suspend([both[0]])
        with pytest.raises(ConflictError, match="has 2,500 MiB of memory left"):
            live.service.suspend([both[1]])


def test_policies_reckon_with_what_was_measured(tmp_path: Path) -> None:
    executor = Suspends()
    with living(tmp_path, executor, slots=2, policy="srtf") as live:
        known, unknown = (live.submit(estimate=1000, command=[name]) for name in ("a", "b"))
        live.until(lambda: live.state(known, unknown) == ["running"] * 2)
        bears(live, executor, known, 512.0)
        live.submit(2, estimate=3000)

        def costs() -> list[float]:
            world = live.scheduler.planning.world
            assert world is not None
            return [world.engine.snapshot.again_s[world.row_of[job]] for job in (known, unknown)]

        live.until(lambda: live.scheduler.do(costs) == [2.0, live.scheduler.planning.worlds.overhead_s])


def test_a_machine_that_was_restarted_has_lost_them_and_they_begin_anew(tmp_path: Path) -> None:
    executor = killed()
    with living(tmp_path, executor, slots=1, policy="srtf") as live:
        long, short = suspended(live, retries=0)
        for job in (long, short):
            status = executor.states[f"{job}.1"]
            how = RunExit(None, None, EndReason.LOST, "", time.time(), cause=Cause.RESTARTED)
            executor._say(replace(status, phase=RunPhase.EXITED, exit=how))
        live.until(lambda: live.state(short) == ["running"] and live.job(short).attempts == 2)
        assert (live.state(long), live.job(long).failures) == (["queued"], 0)
        live.end(short)
        live.until(lambda: live.state(long) == ["running"])
        assert live.job(long).attempts == 2
