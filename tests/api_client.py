"""Ways to call the API in tests: within the process, or over a real connection to a server in a thread."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, cast

import httpx
from fastapi import FastAPI

from gpuloom.live.service import Service
from gpuloom.server.app import make_app
from gpuloom.server.run import Listening, serve
from published import judge

TOKEN = "token-of-the-tests-0123456789"


class _Standing:
    """Whatever is called of it, that of the service that is there now is called."""

    now: Service

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *args, **named: getattr(self.now, name)(*args, **named)


@cache
def _made(settings: frozenset[tuple[str, Any]]) -> tuple[FastAPI, _Standing]:
    standing = _Standing()
    return make_app(cast(Service, standing), token=TOKEN, **dict(settings)), standing


def app_over(service: Service, **settings: Any) -> FastAPI:
    """An application over this scheduler. Making one takes longer than a test, so those of tests that come one after
    another, with the same settings, are one. (For requests that end: streams want an application of their own.)"""
    app, standing = _made(frozenset(settings.items()))
    standing.now = service
    return app


class Local:
    """Calls an application within this process. Each answer is held to the published document.

    seen: operations that have answered in JSON.
    """

    def __init__(self, app: FastAPI, **headers: str) -> None:
        self.app, self.seen = app, set[str]()
        self.headers = {"Authorization": f"Bearer {TOKEN}", **headers}

    def __call__(self, method: str, path: str, **arguments: Any) -> httpx.Response:
        headers = {**self.headers, **arguments.pop("headers", {})}

        async def call() -> httpx.Response:
            transport = httpx.ASGITransport(app=self.app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
                return await client.request(method, path, headers=headers, **arguments)

        answer = asyncio.run(call())
        if operation := judge(self.app, answer):
            self.seen.add(operation)
        return answer


@contextmanager
def served(service: Service, **arguments: Any) -> Iterator[Listening]:
    """A server in a thread, on a free port of loopback."""
    ready, places, failures = threading.Event(), list[Listening](), list[BaseException]()

    def on_ready(place: Listening) -> None:
        places.append(place)
        ready.set()

    def run() -> None:
        try:
            serve(service, **{"token": TOKEN, "on_ready": on_ready, **arguments})
        except BaseException as error:
            failures.append(error)
        finally:
            ready.set()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert ready.wait(10)
        if failures:
            raise failures[0]
        yield places[0]
    finally:
        if places:
            places[0].stop()
        thread.join(20)
        assert not thread.is_alive()
    if failures:
        raise failures[0]


def http(place: Listening, **headers: str) -> httpx.Client:
    """A client that brings the token."""
    return httpx.Client(base_url=place.url, headers={"Authorization": f"Bearer {TOKEN}", **headers}, timeout=10)


class Stream:
    """Server-sent events from a connection of its own; `next()` gives (event, id, data)."""

    def __init__(self, place: Listening, path: str, last_id: str = "") -> None:
        self.socket = socket.create_connection((place.host, place.port), timeout=10)
        resume = f"Last-Event-ID: {last_id}\r\n" if last_id else ""
        self.socket.sendall(
            f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {TOKEN}\r\n"
            f"Accept: text/event-stream\r\n{resume}\r\n".encode()
        )
        self.file = self.socket.makefile("rb")
        self.status = int(self.file.readline().split()[1])
        self.headers = {}
        while line := self.file.readline().strip():
            name, _, value = line.decode().partition(": ")
            self.headers[name.lower()] = value
        self.rest = b""

    def _block(self) -> str | None:
        """The next block up to an empty line; None at the end of the stream."""
        while b"\n\n" not in self.rest:
            size = int(self.file.readline() or b"0", 16)
            self.rest += self.file.read(size)
            self.file.readline()
            if size == 0:
                return None
        block, _, self.rest = self.rest.partition(b"\n\n")
        return block.decode()

    def next(self) -> tuple[str, str, Any] | None:
        """The next event, passing over comments; None at the end."""
        while (block := self._block()) is not None:
            fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
            if "data" in fields:
                return fields.get("event", "message"), fields.get("id", ""), json.loads(fields["data"])
        return None

    def comment(self) -> str:
        """The next block that is a comment."""
        while (block := self._block()) is not None:
            if block.startswith(":"):
                return block
        raise AssertionError("the stream ended")

    def close(self) -> None:
        self.file.close()
        self.socket.close()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
