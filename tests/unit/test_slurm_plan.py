"""What `up --slurm` asks for, of what it is given."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gpuloom.core.errors import InputError
from gpuloom.slurm import plan as plans
from gpuloom.slurm.commands import NEEDED, Slurm, SlurmError
from gpuloom.slurm.parse import Gres, SlurmJob, SlurmNode
from gpuloom.slurm.plan import Allocation, Plan, SlurmOptions, name_of, plan_of


class FakeSlurm(Slurm):
    def __init__(self, *nodes: SlurmNode) -> None:
        super().__init__(env={})
        self.there = list(nodes)

    def nodes(self, partition: str | None = None) -> list[SlurmNode]:
        return self.there

    def within(self, limit_s: float) -> Slurm:
        return self

    def default_partition(self) -> str | None:
        return "cpu"

    def ends_all(self) -> bool:
        return False

    def job(self, number: int) -> SlurmJob | None:
        return SlurmJob(number, "bash", ("RUNNING",), gpus=8)


def node(name: str, gpus: int, *partitions: str) -> SlurmNode:
    return SlurmNode(name, ("IDLE",), (Gres("gpu", "", gpus),) if gpus else (), 32, 1000, partitions)


CLUSTER = (node("a", 4, "gpu"), node("b", 4, "gpu"), node("c", 8, "gpu"), node("d", 0, "cpu"))


@pytest.fixture(autouse=True)
def _there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "missing_commands", list)


def planned(
    slots: int | None = None,
    environment: Mapping[str, str] | None = None,
    kept: Path | None = None,
    slurm: Slurm | None = None,
    **said: Any,
) -> Plan:
    return plan_of(
        SlurmOptions(**said),
        FakeSlurm(*CLUSTER) if slurm is None else slurm,
        slots=slots,
        name="gpuloom-1",
        url="https://head:7411",
        python="/env/bin/python",
        environment=environment or {},
        kept=kept,
    )


class Away(FakeSlurm):
    """slurmctld does not answer; what its commands may take."""

    def __init__(self) -> None:
        super().__init__()
        self.limits: list[float] = []

    def within(self, limit_s: float) -> Slurm:
        self.limits.append(limit_s)
        return self

    def nodes(self, partition: str | None = None) -> list[SlurmNode]:
        raise SlurmError("`sinfo` gave no answer")


def test_without_an_answer_it_goes_by_that_of_before(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    kept, away = tmp_path / "slurm.json", Away()
    said: dict[str, Any] = {"partition": "gpu", "gpus": 16, "more": ("--licenses=a",)}
    with pytest.raises(SlurmError, match="no answer"):
        planned(kept=kept, slurm=away, **said)
    assert away.limits == [], "who knows nothing of before waits"
    before = planned(kept=kept, **said)
    assert planned(kept=kept, slurm=away, **said) == before
    assert away.limits == [plans.SOON_S]
    assert "going on with what it said at an earlier start: `sinfo` gave no answer" in caplog.text
    for other in ({**said, "gpus": 8}, {**said, "more": ()}, {**said, "slots": 2, "gpus": None, "nodes": 1}):
        with pytest.raises(SlurmError):
            planned(kept=kept, slurm=away, **other)


def test_a_new_answer_takes_the_place_of_that_of_before(tmp_path: Path) -> None:
    kept = tmp_path / "slurm.json"
    planned(kept=kept, partition="gpu", nodes=2)
    smaller = planned(kept=kept, slurm=FakeSlurm(node("a", 2, "gpu")), partition="gpu", nodes=2)
    assert smaller.limits.gpus_per_node == 2
    assert planned(kept=kept, slurm=Away(), partition="gpu", nodes=2) == smaller


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"options": {}, "slots": null}', "\0"])
def test_a_damaged_answer_of_before_is_left_aside(tmp_path: Path, text: str) -> None:
    kept = tmp_path / "slurm.json"
    kept.write_text(text)
    with pytest.raises(SlurmError, match="no answer"):
        planned(kept=kept, slurm=Away(), partition="gpu", nodes=2)
    planned(kept=kept, partition="gpu", nodes=2)
    assert planned(kept=kept, slurm=Away(), partition="gpu", nodes=2).limits.nodes == 2


def test_an_answer_that_can_not_be_kept_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert planned(kept=tmp_path / "none" / "slurm.json", partition="gpu", nodes=2).limits.nodes == 2
    assert "slurm.json: can't be written: No such file or directory; the next start needs slurmctld" in caplog.text


@pytest.mark.parametrize(
    ("said", "per_node", "nodes"),
    [
        ({"gpus": 16}, 4, 4),
        ({"gpus": 18}, 4, 4),
        ({"gpus": 2}, 2, 1),
        ({"nodes": 3}, 4, 3),
        ({"gpus": 16, "nodes": 2}, 8, 2),
        ({"gpus": 16, "gpus_per_node": 2}, 2, 8),
        ({"nodes": 2, "gpus_per_node": 8}, 8, 2),
    ],
)
def test_sizes(said: dict[str, int], per_node: int, nodes: int) -> None:
    found = planned(partition="gpu", **said)
    assert (found.limits.gpus_per_node, found.limits.nodes) == (per_node, nodes)
    assert found.request.whole == found.limits.whole == (per_node == 8)
    assert found.inside is None
    assert not found.limits.ends_all


def test_slots_need_no_gpus() -> None:
    found = planned(slots=16, nodes=2)
    assert (found.request.slots, found.limits.gpus_per_node, found.limits.nodes) == (True, 16, 2)
    assert not found.request.whole, "another pilot of ours may be on the same node"
    assert planned(slots=32, nodes=2).request.whole


def test_hours_and_idle() -> None:
    found = planned(partition="gpu", gpus=4, hours=8.0, idle_s=60.0)
    assert (found.limits.life_s, found.limits.idle_s, found.request.life_s) == (28800.0, 60.0, 28800.0)
    assert planned(partition="gpu", gpus=4).limits.idle_s == 600.0


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"partition": "gpu"}, "-G GPUS or -N NODES"),
        ({"partition": "nope", "gpus": 4}, "partition 'nope' of Slurm has no nodes; partitions with nodes: cpu, gpu"),
        ({"gpus": 4}, "have no GPUs that Slurm knows of"),
        ({"partition": "gpu", "gpus": 4, "gpus_per_node": 16}, "16 GPUs on each node are too many.* has 8 GPUs"),
        ({"partition": "gpu", "gpus": 4, "gpus_per_node": 8}, "-G 4 is less than the 8 GPUs of one node"),
        ({"slots": 4, "gpus": 4}, "with --slots say -N"),
    ],
)
def test_what_does_not_go_together_is_told(said: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        planned(**said)


def test_without_slurm_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "missing_commands", lambda: list(NEEDED))
    with pytest.raises(InputError, match="there is no Slurm here"):
        planned(gpus=4)
    monkeypatch.setattr(plans, "missing_commands", lambda: ["srun"])
    with pytest.raises(InputError, match="srun of Slurm can't be found"):
        planned(gpus=4)


def test_inside_an_allocation_its_nodes_are_used() -> None:
    environment = {"SLURM_JOB_ID": "50", "SLURM_JOB_NUM_NODES": "2"}
    found = planned(environment=environment)
    assert found.inside == Allocation(50, 2)
    assert (found.limits.nodes, found.limits.gpus_per_node) == (0, 8)
    with pytest.raises(InputError, match="inside job 50 of Slurm"):
        planned(environment=environment, gpus=4)


def test_names_are_of_the_home(tmp_path: Path) -> None:
    assert name_of(tmp_path / "a") == name_of(tmp_path / "a" / ".." / "a") != name_of(tmp_path / "b")
