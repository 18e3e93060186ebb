"""A node process in an allocation of a real Slurm, started by the very script of a pilot; a head that is nothing but a
register of nodes.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from gpuloom.slurm.commands import Slurm
from gpuloom.slurm.script import TOKEN, Request, options_of, script_of
from joined_node import JoinedTarget
from slurm_kit import RealSlurm, wait


class PilotTarget(JoinedTarget):
    """As `JoinedTarget`. One pilot is for many tests: `clean` after each of them."""

    name = "n0"

    def __init__(self, folder: Path, slurm: RealSlurm) -> None:
        super().__init__(folder)
        self.slurm, self._there = slurm, folder / "there"
        self._there.mkdir()
        self._job: int | None = None

    def begin(self, url: str) -> None:
        log = self._there / "pilot.log"
        request = Request("contract", url, sys.executable, 2, slots=True, life_s=3600.0, log=str(log))
        options = [*options_of(request, 1), f"--nodelist={self.name}"]
        environment = {TOKEN: self.token, "TMPDIR": str(self._there)}
        self._job = Slurm(env=self.slurm.env).submit(script_of(request), options, environment)

        def home() -> Path | None:
            return next(self._there.glob(f"gpuloom-{self._job}-*"), None)

        self.home = wait(home, "the pilot to begin")

    def clean(self) -> None:
        """Forget the files of runs: the next test gives its runs the same names."""
        for run in (self.home / "runs").iterdir():
            shutil.rmtree(run)

    def close(self) -> None:
        """Give the allocation back, and see that nothing is left in it."""
        if self._job is not None:
            Slurm(env=self.slurm.env).cancel(self._job)
            wait(lambda: self.slurm.state(self._job or 0) in ("CANCELLED", ""), "the end of the pilot")
            wait(lambda: not self._processes(), "the end of what ran in it")
        super().close()
