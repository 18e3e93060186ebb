"""Members of an elastic job under torchrun come and go as pods do, and the others run on, told by the words we give."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuloom.core.job import DeviceKind
from gpuloom.core.spec import Launcher
from gpuloom.executors.launchers import launched, told
from gpuloom.executors.node import Peer, RunSpec
from until import until

SCRIPT = str(Path(__file__).parent / "scripts" / "world_size.py")


class Members:
    """Each is a torchrun of its own on this machine, as in a pod."""

    def __init__(self, folder: Path, python: str) -> None:
        self.said, self.end, self.log = folder / "said", folder / "end", folder / "log"
        self.said.touch()
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
        command = (python, "-m", "torch.distributed.run", SCRIPT, str(self.said), str(self.end))
        spec = RunSpec("7.1-ab", command, "/", {}, (0,), (), DeviceKind.CPU, peers=(Peer("n0", "127.0.0.1", 1),),
                       port=port, launcher=Launcher.TORCHRUN, sizes=(1, 4))  # fmt: skip
        self.words, self.told = launched(spec, {}), told(spec)
        self.agents: list[subprocess.Popen[bytes]] = []

    def come(self) -> None:
        env = {**os.environ, **self.told, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        with self.log.open("ab") as log:
            self.agents.append(subprocess.Popen(self.words, env=env, stdout=log, stderr=log))

    def at_size(self, size: int) -> None:
        """All agents that are alive have a process that was told this size last."""

        def there() -> bool:
            last = {int(agent): int(of) for _, of, agent, _ in map(str.split, self.said.read_text().splitlines())}
            alive = [one.pid for one in self.agents if one.poll() is None]
            return len(alive) == size and all(last.get(pid) == size for pid in alive)

        until(there, f"a world of {size}: {self.said.read_text()}", 120.0)


@pytest.fixture
def members(tmp_path: Path, training_python: str) -> Iterator[Members]:
    made = Members(tmp_path, training_python)
    yield made
    for one in made.agents:
        if one.poll() is None:
            one.kill()
        one.wait()


def test_they_come_and_go_and_the_others_run_on(members: Members) -> None:
    for size in (1, 2, 3):
        members.come()
        members.at_size(size)
    first, second, third = members.agents
    third.send_signal(signal.SIGTERM)
    third.wait(60)
    members.at_size(2)
    assert first.poll() is second.poll() is None, "whoever stays is not started anew"
    members.end.touch()
    assert [one.wait(60) for one in (first, second)] == [0, 0], members.log.read_text()


def test_one_that_is_killed_is_replaced_and_the_others_run_on(members: Members) -> None:
    """As a pod that Volcano makes anew: nothing but its agent is new."""
    for size in (1, 2, 3):
        members.come()
        members.at_size(size)
    first, second, third = members.agents
    second.kill()
    second.wait(60)
    members.come()
    members.at_size(3)
    assert first.poll() is third.poll() is None, "whoever stays is not started anew"
    members.end.touch()
    assert [one.wait(60) for one in (first, third, members.agents[-1])] == [0, 0, 0], members.log.read_text()
