"""Requests to a scheduler by a clock of the test's own: what is repeated, for how long, and what is said in the end."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from gpuloom.client import http
from gpuloom.client.errors import (
    AccessError,
    ClientError,
    ConflictError,
    ConnectionLostError,
    ImpossibleError,
    NoSchedulerError,
    NotFoundError,
    RequestError,
    ServerError,
    of_answer,
)
from gpuloom.client.home import Address
from gpuloom.client.http import Connection
from gpuloom.core.errors import InputError
from gpuloom.live.views.answers import type_of

URL = "http://127.0.0.1:7001"


class Made:
    """A connection to what the test says: an answer for each request, or an error."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, patience_s: float = 1.0) -> None:
        self.now, self.pauses, self.asked = [0.0], list[float](), list[httpx.Request]()
        self.answers: list[Any] = []
        self.address = Address(URL, "secret", None)

        def sleep(seconds: float) -> None:
            self.pauses.append(seconds)
            self.now[0] += seconds

        monkeypatch.setattr(http, "time", SimpleNamespace(monotonic=lambda: self.now[0], sleep=sleep))
        monkeypatch.setattr(http, "find", lambda *given: self.address)
        self.plain = httpx.Client
        monkeypatch.setattr(httpx, "Client", self._client)
        self.given: dict[str, Any] = {}
        self.connection = Connection(None, None, None, user="ann", timeout_s=5.0, patience_s=patience_s)

    def _client(self, **how: Any) -> httpx.Client:
        self.given = how
        transport = httpx.MockTransport(self._answer)
        return self.plain(base_url=how["base_url"], headers=how["headers"], transport=transport)

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        found = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(found, Exception):
            raise found
        if isinstance(found, httpx.Response):
            return found
        answer: httpx.Response = found()
        return answer

    def ask(self, method: str = "GET", **how: Any) -> Any:
        return self.connection.request(method, "/jobs", **how)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Made:
    return Made(monkeypatch)


def test_a_request_and_its_answer(made: Made) -> None:
    made.answers = [httpx.Response(200, json={"a": 1})]
    found = made.ask("POST", params={"a": None, "b": True, "c": [1, 2]}, body={"x": 1}, headers={"Y": "z"})
    assert found.json() == {"a": 1}
    (request,) = made.asked
    assert str(request.url) == f"{URL}/jobs?b=true&c=1&c=2"
    assert (request.content, request.headers["content-type"], request.headers["y"]) == (
        b'{"x":1}', "application/json", "z",
    )  # fmt: skip
    assert (request.headers["authorization"], request.headers["x-gpuloom-user"]) == ("Bearer secret", "ann")
    assert (made.given["trust_env"], made.given["verify"], made.pauses) == (False, False, [])
    made.connection.close()
    made.connection.close()
    made.answers = [httpx.Response(200)]
    made.ask()
    assert "content-type" not in made.asked[-1].headers


def test_where_nobody_listens_it_is_tried_again_for_as_long_as_was_said(made: Made) -> None:
    made.answers = [httpx.ConnectError("refused")]
    with pytest.raises(NoSchedulerError) as error:
        made.ask("POST", again=True)
    text = f"no scheduler answers at {URL}: the connection to the scheduler broke (refused)"
    assert str(error.value) == text
    assert made.pauses == pytest.approx([0.05, 0.1, 0.2, 0.4])
    made.pauses.clear()
    made.answers = [httpx.ConnectError("refused"), httpx.Response(200)]
    assert made.ask("POST").status_code == 200
    assert made.pauses == [0.05]


@pytest.mark.parametrize(
    ("method", "again", "error", "said", "tries"),
    [
        ("POST", False, ConnectionLostError, "; it is not known whether POST /jobs was done", 1),
        ("POST", True, ConnectionLostError, ", and no scheduler answered for 1 s", 5),
        ("GET", True, NoSchedulerError, "", 5),
    ],
)
def test_a_connection_that_breaks(
    method: str, again: bool, error: type[Exception], said: str, tries: int, made: Made
) -> None:
    made.answers = [httpx.ReadError("")]
    with pytest.raises(error) as raised:
        made.ask(method, again=again)
    broke = "the connection to the scheduler broke (ReadError)"
    expected = f"{broke}{said}" if said else f"no scheduler answers at {URL}: {broke}"
    assert str(raised.value) == expected
    assert len(made.asked) == tries


def test_pauses_grow_up_to_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Made(monkeypatch, patience_s=6.0)
    made.answers = [httpx.ConnectError("x")]
    with pytest.raises(NoSchedulerError):
        made.ask()
    assert made.pauses == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0, 1.0])


def test_a_scheduler_that_moved_is_found_again(made: Made) -> None:
    def moves() -> httpx.Response:
        made.address = Address("http://127.0.0.1:7002", "other", None)
        raise httpx.ConnectError("gone")

    made.answers = [moves, httpx.Response(200)]
    made.ask()
    assert [(request.url.port, request.headers["authorization"]) for request in made.asked] == [
        (7001, "Bearer secret"), (7002, "Bearer other"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("url", "there", "alive", "waits"),
    [
        (None, False, True, False),
        (URL, True, False, False),
        (URL, True, True, True),
    ],
)
def test_nobody_is_waited_for_who_was_never_there(
    url: str | None, there: bool, alive: bool, waits: bool, made: Made, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made.address = Address(URL, "secret", tmp_path)
    monkeypatch.setattr(http, "running", lambda home: SimpleNamespace(pid=7, url=url) if there else None)
    monkeypatch.setattr(http, "alive", lambda pid: alive)
    made.answers = [httpx.ConnectError("x")]
    with pytest.raises(NoSchedulerError):
        made.ask()
    assert bool(made.pauses) is waits
    made.answers, made.pauses = [httpx.Response(200), httpx.ConnectError("x")], []
    made.ask()
    with pytest.raises(NoSchedulerError):
        made.ask()
    assert made.pauses, "who has answered once may come back"


@pytest.mark.parametrize(
    ("found", "waits"),
    [(None, True), ("http://127.0.0.1:9", True), (URL + "/", False), ("dead", True)],
)
def test_who_refuses_the_token_may_be_another(
    found: str | None, waits: bool, made: Made, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made.address = Address(URL, "secret", tmp_path)
    made.connection._met = True
    entry = None if found is None else SimpleNamespace(pid=7, url=URL if found == "dead" else found)
    monkeypatch.setattr(http, "running", lambda home: entry)
    monkeypatch.setattr(http, "alive", lambda pid: found != "dead")
    made.answers = [lambda: httpx.Response(401, json={"detail": "wrong token"})]
    with pytest.raises(NoSchedulerError if waits else AccessError):
        made.ask()
    assert bool(made.pauses) is waits


@pytest.mark.parametrize(
    ("status", "problem", "kind", "said"),
    [
        (400, {"detail": "d", "title": "t"}, RequestError, "d"),
        (403, {"title": "t"}, AccessError, "t"),
        (404, {}, NotFoundError, "the scheduler answered 404 Why"),
        (405, None, RequestError, "the scheduler answered 405 Why"),
        (409, [], ConflictError, "the scheduler answered 409 Why"),
        (413, "x", RequestError, "the scheduler answered 413 Why"),
        (418, {}, ClientError, "the scheduler answered 418 Why"),
        (500, {}, ServerError, "the scheduler answered 500 Why"),
        (422, {"detail": "d", "type": type_of("impossible-job")}, ImpossibleError, "d"),
        (
            422,
            {
                "detail": "d",
                "type": type_of("invalid-body"),
                "errors": [{"where": "/jobs/3/gpus", "message": "too many"}, 7, {"message": "odd"}],
            },
            RequestError,
            "jobs.3.gpus too many; odd",
        ),
        (422, {"detail": "d", "errors": [{"where": "/a"}]}, RequestError, "d"),
    ],
)
def test_errors_of_answers(status: int, problem: Any, kind: type[ClientError], said: str) -> None:
    found = of_answer(status, "Why", problem)
    assert (type(found), str(found), found.status) == (kind, said, status)


def test_what_can_not_be_asked_for(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    for timeout_s, patience_s in ((0.0, 1.0), (1.0, -0.1)):
        with pytest.raises(InputError) as error:
            Connection(None, None, None, user=None, timeout_s=timeout_s, patience_s=patience_s)
        assert str(error.value) == (
            f"timeout_s is {timeout_s}, must be above 0; patience_s is {patience_s}, must be 0 or more"
        )
    Connection(None, None, None, user=None, timeout_s=0.1, patience_s=0.0)

    def invalid(**how: Any) -> Any:
        raise httpx.InvalidURL("no host")

    monkeypatch.setattr(httpx, "Client", invalid)
    with pytest.raises(InputError) as error:
        made.ask()
    assert str(error.value) == f"{URL!r} is not the URL of a scheduler: no host"


# -- streams -----------------------------------------------------------------------------------------------------------


def events(*texts: str) -> Callable[[], httpx.Response]:
    return lambda: httpx.Response(200, stream=httpx.ByteStream("".join(texts).encode()))


def test_a_stream_goes_on_where_it_broke(made: Made) -> None:
    troubles: list[str] = []
    made.connection.on_trouble = troubles.append
    made.answers = [
        events("id: 1\nevent: a\ndata: x\n\n"),
        httpx.ConnectError("gone"),
        httpx.Response(503, json={"detail": "it begins"}),
        events("id: 2\nevent: end\ndata: y\n\n", "id: 3\nevent: a\ndata: z\n\n"),
    ]
    found = [(one.type, one.id) for one in made.connection.stream("/events", ends_with="end", last_id="0")]
    assert found == [("a", "1"), ("", "1"), ("", "1"), ("", "1"), ("end", "2")]
    assert [request.headers.get("last-event-id") for request in made.asked] == ["0", "1", "1", "1"]
    assert troubles == [
        "the connection to the scheduler broke (the scheduler ended the stream); trying again for 1 s",
    ]  # fmt: skip
    assert made.pauses == [0.05, 0.1, 0.2]


def test_a_stream_that_nobody_answers(made: Made) -> None:
    made.answers = [httpx.ConnectError("gone")]
    beats = []
    with pytest.raises(NoSchedulerError):
        beats.extend(made.connection.stream("/events"))
    assert sum(made.pauses) > 1.0 >= sum(made.pauses[:-1])
    for status, kind in ((503, ServerError), (404, NotFoundError)):
        made.pauses.clear()
        made.answers = [lambda status=status: httpx.Response(status, json={"detail": "no"})]
        with pytest.raises(kind):
            list(made.connection.stream("/events"))
        assert bool(made.pauses) == (status == 503)


def test_bodies_hold_no_numbers_that_are_none() -> None:
    assert http._bytes(None) is None
    assert json.loads(http._bytes({"a": [1, None]}) or b"") == {"a": [1, None]}
    with pytest.raises(ValueError, match="JSON"):
        http._bytes(float("nan"))
