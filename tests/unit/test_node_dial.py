"""A node's connection to its head: what it carries, how it ends, and what a node is told when no head answers."""

from __future__ import annotations

import errno
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.sync.server import ServerConnection, serve

from gpuloom.fleet.certificates import PinError, own
from gpuloom.fleet.messages import PATH
from gpuloom.fleet.token import Token
from gpuloom.node.dial import Gone, RefusedError, Wire, dial
from until import until

TOKEN = Token("0" * 8, "A" * 43, "")
LONG_S = 3600.0


@pytest.mark.parametrize(
    ("answer", "text"),
    [(b"", "hung up before it answered"), (b"SSH-2.0-x\r\n", "is no gpuloom that takes nodes")],
)
def test_what_answers_is_no_head(answer: bytes, text: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answers() -> None:
            connection, _ = listener.accept()
            with connection, suppress(OSError):
                connection.recv(10_000)
                connection.sendall(answer)

        thread = threading.Thread(target=answers)
        thread.start()
        with pytest.raises(Gone, match=text):
            dial(f"http://127.0.0.1:{listener.getsockname()[1]}", TOKEN)
        thread.join()


def test_where_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(ConnectionRefusedError):
        dial(f"http://127.0.0.1:{port}", TOKEN)


@contextmanager
def head(
    handler: Callable[[ServerConnection], None],
    answer: tuple[int, bytes] | None = None,
    tls: ssl.SSLContext | None = None,
    asked: list[Request] | None = None,
) -> Iterator[str]:
    """A head's WebSocket, in threads; its address. answer: what it says to everyone, in place of a WebSocket."""

    def process(connection: ServerConnection, request: Request) -> Response | None:
        if asked is not None:
            asked.append(request)
        if answer is None:
            return None
        status, body = answer
        return Response(status, "", Headers({"Content-Length": str(len(body))}), body)

    with serve(handler, "127.0.0.1", 0, process_request=process, ssl=tls, max_size=1 << 25, close_timeout=1) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"{'http' if tls is None else 'https'}://127.0.0.1:{server.socket.getsockname()[1]}"
        finally:
            server.shutdown()
            thread.join()


class Carried:
    """A connection that carries in a thread, until it is over. ticks: seconds until it is to be called again."""

    def __init__(self, wire: Wire, tick: Callable[[], float] = lambda: LONG_S) -> None:
        self.wire, self.heard, self.why = wire, list[str](), list[str]()
        self._thread = threading.Thread(target=lambda: self.why.append(wire.run(self.heard.append, tick)))
        self._thread.start()

    def end(self) -> str:
        self._thread.join(60.0)
        (why,) = self.why
        return why


def echo(connection: ServerConnection) -> None:
    with suppress(ConnectionClosed):
        for text in connection:
            assert isinstance(text, str)
            connection.send(text.upper())


def contexts(folder: Path) -> tuple[ssl.SSLContext, Token]:
    """TLS of a head, and a token of it."""
    made = own(folder, [])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.cert, made.key)
    return context, Token(TOKEN.id, TOKEN.secret, made.fingerprint)


@pytest.mark.parametrize("secure", [False, True])
def test_texts_go_both_ways_in_order_however_long(secure: bool, tmp_path: Path) -> None:
    tls, token = contexts(tmp_path) if secure else (None, TOKEN)
    asked: list[Request] = []
    with head(echo, tls=tls, asked=asked) as url:
        wire = dial(url, token)
        wire.send("before it runs")
        link = Carried(wire)
        texts = ["a", "b" * 3_000_000, "ü", *map(str, range(200))]
        for text in texts:
            wire.send(text)  # from another thread than the one that carries, which sleeps
        until(lambda: len(link.heard) == len(texts) + 1)
        assert link.heard == ["BEFORE IT RUNS", *(text.upper() for text in texts)]
        wire.close("enough")
        assert link.end() == "enough"
    assert wire.where == "127.0.0.1"
    (request,) = asked
    assert request.path == PATH
    assert request.headers["Authorization"] == f"Bearer {TOKEN.shown}"


def test_another_certificate_is_shown_no_token(tmp_path: Path) -> None:
    tls, _ = contexts(tmp_path / "other")
    _, token = contexts(tmp_path / "ours")
    asked: list[Request] = []
    with head(echo, tls=tls, asked=asked) as url, pytest.raises(PinError, match="somebody else answers"):
        dial(url, token)
    assert asked == []


@pytest.mark.parametrize(
    ("answer", "kind", "says"),
    [
        ((401, b"it was revoked\n"), RefusedError, "^it was revoked$"),
        ((403, b""), RefusedError, r"does not take this token \(HTTP 403\)"),
        ((503, b"not now"), Gone, "answers 503: not now$"),
        ((404, b"x" * 1000), Gone, "answers 404: x{500}$"),
    ],
)
def test_why_it_is_not_let_in_is_said(answer: tuple[int, bytes], kind: type[Exception], says: str) -> None:
    with head(echo, answer) as url, pytest.raises(kind, match=says):
        dial(url, TOKEN)


def test_what_comes_in_pieces_is_heard_whole_also_right_after_the_greeting() -> None:
    def pieces(connection: ServerConnection) -> None:
        connection.send(["in ", "many ", "pieces"])
        connection.send(b"as bytes")
        connection.ping()
        connection.send("after a ping")
        echo(connection)

    with head(pieces) as url:
        link = Carried(dial(url, TOKEN))
        until(lambda: len(link.heard) == 3)
        assert link.heard == ["in many pieces", "as bytes", "after a ping"]
        link.wire.close()
        assert link.end() == "it was closed"


def test_what_was_to_be_sent_before_it_was_closed_is_sent_and_no_more() -> None:
    heard: list[Any] = []
    over = threading.Event()

    def listens(connection: ServerConnection) -> None:
        with suppress(ConnectionClosed):
            for text in connection:
                heard.append(text)
        over.set()

    with head(listens) as url:
        wire = dial(url, TOKEN)
        wire.send("last words")
        wire.close("so")
        wire.close("or so")
        wire.send("too late")
        assert wire.run(heard.append, lambda: LONG_S) == "so"
        assert over.wait(60.0)
        assert heard == ["last words"]
        wire.send("much too late")
        wire.close("again")


@pytest.mark.parametrize(("reason", "why"), [("it ends", "the head hung up (it ends)"), ("", "the head hung up")])
def test_a_head_that_hangs_up_may_say_why(reason: str, why: str) -> None:
    def hangs_up(connection: ServerConnection) -> None:
        connection.send("one more")
        connection.close(reason=reason)

    with head(hangs_up) as url:
        link = Carried(dial(url, TOKEN))
        assert link.end() == why
        assert link.heard == ["one more"]
        assert link.wire._connection.fileno() == -1


def test_a_connection_that_is_gone_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone() -> bytes:
        raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")

    with head(echo) as url:
        wire = dial(url, TOKEN)
        monkeypatch.setattr(wire, "_received", gone)
        assert wire.run(lambda text: None, lambda: 0.0) == "the link broke: Connection reset by peer"
        assert wire._connection.fileno() == -1


def test_it_is_called_now_and_then_as_it_asks() -> None:
    calls: list[int] = []

    def tick() -> float:
        calls.append(1)
        if len(calls) == 5:
            wire.close("called five times")
        return 0.001 if len(calls) < 5 else LONG_S

    with head(echo) as url:
        wire = dial(url, TOKEN)
        assert wire.run(calls.append, tick) == "called five times"  # type: ignore[arg-type]


def test_a_head_that_takes_nothing_keeps_nobody_from_being_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """Heartbeats and their lack are looked at while megabytes wait."""
    done = threading.Event()
    calls = 0

    def stuck(connection: ServerConnection) -> None:
        connection.recv_bufsize = 1
        connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        done.wait(60.0)

    def tick() -> float:
        nonlocal calls
        calls += 1
        if calls == 3:
            wire.close("given up")
        return 0.01

    with head(stuck) as url:
        wire = dial(url, TOKEN)
        monkeypatch.setattr("gpuloom.node.dial.LAST_S", 0.01)
        wire.send("x" * 20_000_000)
        assert wire.run(lambda text: None, tick) == "given up"
        done.set()
