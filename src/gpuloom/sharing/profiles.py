"""Profiles of kernels: what one request or one training iteration launches, kernel by kernel.

A record holds what the admission rule asks of a kernel (SM need, utilisations, duration, class) and how it was
launched. They are kept once per (name, grid, block, dynamic shared memory); `order` says which of them runs when.

File format (`*.kernels.jsonl`, JSON lines): a header `{"format": "gpuloom-kernels", "version": 1, "name", "device",
"sm_count", "cc", "source"}`, a line per record, and last `{"order": [0, 1, 1, …]}`.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuloom.bounded.json_text import load_json
from gpuloom.core.errors import InputError
from gpuloom.core.sums import sum_ints
from gpuloom.sharing.rule import CLASSES, Kernel

if TYPE_CHECKING:
    from collections.abc import Iterable

FORMAT, VERSION, SUFFIX = "gpuloom-kernels", 1, ".kernels.jsonl"
BOUND = 0.6
MAX_BYTES = 512 * 1024 * 1024
_U32, _U63 = 2**32 - 1, 2**63 - 1


@dataclass(frozen=True, slots=True)
class KernelRecord:
    """A kernel as measured; 0 or None where it was not.

    Attributes:
        grid, block: blocks and threads by dimension.
        blocks, threads_per_block: their products.
        registers: per thread.
        shared_bytes: per block, static and dynamic; `dynamic_shared_bytes` of it dynamic.
        sm_slots: ceil(blocks / blocks per SM), not capped at the device's SMs.
        compute_util, dram_util: 0..1 of the device's peak.
        duration_ns: alone, mean of `samples`.
    """

    name: str
    sm_slots: int
    duration_ns: int
    compute_util: float | None = None
    dram_util: float | None = None
    klass: str = "unknown"
    grid: tuple[int, int, int] = (0, 0, 0)
    block: tuple[int, int, int] = (0, 0, 0)
    blocks: int = 0
    threads_per_block: int = 0
    registers: int = 0
    shared_bytes: int = 0
    dynamic_shared_bytes: int = 0
    samples: int = 1

    @property
    def key(self) -> tuple[object, ...]:
        """The key of a kernel at run time."""
        return self.name, self.grid, self.block, self.dynamic_shared_bytes

    def as_kernel(self) -> Kernel:
        """What the admission rule sees."""
        return Kernel(self.sm_slots, self.klass, self.compute_util, self.dram_util, self.duration_ns)


@dataclass(frozen=True)
class KernelProfile:
    """All kernels of one request or iteration.

    Attributes:
        device: model of the GPU, "" unknown.
        sm_count: its SMs.
        cc: its compute capability, "" unknown.
        order: index into `records` by launch.
        source: who measured it, how; and which values are assumed.
    """

    name: str
    sm_count: int
    records: tuple[KernelRecord, ...]
    order: tuple[int, ...]
    device: str = ""
    cc: str = ""
    source: str = ""

    def __post_init__(self) -> None:
        if not 1 <= self.sm_count <= _U32:
            raise InputError(f"profile {self.name}: sm_count is {self.sm_count}, must be at least 1")
        if not self.order:
            raise InputError(f"profile {self.name} holds no kernel")
        if any(not 0 <= index < len(self.records) for index in self.order):
            raise InputError(f"profile {self.name}: order names a record that is not there")

    @cached_property
    def kernels(self) -> tuple[KernelRecord, ...]:
        """The records in launch order."""
        return tuple(self.records[index] for index in self.order)

    @cached_property
    def duration_ns(self) -> int:
        """Sum of the kernels' durations."""
        return sum_ints(kernel.duration_ns for kernel in self.kernels)

    @cached_property
    def mean_sm(self) -> float:
        """SMs held, on average over the kernels' time."""
        held = sum_ints(min(self.sm_count, k.sm_slots) * k.duration_ns for k in self.kernels)
        return held / self.duration_ns if self.duration_ns else 0.0

    def share_of_class(self, klass: str) -> float:
        """Share of the time in kernels of a class."""
        return sum_ints(k.duration_ns for k in self.kernels if k.klass == klass) / self.duration_ns


def classify(compute: float | None, dram: float | None) -> str:
    """The class of a kernel by its utilisations."""
    if compute is not None and compute >= BOUND:
        return "compute"
    return "memory" if dram is not None and dram >= BOUND else "unknown"


def collect(
    name: str, sm_count: int, launches: Iterable[KernelRecord], device: str = "", cc: str = "", source: str = ""
) -> KernelProfile:
    """A profile of launches in order. Launches with one key become one record, durations their mean.

    Raises:
        InputError: no launches.
    """
    place: dict[tuple[object, ...], int] = {}
    first: list[KernelRecord] = []
    sums: list[list[float]] = []
    order: list[int] = []
    for launch in launches:
        index = place.setdefault(launch.key, len(first))
        if index == len(first):
            first.append(launch)
            sums.append([0.0, 0.0])
        sums[index][0] += launch.duration_ns * launch.samples
        sums[index][1] += launch.samples
        order.append(index)
    records = tuple(
        replace(record, duration_ns=max(1, round(total / count)), samples=int(count))
        for record, (total, count) in zip(first, sums, strict=True)
    )
    return KernelProfile(name, sm_count, records, tuple(order), device, cc, source)


def dumps(profile: KernelProfile) -> str:
    """The profile in its file format."""
    header = {
        "format": FORMAT,
        "version": VERSION,
        "name": profile.name,
        "device": profile.device,
        "sm_count": profile.sm_count,
        "cc": profile.cc,
        "source": profile.source,
    }
    rows = [header, *({f.name: getattr(record, f.name) for f in fields(record)} for record in profile.records)]
    lines = [json.dumps(row, ensure_ascii=False, allow_nan=False) for row in (*rows, {"order": list(profile.order)})]
    return "\n".join(lines) + "\n"


def loads(text: str, file: str = "") -> KernelProfile:
    """Read a profile from its file format.

    Raises:
        InputError: it is not one; says line and field.
    """
    where = file or "profile"
    rows = []
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            rows.append((number, parse_json(line, f"{where}:{number}")))
    if len(rows) < 3 or not isinstance(rows[0][1], dict) or rows[0][1].get("format") != FORMAT:
        raise InputError(
            f'{where}: not a kernel profile, must begin with {{"format": "{FORMAT}", …}} and end with order'
        )
    header = rows[0][1]
    if header.get("version") != VERSION:
        raise InputError(f"{where}:1: version {header.get('version')!r} of the format, this gpuloom reads {VERSION}")
    records = tuple(_record(row, f"{where}:{number}") for number, row in rows[1:-1])
    number, last = rows[-1]
    order = last.get("order") if isinstance(last, dict) else None
    if not isinstance(order, list) or any(type(index) is not int for index in order):
        raise InputError(f'{where}:{number}: the last line must be {{"order": [numbers of records]}}')
    text_of = {name: _text(header, name, f"{where}:1") for name in ("name", "device", "cc", "source")}
    sm_count = _integer(header, "sm_count", f"{where}:1", 1, _U32)
    try:
        return KernelProfile(
            text_of["name"], sm_count, records, tuple(order), *(text_of[n] for n in ("device", "cc", "source"))
        )
    except InputError as error:
        raise InputError(f"{where}: {error}") from error


def parse_json(text: str, where: str) -> Any:
    """JSON of a stranger: whatever is wrong with it, too deep or too long numbers too, is an InputError."""
    try:
        return load_json(text)
    except ValueError as error:
        raise InputError(f"{where}: not JSON ({error})") from error


def read_text(path: Path) -> str:
    """A text file of at most 512 MiB. Raises InputError if it is not one."""
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise InputError(f"{path}: {size} bytes, a profile has at most {MAX_BYTES}")
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not text in UTF-8 (byte {error.start})") from error
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error


def library_folder() -> Path:
    """The user's kernel profiles: $GPULOOM_HOME/kernels, else in the user's data directory.

    Raises:
        InputError: neither is known.
    """
    home = os.environ.get("GPULOOM_HOME")
    if home:
        return Path(home).expanduser() / "kernels"
    data = os.environ.get("XDG_DATA_HOME", "")
    if os.path.isabs(data):  # as the XDG base directory specification says, others are passed over
        return Path(data) / "gpuloom" / "kernels"
    try:
        return Path.home() / ".local" / "share" / "gpuloom" / "kernels"
    except RuntimeError as error:
        raise InputError(
            "the home directory is not known; set GPULOOM_HOME to where profiles are to be kept"
        ) from error


def check_name(name: str) -> None:
    """Refuse what can't be the name of a stored profile.

    Raises:
        InputError: says what a name may be.
    """
    if not name or name != name.strip() or set(name) & set("/\\:\0\n\r") or name.startswith(".") or len(name) > 100:
        raise InputError(
            f"{name!r} can't be a profile's name: no slashes or colons, no leading dot, at most 100 characters"
        )


def save(profile: KernelProfile, folder: Path, replacing: bool = False) -> Path:
    """Keep a profile in a folder, under its name; returns the file.

    Raises:
        InputError: a name that can't be a file's, or there is one of that name already.
    """
    check_name(profile.name)
    path = folder / f"{profile.name}{SUFFIX}"
    if path.exists() and not replacing:
        raise InputError(f"there is a profile {profile.name} in {folder} already; --overwrite replaces it")
    folder.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        part.write_text(dumps(profile), encoding="utf-8")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return path


def _record(row: Any, where: str) -> KernelRecord:
    if not isinstance(row, dict):
        raise InputError(f"{where}: a record must be an object")
    klass = row.get("klass", "unknown")
    if klass not in CLASSES:
        raise InputError(f"{where}: klass is {klass!r}, must be one of {', '.join(CLASSES)}")
    counts = {
        name: _integer(row, name, where, 0, _U63, 0)
        for name in ("blocks", "threads_per_block", "registers", "shared_bytes", "dynamic_shared_bytes")
    }
    return KernelRecord(
        name=_text(row, "name", where),
        sm_slots=_integer(row, "sm_slots", where, 1, _U32),
        duration_ns=_integer(row, "duration_ns", where, 1, _U63),
        compute_util=_utilisation(row, "compute_util", where),
        dram_util=_utilisation(row, "dram_util", where),
        klass=klass,
        grid=_dimensions(row, "grid", where),
        block=_dimensions(row, "block", where),
        samples=_integer(row, "samples", where, 1, _U63, 1),
        **counts,
    )


def _text(row: dict[str, Any], name: str, where: str) -> str:
    value = row.get(name, "")
    if not isinstance(value, str) or any(0xD800 <= ord(character) <= 0xDFFF for character in value):
        raise InputError(f"{where}: {name} is {value!r:.80}, must be text")
    return value


def _integer(row: dict[str, Any], name: str, where: str, low: int, high: int, default: int | None = None) -> int:
    value = row.get(name, default)
    if type(value) is not int or not low <= value <= high:
        raise InputError(f"{where}: {name} is {value!r:.80}, must be a whole number from {low} to {high}")
    return value


def _utilisation(row: dict[str, Any], name: str, where: str) -> float | None:
    value = row.get(name)
    if value is None:
        return None
    if type(value) not in (int, float) or not (math.isfinite(value) and 0 <= value <= 1):
        raise InputError(f"{where}: {name} is {value!r:.80}, must be from 0 to 1, or null")
    return float(value)


def _dimensions(row: dict[str, Any], name: str, where: str) -> tuple[int, int, int]:
    value = row.get(name, [0, 0, 0])
    if not isinstance(value, list) or len(value) != 3 or any(type(v) is not int or not 0 <= v <= _U32 for v in value):
        raise InputError(f"{where}: {name} is {value!r:.80}, must be three whole numbers")
    return value[0], value[1], value[2]
