"""What every request passes before any route: the right host, the token, a body that is not too large."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from email.utils import formatdate

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gpuloom.server.auth import allowed
from gpuloom.server.problems import ProblemError

OPEN = frozenset({"/v1/health", "/v1/schema/job.json", "/openapi.json"})
"""Routes that need no token: they say nothing about jobs or users."""


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
        try:
            self._check(scope["path"], headers)
        except ProblemError as problem:
            await problem.response()(scope, receive, _dressed(send))
            return
        await self.app(scope, self._limited(receive), _dressed(send))

    def _check(self, path: str, headers: dict[bytes, bytes]) -> None:
        host = headers.get(b"host", b"").decode("latin-1")
        if self.hosts and not self._ours(host):
            shown = ", ".join(sorted(self.hosts))
            raise ProblemError("wrong-host", f"the Host header is {host!r}; this scheduler is reached as {shown}")
        origin = headers.get(b"origin")
        if origin is not None and origin.decode("latin-1").partition("://")[2].lower() != host.lower():
            raise ProblemError("foreign-origin", f"the request comes from the web page {origin.decode('latin-1')!r}")
        if self.token is not None and path not in OPEN and not allowed(headers.get(b"authorization"), self.token):
            given = b"authorization" in headers
            raise ProblemError(
                "unauthorized",
                ("the token is wrong" if given else "the token is missing")
                + ": send 'Authorization: Bearer TOKEN' with what the file 'token' in the scheduler's home says",
                headers={"WWW-Authenticate": 'Bearer realm="gpuloom"'},
            )
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > self.most:
            raise self._too_large()

    def _ours(self, header: str) -> bool:
        host = header.lower()
        host = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
        if host in self.hosts:
            return True
        try:
            return ipaddress.ip_address(host).is_loopback
        except ValueError:
            return False

    def _limited(self, receive: Receive) -> Receive:
        seen = 0

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            if message["type"] == "http.request":
                seen += len(message.get("body", b""))
                if seen > self.most:
                    raise self._too_large()
            return message

        return counted

    def _too_large(self) -> ProblemError:
        return ProblemError(
            "too-large",
            f"a body may hold {self.most:,} bytes: send fewer jobs at once",
            headers={"Connection": "close"},
        )


def _dressed(send: Send) -> Send:
    """Headers that every answer has."""

    async def dressed(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = message.setdefault("headers", [])
            headers += [
                (b"date", formatdate(usegmt=True).encode()),
                (b"cache-control", b"no-store"),
                (b"x-content-type-options", b"nosniff"),
            ]
        await send(message)

    return dressed
