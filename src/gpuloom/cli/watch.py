"""Tables that stay on the screen, and `gpuloom top`."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from gpuloom.cli.live import JOBS_HELP, connect, live_options, numbers, plain, say_json_line
from gpuloom.cli.live_tables import (
    GPU_COLUMNS,
    RATE_COLUMNS,
    Column,
    busy_gpus,
    columns_for,
    is_slots,
    rich_table,
    show_table,
    troubles,
)
from gpuloom.cli.run_options import Duration
from gpuloom.core.units import format_duration
from gpuloom.core.words import plural

MOST_EVERY_S = 86_400.0

Tables = Sequence[tuple[Sequence[Column], Sequence[Any]]]


class Screen:
    """Shows something again and again until Ctrl-C or, on a terminal, q; or so many `times`.

    On a terminal it takes the whole screen and gives it back at the end; elsewhere each look is printed. as_json: each
    look is one line of JSON.
    """

    def __init__(self, *, every_s: float, as_json: bool, times: int | None = None) -> None:
        if not 0.1 <= every_s <= MOST_EVERY_S:
            raise click.UsageError(f"--every is {every_s:g} s, must be from 0.1 s to a day")
        self.every_s, self.as_json, self.times = every_s, as_json, times

    def run(
        self, look: Callable[[], Any], tables: Callable[[Any], Tables], heads: Callable[[Any], Sequence[str]]
    ) -> None:
        """look: asks the scheduler. tables, heads: what to show of the answer; heads are lines above the tables."""
        try:
            if not self.as_json and sys.stdout.isatty() and self.times != 1:
                self._live(look, tables, heads)
            else:
                self._print(look, tables, heads)
        except KeyboardInterrupt:
            return

    def _print(
        self, look: Callable[[], Any], tables: Callable[[Any], Tables], heads: Callable[[Any], Sequence[str]]
    ) -> None:
        for turn in self._turns():
            if turn:
                time.sleep(self.every_s)
            found = look()
            if self.as_json:
                say_json_line(found)
                continue
            if turn:
                click.echo()
            for head in heads(found):
                click.echo(plain(head))
            for columns, rows in tables(found):
                if rows:
                    click.echo()
                    show_table(columns, rows)

    def _live(
        self, look: Callable[[], Any], tables: Callable[[Any], Tables], heads: Callable[[Any], Sequence[str]]
    ) -> None:
        from rich.console import Console, Group
        from rich.live import Live
        from rich.text import Text

        console = Console(highlight=False)

        def drawn() -> Group:
            found = look()
            parts: list[Any] = [Text(plain(head), style="bold") for head in heads(found)]
            left = console.height - len(parts) - 1
            for columns, rows in tables(found):
                # What does not fit is counted; a table that runs out of the screen would hide its own end.
                shown = rows[: max(left - 3, 1)]
                parts += [Text(""), rich_table(columns, shown, console.width)]
                left -= len(shown) + 2
                if len(shown) < len(rows):
                    parts.append(Text(f"… and {len(rows) - len(shown):,} more", style="dim"))
                    left -= 1
            return Group(*parts)

        with _keys() as ends_within, Live(drawn(), console=console, screen=True, auto_refresh=False) as live:
            for _ in self._turns(first=1):
                if ends_within(self.every_s):
                    return
                live.update(drawn(), refresh=True)
            if self.times is not None:
                ends_within(self.every_s)

    def _turns(self, first: int = 0) -> Any:
        turn = first
        while self.times is None or turn < self.times:
            yield turn
            turn += 1


@contextmanager
def _keys() -> Iterator[Callable[[float], bool]]:
    """What waits for so many seconds, or until q is pressed: then it is true. Keys are not shown meanwhile."""
    import select
    import termios
    import tty

    def wait(seconds: float) -> bool:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if not typed:
                time.sleep(left)
            elif select.select([sys.stdin], [], [], left)[0]:
                keys = os.read(sys.stdin.fileno(), 64)
                if b"q" in keys.lower():
                    return True
                if not keys:
                    typed.clear()  # its end: nothing more comes
        return False

    try:
        number = sys.stdin.fileno()
        typed = [termios.tcgetattr(number)]
    except (OSError, ValueError, termios.error):  # no terminal
        typed = []
        yield wait
        return
    before = typed[0]
    tty.setcbreak(number, termios.TCSADRAIN)
    try:
        yield wait
    finally:
        termios.tcsetattr(number, termios.TCSADRAIN, before)


@click.command(epilog=JOBS_HELP)
@click.argument("jobs", nargs=-1, metavar="[JOB]...")
@click.option("--once", is_flag=True, help="Show it once, and end.")
@click.option("--times", "-n", type=click.IntRange(1), metavar="N", help="Show it N times, and end.")
@click.option("--every", "every_s", type=Duration(), default="2", show_default=True, metavar="TIME", help="How often.")
@live_options
def top(jobs: tuple[str, ...], once: bool, times: int | None, every_s: float, as_json: bool, home: Path | None) -> None:
    """Watch GPUs and running jobs with their rates, like top(1); or, with JOB, move it to the top of the queue.

    q or Ctrl-C ends it. A job that is moved gets a priority above all others that wait; none is ever lowered. --json
    prints one object a look, and ends after one unless --times says otherwise.

    \b
    Examples:
      gpuloom top
      gpuloom top --once
      gpuloom top 12
    """
    if jobs:
        if once or times is not None:
            raise click.UsageError("--once and --times are for gpuloom top without a job")
        from gpuloom.cli.control import report

        with connect(home) as client:
            changed = client.top(numbers(client, jobs))
        report(changed, as_json, _moved)
        return
    if once or (times is None and (as_json or not sys.stdout.isatty())):
        times = 1
    with connect(home, follows=times != 1) as client:

        def look() -> dict[str, Any]:
            running = list(client.jobs(states=("running", "starting", "stopping", "frozen"), oldest_first=True))
            return {"status": client.status(), "nodes": client.nodes(), "jobs": running}

        Screen(every_s=every_s, as_json=as_json, times=times).run(look, _tables, _heads)


def _moved(job: Mapping[str, Any]) -> str:
    if job["state"] in ("running", "starting"):
        return "runs already; top moves jobs that wait"
    return f"first in the queue{'' if job['changed'] else ' already'} (priority {job['priority']})"


def _tables(found: Mapping[str, Any]) -> Tables:
    gpus = [(node, gpu) for node in found["nodes"] for gpu in node.get("gpus") or []]
    nodes = found["nodes"]
    return [(columns_for(GPU_COLUMNS, nodes), gpus), (columns_for(RATE_COLUMNS, nodes), found["jobs"])]


def _heads(found: Mapping[str, Any]) -> list[str]:
    status = found["status"]
    counts = status.get("jobs") or {}
    waiting = counts.get("queued", 0)
    up = format_duration(max(round(status["now_s"] - status["started_s"]), 0))
    lines = [
        *troubles(status),
        f"gpuloom {status['version']}, up {up}, policy {status['policy']}; "
        f"{plural(len(found['jobs']), 'job')} on GPUs, {waiting:,} queued, {counts.get('held', 0):,} held",
    ]
    for node in found["nodes"]:
        total = len(node.get("gpus") or [])
        what = "CPU slots" if is_slots(node) else "GPUs"
        used, whole = node.get("memory_used_mib"), node.get("memory_mib")
        parts = [f"{node['name']} {node['state']}", f"{busy_gpus(node)} of {total} {what} busy"]
        if node.get("cpu_percent") is not None:
            parts.append(f"CPU {node['cpu_percent']:.0f}% of {node.get('cpus') or '?'} cores")
        if used is not None and whole:
            parts.append(f"memory {used / 1024:.1f} of {whole / 1024:.1f} GiB")
        if node.get("load") is not None:
            parts.append(f"load {node['load']:.1f}")
        if node.get("reason"):
            parts.append(str(node["reason"]))
        lines.append(", ".join(parts))
    return lines
