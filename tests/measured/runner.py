"""Begins a runner, measured: `python -I -S runner.py PATH-OF-THE-RUNNER ARGUMENT…`.

Tests end most runners by SIGKILL, so what was seen is written down whenever the runner has nothing to do.
"""

from __future__ import annotations

import os
import runpy
import select
import sys
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

PAUSE_S = 0.05
HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
# No site: coverage is found where the environment of this Python keeps it.
VERSION = f"python{sys.version_info[0]}.{sys.version_info[1]}"
PLACE = os.path.join(os.path.dirname(os.path.dirname(sys.executable)), "lib", VERSION, "site-packages")
sys.path += [HERE, PLACE, os.path.join(ROOT, "src")]

import begin  # noqa: E402 - its place is known by now

measured = begin.measure()

from gpuloom.executors.runner import loop  # noqa: E402 - measured


class Saving:
    """An epoll that saves before it waits for long."""

    def __init__(self) -> None:
        self._epoll = select.epoll()

    def poll(self, wait: float | None = None) -> list[tuple[int, int]]:
        """As of any epoll."""
        short = PAUSE_S if wait is None else min(wait, PAUSE_S)
        if (found := self._epoll.poll(short)) or wait == short:
            return found
        with suppress(Exception):  # coverage must not end a runner
            measured.save()
        return self._epoll.poll(None if wait is None else max(wait - short, 0.0))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._epoll, name)


names = {name: value for name, value in vars(select).items() if name.startswith("EPOLL")}
loop.select = SimpleNamespace(**names, epoll=Saving)  # type: ignore[assignment]
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
