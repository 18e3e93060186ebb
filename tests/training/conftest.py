"""Tests with real training frameworks. They run where there is an environment for them: `make test-training`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tiers import NO_TRAINING

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session", autouse=True)
def training_python() -> str:
    """The interpreter that has PyTorch and the frameworks; scripts of these tests run under it."""
    if not os.environ.get("GPULOOM_TRAINING"):
        pytest.skip(NO_TRAINING)
    python = os.path.abspath(os.environ.get("GPULOOM_TRAINING_PYTHON", "build/training/bin/python"))
    assert os.access(python, os.X_OK), (
        f"GPULOOM_TRAINING_PYTHON: {python} is no program: make build/training/.installed"
    )
    return python
