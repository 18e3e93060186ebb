"""The port of live executors: what starts, stops and watches the processes of jobs.

A *run* is one attempt of a job; its name ('12.1') is never used twice. An executor outlives the scheduler as far as it
can: runs go on when the scheduler is gone, and a new one asks `runs()` what has become of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gpuloom.core.end_reason import EndReason
from gpuloom.core.errors import GpuloomError
from gpuloom.core.job import DeviceKind
from gpuloom.core.spec import DEFAULTS
from gpuloom.core.usage import RunUsage as RunUsage
from gpuloom.executors.wire import Cause as Cause
from gpuloom.executors.wire import RunPhase as RunPhase
from gpuloom.executors.wire import blamed as blamed


class ExecutorError(GpuloomError):
    """The executor can't do what was asked for: says what and why."""


@dataclass(frozen=True, slots=True)
class RunRequest:
    """A run to start.

    argv: program and arguments. cwd: working directory. env: its whole environment, to which the executor adds what
    the GPUs and gpuloom need (docs/howto/write-jobs.md). gpus: indices on the node. kind: 'gpu' or 'cpu' (slots).
    directory: where the run's files go (logs, notice, progress), named by the scheduler. limit_s: time limit, seconds
    of running; the executor itself ends the run then, reason TIMED_OUT. grace_s: between notice and end. cpus,
    memory_mib: limits (None: none). log_mib, log_files: size at which the log is rotated, and files kept.
    resumes: there was an attempt before. hold: prepare everything, and run the program at `go`. suspends: `freeze` also
    moves its GPU memory to the machine's memory, and `thaw` brings it back (executors/suspending.py). rehearse_s: so
    long after it has begun that is tried once, without anybody else having its GPU (`RunStatus.rehearsal`).
    """

    run: str
    argv: tuple[str, ...]
    cwd: str
    env: Mapping[str, str]
    gpus: tuple[int, ...]
    gpu_uuids: tuple[str, ...]
    directory: str
    kind: DeviceKind = DeviceKind.GPU
    limit_s: float | None = None
    grace_s: float = DEFAULTS.grace
    cpus: float | None = None
    memory_mib: int | None = None
    log_mib: float = 64.0
    log_files: int = 4
    resumes: bool = False
    hold: bool = False
    suspends: bool = False
    rehearse_s: float | None = None


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """Whether a program bears being suspended, as was seen. mib: GPU memory that moved; out_s, in_s: what that took,
    seconds. why: not, in words. earnest: it was to make way, and not only to try."""

    ok: bool
    mib: float = 0.0
    out_s: float = 0.0
    in_s: float = 0.0
    why: str = ""
    earnest: bool = False


@dataclass(frozen=True, slots=True)
class RunExit:
    """How a run ended.

    reason: why the executor ended it (TIMED_OUT, or what `stop` was given), OUT_OF_MEMORY, NOT_STARTED, LOST (its end
    was not seen); None: it ended by itself. signal: the signal that killed it. at_s: epoch seconds.
    released: nothing of the run's processes is left and its GPUs are verified free; False: `message` says what is left.
    cause: what is to blame, where reason is NOT_STARTED, LOST or NODE. A run that was not started by a fault of the
    surroundings has not run: its job may be started again under another run's name.
    member: of a gang, the rank of the member whose end decided; then `message` names it, and has its exit code.
    failed_rank: of a run with a process for each GPU, the local rank of the one that failed first while others ran;
    others_code: the exit code of the first of these others once they were told to end, minus the signal that killed it.
    """

    exit_code: int | None
    signal: int | None
    reason: EndReason | None
    message: str
    at_s: float
    peak_memory_mib: float | None = None
    cpu_s: float | None = None
    released: bool = True
    cause: Cause = Cause.NONE
    member: int | None = None
    failed_rank: int | None = None
    others_code: int | None = None


def exit_of(data: Mapping[str, Any]) -> RunExit:
    """The end of a run in the form that the runner reports and stores."""
    reason = data["reason"]
    cause = Cause(data.get("cause", ""))
    return RunExit(**{**data, "reason": EndReason(reason) if reason else None, "cause": cause})


@dataclass(frozen=True, slots=True)
class RunStatus:
    """What an executor knows of a run. pid, start_ticks (of /proc/PID/stat), boot_id: the identity of its process; pod:
    that of its pod, where it runs in one. Neither: it has not begun.

    members: of an attempt with several members, each of them in the order of ranks; the rest is the master's then. Of a
    run that nobody asked for, where it runs. Else ().
    suspended_mib: of one that is frozen, GPU memory that is in the machine's memory. moved_s: what moving it took last.
    refused: why it was not suspended when it was asked to; it runs on. rehearsal: what was seen of its program, in a
    rehearsal or when it was suspended; None: nothing yet.
    restarts: how often its process was begun anew within the attempt, while others of it ran on. restarted: why, the
    last time.
    """

    run: str
    phase: RunPhase
    pid: int | None = None
    start_ticks: int | None = None
    boot_id: str | None = None
    exit: RunExit | None = None
    members: tuple[MemberStatus, ...] = ()
    suspended_mib: float | None = None
    moved_s: float | None = None
    refused: str = ""
    pod: str = ""
    rehearsal: Rehearsal | None = None
    restarts: int = 0
    restarted: str = ""


def not_run(run: str, reason: EndReason, message: str, cause: Cause = Cause.NONE) -> RunStatus:
    """The status of a run that ends now, and whose program was not begun."""
    return RunStatus(run, RunPhase.EXITED, exit=RunExit(None, None, reason, message, time.time(), cause=cause))


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """A member within the status of its attempt: rank 0 is the master."""

    rank: int
    node: str
    status: RunStatus


OnStatus = Callable[[RunStatus], None]
"""Called from a thread of the executor for every change: prepared, started, frozen, thawed, exited."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What an executor, or a node, can do with runs. Whoever needs it asks here, not which kind of executor it is.

    freezes: stops processes where they are. limits: changes a time limit while it runs. memory, cpus: enforces limits
    of these. kills_all: nothing of a run is left when it has ended, whatever it forked. suspends: freezes runs so that
    their GPU memory is free (`RunRequest.suspends`), with this version of NVIDIA's driver. shares: several runs may
    have one GPU. resizes: a run that is stopped with the reason RESIZED goes on in the next attempt of its job
    (`NodePort.stop`).
    """

    freezes: bool = True
    limits: bool = True
    memory: bool = False
    cpus: bool = False
    kills_all: bool = True
    suspends: bool = False
    driver: str = ""
    shares: bool = True
    resizes: bool = False


class LiveExecutor(Protocol):
    """See the module. No call waits for the job: what became of it comes through `OnStatus`."""

    name: str

    def open(self, on_status: OnStatus, *, patience_s: float = ...) -> None:
        """Connect, or begin, within `patience_s`; may be asked again after an error. Runs of before are watched on.

        Raises:
            ExecutorError: it can't be used now; says why.
        """
        ...

    def runs(self, *, patience_s: float = ...) -> Sequence[RunStatus]:
        """All runs it knows: those under way, and those that exited and were not acknowledged.

        Raises:
            ExecutorError: it does not say within `patience_s`.
        """
        ...

    def start(self, request: RunRequest) -> None:
        """Start a run. Asked twice for one run it starts once; whether it could be comes as a status, as all the rest.
        Raises ExecutorError."""
        ...

    def go(self, run: str) -> None:
        """Let a run that was started with `hold` run its program, as soon as it is prepared; asked again it does no
        harm."""
        ...

    def stop(self, run: str, *, reason: EndReason, grace_s: float) -> None:
        """Give notice (SIGTERM, file), and end the whole tree after `grace_s`; 0: at once. Asked again with less grace,
        the earlier deadline counts. A run that has ended is left alone; one that waits for `go` ends without having
        run."""
        ...

    def limit(self, run: str, limit_s: float | None) -> None:
        """Change the time limit of a run: seconds of running in all, from its start; None: none any more."""
        ...

    def freeze(self, run: str) -> None:
        """Stop all its processes where they are."""
        ...

    def thaw(self, run: str) -> None: ...

    def acknowledge(self, run: str) -> None:
        """The exit of the run is written down: forget it (its files stay)."""
        ...

    def boot_id(self) -> str:
        """Which start of its machine this is, as `RunStatus.boot_id` names it; '': not known."""
        ...

    def healthy(self) -> str:
        """'' or what is wrong with the executor itself."""
        ...

    def capabilities(self) -> Capabilities:
        """What it can do; known once it is open."""
        ...

    def close(self) -> None:
        """Let go; the runs go on."""
        ...
