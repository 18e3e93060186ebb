"""Muri's traces: Philly virtual clusters with a model and its stage times for every job.

Source: github.com/Rivendile/Muri (SIGCOMM '22 artifact), `trace-data/*.csv`. Times are ms.
A job's run time alone is `iterations · iteration_time · 1.015 / 1000` s: the released simulator slows every
iteration by 1.5 %. The column `duration` is only its first guess at a job's remaining time.
"""

from __future__ import annotations

import numpy as np

from gpuloom.files.source import Head, Part, ReadOptions, Source
from gpuloom.files.table import Column, read_table
from gpuloom.traces.base import Reader

OVERHEAD = 1.015
STAGES = ("resource_time_0", "resource_time_1", "resource_time_2")  # data loading, GPU compute, network
COLUMNS = (
    Column("job_id", "text"),
    Column("num_gpu", "whole", minimum=1),
    Column("submit_time", minimum=0),
    Column("iterations", minimum=0),
    Column("duration", minimum=0, optional=True),
    Column("model_name", "word"),
    Column("iteration_time", above=0),
    *(Column(stage, minimum=0) for stage in STAGES),
    Column("priority", "whole", minimum=0, optional=True),
)


def detect(head: Head) -> bool:
    return head.has("job_id", "num_gpu", "submit_time", "iterations", "iteration_time", *STAGES)


def read(source: Source, options: ReadOptions) -> Part:
    table = read_table(source, options, COLUMNS)
    table.unique("job_id")
    iteration_s = table["iteration_time"] * OVERHEAD / 1000
    return table.part(
        table["submit_time"] / 1000,
        table["iterations"] * iteration_s,
        table["num_gpu"],
        job_ids=table.texts["job_id"],
        model=table.words["model_name"],
        estimate_s=table["duration"] / 1000 if "duration" in table else None,
        iteration_s=iteration_s,
        stage_s=np.stack([table[stage] / 1000 for stage in STAGES], axis=1),
        priority=table.ints("priority") if "priority" in table else None,
    )


READER = Reader(
    "muri", "Muri (SIGCOMM '22)", "Philly jobs with models and stage times, in ms.", detect, read, throughputs=False
)
