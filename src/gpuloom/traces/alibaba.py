"""Alibaba's GPU clusters: pods of `openb_pod_list_*.csv`, and instances of `disaggregated_DLRM_trace.csv`.

Source: github.com/alibaba/clusterdata, `cluster-trace-gpu-v2023` (ATC '23) and `cluster-trace-gpu-v2025`.
Times are seconds. A pod's duration is deletion − scheduling, or deletion − creation if it was never
scheduled. Pods may ask for a part of a GPU (`gpu_milli`) and for GPU models (`gpu_spec`, '|' between them).
"""

from __future__ import annotations

import math

import numpy as np

from gpuloom.core.errors import TraceError
from gpuloom.core.words import plural
from gpuloom.core.workload import Labels
from gpuloom.files.source import Head, Part, ReadOptions, Source
from gpuloom.files.table import Column, Table, read_table
from gpuloom.traces.base import Reader

POD = ("name", "num_gpu", "gpu_milli")
TIMES = (
    Column("creation_time", minimum=0, empty=math.nan),
    Column("scheduled_time", minimum=0, empty=math.nan),
    Column("deletion_time", minimum=0, empty=math.nan),
)
POD_COLUMNS = (
    Column("name", "text"),
    Column("num_gpu", "whole", minimum=0),
    Column("gpu_milli", "whole", minimum=0, maximum=1000),
    Column("gpu_spec", "word", empty="", optional=True),
    Column("qos", "word", empty="", optional=True),
    *TIMES,
)
INSTANCE_COLUMNS = (
    Column("instance_sn", "text"),
    Column("app_name", "word", empty=""),
    Column("gpu_request", "whole", minimum=0),
    *TIMES,
)


def detect(head: Head) -> bool:
    return head.has(*POD) or head.has("instance_sn", "app_name", "gpu_request")


def read(source: Source, options: ReadOptions) -> Part:
    if source.head.has(*POD) and not source.head.has("creation_time"):
        raise TraceError(
            "this pod list holds no times (no creation_time, scheduled_time, deletion_time): "
            "it can be used to study placement, not replayed",
            file=source.name,
        )
    pods = source.head.has("name") or not source.head.has("instance_sn")
    return _pods(source, options) if pods else _instances(source, options)


def _pods(source: Source, options: ReadOptions) -> Part:
    table = read_table(source, options, POD_COLUMNS)
    table.unique("name")
    table.leave_out(table["num_gpu"] == 0, "used no GPU")
    duration_s = _duration_s(table)
    table.reject(table["gpu_milli"] == 0, "gpu_milli", lambda row: "gpu_milli is 0 though num_gpu is not")
    return table.part(
        table["creation_time"],
        duration_s,
        table["num_gpu"],
        job_ids=table.texts["name"],
        group=table.words.get("qos"),
        gpu_type=_each_once(table.words["gpu_spec"]) if "gpu_spec" in table else None,
        gpu_milli=table.ints("gpu_milli"),
    )


def _instances(source: Source, options: ReadOptions) -> Part:
    """Instances of recommendation models; only those of the role HN (heterogeneous node) hold a GPU."""
    table = read_table(source, options, INSTANCE_COLUMNS)
    table.unique("instance_sn")
    table.leave_out(table["gpu_request"] == 0, "used no GPU")
    duration_s = _duration_s(table)
    return table.part(
        table["creation_time"],
        duration_s,
        table["gpu_request"],
        job_ids=table.texts["instance_sn"],
        group=table.words["app_name"],
    )


def _duration_s(table: Table) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    created, scheduled, deleted = (table[column.name] for column in TIMES)
    table.leave_out(np.isnan(created), "had no creation_time (they ran before the trace began)")
    table.leave_out(np.isnan(deleted), "had no deletion_time (they ran on after the trace ended)")
    never = np.isnan(scheduled)
    duration_s = deleted - np.where(never, created, scheduled)
    table.reject(duration_s < 0, "deletion_time", lambda row: f"deletion_time is {-duration_s[row]:g} s too early")
    number = int((never & ~table.left_out & ~np.isnan(duration_s)).sum())
    if number:
        table.notes.append(
            f"{table.source.name}: {plural(number, 'job')} never scheduled: "
            "counted with the time from creation to deletion"
        )
    return duration_s


def _each_once(spec: Labels) -> Labels:
    """The same labels with every GPU model named once ('V100M32|V100M32' stands in the data)."""
    once: dict[str, int] = {}
    new = [once.setdefault("|".join(dict.fromkeys(name.split("|"))), len(once)) for name in spec.names]
    codes = np.asarray(new, dtype=np.int32)[spec.codes] if new else spec.codes
    return Labels(codes, tuple(once))


READER = Reader(
    "alibaba", "Alibaba GPU pods (ATC '23)", "Pods with parts of GPUs and GPU models.", detect, read, throughputs=False
)
