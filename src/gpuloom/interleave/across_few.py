"""The changes of `interleave/across.py` for a few groups, in plain numbers: the same sums in the same order, so the
same changes. Arrays of a few numbers cost more than they save, and mostly no change is worth anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from gpuloom.interleave.tables import NEVER, SetTable
from gpuloom.interleave.valued import Group

GAIN = 1e-9
ROUNDS = 8

Worths = Mapping[int, Sequence[float]]
"""By job, what it is worth in each pool; 0 where it can't run."""
_Seat = tuple[int, Sequence[float], float, float, list[float], list[float] | None]
"""A member: its column in grown sets, its worth by pool; of its group without it the total of worth and the value; and
what `SetTable.joining` says of that set."""
_Room = tuple[float, list[float], list[float] | None]
"""A group that one more may join: the total of worth, and what `SetTable.joining` says of it."""
_Change = tuple[float, int, int]
"""What it loses (below 0: it gains), and two seats: `group · size + place` of each. The best is the smallest."""


class Few:
    """Groups of one shape.

    Args:
        groups: may be without members; their tables are those of their pools.
        pools: of each group.
        tables: by pool.
        size: seats of each group.
    """

    def __init__(
        self, groups: list[Group], pools: list[int], worth: Worths, tables: Sequence[SetTable], size: int
    ) -> None:
        self._groups, self._pools, self._worth, self._tables, self._size = groups, pools, worth, tables, size
        self._now: list[float] = []
        self._seats: list[list[_Seat]] = []
        self._rooms: list[_Room | None] = []
        for group in groups:
            self._add(group)

    def improve(self, free: Iterable[int], more: Callable[[], None]) -> None:
        """Change members, the best change first, while the summed value rises.

        Args:
            free: pools in which there is room for groups that are not there yet.
            more: adds those to the groups and pools. It is called if any change is worth more.
        """
        open_pools, changed, before = set(free), set(range(len(self._groups))), float("inf")
        for turn in range(ROUNDS):
            least = GAIN * max(*self._now, 1e-300)
            if least < before:
                changed = set(range(len(self._groups)))
            before = least
            better = self._trades(changed, least)
            moves = [move for pool in sorted(open_pools) for move in self._moves_to(pool, least)]
            if not (better or moves):
                return
            if not turn:
                more()
                for group in self._groups[len(self._now) :]:
                    self._add(group)
            empty = [index for index, group in enumerate(self._groups) if not group.jobs]
            size = self._size
            for gain, one, place, pool in moves:
                seat = one * size + place
                there = [two * size for two in empty if self._pools[two] == pool]
                better += [(-gain, min(seat, other), max(seat, other)) for other in there]
            better.sort()
            changed = self._made(better)
            open_pools = {pool for pool, group in zip(self._pools, self._groups, strict=True) if not group.jobs}

    def _made(self, better: Sequence[_Change]) -> set[int]:
        """Make the changes, the best first, each group in one; the groups in which something has changed."""
        touched: set[int] = set()
        for _, first, second in better:
            (one, a), (two, b) = divmod(first, self._size), divmod(second, self._size)
            if one not in touched and two not in touched:
                touched |= {one, two}
                trade(self._groups, self._pools, self._worth, one, a, two, b)
                self._look(one)
                self._look(two)
        return touched

    def _trades(self, changed: set[int], least: float) -> list[_Change]:
        """Changes of two groups with members that gain more than `least`; one of the two is in `changed`."""
        found: list[_Change] = []
        used = [index for index, seats in enumerate(self._seats) if seats]
        for at, one in enumerate(used):
            for two in used[at + 1 :]:
                if one in changed or two in changed:
                    self._trades_of(one, two, least, found)
        return found

    def _trades_of(self, one: int, two: int, least: float, found: list[_Change]) -> None:
        """`_joined` stands here in place of calls: nothing is done as often."""
        mine, theirs = self._seats[one], self._seats[two]
        here, there, value, other = self._pools[one], self._pools[two], self._now[one], self._now[two]
        # Of a group's empty seats one is enough: the others would be next, when the group has changed.
        first, second = one * self._size, two * self._size
        room = self._rooms[one]
        if room is not None:
            rest, row, added = room
            for place, (column, worth, _, left, _, _) in enumerate(theirs):
                if (comes := worth[here]) > 0.0:
                    grown = (
                        (rest + comes) * row[column] if added is None else rest * row[column] + comes * added[column]
                    )
                    if (gain := grown + left - value - other) > least:
                        found.append((-gain, first + len(mine), second + place))
        room = self._rooms[two]
        if room is not None:
            rest, row, added = room
            for place, (column, worth, _, left, _, _) in enumerate(mine):
                if (comes := worth[there]) > 0.0:
                    grown = (
                        (rest + comes) * row[column] if added is None else rest * row[column] + comes * added[column]
                    )
                    if (gain := left + grown - value - other) > least:
                        found.append((-gain, first + place, second + len(theirs)))
        if here == there and len(mine) == 1 == len(theirs):
            return  # they may change places as they like
        for place, (column, worth, rest, _, row, added) in enumerate(mine):
            if (goes := worth[there]) <= 0.0:
                continue
            for their_place, (other_column, other_worth, other_rest, _, other_row, other_added) in enumerate(theirs):
                if (comes := other_worth[here]) > 0.0:
                    if added is None:
                        gain = (rest + comes) * row[other_column]
                    else:
                        gain = rest * row[other_column] + comes * added[other_column]
                    if other_added is None:
                        gain = gain + (other_rest + goes) * other_row[column] - value - other
                    else:
                        gain = gain + (other_rest * other_row[column] + goes * other_added[column]) - value - other
                    if gain > least:
                        found.append((-gain, first + place, second + their_place))

    def _moves_to(self, pool: int, least: float) -> list[tuple[float, int, int, int]]:
        """(gain, group, place, pool) of members that better had GPUs of this pool for themselves."""
        row, added = self._tables[pool].joining(0)
        found: list[tuple[float, int, int, int]] = []
        for one, seats in enumerate(self._seats):
            if len(seats) == 1 and self._pools[one] == pool:
                continue
            for place, (column, worth, _, left, _, _) in enumerate(seats):
                gain = left + _joined(0.0, row, added, column, worth[pool]) - self._now[one]
                if gain > least:
                    found.append((gain, one, place, pool))
        return found

    def _add(self, group: Group) -> None:
        self._now.append(0.0)
        self._seats.append([])
        self._rooms.append(None)
        self._look(len(self._now) - 1)

    def _look(self, index: int) -> None:
        """Take down what a group is worth, with and without each of its members."""
        group = self._groups[index]
        table, columns, values = group.table, group.columns, group.values
        self._now[index] = group.value
        seats: list[_Seat] = []
        for place, job in enumerate(group.jobs):
            others, rest = columns[:place] + columns[place + 1 :], group.total - values[place]
            number = table.set_of(others)
            left = table.value(number, others, values[:place] + values[place + 1 :], rest)
            seats.append((columns[place] + 1, self._worth[job], rest, left, *table.joining(number)))
        self._seats[index] = seats
        self._rooms[index] = (group.total, *table.joining(group.number)) if len(seats) < self._size else None


def _joined(rest: float, there: list[float], added: list[float] | None, column: int, comes: float) -> float:
    """The value of a group when a job of this column and worth joins those of summed worth `rest`."""
    if comes <= 0.0:
        return NEVER
    if added is None:
        return (rest + comes) * there[column]
    return rest * there[column] + comes * added[column]


def trade(groups: Sequence[Group], pools: Sequence[int], worth: Worths, one: int, a: int, two: int, b: int) -> None:
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


def _out(group: Group, place: int) -> tuple[int, int] | None:
    """Take the member on this seat out of its group; None: the seat is empty."""
    if place >= len(group.jobs):
        return None
    group.values.pop(place)
    return group.jobs.pop(place), group.columns.pop(place)
