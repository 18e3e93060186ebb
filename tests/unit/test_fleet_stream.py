"""The stream of a link: each message once and in order, whatever connections do."""

from __future__ import annotations

import random

import pytest

from gpuloom.fleet.stream import ACK_AFTER, Stream, StreamError


def test_what_is_put_is_sent_once_on_a_connection() -> None:
    stream = Stream()
    stream.connected(0)
    stream.put({"a": 1})
    assert stream.frames() == [{"n": 1, "m": {"a": 1}, "ack": 0}]
    assert stream.frames() == []
    stream.put({"a": 2})
    assert [frame["n"] for frame in stream.frames()] == [2]


def test_after_a_cut_what_did_not_arrive_is_sent_again() -> None:
    stream = Stream()
    for number in range(4):
        stream.put({"a": number})
    stream.frames()
    stream.acknowledged(1)
    stream.connected(2)
    assert [frame["n"] for frame in stream.frames()] == [3, 4]


def test_of_one_key_only_the_newest_waits_and_the_rest_all() -> None:
    stream = Stream(window=2)
    for number in range(5):
        stream.put({"status": number})
        stream.put({"sample": number}, "sample")
    assert [frame["m"] for frame in stream.frames()] == [{"status": 0}, {"sample": 4}]
    stream.acknowledged(2)
    assert [frame["m"] for frame in stream.frames()] == [{"status": 1}, {"status": 2}]
    assert len(stream) == 4


def test_numbers_that_can_not_be_are_errors() -> None:
    stream = Stream()
    assert stream.take(1)
    assert not stream.take(1)
    with pytest.raises(StreamError, match="3 came after message 1"):
        stream.take(3)
    with pytest.raises(StreamError, match="the last one was 0"):
        stream.acknowledged(1)
    with pytest.raises(StreamError, match="the last one was 0"):
        stream.connected(1)


def test_acknowledged_is_what_was_dealt_with_and_not_what_has_come() -> None:
    stream = Stream()
    for number in range(1, ACK_AFTER + 1):
        stream.take(number)
        assert stream.ack() is None
        stream.deal(number - 1)
    stream.deal(ACK_AFTER)
    assert stream.ack() == {"ack": ACK_AFTER}
    assert stream.ack() is None
    assert stream.ack(always=True) == {"ack": ACK_AFTER}


@pytest.mark.parametrize("seed", range(20))
def test_any_cuts_leave_each_message_once_and_in_order(seed: int) -> None:
    draw = random.Random(seed)
    one, other = Stream(window=5), Stream(window=5)
    got: dict[int, list[int]] = {1: [], 2: []}
    put = {1: 0, 2: 0}
    wires: list[list[dict[str, object]]] = [[], []]

    def deliver(stream: Stream, name: int, frame: dict[str, object]) -> None:
        stream.acknowledged(int(str(frame["ack"])))
        if "n" in frame and stream.take(int(str(frame["n"]))):
            got[name].append(frame["m"]["a"])  # type: ignore[index]
            stream.deal(int(str(frame["n"])))

    one.connected(0)
    other.connected(0)
    for step in range(400):
        end = step > 300
        choice = draw.random()
        if choice < 0.3 and not end:
            stream, name = draw.choice(((one, 2), (other, 1)))
            put[name] += 1
            stream.put({"a": put[name]})
        elif choice < 0.35 and not end:
            wires = [[], []]  # a cut takes what is on the way
            one.connected(other.received)
            other.connected(one.received)
        else:
            wires[0] += one.frames()
            wires[1] += other.frames()
            for number, (stream, name) in enumerate(((other, 2), (one, 1))):
                if wires[number]:
                    deliver(stream, name, wires[number].pop(0))
                elif (ack := (one, other)[number].ack(always=end)) is not None:
                    wires[number].append(ack)
    for name in (1, 2):
        assert got[name] == list(range(1, put[name] + 1))
    assert len(one) == len(other) == 0
