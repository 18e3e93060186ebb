"""`gpuloom policies check` finds what is wrong with a policy, and nothing in those that are shipped."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from click.testing import CliRunner

from gpuloom.cli.main import cli
from gpuloom.cli.policies import _known
from gpuloom.core.decision import Decision, Reason
from gpuloom.live.trial import check
from gpuloom.live.trial.check import check_policy
from gpuloom.placement.ordered import OrderedPlanner
from gpuloom.policies.base import Policy
from gpuloom.policies.registry import GIVEN, give
from gpuloom.policies.sjf import Sjf

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "policy_plugin" / "gpuloom_user_fair.py"
MINE = replace(Sjf.traits, summary="of mine")


@pytest.fixture(autouse=True)
def given() -> Iterator[None]:
    """What a test makes known is forgotten after it."""
    yield
    GIVEN.clear()


def failed(cls: type[Policy]) -> dict[str, str]:
    """Checks that fail, and why."""
    return {found.check: found.why for found in check_policy(give(cls, "a test")) if found.outcome == "failed"}


@pytest.mark.parametrize(
    "text",
    [
        "sjf",
        *(
            pytest.param(text, marks=pytest.mark.slow)
            for text in ("tiresias", "gavel", "antman", "elastic-goodput", "rl", "muri-l", "weave", "srtf:beside=yes")
        ),
    ],
)
def test_shipped_policies_pass(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is found in vain. One of each kind, with few histories: tests/property/test_policies_live.py tries many
    on every one."""
    monkeypatch.setattr(check, "HISTORIES", 1)
    assert not [found for found in check_policy(text) if found.outcome == "failed"]


class Mine(Sjf):
    id = "mine"
    traits = MINE


def test_one_that_is_right_passes() -> None:
    assert not failed(Mine)


def test_a_memory_of_another_class() -> None:
    class Odd(Mine):
        def new_memory(self, workload: Any, cluster: Any) -> Any:
            return {1, 2}

    found = failed(Odd)
    assert "memory is a set, which can't be saved" in found["memory can be saved and loaded"]


class ByTurn:
    """By how many were asked about before: that is in no memory."""

    clock, by_gpus = 0, False
    calls: ClassVar[list[int]] = []

    def waiting_key(self, snapshot: Any, job: int) -> float:
        self.calls.append(job)
        return float(len(self.calls) * 7919 % 13)

    def running_key(self, snapshot: Any, job: int) -> None:
        return None


def test_what_it_goes_by_is_in_no_memory() -> None:
    class Forgetful(Mine):
        def decide(self, snapshot: Any, memory: Any) -> Any:
            if self.cache is None:
                self.cache = OrderedPlanner(snapshot, ByTurn(), preemptive=False)
            self.cache.observe(snapshot)
            return self.cache.plan(snapshot), memory

    assert "its memory lacks something" in failed(Forgetful)["restarts"]


def test_a_memory_by_job_that_is_not_said_to_be_one() -> None:
    class Numbered(Mine):
        def new_memory(self, workload: Any, cluster: Any) -> Any:
            return [0] * len(workload)

        def decide(self, snapshot: Any, memory: Any) -> Any:
            for job in range(len(snapshot.workload)):
                memory[job] += 1
            return super().decide(snapshot, memory)

    found = failed(Numbered)
    assert "IndexError" in found["live, in any order of events"]
    assert "test_policies_check.py:" in found["live, in any order of events"]


def test_chance_of_its_own() -> None:
    class Chance(Mine):
        def decide(self, snapshot: Any, memory: Any) -> Any:
            decision, memory = super().decide(snapshot, memory)
            if random.random() < 0.5:
                self.cache = None
                return Decision(wake_at_s=snapshot.now_s + 1.0), memory
            return decision, memory

    assert "decides the same twice" in failed(Chance)


def test_one_that_starts_nobody() -> None:
    class Idle(Mine):
        def decide(self, snapshot: Any, memory: Any) -> Any:
            return Decision(), memory

    found = failed(Idle)
    assert "every job ends" in found
    assert "wait forever" in found["live, in any order of events"]


def test_reasons_that_are_none() -> None:
    class Silent(Mine):
        def reason(self, snapshot: Any, job: int) -> Reason:
            return Reason("", "")

    assert "must be a Reason" in failed(Silent)["gives reasons"]


def test_the_command() -> None:
    done = CliRunner().invoke(cli, ["policies", "check", f"{EXAMPLE}:UserFair"])
    assert done.exit_code == 0, done.output
    assert "11 of 11 checks hold, 1 skipped" in done.output
    GIVEN.clear()
    done = CliRunner().invoke(cli, ["policies", "check", f"{EXAMPLE}:UserFair", "--json"])
    answer = json.loads(done.stdout)
    assert answer["ok"]
    assert len(answer["checks"]) == 12


def test_the_command_says_what_fails(tmp_path: Path) -> None:
    (tmp_path / "bad_one.py").write_text(
        "from dataclasses import replace\n"
        "from gpuloom.policies.sjf import Sjf\n"
        "class Bad(Sjf):\n"
        "    id = 'bad'\n"
        "    traits = replace(Sjf.traits, summary='bad')\n"
        "    def decide(self, snapshot, memory):\n"
        "        return 1 / 0\n"
    )
    done = CliRunner().invoke(cli, ["policies", "check", f"{tmp_path}/bad_one.py:Bad"])
    assert done.exit_code == 1, done.output
    assert "failed  every job ends: ZeroDivisionError: division by zero (bad_one.py:7)" in done.output


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("nobody", "unknown policy 'nobody'"),
        ("no_module_of_this_name:Mine", "ModuleNotFoundError"),
        ("json:JSONDecoder", "is not a gpuloom Policy"),
        ("gpuloom.policies.sjf:Sjf", "has the id 'sjf', which is in use"),
        ("fifo:turns=2", "has no parameter 'turns'"),
    ],
)
def test_a_name_that_is_none(name: str, text: str) -> None:
    done = CliRunner().invoke(cli, ["policies", "check", name], standalone_mode=False)
    assert done.exit_code != 0
    assert text in str(done.exception)


def test_check_needs_a_name() -> None:
    assert CliRunner().invoke(cli, ["policies", "check"]).exit_code == 2
    assert CliRunner().invoke(cli, ["policies", "fifo", "srtf"]).exit_code == 2


def test_a_file_takes_no_other_modules_name(tmp_path: Path) -> None:
    (tmp_path / "random.py").write_text(EXAMPLE.read_text())
    before = sys.modules["random"]
    assert _known(f"{tmp_path}/random.py:UserFair") == "user-fair"
    assert sys.modules["random"] is before
