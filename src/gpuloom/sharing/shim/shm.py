"""Read the shared-memory files of GPUs that programs share (`native/interposer/shm.h`), for `gpuloom share top`.

Read only: nothing here takes a slot or a lock, so looking never disturbs. Whether a program lives is asked of the lock
on its slot, as the programs themselves do. Times are nanoseconds.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import time
from dataclasses import dataclass, field
from pathlib import Path

MAGIC = 0x31304D4F4F4C4750
VERSION = 1
HEADER_BYTES = 4096
CLIENT_BYTES = 4096
CLIENTS = 64
TOTAL_BYTES = HEADER_BYTES + CLIENTS * CLIENT_BYTES
LOCK_BASE = 0x100001
REASONS = 32
CLASSES = {1: "high", 2: "best-effort", 3: "exempt"}
LIVE = 2

_HEADER = struct.Struct("<QIIIIQ16sI")
_HOT = struct.Struct("<IIIIQQQQqQ")
_COUNTERS = struct.Struct("<QQQQQQQQQQQQII64s")
_FLOCK = struct.Struct("@hhqqi4x")


@dataclass(frozen=True, slots=True)
class Program:
    """A program that takes part, and its counters since it began. `held_as` is the reason it waits for now.

    Of a high one: price_scale: of the rule's price, by what sharing has cost its tail; load: share of time busy alone.
    """

    slot: int
    name: str
    pid: int
    klass: str
    busy: bool
    held_as: int | None
    held_since_ns: int
    kernels: int
    graphs: int
    captured: int
    holds: int
    held_ns: int
    longest_held_ns: int
    gpu_ns: int
    requests: int
    request_ns: int
    attached_ns: int
    price_scale: float = 0.0
    load: float = 0.0
    reasons: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Shared:
    """A GPU's file. `problem` is empty, or says why the rest could not be read."""

    path: Path
    uuid: str
    sm_count: int
    at_ns: int
    programs: tuple[Program, ...]
    problem: str = ""


def uuid_text(raw: bytes) -> str:
    """A GPU's UUID as nvidia-smi writes it, without the prefix."""
    text = raw.hex()
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def files(folder: Path) -> list[Path]:
    """The GPUs' files in a folder."""
    return sorted(folder.glob("*.share")) if folder.is_dir() else []


def read(path: Path) -> Shared:
    """What the file says now. Never raises for what is wrong with the file: `problem` says it."""
    now_ns = time.monotonic_ns()

    def broken(problem: str) -> Shared:
        return Shared(path, path.stem, 0, now_ns, (), problem)

    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError as error:
        return broken(os.strerror(error.errno or errno.EIO))
    try:
        data = os.pread(descriptor, TOTAL_BYTES + 1, 0)
        if len(data) != TOTAL_BYTES:
            return broken(f"{len(data)} bytes, not {TOTAL_BYTES}: a file of another version, or an unfinished one")
        magic, version, header, client, clients, total, uuid, sms = _HEADER.unpack_from(data)
        if (magic, version, header, client, clients, total) != (
            MAGIC, VERSION, HEADER_BYTES, CLIENT_BYTES, CLIENTS, TOTAL_BYTES,
        ):  # fmt: skip
            return broken(f"layout version {version} (this gpuloom reads version {VERSION})")
        programs = [
            _program(slot, data)
            for slot in range(CLIENTS)
            if struct.unpack_from("<I", data, HEADER_BYTES + slot * CLIENT_BYTES)[0] == LIVE and _held(descriptor, slot)
        ]
        return Shared(path, uuid_text(uuid), sms, now_ns, tuple(programs))
    finally:
        os.close(descriptor)


def _held(descriptor: int, slot: int) -> bool:
    """Whether a living program holds the slot. Asking for a shared lock is allowed on a file opened for reading."""
    wanted = _FLOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, LOCK_BASE + slot, 1, 0)
    try:
        answer = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, wanted)
    except OSError:
        return True
    return int(_FLOCK.unpack(answer)[0]) != fcntl.F_UNLCK


def _program(slot: int, data: bytes) -> Program:
    at = HEADER_BYTES + slot * CLIENT_BYTES
    _, klass, busy, held, _, _, _, request_ns, _, held_since = _HOT.unpack_from(data, at)
    kernels, graphs, captured, holds, held_ns, gpu_ns, requests, longest, attached, _, scale, load, pid, _, name = (
        _COUNTERS.unpack_from(data, at + 64)
    )
    reasons = struct.unpack_from(f"<{REASONS}Q", data, at + 232)
    return Program(
        slot=slot,
        name=name.split(b"\0")[0].decode("utf-8", "replace"),
        pid=pid,
        klass=CLASSES.get(klass, "?"),
        busy=bool(busy),
        held_as=held - 1 if held else None,
        held_since_ns=held_since,
        kernels=kernels,
        graphs=graphs,
        captured=captured,
        holds=holds,
        held_ns=held_ns,
        longest_held_ns=longest,
        gpu_ns=gpu_ns,
        requests=requests,
        request_ns=request_ns,
        attached_ns=attached,
        price_scale=scale / 1e6,
        load=load / 1e6,
        reasons={code: count for code, count in enumerate(reasons) if count},
    )
