"""Several schedulers of one home: one acts. The second one is a process, too, and the cluster a fake one."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from fake_kubernetes.cluster import VCJOB
from fake_kubernetes.kinds import BY_PATH
from fake_kubernetes.server import Fault
from gpuloom.executors.home_id import home_id_of
from gpuloom.executors.kubernetes.lease import Lease
from gpuloom.kubernetes.api import connect
from gpuloom.live.parts import LiveScheduler
from gpuloom.store.home import Home, take_lock
from gpuloom.store.home import home_of as home_of_folder
from pods_world import World, ended, phase, submit
from real_scheduler import PROGRAM
from until import until

if TYPE_CHECKING:
    from gpuloom.live.pod_nodes import PodNodes

pytestmark = pytest.mark.slow
LEASE = BY_PATH["coordination.k8s.io", "v1", "leases"]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    world.child = True
    world.cluster.add_node("n1", 2)
    yield world
    world.close()


def command(world: World, *more: str) -> list[str]:
    words = ["up", "--executor", "kubernetes", "--kubeconfig", str(world.config), "--port", "0", "--image", "here:1"]
    return [*PROGRAM, *words, "--home", str(world.home), *more]


def spec(world: World) -> dict[str, Any]:
    (lease,) = world.items(LEASE)
    return dict(lease["spec"])


@pytest.mark.parametrize("how", ["kill", "down"])
def test_one_that_stands_by_goes_on_when_the_other_one_ends(world: World, tmp_path: Path, how: str) -> None:
    client = world.up()
    job = submit(client, "sh", "-c", "echo up; sleep 4")
    until(lambda: phase(client, job) == "running", "it to run")
    acts, holder = world.process, spec(world)["holderIdentity"]
    assert isinstance(acts, subprocess.Popen)
    with (tmp_path / "second.log").open("wb") as log:
        second = subprocess.Popen(command(world, "--standby"), stdout=log, stderr=log)
    try:
        until(lambda: holder in (tmp_path / "second.log").read_text(), "it to say for whom it waits")
        assert second.poll() is None
        acts.kill() if how == "kill" else acts.terminate()
        assert acts.wait(30.0) == (-9 if how == "kill" else 0)
        until(lambda: world.pid() == second.pid, "the second one to act", 30.0)
        assert spec(world)["holderIdentity"] != holder
        assert spec(world)["leaseTransitions"] == 1
        assert ended(client, job)["state"] == "finished"
        assert len(world.api.store.items[VCJOB]) <= 1
        world.process = second
        assert len([one for one in client.events() if one["type"] == "attempt.starting"]) == 1
    finally:
        if world.process is not second:
            second.kill()
        acts.communicate()
        world.process = second
    second.terminate()
    assert second.wait(30.0) == 0
    assert "holderIdentity" not in spec(world), "it lets go of the Lease when it ends"


def test_another_machine_has_the_lease(world: World) -> None:
    home = Lease(api := connect(world.config), "default", home_of(world), "elsewhere_1")
    home.take(waits=False)
    home.start(lambda why: None)
    try:
        done = subprocess.run(command(world), capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 1
        assert "another scheduler acts for this home: elsewhere_1 holds the Lease default/gpuloom-" in done.stderr
        assert "--standby" in done.stderr
        assert not (world.home / "store.db").exists(), "nothing of the home is touched"
    finally:
        home.close()
        api.close()
    client = world.up()
    job = submit(client, "true")
    assert ended(client, job)["state"] == "finished"
    # Somebody else takes it by force: what acted ends, and what runs goes on.
    with world.api.store.changed:
        (lease,) = world.items(LEASE)
        world.api.store.update(LEASE, "default", lease["metadata"]["name"], stolen)
    assert isinstance(world.process, subprocess.Popen)
    assert world.process.wait(30.0) == 1
    world.process.communicate()
    assert "thief_1 has taken the Lease" in (world.folder / "up.log").read_text()
    assert spec(world)["holderIdentity"] == "thief_1"
    world.process = None


def test_without_the_right_it_says_which_is_missing(world: World) -> None:
    body = {"kind": "Status", "code": 403, "reason": "Forbidden", "message": "leases is forbidden"}
    name = f"/leases/gpuloom-{home_of(world)}"
    world.api.faults.append(Fault(lambda request: request.path.endswith(name), 403, body, times=None))
    done = subprocess.run(command(world), capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert "leases is forbidden" in done.stderr
    assert "deploy/run-rbac.yaml" in done.stderr


def stolen(item: dict[str, Any]) -> dict[str, Any]:
    item["spec"]["holderIdentity"] = "thief_1"
    return item


def home_of(world: World) -> str:
    return home_id_of(world.home)


class LetsGo:
    """In place of a cluster's nodes: may another scheduler take the home when this one lets it act?"""

    problem = ""

    def __init__(self, home: Home) -> None:
        self.home, self.told = home, list[str]()

    def start(self, *_: object) -> None:
        self.told.append("start")

    def stop(self) -> None:
        self.told.append("stop")

    def close(self) -> None:
        take_lock(self.home).release()
        self.told.append("close")


@pytest.mark.parametrize("starts", [True, False])
def test_nobody_else_may_act_before_the_home_is_free(tmp_path: Path, starts: bool) -> None:
    home = home_of_folder(tmp_path)
    pods = LetsGo(home)
    live = LiveScheduler(home, local=False, pods=cast("PodNodes", pods))
    if starts:
        live.start()
        live.close()
    else:
        live.close_unstarted()
    assert pods.told == (["start", "stop", "close"] if starts else ["close"])
