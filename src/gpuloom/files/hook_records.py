"""Reads what hooks in a run's processes recorded (`_gpuloom_hooks/records.py` writes it, and explains the layout).

A file that is not whole, not ours or of another version is passed over with the reason. Jobs can write where these
files are: nothing in them is trusted to be sensible.
"""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from struct import Struct, error
from zlib import crc32

from gpuloom.core.measured import Doubt, Load, Measured, Row, Training, measured_of

MAGIC = b"GLSTAGES"
VERSION = 1
TRAINER, LOADER = 1, 2
HEADER = Struct("<8sHHIIId")
STATE = Struct("<QQQQQQdIIIIi16s")
LOAD = Struct("<QQQQd")
ROW = Struct("<14I")
CRC = 4
STATE_AT, RING_AT = 64, 256
MOST_ROWS = 4096
SIZE = RING_AT + MOST_ROWS * (ROW.size + CRC)
DEVICE_CLOCK, SYNCED, OTHER_THREAD, NO_QUEUE, DATA_INSIDE = 1, 2, 4, 8, 16

SEEN, LOG, LINKS = "seen", "hooks.log", "links"
MOST_FILES = 4096
LOG_BYTES = LINKS_BYTES = 4096
MOST_LINKS = 8
TOGETHER_S = 60.0
"""Records whose newest entries are so close to each other are of processes that run beside each other."""


class Sight(StrEnum):
    """What is seen of a run's Python."""

    NONE = "none"
    """No Python started with hooks: they are switched off, there is no Python, or it runs with -I, -E or -S."""
    PYTHON = "python"
    """One did, but no framework told of an iteration."""
    ITERATIONS = "iterations"
    """Iterations are counted, too few yet for a profile."""
    PROFILE = "profile"


class Tracker(StrEnum):
    """What a script follows its runs with."""

    WANDB = "wandb"
    MLFLOW = "mlflow"
    TENSORBOARD = "tensorboard"


@dataclass(frozen=True, slots=True)
class Link:
    """Where a tracker has a run: an address, or a path on its node."""

    tracker: Tracker
    where: str


@dataclass(frozen=True, slots=True)
class Hooked:
    """What hooks tell of a run. refused: files that can't be read, and why. log: last lines of the hooks' own log.
    links: where its trackers have it, the newest last.

    training: of the process that counts (the lowest rank), without its rows; measured: its profile.
    """

    sight: Sight = Sight.NONE
    training: Training | None = None
    measured: Measured | None = None
    refused: tuple[str, ...] = ()
    log: tuple[str, ...] = ()
    links: tuple[Link, ...] = ()


class RefusedError(ValueError):
    """A file that is no record, and why."""


def hooked(folder: str) -> Hooked:
    """What the hooks of a run recorded in this folder; it need not be there."""
    training, refused = _read(folder)
    log, links = _log(os.path.join(folder, LOG)), _links(os.path.join(folder, LINKS))
    if training is None:
        seen = os.path.exists(os.path.join(folder, SEEN))
        return Hooked(Sight.PYTHON if seen else Sight.NONE, None, None, refused, log, links)
    measured = measured_of(training, len(os.sched_getaffinity(0)))
    sight = Sight.ITERATIONS if measured is None else Sight.PROFILE
    return Hooked(sight, replace(training, rows=()), measured, refused, log, links)


def training_in(folder: str) -> Training | None:
    """The process that counts, as it recorded itself; None: there is none yet."""
    return _read(folder)[0]


def _read(folder: str) -> tuple[Training | None, tuple[str, ...]]:
    """The process that counts, and what can't be read and why."""
    trainings: list[Training] = []
    loads: dict[int, list[Load]] = {}
    pids: dict[int, int] = {}
    refused: list[str] = []
    for name in _names(folder):
        try:
            kind, pid, parent, data, began_s = read_record(os.path.join(folder, name))
            if kind == TRAINER:
                pids[len(trainings)] = pid
                trainings.append(training_of(data, began_s))
            else:
                loads.setdefault(parent, []).append(load_of(data))
        except FileNotFoundError:
            continue  # gone since it was listed
        except RefusedError as why:
            refused.append(f"{name}: {why}")
        except OSError as why:
            refused.append(f"{name}: {why.strerror or why}")
    if not trainings:
        return None, tuple(refused)
    at = _counting(trainings)
    memory = [each.memory_bytes for each in trainings if each.memory_bytes is not None]
    training = replace(
        trainings[at], load=_together(loads.get(pids[at], [])), memory_bytes=max(memory) if memory else None
    )
    return training, tuple(refused)


def _names(folder: str) -> Iterator[str]:
    try:
        names = sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return
    yield from [name for name in names if name.endswith((".train", ".load"))][:MOST_FILES]


def _counting(trainings: list[Training]) -> int:
    """The lowest rank of those that run now; of several, the newest."""
    newest = max(each.at_s for each in trainings)
    now = [at for at, each in enumerate(trainings) if newest - each.at_s <= TOGETHER_S]
    return min(now, key=lambda at: (trainings[at].rank, -trainings[at].at_s))


def _together(loads: list[Load]) -> Load | None:
    if not loads:
        return None
    return Load(
        sum(each.batches for each in loads),
        math.fsum(each.storage_s for each in loads),
        math.fsum(each.cpu_s for each in loads),
    )


def read_record(path: str) -> tuple[int, int, int, bytes, float]:
    """A record's kind, pid, parent's pid, bytes, and when it was begun.

    Raises:
        RefusedError: it is none of ours; says why. OSError.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise RefusedError("no plain file")
        if found.st_size > SIZE:
            raise RefusedError(f"{found.st_size:,} bytes, a record has at most {SIZE:,}")
        data = os.pread(fd, SIZE, 0)
    finally:
        os.close(fd)
    if len(data) < RING_AT or data[: len(MAGIC)] != MAGIC:
        raise RefusedError("not a record of gpuloom's hooks")
    _, version, kind, pid, parent, rows, began_s = HEADER.unpack_from(data)
    if version != VERSION:
        raise RefusedError(f"a record of version {version}; this gpuloom reads version {VERSION}")
    if kind not in (TRAINER, LOADER) or len(data) != RING_AT + rows * (ROW.size + CRC) or not math.isfinite(began_s):
        raise RefusedError("its header makes no sense")
    return kind, pid, parent, data, began_s


def _part(data: bytes, at: int, form: Struct) -> bytes | None:
    """A part with its CRC; None: it is being written, or never was."""
    part = data[at : at + form.size]
    try:
        (crc,) = Struct("<I").unpack_from(data, at + form.size)
    except error:
        return None
    return part if crc == crc32(part) and any(part) else None


def training_of(data: bytes, began_s: float) -> Training:
    """Raises RefusedError: its state is torn."""
    part = _part(data, STATE_AT, STATE)
    if part is None:
        raise RefusedError("half written")
    iterations, rows, steps, first, memory, batches, at_s, size, workers, flags, world, rank, name = STATE.unpack(part)
    if not math.isfinite(at_s):
        raise RefusedError("its time makes no sense")
    doubts = set()
    if flags & NO_QUEUE:
        doubts.add(Doubt.QUEUE)
    if flags & DATA_INSIDE:
        doubts.add(Doubt.INSIDE)
    if flags & OTHER_THREAD:
        doubts.add(Doubt.SPLIT)
    return Training(
        framework=name.rstrip(b"\0").decode("ascii", "replace"),
        iterations=iterations,
        first_step=first,
        steps=steps or None,
        began_s=began_s,
        at_s=at_s,
        memory_bytes=memory or None,
        batches=batches,
        batch_size=size or None,
        workers=workers,
        doubts=tuple(sorted(doubts)),
        synced=bool(flags & SYNCED),
        world_size=max(world, 1),
        rank=rank,
        rows=tuple(sorted(_rows(data, rows, device=bool(flags & DEVICE_CLOCK)), key=lambda row: row.number)),
    )


def _rows(data: bytes, written: int, *, device: bool) -> Iterator[Row]:
    each = ROW.size + CRC
    for at in range(min(written, (len(data) - RING_AT) // each)):
        part = _part(data, RING_AT + at * each, ROW)
        if part is None:
            continue  # being written
        number, count, *us, batches, _ = ROW.unpack(part)
        took, storage, cpu, gpu, network, wait, turn, by_device, comm, overlap = (one / 1e6 for one in us)
        if not count or not took:
            continue
        yield Row(
            number=number,
            count=count,
            took=took,
            storage=storage,
            cpu=cpu,
            gpu=gpu,
            network=network,
            wait=wait,
            turn=turn,
            device=by_device if device else None,
            comm=comm if comm else None,
            overlap=overlap if comm else None,
            batches=batches,
        )


def load_of(data: bytes) -> Load:
    """Raises RefusedError: its state is torn."""
    part = _part(data, STATE_AT, LOAD)
    if part is None:
        raise RefusedError("half written")
    batches, storage_ns, cpu_ns, _, _ = LOAD.unpack(part)
    return Load(batches, storage_ns / 1e9, cpu_ns / 1e9)


def _log(path: str) -> tuple[str, ...]:
    """The last lines of the hooks' own log."""
    return tuple(_end_of(path, LOG_BYTES).splitlines()[-5:])


def _links(path: str) -> tuple[Link, ...]:
    """What is told last, once each."""
    found: dict[Link, None] = {}
    for line in _end_of(path, LINKS_BYTES).split("\n")[:-1]:
        name, _, where = line.partition("\t")
        if name in set(Tracker) and where:
            link = Link(Tracker(name), where)
            found.pop(link, None)
            found[link] = None
    return tuple(found)[-MOST_LINKS:]


def _end_of(path: str, most: int) -> str:
    """The last bytes of a text; what a job has put there instead is none."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        found = os.fstat(fd)
        text = os.pread(fd, most, max(found.st_size - most, 0)) if stat.S_ISREG(found.st_mode) else b""
    finally:
        os.close(fd)
    return text.decode("utf-8", "replace")
