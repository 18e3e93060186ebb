"""Stage times from samples of use: what is used most at a moment counts."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from gpuloom.cli.main import cli
from gpuloom.core.errors import InputError
from gpuloom.core.profile import STAGES_4
from gpuloom.facts.profiles import load_profiles
from gpuloom.facts.usage_stages import read_usage, stages_of

PEAKS = {"storage": 200.0, "cpu": 8.0, "gpu": 100.0, "network": 1250.0}


def written(folder: Path, text: str) -> Path:
    path = folder / "samples.csv"
    path.write_text(text)
    return path


def refusal(*words: str) -> str:
    """What the command says of wrong input."""
    done = CliRunner().invoke(cli, ["profiles", "from-usage", *words])
    assert isinstance(done.exception, InputError) or done.exit_code == 2
    return f"{done.output}{done.exception}"


def sampled(folder: Path, stages_ms: dict[str, int], iterations: int) -> Path:
    """A sample each millisecond of a program whose stages follow each other; others are used a little meanwhile."""
    rows = ["time_s,storage,cpu,gpu,network"]
    now = 0
    for _ in range(iterations):
        for name, long in stages_ms.items():
            for _ in range(long):
                used = [PEAKS[other] * (0.9 if other == name else 0.05) for other in STAGES_4]
                rows.append(",".join([f"{now / 1000:.3f}", *map(str, used)]))
                now += 1
    return written(folder, "\n".join(rows) + "\n")


@given(st.lists(st.integers(0, 30), min_size=4, max_size=4).filter(any), st.integers(1, 5))
def test_known_stage_times_are_found(long: list[int], iterations: int) -> None:
    if sum(long) * iterations < 2:
        long[0] += 2
    with tempfile.TemporaryDirectory() as folder:
        usage = read_usage(sampled(Path(folder), dict(zip(STAGES_4, long, strict=True)), iterations))
    found = stages_of(usage, iterations=iterations, peaks=PEAKS)
    assert found.stage_s == pytest.approx([ms / 1000 for ms in long], abs=1e-9)
    assert found.iteration_s == pytest.approx(sum(long) / 1000, abs=1e-9)
    assert found.idle_s == pytest.approx(0.0, abs=1e-12)
    by_time = stages_of(usage, iteration_s=sum(long) / 1000, peaks=PEAKS)
    assert by_time.stage_s == pytest.approx(found.stage_s, abs=1e-9)


def test_the_most_used_counts_relative_to_its_peak(tmp_path: Path) -> None:
    path = written(tmp_path, "time_s,cpu,network\n0,4,100\n1,1,1000\n3,0.5,100\n4,8,0\n")
    found = stages_of(read_usage(path), iterations=2)
    # peaks 8 and 1000: half of the CPU, all of the network, both below a fifth, all of the CPU for the usual second.
    assert found.stage_s == (0.0, 1.0, 0.0, 1.5)
    assert (found.peaks, found.iteration_s, found.samples) == ({"cpu": 8.0, "network": 1000.0}, 2.5, 4)
    idle = stages_of(read_usage(path), iterations=2, threshold=0.2)
    assert (idle.stage_s, idle.idle_s) == ((0.0, 1.0, 0.0, 1.0), 0.5)
    told = stages_of(read_usage(path), iterations=2, peaks={"network": 100.0})
    assert told.stage_s == (0.0, 0.5, 0.0, 2.0)
    assert found.doubt is not None
    assert found.doubt.startswith("2 samples per iteration")
    assert stages_of(read_usage(path), iterations=1).doubt is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("time_s,gpu\n", "holds no samples"),
        ("time_s,gpu\n0,1\n", "holds one sample, needs two or more"),
        ("time_s,disk\n0,1\n1,1\n", "needs a column of a resource: storage, cpu, gpu, network"),
        ("time_s,gpu\n0,1\n2,1\n2,3\n", "samples.csv:4: time_s 2 comes after 2, times must rise"),
        ("time_s,gpu\n0,1\n1,-3\n", "samples.csv:3, column"),
        ("time_s,gpu\n0,1\nx,3\n", "samples.csv:3, column"),
    ],
)
def test_samples_that_can_not_be(tmp_path: Path, text: str, said: str) -> None:
    path = written(tmp_path, text)
    assert said in refusal(str(path), "m", "--gpus", "1", "--iterations", "1")


def test_what_must_be_said(tmp_path: Path) -> None:
    usage = read_usage(written(tmp_path, "time_s,gpu\n0,0\n1,0\n"))
    with pytest.raises(InputError, match="one of the two"):
        stages_of(usage)
    with pytest.raises(InputError, match="one of the two"):
        stages_of(usage, iterations=1, iteration_s=1.0)
    with pytest.raises(InputError, match=r"peak of cpu: .* no such column; there are gpu"):
        stages_of(usage, iterations=1, peaks={"cpu": 1.0})
    with pytest.raises(InputError, match="must be above 0"):
        stages_of(usage, iterations=1, peaks={"gpu": 0.0})
    with pytest.raises(InputError, match=r"nothing was used above 0\.1 of its peak"):
        stages_of(usage, iterations=1)


def test_the_command_keeps_a_profile_that_others_find(tmp_path: Path) -> None:
    path = sampled(tmp_path, {"storage": 5, "cpu": 10, "gpu": 20, "network": 5}, 3)
    library = tmp_path / "mine.csv"
    words = ["profiles", "from-usage", str(path), "net", "--gpus", "2", "--iterations", "3", "--library", str(library)]
    peaks = [word for name, most in PEAKS.items() for word in ("--peak", f"{name}={most}")]
    dry = CliRunner().invoke(cli, [*words, *peaks, "--dry-run", "--json"])
    said = json.loads(dry.stdout)
    assert said["stage_s"] == pytest.approx({"storage": 0.005, "cpu": 0.01, "gpu": 0.02, "network": 0.005})
    assert (said["kept"], said["idle_s"], library.exists()) == (False, 0.0, False)
    assert CliRunner().invoke(cli, [*words, *peaks]).exit_code == 0
    ((profile, own),) = load_profiles(library).of("net")
    assert (profile.gpus, own) == (2, True)
    assert profile.stage_s == pytest.approx((0.005, 0.01, 0.02, 0.005))
    assert profile.source == "120 usage samples of samples.csv, threshold 0.1"
    assert "--overwrite" in refusal(*words[2:], *peaks)
    assert CliRunner().invoke(cli, [*words, *peaks, "--overwrite"]).exit_code == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "give --iterations"),
        (["--iterations", "1", "--iteration", "1s"], "give --iterations"),
        (["--iterations", "1", "--peak", "disk=3"], "--peak disk=3: must be RESOURCE=NUMBER"),
        (["--iterations", "1", "--peak", "gpu"], "--peak gpu: must be RESOURCE=NUMBER"),
        (["--iterations", "0"], "--iterations"),
        (["--iteration", "soon"], "--iteration: "),
    ],
)
def test_options_that_can_not_be(tmp_path: Path, words: list[str], said: str) -> None:
    path = written(tmp_path, "time_s,gpu\n0,1\n1,1\n")
    assert said in refusal(str(path), "m", "--gpus", "1", *words)


def test_a_file_that_is_not_there() -> None:
    assert "usage samples no.csv: no such file" in refusal("no.csv", "m", "--gpus", "1", "--iterations", "1")
