"""Corners of the runner: what it must let go of, each part on its own."""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpuloom.executors.runner import cgroups, hub, main
from gpuloom.executors.runner.keeper import Keeper
from gpuloom.executors.runner.life import RunningJob
from gpuloom.executors.runner.loop import Loop
from gpuloom.executors.wire import LOCK, SOCKET, StartRequest, socket_address
from until import until

SOURCE = Path(hub.__file__).parents[3]


def test_writing_to_a_control_group_keeps_no_file_open(tmp_path: Path) -> None:
    path = tmp_path / "cgroup.procs"
    path.touch()
    before = os.listdir("/proc/self/fd")
    for _ in range(3):
        cgroups.write(str(path), "77")
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_a_scheduler_that_reads_nothing_is_given_up_only_when_too_much_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "MAX_UNSENT", 1 << 20)
    loop, left = Loop(), []
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as scheduler:
        listener.bind(str(tmp_path / "socket"))
        listener.listen()
        one = hub.Hub(loop, listener, lambda message: None, lambda: left.append(1))
        scheduler.connect(str(tmp_path / "socket"))
        loop.turn()
        (client,) = one.clients.values()
        told = {"text": "x" * 100_000}
        while not client.unsent:
            one.tell(told)
        assert list(one.clients.values()) == [client], "what the socket can't take waits"
        while one.clients and len(client.unsent) < 2 << 20:
            one.tell(told)
        assert one.clients == {}
        assert 1 << 20 < len(client.unsent) < (1 << 20) + 200_000
        assert left


def test_a_runner_that_no_scheduler_comes_to_ends(tmp_path: Path) -> None:
    """As where the scheduler was killed as it started one."""
    code = (
        f"import sys; sys.path.append({str(SOURCE)!r}); from gpuloom.executors.runner import keeper, main; "
        f"keeper.FIRST_WAIT_S = 0.2; sys.exit(main.main({str(tmp_path)!r}, 'home', 'processes', '1', '100'))"
    )
    assert subprocess.run([sys.executable, "-I", "-S", "-c", code], cwd="/", check=False, timeout=60).returncode == 0

    def ended() -> bool:
        with (tmp_path / LOCK).open() as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
        return True

    until(ended, "the runner to end")


@pytest.mark.parametrize("acknowledged", [True, False])
@pytest.mark.parametrize("released", [True, False])
def test_a_run_is_forgotten_once_nothing_is_left_of_it_and_its_end_is_written_down(
    acknowledged: bool, released: bool, tmp_path: Path
) -> None:
    """As when its last process goes after the scheduler was told of its end."""
    run = RunningJob(StartRequest("1.1", str(tmp_path)), "home", "")
    run.exit = {"released": released}
    run.acknowledged = acknowledged
    forgotten: list[RunningJob] = []
    keeper: Any = SimpleNamespace(
        _logs=SimpleNamespace(end=lambda run: None),
        _report=lambda run: None,
        _forget=forgotten.append,
    )
    Keeper._concluded(keeper, run)
    assert forgotten == ([run] if acknowledged and released else [])


def test_a_runner_that_begins_is_the_only_one_and_leaves_jobs_their_umask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listeners: list[socket.socket] = []
    monkeypatch.setattr(main, "Keeper", lambda home, home_id, listener, files: listeners.append(listener) or "keeper")
    monkeypatch.setattr(main, "log_to", lambda path: None)
    monkeypatch.setattr(os, "fork", lambda: 0)

    def lock() -> int:
        return os.open(tmp_path / LOCK, os.O_RDWR | os.O_CREAT, 0o600)

    before = os.umask(0o027)
    try:
        (tmp_path / SOCKET).write_text("of one that was killed")
        assert main._begun(str(tmp_path), "home", 10, lock()) == "keeper"
        assert os.umask(0o027) == 0o027
        assert (tmp_path / SOCKET).stat().st_mode & 0o777 == 0o600
        with socket.socket(socket.AF_UNIX) as one:
            fd = os.open(tmp_path, os.O_RDONLY)
            one.connect(socket_address(fd))
            os.close(fd)
        assert not listeners[0].getblocking()
        assert main._begun(str(tmp_path), "home", 10, lock()) is None
    finally:
        os.umask(before)
        for listener in listeners:
            listener.close()
        for name in os.listdir("/proc/self/fd"):
            with suppress(OSError):
                if os.readlink(f"/proc/self/fd/{name}") in (str(tmp_path / LOCK), str(tmp_path)):
                    os.close(int(name))
