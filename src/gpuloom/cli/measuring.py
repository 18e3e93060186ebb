"""Runs a script for so many iterations and ends it: what its hooks recorded, or else what it told of its own speed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from statistics import median

import psutil

from gpuloom.core.errors import InputError
from gpuloom.core.measured import WARM_UP, Measured
from gpuloom.core.progress import PROGRESS_BYTES, it_per_s, progress_of
from gpuloom.files.hook_records import Hooked, Sight, hooked
from gpuloom.training.inject import environment

LOOK_S, GRACE_S = 0.1, 5.0
TAIL_BYTES = 65_536
FEW, LOG_S = 3, 20.0
"""So many speeds in a log are enough for a median, so long after they were seen."""
UNSEEN_S = 30.0
"""Who sees nothing for so long is told so, while the script goes on."""
_OF_ANOTHER_RUN = ("GPULOOM_NOTICE_FILE", "GPULOOM_PROGRESS_FILE", "GPULOOM_DEVICES_DIR", "GPULOOM_RUN_DIR")
_SPEED = re.compile(
    r"(?<![\w.])(\d+(?:\.\d+)?)\s*(it|iters?|iterations?|steps?|batch(?:es)?)\s*/\s*s(?:ec(?:ond)?)?\b"
    r"|(?<![\w.])(\d+(?:\.\d+)?)\s*s(?:ec(?:onds?)?)?\s*/\s*(it|iter|iteration|step|batch)\b",
    re.IGNORECASE,
)


class From(StrEnum):
    """Where a speed is known from."""

    HOOKS = "hooks"
    REPORTS = "progress reports"
    LOG = "log"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Seen:
    """What came of a run. it_per_s: None where nothing tells. exit_code: of a script that ended by itself. log: the end
    of what it printed. took_s: how long it ran."""

    source: From
    hooked: Hooked
    it_per_s: float | None
    exit_code: int | None
    log: str
    took_s: float

    @property
    def measured(self) -> Measured | None:
        return self.hooked.measured


def speeds_in(log: str) -> list[float]:
    """Iterations per second that a log tells, in its order: '12.3it/s', '1.5 s/it', '3 steps/sec'."""
    found = []
    for match in _SPEED.finditer(log):
        value = float(match[1] or match[3])
        if value > 0.0:
            found.append(value if match[1] else 1.0 / value)
    return found


def blind(seen: Sight) -> str:
    """Why hooks saw no iteration."""
    if seen is Sight.NONE:
        return "hooks saw no Python: the program is none, or its python runs with -I, -E or -S"
    return "hooks saw Python, but no step of PyTorch or Keras (with JAX, and in other languages, they see none)"


def run_here(
    command: Sequence[str],
    *,
    iterations: int,
    timeout_s: float,
    env: Mapping[str, str],
    told: Callable[[int], None] = lambda done: None,
    unseen: Callable[[Sight], None] = lambda sight: None,
) -> Seen:
    """Run it on this machine, without a scheduler, until it has done so many iterations after the first few.

    env: its environment. told: hears how many it has done. unseen: hears once what hooks see if there has been nothing
    to measure for `UNSEEN_S`. A script that ends by itself is measured by what it did.

    Raises:
        InputError: it can't be run.
    """
    with tempfile.TemporaryDirectory(prefix="gpuloom-measure-") as place:
        folder, progress, log = Path(place, "hooks"), Path(place, "progress.json"), Path(place, "output.log")
        own = {key: value for key, value in env.items() if key not in _OF_ANOTHER_RUN}
        own |= environment(own, folder) | {"GPULOOM_PROGRESS_FILE": str(progress), "PYTHONUNBUFFERED": "1"}
        began_s = time.monotonic()
        with log.open("wb") as output:
            try:
                process = subprocess.Popen(  # noqa: S603 - what the user asks for
                    list(command),
                    env=own,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
            except OSError as error:
                raise InputError(f"can't run {command[0]!r}: {error.strerror or error}") from None
        try:
            _wait(process, folder, log, progress, iterations, began_s + timeout_s, told, unseen)
        finally:
            end(process)
        took_s = time.monotonic() - began_s
        code = process.returncode if process.returncode is not None and process.returncode >= 0 else None
        tail = _tail(log)
        found = hooked(str(folder))
        if found.sight is Sight.PROFILE and found.measured is not None:
            return Seen(From.HOOKS, found, found.measured.rate_per_s, code, tail, took_s)
        if (speed := it_per_s(_progress(progress))) is not None:
            return Seen(From.REPORTS, found, speed, code, tail, took_s)
        if speeds := speeds_in(tail):
            return Seen(From.LOG, found, median(speeds[-20:]), code, tail, took_s)
        return Seen(From.NOTHING, found, None, code, tail, took_s)


def _wait(
    process: subprocess.Popen[bytes],
    folder: Path,
    log: Path,
    progress: Path,
    iterations: int,
    until_s: float,
    told: Callable[[int], None],
    unseen: Callable[[Sight], None],
) -> None:
    """Until it has ended, or is known well enough, or time is up."""
    few_s = None
    unseen_s: float | None = time.monotonic() + UNSEEN_S
    while time.monotonic() < until_s:
        with suppress(subprocess.TimeoutExpired):
            process.wait(LOOK_S)
            return
        found = hooked(str(folder))
        training = found.training
        if training is not None:
            told(training.iterations)
            if training.iterations > iterations + WARM_UP:
                return
            continue
        report = _progress(progress)
        step, first = report.get("step"), report.get("first_step", 0)
        if isinstance(step, int | float) and isinstance(first, int | float):
            told(int(step - first))
            if step - first >= iterations:
                return
        elif (lines := len(speeds_in(_tail(log)))) >= FEW:
            few_s = few_s or time.monotonic()
            if lines >= iterations or time.monotonic() - few_s >= LOG_S:
                return
        elif unseen_s is not None and time.monotonic() >= unseen_s:
            unseen_s = None
            unseen(found.sight)


def end(process: subprocess.Popen[bytes], grace_s: float = GRACE_S) -> None:
    """End a process with all that it has started, also what has left its group: first asked, then killed."""
    known: dict[int, psutil.Process] = {}
    for number in (signal.SIGTERM, signal.SIGKILL):
        known |= {one.pid: one for one in _family(process.pid)}
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        for one in known.values():
            with suppress(psutil.NoSuchProcess):
                one.send_signal(number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(grace_s)
        _, left = psutil.wait_procs(list(known.values()), grace_s if number is signal.SIGTERM else 1.0)
        if not left and process.returncode is not None:
            return


def _family(pid: int) -> Iterator[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        yield from psutil.Process(pid).children(recursive=True)


def _progress(path: Path) -> dict[str, object]:
    try:
        with path.open("rb") as file:
            return progress_of(file.read(PROGRESS_BYTES + 1))
    except FileNotFoundError:
        return {}


def _tail(path: Path) -> str:
    with path.open("rb") as file:
        file.seek(max(file.seek(0, os.SEEK_END) - TAIL_BYTES, 0))
        return file.read().decode("utf-8", "replace")
