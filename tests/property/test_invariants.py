"""What must hold for every policy on every workload, checked on what the simulator wrote down."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import ALONE, POLICIES, with_stages, workloads
from gpuloom.core.cluster import Cluster, parse_cluster
from gpuloom.core.workload import Workload
from gpuloom.facts.inputs import load_policy
from gpuloom.placement.pool import pools_of
from gpuloom.sim import Failure, SimResult, simulate
from gpuloom.sim.compat import compat_mode
from gpuloom.sim.simulator import Settings, Simulation
from tiers import examples

pytestmark = pytest.mark.slow

CLUSTERS = ("1x8", "2x8", "3x4,1x8", "8x1")
MIXED = "2x4:V100,2x4:K80"
WOVEN = ("muri-s", "muri-l", "muri-xs", "muri-xl")
EVERY = (*POLICIES, *WOVEN)


def gpus_of(result: SimResult, row: int) -> int:
    assert result.segments is not None
    return int(result.segments.gpu_mask[row]).bit_count()


def check(result: SimResult, workload: Workload, cluster: Cluster) -> None:
    segments = result.segments
    assert segments is not None
    # Every job ends exactly once, after it was submitted and started.
    assert not result.interrupted
    assert result.finished == len(workload)
    assert np.isfinite(result.end_s).all()
    assert (result.start_s >= result.submit_s).all()
    assert (result.end_s >= result.start_s).all()
    runs: dict[int, dict[float, tuple[float, int]]] = {}
    use: dict[tuple[int, int, int], list[tuple[float, float]]] = {}
    for row in range(len(segments.job)):
        job, start, end = int(segments.job[row]), float(segments.start_s[row]), float(segments.end_s[row])
        assert end >= start
        if end == start:
            continue
        known = runs.setdefault(job, {}).get(start, (end, 0))
        assert known[0] == end, "a gang stops as a whole"
        runs[job][start] = (end, known[1] + gpus_of(result, row))
        for gpu in range(cluster.nodes[segments.node[row]].gpus):
            if segments.gpu_mask[row] >> gpu & 1:
                use.setdefault((int(segments.node[row]), gpu, int(segments.layer[row])), []).append((start, end))
        assert int(segments.gpu_mask[row]) < 1 << cluster.nodes[segments.node[row]].gpus
    # No GPU is given twice at a time (in a layer).
    for spans in use.values():
        spans.sort()
        for (_, end), (start, _) in pairwise(spans):
            assert start >= end
    for job in range(len(workload)):
        spans = sorted((start, *rest) for start, rest in runs.get(job, {}).items())
        # Gangs are whole, runs don't overlap, nothing runs before submission or after the end.
        assert all(count == workload.gpus[job] for _, _, count in spans)
        assert all(later[0] >= earlier[1] for earlier, later in pairwise(spans))
        if spans:
            assert spans[0][0] >= result.start_s[job]
            assert spans[-1][1] <= result.end_s[job]
        # Attained service adds up.
        held = sum(end - start for start, end, _ in spans)
        assert result.attained_gpu_s[job] == pytest.approx(held * workload.gpus[job], rel=1e-9, abs=1e-6)


def work_done(result: SimResult, workload: Workload, overhead_s: float) -> None:
    """Alone on its GPUs, a job's runs less their restarts add up to its duration."""
    segments = result.segments
    assert segments is not None
    done = np.zeros(len(workload))
    seen = set()
    for row in range(len(segments.job)):
        key = (int(segments.job[row]), float(segments.start_s[row]))
        if key not in seen and segments.end_s[row] > segments.start_s[row]:
            seen.add(key)
            done[key[0]] += max(float(segments.end_s[row]) - key[1] - overhead_s, 0.0)
    assert done == pytest.approx(workload.duration_s, rel=1e-9, abs=1e-6)


@pytest.mark.parametrize("policy", EVERY)
@settings(max_examples=examples(40))
@given(workload=workloads(), cluster=st.sampled_from(CLUSTERS), overhead=st.sampled_from([0.0, 7.0, 300.0]))
def test_invariants(policy: str, workload: Workload, cluster: str, overhead: float) -> None:
    nodes = parse_cluster(cluster)
    workload = with_stages(workload) if policy in WOVEN else workload
    result = simulate(workload, nodes, policy, restart_overhead_s=overhead, record_segments=True)
    check(result, workload, nodes)
    if policy in ALONE:
        work_done(result, workload, overhead)
    assert result.avg_jct_s >= result.lower_bound_avg_jct_s * (1 - 1e-9) - 1e-6


@pytest.mark.parametrize("policy", EVERY)
@settings(max_examples=examples(15))
@given(
    workload=workloads(),
    cluster=st.sampled_from(CLUSTERS),
    gpus=st.sampled_from([1, 8]),
    on=st.sampled_from(["gpu", "node"]),
    memory=st.sampled_from(["1TiB", "3GiB"]),
    fails=st.booleans(),
)
def test_invariants_where_jobs_are_suspended(
    policy: str, workload: Workload, cluster: str, gpus: int, on: str, memory: str, fails: bool
) -> None:
    nodes = parse_cluster(cluster)
    workload = with_stages(workload) if policy in WOVEN else workload
    mib = np.random.default_rng(len(workload)).uniform(1.0, 2000.0, len(workload))
    workload = replace(workload, gpu_memory_mib=np.where(workload.duration_s > 100.0, mib, np.nan))
    failures = (Failure(0, 700.0, 1500.0),) if fails else ()
    run = Simulation(
        workload,
        nodes,
        load_policy(policy),
        policy,
        Settings(
            preempt=f"suspend:gpus={gpus},on={on},memory={memory}", interval_s=60.0, failures=failures,
            checkpoint_s=50.0, record_segments=True,
        ),
        compat_mode(None),
        None,
    )  # fmt: skip
    room = list(run.suspended._room) if run.suspended is not None else []
    result = run.run()
    check(result, workload, nodes)
    assert run.suspended is not None
    assert run.suspended._room == pytest.approx(room), "all that lay in nodes' memory is given back"
    assert not run.state.away
    assert result.starts.sum() == len(workload) + result.restarts


@pytest.mark.parametrize("policy", EVERY)
@settings(max_examples=examples(25))
@given(workload=workloads(largest=4, hetero=True), overhead=st.sampled_from([0.0, 30.0]))
def test_invariants_on_mixed_gpu_models(policy: str, workload: Workload, overhead: float) -> None:
    nodes = parse_cluster(MIXED)
    workload = with_stages(workload) if policy in WOVEN else workload
    result = simulate(workload, nodes, policy, restart_overhead_s=overhead, record_segments=True)
    check(result, workload, nodes)
    segments = result.segments
    assert segments is not None
    for row in range(len(segments.job)):
        wanted = workload.gpu_type[int(segments.job[row])] if workload.gpu_type is not None else ""
        model = nodes.nodes[segments.node[row]].gpu_model
        assert wanted == "" or model in wanted.split("|")
    assert result.avg_jct_s >= result.lower_bound_avg_jct_s * (1 - 1e-9) - 1e-6


@pytest.mark.parametrize("policy", EVERY)
@settings(max_examples=examples(25))
@given(
    workload=workloads(),
    failures=st.lists(st.tuples(st.integers(0, 1), st.floats(0, 8000), st.floats(1, 3000)), max_size=4),
    checkpoint=st.sampled_from([0.0, 100.0]),
)
def test_invariants_when_nodes_fail(
    policy: str, workload: Workload, failures: list[tuple[int, float, float]], checkpoint: float
) -> None:
    free_from: dict[int, float] = {}
    outages = []
    for node, start, length in sorted(failures, key=lambda f: f[1]):
        if start > free_from.get(node, -1.0):
            outages.append(Failure(node, start, start + length))
            free_from[node] = start + length
    nodes = parse_cluster("2x8")
    workload = with_stages(workload) if policy in WOVEN else workload
    result = simulate(workload, nodes, policy, failures=tuple(outages), checkpoint_s=checkpoint, record_segments=True)
    check(result, workload, nodes)
    segments = result.segments
    assert segments is not None
    for outage in outages:
        on_node = segments.node == outage.node
        overlap = (segments.start_s < outage.end_s) & (segments.end_s > outage.start_s)
        assert not (on_node & overlap & (segments.end_s > segments.start_s)).any(), "nobody runs on a lost node"


@pytest.mark.parametrize("policy", EVERY)
@settings(max_examples=examples(10))
@given(workload=workloads())
def test_rounds(policy: str, workload: Workload) -> None:
    nodes = parse_cluster("2x8")
    workload = with_stages(workload) if policy in WOVEN else workload
    result = simulate(workload, nodes, policy, schedule="rounds", interval_s=60.0, record_segments=True)
    check(result, workload, nodes)
    assert (result.segments.start_s % 60.0 == 0).all()  # type: ignore[union-attr]


@pytest.mark.parametrize("policy", ["srtf", "srsf", "tiresias", "themis", "antman", *WOVEN])
@settings(max_examples=examples(20))
@given(workload=workloads())
def test_invariants_in_compat_mode(policy: str, workload: Workload) -> None:
    nodes = parse_cluster("2x8")
    workload = with_stages(workload) if policy in WOVEN else workload
    result = simulate(workload, nodes, policy, compat="muri", record_segments=True)
    check(result, workload, nodes)


@pytest.mark.parametrize("policy", EVERY)
@settings(max_examples=examples(10))
@given(workload=workloads())
def test_the_same_seed_gives_the_same_bytes(policy: str, workload: Workload) -> None:
    workload = with_stages(workload) if policy in WOVEN else workload
    first, second = (
        simulate(workload, "2x8", policy, mtbf_s=5000.0, repair_s=500.0, seed=3, record_segments=True) for _ in range(2)
    )
    one, two = first.to_dict(), second.to_dict()
    one.pop("wall_s"), two.pop("wall_s")
    assert one == two
    for name in ("start_s", "end_s", "jct_s", "attained_gpu_s", "starts"):
        assert getattr(first, name).tobytes() == getattr(second, name).tobytes()
    assert first.segments is not None
    assert second.segments is not None
    assert first.segments.start_s.tobytes() == second.segments.start_s.tobytes()
    assert first.segments.gpu_mask.tolist() == second.segments.gpu_mask.tolist()


CONSERVING = ("fifo:backfill=greedy", "sjf", "srtf", "srsf", "tiresias", "gittins", "themis", "gavel", "hlas")


@pytest.mark.parametrize("policy", CONSERVING)
@settings(max_examples=examples(40))
@given(workload=workloads(), cluster=st.sampled_from(CLUSTERS), overhead=st.sampled_from([0.0, 20.0]))
def test_work_is_conserved(policy: str, workload: Workload, cluster: str, overhead: float) -> None:
    """No job waits while GPUs lie free on which the placer would put it."""
    nodes = parse_cluster(cluster)
    result = simulate(workload, nodes, policy, restart_overhead_s=overhead, record_segments=True)
    segments = result.segments
    assert segments is not None
    times = np.unique(np.concatenate([segments.start_s, segments.end_s, workload.submit_s]))
    for now in times[:-1].tolist():
        free = [(1 << node.gpus) - 1 for node in nodes.nodes]
        running = set()
        for row in np.flatnonzero((segments.start_s <= now) & (segments.end_s > now)).tolist():
            free[segments.node[row]] &= ~segments.gpu_mask[row]
            running.add(int(segments.job[row]))
        waiting = [
            job
            for job in range(len(workload))
            if workload.submit_s[job] <= now < result.end_s[job] and job not in running
        ]
        pool = pools_of(nodes, free)[0]
        assert not [job for job in waiting if pool.fits(int(workload.gpus[job]))], (now, free)


@settings(max_examples=examples(60))
@given(workload=workloads(largest=8))
def test_strict_fifo_never_lets_a_job_pass(workload: Workload) -> None:
    result = simulate(workload, "2x8", "fifo", restart_overhead_s=0.0)
    assert (np.diff(result.start_s) >= 0).all()


@settings(max_examples=examples(60))
@given(workload=workloads(largest=8))
def test_easy_backfill_never_delays_the_head(workload: Workload) -> None:
    """The first job that has to wait starts no later than under strict FIFO (durations are exact)."""
    strict = simulate(workload, "2x8", "fifo", restart_overhead_s=0.0)
    easy = simulate(workload, "2x8", "fifo:backfill=easy", restart_overhead_s=0.0)
    waits = np.flatnonzero(strict.start_s > strict.submit_s)
    if len(waits):
        first = int(waits[0])
        assert easy.start_s[first] <= strict.start_s[first] + 1e-6


def test_every_policy_declares_what_it_is() -> None:
    for policy in EVERY:
        made = load_policy(policy)
        assert made.traits.summary
        assert made.max_jobs_per_gpu == (2 if made.id == "antman" else 4 if policy in WOVEN else 1)
        assert (policy in ALONE) == (made.max_jobs_per_gpu == 1)
