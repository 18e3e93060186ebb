"""A progress bar per simulation, on the terminal's error stream."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager


@contextmanager
def task_progress(tasks: Sequence[tuple[str, int]], *, quiet: bool) -> Iterator[Callable[[int, int, int], None] | None]:
    """Yield a function to call with (task, done, total), or None where no one watches.

    Args:
        tasks: name and total of each.
    """
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("jobs"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    with progress:
        bars = [progress.add_task(name, total=total) for name, total in tasks]
        yield lambda task, done, total: progress.update(bars[task], completed=done, total=total)
