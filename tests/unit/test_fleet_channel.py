"""One end of a link: messages that outlive connections, and questions that don't."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from fake_head import Wire
from gpuloom.executors.port import ExecutorError
from gpuloom.fleet.channel import AnswerError, Channel
from gpuloom.fleet.stream import ACK_AFTER, StreamError
from until import until


def connected(session: str = "s") -> tuple[Channel, Wire]:
    channel, wire = Channel("n1"), Wire()
    channel.begin(session)
    channel.attach(wire, 0)
    return channel, wire


def test_messages_wait_for_a_connection_and_are_kept_until_they_have_arrived() -> None:
    channel = Channel("n1")
    channel.begin("s")
    channel.put({"a": 1})
    wire = Wire()
    channel.attach(wire, 0)
    channel.put({"a": 2})
    assert [(frame["n"], frame["m"]) for frame in wire.frames] == [(1, {"a": 1}), (2, {"a": 2})]
    assert len(channel) == 2
    assert channel.heard(wire, {"ack": 1}) is None
    assert len(channel) == 1
    assert channel.detach(wire)
    channel.put({"a": 3})
    again = Wire()
    channel.attach(again, 1)
    assert [frame["m"]["a"] for frame in again.frames] == [2, 3]
    assert len(wire.frames) == 2


def test_what_does_not_fit_in_the_window_is_sent_as_room_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    channel, wire = connected()
    channel._stream._window = 2
    for number in range(4):
        channel.put({"a": number})
    assert [frame["n"] for frame in wire.frames] == [1, 2]
    channel.heard(wire, {"ack": 2})
    assert [frame["n"] for frame in wire.frames] == [1, 2, 3, 4]


def test_of_one_key_only_the_newest_waits() -> None:
    channel = Channel("n1")
    for number in range(3):
        channel.put({"a": number}, "sample")
    assert len(channel) == 1


def test_begun_anew_nothing_of_before_is_left() -> None:
    channel, wire = connected()
    assert channel.heard(wire, {"n": 1, "m": {}}) == {}
    channel.put({"a": 1})
    channel.begin()
    assert (len(channel), channel.received) == (0, 0)
    assert len(channel.session) == 16
    first = channel.session
    channel.begin()
    assert channel.session != first
    channel.begin("mine")
    assert channel.session == "mine"
    assert Channel("n1").session == ""


def test_a_message_is_handed_on_once_and_acknowledged_when_it_was_dealt_with() -> None:
    channel, wire = connected()
    assert channel.heard(wire, {"n": 1, "m": {"kind": "go"}}) == {"kind": "go"}
    assert channel.heard(wire, {"n": 1, "m": {"kind": "go"}}) is None
    assert channel.received == 1
    channel.say({"beat": 5})
    assert wire.frames[-1] == {"beat": 5, "ack": 0}
    channel.dealt(1)
    assert wire.frames[-1] == {"beat": 5, "ack": 0}, "one alone is worth no frame"
    channel.say({"beat": 6})
    assert wire.frames[-1] == {"beat": 6, "ack": 1}
    for number in range(2, ACK_AFTER + 2):
        channel.heard(wire, {"n": number, "m": {}})
        channel.dealt(number)
    assert wire.frames[-1] == {"ack": ACK_AFTER + 1}
    channel.detach()
    channel.dealt(ACK_AFTER + 1)
    channel.say({"beat": 7})
    assert wire.frames[-1] == {"ack": ACK_AFTER + 1}


@pytest.mark.parametrize("frame", [{"n": 2, "m": {}}, {"n": 1, "m": 5}, {"n": 1}, {"ack": 1}])
def test_what_the_two_sides_do_not_agree_on_is_an_error(frame: dict[str, Any]) -> None:
    channel, wire = connected()
    with pytest.raises(StreamError):
        channel.heard(wire, frame)


def test_frames_of_a_connection_before_are_passed_over() -> None:
    channel, old = connected()
    new = Wire()
    channel.attach(new, 0)
    assert (channel.is_on(old), channel.is_on(new)) == (False, True)
    assert channel.heard(old, {"n": 1, "m": {}}) is None
    assert channel.heard(old, {"n": 7, "m": {}}) is None
    assert channel.received == 0
    assert channel.heard(new, {"m": {}}) is None
    assert channel.heard(new, {"ack": None, "n": "1", "m": {}}) is None
    assert channel.received == 0


def test_it_lets_go_of_the_connection_in_use_and_of_no_other() -> None:
    channel, wire = connected()
    assert not channel.detach(Wire())
    assert channel.connected
    assert not wire.closed
    assert channel.detach(wire) is True
    assert wire.closed
    assert not channel.connected
    assert not channel.detach()
    other = Wire()
    channel.attach(other, 0)
    assert channel.detach()
    assert other.closed


def test_a_connection_that_knows_more_than_was_said_is_not_used() -> None:
    channel = Channel("n1")
    with pytest.raises(StreamError):
        channel.attach(Wire(), 3)
    assert not channel.connected


# -- questions ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


def asked(pool: ThreadPoolExecutor, channel: Channel, wire: Wire, what: str, **arguments: Any) -> tuple[Any, int]:
    """A question that waits for its answer, and its number."""
    before = len(wire.frames)
    found: Future[Any] = pool.submit(channel.ask, what, 60.0, **arguments)
    until(lambda: len(wire.frames) > before)
    return found, wire.frames[-1]["ask"]


def test_questions_are_answered_by_number(pool: ThreadPoolExecutor) -> None:
    channel, wire = connected()
    one, first = asked(pool, channel, wire, "runs")
    assert wire.frames[-1] == {"ask": 1, "what": "runs", "with": {}}
    other, second = asked(pool, channel, wire, "log_mark", run="1.1")
    assert wire.frames[-1] == {"ask": 2, "what": "log_mark", "with": {"run": "1.1"}}
    channel.replied({"reply": second, "data": [1]})
    for number in (99, None, "1", [1], {}):
        channel.replied({"reply": number, "data": "nobody asked"})
    assert other.result(30.0) == [1]
    assert not one.done()
    channel.replied({"reply": first})
    assert one.result(30.0) is None


def test_why_not_is_told_to_who_asked(pool: ThreadPoolExecutor) -> None:
    channel, wire = connected()
    for frame, kind in (({"error": "no log", "kind": "no-log"}, "no-log"), ({"error": "no log"}, "")):
        found, number = asked(pool, channel, wire, "read_log")
        channel.replied({"reply": number, **frame})
        with pytest.raises(AnswerError, match=r"^no log$") as caught:
            found.result(30.0)
        assert caught.value.kind == kind


def test_a_link_that_breaks_answers_nobody(pool: ThreadPoolExecutor) -> None:
    channel, wire = connected()
    found, number = asked(pool, channel, wire, "runs")
    channel.detach(wire)
    with pytest.raises(ExecutorError, match="the link to n1 broke before it answered"):
        found.result(30.0)
    channel.replied({"reply": number, "data": 1})
    with pytest.raises(ExecutorError, match="the link to n1 is cut: it can't be asked now"):
        channel.ask("runs")


def test_an_answer_that_does_not_come_is_not_waited_for_for_ever() -> None:
    channel, wire = connected()
    with pytest.raises(ExecutorError, match=r"n1 does not answer within 0\.01 s"):
        channel.ask("runs", 0.01)
    assert channel._questions == {}
    channel.replied({"reply": wire.frames[-1]["ask"], "data": "late"})


def test_messages_go_out_in_order_from_many_threads() -> None:
    channel, wire = connected()
    threads = [threading.Thread(target=lambda: [channel.put({"a": number}) for number in range(200)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [frame["n"] for frame in wire.frames] == list(range(1, len(wire.frames) + 1))
