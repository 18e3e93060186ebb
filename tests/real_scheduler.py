"""`gpuloom up` as a process of its own, with real jobs that end when a test says so."""

from __future__ import annotations

import errno
import json
import os
import select
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import forked
from forked import PROGRAM as PROGRAM
from gpuloom.client import Client
from until import until


class Real:
    """A scheduler on CPU slots.

    Attributes:
        home: its home directory. files: where jobs leave marks and listen for their ends. env: added to the
            scheduler's environment.
    """

    def __init__(self, folder: Path, *, slots: int = 4, home: Path | None = None) -> None:
        self.home, self.files, self.slots = home or folder / "home", folder / "files", slots
        self.files.mkdir()
        self.env: dict[str, str] = {}
        self.pid = 0
        self._started: list[forked.Process] = []
        self.client = Client(self.home, user="ann", patience_s=20.0)

    # -- the scheduler ------------------------------------------------------------------------------------------

    def run(self, *arguments: str, timeout_s: float = 90.0) -> subprocess.CompletedProcess[str]:
        """The command line, on this home."""
        return forked.run([*arguments, "--home", str(self.home)], {**os.environ, **self.env}, timeout_s)

    def up(self, *options: str, child: bool = False) -> dict[str, Any]:
        """Start it; what it says when it is ready. child: as a child of this process, with its limits."""
        slots = () if "--slots" in options else ("--slots", str(self.slots))
        words = ["up", "--json", "--port", "0", *slots, *options, "--home", str(self.home)]
        self.home.mkdir(mode=0o700, parents=True, exist_ok=True)
        log = self.home / "scheduler.log"
        with log.open("ab") as errors:
            start = errors.tell()
            # As --detach would, without a program of its own that does it: that takes a third of a start's time.
            process = forked.begin(words, {**os.environ, **self.env}, self.home, errors.fileno(), child=child)
        self._started.append(process)
        assert process.stdout is not None
        assert select.select([process.stdout], [], [], 90.0)[0], "it is not ready after 90 s"
        said = process.stdout.readline()
        assert said, log.read_bytes()[start:].decode(errors="replace")
        self.pid = process.pid
        ready: dict[str, Any] = json.loads(said)
        return ready

    def close(self) -> None:
        """Kill whatever still runs of it."""
        self.client.close()
        for _ in range(3):  # the runner may be starting something while it is looked for
            for pid in self.processes():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)
        for process in self._started:
            process.kill()
            process.communicate()

    def kill(self, *pids: int) -> None:
        """SIGKILL to the scheduler, or to these processes."""
        for pid in pids or (self.pid,):
            os.kill(pid, signal.SIGKILL)
        for pid in pids or (self.pid,):
            until(lambda pid=pid: not alive(pid), f"the end of process {pid}")

    def down(self, *options: str) -> None:
        done = self.run("down", *options)
        assert done.returncode == 0, done.stderr

    def check(self) -> None:
        """The store is sound."""
        done = self.run("db", "check")
        assert done.returncode == 0, done.stdout + done.stderr

    def processes(self) -> dict[int, str]:
        """All processes of this home, by their environment or arguments, with their command lines."""
        needle, found = str(self.home).encode(), {}
        for entry in os.listdir("/proc"):
            if not entry.isdigit() or int(entry) == os.getpid():
                continue
            with suppress(OSError):
                line = Path("/proc", entry, "cmdline").read_bytes()
                if needle in line or needle in Path("/proc", entry, "environ").read_bytes():
                    found[int(entry)] = line.replace(b"\0", b" ").decode(errors="replace").strip()
        return found

    def runner(self) -> int:
        """The process that is the parent of the jobs. While it begins, it is seen as two: the first of them ends."""

        def found() -> list[int] | None:
            runners = [pid for pid, line in self.processes().items() if "executors/runner/main.py" in line]
            return runners if len(runners) == 1 else None

        runner: int = until(found, "one runner")[0]
        return runner

    # -- jobs ---------------------------------------------------------------------------------------------------

    def waiting(self, **fields: Any) -> dict[str, Any]:
        """A job that leaves a mark and ends with the code that `end` gives it."""
        script = "p=$GPULOOM_JOB_ID.$GPULOOM_ATTEMPT.p; mkfifo $p; read -r code < $p; exit $code"
        return self.shell(f'echo "$GPULOOM_JOB_ID" >> marks; {script}', **fields)

    def shell(self, script: str, **fields: Any) -> dict[str, Any]:
        return {"command": ["sh", "-c", script], "workdir": str(self.files), "grace": 2, **fields}

    def end(self, *jobs: int, code: int = 0, attempt: int = 1) -> None:
        """Let `waiting` jobs that run end."""
        for job in jobs:
            pipe = self.files / f"{job}.{attempt}.p"

            def told(pipe: Path = pipe) -> bool:
                try:
                    descriptor = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
                except OSError as error:
                    if error.errno not in (errno.ENXIO, errno.ENOENT):
                        raise
                    return False
                os.write(descriptor, f"{code}\n".encode())
                os.close(descriptor)
                return True

            until(told, f"job {job} listens")
            until(lambda pipe=pipe: not _read_by_anyone(pipe), f"job {job} reads")

    def marks(self) -> Counter[int]:
        """How often each job has run."""
        path = self.files / "marks"
        return Counter(map(int, path.read_text().split())) if path.exists() else Counter()

    def ran(self, times: Mapping[int, int]) -> None:
        """Each job has run so often, or has by and by: a process leaves its mark a moment after it has begun."""
        with suppress(AssertionError):
            until(lambda: self.marks() == times)
        assert self.marks() == times

    def states(self, jobs: Sequence[int]) -> dict[int, str]:
        found = {view["id"]: view["state"] for view in self.client.jobs(ids=list(jobs))}
        return {job: found[job] for job in jobs}

    def in_state(self, state: str, jobs: Sequence[int], count: int | None = None, timeout_s: float = 150.0) -> None:
        """Wait until all of these jobs, or `count` of them, are in a state."""
        wanted = len(jobs) if count is None else count
        until(
            lambda: list(self.states(jobs).values()).count(state) == wanted,
            f"{wanted} of {len(jobs)} jobs {state}",
            timeout_s,
        )

    def attempts(self, jobs: Sequence[int]) -> dict[int, list[tuple[int, int]]]:
        """(number, pid) of all attempts of each job."""
        return {job: [(a["number"], a["pid"]) for a in self.client.show(job)["attempts"]] for job in jobs}

    def nothing_left(self) -> None:
        """No process of this home is left."""
        until(lambda: not self.processes(), f"the end of {self.processes()}", 15.0)


def _read_by_anyone(pipe: Path) -> bool:
    try:
        os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
    except OSError as error:
        return error.errno != errno.ENXIO
    return True


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except (FileNotFoundError, ProcessLookupError):  # the second: it went while its file was open
        return False


@contextmanager
def real(folder: Path, **options: Any) -> Iterator[Real]:
    """A scheduler's home; whatever still runs of it at the end is killed."""
    found = Real(folder, **options)
    try:
        yield found
    finally:
        found.close()
