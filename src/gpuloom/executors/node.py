"""The port of one node: what the scheduler asks of a machine, be it this one or one that joined.

A *run* is one member of an attempt: a process tree on one node; `core/run_name.py` has its name. What to run is said as
the job's submission says it (`RunSpec`), because only the node itself knows its programs, its virtual environments and
where its files lie; the node makes a `RunRequest` of it. The members of a gang are prepared everywhere before any of
them runs (`hold`, `go`), so that no half gang ever trains.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from gpuloom.core.end_reason import EndReason
from gpuloom.core.job import DeviceKind
from gpuloom.core.spec import DEFAULTS, Launcher
from gpuloom.executors.devices import Weaving as Weaving
from gpuloom.executors.port import Capabilities as Capabilities
from gpuloom.executors.port import MemberStatus as MemberStatus
from gpuloom.executors.port import OnStatus, RunExit, RunStatus
from gpuloom.files.hook_records import Hooked as Hooked


@dataclass(frozen=True, slots=True)
class Peer:
    """A member of a gang as the others see it. address: where its node can be reached from other nodes."""

    node: str
    address: str
    gpus: int


@dataclass(frozen=True, slots=True)
class RunSpec:
    """One member of an attempt to start.

    command … container, cpus, memory_mib: as the job's spec says; memory in MiB. env: the job's own variables and those
    that the scheduler adds; the node lays them over what it gives every job. gpus: indices on the node; gpu_uuids: of
    these GPUs. kind: 'gpu' or 'cpu' (slots).
    sharing_class: 'high', 'best-effort' or '' (core/share_class.py). kernel_profile: a file's path or the name
    of a profile, with which the job shares its GPU; '' for none. resumes: an attempt ran before.
    peers: every member in the order of ranks, this one included; a single one for a job on one node. rank: which of
    them this is, 0 for the master. port: on the master's node, for the gang's rendezvous. per_gpu: run the command once
    for each GPU, rather than once for each node. hooks: whether our hooks enter its Pythons; None: unless it runs in a
    container. launcher: what starts its processes; None: nothing but the command.
    ps: parameter servers of the job (launcher 'tensorflow').
    sizes: of a job whose members may go on in its next attempt: how many members it may have; None: they can't.
    hold: prepare everything, and run the command at `go`. suspends, rehearse_s: as in `RunRequest`.
    """

    run: str
    command: tuple[str, ...]
    workdir: str
    env: Mapping[str, str]
    gpus: tuple[int, ...]
    gpu_uuids: tuple[str, ...]
    kind: DeviceKind = DeviceKind.GPU
    venv: str | None = None
    conda: str | None = None
    container: str | None = None
    limit_s: float | None = None
    grace_s: float = DEFAULTS.grace
    cpus: float | None = None
    memory_mib: int | None = None
    sharing_class: str = ""
    kernel_profile: str = ""
    resumes: bool = False
    peers: tuple[Peer, ...] = ()
    rank: int = 0
    port: int | None = None
    per_gpu: bool = False
    hooks: bool | None = None
    launcher: Launcher | None = None
    ps: int = 0
    hold: bool = False
    suspends: bool = False
    rehearse_s: float | None = None
    sizes: tuple[int, int] | None = None


class RunFiles(Protocol):
    """The files of runs of one node, wherever they lie. Each call may wait for a disk or for a link.

    Raises (all of them):
        ExecutorError: the node can't be asked now.
    """

    def read_log(
        self, run: str, offset: int | None = None, tail_lines: int | None = None, max_bytes: int = 1 << 20
    ) -> tuple[bytes, int]:
        """As `executors/logs.py: read_log`. Raises NoLogError, too."""
        ...

    def log_mark(self, run: str) -> tuple[int, ...]:
        """Something that is another whenever the log has grown; () where there is none. Must be cheap."""
        ...

    def progress(self, run: str) -> Mapping[str, object]:
        """What the run reported last of its progress, else what hooks counted of it; {} for nothing."""
        ...

    def hooks(self, run: str) -> Hooked:
        """What hooks in its Python recorded: iterations, and times of their stages."""
        ...

    def noticed_s(self, run: str) -> float | None:
        """When it got notice, seconds since the epoch by the node's clock; None: it got none."""
        ...

    def checkpoint_s(self, run: str, written: str, workdir: str) -> float | None:
        """When the newest file was written that a run's checkpoint stands for (a file, a folder with all below it, or
        a pattern, from the working directory on), seconds since the epoch by the clock of where it lies; None: there is
        no such file. May take long, where it lies on yet another machine."""
        ...

    def exit_of(self, run: str, pid: int | None, start_ticks: int | None) -> RunExit | None:
        """How it ended, by its files; None: they don't tell, or are those of another process."""
        ...


FilesOf = Callable[[str], RunFiles]
"""The files of the runs on the node of this name. A node that can't be asked has files all the same: their calls say
why."""


class NodePort(Protocol):
    """One node. No call but `open`, `runs` and those of `files` waits for anybody.

    Attributes:
        name: of the node, as records have it. files: of its runs.
    """

    name: str
    files: RunFiles

    def open(self, on_status: OnStatus, *, patience_s: float = ...) -> None:
        """As `LiveExecutor.open`. Raises ExecutorError."""
        ...

    def runs(self, *, patience_s: float = ...) -> Sequence[RunStatus]:
        """As `LiveExecutor.runs`. Raises ExecutorError."""
        ...

    def start(self, spec: RunSpec) -> None:
        """Start a member, or with `hold` prepare it: then its status is `RunPhase.PREPARED`. Asked twice for one run it
        starts once. What can't be prepared comes as an exit, reason NOT_STARTED. Raises ExecutorError."""
        ...

    def go(self, run: str) -> None:
        """Have a prepared run begin; asked again it does no harm."""
        ...

    def stop(self, run: str, *, reason: EndReason, grace_s: float) -> None:
        """As `LiveExecutor.stop`. Where it can (`Capabilities.resizes`) the reason RESIZED has another meaning: the run
        ends at once, exit code None, and its processes go on until a member of the next attempt of its job is started
        in its place: the same rank on the same node, with as many GPUs. If none is, they are ended."""
        ...

    def limit(self, run: str, limit_s: float | None) -> None: ...

    def freeze(self, run: str) -> None: ...

    def thaw(self, run: str) -> None: ...

    def weave(self, weaving: Weaving) -> None:
        """Say to the jobs on these devices who is together from now on; none is restarted. What was said last holds
        until something else is, whoever restarts. Raises ExecutorError: it could not be said; say it again."""
        ...

    def acknowledge(self, run: str) -> None: ...

    def boot_id(self) -> str: ...

    def healthy(self) -> str: ...

    def capabilities(self) -> Capabilities: ...

    def limits(self) -> Mapping[str, str]:
        """What is enforced here, and how: 'processes', 'freezing', 'memory', 'cpus', 'time'."""
        ...

    def close(self) -> None: ...
