"""The variables by which hooks enter a job's Python (`_gpuloom_hooks`): nothing of the job's own is changed."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

SETTING = "GPULOOM_HOOKS"
"""The folder where the job's processes leave their records and the log; "off", set by the user: no hooks."""
OFF = "off"
FOLDER = "hooks"
"""The folder's name in the directory of a run. The first Python with hooks makes it: without it there was none."""
PACKAGE = Path(__file__).resolve().parents[2] / "_gpuloom_hooks"
DOOR = PACKAGE / "site"
"""The folder that goes first on PYTHONPATH."""

SAVES = "GPULOOM_SAVES"
"""Where hooks keep the job's state from one attempt to the next; "off", set by the user: they save nothing."""
SAVES_IN = "GPULOOM_SAVES_IN"
"""Set by the user: the folder for those of all jobs, instead of `.gpuloom` in the working directory."""
NOTE = "saves"
"""File in `FOLDER`: the job's folder of saves, once there is something in it."""


def saves(env: Mapping[str, str], workdir: str) -> dict[str, str]:
    """The variable that says where hooks keep the job's state; each job has a folder of its own.

    Args:
        env: the job's environment. workdir: which all of its nodes see, as its attempts may run on different ones.
    """
    key = env.get("GPULOOM_JOB_KEY", "")
    if env.get(SAVES) == OFF or not key:
        return {SAVES: OFF}
    return {SAVES: os.path.join(workdir, env.get(SAVES_IN) or ".gpuloom", key)}


def environment(existing_env: Mapping[str, str], folder: str | os.PathLike[str]) -> dict[str, str]:
    """The variables to set for a job so that its Pythons start with hooks; none if the user has switched them off.

    Args:
        existing_env: the job's environment without them.
        folder: for the records and the log of the job's processes. It may be made later, in a folder that is there.
    """
    if existing_env.get(SETTING) == OFF:
        return {}
    door = str(DOOR)
    theirs = existing_env.get("PYTHONPATH", "")
    while theirs == door or theirs.startswith(door + os.pathsep):  # of a job that we started, which starts another
        theirs = theirs[len(door) + 1 :]
    return {"PYTHONPATH": door + os.pathsep + theirs if theirs else door, SETTING: os.path.abspath(folder)}


def within(argv: Sequence[str]) -> tuple[str, ...]:
    """The command for inside a container that has `PACKAGE`, where /bin/sh puts us before the image's PYTHONPATH."""
    script = f'PYTHONPATH={shlex.quote(str(DOOR))}"${{PYTHONPATH:+:$PYTHONPATH}}" exec "$@"'
    return ("/bin/sh", "-c", script, "sh", *argv)
