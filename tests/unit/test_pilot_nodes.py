"""What the controller of pilots is told of the scheduler, and what it has it do."""

from __future__ import annotations

from typing import Any

import pytest

from gpuloom.core.job import NodeState
from gpuloom.live.pilot_nodes import SchedulerNodes, wanted_of
from gpuloom.live.planning.scene import Coming
from gpuloom.slurm.pilots import Use
from gpuloom.store.errors import StoreError
from rehearsed_nodes import Cluster


class Above(Cluster):
    """A scheduler with pilots' nodes; the two GPUs of its own machine are closed."""

    def __init__(self, *names: str, policy: str = "fifo") -> None:
        super().__init__(*names, policy=policy)
        self.tell(lambda: self.service.set_node("here", NodeState.CORDONED))
        self.gone: list[tuple[str, str]] = []
        self.above = SchedulerNodes(self.scheduler, self.sights, lambda name, why: self.gone.append((name, why)))


def test_jobs_that_could_start_and_gpus_that_could_be_given() -> None:
    it = Above("a", "b")
    runs, wide, waits = it.submit({"gpus": 3, "grace": 90.0}, {"gpus": 4, "grace": 40.0}, {"gpus": 4})
    it.submit({"gpus": 2, "after": [waits]}, {"gpus": 2, "hold": True})
    found = it.above.wanted()
    assert found.waiting == {waits: 4}, "neither what waits for another nor what is held"
    assert found.nodes == {
        "here": Use(0, stay=set()),
        "a": Use(1, {runs: 3}, 90.0, stay=set()),
        "b": Use(0, {wide: 4}, 40.0, stay=set()),
    }


def test_a_part_of_a_gang_counts_with_all_of_its_gpus() -> None:
    it = Above("a", "b")
    small, gang = it.submit({"gpus": 1, "grace": 50.0, "on_preempt": "never"}, {"gpus": 7, "grace": 40.0})
    assert it.states(small, gang) == ["running", "running"]
    found = it.above.wanted().nodes
    assert found["a"] == Use(0, {small: 1, gang: 7}, 40.0, stay={small})
    assert found["b"] == Use(0, {gang: 7}, 40.0, stay=set())


def test_gpus_that_are_given_but_not_taken_yet_are_not_free() -> None:
    it = Above("a", policy="srtf")
    it.machines["a"].obedient = False
    long = it.submit({"gpus": 4, "estimate": 10_000})[0]
    (short,) = it.submit({"gpus": 3, "estimate": 10})
    it.later(700.0)
    assert it.states(long, short) == ["stopping", "queued"]
    use = it.above.wanted().nodes["a"]
    assert (use.free, use.jobs) == (0, {long: 4, short: 3})


def test_of_a_node_that_is_cut_closed_or_down_nothing_can_be_given() -> None:
    it = Above("a", "b", "c")
    it.scheduler.arrivals.cut("a", "its link is cut")
    it.tell(lambda: it.service.set_node("b", NodeState.DRAINING))
    it.lose("c")
    found = it.above.wanted().nodes
    assert {name: use.free for name, use in found.items()} == {"here": 0, "a": 0, "b": 0}


def test_what_is_frozen_holds_its_node_and_not_its_gpus() -> None:
    it = Above("a", policy="srtf")
    long = it.submit({"gpus": 4, "estimate": 10_000, "on_preempt": "freeze", "grace": 70.0})[0]
    (short,) = it.submit({"gpus": 4, "estimate": 10})
    it.later(700.0)
    assert it.states(long, short) == ["frozen", "running"]
    use = it.above.wanted().nodes["a"]
    assert (use.free, use.jobs, use.grace_s) == (0, {long: 4, short: 4}, 70.0)


def test_what_it_is_told_of_a_node_is_done() -> None:
    it = Above("a")
    it.above.ours_until("a", it.now_s + 500.0, "77")
    it.turn()
    use = it.above.wanted().nodes["a"]
    assert (use.engine_job, use.until_s) == ("77", it.now_s + 500.0)
    it.above.closes("a", "its allocation ends")
    it.turn()
    assert it.nodes()["a"] == ("draining", "its allocation ends")
    it.above.comes(Coming(3600.0, "Slurm asks for patience"))
    assert it.scheduler.planning.scene.coming == Coming(3600.0, "Slurm asks for patience")
    it.above.gone("a", "Slurm says so")
    assert it.gone == [("a", "Slurm says so")]


@pytest.mark.parametrize(
    ("joined", "answers"), [(lambda s: False, False), (lambda s: True, True), (lambda s: _not_begun(), False)]
)
def test_a_scheduler_that_does_not_answer_is_not_guessed_about_unless_it_has_ended(
    joined: Any, answers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    it = Above("a")
    before = wanted_of(it.scheduler, ())

    def busy(call: Any) -> Any:
        raise StoreError("a decision takes long")

    monkeypatch.setattr(it.scheduler, "do", busy)
    monkeypatch.setattr(it.scheduler, "join", joined)
    if answers:
        assert it.above.wanted() == before
    else:
        with pytest.raises(StoreError, match="a decision takes long"):
            it.above.wanted()


def _not_begun() -> bool:
    raise RuntimeError("cannot join thread before it is started")
