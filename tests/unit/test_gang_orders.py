"""A gang as a machine: what happens goes in by hand, orders come out. And what becomes of orders on the way."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from fake_node import FakeNode
from gpuloom.core.end_reason import EndReason
from gpuloom.executors import gangs as gangs_module
from gpuloom.executors.gang import LOG_WAIT_S, Gang
from gpuloom.executors.gangs import Expected, Gangs
from gpuloom.executors.node import Peer, RunSpec
from gpuloom.executors.orders import Freeze, Go, Order, ReadLog, Start, Stop, Tell, Thaw
from gpuloom.executors.outbox import AGAIN_S, Outbox
from gpuloom.executors.port import Cause, ExecutorError, RunExit, RunPhase, RunStatus
from until import until

MEMBERS = (("7.1-q", "a"), ("7.1.1-q", "b"))
RUN, OTHER = (run for run, _ in MEMBERS)
GRACE_S = 30.0


def status(rank: int, phase: RunPhase, exit_: RunExit | None = None) -> RunStatus:
    return RunStatus(MEMBERS[rank][0], phase, 100 + rank, 1, "boot", exit_)


def ended(code: int | None = 0, reason: EndReason | None = None, **more: Any) -> RunExit:
    return RunExit(code, None, reason, "", 5.0, **more)


def adopted(*phases: RunPhase | RunExit | None, **records: bool) -> tuple[Gang, list[Order]]:
    """A gang of the scheduler before, and its first orders. phases: of members as their nodes have them."""
    gang = Gang(RUN, MEMBERS, GRACE_S)
    found = {
        rank: status(rank, RunPhase.EXITED, one) if isinstance(one, RunExit) else status(rank, one)
        for rank, one in enumerate(phases)
        if one is not None
    }
    known = {"began": True, "stopping": False, "frozen": False, **records}
    return gang, gang.adopt(found, {}, restarted=(), now=0.0, **known)


def running() -> Gang:
    gang, orders = adopted(RunPhase.RUNNING, RunPhase.RUNNING)
    assert [phase_of(order) for order in orders] == [RunPhase.RUNNING]
    return gang


def phase_of(order: Order) -> RunPhase:
    assert isinstance(order, Tell)
    return order.status.phase


def told(orders: Sequence[Order]) -> list[RunPhase]:
    return [order.status.phase for order in orders if isinstance(order, Tell)]


def asked(orders: Sequence[Order]) -> list[Order]:
    return [order for order in orders if not isinstance(order, Tell)]


class TestGang:
    def test_from_the_start_to_the_end(self) -> None:
        gang = Gang(RUN, MEMBERS, GRACE_S)
        assert not gang.known
        assert gang.start(0.0) == [Start(0), Start(1)]
        assert gang.known
        assert gang.heard(1, status(1, RunPhase.STARTING), 1.0) == []
        assert gang.heard(1, status(1, RunPhase.PREPARED), 1.0) == []
        assert gang.heard(0, status(0, RunPhase.PREPARED), 2.0) == [Go(0), Go(1)]
        assert gang.heard(0, status(0, RunPhase.RUNNING), 3.0) == []
        assert told(gang.heard(1, status(1, RunPhase.RUNNING), 3.0)) == [RunPhase.RUNNING]
        assert gang.heard(1, status(1, RunPhase.EXITED, ended()), 4.0) == []
        assert gang.due_s is None
        (last,) = gang.heard(0, status(0, RunPhase.EXITED, ended()), 5.0)
        assert isinstance(last, Tell)
        assert last.status.exit is not None
        assert (last.status.phase, last.status.exit.exit_code, last.status.pid) == (RunPhase.EXITED, 0, 100)

    def test_all_of_it_stands_still_although_the_records_know_nothing_of_that(self) -> None:
        """The scheduler before died between its word and its writing: it is not thawed behind its back."""
        gang, orders = adopted(RunPhase.FROZEN, RunPhase.FROZEN, frozen=False)
        assert (asked(orders), told(orders)) == ([], [RunPhase.FROZEN])
        assert asked(gang.thaw(1.0)) == [Thaw(0), Thaw(1)]

    def test_some_of_it_stands_still_although_it_should_run(self) -> None:
        _, orders = adopted(RunPhase.FROZEN, RunPhase.RUNNING, frozen=False)
        assert asked(orders) == [Thaw(0)]
        _, orders = adopted(RunPhase.FROZEN, RunPhase.RUNNING, frozen=True)
        assert asked(orders) == [Freeze(1)]

    def test_of_a_member_that_was_given_up_nothing_more_is_taken(self) -> None:
        gang = running()
        lost = ended(None, EndReason.NODE, cause=Cause.NODE)
        assert asked(gang.lost(1, lost, 1.0)) == [Stop(0, EndReason.PEER, GRACE_S)]
        assert gang.is_lost(1)
        assert not gang.alive(1)
        assert gang.lost(1, ended(None, EndReason.LOST), 2.0) == []
        assert gang.heard(1, status(1, RunPhase.RUNNING), 2.0) == []
        assert gang.absent(1, 2.0, restarted=True) == []
        last = gang.last(1)
        assert last is not None
        assert last.exit == lost

    @pytest.mark.parametrize("late", [RunPhase.STARTING, RunPhase.PREPARED])
    def test_late_words_of_a_member_that_runs_are_passed_over(self, late: RunPhase) -> None:
        gang = running()
        assert gang.heard(1, status(1, late), 1.0) == []
        assert gang.status.phase is RunPhase.RUNNING

    def test_a_member_that_was_begun_anew_is_told_of_once(self) -> None:
        gang = running()
        again = replace(status(1, RunPhase.RUNNING), restarts=1, restarted="failed (signal 9)")
        (tell,) = gang.heard(1, again, 1.0)
        assert isinstance(tell, Tell)
        assert (tell.status.phase, tell.status.restarts) == (RunPhase.RUNNING, 1)
        assert tell.status.members[1].status.restarted == "failed (signal 9)"
        assert gang.heard(1, again, 2.0) == []
        assert gang.heard(0, status(0, RunPhase.RUNNING), 2.0) == []
        assert told(gang.heard(1, replace(again, restarts=2), 3.0)) == [RunPhase.RUNNING]

    def test_after_its_end_only_what_becomes_of_what_is_left_counts(self) -> None:
        gang = running()
        gang.heard(1, status(1, RunPhase.EXITED, ended(released=False)), 1.0)
        assert gang.heard(1, status(1, RunPhase.RUNNING), 1.0) == []
        gang.heard(0, status(0, RunPhase.EXITED, ended()), 2.0)
        assert gang.status.exit is not None
        assert not gang.status.exit.released
        assert told(gang.heard(1, status(1, RunPhase.EXITED, ended()), 3.0)) == [RunPhase.EXITED]
        assert gang.status.exit is not None
        assert gang.status.exit.released
        assert gang.heard(1, status(1, RunPhase.EXITED, ended(9)), 4.0) == []
        assert gang.absent(1, 5.0, restarted=True) == [], "its node was told that its end is noted"
        last = gang.last(1)
        assert last is not None
        assert last.exit == ended()

    def test_a_member_that_is_told_to_end_on_its_node_shows(self) -> None:
        """By its time limit, say: nobody here has told it to."""
        gang = running()
        assert told(gang.heard(1, status(1, RunPhase.STOPPING), 1.0)) == [RunPhase.STOPPING]

    def test_the_log_of_who_failed_is_waited_for_a_moment(self) -> None:
        gang = running()
        assert asked(gang.heard(1, status(1, RunPhase.EXITED, ended(3)), 1.0)) == [
            Stop(0, EndReason.PEER, GRACE_S),
            ReadLog(1),
        ]
        assert gang.due_s == 1.0 + LOG_WAIT_S
        assert gang.heard(0, status(0, RunPhase.EXITED, ended(None, EndReason.PEER)), 1.5) == []
        assert gang.look(1.0 + LOG_WAIT_S - 0.01) == []
        assert told(gang.look(1.0 + LOG_WAIT_S)) == [RunPhase.EXITED]
        assert gang.log_read("late", 9.0) == []
        assert gang.status.exit is not None
        assert gang.status.exit.message == "member 1 on b: exit code 3"

    def test_a_deadline_is_told_again_only_if_it_is_earlier(self) -> None:
        gang = running()
        assert asked(gang.stop(EndReason.PREEMPTED, 20.0, 0.0)) == [
            Stop(0, EndReason.PREEMPTED, 20.0),
            Stop(1, EndReason.PREEMPTED, 20.0),
        ]
        assert gang.stop(EndReason.CANCELLED, 25.0, 1.0) == []
        assert asked(gang.stop(EndReason.CANCELLED, 5.0, 2.0)) == [
            Stop(0, EndReason.PREEMPTED, 5.0),
            Stop(1, EndReason.PREEMPTED, 5.0),
        ]
        assert asked(gang.renewed(1, 4.0)) == [Stop(1, EndReason.PREEMPTED, 3.0)], "its node may have forgotten"
        assert asked(gang.renewed(1, 60.0)) == [Stop(1, EndReason.PREEMPTED, 0.0)]

    def test_deadlines_that_are_the_same_but_for_rounding_are_told_once(self) -> None:
        gang = running()
        gang.stop(EndReason.PREEMPTED, 20.0, 0.0)
        assert gang.stop(EndReason.PREEMPTED, 18.9999, 1.0) == []
        assert len(asked(gang.stop(EndReason.PREEMPTED, 18.5, 1.0))) == 2

    def test_a_member_that_was_given_up_before_it_was_taken_over_stays_so(self) -> None:
        gang = Gang(RUN, MEMBERS, GRACE_S)
        how = ended(None, EndReason.NODE, cause=Cause.NODE)
        found = {0: status(0, RunPhase.RUNNING)}
        orders = gang.adopt(found, {1: how}, began=True, stopping=False, frozen=False, restarted=(), now=0.0)
        assert asked(orders) == [Stop(0, EndReason.PEER, GRACE_S)]
        assert gang.is_lost(1)
        assert gang.heard(1, status(1, RunPhase.RUNNING), 1.0) == []

    def test_what_it_was_told_before_it_was_taken_over_counts(self) -> None:
        """Told to end while one of its nodes had not come yet."""
        gang = Gang(RUN, MEMBERS, GRACE_S)
        assert asked(gang.stop(EndReason.CANCELLED, 20.0, 0.0)) == []
        found = {rank: status(rank, RunPhase.RUNNING) for rank in (0, 1)}
        orders = gang.adopt(found, {}, began=True, stopping=False, frozen=False, restarted=(), now=5.0)
        assert asked(orders) == [Stop(0, EndReason.CANCELLED, 15.0), Stop(1, EndReason.CANCELLED, 15.0)]

    def test_it_has_begun_if_a_member_has_whatever_the_records_know(self) -> None:
        """Then the others have their grace, and the log of who failed is read."""
        _, orders = adopted(ended(3), RunPhase.RUNNING, began=False)
        assert asked(orders) == [Stop(1, EndReason.PEER, GRACE_S), ReadLog(0)]

    def test_a_node_that_was_met_anew_is_told_again_to_begin_and_to_stand_still(self) -> None:
        gang = Gang(RUN, MEMBERS, GRACE_S)
        gang.start(0.0)
        for rank in (0, 1):
            gang.heard(rank, status(rank, RunPhase.PREPARED), 1.0)
        assert gang.renewed(1, 2.0) == [Go(1)]
        assert gang.renewed(1, 2.0) == [Go(1)]
        for rank in (0, 1):
            gang.heard(rank, status(rank, RunPhase.RUNNING), 3.0)
        assert asked(gang.freeze(4.0)) == [Freeze(0), Freeze(1)]
        assert asked(gang.renewed(0, 5.0)) == [Freeze(0)]

    def test_a_request_that_was_lost_is_made_again_unless_it_is_to_end(self) -> None:
        gang = Gang(RUN, MEMBERS, GRACE_S)
        gang.start(0.0)
        assert gang.absent(1, 1.0, restarted=False) == [Start(1)]
        gang.heard(0, status(0, RunPhase.PREPARED), 1.0)
        assert asked(gang.stop(EndReason.CANCELLED, 20.0, 2.0)) == [
            Stop(0, EndReason.CANCELLED, 0.0),
            Stop(1, EndReason.CANCELLED, 0.0),
        ], "what has not begun needs no grace"
        assert gang.absent(1, 3.0, restarted=False) == []
        assert not gang.alive(1)
        exited = gang.heard(0, status(0, RunPhase.EXITED, ended(None, EndReason.CANCELLED)), 4.0)
        assert told(exited) == [RunPhase.EXITED]


# -- Gangs: what may go wrong between the calls ------------------------------------------------------------------------


def spec(run: str = "1.1", *nodes: str, rank: int = 0) -> RunSpec:
    peers = tuple(Peer(node, "10.0.0.1", 1) for node in nodes or ("a",))
    return RunSpec(run, ("train",), "/", {}, (0,), (), peers=peers, rank=rank, grace_s=5.0, hold=len(nodes) > 1)


def both() -> list[RunSpec]:
    return [spec(run, "a", "b", rank=rank) for rank, (run, _) in enumerate(MEMBERS)]


class TestGangs:
    def opened(self, *nodes: FakeNode) -> tuple[Gangs, list[RunStatus]]:
        said: list[RunStatus] = []
        gangs = Gangs(nodes, background=False)
        gangs.open(said.append)
        return gangs, said

    def test_one_that_can_not_be_met_leaves_the_one_before_in_its_place(self) -> None:
        node, bad = FakeNode("a"), FakeNode("a")
        gangs, said = self.opened(node)
        bad.cut = True
        with pytest.raises(ExecutorError):
            gangs.add(bad)
        gangs.start([spec()])
        assert said[-1].phase is RunPhase.RUNNING
        assert node.machine.ran == ["1.1"]

    def test_before_it_is_opened_nodes_are_not_asked(self) -> None:
        gangs, node = Gangs(background=False), FakeNode("a")
        node.broken = True
        gangs.add(node)
        assert gangs.nodes() == ()
        with pytest.raises(ExecutorError):
            gangs.open(lambda status: None)
        node.broken = False
        gangs.open(lambda status: None)
        assert gangs.nodes() == ("a",)

    def test_one_whose_place_is_taken_while_it_is_met_is_not_used(self, monkeypatch: pytest.MonkeyPatch) -> None:
        old, new = FakeNode("a"), FakeNode("a")
        gangs, _ = self.opened()
        boot = old.boot_id

        def slow() -> str:
            gangs.add(new)
            return boot()

        monkeypatch.setattr(old, "boot_id", slow)
        with pytest.raises(ExecutorError, match="node a is not there any more"):
            gangs.add(old)
        gangs.start([spec()])
        assert (old.machine.ran, new.machine.ran) == ([], ["1.1"])

    def test_what_a_node_says_while_it_is_asked_is_newer_than_its_answer(self, monkeypatch: pytest.MonkeyPatch) -> None:
        node = FakeNode("a")
        gangs, said = self.opened(node)
        gangs.start([spec()])
        listed = node.runs

        def runs(*, patience_s: float) -> Sequence[RunStatus]:
            found = listed(patience_s=patience_s)
            node.machine.end("1.1", 4)
            return found

        monkeypatch.setattr(node, "runs", runs)
        (found,) = gangs.runs()
        assert found.phase is RunPhase.EXITED
        gangs.add(node)
        assert [one.phase for one in said] == [RunPhase.RUNNING, RunPhase.EXITED]

    def test_a_gang_of_which_a_node_has_not_come_can_be_told_to_end_where_it_is(self) -> None:
        """Also one that is to be started again: not before all of its nodes have come."""
        node = FakeNode("a")
        node.machine.start(spec(RUN, "a", "b"))
        node.machine.go(RUN)
        gangs = Gangs([node], background=False)
        gangs.expect([Expected((RUN, OTHER), ("a", "b"), 5.0, began=True)])
        gangs.waiting.add("b")
        gangs.open(lambda status: None)
        gangs.waiting.clear()
        with pytest.raises(ExecutorError, match=r"run 7\.1-q: not all of its nodes have come yet"):
            gangs.start(both())
        gangs.stop(RUN, reason=EndReason.CANCELLED, grace_s=7.0)
        reason, grace_s = node.machine.stops[RUN]
        assert (reason, grace_s) == (EndReason.CANCELLED, pytest.approx(7.0, abs=2.0))

    def test_without_a_thread_for_its_log_an_end_is_told_after_a_while(self, monkeypatch: pytest.MonkeyPatch) -> None:
        clock = [100.0]
        said: list[RunStatus] = []
        nodes = [FakeNode("a"), FakeNode("b")]
        gangs = Gangs(nodes, clock=lambda: clock[0], background=False)
        gangs.open(said.append)
        gangs.start(both())
        gangs._background = True
        monkeypatch.setattr(gangs._worker, "start", lambda: True)

        class Unstartable:
            def __init__(self, **_: Any) -> None: ...

            def start(self) -> None:
                raise RuntimeError("can't start new thread")

        monkeypatch.setattr(gangs_module.threading, "Thread", Unstartable)
        nodes[1].machine.end(OTHER, 3)
        assert said[-1].phase is RunPhase.STOPPING
        assert gangs._readers == 0
        clock[0] += LOG_WAIT_S
        gangs.look()
        assert said[-1].phase is RunPhase.EXITED

    def test_no_more_logs_are_read_at_once_than_allowed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(gangs_module, "READERS", 2)
        nodes = [FakeNode("a"), FakeNode("b")]
        gangs = Gangs(nodes)
        gangs.open(lambda status: None)
        go_on, reading = threading.Event(), list[str]()

        def read(run: str, **_: Any) -> tuple[bytes, int]:
            reading.append(run)
            go_on.wait(60.0)
            return b"why", 3

        monkeypatch.setattr(nodes[1].disk, "read_log", read)
        for job in range(4):
            runs = [f"{job}.1-q", f"{job}.1.1-q"]
            gangs.start([spec(run, "a", "b", rank=rank) for rank, run in enumerate(runs)])
        for job in range(4):
            nodes[1].machine.end(f"{job}.1.1-q", 3)
        until(lambda: len(reading) == 2)
        assert gangs._readers == 2
        assert len(gangs._reads) == 2
        gangs.acknowledge("3.1-q")
        go_on.set()
        until(lambda: gangs._readers == 0, "the readers' end")
        assert sorted(reading) == ["0.1.1-q", "1.1.1-q", "2.1.1-q"], "nobody wants the last one's any more"
        gangs.close()


# -- the outbox --------------------------------------------------------------------------------------------------------


class TestOutbox:
    def test_what_a_node_could_not_be_told_is_told_later_in_order(self) -> None:
        clock, said, cut = [0.0], list[str](), [True]

        def tell(text: str) -> None:
            if cut[0]:
                raise ExecutorError("cut")
            said.append(text)

        outbox = Outbox(lambda: clock[0])
        for text in ("one", "two"):
            outbox.tell("a", lambda text=text: tell(text))  # type: ignore[misc]
        outbox.tell("b", lambda: said.append("other"))
        outbox.work()
        assert (said, outbox.due_s) == (["other"], AGAIN_S)
        clock[0] = AGAIN_S / 2
        outbox.retry()
        assert outbox.due_s == AGAIN_S, "not yet"
        clock[0] = AGAIN_S
        outbox.retry()
        assert outbox.due_s == 2 * AGAIN_S
        cut[0] = False
        outbox.tell("a", lambda: tell("three"))
        outbox.work()
        assert said == ["other"], "after what came before"
        clock[0] = 2 * AGAIN_S
        outbox.retry()
        assert said == ["other", "one", "two", "three"]
        assert outbox.due_s is None

    def test_who_is_told_may_fill_it_and_what_is_not_wanted_is_forgotten(self) -> None:
        said: list[str] = []
        outbox = Outbox(lambda: 0.0)

        def first() -> None:
            outbox.put(lambda: said.append("second"))
            outbox.work()
            said.append("first")

        def cut() -> None:
            raise ExecutorError("cut")

        outbox.put(first)
        outbox.work()
        assert said == ["first", "second"]
        outbox.tell("a", cut)
        outbox.work()
        outbox.forget("a")
        outbox.tell("a", lambda: said.append("third"))
        outbox.work()
        assert said[2:] == ["third"]

    def test_an_error_of_another_kind_does_not_stop_it_for_ever(self) -> None:
        outbox, said = Outbox(lambda: 0.0), list[str]()

        def breaks() -> None:
            raise ValueError("a fault")

        outbox.put(breaks)
        outbox.put(lambda: said.append("next"))
        with pytest.raises(ValueError, match="a fault"):
            outbox.work()
        outbox.work()
        assert said == ["next"]
