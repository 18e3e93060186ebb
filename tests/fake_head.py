"""A head without a scheduler: its register of nodes, who notes what that tells, and connections that carry nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpuloom.agent.health import Changes
from gpuloom.agent.sample import Sample
from gpuloom.core.job import Gpu, NodeRecord
from gpuloom.executors.port import RunStatus
from gpuloom.fleet.codec import plain
from gpuloom.fleet.joined import JoinedNode
from gpuloom.fleet.messages import VERSION, Hello, Joined, data_of
from gpuloom.fleet.registry import Nodes
from gpuloom.fleet.token import Tokens
from until import until

RECORD = NodeRecord("n1", (Gpu(0, "cpu-0", "CPU"),))


class Wire:
    """What is sent on it is noted, what comes is said by hand.

    Attributes:
        frames: what was sent over it. why: with what it was closed; None: it was not.
    """

    def __init__(self) -> None:
        self.frames: list[dict[str, Any]] = []
        self.why: str | None = None

    def send(self, text: str) -> None:
        self.frames.append(json.loads(text))

    def close(self, why: str = "") -> None:
        self.why = why

    @property
    def closed(self) -> bool:
        return self.why is not None

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The numbered messages among the frames."""
        return [frame["m"] for frame in self.frames if "n" in frame]

    @property
    def kinds(self) -> list[str]:
        """Their kinds."""
        return [message["kind"] for message in self.messages]


class Scheduler:
    """An `OnNodes`.

    Attributes:
        told: what it was told, in order. nodes: those that have joined. changes: of samples. why_cut: by name.
    """

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []
        self.nodes: dict[str, JoinedNode] = {}
        self.changes: list[Changes] = []
        self.why_cut: dict[str, str] = {}

    def joined(self, node: JoinedNode, record: NodeRecord, runs: Sequence[RunStatus]) -> None:
        self.nodes[node.name] = node
        self.told.append(("joined", record.name, [status.run for status in runs]))

    def back(self, name: str) -> None:
        self.told.append(("back", name))

    def sampled(self, name: str, sample: Sample, changes: Changes) -> None:
        self.told.append(("sampled", name, sample.at_s))
        self.changes.append(changes)

    def leaving(self, name: str, why: str) -> None:
        self.told.append(("leaving", name))

    def cut(self, name: str, why: str) -> None:
        self.told.append(("cut", name))
        self.why_cut[name] = why

    def stuck(self, name: str, why: str) -> None:
        self.told.append(("stuck", name, why))

    def lost(self, name: str, why: str) -> None:
        self.told.append(("lost", name))

    def left(self, name: str) -> None:
        self.told.append(("left", name))


class Head:
    """A register of nodes with a clock by hand, and what nodes say to it. now: seconds."""

    def __init__(self, folder: Path) -> None:
        self.now = 100.0
        self.on = Scheduler()
        self.tokens = Tokens(folder / "tokens.json")
        self.token = self.tokens.mint()
        self.nodes = Nodes(folder / "nodes.json", self.tokens, self.on, reserved=["head"], monotonic=lambda: self.now)

    def call(self, **hello: Any) -> Wire:
        """A node connects and says hello."""
        wire = Wire()
        self.nodes.opened(wire, self.token.shown)
        who = Hello(**{"version": VERSION, "name": "n1", "home": "h", "process": "p", "boot_id": "b", **hello})
        self.say(wire, hello=plain(who))
        until(lambda: wire.frames)
        return wire

    def say(self, wire: Wire, **frame: Any) -> None:
        self.nodes.received(wire, json.dumps(frame))

    def join(self, runs: tuple[RunStatus, ...] = (), **hello: Any) -> Wire:
        wire = self.call(**hello)
        assert wire.frames[0]["welcome"]["resumed"] is False
        before = len(self.on.told)
        self.say(wire, n=1, m=data_of(Joined(RECORD, runs)), ack=0)
        until(lambda: len(self.on.told) > before)
        return wire
