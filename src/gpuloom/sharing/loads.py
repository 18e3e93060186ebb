"""How busy services are, as the shim counts it: requests per second of jobs that run under it on this machine."""

from __future__ import annotations

import re
from pathlib import Path

from gpuloom.sharing.shim import shm

LEAST_REQUESTS, LEAST_S = 50, 20.0
"""A service counts from so many requests, and so long, on."""
_NAME = re.compile(r"job ([0-9]+)")


def request_rates(folder: Path) -> dict[int, float]:
    """Requests per second since it began, by the job's number, of each service that runs.

    Args:
        folder: where the GPUs' shared files are.
    """
    found = {}
    for path in shm.files(folder):
        seen = shm.read(path)
        for program in seen.programs:
            took_s = (seen.at_ns - program.attached_ns) / 1e9
            name = _NAME.fullmatch(program.name)
            if name and program.klass == "high" and program.requests >= LEAST_REQUESTS and took_s >= LEAST_S:
                found[int(name[1])] = program.requests / took_s
    return found
