"""What the head says is done on this machine, in order; and what happens here is told to the head."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpuloom.agent.health import Changes
from gpuloom.agent.looking import Looker
from gpuloom.agent.sample import RunOnNode, Sample
from gpuloom.core.end_reason import EndReason
from gpuloom.core.job import Gpu, NodeRecord
from gpuloom.executors.lease import LeaseFile
from gpuloom.executors.local_files import run_directory
from gpuloom.executors.node import NodePort
from gpuloom.executors.port import Cause, ExecutorError, RunPhase, RunStatus, not_run
from gpuloom.executors.wire import RUN_FILE, read_json
from gpuloom.fleet.channel import Channel
from gpuloom.fleet.codec import CodecError
from gpuloom.fleet.messages import (
    Acknowledge,
    Clear,
    Flagged,
    Freeze,
    Go,
    Gpus,
    HeadSays,
    Health,
    Joined,
    Leave,
    Leaving,
    Left,
    Limit,
    NodeSays,
    Sampled,
    Start,
    Status,
    Stop,
    Thaw,
    Weave,
    data_of,
    of_head,
)
from gpuloom.fleet.questions import answered
from gpuloom.node.dial import Wire
from gpuloom.threads import Worker

log = logging.getLogger("gpuloom.node")

READERS = 4
"""Questions about files that are answered at a time."""
LEASE_LOOK_S = 0.05
END_S = 5.0


class Served:
    """This machine as the head has it. One head at a time; `channel` leads to it.

    record: of this machine. lease: what is started only while it lasts. on_leave: the head wants it to leave.
    """

    def __init__(
        self,
        record: NodeRecord,
        node: NodePort,
        looker: Looker,
        runs: Path,
        lease: LeaseFile,
        channel: Channel,
        on_leave: Callable[[str], None],
    ) -> None:
        self.record, self.node, self.channel = record, node, channel
        self._looker, self._directory, self._lease, self._on_leave = looker, runs, lease, on_leave
        self._lock = threading.Lock()
        self._last: dict[str, RunStatus] = {}
        self._seen: dict[str, RunOnNode] = {}
        self._held_back: list[RunStatus] | None = []
        """Statuses, while a session has not begun; None: they are told."""
        self._flags: dict[tuple[str, str], str] = {}
        self._healthy = ""
        self._index = {gpu.uuid: gpu.index for gpu in record.gpus}
        self._commands: queue.SimpleQueue[tuple[str, int, Mapping[str, Any]] | None] = queue.SimpleQueue()
        self._worker = Worker("commands", self._work)
        self._ended = threading.Event()
        self._readers: ThreadPoolExecutor | None = None

    def open(self) -> None:
        """Begin: take up what runs here. Raises ExecutorError."""
        self.node.open(self._status)
        with self._lock:
            for status in self.node.runs():
                self._last.setdefault(status.run, status)
        self._worker.start()
        self._looker.start(self._runs, self._sampled)

    def close(self) -> None:
        """End; what runs goes on."""
        self._ended.set()
        self._commands.put(None)
        self._looker.stop()
        self._worker.end(END_S)
        if self._readers is not None:
            self._readers.shutdown(wait=False, cancel_futures=True)
        self.node.close()

    def alive(self) -> list[str]:
        """Runs of which something may be left."""
        with self._lock:
            return [run for run, status in self._last.items() if status.exit is None]

    def unsettled(self) -> list[str]:
        """Runs whose end the head has not taken note of, or that go on."""
        with self._lock:
            return list(self._last)

    def stop_all(self, why: str) -> None:
        """End all that runs, at once."""
        for run in self.alive():
            log.info("run %s is stopped: %s", run, why)
            self.node.stop(run, reason=EndReason.NODE, grace_s=0.0)

    def say_leaving(self, why: str) -> None:
        """Tell the head."""
        self._say(Leaving(why))

    def say_left(self, why: str) -> None:
        """Tell the head."""
        self._say(Left(why))

    # -- sessions -----------------------------------------------------------------------------------------------------

    def begin(self, session: str, *, fenced: bool) -> None:
        """A new session: tell what there is, then what changes. Raises ExecutorError: the runner does not answer."""
        with self._lock:
            self._held_back = []
        self.channel.begin(session)
        found = self.node.runs()
        with self._lock:
            known = {status.run: status for status in found}
            late, self._held_back = self._held_back or [], None
            self._last = {**known}
            self._healthy = self._health()
            self._say(
                Joined(
                    self.record,
                    tuple(found),
                    self.node.capabilities(),
                    dict(self.node.limits()),
                    self._healthy,
                    fenced,
                )
            )
            for status in late:
                if status.run not in known or known[status.run].exit is None:
                    self._note(status)
            if self._looker.newest is not None:
                self._say(Sampled(self._looker.newest, self._looker.notes), "sample")
            for (run, flag), text in self._flags.items():
                self._say(Flagged(run, flag, text), f"flag {flag} {run}")

    def take(self, wire: Wire, frame: Mapping[str, Any]) -> None:
        """A frame of the head, but for greetings and answers to heartbeats. Raises StreamError."""
        if "ask" in frame:
            if frame.get("what") == "runs":  # in order with the commands before it
                self._commands.put((self.channel.session, 0, frame))
            else:
                self._reader().submit(self._answer, frame)
            return
        message = self.channel.heard(wire, frame)
        if message is not None:
            self._commands.put((self.channel.session, int(frame["n"]), message))

    def _reader(self) -> ThreadPoolExecutor:
        if self._readers is None:
            self._readers = ThreadPoolExecutor(READERS, "reader")
        return self._readers

    def _answer(self, frame: Mapping[str, Any]) -> None:
        self.channel.say(answered(self.node, frame))

    # -- commands (a thread) ------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while (item := self._commands.get()) is not None:
            session, number, data = item
            if session != self.channel.session:
                continue  # the head has been told since what there is, and says again what it wants
            if "ask" in data:
                self._answer(data)
                continue
            try:
                self._do(session, of_head(data))
            except (ExecutorError, CodecError) as error:
                log.error("what the head said can't be done: %s", error)
            self.channel.dealt(number)

    def _do(self, session: str, said: HeadSays) -> None:
        node = self.node
        if isinstance(said, Start):
            self._start(session, said)
        elif isinstance(said, Go):
            node.go(said.run)
        elif isinstance(said, Stop):
            node.stop(said.run, reason=said.reason, grace_s=said.grace_s)
        elif isinstance(said, Limit):
            node.limit(said.run, said.limit_s)
        elif isinstance(said, Freeze):
            node.freeze(said.run)
        elif isinstance(said, Thaw):
            node.thaw(said.run)
        elif isinstance(said, Weave):
            node.weave(said.weaving)
        elif isinstance(said, Acknowledge):
            with self._lock:
                self._last.pop(said.run, None)
                self._seen.pop(said.run, None)
                self._flags = {key: text for key, text in self._flags.items() if key[0] != said.run}
            node.acknowledge(said.run)
        elif isinstance(said, Clear):
            if changed := self._looker.clear():
                self._changed({gpu.index: gpu for gpu in changed})
        elif isinstance(said, Leave):
            self._on_leave(said.why)

    def _start(self, session: str, said: Start) -> None:
        """Nothing is started before the first heartbeat of a session is answered, and none after its end."""
        while self._over():
            if self._ended.wait(LEASE_LOOK_S) or session != self.channel.session:
                return
        try:
            self.node.start(said.spec)
        except ExecutorError as error:
            self._status(not_run(said.spec.run, EndReason.NOT_STARTED, str(error), Cause.EXECUTOR))

    def _over(self) -> bool:
        try:
            return self._lease.over()
        except OSError:
            return True

    # -- what happens here --------------------------------------------------------------------------------------------

    def _status(self, status: RunStatus) -> None:
        with self._lock:
            if self._held_back is not None:
                self._held_back.append(status)
                self._last[status.run] = status
            else:
                self._note(status)

    def _note(self, status: RunStatus) -> None:
        self._last[status.run] = status
        self._say(Status(status))

    def _say(self, message: NodeSays, key: str = "") -> None:
        self.channel.put(data_of(message), key)

    def _runs(self) -> dict[str, RunOnNode]:
        """Those whose processes may exist, for the monitor."""
        with self._lock:
            statuses = [one for one in self._last.values() if one.exit is None and one.pid is not None]
        return {status.run: self._on_node(status) for status in statuses}

    def _on_node(self, status: RunStatus) -> RunOnNode:
        known = self._seen.get(status.run)
        if known is None or known.pid != status.pid:
            directory = str(run_directory(self._directory, status.run))
            begun = read_json(f"{directory}/{RUN_FILE}") or {}
            gpus = tuple(self._index[uuid] for uuid in begun.get("gpu_uuids", ()) if uuid in self._index)
            known = self._seen[status.run] = RunOnNode(status.pid, status.start_ticks, gpus, directory)
        return replace(known, frozen=status.phase is RunPhase.FROZEN)

    def _news(self, message: NodeSays, key: str) -> None:
        """Tell what the beginning of a session would tell too. The lock is held."""
        if self._held_back is None:
            self._say(message, key)

    def _health(self) -> str:
        """'' or what keeps this machine from doing what the head says."""
        return self.node.healthy() or self._worker.problem

    def _sampled(self, sample: Sample, changes: Changes) -> None:
        healthy = self._health()
        with self._lock:
            self._news(Sampled(sample, changes.notes), "sample")
            for flag in changes.flags:
                if flag.text:
                    self._flags[flag.run, flag.flag] = flag.text
                else:
                    self._flags.pop((flag.run, flag.flag), None)
                self._news(Flagged(flag.run, flag.flag, flag.text), f"flag {flag.flag} {flag.run}")
            if healthy != self._healthy:
                self._healthy = healthy
                self._news(Health(healthy), "health")
        if changes.gpus:
            self._changed({gpu.index: gpu for gpu in changes.gpus})

    def _changed(self, changed: Mapping[int, Gpu]) -> None:
        with self._lock:
            gpus = tuple(changed.get(gpu.index, gpu) for gpu in self.record.gpus)
            self.record = replace(self.record, gpus=gpus)
            self._news(Gpus(gpus), "gpus")
