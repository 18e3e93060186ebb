"""Tables of groups against enumeration, and their prices against a linear program."""

from __future__ import annotations

from itertools import combinations_with_replacement

import numpy as np
import pytest

from builders import jobs
from gpuloom.core.workload import F8
from gpuloom.interleave.efficiency import Interleaving
from gpuloom.interleave.groups import UNKNOWN, GroupTimes, Profiles
from gpuloom.interleave.tables import MOST, SetTable
from gpuloom.solvers.linear import maximize
from tiers import slow

FREE = Interleaving("measured", "best", (1.0, 1.0, 1.0, 1.0))


def times_of(stage_s: F8, *, memory: F8 | None = None, interleaving: Interleaving | None = None) -> GroupTimes:
    """Times of jobs with these stages; every row is a job."""
    workload = jobs([(0.0, 1.0, 1)] * len(stage_s), stage_s=stage_s, gpu_memory_mib=memory)
    return GroupTimes(workload, interleaving or Interleaving("measured"))


def table_of(times: GroupTimes, *, size: int = 4, memory: float = float("inf"), gpus: int = 1) -> SetTable:
    def gains(profiles: Profiles) -> bool:
        return times.gains([profiles])[0] >= 1.0

    return SetTable(gpus, np.unique(np.asarray(times.of_job)).tolist(), times, size, gains, memory)


def random_times(seed: int, profiles: int, *, unknown: bool = False) -> GroupTimes:
    rng = np.random.default_rng(seed)
    stage_s = rng.uniform(0.05, 3.0, (profiles, 3)) * (rng.random((profiles, 3)) < 0.8)
    stage_s[:, 0] += rng.uniform(0.1, 0.2, profiles)
    if unknown:
        stage_s = np.vstack([stage_s, np.full((1, 3), np.nan)])
    return times_of(stage_s)


# -- sets ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("unknown", [False, True])
def test_every_multiset_is_there_with_what_an_iteration_of_it_takes(size: int, unknown: bool) -> None:
    times = random_times(size, 5, unknown=unknown)
    table = table_of(times, size=size)
    columns = 5 + unknown
    wanted = [s for members in range(size + 1) for s in combinations_with_replacement(range(columns), members)]
    assert table.sets == wanted
    assert len(table.inverse) == len(wanted) + 1
    assert table.inverse_list == table.inverse.tolist()
    assert (table.inverse[0], table.inverse[-1]) == (0.0, 0.0)
    formed = 0
    for index, found in enumerate(table.sets[1:], 1):
        profiles = tuple(sorted(table.profiles[column] for column in found))
        if len(found) == 1:
            solo = 1.0 if profiles[0] == UNKNOWN else times.solo_s[profiles[0]]
            assert table.inverse[index] == pytest.approx(1 / solo)
            assert table.solo_s[found[0]] == solo
        elif UNKNOWN in profiles or times.gains([profiles])[0] < 1:
            assert table.inverse[index] == 0, "may not be formed"
        else:
            assert table.inverse[index] == pytest.approx(1 / times.iteration_s(profiles))
            formed += 1
    assert (formed > 0) == (size > 1)


def test_grown_set_of_takes_and_pattern_name_the_same_sets() -> None:
    size = 3
    table = table_of(random_times(3, 4), size=size)
    number = {found: index for index, found in enumerate(table.sets)}
    no_set = len(table.sets)
    for index, found in enumerate(table.sets):
        assert table.set_of(found) == index
        assert table.set_of(found[::-1]) == index, "whatever the order"
        assert table.grown[index, 0] == index
        for column in range(4):
            more = number.get(tuple(sorted((*found, column))), no_set)
            assert table.grown[index, column + 1] == more
            assert table.grown_list[index][column + 1] == more
        assert dict(table.takes[index]) == {column: found.count(column) for column in found}
        if found:
            pattern = table.pattern[:, index - 1].tolist()
            pointed = [divmod(place, size + 1) for place in pattern if place != 4 * (size + 1)]
            assert dict(pointed) == dict(table.takes[index])
    assert (table.grown[no_set] == no_set).all()
    assert table.set_of([0, 0, 0, 0]) == no_set, "one member too many"
    assert table.set_of([0, 0, 0, 0, 1]) == no_set


def test_a_set_that_is_slower_than_one_after_another_is_not_formed() -> None:
    table = table_of(times_of(np.array([[0.0, 4.0, 0.0], [0.0, 0.0, 4.0]])))
    rows = dict(zip(table.sets, table.inverse.tolist(), strict=False))
    assert rows[(0, 0)] == rows[(1, 1)] == 0
    assert rows[(0, 1)] > 0


@pytest.mark.parametrize(("memory", "pairs"), [(10_000.0, 3), (9_999.0, 2), (7_000.0, 1), (5_998.0, 0)])
def test_memory_bounds_sets(memory: float, pairs: int) -> None:
    """7,000, 3,000 and 2,999 MiB: 10,000, 9,999 and 5,999 together."""
    stage_s = np.array([[4.0, 0.0, 0.0], [0.0, 4.0, 0.0], [0.0, 0.0, 4.0]])
    times = times_of(stage_s, memory=np.array([7000.0, 3000.0, 2999.0]), interleaving=FREE)
    table = table_of(times, memory=memory)
    mixed = [found for found in table.sets if len(set(found)) == len(found) == 2]
    formed = sum(table.inverse[table.set_of(found)] > 0 for found in mixed)
    assert formed == pairs
    assert (table.inverse[table.set_of([0, 1, 2])] > 0) == (memory >= 12_999)


# -- many profiles ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("profiles", [MOST, MOST + 1, *slow(60), 700])
@pytest.mark.parametrize("unknown", [False, True])
def test_too_many_profiles_are_taken_together_and_everyone_has_a_column(profiles: int, unknown: bool) -> None:
    times = random_times(profiles, profiles, unknown=unknown)
    table = table_of(times)
    everyone = set(range(profiles)) | ({UNKNOWN} if unknown else set())
    assert set(table.column_of) == everyone
    assert len(table.profiles) == min(MOST, profiles + unknown)
    assert len(set(table.profiles)) == len(table.profiles)
    assert table.clustered == (profiles + unknown > MOST)
    assert set(table.column_of.values()) == set(range(len(table.profiles))), "no column without a profile"
    for column, middle in enumerate(table.profiles):
        assert table.column_of[middle] == column, "a middle stands for itself"
    if unknown:
        column = table.column_of[UNKNOWN]
        assert [profile for profile, at in table.column_of.items() if at == column] == [UNKNOWN]
        for found, value in zip(table.sets, table.inverse.tolist(), strict=False):
            assert value == 0 or column not in found or found == (column,)


def test_each_stands_as_the_nearest_middle() -> None:
    times = random_times(5, 300)
    table = table_of(times)
    solo_s = np.asarray(times.solo_s)[:, None]
    points = np.log(np.hstack([np.maximum(times.stage_s, 1e-3 * solo_s), solo_s]))
    middles = points[table.profiles]
    for profile, column in table.column_of.items():
        away = np.abs(points[profile] - middles).max(axis=1)
        assert away[column] == pytest.approx(away.min())
    rng = np.random.default_rng(0)
    covered = np.abs(points[:, None] - middles).max(axis=2).min(axis=1).max()
    chance = []
    for _ in range(20):
        drawn = points[rng.choice(300, MOST, replace=False)]
        chance.append(np.abs(points[:, None] - drawn).max(axis=2).min(axis=1).max())
    assert covered < np.median(chance), "better than any 16"


def test_whoever_stands_as_a_column_fits_where_the_column_fits() -> None:
    rng = np.random.default_rng(2)
    memory = rng.uniform(500, 12_000, 200)
    stage_s = rng.uniform(0.1, 3, (200, 3))
    times = times_of(stage_s, memory=memory)
    table = table_of(times, memory=16_384.0)
    largest = [0.0] * len(table.profiles)
    for profile, column in table.column_of.items():
        largest[column] = max(largest[column], times.memory_mib[profile])
    formed = [found for found, value in zip(table.sets, table.inverse, strict=False) if len(found) > 1 and value > 0]
    assert formed
    assert all(sum(largest[column] for column in found) <= 16_384 for found in formed)


# -- prices ----------------------------------------------------------------------------------------------------


def primal(table: SetTable, present: tuple[int, ...]) -> float:
    """Least GPU-seconds for a second of solo work of each column present, by another solver."""
    sets = [
        found
        for found, value in zip(table.sets, table.inverse.tolist(), strict=False)
        if found and value > 0 and set(found) <= set(present)
    ]
    rows, columns, values = [], [], []
    for index, found in enumerate(sets):
        for column in set(found):
            rows.append(present.index(column))
            columns.append(index)
            values.append(found.count(column) * table.solo_s[column] * table.inverse[table.set_of(found)])
    x = maximize(
        np.full(len(sets), -1.0),
        np.array(rows, dtype=np.intp),
        np.array(columns, dtype=np.intp),
        np.array(values),
        np.ones(len(present)),
        np.full(len(present), np.inf),
        np.full(len(sets), np.inf),
    )
    return float(x.sum())


@pytest.mark.parametrize("seed", range(8))
def test_prices_are_optimal_duals(seed: int) -> None:
    rng = np.random.default_rng(seed)
    table = table_of(random_times(seed, int(rng.integers(2, 9))), size=int(rng.integers(2, 5)))
    for _ in range(4):
        columns = len(table.profiles)
        present = tuple(sorted(rng.choice(columns, int(rng.integers(1, columns + 1)), replace=False).tolist()))
        prices = table.prices(present)
        assert prices.shape == (columns,)
        assert (prices > 0).all()
        assert (prices <= 1).all()
        assert all(prices[column] == 1 for column in range(columns) if column not in present)
        for found, value in zip(table.sets[1:], table.inverse[1:-1].tolist(), strict=True):
            if set(found) <= set(present):
                assert sum(table.solo_s[c] * value * prices[c] for c in found) <= 1 + 1e-6, found
        assert prices[list(present)].sum() == pytest.approx(primal(table, present), rel=1e-6)


def test_prices_at_full_size() -> None:
    """16 profiles, 4,844 sets."""
    table = table_of(random_times(11, 16))
    present = tuple(range(16))
    prices = table.prices(present)
    assert prices.sum() == pytest.approx(primal(table, present), rel=1e-6)
    assert prices.min() < 0.9


def test_who_gains_nothing_pays_in_full() -> None:
    stage_s = np.array([[0.0, 4.0, 0.0], [4.0, 0.0, 0.0], [np.nan] * 3])
    times = times_of(stage_s, interleaving=FREE)
    table = table_of(times)
    compute, load = table.column_of[0], table.column_of[1]
    assert table.prices((compute,))[compute] == 1
    assert table.prices(tuple(range(3)))[table.column_of[UNKNOWN]] == 1
    both = table.prices(tuple(sorted((compute, load))))
    assert both[[compute, load]].sum() == pytest.approx(1, abs=2e-3), "two seconds of work in one"
    assert table.prices(tuple(sorted((compute, load)))) is both, "found once"


def test_groups_of_one_cost_what_they_take() -> None:
    assert (table_of(random_times(1, 6), size=1).prices(tuple(range(6))) == 1).all()
