"""A node without processes: a machine on which runs are what a test says they are, and a port to it that a test may
cut, slow down or break.

`FakeMachine` is what is true there; it outlives every port to it, as a runner outlives its scheduler. `FakeNode` is a
`NodePort`. By default all is done at once, in the thread that asks. `FakeLooker` is the monitor there.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gpuloom.agent.health import Changes
from gpuloom.agent.sample import NodeRates, RunOnNode, Sample
from gpuloom.core.end_reason import EndReason
from gpuloom.core.job import Gpu
from gpuloom.executors.logs import NoLogError
from gpuloom.executors.node import Capabilities, RunFiles, RunSpec, Weaving
from gpuloom.executors.port import Cause, ExecutorError, OnStatus, RunExit, RunPhase, RunStatus
from gpuloom.files.hook_records import Hooked

NOW_S = 1_700_000_000.0
"""When everything ends here."""
SAMPLE = Sample(3.0, NodeRates(None, 1.0, 2.0, 0.1, None, None, None))
"""What is seen here."""


@dataclass
class FakeMachine:
    """Runs of one machine.

    refuses: by run ('*': any), the end of those that can't be prepared. fails_at_go: the same of those that can be
    prepared, but not begun. prepares: False: a start stays STARTING until `prepared`. obedient: runs that are told to
    stop end at once, with `stop_code`; else they are STOPPING until `end`. freezes: False: they don't freeze.

    Attributes:
        ran: runs whose command was begun, in order. were_prepared: runs that were. starts: how often each was asked
            for. specs: what was asked for. stops: reason and grace with which each was told to stop.
        woven: what was said of who shares devices. acknowledged: in order.
    """

    name: str = "n0"
    boot: str = "boot"
    refuses: dict[str, RunExit] = field(default_factory=dict)
    fails_at_go: dict[str, RunExit] = field(default_factory=dict)
    prepares: bool = True
    obedient: bool = True
    stop_code: int | None = 85
    freezes: bool = True
    states: dict[str, RunStatus] = field(default_factory=dict)
    specs: dict[str, RunSpec] = field(default_factory=dict)
    starts: dict[str, int] = field(default_factory=dict)
    ran: list[str] = field(default_factory=list)
    were_prepared: set[str] = field(default_factory=set)
    stops: dict[str, tuple[EndReason, float]] = field(default_factory=dict)
    limits: dict[str, float | None] = field(default_factory=dict)
    woven: list[Weaving] = field(default_factory=list)
    acknowledged: list[str] = field(default_factory=list)
    logs: dict[str, bytes] = field(default_factory=dict)
    checkpoints: dict[str, float] = field(default_factory=dict)
    told: Callable[[RunStatus], None] = lambda status: None
    _gone_ahead: set[str] = field(default_factory=set)
    _pids: int = 1000

    # What it is asked

    def start(self, spec: RunSpec) -> None:
        run = spec.run
        self.starts[run] = self.starts.get(run, 0) + 1
        if run in self.states:
            self.told(self.states[run])
            return
        self.specs[run] = spec
        refused = self.refuses.get(run) or self.refuses.get("*")
        if refused is not None:
            self._say(RunStatus(run, RunPhase.EXITED, exit=refused))
            return
        self._pids += 1
        self.states[run] = RunStatus(run, RunPhase.STARTING, self._pids, 1, self.boot)
        if self.prepares or not spec.hold:
            self.prepared(run)

    def prepared(self, run: str) -> None:
        """It is ready now."""
        status = self.states[run]
        if status.phase is not RunPhase.STARTING:
            return
        self.were_prepared.add(run)
        if self.specs[run].hold and run not in self._gone_ahead:
            self._say(replace(status, phase=RunPhase.PREPARED))
        else:
            self._begin(run)

    def go(self, run: str) -> None:
        status = self.states.get(run)
        if status is None:
            return
        if status.phase is RunPhase.STARTING:
            self._gone_ahead.add(run)
        elif status.phase is RunPhase.PREPARED:
            self._begin(run)

    def stop(self, run: str, reason: EndReason, grace_s: float) -> None:
        status = self.states.get(run)
        if status is None or status.phase is RunPhase.EXITED:
            return
        self.stops[run] = (reason, grace_s)
        if status.phase in (RunPhase.STARTING, RunPhase.PREPARED):
            self.end(run, None, reason=reason)
        elif self.obedient or grace_s <= 0:
            self.end(run, self.stop_code, reason=reason)
        else:
            self._say(replace(status, phase=RunPhase.STOPPING))

    def limit(self, run: str, limit_s: float | None) -> None:
        self.limits[run] = limit_s

    def freeze(self, run: str) -> None:
        status = self.states.get(run)
        if status is not None and status.phase is RunPhase.RUNNING and self.freezes:
            self._say(replace(status, phase=RunPhase.FROZEN))

    def thaw(self, run: str) -> None:
        status = self.states.get(run)
        if status is not None and status.phase is RunPhase.FROZEN:
            self._say(replace(status, phase=RunPhase.RUNNING))

    def acknowledge(self, run: str) -> None:
        status = self.states.get(run)
        if status is not None and status.exit is not None:
            self.acknowledged.append(run)
            if status.exit.released:
                del self.states[run]

    # What happens there

    def end(
        self,
        run: str,
        code: int | None = 0,
        *,
        signal: int | None = None,
        reason: EndReason | None = None,
        message: str = "",
        released: bool = True,
        cause: Cause = Cause.NONE,
        **more: Any,
    ) -> None:
        """A run ends; one that has ended: what was left of it is gone, or not."""
        status = self.states[run]
        if reason is None and status.phase is RunPhase.STOPPING and run in self.stops:
            reason = self.stops[run][0]
        began = run in self.ran
        how = RunExit(code, signal, reason, message, NOW_S, released=released, cause=cause, **more)
        pid, ticks = (status.pid, status.start_ticks) if began else (None, None)
        self._say(replace(status, phase=RunPhase.EXITED, pid=pid, start_ticks=ticks, exit=how))

    def frozen(self, run: str) -> None:
        """Whatever was asked: it stands still."""
        self._say(replace(self.states[run], phase=RunPhase.FROZEN))

    def reboot(self) -> None:
        """All that ran is gone, and nobody saw it end."""
        self.boot += "'"
        for run in [run for run, status in self.states.items() if status.phase is not RunPhase.EXITED]:
            del self.states[run]

    def alive(self) -> set[str]:
        """Runs whose command runs, or stands still."""
        going = (RunPhase.RUNNING, RunPhase.FROZEN, RunPhase.STOPPING)
        return {run for run, status in self.states.items() if status.phase in going}

    def _begin(self, run: str) -> None:
        refused = self.fails_at_go.get(run) or self.fails_at_go.get("*")
        if refused is not None:
            self._say(RunStatus(run, RunPhase.EXITED, exit=refused))
            return
        self.ran.append(run)
        self._say(replace(self.states[run], phase=RunPhase.RUNNING))

    def _say(self, status: RunStatus) -> None:
        self.states[status.run] = status
        self.told(status)


class FakeFiles:
    """Files of the runs of a machine. broken: they can't be read; logs: of the machine."""

    def __init__(self, node: FakeNode) -> None:
        self._node = node
        self.broken = False

    def read_log(
        self, run: str, offset: int | None = None, tail_lines: int | None = None, max_bytes: int = 1 << 20
    ) -> tuple[bytes, int]:
        self._check()
        text = self._node.machine.logs.get(run)
        if text is None:
            raise NoLogError(f"run {run} has no log")
        if tail_lines is not None:
            kept = text.splitlines(keepends=True)[-tail_lines:]
            return b"".join(kept)[-max_bytes:], len(text)
        part = text[offset or 0 :][:max_bytes]
        return part, (offset or 0) + len(part)

    def log_mark(self, run: str) -> tuple[int, ...]:
        self._check()
        return (len(self._node.machine.logs.get(run, b"")),)

    def progress(self, run: str) -> Mapping[str, object]:
        self._check()
        return {}

    def hooks(self, run: str) -> Hooked:
        self._check()
        return Hooked()

    def noticed_s(self, run: str) -> float | None:
        self._check()
        return NOW_S if run in self._node.machine.stops else None

    def checkpoint_s(self, run: str, written: str, workdir: str) -> float | None:
        self._check()
        return self._node.machine.checkpoints.get(run)

    def exit_of(self, run: str, pid: int | None, start_ticks: int | None) -> RunExit | None:
        self._check()
        status = self._node.machine.states.get(run)
        return None if status is None else status.exit

    def _check(self) -> None:
        if self.broken or self._node.broken or self._node.cut:
            raise ExecutorError(f"node {self._node.name} can't be asked for its files")


class FakeNode:
    """A `NodePort` of a `FakeMachine`.

    Attributes:
        broken: every call raises. cut: the link is cut: nothing gets through in either direction until `mend`.
        by_hand: what is asked, and what is told, waits for `deliver_asked` and `deliver_told`.
        forgets: what is told is lost on the way. disk: its files; `disk.broken`: they can't be read.
        asked, said: what waits, in order.
    """

    def __init__(self, name: str = "n0", machine: FakeMachine | None = None) -> None:
        self.name = name
        self.machine = FakeMachine(name) if machine is None else machine
        self.disk = FakeFiles(self)
        self.files: RunFiles = self.disk
        self.can = Capabilities()
        self.broken = self.cut = self.by_hand = self.forgets = False
        self.asked: deque[Callable[[], None]] = deque()
        self.said: deque[RunStatus] = deque()
        self.calls: list[tuple[str, str]] = []
        """(what, run) of all that was asked."""
        self._on_status: OnStatus | None = None
        self._lock = threading.RLock()

    # The port

    def open(self, on_status: OnStatus, *, patience_s: float = 1.0) -> None:
        self._check()
        if self.cut:
            raise ExecutorError(f"node {self.name} does not answer")
        self._on_status = on_status
        self.machine.told = self._told

    def runs(self, *, patience_s: float = 1.0) -> Sequence[RunStatus]:
        self._check()
        if self.cut:
            raise ExecutorError(f"node {self.name} does not answer")
        with self._lock:
            self.deliver()  # what was asked and told before comes first
            return list(self.machine.states.values())

    def start(self, spec: RunSpec) -> None:
        self._ask("start", spec.run, lambda: self.machine.start(spec))

    def go(self, run: str) -> None:
        self._ask("go", run, lambda: self.machine.go(run))

    def stop(self, run: str, *, reason: EndReason, grace_s: float) -> None:
        self._ask("stop", run, lambda: self.machine.stop(run, reason, grace_s))

    def limit(self, run: str, limit_s: float | None) -> None:
        self._ask("limit", run, lambda: self.machine.limit(run, limit_s))

    def freeze(self, run: str) -> None:
        self._ask("freeze", run, lambda: self.machine.freeze(run))

    def thaw(self, run: str) -> None:
        self._ask("thaw", run, lambda: self.machine.thaw(run))

    def weave(self, weaving: Weaving) -> None:
        self._ask("weave", "", lambda: self.machine.woven.append(weaving))

    def acknowledge(self, run: str) -> None:
        self._ask("acknowledge", run, lambda: self.machine.acknowledge(run))

    def boot_id(self) -> str:
        return self.machine.boot

    def healthy(self) -> str:
        return "broken" if self.broken else ""

    def capabilities(self) -> Capabilities:
        return self.can

    def limits(self) -> Mapping[str, str]:
        return {"processes": "fake"}

    def close(self) -> None:
        self._on_status = None

    # The link

    def deliver_asked(self, count: int | None = None) -> None:
        """The machine gets what was asked: the first `count`, or all of it."""
        while self.asked and not self.cut and (count is None or count > 0):
            self.asked.popleft()()
            count = None if count is None else count - 1

    def deliver_told(self, count: int | None = None) -> None:
        """Whoever listens is told: the first `count`, or all of it."""
        while self.said and not self.cut and (count is None or count > 0):
            status = self.said.popleft()
            if self._on_status is not None:
                self._on_status(status)
            count = None if count is None else count - 1

    def deliver(self) -> None:
        """Until nothing is on its way."""
        while (self.asked or self.said) and not self.cut:
            self.deliver_asked()
            self.deliver_told()

    def mend(self) -> None:
        """The link works again: what waited arrives, in order."""
        self.cut = False
        self.deliver()

    def _ask(self, what: str, run: str, do: Callable[[], None]) -> None:
        self._check()
        with self._lock:
            self.calls.append((what, run))
            self.asked.append(do)
            if not self.by_hand:
                self.deliver_asked()

    def _told(self, status: RunStatus) -> None:
        if self.forgets:
            return
        self.said.append(status)
        if not self.by_hand:
            self.deliver_told()

    def _check(self) -> None:
        if self.broken:
            raise ExecutorError(f"node {self.name} is broken on purpose")


class FakeLooker:
    """A monitor that sees what a test says. cleared: GPUs that change when a person says that all are well."""

    def __init__(self) -> None:
        self.newest: Sample | None = None
        self.notes: Mapping[int, tuple[str, ...]] = {}
        self.cleared: tuple[Gpu, ...] = ()
        self.stopped = False
        self.runs: Callable[[], Mapping[str, RunOnNode]] = dict
        self.take: Callable[[Sample, Changes], None] = lambda sample, changes: None

    def start(self, runs: Callable[[], Mapping[str, RunOnNode]], take: Callable[[Sample, Changes], None]) -> None:
        self.runs, self.take = runs, take

    def look(self, changes: Changes | None = None) -> None:
        """It has looked, and this has changed."""
        self.newest = SAMPLE
        self.take(SAMPLE, changes or Changes())

    def clear(self) -> tuple[Gpu, ...]:
        return self.cleared

    def stop(self) -> None:
        self.stopped = True

    def gpu_processes(self, uuids: Sequence[str]) -> Mapping[str, Sequence[int]]:
        return {}
