"""Schedulers that are really killed, with real jobs: no job lost, none run twice, nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from real_scheduler import Real, alive, real
from until import until

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).parents[1] / "crash_at_writes.py"
MOVES = PROGRAM.with_name("crash_at_moves.py")
FIRST, STEP = 5, 19


def test_killed_at_its_writes_it_loses_and_doubles_nothing(tmp_path: Path) -> None:
    """A write has some ten points at which it can be cut: a step of 19 comes to all of them in turn."""
    command = [sys.executable, str(PROGRAM), str(tmp_path), str(FIRST), str(STEP)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert {one["point"]: one["wrong"] for one in found if one["wrong"]} == {}
    assert [one["point"] for one in found] == list(range(FIRST, FIRST + STEP * len(found), STEP))
    assert [one["killed"] for one in found] == [True] * (len(found) - 1) + [False]
    assert len(found) >= 10
    assert found[-1]["jobs"] == 7


@pytest.mark.parametrize(
    ("kind", "first", "step", "starts"), [("moves", 40, 61, [1, 2, 2, 1]), ("groups", 60, 23, [1, 1, 1])]
)
def test_killed_at_the_writes_of_moves_and_of_groups_nothing_is_lost_or_doubled(
    tmp_path: Path, kind: str, first: int, step: int, starts: list[int]
) -> None:
    command = [sys.executable, str(MOVES), str(tmp_path), str(first), str(step), kind]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert {one["point"]: one["wrong"] for one in found if one["wrong"]} == {}
    assert [one["killed"] for one in found] == [True] * (len(found) - 1) + [False]
    assert len(found) >= 5
    assert found[-1]["starts"] == starts


@pytest.fixture
def live(tmp_path: Path) -> Real:
    with real(tmp_path, slots=10) as found:
        yield found


def _thirty(live: Real) -> tuple[list[int], list[int], dict[int, list[tuple[int, int]]]]:
    """30 jobs on 10 slots: those that run, those that wait, attempts with pids of the former."""
    live.up("--policy", "fifo")
    jobs = [job for group in live.client.submit([live.waiting() for _ in range(30)]) for job in group]
    live.in_state("running", jobs, 10)
    states = live.states(jobs)
    running = [job for job in jobs if states[job] == "running"]
    return running, [job for job in jobs if job not in running], live.attempts(running)


def _all_well(live: Real, jobs: list[int], codes: dict[int, int]) -> None:
    """Let all end; each has run once, ended as it should, and nothing is left."""
    for job in jobs:
        if job not in codes:
            live.end(job)
    live.client.wait(jobs, timeout_s=60)
    views = {view["id"]: view for view in live.client.jobs(ids=jobs)}
    assert {job: views[job]["exit_code"] for job in jobs} == {job: codes.get(job, 0) for job in jobs}
    assert {job: views[job]["state"] for job in jobs} == {
        job: "failed" if codes.get(job) else "finished" for job in jobs
    }
    live.ran(dict.fromkeys(jobs, 1))
    assert {views[job]["attempts"] for job in jobs} == {1}
    live.down("--stop-jobs")
    live.check()
    live.nothing_left()


@pytest.mark.parametrize("whom", ["scheduler", "process group"])
def test_a_killed_scheduler_finds_its_jobs_and_how_they_ended(live: Real, whom: str) -> None:
    running, waiting, before = _thirty(live)
    runner = live.runner()
    if whom == "scheduler":
        live.kill()
    else:
        os.killpg(os.getpgid(live.pid), signal.SIGKILL)
        until(lambda: not alive(live.pid), "the end of the scheduler")
    codes = {running[0]: 0, running[1]: 3, running[2]: 77, running[3]: 0}
    for job, code in codes.items():
        live.end(job, code=code)
    live.up()
    assert live.runner() == runner
    live.in_state("running", [*running, *waiting], 10)
    assert live.attempts(running) == before
    states = live.states(running)
    assert {job: states[job] for job in running[4:]} == dict.fromkeys(running[4:], "running")
    _all_well(live, [*running, *waiting], codes)


def test_killed_with_its_runner_it_finds_the_jobs_that_go_on(live: Real) -> None:
    running, waiting, before = _thirty(live)
    runner = live.runner()
    live.kill(live.pid, runner)
    assert all(alive(pid) for attempts in before.values() for _, pid in attempts)
    live.up()
    assert live.runner() != runner
    assert live.attempts(running) == before
    assert live.states(running) == dict.fromkeys(running, "running")
    live.end(*running)
    until(lambda: all(len(found) == 2 for found in live.attempts(running).values()), "they are tried again")
    # Nobody was their parent any more: that they ended is seen, with what code is not, and that is said.
    for job in running:
        first, view = live.client.show(job)["attempts"][0], live.client.job(job)
        assert (first["reason"], first["exit_code"]) == ("lost", None)
        assert "it goes on from its last save" in first["message"]
        assert view["retries_left"] == live.client.show(job)["spec"]["retries"]
    live.end(*running, attempt=2)
    live.in_state("finished", running)
    live.in_state("running", waiting, 10)
    live.ran({**dict.fromkeys(running, 2), **dict.fromkeys(waiting[:10], 1)})
    live.down("--stop-jobs")
    live.check()
    live.nothing_left()


def test_ends_in_order_by_signal_or_command_and_jobs_go_on(live: Real) -> None:
    running, waiting, before = _thirty(live)
    second = live.run("up", "--slots", "10", "--port", "0")
    assert second.returncode == 1
    assert f"pid {live.pid}" in second.stderr
    assert live.client.connection.address.url in second.stderr
    os.kill(live.pid, signal.SIGTERM)
    until(lambda: not alive(live.pid), "the end by SIGTERM")
    assert not (live.home / "server.json").exists()
    live.end(running[0], code=4)
    live.up()
    live.down()
    assert not alive(live.pid)
    assert all(alive(pid) for job in running[1:] for _, pid in before[job])
    live.up()
    live.in_state("running", [*running, *waiting], 10)
    assert live.attempts(running) == before
    ends = [event["type"] for event in live.client.events(types=["scheduler.stopped", "scheduler.started"])]
    assert ends == ["scheduler.started", "scheduler.stopped"] * 2 + ["scheduler.started"]
    _all_well(live, [*running, *waiting], {running[0]: 4})
