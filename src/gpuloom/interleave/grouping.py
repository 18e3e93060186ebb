"""Which jobs share GPUs: puts all jobs of one plan into groups of at most four.

Three methods:
    multiround: rounds of maximum weight matching, as in Zhao et al., "Multi-Resource Interleaving for Deep Learning
        Training" (SIGCOMM'22, section 4.2), solved over types of nodes.
    exact: an integer program for how many groups of each multiset of profiles are formed. Columns are priced by the
        duals of its linear program, over all multisets if there are at most ENUMERATED of them. If there are more,
        larger groups are grown from the best pairs, and there is no bound.
    greedy: jobs in the order given, a new group whenever the last one is full or may not take the next job.
A group is formed only if its jobs fit the GPU's memory together and it is not slower than its jobs one after another.
Jobs of equal stages, solo time and memory are interchangeable: they have the same profile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, combinations_with_replacement
from math import ceil, comb, inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuloom.core import products
from gpuloom.core.errors import GpuloomError, InputError
from gpuloom.core.pairs import NO_KIND
from gpuloom.core.sums import sum_ints
from gpuloom.core.workload import F8
from gpuloom.interleave.efficiency import MAX_GROUP, Interleaving
from gpuloom.solvers.matching import Matcher

METHODS = ("multiround", "exact", "greedy")
OBJECTIVES = ("efficiency", "throughput")
ENUMERATED = 400_000
"""Up to this many multisets the exact method looks at all of them: about 50 profiles in groups of four."""
_SLOWER = 1e-9
_REDUCED = 1e-8
_NODES = 2_000
_ROUNDS = 400
_COLUMNS = 20_000
Type = tuple[int, ...]
"""The profiles of a group's jobs, in rising order."""
Members = NDArray[np.intp]
"""Groups of one size: shape (groups, jobs), profiles."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured of two jobs beside each other.

    Attributes:
        kind: of each job, `NO_KIND` where nothing was measured.
        gain: shape (kinds, kinds), what two do together in jobs at solo speed; NaN: not measured, 0: do not fit.
    """

    kind: Sequence[int]
    gain: F8


@dataclass(frozen=True, slots=True)
class Grouping:
    """Groups of jobs.

    Attributes:
        groups: rows of the input; every row is in one group.
        slots: slot of each of a group's jobs, as `Interleaving.scheduled` gives it.
        iteration_s: seconds in which all jobs of a group make one iteration.
        efficiency: γ of each group.
        value: what was maximised, summed over the groups.
        bound: no grouping into at most `max(wanted, len(groups))` groups has a larger value; inf where not known.
        wanted: the most groups asked for. There are more when the rules don't allow so few.
        solver: which method gave the answer.
    """

    groups: tuple[tuple[int, ...], ...]
    slots: tuple[tuple[int, ...], ...]
    iteration_s: tuple[float, ...]
    efficiency: tuple[float, ...]
    value: float
    bound: float
    wanted: int
    solver: str

    @property
    def optimal(self) -> bool:
        """Whether the value meets the bound (within 1e-6 of it)."""
        return self.value >= self.bound - 1e-6 * max(1.0, abs(self.bound))


def group_jobs(
    stage_s: F8,
    *,
    method: str = "multiround",
    size: int = MAX_GROUP,
    groups: int | None = None,
    interleaving: Interleaving,
    objective: str = "efficiency",
    solo_s: F8 | None = None,
    memory_mib: F8 | None = None,
    gpu_memory_mib: float = inf,
    measured: Measured | None = None,
) -> Grouping:
    """Put all jobs into groups.

    Args:
        stage_s: shape (jobs, stages), seconds per iteration.
        method: see the module's text.
        size: most jobs in a group, 1 to 4.
        groups: most groups (sets of GPUs) there should be; None: as few as groups of full size need.
        objective: 'efficiency': Σ γ over the groups; 'throughput': Σ solo time / T over the jobs, where a job that
            runs alone counts 1.
        solo_s: seconds per iteration alone, shape (jobs,); None: the sum of the stages.
        memory_mib: GPU memory of each job, shape (jobs,), NaN where unknown (counts as 0).
        measured: what was measured of two jobs beside each other, which then counts instead of their stages. Jobs of
            its kinds may have stages that are all 0: these are not known.

    Raises:
        InputError: an unknown method or objective, impossible sizes or times, a job too large for the GPU.
    """
    stage_s = np.asarray(stage_s, dtype=np.float64)
    if method not in METHODS or objective not in OBJECTIVES:
        raise InputError(
            f"grouping method {method!r}, objective {objective!r}: must be one of {', '.join(METHODS)} "
            f"and one of {', '.join(OBJECTIVES)}"
        )
    if not 1 <= size <= MAX_GROUP:
        raise InputError(f"group size {size}: must be 1 to {MAX_GROUP}")
    if stage_s.ndim != 2:
        raise InputError(f"stage times: shape (jobs, stages) is needed, not {stage_s.shape}")
    jobs = len(stage_s)
    total: F8 = stage_s.sum(axis=1)
    solo = total if solo_s is None else np.asarray(solo_s, dtype=np.float64)
    memory = np.zeros(jobs) if memory_mib is None else np.nan_to_num(np.asarray(memory_mib, dtype=np.float64))
    if solo.shape != (jobs,) or memory.shape != (jobs,):
        raise InputError(f"solo times and memory: one for each of {jobs} jobs is needed")
    kind = np.full(jobs, NO_KIND, dtype=np.intp) if measured is None else np.asarray(measured.kind, dtype=np.intp)
    if kind.shape != (jobs,):
        raise InputError(f"kinds of measured pairs: one for each of {jobs} jobs is needed")
    able = np.isfinite(total) & ((total > 0) | ((total == 0) & (kind != NO_KIND)))
    for what, bad in (
        ("stage times must be finite and 0 or more, and not all 0", ~able),
        ("stage times must be 0 or more", (stage_s < 0).any(axis=1)),
        ("solo times must be finite and above 0", ~(np.isfinite(solo) & (solo > 0))),
        (f"needs more memory than a GPU has ({gpu_memory_mib:g} MiB)", ~((memory >= 0) & (memory <= gpu_memory_mib))),
    ):
        if bad.any():
            raise InputError(f"job {int(bad.argmax())}: {what}")
    wanted = ceil(jobs / size) if groups is None else groups
    if wanted < (jobs > 0):
        raise InputError(f"{wanted} groups: at least one is needed")
    if jobs == 0:
        return Grouping((), (), (), (), 0.0, 0.0, wanted, method)
    plan = _Plan(stage_s, solo, memory, gpu_memory_mib, interleaving, objective, size, measured)
    if method == "greedy":
        return plan.result(plan.in_order(), inf, wanted, "greedy")
    if method == "multiround":
        types, solver = plan.rounds(wanted)
        return plan.result(plan.rows_of(types), inf, wanted, solver)
    types, bound, solver = _exact(plan, wanted)
    return plan.result(plan.rows_of(types), bound, wanted, solver)


class _Plan:
    """One call: its profiles, and what groups of them are worth."""

    def __init__(
        self,
        stage_s: F8,
        solo_s: F8,
        memory: F8,
        limit: float,
        model: Interleaving,
        objective: str,
        size: int,
        measured: Measured | None = None,
    ) -> None:
        kind = np.full(len(stage_s), NO_KIND) if measured is None else np.asarray(measured.kind, dtype=np.intp)
        table = np.column_stack([stage_s, solo_s, memory, kind])
        _, first, inverse = np.unique(table, axis=0, return_index=True, return_inverse=True)
        rank = np.empty(len(first), dtype=np.intp)
        rank[np.argsort(first)] = np.arange(len(first))  # profiles in order of their first job
        self.of_job = rank[inverse.reshape(-1)]
        self.counts = np.bincount(self.of_job)
        first = np.sort(first)
        self.stage_s, self.solo_s, self.memory = stage_s[first], solo_s[first], memory[first]
        self._limit, self._model, self._objective, self.size = limit, model, objective, size
        self._staged = self.stage_s.sum(axis=1) > 0
        self._gain: F8 | None = None
        """Normalised throughput of two profiles beside each other, NaN where it was not measured."""
        if measured is not None:
            padded = np.pad(np.asarray(measured.gain, dtype=np.float64), (0, 1), constant_values=np.nan)
            self._gain = padded[np.ix_(kind[first], kind[first])]

    def seconds(self, members: Members) -> F8:
        """T of each group, seconds; inf where nothing is known of it. Of a measured pair, the T of equal throughput."""
        if members.shape[1] == 1:
            return self.solo_s[members[:, 0]]
        # Nobody is faster in company than alone, whatever the stages add up to.
        slowest: F8 = self.solo_s[members].max(axis=1)
        seconds: F8 = np.maximum(self._model.iteration_s(self.stage_s[members]), slowest)
        if self._gain is None:
            return seconds
        seconds[~self._staged[members].all(axis=1)] = inf
        if members.shape[1] == 2:
            gain = self._gain[members[:, 0], members[:, 1]]
            effective = np.divide(self.solo_s[members].sum(axis=1), gain, out=np.full(len(gain), inf), where=gain > 0)
            return np.where(np.isnan(gain), seconds, effective)
        for one, two in combinations(range(members.shape[1]), 2):
            seconds[self._gain[members[:, one], members[:, two]] == 0] = inf
        return seconds

    def allowed(self, members: Members, seconds: F8) -> NDArray[np.bool_]:
        one_by_one = self.solo_s[members].sum(axis=1)
        fits: NDArray[np.bool_] = self.memory[members].sum(axis=1) <= self._limit
        allowed: NDArray[np.bool_] = fits & (seconds <= one_by_one * (1 + _SLOWER))
        return allowed

    def values(self, members: Members) -> F8:
        """What each group is worth, -inf if it may not be formed."""
        seconds = self.seconds(members)
        if self._objective == "efficiency":
            worth = self._model.efficiency(self.stage_s[members], seconds)
        else:
            worth = self.solo_s[members].sum(axis=1) / seconds
        return np.where(self.allowed(members, seconds), worth, -inf)

    def in_order(self) -> list[list[int]]:
        """Rows of each group, by the greedy method."""
        found: list[list[int]] = [[0]]
        for row in range(1, len(self.of_job)):
            tried = self.of_job[[*found[-1], row]][None, :]
            if tried.shape[1] <= self.size and self.allowed(tried, self.seconds(tried))[0]:
                found[-1].append(row)
            else:
                found.append([row])
        return found

    def rounds(self, wanted: int) -> tuple[dict[Type, int], str]:
        """How many groups of each type, by rounds of matching, and what solved the last."""
        nodes: dict[Type, int] = {(profile,): count for profile, count in enumerate(self.counts.tolist())}
        solver = "nothing merged"
        for round_ in range(self.size):
            over = sum_ints(nodes.values()) - wanted
            if over <= 0:
                break
            # A triple is made of a pair and a single: leave a single for every pair.
            most = min(over, wanted) if self.size == 3 and round_ == 0 else over
            types = sorted(nodes)
            weight, before = self._merged(types)
            matching = Matcher(weight).solve(np.array([nodes[kind] for kind in types]))
            if not matching.pairs:
                break
            solver = matching.solver
            gains = [(before[a] + before[b] - weight[a, b], a, b, count) for a, b, count in matching.pairs]
            for _, a, b, count in sorted(gains):
                merges = min(count, most)
                most -= merges
                for old in (types[a], types[b]):
                    nodes[old] -= merges
                new = tuple(sorted(types[a] + types[b]))
                nodes[new] = nodes.get(new, 0) + merges
            nodes = {kind: count for kind, count in nodes.items() if count}
        return nodes, f"rounds of matching ({solver})"

    def _merged(self, types: list[Type]) -> tuple[F8, F8]:
        """Value of the merged group for every two types (0: not allowed), and of each type."""
        weight, alone = np.zeros((len(types), len(types))), np.empty(len(types))
        lengths = np.array([len(kind) for kind in types])
        for one in range(1, self.size + 1):
            rows = np.flatnonzero(lengths == one)
            left = np.array([types[row] for row in rows], dtype=np.intp).reshape(len(rows), one)
            alone[rows] = self.values(left)
            for two in range(one, self.size - one + 1):
                columns = np.flatnonzero(lengths == two)
                right = np.array([types[row] for row in columns], dtype=np.intp).reshape(len(columns), two)
                if one == two:
                    a, b = np.triu_indices(len(rows))
                else:
                    a, b = np.divmod(np.arange(len(rows) * len(columns)), max(1, len(columns)))
                worth = self.values(np.sort(np.hstack([left[a], right[b]]), axis=1))
                weight[rows[a], columns[b]] = weight[columns[b], rows[a]] = np.maximum(worth, 0.0)
        return weight, alone

    def rows_of(self, types: dict[Type, int]) -> list[list[int]]:
        """Rows of each group; jobs of one profile are taken in their order."""
        order = np.argsort(self.of_job, kind="stable")
        starts = np.concatenate([[0], np.cumsum(self.counts)]).tolist()
        found = []
        for kind in sorted(types):
            for _ in range(types[kind]):
                rows = []
                for profile in kind:
                    rows.append(int(order[starts[profile]]))
                    starts[profile] += 1
                found.append(rows)
        return found

    def result(self, groups: list[list[int]], bound: float, wanted: int, solver: str) -> Grouping:
        seconds, gamma, worth = np.empty(len(groups)), np.empty(len(groups)), np.empty(len(groups))
        slots: list[tuple[int, ...]] = [(0,)] * len(groups)
        lengths = np.array([len(group) for group in groups])
        for size in np.unique(lengths).tolist():
            at = np.flatnonzero(lengths == size)
            members = self.of_job[np.array([groups[index] for index in at])]
            stages = self.stage_s[members]
            seconds[at], worth[at] = self.seconds(members), self.values(members)
            gamma[at] = self._model.efficiency(stages, seconds[at])
            if size > 1:
                for index, placed in zip(at.tolist(), self._model.scheduled(stages)[1].tolist(), strict=True):
                    slots[index] = tuple(placed)
        value = float(worth.sum())
        if abs(bound - value) <= 1e-9 * max(1.0, value):
            bound = value
        rows = tuple(tuple(group) for group in groups)
        return Grouping(
            rows, tuple(slots), tuple(seconds.tolist()), tuple(gamma.tolist()), value, max(bound, value), wanted, solver
        )


class _Columns:
    """Multisets of profiles and their values; `of` holds -1 where a group has fewer than `size` jobs."""

    def __init__(self, plan: _Plan) -> None:
        self._plan = plan
        profiles, size = len(plan.counts), plan.size
        self.complete = sum_ints(comb(profiles + jobs - 1, jobs) for jobs in range(1, size + 1)) <= ENUMERATED
        self.of = np.zeros((0, size), dtype=np.intp)
        self.value = np.zeros(0)
        for jobs in range(1, (size if self.complete else min(2, size)) + 1):
            self.add(np.array(list(combinations_with_replacement(range(profiles), jobs)), dtype=np.intp))

    def add(self, members: Members) -> None:
        """Add those of the multisets (profiles in rising order) that may be formed and for which there are jobs."""
        jobs = members.shape[1]
        for times in range(2, jobs + 1):
            repeated = (members[:, times - 1 :] == members[:, : jobs - times + 1]) & (
                self._plan.counts[members[:, times - 1 :]] < times
            )
            members = members[~repeated.any(axis=1)]
        worth = self._plan.values(members)
        good = worth > -inf
        padded = np.full((int(good.sum()), self.of.shape[1]), -1, dtype=np.intp)
        padded[:, :jobs] = members[good]
        self.of, self.value = np.concatenate([self.of, padded]), np.concatenate([self.value, worth[good]])

    def grow(self, prices: F8, reduced: F8, most: int) -> None:
        """Add groups of three and four made of the best pairs and singles."""
        have = {tuple(row) for row in self.of[(self.of >= 0).sum(axis=1) > 2].tolist()}
        pairs = np.flatnonzero(self.of[:, 1] >= 0)
        pairs = pairs[(self.of[pairs, 2] < 0)]
        best = self.of[pairs[np.argsort(-reduced[pairs], kind="stable")[:most]], :2]
        profiles = np.arange(len(prices))[:, None]
        for other in (profiles, best) if self.of.shape[1] > 3 else (profiles,):
            a, b = np.divmod(np.arange(len(best) * len(other)), len(other))
            grown = np.unique(np.sort(np.hstack([best[a], other[b]]), axis=1), axis=0)
            pad = [-1] * (self.of.shape[1] - grown.shape[1])
            fresh = [row for row in grown.tolist() if (*row, *pad) not in have]
            if fresh:
                self.add(np.array(fresh, dtype=np.intp))

    def reduced(self, prices: F8, price: float) -> F8:
        """Value less the prices of the jobs and of a group."""
        padded = np.append(prices, 0.0)  # -1 is the last
        left: F8 = self.value - padded[self.of].sum(axis=1) - price
        return left


def _exact(plan: _Plan, wanted: int) -> tuple[dict[Type, int], float, str]:
    """How many groups of each multiset, a bound on the value, and the solver's name."""
    columns = _Columns(plan)
    start, _ = plan.rounds(wanted)
    key = {tuple(row): index for index, row in enumerate(columns.of.tolist())}
    kinds = [(*kind, *[-1] * (plan.size - len(kind))) for kind in start]
    for kind in kinds:
        if kind not in key:
            columns.add(np.array([[profile for profile in kind if profile >= 0]], dtype=np.intp))
            key[kind] = len(columns.value) - 1
    chosen = np.unique(
        [key[kind] for kind in kinds] + [key[profile, *[-1] * (plan.size - 1)] for profile in range(len(plan.counts))]
    )
    limit = wanted
    while True:
        chosen, bound, reduced, over = _priced(plan, columns, chosen, limit)
        if over > 1e-6 and columns.complete:
            limit += ceil(over - 1e-6)
            continue
        answer = _whole(plan, columns, chosen, limit)
        if answer is not None:
            least = products.dot(columns.value[answer[0]], answer[1])
            near = np.flatnonzero(reduced >= -(bound - least) - 1e-7)
            if bound - least > 1e-7 * max(1.0, bound):
                # A multiset whose reduced cost is worse than the whole gap can't be part of a better grouping.
                every = len(near) <= _COLUMNS
                near = near[np.argsort(-reduced[near], kind="stable")[:_COLUMNS]] if not every else near
                better = _whole(plan, columns, np.union1d(near, answer[0]), limit)
                if better is not None:
                    if products.dot(columns.value[better[0]], better[1]) > least:
                        answer = better
                    bound = min(bound, max(better[2], least)) if every else bound
            break
        full = _whole(plan, columns, np.arange(len(columns.value)), limit) if len(columns.value) <= _COLUMNS else None
        if full is not None:
            answer, bound = full, min(bound, full[2])
            break
        limit += 1
    used, times, _ = answer
    found = {
        tuple(profile for profile in columns.of[index].tolist() if profile >= 0): round(count)
        for index, count in zip(used.tolist(), times.tolist(), strict=True)
    }
    return found, bound if columns.complete else inf, f"integer program over {len(columns.value)} multisets"


def _priced(plan: _Plan, columns: _Columns, chosen: Members, limit: int) -> tuple[Members, float, F8, float]:
    """Solve the linear program. Returns its columns, a bound on the value, all reduced costs, groups over the limit."""
    penalty = 1000.0 * max(1.0, float(columns.value.max()))
    solver = _program(plan, columns, chosen, limit, penalty)
    for round_ in range(_ROUNDS):
        solver.run()
        if solver.modelStatusToString(solver.getModelStatus()) != "Optimal":
            raise GpuloomError("grouping: the linear program has no optimum")
        found = solver.getSolution()
        duals = -np.array(found.row_dual)
        reduced = columns.reduced(duals[:-1], float(duals[-1]))
        if not columns.complete and round_ % 4 == 0 and round_ < 40:
            columns.grow(duals[:-1], reduced, 60)
            reduced = columns.reduced(duals[:-1], float(duals[-1]))
        good = np.flatnonzero(reduced > _REDUCED * max(1.0, float(columns.value.max())))
        good = np.setdiff1d(good[np.argsort(-reduced[good], kind="stable")[:400]], chosen)
        if not len(good):
            break
        _add(solver, plan, columns, good)
        chosen = np.concatenate([chosen, good])
    over = float(found.col_value[0])
    bound = -solver.getObjectiveValue() + max(0.0, float(reduced.max())) * limit
    return chosen, bound, reduced, over


def _program(plan: _Plan, columns: _Columns, chosen: Members, limit: int, penalty: float | None) -> Any:
    import highspy

    solver = highspy.Highs()  # type: ignore[no-untyped-call]
    for option, setting in (("output_flag", False), ("threads", 1), ("dual_feasibility_tolerance", 1e-9)):
        solver.setOptionValue(option, setting)
    counts = plan.counts.astype(np.float64)
    rows = len(counts) + 1
    lower, upper = np.append(counts, -inf), np.append(counts, float(limit))
    empty = np.zeros(0, np.int32)
    solver.addRows(rows, lower, upper, 0, np.zeros(rows, np.int32), empty, np.zeros(0))
    if penalty is not None:
        solver.addCol(penalty, 0.0, inf, 1, np.array([rows - 1], np.int32), np.array([-1.0]))
    _add(solver, plan, columns, chosen)
    return solver


def _add(solver: Any, plan: _Plan, columns: _Columns, chosen: Members) -> None:
    """Add columns: one in the row of groups, how many jobs of each profile in the others."""
    index: list[int] = []
    value: list[float] = []
    starts: list[int] = []
    for row in columns.of[chosen].tolist():
        starts.append(len(index))
        for profile in sorted(set(row) - {-1}):
            index.append(profile)
            value.append(float(row.count(profile)))
        index.append(len(plan.counts))
        value.append(1.0)
    many = len(chosen)
    solver.addCols(
        many,
        -columns.value[chosen],
        np.zeros(many),
        np.full(many, inf),
        len(index),
        np.array(starts, np.int32),
        np.array(index, np.int32),
        np.array(value),
    )


def _whole(plan: _Plan, columns: _Columns, chosen: Members, limit: int) -> tuple[Members, F8, float] | None:
    """The best whole numbers of these multisets, and a bound on them; None if there are none."""
    solver = _program(plan, columns, chosen, limit, None)
    many = len(chosen)
    solver.changeColsIntegrality(many, np.arange(many, dtype=np.int32), np.ones(many, np.uint8))
    for option, setting in (("mip_rel_gap", 1e-7), ("mip_abs_gap", 1e-9), ("mip_max_nodes", _NODES)):
        solver.setOptionValue(option, setting)
    solver.run()
    info = solver.getInfo()
    if info.primal_solution_status != 2:
        return None
    times = np.rint(np.array(solver.getSolution().col_value))
    used = np.flatnonzero(times > 0)
    return chosen[used], times[used], float(-info.mip_dual_bound)
