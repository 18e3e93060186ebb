"""What commands refuse to write, what they say when something fails, and what they do with a bug."""

from __future__ import annotations

import io
import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from builders import jobs
from gpuloom.cli.main import cli
from gpuloom.core.errors import ClusterError, InputError, PolicyError
from gpuloom.core.snapshot import Snapshot
from gpuloom.facts.inputs import load_cluster, load_policy
from gpuloom.policies.fifo import Fifo
from gpuloom.report import comparison_table
from gpuloom.sim import simulate
from tiers import slow

RUN = [sys.executable, "-c", "from gpuloom.cli.main import main; main()"]
ROWS = "submit_s,duration_s,gpus,job_id\n0,100,1,a\n5,50,2,b\n"


def main(*args: object, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*RUN, *map(str, args)], capture_output=True, text=True, timeout=120, env={**os.environ, **(env or {})}
    )


def run(*args: object) -> Result:
    return CliRunner().invoke(cli, [str(arg) for arg in args], catch_exceptions=False)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "jobs.csv"
    path.write_text(ROWS)
    return path


# -- inputs are kept ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("option", ["--json", "--csv", "--jobs-csv", "--html", "--save-memory"])
@pytest.mark.parametrize("how", ["same", "link", "hard", "round about"])
def test_no_output_replaces_the_trace(trace: Path, option: str, how: str) -> None:
    target = trace.with_name("other")
    if how == "same":
        target = trace
    elif how == "link":
        target.symlink_to(trace)
    elif how == "hard":
        os.link(trace, target)
    else:
        target = trace.parent / ".." / trace.parent.name / trace.name
    with pytest.raises(InputError, match=r"is an input \(.*jobs.csv\) and would be overwritten"):
        run("simulate", trace, "--cluster", "1x2", "--policy", "rl", option, target, "-q")
    assert trace.read_text() == ROWS


def test_nor_the_other_files_that_are_read(tmp_path: Path, trace: Path) -> None:
    cluster = tmp_path / "lab.yaml"
    cluster.write_text("nodes: [{gpus: 2}]\n")
    config = tmp_path / "thresholds.yaml"
    config.write_text("proportion: 0.2\n")
    tables = tmp_path / "tables"
    tables.mkdir()
    (tables / "bert.csv").write_text("global_batch_size,1,2\n8,1,1.9\n")
    throughputs = tmp_path / "rates.json"
    throughputs.write_text("{}")
    samples = tmp_path / "samples.csv"
    samples.write_text("100\n200\n")
    plotted = tmp_path / "trace.png"
    shutil.copy(trace, plotted)
    words: list[tuple[list[object], Path]] = [
        ([trace, "--cluster", cluster, "--json"], cluster),
        ([trace, "--cluster", "1x2", "--policy", "elastic", "--elastic-config", config, "--csv"], config),
        ([trace, "--cluster", "1x2", "--elastic", "1-2", "--scaling-profiles", tables, "--csv"], tables / "bert.csv"),
        ([trace, "--cluster", "1x2", "--throughputs", throughputs, "--html"], throughputs),
        ([trace, "--cluster", "1x2", "--policy", f"gittins:samples={samples}", "--jobs-csv"], samples),
        ([plotted, "--cluster", "1x2", "--plot"], plotted),
    ]
    for given, target in words:
        before = target.read_bytes()
        with pytest.raises(InputError, match="is an input"):
            run("simulate", *given, target, "-q")
        assert target.read_bytes() == before
    assert main("simulate", trace, "--cluster", cluster, "--json", cluster).returncode == 2


def test_a_file_of_an_input_folder_is_kept_and_others_in_it_are_replaced(tmp_path: Path, trace: Path) -> None:
    with pytest.raises(InputError, match="is an input"):
        run("simulate", tmp_path, "--cluster", "1x2", "--csv", trace, "-q")
    assert trace.read_text() == ROWS
    target = tmp_path / "result.json"
    for _ in range(2):
        assert run("simulate", tmp_path, "--cluster", "1x2", "--json", target, "-q").exit_code == 0
    assert json.loads(target.read_text())["jobs"] == 2


def test_other_commands_keep_their_inputs(tmp_path: Path, trace: Path) -> None:
    for words in (["pollux", trace, "--json", trace], ["weave", trace, "--json", trace]):
        with pytest.raises(InputError, match="is an input"):
            run(*words)
    assert trace.read_text() == ROWS


def test_what_is_learnt_goes_on_in_its_own_file_or_to_standard_output(tmp_path: Path, trace: Path) -> None:
    words = ["simulate", trace, "--cluster", "1x2", "-q", "--policy"]
    shown = run(*words, "rl", "--save-memory", "-").stdout
    learnt = json.loads(shown)
    assert learnt["format"] == "gpuloom-learnt-placement-1"
    state = tmp_path / "state.json"
    state.write_text(shown)
    assert run(*words, f"rl:state={state}", "--save-memory", state).exit_code == 0
    assert json.loads(state.read_text())["submitted"] == 2 * learnt["submitted"] > 0
    assert not Path("-").exists()
    with pytest.raises(InputError, match="only one of --json, --csv, --jobs-csv and --save-memory"):
        run(*words, "rl", "--save-memory", "-", "--json", "-")
    with pytest.raises(InputError, match="is an input"):
        run(*words, f"rl:state={state}", "--json", state)


# -- messages ----------------------------------------------------------------------------------------------------------


def test_files_of_policies_are_named_once_and_what_is_expected(tmp_path: Path, trace: Path) -> None:
    missing = tmp_path / "nope"
    for policy in (f"rl:state={missing}", f"elastic:config={missing}", f"gittins:samples={missing}"):
        with pytest.raises(PolicyError, match="no such file") as error:
            load_policy(policy)
        assert str(error.value).count("nope") == 1
    with pytest.raises(PolicyError, match=r"state=.*jobs.csv: is not JSON \(.*expected: file of a learnt table"):
        load_policy(f"rl:state={trace}")
    wrong = tmp_path / "wrong.json"
    wrong.write_text("[]")
    with pytest.raises(PolicyError, match=r'"format".*; expected: file of a learnt table'):
        load_policy(f"rl:state={wrong}")


def test_yaml_that_is_empty_or_says_a_thing_twice(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("# nothing\n")
    with pytest.raises(PolicyError, match="is empty; write keys and values, at top level or all below 'elastic:'"):
        load_policy(f"elastic:config={config}")
    config.write_text("elastic:\n  proportion: 0.1\n  proportion: 0.2\n")
    with pytest.raises(PolicyError, match="line 3, column 3: key 'proportion' is given twice"):
        load_policy(f"elastic:config={config}")
    config.write_text("defaults: &d {gpus: 2}\nnodes:\n  - gpus: 4\n    gpus: 8\n")
    with pytest.raises(ClusterError, match="line 4, column 5: key 'gpus' is given twice"):
        load_cluster(str(config))
    config.write_text("nodes:\n  - &one {gpus: 2}\n  - {<<: *one, gpus: 4}\n")
    with pytest.raises(ClusterError, match=r"line 3, column 10: aliases \(\*name\) are not supported"):
        load_cluster(str(config))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("option", ["--json", *slow("--csv", "--jobs-csv", "--html"), "--save-memory"])
def test_write_errors_name_the_file(trace: Path, option: str) -> None:
    done = main("simulate", trace, "--cluster", "1x2", "--policy", "rl", option, "/dev/full", "-q")
    assert (done.returncode, done.stderr) == (1, "gpuloom: /dev/full: No space left on device\n")


def test_a_bug_is_reported_without_a_traceback(trace: Path) -> None:
    code = (
        "import sys, gpuloom.sim.runner\n"
        "def broken(*a, **k): raise ValueError('odd')\n"
        "gpuloom.sim.runner.run_all = broken\n"
        "sys.argv = ['gpuloom', 'simulate', sys.argv[1], '--cluster', '1x2']\n"
        "from gpuloom.cli.main import main; main()\n"
    )
    for debug in ("", "1"):
        words = [sys.executable, "-c", code, str(trace)]
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=120, env={**os.environ, "GPULOOM_DEBUG": debug}
        )
        assert done.returncode == 1
        assert "gpuloom: internal error, please report: ValueError: odd" in done.stderr
        assert ("Traceback" in done.stderr) == (debug == "1")


def test_a_run_cut_short_before_any_end_has_no_makespan(monkeypatch: pytest.MonkeyPatch) -> None:
    decide = Fifo.decide

    def cut(self: Fifo, snapshot: Snapshot, memory: Any) -> Any:
        if snapshot.now_s > 0:
            raise KeyboardInterrupt
        return decide(self, snapshot, memory)

    monkeypatch.setattr(Fifo, "decide", cut)
    result = simulate(jobs([(0, 100, 1), (10, 100, 1)]), "1x1", "fifo")
    assert result.interrupted
    assert math.isnan(result.makespan_s)
    assert result.to_dict()["makespan_s"] is None
    shown = io.StringIO()
    Console(file=shown, width=200).print(comparison_table([result]))
    row = next(line for line in shown.getvalue().splitlines() if line.startswith("fifo"))
    assert row.split()[1:5] == ["-", "-", "-", "-"]
