"""Jobs in pilots of a real Slurm: from a job that waits to a pilot that is given back, and what can befall one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from gpuloom.client import Client
from real_scheduler import PROGRAM
from slurm_kit import CPUS, RealSlurm, wait

pytestmark = pytest.mark.slow

SAVES = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(85))
print("begins on", os.environ["GPULOOM_NODE_NAMES"], flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
print("ends", flush=True)
"""
"""Saves when it gets notice, and ends once a file is there."""


class Head:
    """A scheduler that asks a real Slurm for nodes."""

    def __init__(self, slurm: RealSlurm, folder: Path) -> None:
        self.slurm, self.home, self.folder = slurm, folder / "home", folder
        self.client = Client(self.home, patience_s=20.0)

    def run(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*PROGRAM, *words],
            env={**self.slurm.env, "GPULOOM_HOME": str(self.home), **env},
            capture_output=True,
            text=True,
            timeout=120.0,
            check=False,
            cwd=self.folder,
        )

    def said(self, *words: str, **env: str) -> str:
        done = self.run(*words, **env)
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout

    def up(self, *options: str, **env: str) -> dict[str, Any]:
        words = ["up", "--slurm", "--slots", str(CPUS), "--host", "127.0.0.1", "--port", "0", "--detach", "--json"]
        found: dict[str, Any] = json.loads(self.said(*words, *options, **env))
        return found

    def submit(self, *words: str) -> int:
        return int(self.said("submit", *words).split()[-1])

    def state(self, job: int) -> str:
        return str(self.client.job(job)["state"])

    def pilots(self, state: str = "") -> list[Any]:
        return [one for one in self.client.pilots()["pilots"] if state in ("", one["state"])]

    def nodes(self) -> dict[str, str]:
        return {node["name"]: node["state"] for node in self.client.nodes()}

    def waits_for(self, job: int, state: str, timeout_s: float = 150.0) -> None:
        wait(lambda: self.state(job) == state, f"job {job} to be {state}; {self.client.pilots()}", timeout_s)


@pytest.fixture
def head(slurm: RealSlurm, tmp_path: Path) -> Iterator[Head]:
    found = Head(slurm, tmp_path)
    try:
        yield found
    finally:
        with suppress(Exception):
            print((found.home / "scheduler.log").read_text()[-6000:])
        found.run("down", "--stop-jobs", "--timeout", "20s")
        found.run("down", "--timeout", "20s")
        found.client.close()


def test_a_job_runs_in_a_pilot_that_is_given_back(head: Head) -> None:
    head.up("-N", "2", "--idle", "3s", "--hours", "1")
    assert head.client.pilots()["on"]
    assert head.slurm.queue() == [], "no job needs any"
    job = head.submit("-g", "4", "--", "sh", "-c", "echo hello from $GPULOOM_NODE_NAMES; exec sleep 600")
    head.waits_for(job, "running")
    (pilot,) = head.pilots()
    wait(lambda: "hello from" in head.said("logs", str(job)), "its log")
    (node,) = [node for node in head.client.nodes() if node["state"] == "up"]
    assert f"hello from {node['name']}" in head.said("logs", str(job))
    assert (node["source"], node["engine_job"]) == ("slurm", str(pilot["job"]))
    wait(lambda: head.pilots("running")[0]["until_s"] is not None, "the end of its allocation")
    until = wait(lambda: head.client.nodes()[0]["until_s"], "until when the node is ours")
    assert until == pytest.approx(pilot["since_s"] + 3600.0, abs=60.0)
    assert f"{pilot['job']}" in head.said("pilots")
    head.said("cancel", str(job), "--grace", "1s")
    head.waits_for(job, "cancelled")
    wait(lambda: not head.slurm.queue(), "the pilot to be given back")
    wait(lambda: head.nodes() == {node["name"]: "down"}, "the node to be gone")
    assert "hello from" in head.said("logs", str(job)), "also after its node is gone"


def test_a_pilot_that_is_cancelled_takes_no_job_with_it(head: Head) -> None:
    (head.folder / "saves.py").write_text(SAVES)
    done = head.folder / "done"
    head.up("-N", "2", "--idle", "5s")
    job = head.submit("-g", str(CPUS), "--", "python3", "saves.py", str(done))
    head.waits_for(job, "running")
    (first,) = head.slurm.queue()
    head.slurm.said("scancel", str(first))
    wait(lambda: len(head.client.show(job)["attempts"]) == 2 and head.state(job) == "running", "its second attempt")
    assert head.slurm.queue() != [first]
    before, _ = head.client.show(job)["attempts"]
    assert before["reason"] == "node"
    assert head.client.job(job)["retries_left"] == head.client.show(job)["spec"]["retries"], "no retry is used up"
    done.touch()
    head.waits_for(job, "finished")


def test_a_gang_over_two_nodes_of_one_pilot(head: Head) -> None:
    head.up("-N", "2", "--idle", "5s")
    job = head.submit("-g", str(2 * CPUS), "--", "sh", "-c", "echo rank $GPULOOM_NODE_RANK; sleep 1")
    head.waits_for(job, "finished")
    assert len(head.slurm.queue()) == 1
    log = head.said("logs", str(job))
    assert "rank 0" in log
    assert "rank 1" in log


def test_the_next_scheduler_takes_its_pilots_up(head: Head) -> None:
    head.up("-N", "1", "--idle", "60s")
    job = head.submit("-g", "1", "--", "sleep", "600")
    head.waits_for(job, "running")
    (pilot,) = head.slurm.queue()
    said = head.said("down")
    assert head.slurm.queue() == [pilot], "a job runs there"
    assert f"left in Slurm with the jobs that run there: pilot {pilot}" in said
    assert f"`scancel {pilot}` ends them now" in said
    head.up("-N", "1", "--idle", "60s")
    head.waits_for(job, "running")
    assert len(head.client.show(job)["attempts"]) == 1
    assert [one["job"] for one in wait(head.pilots, "the pilot")] == [pilot]
    head.said("cancel", str(job), "--grace", "1s")
    head.waits_for(job, "cancelled")
    assert "left in Slurm" not in head.said("down")
    wait(lambda: not head.slurm.queue(), "what is idle to be given back")


def test_down_that_stops_jobs_leaves_nothing_in_slurm(head: Head) -> None:
    head.up("-N", "2", "--idle", "60s")
    jobs = [head.submit("-g", str(CPUS), "--grace", "1s", "--", "sleep", "600") for _ in range(2)]
    for job in jobs:
        head.waits_for(job, "running")
    found = json.loads(head.said("down", "--stop-jobs", "--json"))
    assert (found["stopped_jobs"], found["pilots_left"]) == (True, [])
    wait(lambda: not head.slurm.queue(), "the end of what is given back")


def test_what_slurm_refuses_is_shown(head: Head) -> None:
    refused = head.run("up", "--slurm", "-p", "nope", "-N", "1", "--slots", "1", "--host", "127.0.0.1", "--detach")
    assert refused.returncode == 2
    assert "partition 'nope' of Slurm has no nodes; partitions with nodes: gpu, urgent" in refused.stderr
    head.up("-N", "1", "--", "--licenses=none")
    head.submit("-g", "1", "--", "true")
    words = wait(lambda: head.client.pilots()["refused"], "Slurm's refusal")
    assert "Invalid license specification" in words
    assert "Invalid license specification" in head.said("pilots")
    assert "Invalid license specification" in head.said("status")


def test_without_slurmctld_jobs_go_on_and_it_is_said(head: Head) -> None:
    head.up("-N", "1", "--idle", "60s")
    job = head.submit("-g", "1", "--", "sleep", "600")
    head.waits_for(job, "running")
    ctld = head.slurm.ctld
    assert ctld is not None
    ctld.terminate()  # killed, it would forget the jobs of the last seconds
    ctld.wait(30)
    try:
        wait(lambda: head.client.pilots()["problem"], "that Slurm does not answer", 90.0)
        other = head.submit("-g", "1", "--", "true")
        head.waits_for(other, "finished")
        assert head.state(job) == "running"
        os.kill(head.client.status()["pid"], signal.SIGKILL)
        head.up("-N", "1", "--idle", "60s")  # by what Slurm said at the first start
        head.waits_for(job, "running")
        other_home = str(head.folder / "other")
        refused = head.run("up", "--slurm", "--slots", "1", "-N", "1", "--host", "127.0.0.1", "--home", other_home)
        assert refused.returncode == 1, "nothing is known of this Slurm there"
        assert "`sinfo" in refused.stderr
    finally:
        head.slurm.start_ctld()
    wait(lambda: not head.client.pilots()["problem"], "that it answers again", 90.0)
    assert head.state(job) == "running"
    assert len(head.client.show(job)["attempts"]) == 1


@pytest.mark.timeout(300)
def test_before_its_allocation_ends_a_job_is_told_saves_and_moves(head: Head) -> None:
    """The shortest time limit that Slurm knows: a minute, which is our margin. So it moves as soon as that is known."""
    (head.folder / "saves.py").write_text(SAVES)
    done = head.folder / "done"
    head.up("-N", "1", "--idle", "60s", "--", "--time=2")
    job = head.submit("-g", "1", "--grace", "5s", "--", "python3", "saves.py", str(done))
    head.waits_for(job, "running")
    wait(lambda: len(head.client.show(job)["attempts"]) == 2, "its second attempt", 120.0)
    first = head.client.show(job)["attempts"][0]
    assert (first["reason"], first["exit_code"]) == ("node", 85)
    head.waits_for(job, "running", 120.0)
    done.touch()
    head.waits_for(job, "finished")


def test_what_can_not_be_moved_waits_for_a_pilot_that_lasts(head: Head) -> None:
    head.up("-N", "1", "--idle", "60s", "--", "--time=6")
    first = head.submit("-g", "1", "--", "true")
    head.waits_for(first, "finished")
    (short,) = head.slurm.queue()
    head.slurm.said("scontrol", "update", f"JobId={short}", "TimeLimit=4")
    end = wait(lambda: head.client.nodes()[0]["until_s"], "until when the node is ours")
    wait(lambda: head.client.nodes()[0]["until_s"] < end - 60.0, "that it is ours for less", 30.0)
    busy = head.submit("-g", "1", "--", "sleep", "600")
    head.waits_for(busy, "running")
    never = ("-g", "1", "--on-preempt", "never", "--time-limit")
    too_long = head.submit(*never, "10m", "--", "true")
    job = head.submit(*never, "150s", "--", "sh", "-c", "echo on $GPULOOM_NODE_NAMES")
    assert "A new pilot lasts 6m 00s, which is too short as well" in head.said("why", str(too_long))
    why = head.client.why(job)
    assert (why["code"], why["numbers"]["needs_s"]) == ("nodes_end_too_soon", 150.0)
    assert why["numbers"]["left_s"] < 120.0
    assert head.slurm.queue() == [short], "a job runs there, and no second one may be asked for"
    head.said("cancel", str(busy), "--grace", "1s")
    head.waits_for(job, "finished")
    assert head.slurm.queue() not in ([], [short])
    assert head.state(too_long) == "queued"


def test_inside_an_allocation_its_nodes_are_used(head: Head) -> None:
    slurm = head.slurm
    number = int(slurm.said("sbatch", "--parsable", "-N2", "--output=/dev/null", text="#!/bin/sh\nsleep 600\n"))
    wait(lambda: slurm.state(number) == "RUNNING", "the allocation")
    head.up(SLURM_JOB_ID=str(number), SLURM_JOB_NUM_NODES="2")
    job = head.submit("-g", str(2 * CPUS), "--", "sh", "-c", "exec true")
    head.waits_for(job, "finished")
    assert slurm.queue() == [number]
    assert len([state for state in head.nodes().values() if state == "up"]) == 2
    head.said("down")
    assert slurm.state(number) == "RUNNING", "it is not ours to end"


def test_preempted_pilots_give_their_jobs_to_others(head: Head) -> None:
    done = head.folder / "done"
    (head.folder / "saves.py").write_text(SAVES)
    head.up("-N", "1", "--idle", "60s")
    job = head.submit("-g", "1", "--", "python3", "saves.py", str(done))
    head.waits_for(job, "running")
    (pilot,) = head.slurm.queue()
    (node,) = [name for name, state in head.nodes().items() if state == "up"]
    slurm_node = node.partition("-")[0]
    urgent = ["sbatch", "-p", "urgent", "-w", slurm_node, "--exclusive", "--output=/dev/null", "--wrap", "sleep 20"]
    head.slurm.said(*urgent)
    wait(lambda: head.slurm.state(pilot) in ("PREEMPTED", "CANCELLED", ""), "the preemption")
    wait(lambda: len(head.client.show(job)["attempts"]) == 2 and head.state(job) == "running", "its second attempt")
    assert head.client.show(job)["attempts"][0]["reason"] == "node"
    done.touch()
    head.waits_for(job, "finished")


def test_inside_an_allocation_nothing_else_is_asked_for(head: Head) -> None:
    done = head.run("up", "--slurm", "-N", "1", "--slots", "1", "--host", "127.0.0.1", SLURM_JOB_ID="99")
    assert done.returncode == 2
    assert "this is inside job 99 of Slurm" in done.stderr
