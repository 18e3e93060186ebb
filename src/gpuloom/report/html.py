"""The comparison as one page: a file that needs nothing else, offline and without a script as well."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from gpuloom import __version__
from gpuloom.core.errors import InputError
from gpuloom.core.units import format_duration
from gpuloom.files.whole import text_output
from gpuloom.report.axis import PALETTE
from gpuloom.report.charts import Chart, busy_chart, jct_chart, queue_chart, relative_chart
from gpuloom.report.export import plain
from gpuloom.report.gantt import JOBS, gantt, right_edge
from gpuloom.report.gpu_chart import gpu_chart
from gpuloom.report.metrics import METRICS, Metric, best, escape, facts, interruption
from gpuloom.report.page import SCRIPT, style
from gpuloom.report.series import QUANTILES, class_means, gpu_classes, labels, quantiles
from gpuloom.report.svg import stroke
from gpuloom.report.windows import busiest, most_different_jobs, shown_nodes
from gpuloom.sim.result import SimResult

Cell = tuple[float, str]
"""A value to sort by and how it is written."""


def write_html(results: Sequence[SimResult], path: str | Path) -> None:
    """Write the report page.

    Raises:
        InputError: there are no results.
        OSError: the file can't be written; names it.
    """
    if not results:
        raise InputError("there are no results to report")
    page = render(results)
    with text_output(path) as file:
        file.write(page)


def render(results: Sequence[SimResult]) -> str:
    """The page as text, from top to bottom."""
    names = labels(results)
    charts = [
        jct_chart(results),
        *([relative_chart(results, names)] if len(results) > 1 else []),
        queue_chart(results),
        busy_chart(results),
    ]
    title = f"{names[0] if len(names) == 1 else f'{len(names)} policies'} on {_traces(results)}"
    parts = [
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width,initial-scale=1">',
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
        "script-src 'unsafe-inline'\">",
        f"<title>{escape(title)} · gpuloom</title><style>{style(len(results))}</style></head>\n<body><main>",
        f'<header><h1>{escape(title)}</h1><p class="facts">{escape(" · ".join(facts(results)))}</p></header>',
        *_warnings(results, names),
        _tiles(results, names),
        _summary(results, names),
        _toggles(results, names),
        _chart_cards(charts),
        _quantiles(results, names),
        _classes(results, names),
        _gantts(results, names),
        _notes(),
        _settings(results, names),
        f"<footer>Written by gpuloom {escape(__version__)}. This page is one file and loads nothing.</footer>",
        '</main><div id="tip" role="status" hidden></div>\n',
        f'<script type="application/json" id="data">{_embedded(charts, names)}</script>',
        f"<script>{SCRIPT}</script></body></html>\n",
    ]
    return "\n".join(part for part in parts if part)


def _traces(results: Sequence[SimResult]) -> str:
    traces = list(dict.fromkeys(result.trace for result in results))
    return traces[0] if len(traces) == 1 else f"{len(traces)} traces"


def _warnings(results: Sequence[SimResult], names: Sequence[str]) -> Iterable[str]:
    for note in dict.fromkeys(note for result in results for note in result.notes):
        yield f'<p class="warn">{escape(note[:1].upper() + note[1:])}.</p>'
    for result, name in zip(results, names, strict=True):
        if result.interrupted:
            yield (
                f'<p class="warn"><b>{escape(name)}</b> {escape(interruption(result))}: its averages are over '
                "the jobs that ended, so they look better than they are. It is not compared for the best value.</p>"
            )


def _tiles(results: Sequence[SimResult], names: Sequence[str]) -> str:
    """The four numbers to see first."""
    chosen = [metric for metric in METRICS if metric.title in ("avg JCT", "p99 JCT", "makespan", "utilisation %")]
    tiles = []
    for metric in chosen:
        title = metric.title.removesuffix(" %")
        rated = [
            (metric.value(result), name)
            for result, name in zip(results, names, strict=True)
            if math.isfinite(metric.value(result)) and (not result.interrupted or len(results) == 1)
        ]
        if not rated:
            continue
        pick, other = (min, max) if metric.better == "low" else (max, min)
        value, name = pick(rated)
        worst, last = other(rated)
        text = metric.text(value) + ("%" if metric.title.endswith("%") else "")
        if len(rated) == 1:
            head, detail = title, name
        elif metric.text(worst) == metric.text(value):
            head, detail = title, "the same for all policies"
        else:
            head = f"{'lowest' if metric.better == 'low' else 'highest'} {title}: {name}"
            written = metric.text(worst) + ("%" if metric.title.endswith("%") else "")
            ratio = f" ({worst / value:.1f}×)" if metric.better == "low" and value > 0 else ""
            detail = f"{last}: {written}{ratio}"
        tiles.append(
            f'<div class="tile"><span>{escape(head)}</span><b>{escape(text)}</b><span>{escape(detail)}</span></div>'
        )
    return f'<div class="tiles">{"".join(tiles)}</div>' if tiles else ""


def _summary(results: Sequence[SimResult], names: Sequence[str]) -> str:
    winners = [best(metric, results) for metric in METRICS]
    rows = []
    for result in results:
        row = []
        for metric, winner in zip(METRICS, winners, strict=True):
            value = metric.value(result)
            text = metric.text(value)
            row.append((value, text, text == winner and not result.interrupted))
        rows.append(row)
    table = _table(results, names, [_head(metric) for metric in METRICS], rows)
    hint = "Marked: the best value of a column." if len(results) > 1 else ""
    return _card("summary", "Summary", hint, table)


def _quantiles(results: Sequence[SimResult], names: Sequence[str]) -> str:
    rows = [[(value, format_duration(value)) for value in quantiles(result)] for result in results]
    heads = [escape(name) for _, name in QUANTILES]
    table = _table(results, names, heads, _with_best(rows, results))
    return _card("quantiles", "Quantiles of JCT", "Of the jobs that ended.", table)


def _classes(results: Sequence[SimResult], names: Sequence[str]) -> str:
    classes = gpu_classes(results)
    found = [class_means(result, classes) for result in results]
    rows = [[(mean, format_duration(mean)) for _, mean in each] for each in found]
    heads = []
    for index, (lowest, highest) in enumerate(classes):
        counts = {each[index][0] for each in found}
        jobs = f"{min(counts):,}" if len(counts) == 1 else f"{min(counts):,} to {max(counts):,}"
        size = f"{lowest}" if lowest == highest else f"{lowest} to {highest}"
        heads.append(
            f"{size} {'GPU' if highest == 1 else 'GPUs'}<br>"
            f'<span class="small">{jobs} {"job" if jobs == "1" else "jobs"}</span>'
        )
    table = _table(results, names, heads, _with_best(rows, results))
    return _card(
        "classes", "Mean JCT by GPU count", "Which jobs gain and which lose: jobs by the GPUs they ask for.", table
    )


def _gantts(results: Sequence[SimResult], names: Sequence[str]) -> str:
    """Who ran where and when, for one policy at a time: GPUs over time, then some jobs over time."""
    count = min(JOBS, max(len(result.job_ids) for result in results))
    first = most_different_jobs(results, count)
    jobs = range(first, first + count)
    edge = right_edge([result for result in results if result.segments is not None], jobs)
    nodes = shown_nodes(results)
    window = busiest(results, nodes)
    picks, charts = [], []
    start = next((number for number, result in enumerate(results) if result.segments is not None), 0)
    for number, (result, name) in enumerate(zip(results, names, strict=True)):
        checked = " checked" if number == start else ""
        picks.append(
            f'<label><input type="radio" name="gantt" id="g{number}"{checked}><span>{escape(name)}</span></label>'
        )
        charts.append(
            f'<div class="gantt scroll" id="for-g{number}"><h3>{escape(name)}: GPUs</h3>'
            f"{gpu_chart(result, name, number, nodes, window)}<h3>{escape(name)}: jobs</h3>"
            f"{gantt(result, name, number, jobs, edge)}</div>"
        )
    choice = f'<fieldset class="pick"><legend>Show</legend>{"".join(picks)}</fieldset>' if len(results) > 1 else ""
    why = "completion times differ most between the policies" if len(results) > 1 else "waited most"
    whose = "whose " if len(results) > 1 else "that "
    which = "" if count == max(len(r.job_ids) for r in results) else f"{count} in a row {whose}{why}, "
    hint = (
        "GPUs: a row for each, nodes one below the other, when most jobs wait; a bar is a job, by colour. "
        f"Jobs: {which}in order of submission, with the GPUs each asks for. A tick marks the submission, the thin line "
        "the time until the end, the bars when the job ran: a line without a bar is waiting. All policies have the "
        "same axes."
    )
    return _card("gantts", "Who ran where, and when", hint, choice + "".join(charts))


def _toggles(results: Sequence[SimResult], names: Sequence[str]) -> str:
    boxes = "".join(
        f'<label><input type="checkbox" id="p{number}" checked><span>{_key(number)}{escape(name)}'
        f"{' (interrupted)' if result.interrupted else ''}</span></label>"
        for number, (result, name) in enumerate(zip(results, names, strict=True))
    )
    return (
        '<section class="toggles" aria-label="Policies in the charts"><fieldset class="pick">'
        f"<legend>Show in charts</legend>{boxes}</fieldset></section>"
    )


def _chart_cards(charts: Sequence[Chart]) -> str:
    titles = {
        "jct": ("Distribution of job completion time", "The further left and up, the sooner jobs end."),
        "relative": ("JCT relative to the best policy", "Strong: average JCT. Pale: p99 JCT."),
        "queue": ("Queue length over time", "Jobs that wait, mean per bin of time."),
        "busy": ("GPU utilisation over time", "GPUs that jobs hold, mean per bin of time."),
    }
    cards = [_card(f"card-{each.key}", *titles[each.key], f'<div class="scroll">{each.svg}</div>') for each in charts]
    return f'<div class="grid2">{"".join(cards)}</div>'


def _notes() -> str:
    rows = [(metric.title, metric.definition) for metric in METRICS]
    rows.append(("quantiles", "As p99: the JCT at index int(q n) of the sorted ones; max is the last."))
    rows.append(
        (
            "interrupted",
            "A run that was stopped before its end. Averages are over the jobs that ended; the distribution "
            "is over all jobs and so stays below 100%.",
        )
    )
    entries = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in rows)
    return _card("notes", "What the numbers mean", "", f"<dl>{entries}</dl>")


def _settings(results: Sequence[SimResult], names: Sequence[str]) -> str:
    keys = list(dict.fromkeys(key for result in results for key in result.settings))
    if not keys:
        return ""
    rows = []
    for key in keys:
        values = [_setting(result, key) for result in results]
        if len(set(values)) == 1:
            text = escape(values[0])
        else:
            text = "<br>".join(
                f"{escape(name)}: {escape(value)}" for name, value in zip(names, values, strict=True) if value
            )
        rows.append(f'<tr><th scope="row">{escape(str(key))}</th><td>{text}</td></tr>')
    table = f'<table class="settings"><tbody>{"".join(rows)}</tbody></table>'
    return _card("settings", "Settings", "", table)


def _setting(result: SimResult, key: Any) -> str:
    if key not in result.settings:
        return ""
    value = plain(result.settings[key])
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _card(key: str, title: str, hint: str, body: str) -> str:
    said = f'<p class="hint">{escape(hint)}</p>' if hint else ""
    return f'<section id="{key}"><h2>{escape(title)}</h2>{said}{body}</section>'


def _head(metric: Metric) -> str:
    return f'<span title="{escape(metric.definition)}">{escape(metric.title)}</span>'


def _with_best(rows: Sequence[Sequence[Cell]], results: Sequence[SimResult]) -> list[list[tuple[float, str, bool]]]:
    """The rows with each column's lowest values marked (durations: lower is better)."""
    marked: list[list[tuple[float, str, bool]]] = [[] for _ in rows]
    for column in range(len(rows[0]) if rows else 0):
        rated = [
            row[column]
            for row, result in zip(rows, results, strict=True)
            if math.isfinite(row[column][0]) and not result.interrupted
        ]
        least = min(rated)[1] if len({text for _, text in rated}) > 1 else None
        for row, into, result in zip(rows, marked, results, strict=True):
            value, text = row[column]
            into.append((value, text, text == least and not result.interrupted))
    return marked


def _table(
    results: Sequence[SimResult],
    names: Sequence[str],
    heads: Sequence[str],
    rows: Sequence[Sequence[tuple[float, str, bool]]],
) -> str:
    """One row per policy; `heads` is HTML."""
    head = "".join(f'<th scope="col">{each}</th>' for each in ["policy", *heads])
    body = []
    for number, (result, name, row) in enumerate(zip(results, names, rows, strict=True)):
        mark = f'<br><span class="small">{escape(interruption(result))}</span>' if result.interrupted else ""
        cells = [f'<th scope="row" data-v="{escape(name)}">{_key(number)}{escape(name)}{mark}</th>']
        for value, text, is_best in row:
            sort_by = repr(float(value)) if math.isfinite(value) else ""
            cells.append(
                f'<td data-v="{sort_by}" class="best"><span>{escape(text)}</span></td>'
                if is_best
                else f'<td data-v="{sort_by}">{escape(text)}</td>'
            )
        body.append(f"<tr>{''.join(cells)}</tr>")
    return (
        f'<div class="scroll"><table class="sortable"><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def _key(number: int) -> str:
    return f'<svg class="key" viewBox="0 0 24 10" aria-hidden="true"><path d="M1 5H23" {stroke(number)}/></svg>'


def _embedded(charts: Sequence[Chart], names: Sequence[str]) -> str:
    """The script's data. No '<', '>' or '&' in it, so nothing in a name can end the element."""
    data = {
        "names": [str(name) for name in names],
        "colors": len(PALETTE),
        "charts": {each.key: each.hover for each in charts if each.hover is not None},
    }
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
