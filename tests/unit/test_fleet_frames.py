"""What the register of nodes makes of frames: what nodes say of themselves, and what makes no sense."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fake_head import RECORD, Head, Wire
from fake_node import SAMPLE
from gpuloom.agent.health import Changes, Flag
from gpuloom.executors.port import RunPhase, RunStatus
from gpuloom.fleet import registry
from gpuloom.fleet.lease import TERMS
from gpuloom.fleet.messages import Flagged, Gpus, Health, Joined, Leaving, Sampled, Status, data_of
from gpuloom.fleet.registry import GREETING_S, TOKENS_S
from until import until


@pytest.fixture
def head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Head]:
    monkeypatch.setattr(registry, "LOOK_S", 0.01)
    head = Head(tmp_path)
    head.nodes.start()
    yield head
    head.nodes.close()


def settled(head: Head) -> None:
    """All that was said before is done."""
    wire = head.call(name="head")
    until(lambda: wire.closed)


def test_what_a_node_says_of_itself_is_passed_on(head: Head) -> None:
    wire = head.join()
    broken = replace(RECORD.gpus[0], reason="lost")
    words = [
        Gpus((broken,)),  # before any sample: the record of its session has it
        Flagged("1.1-a", "idle", "x"),
        Sampled(SAMPLE, {0: ("warm",)}),
        Gpus((broken,)),
        Flagged("1.1-a", "idle", "does nothing"),
        Health("the runner is gone"),
        Leaving("its user said so"),
    ]
    for number, word in enumerate(words, 2):
        head.say(wire, n=number, m=data_of(word), ack=0)
    until(lambda: ("leaving", "n1") in head.on.told)
    assert head.on.changes == [
        Changes(notes={0: ("warm",)}),
        Changes(gpus=(broken,)),
        Changes(flags=(Flag("1.1-a", "idle", "does nothing"),)),
    ]
    assert head.on.told[1:] == [*[("sampled", "n1", SAMPLE.at_s)] * 3, ("leaving", "n1")]
    assert head.on.nodes["n1"].healthy() == "the runner is gone"


def test_answers_reach_who_asked(head: Head) -> None:
    wire = head.join()
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(head.on.nodes["n1"].channel.ask, "log_mark", 60.0, run="1.1-a")
        until(lambda: "ask" in wire.frames[-1])
        head.say(wire, reply=wire.frames[-1]["ask"], data=[7])
        assert found.result(60.0) == [7]


@pytest.mark.parametrize("text", ["", "{", "[]", "5", "[" * 100_000])
def test_what_is_no_frame_ends_the_connection_and_not_the_head(head: Head, text: str) -> None:
    wire = head.join()
    head.nodes.received(wire, text)
    assert wire.why is not None
    assert wire.why.startswith("this is no frame: ")
    head.nodes.closed(wire)
    head.call(session=wire.frames[0]["welcome"]["session"], received=0)


@pytest.mark.parametrize(
    ("frames", "why"),
    [
        ([{"hello": 5}], "this is no Hello"),
        ([{"hello": {"version": 1}}], "Hello without"),
        ([{}], "this is no Hello"),
        ([{"n": 1, "m": {}}], "this is no Hello"),
    ],
)
def test_who_does_not_greet_as_a_node_is_refused_for_good(head: Head, frames: list[Any], why: str) -> None:
    wire = Wire()
    head.nodes.opened(wire, head.token.shown)
    for frame in frames:
        head.say(wire, **frame)
    until(lambda: wire.closed)
    assert why in wire.frames[-1]["refused"]["why"]
    assert wire.frames[-1]["refused"]["final"]


@pytest.mark.parametrize(
    ("frame", "why"),
    [
        ({"n": 1, "m": data_of(Status(RunStatus("1.1-a", RunPhase.RUNNING)))}, "the first message must be"),
        ({"n": 1, "m": {"kind": "dance"}}, "'dance' is no kind of message"),
        ({"n": 1, "m": {"kind": "go", "run": "1.1-a"}}, "'go' is no kind of message"),
        ({"n": 1, "m": {"kind": "joined"}}, "Joined without"),
        ({"n": 1, "m": 5}, "message 1 is none"),
        ({"ack": 5}, "message 5 is acknowledged"),
    ],
)
def test_after_words_that_can_not_be_meant_a_session_begins_anew(head: Head, frame: dict[str, Any], why: str) -> None:
    wire = head.call()
    head.say(wire, **frame)
    until(lambda: wire.closed)
    assert why in wire.frames[-1]["refused"]["why"]
    assert not wire.frames[-1]["refused"]["final"], "it may come again"
    assert head.on.told == []
    again = head.call(session=wire.frames[0]["welcome"]["session"])
    assert not again.frames[0]["welcome"]["resumed"]


def test_a_fault_of_the_head_s_own_is_logged_as_such_and_costs_that_session_alone(
    head: Head, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: Any) -> None:
        raise ZeroDivisionError("a fault")

    wire = head.call()
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, logger="gpuloom.nodes"):
        patch.setattr(head.on, "joined", fails)
        head.say(wire, n=1, m=data_of(Joined(RECORD, ())), ack=0)
        until(lambda: wire.closed)
    (record,) = [one for one in caplog.records if "its session ends" in one.getMessage()]
    assert record.levelno == logging.ERROR
    assert record.exc_info is not None
    assert record.getMessage() == "node n1: ZeroDivisionError: a fault; its session ends"
    assert head.nodes.problem == ""
    head.join()


def test_who_connects_and_says_nothing_is_hung_up_on(head: Head) -> None:
    wire = Wire()
    head.nodes.opened(wire, head.token.shown)
    head.now += GREETING_S
    settled(head)
    assert not wire.closed
    head.now += 0.1
    until(lambda: wire.why == "it did not say who it is")


def test_a_heartbeat_is_answered_to_who_has_joined_and_on_the_newest_connection(head: Head) -> None:
    wire = head.call()
    head.say(wire, beat=1, ack=0)
    assert len(wire.frames) == 1, "it has not said what runs there"
    head.say(wire, n=1, m=data_of(Joined(RECORD, ())), ack=0)
    until(lambda: head.on.told)
    head.say(wire, beat=2, ack=0)
    assert wire.frames[-1] == {"beaten": 2, "ack": 1}
    head.say(wire, beat=3, ack=99)
    assert wire.frames[-1] == {"beaten": 3, "ack": 1}, "a number that can't be is looked at in the next message"
    again = head.call(session=wire.frames[0]["welcome"]["session"], received=0)
    frames = len(wire.frames)
    head.say(wire, beat=4, ack=0)
    assert len(wire.frames) == frames
    head.say(again, beat=5, ack=0)
    assert again.frames[-1] == {"beaten": 5, "ack": 1}


def test_a_node_that_greets_and_says_no_more_is_forgotten_and_not_lost(head: Head) -> None:
    wire = head.call()
    head.nodes.closed(wire)
    head.now += TERMS.give_away_s + 0.1
    until(lambda: "n1" not in head.nodes._nodes)
    assert head.on.told == []


def test_tokens_that_can_not_be_read_cut_nobody_off_and_let_nobody_in(
    head: Head, caplog: pytest.LogCaptureFixture
) -> None:
    wire = head.join()
    head.tokens.path.write_text("{}")
    assert "holds no tokens" in head.nodes.why_not(head.token.shown)
    with caplog.at_level(logging.ERROR, logger="gpuloom.nodes"):
        head.now += TOKENS_S
        until(lambda: "holds no tokens" in caplog.text)
    assert not wire.closed
    head.say(wire, beat=1, ack=0)
    assert "beaten" in wire.frames[-1]


def test_what_comes_on_a_connection_that_is_closing_is_passed_over(head: Head) -> None:
    wire = Wire()
    head.nodes.opened(wire, head.token.shown)
    head.nodes.closed(wire)
    head.say(wire, hello={"version": 1})
    settled(head)
    assert wire.frames == []


def test_a_node_that_is_gone_by_another_s_word_is_lost_at_once(head: Head) -> None:
    """Slurm says that its allocation is over."""
    wire = head.join()
    head.nodes.gone("n2", "nobody knows it")
    head.nodes.gone("n1", "its allocation is over")
    until(lambda: ("lost", "n1") in head.on.told)
    assert wire.closed
    assert ("lost", "n2") not in head.on.told
