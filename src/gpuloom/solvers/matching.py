"""Maximum weight matching of nodes of a few types: which jobs, or groups of jobs, to merge in pairs.

Jobs of equal stages are interchangeable, so a node is a type with a count. The unknowns are the numbers x_ab of pairs
of types a and b: maximise Σ w_ab·x_ab, where type a is in at most counts[a] pairs (x_aa counts twice). The linear
program has corners of whole and half numbers only. The halves lie on odd cycles of types (Balinski 1965), and Edmonds'
odd sets (1965) cut them off: inside a set S of types with an odd number of nodes there are at most (counts(S) - 1) / 2
pairs. The sets are looked for among the connected parts of the paired types (Grötschel and Holland 1985). If fractions
are left after some rounds, the rest is rounded and improved by exchanges, and the bound tells how much may be missing.
'exact' takes many rounds, then an integer program over the pairs that can still matter by their reduced costs. Two ways
to solve the linear program, chosen by the number of types:
    up to TABLE_TYPES: a dense simplex table, kept per matrix of weights; other counts are a few dual pivots away.
    more: HiGHS, over the best partners of each type, adding pairs until none has a positive reduced cost, so that
        the bound holds for all pairs although few are ever looked at by the solver.
The same input gives the same answer, whatever was solved before: each solve starts from the same table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpuloom.core import products
from gpuloom.core.errors import GpuloomError, InputError
from gpuloom.core.sums import sum_floats
from gpuloom.core.words import plural
from gpuloom.core.workload import F8

TABLE_TYPES = 48
"""Up to so many types by the dense table, types^3 numbers a pivot round; measured in docs/results/weaving.md."""
SOLVERS = ("auto", "exact", "table", "columns")
_WHOLE = 1e-6
_REDUCED = 1e-9
_CUT_ROUNDS, _LARGE_ROUNDS, _EXACT_ROUNDS = 16, 1, 400
_EXCHANGES = 100
_PARTNERS = 4
_SMOOTHING = 8
_NODES = 20_000
_MEMO = 4096
_INF = float("inf")
_NO_ROWS, _NO_VALUES = np.zeros(0, np.int32), np.zeros(0)
Index = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Matching:
    """Pairs of types.

    Attributes:
        pairs: (type a, type b, how many such pairs), a <= b, in order of (a, b).
        weight: sum of the pairs' weights.
        bound: no matching weighs more.
        solver: what gave the answer.
    """

    pairs: tuple[tuple[int, int, int], ...]
    weight: float
    bound: float
    solver: str

    @property
    def optimal(self) -> bool:
        """Whether no other matching weighs more (within 1e-9 of the weight)."""
        return self.weight >= self.bound - 1e-9 * max(1e-300, abs(self.bound))


class Matcher:
    """Matchings under one matrix of weights, for many counts: what only depends on the weights is worked out once."""

    def __init__(self, weight: F8) -> None:
        """weight: shape (types, types), symmetric. What is not above 0 (or not a number) is not paired; weight[a, a] is
        for two nodes of one type.

        Raises:
            InputError: weights that can't be.
        """
        weight = np.array(weight, dtype=np.float64)
        if weight.ndim != 2 or weight.shape[0] != weight.shape[1]:
            raise InputError(f"weights of pairs: a square matrix is needed, not shape {weight.shape}")
        weight[~(weight > 0)] = -np.inf
        if np.isposinf(weight).any():
            raise InputError("weights of pairs: an infinite weight can't be maximised")
        if not np.array_equal(weight, weight.T):
            raise InputError("weights of pairs: the matrix must be symmetric")
        self._weight = weight
        self._types = len(weight)
        self._scale = float(weight.max(initial=0.0))
        self._table: _Table | None = None
        self._memo: dict[tuple[bytes, str], Matching] = {}

    def solve(self, counts: ArrayLike | None = None, *, solver: str = "auto") -> Matching:
        """The heaviest matching of so many nodes of each type.

        Args:
            counts: nodes of each type, shape (types,); None: one each.
            solver: 'auto', 'exact' (auto, but without a limit on the time), or one of the two ways of the module's
                text, whatever the size: 'table', 'columns'.

        Raises:
            InputError: counts that can't be, an unknown solver.
        """
        if solver not in SOLVERS:
            raise InputError(f"matching solver {solver!r}: must be one of {', '.join(SOLVERS)}")
        nodes = np.ones(self._types) if counts is None else np.asarray(counts, dtype=np.float64)
        if nodes.shape != (self._types,):
            raise InputError(f"counts of {self._types} types are needed, not shape {nodes.shape}")
        if not (nodes >= 0).all() or (nodes % 1).any():
            raise InputError("counts of nodes must be whole numbers, 0 or more")
        key = (nodes.tobytes(), solver)
        if (found := self._memo.get(key)) is None:
            if len(self._memo) >= _MEMO:
                self._memo.clear()
            found = self._memo[key] = self._solve(nodes, solver)
        return found

    def _solve(self, counts: F8, solver: str) -> Matching:
        if counts.sum() < 2 or self._scale <= 0:
            return Matching((), 0.0, 0.0, "nothing to pair")
        if self._types == 1:
            pairs = int(counts[0]) // 2
            weight = pairs * float(self._weight[0, 0])
            return Matching(((0, 0, pairs),), weight, weight, "one type")
        if solver == "table" or (solver != "columns" and self._types <= TABLE_TYPES):
            if self._table is None:
                self._table = _Table(self._weight / self._scale)
            return self._cut(counts, _Corner(self._table, counts), solver == "exact")
        # Types without nodes would only widen the program.
        present = np.flatnonzero(counts)
        if len(present) < self._types:
            found = Matcher(self._weight[np.ix_(present, present)]).solve(counts[present], solver=solver)
            pairs_ = tuple((int(present[a]), int(present[b]), x) for a, b, x in found.pairs)
            return Matching(pairs_, found.weight, found.bound, found.solver)
        return self._cut(counts, _Columns(self._weight / self._scale, counts), solver == "exact")

    def _cut(self, counts: F8, program: _Program, exact: bool) -> Matching:
        """Cut off halves until the answer is whole; after so many rounds, round what is left."""
        cuts = 0
        rounds = _CUT_ROUNDS if self._types <= TABLE_TYPES else _LARGE_ROUNDS
        for _ in range(_EXACT_ROUNDS if exact else rounds):
            low, high, x = program.solution()
            if np.abs(x - np.rint(x)).max(initial=0.0) <= _WHOLE:
                break
            sets = _odd_sets(counts, low, high, x)
            if not sets:
                break
            program.cut([(inside, float(counts[inside].sum() // 2)) for inside in sets])
            cuts += len(sets)
        low, high, x = program.solution()
        bound = program.bound() * self._scale
        whole = np.floor(x + _WHOLE)
        by = f"linear program, {plural(cuts, 'odd set')}" if cuts else "linear program"
        if np.abs(x - whole).max(initial=0.0) <= _WHOLE:
            return self._result(low, high, whole, bound, by)
        certain = len(low)
        low, high, whole = _completed(self._weight, counts, low, high, whole)
        low, high, whole = _exchanged(self._weight, low, high, whole, len(low) - certain)
        by += ", rounded"
        if exact:
            least = float((self._weight[low, high] * whole).sum())
            # A pair whose reduced cost is worse than the whole gap is in no better matching.
            wanted = program.worth((bound - least) / self._scale)
            answer = _integer_program(self._weight, counts, *wanted, bound, least)
            if answer is not None:
                low, high, whole, bound = answer
            by = f"integer program over {len(wanted[0])} pairs"
        return self._result(low, high, whole, bound, by)

    def _result(self, low: Index, high: Index, whole: F8, bound: float, by: str) -> Matching:
        used = np.flatnonzero(whole > 0.5)
        order = used[np.lexsort((high[used], low[used]))]
        pairs: dict[tuple[int, int], int] = {}
        for a, b, x in zip(low[order].tolist(), high[order].tolist(), whole[order].tolist(), strict=True):
            pairs[a, b] = pairs.get((a, b), 0) + round(x)
        weight = sum_floats(float(self._weight[a, b]) * x for (a, b), x in pairs.items())
        if abs(bound - weight) <= 1e-9 * self._scale:
            bound = weight
        return Matching(tuple((a, b, x) for (a, b), x in pairs.items()), weight, max(bound, weight), by)


class _Program(Protocol):
    """A linear program over pairs that takes odd sets as it goes. Weights are scaled to 1 at most."""

    def solution(self) -> tuple[Index, Index, F8]:
        """Pairs (a, b) with a <= b, and how many of each."""

    def bound(self) -> float:
        """The optimum of the linear program, or a little above it."""

    def cut(self, sets: list[tuple[Index, float]]) -> None:
        """At most so many pairs have both their types in the set, for each set."""

    def worth(self, gap: float) -> tuple[Index, Index]:
        """The pairs whose reduced cost is not worse than `gap`."""


class _Table:
    """Simplex over all pairs in a dense table. Without odd sets it is exact: its entries are whole and half numbers.

    Rows are types, columns the allowed pairs and then one slack per type; the last row holds the reduced costs.
    """

    def __init__(self, weight: F8) -> None:
        types = len(weight)
        low, high = np.nonzero(np.triu(weight > 0))
        pairs = len(low)
        table = np.zeros((types + 1, pairs + types))
        table[low, np.arange(pairs)] = 1
        table[high, np.arange(pairs)] += 1
        table[np.arange(types), pairs + np.arange(types)] = 1
        table[types, :pairs] = weight[low, high]
        self.low, self.high, self.weight = low, high, weight[low, high]
        self.table, self.basis = table, pairs + np.arange(types)
        # Counts for which no two corners coincide, so that the steps can't go in a circle.
        rest = 1 + (np.arange(1, types + 1) * 0.6180339887498949) % 1 / 2
        for _ in range(200 * (types + 1)):
            entering = int(table[types].argmax())
            if table[types, entering] <= _REDUCED:
                return
            column = table[:types, entering]
            ratio = np.divide(rest, column, out=np.full(types, np.inf), where=column > _REDUCED)
            leaving = int(ratio.argmin())
            step = ratio[leaving]
            rest = rest - step * column
            rest[leaving] = step
            _pivot(table, leaving, entering)
            self.basis[leaving] = entering
        raise GpuloomError(f"matching: the simplex method did not end on {types} types")


class _Corner:
    """The optimum of a table for given counts, by dual pivots from the table's own. Implements `_Program`."""

    def __init__(self, base: _Table, counts: F8) -> None:
        self._base, self._pairs = base, len(base.low)
        self._table, self._basis, self._owned = base.table, base.basis, False
        self._rest: F8 = products.times(base.table[:-1, self._pairs :], counts)
        self._dual_pivots()

    def _dual_pivots(self) -> None:
        for step in range(1_000_000):
            leaving = int(self._rest.argmin())
            if self._rest[leaving] >= -_REDUCED:
                return
            if not self._owned:
                self._table, self._basis, self._owned = self._table.copy(), self._basis.copy(), True
            if step > 20 * len(self._rest):  # smallest index first can't go in a circle (Bland)
                below = np.flatnonzero(self._rest < -_REDUCED)
                leaving = int(below[self._basis[below].argmin()])
            row, costs = self._table[leaving], self._table[-1]
            able = np.flatnonzero(row < -_REDUCED)
            if not len(able):
                raise GpuloomError("matching: the linear program has no solution")
            entering = int(able[(costs[able] / row[able]).argmin()])
            amount = self._rest[leaving] / row[entering]
            self._rest = self._rest - amount * self._table[:-1, entering]
            self._rest[leaving] = amount
            _pivot(self._table, leaving, entering)
            self._basis[leaving] = entering
        raise GpuloomError("matching: the dual simplex method did not end")

    def solution(self) -> tuple[Index, Index, F8]:
        paired = np.flatnonzero((self._basis < self._pairs) & (self._rest > _REDUCED))
        columns = self._basis[paired]
        return self._base.low[columns], self._base.high[columns], self._rest[paired]

    def bound(self) -> float:
        paired = np.flatnonzero(self._basis < self._pairs)
        return products.dot(self._base.weight[self._basis[paired]], self._rest[paired])

    def cut(self, sets: list[tuple[Index, float]]) -> None:
        for inside, most in sets:
            self._row(inside, most)
        self._dual_pivots()

    def _row(self, inside: Index, most: float) -> None:
        member = np.zeros(len(self._base.table) - 1, dtype=bool)
        member[inside] = True
        width = self._table.shape[1]
        row = np.zeros(width + 1)
        row[: self._pairs] = member[self._base.low] & member[self._base.high]
        row[width] = 1
        held = row[self._basis]
        table = np.zeros((len(self._table) + 1, width + 1))
        table[:-2, :-1], table[-1, :-1] = self._table[:-1], self._table[-1]
        table[-2] = row - products.weighted(held, table[:-2])
        self._rest = np.append(self._rest, most - products.dot(held, self._rest))
        self._basis = np.append(self._basis, width)
        self._table, self._owned = table, True

    def worth(self, gap: float) -> tuple[Index, Index]:
        kept = np.flatnonzero(self._table[-1, : self._pairs] >= -gap - 1e-7)
        return self._base.low[kept], self._base.high[kept]


def _pivot(table: F8, row: int, column: int) -> None:
    """Make `column` the unit vector of `row`."""
    table[row] /= table[row, column]
    factors = table[:, column].copy()
    factors[row] = 0
    touched = np.flatnonzero(factors)
    table[touched] -= factors[touched, None] * table[row]


class _Columns:
    """The linear program in HiGHS, over those pairs only that turn out to matter. Implements `_Program`."""

    def __init__(self, weight: F8, counts: F8) -> None:
        self._weight, self._counts = weight, counts
        self._sets: list[tuple[Index, float]] = []
        self._known = np.zeros(weight.shape, dtype=bool)
        self._low, self._high = np.zeros(0, dtype=np.intp), np.zeros(0, dtype=np.intp)
        types = len(weight)
        self._reduced = np.empty_like(weight)
        self._solver = _highs()
        self._solver.setOptionValue("simplex_strategy", 4)  # primal: after more columns the corner stays feasible
        self._solver.addRows(types, np.full(types, -_INF), counts, 0, np.zeros(types, np.int32), _NO_ROWS, _NO_VALUES)
        # Prices that are nearly right from the start: halfway to each type's best offer, a few times.
        prices = np.full(types, 0.5)
        for _ in range(_SMOOTHING):
            np.subtract(weight, prices, out=self._reduced)
            prices = np.maximum((prices + self._reduced.max(axis=1)) / 2, 0.0)
        np.subtract(weight, prices, out=self._reduced)
        self._reduced -= prices[:, None]
        self._add(self._reduced, _PARTNERS)
        self._solve()

    def _add(self, reduced: F8, most: int, above: float = -np.inf) -> None:
        """Add the best `most` pairs of every type whose reduced cost is above so much."""
        types = len(reduced)
        from_ = np.flatnonzero(reduced.max(axis=1) > above)
        if most < types:
            best = np.argpartition(reduced[from_], types - most, axis=1)[:, types - most :]
        else:
            best = np.tile(np.arange(types), (len(from_), 1))
        one, two = np.repeat(from_, best.shape[1]), best.ravel()
        good = np.isfinite(reduced[one, two]) & (reduced[one, two] > above)
        low, high = np.minimum(one, two)[good], np.maximum(one, two)[good]
        key = np.unique(low * types + high)
        low, high = key // types, key % types
        fresh = ~self._known[low, high]
        low, high = low[fresh], high[fresh]
        self._known[low, high] = True
        column = np.arange(len(low))
        apart = low != high
        rows, columns = [low, high[apart]], [column, column[apart]]
        values = [np.where(apart, 1.0, 2.0), np.ones(int(apart.sum()))]
        for index, (inside, _) in enumerate(self._sets):
            held = np.flatnonzero(np.isin(low, inside) & np.isin(high, inside))
            rows.append(np.full(len(held), types + index))
            columns.append(held)
            values.append(np.ones(len(held)))
        row, at, value = np.concatenate(rows), np.concatenate(columns), np.concatenate(values)
        order = np.argsort(at, kind="stable")
        starts = np.searchsorted(at[order], column).astype(np.int32)
        upper = np.full(len(low), _INF)
        self._solver.addCols(
            len(low),
            -self._weight[low, high],
            np.zeros(len(low)),
            upper,
            len(row),
            starts,
            row[order].astype(np.int32),
            value[order],
        )
        self._low, self._high = np.concatenate([self._low, low]), np.concatenate([self._high, high])

    def _solve(self) -> None:
        while True:
            _run(self._solver)
            found = self._solver.getSolution()
            self._x: F8 = np.array(found.col_value)
            prices = np.maximum(-np.array(found.row_dual), 0.0)
            self._prices = prices
            types = len(self._weight)
            np.subtract(self._weight, prices[:types], out=self._reduced)
            self._reduced -= prices[:types, None]
            for (inside, _), price in zip(self._sets, prices[types:].tolist(), strict=True):
                self._reduced[np.ix_(inside, inside)] -= price
            columns = len(self._low)
            if self._reduced.max() > _REDUCED:
                self._add(self._reduced, _PARTNERS, _REDUCED)
            if len(self._low) == columns:
                return

    def solution(self) -> tuple[Index, Index, F8]:
        used = np.flatnonzero(self._x > _REDUCED)
        return self._low[used], self._high[used], self._x[used]

    def bound(self) -> float:
        room = np.concatenate([self._counts, [most for _, most in self._sets]])
        # What the solver's tolerance leaves above 0 counts for as many pairs as there can be.
        over = max(0.0, float(self._reduced.max())) * float(self._counts.sum()) / 2
        return products.dot(self._prices, room) + over

    def cut(self, sets: list[tuple[Index, float]]) -> None:
        for inside, most in sets:
            self._sets.append((inside, most))
            held = np.flatnonzero(np.isin(self._low, inside) & np.isin(self._high, inside)).astype(np.int32)
            self._solver.addRow(-_INF, most, len(held), held, np.ones(len(held)))
        self._solve()

    def worth(self, gap: float) -> tuple[Index, Index]:
        low, high = np.nonzero(np.triu(self._reduced >= -gap - 1e-7) & np.isfinite(self._weight))
        return low, high


def _odd_sets(counts: F8, low: Index, high: Index, x: F8) -> list[Index]:
    """Sets of types with an odd number of nodes that hold more pairs than (nodes - 1) / 2."""
    fractions = np.unique(np.round(x[np.abs(x - np.rint(x)) > _WHOLE], 6))
    found: dict[bytes, Index] = {}
    for level in (0.0, *fractions[fractions < 1].tolist()):
        kept = np.flatnonzero(x > level + _WHOLE)
        part = _parts(len(counts), low[kept], high[kept])
        nodes = np.bincount(part, counts, len(counts))
        same = part[low] == part[high]
        pairs = np.bincount(part[low[same]], x[same], len(counts))
        for of in np.flatnonzero((nodes % 2 == 1) & (pairs > (nodes - 1) / 2 + _WHOLE)).tolist():
            inside = np.flatnonzero(part == of)
            found[inside.tobytes()] = inside
    return list(found.values())


def _parts(types: int, low: Index, high: Index) -> Index:
    """The connected part of each type: its first type."""
    part = list(range(types))

    def first(of: int) -> int:
        while part[of] != of:
            part[of] = part[part[of]]
            of = part[of]
        return of

    for a, b in zip(low.tolist(), high.tolist(), strict=True):
        one, two = first(a), first(b)
        part[max(one, two)] = min(one, two)
    return np.array([first(of) for of in range(types)])


def _completed(weight: F8, counts: F8, low: Index, high: Index, whole: F8) -> tuple[Index, Index, F8]:
    """The whole part of a solution, and the best pairs first of what is left."""
    left = counts - np.bincount(low, whole, len(counts)) - np.bincount(high, whole, len(counts))
    types = np.flatnonzero(left > 0.5)
    part = np.triu(weight[np.ix_(types, types)])
    one, two = np.nonzero(part > 0)
    more: list[tuple[int, int, float]] = []
    for at in np.argsort(-part[one, two], kind="stable").tolist():
        a, b = int(types[one[at]]), int(types[two[at]])
        pairs = left[a] // 2 if a == b else min(left[a], left[b])
        if pairs > 0:
            more.append((a, b, pairs))
            left[a] -= pairs
            left[b] -= pairs
    extra = np.array(more).reshape(-1, 3)
    return (
        np.concatenate([low, extra[:, 0].astype(np.intp)]),
        np.concatenate([high, extra[:, 1].astype(np.intp)]),
        np.concatenate([whole, extra[:, 2]]),
    )


def _exchanged(weight: F8, low: Index, high: Index, whole: F8, fresh: int) -> tuple[Index, Index, F8]:
    """Exchange partners between the last `fresh` pairs, or what became of them, and others while that weighs more."""
    pairs: dict[tuple[int, int], float] = {}
    for a, b, x in zip(low.tolist(), high.tolist(), whole.tolist(), strict=True):
        pairs[a, b] = pairs.get((a, b), 0.0) + x
    first = len(low) - fresh
    active = set(zip(low[first:].tolist(), high[first:].tolist(), strict=True))
    for _ in range(_EXCHANGES):
        pairs = {pair: x for pair, x in pairs.items() if x > 0.5}
        tried = [at for at, pair in enumerate(pairs) if pair in active]
        if not tried:
            break
        (a, b), enough = np.array(list(pairs)).T, np.array(list(pairs.values()))
        c, d = a[tried], b[tried]
        now = weight[c, d][:, None] + weight[a, b]
        straight = weight[np.ix_(c, a)] + weight[np.ix_(d, b)] - now
        across = weight[np.ix_(c, b)] + weight[np.ix_(d, a)] - now
        alone = np.flatnonzero(enough[tried] < 2)
        straight[alone, np.array(tried)[alone]] = across[alone, np.array(tried)[alone]] = -np.inf
        crossed = across.max() > straight.max()
        gain = across if crossed else straight
        row, other = divmod(int(gain.argmax()), len(a))
        if gain[row, other] <= _WHOLE * now.max():
            break
        one = tried[row]
        times = enough[one] // 2 if one == other else min(enough[one], enough[other])
        mine, its = (int(a[one]), int(b[one])), (int(a[other]), int(b[other]))
        pairs[mine] -= times
        pairs[its] -= times
        for x, y in zip(mine, its[::-1] if crossed else its, strict=True):
            pair = (min(x, y), max(x, y))
            pairs[pair] = pairs.get(pair, 0.0) + times
            active.add(pair)
    found = np.array(list(pairs)).reshape(-1, 2)
    return found[:, 0], found[:, 1], np.array(list(pairs.values()))


def _integer_program(
    weight: F8, counts: F8, low: Index, high: Index, bound: float, least: float
) -> tuple[Index, Index, F8, float] | None:
    """The best whole numbers of these pairs and their bound; None if it found nothing above `least`."""
    solver, types, pairs = _highs(), len(counts), len(low)
    solver.addRows(types, np.full(types, -_INF), counts, 0, np.zeros(types, np.int32), _NO_ROWS, _NO_VALUES)
    apart = low != high
    lengths = 1 + apart
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.int32)
    index, value = np.zeros(int(lengths.sum()), np.int32), np.ones(int(lengths.sum()))
    index[starts] = low
    index[starts[apart] + 1] = high[apart]
    value[starts[~apart]] = 2
    scale = weight[low, high].max()
    upper = np.full(pairs, _INF)
    solver.addCols(pairs, -weight[low, high] / scale, np.zeros(pairs), upper, len(index), starts, index, value)
    columns = np.arange(pairs, dtype=np.int32)
    solver.changeColsIntegrality(pairs, columns, np.ones(pairs, np.uint8))
    for option, setting in (("mip_rel_gap", 0.0), ("mip_abs_gap", 1e-10), ("mip_max_nodes", _NODES)):
        solver.setOptionValue(option, setting)
    solver.run()
    info = solver.getInfo()
    if info.primal_solution_status != 2:  # no solution within the nodes allowed
        return None
    whole = np.rint(np.array(solver.getSolution().col_value))
    if (weight[low, high] * whole).sum() < least:
        return None
    return low, high, whole, min(bound, -info.mip_dual_bound * scale)


def _highs() -> Any:
    import highspy

    solver = highspy.Highs()  # type: ignore[no-untyped-call]
    for option, setting in (
        ("output_flag", False),
        ("threads", 1),
        ("presolve", "off"),
        ("dual_feasibility_tolerance", 1e-9),
        ("primal_feasibility_tolerance", 1e-9),
    ):
        solver.setOptionValue(option, setting)
    return solver


def _run(solver: Any) -> None:
    solver.run()
    status = solver.modelStatusToString(solver.getModelStatus())
    if status != "Optimal":
        raise GpuloomError(f"matching: the linear program has no optimum: {status}")
