"""The control step of elastic training: the thresholds worked through by hand, and that it settles."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloom.scaling.thresholds import ElasticJob, ResizeDecision, Thresholds, decide_resize, resize_in_turn

PATENT = Thresholds(proportion=0.3, expand_threshold=0.3, shrink_threshold=0.9)


def job(number: int, replicas: int = 1, most: int = 8, *, least: int = 1, gpus: int = 1, **more: float) -> ElasticJob:
    return ElasticJob(number, replicas, tuple(range(least, most + 1)), gpus, **more)  # type: ignore[arg-type]


def control_step(
    rules: Thresholds, cluster_gpus: int, used_gpus: int, jobs: Iterable[ElasticJob]
) -> tuple[ResizeDecision, dict[int, int]]:
    """One control period, as the policy goes through it: what was found, and the new numbers of replicas."""
    known = list(jobs)
    held = sum(job.replicas * job.replica_gpus for job in known)
    resize = decide_resize(rules, cluster_gpus, used_gpus, held)
    return resize, resize_in_turn(rules, resize, known)


# -- golden: A = 100 GPUs, p = 0.3, ET = 0.3, ST = 0.9, so MT = 0.6 ----------------------------------------------------


def test_below_the_expand_threshold_the_budget_is_mt_less_t_times_m() -> None:
    found = decide_resize(PATENT, 100, 40, 4)
    assert found.action == "expand"
    assert found.pool_gpus == pytest.approx(18)  # (100 - 40) · 0.3
    assert found.utilisation == pytest.approx(4 / 18)
    assert found.budget_gpus == pytest.approx(6.8)  # (0.6 - 4/18) · 18
    # Six replicas of one GPU, round and round: 4 jobs at 1 become 3, 3, 2, 2.
    _, changed = control_step(PATENT, 100, 40, [job(n) for n in range(4)])
    assert changed == {0: 3, 1: 3, 2: 2, 3: 2}


def test_above_the_shrink_threshold_the_budget_is_t_less_mt_times_m() -> None:
    found = decide_resize(PATENT, 100, 40, 20)
    assert found.action == "shrink"
    assert found.utilisation == pytest.approx(20 / 18)
    assert found.budget_gpus == pytest.approx(9.2)  # (20/18 - 0.6) · 18
    _, changed = control_step(PATENT, 100, 40, [job(n, 5) for n in range(4)])
    assert changed == {0: 2, 1: 3, 2: 3, 3: 3}  # nine replicas


@pytest.mark.parametrize(("elastic", "action"), [(5, "expand"), (6, "hold"), (18, "hold"), (19, "shrink")])
def test_the_thresholds_themselves_hold(elastic: int, action: str) -> None:
    """M = (100 - 60) · 0.5 = 20: t = 0.25, 0.3, 0.9, 0.95."""
    assert decide_resize(replace(PATENT, proportion=0.5), 100, 60, elastic).action == action


def test_without_a_pool_all_shrink_to_their_least() -> None:
    found, changed = control_step(PATENT, 16, 16, [job(0, 5), job(1, 3, least=2), job(2, 1)])
    assert (found.action, found.utilisation, found.pool_gpus) == ("shrink", math.inf, 0.0)
    assert changed == {0: 1, 1: 2}


def test_nobody_elastic_means_nothing_to_do() -> None:
    assert control_step(PATENT, 16, 16, []) == (decide_resize(PATENT, 16, 16, 0), {})
    assert decide_resize(PATENT, 16, 0, 0).action == "hold"


def test_the_two_readings_of_the_gpus_in_use() -> None:
    """60 in use, 20 of them by elastic jobs: M is (100 - 60)·0.3 = 12, or (100 - 40)·0.3 = 18."""
    assert decide_resize(PATENT, 100, 60, 20).pool_gpus == pytest.approx(12)
    assert decide_resize(replace(PATENT, count_elastic_usage=False), 100, 60, 20).pool_gpus == pytest.approx(18)


def test_who_grows_first() -> None:
    """A budget for one replica: priority first, or fewest expansions, then the one that grew longest ago."""
    jobs = [
        job(0, priority=1, expansions=0),
        job(1, priority=0, expansions=2, last_expansion_s=10.0),
        job(2, priority=0, expansions=1, last_expansion_s=30.0),
        job(3, priority=0, expansions=1, last_expansion_s=20.0),
    ]
    one = replace(decide_resize(PATENT, 100, 40, 4), budget_gpus=1.0)
    assert resize_in_turn(replace(PATENT, expand_policy="priority"), one, jobs) == {3: 2}
    assert resize_in_turn(replace(PATENT, expand_policy="fair"), one, jobs) == {0: 2}


def test_who_shrinks_first() -> None:
    jobs = [
        job(0, 4, priority=0, shrinks=0),
        job(1, 4, priority=1, shrinks=2, last_shrink_s=10.0),
        job(2, 4, priority=1, shrinks=1, last_shrink_s=30.0),
        job(3, 4, priority=1, shrinks=1, last_shrink_s=20.0),
    ]
    one = replace(decide_resize(PATENT, 100, 40, 20), budget_gpus=1.0)
    assert resize_in_turn(replace(PATENT, shrink_policy="priority"), one, jobs) == {3: 3}
    assert resize_in_turn(replace(PATENT, shrink_policy="fair"), one, jobs) == {0: 3}


def test_a_replica_that_the_budget_does_not_cover_is_passed() -> None:
    some = replace(decide_resize(PATENT, 100, 40, 4), budget_gpus=3.0)
    assert resize_in_turn(PATENT, some, [job(0, gpus=4), job(1, gpus=2), job(2, gpus=1)]) == {1: 2, 2: 2}


def test_a_job_that_can_not_be_placed_is_not_asked_again() -> None:
    asked = []

    def may(one: ElasticJob, replicas: int) -> bool:
        asked.append((one.job, replicas))
        return one.job != 0

    some = replace(decide_resize(PATENT, 100, 40, 4), budget_gpus=3.0)
    assert resize_in_turn(PATENT, some, [job(0), job(1)], may) == {1: 4}
    assert [entry for entry in asked if entry[0] == 0] == [(0, 2)]


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"proportion": 0.0}, "proportion is 0"),
        ({"proportion": 1.1}, "proportion is 1.1"),
        ({"expand_threshold": 0.0}, "expand_threshold is 0"),
        ({"shrink_threshold": 0.3}, "must be above expand_threshold"),
        ({"expand_policy": "fast"}, "expand_policy is 'fast'"),
        ({"expand_threshold": 3.0, "shrink_threshold": 5.0}, "grow and shrink forever"),
    ],
)
def test_bad_thresholds_are_refused(values: dict[str, float], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        replace(PATENT, **values)  # type: ignore[arg-type]


# -- stability --------------------------------------------------------------------------------------------------------


@st.composite
def rules(draw: st.DrawFn) -> Thresholds:
    share = draw(st.floats(0.01, 1.0))
    count = draw(st.booleans())
    low = draw(st.floats(0.01, 4.0))
    high = low + draw(st.floats(0.01, 4.0))
    if count and (low + high) / 2 * share >= 0.999:
        low, high = (x * 0.99 / ((low + high) / 2 * share) for x in (low, high))
    policies = st.sampled_from(["fair", "priority"])
    return Thresholds(share, low, high, draw(policies), draw(policies), count)


@given(
    rules=rules(),
    others=st.integers(0, 120),
    jobs=st.lists(
        st.tuples(st.integers(1, 3), st.integers(0, 20), st.integers(0, 20), st.integers(1, 4), st.integers(0, 1)),
        min_size=1,
        max_size=8,
    ),
)
def test_under_constant_load_it_settles(
    rules: Thresholds, others: int, jobs: list[tuple[int, int, int, int, int]]
) -> None:
    """No endless cycle, for both readings; budgets are kept; nobody falls below the fewest replicas."""
    known = [
        ElasticJob(n, least + min(grown, more), tuple(range(least, least + more + 1)), gpus, priority)
        for n, (least, grown, more, gpus, priority) in enumerate(jobs)
    ]
    cluster = others + sum(one.replicas * one.replica_gpus for one in known) + 7
    before = None
    for step in range(200):
        held = sum(one.replicas * one.replica_gpus for one in known)
        found, changed = control_step(rules, cluster, others + held, known)
        if not changed:
            break
        spent = 0
        for one in known:
            if one.job in changed:
                new = changed[one.job]
                assert one.sizes[0] <= new <= one.sizes[-1]
                spent += abs(new - one.replicas) * one.replica_gpus
                assert (new > one.replicas) == (found.action == "expand")
                if new > one.replicas:
                    one.expansions, one.last_expansion_s = one.expansions + 1, float(step)
                else:
                    one.shrinks, one.last_shrink_s = one.shrinks + 1, float(step)
                one.replicas = new
        assert spent <= found.budget_gpus + 1e-6
        held = sum(one.replicas * one.replica_gpus for one in known)
        if found.action == "expand":
            assert held <= rules.target * found.pool_gpus + 1e-6
            assert others + held <= cluster
        if not rules.count_elastic_usage:
            # The pool stands still: it never turns round.
            assert before in (None, found.action)
            before = found.action
    else:
        raise AssertionError(f"still moving after 200 steps: {known}")
