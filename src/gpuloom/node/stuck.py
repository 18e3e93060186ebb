"""What keeps a node whose lease is over from coming back: processes that don't end."""

from __future__ import annotations

from pathlib import Path

from gpuloom.executors.home_id import home_id_of
from gpuloom.executors.procs import REMEDY, of_home
from gpuloom.executors.wire import GUARD_LOG

SHOWN = 5


def what_is_left(home: Path) -> str:
    """In words, with what helps."""
    try:
        found = sorted(of_home(home_id_of(home)), key=lambda one: one[0].pid)
    except OSError:
        found = []
    if not found:
        return f"its lease is over, and its guard has not said yet that nothing is left ({home / GUARD_LOG})"
    named = [f"{entry.pid} ({entry.name}, state {entry.state}) of run {run}" for entry, run in found[:SHOWN]]
    more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    return f"its lease is over, and processes of its runs don't end: {', '.join(named)}{more}; {REMEDY}"
