"""The guard of a node: it ends the node's runs when the lease is over, and is nobody's child.

Started by path with `python -I -S` (see start.py), so that it loads a few light modules and nothing else. It has a
standby (pair.py), sleeps until the deadline, and ends once the home has no lease any more.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":  # started by path: make `gpuloom` findable, behind the standard library
    sys.path.append(os.path.abspath(f"{__file__}/../../../.."))

import contextlib
import fcntl
import signal

from gpuloom.core.faults import fault_text
from gpuloom.executors.guard.pair import Guard
from gpuloom.executors.runner.loop import log, log_to
from gpuloom.executors.wire import EXIT_FAULT, EXIT_LOCKED, GUARD_LOCK, GUARD_LOG

SCORES = ("-1000", "-900", "-500", "0")
"""Of the OOM killer, the best first; not all may be asked for."""


def main(home: str, home_id: str) -> int:
    """Lock the home, go to the background, and work. The process that was started returns once all is ready."""
    try:
        lock = os.open(f"{home}/{GUARD_LOCK}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return EXIT_LOCKED
        log_to(f"{home}/{GUARD_LOG}")
        guard = Guard(home, home_id, lock, _protected())
        if os.fork():
            os._exit(0)
    except (OSError, MemoryError) as error:
        log(fault_text(f"the guard can't start in {home}", error))
        return EXIT_FAULT
    with contextlib.suppress(OSError):  # it leads a session already
        os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    guard.work()
    return 0


def _protected() -> str:
    """Be the last that the OOM killer takes, as far as we may ask for that. What it was before."""
    path = "/proc/self/oom_score_adj"
    try:
        with open(path) as file:
            before = file.read().strip()
    except OSError:
        return "0"
    for score in SCORES:
        if int(score) >= int(before):
            break
        try:
            with open(path, "w") as file:
                file.write(score)
        except OSError:
            continue
        break
    return before


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
