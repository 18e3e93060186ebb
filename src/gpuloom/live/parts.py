"""All parts of a running scheduler but the API: store, executor, scheduler, monitor."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace

from gpuloom import __version__
from gpuloom.agent.health import Changes
from gpuloom.agent.inventory import inventory
from gpuloom.agent.nvml import Nvml
from gpuloom.agent.sample import RunOnNode, Sample
from gpuloom.core.book import node_data
from gpuloom.core.errors import GpuloomError
from gpuloom.core.job import DeviceKind, Gpu, GpuState, NodeRecord, NodeState, Phase
from gpuloom.executors.local import LocalExecutor
from gpuloom.executors.port import LiveExecutor
from gpuloom.live.clock import ServiceClock
from gpuloom.live.dispatch.launch import run_directory
from gpuloom.live.machine import Machine, reported
from gpuloom.live.records.ledger import Draft
from gpuloom.live.scheduler import Scheduler
from gpuloom.live.steps import Step
from gpuloom.live.store_check import StoreCheck, examine
from gpuloom.live.submission.spec import LONGEST_S, SHORTEST_INTERVAL_S
from gpuloom.live.submission.spec import interval as checked_interval
from gpuloom.policies.registry import parse_policy
from gpuloom.sharing.start import ability
from gpuloom.store.home import Home, take_lock
from gpuloom.store.port import Store
from gpuloom.store.sqlite import SqliteStore

DEFAULT_POLICY = "fifo:backfill=easy"
"""Preempts no running job, and lets small jobs go first only if that delays no larger job."""
DEFAULT_INTERVAL_S = 360.0


class LiveScheduler:
    """All parts of a running scheduler but the API, joined. `start`, then `close`."""

    def __init__(
        self,
        home: Home,
        *,
        slots: int | None = None,
        policy: str | None = None,
        interval_s: float | None = None,
        nvml: Nvml | None = None,
        store: Store | None = None,
        executor: LiveExecutor | None = None,
        at: Callable[[Step], None] = lambda step: None,
    ) -> None:
        """nvml, store, executor: others than the usual ones, for tests. at: told of each step of the start.

        Raises:
            StoreError, StoreBusy: the store can't be used. StoreDamagedError: it must not be gone on with.
            InputError: no GPUs and no slots; an unknown policy.
        """
        self.machine: Machine
        self._at = at
        at(Step.HOME)
        self.home = home.create()
        if policy is not None:
            parse_policy(policy)
        at(Step.LOCK)
        self.lock = take_lock(self.home)
        with ExitStack() as undo:  # of what was taken, should the rest fail
            undo.callback(self.lock.release)
            at(Step.STORE)
            self.store: Store = store if store is not None else SqliteStore(self.home.db)
            undo.callback(self.store.close)
            at(Step.CHECK)
            examined = examine(self.home, self.store)
            at(Step.LOAD)
            loaded = self.store.load()
            at(Step.MACHINE)
            self.clock = ServiceClock(loaded.last_event_s)
            self.nvml = nvml if nvml is not None else Nvml()
            before = {node.name: node for node in loaded.nodes}
            node = self._node(before, slots)
            settings = loaded.settings
            chosen = policy or str(settings.get("policy") or DEFAULT_POLICY)
            # One of an older store may be below what is taken now.
            stored = max(float(settings.get("interval_s", DEFAULT_INTERVAL_S)), 0.0)
            stored = min(max(stored, SHORTEST_INTERVAL_S), LONGEST_S) if stored else 0.0
            interval = stored if interval_s is None else checked_interval(interval_s)
            attempts = {attempt.job: attempt.run for attempt in loaded.attempts}
            flags = {attempts[job.id]: job.flags for job in loaded.jobs if job.id in attempts and job.flags}
            self.executor = (
                executor
                if executor is not None
                else LocalExecutor(self.home.path, gpu_processes=lambda uuids: self.machine.gpu_processes(uuids))
            )
            limits = getattr(self.executor, "limits", dict)
            self.machine = Machine(node, self.nvml, disk=self.home.path, limits=limits, flags=flags)
            self.scheduler = Scheduler(
                store=self.store,
                loaded=loaded,
                executor=self.executor,
                clock=self.clock,
                node=node,
                runs=self.home.runs,
                policy=chosen,
                interval_s=interval,
                reported=self._reported,
                on_up=lambda: self._again_well(),
                sharing=ability(node, os.environ),
            )
            self.check = None if examined.complete else StoreCheck(self.home.db, self.scheduler.checked)
            undo.pop_all()
        self._first: list[Draft] = [("scheduler.started", None, {"pid": os.getpid(), "version": __version__})]
        for name, known in before.items():
            if name != node.name:
                gone = replace(known, state=NodeState.DOWN, reason="not this machine")
                if known.state != NodeState.DOWN:
                    self._first.append(("node.changed", None, {"node": node_data(gone)}))
        if (known_now := before.get(node.name)) is None or replace(known_now, cause=0) != node:
            self._first.append(("node.changed", None, {"node": node_data(node)}))
        if (settings.get("policy"), settings.get("interval_s")) != (chosen, interval):
            self._first.append(("policy.set", None, {"policy": chosen, "interval_s": interval}))

    def start(self) -> None:
        """Write down that it begins, take up what runs, schedule."""
        self._at(Step.WRITE)
        self.scheduler.ledger.write(self._first)
        self._at(Step.RUNNER)
        self.scheduler.start()
        self.machine.start(self._runs, self._sampled)
        if self.check is not None:
            self.check.start()

    def close_unstarted(self) -> None:
        """Let go of store and home, where nothing was begun."""
        self.store.close()
        self.lock.release()

    def close(self) -> None:
        """End in order; jobs go on."""
        if self.check is not None:
            self.check.close()
        self.machine.stop()
        self.scheduler.stop(stop_jobs=False)
        if self.scheduler.join(60.0):  # else it may be writing yet
            with suppress(GpuloomError):  # end even if the store can't be written
                self.scheduler.ledger.write([("scheduler.stopped", None, {"pid": os.getpid()})])
        self.executor.close()
        self.store.close()
        self.lock.release()

    def _node(self, before: Mapping[str, NodeRecord], slots: int | None) -> NodeRecord:
        """This machine, with what was said of it and of its GPUs before."""
        if slots is None and not self.nvml.devices:
            was = [node for node in before.values() if node.kind == DeviceKind.CPU and node.state != NodeState.DOWN]
            slots = len(was[0].gpus) if was else None
        node = inventory(slots=slots, nvml=self.nvml)
        known = before.get(node.name)
        if known is None:
            return node
        states = {gpu.uuid: gpu for gpu in known.gpus}
        gpus = tuple(_as_before(gpu, states.get(gpu.uuid)) for gpu in node.gpus)
        state, reason = (NodeState.UP, "") if known.state == NodeState.DOWN else (known.state, known.reason)
        return replace(node, gpus=gpus, state=state, reason=reason, since_s=known.since_s)

    def _reported(self, run: str) -> Mapping[str, object]:
        return reported(run_directory(self.home.runs, run))

    def _runs(self) -> dict[str, RunOnNode]:
        return {
            attempt.run: RunOnNode(
                attempt.pid,
                attempt.start_ticks,
                tuple(gpu for name, gpus in attempt.allocation if name == self.machine.node.name for gpu in gpus),
                str(run_directory(self.home.runs, attempt.run)),
                frozen=attempt.phase is Phase.FROZEN,
            )
            for attempt in list(self.scheduler.book.attempts.values())
            if attempt.pid is not None
        }

    def _sampled(self, sample: Sample, changes: Changes) -> None:
        self.scheduler.sampled(sample.runs, changes.gpus, [(f.run, f.flag, f.text) for f in changes.flags])

    def _again_well(self) -> tuple[Gpu, ...]:
        return self.machine.clear()


def _as_before(gpu: Gpu, known: Gpu | None) -> Gpu:
    if known is None or gpu.state != GpuState.OK:
        return gpu
    return replace(gpu, state=known.state, reason=known.reason, since_s=known.since_s, needs_reset=known.needs_reset)
