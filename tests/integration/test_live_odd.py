"""Things that come in an odd order, at a bad moment, or twice: no job lost, none run wrongly, no GPU given twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fake_executor import FakeExecutor, Suspends, short
from gpuloom.core.end_reason import EndReason
from gpuloom.core.errors import ConflictError
from gpuloom.core.job import NodeState
from gpuloom.executors.port import Capabilities, RunRequest
from gpuloom.store.errors import StoreError
from gpuloom.store.home import home_of
from gpuloom.store.sqlite import SqliteStore
from live_builders import Live, living, spec


class Failing:
    """A store whose writes fail while `failing`, or once the given type of event is among them."""

    def __init__(self, home: Path) -> None:
        self._store = SqliteStore(home_of(home).create().db)
        self.failing, self.at = False, ""

    def append(self, events, changes, submissions=()):  # type: ignore[no-untyped-def]
        if self.failing or (self.at and any(event.type == self.at for event in events)):
            raise StoreError("store.db can't be written: the disk is full")
        self._store.append(events, changes, submissions)

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)


class Reluctant(FakeExecutor):
    """Thaws and freezes only when told to by the test."""

    def __init__(self, *, freezes: bool = True) -> None:
        super().__init__()
        self.freezes = freezes
        self.told: list[str] = []

    def thaw(self, run: str) -> None:
        self.told.append(run)

    def freeze(self, run: str) -> None:
        if self.freezes:
            super().freeze(run)


def states(live: Live) -> list[str]:
    return [gpu["state"] for gpu in live.service.nodes()[0]["gpus"]]


def slots_in_use(live: Live) -> list[tuple[str, int]]:
    """GPUs of attempts whose processes are at work."""
    return [
        (node, gpu)
        for attempt in live.book.attempts.values()
        if attempt.phase is not None and attempt.phase.value != "frozen"
        for node, gpus in attempt.allocation
        for gpu in gpus
    ]


def test_a_granted_job_does_not_start_where_something_was_left_behind(tmp_path: Path) -> None:
    executor = FakeExecutor(obedient=False)
    with living(tmp_path, executor, slots=1, policy="srtf") as live:
        long, short = live.submit(estimate=1000), live.submit(estimate=10)
        executor.end(f"{long}.1", 85, reason=EndReason.PREEMPTED, released=False)
        live.settle()
        assert live.state(long, short) == ["queued", "queued"]
        assert states(live) == ["unhealthy"]
        executor.end(f"{long}.1", 85, reason=EndReason.PREEMPTED, again=True)
        live.until(lambda: live.state(short) == ["running"])


def test_a_granted_job_does_not_start_on_a_machine_that_was_closed_meanwhile(tmp_path: Path) -> None:
    executor = FakeExecutor(obedient=False)
    with living(tmp_path, executor, slots=1, policy="srtf") as live:
        long, short = live.submit(estimate=1000), live.submit(estimate=10)
        live.service.set_node(live.service.nodes()[0]["name"], NodeState.CORDONED)
        executor.end(f"{long}.1", 85, reason=EndReason.PREEMPTED)
        live.settle()
        assert live.state(long, short) == ["queued", "queued"]


def test_several_gpus_change_their_state_at_once_and_over_a_restart(tmp_path: Path) -> None:
    executor = FakeExecutor()
    live = Live(tmp_path, executor)
    jobs = [live.submit(), live.submit()]

    def both(**how: bool) -> None:
        for job in jobs:
            executor.end(f"{job}.1", **how)

    live.scheduler.do(lambda: both(released=False))
    live.settle()
    assert states(live) == ["unhealthy", "unhealthy", "ok", "ok"]
    live.crash()
    with living(tmp_path, executor) as live:
        live.scheduler.do(lambda: both(released=True, again=True))
        live.settle()
        assert states(live) == ["ok"] * 4
        assert executor.acknowledged == {f"{job}.1" for job in jobs}


def test_who_waits_for_a_job_that_fails_is_cancelled_in_the_same_write(tmp_path: Path) -> None:
    executor, store = FakeExecutor(), Failing(tmp_path)
    with living(tmp_path, executor, store=store) as live:
        first = live.submit()
        second = live.submit(after=[first])
        third = live.submit(after=[second])
        store.at = "job.cancelled"
        executor.end(f"{first}.1", 1)
        live.until(lambda: bool(live.scheduler.problem))
        assert live.state(first, second, third) == ["running", "queued", "queued"]
        store.at = ""
        live.until(lambda: live.state(first, second, third) == ["failed", "cancelled", "cancelled"])
        assert set(executor.starts) == {f"{first}.1"}


def test_a_cancel_holds_whatever_ends_the_run_first(tmp_path: Path) -> None:
    executor = FakeExecutor(obedient=False)
    with living(tmp_path, executor) as live:
        for reason, code in (("timed_out", 85), ("lost", None), ("out_of_memory", None), ("", 1)):
            job = live.submit(retries=5)
            live.service.cancel([job])
            live.end(job, code, reason=reason)
            assert live.state(job) == ["cancelled"], reason


def test_an_attempt_that_was_never_begun_and_is_stopped_ends(tmp_path: Path) -> None:
    executor = FakeExecutor()
    with living(tmp_path, executor) as live:
        executor.broken = True
        job = live.submit_unsettled(spec(4))
        live.until(lambda: live.job(job).phase == "starting")
        live.service.cancel([job])
        executor.broken = False
        live.until(lambda: live.state(job) == ["cancelled"])
        assert live.state(live.submit(4)) == ["running"]


def test_what_was_stopped_before_it_began_is_known_after_a_restart(tmp_path: Path) -> None:
    executor = FakeExecutor()
    before = Live(tmp_path, executor)
    executor.broken = True
    job = before.submit_unsettled(spec(4))
    before.until(lambda: before.job(job).phase == "starting")
    before.service.set_node(before.service.nodes()[0]["name"], NodeState.DRAINING)
    before.crash()
    executor.broken = False
    with living(tmp_path, executor) as after:
        after.settle()
        assert after.state(job) == ["queued"]
        assert after.job(job).failures == 0


def test_a_thaw_under_way_keeps_its_gpus(tmp_path: Path) -> None:
    executor = Reluctant()
    with living(tmp_path, executor, slots=1, policy="srtf") as live:
        long = live.submit(estimate=1000, on_preempt="freeze")
        short = live.submit(estimate=10)
        live.until(lambda: live.state(long, short) == ["frozen", "running"])
        live.end(short)
        live.until(lambda: bool(executor.told))
        shorter = live.submit(estimate=5)
        assert live.state(long, shorter) == ["frozen", "queued"]
        FakeExecutor.thaw(executor, f"{long}.1")  # goes on at last, and is frozen at once
        live.until(lambda: live.state(long, shorter) == ["frozen", "running"])
        live.end(shorter)
        live.until(lambda: len(executor.told) == 2)


def test_a_job_that_does_not_freeze_is_told_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuloom.live.dispatch.dispatch.FREEZE_S", 0.1)
    executor = Reluctant(freezes=False)
    with living(tmp_path, executor, slots=1, policy="srtf") as live:
        long = live.submit(estimate=1000, on_preempt="freeze")
        short = live.submit(estimate=10)
        live.until(lambda: live.state(long, short) == ["queued", "running"])
        assert executor.stops == {f"{long}.1": "preempted"}


class Plain(FakeExecutor):
    """On a node that neither stops processes where they are nor changes the time limit of what runs."""

    def capabilities(self) -> Capabilities:
        return Capabilities(freezes=False, limits=False)


def test_where_nothing_can_be_frozen_a_job_is_told_to_end_at_once(tmp_path: Path) -> None:
    executor = Plain()
    with living(tmp_path, executor, slots=1, policy="srtf") as live:
        long = live.submit(estimate=1000, on_preempt="freeze")
        short = live.submit(estimate=10)
        live.until(lambda: live.state(long, short) == ["queued", "running"])
        assert executor.stops == {f"{long}.1": "preempted"}
        assert not live.scheduler.planning.claims.freezing()


def test_a_time_limit_that_its_node_would_not_keep_is_refused(tmp_path: Path) -> None:
    with living(tmp_path, Plain(), slots=1) as live:
        runs, waits = live.submit(time_limit=60), live.submit(time_limit=60)
        live.until(lambda: live.state(runs, waits) == ["running", "queued"])
        node = live.service.nodes()[0]["name"]
        with pytest.raises(ConflictError, match=f"job {runs} runs on node {node}, where the time limit"):
            live.service.update([runs], {"time_limit": 90})
        live.service.update([runs], {"priority": 3})
        live.service.update([waits], {"time_limit": 90})
        assert [live.job(job).spec.time_limit for job in (runs, waits)] == [60, 90]


def test_work_is_kept_over_a_freeze(tmp_path: Path) -> None:
    with living(tmp_path, slots=1, policy="srtf") as live:
        long = live.submit(estimate=1000, on_preempt="freeze")

        def worked(seconds: float) -> None:
            live.scheduler.work._runs[long].from_s -= seconds

        live.scheduler.do(lambda: worked(100.0))
        short = live.submit(estimate=10)
        live.until(lambda: live.state(long, short) == ["frozen", "running"])
        live.end(short)
        live.until(lambda: live.state(long) == ["running"])
        assert live.scheduler.left(live.job(long)).at(0.5) == pytest.approx(900, abs=2)
        live.end(long)
        assert live.job(long).work_s == pytest.approx(100, abs=2)


def test_gpus_are_not_left_idle_between_priorities(tmp_path: Path) -> None:
    with living(tmp_path, policy="srtf") as live:
        wide = live.submit(4, estimate=1000)
        live.service.submit([spec(2, estimate=10, priority=5), spec(2, estimate=10)], user="ann")
        live.until(lambda: live.state(wide, 2, 3) == ["queued", "running", "running"])


def test_small_jobs_of_low_priority_do_not_starve_a_large_one_of_high(tmp_path: Path) -> None:
    with living(tmp_path) as live:
        first = live.submit_all([spec(1, estimate=40.0 + n) for n in range(4)])
        live.submit_all([spec(1, estimate=60.0) for _ in range(10)])
        large = live.submit(4, estimate=20, priority=100)
        fits = live.submit(1, estimate=1.0)
        waits = live.submit(1, estimate=500.0, name="long")
        live.end(first[0])
        assert live.state(fits) == ["running"]  # ends before the large one can start
        assert live.why(waits)["code"] == "reservation"
        assert str(large) in live.why(waits)["text"]
        live.end(fits)
        for job in first[1:]:
            live.end(job)
        assert live.state(large) == ["running"]


def test_opportunistic_jobs_run_beside_guaranteed_ones_under_antman(tmp_path: Path) -> None:
    with living(tmp_path, slots=1, policy="antman") as live:
        guaranteed = live.submit(model="vgg19")
        opportunistic = live.submit(model="a2c", priority=-1)
        assert live.state(guaranteed, opportunistic) == ["running", "running"]


def test_partners_work_at_the_speed_that_the_model_of_sharing_says(tmp_path: Path) -> None:
    with living(tmp_path, slots=1, policy="muri-l") as live:
        jobs = live.submit_all([spec(model=model, estimate=1000) for model in ("vgg19", "gpt2", "a2c", "bert")])
        running = [job for job in jobs if live.state(job) == ["running"]]
        assert len(running) > 1
        world, work = live.scheduler.planning.world, live.scheduler.work
        assert world is not None
        for job in running:
            assert work._runs[job].rate == world.state.rate[world.row_of[job]] < 1.0


def test_grants_go_with_what_they_were_given_for(tmp_path: Path) -> None:
    executor = FakeExecutor(obedient=False)
    with living(tmp_path, executor, slots=1, policy="srtf") as live:
        done = live.submit(estimate=1)
        live.end(done)
        long = live.submit(estimate=1000)
        short = live.submit(estimate=10, after=[done])
        assert live.why(short)["code"] == "gpus_being_vacated"
        live.service.requeue([done])  # what it waited for is to run again
        live.settle()
        assert live.why(short)["code"] == "dependency"
        live.service.cancel([done])
        live.settle()
        assert live.state(long, short) == ["stopping", "cancelled"]
        assert live.scheduler.problem == ""


def test_a_pause_before_a_retry_is_kept_also_by_one_that_was_to_make_way(tmp_path: Path) -> None:
    executor = FakeExecutor(obedient=False)
    with living(tmp_path, executor, slots=1, policy="srtf") as live:
        long, short = live.submit(estimate=1000, retries=1), live.submit(estimate=10)
        executor.end(f"{long}.1", None, reason=EndReason.OUT_OF_MEMORY)
        live.settle()
        assert live.state(short) == ["running"]
        live.end(short)
        assert live.state(long) == ["queued"]
        assert live.why(long)["code"] == "pause_before_retry"
        live.until(lambda: live.state(long) == ["running"])


def test_stopping_all_jobs_waits_for_a_store_that_works(tmp_path: Path) -> None:
    store = Failing(tmp_path)
    with living(tmp_path, store=store) as live:
        jobs = [live.submit(), live.submit()]
        store.failing = True
        live.scheduler.stop(stop_jobs=True)
        live.until(lambda: bool(live.scheduler.problem))
        store.failing = False
        assert live.scheduler.join(10.0)
        assert live.state(*jobs) == ["queued", "queued"]


def test_a_changed_time_limit_is_told_again_after_a_restart(tmp_path: Path) -> None:
    executor = FakeExecutor()
    before = Live(tmp_path, executor)
    job = before.submit(time_limit=60)
    executor.broken = True
    before.service.update([job], {"time_limit": 600})
    before.crash()
    executor.broken = False
    with living(tmp_path, executor) as after:
        after.settle()
        assert executor.limits_set == {f"{job}.1": 600.0}


def test_a_job_that_is_requeued_begins_a_new_life(tmp_path: Path) -> None:
    with living(tmp_path) as live:
        job = live.submit()
        live.end(job)
        before = live.view(job)
        live.service.requeue([job])
        live.settle()
        live.end(job)
        after = live.view(job)
        assert after["submitted_s"] > before["submitted_s"]
        assert after["attempts"] == 2
        assert after["jct_s"] is not None
        assert after["waited_s"] < 1.0
        trace = live.service.history(since_s=None, until_s=None).splitlines()
        assert len([line for line in trace if not line.startswith("#")]) == 2, "the head, and one job"


def test_many_priorities_cost_no_more_than_one(tmp_path: Path) -> None:
    with living(tmp_path) as live:
        live.submit(4, priority=1000)
        live.service.submit([spec(1, priority=n) for n in range(100)], user="ann")
        live.settle()
        built: list[int] = []
        planning = live.scheduler.planning
        build = planning.worlds.build
        planning.worlds.build = lambda *given, **named: (built.append(1), build(*given, **named))[1]  # type: ignore[method-assign,func-returns-value]
        live.submit(1)
        assert len(built) <= 3
        assert {live.view(job)["waiting"]["code"] for job in range(2, 103)} <= {  # type: ignore[index]
            "behind_others",
            "not_enough_free_gpus",
        }


def test_no_gpu_is_ever_given_twice(tmp_path: Path) -> None:
    """Whatever the executor does late: what was handed to it never overlaps."""
    executor = FakeExecutor(obedient=False)
    seen: list[RunRequest] = []

    def check(request: RunRequest) -> None:
        for other in seen:
            if short(other.run) in executor.live():
                assert not set(other.gpus) & set(request.gpus), (other.run, request.run)
        seen.append(request)

    executor.on_start = check
    with living(tmp_path, executor, policy="srtf") as live:
        for n in range(40):
            live.submit(1 + n % 4, estimate=100.0 - 2 * n, priority=n % 3)
            stopping = [run for run in sorted(executor.live()) if run in executor.stops]
            if n % 3 == 0:
                for run in stopping[:2]:
                    executor.end(run, 85, reason=executor.stops[run])
                live.settle()
            used = slots_in_use(live)
            assert len(used) == len(set(used))
        assert live.scheduler.problem == ""


def test_that_nodes_are_not_heard_is_said_by_the_status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(now: float) -> None:
        raise RuntimeError("a bug of ours")

    with living(tmp_path) as live:
        assert live.service.status()["executor"]["ok"]
        monkeypatch.setattr(live.parts.nodes, "_look", fails)
        live.parts.nodes.gone("n1", "its allocation ended")  # so that the thread looks
        live.until(lambda: not live.service.status()["executor"]["ok"])
        assert "the thread 'nodes' was ended by RuntimeError" in live.service.status()["executor"]["problem"]


def test_a_suspended_job_makes_way_and_show_says_what_moved(tmp_path: Path) -> None:
    with living(tmp_path, Suspends(), slots=1, policy="srtf") as live:
        long = live.submit(estimate=1000, on_preempt="suspend")
        short = live.submit(estimate=10)
        live.until(lambda: live.state(long, short) == ["frozen", "running"])
        assert "is suspended and waits" in live.service.why(long)["sentences"][0]
        (node,) = live.service.nodes()
        assert (node["suspended"], node["jobs"]) == ([{"job": long, "mib": 512.0}], [short])
        (told,) = live.service.show(long)["suspensions"]
        assert (told["mib"], told["out_s"], told["back_at_s"], told["why_not"]) == (512.0, 1.5, None, "")
        live.end(short)
        live.until(lambda: live.state(long) == ["running"])
        assert live.service.show(long)["suspensions"][0]["back_at_s"] is not None
        assert live.service.nodes()[0]["suspended"] == []
        assert live.service.show(short)["suspensions"] == []


def test_one_that_could_not_be_suspended_is_told_to_end_at_once(tmp_path: Path) -> None:
    executor = Suspends()
    executor.refuses = "error 801"
    with living(tmp_path, executor, slots=1, policy="srtf") as live:
        long = live.submit(estimate=1000, on_preempt="suspend")
        short = live.submit(estimate=10)
        live.until(lambda: live.state(long, short) == ["queued", "running"])
        assert executor.stops == {f"{long}.1": "preempted"}
        assert [one["why_not"] for one in live.service.show(long)["suspensions"]] == ["error 801"]
        executor.refuses = ""
        live.end(short)
        live.until(lambda: live.state(long) == ["running"])
        shorter = live.submit(estimate=5)
        live.until(lambda: live.state(long, shorter) == ["frozen", "running"])


@pytest.mark.parametrize("how", ["node", "container"])
def test_where_it_cannot_be_suspended_it_is_told_to_end(tmp_path: Path, how: str) -> None:
    docker = tmp_path / "bin" / "docker"
    docker.parent.mkdir()
    docker.write_text("#!/bin/sh\n")
    docker.chmod(0o755)
    executor = FakeExecutor() if how == "node" else Suspends()
    there = {"PATH": f"{docker.parent}:/bin:/usr/bin"}
    container: dict[str, Any] = {"container": "image", "env": there} if how == "container" else {}
    with living(tmp_path, executor, slots=1, policy="srtf") as live:
        long = live.submit(estimate=1000, on_preempt="suspend", **container)
        short = live.submit(estimate=10)
        live.until(lambda: live.state(long, short) == ["queued", "running"])
        assert executor.stops == {f"{long}.1": "preempted"}
        told = [one["why_not"] for one in live.service.show(long)["suspensions"]]
        assert told == [
            "its node can't suspend; gpuloom share doctor there says why" if how == "node" else "it runs in a container"
        ]
