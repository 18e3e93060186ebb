"""Processes of this machine in one pass over /proc, and which of them belong to which run. Linux only."""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from gpuloom.agent.sample import RunOnNode

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Process:
    """A process. ticks: CPU time of it and of its children that ended and were waited for. pages: resident."""

    pid: int
    parent: int
    group: int
    session: int
    ticks: int
    start_ticks: int
    pages: int


def read_small(path: str, limit: int = 65_536) -> bytes | None:
    """A file's first bytes; None if it can't be read or is not a plain file (one that others named may be anything)."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.read(file, limit) if stat.S_ISREG(os.fstat(file).st_mode) else None
    except OSError:
        return None
    finally:
        os.close(file)


def process(pid: int, proc: str = "/proc") -> Process | None:
    """The process, or None if there is none."""
    # The name may hold spaces and brackets: the fields begin after its last bracket.
    text = _stat(f"{proc}/{pid}/stat")
    if text is None:
        return None
    fields = text[text.rfind(b")") + 2 :].split()
    try:
        return Process(
            pid,
            int(fields[1]),
            int(fields[2]),
            int(fields[3]),
            sum(map(int, fields[11:15])),
            int(fields[19]),
            int(fields[21]),
        )
    except (IndexError, ValueError):
        return None


def _stat(path: str) -> bytes | None:
    """Much faster than `read_small`, for files of the kernel's own."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.read(file, 4096)
    except OSError:
        return None  # it ended meanwhile
    finally:
        os.close(file)


def all_processes(proc: str = "/proc") -> dict[int, Process]:
    """Every process that can be seen."""
    found = {}
    for name in os.listdir(proc):
        if name.isdigit():
            one = process(int(name), proc)
            if one is not None:
                found[one.pid] = one
    return found


class Trees:
    """Which processes belong to which run, from look to look.

    Of a run: its first process, all in the session or group that this one leads, their children, and what was seen to
    belong to it before, wherever it has been moved to since. A daemon that leaves session and parents between two looks
    is missed, unless it is found otherwise (`adopt`).
    """

    def __init__(self) -> None:
        self._seen: dict[str, dict[int, int]] = {}

    def members(self, processes: Mapping[int, Process], runs: Mapping[str, RunOnNode]) -> dict[str, list[Process]]:
        """The processes of each run."""
        owner: dict[int, str] = {}
        leaders: dict[int, str] = {}
        for run, known in runs.items():
            for pid, start in self._seen.get(run, {}).items():
                one = processes.get(pid)
                if one is not None and one.start_ticks == start:
                    owner[pid] = run
            if known.pid is None:
                continue
            one = processes.get(known.pid)
            if one is not None and known.start_ticks is not None and one.start_ticks != known.start_ticks:
                continue  # the number went to another process
            leaders[known.pid] = run
            if one is not None:
                owner[known.pid] = run
        for pid, one in processes.items():
            if pid not in owner:
                run_of = leaders.get(one.session) or leaders.get(one.group)
                # A leader's number that went to another process leads no session of ours.
                if run_of is not None:
                    owner[pid] = run_of
        for pid in processes:
            self._inherit(pid, processes, owner)
        found: dict[str, list[Process]] = {run: [] for run in runs}
        for pid, run in owner.items():
            if run:
                found[run].append(processes[pid])
        self._seen = {run: {one.pid: one.start_ticks for one in members} for run, members in found.items()}
        return found

    def adopt(self, run: str, pid: int) -> None:
        """From the next look on this process belongs to the run."""
        one = process(pid)
        if one is not None:
            self._seen.setdefault(run, {})[pid] = one.start_ticks

    @staticmethod
    def _inherit(pid: int, processes: Mapping[int, Process], owner: dict[int, str]) -> None:
        """The run that a process belongs to by its parents; '' if to none."""
        way = []
        while pid not in owner:
            way.append(pid)
            owner[pid] = ""  # also ends a circle, which a torn reading could show
            parent = processes[pid].parent
            if parent not in processes:
                break
            pid = parent
        whose = owner.get(pid, "")
        for one in way:
            owner[one] = whose


def io_bytes(pids: Iterable[int], proc: str = "/proc") -> tuple[int, int] | None:
    """Bytes read from and written to storage by these processes and their ended children; None if none can be seen."""
    read = written = 0
    seen = False
    for pid in pids:
        text = _stat(f"{proc}/{pid}/io")
        if not text:
            continue
        values = dict(line.split(b": ") for line in text.splitlines() if b": " in line)
        try:
            read, written, seen = read + int(values[b"read_bytes"]), written + int(values[b"write_bytes"]), True
        except (KeyError, ValueError):
            continue
    return (read, written) if seen else None


def run_named(pid: int, proc: str = "/proc") -> tuple[str, str]:
    """(run, its directory) of which the process says, by its environment, that it is part; '' where it doesn't."""
    run = directory = ""
    for entry in (read_small(f"{proc}/{pid}/environ", 1 << 20) or b"").split(b"\0"):
        name, _, value = entry.partition(b"=")
        if name == b"GPULOOM_RUN":
            run = value.decode(errors="replace").rpartition(":")[2]  # before it: which home's run it is
        elif name == b"GPULOOM_PROGRESS_FILE":
            directory = os.path.dirname(value.decode(errors="replace"))
    return run, directory


def who(pid: int, proc: str = "/proc") -> tuple[str, str]:
    """(user, program) of a process, for people; '?' where it can't be seen."""
    try:
        uid = os.stat(f"{proc}/{pid}").st_uid
    except OSError:
        return "?", "?"
    name = (read_small(f"{proc}/{pid}/comm", 64) or b"?").decode(errors="replace").strip()
    return _user(uid), "".join(c if c.isprintable() else "?" for c in name) or "?"


@lru_cache(maxsize=1024)
def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
