"""A live scheduler that is driven step by step: the real one, with a clock that stands still, a store in memory and no
processes.

It runs in the caller's thread, a turn at a time, so that thousands of histories are tried in seconds: by
`gpuloom policies check`, and by tests.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gpuloom.core.book import node_data
from gpuloom.core.job import ENDED, Gpu, GpuState, Job, NodeRecord, NodeSource, Phase
from gpuloom.executors.gangs import Gangs
from gpuloom.executors.local_node import LocalNode
from gpuloom.executors.paper import PaperDevices, PaperExecutor
from gpuloom.live.clock import ServiceClock
from gpuloom.live.facade import LiveService
from gpuloom.live.scheduler import MEET_S, Scheduler
from gpuloom.live.sights import Sights
from gpuloom.live.submission.spec import job_spec
from gpuloom.sharing.start import Ability
from gpuloom.store.memory import MemoryStore

NOWHERE = Path("/nowhere/runs")
FLEET = (*["V100"] * 4, *["K80"] * 2)
"""A machine whose GPUs are of two models: two nodes, as a policy sees it."""


class Rehearsal:
    """See the module. What the scheduler is told from outside goes through the service, as the API's calls do."""

    def __init__(self, policy: str, *, models: Sequence[str] = FLEET, interval_s: float = 60.0) -> None:
        self.now_s = 1_000_000.0
        self.executor, self.devices, self.store = PaperExecutor(), PaperDevices(), MemoryStore()
        gpus = tuple(Gpu(index, f"gpu-{index}", model, 16_000) for index, model in enumerate(models))
        self.node = NodeRecord("here", gpus)
        self.sights: Sights
        self.scheduler: Scheduler
        self.service: LiveService
        self.up(policy, interval_s)

    def up(self, policy: str, interval_s: float) -> None:
        """Begin, with what the store holds."""
        loaded = self.store.load()
        clock = ServiceClock(loaded.last_event_s, wall=lambda: self.now_s, monotonic=lambda: self.now_s)
        node = next((known for known in loaded.nodes if known.source is NodeSource.HERE), self.node)
        self.sights = Sights()
        self.scheduler = Scheduler(
            store=self.store,
            loaded=loaded,
            gangs=self.gangs(node),
            sights=self.sights,
            clock=clock,
            here=node.name,
            runs=NOWHERE,
            policy=policy,
            interval_s=interval_s,
            sharing=Ability(True, False, "on paper"),
            timer=lambda: 0.0,  # a pass takes no time: what waits for a multiple of that waits for nothing
        )
        self.scheduler._thread = threading.current_thread()
        self.service = LiveService(self.scheduler, self.sights, store_path="", on_stop=lambda: None)
        if not loaded.nodes:
            self.scheduler.ledger.write([("node.changed", None, {"node": node_data(node)})])
        if loaded.settings.get("policy") != policy:
            self.scheduler.ledger.write([("policy.set", None, {"policy": policy, "interval_s": interval_s})])
        self.scheduler._recover(self.scheduler.meeting.now(MEET_S))
        self.turn()

    def gangs(self, node: NodeRecord) -> Gangs:
        """The nodes of a scheduler that begins. node: this machine's."""
        return Gangs([LocalNode(node.name, self.executor, NOWHERE, devices=self.devices)], background=False)

    def restart(self, *, orderly: bool) -> None:
        """The scheduler ends, in order or by kill -9, and another one takes over what is on disk."""
        planning = self.scheduler.planning
        if orderly:
            self.scheduler._save_memory(force=True)
        self.executor.close()
        self.up(planning.seat.written, planning.seat.interval_s)

    @property
    def jobs(self) -> dict[int, Job]:
        return self.scheduler.book.jobs

    def turn(self) -> None:
        """Let the scheduler do all that is to be done now."""
        scheduler = self.scheduler
        for _ in range(200):
            scheduler._inbox.put(lambda: None)
            scheduler.planning.times.quiet_until_s = -1.0
            scheduler._turn()
            if not scheduler.busy():
                return
        raise AssertionError("the scheduler does not settle")

    def tell(self, call: Callable[[], Any]) -> Any:
        """Call the service, then let the scheduler act on it."""
        found = call()
        self.turn()
        return found

    def submit(self, *specs: dict[str, Any], user: str = "ann") -> list[int]:
        made = [job_spec({"command": ["train"], "workdir": "/", **spec}) for spec in specs]
        return [job for group in self.tell(lambda: self.service.submit(made, user=user)) for job in group]

    def end(self, run: str, code: int | None = 0) -> None:
        self.executor.end(run, code, signal=9 if code is None else None)
        self.turn()

    def later(self, seconds: float) -> None:
        """Time goes on; the scheduler wakes whenever it wants to meanwhile."""
        until = self.now_s + seconds
        for _ in range(50):
            due = self.scheduler.planning.due_s()
            if not self.now_s < due <= until:
                break
            self.now_s = due
            self.turn()
        self.now_s = until
        self.turn()

    def gpus(self, states: dict[int, str]) -> None:
        """GPUs of the machine are lost or come back, as the monitor tells."""
        seen = [Gpu(index, f"gpu-{index}", "", None, GpuState(state), "") for index, state in states.items()]
        self.scheduler.sampled(self.node.name, {}, seen, [])
        self.turn()

    def going(self) -> list[int]:
        """Jobs that have not ended."""
        return [number for number, job in self.jobs.items() if job.phase not in ENDED]

    def queued(self) -> list[int]:
        return [number for number, job in self.jobs.items() if job.phase is Phase.QUEUED]
