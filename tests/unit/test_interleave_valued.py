"""Groups by value: book-keeping exact, never worse where it must not be, and how far from the optimum."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, product

import numpy as np
import pytest

from gpuloom.interleave.tables import SetTable
from gpuloom.interleave.valued import Filler, Group, Stacks, exchange, share_nodes
from test_interleave_tables import random_times, table_of

Job = tuple[int, int, float]
"""(job, column, value)"""


def tables_of(seed: int, gpus: Sequence[int], *, profiles: int = 4, size: int = 4) -> list[SetTable]:
    return [table_of(random_times(seed, profiles), size=size, gpus=count) for count in gpus]


def stacks_of(rng: np.random.Generator, tables: Sequence[SetTable], jobs: int) -> tuple[Stacks, dict[int, list[Job]]]:
    """Random jobs; values spread over two orders of magnitude."""
    stacks: Stacks = {}
    by_shape: dict[int, list[Job]] = {}
    for job in range(jobs):
        shape = int(rng.integers(len(tables)))
        column = int(rng.integers(len(tables[shape].profiles)))
        by_shape.setdefault(shape, []).append((job, column, float(np.exp(rng.normal(0, 1.2)))))
    for shape, members in by_shape.items():
        for column in {column for _, column, _ in members}:
            best = sorted([(-value, job) for job, at, value in members if at == column])
            stacks.setdefault(shape, {})[column] = ([job for _, job in best], [-value for value, _ in best])
    return stacks, by_shape


def value_of(table: SetTable, members: Sequence[tuple[int, float]]) -> float:
    """From (column, value) of each member."""
    return sum(value for _, value in members) * float(table.inverse[table.set_of([column for column, _ in members])])


def exact(group: Group) -> float:
    return value_of(group.table, list(zip(group.columns, group.values, strict=True)))


def everyone(groups: Sequence[Group]) -> list[int]:
    return sorted(job for group in groups for job in group.jobs)


def known(groups: Sequence[Group], by_shape: dict[int, list[Job]]) -> None:
    """Members come with their own columns and values, no job twice, no group that may not be formed."""
    of_job = {job: (shape, column, value) for shape, rows in by_shape.items() for job, column, value in rows}
    assert len(set(everyone(groups))) == len(everyone(groups))
    for group in groups:
        for job, column, value in zip(group.jobs, group.columns, group.values, strict=True):
            assert of_job[job] == (group.shape, column, value)
        assert 1 <= len(group.jobs) <= group.table.size
        assert group.value > 0
        assert group.value == pytest.approx(exact(group))
        assert group.total == pytest.approx(sum(group.values))


def group_of(table: SetTable, members: Sequence[Job]) -> Group:
    jobs, columns, values = (list(part) for part in zip(*members, strict=True))
    return Group(table, 0, jobs, columns, values)


# -- groups ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_the_best_split_is_the_best_of_all(seed: int) -> None:
    rng = np.random.default_rng(seed)
    table = tables_of(seed, [1], profiles=5)[0]
    for _ in range(60):
        n = int(rng.integers(2, 5))
        group = group_of(table, [(j, int(rng.integers(5)), float(rng.uniform(0.01, 5))) for j in range(n)])
        before, members = group.value, list(zip(group.columns, group.values, strict=True))
        ways = [set(away) for size in range(1, n) for away in combinations(range(n), size)]
        best = max(
            value_of(table, [m for place, m in enumerate(members) if place not in away])
            + value_of(table, [m for place, m in enumerate(members) if place in away])
            for away in ways
        )
        gain, _ = group.best_split()
        assert gain == pytest.approx(best - before)
        other = group.split()
        assert group.jobs
        assert other.jobs
        assert sorted(group.jobs + other.jobs) == list(range(n))
        assert exact(group) + exact(other) == pytest.approx(best)
        assert group.value + other.value == pytest.approx(best)
        for part in (group, other):
            assert [members[job] for job in part.jobs] == list(zip(part.columns, part.values, strict=True))


@pytest.mark.parametrize("seed", range(8))
def test_the_filler_keeps_count_at_every_step(seed: int) -> None:
    rng = np.random.default_rng(seed)
    tables = tables_of(seed, [1, 2, 4])
    stacks, by_shape = stacks_of(rng, tables, 40)
    filler = Filler(tables, [0, 1, 2], stacks)
    assert filler
    given, free, before = 0, 0, 0.0
    for _ in range(60):
        more = int(rng.integers(1, 5))
        given += more
        left = filler.fill(free + more)
        assert 0 <= left <= free + more
        free = left
        assert sum(group.table.gpus for group in filler.groups) == given - free
        assert filler.value == pytest.approx(sum(exact(group) for group in filler.groups))
        assert filler.value >= before - 1e-9
        before = filler.value
        known(filler.groups, by_shape)
    assert everyone(filler.groups) == list(range(40)), "at last everybody has a place"
    assert all(len(group.jobs) == 1 or group.best_split()[0] <= 0 for group in filler.groups), "or is alone"


def test_only_shapes_it_is_given_and_only_what_fits() -> None:
    rng = np.random.default_rng(5)
    tables = tables_of(5, [1, 2, 4])
    stacks, by_shape = stacks_of(rng, tables, 30)
    filler = Filler(tables, [0, 2], stacks)
    assert filler.fill(3) == 0
    assert {group.shape for group in filler.groups} == {0}, "four GPUs don't fit three"
    asked: list[int] = []

    def never_the_large(shape: int) -> bool:
        asked.append(shape)
        return shape == 0

    filler = Filler(tables, [0, 1, 2], stacks)
    filler.fill(30, never_the_large)
    known(filler.groups, by_shape)
    assert {group.shape for group in filler.groups} == {0}
    assert max(asked.count(shape) for shape in (1, 2)) == 1, "asked once"
    assert asked.count(0) == len(filler.groups), "room is taken for every group, and for no other"
    assert not Filler(tables, [], stacks)
    assert Filler(tables, [], stacks).fill(5) == 5


def test_the_first_group_has_the_best_value_per_gpu_of_all() -> None:
    for seed in range(6):
        rng = np.random.default_rng(seed)
        tables = tables_of(seed, [1, 2], profiles=3)
        stacks, by_shape = stacks_of(rng, tables, 12)
        filler = Filler(tables, [0, 1], stacks)
        filler.fill(2)
        best = max(
            value_of(tables[shape], [(c, v) for _, c, v in members]) / tables[shape].gpus
            for shape, rows in by_shape.items()
            for size in range(1, 5)
            for members in combinations(rows, size)
        )
        first = filler.groups[0]
        assert first.value / first.table.gpus == pytest.approx(best)


# -- exchanges -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("size", [2, 3, 4])
def test_exchanges_never_lose_value_nor_anybody(seed: int, size: int) -> None:
    rng = np.random.default_rng(seed)
    table = tables_of(seed, [1], profiles=5, size=size)[0]
    members = [(job, int(rng.integers(5)), float(np.exp(rng.normal(0, 1.5)))) for job in range(24)]
    # Groups that may be formed, from jobs as they come: alone if need be.
    groups: list[Group] = []
    rest = members[:]
    while rest:
        for count in range(min(size, len(rest)), 0, -1):
            group = group_of(table, rest[:count])
            if group.value > 0:
                groups.append(group)
                rest = rest[count:]
                break
    before = [group.value for group in groups]
    count = len(groups)
    exchange(groups)  # no group that may not be formed comes of it, whatever others gain: see `known`
    assert len(groups) == count
    assert all(group.jobs for group in groups), "nobody's place is left empty"
    assert everyone(groups) == list(range(24))
    known(groups, {0: members})
    assert sum(exact(group) for group in groups) >= sum(before) - 1e-9


def test_an_exchange_finds_the_partners_that_belong_together() -> None:
    """Two pairs of which each has one bottleneck; swapped they are complementary."""
    from test_interleave_tables import FREE, times_of

    times = times_of(np.array([[0.0, 4.0, 1.0], [0.0, 1.0, 4.0]]), interleaving=FREE)
    table = table_of(times)
    heavy, light = table.column_of[0], table.column_of[1]
    groups = [group_of(table, [(0, heavy, 1.0)]), group_of(table, [(1, heavy, 1.0), (2, light, 1.0), (3, light, 1.0)])]
    before = sum(group.value for group in groups)
    exchange(groups)
    assert {frozenset(group.columns) for group in groups} == {frozenset({heavy, light})}
    assert sum(group.value for group in groups) > before


def test_nothing_to_exchange() -> None:
    table = tables_of(0, [1])[0]
    exchange([])
    alone = [group_of(table, [(0, 0, 1.0)]), group_of(table, [(1, 1, 9.0)])]
    exchange(alone)
    assert [group.jobs for group in alone] == [[0], [1]]
    one = [group_of(table, [(0, 0, 1.0), (1, 1, 1.0)])]
    exchange(one)
    assert one[0].jobs == [0, 1]


# -- nodes by GPU count ----------------------------------------------------------------------------------------


def fixed(tables: Sequence[SetTable], stacks: Stacks, nodes: int, per_node: int) -> Iterator[float]:
    """The value of every division of nodes among the classes of `share_nodes`, each filled in the same steps."""
    small = [shape for shape in stacks if tables[shape].gpus < per_node]
    large = sorted({tables[shape].gpus for shape in stacks if tables[shape].gpus >= per_node})
    classes = [(small, 1)] if small else []
    classes += [([shape for shape in stacks if tables[shape].gpus == g], -(-g // per_node)) for g in large]
    for division in product(*(range(0, nodes + 1, least) for _, least in classes)):
        if sum(division) <= nodes:
            value = 0.0
            for (shapes, least), given in zip(classes, division, strict=True):
                filler, free = Filler(tables, shapes, stacks), 0
                for _ in range(given // least):
                    free = filler.fill(free + least * per_node)
                value += filler.value
            yield value


@pytest.mark.parametrize("seed", range(12))
def test_nodes_are_shared_out_as_well_as_by_any_division(seed: int) -> None:
    rng = np.random.default_rng(seed)
    gpus = [[1, 2, 4, 8], [4, 8, 16], [1, 8], [3, 5, 8, 12, 16], [8], [1, 2]][seed % 6]
    tables = tables_of(seed, gpus, profiles=3)
    nodes = int(rng.integers(1, 6))
    stacks, by_shape = stacks_of(rng, tables, int(rng.integers(2, 40)))
    groups, left = share_nodes(tables, stacks, nodes, 8)
    known(groups, by_shape)
    assert left == nodes * 8 - sum(group.table.gpus for group in groups)
    assert left >= 0
    assert sum(group.value for group in groups) == pytest.approx(max(fixed(tables, stacks, nodes, 8)))


def test_nobody_and_no_nodes() -> None:
    tables = tables_of(0, [1, 8])
    assert share_nodes(tables, {}, 4, 8) == ([], 32)
    stacks, _ = stacks_of(np.random.default_rng(0), tables, 5)
    assert share_nodes(tables, stacks, 0, 8) == ([], 0)


@pytest.mark.parametrize("nodes", [33, 47, 100])
def test_one_that_needs_all_nodes_can_have_them(nodes: int) -> None:
    """Nodes are dealt in twos or more here, which leaves some over; worth the most, it must get them still."""
    tables = tables_of(1, [1, 8 * nodes], profiles=2)
    stacks: Stacks = {0: {0: ([0, 1, 2], [1.0, 1.0, 1.0])}, 1: {0: ([3], [1e6])}}
    groups, left = share_nodes(tables, stacks, nodes, 8)
    assert [group.jobs for group in groups] == [[3]]
    assert left == 0


# -- against the optimum ---------------------------------------------------------------------------------------


def optimum(tables: Sequence[SetTable], by_shape: dict[int, list[Job]], gpus: int) -> float:
    """The most value that any disjoint groups reach on so many GPUs in all, by dynamic programming over subsets."""
    rows = [(shape, column, value) for shape, members in by_shape.items() for _, column, value in members]
    groups: list[tuple[int, int, float]] = []
    for shape in by_shape:
        here = [n for n, row in enumerate(rows) if row[0] == shape]
        for size in range(1, tables[shape].size + 1):
            for members in combinations(here, size):
                value = value_of(tables[shape], [(rows[n][1], rows[n][2]) for n in members])
                if value > 0:
                    groups.append((sum(1 << n for n in members), tables[shape].gpus, value))
    best = np.full((1 << len(rows), gpus + 1), -np.inf)
    best[0, :] = 0.0
    by_lowest: dict[int, list[tuple[int, int, float]]] = {}
    for group in groups:
        by_lowest.setdefault(group[0] & -group[0], []).append(group)
    for mask in range(1, 1 << len(rows)):
        low = mask & -mask
        row = best[mask & ~low].copy()  # the lowest one waits
        for members, needed, value in by_lowest.get(low, ()):
            if members & mask == members and needed <= gpus:
                np.maximum(row[needed:], best[mask & ~members][: gpus + 1 - needed] + value, out=row[needed:])
        best[mask] = row
    return float(best[-1, gpus])


def planned(tables: Sequence[SetTable], stacks: Stacks, gpus: int) -> float:
    """Filled and exchanged, as a plan on one node."""
    filler = Filler(tables, list(stacks), stacks)
    filler.fill(gpus)
    for shape in stacks:
        exchange([group for group in filler.groups if group.shape == shape])
    return sum(group.value for group in filler.groups)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("gpus", "worst", "mean"), [((1,), 0.85, 0.95), ((1, 2), 0.65, 0.93), ((1, 2, 4), 0.6, 0.92)], ids=str
)
def test_plans_are_near_the_optimum(gpus: tuple[int, ...], worst: float, mean: float) -> None:
    """10 jobs on 2 to 6 GPUs, all ways tried.

    With one GPU count the loss is what greedy groups cost. With several it is a knapsack as well, and filled by value
    per GPU it loses up to a third where GPUs are few (65 % of the optimum at worst).
    """
    ratios = []
    for seed in range(30):
        rng = np.random.default_rng(seed)
        tables = tables_of(seed, gpus, profiles=4, size=int(rng.integers(2, 5)))
        stacks, by_shape = stacks_of(rng, tables, 10)
        free = int(rng.integers(2, 7))
        best = optimum(tables, by_shape, free)
        ratios.append(planned(tables, stacks, free) / best if best else 1.0)
    assert max(ratios) <= 1 + 1e-9
    assert min(ratios) >= worst, np.round(ratios, 3)
    assert np.mean(ratios) >= mean
