"""Elastic jobs: what must hold on every workload, and that it settles."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import jobs, workloads
from forgetful import Forgetful
from gpuloom.core.cluster import Cluster, parse_cluster
from gpuloom.core.decision import Decision, Placement
from gpuloom.core.scaling import Scaling
from gpuloom.core.snapshot import Snapshot
from gpuloom.core.workload import F8, Labels, Workload
from gpuloom.facts.inputs import load_policy
from gpuloom.scaling.base_view import Sizes
from gpuloom.sim import Failure, SimResult, simulate
from tiers import examples

pytestmark = pytest.mark.slow

WIDE = "proportion=1;expand_threshold=0.5;shrink_threshold=1.2;check_minutes=1"
GREEDY = "proportion=1;expand_threshold=3;shrink_threshold=5;count_elastic_usage=no;check_minutes=0.5"
BASES = (
    "fifo",
    "fifo:backfill=easy",
    "sjf",
    "srtf",
    "srsf",
    "gittins",
    "themis",
    "gavel",
    "hlas",
    "srtf:placement=repack",
)
POLICIES = (
    "elastic",
    "elastic:literal",
    f"elastic:literal;{WIDE}",
    f"elastic:literal;{GREEDY};shrink_policy=fair;expand_policy=priority",
    *(f"elastic:literal;{GREEDY};base={base}" for base in BASES),
    "elastic-goodput",
    "elastic-goodput:alpha=1",
    *(f"elastic-goodput:base={base};weight=remaining;period=30" for base in BASES),
)


@st.composite
def elastic_workloads(draw: st.DrawFn, *, most: int = 12) -> Workload:
    """Random jobs of random sizes: curves with gaps, bumps and penalties between nodes, replicas of one or two GPUs."""
    n = draw(st.integers(1, most))
    curves: list[F8] = []
    for _ in range(draw(st.integers(1, 3))):
        speeds = draw(st.lists(st.sampled_from([0.0, 0.5, 1.0, 1.7, 2.5, 4.0]), min_size=12, max_size=12))
        penalty = draw(st.sampled_from([1.0, 0.8, 0.3]))
        one = np.array([0.0, *speeds])
        curves.append(np.stack([one, penalty * one, penalty**2 * one], axis=1))
    rows, low, high, replica, curve, reference = [], [], [], [], [], []
    times = st.one_of(st.integers(0, 12).map(lambda x: x * 100.0), st.floats(0, 5000))
    for _ in range(n):
        index = draw(st.integers(0, len(curves) - 1))
        step = draw(st.sampled_from([1, 1, 2]))
        able = [g for g in range(step, 9, step) if curves[index][g, 0] > 0]
        duration = draw(st.sampled_from([0.0, 50.0, 500.0, 3000.0, 12000.0]))
        gpus = draw(st.sampled_from(able)) if able else step
        elastic = bool(able) and draw(st.booleans())
        least = draw(st.integers(1, gpus // step)) if elastic else gpus // step
        top = draw(st.integers(gpus // step, 12 // step)) if elastic else gpus // step
        rows.append((draw(times), duration, gpus))
        low.append(least), high.append(top), replica.append(step)
        curve.append(index if elastic else -1)
        reference.append(curves[index][gpus, 0] if elastic else 1.0)
    scaling = Scaling(
        np.array(replica, dtype=np.int32),
        np.array(low, dtype=np.int32),
        np.array(high, dtype=np.int32),
        np.array(curve, dtype=np.int32),
        np.array(reference),
        tuple(curves),
    )
    columns: dict[str, Any] = {"scaling": scaling}
    if draw(st.booleans()):
        columns["priority"] = np.array(draw(st.lists(st.integers(0, 1), min_size=n, max_size=n)), dtype=np.int32)
    return jobs(rows, **columns)


def check(result: SimResult, workload: Workload, cluster: Cluster) -> None:
    """Everyone ends; gangs run on one of their sizes, never below the smallest; no GPU serves two at once."""
    segments = result.segments
    assert segments is not None
    assert result.finished == len(workload)
    sizes = Sizes(workload, cluster).of
    use: dict[tuple[int, int], list[tuple[float, float]]] = {}
    held: dict[tuple[int, float], tuple[int, set[str]]] = {}
    for row in range(len(segments.job)):
        job, start, end = int(segments.job[row]), float(segments.start_s[row]), float(segments.end_s[row])
        if end == start:
            continue
        node, mask = int(segments.node[row]), int(segments.gpu_mask[row])
        gpus, models = held.get((job, start), (0, set()))
        held[job, start] = gpus + mask.bit_count(), models | {cluster.nodes[node].gpu_model}
        for gpu in range(mask.bit_length()):
            if mask >> gpu & 1:
                use.setdefault((node, gpu), []).append((start, end))
    for spans in use.values():
        spans.sort()
        assert all(later[0] >= earlier[1] for earlier, later in pairwise(spans))
    for (job, _), (gpus, models) in held.items():
        assert gpus in sizes[job]
        assert len(models) == 1


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=examples(25))
@given(
    workload=elastic_workloads(),
    cluster=st.sampled_from(["1x8", "2x8", "3x4,1x8", "4x2,1x4"]),
    overhead=st.sampled_from([0.0, 30.0]),
    failures=st.booleans(),
)
def test_invariants(policy: str, workload: Workload, cluster: str, overhead: float, failures: bool) -> None:
    if "repack" in policy and "," in cluster:
        return
    nodes = parse_cluster(cluster)
    outages = (Failure(0, 100.0, 700.0), Failure(len(nodes.nodes) - 1, 900.0, 1000.0)) if failures else ()
    result = simulate(
        workload,
        nodes,
        policy,
        restart_overhead_s=overhead,
        failures=outages,
        skip_impossible=True,
        record_segments=True,
    )
    kept = [int(row) for row in np.flatnonzero(np.isin(workload_ids(workload), result.job_ids))]
    if len(kept) < len(workload):
        workload = workload.take(np.array(kept, dtype=np.intp))
    check(result, workload, nodes)


def workload_ids(workload: Workload) -> list[str]:
    return [workload.job_id(row) for row in range(len(workload))]


@pytest.mark.parametrize("policy", POLICIES[2::4])
@settings(max_examples=examples(25))
@given(workload=elastic_workloads(), at=st.frozensets(st.integers(1, 40), max_size=12), failures=st.booleans())
def test_what_matters_survives_a_restart(policy: str, workload: Workload, at: frozenset[int], failures: bool) -> None:
    outages = (Failure(0, 100.0, 700.0), Failure(1, 900.0, 1000.0)) if failures else ()
    nodes = parse_cluster("2x8")
    workload = fitting(workload, 16)
    result = simulate(
        workload, nodes, Forgetful(policy, at, through_store=True), failures=outages, record_segments=True
    )
    check(result, workload, nodes)


def fitting(workload: Workload, gpus: int) -> Workload:
    return workload.take(np.flatnonzero(workload.gpus <= gpus))


@pytest.mark.parametrize("policy", ["elastic", "elastic-goodput", "elastic-goodput:base=srtf"])
@settings(max_examples=examples(15))
@given(workload=elastic_workloads(), wishes=st.lists(st.sampled_from(["", "V100", "K80"]), min_size=12, max_size=12))
def test_replicas_stay_on_one_gpu_model(policy: str, workload: Workload, wishes: list[str]) -> None:
    workload = replace(fitting(workload, 8), gpu_type=Labels.of(wishes[: len(fitting(workload, 8))]))
    nodes = parse_cluster("2x4:V100,2x4:K80")
    check(simulate(workload, nodes, policy, record_segments=True), workload, nodes)


@pytest.mark.parametrize(
    "pair", [("elastic", "tiresias"), ("elastic-goodput", "tiresias"), ("elastic:base=srtf", "srtf")]
)
@settings(max_examples=examples(15))
@given(workload=workloads())
def test_without_sizes_it_is_its_base(pair: tuple[str, str], workload: Workload) -> None:
    ours, base = (simulate(workload, "2x8", policy) for policy in pair)
    assert ours.end_s.tolist() == base.end_s.tolist()
    assert ours.events == base.events


@pytest.mark.parametrize("base", ["tiresias", "srtf", "fifo"])
@settings(max_examples=examples(15))
@given(workload=elastic_workloads())
def test_borrowed_gpus_never_keep_a_job_waiting(base: str, workload: Workload) -> None:
    """Jobs start at once when the smallest sizes of all that are here leave room, whatever has been lent."""
    nodes = parse_cluster("2x8")
    workload = fitting(workload, 16)
    result = simulate(workload, nodes, f"elastic-goodput:base={base}", restart_overhead_s=0.0, record_segments=True)
    sizes = [sizes[0] for sizes in Sizes(workload, nodes).of]
    for now in np.unique(workload.submit_s).tolist():
        here = [j for j in range(len(workload)) if workload.submit_s[j] <= now < result.end_s[j]]
        # Half the cluster: on one of the two nodes there is room, wherever the others lie.
        if sum(sizes[j] for j in here) <= 8:
            assert all(result.start_s[j] <= now for j in here), now


def test_the_policies_under_test_do_resize() -> None:
    curve = np.array([[0.0], [1.0], [1.9], [2.7], [3.4]])
    ones = np.ones(2, dtype=np.int32)
    workload = jobs([(0.0, 5000.0, 1)] * 2, scaling=Scaling(ones, ones, 4 * ones, 0 * ones, np.ones(2), (curve,)))
    for policy in POLICIES:
        if policy == "elastic:literal":  # by the letter two jobs of one GPU stay as they are
            continue
        assert simulate(workload, "1x8", policy).utilization > 0.3, policy


@pytest.mark.parametrize("cluster", ["2x1:V100,1x8:K80", "1x8:K80,2x1:V100"])
def test_the_fewest_nodes_are_those_of_the_job_s_own_gpu_model(cluster: str) -> None:
    """A job on a K80 node of 8 GPUs grows there, whichever model the cluster names first."""
    curve = np.array([[0.0, 0.0]] + [[g, 0.1 * g] for g in range(1, 9)])
    ones = np.ones(1, dtype=np.int32)
    scaling = Scaling(ones, ones, 8 * ones, 0 * ones, np.ones(1), (curve,))
    workload = replace(jobs([(0.0, 26_000.0, 1)], scaling=scaling), gpu_type=Labels.of(["K80"]))
    result = simulate(workload, cluster, "elastic-goodput", restart_overhead_s=0.0)
    assert result.end_s.tolist() == [pytest.approx(26_000 / 8)]


@settings(max_examples=examples(60))
@given(workload=elastic_workloads(), cluster=st.sampled_from(["4x4", "2x8"]))
def test_nobody_gives_gpus_up_for_nothing(workload: Workload, cluster: str) -> None:
    """In a call in which a job loses GPUs some job gains some (it starts, or grows), or it is faster with fewer."""
    workload = fitting(workload, 8)
    if not len(workload):
        return
    policy = load_policy("elastic-goodput:period=30")
    shrunk: list[tuple[float, int]] = []

    def faster(job: int, was: Placement, now: Placement) -> bool:
        assert workload.scaling is not None
        return workload.scaling.speed(job, now.gpus, len(now.nodes)) > workload.scaling.speed(
            job, was.gpus, len(was.nodes)
        )

    asked = policy.decide

    def decide(snapshot: Snapshot, memory: Any) -> tuple[Decision, Any]:
        before = {job: placement.gpus for job, placement in snapshot.placements.items()}
        decision, memory = asked(snapshot, memory)
        changes = [
            placement.gpus - before.get(job, 0)
            for job, placement in decision.run.items()
            if job not in before or not faster(job, snapshot.placements[job], placement)
        ]
        gains = any(placement.gpus > before.get(job, 0) for job, placement in decision.run.items())
        if min(changes, default=0) < 0 and not gains:
            shrunk.append((snapshot.now_s, min(changes)))
        return decision, memory

    policy.decide = decide  # type: ignore[method-assign]
    simulate(workload, cluster, policy, restart_overhead_s=30.0)
    assert not shrunk
