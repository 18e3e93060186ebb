"""Elastic jobs as pods: a resize adds pods to a Volcano Job or takes the last ones away, and the others run on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fake_kubernetes.cluster import POD, VCJOB
from fake_kubernetes.kinds import BY_PATH
from gpuloom.client import Client
from pods_world import World, ended, phase, submit, with_torchrun
from until import until

pytestmark = pytest.mark.slow
EVENT = BY_PATH["", "v1", "events"]
TORCHRUN = """#!/bin/sh
echo "up $GPULOOM_ATTEMPT: member $GPULOOM_MEMBER of $GPULOOM_NODE_COUNT: $*"
trap 'echo told; exit 1' TERM
while ! test -e "$END"; do sleep 0.05; done
echo done
"""
"""What stands in for torchrun: an agent that runs until the job is done, or it is told to leave."""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = with_torchrun(tmp_path, TORCHRUN)
    yield world
    world.close()


def elastic(world: World, client: Client, sizes: str, **more: Any) -> int:
    end = {"END": str(world.folder / "end")}
    return submit(client, str(world.folder / "torchrun"), "train.py", elastic=sizes, env=end, **more)


def pods_of(world: World, job: int) -> dict[str, str]:
    """By name, the uid of each pod that runs."""
    return {
        one["metadata"]["name"].rpartition("-")[2]: one["metadata"]["uid"]
        for one in world.items(POD)
        if one["metadata"]["labels"].get("gpuloom.io/job") == str(job)
        and one["status"].get("phase") == "Running"
        and "deletionTimestamp" not in one["metadata"]
    }


def at_size(world: World, client: Client, job: int, size: int) -> dict[str, str]:
    until(
        lambda: phase(client, job) == "running" and len(pods_of(world, job)) == size, f"job {job} to have {size} pods"
    )
    return pods_of(world, job)


def test_pods_come_and_go_and_the_others_run_on(world: World) -> None:
    world.cluster.add_node("n1", 4)
    client = world.up("--policy", "elastic-goodput", "--interval", "1s")
    other = submit(client, "sleep", "2", gpus=2)
    until(lambda: phase(client, other) == "running", "the other one to run")
    job = elastic(world, client, "1-4")
    two = at_size(world, client, job, 2)
    four = at_size(world, client, job, 4)
    assert two.items() <= four.items(), "those that ran before run on"
    taker = submit(client, "sleep", "2", gpus=2)
    until(lambda: phase(client, taker) == "running", "the one that needs room to run")
    less = at_size(world, client, job, 2)
    assert less == {"0": four["0"], "1": four["1"]}, "the last ones leave"
    assert at_size(world, client, job, 4).items() >= less.items()
    made = world.items(VCJOB)
    assert [one["metadata"]["labels"]["gpuloom.io/job"] for one in made] == [str(job)], "it is one Volcano Job"
    assert made[0]["spec"]["tasks"][0]["replicas"] == made[0]["spec"]["minAvailable"] == 4
    ends = [(one["reason"], one["replicas"], one["saved"]) for one in client.show(job)["attempts"]]
    assert ends == [("resized", 2, True), ("resized", 4, True), ("resized", 2, True), (None, 4, False)]
    said = [(one["reason"], one["message"].partition(";")[0]) for one in world.items(EVENT)]
    assert [text for reason, text in said if reason == "Resized"] == [
        "from 2 to 4 replicas",
        "from 4 to 2 replicas",
        "from 2 to 4 replicas",
    ]
    (world.folder / "end").touch()
    assert ended(client, job)["state"] == "finished"
    until(lambda: not world.items() and not world.items(VCJOB), "nothing to be left")
    first, last = client.log(job, attempt=1).decode(), client.log(job).decode()
    assert "up 1: member 0 of 2: --nproc_per_node=1" in first
    assert "--nnodes=1:4" in first
    assert "--rdzv_backend=c10d" in first
    assert last == "done\n", "what a pod prints is the log of the attempt in which it does"


@pytest.mark.parametrize("after", ["stopping", "ended", "starting", "running"])
def test_a_scheduler_that_is_killed_at_a_resize_leaves_no_pod_twice(world: World, after: str) -> None:
    """Whatever was written last: the next one goes on with its pods, or has the job begin anew."""
    world.cluster.add_node("n1", 3)
    client = world.up("--policy", "elastic-goodput", "--interval", "1s")
    other = submit(client, "sleep", "1", gpus=2)
    until(lambda: phase(client, other) == "running", "the other one to run")
    job = elastic(world, client, "1-3", grace="2s")
    at_size(world, client, job, 1)
    event, number = f"attempt.{after}", 2 if after in ("starting", "running") else 1

    def written() -> bool:
        return sum(one["type"] == event for one in client.events(job=job)) == number

    until(written, f"{event} to be written")
    world.kill()
    client = world.up("--policy", "elastic-goodput", "--interval", "1s")
    at_size(world, client, job, 3)
    alive = [one for one in world.items(POD) if one["status"]["phase"] == "Running"]
    until(lambda: len(world.items(VCJOB)) == 1, "one Volcano Job to be left")
    assert len({one["metadata"]["name"] for one in alive}) == len(alive)
    (world.folder / "end").touch()
    assert ended(client, job)["state"] == "finished"
    until(lambda: not world.items() and not world.items(VCJOB), "nothing to be left")


def test_cancelled_while_the_last_ones_leave(world: World) -> None:
    place = world.folder / "torchrun"
    place.write_text(TORCHRUN.replace("echo told; exit 1", "echo told"))  # takes the whole grace period
    world.cluster.add_node("n1", 2)
    client = world.up("--policy", "elastic-goodput", "--interval", "1s")
    job = elastic(world, client, "1-2", grace="3s")
    at_size(world, client, job, 2)
    submit(client, "sleep", "600", gpus=1)
    until(lambda: any("deletionTimestamp" in one["metadata"] for one in world.items()), "the last one to leave")
    client.cancel([job])
    assert ended(client, job)["state"] == "cancelled"
    until(lambda: not pods_of(world, job) and len(world.items(VCJOB)) == 1, "all of its pods to end", 60.0)
    assert any(one["reason"] == "Resized" for one in world.items(EVENT))


def test_where_the_first_member_has_to_leave_it_begins_anew(world: World) -> None:
    for name in ("n1", "n2"):
        world.cluster.add_node(name, 1)
    client = world.up("--policy", "elastic-goodput", "--interval", "1s")
    job = elastic(world, client, "1-2", grace="2s")
    two = at_size(world, client, job, 2)
    first = next(one["spec"]["nodeName"] for one in world.items() if one["metadata"]["name"].endswith("-0"))
    client.set_node(first, "draining")
    until(
        lambda: len(pods_of(world, job)) == 1 and two["0"] not in pods_of(world, job).values(), "it to go on elsewhere"
    )
    (world.folder / "end").touch()
    assert ended(client, job)["state"] == "finished"
    until(lambda: not world.items() and not world.items(VCJOB), "nothing to be left")
