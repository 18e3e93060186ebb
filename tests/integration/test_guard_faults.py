"""A fault at every system call of the guard and its standby: when the lease is over its runs end all the same."""

from __future__ import annotations

import json
import os
import random
import secrets
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from faults import Call, Fault, errnos
from gpuloom.executors import procs
from gpuloom.executors.lease import LeaseFile, boottime_ns
from gpuloom.executors.runner.restarts import free, holder, signed
from gpuloom.executors.wire import GUARD_LOCK, GUARD_MARK, LIVE
from gpuloom.fleet.lease import ENDING_S
from until import until

pytestmark = pytest.mark.slow

GUARD = Path(__file__).parents[1] / "faulty_guard.py"
SAMPLE, AT_ONCE = 24, 6
LEASE_S = 2.0


class Story:
    """A guard, runs under a lease that runs out, and a guard that is killed before that."""

    def __init__(self, folder: Path, fault: Fault | None) -> None:
        self.folder, self.home, self.home_id = folder, folder / "home", secrets.token_hex(6)
        self.home.mkdir(parents=True)
        self.seen, over = folder / "seen", folder / "over"
        once = None if fault is None else Fault(fault.call, fault.errno, until=str(over)).written()
        plan = {"seen": str(self.seen), "failed": str(folder / "failed"), "over": str(over), "fault": once}
        self.environment = os.environ | {"GPULOOM_TEST_FAULTS": json.dumps(plan), GUARD_MARK: "1"}
        self.lock = str(self.home / GUARD_LOCK)
        self.jobs: list[subprocess.Popen[bytes]] = []

    def calls(self) -> list[Call]:
        return [Call(*json.loads(line)) for line in sorted(set(self.seen.read_text().splitlines()))]

    def guard(self) -> int:
        """As the node process does it: again, where it could not begin."""

        def begun() -> int:
            note = holder(self.lock)
            if note is None and free(self.lock):
                argv = [sys.executable, "-I", "-S", str(GUARD), str(self.home), self.home_id]
                with (self.home / "guard.log").open("ab") as said:
                    subprocess.run(argv, env=self.environment, stdout=said, stderr=said, cwd="/", check=False)
            return 0 if note is None else int(note["pid"])

        return int(until(begun, "a guard"))

    def start(self, mark: str, *, noted: bool) -> None:
        environment = {"PATH": os.environ["PATH"], "GPULOOM_RUN": mark}
        program = "trap '' TERM; setsid sleep 1000 & while :; do sleep 0.1; done"
        job = subprocess.Popen(["sh", "-c", program], env=environment, start_new_session=True)
        self.jobs.append(job)
        entry = procs.process(job.pid)
        assert entry is not None
        if noted:
            (self.home / LIVE).mkdir(exist_ok=True)
            (self.home / LIVE / "2.1").write_text(json.dumps({"directory": str(self.folder)}))
            note = {"run": "2.1", "pid": job.pid, "start_ticks": entry.start_ticks, "boot_id": procs.boot_id()}
            note |= {"started": 1.0, "directory": str(self.folder), "grace_s": 1.0, "limit_s": None, "cgroup": None}
            note |= {"memory_mib": None, "container": None, "gpu_uuids": [], "log_mib": 1.0, "log_files": 1}
            (self.folder / "run.json").write_text(json.dumps(note))

    def tell(self) -> None:
        try:
            self._tell()
        finally:
            for job in self.jobs:
                job.kill()
                job.wait()
            self.end()

    def _tell(self) -> None:
        lease = LeaseFile(str(self.home))
        lease.make()
        self.guard()
        lease.extend(boottime_ns() + int(LEASE_S * 1e9))
        self.start(f"{self.home_id}:1.1", noted=False)
        self.start("another:1.1", noted=True)
        time.sleep(LEASE_S / 2)
        # The standby has its part, too. One that could not be forked is tried again, and that may take its time.
        until(lambda: isinstance((signed(self.lock) or {}).get("standby"), int) or lease.over(), "a standby")
        os.kill(self.guard(), signal.SIGKILL)
        while not lease.over():
            time.sleep(0.02)
        until(lambda: all(job.poll() is not None for job in self.jobs), "the end of the jobs", ENDING_S + 2.0)
        assert [job.returncode for job in self.jobs] == [-signal.SIGKILL] * len(self.jobs)
        until(lease.settled, "the note of it", 10.0)
        lease.remove()
        until(lambda: free(self.lock), "the end of the guards", 10.0)

    def end(self) -> None:
        """Whatever is left."""
        note = signed(self.lock) or {}
        for who in ("standby", "pid"):
            if isinstance(note.get(who), int) and not free(self.lock):
                with suppress(ProcessLookupError):
                    os.kill(note[who], signal.SIGKILL)


def test_a_fault_at_each_call_once(tmp_path: Path) -> None:
    plain = Story(tmp_path / "plain", None)
    plain.tell()
    calls = plain.calls()
    assert len({call.function for call in calls}) > 12
    faults = [Fault(call, number) for call in calls for number in errnos(call)]
    if not os.environ.get("GPULOOM_ALL_FAULTS"):
        faults = random.Random(time.time_ns()).sample(faults, SAMPLE)

    def tried(numbered: tuple[int, Fault]) -> str:
        number, fault = numbered
        try:
            Story(tmp_path / str(number), fault).tell()
        except AssertionError as error:
            return f"{fault}: {error}"
        return ""

    with ThreadPoolExecutor(AT_ONCE) as pool:
        wrong = [text for text in pool.map(tried, enumerate(faults)) if text]
    assert wrong == []
