"""What the API tells of a job: times to the second, and `gpuloom why` in words."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from fake_views import attempt, record
from gpuloom.core.decision import Reason
from gpuloom.core.end_reason import EndReason
from gpuloom.core.events import Event
from gpuloom.core.job import Job, Phase
from gpuloom.core.pace import ModelSpeed, Pace, SpeedSource
from gpuloom.core.usage import RunUsage
from gpuloom.live.forecasts.forecast import Outlook, Span
from gpuloom.live.forecasts.left import Left
from gpuloom.live.planning.estimates import Source
from gpuloom.live.views import jobs as views
from gpuloom.live.views.costs import attempt_cost_usd, cost_usd, job_cost_usd
from gpuloom.live.views.job_answers import JobView, WhyView
from gpuloom.live.views.why import Among, Known, why_view

NOW = 1000.0
RUNS = Left(Source.EARLIER_RUNS, 118.0, 10.0, tuple(float(100 + n) for n in range(19)), most_s=500.0)
"""Of 19 runs of 100 to 118 s the 2nd, 10th and 18th stand for 10, 50 and 90 %; 10 s of it are done."""
LATE = Left(Source.GIVEN, 100.0, 130.0, most_s=50.0, overrun_s=30.0)
BOUNDED = Left(Source.TIME_LIMIT, 60.0, 10.0, most_s=50.0)
UNKNOWN = Left(Source.UNKNOWN, 60.0, 10.0)


@pytest.fixture(autouse=True)
def _in_greenwich(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def job(phase: Phase = Phase.RUNNING, **changes: Any) -> Job:
    """Submitted at 100, held GPUs for 30 s in its first attempt."""
    given = {"submitted_s": 100.0, "queued_s": 100.0, "first_start_s": 150.0, "held_s": 30.0, **changes}
    return record(phase=phase, attempts=2, **given)


def view(one: Job, left: Left | None = RUNS, **changes: Any) -> JobView:
    """At 1000, of a run that holds its GPUs since 420 and starts up for 5 s more."""
    given: dict[str, Any] = {"attempt": attempt(number=2, started_s=400.0, since_s=420.0), "preemptions": 1, **changes}
    return views.job_view(one, reason=None, usage=None, left=left, starting_s=5.0, now_s=NOW, **given)


def predicted(found: JobView) -> tuple[float | None, float | None, float | None]:
    return found["predicted_end_s_low"], found["predicted_end_s"], found["predicted_end_s_high"]


@pytest.mark.parametrize("phase", [Phase.STARTING, Phase.RUNNING])
def test_the_predicted_end_is_the_work_left_from_now_and_what_it_takes_to_start(phase: Phase) -> None:
    found = view(job(phase))
    assert predicted(found) == (1096.0, 1104.0, 1112.0)
    assert (found["estimate_s"], found["estimate_from"], found["estimate_runs"]) == (118.0, "earlier_runs", 19)
    assert found["overrun_s"] == 0.0


def test_who_is_late_or_bounded_has_no_predicted_end_but_the_latest() -> None:
    assert predicted(view(job(), LATE)) == (None, None, 1055.0)
    assert view(job(), LATE)["overrun_s"] == 30.0
    assert predicted(view(job(), replace(LATE, overrun_s=0.01))) == (None, None, 1055.0)
    assert view(job(), LATE, attempt=None)["overrun_s"] == 0.0
    assert predicted(view(job(), BOUNDED)) == (None, None, 1055.0)
    assert predicted(view(job(), UNKNOWN)) == (None, None, None)
    assert [view(job(), left)["estimate_s"] for left in (LATE, BOUNDED, UNKNOWN)] == [100.0, None, None]


@pytest.mark.parametrize("phase", [Phase.STOPPING, Phase.FROZEN, Phase.QUEUED])
def test_who_does_not_run_has_no_predicted_end(phase: Phase) -> None:
    assert predicted(view(job(phase))) == (None, None, None)
    assert predicted(view(job(), attempt=None)) == (None, None, None)
    assert predicted(view(job(), None)) == (None, None, None)


def test_times_that_it_held_gpus_and_waited() -> None:
    found = view(job())
    assert (found["run_s"], found["waited_s"], found["jct_s"]) == (30.0 + 580.0, 900.0 - 610.0, None)
    frozen = view(job(Phase.FROZEN), attempt=attempt(phase=Phase.FROZEN, since_s=420.0))
    assert (frozen["run_s"], frozen["waited_s"], frozen["where"]) == (30.0, 870.0, "node0:0")
    assert view(job(), attempt=attempt(since_s=NOW + 1))["run_s"] == 30.0, "a clock that was set back"
    ended = view(job(Phase.FINISHED, ended_s=160.0, held_s=70.0), None, attempt=None)
    assert (ended["run_s"], ended["waited_s"], ended["jct_s"]) == (70.0, 0.0, 60.0)
    assert view(job(Phase.FINISHED, ended_s=300.0, held_s=70.0), None, attempt=None)["waited_s"] == 130.0


def test_the_other_fields() -> None:
    retried = replace(job(failures=1), spec=replace(job().spec, retries=3, time_limit=60.0, gpu_types=("V100",)))
    found = view(retried, attempt=attempt(allocation=(("a", (0, 3)), ("b", (1,)))))
    assert (found["retries_left"], found["time_limit_s"], found["gpu_types"]) == (2, 60.0, ["V100"])
    assert (found["where"], found["preemptions"], found["attempts"]) == ("a:0,3 b:1", 1, 2)
    assert view(replace(retried, failures=5))["retries_left"] == 0
    assert view(job(), attempt=None)["where"] == ""
    # Without a forecast, records say what they rest on; those of older versions in other words.
    for source, told, known_s in (
        ("given", "given", 7.0),
        ("time_limit", "time_limit", None),
        ("guess", "unknown", None),
    ):
        found = view(job(estimate_s=7.0, estimate_from=source), None)
        assert (found["estimate_from"], found["estimate_s"], found["estimate_runs"]) == (told, known_s, 0)


def test_why_it_waits_and_what_it_uses() -> None:
    reason, usage = Reason("gpus", "No.", {"free": 1}), RunUsage("1.2", cpu_cores=0.5, progress={"step": 3})
    more: dict[str, Any] = {"attempt": None, "preemptions": 0, "left": None, "now_s": NOW}
    found = views.job_view(job(Phase.QUEUED), reason=reason, usage=usage, **more)
    assert found["waiting"] == {"code": "gpus", "text": "No.", "numbers": {"free": 1}}
    assert (found["progress"], found["usage"].get("cpu_cores")) == ({"step": 3}, 0.5)
    assert views.job_view(job(Phase.FINISHED), reason=reason, usage=None, **more)["waiting"] is None
    event = Event(7, 5.0, "job.held", 1, {"why": "x"})
    pace = Pace({"V100": ModelSpeed(4.0, SpeedSource.MEASURED, 20.0, 2)})
    whole = views.show_view(found, job().spec, pace, [attempt()], [event], "/log", now_s=NOW)
    fast = {
        "gpu_model": "V100",
        "speed": 4.0,
        "it_per_s": 20.0,
        "source": "measured",
        "runs": 2,
        "price_usd_per_hour": 2.48,
    }
    assert whole["speeds"] == [fast]
    assert whole["events"] == [{"id": 7, "at_s": 5.0, "type": "job.held", "job": 1, "data": {"why": "x"}}]
    assert (whole["job"], whole["log"], [one["where"] for one in whole["attempts"]]) == (found, "/log", ["node0:0"])
    ended = [attempt(phase=None, reason=reason) for reason in (EndReason.PREEMPTED, EndReason.NODE, EndReason.FAILED)]
    assert (views.preemptions_of({1: ended}, 1), views.preemptions_of({1: ended}, 2)) == (2, 0)


def test_gpu_time_costs_what_its_models_do_on_demand() -> None:
    # data/gpus.csv: V100 2.48, K80 0.45 US dollars per GPU and hour
    assert cost_usd({"V100": 3600.0, "K80": 7200.0}) == pytest.approx(2.48 + 0.9)
    assert cost_usd({"V100": 3600.0, "": 1.0}) is None
    assert cost_usd({"V100": 3600.0, "Abacus": 0.0}) == pytest.approx(2.48)
    assert cost_usd({}) == 0.0
    runs = attempt(gpu_model="V100", held_s=40.0, since_s=NOW - 60.0, allocation=(("a", (0, 1)),))
    assert attempt_cost_usd(runs, NOW) == pytest.approx(200 / 3600 * 2.48)
    frozen = replace(runs, phase=Phase.FROZEN)
    assert attempt_cost_usd(frozen, NOW) == pytest.approx(80 / 3600 * 2.48)
    assert job_cost_usd([frozen, replace(frozen, gpu_model="K80")], NOW) == pytest.approx(80 / 3600 * (2.48 + 0.45))
    assert job_cost_usd([frozen, replace(frozen, gpu_model="")], NOW) is None
    assert job_cost_usd([], NOW) == 0.0


def test_what_it_cost_is_told_of_who_ran() -> None:
    now, ended = (
        why_view(known(job(), cost_usd=1.234)),
        why_view(known(job(Phase.FINISHED, ended_s=900.0), cost_usd=2.0)),
    )
    assert now["sentences"][-1] == "Its GPUs cost $1.23 so far, at on-demand prices."
    assert now["numbers"] == {"cost_usd": 1.234}
    assert ended["sentences"][-1] == "Its GPUs cost $2.00, at on-demand prices."
    for unknown in (None, 0.0):
        assert "cost" not in why_view(known(job(), cost_usd=unknown))["sentences"][-1]


# -- in words ----------------------------------------------------------------------------------------------------------


def known(one: Job, left: Left = RUNS, **changes: Any) -> Known:
    return Known(one, None, NOW, left, **{"starting_s": 5.0, "since_s": 420.0, **changes})


def test_one_that_runs() -> None:
    found = why_view(known(job()))
    assert found["text"] == (
        "Job 1 does not wait: it is running and has held its GPUs for 9m 40s. It is expected to end in 1m 36s to "
        "1m 52s (00:18:16 to 00:18:32), by 19 earlier runs of a."
    )
    assert found["sentences"] == [found["text"]]
    assert (found["end_s_low"], found["end_s_median"], found["end_s_high"]) == (1096.0, 1104.0, 1112.0)
    assert (found["start_s"], found["end_s"], found["code"], found["n"]) == (150.0, None, "does_not_wait", 19)
    assert "held its GPUs for 0s" in why_view(known(job(), since_s=NOW + 9))["text"]
    assert "held its GPUs for 0s" in why_view(known(job(), since_s=None))["text"]


def test_one_that_is_late() -> None:
    found = why_view(known(job(), LATE))
    assert found["text"].endswith(
        " It runs 30s longer than its user's estimate said, so when it ends can't be said, but in 55s at the latest "
        "(its time limit)."
    )
    assert (found["end_s_low"], found["end_s_median"], found["end_s_high"]) == (None, None, 1055.0)
    assert found["overrun_s"] == 30.0
    assert why_view(known(job(), LATE, since_s=None))["overrun_s"] == 0.0
    assert "When it ends is unknown: none of its earlier runs has finished" in why_view(known(job(), UNKNOWN))["text"]


def test_one_that_ends_or_has_ended() -> None:
    stops = why_view(known(job(Phase.STOPPING)))
    assert stops["text"] == "Job 1 does not wait: it was told to stop, and is saving its work or ending."
    assert (stops["end_s"], stops["end_s_high"]) == (None, None)
    ended = why_view(known(job(Phase.FINISHED, ended_s=900.0, reason=EndReason.FINISHED)))
    assert (ended["text"], ended["end_s"]) == ("Job 1 does not wait: it has finished, 1m 40s ago.", 900.0)
    failed = job(Phase.FAILED, ended_s=900.0, reason=EndReason.TIMED_OUT, message="its time was up")
    assert why_view(known(failed))["text"] == (
        "Job 1 does not wait: it has failed (timed out), 1m 40s ago. Its time was up."
    )
    cancelled = job(Phase.CANCELLED, ended_s=NOW + 3.0)
    assert why_view(known(cancelled))["text"] == "Job 1 does not wait: it has been cancelled, 0s ago."
    assert ", 0s ago" in why_view(known(job(Phase.FINISHED)))["text"]


def waits(found: Outlook | None, among: Among | None, phase: Phase = Phase.QUEUED) -> WhyView:
    reason = Reason("gpus", "It needs 1 GPU.", {"gpus": 1})
    return why_view(Known(job(phase), reason, NOW, RUNS, lacks=["Nobody told the policy."]), found, among)


def test_one_that_waits() -> None:
    rests_on = {Source.GIVEN: 3}
    found = Outlook(RUNS, Span(1100, 1200, 1300), Span(1400, 1500, 1600), 2, rests_on=rests_on, unknown=(4,))
    told = waits(found, Among(5, {4: "d"}, ["all goes well"]))
    assert told["sentences"] == [
        "Job 1 (a, 1 GPU) waits. It needs 1 GPU.",
        "It is number 2 in the order in which jobs will start; 5 jobs wait of its priority or a higher one.",
        "It is expected to start in 1m 40s to 5m 00s (00:18:20 to 00:21:40), most likely in about 3m 20s: the running "
        "time of job 4 (d) is unknown, or only bounded.",
        "It then runs for 1m 31s to 1m 47s (19 earlier runs of a) and ends in 6m 40s to 10m 00s (00:23:20 to "
        "00:26:40).",
        "Nobody told the policy.",
    ]
    assert (told["start_s_low"], told["start_s_median"], told["start_s_high"]) == (1100, 1200, 1300)
    assert (told["end_s_low"], told["end_s_median"], told["end_s_high"]) == (1400, 1500, 1600)
    assert (told["position"], told["waiting"], told["rests_on"], told["unknown"]) == (2, 5, {"given": 3}, [4])
    assert (told["assumptions"], told["lacks"]) == (["all goes well"], ["Nobody told the policy."])
    assert (told["code"], told["text"], told["numbers"]) == ("gpus", "It needs 1 GPU.", {"gpus": 1.0})


def test_one_that_waits_and_of_which_nothing_can_be_said() -> None:
    assert waits(None, None, Phase.FROZEN)["sentences"] == ["Job 1 (a, 1 GPU) is suspended and waits. It needs 1 GPU."]
    failed = waits(Outlook(RUNS, cause="the policy fails"), None)
    assert failed["sentences"][1:] == ["The start can't be predicted: the policy fails.", "Nobody told the policy."]
    assert (failed["waiting"], failed["assumptions"]) == (0, [])
