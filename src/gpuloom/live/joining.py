"""From the register of nodes to the scheduler: who joins is met in a thread of its own, as that asks the node.

What the register says is passed on in its order, so that nobody is lost before it has joined.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from gpuloom.agent.health import Changes
from gpuloom.agent.sample import Sample
from gpuloom.core.job import NodeRecord
from gpuloom.executors.gangs import Gangs
from gpuloom.executors.node import NodePort
from gpuloom.executors.port import ExecutorError, RunStatus
from gpuloom.live.arrivals import Arrivals
from gpuloom.live.scheduler import Scheduler
from gpuloom.live.sights import Sights
from gpuloom.threads import Worker

log = logging.getLogger("gpuloom.nodes")

MEET_S = 10.0
"""How long a node that has joined may take to say what runs there."""
AGAIN_S = 1.0
"""After so long one that did not say is asked again."""


class Clearable(NodePort, Protocol):
    """A node of which a person may say that its GPUs are well again."""

    def clear(self) -> None: ...


class Joining:
    """An `OnNodes` (fleet/registry.py)."""

    def __init__(self, scheduler: Scheduler, gangs: Gangs, sights: Sights) -> None:
        self._scheduler, self._gangs, self._sights = scheduler, gangs, sights
        self._ports: dict[str, Clearable] = {}
        self._queue: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._ended = threading.Event()
        self._worker = Worker("node-arrivals", self._work)

    def start(self) -> None:
        """Begin to pass on."""
        self._worker.start()

    def close(self) -> None:
        """Pass on nothing more."""
        self._ended.set()
        self._queue.put(lambda: None)
        self._worker.end(MEET_S)

    @property
    def problem(self) -> str:
        """'' or why nothing is passed on."""
        return self._worker.problem

    def clear(self, name: str) -> bool:
        """A person says that all GPUs of a node are well again; whether it is one that joined."""
        port = self._ports.get(name)
        if port is not None:
            port.clear()
        return port is not None

    # -- what the register says -----------------------------------------------------------------------------------

    def joined(self, node: Clearable, record: NodeRecord, runs: Sequence[RunStatus]) -> None:
        """See `OnNodes`."""
        self._ports[record.name] = node
        self._queue.put(partial(self._meet, node, record))

    def back(self, name: str) -> None:
        """See `OnNodes`."""
        self._pass_on(lambda arrivals: arrivals.back(name))

    def sampled(self, name: str, sample: Sample, changes: Changes) -> None:
        """See `OnNodes`."""
        # Changes of GPUs and flags come without notes; those of before go on.
        notes = self._sights.of(name).notes if changes.gpus or changes.flags else changes.notes
        self._sights.saw(name, sample, notes)
        self._scheduler.sampled(name, sample.runs, changes.gpus, [(f.run, f.flag, f.text) for f in changes.flags])

    def leaving(self, name: str, why: str) -> None:
        """See `OnNodes`."""
        self._pass_on(lambda arrivals: arrivals.leaves(name, why))

    def cut(self, name: str, why: str) -> None:
        """See `OnNodes`."""
        self._pass_on(lambda arrivals: arrivals.cut(name, why))

    def stuck(self, name: str, why: str) -> None:
        """See `OnNodes`."""
        self._pass_on(lambda arrivals: arrivals.stuck(name, why))

    def lost(self, name: str, why: str) -> None:
        """See `OnNodes`."""
        self._ports.pop(name, None)
        self._pass_on(lambda arrivals: arrivals.lost(name, why))

    def left(self, name: str) -> None:
        """See `OnNodes`."""
        self._ports.pop(name, None)
        self._pass_on(lambda arrivals: arrivals.left(name))

    # -- the thread -----------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while not self._ended.is_set():
            self._queue.get()()

    def _pass_on(self, call: Callable[[Arrivals], None]) -> None:
        self._queue.put(lambda: self._scheduler.post(lambda: call(self._scheduler.arrivals)))

    def _meet(self, node: Clearable, record: NodeRecord) -> None:
        """Meet a node that has joined. One that is cut off meanwhile is met once it is back, unless it is lost."""
        name = record.name
        if self._ports.get(name) is not node:
            return
        try:
            self._gangs.add(node, patience_s=MEET_S)
        except ExecutorError as error:
            log.warning("node %s has joined and can't be asked what runs there: %s", name, error)
            again = threading.Timer(AGAIN_S, self._queue.put, [partial(self._meet, node, record)])
            again.name, again.daemon = "node-again", True
            again.start()
            return
        self._scheduler.post(lambda: self._scheduler.arrivals.joined(record))
