"""Runs an unmodified script as gpuloom would, with its hooks, and preempts it at a step.

A script trains as the environment says: it gives itself notice in the middle of step `STOP_AT`, if that is set, writes
the numbers of the samples it uses to `ids.txt`, and its weights, as text, to `weights.txt` when all is done.
"""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpuloom.training import inject

SCRIPTS = Path(__file__).parent / "scripts"
KEY = "7-19c"


@dataclass
class Job:
    """A job in a folder of its own. ranks: so many processes, with the environment of torchrun."""

    python: str
    script: str
    place: Path
    ranks: int = 1
    more: dict[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    attempt: int = 0
    errors: str = ""

    def run(self, stop_at: int | None = None) -> list[int]:
        """One attempt; the exit codes of its ranks. stop_at: the step in which it gets notice."""
        self.attempt += 1
        run = self.place / f"attempt-{self.attempt}"
        run.mkdir(parents=True)
        env = {key: value for key, value in os.environ.items() if not key.startswith(("GPULOOM_", "PYTHONPATH"))}
        env |= {"OMP_NUM_THREADS": "1", "GPULOOM_JOB_KEY": KEY, "GPULOOM_ATTEMPT": str(self.attempt), **self.more}
        env |= inject.environment(env, run / inject.FOLDER) | inject.saves(env, str(self.place))
        env |= {"GPULOOM_NOTICE_FILE": str(run / "notice"), "GPULOOM_PROGRESS_FILE": str(run / "progress.json")}
        if stop_at is not None:
            env["STOP_AT"] = str(stop_at)
        started = []
        for rank in range(self.ranks):
            own = dict(env)
            if self.ranks > 1:
                own |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(self.ranks)}
                own |= {"LOCAL_WORLD_SIZE": str(self.ranks), "GROUP_RANK": "0", "TORCHELASTIC_RUN_ID": "a"}
                own |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": self.more["MASTER_PORT"]}
            command = [self.python, str(SCRIPTS / self.script), *self.arguments]
            started.append(
                subprocess.Popen(command, cwd=self.place, env=own, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            )
        said = [one.communicate()[0].decode(errors="replace") for one in started]
        log = run / inject.FOLDER / "hooks.log"
        self.errors = "\n".join([*said, log.read_text() if log.exists() else "no log"])
        return [one.returncode for one in started]

    @property
    def told(self) -> dict[str, Any]:
        """What the last attempt reported of its progress."""
        found: dict[str, Any] = json.loads((self.place / f"attempt-{self.attempt}" / "progress.json").read_text())
        return found

    @property
    def result(self) -> tuple[str, list[str]]:
        """Its weights, and the samples it used in their order; by rank where there are several."""
        ids = sorted(self.place.glob("ids*.txt"))
        return (self.place / "weights.txt").read_text(), [one.read_text() for one in ids]
