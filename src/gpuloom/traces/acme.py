"""Shanghai AI Lab's Acme: `trace_seren.csv` and `trace_kalos.csv`, times with their offset from UTC.

Source: github.com/InternLM/AcmeTrace (NSDI '24). A job's duration is `end_time − start_time`: in Kalos the
column `duration` also counts the time in the queue. `type` (Pretrain, SFT, Evaluation, …) becomes the group.
"""

from __future__ import annotations

import math

import numpy as np

from gpuloom.files.source import Head, Part, ReadOptions, Source
from gpuloom.files.table import Column, read_table
from gpuloom.traces.base import Reader
from gpuloom.traces.helios import NOTHING

COLUMNS = (
    Column("job_id", "text"),
    Column("user", "word", empty=""),
    Column("gpu_num", "whole", minimum=0, empty=0.0, nothing=NOTHING),
    Column("type", "word", empty=""),
    Column("submit_time", "time"),
    Column("start_time", "time", empty=math.nan, nothing=NOTHING),
    Column("end_time", "time", empty=math.nan, nothing=NOTHING),
)


def detect(head: Head) -> bool:
    return head.has("job_id", "node_num", "gpu_num", "type", "state", "submit_time", "start_time", "end_time")


def read(source: Source, options: ReadOptions) -> Part:
    table = read_table(source, options, COLUMNS)
    table.unique("job_id")
    duration_s = table["end_time"] - table["start_time"]
    table.leave_out(table["gpu_num"] == 0, "used no GPU")
    table.leave_out(np.isnan(table["start_time"]), "never started")
    table.leave_out(np.isnan(table["end_time"]), "had no end")
    table.reject(duration_s < 0, "end_time", lambda row: f"end_time is {-duration_s[row]:g} s before start_time")
    return table.part(
        table["submit_time"],
        duration_s,
        table["gpu_num"],
        calendar=True,
        job_ids=table.texts["job_id"],
        user=table.words["user"],
        group=table.words["type"],
    )


READER = Reader(
    "acme", "Shanghai AI Lab Acme (NSDI '24)", "Seren and Kalos, group = kind of work.", detect, read, throughputs=False
)
