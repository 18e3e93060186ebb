"""All parts of a running scheduler but the API: store, executor, scheduler, monitor."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from gpuloom import __version__
from gpuloom.agent.health import Changes
from gpuloom.agent.inventory import inventory
from gpuloom.agent.looking import Looker
from gpuloom.agent.nvml import Nvml
from gpuloom.agent.sample import RunOnNode, Sample
from gpuloom.core.book import node_data
from gpuloom.core.errors import GpuloomError, InputError
from gpuloom.core.job import DeviceKind, Gpu, NodeRecord, NodeSource, NodeState, Phase
from gpuloom.executors.gangs import Gangs
from gpuloom.executors.local import LocalExecutor
from gpuloom.executors.local_files import LocalFiles, run_directory
from gpuloom.executors.local_node import LocalNode
from gpuloom.executors.port import LiveExecutor
from gpuloom.executors.wire import write_atomic
from gpuloom.fleet.registry import Nodes
from gpuloom.fleet.token import Tokens
from gpuloom.live.arrivals import as_before
from gpuloom.live.clock import ServiceClock
from gpuloom.live.joining import Joining
from gpuloom.live.records.ledger import Draft
from gpuloom.live.records.online import FILE as MEASURED
from gpuloom.live.records.online import OnlineProfiles
from gpuloom.live.scheduler import Scheduler
from gpuloom.live.sights import Sights
from gpuloom.live.steps import Step
from gpuloom.live.store_check import StoreCheck, examine
from gpuloom.live.submission.fields import LONGEST_S, SHORTEST_INTERVAL_S
from gpuloom.live.submission.fields import interval as checked_interval
from gpuloom.policies.registry import parse_policy
from gpuloom.sharing.start import NO_SHARING, Ability, ability, under_the_shim
from gpuloom.store.home import Home, take_lock
from gpuloom.store.port import Loaded, Store
from gpuloom.store.sqlite import SqliteStore

if TYPE_CHECKING:
    from gpuloom.live.pod_nodes import PodNodes

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
        default_policy: str = "",
        interval_s: float | None = None,
        nvml: Nvml | None = None,
        store: Store | None = None,
        executor: LiveExecutor | None = None,
        local: bool = True,
        address: str = "",
        watches: str = "",
        pods: PodNodes | None = None,
        at: Callable[[Step], None] = lambda step: None,
    ) -> None:
        """policy: None: the one that was set last, else the default. nvml, store, executor: for tests. local: jobs may
        run on this machine; where they may not, they run on nodes that join. address: where nodes reach this machine.
        watches: the cluster that is watched, where nothing is to be started at all. pods: the nodes of a cluster on
        which jobs run as pods; it is opened, and closed with all the rest. at: told of each step of the start.

        Raises:
            StoreError, StoreBusy: the store can't be used. StoreDamagedError: it must not be gone on with.
            InputError: no GPUs and no slots; an unknown policy; the home is for something else.
        """
        self.machine: Looker | None = None
        self._at, self._address, self.pods = at, address, pods
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
            _check_use(self.home, loaded, watches)
            _check_pods(self.home, loaded, there=pods is not None or bool(watches))
            at(Step.MACHINE)
            self.clock = ServiceClock(loaded.last_event_s)
            chosen = policy or str(loaded.settings.get("policy") or default_policy or DEFAULT_POLICY)
            interval = _stored_interval_s(loaded) if interval_s is None else checked_interval(interval_s)
            self.gangs, self.sights = Gangs(left=LocalFiles(self.home.runs)), Sights()
            node, sharing = None, NO_SHARING
            if local and not watches:
                node, sharing = self._here(loaded, slots, nvml, executor)
            self.gangs.waiting |= {
                known.name
                for known in loaded.nodes
                if known.source is not NodeSource.HERE and known.state is not NodeState.DOWN and not watches
            }
            kind = Scheduler
            if watches:
                from gpuloom.live.watching import WatchingScheduler

                kind = WatchingScheduler
            self.scheduler = kind(
                store=self.store,
                loaded=loaded,
                gangs=self.gangs,
                sights=self.sights,
                clock=self.clock,
                here="" if node is None else node.name,
                runs=self.home.runs,
                policy=chosen,
                interval_s=interval,
                on_up=lambda name: self._again_well(name),
                sharing=sharing,
            )
            if not local and not watches:
                # Until the first node has come nobody knows what will be there.
                self.scheduler.may_come = lambda: 0.0 if self.scheduler.book.nodes else math.inf
            self.online = OnlineProfiles(
                self.home.path / MEASURED,
                self.scheduler.planning.worlds.profiles,
                watched=self.scheduler.watched,
                files=self.gangs.files,
                take=self.scheduler.take_profiles,
            )
            self._joining = Joining(self.scheduler, self.gangs, self.sights)
            self.home.nodes.mkdir(mode=0o700, exist_ok=True)
            here = [] if node is None else [node.name]
            self.tokens = Tokens(self.home.nodes / "tokens.json")
            self.nodes = Nodes(self.home.nodes / "nodes.json", self.tokens, self._joining, reserved=here)
            pod_nodes = {one.name for one in loaded.nodes if one.source is NodeSource.KUBERNETES}
            self.nodes.expect(sorted(self.gangs.waiting - pod_nodes))
            self.check = None if examined.complete else StoreCheck(self.home.db, self.scheduler.checked)
            undo.pop_all()
        self._first: list[Draft] = [("scheduler.started", None, {"pid": os.getpid(), "version": __version__})]
        self._first += [("node.changed", None, {"node": node_data(one)}) for one in _changed(loaded.nodes, node)]
        if (loaded.settings.get("policy"), loaded.settings.get("interval_s")) != (chosen, interval):
            self._first.append(("policy.set", None, {"policy": chosen, "interval_s": interval}))

    def start(self) -> None:
        """Write down that it begins, take up what runs, schedule."""
        self._at(Step.WRITE)
        self.scheduler.ledger.write(self._first)
        self._at(Step.RUNNER)
        self.scheduler.start()
        self._joining.start()
        self.nodes.start()
        if self.pods is not None:
            self.pods.start(self.scheduler, self._joining)
        if self.machine is not None:
            self.machine.start(self._runs, self._sampled)
        self.online.start()
        if self.check is not None:
            self.check.start()

    def links_problem(self) -> str:
        """'' or why nothing is heard of nodes that joined."""
        told = (self.nodes.problem, self._joining.problem, "" if self.pods is None else self.pods.problem)
        return "; ".join(dict.fromkeys(text for text in told if text))

    def close_unstarted(self) -> None:
        """Let go of store and home, where nothing was begun."""
        self.store.close()
        self.lock.release()
        if self.pods is not None:
            self.pods.close()

    def close(self) -> None:
        """End in order; jobs go on."""
        if self.check is not None:
            self.check.close()
        if self.machine is not None:
            self.machine.stop()
        self.online.close()
        self.nodes.close()
        if self.pods is not None:
            self.pods.stop()
        self._joining.close()
        self.scheduler.stop(stop_jobs=False)
        if self.scheduler.join(60.0):  # else it may be writing yet
            with suppress(GpuloomError):  # end even if the store can't be written
                self.scheduler.ledger.write([("scheduler.stopped", None, {"pid": os.getpid()})])
        self.gangs.close()
        self.store.close()
        self.lock.release()
        if self.pods is not None:
            self.pods.close()

    def _here(
        self, loaded: Loaded, slots: int | None, nvml: Nvml | None, executor: LiveExecutor | None
    ) -> tuple[NodeRecord, Ability]:
        """This machine as a node, with what was said of it and of its GPUs before."""
        nvml = nvml if nvml is not None else Nvml()
        if slots is None and not nvml.devices:
            was = [
                node
                for node in loaded.nodes
                if node.kind == DeviceKind.CPU and node.state != NodeState.DOWN and node.source is NodeSource.HERE
            ]
            slots = len(was[0].gpus) if was else None
        node = replace(inventory(slots=slots, nvml=nvml), address=self._address)
        node = as_before(node, next((known for known in loaded.nodes if known.name == node.name), None))
        attempts = {attempt.job: attempt.run for attempt in loaded.attempts}
        flags = {attempts[job.id]: job.flags for job in loaded.jobs if job.id in attempts and job.flags}
        if executor is None:
            executor = LocalExecutor(self.home.path, gpu_processes=lambda uuids: machine.gpu_processes(uuids))
        sharing = ability(node, os.environ)
        here = LocalNode(node.name, executor, self.home.runs, shared=partial(under_the_shim, sharing))
        self.machine = machine = Looker(node, nvml, disk=self.home.path, flags=flags)
        self.gangs.add(here)
        return node, sharing

    def _runs(self) -> dict[str, RunOnNode]:
        here = self.scheduler.here
        return {
            run: RunOnNode(
                member.pid,
                member.start_ticks,
                member.gpus,
                str(run_directory(self.home.runs, run)),
                frozen=attempt.phase is Phase.FROZEN,
            )
            for attempt in list(self.scheduler.book.attempts.values())
            for run, member in zip(attempt.runs, attempt.parts, strict=True)
            if member.node == here and member.pid is not None
        }

    def _sampled(self, sample: Sample, changes: Changes) -> None:
        here = self.scheduler.here
        self.sights.saw(here, sample, changes.notes)
        self.scheduler.sampled(here, sample.runs, changes.gpus, [(f.run, f.flag, f.text) for f in changes.flags])

    def _again_well(self, name: str) -> tuple[Gpu, ...]:
        if self._joining.clear(name) or self.machine is None or name != self.scheduler.here:
            return ()
        return self.machine.clear()


def watched_cluster(home: Home) -> str:
    """The address of the cluster that a home is for; '': it is for none, but for jobs of its own.

    Raises:
        InputError: what it says of that can't be read.
    """
    try:
        return str(json.loads(home.watched.read_text())["cluster"])
    except FileNotFoundError:
        return ""
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{home.watched} can't be read: {error}; it names the cluster that is watched") from error


def _check_use(home: Home, loaded: Loaded, watches: str) -> None:
    """Raises InputError: what the home has is of another use than the one that begins."""
    before = watched_cluster(home)
    if before == watches:
        return
    if before:
        remedy = f"gpuloom observe goes on with that one; for {watches or 'jobs of your own'} give another --home"
        raise InputError(f"home {home.path} has what was seen of cluster {before}: {remedy}")
    if loaded.next_job > 1 or loaded.nodes:
        raise InputError(
            f"home {home.path} has jobs or nodes of a scheduler of its own: give another --home for what is observed"
        )
    try:
        write_atomic(str(home.watched), {"cluster": watches})
    except OSError as error:
        raise InputError(f"{home.watched} can't be written: {error.strerror}") from error


def _check_pods(home: Home, loaded: Loaded, *, there: bool) -> None:
    """Raises InputError: jobs may be going on in a cluster, and nobody looks there. there: somebody does."""
    known = [
        one.name for one in loaded.nodes if one.source is NodeSource.KUBERNETES and one.state is not NodeState.DOWN
    ]
    if known and not there:
        raise InputError(
            f"home {home.path} has jobs or nodes of a Kubernetes cluster ({known[0]}): begin with --executor "
            "kubernetes, or give another --home"
        )


def _stored_interval_s(loaded: Loaded) -> float:
    """As it was the last time; one of an older store may be below what is taken now."""
    stored = max(float(loaded.settings.get("interval_s", DEFAULT_INTERVAL_S)), 0.0)
    return min(max(stored, SHORTEST_INTERVAL_S), LONGEST_S) if stored else 0.0


def _changed(before: Sequence[NodeRecord], here: NodeRecord | None) -> list[NodeRecord]:
    """What is other than the records have it: this machine (None: no node), and those that were this machine before."""
    found = []
    name = None if here is None else here.name
    for known in before:
        if known.source is NodeSource.HERE and known.name != name and known.state is not NodeState.DOWN:
            found.append(replace(known, state=NodeState.DOWN, reason="not this machine"))
    if here is not None and all(replace(known, cause=0) != here for known in before):
        found.append(here)
    return found
