"""A start that takes long says what it is at, and what helps."""

from __future__ import annotations

import queue
import threading
from pathlib import Path

import pytest

from fake_executor import FakeExecutor
from gpuloom.executors.port import OnStatus
from gpuloom.live.parts import LiveScheduler
from gpuloom.live.steps import Start, Step
from gpuloom.store.home import home_of


def test_every_step_that_takes_long_is_told_once_and_then_now_and_then() -> None:
    said: queue.SimpleQueue[str] = queue.SimpleQueue()
    with Start(said.put, within_s=0.05, again_s=0.05) as start:
        for step in Step:
            start.at(step)
            while step.doing not in (text := said.get(timeout=30.0)):
                continue
            assert step.help in text
            assert text.startswith("not ready after ")
        again = said.get(timeout=30.0)
        assert list(Step)[-1].doing in again


def test_a_start_that_is_quick_says_nothing() -> None:
    said: list[str] = []
    with Start(said.append, within_s=600.0) as start:
        start.at(Step.STORE)
        start.done()
    assert said == []


def test_a_runner_that_does_not_answer_is_named_while_it_is_waited_for(tmp_path: Path) -> None:
    class Slow(FakeExecutor):
        go_on = threading.Event()

        def open(self, on_status: OnStatus, **bounds: float) -> None:
            assert self.go_on.wait(60.0)
            super().open(on_status)

    executor, said = Slow(), queue.SimpleQueue[str]()
    with Start(said.put, within_s=0.2, again_s=600.0) as start:
        live = LiveScheduler(home_of(tmp_path), slots=1, executor=executor, at=start.at)
        beginning = threading.Thread(target=live.start)
        beginning.start()
        while Step.RUNNER.doing not in said.get(timeout=30.0):
            continue
        executor.go_on.set()
        beginning.join(60.0)
        start.done()
    live.close()


@pytest.mark.parametrize("step", Step)
def test_each_step_says_what_helps(step: Step) -> None:
    assert step.doing
    assert step.help
