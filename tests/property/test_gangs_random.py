"""Attempts over nodes that refuse, fail, are cut off, lost and found again, under schedulers that die: whatever comes
in whatever order, no half gang runs, each attempt ends once, and nothing is left of it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from fake_node import FakeMachine, FakeNode
from gpuloom.core.end_reason import EndReason
from gpuloom.core.run_name import RunName
from gpuloom.executors.gangs import Expected, Gangs
from gpuloom.executors.node import Peer, RunSpec
from gpuloom.executors.port import Cause, RunExit, RunPhase, RunStatus
from tiers import examples

NAMES = ("a", "b", "c", "d")
GRACE_S = 5.0


@dataclass
class Attempt:
    """As the records have it. stop: why it was told to end. told: what was said of it since the scheduler began."""

    runs: tuple[str, ...]
    nodes: tuple[str, ...]
    began: bool = False
    frozen: bool = False
    stop: EndReason | None = None
    told: list[RunStatus] = field(default_factory=list)

    @property
    def run(self) -> str:
        return self.runs[0]

    @property
    def end(self) -> RunExit | None:
        return self.told[-1].exit if self.told else None


class Fleet(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.now = 100.0
        self.jobs = 0
        self.machines = {name: FakeMachine(name, prepares=False) for name in NAMES}
        self.nodes = {name: FakeNode(name, machine) for name, machine in self.machines.items()}
        for node in self.nodes.values():
            node.by_hand = True
        self.open: dict[str, Attempt] = {}
        self.gone: list[Attempt] = []
        self.strangers: set[str] = set()
        self.given_up: set[str] = set()
        """Runs that were on a node when it was lost."""
        self.scheduler()

    def scheduler(self) -> None:
        """A scheduler begins. It can't meet nodes that are cut off."""
        self.gangs = Gangs(clock=lambda: self.now, background=False)
        self.gangs.expect(
            Expected(
                one.runs, one.nodes, GRACE_S, one.began, one.stop is not None, one.frozen, ("boot",) * len(one.runs)
            )
            for one in self.open.values()
        )
        for name, node in self.nodes.items():
            if node.cut:
                self.gangs.waiting.add(name)
            else:
                self.gangs.add(node)
        for one in self.open.values():
            one.told.clear()
        self.gangs.open(self.on_status)
        self.take_up(self.open)

    # What a scheduler does

    def on_status(self, status: RunStatus) -> None:
        one = self.open.get(status.run)
        if one is None:
            (member,) = status.members
            assert member.status.run == status.run
            if status.phase is RunPhase.EXITED:
                self.gangs.acknowledge(status.run)
            elif status.run not in self.strangers:
                self.strangers.add(status.run)
                self.gangs.stop(status.run, reason=EndReason.CANCELLED, grace_s=1.0)
            return
        if one.end is not None:  # it ends once: what is said later is that nothing is left
            assert status.exit is not None
            assert not one.end.released
            assert replace(status.exit, released=False) == one.end
        one.told.append(status)
        one.began = one.began or status.phase in (RunPhase.RUNNING, RunPhase.FROZEN)
        one.frozen = status.phase is RunPhase.FROZEN
        if len(one.runs) > 1:
            assert [member.node for member in status.members] == list(one.nodes)
        if status.exit is not None and status.exit.released:
            for run, node in zip(one.runs, one.nodes, strict=True):
                assert run in self.given_up or run not in self.machines[node].alive()

    def take_up(self, runs: object) -> None:
        known = {status.run: status for status in self.gangs.heard(list(self.open))}
        for run in list(runs):  # type: ignore[call-overload]
            one = self.open[run]
            if any(node in self.gangs.waiting for node in one.nodes):
                assert run not in known or len(one.nodes) == 1
                continue
            status = known.get(run)
            alive = status is not None and status.phase is not RunPhase.EXITED
            if one.stop is None and not one.began and (status is None or alive):
                self.gangs.start(self.specs(one))
            elif status is None:
                self.over(one)
            elif one.stop is not None and alive:
                self.gangs.stop(run, reason=one.stop, grace_s=GRACE_S)
            elif not alive and not one.told:
                one.told.append(status)

    def specs(self, one: Attempt) -> list[RunSpec]:
        peers = tuple(Peer(node, "10.0.0.1", 1) for node in one.nodes)
        return [
            RunSpec(run, ("train",), "/", {}, (0,), (), peers=peers, rank=rank, grace_s=GRACE_S)
            for rank, run in enumerate(one.runs)
        ]

    def over(self, one: Attempt) -> None:
        """Its end is written down."""
        del self.open[one.run]
        self.gone.append(one)
        self.gangs.acknowledge(one.run)

    # What happens

    @rule(data=st.data())
    def start(self, data: st.DataObject) -> None:
        there = [name for name in self.nodes if self.gangs.there([name])]
        if not there:
            return
        nodes = tuple(data.draw(st.lists(st.sampled_from(there), min_size=1, max_size=len(there), unique=True)))
        self.jobs += 1
        runs = tuple(str(RunName(self.jobs, 1, rank, "x")) for rank in range(len(nodes)))
        one = self.open[runs[0]] = Attempt(runs, nodes)
        self.gangs.start(self.specs(one))

    @rule(name=st.sampled_from(NAMES), count=st.integers(1, 3), way=st.sampled_from(("asked", "told", "both")))
    def deliver(self, name: str, count: int, way: str) -> None:
        if (node := self.nodes.get(name)) is not None:
            if way != "told":
                node.deliver_asked(count)
            if way != "asked":
                node.deliver_told(count)

    @rule()
    def deliver_all(self) -> None:
        for _ in range(20):
            for node in self.nodes.values():
                node.deliver()

    @rule(data=st.data())
    def prepared(self, data: st.DataObject) -> None:
        name, run = self.some(data, RunPhase.STARTING)
        if run:
            self.machines[name].prepared(run)

    @rule(name=st.sampled_from(NAMES), cause=st.sampled_from((Cause.JOB, Cause.EXECUTOR)), on=st.booleans())
    def refuses(self, name: str, cause: Cause, on: bool) -> None:
        how = RunExit(None, None, EndReason.NOT_STARTED, "refused", 5.0, cause=cause)
        self.machines[name].refuses = {"*": how} if on else {}

    @rule(name=st.sampled_from(NAMES), obedient=st.booleans(), freezes=st.booleans())
    def manners(self, name: str, obedient: bool, freezes: bool) -> None:
        self.machines[name].obedient, self.machines[name].freezes = obedient, freezes

    @rule(data=st.data(), code=st.sampled_from((0, 0, 0, 1, 85)), released=st.booleans())
    def end(self, data: st.DataObject, code: int, released: bool) -> None:
        name, run = self.some(data, RunPhase.RUNNING, RunPhase.STOPPING)
        if run:
            self.machines[name].end(run, code, released=released)

    @rule(data=st.data())
    def last_of_it_goes(self, data: st.DataObject) -> None:
        name, run = self.some(data, RunPhase.EXITED)
        how = self.machines[name].states[run].exit if run else None
        if how is not None and not how.released:
            self.machines[name].end(run, how.exit_code, signal=how.signal, reason=how.reason)

    @rule(data=st.data(), what=st.sampled_from(("stop", "freeze", "thaw", "limit", "start", "acknowledge")))
    def ask(self, data: st.DataObject, what: str) -> None:
        if not self.open:
            return
        one = self.open[data.draw(st.sampled_from(sorted(self.open)))]
        if what == "stop":
            one.stop = one.stop or data.draw(st.sampled_from((EndReason.PREEMPTED, EndReason.CANCELLED)))
            self.gangs.stop(one.run, reason=one.stop, grace_s=data.draw(st.sampled_from((0.0, GRACE_S))))
        elif what == "freeze":
            self.gangs.freeze(one.run)
        elif what == "thaw":
            self.gangs.thaw(one.run)
        elif what == "limit":
            self.gangs.limit(one.run, 60.0)
        elif what == "start":
            if not one.began and one.stop is None and self.gangs.there(one.nodes):
                self.gangs.start(self.specs(one))
        elif one.end is not None and one.end.released:
            self.over(one)

    @rule(seconds=st.sampled_from((0.5, 2.0, GRACE_S + 0.1)))
    def time_goes(self, seconds: float) -> None:
        self.now += seconds
        self.gangs.look()

    @rule(name=st.sampled_from(NAMES), cut=st.booleans())
    def link(self, name: str, cut: bool) -> None:
        node = self.nodes.get(name)
        if node is None or node.cut == cut:
            return
        node.cut = cut
        if not cut and name in self.gangs.waiting:
            self.gangs.add(node)
            self.gangs.waiting.discard(name)
            self.take_up([run for run, one in self.open.items() if name in one.nodes])

    @rule(name=st.sampled_from(NAMES), dies=st.booleans())
    def lose(self, name: str, dies: bool) -> None:
        if name not in self.nodes:
            return
        del self.nodes[name]
        machine = self.machines[name]
        if dies:
            machine.reboot()
        before = {run: len(one.told) for run, one in self.open.items()}
        self.given_up |= {
            run for one in self.open.values() for run, node in zip(one.runs, one.nodes, strict=True) if node == name
        }
        self.gangs.waiting.discard(name)
        self.gangs.lost(name, "gone")
        for run, one in self.open.items():
            if name not in one.nodes:
                assert len(one.told) == before[run]
            elif one.nodes == (name,):
                assert one.end is not None
                assert one.end.released

    @rule(name=st.sampled_from(NAMES), by_hand=st.booleans())
    def found(self, name: str, by_hand: bool) -> None:
        """A node that was lost is there again, or joins anew: what was on its way is gone."""
        if name in self.gangs.waiting or (name in self.nodes and self.nodes[name].cut):
            return
        node = FakeNode(name, self.machines[name])
        self.nodes[name] = node
        self.gangs.add(node)
        node.by_hand = by_hand

    @rule()
    def scheduler_dies(self) -> None:
        self.strangers.clear()
        for name, node in list(self.nodes.items()):
            fresh = FakeNode(name, self.machines[name])
            fresh.cut, fresh.by_hand = node.cut, node.by_hand
            self.nodes[name] = fresh
        self.scheduler()

    def some(self, data: st.DataObject, *phases: RunPhase) -> tuple[str, str]:
        """(machine, run) of a run in one of these phases, or ('', '')."""
        found = [
            (name, run)
            for name, machine in self.machines.items()
            for run, status in sorted(machine.states.items())
            if status.phase in phases
        ]
        return data.draw(st.sampled_from(found)) if found else ("", "")

    # What is true at any time

    @invariant()
    def no_half_gang_runs(self) -> None:
        if not hasattr(self, "machines"):
            return
        for one in [*self.open.values(), *self.gone]:
            if any(run in self.machines[node].ran for run, node in zip(one.runs, one.nodes, strict=True)):
                for run, node in zip(one.runs, one.nodes, strict=True):
                    assert run in self.machines[node].were_prepared
                    assert self.machines[node].ran.count(run) <= 1

    def teardown(self) -> None:
        """Left alone, with all links mended, everything ends, and nothing is left of it."""
        if not hasattr(self, "machines"):
            return
        for name in NAMES:
            self.machines[name].obedient = self.machines[name].freezes = True
            self.machines[name].refuses = {}
            self.link(name, cut=False)
            self.found(name, by_hand=False)
        for _ in range(4):
            for one in list(self.open.values()):
                if one.end is None:
                    one.stop = one.stop or EndReason.CANCELLED
                    self.gangs.stop(one.run, reason=one.stop, grace_s=0.0)
            for machine in self.machines.values():
                for run, status in list(machine.states.items()):
                    if status.phase is RunPhase.STOPPING:
                        machine.end(run, 85)
                    elif status.exit is not None and not status.exit.released:
                        machine.end(run, status.exit.exit_code, signal=status.exit.signal, reason=status.exit.reason)
            self.deliver_all()
            self.time_goes(GRACE_S + 0.1)
            for one in list(self.open.values()):
                if one.end is not None and one.end.released:
                    self.over(one)
            self.deliver_all()
        assert self.open == {}
        assert [machine.states for machine in self.machines.values()] == [{}] * len(NAMES)
        assert all(self.gangs.strange(name) == () for name in NAMES)
        assert self.gangs.runs() == []


Fleet.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
TestFleet = Fleet.TestCase


ENDS = st.one_of(
    st.tuples(st.sampled_from(("ends", "ends unheard")), st.sampled_from((0, 0, 1, 2)), st.sampled_from((0, 0, 3))),
    st.tuples(
        st.sampled_from(("hears", "says", "lost", "told to end", "obeys", "time")), st.integers(0, 2), st.just(0)
    ),
)


@given(steps=st.lists(ENDS, max_size=12), begun=st.sets(st.integers(0, 2)))
@settings(max_examples=examples(300), deadline=None)
def test_a_gang_ends_well_only_if_all_its_members_did(steps: list[tuple[str, int, int]], begun: set[int]) -> None:
    """Or had begun, and were still under way when their time was over. begun: who has heard that it is to begin."""
    now, told = 100.0, list[RunStatus]()
    runs = [str(RunName(1, 1, rank, "x")) for rank in range(3)]
    nodes = [FakeNode(name) for name in NAMES[:3]]
    gangs = Gangs(nodes, clock=lambda: now, background=False)
    gangs.open(told.append)
    for node in nodes:
        node.machine.obedient, node.machine.stop_code, node.machine.prepares = False, None, False
    peers = tuple(Peer(node.name, "10.0.0.1", 1) for node in nodes)
    gangs.start(
        [
            RunSpec(run, ("train",), "/", {}, (0,), (), peers=peers, rank=rank, grace_s=GRACE_S)
            for rank, run in enumerate(runs)
        ]
    )
    for node, run in zip(nodes, runs, strict=True):
        node.machine.prepared(run)
        node.by_hand = True
    for node in nodes:
        node.deliver_told()
    for rank in begun:
        nodes[rank].deliver()
    for what, rank, code in steps:
        node, run = nodes[rank], runs[rank]
        if what in ("ends", "ends unheard") and run in node.machine.alive():
            node.machine.end(run, code)
            if what == "ends":
                node.deliver_told()
        elif what == "hears":
            node.deliver_asked()
        elif what == "says":
            node.deliver_told()
        elif what == "lost" and gangs.there([node.name]):
            gangs.lost(node.name, "gone")
        elif what == "told to end":
            gangs.stop(runs[0], reason=EndReason.PREEMPTED, grace_s=GRACE_S)
        elif what == "obeys" and run in node.machine.stops and run in node.machine.alive():
            node.machine.end(run, None, signal=15)
        elif what == "time":
            now += GRACE_S + 0.1
            gangs.look()
    ends = [status.exit for status in told if status.exit is not None]
    if ends and (ends[0].exit_code, ends[0].reason) == (0, None):
        for run, node in zip(runs, nodes, strict=True):
            how = node.machine.states[run].exit
            assert how is not None
            well = (how.exit_code, how.reason) == (0, None)
            assert well or (how.reason is EndReason.PEER and run in node.machine.ran)
