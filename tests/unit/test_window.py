"""Averages over a part of a trace's jobs."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloom import report
from gpuloom.cli.main import cli
from gpuloom.core.errors import InputError
from gpuloom.sim import SimResult, windowed
from gpuloom.sim.simulator import simulate
from gpuloom.sim.window import figures, parse_window


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Ten jobs of 100 s each, every 10 s, on one GPU: job i waits 90 i seconds."""
    file = tmp_path / "jobs.csv"
    rows = [f"{10 * i},100,1" for i in range(10)]
    file.write_text("\n".join(["submit_s,duration_s,gpus", *rows]) + "\n")
    return file


def run(trace: Path) -> SimResult:
    return simulate(str(trace), "1x1", "fifo", restart_overhead_s=0.0)


def test_the_window_counts_from_0_and_leaves_its_end_out(trace: Path) -> None:
    whole = run(trace)
    assert whole.window is None
    found = windowed(whole, (2, 5))
    assert found.avg_jct_s == found.median_jct_s == 100 + 90 * 3
    assert found.p99_jct_s == 100 + 90 * 4
    assert math.isnan(found.lower_bound_avg_jct_s)
    assert (found.makespan_s, found.utilization, found.finished) == (whole.makespan_s, whole.utilization, 10)
    assert found.to_dict()["window"] == [2, 5]
    assert "the 3 jobs 2 to 4, counted from 0" in found.notes[-1]


def test_the_window_of_all_jobs_is_the_average_of_all(trace: Path) -> None:
    whole = run(trace)
    found = windowed(whole, (0, 10))
    assert (found.avg_jct_s, found.median_jct_s, found.p99_jct_s) == (
        whole.avg_jct_s,
        whole.median_jct_s,
        whole.p99_jct_s,
    )


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=30), st.data())
def test_parts_make_the_whole(jct: list[float], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(jct)))
    parts = [figures(np.array(part))[0] * len(part) for part in (jct[:cut], jct[cut:]) if part]
    assert sum(parts) / len(jct) == pytest.approx(figures(np.array(jct))[0])


def test_jobs_that_did_not_end_are_left_out(trace: Path) -> None:
    whole = run(trace)
    cut = dataclasses.replace(whole, jct_s=np.where(np.arange(10) < 3, whole.jct_s, np.nan), interrupted=True)
    assert windowed(cut, (2, 5)).avg_jct_s == whole.jct_s[2]
    assert math.isnan(windowed(cut, (5, 8)).avg_jct_s)


@pytest.mark.parametrize("text", ["5", "5-5", "6-5", "-1-5", "a-b", "1-2-3", ""])
def test_windows_that_are_none(text: str) -> None:
    with pytest.raises(InputError, match="must be FIRST-END"):
        parse_window(text)


def test_the_command(trace: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["compare", str(trace), "--cluster", "1x1", "--policies", "fifo", "--restart-overhead", "0", "-q"]
    page = tmp_path / "page.html"
    cli.main([*words, "--window", "2-5", "--html", str(page)], standalone_mode=False)
    assert "of the 3 jobs 2 to 4" in capsys.readouterr().out
    assert "of the 3 jobs 2 to 4" in page.read_text(encoding="utf-8")
    cli.main([*words, "--window", "2-5", "--json", "-"], standalone_mode=False)
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["window"], found["avg_jct_s"], found["lower_bound_avg_jct_s"]) == ([2, 5], 370, None)
    with pytest.raises(InputError, match="must end at 10"):
        cli.main([*words, "--window", "2-11"], standalone_mode=False)


def test_csv_has_the_window(trace: Path, tmp_path: Path) -> None:
    target = tmp_path / "table.csv"
    report.write_csv([windowed(run(trace), (2, 5))], str(target))
    head, row = target.read_text().splitlines()
    assert "window" in head.split(",")
    assert "2" in row
