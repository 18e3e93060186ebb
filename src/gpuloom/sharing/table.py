"""A kernel profile as the shim reads it: a line per kernel, 13 fields between tabs (docs/reference/sharing-shim.md).

The shim sees mangled names, a PyTorch trace holds demangled ones. Both sides cut a name down to its signature, the
qualified identifier before template arguments and parameters: `at::native::vectorized_elementwise_kernel`. The shim
(`native/interposer/profile.c`) asks in this order: own name, grid, block and shared memory; signature and these; then
the class alone, by name or signature. Rows for all of these are made here, so that means are weighted by launches.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from gpuloom.core.errors import InputError
from gpuloom.core.sums import sum_floats, sum_ints
from gpuloom.sharing.find import find_profile, stored_profile
from gpuloom.sharing.imports import read_any
from gpuloom.sharing.profiles import KernelProfile, KernelRecord, classify, read_text

FIELDS = 13
MAX_ROWS = 65_536
LONGEST = 1023
"""Bytes of the longest signature."""
UNKNOWN = "-"
ANONYMOUS = "(anonymous namespace)"

_HIDDEN = re.compile(rb"_GLOBAL_[._$]N")
_ALIASES = re.compile(r"<unnamed>|\{anonymous\}|`anonymous namespace'")
_ANY = ("0", "0", "0", "0", "0", "0", UNKNOWN)


def signature(name: str) -> str:
    """The qualified name of a kernel without return type, template arguments and parameters; "" if it has none.

    Mangled names are those of the Itanium C++ ABI ("External names"); an anonymous namespace, which compilers call
    `_GLOBAL__N_…` and demanglers write in several ways, becomes `(anonymous namespace)`.
    """
    if name.startswith("_Z"):
        return _of_mangled(name.encode("utf-8", "replace"))
    if is_plain(name):
        return name
    text = _ALIASES.sub(ANONYMOUS, name).removeprefix("void ").strip()
    # The marker's own parenthesis does not end the name.
    found = re.match(r"(?:\(anonymous namespace\)|[^<(\[{])*", text)
    cut = found.group().strip() if found else ""
    return cut if cut and " " not in cut.replace(ANONYMOUS, "") and len(cut.encode()) <= LONGEST else ""


def is_plain(name: str) -> bool:
    """Whether it can be the name of a function without C++ mangling (C, Triton)."""
    return not re.search(r"[\s(<]|::", name)


def _of_mangled(name: bytes) -> str:
    rest = name[2:].lstrip(b"Z")  # local to a function: the function's name
    nested = rest.startswith(b"N")
    parts = []
    if nested:
        rest = rest[1:].lstrip(b"rVKRO")
    if rest.startswith(b"St"):
        parts, rest = [b"std"], rest[2:]
    identifiers = 0
    while True:
        digits = re.match(rb"L?([0-9]+)", rest)
        if digits is None:
            break
        if digits[1].startswith(b"0") or len(digits[1]) > len(str(LONGEST)):
            return ""
        length = int(digits[1])
        part, rest = rest[digits.end() : digits.end() + length], rest[digits.end() + length :]
        if length > LONGEST or len(part) < length:
            return ""
        parts.append(ANONYMOUS.encode() if _HIDDEN.match(part) else part)
        identifiers += 1
        if not nested:
            break
    made = b"::".join(parts)
    if not identifiers or (nested and rest[:1] not in (b"I", b"E", b"B")) or len(made) > LONGEST:
        return ""
    return made.decode("utf-8", "replace")


def table(profile: KernelProfile) -> str:
    """The table of a profile.

    Raises:
        InputError: more kernels than the shim takes.
    """
    launches = [0] * len(profile.records)
    for index in profile.order:
        launches[index] += 1
    alike: defaultdict[tuple[str, ...], list[tuple[int, KernelRecord]]] = defaultdict(list)
    named: defaultdict[str, list[KernelRecord]] = defaultdict(list)
    for record, count in zip(profile.records, launches, strict=True):
        for name in _names(record.name):
            named[name].append(record)
            if all(record.grid) and all(record.block):
                alike[name, *map(str, (*record.grid, *record.block)), _shared(record)].append((max(1, count), record))
    lines = ["\t".join((*key, *_merged(group))) for key, group in alike.items()]
    for name, records in named.items():
        (klass, *others) = {record.klass for record in records}
        if klass != "unknown" and not others:
            lines.append("\t".join((name, *_ANY, "0", UNKNOWN, UNKNOWN, "0", klass)))
    if len(lines) > MAX_ROWS:
        raise InputError(f"profile {profile.name}: {len(lines)} kernels, the shim takes {MAX_ROWS}")
    return "\n".join([f"# {' '.join(profile.name.split())}: made by gpuloom share run", *lines]) + "\n"


def _names(name: str) -> Iterable[str]:
    """What the shim may look for: the name as the driver tells it, and the signature."""
    own = name if name.startswith("_Z") or is_plain(name) else ""
    found = dict.fromkeys((own, signature(name)))
    return [one for one in found if one and not one.startswith("#") and one.isprintable()]


def _shared(record: KernelRecord) -> str:
    """Dynamic shared memory. A PyTorch trace tells the sum of static and dynamic alone: unknown, but where it is 0."""
    known = record.dynamic_shared_bytes > 0 or record.shared_bytes == 0
    return str(record.dynamic_shared_bytes) if known else UNKNOWN


def _merged(group: list[tuple[int, KernelRecord]]) -> tuple[str, ...]:
    """SMs, utilisations, duration and class of records with one key: means weighted by launches."""
    total = sum_ints(weight for weight, _ in group)

    def share(values: list[tuple[int, float | None]]) -> float | None:
        known = [(weight, value) for weight, value in values if value is not None]
        weights = sum_ints(weight for weight, _ in known)
        return sum_floats(weight * value for weight, value in known) / weights if known else None

    compute = share([(weight, record.compute_util) for weight, record in group])
    dram = share([(weight, record.dram_util) for weight, record in group])
    slots = math.ceil(sum_ints(weight * record.sm_slots for weight, record in group) / total)
    lasts = max(1, round(sum_ints(weight * record.duration_ns for weight, record in group) / total))
    (klass, *others) = {record.klass for _, record in group}
    return (
        str(slots),
        *(UNKNOWN if value is None else f"{value:.4f}" for value in (compute, dram)),
        str(lasts),
        classify(compute, dram) if others else klass,
    )


def is_table(text: str) -> bool:
    """Whether a file is such a table already."""
    first = next((line for line in text.split("\n") if line.strip() and not line.startswith("#")), "")
    return first.count("\t") == FIELDS - 1


def table_of(name: str) -> str:
    """The table of what a user names: a stored or shipped profile, or a file of any format that can be imported.

    Raises:
        InputError: there is none, or it can't be read.
    """
    stored = stored_profile(name)
    path = Path(name)
    if stored is None and path.is_file():
        text = read_text(path)
        if is_table(text):
            return text
        return table(read_any(path, text, need_sm_count=False))
    return table((stored or find_profile(name))[0])


def write_table(text: str, folder: Path) -> Path:
    """Keep a table in a folder, by what it says; programs that run with it may be many.

    Raises:
        InputError: it can't be written.
    """
    path = folder / f"profile-{hashlib.sha256(text.encode()).hexdigest()[:20]}.tsv"
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            part.write_text(text, encoding="utf-8")
            part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise InputError(f"{path}: the profile can't be written ({error.strerror})") from error
    return path
