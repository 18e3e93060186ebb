"""The scheduler's side of the socket to the runner: it starts one where none answers, and again when that one dies.

What was asked and not answered is asked again of the next runner; asking twice does no harm.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gpuloom.executors.open_files import of_jobs
from gpuloom.executors.port import ExecutorError
from gpuloom.executors.runner import EXIT_LOCKED
from gpuloom.executors.wire import RUNNER_LOG, SOCKET, VERSION, Lines, encode, socket_address

RUNNER = Path(__file__).with_name("runner.py")
CONNECT_S = 10.0
REPLY_S = 60.0
"""A runner writes small files; a disk that is busy with a job's gigabytes can make it wait for long."""
LOG_BYTES = 1 << 20
BACKOFF_S = (0.05, 0.2, 1.0, 5.0)


class Link:
    """on_message: called from a thread for what the runner says unasked. on_again: after a new connection, in that
    thread, before what is pending is asked again; what it returns is called once that is done.
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
        self._answered = threading.Condition(self._lock)
        self._socket: socket.socket | None = None
        self._number = 0
        self._pending: dict[int, dict[str, Any]] = {}
        self._replies: dict[int, dict[str, Any] | None] = {}
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        self.hello: Mapping[str, Any] = {}
        self.problem = ""

    def open(self) -> None:
        """Connect. Raises ExecutorError."""
        connection, lines = self._connect()
        with self._lock:
            self._socket = connection
        self._thread = threading.Thread(target=self._listen, args=(connection, lines), name="runner-link", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Hang up."""
        self._closed.set()
        self._hang_up()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=CONNECT_S)

    def ask(self, op: str, **what: Any) -> None:
        """Ask for something to be done, now or as soon as a runner answers."""
        with self._lock:
            self._put(op, what)

    def question(self, op: str, **what: Any) -> dict[str, Any]:
        """Ask, and wait for the reply. Raises ExecutorError."""
        end = time.monotonic() + REPLY_S
        with self._lock:
            number = self._put(op, what)
            self._replies[number] = None
            try:
                while (reply := self._replies[number]) is None:
                    left = end - time.monotonic()
                    if left <= 0 or self._closed.is_set():
                        self._pending.pop(number, None)
                        why = self.problem or f"no reply within {REPLY_S:g} s"
                        raise ExecutorError(f"the runner of {self._home} does not answer: {why}")
                    self._answered.wait(left)
            finally:
                del self._replies[number]
        return reply

    def _put(self, op: str, what: Mapping[str, Any]) -> int:
        if self._closed.is_set():
            raise ExecutorError("the executor is closed")
        self._number += 1
        message = {"id": self._number, "op": op, **what}
        self._pending[self._number] = message
        self._send(encode(message))
        return self._number

    def _send(self, data: bytes) -> None:
        """With the lock held. What does not go out is still pending, for the next connection."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.sendall(data)

    def _hang_up(self) -> None:
        with self._lock:
            if self._socket is not None:
                with contextlib.suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)
                self._socket.close()
                self._socket = None
            self._answered.notify_all()

    # The listening thread

    def _listen(self, connection: socket.socket, lines: Lines) -> None:
        while True:
            self._read(connection, lines)
            self._hang_up()
            found = self._reconnect()
            if found is None:
                return
            connection, lines = found
            self._on_again()
            with self._lock:
                self._socket = connection
                # A reply under way may answer twice: the second one finds nothing that waits for it.
                self._send(b"".join(encode(message) for message in self._pending.values()))

    def _read(self, connection: socket.socket, lines: Lines) -> None:
        """Until it hangs up, or says what is no message: a new connection then tells all of it again."""
        data = b""  # what came together with its greeting
        while True:
            try:
                for message in lines.feed(data):
                    self._take(message)
                data = connection.recv(1 << 18)
            except (OSError, ValueError, KeyError, TypeError) as error:
                self.problem = f"the connection to the runner broke: {error!r}"
                self._closed.wait(BACKOFF_S[0])  # should the next one say the same
                return
            if not data:
                return

    def _take(self, message: dict[str, Any]) -> None:
        if "re" not in message:
            self._on_message(message)
            return
        with self._lock:
            self._pending.pop(message["re"], None)
            if message["re"] in self._replies:
                self._replies[message["re"]] = message
                self._answered.notify_all()

    def _reconnect(self) -> tuple[socket.socket, Lines] | None:
        tries = 0
        while not self._closed.is_set():
            try:
                return self._connect()
            except ExecutorError as error:
                self.problem = str(error)
                self._closed.wait(BACKOFF_S[min(tries, len(BACKOFF_S) - 1)])
                tries += 1
        return None

    def _connect(self) -> tuple[socket.socket, Lines]:
        """A connection over which both have said hello. Starts a runner if need be. Raises ExecutorError."""
        end = time.monotonic() + CONNECT_S
        try:
            home_fd = os.open(self._home, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise ExecutorError(f"can't use {self._home}: {error.strerror}") from None
        try:
            while True:
                connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                try:
                    connection.connect(socket_address(home_fd))
                    connection.settimeout(max(end - time.monotonic(), 0.1))
                    lines = self._greet(connection)
                    connection.settimeout(None)
                except OSError as error:
                    connection.close()
                    if time.monotonic() > end:
                        raise ExecutorError(f"can't talk to the runner at {self._home / SOCKET}: {error}") from None
                except BaseException:
                    connection.close()
                    raise
                else:
                    self.problem = ""
                    return connection, lines
                self._spawn()
        finally:
            os.close(home_fd)

    def _greet(self, connection: socket.socket) -> Lines:
        connection.sendall(encode({"id": 0, "op": "hello"}))
        lines = Lines()
        while True:
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
                        "started it, or end them"
                    )
                self.hello = message
                return lines

    def _spawn(self) -> None:
        """Start a runner; does nothing where one has the lock already."""
        log = self._home / RUNNER_LOG
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        if log.exists() and log.stat().st_size > LOG_BYTES:
            flags |= os.O_TRUNC
        try:
            fd = os.open(log, flags, 0o600)
        except OSError as error:
            raise ExecutorError(f"can't write {log}: {error.strerror}") from None
        argv = [sys.executable, "-I", "-S", str(RUNNER), str(self._home), self._home_id, self._mode, str(os.getpid())]
        argv.append(str(of_jobs()))
        try:
            code = subprocess.run(  # noqa: S603 - our own program, no shell
                argv, stdin=subprocess.DEVNULL, stdout=fd, stderr=fd, cwd="/", start_new_session=True, timeout=CONNECT_S
            ).returncode
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ExecutorError(f"can't start the runner: {error}") from None
        finally:
            os.close(fd)
        if code == EXIT_LOCKED:
            time.sleep(0.01)  # another one is about to listen, or about to end
        elif code != 0:
            last = log.read_text(errors="replace").strip().rpartition("\n")[2]
            raise ExecutorError(f"the runner ended with code {code}: {last} (see {log})")
