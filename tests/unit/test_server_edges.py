"""Bounds and messages of the API's and the executor's small parts, each on the smallest case that shows it."""

from __future__ import annotations

import asyncio
import errno
import logging
import math
import os
import resource
import socket
import struct
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gpuloom.core.end_reason import EndReason
from gpuloom.core.errors import ConflictError, ImpossibleJobError, InputError, NotFoundError
from gpuloom.core.events import Event
from gpuloom.executors import containers, open_files, procs, verify
from gpuloom.executors.environment import prepared
from gpuloom.executors.own_log import Repeats
from gpuloom.executors.runner import keeper
from gpuloom.executors.runner.again import Again
from gpuloom.executors.runner.limits import MEMORY_LOOK_S, Limits
from gpuloom.executors.wire import Cause, LineBuffer, RunPhase, StartRequest, blamed, encode, start_request_of
from gpuloom.interleave import efficiency
from gpuloom.interleave.efficiency import MEASURED_OVERHEAD, Interleaving
from gpuloom.server import auth, log, sse
from gpuloom.server.encoded import encoded
from gpuloom.server.guard import _with_headers
from gpuloom.server.parameters import _moment
from gpuloom.server.peers import Users
from gpuloom.server.problems import ProblemError, invalid_body, pointer, problem_of, told
from gpuloom.store.errors import StoreError

# -- what is asked for ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("5.5", 5.5),
        ("1970-01-02", 86_400.0),
        ("1970-01-01T01:00:00Z", 3600.0),
        ("1970-01-01T01:00:00+01:00", 0.0),
        (7, 7),
    ],
)
def test_a_moment(value: object, seconds: float) -> None:
    assert _moment(value) == seconds


@pytest.mark.parametrize(
    ("value", "says"), [("nan", "must be finite"), ("inf", "must be finite"), ("noon", "write sec")]
)
def test_what_is_no_moment(value: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        _moment(value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"a": [1.5, None, "ö"]}, '{"a":[1.5,null,"ö"]}'),
        ({"a": (math.inf, {"b": -math.inf}), "c": math.nan}, '{"a":[null,{"b":null}],"c":null}'),
        (["x\udcff", 1.0], '["x\\udcff",1.0]'),
    ],
)
def test_answers_can_always_be_encoded(value: Any, text: str) -> None:
    assert encoded(value) == text.encode()


@pytest.mark.parametrize(("token", "fits"), [("x" * 20, True), ("x" * 19, False), ("x" * 19 + "ö", False)])
def test_what_is_a_token(token: str, fits: bool) -> None:
    for bad in [*([] if fits else [token]), "x" * 20 + " ", "x" * 20 + "\n"]:
        with pytest.raises(InputError, match="here: a token is one line of 20 or more visible ASCII characters"):
            auth.check_token(bad, "here")
    if fits:
        auth.check_token(token, "here")


@pytest.mark.parametrize(
    ("header", "may"),
    [
        (b"Bearer secret", True),
        (b"bearer  secret ", True),
        (b"Basic secret", False),
        (b"Bearer other", False),
        (None, False),
    ],
)
def test_who_brings_the_token(header: bytes | None, may: bool) -> None:
    assert auth.allowed(header, b"secret") is may


# -- problems ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "kind", "status"),
    [
        (NotFoundError("x"), "not-found", 404),
        (ImpossibleJobError("x"), "impossible-job", 422),
        (ConflictError("x"), "conflict", 409),
        (InputError("x"), "invalid-input", 400),
        (ProblemError("too-slow", "x"), "too-slow", 408),
    ],
)
def test_errors_as_problems(error: Any, kind: str, status: int) -> None:
    found = problem_of(error)
    assert (found.kind, found.detail, found.response().status_code) == (kind, "x", status)


def test_a_store_that_fails_says_that_nothing_was_changed() -> None:
    found = problem_of(StoreError("full"))
    assert (found.kind, found.detail) == ("store-unavailable", "full. Nothing was changed")
    assert found.response().headers["retry-after"] == "5"


def test_places_in_a_body() -> None:
    assert pointer(("jobs", 3, "a/b~c", "[key]", "function-after[x]")) == "/jobs/3/a~1b~0c"
    assert pointer(()) == ""


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        ({"type": "missing", "msg": "", "loc": ("a",)}, "is missing"),
        (
            {"type": "extra_forbidden", "msg": "", "loc": ("gpu",)},
            "unknown field 'gpu'; did you mean 'gpus'?; known: gpus, x",
        ),
        ({"type": "dict_type", "msg": "", "loc": (), "input": [1]}, "must be a JSON object, not a list"),
        ({"type": "model_type", "msg": "", "loc": (), "input": None}, "must be a JSON object, not null"),
        ({"type": "model_type", "msg": "", "loc": (), "input": True}, "must be a JSON object, not true or false"),
        ({"type": "model_type", "msg": "", "loc": (), "input": 1.5}, "must be a JSON object, not a number"),
        ({"type": "value_error", "msg": "Value error, no", "loc": (), "input": {"a": 1}}, "no"),
        ({"type": "value_error", "msg": "Value error, no", "loc": ("a",), "input": 3}, "is 3: no"),
    ],
)
def test_what_is_wrong_with_a_field(entry: dict[str, Any], text: str) -> None:
    assert told(entry, ("gpus", "x")) == text


@pytest.mark.parametrize(("count", "more"), [(1, ""), (3, ""), (4, "; and 1 more"), (25, "; and 22 more")])
def test_the_first_mistakes_of_a_body_are_named(count: int, more: str) -> None:
    found = invalid_body([("" if number == 0 else f"/{number}", "no") for number in range(count)])
    assert found.detail == "; ".join(["the body: no", "/1: no", "/2: no"][:count]) + more
    body = found.response().body
    assert bytes(body).count(b'"where"') == min(count, 20)


# -- streams, peers, logs ------------------------------------------------------------------------------------


def test_what_an_event_is_about() -> None:
    many = sse.told(Event(7, 1.0, "jobs.submitted", 3, {"first": 3, "count": 2}))
    one, none = sse.told(Event(8, 1.0, "job.held", 5, {})), sse.told(Event(9, 1.0, "scheduler.started", None, {}))
    assert [job for job in range(9) if many.concerns(job)] == [3, 4]
    assert [job for job in range(9) if one.concerns(job)] == [5]
    assert [job for job in range(9) if none.concerns(job)] == []
    assert many.concerns(None)
    assert one.concerns(5, ["job.held"])
    assert not one.concerns(5, ["job.released"])
    assert one.wire.startswith(b"event: job.held\nid: 8\ndata: {")
    assert one.wire.endswith(b"}\n\n")
    assert sse.message({"a": 1}) == b'data: {"a":1}\n\n'


def test_wires_are_joined_to_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "PIECE", 4)
    assert list(sse.pieces([b"ab", b"cd", b"efghij", b"k"])) == [b"abcd", b"efghij", b"k"]
    assert list(sse.pieces([])) == []


class Kernel:
    """Answers as sock_diag does: for these families the socket's user."""

    def __init__(self, users: dict[int, int], *, inode: int = 5, length: int = 88) -> None:
        self.users, self.inode, self.length, self.asked = users, inode, length, list[int]()

    def send(self, data: bytes) -> None:
        self.family, self.number = data[16], struct.unpack_from("=I", data, 8)[0]
        self.asked.append(self.family)
        self.stale = True

    def recv(self, size: int) -> bytes:
        number = self.number - 1 if self.stale else self.number  # first an old answer
        self.stale = False
        kind = 20 if self.family in self.users else 2
        answer = bytearray(self.length)
        struct.pack_into("=IHHI", answer, 0, self.length, kind, 0, number)
        if self.length >= 88:
            struct.pack_into("=II", answer, 80, self.users.get(self.family, 0), self.inode)
        return bytes(answer)

    def close(self) -> None: ...


@pytest.mark.parametrize(
    ("there", "kernel", "peer"),
    [
        ("127.0.0.1", Kernel({socket.AF_INET: 1000}), ("uid", 1000)),
        ("127.0.0.1", Kernel({socket.AF_INET6: 1001}), ("uid", 1001)),
        ("::1", Kernel({socket.AF_INET6: 1001}), ("uid", 1001)),
        ("::1", Kernel({socket.AF_INET: 1000}), ("address", "::/64")),
        ("::ffff:127.0.0.1", Kernel({socket.AF_INET6: 7}), ("uid", 7)),
        ("127.0.0.1", Kernel({socket.AF_INET: 1000}, inode=0), ("address", "127.0.0.1")),
        ("127.0.0.1", Kernel({socket.AF_INET: 1000}, length=87), ("address", "127.0.0.1")),
        ("192.0.2.7", Kernel({socket.AF_INET: 1000}), ("address", "192.0.2.7")),
        ("::ffff:192.0.2.7", Kernel({}), ("address", "192.0.2.7")),
        ("2001:db8:1:2:3::4", Kernel({}), ("address", "2001:db8:1:2::/64")),
        ("fe80::1%eth0", Kernel({}), ("address", "fe80::/64")),
        ("", Kernel({}), ("address", "")),
    ],
)
def test_who_is_at_the_other_end(there: str, kernel: Kernel, peer: tuple[str, Any]) -> None:
    users = Users()
    users.close()
    users._kernel = kernel  # type: ignore[assignment]
    ends = {"peername": (there, 5) if there else None, "sockname": (there, 6)}
    transport = SimpleNamespace(get_extra_info=ends.get)
    assert users.peer(transport) == peer
    users.close()
    assert users.peer(transport)[0] == "address"


def test_lines_that_repeat_are_counted_by_line_and_by_kind() -> None:
    found = Repeats()
    assert found.take("a", "a", None, 0.0)
    assert not found.take("a", "a", None, 1.0)
    assert not found.take("a", "a", None, 2.0)
    assert found.waits
    assert found.due(59.0) == []
    assert found.due(60.5) == ["a (2 more in the last 60 s)"]
    assert not found.waits
    assert not found.take("a", "a", None, 61.0)  # while it goes on, its count alone is told
    assert found.due(61.0) == []  # looked at once a second
    assert found.due(121.0) == ["a (1 more in the last 60 s)"]
    assert found.due(200.0) == []
    assert found.take("a", "a", None, 201.0)
    kinds = [found.take(f"k{n}", f"k{n}", "kind", 300.0) for n in range(32)]
    assert kinds == [True] * 30 + [False] * 2
    assert found.due(400.0) == ["k31 (2 more like this in the last 60 s)"]


@pytest.fixture
def root() -> Iterator[None]:
    logger, own = logging.getLogger(), logging.getLogger("gpuloom")
    before, level = logger.handlers[:], own.level
    yield
    logger.handlers[:] = before
    own.setLevel(level)


@pytest.mark.usefixtures("root")
def test_logs_go_to_the_file_as_well(tmp_path: Path) -> None:
    log.begin("warning")
    (handler,) = logging.getLogger().handlers
    assert isinstance(handler, log.LogHandler)
    assert [(own.descriptor, own.path) for own in handler.logs] == [(2, None)]
    assert logging.getLogger("gpuloom").level == logging.WARNING
    log.keep(path := tmp_path / "x.log")
    (handler,) = logging.getLogger().handlers
    assert isinstance(handler, log.LogHandler)
    assert [own.path for own in handler.logs] == [None, str(path)]
    handler.logs = handler.logs[1:]
    logging.getLogger("gpuloom.x").warning("it is %s", "so")
    assert path.read_text().endswith(" WARNING gpuloom.x: it is so\n")
    assert path.stat().st_mode & 0o777 == 0o600
    os.close(handler.logs[0].descriptor)


def test_where_nothing_was_counted_no_timer_runs() -> None:
    own: Any = SimpleNamespace(waits=False, write=lambda *given, **named: None, flush=lambda head, *, all_: None)
    handler = log.LogHandler(own)
    handler.emit(logging.LogRecord("x", logging.INFO, "", 1, "so", (), None))
    assert handler._timer is None
    handler.close()


def test_what_was_counted_is_told_once_by_a_timer_that_ends_with_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    timers: list[Any] = []

    def timer(after_s: float, work: Any) -> Any:
        found = SimpleNamespace(after_s=after_s, work=work, ends=[])
        found.start, found.cancel = (lambda: None), (lambda: found.ends.append(True))
        timers.append(found)
        return found

    monkeypatch.setattr(threading, "Timer", timer)
    own: Any = SimpleNamespace(waits=True, told=[], write=lambda *given, **named: None)
    own.flush = lambda head, *, all_: own.told.append(all_)
    handler = log.LogHandler(own)
    for _ in range(2):
        handler.emit(logging.LogRecord("x", logging.INFO, "", 1, "so", (), None))
    assert [one.after_s for one in timers] == [60.0]
    assert timers[0].daemon
    timers[0].work()
    assert (len(timers), timers[0].ends, own.told) == (2, [True], [False])
    handler.close()
    assert (len(timers), timers[1].ends, own.told) == (2, [True], [False, True])
    free: list[bool] = []
    assert handler.lock is not None
    other = threading.Thread(target=lambda: free.append(handler.lock.acquire(timeout=10.0)))  # type: ignore[union-attr]
    other.start()
    other.join()
    assert free == [True]


@pytest.mark.parametrize(
    ("last", "given", "closes"),
    [(False, [], 0), (True, [], 1), (True, [(b"connection", b"close")], 1), (False, [(b"connection", b"close")], 1)],
)
def test_headers_that_every_answer_has(last: bool, given: list[tuple[bytes, bytes]], closes: int) -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def answer() -> None:
        dressed = _with_headers(send, last=last)
        await dressed({"type": "http.response.start", "headers": list(given)})
        await dressed({"type": "http.response.body"})

    asyncio.run(answer())
    headers = sent[0]["headers"]
    assert headers.count((b"connection", b"close")) == closes
    assert (b"cache-control", b"no-store") in headers
    assert (b"x-content-type-options", b"nosniff") in headers
    assert b"date" in dict(headers)
    assert sent[1] == {"type": "http.response.body"}


# -- the executor's parts ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "cause"),
    [
        *[(number, Cause.JOB) for number in (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ENOEXEC, errno.E2BIG)],
        *[(number, Cause.EXECUTOR) for number in (errno.ENOMEM, errno.EAGAIN, errno.EMFILE, errno.ENFILE)],
        (errno.EIO, Cause.PLACE),
        (errno.ESTALE, Cause.PLACE),
    ],
)
def test_who_is_to_blame_for_a_path(number: int, cause: Cause) -> None:
    assert blamed(OSError(number, "x")) is cause


def test_what_is_sent_to_the_runner_is_what_it_gets() -> None:
    whole = StartRequest(
        "1.1", "/runs/1.1", ("a", "b"), "/w", {"A": "b"}, 5.0, 2.0, 1.5, 64, 8.0, 3, ("docker", "x"), ("GPU-1",)
    )
    plain = StartRequest("1.1", "/runs/1.1")
    buffer = LineBuffer()
    for request in (whole, plain):
        line = encode(request.to_json())
        assert list(buffer.feed(line[:10])) == []
        (message,) = buffer.feed(line[10:])
        assert start_request_of(message) == request
    assert (plain.cwd, plain.grace_s, plain.log_mib, plain.log_files) == ("/", 0.0, 1.0, 0)
    with pytest.raises(ValueError, match=r"not a message: b'\[1\]'"):
        list(buffer.feed(b"[1]\n"))


@pytest.mark.parametrize(
    ("limits", "asked"),
    [
        ((1024, 4096), [(4096, 4096)]),
        ((1024, 100_000), [(65_536, 100_000)]),
        ((1024, resource.RLIM_INFINITY), [(65_536, resource.RLIM_INFINITY)]),
        ((4096, 4096), []),
        ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), []),
        ((70_000, 100_000), []),
    ],
)
def test_how_many_open_files_are_asked_for(
    limits: tuple[int, int], asked: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda kind: found[-1] if found else limits)
    monkeypatch.setattr(resource, "setrlimit", lambda kind, value: found.append(value))
    monkeypatch.setattr(open_files, "_before", None)
    assert open_files.of_jobs() == limits[0]
    open_files.ask_for_more()
    assert found == asked
    open_files.ask_for_more()
    assert open_files.of_jobs() == limits[0]


@pytest.mark.parametrize("fails", [False, True])
def test_the_runner_takes_all_open_files_and_leaves_jobs_their_limit(
    fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def setrlimit(kind: int, value: tuple[int, int]) -> None:
        asked.append((kind, value))
        if fails:
            raise ValueError

    monkeypatch.setattr(resource, "getrlimit", lambda kind: (256, 5000))
    monkeypatch.setattr(resource, "setrlimit", setrlimit)
    for name in ("Loop", "Hub", "LogKeeper", "Ends"):
        monkeypatch.setattr(keeper, name, lambda *given: SimpleNamespace(troubles=SimpleNamespace()))
    listener: Any = None
    found = keeper.Keeper("/home", "id", listener, 100)
    assert asked == [(resource.RLIMIT_NOFILE, (5000, 5000))]
    assert found.nofile == (100, 5000)


class Later:
    """A loop that notes what is to be done later."""

    def __init__(self) -> None:
        self.asked: list[tuple[float, Any]] = []
        self.told: list[str] = []
        self.troubles = SimpleNamespace(note=lambda what, text: self.told.append(text))

    def after(self, pause_s: float, work: Any, what: str = "") -> None:
        self.asked.append((pause_s, work))

    at = after

    def failed(self, what: str, error: BaseException) -> None:
        self.told.append(str(error))


def limited_run(**changes: Any) -> Any:
    plain: dict[str, Any] = {
        "name": "1.1", "limit_s": 10.0, "phase": RunPhase.RUNNING, "ended": None, "grace_s": 3.0, "memory_mib": None,
        "group": None, "running_s": lambda now: 4.0, "memory_over": lambda everything: None,
    }  # fmt: skip
    return SimpleNamespace(**{**plain, **changes})


def test_a_run_is_stopped_when_its_time_is_over() -> None:
    loop, stopped, runs = Later(), list[Any](), dict[str, Any]()
    limits = Limits(loop, runs, lambda *given: stopped.append(given), lambda *given: None)  # type: ignore[arg-type]
    run = runs["1.1"] = limited_run()
    for other in ({"limit_s": None}, {"phase": RunPhase.FROZEN}, {"ended": 1.0}):
        limits.look(limited_run(**other))
    assert loop.asked == []
    limits.begin(run)
    limits.look(run)
    assert len(loop.asked) == 1  # once, however often it is looked at
    run.running_s = lambda now: 10.0
    loop.asked[0][1]()
    assert stopped == [(run, EndReason.TIMED_OUT, 3.0, "it reached its time limit of 10 s")]


def test_memory_is_watched_where_no_group_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(procs, "table", dict)
    loop, over, runs = Later(), list[Any](), dict[str, Any]()
    limits = Limits(loop, runs, lambda *given: None, lambda *given: over.append(given))  # type: ignore[arg-type]
    of_group = limited_run(limit_s=None, memory_mib=5, group=SimpleNamespace(places={"memory": "x"}))
    limits.begin(of_group)
    assert loop.asked == []
    run = runs["1.1"] = limited_run(limit_s=None, memory_mib=5, memory_over=lambda everything: 7.5)
    quiet = runs["2.1"] = limited_run(limit_s=None, memory_mib=5, group=SimpleNamespace(places={}))
    limits.begin(run)
    limits.begin(quiet)
    assert [pause for pause, _ in loop.asked] == [MEMORY_LOOK_S]
    loop.asked[0][1]()
    assert over == [(run, 7.5)]
    assert [pause for pause, _ in loop.asked] == [MEMORY_LOOK_S] * 2
    run.ended = quiet.ended = 1.0
    loop.asked[1][1]()
    assert len(loop.asked) == 2
    limits.begin(limited_run(limit_s=None, memory_mib=5))
    assert len(loop.asked) == 3


def test_of_what_was_asked_of_a_file_the_last_counts() -> None:
    loop, done = Later(), list[str]()
    again, run = Again(loop), SimpleNamespace(turns={}, forgotten=False, directory="/r")  # type: ignore[arg-type]

    def fails() -> None:
        done.append("first")
        raise OSError("full")

    again.do(run, "state", fails)  # type: ignore[arg-type]
    assert (done, loop.told, len(loop.asked)) == (["first"], ["full"], 1)
    again.do(run, "state", lambda: done.append("second"))  # type: ignore[arg-type]
    assert loop.told == ["full", ""]
    loop.asked[0][1]()
    assert done == ["first", "second"]
    again.do(run, "other", fails)  # type: ignore[arg-type]
    run.forgotten = True
    loop.asked[1][1]()
    assert done == ["first", "second", "first"]


@pytest.mark.parametrize(("kills", "pauses"), [(5, [0.005] * 5), (22, [0.005] * 20 + [0.25] * 2), (300, None)])
def test_a_control_group_is_removed_as_soon_as_it_can_be(kills: int, pauses: list[float] | None) -> None:
    class Group:
        killed = tries = 0

        def pids(self) -> list[int]:
            return [7]

        def kill(self) -> None:
            self.killed += 1

        def remove(self) -> bool:
            self.tries += 1
            return self.tries > kills

    loop, group = Later(), Group()
    Again(loop).remove_group(group)  # type: ignore[arg-type]
    for at in range(400):
        if at < len(loop.asked):
            loop.asked[at][1]()
    assert group.killed == 1
    assert len(loop.asked) == min(kills, 200)
    if pauses is not None:
        assert [pause for pause, _ in loop.asked] == pauses


# -- containers ----------------------------------------------------------------------------------------------


@pytest.fixture
def tool(tmp_path: Path) -> Any:
    def made(name: str) -> dict[str, str]:
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
        return {"PATH": str(tmp_path), "HOME": "/h", "MY": "1"}

    return made


GIVEN: dict[str, Any] = {"image": "img", "cwd": "/w", "gpus": (0, 2), "gpu_uuids": (), "kind": "gpu", "run": "3.1"}


@pytest.mark.parametrize("name", ["apptainer", "singularity"])
def test_the_command_line_of_a_container_of_the_user(tool: Any, name: str, tmp_path: Path) -> None:
    env, program = tool(name), str(tmp_path / name)
    binds = ("--bind", "/w:/w", "--bind", "/runs/3.1:/runs/3.1")
    plain = containers.contained(["a"], env, **GIVEN, directory="/runs/3.1")
    assert plain == (program, "exec", "--nv", *binds, "--pwd", "/w", "img", "a")
    for without in ({"kind": "cpu"}, {"gpus": ()}):
        found = containers.contained(["a"], env, **{**GIVEN, **without}, directory="/w/x")
        assert found == (program, "exec", *binds[:2], "--pwd", "/w", "img", "a")
    assert containers.named_container(plain) is None
    assert containers.limited(plain, cpus=1.0, memory_mib=5) == plain


def test_the_command_line_of_docker(tool: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    monkeypatch.setattr(os, "getgid", lambda: 100)
    found = containers.contained(["a"], tool("docker"), **{**GIVEN, "cwd": "/w,x"})
    assert found[1:4] == ("run", "--rm", "--init")
    assert found[6:12] == (
        "--workdir",
        "/w,x",
        "--mount",
        'type=bind,source="/w,x",target="/w,x"',
        "--user",
        "1000:100",
    )
    assert found[12:14] == ("--gpus", '"device=0,2"')
    assert found[-2:] == ("img", "a")
    names = [word for before, word in pairwise(found) if before == "--env"]
    assert names[0] == "MY"
    assert "PATH" not in names
    assert "CUDA_VISIBLE_DEVICES" not in names  # within, the GPUs have other indices
    by_uuid = containers.contained(["a"], tool("docker"), **{**GIVEN, "gpu_uuids": ("GPU-a", "GPU-b")})
    assert '"device=GPU-a,GPU-b"' in by_uuid
    assert "CUDA_VISIBLE_DEVICES" in by_uuid
    assert "CUDA_VISIBLE_DEVICES" in containers.contained(["a"], tool("docker"), **{**GIVEN, "kind": "cpu"})
    known = containers.named_container(found)
    assert known == (found[0], found[5])
    assert known[1].startswith("gpuloom-3.1-")
    assert containers.limited(found, cpus=1.5, memory_mib=64) == (
        *found[:6], "--cpus", "1.5", "--memory", "64m", "--memory-swap", "64m", *found[6:],
    )  # fmt: skip
    assert containers.limited(found, cpus=None, memory_mib=None) == found


@pytest.mark.parametrize(("user", "flags"), [(1000, 1), (0, 0)])
def test_the_command_line_of_podman(tool: Any, user: int, flags: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: user)
    found = containers.contained(["a"], tool("podman"), **GIVEN)
    assert found.count("--userns=keep-id") == flags
    assert [word for word in found if word.startswith("nvidia.com")] == ["nvidia.com/gpu=0", "nvidia.com/gpu=2"]
    assert "--user" not in found
    assert containers.contained(["a"], tool("apptainer"), **GIVEN)[0].endswith("apptainer")  # goes before


def test_what_is_no_container_of_ours() -> None:
    for argv in (
        ("docker", "run", "--rm", "--init", "--name", "x", "img"),
        ("docker", "run", "--rm", "--init", "--name"),
        ("docker", "exec", "--rm", "--init", "--name", "gpuloom-1"),
        ("other", "run", "--rm", "--init", "--name", "gpuloom-1"),
    ):
        assert containers.named_container(argv) is None
    with pytest.raises(InputError, match=r"container 'img': none of apptainer, singularity, podman, docker is in PATH"):
        containers.contained(["a"], {"PATH": "/nowhere"}, **GIVEN)


def test_a_virtual_environment_comes_first_in_path(tmp_path: Path) -> None:
    (tmp_path / "v" / "bin").mkdir(parents=True)
    (tmp_path / "v" / "bin" / "python").touch()
    words, env = prepared(["a"], {"PATH": "/bin", "PYTHONHOME": "/x"}, venv="v", cwd=str(tmp_path))
    place = tmp_path / "v"
    assert (words, env) == (("a",), {"PATH": f"{place}/bin:/bin", "VIRTUAL_ENV": str(place)})
    assert prepared(["a"], {}, venv="v", cwd=str(tmp_path))[1]["PATH"] == f"{place}/bin:{os.defpath}"
    with pytest.raises(InputError, match="venv: there is no directory"):
        prepared(["a"], {}, venv="w", cwd=str(tmp_path))


def test_whose_processes_count_as_the_run_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """7 leads the run, 8 has its name, 9 is a stranger's, 10 is a zombie, 11 is gone."""
    states = {7: "R", 8: "R", 9: "R", 10: "Z"}
    monkeypatch.setattr(
        procs, "process", lambda pid: SimpleNamespace(dead=states[pid] in "ZX") if pid in states else None
    )
    monkeypatch.setattr(procs, "marked", lambda pid, marker: pid == 8 and marker == b"GPULOOM_RUN=home:1.1")
    check = verify.GpuCheck(lambda uuids: {uuid: [7, 8, 9, 10, 11] for uuid in uuids}, "home", lambda status: None)
    entry: Any = SimpleNamespace(status=SimpleNamespace(run="1.1", pid=7), gpus=("G",))
    for everything, found in ((True, (7, 8, 10, 11)), (False, (7, 8))):
        monkeypatch.setattr(procs, "sees_all", lambda everything=everything: everything)
        assert check._held(entry) == ", ".join(f"process {pid} on G" for pid in found)


# -- interleaving --------------------------------------------------------------------------------------------


def test_a_pipeline_is_steady_once_its_rounds_differ_by_less_than_a_thousandth() -> None:
    """Rounds of four jobs come to differ by a little more than half a thousandth, and by a little more than a whole."""
    model = Interleaving("measured", "none", (1.0,) * 4)
    barely = [[3783, 2155, 2837], [1807, 1924, 250], [2553, 728, 1146], [3570, 929, 1962]]
    not_yet = [[3558, 3516, 2874], [3973, 2561, 403], [1620, 967, 1024], [3944, 1212, 105]]
    for groups in (1, efficiency._MANY):  # both ways of computing it
        stage_s = np.repeat(np.array([barely, not_yet], dtype=np.float64), groups, axis=0)
        assert sorted(set(model.iteration_s(stage_s).tolist())) == [8780.0, 9948.0]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"model": "x"}, "interleaving model 'x', ordering 'best': must be one of measured, barrier and one of best"),
        ({"ordering": "x"}, "ordering 'x'"),
        ({"overhead": (1.0, 1.0, 1.0)}, "must be 4 factors of at least 1"),
        ({"overhead": (1.0, 1.0, 1.0, 0.99)}, "must be 4 factors of at least 1"),
    ],
)
def test_models_that_there_are_not(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        Interleaving(**changes)


@pytest.mark.parametrize(
    ("model", "shape", "says"),
    [
        ("measured", (1, 5, 3), "a group has 1 to 4 jobs, not 5"),
        ("measured", (1, 2, 4), "takes 3 stages .*, not 4"),
        ("barrier", (1, 3, 2), "at most as many jobs as stages: 3 on 2"),
    ],
)
def test_groups_that_a_model_does_not_take(model: str, shape: tuple[int, ...], says: str) -> None:
    with pytest.raises(InputError, match=says):
        Interleaving(model).iteration_s(np.ones(shape))


def test_how_well_resources_are_used() -> None:
    stages = np.ones((2, 2, 3))
    assert Interleaving().efficiency(stages, np.array([3.0, 0.0])).tolist() == [0.5, 0.0]
    assert Interleaving("barrier").efficiency(stages, np.array([3.0, 4.0])) == pytest.approx([2 / 3, 0.5])
    alone, slots = Interleaving().scheduled(np.array([[[1.0, 2.0, 3.0]]]))
    assert (alone.tolist(), slots.tolist()) == ([6.0], [[0]])
    assert [round(factor, 3) for factor in MEASURED_OVERHEAD] == [1.0, 1.31, 1.478, 1.35]
