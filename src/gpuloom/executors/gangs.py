"""All nodes as one executor of attempts: makes the members of attempts, and of what they say the attempts' statuses.

An attempt with one member passes through: its run is the attempt's. How one with several members starts, freezes and
ends is `gang.py`. Nothing here waits for a node but `open`, `add` and `runs`.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from gpuloom.core.end_reason import EndReason
from gpuloom.core.spec import Launcher
from gpuloom.core.waiting import one_wait_s
from gpuloom.executors.gang_ends import last_lines
from gpuloom.executors.known import Expected as Expected
from gpuloom.executors.known import Wish
from gpuloom.executors.known import expected_of as expected_of
from gpuloom.executors.no_files import NoFiles
from gpuloom.executors.node import Capabilities, NodePort, RunFiles, RunSpec, Weaving
from gpuloom.executors.outbox import Outbox
from gpuloom.executors.port import Cause, ExecutorError, OnStatus, RunExit, RunStatus
from gpuloom.executors.roster import Roster
from gpuloom.threads import Worker

PATIENCE_S = 10.0
READERS = 8
"""Threads that read logs, at most."""
CLOSE_S = 2.0


class Gangs:
    """Used by the scheduler's thread and by those of the nodes alike.

    Runs are named as attempts are; a run that nobody asked for goes by its own name, and its status says where it is.

    Attributes:
        waiting: nodes that the records know and that have not been met yet. Whoever knows the records keeps it.
    """

    name = "nodes"

    def __init__(
        self,
        nodes: Iterable[NodePort] = (),
        *,
        clock: Callable[[], float] = time.monotonic,
        background: bool = True,
        left: RunFiles | None = None,
    ) -> None:
        """left: files where logs of nodes that are gone may lie. clock: seconds. background: False: whoever uses it
        calls `look` by itself."""
        self.waiting: set[str] = set()
        self._clock, self._background, self._left = clock, background, left
        self._epoch_s = time.time() - clock()
        self._lock = threading.Lock()
        self._met: set[str] = set()
        self._on_status: OnStatus | None = None
        self._outbox = Outbox(clock)
        self._roster = Roster(
            self._outbox,
            clock,
            self._epoch_s,
            say=lambda status: self._outbox.put(partial(self._said, status)),
            read_log=lambda run, rank: self._reads.append((run, rank)),
        )
        self._reads: deque[tuple[str, int]] = deque()
        """Members whose logs are wanted: (attempt, rank)."""
        self._readers = 0
        self._asking: list[set[str]] = []
        """For each question that a node is asked now, the runs of which something is heard meanwhile."""
        self._wake = threading.Event()
        self._wakes_s: float | None = None
        self._closed = False
        self._worker = Worker("gangs", self._keep_time)
        self._roster.nodes |= {node.name: node for node in nodes}

    # Nodes

    def add(self, node: NodePort, *, patience_s: float = PATIENCE_S) -> None:
        """Use a node from now on, in place of one of the same name. Once `open` was called it is opened and asked for
        its runs, which waits; their statuses come as news. What it no longer knows of the runs that were there has
        ended, what it had not been heard to have begun it is asked for again, and what the one before may not have been
        told it is told.

        Raises:
            ExecutorError: it can't be met; it is not used.
        """
        nodes = self._roster.nodes
        with self._lock:
            before = nodes.get(node.name)
            nodes[node.name] = node
            opened = self._on_status is not None
        if not opened:
            return
        self._outbox.forget(node.name)
        try:
            self._meet(node, patience_s)
        except ExecutorError:
            with self._lock:
                if nodes.get(node.name) is node:
                    del nodes[node.name]
                    if before is not None:
                        nodes[node.name] = before
            raise

    def remove(self, node: str) -> None:
        """Use it no more; nothing runs there. Whoever added it closes it."""
        self._outbox.forget(node)
        with self._lock:
            self._met.discard(node)
            self._roster.forget_node(node)

    def lost(self, node: str, why: str) -> None:
        """A node is gone, and with it all that ran there: its attempts end, reason NODE. Whoever added it closes it.
        why: for people."""
        self.remove(node)
        with self._lock:
            self._roster.lose(node, self._gone(why))
        self._work()

    def nodes(self) -> tuple[str, ...]:
        """Those that are there, by name."""
        with self._lock:
            return tuple(sorted(self._met))

    def strange(self, node: str) -> tuple[str, ...]:
        """What runs there and is no attempt's: until this is empty, nothing may be started there."""
        with self._lock:
            return self._roster.strange(node)

    def unclean(self) -> dict[str, str]:
        """Nodes that are there again, and on which something is being ended that was given up with them; and what."""
        with self._lock:
            return self._roster.unclean()

    def there(self, nodes: Iterable[str]) -> bool:
        """Whether all of these nodes have been met, and are not gone."""
        with self._lock:
            return self._met.issuperset(nodes)

    def files(self, node: str) -> RunFiles:
        """The files of its runs; of a node that is not there, files of which each call says so."""
        port = self._roster.nodes.get(node)
        return NoFiles(node, self._left) if port is None else port.files

    def boot_id(self, node: str) -> str:
        """Which start of its machine this is; '': not known."""
        port = self._roster.nodes.get(node)
        return "" if port is None else port.boot_id()

    def capabilities(self, node: str) -> Capabilities | None:
        """What can be done with runs there; None: it is not there."""
        port = self._roster.nodes.get(node)
        return None if port is None else port.capabilities()

    def driver(self, node: str) -> str:
        """The version of NVIDIA's driver on a node that suspends programs; '' where it does not, or is not there."""
        found = self.capabilities(node)
        return found.driver if found is not None and found.suspends else ""

    def limits(self, node: str) -> Mapping[str, str]:
        """As `NodePort.limits`; {} of a node that is not there."""
        port = self._roster.nodes.get(node)
        return {} if port is None else port.limits()

    def healthy(self, node: str | None = None) -> str:
        """'' or what is wrong with a node's executor; by default with any of them, which are named then."""
        with self._lock:
            ports = [port for name, port in self._roster.nodes.items() if node in (None, name)]
        found = [(port.name, problem) for port in ports if (problem := port.healthy())]
        if len(ports) == 1:
            found = [("", problem) for _, problem in found]
        return "; ".join(f"{name}: {text}" if name else text for name, text in found) or self._worker.problem

    # The executor

    def expect(self, attempts: Iterable[Expected]) -> None:
        """Attempts of the records that may be under way. To be told before `open`: what belongs to no attempt is
        strange."""
        with self._lock:
            for attempt in attempts:
                places = list(zip(attempt.runs, attempt.nodes, strict=True))
                if len(places) == 1:
                    self._roster.place(*places[0])
                elif places[0][0] not in self._roster.teams:
                    self._roster.team(places, attempt.grace_s, attempt, apart=attempt.apart)

    def open(self, on_status: OnStatus, *, patience_s: float = PATIENCE_S) -> None:
        """Meet the nodes that were added; may be asked again after an error. Raises ExecutorError."""
        end = time.monotonic() + patience_s
        with self._lock:
            self._on_status = on_status
            ports = [port for name, port in self._roster.nodes.items() if name not in self._met]
        for port in ports:
            self._meet(port, max(end - time.monotonic(), 0.1))
        with self._lock:
            there = self.waiting | self._roster.nodes.keys()
            for node in sorted(self._roster.on_node.keys() - there):  # given up before its runs' ends were written down
                self._roster.lose(node, self._gone(f"node {node} is not there any more"))
        self._work()

    def runs(self, *, patience_s: float = PATIENCE_S, attempts: Collection[str] | None = None) -> Sequence[RunStatus]:
        """All that is known of attempts whose nodes are all there, or lost, and of strange runs. attempts: of these
        alone; only their nodes are asked.

        Raises:
            ExecutorError: a node does not say within `patience_s`.
        """
        end = time.monotonic() + patience_s
        with self._lock:
            names = set(self._met)
            if attempts is not None:
                names &= {node for run in attempts for node in self._roster.nodes_of(run)}
            ports = [port for name, port in self._roster.nodes.items() if name in names]
        found: list[RunStatus] = []
        with self._asks() as newer:
            for port in ports:
                known = port.runs(patience_s=max(end - time.monotonic(), 0.1))
                with self._lock:
                    found += self._roster.known(port, known, attempts, newer)
        with self._lock:
            found += self._roster.statuses(attempts)
        self._work()
        return found

    def heard(self, attempts: Collection[str]) -> Sequence[RunStatus]:
        """As `runs`, of these attempts, without asking anybody: what was heard of them last."""
        with self._lock:
            found = [self._roster.singles[run] for run in attempts if run in self._roster.singles]
            told = [one.last for one in found if one.last is not None and not one.over]
            return told + self._roster.statuses(attempts)

    def start(self, specs: Sequence[RunSpec]) -> None:
        """Start an attempt: its members in the order of ranks, each on the node that its `peers[rank]` names. Asked
        again it does no harm: members that are there already are taken as they are. All that can't be started comes as
        an exit.

        Raises:
            ExecutorError: it could not be asked for; ask again.
        """
        run, places = specs[0].run, [(spec.run, self._node_of(spec)) for spec in specs]
        late = sorted({node for _, node in places if node in self.waiting and node not in self._roster.nodes})
        if late:
            raise ExecutorError(f"run {run}: node {late[0]} has not come yet")
        if len(specs) == 1:
            self._start_single(specs[0], places[0][1])
            return
        with self._lock:
            team = self._roster.teams.get(run)
            if team is None:
                apart = specs[0].launcher is Launcher.ADOPTED and specs[0].sizes is None
                team = self._roster.team(places, specs[0].grace_s, apart=apart)
            elif not team.whole:
                raise ExecutorError(f"run {run}: not all of its nodes have come yet")
            team.specs = [replace(spec, hold=True) for spec in specs]
            for rank, (_, node) in enumerate(places):
                if node not in self._roster.nodes:
                    how = self._gone(f"node {node} is not there")
                    self._roster.do(run, team.gang.lost(rank, how, self._clock()))
            self._roster.do(run, team.gang.start(self._clock()))
        self._work()

    def stop(self, run: str, *, reason: EndReason, grace_s: float) -> None:
        """As `LiveExecutor.stop`."""
        deadline = self._clock() + grace_s

        def stop(port: NodePort, run: str = run) -> None:
            port.stop(run, reason=reason, grace_s=max(deadline - self._clock(), 0.0))

        with self._lock:
            team = self._roster.teams.get(run)
            if team is not None:
                self._roster.do(run, team.gang.stop(reason, grace_s, self._clock()))
                for rank, status in team.found.items():  # of those that are not taken up yet
                    if (port := self._roster.nodes.get(team.places[rank][1])) is not None:
                        self._outbox.tell(port.name, partial(stop, port, status.run))
        if team is None:
            self._ask(run, "stop", lambda port: port.stop(run, reason=reason, grace_s=grace_s), again=stop)
        self._work()

    def resize(self, run: str, *, keep: int, grace_s: float) -> None:
        """As `stop`, where all of its nodes can (`Capabilities.resizes`): its first `keep` members go on in the next
        attempt of its job."""
        with self._lock:
            team = self._roster.teams.get(run)
            if team is not None:
                self._roster.do(run, team.gang.resize(keep, grace_s, self._clock()))
        if team is None:  # asked anew it may have to begin anew: nobody knows then what became of it
            again = partial(self._stop_again, run, self._clock() + grace_s)
            self._ask(run, "stop", lambda port: port.stop(run, reason=EndReason.RESIZED, grace_s=grace_s), again=again)
        self._work()

    def _stop_again(self, run: str, deadline: float, port: NodePort) -> None:
        port.stop(run, reason=EndReason.PREEMPTED, grace_s=max(deadline - self._clock(), 0.0))

    def limit(self, run: str, limit_s: float | None) -> None:
        """As `LiveExecutor.limit`."""
        with self._lock:
            team = self._roster.teams.get(run)
            if team is not None:
                team.limit = (limit_s,)
                for rank in range(len(team.places)):
                    self._roster.tell_limit(team, rank)
        if team is None:
            self._ask(run, "limit", lambda port: port.limit(run, limit_s))
        self._work()

    def freeze(self, run: str) -> None:
        """As `LiveExecutor.freeze`."""
        with self._lock:
            team = self._roster.teams.get(run)
            if team is not None:
                self._roster.do(run, team.gang.freeze(self._clock()))
        if team is None:
            self._ask(run, "stand", lambda port: port.freeze(run))
        self._work()

    def thaw(self, run: str) -> None:
        """As `LiveExecutor.thaw`."""
        with self._lock:
            team = self._roster.teams.get(run)
            if team is not None:
                self._roster.do(run, team.gang.thaw(self._clock()))
        if team is None:
            self._ask(run, "stand", lambda port: port.thaw(run))
        self._work()

    def weave(self, node: str, weaving: Weaving) -> bool:
        """As `NodePort.weave`; False: the node is not there. What it can't be told now it is told later."""
        port = self._roster.nodes.get(node)
        if port is not None:
            self._outbox.tell(node, partial(port.weave, weaving))
            self._work()
        return port is not None

    def acknowledge(self, run: str) -> None:
        """The end of the attempt is written down: forget it and all its members."""
        with self._lock:
            several = run in self._roster.teams
            told = [(member, self._roster.nodes.get(node)) for member, node in self._roster.forget(run)]
        for member, port in told:
            if port is None:
                continue
            if several:
                self._outbox.tell(port.name, partial(port.acknowledge, member))
            else:
                port.acknowledge(member)
        self._work()

    def close(self) -> None:
        """Let go of all nodes; the runs go on."""
        self._work()
        with self._lock:
            ports = list(self._roster.nodes.values())
            self._roster.nodes.clear()
            self._met, self._on_status, self._closed = set(), None, True
        self._wake.set()
        self._worker.end(CLOSE_S)
        for port in ports:
            port.close()

    def look(self) -> None:
        """Do what its time has come for."""
        now = self._clock()
        with self._lock:
            for run in [run for run, due in self._roster.dues.items() if due <= now]:
                self._roster.do(run, self._roster.teams[run].gang.look(now))
        self._outbox.retry()
        self._work()

    # Nodes and runs

    def _meet(self, port: NodePort, patience_s: float) -> None:
        end = time.monotonic() + patience_s
        with self._lock:
            known = set(self._roster.on_node.get(port.name, ()))
        port.open(partial(self._heard, port), patience_s=patience_s)
        with self._asks() as newer:
            found = port.runs(patience_s=max(end - time.monotonic(), 0.1))
            boot = port.boot_id()
            with self._lock:
                if self._roster.nodes.get(port.name) is not port:
                    raise ExecutorError(f"node {port.name} is not there any more")
                self._met.add(port.name)
                self._roster.met(port, found, known, boot, newer)
        self._work()

    @contextmanager
    def _asks(self) -> Iterator[set[str]]:
        """While nodes are asked what they know: the runs of which they say something meanwhile, which is newer."""
        newer: set[str] = set()
        with self._lock:
            self._asking.append(newer)
        try:
            yield newer
        finally:
            with self._lock:
                self._asking = [one for one in self._asking if one is not newer]

    def _heard(self, port: NodePort, status: RunStatus) -> None:
        """A node says something, in a thread of its own."""
        with self._lock:
            if self._roster.nodes.get(port.name) is not port:
                return  # it was lost, or another one has its name now
            for newer in self._asking:
                newer.add(status.run)
            self._roster.take(port, status)
        self._work()

    def _start_single(self, spec: RunSpec, name: str) -> None:
        with self._lock:
            one = self._roster.place(spec.run, name)
            port = self._roster.nodes.get(one.node)
            if one.over:
                return
            if port is None:
                self._roster.over(spec.run, one, self._gone(f"node {one.node} is not there"))
            elif one.last is None:
                one.spec = spec
        if port is not None:
            port.start(spec)
        self._work()

    def _ask(self, run: str, about: str, wish: Wish, again: Wish | None = None) -> None:
        """Ask the node of an attempt with one member for something, and once more should it be met anew."""
        with self._lock:
            one = self._roster.singles.get(run)
            if one is not None and not one.over:
                one.wishes = {**(one.wishes or {}), about: again or wish}
            port = self._roster.port_of(run)
        if port is not None:
            wish(port)

    def _node_of(self, spec: RunSpec) -> str:
        if spec.peers:
            return spec.peers[spec.rank].node
        with self._lock:
            names = list(self._roster.nodes)
        if len(names) != 1:
            raise ExecutorError(f"run {spec.run}: it is not said on which node it is to run")
        return names[0]

    def _gone(self, why: str) -> RunExit:
        return RunExit(None, None, EndReason.NODE, why, self._epoch_s + self._clock(), cause=Cause.NODE)

    def _said(self, status: RunStatus) -> None:
        if (on_status := self._on_status) is not None:
            on_status(status)

    # Time, and logs

    def _work(self) -> None:
        """Tell what there is to tell, and see that what is due later is done. Without the lock."""
        self._outbox.work()
        while self._reads:
            if not self._background:
                self._read_logs()
            elif not self._begin_reading():
                break
        if not self._background or self._closed:
            return
        due_s = self._due_s()
        if due_s is not None and (self._wakes_s is None or due_s < self._wakes_s):
            self._worker.start()
            self._wake.set()

    def _due_s(self) -> float | None:
        with self._lock:
            times = [*self._roster.dues.values()]
        late_s = self._outbox.due_s
        return min([*times, late_s] if late_s is not None else times, default=None)

    def _keep_time(self) -> None:
        while not self._closed:
            self._wake.clear()
            self._wakes_s = due_s = self._due_s()
            wait_s = one_wait_s(due_s - self._clock()) if due_s is not None else None
            self._wake.wait(wait_s)
            if not self._closed:
                self.look()

    def _begin_reading(self) -> bool:
        """A thread more that reads logs; False: there are enough, or none is to be had."""
        with self._lock:
            if self._readers >= min(READERS, len(self._reads)):
                return False
            self._readers += 1
        try:
            threading.Thread(target=self._read_logs, name="log-reader", daemon=True).start()
        except (RuntimeError, MemoryError, OSError):  # then the ends are told without the logs
            with self._lock:
                self._readers -= 1
            return False
        return True

    def _read_logs(self) -> None:
        while True:
            with self._lock:
                if not self._reads:
                    self._readers -= self._background
                    return
                run, rank = self._reads.popleft()
                team = self._roster.teams.get(run)
            if team is None:
                continue
            member, node = team.places[rank]
            text = last_lines(self.files(node), member)
            with self._lock:
                if self._roster.teams.get(run) is team:
                    self._roster.do(run, team.gang.log_read(text, self._clock()))
            self._outbox.work()
