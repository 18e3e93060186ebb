"""A scheduler in a temporary home, for demonstrations and measurements. Everything is removed afterwards."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from gpuloom.core.errors import GpuloomError

if TYPE_CHECKING:
    from gpuloom.cli.service import Ready
    from gpuloom.client import Client

PATIENCE_S = 20.0
"""How long the scheduler may take to end its jobs and itself."""


class LeftBehindError(GpuloomError):
    """Processes of the temporary scheduler could not be ended."""


class TemporaryScheduler:
    """`gpuloom up` on CPU slots in a folder of its own. Leaving the `with` block ends and removes all of it.

    Without slots (0) jobs run only on nodes that join it.

    Attributes:
        folder: removed at the end; `home` of the scheduler and `work`, where jobs keep their checkpoints, are in it.
        client: talks to it. ready: what `gpuloom up --json` says.
    """

    def __init__(self, *, slots: int, policy: str, interval_s: float, profiles: str = "") -> None:
        """profiles: content of the library of profiles, the scheduler's only one besides the shipped ones."""
        self.slots, self.policy, self.interval_s, self.profiles = slots, policy, interval_s, profiles
        self.folder = Path()
        self.client: Client
        self.ready: Ready

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def work(self) -> Path:
        return self.folder / "work"

    def __enter__(self) -> TemporaryScheduler:
        from gpuloom.cli.service import start_detached
        from gpuloom.client import Client

        self.folder = Path(tempfile.mkdtemp(prefix="gpuloom-demo-"))
        try:
            self.work.mkdir()
            self.home.mkdir(mode=0o700)
            if self.profiles:
                (self.home / "profiles.csv").write_text(self.profiles, encoding="utf-8")
            words = ["--slots", str(self.slots)] if self.slots else ["--no-local"]
            words += ["--policy", self.policy, "--interval", str(self.interval_s)]
            words += ["--port", "0"]  # any free one: the default is for the user's own scheduler
            with _home_is(self.home):
                self.ready = start_detached(self.home, [*words, "--log-level", "warning"])
            self.client = Client(self.home)
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with _uninterrupted():
            try:
                self._end()
            finally:
                self.client.close()
                self._remove()

    def sample(self, name: str, *, gpus: int, steps: int, step_s: float, seed: int = 0) -> dict[str, Any]:
        """A spec: the small training job of gpuloom.training.sample, which saves in `work`."""
        words = ["--steps", str(steps), "--step-seconds", str(step_s), "--seed", str(seed)]
        env = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        if path := os.environ.get("PYTHONPATH"):
            env["PYTHONPATH"] = path
        return {
            "command": [sys.executable, "-m", "gpuloom.training.sample", *words, "--checkpoint", f"{name}.npz"],
            "name": name,
            "gpus": gpus,
            "workdir": str(self.work),
            "env": env,
            "grace": 10.0,
        }

    def log(self) -> str:
        """What the scheduler has logged."""
        return (self.home / "scheduler.log").read_text("utf-8", "replace")

    def _end(self) -> None:
        from gpuloom.client import ClientError
        from gpuloom.client.home import alive

        try:
            self.client.shutdown(stop_jobs=True)
        except ClientError:
            return  # it is gone, or does not answer: `_remove` ends what is left
        until = time.monotonic() + PATIENCE_S
        while alive(self.ready["pid"]) and time.monotonic() < until:
            time.sleep(0.05)

    def _remove(self) -> None:
        """End what still runs in the folder, and remove it."""
        _end_all(self.folder)
        shutil.rmtree(self.folder, ignore_errors=True)
        if self.folder.exists():  # a process that had just been ended may have written meanwhile
            shutil.rmtree(self.folder)


def processes_in(folder: Path) -> list[int]:
    """Processes that work for a folder: it stands in their arguments or environment."""
    import psutil

    name, found = str(folder), []
    for process in psutil.process_iter():
        if process.pid == os.getpid():
            continue
        try:
            words = process.cmdline()
            if any(name in word for word in words) or name in process.environ().get("GPULOOM_NOTICE_FILE", ""):
                found.append(process.pid)
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
    return found


def _end_all(folder: Path) -> None:
    """The runner ends by itself once its scheduler and its jobs are gone; whoever stays is ended.

    Raises:
        LeftBehindError: some can't be.
    """
    began = time.monotonic()
    while left := processes_in(folder):
        passed = time.monotonic() - began
        if passed > PATIENCE_S:
            raise LeftBehindError(f"processes {', '.join(map(str, left))} of {folder} can't be ended")
        if passed > 3.0:
            for pid in left:
                _send(pid, signal.SIGTERM if passed < 6.0 else signal.SIGKILL)
        time.sleep(0.05 if passed < 3.0 else 0.5)


def _send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


@contextmanager
def _home_is(home: Path) -> Iterator[None]:
    """What is started meanwhile knows this home, and nothing of the user's own (profiles, …)."""
    before = os.environ.get("GPULOOM_HOME")
    os.environ["GPULOOM_HOME"] = str(home)
    try:
        yield
    finally:
        if before is None:
            del os.environ["GPULOOM_HOME"]
        else:
            os.environ["GPULOOM_HOME"] = before


class _uninterrupted:  # noqa: N801 - reads as a statement
    """A second Ctrl-C while all is being ended would leave half of it behind: it is put off to the end."""

    def __enter__(self) -> None:
        self._before: Any = None
        self._seen = False
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._see)

    def _see(self, number: int, frame: Any) -> None:
        self._seen = True

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
            if self._seen:
                signal.raise_signal(signal.SIGINT)


def last_report(home: Path, job: int, attempt: int) -> Mapping[str, Any]:
    """What an attempt reported last of its progress. {}: nothing yet."""
    from gpuloom.executors.local_files import job_directory

    try:
        folder = next(job_directory(home / "runs", job).glob(f"{attempt}-*"))
        found = json.loads((folder / "progress.json").read_bytes())
    except (StopIteration, OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
