"""The live scheduler over an executor without processes: what it decides, writes down and tells the executor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import pytest

from fake_executor import FakeExecutor
from gpuloom.core.end_reason import EndReason
from gpuloom.core.errors import ConflictError, ImpossibleJobError, InputError, NotFoundError
from gpuloom.core.job import NodeState
from gpuloom.live.submission.actions import Action
from gpuloom.live.views.job_answers import JobView
from gpuloom.policies.registry import policy_ids
from gpuloom.store.port import JobQuery
from live_builders import living, spec
from tiers import mostly_slow


def test_jobs_run_in_turn_and_say_why_they_wait(tmp_path: Path) -> None:
    with living(tmp_path) as live:
        first, second, third = (live.submit(gpus) for gpus in (4, 2, 2))
        assert live.state(first, second, third) == ["running", "queued", "queued"]
        assert live.why(second)["code"] == "not_enough_free_gpus"
        live.end(first)
        assert live.state(first, second, third) == ["finished", "running", "running"]
        live.end(second, 3)
        live.end(third, None, signal=9)
        found = live.view(second)
        assert (found["state"], found["reason"], found["exit_code"]) == ("failed", "failed", 3)
        assert (live.view(third)["reason"], live.view(third)["message"]) == ("failed", "ended by SIGKILL")
        assert live.executor.acknowledged == {f"{first}.1", f"{second}.1", f"{third}.1"}


def test_what_can_never_run_is_refused_with_the_reason(tmp_path: Path) -> None:
    with living(tmp_path) as live:
        with pytest.raises(ImpossibleJobError, match="asks for 5 GPUs; this machine has only 4 CPU slots"):
            live.submit(5)
        with pytest.raises(ImpossibleJobError, match=r"model V100.*only CPU slots"):
            live.submit(1, gpu_types=["V100"])
        with pytest.raises(ImpossibleJobError, match="main memory"):
            live.submit(1, memory="900TiB")
        with pytest.raises(InputError, match="there is no job 77"):
            live.submit(1, after=[77])
        with pytest.raises(InputError, match="workdir /nowhere is not a folder"):
            live.submit(1, workdir="/nowhere")
        with pytest.raises(InputError, match="is not a folder"):  # longer than a file system takes
            live.submit(1, workdir="/" + 300 * "a")
        with pytest.raises(InputError, match="job 2 of 2"):
            live.submit_all([spec(), spec(venv="/nowhere")])
        assert live.service.jobs(JobQuery()) == []
        with pytest.raises(NotFoundError, match="there is no job 1; none yet"):
            live.service.cancel([1])


def test_a_submission_is_taken_once_for_a_key(tmp_path: Path) -> None:
    with living(tmp_path) as live:
        specs = [spec(1), spec(1, array="0-2")]
        first = live.service.submit(specs, user="ann", idempotency_key="k")
        assert first == live.service.submit(specs, user="ann", idempotency_key="k") == [[1], [2, 3, 4]]
        with pytest.raises(ConflictError, match="was used for another submission"):
            live.service.submit([spec(2)], user="ann", idempotency_key="k")
        assert live.service.submit(specs, user="ann") == [[5], [6, 7, 8]]


def test_dependencies_order_jobs_and_end_those_that_can_never_start(tmp_path: Path) -> None:
    with living(tmp_path) as live:
        first = live.submit()
        well, anyhow = live.submit(after=[first]), live.submit(after_any=[first])
        last = live.submit(after=[well])
        assert live.state(well, anyhow, last) == ["queued"] * 3
        assert live.why(well)["code"] == "dependency"
        live.end(first, 1)
        assert live.state(first, well, anyhow, last) == ["failed", "cancelled", "running", "cancelled"]
        assert f"job {first}" in live.view(well)["message"]
        with pytest.raises(InputError, match=f"job {first} failed"):
            live.submit(after=[first])
        live.end(anyhow)
        assert live.state(live.submit(after=[anyhow])) == ["running"]


def test_an_array_runs_so_many_at_once(tmp_path: Path) -> None:
    with living(tmp_path) as live:
        jobs = live.submit_all([spec(array="0-4%2")])
        assert live.state(*jobs) == ["running", "running", "queued", "queued", "queued"]
        assert live.why(jobs[2])["code"] == "array_throttle"
        assert live.executor.requests[f"{jobs[1]}.1"].env["GPULOOM_ARRAY_INDEX"] == "1"
        live.end(jobs[0])
        assert live.state(*jobs) == ["finished", "running", "running", "queued", "queued"]
        live.service.cancel(jobs)
        live.settle()
        assert live.state(*jobs) == ["finished", *["cancelled"] * 4]


def test_retries_follow_failures_after_a_pause_but_not_preemptions(tmp_path: Path) -> None:
    with living(tmp_path, policy="srtf") as live:
        job = live.submit(4, retries=1, estimate=100)
        short = live.submit(4, estimate=1)  # srtf stops the long one for it
        live.until(lambda: live.state(job, short) == ["queued", "running"])
        assert live.job(job).failures == 0
        live.end(short)
        assert live.state(job) == ["running"]
        live.end(job, 1)
        assert live.why(job)["code"] == "pause_before_retry"
        live.until(lambda: live.state(job) == ["running"])
        live.end(job, 1)
        assert live.state(job) == ["failed"]
        found = live.view(job)
        assert (found["attempts"], found["preemptions"], found["retries_left"]) == (3, 1, 0)


def test_top_never_lowers_and_says_what_runs(tmp_path: Path) -> None:
    with living(tmp_path) as live:
        running = live.submit(4)
        first, other = live.submit(4, priority=10), live.submit(4)

        def top(job: int) -> tuple[bool, int]:
            view = live.service.move_to_top([job])[0]
            return view["changed"], view["priority"]

        assert top(first) == (False, 10), "it is first already"
        assert top(running) == (False, 0), "it runs already"
        assert top(other) == (True, 11)
        assert top(other) == (False, 11)
        assert [view["priority"] for view in live.service.move_to_top([first, other])] == [10, 11], "none else waits"
        live.service.cancel([other])
        with pytest.raises(ConflictError, match="is cancelled and can't be moved to the top; submit it again"):
            live.service.move_to_top([other])


def test_what_is_so_already_is_no_error_and_what_can_not_be_is(tmp_path: Path) -> None:
    with living(tmp_path) as live:
        running, waiting = live.submit(4), live.submit(4)
        service = live.service

        def changed(views: Sequence[JobView]) -> list[bool]:
            return [view["changed"] for view in views]

        for act, jobs in (
            (service.release, [running, waiting]),
            (service.requeue, [waiting]),
            (lambda jobs: service.update(jobs, {"priority": 0}), [running, waiting]),
        ):
            assert changed(act(jobs)) == [False] * len(jobs)
        assert changed(service.hold([waiting])) == [True]
        assert changed(service.hold([waiting])) == [False]
        with pytest.raises(ConflictError, match="is held and can't be requeued; it is in the queue"):
            service.requeue([waiting])
        assert changed(service.cancel([waiting])) == [True]
        events = live.scheduler.ledger.newest
        assert changed(service.cancel([waiting])) == [False]
        assert changed(service.cancel([running, waiting])) == [True, False]
        live.settle()
        live.end(running)
        with pytest.raises(ConflictError, match="is cancelled and can't be held"):
            service.hold([waiting])
        done = live.submit(1)
        live.end(done)
        with pytest.raises(ConflictError, match="is finished and can't be cancelled"):
            service.cancel([done])
        told = [event.type for event in service.events(after=events, job=waiting)]
        assert told == [], "nothing happened to it"


def test_hold_release_requeue_update_and_top(tmp_path: Path) -> None:
    with living(tmp_path) as live:
        running, held, later = live.submit(4), live.submit(4, hold=True), live.submit(4)
        assert live.why(held)["code"] == "held"
        live.end(running)
        assert live.state(held, later) == ["held", "running"]
        with pytest.raises(ConflictError, match="is running and can't be held"):
            live.service.hold([later])
        live.service.release([held])
        last = live.submit(4)
        live.service.move_to_top([last])
        live.end(later)
        assert live.state(held, last) == ["queued", "running"]
        with pytest.raises(ConflictError, match="gpus can only be changed while it waits"):
            live.service.update([last], {"gpus": 1})
        with pytest.raises(ImpossibleJobError):
            live.service.update([held], {"gpus": 9})
        live.service.update([held], {"gpus": 1, "name": "small"})
        live.service.update([last], {"time_limit": 60})
        live.settle()
        assert live.executor.limits_set == {f"{last}.1": 60.0}
        live.service.requeue([last])
        live.settle()
        assert live.view(last)["attempts"] == 2
        assert live.executor.stops[f"{last}.1"] == "requeued"
        live.service.requeue([running])
        live.settle()
        assert live.job(running).ended_s is None


def test_higher_priorities_go_first_whatever_the_policy(tmp_path: Path) -> None:
    for policy in ("fifo", "sjf", "tiresias", "muri-l"):
        with living(tmp_path / policy, policy=policy) as live:
            blocker = live.submit(4, priority=10)
            low, high = live.submit(4, estimate=1), live.submit(4, estimate=1000, priority=5)
            live.end(blocker)
            assert live.state(low, high) == ["queued", "running"], policy
            live.end(high)
            assert live.state(low) == ["running"], policy


def test_a_job_that_runs_is_not_stopped_for_one_of_lower_priority(tmp_path: Path) -> None:
    with living(tmp_path, policy="srtf") as live:
        high = live.submit(4, priority=5, estimate=1000)
        low = live.submit(4, estimate=1)
        assert live.state(high, low) == ["running", "queued"]
        same = live.submit(4, estimate=1, priority=5)
        live.until(lambda: live.state(high, same) == ["queued", "running"])


def test_the_next_job_starts_only_when_the_one_before_has_left(tmp_path: Path) -> None:
    executor = FakeExecutor(obedient=False)
    with living(tmp_path, executor, policy="srtf") as live:
        long = live.submit(4, estimate=100)
        short = live.submit(2, estimate=1)
        assert live.state(long, short) == ["stopping", "queued"]
        assert live.why(short)["code"] == "gpus_being_vacated"
        assert (live.why(short)["text"], live.why(short)["numbers"]) == (
            f"Its GPUs are being freed by job {long}.",
            {"jobs": 1},
        )
        assert f"{short}.1" not in executor.requests
        executor.end(f"{long}.1", 85, reason=EndReason.PREEMPTED)
        live.settle()
        assert live.state(long, short) == ["queued", "running"]
        live.end(short)
        assert live.state(long) == ["running"]
        assert executor.requests[f"{long}.2"].resumes
        executor.end(f"{long}.2")
        live.settle()
        assert live.job(long).failures == 0


def test_all_jobs_that_leave_are_named_to_the_one_that_waits_for_their_gpus(tmp_path: Path) -> None:
    with living(tmp_path, FakeExecutor(obedient=False), policy="srtf") as live:
        live.submit(1, estimate=1)
        leave = [live.submit(1, estimate=100) for _ in range(3)]
        short = live.submit(3, estimate=2)
        assert live.why(short)["text"] == f"Its GPUs are being freed by jobs {', '.join(map(str, leave))}."


def test_jobs_that_cannot_save_are_frozen_and_thawed(tmp_path: Path) -> None:
    with living(tmp_path, policy="srtf") as live:
        long = live.submit(4, estimate=100, on_preempt="freeze")
        short = live.submit(2, estimate=1)
        live.until(lambda: live.state(long, short) == ["frozen", "running"])
        held = live.job(long).held_s
        live.end(short)
        live.until(lambda: live.state(long) == ["running"])
        assert live.job(long).attempts == 1
        assert live.job(long).held_s == held > 0
        live.end(long)
        assert live.view(long)["preemptions"] == 0


def test_a_job_that_must_not_be_stopped_is_not(tmp_path: Path) -> None:
    with living(tmp_path, policy="srtf") as live:
        stays = live.submit(2, estimate=1000, on_preempt="never")
        gives = live.submit(2, estimate=1000)
        short = live.submit(4, estimate=1)
        assert live.state(stays, gives, short) == ["running", "running", "queued"]
        assert live.why(short)["code"] == "gpus_out_of_service"
        smaller = live.submit(2, estimate=1)
        live.until(lambda: live.state(stays, gives, smaller) == ["running", "queued", "running"])


def test_cordon_lets_jobs_end_and_drain_moves_them_away(tmp_path: Path) -> None:
    with living(tmp_path) as live:
        node = live.service.nodes()[0]["name"]
        first = live.submit(2)
        live.service.set_node(node, NodeState.CORDONED, reason="new disk")
        second = live.submit(1)
        assert live.state(first, second) == ["running", "queued"]
        assert live.why(second)["code"] == "no_gpu_in_service"
        live.service.set_node(node, NodeState.DRAINING)
        live.settle()
        assert live.state(first, second) == ["queued", "queued"]
        assert live.job(first).failures == 0
        live.service.set_node(node, NodeState.UP)
        live.settle()
        assert live.state(first, second) == ["running", "running"]
        with pytest.raises(NotFoundError, match="no node is named 'x'"):
            live.service.set_node("x", NodeState.UP)


@pytest.mark.parametrize("policy", mostly_slow(sorted(policy_ids()), "fifo", "tiresias", "elastic-goodput", "weave"))
def test_every_policy_works_here_and_can_be_swapped_for_another(tmp_path: Path, policy: str) -> None:
    with living(tmp_path, policy="muri-l") as live:
        models = ["resnet50", "gpt2", "bert", "dqn"]
        jobs = [live.submit(1 + n % 4, model=models[n % 4], estimate=10.0 + n) for n in range(12)]
        running = {job for job in jobs if live.job(job).phase == "running"}
        assert running
        live.service.set_policy(policy)
        live.settle()
        assert live.scheduler.problem == ""
        assert live.service.policy()["policy"] == policy
        more = [live.submit(1 + n % 4, estimate=3.0) for n in range(4)]
        for _ in range(200):
            live.settle()
            now = [job for job in (*jobs, *more) if live.job(job).phase == "running"]
            if not now:
                break
            live.end(now[0])
        assert live.state(*jobs, *more) == ["finished"] * 16
        assert all(count == 1 for count in live.executor.starts.values())
        assert live.scheduler.problem == ""


def test_a_policy_that_is_none_is_refused_and_the_one_before_goes_on(tmp_path: Path) -> None:
    with living(tmp_path) as live:
        for written in ("nonsense", "tiresias:thresholds=x", "fifo:backfil=easy"):
            with pytest.raises(InputError):
                live.service.set_policy(written)
        for interval_s in (-1.0, 0.01, 1e10):
            with pytest.raises(InputError, match="must be 0"):
                live.service.set_policy("srtf", interval_s=interval_s)
        assert live.service.policy()["policy"] == "fifo:backfill=easy"
        assert live.state(live.submit()) == ["running"]


def test_large_jobs_are_not_starved_and_small_ones_fill_the_gap(tmp_path: Path) -> None:
    with living(tmp_path) as live:  # fifo with EASY backfill
        live.submit(3, estimate=100)
        large = live.submit(4, estimate=100)
        delays, fits = live.submit(1, estimate=1000), live.submit(1, estimate=10)
        assert live.state(large, delays, fits) == ["queued", "queued", "running"]


def test_while_a_cancelled_job_still_ends_nobody_passes_the_first(tmp_path: Path) -> None:
    with living(tmp_path, FakeExecutor(obedient=False)) as live:  # fifo with EASY backfill
        ends = live.submit(2, estimate=100)
        large, delays = live.submit(4, estimate=100), live.submit(1, estimate=1000)
        assert live.state(large, delays) == ["queued", "queued"]
        live.service.cancel([ends])
        live.settle()
        assert live.state(ends, large, delays) == ["stopping", "queued", "queued"]
        live.end(ends)
        assert live.state(large, delays) == ["running", "queued"]


def test_a_run_that_leaves_something_behind_keeps_its_slots_from_others(tmp_path: Path) -> None:
    with living(tmp_path) as live:
        job = live.submit(2)
        live.end(job, released=False)
        gpus = live.service.nodes()[0]["gpus"]
        assert [gpu["state"] for gpu in gpus] == ["unhealthy", "unhealthy", "ok", "ok"]
        large = live.submit(4)
        assert live.why(large)["code"] == "gpus_out_of_service"
        assert not live.executor.acknowledged
        live.executor.end(f"{job}.1", released=True, again=True)  # what was left is gone at last
        live.until(lambda: live.state(large) == ["running"])
        assert live.executor.acknowledged == {f"{job}.1"}
        live.end(large)
        other = live.submit(2)
        live.end(other, released=False)
        large = live.submit(4)
        assert live.state(live.submit(2)) == ["running"]  # the large one waits for a person, not for GPUs
        live.service.set_node(live.service.nodes()[0]["name"], NodeState.UP)
        live.until(lambda: {gpu["state"] for gpu in live.service.nodes()[0]["gpus"]} == {"ok"})


def test_gpus_of_an_estimate_that_was_too_short_are_not_promised(tmp_path: Path) -> None:
    with living(tmp_path) as live:
        live.submit(4, estimate=0.05)
        waits = live.submit(4)
        live.until(lambda: live.scheduler.do(lambda: live.scheduler.planning.due_s()) > live.parts.clock.now())
        assert live.state(waits) == ["queued"]
        assert not math.isnan(live.scheduler.do(live.scheduler.planning.due_s))


def test_usage_history_and_logs(tmp_path: Path) -> None:
    with living(tmp_path) as live:
        job = live.submit(2)
        live.end(job)
        rows = live.service.usage(since_s=None, until_s=None, by="user")
        assert [row["key"] for row in rows] == ["ann"]
        assert rows[0]["gpu_s"] == pytest.approx(2 * rows[0]["held_s"])
        told = live.service.history(since_s=None, until_s=None).splitlines()
        (_, row) = [line for line in told if not line.startswith("#")]
        assert row.startswith(f"{job},")
        (log,) = live.service.logs(job)
        assert (log.attempt, log.member, log.live) == (1, 0, False)
        assert live.service.files_of(log).read_log(log.run) == (b"", 0)
        shown = live.service.show(job)["log"]
        assert shown.endswith(f"/runs/0000/{job}/{log.run.partition('.')[2]}/output.log")
        with pytest.raises(NotFoundError, match="has 1 attempt,"):
            live.service.logs(job, 2)


def test_why_tells_position_start_and_end_by_running_the_simulator_forward(tmp_path: Path) -> None:
    with living(tmp_path) as live:
        first = live.submit(4, estimate=100)
        second, third = live.submit(4, estimate=50), live.submit(4, estimate=25, priority=-1)
        after = live.submit(1, after=[second], estimate=10)
        held = live.submit(1, hold=True)
        now = live.job(first).first_start_s
        assert now is not None
        found = live.service.why(second)
        assert found["position"] == 1
        assert found["start_s_median"] == pytest.approx(now + 100, abs=3)
        assert found["end_s_median"] == pytest.approx(now + 150, abs=5)
        assert (found["source"], found["rests_on"]) == ("given", {"given": 1})
        assert any("1 by their users' estimates" in text for text in found["assumptions"])
        last = live.service.why(third)
        assert last["position"] == 2
        assert last["start_s_median"] == pytest.approx(now + 150, abs=5)
        assert live.service.why(after)["start_s_median"] == pytest.approx(now + 150, abs=5)
        assert live.service.why(held)["start_s_median"] is None
        assert "held" in " ".join(live.service.why(held)["sentences"])
        runs = live.service.why(first)
        assert runs["end_s_median"] == pytest.approx(now + 100, abs=3)
        assert live.service.why(second, forecast=False)["start_s_median"] is None
        live.end(first)
        assert "finished" in live.service.why(first)["text"]


@pytest.mark.parametrize("policy", mostly_slow(sorted(policy_ids()), "fifo", "themis", "hlas", "muri-xl"))
def test_why_has_an_answer_under_every_policy_and_changes_nothing(tmp_path: Path, policy: str) -> None:
    with living(tmp_path, policy=policy) as live:
        jobs = [live.submit(1 + n % 4, estimate=10.0 + n, model=["resnet50", "gpt2"][n % 2]) for n in range(8)]
        states = live.state(*jobs)
        waiting = [job for job, state in zip(jobs, states, strict=True) if state == "queued"]
        for job in waiting:
            found = live.service.why(job)
            assert found["start_s_median"] is not None, found
            assert found["start_s_median"] >= live.job(job).submitted_s
        positions = [live.service.why(job)["position"] for job in waiting]
        assert sorted(positions) == sorted(set(positions))
        assert live.state(*jobs) == states


def test_a_whole_array_is_held_released_cancelled_and_requeued_in_one_step(tmp_path: Path) -> None:
    with living(tmp_path) as live:
        alone = live.submit(1, hold=True)
        jobs = live.submit_all([spec(array="0-19")])
        assert live.service.act_on_array(jobs[0], Action.HOLD) == {"held": 16}
        assert live.service.act_on_array(jobs[0], Action.HOLD) == {}
        assert live.service.act_on_array(jobs[0], Action.RELEASE) == {"queued": 16}
        after = live.submit(1, after=[jobs[10]])
        assert live.service.act_on_array(jobs[0], Action.CANCEL, grace_s=0) == {"stopping": 4, "cancelled": 16}
        live.settle()
        assert set(live.state(*jobs, after)) == {"cancelled"}
        assert live.service.act_on_array(jobs[0], Action.REQUEUE) == {"queued": 20}
        live.settle()
        assert live.state(*jobs) == ["running"] * 4 + ["queued"] * 16
        with pytest.raises(NotFoundError, match="is not the first job of an array"):
            live.service.act_on_array(alone, Action.CANCEL)
        with pytest.raises(NotFoundError, match="no job 99"):
            live.service.act_on_array(99, Action.CANCEL)


def test_a_whole_array_is_changed_and_moved_to_the_top_in_one_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = FakeExecutor()
    with living(tmp_path, executor) as live:
        jobs = live.submit_all([spec(array="0-19", env={"A": "b"})])
        other = live.submit(1, priority=7, hold=True)
        live.end(jobs[0])
        writes = live.scheduler.ledger.writes
        with pytest.raises(ConflictError, match=r"is running: gpus can only be changed while it waits"):
            live.service.update_array(jobs[0], {"gpus": 2})
        with pytest.raises(InputError, match="no change was given"):
            live.service.update_array(jobs[0], {})
        assert live.scheduler.ledger.writes == writes
        assert live.service.update_array(jobs[0], {"priority": 3, "name": "late"}) == {"running": 4, "queued": 15}
        assert live.scheduler.ledger.writes == writes + 1
        assert live.service.update_array(jobs[0], {"priority": 3}) == {}
        assert live.service.act_on_array(jobs[0], Action.TOP) == {"queued": 15}
        assert live.service.act_on_array(jobs[0], Action.TOP) == {}
        live.settle()
        assert [live.job(job).priority for job in (jobs[0], jobs[1], jobs[19], other)] == [0, 3, 8, 7]
        assert live.job(jobs[19]).name == "late[19]"
        assert len({live.job(job).spec_id for job in jobs[5:]}) == 1, "they share a spec, as before"
        live.end(jobs[1])
        assert live.state(jobs[5], other) == ["running", "held"]
        assert executor.requests[f"{jobs[5]}.1"].env["A"] == "b"
        assert live.parts.store.check().findings == ()
        monkeypatch.setattr("gpuloom.store.examine.ALL_EVENTS", 0)
        assert live.parts.store.examine().report.findings == ()
        records = dict(live.book.jobs)
    with living(tmp_path, executor) as again:
        assert {job: again.job(job) for job in jobs[5:]} == {job: records[job] for job in jobs[5:]}


def test_one_that_is_requeued_before_its_end_was_told_waits_anew(tmp_path: Path) -> None:
    with living(tmp_path) as live:
        job, other = live.submit(4), live.submit(4)
        planning = live.scheduler.planning

        def pause(until_s: float) -> None:
            """No world is built until then."""
            planning.stale()
            planning.times.quiet_until_s = until_s

        live.scheduler.do(lambda: pause(math.inf))
        live.executor.end(f"{job}.1", 0)
        live.until(lambda: live.state(job) == ["finished"])
        live.service.requeue([job])
        live.scheduler.do(lambda: pause(-math.inf))
        live.settle()
        assert not live.scheduler.problem
        assert live.state(job, other) == ["queued", "running"]
        live.end(other)
        assert live.state(job) == ["running"]
