"""The benches draw their charts as the reports do: SVG with the values given, and no plotting library."""

from __future__ import annotations

import importlib
import math
import re
import sys
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """bench/ can be imported from, matplotlib can't."""
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    return importlib.import_module("charts")


def texts(svg: str) -> list[str]:
    root = ElementTree.fromstring(svg)
    return ["".join(found.itertext()) for found in root.iter("{http://www.w3.org/2000/svg}text")]


def test_bars_are_as_high_as_their_values(bench: ModuleType) -> None:
    frame = bench.Frame(width=400, height=200, top=10, bottom=40)
    panel = bench.pairs(frame, [("one\na", 2.0, 1.0), ("one\nb", 0.5, math.nan)], "Title")
    drawn = bench.page([[panel]])
    bars = re.findall(r'<rect x="[\d.]+" y="([\d.]+)" width="[\d.]+" height="([\d.]+)"', drawn)
    heights = [float(height) for _, height in bars if float(height) != 12]  # without the legend's
    assert heights == pytest.approx([150 * value / 2.2 for value in (2.0, 1.0, 0.5)], abs=0.06)
    assert all(float(y) + float(height) == pytest.approx(160, abs=0.11) for y, height in bars if float(height) != 12)
    said = texts(drawn)
    assert {"Title", "2.00", "1.00", "0.50", "a", "b", "gpuloom", "published"} <= set(said)
    assert said.count("one") == 1  # a group is named once
    assert "nan" not in drawn


def test_curves_go_through_their_points_inside_their_bands(bench: ModuleType) -> None:
    frame = bench.Frame(width=300, height=200, left=50, right=50, top=0, bottom=100)
    curve = bench.Curve(0, "first", [0, 10], [1, 2], [0.5, 1.0], [1.5, 3.0])
    panel = bench.lines(
        frame, "Title", [curve], bench.Ticks((0, 10), ("0", "10")), "x", frame.y(0, 4), bench.Ticks((), ()), "y"
    )
    drawn = bench.page([[panel]])
    assert 'd="M50.0 75.0L250.0 50.0"' in drawn
    assert 'd="M50.0 62.5L250.0 25.0L250.0 75.0L50.0 87.5"' in drawn
    assert "first" in texts(drawn)


def test_the_pictures_of_the_weaving_page(bench: ModuleType, tmp_path: Path) -> None:
    figures = importlib.import_module("figures")
    pair = [("trace1\nSRTF", 1.5, 1.25)]
    bars = dict.fromkeys(("Muri-S", "Muri-L", "fig11", "fig12"), pair)
    for name in ("Muri-S", "Muri-L"):
        bars[f"fig13 {name}"] = [(str(kinds), 1.0 * kinds, 1.5) for kinds in (1, 2, 3, 4)]
        for trace in ("trace1", "trace3"):
            bars[f"fig14 {trace} {name}"] = [("0", 1.0, 1.0), ("1", 1.2, 1.6)]
            bars[f"fig14 low {trace} {name}"] = [("1", 0.9, 0.0)]
    made = figures.plots(bars, tmp_path / "figures")
    assert [path.name for path in made] == ["improvement.svg", "ablations.svg"]
    assert {"1.50", "1.25"} <= set(texts(made[0].read_text(encoding="utf-8")))
    assert {"Muri-S over SRTF, published", "Muri-L, trace1"} <= set(texts(made[1].read_text(encoding="utf-8")))


def test_the_picture_of_the_learning_page(bench: ModuleType, tmp_path: Path) -> None:
    learning = importlib.import_module("learning")
    rng = np.random.default_rng(1)
    reward, jct_s = rng.uniform(1, 2, (4, 300)), rng.uniform(0.5, 1.5, (4, 300)) * np.geomspace(600, 36000, 300)
    runs = learning.Runs(reward, jct_s, np.zeros(1), np.zeros(1))
    reward, jct = learning.bands(runs)
    for middle, low, high in (reward, jct):
        assert middle.shape == (3,)
        assert (low < middle).all()
        assert (middle < high).all()
    learning.plot(tmp_path / "learning.svg", {"rl": (reward, jct), "random": (reward, jct)})
    said = texts((tmp_path / "learning.svg").read_text(encoding="utf-8"))
    assert {"Mean reward", "Mean completion time", "rl", "random", "1 h"} <= set(said)
