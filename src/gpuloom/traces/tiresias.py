"""Tiresias' trace `60_job.csv`: the jobs of its testbed run, in seconds.

Source: github.com/SymbioticLab/Tiresias, `simulator/trace-data`. The files `yarn-gput*.csv` beside it are
samples of GPU time for the Gittins index, not traces.
"""

from __future__ import annotations

from gpuloom.core.errors import TraceError
from gpuloom.files.source import Head, Part, ReadOptions, Source
from gpuloom.files.table import Column, read_table
from gpuloom.traces.base import Reader

COLUMNS = (
    Column("job_id", "text"),
    Column("num_gpu", "whole", minimum=1),
    Column("submit_time", minimum=0),
    Column("model_name", "word", empty="", optional=True),
    Column("duration", minimum=0),
)


def detect(head: Head) -> bool:
    wanted = head.has("job_id", "num_gpu", "submit_time", "iterations", "model_name", "duration", "interval")
    return wanted and not head.has("iteration_time")


def read(source: Source, options: ReadOptions) -> Part:
    if source.head.header == {"duration"}:
        raise TraceError(
            "holds samples of GPU time for the gittins policy, not jobs: pass it as --policy gittins:samples=FILE",
            file=source.name,
        )
    table = read_table(source, options, COLUMNS)
    table.unique("job_id")
    return table.part(
        table["submit_time"],
        table["duration"],
        table["num_gpu"],
        job_ids=table.texts["job_id"],
        model=table.words.get("model_name"),
    )


READER = Reader("tiresias", "Tiresias (NSDI '19)", "The 60 jobs of the testbed run.", detect, read, throughputs=False)
