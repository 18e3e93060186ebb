"""How good forecasts of starts have been here, found out now and then, so that each one is told with its error."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
from dataclasses import asdict, dataclass
from pathlib import Path

from gpuloom.core.units import format_duration
from gpuloom.core.words import plural
from gpuloom.live.forecasts.backtest import AT_ONCE_S, Checked, check, events_of
from gpuloom.live.planning.standby import FALLBACK
from gpuloom.store.sqlite import SqliteStore
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

    The forecasts are repeated in a process of their own, of low priority: in this one they would keep everybody
    waiting.
    """

    def __init__(self, store: Path, *, every_s: float = EVERY_S) -> None:
        self._store, self._every_s = store, every_s
        self.record: Record | None = None
        self._ended = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._worker = Worker("track record", self._run)

    def start(self) -> None:
        self._worker.start()

    def stop(self) -> None:
        self._ended.set()
        if (process := self._process) is not None:
            process.kill()
        self._worker.end(30.0)

    def _run(self) -> None:
        while not self._ended.is_set():
            command = [sys.executable, "-m", __spec__.name, str(self._store)]
            with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as process:  # noqa: S603
                self._process = process
                said, _ = process.communicate()
            self._process = None
            if process.returncode == 0:
                told = json.loads(said)
                self.record = None if told is None else Record(**told)
            elif not self._ended.is_set():  # its own words are in the log; what is known stays
                log.warning("how good forecasts were can't be found out: exit code %d", process.returncode)
            self._ended.wait(self._every_s)


def main(path: str) -> None:
    """Print the record of a store."""
    os.nice(19)
    with SqliteStore(path, read_only=True) as store:
        found = record_of(
            check(lambda: events_of(store), policy=FALLBACK, interval_s=0.0, sample=SAMPLE),
        )
    print(json.dumps(None if found is None else asdict(found)))


if __name__ == "__main__":
    main(sys.argv[1])
