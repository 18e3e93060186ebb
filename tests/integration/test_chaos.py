"""One seed of the chaos test (tests/chaos.py), and one on a real Slurm; more seeds and more jobs: `make chaos`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from chaos import chaos
from chaos_jobs import Ledger, Wanted, faults_of
from slurm_kit import missing_programs

JOBS, IN_SLURM, AS_PODS = 32, 24, 30
"""`make chaos` has more, and other ones each time."""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_whatever_dies_every_job_ends_once_with_its_true_reason(tmp_path: Path) -> None:
    outcome = chaos(tmp_path, 2, JOBS)
    print(outcome)
    assert not outcome.wrong, str(outcome)
    assert sum(outcome.states.values()) >= JOBS
    assert outcome.faults.total() >= 12


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_same_in_pilots_of_a_real_slurm(tmp_path: Path) -> None:
    if lacking := missing_programs():
        pytest.skip(f"no Slurm here ({', '.join(lacking)} missing): scripts/install-system-parts installs it")
    outcome = chaos(tmp_path, 1, IN_SLURM, on="slurm")
    print(outcome)
    assert not outcome.wrong, str(outcome)
    assert sum(outcome.states.values()) >= IN_SLURM
    assert any(by_slurm in outcome.faults for by_slurm in ("slurmd", "slurmctld", "scancel", "time limit"))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [1, 2])
def test_the_same_as_pods(tmp_path: Path, seed: int) -> None:
    """As Indexed Jobs, and as Volcano's that gpuloom binds."""
    outcome = chaos(tmp_path, seed, AS_PODS, on="pods")
    print(outcome)
    assert not outcome.wrong, str(outcome)
    assert sum(outcome.states.values()) >= AS_PODS
    assert any("pod" in fault or "requests" in fault for fault in outcome.faults)


LEDGER = """\
start 1 1 0 n1 0 7
end 1 1 0 n1 0 7 0
start 2 1 0 n1 1 8
end 2 1 0 n1 1 8 3
"""


def _attempt(reason: str, number: int = 1) -> dict[str, object]:
    return {"number": number, "reason": reason, "message": "", "members": []}


def _found(tmp_path: Path, *, ledger: str = "", one: tuple[str, ...] = ("finished",), state: str = "finished") -> str:
    """Of job 1, which is to end well, beside job 2, which is to fail."""
    (tmp_path / "ledger").write_text(LEDGER + ledger)
    shown = {
        1: {"job": {"state": state}, "attempts": [_attempt(reason, at + 1) for at, reason in enumerate(one)]},
        2: {"job": {"state": "failed"}, "attempts": [_attempt("failed")]},
    }
    wanted = {1: Wanted("ok", {}), 2: Wanted("failing", {})}
    return "\n".join(faults_of(wanted, shown, Ledger(tmp_path).read(), Counter(), []))


@pytest.mark.parametrize(
    ("reason", "ledger", "right"),
    [
        ("peer", "start 1 1 1 n2 0 8\n", True),
        ("peer", "", False),
        ("finished", "start 1 1 1 n2 0 8\nend 1 1 1 n2 0 8 0\n", True),
        ("finished", "start 1 1 1 n2 0 8\nend 1 1 1 n2 0 8 3\n", False),
        ("preempted", "start 1 1 1 n2 0 8\n", False),
    ],
)
def test_a_gang_finishes_if_all_members_did_or_were_late(tmp_path: Path, reason: str, ledger: str, right: bool) -> None:
    """Of a job whose second member is to fail."""
    (tmp_path / "ledger").write_text(f"start 1 1 0 n1 0 7\nend 1 1 0 n1 0 7 0\n{ledger}")
    members = [{"rank": 0, "reason": "finished"}, {"rank": 1, "reason": reason}]
    shown = {1: {"job": {"state": "finished"}, "attempts": [{**_attempt("finished"), "members": members}]}}
    found = faults_of({1: Wanted("gang-failing", {})}, shown, Ledger(tmp_path).read(), Counter(), [])
    assert (found == []) is right


def test_the_judge_lets_pass_what_is_right(tmp_path: Path) -> None:
    assert _found(tmp_path) == ""


@pytest.mark.parametrize(
    ("ledger", "one", "state", "text"),
    [
        ("twice-job 1 1 0 n2 0 9\n", ("finished",), "finished", "held the same"),
        ("start 1 1 0 n2 0 9\n", ("finished",), "finished", "began 2 times, on ['n1', 'n2']"),
        ("start 1 2 0 n2 0 9\n", ("finished",), "finished", "the scheduler does not know it"),
        ("", ("finished", "finished"), "finished", "went on after its end"),
        ("", ("node",), "queued", "is queued"),
        ("", ("failed",), "failed", "attempt 1 failed"),
        ("", ("lost",), "failed", "ended as lost without any fault"),
        ("", ("not_started",), "failed", "failed after 0 failures"),
        ("", ("cancelled",), "cancelled", "cancelled by nobody"),
        ("start 1 2 0 n2 0 9\n", ("node", "finished"), "finished", "attempt 2 finished"),
    ],
)
def test_the_judge_finds(tmp_path: Path, ledger: str, one: tuple[str, ...], state: str, text: str) -> None:
    assert text in _found(tmp_path, ledger=ledger, one=one, state=state)
