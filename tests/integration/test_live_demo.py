"""The live demo end to end: real processes on a real scheduler, compared with a replay, and nothing left behind."""

from __future__ import annotations

import csv
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gpuloom.cli.demo.command import Outcome, demo, run_live
from gpuloom.cli.demo.home import TemporaryScheduler, processes_in
from gpuloom.cli.demo.jobs import Planned, Story
from gpuloom.cli.demo.replay import Compared, Replay, replay
from gpuloom.cli.demo.view import result_lines
from gpuloom.core.errors import GpuloomError

pytestmark = pytest.mark.slow

RUN = [sys.executable, "-c", "from gpuloom.cli.main import main; main()"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary homes are made."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def nothing_left(folder: Path) -> None:
    assert processes_in(folder) == []
    assert list(folder.glob("gpuloom-demo-*")) == []


@pytest.fixture
def histories(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[dict[str, float]]]:
    """What happened, by the first policy that it is replayed under: submitted, held and ended, in seconds, by job."""
    found = {}

    def kept(history: Path, policies: Sequence[str], **how: Any) -> dict[str, Replay]:
        rows = csv.DictReader(line for line in history.read_text().splitlines() if not line.startswith("#"))
        found[policies[0]] = [
            {name: float(row[name]) for name in ("submit_s", "held_s", "end_s")} for row in rows if row["job_id"]
        ]
        return replay(history, policies, **how)

    monkeypatch.setattr("gpuloom.cli.demo.command.replay", kept)
    return found


def replayed(outcome: Compared) -> list[float]:
    return [simulated_s for _, _, simulated_s, _, _ in outcome.rows]


def test_jobs_run_are_preempted_resume_and_finish_as_the_simulator_says(
    folder: Path, capsys: pytest.CaptureFixture[str], histories: dict[str, list[dict[str, float]]]
) -> None:
    plan = (Planned("whole", 0.0, 2, 4.0), Planned("short", 0.6, 1, 1.0))
    outcome = run_live(plan, slots=2, policy="srtf", interval_s=1.5, also=("fifo:backfill=easy",), others=("fifo",))
    nothing_left(folder)
    whole, short = outcome.jobs
    assert [job["state"] for job in outcome.jobs] == ["finished", "finished"]
    assert (whole["preemptions"], whole["attempts"]) == (1, 2)
    assert (short["preemptions"], short["attempts"]) == (0, 1)
    assert short["ended_s"] < whole["ended_s"]
    said = capsys.readouterr().out
    assert "preempted  whole     has saved (exit code 85), waits again" in said
    step = int(said.split("continues from step ")[1].split(" of 80")[0])
    assert 0 < step < 80  # it went on from what it had saved
    # It has held its slots for its work and two starts; had it begun again, for longer.
    assert whole["run_s"] < 4.0 + (whole["ended_s"] - whole["submitted_s"] - 4.0 - short["run_s"]) + 1.0
    assert {row[0]: (row[3], row[4]) for row in outcome.compared.rows} == {1: (2, 2), 2: (1, 1)}
    # How late this machine starts and stops processes is not judged here. What they were seen to take, the replay has
    # taken in order: `short` goes first from the next interval on, `whole` before and after; under FIFO one by one.
    one, two = histories["srtf"]
    next_s = 1.5 * math.ceil(two["submit_s"] / 1.5)
    by_hand = [one["held_s"] + two["held_s"], next_s + two["held_s"] - two["submit_s"]]
    assert replayed(outcome.compared) == pytest.approx(by_hand, abs=1e-3)
    first, second = histories["fifo:backfill=easy"]
    free_s = first["submit_s"] + first["held_s"]
    by_hand = [first["held_s"], free_s + second["held_s"] - second["submit_s"]]
    assert replayed(outcome.also["fifo:backfill=easy"]) == pytest.approx(by_hand, abs=1e-3)
    for what, happened in ((outcome.compared, (one, two)), (outcome.also["fifo:backfill=easy"], (first, second))):
        live = [job["end_s"] - job["submit_s"] for job in happened]
        assert [row[1] for row in what.rows] == pytest.approx(live, abs=1e-3)
        assert (what.live_s, what.simulated_s) == pytest.approx((sum(live) / 2, sum(replayed(what)) / 2), abs=1e-3)
        assert what.difference < 1e-3  # the simulator loses no time between jobs, so that it is never later
    assert [row[3:] for row in outcome.also["fifo:backfill=easy"].rows] == [(1, 1), (1, 1)]
    assert outcome.others["fifo"].avg_jct_s > outcome.others["srtf"].avg_jct_s
    assert {letter for line in outcome.chart for letter in line} <= set("WS.")
    assert any("S" in line for line in outcome.chart)


def test_interrupted_it_leaves_nothing(tmp_path: Path) -> None:
    demo_process = subprocess.Popen(
        [*RUN, "demo"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert demo_process.stdout is not None
    seen = []
    for line in demo_process.stdout:
        seen.append(line)
        if " starts " in line:
            break
    assert " starts " in seen[-1], (seen, demo_process.communicate()[1])
    assert len(processes_in(tmp_path)) >= 2  # the scheduler and its runner at least
    demo_process.send_signal(signal.SIGINT)
    _, errors = demo_process.communicate(timeout=60)
    assert (demo_process.returncode, errors.strip()) == (1, "interrupted")
    nothing_left(tmp_path)


def test_a_scheduler_that_cannot_start_leaves_nothing(folder: Path) -> None:
    with (
        pytest.raises(GpuloomError, match="no_such_policy"),
        TemporaryScheduler(slots=2, policy="no_such_policy", interval_s=1.0),
    ):
        raise AssertionError
    nothing_left(folder)


def test_an_error_meanwhile_ends_jobs_that_run(folder: Path) -> None:
    def fail() -> None:
        with TemporaryScheduler(slots=1, policy="fifo", interval_s=1.0) as scheduler:
            job = scheduler.client.submit(scheduler.sample("long", gpus=1, steps=10_000, step_s=0.05))[0][0]
            ends = time.monotonic() + 30
            while scheduler.client.job(job)["state"] != "running":
                assert time.monotonic() < ends
                time.sleep(0.05)
            raise RuntimeError("as it may happen")

    with pytest.raises(RuntimeError, match="as it may happen"):
        fail()
    nothing_left(folder)


def test_options_of_the_simulated_demo_alone_are_refused() -> None:
    done = subprocess.run([*RUN, "demo", "--jobs", "5"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "--jobs: only with --simulate" in done.stderr
    assert demo.params


# -- the story and the figures ----------------------------------------------------------------------------------------


def event(number: int, at_s: float, kind: str, job: int | None = None, **data: Any) -> dict[str, Any]:
    return {"id": number, "at_s": at_s, "type": kind, "job": job, "data": data}


def test_the_story_and_the_chart_tell_who_had_which_slot(tmp_path: Path) -> None:
    story = Story(tmp_path)
    spec = {"name": "alpha", "gpus": 2, "estimate": 4}
    told = story.tell(
        [
            event(1, 100.0, "scheduler.started"),
            event(2, 100.0, "jobs.submitted", 1, spec=spec),
            event(3, 100.0, "attempt.starting", 1, attempt=1, allocation=[["host", [0, 1]]]),
            event(4, 100.1, "attempt.running", 1),
            event(5, 102.0, "attempt.stopping", 1, reason="preempted"),
            event(
                6, 102.2, "attempt.ended", 1, reason="preempted", next="queued", saved=True, exit_code=85, signal=None
            ),
            event(7, 102.2, "jobs.submitted", 2, spec={**spec, "name": "bravo", "gpus": 1}),
            event(8, 102.5, "attempt.starting", 2, attempt=1, allocation=[["host", [1]]]),
            event(9, 104.0, "attempt.ended", 2, reason="failed", next="failed", message="exit code 3"),
        ]
    )
    assert told == [
        "   0.0 s  submitted  alpha     2 slots, 4 s of work",
        "   0.0 s  starts     alpha     on slots 0,1",
        "   2.0 s  notice     alpha     is asked to save and free its GPUs",
        "   2.2 s  preempted  alpha     has saved (exit code 85), waits again",
        "   2.2 s  submitted  bravo     1 slot, 4 s of work",
        "   2.5 s  starts     bravo     on slot 1",
        "   4.0 s  failed     bravo     exit code 3",
    ]
    assert story.last == 9
    assert story.state == {1: "queued", 2: "failed"}
    assert story.chart(2, 105.0, 72) == ["AAAA.......", "AAAA.BBB..."]
    assert story.chart(2, 105.0, 5) == ["AA...", "AABB."]


@pytest.mark.parametrize(("simulated_s", "within"), [(10.29, True), (9.71, True), (10.31, False), (9.69, False)])
def test_the_bound_is_three_percent_of_the_average(simulated_s: float, within: bool) -> None:
    what = Compared(10.0, simulated_s, 8.0, ((1, 10.0, simulated_s, 1, 1),))
    assert what.within is within
    view = {"id": 1, "name": "alpha", "gpus": 2, "preemptions": 0}
    lines = result_lines([view], what, {}, "srtf")
    assert any(("NOT within 3 %" in line) is not within for line in lines if "replays" in line)


@pytest.mark.parametrize(("load", "busy"), [(2.0, False), (2.1, True)])
def test_on_a_machine_with_other_work_the_bound_is_told_and_no_failure(
    load: float, busy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = Compared(10.0, 9.0, 8.0, ((1, 10.0, 9.0, 1, 1),))
    outcome = Outcome([], late, {}, {"srtf": Replay(9.0, 8.0, {})}, [], load, 2)
    monkeypatch.setattr("gpuloom.cli.demo.command.run_live", lambda err: outcome)
    monkeypatch.setattr("gpuloom.cli.demo.view.result_lines", lambda *_: [])
    done = CliRunner().invoke(demo, [])
    assert done.exit_code == (0 if busy else 1)
    assert "live and simulated differ by more than 3 %" in done.stderr
    assert ("this machine has other work to do (load 2.1 on 2 cores)" in done.stderr) is busy
