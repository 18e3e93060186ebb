"""Folders by which jobs that share devices of a node know of each other: one for each set of devices, with a page.

The node makes folder and page whenever a run starts, also for one that is alone, since a partner may come; the
scheduler says who is together (`NodePort.weave`). The jobs' processes map the page and take turns by it
(`_gpuloom_hooks/page.py`, with the same layout, and `tokens.py`). So who joins or leaves restarts nobody.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from gpuloom.core.job import DeviceKind

SETTING = "GPULOOM_DEVICES_DIR"
"""Environment variable of a job: the folder of its devices."""
FOLDER = "devices"
"""Beside the files of runs."""
FILE = "page"
BYTES = 4096
MAGIC = 0x4E564157
VERSION = 1
MOST_MEMBERS = 8
_HEAD = struct.Struct(f"=5I{MOST_MEMBERS}I")
"""Magic number, version, on, generation, number of members, members in the order of their stages."""
_CYCLE = struct.Struct("=I")
_AT_CYCLE = 28 * 4
_LONGEST = struct.Struct("=Q")
_AT_LONGEST = 32 * 8


@dataclass(frozen=True, slots=True)
class Weaving:
    """Who shares a set of devices of one node.

    gpus: indices on the node, rising. members: jobs, in the order in which their stages follow each other where that is
    known. on: they take turns on each resource.
    """

    kind: DeviceKind
    gpus: tuple[int, ...]
    members: tuple[int, ...]
    on: bool


class Devices(Protocol):
    """Where the jobs of a node that share devices know of each other.

    Raises (both calls):
        OSError: it can't be written.
    """

    def make(self, kind: DeviceKind, gpus: Sequence[int]) -> None:
        """A job is about to start on these devices."""
        ...

    def tell(self, weaving: Weaving) -> None:
        """Say who is together from now on. Told the same again it changes nothing."""
        ...


class MappedPages:
    """Implements `Devices` by folders and pages. runs: folder of the files of all runs of the node."""

    def __init__(self, runs: Path) -> None:
        self._runs = runs

    def make(self, kind: DeviceKind, gpus: Sequence[int]) -> None:
        """See `Devices`."""
        made(self._runs, kind, gpus)

    def tell(self, weaving: Weaving) -> None:
        """See `Devices`."""
        tell(self._runs, weaving)


def devices_folder(runs: Path, kind: DeviceKind, gpus: Sequence[int]) -> Path:
    """The folder of a set of devices. runs: folder of the files of all runs of the node."""
    return runs / FOLDER / "-".join([kind.value, *map(str, sorted(gpus))])


def made(runs: Path, kind: DeviceKind, gpus: Sequence[int]) -> Path:
    """The folder, with a page in it. A page that is there stays.

    Raises:
        OSError: it can't be made.
    """
    folder = devices_folder(runs, kind, gpus)
    page = folder / FILE
    if _whole(page):
        return folder
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = folder / f".{FILE}.{os.getpid()}"
    head = _HEAD.pack(MAGIC, VERSION, 0, 0, 0, *[0] * MOST_MEMBERS)
    temporary.write_bytes(head.ljust(BYTES, b"\0"))
    os.replace(temporary, page)
    return folder


def tell(runs: Path, weaving: Weaving) -> None:
    """Say on the page who is together from now on. Told the same again it changes nothing.

    Raises:
        OSError: it can't be written.
    """
    page = made(runs, weaving.kind, weaving.gpus) / FILE
    members = weaving.members[:MOST_MEMBERS]
    with page.open("r+b") as file, mmap.mmap(file.fileno(), BYTES) as mapped:
        generation = _HEAD.unpack_from(mapped)[3]
        before = weaving_of(mapped)
        if before == (members, weaving.on):
            return
        padded = [*members, *[0] * (MOST_MEMBERS - len(members))]
        _LONGEST.pack_into(mapped, _AT_LONGEST, 0)
        _CYCLE.pack_into(mapped, _AT_CYCLE, 0)
        _HEAD.pack_into(mapped, 0, MAGIC, VERSION, weaving.on, (generation + 1) & 0xFFFFFFFF, len(members), *padded)


def weaving_of(page: bytes | mmap.mmap) -> tuple[tuple[int, ...], bool]:
    """Of a page the members, in their order, and whether they take turns."""
    _, _, on, _, count, *order = _HEAD.unpack_from(page)
    return tuple(order[: min(count, MOST_MEMBERS)]), bool(on)


def _whole(page: Path) -> bool:
    try:
        with page.open("rb") as file:
            return page.stat().st_size == BYTES and file.read(8) == struct.pack("=2I", MAGIC, VERSION)
    except OSError:
        return False
