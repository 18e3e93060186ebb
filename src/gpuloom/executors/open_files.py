"""The limit of open files: raised as far as possible for ourselves, unchanged for jobs."""

from __future__ import annotations

import resource

ENOUGH = 65_536
"""More is not asked for: some programs go over all that they might have."""

_before: int | None = None


def ask_for_more() -> None:
    """Raise the soft limit to the hard one. Jobs get what it was (`of_jobs`)."""
    global _before
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if _before is None:
        _before = soft
    wanted = ENOUGH if hard == resource.RLIM_INFINITY else min(hard, ENOUGH)
    if soft != resource.RLIM_INFINITY and wanted > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def of_jobs() -> int:
    """The soft limit for jobs: that with which this process was started."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0] if _before is None else _before
