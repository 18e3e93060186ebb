"""Unmodified scripts with real frameworks take turns on devices that they share, and all come to their ends."""

from __future__ import annotations

import json
import os
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from _gpuloom_hooks import page as layout
from _gpuloom_hooks.page import Page
from gpuloom.core.job import DeviceKind
from gpuloom.executors.devices import SETTING, Weaving, made, tell
from gpuloom.training.inject import environment

pytestmark = pytest.mark.slow
SCRIPT = Path(__file__).with_name("known.py")


class Seen:
    """Turns of each job, as far as it was seen to come: the seat of one that has ended is another's next."""

    def __init__(self, devices: Path) -> None:
        self.page, self.turns = Page(str(devices)), dict[int, int]()

    def look(self) -> None:
        for seat in range(layout.SEATS):
            at = layout.AT_SEATS + seat * layout.SEAT_WORDS
            job, turns = self.page.longs[at + layout.JOB], self.page.longs[at + layout.TURNS]
            if job == self.page.longs[at + layout.JOB] and job:
                self.turns[job] = max(turns, self.turns.get(job, 0))


def test_scripts_of_several_frameworks_and_ranks_take_turns(training_python: str, tmp_path: Path) -> None:
    """One that nests its stages, and one of two ranks that wait for each other: nobody waits for ever."""
    launcher = ("-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone")
    jobs: dict[int, tuple[str, ...]] = {
        1: (training_python, str(SCRIPT), "plain", "40"),
        2: (training_python, str(SCRIPT), "accelerate", "40"),
        3: (training_python, *launcher, str(SCRIPT), "ddp", "40"),
    }
    devices = made(tmp_path, DeviceKind.CPU, [0])
    tell(tmp_path, Weaving(DeviceKind.CPU, (0,), tuple(jobs), on=True))
    own = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")} | {"OMP_NUM_THREADS": "1"}
    started = []
    for job, command in jobs.items():
        run = tmp_path / f"run{job}"
        run.mkdir()
        env = own | {SETTING: str(devices), "GPULOOM_RUN_DIR": str(run), "GPULOOM_JOB_ID": str(job)}
        env |= environment(env, run / "hooks")
        started.append(
            subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
        )
    seen = Seen(devices)
    try:
        with ThreadPoolExecutor(len(started)) as readers:
            ends = [readers.submit(process.communicate, timeout=240) for process in started]
            while not all(end.done() for end in ends):
                seen.look()
                time.sleep(0.02)
            said = [end.result() for end in ends]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0, 0, 0], [error[-2000:] for _, error in said]
    assert [json.loads(out.splitlines()[-1])["steps"] for out, _ in said] == [40, 20, 40]
    logs = [log.read_text() for log in tmp_path.rglob("hooks.log")]
    assert not any("switched off" in log for log in logs), logs
    seen.look()
    turns = seen.turns
    assert sorted(turns) == [1, 2, 3], "of the two ranks one has a seat"
    assert turns[1] >= 60, "data and computing of most steps"
    assert turns[2] >= 40
    assert turns[3] >= 20
    assert list(seen.page.words[layout.AT_HOLDER : layout.AT_HOLDER + layout.RESOURCES]) == [0] * 4
