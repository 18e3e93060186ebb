"""Corners of what the command line shows, each part on its own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from fake_service import FakeService
from gpuloom.cli import events, watch
from gpuloom.cli.demo import jobs as demo_jobs
from gpuloom.cli.demo.jobs import Planned, Story
from gpuloom.cli.demo.view import _screen
from gpuloom.cli.live_tables import GPU_COLUMNS, NODE_COLUMNS
from gpuloom.cli.profiles import profiles
from gpuloom.cli.service import _same_host
from gpuloom.client.numbers import MAX_RANGE, parse
from gpuloom.core.errors import InputError
from gpuloom.core.job import NodeState
from gpuloom.server.problems import pointer


def test_memory_is_shown_as_used_of_all(tmp_path: Path) -> None:
    seen = {"memory_used_mib": 512, "memory_mib": 2048}
    (machine,) = FakeService(tmp_path).nodes()
    slot = machine["gpus"][0]
    (gpu,) = (column for column in GPU_COLUMNS if column.title == "GiB")
    (node,) = (column for column in NODE_COLUMNS if column.title == "GiB")
    assert (gpu.cell((machine, {**slot, **seen})), node.cell({**machine, **seen})) == ("0.5/2.0", "0.5/2.0")


def test_only_jobs_of_a_written_history_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def connected(home: Path | None) -> Iterator[Any]:
        yield SimpleNamespace(history=lambda **_: "# a note\n\nid,submit_s\n1,0\n2,5\n")

    monkeypatch.setattr(events, "connect", connected)
    file = str(tmp_path / "week.csv")
    done = CliRunner().invoke(events.history, ["export", file, "--json"])
    assert json.loads(done.stdout) == {"file": file, "jobs": 2}


@pytest.mark.parametrize("stages", ["0.1,0.1", "0.1,0.1,0.1,0.1,0.1"])
def test_a_profile_has_three_or_four_stages(stages: str, tmp_path: Path) -> None:
    words = ["add", "x", "--gpus", "1", "--iteration", "1", "--stages", stages, "--library", str(tmp_path / "p.csv")]
    failed = CliRunner().invoke(profiles, words).exception
    assert isinstance(failed, InputError)
    assert "must have 3 (" in str(failed)


def test_a_host_without_an_address_is_another_one() -> None:
    assert _same_host("127.0.0.1", "127.0.0.1")
    assert not _same_host("no such host", "127.0.0.1")


def test_a_range_holds_so_many_jobs_and_no_more() -> None:
    assert parse(f"1-{MAX_RANGE}") == (1, MAX_RANGE, None)
    with pytest.raises(InputError, match="more than"):
        parse(f"1-{MAX_RANGE + 1}")


def test_a_pointer_names_fields_and_nothing_of_how_they_were_checked() -> None:
    assert pointer(["env", "A/b~", "[key]"]) == "/env/A~1b~0"
    assert pointer(["array", "function-before[x]", 3]) == "/array/3"


def test_the_head_says_why_a_node_is_not_up(tmp_path: Path) -> None:
    service = FakeService(tmp_path)
    (well,) = service.nodes()
    drained = service.set_node("node0", NodeState.DRAINING, reason="a fan")
    lines = watch._heads({"status": service.status(), "nodes": [drained, well], "jobs": [], "groups": []})
    assert lines[-2].endswith(", a fan")
    assert lines[-1].endswith(", load 0.5")


def test_the_demo_tells_from_which_step_a_job_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The new attempt has reported nothing yet; the one before has."""
    told = {1: {"step": 30, "steps": 120}}
    monkeypatch.setattr(demo_jobs, "last_report", lambda home, job, attempt: told.get(attempt, {}))
    story = Story(tmp_path)

    def lines(kind: str, **data: Any) -> list[str]:
        return story.tell([{"id": 1, "type": kind, "job": 5, "at_s": 10.0, "data": data}])

    lines("jobs.submitted", spec={"name": "alpha", "gpus": 1, "estimate": 9.0})
    assert "starts" in lines("attempt.starting", attempt=1, allocation=[["node0", [0]]])[0]
    (line,) = lines("attempt.starting", attempt=2, allocation=[["node0", [0, 1]]])
    assert line.endswith("on slots 0,1, continues from step 30 of 120")


def test_the_demo_draws_how_far_jobs_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.console import Console

    monkeypatch.setattr(demo_jobs, "last_report", lambda home, job, attempt: {"step": 30, "steps": 120})
    story = Story(tmp_path)
    for job, name in ((1, "alpha"), (2, "bravo")):
        spec = {"name": name, "gpus": 1, "estimate": 9.0}
        story.tell([{"id": job, "type": "jobs.submitted", "job": job, "at_s": 0.0, "data": {"spec": spec}}])
        given = {"attempt": 1, "allocation": [["node0", [job - 1]]]}
        story.tell([{"id": job, "type": "attempt.starting", "job": job, "at_s": 0.0, "data": given}])
    story.state[2] = "finished"
    console = Console(width=100)
    with console.capture() as drawn:
        console.print(_screen(story, (Planned("alpha", 0.0, 1, 9.0), Planned("bravo", 0.0, 1, 9.0)), 2, "t", 5.0, 100))
    rows = {line.split()[0]: line for line in drawn.get().splitlines() if line.startswith(("alpha", "bravo"))}
    assert "█" * 6 + "░" * 18 + "  25 %" in rows["alpha"]
    assert "█" * 24 + " 100 %" in rows["bravo"]
