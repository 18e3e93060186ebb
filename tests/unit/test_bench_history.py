"""The history of benchmarks: a line a run, and what got slower."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"


@pytest.fixture
def history(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCH))
    sys.modules.pop("history", None)
    import history

    monkeypatch.setattr(history, "commit", lambda: "abc1234+")
    return history


def test_runs_are_kept_as_ratios_to_the_yardstick(history: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    assert history.add({"a": (1.0, 0.5), "b": (0.2, 0.25)}, path) == [
        "nothing got slower (0 of 2 figures were measured before)"
    ]
    assert history.add({"a": (1.2, 0.5)}, path) == ["nothing got slower (1 of 1 figures were measured before)"]
    first, second = history.read(path)
    assert first["ratios"] == {"a": 2.0, "b": 0.8}
    assert second["ratios"] == {"a": 2.4}
    assert (first["commit"], first["yard_s"]) == ("abc1234+", 0.375)


def test_a_figure_beyond_chance_is_named_with_the_worst_first(history: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    history.add(dict.fromkeys("abc", (1.0, 0.5)), path)
    assert history.add({"a": (1.3, 0.5), "b": (2.0, 0.5), "c": (2.5, 1.0)}, path) == [
        "slower, 2.00 times the median of the last runs: b",
        "slower, 1.30 times the median of the last runs: a",
    ]


def test_the_median_of_the_last_five_is_what_counts(history: ModuleType) -> None:
    runs = [{"ratios": {"a": ratio}} for ratio in (100.0, 1.0, 1.0, 9.0, 1.0, 9.0)] + [{"ratios": {}}]
    assert history.slower(runs, {"ratios": {"a": 2.0}}) == [("a", 2.0)]
    assert history.slower(runs, {"ratios": {"a": 1.2}}) == []


def test_the_history_that_we_have_can_be_read(history: ModuleType) -> None:
    for run in history.read():
        assert set(run) == {"date", "commit", "python", "yard_s", "ratios"}
        assert all(ratio > 0 for ratio in run["ratios"].values())
