"""Starts the guard of a home, for the node process; the runner does so by itself (runner/leased.py)."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from gpuloom.core.faults import fault_text
from gpuloom.executors.home_id import home_id_of
from gpuloom.executors.lease import LeaseFile
from gpuloom.executors.port import ExecutorError
from gpuloom.executors.runner.restarts import free, holder
from gpuloom.executors.wire import EXIT_LOCKED, GUARD_LOCK, GUARD_LOG, GUARD_MARK

PROGRAM = Path(__file__).parent / "main.py"
START_S = 10.0
PAUSE_S = 0.05


def ensure_guard(home: Path, patience_s: float = START_S) -> int:
    """Have a lease file (over, where there was none) and a guard in this home. The guard's pid; 0 for one that holds
    the lock, but could not say who it is.

    Raises:
        ExecutorError: it can't be started.
    """
    home = home.resolve()
    end = time.monotonic() + patience_s
    try:
        LeaseFile(str(home)).make()
        while (found := holder(f"{home}/{GUARD_LOCK}")) is None:
            _start(home, max(end - time.monotonic(), PAUSE_S))
            if time.monotonic() > end:
                if not free(f"{home}/{GUARD_LOCK}"):
                    return 0
                raise ExecutorError(f"the guard did not start within {patience_s:g} s (see {home / GUARD_LOG})")
            time.sleep(PAUSE_S)
    except (OSError, MemoryError) as error:
        raise ExecutorError(fault_text(f"can't guard {home}", error)) from None
    return int(found["pid"])


def _start(home: Path, patience_s: float) -> None:
    argv = [sys.executable, "-I", "-S", str(PROGRAM), str(home), home_id_of(home)]
    said = os.open(home / GUARD_LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        code = subprocess.run(  # noqa: S603 - our own program, no shell
            argv,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            cwd="/",
            env={**os.environ, GUARD_MARK: "1"},
            start_new_session=True,
            timeout=patience_s,
        ).returncode
    except subprocess.TimeoutExpired:
        return
    finally:
        os.close(said)
    if code not in (0, EXIT_LOCKED):
        last = (home / GUARD_LOG).read_text(errors="replace").strip().rpartition("\n")[2]
        raise ExecutorError(f"the guard ended with code {code}: {last} (see {home / GUARD_LOG})")
