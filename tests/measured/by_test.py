"""A plug-in of pytest: lines are measured under the test that runs them, and how each test ended is written down."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import coverage
import pytest

ended: dict[str, tuple[float, str]] = {}
"""Seconds and outcome of each test."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """What runs from here on, this test runs."""
    now = coverage.Coverage.current()
    assert now is not None
    now.switch_context(item.nodeid)
    try:
        return (yield)
    finally:
        now.switch_context("")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add up set-up, call and teardown; the worst outcome counts."""
    seconds, outcome = ended.get(report.nodeid, (0.0, "passed"))
    ended[report.nodeid] = seconds + report.duration, outcome if report.outcome == "passed" else report.outcome


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write it down, once."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        Path(os.environ["GPULOOM_COVERAGE"], "ended.json").write_text(json.dumps(ended))
