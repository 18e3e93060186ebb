"""Tables that stay on the screen and are redrawn."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import click

from gpuloom.cli.live import plain, say_json_line
from gpuloom.cli.live_tables import Column, rich_table, show_table

MOST_EVERY_S = 86_400.0

Tables = Sequence[tuple[Sequence[Column[Any]], Sequence[Any]]]
Look = TypeVar("Look")


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
        self, look: Callable[[], Look], tables: Callable[[Look], Tables], heads: Callable[[Look], Sequence[str]]
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
        self, look: Callable[[], Look], tables: Callable[[Look], Tables], heads: Callable[[Look], Sequence[str]]
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
        self, look: Callable[[], Look], tables: Callable[[Look], Tables], heads: Callable[[Look], Sequence[str]]
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

    def _turns(self, first: int = 0) -> Iterator[int]:
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
