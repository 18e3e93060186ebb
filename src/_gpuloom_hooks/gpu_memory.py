"""Notes that a script ended as a GPU had no memory left: beside other jobs that is none of its faults.

Nothing is measured here. When an exception ends the script that is, or was caused by, a framework's error for want of
GPU memory, a file in the run's directory says so. What the script prints and its exit code are as without us.
"""

from __future__ import annotations

import os
import sys

from . import guarded

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any

HOOK = "gpu_memory"
FILE = "gpu-memory-full"
"""In GPULOOM_RUN_DIR; holds what the framework said. gpuloom/executors/wire.py has the same name."""
NAMES = ("OutOfMemoryError", "ResourceExhaustedError")
"""Of PyTorch and TensorFlow; JAX says it in the text of a general error."""
TEXT = "RESOURCE_EXHAUSTED"
FRAMEWORKS = ("torch", "tensorflow", "jax", "jaxlib")
MOST_CAUSES = 16


def install(module: Any) -> None:
    """Look at the exception that ends the script. module: of the framework."""
    if getattr(sys.excepthook, "gpuloom", False):
        return
    before, note = sys.excepthook, guarded(HOOK, _note)

    def excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        note(error)
        before(kind, error, trace)

    excepthook.gpuloom = True  # type: ignore[attr-defined]
    sys.excepthook = excepthook


def _note(error: BaseException) -> None:
    place = os.environ.get("GPULOOM_RUN_DIR")
    found = _full(error)
    if place and found is not None:
        text = " ".join(str(found).split())[:500]
        with open(os.path.join(place, FILE), "w", encoding="utf-8", errors="replace") as file:
            file.write(text + "\n")


def _full(error: BaseException) -> BaseException | None:
    """Of an exception and its causes the one that says that a GPU is full."""
    one = error  # type: BaseException | None
    for _ in range(MOST_CAUSES):
        if one is None:
            return None
        kind = type(one)
        known = kind.__module__.partition(".")[0] in FRAMEWORKS
        if known and (kind.__name__ in NAMES or str(one).startswith(TEXT)):
            return one
        one = one.__cause__ or one.__context__
    return None
