"""Whether gpuloom wants the job to make way: SIGTERM, or the file `$GPULOOM_NOTICE_FILE`.

SIGTERM is taken only while a loop runs that a hook of ours can save, and only from a script that leaves it to its
default: who handles it by itself is left alone.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import suppress

from . import folder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

FILE = "GPULOOM_NOTICE_FILE"
LOOK_EVERY_S = 0.05
LEFT = "left.%d"
"""Empty file among the records: this process, which had a notice, trains no more. Its children are to end when told."""

_looked_s = float("-inf")
_seen = False
_taker = 0
"""The process that took SIGTERM; 0: none has."""
_before = signal.SIG_DFL  # type: Any


def written() -> bool:
    """Whether the file is there."""
    path = os.environ.get(FILE)
    return bool(path) and os.path.exists(path or "")


def asked() -> bool:
    """Whether the job is to make way. Costs a microsecond."""
    global _looked_s, _seen
    if not _seen:
        now = time.monotonic()
        if now - _looked_s >= LOOK_EVERY_S:
            _looked_s = now
            _seen = written()
    return _seen


def why_not() -> str:
    """Why SIGTERM can't be ours; "": it can."""
    if threading.current_thread() is not threading.main_thread():
        return "training does not run in the main thread"
    if signal.getsignal(signal.SIGTERM) not in (signal.SIG_DFL, on_signal):
        return "the script handles SIGTERM itself"
    return ""


def take() -> None:
    """SIGTERM no longer ends this process, but is a notice."""
    global _before, _taker
    before = signal.signal(signal.SIGTERM, on_signal)
    if before is not on_signal and _taker != os.getpid():  # else it is of the framework, for as long as its loop runs
        _before = before
    _taker = os.getpid()


def give_back() -> None:
    """SIGTERM does what it did before. A notice that came stays one."""
    global _taker
    _mark_left()
    if _taker == os.getpid() and threading.current_thread() is threading.main_thread():
        if signal.getsignal(signal.SIGTERM) is on_signal:
            signal.signal(signal.SIGTERM, _before)
        _taker = 0


def leave_out() -> None:
    """The process is ending by itself: a notice now must not make a signal of its exit code."""
    _mark_left()
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def on_signal(number: int, frame: FrameType | None) -> None:
    global _seen
    if os.getpid() == _taker:
        _seen = True
    else:  # a forked child, such as a loader's worker, which its parent ends by itself
        once(number, frame)


def once(number: int, frame: FrameType | None) -> None:
    """Handler of a helper process: the SIGTERM of a notice, which goes to the whole group, is for its parent."""
    signal.signal(number, signal.SIG_DFL)
    if not _of_notice():
        os.kill(os.getpid(), number)


def _mark_left() -> None:
    place = folder()
    if place is not None and written():
        with suppress(OSError):  # without it a child may have to be killed
            os.close(os.open(os.path.join(place, LEFT % os.getpid()), os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))


def _of_notice() -> bool:
    """Whether a SIGTERM to a child is that of the notice. In a container, say, only its parent had that one; then it is
    its parent, which waits for its end."""
    return written() and not os.path.exists(os.path.join(folder() or "", LEFT % os.getppid()))


def shield_workers(signal_handling: Any) -> None:
    """Loaders' workers live on after a notice, else the loop has no data until its step is done and saved.

    signal_handling: the module `torch.utils.data._utils.signal_handling`.
    """
    original = signal_handling._set_worker_signal_handlers

    def set_handlers(*given: Any, **more: Any) -> Any:
        def of_worker(number: int, frame: FrameType | None) -> None:
            if not _of_notice():
                os._exit(0)  # as PyTorch's own handler does for its parent, which takes a death by signal for a fault
            original(*given, **more)  # that was the notice, which went to the whole group; the next is its parent's

        done = original(*given, **more)
        if os.environ.get(FILE) and not written():
            signal.signal(signal.SIGTERM, of_worker)
        return done

    signal_handling._set_worker_signal_handlers = set_handlers
