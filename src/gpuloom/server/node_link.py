"""The WebSocket at which nodes join: its handshake, and frames to and from the register of nodes."""

from __future__ import annotations

import asyncio
import http
import logging
from collections.abc import Iterable
from typing import Any, Protocol, cast

from uvicorn.server import ServerState
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import State
from websockets.server import ServerProtocol

from gpuloom.fleet.channel import Connection
from gpuloom.fleet.messages import MOST_BYTES, PATH
from gpuloom.server.guard import is_own_host

CLOSING_S = 2.0
"""For the other side to say that it has heard that the connection ends."""
BEHIND_BYTES = 1 << 26
"""A node that takes nothing while so much waits for it is hung up on."""

_log = logging.getLogger(__name__)


class Nodes(Protocol):
    """What frames are for (fleet/registry.py). All but `why_not` are called on the event loop, and never wait."""

    def why_not(self, shown: str) -> str: ...

    def opened(self, connection: Connection, shown: str) -> None: ...

    def received(self, connection: Connection, text: str) -> None: ...

    def closed(self, connection: Connection) -> None: ...

    def ending(self) -> None:
        """The server ends: what is to be said last is said now."""
        ...


class Entered(Protocol):
    """The HTTP connection that this one was (server/connections.py)."""

    def token_shown(self) -> None: ...

    def linked(self) -> None: ...

    def left(self) -> None: ...


class LinkProtocol(asyncio.Protocol):
    """Takes a connection over from uvicorn's HTTP protocol, with the head of the request that asks for it.

    nodes: None where none can join. hosts: as for `Guard`.
    """

    def __init__(
        self,
        *,
        nodes: Nodes | None,
        hosts: Iterable[str],
        server_state: ServerState,
        app_state: dict[str, Any],
        **others: Any,
    ) -> None:
        self._nodes, self._hosts, self._state = nodes, set(hosts), server_state
        self._entered: Entered = app_state["connection"]
        self._protocol = ServerProtocol(max_size=MOST_BYTES)
        self._parts: list[bytes] = []
        self._opened = False
        self._loop = asyncio.get_running_loop()
        self.transport: asyncio.Transport

    # -- as the event loop and uvicorn call it ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - of a stream
        self.transport = transport
        self._state.connections.add(cast("Any", self))  # it has what uvicorn calls

    def connection_lost(self, exc: Exception | None) -> None:
        self._state.connections.discard(cast("Any", self))
        self._entered.left()
        if self._opened and self._nodes is not None:
            self._opened = False
            self._nodes.closed(self)

    def data_received(self, data: bytes) -> None:
        self._protocol.receive_data(data)
        for event in self._protocol.events_received():
            if isinstance(event, Request):
                self._greet(event)
            elif isinstance(event, Frame) and event.opcode in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
                self._parts.append(bytes(event.data))
                if event.fin and self._nodes is not None:
                    text = b"".join(self._parts).decode("utf-8", "replace")
                    self._parts.clear()
                    self._nodes.received(self, text)
        self._write()

    def eof_received(self) -> None:
        self._protocol.receive_eof()
        self._write()

    def pause_writing(self) -> None:
        """What waits is bounded by the stream's window, and looked at in `_send`."""

    def resume_writing(self) -> None:
        """See `pause_writing`."""

    def shutdown(self) -> None:
        """uvicorn ends."""
        self._hang_up("the head ends")

    # -- a Connection: from any thread --------------------------------------------------------------------------------

    def send(self, text: str) -> None:
        """See `Connection`."""
        self._soon(self._send, text)

    def close(self, why: str = "") -> None:
        """See `Connection`."""
        self._soon(self._hang_up, why)

    def _soon(self, call: Any, text: str) -> None:
        try:
            self._loop.call_soon_threadsafe(call, text)
        except RuntimeError:  # the loop is closed, and all its connections
            return

    # -- on the event loop --------------------------------------------------------------------------------------------

    def _greet(self, request: Request) -> None:
        why = self._why_not(request)
        response = self._protocol.accept(request) if why is None else self._protocol.reject(*why)
        self._protocol.send_response(response)
        if self._protocol.state is State.OPEN and self._nodes is not None:
            self._opened = True
            self._entered.token_shown()
            self._entered.linked()
            self._nodes.opened(self, _shown(request))

    def _why_not(self, request: Request) -> tuple[http.HTTPStatus, str] | None:
        headers = request.headers
        if request.path.partition("?")[0] != PATH:
            return http.HTTPStatus.NOT_FOUND, f"there is no WebSocket but {PATH}"
        if self._nodes is None:
            return http.HTTPStatus.NOT_FOUND, "no node can join this scheduler"
        host = headers.get("Host", "")
        if self._hosts and not is_own_host(host, self._hosts):
            return http.HTTPStatus.MISDIRECTED_REQUEST, f"the Host header is {host!r}, which is not this head"
        if "Origin" in headers:
            return http.HTTPStatus.FORBIDDEN, "this is for nodes, not for web pages"
        if why := self._nodes.why_not(_shown(request)):
            return http.HTTPStatus.UNAUTHORIZED, f"the token does not count: {why}"
        return None

    def _send(self, text: str) -> None:
        if self._protocol.state is State.OPEN and not self.transport.is_closing():
            if self.transport.get_write_buffer_size() > BEHIND_BYTES:
                _log.warning("a node takes nothing: it is hung up on")
                self.transport.abort()
                return
            self._protocol.send_text(text.encode())
            self._write()

    def _hang_up(self, why: str) -> None:
        if self._protocol.state is State.OPEN:
            # A reason holds at most 123 bytes.
            self._protocol.send_close(CloseCode.NORMAL_CLOSURE, why.encode()[:120].decode("utf-8", "ignore"))
            self._write()
            self._loop.call_later(CLOSING_S, self.transport.abort)
        elif self._protocol.state is State.CONNECTING:
            self.transport.abort()

    def _write(self) -> None:
        if self.transport.is_closing():
            return
        for data in self._protocol.data_to_send():
            if data:
                self.transport.write(data)
            else:
                self.transport.close()
                return
        if self._protocol.close_expected():
            self._loop.call_later(CLOSING_S, self.transport.abort)


def _shown(request: Request) -> str:
    """What it shows of its token."""
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    return given.strip() if scheme.lower() == "bearer" else ""
