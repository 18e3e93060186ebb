"""Elastic jobs with real processes on CPU slots: they grow and shrink while they run, and lose no saved step."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from real_node import RealNode
from real_scheduler import Real, real
from until import until

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[2] / "examples" / "live" / "elastic.py"
PROGRAM = Path(__file__).parents[1] / "crash_at_resizes.py"


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Real]:
    with real(tmp_path, slots=4) as found:
        shutil.copy(EXAMPLE, found.files)
        yield found


def training(live: Real, steps: int = 400, **fields: Any) -> dict[str, Any]:
    command = [sys.executable, "elastic.py", "--steps", str(steps), "--seconds", "0.05"]
    return {"command": command, "workdir": str(live.files), "elastic": "1-4", **fields}


def submit(live: Real, job: dict[str, Any]) -> int:
    ((number,),) = live.client.submit([job])
    return int(number)


def has(live: Real, job: int, replicas: int) -> None:
    def so() -> bool:
        view = live.client.job(job)
        return view["state"] == "running" and view["replicas"]["now"] == replicas

    until(so, f"job {job} runs with {replicas} replicas", 30.0)


def step_of(live: Real, job: int) -> int:
    return int(live.client.job(job)["progress"].get("step") or 0)


@pytest.mark.parametrize("policy", ["elastic:check_minutes=0.02", "elastic-goodput", "weave"])
def test_it_shrinks_for_a_job_that_comes_and_grows_when_that_ends(live: Real, policy: str) -> None:
    live.up("--policy", policy, "--interval", "0s")
    job = submit(live, training(live, 1000))
    has(live, job, 4)
    until(lambda: step_of(live, job) > 5, "some steps")
    other = submit(live, live.waiting(gpus=2))
    has(live, job, 2)
    live.in_state("running", [other])
    before = step_of(live, job)
    until(lambda: step_of(live, job) > before + 5, "steps with two replicas")
    live.end(other)
    has(live, job, 4)
    before = step_of(live, job)
    until(lambda: step_of(live, job) > before, "steps with four again")
    live.client.cancel([job])
    live.in_state("cancelled", [job])
    found = live.client.show(job)
    if found["attempts"][0]["replicas"] == 1:  # elastic starts it at the size that it asks for, and looks then
        del found["attempts"][0]
    attempts, log = (
        found["attempts"],
        [live.client.log(job, attempt=one["number"]).decode() for one in found["attempts"]],
    )
    assert [one["replicas"] for one in attempts] == [4, 2, 4]
    assert [one["reason"] for one in attempts] == ["resized", "resized", "cancelled"]
    assert [one["saved_by"] for one in attempts[:2]] == ["exit_code", "exit_code"]
    # What was saved is where the next attempt begins: no step is lost, none is done twice.
    begins = [int(text.split("from step ")[1].split()[0]) for text in log]
    assert begins == sorted(begins)
    assert begins[0] < begins[1] < begins[2]
    events = [event for event in found["events"] if event["type"] == "job.resized"]
    told = [(event["data"]["from_replicas"], event["data"]["to_replicas"], event["data"]["why"]) for event in events]
    assert told[-2:] == [(4, 2, "made_room"), (2, 4, "free_gpus")]
    assert events[-2]["data"]["jobs"] == [other]
    costs = {one["attempt"]: one for one in found["resizes"]}
    assert [(costs[one["number"]]["cost_from"], costs[one["number"]]["lost_steps"]) for one in attempts[1:]] == [
        ("steps", 0.0),
        ("steps", 0.0),
    ]
    assert all(0.0 < costs[one["number"]]["cost_s"] < 30.0 for one in attempts[1:])
    view = live.client.job(job)
    assert (view["preemptions"], view["retries_left"]) == (0, 0)
    held = sum(one["held_s"] * one["gpus"] for one in live.client.show(job)["attempts"])
    (row,) = [row for row in live.client.usage(by="name") if row["key"] == "elastic"]
    assert row["gpu_s"] == pytest.approx(held, rel=0.01)
    live.down("--stop-jobs")
    live.check()


def test_under_other_policies_and_with_never_it_keeps_its_size(live: Real) -> None:
    live.up("--policy", "fifo", "--interval", "0s")
    fixed = submit(live, training(live, gpus=2))
    has(live, fixed, 2)
    assert "does not resize" in " ".join(live.client.why(fixed)["sentences"])
    live.run("policy", "set", "elastic-goodput")
    has(live, fixed, 4)
    live.client.cancel([fixed])
    live.in_state("cancelled", [fixed])
    never = submit(live, training(live, on_preempt="never"))
    has(live, never, 4)
    other = submit(live, live.waiting())
    until(lambda: live.client.job(other)["waiting"], "the other waits")
    assert live.client.job(never)["replicas"]["now"] == 4
    assert live.attempts([never])[never][0][0] == 1
    live.down("--stop-jobs")


def test_its_speeds_at_two_sizes_are_learnt(live: Real) -> None:
    live.up("--policy", "elastic-goodput", "--interval", "0s")
    job = submit(live, training(live, 1000, name="learn"))
    has(live, job, 4)
    until(lambda: step_of(live, job) > 40, "some steps")
    other = submit(live, live.waiting(gpus=3))
    has(live, job, 1)
    until(lambda: step_of(live, job) > 120, "more steps")
    live.end(other)
    has(live, job, 4)
    sizes = {one["replicas"]: one for one in live.client.show(job)["sizes"]}
    assert {size: sizes[size]["source"] for size in (1, 2, 4)} == {1: "measured", 2: "usual", 4: "measured"}
    assert sizes[4]["speed"] == pytest.approx(sizes[4]["it_per_s"] / sizes[1]["it_per_s"])
    assert 1.5 < sizes[4]["speed"] < 4.0
    live.down("--stop-jobs")


GANG = """
import os, signal, sys, time
print("replicas", os.environ["GPULOOM_REPLICAS"], "rank", os.environ["GPULOOM_NODE_RANK"], flush=True)
signal.signal(signal.SIGTERM, lambda *_: os._exit(85))
time.sleep(600)
"""


def test_a_node_that_is_lost_takes_its_replicas_and_the_job_goes_on_with_the_rest(live: Real, tmp_path: Path) -> None:
    live.up("--policy", "elastic-goodput", "--interval", "0s")
    (live.files / "gang.py").write_text(GANG)
    node = RealNode(live, tmp_path, slots=2, lease="6s")
    try:
        node.join()
        command = [sys.executable, "gang.py"]
        job = submit(live, {"command": command, "workdir": str(live.files), "elastic": "2-6", "grace": 2})
        has(live, job, 6)
        assert {member["node"] for member in live.client.show(job)["attempts"][-1]["members"]} > {"n1"}
        node.link.cut()
        has(live, job, 4)
        before = live.client.show(job)
        attempt = next(one for one in before["attempts"] if one["replicas"] == 6)
        assert attempt["reason"] in ("node", "lost")
        event = [one["data"] for one in before["events"] if one["type"] == "job.resized"][-1]
        assert (event["from_replicas"], event["to_replicas"], event["why"]) == (6, 4, "node")
        assert (before["job"]["retries_left"], before["spec"]["retries"]) == (0, 0)
        node.link.mend()
        until(lambda: node.seen()["state"] == "up" and not node.seen()["cut"], "the node is back")
        has(live, job, 6)
        live.client.cancel([job])
        live.in_state("cancelled", [job])
    finally:
        node.close()
    live.down("--stop-jobs")


RANKS = """
import os, signal, sys, time
rank, attempt = os.environ["RANK"], os.environ["GPULOOM_ATTEMPT"]
with open(f"{attempt}.{rank}.new", "w") as file:
    file.write(str(os.getpid()))
os.replace(f"{attempt}.{rank}.new", f"{attempt}.{rank}.pid")
def save(*_):
    open(f"{attempt}.{rank}.saved", "w").close()
    os._exit(85)
signal.signal(signal.SIGTERM, save)
time.sleep(600)
"""


def killed_rank(live: Real, job: int, rank: int) -> dict[str, Any]:
    """A process of the job is killed; what its attempt says then, once another one runs."""
    number = int(live.client.job(job)["attempts"])
    mark = live.files / f"{number}.{rank}.pid"
    until(mark.exists, f"rank {rank} is up")
    live.kill(int(mark.read_text()))
    until(lambda: live.client.job(job)["attempts"] > number, "it begins again", 30.0)
    attempts: list[dict[str, Any]] = live.client.show(job)["attempts"]
    return attempts[number - 1]


def test_a_replica_that_is_killed_is_dropped_and_the_others_save_and_go_on(live: Real, tmp_path: Path) -> None:
    live.up("--policy", "elastic-goodput", "--interval", "0s")
    (live.files / "ranks.py").write_text(RANKS)
    command = [sys.executable, "ranks.py"]
    job = submit(live, {"command": command, "workdir": str(live.files), "elastic": "2-6", "per": "gpu", "grace": 5})
    has(live, job, 4)
    for rank in (0, 1, 3):
        until((live.files / f"1.{rank}.pid").exists, f"rank {rank} is up")
    ended = killed_rank(live, job, 2)
    assert (ended["reason"], ended["saved_by"], ended["exit_code"]) == ("resized", "exit_code", None)
    assert ended["message"].endswith("1 replica of 4 failed; the job goes on")
    assert sorted(path.name for path in live.files.glob("1.*.saved")) == ["1.0.saved", "1.1.saved", "1.3.saved"]
    has(live, job, 4)  # its slot is free, so the replacement comes with the same start
    node = RealNode(live, tmp_path, slots=2)
    try:
        node.join()
        has(live, job, 6)
        there = live.client.show(job)["attempts"][-1]
        where = [member["node"] for member in there["members"] for _ in member["gpus"]]
        for rank in range(6):
            until((live.files / f"{there['number']}.{rank}.pid").exists, f"rank {rank} is up")
        ended = killed_rank(live, job, where.index("n1"))
        assert (ended["reason"], ended["saved_by"]) == ("resized", "exit_code")
        assert "1 replica of 6 failed" in ended["message"]
        failed = [one["data"] for one in live.client.show(job)["events"] if one["type"] == "job.replica_failed"]
        assert [one["gpus"][0][0] for one in failed][-1] == "n1"
        view = live.client.job(job)
        assert (view["retries_left"], view["preemptions"]) == (0, 0)
        live.client.cancel([job])
        live.in_state("cancelled", [job])
    finally:
        node.close()
    live.down("--stop-jobs")
    live.check()


def test_killed_at_the_writes_of_resizes_no_replica_is_lost_or_doubled(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(tmp_path), "16", "17"],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert {one["point"]: one["wrong"] for one in found if one["wrong"]} == {}
    assert [one["killed"] for one in found] == [True] * (len(found) - 1) + [False]
    assert len(found) >= 10
    assert found[-1]["sizes"][:4] == [4, 2, 4, 4]
