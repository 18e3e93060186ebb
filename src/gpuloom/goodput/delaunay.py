"""Linear interpolation in the simplices of a Delaunay triangulation, as the artifact does it.

The measured points lie on a grid, so the triangulation is not unique: cells of the grid can be cut in many ways, and
step times between the points differ by up to a tenth with the cut. The published figures are reproduced only with the
cut that Qhull (Barber, Dobkin, Huhdanpaa, 1996) makes. That is why this one module needs SciPy.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpuloom.core.errors import MissingDependencyError
from gpuloom.core.workload import F8


class Interpolation:
    """points: shape (P, D), in the order in which Qhull gets them; values: shape (P, V)."""

    def __init__(self, points: F8, values: F8) -> None:
        try:
            from scipy.interpolate import LinearNDInterpolator
        except ImportError as error:
            raise MissingDependencyError("a placement between Pollux' measured ones", "SciPy", "pollux") from error
        self._found = LinearNDInterpolator(points, values)

    def __call__(self, point: Sequence[float]) -> F8 | None:
        """The values at a point, shape (V,); None outside of all points."""
        values: F8 = np.asarray(self._found(np.array([point], dtype=np.float64))[0], dtype=np.float64)
        return None if np.isnan(values).any() else values
