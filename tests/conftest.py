"""Shared set-up: where the real traces are, and how hypothesis runs."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent))

settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("default")

DATA = Path(os.environ.get("GPULOOM_DATA", Path(__file__).parents[2] / "shared" / "data"))


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder with real traces; skips where it is missing."""
    if not DATA.is_dir():
        pytest.skip("the real traces are not here (../shared/data, or $GPULOOM_DATA)")
    return DATA
