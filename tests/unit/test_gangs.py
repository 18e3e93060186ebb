"""Attempts over nodes: what passes through, what is lost with a node, what is strange."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

from fake_node import FakeMachine, FakeNode
from gpuloom.core.end_reason import EndReason
from gpuloom.executors.gangs import Expected, Gangs
from gpuloom.executors.node import Peer, RunSpec
from gpuloom.executors.port import Cause, ExecutorError, RunExit, RunPhase, RunStatus
from until import until


def spec(run: str, *nodes: str, rank: int = 0) -> RunSpec:
    peers = tuple(Peer(node, f"10.0.0.{number}", 1) for number, node in enumerate(nodes))
    return RunSpec(run, ("train",), "/", {}, (0,), (), peers=peers, rank=rank, grace_s=5.0, hold=len(nodes) > 1)


class Over:
    """Gangs over fake nodes, and what they said of each run."""

    def __init__(self, *names: str) -> None:
        self.nodes = {name: FakeNode(name) for name in names}
        self.gangs = Gangs(self.nodes.values())
        self.told: list[RunStatus] = []

    def open(self) -> Over:
        self.gangs.open(self.told.append)
        return self

    def said(self, run: str) -> list[RunPhase]:
        return [status.phase for status in self.told if status.run == run]

    def last(self, run: str) -> RunStatus:
        return [status for status in self.told if status.run == run][-1]


class TestOneMember:
    def test_passes_through(self) -> None:
        over = Over("a", "b").open()
        over.gangs.start([spec("1.1-x", "b")])
        over.gangs.limit("1.1-x", 7.0)
        over.gangs.freeze("1.1-x")
        over.gangs.thaw("1.1-x")
        over.gangs.stop("1.1-x", reason=EndReason.PREEMPTED, grace_s=3.0)
        assert over.said("1.1-x") == [RunPhase.RUNNING, RunPhase.FROZEN, RunPhase.RUNNING, RunPhase.EXITED]
        assert all(status.members == () for status in over.told)
        assert [what for what, _ in over.nodes["b"].calls] == ["start", "limit", "freeze", "thaw", "stop"]
        assert over.nodes["a"].calls == []
        over.gangs.acknowledge("1.1-x")
        assert over.nodes["b"].machine.acknowledged == ["1.1-x"]
        assert over.gangs.runs() == []

    def test_a_node_that_is_broken_is_told_of(self) -> None:
        over = Over("a").open()
        over.nodes["a"].broken = True
        with pytest.raises(ExecutorError, match="on purpose"):
            over.gangs.start([spec("1.1", "a")])
        assert over.gangs.healthy() == "broken"

    def test_the_only_node_needs_no_name(self) -> None:
        over = Over("a").open()
        over.gangs.start([spec("1.1")])
        assert over.said("1.1") == [RunPhase.RUNNING]

    def test_without_a_node(self) -> None:
        over = Over("a", "b").open()
        with pytest.raises(ExecutorError, match=r"run 1\.1: it is not said on which node"):
            over.gangs.start([spec("1.1")])
        over.gangs.start([spec("1.1", "c")])
        how = over.last("1.1").exit
        assert how is not None
        assert (how.reason, how.cause, how.message) == (EndReason.NODE, Cause.NODE, "node c is not there")
        over.gangs.waiting.add("d")
        with pytest.raises(ExecutorError, match="node d has not come yet"):
            over.gangs.start([spec("2.1", "d")])


class TestNodes:
    def test_what_ran_on_a_lost_node_has_ended(self) -> None:
        over = Over("a", "b").open()
        over.gangs.start([spec("1.1", "a")])
        over.gangs.start([spec("2.1", "b")])
        over.gangs.lost("a", "no answer for 30 s")
        how = over.last("1.1").exit
        assert how is not None
        assert (how.reason, how.cause, how.released) == (EndReason.NODE, Cause.NODE, True)
        assert how.message == "no answer for 30 s"
        assert over.last("2.1").phase is RunPhase.RUNNING
        assert over.gangs.nodes() == ("b",)

    def test_once_lost_it_stays_ended(self) -> None:
        """The node comes back with the run alive: that is ended there, and nobody hears of it."""
        over = Over("a").open()
        over.gangs.start([spec("1.1", "a")])
        machine = over.nodes["a"].machine
        machine.obedient = False
        over.gangs.lost("a", "cut off")
        back = FakeNode("a", machine)
        machine.told = lambda status: None
        over.gangs.add(back)
        assert machine.stops == {"1.1": (EndReason.NODE, 0.0)}
        assert over.said("1.1") == [RunPhase.RUNNING, RunPhase.EXITED]
        assert machine.acknowledged == ["1.1"]
        assert over.gangs.strange("a") == ()

    def test_a_node_is_unclean_until_what_was_given_up_there_has_ended(self) -> None:
        over = Over("a").open()
        over.gangs.start([spec("1.1-x", "a")])
        machine = over.nodes["a"].machine
        over.gangs.lost("a", "cut off")
        back = FakeNode("a", machine)
        back.by_hand = True
        over.gangs.add(back)
        being_ended = "run 1.1-x, which was given up with it, is being ended there"
        assert (over.gangs.unclean(), over.gangs.strange("a")) == ({"a": being_ended}, ("1.1-x",))
        back.deliver()
        assert (over.gangs.unclean(), over.gangs.strange("a")) == ({}, ())

    def test_what_does_not_end_on_an_unclean_node_is_told_with_what_helps(self) -> None:
        over = Over("a").open()
        over.gangs.start([spec("1.1-x", "a")])
        machine = over.nodes["a"].machine
        over.gangs.lost("a", "cut off")
        machine.obedient = False
        back = FakeNode("a", machine)
        back.by_hand = True
        over.gangs.add(back)
        stuck = "processes that SIGKILL does not kill: 7 (python, state D)"
        machine.end("1.1-x", None, signal=9, message=stuck, released=False)
        back.deliver()
        found = over.gangs.unclean()["a"]
        assert found.startswith(f"run 1.1-x, which was given up with it, does not end there: {stuck}; ")
        assert found.endswith("restart the machine, or what its processes wait for (a file server, a driver)")
        assert machine.acknowledged == []

    def test_strange_runs_are_named_with_their_node(self) -> None:
        over = Over("a")
        machine = over.nodes["a"].machine
        machine.start(spec("9.1.2-q", "a"))
        over.open()
        (member,) = over.last("9.1.2-q").members
        assert (member.rank, member.node, member.status.run) == (2, "a", "9.1.2-q")
        assert over.gangs.strange("a") == ("9.1.2-q",)
        over.gangs.stop("9.1.2-q", reason=EndReason.CANCELLED, grace_s=1.0)
        over.gangs.acknowledge("9.1.2-q")
        assert over.gangs.strange("a") == ()
        assert machine.states == {}

    def test_of_a_node_that_is_waited_for_nothing_is_said(self) -> None:
        over = Over("a")
        over.gangs.expect([Expected(("1.1",), ("b",), 5.0, began=True)])
        over.gangs.waiting.add("b")
        over.open()
        over.gangs.stop("1.1", reason=EndReason.CANCELLED, grace_s=1.0)
        assert over.told == []
        assert over.gangs.runs() == []
        assert not over.gangs.there(["a", "b"])
        node = FakeNode("b")
        node.machine.start(spec("1.1", "b"))
        over.gangs.add(node)
        assert over.said("1.1") == [RunPhase.RUNNING, RunPhase.EXITED]  # it was told what was asked meanwhile
        assert over.gangs.there(["a", "b"])

    def test_a_node_that_is_waited_for_can_be_lost(self) -> None:
        over = Over("a")
        over.gangs.expect([Expected(("1.1",), ("b",), 5.0, began=True)])
        over.gangs.waiting.add("b")
        over.open()
        over.gangs.lost("b", "gone")
        assert over.said("1.1") == [RunPhase.EXITED]

    @pytest.mark.parametrize(
        ("harm", "cause"), [(FakeMachine.reboot, Cause.RESTARTED), (lambda m: m.states.clear(), Cause.NONE)]
    )
    def test_a_node_that_comes_again_without_a_run(self, harm: Callable[[FakeMachine], None], cause: Cause) -> None:
        over = Over("a").open()
        over.gangs.start([spec("1.1", "a")])
        harm(over.nodes["a"].machine)
        over.gangs.add(FakeNode("a", over.nodes["a"].machine))
        how = over.last("1.1").exit
        assert how is not None
        assert (how.reason, how.cause) == (EndReason.LOST, cause)

    def test_a_start_that_got_lost_is_asked_for_again(self) -> None:
        over = Over("a").open()
        over.nodes["a"].cut = True
        over.gangs.start([spec("1.1", "a")])
        over.gangs.add(FakeNode("a", over.nodes["a"].machine))
        assert over.said("1.1") == [RunPhase.RUNNING]

    def test_one_that_can_not_be_met_is_not_used(self) -> None:
        over = Over("a").open()
        bad = FakeNode("b")
        bad.broken = True
        with pytest.raises(ExecutorError):
            over.gangs.add(bad)
        assert over.gangs.nodes() == ("a",)
        assert over.gangs.healthy() == ""


class Clock:
    def __init__(self) -> None:
        self.s = 100.0

    def __call__(self) -> float:
        return self.s


RUN = "7.1-q"
MEMBERS = ("7.1-q", "7.1.1-q", "7.1.2-q")
NODES = ("a", "b", "c")


class Team(Over):
    """A gang of three, one member on each node."""

    def __init__(self, *, expected: Expected | None = None, opened: bool = True) -> None:
        super().__init__(*NODES)
        self.clock = Clock()
        self.gangs = Gangs(self.nodes.values(), clock=self.clock, background=False)
        self.machines = [self.nodes[name].machine for name in NODES]
        if expected is not None:
            self.gangs.expect([expected])
        if opened:
            self.open()

    def start(self) -> Team:
        self.gangs.start([spec(run, *NODES, rank=rank) for rank, run in enumerate(MEMBERS)])
        return self

    def wait(self, seconds: float) -> None:
        self.clock.s += seconds
        self.gangs.look()

    @property
    def phases(self) -> list[RunPhase]:
        return self.said(RUN)

    @property
    def end(self) -> RunExit:
        how = self.last(RUN).exit
        assert how is not None
        return how

    @property
    def ran(self) -> list[str]:
        return [run for machine in self.machines for run in machine.ran]


ENDED = [RunPhase.RUNNING, RunPhase.STOPPING, RunPhase.EXITED]


class TestStarting:
    def test_all_are_prepared_before_any_begins(self) -> None:
        team = Team()
        for machine in team.machines:
            machine.prepares = False
        team.start()
        for rank in (1, 0):
            team.machines[rank].prepared(MEMBERS[rank])
            assert (team.ran, team.told) == ([], [])
        team.machines[2].prepared(MEMBERS[2])
        assert sorted(team.ran) == sorted(MEMBERS)
        assert team.phases == [RunPhase.RUNNING]
        status = team.last(RUN)
        assert (status.pid, status.boot_id) == (1001, "boot")
        assert [(one.rank, one.node, one.status.run) for one in status.members] == list(
            zip(range(3), NODES, MEMBERS, strict=True)
        )
        assert all(machine.specs[run].hold for machine, run in zip(team.machines, MEMBERS, strict=True))

    def test_one_that_can_not_be_prepared_gives_all_back(self) -> None:
        team = Team()
        refused = RunExit(None, None, EndReason.NOT_STARTED, "no such venv", 5.0, cause=Cause.JOB)
        team.machines[1].refuses["*"] = refused
        team.start()
        assert team.ran == []
        assert team.phases[-1] is RunPhase.EXITED
        assert (team.end.reason, team.end.cause, team.end.member) == (EndReason.NOT_STARTED, Cause.JOB, 1)
        assert team.end.message == "member 1 on b: no such venv"
        assert team.last(RUN).pid is None
        assert team.machines[0].stops == {RUN: (EndReason.PEER, 0.0)}
        assert [one.status.exit.reason for one in team.last(RUN).members if one.status.exit] == [
            EndReason.PEER, EndReason.NOT_STARTED, EndReason.PEER,
        ]  # fmt: skip

    def test_one_that_can_not_be_begun_ends_the_others_at_once(self) -> None:
        team = Team()
        full = RunExit(None, None, EndReason.NOT_STARTED, "disk full", 5.0, cause=Cause.EXECUTOR)
        team.machines[2].fails_at_go["*"] = full
        team.start()
        assert (team.end.reason, team.end.cause) == (EndReason.NOT_STARTED, Cause.EXECUTOR)
        assert team.machines[0].stops == {RUN: (EndReason.PEER, 0.0)}

    def test_a_node_that_is_not_there(self) -> None:
        team = Team()
        team.gangs.remove("c")
        team.start()
        assert (team.end.reason, team.end.cause) == (EndReason.NODE, Cause.NODE)
        assert team.end.message == "member 2 on c: node c is not there"
        assert [machine.starts for machine in team.machines] == [{}, {}, {}]

    def test_a_node_that_is_lost_while_it_prepares(self) -> None:
        team = Team()
        team.machines[1].prepares = False
        team.start()
        team.gangs.lost("b", "gone")
        assert team.ran == []
        assert (team.end.reason, team.end.released) == (EndReason.NODE, True)

    def test_stopped_while_it_prepares(self) -> None:
        team = Team()
        team.machines[1].prepares = False
        team.start()
        team.gangs.stop(RUN, reason=EndReason.CANCELLED, grace_s=30.0)
        assert team.ran == []
        assert (team.end.reason, team.end.exit_code) == (EndReason.CANCELLED, None)
        assert team.end.message == "it was stopped before it began"
        assert team.last(RUN).pid is None
        assert team.machines[0].stops == {RUN: (EndReason.CANCELLED, 0.0)}

    @pytest.mark.parametrize("told", [True, False])
    def test_one_that_was_prepared_is_not_there_any_more(self, told: bool) -> None:
        """None has run: that counts as no run of the job."""
        team = Team()
        team.machines[2].prepares = False
        team.start()
        if told:
            team.machines[1].end(MEMBERS[1], None, reason=EndReason.LOST)
        else:
            team.machines[1].states.clear()
            team.gangs.add(FakeNode("b", team.machines[1]))
        assert (team.end.reason, team.end.cause, team.ran) == (EndReason.NOT_STARTED, Cause.EXECUTOR, [])

    def test_asked_for_again(self) -> None:
        team = Team().start().start()
        assert sorted(team.ran) == sorted(MEMBERS)
        assert team.phases == [RunPhase.RUNNING]

    def test_a_node_that_can_not_be_told(self) -> None:
        """Its link is broken in a way that raises: what it was to be told is told later, in order."""
        team = Team()
        team.nodes["b"].broken = True
        team.start()
        assert team.ran == []
        team.gangs.stop(RUN, reason=EndReason.PREEMPTED, grace_s=9.0)
        assert team.phases == [RunPhase.STOPPING]
        team.nodes["b"].broken = False
        team.wait(1.0)
        assert [what for what, _ in team.nodes["b"].calls] == ["start", "stop"]
        assert team.end.reason is EndReason.PREEMPTED
        assert team.ran == []


class TestEnding:
    def test_all_end_well(self) -> None:
        team = Team().start()
        for rank in (1, 0, 2):
            assert team.phases[-1] is RunPhase.RUNNING
            team.machines[rank].end(MEMBERS[rank], 0)
        assert team.phases[-1] is RunPhase.EXITED
        assert (team.end.exit_code, team.end.reason, team.end.message, team.end.member) == (0, None, "", 0)
        team.gangs.acknowledge(RUN)
        assert [machine.states for machine in team.machines] == [{}, {}, {}]
        assert team.gangs.runs() == []

    def test_the_others_have_the_grace_after_the_master(self) -> None:
        team = Team().start()
        team.machines[0].end(RUN, 0)
        team.wait(4.9)
        assert team.machines[1].stops == {}
        team.machines[2].end(MEMBERS[2], 0)
        team.wait(0.2)
        assert team.machines[1].stops[MEMBERS[1]] == (EndReason.PEER, 5.0)
        assert (team.end.exit_code, team.end.reason) == (0, None)

    def test_a_member_that_fails_after_the_masters_good_end(self) -> None:
        team = Team().start()
        team.machines[0].end(RUN, 0)
        team.machines[1].end(MEMBERS[1], 3)
        assert (team.end.exit_code, team.end.member) == (3, 1)

    def test_a_failure_within_the_grace_that_is_heard_of_later(self) -> None:
        team = Team().start()
        team.machines[1].logs[MEMBERS[1]] = b"no\n"
        team.nodes["b"].cut = True
        team.machines[0].end(RUN, 0)
        team.machines[2].end(MEMBERS[2], 0)
        team.machines[1].end(MEMBERS[1], 3)
        team.wait(5.1)
        assert team.phases[-1] is RunPhase.STOPPING
        team.gangs.add(FakeNode("b", team.machines[1]))
        assert team.phases == ENDED
        assert (team.end.exit_code, team.end.reason, team.end.member) == (3, None, 1)
        assert team.end.message == "member 1 on b: exit code 3; its log ends with: no"

    @pytest.mark.parametrize("waited_s", [1.0, 5.1])
    def test_a_member_that_is_lost_after_the_masters_good_end(self, waited_s: float) -> None:
        """Whether it ended well nobody knows."""
        team = Team().start()
        team.nodes["b"].cut = True
        team.machines[0].end(RUN, 0)
        team.machines[2].end(MEMBERS[2], 0)
        team.wait(waited_s)
        team.gangs.lost("b", "gone")
        assert (team.end.reason, team.end.cause, team.end.member) == (EndReason.NODE, Cause.NODE, 1)

    def test_the_grace_after_the_master_is_for_those_that_have_begun(self) -> None:
        team = Team()
        team.nodes["b"].by_hand = True
        team.start()
        while not team.ran:
            team.nodes["b"].deliver_asked(1)
            team.nodes["b"].deliver_told(1)
        team.machines[0].end(RUN, 0)
        team.machines[2].end(MEMBERS[2], 0)
        team.wait(100.0)
        assert team.machines[1].ran == []
        assert team.machines[1].stops == {}
        team.nodes["b"].deliver()
        team.wait(4.9)
        assert team.machines[1].stops == {}
        team.machines[1].end(MEMBERS[1], 3)
        team.nodes["b"].deliver()
        assert (team.end.exit_code, team.end.member) == (3, 1)

    @pytest.mark.parametrize("obedient", [True, False])
    def test_told_to_end_after_the_masters_good_end(self, obedient: bool) -> None:
        """It had not ended well yet: others were under way. One that then ended well by itself has."""
        team = Team().start()
        team.machines[1].obedient = team.machines[2].obedient = obedient
        team.machines[0].end(RUN, 0)
        team.machines[2].end(MEMBERS[2], 0)
        if not obedient:
            team.nodes["b"].cut = True
            team.machines[1].end(MEMBERS[1], 0)
        team.gangs.stop(RUN, reason=EndReason.PREEMPTED, grace_s=30.0)
        if obedient:
            assert (team.end.exit_code, team.end.reason, team.end.member) == (85, EndReason.PREEMPTED, 1)
        else:
            team.gangs.add(FakeNode("b", team.machines[1]))
            assert (team.end.exit_code, team.end.reason, team.end.member) == (0, None, 0)

    def test_a_failure_explains_more_than_a_stop(self) -> None:
        team = Team().start()
        team.nodes["c"].cut = True
        team.machines[0].end(RUN, 0)
        team.machines[2].end(MEMBERS[2], 7)
        team.gangs.stop(RUN, reason=EndReason.PREEMPTED, grace_s=30.0)
        team.gangs.add(FakeNode("c", team.machines[2]))
        assert (team.end.exit_code, team.end.reason, team.end.member) == (7, None, 2)

    def test_the_first_that_ends_badly_decides(self) -> None:
        team = Team().start()
        team.machines[1].logs[MEMBERS[1]] = b"step 1\n 10%\r 20%\r\nTraceback\nValueError: no\n"
        team.machines[0].stop_code = 1
        team.machines[1].end(MEMBERS[1], 3)
        assert team.phases == ENDED
        assert (team.end.exit_code, team.end.reason, team.end.member) == (3, None, 1)
        assert (
            team.end.message
            == "member 1 on b: exit code 3; its log ends with: step 1 |  20% | Traceback | ValueError: no"
        )
        assert team.machines[0].stops == {RUN: (EndReason.PEER, 5.0)}

    @pytest.mark.parametrize("broken", [True, False])
    def test_a_log_that_can_not_be_read(self, broken: bool) -> None:
        team = Team().start()
        team.nodes["b"].disk.broken = broken
        team.machines[1].end(MEMBERS[1], None, signal=9)
        assert team.end.message == "member 1 on b: ended by SIGKILL"
        assert (team.end.signal, team.end.exit_code) == (9, None)

    def test_what_is_left_of_one(self) -> None:
        team = Team().start()
        for machine, run in zip(team.machines, MEMBERS, strict=True):
            machine.end(run, 0, released=run != MEMBERS[1])
        assert not team.end.released
        team.machines[1].end(MEMBERS[1], 0)
        assert team.phases[-2:] == [RunPhase.EXITED, RunPhase.EXITED]
        assert team.end.released

    def test_what_is_left_goes_with_its_node(self) -> None:
        team = Team().start()
        for machine, run in zip(team.machines, MEMBERS, strict=True):
            machine.end(run, 0, released=run != MEMBERS[1])
        team.gangs.lost("b", "gone")
        assert (team.end.released, team.end.exit_code) == (True, 0)

    def test_after_a_notice_the_masters_end_counts(self) -> None:
        team = Team().start()
        for machine in team.machines:
            machine.obedient = False
        team.gangs.stop(RUN, reason=EndReason.PREEMPTED, grace_s=30.0)
        assert team.machines[2].stops == {MEMBERS[2]: (EndReason.PREEMPTED, 30.0)}
        team.machines[1].end(MEMBERS[1], 1)
        team.machines[0].end(RUN, 85)
        assert team.phases[-1] is RunPhase.STOPPING
        team.machines[2].end(MEMBERS[2], None, signal=9)
        assert (team.end.exit_code, team.end.reason, team.end.message) == (85, EndReason.PREEMPTED, "")

    @pytest.mark.parametrize(("master", "code", "member"), [(0, 3, 1), (7, 7, 0)])
    def test_a_member_had_failed_before_it_heard_of_the_notice(self, master: int, code: int, member: int) -> None:
        team = Team().start()
        for name in NODES:
            team.nodes[name].cut = True
        for machine, run, own in zip(team.machines, MEMBERS, (master, 3, 0), strict=True):
            machine.end(run, own)
        team.gangs.stop(RUN, reason=EndReason.PREEMPTED, grace_s=30.0)
        for name, machine in zip(NODES, team.machines, strict=True):
            team.gangs.add(FakeNode(name, machine))
        assert (team.end.exit_code, team.end.reason, team.end.member) == (code, None, member)

    def test_with_less_grace_the_earlier_deadline_counts(self) -> None:
        team = Team().start()
        for machine in team.machines:
            machine.obedient = False
        team.gangs.stop(RUN, reason=EndReason.PREEMPTED, grace_s=30.0)
        team.wait(10.0)
        team.gangs.stop(RUN, reason=EndReason.CANCELLED, grace_s=25.0)
        assert team.machines[0].stops[RUN] == (EndReason.PREEMPTED, 30.0)
        team.gangs.stop(RUN, reason=EndReason.CANCELLED, grace_s=2.0)
        assert team.machines[0].stops[RUN] == (EndReason.PREEMPTED, 2.0)

    def test_a_lost_node(self) -> None:
        team = Team().start()
        team.gangs.lost("c", "no answer for 30 s")
        assert (team.end.reason, team.end.cause, team.end.member) == (EndReason.NODE, Cause.NODE, 2)
        assert team.end.message == "member 2 on c: no answer for 30 s"
        team.gangs.acknowledge(RUN)
        assert [bool(machine.states) for machine in team.machines] == [False, False, True]

    def test_a_failure_for_which_a_lost_node_is_to_blame(self) -> None:
        """The others notice first that a peer is gone."""
        team = Team().start()
        team.nodes["c"].cut = True
        team.machines[0].end(RUN, 1)
        assert team.phases[-1] is RunPhase.STOPPING
        team.gangs.lost("c", "gone")
        assert (team.end.reason, team.end.member) == (EndReason.NODE, 2)

    def test_a_node_that_is_back_has_its_member_ended(self) -> None:
        team = Team().start()
        team.gangs.lost("c", "cut off")
        team.gangs.add(FakeNode("c", team.machines[2]))
        assert team.machines[2].stops == {MEMBERS[2]: (EndReason.NODE, 0.0)}
        assert team.machines[2].states == {}
        assert team.phases[-1] is RunPhase.EXITED

    def test_a_member_that_is_done_does_not_go_with_its_node(self) -> None:
        team = Team().start()
        team.machines[2].end(MEMBERS[2], 0)
        team.gangs.lost("c", "gone")
        assert team.phases == [RunPhase.RUNNING]
        assert team.gangs.runs()[0].members[2].status.phase is RunPhase.EXITED

    def test_late_news_changes_nothing(self) -> None:
        team = Team().start()
        before = [team.machines[1].states[MEMBERS[1]]]
        team.machines[1].end(MEMBERS[1], 3)
        told = len(team.told)
        for status in (*before, replace(before[0], phase=RunPhase.PREPARED)):
            team.machines[1].told(status)
        assert len(team.told) == told


class TestStandingStill:
    def test_frozen_when_all_are(self) -> None:
        team = Team().start()
        team.machines[1].freezes = False
        team.gangs.freeze(RUN)
        assert team.phases == [RunPhase.RUNNING]
        team.machines[1].frozen(MEMBERS[1])
        assert team.phases == [RunPhase.RUNNING, RunPhase.FROZEN]
        team.nodes["b"].by_hand = True
        team.gangs.thaw(RUN)
        assert team.phases[-1] is RunPhase.FROZEN
        team.nodes["b"].deliver()
        assert team.phases == [RunPhase.RUNNING, RunPhase.FROZEN, RunPhase.RUNNING]

    def test_frozen_while_it_starts(self) -> None:
        team = Team()
        team.machines[1].prepares = False
        team.start()
        team.gangs.freeze(RUN)
        team.machines[1].prepared(MEMBERS[1])
        assert team.phases == [RunPhase.RUNNING, RunPhase.FROZEN]

    def test_thawed_before_all_are_frozen(self) -> None:
        team = Team().start()
        team.nodes["b"].by_hand = True
        team.gangs.freeze(RUN)
        team.gangs.thaw(RUN)
        team.nodes["b"].deliver()
        assert {machine.states[run].phase for machine, run in zip(team.machines, MEMBERS, strict=True)} == {
            RunPhase.RUNNING
        }
        assert team.phases == [RunPhase.RUNNING]

    def test_one_ends_while_the_others_stand_still(self) -> None:
        team = Team().start()
        team.gangs.freeze(RUN)
        team.machines[1].end(MEMBERS[1], None, signal=9)
        assert team.end.signal == 9
        assert team.machines[0].stops == {RUN: (EndReason.PEER, 5.0)}

    def test_who_stands_still_has_his_grace_later(self) -> None:
        team = Team().start()
        team.gangs.freeze(RUN)
        team.machines[0].end(RUN, 0)  # it ended in that moment
        team.wait(100.0)
        assert team.phases[-1] is RunPhase.FROZEN
        team.gangs.thaw(RUN)
        team.wait(4.0)
        assert team.machines[1].stops == {}
        team.wait(1.1)
        assert team.end.exit_code == 0

    def test_limits_reach_all(self) -> None:
        team = Team().start()
        team.gangs.limit(RUN, 60.0)
        assert [machine.limits for machine in team.machines] == [{run: 60.0} for run in MEMBERS]


def expected(*, began: bool = False, stopping: bool = False, frozen: bool = False) -> Expected:
    return Expected(MEMBERS, NODES, 5.0, began=began, stopping=stopping, frozen=frozen, boots=("boot",) * 3)


class TestTheNextScheduler:
    def begin(self, known: Expected, *phases: RunPhase | None) -> Team:
        """phases: of the members, as their nodes have them; None: it is not there."""
        team = Team(expected=known, opened=False)
        for rank, phase in enumerate(phases):
            machine, run = team.machines[rank], MEMBERS[rank]
            if phase is None:
                continue
            machine.start(spec(run, *NODES, rank=rank))
            if phase is not RunPhase.PREPARED:
                machine.go(run)
            if phase is RunPhase.FROZEN:
                machine.freeze(run)
        team.open()
        return team

    def test_all_run(self) -> None:
        team = self.begin(expected(began=True), *[RunPhase.RUNNING] * 3)
        (status,) = team.gangs.runs()
        assert (status.run, status.phase, status.pid) == (RUN, RunPhase.RUNNING, 1001)
        assert len(status.members) == 3

    def test_it_died_between_the_goes(self) -> None:
        team = self.begin(expected(), RunPhase.PREPARED, RunPhase.RUNNING, RunPhase.PREPARED)
        assert sorted(team.ran) == sorted(MEMBERS)
        assert team.phases[-1] is RunPhase.RUNNING

    def test_it_died_between_the_starts(self) -> None:
        team = self.begin(expected(), RunPhase.PREPARED, None, None)
        assert team.gangs.runs()[0].phase is RunPhase.STARTING
        assert team.ran == []
        team.start()
        assert sorted(team.ran) == sorted(MEMBERS)
        assert team.machines[0].starts == {RUN: 1}

    def test_it_died_before_the_starts(self) -> None:
        team = self.begin(expected(), None, None, None)
        assert (team.gangs.runs(), team.told) == ([], [])
        team.start()
        assert team.phases == [RunPhase.RUNNING]

    def test_it_died_while_it_stopped_one_that_was_starting(self) -> None:
        team = self.begin(expected(stopping=True), RunPhase.PREPARED, RunPhase.PREPARED, None)
        assert team.ran == []
        team.gangs.stop(RUN, reason=EndReason.CANCELLED, grace_s=3.0)
        assert team.ran == []
        assert (team.end.reason, team.end.message) == (EndReason.CANCELLED, "it was stopped before it began")

    def test_it_died_while_it_stopped_one_of_which_a_member_could_not_be_started(self) -> None:
        """What kept the member from starting is to blame, and the job is started again."""
        team = Team(expected=expected(stopping=True), opened=False)
        full = RunExit(None, None, EndReason.NOT_STARTED, "no space left", 1.0, cause=Cause.EXECUTOR)
        for rank, machine in enumerate(team.machines):
            machine.refuses["*"] = full
            machine.start(spec(MEMBERS[rank], *NODES, rank=rank))
        team.open()
        assert team.ran == []
        assert (team.end.reason, team.end.cause) == (EndReason.NOT_STARTED, Cause.EXECUTOR)

    def test_it_died_when_it_had_given_a_start_up(self) -> None:
        """A member was lost before it began, and its peer ended, and that was not written down: nothing may begin."""
        team = Team(expected=expected(), opened=False)
        team.machines[1].start(spec(MEMBERS[1], *NODES, rank=1))
        team.machines[1].stop(MEMBERS[1], EndReason.PEER, 0.0)
        team.open()
        assert team.ran == []
        assert (team.end.reason, team.end.cause) == (EndReason.NOT_STARTED, Cause.EXECUTOR)
        team.start()
        assert (team.ran, [machine.starts for machine in team.machines]) == ([], [{}, {MEMBERS[1]: 1}, {}])

    def test_it_died_when_it_had_given_up_a_node_that_is_back(self) -> None:
        team = Team(expected=expected(began=True), opened=False)
        for rank, run in enumerate(MEMBERS):
            team.machines[rank].start(replace(spec(run, *NODES, rank=rank), hold=False))
        team.machines[1].end(MEMBERS[1], None, signal=15, reason=EndReason.PEER)
        team.open()
        assert (team.end.reason, team.end.cause, team.end.exit_code) == (EndReason.NODE, Cause.NODE, None)
        assert team.machines[0].stops == {RUN: (EndReason.PEER, 5.0)}

    def test_one_is_not_there_any_more(self) -> None:
        team = self.begin(expected(began=True), RunPhase.RUNNING, None, RunPhase.RUNNING)
        assert (team.end.reason, team.end.cause, team.end.member) == (EndReason.LOST, Cause.NONE, 1)
        assert team.machines[0].stops == {RUN: (EndReason.PEER, 5.0)}

    def test_a_machine_was_restarted(self) -> None:
        team = Team(expected=expected(began=True), opened=False)
        team.machines[1].boot = "other"
        for rank in (0, 2):
            team.machines[rank].start(replace(spec(MEMBERS[rank], *NODES, rank=rank), hold=False))
        team.open()
        assert (team.end.reason, team.end.cause) == (EndReason.LOST, Cause.RESTARTED)

    def test_what_the_scheduler_before_ended(self) -> None:
        """Its peers had been told to end, and have: who failed first is still known."""
        team = Team(expected=expected(began=True), opened=False)
        for rank, run in enumerate(MEMBERS):
            team.machines[rank].start(replace(spec(run, *NODES, rank=rank), hold=False))
        team.machines[0].end(RUN, 1, reason=EndReason.PEER)
        team.machines[2].end(MEMBERS[2], 7)
        team.open()
        assert (team.end.exit_code, team.end.member) == (7, 2)

    def test_it_died_when_a_member_had_been_ended_before_it_began(self) -> None:
        """Whatever ended it: what the master alone has done is not the whole."""
        team = Team(expected=expected(began=True), opened=False)
        for rank, run in enumerate(MEMBERS):
            team.machines[rank].start(replace(spec(run, *NODES, rank=rank), hold=rank == 1))
        team.machines[0].end(RUN, 0)
        team.machines[1].stop(MEMBERS[1], EndReason.PEER, 0.0)
        team.machines[2].end(MEMBERS[2], 0)
        team.open()
        assert (team.end.reason, team.end.exit_code) == (EndReason.NODE, None)

    @pytest.mark.parametrize("frozen", [True, False])
    def test_it_died_while_it_froze_or_thawed(self, frozen: bool) -> None:
        team = self.begin(expected(began=True, frozen=frozen), RunPhase.FROZEN, RunPhase.RUNNING, RunPhase.RUNNING)
        assert team.phases[-1] is (RunPhase.FROZEN if frozen else RunPhase.RUNNING)
        phases = {machine.states[run].phase for machine, run in zip(team.machines, MEMBERS, strict=True)}
        assert phases == {team.phases[-1]}

    def test_a_node_is_waited_for(self) -> None:
        team = Team(expected=expected(began=True), opened=False)
        for rank, run in enumerate(MEMBERS):
            team.machines[rank].start(replace(spec(run, *NODES, rank=rank), hold=False))
        late = team.nodes.pop("b")
        team.gangs = Gangs(team.nodes.values(), clock=team.clock, background=False)
        team.gangs.expect([expected(began=True)])
        team.gangs.waiting = {"b"}
        team.open()
        team.machines[0].end(RUN, 3)
        assert (team.gangs.runs(), team.told) == ([], [])
        with pytest.raises(ExecutorError, match="has not come yet"):
            team.start()
        team.gangs.add(late)
        assert (team.end.exit_code, team.end.member) == (3, 0)

    def test_a_node_that_is_waited_for_is_lost(self) -> None:
        team = Team(expected=expected(began=True), opened=False)
        for rank, run in enumerate(MEMBERS):
            team.machines[rank].start(replace(spec(run, *NODES, rank=rank), hold=False))
        del team.nodes["b"]
        team.gangs = Gangs(team.nodes.values(), clock=team.clock, background=False)
        team.gangs.expect([expected(began=True)])
        team.gangs.waiting = {"b"}
        team.open()
        team.gangs.lost("b", "gone")
        assert (team.end.reason, team.end.member) == (EndReason.NODE, 1)

    def test_a_node_that_was_given_up_before(self) -> None:
        """The scheduler died after it gave the node up, and before it wrote down what that ended."""
        over = Over("a")
        over.gangs.expect([Expected(("1.1",), ("z",), 5.0, began=True), expected(began=True)])
        over.open()
        assert {run: over.last(run).exit is not None for run in ("1.1", RUN)} == {"1.1": True, RUN: True}
        assert {status.run for status in over.gangs.runs()} == {"1.1", RUN}


class TestByItself:
    """With threads of its own, and the real clock."""

    def test_the_grace_after_the_master_and_the_words_of_a_failure(self) -> None:
        for rank, code, text in ((0, 0, ""), (1, 3, "member 1 on b: exit code 3; its log ends with: why")):
            before = set(threading.enumerate())
            over = Over(*NODES).open()
            machines = [over.nodes[name].machine for name in NODES]
            machines[1].logs[MEMBERS[1]] = b"why\n"
            specs = [replace(spec(run, *NODES, rank=number), grace_s=0.05) for number, run in enumerate(MEMBERS)]
            over.gangs.start(specs)
            machines[rank].end(MEMBERS[rank], code)
            until(lambda over=over: over.said(RUN)[-1] is RunPhase.EXITED, "its end")
            how = over.last(RUN).exit
            assert how is not None
            assert (how.exit_code, how.message) == (code, text)
            assert machines[2].stops == {MEMBERS[2]: (EndReason.PEER, pytest.approx(0.05, abs=0.05))}
            over.gangs.close()
            assert not [one for one in threading.enumerate() if one.name == "gangs" and one not in before]

    def test_a_log_that_takes_too_long_is_left_out(self) -> None:
        team = Team().start()
        go_on = threading.Event()
        team.gangs._background = True
        team.nodes["b"].disk.read_log = lambda *_, **__: (b"late" * bool(go_on.wait(60.0)), 4)  # type: ignore[method-assign]
        team.machines[1].end(MEMBERS[1], 3)
        assert team.phases[-1] is RunPhase.STOPPING
        team.wait(2.1)
        assert team.phases == ENDED
        go_on.set()
        until(lambda: not any(one.name == "log-reader" for one in threading.enumerate()), "the reader's end")
        assert team.phases == ENDED
        assert team.end.message == "member 1 on b: exit code 3"
        team.gangs.close()
