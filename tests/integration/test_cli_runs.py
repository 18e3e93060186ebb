"""`gpuloom simulate`, `compare`, `policies` and `demo` as a user runs them: streams, files, exit codes, Ctrl-C."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from builders import REQUIRED
from real_scheduler import alive
from until import until

pytestmark = pytest.mark.slow

RUN = [sys.executable, "-c", "from gpuloom.cli.main import main; main()"]
ROWS = [(0, 3600, 2, "a"), (60, 600, 1, "b"), (120, 1200, 8, "c"), (130, 60, 1, "d"), (4000, 900, 4, "e")]


def gpuloom(
    *args: object, stdin: str | bytes | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    data = stdin.encode() if isinstance(stdin, str) else stdin
    done = subprocess.run([*RUN, *map(str, args)], input=data, capture_output=True, timeout=120, cwd=cwd)
    assert b"Traceback" not in done.stderr, done.stderr.decode()
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


def write(path: Path, rows: list[tuple[Any, ...]] = ROWS) -> Path:
    path.write_text("submit_s,duration_s,gpus,job_id\n" + "".join(",".join(map(str, row)) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("traces") / "five.csv")


@pytest.fixture(scope="module")
def long_trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Under fifo with backfill and gittins this takes far longer than a test may."""
    path = tmp_path_factory.mktemp("traces") / "long.csv"
    rows = [(i // 4, 1000 + 37 * i % 9000, 1 + i % 8, f"j{i}") for i in range(50_000)]
    return write(path, rows)


# -- what is printed -----------------------------------------------------------------------------------------


def test_simulate_prints_one_table(trace: Path) -> None:
    done = gpuloom("simulate", trace, "--cluster", "1x8", "--policy", "srtf")
    assert done.returncode == 0
    assert "srtf" in done.stdout
    assert "avg JCT" in done.stdout
    assert done.stderr == ""


def test_simulate_as_json_prints_one_object_and_nothing_else(trace: Path) -> None:
    done = gpuloom("simulate", trace, "--cluster", "1x8", "--json", "-", "--seed", 5)
    result = json.loads(done.stdout)
    assert done.returncode == 0
    assert set(result) >= REQUIRED
    assert (result["policy"], result["jobs"], result["gpus"], result["settings"]["seed"]) == ("srtf", 5, 8, 5)
    assert done.stderr == ""


def test_compare_as_json_prints_a_list_in_the_order_asked_for(trace: Path) -> None:
    done = gpuloom("compare", trace, "--cluster", "1x8", "--policies", "srtf, fifo:backfill=easy,srsf", "--json", "-")
    results = json.loads(done.stdout)
    assert [result["policy"] for result in results] == ["srtf", "fifo:backfill=easy", "srsf"]
    assert all(set(result) >= REQUIRED for result in results)


def test_compare_with_one_policy_is_a_list_still(trace: Path) -> None:
    done = gpuloom("compare", trace, "--cluster", "1x8", "--policies", "srtf", "--json", "-")
    assert isinstance(json.loads(done.stdout), list)


def test_the_same_policy_twice_is_run_twice_or_refused_but_never_mixed_up(trace: Path) -> None:
    done = gpuloom("compare", trace, "--cluster", "1x8", "--policies", "fifo,fifo", "--json", "-")
    assert done.returncode == 2 or len(json.loads(done.stdout)) == 2


def test_csv_has_a_row_per_policy_and_jobs_csv_one_per_job(trace: Path) -> None:
    table = gpuloom("compare", trace, "--cluster", "1x8", "--policies", "fifo,srtf", "--csv", "-")
    rows = list(csv.DictReader(io.StringIO(table.stdout)))
    assert [row["policy"] for row in rows] == ["fifo", "srtf"]
    assert set(rows[0]) >= REQUIRED
    each = gpuloom("compare", trace, "--cluster", "1x8", "--policies", "fifo,srtf", "--jobs-csv", "-")
    rows = list(csv.DictReader(io.StringIO(each.stdout)))
    assert [(row["policy"], row["job_id"]) for row in rows] == [(p, j) for p in ("fifo", "srtf") for j in "abcde"]
    for row in rows:
        assert float(row["jct_s"]) == pytest.approx(float(row["end_s"]) - float(row["submit_s"]))


def test_files_are_written_and_named(trace: Path, tmp_path: Path) -> None:
    files = {f"--{kind}": tmp_path / f"out.{end}" for kind, end in
             (("json", "json"), ("csv", "csv"), ("jobs-csv", "jobs"), ("html", "html"), ("plot", "png"))}  # fmt: skip
    args = [x for flag, path in files.items() for x in (flag, path)]
    done = gpuloom("compare", trace, "--cluster", "1x8", "--policies", "fifo,srtf", *args)
    assert done.returncode == 0
    assert "fifo" in done.stdout
    for path in files.values():
        assert path.stat().st_size > 0
        assert f"wrote {path}" in done.stderr
    assert len(json.loads(files["--json"].read_text())) == 2
    assert files["--plot"].read_bytes().startswith(b"\x89PNG")
    page = files["--html"].read_text()
    assert page.lstrip().lower().startswith("<!doctype html")
    assert 'src="http' not in page
    assert 'href="http' not in page
    assert sorted(tmp_path.iterdir()) == sorted(files.values()), "nothing else is left"


def test_quiet_says_nothing_on_standard_error(trace: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.json"
    done = gpuloom("simulate", trace, "--cluster", "1x8", "--json", target, "-q")
    assert done.stderr == ""
    assert target.exists()


def test_packed_traces_and_standard_input_are_read(trace: Path, tmp_path: Path) -> None:
    plain = json.loads(gpuloom("simulate", trace, "--cluster", "1x8", "--json", "-").stdout)
    packed = tmp_path / "five.csv.gz"
    packed.write_bytes(gzip.compress(trace.read_bytes()))
    from_gz = json.loads(gpuloom("simulate", packed, "--cluster", "1x8", "--json", "-").stdout)
    from_in = json.loads(gpuloom("simulate", "-", "--cluster", "1x8", "--json", "-", stdin=trace.read_bytes()).stdout)
    for key in REQUIRED - {"wall_s", "trace"}:
        assert from_gz[key] == plain[key] == from_in[key], key


def test_two_processes_give_the_same_numbers_as_one(trace: Path) -> None:
    args = ("compare", trace, "--cluster", "2x4", "--policies", "fifo,srtf,tiresias,antman", "--seed", 3, "--json", "-")
    one, two = (json.loads(gpuloom(*args, "--jobs", n).stdout) for n in (1, 2))
    for result in (*one, *two):
        result.pop("wall_s")
    assert one == two


def test_the_same_seed_gives_the_same_jobs(trace: Path) -> None:
    args = ("simulate", trace, "--cluster", "1x8", "--mtbf", "1h", "--seed", 4, "--jobs-csv", "-")
    assert gpuloom(*args).stdout == gpuloom(*args).stdout


def test_options_change_the_numbers(trace: Path) -> None:
    def run(*args: object) -> dict[str, Any]:
        return json.loads(gpuloom("simulate", trace, "--cluster", "1x8", "--json", "-", *args).stdout)

    base = run("--restart-overhead", "0")
    assert run("--restart-overhead", "5m")["avg_jct_s"] >= base["avg_jct_s"] + 300
    rounds = run("--restart-overhead", "0", "--schedule", "rounds", "--interval", "30m")
    assert rounds["avg_jct_s"] > base["avg_jct_s"]
    assert rounds["settings"] | {"interval_s": 1800.0, "schedule": "rounds"} == rounds["settings"]
    assert run()["settings"]["restart_overhead_s"] is None
    assert run("--compat", "muri")["settings"]["compat"] == "muri"


# -- what is wrong -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("--cluster", "8by8"), "'8by8'"),
        (("--cluster", "nothing.yaml"), "nothing.yaml"),
        (("--cluster", "1x8", "--policy", "tiresas"), "did you mean 'tiresias'"),
        (("--cluster", "1x8", "--policy", "srtf:foo=1"), "has no parameter 'foo'"),
        (("--cluster", "1x8", "--policy", "tiresias:thresholds=9/3"), "must rise"),
        (("--cluster", "1x8", "--interval", "soon"), "is not a duration"),
        (("--cluster", "1x8", "--interval", "-5"), "is not a duration"),
        (("--cluster", "1x8", "--schedule", "rounds", "--interval", "0"), "rounds needs an interval"),
        (("--cluster", "1x8", "--compat", "other"), "muri"),
        (("--cluster", "1x8", "--seed", "-1"), "seed"),
        (("--cluster", "1x4"), "job c asks for 8 GPUs"),
        (("--cluster", "1x8", "--json", "-", "--csv", "-"), "only one of"),
        (("--cluster", "1x8", "--plot", "out.gif"), ".png"),
        (("--cluster", "1x8", "--html", "/nowhere/at/all.html"), "/nowhere/at"),
        (("--cluster", "1x8", "--mtbf", "0"), "mean time between failures"),
        (("--cluster", "1x8", "--format", "helioz"), "helios"),
        ((), "--cluster"),
        (("--cluster", "1x8", "--polcy", "srtf"), "--policy"),
    ],
)
def test_bad_usage_is_exit_code_2_with_words_on_standard_error(
    args: tuple[str, ...], says: str, trace: Path, tmp_path: Path
) -> None:
    done = gpuloom("simulate", trace, *args, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("flag", ["--json", "--csv", "--jobs-csv", "--html", "--plot"])
def test_an_output_that_can_not_be_written_is_found_before_the_work(flag: str, trace: Path, tmp_path: Path) -> None:
    target = tmp_path / "missing" / "out.png"
    done = gpuloom("simulate", trace, "--cluster", "1x8", flag, target)
    assert done.returncode == 2
    assert str(target) in done.stderr
    assert done.stdout == "", "nothing was simulated"


def test_an_output_that_is_a_folder_is_refused(trace: Path, tmp_path: Path) -> None:
    done = gpuloom("simulate", trace, "--cluster", "1x8", "--json", tmp_path)
    assert done.returncode == 2
    assert str(tmp_path) in done.stderr


def test_a_full_disk_is_exit_code_1_and_names_the_file(trace: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    done = gpuloom("simulate", trace, "--cluster", "1x8", "--json", "/dev/full")
    assert done.returncode == 1
    assert "/dev/full" in done.stderr


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_standard_output_that_is_full_is_exit_code_1(
    trace: Path, unbuffered: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*RUN, "simulate", str(trace), "--cluster", "1x8"], stdout=full, stderr=subprocess.PIPE, timeout=60
        )
    assert done.returncode == 1
    assert b"No space left" in done.stderr
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize("name", ["nothing.csv", "."])
def test_a_trace_that_is_not_there_is_exit_code_2(name: str, tmp_path: Path) -> None:
    done = gpuloom("simulate", name, "--cluster", "1x8", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("gpuloom: ")


def test_an_empty_list_of_policies_is_refused(trace: Path) -> None:
    assert gpuloom("compare", trace, "--cluster", "1x8", "--policies", " , ").returncode == 2


def test_one_bad_policy_in_a_list_is_found_before_the_work(trace: Path) -> None:
    done = gpuloom("compare", trace, "--cluster", "1x8", "--policies", "srtf,sjff")
    assert (done.returncode, done.stdout) == (2, "")
    assert "did you mean 'sjf'" in done.stderr


def test_impossible_jobs_can_be_left_out_and_are_counted(trace: Path) -> None:
    done = gpuloom("simulate", trace, "--cluster", "1x4", "--skip-impossible", "--json", "-")
    assert done.returncode == 0
    assert json.loads(done.stdout)["jobs"] == 4
    assert "1 job that can never be placed was left out" in done.stderr
    assert "job c asks for 8" in done.stderr


def test_when_no_job_is_left_that_is_said(trace: Path, tmp_path: Path) -> None:
    large = write(tmp_path / "large.csv", [(0, 1, 99, "a")])
    done = gpuloom("simulate", large, "--cluster", "1x4", "--skip-impossible")
    assert done.returncode == 2
    assert "its one job can't be placed on 1x4" in done.stderr


def test_a_bad_row_is_named_and_can_be_passed_over(tmp_path: Path) -> None:
    file = write(tmp_path / "bad.csv", [*ROWS[:2], (5, "soon", 1, "x"), *ROWS[2:]])
    done = gpuloom("simulate", file, "--cluster", "1x8", "--json", "-")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{file}:4" in done.stderr
    assert "duration_s" in done.stderr
    assert "soon" in done.stderr
    skipped = gpuloom("simulate", file, "--cluster", "1x8", "--json", "-", "--skip-bad-rows")
    assert skipped.returncode == 0
    assert json.loads(skipped.stdout)["jobs"] == 5
    assert f"skipped: {file}:4" in skipped.stderr


def test_messages_with_strange_names_are_whole(tmp_path: Path) -> None:
    name = tmp_path / "Träce [red]☃ 100%.csv"
    done = gpuloom("simulate", write(name), "--cluster", "1x8")
    assert done.returncode == 0
    assert "[red]☃" in done.stdout, "names are not mark-up"


# -- other commands ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command", [[], ["simulate"], ["compare"], ["policies"], ["demo"], ["trace"], ["trace", "show"],
                ["trace", "convert"], ["trace", "generate"]],
    ids=" ".join,
)  # fmt: skip
def test_help_works_everywhere(command: list[str]) -> None:
    done = gpuloom(*command, "--help")
    assert done.returncode == 0
    assert done.stdout.startswith("Usage: ")
    assert done.stderr == ""


def test_help_names_the_exit_codes_and_every_command() -> None:
    text = gpuloom("--help").stdout
    assert "Exit codes: 0 ok, 1 the work failed, 2 bad usage or input." in text
    for command in ("simulate", "compare", "trace", "policies", "demo"):
        assert f"  {command} " in text


def test_version_and_unknown_commands() -> None:
    assert gpuloom("--version").stdout.startswith("gpuloom, version ")
    unknown = gpuloom("simulat")
    assert unknown.returncode == 2
    assert "simulat" in unknown.stderr


def test_gpuloom_alone_shows_its_help() -> None:
    done = gpuloom()
    assert "Usage:" in done.stdout + done.stderr


def test_policies_lists_all_and_shows_one() -> None:
    listed = json.loads(gpuloom("policies", "--json").stdout)
    assert [row["id"] for row in listed][:4] == ["fifo", "sjf", "srtf", "srsf"]
    assert len(listed) >= 9
    table = gpuloom("policies").stdout
    for row in listed:
        assert row["id"] in table
    one = json.loads(gpuloom("policies", "tiresias", "--json").stdout)
    first = one["parameters"][0]
    assert (first["name"], first["default"]) == ("thresholds", "3250/7200")
    assert first["help"].startswith("limits of the queues in GPU-seconds")
    assert "thresholds = 3250/7200" in gpuloom("policies", "tiresias").stdout
    assert gpuloom("policies", "tiresas").returncode == 2


def test_the_simulated_demo_compares_and_writes_its_page(tmp_path: Path) -> None:
    env = {**os.environ, "GPULOOM_DATA": str(tmp_path / "none")}
    done = subprocess.run(
        [*RUN, "demo", "--simulate", "--jobs", "60"], capture_output=True, text=True, cwd=tmp_path, env=env, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "tiresias" in done.stdout
    assert (tmp_path / "out" / "demo.html").stat().st_size > 1000
    assert f"report: file://{tmp_path}/out/demo.html" in done.stdout


def test_the_command_line_imports_no_numpy() -> None:
    code = "import sys, gpuloom.cli.main; print(sorted({'numpy', 'rich', 'yaml', 'matplotlib'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]"


# -- interrupts and closed pipes -----------------------------------------------------------------------------


def children(pid: int) -> set[int]:
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid and fields[0] != "Z":
            found.add(int(stat.parent.name))
    return found


def cpu_s(pids: set[int]) -> float:
    """CPU time that these processes have used."""
    used = 0
    for pid in pids:
        with suppress(OSError):
            used += sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]))
    return used / os.sysconf("SC_CLK_TCK")


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[str]]]:
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes by /proc")
@pytest.mark.parametrize(("processes", "background"), [(1, False), (2, True)])
def test_an_interrupt_prints_what_is_done_and_leaves_no_process(
    processes: int, background: bool, long_trace: Path, started: list[subprocess.Popen[str]], tmp_path: Path
) -> None:
    """The signal goes to the program alone, as from `kill -INT`; a terminal would send it to the workers as well.

    background: as under nohup, where Ctrl-C is ignored and `kill` is the way to end it.
    """
    out = tmp_path / "out.json"
    process = subprocess.Popen(
        [*RUN, "compare", str(long_trace), "--cluster", "8x8", "--policies", "srtf,gittins,fifo:backfill=easy,themis",
         "--jobs", str(processes), "--json", str(out)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=(lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)) if background else None,
    )  # fmt: skip
    started.append(process)
    seen: set[int] = set()
    while process.poll() is None and (len(seen) < 2 * (processes > 1) or cpu_s({process.pid, *seen}) < 2.0):
        time.sleep(0.05)
        seen |= children(process.pid)
    assert process.poll() is None, "still at work"
    process.send_signal(signal.SIGTERM if background else signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "interrupted" in stderr
    assert "Traceback" not in stderr
    assert "srtf" in stdout
    results = json.loads(out.read_text())
    assert results
    assert any(result["interrupted"] for result in results)
    # Who has ended and is nobody's child any more stays in /proc until the machine's first process looks.
    until(lambda: not [pid for pid in seen if alive(pid)], "the end of its workers", 15.0)


def test_a_reader_that_goes_away_is_met_with_silence(trace: Path) -> None:
    script = (
        f"'{RUN[0]}' -c '{RUN[2]}' compare '{trace}' --cluster 1x8 --quiet --jobs-csv - 2>err | head -n 1; "
        "echo ${PIPESTATUS[0]}; cat err"
    )
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60, cwd=trace.parent)
    lines = done.stdout.splitlines()
    assert lines[0].startswith("policy,job_id")
    assert lines[1] in {"0", "1", "141"}
    assert lines[2:] == []
    assert done.stderr == ""


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_is_gone_before_the_first_word_is_met_with_silence(
    trace: Path, unbuffered: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    read, write_end = os.pipe()
    os.close(read)
    done = subprocess.run(
        [*RUN, "simulate", str(trace), "--cluster", "1x8"], stdout=write_end, stderr=subprocess.PIPE, timeout=60
    )
    os.close(write_end)
    assert done.stderr == b""
    assert done.returncode in {1, 141}


def test_parts_of_gpus_are_said_to_be_given_whole(tmp_path: Path) -> None:
    trace = tmp_path / "parts.csv"
    trace.write_text("submit_s,duration_s,gpus,gpu_milli\n0,10,1,500\n0,10,1,1000\n0,10,1,250\n")
    done = gpuloom("simulate", trace, "--cluster", "1x4")
    assert done.returncode == 0
    assert "2 jobs ask for a part of a GPU; each is given a whole one" in done.stderr
