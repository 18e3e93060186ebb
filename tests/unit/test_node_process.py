"""The node process in a thread, joined to a register of nodes over a link in memory: no process, no socket."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fake_head import Scheduler
from fake_node import FakeLooker, FakeMachine, FakeNode
from fake_nvml import FakeGpu, FakeNvml
from gpuloom.agent.nvml import Nvml
from gpuloom.core.end_reason import EndReason
from gpuloom.core.errors import GpuloomError, InputError
from gpuloom.core.job import NodeSource
from gpuloom.executors import procs
from gpuloom.executors.home_id import home_id_of
from gpuloom.executors.lease import LeaseFile, boottime_ns
from gpuloom.executors.node import RunSpec
from gpuloom.executors.port import ExecutorError, RunPhase
from gpuloom.fleet import registry
from gpuloom.fleet.lease import TERMS
from gpuloom.fleet.registry import HOLD_S, Nodes
from gpuloom.fleet.token import Token, Tokens
from gpuloom.node import process
from gpuloom.node.dial import Gone, RefusedError
from gpuloom.node.process import JoinOptions, NodeProcess, join
from until import until

RUN = "1.1-a"
SPEC = RunSpec(RUN, ("true",), "/", {}, (0,), ("cpu-0",))
URL = "http://127.0.0.1:7411"
HERE = "10.0.0.9"


class HeadEnd:
    """The head's end of a link."""

    def __init__(self, cable: Cable) -> None:
        self.cable = cable

    def send(self, text: str) -> None:
        if not self.cable.mute:
            self.cable.coming.put(text)

    def close(self, why: str = "") -> None:
        self.cable.close(f"the head hung up ({why})")


class Cable:
    """A link in memory, as the node's `Wire`. sent: what the node has said. mute: nothing comes from the head."""

    where = HERE

    def __init__(self, nodes: Nodes, shown: str, *, mute: bool = False) -> None:
        self._nodes, self.mute = nodes, mute
        self.coming: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.sent: list[dict[str, Any]] = []
        self.why = ""
        self.end = HeadEnd(self)
        nodes.opened(self.end, shown)

    def send(self, text: str) -> None:
        self.sent.append(json.loads(text))
        if not self.why:
            self._nodes.received(self.end, text)

    def close(self, why: str = "") -> None:
        self.why = self.why or why
        self.coming.put("")

    def run(self, take: Callable[[str], None], tick: Callable[[], float]) -> str:
        while not self.why:
            try:
                text = self.coming.get(timeout=max(tick(), 0.0))
            except queue.Empty:
                continue
            if text:
                take(text)
        self._nodes.closed(self.end)
        return self.why

    @property
    def hello(self) -> dict[str, Any]:
        found: dict[str, Any] = self.sent[0]["hello"]
        return found

    def messages(self, kind: str) -> list[dict[str, Any]]:
        return [frame["m"] for frame in self.sent if "n" in frame and frame["m"]["kind"] == kind]


class Head:
    """A register of nodes."""

    def __init__(self, folder: Path, tokens: Tokens) -> None:
        self.on = Scheduler()
        self.nodes = Nodes(folder / "nodes.json", tokens, self.on, reserved=["head"])
        self.nodes.start()

    def told(self, what: str) -> int:
        """How often it was told this."""
        return len([one for one in self.on.told if one[0] == what])


class World:
    """A head, a node process, and the net between them. down: what a call ends with. mute: heads say nothing."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.monkeypatch = folder, monkeypatch
        self.tokens = Tokens(folder / "tokens.json")
        self.heads = [Head(folder, self.tokens)]
        self.down: Exception | None = None
        self.mute = False
        self.cables: list[Cable] = []
        self.calls = 0
        self.node = FakeNode("n1", FakeMachine("n1"))
        self.machine = self.node.machine
        self.looker = FakeLooker()
        self.handlers: dict[int, Any] = {}
        self.process: NodeProcess | None = None
        self.ended: list[int | Exception] = []
        self._thread: threading.Thread | None = None
        for name, made in {
            "dial": self.dial,
            "LocalExecutor": lambda home, gpu_processes: None,
            "LocalNode": self.local_node,
            "Looker": lambda record, nvml, disk: self.looker,
            "ensure_guard": lambda home: LeaseFile(str(home)).make(),
            "signal": SimpleNamespace(
                signal=self.handlers.__setitem__, SIGTERM=signal.SIGTERM, SIGINT=signal.SIGINT, Signals=signal.Signals
            ),
        }.items():
            monkeypatch.setattr(process, name, made)
        for name in ("FIRST_PAUSE_S", "LONGEST_PAUSE_S", "LEAVE_LOOK_S", "AGAIN_S"):
            monkeypatch.setattr(process, name, 0.005)
        monkeypatch.setattr(registry, "LOOK_S", 0.01)

    @property
    def head(self) -> Head:
        return self.heads[-1]

    def dial(self, url: str, token: Token) -> Cable:
        assert url == URL
        self.calls += 1
        if self.down is not None:
            raise self.down
        cable = Cable(self.head.nodes, token.shown, mute=self.mute)
        self.cables.append(cable)
        return cable

    def local_node(self, name: str, executor: None, runs: Path, *, shared: Any) -> FakeNode:
        assert (name, runs) == ("n1", self.folder / "node" / "runs") or name == "head"
        return self.node

    def begin(self, *, nvml: FakeNvml | None = None, **options: Any) -> World:
        """A node process begins."""
        more = {"name": "n1", "slots": 2, "token": str(self.tokens.mint()), **options}
        made = self.process = NodeProcess(JoinOptions(self.folder / "node", URL, **more), nvml=Nvml(nvml or FakeNvml()))

        def run() -> None:
            try:
                self.ended.append(made.run())
            except GpuloomError as error:
                self.ended.append(error)

        self._thread = threading.Thread(target=run)
        self._thread.start()
        return self

    def join(self, **options: Any) -> World:
        """The same, and it has joined."""
        self.begin(**options)
        until(lambda: self.state == "joined", "it to join")
        return self

    def running(self) -> World:
        """A job of the head runs there."""
        self.port.open(lambda status: None)
        self.port.start(SPEC)
        until(lambda: RUN in self.machine.ran)
        return self

    @property
    def made(self) -> NodeProcess:
        assert self.process is not None
        return self.process

    @property
    def port(self) -> Any:
        return until(lambda: self.head.on.nodes.get("n1"))

    @property
    def state(self) -> str:
        said = self.made.home.said()
        return "" if said is None else said.state

    @property
    def detail(self) -> str:
        said = self.made.home.said()
        return "" if said is None else said.detail

    def signal(self, number: int = signal.SIGTERM) -> None:
        self.handlers[number](number, None)

    def count(self, of: Any, name: str) -> list[Any]:
        """A list that grows with each call of this method."""
        calls: list[Any] = []
        made = getattr(of, name)

        def counted(*words: Any) -> Any:
            calls.append(words)
            return made(*words)

        self.monkeypatch.setattr(of, name, counted)
        return calls

    def end(self) -> int | Exception:
        """How it ended."""
        assert self._thread is not None
        self._thread.join(30.0)
        (how,) = self.ended
        return how

    def close(self) -> None:
        if self._thread is not None and self._thread.is_alive():
            for run in list(self.machine.states):
                self.machine.states.pop(run)
            self.made.served._last.clear()
            self.made._told_to_leave("the test is over")
            self._thread.join(30.0)
            assert not self._thread.is_alive()
        if self.process is not None:
            os.close(self.process.lock)
            os.close(self.process._wanted)
        for head in self.heads:
            head.nodes.close()


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    world = World(tmp_path, monkeypatch)
    yield world
    world.close()


# -- joining -----------------------------------------------------------------------------------------------------------


def test_it_joins_and_its_lease_is_put_off(world: World) -> None:
    world.join()
    assert world.head.on.told == [("joined", "n1", [])]
    (cable,) = world.cables
    record = cable.messages("joined")[0]["record"]
    assert (record["name"], record["address"], len(record["gpus"])) == ("n1", HERE, 2)
    assert record["source"] == NodeSource.JOINED
    left = world.made.lease.left_s()
    assert left is not None
    assert TERMS.lease_s - 10 < left <= TERMS.lease_s
    said = world.made.home.said()
    assert said is not None
    assert (said.pid, said.name, said.url, said.detail) == (os.getpid(), "n1", URL, "")


def test_what_it_was_given_goes_before_what_the_machine_says(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """In an allocation of Slurm only the GPUs of the allocation are ours."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    gpus = FakeNvml(FakeGpu("GPU-0"), FakeGpu("GPU-1"))
    world.join(nvml=gpus, slots=None, address="10.1.1.1", engine_job="77", lease_s=60.0)
    record = world.cables[0].messages("joined")[0]["record"]
    assert (record["address"], record["engine_job"]) == ("10.1.1.1", "77")
    assert record["source"] == NodeSource.SLURM
    assert [gpu["uuid"] for gpu in record["gpus"]] == ["GPU-1"]
    assert world.cables[0].hello["lease_s"] == 60.0
    left = world.made.lease.left_s()
    assert left is not None
    assert 50 < left <= 60


def test_of_an_allocation_of_others_it_takes_no_notice(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    world.join(nvml=FakeNvml(FakeGpu("GPU-0"), FakeGpu("GPU-1")), slots=None)
    record = world.cables[0].messages("joined")[0]["record"]
    assert [gpu["uuid"] for gpu in record["gpus"]] == ["GPU-0", "GPU-1"]


def test_a_link_that_broke_goes_on_with_the_same_session(world: World) -> None:
    world.join().running()
    world.down = ConnectionRefusedError(111, "Connection refused")
    world.cables[0].close("the link broke")
    until(lambda: world.state == "cut" and "no connection: Connection refused" in world.detail)
    world.machine.freeze(RUN)
    world.down = None
    until(lambda: world.state == "joined")
    assert world.cables[1].hello["session"] == world.made.channel.session != ""
    assert world.cables[1].hello["received"] == 1
    assert world.head.told("joined") == 1
    until(lambda: world.port._runs[RUN].last.phase is RunPhase.FROZEN, "what was said meanwhile to arrive")


def test_a_head_that_was_started_anew_is_told_all(world: World) -> None:
    world.join().running()
    before = world.head
    world.heads.append(Head(world.folder, world.tokens))
    before.nodes.close()
    until(lambda: world.head.on.told == [("joined", "n1", [RUN])])
    assert world.cables[-1].messages("joined")[0]["fenced"] is False


def test_who_does_not_answer_yet_is_called_again(world: World) -> None:
    world.down = Gone("it hung up")
    world.begin()
    until(lambda: world.calls > 3)
    assert (world.state, world.detail) == ("joining", "it hung up")
    world.down = None
    until(lambda: world.state == "joined")


def test_pauses_between_calls_grow_to_a_limit(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(process, "LONGEST_PAUSE_S", 0.006)
    monkeypatch.setattr(process, "random", SimpleNamespace(uniform=lambda low, high: (low + high) / 2))
    world.down = Gone("it hung up")
    pauses: list[float] = []
    made = threading.Event.wait

    def wait(event: threading.Event, timeout: float | None = None) -> bool:
        if world.process is not None and event is world.process._end:
            pauses.append(timeout or 0.0)
        return made(event, timeout)

    monkeypatch.setattr(threading.Event, "wait", wait)
    world.begin()
    until(lambda: len(pauses) > 5)
    assert pauses[:5] == pytest.approx([0.00075, 0.0015, 0.003, 0.0045, 0.0045])
    world.down = None
    until(lambda: world.state == "joined")
    pauses.clear()
    world.cables[0].close("the link broke")
    until(lambda: pauses)
    assert pauses[0] == pytest.approx(0.00075), "after a link that worked the first one again"


# -- who refuses, and who says nothing ---------------------------------------------------------------------------------


def test_refused_for_good_it_ends_and_says_why(world: World) -> None:
    world.begin(name="head")
    how = world.end()
    assert isinstance(how, RefusedError)
    assert "is the head's own machine" in str(how)
    assert (world.state, world.detail) == ("refused", str(how))
    assert world.calls == 1
    assert world.made.lease.there(), "its guard is still needed"


def test_refused_at_the_door_it_waits_until_nothing_runs_any_more(world: World) -> None:
    world.join().running()
    world.down = RefusedError("the token was revoked")
    world.cables[0].close("the link broke")
    until(lambda: world.made._final)
    assert world.ended == []
    world.machine.end(RUN, None, signal=9)
    assert str(world.end()) == "the token was revoked"


def test_refused_for_now_it_comes_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    refuses = True
    why_refused = Nodes._why_refused
    monkeypatch.setattr(Nodes, "_why_refused", lambda *of: ("not yet", False) if refuses else why_refused(*of))
    world.begin()
    until(lambda: world.calls > 2)
    assert (world.state, world.detail) == ("joining", "not yet")
    refuses = False
    until(lambda: world.state == "joined")


def test_a_head_that_does_not_greet_is_given_up(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "GREETING_S", 0.03)
    world.mute = True
    world.begin()
    until(lambda: world.calls > 1)
    assert world.cables[0].why == "the head does not greet"
    assert world.state == "joining"


def test_a_head_that_falls_silent_is_given_up(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "SILENT_S", 0.05)
    world.join()
    world.cables[0].mute = True
    until(lambda: len(world.cables) > 1)
    assert world.cables[0].why == "the head was silent for 0.05 s"
    until(lambda: world.state == "joined")
    assert world.head.told("joined") == 1


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "Expecting property name"),
        ("[]", "the head sent what is no frame"),
        ('{"welcome": {}}', "this is no Welcome"),
        ('{"n": 9, "m": {"kind": "clear"}}', "message 9 came after message 0"),
        ('{"n": 1, "m": 5}', "message 1 is none"),
        ('{"beaten": 1, "ack": 99}', "message 99 is acknowledged"),
    ],
)
def test_after_words_that_make_no_sense_both_begin_anew(world: World, text: str, why: str) -> None:
    world.join()
    world.cables[0].coming.put(text)
    until(lambda: world.head.told("joined") == 2)
    assert why in world.cables[0].why
    assert world.cables[0].why.endswith(": head and node begin anew")
    assert world.cables[1].hello["session"] == ""


def test_a_runner_that_does_not_answer_as_a_session_begins_is_asked_in_the_next(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.join()
    answers = False

    def runs() -> list[Any]:
        if not answers:
            raise ExecutorError("the runner does not answer")
        return []

    monkeypatch.setattr(world.node, "runs", runs)
    world.cables[0].coming.put("[]")
    until(lambda: len(world.cables) > 2)
    assert world.cables[1].why == "the runner does not answer"
    answers = True
    until(lambda: world.state == "joined")


# -- the lease ---------------------------------------------------------------------------------------------------------


def test_after_its_lease_it_comes_back_only_when_all_was_ended(world: World) -> None:
    world.join().running()
    lease = world.made.lease
    world.down = Gone("cut")
    world.cables[0].close("the link broke")
    until(lambda: world.state == "cut")
    lease._now_ns = lambda: boottime_ns() + 10**11
    until(lambda: world.detail == "its lease is over: what runs is ended first")
    world.down, calls = None, world.calls
    world.machine.obedient = True
    world.made.served.stop_all("as its guard does")
    until(lambda: world.made.served.alive() == [])
    assert world.calls == calls, "the guard has the last word"
    lease.count_fence()
    until(lambda: world.head.told("joined") == 2)
    assert world.cables[-1].hello["session"] == ""
    assert world.cables[-1].messages("joined")[0]["fenced"] is True
    lease._now_ns = boottime_ns
    until(lambda: world.state == "joined")
    world.cables[-1].coming.put("[]")
    until(lambda: world.head.told("joined") == 3)
    assert world.cables[-1].messages("joined")[0]["fenced"] is False, "told once"


def test_what_does_not_end_after_the_lease_is_told_to_the_head(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It calls for that alone: no session begins, nothing is served, and it comes back once all was ended."""
    world.join()
    lease = world.made.lease
    lease._now_ns = lambda: boottime_ns() + 10**11
    mark = f"GPULOOM_RUN={home_id_of(world.made.home.path)}:{RUN}"
    left = subprocess.Popen(["sleep", "1000"], env={mark.partition("=")[0]: mark.partition("=")[2]})
    try:
        until(lambda: procs.marked(left.pid, mark.encode()))
        monkeypatch.setattr(process, "STUCK_S", 0.0)
        world.cables[0].close("the link broke")
        why = (
            f"its lease is over, and processes of its runs don't end: {left.pid} (sleep, state S) of run {RUN}; "
            "restart the machine, or what its processes wait for (a file server, a driver)"
        )
        until(lambda: ("stuck", "n1", why) in world.head.on.told)
        until(lambda: world.detail == why)
        assert world.head.told("joined") == 1
    finally:
        left.kill()
        left.wait()
    unsaid = f"and its guard has not said yet that nothing is left ({world.made.home.path / 'guard.log'})"
    until(lambda: unsaid in world.detail)
    lease.count_fence()
    until(lambda: world.head.told("joined") == 2)
    lease._now_ns = boottime_ns


def test_a_lease_that_can_not_be_read_counts_as_over(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> bool:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(LeaseFile, "over", fails)
        patch.setattr(LeaseFile, "settled", fails)
        world.begin()
        until(lambda: world.detail == "its lease is over: what runs is ended first")
        assert world.calls == 0
    until(lambda: world.state == "joined")


def test_a_lease_that_can_not_be_put_off_is_said_and_the_link_stays(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: Any) -> bool:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(LeaseFile, "extend", fails)
    world.join()
    assert "the lease can't be put off: No space left on device; free space" in caplog.text
    assert not world.cables[0].why


def test_a_head_that_ends_in_order_lets_runs_go_on_for_longer(world: World) -> None:
    world.join()
    world.head.nodes.ending()
    until(lambda: (world.made.lease.left_s() or 0.0) > TERMS.lease_s)
    left = world.made.lease.left_s()
    assert left is not None
    assert HOLD_S - 10 < left <= HOLD_S


def test_nobody_holds_what_no_heartbeat_has_begun(world: World) -> None:
    world.down = Gone("cut")
    world.begin()
    until(lambda: world.calls)
    world.made._hold(600.0)
    assert world.made.lease.over()


# -- leaving -----------------------------------------------------------------------------------------------------------


def test_told_to_leave_it_waits_for_what_runs_and_for_its_end_to_be_noted(world: World) -> None:
    world.join().running()
    world.signal()
    until(lambda: world.head.told("leaving"))
    assert (world.state, world.detail) == ("leaving", "it was told to (SIGTERM)")
    world.port.stop(RUN, reason=EndReason.NODE, grace_s=0.0)
    until(lambda: world.port._runs[RUN].last.exit is not None)
    assert world.ended == []
    world.port.acknowledge(RUN)
    assert world.end() == 0
    until(lambda: world.head.told("left"))
    assert world.cables[0].messages("left") == [{"kind": "left", "why": "it was told to (SIGTERM)"}]
    assert (world.state, world.detail) == ("left", "it was told to (SIGTERM)")
    assert not world.made.lease.there(), "so that its guard ends, too"
    assert world.machine.stops == {RUN: (EndReason.NODE, 0.0)}, "by the head alone"
    assert world.calls == 1, "who has left does not come back"
    assert len(world.cables[0].messages("leaving")) == 1
    assert world.looker.stopped
    assert not world.made._worker.alive


def test_told_by_the_head_it_leaves_as_well(world: World) -> None:
    world.join()
    world.port.leave("its allocation ends")
    assert world.end() == 0
    assert world.detail == "its allocation ends"


def test_told_twice_it_ends_what_runs_at_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.join().running()
    stops: list[Any] = []
    monkeypatch.setattr(world.node, "stop", lambda run, **how: stops.append((run, how)))
    world.signal(signal.SIGINT)
    until(lambda: world.head.told("leaving"))
    assert stops == []
    world.signal()
    until(lambda: stops)
    looks = world.count(world.made.served, "unsettled")
    until(lambda: len(looks) > 3)
    assert stops == [(RUN, {"reason": EndReason.NODE, "grace_s": 0.0})], "once"
    assert world.detail == "it was told to (SIGINT)", "the first reason counts"
    world.machine.end(RUN, None, signal=9)
    world.port.acknowledge(RUN)
    assert world.end() == 0


def test_cut_off_nobody_has_to_note_what_ended_here(world: World) -> None:
    world.join().running()
    world.down = Gone("cut")
    world.cables[0].close("the link broke")
    until(lambda: world.state == "cut")
    world.signal()
    world.made.home.leave.touch()
    assert world.end() == 0
    assert world.machine.stops == {RUN: (EndReason.NODE, 0.0)}
    assert world.head.told("left") == 0
    assert world.state == "left"


def test_the_wish_of_a_process_before_to_leave_now_is_not_this_one_s(world: World) -> None:
    folder = world.folder / "node"
    folder.mkdir()
    (folder / "leave-now").touch()
    world.join().running()
    world.signal()
    until(lambda: world.head.told("leaving"))
    assert world.machine.stops == {}


def test_a_head_that_begins_anew_is_told_again_that_it_leaves(world: World) -> None:
    world.join().running()
    world.signal()
    until(lambda: world.head.told("leaving"))
    before = world.head
    world.heads.append(Head(world.folder, world.tokens))
    before.nodes.close()
    until(lambda: world.head.told("leaving"))
    assert world.state == "leaving"


@pytest.mark.parametrize("known", [True, False])
def test_told_to_leave_before_a_head_has_greeted_it_waits_for_nobody(world: World, known: bool) -> None:
    """known: the link is there as it is told to."""
    world.mute = True
    if known:
        world.begin()
        until(lambda: world.cables and world.cables[0].sent)
        world.signal()
    else:
        dial = world.dial

        def late(url: str, token: Token) -> Cable:
            world.signal()
            until(lambda: world.made._end.is_set())
            return dial(url, token)

        world.monkeypatch.setattr(process, "dial", late)
        world.begin()
    assert world.end() == 0
    assert not world.made._worker.alive
    assert world.cables[0].why == process.ENDS
    assert world.state == "left"


def test_without_a_head_for_too_long_it_leaves(world: World) -> None:
    world.down = Gone("nobody there")
    world.begin(give_up_s=0.02)
    assert world.end() == 0
    assert (world.state, world.detail) == ("left", "the head was not reached for 0.02 s")


def test_with_a_head_it_gives_nothing_up(world: World) -> None:
    world.join(give_up_s=3600.0)
    world.cables[0].close("the link broke")
    until(lambda: len(world.cables) > 1 and world.state == "joined")
    assert world.made._leaving == ""


# -- what keeps it from beginning --------------------------------------------------------------------------------------


def test_what_does_not_go_together_or_can_not_begin_is_said(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "ask_for_more", lambda: None)
    logs: list[Path] = []
    home = world.folder / "node"
    pinned, bare = str(Token("0123abcd", "x" * 43, "ab" * 32)), str(Token("0123abcd", "x" * 43))
    with pytest.raises(InputError, match=f"give https instead of {URL}"):
        join(JoinOptions(home, URL, pinned), logs.append)
    assert logs == []

    def fails() -> int:
        raise ExecutorError("no runner")

    run: list[Callable[[], int]] = [lambda: 7]
    made = SimpleNamespace(home=SimpleNamespace(log=home / "node.log"), run=lambda: run[0]())
    monkeypatch.setattr(process, "NodeProcess", lambda options: made)
    assert join(JoinOptions(home, URL, bare), logs.append) == 7
    assert join(JoinOptions(home, "https://head", pinned), logs.append) == 7
    run[0] = fails
    with pytest.raises(GpuloomError, match="the node can't begin: no runner"):
        join(JoinOptions(home, URL, bare), logs.append)
    assert logs == [home / "node.log"] * 3


def test_whatever_ends_it_signals_are_handled_as_before(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(home: Path) -> None:
        raise ExecutorError("no guard")

    monkeypatch.setattr(process, "ensure_guard", fails)
    world.begin()
    assert str(world.end()) == "no guard"
    assert world.state == "joining"
    assert world.handlers == dict.fromkeys((signal.SIGTERM, signal.SIGINT))
