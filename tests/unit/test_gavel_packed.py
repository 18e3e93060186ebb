"""`gavel:packed`: pairs as rows of the program, and rounds in which jobs share GPUs."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import jobs
from gpuloom.core.cluster import parse_cluster
from gpuloom.core.errors import PolicyError
from gpuloom.core.pairs import PairTable
from gpuloom.core.workload import F8, Labels, Speeds, Workload
from gpuloom.facts.inputs import load_policy
from gpuloom.facts.pairs import with_pairs
from gpuloom.policies.gavel import Gavel
from gpuloom.sim import simulate
from gpuloom.solvers.shares import Rows, Shares

MODELS = ("V100", "K80")


def paired(
    names: str, share: dict[tuple[str, str, str], tuple[float, float]], durations: list[float] | None = None
) -> Workload:
    """Jobs of one GPU at second 0 of these models (a letter each), with these pairs by GPU model."""
    rows = [(0.0, duration, 1) for duration in durations or [1000.0] * len(names)]
    speeds = Speeds(MODELS, np.array([[1.0, 0.25]] * len(names)))
    table = {(gpu, (one, 1), (two, 1)): shares for (gpu, one, two), shares in share.items()}
    return with_pairs(jobs(rows, model=Labels.of(names), speeds=speeds), PairTable("test", table))


def test_two_jobs_on_one_gpu_share_it_at_their_measured_speeds() -> None:
    found = simulate(paired("ab", {("V100", "a", "b"): (0.9, 0.6)}), "1x1:V100", "gavel:packed", restart_overhead_s=0.0)
    # Together at least to 1,000 s; max-min may give the slower one time alone, and never does worse than turns.
    alone = simulate(paired("ab", {}), "1x1:V100", "gavel", restart_overhead_s=0.0)
    assert found.makespan_s < 0.75 * alone.makespan_s
    even = simulate(paired("ab", {("V100", "a", "b"): (0.9, 0.9)}), "1x1:V100", "gavel:packed", restart_overhead_s=0.0)
    assert even.end_s.tolist() == pytest.approx([1000 / 0.9] * 2)


def test_jobs_that_do_not_fit_together_or_gain_nothing_take_turns() -> None:
    for shares in ((0.0, 0.0), (0.4, 0.4)):
        found = simulate(paired("ab", {("V100", "a", "b"): shares}), "1x1:V100", "gavel:packed", restart_overhead_s=0.0)
        assert sorted(found.end_s.tolist())[-1] == pytest.approx(2000)


def test_a_pair_shares_the_fast_gpu_rather_than_one_taking_the_slow_one() -> None:
    workload = paired("ab", {("V100", "a", "b"): (0.9, 0.9)})
    found = simulate(workload, "1x1:V100,1x1:K80", "gavel:packed", restart_overhead_s=0.0)
    assert found.makespan_s == pytest.approx(1000 / 0.9)
    assert found.held_gpu_s[:, 1].sum() == 0
    assert simulate(workload, "1x1:V100,1x1:K80", "gavel", restart_overhead_s=0.0).makespan_s > 1400


def test_without_measured_pairs_it_gives_nobody_less_than_gavel_does() -> None:
    rng = np.random.default_rng(4)
    workload = paired("abcdefgh" * 3, {}, rng.uniform(1000, 50_000, 24).tolist())
    cluster = "2x2:V100,2x2:K80"
    packed, plain = (simulate(workload, cluster, p, restart_overhead_s=0.0) for p in ("gavel:packed", "gavel"))
    assert packed.avg_jct_s == pytest.approx(plain.avg_jct_s, rel=0.1)


def test_only_max_min_fairness_packs() -> None:
    with pytest.raises(PolicyError, match="gavel:packed is for max_min_fairness, not for objective=makespan"):
        load_policy("gavel:packed;objective=makespan")
    assert load_policy("gavel:packed").max_jobs_per_gpu == 2
    assert load_policy("gavel:packed").traits.sharing
    assert not load_policy("gavel").traits.sharing
    assert load_policy("gavel").max_jobs_per_gpu == 1


def test_shares_beside_kinds_are_settled_anew_where_the_kinds_are_others() -> None:
    cluster = parse_cluster("1x1:V100,1x1:K80")
    policy = Gavel(packed=True)
    before = paired("ab", {("V100", "a", "b"): (0.9, 0.6)})
    memory = policy.new_memory(before, cluster)
    memory.beside[:] = 0.5
    memory.stale = False
    rows, nodes = np.array([1, -1], dtype=np.intp), np.arange(2, dtype=np.intp)
    same = policy.carried(memory, rows, nodes, before, cluster)
    assert same.beside[0].tolist() == [0.5] * 6
    assert same.beside[1].tolist() == [0.0] * 6
    assert not same.stale
    other = policy.carried(memory, rows, nodes, replace(before, pairs=None), cluster)
    assert other.beside.shape == (2, 2)
    assert other.stale


# -- the program, of kinds and of every pair of jobs ---------------------------------------------------------------


def every_pair(speed: F8, share: F8, kind: list[int]) -> Rows:
    """A row for each job and for every two jobs."""
    n = len(kind)
    row, job, throughput = list(range(n)), list(range(n)), [speed[kind[m]] for m in range(n)]
    count = n
    for one, two in combinations(range(n), 2):
        mine, its = share[:, kind[one], kind[two]], share[:, kind[two], kind[one]]
        fits = (mine > 0) & (its > 0)
        row += [count, count]
        job += [one, two]
        throughput += [np.where(fits, speed[kind[one]] * mine, 0.0), np.where(fits, speed[kind[two]] * its, 0.0)]
        count += 1
    gpus, alike = np.ones(count), np.ones(count)
    return Rows(gpus, alike, np.array(row), np.array(job), np.array(throughput), n)


@given(st.data())
def test_kinds_of_jobs_reach_the_level_that_their_jobs_reach_one_by_one(data: st.DataObject) -> None:
    kinds = data.draw(st.integers(1, 3))
    counts = data.draw(st.lists(st.integers(1, 3), min_size=kinds, max_size=kinds))
    numbers = st.sampled_from([0.0, 0.4, 0.6, 0.7, 0.9, 1.0])
    share = np.zeros((2, kinds, kinds))
    for model in range(2):
        for one in range(kinds):
            for two in range(one, kinds):
                mine, its = data.draw(numbers), data.draw(numbers)
                share[model, one, two], share[model, two, one] = (
                    (mine, its) if mine + its > 1 and mine * its else (0, 0)
                )
                if one == two:
                    share[model, one, one] = mine if mine > 0.5 else 0.0
    speed = np.array([[1.0, data.draw(st.sampled_from([0.2, 0.5, 1.5]))] for _ in range(kinds)])
    capacity = np.array([float(data.draw(st.integers(1, 2))), 1.0])
    kind = [number for number, count in enumerate(counts) for _ in range(count)]
    level = Shares(every_pair(speed, share, kind), capacity, np.ones(len(kind))).fair(np.ones(len(kind)))[1]

    names = [f"k{number}" for number in kind]
    workload = jobs([(0.0, 1e6, 1)] * len(kind), model=Labels.of(names), speeds=Speeds(MODELS, speed[kind]))
    table = {
        (MODELS[model], (f"k{one}", 1), (f"k{two}", 1)): (share[model, one, two], share[model, two, one])
        for model in range(2)
        for one in range(kinds)
        for two in range(one, kinds)
    }
    workload = with_pairs(workload, PairTable("test", table))
    cluster = parse_cluster(f"1x{int(capacity[0])}:V100,1x1:K80")
    made = Made(workload, cluster)
    rows, _ = made.rounds._rows(speed, np.ones(kinds), np.array(counts, dtype=float), np.arange(kinds))
    found = Shares(rows, capacity, np.ones(kinds)).fair(np.ones(kinds))
    assert found[1] == pytest.approx(level, abs=1e-5)
    assert rows.throughputs(found[0]).min() >= level - 1e-5


class Made:
    """The rounds of a policy that has just begun."""

    def __init__(self, workload: Workload, cluster: object) -> None:
        from gpuloom.core.snapshot import Snapshot
        from gpuloom.core.state import State
        from gpuloom.policies.gavel_packed import PackedRounds
        from gpuloom.policies.gavel_rounds import Terms

        policy = Gavel(packed=True)
        state = State(workload, cluster, layers=2)  # type: ignore[arg-type]
        state.submit_all(np.arange(len(workload), dtype=np.intp))
        snapshot = Snapshot(state, np.zeros(len(workload)), np.zeros(len(workload)))
        memory = policy.new_memory(workload, cluster)  # type: ignore[arg-type]
        self.rounds = PackedRounds(snapshot, memory, Terms.of(policy.values))
