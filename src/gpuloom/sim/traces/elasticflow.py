"""ElasticFlow's traces, in seconds, in the two headers that were published.

Sources: github.com/gudiandian/ElasticFlow-artifact (`submit_time`, `ddl`) and
github.com/microsoft/elasticflow-traces (`submission_time`, `deadline`). Deadlines are not read.
"""

from __future__ import annotations

from gpuloom.sim.traces.base import Head, Part, Reader, ReadOptions, Source
from gpuloom.sim.traces.table import Column, read_table


def detect(head: Head) -> bool:
    common = head.has("job_id", "model_name", "batch_size", "num_gpu", "duration")
    return common and (head.has("submit_time", "ddl") or head.has("submission_time", "deadline"))


def read(source: Source, options: ReadOptions) -> Part:
    submit = "submission_time" if source.head.has("submission_time") else "submit_time"
    table = read_table(
        source,
        options,
        (
            Column("job_id", "text"),
            Column(submit, minimum=0),
            Column("model_name", "word"),
            Column("num_gpu", "whole", minimum=1),
            Column("duration", minimum=0),
        ),
    )
    table.unique("job_id")
    if source.head.has("ddl") or source.head.has("deadline"):
        table.notes.append(f"{source.name}: deadlines are not read")
    return table.part(
        table[submit],
        table["duration"],
        table["num_gpu"],
        job_ids=table.texts["job_id"],
        model=table.words["model_name"],
    )


READER = Reader("elasticflow", "ElasticFlow (ASPLOS '23)", "Jobs with models; no deadlines.", detect, read)
