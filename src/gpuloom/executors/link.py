"""The scheduler's side of the socket to the runner: it starts one where none answers, and again when that one dies.

An unanswered request is sent again to the next runner; sending it twice does no harm. One thread reads and writes.
Callers never wait for the runner, unless they ask a question.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuloom.core.faults import fault_text
from gpuloom.core.waiting import one_wait_s
from gpuloom.executors import procs
from gpuloom.executors.open_files import of_jobs
from gpuloom.executors.port import ExecutorError
from gpuloom.executors.wire import EXIT_LOCKED, LOCK, RUNNER_LOG, SOCKET, VERSION, LineBuffer, encode, socket_address
from gpuloom.threads import Worker

RUNNER = Path(__file__).parent / "runner" / "main.py"
CONNECT_S = 10.0
REPLY_S = 60.0
"""A runner writes small files; a disk that is busy with a job's gigabytes can make it wait for long."""
LOOK_MS = 1000
"""What was asked is looked for so often, should the wake-up have been lost."""
LAST_S = 1.0
"""For what was asked last, when it is closed."""
BACKOFF_S = (0.05, 0.2, 1.0, 5.0)
STATES = {
    "T": "it is stopped by a signal: `kill -CONT {pid}` continues it",
    "t": "a debugger holds it",
    "D": "it waits for a disk: see `dmesg`",
}
"""By state in /proc: why a process does not answer."""

Answer = Callable[[dict[str, Any]], None]


@dataclass(frozen=True, slots=True)
class _Asked:
    """A message without an answer yet. answer, failed: called with it, or with why there is none, in the link's
    thread."""

    message: Mapping[str, Any]
    answer: Answer | None
    failed: Callable[[str], None] | None


class Link:
    """on_message: called in the link's thread for what the runner says unasked. on_again: after a new connection, in
    that thread: what it asks comes after what is asked again.
    """

    def __init__(
        self,
        home: Path,
        home_id: str,
        mode: str,
        on_message: Callable[[dict[str, Any]], None],
        on_again: Callable[[], None],
    ) -> None:
        self._home, self._home_id, self._mode = home, home_id, mode
        self._on_message, self._on_again = on_message, on_again
        self._lock = threading.Lock()
        self._number = 0
        self._pending: dict[int, _Asked] = {}
        self._outgoing: list[bytes] = []
        self._questions: set[Future[dict[str, Any]]] = set()
        self._closed = threading.Event()
        self._wake: tuple[socket.socket, socket.socket] | None = None
        self._first: tuple[socket.socket, LineBuffer] | None = None
        self._worker = Worker("runner-link", self._work)
        self._problem = ""
        self.hello: Mapping[str, Any] = {}

    @property
    def problem(self) -> str:
        """'', or why the runner can't be talked to."""
        return self._problem or self._worker.problem

    def open(self, patience_s: float = CONNECT_S) -> None:
        """Connect; nothing to do where that is done. Raises ExecutorError."""
        if self._worker.alive:
            return
        self._first = connection, _ = self._connect(patience_s)
        try:
            if self._wake is None:
                self._wake = socket.socketpair()
                for end in self._wake:
                    end.setblocking(False)
            begun = self._worker.start()
        except OSError as error:
            connection.close()
            raise ExecutorError(fault_text("can't create a socket", error)) from None
        if not begun:
            connection.close()
            raise ExecutorError(self._worker.problem)

    def close(self) -> None:
        """Hang up."""
        self._closed.set()
        self._wake_thread()
        with self._lock:
            questions, self._questions = self._questions, set()
        for question in questions:
            question.set_exception(ExecutorError("the executor is closed"))
        if self._worker.end(CONNECT_S) and self._wake is not None:
            for end in self._wake:
                end.close()
            self._wake = None

    def ask(
        self, op: str, answer: Answer | None = None, failed: Callable[[str], None] | None = None, **what: Any
    ) -> None:
        """Ask for something to be done, now or as soon as a runner answers. Never waits."""
        with self._lock:
            if self._closed.is_set():
                raise ExecutorError("the executor is closed")
            self._number += 1
            asked = _Asked({"id": self._number, "op": op, **what}, answer, failed)
            self._pending[self._number] = asked
            self._outgoing.append(encode(asked.message))
        self._wake_thread()

    def question(self, op: str, patience_s: float = REPLY_S, **what: Any) -> dict[str, Any]:
        """Ask, and wait for the reply. Raises ExecutorError."""
        future: Future[dict[str, Any]] = Future()

        def answer(reply: dict[str, Any]) -> None:
            with self._lock:
                waited_for = future in self._questions
                self._questions.discard(future)
            if waited_for:
                future.set_result(reply)

        with self._lock:
            self._questions.add(future)
        try:
            self.ask(op, answer, **what)
            return future.result(one_wait_s(patience_s))
        except TimeoutError:
            why = self.problem or f"no reply within {patience_s:g} s{self._state(self.hello.get('pid'))}"
            raise ExecutorError(f"the runner of {self._home} does not answer: {why}") from None
        finally:
            with self._lock:
                self._questions.discard(future)

    def never_start(self, run: str) -> None:
        """Its end is known: a start that was not answered is not asked again."""
        with self._lock:
            for number, asked in list(self._pending.items()):
                if asked.message["op"] == "start" and asked.message["request"]["run"] == run:
                    del self._pending[number]

    def _wake_thread(self) -> None:
        if self._wake is not None:
            with suppress(OSError):  # full: it wakes anyway; closed: nobody is there; no memory: it looks by itself
                self._wake[1].send(b"x")

    # The link's thread

    def _work(self) -> None:
        found, self._first = self._first, None
        while True:
            if found is None:
                found = self._reconnect()
                if found is None:
                    return
                self._on_again()
            connection, lines = found
            found = None
            with self._lock:
                # A reply under way may answer twice: the second one finds nothing that waits for it.
                self._outgoing = [encode(asked.message) for asked in self._pending.values()]
            try:
                self._exchange(connection, lines)
            except (OSError, ValueError, KeyError, TypeError) as error:
                self._problem = f"the connection to the runner broke: {error!r}"
                self._closed.wait(BACKOFF_S[0])  # should the next one say the same
            finally:
                connection.close()
            if self._closed.is_set():
                return

    def _exchange(self, connection: socket.socket, lines: LineBuffer) -> None:
        """Handle messages until the peer closes. Raises if the connection breaks or a message is malformed."""
        assert self._wake is not None  # noqa: S101 - made by `open`
        connection.setblocking(False)
        wake = self._wake[0]
        poll = select.poll()
        poll.register(wake, select.POLLIN)
        unsent, data = bytearray(), b""  # the first news came together with the greeting
        while not self._closed.is_set():
            for message in lines.feed(data):
                self._handle(message)
            with self._lock:
                unsent += b"".join(self._outgoing)
                self._outgoing.clear()
            with suppress(BlockingIOError):
                while unsent:
                    del unsent[: connection.send(unsent)]
            poll.register(connection, select.POLLIN | (select.POLLOUT if unsent else 0))
            ready = {fd for fd, _ in poll.poll(LOOK_MS)}
            if wake.fileno() in ready:
                with suppress(BlockingIOError):
                    wake.recv(4096)
            data = b""
            if connection.fileno() in ready:
                try:
                    data = connection.recv(1 << 18)
                except BlockingIOError:
                    continue
                if not data:
                    return
        with self._lock:
            unsent += b"".join(self._outgoing)
            self._outgoing.clear()
        connection.settimeout(LAST_S)
        connection.sendall(unsent)

    def _handle(self, message: dict[str, Any]) -> None:
        if "re" not in message:
            self._on_message(message)
            return
        with self._lock:
            asked = self._pending.pop(message["re"], None)
        if "failed" in message:
            self._problem = f"the runner can't do what it was asked to: {message['failed']} (see {RUNNER_LOG})"
            if asked is not None and asked.failed is not None:
                asked.failed(str(message["failed"]))
        elif asked is not None and asked.answer is not None:
            asked.answer(message)

    def _reconnect(self) -> tuple[socket.socket, LineBuffer] | None:
        tries = 0
        while not self._closed.is_set():
            try:
                return self._connect(CONNECT_S)
            except ExecutorError as error:
                self._problem = str(error)
                self._closed.wait(BACKOFF_S[min(tries, len(BACKOFF_S) - 1)])
                tries += 1
        return None

    def _connect(self, patience_s: float) -> tuple[socket.socket, LineBuffer]:
        """A connection over which both have said hello. Starts a runner if need be. Raises ExecutorError."""
        end = time.monotonic() + patience_s
        pause_s = BACKOFF_S[0] / 5
        try:
            home_fd = os.open(self._home, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise ExecutorError(fault_text(f"can't use {self._home}", error)) from None
        try:
            while True:
                try:
                    found = self._greeted_connection(home_fd, end)
                except TimeoutError as error:
                    raise ExecutorError(f"the runner of {self._home} does not answer: {error}") from None
                except OSError as error:
                    if time.monotonic() > end or self._closed.is_set():
                        what = f"can't talk to the runner at {self._home / SOCKET}"
                        raise ExecutorError(f"{what}: {error.strerror or error}{self._locker()}") from None
                else:
                    self._problem = ""
                    return found
                if not self._spawn(end):
                    self._closed.wait(pause_s)  # another one is about to listen, or about to end
                    pause_s = min(2 * pause_s, BACKOFF_S[1])
        finally:
            os.close(home_fd)

    def _greeted_connection(self, home_fd: int, end: float) -> tuple[socket.socket, LineBuffer]:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(max(end - time.monotonic(), 0.1))
            connection.connect(socket_address(home_fd))
            try:
                lines = self._greet(connection, end)
            except TimeoutError:
                pid = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
                raise TimeoutError(f"it (pid {pid}) has sent no greeting{self._state(pid)}") from None
            except (ValueError, KeyError, TypeError) as error:
                raise ConnectionError(f"it sent something that is not a greeting: {error!r}") from None
        except BaseException:
            connection.close()
            raise
        return connection, lines

    @staticmethod
    def _state(pid: int | None) -> str:
        """What the process table says of a runner that does not answer."""
        if pid is None:
            return ""
        try:
            entry = procs.process(pid)
        except OSError:
            return ""
        if entry is None or entry.dead:
            return f"; process {pid} is gone"
        return f"; {STATES.get(entry.state, 'it is busy, or stuck').format(pid=pid)}"

    def _locker(self) -> str:
        return f" ({self._home / LOCK} is held by a runner that is starting, or stuck)" if self._locked else ""

    def _greet(self, connection: socket.socket, end: float) -> LineBuffer:
        connection.sendall(encode({"id": 0, "op": "hello"}))
        lines = LineBuffer()
        while True:
            connection.settimeout(max(end - time.monotonic(), 0.1))
            data = connection.recv(1 << 16)
            if not data:
                raise ConnectionResetError("it hung up")  # it was about to end: the next try starts another
            for message in lines.feed(data):
                if message.get("re") != 0:
                    continue  # news from before it knew us: `runs` will tell it again
                if message["version"] != VERSION:
                    raise ExecutorError(
                        f"the runner of {self._home} (pid {message['pid']}) speaks version {message['version']} of "
                        f"its protocol, this gpuloom version {VERSION}: let its jobs end with the gpuloom that "
                        f"started it, or stop them"
                    )
                self.hello = message
                return lines

    _locked = False
    """The last runner that was started found another one's lock."""

    def _spawn(self, end: float) -> bool:
        """Start a runner; False: one has the lock already. Raises ExecutorError."""
        log = self._home / RUNNER_LOG
        argv = [sys.executable, "-I", "-S", str(RUNNER), str(self._home), self._home_id, self._mode, str(os.getpid())]
        argv.append(str(of_jobs()))
        said = self._log(log)
        try:
            code = subprocess.run(  # noqa: S603 - our own program, no shell
                argv,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                cwd="/",
                start_new_session=True,
                timeout=max(end - time.monotonic(), 0.1),
            ).returncode
        except subprocess.TimeoutExpired as error:
            raise ExecutorError(f"the runner did not start within {error.timeout:.1f} s (see {log})") from None
        except (OSError, MemoryError) as error:
            raise ExecutorError(fault_text("can't start the runner", error)) from None
        finally:
            if said != subprocess.DEVNULL:
                os.close(said)
        self._locked = code == EXIT_LOCKED
        if code not in (0, EXIT_LOCKED):
            last = ""
            with suppress(OSError):
                last = log.read_text(errors="replace").strip().rpartition("\n")[2]
            raise ExecutorError(f"the runner ended with code {code}: {last} (see {log})")
        return code == 0

    @staticmethod
    def _log(path: Path) -> int:
        """What the runner writes its messages to; nowhere if that can't be had: jobs are worth more."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        with suppress(OSError):
            return os.open(path, flags, 0o600)
        return subprocess.DEVNULL
