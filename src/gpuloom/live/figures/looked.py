"""What the monitors saw last of each node and GPU, and of the runs of each user and job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpuloom.agent.sample import Sample
from gpuloom.core.book import Book
from gpuloom.core.job import NodeRecord
from gpuloom.core.sums import sum_floats
from gpuloom.core.usage import RunUsage
from gpuloom.live.figures.each import COLUMNS, Each, Of, table
from gpuloom.live.sights import together

Row = tuple[float | None, ...]
"""In the order of COLUMNS."""
_UNKNOWN: Row = (None,) * len(COLUMNS[Of.JOB])


def looked(book: Book, seen: Sequence[tuple[NodeRecord, Sample]]) -> Each:
    """seen: nodes, each with a sample that still counts."""
    nodes: dict[str, Row] = {}
    gpus: dict[str, Row] = {}
    for node, sample in seen:
        memory = {gpu.uuid: float(gpu.memory_mib) for gpu in node.gpus if gpu.memory_mib is not None}
        nodes[node.name] = _node(sample, memory)
        for gpu in sample.gpus:
            if gpu.utilization is not None or gpu.memory_used_mib is not None:
                name = f"{node.name}:{gpu.index}"
                gpus[name] = gpu.utilization, gpu.memory_used_mib, memory.get(gpu.uuid)
    of_run = {run: usage for _, sample in seen for run, usage in sample.runs.items()}
    of_jobs: dict[str, list[RunUsage]] = {}
    of_users: dict[str, list[RunUsage]] = {}
    for number, attempt in book.attempts.items():
        for usage in (of_run[run] for run in attempt.runs if run in of_run):
            of_jobs.setdefault(str(number), []).append(usage)
            of_users.setdefault(book.jobs[number].user, []).append(usage)
    found = {
        Of.NODE: table(Of.NODE, nodes),
        Of.GPU: table(Of.GPU, gpus),
        Of.USER: table(Of.USER, {user: _runs(runs) for user, runs in of_users.items()}),
        Of.JOB: table(Of.JOB, {job: _runs(runs) for job, runs in of_jobs.items()}),
    }
    return {of: one for of, one in found.items() if one.names}


def _node(sample: Sample, memory: Mapping[str, float]) -> Row:
    rates, runs = sample.node, sample.runs.values()
    busy = [gpu.utilization for gpu in sample.gpus if gpu.utilization is not None]
    told = [gpu for gpu in sample.gpus if gpu.memory_used_mib is not None]
    return (
        None if rates is None else rates.cpu_percent,
        None if rates is None else rates.memory_used_mib,
        None if rates is None else rates.memory_mib,
        None if rates is None else rates.disk_free_mib,
        _sum([run.read_mib_per_s for run in runs]),
        _sum([run.write_mib_per_s for run in runs]),
        None if rates is None else rates.received_mib_per_s,
        None if rates is None else rates.sent_mib_per_s,
        sum_floats(busy) / len(busy) if busy else None,
        max(busy, default=None),
        _sum([gpu.memory_used_mib for gpu in told]),
        _sum([memory.get(gpu.uuid) for gpu in told]),
    )


def _runs(runs: Sequence[RunUsage]) -> Row:
    one = together("", runs)
    if one is None:
        return _UNKNOWN
    return (
        one.cpu_cores,
        one.memory_mib,
        one.gpu_utilization,
        one.gpu_memory_mib,
        one.read_mib_per_s,
        one.write_mib_per_s,
    )


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum_floats(known) if known else None
