"""What a user gets wrong on mixed clusters: one line that says what, where and what would be right; exit code 2."""

from __future__ import annotations

import io
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuloom.cli.main import main

MIXED = "job_id,submit_s,duration_s,gpus,model,weight,speed:V100,speed:K80\n"
PAIRS = "model_a,model_b,gpu_model,gpus,speed_a,speed_b\n"
POLLUX = "name,time,application,num_replicas,batch_size\n"
ROW = "ResNet-18 (batch size 16)\tpython3 main.py --dir=%s\tdata\t--steps\t1\t1000\t1\t1\t-1.0\t0.0\n"
FILES = {
    "mixed.csv": MIXED + "a,0,1000,1,vgg16,1,1,0.3\nb,10,2000,1,a2c,5,1,0.5\n",
    "gavel.trace": ROW,
    "empty": "",
    "broken.json": '{"v100": ',
    "list.json": "[1, 2]",
    "nothing.json": "{}",
    "jobs.json": '{"v100": [1, 2]}',
    "key.json": '{"v100": {"a": {"null": 3}}}',
    "text.json": '{"v100": {"(\'a\', 1)": {"null": "x"}}}',
    "negative.json": '{"v100": {"(\'a\', 1)": {"null": -3}}}',
    "nan.json": '{"v100": {"(\'a\', 1)": {"null": NaN}}}',
    "pair.json": '{"v100": {"(\'a\', 1)": {"null": 3, "(\'a\', 1)": [-1, 2]}}}',
    "alone.json": '{"v100": {"(\'a\', 1)": {"null": 3}}}',
    "twice.csv": "submit_s,duration_s,gpus,speed:V100,speed:v100\n0,10,1,1,1\n",
    "curve.csv": "submit_s,duration_s,gpus,min_gpus,max_gpus,scaling\n0,10,1,1,2,1:1/1:2\n",
    "pollux.csv": POLLUX + "a,0,bert,1,24\n",
    "same.csv": POLLUX + "a,0,bert,1,24\nb,1,bert,1,24\na,2,bert,1,24\n",
    "costs.csv": "application,seconds\nbert,5\nncf,x\n",
    "folder/x": "",
}
M = "mixed.csv --cluster 1x4:V100,1x4:K80"
G = "gavel.trace --cluster 1x4:V100,1x4:K80"
NO_RATES = "is not a throughput file of Gavel or Shockwave: "


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    for name, text in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    with tarfile.open(folder / "many.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
        for n in range(20):
            tar.addfile(tarfile.TarInfo(f"w/{n:02}.csv"), io.BytesIO())
    return folder


WRONG = [
    # Measured pairs.
    (f"simulate {M} --pair-speeds none.csv", "pairs file none.csv: no such file"),
    (f"simulate {M} --pair-speeds folder", "pairs file folder: is a folder, must be a CSV file or Gavel's JSON"),
    (f"simulate {M} --pair-speeds broken.json", f"broken.json: {NO_RATES}Expecting value: line 1 column 10"),
    (f"simulate {M} --pair-speeds nan.json", f"nan.json: {NO_RATES}NaN is not a number in JSON"),
    (f"simulate {M} --pair-speeds alone.json", "alone.json: holds no pairs, only speeds alone"),
    (
        f"simulate {M} --pair-speeds pair.json",
        f"pair.json: {NO_RATES}('a', 1) beside ('a', 1) on V100: [-1, 2] must be a list of two numbers of at least 0",
    ),
    # Throughputs.
    (f"simulate {M} --throughputs none", "throughputs none: no such file or folder"),
    (f"simulate {G} --throughputs folder", "throughputs folder: is a folder, must be the JSON of Gavel or Shockwave"),
    (f"simulate {G} --throughputs empty", f"empty: {NO_RATES}Expecting value: line 1 column 1"),
    (f"simulate {G} --throughputs list.json", f"list.json: {NO_RATES}it must be JSON as {{"),
    (f"simulate {G} --throughputs nothing.json", f"nothing.json: {NO_RATES}it must be JSON as {{"),
    (f"simulate {G} --throughputs jobs.json", f"jobs.json: {NO_RATES}GPU model v100: [1, 2] must be an object"),
    (f"simulate {G} --throughputs key.json", f"key.json: {NO_RATES}'a' is not of the form ('job type', GPUs)"),
    (
        f"simulate {G} --throughputs text.json",
        f"text.json: {NO_RATES}('a', 1) on v100: 'null', its steps per second alone, must be a number of at least 0",
    ),
    (f"simulate {G} --throughputs negative.json", "'null', its steps per second alone, must be a number of at least 0"),
    (f"simulate {G} --throughputs alone.json --gpu-model H9", "no throughputs for GPU model 'H9'; it has V100"),
    # Columns.
    ("simulate twice.csv --cluster 1x4:V100", "the header has speed:V100 and speed:v100, one GPU model"),
    ("simulate curve.csv --cluster 1x4", "curve.csv:2, column 'scaling': 1 GPU is given twice"),
    # Policies.
    (
        f"simulate {M} --policy gavel:objective=foo",
        "policy 'gavel': objective='foo': must be one of max_min_fairness, water_filling, finish_time_fairness, "
        "makespan, max_sum_throughput, cost, allox",
    ),
    (f"simulate {M} --policy gavel:prices=x", "prices='x': must be price, or numbers as in V100:2/K80:1"),
    # Pollux' and Sia's simulations.
    ("pollux empty", "empty: is not a Pollux workload: the header lacks name, time, application"),
    ("pollux same.csv", "same.csv:4, column 'name': 'a' was used before, on line 2"),
    ("pollux pollux.csv --cluster 1x4:aws,1x4", "cluster 1x4:aws,1x4: every part needs a GPU model of its own"),
    ("pollux pollux.csv --restart-times none.csv", "--restart-times none.csv: no such file; give a number for all"),
    ("pollux pollux.csv --restart-times -1", "--restart-times -1: must be a number from 0 to 86,400"),
    ("pollux pollux.csv --restart-times bert=1,bert=2", "--restart-times bert=1,bert=2: bert is given twice"),
    ("pollux pollux.csv --restart-times costs.csv", "--restart-times costs.csv:3: 'ncf=x' must be an application and"),
    ("pollux pollux.csv --restart-times empty", "--restart-times empty: holds no application and number"),
    ("pollux pollux.csv --slowdowns bert=0", "--slowdowns bert=0: 'bert=0' must be an application and a number from"),
]


Ran = Callable[[str], tuple[Any, list[str], list[str]]]


@pytest.fixture
def run(inputs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ran:
    """Runs a command beside the inputs: its exit code, what it printed, what it said, by lines."""
    monkeypatch.chdir(inputs)
    monkeypatch.setattr("gpuloom.cli.main.signal.signal", lambda number, handler: None)

    def ran(words: str) -> tuple[Any, list[str], list[str]]:
        monkeypatch.setattr(sys, "argv", ["gpuloom", *words.split()])
        with pytest.raises(SystemExit) as caught:
            main()
        captured = capsys.readouterr()
        return caught.value.code, captured.out.splitlines(), captured.err.splitlines()

    return ran


@pytest.mark.parametrize(("words", "wanted"), WRONG, ids=[words for words, _ in WRONG])
def test_one_line_says_what_is_wrong(words: str, wanted: str, run: Ran) -> None:
    code, _, told = run(words)
    (line,) = (line for line in told if not line.startswith("note: "))
    assert code == 2
    assert wanted in line
    assert line.startswith("gpuloom: ")
    assert line.count(wanted[-60:]) == 1, "it is said once"


def test_a_large_archive_names_some_of_its_files(run: Ran) -> None:
    _, _, told = run("simulate many.tar --cluster 1x4")
    assert told[0] == "gpuloom: many.tar: is an archive: name one of its files"
    assert told[1:] == [*(f"  many.tar::w/{n:02}.csv" for n in range(8)), "  and 12 more"]
    _, _, (line,) = run("simulate many.tar::x --cluster 1x4")
    assert line.endswith("holds no file 'x'; it has " + ", ".join(f"w/{n:02}.csv" for n in range(8)) + ", and 12 more")


def test_a_model_that_nobody_knows_is_named_once(run: Ran) -> None:
    code, out, told = run("simulate mixed.csv --cluster 1x4:V100,1x4:H9")
    wanted = "note: nothing is known of GPU model H9: jobs count as fast there as where their durations were measured"
    assert code == 0
    assert [line.partition(";")[0] for line in told if line.startswith("note: ")] == [wanted]
    assert sum("GPU model H9" in line for line in out) == 1


def test_policies_that_ignore_weights_are_named_as_they_were_asked_for(run: Ran) -> None:
    _, _, told = run(f"compare {M} --policies gavel,gavel:objective=makespan,allox")
    assert "note: gavel:objective=makespan, allox ignore the weights of jobs" in told


def test_a_window_of_one_job(run: Ran) -> None:
    _, out, _ = run(f"simulate {M} --window 1-2")
    assert "note: average, median and p99 JCT are of job 1, counted from 0" in out
