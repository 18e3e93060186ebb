"""Parts of the learner: chance, groups, tables, ratios, even placements."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import jobs
from gpuloom.core.cluster import parse_cluster
from gpuloom.core.snapshot import Snapshot
from gpuloom.core.state import State
from gpuloom.core.workload import Labels, Workload
from gpuloom.learning.comm_model import CommModel
from gpuloom.learning.learnt_table import LearntTable, read_table
from gpuloom.learning.q_learning import bellman, carried_over, epsilon, k_means, nearest, uniform
from gpuloom.learning.ratios import MOST_LOG_RATIO, log_ratios, models_of
from gpuloom.placement.even import HOLD, HOLD_ALL, EvenPool, EvenQueue, choices_of, cost_of
from scaling import scaling_of


def i4(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int32)


class TestChance:
    def test_is_a_function_of_seed_and_draw(self) -> None:
        drawn = np.array([uniform(7, draw) for draw in range(4000)])
        assert drawn.tolist() == [uniform(7, draw) for draw in range(4000)]
        assert len(set(drawn)) == 4000
        assert uniform(8, 0) != uniform(7, 0)
        assert ((drawn >= 0) & (drawn < 1)).all()
        assert drawn.mean() == pytest.approx(0.5, abs=0.03)
        assert np.corrcoef(drawn[1:], drawn[:-1])[0, 1] == pytest.approx(0, abs=0.05)

    def test_epsilon_falls_in_a_line_and_stays(self) -> None:
        assert [epsilon(n, 0.5, 0.1, 4) for n in (0, 2, 4, 400)] == pytest.approx([0.5, 0.3, 0.1, 0.1])


class TestGroups:
    def test_finds_clusters_that_lie_apart(self) -> None:
        rng = np.random.default_rng(3)
        values = np.concatenate([rng.normal(centre, 0.05, 50) for centre in (-2.0, 1.0, 5.0)])
        for seed in range(20):
            found = k_means(values, 3, seed, 0)
            assert found == pytest.approx([-2, 1, 5], abs=0.05), seed

    def test_fewer_values_than_groups_are_their_own_centres(self) -> None:
        assert k_means(np.array([3.0, 1.0, 3.0]), 4, 0, 0).tolist() == [1, 3]

    @given(
        values=st.lists(st.floats(-50, 50), min_size=1, max_size=60),
        groups=st.integers(1, 6),
        seed=st.integers(0, 1000),
    )
    def test_ends_where_no_centre_moves(self, values: list[float], groups: int, seed: int) -> None:
        numbers = np.array(values)
        centres = k_means(numbers, groups, seed, 0)
        assert 1 <= len(centres) <= groups
        assert (np.diff(centres) > 0).all()
        member = nearest(centres, numbers)
        by_hand = np.abs(numbers[:, None] - centres).min(axis=1)
        assert np.abs(numbers - centres[member]) == pytest.approx(by_hand, abs=1e-9)
        for group in np.unique(member):
            assert centres[group] == pytest.approx(numbers[member == group].mean(), abs=1e-6)

    def test_rows_are_carried_over_by_where_the_jobs_came_from(self) -> None:
        """New group 0 (around 1): two jobs of old group 0, one of old group 1. New group 1: old group 1's alone."""
        table = np.array([[3.0, np.nan, 1.0], [9.0, 5.0, np.nan]])
        before, after = np.array([0.0, 3.0]), np.array([1.0, 6.0])
        values = np.array([0.5, 1.0, 2.0, 6.0])
        found = carried_over(table, before, after, values)
        np.testing.assert_allclose(found, [[(3 + 3 + 9) / 3, 5.0, 1.0], [9.0, 5.0, np.nan]])

    def test_a_group_without_jobs_takes_the_row_it_lies_in(self) -> None:
        table = np.array([[1.0], [2.0]])
        assert carried_over(table, np.array([0.0, 10.0]), np.array([0.0, 9.0]), np.array([0.0])).tolist() == [[1], [2]]


def test_bellman_settles_at_the_discounted_reward() -> None:
    """Q = R + γ · max Q of one state with one action: R / (1 - γ)."""
    value = 0.0
    for _ in range(400):
        value = bellman(value, 2.0, value, 0.1, 0.5)
    assert value == pytest.approx(4.0, rel=1e-6)


class TestTable:
    def test_reads_back_exactly_and_by_name_of_choice(self) -> None:
        values = np.array([[0.1, np.nan, 1 / 3], [0.0, 2.0, 3.0]])
        table = LearntTable(("wait", "1x1", "2x4"), np.array([0.7]), values, np.array([0.7, 0.7]), 40, 38, 1.5)
        again = read_table(table.text())
        np.testing.assert_array_equal(again.values, values)
        assert (again.choices, again.submitted, again.handled, again.mean_value) == (table.choices, 40, 38, 1.5)
        np.testing.assert_array_equal(again.columns(("2x4", "8x8", "wait")), [[1 / 3, np.nan, 0.1], [3.0, np.nan, 0.0]])

    @pytest.mark.parametrize(
        ("text", "what"),
        [
            ("[]", "format"),
            ('{"format": "other"}', "format"),
            ("{", "Expecting"),
            ('{"format": "gpuloom-learnt-placement-1"}', "lacks"),
            ('{"format": "gpuloom-learnt-placement-1", "choices": ["1y2"], "centres": [], "values": [[1]]}', "NODESx"),
            ('{"format": "gpuloom-learnt-placement-1", "choices": ["1x1"], "centres": [1], "values": [[1]]}', "rows"),
            ('{"format": "gpuloom-learnt-placement-1", "choices": ["1x1"], "centres": [2, 1], "values": []}', "rising"),
            ('{"format": "gpuloom-learnt-placement-1", "choices": ["1x1"], "centres": [], "values": [["a"]]}', "'a'"),
            ('{"format": "gpuloom-learnt-placement-1", "choices": ["1x1"], "centres": [], "values": [[[1]]]}', "list"),
        ],
    )
    def test_says_what_is_wrong(self, text: str, what: str) -> None:
        with pytest.raises(ValueError, match=what):
            read_table(text)


class TestRatios:
    def test_by_stage_times_else_by_the_curve_else_unknown(self) -> None:
        truth = CommModel(0.0, 8.0, 0.5, 2.0)
        gpus, nodes = np.arange(1.0, 17)[:, None], np.arange(1.0, 5)[None, :]
        curve = np.vstack([np.zeros(4), 1.0 / truth.step_s(gpus, nodes, np.array(1.0))])
        scaling = scaling_of(i4(4, 4, 4, 1), [curve], i4(0, 0, -1, 0), i4(1, 1, 4, 1), i4(16, 16, 4, 16))
        stage = np.array([[0, np.nan, np.nan], [0, 6.0, 3.0], [0, np.nan, np.nan], [0.0, 5.0, 0.0]])
        workload = jobs([(0, 10, 4)] * 3 + [(0, 10, 1)], scaling=scaling, stage_s=stage)
        found = log_ratios(workload, models_of(workload))
        assert found[0] == pytest.approx(math.log(truth.ratio(1.0)), abs=0.1)
        assert found[1] == pytest.approx(math.log(2))
        assert math.isnan(found[2])
        assert found[3] == MOST_LOG_RATIO


def snapshot_of(workload: Workload, cluster: str, submitted: int) -> Snapshot:
    state = State(workload, parse_cluster(cluster))
    for job in range(submitted):
        state.submit(job, 0.0)
    return Snapshot(state, np.zeros(len(workload)))


class TestEven:
    def test_choices_are_all_even_placements_up_to_the_largest_job(self) -> None:
        choices = choices_of(jobs([(0, 1, 4), (0, 1, 1)]), parse_cluster("3x2"))
        assert choices.names == ("wait", "packed", "1x1", "1x2", "2x1", "3x1", "2x2")

    def test_choices_stay_on_one_gpu_model(self) -> None:
        """No model has more than two nodes of two GPUs."""
        names = choices_of(jobs([(0, 1, 8)]), parse_cluster("1x4:A,2x2:B")).names
        assert names == ("wait", "packed", "1x1", "1x2", "2x1", "1x3", "1x4", "2x2")

    def test_best_fit_on_each_node(self) -> None:
        cluster = parse_cluster("4x4")
        pool = EvenPool(cluster, range(4), [0b1111, 0b0011, 0b0111, 0b0110])
        assert pool.ready() == [4, 4, 4, 2, 1]
        taken = pool.take_even(3, 2)
        assert taken is not None
        assert dict(zip(taken.nodes, taken.masks, strict=True)) == {1: 0b11, 3: 0b110, 2: 0b11}
        assert pool.take_even(2, 2) is None
        assert pool.free_gpus == 5

    def test_the_queue_is_walked_in_order_of_submission(self) -> None:
        workload = jobs([(0, 9, 2), (1, 9, 8), (2, 9, 2), (3, 9, 8), (4, 9, 1)])
        snapshot = snapshot_of(workload, "1x4", 0)
        asked: list[int] = []
        snapshot = snapshot_of(workload, "2x4", 5)
        queue = EvenQueue(snapshot, choices_of(workload, snapshot.cluster))

        def choose(job: int, kind: object, fits: np.ndarray) -> int:
            asked.append(job)
            return HOLD if job == 2 else int(fits.argmax())

        run = queue.walk(choose)
        # Job 1 and 3 need all GPUs; job 2 does not want to.
        assert asked == [0, 2, 4]
        assert sorted(run) == [0, 4]
        asked.clear()
        assert queue.walk(lambda job, kind, fits: asked.append(job) or HOLD_ALL) == {}  # type: ignore[func-returns-value]
        assert asked == [2]
        assert queue.waiting == 3

    def test_a_refusal_of_all_is_for_the_group(self) -> None:
        """Jobs of one kind, even and odd ones told apart, job 0 refusing; then all in one group but the last."""
        workload = jobs([(0, 9, 1)] * 6)
        snapshot = snapshot_of(workload, "1x8", 6)
        queue = EvenQueue(snapshot, choices_of(workload, snapshot.cluster))
        queue.regroup(lambda waiting: np.array(waiting) % 2)
        asked: list[int] = []

        def choose(job: int, kind: object, fits: np.ndarray) -> int:
            asked.append(job)
            return HOLD if job == 3 else HOLD_ALL if job == 0 else 0

        assert sorted(queue.walk(choose)) == [1, 5]
        assert asked == [0, 1, 3, 5]
        asked.clear()
        queue.regroup(lambda waiting: np.array(waiting) // 4)
        assert sorted(queue.walk(choose)) == [4]
        assert asked == [0, 4]
        assert queue.waiting == 3

    def test_kinds_whose_jobs_differ(self) -> None:
        curve = np.array([[0.0], [1.0], [2.0]])
        scaling = scaling_of(
            i4(1, 1, 1, 1, 1), [curve, curve], i4(0, 0, 1, 1, -1), i4(1, 1, 1, 1, 1), i4(2, 2, 2, 2, 1)
        )
        workload = jobs([(0, 9, 1)] * 5, scaling=scaling)
        snapshot = snapshot_of(workload, "1x4", 5)
        queue = EvenQueue(snapshot, choices_of(workload, snapshot.cluster))
        found = queue.differing(np.array([0.5, np.nan, 3.0, 3.0, 1.0]))
        assert [bool(found[queue.kind_of[job]]) for job in (0, 2, 4)] == [True, False, False]

    def test_cost_by_hand(self) -> None:
        """Two GPUs of eight, on one node of four and on two, where one is enough."""
        workload = jobs([(0, 9, 2)])
        snapshot = snapshot_of(workload, "2x4", 1)
        kind = EvenQueue(snapshot, choices_of(workload, snapshot.cluster)).kind(0)
        found = cost_of(kind, snapshot.cluster, thrift=0.5, fragmentation=0.2)
        assert found == pytest.approx([0.25**0.5, (0.25 * 2**0.2) ** 0.5])

    def test_a_size_that_fits_only_unevenly_is_packed(self) -> None:
        workload = jobs([(0, 9, 7)])
        snapshot = snapshot_of(workload, "2x4", 1)
        queue = EvenQueue(snapshot, choices_of(workload, snapshot.cluster))
        assert queue.kind(0).packed
        run = queue.walk(lambda job, kind, fits: 0)
        assert run[0].gpus == 7

    def test_choices_are_those_that_the_nodes_of_its_own_models_can_hold(self) -> None:
        curve = np.vstack([np.zeros(1), np.arange(1.0, 9.0)[:, None]])
        scaling = scaling_of(i4(2, 2), [curve], i4(0, 0), i4(1, 1), i4(8, 8))
        workload = jobs([(0, 9, 2)] * 2, scaling=scaling, gpu_type=Labels.of(["B", ""]))
        snapshot = snapshot_of(workload, "2x4:A,3x2:B", 2)
        queue = EvenQueue(snapshot, choices_of(workload, snapshot.cluster))
        of_b, of_any = (
            {(int(n), int(g)) for n, g in zip(k.nodes, k.per_node, strict=True)} for k in map(queue.kind, (0, 1))
        )
        assert of_b == {(1, 1), (2, 1), (3, 1), (1, 2), (2, 2), (3, 2)}
        assert of_any == {*of_b, (1, 3), (2, 3), (1, 4), (2, 4)}

    def test_sizes_that_a_curve_rules_out_are_no_choice(self) -> None:
        curve = np.array([[0.0], [1.0], [2.0], [0.0], [4.0]])
        scaling = scaling_of(i4(2), [curve], i4(0), i4(1), i4(4))
        workload = jobs([(0, 9, 2)], scaling=scaling)
        snapshot = snapshot_of(workload, "1x4", 1)
        queue = EvenQueue(snapshot, choices_of(workload, snapshot.cluster))
        assert queue.kind(0).gpus.tolist() == [1, 2, 4]

    def test_gpu_models_are_kept_to(self) -> None:
        workload = jobs([(0, 9, 2), (0, 9, 2)], gpu_type=Labels.of(["B", ""]))
        snapshot = snapshot_of(workload, "1x2:A,1x4:B", 2)
        queue = EvenQueue(snapshot, choices_of(workload, snapshot.cluster))
        run = queue.walk(lambda job, kind, fits: int(fits.argmax()))
        assert (run[0].nodes, run[1].nodes) == ((1,), (0,))
