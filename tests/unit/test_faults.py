"""The injector of failing system calls: it sees what the code calls, and only that fails."""

from __future__ import annotations

import errno
import os
import select
import socket
from pathlib import Path

import pytest

from faults import Call, Fault, Injector, errnos
from gpuloom.executors import wire


def scenario(folder: Path) -> None:
    wire.write_atomic(f"{folder}/x", {"a": 1})
    wire.read_json(f"{folder}/x")
    wire.remove(f"{folder}/x")


def test_every_call_is_seen_where_it_is_made(tmp_path: Path) -> None:
    with Injector(("executors/wire.py",)) as seen:
        scenario(tmp_path)
        os.stat(tmp_path)  # not the code's own
    assert {call.function for call in seen.calls} == {"open", "write", "rename", "open.read", "fstat", "read", "unlink"}
    assert all(call.site.startswith("wire.py:") for call in seen.calls)
    with Injector(("store",)) as others:
        scenario(tmp_path)
    assert not others.calls


def test_each_of_them_can_fail(tmp_path: Path) -> None:
    with Injector(("executors",)) as seen:
        scenario(tmp_path)
    for call in seen.calls:
        for number in errnos(call):
            with (
                Injector(("executors",), Fault(call, number)) as injector,
                pytest.raises(OSError, match="Errno") as found,
            ):
                scenario(tmp_path)
            assert (found.value.errno, injector.failed) == (number, 1)


def test_a_fault_lasts_until_it_is_over(tmp_path: Path) -> None:
    over = tmp_path / "over"
    with Injector(
        ("executors",), Fault.read(Fault(Call("rename", ""), errno.EROFS, until=str(over)).written())
    ) as injector:
        for _ in range(2):
            with pytest.raises(OSError, match="Read-only"):
                wire.write_atomic(f"{tmp_path}/x", {})
        over.touch()
        wire.write_atomic(f"{tmp_path}/x", {})
    assert injector.failed == 2


def test_all_is_as_before_afterwards() -> None:
    before = (os.open, os.rename, open, socket.socket, socket.socket.accept, select.epoll)
    with Injector(("executors",)):
        assert os.open is not before[0]
    assert (os.open, os.rename, open, socket.socket, socket.socket.accept, select.epoll) == before
    assert "accept" in vars(socket.socket)
    assert "connect" not in vars(socket.socket)
