"""The WebSocket at which nodes join: who is let in, and that nothing of HTTP comes between frames."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from api_client import served
from fake_service import FakeService
from gpuloom.fleet.channel import Connection
from gpuloom.fleet.messages import PATH
from gpuloom.server import connections, node_link
from gpuloom.server.run import Listening
from until import until

SECRET = "glt_0123abcd_secret"


class Register:
    """Says back what it hears. lives: connections that are open."""

    def __init__(self) -> None:
        self.lives: list[Connection] = []

    def why_not(self, shown: str) -> str:
        return "" if shown == SECRET else "it is none of this head's"

    def opened(self, connection: Connection, shown: str) -> None:
        self.lives.append(connection)

    def received(self, connection: Connection, text: str) -> None:
        connection.send(text.upper())

    def closed(self, connection: Connection) -> None:
        self.lives.remove(connection)

    def ending(self) -> None:
        for connection in self.lives:
            connection.send("last words")


@pytest.fixture
def register() -> Register:
    return Register()


@pytest.fixture
def place(tmp_path: Path, register: Register) -> Iterator[Listening]:
    with served(FakeService(tmp_path), nodes=register) as found:
        yield found


@contextmanager
def linked(
    place: Listening, path: str = PATH, token: str = SECRET, host: str = "127.0.0.1", **headers: str
) -> Iterator[ClientConnection]:
    sent = {"Authorization": f"Bearer {token}", **headers}
    plain = socket.create_connection(("127.0.0.1", place.port))
    uri = f"ws://{host}:{place.port}{path}"
    with plain, connect(uri, sock=plain, additional_headers=sent, close_timeout=1) as found:
        yield found


def test_frames_go_both_ways_also_long_ones(place: Listening, register: Register) -> None:
    with linked(place) as link:
        for text in ("a", "b" * 1_000_000):
            link.send(text)
            assert link.recv(timeout=20) == text.upper()
        link.send(["in ", "pieces"])
        assert link.recv(timeout=20) == "IN PIECES"
        assert len(register.lives) == 1
    until(lambda: not register.lives)


def test_times_and_places_of_requests_are_not_those_of_links(
    tmp_path: Path, register: Register, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HEADER_S", "BODY_S", "STRANGER_S"):
        monkeypatch.setattr(connections, name, 0.2)
    with served(FakeService(tmp_path), nodes=register) as place, linked(place) as link:
        time.sleep(0.7)
        link.send("a")
        assert link.recv(timeout=20) == "A"


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        ({"token": "glt_0123abcd_wrong"}, 401, "the token does not count: it is none of this head's"),
        ({"path": "/v1/nodes"}, 404, f"no WebSocket but {PATH}"),
        ({"Origin": "http://127.0.0.1"}, 403, "not for web pages"),
        ({"host": "evil.example"}, 421, "'evil.example:"),
    ],
)
def test_who_is_refused(
    place: Listening, register: Register, arguments: dict[str, str], status: int, says: str
) -> None:
    with pytest.raises(InvalidStatus) as caught, linked(place, **arguments):
        pass
    assert caught.value.response.status_code == status
    assert says in bytes(caught.value.response.body or b"").decode()
    assert register.lives == []


def test_nobody_joins_where_no_nodes_are_kept(tmp_path: Path) -> None:
    with (
        served(FakeService(tmp_path)) as place,
        pytest.raises(InvalidStatus) as caught,
        linked(place),
    ):
        pass
    assert caught.value.response.status_code == 404


def test_the_head_hangs_up_with_a_reason_and_at_its_end(place: Listening, register: Register) -> None:
    with linked(place) as link:
        register.lives[0].close("why " * 100)
        with pytest.raises(ConnectionClosed) as caught:
            link.recv(timeout=20)
        assert caught.value.rcvd is not None
        assert caught.value.rcvd.reason.startswith("why why")
    with linked(place) as link:
        place.stop()
        assert link.recv(timeout=20) == "last words"
        with pytest.raises(ConnectionClosed):
            link.recv(timeout=20)
    until(lambda: not register.lives)


def test_a_node_that_takes_nothing_is_hung_up_on(
    place: Listening, register: Register, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_link, "BEHIND_BYTES", 1 << 20)
    with linked(place) as link:
        for _ in range(64):
            register.lives[0].send("x" * (1 << 20))
            if not register.lives:
                break
        until(lambda: not register.lives)
        link.socket.close()
