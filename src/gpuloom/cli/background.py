"""Commands of ours that go on in the background: in a session of their own, with what they say at the end of a log."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

END_BYTES = 16_384


def start(words: Sequence[str], *, cwd: Path, log: Path, **more: Any) -> tuple[subprocess.Popen[bytes], int]:
    """Start `gpuloom WORDS`. more: for Popen. The process, and the size of the log before. Raises OSError."""
    # The same program and the same interpreter, found without a look at PATH.
    program = [sys.executable, "-P", "-c", "from gpuloom.cli.main import main; main()"]
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "ab") as output:
        size = output.seek(0, os.SEEK_END)
        process = subprocess.Popen(  # noqa: S603 - our own program
            [*program, *words],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=cwd,
            start_new_session=True,
            **more,
        )
    return process, size


def written(log: Path, start: int) -> str:
    """The end of what a log was given from `start` on; of all of it, if it was rotated since. At most END_BYTES."""
    with log.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(start if start <= size else 0, size - END_BYTES))
        return file.read().decode("utf-8", "replace").strip()
