"""Every policy, driven by the real live scheduler through any order of events: it never fails, and serves everyone.

A machine of two GPU models, a clock that stands still between events, runs on paper (live/trial/rehearsal.py). More
histories: GPULOOM_POLICIES_LIVE_EXAMPLES=200 pytest tests/property/test_policies_live.py --hypothesis-seed=7
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from builders import POLICIES
from claimed import PHASE
from fake_executor import short
from gpuloom.core.errors import GpuloomError
from gpuloom.core.job import NodeState, Phase
from gpuloom.core.share_class import is_pair
from gpuloom.live.planning.claims import State
from gpuloom.live.trial.rehearsal import FLEET, Rehearsal
from gpuloom.policies.registry import BUILT_IN

pytestmark = pytest.mark.slow

FORMS = ("muri-l:matcher=released", "elastic:base=srtf", "themis:lease=200s", "fifo:beside=no", "weave:group_size=1")
EVERY = tuple(dict.fromkeys([*BUILT_IN, *POLICIES, *FORMS]))
MODELS = ("resnet18", "vgg19", "bert", "gpt2", "a2c", "dqn", "shufflenet_v2_x1_0", None)

specs = st.fixed_dictionaries(
    {"gpus": st.integers(1, 4)},
    optional={
        "priority": st.sampled_from([-1, -1, 0, 1, 3]),
        "retries": st.integers(0, 1),
        "hold": st.booleans(),
        "array": st.sampled_from(["0-1", "0-3%2"]),
        "on_preempt": st.sampled_from(["checkpoint", "freeze", "never"]),
        "estimate": st.sampled_from([1.0, 50.0, 5_000.0, 400_000.0]),
        "share_class": st.sampled_from(["high", "best-effort"]),
        "gpu_memory": st.sampled_from([100, 9_000]),
        "gpu_types": st.sampled_from([["V100"], ["K80"], ["K80", "V100"]]),
        "model": st.sampled_from(MODELS[:-1]),
    },
)
picks = st.integers(0, 10_000)
"""Chooses one of the jobs there are, by its remainder."""


def fits(spec: dict[str, Any]) -> bool:
    return spec["gpus"] <= 2 or spec.get("gpu_types") != ["K80"]


class AnyOrder(RuleBasedStateMachine):
    """See the module."""

    text = "fifo"

    def __init__(self) -> None:
        super().__init__()
        self.live = Rehearsal(self.text)
        self.shared_before = False

    def teardown(self) -> None:
        self.all_end()

    # -- what happens ---------------------------------------------------------------------------------------------

    @initialize(first=st.lists(specs.filter(fits), min_size=2, max_size=7))
    def begins(self, first: list[dict[str, Any]]) -> None:
        self.live.submit(*first)

    @rule(some=st.lists(specs.filter(fits), min_size=1, max_size=3), after=st.none() | picks, how=st.booleans())
    def submits(self, some: list[dict[str, Any]], after: int | None, how: bool) -> None:
        if after is not None and (going := self.live.going()):
            some = [{**spec, "after_any" if how else "after": [going[after % len(going)]]} for spec in some]
        self.live.submit(*some)

    @precondition(lambda self: self.live.executor.live())
    @rule(number=picks, code=st.sampled_from([0, 0, 0, 1, 85, None]), wait=st.sampled_from([0.0, 0.5, 100.0]))
    def a_run_ends(self, number: int, code: int | None, wait: float) -> None:
        runs = sorted(self.live.executor.live())
        self.live.later(wait)
        self.live.end(runs[number % len(runs)], code)

    @precondition(lambda self: len(self.live.executor.live()) > 1)
    @rule(codes=st.lists(st.sampled_from([0, 0, 1]), min_size=2, max_size=3))
    def some_end_at_once(self, codes: list[int]) -> None:
        for run, code in zip(sorted(self.live.executor.live()), codes, strict=False):
            self.live.executor.end(run, code)
        self.live.turn()

    @rule(seconds=st.sampled_from([0.001, 1.0, 30.0, 60.0, 400.0, 20_000.0]))
    def time_goes_on(self, seconds: float) -> None:
        self.live.later(seconds)

    @precondition(lambda self: self.live.going())
    @rule(action=st.sampled_from(["cancel", "hold", "release", "requeue", "move_to_top"]), number=picks)
    def asks(self, action: str, number: int) -> None:
        going = self.live.going()
        with suppress(GpuloomError):  # not every job can
            self.live.tell(lambda: getattr(self.live.service, action)([going[number % len(going)]]))

    @precondition(lambda self: self.live.going())
    @rule(
        number=picks,
        change=st.sampled_from(
            [
                {"priority": 3},
                {"priority": -1},
                {"gpus": 2},
                {"estimate": 7.0},
                {"share_class": "high"},
                {"model": "vgg19"},
            ]
        ),
    )
    def updates(self, number: int, change: dict[str, Any]) -> None:
        going = self.live.going()
        with suppress(GpuloomError):
            self.live.tell(lambda: self.live.service.update([going[number % len(going)]], change))

    @rule(state=st.sampled_from(["up", "up", "cordoned", "draining"]))
    def opens_or_closes_the_machine(self, state: str) -> None:
        self.live.tell(lambda: self.live.service.set_node("here", NodeState(state)))

    @rule(
        gpus=st.dictionaries(
            st.integers(0, len(FLEET) - 1), st.sampled_from(["ok", "ok", "foreign", "unhealthy"]), min_size=1
        )
    )
    def gpus_come_and_go(self, gpus: dict[int, str]) -> None:
        self.live.gpus(gpus)

    @rule(orderly=st.booleans())
    def restarts(self, orderly: bool) -> None:
        self.live.restart(orderly=orderly)

    @rule(other=st.sampled_from(EVERY), interval=st.sampled_from([0.0, 60.0]), wait=st.sampled_from([0.0, 60.0]))
    def another_policy_for_a_while(self, other: str, interval: float, wait: float) -> None:
        self.live.tell(lambda: self.live.service.set_policy(other, interval_s=interval))
        self.policy_is_well()
        self.live.later(wait)
        self.policy_is_well()
        self.live.tell(lambda: self.live.service.set_policy(self.text))

    @rule(number=picks)
    def somebody_asks_why(self, number: int) -> None:
        if going := self.live.going():
            self.live.service.why(going[number % len(going)])

    # -- what holds always ----------------------------------------------------------------------------------------

    @invariant()
    def policy_is_well(self) -> None:
        planning = self.live.scheduler.planning
        assert planning.seat.standby.failure is None, planning.seat.standby.failure
        assert not planning.failed, planning.failure
        assert self.live.scheduler.problem == ""

    @invariant()
    def no_gpu_is_given_twice(self) -> None:
        attempts = self.live.scheduler.book.attempts.values()
        assert {short(attempt.run) for attempt in attempts} == self.live.executor.live()
        assert set(self.live.executor.starts.values()) <= {1}
        on: dict[int, list[int]] = {}
        for attempt in attempts:
            job = self.live.jobs[attempt.job]
            gpus = [gpu for _, indices in attempt.allocation for gpu in indices]
            assert len(gpus) == job.gpus
            assert len({FLEET[gpu] for gpu in gpus}) == 1
            for gpu in gpus if attempt.phase is not Phase.FROZEN else ():
                on.setdefault(gpu, []).append(attempt.job)
        most = self.live.scheduler.planning.policy.max_jobs_per_gpu
        crowds = [jobs for jobs in on.values() if len(jobs) > 1]
        pairs = self.live.scheduler.planning.policy.pairs
        wrong = [jobs for jobs in crowds if len(jobs) > most or (pairs and not self.is_pair(jobs))]
        # Those that shared GPUs under a policy before go on.
        self.shared_before = bool(wrong) and (self.shared_before or self.text_shares(wrong))
        assert self.shared_before or not wrong, (wrong, self.text)

    @invariant()
    def claims_agree_with_the_records(self) -> None:
        attempts, claims = self.live.scheduler.book.attempts, self.live.scheduler.planning.claims
        for job, attempt in attempts.items():
            assert PHASE[claims.state(job)] is attempt.phase, claims.story(job)
            thaws = claims.state(job) in (State.THAWING, State.REFREEZING)
            assert thaws or claims.where(job) == attempt.allocation, claims.story(job)
        for there in claims.holders().values():
            assert attempts.keys() >= set(there)

    def is_pair(self, jobs: list[int]) -> bool:
        return is_pair([self.live.jobs[job].spec.sharing_class for job in jobs])

    def text_shares(self, wrong: list[list[int]]) -> bool:
        return True

    def all_end(self) -> None:
        """Everything is free, nobody comes: all jobs end at last."""
        live = self.live
        live.tell(lambda: live.service.set_node("here", NodeState.UP))
        live.gpus(dict.fromkeys(range(len(FLEET)), "ok"))
        held = [n for n in live.going() if live.jobs[n].phase is Phase.HELD]
        if held:
            live.tell(lambda: live.service.release(held))
        rounds = 0
        while live.going():
            rounds += 1
            assert rounds < 300, (live.queued(), {n: live.service.job(n)["waiting"] for n in live.queued()})
            for run in sorted(live.executor.live())[: 1 + rounds % 3]:
                live.executor.end(run, 0)
            live.turn()
            live.later([1.0, 60.0, 1000.0][rounds % 3])
            self.policy_is_well()
            self.no_gpu_is_given_twice()


@pytest.mark.parametrize("text", EVERY)
def test_any_order_of_events(text: str) -> None:
    machine = type("AnyOrder", (AnyOrder,), {"text": text})
    examples = int(os.environ.get("GPULOOM_POLICIES_LIVE_EXAMPLES", "2"))
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=12,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
