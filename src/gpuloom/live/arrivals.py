"""Nodes that join, are cut off, are lost, leave, or are ours until a time: what the scheduler does then.

Used by the scheduler's thread alone. A node that is lost takes no job with it: what ran there waits again, without
a retry used up, and goes on elsewhere (executors/gangs.py says that the runs are over).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace

from gpuloom.core.book import node_data
from gpuloom.core.job import Gpu, GpuState, NodeRecord, NodeSource, NodeState
from gpuloom.executors.gangs import Gangs
from gpuloom.live.planning.planning import Planning
from gpuloom.live.records.ledger import Ledger
from gpuloom.live.sights import Sights
from gpuloom.store.errors import StoreError

log = logging.getLogger("gpuloom.scheduler")


def as_before(node: NodeRecord, known: NodeRecord | None) -> NodeRecord:
    """A node that is back, with what was said of it and of its GPUs before."""
    if known is None:
        return node
    states = {gpu.uuid: gpu for gpu in known.gpus}
    gpus = tuple(_gpu_as_before(gpu, states.get(gpu.uuid)) for gpu in node.gpus)
    state, reason = (NodeState.UP, "") if known.state == NodeState.DOWN else (known.state, known.reason)
    # What was said last of its end is newer than what it knew when it began.
    until_s = known.until_s if node.engine_job and node.engine_job == known.engine_job else node.until_s
    return replace(node, gpus=gpus, state=state, reason=reason, since_s=known.since_s, until_s=until_s)


def _gpu_as_before(gpu: Gpu, known: Gpu | None) -> Gpu:
    if known is None or gpu.state != GpuState.OK:
        return gpu
    return replace(gpu, state=known.state, reason=known.reason, since_s=known.since_s, needs_reset=known.needs_reset)


class Arrivals:
    """See the module."""

    def __init__(
        self,
        ledger: Ledger,
        planning: Planning,
        gangs: Gangs,
        sights: Sights,
        *,
        now: Callable[[], float],
        set_node: Callable[[str, NodeState, str], None],
        empty_node: Callable[[str], None],
        met: Callable[[str], None],
    ) -> None:
        """set_node: as a person opens or closes a node. empty_node: have all jobs on it save and go on elsewhere.
        met: told of a node that records know and that is there for the first time since the scheduler began: the
        attempts there are to be taken up."""
        self._ledger, self._planning, self._gangs, self._sights = ledger, planning, gangs, sights
        self._now, self._set_node, self._empty_node, self._met = now, set_node, empty_node, met
        self._ends: dict[str, str] = {}
        """Nodes that are closed as their time with us ends, and the words with which they were."""
        self._unwritten: dict[str, NodeRecord] = {}
        """What the store could not take yet."""

    @property
    def _nodes(self) -> Mapping[str, NodeRecord]:
        return {**self._ledger.book.nodes, **self._unwritten} if self._unwritten else self._ledger.book.nodes

    def joined(self, node: NodeRecord) -> None:
        """A node is there, for the first time or again. Gangs have met it, and know what runs there."""
        known = self._nodes.get(node.name)
        self._sights.cut.pop(node.name, None)
        now_there = as_before(node, known)
        if known is not None and known.reason == self._ends.pop(node.name, None):
            now_there = replace(now_there, state=NodeState.UP, reason="")
        if known is None or replace(now_there, cause=known.cause) != known:
            self._write(now_there)
        log.info("node %s is there: %d GPUs", node.name, len(node.gpus))
        if node.name in self._gangs.waiting:
            self._gangs.waiting.discard(node.name)
            self._met(node.name)
        self._planning.stale()

    def cut(self, name: str, why: str) -> None:
        """It can't be talked to: nothing is started there, what runs there goes on."""
        if name in self._nodes:
            log.warning("node %s: %s", name, why)
            self._sights.cut[name] = why

    def back(self, name: str) -> None:
        """It can be talked to again."""
        if self._sights.cut.pop(name, None) is not None:
            log.warning("node %s can be talked to again", name)
            self._planning.stale()

    def stuck(self, name: str, why: str) -> None:
        """It can't come back yet, as what ran there does not end."""
        node = self._nodes.get(name)
        if node is not None and node.state is NodeState.DOWN and node.reason != why:
            self._write(replace(node, reason=why))
        elif node is not None and node.state is not NodeState.DOWN:
            self._sights.cut[name] = why

    def lost(self, name: str, why: str) -> None:
        """Nothing of ours runs there any more, for sure: its jobs go on elsewhere."""
        self._gone(name, why)

    def left(self, name: str) -> None:
        """It left in order."""
        self._gone(name, "it left")

    def _gone(self, name: str, why: str) -> None:
        self._gangs.waiting.discard(name)
        self._gangs.lost(name, why)
        self._sights.forget(name)
        self._ends.pop(name, None)
        node = self._nodes.get(name)
        if node is not None and node.state is not NodeState.DOWN:
            log.warning("node %s is gone: %s", name, why)
            self._write(replace(node, state=NodeState.DOWN, reason=why, since_s=self._now()))
        self._planning.stale()

    def ours_until(self, name: str, until_s: float | None, engine_job: str) -> None:
        """How long a node is ours has become known, or has changed. until_s: by the scheduler's clock."""
        node = self._nodes.get(name)
        if node is not None and (node.until_s, node.engine_job) != (until_s, engine_job):
            self._write(replace(node, until_s=until_s, engine_job=engine_job))
            self._planning.stale()

    def closes(self, name: str, why: str) -> None:
        """Its time with us ends: jobs are told to save and go on elsewhere, nothing new starts."""
        node = self._nodes.get(name)
        if node is not None and node.state in (NodeState.UP, NodeState.CORDONED):
            self._ends[name] = why
            self._set_node(name, NodeState.DRAINING, why)

    def leaves(self, name: str, why: str) -> None:
        """It says that it leaves. A node of an allocation is taken away soon, so that those who can't be moved are told
        to save as well; any other one waits for them."""
        self.closes(name, why)
        node = self._nodes.get(name)
        if node is not None and node.source is NodeSource.SLURM:
            self._empty_node(name)

    def write(self) -> None:
        """Write down what could not be before. Raises StoreError."""
        if self._unwritten:
            nodes = list(self._unwritten.values())
            self._ledger.write([("node.changed", None, {"node": node_data(node)}) for node in nodes])
            self._unwritten.clear()
            self._planning.stale()

    def _write(self, node: NodeRecord) -> None:
        self._unwritten[node.name] = node
        with suppress(StoreError):  # the next turn tries again, and says why it can't
            self.write()
