"""What a scheduler with pilots knows of nodes that are still to come."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gpuloom.server.pilots import pilots_of
from gpuloom.slurm.pilots import Limits
from gpuloom.slurm.plan import Allocation, Plan
from gpuloom.slurm.script import Request


@pytest.mark.parametrize(
    ("limits", "inside", "most"), [(Limits(4, 8), None, 32.0), (Limits(0, 2), Allocation(7, 3), 6.0)]
)
def test_jobs_may_ask_for_as_much_as_pilots_can_bring(limits: Limits, inside: Allocation | None, most: float) -> None:
    """Also once a first, smaller pilot is there."""
    live: Any = SimpleNamespace(
        scheduler=SimpleNamespace(ledger=SimpleNamespace(wait=None), book=SimpleNamespace(nodes={"n0": None})),
        sights=None,
        nodes=SimpleNamespace(gone=None),
        clock=SimpleNamespace(now=None),
        tokens=None,
    )
    pilots_of(Plan(limits, Request("name", "", "python", 2), inside), live, url="", fingerprint="")
    assert live.scheduler.may_come() == most
