"""SenseTime's Helios clusters: `cluster_log.csv` of one cluster, calendar times without a time zone.

Source: github.com/S-Lab-System-Group/HeliosData (SC '21). `duration` is end − start in seconds; failed and
cancelled jobs count with the time they ran.
"""

from __future__ import annotations

import math

import numpy as np

from gpuloom.files.source import Head, Part, ReadOptions, Source
from gpuloom.files.table import Column, read_table
from gpuloom.traces.base import Reader

NOTHING = ("None", "NaT", "NaN", "nan", "null", "Unknown")
COLUMNS = (
    Column("job_id", "text"),
    Column("user", "word", empty=""),
    Column("vc", "word", empty=""),
    Column("gpu_num", "whole", minimum=0),
    Column("submit_time", "time"),
    Column("start_time", "time", empty=math.nan, nothing=NOTHING),
    Column("duration", minimum=0, empty=math.nan, nothing=NOTHING),
)


def detect(head: Head) -> bool:
    return head.has("job_id", "user", "vc", "gpu_num", "submit_time", "start_time", "duration")


def read(source: Source, options: ReadOptions) -> Part:
    table = read_table(source, options, COLUMNS)
    table.unique("job_id")
    table.leave_out(table["gpu_num"] == 0, "used no GPU")
    table.leave_out(np.isnan(table["start_time"]), "never started")
    table.reject(np.isnan(table["duration"]), "duration", lambda row: "duration is empty though the job started")
    return table.part(
        table["submit_time"],
        table["duration"],
        table["gpu_num"],
        calendar=True,
        job_ids=table.texts["job_id"],
        user=table.words["user"],
        group=table.words["vc"],
    )


READER = Reader(
    "helios", "SenseTime Helios (SC '21)", "cluster_log.csv, group = virtual cluster.", detect, read, throughputs=False
)
