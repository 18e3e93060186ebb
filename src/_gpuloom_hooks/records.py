"""The records that a job's processes leave: one small file of fixed layout each, read by gpuloom while it is written.

A process that trains has its state and a ring of its last iterations; a loader's worker only a state. Each part has a
CRC, so that a reader sees what is half written. Files appear whole, by a rename.

Written by `pwrite` rather than through a mapping: a full or lost disk is then an error that is caught and not a signal
that kills the job. Before each write the file is looked at, as a script may close descriptors that are not its own.
gpuloom reads it in `gpuloom/files/hook_records.py`; a test holds the two together.
"""

from __future__ import annotations

import fcntl
import os
import time
from struct import Struct
from zlib import crc32

from . import folder, stages

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
MAGIC = b"GLSTAGES"
VERSION = 1
TRAINER, LOADER = 1, 2
HEADER = Struct("<8sHHIIId")
"""Magic, version, kind, pid, pid of the parent, rows of the ring, when it was made (epoch seconds)."""
STATE = Struct("<QQQQQQdIIIIi16s")
"""Iterations, rows written, steps in all (0: not known), steps done before this process, peak memory of one GPU in
bytes, batches, when it was written (epoch seconds), batch size, workers of its loader, flags, world size, rank,
framework."""
LOAD = Struct("<QQQQd")
"""Batches; nanoseconds of reading, of computing, and of waiting for a core; when it was written."""
ROW = Struct("<14I")
"""Number of the last iteration, how many it covers; microseconds in all, of storage, CPU, GPU, network, waiting for
data, waiting for turns, GPU by its own clock (0: none), communication, its overlap with computing (both 0: not looked
at); batches; GPU memory in MiB so far."""
CRC = Struct("<I")
STATE_AT, RING_AT, ROWS = 64, 256, 256
LOADER_FILES = 256

DEVICE_CLOCK, SYNCED, OTHER_THREAD, NO_QUEUE, DATA_INSIDE = 1, 2, 4, 8, 16
"""Flags: GPU times are by CUDA's clock; gradients are synchronised; batches are fetched in a thread that does not
train; waits for a core are not known; the framework fetches its data inside of its step."""
MOST = (1 << 32) - 1
MEMORY_EVERY = 64


class Facts:
    """What is known of the training beside its times. device_us … batches: of the present iteration."""

    def __init__(self) -> None:
        self.framework = ""
        self.total_steps = self.first_step = self.memory_bytes = self.batch_size = self.workers = self.flags = 0
        self.all_batches = 0
        self.device_us = self.comm_us = self.overlap_us = self.batches = 0


class File:
    """A file of ours, whole from its first moment."""

    def __init__(self, path: str, kind: int, size: int, *, lock: bool = False) -> None:
        """lock: the path is not this process's alone.

        Raises OSError: it can't be made; BlockingIOError, FileExistsError: another process has it, or has just made it.
        """
        flags = os.O_RDWR | os.O_CLOEXEC
        made = ""
        if lock and os.path.exists(path):
            self.fd = os.open(path, flags)
        else:
            made = "%s.%d.new" % (path, os.getpid())  # noqa: UP031 - as fast as any, at every start
            self.fd = os.open(made, flags | os.O_CREAT | os.O_EXCL, 0o600)
            header = HEADER.pack(
                MAGIC, VERSION, kind, os.getpid(), os.getppid(), ROWS if kind == TRAINER else 0, time.time()
            )
            os.write(self.fd, header.ljust(size, b"\0"))
        try:
            if made and not (lock and _linked(made, path)):
                os.rename(made, path)
            if lock:
                fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self.fd)
            raise
        found = os.fstat(self.fd)
        self.same = found.st_dev, found.st_ino

    def write(self, data: bytes, at: int) -> None:
        """Write data and its CRC. Raises OSError: it can't be, or the descriptor is of another file by now."""
        found = os.fstat(self.fd)
        if (found.st_dev, found.st_ino) != self.same:
            raise OSError("the job has closed the record's file")
        os.pwrite(self.fd, data + CRC.pack(crc32(data)), at)


def _linked(made: str, path: str) -> bool:
    """Give the file its name, if no other has it. False: this file system knows no second names.

    Raises FileExistsError: workers that begin at the same moment would take each other's file away by a rename.
    """
    try:
        os.link(made, path)
    except FileExistsError:
        os.unlink(made)
        raise
    except OSError:
        return False
    os.unlink(made)
    return True


facts = Facts()
before: list[Callable[[int], None]] = []
"""Called before a row is written, with its number: they fill in `facts`."""
_file: File | None = None
_rows = 0


def begin(framework: str) -> None:
    """Record the iterations of this framework, if none is recorded yet."""
    if not facts.framework:
        facts.framework = framework
        stages.sinks.append(record)


def planned(steps: int, done: int = 0) -> None:
    """A training begins that is to have so many steps, of which some were done before this process. One that is not the
    first here comes after all that was done: who has trained once is not done."""
    before = stages.done()
    if before:
        facts.total_steps = facts.first_step + before + max(steps - done, 0)
    else:
        facts.total_steps, facts.first_step = steps, done


def record(took_ns: int, ns: list[int], count: int) -> None:
    """The sink of the timeline: a row, if it is known when the iteration began, and the state."""
    global _file, _rows
    line, place = stages.thread(), folder()
    if line is None or place is None:
        return
    number = line.iterations
    for look in list(before):
        look(number)
    if _file is None:
        name = "%d-%x.train" % (os.getpid(), time.time_ns())  # noqa: UP031
        _file = File(os.path.join(place, name), TRAINER, RING_AT + ROWS * (ROW.size + CRC.size))
    facts.all_batches += facts.batches
    if took_ns:
        parts = [took_ns, ns[0], ns[1], ns[2], ns[3], ns[4], ns[6]]
        us = [min(max(each, 0) // 1000, MOST) for each in parts]
        extra = [facts.device_us, facts.comm_us, facts.overlap_us, facts.batches, facts.memory_bytes >> 20]
        row = ROW.pack(number & MOST, count, *us, *(min(each, MOST) for each in extra))
        _file.write(row, RING_AT + _rows % ROWS * (ROW.size + CRC.size))
        _rows += 1
    facts.device_us = facts.comm_us = facts.overlap_us = facts.batches = 0
    write_state(number)


def write_state(iterations: int) -> None:
    """Write what is known beside the rows."""
    if _file is None:
        return
    state = STATE.pack(
        iterations,
        _rows,
        facts.total_steps,
        facts.first_step,
        facts.memory_bytes,
        facts.all_batches,
        time.time(),
        facts.batch_size,
        facts.workers,
        facts.flags,
        _number("WORLD_SIZE", 1),
        _number("RANK", 0),
        facts.framework.encode()[:16],
    )
    _file.write(state, STATE_AT)


def _number(name: str, default: int) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isdigit() and len(text) < 9 else default


class Load:
    """What a loader's worker has done, in a file that the next worker in its place goes on with."""

    def __init__(self) -> None:
        for place in range(LOADER_FILES):
            name = "%d-%d.load" % (os.getppid(), place)  # noqa: UP031
            try:
                self.file = File(os.path.join(folder() or "", name), LOADER, RING_AT, lock=True)
                break
            except (BlockingIOError, FileExistsError):
                continue  # that of another worker
        else:
            raise OSError("more than %d workers at a time" % LOADER_FILES)  # noqa: UP031
        data = os.pread(self.file.fd, LOAD.size + CRC.size, STATE_AT)
        whole = CRC.pack(crc32(data[: LOAD.size])) == data[LOAD.size :]
        self.counts = list(LOAD.unpack(data[: LOAD.size])[:4]) if whole else [0, 0, 0, 0]

    def add(self, storage_ns: int, cpu_ns: int, queue_ns: int) -> None:
        """A batch more."""
        for at, each in enumerate((1, storage_ns, cpu_ns, queue_ns)):
            self.counts[at] += each
        self.file.write(LOAD.pack(*self.counts, time.time()), STATE_AT)


def _forked() -> None:
    """A child has no file yet, and facts of its own."""
    global _file, _rows, facts
    _file, _rows = None, 0
    framework, facts = facts.framework, Facts()
    facts.framework = framework


os.register_at_fork(after_in_child=_forked)
