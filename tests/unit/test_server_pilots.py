"""What a scheduler with pilots knows of nodes that are still to come."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpuloom.core.errors import InputError
from gpuloom.fleet.token import Tokens, token_of
from gpuloom.server import pilots
from gpuloom.server.pilots import pilots_of
from gpuloom.slurm.pilots import Limits
from gpuloom.slurm.plan import Allocation, Plan, SlurmOptions, name_of
from gpuloom.slurm.script import Request
from gpuloom.store.home import Home


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


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


def test_a_file_of_a_name_that_nobody_guesses_shows_who_shares_the_home(home: Home) -> None:
    mark = pilots._mark(home)
    assert mark.parent == home.nodes
    assert len(mark.name) == len("shared-") + 32
    assert stat.S_IMODE(mark.stat().st_mode) == 0o600
    assert stat.S_IMODE(home.nodes.stat().st_mode) == 0o700
    assert home.runs.is_dir()
    assert pilots._mark(home) == mark, "the same for the next scheduler, whose pilots may still run"
    assert pilots._mark(Home(home.path.parent / "other")).name != mark.name


def test_where_it_can_not_be_written_is_said(home: Home) -> None:
    home.create()
    home.nodes.write_text("no folder")
    with pytest.raises(InputError, match=r"nodes: can't be written: File exists"):
        pilots._mark(home)


def test_what_is_asked_of_slurm_names_this_home_and_this_python(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, dict[str, Any]]] = []

    def plan(options: Any, slurm: Any, **more: Any) -> Plan:
        asked.append((options, more))
        return Plan(Limits(1, 1), Request("n", "", "python", 1))

    monkeypatch.setattr(pilots, "plan_of", plan)
    options = SlurmOptions(nodes=1)
    found = pilots.slurm_plan(options, home, slots=3)
    assert (found.request.runs, found.request.mark) == (str(home.runs), str(pilots._mark(home)))
    ((given, more),) = asked
    assert given is options
    assert (more["slots"], more["url"], more["python"], more["log"]) == (3, "", sys.executable, pilots.LOG)
    assert more["name"] == name_of(home.path)
    assert more["environment"] == dict(os.environ)


def test_the_port_is_kept_for_the_next_scheduler(home: Home, caplog: pytest.LogCaptureFixture) -> None:
    assert pilots.port_before(home) is None
    pilots.keep_port(home, 7411)
    assert "can't be written: No such file or directory" in caplog.text, "and it goes on without"
    pilots._mark(home)
    pilots.keep_port(home, 7411)
    assert pilots.port_before(home) == 7411
    (home.nodes / "port").write_text("none")
    assert pilots.port_before(home) is None


def test_tokens_of_pilots_are_those_of_the_head_with_its_fingerprint(home: Home) -> None:
    kept = Tokens(home.nodes / "tokens.json")
    live: Any = SimpleNamespace(tokens=kept)
    tokens = pilots.PilotTokens(live, "ab" * 32)
    number, text = tokens.mint()
    token = token_of(text)
    assert (token.id, token.fingerprint) == (number, "ab" * 32)
    assert kept.why_not(token.shown) == ""
    assert [known.note for known in kept.all()] == ["a pilot of Slurm"]
    tokens.revoke(number)
    assert kept.why_not(token.shown) == "it was revoked"


def test_what_pilots_are_given_of_the_scheduler() -> None:
    gone: list[tuple[str, str]] = []
    live: Any = SimpleNamespace(
        scheduler=SimpleNamespace(ledger=SimpleNamespace(wait=lambda after, limit_s: 9), book=None),
        sights=SimpleNamespace(cut={}),
        nodes=SimpleNamespace(gone=lambda name, why: gone.append((name, why))),
        clock=SimpleNamespace(now=lambda: 5.0),
        tokens=None,
    )
    made = pilots.pilots_of(
        Plan(Limits(4, 8), Request("n", "", "python", 8)), live, url="https://head:7411", fingerprint=""
    )
    assert (made.request.url, made.limits) == ("https://head:7411", Limits(4, 8))
    assert (made._now(), made._wait(0, 1.0)) == (5.0, 9)
    made._nodes.gone("n0", "Slurm says so")
    assert gone == [("n0", "Slurm says so")]
