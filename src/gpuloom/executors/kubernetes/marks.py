"""By what an attempt's objects in Kubernetes are known: names, labels, annotations. They are all that is needed to find
out, after a restart, what belongs to which attempt and member."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpuloom.core.run_name import run_name_of
from gpuloom.executors.kubernetes.kinds import VOLCANO, JobKind
from gpuloom.kubernetes.objects import GATE as GATE
from gpuloom.kubernetes.objects import HOME as HOME

FINALIZER = "gpuloom.io/end"
"""Keeps a pod, and with it its exit code, until its end is written down."""

RUN = "gpuloom.io/run"
"""Label: of which attempt."""
JOB, NAME = "gpuloom.io/job", "gpuloom.io/name"
"""Label and annotation for people: the job's number, and its name."""
MEMBERS = "gpuloom.io/members"
"""Annotation: [[node, GPUs], …] of the members in the order of ranks."""
VALUES = "gpuloom.io/values"
"""Annotation of a Job: what its pods get when they are pinned, in the order of ranks."""
RANK = "gpuloom.io/rank"
ADOPTED = "gpuloom.io/adopted"
"""Annotation of a pod that somebody else has made, as long as it is a member of an attempt; RANK says which."""
HOLD = "gpuloom.io/hold"
"""Annotation: its pods begin only when they are told to; else each as soon as it is there."""
IN_PLACE = "gpuloom.io/in-place"
"""Annotation: its pods may go on in the next attempt, so that the Job's RUN and MEMBERS count, and theirs may be of an
attempt before."""
SIZED_TASK = "gpuloom.io/sized-task"
"""Annotation of a Volcano Job that somebody else has made: the number of the task whose size is changed, if not 0."""
VARIABLES = "gpuloom.io/variables"
"""Annotation of a Job: the job's own variables are in a Secret of its name, which its pods need."""
RESTARTS = "gpuloom.io/restarts"
"""Annotation of a pod: how often its member was begun anew before in this attempt, while the others trained on."""
ENDED_BY = "gpuloom.io/ended-by"
"""Annotation: why gpuloom ended it (a word of `EndReason`)."""
LIMIT = "gpuloom.io/limit-s"
GRACE = "gpuloom.io/grace-s"
VALUE = "gpuloom.io/value-"
"""Annotations with the values of variables that differ between members: gpuloom.io/value-NAME."""

TASK, INDEX = "volcano.sh/task-spec", "volcano.sh/task-index"
OWN_TASK = "gpuloom.io/task"
"""Label of a pod: its task, where each task has a Job of its own."""
COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"
"""Annotation of a pod of an Indexed Job: which of them it is."""
PART_OF = "gpuloom.io/part-of"
"""Annotation: the Job of the first task, beside which this one is that of another task."""
SERVICE = "gpuloom.io/service"
"""Label of a pod: the Service by which the others of its attempt reach it."""


@dataclass(frozen=True, slots=True)
class Task:
    """Members with the same number of GPUs. ranks: the pod with index i is the member of rank ranks[i]."""

    name: str
    gpus: int
    ranks: tuple[int, ...]


def tasks_of(counts: Sequence[int]) -> list[Task]:
    """The tasks of an attempt. counts: GPUs of its members, in the order of ranks."""
    of_count: dict[int, list[int]] = {}
    for rank, count in enumerate(counts):
        of_count.setdefault(count, []).append(rank)
    names = {count: f"worker-{count}" if number else "worker" for number, count in enumerate(of_count)}
    return [Task(names[count], count, tuple(ranks)) for count, ranks in of_count.items()]


def sized_task(annotations: Mapping[str, Any]) -> int:
    """The number of the task whose size is changed. annotations: of a Job."""
    text = str(annotations.get(SIZED_TASK) or "0")
    return int(text) if text.isdecimal() else 0


def name_of(attempt: str) -> str:
    """The name of an attempt's Job, and of its Service: of at most 63 letters, as DNS wants it."""
    return f"gpuloom-{attempt.replace('.', '-').lower()}"


def attempt_of(run: str) -> str:
    """The attempt of a member's run."""
    name = run_name_of(run)
    return run if name is None else str(name._replace(member=0))


def run_of(attempt: str, rank: int) -> str:
    """The run of the member of this rank."""
    name = run_name_of(attempt)
    return attempt if name is None else str(name._replace(member=rank))


def first_run(annotations: Mapping[str, Any], run: str) -> str:
    """The run as which a pod began: its files have that name, and it knows no other one."""
    return str(annotations.get(f"{VALUE}GPULOOM_RUN") or run).rpartition(":")[2]


def host_of(name: str, counts: Sequence[int], rank: int, kind: JobKind = VOLCANO) -> str:
    """The stable name at which a member is reached by the others, in their namespace. name: of its Job."""
    number, task = next((number, one) for number, one in enumerate(tasks_of(counts)) if rank in one.ranks)
    first = f"{name}-{task.name}" if kind is VOLCANO else job_of_task(name, number, task)
    return f"{first}-{task.ranks.index(rank)}.{name}"


def job_of_task(name: str, number: int, task: Task) -> str:
    """The name of the Indexed Job of a task. name: of the attempt's first one. number: of the task, from 0."""
    return f"{name}-g{task.gpus}" if number else name


def members_in(annotations: Mapping[str, Any]) -> tuple[tuple[str, int], ...]:
    """(node, GPUs) of each member; () if that is not said, or not so that it can be read."""
    try:
        return tuple((str(node), int(gpus)) for node, gpus in json.loads(annotations[MEMBERS]))
    except (KeyError, ValueError, TypeError):
        return ()


def values_in(annotations: Mapping[str, Any]) -> tuple[dict[str, str], ...]:
    """By rank, the annotations that a pod gets when it is pinned; () if that can't be read."""
    try:
        return tuple({str(name): str(text) for name, text in one.items()} for one in json.loads(annotations[VALUES]))
    except (KeyError, ValueError, TypeError, AttributeError):
        return ()
