"""The table fits, is never cut, and marks what it must."""

from __future__ import annotations

import math
from io import BytesIO, StringIO, TextIOWrapper

import pytest

from gpuloom.report.metrics import METRICS, best
from gpuloom.report.table import print_comparison
from gpuloom.sim.result import SimResult
from report_builders import make_result


def printed(results: list[SimResult], width: int | None = None) -> str:
    out = StringIO()
    print_comparison(results, out, width=width)
    return out.getvalue()


def big(policy: str, scale: float = 1.0, **overrides: object) -> SimResult:
    values: dict[str, object] = {
        "policy": policy,
        "avg_jct_s": 151_234.0 * scale,
        "median_jct_s": 34_567.0 * scale,
        "p99_jct_s": 987_654.0 * scale,
        "makespan_s": 9_999_999.0 * scale,
        "avg_queue_length": 12_345.6 * scale,
        "blocking_index": 8_765.4 * scale,
        "utilization": 0.987 * scale,
        "restarts": int(1_234_567 * scale),
        "wall_s": 3723.0 * scale,
        "lower_bound_avg_jct_s": 1234.5,
    }
    return make_result(**{**values, **overrides})


NINE = [
    big(name, 1 - i / 20)
    for i, name in enumerate(
        ("fifo", "sjf", "srtf", "srsf", "tiresias", "gittins", "themis", "antman", "elastic-goodput")
    )
]


@pytest.mark.parametrize("width", [80, 120, 200])
def test_every_shown_number_is_whole_at_every_width(width: int) -> None:
    text = printed(NINE, width)
    lines = text.splitlines()
    assert max(map(len, lines)) <= width
    assert "…" not in text
    header = next(line for line in lines if line.startswith("policy"))
    shown = [metric for metric in METRICS if metric.short in header or metric.title in header]
    left_out = next((line for line in lines if line.startswith("no room for")), "")
    assert [m for m in METRICS if m not in shown] == [m for m in METRICS if m.title in left_out]
    for result in NINE:
        row = next(line for line in lines if line.startswith(result.policy))
        cells = [cell.strip() for cell in row.split("  ") if cell.strip()]
        assert cells == [result.policy, *(metric.text(metric.value(result)) for metric in shown)]


def test_columns_go_in_order_of_importance() -> None:
    counts = []
    for width in (24, 60, 80, 100, 120, 200):
        text = printed(NINE, width)
        assert "1d 18h" in text  # fifo's average JCT never goes
        counts.append(sum(metric.text(metric.value(NINE[0])) in text for metric in METRICS))
    assert counts == sorted(counts)
    assert counts[-1] == len(METRICS)
    assert "wall" not in printed(NINE, 80).splitlines()[0]
    assert "p99" in printed(NINE, 80).splitlines()[0]


def test_plain_text_has_no_codes_and_no_trailing_blanks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    text = printed(NINE)
    assert "\x1b" not in text
    assert all(line == line.rstrip() for line in text.splitlines())
    monkeypatch.setenv("COLUMNS", "80")
    assert max(map(len, printed(NINE).splitlines())) <= 80


def test_a_terminal_gets_the_best_values_emphasised(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    out = Terminal()
    slow, fast = make_result(avg_jct_s=7200.0), make_result(policy="srtf", avg_jct_s=3600.0)
    print_comparison([slow, fast], out, width=150)
    assert "\x1b[1;32m1h 00m" in out.getvalue().replace("\x1b[1;32m ", "\x1b[1;32m").replace(" \x1b", "\x1b")
    assert "\x1b[1;32m2h 00m" not in out.getvalue()


def test_the_caption_names_trace_jobs_gpus_and_bound() -> None:
    text = printed([make_result(), make_result(policy="sjf")], 120)
    assert "trace tiny · cluster 2x4 · 3 jobs · 8 GPUs · lower bound of the average JCT 1m 50s" in text


def test_an_interrupted_run_is_marked_and_never_the_best() -> None:
    cut = make_result(policy="srtf", avg_jct_s=1.0, interrupted=True, end_s=[100.0, math.nan, math.nan])
    whole = [make_result(avg_jct_s=50.0), make_result(policy="sjf", avg_jct_s=70.0)]
    text = printed([cut, *whole], 120)
    assert "srtf*" in text
    assert "* srtf (interrupted, 1 of 3 jobs)" in text
    assert best(METRICS[0], [cut, *whole]) == "50s"
    bound = next(metric for metric in METRICS if metric.short == "× bound")
    assert bound.text(bound.value(cut)) == "-"


def test_nan_is_a_dash_and_equal_values_have_no_best() -> None:
    nothing = make_result(end_s=[math.nan] * 3, interrupted=True, blocking_index=math.nan)
    row = next(line for line in printed([nothing], 200).splitlines() if line.startswith("fifo"))
    assert row.split()[1:5] == ["-", "-", "-", "-"]
    assert "nan" not in row
    assert all(best(metric, [make_result(), make_result()]) is None for metric in METRICS)
    assert all(best(metric, [make_result()]) is None for metric in METRICS)


def test_names_are_text_not_markup_nor_terminal_codes() -> None:
    text = printed([make_result(policy="[bold]x[/bold]\x1b[31m", trace="a\nb")], 120)
    assert "[bold]x[/bold]" in text
    assert "\x1b" not in text
    assert "a\nb" not in text


def test_an_ascii_stream_gets_ascii() -> None:
    raw = BytesIO()
    out = TextIOWrapper(raw, encoding="ascii")
    print_comparison([make_result(), make_result(policy="sjf", avg_jct_s=1.0)], out, width=200)
    out.flush()
    assert b"x lower bound" in raw.getvalue()
    assert b"?" not in raw.getvalue()
