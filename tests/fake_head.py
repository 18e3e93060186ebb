"""Parts of a head without a scheduler: a connection that carries nothing, and who notes what the register tells."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from gpuloom.agent.health import Changes
from gpuloom.agent.sample import Sample
from gpuloom.core.job import NodeRecord
from gpuloom.executors.port import RunStatus
from gpuloom.fleet.joined import JoinedNode


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
    """An `OnNodes`. told: what it was told, in order. nodes: those that have joined. why_cut: by name."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []
        self.nodes: dict[str, JoinedNode] = {}
        self.why_cut: dict[str, str] = {}

    def joined(self, node: JoinedNode, record: NodeRecord, runs: Sequence[RunStatus]) -> None:
        self.nodes[node.name] = node
        self.told.append(("joined", record.name, [status.run for status in runs]))

    def back(self, name: str) -> None:
        self.told.append(("back", name))

    def sampled(self, name: str, sample: Sample, changes: Changes) -> None:
        self.told.append(("sampled", name, sample.at_s))

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
