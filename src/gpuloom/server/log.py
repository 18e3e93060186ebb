"""The log of the scheduler and of a node process: lines on standard error and in HOME/scheduler.log or HOME/node.log,
with rotation and repeated lines counted.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import traceback
from pathlib import Path

from gpuloom.executors.own_log import EVERY_S, OwnLog, is_file

MOST_TRACEBACK = 20_000
"""Characters of a traceback, its end."""


class LogHandler(logging.Handler):
    """Records of Python's logging into logs of our own. What was counted is told in time also if no more comes."""

    def __init__(self, *logs: OwnLog) -> None:
        super().__init__()
        self.logs = logs
        self._timer: threading.Timer | None = None

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = f"{record.levelname} {record.name}: {record.getMessage()}"
            kind = f"{record.name} {record.msg}" if record.levelno >= logging.WARNING else None
            key, tail = line, ""
            if record.exc_info and (error := record.exc_info[1]) is not None:
                frames = traceback.extract_tb(error.__traceback__)
                place = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
                key = f"{line} {type(error).__name__} {error} {place}"
                tail = "".join(traceback.format_exception(error))[-MOST_TRACEBACK:]
            for log in self.logs:
                log.write(line, head=f"{_now()} ", tail=tail, key=key, kind=kind)
            self._watch()
        except Exception:
            self.handleError(record)

    def close(self) -> None:
        self._write_repeats(all_=True)
        super().close()

    def _watch(self) -> None:
        if self._timer is None and any(log.waits for log in self.logs):
            timer = threading.Timer(EVERY_S, self._write_repeats)
            timer.daemon = True
            try:
                timer.start()
            except RuntimeError:  # no thread is to be had: it is told with the next line
                return
            self._timer = timer

    def _write_repeats(self, *, all_: bool = False) -> None:
        self.acquire()
        try:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            for log in self.logs:
                log.flush(f"{_now()} ", all_=all_)
            if not all_:
                self._watch()
        finally:
            self.release()


def _now() -> str:
    now = time.time()
    return f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(now))},{int(now % 1 * 1000):03d}"


def begin(level: str) -> None:
    """Log to standard error, whatever library it comes from."""
    _take(LogHandler(OwnLog(2, None)))
    logging.getLogger("gpuloom").setLevel(level.upper())


def keep(path: Path) -> None:
    """Log to this file as well, and rotate it. To be called by the one process that has the home."""
    if is_file(2, str(path)):
        _take(LogHandler(OwnLog(2, str(path))))
        return
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError as error:
        logging.getLogger(__name__).warning("%s can't be written: %s", path, error.strerror)
        return
    _take(LogHandler(OwnLog(2, None), OwnLog(descriptor, str(path))))


def _take(handler: LogHandler) -> None:
    logging.getLogger().handlers[:] = [handler]
