"""Begins to measure coverage in this process."""

from __future__ import annotations

import atexit
import os
from pathlib import Path
from typing import Any


def measure() -> Any:
    """Measure until the process ends, and its children, under the test that is running as it begins."""
    import coverage

    measured = coverage.Coverage(
        data_file=os.path.join(os.environ["GPULOOM_COVERAGE"], "lines"),
        data_suffix=True,
        config_file=False,
        source=[str(Path(__file__).parents[2] / "src")],
        context=os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0],
        messages=False,
    )
    measured._warn_no_data = measured._warn_not_measured = measured._warn_unimported_source = False

    def end() -> None:
        measured.stop()
        measured.save()

    measured.start()
    atexit.register(end)
    return measured
