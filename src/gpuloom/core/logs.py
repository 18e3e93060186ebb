"""Logarithms, exponentials and powers that are the same on every machine.

NumPy computes these by what the processor offers (AVX2, AVX-512, …), and the last bit differs. The last bit may decide
a tie, and so who runs. What makes decisions therefore uses these. They consist of sums, products, quotients and
scalings by powers of two only, each of which IEEE 754 defines to the bit (`tests/unit/test_exact.py`).

The approximations are those of fdlibm (Sun Microsystems, 1993: e_log.c, e_exp.c). Errors stay below one unit of the
last place (`log1p`: two), those of `power` below 1e-15 · |exponent · log(value)| + 2e-16, relative to the result.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

F8 = NDArray[np.float64]

# log 2, split: the first part times any exponent has no rounding error.
_LN2_HIGH, _LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10
_LN2 = 0.6931471805599453
_HALF_ROOT = 0.7071067811865476
_LOG = (
    6.666666666666735130e-01,
    3.999999999940941908e-01,
    2.857142874366239149e-01,
    2.222219843214978396e-01,
    1.818357216161805012e-01,
    1.531383769920937332e-01,
    1.479819860511658591e-01,
)
_EXP = (
    1.66666666666666019037e-01,
    -2.77777777770155933842e-03,
    6.61375632143793436117e-05,
    -1.65339022054652515390e-06,
    4.13813679705723846039e-08,
)
_HIGHEST, _LOWEST = 709.782712893384, -745.1332191019412


def _polynomial(factors: tuple[float, ...], x: F8) -> F8:
    found = x * factors[-1]
    for factor in factors[-2:0:-1]:
        found += factor
        found *= x
    found += factors[0]
    return found


def log(x: ArrayLike) -> F8:
    """Natural logarithm; -inf of 0, NaN below."""
    value = np.asarray(x, dtype=np.float64)
    usual = (value > 0) & (value < np.inf)
    all_usual = bool(usual.all())
    part, exponent = np.frexp(value if all_usual else np.where(usual, value, 1.0))
    low = part < _HALF_ROOT
    f = np.where(low, part + part, part) - 1.0
    k = (exponent - low).astype(np.float64)
    s = f / (2.0 + f)
    z = s * s
    half = 0.5 * f * f
    tail = s * (half + z * _polynomial(_LOG, z))
    found: F8 = k * _LN2_HIGH - ((half - (tail + k * _LN2_LOW)) - f)
    if not all_usual:
        unusual = np.where(value == 0, -np.inf, np.where(value > 0, value, np.nan))
        found = np.where(usual, found, unusual)
    return found


def logs(*columns: F8) -> list[F8]:
    """`log` of several arrays at once: cheaper than one by one where they are short."""
    found = log(np.concatenate(columns))
    ends = np.cumsum([len(column) for column in columns]).tolist()
    return [found[end - len(column) : end] for end, column in zip(ends, columns, strict=True)]


def exp(x: ArrayLike) -> F8:
    """e to the x; inf above 709.78."""
    value = np.asarray(x, dtype=np.float64)
    inside = (value <= _HIGHEST) & (value >= _LOWEST)
    all_inside = bool(inside.all())
    here = value if all_inside else np.where(inside, value, 0.0)
    k = np.rint(here / _LN2)
    high, low = here - k * _LN2_HIGH, k * _LN2_LOW
    r = high - low
    t = r * r
    c = r - t * _polynomial(_EXP, t)
    found: F8 = np.ldexp(1.0 - ((low - (r * c) / (2.0 - c)) - high), k.astype(np.int64))
    if not all_inside:
        unusual = np.where(value > _HIGHEST, np.inf, np.where(value < _LOWEST, 0.0, np.nan))
        found = np.where(inside, found, unusual)
    return found


def log2(x: ArrayLike) -> F8:
    """Logarithm to the base 2; of a power of two it is exact."""
    value = np.asarray(x, dtype=np.float64)
    part, exponent = np.frexp(value)
    found: F8 = exponent + log(part) / _LN2
    return np.where(part == 0.5, exponent - 1.0, found)


def log1p(x: ArrayLike) -> F8:
    """log(1 + x), exact for small x, too (Kahan's correction)."""
    value = np.asarray(x, dtype=np.float64)
    return log1p_by(value, log(1.0 + value))


def log1p_by(value: F8, log_of_sum: F8) -> F8:
    """`log1p(value)` where log(1 + value) is known."""
    away = (1.0 + value) - 1.0
    usual = np.isfinite(away)
    usual &= away != 0
    if usual.all():
        found: F8 = log_of_sum * (value / away)
        return found
    found = np.where(usual, log_of_sum * (value / np.where(usual, away, 1.0)), np.where(away == 0, value, log_of_sum))
    return found


def power(base: ArrayLike, exponent: ArrayLike) -> F8:
    """base to the exponent, for a base of 0 or above; whole exponents up to 4 by multiplication."""
    value = np.asarray(base, dtype=np.float64)
    if isinstance(exponent, int | float) and exponent in (-1.0, 0.0, 0.5, 1.0, 2.0, 3.0, 4.0):
        return _short(value, float(exponent))
    wanted = np.asarray(exponent, dtype=np.float64)
    with np.errstate(invalid="ignore"):
        found = exp(wanted * log(value))
    found = np.where((wanted == 0) | (value == 1), 1.0, found)
    return found


def _short(value: F8, exponent: float) -> F8:
    if exponent == -1.0:
        return np.asarray(1.0 / value)
    if exponent == 0.5:
        return np.asarray(np.sqrt(value))
    found = np.ones_like(value)
    for _ in range(int(exponent)):
        found = found * value
    return found
