"""`gpuloom submit --profile dry`: what is measured before a job is submitted, where, and what its dry runs are."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gpuloom.cli import dry_runs
from gpuloom.cli.dry_runs import dry_spec, idle_models
from gpuloom.cli.main import cli
from gpuloom.core.measured import Measured
from gpuloom.core.profile import Profile
from gpuloom.facts.profiles import add_profiles, read_library
from gpuloom.fleet.codec import plain


def node(*gpus: tuple[str, str, list[int]], **changes: Any) -> dict[str, Any]:
    found = [{"model": model, "state": state, "jobs": jobs} for model, state, jobs in gpus]
    return {"state": "up", "cut": "", "shut": "", "gpus": found, **changes}


def test_models_of_which_enough_gpus_stand_idle() -> None:
    nodes = [
        node(("V100", "ok", []), ("V100", "ok", [3]), ("K80", "ok", []), ("T4", "unhealthy", [])),
        node(("V100", "ok", []), ("K80", "foreign", [])),
        node(("A100", "ok", []), state="cordoned"),
        node(("A100", "ok", []), cut="its link is down"),
        node(("A100", "ok", []), shut="its home can't be written"),
    ]
    assert idle_models(nodes, 1) == ["K80", "V100"]
    assert idle_models(nodes, 2) == ["V100"]
    assert idle_models(nodes, 3) == []
    assert idle_models(nodes, 1, ["k80", "A100"]) == ["K80"]


def test_a_dry_run_is_the_job_at_the_size_that_it_asks_for() -> None:
    spec = {
        "command": ["train"], "name": "big", "elastic": "2-8", "replica_gpus": 1, "array": "0-9",
        "hold": True, "retries": 3, "priority": 7, "venv": ".venv", "env": {"A": "1"},
    }  # fmt: skip
    assert dry_spec(spec, 2, "train") == {
        "command": ["train"], "name": "big (dry run)", "gpus": 2, "retries": 0, "priority": 7, "venv": ".venv",
        "env": {"A": "1"}, "on_preempt": "checkpoint",
    }  # fmt: skip
    assert dry_spec({"command": ["train"]}, 1, "train --width 8")["name"] == "train --width 8 (dry run)"
    assert len(dry_spec({"command": ["train"], "name": "n" * 200}, 1, "train")["name"]) <= 200


class Measuring:
    """A scheduler of two GPU models: jobs named after a script that hooks see are measured, others fail."""

    def __init__(self, *models: str) -> None:
        self.models, self.specs, self.cancelled = models, list[dict[str, Any]](), list[int]()

    def nodes(self) -> list[dict[str, Any]]:
        return [node(*((model, "ok", []) for model in self.models))]

    def submit(self, specs: list[dict[str, Any]], idempotency_key: str | None = None) -> list[list[int]]:
        first = len(self.specs) + 1
        self.specs += specs
        return [[number] for number in range(first, first + len(specs))]

    def show(self, job: int) -> dict[str, Any]:
        spec = self.specs[job - 1]
        if "blind.py" in spec["command"]:
            return {"hooks": None, "job": {"state": "failed", "message": "exit code 3"}, "attempts": []}
        took_s = {"V100": 0.05, "K80": 0.2}[spec["gpu_types"][0]]
        half_s = took_s / 2
        found = Measured(
            framework="pytorch", iterations=50, first_step=0, steps=None, began_s=0.0, at_s=9.0, timed=47,
            iteration_s=took_s, storage_s=half_s, cpu_s=0.0, gpu_s=half_s, network_s=0.0, turn_s=0.0, rest_s=0.0,
            stages_s=(half_s, 0.0, half_s, 0.0), noise=0.01, drift=None, prefetches=False, workers=0, batches=1.0,
            batch_size=None, memory_mib=None, world_size=1, cores=2,
        )  # fmt: skip
        measured = {**plain(found), "it_per_s": 1.0 / took_s}
        return {"hooks": {"measured": measured}, "job": {"state": "running", "message": ""}, "attempts": []}

    def cancel(self, jobs: list[int], *, grace_s: float) -> None:
        assert grace_s == 0.0
        self.cancelled += jobs


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GPULOOM_HOME", str(tmp_path))
    monkeypatch.setattr(dry_runs, "LOOK_S", 0.0)
    return tmp_path / "profiles.csv"


def submitted(scheduler: Measuring, monkeypatch: pytest.MonkeyPatch, *words: str) -> Result:
    monkeypatch.setattr("gpuloom.cli.submit.connect", lambda home, follows: nullcontext(scheduler))
    return CliRunner().invoke(cli, ["submit", "--export", "none", *words], catch_exceptions=False)


def test_an_unknown_script_is_measured_on_each_idle_model_before_its_job_is_submitted(
    library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = Measuring("V100", "K80", "K80")
    done = submitted(
        scheduler, monkeypatch, "--profile", "dry", "--name", "a", "--", "python", "train.py", "--width", "8"
    )
    assert done.exit_code == 0
    assert [spec.get("gpu_types") for spec in scheduler.specs] == [["K80"], ["V100"], None]
    assert [spec["name"] for spec in scheduler.specs] == ["a (dry run)", "a (dry run)", "a"]
    assert sorted(scheduler.cancelled) == [1, 2]
    rows = {row.gpu_model: row for row in read_library(library)}
    assert {name: round(row.iteration_s, 3) for name, row in rows.items()} == {"K80": 0.2, "V100": 0.05}
    assert {row.model for row in rows.values()} == {"train --width 8"}
    for text in ("dry run of 40 iterations: job 1 on K80, job 2 on V100", "on V100: 20 it/s", "kept 2 profiles"):
        assert text in done.stderr
    assert "submitted job 3" in done.stdout

    again = submitted(scheduler, monkeypatch, "--profile", "dry", "--", "python", "train.py", "--width", "8")
    assert "measured before on K80, V100: gpuloom profiles show 'train --width 8'\n" in again.stderr
    assert len(scheduler.specs) == 4


def test_what_is_known_of_one_model_is_measured_on_the_other(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_profiles(library, [Profile("train", 1, iteration_s=0.3, stage_s=(0.1, 0.1, 0.1), gpu_model="K80")])
    scheduler = Measuring("V100", "K80")
    submitted(scheduler, monkeypatch, "--profile", "dry", "--", "python", "train.py")
    assert [spec.get("gpu_types") for spec in scheduler.specs] == [["V100"], None]


def test_the_job_is_submitted_where_nothing_could_be_measured_and_it_is_said_why(
    library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = Measuring("V100")
    done = submitted(scheduler, monkeypatch, "--profile", "dry", "--", "python", "blind.py")
    why = "job 1 ended (exit code 3) before it was measured: gpuloom logs 1"
    assert f"blind on V100: nothing measured: {why}" in done.stderr
    assert "submitted job 2" in done.stdout
    done = submitted(Measuring(), monkeypatch, "--profile", "dry", "--", "python", "train.py")
    assert "train: no GPU model is idle: it is measured while it runs" in done.stderr
    assert "submitted job 1" in done.stdout


def test_a_job_that_waits_for_others_is_measured_while_it_runs(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = Measuring("V100")
    (library.parent / "job.yaml").write_text("command: [python, train.py]\nafter: [4]\n")
    done = submitted(scheduler, monkeypatch, "--profile", "dry", str(library.parent / "job.yaml"))
    assert "train waits for other jobs: it is measured while it runs" in done.stderr
    assert [spec["after"] for spec in scheduler.specs] == [[4]]


def test_an_interrupt_ends_the_dry_runs_and_submits_nothing(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = Measuring("V100")

    def interrupted(job: int) -> Any:
        raise KeyboardInterrupt

    scheduler.show = interrupted  # type: ignore[method-assign]
    done = submitted(scheduler, monkeypatch, "--profile", "dry", "--", "python", "train.py")
    assert done.exit_code == 1
    assert (len(scheduler.specs), scheduler.cancelled) == (1, [1])
