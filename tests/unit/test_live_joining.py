"""From the register of nodes to the scheduler: what is said of nodes arrives, in its order, whatever nodes answer."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from fake_node import SAMPLE, FakeMachine, FakeNode
from gpuloom.agent.health import Changes, Flag
from gpuloom.core.job import Gpu, GpuState, NodeRecord, NodeSource
from gpuloom.live import joining
from gpuloom.live.joining import Joining
from rehearsed_nodes import Cluster
from until import until

GPUS = tuple(Gpu(index, f"a-{index}", "V100", 16_000) for index in range(4))
RECORD = NodeRecord("a", GPUS, source=NodeSource.JOINED, address="a")


class Port(FakeNode):
    """A node that joined. clears: how often a person has said that its GPUs are well."""

    clears = 0

    def clear(self) -> None:
        self.clears += 1


class Heads(Cluster):
    """A head, and what stands between it and its register."""

    def __init__(self) -> None:
        super().__init__()
        self.joining = Joining(self.scheduler, self.scheduler.gangs, self.sights)

    def port(self) -> Any:
        """Node a, as it joins once more."""
        return Port("a", self.machines.setdefault("a", FakeMachine("a")))

    def passed(self, count: int = 1) -> None:
        """So many words of the register have come to the scheduler, and it has done what they mean."""
        until(lambda: self.scheduler._inbox.qsize() >= count)
        self.turn()

    def comes(self) -> Any:
        """Node a joins, and is met."""
        port = self.port()
        self.joining.joined(port, RECORD, ())
        self.passed()
        return port


@pytest.fixture
def it(monkeypatch: pytest.MonkeyPatch) -> Iterator[Heads]:
    monkeypatch.setattr(joining, "AGAIN_S", 0.005)
    it = Heads()
    it.joining.start()
    yield it
    it.joining.close()


def test_a_node_that_joins_is_met_and_gets_jobs(it: Heads) -> None:
    it.submit({"gpus": 2})
    (job,) = it.submit({"gpus": 2})
    it.comes()
    assert it.nodes()["a"] == ("up", "")
    assert it.where(job) == ["a:0,1"]
    assert it.joining.problem == ""


def test_what_the_register_says_of_it_is_passed_on(it: Heads) -> None:
    it.comes()
    it.joining.cut("a", "its link is cut")
    it.passed()
    assert it.sights.cut == {"a": "its link is cut"}
    it.joining.back("a")
    it.passed()
    assert it.sights.cut == {}
    it.joining.leaving("a", "its user said so")
    it.passed()
    assert it.nodes()["a"] == ("draining", "its user said so")
    it.joining.left("a")
    it.passed()
    assert it.nodes()["a"] == ("down", "it left")
    it.joining.stuck("a", "a run does not end")
    it.passed()
    assert it.nodes()["a"] == ("down", "a run does not end")
    it.comes()
    it.joining.lost("a", "nothing was heard of it")
    it.passed()
    assert it.nodes()["a"] == ("down", "nothing was heard of it")


def test_it_is_passed_on_in_order_also_while_a_node_is_met() -> None:
    it = Heads()
    it.joining.joined(it.port(), RECORD, ())
    it.joining.cut("a", "its link is cut")
    it.joining.start()
    it.passed(2)
    assert it.nodes()["a"] == ("up", "")
    assert it.sights.cut == {"a": "its link is cut"}, "it was cut after it had joined"
    it.joining.close()


def test_one_that_is_lost_before_it_was_met_is_not_met() -> None:
    it = Heads()
    port = it.port()
    it.joining.joined(port, RECORD, ())
    it.joining.lost("a", "gone")
    it.joining.start()
    it.passed()
    assert "a" not in it.nodes()
    assert port._on_status is None
    assert it.scheduler.gangs.nodes() == ("here",)
    it.joining.close()


def test_one_that_joins_anew_before_it_was_met_is_met_as_it_is_now() -> None:
    it = Heads()
    old, new = it.port(), it.port()
    it.joining.joined(old, RECORD, ())
    it.joining.joined(new, RECORD, ())
    it.joining.start()
    it.passed()
    assert old._on_status is None
    assert new._on_status is not None
    it.joining.close()


def test_one_that_can_not_be_asked_what_runs_there_is_asked_again(it: Heads, caplog: pytest.LogCaptureFixture) -> None:
    port = it.port()
    port.broken = True
    with caplog.at_level(logging.WARNING, logger="gpuloom.nodes"):
        it.joining.joined(port, RECORD, ())
        until(lambda: "node a has joined and can't be asked what runs there: node a is broken" in caplog.text)
        port.broken = False
        it.passed()
    assert it.nodes()["a"] == ("up", "")


def test_what_runs_on_a_node_that_the_records_know_is_taken_up_when_it_comes(it: Heads) -> None:
    it.comes()
    (job,) = it.submit({"gpus": 4})
    it.joining.close()
    it.restart(orderly=False)
    it.joining = Joining(it.scheduler, it.scheduler.gangs, it.sights)
    it.joining.start()
    assert it.states(job) == ["running"]
    it.machines["a"].end(it.machines["a"].ran[0], 0)
    it.comes()
    assert it.states(job) == ["finished"]
    assert it.asked("a") == [f"{job}.1"], "it ran once"


def test_of_a_node_that_the_records_know_and_that_runs_nothing_nothing_is_asked(
    it: Heads, monkeypatch: pytest.MonkeyPatch
) -> None:
    it.comes()
    it.submit({"gpus": 2})
    it.joining.close()
    it.restart(orderly=True)
    it.joining = Joining(it.scheduler, it.scheduler.gangs, it.sights)
    it.joining.start()
    asked: list[Any] = []
    runs = it.scheduler.gangs.runs
    monkeypatch.setattr(it.scheduler.gangs, "runs", lambda **how: asked.append(how) or runs(**how))
    it.comes()
    assert asked == []
    assert it.nodes()["a"] == ("up", "")


def test_what_a_monitor_saw_is_shown_and_its_notes_go_on(it: Heads) -> None:
    port = it.comes()
    (job,) = it.submit({"gpus": 4})
    it.joining.sampled("a", SAMPLE, Changes(notes={0: ("warm",)}))
    it.turn()
    assert (it.sights.of("a").sample, it.sights.of("a").notes) == (SAMPLE, {0: ("warm",)})
    run = port.machine.ran[0]
    it.joining.sampled("a", SAMPLE, Changes(flags=(Flag(run, "idle", "does nothing"),)))
    it.turn()
    assert it.service.job(job)["flags"] == {"idle": "does nothing"}
    assert it.sights.of("a").notes == {0: ("warm",)}, "a flag comes without notes"
    it.joining.sampled("a", SAMPLE, Changes(gpus=(Gpu(1, "a-1", "V100", 16_000, GpuState.UNHEALTHY, "lost"),)))
    it.turn()
    assert it.scheduler.book.nodes["a"].gpus[1].state is GpuState.UNHEALTHY
    assert it.sights.of("a").notes == {0: ("warm",)}
    it.joining.sampled("a", SAMPLE, Changes())
    assert it.sights.of("a").notes == {}


def test_a_person_s_word_reaches_the_node_while_it_is_there(it: Heads) -> None:
    assert it.joining.clear("a") is False
    port = it.comes()
    assert it.joining.clear("a") is True
    assert port.clears == 1
    it.joining.left("a")
    assert it.joining.clear("a") is False
    it.comes()
    it.joining.lost("a", "gone")
    assert it.joining.clear("a") is False


def test_closed_it_passes_on_nothing_more(it: Heads) -> None:
    it.comes()
    it.joining.close()
    it.joining.cut("a", "its link is cut")
    assert not it.joining._worker.alive
    it.turn()
    assert it.sights.cut == {}
