"""Lets gpuloom read a lab's sheet of booked GPUs: one line a booking, fields separated by ';'."""

from __future__ import annotations

import numpy as np

from gpuloom.traces import Column, Head, Part, Reader, ReadOptions, Source, read_table

COLUMNS = (
    Column("booking", "text"),
    Column("person", "word", empty=""),
    Column("project", "word", empty=""),
    Column("asked", "time"),
    Column("minutes", minimum=0),
    Column("gpus", "word", empty=""),  # '0', '4-5', 'none'
)


def detect(head: Head) -> bool:
    """Told by the header alone: the name of the file says nothing."""
    return bool(head.lines) and {column.name for column in COLUMNS} <= set(head.lines[0].split(";"))


def read(source: Source, options: ReadOptions) -> Part:
    # read_table finds fields that are missing or no numbers, and remembers line and column of each.
    table = read_table(source, options, COLUMNS, delimiter=";")
    table.unique("booking")
    booked = table.words["gpus"]
    gpus = np.asarray([_gpus(name) for name in booked.names], dtype=np.float64)[booked.codes]
    table.leave_out(gpus == 0, "used no GPU")  # not an error: said in a note, with the number of jobs
    return table.part(
        table["asked"],
        60 * table["minutes"],
        gpus,
        calendar=True,  # gpuloom counts from the first submission
        job_ids=table.texts["booking"],
        user=table.words["person"],
        group=table.words["project"],
    )


def _gpus(booked: str) -> int:
    """GPUs in '0', '4-5' or 'none'."""
    first, _, last = booked.partition("-")
    return int(last or first) - int(first) + 1 if first.isdecimal() else 0


READER = Reader(
    id="bookings",
    title="a lab's bookings",
    help="Person, project and booked GPUs.",
    detect=detect,
    read=read,
)
