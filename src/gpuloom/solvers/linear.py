"""Linear programs, solved by HiGHS on one thread (the same input gives the same answer)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpuloom.core.errors import GpuloomError
from gpuloom.core.workload import F8


def maximize(
    cost: F8,
    rows: NDArray[np.intp],
    columns: NDArray[np.intp],
    values: F8,
    row_lower: F8,
    row_upper: F8,
    upper: F8,
) -> F8:
    """Maximise cost·x subject to row_lower ≤ A·x ≤ row_upper, 0 ≤ x ≤ upper.

    Args:
        rows, columns, values: the entries of A that are not 0, in any order.

    Raises:
        GpuloomError: the solver found no optimum.
    """
    import highspy

    order = np.lexsort((columns, rows))
    program = highspy.HighsLp()
    program.num_col_, program.num_row_ = len(cost), len(row_lower)
    program.sense_ = highspy.ObjSense.kMaximize
    program.col_cost_ = cost
    program.col_lower_, program.col_upper_ = np.zeros(len(cost)), upper
    program.row_lower_, program.row_upper_ = row_lower, row_upper
    program.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    program.a_matrix_.start_ = np.searchsorted(rows[order], np.arange(len(row_lower) + 1)).astype(np.int32)
    program.a_matrix_.index_ = columns[order].astype(np.int32)
    program.a_matrix_.value_ = values[order]
    solver = highspy.Highs()  # type: ignore[no-untyped-call]
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("threads", 1)
    solver.passModel(program)
    solver.run()
    if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        status = solver.modelStatusToString(solver.getModelStatus())
        raise GpuloomError(f"the linear program ({len(cost)} columns, {len(row_lower)} rows) has no optimum: {status}")
    return np.array(solver.getSolution().col_value, dtype=np.float64)
