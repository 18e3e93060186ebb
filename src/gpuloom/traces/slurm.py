"""The accounting of Slurm as `sacct -P` prints it: one job a line, fields between '|', times of the cluster's clock.

    sacct -aXP -S 2026-01-01 -o JobID,User,Partition,Submit,Eligible,Start,End,ElapsedRaw,TimelimitRaw,ReqTRES,AllocTRES

Source of the fields: sacct(1), Slurm 22.05 and 24.05. A job waits from `Eligible` on where that is printed: what it
waited before (for other jobs, held, for a begin time) is not the scheduler's doing. It ran for `ElapsedRaw` seconds,
else from `Start` to `End`. It got the GPUs of `AllocTRES`, and asked for a GPU model if `ReqTRES` names one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import numpy as np

from gpuloom.core.workload import F8, Labels
from gpuloom.files.source import Head, Part, ReadOptions, Source
from gpuloom.files.table import Column, Table, read_table
from gpuloom.traces.base import Reader

DELIMITER = "|"
NOTHING = ("Unknown", "None", "N/A", "INVALID", "UNLIMITED", "Partition_Limit")
"""Words of Slurm for a value that there is not."""
TRES = ("AllocTRES", "AllocGRES", "ReqTRES", "ReqGRES")
"""What a job got, and what it asked for; GRES: as up to Slurm 20.11."""
COLUMNS = (
    Column("JobID", "text"),
    Column("Submit", "time"),
    Column("Eligible", "time", empty=math.nan, nothing=NOTHING, optional=True),
    Column("Start", "time", empty=math.nan, nothing=NOTHING, optional=True),
    Column("End", "time", empty=math.nan, nothing=NOTHING, optional=True),
    Column("ElapsedRaw", minimum=0, empty=math.nan, nothing=NOTHING, optional=True),
    Column("TimelimitRaw", minimum=0, empty=math.nan, nothing=NOTHING, optional=True),
    Column("User", "word", empty="", optional=True),
    Column("Partition", "word", empty="", optional=True),
    *(Column(name, "word", empty="", optional=True) for name in TRES),
)
_GPUS = re.compile(r"(?:gres/)?gpu(?::([^=:,()]*[^=:,()0-9][^=:,()]*))?(?:[=:]([0-9]+))?(?:\([^)]*\))?")


def detect(head: Head) -> bool:
    names = head.split(DELIMITER)
    ran = "ElapsedRaw" in names or names.issuperset(("Start", "End"))
    return ran and names.issuperset(("JobID", "Submit")) and not names.isdisjoint(TRES)


def gpus_in(tres: str) -> tuple[int, str]:
    """GPUs and their model in a list of resources: 'cpu=8,gres/gpu=2,gres/gpu:a100=2', 'gpu:a100:2'. The model is '' if
    none is named, or more than one."""
    every, by_model = 0, dict[str, int]()
    for part in tres.split(","):
        found = _GPUS.fullmatch(part.strip())
        if found is not None:
            count = int(found[2] or 1)
            if found[1]:
                by_model[found[1]] = by_model.get(found[1], 0) + count
            else:
                every += count
    # The number of all stands beside those of the models.
    return max(every, sum(by_model.values())), next(iter(by_model)).upper() if len(by_model) == 1 else ""


def read(source: Source, options: ReadOptions) -> Part:
    table = read_table(source, options, COLUMNS, delimiter=DELIMITER)
    steps = np.array(["." in job for job in table.texts["JobID"]], dtype=bool)
    table.leave_out(steps, "are steps of others (sacct -X prints none)")
    gpus = np.zeros(len(table))
    for name in TRES:
        gpus = np.where(gpus > 0, gpus, _each(table, name, lambda tres: gpus_in(tres)[0]))
    table.leave_out(gpus == 0, "used no GPU")
    for name, why in (("Start", "never started"), ("End", "had not ended")):
        if name in table:
            table.leave_out(np.isnan(table[name]), why)
    table.unique("JobID")
    submit_s = table["Submit"]
    if "Eligible" in table:
        submit_s = np.fmax(submit_s, table["Eligible"])
    return table.part(
        submit_s,
        _ran_s(table),
        gpus,
        calendar=True,
        job_ids=table.texts["JobID"],
        user=table.words.get("User"),
        group=table.words.get("Partition"),
        gpu_type=_wanted(table),
        estimate_s=60 * table["TimelimitRaw"] if "TimelimitRaw" in table else None,
    )


def _ran_s(table: Table) -> F8:
    """For how long each job ran: by its own column, else between start and end."""
    ran_s = table["ElapsedRaw"] if "ElapsedRaw" in table else np.full(len(table), math.nan)
    if "Start" not in table or "End" not in table:
        table.reject(np.isnan(ran_s), "ElapsedRaw", lambda row: "ElapsedRaw is empty, and there are no Start and End")
        return ran_s
    start_s, end_s = table["Start"], table["End"]
    table.reject(end_s < start_s, "End", lambda row: f"End is {start_s[row] - end_s[row]:g} s before Start")
    return np.where(np.isnan(ran_s), end_s - start_s, ran_s)


def _each(table: Table, name: str, value: Callable[[str], float]) -> F8:
    """A number for each row, by the word in this column; zeros without the column."""
    words = table.words.get(name)
    if words is None:
        return np.zeros(len(table))
    return np.array([value(word) for word in words.names], dtype=np.float64)[words.codes]


def _wanted(table: Table) -> Labels | None:
    """GPU models that were asked for."""
    words = table.words.get("ReqTRES") or table.words.get("ReqGRES")
    if words is None:
        return None
    models = Labels.of([gpus_in(word)[1] for word in words.names])
    return None if models.names == ("",) else Labels(models.codes[words.codes], models.names)


READER = Reader(
    "slurm", "Slurm's sacct -P", "Accounting of a cluster, group = partition.", detect, read, throughputs=False
)
