"""The state of random number generators: Python's, NumPy's and PyTorch's, on the CPU and on the GPU in use."""

from __future__ import annotations

import random
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def state(*, devices: bool = True) -> dict[str, Any]:
    """Of all generators that this process has loaded. devices: GPUs, too."""
    found = {"python": random.getstate()}  # type: dict[str, Any]
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None:
        found["numpy"] = numpy.random.get_state()
    if torch is not None:
        found["torch"] = torch.get_rng_state()
        if devices and torch.cuda.is_available() and torch.cuda.is_initialized():
            found["cuda"] = torch.cuda.get_rng_state()
    return found


def restore(found: dict[str, Any]) -> None:
    """Set them to a state."""
    random.setstate(found["python"])
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None and "numpy" in found:
        numpy.random.set_state(found["numpy"])
    if torch is not None and "torch" in found:
        torch.set_rng_state(found["torch"])
        if "cuda" in found and torch.cuda.is_available():
            torch.cuda.set_rng_state(found["cuda"])
