"""A command once per GPU: real processes with torchrun's variables, ends, signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpuloom.executors import direct

WHERE = ("--processes", "3", "--first", "2", "--world", "7", "--node", "1", "--nodes", "3", "--run", "12.1-ab")
OWN = {"PATH": os.environ["PATH"], "GPULOOM_GRACE_S": "20"}


HEAD = "import os, signal, sys, time\nsay = lambda text: os.write(1, f'{text}\\n'.encode())\n"
# In short naps: a signal between Python's last look and the call that sleeps would wake nobody.
HEAD += "def rest():\n    while True: time.sleep(0.05)\n"
"""`say`: a line in one piece, however many write at once."""


def started(code: str, *, env: dict[str, str] | None = None, where: tuple[str, ...] = WHERE) -> subprocess.Popen[str]:
    python = (sys.executable, "-I", "-S")
    return subprocess.Popen(
        (*python, direct.__file__, *where, "--", *python, "-c", f"{HEAD}{code}"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**OWN, **(env or {})},
        start_new_session=True,
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, list[str], str]:
    out, err = process.communicate(timeout=60)
    return process.returncode, sorted(out.split()), err


def test_each_process_has_the_variables_of_torchrun() -> None:
    names = "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE ROLE_RANK ROLE_WORLD_SIZE "
    names += "ROLE_NAME "
    names += "TORCHELASTIC_RUN_ID TORCHELASTIC_USE_AGENT_STORE OMP_NUM_THREADS MASTER_PORT CUDA_VISIBLE_DEVICES"
    code, out, err = ended(
        started(
            f"say(':'.join(os.environ.get(name, '-') for name in {names.split()!r}))",
            env={"MASTER_PORT": "20001", "CUDA_VISIBLE_DEVICES": "G1,G2,G3"},
        )
    )
    assert (code, err) == (0, "")
    same = "default:12.1-ab:False:1:20001:G1,G2,G3"
    assert out == [f"{2 + local}:{local}:7:3:1:3:{2 + local}:7:{same}" for local in range(3)]


def test_slurm_s_numbers_where_they_are_asked_for() -> None:
    found = ended(
        started(
            "say(os.environ['SLURM_PROCID'] + ':' + os.environ['SLURM_LOCALID'] + os.environ['OMP_NUM_THREADS'])",
            env={"SLURM_PROCID": "2", "OMP_NUM_THREADS": "4"},
        )
    )
    assert found == (0, ["2:04", "3:14", "4:24"], "")


def test_the_first_to_fail_ends_the_others_and_is_named() -> None:
    code, out, err = ended(
        started("if os.environ['LOCAL_RANK'] == '1': sys.exit(7)\nrest()"),
    )
    assert (code, out) == (7, [])
    assert err == "gpuloom: rank 3 (local rank 1) ended with exit code 7; the other 2 here are ended\n"


def test_one_that_does_not_heed_is_killed_after_the_grace() -> None:
    code, _, err = ended(
        started(
            "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
            "if os.environ['LOCAL_RANK'] == '0': time.sleep(0.5), os.kill(os.getpid(), signal.SIGSEGV)\n"
            "rest()",
            env={"GPULOOM_GRACE_S": "0.3"},
        )
    )
    assert code == -signal.SIGSEGV
    assert err == "gpuloom: rank 2 (local rank 0) was killed by signal 11; the other 2 here are ended\n"


def test_one_that_ends_well_waits_for_the_others() -> None:
    code, out, _ = ended(started("time.sleep(0.2 * int(os.environ['LOCAL_RANK'])); say(os.environ['RANK'])"))
    assert (code, out) == (0, ["2", "3", "4"])


NOTICED = """
def save(*_):
    time.sleep(0.1 * int(os.environ['LOCAL_RANK']))
    say('saved' + os.environ['LOCAL_RANK'])
    sys.exit(85)
signal.signal(signal.SIGTERM, save)
say('up')
while True: rest()
"""


def test_a_notice_reaches_each_once_and_all_may_save() -> None:
    process = started(NOTICED)
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(3)] == ["up\n"] * 3
    os.killpg(process.pid, signal.SIGTERM)  # as the runner gives notice
    assert ended(process) == (85, ["saved0", "saved1", "saved2"], "")


def test_after_a_notice_the_lowest_rank_counts(tmp_path: Path) -> None:
    notice = tmp_path / "notice"
    process = started(
        "say('up')\nwhile not os.path.exists(os.environ['GPULOOM_NOTICE_FILE']): time.sleep(0.01)\n"
        "time.sleep(0.1 * int(os.environ['LOCAL_RANK']))\nsys.exit(85 + int(os.environ['LOCAL_RANK']))",
        env={"GPULOOM_NOTICE_FILE": str(notice)},
    )
    notice.write_text("{}")
    code, _, err = ended(process)
    assert (code, err) == (85, "")


def test_what_they_started_gets_the_signals_too() -> None:
    process = started("if os.fork() == 0: say('child'); rest()\nrest()", where=("--processes", "1", *WHERE[2:]))
    assert process.stdout is not None
    assert process.stdout.readline() == "child\n"
    process.send_signal(signal.SIGINT)
    assert ended(process)[0] == -signal.SIGINT


def test_a_program_that_is_not_there() -> None:
    found = subprocess.run(
        (sys.executable, "-I", "-S", direct.__file__, *WHERE, "--", "no-such-program"),
        capture_output=True,
        text=True,
        env=OWN,
        timeout=60,
    )
    assert (found.returncode, found.stderr) == (
        127,
        "gpuloom: can't run 'no-such-program': No such file or directory\n",
    )


@pytest.mark.parametrize(("status", "words"), [(9, "was killed by signal 9"), (7 << 8, "ended with exit code 7")])
def test_ends_in_words(status: int, words: str) -> None:
    assert direct.worded(status) == words
