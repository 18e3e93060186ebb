"""How members of gangs end, and what is said of it."""

from __future__ import annotations

import signal as signals

from gpuloom.core.end_reason import EndReason
from gpuloom.core.errors import GpuloomError
from gpuloom.executors.node import RunFiles
from gpuloom.executors.port import Cause, RunExit, RunPhase, RunStatus

LOG_LINES, LOG_BYTES = 10, 2000
"""Of the log of a member whose end decided: what its attempt's message has of it."""
BEGINNING = frozenset({RunPhase.STARTING, RunPhase.PREPARED})
"""Phases before the command of a run is run."""


def ran(status: RunStatus) -> bool:
    """Whether it was told to begin."""
    if status.exit is None:
        return status.phase not in BEGINNING
    return (status.exit.exit_code, status.exit.signal) != (None, None)


def good(how: RunExit) -> bool:
    """It ended by itself, and well."""
    return how.exit_code == 0 and how.reason is None


def spoils(status: RunStatus | None) -> bool:
    """After its master's good end: whether this member keeps the attempt from having ended well. One that was still
    running when its time was over does not; one that never began does."""
    if status is None or status.exit is None or good(status.exit):
        return False
    return status.exit.reason is not EndReason.PEER or status.pid is None


def gone(status: RunStatus) -> bool:
    """It has ended, and nothing of it is left."""
    return status.phase is RunPhase.EXITED and (status.exit is None or status.exit.released)


def unseen_end(at_s: float, *, begun: bool, restarted: bool) -> RunExit:
    """The end of a run of which its node no longer knows. begun: it may have run. restarted: the node's machine was,
    meanwhile. at_s: now, since the epoch."""
    if not begun:
        text = "its node no longer knows it; it had not begun"
        return RunExit(None, None, EndReason.NOT_STARTED, text, at_s, cause=Cause.EXECUTOR)
    cause, message = Cause.NONE, "its node no longer knows it; how it ended is unknown"
    if restarted:
        cause, message = Cause.RESTARTED, "the machine was restarted while it ran; how it ended is unknown"
    return RunExit(None, None, EndReason.LOST, message, at_s, cause=cause)


def message_of(rank: int, node: str, how: RunExit, log: str) -> str:
    """What is said of an attempt that this member's end decided. log: the last lines of the member's log."""
    said = [how.message] if how.message else []
    if how.signal is not None:
        try:
            name = signals.Signals(how.signal).name
        except ValueError:
            name = f"signal {how.signal}"
        said.append(f"ended by {name}")
    elif how.exit_code:
        said.append(f"exit code {how.exit_code}")
    text = f"member {rank} on {node}: {'; '.join(said) or (how.reason or 'it ended')}"
    return f"{text}; its log ends with: {' | '.join(log.split(chr(10)))}" if log else text


def last_lines(files: RunFiles, run: str) -> str:
    """The last lines of a run's log; '' where they can't be read."""
    try:
        data, _ = files.read_log(run, tail_lines=LOG_LINES, max_bytes=LOG_BYTES)
    except (GpuloomError, OSError, ValueError):
        return ""
    # Of a line that was written over and over (a bar of progress) what was to be seen last.
    lines = (line.rstrip("\r").rpartition("\r")[2].rstrip() for line in data.decode(errors="replace").split("\n"))
    return "\n".join(lines).strip("\n")
