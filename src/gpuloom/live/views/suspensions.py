"""How a job's GPU memory went to its node's memory and came back, for people and programs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import cast

from gpuloom.core.events import Event
from gpuloom.core.job import Attempt, Phase
from gpuloom.core.spec import OnPreempt
from gpuloom.live.records.rehearsals import REHEARSED
from gpuloom.live.views.job_answers import MakesWayView, SuspensionView, Way

SUSPENSIONS = ("attempt.frozen", "attempt.thawed", "attempt.not_suspended", "attempt.stopping", REHEARSED)
"""Events of which `suspension_views` makes an answer."""


def suspension_views(events: Iterable[Event]) -> list[SuspensionView]:
    """Of a job, in order; also those that were tried in vain. An older gpuloom's events say nothing of memory."""
    found: list[SuspensionView] = []
    for event in events:
        data = event.data
        if event.type == REHEARSED:
            if not data["earnest"]:
                found.append(_rehearsal(event))
        elif event.type == "attempt.not_suspended":
            found.append(_view(event.at_s, None, None, data["why"]))
        elif event.type == "attempt.stopping":
            if found and "text" in data:
                found[-1]["why_ended"] = data["text"]
        elif event.type == "attempt.frozen" and "moved_s" in data:
            found.append(_view(event.at_s, data.get("suspended_mib"), data["moved_s"], ""))
        elif event.type == "attempt.thawed" and found and not found[-1]["why_not"] and found[-1]["back_at_s"] is None:
            found[-1]["back_at_s"], found[-1]["in_s"] = event.at_s, data.get("moved_s")
    return found


def in_memory(attempts: Iterable[Attempt], events_of: Callable[[int], Sequence[Event]]) -> dict[str, dict[int, float]]:
    """By node and job, the GPU memory of suspended jobs that is in the node's memory, MiB. events_of: the last event
    `attempt.frozen` of a job."""
    found: dict[str, dict[int, float]] = {}
    for attempt in attempts:
        if attempt.phase is Phase.FROZEN:
            for event in events_of(attempt.job):
                if (mib := event.data.get("suspended_mib")) is not None:
                    found.setdefault(attempt.nodes[0], {})[attempt.job] = mib
    return found


def makes_way_view(way: OnPreempt, why: str) -> MakesWayView:
    """What happens to a running job that makes way. why: one with on_preempt auto is not suspended."""
    return {"way": cast("Way", way.value), "why": why}


def _view(at_s: float, mib: float | None, out_s: float | None, why_not: str) -> SuspensionView:
    return {"at_s": at_s, "mib": mib, "out_s": out_s, "back_at_s": None, "in_s": None, "why_not": why_not,
        "why_ended": "", "rehearsal": False,
    }  # fmt: skip


def _rehearsal(event: Event) -> SuspensionView:
    data = event.data
    if not data["ok"]:
        return {**_view(event.at_s, None, None, data["why"]), "rehearsal": True}
    view = _view(event.at_s - data["in_s"], data["mib"], data["out_s"], "")
    return {**view, "back_at_s": event.at_s, "in_s": data["in_s"], "rehearsal": True}
