"""`gpuloom weave` and `gpuloom profiles` as a user runs them: exit codes, streams, two processes at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

RUN = [sys.executable, "-c", "from gpuloom.cli.main import main; main()"]
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "weave" / "jobs.csv"


def gpuloom(*args: object, home: Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [*RUN, *map(str, args)],
        input=stdin,
        capture_output=True,
        encoding="utf-8",
        timeout=120,
        env=os.environ | {"GPULOOM_HOME": str(home), "PYTHONIOENCODING": "utf-8"},
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def test_the_example_as_a_table_and_as_a_picture(home: Path, tmp_path: Path) -> None:
    plot = tmp_path / "woven.png"
    done = gpuloom("weave", EXAMPLE, "--plot", plot, home=home)
    assert done.returncode == 0, done.stderr
    for name in ("caption", "chat", "play", "photos", "segment", "search"):
        assert name in done.stdout
    assert "model: measured, ordering best" in done.stdout
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_json_prints_nothing_else(home: Path) -> None:
    done = gpuloom("weave", EXAMPLE, "--json", home=home)
    found = json.loads(done.stdout)
    assert done.stderr == ""
    assert found["jobs"] == 12
    assert sum(len(group["jobs"]) * group["groups_alike"] for group in found["groups"]) == 12
    # No group is slower than its jobs one after another.
    assert all(group["normalised_throughput"] >= 1 - 1e-9 for group in found["groups"])


def test_exact_groups_are_never_worse_than_those_of_rounds(home: Path) -> None:
    value = {}
    for method in ("exact", "multiround", "greedy"):
        found = json.loads(gpuloom("weave", EXAMPLE, "--method", method, "--json", home=home).stdout)
        assert found["jobs_in_groups"] == 12
        value[method] = {
            solver["gpus"]: solver["value"]
            for solver in found["solvers"]
            if solver["groups"] <= solver["groups_wanted"]
        }
    assert value["exact"].keys() == {1, 4}
    for method in ("multiround", "greedy"):
        for gpus, worth in value[method].items():
            assert value["exact"][gpus] >= worth * (1 - 1e-9)


def test_a_library_feeds_weave(home: Path) -> None:
    done = gpuloom("profiles", "add", "net", "--gpus", 1, "--iteration", "1s", "--stages", "0.8,0.1,0.1", home=home)
    assert (done.returncode, done.stdout) == (0, "")
    done = gpuloom("weave", home / "profiles.csv", "--group-size", 1, home=home)
    assert done.returncode == 0
    assert "net" in done.stdout


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("weave", "nowhere.csv"), "gpuloom: nowhere.csv: no such file"),
        (("weave", "/"), "is a folder, must be a CSV file"),
        (("weave", "-"), "gpuloom: <stdin>: is empty"),
        (("weave", EXAMPLE, "--group-size", "5"), "5 is not in the range 1<=x<=4"),
        (("weave", EXAMPLE, "--plot", "x.gif"), "ends in .png, .svg or .pdf"),
        (("profiles", "show", "Bert"), "did you mean 'bert'?"),
        (("profiles", "remove", "bert"), "shipped ones can't be removed"),
        (("profiles", "import", "nowhere.csv"), "nowhere.csv: no such file"),
        (("profiles", "list", "--library", "nowhere.csv"), "nowhere.csv: no such profile library"),
        (("profiles", "add", "x", "--gpus", 1, "--iteration", 0, "--stages", "1,1,1"), "its iteration time is 0 s"),
        (
            ("profiles", "add", "x", "--gpus", 1, "--iteration", 1, "--stages", "1,1,1", "--library", "/dev/full"),
            "is not a file, must be a profile library",
        ),
    ],
)
def test_mistakes_exit_with_2(args: tuple[object, ...], says: str, home: Path) -> None:
    done = gpuloom(*args, home=home)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr


def test_two_adds_at_once(home: Path) -> None:
    env = os.environ | {"GPULOOM_HOME": str(home)}
    words = ["--iteration", "1", "--stages", "1,0,0"]
    adds = [
        subprocess.Popen([*RUN, "profiles", "add", f"net{n}", "--gpus", "1", *words], env=env, stderr=subprocess.PIPE)
        for n in range(4)
    ]
    for add in adds:
        add.communicate(timeout=60)
    assert [add.returncode for add in adds] == [0] * 4
    rows = json.loads(gpuloom("profiles", "list", "--json", home=home).stdout)
    assert [row["model"] for row in rows if row["own"]] == ["net0", "net1", "net2", "net3"]
