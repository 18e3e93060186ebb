"""What decides is computed alike on every machine: no BLAS, and no function of NumPy that depends on the processor."""

from __future__ import annotations

import ast
import math
import os
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpuloom
from gpuloom.core import logs, products

SOURCE = Path(gpuloom.__file__).parent
ROOMS = ("core", "placement", "interleave", "policies", "engine", "solvers", "scaling", "learning", "facts", "live")
"""Rooms in which decisions are made, or what they go by."""
PROCESSORS = (
    "log log2 log10 log1p exp exp2 expm1 power float_power cbrt sin cos tan tanh arctan hypot"
    " dot vdot inner matmul einsum tensordot linalg convolve"
)
"""Names of NumPy whose last bit is another one on another processor."""
INTEGER_PRODUCTS = {"placement/upgrades.py", "placement/shapes.py"}
"""Files that multiply matrices of whole numbers, for which there is no BLAS."""
numbers = st.floats(1e-300, 1e300)


def _near(found: float, right: float, units: float) -> bool:
    return abs(found - right) <= units * math.ulp(right)


@given(numbers)
def test_logarithm(x: float) -> None:
    assert _near(float(logs.log(x)), math.log(x), 1)
    assert _near(float(logs.log1p(x)), math.log1p(x), 2)
    assert abs(float(logs.log2(x)) - math.log2(x)) <= 4 * math.ulp(max(abs(math.log2(x)), 1.0))


@given(st.floats(-700, 700))
def test_exponential(x: float) -> None:
    assert _near(float(logs.exp(x)), math.exp(x), 1)


@given(st.floats(1e-6, 1e6), st.floats(-5, 5))
def test_power(base: float, exponent: float) -> None:
    right = base**exponent
    bound = 1e-15 * abs(exponent * math.log(base)) + 5e-16
    assert abs(float(logs.power(base, exponent)) - right) <= bound * right


def test_edges() -> None:
    assert logs.log([0.0, 1.0, math.inf]).tolist() == [-math.inf, 0.0, math.inf]
    assert np.isnan(logs.log([-1.0, math.nan])).all()
    assert logs.exp([-math.inf, -800.0, 0.0, 710.0, math.inf]).tolist() == [0.0, 0.0, 1.0, math.inf, math.inf]
    assert np.isnan(logs.exp(math.nan))
    assert logs.log2([1.0, 2.0, 1024.0, 0.25]).tolist() == [0.0, 1.0, 10.0, -2.0]
    assert logs.log1p([0.0, 1e-320]).tolist() == [0.0, 1e-320]
    assert logs.log1p(-1.0) == -math.inf
    assert logs.power([0.0, 1.0, 4.0], 0.5).tolist() == [0.0, 1.0, 2.0]
    assert logs.power([0.0, 1.0], 0.3).tolist() == [0.0, 1.0]
    assert logs.power([3.0, 7.0], 0.0).tolist() == [1.0, 1.0]
    assert logs.power([2.0, 4.0], -1.0).tolist() == [0.5, 0.25]


@given(st.lists(st.tuples(st.integers(-9, 9), st.integers(-9, 9)), min_size=1, max_size=6))
def test_products(pairs: list[tuple[int, int]]) -> None:
    first = np.array([a for a, _ in pairs], dtype=np.float64)
    second = np.array([b for _, b in pairs], dtype=np.float64)
    assert products.dot(first, second) == sum(a * b for a, b in pairs)
    square = np.outer(first, second)
    assert products.times(square, first).tolist() == (square @ first).tolist()
    assert products.weighted(first, square).tolist() == (first @ square).tolist()
    assert products.product(square, square).tolist() == (square @ square).tolist()


def test_a_system_of_equations_is_solved_with_pivots() -> None:
    matrix = np.array([[0.0, 2.0, 1.0], [1.0, 1.0, 1.0], [4.0, 0.0, -1.0]])
    wanted = np.array([1.0, -2.0, 3.0])
    assert products.solved(matrix, products.times(matrix, wanted)) == pytest.approx(wanted, abs=1e-12)
    with pytest.raises(ZeroDivisionError):
        products.solved(np.array([[1.0, 2.0], [2.0, 4.0]]), wanted[:2])


def test_the_last_bit_is_that_of_the_formula() -> None:
    """A value known to the bit, so that another way of computing it would be seen."""
    s = Fraction(1, 3)
    assert float(logs.log(2.0)) == math.log(2.0)
    assert float(logs.exp(1.0)) == pytest.approx(math.e, rel=2**-52)
    assert float(logs.log(float((1 + s) / (1 - s)))) == math.log(2.0)


@pytest.mark.slow
def test_another_processor_gives_the_same_bits() -> None:
    """NumPy and OpenBLAS are told to leave out what newer processors have; numbers are those of this process."""
    code = (
        "import hashlib, numpy as np; from gpuloom.core import logs, products; r = np.random.default_rng(7);"
        "x = r.random(20000) * 1e6; m = r.random((300, 7)); v = r.random(7); w = r.random(20000);"
        "found = [logs.log(x), logs.exp(np.arange(-9, 9, .001)), logs.log1p(w), logs.log2(x), logs.power(x, .37),"
        "products.times(m, v), np.array([products.dot(x, w)]), products.product(m.T, m)];"
        "print(hashlib.sha256(b''.join(f.tobytes() for f in found)).hexdigest())"
    )
    old = {"NPY_DISABLE_CPU_FEATURES": "X86_V3 X86_V4 AVX512_ICL AVX2 FMA3 AVX512F", "OPENBLAS_CORETYPE": "Prescott"}
    said = {
        subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code], env={**os.environ, **more}, check=True, capture_output=True
        ).stdout
        for more in ({}, old)
    }
    assert len(said) == 1


@pytest.mark.slow
def test_nobody_asks_numpy_or_blas() -> None:
    found = list[str]()
    names = {*PROCESSORS.split()}
    for room in ROOMS:
        for path in sorted((SOURCE / room).rglob("*.py")):
            place = str(path.relative_to(SOURCE))
            if place in ("core/logs.py", "core/products.py"):
                continue
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult) and place not in INTEGER_PRODUCTS:
                    found.append(f"{place}:{node.lineno}: @")
                if isinstance(node, ast.Attribute):
                    owner = ast.unparse(node.value)
                    if (owner == "np" and node.attr in names) or (node.attr == "dot" and owner != "products"):
                        found.append(f"{place}:{node.lineno}: {owner}.{node.attr}")
    assert not found, f"use gpuloom.core.logs and gpuloom.core.products: {found}"
