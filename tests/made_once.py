"""What takes long and several tests look at: made once for all of them, whichever of pytest's processes they run in."""

from __future__ import annotations

import fcntl
import os
import pickle
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from gpuloom.sim import SimResult, simulate
from gpuloom.traces import read_trace


def common_folder(factory: pytest.TempPathFactory) -> Path:
    """A folder that all processes of this run of pytest have, and no other run."""
    own = factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


def once(folder: Path, name: str, make: Callable[[], Any]) -> Any:
    """What `make` gives, by its name; the first that asks makes it, those who ask meanwhile wait."""
    kept = folder / f"{sha256(name.encode()).hexdigest()[:20]}.made"
    with kept.open("ab+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        if text := file.read():
            return pickle.loads(text)
        made = make()
        file.write(pickle.dumps(made))
        return made


class MuriRuns:
    """Runs under `--compat muri` on 8 nodes of 8 GPUs, of the traces of Muri's artifact.

    Args:
        data: the folder with real traces. folder: where what was run is kept.
    """

    def __init__(self, data: Path, folder: Path) -> None:
        self._data, self._folder = data / "muri", folder
        self._known: dict[tuple[str, str], SimResult] = {}

    def __call__(self, trace: str, policy: str) -> SimResult:
        key = trace, policy
        if key not in self._known:
            self._known[key] = once(self._folder, f"muri {trace} {policy}", lambda: self._run(trace, policy))
        return self._known[key]

    def _run(self, trace: str, policy: str) -> SimResult:
        workload = read_trace(self._data / f"{trace}.csv.gz").workload
        result = simulate(workload, "8x8", policy, compat="muri")
        assert result.finished == len(workload)
        return result
