"""Whether a preempted job has saved its work, and how that is known.

Exit code 85 is the job's own statement. Any other exit code proves nothing: frameworks that ignore the notice exit with
0 and save nothing. Then the saves that the job reported count, or the files that it declared as its checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from gpuloom.core.job import SavedBy
from gpuloom.core.kept import Kept, told_kept
from gpuloom.executors.port import RunExit

SAVED = 85
"""Exit code of a job that was preempted and has saved its work."""
IN_ORDER = frozenset({0, 143})
"""Exit codes with which a file that was written meanwhile counts as whole: 143 is a shell that ended by SIGTERM."""


@dataclass(frozen=True, slots=True)
class Saved:
    """by: how it is known that it saved when it was told to stop. part: so much of all work that the job had reported
    as done was saved at some time, from 0 to 1; None: it said nothing. kept: its newest save. why_not: why it can't be
    saved on notice, where hooks say so."""

    by: SavedBy = SavedBy.NOTHING
    part: float | None = None
    kept: Kept | None = None
    why_not: str = ""


def saved(
    how: RunExit, told: Mapping[str, object], *, notice_s: float | None, checkpoint_s: float | None = None
) -> Saved:
    """What is known of a job's saves.

    Args:
        told: what it reported last (docs/howto/write-jobs.md). notice_s: when it got notice, by the machine's clock.
        checkpoint_s: when the newest of the files was written that it declared as its checkpoint.
    """
    why_not = told.get("not_saved")
    known = Saved(kept=told_kept(told), why_not=why_not if isinstance(why_not, str) else "")
    step, at_step, saved_s = (_number(told.get(name)) for name in ("step", "saved_step", "saved_s"))
    part = None if at_step is None or step is None else 1.0 if at_step >= step else max(at_step / step, 0.0)
    if how.exit_code == SAVED:
        return replace(known, by=SavedBy.EXIT_CODE, part=part)
    if at_step is not None and (part == 1.0 or (notice_s is not None and saved_s is not None and saved_s >= notice_s)):
        return replace(known, by=SavedBy.SAVED_STEP, part=part)
    after = notice_s is not None and checkpoint_s is not None and checkpoint_s >= notice_s
    if after and how.exit_code in IN_ORDER:
        return replace(known, by=SavedBy.CHECKPOINT, part=part)
    return replace(known, part=part)


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
