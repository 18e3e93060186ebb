"""Members of a gang as real processes on two nodes of this machine: held, begun together, they find each other."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from fake_views import attempt, record
from gpuloom.core.job import DeviceKind, EndReason, Gpu, NodeRecord
from gpuloom.executors.gangs import Gangs
from gpuloom.executors.local import LocalExecutor
from gpuloom.executors.local_node import LocalNode
from gpuloom.executors.node import RunSpec
from gpuloom.executors.port import Cause, RunPhase, RunStatus
from gpuloom.live.dispatch.launch import run_specs
from gpuloom.live.submission.spec import job_spec
from until import until

MEET = """
import os, socket
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
place = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
if rank == 0:
    with socket.create_server(place, backlog=world) as server:
        found = {rank}
        while len(found) < world:
            other, _ = server.accept()
            with other, other.makefile() as file:
                found.add(int(file.read()))
    print("met", sorted(found), flush=True)
else:
    while True:
        try:
            with socket.create_connection(place) as master:
                master.sendall(str(rank).encode())
            break
        except ConnectionRefusedError:
            continue
"""
SERVES = """
import json, os, signal, socket, sys
config = json.loads(os.environ["TF_CONFIG"])
cluster, kind, index = config["cluster"], config["task"]["type"], config["task"]["index"]
if kind == "chief":
    others = [at for of in ("worker", "ps") for at in cluster[of]]
    said = []
    while len(said) < len(others):
        host, port = others[len(said)].rsplit(":", 1)
        try:
            with socket.create_connection((host, int(port))) as server, server.makefile() as file:
                said.append(file.read())
        except ConnectionRefusedError:
            continue
    print("chief heard", *said, flush=True)
    sys.exit(0)
host, port = cluster[kind][index].rsplit(":", 1)
with socket.create_server((host, int(port))) as server:
    while True:
        one, _ = server.accept()
        with one:
            one.sendall(f"{kind}{index}".encode())
"""
TORCHRUN = """#!/bin/sh
echo "${PET_NODE_RANK:-}$@"
"""


class Two:
    """Two nodes of this machine, with homes of their own."""

    def __init__(self, folder: Path, *, opened: bool = True) -> None:
        self.records = {
            name: NodeRecord(
                name, tuple(Gpu(n, "", "slot") for n in range(4)), kind=DeviceKind.CPU, address="127.0.0.1"
            )
            for name in ("a", "b")
        }
        self.told: dict[str, list[RunStatus]] = {"a": [], "b": []}
        self.nodes = {
            name: LocalNode(name, LocalExecutor(folder / name, cgroups="off"), folder / name / "runs")
            for name in self.records
        }
        for name, node in self.nodes.items() if opened else ():
            node.open(self.told[name].append)

    def specs(self, *command: str, held: Any = (("a", (0,)), ("b", (1, 3))), **given: Any) -> Sequence[RunSpec]:
        spec = job_spec({"command": list(command), "gpus": sum(len(gpus) for _, gpus in held), **given}).named().kept()
        run = attempt(allocation=held, identity="ab")
        return run_specs(record(spec=spec), run, self.records, resumes=False, environment=given.get("env"))

    def said(self, spec: RunSpec, *phases: RunPhase) -> RunStatus | None:
        name = spec.peers[spec.rank].node
        return next((one for one in self.told[name] if one.run == spec.run and one.phase in phases), None)

    def node(self, spec: RunSpec) -> LocalNode:
        return self.nodes[spec.peers[spec.rank].node]

    def run(self, specs: Sequence[RunSpec]) -> list[RunStatus]:
        """In both phases, to the end."""
        for spec in specs:
            self.node(spec).start(spec)
        for spec in specs:
            if spec.hold:
                until(
                    lambda spec=spec: self.said(spec, RunPhase.PREPARED, RunPhase.EXITED), f"{spec.run} to be prepared"
                )
        for spec in specs:
            if spec.hold:
                self.node(spec).go(spec.run)
        return [until(lambda spec=spec: self.said(spec, RunPhase.EXITED), f"{spec.run} to end") for spec in specs]

    def log(self, spec: RunSpec) -> str:
        return self.node(spec).files.read_log(spec.run)[0].decode()

    def end_all(self) -> None:
        for node in self.nodes.values():
            for status in node.runs():
                node.stop(status.run, reason=EndReason.CANCELLED, grace_s=0.0)
            until(lambda node=node: all(status.exit for status in node.runs()), "all to end")
            for status in node.runs():
                node.acknowledge(status.run)


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Two]:
    there = Two(tmp_path)
    yield there
    there.end_all()
    for node in there.nodes.values():
        node.close()


@pytest.fixture
def gangs(tmp_path: Path) -> Iterator[tuple[Two, Gangs, list[RunStatus]]]:
    """The two nodes as the scheduler sees them, and what it is told."""
    there, told = Two(tmp_path, opened=False), list[RunStatus]()
    found = Gangs(there.nodes.values())
    found.open(told.append)
    yield there, found, told
    there.end_all()
    found.close()


def test_a_process_for_each_gpu_of_two_nodes_and_they_meet_at_the_master(two: Two) -> None:
    specs = two.specs(sys.executable, "-I", "-S", "-c", MEET, per="gpu")
    ends = [one.exit for one in two.run(specs)]
    assert [(end.exit_code, end.message) for end in ends if end] == [(0, ""), (0, "")]
    assert two.log(specs[0]) == "met [0, 1, 2]\n"
    assert two.log(specs[1]) == ""


def test_one_that_fails_ends_its_member_with_its_code_and_is_named(two: Two) -> None:
    specs = two.specs("sh", "-c", 'test "$RANK" = 2 && exit 7; exec sleep 600', per="gpu", held=(("a", (0, 1, 2)),))
    (end,) = (one.exit for one in two.run(specs))
    assert end is not None
    assert (end.exit_code, end.reason) == (7, None)
    assert two.log(specs[0]).strip() == (
        "gpuloom: rank 2 (local rank 2) ended with exit code 7; the other 2 here are ended"
    )


def test_parameter_servers_serve_the_chief_on_two_nodes_and_end_with_it(
    gangs: tuple[Two, Gangs, list[RunStatus]],
) -> None:
    two, scheduler, told = gangs
    command = (sys.executable, "-I", "-S", "-c", SERVES)
    specs = two.specs(*command, launcher="tensorflow", ps=2, per="gpu", grace=1)
    scheduler.start(specs)
    end = ended(told)
    assert end.exit is not None
    assert (end.exit.exit_code, end.exit.reason, end.exit.released) == (0, None, True)
    assert two.log(specs[0]) == "chief heard worker0 worker1 worker2 ps0 ps1\n"
    scheduler.acknowledge(end.run)


@pytest.mark.parametrize("command", [("torchrun", "train.py"), ("sh", "-c", "exec torchrun train.py")])
def test_torchrun_finds_what_its_command_line_leaves_out(two: Two, tmp_path: Path, command: tuple[str, ...]) -> None:
    (tmp_path / "torchrun").write_text(TORCHRUN)
    (tmp_path / "torchrun").chmod(0o755)
    specs = two.specs(*command, env={"PATH": f"{tmp_path}:/bin:/usr/bin"})
    assert [one.exit.exit_code for one in two.run(specs) if one.exit] == [0, 0]
    for rank, spec in enumerate(specs):
        if command[0] == "sh":
            assert two.log(spec) == f"{rank}train.py\n"
        else:
            words = two.log(spec).split()
            assert {f"--node_rank={rank}", "--nnodes=2", f"--nproc_per_node={rank + 1}"} < set(words)
            assert words[-1] == "train.py"


def test_a_member_that_can_t_be_prepared_says_so_while_the_other_is_held(two: Two) -> None:
    first, second = two.specs("sh", "-c", "echo ran", venv="/no/such/venv")
    for spec in (first, second):
        two.node(spec).start(spec)
        told = until(lambda spec=spec: two.said(spec, RunPhase.EXITED), "its end")
        assert told.exit.reason is EndReason.NOT_STARTED
        assert "there is no directory /no/such/venv" in told.exit.message


# -- as one attempt ------------------------------------------------------------------------------------------


def ended(told: Sequence[RunStatus]) -> RunStatus:
    found: RunStatus = until(lambda: next((one for one in told if one.phase is RunPhase.EXITED), None), "its end")
    return found


def test_all_of_it_runs_and_ends_well(gangs: tuple[Two, Gangs, list[RunStatus]]) -> None:
    two, scheduler, told = gangs
    specs = two.specs(sys.executable, "-I", "-S", "-c", MEET, per="gpu")
    scheduler.start(specs)
    end = ended(told)
    assert end.run == specs[0].run
    assert end.exit is not None
    assert (end.exit.exit_code, end.exit.reason, end.exit.released) == (0, None, True)
    assert [one.status.exit.exit_code for one in end.members if one.status.exit] == [0, 0]
    assert two.log(specs[0]) == "met [0, 1, 2]\n"
    running = next(one for one in told if one.phase is RunPhase.RUNNING)
    assert len({one.status.pid for one in running.members}) == 2
    scheduler.acknowledge(end.run)


def test_the_member_that_fails_ends_it_with_the_tail_of_its_own_log(gangs: tuple[Two, Gangs, list[RunStatus]]) -> None:
    two, scheduler, told = gangs
    words = 'test "$GPULOOM_NODE_RANK" = 1 && { echo out of luck; exit 9; }; exec sleep 600'
    specs = two.specs("sh", "-c", words)
    scheduler.start(specs)
    end = ended(told)
    assert end.exit is not None
    assert end.exit.exit_code == 9
    assert "member 1 on b" in end.exit.message
    assert "out of luck" in end.exit.message
    master, other = (one.status.exit for one in end.members)
    assert master is not None
    assert other is not None
    assert (master.reason, other.exit_code) == (EndReason.PEER, 9)
    scheduler.acknowledge(end.run)


def test_a_port_in_use_keeps_all_of_it_from_beginning(
    gangs: tuple[Two, Gangs, list[RunStatus]], tmp_path: Path
) -> None:
    two, scheduler, told = gangs
    specs = two.specs("touch", str(tmp_path / "ran"))
    assert specs[0].port is not None
    with socket.create_server(("127.0.0.1", specs[0].port)):
        scheduler.start(specs)
        end = ended(told)
    assert end.exit is not None
    assert (end.exit.reason, end.exit.cause, end.exit.released) == (EndReason.NOT_STARTED, Cause.PLACE, True)
    assert f"port {specs[0].port}" in end.exit.message
    assert not (tmp_path / "ran").exists()
    scheduler.acknowledge(end.run)
