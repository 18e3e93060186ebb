"""Groups by value: which jobs share GPUs so that the summed value per second is large.

Every job has a worth, the value of a second of its solo work. A group's value per second is Σ worth · solo / T over
its jobs. GPUs are filled greedily, best value per GPU first, by sets of the best jobs of each profile. When every job
is placed and GPUs are left, members are split off to GPUs of their own. Groups of one shape then exchange members while
the value rises. How many nodes each GPU count gets is found by dynamic programming over the curves of value by nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, combinations
from typing import TypeVar

import numpy as np

from gpuloom.core.sums import sum_floats, sum_ints
from gpuloom.interleave.efficiency import MAX_GROUP
from gpuloom.interleave.tables import NEVER, Few, SetTable

ROUNDS = 4
"""The most rounds of exchanges."""
STEPS = 16
"""The most points of a curve of value by nodes."""
_GAIN = 1e-9
_EXCHANGED = 128
_Member = TypeVar("_Member")

Stack = tuple[list[int], list[float]]
"""Jobs of one profile, best first, and the value of each (worth · solo seconds per iteration)."""
Stacks = dict[int, dict[int, Stack]]
"""Stacks by shape and by column of the shape's table."""


@dataclass(slots=True)
class Group:
    """Jobs that share GPUs, with their columns and values."""

    table: SetTable
    shape: int
    jobs: list[int]
    columns: list[int]
    values: list[float]
    number: int = 0
    total: float = 0.0
    _split: tuple[float, tuple[int, ...]] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self.changed()

    def changed(self) -> None:
        """To be called after a change of members or table."""
        self.number = self.table.set_of(self.columns)
        self.revalued()

    def revalued(self) -> None:
        """To be called after a change of values alone."""
        self.total = sum_floats(self.values)
        self._split = None

    @property
    def value(self) -> float:
        """Value per second."""
        return self.table.value(self.number, self.columns, self.values, self.total)

    def copy(self) -> Group:
        """The same, to be changed by itself."""
        return Group(self.table, self.shape, self.jobs[:], self.columns[:], self.values[:])

    def best_split(self) -> tuple[float, tuple[int, ...]]:
        """The most that the value gains when some members get GPUs of their own, and these members."""
        if self._split is None:
            table, columns, values = self.table, self.columns, self.values
            best: tuple[float, tuple[int, ...]] = (NEVER, ())
            now = self.value
            for away in _PARTS[len(columns)]:
                moved = sum_floats([values[place] for place in away])
                stay = [column for place, column in enumerate(columns) if place not in away]
                go = [columns[place] for place in away]
                kept = [value for place, value in enumerate(values) if place not in away]
                gone = [values[place] for place in away]
                gain = table.value(table.set_of(stay), stay, kept, self.total - moved)
                gain = gain + table.value(table.set_of(go), go, gone, moved) - now
                if gain > best[0]:
                    best = (gain, away)
            self._split = best
        return self._split

    def split(self) -> Group:
        """The members of the best split, now on their own."""
        _, away = self.best_split()
        kept = [place for place in range(len(self.jobs)) if place not in away]
        parts = [
            ([self.jobs[n] for n in places], [self.columns[n] for n in places], [self.values[n] for n in places])
            for places in (kept, away)
        ]
        self.jobs, self.columns, self.values = parts[0]
        self.changed()
        return Group(self.table, self.shape, *parts[1])


_PARTS: tuple[tuple[tuple[int, ...], ...], ...] = tuple(
    tuple(away for size in range(1, members // 2 + 1) for away in combinations(range(members), size))
    for members in range(MAX_GROUP + 1)
)
"""By number of members: the sets of members that may leave. (Of two halves either may.)"""

Fits = Callable[[int], bool]
"""Takes room for one more group of the shape, if there is any."""


class Filler:
    """Fills GPUs with groups from some shapes."""

    def __init__(self, tables: Sequence[SetTable], shapes: Sequence[int], stacks: Stacks) -> None:
        self._tables, self._stacks = tables, {shape: stacks[shape] for shape in shapes if stacks.get(shape)}
        self.groups: list[Group] = []
        self.value = 0.0
        self._at = {shape: dict.fromkeys(columns, 0) for shape, columns in self._stacks.items()}
        self._sums: dict[int, np.ndarray[tuple[int], np.dtype[np.float64]]] = {}
        self._best: dict[int, tuple[float, int]] = {}
        self._few: dict[int, Few] = {}
        """By shape, the sets to choose from, where they are few; `_sums` has the other shapes."""
        self._first: dict[int, dict[int, list[float]]] = {}
        """Of these shapes: the prefix sums of each stack's next jobs."""
        for shape, columns in self._stacks.items():
            table = tables[shape]
            few = table.few(tuple(sorted(columns)))
            if few is None:
                self._sums[shape] = sums = np.full(len(table.profiles) * (table.size + 1) + 1, NEVER)
                sums[-1] = 0.0
            else:
                self._few[shape], self._first[shape] = few, {}
            for column in columns:
                self._tops(shape, column)
            self._choose(shape)

    def __bool__(self) -> bool:
        return bool(self._stacks)

    def _tops(self, shape: int, column: int) -> None:
        """Prefix sums of the values of the next jobs of a stack."""
        size = self._tables[shape].size
        at = self._at[shape][column]
        sums = list(accumulate(self._stacks[shape][column][1][at : at + size]))
        if shape in self._few:
            self._first[shape][column] = sums
            return
        first = column * (size + 1) + 1
        self._sums[shape][first : first + size] = sums + [NEVER] * (size - len(sums))

    def _choose(self, shape: int) -> None:
        table, few = self._tables[shape], self._few.get(shape)
        if few is not None:
            most, choice = _best_of(few, self._first[shape])
            self._best[shape] = most / table.gpus, choice
            return
        value = self._sums[shape].take(table.pattern)
        if table.factors is not None:
            value *= table.factors
        value = value.sum(axis=0)
        if table.factors is None:
            value *= table.inverse[1:-1]
        best = int(value.argmax())
        self._best[shape] = (float(value[best]) / table.gpus, best) if value[best] > 0 else (0.0, -1)

    def fill(self, free: int, fits: Fits | None = None) -> int:
        """Use up to `free` GPUs more; returns how many are left. `fits` has the last word on each group."""
        closed: set[int] = set()
        while free > 0:
            shape, best, choice = -1, 0.0, -1
            for candidate, (density, number) in self._best.items():
                if density > best and self._tables[candidate].gpus <= free and candidate not in closed:
                    shape, best, choice = candidate, density, number
            if shape >= 0:
                if fits is not None and not fits(shape):
                    closed.add(shape)
                    continue
                group = self._take(shape, choice)
            else:
                best, source = 0.0, None
                for one in self.groups:
                    gpus = one.table.gpus
                    if len(one.jobs) > 1 and gpus <= free and one.shape not in closed:
                        gain = one.best_split()[0] / gpus
                        if gain > best:
                            best, source = gain, one
                if source is None:
                    break
                if fits is not None and not fits(source.shape):
                    closed.add(source.shape)
                    continue
                self.value -= source.value
                group = source.split()
                self.value += source.value
                if group.table is not self._tables[group.shape]:  # it leaves for other GPUs than its group has
                    group.table = self._tables[group.shape]
                    group.changed()
            self.groups.append(group)
            self.value += group.value
            free -= group.table.gpus
        return free

    def _take(self, shape: int, choice: int) -> Group:
        jobs: list[int] = []
        columns: list[int] = []
        values: list[float] = []
        for column, members in self._tables[shape].takes[choice + 1]:
            at = self._at[shape][column]
            stack = self._stacks[shape][column]
            jobs += stack[0][at : at + members]
            values += stack[1][at : at + members]
            columns += [column] * members
            self._at[shape][column] = at + members
            self._tops(shape, column)
        self._choose(shape)
        return Group(self._tables[shape], shape, jobs, columns, values)


def _best_of(few: Few, first: Mapping[int, Sequence[float]]) -> tuple[float, int]:
    """The most valuable set of the next jobs of each stack, the first of equals, and its value; 0 and -1: none."""
    most, choice = 0.0, -1
    for number, takes, factor in few:
        value = 0.0
        for column, members, share in takes:
            sums = first[column]
            if len(sums) < members:
                break
            value += sums[members - 1] * share
        else:
            value *= factor
            if value > most:
                most, choice = value, number
    return most, choice


def share_nodes(tables: Sequence[SetTable], stacks: Stacks, nodes: int, gpus_per_node: int) -> tuple[list[Group], int]:
    """Groups for nodes of the same kind, and the number of GPUs left over.

    GPU counts below a node's compete for the same nodes. Each larger GPU count gets whole nodes: how many, dynamic
    programming over its curve of value by nodes decides.
    """
    small = [shape for shape in stacks if tables[shape].gpus < gpus_per_node]
    pools: list[tuple[list[int], int]] = [(small, 1)] if small else []
    by_gpus: dict[int, list[int]] = {}
    for shape in stacks:
        if tables[shape].gpus >= gpus_per_node:
            by_gpus.setdefault(tables[shape].gpus, []).append(shape)
    pools += [(shapes, -(-gpus // gpus_per_node)) for gpus, shapes in sorted(by_gpus.items())]
    unit = max(1, nodes // STEPS)
    """Nodes are dealt out in blocks of this size; one by one if blocks would leave no room for the largest jobs."""
    if max([least for _, least in pools], default=0) > nodes // unit * unit:
        unit = 1
    units = nodes // unit
    best: list[tuple[float, tuple[int, ...]]] = [(0.0, ())] * (units + 1)
    curves: list[list[tuple[float, int]]] = []
    """By pool: value and GPUs left over, by number of steps."""
    ends: list[list[Group]] = []
    """By pool: the groups at the end of the curve."""
    for shapes, least in pools:
        step = -(-least // unit)
        filler = Filler(tables, shapes, stacks)
        curve = [(0.0, 0)]
        free = 0
        while (len(curve)) * step <= units:
            gpus = step * unit * gpus_per_node
            free = filler.fill(free + gpus)
            curve.append((filler.value, free))
            if free >= gpus:
                break
        curves.append(curve)
        ends.append(filler.groups)
        best = [
            max(
                (best[given - taken * step][0] + curve[taken][0], (*best[given - taken * step][1], taken))
                for taken in range(min(given // step, len(curve) - 1) + 1)
            )
            for given in range(units + 1)
        ]
    # Filling again is cheaper than keeping the groups of every point of the curves but the last.
    groups: list[Group] = []
    for (shapes, least), curve, end, taken in zip(pools, curves, ends, best[units][1], strict=True):
        if taken == len(curve) - 1:
            groups += end
        elif taken:
            filler = Filler(tables, shapes, stacks)
            gpus = -(-least // unit) * unit * gpus_per_node
            for left in range(taken):
                filler.fill(curve[left][1] + gpus)
            groups += filler.groups
    return groups, nodes * gpus_per_node - sum_ints(group.table.gpus for group in groups)


def in_parts(alike: Sequence[_Member]) -> list[Sequence[_Member]]:
    """Of groups of one shape those that exchange members with each other: the time grows with their square."""
    parts = -(-len(alike) // _EXCHANGED)
    return [alike[part::parts] for part in range(parts)]


def exchange(groups: Sequence[Group]) -> None:
    """Move members between groups of one shape, or swap two, while the summed value rises."""
    n = len(groups)
    if n < 2 or all(len(group.jobs) == 1 for group in groups):
        return
    table = groups[0].table
    size = table.size
    seats = n * size
    column, number = np.zeros(seats, dtype=np.intp), np.zeros(seats, dtype=np.intp)
    value, rest, now, left = np.zeros(seats), np.zeros(seats), np.zeros(seats), np.zeros(seats)
    lone, empty = np.zeros(seats, dtype=bool), np.zeros(seats, dtype=bool)
    of_seat = np.repeat(np.arange(n), size)
    done = of_seat[:, None] >= of_seat[None, :]

    def write(index: int) -> None:
        """Fill in a group's seats: for a member, the group without it; for an empty seat, the group as it is."""
        group = groups[index]
        members = len(group.jobs)
        now[index * size : (index + 1) * size] = group.value
        lone[index * size : (index + 1) * size] = members == 1
        for place in range(size):
            seat = index * size + place
            empty[seat] = place >= members
            if place < members:
                others = group.columns[:place] + group.columns[place + 1 :]
                column[seat], value[seat] = group.columns[place] + 1, group.values[place]
                number[seat], rest[seat] = table.set_of(others), group.total - group.values[place]
                if table.joined is not None:
                    values = group.values[:place] + group.values[place + 1 :]
                    left[seat] = table.value(int(number[seat]), others, values, float(rest[seat]))
            else:
                column[seat], value[seat], number[seat], rest[seat] = 0, 0.0, group.number, group.total
                left[seat] = group.value

    for index in range(n):
        write(index)
    for _ in range(ROUNDS):
        # put[a, b]: value of a's group if the member on seat b took seat a.
        if table.joined is None:
            put = (rest[:, None] + value) * table.formed.take(table.grown[number][:, column])
        else:
            there, added = table.joined
            put = rest[:, None] * there[number][:, column] + value * added[number][:, column]
            put[:, empty] = left[:, None]
        gain = put + put.T
        gain -= now[:, None]
        gain -= now
        gain[done] = -1.0
        single = lone & ~empty
        gain[single[:, None] & empty] = -1.0
        gain[empty[:, None] & single] = -1.0
        flat = gain.ravel()
        better = np.flatnonzero(flat > _GAIN * now.max())
        if not len(better):
            return
        touched: set[int] = set()
        for entry in better[np.argsort(-flat[better], kind="stable")].tolist():
            (one, a), (two, b) = divmod(entry // seats, size), divmod(entry % seats, size)
            if one in touched or two in touched:
                continue
            touched |= {one, two}
            _trade(groups[one], a, groups[two], b)
            write(one)
            write(two)
            if len(touched) + 1 >= n:
                break


def _trade(one: Group, a: int, two: Group, b: int) -> None:
    """Swap the members on seats a and b, or move one if the other seat is empty."""
    if a >= len(one.jobs):
        one, a, two, b = two, b, one, a
    if b >= len(two.jobs):
        two.jobs.append(one.jobs.pop(a))
        two.columns.append(one.columns.pop(a))
        two.values.append(one.values.pop(a))
    else:
        one.jobs[a], two.jobs[b] = two.jobs[b], one.jobs[a]
        one.columns[a], two.columns[b] = two.columns[b], one.columns[a]
        one.values[a], two.values[b] = two.values[b], one.values[a]
    one.changed()
    two.changed()
