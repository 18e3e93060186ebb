"""The class of a job that shares its GPU with another one kernel by kernel (docs/explanation/sharing.md)."""

from __future__ import annotations

from collections.abc import Sequence

HIGH, BEST_EFFORT = "high", "best-effort"
CLASSES = (HIGH, BEST_EFFORT)
INTERACTIVE = "interactive"
TASK_TYPES = ("inference", INTERACTIVE, "training", "batch")
URGENT_TASKS = ("inference", INTERACTIVE)
IMPORTANCES = ("high", "low")


def is_pair(classes: Sequence[str]) -> bool:
    """Whether jobs of these classes may share a GPU: one of each."""
    return sorted(classes) == sorted(CLASSES)


def job_class(klass: str | None, task_type: str | None, importance: str | None, *, real_time: bool) -> str:
    """The class that a user gave, or that follows from what the user said of the task; '' if nothing was said.

    High if the task's type, its importance to the business or a real-time need says so, else best effort (the patent
    application behind docs/explanation/sharing.md: any one of the three makes a task a high-priority one).
    """
    if klass or not (task_type or importance or real_time):
        return klass or ""
    return HIGH if task_type in URGENT_TASKS or importance == "high" or real_time else BEST_EFFORT
