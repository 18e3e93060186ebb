"""What `gpuloom policy` says of the policy that is set, and of one that fails."""

from __future__ import annotations

import time
from typing import Any

import pytest

from gpuloom.cli.policy import _say


def view(**changes: Any) -> Any:
    found = {"policy": "srtf", "serves": "srtf", "previous": None, "interval_s": 0.0, "since_s": time.time()}
    return found | changes


def test_of_one_that_works_nothing_is_said_but_what_it_does(capsys: pytest.CaptureFixture[str]) -> None:
    _say(view(previous="fifo"))
    said = capsys.readouterr().out
    assert said.startswith("srtf, preempts, set ")
    assert said.endswith("; before: fifo\n")


def test_of_one_that_fails_it_is_said_who_serves(capsys: pytest.CaptureFixture[str]) -> None:
    _say(view(serves="fifo"))
    assert ". It fails: fifo is used in its place (gpuloom status says why)" in capsys.readouterr().out
