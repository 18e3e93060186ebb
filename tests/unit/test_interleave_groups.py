"""How fast jobs run in groups, and which groups the rounds of matching form."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import jobs
from gpuloom.core.decision import Placement
from gpuloom.core.workload import Workload
from gpuloom.interleave.efficiency import MEASURED_OVERHEAD, Interleaving
from gpuloom.interleave.groups import UNKNOWN, GroupTimes
from gpuloom.interleave.rounds import Bucket, Rounds
from gpuloom.interleave.worth import GroupSharing
from released_times import Stages, one_order_s

PLAIN = (1.0,) * 4
NAN = float("nan")


def staged(rows: Sequence[Stages], **columns: Any) -> Workload:
    return jobs([(float(i), 100.0, 1) for i in range(len(rows))], stage_s=np.array(rows, dtype=float), **columns)


def times(rows: Sequence[Stages], *, overhead: tuple[float, ...] = PLAIN, order: str = "best", **more: Any):
    columns = {name: np.array(more.pop(name), float) for name in ("iteration_s", "gpu_memory_mib") if name in more}
    return GroupTimes(staged(rows, **columns), Interleaving("measured", order, overhead), **more, floor=False)


def together_s(group: Sequence[Stages], order: str = "best") -> float:
    """T of a group, its jobs tried in every order; two may also stand half a round apart."""
    if order == "none":
        return one_order_s(sorted(group))
    tried = [one_order_s(way) for way in permutations(group)]
    if len(group) == 2:
        (load, compute, network), (load2, compute2, network2) = group
        tried.append(max(load, compute2 + network2) + max(load2, compute + network))
    return max(tried) if order == "worst" else min(tried)


stage = st.one_of(st.sampled_from([0.0, 0.1, 0.5, 1.0, 2.0]), st.floats(0.01, 3.0))
profile = st.tuples(stage, stage, stage).filter(lambda row: sum(row) > 0)


# -- how long a group's iteration takes ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("group", "seconds"),
    [
        # One loads while the other computes: half a round apart, max(3, 3) + max(1, 1).
        ([(3, 1, 0), (1, 3, 0)], 4),
        ([(3, 1, 0), (1, 2, 0)], 4),
        # Both compute only: one after the other.
        ([(0, 2, 0), (0, 2, 0)], 4),
        # Loading of one beside compute and network of the other, twice.
        ([(2, 1, 1), (2, 1, 1)], 4),
        # Alone: the stages one after the other.
        ([(1, 2, 3)], 6),
    ],
)
def test_groups_worked_out_by_hand(group: list[Stages], seconds: float) -> None:
    model = times(group)
    assert model.iteration_s(model.profiles_of(range(len(group)))) == pytest.approx(seconds)


@given(group=st.lists(profile, min_size=2, max_size=4), order=st.sampled_from(["best", "worst", "none"]))
def test_t_is_what_the_released_simulator_computes(group: list[Stages], order: str) -> None:
    model = times(group, order=order)
    profiles = model.profiles_of(range(len(group)))
    assert model.iteration_s(profiles) == pytest.approx(together_s(group, order), rel=1e-9)
    assert model.planned_iteration_s([profiles]) == [model.iteration_s(profiles)]


@given(group=st.lists(profile, min_size=2, max_size=4))
def test_the_overhead_is_a_factor_by_the_number_of_jobs(group: list[Stages]) -> None:
    plain, measured = times(group), times(group, overhead=MEASURED_OVERHEAD)
    profiles = plain.profiles_of(range(len(group)))
    factor = {2: 1.33, 3: 1.5, 4: 1.37}[len(group)] / 1.015
    assert measured.iteration_s(profiles) == pytest.approx(factor * plain.iteration_s(profiles))


@given(group=st.lists(profile, min_size=2, max_size=4), solo=st.lists(st.floats(0.1, 9), min_size=4, max_size=4))
def test_gain_and_efficiency_are_what_they_are_defined_as(group: list[Stages], solo: list[float]) -> None:
    model = times(group, iteration_s=solo[: len(group)])
    profiles = model.profiles_of(range(len(group)))
    seconds = together_s(group)
    assert model.gains([profiles])[0] == pytest.approx(sum(solo[: len(group)]) / seconds)
    assert model.efficiency([profiles])[0] == pytest.approx(sum(map(sum, group)) / (4 * seconds))
    sharing = GroupSharing(model)
    rates = [sharing.rate(job, job, [(o, o) for o in range(len(group)) if o != job]) for job in range(len(group))]
    assert rates == pytest.approx([solo[job] / seconds for job in range(len(group))])


# -- profiles --------------------------------------------------------------------------------------------------


def test_jobs_with_the_same_stages_are_one_profile() -> None:
    model = times([(1, 2, 0), (2, 1, 0), (1, 2, 0)])
    assert model.of_job[0] == model.of_job[2] != model.of_job[1]
    assert model.profiles_of([0, 1, 2]) == model.profiles_of([2, 1, 0])
    assert len(model.solo_s) == 2


def test_the_same_stages_with_another_solo_time_or_memory_are_another_profile() -> None:
    assert len(times([(1, 2, 0)] * 3, iteration_s=[3, 2.5, 3]).solo_s) == 2
    assert len(times([(1, 2, 0)] * 3, gpu_memory_mib=[100, 200, 100]).solo_s) == 2


def test_the_solo_time_is_the_iteration_s_or_else_the_sum_of_the_stages() -> None:
    model = times([(1, 2, 0), (1, 3, 0), (1, 4, 0), (1, 5, 0)], iteration_s=[2.5, NAN, 0, -1])
    assert [model.iteration_s(model.profiles_of([job])) for job in range(4)] == [2.5, 4, 5, 6]


@pytest.mark.parametrize("row", [(NAN, 1, 1), (NAN, NAN, NAN), (0, 0, 0)])
def test_a_job_without_stage_times_has_no_profile(row: Stages) -> None:
    model = times([row, (1, 1, 0)])
    assert model.of_job[0] == UNKNOWN
    assert model.of_job[1] != UNKNOWN
    assert model.profiles_of([1, 0])[0] == UNKNOWN


def test_a_workload_without_stages_has_no_profiles() -> None:
    model = GroupTimes(jobs([(0, 1, 1), (0, 2, 2)]), Interleaving())
    assert list(model.of_job) == [UNKNOWN, UNKNOWN]
    assert GroupSharing(model).rate(0, 0, [(1, 1)]) == 0.5


def test_without_neighbours_a_job_runs_at_solo_speed() -> None:
    sharing = GroupSharing(times([(1, 2, 0), (NAN, 1, 1)], iteration_s=[99, 99]))
    assert sharing.rate(0, 0, []) == sharing.rate(1, 0, []) == 1.0


def test_beside_a_job_without_stage_times_everyone_gets_an_even_share() -> None:
    """No policy forms such a group, but nothing is known that could say otherwise, whoever asks."""
    sharing = GroupSharing(times([(1, 2, 0), (NAN, 1, 1), (2, 1, 0)]))
    assert sharing.rate(1, 0, [(1, 0)]) == 0.5
    assert sharing.rate(0, 0, [(1, 1)]) == 0.5
    assert sharing.rate(0, 0, [(1, 1), (2, 2)]) == pytest.approx(1 / 3)


def test_rates_of_all_groups_at_once_are_those_of_job_by_job() -> None:
    sharing = GroupSharing(times([(1, 2, 0), (2, 1, 1), (NAN, 1, 1), (0, 1, 3), (1, 1, 1), (2, 1, 1)]))
    pair, four = ((0, 1), (0b11, 0b1)), ((2,), (0b10,))
    placements = [Placement(*pair, 1), Placement(*four, 3), Placement(*four, 0), Placement(*pair, 0)]
    placements += [Placement((2,), (0b100,)), Placement(*four, 2)]
    jobs_of = {0: (3, 0), 1: (2, 5, 1), 3: (3, 0), 2: (2, 5, 1), 4: (4,), 5: (2, 5, 1)}  # by layer
    together = {job: [(placements[o].layer, o) for o in group if o != job] for job, group in jobs_of.items()}
    one_by_one = [sharing.rate(job, placements[job].layer, together[job]) for job in range(6)]
    assert sharing.rates(range(6), placements) == one_by_one
    assert one_by_one[4] == 1.0 > one_by_one[0] > 0.0
    assert one_by_one[1] == one_by_one[2] == one_by_one[5] == pytest.approx(1 / 3)
    placements[4] = Placement((2,), (0b110,), 1)  # shares one of its two GPUs
    assert sharing.rates(range(6), placements) is None


def test_a_group_s_memory_is_the_sum_and_an_unknown_one_counts_as_none() -> None:
    model = times([(1, 2, 0), (2, 1, 0), (1, 1, 0)], gpu_memory_mib=[6000, 10_000, NAN])
    assert model.fits(model.profiles_of([0, 1]), 16_000)
    assert not model.fits(model.profiles_of([0, 1]), 15_999)
    assert model.fits(model.profiles_of([0, 1, 2]), 16_000)
    assert model.fits(model.profiles_of([0, 1]), float("inf"))


# -- noise -----------------------------------------------------------------------------------------------------

ROWS = [(1.0, 2.0, 0.5), (2.0, 0.5, 1.0), (0.3, 0.4, 3.0), (1.5, 1.5, 0.1)]


def noisy(noise: float, seed: int) -> GroupTimes:
    return times(ROWS, noise=noise, rng=np.random.default_rng(seed))


@given(noise=st.floats(0.01, 1.0), seed=st.integers(0, 99))
def test_noise_is_within_its_bounds_reproducible_and_touches_plans_only(noise: float, seed: int) -> None:
    model = noisy(noise, seed)
    exact = times(ROWS)
    factor = model.planned_s / exact.stage_s
    assert (factor >= 1 - noise - 1e-12).all()
    assert (factor <= 1 + noise + 1e-12).all()
    assert (
        model.planned_s.tolist() == noisy(noise, seed).planned_s.tolist() != noisy(noise, seed + 1).planned_s.tolist()
    )
    assert model.stage_s.tolist() == exact.stage_s.tolist()
    assert list(model.solo_s) == list(exact.solo_s)


@given(noise=st.floats(0.01, 1.0), seed=st.integers(0, 99))
def test_a_group_planned_with_noise_runs_in_the_planned_order_by_the_true_times(noise: float, seed: int) -> None:
    """The order is the best by what is believed, so that it is at best the best by the truth."""
    model, exact = noisy(noise, seed), times(ROWS)
    for group in ((0, 1), (0, 1, 2), (0, 1, 2, 3), (2, 3)):
        profiles = model.profiles_of(group)
        rows = [ROWS[job] for job in group]
        assert together_s(rows) <= model.iteration_s(profiles) * (1 + 1e-9)
        assert model.iteration_s(profiles) <= together_s(rows, "worst") * (1 + 1e-9)
        believed = [tuple(model.planned_s[model.of_job[job]].tolist()) for job in group]
        assert model.planned_iteration_s([profiles])[0] == pytest.approx(together_s(believed))
        assert exact.iteration_s(profiles) == pytest.approx(together_s(rows))


# -- rounds of matching ----------------------------------------------------------------------------------------

LOADS, COMPUTES, SYNCS = (4.0, 0.1, 0.1), (0.1, 4.0, 0.1), (0.1, 0.1, 4.0)


POOLS = frozenset({0})


def bucket(gpus: int, jobs: Sequence[int], pools: frozenset[int] = POOLS) -> Bucket:
    return Bucket(gpus, pools, list(jobs))


def rounds(rows: Sequence[Stages], size: int = 4, allowed: Any = lambda _: True) -> Rounds:
    return Rounds(times(rows), size, allowed)


def formed(rows: Sequence[Stages], capacity: int, *, size: int = 4, gpus: int = 1, **more: Any) -> list[list[int]]:
    group_of = more.pop("group_of", {}).get
    (groups,) = rounds(rows, size, **more).form([bucket(gpus, range(len(rows)))], [(POOLS, capacity)], group_of)
    return sorted(sorted(group) for group in groups)


def test_what_fits_is_left_alone() -> None:
    assert formed([LOADS, COMPUTES], 2) == [[0], [1]]
    assert rounds([LOADS]).form([bucket(1, [])], [(POOLS, 2)], {}.get) == [[]]
    assert rounds([LOADS]).form([], [(POOLS, 2)], {}.get) == []


def test_jobs_that_are_slow_on_different_resources_are_paired() -> None:
    rows = [LOADS, LOADS, COMPUTES, COMPUTES]
    assert [{rows[job] for job in group} for group in formed(rows, 2)] == [{LOADS, COMPUTES}] * 2


def test_pairs_are_merged_in_order_only_while_more_gpus_are_needed() -> None:
    rows = [LOADS, COMPUTES] * 3
    assert [len(group) for group in formed(rows, 5)].count(2) == 1
    assert [len(group) for group in formed(rows, 4)].count(2) == 2
    assert [len(group) for group in formed(rows, 3)] == [2, 2, 2]
    assert sum(len(group) == 2 for group in formed(rows, 10, gpus=2)) == 1


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_no_group_has_more_than_so_many(size: int) -> None:
    rows = [LOADS, COMPUTES, SYNCS, LOADS, COMPUTES, SYNCS, LOADS, COMPUTES]
    groups = formed(rows, 1, size=size)
    assert max(map(len, groups)) == size
    assert sorted(job for group in groups for job in group) == list(range(8))


def test_three_fit_where_three_is_the_most() -> None:
    assert formed([LOADS, COMPUTES, SYNCS], 1, size=3) == [[0, 1, 2]]


def test_a_job_without_stage_times_is_never_grouped() -> None:
    assert formed([LOADS, (NAN, 1.0, 1.0), COMPUTES, (NAN, 1.0, 1.0)], 1) == [[0, 2], [1], [3]]


def test_groups_that_are_not_allowed_are_not_formed() -> None:
    assert formed([LOADS, COMPUTES, SYNCS], 1, allowed=lambda _: False) == [[0], [1], [2]]
    same = rounds([LOADS, COMPUTES], 4, lambda group: len(set(group)) == len(group))
    (groups,) = same.form([bucket(1, [0, 1])], [(POOLS, 1)], {}.get)
    assert [sorted(group) for group in groups] == [[0, 1]]
    assert formed([LOADS] * 4, 1, allowed=lambda group: len(set(group)) == len(group)) == [[0], [1], [2], [3]]


def test_groups_do_not_cross_buckets() -> None:
    rows = [LOADS, COMPUTES, LOADS, COMPUTES]
    one, two = rounds(rows).form([bucket(1, [0, 2]), bucket(2, [1, 3])], [(POOLS, 1)], {}.get)
    assert sorted(job for group in one for job in group) == [0, 2]
    assert sorted(job for group in two for job in group) == [1, 3]


def test_among_equal_merges_those_that_run_together_stay_together() -> None:
    rows = [LOADS, LOADS, LOADS, COMPUTES, COMPUTES, COMPUTES]
    together = {0: 0, 5: 0, 1: 1, 4: 1, 2: 2, 3: 2}
    assert formed(rows, 3, group_of=together) == [[0, 5], [1, 4], [2, 3]]
    assert formed([LOADS] * 4, 2, group_of={0: 0, 3: 0, 1: 1, 2: 1}) == [[0, 3], [1, 2]]


def test_what_was_solved_before_does_not_change_what_is_formed() -> None:
    """Rounds remember; another object that remembers nothing, or other things, must form the same groups."""
    rng = np.random.default_rng(5)
    rows = [tuple(row) for row in rng.choice([0.1, 0.5, 1.0, 2.0], size=(24, 3)).tolist()]
    parts = [sorted(rng.choice(24, size=12, replace=False).tolist()) for _ in range(12)]
    model = times(rows)
    used = Rounds(model, 4, lambda _: True)
    for part in parts:
        fresh = Rounds(model, 4, lambda _: True)
        assert used.form([bucket(1, part)], [(POOLS, 3)], {}.get) == fresh.form([bucket(1, part)], [(POOLS, 3)], {}.get)


def test_jobs_of_one_pool_are_merged_though_others_have_room() -> None:
    rows = [LOADS, COMPUTES, LOADS, COMPUTES]
    other, both = frozenset({1}), frozenset({0, 1})
    limits = [(both, 10), (POOLS, 1), (other, 9)]
    buckets = [bucket(1, [0, 1]), bucket(1, [2, 3], other)]
    here, there = rounds(rows).form(buckets, limits, {}.get)
    assert [sorted(group) for group in here] == [[0, 1]]
    assert [sorted(group) for group in there] == [[2], [3]]
    anywhere = [bucket(1, [0, 1]), bucket(1, [2, 3], both)]
    assert [len(groups) for groups in rounds(rows).form(anywhere, [(both, 3), (POOLS, 1)], {}.get)] == [1, 2]


def test_in_threes_the_heaviest_pairs_leave_singles_to_join_them() -> None:
    groups = formed([LOADS, COMPUTES, SYNCS] * 2, 2, size=3)
    assert sorted(len(group) for group in groups) == [3, 3]


def test_nobody_is_faster_in_company_than_alone() -> None:
    """Stages that add up to less than an iteration do not make a group fast."""
    workload = jobs([(0.0, 10.0, 1)] * 2, stage_s=np.full((2, 3), 0.1), iteration_s=np.array([1.0, 1.0]))
    model = GroupTimes(workload, Interleaving(overhead=(1.0,) * 4))
    pair = model.profiles_of((0, 1))
    assert model.iteration_s(pair) == model.planned_iteration_s([pair])[0] == 1.0
    assert GroupSharing(model).rate(0, 0, [(1, 1)]) == 1.0
    assert GroupTimes(workload, Interleaving(overhead=(1.0,) * 4), floor=False).iteration_s(pair) < 1.0
