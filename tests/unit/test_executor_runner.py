"""Parts of the local executor: starting, the socket, GPUs that must be free, container tools."""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from faults import Call, Fault, Injector
from gpuloom.core.end_reason import EndReason
from gpuloom.core.errors import InputError
from gpuloom.executors import procs, verify, wire
from gpuloom.executors.local import LocalExecutor
from gpuloom.executors.port import Cause, ExecutorError, RunExit, RunPhase, RunRequest, RunStatus
from gpuloom.executors.runner import launch
from gpuloom.executors.runner.hub import Hub
from gpuloom.executors.runner.life import RunningJob
from gpuloom.executors.runner.limits import Limits
from gpuloom.executors.runner.loop import Loop
from gpuloom.executors.verify import GpuCheck
from until import until

NOFILE = resource.getrlimit(resource.RLIMIT_NOFILE)


class TestLimits:
    def test_a_time_limit_is_looked_at_once_however_often_a_run_is_thawed(self, tmp_path: Path) -> None:
        loop, runs, stopped = Loop(), dict[str, RunningJob](), list[str]()

        def stop(run: RunningJob, reason: str, grace_s: float, message: str) -> None:
            stopped.append(reason)
            loop.soon(lambda: None)  # the turn need not wait for what is left

        limits = Limits(loop, runs, stop, lambda run, mib: None)
        run = runs["1.1"] = RunningJob(wire.StartRequest("1.1", str(tmp_path), limit_s=3600.0), "home", "")
        run.phase = wire.RunPhase.RUNNING
        for _ in range(50):
            run.frozen_s += 1.0
            limits.look(run)
        assert len(loop._timers) == 1
        run.limit_s = run.running_s(time.monotonic()) + 0.05  # an earlier one counts at once
        limits.look(run)
        while not stopped:
            loop.turn()
        assert stopped == ["timed_out"]
        runs.clear()
        gone = weakref.ref(run)
        del run
        assert gone() is None


class TestLaunch:
    def request(self, tmp_path: Path) -> wire.StartRequest:
        env = {"PATH": os.environ["PATH"]}
        return wire.StartRequest("1.1", str(tmp_path), ("touch", "ran"), cwd=str(tmp_path), env=env)

    def test_a_child_that_is_not_released_runs_nothing(self, tmp_path: Path) -> None:
        """As when the runner is killed before it has written down that the run was started."""
        child = launch.fork(self.request(tmp_path), NOFILE)
        child.drop()
        assert os.waitstatus_to_exitcode(os.waitpid(child.pid, 0)[1]) == 127
        assert list(tmp_path.iterdir()) == []

    def test_a_released_child_runs(self, tmp_path: Path) -> None:
        child = launch.fork(self.request(tmp_path), NOFILE)
        child.release()
        assert os.read(child.said, 4096) == b""
        os.close(child.said)
        assert os.waitstatus_to_exitcode(os.waitpid(child.pid, 0)[1]) == 0
        assert (tmp_path / "ran").exists()

    @pytest.mark.parametrize("held", [False, True])
    def test_a_child_that_is_refused_at_the_last_moment(self, tmp_path: Path, held: bool) -> None:
        """As when the lease of its node ran out while the runner stood still."""
        child = launch.fork(self.request(tmp_path), NOFILE, lambda: (wire.Cause.NODE, "the lease is over"))
        if held:
            child.hold()
            until(child.ready)
        child.release()
        assert child.heard() == {"cause": "node", "message": "the lease is over"}
        os.close(child.said)
        os.waitpid(child.pid, 0)
        assert not (tmp_path / "ran").exists()

    def test_a_log_that_can_not_be_written(self, tmp_path: Path) -> None:
        child = launch.fork(replace(self.request(tmp_path), directory=f"{tmp_path}/missing"), NOFILE)
        child.release()
        assert b"can't write the log" in os.read(child.said, 4096)
        os.close(child.said)
        os.waitpid(child.pid, 0)

    def test_a_reason_that_takes_many_bytes(self, tmp_path: Path) -> None:
        """Of a program with a long name in another alphabet, say: more than one read brings."""
        child = launch.fork(replace(self.request(tmp_path), argv=("\U0001f9f6" * 3000,)), NOFILE)
        child.release()
        said = child.heard()
        os.close(child.said)
        os.waitpid(child.pid, 0)
        assert said is not None
        assert said["cause"] == wire.Cause.JOB
        assert said["message"].startswith("can't run '\U0001f9f6")

    def test_a_child_that_is_ended_while_it_says_why(self, tmp_path: Path) -> None:
        said, saying = os.pipe()
        os.write(saying, b'{"cause": "job", "mess')
        os.close(saying)
        found = launch.Child(0, -1, said).heard()
        os.close(said)
        assert found is not None
        assert found["cause"] is wire.Cause.EXECUTOR


class TestWire:
    def test_lines_in_pieces(self) -> None:
        data = wire.encode({"a": 1}) + wire.encode({"b": "ü\n"})
        for size in range(1, len(data) + 1):
            lines = wire.LineBuffer()
            found = [m for at in range(0, len(data), size) for m in lines.feed(data[at : at + size])]
            assert found == [{"a": 1}, {"b": "ü\n"}]

    def test_messages_left_for_later(self) -> None:
        """Who looks for one message only finds the others at the next look, whole."""
        lines = wire.LineBuffer()
        assert next(lines.feed(b"".join(wire.encode({"a": n}) for n in range(3)) + b'{"a"')) == {"a": 0}
        assert next(lines.feed(b"")) == {"a": 1}
        assert list(lines.feed(b": 3}\n")) == [{"a": 2}, {"a": 3}]

    @pytest.mark.parametrize("data", [b"no json\n", b"[1]\n"])
    def test_what_is_no_message(self, data: bytes) -> None:
        with pytest.raises(ValueError, match=r"Expecting|not a message"):
            list(wire.LineBuffer().feed(data))

    def test_a_write_that_fails_leaves_the_file(self, tmp_path: Path) -> None:
        path = str(tmp_path / "x.json")
        wire.write_atomic(path, {"a": 1})
        with pytest.raises(TypeError):
            wire.write_atomic(path, {"a": object()})
        assert wire.read_json(path) == {"a": 1}
        (tmp_path / "x.json").write_text("{ half")
        assert wire.read_json(path) is None
        assert wire.read_json(str(tmp_path / "none")) is None


class TestLoop:
    @pytest.mark.parametrize("wait_s", [2.0**31 / 1000 + 1, 30 * 86_400.0, 1e10, 1e300, float("inf")])
    def test_however_far_away_a_time_is(self, wait_s: float) -> None:
        """epoll counts milliseconds in 31 bits: 24.86 days."""
        loop, done = Loop(), []
        loop.after(wait_s, lambda: done.append("time"))
        read, write = os.pipe()
        loop.add(read, lambda fd: done.append(os.read(fd, 1).decode()))
        os.write(write, b"x")
        loop.turn()
        assert done == ["x"]
        for fd in (read, write):
            os.close(fd)


class TestHub:
    def test_what_fails_is_tried_again_once_a_turn_however_much_is_asked_meanwhile(self, tmp_path: Path) -> None:
        loop, worked, full = Loop(), list[int](), True

        def answer(message: dict[str, Any]) -> dict[str, Any]:
            if full:
                raise OSError(errno.ENOSPC, "No space left on device")
            worked.append(message["id"])
            loop.soon(lambda: None)  # the turn need not wait for what is left
            return {"re": message["id"]}

        with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as scheduler:
            listener.bind(str(tmp_path / "sock"))
            listener.listen()
            Hub(loop, listener, answer, lambda: None)
            scheduler.connect(str(tmp_path / "sock"))
            loop.turn()
            for number in range(20):
                scheduler.sendall(wire.encode({"id": number, "op": "start"}))
                loop.soon(lambda: None)
                loop.turn()
            assert len(loop._timers) == 1
            full = False
            while len(worked) < 20:
                loop.turn()
            scheduler.close()
            loop.turn()  # it hangs up
        assert worked == list(range(20))


class TestStart:
    def test_a_request_comes_over_the_wire_as_it_was(self) -> None:
        whole = wire.StartRequest(
            *("1.1", "/runs/1/1", ("sh", "-c", "é"), "/tmp", {"A": "b"}, 60.0, 5.0, 2.5, 512, 64.0, 4),
            *(("podman", "gpuloom-1.1"), ("GPU-a", "GPU-b")),
        )
        for request in (whole, wire.StartRequest("1.1", "/runs/1/1")):
            assert all(each.name in request.to_json() for each in fields(wire.StartRequest))
            (told,) = wire.LineBuffer().feed(wire.encode(request.to_json()))
            assert wire.start_request_of(told) == request
        with pytest.raises(KeyError):
            wire.start_request_of({"run": "1.1"})

    def test_the_runner_loads_what_is_light(self) -> None:
        code = "import sys; sys.path.append(sys.argv[1]); import gpuloom.executors.runner.main; print(*sys.modules)"
        source = Path(__file__).parents[2] / "src"
        loaded = subprocess.check_output([sys.executable, "-I", "-S", "-c", code, source], text=True).split()
        heavy = {"asyncio", "concurrent.futures", "logging", "pathlib", "subprocess", "threading", "typing"}
        assert heavy & set(loaded) == set()
        assert {name for name in loaded if name.startswith("gpuloom.")} - {
            name for name in loaded if name.startswith("gpuloom.executors.runner")
        } == {
            *(
                "gpuloom.core",
                "gpuloom.core.end_reason",
                "gpuloom.core.faults",
                "gpuloom.core.waiting",
                "gpuloom.executors",
            ),
            *("gpuloom.executors.lease", "gpuloom.executors.own_log"),
            *("gpuloom.executors.procs", "gpuloom.executors.wire"),
        }


class TestProcesses:
    def test_names_with_brackets(self) -> None:
        text = b"12 (a) b (c) S 3 4 5 0 -1 0 0 0 0 0 7 8 0 0 20 0 1 0 999 1000 42 18446744073709551615"
        entry = procs.Process(12, text)
        assert (entry.name, entry.state, entry.ppid, entry.pgrp, entry.session) == ("a) b (c", "S", 3, 4, 5)
        assert (entry.start_ticks, entry.rss) == (999, 42 * procs.PAGE)

    def test_signals_hit_no_other_process_of_the_same_number(self) -> None:
        with subprocess.Popen(["sleep", "60"]) as child:
            entry = procs.process(child.pid)
            assert entry is not None
            entry.start_ticks += 1
            assert not procs.send(entry, signal.SIGKILL)
            entry.start_ticks -= 1
            assert procs.send(entry, signal.SIGKILL)
            assert child.wait() == -signal.SIGKILL
            assert not procs.send(entry, signal.SIGKILL)

    def test_memory_that_is_shared_counts_once(self) -> None:
        assert 1 << 20 < procs.proportional_bytes(os.getpid()) < 1 << 32
        assert procs.proportional_bytes(2**22 + 1) == 0


class TestExecutor:
    def test_modes(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("GPULOOM_CGROUPS", "v3")
        with pytest.raises(InputError, match="GPULOOM_CGROUPS is 'v3': must be one of auto, v2, v1, off"):
            LocalExecutor(tmp_path)

    def test_other_systems(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "platform", "darwin")
        with pytest.raises(ExecutorError, match="needs Linux, but this is darwin"):
            LocalExecutor(tmp_path)

    def test_a_runner_of_another_version(self, tmp_path: Path) -> None:
        """It is told of, not talked to: its jobs run on."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(str(tmp_path / "runner.sock"))
            listener.listen()

            def answer() -> None:
                connection, _ = listener.accept()
                with connection:
                    connection.recv(4096)
                    connection.sendall(wire.encode({"re": 0, "version": 99, "pid": 5, "limits": {}, "trouble": ""}))

            thread = threading.Thread(target=answer)
            thread.start()
            executor = LocalExecutor(tmp_path, cgroups="off")
            with pytest.raises(ExecutorError, match="speaks version 99"):
                executor.open(lambda _: None)
            thread.join()

    @pytest.mark.parametrize("news", [b'{"trouble":"the disk is full"}\n', b"[]\n", b'{"status":{}}\n', b"{"])
    def test_news_that_comes_together_with_the_greeting(self, tmp_path: Path, news: bytes) -> None:
        """What can't be read ends that connection, not the link: what was asked is asked again over the next one."""
        hello = wire.encode({"re": 0, "version": wire.VERSION, "pid": 5, "limits": {}, "trouble": ""})
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(str(tmp_path / "runner.sock"))
            listener.listen()

            def answer() -> None:
                for broken in (True, False):
                    connection, _ = listener.accept()
                    lines = wire.LineBuffer()
                    with connection, suppress(ConnectionError):
                        while data := connection.recv(4096):
                            for message in lines.feed(data):
                                if message["op"] == "hello":
                                    said = hello + news if broken else hello
                                else:
                                    said = b"no json\n" if broken else wire.encode({"re": message["id"], "runs": []})
                                connection.sendall(said)

            thread = threading.Thread(target=answer)
            thread.start()
            executor = LocalExecutor(tmp_path, cgroups="off")
            executor.open(lambda _: None)
            assert executor.runs() == []
            executor.close()
            thread.join(timeout=10)
            assert not thread.is_alive()

    def test_a_runner_that_tells_news_before_it_answers(self, tmp_path: Path) -> None:
        """What it says unasked is taken in while `open` waits for the answer, whatever is locked meanwhile."""
        run = {
            "run": "1.1",
            "pid": 7,
            "start_ticks": 1,
            "boot_id": "b",
            "gpu_uuids": [],
            "phase": "running",
            "exit": None,
        }
        end = {"exit_code": 0, "signal": None, "reason": "", "message": "", "at_s": 1.0}
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(str(tmp_path / "runner.sock"))
            listener.listen()

            def answer() -> None:
                connection, _ = listener.accept()
                lines = wire.LineBuffer()
                with connection, suppress(ConnectionError):
                    while data := connection.recv(4096):
                        for message in lines.feed(data):
                            if message["op"] == "hello":
                                connection.sendall(
                                    wire.encode({"re": 0, "version": wire.VERSION, "pid": 5, "limits": {}})
                                )
                                continue
                            news = {"status": {**run, "phase": "exited", "exit": end}}
                            connection.sendall(wire.encode(news) + wire.encode({"re": message["id"], "runs": [run]}))

            thread = threading.Thread(target=answer)
            thread.start()
            told: list[RunStatus] = []
            executor = LocalExecutor(tmp_path, cgroups="off")
            executor.open(told.append, patience_s=10.0)
            assert [status.phase for status in told] == [RunPhase.EXITED]
            executor.close()
            thread.join(timeout=10)
            assert not thread.is_alive()

    def test_a_start_that_the_runner_can_not_handle_has_not_begun(self, tmp_path: Path) -> None:
        """It says `failed`: the job goes back to the queue, instead of starting for ever."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(str(tmp_path / "runner.sock"))
            listener.listen()

            def answer() -> None:
                connection, _ = listener.accept()
                lines = wire.LineBuffer()
                replies = {
                    "hello": {"version": wire.VERSION, "pid": 5, "limits": {}},
                    "runs": {"runs": []},
                    "start": {"failed": "KeyError('cwd')"},
                }
                with connection, suppress(ConnectionError):
                    while data := connection.recv(65536):
                        for message in lines.feed(data):
                            connection.sendall(wire.encode({"re": message.get("id", 0), **replies[message["op"]]}))

            thread = threading.Thread(target=answer)
            thread.start()
            told: list[RunStatus] = []
            executor = LocalExecutor(tmp_path, cgroups="off")
            executor.open(told.append, patience_s=10.0)
            directory = str(tmp_path / "runs" / "1.1")
            executor.start(RunRequest("1.1", ("true",), "/", {}, (0,), (), directory, kind="cpu"))
            until(lambda: told)
            (status,) = told
            assert (status.run, status.phase) == ("1.1", RunPhase.EXITED)
            assert status.exit is not None
            assert (status.exit.reason, status.exit.cause) == (EndReason.NOT_STARTED, Cause.EXECUTOR)
            assert status.exit.message == "the runner can't start the job: KeyError('cwd')"
            assert "KeyError" in executor.healthy()
            executor.close()
            thread.join(timeout=10)
            assert not thread.is_alive()

    def test_a_runner_that_is_frozen(self, tmp_path: Path) -> None:
        executor = LocalExecutor(tmp_path, cgroups="off")
        executor.open(lambda _: None)
        runner = executor._link.hello["pid"]
        os.kill(runner, signal.SIGSTOP)
        try:
            for run in range(20_000):  # more than the socket holds: who asks does not wait
                executor.stop(f"{run}.1", reason=EndReason.CANCELLED, grace_s=0)
            with pytest.raises(ExecutorError, match=f"kill -CONT {runner}"):
                executor.runs(patience_s=0.2)
            other = LocalExecutor(tmp_path, cgroups="off")
            with pytest.raises(ExecutorError, match=f"kill -CONT {runner}"):
                other.open(lambda _: None, patience_s=0.3)
        finally:
            os.kill(runner, signal.SIGCONT)
        assert executor.runs() == []
        executor.close()
        os.kill(runner, signal.SIGKILL)

    def test_a_runner_that_can_not_be_started(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "executable", "/bin/false")
        executor = LocalExecutor(tmp_path, cgroups="off")
        with pytest.raises(ExecutorError, match="the runner ended with code 1"):
            executor.open(lambda _: None)

    def test_its_log_is_kept_however_long_it_is(self, tmp_path: Path) -> None:
        """What the runner before said last is what one wants to know; the runner itself rotates it."""
        (tmp_path / wire.RUNNER_LOG).write_bytes(b"why it ended\n" + b"\n" * (2 << 20))
        executor = LocalExecutor(tmp_path, cgroups="off")
        executor.open(lambda _: None)
        executor.close()
        assert (tmp_path / wire.RUNNER_LOG).read_bytes().startswith(b"why it ended\n")

    def test_a_message_that_can_not_be_worked_on_is_logged_without_what_it_holds(self, tmp_path: Path) -> None:
        executor = LocalExecutor(tmp_path, cgroups="off")
        executor.open(lambda _: None)
        executor._link.ask("start", request={"run": "1.1", "env": {"TOKEN": "hunter2"}})
        until(executor.healthy)
        executor.close()
        said = (tmp_path / wire.RUNNER_LOG).read_text()
        assert "a scheduler's message 'start' can't be handled" in said
        assert "hunter2" not in said

    def test_a_closed_one(self, tmp_path: Path) -> None:
        executor = LocalExecutor(tmp_path, cgroups="off")
        executor.open(lambda _: None)
        executor.close()
        with pytest.raises(ExecutorError, match="the executor is closed"):
            executor.runs()

    def test_containers_are_ended_by_their_tool(self, tmp_path: Path) -> None:
        """A stand-in for docker: its `run` is a client, what it starts is not below it."""
        tool = tmp_path / "docker"
        tool.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/said\n[ "$1" = run ] && exec sleep 600\nexit 0\n')
        tool.chmod(0o755)
        told: list[RunStatus] = []
        executor = LocalExecutor(tmp_path / "home", cgroups="off")
        executor.open(told.append)
        argv = (str(tool), "run", "--rm", "--init", "--name", "gpuloom-1.1-aa", "image", "python")
        env = {"PATH": os.environ["PATH"]}
        directory = str(tmp_path / "home" / "runs" / "1.1")
        executor.start(RunRequest("1.1", argv, "/", env, (0,), (), directory, kind="cpu", cpus=2.0, memory_mib=600))
        until(lambda: (tmp_path / "said").exists() and (tmp_path / "said").read_text())
        until(lambda: any(status.phase is RunPhase.RUNNING for status in told))
        executor.freeze("1.1")
        until(lambda: any(status.phase is RunPhase.FROZEN for status in told))
        executor.stop("1.1", reason=EndReason.CANCELLED, grace_s=0)
        until(lambda: any(status.phase is RunPhase.EXITED for status in told))
        said = (tmp_path / "said").read_text().splitlines()
        assert said[0].startswith("run --rm --init --name gpuloom-1.1-aa --cpus 2 --memory 600m")
        assert set(said[1:]) == {"pause gpuloom-1.1-aa", "unpause gpuloom-1.1-aa", "kill gpuloom-1.1-aa"}
        executor.acknowledge("1.1")
        assert executor.runs() == []
        runner = executor._link.hello["pid"]
        executor.close()
        os.kill(runner, signal.SIGKILL)


def ended(run: str = "1.1", pid: int | None = None) -> RunStatus:
    exit_ = RunExit(exit_code=0, signal=None, reason=None, message="", at_s=0.0)
    return RunStatus(run, RunPhase.EXITED, pid=pid, start_ticks=1, boot_id="b", exit=exit_)


class TestGpus:
    """A GPU counts as free when no process of the run holds it."""

    def check(self, holders: Callable[[], Sequence[int]], told: list[RunStatus], timeout_s: float = 10.0) -> GpuCheck:
        return GpuCheck(lambda uuids: {uuid: holders() for uuid in uuids}, "home", told.append, timeout_s)

    def test_waits_until_they_are_free(self) -> None:
        told: list[RunStatus] = []
        holds = threading.Event()
        holds.set()
        env = {**os.environ, "GPULOOM_RUN": "home:1.1"}
        with subprocess.Popen(["sleep", "60"], env=env) as child:
            until(lambda: procs.marked(child.pid, b"GPULOOM_RUN=home:1.1"))
            looks = 0

            def holders() -> list[int]:
                nonlocal looks
                looks += 1
                return [child.pid] if holds.is_set() else []

            check = self.check(holders, told)
            status = check.of(ended(), ["GPU-a"])
            assert (status.phase, status.exit) == (RunPhase.STOPPING, None)
            until(lambda: looks > 2, "a few looks")
            assert told == []
            holds.clear()
            until(lambda: told)
            assert told == [ended()]
            assert check.of(ended(), ["GPU-a"]) == ended()
            child.kill()
        check.close()

    def test_processes_of_others_are_no_matter(self) -> None:
        told: list[RunStatus] = []
        check = self.check(lambda: [os.getpid()], told)
        check.of(ended(), ["GPU-a"])
        until(lambda: told)
        assert told[0].exit == ended().exit
        check.close()

    def test_one_that_is_never_free(self) -> None:
        told: list[RunStatus] = []
        check = self.check(lambda: [os.getpid()], told, timeout_s=0.2)
        check.of(ended(pid=os.getpid()), ["GPU-a"])
        until(lambda: told)
        assert told[0].exit is not None
        assert not told[0].exit.released
        assert told[0].exit.message == f"still on its GPUs: process {os.getpid()} on GPU-a"
        check.close()

    def test_what_is_forgotten_is_looked_at_no_more(self) -> None:
        told: list[RunStatus] = []
        looked = threading.Semaphore(0)

        def holders() -> Sequence[int]:
            looked.release()
            return [os.getpid()]

        check = self.check(holders, told, timeout_s=60.0)
        check.of(ended(pid=os.getpid()), ["GPU-a"])
        assert looked.acquire(timeout=20)
        check.forget("1.1")
        assert check._waiting == {}
        check.of(ended("2.1"), ["GPU-a"])  # the other way: its end is known already
        until(lambda: told)
        assert [status.run for status in told] == ["2.1"]
        assert check.of(ended("2.1"), ["GPU-a"]).phase is RunPhase.EXITED
        check.forget("2.1")
        assert check.of(ended("2.1"), ["GPU-a"]).phase is RunPhase.STOPPING
        check.close()

    def test_a_driver_that_fails(self) -> None:
        told: list[RunStatus] = []

        def broken() -> Sequence[int]:
            raise RuntimeError("GPU is lost")

        check = self.check(broken, told, timeout_s=0.2)
        check.of(ended(), ["GPU-a"])
        until(lambda: told)
        assert told[0].exit is not None
        assert not told[0].exit.released
        assert told[0].exit.message == "its GPUs could not be checked: GPU is lost"
        check.close()

    @pytest.mark.parametrize("broken", [False, True])
    def test_what_is_free_late_is_told_again(self, broken: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        """A driver that answers again, a process that has gone at last: the GPU is not lost for good."""
        monkeypatch.setattr(verify, "LATER_S", 0.01)
        told: list[RunStatus] = []
        over = threading.Event()

        def holders() -> Sequence[int]:
            if over.is_set():
                return []
            if broken:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return [os.getpid()]

        check = self.check(holders, told, timeout_s=0.05)
        status = ended(pid=os.getpid())
        check.of(status, ["GPU-a"])
        until(lambda: told)
        assert told[0].exit is not None
        assert not told[0].exit.released
        assert check.of(status, ["GPU-a"]) == told[0]
        assert ("GPUs of run 1.1" in check.problem) == broken
        over.set()
        until(lambda: told[1:])
        assert told[1:] == [status]
        until(lambda: check.problem == "")
        assert check.of(status, ["GPU-a"]) == status
        check.close()

    @pytest.mark.parametrize("number", [errno.EMFILE, errno.EIO])
    def test_a_process_that_can_not_be_looked_at_may_be_its_own(self, number: int) -> None:
        told: list[RunStatus] = []
        env = {**os.environ, "GPULOOM_RUN": "home:1.1"}
        with subprocess.Popen(["sleep", "60"], env=env) as child:
            until(lambda: procs.marked(child.pid, b"GPULOOM_RUN=home:1.1"))
            entry = procs.process(child.pid)
            assert entry is not None
            marks = procs.Marks()
            with Injector(("executors",)) as seen:
                procs.marked(child.pid, b"GPULOOM_RUN=home:1.1")
            reads = next(call for call in seen.calls if call.function == "open.read")
            with (
                Injector(("executors",), Fault(Call(reads.function, ""), number)),
                pytest.raises(OSError, match="Errno"),
            ):
                marks.of(entry)
            assert marks.of(entry) == b"GPULOOM_RUN=home:1.1"
            check = self.check(lambda: [child.pid], told, timeout_s=0.05)
            with Injector(("executors",), Fault(Call(reads.function, ""), number, times=1 << 30)):
                check.of(ended(), ["GPU-a"])
                until(lambda: told)
            assert told[0].exit is not None
            assert not told[0].exit.released
            child.kill()
        check.close()

    def test_in_the_executor(self, tmp_path: Path) -> None:
        """The end of a run is told once its GPU is free; a new scheduler looks again."""
        holders: list[int] = []
        told: list[RunStatus] = []
        executor = LocalExecutor(tmp_path, gpu_processes=lambda uuids: dict.fromkeys(uuids, holders), cgroups="off")
        executor.open(told.append)
        env = {"PATH": os.environ["PATH"]}
        request = RunRequest("1.1", ("sleep", "60"), "/", env, (0,), ("GPU-a",), str(tmp_path / "runs" / "1.1"))
        executor.start(request)
        until(lambda: told)
        holders.append(told[0].pid or 0)
        executor.stop("1.1", reason=EndReason.CANCELLED, grace_s=0)
        until(lambda: [status.phase for status in executor.runs()] == [RunPhase.STOPPING])
        until(lambda: procs.process(told[0].pid or 0) is None)
        assert all(status.phase is not RunPhase.EXITED for status in told)
        holders.clear()
        until(lambda: any(status.phase is RunPhase.EXITED for status in told))
        assert [status.exit for status in executor.runs()] == [told[-1].exit]
        assert json.loads((tmp_path / "runs" / "1.1" / "run.json").read_text())["gpu_uuids"] == ["GPU-a"]
        executor.acknowledge("1.1")
        assert executor.runs() == []
        runner = executor._link.hello["pid"]
        executor.close()
        os.kill(runner, signal.SIGKILL)
