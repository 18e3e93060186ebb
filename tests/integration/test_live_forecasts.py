"""Forecasts of a live scheduler: what they rest on, ranges, and what they don't know."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from gpuloom.core.end_reason import EndReason
from gpuloom.executors.port import Cause, RunExit, RunPhase, RunRequest, RunStatus
from gpuloom.live.forecasts.forecast import Outlook
from gpuloom.live.planning.estimates import like_of
from gpuloom.live.trial.rehearsal import Rehearsal
from gpuloom.live.views import why as whys
from gpuloom.policies.registry import policy_ids
from live_builders import Live, living, spec
from tiers import mostly_slow


def have_run(live: Live, work_s: list[float], gpus: int = 1, **fields: Any) -> None:
    """Jobs that were the same as these have ended."""
    like = like_of(spec(gpus, **fields).named().kept(), "ann", gpus, None)

    def tell() -> None:
        estimates = live.scheduler.estimates
        estimates.of(like, given_s=None, time_limit_s=None)
        for one in work_s:
            estimates.finished(like, one)
        live.scheduler.planning.stale()

    live.scheduler.do(tell)


def began(live: Live, job: int) -> float:
    """When it started."""
    at_s = live.job(job).first_start_s
    assert at_s is not None
    return at_s


def told(live: Live, job: int) -> str:
    return " ".join(live.service.why(job)["sentences"])


def test_a_range_that_rests_on_earlier_runs(tmp_path: Path) -> None:
    with living(tmp_path, slots=1) as live:
        have_run(live, [float(100 + n) for n in range(19)], name="first")
        have_run(live, [50.0] * 4, name="second")
        first, second = live.submit(name="first"), live.submit(name="second")
        now = began(live, first)
        found = live.service.why(second)
        low, median, high = (found[key] - now for key in ("start_s_low", "start_s_median", "start_s_high"))
        assert (low, median, high) == pytest.approx((101.0, 109.0, 117.0), abs=3.0)
        assert found["end_s_low"] < found["start_s_median"] + 50 < found["end_s_high"]
        assert (found["source"], found["n"], found["rests_on"]) == ("earlier_runs", 4, {"earlier_runs": 1})
        assert "4 earlier runs of second" in told(live, second)
        assert live.service.why(second)["start_s_low"] == found["start_s_low"], "the same for all who ask at once"
        runs = live.service.why(first)
        assert runs["end_s_low"] < runs["end_s_median"] < runs["end_s_high"]
        view = live.view(first)
        assert (view["estimate_from"], view["estimate_runs"], view["estimate_s"]) == ("earlier_runs", 19, 116.0)


def test_what_is_not_known_is_said_to_be_unknown(tmp_path: Path) -> None:
    with living(tmp_path, slots=1) as live:
        have_run(live, [2.3] * 5, name="other", command=["sleep", "2"])
        first = live.submit(name="other", command=["sleep", "100"])
        second = live.submit(estimate=5)
        found = live.service.why(second)
        assert found["start_s_median"] is None
        assert found["start_s_high"] is None
        assert found["unknown"] == [first]
        assert found["end_s_median"] is None
        assert "When it will start is unknown" in told(live, second)
        assert f"job {first} (other)" in told(live, second)
        view = live.view(first)
        assert (view["estimate_from"], view["estimate_s"], view["predicted_end_s"]) == ("unknown", None, None)
        assert "it has no --estimate" in told(live, first)


def test_a_job_of_which_nothing_is_known_is_never_late(tmp_path: Path) -> None:
    """What scheduling reckons with is a guess of ours: to outlive it is nothing that anybody is told."""
    with living(tmp_path, slots=1) as live:
        have_run(live, [2.3] * 5, name="other", command=["sleep", "2"])
        job, after = live.submit(name="other", command=["sleep", "100"]), live.submit(estimate=10)
        live.scheduler.do(lambda: setattr(live.scheduler.work._runs[job], "from_s", live.parts.clock.now() - 50.0))
        view = live.view(job)
        assert (view["overrun_s"], view["predicted_end_s"]) == (0.0, None)
        assert "When it ends is unknown" in told(live, job)
        found = live.service.why(after)
        assert found["unknown"] == [job]
        assert not any("late" in text for text in found["assumptions"])


def test_an_unknown_job_that_does_not_matter_hides_nothing(tmp_path: Path) -> None:
    with living(tmp_path, slots=2) as live:
        known = live.submit(1, estimate=100)
        live.submit(1)
        short = live.submit(1, estimate=10)
        live.submit(1)  # waits behind it, and is unknown too
        found = live.service.why(short)
        assert found["start_s_low"] <= live.parts.clock.now() + 1.0, "should the unknown one end at once"
        assert found["start_s_high"] == pytest.approx(began(live, known) + 100, abs=3.0), "whatever it does"
        assert found["start_s_median"] is None


def test_time_limits_are_bounds(tmp_path: Path) -> None:
    with living(tmp_path, slots=1) as live:
        first, second = live.submit(time_limit=60), live.submit(time_limit=30)
        now = began(live, first)
        found = live.service.why(second)
        assert found["start_s_median"] is None
        assert found["start_s_high"] == pytest.approx(now + 60, abs=3.0)
        assert found["source"] == "time_limit"
        assert "at most (its time limit)" in told(live, second)
        view = live.view(first)
        assert view["predicted_end_s"] is None
        assert view["predicted_end_s_high"] == pytest.approx(now + 60, abs=3.0)


def test_a_predicted_end_is_never_in_the_past(tmp_path: Path) -> None:
    with living(tmp_path, slots=1) as live:
        job, next_one = live.submit(estimate=10), live.submit(estimate=10)

        def late() -> None:
            live.scheduler.work._runs[job].from_s -= 25.0

        live.scheduler.do(late)
        view = live.view(job)
        assert view["predicted_end_s"] is None
        assert view["overrun_s"] >= 15.0
        assert "longer than its user's estimate said, so when it ends can't be said" in told(live, job)
        found = live.service.why(next_one)
        assert found["start_s_high"] > found["start_s_low"] > live.parts.clock.now() - 1.0
        assert any("running longer" in text for text in found["assumptions"])


def test_a_store_full_of_nonsense_breaks_no_forecast(tmp_path: Path) -> None:
    with living(tmp_path, slots=1) as live:
        live.submit(estimate=10)
        second, third = live.submit(estimate=10), live.submit(estimate=10)
        jobs = live.book.jobs
        from dataclasses import replace

        for estimate in (1e17, float("inf"), float("nan"), -5.0):
            poisoned = replace(
                jobs[second], spec=replace(jobs[second].spec, estimate=estimate), spec_id=-int(time.time())
            )
            live.scheduler.do(
                lambda poisoned=poisoned: (jobs.update({second: poisoned}), live.scheduler.planning.stale())
            )
            live.service._whys._kept.clear()
            for job in (second, third):
                assert live.service.why(job)["sentences"]
                assert live.view(job)["id"] == job


@pytest.mark.slow
def test_a_long_queue_is_told_from_the_first_to_the_last(tmp_path: Path) -> None:
    with living(tmp_path, slots=4, policy="fifo") as live:
        jobs = live.submit_all([spec(1 + n % 3, estimate=50.0 + n % 7) for n in range(1800)])
        now = began(live, jobs[0])
        found = [live.service.why(jobs[place]) for place in (10, 900, 1799)]
        starts = [one["start_s_median"] - now for one in found]
        work_s = sum((1 + n % 3) * (51.0 + n % 7) for n in range(1800)) / 4
        assert work_s < starts[2] < 1.4 * work_s, "in order, so some slots are free at times"
        assert starts[1] == pytest.approx(starts[2] / 2, rel=0.15)
        assert found[2]["start_s_low"] <= found[2]["start_s_median"] <= found[2]["start_s_high"]
        waiting = live.state(*jobs).count("queued")
        assert [one["position"] for one in found] == pytest.approx(
            [waiting - 1800 + place + 1 for place in (10, 900, 1799)], rel=0.02
        )
        assert any("one job in" in text for text in found[2]["assumptions"])


def test_a_policy_without_its_inputs_says_so(tmp_path: Path) -> None:
    with living(tmp_path, slots=2, policy="muri-l") as live:
        live.submit(2, estimate=10, model="resnet18")
        job = live.submit(2, estimate=10)
        assert "unknown for 1 of 2 jobs" in live.service.why(job)["lacks"][0]
        assert [lack["input"] for lack in live.service.status()["policy_lacks"]] == ["stages"]
    with living(tmp_path / "other", slots=2) as live:
        job = live.submit(2, estimate=10)
        assert live.service.status()["policy_lacks"] == []
        assert live.service.why(job)["lacks"] == []


def test_a_throttled_array_of_which_nothing_is_known_has_no_number(tmp_path: Path) -> None:
    with living(tmp_path, slots=2) as live:
        jobs = live.submit_all([spec(array="0-4%1")])
        assert live.state(*jobs) == ["running", *["queued"] * 4]
        last = live.service.why(jobs[-1])
        assert last["code"] == "array_throttle"
        assert (last["start_s_median"], last["start_s_high"]) == (None, None)
        live.end(jobs[0])
        found = live.service.why(jobs[-1])
        assert found["source"] == "array"
        assert found["start_s_low"] <= found["start_s_median"] <= found["start_s_high"]


@pytest.mark.parametrize("policy", mostly_slow(sorted(policy_ids()), "fifo", "srtf", "gavel", "weave"))
def test_under_every_policy_ranges_are_in_order_and_not_in_the_past(tmp_path: Path, policy: str) -> None:
    """Whatever is known of the jobs: estimates, runs, limits, nothing."""
    known: list[dict[str, Any]] = [{"estimate": 30.0}, {"name": "often"}, {"time_limit": 90.0}, {}]
    with living(tmp_path, slots=4, policy=policy) as live:
        for gpus in (1, 2, 3):
            have_run(live, [40.0, 50.0, 60.0], gpus, name="often")
        jobs = [live.submit(1 + n % 3, **known[n % len(known)]) for n in range(12)]
        now = live.parts.clock.now()
        for job, state in zip(jobs, live.state(*jobs), strict=True):
            found = live.service.why(job)
            for what in ("start", "end"):
                span = [found[f"{what}_s_{part}"] for part in ("low", "median", "high")]  # type: ignore[literal-required]
                told = [at for at in span if at is not None]
                assert told == sorted(told), found
                assert all(at >= now - 1.0 for at in told), found
            if state == "queued":
                assert found["unknown"] or found["start_s_median"] is not None or found["start_s_high"] is not None, (
                    found
                )
                assert found["source"] in ("given", "earlier_runs", "time_limit", "unknown")


def test_a_forecast_keeps_the_scheduler_from_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on = threading.Event(), threading.Event()
    real = whys.outlook

    def slow(*args: Any) -> Outlook:
        begun.set()
        assert go_on.wait(30.0)
        return real(*args)

    with living(tmp_path, slots=1) as live, ThreadPoolExecutor(1) as pool:
        first, second = live.submit(estimate=100), live.submit(estimate=10)
        monkeypatch.setattr(whys, "outlook", slow)
        answer = pool.submit(live.service.why, second)
        try:
            assert begun.wait(30.0)
            live.end(first)  # the forecast is under way all the time
            assert live.state(first, second) == ["finished", "running"]
        finally:
            go_on.set()
        assert answer.result(30.0)["start_s_median"] is not None, "as things were when it was asked"


def test_forecasts_of_one_moment_share_what_they_need(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    real = whys.preview

    def counted(*args: Any, **more: Any) -> Any:
        asked.append(args)
        return real(*args, **more)

    monkeypatch.setattr(whys, "preview", counted)
    monkeypatch.setattr(whys, "FRESH_S", 1e6)
    with living(tmp_path, slots=1) as live:
        live.submit(estimate=100)
        jobs = [live.submit(estimate=10) for _ in range(3)]
        assert len({live.service.why(job)["position"] for job in jobs}) == 3
        assert len(asked) == 1
        live.submit(estimate=10)
        live.service.why(jobs[0])
        assert len(asked) == 2, "something has happened"


def test_one_that_could_not_be_started_is_expected_at_its_next_try(monkeypatch: pytest.MonkeyPatch) -> None:
    live = Rehearsal("fifo", models=["V100"])

    def start(request: RunRequest) -> None:
        how = RunExit(None, None, EndReason.NOT_STARTED, "its disk is dead", 0.0, cause=Cause.PLACE)
        live.executor._say(RunStatus(request.run, RunPhase.EXITED, exit=how))

    monkeypatch.setattr(live.executor, "start", start)
    (job,) = live.submit({"gpus": 1, "estimate": 100.0})
    why = live.service.why(job)
    assert why["code"] == "start_failed"
    assert why["start_s_low"] == live.jobs[job].not_before_s > live.now_s
