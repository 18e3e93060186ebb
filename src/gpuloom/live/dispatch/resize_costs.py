"""What a resize cost: how long its job stood still, and how many steps it did again.

The last step before is in `attempt.ended`, the first one after in the report of the attempt that goes on. As that comes
later than `job.resized`, the cost is an event of its own, `job.resize_cost`, and is looked for once in each attempt.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gpuloom.core.job import Attempt, Job
from gpuloom.core.replicas import CostFrom, ResizeWhy
from gpuloom.live.records.ledger import Draft
from gpuloom.store.port import Store

FromWall = Callable[[float], float]
"""From a machine's time to that of the records."""
_LOOK_BACK = 20
"""Events of a job among which those of its last resize are."""


def last_step(told: Mapping[str, object], from_wall: FromWall) -> dict[str, float]:
    """Of an attempt that has ended: the last step that it reported as done, and when. told: its last report."""
    step, at_s = _number(told.get("step")), _number(told.get("at_s"))
    return {} if step is None or at_s is None else {"last_step": step, "last_s": from_wall(at_s)}


def begins(told: Mapping[str, object]) -> bool:
    """Whether an attempt has reported that its work has begun."""
    return _number(told.get("first_s")) is not None


def cost_draft(
    store: Store, job: Job, attempt: Attempt, told: Mapping[str, object], from_wall: FromWall
) -> Draft | None:
    """The event of what the resize cost with which this attempt began; None: it began with none, or that is written
    down, or nothing can be said of it. told: what it reported last; {}: nothing, then its processes alone count.

    Raises:
        StoreError: the store can't be read.
    """
    if not job.spec.elastic or attempt.number < 2:
        return None
    types = ("job.resized", "attempt.ended", "attempt.stopping")
    resized: Mapping[str, Any] | None = None
    notice_s = told_s = end_s = None
    ended: Mapping[str, Any] = {}
    for event in store.events(job=job.id, types=types, limit=_LOOK_BACK, newest=True):
        match event.type:
            case "attempt.stopping":
                notice_s = event.at_s
            case "attempt.ended":
                ended, end_s = event.data, event.data.get("ended_s", event.at_s)
                told_s, notice_s = notice_s, None  # an attempt before it may have had one
            case "job.resized" if event.data["attempt"] == attempt.number:
                resized = event.data
                break  # what follows is of this attempt
    if resized is None or resized["why"] == ResizeWhy.RESTARTED or end_s is None:
        return None
    told_before = store.events(job=job.id, types=("job.resize_cost",), limit=1, newest=True)
    if told_before and told_before[-1].data["attempt"] == attempt.number:
        return None
    first_s, last_s = _number(told.get("first_s")), _number(ended.get("last_s"))
    again_s = attempt.running_s if first_s is None else from_wall(first_s)
    if again_s is None:
        return None
    by = CostFrom.PROCESSES if first_s is None or last_s is None else CostFrom.STEPS
    since_s = last_s if by is CostFrom.STEPS and last_s is not None else end_s if told_s is None else told_s
    step, first = _number(ended.get("last_step")), _number(told.get("first_step"))
    data = {
        "attempt": attempt.number,
        "from_replicas": resized["from_replicas"],
        "to_replicas": resized["to_replicas"],
        "cost_s": max(again_s - since_s, 0.0),
        "lost_steps": None if step is None or first is None else max(step - first, 0.0),
        "cost_from": by.value,
    }
    return "job.resize_cost", job.id, data


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
