"""The real scheduler with machines that join, on paper: all stands still until it is told."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from fake_node import FakeMachine, FakeNode
from gpuloom.core.job import Gpu, NodeRecord, NodeSource, NodeState
from gpuloom.executors.gangs import Gangs
from gpuloom.executors.local_node import LocalNode
from gpuloom.live.trial.rehearsal import NOWHERE, Rehearsal


class Cluster(Rehearsal):
    """A head with two GPUs of its own, and machines of four that join: all stands still until it is told."""

    def __init__(self, *names: str, policy: str = "fifo") -> None:
        self.machines = {name: FakeMachine(name) for name in names}
        super().__init__(policy, models=["V100"] * 2, interval_s=0.0)
        for name in names:
            self.join(name)

    def gangs(self, node: NodeRecord) -> Gangs:
        self.ports: dict[str, FakeNode] = {}
        known = [] if not hasattr(self, "scheduler") else self.store.load().nodes
        # In this thread alone: what another one still does when a test looks is not seen.
        gangs = Gangs([LocalNode(node.name, self.executor, NOWHERE, devices=self.devices)], background=False)
        gangs.waiting |= {
            one.name for one in known if one.source is not NodeSource.HERE and one.state is not NodeState.DOWN
        }
        return gangs

    def join(self, name: str, **changes: Any) -> None:
        """A machine is there, for the first time or again (what live/joining.py does, in this thread)."""
        port = self.ports[name] = FakeNode(name, self.machines[name])
        self.scheduler.gangs.add(port)
        gpus = tuple(Gpu(index, f"{name}-{index}", "V100", 16_000) for index in range(4))
        record = NodeRecord(name, gpus, source=NodeSource.JOINED, address=name, **changes)
        self.scheduler.arrivals.joined(record)
        self.turn()

    def join_new(self, name: str) -> None:
        """A machine that has not been there before."""
        self.machines[name] = FakeMachine(name)
        self.join(name)

    def turn(self) -> None:
        """What runs left on other nodes is looked at in threads: wait for them, too."""
        while True:
            super().turn()
            looking = [thread for thread in threading.enumerate() if thread.name == "last-words"]
            if not looking:
                return
            for thread in looking:
                thread.join(30.0)

    def lose(self, name: str, why: str = "nothing was heard of it for 20 s") -> None:
        self.scheduler.arrivals.lost(name, why)
        self.turn()

    def where(self, *jobs: int) -> list[str]:
        return [self.service.job(job)["where"] for job in jobs]

    def states(self, *jobs: int) -> list[str]:
        return [self.service.job(job)["state"] for job in jobs]

    def nodes(self) -> dict[str, tuple[str, str]]:
        return {view["name"]: (view["state"], view["reason"]) for view in self.service.nodes()}

    def asked(self, name: str) -> Sequence[str]:
        """Runs whose command was begun on a machine."""
        return [run.partition("-")[0] for run in self.machines[name].ran]
