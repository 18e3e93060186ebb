"""What `gpuloom pilots` and `gpuloom status` say of pilots, and the options of `gpuloom up` about Slurm."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from gpuloom.cli.main import cli
from gpuloom.cli.pilots import chosen, slurm_options, words_of
from gpuloom.live.views.pilots import PilotsView
from gpuloom.slurm.plan import SlurmOptions
from live_api import Api, serving

SOME: PilotsView = {
    "on": True,
    "partition": "gpu",
    "gpus_per_node": 4,
    "most_nodes": 4,
    "idle_s": 600.0,
    "refused": "`sbatch` failed: sbatch: error: invalid partition specified: nope",
    "next_ask_s": 1900000000.0,
    "problem": "`squeue` failed: Unable to contact slurm controller",
    "pilots": [
        {"job": 11, "state": "running", "node_count": 2, "nodes": ["n0", "n1"], "gpus": 8, "reason": "",
         "since_s": 1900000000.0, "until_s": 1900000300.0, "idle_since_s": None},
        {"job": 12, "state": "pending", "node_count": 1, "nodes": [], "gpus": 4, "reason": "Resources",
         "since_s": 1900000000.0, "until_s": None, "idle_since_s": None},
        {"job": None, "state": "asked", "node_count": 1, "nodes": [], "gpus": 4, "reason": "",
         "since_s": 1900000000.0, "until_s": None, "idle_since_s": None},
    ],
}  # fmt: skip


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    with serving(tmp_path / "home") as found:
        monkeypatch.setenv("GPULOOM_HOME", str(found.home))
        yield found


def said(*words: str) -> str:
    done = CliRunner().invoke(cli, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_a_scheduler_without_slurm_says_so(api: Api) -> None:
    assert "asks Slurm for nothing" in said("pilots")
    assert json.loads(said("pilots", "--json"))["on"] is False
    assert "pilots" not in said("status")
    assert "pilots" not in json.loads(said("status", "--json"))


def test_pilots_their_reasons_and_what_is_wrong(api: Api) -> None:
    api.service.pilots_now = SOME
    lines = said("pilots").splitlines()
    assert len({line.index(f" {gpus} ") for line, gpus in zip(lines[1:3], (8, 4), strict=True)}) == 1
    assert lines[0].index("GPUs") + len("GPUs") == lines[1].index(" 8 ") + 2, "numbers stand at the right"
    assert lines[1].split()[:4] == ["11", "running", "n0", "n1"]
    assert lines[2].split()[:3] == ["12", "pending", "1"]
    assert lines[2].endswith("Resources")
    assert lines[3].split()[0] == "-"
    assert "invalid partition specified: nope; asked again at 2030-03-" in lines[4]
    assert "what runs goes on: `squeue` failed: Unable to contact slurm controller" in lines[5]
    assert json.loads(said("pilots", "--json")) == SOME
    (line,) = [line for line in said("status").splitlines() if line.startswith("pilots:")]
    assert "1 running (until 2030-" in line
    assert "1 pending (Resources), 1 asked, at most 4 nodes, idle ones given back after 10m" in line
    assert json.loads(said("status", "--json"))["pilots"] == SOME


def test_no_pilots_as_no_job_needs_one(api: Api) -> None:
    api.service.pilots_now = {**SOME, "pilots": [], "refused": "", "problem": "", "most_nodes": 0, "idle_s": None}
    assert said("pilots") == "no pilots: no job needs one\n"
    assert "none, at most the nodes of its own allocation" in said("status")


def options(*words: str) -> tuple[SlurmOptions | None, list[str]]:
    found = []

    @click.command()
    @slurm_options
    def command(**parameters: object) -> None:
        found.append((chosen(parameters), words_of(parameters)))

    command.main(list(words), standalone_mode=False)
    return found[0]


def test_options_and_the_same_for_the_scheduler_in_the_background() -> None:
    words = ["--slurm", "-p", "gpu", "-G", "16", "--hours", "8", "--idle", "5m", "--", "--exclusive", "--mem=0"]
    said_so, again = options(*words)
    assert said_so == SlurmOptions(partition="gpu", gpus=16, hours=8.0, idle_s=300.0, more=("--exclusive", "--mem=0"))
    assert options(*again) == (said_so, again)
    assert options() == (None, [])


def test_options_of_slurm_without_slurm_are_refused() -> None:
    with pytest.raises(click.UsageError, match="--gpus, --mem=0: goes with --slurm"):
        options("-G", "4", "--", "--mem=0")
