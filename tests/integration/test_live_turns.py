"""Woven for real: scripts that mark their stages take turns on a CPU slot, as the scheduler says who is together."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from gpuloom.core.job import DeviceKind
from gpuloom.executors.devices import devices_folder, weaving_of
from real_scheduler import Real, real
from until import until

pytestmark = pytest.mark.slow

PROFILES = """model,gpus,iteration_s,storage_s,cpu_s,gpu_s,network_s
reader,1,0.02,0.014,0,0.006,0
learner,1,0.02,0.006,0,0.014,0
"""
SCRIPT = """
import json, os, sys, time
from gpuloom.training import job
out = open(sys.argv[1], "a", buffering=1)
for step in range(10**6):
    for resource, seconds in zip(("storage", "gpu"), map(float, sys.argv[2:])):
        with job.stage(resource):
            begins = time.monotonic()
            time.sleep(seconds)
            ends = time.monotonic()
        print(json.dumps([resource, begins, ends]), file=out)
    job.progress(step)
    if os.path.exists(sys.argv[1] + ".end"):
        break
"""
Intervals = list[tuple[str, float, float]]


class Scripts:
    """Two scripts with two stages each, on one slot."""

    def __init__(self, it: Real) -> None:
        self.it = it
        (it.files / "script.py").write_text(SCRIPT)

    def submit(self, model: str, *seconds: float) -> int:
        command = [sys.executable, "script.py", model, *map(str, seconds)]
        spec = {"command": command, "workdir": str(self.it.files), "model": model, "estimate": 1000}
        job: int = self.it.client.submit([spec])[0][0]
        return job

    def did(self, model: str) -> Intervals:
        path = self.it.files / model
        if not path.exists():
            return []
        return [tuple(json.loads(line)) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]

    def more(self, *models: str, count: int = 30) -> None:
        """Wait until each has gone on."""
        before = {model: len(self.did(model)) for model in models}
        until(lambda: all(len(self.did(model)) >= before[model] + count for model in models), "they go on")

    def end(self, model: str) -> None:
        (self.it.files / f"{model}.end").touch()

    def page(self) -> tuple[tuple[int, ...], bool]:
        return weaving_of((devices_folder(self.it.home / "runs", DeviceKind.CPU, [0]) / "page").read_bytes())


def overlaps(one: Intervals, two: Intervals, from_s: float) -> list[Any]:
    """Stages on the same resource at the same time."""
    return [
        (a, b) for a in one for b in two if a[0] == b[0] and min(a[1], b[1]) > from_s and a[1] < b[2] and b[1] < a[2]
    ]


def test_woven_scripts_take_turns_and_nobody_is_restarted(tmp_path: Path) -> None:
    with real(tmp_path, slots=1) as it:
        it.home.mkdir(parents=True)
        it.env["GPULOOM_HOME"] = str(it.home)
        (it.home / "profiles.csv").write_text(PROFILES)
        it.up("--policy", "weave", "--interval", "0")
        scripts = Scripts(it)
        one = scripts.submit("reader", 0.014, 0.006)
        scripts.more("reader", count=4)
        assert not scripts.page()[1], "alone"
        two = scripts.submit("learner", 0.006, 0.014)
        until(lambda: scripts.page()[1], "they are together")
        assert sorted(scripts.page()[0]) == [one, two]
        assert list(scripts.page()[0]) == it.client.groups()[0]["order"]
        scripts.more("reader", "learner", count=4)
        from_s = max(scripts.did(model)[-1][2] for model in ("reader", "learner"))
        # Schedulers come and go, and so does the runner's parent; the page is what it was.
        it.kill()
        it.up()
        scripts.more("reader", "learner")
        assert scripts.page()[1]
        assert overlaps(scripts.did("reader"), scripts.did("learner"), from_s) == []
        scripts.end("learner")
        until(lambda: scripts.page() == ((one,), False), "the first is alone")
        scripts.more("reader", count=4)
        scripts.end("reader")
        views = it.client.wait([one, two], timeout_s=60)
        assert [(view["state"], view["attempts"]) for view in views] == [("finished", 1)] * 2
        logs = list((it.home / "runs").rglob("hooks.log"))
        assert "".join(log.read_text() for log in logs) == "", os.fspath(it.home)
