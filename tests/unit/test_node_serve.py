"""What a node does with what its head says, and what it tells: frames by hand, runs that are no processes."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fake_head import Wire
from fake_node import FakeLooker, FakeMachine, FakeNode
from gpuloom.agent.health import Changes, Flag
from gpuloom.agent.sample import RunOnNode
from gpuloom.core.end_reason import EndReason
from gpuloom.core.job import Gpu, GpuState, NodeRecord
from gpuloom.executors.lease import LeaseFile, boottime_ns
from gpuloom.executors.local_files import run_directory
from gpuloom.executors.node import RunSpec
from gpuloom.executors.port import ExecutorError, RunPhase, RunStatus
from gpuloom.fleet.channel import Channel
from gpuloom.fleet.codec import plain
from gpuloom.fleet.messages import Acknowledge, Clear, Freeze, Go, HeadSays, Leave, Limit, Start, Stop, Thaw, data_of
from gpuloom.node.serve import Served
from until import until

RUN, OTHER = "1.1-a", "2.1-b"
GPUS = (Gpu(0, "u-0", "V100"), Gpu(1, "u-1", "V100"))
RECORD = NodeRecord("n1", GPUS)


def spec(run: str = RUN, **more: Any) -> RunSpec:
    return RunSpec(run, ("true",), "/", {}, (0,), ("u-0",), **more)


class Here:
    """A machine that is served to a head, whose words are said by hand. left: with what it was told to leave."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.node = FakeNode("n1", FakeMachine("n1"))
        self.machine = self.node.machine
        self.looker: Any = FakeLooker()
        self.lease = LeaseFile(str(home))
        self.lease.make()
        self.left: list[str] = []
        self.channel = Channel("the head")
        self.served = Served(RECORD, self.node, self.looker, home / "runs", self.lease, self.channel, self.left.append)
        self.wire = Wire()
        self.said = 0

    def open(self) -> Here:
        self.lease.extend(boottime_ns() + 10**12)
        self.served.open()
        return self

    def session(self, name: str = "s", *, fenced: bool = False) -> Wire:
        """A session begins, over a connection of its own."""
        self.channel.detach()
        self.wire, self.said = Wire(), 0
        self.served.begin(name, fenced=fenced)
        self.channel.attach(self.wire, 0)
        return self.wire

    def say(self, *messages: HeadSays | dict[str, Any]) -> None:
        """The head says this, and it is done."""
        for message in messages:
            self.said += 1
            data = message if isinstance(message, dict) else data_of(message)
            self.served.take(self.wire, {"n": self.said, "m": data, "ack": 0})  # type: ignore[arg-type]
        until(lambda: self.dealt == self.said, "all of it to be done")

    @property
    def dealt(self) -> int:
        """How many of the head's messages were dealt with."""
        self.channel.say({})
        number: int = self.wire.frames.pop()["ack"]
        return number

    def ask(self, what: str, **arguments: Any) -> dict[str, Any]:
        """A question of the head, and the answer."""
        self.served.take(self.wire, {"ask": 5, "what": what, "with": arguments})  # type: ignore[arg-type]
        found: dict[str, Any] = until(lambda: next((one for one in self.wire.frames if one.get("reply") == 5), None))
        return found

    def told(self, kind: str) -> list[dict[str, Any]]:
        """What it told the head of this kind in this session."""
        return [message for message in self.wire.messages if message["kind"] == kind]


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Here]:
    here = Here(tmp_path)
    yield here
    here.served.close()


def test_a_session_begins_with_all_that_there_is(here: Here) -> None:
    here.machine.start(spec())
    assert here.open().served.alive() == [RUN], "taken up before any head asks"
    here.session(fenced=True)
    (joined,) = here.wire.messages
    assert joined == {
        "kind": "joined",
        "record": plain(RECORD),
        "runs": [plain(here.machine.states[RUN])],
        "capabilities": plain(here.node.can),
        "limits": {"processes": "fake"},
        "healthy": "",
        "fenced": True,
    }
    assert here.channel.session == "s"
    here.looker.notes = {1: ("hot",)}
    here.looker.look(Changes(flags=(Flag(RUN, "idle", "does nothing"),)))
    here.session("t")
    assert here.channel.session == "t"
    assert here.wire.kinds == ["joined", "sampled", "flagged"]
    assert here.told("joined")[0]["fenced"] is False
    assert here.told("sampled")[0]["notes"] == {"1": ["hot"]}
    assert here.told("flagged") == [{"kind": "flagged", "run": RUN, "flag": "idle", "text": "does nothing"}]


def test_what_changes_before_a_session_begins_is_in_its_first_message_and_told_once(here: Here) -> None:
    here.open()
    here.machine.start(spec())
    here.looker.look(Changes(flags=(Flag(RUN, "idle", "does nothing"),), gpus=(replace(GPUS[0], reason="hot"),)))
    assert len(here.channel) == 0
    here.session()
    assert here.wire.kinds == ["joined", "sampled", "flagged"]
    assert [one["phase"] for one in here.told("joined")[0]["runs"]] == ["running"]
    assert here.told("joined")[0]["record"]["gpus"][0]["reason"] == "hot"


def test_what_changes_while_a_session_begins_is_told_after_it(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that ends after the runs were listed; one that was listed as ended is not told again; a new one is."""
    here.open()
    for run in (RUN, OTHER):
        here.machine.start(spec(run))
    listed, late = here.node.runs, RunStatus("3.1-c", RunPhase.RUNNING, 5, 6, "boot")

    def runs() -> list[RunStatus]:
        here.machine.end(OTHER, 0)
        found = list(listed())
        here.served._status(found[1])
        here.served._status(late)
        here.machine.end(RUN, 7)
        return found

    monkeypatch.setattr(here.node, "runs", runs)
    here.session()
    assert [(one["run"], one["phase"]) for one in here.told("joined")[0]["runs"]] == [
        (RUN, "running"), (OTHER, "exited"),
    ]  # fmt: skip
    said = [(one["status"]["run"], one["status"]["phase"]) for one in here.told("status")]
    assert said == [("3.1-c", "running"), (RUN, "exited")]
    assert here.served.alive() == ["3.1-c"]
    assert sorted(here.served.unsettled()) == [RUN, OTHER, "3.1-c"]


def test_what_is_not_there_any_more_as_a_session_begins_is_forgotten(here: Here) -> None:
    here.machine.start(spec())
    here.open().session()
    del here.machine.states[RUN]
    here.session("t")
    assert (here.told("joined")[0]["runs"], here.served.alive(), here.served.unsettled()) == ([], [], [])


def test_what_is_wrong_as_a_session_begins_is_said_once(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    here.open()
    monkeypatch.setattr(here.node, "healthy", lambda: "the runner is gone")
    here.session()
    here.looker.look()
    assert here.told("joined")[0]["healthy"] == "the runner is gone"
    assert here.told("health") == []
    monkeypatch.setattr(here.node, "healthy", lambda: "")
    here.looker.look()
    assert [one["text"] for one in here.told("health")] == [""]


def test_what_the_head_says_is_done_in_order(here: Here) -> None:
    here.open().session()
    held = spec(hold=True)
    here.say(Start(held), Go(RUN), Freeze(RUN), Thaw(RUN), Limit(RUN, 7.5), Stop(RUN, EndReason.PREEMPTED, 3.0))
    assert here.node.calls == [(what, RUN) for what in ("start", "go", "freeze", "thaw", "limit", "stop")]
    assert here.machine.specs == {RUN: held}
    assert here.machine.limits == {RUN: 7.5}
    assert here.machine.stops == {RUN: (EndReason.PREEMPTED, 3.0)}
    phases = ["prepared", "running", "frozen", "running", "exited"]
    assert [one["status"]["phase"] for one in here.told("status")] == phases
    here.say(Leave("its user said so"))
    assert here.left == ["its user said so"]


def test_an_end_that_the_head_has_noted_is_forgotten_with_its_flags(here: Here) -> None:
    here.open().session()
    here.say(Start(spec()), Start(spec(OTHER)))
    here.looker.look(Changes(flags=(Flag(RUN, "idle", "x"), Flag(OTHER, "idle", "y"))))
    here.machine.end(RUN, 0)
    assert (here.served.alive(), here.served.unsettled()) == ([OTHER], [RUN, OTHER])
    here.say(Acknowledge(RUN))
    assert here.served.unsettled() == [OTHER]
    assert here.machine.acknowledged == [RUN]
    here.session("t")
    assert [one["run"] for one in here.told("flagged")] == [OTHER]


def test_what_was_said_in_a_session_before_is_not_done(here: Here) -> None:
    """The head has been told since what there is, and says again what it still wants."""
    here.open().session()
    here.served._commands.put(("before", 1, data_of(Start(spec()))))
    here.say(Start(spec(OTHER)))
    assert here.node.calls == [("start", OTHER)]


def test_nothing_starts_before_the_lease_was_put_off(here: Here) -> None:
    here.served.open()
    here.session()
    wire: Any = here.wire
    here.served.take(wire, {"n": 1, "m": data_of(Start(spec())), "ack": 0})
    assert here.dealt == 0
    here.lease.extend(boottime_ns() + 10**12)
    until(lambda: here.dealt == 1)
    assert here.machine.ran == [RUN]


def test_a_start_that_waits_for_the_lease_ends_with_its_session(here: Here) -> None:
    here.served.open()
    wire: Any = here.session()
    here.served.take(wire, {"n": 1, "m": data_of(Start(spec())), "ack": 0})
    here.session("t")
    here.lease.extend(boottime_ns() + 10**12)
    here.said = 0
    here.say(Start(spec(OTHER)))
    assert here.machine.ran == [OTHER]


def test_a_lease_that_can_not_be_read_starts_nothing(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    here.open().session()

    def fails() -> bool:
        raise OSError("no handles")

    wire: Any = here.wire
    with monkeypatch.context() as patch:
        patch.setattr(here.lease, "over", fails)
        here.served.take(wire, {"n": 1, "m": data_of(Start(spec())), "ack": 0})
        assert here.dealt == 0
    until(lambda: here.dealt == 1)
    assert here.machine.ran == [RUN]


def test_a_start_that_the_machine_refuses_is_told_as_its_end(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    here.open().session()

    def fails(spec: RunSpec) -> None:
        raise ExecutorError("the runner does not answer")

    monkeypatch.setattr(here.node, "start", fails)
    here.say(Start(spec()))
    (told,) = here.told("status")
    how = told["status"]["exit"]
    assert (told["status"]["run"], told["status"]["phase"]) == (RUN, "exited")
    assert (how["reason"], how["cause"], how["message"]) == ("not_started", "executor", "the runner does not answer")


def test_what_can_not_be_done_or_understood_is_passed_over(here: Here, caplog: pytest.LogCaptureFixture) -> None:
    here.open().session()
    here.node.broken = True
    with caplog.at_level(logging.ERROR, logger="gpuloom.node"):
        here.say({"kind": "dance"}, Go(RUN))
    assert "'dance' is no kind of message" in caplog.text
    assert "on purpose" in caplog.text
    here.node.broken = False
    here.say(Start(spec()))
    assert here.machine.ran == [RUN]


def test_questions_are_answered_at_once_but_what_runs_after_the_commands_before_it(here: Here) -> None:
    here.served.open()
    wire: Any = here.session()
    here.machine.logs[RUN] = b"hello"
    here.served.take(wire, {"n": 1, "m": data_of(Start(spec())), "ack": 0})
    here.served.take(wire, {"ask": 1, "what": "runs", "with": {}})
    assert here.ask("log_mark", run=RUN) | {"ack": 0} == {"reply": 5, "data": [5], "ack": 0}
    here.wire.frames.clear()
    assert here.ask("read_log", run="9.1", offset=0, tail_lines=None, max_bytes=10)["kind"] == "no-log"
    assert [frame for frame in here.wire.frames if frame.get("reply") == 1] == [], "a start waits for the lease"
    here.lease.extend(boottime_ns() + 10**12)
    (answer,) = until(lambda: [frame for frame in here.wire.frames if frame.get("reply") == 1])
    assert [one["run"] for one in answer["data"]] == [RUN]


def test_what_the_monitor_sees_is_told_as_it_changes(here: Here) -> None:
    here.open().session()
    here.looker.look(Changes(notes={0: ("warm",)}))
    here.looker.look(Changes(flags=(Flag(RUN, "idle", "does nothing"),)))
    here.looker.look(Changes(flags=(Flag(RUN, "idle", ""),)))
    here.node.broken = True
    here.looker.look()
    here.looker.look()
    broken = replace(GPUS[1], state=GpuState.UNHEALTHY, reason="lost")
    here.looker.look(Changes(gpus=(broken,)))
    assert [one["notes"] for one in here.told("sampled")][:2] == [{"0": ["warm"]}, {}]
    assert [one["text"] for one in here.told("flagged")] == ["does nothing", ""]
    assert [one["text"] for one in here.told("health")] == ["broken"], "once, as it does not change"
    assert [one["gpus"] for one in here.told("gpus")] == [[plain(GPUS[0]), plain(broken)]]
    here.node.broken = False
    here.session("t")
    assert here.told("joined")[0]["record"]["gpus"][1]["state"] == "unhealthy"
    assert here.told("flagged") == [], "what was taken back"
    here.looker.cleared = (GPUS[1],)
    here.say(Clear())
    assert [one["gpus"] for one in here.told("gpus")] == [plain(GPUS)]
    here.looker.cleared = ()
    here.say(Clear())
    assert len(here.told("gpus")) == 1


def test_while_the_link_is_cut_only_the_newest_of_what_is_seen_is_kept(here: Here) -> None:
    here.open().session()
    here.channel.detach()
    for _ in range(3):
        here.looker.look(Changes(gpus=GPUS, flags=(Flag(RUN, "idle", "x"), Flag(OTHER, "idle", "y"))))
    assert len(here.channel) == 1 + 1 + 2 + 1, "the first message, a sample, a flag for each run, the GPUs"


def test_the_monitor_watches_what_has_processes_with_the_gpus_that_it_got(here: Here) -> None:
    here.open().session()
    here.say(Start(spec()), Start(spec(OTHER)))
    folder = run_directory(here.home / "runs", RUN)
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({"gpu_uuids": ["u-1", "elsewhere"]}))
    pid = here.machine.states[RUN].pid
    other = RunOnNode(here.machine.states[OTHER].pid, 1, (), str(run_directory(here.home / "runs", OTHER)))
    assert here.looker.runs() == {RUN: RunOnNode(pid, 1, (1,), str(folder)), OTHER: other}
    here.say(Freeze(RUN))
    here.machine.end(OTHER, 0)
    assert here.looker.runs() == {RUN: RunOnNode(pid, 1, (1,), str(folder), frozen=True)}
    (folder / "run.json").write_text(json.dumps({"gpu_uuids": ["u-0"]}))
    here.machine._say(replace(here.machine.states[RUN], pid=77, phase=RunPhase.RUNNING))
    assert here.looker.runs() == {RUN: RunOnNode(77, 1, (0,), str(folder))}, "another process: looked up anew"
    here.machine._say(replace(here.machine.states[RUN], pid=None))
    assert here.looker.runs() == {}


def test_all_that_runs_is_ended_at_once_when_it_leaves_now(here: Here) -> None:
    here.open().session()
    here.say(Start(spec()), Start(spec(OTHER)))
    here.machine.end(OTHER, 0)
    here.served.stop_all("the node leaves now")
    assert here.machine.stops == {RUN: (EndReason.NODE, 0.0)}
    here.served.say_leaving("so")
    here.served.say_left("and so")
    assert here.wire.messages[-2:] == [{"kind": "leaving", "why": "so"}, {"kind": "left", "why": "and so"}]


def test_closed_it_looks_and_listens_no_more_and_runs_go_on(here: Here) -> None:
    here.open().session()
    here.say(Start(spec()))
    here.served.close()
    assert here.looker.stopped
    assert here.node._on_status is None
    assert here.machine.alive() == {RUN}


def test_closed_it_waits_for_no_disk_and_no_lease(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    here.served.open()
    wire: Any = here.session()
    asked, mended = threading.Event(), threading.Event()

    def stuck(run: str) -> tuple[int, ...]:
        asked.set()
        mended.wait(60.0)
        return ()

    monkeypatch.setattr(here.node.disk, "log_mark", stuck)
    here.served.take(wire, {"ask": 1, "what": "log_mark", "with": {"run": RUN}})
    here.served.take(wire, {"n": 1, "m": data_of(Start(spec())), "ack": 0})
    assert asked.wait(60.0)
    here.served.close()
    assert not here.served._worker.alive
    assert not mended.is_set()
    mended.set()
    assert here.machine.ran == []
