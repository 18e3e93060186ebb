"""Nested intervals of a training thread: each counts its exclusive time, and listeners hear of all of them."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest

from hooks_kit import Clock, anew, stages


class Heard:
    """Notes what it is told, and takes its time in `begin`."""

    def __init__(self, clock: Clock, waits: int = 0) -> None:
        self.clock, self.waits, self.told = clock, waits, list[str]()

    def begin(self, resource: int) -> None:
        self.told.append(f"({resource}")
        self.clock.now += self.waits

    def end(self, resource: int) -> None:
        self.told.append(f"{resource})")

    def iteration(self) -> None:
        self.told.append("i")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return anew(monkeypatch)


@pytest.fixture
def rows(clock: Clock) -> list[tuple[int, dict[str, int], int]]:
    found: list[tuple[int, dict[str, int], int]] = []
    names = ("storage", "cpu", "gpu", "network", "wait", "rest", "turn")

    def sink(took: int, ns: list[int], count: int) -> None:
        found.append((took, {name: each for name, each in zip(names, ns, strict=True) if each}, count))

    stages.sinks.append(sink)
    return found


def test_each_interval_counts_its_exclusive_time(clock: Clock, rows: list[Any]) -> None:
    line = stages.thread()
    line.iteration()
    clock.now += 5
    line.data_begins()
    clock.now += 30
    line.fetched(20, 4, 1)
    line.data_ends(True)
    clock.now += 7  # forward: in no interval that anybody begins
    line.begin(stages.GPU, stages.GPU)
    clock.now += 10
    line.begin(stages.NETWORK, stages.NETWORK)
    clock.now += 3
    line.end()
    clock.now += 2
    line.end()
    line.iteration()
    assert rows[0] == (0, {}, 1)  # when it began was not seen
    assert rows[1] == (57, {"storage": 20, "cpu": 4, "wait": 5, "gpu": 19, "network": 3, "rest": 6}, 1)
    assert line.iterations == 2


def test_what_most_of_a_wait_was_for_is_what_the_next_one_is_for(clock: Clock, rows: list[Any]) -> None:
    line = stages.thread()
    for storage, cpu, load in ((4, 20, stages.CPU), (20, 4, stages.STORAGE)):
        line.data_begins()
        clock.now += 30
        line.fetched(storage, cpu)
        line.data_ends(True)
        assert line.load == load


def test_no_computing_follows_where_there_was_no_batch(clock: Clock, rows: list[Any]) -> None:
    line = stages.thread()
    line.data_begins()
    clock.now += 3
    line.data_ends(False)
    clock.now += 8
    line.iteration()
    assert rows == [(0, {"wait": 3, "rest": 8}, 1)]


def test_computing_ends_with_the_step_and_with_the_next_batch(clock: Clock, rows: list[Any]) -> None:
    heard = Heard(clock)
    stages.listeners.append(heard)
    line = stages.thread()
    for _ in range(2):
        line.data_begins()
        line.data_ends(True)
        clock.now += 4
    line.iteration()
    clock.now += 9
    line.iteration()
    assert [row[1] for row in rows] == [{"gpu": 8}, {"rest": 9}]
    assert "".join(heard.told) == "(00)(22)(00)(22)ii"


def test_a_backward_within_a_step_is_nested(clock: Clock, rows: list[Any]) -> None:
    """As Lightning does it: the step runs forward and backward in its closure."""
    heard = Heard(clock)
    stages.listeners.append(heard)
    line = stages.thread()
    line.data_begins()
    line.data_ends(True)
    line.begin(stages.GPU, stages.GPU, tag=1)
    clock.now += 1
    line.begin(stages.GPU, stages.GPU)
    clock.now += 2
    line.end()
    line.end_of(1)
    line.iteration()
    assert rows[0][1] == {"gpu": 3}
    assert "".join(heard.told) == "(00)(2(2(22)2)2)i"


def test_waiting_for_a_turn_is_no_time_of_the_stage(clock: Clock, rows: list[Any]) -> None:
    stages.listeners.append(Heard(clock, waits=50))
    line = stages.thread()
    line.begin(stages.NETWORK, stages.NETWORK)
    clock.now += 3
    line.end()
    line.iteration()
    assert rows[0][1] == {"network": 3, "turn": 50}


def test_a_step_whose_end_was_not_seen_ends_with_the_next(clock: Clock, rows: list[Any]) -> None:
    line = stages.thread()
    for _ in range(stages.DEEPEST * 2):
        line.begin(stages.GPU, stages.GPU, tag=1)  # out of memory, say: the hook after it is not called
    assert len(line.stack) == 1
    for at in range(stages.DEEPEST * 2):
        line.begin(stages.CPU, stages.CPU, tag=at)
    assert len(line.stack) <= stages.DEEPEST
    line.end_of("never begun")
    for _ in range(stages.DEEPEST + 1):
        line.end()
    assert line.stack == []


def test_a_listener_that_fails_is_left_out_and_the_others_go_on(clock: Clock, rows: list[Any]) -> None:
    class Broken(Heard):
        def end(self, resource: int) -> None:
            raise ValueError("broken")

    broken, sound = Broken(clock), Heard(clock)
    stages.listeners += [broken, sound]
    stages.sinks.insert(0, lambda took, ns, count: 1 // 0)
    line = stages.thread()
    for _ in range(2):
        line.begin(stages.GPU, stages.GPU)
        line.end()
        line.iteration()
    assert broken.told == ["(2"]
    assert "".join(sound.told) == "(22)i(22)i"
    assert len(rows) == 2


def test_the_thread_that_steps_is_the_one_that_counts(clock: Clock) -> None:
    first = stages.thread()
    assert first is not None
    other: list[Any] = []

    def train() -> None:
        other.extend((stages.thread(), stages.thread(steps=True), stages.thread()))

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    assert other[0] is None
    assert other[1] is other[2] is not None
    assert stages.thread() is None


def test_a_forked_child_begins_anew(clock: Clock) -> None:
    line = stages.thread()
    line.begin(stages.GPU, stages.GPU)
    child = os.fork()
    if child == 0:
        found = stages.thread()
        os._exit(0 if found is not None and found is not line and not found.stack else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(line.stack) == 1
