"""bench/league.py and bench/grid.py: results are kept, runs that take too long are ended, tables say what was run."""

from __future__ import annotations

import importlib
import json
import math
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from gpuloom.policies.registry import BUILT_IN

ROOT = Path(__file__).resolve().parents[2]
TRACE = "job_id,submission_time,duration,num_gpu\n"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    monkeypatch.setattr(sys, "path", [*sys.path])  # the modules add to it
    monkeypatch.setenv("GPULOOM_HOME", os.environ["GPULOOM_HOME"])  # the command sets it


@pytest.fixture
def grid(bench: None) -> ModuleType:
    return importlib.import_module("grid")


@pytest.fixture
def league(bench: None, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    found = importlib.import_module("league")
    found.load.cache_clear()
    found.stamp.cache_clear()
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # of the command, not of the tests
    return found


@pytest.fixture
def folder(league: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder with two small traces, and a league of these and of one that is missing."""
    data = tmp_path / "data"
    (data / "itp").mkdir(parents=True)
    for name, jobs in (("a", 30), ("b", 20)):
        rows = "".join(f"{name}{i},{i * 60},{600 + 37 * (i * i % 11)},{1 + i % 4}\n" for i in range(jobs))
        (data / "itp" / f"{name}.csv").write_text(TRACE + rows, encoding="utf-8")
    found = [league.Contest("itp", name, f"itp/{name}.csv", "1x4") for name in ("a", "b")]
    found.append(league.Contest("muri", "gone", "muri/gone.csv", "1x4"))
    monkeypatch.setattr(league, "contests", lambda: found)
    return data


def run(league: ModuleType, folder: Path, *options: str) -> int:
    store = folder.parent / "out" / "league.json"
    code: int = league.main(["--data", str(folder), "--store", str(store), "--jobs", "2", *options])
    return code


def test_only_what_changed_runs_again(
    league: ModuleType, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("--only-policies", "srsf,tiresias", "--json")
    assert run(league, folder, *options) == 0
    first = capsys.readouterr()
    assert "4 of 4 runs to do" in first.err
    assert "left out: muri/gone" in first.err
    runs = json.loads(first.out)["runs"]
    assert {(r["trace"], r["policy"]) for r in runs} == {(f"itp/{t}", p) for t in "ab" for p in ("srsf", "tiresias")}
    assert all(r["status"] == "ok" and r["avg_jct_s"] > 600 for r in runs)
    assert [r["avg_jct_ratio"] for r in runs if not r["knows_durations"]] == [1.0, 1.0]

    assert run(league, folder, *options) == 0
    again = capsys.readouterr()
    assert "0 of 4 runs to do" in again.err
    assert again.out == first.out

    trace = folder / "itp" / "b.csv"  # another job's duration
    trace.write_text(trace.read_text(encoding="utf-8").replace(",600,", ",6000,", 1), encoding="utf-8")
    league.load.cache_clear()
    league.stamp.cache_clear()
    assert run(league, folder, *options) == 0
    assert "2 of 4 runs to do" in capsys.readouterr().err

    code_of = league.code_of
    monkeypatch.setattr(league, "code_of", lambda p, *a: "new" if p == "srsf" else code_of(p, *a))
    assert run(league, folder, *options) == 0
    assert "2 of 4 runs to do" in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_that_takes_too_long_is_ended_and_remembered(
    league: ModuleType, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = league.measured

    def slow(workload: Any, cluster: Any, policy: str) -> Any:
        while policy == "srsf" and len(workload) == 30:
            math.factorial(2000)
        return measured(workload, cluster, policy)

    monkeypatch.setattr(league, "measured", slow)
    options = ("--only-policies", "fifo,srsf", "--json", "--time-limit")
    assert run(league, folder, *options, "1") == 0
    told = capsys.readouterr()
    assert "itp/a on 1x4 under srsf: more than 1 s" in told.err
    status = {(r["trace"], r["policy"]): r["status"] for r in json.loads(told.out)["runs"]}
    assert status == {
        ("itp/a", "fifo"): "ok",
        ("itp/a", "srsf"): "over the time limit",
        ("itp/b", "fifo"): "ok",
        ("itp/b", "srsf"): "ok",
    }
    assert run(league, folder, *options, "1") == 0
    assert "0 of 4 runs to do" in capsys.readouterr().err
    monkeypatch.setattr(league, "measured", measured)
    assert run(league, folder, *options, "2") == 0  # with more time it is tried again
    assert "1 of 4 runs to do" in capsys.readouterr().err


def test_a_run_that_fails_or_dies_is_told_and_stops_nothing(
    league: ModuleType, folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = league.measured

    def bad(workload: Any, cluster: Any, policy: str) -> Any:
        if policy == "fifo":
            raise ZeroDivisionError("a bug")
        if policy == "srsf" and len(workload) == 20:
            os.kill(os.getpid(), signal.SIGKILL)
        return measured(workload, cluster, policy)

    monkeypatch.setattr(league, "measured", bad)
    assert run(league, folder, "--only-policies", "fifo,srsf,tiresias") == 1
    told = capfd.readouterr()
    assert "failed: itp/a on 1x4 under fifo: ZeroDivisionError: a bug" in told.err
    assert "failed: itp/b on 1x4 under srsf: the process ended with exit code -9" in told.err
    lines = [line.split() for line in told.out.splitlines()]
    header = next(line for line in lines if line[:1] == ["trace"])
    assert header == ["trace", "best,", "h", "fifo", "tiresias", "srsf"]
    b = next(line for line in lines if line[:1] == ["itp/b"])
    assert (b[2], b[3], b[4]) == ("failed", "1.00*", "failed")


def test_two_commands_at_once_lose_nothing(league: ModuleType, folder: Path) -> None:
    store = folder.parent / "league.json"
    a, b, _ = league.contests()
    both = [league.League(folder, store, 60.0) for _ in range(2)]
    for one, contest in zip(both, (a, b), strict=True):
        one.find(league.Match(contest, "fifo"))
        one.run(1)
    later = league.League(folder, store, 60.0)
    assert all(later.find(league.Match(contest, "fifo")).avg_jct_s > 600 for contest in (a, b))


def row(league: ModuleType, name: str, family: str, values: dict[str, tuple[float, float, float]]) -> Any:
    figures = {
        policy: league.Figures(avg_jct_s=avg, p99_jct_s=tail, cpu_s=cpu) for policy, (avg, tail, cpu) in values.items()
    }
    short = {policy: "> 9 s" for policy, (avg, _, _) in values.items() if math.isnan(avg)}
    return league.Row(name, family, "1x4", 10, 4, 0.9, figures, short)


def test_the_page_by_hand_made_figures(league: ModuleType) -> None:
    nan = math.nan
    rows = [
        row(league, "x/1", "x", {"srsf": (1800, 9, 2), "tiresias": (7200, 4, 1), "weave": (3600, 8, 4)}),
        row(league, "x/2", "x", {"srsf": (nan, nan, nan), "tiresias": (3600, 4, 1), "weave": (7200, 2, 9)}),
        row(league, "y/1", "y", {"srsf": (3600, 3, 2), "tiresias": (3600, 4, 2), "weave": (3601, 4, 2)}),
    ]
    text = league.Writer(rows, ["srsf", "tiresias", "weave"], "weave", 9.0).page()
    assert "| x/1 | 10 | 1x4 | 0.90 | 1.00 | 2.00 | **1.00** |" in text
    assert "| x/1 | 1.00 | 0.50 |" in text  # srsf, which is told durations, beside the best that is not
    assert "| x/2 | 1.00 | > 9 s |" in text
    assert "| x | 2 | 1.41 | 1.41 | 0.50 (1) |" in text
    assert "| all | 3 | 1.26 | 1.26 | 0.71 (2) |" in text
    assert "| `tiresias` | 3 | 1 | 1 | 1 | 1.00 | 1 | 1 | 1.00 |" in text
    assert "| `srsf` (told) | 2 | 0 | 1 | 1 | 1.41 | 1 | 1 | 1.09 |" in text
    assert (
        "The p99 JCT of `weave` is worse than `srsf`'s on 1 of 2 traces and worse than `tiresias`'s on 1 of 3" in text
    )
    assert "| `weave` | 3.30 | 9.0 (x/2) | 9.0 (x/2) | 15.0 | 0 |" in text
    assert "| `srsf` | 1.41 | 2.0 (x/1) | 2.0 (x/1) | 4.0 | 1 |" in text


def test_text_outside_the_marks_stays(league: ModuleType) -> None:
    page = "# Policies\n\nBy hand.\n"
    once = league.with_section(page, "table 1\n")
    assert once == f"{page}\n## League table\n\n{league.BEGIN}\ntable 1\n{league.END}\n"
    edited = once.replace("## League table\n", "## League table\n\nSaid by hand.\n") + "\nAfter.\n"
    twice = league.with_section(edited, "table 2\n")
    assert twice == edited.replace("table 1", "table 2")
    with pytest.raises(SystemExit, match="must hold"):
        league.with_section(page + league.END, "table")


def test_the_page_is_written_only_when_all_was_run(league: ModuleType, folder: Path, tmp_path: Path) -> None:
    page = tmp_path / "policies.md"
    page.write_text("# Policies\n", encoding="utf-8")
    league_page, league.PAGE = league.PAGE, page
    try:
        assert run(league, folder, "--only-policies", "fifo,tiresias") == 0
        assert page.read_text(encoding="utf-8") == "# Policies\n"
        assert run(league, folder, "--only-policies", "fifo,tiresias", "--out", str(page)) == 0
    finally:
        league.PAGE = league_page
    text = page.read_text(encoding="utf-8")
    assert text.startswith("# Policies\n\n## League table\n")
    assert "| itp/a | 30 | 1x4 |" in text


def test_unknown_names_are_refused(league: ModuleType, folder: Path) -> None:
    with pytest.raises(SystemExit, match="no trace answers to 'itp/z'"):
        run(league, folder, "--only-traces", "itp/z")
    with pytest.raises(SystemExit, match="no such policy: sfrt"):
        run(league, folder, "--only-policies", "sfrt")
    with pytest.raises(SystemExit, match="2"):
        run(league, folder, "--only-traces", "muri")


def test_the_contests_are_told_apart_and_of_known_families(league: ModuleType) -> None:
    names = [str(contest) for contest in league.contests()]
    assert len(names) == len({*names}) >= 40
    for contest in league.contests():
        assert contest.family in league.FAMILIES
        assert contest.gpus >= 16


def test_names_and_lines_of_a_trace_change_no_stamp(league: ModuleType, folder: Path) -> None:
    a, b, _ = league.contests()
    before = league.stamp(a, folder)
    assert before != league.stamp(b, folder)
    league.load.cache_clear()
    league.stamp.cache_clear()
    path = folder / "itp" / "a.csv"
    path.write_text(path.read_text(encoding="utf-8").replace("\n", "\n\n"), encoding="utf-8")
    assert league.stamp(a, folder) == before


def test_load_is_work_over_capacity(league: ModuleType, folder: Path) -> None:
    workload = league.load(league.contests()[0], folder)
    work = float(np.dot(workload.duration_s, workload.gpus))
    assert league.load_of(workload, 4) == pytest.approx(work / (29 * 60 * 4))
    one = workload.take(np.array([0]))
    assert math.isinf(league.load_of(one, 4))


# -- the hash of the code ---------------------------------------------------------------------------------------------


@pytest.fixture
def package(grid: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the package that the hashes look at, whose files may be changed."""
    root = tmp_path / "gpuloom"
    for path in grid.PACKAGE.rglob("*"):
        if path.is_file() and path.suffix in {".py", ".csv"}:
            copy = root / path.relative_to(grid.PACKAGE)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())
    monkeypatch.setattr(grid, "PACKAGE", root)
    yield root
    forget(grid)


def forget(grid: ModuleType) -> None:
    for cached in (grid.code_of, grid._hash, grid._imports):
        cached.cache_clear()


CHANGES: dict[str, set[str]] = {
    "core/state.py": {*BUILT_IN},
    "sim/simulator.py": {*BUILT_IN},
    "data/profiles.csv": {*BUILT_IN},
    "policies/base.py": {*BUILT_IN},
    "policies/registry.py": set(),
    "report/__init__.py": set(),
    "traces/itp.py": set(),
    "cli/main.py": set(),
    "policies/srsf.py": {"srsf"},
    "policies/muri.py": {"muri-s", "muri-l"},
}


@pytest.mark.slow
def test_a_change_reaches_the_policies_that_use_the_file(grid: ModuleType, package: Path) -> None:
    def hashes() -> dict[str, str]:
        grid.code_of.cache_clear()
        grid._hash.cache_clear()
        return {policy: grid.code_of(policy, ("gpuloom.sim.simulator",), ("gpuloom.traces",)) for policy in BUILT_IN}

    forget(grid)
    before = hashes()
    for file, changed in CHANGES.items():
        path = package / file
        content = path.read_bytes()
        path.write_bytes(content + b"\n# changed\n")
        after = hashes()
        assert {policy for policy in BUILT_IN if before[policy] != after[policy]} == changed, file
        path.write_bytes(content)


def test_a_policy_that_asks_another_depends_on_it(grid: ModuleType, package: Path) -> None:
    bases = [grid._modules_of(f"elastic:base={base}") for base in ("srtf", "tiresias")]
    assert bases == [
        ("gpuloom.policies.elastic", "gpuloom.policies.srtf"),
        ("gpuloom.policies.elastic", "gpuloom.policies.tiresias"),
    ]
    forget(grid)
    assert grid.code_of("elastic:base=srtf") != grid.code_of("elastic:base=tiresias")


@pytest.mark.slow
def test_shared_modules_of_policies_are_followed(grid: ModuleType, package: Path) -> None:
    forget(grid)
    before = {policy: grid.code_of(policy) for policy in ("muri-s", "muri-xl", "srtf")}
    shared = package / "policies" / "valued.py"
    shared.write_bytes(shared.read_bytes() + b"\n# changed\n")
    forget(grid)
    after = {policy: grid.code_of(policy) for policy in before}
    assert [policy for policy in before if before[policy] != after[policy]] == ["muri-xl"]
