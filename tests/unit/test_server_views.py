"""What is served is what the published schema says: every field of it, and no other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpuloom.core.job import Phase
from gpuloom.live.views import answers as views
from gpuloom.server.openapi import model_of
from live_builders import living, spec


def judge(view: type, served: Any) -> None:
    """Raises for a field too many, too few, or of another type."""
    model_of(view).model_validate(served, strict=True)


def test_jobs_in_every_state(tmp_path: Path) -> None:
    with living(tmp_path, policy="srtf") as live:
        ended, failed, running = live.submit_all([spec(1), spec(1), spec(2)])
        live.end(ended)
        live.end(failed, 3)
        queued, held, cancelled = live.submit_all([spec(4), spec(4), spec(4)])
        live.service.cancel([cancelled])
        live.service.hold([held])
        live.settle()
        seen = set()
        for job in (ended, cancelled, failed, running, held, queued):
            shown = live.service.show(job)
            assert shown.keys() == views.ShowView.__annotations__.keys()
            judge(views.JobView, shown["job"])
            for attempt in shown["attempts"]:
                judge(views.AttemptView, attempt)
            for forecast in (True, False):
                judge(views.WhyView, live.service.why(job, forecast=forecast))
            seen.add(shown["job"]["state"])
        assert len(seen) >= 4, seen
        assert seen <= set(Phase)


def test_the_scheduler_and_its_machines(tmp_path: Path) -> None:
    with living(tmp_path) as live:
        live.submit(2)
        judge(views.StatusView, live.service.status())
        judge(views.PolicyView, live.service.policy())
        live.service.set_policy("srtf", interval_s=30.0)
        judge(views.PolicyView, live.service.policy())
        for node in live.service.nodes():
            judge(views.NodeView, node)
        node = live.service.nodes()[0]["name"]
        judge(views.NodeView, live.service.set_node(node, "cordoned", reason="new fans"))
        live.parts.machine.look(dict, lambda *_: None)
        judge(views.NodeView, live.service.nodes()[0])


def test_a_field_that_the_schema_does_not_name_is_found(tmp_path: Path) -> None:
    with living(tmp_path) as live, pytest.raises(ValueError, match="Extra inputs"):
        judge(views.StatusView, {**live.service.status(), "secret": 1})
