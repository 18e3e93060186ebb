"""Others on the machine, without a token, against a scheduler that runs: its owner is served, its log stays small."""

from __future__ import annotations

import os
import resource
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from gpuloom.client import Client
from real_scheduler import Real, real
from until import until

pytestmark = pytest.mark.slow

MANY = 2000
NOBODY = 65534

# Opens connections, sends the head of a request but for its end, and says how many of them are still there when asked.
STRANGER = """
import os, resource, select, socket, sys
host, port, many, uid = sys.argv[1], *map(int, sys.argv[2:])
resource.setrlimit(resource.RLIMIT_NOFILE, (many + 100, max(many + 100, resource.getrlimit(resource.RLIMIT_NOFILE)[1])))
if uid:
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)
there = []
def begin():
    one = socket.socket()  # not by name: a module of the standard library may be out of a stranger's reach
    one.settimeout(60)
    one.connect((host, port))
    try:
        one.sendall(b"POST /v1/jobs HTTP/1.1\\r\\nHost: 127.0.0.1\\r\\nX-Much: ")
    except OSError:
        pass
    there.append(one)
def left():
    watch = select.poll()
    for one in there:
        watch.register(one, select.POLLIN)
    return len(there) - len(watch.poll(0))
for line in sys.stdin:
    if line == "more\\n":
        for _ in range(many // 20):
            begin()
        print(len(there), flush=True)
    else:
        print(left(), flush=True)
"""


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Real]:
    with real(tmp_path_factory.mktemp("strangers")) as found:
        found.up()
        yield found


def place(scheduler: Real) -> tuple[str, int]:
    found = urlsplit(scheduler.client.connection.address.url)
    assert found.hostname is not None
    assert found.port is not None
    return found.hostname, found.port


@contextmanager
def stranger(scheduler: Real) -> Iterator[Callable[[str], int]]:
    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < MANY + 100 and os.geteuid():
        pytest.skip(f"needs {MANY + 100} open files")
    host, port = place(scheduler)
    uid = NOBODY if os.geteuid() == 0 else 0
    with subprocess.Popen(
        [sys.executable, "-c", STRANGER, host, str(port), str(MANY), str(uid)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd="/",
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def say(word: str) -> int:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(f"{word}\n")
            process.stdin.flush()
            return int(process.stdout.readline())

        yield say
        process.stdin.close()
        process.wait(30)


@pytest.mark.slow
def test_half_sent_requests_keep_nobody_out(scheduler: Real) -> None:
    with stranger(scheduler) as say:
        for _ in range(20):
            say("more")
            with Client(scheduler.home, patience_s=0.0) as owner:  # a new connection each time
                assert owner.status()["pid"] == scheduler.pid
        assert scheduler.client.status()["pid"] == scheduler.pid
        until(lambda: say("left") == 0, "the end of connections that never say what they want", 60.0)
    log = (scheduler.home / "scheduler.log").read_text()
    assert len(log) < 20_000, log
    assert "Traceback" not in log


def sent(scheduler: Real, data: bytes) -> bytes:
    """All that comes back before the end of the connection."""
    with socket.create_connection(place(scheduler), timeout=60) as one:
        one.sendall(data)
        found = b""
        while piece := _piece(one):
            found += piece
        return found


def _piece(one: socket.socket) -> bytes:
    try:
        return one.recv(65_536)
    except ConnectionResetError:
        return b""


RUBBISH = [
    b"\r\n\r\n\0\1\2\3\r\n\r\n",
    b"GET / HTTP/9.9\r\n\r\n",
    b"GET /v1/status HTTP/1.1\r\n\r\n",  # no host
    b"GET /v1/health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n\0\0\0 rubbish behind it\r\n\r\n",
    b"POST /v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"POST /v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: -1\r\n\r\n",
    b"POST /v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 99999999999\r\n\r\n" + b"x" * 70_000,
    b"GET /v1/health HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"a" * 70_000 + b"\r\n\r\n",
    b"GET /v1/health HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    b"GET http://127.0.0.1/v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # the begin of TLS
]


def test_rubbish_is_answered_and_hung_up_on(scheduler: Real) -> None:
    log = scheduler.home / "scheduler.log"
    before = log.stat().st_size
    for data in RUBBISH:
        found = sent(scheduler, data)
        assert b" 5" not in found.partition(b"\r\n")[0], data[:80]
        head = found.partition(b"\r\n\r\n")[0].lower()
        assert not found or b"connection: close" in head or head.count(b"http/1.1") > 1, (data[:80], found)
    assert scheduler.client.status()["pid"] == scheduler.pid
    written = log.read_bytes()[before:]
    assert b"Traceback" not in written, written
    assert len(written) < 2_000, written


def test_a_connection_that_breaks_leaves_no_traceback(scheduler: Real) -> None:
    token = (scheduler.home / "token").read_text().strip()
    for authorization in ("", f"Authorization: Bearer {token}\r\n"):
        with socket.create_connection(place(scheduler), timeout=20) as one:
            one.sendall(
                f"POST /v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\n{authorization}Content-Type: application/json\r\n"
                "Content-Length: 1000\r\n\r\n{".encode()
            )
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # ends it with a reset
    assert scheduler.client.status()["pid"] == scheduler.pid
    assert "Traceback" not in (scheduler.home / "scheduler.log").read_text()


def test_jobs_keep_the_limit_of_files_with_which_up_was_started(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 600:
        pytest.skip("the hard limit of open files is below 600")
    with real(tmp_path) as found:
        resource.setrlimit(resource.RLIMIT_NOFILE, (500, hard))
        try:
            found.up(child=True)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        limits = Path(f"/proc/{found.pid}/limits").read_text()
        ours = next(line.split()[3:5] for line in limits.splitlines() if line.startswith("Max open files"))
        assert int(ours[0]) == min(hard, 65_536)
        [[job]] = found.client.submit(found.shell("ulimit -Sn; ulimit -Hn"))
        found.in_state("finished", [job])
        assert found.client.read_log(job).content.decode().split() == ["500", str(hard)]


def spent(pid: int, seconds: float) -> float:
    """CPU time that a process takes within so many seconds."""

    def used() -> float:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    before = used()
    select.select([], [], [], seconds)
    return used() - before


def _target(link: str) -> str:
    try:
        return os.readlink(link)
    except OSError:  # closed meanwhile
        return ""


@pytest.mark.slow
def test_where_no_file_can_be_opened_the_owner_is_served_later(tmp_path: Path) -> None:
    with real(tmp_path) as found:
        found.up()

        def sockets() -> int:
            return sum("socket:" in _target(f"/proc/{found.pid}/fd/{n}") for n in os.listdir(f"/proc/{found.pid}/fd"))

        def settled() -> int:
            """It asks itself whether it is ready: those connections end first."""
            count = sockets()
            time.sleep(0.2)
            return count if sockets() == count else 0

        before = until(settled, "a settled number of connections")
        held = [socket.create_connection(place(found), timeout=20) for _ in range(5)]
        until(lambda: sockets() >= before + 5, "the connections are taken in")
        used = 1 + max(int(number) for number in os.listdir(f"/proc/{found.pid}/fd"))
        hard = resource.prlimit(found.pid, resource.RLIMIT_NOFILE)[1]
        resource.prlimit(found.pid, resource.RLIMIT_NOFILE, (used, hard))
        with closing(socket.create_connection(place(found), timeout=20)):
            assert found.client.status()["pid"] == found.pid
        until(lambda: spent(found.pid, 1.0) < 0.2, "an end of asking for what can't be had")
        for one in held:
            one.close()
        resource.prlimit(found.pid, resource.RLIMIT_NOFILE, (hard, hard))
        log = (found.home / "scheduler.log").read_text()
        assert log.count("no connection can be accepted") <= 3, log
        assert len(log) < 20_000
        found.down()


@pytest.mark.slow
def test_what_one_sends_byte_by_byte_is_not_waited_for(scheduler: Real) -> None:
    """The deadline holds from the first byte, however many come."""
    with socket.create_connection(place(scheduler), timeout=60) as one:
        one.sendall(b"GET /v1/health HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Much: ")
        watch = select.poll()
        watch.register(one, select.POLLIN)
        sends = 0
        while not watch.poll(100):
            try:
                one.sendall(b"a")
            except OSError:
                break
            sends += 1
            assert sends < 600
        assert one.recv(4096).startswith(b"HTTP/1.1 408 ")
