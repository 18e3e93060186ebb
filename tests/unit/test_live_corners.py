"""Corners of the live scheduler's parts, each on its own."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fake_nvml import FakeNvml
from gpuloom.agent.inventory import inventory
from gpuloom.agent.looking import Looker
from gpuloom.agent.monitor import Monitor
from gpuloom.agent.nvml import Nvml
from gpuloom.agent.sample import NodeRates, Sample
from gpuloom.core.end_reason import EndReason
from gpuloom.core.events import Event
from gpuloom.core.job import Attempt, Phase
from gpuloom.core.spec import OnPreempt
from gpuloom.core.usage import RunUsage
from gpuloom.live.dispatch.dispatch import FREEZE_S, SUSPEND_S, Dispatch
from gpuloom.live.planning.world import Placed, World
from gpuloom.live.sights import Sights
from gpuloom.live.submission.submitting import _digest, _grouped
from gpuloom.live.views.jobs import event_view
from live_builders import living, spec
from until import until


def watched(freezing: dict[int, float], now: float, refused: Sequence[int] = ()) -> Any:
    """What looking after freezes leaves of a dispatch."""

    def end(jobs: Sequence[int], reason: EndReason, now: float) -> None:
        for job in jobs:
            del freezing[job]

    jobs = {
        7: SimpleNamespace(spec=SimpleNamespace(on_preempt=OnPreempt.FREEZE)),
        8: SimpleNamespace(spec=SimpleNamespace(on_preempt=OnPreempt.SUSPEND)),
    }
    dispatch: Any = SimpleNamespace(
        claims=SimpleNamespace(freezing=lambda: freezing), retry_s=math.inf, _end=end, refused=set(refused),
        book=SimpleNamespace(jobs=jobs),
    )  # fmt: skip
    Dispatch.watch_freezes(dispatch, now)
    return dispatch


def test_who_was_told_to_freeze_is_looked_at_again_when_that_must_be_done() -> None:
    assert watched({7: 98.0}, 100.0).retry_s == 98.0 + FREEZE_S
    assert watched({7: 80.0}, 100.0).retry_s == math.inf  # it is told to end
    assert watched({}, 100.0).retry_s == math.inf
    assert watched({8: 40.0}, 100.0).retry_s == 40.0 + SUSPEND_S  # memory takes its time
    assert watched({7: 98.0, 8: 98.0}, 100.0).retry_s == 98.0 + FREEZE_S
    could_not: dict[int, float] = {8: 99.0}
    assert watched(could_not, 100.0, [8]).refused == set()
    assert could_not == {}


def test_an_event_is_shown_whole() -> None:
    event = Event(7, 12.5, "job.held", 3, {"by": "ada"})
    assert event_view(event) == {"id": 7, "at_s": 12.5, "type": "job.held", "job": 3, "data": {"by": "ada"}}


def test_the_newest_look_at_a_node_is_what_is_shown_until_it_is_gone(tmp_path: Path) -> None:
    nvml = Nvml(FakeNvml())
    machine = Looker(inventory(slots=2, nvml=nvml), nvml, disk=tmp_path)
    sights = Sights()
    try:
        assert sights.of("a").sample is None
        machine.look(dict, lambda sample, changes: sights.saw("a", sample, changes.notes))
        assert (sample := sights.of("a").sample) is not None
        assert sample.node.memory_used_mib > 0
        sights.forget("a")
        assert sights.of("a").sample is None
    finally:
        machine.stop()


def test_this_machine_is_looked_at_from_the_start(tmp_path: Path) -> None:
    with living(tmp_path / "home") as live:
        live.until(lambda: live.parts.sights.of(live.scheduler.here).sample is not None)


def test_the_rates_of_a_gang_are_those_of_its_members_together() -> None:
    gang = Attempt(1, 1, Phase.RUNNING, (("a", (0,)), ("b", (1,))), 0.0, 0.0, identity="x")
    rates = NodeRates(None, 1.0, 2.0, 0.0, None, None, None)
    sights = Sights()
    assert sights.usage(gang) is None
    first = RunUsage("1.1-x", cpu_cores=1.0, memory_mib=5.0, gpu_utilization=40.0)
    sights.saw("a", Sample(1.0, rates, runs={"1.1-x": first}), {})
    assert sights.usage(gang) == first
    other = RunUsage("1.1.1-x", cpu_cores=2.5, gpu_utilization=80.0, progress={"step": 3})
    sights.saw("b", Sample(1.0, rates, runs={"1.1.1-x": other, "1.1-x": replace(other, cpu_cores=99.0)}), {})
    both = RunUsage("1.1-x", cpu_cores=3.5, memory_mib=5.0, gpu_utilization=60.0, progress={"step": 3})
    assert sights.usage(gang) == both


def test_traffic_is_counted_per_second_of_each_direction(monkeypatch: pytest.MonkeyPatch) -> None:
    mib = 1 << 20
    counters = [
        SimpleNamespace(bytes_recv=received * mib, bytes_sent=sent * mib) for received, sent in ((5, 9), (25, 13))
    ]
    times = iter((10.0, 14.0))
    looks = iter(counters)
    monkeypatch.setattr("psutil.net_io_counters", lambda **_: {"eth0": next(looks)})
    nvml = Nvml(FakeNvml())
    monitor = Monitor(inventory(slots=1, nvml=nvml), nvml, disk_path="/")
    monkeypatch.setattr(monitor, "_monotonic", lambda: next(times))
    assert monitor._traffic() == (None, None)
    assert monitor._traffic() == (5.0, 1.0)


def test_a_submission_that_comes_again_is_told_the_same_numbers_by_spec() -> None:
    specs = [spec(), spec(array="0-2"), spec(), spec(array="5,9")]
    assert _grouped(specs, range(7, 14)) == [[7], [8, 9, 10], [11], [12, 13]]
    assert _digest(specs, "ann") == _digest([spec(), spec(array="0-2"), spec(), spec(array="5,9")], "ann")
    others = _digest(specs, "bob"), _digest(specs[::-1], "ann"), _digest(specs[:3], "ann")
    assert len({_digest(specs, "ann"), *others}) == 4


def test_a_check_of_the_machine_that_fails_is_told_until_one_works(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    nvml = Nvml(FakeNvml())
    machine = Looker(inventory(slots=2, nvml=nvml), nvml, disk=Path("/"), every_s=0.005)
    well, looks = threading.Event(), []

    def look(*_: Any) -> None:
        looks.append(well.is_set())
        if not well.is_set():
            raise OSError("no /proc")

    monkeypatch.setattr(machine, "look", look)
    machine.start(dict, lambda sample, changes: None)
    try:
        until(lambda: len(looks) > 2)
        assert "could not be checked: OSError: no /proc" in machine.problem
        assert len([one for one in caplog.records if "could not be checked" in one.getMessage()]) == 1, "once, not each"
        well.set()
        until(lambda: looks[-1:] == [True] and len(looks) > 4)
        until(lambda: not machine.problem, "the problem to be over")
    finally:
        machine.stop()


@pytest.mark.parametrize(("there", "taken", "told"), [(True, False, True), (True, True, False), (False, False, False)])
def test_of_the_ended_those_whose_gpus_are_there_and_nobody_else_s_are_told_as_ends(
    there: bool, taken: bool, told: bool
) -> None:
    gpus = Placed((("a", (0,)),), 0.0, 10.0, 1.0)
    fleet = SimpleNamespace(placement=lambda found: found if there else None)
    world: Any = SimpleNamespace(fleet=fleet)
    assert (World._whole(world, {1: gpus}, {2: gpus} if taken else {}) == {1: gpus}) is told


def test_how_fast_two_are_together_is_known_where_both_have_gpus() -> None:
    place = SimpleNamespace(layer=1, nodes=(0,))
    sharing = SimpleNamespace(source=lambda row, there, model: f"{row} beside {there} on {model}")
    cluster = SimpleNamespace(nodes=[SimpleNamespace(gpu_model="V100")])
    world: Any = SimpleNamespace(
        row_of={7: 0, 8: 1}, state=SimpleNamespace(placements={0: place, 1: place}),
        progress=SimpleNamespace(sharing=sharing), fleet=SimpleNamespace(cluster=cluster),
    )  # fmt: skip
    assert World.source(world, 7, [8]) == "0 beside [(1, 1)] on V100"
    assert World.source(world, 7, [9]) is None
    del world.state.placements[1]
    assert World.source(world, 7, [8]) is None
    assert World.source(world, 8, [7]) is None
    world.progress.sharing = None
    assert World.source(world, 7, []) is None
