"""What Slurm's commands print, of versions from 22.05 on: JSON, tables, GRES strings and lists of hosts.

Old versions write numbers and states plainly; newer ones write `{"set": …, "infinite": …, "number": …}` and lists of
states. Fields that are missing, or are of another kind, count as unknown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpuloom.bounded.json_text import load_json
from gpuloom.bounded.text import shown

MOST_HOSTS = 100_000
"""Hosts that a list may name."""

ENDED = frozenset(
    {
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "DEADLINE",
        "FAILED",
        "LAUNCH_FAILED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "PREEMPTED",
        "RECONFIG_FAIL",
        "REVOKED",
        "TIMEOUT",
    }
)
"""States of a job of Slurm that it does not leave (a requeue begins anew)."""
HAS_NODES = frozenset({"RUNNING", "SUSPENDED", "STOPPED", "RESIZING", "SIGNALING", "STAGE_OUT"})
"""States in which a job has its nodes and its processes may be there."""

JOB_FORMAT = "%i|%T|%r|%N|%e|%l|%b|%D|%j"
"""`squeue -o` of what `jobs_of_table` reads; times as seconds, with SLURM_TIME_FORMAT=%s."""
NODE_FORMAT = "%N|%T|%G|%c|%m|%P"
"""`sinfo -N -o` of what `nodes_of_table` reads."""


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """A job of Slurm. states: the first one says where it is, others are marks ('COMPLETING'). reason: why it waits, or
    ended. end_s: when it ends, or ended, since the epoch; None: it has no limit. gpus: on each node, None if not said.
    """

    id: int
    name: str
    states: tuple[str, ...]
    reason: str = ""
    nodes: tuple[str, ...] = ()
    end_s: float | None = None
    limit_s: float | None = None
    node_count: int = 1
    gpus: int | None = None

    @property
    def ended(self) -> bool:
        """Whether it is over, and its processes are gone; those of a node that does not answer may not be."""
        return bool(ENDED.intersection(self.states)) and "COMPLETING" not in self.states

    @property
    def running(self) -> bool:
        """Whether it has its nodes."""
        return bool(HAS_NODES.intersection(self.states)) and not ENDED.intersection(self.states)


@dataclass(frozen=True, slots=True)
class Gres:
    """Generic resources of one kind, such as 4 GPUs of type 'a100'. type: '' where none is said."""

    name: str
    type: str
    count: int


@dataclass(frozen=True, slots=True)
class SlurmNode:
    """A node of Slurm. states: in capitals, without marks such as '*'."""

    name: str
    states: tuple[str, ...]
    gres: tuple[Gres, ...] = ()
    cpus: int | None = None
    memory_mib: int | None = None
    partitions: tuple[str, ...] = ()

    @property
    def gpus(self) -> int:
        """GPUs of any type."""
        return sum(one.count for one in self.gres if one.name == "gpu")


class SlurmTextError(ValueError):
    """Text that no known version of Slurm writes."""


# -- pieces -----------------------------------------------------------------------------------------------------------


def number_of(value: Any) -> float | None:
    """A number as old and new versions write it; None: not set, or without end."""
    if isinstance(value, Mapping):
        if value.get("infinite") or not value.get("set", True):
            return None
        value = value.get("number")
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value)


def states_of(value: Any) -> tuple[str, ...]:
    """States as old and new versions write them, in capitals and without marks ('idle*' is IDLE)."""
    words = re.split(r"[+\s]", value) if isinstance(value, str) else value if isinstance(value, list) else ()
    cleaned = (re.sub(r"[^A-Z_]+$", "", str(word).strip().upper()) for word in words)
    return tuple(word for word in cleaned if word)


def split_outside(text: str, separator: str = ",") -> list[str]:
    """Parts of a text between separators that are in no brackets or parentheses."""
    parts, depth, start = [], 0, 0
    for at, letter in enumerate(text):
        if letter in "[(":
            depth += 1
        elif letter in "])":
            depth -= 1
        elif letter == separator and depth == 0:
            parts.append(text[start:at])
            start = at + 1
    parts.append(text[start:])
    return [part for part in parts if part]


def hosts_of(text: str) -> tuple[str, ...]:
    """Names of a list of hosts, such as `n[0-3,7],login1` or `rack[1-2]n[01-04]-ib`.

    Raises:
        SlurmTextError: brackets or ranges that can't be read, or more than MOST_HOSTS names.
    """
    found: list[str] = []
    for part in split_outside(text.strip()):
        for name in _expanded(part.strip(), text):
            found.append(name)
            if len(found) > MOST_HOSTS:
                raise SlurmTextError(f"the list of hosts {shown(text)} names more than {MOST_HOSTS:,}")
    return tuple(found)


def _expanded(part: str, text: str) -> Iterator[str]:
    before, bracket, rest = part.partition("[")
    if not bracket:
        if "]" in part:
            raise SlurmTextError(f"brackets don't fit in the list of hosts {shown(text)}")
        yield part
        return
    inside, closing, after = rest.partition("]")
    if not closing or "[" in inside or "]" in before:
        raise SlurmTextError(f"brackets don't fit in the list of hosts {shown(text)}")
    for number in _numbers(inside, text):
        for tail in _expanded(after, text):
            yield before + number + tail


def _numbers(inside: str, text: str) -> Iterator[str]:
    for one in inside.split(","):
        match = re.fullmatch(r"\s*(\d{1,18})(?:-(\d{1,18}))?\s*", one, re.ASCII)
        if match is None:
            raise SlurmTextError(f"{shown(one)} is no number and no range, in the list of hosts {shown(text)}")
        first, last = match[1], match[2] or match[1]
        if int(last) < int(first):
            raise SlurmTextError(f"the range {shown(one)} ends before it begins, in the list of hosts {shown(text)}")
        for number in range(int(first), int(last) + 1):
            yield f"{number:0{len(first)}d}"


def gres_of(text: str) -> tuple[Gres, ...]:
    """Generic resources, such as `gpu:a100:4(S:0-1),shard:8`, `gres:gpu:2` or `gres/gpu:a100=4`.

    A count that is left out is 1; 'K', 'M', 'G' stand for powers of 1024. `(null)` and `N/A` are nothing.

    Raises:
        SlurmTextError: a count that can't be read.
    """
    if text.strip().lower() in ("", "(null)", "n/a", "none"):
        return ()
    found = []
    for part in split_outside(text.strip()):
        plain = re.sub(r"\(.*", "", part).removeprefix("gres:").removeprefix("gres/").replace("=", ":")
        name, *others = [word for word in plain.split(":") if word and word != "no_consume"]
        count = 1
        if others and others[-1][0].isdigit():
            count = _count(others.pop(), text)
        found.append(Gres(name, others[0] if others else "", count))
    return tuple(found)


def _count(word: str, text: str) -> int:
    match = re.fullmatch(r"(\d{1,12})([KkMmGg]?)", word, re.ASCII)
    if match is None:
        raise SlurmTextError(f"the count {shown(word)} can't be read, in the generic resources {shown(text)}")
    return int(match[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[match[2].upper()]


def duration_of(text: str) -> float | None:
    """Seconds of a time limit (`minutes[:seconds]`, `hours:minutes:seconds`, `days-hours[:minutes[:seconds]]`);
    None: it has none, or is not known."""
    match = re.fullmatch(r"(?:(\d{1,9})-)?(\d{1,9}(?::\d{1,9}){0,2})", text.strip(), re.ASCII)
    if match is None:
        return None
    numbers = [int(word) for word in match[2].split(":")]
    if match[1] is not None:
        hours, minutes, seconds = (*numbers, 0, 0)[:3]
        return float(((int(match[1]) * 24 + hours) * 60 + minutes) * 60 + seconds)
    if len(numbers) == 3:
        return float((numbers[0] * 60 + numbers[1]) * 60 + numbers[2])
    return float(numbers[0] * 60 + (numbers[1] if len(numbers) == 2 else 0))


# -- squeue -----------------------------------------------------------------------------------------------------------


def jobs_of_json(text: str) -> list[SlurmJob]:
    """Jobs of `squeue --json`.

    Raises:
        SlurmTextError: it is not what `squeue --json` prints.
    """
    return [job for row in _rows(text, "jobs", "squeue --json") if (job := _job(row)) is not None]


def _job(row: Mapping[str, Any]) -> SlurmJob | None:
    number = number_of(row.get("job_id"))
    if number is None:
        return None
    limit = number_of(row.get("time_limit"))
    end = number_of(row.get("end_time"))
    count = number_of(row.get("node_count"))
    wanted = _text(row.get("tres_per_node"))
    return SlurmJob(
        int(number),
        _text(row.get("name")),
        states_of(row.get("job_state")),
        _reason(_text(row.get("state_reason"))),
        _hosts(row.get("nodes")),
        end or None,
        None if limit is None else 60.0 * limit,
        1 if count is None else max(int(count), 1),
        _gpus(wanted),
    )


def jobs_of_table(text: str) -> list[SlurmJob]:
    """Jobs of `squeue -h -o JOB_FORMAT`. Rows of arrays that have not begun are left out."""
    found = []
    for line in text.splitlines():
        parts = line.split("|", 8)
        if len(parts) < 9 or not parts[0].strip().isdecimal():
            continue
        number, state, reason, nodes, end, limit, wanted, count, name = (part.strip() for part in parts)
        found.append(
            SlurmJob(
                int(number),
                name,
                states_of(state),
                _reason(reason),
                _hosts(nodes),
                float(end) if end.isdecimal() and int(end) else None,
                duration_of(limit),
                max(int(count), 1) if count.isdecimal() else 1,
                _gpus(wanted),
            )
        )
    return found


def _reason(text: str) -> str:
    return "" if text in ("None", "(null)") else text


def _hosts(value: Any) -> tuple[str, ...]:
    text = _text(value)
    try:
        return () if text == "(null)" else hosts_of(text)
    except SlurmTextError:
        return ()


def _gpus(text: str) -> int | None:
    try:
        counts = [one.count for one in gres_of(text) if one.name == "gpu"]
    except SlurmTextError:
        return None
    return sum(counts) if counts else None


# -- sinfo ------------------------------------------------------------------------------------------------------------


def nodes_of_json(text: str) -> list[SlurmNode]:
    """Nodes of `sinfo --json`, one by one (old versions) or in rows of nodes that are alike (newer ones).

    Raises:
        SlurmTextError: it is not what `sinfo --json` prints.
    """
    rows = _rows(text, ("nodes", "sinfo"), "sinfo --json")
    return _joined(
        node for row in rows for node in (_alike(row) if isinstance(row.get("node"), Mapping) else _one(row))
    )


def _one(row: Mapping[str, Any]) -> list[SlurmNode]:
    name = _text(row.get("name"))
    partitions = row.get("partitions")
    return [
        SlurmNode(
            name,
            states_of(row.get("state")) + states_of(row.get("state_flags")),
            _gres(row.get("gres")),
            _whole(row.get("cpus")),
            _whole(row.get("real_memory")),
            tuple(map(str, partitions)) if isinstance(partitions, list) else (),
        )
    ] * bool(name)


def _alike(row: Mapping[str, Any]) -> list[SlurmNode]:
    names = _inner(row, "nodes").get("nodes")
    gres, cpus, memory = _inner(row, "gres"), _inner(row, "cpus"), _inner(row, "memory")
    partition = _text(_inner(row, "partition").get("name"))
    return [
        SlurmNode(
            name,
            states_of(_inner(row, "node").get("state")),
            _gres(gres.get("total")),
            _whole(cpus.get("minimum")),
            _whole(memory.get("minimum")),
            (partition,) if partition else (),
        )
        for text in (names if isinstance(names, list) else ())
        for name in _hosts(text)
    ]


def nodes_of_table(text: str) -> list[SlurmNode]:
    """Nodes of `sinfo -h -N -o NODE_FORMAT`."""
    found = []
    for line in text.splitlines():
        parts = [part.strip() for part in line.split("|")]
        if len(parts) == 6 and parts[0]:
            name, state, gres, cpus, memory, partition = parts
            cpus, memory = cpus.removesuffix("+"), memory.removesuffix("+")
            found.append(
                SlurmNode(
                    name,
                    states_of(state),
                    _gres(gres),
                    int(cpus) if cpus.isdecimal() else None,
                    int(memory) if memory.isdecimal() else None,
                    (partition.removesuffix("*"),),
                )
            )
    return _joined(found)


def _joined(nodes: Iterable[SlurmNode]) -> list[SlurmNode]:
    """Each node once, with all its partitions."""
    found: dict[str, SlurmNode] = {}
    for node in nodes:
        if (known := found.get(node.name)) is not None:
            partitions = tuple(dict.fromkeys((*known.partitions, *node.partitions)))
            node = SlurmNode(known.name, known.states, known.gres, known.cpus, known.memory_mib, partitions)
        found[node.name] = node
    return list(found.values())


# -- JSON of any shape ------------------------------------------------------------------------------------------------


def _rows(text: str, names: str | Sequence[str], command: str) -> list[Mapping[str, Any]]:
    try:
        found = load_json(text)
    except ValueError as error:
        raise SlurmTextError(f"what {command} prints is no JSON: {error}") from None
    if isinstance(found, Mapping) and (
        errors := found.get("errors")
    ):  # 22.05 says so with an empty list, and exits with 0
        raise SlurmTextError(f"{command} says: {shown(errors)}")
    for name in (names,) if isinstance(names, str) else names:
        rows = found.get(name) if isinstance(found, Mapping) else None
        if isinstance(rows, list):
            return [row for row in rows if isinstance(row, Mapping)]
    raise SlurmTextError(
        f"what {command} prints holds no list {' or '.join([names] if isinstance(names, str) else names)}"
    )


def _inner(row: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = row.get(name)
    return found if isinstance(found, Mapping) else {}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _whole(value: Any) -> int | None:
    found = number_of(value)
    return None if found is None else int(found)


def _gres(value: Any) -> tuple[Gres, ...]:
    try:
        return gres_of(_text(value))
    except SlurmTextError:
        return ()
