"""Jobs as Indexed Jobs of Kubernetes itself: gangs, resizes, failures and restarts, in a cluster without Volcano."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fake_kubernetes.cluster import JOB, POD, VCJOB
from fake_kubernetes.kinds import BY_PATH
from fake_kubernetes.server import Fault
from gpuloom.client import Client
from gpuloom.executors.kubernetes.kinds import INDEXED
from pods_world import World, ended, phase, submit, with_torchrun
from real_scheduler import PROGRAM
from until import until

pytestmark = pytest.mark.slow
SERVICE, SECRET = BY_PATH["", "v1", "services"], BY_PATH["", "v1", "secrets"]
TORCHRUN = """#!/bin/sh
echo "up $GPULOOM_ATTEMPT: member $GPULOOM_MEMBER of $GPULOOM_NODE_COUNT: $*"
trap 'echo told; exit 1' TERM
while ! test -e "$END"; do test -e "$END-$GPULOOM_MEMBER" && rm "$END-$GPULOOM_MEMBER" && exit 3; sleep 0.05; done
echo done
"""
"""What stands in for torchrun: an agent that runs until the job is done, fails when asked to, or is told to leave."""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = with_torchrun(tmp_path, TORCHRUN, INDEXED)
    yield world
    world.close()


def nothing_left(world: World) -> None:
    kinds = (POD, JOB, SERVICE, SECRET)
    until(lambda: not any(world.items(kind) for kind in kinds), "nothing to be left", 60.0)


def running(world: World) -> dict[int, str]:
    """By rank, the uid of each pod that runs."""
    return {
        int(one["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"]): one["metadata"]["uid"]
        for one in world.items()
        if one["status"].get("phase") == "Running" and "deletionTimestamp" not in one["metadata"]
    }


def elastic(world: World, client: Client, sizes: str, **more: Any) -> int:
    end = {"END": str(world.folder / "end")}
    return submit(client, str(world.folder / "torchrun"), "train.py", elastic=sizes, env=end, **more)


def of_size(world: World, client: Client, job: int, size: int) -> dict[int, str]:
    until(lambda: phase(client, job) == "running" and len(running(world)) == size, f"job {job} to have {size} pods")
    return running(world)


def test_a_gang_of_unlike_members_from_submission_to_its_end(world: World) -> None:
    """A cluster without Volcano is found out; members of 2 GPUs and one of 1 are two Jobs, which come and go as one."""
    world.kind = None
    world.api.faults.append(Fault(lambda one: "volcano.sh" in one.path, 404, {"message": "not found"}, times=None))
    for name, gpus in (("n1", 2), ("n2", 1), ("n3", 2)):
        world.cluster.add_node(name, gpus)
    client = world.up()
    show = "echo $GPULOOM_NODE_RANK of $GPULOOM_NODE_COUNT at $MASTER_ADDR with $GPULOOM_GPUS, $TOKEN; sleep 1"
    job = submit(client, "sh", "-c", show, gpus=5, env={"TOKEN": "s3cret"})
    until(lambda: len([one for one in world.items() if one["status"]["phase"] == "Running"]) == 3, "its pods to run")
    made = {one["metadata"]["name"]: one for one in world.items(JOB)}
    first = min(made, key=len)
    assert {name: one["spec"]["parallelism"] for name, one in made.items()} == {first: 2, f"{first}-g1": 1}
    assert "s3cret" not in json.dumps([*made.values(), *world.items()])
    assert [one["metadata"]["name"] for one in world.items(SERVICE)] == [first]
    where = {one["spec"]["nodeName"]: (one["spec"]["hostname"], one["spec"]["subdomain"]) for one in world.items()}
    assert where == {"n1": (f"{first}-0", first), "n2": (f"{first}-g1-0", first), "n3": (f"{first}-1", first)}
    assert ended(client, job)["state"] == "finished"
    said = [client.log(job, member=rank).decode() for rank in range(3)]
    assert said == [f"{rank} of 3 at {first}-0.{first} with {gpus}, s3cret\n" for rank, gpus in enumerate((2, 2, 1))]
    nothing_left(world)
    assert not world.items(VCJOB)
    assert json.loads((world.home / "kubernetes.json").read_text())["jobs"] == "indexed"


def test_pods_come_and_go_and_the_others_run_on(world: World) -> None:
    world.cluster.add_node("n1", 4)
    client = world.up("--policy", "elastic-goodput", "--interval", "1s")
    other = submit(client, "sleep", "2", gpus=2)
    until(lambda: phase(client, other) == "running", "the other one to run")
    job = elastic(world, client, "1-4")
    until(lambda: phase(client, job) == "running", "it to run")
    four = of_size(world, client, job, 4)
    taker = submit(client, "sleep", "2", gpus=2)
    until(lambda: phase(client, taker) == "running", "the one that needs room to run")
    ends = [(one["reason"], one["replicas"]) for one in client.show(job)["attempts"]]
    assert ends == [("resized", 2), ("resized", 4), (None, 2)]
    again = of_size(world, client, job, 4)
    assert {rank: again[rank] for rank in (0, 1)} == {rank: four[rank] for rank in (0, 1)}, "the last ones leave"
    assert not again.keys() ^ four.keys()
    assert [one["metadata"]["labels"]["gpuloom.io/job"] for one in world.items(JOB)] == [str(job)], "it is one Job"
    (world.folder / "end").touch()
    assert ended(client, job)["state"] == "finished"
    nothing_left(world)


@pytest.mark.parametrize("slow", [False, True])
def test_a_failed_pod_is_replaced_while_the_others_run(world: World, slow: bool) -> None:
    """slow: Kubernetes has made another pod before the end of the first one is seen to: that waits at its gate."""
    world.machines.indexed.back_off_s = 0.1 if slow else 5.0
    world.cluster.add_node("n1", 3)
    client = world.up("--policy", "elastic-goodput", "--interval", "1s")
    job = elastic(world, client, "1-3")
    before = of_size(world, client, job, 3)
    (world.folder / "end-1").touch()
    until(lambda: len(running(world)) == 3 and running(world)[1] != before[1], "another one to run", 60.0)
    after = running(world)
    assert (after[0], after[2]) == (before[0], before[2]), "the others run on"
    told = client.show(job)["attempts"]
    assert [one["reason"] for one in told] == [None], "it is one attempt"
    assert [one["data"]["member"] for one in client.events(job=job) if one["type"] == "member.restarted"] == [1]
    (world.folder / "end").touch()
    assert ended(client, job)["state"] == "finished"
    nothing_left(world)


def test_a_member_that_fails_ends_a_gang_and_nothing_runs_twice(world: World, tmp_path: Path) -> None:
    world.machines.indexed.back_off_s = 0.05
    for name in ("n1", "n2"):
        world.cluster.add_node(name, 1)
    client = world.up()
    fails = f"echo $GPULOOM_NODE_RANK >> {tmp_path}/ran; test $GPULOOM_NODE_RANK = 0 && exec sleep 600; exit 7"
    job = submit(client, "sh", "-c", fails, gpus=2, grace="1s")
    assert (ended(client, job)["state"], client.job(job)["exit_code"]) == ("failed", 7)
    nothing_left(world)
    assert sorted((tmp_path / "ran").read_text().split()) == ["0", "1"], "what Kubernetes makes anew waits at its gate"


@pytest.mark.parametrize("when", ["made", "begun", "running"])
def test_a_killed_scheduler_goes_on_with_its_jobs(world: World, when: str, tmp_path: Path) -> None:
    world.cluster.add_node("n1", 2)
    world.cluster.add_node("n2", 1)
    if when == "made":  # the Service can't be made, so that its first Job stays suspended
        world.api.faults.append(
            Fault(
                lambda one: one.method == "POST" and one.path.endswith("/services"), 500, {"message": "no"}, times=None
            )
        )
    client = world.up()
    world.machines.paused = when == "begun"
    job = submit(client, "sh", "-c", f"echo x >> {tmp_path}/ran; sleep 2", gpus=3)
    until(lambda: world.items(JOB), "its Job to be made")
    if when == "begun":
        until(lambda: len(world.items(JOB)) == 2, "the second one to be made")
    if when == "running":
        until(lambda: len(running(world)) and phase(client, job) == "running", "it to run")
    world.kill()
    world.api.faults.clear()
    world.machines.paused = False
    client = world.up()
    assert ended(client, job)["state"] == "finished"
    assert (tmp_path / "ran").read_text() == "x\nx\n"
    assert len(client.show(job)["attempts"]) == 1
    nothing_left(world)


def test_what_it_needs_is_refused(world: World) -> None:
    for name in ("n1", "n2"):
        world.cluster.add_node(name, 1)
    world.api.faults.append(
        Fault(
            lambda one: one.method == "POST" and one.path.endswith("/services"),
            403,
            {"message": 'services is forbidden: User "ann" cannot create'},
            times=None,
        )
    )
    client = world.up()
    job = submit(client, "true", gpus=2)
    until(lambda: "cannot create" in json.dumps(client.show(job)), "the reason to be told")
    client.cancel([job])
    assert ended(client, job)["state"] == "cancelled"
    nothing_left(world)


def test_a_deleted_job_begins_anew(world: World) -> None:
    world.cluster.add_node("n1", 1)
    client = world.up()
    job = submit(client, "sh", "-c", "test $GPULOOM_ATTEMPT = 2 || sleep 600", grace="1s")
    until(lambda: running(world), "it to run")
    (made,) = world.items(JOB)
    about = made["metadata"]
    world.api.store.delete(JOB, about["namespace"], about["name"], {"propagationPolicy": "Background"})
    assert ended(client, job)["state"] == "finished"
    assert [one["reason"] for one in client.show(job)["attempts"]] == ["node", "finished"]
    nothing_left(world)


def test_a_home_keeps_its_kind(world: World) -> None:
    world.cluster.add_node("n1", 1)
    client = world.up()
    job = submit(client, "true")
    assert ended(client, job)["state"] == "finished"
    world.kill()
    up = [*PROGRAM, "up", "--executor", "kubernetes", "--kubeconfig", str(world.config), "--home", str(world.home)]
    other = subprocess.run([*up, "--job-kind", "volcano"], capture_output=True, text=True)
    assert other.returncode == 2
    assert "are Jobs: for --job-kind volcano give another --home" in other.stderr
    world.kind = None
    client = world.up()
    assert ended(client, submit(client, "true"))["state"] == "finished"
    assert not world.items(VCJOB), "without the option it goes on with what it has"
    nothing_left(world)
