"""How good forecasts of starts have been here, found out now and then, so that each one is told with its error."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

from gpuloom.core.errors import GpuloomError
from gpuloom.core.units import format_duration
from gpuloom.core.words import plural
from gpuloom.live.forecasts.backtest import AT_ONCE_S, Checked, check, events_of
from gpuloom.store.port import Store
from gpuloom.threads import Worker

log = logging.getLogger("gpuloom.watching")

SAMPLE = 40
"""Past submissions of which the forecast is repeated."""
FEWEST = 5
"""From so many on that waited, and whose start was told, an error is told."""
EVERY_S = 3600.0


@dataclass(frozen=True, slots=True)
class Record:
    """jobs: that waited, and whose start was forecast; off_s: half of the forecasts were off by no more."""

    jobs: int
    off_s: float

    @property
    def sentence(self) -> str:
        return (
            f"Half of the forecasts for {plural(self.jobs, 'job')} that waited here were off by no more than "
            f"{format_duration(self.off_s)} (gpuloom why --check)."
        )


def record_of(checked: Checked) -> Record | None:
    """None: too few jobs tell."""
    off = sorted(
        abs(case.started_s - case.start.median)
        for case in checked.cases
        if case.started_s is not None
        and case.start.median is not None
        and max(case.started_s, case.start.median) - case.at_s > AT_ONCE_S
    )
    return None if len(off) < FEWEST else Record(len(off), off[len(off) // 2])


class TrackRecord:
    """`record` is the newest one; None: not known. `start`, then `stop`.

    Args:
        policy: (as it is written, its interval in seconds) until the log names others.
    """

    def __init__(self, store: Store, policy: Callable[[], tuple[str, float]], *, every_s: float = EVERY_S) -> None:
        self._store, self._policy, self._every_s = store, policy, every_s
        self.record: Record | None = None
        self._ended = threading.Event()
        self._worker = Worker("track record", self._run)

    def start(self) -> None:
        self._worker.start()

    def stop(self) -> None:
        self._ended.set()
        self._worker.end(30.0)

    def _run(self) -> None:
        while not self._ended.is_set():
            written, interval_s = self._policy()
            try:
                found = check(
                    lambda: events_of(self._store),
                    policy=written,
                    interval_s=interval_s,
                    sample=SAMPLE,
                    stop=self._ended.is_set,
                )
            except GpuloomError as error:  # it is tried again, and what is known stays
                log.warning("how good forecasts were can't be found out: %s", error)
            else:
                self.record = record_of(found) if not found.ended_early else self.record
            self._ended.wait(self._every_s)
