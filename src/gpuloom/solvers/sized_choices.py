"""How many GPUs of which model each job gets, so that the sum of their values is largest.

Each job offers some choices, (model, GPUs, value), of which it gets at most one; the GPUs of each model are limited.
A multiple-choice knapsack with one constraint per model, solved exactly: by dynamic programming over the GPUs left of
each model, where that is small, else as an integer program (HiGHS). Sia (SOSP '23, section 3.4) states the problem so.
`scaling/choose.py` solves the like by prices: nearly as well, and much faster where jobs are many.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpuloom.core.errors import GpuloomError
from gpuloom.core.workload import F8

MOST_CELLS = 40_000_000
"""Dynamic programming looks at (GPUs + 1 of each model, multiplied) x choices; beyond so many the program is faster."""


@dataclass(frozen=True, slots=True)
class Choice:
    """`gpus` (at least 1) of a model, by its index, and what they are worth to the job; nothing is worth 0."""

    model: int
    gpus: int
    value: float


def choose(jobs: Sequence[Sequence[Choice]], capacity: Sequence[int]) -> list[int | None]:
    """The index of each job's choice, None for nothing, with the largest sum of values.

    Choices of no value, or larger than what there is, are not taken. Of equally good ways it takes, from the last job
    on, nothing before something, and the earlier choice: the same input gives the same answer.

    Args:
        capacity: GPUs of each model.

    Raises:
        GpuloomError: the integer program was not solved.
    """
    offers = [_useful(choices, capacity) for choices in jobs]
    best = [max(of_it, key=lambda one: (one[1].value, -one[0]), default=None) for of_it in offers]
    asked = [0] * len(capacity)
    for first in best:
        if first is not None:
            asked[first[1].model] += first[1].gpus
    if all(a <= b for a, b in zip(asked, capacity, strict=True)):
        return [None if first is None else first[0] for first in best]
    cells = float(np.prod([gpus + 1.0 for gpus in capacity])) * sum(len(of_it) for of_it in offers)
    return _by_table(offers, capacity) if cells <= MOST_CELLS else _by_program(offers, capacity)


Offers = list[tuple[int, Choice]]


def _useful(choices: Sequence[Choice], capacity: Sequence[int]) -> Offers:
    """Those that could be taken: none that another one of the model beats with as few GPUs."""
    found: Offers = []
    order = sorted(enumerate(choices), key=lambda one: (one[1].model, one[1].gpus, -one[1].value, one[0]))
    for at, choice in order:
        if not 0 < choice.value < np.inf or choice.gpus > capacity[choice.model]:
            continue
        if found and found[-1][1].model == choice.model and found[-1][1].value >= choice.value:
            continue
        found.append((at, choice))
    return found


def _by_table(offers: Sequence[Offers], capacity: Sequence[int]) -> list[int | None]:
    """tables[j]: the best sum of the first j jobs, by GPUs of each model that they may use."""
    tables: list[F8] = [np.zeros([gpus + 1 for gpus in capacity])]
    for of_it in offers:
        before = tables[-1]
        after = before.copy()
        for _, one in of_it:
            seats = (slice(None),) * one.model
            there = after[(*seats, slice(one.gpus, None))]
            np.maximum(there, before[(*seats, slice(None, -one.gpus))] + one.value, out=there)
        tables.append(after)
    left = list(capacity)
    found: list[int | None] = [None] * len(offers)
    for job in range(len(offers) - 1, -1, -1):
        wanted, before = tables[job + 1][tuple(left)], tables[job]
        if before[tuple(left)] == wanted:
            continue
        for at, one in offers[job]:
            left[one.model] -= one.gpus
            if left[one.model] >= 0 and before[tuple(left)] + one.value == wanted:
                found[job] = at
                break
            left[one.model] += one.gpus
    return found


def _by_program(offers: Sequence[Offers], capacity: Sequence[int]) -> list[int | None]:
    import highspy

    columns = [(job, at, one) for job, of_it in enumerate(offers) for at, one in of_it]
    n, rows = len(columns), len(offers) + len(capacity)
    program = highspy.HighsLp()
    program.num_col_, program.num_row_ = n, rows
    program.sense_ = highspy.ObjSense.kMaximize
    program.col_cost_ = np.array([one.value for _, _, one in columns])
    program.col_lower_, program.col_upper_ = np.zeros(n), np.ones(n)
    program.row_lower_ = np.full(rows, -np.inf)
    program.row_upper_ = np.concatenate([np.ones(len(offers)), np.array(capacity, dtype=np.float64)])
    program.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    program.a_matrix_.start_ = np.arange(0, 2 * n + 1, 2, dtype=np.int32)
    program.a_matrix_.index_ = np.array(
        [row for job, _, one in columns for row in (job, len(offers) + one.model)], dtype=np.int32
    )
    program.a_matrix_.value_ = np.array([value for _, _, one in columns for value in (1.0, one.gpus)])
    program.integrality_ = [highspy.HighsVarType.kInteger] * n
    solver = highspy.Highs()  # type: ignore[no-untyped-call]
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("threads", 1)
    solver.setOptionValue("mip_rel_gap", 1e-4)
    solver.passModel(program)
    solver.run()
    if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        status = solver.modelStatusToString(solver.getModelStatus())
        raise GpuloomError(f"the integer program of {len(offers)} jobs ({n} choices) has no optimum: {status}")
    found: list[int | None] = [None] * len(offers)
    for (job, at, _), taken in zip(columns, solver.getSolution().col_value, strict=True):
        if taken > 0.5:
            found[job] = at
    return found
