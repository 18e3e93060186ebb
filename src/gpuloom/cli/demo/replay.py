"""The live run compared with the simulator: the exported history is replayed under the same policy."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuloom.core.errors import GpuloomError

if TYPE_CHECKING:
    from gpuloom.live.views.job_answers import JobView

BOUND = 0.03
"""Most that the average JCT of a replay may differ: what Muri's authors found of their simulator (SIGCOMM '22)."""


class ReplayError(GpuloomError):
    """The simulator refused the history."""


@dataclass(frozen=True, slots=True)
class Compared:
    """Average JCTs in seconds, live and simulated; by job: number, both JCTs, and starts live and simulated."""

    live_s: float
    simulated_s: float
    lower_bound_s: float
    rows: tuple[tuple[int, float, float, int, int], ...]

    @property
    def difference(self) -> float:
        """Of the average, as a part of the live one; above 0: the simulator is slower."""
        return self.simulated_s / self.live_s - 1.0

    @property
    def within(self) -> bool:
        return abs(self.difference) <= BOUND

    def as_json(self) -> dict[str, Any]:
        names = ("job", "live_jct_s", "simulated_jct_s", "live_starts", "simulated_starts")
        return {
            "live_avg_jct_s": self.live_s,
            "simulated_avg_jct_s": self.simulated_s,
            "difference": self.difference,
            "bound": BOUND,
            "within": self.within,
            "lower_bound_avg_jct_s": self.lower_bound_s,
            "jobs": [dict(zip(names, row, strict=True)) for row in self.rows],
        }


@dataclass(frozen=True, slots=True)
class Replay:
    """A simulation: average JCT and its lower bound in seconds; by job: JCT and starts."""

    avg_jct_s: float
    lower_bound_s: float
    jobs: Mapping[int, tuple[float, int]]


def replay(history: Path, policies: Sequence[str], *, slots: int, interval_s: float, home: Path) -> dict[str, Replay]:
    """Run `gpuloom compare` on an exported history, with its defaults but for cluster and interval.

    Args:
        home: of the scheduler; its library of profiles counts, as it did live.

    Raises:
        ReplayError: with what the program said.
    """
    table, every = history.with_suffix(".replayed.json"), history.with_suffix(".replayed.csv")
    given = ["--cluster", f"1x{slots}", "--interval", str(interval_s), "--policies", ",".join(policies)]
    given += ["--json", str(table), "--jobs-csv", str(every), "--quiet"]
    done = subprocess.run(  # noqa: S603 - our own program
        [sys.executable, "-P", "-c", "from gpuloom.cli.main import main; main()", "compare", str(history), *given],
        capture_output=True,
        text=True,
        env={**os.environ, "GPULOOM_HOME": str(home)},
        check=False,
    )
    if done.returncode:
        raise ReplayError(f"the history could not be replayed:\n{done.stderr}")
    jobs: dict[str, dict[int, tuple[float, int]]] = {}
    with every.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            jobs.setdefault(row["policy"], {})[int(row["job_id"])] = float(row["jct_s"]), int(row["starts"])
    return {
        row["policy"]: Replay(row["avg_jct_s"], row["lower_bound_avg_jct_s"], jobs[row["policy"]])
        for row in json.loads(table.read_text())
        if row["policy"] in policies  # not what happened, which is compared with
    }


def compared(jobs: Sequence[JobView], simulated: Replay) -> Compared:
    """Live jobs beside a replay of them.

    Args:
        jobs: those that have ended.
    """
    rows = [
        (job["id"], job["jct_s"], simulated.jobs[job["id"]][0], job["attempts"], simulated.jobs[job["id"]][1])
        for job in jobs
        if job["jct_s"] is not None
    ]
    live = sum(row[1] for row in rows) / len(rows)
    return Compared(live, simulated.avg_jct_s, simulated.lower_bound_s, tuple(rows))
