"""bench/figures.py: results are kept and used again, and a page can be made from what is known."""

from __future__ import annotations

import importlib
import json
import math
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from gpuloom.core.workload import Labels, Workload

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    monkeypatch.setattr(sys, "path", [*sys.path])  # the module adds to it
    return importlib.import_module("figures")


@pytest.fixture
def trace(figures: ModuleType, monkeypatch: pytest.MonkeyPatch) -> str:
    """A small trace in place of trace3."""
    n = 12
    workload = Workload(
        "small",
        np.arange(n) * 10.0,
        np.linspace(100.0, 200.0, n),
        np.full(n, 32, dtype=np.int32),
        model=Labels.of(["a", "b"] * (n // 2)),
        iteration_s=np.ones(n),
        stage_s=np.array([[0.8, 0.1, 0.0], [0.1, 0.8, 0.0]] * (n // 2)),
    )
    monkeypatch.setattr(figures, "load", lambda trace, folder: workload)
    return "trace3"


@pytest.mark.slow
def test_a_run_is_kept_until_the_code_changes(
    figures: ModuleType, trace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "out" / "figures.json"
    grid = figures.Grid(tmp_path, store)
    assert math.isnan(grid.get(trace, "muri-s").avg_jct_s)
    assert math.isnan(grid.get(trace, "srtf", "own").avg_jct_s)
    grid.run(1)
    assert "2 of 2 runs to do" in capsys.readouterr().err
    found = grid.get(trace, "muri-s")
    assert found.jobs == 12
    assert found.makespan_s > 0
    again = figures.Grid(tmp_path, store)
    assert again.get(trace, "muri-s") == found
    again.run(1)
    assert "0 of 1 runs to do" in capsys.readouterr().err
    monkeypatch.setattr(figures, "code_of", lambda policy: "other code")
    assert math.isnan(again.get(trace, "muri-s").avg_jct_s)


@pytest.mark.slow
def test_what_fails_is_told_and_stops_nothing(figures: ModuleType, trace: str, tmp_path: Path) -> None:
    grid = figures.Grid(tmp_path, tmp_path / "figures.json")
    for policy in ("muri-s:group_size=2", "srtf:placement=nowhere"):
        grid.get(trace, policy)
    grid.run(1)
    assert grid.get(trace, "muri-s:group_size=2").jobs == 12
    assert [(run.policy, why.split(":")[0]) for run, why in grid.failed.items()] == [
        ("srtf:placement=nowhere", "PolicyError")
    ]


def test_a_file_of_results_that_is_torn_is_made_anew(figures: ModuleType, trace: str, tmp_path: Path) -> None:
    store = tmp_path / "figures.json"
    store.write_text('{"trace3', encoding="utf-8")
    grid = figures.Grid(tmp_path, store)
    grid.get(trace, "srtf")
    grid.run(1)
    assert [*json.loads(store.read_text(encoding="utf-8"))] == ["trace3 srtf (compat)"]


def test_the_hash_of_a_policy_leaves_other_policies_out(figures: ModuleType, tmp_path: Path) -> None:
    hashes = [figures.code_of(policy) for policy in ("srtf", "srsf", "muri-s", "muri-l")]
    assert hashes[2] == hashes[3]
    assert len({*hashes}) == 3


def test_sections_are_chosen_in_the_pages_order(figures: ModuleType) -> None:
    assert figures.selected(None) == figures.SECTIONS
    assert figures.selected("speed, fig9") == ("fig9", "speed")
    with pytest.raises(SystemExit, match="unknown sections fig99"):
        figures.selected("fig9,fig99")


def test_a_drawn_trace_is_of_the_same_kind(figures: ModuleType, trace: str, tmp_path: Path) -> None:
    longer = figures.drawn(figures.load(trace, tmp_path), 50)
    assert len(longer) == 50
    assert {*longer.gpus.tolist()} == {32}
    assert (np.diff(longer.submit_s) >= 0).all()
    assert longer.stage_s is not None
    assert longer.stage_s.shape == (50, 3)


@pytest.mark.parametrize(("value", "other", "text"), [(110.0, 100.0, "110.0 (+10.00%)"), (1.0, math.nan, "1.0")])
def test_figures_stand_beside_others(figures: ModuleType, value: float, other: float, text: str) -> None:
    assert figures.beside(value, other) == text


@pytest.mark.data
@pytest.mark.data
def test_every_section_can_be_written_before_anything_has_run(figures: ModuleType, tmp_path: Path, data: Path) -> None:
    page = figures.Page(figures.Grid(data / "muri", tmp_path / "figures.json"))
    text = page.write(figures.SECTIONS, "figures")
    assert text.startswith("# Weaving, measured\n")
    assert len(page.grid.wanted) > 150
    assert {"muri-l:ordering=worst", "muri-l:group_size=2"} <= {run.policy for run in page.grid.wanted}
