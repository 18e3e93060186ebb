"""Our own logs: rotated, repeats counted, nothing lost without a word."""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from faults import Fault, Injector, errnos
from gpuloom.executors import own_log
from gpuloom.executors.own_log import ALIKE, EVERY_S, OwnLog
from gpuloom.server.log import LogHandler


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def log(tmp_path: Path, clock: Clock) -> Iterator[OwnLog]:
    path = tmp_path / "own.log"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    found = OwnLog(descriptor, str(path), clock)
    yield found
    os.close(found.descriptor)


def lines(log: OwnLog) -> list[str]:
    assert log.path is not None
    return Path(log.path).read_text().splitlines()


def test_a_line_that_repeats_is_written_once_and_counted(log: OwnLog, clock: Clock) -> None:
    for _ in range(213):
        log.write("no room", head="now ")
    assert lines(log) == ["now no room"]
    assert log.waits
    clock.now_s += EVERY_S + 1
    log.flush("then ")
    assert lines(log) == ["now no room", "then no room (212 more in the last 60 s)"]
    log.write("no room")  # it goes on: told by its count alone
    assert len(lines(log)) == 2
    clock.now_s += EVERY_S + 1
    log.flush()
    assert lines(log)[2:] == ["no room (1 more in the last 60 s)"]
    clock.now_s += EVERY_S + 1
    log.flush()
    log.write("no room")  # after a quiet time it is news again
    assert lines(log)[3:] == ["no room"]


def test_lines_that_differ_by_their_values_are_bounded_together(log: OwnLog, clock: Clock) -> None:
    for number in range(500):
        log.write(f"peer {number} broke", kind="peer broke")
    assert len(lines(log)) == ALIKE
    clock.now_s += EVERY_S + 1
    log.flush()
    assert lines(log)[-1] == f"peer 499 broke ({500 - ALIKE} more like this in the last 60 s)"


def test_lines_of_no_kind_are_all_written(log: OwnLog) -> None:
    for number in range(own_log.MOST_SEEN + 100):
        log.write(f"job {number} ended")
    assert len(lines(log)) == own_log.MOST_SEEN + 100


def test_a_long_log_is_rotated(log: OwnLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_log, "MOST_BYTES", 1000)
    for number in range(900):
        log.write(f"line {number}")
    assert log.path is not None
    files = [Path(log.path), *(Path(f"{log.path}.{number}") for number in range(1, own_log.KEPT + 1))]
    assert all(0 < file.stat().st_size <= 1000 for file in files)
    assert not Path(f"{log.path}.{own_log.KEPT + 1}").exists()
    kept = [line for file in reversed(files) for line in file.read_text().splitlines()]
    assert kept == [f"line {number}" for number in range(900 - len(kept), 900)]


def test_where_no_new_file_is_to_be_had_the_old_ones_stay(log: OwnLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_log, "MOST_BYTES", 100)
    for number in range(30):
        log.write(f"line {number}")
    assert log.path is not None
    folder = Path(log.path).parent
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    def none(*_: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", none)
        for number in range(20):
            log.write(f"lost {number} {'x' * 100}")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    log.write("again")
    assert lines(log)[-2:] == ["(20 lines could not be written)", "again"]


def test_what_is_not_ours_is_not_rotated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_log, "MOST_BYTES", 10)
    with open(tmp_path / "theirs", "wb") as file:
        log = OwnLog(file.fileno(), None)
        for number in range(10):
            log.write(f"line {number}")
    assert os.listdir(tmp_path) == ["theirs"]


def test_lines_that_can_not_be_written_are_counted(log: OwnLog, clock: Clock) -> None:
    ours, full = log.descriptor, os.open("/dev/full", os.O_WRONLY)
    log.path, log.descriptor = None, full
    for number in range(3):
        log.write(f"line {number}")
    os.close(full)
    log.descriptor = ours
    log.write("there is room")
    content = Path(f"/proc/self/fd/{ours}").read_text()
    assert content == "(3 lines could not be written)\nthere is room\n"


def test_what_was_counted_is_told_also_if_no_thread_was_to_be_had_first(
    log: OwnLog, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    handler = LogHandler(log)
    record = logging.LogRecord("test", logging.INFO, "", 0, "again", (), None)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        handler.emit(record)
        handler.emit(record)
    handler.emit(record)
    assert handler._timer is not None
    assert handler._timer.is_alive()
    handler.close()
    assert lines(log)[-1].endswith(f"again (2 more in the last {EVERY_S:g} s)")


def test_a_traceback_is_written_once(log: OwnLog) -> None:
    handler, name = LogHandler(log), logging.getLogger("test.own_log")
    name.addHandler(handler)
    name.propagate = False
    try:
        for number in range(50):
            try:
                raise ValueError("the same")
            except ValueError:
                name.exception("it failed")
            name.warning("peer %d is odd", number)
    finally:
        name.removeHandler(handler)
        handler.close()
    text = "\n".join(lines(log))
    assert text.count("Traceback") == 1
    assert text.count("ERROR test.own_log: it failed") == 2  # itself, and its count
    assert "(49 more in the last 60 s)" in text
    assert f"peer 49 is odd ({50 - ALIKE} more like this" in text


def test_whatever_call_fails_lines_are_written_or_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every system call of it with each errno: nobody who writes a line notices, and no file handle is lost."""
    monkeypatch.setattr(own_log, "MOST_BYTES", 100)

    def told(name: str, fault: Fault | None) -> Injector:
        folder = tmp_path / name
        folder.mkdir()
        descriptor = os.open(folder / "own.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        log = OwnLog(descriptor, str(folder / "own.log"))
        handles = len(os.listdir("/proc/self/fd"))
        with Injector(("executors/own_log.py",), fault) as injector:
            for number in range(30):
                log.write(f"line {number}")
        log.write("the last line")
        assert len(os.listdir("/proc/self/fd")) == handles
        os.close(log.descriptor)
        kept = [line for path in sorted(folder.iterdir(), reverse=True) for line in path.read_text().splitlines()]
        assert kept[-1] == "the last line"
        numbers = [int(line.split()[1]) for line in kept if line.startswith("line ")]
        assert numbers == sorted(set(numbers))
        if fault is not None and log.lost == 0 and fault.times > 1 and fault.call.function == "write":
            assert "(30 lines could not be written)" in kept
        return injector

    calls = told("none", None).calls
    assert {"fstat", "stat", "replace", "open", "dup2", "write"} <= {call.function for call in calls}
    for tried, (call, number, times) in enumerate((c, n, t) for c in calls for n in errnos(c) for t in (1, 1000)):
        assert told(str(tried), Fault(call, number, times)).failed
