"""Microsoft's Philly trace as the Pollux artifact publishes it: one line a job, calendar times.

Source: github.com/petuum/adaptdl, branch osdi21-artifact; upstream msr-fiddle/philly-traces (ATC '19).
"""

from __future__ import annotations

from gpuloom.files.source import Head, Part, ReadOptions, Source
from gpuloom.files.table import Column, read_table
from gpuloom.traces.base import Reader

COLUMNS = (
    Column("timestamp", "time"),
    Column("duration", minimum=0),
    Column("num_gpus", "whole", minimum=1),
    Column("cluster", "word", empty="", optional=True),
)


def detect(head: Head) -> bool:
    return head.has("timestamp", "duration", "num_gpus")


def read(source: Source, options: ReadOptions) -> Part:
    table = read_table(source, options, COLUMNS)
    return table.part(
        table["timestamp"],
        table["duration"],
        table["num_gpus"],
        calendar=True,
        group=table.words.get("cluster"),
    )


READER = Reader(
    "philly", "Microsoft Philly (ATC '19)", "Calendar times, group = virtual cluster.", detect, read, throughputs=False
)
