"""Elastic jobs by thresholds: the letter of the text, and the default, which lends what is free."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from builders import jobs
from gpuloom.core.cluster import parse_cluster
from gpuloom.core.errors import PolicyError
from gpuloom.core.scaling import Scaling
from gpuloom.core.state import State
from gpuloom.core.workload import Speeds, Workload
from gpuloom.engine.engine import Engine
from gpuloom.engine.progress import Progress
from gpuloom.facts.inputs import load_policy
from gpuloom.live.planning.world import Collector
from gpuloom.policies.elastic import Elastic
from gpuloom.policies.registry import create_policy
from gpuloom.sim import simulate


def linear(n: int, *, least: int, asks: int, most: int, hours: float = 10.0) -> Workload:
    """Jobs that take so many hours at the size that they ask for, and are as fast as they have GPUs."""
    ones = np.ones(n, dtype=np.int32)
    curve = np.arange(most + 1, dtype=np.float64)[:, None]
    scaling = Scaling(ones, least * ones, most * ones, 0 * ones, asks * np.ones(n), (curve,))
    return jobs([(0.0, hours * 3600, asks)] * n, scaling=scaling)


def test_a_job_alone_has_the_cluster() -> None:
    workload = linear(1, least=1, asks=4, most=16)
    assert simulate(workload, "2x8", "elastic", restart_overhead_s=30.0).end_s[0] == pytest.approx(2.5 * 3600, abs=700)
    # By the letter its one GPU is all that the pool of 16 · 0.3 may hold.
    assert simulate(workload, "2x8", "elastic:literal", restart_overhead_s=30.0).end_s[0] >= 20 * 3600


@pytest.mark.parametrize("policy", ["elastic-goodput", "weave"])
@pytest.mark.parametrize("weights", [(1e-9, 1e-9), (1e12, 1e-9), (1e12, 1e12)])
def test_the_unit_of_weights_does_not_matter(policy: str, weights: tuple[float, float]) -> None:
    """Light jobs were looked at every second, as no change was worth as much as the least that counts."""
    workload = replace(linear(2, least=1, asks=2, most=8), weight=np.array(weights))
    found = simulate(workload, "2x4", policy, restart_overhead_s=30.0)
    assert found.events < 100
    if weights[0] == weights[1]:
        plain = simulate(replace(workload, weight=np.ones(2)), "2x4", policy, restart_overhead_s=30.0)
        assert found.end_s == pytest.approx(plain.end_s, rel=1e-6)


def test_weave_learns_by_what_jobs_ask_for_also_from_a_memory_of_before() -> None:
    """A live scheduler that begins hands its policy the memory of the one before."""
    workload, cluster = linear(2, least=1, asks=2, most=8), parse_cluster("2x4")
    made = create_policy("weave")
    memory = made.new_memory(workload, cluster)
    later = create_policy("weave")
    state = State(workload, cluster, layers=later.max_jobs_per_gpu)
    progress = Progress(workload, cluster, np.zeros(2), later.sharing(workload))
    engine = Engine(state, later, progress, Collector(), memory=memory)
    engine.take_in(0.0, arrived=range(2))
    engine.decide(0.0)
    assert later.inner.of_class is not None
    assert later.inner.of_class.tolist() == made.inner.of_class.tolist()


def test_stage_times_hold_at_the_size_that_they_were_measured_at() -> None:
    """Two jobs that ask for 2 GPUs: beside each other one GPU each is worth more than sharing two. Who can't be smaller
    shares."""
    stage_s = np.array([[0.9, 0.1, 0.0], [0.1, 0.9, 0.0]])
    for least, layers in ((1, 1), (2, 2)):
        workload = replace(linear(2, least=least, asks=2, most=2), stage_s=stage_s)
        found = simulate(workload, "1x2", "weave", restart_overhead_s=0.0, record_segments=True)
        assert found.segments is not None
        assert len(set(found.segments.layer.tolist())) == layers
        masks = found.segments.gpu_mask[found.segments.start_s == 0.0].tolist()
        assert sorted(masks) == ([1, 2] if least == 1 else [3, 3])


def test_five_jobs_on_32_gpus_take_no_longer_than_under_fifo() -> None:
    workload = linear(5, least=2, asks=8, most=8)
    found = {p: simulate(workload, "4x8", p) for p in ("fifo", "elastic", "elastic:literal")}
    assert found["elastic"].avg_jct_s <= 1.03 * found["fifo"].avg_jct_s
    assert found["elastic"].makespan_s <= 0.65 * found["fifo"].makespan_s
    assert found["elastic:literal"].avg_jct_s >= 3.0 * found["fifo"].avg_jct_s


@pytest.mark.parametrize("jobs_there", [1, 2, 3, 4])
def test_nobody_has_less_than_it_asks_for_while_gpus_are_free(jobs_there: int) -> None:
    workload = linear(jobs_there, least=1, asks=4, most=4, hours=0.2)
    found = simulate(workload, "2x8", "elastic", restart_overhead_s=0.0)
    assert found.end_s.tolist() == pytest.approx([720.0] * jobs_there)
    assert found.resizes == 0


def test_those_below_what_they_ask_for_grow_first() -> None:
    # The second comes when all is lent, and starts with one GPU of the first; once the third ends it gets its four.
    ones = np.ones(3, dtype=np.int32)
    curve = np.arange(9, dtype=np.float64)[:, None]
    scaling = Scaling(
        ones, np.array([1, 1, 3], dtype=np.int32), np.array([8, 8, 3], dtype=np.int32), 0 * ones, ones * 4.0, (curve,)
    )
    workload = jobs([(0.0, 36_000.0, 4), (600.0, 36_000.0, 4), (0.0, 1200.0, 3)], scaling=scaling)
    found = simulate(workload, "1x8", "elastic:base=fifo", restart_overhead_s=0.0, record_segments=True)
    segments = found.segments
    assert segments is not None
    late = (segments.job == 2) & (segments.start_s > 1600.0)
    sizes = [int(mask).bit_count() for mask in segments.gpu_mask[late].tolist()]
    assert sizes[0] == 4


def test_jobs_grow_onto_other_models() -> None:
    workload = linear(1, least=1, asks=4, most=8)
    workload = replace(workload, speeds=Speeds(("V100", "A100"), np.array([[1.0, 2.0]])))
    found = simulate(workload, "1x4:V100,1x8:A100", "elastic", restart_overhead_s=30.0)
    assert found.end_s[0] == pytest.approx(2.5 * 3600, abs=700)


def test_jobs_begin_on_the_model_on_which_they_are_fastest() -> None:
    """However long it is to the next look at the pool."""
    workload = jobs([(7.0, 9000.0, 1), (410.0, 1000.0, 3), (411.0, 1000.0, 1)])
    least, most = np.array([1, 1, 1], dtype=np.int32), np.array([2, 3, 1], dtype=np.int32)
    curve, curves = np.array([0, 0, 0], dtype=np.int32), (np.arange(4.0)[:, None],)
    scaling = Scaling(np.ones(3, dtype=np.int32), least, most, curve, np.array([1.0, 3.0, 1.0]), curves)
    speeds = Speeds(("K80", "P100", "V100"), np.array([[1.0, 2.0, 3.0], [1.0, 4.0, 2.0], [1.0, 2.0, 8.0]]))
    workload = replace(workload, scaling=scaling, speeds=speeds)
    found = simulate(workload, "1x5:K80,1x3:P100,1x4:V100", "elastic", record_segments=True, restart_overhead_s=0.0)
    segments = found.segments
    assert segments is not None
    columns = (segments.job.tolist(), segments.start_s.tolist(), segments.node.tolist())
    rows = sorted(zip(*columns, strict=True))
    assert [row for row in rows if row[0] > 0] == [(1, 410.0, 1), (2, 411.0, 2)]


def test_a_look_that_was_due_for_others_is_not_made_up_for() -> None:
    """By the letter, which places nobody anew: the pool is looked at at multiples of five minutes alone."""
    workload = linear(2, least=1, asks=1, most=8)
    workload = replace(workload, submit_s=np.array([30.0, 1000.0]), duration_s=np.array([40.0, 9e4]))
    policy = "elastic:literal;proportion=1;expand_threshold=1;shrink_threshold=1.2;count_elastic_usage=no"
    found = simulate(workload, "1x8", policy, record_segments=True, restart_overhead_s=0.0, interval_s=0.0)
    segments = found.segments
    assert segments is not None
    columns = (segments.job.tolist(), segments.start_s.tolist(), segments.gpu_mask.tolist())
    sizes = [(at_s, mask.bit_count()) for job, at_s, mask in zip(*columns, strict=True) if job == 1]
    assert sizes == [(1000.0, 1), (1200.0, 8)]


def test_the_letter_has_its_own_values_where_none_are_written() -> None:
    rules, _ = Elastic().rules()
    assert (rules.proportion, rules.expand_threshold, rules.shrink_threshold, rules.count_elastic_usage) == (
        1,
        1,
        1.2,
        False,
    )
    rules, _ = load_policy("elastic:literal;proportion=0.5").rules()  # type: ignore[attr-defined]
    assert (rules.proportion, rules.expand_threshold, rules.shrink_threshold, rules.count_elastic_usage) == (
        0.5,
        0.3,
        0.9,
        True,
    )
    rules, _ = Elastic(config={"literal": True, "expand_threshold": 0.4}).rules()
    assert (rules.proportion, rules.expand_threshold, rules.literal) == (0.3, 0.4, True)
    with pytest.raises(PolicyError, match="below 1 where count_elastic_usage"):
        Elastic(count_elastic_usage=True).rules()


def test_a_share_is_kept_in_reserve() -> None:
    workload = linear(1, least=1, asks=4, most=16)
    found = simulate(workload, "2x8", "elastic:proportion=0.5", restart_overhead_s=0.0)
    # M = 15 · 0.5, of which it borrows (1 + 1.2) / 2 at most: 8 GPUs beyond its own.
    assert found.end_s[0] == pytest.approx(36_000 * 4 / 9, rel=0.02)
