"""The runner's side of the socket: connected schedulers, their requests, and the reports to them."""

from __future__ import annotations

import os
import socket
import struct
import traceback
from collections import deque

from gpuloom.executors.runner.loop import RETRY_S, Loop, log
from gpuloom.executors.wire import LineBuffer, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

MAX_UNSENT = 256 << 20
"""Bytes that a scheduler may leave unread before it is given up."""


class Client:
    """A connected scheduler. asked: what it asked and has no answer to yet, in order. retry_due: what failed will soon
    be tried again."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.lines = LineBuffer()
        self.asked: deque[dict[str, Any]] = deque()
        self.unsent = bytearray()
        self.retry_due = False


class Hub:
    """answer: from a message to what is said in reply, or None: not now, ask again after `go`; an OSError: ask again a
    little later. A reply goes out before what is told because of the message. left: called when one has gone.
    """

    def __init__(
        self,
        loop: Loop,
        listener: socket.socket,
        answer: Callable[[dict[str, Any]], dict[str, Any] | None],
        left: Callable[[], None],
    ) -> None:
        self._loop, self._listener, self._answer, self._left = loop, listener, answer, left
        self.clients: dict[int, Client] = {}
        self._later: list[Mapping[str, Any]] | None = None
        """Messages to send after the reply; None while no request is being answered."""
        loop.add(listener.fileno(), lambda _: self._accept(), "accepting a scheduler's connection")

    def tell(self, message: Mapping[str, Any]) -> None:
        """Say something to all of them."""
        if self._later is not None:
            self._later.append(message)
            return
        for client in list(self.clients.values()):
            self._send(client, message)

    def go(self) -> None:
        """Answer what has waited for this."""
        for client in list(self.clients.values()):
            self._work(client)

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        try:
            _, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            if uid != os.getuid():
                log(f"user {uid} was refused")
                connection.close()
                return
            connection.setblocking(False)
        except OSError:
            connection.close()  # it comes again
            raise
        fd = connection.fileno()
        self.clients[fd] = Client(connection)
        self._loop.add(fd, self._talk, "a scheduler's connection")

    def _talk(self, fd: int) -> None:
        client = self.clients[fd]
        if client.unsent:
            self._flush(client)
        try:
            data = client.connection.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._hang_up(client)
            return
        try:
            client.asked.extend(client.lines.feed(data))
        except ValueError as error:
            log(f"a scheduler sent something that is not a message: {error!r}")
            self._hang_up(client)
            return
        self._work(client)

    def _work(self, client: Client) -> None:
        """Answer what this one asked, in order."""
        fd = client.connection.fileno()
        while client.asked and self.clients.get(fd) is client:
            message = client.asked[0]
            reply: dict[str, Any] | None = None
            failed: BaseException | None = None
            later: list[Mapping[str, Any]] = []
            self._later = later
            try:
                reply = self._answer(message)
                self._loop.troubles.note("a scheduler's message", "")
            except (OSError, MemoryError) as error:
                failed = error
            except Exception as error:  # a bug of ours, or a message that is none: it is not worked on again
                # Not all of it: a start holds the job's environment, and that may hold secrets.
                log(f"a scheduler's message {message.get('op')!r} can't be handled:\n{traceback.format_exc()}")
                reply = {"re": message.get("id"), "failed": repr(error)}
            finally:
                self._later = None
            if reply is not None:
                client.asked.popleft()
                self._send(client, reply)
            for told in later:
                self.tell(told)
            if failed is not None:
                self._loop.failed("a scheduler's message", failed)
                self._try_again(client)
            if reply is None:
                return

    def _try_again(self, client: Client) -> None:
        """A little later, and once: however much it asks meanwhile."""

        def work() -> None:
            client.retry_due = False
            self._work(client)

        if not client.retry_due:
            client.retry_due = True
            self._loop.after(RETRY_S, work)

    def _send(self, client: Client, message: Mapping[str, Any]) -> None:
        client.unsent += encode(message)
        self._flush(client)

    def _flush(self, client: Client) -> None:
        fd = client.connection.fileno()
        if fd not in self.clients:
            return
        try:
            while client.unsent:
                del client.unsent[: client.connection.send(client.unsent)]
        except BlockingIOError:
            if len(client.unsent) > MAX_UNSENT:
                log("a scheduler does not read its messages")
                self._hang_up(client)
                return
        except OSError:
            self._hang_up(client)
            return
        self._loop.writing(fd, bool(client.unsent))

    def _hang_up(self, client: Client) -> None:
        fd = client.connection.fileno()
        if fd in self.clients:
            self._loop.drop(fd)
            del self.clients[fd]
            client.connection.close()
        self._left()
