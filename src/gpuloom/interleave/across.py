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
from gpuloom.core.workload import F8
from gpuloom.interleave.tables import NEVER, SetTable
from gpuloom.interleave.valued import Group, in_parts

_ROUNDS = 8
_GAIN = 1e-9
_FEW = 12
"""So many groups of one job each are compared faster one by one than as arrays."""


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
        for _ in range(_ROUNDS):
            now, empty = np.array(self._now), np.array(self._empty)
            put = self._put(empty)
            gain = put + put.T - now[:, None] - now
            gain[self._never] = NEVER
            gain[empty[:, None] & empty] = NEVER
            flat = gain.ravel()
            better = (flat > _GAIN * max(max(self._now), 1e-300)).nonzero()[0]
            if not len(better):
                break
            touched: set[int] = set()
            for entry in better[np.argsort(-flat[better], kind="stable")].tolist():
                (one, a), (two, b) = divmod(entry // seats, self._size), divmod(entry % seats, self._size)
                if one in touched or two in touched:
                    continue
                touched |= {one, two}
                _trade(self._groups, self._pool, self._worth, one, a, two, b)
                self._write(one)
                self._write(two)


def _out(group: Group, place: int) -> tuple[int, int] | None:
    """Take the member on this seat out of its group; None: the seat is empty."""
    if place >= len(group.jobs):
        return None
    group.values.pop(place)
    return group.jobs.pop(place), group.columns.pop(place)


def _share(groups: Sequence[Group], pools: Sequence[int], tables: Sequence[SetTable]) -> bool:
    """Whether any two jobs may be in one group here. If not, every group has one seat."""
    return any(len(group.jobs) > 1 for group in groups) or any(tables[pool].weaves for pool in {*pools})


def improve_alone(
    groups: Sequence[Group], pools: Sequence[int], worth: Mapping[int, Sequence[float]], tables: Sequence[SetTable]
) -> None:
    """As `Across.improve`, with the same result, for a few groups of one seat: in plain numbers."""
    if len({*pools}) == 1:
        return  # nothing is worth more elsewhere
    number = range(len(groups))
    of_job: dict[int, list[float]] = {}
    """By job: its value per second in each pool."""
    for group in groups:
        for job, column in zip(group.jobs, group.columns, strict=True):
            of_job[job] = [
                value * table.inverse_list[table.grown_list[0][column + 1]] if value > 0 else NEVER
                for value, table in zip(worth[job], tables, strict=True)
            ]
    for _ in range(_ROUNDS):
        now = [group.value for group in groups]
        least = _GAIN * max(*now, 1e-300)
        there = [of_job[group.jobs[0]] if group.jobs else None for group in groups]
        better: list[tuple[float, int, int]] = []
        for one in number:
            mine, pool = there[one], pools[one]
            for two in number[one + 1 :]:
                theirs, other = there[two], pools[two]
                if pool == other or (mine is None and theirs is None):
                    continue
                gain = (0.0 if theirs is None else theirs[pool]) + (0.0 if mine is None else mine[other])
                gain = gain - now[one] - now[two]
                if gain > least:
                    better.append((-gain, one, two))
        if not better:
            break
        touched: set[int] = set()
        for _, one, two in sorted(better):
            if one in touched or two in touched:
                continue
            touched |= {one, two}
            _trade(groups, pools, worth, one, 0, two, 0)


def _trade(
    groups: Sequence[Group],
    pools: Sequence[int],
    worth: Mapping[int, Sequence[float]],
    one: int,
    a: int,
    two: int,
    b: int,
) -> None:
    """The members on seat a of one group and on seat b of another change places; seats may be empty."""
    goes, comes = _out(groups[one], a), _out(groups[two], b)
    for index, member in ((two, goes), (one, comes)):
        group = groups[index]
        if member is not None:
            job, column = member
            group.jobs.append(job)
            group.columns.append(column)
            group.values.append(worth[job][pools[index]])
        group.changed()


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
        for some in in_parts(alike):
            mine, at = [groups[index] for index in some], [places[index] for index in some]
            for pool in pools[shape]:
                for _ in some:
                    place = rooms[pool].take(tables[pool][shape].gpus)
                    if place is None:
                        break
                    mine.append(Group(tables[pool][shape], shape, [], [], []))
                    at.append(place)
            here = [pool_of_node[place.nodes[0]] for place in at]
            for group, pool in zip(mine[: len(some)], here, strict=False):
                group.values[:] = [worth[job][pool] for job in group.jobs]
                group.revalued()
            if len(mine) > 1:
                of_shape = [of_pool[shape] for of_pool in tables]
                if len(mine) <= _FEW and not _share(mine, here, of_shape):
                    improve_alone(mine, here, worth, of_shape)
                else:
                    Across(mine, here, worth, of_shape).improve()
            groups += mine[len(some) :]
            places += at[len(some) :]
        for index in [index for index, group in enumerate(groups) if not group.jobs][::-1]:
            rooms[pool_of_node[places[index].nodes[0]]].release(places[index])
            del groups[index], places[index]
