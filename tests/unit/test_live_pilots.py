"""The thread of pilots: what it asks of Slurm, what it tells the scheduler, and what it says of itself."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pytest

from gpuloom.core.errors import GpuloomError
from gpuloom.live.pilots import Pilots
from gpuloom.live.planning.scene import NONE_COMES, Coming
from gpuloom.slurm.commands import Slurm, SlurmError
from gpuloom.slurm.parse import SlurmJob
from gpuloom.slurm.pilots import Limits, Use, Wanted
from gpuloom.slurm.plan import Allocation
from gpuloom.slurm.script import TOKEN, Request

REQUEST = Request("gpuloom-1", "https://head:7411", "/env/bin/python", 4, partition="gpu")


class FakeSlurm(Slurm):
    """Grants all, unless told otherwise."""

    def __init__(self) -> None:
        super().__init__(env={})
        self.listed: dict[int, SlurmJob] = {}
        self.tokens: list[str] = []
        self.cancelled: list[int] = []
        self.down = self.refuses = ""
        self.looks = 0

    def submit(self, script: str, options: Sequence[str], secrets: Mapping[str, str]) -> int:
        if self.down or self.refuses:
            raise SlurmError(self.down or self.refuses)
        number = 100 + len(self.listed)
        assert "--partition=gpu" in options
        assert secrets[TOKEN] not in script
        self.tokens.append(secrets[TOKEN])
        self.listed[number] = SlurmJob(number, REQUEST.name, ("PENDING",), "Priority")
        return number

    def jobs(self, name: str) -> list[SlurmJob]:
        self.looks += 1
        if self.down:
            raise SlurmError(self.down)
        assert name == REQUEST.name
        return list(self.listed.values())

    def job(self, number: int) -> SlurmJob | None:
        return self.listed.get(number)

    def cancel(self, number: int) -> None:
        if self.down:
            raise SlurmError(self.down)
        self.cancelled.append(number)
        self.listed[number] = replace(self.listed[number], states=("CANCELLED",))


class World:
    """The scheduler above, its tokens and its clock."""

    def __init__(self, limits: Limits, inside: Allocation | None = None) -> None:
        self.slurm, self.now_s = FakeSlurm(), 1000.0
        self.waiting: dict[int, int] = {}
        self.nodes: dict[str, Use] = {}
        self.said: list[tuple[object, ...]] = []
        self.counting: set[str] = set()
        self.coming = NONE_COMES
        self.minted = 0
        self.pilots = Pilots(
            self.slurm,
            limits,
            REQUEST,
            self,
            self,
            wait=lambda after, limit_s: after,
            now=lambda: self.now_s,
            inside=inside,
        )

    def wanted(self) -> Wanted:
        return Wanted(dict(self.waiting), dict(self.nodes))

    def ours_until(self, name: str, until_s: float | None, engine_job: str) -> None:
        self.said.append(("until", name, engine_job))
        self.nodes[name] = replace(self.nodes[name], until_s=until_s, engine_job=engine_job)

    def comes(self, coming: Coming) -> None:
        self.coming = coming

    def closes(self, name: str, why: str) -> None:
        self.said.append(("closes", name))
        self.nodes[name] = replace(self.nodes[name], free=0, jobs={})

    def gone(self, name: str, why: str) -> None:
        self.said.append(("gone", name))
        self.nodes.pop(name, None)

    def mint(self) -> tuple[str, str]:
        self.minted += 1
        self.counting.add(str(self.minted))
        return str(self.minted), f"secret-{self.minted}"

    def revoke(self, number: str) -> None:
        self.counting.remove(number)

    def turn(self, seconds: float = 5.0) -> None:
        self.now_s += seconds
        self.pilots._look_s = 0.0
        self.pilots.turn()

    def runs(self, number: int, node: str, end_s: float | None = None) -> None:
        self.slurm.listed[number] = replace(self.slurm.listed[number], states=("RUNNING",), nodes=(node,), end_s=end_s)


def test_from_a_job_that_waits_to_a_pilot_that_is_given_back() -> None:
    world = World(Limits(2, 4, idle_s=60.0))
    world.waiting[1] = 2
    world.turn()
    world.turn()
    (pilot,) = world.pilots.view()["pilots"]
    assert (pilot["job"], pilot["state"], pilot["reason"], pilot["gpus"]) == (100, "pending", "Priority", 4)
    assert world.coming == Coming(math.inf, "A pilot, job 100 of Slurm, waits there (Priority).")
    assert world.slurm.tokens == ["secret-1"]
    world.runs(100, "n0")
    world.turn()
    world.waiting.clear()
    world.nodes["n0"] = Use(2, {1: 2})
    world.turn()
    assert world.said == [("until", "n0", "100")]
    assert world.pilots.view()["pilots"][0]["state"] == "running"
    world.nodes["n0"] = replace(world.nodes["n0"], free=4, jobs={})
    world.turn()
    world.turn(61.0)
    world.turn()
    assert world.said[1:] == [("closes", "n0")]
    assert world.slurm.cancelled == [100]
    assert world.counting == {"1"}
    world.turn()
    assert world.said[2:] == [("gone", "n0")]
    world.turn()
    assert world.counting == set(), "its token counts no more"
    assert world.pilots.view()["pilots"] == []


def test_what_slurm_refuses_is_shown_and_what_is_too_old_is_not() -> None:
    world = World(Limits(1, 4))
    world.waiting[1] = 1
    world.slurm.refuses = "`sbatch` failed: sbatch: error: invalid partition specified: gpu"
    world.turn()
    view = world.pilots.view()
    assert view["refused"] == world.slurm.refuses
    assert view["next_ask_s"] == world.now_s + 10.0
    json.dumps(view, allow_nan=False)
    world.slurm.refuses = ""
    world.turn(11.0)
    world.turn()
    assert world.counting == {"2"}, "the token of the request that failed counts no more"
    world.runs(100, "n0")
    world.nodes["n0"] = Use(4)
    world.turn()
    assert world.pilots.view()["refused"] == ""


@pytest.mark.parametrize(("ends_all", "what"), [(True, "gone"), (False, "closes")])
def test_where_slurm_does_not_end_all_processes_a_pilots_nodes_have_their_lease(ends_all: bool, what: str) -> None:
    world = World(Limits(1, 4, ends_all=ends_all))
    world.waiting[1] = 4
    world.turn()
    world.turn()
    world.runs(100, "n0")
    world.waiting.clear()
    world.nodes["n0"] = Use(0, {1: 4})
    world.turn()
    world.slurm.cancel(100)
    world.turn()
    assert world.said == [("until", "n0", "100"), (what, "n0")]


def test_a_request_whose_answer_was_lost_is_found_again_and_its_token_counts() -> None:
    world = World(Limits(1, 4))
    world.waiting[1] = 1
    world.slurm.refuses = "`sbatch` gave no answer within 30 s"
    world.turn()
    world.slurm.listed[7] = SlurmJob(7, REQUEST.name, ("PENDING",), "Priority")
    world.turn()
    assert [pilot["job"] for pilot in world.pilots.view()["pilots"]] == [7]
    assert world.counting == {"1"}
    assert world.minted == 1, "not asked for twice"


def test_without_slurmctld_what_runs_is_kept_and_it_is_said() -> None:
    world = World(Limits(1, 4, idle_s=1.0))
    world.waiting[1] = 1
    world.turn()
    world.runs(100, "n0")
    world.nodes["n0"] = Use(4)
    world.turn()
    world.waiting.clear()
    world.slurm.down = "`squeue` failed: Unable to contact slurm controller"
    for _ in range(5):
        world.turn()
    assert world.pilots.view()["problem"] == world.slurm.down
    assert not [said for said in world.said if said[0] != "until"]
    world.slurm.down = ""
    for _ in range(3):
        world.turn()
    assert world.slurm.cancelled == [100]
    assert world.pilots.view()["problem"] == ""


def test_pilots_of_the_scheduler_before_are_taken_up() -> None:
    world = World(Limits(1, 4))
    world.slurm.listed[7] = SlurmJob(7, REQUEST.name, ("RUNNING",), nodes=("n0",), end_s=5e9)
    world.slurm.listed[6] = SlurmJob(6, REQUEST.name, ("TIMEOUT",), nodes=("n0",), end_s=5e8)
    world.waiting[1] = 4
    world.nodes["n0"] = Use(0, {2: 4}, engine_job="7", until_s=None)
    world.turn()
    assert [pilot["job"] for pilot in world.pilots.view()["pilots"]] == [7]
    assert world.said == [("until", "n0", "7")]
    assert world.slurm.tokens == [], "at most one node"


def test_the_end_gives_back_what_is_idle() -> None:
    world = World(Limits(2, 4))
    world.waiting.update({1: 4, 2: 4})
    world.turn()
    world.turn()
    world.runs(100, "n0")
    world.nodes["n0"] = Use(0, {1: 4})
    world.turn()
    world.pilots.stop()
    assert world.slurm.cancelled == [101]


def test_a_scheduler_that_ends_is_no_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(Limits(2, 4))

    def ends() -> Wanted:
        raise GpuloomError("the scheduler is stopping")

    monkeypatch.setattr(world, "wanted", ends)
    world.turn()
    world.pilots.stop()


@pytest.mark.parametrize("used", [False, True])
def test_in_an_allocation_that_is_there_none_is_asked_for(used: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the end its node processes are told to leave, whether jobs run there or not."""
    world = World(Limits(5, 4, idle_s=60.0), inside=Allocation(50, 2))
    if used:
        world.nodes["n0"] = Use(0, {1: 4}, engine_job="50")
    started: list[tuple[list[str], str]] = []

    class Step:
        def __init__(self, command: list[str], env: Mapping[str, str], **more: object) -> None:
            started.append((command, env[TOKEN]))

        def poll(self) -> int | None:
            return 15 if started[-1][0] == ["terminate"] else None

        def terminate(self) -> None:
            started.append((["terminate"], ""))

        def wait(self, limit_s: float) -> None: ...

    monkeypatch.setattr("gpuloom.live.pilots.subprocess.Popen", Step)
    world.slurm.listed[50] = SlurmJob(50, "bash", ("RUNNING",), nodes=("n0", "n1"), node_count=2)
    world.waiting.update({1: 4, 2: 4, 3: 4})
    for _ in range(3):
        world.turn(100.0)
    (step,) = started
    assert {"srun", "--jobid=50", "--nodes=2", "--overlap"} <= set(step[0])
    assert step[1] == "secret-1"
    assert "secret-1" not in " ".join(step[0])
    world.pilots.stop()
    assert world.slurm.tokens == world.slurm.cancelled == []
    assert started[1:] == [(["terminate"], "")]
    json.dumps(world.pilots.view(), allow_nan=False)


@pytest.mark.parametrize(("settled", "most"), [(False, 2.0), (True, 15.0)])
def test_slurm_is_asked_seldom_once_nothing_changes(
    settled: bool, most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr("gpuloom.live.pilots.time.monotonic", lambda: clock[0])
    world = World(Limits(1, 4))
    world.waiting[1] = 4
    world.turn()
    world.turn()
    world.runs(100, "n0")
    if settled:
        world.waiting.clear()
        world.nodes["n0"] = Use(0, {1: 4})
    world.turn()
    before = world.slurm.looks
    turn: Callable[[], None] = world.pilots.turn
    for _ in range(240):
        clock[0] += 0.25
        turn()
    assert (world.slurm.looks - before) == pytest.approx(60.0 / most, abs=1)
