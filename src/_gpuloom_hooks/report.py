"""What hooks tell gpuloom of a job: how far it is, and what is saved. The file `$GPULOOM_PROGRESS_FILE`.

Where the script reports by itself, by `gpuloom.training.job`, its own steps count, and only the save is added.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

FILE = "GPULOOM_PROGRESS_FILE"
EVERY_S = 1.0

_said = {}  # type: dict[str, Any]
_written_s = float("-inf")
_pid = 0


def progress(step: int, steps: int | None = None) -> None:
    """So many steps of the optimizer are done (of steps). Written at most once a second, and at the end."""
    if _own() is not None:
        return
    _here()
    now = time.time()
    if "first_step" not in _said:
        _said.update(first_step=step, first_s=now)
    _said.update(step=step, at_s=now)
    if steps is not None:
        _said["steps"] = steps
    if time.monotonic() - _written_s >= EVERY_S:
        _write()


def trains_again() -> None:
    """Another training begins: the steps that were told of the one before are not all that there is to do."""
    if _own() is None:
        _here()
        if _said.pop("steps", None) is not None:
            _write()


def saved(step: int, who: str, what: str) -> None:
    """The work up to this step is kept. who: "hook", or "framework"; what: whose checkpoint it is."""
    own = _own()
    if own is not None:
        own.saved(own._progress.step)
        return
    progress(step)
    _said.update(saved_step=step, saved_s=time.time(), saved_who=who, saved_what=what)
    _said.pop("not_saved", None)
    _write()


def not_saved(why: str) -> None:
    """Its work can't be kept on notice; why."""
    if _own() is None:
        _here()
        _said["not_saved"] = why[:200]
        _write()


def _here() -> None:
    """A forked child begins anew."""
    global _pid
    if _pid != os.getpid():
        _pid = os.getpid()
        _said.clear()
        atexit.register(_flush, _pid)


def _own() -> Any:
    """The module with which the script reports by itself; None: it does not."""
    job = sys.modules.get("gpuloom.training.job")
    return job if getattr(getattr(job, "_progress", None), "step", None) is not None else None


def _flush(pid: int) -> None:
    if pid == os.getpid():
        _write()


def _write() -> None:
    global _written_s
    path = os.environ.get(FILE)
    rank = os.environ.get("RANK") or os.environ.get("LOCAL_RANK") or "0"
    if not path or rank != "0":  # the first rank speaks for all
        return
    _written_s = time.monotonic()
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump(_said, file)
        os.replace(temporary, path)
    except OSError:
        pass  # a full disk, or no folder any more: the next report may do, and saving goes on without
