"""The simulator run on from a live engine's state."""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from builders import jobs
from gpuloom.core.cluster import parse_cluster
from gpuloom.core.commands import Command
from gpuloom.core.errors import InputError
from gpuloom.core.state import State
from gpuloom.core.workload import Workload
from gpuloom.engine.engine import Engine
from gpuloom.engine.progress import Progress
from gpuloom.facts.inputs import load_policy
from gpuloom.policies.memory import dump
from gpuloom.sim.compat import compat_mode
from gpuloom.sim.forward import Forecast, forward
from gpuloom.sim.simulator import Settings, Simulation
from gpuloom.traces.generate import GeneratorConfig, generate
from tiers import slow

STAGES = np.array([(3.0, 0.2, 0.1), (0.2, 3.0, 0.1), (0.2, 0.3, 3.0), (np.nan,) * 3])


class Nobody:
    """An executor that does nothing."""

    def apply(self, commands: Sequence[Command], now_s: float) -> None:
        return


class Live:
    """An engine of which time is told."""

    def __init__(self, text: str, workload: Workload, cluster: str, overhead_s: float = 0.0) -> None:
        self.policy = load_policy(text)
        nodes = parse_cluster(cluster)
        self.state = State(workload, nodes, layers=self.policy.max_jobs_per_gpu)
        sharing = self.policy.sharing(workload)
        self.progress = Progress(workload, nodes, np.full(len(workload), overhead_s), sharing)
        self.engine = Engine(self.state, self.policy, self.progress, Nobody())

    def ahead(self, now_s: float, **settings: Any) -> Forecast:
        return forward(self.state, self.policy, self.engine.memory, progress=self.progress, now_s=now_s, **settings)


def test_a_queue_of_known_lengths() -> None:
    live = Live("fifo", jobs([(0, 100, 4), (0, 50, 4), (0, 30, 4), (0, 20, 4)]), "1x4", overhead_s=5.0)
    live.engine.take_in(0.0, arrived=[0, 1, 2])
    live.engine.decide(0.0)
    found = live.ahead(40.0)
    assert found.start_s.tolist() == [0.0, 105.0, 160.0, math.inf]
    assert found.end_s.tolist() == [105.0, 160.0, 195.0, math.inf]
    assert found.order == (1, 2)
    assert found.complete
    # With a job that is to come; and up to the start of one of them only.
    later = live.ahead(40.0, future={3: 150.0})
    assert later.start_s[3] == 195.0
    first = live.ahead(40.0, jobs=[1])
    assert (first.start_s[1], first.end_s[1], first.until_s, first.complete) == (105.0, math.inf, 105.0, True)
    assert live.ahead(40.0, jobs=[1], until="end").end_s[1] == 160.0
    assert live.ahead(40.0, jobs=[0]).events == 0


def test_what_lies_beyond_the_horizon_or_the_steps_is_not_known() -> None:
    live = Live("fifo", jobs([(0, 100, 4), (0, 50, 4), (0, 30, 4)]), "1x4")
    live.engine.take_in(0.0, arrived=[0, 1, 2])
    live.engine.decide(0.0)
    found = live.ahead(0.0, horizon_s=120.0)
    assert found.start_s.tolist() == [0.0, 100.0, math.inf]
    assert not found.complete
    assert not live.ahead(0.0, most_events=1).complete
    assert live.ahead(0.0, horizon_s=1e6).complete


def test_jobs_that_will_never_run_are_no_reason_to_go_on_or_to_fail() -> None:
    live = Live("fifo", jobs([(0, 10, 4), (0, 10, 4)]), "1x4")
    live.engine.take_in(0.0, arrived=[0, 1])
    live.engine.decide(0.0)
    live.engine.take_in(5.0, down=[0])
    live.engine.decide(5.0)
    found = live.ahead(6.0)
    assert found.start_s.tolist() == [math.inf, math.inf]
    assert found.complete


def test_a_job_that_is_late_is_taken_to_end_now() -> None:
    live = Live("fifo", jobs([(0, 10, 4), (0, 10, 4)]), "1x4")
    live.engine.take_in(0.0, arrived=[0, 1])
    live.engine.decide(0.0)
    assert live.ahead(25.0).start_s[1] == 25.0
    live.state.remaining_s[0], live.state.work_from_s[0] = 60.0, max(live.state.work_from_s[0], 25.0)
    assert live.ahead(25.0).start_s[1] == 85.0


def test_future_jobs_must_be_such() -> None:
    live = Live("fifo", jobs([(0, 10, 4), (0, 10, 4)]), "1x4")
    live.engine.take_in(0.0, arrived=[0])
    for wrong in ({0: 50.0}, {1: 5.0}, {1: math.nan}):
        with pytest.raises(InputError, match="can't come at"):
            live.ahead(20.0, future=wrong)


class EnoughError(Exception):
    """The middle is reached."""


@pytest.mark.parametrize(
    "text",
    [
        *("fifo:backfill=easy", "srtf", "tiresias", "gittins", "antman", "hlas", "muri-l", "weave"),
        *slow("fifo", "themis", "gavel", "rl", "muri-s", "muri-xl", "elastic"),
    ],
)
def test_goes_on_as_the_simulation_would_have(text: str) -> None:
    """From the middle of a run: the rest of the run is predicted to the bit, and nothing live is touched."""
    workload = generate(GeneratorConfig(jobs=50, gpus=16, load=2.0, seed=4, opportunistic=0.5))
    workload = replace(workload, stage_s=STAGES[np.arange(50) % 4], submit_s=np.zeros(50))
    whole, run = [
        Simulation(
            workload,
            parse_cluster("2x8"),
            load_policy(text),
            text,
            Settings(restart_overhead_s=20.0),
            compat_mode(None),
            None,
        )
        for _ in range(2)
    ]
    end_s = whole.run().end_s
    middle, policy = float(np.median(end_s)), run.policy
    decide = run.engine.decide

    wakes = []

    def stopping(now_s: float, *, may_preempt: bool = True) -> float:
        wakes.append(decide(now_s, may_preempt=may_preempt))
        if now_s >= middle and (now_s % 360.0 == 0.0 or not policy.preempts_at_intervals):
            raise EnoughError
        return wakes[-1]

    run.engine.decide = stopping  # type: ignore[method-assign]
    with pytest.raises(EnoughError):
        run.loop()
    before = deepcopy([run.state.status_column, run.state.remaining_s_column, run.state.placements])
    memory, cache = dump(run.engine.memory, policy), policy.cache
    found = forward(
        run.state,
        policy,
        run.engine.memory,
        progress=run.engine.progress,
        now_s=run.now_s,
        interval_s=360.0,
        wake_at_s=wakes[-1],
    )
    left = np.isnan(run.state.end_s_column)
    assert 5 < left.sum() < 45
    assert found.end_s[left].tolist() == end_s[left].tolist()
    assert found.complete
    assert policy.cache is cache
    assert dump(run.engine.memory, policy) == memory
    for one, two in zip(
        before, [run.state.status_column, run.state.remaining_s_column, run.state.placements], strict=True
    ):
        assert np.array_equal(one, two) if isinstance(one, np.ndarray) else one == two
