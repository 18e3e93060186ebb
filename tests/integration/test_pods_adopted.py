"""Jobs that others make in a cluster: pods that wait at our gate, or for a scheduler of our name, are scheduled too."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fake_kubernetes.cluster import JOB, POD, VCJOB, owner
from fake_kubernetes.cluster import pod as pod_of
from fake_kubernetes.kinds import BY_PATH
from gpuloom.client import Client
from pods_world import World, ended, phase, submit
from real_scheduler import PROGRAM
from until import until

pytestmark = pytest.mark.slow
GATE = [{"name": "gpuloom.io/queue"}]
EVENT = BY_PATH["", "v1", "events"]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    world.cluster.add_node("n1", 4)
    yield world
    world.close()


def made(name: str, gpus: int = 1, *command: str, **more: Any) -> dict[str, Any]:
    """A pod as somebody writes it."""
    item = pod_of(name, gpus, **more)
    item["spec"]["containers"][0] |= {"name": "train", "command": ["sh", "-c", *command] if command else ["true"]}
    item["spec"].setdefault("terminationGracePeriodSeconds", 5)
    return item


def template(gpus: int, command: str, **more: Any) -> dict[str, Any]:
    item = made("", gpus, command, **more)
    del item["metadata"]["name"]
    item["spec"] |= {"restartPolicy": "Never", "schedulingGates": list(GATE)}
    return {"metadata": item["metadata"], "spec": item["spec"]}


def indexed(name: str, pods: int, gpus: int, command: str, **more: Any) -> dict[str, Any]:
    spec = {"completionMode": "Indexed", "completions": pods, "parallelism": pods, "backoffLimit": 6}
    spec["template"] = template(gpus, command, **more)
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec}


def volcano(name: str, pods: dict[str, Any], scheduler: str) -> dict[str, Any]:
    """A Volcano Job of two workers. pods: their template."""
    task = {"name": "worker", "replicas": 2, "minAvailable": 2, "template": pods}
    spec = {"schedulerName": scheduler, "minAvailable": 2, "queue": "default", "tasks": [task]}
    return {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "metadata": {"name": name}, "spec": spec}


def job_named(client: Client, name: str) -> int:
    """The number of the job that stands for it, once there is one."""
    found: list[int] = []

    def there() -> bool:
        found[:] = [one["id"] for one in client.jobs() if one["name"] == name]
        return bool(found)

    until(there, f"a job {name}", 30.0)
    return found[0]


def ours(item: dict[str, Any]) -> set[str]:
    """What is left on an object that only gpuloom writes."""
    about = item["metadata"]
    words = {*(about.get("labels") or {}), *(about.get("annotations") or {}), *(about.get("finalizers") or ())}
    return words & {f"gpuloom.io/{word}" for word in ("home", "run", "adopted", "members", "rank", "hold", "end")}


def pods(world: World) -> dict[str, dict[str, Any]]:
    return {one["metadata"]["name"]: one for one in world.items()}


@pytest.mark.parametrize("by_name", [False, True])
def test_a_pod_waits_its_turn_runs_and_is_given_back(world: World, by_name: bool) -> None:
    client = world.up()
    first = submit(client, "sleep", "3", gpus=4)
    until(lambda: phase(client, first) == "running", "the first one to run")
    asks: dict[str, Any] = {"schedulerName": "gpuloom"} if by_name else {"schedulingGates": list(GATE)}
    notes = {"gpuloom.io/estimate": "1h", "gpuloom.io/user": "ada", "gpuloom.io/model": "bert"}
    world.cluster.create(made("hand-made", 2, "echo $HOSTNAME ran; exit 3", annotations=notes, **asks))
    job = job_named(client, "hand-made")
    shown = client.show(job)
    view = shown["job"]
    assert (view["user"], view["gpus"], shown["launcher"], view["state"]) == ("ada", 2, "pods", "queued")
    assert (view["estimate_s"], shown["spec"]["model"], shown["spec"]["launcher"]) == (3600.0, "bert", None)
    assert "GPU" in client.why(job)["sentences"][0]
    told = subprocess.run([*PROGRAM, "show", str(job), "--home", str(world.home)], capture_output=True, text=True)
    assert "made by:" in told.stdout
    assert pods(world)["hand-made"]["spec"].get("nodeName") is None
    assert ended(client, first)["state"] == "finished"
    found = ended(client, job)
    assert (found["state"], found["exit_code"], found["attempts"]) == ("failed", 3, 1)
    assert client.log(job).strip().endswith(b"ran")
    until(lambda: not ours(pods(world)["hand-made"]), "nothing of ours to be left on it")
    assert pods(world)["hand-made"]["spec"]["nodeName"] == "n1", "it is its maker's to delete"


def test_an_indexed_job_starts_as_a_whole_and_begins_anew_when_its_controller_says_so(world: World) -> None:
    world.cluster.add_node("n2", 4)
    client = world.up()
    end = world.folder / "end"
    world.cluster.create(indexed("gang", 4, 2, f"test -e {end} && exit 0; test $HOSTNAME; sleep 1; exit 4"), JOB)
    job = job_named(client, "gang")
    until(lambda: phase(client, job) == "running", "it to run")
    assert client.job(job)["gpus"] == 8
    assert len(client.show(job)["attempts"][0]["members"]) == 4
    until(lambda: client.job(job)["state"] == "failed", "its first run to fail", 30.0)
    end.touch()
    until(lambda: client.job(job)["state"] == "finished", "what its controller has made anew to run", 60.0)
    assert client.job(job)["attempts"] >= 2
    until(lambda: world.items(JOB)[0]["status"].get("succeeded") == 4, "all to have succeeded", 30.0)
    until(lambda: not any(map(ours, world.items())), "nothing of ours to be left")


def test_pods_that_come_later_are_jobs_of_their_own(world: World) -> None:
    """Its owner scales it up, and one of its first pods fails: the others run on, and each new pod has its turn."""
    client = world.up()
    end = world.folder / "end"
    text = f"while ! test -e {end}; do test -e {end}-$INDEX && rm {end}-$INDEX && exit 3; sleep 0.05; done"
    item = indexed("scaled", 2, 1, text)
    where = {"fieldRef": {"fieldPath": "metadata.annotations['batch.kubernetes.io/job-completion-index']"}}
    item["spec"]["template"]["spec"]["containers"][0]["env"] = [{"name": "INDEX", "valueFrom": where}]
    world.cluster.create(item, JOB)
    job = job_named(client, "scaled")
    until(lambda: phase(client, job) == "running", "it to run")
    first = {one["metadata"]["uid"] for one in world.items()}
    world.cluster.change("scaled", JOB, completions=3, parallelism=3)
    until(lambda: len(list(client.jobs())) == 2, "the third pod to be a job", 60.0)
    (world.folder / "end-1").touch()
    until(lambda: len(list(client.jobs())) == 3, "what comes in the place of the second one to be a job", 60.0)

    def run() -> list[str]:
        return sorted(one["metadata"]["uid"] for one in world.items() if one["status"].get("phase") == "Running")

    until(lambda: len(run()) == 3, "three to run", 30.0)
    assert len(first & set(run())) == 1
    assert phase(client, job) == "running"
    end.touch()
    assert ended(client, job)["state"] == "failed", "one of its pods has"
    others = [one["id"] for one in client.jobs() if one["id"] != job]
    assert [ended(client, one)["state"] for one in others] == ["finished"] * 2
    until(lambda: world.items(JOB)[0]["status"].get("succeeded") == 3, "all to have succeeded", 30.0)
    until(lambda: not any(map(ours, world.items())), "nothing of ours to be left")


def test_pods_that_are_to_be_apart(world: World) -> None:
    client = world.up()
    world.cluster.create(indexed("tasks", 6, 1, "sleep 0.2", annotations={"gpuloom.io/apart": "true"}), JOB)
    until(lambda: len([one for one in client.jobs() if one["state"] == "finished"]) == 6, "all to run", 60.0)
    assert len(list(client.jobs())) == 6


def test_who_is_taken_away_as_the_work_is_done_has_finished(world: World) -> None:
    client = world.up()
    world.cluster.create(volcano("vc", template(1, "sleep 600"), "default-scheduler"), VCJOB)
    job = job_named(client, "vc")
    until(lambda: phase(client, job) == "running", "it to run")
    world.cluster.change("vc", VCJOB, status=True, state={"phase": "Completed"})
    for name in pods(world):
        world.api.store.delete(POD, "default", name, {"gracePeriodSeconds": 1})
    assert ended(client, job)["state"] == "finished"


def test_members_end_when_they_like(world: World) -> None:
    """The first one's good end hurries nobody, as it would in a gang of gpuloom's own."""
    client = world.up()
    slow = 'case "$HOSTNAME" in *) sleep $(( $INDEX * 4 ));; esac; echo done'
    item = indexed("uneven", 2, 1, slow)
    where = {"fieldRef": {"fieldPath": "metadata.annotations['batch.kubernetes.io/job-completion-index']"}}
    item["spec"]["template"]["spec"]["containers"][0]["env"] = [{"name": "INDEX", "valueFrom": where}]
    item["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 1
    world.cluster.create(item, JOB)
    job = job_named(client, "uneven")
    assert ended(client, job)["state"] == "finished"
    until(lambda: world.items(JOB)[0]["status"].get("succeeded") == 2, "both to have succeeded", 30.0)


def test_a_volcano_job(world: World) -> None:
    client = world.up()
    pods_of = template(2, "sleep 1; echo here")
    del pods_of["spec"]["schedulingGates"]
    world.cluster.create(volcano("vc", pods_of, "gpuloom"), VCJOB)
    job = job_named(client, "vc")
    assert ended(client, job)["state"] == "finished"
    assert client.job(job)["user"] == "default", "its queue"


def test_who_cancels_it_has_it_deleted(world: World) -> None:
    client = world.up()
    for name in ("runs", "waits"):
        world.cluster.create(indexed(name, 1, 4, "sleep 600"), JOB)
    first, second = job_named(client, "runs"), job_named(client, "waits")
    until(lambda: "running" in (phase(client, first), phase(client, second)), "one to run")
    client.cancel([first, second])
    until(lambda: not world.items() and not world.items(JOB), "both to be gone", 60.0)
    assert {phase(client, first), phase(client, second)} == {"cancelled"}
    with pytest.raises(Exception, match="make its pods anew"):
        client.requeue([first])


def test_what_is_deleted_leaves_the_queue(world: World) -> None:
    client = world.up()
    blocker = submit(client, "sleep", "600", gpus=4)
    until(lambda: phase(client, blocker) == "running", "it to run")
    world.cluster.create(made("gone", 1, schedulingGates=list(GATE)))
    job = job_named(client, "gone")
    client.update([job], {"priority": 5})
    assert client.job(job)["priority"] == 5
    with pytest.raises(Exception, match="gpus can't be changed here"):
        client.update([job], {"gpus": 2})
    world.cluster.delete("gone")
    until(lambda: phase(client, job) == "cancelled", "it to leave the queue", 30.0)
    assert client.job(job)["message"] == "its pods were deleted"


def test_it_makes_way_where_it_says_that_it_may(world: World) -> None:
    client = world.up("--policy", "srtf", "--interval", "0s")
    notes = {"gpuloom.io/on-preempt": "checkpoint", "gpuloom.io/estimate": "10h"}
    end = world.folder / "end"
    text = f"trap 'echo told; exit 85' TERM; while ! test -e {end}; do sleep 0.05; done"
    world.cluster.create(indexed("long", 1, 4, text, annotations=notes), JOB)
    long = job_named(client, "long")
    until(lambda: phase(client, long) == "running", "it to run")
    short = submit(client, "sleep", "0.5", gpus=4, estimate="1s")
    assert ended(client, short)["state"] == "finished"
    end.touch()
    until(lambda: client.job(long)["state"] == "finished", "it to go on and end", 60.0)
    assert [one["reason"] for one in client.show(long)["attempts"]][:1] == ["preempted"]


def test_a_scheduler_that_is_killed_loses_none_and_runs_none_twice(world: World) -> None:
    client = world.up()
    ran = world.folder / "ran"
    world.cluster.create(indexed("kept", 2, 2, f"echo x >> {ran}; sleep 2"), JOB)
    world.cluster.create(made("waits", 4, f"echo x >> {ran}", schedulingGates=list(GATE)))
    first, second = job_named(client, "kept"), job_named(client, "waits")
    for _ in range(3):
        world.kill()
        client = world.up()
    assert ended(client, first)["state"] == ended(client, second)["state"] == "finished"
    assert ran.read_text().count("x") == 3
    assert len(list(client.jobs())) == 2
    until(lambda: not any(map(ours, world.items())), "nothing of ours to be left")


def test_others_gates_come_first_and_pods_without_gpus_do_not_wait(world: World) -> None:
    client = world.up()
    both = [{"name": "kueue.x-k8s.io/admission"}, *GATE]
    world.cluster.create(made("queued", 1, "true", schedulingGates=both, labels={"kueue.x-k8s.io/queue-name": "lab"}))
    launcher = made("launcher", 0, "true", schedulingGates=list(GATE))
    launcher["spec"]["containers"][0]["resources"] = {}
    world.cluster.create(launcher)
    stuck = made("stuck", 0, "true", schedulerName="gpuloom")
    stuck["spec"]["containers"][0]["resources"] = {}
    world.cluster.create(stuck)
    until(lambda: pods(world)["launcher"]["status"].get("phase") == "Succeeded", "the launcher to run")
    said = {one["involvedObject"]["name"]: one["reason"] for one in world.items(EVENT)}
    assert said == {"stuck": "NoGpus"}
    assert not list(client.jobs())
    world.cluster.change("queued", schedulingGates=list(GATE))
    job = job_named(client, "queued")
    assert ended(client, job)["state"] == "finished"
    assert client.job(job)["user"] == "lab"


def test_pods_of_an_unknown_owner_are_one_job_once_no_more_come(world: World) -> None:
    client = world.up()
    holder = world.cluster.create(
        made("holder", 0, "sleep 600")
    )  # an owner that is there: else they would be collected
    owners = owner("PyTorchJob", holder)
    for number in range(2):
        item = made(f"trainer-{number}", 1, "true", schedulingGates=list(GATE), ownerReferences=owners)
        world.cluster.create(item)
    job = job_named(client, "holder")
    found = ended(client, job)
    assert (found["state"], found["gpus"]) == ("finished", 2)


def test_why_it_waits_and_what_counts_for_nothing_are_events(world: World) -> None:
    client = world.up()
    blocker = submit(client, "sleep", "600", gpus=4)
    until(lambda: phase(client, blocker) == "running", "it to run")
    wrong = {"gpuloom.io/on-preempt": "freeze", "gpuloom.io/gpu-types": "A100-80GB, ???"}
    world.cluster.create(made("asks", 1, schedulingGates=list(GATE), annotations=wrong))
    job = job_named(client, "asks")
    assert client.job(job)["gpu_types"] == ["A100-80GB"]

    def events() -> dict[str, str]:
        return {one["reason"]: one["message"] for one in world.items(EVENT) if one["involvedObject"]["name"] == "asks"}

    until(lambda: {"Waits", "BadAnnotation"} <= events().keys(), "both to be said", 30.0)
    assert f"`gpuloom why {job}`" in events()["Waits"]
    assert len([one for one in world.items(EVENT) if one["reason"] == "BadAnnotation"]) == 2
    client.cancel([blocker])
    assert ended(client, job)["state"] == "finished"
    assert events()["Placed"] == f"gpuloom lets it go to node n1 (`gpuloom show {job}`)"


def test_of_two_homes_one_takes_it(world: World, tmp_path: Path) -> None:
    clients = [world.up()]
    other = World.__new__(World)
    other.__dict__ = {**world.__dict__, "home": tmp_path / "other", "process": None, "clients": []}
    clients.append(other.up())
    try:
        ran = tmp_path / "ran"
        for number in range(3):
            item = made(f"one-{number}", 1, f"echo x >> {ran}; sleep 0.3", schedulingGates=list(GATE))
            world.cluster.create(item)
        until(lambda: all(pod["status"].get("phase") == "Succeeded" for pod in world.items()), "all to have run", 60.0)
        assert ran.read_text().count("x") == 3

        def over() -> bool:
            states = [one["state"] for client in clients for one in client.jobs()]
            return set(states) <= {"finished", "cancelled"} and states.count("finished") == 3

        until(over, "each to have run in one of them", 60.0)
    finally:
        assert other.process is not None
        other.process.terminate()
        other.process.communicate()
        for client in other.clients:
            client.close()
