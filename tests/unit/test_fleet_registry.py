"""The head's nodes, with frames by hand and a clock by hand."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fake_head import RECORD, Head
from gpuloom.agent.sample import NodeRates, Sample
from gpuloom.core.end_reason import EndReason
from gpuloom.executors.node import RunSpec
from gpuloom.executors.port import ExecutorError, RunExit, RunPhase, RunStatus
from gpuloom.fleet import registry
from gpuloom.fleet.codec import plain
from gpuloom.fleet.lease import LONGEST_LEASE_S, TERMS, ended_after_s
from gpuloom.fleet.messages import Joined, Left, Sampled, Status, data_of
from gpuloom.fleet.registry import HOLD_S, LOOK_S, SILENT_S
from until import until

SPEC = RunSpec("1.1-a", ("true",), "/", {"A": "b"}, (0,), ("cpu-0",))
ENDED = RunExit(0, None, None, "", 5.0)


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "LOOK_S", 0.01)


@pytest.fixture
def head(tmp_path: Path) -> Iterator[Head]:
    head = Head(tmp_path)
    head.nodes.start()
    yield head
    head.nodes.close()


def test_a_node_joins_runs_and_leaves(head: Head) -> None:
    wire = head.join()
    node = head.on.nodes["n1"]
    heard: list[RunStatus] = []
    node.open(heard.append)
    node.start(SPEC)
    assert wire.frames[-1]["m"] == {"kind": "start", "spec": plain(SPEC)}
    running = RunStatus("1.1-a", RunPhase.RUNNING, 7, 8, "b")
    head.say(wire, n=2, m=data_of(Status(running)), ack=1)
    head.say(wire, n=2, m=data_of(Status(running)), ack=1)
    sample = Sample(3.0, NodeRates(None, 1.0, 2.0, 0.1, None, None, None))
    head.say(wire, n=3, m=data_of(Sampled(sample)), ack=1)
    head.say(wire, n=4, m=data_of(Left("its user said so")), ack=1)
    until(lambda: ("left", "n1") in head.on.told)
    assert heard == [running]
    assert head.on.told == [("joined", "n1", []), ("sampled", "n1", 3.0), ("left", "n1")]


def test_a_cut_link_goes_on_where_it_was(head: Head) -> None:
    wire = head.join()
    session = wire.frames[0]["welcome"]["session"]
    node = head.on.nodes["n1"]
    head.nodes.closed(wire)
    until(lambda: not node.channel.connected)
    with pytest.raises(ExecutorError, match="link to n1 is cut"):
        node.runs()
    head.now += 3.0
    until(lambda: ("cut", "n1") in head.on.told)
    assert "cut" in node.healthy()
    node.start(SPEC)
    again = head.call(session=session, received=0)
    assert again.frames[0]["welcome"] | {"lease_s": 0} == {
        "session": session,
        "received": 1,
        "resumed": True,
        "lease_s": 0,
        "beat_s": 3.0,
    }
    until(lambda: ("back", "n1") in head.on.told)
    assert again.kinds == ["start"]


def test_heartbeats_keep_it_and_silence_loses_it_after_lease_and_margin(head: Head) -> None:
    wire = head.join()
    for beat in range(10):
        head.now += 5.0
        head.say(wire, beat=beat, ack=0)
        assert wire.frames[-1] == {"beaten": beat, "ack": 1}
    head.now += 8.5
    until(lambda: ("cut", "n1") in head.on.told)
    assert wire.closed
    head.now += TERMS.give_away_s - 8.5 - 0.6
    again = head.call(session=wire.frames[0]["welcome"]["session"], received=0)
    assert again.frames[0]["welcome"]["resumed"]
    head.nodes.closed(again)
    head.now += 0.7
    until(lambda: ("lost", "n1") in head.on.told)
    frames = len(again.frames)
    head.say(again, beat=99, ack=0)
    assert len(again.frames) == frames  # it is answered no more


def test_a_lost_node_comes_back_only_with_nothing_running(head: Head) -> None:
    wire = head.join()
    head.nodes.closed(wire)
    head.now += TERMS.give_away_s + 1.0
    until(lambda: ("lost", "n1") in head.on.told)
    running = RunStatus("1.1-a", RunPhase.RUNNING, 7, 8, "b")
    again = head.call(session=wire.frames[0]["welcome"]["session"], received=0)
    assert not again.frames[0]["welcome"]["resumed"]
    head.say(again, n=1, m=data_of(Joined(RECORD, (running,))), ack=0)
    until(lambda: again.closed)
    assert again.frames[-1]["refused"]["final"] is False
    ended = RunStatus("1.1-a", RunPhase.EXITED, 7, 8, "b", RunExit(None, 9, EndReason.NODE, "", 5.0))
    third = head.join((ended,))
    assert head.on.told[-1] == ("joined", "n1", ["1.1-a"])
    head.now += 5.0
    head.say(third, beat=1, ack=0)
    assert third.frames[-1] == {"beaten": 1, "ack": 1}, "it is answered again"


def test_a_new_process_of_the_node_is_given_the_commands_again_that_it_may_not_know(head: Head) -> None:
    head.join()
    node = head.on.nodes["n1"]
    heard: list[RunStatus] = []
    node.open(heard.append)
    node.start(SPEC)
    node.start(RunSpec("2.1-b", ("true",), "/", {}, (0,), ("cpu-0",)))
    node.stop("2.1-b", reason=EndReason.CANCELLED, grace_s=1.0)
    node.start(RunSpec("3.1-c", ("true",), "/", {}, (0,), ("cpu-0",)))
    node.heard(RunStatus("3.1-c", RunPhase.RUNNING, 9, 9, "b"))
    there = RunStatus("2.1-b", RunPhase.RUNNING, 7, 8, "b")
    wire = head.join((there,), process="p2")
    assert head.on.nodes["n1"] is node
    until(lambda: len(wire.kinds) == 2)
    assert wire.kinds == ["start", "stop"]
    assert wire.frames[1]["m"]["spec"]["run"] == "1.1-a"
    assert [(status.run, status.phase) for status in heard] == [
        ("3.1-c", RunPhase.RUNNING),
        ("2.1-b", RunPhase.RUNNING),
        ("3.1-c", RunPhase.EXITED),
    ]
    assert heard[-1].exit is not None
    assert heard[-1].exit.reason is EndReason.LOST


def test_an_acknowledged_end_is_not_told_again_but_acknowledged_again(head: Head) -> None:
    head.join()
    node = head.on.nodes["n1"]
    node.start(SPEC)
    node.heard(RunStatus("1.1-a", RunPhase.EXITED, 7, 8, "b", ENDED))
    node.acknowledge("1.1-a")
    wire = head.join((RunStatus("1.1-a", RunPhase.EXITED, 7, 8, "b", ENDED),), process="p2")
    assert head.on.told[-1] == ("joined", "n1", [])
    assert wire.kinds == ["acknowledge"]


@pytest.mark.parametrize(
    ("hello", "why"),
    [
        ({"version": 99, "gpuloom": "9.9"}, "install the head's version"),
        ({"name": "head"}, "--name"),
        ({"home": "another"}, "from another home: choose another name"),
        ({"process": "q", "boot_id": "c"}, "a copy of this home"),
        ({"name": "n2", "lease_s": 1.0}, "a lease of 1 s"),
    ],
)
def test_who_is_refused_and_why(head: Head, hello: dict[str, Any], why: str) -> None:
    head.join()
    wire = head.call(**hello)
    assert why in wire.frames[-1]["refused"]["why"]
    assert wire.frames[-1]["refused"]["final"]
    until(lambda: wire.closed)


def test_what_can_not_follow_ends_the_session_and_not_the_node(head: Head) -> None:
    wire = head.join()
    head.say(wire, n=9, m={"kind": "left", "why": ""}, ack=0)
    until(lambda: wire.closed)
    again = head.call(session=wire.frames[0]["welcome"]["session"], received=0)
    assert not again.frames[0]["welcome"]["resumed"]
    assert ("left", "n1") not in head.on.told


def test_an_expired_token_serves_who_has_joined_and_nobody_else(head: Head) -> None:
    head.token = head.tokens.mint(lasts_s=1000.0)
    wire = head.join()
    head.tokens._clock = lambda: time.time() + 2000.0
    again = head.call(session=wire.frames[0]["welcome"]["session"])
    assert again.frames[0]["welcome"]["resumed"]
    new = head.call(name="n2", home="h2")
    assert "it has expired" in new.frames[-1]["refused"]["why"]


def test_a_revoked_token_cuts_off_who_came_with_it(head: Head) -> None:
    wire = head.join()
    head.tokens.revoke(head.token.id)
    head.now += 6.0
    until(lambda: wire.closed)
    assert "revoked" in wire.frames[-1]["refused"]["why"]
    assert head.nodes.why_not(head.token.shown) == "it was revoked"


def test_a_head_that_begins_anew_waits_for_its_nodes_for_a_lease(tmp_path: Path) -> None:
    before = Head(tmp_path)
    before.nodes.start()
    before.join(lease_s=60.0)
    before.nodes.close()
    head = Head(tmp_path)
    head.nodes.expect(["n1", "n2"])
    head.nodes.start()
    try:
        assert "from another home" in head.call(home="another").frames[-1]["refused"]["why"]
        head.now += TERMS.give_away_s + 0.5
        until(lambda: ("lost", "n2") in head.on.told)
        head.join(lease_s=60.0)
        assert head.on.told == [("cut", "n1"), ("cut", "n2"), ("lost", "n2"), ("joined", "n1", [])]
        assert head.on.why_cut["n1"] == "it was not heard of since the scheduler began"
    finally:
        head.nodes.close()


def test_a_head_that_ends_in_order_lets_its_nodes_go_on_for_longer_and_the_next_one_waits(tmp_path: Path) -> None:
    before = Head(tmp_path)
    before.nodes.start()
    wire = before.join()
    before.say(wire, beat=1, ack=0)
    before.nodes.close()
    assert wire.frames[-1]["hold"] == HOLD_S
    assert wire.closed
    head = Head(tmp_path)
    head.nodes.expect(["n1"])
    head.nodes.start()
    try:
        head.now += 300.0
        wire = head.join()
        head.nodes.closed(wire)
        until(lambda: not head.on.nodes["n1"].channel.connected)
        head.now += 250.0
        until(lambda: ("cut", "n1") in head.on.told)
        again = head.call(session=wire.frames[0]["welcome"]["session"])
        assert again.frames[0]["welcome"]["resumed"]
        head.say(again, beat=2, ack=0)
        assert "beaten" in again.frames[-1]  # its jobs are its own still
        head.now += 100.0
        until(lambda: ("lost", "n1") in head.on.told)
    finally:
        head.nodes.close()


class TestWhatIsKnownOfLeases:
    """After a restart of the head no node's jobs are given away before the lease that it may have is over."""

    @pytest.fixture
    def anew(self, tmp_path: Path) -> Iterator[Callable[[], Head]]:
        """Heads, one after the other; each expects n1."""
        heads: list[Head] = []

        def begin() -> Head:
            for before in heads:
                before.nodes._held = True  # it is killed
                before.nodes.close()
            heads.append(Head(tmp_path))
            heads[-1].nodes.expect(["n1"])
            heads[-1].nodes.start()
            return heads[-1]

        yield begin
        for one in heads:
            one.nodes.close()

    @pytest.fixture
    def nodes_file(self, tmp_path: Path) -> Path:
        return tmp_path / "nodes.json"

    def lost_after(self, head: Head, seconds: float) -> None:
        """It is not lost before that, and is then."""
        head.now += seconds - 1.0
        begun = head.nodes._looked_s
        until(lambda: head.nodes._looked_s > begun)
        assert ("lost", "n1") not in head.on.told
        head.now += 1.0 + LOOK_S
        until(lambda: ("lost", "n1") in head.on.told)

    @pytest.mark.parametrize("damage", [None, "", "[]", '{"n1": {"lease_s": 1e9}}', '{"n1": {"hold_s": "x"}}'])
    def test_where_the_file_is_gone_or_damaged_any_lease_may_have_been_given(
        self, anew: Callable[[], Head], nodes_file: Path, damage: str | None
    ) -> None:
        if damage is not None:
            nodes_file.write_text(damage)
        anew()
        head = anew()  # the second one knows it, too, from a file that can be read
        assert json.loads(nodes_file.read_text())["n1"]["hold_s"] == LONGEST_LEASE_S
        assert (nodes_file.with_suffix(".damaged").read_text() if damage is not None else None) == damage
        self.lost_after(head, ended_after_s(LONGEST_LEASE_S))

    def test_that_is_said(self, anew: Callable[[], Head], nodes_file: Path) -> None:
        nodes_file.write_text("{")
        head = anew()
        head.now += SILENT_S + 0.1
        why = until(lambda: head.on.why_cut.get("n1"))
        assert f"its lease is not known, as {nodes_file} can't be read" in why
        assert "or after 7 days" in why

    def test_what_the_node_says_of_its_lease_counts_then(self, anew: Callable[[], Head], nodes_file: Path) -> None:
        nodes_file.write_text("{")
        head = anew()
        head.join(left_s=100.0)
        assert json.loads(nodes_file.read_text())["n1"] == {"home": "h", "lease_s": TERMS.lease_s, "hold_s": 100.0}
        head = anew()
        self.lost_after(head, ended_after_s(100.0))
        head = anew()
        head.join(left_s=5.0)
        head.nodes.closed(next(iter(head.nodes._of)))
        self.lost_after(head, TERMS.give_away_s)
        assert json.loads(nodes_file.read_text())["n1"]["hold_s"] == 0.0

    def test_a_node_that_does_not_know_its_lease_changes_nothing(self, anew: Callable[[], Head]) -> None:
        head = anew()
        head.join(left_s=None)
        head.nodes.closed(next(iter(head.nodes._of)))
        self.lost_after(head, ended_after_s(LONGEST_LEASE_S))

    def test_no_lease_is_given_that_is_not_written_down(self, head: Head, nodes_file: Path) -> None:
        nodes_file.with_suffix(".json.new").mkdir()
        wire = head.call(lease_s=60.0)
        refused = wire.frames[0]["refused"]
        assert not refused["final"]
        assert refused["why"] == f"the head can't write down the lease of 60 s ({nodes_file}): make room there"
        until(lambda: wire.closed)
        assert not head.nodes._nodes
        head.join()
        assert not nodes_file.exists()
        nodes_file.with_suffix(".json.new").rmdir()
        head.join(lease_s=60.0)
        nodes_file.with_suffix(".json.new").mkdir()
        head.join(lease_s=60.0, process="another")
        head.join(lease_s=30.0, process="a third")
        assert "refused" in head.call(lease_s=61.0).frames[0]
