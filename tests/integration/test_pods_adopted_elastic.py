"""Jobs that others make in a cluster, and whose size gpuloom changes: their pods come and go, and the others run on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_pods_adopted import indexed, job_named, ours, template

from fake_kubernetes.cluster import JOB, POD, VCJOB
from fake_kubernetes.kinds import BY_PATH
from gpuloom.client import Client
from gpuloom.executors.kubernetes.kinds import INDEXED, VOLCANO, JobKind
from pods_world import World, ended, phase, submit
from until import until

pytestmark = pytest.mark.slow
EVENT = BY_PATH["", "v1", "events"]
ELASTIC = ("--policy", "elastic-goodput", "--interval", "1s")
VC, LED, OWN = "volcano", "led", "indexed"
"""A Volcano Job, one with a master that has no GPU, and an Indexed Job."""


@pytest.fixture(
    params=[(VOLCANO, VC), (VOLCANO, LED), (VOLCANO, OWN), (INDEXED, OWN)], ids=lambda one: f"{one[0].word}-{one[1]}"
)
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[World, str]]:
    """A world, and what somebody makes in it."""
    kind, made = request.param
    yield from _case(tmp_path, kind, made)


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[tuple[World, str]]:
    yield from _case(tmp_path, INDEXED, OWN)


def _case(folder: Path, kind: JobKind, made: str) -> Iterator[tuple[World, str]]:
    world = World(folder, kind=kind)
    yield world, made
    world.close()


def elastic(world: World, made: str, pods: int, sizes: str, **notes: str) -> None:
    """Somebody makes a Job whose pods run until a file is there. Each says when it is told to leave."""
    text = f"trap 'echo told; exit 1' TERM; while ! test -e {world.folder / 'end'}; do sleep 0.05; done; echo done"
    about = {"gpuloom.io/elastic": sizes, **notes}
    if made == OWN:
        world.cluster.create(indexed("ours", pods, 1, text, annotations=about), JOB)
        return
    tasks = [{"name": "worker", "replicas": pods, "template": template(1, text, annotations=about)}]
    if made == LED:
        tasks.insert(0, {"name": "master", "replicas": 1, "template": template(0, f"exec sh -c '{text}'")})
    least = pods + len(tasks) - 1
    spec = {"schedulerName": "default-scheduler", "minAvailable": least, "queue": "default", "tasks": tasks}
    item = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "metadata": {"name": "ours"}, "spec": spec}
    world.cluster.create(item, VCJOB)


def running(world: World) -> dict[str, str]:
    """By number, the uid of each pod of it that runs."""
    return {
        one["metadata"]["name"].removeprefix("ours-").removeprefix("worker-").partition("-")[0]: one["metadata"]["uid"]
        for one in world.items(POD)
        if one["metadata"]["name"].startswith("ours-")
        and "master" not in one["metadata"]["name"]
        and one["status"].get("phase") == "Running"
        and "deletionTimestamp" not in one["metadata"]
    }


def at_size(world: World, client: Client, job: int, size: int) -> dict[str, str]:
    until(
        lambda: phase(client, job) == "running" and len(running(world)) == size, f"job {job} to have {size} pods", 60.0
    )
    return running(world)


def its_job(world: World, made: str) -> dict[str, Any]:
    (found,) = [one for one in world.items(JOB if made == OWN else VCJOB) if one["metadata"]["name"] == "ours"]
    return dict(found)


def replicas(item: dict[str, Any], made: str) -> int:
    spec = item["spec"]
    if made == OWN:
        return int(spec["parallelism"])
    assert spec["minAvailable"] == sum(one["replicas"] for one in spec["tasks"])
    return int(spec["tasks"][-1]["replicas"])


def test_it_grows_and_shrinks_and_the_others_run_on(case: tuple[World, str]) -> None:
    world, made = case
    world.cluster.add_node("n1", 4)
    client = world.up(*ELASTIC)
    first = submit(client, "sleep", "3", gpus=2)
    until(lambda: phase(client, first) == "running", "the first one to run")
    elastic(world, made, 3, "1-4")
    job = job_named(client, "ours")
    assert client.show(job)["spec"]["elastic"] == "1-4"
    two = at_size(world, client, job, 2)
    four = at_size(world, client, job, 4)
    assert two.items() <= four.items(), "those that ran before run on"
    taker = submit(client, "sleep", "2", gpus=2)
    until(lambda: phase(client, taker) == "running", "the one that needs room to run")
    less = at_size(world, client, job, 2)
    assert less == {"0": four["0"], "1": four["1"]}, "the last ones leave"
    assert at_size(world, client, job, 4).items() >= less.items()
    assert replicas(its_job(world, made), made) == 4
    ends = [(one["reason"], one["replicas"]) for one in client.show(job)["attempts"]]
    assert ends == [("resized", 2), ("resized", 4), ("resized", 2), (None, 4)]
    said = [one["message"].partition(";")[0] for one in world.items(EVENT) if one["reason"] == "Resized"]
    assert said[-3:] == ["from 2 to 4 replicas", "from 4 to 2 replicas", "from 2 to 4 replicas"]
    (world.folder / "end").touch()
    assert ended(client, job)["state"] == "finished"
    assert client.log(job).endswith(b"done\n")
    until(lambda: not any(map(ours, [*world.items(), its_job(world, made)])), "nothing of ours to be left", 60.0)
    assert len(list(client.jobs())) == 3, "no pod was taken for a job of its own"


@pytest.mark.parametrize("after", ["stopping", "ended", "starting", "running"])
def test_a_scheduler_that_is_killed_at_a_resize_leaves_no_pod_twice(plain: tuple[World, str], after: str) -> None:
    world, made = plain
    world.cluster.add_node("n1", 3)
    client = world.up(*ELASTIC)
    other = submit(client, "sleep", "1", gpus=2)
    until(lambda: phase(client, other) == "running", "the other one to run")
    elastic(world, made, 1, "1-3")
    job = job_named(client, "ours")
    at_size(world, client, job, 1)
    event, number = f"attempt.{after}", 2 if after in ("starting", "running") else 1
    until(lambda: sum(one["type"] == event for one in client.events(job=job)) == number, f"{event} to be written")
    world.kill()
    client = world.up(*ELASTIC)
    at_size(world, client, job, 3)
    assert len(list(client.jobs())) == 2
    (world.folder / "end").touch()
    assert ended(client, job)["state"] == "finished"
    until(lambda: not any(map(ours, [*world.items(), its_job(world, made)])), "nothing of ours to be left", 60.0)


def test_a_member_that_fails_is_made_anew_while_the_others_run_on(plain: tuple[World, str]) -> None:
    world, made = plain
    world.cluster.add_node("n1", 3)
    client = world.up(*ELASTIC)
    elastic(world, made, 3, "1-3")
    job = job_named(client, "ours")
    three = at_size(world, client, job, 3)
    (lost,) = [one["metadata"]["name"] for one in world.items() if one["metadata"]["uid"] == three["2"]]
    world.cluster.finish(lost, 3)
    until(lambda: running(world).get("2") not in (None, three["2"]), "another third pod to run", 60.0)
    now = running(world)
    assert (now["0"], now["1"]) == (three["0"], three["1"])
    assert len(list(client.jobs())) == 1
    (world.folder / "end").touch()
    assert ended(client, job)["state"] == "finished"


def test_told_to_make_way_it_waits_with_the_pods_that_are_made_anew(plain: tuple[World, str]) -> None:
    world, made = plain
    world.cluster.add_node("n1", 2)
    client = world.up(*ELASTIC)
    elastic(world, made, 2, "1-2")
    job = job_named(client, "ours")
    before = at_size(world, client, job, 2)
    client.set_node("n1", "draining", reason="to be looked at")
    until(lambda: phase(client, job) == "queued" and not running(world), "it to have left", 60.0)
    until(lambda: ours(its_job(world, made)) == set(), "its Job to be given back", 60.0)
    client.set_node("n1", "up")
    after = at_size(world, client, job, 2)
    assert not set(before.values()) & set(after.values())
    client.cancel([job])
    assert ended(client, job)["state"] == "cancelled"
    until(lambda: not world.items(JOB) and not running(world), "its Job to be deleted", 60.0)


def test_where_its_size_can_not_be_changed_it_has_one(plain: tuple[World, str]) -> None:
    world, _ = plain
    world.cluster.add_node("n1", 2)
    client = world.up(*ELASTIC)
    item = indexed("odd", 1, 1, "sleep 600", annotations={"gpuloom.io/elastic": "1-2"})
    item["spec"] |= {"completions": 5}
    world.cluster.create(item, JOB)
    world.cluster.create(indexed("wrong", 1, 1, "sleep 600", annotations={"gpuloom.io/elastic": "2-1"}), JOB)
    jobs = [job_named(client, name) for name in ("odd", "wrong")]
    assert [client.show(job)["spec"]["elastic"] for job in jobs] == [None, None]

    def said() -> list[str]:
        return sorted(one["message"] for one in world.items(EVENT) if one["reason"] == "BadAnnotation")

    until(lambda: len(said()) == 2, "both to be told", 30.0)
    assert "an Indexed Job with as many completions as pods" in said()[0]
    assert "write 1-2" in said()[1]
