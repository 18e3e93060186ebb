"""Synergy's deployment traces. No header: id, model, submission, duration (seconds), GPUs.

Source: github.com/msr-fiddle/synergy (OSDI '22), `deploy_trace*.csv`.
"""

from __future__ import annotations

import re

from gpuloom.files.source import Head, Part, ReadOptions, Source
from gpuloom.files.table import Column, read_table
from gpuloom.traces.base import Reader

NAMES = ("id", "model", "submit", "duration", "gpus")
COLUMNS = (
    Column("id", "text"),
    Column("model", "word"),
    Column("submit", minimum=0),
    Column("duration", minimum=0),
    Column("gpus", "whole", minimum=1),
)
_NUMBER = r"\s*\d+(?:\.\d+)?\s*"
_ROW = re.compile(rf"\s*\d+\s*,\s*[A-Za-z][^,]*,{_NUMBER},{_NUMBER},\s*\d+\s*", re.ASCII)


def detect(head: Head) -> bool:
    """Whether one of the first lines has the shape of a row (a first row that is bad is for `read`)."""
    return head.fields(",") == len(NAMES) and any(_ROW.fullmatch(line) for line in head.lines)


def read(source: Source, options: ReadOptions) -> Part:
    table = read_table(source, options, COLUMNS, names=NAMES)
    table.unique("id")
    return table.part(
        table["submit"],
        table["duration"],
        table["gpus"],
        job_ids=table.texts["id"],
        model=table.words["model"],
    )


READER = Reader(
    "synergy", "Synergy (OSDI '22)", "Deployment traces, without a header.", detect, read, throughputs=False
)
