"""A node that joined, as the head has it: commands go over the link and never wait, questions wait for a while."""

from __future__ import annotations

import base64
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from gpuloom.core.end_reason import EndReason
from gpuloom.executors.gang_ends import BEGINNING, unseen_end
from gpuloom.executors.logs import NoLogError
from gpuloom.executors.node import Capabilities, Hooked, RunFiles, RunSpec, Weaving
from gpuloom.executors.port import OnStatus, RunExit, RunPhase, RunStatus
from gpuloom.executors.roster import rebooted
from gpuloom.fleet.channel import ANSWER_S, AnswerError, Channel
from gpuloom.fleet.codec import CodecError, of_plain
from gpuloom.fleet.messages import (
    Acknowledge,
    Clear,
    Freeze,
    Go,
    HeadSays,
    Joined,
    Leave,
    Limit,
    Start,
    Stop,
    Thaw,
    Weave,
    data_of,
)
from gpuloom.fleet.questions import CHUNK

T = TypeVar("T")

FORGOTTEN = 10_000
"""Acknowledged runs that are remembered, should the node tell of them once more."""


@dataclass(slots=True)
class _Run:
    """A run that is not acknowledged. spec: while nothing has been heard of it. wanted: the last command of each kind
    that it was given, to be given again to a node process that may have forgotten them."""

    spec: RunSpec | None = None
    last: RunStatus | None = None
    wanted: dict[str, HeadSays] = field(default_factory=dict)


class JoinedNode:
    """A NodePort. Made and told of what the node says by `registry.Nodes`."""

    def __init__(self, name: str, channel: Channel) -> None:
        self.name, self.channel = name, channel
        self.files: RunFiles = JoinedFiles(channel)
        self._lock = threading.Lock()
        self._telling = threading.Lock()
        self._runs: dict[str, _Run] = {}
        self._woven: dict[tuple[str, tuple[int, ...]], Weave] = {}
        """By devices, what was said last of who shares them."""
        self._acknowledged: OrderedDict[str, None] = OrderedDict()
        self._on_status: OnStatus | None = None
        self._early: list[RunStatus] = []
        self._boot_id = ""
        self._capabilities = Capabilities()
        self._limits: Mapping[str, str] = {}
        self._healthy = ""

    # -- the port -----------------------------------------------------------------------------------------------------

    def open(self, on_status: OnStatus, *, patience_s: float = ANSWER_S) -> None:
        """See `NodePort`. What was heard until now is told first."""
        with self._telling:
            self._on_status = on_status
            early, self._early = self._early, []
            for status in early:
                on_status(status)

    def runs(self, *, patience_s: float = ANSWER_S) -> Sequence[RunStatus]:
        """See `NodePort`. Raises ExecutorError, where the link is cut."""
        found = self.channel.ask("runs", patience_s)
        try:
            return [of_plain(RunStatus, one) for one in found]
        except (CodecError, TypeError) as error:
            raise AnswerError(f"{self.name} answers what is no list of runs: {error}", "malformed") from None

    def start(self, spec: RunSpec) -> None:
        """See `NodePort`."""
        with self._lock:
            self._runs.setdefault(spec.run, _Run()).spec = spec
        self._say(Start(spec))

    def go(self, run: str) -> None:
        """See `NodePort`."""
        self._command("go", run, Go(run))

    def stop(self, run: str, *, reason: EndReason, grace_s: float) -> None:
        """See `NodePort`."""
        self._command("stop", run, Stop(run, reason, max(grace_s, 0.0)))

    def limit(self, run: str, limit_s: float | None) -> None:
        """See `NodePort`."""
        self._command("limit", run, Limit(run, limit_s))

    def freeze(self, run: str) -> None:
        """See `NodePort`."""
        self._command("freeze", run, Freeze(run))

    def thaw(self, run: str) -> None:
        """See `NodePort`."""
        self._command("freeze", run, Thaw(run))

    def weave(self, weaving: Weaving) -> None:
        """See `NodePort`."""
        with self._lock:
            said = self._woven[weaving.kind, weaving.gpus] = Weave(weaving)
        self._say(said)

    def acknowledge(self, run: str) -> None:
        """See `NodePort`."""
        with self._lock:
            self._runs.pop(run, None)
            self._acknowledged[run] = None
            while len(self._acknowledged) > FORGOTTEN:
                self._acknowledged.popitem(last=False)
        self._say(Acknowledge(run))

    def boot_id(self) -> str:
        """See `NodePort`."""
        return self._boot_id

    def healthy(self) -> str:
        """See `NodePort`."""
        return self._healthy if self.channel.connected else f"the link to {self.name} is cut"

    def capabilities(self) -> Capabilities:
        """See `NodePort`."""
        return self._capabilities

    def limits(self) -> Mapping[str, str]:
        """See `NodePort`."""
        return self._limits

    def close(self) -> None:
        """Nothing is told any more. The link stays; it is the registry's."""
        with self._telling:
            self._on_status = None

    def clear(self) -> None:
        """A person says that all its GPUs are well again."""
        self._say(Clear())

    def leave(self, why: str) -> None:
        """It shall leave: it tells that it wants to, and ends once nothing of the head's runs there."""
        self._say(Leave(why))

    # -- what the node says (the registry's thread) -------------------------------------------------------------------

    def heard(self, status: RunStatus) -> None:
        """A run has changed."""
        with self._lock:
            if status.run in self._acknowledged:
                again = status.exit is not None
            else:
                again = False
                run = self._runs.setdefault(status.run, _Run())
                if run.last == status:
                    return
                run.spec, run.last = None, status
                if status.exit is not None:
                    run.wanted.clear()
            known = status.run not in self._acknowledged
        if known:
            self._tell(status)
        elif again:
            self._say(Acknowledge(status.run))

    def health(self, text: str) -> None:
        """What the node says of its executor."""
        self._healthy = text

    def began(self, joined: Joined, boot_id: str) -> list[RunStatus]:
        """A session of the node has begun: these are its runs (those whose end was acknowledged left out).

        Commands that its last process may have forgotten are given again. Runs that it should know and doesn't are
        told as lost.
        """
        restarted = rebooted(self._boot_id, boot_id)
        self._boot_id, self._healthy = boot_id, joined.healthy
        self._capabilities, self._limits = joined.capabilities, joined.limits
        there = {status.run: status for status in joined.runs}
        with self._lock:
            again = [run for run in there if run in self._acknowledged]
            starts = [run.spec for name, run in self._runs.items() if run.spec is not None and name not in there]
            wanted = [
                command
                for name, run in self._runs.items()
                if (name in there and there[name].exit is None) or run.spec is not None
                for command in run.wanted.values()
            ]
            wanted += self._woven.values()
            gone = [
                run.last
                for name, run in self._runs.items()
                if run.last is not None and run.last.exit is None and name not in there
            ]
        for run in again:
            self._say(Acknowledge(run))
        for spec in starts:
            self._say(Start(spec))
        for command in wanted:
            self._say(command)
        known = [status for run, status in there.items() if run not in again]
        for status in known:
            self.heard(status)
        for last in gone:
            how = unseen_end(time.time(), begun=last.phase not in BEGINNING, restarted=restarted)
            self.heard(replace(last, phase=RunPhase.EXITED, exit=how))
        return known

    def _command(self, kind: str, run: str, command: HeadSays) -> None:
        with self._lock:
            if (known := self._runs.get(run)) is not None:
                known.wanted.pop(kind, None)  # the newest comes last
                known.wanted[kind] = command
        self._say(command)

    def _say(self, command: HeadSays) -> None:
        self.channel.put(data_of(command))

    def _tell(self, status: RunStatus) -> None:
        with self._telling:
            if self._on_status is None:
                self._early.append(status)
            else:
                self._on_status(status)


class JoinedFiles:
    """RunFiles over the link. All raise ExecutorError, where the link is cut."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def read_log(
        self, run: str, offset: int | None = None, tail_lines: int | None = None, max_bytes: int = 1 << 20
    ) -> tuple[bytes, int]:
        """See `RunFiles`. Asked for piece by piece, so that heartbeats come between. Raises NoLogError."""
        found = bytearray()
        while True:
            most = max_bytes - len(found)
            piece, after = self._asked(
                _piece, "read_log", run=run, offset=offset, tail_lines=tail_lines, max_bytes=most
            )
            if found and after - len(piece) != offset:
                return bytes(found), offset or 0  # a gap: what comes after it is for the next call
            found += piece
            offset, tail_lines = after, None
            if len(piece) < min(most, CHUNK) or len(found) >= max_bytes:
                return bytes(found), after

    def log_mark(self, run: str) -> tuple[int, ...]:
        """See `RunFiles`."""
        return self._asked(lambda found: tuple(map(int, found)), "log_mark", run=run)

    def progress(self, run: str) -> Mapping[str, object]:
        """See `RunFiles`."""
        return self._asked(lambda found: dict[str, object](found), "progress", run=run)

    def hooks(self, run: str) -> Hooked:
        """See `RunFiles`."""
        return self._asked(lambda found: of_plain(Hooked, found), "hooks", run=run)

    def noticed_s(self, run: str) -> float | None:
        """See `RunFiles`."""
        return self._asked(_seconds, "noticed_s", run=run)

    def checkpoint_s(self, run: str, written: str, workdir: str) -> float | None:
        """See `RunFiles`."""
        return self._asked(_seconds, "checkpoint_s", run=run, written=written, workdir=workdir)

    def exit_of(self, run: str, pid: int | None, start_ticks: int | None) -> RunExit | None:
        """See `RunFiles`."""
        return self._asked(
            lambda found: None if found is None else of_plain(RunExit, found),
            "exit_of",
            run=run,
            pid=pid,
            start_ticks=start_ticks,
        )

    def _asked(self, made: Callable[[Any], T], what: str, **arguments: Any) -> T:
        try:
            return made(self._channel.ask(what, **arguments))
        except AnswerError as error:
            if error.kind == "no-log":
                raise NoLogError(str(error)) from None
            raise
        except (CodecError, TypeError, ValueError) as error:
            raise AnswerError(f"{self._channel.peer} answers no {what}: {error}", "malformed") from None


def _piece(found: Any) -> tuple[bytes, int]:
    data, after = found
    return base64.b64decode(data), int(after)


def _seconds(found: Any) -> float | None:
    return None if found is None else float(found)
