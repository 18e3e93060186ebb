"""Checks that every request passes before any route: the right host, the token, a body that is not too large."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from collections.abc import Collection, Iterable
from contextlib import suppress
from email.utils import formatdate

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gpuloom.server.auth import allowed
from gpuloom.server.problems import HEADER_BYTES, ProblemError

OPEN = frozenset({"/", "/v1/health", "/v1/schema/job.json", "/openapi.json"})
"""Routes that need no token: they say nothing about jobs or users."""

OF_STRANGERS = 64 * 1024
"""Bytes of a body that comes without token."""
DRAIN_S = 5.0

_log = logging.getLogger(__name__)


class Guard:
    """ASGI middleware.

    hosts: names under which the API may be called; empty: any. Loopback addresses always count with them. A web page
    elsewhere that lets its name point to 127.0.0.1 (DNS rebinding) is told by the name it has to send.
    most: bytes of the largest body.
    """

    def __init__(self, app: ASGIApp, *, token: str | None, hosts: Iterable[str], most: int) -> None:
        self.app, self.most = app, most
        self.token = None if token is None else token.encode()
        self.hosts = {host.lower().strip("[]") for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers: dict[bytes, bytes] = dict(scope["headers"])
        known = self.token is None or allowed(headers.get(b"authorization"), self.token)
        connection = scope.get("state", {}).get("connection")
        if known and connection is not None:
            connection.token_shown()
        dressed = _with_headers(send, last=not known)
        try:
            self._check(scope["path"], headers, known=known)
        except ProblemError as problem:
            if not known:
                await _drained(receive, headers)
            await problem.response()(scope, receive, dressed)
            return
        try:
            await self.app(scope, self._limited(receive, self.most if known else OF_STRANGERS), dressed)
        except ClientDisconnect:
            _log.debug("%s %s: the client left before its body had arrived", scope["method"], scope["path"])

    def _check(self, path: str, headers: dict[bytes, bytes], *, known: bool) -> None:
        if sum(len(name) + len(value) for name, value in headers.items()) > HEADER_BYTES:
            raise ProblemError("headers-too-large", f"at most {HEADER_BYTES:,} bytes of headers are allowed")
        host = headers.get(b"host", b"").decode("latin-1")
        if self.hosts and not is_own_host(host, self.hosts):
            shown = ", ".join(sorted(self.hosts))
            raise ProblemError("wrong-host", f"the Host header is {host!r}; this scheduler is reached as {shown}")
        origin = headers.get(b"origin")
        if origin is not None and origin.decode("latin-1").partition("://")[2].lower() != host.lower():
            raise ProblemError("foreign-origin", f"the request comes from the web page {origin.decode('latin-1')!r}")
        if not known and path not in OPEN:
            given = b"authorization" in headers
            raise ProblemError(
                "unauthorized",
                ("the token is wrong" if given else "the token is missing")
                + ": send 'Authorization: Bearer TOKEN'; the token is in the file 'token' in the scheduler's home",
                headers={"WWW-Authenticate": 'Bearer realm="gpuloom"'},
            )
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > self.most:
            raise self._too_large()

    def _limited(self, receive: Receive, most: int) -> Receive:
        seen = 0

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            if message["type"] == "http.request":
                seen += len(message.get("body", b""))
                if seen > most:
                    raise self._too_large()
            return message

        return counted

    def _too_large(self) -> ProblemError:
        return ProblemError(
            "too-large",
            f"a body may have at most {self.most:,} bytes: send fewer jobs at once",
            headers={"Connection": "close"},
        )


def is_own_host(header: str, hosts: Collection[str]) -> bool:
    """Whether a Host header names a loopback address, or one of these."""
    host = header.lower()
    host = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    if host in hosts:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


async def _drained(receive: Receive, headers: dict[bytes, bytes]) -> None:
    """Take in what was sent, if it is little: a connection that is closed before takes our answer with it."""
    length = headers.get(b"content-length", b"")
    if b"expect" in headers or (length and not (length.isdigit() and int(length) <= OF_STRANGERS)):
        return
    seen = 0
    with suppress(TimeoutError):
        async with asyncio.timeout(DRAIN_S):
            while seen <= OF_STRANGERS:
                message = await receive()
                seen += len(message.get("body", b""))
                if not message.get("more_body"):
                    return


def _with_headers(send: Send, *, last: bool) -> Send:
    """Headers that every answer has. last: no further request is taken on this connection."""

    async def dressed(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = message.setdefault("headers", [])
            headers += [
                (b"date", formatdate(usegmt=True).encode()),
                (b"cache-control", b"no-store"),
                (b"x-content-type-options", b"nosniff"),
            ]
            if last and (b"connection", b"close") not in headers:
                headers.append((b"connection", b"close"))
        await send(message)

    return dressed
