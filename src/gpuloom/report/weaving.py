"""The result of weaving a set of jobs: groups, their table, and a plot of their stages over time."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from gpuloom.core.errors import InputError
from gpuloom.core.profile import STAGES_3, STAGES_4
from gpuloom.core.sums import sum_floats, sum_ints
from gpuloom.core.words import plural
from gpuloom.interleave.efficiency import SLOTS, Interleaving
from gpuloom.report.axis import linear_ticks
from gpuloom.report.picture import check_picture, moved, patch_key, picture, save_picture, text
from gpuloom.report.svg import Frame, fill, shorten, x_axis
from gpuloom.report.table import NOT_A_TERMINAL_WIDTH

MOST_DRAWN = 6
_WIDTH, _LANE, _BAR = 1390, 26, 21
_SETTLED = 1e-12
_ROUNDS = 400
_NOTABLE = 2e-3
_NAME = 22
_LANES = {3: ("load", "GPU", "network"), 4: ("storage", "CPU", "GPU", "network")}


@dataclass(frozen=True, slots=True)
class WovenJob:
    """A job of a group: its slot in the round, and its times alone in seconds per iteration."""

    name: str
    slot: int
    stage_s: tuple[float, ...]
    solo_s: float


@dataclass(frozen=True, slots=True)
class WovenGroup:
    """Jobs that share GPUs, in the order of their slots.

    Attributes:
        jobs: its jobs.
        gpus: GPUs that they share.
        iteration_s: seconds in which each makes an iteration, overhead included.
        efficiency: γ of the group.
        solo_efficiency: mean γ of its jobs alone.
        overhead: factor on the iteration that the model adds for so many jobs.
        count: how many such groups there are, with other jobs of the same kinds.
        share: of a measured pair, the share of its speed alone that each job keeps; `iteration_s` is then that of equal
            throughput.
    """

    jobs: tuple[WovenJob, ...]
    gpus: int
    iteration_s: float
    efficiency: float
    solo_efficiency: float
    overhead: float
    count: int = 1
    share: tuple[float, ...] | None = None

    @property
    def source(self) -> str:
        """Where it is known from how fast the jobs run."""
        return "alone" if len(self.jobs) == 1 else "stage times" if self.share is None else "measured pair"

    @property
    def slowdown(self) -> tuple[float, ...]:
        """Of each job: its iteration in the group over its iteration alone."""
        if self.share is not None:
            return tuple(1.0 / share for share in self.share)
        return tuple(self.iteration_s / job.solo_s for job in self.jobs)

    @property
    def throughput(self) -> float:
        """Normalised: what the group does at once, in jobs alone on these GPUs."""
        return sum_floats(job.solo_s for job in self.jobs) / self.iteration_s

    @property
    def gpus_before(self) -> int:
        return self.gpus * len(self.jobs)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, units in the names."""
        return {
            "gpus": self.gpus,
            "gpus_before": self.gpus_before,
            "groups_alike": self.count,
            "iteration_s": self.iteration_s,
            "overhead_factor": self.overhead,
            "efficiency": self.efficiency,
            "efficiency_alone": self.solo_efficiency,
            "normalised_throughput": self.throughput,
            "source": self.source,
            "jobs": [
                {
                    "job": job.name,
                    "slot": job.slot,
                    "stage_s": dict(zip(STAGES_3 if len(job.stage_s) == 3 else STAGES_4, job.stage_s, strict=True)),
                    "solo_iteration_s": job.solo_s,
                    "slowdown": slowdown,
                }
                for job, slowdown in zip(self.jobs, self.slowdown, strict=True)
            ],
        }


# -- table ------------------------------------------------------------------------------------------------------------


def print_groups(groups: Sequence[WovenGroup], file: TextIO | None = None) -> None:
    """A row per kind of group: its jobs in order, γ before and after, times and what it saves."""
    rows = []
    for group in groups:
        rows.append(
            (
                f"{group.count:,}",
                str(group.gpus),
                "\n".join(f"{job.slot + 1}: {job.name}" for job in group.jobs),
                "\n".join(time_text(job.solo_s) for job in group.jobs),
                "\n".join(f"{slowdown:.2f}×" for slowdown in group.slowdown),
                time_text(group.iteration_s) + ("" if group.share is None else "\nmeasured"),
                f"{group.solo_efficiency:.2f} → {group.efficiency:.2f}",
                f"{group.throughput:.2f}×",
                f"{group.gpus_before * group.count:,} → {group.gpus * group.count:,}",
            )
        )
    titles = ("groups", "GPUs", "slot: job", "alone", "slowdown", "iteration T", "γ", "throughput", "GPUs held")
    print_table(titles, rows, left=("slot: job",), ruled=True, file=file)


def print_table(
    titles: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    left: Sequence[str] = (),
    ruled: bool = False,
    file: TextIO | None = None,
) -> None:
    """Columns of text, aligned right but for those named in `left`; `ruled` puts a line between rows."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    out = sys.stdout if file is None else file
    table = Table(
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, 1, 0, 0),
        header_style="bold",
        show_lines=ruled,
    )
    for title in titles:
        table.add_column(title, justify="left" if title in left else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(_printable(cell)) for cell in row))
    plain = StringIO()
    is_terminal = out.isatty()
    # Wider than the terminal rather than cut: values are never lost.
    width = max(NOT_A_TERMINAL_WIDTH, 4 + sum_ints(_width(title, rows, at) for at, title in enumerate(titles)))
    Console(file=plain, width=width, force_terminal=is_terminal, highlight=False).print(table)
    out.write("\n".join(line.rstrip() for line in plain.getvalue().splitlines()) + "\n")


def _width(title: str, rows: Sequence[Sequence[str]], at: int) -> int:
    return 2 + max([len(title), *(len(line) for row in rows for line in row[at].split("\n"))])


def _printable(text: str) -> str:
    """Without characters that would steer the terminal."""
    return "".join(c if c.isprintable() or c == "\n" else "�" for c in text)


def time_text(seconds: float) -> str:
    """A time of an iteration for people: '107 ms', '1.06 s'."""
    return (
        f"{seconds * 1000:.3g} ms"
        if seconds < 0.9995
        else f"{seconds:,.3g} s"
        if seconds < 100
        else f"{seconds:,.0f} s"
    )


# -- timeline ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Span:
    """A job (its place in the group) holds a lane, that is a unit of a resource, from `start_s` for `length_s`."""

    job: int
    stage: int
    lane: int
    start_s: float
    length_s: float


def lanes(stages: int, model: str) -> tuple[str, ...]:
    """Names of the lanes. The measured model has two for loading: it takes two slots, in one of them the storage and
    in one the CPU (which when, is not measured)."""
    return ("load 1", "load 2", "GPU", "network") if model == "measured" else _LANES[stages]


def lane_of(stage: int, slot: int, model: str) -> int:
    """The lane of a stage. Every other job of the measured model loads on the same lane."""
    return stage if model == "barrier" else stage + 1 if stage else slot % 2


def timeline(
    stage_s: Sequence[Sequence[float]], slots: Sequence[int], model: str, rounds: int = 4
) -> tuple[list[Span], float]:
    """When each stage of a woven group runs in steady state, and the period in seconds, both without overhead.

    In the barrier model a stage begins at its step's barrier. In the measured model it begins where the recurrence
    of `interleave.efficiency` puts it, after so many rounds that the recurrence has settled.

    Args:
        stage_s: a row per job, seconds per iteration.
        slots: of each job.
        rounds: iterations to return; the first begins at 0.
    """
    if len(stage_s) == 1:
        return _one_after_another(stage_s, [sum_floats(stage_s[0])], rounds, slots, model)
    if model == "barrier":
        return _barrier(stage_s, slots, rounds)
    if len(slots) == 2 and {*slots} == {0, 2}:
        starts, period = _half_apart(stage_s)
    else:
        starts, period = _pipeline(stage_s, slots)
    spans = []
    for job, times in enumerate(stage_s):
        for stage, length in enumerate(times):
            lane = lane_of(stage, slots[job], model)
            spans += [
                Span(job, stage, lane, starts[job][stage] + n * period, length) for n in range(rounds) if length > 0
            ]
    return spans, period


def _barrier(stage_s: Sequence[Sequence[float]], slots: Sequence[int], rounds: int) -> tuple[list[Span], float]:
    """Step j: the job in slot i is in stage (i + j) mod k."""
    stages = len(stage_s[0])
    spans = []
    now = 0.0
    for step in range(stages * rounds):
        current = [(job, (slot + step) % stages) for job, slot in enumerate(slots)]
        for job, stage in current:
            if stage_s[job][stage] > 0:
                lane = lane_of(stage, slots[job], "barrier")
                spans.append(Span(job, stage, lane, now, stage_s[job][stage]))
        now += max(stage_s[job][stage] for job, stage in current)
    return spans, now / rounds


def _half_apart(stage_s: Sequence[Sequence[float]]) -> tuple[list[list[float]], float]:
    """Two jobs half a round apart: one loads while the other computes and synchronises, then the other way round."""
    first, second = stage_s
    half = max(first[0], second[1] + second[2])
    period = half + max(second[0], first[1] + first[2])
    return [[0.0, half, half + first[1]], [half, period, period + second[1]]], period


def _pipeline(stage_s: Sequence[Sequence[float]], slots: Sequence[int]) -> tuple[list[list[float]], float]:
    """Start of each stage of each job and the period, once the measured model's recurrence has settled."""
    in_slot = {slot: stage_s[job] for job, slot in enumerate(slots)}
    ends = [0.0]
    for step in range(_ROUNDS * SLOTS):
        # Empty slots bind nobody: an end may then lie before the one of the step before.
        end = 0.0
        for ahead, stage in ((1, 2), (2, 1), (3, 0)):
            times = in_slot.get((step + ahead) % SLOTS)
            if times is not None and (stage or step):
                end = max(end, ends[step if stage else step - 1] + times[stage])
        ends.append(end)
        if step >= 4 * SLOTS and step % SLOTS == SLOTS - 1:
            now = [ends[at] - ends[at - SLOTS] for at in range(step - SLOTS + 2, step + 2)]
            if max(now) - min(now) <= _SETTLED * max(now):
                break
    base = len(ends) - 1 - 3 * SLOTS
    base -= base % SLOTS
    period = ends[base + SLOTS] - ends[base]
    zero = ends[base]
    # A job in slot s loads from end s, computes from end s + 2 and synchronises from end s + 3.
    return [
        [ends[base + slot] - zero, ends[base + slot + 2] - zero, ends[base + slot + 3] - zero] for slot in slots
    ], period


def _one_after_another(
    stage_s: Sequence[Sequence[float]], solo_s: Sequence[float], rounds: int, slots: Sequence[int], model: str
) -> tuple[list[Span], float]:
    """Each job makes an iteration alone, in turn. Stages that overlap inside a job are drawn shortened to fit it."""
    spans = []
    now = 0.0
    for _ in range(rounds):
        for job, (times, alone) in enumerate(zip(stage_s, solo_s, strict=True)):
            factor = min(1.0, alone / sum_floats(times))
            at = now
            for stage, length in enumerate(times):
                if length > 0:
                    lane = lane_of(stage, slots[job], model)
                    spans.append(Span(job, stage, lane, at, factor * length))
                at += factor * length
            now += alone
    return spans, now / rounds


def stretched(spans: Sequence[Span], period: float, iteration_s: float) -> list[Span]:
    """The spans at a period of `iteration_s`: a slower round leaves its resources idle, a faster one shortens all."""
    factor = iteration_s / period if period > 0 else 1.0
    short = min(1.0, factor)
    return [Span(s.job, s.stage, s.lane, factor * s.start_s, short * s.length_s) for s in spans]


def window(spans: Sequence[Span], start_s: float, end_s: float) -> list[Span]:
    """What of the spans lies between two times, counted from the first."""
    cut = []
    for span in spans:
        first, last = max(span.start_s, start_s), min(span.start_s + span.length_s, end_s)
        if last > first:
            cut.append(Span(span.job, span.stage, span.lane, first - start_s, last - first))
    return cut


# -- picture ----------------------------------------------------------------------------------------------------------


def save_weaving(groups: Sequence[WovenGroup], interleaving: Interleaving, path: Path) -> None:
    """Draw the stages of the largest groups over time, before and after weaving, into a PNG, SVG or PDF file.

    Raises:
        InputError: another suffix, or nothing to draw.
        MissingDependencyError: matplotlib is not installed (SVG does without).
        OSError: the file can't be written; names it.
    """
    check_picture(path)
    if not groups:
        raise InputError("there are no groups to plot")
    shown = sorted(groups, key=lambda g: (-len(g.jobs), -g.gpus * g.count, -g.throughput))[:MOST_DRAWN]
    left_out = sum_ints(group.count for group in groups) - sum_ints(group.count for group in shown)
    says = [f"two iterations of every job; model {interleaving.model}, ordering {interleaving.ordering}"]
    if interleaving.model == "measured":
        says.append("load: storage and CPU, two jobs at a time")
    if left_out:
        says.append(f"{plural(left_out, 'more group')} not drawn")
    body, top = [text(_WIDTH / 2, 20, " · ".join(says), anchor="middle")], 44.0
    for group in shown:
        drawn, height = _row(group, interleaving)
        body.append(moved(0, top, drawn))
        top += height
    save_picture(picture(_WIDTH, top, body), path)


def _row(group: WovenGroup, interleaving: Interleaving) -> tuple[list[str], float]:
    """A group before, after, and its jobs, side by side; and how high that is."""
    stage_s = [job.stage_s for job in group.jobs]
    slots = [job.slot for job in group.jobs]
    model, together = interleaving.model, len(group.jobs) > 1
    alone, turn = _one_after_another(stage_s, [job.solo_s for job in group.jobs], 2, slots, model)
    spans, period = timeline(stage_s, slots, model)
    woven = stretched(spans, period, group.iteration_s)
    # From the third round on all jobs are under way.
    first = 2 * group.iteration_s if together else 0.0
    woven = window(woven, first, first + 2 * group.iteration_s)
    longest = 2 * max(turn, group.iteration_s)
    names = lanes(len(stage_s[0]), model)
    many = f"{group.count:,} groups of " if group.count > 1 else ""
    held = plural(group.gpus, "GPU")
    said = f"{many}{len(group.jobs)} jobs on {held}, one after another" if together else f"alone on {held}"
    overhead = f", overhead × {group.overhead:.2f} in it" if abs(group.overhead - 1) > 1e-9 else ""
    if period > group.iteration_s * (1 + _NOTABLE) and together:
        overhead += ", stages drawn shorter"
    done = f"{'woven' if together else 'not woven'}: γ {group.efficiency:.2f}, T {time_text(group.iteration_s)}"
    frame = Frame(width=570, height=80 + _LANE * len(names), left=78, top=26)
    after = replace(frame, width=510, left=18)
    parts = _panel(frame, f"{said}: γ {group.solo_efficiency:.2f}", alone, len(names), 2 * turn, longest)
    parts += [text(70, frame.top + _LANE * (at + 0.5), name, "row", "end") for at, name in enumerate(names)]
    parts.append(moved(570, 0, _panel(after, f"{done}{overhead}", woven, len(names), 2 * group.iteration_s, longest)))
    for at, (job, slowdown) in enumerate(zip(group.jobs, group.slowdown, strict=True)):
        told = f": {slowdown:.2f}× its time alone" if math.isfinite(slowdown) else ""
        key = [patch_key(at), text(32, 0, shorten(job.name, _NAME) + told, "row")]
        parts.append(moved(1070, frame.top + 10 + 22 * at, key))
    return parts, float(max(frame.height, frame.top + 22 * len(group.jobs) + 10))


def _panel(frame: Frame, title: str, spans: Sequence[Span], rows: int, end_s: float, longest_s: float) -> list[str]:
    unit, factor = ("ms", 1e3) if longest_s < 2 else ("s", 1.0)
    x = frame.x(0, 1.02 * longest_s * factor)
    end, bottom = x(end_s * factor), frame.height - frame.bottom
    body = [
        text(frame.left, 8, title, "head"),
        f'<rect class="ground" x="{frame.left}" y="{frame.top}" width="{end - frame.left:.1f}" '
        f'height="{bottom - frame.top}"/>',
        *x_axis(frame, x, linear_ticks(0, longest_s * factor, 6), f"time ({unit})"),
    ]
    for span in spans:
        start, until = x(span.start_s * factor), x((span.start_s + span.length_s) * factor)
        edge = ' stroke="#fff" stroke-width="0.8"' if until - start > 4 else ""  # it would hide a narrow one
        y, width = frame.top + _LANE * (span.lane + 0.09), max(until - start, 0.6)
        body.append(f'<rect x="{start:.1f}" y="{y:.1f}" width="{width:.1f}" height="{_BAR:g}" {fill(span.job)}{edge}/>')
    body.append(f'<path class="one" d="M{end:.1f} {frame.top}V{bottom}"/>')
    return body


def solo_efficiency(stage_s: Sequence[Sequence[float]], solo_s: Sequence[float], interleaving: Interleaving) -> float:
    """Mean γ of jobs alone."""
    alone = interleaving.efficiency(np.array(stage_s)[:, None, :], np.array(solo_s))
    return float(alone.mean())
