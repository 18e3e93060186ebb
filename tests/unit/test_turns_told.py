"""Who is told to take turns on which devices: groups that the policy weaves, and nobody else."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuloom.core.job import DeviceKind
from gpuloom.executors.node import Weaving
from gpuloom.live.trial.rehearsal import Rehearsal
from gpuloom.policies.registry import create_policy
from rehearsed_nodes import Cluster

PROFILES = """model,gpus,iteration_s,storage_s,cpu_s,gpu_s,network_s
reader,1,1,1.0,0,0,0
learner,1,1,0,0,1.0,0
wide,4,1,0,0,1.0,0
broad,4,1,1.0,0,0,0
"""


@pytest.fixture(autouse=True)
def _profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPULOOM_HOME", str(tmp_path))
    (tmp_path / "profiles.csv").write_text(PROFILES)


def job(model: str, **more: object) -> dict[str, object]:
    return {"model": model, "estimate": "1h", "gpu_memory": 1000, **more}


def said(*members: int, on: bool, gpus: tuple[int, ...] = (0,)) -> Weaving:
    return Weaving(DeviceKind.GPU, gpus, members, on)


def told(live: Rehearsal, *gpus: int) -> Weaving | None:
    return live.devices.said.get((DeviceKind.GPU, gpus or (0,)))


@pytest.mark.parametrize(
    ("policy", "weaves"), [("muri-l", True), ("muri-xs", True), ("weave", True), ("antman", False), ("fifo", False)]
)
def test_policies_that_weave(policy: str, weaves: bool) -> None:
    assert create_policy(policy).weaves is weaves


def test_from_the_first_member_to_the_last() -> None:
    live = Rehearsal("muri-l", models=["V100"], interval_s=0.0)
    (one,) = live.submit(job("reader"))
    assert told(live) is None
    (two,) = live.submit(job("learner"))
    (group,) = live.scheduler.sharers.groups.all()
    assert group.order is not None
    assert told(live) == said(*group.order, on=True)
    assert sorted(group.order) == [one, two]
    live.devices.said.clear()
    live.later(5.0)
    assert live.devices.said == {}, "told once"
    live.restart(orderly=False)
    assert told(live) == said(*group.order, on=True), "by the one that takes over"
    live.end(f"{one}.1")
    assert told(live) == said(two, on=False)
    live.end(f"{two}.1")
    live.devices.said.clear()
    (three,) = live.submit(job("reader"))
    live.restart(orderly=True)
    assert told(live) == said(three, on=False), "what the one before said may be older"


def test_a_policy_that_does_not_weave_ends_the_turns() -> None:
    live = Rehearsal("muri-l", models=["V100"], interval_s=0.0)
    one, two = live.submit(job("reader"), job("learner"))
    found = told(live)
    assert found is not None
    assert found.on
    assert sorted(found.members) == [one, two]
    live.tell(lambda: live.service.set_policy("fifo"))
    found = told(live)
    assert found is not None
    assert not found.on


def test_each_node_of_a_group_is_told_and_one_that_comes_back_is_told_again() -> None:
    live = Cluster("n1", policy="muri-l")
    live.submit(*(job(model, gpus=4, name=model) for model in ("wide", "broad")))
    woven = live.machines["n1"].woven
    (group,) = live.scheduler.sharers.groups.all()
    assert woven[-1] == Weaving(DeviceKind.GPU, (0, 1, 2, 3), group.order or (), True)
    woven.clear()
    live.turn()
    assert woven == []
    live.restart(orderly=False)
    live.join("n1")
    assert woven[-1] == Weaving(DeviceKind.GPU, (0, 1, 2, 3), group.order or (), True)
