"""Connections: strangers get few and little time, and the owner always comes through."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from api_client import TOKEN, Stream, http, served
from fake_service import FakeService
from gpuloom.live.submission.spec import job_spec
from gpuloom.server import connections, sse
from gpuloom.server.connections import OF_A_STRANGER, OF_MY_USER, OF_STRANGERS, Connections
from gpuloom.server.peers import Peer, Users, me
from gpuloom.server.run import Listening

STRANGER: Peer = ("uid", 54_321)


class Fake:
    """A connection that can be ended, of somebody."""

    def __init__(self, peer: Peer, *, idle: bool = False) -> None:
        self.peer, self.idle, self.ended = peer, idle, False
        self.transport = self

    def abort(self) -> None:
        self.ended = True


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> Any:
    found = Connections(most=1000)
    monkeypatch.setattr(found.users, "peer", lambda transport: transport.peer)
    yield found
    found.close()


def enter(there: Any, peer: Peer, count: int, *, known: bool = False, idle: bool = False) -> list[Fake]:
    found = [Fake(peer, idle=idle) for _ in range(count)]
    for one in found:
        there.enter(one, one)
        if known and not one.ended:
            there.know(one)
    return found


def left(*groups: list[Fake]) -> list[int]:
    return [sum(not one.ended for one in group) for group in groups]


def test_of_a_strangers_connections_the_oldest_go(there: Any) -> None:
    mine, theirs = enter(there, me(), 100), enter(there, STRANGER, 3 * OF_A_STRANGER)
    assert left(mine, theirs) == [100, OF_A_STRANGER]
    assert [one.ended for one in theirs] == [True] * 2 * OF_A_STRANGER + [False] * OF_A_STRANGER
    assert len(there) == 100 + OF_A_STRANGER


def test_of_many_strangers_the_one_with_most_gives(there: Any) -> None:
    few = [enter(there, ("address", f"192.0.2.{number}"), 1) for number in range(250)]
    greedy = enter(there, STRANGER, OF_A_STRANGER)
    more = [enter(there, ("address", f"198.51.100.{number}"), 1) for number in range(20)]
    assert there.strangers == OF_STRANGERS
    assert left(*few, *more) == [1] * 270 or sum(left(*few, *more)) + left(greedy)[0] == OF_STRANGERS
    assert left(greedy)[0] < OF_A_STRANGER
    assert left(*more) == [1] * 20


def test_my_own_user_may_have_many_and_no_stranger_costs_one(there: Any) -> None:
    mine = enter(there, me(), OF_MY_USER)
    enter(there, STRANGER, 500)
    assert left(mine) == [OF_MY_USER]
    enter(there, me(), 1)
    assert left(mine) == [OF_MY_USER - 1]


def test_who_has_shown_the_token_is_no_stranger(there: Any) -> None:
    known = enter(there, STRANGER, 200, known=True)
    assert left(known) == [200]
    assert there.strangers == 0


def test_where_all_room_is_taken_strangers_go_then_what_is_idle_and_nobody_who_works() -> None:
    there = Connections(most=20)
    there.users.peer = lambda transport: transport.peer  # type: ignore[method-assign]
    busy = enter(there, me(), 10, known=True)
    idle = enter(there, me(), 4, known=True, idle=True)
    theirs, mine = enter(there, STRANGER, 4), enter(there, me(), 2)
    first = enter(there, me(), 4, known=True)
    assert left(busy, idle, theirs, mine, first) == [10, 4, 0, 2, 4]
    second = enter(there, me(), 2, known=True)
    assert left(busy, idle, mine, second) == [10, 4, 0, 2]
    third = enter(there, me(), 4, known=True)
    assert left(busy, idle, third) == [10, 0, 4]
    assert left(enter(there, me(), 1), busy) == [0, 10]  # all work: it is the newest that can't be served
    there.close()


def test_one_that_is_gone_is_forgotten(there: Any) -> None:
    for one in enter(there, STRANGER, 5) + enter(there, me(), 5, known=True):
        there.leave(one)
        there.leave(one)
    assert (len(there), there.strangers) == (0, 0)


def test_at_the_end_nobody_is_let_in(there: Any) -> None:
    before = enter(there, me(), 2)
    there.ending = True
    assert left(before, enter(there, me(), 3), enter(there, STRANGER, 3)) == [2, 0, 0]
    assert len(there) == 2


# -- who it is ---------------------------------------------------------------------------------------------------------


class Pair:
    """A connection on this machine, from the side that was called."""

    def __init__(self, family: socket.AddressFamily, call: str, listen: str) -> None:
        with socket.create_server((listen, 0), family=family) as listener:
            self.there = socket.socket(socket.AF_INET6 if ":" in call else socket.AF_INET)
            self.there.connect((call, listener.getsockname()[1]))
            self.here, _ = listener.accept()

    def get_extra_info(self, name: str) -> Any:
        return {"peername": self.here.getpeername(), "sockname": self.here.getsockname()}[name]

    def close(self) -> None:
        self.there.close()
        self.here.close()


@pytest.mark.parametrize("call", ["127.0.0.1", "::ffff:127.0.0.1", "::1"])
def test_the_user_at_the_other_end(call: str) -> None:
    try:
        pair = Pair(*((socket.AF_INET6, "::1", "::1") if call == "::1" else (socket.AF_INET, call, "127.0.0.1")))
    except OSError as error:
        pytest.skip(f"no {call} here: {error}")
    users = Users()
    try:
        found = users.peer(pair)
        if found[0] == "address":
            pytest.skip("the kernel does not tell")
        assert found == ("uid", os.geteuid()) == me()
        pair.there.close()
        assert users.peer(pair)[0] == "address"  # nobody's any more, and not root's
    finally:
        users.close()
        pair.close()


@pytest.mark.parametrize(
    ("address", "peer"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
    ],
)
def test_others_go_by_their_address(address: str, peer: str) -> None:
    class Transport:
        def get_extra_info(self, name: str) -> tuple[str, int]:
            return (address, 4711)

    users = Users()
    assert users.peer(Transport()) == ("address", peer)
    users.close()


# -- over a real connection --------------------------------------------------------------------------------------------


@pytest.fixture
def service(tmp_path: Path) -> FakeService:
    found = FakeService(tmp_path)
    found.submit([job_spec({"command": ["./a"]})] * 3, user="ada")
    return found


def answers(place: Listening, data: bytes) -> bytes:
    """All that comes until the other side hangs up."""
    with socket.create_connection((place.host, place.port), timeout=30) as one:
        one.sendall(data)
        with one.makefile("rb") as file:
            return file.read()


HEAD = "Host: 127.0.0.1\r\nContent-Type: application/json\r\n"
TOLD = f"{HEAD}Authorization: Bearer {TOKEN}\r\n"


def test_a_stranger_is_answered_once(service: FakeService) -> None:
    with served(service) as place:
        request = f"GET /v1/jobs HTTP/1.1\r\n{HEAD}\r\n".encode()
        found = answers(place, request * 5)
        assert found.count(b"HTTP/1.1 401") == 1
        assert b"connection: close" in found.lower()
        body = b'{"command": ["a", "' + b"x" * 40_000 + b'"]}'
        sent = f"POST /v1/jobs HTTP/1.1\r\n{HEAD}Content-Length: {len(body)}\r\n\r\n".encode() + body
        assert b"the token is missing" in answers(place, sent)  # not cut off by a body that nobody reads
        assert answers(place, f"GET /v1/health HTTP/1.1\r\n{HEAD}\r\n".encode()).count(b'"ok":true') == 1


def test_the_owner_keeps_a_connection(service: FakeService) -> None:
    with (
        served(service) as place,
        socket.create_connection((place.host, place.port), timeout=30) as one,
        one.makefile("rb") as file,
    ):
        for _ in range(3):
            one.sendall(f"GET /v1/health HTTP/1.1\r\n{TOLD}\r\n".encode())
            head = b"".join(iter(file.readline, b"\r\n")).lower()
            assert b"connection: close" not in head
            file.read(int(head.partition(b"content-length: ")[2].split()[0]))


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        ("", b""),  # nothing was asked: nothing is answered
        ("GET /v1/jo", b"HTTP/1.1 408"),
        (f"GET /v1/jobs HTTP/1.1\r\n{TOLD}", b"HTTP/1.1 408"),
        (f"POST /v1/jobs HTTP/1.1\r\n{TOLD}Content-Length: 50\r\n\r\n{{", b"HTTP/1.1 408"),
        (f"POST /v1/jobs HTTP/1.1\r\n{TOLD}Transfer-Encoding: chunked\r\n\r\n1\r\n{{\r\n", b"HTTP/1.1 408"),
        (f"POST /v1/jobs HTTP/1.1\r\n{HEAD}Content-Length: 50\r\n\r\n{{", b"HTTP/1.1 4"),
        (f"POST /v1/jobs HTTP/1.1\r\n{HEAD}Expect: 100-continue\r\nContent-Length: 50\r\n\r\n", b"HTTP/1.1 401"),
    ],
)
def test_what_does_not_come_is_not_waited_for(
    service: FakeService, monkeypatch: pytest.MonkeyPatch, sent: str, status: bytes
) -> None:
    with served(service) as place:
        with monkeypatch.context() as patch:
            for name in ("HEADER_S", "BODY_S", "STRANGER_S"):
                patch.setattr(connections, name, 0.3)
            found = answers(place, sent.encode())
        assert found.startswith(status)
        assert bool(found) == bool(status)
        if found:
            head, _, body = found.partition(b"\r\n\r\n")
            assert b"application/problem+json" in head
            assert json.loads(body)["title"]
        with http(place) as client:
            assert client.get("/v1/jobs").status_code == 200


def test_streams_are_bounded_and_their_places_free_again(service: FakeService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MOST_OF_A_PEER", 2)
    with served(service) as place, http(place) as client:
        with Stream(place, "/v1/events"), Stream(place, "/v1/jobs/1/log"):
            full = client.get("/v1/events", headers={"Accept": "text/event-stream"})
            assert full.status_code == 429
            assert full.json()["type"].endswith(":too-many-streams")
            assert client.get("/v1/events").status_code == 200  # pages are no streams
        while True:  # until the server has seen that they are gone
            with Stream(place, "/v1/events?after=0") as stream:
                if stream.status == 200:
                    assert stream.next()
                    break
                assert stream.status == 429


def test_headers_are_bounded(service: FakeService) -> None:
    with served(service) as place:
        for more in ("Connection: close\r\n\r\n", ""):  # a whole head, and one that goes on and on
            found = answers(place, f"GET /v1/jobs HTTP/1.1\r\n{TOLD}X: {'a' * 30_000}\r\n{more}".encode())
            assert found.startswith(b"HTTP/1.1 431")
            assert b"headers-too-large" in found
