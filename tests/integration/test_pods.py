"""Jobs as pods: a scheduler with `--executor kubernetes`, a fake cluster whose kubelets run pods as real processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fake_kubernetes.cluster import NODE, POD, VCJOB, pod
from fake_kubernetes.kinds import BY_PATH
from fake_kubernetes.server import Fault, Request
from gpuloom.core.end_reason import EndReason
from gpuloom.executors.kubernetes import kept
from gpuloom.executors.node import RunSpec
from gpuloom.executors.port import Cause, RunStatus
from pod_node import PodTarget
from pods_world import World, ended, phase, submit
from real_scheduler import PROGRAM
from until import until

pytestmark = pytest.mark.slow
SECRET = BY_PATH["", "v1", "secrets"]
SLEEPS = ("sh", "-c", "echo up; exec sleep 600")
SAVES = """
import os, signal, sys, time
def stop(*_): sys.exit(85)
signal.signal(signal.SIGTERM, stop)
print("resumed" if os.environ["GPULOOM_RESUME"] == "1" else "up", flush=True)
time.sleep(2.0 if os.environ["GPULOOM_RESUME"] == "1" else 600)
"""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.close()


def test_a_gang_from_submission_to_its_end(world: World) -> None:
    world.cluster.add_node("n1", 2)
    world.cluster.add_node("n2", 2)
    client = world.up()
    assert [(node["name"], node["state"], len(node["gpus"])) for node in client.nodes()] == [
        ("n1", "up", 2),
        ("n2", "up", 2),
    ]
    show = "echo $GPULOOM_NODE_RANK of $GPULOOM_NODE_COUNT at $MASTER_ADDR $TOKEN $(hostname >/dev/null; echo '$$')"
    job = submit(client, "sh", "-c", f"{show}; sleep 1", gpus=4, env={"TOKEN": "s3cret", "PATH": "/nowhere"})
    until(lambda: len([one for one in world.items() if one["status"]["phase"] == "Running"]) == 2, "its pods to run")
    made = world.items(VCJOB)[0]
    assert made["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "gpuloom"
    assert [(task["name"], task["replicas"], task["minAvailable"]) for task in made["spec"]["tasks"]] == [
        ("worker", 2, 2)
    ]
    assert "s3cret" not in json.dumps(made) + json.dumps(world.items()), (
        "values of the job's own variables are in a Secret"
    )
    assert {one["spec"].get("nodeName") for one in world.items()} == {"n1", "n2"}
    assert ended(client, job)["state"] == "finished"
    name = made["metadata"]["name"]
    logs = [client.log(job, member=rank).decode() for rank in (0, 1)]
    assert logs == [f"{rank} of 2 at {name}-worker-0.{name} s3cret $$\n" for rank in (0, 1)]
    until(lambda: not world.items() and not world.items(VCJOB) and not world.items(SECRET), "nothing to be left")


def test_what_fails_is_told_with_its_exit_code_and_last_lines(world: World) -> None:
    world.cluster.add_node("n1", 4)
    client = world.up()
    bad = submit(client, "sh", "-c", "echo oh dear; exit 7")
    missing = submit(client, "true", container="missing:1")
    nothing = submit(client, "no-such-program")
    venv = submit(client, "true", venv="/opt/venv")
    assert (ended(client, bad)["state"], client.job(bad)["exit_code"]) == ("failed", 7)
    assert "no-such-program" in ended(client, nothing)["message"]
    assert "in Kubernetes a job has what its image has" in ended(client, venv)["message"]
    assert phase(client, missing) == "starting", "registries have bad minutes"
    client.cancel([missing])
    assert ended(client, missing)["state"] == "cancelled"
    until(lambda: not world.items() and not world.items(VCJOB), "nothing to be left")


def test_preempted_it_saves_and_goes_on(world: World) -> None:
    world.cluster.add_node("n1", 1)
    client = world.up("--policy", "srtf", "--interval", "1s")
    first = submit(client, sys.executable, "-c", SAVES, estimate="2h")
    until(lambda: phase(client, first) == "running" and client.log(first), "the first to run")
    short = submit(client, "true", estimate="10s")
    assert ended(client, short)["state"] == "finished"
    assert ended(client, first)["state"] == "finished"
    assert client.log(first) == b"resumed\n"
    assert [one["reason"] for one in client.show(first)["attempts"]] == ["preempted", "finished"]


def test_an_elastic_job_makes_room_and_grows_again(world: World) -> None:
    world.cluster.add_node("n1", 4)
    client = world.up("--policy", "elastic-goodput", "--interval", "1s")
    saves = "trap 'exit 85' TERM; echo $GPULOOM_REPLICAS $GPULOOM_GPUS; while true; do sleep 0.1; done"
    job = submit(client, "sh", "-c", saves, gpus=2, elastic="1-4", grace="10s")
    until(lambda: client.log(job) == b"4 4\n", "it to have all GPUs")
    other = submit(client, "sleep", "3", gpus=2)
    until(lambda: phase(client, other) == "running", "the other one to run")
    until(lambda: client.log(job) in (b"1 1\n", b"2 2\n"), "it to go on with less")
    assert ended(client, other)["state"] == "finished"
    until(lambda: client.log(job) == b"4 4\n", "it to grow again")
    ends = [one["reason"] for one in client.show(job)["attempts"]]
    assert set(ends) <= {"resized", "preempted", None}
    assert len(ends) >= 3
    client.cancel([job])
    assert ended(client, job)["state"] == "cancelled"


def test_cancel_and_time_limit(world: World) -> None:
    world.cluster.add_node("n1", 2)
    client = world.up()
    limited, cancelled = submit(client, *SLEEPS, time_limit="1s", grace="1s"), submit(client, *SLEEPS, grace="1s")
    until(lambda: phase(client, cancelled) == "running", "it to run")
    client.cancel([cancelled])
    assert ended(client, cancelled)["state"] == "cancelled"
    assert ended(client, limited)["state"] in ("failed", "timed_out")
    assert client.show(limited)["attempts"][-1]["reason"] == "timed_out"


@pytest.mark.parametrize("when", ["starting", "running", "ended"])
def test_a_killed_scheduler_finds_its_pods_again(world: World, when: str, tmp_path: Path) -> None:
    world.cluster.add_node("n1", 1)
    world.cluster.add_node("n2", 1)
    client = world.up()
    world.machines.paused = when == "starting"
    code = f"echo x >> {tmp_path}/ran; echo up; {'sleep 1' if when == 'ended' else 'sleep 4'}; echo down"
    job = submit(client, "sh", "-c", code, gpus=2)
    if when == "starting":
        until(lambda: world.items(VCJOB), "its Job to be made")
    else:
        until(lambda: phase(client, job) == "running", "it to run")
    world.kill()
    world.machines.paused = False
    if when == "ended":
        until(lambda: all(one["status"]["phase"] == "Succeeded" for one in world.items()), "its pods to end")
        assert len(world.items()) == 2, "their ends are kept until they are written down"
    client = world.up()
    assert ended(client, job)["state"] == "finished"
    assert (tmp_path / "ran").read_text() == "x\nx\n", "each member ran once"
    assert client.log(job, member=1).decode() == "up\ndown\n"
    assert len(client.show(job)["attempts"]) == 1
    until(lambda: not world.items() and not world.items(VCJOB), "nothing to be left")


def test_answers_that_are_lost_make_nothing_twice(world: World, tmp_path: Path) -> None:
    world.cluster.add_node("n1", 2)
    client = world.up()

    def writes(request: Request) -> bool:
        return request.method in ("POST", "PATCH", "DELETE") and "/namespaces/default/" in request.path

    # Done, and the answer lost; refused; done, and said to have timed out.
    world.api.faults += [
        Fault(writes, status=0, times=3, done=True),
        Fault(writes, status=429, body="too many requests", headers={"Retry-After": "1"}, times=2),
        Fault(writes, status=504, body={"message": "timeout"}, times=2, done=True),
    ]
    jobs = [submit(client, "sh", "-c", f"echo {number} >> {tmp_path}/ran; sleep 0.5") for number in range(3)]
    for job in jobs:
        assert ended(client, job)["state"] == "finished"
    assert sorted((tmp_path / "ran").read_text().split()) == ["0", "1", "2"]
    until(lambda: not world.items() and not world.items(VCJOB), "nothing to be left")


def test_watches_that_are_cut_and_expire(world: World) -> None:
    world.cluster.add_node("n1", 2)
    client = world.up()
    for _ in range(3):
        job = submit(client, "sh", "-c", "sleep 0.3")
        world.api.cut_watches()
        world.api.store.compact()
        assert ended(client, job)["state"] == "finished"


def test_without_volcanos_scheduler_gpuloom_lets_jobs_in(tmp_path: Path) -> None:
    world = World(tmp_path, admits=False)
    try:
        world.cluster.add_node("n1", 1)
        client = world.up()
        assert ended(client, submit(client, "true"))["state"] == "finished"
    finally:
        world.close()


def test_gpus_of_others_are_not_given_away(world: World) -> None:
    world.cluster.add_node("n1", 2)
    theirs = pod("theirs", 1)
    theirs["spec"]["containers"][0]["command"] = ["sleep", "600"]
    world.cluster.create(theirs)
    client = world.up()
    until(
        lambda: [gpu["state"] for node in client.nodes() for gpu in node["gpus"]].count("foreign") == 1,
        "the other's GPU to be seen",
    )
    first, second = submit(client, *SLEEPS), submit(client, *SLEEPS)
    until(lambda: phase(client, first) == "running", "one to run")
    assert phase(client, second) == "queued"
    world.cluster.delete("theirs")
    until(lambda: phase(client, second) == "running", "the other one to run")


def test_nodes_that_are_cordoned_tainted_and_gone(world: World) -> None:
    world.cluster.add_node("n1", 1)
    world.cluster.add_node("n2", 1, unschedulable=True)
    world.cluster.add_node("n3", 1, taints=[{"key": "team", "value": "b", "effect": "NoSchedule"}])
    client = world.up()
    first = submit(client, *SLEEPS)
    until(lambda: phase(client, first) == "running", "one to run")
    second = submit(client, "true")
    time.sleep(0.5)
    assert phase(client, second) == "queued"
    told = {node["name"]: node["cut"] for node in client.nodes()}
    assert "cordoned" in told["n2"]
    assert "team=b:NoSchedule" in told["n3"]
    world.cluster.change("n2", NODE, unschedulable=False)
    assert ended(client, second)["state"] == "finished"
    # A node that is gone: its pod is collected, and the job goes on elsewhere.
    world.machines.lost.add("n1")
    world.cluster.delete("n1", NODE)
    until(lambda: [one["spec"].get("nodeName") for one in world.items()] == ["n2"], "the job to run on n2 alone")
    assert {one["reason"] for one in client.show(first)["attempts"]} == {"node", None}


def test_a_pod_that_somebody_deletes_is_run_again(world: World) -> None:
    world.cluster.add_node("n1", 1)
    client = world.up()
    job = submit(client, sys.executable, "-c", SAVES, grace="1s")
    until(lambda: phase(client, job) == "running" and client.log(job), "it to run")
    name = world.items()[0]["metadata"]["name"]
    world.api.store.delete(POD, "default", name, {"gracePeriodSeconds": 1})
    assert ended(client, job)["state"] == "finished"
    assert [one["reason"] for one in client.show(job)["attempts"]] == ["node", "finished"]


def test_progress_by_way_of_a_claim(world: World) -> None:
    world.cluster.add_node("n1", 1)
    client = world.up("--runs-claim", "data/runs")
    report = (
        "import os, time; open(os.environ['GPULOOM_PROGRESS_FILE'], 'w').write('{\"step\": 3, \"total_steps\": 4}')"
    )
    job = submit(client, sys.executable, "-c", f"{report}; time.sleep(600)")
    until(lambda: world.items(), "its pod")
    spec = world.items()[0]["spec"]
    assert spec["volumes"][-1]["persistentVolumeClaim"] == {"claimName": "data"}
    assert spec["containers"][0]["volumeMounts"][-1] == {
        "name": "gpuloom-runs", "mountPath": str(world.home / "runs"), "subPath": "runs"
    }  # fmt: skip
    until(lambda: client.job(job)["progress"].get("step") == 3, "its progress to be seen")


def test_a_template_and_a_process_for_each_gpu(world: World, tmp_path: Path) -> None:
    world.cluster.add_node("n1", 2, taints=[{"key": "team", "value": "b", "effect": "NoSchedule"}])
    template = tmp_path / "template.yaml"
    template.write_text(
        "spec:\n"
        "  tolerations: [{key: team, operator: Exists}]\n"
        "  affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: ["
        "{matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [n1]}]}]}}}\n"
        "  volumes: [{name: data, hostPath: {path: /tmp}}]\n"
        "  containers:\n"
        "    - {name: main, volumeMounts: [{name: data, mountPath: /tmp}], env: [{name: FROM, value: template}]}\n"
    )
    client = world.up("--pod-template", str(template))
    job = submit(client, "sh", "-c", "echo $RANK $FROM $PWD; sleep 0.5", gpus=2, per="gpu", workdir="/tmp")
    assert ended(client, job)["state"] == "finished"
    assert sorted(client.log(job).decode().split("\n")[:-1]) == ["0 template /tmp", "1 template /tmp"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--namespace", "x"], "--namespace: goes with --executor kubernetes"),
        (["--executor", "kubernetes", "--slots", "2"], "no job runs here"),
        (["--executor", "kubernetes", "--slurm"], "jobs run in one of them"),
        (["--executor", "kubernetes", "--kubeconfig", "/no/such"], "/no/such"),
    ],
)
def test_what_is_refused(words: list[str], said: str, tmp_path: Path) -> None:
    done = subprocess.run([*PROGRAM, "up", "--home", str(tmp_path / "home"), *words], capture_output=True, text=True)
    assert done.returncode == 2
    assert said in done.stderr


def test_a_home_is_of_one_cluster(world: World, tmp_path: Path) -> None:
    world.cluster.add_node("n1", 1)
    world.up()
    world.kill()
    base = [*PROGRAM, "up", "--home", str(world.home)]
    other = subprocess.run(
        [*base, "--executor", "kubernetes", "--kubeconfig", str(world.config), "--namespace", "other"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert (other.returncode, "for another one give another --home" in other.stderr) == (2, True)
    local = subprocess.run([*base, "--slots", "1"], capture_output=True, text=True)
    assert (local.returncode, "begin with --executor kubernetes" in local.stderr) == (2, True)


def test_pods_that_the_cluster_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "NO_PODS_S", 0.5)
    target = PodTarget(tmp_path / "cluster")
    try:
        target.template = {"spec": {"preemptionPolicy": "Never"}}
        told: list[RunStatus] = []
        node = target.connect()
        node.open(told.append)
        node.start(RunSpec("1.1-00", ("true",), "/", {}, (0,), ()))
        end = until(lambda: next((one.exit for one in told if one.exit is not None), None), "it to be given up")
        assert (end.reason, end.cause) == (EndReason.NOT_STARTED, Cause.EXECUTOR)
        assert "kubectl describe vcjob gpuloom-1-1-00 -n default" in end.message
        node.acknowledge("1.1-00")
        until(lambda: not target.api.store.items[VCJOB], "its Job to go")
    finally:
        target.close()


def test_without_volcano_it_says_so(world: World) -> None:
    world.cluster.add_node("n1", 1)
    world.api.faults.append(
        Fault(lambda request: "batch.volcano.sh" in request.path, 404, {"message": "not found"}, times=None)
    )
    done = subprocess.run(
        [*PROGRAM, "up", "--executor", "kubernetes", "--kubeconfig", str(world.config), "--home", str(world.home),
         "--job-kind", "volcano"],
        capture_output=True, text=True, env={**os.environ}, timeout=60,
    )  # fmt: skip
    assert done.returncode == 1
    assert "is Volcano installed" in done.stderr
