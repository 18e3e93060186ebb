"""The display of the demo: a live table and chart on a terminal, lines of events elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import TYPE_CHECKING

import click

from gpuloom.cli.demo.jobs import Planned, Story
from gpuloom.cli.demo.replay import BOUND, Compared, Replay
from gpuloom.cli.live_tables import STYLES

if TYPE_CHECKING:
    from rich.console import RenderableType

    from gpuloom.live.views.job_answers import JobView

COLOURS = ("red", "green", "yellow", "blue", "magenta", "cyan", "bright_red", "bright_green")

Look = Callable[[Sequence[str], float], None]
"""Called with new lines of the story and the present time."""


@contextmanager
def shown(story: Story, plan: Sequence[Planned], slots: int, title: str, *, err: bool) -> Iterator[Look]:
    """Yields what to call whenever there is news. err: lines go to stderr."""
    if err or not sys.stdout.isatty():

        def say(lines: Sequence[str], now_s: float) -> None:
            for line in lines:
                click.echo(line, err=err)

        yield say
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(highlight=False)
    with Live(console=console, auto_refresh=False, transient=True) as live:

        def look(lines: Sequence[str], now_s: float) -> None:
            for line in lines:
                console.print(Text(line, style="dim", no_wrap=True, overflow="ellipsis"))
            live.update(_screen(story, plan, slots, title, now_s, console.width), refresh=True)

        yield look


def _screen(story: Story, plan: Sequence[Planned], slots: int, title: str, now_s: float, width: int) -> RenderableType:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    colours = {job.name[0].upper(): COLOURS[i % len(COLOURS)] for i, job in enumerate(plan)}
    passed = 0.0 if story.began_s is None else now_s - story.began_s
    table = Table(box=None, pad_edge=False)
    for name in ("job", "slots", "state", "progress"):
        table.add_column(name, justify="right" if name == "slots" else "left", no_wrap=True)
    numbers = {name: job for job, name in story.names.items()}
    for job in plan:
        number = numbers.get(job.name)
        if number is None:
            continue
        state = story.state[number]
        step, steps = (job.steps, job.steps) if state == "finished" else story.progress(number)
        part = step / steps if steps else 0.0
        bar = Text("█" * round(24 * part), style=colours[job.name[0].upper()]) + Text(
            "░" * (24 - round(24 * part)), style="dim"
        )
        bar.append(f" {100 * part:3.0f} %")
        table.add_row(job.name, str(job.gpus), Text(state, style=STYLES.get(state, "")), bar)
    lines = []
    for slot, cells in enumerate(story.chart(slots, now_s, max(width - 9, 20))):
        line = Text(f"slot {slot}  ")
        for cell, run in groupby(cells):
            line.append(("█" if cell in colours else "·") * len(list(run)), style=colours.get(cell, "dim"))
        lines.append(line)
    head = Text(f"{passed:.0f} s: {title}", style="bold", no_wrap=True, overflow="ellipsis")
    return Group(Text(""), head, Text(""), *lines, Text(""), table)


def result_lines(views: Sequence[JobView], what: Compared, others: Mapping[str, Replay], policy: str) -> list[str]:
    """The figures after the end, as plain lines."""
    by_job = {view["id"]: view for view in views}
    lines = [f"{'job':<9} {'slots':>5} {'JCT live':>9} {'simulated':>10} {'differ':>8} {'preempted':>10}"]
    for number, live_s, simulated_s, _, _ in what.rows:
        view = by_job[number]
        lines.append(
            f"{view['name']:<9} {view['gpus']:>5} {live_s:>7.2f} s {simulated_s:>8.2f} s "
            f"{100 * (simulated_s / live_s - 1):>+z6.1f} % {view['preemptions']:>10}"
        )
    total = sum(view["preemptions"] for view in views)
    lines.append(
        f"{'average':<9} {'':>5} {what.live_s:>7.2f} s {what.simulated_s:>8.2f} s "
        f"{100 * what.difference:>+z6.1f} % {total:>10}"
    )
    verdict = "within" if what.within else "NOT within"
    lines += [
        "",
        f"The simulator replays the history of these runs {verdict} {100 * BOUND:g} % of what happened.",
        f"No schedule could bring the average below {what.lower_bound_s:.2f} s.",
        "What if another policy had been chosen? The same history under",
    ]
    for name, other in sorted(others.items(), key=lambda item: item[1].avg_jct_s):
        share = 100 * (other.avg_jct_s / what.simulated_s - 1)
        note = "as it ran" if name == policy else f"{share:+z.0f} %"
        lines.append(f"  {name:<26} average JCT {other.avg_jct_s:6.2f} s  {note}")
    return lines
