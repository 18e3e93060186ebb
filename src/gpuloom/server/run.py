"""Serve the API: find a place to listen, run in this thread until a signal or `stop`, end in order."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import ipaddress
import logging
import os
import resource
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from types import FrameType
from typing import Any, cast

import uvicorn
from fastapi import FastAPI

from gpuloom.core.errors import InputError
from gpuloom.fleet.certificates import Certificate
from gpuloom.live.service import Service
from gpuloom.server.app import make_app
from gpuloom.server.auth import check_token
from gpuloom.server.connections import MOST, Connections, Guarded
from gpuloom.server.node_link import LinkProtocol, Nodes
from gpuloom.server.problems import HEADER_BYTES

GRACE_S = 5
"""Time for requests under way when it ends."""
STALLED_MS = 90_000
"""After which the system ends a connection that takes no data."""
AT_ONCE = 128
"""Connections taken in before those that there are get their turn."""
WAITING = 4096
"""Connections that the system keeps until they are taken in (no more than net.core.somaxconn)."""
NO_ROOM = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Listening:
    """Where it listens. stop: ends it, from any thread; `serve` then returns."""

    host: str
    port: int
    url: str
    stop: Callable[[], None]


def warn_on_stderr(text: str) -> None:
    """Say what somebody should know, whatever is logged."""
    print(f"warning: {text}", file=sys.stderr, flush=True)


def serve(
    service: Service,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    or_any: bool = False,
    token: str | None,
    on_ready: Callable[[Listening], None],
    on_stop: Callable[[], None] | None = None,
    certificate: Certificate | None = None,
    nodes: Nodes | None = None,
) -> signal.Signals | None:
    """Serve until SIGTERM, SIGINT (in the main thread) or `Listening.stop`; returns the signal, if it was one.

    Args:
        port: 0 for any that is free. or_any: whether another one will do where this one is in use.
        on_ready: called once requests are answered. on_stop: once none is taken any more.
        certificate: for TLS. nodes: those that join.

    Raises:
        InputError: the place can't be listened at, or it is beyond loopback and there is no token or no certificate.
    """
    family, address, loopback = _resolved(host, port)
    if token is not None:
        check_token(token, "token")
    elif not loopback:
        raise InputError(f"{host} can be reached by other machines, which needs a token")
    if not loopback and certificate is None:
        raise InputError(f"{host} can be reached by other machines, which needs TLS: anyone could read the token")
    listener = _Listener(_bound(family, host, address, port, or_any))
    try:
        port = listener.getsockname()[1]
        shown = f"[{address}]" if family == socket.AF_INET6 else address
        hosts = ("localhost", host, address) if loopback else ()
        app = make_app(service, token=token, hosts=hosts)
        # A quarter of the files that may be open: jobs' logs, the store and the runner need some too.
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        with closing(Connections(min(MOST, max(files // 4, 16)))) as connections:
            listener.full = connections.make_room
            scheme = "http" if certificate is None else "https"
            ready = Listening(address, port, f"{scheme}://{shown}:{port}", lambda: server.stop())
            link = functools.partial(LinkProtocol, nodes=nodes, hosts=hosts)
            server = _Server(app, connections, lambda: on_ready(ready), link, certificate, nodes)
            server.run(sockets=[listener])
    finally:
        listener.close()
        if on_stop is not None:
            on_stop()
    return server.ended_by


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches it. Raises InputError: it is no place to listen at."""
    return _resolved(host, 0)[2]


def _resolved(host: str, port: int) -> tuple[socket.AddressFamily, str, bool]:
    if not 0 <= port <= 65535:
        raise InputError(f"port {port} must be from 0 (any free one) to 65535")
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not a host name"
        raise InputError(f"can't listen at {host!r}: {why}; give a name or an address of this machine") from None
    family, _, _, _, where = found[0]
    address = str(where[0])
    return family, address, ipaddress.ip_address(address.partition("%")[0]).is_loopback


def _bound(family: socket.AddressFamily, host: str, address: str, port: int, or_any: bool) -> socket.socket:
    try:
        listener = socket.create_server((address, port), family=family, backlog=WAITING)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            if or_any:
                return _bound(family, host, address, 0, False)
            raise InputError(
                f"port {port} of {host} is in use by another program: choose another, or 0 for any free one"
            ) from None
        if error.errno == errno.EACCES:
            raise InputError(f"port {port} is reserved for the administrator: choose one above 1023") from None
        if error.errno == errno.EADDRNOTAVAIL:
            raise InputError(f"{host} ({address}) is not an address of this machine") from None
        raise InputError(f"can't listen at {host}:{port}: {error.strerror}") from None
    # Connections inherit both. asyncio sets the first only where a socket names its protocol, and ours does not;
    # without it an answer in two parts waits 40 ms. The second ends connections of clients that take nothing.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if sys.platform == "linux":
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, STALLED_MS)
    return listener


class _Listener(socket.socket):
    """Where no file can be opened, one kept for that is given up: who calls is refused, so that nobody is asked again
    and again to take a connection that can't be taken (asyncio would, ever more often).

    full: called then, to make room.
    """

    def __init__(self, bound: socket.socket) -> None:
        super().__init__(fileno=bound.detach())
        self.full: Callable[[], None] = lambda: None
        self._reserve: int | None = None
        self._keep()

    def _keep(self) -> None:
        if self._reserve is None:
            with contextlib.suppress(OSError):  # there is none just now: at the next call
                self._reserve = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def accept(self) -> tuple[socket.socket, Any]:
        self._keep()
        try:
            return super().accept()
        except OSError as error:
            if error.errno not in NO_ROOM or self._reserve is None:
                raise
            _log.error("no connection can be accepted: %s; clients are refused", error.strerror)
        os.close(self._reserve)
        self._reserve = None
        try:
            super().accept()[0].close()
        finally:
            self._keep()
            self.full()
        raise BlockingIOError  # for now

    def close(self) -> None:
        if self._reserve is not None:
            os.close(self._reserve)
            self._reserve = None
        super().close()


class _Server(uvicorn.Server):
    """uvicorn without its ten wake-ups a second, which ends streams before it waits for them."""

    def __init__(
        self,
        app: FastAPI,
        connections: Connections,
        on_ready: Callable[[], None],
        link: Callable[..., LinkProtocol],
        certificate: Certificate | None,
        nodes: Nodes | None,
    ) -> None:
        # What strangers send is not worth a line each; what fails inside is.
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
        super().__init__(
            uvicorn.Config(
                app,
                loop="asyncio",
                http=cast("type[asyncio.Protocol]", functools.partial(Guarded, connections=connections)),
                h11_max_incomplete_event_size=HEADER_BYTES,
                backlog=AT_ONCE,
                ws=cast("type[asyncio.Protocol]", link),
                ssl_certfile=None if certificate is None else certificate.cert,
                ssl_keyfile=None if certificate is None else certificate.key,
                lifespan="off",
                interface="asgi3",
                log_config=None,
                access_log=False,
                server_header=False,
                date_header=False,  # uvicorn's is only right if it wakes every second; ours is in guard.py
                timeout_keep_alive=75,
                timeout_graceful_shutdown=GRACE_S,
            )
        )
        self._hub, self._connections, self._on_ready = app.state.hub, connections, on_ready
        self._nodes = nodes
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ending: asyncio.Event | None = None
        self.ended_by: signal.Signals | None = None

    def stop(self) -> None:
        self.should_exit = True
        if self._loop is not None and self._ending is not None:
            with contextlib.suppress(RuntimeError):  # it has ended already
                self._loop.call_soon_threadsafe(self._ending.set)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop, self._ending = asyncio.get_running_loop(), asyncio.Event()
        self._loop.set_exception_handler(self._trouble)
        await super().startup(sockets=sockets)
        for listener in sockets or ():
            listener.listen(WAITING)  # the loop has set it to AT_ONCE
        self._on_ready()

    async def main_loop(self) -> None:
        if not await self.on_tick(0) and self._ending is not None:
            await self._ending.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._hub.close()
        self._connections.ending = True
        # asyncio loses a connection that it has just accepted as its listener is closed (python/cpython#109564): it is
        # neither served nor closed. So none is accepted any more, and who was, is taken in first, and sent away.
        for listener in sockets or ():
            asyncio.get_running_loop().remove_reader(listener)
        if self._nodes is not None:
            self._nodes.ending()  # what it says is sent in the turns of the loop that follow
        for _ in range(2):
            await asyncio.sleep(0)
        await super().shutdown(sockets=sockets)

    def _trouble(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """What the event loop can't tell anybody else."""
        error = context.get("exception")
        if isinstance(error, OSError) and error.errno in NO_ROOM:
            self._connections.make_room()
            _log.error("no connection can be accepted: %s; trying again every second", error.strerror)
        elif isinstance(error, OSError):  # of one connection, which is closed by it
            _log.info("a connection broke: %s", error.strerror or error)
        else:
            _log.error("event loop: %s", context.get("message"), exc_info=error)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """As uvicorn does, but a signal is an orderly end here, and not raised again after it."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit and sig == signal.SIGINT:
            self.force_exit = True
        self.ended_by = self.ended_by or signal.Signals(sig)
        self.stop()
