"""Scripts in the place of job files: how they run, what of Slurm they ask for, and the line to type instead."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gpuloom.cli.main import cli
from gpuloom.cli.scripts import command_of
from gpuloom.cli.submit_files import read_jobs
from gpuloom.core.errors import InputError

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "live"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with scripts, and PATH with a python and a sh in it."""
    monkeypatch.chdir(tmp_path)
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("python", "sh"):
        (programs / name).write_text("#!/bin/sh\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(programs))
    (tmp_path / "train.py").write_text("import sys\n")
    (tmp_path / "job.sh").write_text("echo hi\n")
    (tmp_path / "run").write_text("#!/bin/sh\necho hi\n")
    (tmp_path / "run").chmod(0o755)
    return tmp_path


def submit(*words: str) -> Result:
    return CliRunner().invoke(cli, ["submit", "--dry-run", "--export", "none", *words])


def spec(*words: str) -> Any:
    done = submit(*words)
    assert done.exit_code == 0, (done.output, done.exception)
    return json.loads(done.stdout)


def said(*words: str) -> str:
    done = submit(*words)
    assert done.exit_code != 0
    return f"{done.stderr}{done.exception if isinstance(done.exception, InputError) else ''}"


def test_a_script_alone_runs(here: Path) -> None:
    assert spec("train.py")["command"] == ["python", str(here / "train.py")]
    assert spec("train.py", "-g", "2")["gpus"] == 2
    assert spec("./job.sh")["command"] == ["sh", str(here / "job.sh")]
    assert spec("run")["command"] == [str(here / "run")]
    assert spec("run")["name"] == "run"
    assert spec("--name", "x", "run")["name"] == "x"
    assert "runs as python" in submit("train.py").stderr


def test_a_script_with_an_interpreter_that_is_not_executable(here: Path) -> None:
    (here / "study").write_text("#!/usr/bin/env -S python3 -u\n")
    assert spec("study")["command"] == ["/usr/bin/env", "-S python3 -u", str(here / "study")]
    assert spec("study")["name"] == "study"


def test_which_python(here: Path) -> None:
    (here / "bin" / "python").rename(here / "bin" / "python3")
    assert command_of("train.py") == ["python3", str(here / "train.py")]
    (here / "bin" / "python3").unlink()
    with pytest.raises(InputError, match=r"gpuloom submit -- /path/to/python train\.py"):
        command_of("train.py")
    assert command_of("train.py", own_python=True) == ["python", str(here / "train.py")]


def test_job_files_stay_job_files(here: Path) -> None:
    (here / "job.yaml").write_text("command: [echo]\n")
    (here / "job.yaml").chmod(0o755)
    assert spec("job.yaml")["command"] == ["echo"]
    (here / "plain").write_text("command: [echo]\n")
    assert spec("plain")["command"] == ["echo"]
    (here / "notes").write_text("hello world\n")
    assert "if it is a program, not a job file: gpuloom submit -- PROGRAM notes" in said("notes")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("train.py", "--lr", "0.1"), "-- python {here}/train.py --lr 0.1"),
        (("-g", "2", "python", "train.py", "--lr", "0.1"), "-g 2 -- python train.py --lr 0.1"),
        (("--hold", "train.py", "0.1"), "--hold -- python {here}/train.py 0.1"),
        (("python", "train.py"), "-- python train.py"),
        (("train.py", "--", "--lr", "0.1"), "-- python {here}/train.py --lr 0.1"),
        (("train.py", "--", "python", "train.py"), "-- python train.py"),
    ],
)
def test_the_line_to_type(here: Path, words: tuple[str, ...], line: str) -> None:
    told = said(*words)
    assert line.format(here=here) in told
    typed = told[told.index("gpuloom submit") :].split()[2:]
    assert json.loads(CliRunner().invoke(cli, ["submit", "--dry-run", *typed]).stdout)["command"][0] == "python"


def test_what_is_not_there() -> None:
    assert "there is no file nothere.py here" in said("nothere.py")


def test_the_examples_run_from_anywhere_with_an_environment_of_their_own() -> None:
    for name in ("job.yaml", "array.yaml"):
        (job,) = read_jobs(str(EXAMPLES / name), {}, {}, {})
        assert job["workdir"] == str(EXAMPLES)
        assert job["venv"] == str(EXAMPLES.parents[1] / ".venv")


def test_a_program_that_is_not_on_path_is_pointed_out(here: Path) -> None:
    from gpuloom.cli.submit import missing_programs

    env = {"PATH": str(here / "bin")}
    specs = [{"command": [name], "env": env} for name in ("python", "pyton", "./run", "pyton")]
    assert missing_programs(specs) == ["pyton"]
    assert missing_programs([{"command": ["pyton"], "env": env, "venv": "/v"}, {"command": ["x"], "env": {}}]) == []
