"""The tables of jobs, nodes and GPUs: numbers stand at the right, and a narrow terminal cuts names, not numbers."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fake_service import FakeService
from gpuloom.cli.live_tables import (
    GPU_COLUMNS,
    JOB_COLUMNS,
    NODE_COLUMNS,
    Column,
    gpu_columns,
    rate_columns,
    rich_table,
)
from gpuloom.cli.show import ATTEMPT_COLUMNS
from gpuloom.live.submission.spec import job_spec

USAGE = {
    "gpu_utilization": 91.0,
    "gpu_memory_mib": 2048.0,
    "cpu_cores": 1.5,
    "memory_mib": 512.0,
    "read_mib_per_s": 10.0,
    "write_mib_per_s": 0.5,
}
NUMBER = re.compile(r"(< |late )?[\d,.]+(/[\d,.]+|%|s|m|h|d)?( [\d.]+(s|m|h))?")
Table = tuple[Sequence[Column[Any]], Sequence[Any]]


def tables(home: Path) -> dict[str, Table]:
    """Every list of the live commands, of machines with all that can be measured."""
    service = FakeService(home)
    name = "a-name-that-is-much-longer-than-any-terminal-of-this-test-is-wide-" * 2
    one = job_spec({"command": ["train"], "name": name, "gpus": 2})
    (job,) = service.submit([one], user="a-user-with-a-long-name")[0]
    service.run(job)
    seen = {"waited_s": 5.0, "run_s": 70.0, "progress": {"fraction": 0.5}, "usage": USAGE, "held_s": 7.0}
    ends = {"predicted_end_s": 100.0, "overrun_s": 0.0, "predicted_end_s_high": None}
    view: Any = {**service.job(job), **seen, **ends}
    (node,) = service.nodes()
    gpu = {**node["gpus"][0], "model": "H100", "utilization": 91.0, "memory_used_mib": 512, "memory_mib": 2048}
    gpu |= {"temperature_c": 61.0, "power_w": 350.0, "reason": "out of order since last week, somebody has been told"}
    machine: Any = {**node, "kind": "gpu", "gpus": [gpu], "cpus": 8, "cpu_percent": 12.0, "memory_mib": 64_000}
    machine |= {"memory_used_mib": 512, "disk_free_mib": 9_000, "load": 0.5, "reason": "a fan"}
    attempt = {**service.show(job)["attempts"][0], "ended_s": 80.0, "held_s": 70.0, "peak_memory_mib": 512.0}
    return {
        "jobs": (JOB_COLUMNS, [view]),
        "rates": (rate_columns([machine], 50.0), [view]),
        "GPUs": (gpu_columns([machine]), [(machine, gpu)]),
        "nodes": (NODE_COLUMNS, [machine]),
        "attempts": (ATTEMPT_COLUMNS, [attempt]),
    }


@pytest.mark.parametrize("name", ["jobs", "rates", "GPUs", "nodes", "attempts"])
def test_numbers_stand_at_the_right_and_words_at_the_left(name: str, tmp_path: Path) -> None:
    columns, rows = tables(tmp_path)[name]
    for column in columns:
        if column.title in ("jobs", "busy", "started"):  # lists, and a time in words
            continue
        (cell,) = map(column.cell, rows)
        if cell:
            assert column.right == bool(NUMBER.fullmatch(cell)), (column.title, cell)


def drawn(columns: Sequence[Column[Any]], rows: Sequence[Any], width: int) -> list[str]:
    file = io.StringIO()
    Console(file=file, width=1000, highlight=False).print(rich_table(columns, rows, width))
    return [line.rstrip() for line in file.getvalue().splitlines()]


@pytest.mark.parametrize(
    ("name", "width"),
    [(name, width) for name in ("jobs", "nodes", "GPUs", "attempts") for width in (60, 80, 100, 120)]
    + [("rates", 85), ("rates", 100), ("rates", 120)],
)
def test_a_list_fits_the_terminal_and_cuts_no_number(name: str, width: int, tmp_path: Path) -> None:
    columns, rows = tables(tmp_path)[name]
    lines = drawn(columns, rows, width)
    assert max(map(len, lines)) <= width
    kept = [column for column in columns if column.least <= width]
    for column in kept:
        assert column.title[:3] in lines[0]
        if column.right:
            (cell,) = map(column.cell, rows)
            assert cell in lines[1]


def test_which_columns_a_narrow_terminal_goes_without(tmp_path: Path) -> None:
    """What says least about a job goes first."""
    columns, rows = tables(tmp_path)["jobs"]
    gone = {
        c.title: next(w for w in range(200) if re.search(rf"\b{c.title}", drawn(columns, rows, w)[0])) for c in columns
    }
    assert [title for title, _ in sorted(gone.items(), key=lambda one: one[1]) if gone[title] > 50] == [
        "waited",
        "gpus",
        "where",
        "done",
        "user",
    ]


def test_slots_have_no_columns_of_gpus(tmp_path: Path) -> None:
    (machine,) = FakeService(tmp_path).nodes()
    slots: Any = {**machine, "kind": "cpu"}
    of_gpus = {"GPU %", "GiB", "°C", "W", "model"}
    assert {c.title for c in GPU_COLUMNS} - {c.title for c in gpu_columns([slots])} == of_gpus
    assert list(gpu_columns([slots, {**machine, "kind": "gpu"}])) == list(GPU_COLUMNS)
    assert list(gpu_columns([])) == list(GPU_COLUMNS)
