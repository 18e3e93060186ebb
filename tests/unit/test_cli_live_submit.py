"""`gpuloom submit`: what flags and files become, what is refused and how, and --watch."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gpuloom.cli.main import cli
from gpuloom.core.errors import InputError
from gpuloom.live.submission.spec import JobSpec, json_schema
from live_api import Api, serving

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    with serving(tmp_path / "home") as found:
        monkeypatch.setenv("GPULOOM_HOME", str(found.home))
        yield found


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(*args: object, stdin: str | None = None) -> Result:
    return CliRunner().invoke(cli, [str(arg) for arg in args], input=stdin, catch_exceptions=False)


def dry(*args: object, stdin: str | None = None) -> Any:
    result = run("submit", "--dry-run", "--export", "none", *args, stdin=stdin)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def refused(*args: object) -> str:
    with pytest.raises(InputError) as error:
        run("submit", "--dry-run", *args)
    assert error.value.exit_code == 2
    return str(error.value)


# -- flags -------------------------------------------------------------------------------------------------------------


def test_every_flag_is_a_field(tmp_path: Path) -> None:
    flags = ["-g", "2", "--gpu-type", "A100,V100", "--gpu-memory", "12GiB", "--cpus", "2.5", "--memory", "1GiB"]
    flags += ["--priority", "-3", "--after", "12,13", "--after", "20-21", "--after-any", "5", "--array", "0-9%3"]
    flags += ["--time-limit", "4h", "--estimate", "90s", "--retries", "2", "--env", "A=1=2", "--venv", ".venv"]
    flags += ["--name", "x", "--workdir", "sub", "--grace", "0", "--on-preempt", "freeze", "--model", "gpt", "--hold"]
    assert dry(*flags, "--", "python", "t.py", "--", "-g", "9") == {
        "command": ["python", "t.py", "--", "-g", "9"],
        "name": "x",
        "gpus": 2,
        "gpu_types": ["A100", "V100"],
        "gpu_memory": 12288,
        "cpus": 2.5,
        "memory": 1024,
        "priority": -3,
        "after": [12, 13, 20, 21],
        "after_any": [5],
        "array": "0-9%3",
        "time_limit": 14400.0,
        "estimate": 90.0,
        "retries": 2,
        "env": {"A": "1=2"},
        "venv": str(tmp_path / ".venv"),
        "workdir": str(tmp_path / "sub"),
        "grace": 0.0,
        "on_preempt": "freeze",
        "model": "gpt",
        "hold": True,
    }


def test_the_flags_are_all_the_fields() -> None:
    """A field that is added to the spec gets a flag."""
    submit = cli.get_command(None, "submit")  # type: ignore[arg-type]
    assert submit is not None
    assert set(JobSpec.model_fields) - {p.name for p in submit.params} == {"command"}


def test_the_class(tmp_path: Path) -> None:
    found = dry("--class", "high", "--task-type", "inference", "--importance", "low", "--real-time", "--", "x")
    expected = {"share_class": "high", "task_type": "inference", "importance": "low", "real_time": True}
    assert {name: found[name] for name in expected} == expected
    (tmp_path / "job.yaml").write_text("command: [x]\nclass: best-effort\n")
    assert dry("job.yaml")["share_class"] == "best-effort"
    assert dry("job.yaml", "--class", "high")["share_class"] == "high"
    profiled = dry("--class", "high", "--kernel-profile", "kernels/a.kernels.jsonl", "--", "x")
    assert profiled["kernel_profile"] == "kernels/a.kernels.jsonl"  # from the working directory on, wherever that is
    for text, told in (
        ("class: low", "job.yaml:2: class is 'low': Input should be 'high', 'best-effort' or 'interactive'"),
        ("class: high\nshare_class: high", "job.yaml:2: class and share_class are the same: write one of them"),
        ("task_type: serving", "job.yaml:2: task_type is 'serving': Input should be 'inference', 'interactive'"),
        ("real_time: 1", "job.yaml:2: real_time is 1: Input should be a valid boolean"),
        ("clas: high", "unknown field 'clas'; did you mean 'class'?"),
        ("kernel_profile: resnet50", "kernel_profile is of jobs that may share their GPU: give class or task_type"),
    ):
        (tmp_path / "job.yaml").write_text(f"command: [x]\n{text}\n")
        assert told in refused("job.yaml")


def test_paths_are_absolute_and_images_are_not_paths(tmp_path: Path) -> None:
    assert dry("--venv", "~/v", "--", "x")["venv"] == str(Path.home() / "v")
    assert dry("--conda", "torch", "--", "x")["conda"] == "torch"
    assert dry("--conda", "envs/../torch", "--", "x")["conda"] == str(tmp_path / "torch")
    assert dry("--container", "docker.io/a/b:1", "--", "x")["container"] == "docker.io/a/b:1"
    assert dry("--container", "b.sif", "--", "x")["container"] == str(tmp_path / "b.sif")
    assert dry("--", "x")["workdir"] == str(tmp_path)


def test_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.env").write_text("# c\n\nexport A=1\nB='x y' # d\nC=\"$HOME\"\nD= z #no comment \n")
    (tmp_path / "b.env").write_text("A=2\n")
    monkeypatch.setenv("HERE", "there")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setenv("GARBLED", "\udcff")
    found = dry("--env-file", "a.env", "--env-file", "b.env", "--env", "HERE", "--env", "D=", "--", "x")
    assert found["env"] == {"A": "2", "B": "x y", "C": "$HOME", "D": "", "HERE": "there"}
    result = run("submit", "--dry-run", "--env", "HERE=flag", "--", "x")
    sent = json.loads(result.stdout)["env"]
    assert sent["HERE"] == "flag"
    assert sent["PATH"] == os.environ["PATH"]
    assert not {"CUDA_VISIBLE_DEVICES", "GARBLED", "PWD"} & set(sent)
    assert "GARBLED" in result.stderr


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("A=1\nnonsense\n", "e.env:2: 'nonsense' is not KEY=VALUE"),
        ("A='x\n", "e.env:1: A:"),
        ("A='x' y\n", "e.env:1: A:"),
    ],
)
def test_a_bad_env_file_is_told_with_its_line(text: str, place: str) -> None:
    Path("e.env").write_text(text)
    assert place in refused("--env-file", "e.env", "--", "x")
    assert "no.env: No such file" in refused("--env-file", "no.env", "--", "x")


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ([], "gpuloom submit -- COMMAND"),
        (["--"], "no command after --"),
        (["sh", "t.sh"], "write -- before the command: gpuloom submit -- sh t.sh"),
        (["a.yaml", "b.yaml"], "one file at a time"),
        (["-g", "0", "--", "x"], "0 is not in the range"),
        (["--time-limit", "soon", "--", "x"], "'soon' is not a duration"),
        (["--memory", "lots", "--", "x"], "'lots' is not a memory size"),
        (["--on-preempt", "die", "--", "x"], "'die' is not one of"),
    ],
)
def test_bad_usage(args: list[str], says: str) -> None:
    result = run("submit", *args)
    assert result.exit_code == 2
    assert says in result.stderr


def test_bad_values_name_the_field() -> None:
    assert "array is '5-2'" in refused("--array", "5-2", "--", "x")
    assert "give only one of venv and conda" in refused("--venv", "v", "--conda", "c", "--", "x")
    assert "write KEY=VALUE" in refused("--env", "NOT_THERE_AT_ALL", "--", "x")


# -- files -------------------------------------------------------------------------------------------------------------


def test_a_file_of_jobs(tmp_path: Path) -> None:
    folder = tmp_path / "sub"
    folder.mkdir()
    (folder / "x.env").write_text("A=file\nB=file\n")
    (folder / "jobs.yaml").write_text(
        "command: [python, train.py]\ntime_limit: 4h\ngpu_types: A100,V100\nenv_file: x.env\nvenv: v\nworkdir: .\n"
        "env: {OMP_NUM_THREADS: 4, YES: yes, A: job, OCT: 0777}\n---\n"
        "- {command: [a]}\n- command: [b]\n  array: 0-3\n---\n"
    )
    one, two, three = dry("sub/jobs.yaml", "--priority", "7", "--env", "B=flag")
    assert one == {
        "command": ["python", "train.py"],
        "name": "train",
        "priority": 7,
        "time_limit": 14400.0,
        "gpu_types": ["A100", "V100"],
        "venv": str(folder / "v"),
        "workdir": str(folder),
        "env": {"A": "job", "B": "flag", "OMP_NUM_THREADS": "4", "YES": "yes", "OCT": "0777"},
    }
    assert (two["command"], two["workdir"]) == (["a"], str(tmp_path))
    assert three["array"] == "0-3"
    assert dry("-", stdin="{command: [a], venv: v}")["venv"] == str(tmp_path / "v")
    assert "venv" not in dry("-", "--conda", "c", stdin="{command: [a], venv: v}")
    assert dry("-", "--", "other", stdin="command: [a]")["command"] == ["other"]


BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("command: [a]\n\ngpu: 2\n", "job.yaml:3: unknown field 'gpu'; did you mean 'gpus'?"),
        ("command: [a]\nfoo: 2\n", "job.yaml:2: unknown field 'foo'; known: command, name"),
        ("command: [a]\nenvfile: x\n", "did you mean 'env_file'"),
        ("gpus: 2\n", "job.yaml:1: command is missing"),
        ("command: [a]\ngpus: many\n", "job.yaml:2: gpus is 'many'"),
        ("command: python train.py\n", "job.yaml:1: command is one text: write program and arguments as a list"),
        ("command:\n- a\n- 3\n", "job.yaml:3: command.1 is 3"),
        ("command: [a]\ntime_limit: soon\n", "job.yaml:2: time_limit is 'soon'"),
        ("command: [a]\nenv:\n  A: [1]\n", "job.yaml:3: env.A is [1]"),
        ("command: [a]\nenv:\n  A: ~\n", "job.yaml:3: env.A is None"),
        ("command: [a]\nenv:\n  A:\n", "job.yaml:3: env.A is None"),
        ("command: [a]\nenv: null\n", "job.yaml:2: env is None"),
        ("command: [a]\nvenv: v\nconda: c\n", "give only one of venv and conda"),
        ("command: [a]\ngpus: 1\ngpus: 2\n", "job.yaml:3: gpus is on line 2 already"),
        ("command: [a\n", "job.yaml:2:1: not YAML"),
        ("command: [a]\n  gpus: 1\n", "job.yaml:2:"),
        ("- command: [a]\n- 7\n", "job.yaml:2: a job is fields and values"),
        ("", "holds no job"),
        ("command: [a]\nenv_file: no.env\n", "no.env: No such file"),
        ("command: [a]\nenv_file: 3\n", "job.yaml:2: env_file is 3"),
        ("command: !!python/object:os.system [a]\n", "job.yaml:1:"),
        ("&a [*a]\n", "job.yaml:1:5: aliases (*name) are not supported"),
        ("command: [a]\ngpus: 2026-13-45\n", "job.yaml:2: gpus is '2026-13-45'"),
        ("[" * 1500, "job.yaml:1:34: nested too deeply"),
        (BOMB, "job.yaml:2:8: aliases (*name) are not supported"),
        ("command: [a]\nenv:\n  <<: {A: b}\n", "job.yaml:3:3: merge keys (<<) are not supported"),
        ("command: [a]\nname: !!binary aGFsbG8=\n", "job.yaml:2:7: tags (!!binary) are not supported"),
        ("command: [a]\ntime_limit: .inf\n", "job.yaml:2:13: '.inf' is not a finite number"),
        ("command: [a]\ntime_limit: 0x" + "f" * 5000, "job.yaml:2:13: the number '0xfff"),
        ("command: [a]\ntime_limit: " + ":59" * 3000, "job.yaml:2: time_limit is ':59:59"),
        ("command: [a]\nestimate: 1.0e+17\n", "job.yaml:2: estimate is 1e+17"),
        ("command: [a]\nestimate: 1.0e-308\n", "job.yaml:2: estimate is 1e-308"),
        ("command: [a]\nretries: 1001\n", "job.yaml:2: retries is 1001"),
        ("command: [a]\nmemory: 99999999TiB\n", "job.yaml:2: memory is '99999999TiB'"),
        ("command: [a]\narray: 1-99999999999\n", "job.yaml:2: array is '1-99999999999'"),
        ("command: [a]\nafter: [" + "7, " * 1001 + "]\n", "job.yaml:2: after is [7, 7"),
        ("command: [a]\nname: '" + "x" * 4_200_000 + "'\n", "job.yaml: longer than 4 MiB"),
        ("command: [a]\nenv: {A: " + "x" * 200_000 + "}\n", "200,002 bytes, at most 131,071 are allowed"),
        ("command: [a]\n" + "".join(f"wrong{n}: 1\n" for n in range(3000)), "and 2,980 more"),
        ('command: [a]\nname: "\x01"\n', "job.yaml: not YAML"),
        ("command: &c [a]\nenv: &e {X: *e}\n", "job.yaml:"),
        ("? [a]\n: b\n", "job.yaml:1: a field's name must be plain text"),
    ],
)
def test_a_bad_file_is_told_with_line_and_field(text: str, says: str) -> None:
    Path("job.yaml").write_text(text)
    answer = refused("job.yaml")
    assert says in answer
    assert len(answer) < 12_000


def test_dates_stay_text() -> None:
    Path("job.yaml").write_text("command: [a]\nname: 2026-03-01\nenv: {DAY: 2026-03-01 10:00:00, NONE: <<}\n")
    found = dry("job.yaml")
    assert (found["name"], found["env"]["DAY"], found["env"]["NONE"]) == ("2026-03-01", "2026-03-01 10:00:00", "<<")


def test_a_file_without_end_is_not_read_to_its_end() -> None:
    Path("job.yaml").symlink_to("/dev/zero")
    assert "longer than 4 MiB" in refused("job.yaml")


def test_flags_are_told_apart_from_the_file() -> None:
    Path("job.yaml").write_text("command: [a]\narray: 5-2\n")
    assert refused("job.yaml", "--array", "7-3").startswith("array is '7-3'")
    assert dry("job.yaml", "--array", "1-2", "--priority", "0")["array"] == "1-2"
    Path("job.yaml").write_text("command: [a]\nretries: 3\n")
    assert "retries" not in dry("job.yaml", "--retries", "0")


def test_files_that_are_none(tmp_path: Path) -> None:
    assert "nothere.yaml: No such file" in refused("nothere.yaml")
    (tmp_path / "b.yaml").write_bytes(b"command: [\xff]")
    assert "b.yaml: is not UTF-8" in refused("b.yaml")


def test_the_published_schema_is_the_programs() -> None:
    assert json.loads((ROOT / "docs" / "reference" / "job.schema.json").read_text()) == json_schema()
    assert json.loads(run("schema").stdout) == json_schema()


# -- sending -----------------------------------------------------------------------------------------------------------


def test_submitting_says_the_numbers(api: Api) -> None:
    assert run("submit", "--", "true").stdout == "submitted job 1\n"
    assert run("submit", "--array", "0-2", "--", "true").stdout == "submitted jobs 2-4 (array of 3; all of it: 2_)\n"
    Path("jobs.yaml").write_text("- {command: [a]}\n- {command: [b], after: 1}\n")
    result = run("submit", "jobs.yaml", "--after", "2_1", "--json")
    assert json.loads(result.stdout) == {"jobs": [5, 6], "submitted": [[5], [6]]}
    assert api.service.book.jobs[6].after == ((3, "ok"),)
    key = ["--idempotency-key", "k", "--export", "none"]
    assert run("submit", *key, "--", "x").stdout == run("submit", *key, "--", "x").stdout
    assert len(api.service.book.jobs) == 7


def play(api: Api, *steps: Any) -> threading.Thread:
    """Do these things, one after the other, once somebody follows events."""
    followed = threading.Event()
    wait_for_events = api.service.wait_for_events

    def noted(after: int, timeout_s: float) -> int:
        if timeout_s > 0:
            followed.set()
        return wait_for_events(after, timeout_s)

    api.service.wait_for_events = noted  # type: ignore[method-assign]

    def all_steps() -> None:
        assert followed.wait(20)
        for step in steps:
            step()
            time.sleep(0.05)

    thread = threading.Thread(target=all_steps)
    thread.start()
    return thread


@pytest.mark.parametrize(("code", "exit_code"), [(0, 0), (3, 1)])
def test_watching_a_job_to_its_end(api: Api, code: int, exit_code: int) -> None:
    service = api.service
    thread = play(
        api,
        lambda: service.run(1),
        lambda: service.write(1, "first\n"),
        lambda: service.preempt(1),
        lambda: service.run(1),
        lambda: service.write(1, "second\n"),
        lambda: service.finish(1, code),
    )
    result = run("submit", "--watch", "--name", "n", "--", "true")
    thread.join()
    assert result.exit_code == exit_code
    assert result.stdout == "first\nsecond\n"
    assert "job 1 queued: It is queued." in result.stderr
    assert "job 1 running on node0:0" in result.stderr
    assert "job 1, attempt 2" in result.stderr
    assert f"job 1 n: {'finished' if code == 0 else 'failed (exit code 3)'}, ran" in result.stderr


def test_watching_several_jobs(api: Api) -> None:
    service = api.service
    steps = [lambda: service.run(1), lambda: service.finish(1), lambda: service.cancel([2])]
    thread = play(api, *steps)
    result = run("submit", "--watch", "--json", "--array", "0-1", "--", "true")
    thread.join()
    assert result.exit_code == 1
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert lines[0] == {"jobs": [1, 2], "submitted": [[1, 2]]}
    assert [(job["id"], job["state"]) for job in lines[1:]][-2:] == [(1, "finished"), (2, "cancelled")]


def test_a_command_is_not_put_over_several_jobs(tmp_path: Path) -> None:
    (tmp_path / "two.yaml").write_text("command: [a]\n---\ncommand: [b]\n")
    done = run("submit", "--dry-run", "two.yaml", "--", "c")
    assert (done.exit_code, "holds 2 jobs" in done.stderr) == (2, True)
    (tmp_path / "one.yaml").write_text("command: [a]\n")
    assert dry("one.yaml", "--", "c")["command"] == ["c"]


def test_from_a_folder_that_has_been_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert refused("--", "true") == "the current folder has been removed: cd to one that exists"
