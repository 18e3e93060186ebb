"""ITP: two months of ten Microsoft clusters. Source: github.com/microsoft/elasticflow-traces (ASPLOS '23)."""

from __future__ import annotations

from gpuloom.files.source import Head, Part, ReadOptions, Source
from gpuloom.files.table import Column, read_table
from gpuloom.traces.base import Reader

COLUMNS = (
    Column("job_id", "text"),
    Column("submission_time", minimum=0),
    Column("duration", minimum=0),
    Column("num_gpu", "whole", minimum=1),
)


def detect(head: Head) -> bool:
    return head.has("job_id", "submission_time", "duration", "num_gpu") and not head.has("model_name")


def read(source: Source, options: ReadOptions) -> Part:
    table = read_table(source, options, COLUMNS)
    table.unique("job_id")
    return table.part(
        table["submission_time"],
        table["duration"],
        table["num_gpu"],
        job_ids=table.texts["job_id"],
    )


READER = Reader(
    "itp", "Microsoft ITP (ASPLOS '23)", "Real jobs of ten clusters, two months.", detect, read, throughputs=False
)
