"""The variables by which hooks enter a job's Python (`_gpuloom_hooks`): nothing of the job's own is changed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

SETTING = "GPULOOM_HOOKS"
"""The folder where the job's processes leave their records and the log; "off", set by the user: no hooks."""
OFF = "off"
DOOR = Path(__file__).resolve().parents[2] / "_gpuloom_hooks" / "site"
"""The folder that goes first on PYTHONPATH."""


def environment(existing_env: Mapping[str, str], folder: str | os.PathLike[str]) -> dict[str, str]:
    """The variables to set for a job so that its Pythons start with hooks; none if the user has switched them off.

    Args:
        existing_env: the job's environment without them.
        folder: an existing folder, for the records and the log of the job's processes.
    """
    if existing_env.get(SETTING) == OFF:
        return {}
    door = str(DOOR)
    theirs = existing_env.get("PYTHONPATH", "")
    while theirs == door or theirs.startswith(door + os.pathsep):  # of a job that we started, which starts another
        theirs = theirs[len(door) + 1 :]
    return {"PYTHONPATH": door + os.pathsep + theirs if theirs else door, SETTING: os.path.abspath(folder)}
