"""Groups on several GPU models: members join, leave or change places between them while the summed value rises.

A job alone on a slow GPU may do more beside another one on a fast GPU. All groups here are of one shape; a place that
nobody uses is a group without members. As `valued.exchange`, but what a member is worth goes by the GPU model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gpuloom.core.decision import Placement
from gpuloom.core.sums import sum_ints
from gpuloom.core.workload import F8
from gpuloom.interleave.across_few import GAIN, ROUNDS, Few, trade
from gpuloom.interleave.tables import NEVER, SetTable
from gpuloom.interleave.valued import Group, in_parts

_FEW = 32
"""So many members are compared faster one by one than as arrays."""


class Room(Protocol):
    """GPUs of one model."""

    def fits(self, gpus: int) -> bool:
        """Whether `take` would find some."""

    def take(self, gpus: int) -> Placement | None:
        """Free GPUs, which are taken from now on; None: there is no room."""

    def release(self, placement: Placement) -> None:
        """Give them back."""


class Across:
    """Groups of one shape and their seats.

    Args:
        groups: may be without members; their tables are those of their pools.
        pools: of each group.
        worth: by job, what it is worth in each pool (worth · solo seconds · speed); 0 where it can't run.
        tables: by pool.
    """

    def __init__(
        self,
        groups: Sequence[Group],
        pools: Sequence[int],
        worth: Mapping[int, Sequence[float]],
        tables: Sequence[SetTable],
    ) -> None:
        self._groups, self._worth, self._tables, self._pool = groups, worth, tables, pools
        self._size = size = tables[0].size if _share(groups, pools, tables) else 1
        n = len(groups)
        seats = n * size
        # Plain lists, of which arrays are made when they are needed: there are few seats.
        self._column = [0] * seats
        self._member: list[Sequence[float]] = [()] * seats
        self._number = [0] * seats
        self._rest, self._now, self._left = [0.0] * seats, [0.0] * seats, [0.0] * seats
        self._empty = [True] * seats
        self._nothing = (0.0,) * len(tables)
        of_seat = np.arange(seats) // size
        self._never = of_seat[:, None] >= of_seat[None, :]
        """Pairs of seats that are of one group, or are looked at the other way round."""
        seat_pool = np.array(pools, dtype=np.intp)[of_seat]
        self._rows = [(pool, (seat_pool == pool).nonzero()[0]) for pool in sorted({*pools})]
        for index in range(n):
            self._write(index)

    def _write(self, index: int) -> None:
        """Fill in a group's seats: for a member the group without it, for an empty seat the group as it is."""
        group, size = self._groups[index], self._size
        table = group.table
        value, total = group.value, group.total
        members = len(group.jobs)
        for place in range(size):
            seat = index * size + place
            self._now[seat] = value
            taken = place < members
            self._empty[seat] = not taken
            if taken:
                others = group.columns[:place] + group.columns[place + 1 :]
                values = group.values[:place] + group.values[place + 1 :]
                number, rest = table.set_of(others), total - group.values[place]
                self._column[seat] = group.columns[place] + 1
                self._member[seat] = self._worth[group.jobs[place]]
                self._number[seat], self._rest[seat] = number, rest
                self._left[seat] = table.value(number, others, values, rest)
            else:
                self._column[seat], self._member[seat] = 0, self._nothing
                self._number[seat], self._rest[seat], self._left[seat] = group.number, total, value

    def _put(self, empty: NDArray[np.bool_]) -> F8:
        """[a, b]: the value of a's group if the member on seat b took seat a."""
        seats = len(self._rest)
        put = np.empty((seats, seats))
        column, number = np.array(self._column, dtype=np.intp), np.array(self._number, dtype=np.intp)[:, None]
        member, rest = np.array(self._member), np.array(self._rest)[:, None]
        for pool, rows in self._rows:
            table, comes = self._tables[pool], member[:, pool]
            if table.joined is None:
                put[rows] = (rest[rows] + comes) * table.formed.take(table.grown[number[rows], column])
            else:
                there, added = table.joined
                put[rows] = rest[rows] * there[number[rows], column] + comes * added[number[rows], column]
            barred = (comes <= 0) & ~empty
            if barred.any():
                put[np.ix_(rows, barred)] = NEVER
        if empty.any():
            put[:, empty] = np.array(self._left)[:, None]
        return put

    def improve(self) -> None:
        """Change members, the best change first, while the summed value rises."""
        seats = len(self._rest)
        for _ in range(ROUNDS):
            now, empty = np.array(self._now), np.array(self._empty)
            put = self._put(empty)
            gain = put + put.T - now[:, None] - now
            gain[self._never] = NEVER
            gain[empty[:, None] & empty] = NEVER
            flat = gain.ravel()
            better = (flat > GAIN * max(max(self._now), 1e-300)).nonzero()[0]
            if not len(better):
                break
            touched: set[int] = set()
            for entry in better[np.argsort(-flat[better], kind="stable")].tolist():
                (one, a), (two, b) = divmod(entry // seats, self._size), divmod(entry % seats, self._size)
                if one in touched or two in touched:
                    continue
                touched |= {one, two}
                trade(self._groups, self._pool, self._worth, one, a, two, b)
                self._write(one)
                self._write(two)


def _share(groups: Sequence[Group], pools: Sequence[int], tables: Sequence[SetTable]) -> bool:
    """Whether any two jobs may be in one group here. If not, every group has one seat."""
    return any(len(group.jobs) > 1 for group in groups) or any(tables[pool].weaves for pool in {*pools})


def spread(
    groups: list[Group],
    places: list[Placement],
    worth: Mapping[int, Sequence[float]],
    rooms: Sequence[Room],
    pool_of_node: Mapping[int, int],
    tables: Sequence[Sequence[SetTable]],
    pools: Sequence[Sequence[int]],
) -> None:
    """Change members of the groups, and with them the groups and the free GPUs, until no change is worth more.

    Args:
        worth: by job, what it is worth in each pool (worth · solo seconds · speed); 0 where it can't run.
        tables: by pool and shape.
        pools: by shape, where it may run.
    """
    for shape in sorted({group.shape for group in groups}):
        alike = [index for index, group in enumerate(groups) if group.shape == shape]
        of_shape = [of_pool[shape] for of_pool in tables]
        for some in in_parts(alike):
            mine, at = [groups[index] for index in some], [places[index] for index in some]
            here = [pool_of_node[place.nodes[0]] for place in at]
            for group, pool in zip(mine, here, strict=True):
                group.values[:] = [worth[job][pool] for job in group.jobs]
                group.revalued()
            _changed(shape, mine, at, here, worth, rooms, pools[shape], of_shape)
            groups += mine[len(some) :]
            places += at[len(some) :]
        for index in [index for index, group in enumerate(groups) if not group.jobs][::-1]:
            rooms[pool_of_node[places[index].nodes[0]]].release(places[index])
            del groups[index], places[index]


def _changed(
    shape: int,
    groups: list[Group],
    places: list[Placement],
    here: list[int],
    worth: Mapping[int, Sequence[float]],
    rooms: Sequence[Room],
    pools: Sequence[int],
    tables: Sequence[SetTable],
) -> None:
    """The changes of some groups of one shape. Groups are added on the GPUs that are free, if any change is made.

    Args:
        here: the pool of each group.
        pools: where the shape may run.
        tables: by pool.
    """
    free, most = [pool for pool in pools if rooms[pool].fits(tables[pool].gpus)], len(groups)

    def more() -> None:
        for pool in free:
            for _ in range(most):
                place = rooms[pool].take(tables[pool].gpus)
                if place is None:
                    break
                groups.append(Group(tables[pool], shape, [], [], []))
                places.append(place)
                here.append(pool)

    if sum_ints(len(group.jobs) for group in groups) <= _FEW:
        size = tables[0].size if _share(groups, [*here, *free], tables) else 1
        Few(groups, here, worth, tables, size).improve(free, more)
    else:
        more()
        Across(groups, here, worth, tables).improve()
