"""Pods that gpuloom binds itself (`--placement bind`): gangs, resizes in place, restarts, as with gates."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fake_kubernetes.cluster import JOB, POD, VCJOB
from gpuloom.executors.kubernetes.kinds import INDEXED, VOLCANO, JobKind
from pods_world import World, ended, phase, submit, with_torchrun
from until import until

pytestmark = pytest.mark.slow
TORCHRUN = """#!/bin/sh
trap 'echo told; exit 1' TERM
while ! test -e "$END"; do sleep 0.05; done
"""


@pytest.fixture(params=[VOLCANO, INDEXED], ids=lambda kind: kind.word)
def world(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[World]:
    kind: JobKind = request.param
    world = with_torchrun(tmp_path, TORCHRUN, kind)
    for name in ("n1", "n2"):
        world.cluster.add_node(name, 2)
    yield world
    world.close()


def nothing_left(world: World) -> None:
    until(lambda: not any(world.items(kind) for kind in (POD, JOB, VCJOB)), "nothing to be left", 60.0)


def test_a_gang_is_bound_as_a_whole(world: World) -> None:
    client = world.up("--placement", "bind")
    first = submit(client, "sleep", "2", gpus=2)
    job = submit(client, "sh", "-c", "echo $GPULOOM_NODE_RANK of $GPULOOM_NODE_COUNT; sleep 1", gpus=4)
    until(lambda: phase(client, job) == "running", "it to run", 30.0)
    assert client.job(first)["state"] == "finished"
    # The first one's pod may still be there.
    bound = [one for one in world.items() if one["metadata"]["labels"]["gpuloom.io/job"] == str(job)]
    assert sorted(one["spec"]["nodeName"] for one in bound) == ["n1", "n2"]
    assert not any(one["spec"].get("schedulingGates") for one in bound)
    assert {one["spec"]["schedulerName"] for one in bound} == {"gpuloom"}
    assert ended(client, job)["state"] == "finished"
    assert sorted(client.log(job, member=rank).decode().strip() for rank in (0, 1)) == ["0 of 2", "1 of 2"]
    nothing_left(world)


def test_it_is_resized_in_place_and_outlives_its_scheduler(world: World) -> None:
    client = world.up("--placement", "bind", "--policy", "elastic-goodput", "--interval", "0s")
    blocker = submit(client, "sleep", "600", gpus=2)
    until(lambda: phase(client, blocker) == "running", "it to run")
    end = world.folder / "end"
    job = submit(client, str(world.folder / "torchrun"), "train.py", elastic="1-4", env={"END": str(end)})

    def running() -> set[str]:
        pods = world.items()
        return {
            one["metadata"]["uid"]
            for one in pods
            if one["status"].get("phase") == "Running" and one["metadata"]["labels"].get("gpuloom.io/job") == str(job)
        }

    until(lambda: phase(client, job) == "running" and len(running()) == 2, "two pods", 30.0)
    before = running()
    client.cancel([blocker])
    until(lambda: len(running()) == 4, "four pods", 30.0)
    assert before < running(), "those that were there go on"
    after = running()
    world.kill()
    client = world.up()  # what is there goes on as it was made
    until(lambda: phase(client, job) == "running", "it to be found")
    assert running() == after
    end.touch()
    assert ended(client, job)["state"] == "finished"
    nothing_left(world)
