"""Groups on several GPU models: who joins whom, and what stays free."""

from __future__ import annotations

import math
from itertools import combinations, product

import numpy as np
import pytest

from builders import jobs
from gpuloom.core.decision import Placement
from gpuloom.core.workload import Speeds
from gpuloom.interleave.across import Across, spread
from gpuloom.interleave.across_few import Few
from gpuloom.interleave.tables import SetTable
from gpuloom.interleave.valued import Group
from gpuloom.sim import simulate
from test_interleave_tables import random_times, table_of, times_of

STAGES = np.array([[0.9, 0.1, 0.0], [0.1, 0.9, 0.0]])
"""Two jobs that use different resources: together each is nearly as fast as alone."""


def pair(slow: float, stages: np.ndarray = STAGES) -> tuple[float, float]:
    """When two jobs of 36,000 s end that come at once, one fast GPU and one of this speed."""
    workload = jobs(
        [(0, 36_000, 1), (0, 36_000, 1)], speeds=Speeds(("V100", "K80"), np.array([[1.0, slow]] * 2)), stage_s=stages
    )
    result = simulate(workload, "1x1:V100,1x1:K80", "weave", restart_overhead_s=10.0)
    return tuple(result.end_s.tolist())


def test_beside_another_job_on_a_fast_gpu_rather_than_alone_on_a_slow_one() -> None:
    # Alone on the slow GPU the second job would take 36,000 / 0.1 s, or 72,000 s one after the other.
    assert max(pair(0.1)) < 50_000


def test_alone_where_the_other_gpu_is_nearly_as_fast() -> None:
    assert max(pair(0.95)) < 36_000 / 0.95 + 60
    # Two that want the same resource all the time gain nothing by sharing.
    alike = np.array([[0.01, 1.0, 0.0]] * 2)
    assert sorted(pair(0.6, alike))[0] == pytest.approx(36_000, abs=60)


# -- members change places, against the same in plain loops ----------------------------------------------------


def value_of(table: SetTable, worth: dict[int, np.ndarray], pool: int, members: list[tuple[int, int]]) -> float:
    """Of a group of (job, column); minus infinity if it may not be formed, or somebody can't run there."""
    if not members:
        return 0.0
    values = [float(worth[job][pool]) for job, _ in members]
    columns = [column for _, column in members]
    number = table.set_of(columns)
    if number == len(table.sets) or table.inverse_list[number] == 0.0:
        return -math.inf
    return table.value(number, columns, values, sum(values))


def improved_slowly(
    groups: list[list[tuple[int, int]]], pools: list[int], worth: dict[int, np.ndarray], tables: list[SetTable]
) -> None:
    """Rounds: every trade of two seats of different groups, the best first; each group once in a round."""
    size = tables[0].size
    for _ in range(8):
        now = [value_of(tables[p], worth, p, group) for group, p in zip(groups, pools, strict=True)]
        found = []
        for one, two in combinations(range(len(groups)), 2):
            for a, b in product(range(size), range(size)):
                here, there = groups[one], groups[two]
                goes, comes = here[a : a + 1], there[b : b + 1]
                if not goes and not comes:
                    continue
                if any(worth[job][pools[two]] <= 0 for job, _ in goes):
                    continue
                if any(worth[job][pools[one]] <= 0 for job, _ in comes):
                    continue
                mine = value_of(tables[pools[one]], worth, pools[one], here[:a] + here[a + 1 :] + comes)
                its = value_of(tables[pools[two]], worth, pools[two], there[:b] + there[b + 1 :] + goes)
                gain = mine + its - now[one] - now[two]
                if gain > 1e-9 * max(now):
                    found.append((-gain, one * size + a, two * size + b))
        if not found:
            return
        touched: set[int] = set()
        for _, left, right in sorted(found):
            (one, a), (two, b) = divmod(left, size), divmod(right, size)
            if one not in touched and two not in touched:
                touched |= {one, two}
                goes, comes = groups[one][a : a + 1], groups[two][b : b + 1]
                groups[one] = groups[one][:a] + groups[one][a + 1 :] + comes
                groups[two] = groups[two][:b] + groups[two][b + 1 :] + goes


@pytest.mark.parametrize("size", [2, 3])
def test_members_change_places_as_in_plain_loops(size: int) -> None:
    changed = 0
    for seed in range(15):
        rng = np.random.default_rng(seed)
        tables = [table_of(random_times(seed, 3), size=size)] * 2
        worth: dict[int, np.ndarray] = {}
        members: list[list[tuple[int, int]]] = []
        for _ in range(4):
            members.append([])
            for _ in range(int(rng.integers(0, size + 1))):
                job, column = len(worth), int(rng.integers(3))
                worth[job] = np.array([1.0, rng.choice([0.0, 0.3, 0.9])]) * rng.uniform(0.5, 3.0)
                members[-1].append((job, column))
        pools = [0, 0, 1, 1]
        for group, pool in zip(members, pools, strict=True):
            for job, _ in group:
                worth[job][pool] = max(worth[job][pool], 0.1)
        groups = [
            Group(
                tables[pool], 0, [j for j, _ in group], [c for _, c in group], [float(worth[j][pool]) for j, _ in group]
            )
            for group, pool in zip(members, pools, strict=True)
        ]
        if any(group.jobs and group.value == 0.0 for group in groups):
            continue  # none that may not be formed is ever there
        before = [group.jobs[:] for group in groups]
        Across(groups, pools, worth, tables).improve()
        improved_slowly(members, pools, worth, tables)
        # Of like groups of one model either may be the first.
        together = sorted((pool, sorted(job for job, _ in group)) for group, pool in zip(members, pools, strict=True))
        assert sorted((pool, sorted(group.jobs)) for group, pool in zip(groups, pools, strict=True)) == together
        for group, pool in zip(groups, pools, strict=True):
            assert group.values == [float(worth[job][pool]) for job in group.jobs]
            assert group.value == pytest.approx(sum(group.values) * table_factor(group))
        changed += [group.jobs for group in groups] != before
    assert changed > 5


def table_factor(group: Group) -> float:
    return group.table.inverse_list[group.table.set_of(group.columns)]


class Seats:
    """Free places of one GPU each, on nodes of one GPU."""

    def __init__(self, *nodes: int) -> None:
        self.free = list(nodes)

    def fits(self, gpus: int) -> bool:
        return bool(self.free)

    def take(self, gpus: int) -> Placement | None:
        assert gpus == 1
        return Placement((self.free.pop(0),), (1,)) if self.free else None

    def release(self, placement: Placement) -> None:
        self.free.append(placement.nodes[0])


@pytest.mark.parametrize(
    ("worth", "where", "free"),
    [
        ({0: [1.0, 0.5], 1: [2.0, 0.5]}, {0: 1, 1: 0}, [[], [2, 3]]),  # both move to the fast GPUs that are free
        ({0: [1.0, 1.0], 1: [1.0, 1.0]}, {0: 2, 1: 3}, [[0, 1], []]),  # nobody gains: they stay
        ({0: [0.0, 1.0], 1: [1.0, 0.5]}, {0: 2, 1: 0}, [[1], [3]]),  # job 0 can't run there
    ],
)
def test_groups_take_free_gpus_and_leave_none_empty(
    worth: dict[int, list[float]], where: dict[int, int], free: list[list[int]]
) -> None:
    """Nodes 0 and 1 are fast and free; jobs 0 and 1 run on nodes 2 and 3, and would not gain by sharing a GPU."""
    table = table_of(times_of(np.array([[0.0, 1.0, 0.0]])), size=2)
    groups = [Group(table, 0, [job], [0], [9.0]) for job in (0, 1)]
    places = [Placement((2,), (1,)), Placement((3,), (1,))]
    rooms = [Seats(0, 1), Seats()]
    by_job = {job: np.array(row) for job, row in worth.items()}
    spread(groups, places, by_job, rooms, {0: 0, 1: 0, 2: 1, 3: 1}, [[table], [table]], [[0, 1]])
    found = {group.jobs[0]: place.nodes[0] for group, place in zip(groups, places, strict=True)}
    pools = {job: int(node > 1) for job, node in found.items()}
    assert pools == {job: int(node > 1) for job, node in where.items()}
    assert [len(room.free) for room in rooms] == [len(nodes) for nodes in free]
    assert sorted([*found.values(), *rooms[0].free, *rooms[1].free]) == [0, 1, 2, 3]
    assert [group.values for group in groups] == [[worth[group.jobs[0]][pools[group.jobs[0]]]] for group in groups]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_few_members_change_places_as_by_arrays(size: int) -> None:
    changed = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        tables = [table_of(random_times(seed, 3), size=size)] * 3
        worth: dict[int, list[float]] = {}
        members: list[list[int]] = []
        pools: list[int] = rng.integers(0, 3, int(rng.integers(2, 9))).tolist()
        for pool in pools:
            members.append([])
            for _ in range(int(rng.integers(1, size + 1))):
                job = len(worth)
                worth[job] = [float(v) for v in rng.choice([0.0, 0.3, 0.7, 1.0], 3) * rng.uniform(0.5, 3.0)]
                worth[job][pool] = max(worth[job][pool], 0.1)
                members[-1].append(job)
        columns = rng.integers(0, 3, len(worth)).tolist()
        free = [pool for pool in range(3) if rng.random() < 0.5]

        def made(
            pools: list[int] = pools,
            members: list[list[int]] = members,
            worth: dict[int, list[float]] = worth,
            columns: list[int] = columns,
            tables: list[SetTable] = tables,
        ) -> list[Group]:
            return [
                Group(tables[pool], 0, jobs[:], [columns[job] for job in jobs], [worth[job][pool] for job in jobs])
                for pool, jobs in zip(pools, members, strict=True)
            ]

        def more(groups: list[Group], here: list[int], free: list[int] = free, most: int = len(pools)) -> None:
            for pool in free:
                groups += [Group(tables[pool], 0, [], [], []) for _ in range(most)]  # noqa: B023 - called in this turn
                here += [pool] * most

        if any(group.value == 0.0 for group in made()):
            continue  # none that may not be formed is ever there
        plain, here = made(), pools[:]
        Few(plain, here, worth, tables, size).improve(free, lambda: more(plain, here))  # noqa: B023
        arrays, there = made(), pools[:]
        more(arrays, there)
        Across(arrays, there, worth, tables).improve()
        used = [group for group in arrays if group.jobs]
        assert [group.jobs for group in plain if group.jobs] == [group.jobs for group in used]
        assert [group.values for group in plain if group.jobs] == [group.values for group in used]
        if [group.jobs for group in plain] != members:
            assert here == there
            changed += 1
        else:
            assert here == pools, "nothing is taken if nothing changes"
    assert changed > 25
