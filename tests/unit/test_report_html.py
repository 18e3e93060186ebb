"""The page is whole, self-contained, safe, and says what it must."""

from __future__ import annotations

import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from gpuloom.core.errors import InputError
from gpuloom.report.html import render, write_html
from gpuloom.report.metrics import METRICS
from gpuloom.sim.result import SimResult
from report_builders import make_result, make_segments, make_timeline

VOID = {"meta", "input", "br", "link", "img"}
EVIL = "</script><script>alert('x')</script>&\"'"


class Page(HTMLParser):
    """Collects elements and texts, and insists that tags nest."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append((self.open[-1] if self.open else "", data))

    def ids(self) -> list[str]:
        return [str(attrs["id"]) for _, attrs in self.tags if "id" in attrs]

    def count(self, tag: str, **wanted: str) -> int:
        return sum(t == tag and all(a.get(k.rstrip("_")) == v for k, v in wanted.items()) for t, a in self.tags)

    def text(self) -> str:
        return " ".join(data for tag, data in self.texts if tag not in ("script", "style"))

    def data(self) -> dict[str, object]:
        start = next(i for i, (t, a) in enumerate(self.tags) if t == "script" and a.get("type") == "application/json")
        assert self.tags[start][1]["id"] == "data"
        loaded: dict[str, object] = json.loads(next(data for tag, data in self.texts if tag == "script"))
        return loaded


def three() -> list[SimResult]:
    return [make_result(), make_result(policy="sjf", avg_jct_s=90.0), make_result(policy="srtf", restarts=4)]


def test_the_page_has_every_part() -> None:
    page = Page(render(three()))
    ids = page.ids()
    assert len(ids) == len(set(ids))
    parts = {
        "summary",
        "jct",
        "relative",
        "queue",
        "busy",
        "quantiles",
        "classes",
        "gantts",
        "notes",
        "settings",
        "data",
    }
    assert parts <= set(ids)
    assert page.count("input", type="checkbox") == page.count("input", type="radio") == 3
    assert page.count("svg", class_="chart") == 4 + 2 * 3
    assert page.count("table", class_="sortable") == 3
    text = page.text()
    for metric in METRICS:
        assert metric.definition in text
        for result in three():
            assert metric.text(metric.value(result)) in text
    for said in ("3 policies on tiny", "p10", "max", "restart_s", "30.0", "8 GPUs", "n0 (4 GPUs), n1 (4 GPUs)"):
        assert said in text


def test_of_one_policy_there_is_nothing_to_choose() -> None:
    page = Page(render([make_result()]))
    assert page.count("input", type="radio") == 0
    assert page.count("svg", class_="chart") >= 2
    assert "Jobs: in order of submission" in page.text()


def test_every_chart_has_a_title_and_description() -> None:
    page = Page(render(three()))
    charts = [attrs for tag, attrs in page.tags if tag == "svg" and attrs.get("class") == "chart"]
    for attrs in charts:
        assert attrs["role"] == "img"
        assert set(str(attrs["aria-labelledby"]).split()) <= set(page.ids())
        assert attrs["viewbox"]


def test_nothing_comes_from_elsewhere() -> None:
    text = render(three())
    assert not re.search(r"https?:|//[a-z]|@import|url\(|\bsrc=|<link|<img|<iframe", text.replace("// ", ""))
    assert "default-src 'none'" in text
    assert all("href" not in attrs for _, attrs in Page(text).tags)


def test_names_from_users_are_text() -> None:
    result = make_result(
        policy=EVIL,
        trace=EVIL,
        cluster=EVIL,
        job_ids=(EVIL, "b", "c"),
        node_names=(EVIL, "n1"),
        settings={EVIL: EVIL, "list": [EVIL]},
        interrupted=True,
    )
    text = render([result, make_result(policy="sjf")])
    page = Page(text)
    assert page.count("script") == 2
    assert "<script>alert" not in text
    assert not any(name.startswith("on") for _, attrs in page.tags for name in attrs)
    assert page.text().count(EVIL) >= 6
    names = page.data()["names"]
    assert isinstance(names, list)
    assert str(names[0]).startswith(EVIL)


def test_the_embedded_data_agrees_with_the_result() -> None:
    charts = Page(render([make_result()])).data()["charts"]
    assert isinstance(charts, dict)
    assert charts["jct"]["series"] == [{"x": [60.5, 100, 390], "y": [0.3333, 0.6667, 1]}]
    queue = charts["queue"]["series"][0]
    assert queue["end"] == 400
    # The mean over the bins is the time-weighted mean: one job waits from 10 to 100 s of 400 s.
    assert np.mean(queue["y"]) == pytest.approx(90 / 400)
    assert np.mean(charts["busy"]["series"][0]["y"]) * 8 == pytest.approx(
        (20 * 4 + 60.5 * 5 + 19.5 * 4 + 300 * 8) / 400
    )


def test_a_run_without_segments_says_so() -> None:
    text = Page(render([make_result(segments=None), make_result(policy="sjf")])).text()
    assert text.count("The Gantt chart was not recorded in this run.") == 1
    assert text.count("Who ran where was not recorded in this run.") == 1
    assert "The Gantt chart was not recorded" in Page(render([make_result(segments=None)])).text()


def test_an_interrupted_run_is_marked() -> None:
    cut = make_result(
        policy="srtf",
        interrupted=True,
        start_s=[0.0, math.nan, 20.0],
        end_s=[100.0, math.nan, math.nan],
        segments=make_segments([(0, 0.0, 100.0, 0, 15), (2, 20.0, math.nan, 1, 1)]),
    )
    text = render([make_result(), cut])
    assert "(interrupted, 1 of 3 jobs)" in Page(text).text()
    assert "interrupted: not compared" in text
    assert "nan" not in text.lower().replace("finance", "")


def test_a_run_without_jobs_still_makes_a_page() -> None:
    none = make_result(
        submit_s=[],
        start_s=[],
        end_s=[],
        jobs=0,
        job_ids=(),
        job_gpus=np.zeros(0, np.int32),
        held_gpu_s=np.zeros((0, 1)),
        starts=np.zeros(0, np.int32),
        timeline=make_timeline([], [], []),
        segments=make_segments([]),
    )
    page = Page(render([none, none]))
    assert "0 jobs" in page.text()
    assert "nan" not in page.text().lower()


def test_no_results_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no results"):
        write_html([], tmp_path / "x.html")


def test_the_file_is_written_in_utf8(tmp_path: Path) -> None:
    write_html([make_result(trace="münchen-\udcff")], tmp_path / "x.html")
    assert "münchen-" in (tmp_path / "x.html").read_text(encoding="utf-8")
    assert [path.name for path in tmp_path.iterdir()] == ["x.html"]


@pytest.mark.slow
def test_a_large_comparison_stays_under_three_megabytes() -> None:
    generator = np.random.default_rng(3)
    count, first = 82_000, 60
    submit = np.sort(generator.uniform(0, 1e7, count))
    times = np.sort(generator.uniform(0, 1.1e7, 200_000))
    timeline = make_timeline(times, generator.integers(0, 9000, 200_000), generator.integers(0, 2048, 200_000))
    starts = np.sort(generator.uniform(submit[0], 1e6, 6000))
    segments = make_segments(
        [(i % first, float(start), float(start) + 100.0, i % 256, 255) for i, start in enumerate(starts)]
    )
    results = [
        make_result(
            policy=f"policy-{number}",
            gpus=2048,
            submit_s=submit,
            start_s=submit,
            end_s=submit + generator.lognormal(8, 2, count),
            timeline=timeline,
            segments=segments,
            node_names=tuple(f"node-{i:04d}.cluster.example" for i in range(256)),
            job_gpus=(2 ** generator.integers(0, 7, count)).astype(np.int32),
        )
        for number in range(9)
    ]
    text = render(results)
    assert len(text.encode()) < 3_000_000
    charts = Page(text).data()["charts"]
    assert isinstance(charts, dict)
    assert all(len(series["x"]) <= 400 for series in charts["jct"]["series"])
    assert all(len(series["y"]) <= 800 for key in ("queue", "busy") for series in charts[key]["series"])
