"""A member of an elastic job in pods that fails is replaced while the others run on."""

from __future__ import annotations

import os
import signal
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
echo "up: member $GPULOOM_MEMBER"
echo $$ > "$AT/pid-$GPULOOM_MEMBER.new"
mv "$AT/pid-$GPULOOM_MEMBER.new" "$AT/pid-$GPULOOM_MEMBER"
trap 'echo told; exit 1' TERM
while ! test -e "$AT/end"; do test -e "$AT/bad-$GPULOOM_MEMBER" && exit 3; sleep 0.05; done
echo done
"""
"""What stands in for torchrun: an agent that runs until the job is done, or it is told to leave, or fails."""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = with_torchrun(tmp_path, TORCHRUN)
    yield world
    world.close()


def running(world: World) -> dict[str, str]:
    """By the index of a pod, its uid."""
    return {
        one["metadata"]["name"].rpartition("-")[2]: one["metadata"]["uid"]
        for one in world.items(POD)
        if one["status"].get("phase") == "Running" and "deletionTimestamp" not in one["metadata"]
    }


def started(world: World, client: Client, size: int = 3) -> tuple[int, dict[str, str]]:
    """An elastic job of so many pods that run."""
    words = str(world.folder / "torchrun"), "train.py"
    job = submit(client, *words, elastic=f"1-{size}", gpus=size, env={"AT": str(world.folder)}, grace="3s")
    until(lambda: phase(client, job) == "running" and len(running(world)) == size, "its pods to run")
    until(lambda: all((world.folder / f"pid-{n}").exists() for n in range(size)), "their processes to run")
    return job, running(world)


def pod_of(world: World, index: str) -> dict[str, Any]:
    (found,) = (one["metadata"] for one in world.items(POD) if one["metadata"]["name"].endswith(f"-{index}"))
    return dict(found)


def kill(world: World, member: int) -> None:
    place = world.folder / f"pid-{member}"
    pid = int(place.read_text())
    place.unlink()
    os.kill(pid, signal.SIGKILL)


def restarts(client: Client, job: int) -> list[tuple[int, int, str]]:
    found = [one["data"] for one in client.events(job=job) if one["type"] == "member.restarted"]
    return [(one["member"], one["times"], one["why"]) for one in found]


def finish(world: World, client: Client, job: int) -> dict[str, Any]:
    (world.folder / "end").touch()
    found = ended(client, job)
    until(lambda: not world.items() and not world.items(VCJOB), "nothing to be left")
    return found


def test_one_that_is_killed_is_replaced_and_the_others_run_on(world: World) -> None:
    world.cluster.add_node("n1", 2)
    world.cluster.add_node("n2", 1)
    client = world.up("--policy", "fifo")
    job, before = started(world, client)
    kill(world, 1)
    until(lambda: len(running(world)) == 3 and running(world)["1"] != before["1"], "another pod to run")
    after = running(world)
    assert (after["0"], after["2"]) == (before["0"], before["2"]), "the others run on"
    until(lambda: restarts(client, job) == [(1, 1, "failed (signal 9)")], "that to be written down")
    assert [one["number"] for one in client.show(job)["attempts"]] == [1], "it is the same attempt"
    (attempt,) = client.show(job)["attempts"]
    assert [(one["restarts"], one["restarted"]) for one in attempt["members"]] == [
        (0, ""), (1, "failed (signal 9)"), (0, ""),
    ]  # fmt: skip

    def said() -> list[str]:
        return [one["message"] for one in world.items(EVENT) if one["reason"] == "MemberRestarted"]

    until(lambda: len(said()) == 1, "the cluster to be told")
    assert said()[0].startswith("member 1 failed (signal 9); a new pod takes its place on n")
    assert pod_of(world, "1")["annotations"]["gpuloom.io/restarts"] == "1"
    assert finish(world, client, job)["state"] == "finished"
    assert client.log(job, member=1).decode() == "up: member 1\nup: member 1\ndone\n"


def test_after_a_resize_its_pods_count_as_never_replaced(world: World) -> None:
    world.cluster.add_node("n1", 3)
    client = world.up("--policy", "elastic-goodput", "--interval", "1s")
    job, _ = started(world, client, 3)
    kill(world, 1)
    until(lambda: restarts(client, job) == [(1, 1, "failed (signal 9)")], "it to be replaced")
    until(lambda: len(running(world)) == 3, "another pod to run")
    before = running(world)
    taker = submit(client, "sleep", "2", gpus=1)
    until(lambda: phase(client, taker) in ("running", "finished"), "the one that needs room to run")
    until(lambda: len(client.show(job)["attempts"]) == 3 and phase(client, job) == "running", "it to grow again")
    until(lambda: len(running(world)) == 3, "its pods to run")
    assert running(world).items() >= {(index, before[index]) for index in "01"}
    until(lambda: "gpuloom.io/restarts" not in pod_of(world, "1")["annotations"], "it to be relabelled")
    assert len(restarts(client, job)) == 1
    assert finish(world, client, job)["state"] == "finished"


@pytest.mark.parametrize("moment", ["at once", "later"])
def test_a_scheduler_that_is_killed_meanwhile_finishes_it(world: World, moment: str) -> None:
    """Killed before it has seen to it, or while the new pod comes."""
    world.cluster.add_node("n1", 2)
    client = world.up("--policy", "fifo")
    job, before = started(world, client, 2)
    kill(world, 1)
    if moment == "later":
        until(lambda: restarts(client, job) != [], "it to be replaced")
    world.kill()
    client = world.up("--policy", "fifo")
    until(lambda: len(running(world)) == 2 and running(world)["1"] != before["1"], "another pod to run")
    assert running(world)["0"] == before["0"]
    until(lambda: restarts(client, job) == [(1, 1, "failed (signal 9)")], "it to be told, once")
    assert [one["number"] for one in client.show(job)["attempts"]] == [1]
    assert finish(world, client, job)["state"] == "finished"


def test_one_that_somebody_deletes_is_replaced(world: World) -> None:
    world.cluster.add_node("n1", 2)
    client = world.up("--policy", "fifo")
    job, before = started(world, client, 2)
    pod = pod_of(world, "1")
    world.api.store.delete(POD, pod["namespace"], pod["name"])
    until(lambda: len(running(world)) == 2 and running(world)["1"] != before["1"], "another pod to run")
    assert running(world)["0"] == before["0"]
    ((member, times, why),) = until(lambda: restarts(client, job), "that to be written down")
    assert (member, times) == (1, 1)
    assert "deleted by somebody else" in why
    assert finish(world, client, job)["state"] == "finished"


def test_one_that_fails_again_and_again_ends_the_attempt(world: World) -> None:
    world.cluster.add_node("n1", 2)
    client = world.up("--policy", "fifo")
    job, before = started(world, client, 2)
    (world.folder / "bad-1").touch()
    first: set[str] = set()

    def thrice() -> bool:
        there = running(world).get("0")
        if there is not None and len(client.show(job)["attempts"]) == 1:  # which may be over soon
            first.add(there)
        return [times for _, times, _ in restarts(client, job)][-1:] == [3]

    until(thrice, "it to be replaced thrice")
    assert first == {before["0"]}
    until(lambda: len(client.show(job)["attempts"]) > 1 or phase(client, job) == "failed", "that to be the end")
    client.cancel([job])
    until(lambda: not world.items() and not world.items(VCJOB), "nothing to be left")


def test_without_the_first_one_it_begins_anew(world: World) -> None:
    """The others meet where that is."""
    world.cluster.add_node("n1", 2)
    client = world.up("--policy", "fifo")
    job, before = started(world, client, 2)
    kill(world, 0)
    until(lambda: len(client.show(job)["attempts"]) > 1, "it to begin anew")
    until(lambda: phase(client, job) == "running" and not before.items() & running(world).items(), "that to run")
    assert restarts(client, job) == []
    assert finish(world, client, job)["state"] == "finished"


def test_cancelled_while_another_pod_comes(world: World) -> None:
    world.cluster.add_node("n1", 2)
    client = world.up("--policy", "fifo")
    job, _ = started(world, client, 2)
    kill(world, 1)
    until(lambda: restarts(client, job) != [], "it to be replaced")
    client.cancel([job])
    assert ended(client, job)["state"] == "cancelled"
    until(lambda: not world.items() and not world.items(VCJOB), "nothing to be left")
