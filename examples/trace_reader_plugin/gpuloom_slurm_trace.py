"""Lets gpuloom read Slurm's accounting: one line a job, fields separated by '|'.

Made with: sacct -aXP --format=JobID,User,Partition,Submit,ElapsedRaw,AllocTRES
"""

from __future__ import annotations

import re

import numpy as np

from gpuloom.traces import Column, Head, Part, Reader, ReadOptions, Source, read_table

COLUMNS = (
    Column("JobID", "text"),
    Column("User", "word", empty=""),
    Column("Partition", "word", empty=""),
    Column("Submit", "time"),
    Column("ElapsedRaw", minimum=0),  # seconds
    Column("AllocTRES", "word", empty=""),  # billing=8,cpu=8,gres/gpu=2,mem=64G,node=1
)


def detect(head: Head) -> bool:
    """Told by the header alone: the name of the file says nothing."""
    return bool(head.lines) and {column.name for column in COLUMNS} <= set(head.lines[0].split("|"))


def read(source: Source, options: ReadOptions) -> Part:
    # read_table finds fields that are missing or no numbers, and remembers line and column of each.
    table = read_table(source, options, COLUMNS, delimiter="|")
    table.unique("JobID")
    resources = table.words["AllocTRES"]
    gpus = np.asarray([_gpus(name) for name in resources.names], dtype=np.float64)[resources.codes]
    table.leave_out(gpus == 0, "used no GPU")  # not an error: said in a note, with the number of jobs
    return table.part(
        table["Submit"],
        table["ElapsedRaw"],
        gpus,
        calendar=True,  # gpuloom counts from the first submission
        job_ids=table.texts["JobID"],
        user=table.words["User"],
        group=table.words["Partition"],
    )


def _gpus(resources: str) -> int:
    found = re.search(r"(?:^|,)gres/gpu=(\d+)", resources)
    return int(found.group(1)) if found else 0


READER = Reader(
    id="slurm",
    title="Slurm accounting (sacct -P)",
    help="User, partition and allocated GPUs.",
    detect=detect,
    read=read,
)
