"""A connection to the head: TCP, TLS with a certificate that the token names, WebSocket. One thread reads and writes.

The head needs no way to the node: the node calls, and calls again.
"""

from __future__ import annotations

import ipaddress
import os
import select
import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from urllib.parse import urlsplit

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidHandshake, InvalidStatus
from websockets.frames import Frame, Opcode
from websockets.protocol import State as Phase
from websockets.uri import parse_uri

from gpuloom.core.errors import GpuloomError, InputError
from gpuloom.core.faults import fault_text
from gpuloom.fleet.certificates import pinned
from gpuloom.fleet.messages import MOST_BYTES, PATH
from gpuloom.fleet.token import Token

DIAL_S = 10.0
LAST_S = 1.0
"""For what is to be said last."""
PIECE = 1 << 16
NOTSENT_LOWAT = 25
UNSENT_BYTES = 128 * 1024
"""Bytes that wait in the kernel, at most: what comes after them (a heartbeat) must not wait for megabytes."""
UNHEARD_MS = 20_000

Tick = Callable[[], float]
"""Called now and then; after how many seconds to call it again, at most."""


class RefusedError(GpuloomError):
    """The head does not take this node, and will not later."""


class Gone(Exception):  # noqa: N818 - no error: links break
    """The connection is over; says why."""


def check_url(url: str) -> str:
    """The head's address in its plain form, such as https://head:7411.

    Raises:
        InputError: it is none, or would show the token to whoever listens.
    """
    try:
        found = urlsplit(url if "://" in url else f"https://{url}")
        host, port = found.hostname, found.port
    except ValueError as error:
        raise InputError(f"{url!r} is not the address of a head ({error}): give https://HOST:PORT") from None
    if found.scheme not in ("http", "https") or not host or found.path.strip("/") or found.query:
        raise InputError(f"{url!r} is not the address of a head: give https://HOST:PORT")
    if found.scheme == "http" and not is_loopback(host):
        raise InputError(
            f"{url!r}: without TLS the token could be read by anyone on the way; give https://{host}:{port or 7411}, "
            "and start the head with `gpuloom up --host ADDRESS`, which then speaks TLS"
        )
    shown = f"[{host}]" if ":" in host else host
    return f"{found.scheme}://{shown}:{port or 7411}"


def is_loopback(host: str) -> bool:
    """Whether this name or address is of this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def dial(url: str, token: Token) -> Wire:
    """Connect.

    Raises:
        OSError: nobody answers there. Gone: who answers is no head. RefusedError, PinError: see them.
    """
    found = urlsplit(url)
    host, port = str(found.hostname), found.port or 7411
    plain = socket.create_connection((host, port), timeout=DIAL_S)
    try:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        plain.setsockopt(socket.IPPROTO_TCP, NOTSENT_LOWAT, UNSENT_BYTES)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNHEARD_MS)
        where = plain.getsockname()[0]
        if found.scheme == "https":
            plain = pinned(plain, host, token.fingerprint)
        return Wire(plain, _greeted(plain, url, token), where)
    except BaseException:
        plain.close()
        raise


def _greeted(connection: socket.socket, url: str, token: Token) -> ClientProtocol:
    """WebSocket's handshake. TLS is below it already, so its own address is a plain one."""
    where = urlsplit(url).netloc
    protocol = ClientProtocol(parse_uri(f"ws://{where}{PATH}"), max_size=MOST_BYTES)
    request = protocol.connect()
    request.headers["Authorization"] = f"Bearer {token.shown}"
    protocol.send_request(request)
    connection.sendall(b"".join(protocol.data_to_send()))
    heard = False
    while protocol.state is Phase.CONNECTING and protocol.handshake_exc is None:
        data = connection.recv(PIECE)
        if not data:
            if not heard:  # the head dies now, or something on the way did not reach it
                raise Gone(f"{url} hung up before it answered")
            protocol.receive_eof()
            break
        heard = True
        protocol.receive_data(data)
        protocol.data_to_send()
    error = protocol.handshake_exc
    if isinstance(error, InvalidStatus):
        _refused(error.response.status_code, bytes(error.response.body or b""), url)
    if error is not None or protocol.state is Phase.CONNECTING:  # else it may have hung up in the same breath
        why = error if isinstance(error, InvalidHandshake) else "it hung up"
        raise Gone(f"what answers at {url} is no gpuloom that takes nodes ({why})")
    return protocol


def _refused(status: int, body: bytes, url: str) -> None:
    text = body.decode("utf-8", "replace").strip()[:500]
    if status in (401, 403):
        raise RefusedError(text or f"{url} does not take this token (HTTP {status})")
    raise Gone(f"{url} answers {status}: {text}")


class Wire:
    """A `fleet.channel.Connection`. where: this machine's address towards the head."""

    def __init__(self, connection: socket.socket, protocol: ClientProtocol, where: str) -> None:
        self._connection, self._protocol, self.where = connection, protocol, where
        self._lock = threading.Lock()
        self._texts: list[str] = []
        self._why: str | None = None
        self._over = False
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._unsent = bytearray()
        self._parts: list[bytes] = []

    def send(self, text: str) -> None:
        """See `Connection`."""
        with self._lock:
            if self._why is None:
                self._texts.append(text)
            self._stir()

    def close(self, why: str = "") -> None:
        """See `Connection`. What was to be sent is sent, if it can be soon."""
        with self._lock:
            if self._why is None:
                self._why = why or "it was closed"
            self._stir()

    def _stir(self) -> None:
        """The lock is held: once it is over, the descriptor may be somebody else's."""
        if not self._over:
            with suppress(OSError):
                os.eventfd_write(self._wake, 1)

    def run(self, take: Callable[[str], None], tick: Tick) -> str:
        """Carry until it is over; returns why. take: called for what comes. tick: see `Tick`."""
        try:
            return self._run(take, tick)
        except OSError as error:
            return fault_text("the link broke", error)
        finally:
            with self._lock:
                self._why, self._over = self._why or "it is over", True
                self._connection.close()
                os.close(self._wake)

    def _run(self, take: Callable[[str], None], tick: Tick) -> str:
        self._connection.setblocking(False)
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        for text in self._read(b""):
            take(text)
        while True:
            wait_s = tick()
            with self._lock:
                texts, self._texts, why = self._texts, [], self._why
            for text in texts:
                self._protocol.send_text(text.encode())
            self._collect()
            if why is not None:
                self._end()
                return why
            if not self._write():
                wait_s = min(wait_s, 1.0)
            poll.register(self._connection, select.POLLIN | (select.POLLOUT if self._unsent else 0))
            poll.poll(max(wait_s, 0.0) * 1000)
            with suppress(BlockingIOError):
                os.eventfd_read(self._wake)
            while (data := self._received()) is not None:
                for text in self._read(data):
                    take(text)
                self._collect()
                if not data or self._protocol.state is not Phase.OPEN:
                    self._write()
                    return self._reason()

    def _reason(self) -> str:
        close = self._protocol.close_rcvd
        return f"the head hung up ({close.reason})" if close is not None and close.reason else "the head hung up"

    def _collect(self) -> None:
        for data in self._protocol.data_to_send():
            self._unsent += data

    def _write(self) -> bool:
        """Send what can be sent now; whether that is all."""
        while self._unsent:
            try:
                del self._unsent[: self._connection.send(bytes(self._unsent[:PIECE]))]
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return False
        return True

    def _received(self) -> bytes | None:
        """What has come; None: nothing yet."""
        try:
            return self._connection.recv(PIECE)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return None

    def _read(self, data: bytes) -> list[str]:
        """The whole messages in what has come."""
        if data:
            self._protocol.receive_data(data)
        found = []
        for event in self._protocol.events_received():
            if isinstance(event, Frame) and event.opcode in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
                self._parts.append(bytes(event.data))
                if event.fin:
                    found.append(b"".join(self._parts).decode("utf-8", "replace"))
                    self._parts.clear()
        return found

    def _end(self) -> None:
        self._connection.settimeout(LAST_S)
        with suppress(Exception):  # it is over in any case
            self._protocol.send_close()
            self._collect()
            self._connection.sendall(bytes(self._unsent))
