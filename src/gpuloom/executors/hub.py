"""The runner's side of the socket: schedulers that are connected, what they ask, what they are told."""

from __future__ import annotations

import os
import socket
import struct

from gpuloom.executors.loop import Loop, log
from gpuloom.executors.wire import Lines, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

MAX_UNSENT = 256 << 20
"""Bytes that a scheduler may leave unread before it is given up."""


class Client:
    """A connected scheduler."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.lines = Lines()
        self.unsent = bytearray()


class Hub:
    """answer: from a message to what is said in reply. left: called when one has gone."""

    def __init__(
        self,
        loop: Loop,
        listener: socket.socket,
        answer: Callable[[dict[str, Any]], dict[str, Any]],
        left: Callable[[], None],
    ) -> None:
        self._loop, self._listener, self._answer, self._left = loop, listener, answer, left
        self.clients: dict[int, Client] = {}
        loop.add(listener.fileno(), lambda _: self._accept())

    def tell(self, message: Mapping[str, Any]) -> None:
        """Say something to all of them."""
        for client in list(self.clients.values()):
            self._send(client, message)

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        _, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if uid != os.getuid():
            log(f"user {uid} was turned away")
            connection.close()
            return
        connection.setblocking(False)
        self.clients[connection.fileno()] = Client(connection)
        self._loop.add(connection.fileno(), self._talk)

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
            for message in client.lines.feed(data):
                reply = self._answer(message)
                if fd not in self.clients:
                    return  # it went while others were told
                self._send(client, reply)
        except (ValueError, KeyError, TypeError) as error:
            log(f"a scheduler said what is no message: {error!r}")
            self._hang_up(client)

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
                log("a scheduler does not read what it is told")
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
