"""Products of vectors and matrices that are the same on every machine.

BLAS adds up in an order that depends on the processor, and the last bit may decide a tie. Here terms are added in one
order everywhere. For the small matrices of decisions; nothing here is as fast as BLAS on large ones.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

F8 = NDArray[np.float64]


def dot(first: F8, second: F8) -> float:
    """Σ first · second of two vectors."""
    return float(np.add.reduce(np.asarray(first * second, dtype=np.float64)))


def times(matrix: F8, vector: F8) -> F8:
    """matrix · vector, over the last axis of the matrix, shape (..., n): shape (...)."""
    found: F8 = np.zeros(matrix.shape[:-1])
    for index in range(matrix.shape[-1]):
        found += matrix[..., index] * vector[index]
    return found


def weighted(weights: F8, rows: F8) -> F8:
    """Σ weights[i] · rows[i], shape of a row."""
    found: F8 = np.zeros(rows.shape[1:])
    for weight, row in zip(weights, rows, strict=True):
        found += weight * row
    return found


def product(left: F8, right: F8) -> F8:
    """left · right, shapes (m, k) and (k, n)."""
    found: F8 = np.zeros((left.shape[0], right.shape[1]))
    for index in range(left.shape[1]):
        found += left[:, index, None] * right[index]
    return found


def solved(matrix: F8, right: F8) -> F8:
    """x of matrix · x = right, by Gaussian elimination with the largest pivot of each column.

    Raises:
        ZeroDivisionError: the matrix is singular.
    """
    table = np.column_stack([matrix, right]).astype(np.float64)
    size = len(right)
    for column in range(size):
        pivot = column + int(np.abs(table[column:, column]).argmax())
        if table[pivot, column] == 0:
            raise ZeroDivisionError("the matrix is singular")
        if pivot != column:
            table[[column, pivot]] = table[[pivot, column]]
        below = table[column + 1 :, column] / table[column, column]
        table[column + 1 :] -= below[:, None] * table[column]
    found: F8 = np.zeros(size)
    for row in range(size - 1, -1, -1):
        known = dot(table[row, row + 1 : size], found[row + 1 :])
        found[row] = (table[row, size] - known) / table[row, row]
    return found
