"""All groups that jobs of one GPU count can form, as tables; and what a second of a profile's work costs in them.

A *set* is a multiset of up to `size` profiles, named by its number. Number 0 is the empty set; the numbers after it are
the profiles alone, in order. With P profiles there are C(P + 4, 4) sets of up to four. Above `MOST` profiles, near ones
are put into one cluster, which its middle profile stands for. Only plans are then a little off: jobs run by their own
times.

The members of a set whose speeds follow from stage times all have the same factor, 1 / T; those of a measured pair have
a factor each (`uneven`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations_with_replacement
from math import comb

import numpy as np
from numpy.typing import NDArray

from gpuloom.core import logs, products
from gpuloom.core.sums import sum_floats
from gpuloom.core.workload import F8
from gpuloom.interleave.groups import UNKNOWN, GroupTimes, Profiles
from gpuloom.interleave.worth import GroupWorth, Source

MOST = 16
"""The most profiles that are told apart: 4,844 sets of up to four."""
MOST_PAIRED = 97
"""The same where no group has more than two jobs: 4,850 sets."""
NEVER = -1e200
_PIVOTS = 200

_FEW = 24
"""So many sets are looked at faster one by one than as arrays."""

Index = NDArray[np.intp]
Few = list[tuple[int, tuple[tuple[int, int, float], ...], float]]
"""Sets, in rising order: the number less 1; (column, members, factor of their worth) of each column; and a factor of
the sum."""


class SetTable:
    """The groups of jobs of one shape.

    Attributes:
        gpus: GPUs of each job.
        profiles: the profile that each column stands for.
        column_of: column of every profile of the shape.
        clustered: whether there are fewer columns than profiles.
        solo_s: seconds per iteration alone, by column.
        sets: columns of each set's members, in rising order.
        inverse: 1 / T of each set, per second; 0 for sets that may not be formed and for the empty one. Of a measured
            pair, the mean of its members' factors.
        worth: what groups are worth on the GPU models that the table is for.
        uneven: of measured pairs: by the set's number, the factor of each column, share of solo speed / `solo_s`.
        weaves: whether any two jobs may be in one group.
        formed: the same, but far below 0 for sets that may not be formed, so that no gain makes up for it.
        grown: shape (sets, columns + 1): the set with one more member; the first column is the set itself. For full
            sets -1: the last set, which may not be formed.
        takes: (column, members) of each set.
    """

    def __init__(
        self,
        gpus: int,
        profiles: Sequence[int],
        times: GroupTimes,
        size: int,
        allowed: Callable[[Profiles], bool],
        gpu_memory_mib: float = float("inf"),
        worth: GroupWorth | None = None,
    ) -> None:
        """
        Args:
            size: most jobs in a group.
            allowed: whether a group that the memory holds may be formed.
            worth: on the GPU models that the table is for; None: by stage times alone.
        """
        self.gpus = gpus
        self.worth = worth = worth or GroupWorth(times)
        if times.pairs is not None and not any(times.staged[profile] for profile in profiles if profile != UNKNOWN):
            size = min(size, 2)
        most = MOST_PAIRED if times.pairs is not None and size <= 2 else MOST
        self.profiles, self.column_of = _middles(profiles, times, gpu_memory_mib, most)
        self._memory_mib = [0.0] * len(self.profiles)
        """By column, the most memory of any of its profiles: a group that fits by these fits in any case."""
        for profile, column in self.column_of.items():
            if profile != UNKNOWN:
                self._memory_mib[column] = max(self._memory_mib[column], times.memory_mib[profile])
        self._gpu_memory_mib = gpu_memory_mib
        self.clustered = len(self.profiles) < len(self.column_of)
        columns = len(self.profiles)
        self.solo_s = np.array([1.0 if p == UNKNOWN else times.solo_s[p] for p in self.profiles])
        self.sets = [
            found for members in range(size + 1) for found in combinations_with_replacement(range(columns), members)
        ]
        number = {found: index for index, found in enumerate(self.sets)}
        self.uneven: dict[int, dict[int, float]] = {}
        self.inverse = self._inverses(worth, allowed)
        no_set = len(self.sets)
        self.inverse = np.append(self.inverse, 0.0)
        self.grown: Index = np.full((no_set + 1, columns + 1), no_set, dtype=np.intp)
        for index, found in enumerate(self.sets):
            self.grown[index, 0] = index
            if len(found) < size:
                for column in range(columns):
                    self.grown[index, column + 1] = number[tuple(sorted((*found, column)))]
        self.formed = np.where(self.inverse > 0, self.inverse, NEVER)
        self.inverse_list: list[float] = self.inverse.tolist()
        self.grown_list: list[list[int]] = self.grown.tolist()
        self.takes = [tuple((column, found.count(column)) for column in sorted(set(found))) for found in self.sets]
        # Sets as indices into a flat table of prefix sums, `column · (size + 1) + members`; unused ones point past it.
        self.size = size
        pattern = np.full((len(self.sets) - 1, size), columns * (size + 1), dtype=np.intp)
        for row, takes in enumerate(self.takes[1:]):
            for place, (column, members) in enumerate(takes):
                pattern[row, place] = column * (size + 1) + members
        self.pattern = np.ascontiguousarray(pattern.T)
        counts = np.array([[found.count(column) for column in range(columns)] for found in self.sets[1:]], dtype=float)
        self._members = self.pattern // (size + 1)
        """Shape as `pattern`: the columns of each set; unused places hold `columns`."""
        self._rate: F8 = counts * self.solo_s * self.inverse[1:-1, None]
        for row, factors in self.uneven.items():
            for column, factor in factors.items():
                self._rate[row - 1, column] = counts[row - 1, column] * self.solo_s[column] * factor
        self.factors = self._factors_by_place() if self.uneven else None
        """Shape as `pattern`: the factor of the members at each place; None: `inverse` for all."""
        self.joined = self._factors_when_grown() if self.uneven else None
        """Shapes as `grown`: the factors of those that were there, and of the one that was added; None: `formed`."""
        self.weaves = bool((self.inverse[1 + columns :] > 0).any())
        self._prices: dict[tuple[int, ...], F8] = {}
        self._few: dict[tuple[int, ...], Few | None] = {}
        self._joining: dict[int, tuple[list[float], list[float] | None]] = {}

    def joining(self, number: int) -> tuple[list[float], list[float] | None]:
        """A row of `joined`, as lists; of `formed` for the grown set, and None, where all members have one factor."""
        found = self._joining.get(number)
        if found is None:
            if self.joined is None:
                found = self.formed.take(self.grown[number]).tolist(), None
            else:
                there, added = self.joined
                found = there[number].tolist(), added[number].tolist()
            self._joining[number] = found
        return found

    def few(self, columns: tuple[int, ...]) -> Few | None:
        """The sets of these columns (rising) that may be formed; None where there are too many to look at one by
        one."""
        if columns not in self._few:
            size = self.size if self.weaves else 1
            many = comb(len(columns) + size, size) - 1
            self._few[columns] = self._listed(columns, size) if many <= _FEW else None
        return self._few[columns]

    def _listed(self, columns: tuple[int, ...], size: int) -> Few:
        found: Few = []
        for members in range(1, size + 1):
            for of_set in combinations_with_replacement(columns, members):
                number = self.set_of(of_set)
                if self.inverse_list[number] > 0.0:
                    uneven = self.uneven.get(number, {})
                    even = self.inverse_list[number] if self.factors is not None else 1.0
                    takes = tuple((column, many, uneven.get(column, even)) for column, many in self.takes[number])
                    found.append((number - 1, takes, 1.0 if self.factors is not None else self.inverse_list[number]))
        return sorted(found)

    def set_of(self, columns: Sequence[int]) -> int:
        """The number of the set of these members."""
        found, grown = 0, self.grown_list
        for column in columns:
            found = grown[found][column + 1]
        return found

    def value(self, number: int, columns: Sequence[int], values: Sequence[float], total: float) -> float:
        """Value per second of a set whose members have these columns and values (worth · solo seconds), `total` in
        all."""
        factors = self.uneven.get(number)
        if factors is None:
            return total * self.inverse_list[number]
        return sum_floats([value * factors[column] for column, value in zip(columns, values, strict=True)])

    def _factors_by_place(self) -> F8:
        factors = np.tile(self.inverse[1:-1], (self.size, 1))
        for number, by_column in self.uneven.items():
            for place, (column, _) in enumerate(self.takes[number]):
                factors[place, number - 1] = by_column[column]
        return factors

    def _factors_when_grown(self) -> tuple[F8, F8]:
        there = self.formed.take(self.grown)
        added = there.copy()
        for number, by_column in self.uneven.items():
            one, two = self.sets[number]
            for stays, comes in ((one, two), (two, one)):
                there[stays + 1, comes + 1], added[stays + 1, comes + 1] = by_column[stays], by_column[comes]
        return there, added

    def prices(self, present: tuple[int, ...]) -> F8:
        """GPU seconds that a second of solo work of each column costs: shape (columns,).

        It holds when equal work of every column present is woven as well as possible. 1 for a column that gains
        nothing, and for those not present.

        These are the duals of this linear program: minimise Σ x over the sets, where for each column present
        Σ x · (the column's solo seconds per second that the set does) ≥ 1. Revised simplex, starting from the sets
        of one.
        """
        found = self._prices.get(present)
        if found is None:
            found = self._prices[present] = self._priced(present)
        return found

    def _priced(self, present: tuple[int, ...]) -> F8:
        here = list(present)
        few = self.few(present)
        if few is not None:
            return self._priced_few(here, few)
        may = np.zeros(len(self.profiles) + 1, dtype=bool)
        may[here] = may[-1] = True
        rate = self._rate[may.take(self._members).all(axis=0)][:, here]
        basis, x = np.eye(len(here)), np.ones(len(here))
        for _ in range(_PIVOTS):
            duals = basis.sum(axis=0)
            reduced = products.times(rate, duals)
            enters = int(reduced.argmax())
            if reduced[enters] <= 1 + 1e-7:
                break
            step = products.times(basis, rate[enters])
            ratio = np.full(len(here), np.inf)
            np.divide(x, step, out=ratio, where=step > 1e-12)
            leaves = int(ratio.argmin())
            x = x - ratio[leaves] * step
            x[leaves] = ratio[leaves]
            row = basis[leaves] / step[leaves]
            basis = basis - np.outer(step, row)
            basis[leaves] = row
        prices = np.ones(len(self.profiles))
        prices[here] = np.clip(basis.sum(axis=0), 1e-3, 1.0)
        return prices

    def _priced_few(self, here: Sequence[int], few: Few) -> F8:
        """`_priced` where few sets are to be looked at: the same sums in the same order, in plain numbers."""
        place = {column: index for index, column in enumerate(here)}
        solo_s: list[float] = self.solo_s[here].tolist()
        rates = [
            [(place[column], many * solo_s[place[column]] * (share * factor)) for column, many, share in takes]
            for _, takes, factor in few
        ]
        size = range(len(here))
        basis = [[1.0 if row == column else 0.0 for column in size] for row in size]
        x = [1.0] * len(here)
        for _ in range(_PIVOTS):
            duals = _row_sums(basis)
            most, enters = 0.0, rates[0]
            for rate in rates:
                reduced = sum_floats([much * duals[at] for at, much in rate])
                if reduced > most:
                    most, enters = reduced, rate
            if most <= 1 + 1e-7:
                break
            step = [sum_floats([row[at] * much for at, much in enters]) for row in basis]
            ratio = [have / takes if takes > 1e-12 else float("inf") for have, takes in zip(x, step, strict=True)]
            leaves = ratio.index(min(ratio))
            least = ratio[leaves]
            x = [have - least * takes for have, takes in zip(x, step, strict=True)]
            x[leaves] = least
            pivot = [value / step[leaves] for value in basis[leaves]]
            basis = [
                [value - takes * by for value, by in zip(row, pivot, strict=True)]
                for row, takes in zip(basis, step, strict=True)
            ]
            basis[leaves] = pivot
        prices = np.ones(len(self.profiles))
        prices[here] = np.clip(_row_sums(basis), 1e-3, 1.0)
        return prices

    def _inverses(self, worth: GroupWorth, allowed: Callable[[Profiles], bool]) -> F8:
        inverse = np.zeros(len(self.sets))
        inverse[1 : 1 + len(self.profiles)] = 1.0 / self.solo_s
        # All at once: one by one, as `allowed` asks, is many times slower.
        woven = [tuple(sorted(self.profiles[column] for column in found)) for found in self.sets if len(found) > 1]
        worth.gains(woven)
        groups: list[Profiles] = []
        rows: list[int] = []
        for row, found in enumerate(self.sets):
            if len(found) > 1:
                group = tuple(sorted(self.profiles[column] for column in found))
                fits = sum_floats([self._memory_mib[column] for column in found]) <= self._gpu_memory_mib
                if not (group[0] != UNKNOWN and fits and worth.known(group) and allowed(group)):
                    continue
                if worth.source(group) is Source.MEASURED:
                    self.uneven[row] = self._shares(found, group, worth)
                    inverse[row] = sum_floats([self.uneven[row][column] for column in found]) / len(found)
                else:
                    groups.append(group)
                    rows.append(row)
        if rows:
            inverse[rows] = 1.0 / np.array(worth.times.planned_iteration_s(groups))
        return inverse

    def _shares(self, columns: Sequence[int], group: Profiles, worth: GroupWorth) -> dict[int, float]:
        """The factor of each column of a measured pair."""
        rates = worth.rates(group) or ()
        share = dict(zip(group, rates, strict=True))
        return {column: share[self.profiles[column]] / float(self.solo_s[column]) for column in columns}


def _row_sums(matrix: Sequence[Sequence[float]]) -> list[float]:
    """The sum of all rows."""
    return [sum_floats(column) for column in zip(*matrix, strict=True)]


def _middles(
    profiles: Sequence[int], times: GroupTimes, gpu_memory_mib: float, most: int
) -> tuple[list[int], dict[int, int]]:
    """At most `most` profiles that stand for all, and the column of each profile.

    Chosen by farthest points (Gonzalez 1985) in the logarithms of the stage times, in the share of a GPU's memory where
    that is known, and in the measured speeds beside others: so the largest factor between a profile and the one that
    stands for it is small.
    """
    distinct = sorted(set(profiles))
    known = [profile for profile in distinct if profile != UNKNOWN]
    unknown = [UNKNOWN] * (len(known) < len(distinct))
    if len(distinct) <= most:
        return distinct, {profile: column for column, profile in enumerate(distinct)}
    stage_s = np.maximum(times.planned_s[known], 1e-3 * np.asarray(times.solo_s)[known][:, None])
    points = logs.log(np.column_stack([stage_s, np.asarray(times.solo_s)[known]]))
    if np.isfinite(gpu_memory_mib):
        share = np.minimum(np.asarray(times.memory_mib)[known] / gpu_memory_mib, 1.0)
        points = np.column_stack([points, share])
    if times.pairs is not None:
        # Of kind -1 the row that is added: nothing is known.
        beside = np.pad(np.nan_to_num(times.pairs.share, nan=-1.0), ((0, 0), (0, 1), (0, 0)), constant_values=-1.0)
        points = np.column_stack([points, *beside[:, [times.kind[profile] for profile in known]]])
    chosen = [int(np.abs(points - points.mean(axis=0)).max(axis=1).argmin())]
    distance = np.abs(points - points[chosen[0]]).max(axis=1)
    nearest = np.zeros(len(known), dtype=np.intp)
    while len(chosen) < most - len(unknown):
        farthest = int(distance.argmax())
        away = np.abs(points - points[farthest]).max(axis=1)
        nearest[away < distance] = len(chosen)
        distance = np.minimum(distance, away)
        chosen.append(farthest)
    columns = unknown + [known[place] for place in chosen]
    column_of = {profile: int(nearest[row]) + len(unknown) for row, profile in enumerate(known)}
    return columns, column_of | dict.fromkeys(unknown, 0)
