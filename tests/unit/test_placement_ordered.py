"""The greedy walk with preemption, level orders, shares and repacking, against plain re-tellings."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import jobs
from gpuloom.core.cluster import parse_cluster
from gpuloom.core.decision import Decision, Placement
from gpuloom.core.errors import ClusterError
from gpuloom.core.snapshot import Snapshot
from gpuloom.core.state import State
from gpuloom.core.workload import Speeds
from gpuloom.placement.pool import pools_of
from gpuloom.placement.remaining import BareRemainingOrder, RemainingOrder
from gpuloom.placement.repack import repack
from gpuloom.policies.srsf import Srsf
from gpuloom.policies.srtf import Srtf
from gpuloom.sim import simulate
from gpuloom.solvers.fair_shares import least_worst_shares
from test_policies_hlas import Bench
from tiers import examples, slow

# -- greedy in order, with preemption ------------------------------------------------------------------------


class Watch:
    """Asserts after every decision that nobody waits for whom stopping later jobs would make room."""

    def look(self, snapshot: Snapshot, decision: Decision, *, by_gpus: bool) -> None:
        now, gpus = snapshot.now_s, snapshot.workload.gpus

        def waiting_key(job: int) -> float:
            return (snapshot.remaining_s(job) + snapshot.restart_overhead_s[job]) * (gpus[job] if by_gpus else 1)

        after = {job: place for job, place in snapshot.placements.items() if job not in decision.wait}
        keys = {job: (snapshot.predicted_end_s(job) - now) * (gpus[job] if by_gpus else 1) for job in after}
        keys |= {job: waiting_key(job) for job in decision.run}
        after |= decision.run
        for job in (*(j for j in snapshot.waiting() if j not in decision.run), *decision.wait):
            mine = waiting_key(job)
            free = [(1 << node.gpus) - 1 for node in snapshot.cluster.nodes]
            for other, place in after.items():
                if (keys[other], other) < (mine + 1e-6, job):
                    for node, mask in zip(place.nodes, place.masks, strict=True):
                        free[node] &= ~mask
            pool = pools_of(snapshot.cluster, free)[0]
            assert not pool.fits(int(gpus[job])), f"at {now} job {job} waits though all before it leave it room"


class WatchedSrtf(Srtf, Watch):
    def decide(self, snapshot: Snapshot, memory: Any) -> tuple[Decision, Any]:
        decision, memory = super().decide(snapshot, memory)
        self.look(snapshot, decision, by_gpus=False)
        return decision, memory


class WatchedSrsf(Srsf, Watch):
    def decide(self, snapshot: Snapshot, memory: Any) -> tuple[Decision, Any]:
        decision, memory = super().decide(snapshot, memory)
        self.look(snapshot, decision, by_gpus=True)
        return decision, memory


ROWS = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 60), st.integers(1, 12)), min_size=1, max_size=14)


@pytest.mark.parametrize("policy", [WatchedSrtf, WatchedSrsf])
@pytest.mark.parametrize("cluster", [*slow("1x12"), "3x4", *slow("12x1", "6x2")])
@settings(max_examples=examples(50))
@given(rows=ROWS, overhead=st.sampled_from([0.0, 3.0]))
def test_nobody_waits_whom_stopping_later_jobs_would_serve(
    policy: type[Srtf], cluster: str, rows: list[tuple[int, int, int]], overhead: float
) -> None:
    result = simulate(
        jobs([(float(s), float(d), g) for s, d, g in rows]),
        cluster,
        policy(),
        interval_s=0.0,
        restart_overhead_s=overhead,
    )
    assert result.finished == len(rows)


@pytest.mark.parametrize("policy", [WatchedSrtf, WatchedSrsf])
@settings(max_examples=examples(100))
@given(rows=ROWS)
def test_the_same_on_nodes_of_different_sizes(policy: type[Srtf], rows: list[tuple[int, int, int]]) -> None:
    workload = jobs([(float(s), float(d), g) for s, d, g in rows])
    assert simulate(workload, "3x2,1x6", policy(), interval_s=0.0, restart_overhead_s=0.0).finished == len(rows)


def test_a_short_gang_larger_than_the_largest_node_preempts_on_nodes_of_different_sizes() -> None:
    workload = jobs([(0, 1000, 4), (0, 1000, 4), (0, 1000, 4), (0, 1000, 8), (1, 10, 16)])
    result = simulate(workload, "3x4,1x8", "srtf", interval_s=0.0, restart_overhead_s=0.0)
    assert result.end_s[4] == 11.0


def test_no_more_victims_than_the_newcomer_needs() -> None:
    workload = jobs([(0, 100, 1), (0, 200, 1), (0, 300, 1), (0, 400, 1), (10, 20, 2)])
    result = simulate(workload, "1x4", "srtf", interval_s=0.0, restart_overhead_s=0.0)
    assert result.starts.tolist() == [1, 1, 2, 2, 1]
    assert result.end_s.tolist() == [100, 200, 320, 420, 30]


def test_victims_are_chosen_on_one_node() -> None:
    """The two longest jobs run on different nodes; stopping both would not make room for a gang of two."""
    workload = jobs([(0, 400, 1), (0, 100, 1), (0, 300, 1), (0, 200, 1), (10, 20, 2)])
    result = simulate(workload, "2x2", "srtf", interval_s=0.0, restart_overhead_s=0.0, record_segments=True)
    assert result.end_s[4] == 30.0
    assert sorted(result.starts.tolist()) == [1, 1, 1, 2, 2]
    assert result.segments is not None
    rows = [row for row in range(len(result.segments.job)) if result.segments.job[row] == 4]
    assert len(rows) == 1


# -- shares --------------------------------------------------------------------------------------------------


def worst(x: np.ndarray, age: np.ndarray, left: np.ndarray, ideal: np.ndarray) -> float:
    return float(((age + left / x) / ideal).max())


SHARES = st.lists(
    st.tuples(st.floats(0, 100), st.floats(1, 100), st.floats(1, 200), st.integers(1, 8)), min_size=1, max_size=8
)


@settings(max_examples=examples(150))
@given(rows=SHARES, capacity=st.integers(1, 16))
def test_least_worst_shares_reach_the_least_level_that_bisection_finds(
    rows: list[tuple[float, float, float, int]], capacity: int
) -> None:
    age, left, ideal, gpus = (np.array(column, dtype=float) for column in zip(*rows, strict=True))
    x = least_worst_shares(age, left, ideal, gpus, capacity)
    assert (x > 0).all()
    assert (x <= 1 + 1e-12).all()
    assert float(gpus @ x) <= capacity * (1 + 1e-9)
    # A level z is feasible if every job needs at most a share of 1 for it and the shares fit.
    low, high = float(((age + left) / ideal).max()), 1e9
    if float(gpus @ (left / (low * ideal - age))) > capacity:
        for _ in range(200):
            z = (low + high) / 2
            low, high = (z, high) if float(gpus @ (left / (z * ideal - age))) > capacity else (low, z)
        assert worst(x, age, left, ideal) == pytest.approx(high, rel=1e-6)
    else:
        assert worst(x, age, left, ideal) == pytest.approx(low, rel=1e-6)


def test_alike_jobs_get_alike_shares() -> None:
    same = np.full(4, 10.0)
    assert least_worst_shares(same, same, same, np.ones(4), 2.0) == pytest.approx(np.full(4, 0.5))


def test_everyone_gets_all_where_there_is_plenty() -> None:
    one = np.ones(3)
    x = least_worst_shares(np.zeros(3), one * 100, one * 100, one, 3.0)
    assert x == pytest.approx(one, abs=1e-6)


# -- repacking -----------------------------------------------------------------------------------------------


def snapshot_of(cluster: str, *gpus: int) -> Snapshot:
    workload = jobs([(0, 1, g) for g in gpus])
    return Snapshot(State(workload, parse_cluster(cluster)), np.zeros(len(workload)))


def test_repacking_is_first_fit_in_order() -> None:
    placed = repack(snapshot_of("2x4", 3, 2, 1, 4), [0, 1, 2, 3])
    assert placed == {
        0: Placement((0,), (0b0111,)),
        1: Placement((1,), (0b0011,)),
        2: Placement((0,), (0b1000,)),
    }


def test_repacking_spreads_large_jobs_over_empty_nodes_and_one_remainder() -> None:
    placed = repack(snapshot_of("3x4", 1, 6), [0, 1])
    assert placed[1] == Placement((1, 0), (0b1111, 0b0110))


def test_repacking_leaves_lost_nodes_alone() -> None:
    assert repack(snapshot_of("2x4", 1, 8), [0, 1], down=[0]) == {0: Placement((1,), (0b0001,))}


def first_fit(nodes: int, size: int, gpus: list[int]) -> dict[int, dict[int, int]]:
    used, placed = [0] * nodes, {}
    for job, need in enumerate(gpus):
        whole, rest = (0, need) if need <= size else divmod(need, size)
        empty = [node for node in range(nodes) if used[node] == 0][:whole]
        room = [node for node in range(nodes) if node not in empty and used[node] + rest <= size]
        if len(empty) < whole or (rest and not room):
            continue
        placed[job] = dict.fromkeys(empty, size) | ({room[0]: rest} if rest else {})
        for node, count in placed[job].items():
            used[node] += count
    return placed


@settings(max_examples=examples(150))
@given(cluster=st.sampled_from([(1, 4), (4, 4), (3, 2), (5, 1)]), gpus=st.lists(st.integers(1, 12), max_size=12))
def test_repacking_equals_first_fit_told_plainly(cluster: tuple[int, int], gpus: list[int]) -> None:
    nodes, size = cluster
    placed = repack(snapshot_of(f"{nodes}x{size}", *gpus), range(len(gpus)))
    got = {job: dict(zip(p.nodes, map(int.bit_count, p.masks), strict=True)) for job, p in placed.items()}
    assert got == first_fit(nodes, size, gpus)
    used = [0] * nodes
    for placement in placed.values():
        for node, mask in zip(placement.nodes, placement.masks, strict=True):
            assert used[node] & mask == 0
            used[node] |= mask


def test_repacking_in_the_simulator_needs_nodes_that_are_alike() -> None:
    with pytest.raises(ClusterError, match="needs nodes that are all alike, not 1x4,1x8"):
        simulate(jobs([(0, 1, 1)]), "1x4,1x8", "srtf:placement=repack")


def test_keys_by_what_is_left() -> None:
    """100 s of work, at twice the speed at best, and 10 s to start; weight 4, 2 GPUs."""
    workload = jobs([(0, 100, 2), (0, 30, 1)], weight=np.array([4.0, 1.0]))
    fast = replace(workload, speeds=Speeds(("A", "B"), np.array([[0.5, 2.0], [1.0, 1.0]])))
    for columns, with_start, bare in ((workload, 27.5, 25.0), (fast, 15.0, 25.0)):
        state = State(columns, parse_cluster("1x2:A,1x2:B"))
        state.submit(0, 0.0)
        state.submit(1, 0.0)
        snapshot = Snapshot(state, np.full(2, 10.0))
        for by_gpus in (False, True):
            gpus = 2 if by_gpus else 1
            order = RemainingOrder(snapshot, by_gpus=by_gpus)
            assert [order.waiting_key(snapshot, job) for job in (0, 1)] == [with_start * gpus, 40.0]
            plain = BareRemainingOrder(columns, by_gpus=by_gpus)
            assert [plain.waiting_key(snapshot, job) for job in (0, 1)] == [bare * gpus, 30.0]
            assert plain.running_keys(snapshot, [1, 0]) == [30.0, bare * gpus]
            unweighed = BareRemainingOrder(replace(columns, weight=None), by_gpus=by_gpus)
            assert unweighed.running_keys(snapshot, [0]) == [100.0 * gpus]


def test_no_more_are_stopped_than_lack() -> None:
    """Three GPUs are wanted, and two are free: the longest of the two that run makes room."""
    found = simulate(
        jobs([(0, 1000, 1), (0, 2000, 1), (10, 10, 3)]),
        "1x4",
        "srtf:placement=scatter",
        restart_overhead_s=0.0,
        interval_s=0.0,
    )
    assert found.end_s.tolist() == [1000.0, 2010.0, 20.0]
    assert found.restarts == 1


def test_of_those_that_would_be_stopped_the_first_stay_if_the_last_are_enough() -> None:
    """Two GPUs are wanted: of jobs of one and of two GPUs, in this order from the last, the second is enough."""
    found = simulate(
        jobs([(0, 1000, 2), (0, 2000, 1), (0, 3000, 1), (10, 10, 2)]),
        "1x4",
        "srtf:placement=scatter",
        restart_overhead_s=0.0,
        interval_s=0.0,
    )
    assert found.end_s.tolist() == [1000.0, 2010.0, 3010.0, 20.0]
    wide = simulate(
        jobs([(0, 2000, 2), (0, 3000, 1), (10, 10, 2)]), "1x3", "srtf:placement=scatter", restart_overhead_s=0.0,
        interval_s=0.0,
    )  # fmt: skip
    assert wide.end_s.tolist() == [2010.0, 3000.0, 20.0]  # job 1 alone is not enough, and with job 0 it is not needed


@pytest.mark.parametrize(("by_gpus", "wanted"), [(False, [130.0, 55.0]), (True, [260.0, 220.0])])
def test_who_waits_is_ranked_by_its_time_on_its_fastest_model(by_gpus: bool, wanted: list[float]) -> None:
    speeds = Speeds(("A", "B"), np.array([[0.5, 1.0], [2.0, 0.5]]))
    workload = jobs([(0, 100, 2), (0, 50, 4)], speeds=speeds)
    state = State(workload, parse_cluster("1x4:A,1x4:B"))
    for job in range(2):
        state.submit(job, 0.0)
    snapshot = Snapshot(state, np.array([30.0, 30.0]))
    order = RemainingOrder(snapshot, by_gpus=by_gpus)
    assert [order.waiting_key(snapshot, job) for job in range(2)] == wanted


@pytest.mark.parametrize("policy", ["srtf:upgrade=no", "srsf:upgrade=no", "srtf:placement=scatter;upgrade=no"])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_waiting_job_stops_others_for_what_it_is_on_their_gpus_alone(policy: str, weighted: bool) -> None:
    """Two alike on one slow GPU: on a fast one, which it doesn't get, whoever waits would be done sooner."""
    rows = [(0.0, 100.0, 1), (0.0, 1000.0, 1), (0.0, 1000.0, 1), (0.0, 300.0, 1)]
    speeds = Speeds(("V100", "K80"), np.array([[4.0, 1.0]] * 4))
    workload = jobs(rows, speeds=speeds, weight=np.full(4, 2.0) if weighted else None)
    it = Bench(workload, parse_cluster("1x1:V100,1x1:K80"), policy, overhead_s=10.0)
    it.at(0.0, arrived=[0, 1, 2])
    assert it.running == {0: 0, 1: 1}
    for now_s in (1.0, 1.0, 5.0, 20.0):
        it.at(now_s)
        assert it.running == {0: 0, 1: 1}
    it.at(21.0, arrived=[3])  # it ends sooner also there
    assert it.running == {0: 0, 3: 1}
    it.at(60.0, finished=[0])
    assert it.running[3] == 1
    assert len(it.running) == 2
