"""#SBATCH lines of scripts, as options of `gpuloom submit`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gpuloom.cli.main import cli
from gpuloom.cli.sbatch import sbatch_of
from gpuloom.core.errors import InputError


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def submit(*words: str) -> Result:
    return CliRunner().invoke(cli, ["submit", "--dry-run", *words])


def asked(line: str) -> tuple[list[str], list[str]]:
    Path("s").write_text(f"#!/bin/sh\n#SBATCH {line}\n")
    found = sbatch_of("s")
    return found.instead(()), found.unlike


SCRIPT = (
    "#!/bin/sh\n# what it does\n#SBATCH --gres=gpu:a100:2 -t 1-12\n#SBATCH --job-name=resnet --partition=big\n\n"
    "#SBATCH -c4 --mem 16G -N 1 --array=0-9%3 -o out-%A_%a.txt -e err.txt --requeue --signal=B:TERM@90\n"
    "echo hi\n#SBATCH --time=1\n"
)


def test_a_script_is_submitted_as_its_lines_say(here: Path) -> None:
    (here / "job.sbatch").write_text(SCRIPT)
    done = submit("job.sbatch")
    assert done.exit_code == 0, done.output
    words = "-g 2 --gpu-type A100 --time-limit 36h --name resnet --cpus 4 --memory 16GiB --array 0-9%3 --grace 90s"
    assert done.stderr.splitlines() == [
        f"note: job.sbatch: its #SBATCH lines are read as {words}",
        "note: job.sbatch: not followed of its #SBATCH lines: --partition, --output, --error (gpuloom logs shows what "
        "the job prints)",
        f"note: job.sbatch is a program: it runs as /bin/sh {here}/job.sbatch",
    ]
    found = json.loads(done.stdout)
    del found["env"]
    assert found == {
        "command": ["/bin/sh", str(here / "job.sbatch")],
        "gpus": 2,
        "gpu_types": ["A100"],
        "time_limit": 36 * 3600.0,
        "name": "resnet",
        "cpus": 4.0,
        "memory": 16384,
        "array": "0-9%3",
        "grace": 90.0,
        "workdir": str(here),
    }


def test_the_command_line_goes_before_the_script(here: Path) -> None:
    (here / "job.sh").write_text(SCRIPT)
    done = submit("-g", "4", "job.sh", "--name", "mine", "--time-limit", "1h", "--array", "1-2")
    found = json.loads(done.stdout)
    assert [found[name] for name in ("gpus", "name", "time_limit", "array", "cpus")] == [4, "mine", 3600.0, "1-2", 4.0]
    assert "read as --gpu-type A100 --cpus 4 --memory 16GiB --grace 90s\n" in done.stderr


def test_lines_that_say_nothing_new_and_values_that_are_wrong(here: Path) -> None:
    (here / "job.sh").write_text("#!/bin/sh\n#SBATCH --requeue -N 1\n")
    assert "SBATCH" not in submit("job.sh").stderr
    (here / "job.sh").write_text("#!/bin/sh\n#SBATCH --array=9-x\n")
    wrong = submit("job.sh")
    assert "read as --array 9-x" in wrong.stderr
    with pytest.raises(InputError, match=r"array is '9-x': must be indices: 0-9, 0-99:10 or 1,5,7"):
        raise wrong.exception or AssertionError(wrong.output)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--time=90", "--time-limit 90m"),
        ("--time=0:30", "--time-limit 30s"),
        ("-t 2:00:00", "--time-limit 2h"),
        ("-t1-0:30", "--time-limit 1470m"),
        ("-t 2-0", "--time-limit 2d"),
        ("--time=0", ""),
        ("--time=UNLIMITED", ""),
        ("--gpus=4", "-g 4"),
        ("-G v100:4", "-g 4 --gpu-type V100"),
        ("--gres=gpu", "-g 1"),
        ("--gres=gpu:3(S:0-1)", "-g 3"),
        ("--gres=nvme:1,gpu:a100", "-g 1 --gpu-type A100"),
        ("--gres=gpu:h100:8", "-g 8 --gpu-type H100"),
        ("--gres=gres/gpu=2", "-g 2"),
        ("--gpus-per-task=2 -n 1", "-g 2"),
        ("--mem=4096", "--memory 4096MiB"),
        ("--mem=0", ""),
        ("--mem-per-gpu=8G -G 4", "--memory 32GiB -g 4"),
        ("--mem-per-cpu=2G -c 8", "--memory 16GiB --cpus 8"),
        ("--mem-per-cpu=2G", "--memory 2GiB"),
        ("--cpus-per-gpu=8 --gres=gpu:2", "--cpus 16 -g 2"),
        ("-H", "--hold"),
        ("--export=NONE", "--export none"),
        ("--export=ALL", ""),
        ("-d afterok:12:13,afterany:14", "--after 12,13 --after-any 14"),
        ("--dependency=afterok:1,afterok:2", "--after 1,2"),
        ("--signal=TERM", "--grace 60s"),
        ("--signal=SIGTERM@5", "--grace 5s"),
        ("-D /data", "--workdir /data"),
        ("--requeue --parsable", ""),
        ("--nodes=1-1 --ntasks=1", ""),
        ("--gpus=2 --gpus=3", "-g 3"),
    ],
)
def test_what_an_option_becomes(line: str, words: str) -> None:
    assert asked(line) == (words.split(), [])


@pytest.mark.parametrize(
    ("line", "words", "unlike"),
    [
        ("-N 2 --gpus-per-node=4", "-g 8", []),
        ("-N 2-4 --gres=gpu:a100:4", "-g 8 --gpu-type A100", []),
        ("-N 2 --ntasks-per-node=4 --gpus-per-task=1 -c 3", "-g 8 --cpus 24", ["ntasks-per-node"]),
        ("-n 4 --gpus-per-task=2", "-g 8", ["ntasks"]),
        ("-N 2 -G 8", "-g 8", []),
        ("-N 2", "", ["nodes"]),
        ("--nodes=many -G 8", "-g 8", ["nodes"]),
        ("--gres=nvme:1", "", ["gres"]),
        ("--gres=nvme:1 --gpus=2", "-g 2", ["gres"]),
        ("--gpus=0", "", ["gpus"]),
        ("--gpus=a100:2,v100:1", "", ["gpus"]),
        ("--mem=lots", "", ["mem"]),
        ("--mem-per-gpu=8G", "", ["mem-per-gpu"]),
        ("--cpus-per-gpu=4", "", ["cpus-per-gpu"]),
        ("-c four", "", ["cpus-per-task"]),
        ("--time=soon", "", ["time"]),
        ("-d singleton", "", ["dependency"]),
        ("-d afterok:1?afterok:2", "", ["dependency"]),
        ("-d afternotok:1", "", ["dependency"]),
        ("--signal=USR1@60", "", ["signal"]),
        ("--signal=TERM@0", "", ["signal"]),
        ("--export=ALL,A=1", "", ["export"]),
        ("--exclusive -p gpu", "", ["exclusive", "partition"]),
        ("--exclusive=user", "", ["exclusive"]),
        ("--job-name=", "", ["job-name"]),
        ("--nonsense", "", ["nonsense"]),
        ("-Z", "", ["Z"]),
        ("'open", "", []),
        ("word", "", []),
        ("--", "", []),
    ],
)
def test_what_is_not_followed(line: str, words: str, unlike: list[str]) -> None:
    assert asked(line) == (words.split(), unlike)


def test_counts_of_nodes_and_tasks_are_multiplied() -> None:
    assert asked("--nodes=2 --gpus-per-node=4") == (["-g", "8"], [])
    assert asked("-N 2-4 --gres=gpu:v100:2") == (["-g", "4", "--gpu-type", "V100"], [])
    line = "--nodes=2 --ntasks-per-node=3 --gpus-per-task=1 --cpus-per-task=2"
    assert asked(line) == (["-g", "6", "--cpus", "12"], ["ntasks-per-node"])
    assert asked("--ntasks=3 --gpus-per-task=2 --cpus-per-gpu=4") == (["-g", "6", "--cpus", "24"], ["ntasks"])
    assert asked("--nodes=2") == ([], ["nodes"])
