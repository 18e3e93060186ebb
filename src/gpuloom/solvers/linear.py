"""Linear programs, solved by HiGHS on one thread (the same input gives the same answer)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpuloom.core.errors import GpuloomError
from gpuloom.core.workload import F8

_OTHER_WAYS: tuple[tuple[str, str | int], ...] = (
    ("presolve", "on"),
    ("presolve", "off"),
    ("simplex_strategy", 4),
    ("solver", "ipm"),
)
"""What is tried from the start, in this order, where going on from the last optimum ends in numerical trouble."""


class Program:
    """row_lower ≤ A·x ≤ row_upper, 0 ≤ x ≤ upper, to be maximised for one cost after another.

    Args:
        rows, columns, values: the entries of A that are not 0, in any order.
        tolerance: by how much rows and costs may be missed; None: HiGHS's own, 1e-7.
    """

    def __init__(
        self,
        rows: NDArray[np.intp],
        columns: NDArray[np.intp],
        values: F8,
        row_lower: F8,
        row_upper: F8,
        upper: F8,
        tolerance: float | None = None,
    ) -> None:
        import highspy

        order = np.lexsort((columns, rows))
        program = highspy.HighsLp()
        program.num_col_, program.num_row_ = len(upper), len(row_lower)
        program.sense_ = highspy.ObjSense.kMaximize
        program.col_cost_ = np.zeros(len(upper))
        program.col_lower_, program.col_upper_ = np.zeros(len(upper)), upper
        program.row_lower_, program.row_upper_ = row_lower, row_upper
        program.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        program.a_matrix_.start_ = np.searchsorted(rows[order], np.arange(len(row_lower) + 1)).astype(np.int32)
        program.a_matrix_.index_ = columns[order].astype(np.int32)
        program.a_matrix_.value_ = values[order]
        self._optimal = highspy.HighsModelStatus.kOptimal
        self._upper = upper
        self._columns = np.arange(len(upper), dtype=np.int32)
        self._size = f"{len(upper)} columns, {len(row_lower)} rows"
        self._solver = highspy.Highs()  # type: ignore[no-untyped-call]
        self._solver.setOptionValue("output_flag", False)
        self._solver.setOptionValue("threads", 1)
        if tolerance is not None:
            self._solver.setOptionValue("primal_feasibility_tolerance", tolerance)
            self._solver.setOptionValue("dual_feasibility_tolerance", tolerance)
        self._solver.passModel(program)

    def maximize(self, cost: F8) -> F8:
        """The x that maximises cost·x; it begins where the last one ended.

        Raises:
            GpuloomError: the solver found no optimum.
        """
        solver = self._solver
        solver.changeColsCost(len(self._columns), self._columns, cost)
        solver.run()
        for option, value in _OTHER_WAYS:
            if solver.getModelStatus() == self._optimal:
                break
            before = solver.getOptionValue(option)[1]
            solver.clearSolver()
            solver.setOptionValue(option, value)
            solver.run()
            solver.setOptionValue(option, before)
        if solver.getModelStatus() != self._optimal:
            status = solver.modelStatusToString(solver.getModelStatus())
            raise GpuloomError(f"the linear program ({self._size}) has no optimum: {status}")
        return np.array(solver.getSolution().col_value, dtype=np.float64)

    def at_least(self, column: int, value: float) -> None:
        """From now on x[column] ≥ value."""
        self._solver.changeColBounds(column, value, float(self._upper[column]))


def maximize(
    cost: F8,
    rows: NDArray[np.intp],
    columns: NDArray[np.intp],
    values: F8,
    row_lower: F8,
    row_upper: F8,
    upper: F8,
) -> F8:
    """The x of one program (see `Program`) that maximises cost·x."""
    return Program(rows, columns, values, row_lower, row_upper, upper).maximize(cost)
