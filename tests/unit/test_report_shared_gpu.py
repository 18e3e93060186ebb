"""The picture of a shared GPU: what is drawn stands where the numbers say, to the pixel."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from gpuloom.core.errors import InputError
from gpuloom.report.shared_gpu import save_timeline, sms_over_time
from gpuloom.sharing.simulate import Outcome, Span

WINDOW = (1.0, 1.09375)
"""Of 1,500 parts, each is 62.5 µs."""
HIGH, BEST, WAIT, QUEUE, GREY = "#c2410c", "#2f6fb0", "#d9b44a", "#b9cfe4", "#5f6670"


def ns(ms: float) -> float:
    """Of the window's beginning."""
    return 1e9 + ms * 1e6


def outcome(rule: str, *spans: Span, served: Any = ()) -> Outcome:
    plain = Outcome(**{field.name: 0 for field in fields(Outcome)})
    return replace(plain, rule=rule, p99_over_alone=1.02, best_effort_over_alone=0.494, spans=spans, served=served)


class Picture:
    """What was drawn, of 100 SMs. Between the axes lie 1030 pixels of 93.75 ms and 158 of 136 SMs."""

    def __init__(self, path: Path, *outcomes: Outcome) -> None:
        save_timeline(outcomes, WINDOW, 100, path, "a < b")
        self.root = ElementTree.fromstring(path.read_text())
        self.title, *self.panels, self.keys = [one for one in self.root if one.tag.endswith(("}g", "}text"))]

    def texts(self, panel: int) -> list[str]:
        return [one.text or "" for one in self.panels[panel] if one.tag.endswith("}text")]

    def drawn(self, colour: str, panel: int = 0) -> list[tuple[str, str, str]]:
        """(thickness, dashes, path) of all that has a colour."""
        paths = [one for one in self.panels[panel] if colour in (one.get("fill"), one.get("stroke"))]
        return [(p.get("stroke-width", ""), p.get("stroke-dasharray", ""), p.get("d", "")) for p in paths]


def x(ms: float) -> str:
    return f"{56 + 1030 * ms / 93.75:.2f}"


def y(sms: float) -> str:
    return f"{184 - 158 * sms / 136:.1f}"


def bar(row: float, *spans: tuple[float, float]) -> str:
    return "".join(f"M{x(low)} {y(row)}H{x(high)}" for low, high in spans)


def test_sms_are_held_from_their_begin_to_their_end(tmp_path: Path) -> None:
    spans = [
        Span("high", ns(-5), ns(2), 10),  # began before
        Span("high", ns(10), ns(30), 40),
        Span("best-effort", ns(20), ns(50), 60),
        Span("best-effort", ns(90), ns(200), 25),  # goes on behind the edge
    ]
    picture = Picture(tmp_path / "t.svg", outcome("gpuloom", *spans))
    assert picture.drawn(WAIT) == picture.drawn(QUEUE) == []
    ((_, _, high),) = picture.drawn(HIGH)
    assert high == (f"M56.0 184.0H{x(0)}V{y(10)}H{x(2)}V184.0H{x(10)}V{y(40)}H{x(30)}V184.0")
    ((_, _, both),) = picture.drawn(BEST)
    assert both == (
        f"M56.0 184.0H{x(0)}V{y(10)}H{x(2)}V184.0H{x(10)}V{y(40)}H{x(20)}V{y(100)}H{x(30)}V{y(60)}H{x(50)}V184.0"
        f"H{x(90)}V{y(25)}H{x(93.75)}V184.0"
    )
    assert [one.get("fill") for one in picture.panels[0] if one.get("fill") in (HIGH, BEST)] == [BEST, HIGH], "in front"


def test_launches_that_wait_by_why_they_do(tmp_path: Path) -> None:
    spans = [
        Span("hold", ns(5), ns(6), "sms"),
        Span("hold", ns(40), ns(42.5), "window"),
        Span("hold", ns(60), ns(70), "latency"),
        Span("hold", ns(80), ns(80), "sms"),  # no time at all
        Span("hold", ns(100), ns(110), "sms"),  # behind the edge
    ]
    picture = Picture(tmp_path / "t.svg", outcome("gpuloom", *spans))
    assert picture.drawn(WAIT) == [("9", "", bar(106.5, (5, 6), (60, 70)))]
    assert picture.drawn(QUEUE) == [("9", "", bar(106.5, (40, 42.5)))]
    assert picture.drawn(HIGH)[0][2] == "M56.0 184.0"


def test_requests_wait_and_then_run_in_three_rows(tmp_path: Path) -> None:
    served = tuple((ns(10 * i - 5), ns(10 * i), ns(10 * i + 7)) for i in range(4))
    picture = Picture(tmp_path / "t.svg", outcome("gpuloom", served=served))
    expected = []
    for i, row in enumerate((114.0, 121.0, 128.0, 114.0)):
        waited = [("1", "1 2", bar(row, (10 * i - 5, 10 * i)))] if i else []  # before the window
        expected += [*waited, ("3", "", bar(row, (10 * i, 10 * i + 7)))]
    assert picture.drawn(GREY) == expected


def test_one_panel_for_each_rule_with_its_axes(tmp_path: Path) -> None:
    picture = Picture(tmp_path / "t.svg", outcome("orion"), outcome("gpuloom"))
    assert (picture.root.get("width"), picture.root.get("height")) == ("1100", "514")
    title = picture.title
    assert (title.text, title.get("class"), title.get("x"), title.get("y")) == ("a < b", "head", "12", "20")
    assert [one.get("transform") for one in picture.panels] == ["translate(0 36)", "translate(0 250)"]
    assert picture.keys.get("transform") == "translate(0 482)"
    told = "p99 1.02 x alone, training 0.49 of alone"
    assert picture.texts(0) == [f"orion: {told}", "0", "50", "100", "SMs", ""]
    ticks = ["0", "20", "40", "60", "80"]
    assert picture.texts(1) == [f"gpuloom: {told}", "0", "50", "100", "SMs", *ticks, "milliseconds"]
    name = picture.panels[0][0]
    assert (name.get("class"), name.get("x"), name.get("y")) == ("row", "56", "12")
    places = [one.get("y") for one in picture.panels[1] if one.text in ("50", "100")]
    assert places == [y(50), y(100)]
    names = [one.text for one in picture.keys.iter() if one.text]
    assert names == [
        "SMs of the service",
        "SMs of the training job",
        "a launch is held",
        "held: enough is queued",
        "request waits, then runs",
    ]
    colours = [one.get("fill") for one in picture.keys.iter() if one.tag.endswith("rect")]
    assert colours == [HIGH, BEST, WAIT, QUEUE, GREY]


def test_parts_that_are_held_for_some_of_the_time() -> None:
    def held(*spans: Span) -> list[float]:
        found: list[float] = sms_over_time(spans, "high", (1.0, 1.0078125), 4).tolist()  # 1.953125 ms each
        return found

    part = 1.953125
    assert held(Span("high", ns(0.25 * part), ns(0.75 * part), 8)) == [4, 0, 0, 0]
    assert held(Span("high", ns(0.5 * part), ns(3.25 * part), 8)) == [4, 8, 8, 2]
    assert held(Span("high", ns(part), ns(2 * part), 8), Span("high", ns(1.5 * part), ns(9 * part), 2)) == [0, 9, 2, 2]
    assert held(Span("best-effort", ns(0), ns(part), 8), Span("hold", ns(0), ns(part), "sms")) == [0, 0, 0, 0]
    assert held(Span("high", ns(-9), ns(-1), 8), Span("high", ns(20), ns(30), 8)) == [0, 0, 0, 0]
    assert len(sms_over_time((), "high", WINDOW)) == 1500
    assert np.all(sms_over_time((Span("high", ns(-1), ns(99), 3),), "high", WINDOW) == 3)


def test_nothing_to_draw(tmp_path: Path) -> None:
    for outcomes, window in (([], WINDOW), ([outcome("a")], (1.0, 1.0)), ([outcome("a")], (1.0, 0.5))):
        with pytest.raises(InputError, match="at least one outcome and a time above 0"):
            save_timeline(outcomes, window, 100, tmp_path / "t.svg", "")
    with pytest.raises(InputError, match=r"ends in \.png"):
        save_timeline([outcome("a")], WINDOW, 100, tmp_path / "t.gif", "")
