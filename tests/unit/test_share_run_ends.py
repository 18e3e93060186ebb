"""`gpuloom share run` ends as the program did, also where it stays its parent (under MPS)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import Any

import pytest

from gpuloom.cli.share import attending

STAND_IN = """
import sys
from gpuloom.cli.share.attending import attend, end_as
import os
end_as(attend(["sh", "-c", sys.argv[1]], dict(os.environ)))
"""


@pytest.mark.parametrize(
    ("script", "code"),
    [("exit 0", 0), ("exit 7", 7), ("exit 137", 137), ("kill -9 $$", -9), ("kill -15 $$", -15), ("kill -11 $$", -11)],
)
def test_ends_as_the_program(script: str, code: int) -> None:
    done = subprocess.run([sys.executable, "-c", STAND_IN, script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (code, "")


def test_signals_are_passed_on() -> None:
    script = "trap 'exit 85' TERM; echo ready; while :; do sleep 0.05; done"
    with subprocess.Popen([sys.executable, "-c", STAND_IN, script], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 85


def test_a_signal_that_comes_while_the_program_starts_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    start = subprocess.Popen

    def interrupted(*args: Any, **more: Any) -> Any:
        signal.raise_signal(signal.SIGTERM)
        return start(*args, **more)

    monkeypatch.setattr(attending.subprocess, "Popen", interrupted)
    before = signal.getsignal(signal.SIGTERM)
    assert attending.attend(["sleep", "60"], dict(os.environ)) == -signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) == before
