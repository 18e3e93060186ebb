"""What commands make of their options, and what they say where these are wrong: whole messages, edges of each rule."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from gpuloom.cli import db as db_command
from gpuloom.cli import job_options, pollux, run_options, submit
from gpuloom.cli.main import cli
from gpuloom.core.errors import InputError
from gpuloom.store.port import CheckReport


def refused(*words: str) -> str:
    """What a command says to this; a click error comes as an exit code of 2."""
    runner = CliRunner()
    try:
        done = runner.invoke(cli, list(words), catch_exceptions=False)
    except InputError as error:
        return str(error)
    assert done.exit_code == 2, done.output
    return done.stderr.strip().splitlines()[-1]


# -- jobs --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", {}),
        ("  # A=1\n\n", {}),
        ("A=1\nA=2", {"A": "2"}),
        ("export   _a.b1=x=y", {"_a.b1": "x=y"}),
        ("A=", {"A": ""}),
        ("A=''", {"A": ""}),
        ("  A = 1", "e:1: 'A = 1' is not KEY=VALUE"),
        ("A='x' # c\nB=x # y", {"A": "x", "B": "x # y"}),
        ("A=1\n1A=2", "e:2: '1A=2' is not KEY=VALUE"),
        ("A='x' y", "e:1: A: there is text after the closing quote"),
        ('A="x', "e:1: A: No closing quotation"),
        ("x" * 61, f"e:1: '{'x' * 60}' is not KEY=VALUE"),
    ],
)
def test_files_of_variables(text: str, found: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("e").write_text(text)
    if isinstance(found, str):
        with pytest.raises(InputError) as error:
            job_options.read_env_file(Path("e"))
        assert str(error.value) == found
    else:
        assert job_options.read_env_file(Path("e")) == found


def test_files_that_can_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("b").write_bytes(b"A=\xff")
    for name, said in (("b", "b: is not UTF-8 text (byte 2)"), ("c", "c: No such file or directory")):
        with pytest.raises(InputError) as error:
            job_options.read_env_file(Path(name))
        assert str(error.value) == said


def test_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERE", "there")
    monkeypatch.delenv("NOWHERE", raising=False)
    one, two = tmp_path / "1", tmp_path / "2"
    one.write_text("A=1\nB=1\nC=1\n")
    two.write_text("B=2\nC=2\n")
    assert job_options.environment([one, two], ["C=3", "HERE", "D=a=b", "E="]) == {
        "A": "1", "B": "2", "C": "3", "HERE": "there", "D": "a=b", "E": "",
    }  # fmt: skip
    assert job_options.environment([], ["HERE=x"]) == {"HERE": "x"}
    for text in ("NOWHERE", "=x", ""):
        with pytest.raises(InputError) as error:
            job_options.environment([], [text])
        assert str(error.value) == f"--env {text!r}: write KEY=VALUE, or the KEY of a variable of this shell"


@pytest.mark.parametrize(
    ("field", "value", "found"),
    [
        ("workdir", "a/../b", "/base/b"),
        ("venv", "v", "/base/v"),
        ("conda", "torch", "torch"),
        ("conda", "./torch", "/base/torch"),
        ("conda", "envs/torch", "/base/envs/torch"),
        ("conda", "/envs/torch", "/envs/torch"),
        ("container", "docker.io/a", "docker.io/a"),
        ("container", "./a", "/base/a"),
        ("container", "~/a", "/h/a"),
        ("container", "a.sif", "/base/a.sif"),
        ("venv", "", ""),
        ("venv", 7, 7),
        ("name", "./x", "./x"),
    ],
)
def test_paths_of_jobs(field: str, value: Any, found: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/h")
    assert job_options.absolute({field: value}, Path("/base")) == {field: found}


def test_a_home_that_nobody_has() -> None:
    with pytest.raises(InputError, match=r"^~nobody-at-all/x: Could not determine home directory"):
        job_options.absolute({"venv": "~nobody-at-all/x"}, Path("/base"))


def test_only_fields_that_were_given() -> None:
    flags = {"gpus": None, "hold": False, "gpu_types": ("A100, V100", "K80,"), "retries": 0, "name": "", "after": ()}
    assert job_options.fields_of(flags) == {"gpu_types": ["A100", "V100", "K80"], "retries": 0, "name": ""}
    assert job_options.fields_of({"gpu_types": (), "real_time": True}) == {"real_time": True}


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({"command": ["nothing-like-it"]}, ["nothing-like-it"]),
        ({"command": ["here"]}, []),
        ({"command": ["./nothing"]}, []),
        ({"command": ["nothing"], "venv": "v"}, []),
        ({"command": ["nothing"], "conda": "v"}, []),
        ({"command": ["nothing"], "container": "v"}, []),
        ({"command": ["nothing"], "env": {}}, []),
        ({"command": ["nothing"], "env": None}, []),
    ],
)
def test_programs_that_are_missing(fields: dict[str, Any], found: list[str], tmp_path: Path) -> None:
    (tmp_path / "here").touch(0o755)
    spec = {"env": {"PATH": str(tmp_path)}, **fields}
    assert submit.missing_programs([spec, spec]) == found


@pytest.mark.parametrize(
    ("submitted", "said"),
    [
        ([[7]], "submitted job 7\n"),
        ([[7], [8]], "submitted job 7\nsubmitted job 8\n"),
        ([[7, 8]], "submitted jobs 7-8 (array of 2; all of it: 7_)\n"),
        ([list(range(1, 1001))], "submitted jobs 1-1000 (array of 1,000; all of it: 1_)\n"),
    ],
)
def test_what_was_submitted(submitted: list[list[int]], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    submit.say_submitted(submitted)
    submit.say_submitted(submitted, err=True)
    assert capsys.readouterr() == (said, said)


def test_what_of_this_shell_is_sent(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    own = ("_", "PWD", "OLDPWD", "SHLVL", "CUDA_VISIBLE_DEVICES", "GPULOOM_TOKEN_FILE")
    monkeypatch.setattr(os, "environ", {**dict.fromkeys(own, "x"), "A": "1"})
    assert submit.shell_environment() == {"A": "1"}
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(os, "environ", {"A": "1", "B\udcff": "", "C": "\udcff", "D": "2"})
    assert submit.shell_environment() == {"A": "1", "D": "2"}
    assert capsys.readouterr().err == "note: these variables are not UTF-8 and were not sent: 'B\\udcff', 'C'\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--"], "Error: no command after --"),
        ([], "Error: name what to run: gpuloom submit -- COMMAND..., or gpuloom submit job.yaml"),
        (["no-such-thing"], "Error: there is no file no-such-thing here, and no program of that name"),
        (["sh", "x"], "Error: write -- before the command: gpuloom submit --dry-run -- sh x"),
        (["a.yaml", "b"], "Error: one file at a time: a.yaml, and 1 word more (b …)"),
        (["-", "b", "c"], "Error: one file at a time: -, and 2 words more (b …)"),
        (["t.sh", "1"], "Error: arguments of the script must stand after --: gpuloom submit --dry-run -- sh /"),
        (["t.sh", "--", "1"], "Error: t.sh is a script and takes no command after --; write: gpuloom submit -- "),
        (["odd"], "odd:1: a job is fields and values (command: [python, train.py]), not text; if it is a program, "),
        (["two.yaml", "--", "x"], "Error: two.yaml holds 2 jobs, and the command after -- would replace that of each"),
    ],
)
def test_what_can_not_be_submitted(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("t.sh").write_text("echo\n")
    Path("odd").write_text("words\n")
    Path("two.yaml").write_text("- command: [a]\n- command: [b]\n")
    assert refused("submit", "--dry-run", *words).startswith(said)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "j.yaml: holds no job; the shortest one is: command: [python, train.py]"),
        ("~\n---\n~\n", "j.yaml: holds no job; the shortest one is: command: [python, train.py]"),
        ("a", "j.yaml:1: a job is fields and values (command: [python, train.py]), not text"),
        ("\n- 1", "j.yaml:2: a job is fields and values (command: [python, train.py]), not a number"),
        ("- [a]", "j.yaml:1: a job is fields and values (command: [python, train.py]), not a list"),
        ("- true", "j.yaml:1: a job is fields and values (command: [python, train.py]), not a yes or no"),
        ("- 2001-01-01", "j.yaml:1: a job is fields and values (command: [python, train.py]), not text"),
        ("command: [a]\ngpus: 1\ngpus: 2", "j.yaml:3: gpus is on line 2 already: write it once"),
        ("command: [a]\nenv:\n  A: 1\n  A: 2", "j.yaml:4: A is on line 3 already: write it once"),
        ("[a]: b", "j.yaml:1: a field's name must be plain text"),
        ("command: a b", "j.yaml:1: command is one text: write program and arguments as a list, such as ['a', 'b']"),
        ("command: [a]\ngpu: 1", "j.yaml:2: unknown field 'gpu'; did you mean 'gpus'?"),
        ("command: [a]\nenv: {A: [1]}", "j.yaml:2: env.A is [1]: Input should be a valid string (quote values that "),
        ("command: [a]\nenv_file: 3", "j.yaml:2: env_file is 3: must be a file, or a list of them"),
        ("command: [a]\nenv_file: [3]", "j.yaml:2: env_file is [3]: must be a file, or a list of them"),
        ("command: [a", "j.yaml:1:12: not YAML: "),
    ],
)
def test_files_that_hold_no_jobs(text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("j.yaml").write_text(text)
    assert refused("submit", "--dry-run", "j.yaml").startswith(said)


def test_what_goes_before_what_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """--env before the file's env, that before its env_file, that before the shell; a flag before the field."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "e").write_text("B=file\nC=file\nD=file\n")
    (tmp_path / "sub" / "j.yaml").write_text(
        "command: [a]\nvenv: v\ngpus: 2\nenv_file: e\nenv: {C: 010, D: yes, E: ~}\n".replace(", E: ~", "")
    )
    monkeypatch.setattr(submit, "shell_environment", lambda: {"A": "shell", "B": "shell"})

    def sent(*flags: str) -> Any:
        done = CliRunner().invoke(cli, ["submit", "--dry-run", "sub/j.yaml", *flags], catch_exceptions=False)
        return json.loads(done.stdout)

    found = sent("--env", "D=flag")
    assert found["env"] == {"A": "shell", "B": "file", "C": "010", "D": "flag"}
    assert (found["venv"], found["gpus"]) == (str(tmp_path / "sub" / "v"), 2)
    found = sent("--conda", "c", "-g", "3")
    assert (found.get("venv"), found["conda"], found["gpus"]) == (None, "c", 3)


# -- the store ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("strangers", "said"),
    [
        ([], ""),
        (["1.1"], "1 run that the backup does not know is still running: 1.1; the next `gpuloom up` stops them\n"),
        (
            [f"{n}.1" for n in range(6)],
            "6 runs that the backup does not know are still running: 0.1, 1.1, 2.1, 3.1, 4.1, …; the next `gpuloom "
            "up` stops them\n",
        ),
    ],
)
def test_runs_that_a_backup_does_not_know(
    strangers: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gpuloom.store import restore

    report = CheckReport(schema_version=4, events=1_000, jobs=1, attempts=0, findings=())
    for replaced in (None, tmp_path / "old"):
        done = SimpleNamespace(path=tmp_path / "db", replaced=replaced, strangers=strangers, report=report)
        monkeypatch.setattr(restore, "restore", lambda home, file, done=done: done)
        printed = CliRunner().invoke(cli, ["db", "restore", str(tmp_path / "b"), "--home", str(tmp_path)])
        kept = "" if replaced is None else f"the old store is kept as {replaced}\n"
        assert printed.stdout == (
            f"{tmp_path}/db: restored from {tmp_path}/b, schema 4, 1,000 events, 1 job, 0 attempts\n{kept}{said}"
        )
        printed = CliRunner().invoke(cli, ["db", "restore", str(tmp_path / "b"), "--home", str(tmp_path), "--json"])
        assert json.loads(printed.stdout) == {
            "path": f"{tmp_path}/db",
            "replaced": None if replaced is None else str(replaced),
            "strangers": strangers,
            "sound": True,
            "schema_version": 4,
            "events": 1_000,
            "jobs": 1,
            "attempts": 0,
            "findings": [],
        }


# -- simulations -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--interval", "0"], "--interval 0: must be a whole number of seconds, from 1 to 86,400"),
        (["--interval", "1.5"], "--interval 1.5: must be a whole number of seconds, from 1 to 86,400"),
        (["--policies", " , "], "--policies names no policy (tiresias, optimus, goodput, sia)"),
        (["--json", "-", "--jobs-csv", "-"], "only one of --json and --jobs-csv can go to standard output (-)"),
        (["--json", "w.csv"], "w.csv"),
        (["--interval", "1"], "w.csv: no profiles of the applications beside it: pass --throughputs FILE "),
    ],
)
def test_what_pollux_refuses(words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("w.csv").write_text("name,time,application,num_replicas,batch_size\na,0,cifar10,1,128\n")
    assert said in refused("pollux", "w.csv", *words)


@pytest.mark.parametrize(
    ("measure", "value", "said"),
    [("avg_jct_s", 1234.56, "1,234.6"), ("gpu_hours", 0.04, "0.0"), ("median_jct_s", 1234.56, "1,235")],
)
def test_numbers_of_pollux(measure: str, value: float, said: str) -> None:
    assert pollux._number(measure, value) == said


TRACE = "submit_s,duration_s,gpus\n0,100,1\n0,100,2\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--scaling-profiles", "."], "--scaling-profiles needs --elastic MIN-MAX, which says how many GPUs the jobs "),
        (["--hlas", "literal"], "--hlas is for hlas, which is not among fifo"),
        (["--base", "fifo"], "--base is for elastic, elastic-goodput; none of fifo takes it"),
        (["--elastic-config", "x"], "--elastic-config is for "),
        (["--group-size", "3"], "--group-size is for "),
        (["--interval", "never"], "Error: Invalid value for '--interval': 'never' is not a duration"),
    ],
)
def test_what_simulations_refuse(words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("t.csv").write_text(TRACE)
    assert refused("simulate", "t.csv", "--policy", "fifo", "--cluster", "1x4", *words).startswith(said)


def test_where_a_trace_was_taken_must_be_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("t.csv").write_text(TRACE)
    assert refused("simulate", "t.csv", "--policy", "fifo") == (
        "the trace t names no cluster: give --cluster, NODESxGPUS[:MODEL] (8x8, 4x8:V100,16x4:K80) or a YAML file"
    )


@pytest.mark.parametrize("number", ["1_000", "٣"])
def test_numbers_are_plain_digits(number: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("t.csv").write_text(f"submit_s,duration_s,gpus\n0,{number},1\n", encoding="utf-8")
    said = refused("simulate", "t.csv", "--policy", "fifo", "--cluster", "1x4")
    column = "t.csv:2, column 'duration_s': duration_s is"
    assert said == f"{column} {number!r}, must be a finite number of at least 0"


def test_jobs_of_which_none_fits() -> None:
    def fit(before: int, after: int, *, same: bool = False, quiet: bool = False) -> Any:
        one = type("W", (), {"__len__": lambda self: before, "name": "t"})()
        other = one if same else type("W", (), {"__len__": lambda self: after, "name": "t", "notes": ["left out"]})()
        return run_options._fitting(one, "1x1", lambda *_, **__: other, True, quiet)  # type: ignore[arg-type]

    for count, said in (
        (1, "t: its one job can't be placed on 1x1"),
        (2_000, "t: none of its 2,000 jobs can be placed"),
    ):
        with pytest.raises(InputError) as error:
            fit(count, 0)
        assert str(error.value).startswith(said)
    assert len(fit(3, 3, same=True)) == 3


def test_notes_about_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    def policy(heeds: bool) -> Any:
        return SimpleNamespace(heeds_weights=heeds)

    weighted: Any = SimpleNamespace(weights=[1.0])
    no, yes = policy(False), policy(True)
    run_options._say_weights(weighted, ["fifo", "gavel"], [no, yes])
    run_options._say_weights(weighted, ["fifo", "fifo", "sjf"], [no, no, no])
    run_options._say_weights(weighted, ["gavel"], [yes])
    run_options._say_weights(SimpleNamespace(weights=None), ["fifo"], [no])  # type: ignore[arg-type]
    assert capsys.readouterr().err == (
        "note: fifo ignores the weights of jobs\nnote: fifo, sjf ignore the weights of jobs\n"
    )

    def performance(name: str, names: bool) -> Any:
        return SimpleNamespace(parameters=[SimpleNamespace(names_measure=names, name=name)])

    def cluster(*models: str) -> Any:
        return SimpleNamespace(models=models)

    run_options._say_unknown_models(cluster("X1", "V100", "X2"), [performance("performance", True)])
    for models, policies in (
        (("X1",), [performance("performance", True)]),
        (("X1", "X2"), [performance("performance", False)]),
        (("X1", "X2"), [performance("other", True)]),
        (("X1", "X2"), []),
        (("K80", "V100"), [performance("performance", True)]),
    ):
        run_options._say_unknown_models(cluster(*models), policies)
    assert capsys.readouterr().err == "note: nothing is known of GPU model X1, X2: its performance counts as 1\n"
    assert (
        db_command._counts(CheckReport(schema_version=4, events=1, jobs=2, attempts=3, findings=()))
        == "schema 4, 1 event, 2 jobs, 3 attempts"
    )
