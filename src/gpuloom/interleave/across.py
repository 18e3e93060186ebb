"""Groups on several GPU models: members join, leave or change places between them while the summed value rises.

A job alone on a slow GPU may do more beside another one on a fast GPU. All groups here are of one shape; a place that
nobody uses is a group without members. As `valued.exchange`, but what a member is worth goes by the GPU model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from gpuloom.core.decision import Placement
from gpuloom.core.workload import F8
from gpuloom.interleave.tables import NEVER, SetTable
from gpuloom.interleave.valued import Group

_EXCHANGED = 128
"""Groups that change members with each other: the time grows with their square."""
_ROUNDS = 8
_GAIN = 1e-9


class Room(Protocol):
    """GPUs of one model."""

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
        self, groups: Sequence[Group], pools: Sequence[int], worth: Mapping[int, F8], tables: Sequence[SetTable]
    ) -> None:
        self._groups, self._worth, self._tables = groups, worth, tables
        self._size = size = tables[0].size
        n = len(groups)
        self._pool = np.array(pools, dtype=np.intp)
        seats = n * size
        self._seat_pool = np.repeat(self._pool, size)
        self._column = np.zeros(seats, dtype=np.intp)
        self._member = np.zeros((seats, len(tables)))
        self._number = np.zeros(seats, dtype=np.intp)
        self._rest, self._now, self._left = np.zeros(seats), np.zeros(seats), np.zeros(seats)
        self._empty = np.ones(seats, dtype=bool)
        of_seat = np.repeat(np.arange(n), size)
        self._same = of_seat[:, None] == of_seat[None, :]
        for index in range(n):
            self._write(index)

    def _write(self, index: int) -> None:
        """Fill in a group's seats: for a member the group without it, for an empty seat the group as it is."""
        group, size = self._groups[index], self._size
        table = group.table
        value = group.value
        for place in range(size):
            seat = index * size + place
            self._now[seat] = value
            taken = place < len(group.jobs)
            self._empty[seat] = not taken
            if taken:
                others = group.columns[:place] + group.columns[place + 1 :]
                values = group.values[:place] + group.values[place + 1 :]
                self._column[seat] = group.columns[place] + 1
                self._member[seat] = self._worth[group.jobs[place]]
                self._number[seat], self._rest[seat] = table.set_of(others), group.total - group.values[place]
                self._left[seat] = table.value(int(self._number[seat]), others, values, float(self._rest[seat]))
            else:
                self._column[seat], self._member[seat] = 0, 0.0
                self._number[seat], self._rest[seat], self._left[seat] = group.number, group.total, value

    def _put(self) -> F8:
        """[a, b]: the value of a's group if the member on seat b took seat a."""
        seats = len(self._rest)
        put = np.empty((seats, seats))
        for pool in np.unique(self._pool).tolist():
            rows = np.flatnonzero(self._seat_pool == pool)
            table, comes = self._tables[pool], self._member[:, pool]
            number, rest = self._number[rows], self._rest[rows][:, None]
            if table.joined is None:
                put[rows] = (rest + comes) * table.formed.take(table.grown[number][:, self._column])
            else:
                there, added = table.joined
                put[rows] = rest * there[number][:, self._column] + comes * added[number][:, self._column]
            put[np.ix_(rows, np.flatnonzero((comes <= 0) & ~self._empty))] = NEVER
        put[:, self._empty] = self._left[:, None]
        return put

    def improve(self) -> None:
        """Change members, the best change first, while the summed value rises."""
        for _ in range(_ROUNDS):
            put = self._put()
            gain = put + put.T - self._now[:, None] - self._now
            gain[self._same] = NEVER
            gain[self._empty[:, None] & self._empty] = NEVER
            flat = np.triu(gain, 1).ravel()
            better = np.flatnonzero(flat > _GAIN * max(float(self._now.max()), 1e-300))
            if not len(better):
                break
            touched: set[int] = set()
            seats = len(self._rest)
            for entry in better[np.argsort(-flat[better], kind="stable")].tolist():
                (one, a), (two, b) = divmod(entry // seats, self._size), divmod(entry % seats, self._size)
                if one in touched or two in touched:
                    continue
                touched |= {one, two}
                self._trade(one, a, two, b)

    def _trade(self, one: int, a: int, two: int, b: int) -> None:
        here, there = self._groups[one], self._groups[two]
        goes = _out(here, a)
        comes = _out(there, b)
        for index, group, member in ((two, there, goes), (one, here, comes)):
            if member is not None:
                job, column = member
                group.jobs.append(job)
                group.columns.append(column)
                group.values.append(float(self._worth[job][self._pool[index]]))
            group.changed()
        self._write(one)
        self._write(two)


def _out(group: Group, place: int) -> tuple[int, int] | None:
    """Take the member on this seat out of its group; None: the seat is empty."""
    if place >= len(group.jobs):
        return None
    group.values.pop(place)
    return group.jobs.pop(place), group.columns.pop(place)


def spread(
    groups: list[Group],
    places: list[Placement],
    worth: Mapping[int, F8],
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
        parts = -(-len(alike) // _EXCHANGED)
        for part in range(parts):
            some = alike[part::parts]
            mine, at = [groups[index] for index in some], [places[index] for index in some]
            for pool in pools[shape]:
                for _ in some:
                    place = rooms[pool].take(tables[pool][shape].gpus)
                    if place is None:
                        break
                    mine.append(Group(tables[pool][shape], shape, [], [], []))
                    at.append(place)
            here = [pool_of_node[place.nodes[0]] for place in at]
            for group, pool in zip(mine, here, strict=True):
                group.values[:] = [float(worth[job][pool]) for job in group.jobs]
                group.changed()
            if len(mine) > 1:
                Across(mine, here, worth, [of_pool[shape] for of_pool in tables]).improve()
            groups += mine[len(some) :]
            places += at[len(some) :]
        for index in range(len(groups) - 1, -1, -1):
            if not groups[index].jobs:
                rooms[pool_of_node[places[index].nodes[0]]].release(places[index])
                del groups[index], places[index]
