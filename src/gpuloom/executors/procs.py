"""Processes by /proc: identity, children, and signals that can't reach another process with the same pid."""

from __future__ import annotations

import contextlib
import errno
import os
import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

PAGE = os.sysconf("SC_PAGE_SIZE")
REMEDY = "restart the machine, or what its processes wait for (a file server, a driver)"
"""Against processes that SIGKILL does not end."""
INITIAL_PID_NAMESPACE = "pid:[4026531836]"  # PROC_PID_INIT_INO of the kernel


class Process:
    """A line of the process table. start_ticks: clock ticks after boot; with the pid it names a process for good."""

    __slots__ = ("name", "pgrp", "pid", "ppid", "rss", "session", "start_ticks", "state")

    def __init__(self, pid: int, text: bytes) -> None:
        # The name stands in brackets and may itself hold brackets and blanks.
        opening, closing = text.index(b"("), text.rindex(b")")
        fields = text[closing + 2 :].split()
        self.pid = pid
        self.name = text[opening + 1 : closing].decode(errors="replace")
        self.state = fields[0].decode()
        self.ppid = int(fields[1])
        self.pgrp = int(fields[2])
        self.session = int(fields[3])
        self.start_ticks = int(fields[19])
        self.rss = int(fields[21]) * PAGE

    @property
    def dead(self) -> bool:
        """A zombie: it runs no more and holds nothing."""
        return self.state in "ZX"


def process(pid: int) -> Process | None:
    """The process of this number, or None."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            return Process(pid, file.read(4096))
    except (FileNotFoundError, ProcessLookupError):
        return None


def table() -> dict[int, Process]:
    """All processes."""
    found = {}
    for name in os.listdir("/proc"):
        if name[0].isdigit() and (entry := process(int(name))) is not None:
            found[entry.pid] = entry
    return found


def boot_id() -> str:
    """Which start of the machine this is."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def sees_all() -> bool:
    """Whether all processes of the machine can be seen: not so in a container with process numbers of its own."""
    return os.readlink("/proc/self/ns/pid") == INITIAL_PID_NAMESPACE


def marked(pid: int, marker: bytes) -> bool:
    """Whether `marker`, as b'NAME=value', stands in the environment with which the process was started."""
    return b"\0" + marker + b"\0" in b"\0" + _environment(pid)


def _environment(pid: int) -> bytes:
    """With which a process was started; b'' of one that is gone, or another user's. Raises OSError: not known now."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return b""


class Marks:
    """Which processes carry a run's name, each looked up once.

    That may be kept: a process has its parent's environment from the start, and the only program that is given a new
    name of a run is the leading process of one, which is known by its number.
    """

    def __init__(self) -> None:
        self._found: dict[tuple[int, int], bytes] = {}

    def of(self, entry: Process) -> bytes:
        """As b'GPULOOM_RUN=…', b'' for none. Raises OSError: not known now."""
        key = entry.pid, entry.start_ticks
        mark = self._found.get(key)
        if mark is None:
            data = b"\0" + _environment(entry.pid)
            at = data.find(b"\0GPULOOM_RUN=")
            mark = data[at + 1 : data.find(b"\0", at + 1)] if at >= 0 else b""
            self._found[key] = mark
        return mark

    def prune(self, everything: dict[int, Process]) -> None:
        """Forget those that are gone, now and then."""
        if len(self._found) > 2 * len(everything) + 100:
            present = {(entry.pid, entry.start_ticks) for entry in everything.values()}
            self._found = {key: mark for key, mark in self._found.items() if key in present}


def of_home(home_id: str) -> Iterator[tuple[Process, str]]:
    """Living processes that carry the name of a run of this home, and that name. Looked up anew each time: a child that
    waits to become a job has no mark yet. Raises OSError: not known now."""
    prefix, marks = f"GPULOOM_RUN={home_id}:".encode(), Marks()
    for entry in table().values():
        with contextlib.suppress(OSError):
            if not entry.dead and (mark := marks.of(entry)).startswith(prefix):
                yield entry, mark[len(prefix) :].decode(errors="replace")


def proportional_bytes(pid: int) -> int:
    """Memory of a process where what several share is divided among them; 0 if it is gone or can't be known."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            for line in file:
                if line.startswith(b"Pss:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        return 0
    return 0


def send(target: Process, number: int) -> bool:
    """Signal exactly this process. False: it is gone. Raises OSError: it can't be signalled now."""
    try:
        fd = os.pidfd_open(target.pid)
    except OSError as error:
        if error.errno in (errno.ESRCH, errno.EINVAL):
            return False
        raise
    try:
        now = process(target.pid)
        if now is None or now.start_ticks != target.start_ticks:
            return False
        signal.pidfd_send_signal(fd, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(fd)
    return True


def send_all(targets: Iterable[Process], number: int) -> None:
    """Signal all of these. Raises the first OSError, after all have been tried."""
    failed: OSError | None = None
    for target in targets:
        try:
            send(target, number)
        except OSError as error:
            failed = failed or error
    if failed is not None:
        raise failed


def members(
    everything: dict[int, Process],
    *,
    leader: int,
    start_ticks: int,
    marker: bytes,
    marks: Marks,
    known: set[tuple[int, int]],
    strays: Iterable[int] = (),
) -> list[Process]:
    """The living processes of a run, without a cgroup to say so.

    Those of its session or process group, those that carry its marker, those seen before (`known`: pid and start),
    those given as `strays`, and all descendants of these. `known` is brought up to date.
    """
    first = everything.get(leader)
    # While a session has members its number is not given again; if a new process has it, the session is gone.
    named = first is None or first.start_ticks == start_ticks
    chosen: dict[int, Process] = {}
    rest: dict[int, list[Process]] = {}
    given = set(strays)
    for entry in everything.values():
        if entry.start_ticks < start_ticks:
            continue
        if (
            (named and leader in (entry.session, entry.pgrp, entry.pid))
            or (entry.pid, entry.start_ticks) in known
            or entry.pid in given
            or marks.of(entry) == marker
        ):
            chosen[entry.pid] = entry
        else:
            rest.setdefault(entry.ppid, []).append(entry)
    marks.prune(everything)
    todo = list(chosen)
    while todo:
        for child in rest.get(todo.pop(), ()):
            if child.pid not in chosen:
                chosen[child.pid] = child
                todo.append(child.pid)
    known.clear()
    known.update((entry.pid, entry.start_ticks) for entry in chosen.values())
    return [entry for entry in chosen.values() if not entry.dead]
