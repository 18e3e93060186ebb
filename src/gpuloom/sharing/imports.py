"""Import kernel profiles from other tools: Nsight Compute's CSV and the PyTorch profiler's trace.

* `ncu --csv --page raw --metrics …` (Nsight Compute CLI, "Customization guide: metrics"): a row per launch and a second
  row of units. Read: `gpu__time_duration.sum`, `sm__throughput.avg.pct_of_peak_sustained_elapsed`,
  `gpu__dram_throughput.…` or `dram__throughput.…`, `launch__*`.
* The PyTorch profiler's Chrome trace (`export_chrome_trace`): events of category `kernel` with grid, block,
  `registers per thread`, `shared memory`, duration in microseconds. A trace tells no utilisation by itself: they stay
  unknown and the admission rule counts them as its `unknown_utilisation`.
"""

from __future__ import annotations

import contextlib
import csv
import io
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpuloom.core.errors import InputError
from gpuloom.sharing.occupancy import sm_slots
from gpuloom.sharing.orion import is_orion, parse_orion
from gpuloom.sharing.profiles import FORMAT, SUFFIX, KernelProfile, KernelRecord, classify, collect, loads, parse_json

_TIME_NS = {"ns": 1.0, "nsecond": 1.0, "us": 1e3, "usecond": 1e3, "ms": 1e6, "msecond": 1e6, "s": 1e9, "second": 1e9}
_BYTES = {"byte": 1.0, "kbyte": 1e3, "mbyte": 1e6}
_PERCENT = {"%": 1.0}
_NUMBER: dict[str, float] = {}
_DURATION = "gpu__time_duration.sum"
_U32, _U63 = 2**32 - 1, 2**63 - 1
NCU_COMPUTE = ("sm__throughput.avg.pct_of_peak_sustained_elapsed",)
NCU_DRAM = (
    "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed",
)


def read_any(
    path: Path,
    text: str,
    name: str = "",
    sm_count: int | None = None,
    cc: str = "",
    *,
    last_step: bool = False,
    need_sm_count: bool = True,
) -> KernelProfile:
    """The profile that the text of a file holds: of gpuloom or Orion, a PyTorch trace, or a CSV of ncu.

    Args:
        sm_count, cc: of the GPU, where the file does not say.
        last_step: PyTorch trace: keep the last `ProfilerStep#` alone.
        need_sm_count: refuse a file that does not say how many SMs the GPU has.

    Raises:
        InputError: of no such format, or a value that can't be; says where.
    """
    title, where, start = name or title_of(path), str(path), text.lstrip()[:1000]
    if is_orion(text):
        own = parse_orion(text, path.name, where)
        return replace(own, name=name) if name else own
    if start[:1] == "{" and FORMAT in start:
        own = loads(text, where)
        return replace(own, name=name) if name else own
    if start[:1] in ("{", "["):
        profile = parse_torch(text, title, sm_count or 1, cc, where, steps=int(last_step))
    elif re.search(r'^"?ID"?,', text, re.MULTILINE):
        profile = parse_ncu(text, title, sm_count or 1, cc, where)
    else:
        raise InputError(
            f"{path}: not a kernel profile: none of gpuloom (*{SUFFIX}), no PyTorch trace (JSON), no CSV of "
            "ncu --csv --page raw, none of Orion"
        )
    if need_sm_count and sm_count is None and profile.sm_count == 1:
        raise InputError(
            f"{path} does not say how many SMs the GPU has: gpuloom share profiles import {path} --sm-count N"
        )
    return profile


def title_of(path: Path) -> str:
    """The name that a profile gets from its file's."""
    return path.name.removesuffix(SUFFIX).removesuffix(".json").removesuffix(".csv").removesuffix(".pt.trace")


def parse_ncu(text: str, name: str, sm_count: int, cc: str, where: str = "") -> KernelProfile:
    """Read the CSV of `ncu --csv --page raw`. Lines before the header (of the profiled program) are passed over.

    Args:
        sm_count, cc: of the GPU; `device__attribute_multiprocessor_count` and `CC` in the file win.

    Raises:
        InputError: not such a file, or a value that can't be; says the row.
    """
    where = where or name
    start = re.search(r'^"?ID"?,', text, re.MULTILINE)
    if start is None:
        raise InputError(
            f'{where}: not a CSV of Nsight Compute, must hold a line that begins with "ID" (ncu --csv --page raw)'
        )
    try:
        rows = list(csv.reader(io.StringIO(text[start.start() :]), strict=True))
    except csv.Error as error:
        raise InputError(f"{where}: not a CSV ({error})") from error
    head = rows[0]
    if "Metric Name" in head:
        raise InputError(f"{where}: this is ncu's details page; record with --page raw (one column per metric)")
    # The row of units has no ID.
    units = dict(zip(head, rows[1], strict=False)) if len(rows) > 1 and rows[1][:1] == [""] else {}
    body = rows[2:] if units else rows[1:]
    if _DURATION not in head:
        raise InputError(f"{where}: no column {_DURATION}; record with ncu --set full, or --metrics {_DURATION},…")
    launches, device = [], ""
    for number, row in enumerate(body, 1):
        if not row:
            continue
        if len(row) != len(head):
            raise InputError(f"{where}: row {number} has {len(row)} columns, must have {len(head)}")
        cells, at = dict(zip(head, row, strict=True)), f"{where}: row {number}"
        cc = cells.get("CC", "").strip() or cc
        found = _cell(cells, units, ("device__attribute_multiprocessor_count",), at, _NUMBER, None)
        sm_count = int(found) if found else sm_count
        device = cells.get("device__attribute_display_name", "") or device
        duration = _cell(cells, units, (_DURATION,), at, _TIME_NS, 0.0)
        compute = _cell(cells, units, NCU_COMPUTE, at, _PERCENT, None)
        dram = _cell(cells, units, NCU_DRAM, at, _PERCENT, None)
        dynamic = _shared(cells, units, "launch__shared_mem_per_block_dynamic", at)
        static = _shared(cells, units, "launch__shared_mem_per_block_static", at)
        registers = int(_cell(cells, units, ("launch__registers_per_thread",), at, _NUMBER, 0.0) or 0)
        grid = _triple(cells.get("Grid Size", ""), at, "Grid Size")
        block = _triple(cells.get("Block Size", ""), at, "Block Size")
        launches.append(
            _launch(
                cells.get("Kernel Name", ""),
                cc,
                grid,
                block,
                registers,
                static + dynamic,
                dynamic,
                duration or 0.0,
                None if compute is None else min(1.0, compute / 100),
                None if dram is None else min(1.0, dram / 100),
                at,
            )
        )
    if not launches:
        raise InputError(f"{where}: holds no kernel")
    return collect(name, sm_count, launches, device, cc, "Nsight Compute, imported from its CSV")


def parse_torch(text: str, name: str, sm_count: int, cc: str, where: str = "", steps: int = 0) -> KernelProfile:
    """Read a Chrome trace of the PyTorch profiler.

    Args:
        sm_count, cc: of the GPU; `deviceProperties` in the trace wins.
        steps: keep only the last `ProfilerStep#` (0: the whole trace is one request or iteration).

    Raises:
        InputError: not such a trace, or a value that can't be; says the event.
    """
    where = where or name
    trace = parse_json(text, where)
    events = trace.get("traceEvents") if isinstance(trace, dict) else trace
    if not isinstance(events, list):
        raise InputError(f"{where}: not a Chrome trace, must be an object with traceEvents")
    device = ""
    properties = trace.get("deviceProperties") if isinstance(trace, dict) else None
    if isinstance(properties, list) and properties and isinstance(properties[0], dict):
        first = properties[0]
        device = first["name"] if isinstance(first.get("name"), str) else ""
        if type(first.get("numSms")) is int and 1 <= first["numSms"] <= _U32:
            sm_count = first["numSms"]
        if type(first.get("computeMajor")) is int and type(first.get("computeMinor")) is int:
            cc = f"{first['computeMajor']}.{first['computeMinor']}"
    since = _last_step(events) if steps else -math.inf
    found: list[tuple[float, KernelRecord]] = []
    for number, event in enumerate(events):
        if not isinstance(event, dict) or event.get("cat") not in ("kernel", "Kernel") or event.get("ph") != "X":
            continue
        at = f"{where}: event {number}"
        args = event.get("args")
        if not isinstance(args, dict) or not isinstance(event.get("name"), str):
            raise InputError(f"{at}: a kernel without name or args")
        start, lasts = (_real(event.get(key), key, at) for key in ("ts", "dur"))
        if start < since:
            continue
        grid, block = _dims(args.get("grid"), "grid", at), _dims(args.get("block"), "block", at)
        registers = _whole(args.get("registers per thread", 0), "registers per thread", at)
        shared = _whole(args.get("shared memory", 0), "shared memory", at)
        found.append(
            (start, _launch(event["name"], cc, grid, block, registers, shared, 0, lasts * 1e3, None, None, at))
        )
    if not found:
        raise InputError(f"{where}: holds no kernel; record with ProfilerActivity.CUDA on a GPU")
    found.sort(key=lambda pair: pair[0])
    return collect(
        name, sm_count, (record for _, record in found), device, cc, "PyTorch profiler; utilisations unknown"
    )


def _launch(
    name: str,
    cc: str,
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    registers: int,
    shared: int,
    dynamic: int,
    duration_ns: float,
    compute: float | None,
    dram: float | None,
    at: str,
) -> KernelRecord:
    blocks, threads = math.prod(grid), math.prod(block)
    if not cc:
        raise InputError(
            f"{at}: the compute capability of the GPU is missing: gpuloom share profiles import FILE --cc X.Y"
        )
    if not 0 < duration_ns <= _U63:
        raise InputError(f"{at}: a kernel that lasts {duration_ns:g} ns, must be above 0")
    if any(0xD800 <= ord(character) <= 0xDFFF for character in name):
        raise InputError(f"{at}: the kernel's name is not text")
    try:
        slots = sm_slots(cc, blocks, threads, registers, shared)
    except InputError as error:
        raise InputError(f"{at}: {error}") from error
    if slots > _U32:
        raise InputError(f"{at}: a grid of {blocks} blocks is larger than any GPU takes")
    return KernelRecord(
        name, slots, max(1, round(duration_ns)), compute, dram, classify(compute, dram), grid, block, blocks, threads,
        registers, shared, dynamic,
    )  # fmt: skip


def _last_step(events: list[Any]) -> float:
    starts = [
        event["ts"]
        for event in events
        if isinstance(event, dict)
        and str(event.get("name", "")).startswith("ProfilerStep#")
        and type(event.get("ts")) in (int, float)
    ]
    return max(starts, default=-math.inf)


def _cell(
    cells: dict[str, str],
    units: dict[str, str],
    names: tuple[str, ...],
    at: str,
    scale: dict[str, float],
    default: float | None,
) -> float | None:
    for name in names:
        text = cells.get(name, "").strip().replace(",", "")
        if not text or text.lower() in ("n/a", "nan", "no data"):
            continue
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and 0 <= value <= _U63):
            raise InputError(f"{at}, column {name!r}: {text!r:.80}, must be a number from 0")
        unit = units.get(name, "").split("/")[0].strip()
        if scale and unit and unit.lower() not in scale:
            raise InputError(f"{at}, column {name!r}: the unit is {unit!r:.40}, must be one of {', '.join(scale)}")
        return value * scale.get(unit.lower(), 1.0)
    return default


def _shared(cells: dict[str, str], units: dict[str, str], name: str, at: str) -> int:
    """Bytes of shared memory. ncu may print 98304 bytes as "98.30 Kbyte": the multiple of 16 within its rounding."""
    value = _cell(cells, units, (name,), at, _BYTES, 0.0) or 0.0
    scale = _BYTES.get(units.get(name, "").split("/")[0].strip().lower(), 1.0)
    _, _, decimals = cells.get(name, "").strip().partition(".")
    bytes_, rounding = round(value), scale / 10 ** len(decimals) / 2
    whole = round(value / 16) * 16
    return whole if rounding > 0.5 and abs(whole - value) <= rounding else bytes_


def _triple(text: str, at: str, column: str) -> tuple[int, int, int]:
    numbers = re.fullmatch(r"\s*\(?\s*(\d{1,10})\s*,\s*(\d{1,10})\s*,\s*(\d{1,10})\s*\)?\s*", text, re.ASCII)
    if numbers is None:
        raise InputError(f"{at}, column {column!r}: {text!r:.80}, must be like (128, 1, 1)")
    return _dims([int(number) for number in numbers.groups()], column, at)


def _dims(value: Any, name: str, at: str) -> tuple[int, int, int]:
    if not isinstance(value, list) or len(value) != 3 or any(type(v) is not int or not 1 <= v <= _U32 for v in value):
        raise InputError(f"{at}: {name} is {value!r:.80}, must be three whole numbers from 1")
    return value[0], value[1], value[2]


def _whole(value: Any, name: str, at: str) -> int:
    if type(value) is not int or not 0 <= value <= _U32:
        raise InputError(f"{at}: {name} is {value!r:.80}, must be a whole number")
    return int(value)


def _real(value: Any, name: str, at: str) -> float:
    if isinstance(value, str):  # some versions write numbers as text
        with contextlib.suppress(ValueError):
            value = float(value)
    if type(value) not in (int, float) or not -1e300 < value < 1e300:
        raise InputError(f"{at}: {name} is {value!r:.80}, must be a number")
    return float(value)
