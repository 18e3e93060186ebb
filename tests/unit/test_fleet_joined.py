"""A node that joined, as its head has it: what is said to it, and what is made of what it says."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from fake_head import Wire
from gpuloom.core.end_reason import EndReason
from gpuloom.core.job import Gpu, NodeRecord
from gpuloom.executors.node import Capabilities, RunSpec
from gpuloom.executors.port import Cause, ExecutorError, RunExit, RunPhase, RunStatus
from gpuloom.fleet import joined as module
from gpuloom.fleet.channel import AnswerError, Channel
from gpuloom.fleet.codec import plain
from gpuloom.fleet.joined import JoinedNode
from gpuloom.fleet.messages import Joined
from until import until

RUN, OTHER = "1.1-a", "2.1-b"
ENDED = RunExit(0, None, None, "", 5.0)


def spec(run: str = RUN) -> RunSpec:
    return RunSpec(run, ("true",), "/", {}, (0,), ("cpu-0",))


def status(phase: RunPhase = RunPhase.RUNNING, run: str = RUN, **more: Any) -> RunStatus:
    return RunStatus(run, phase, 7, 8, "b", **more)


def exited(run: str = RUN) -> RunStatus:
    return status(RunPhase.EXITED, run, exit=ENDED)


class Joining:
    """The node, its link, and what it told."""

    def __init__(self) -> None:
        self.channel, self.wire = Channel("n1"), Wire()
        self.channel.begin()
        self.channel.attach(self.wire, 0)
        self.node = JoinedNode("n1", self.channel)
        self.told: list[RunStatus] = []
        self.node.open(self.told.append)

    def again(self, *runs: RunStatus, boot: str = "b", **more: Any) -> list[RunStatus]:
        """Another process of the node begins a session; what it is told of."""
        self.wire = Wire()
        self.channel.begin()
        self.channel.attach(self.wire, 0)
        return self.node.began(Joined(NodeRecord("n1", (Gpu(0, "cpu-0", "CPU"),)), runs, **more), boot)

    def said(self) -> list[tuple[str, Any]]:
        """What it was told to do, and with which run."""
        return [(one["kind"], one["spec"]["run"] if "spec" in one else one.get("run")) for one in self.wire.messages]


@pytest.fixture
def it() -> Joining:
    return Joining()


def test_each_command_is_a_message(it: Joining) -> None:
    node = it.node
    node.start(spec())
    node.go(RUN)
    node.limit(RUN, 7.5)
    node.freeze(RUN)
    node.thaw(RUN)
    node.stop(RUN, reason=EndReason.PREEMPTED, grace_s=-1.0)
    node.acknowledge(RUN)
    node.clear()
    node.leave("so")
    assert it.wire.messages == [
        {"kind": "start", "spec": plain(spec())},
        {"kind": "go", "run": RUN},
        {"kind": "limit", "run": RUN, "limit_s": 7.5},
        {"kind": "freeze", "run": RUN},
        {"kind": "thaw", "run": RUN},
        {"kind": "stop", "run": RUN, "reason": "preempted", "grace_s": 0.0},
        {"kind": "acknowledge", "run": RUN},
        {"kind": "clear"},
        {"kind": "leave", "why": "so"},
    ]


def test_what_it_says_of_itself(it: Joining) -> None:
    assert (it.node.boot_id(), it.node.healthy(), it.node.limits()) == ("", "", {})
    can = Capabilities()
    it.again(boot="boot-2", healthy="the runner is gone", capabilities=can, limits={"memory": "cgroup"})
    assert it.node.boot_id() == "boot-2"
    assert it.node.healthy() == "the runner is gone"
    assert (it.node.capabilities(), it.node.limits()) == (can, {"memory": "cgroup"})
    it.node.health("")
    assert it.node.healthy() == ""
    it.channel.detach()
    assert it.node.healthy() == "the link to n1 is cut"


def test_what_was_heard_before_anybody_listens_is_told_then_in_order() -> None:
    it = Joining()
    it.node.close()
    for phase in (RunPhase.STARTING, RunPhase.RUNNING):
        it.node.heard(status(phase))
    assert it.told == []
    it.node.open(it.told.append)
    it.node.heard(status(RunPhase.FROZEN))
    assert [one.phase for one in it.told] == [RunPhase.STARTING, RunPhase.RUNNING, RunPhase.FROZEN]
    it.node.close()
    it.node.open(it.told.append)
    assert len(it.told) == 3, "once"


def test_the_same_is_told_once_and_what_changes_each_time(it: Joining) -> None:
    for one in (status(), status(), exited(), exited()):
        it.node.heard(one)
    assert it.told == [status(), exited()]


def test_the_end_of_a_run_that_is_acknowledged_is_acknowledged_again_and_not_told(it: Joining) -> None:
    it.node.heard(exited())
    it.node.acknowledge(RUN)
    it.node.heard(exited())
    it.node.heard(status())
    assert it.said() == [("acknowledge", RUN)] * 2
    assert it.told == [exited()]


def test_runs_that_are_acknowledged_are_remembered_up_to_a_number(it: Joining, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FORGOTTEN", 2)
    for number in range(3):
        it.node.acknowledge(f"{number}.1")
    for number in range(3):
        it.node.heard(exited(f"{number}.1"))
    assert [one.run for one in it.told] == ["0.1"], "the oldest is forgotten"


# -- a session that begins anew ----------------------------------------------------------------------------------------


def test_commands_that_it_may_have_forgotten_are_given_again(it: Joining) -> None:
    """Of each kind the last one, in the order in which they were given."""
    it.node.start(spec())
    for limit_s in (5.0, 9.0):
        it.node.limit(RUN, limit_s)
    it.node.freeze(RUN)
    it.node.stop(RUN, reason=EndReason.PREEMPTED, grace_s=3.0)
    it.node.thaw(RUN)
    it.node.limit(RUN, None)
    assert it.again() == []
    assert it.said() == [("start", RUN), ("stop", RUN), ("thaw", RUN), ("limit", RUN)]
    assert it.wire.messages[-1]["limit_s"] is None
    it.node.heard(status())
    assert it.again(status()) == [status()]
    assert it.said() == [("stop", RUN), ("thaw", RUN), ("limit", RUN)], "it is there: not started again"


@pytest.mark.parametrize("how", ["as it ends", "in the session that tells it"])
def test_of_a_run_that_has_ended_nothing_is_wanted_any_more(it: Joining, how: str) -> None:
    it.node.start(spec())
    it.node.heard(status())
    it.node.stop(RUN, reason=EndReason.PREEMPTED, grace_s=3.0)
    if how == "as it ends":
        it.node.heard(exited())
    assert it.again(exited()) == [exited()]
    assert it.said() == []
    assert it.told == [status(), exited()]


def test_a_command_for_a_run_that_is_not_known_is_given_once(it: Joining) -> None:
    it.node.stop(RUN, reason=EndReason.CANCELLED, grace_s=0.0)
    assert it.said() == [("stop", RUN)]
    it.again()
    assert it.said() == []


def test_ends_that_are_noted_are_left_out_and_acknowledged_again(it: Joining) -> None:
    it.node.heard(exited())
    it.node.acknowledge(RUN)
    assert it.again(exited(), status(run=OTHER)) == [status(run=OTHER)]
    assert it.said() == [("acknowledge", RUN)]


@pytest.mark.parametrize(
    ("boot", "phase", "reason", "cause"),
    [
        ("b", RunPhase.RUNNING, EndReason.LOST, Cause.NONE),
        ("b2", RunPhase.RUNNING, EndReason.LOST, Cause.RESTARTED),
        ("b2", RunPhase.FROZEN, EndReason.LOST, Cause.RESTARTED),
        ("b", RunPhase.PREPARED, EndReason.NOT_STARTED, Cause.EXECUTOR),
    ],
)
def test_what_it_should_know_and_does_not_has_ended(
    it: Joining, boot: str, phase: RunPhase, reason: EndReason, cause: Cause
) -> None:
    it.again(status(phase))
    it.again(status(RunPhase.RUNNING, OTHER), boot=boot)
    lost = it.told[-1]
    assert (lost.run, lost.phase, lost.pid, lost.boot_id) == (RUN, RunPhase.EXITED, 7, "b")
    assert lost.exit is not None
    assert (lost.exit.reason, lost.exit.cause) == (reason, cause)
    before = len(it.told)
    it.again(status(RunPhase.RUNNING, OTHER), boot=boot)
    assert len(it.told) == before, "it has ended once"


# -- questions ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


@pytest.mark.parametrize("data", [5, None, [5], [{"run": 3}], [{}]])
def test_an_answer_that_is_no_list_of_runs_is_an_error_of_the_node(
    it: Joining, pool: ThreadPoolExecutor, data: Any
) -> None:
    found = pool.submit(it.node.runs)
    until(lambda: it.wire.frames)
    it.channel.replied({"reply": it.wire.frames[-1]["ask"], "data": data})
    with pytest.raises(AnswerError, match="n1 answers what is no list of runs") as caught:
        found.result(30.0)
    assert caught.value.kind == "malformed"


def test_it_is_asked_for_its_runs(it: Joining, pool: ThreadPoolExecutor) -> None:
    found = pool.submit(it.node.runs, patience_s=60.0)
    until(lambda: it.wire.frames)
    assert it.wire.frames[-1] == {"ask": 1, "what": "runs", "with": {}}
    it.channel.replied({"reply": 1, "data": [plain(status()), plain(exited(OTHER))]})
    assert found.result(30.0) == [status(), exited(OTHER)]
    with pytest.raises(ExecutorError, match=r"does not answer within 0\.01 s"):
        it.node.runs(patience_s=0.01)
