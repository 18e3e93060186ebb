"""Names of runs: `JOB.ATTEMPT` or `JOB.ATTEMPT.MEMBER`, and what was drawn at random for the attempt.

A run is what an executor knows of a member of an attempt: its processes on one node. '12.1-9f3a02bc' is the first and
mostly the only member of attempt 1 of job 12, '12.1.3-9f3a02bc' its fourth.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_FORM = re.compile(r"([0-9]+)\.([0-9]+)(?:\.([1-9][0-9]*))?(?:-([0-9A-Za-z]+))?")


class RunName(NamedTuple):
    """member: 0 is the master. identity: drawn when the attempt was written down, so that no name is used twice, not
    even by a store that was put back to an older state and counts again; '' of attempts of an older gpuloom."""

    job: int
    attempt: int
    member: int = 0
    identity: str = ""

    def __str__(self) -> str:
        return f"{self.job}.{self.folder}"

    @property
    def folder(self) -> str:
        """The name within its job, as the run's folder is called."""
        member = f".{self.member}" if self.member else ""
        return f"{self.attempt}{member}" + (f"-{self.identity}" if self.identity else "")


def run_name_of(text: str) -> RunName | None:
    """The name that is written so; None: it is no name of a run."""
    found = _FORM.fullmatch(text)
    if found is None:
        return None
    job, attempt, member, identity = found.groups()
    return RunName(int(job), int(attempt), int(member or 0), identity or "")
