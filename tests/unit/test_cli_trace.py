"""`gpuloom trace`, run in this process."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gpuloom.cli.main import cli
from gpuloom.cli.trace import trace
from gpuloom.core.errors import InputError, TraceError
from gpuloom.traces import read_trace

OWN = "submit_s,duration_s,gpus,job_id,model,user\n0,3600,2,a,bert,u\n7200,7200,1,b,,u\n7200,0,1,c,bert,v\n"


def run(*args: object, stdin: str | None = None) -> Result:
    return CliRunner().invoke(trace, [str(arg) for arg in args], input=stdin, catch_exceptions=False)


@pytest.fixture
def own(tmp_path: Path) -> Path:
    file = tmp_path / "own.csv"
    file.write_text(OWN)
    return file


def test_names_are_written_as_they_are(own: Path) -> None:
    own.write_text(OWN.replace("bert", "bärt"))
    assert "bärt" in run("show", own, "--json", "--limit", 1).stdout


def test_show_as_json(own: Path) -> None:
    result = run("show", own, "--json", "--limit", 1)
    shown = json.loads(result.stdout)
    assert (shown["format"], shown["jobs"], shown["files"], shown["name"]) == ("gpuloom", 3, [str(own)], "own")
    assert shown["span_s"] == 7200
    assert shown["gpu_hours"] == 4
    assert shown["mean_offered_gpus"] == 2
    assert shown["gpus"]["1"] == {"jobs": 2, "job_share": pytest.approx(2 / 3), "gpu_time_share": 0.5}
    assert shown["duration_s"]["p50"] == 3600
    assert shown["duration_s"]["mean"] == 3600
    assert shown["models"] == {"distinct": 2, "top": {"bert": 2, "": 1}}
    assert shown["groups"] is None
    assert shown["columns"] == ["job_ids", "model", "user"]
    assert shown["first_jobs"] == [
        {"job_id": "a", "submit_s": 0.0, "duration_s": 3600.0, "gpus": 2, "model": "bert", "user": "u"}
    ]
    assert result.stderr == ""


def test_show_for_people(own: Path) -> None:
    result = run("show", own, "--limit", 2)
    assert result.exit_code == 0
    assert "jobs:             3\n" in result.stdout
    assert "submitted over:   2h 00m" in result.stdout
    assert "offered GPUs:     2.0 busy on average" in result.stdout
    assert "2 models: bert 2, (none) 1" in result.stdout
    assert "66.7%" in result.stdout
    assert [line.split()[:4] for line in result.stdout.splitlines()[-2:]] == [
        ["a", "0", "3,600", "2"],
        ["b", "7,200", "7,200", "1"],
    ]


def test_show_names_skipped_rows_on_standard_error(own: Path) -> None:
    own.write_text(OWN + "".join(f"{i},oops,1,x{i},,\n" for i in range(7)))
    with pytest.raises(TraceError, match="duration_s is 'oops'"):
        run("show", own)
    result = run("show", own, "--skip-bad-rows")
    assert "bad rows skipped: 7" in result.stdout
    assert f"skipped: {own}:5, column 'duration_s': duration_s is 'oops'" in result.stderr
    assert "skipped: 2 more" in result.stderr
    assert "skipped:" not in result.stdout.replace("bad rows skipped:", "")


def test_show_jobs_that_all_come_at_once(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text("submit_s,duration_s,gpus\n5,0,1\n5,0,4\n")
    assert "no average, as all jobs come at once" in run("show", file).stdout
    shown = json.loads(run("show", file, "--json").stdout)
    assert (shown["mean_offered_gpus"], shown["gpus"]["4"]["gpu_time_share"]) == (None, 0)


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".parquet"])
def test_convert_and_read_back(own: Path, tmp_path: Path, suffix: str) -> None:
    output = tmp_path / f"out{suffix}"
    result = run("convert", own, "--output", output)
    assert (result.exit_code, result.stdout) == (0, "")
    assert "wrote 3 jobs" in result.stderr
    assert read_trace(output).workload.job_ids == ("a", "b", "c")


def test_convert_through_pipes() -> None:
    result = run("convert", "-", "-o", "-", stdin="job_id,submission_time,duration,num_gpu\nj,1,2,3\n")
    assert result.stdout == "job_id,submit_s,duration_s,gpus\nj,1.0,2.0,3\n"


def test_an_output_is_not_overwritten_unless_forced(own: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.csv"
    output.write_text("mine")
    for args in (("convert", own), ("generate", "--jobs", 2, "--gpus", 2)):
        with pytest.raises(InputError, match="exists already; --overwrite replaces it"):
            run(*args, "-o", output)
        assert output.read_text() == "mine"
    run("convert", own, "-o", output, "--overwrite")
    assert len(read_trace(output).workload) == 3
    with pytest.raises(InputError, match=r"must end with \.csv"):
        run("convert", own, "-o", tmp_path / "out.txt")


def test_generate(tmp_path: Path) -> None:
    args = ("--jobs", 50, "--gpus", 16, "--mean", "1h", "--gpu-mix", "1=1,2=3", "--models", "a=1", "--users", 0)
    result = run("generate", *args, "-o", "-")
    assert "note: generated with seed 0" in result.stderr
    assert result.stdout == run("generate", *args, "-o", "-").stdout
    output = tmp_path / "t.csv"
    run("generate", *args, "-o", output)
    assert output.read_text() == result.stdout
    w = read_trace(output).workload
    assert (len(w), set(w.gpus.tolist()), w.model.names, w.user) == (50, {1, 2}, ("a",), None)


def test_generated_speeds_are_read_back(tmp_path: Path) -> None:
    file = tmp_path / "mixed.csv"
    run("generate", "--jobs", 50, "--gpus", 8, "--gpu-models", "V100, K80", "-o", file)
    speeds = read_trace(str(file)).workload.speeds
    assert speeds.models == ("V100", "K80")
    assert (speeds.factor[:, 0] == 1).all()
    assert (speeds.factor[:, 1] < 1).all()


def test_generate_with_the_durations_of_a_trace(own: Path) -> None:
    result = run("generate", "--jobs", 30, "--gpus", 8, "--duration", own, "-o", "-")
    durations = {line.split(",")[1] for line in result.stdout.splitlines()[1:]}
    assert durations == {"3600.0", "7200.0", "0.001"}


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        (("--gpu-mix", "1:2"), "write shares such as a=0.7,b=0.3"),
        (("--gpu-mix", "x=2"), "'x' is not a GPU count"),
        (("--gpu-mix", "1=1,1=2"), "write shares"),
        (("--models", "bert"), "--models is 'bert'"),
        (("--load", "-1"), "load is -1"),
        (("--arrival", "never"), "arrival is 'never'"),
        (("--duration", "nowhere.csv"), "duration is 'nowhere.csv', must be one of lognormal"),
        (("--mean", "soon"), "'soon' is not a duration"),
    ],
)
def test_generate_refuses(args: tuple[str, ...], reason: str) -> None:
    with pytest.raises(InputError) as caught:
        run("generate", "--jobs", 2, "--gpus", 2, "-o", "-", *args)
    assert reason in str(caught.value)


def test_formats() -> None:
    listed = json.loads(run("formats", "--json").stdout)
    assert {"gpuloom", "muri", "philly", "itp", "gavel"} <= {row["id"] for row in listed}
    assert all(row["title"] and row["help"] for row in listed)
    text = run("formats").stdout
    assert all(row["id"] in text and row["title"] in text for row in listed)


@pytest.mark.parametrize("command", ["show", "convert", "generate", "formats"])
def test_every_help_has_an_example(command: str) -> None:
    result = CliRunner().invoke(cli, ["trace", command, "--help"])
    assert result.exit_code == 0
    assert f"gpuloom trace {command}" in result.output.split("Example", 1)[1]


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from click.testing import CliRunner; from gpuloom.cli.main import cli\n"
        "assert CliRunner().invoke(cli, ['trace', 'show', '--help']).exit_code == 0\n"
        "heavy = {'numpy', 'pyarrow', 'pandas', 'rich', 'yaml', 'gpuloom.traces'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_exit_codes(own: Path, tmp_path: Path) -> None:
    def code(*args: object) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-c", "from gpuloom.cli.main import main; main()", "trace", *map(str, args)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert "Traceback" not in done.stderr
        return done.returncode, done.stderr

    assert code("show", own)[0] == 0
    assert code("show", tmp_path / "nowhere")[0] == 2
    status, message = code("show", own, "--format", "philly")
    assert status == 2
    assert "lacks columns timestamp, duration, num_gpus" in message
    assert code("generate", "--jobs", "x")[0] == 2


def test_show_tells_sizes_speeds_and_memory(tmp_path: Path, own: Path) -> None:
    file = tmp_path / "more.csv"
    file.write_text(
        "submit_s,duration_s,gpus,min_gpus,max_gpus,scaling,speed:V100,speed:K80,gpu_memory_mib\n"
        "0,10,2,1,4,1:1/2:1.9/4:3,1,0.5,1000\n1,10,1,,,,1,,\n2,10,2,2,8,2:1/8:2,1,0,3000\n"
    )
    shown = json.loads(run("show", file, "--json").stdout)
    assert shown["elastic"] == {"jobs": 2, "min_gpus": 1, "max_gpus": 8}
    k80 = shown["speeds"]["K80"]
    assert shown["speeds"]["V100"] == {"min": 1, "median": 1, "max": 1, "does_not_fit": 0, "estimated": 0}
    assert (k80["max"], k80["does_not_fit"], k80["estimated"]) == (0.5, 1, 1)
    assert 0 < k80["min"] < 0.5  # the empty cell, from the facts of both models
    assert shown["gpu_memory_mib"] == {"jobs": 2, "min": 1000, "median": 2000, "max": 3000}
    assert {"speeds", "scaling", "gpu_memory_mib"} <= set(shown["columns"])
    text = run("show", file).stdout
    assert "elastic:          2 jobs, 1 to 8 GPUs" in text
    assert "memory per GPU:   1,000 to 3,000 MiB" in text
    assert [line.split()[-2:] for line in text.splitlines() if line.startswith("K80")] == [["1", "1"]]
    plainly = json.loads(run("show", own, "--json").stdout)
    assert (plainly["elastic"], plainly["speeds"], plainly["gpu_memory_mib"]) == (None, None, None)


def test_generated_curves_end_at_the_largest_size(tmp_path: Path) -> None:
    file = tmp_path / "elastic.csv"
    words = ["generate", "--jobs", 60, "--gpus", 64, "--gpu-mix", "1=0.5,16=0.5", "-o", file]
    assert run(*words, "--elastic", "1-8").exit_code == 0
    with file.open() as lines:
        for row in csv.DictReader(lines):
            sizes = [int(point.partition(":")[0]) for point in row["scaling"].split("/")]
            assert max(sizes) == int(row["max_gpus"]) == max(8, int(row["gpus"]))
    read = read_trace(file).workload.scaling
    assert read is not None
    assert {len(curve) - 1 for curve in read.curves} == {8, 16}
