"""The files of runs below a folder of this machine, and where in it they lie."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from gpuloom.core.measured import with_hooks
from gpuloom.core.progress import GPU_FULL, PROGRESS_BYTES, progress_of
from gpuloom.core.run_name import run_name_of
from gpuloom.executors.checkpoint_files import checkpoint_written_s
from gpuloom.executors.logs import NoLogError, plain_bytes, read_log
from gpuloom.executors.port import ExecutorError, RunExit
from gpuloom.executors.port import exit_of as exit_in
from gpuloom.executors.wire import EXIT_FILE, GPU_FULL_FILE, LOG_FILE, NOTICE_FILE, PROGRESS_FILE, RUN_FILE, read_json
from gpuloom.files.hook_records import Hooked, hooked
from gpuloom.training.inject import FOLDER as HOOKS_FOLDER


def job_directory(runs: Path, job: int) -> Path:
    """Where the files of a job's runs are. A thousand jobs a folder, so that none grows without bound."""
    return runs / f"{job // 1000:04d}" / str(job)


def run_directory(runs: Path, run: str) -> Path:
    """Where the files of a run are. Its name is in it, so that no run finds the files of another.

    Raises:
        ValueError: this is no name of a run.
    """
    name = run_name_of(run)
    if name is None:
        raise ValueError(f"{run!r} is no name of a run")
    return job_directory(runs, name.job) / name.folder


class LocalFiles:
    """Implements `RunFiles` (executors/node.py) on a folder. runs: the folder, with the files of all runs."""

    def __init__(self, runs: Path) -> None:
        self.runs = runs

    def log_path(self, run: str) -> Path:
        """The newest file of its log; it need not be there. Raises ValueError: this is no name of a run."""
        return run_directory(self.runs, run) / LOG_FILE

    def read_log(
        self, run: str, offset: int | None = None, tail_lines: int | None = None, max_bytes: int = 1 << 20
    ) -> tuple[bytes, int]:
        """See `RunFiles`."""
        return read_log(run_directory(self.runs, run), offset, tail_lines, max_bytes)

    def log_mark(self, run: str) -> tuple[int, ...]:
        """See `RunFiles`. What can't be looked at has a mark as well: whoever follows it reads, and is told why."""
        try:
            found = os.lstat(self.log_path(run))
        except FileNotFoundError:
            return ()
        except OSError as error:
            return (-(error.errno or 0),)
        return found.st_ino, found.st_size, found.st_mtime_ns

    def progress(self, run: str) -> Mapping[str, object]:
        """See `RunFiles`."""
        try:
            told = progress_of(plain_bytes(self._file(run, PROGRESS_FILE), 0, PROGRESS_BYTES + 1))
        except NoLogError:  # the job put something else there, or it may not be read
            told = {}
        if os.path.exists(self._file(run, GPU_FULL_FILE)):
            told = {**told, GPU_FULL: True}
        seen = self.hooks(run)
        return with_hooks(told, seen.training, seen.measured)

    def hooks(self, run: str) -> Hooked:
        """See `RunFiles`."""
        return hooked(self._file(run, HOOKS_FOLDER))

    def noticed_s(self, run: str) -> float | None:
        """See `RunFiles`."""
        try:
            return os.stat(self._file(run, NOTICE_FILE)).st_mtime
        except OSError:
            return None

    def checkpoint_s(self, run: str, written: str, workdir: str) -> float | None:
        """See `RunFiles`."""
        try:
            return checkpoint_written_s(written, workdir)
        except (OSError, ValueError, RecursionError) as error:
            raise ExecutorError(str(error)) from None

    def exit_of(self, run: str, pid: int | None, start_ticks: int | None) -> RunExit | None:
        """See `RunFiles`."""
        try:
            begun, ended = read_json(self._file(run, RUN_FILE)), read_json(self._file(run, EXIT_FILE))
            if begun is None or ended is None:
                return None
            same = same_process((pid, start_ticks), (begun["pid"], begun["start_ticks"]))
            return exit_in(ended["exit"]) if same else None
        except (OSError, LookupError, TypeError, ValueError):  # jobs can write where these files are
            return None

    def _file(self, run: str, name: str) -> str:
        return str(run_directory(self.runs, run) / name)


def same_process(one: tuple[int | None, int | None], other: tuple[int | None, int | None]) -> bool:
    """Whether these (pid, start ticks) may be of one process: they are equal, or of one nothing is known."""
    return one[0] is None or other[0] is None or one == other
