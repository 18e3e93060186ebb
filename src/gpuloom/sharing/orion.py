"""Reader of Orion's recorded kernel profiles (Strati et al., EuroSys '24; its repository's `*_fwd`, `*_fb1` files).

Columns `Name,Profile,Memory_footprint,SM_usage,Duration`: a name that can itself hold commas, 1 compute-bound / 0
memory-bound / -1 unknown, unused, SMs needed (not capped), nanoseconds alone. Rows are in launch order of one request
or iteration and names are cut short, so position is the key: each row becomes a record of its own. Recorded on a V100
with 80 SMs.

The files give the class, not the utilisations. What is assumed: the resource a kernel is bound by is used to
`BOUND_UTIL`, between the 0.6 from which Orion calls a kernel bound and 1; the other to `OTHER_UTIL`; compute at most as
far as the SMs that it fills; a kernel of unknown class has unknown utilisations.
"""

from __future__ import annotations

from gpuloom.core.errors import InputError
from gpuloom.sharing.profiles import KernelProfile, KernelRecord

HEADER = "Name,Profile,Memory_footprint,SM_usage,Duration"
SM_COUNT, CC, DEVICE = 80, "7.0", "V100"
BOUND_UTIL, OTHER_UTIL = 0.8, 0.3
CLASS = {1: "compute", 0: "memory", -1: "unknown"}
PLACEHOLDER_NS = 100
_MAX = 2**31 - 1


def is_orion(text: str) -> bool:
    """Whether a file's first line is Orion's header."""
    return text.split("\n", 1)[0].strip() == HEADER


def parse_orion(text: str, name: str, where: str = "") -> KernelProfile:
    """Parse the text of one of Orion's files.

    Raises:
        InputError: a placeholder, or not such a file; says the line.
    """
    where = where or name
    if not is_orion(text):
        raise InputError(f"{where}: not a profile of Orion, must begin with {HEADER}")
    records = []
    for number, line in enumerate(text.split("\n")[1:], 2):
        if not line.strip():
            continue
        cells = line.rstrip("\r").rsplit(",", 4)
        if len(cells) != 5:
            raise InputError(f"{where}:{number}: {len(cells)} columns, must be 5")
        klass = _number(cells[1], "Profile", f"{where}:{number}", -1, 1)
        sms = _number(cells[3], "SM_usage", f"{where}:{number}", 0, _MAX)
        duration = _number(cells[4], "Duration", f"{where}:{number}", 0, 2**62)
        records.append(_record(cells[0], CLASS[klass], max(1, sms), duration))
    if not records:
        raise InputError(f"{where}: no kernels")
    if name.endswith("_fb0") or all(r.duration_ns < PLACEHOLDER_NS and r.klass == "unknown" for r in records):
        raise InputError(
            f"{where}: a placeholder that only counts launches: its durations and classes are not measured "
            "(docs/howto/share-a-gpu.md); take the file that ends in _fb1"
        )
    return KernelProfile(
        name,
        SM_COUNT,
        tuple(records),
        tuple(range(len(records))),
        DEVICE,
        CC,
        f"Orion (EuroSys '24), recorded on a V100; utilisations assumed by class: {BOUND_UTIL} of what bounds it, "
        f"{OTHER_UTIL} of the other",
    )


def _record(name: str, klass: str, sms: int, duration_ns: int) -> KernelRecord:
    part = min(1.0, sms / SM_COUNT)
    compute = dram = None
    if klass == "compute":
        compute, dram = BOUND_UTIL * part, OTHER_UTIL * part
    elif klass == "memory":
        compute, dram = OTHER_UTIL * part, BOUND_UTIL
    return KernelRecord(name, sms, max(1, duration_ns), compute, dram, klass)


def _number(text: str, column: str, where: str, low: int, high: int) -> int:
    value = text.strip()
    digits = value.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 19 or not low <= int(value) <= high:
        raise InputError(f"{where}, column {column!r}: {text!r:.80}, must be a whole number from {low} to {high}")
    return int(value)
