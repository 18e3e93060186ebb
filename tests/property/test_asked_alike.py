"""Simulated and live, a policy is asked at the same moments, and told the same of whether it may stop running jobs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from builders import jobs
from gpuloom.engine.engine import Engine
from gpuloom.sim import simulate
from planned import Planned, Task
from tiers import examples

pytestmark = pytest.mark.slow

SLOTS = 4
POLICIES = (
    "fifo",
    "srtf",
    "tiresias:thresholds=100/1000",
    "gavel:round=45s",
    "gavel",
    "elastic:base=srtf",
    "themis:lease=50s",
    "muri-l",
)


@contextmanager
def asked() -> Iterator[list[tuple[float, bool]]]:
    """(when, whether it may preempt) of each time that an engine asks its policy."""
    times: list[tuple[float, bool]] = []
    decide = Engine.decide

    def noting(self: Engine, now_s: float, *, may_preempt: bool = True) -> float:
        if (now_s, may_preempt) not in times[-1:]:  # a pass may ask once for each world that it builds
            times.append((now_s, may_preempt))
        return decide(self, now_s, may_preempt=may_preempt)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Engine, "decide", noting)
        yield times


@st.composite
def tasks(draw: st.DrawFn) -> list[Task]:
    """In whole seconds, so that both clocks count alike, often at multiples of an interval."""
    found, at_s = [], 0.0
    for _ in range(draw(st.integers(1, 12))):
        at_s += draw(st.sampled_from([0.0, 0.0, 1.0, 7.0, 30.0, 60.0, 400.0]))
        takes_s = float(draw(st.sampled_from([1, 20, 60, 61, 150, 400, 3000])))
        found.append(Task(at_s, draw(st.sampled_from([1, 2, 4])), takes_s, takes_s))
    return found


@pytest.mark.parametrize("interval_s", [0.0, 60.0, 360.0])
@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=examples(25))
@given(tasks=tasks())
# Nobody waits once the first has its GPUs, so there is nothing to look at after 60 s.
@example(tasks=[Task(7.0, 1, 400.0, 400.0)])
# The second comes just at a multiple that nobody was waiting for.
@example(tasks=[Task(0.0, 4, 400.0, 400.0), Task(60.0, 2, 20.0, 20.0), Task(360.0, 4, 1.0, 1.0)])
def test_asked_at_the_same_moments(policy: str, interval_s: float, tasks: list[Task]) -> None:
    with asked() as live:
        run = Planned(tasks, policy, slots=SLOTS, interval_s=interval_s).run()
    with asked() as simulated:
        workload = jobs([(task.at_s, task.takes_s, task.gpus) for task in tasks])
        result = simulate(workload, f"1x{SLOTS}", policy, interval_s=interval_s, restart_overhead_s=0.0)
    assert live == simulated
    assert [run.end_s[number] for number in range(1, len(tasks) + 1)] == result.end_s.tolist()
