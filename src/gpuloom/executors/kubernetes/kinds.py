"""What attempts are made as: Volcano's Jobs, or Indexed Jobs of Kubernetes itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class JobKind:
    """word: in options and files. title: for people. api_version: of its objects, all of kind `Job`. kubectl: how one
    asks for them there. groups: path of the PodGroups that let its pods be made; '': it makes them at once."""

    word: str
    title: str
    api_version: str
    kubectl: str
    groups: str = ""

    @property
    def path(self) -> str:
        return f"/apis/{self.api_version}"


VOLCANO = JobKind("volcano", "Volcano Job", "batch.volcano.sh/v1alpha1", "vcjob", "/apis/scheduling.volcano.sh/v1beta1")
INDEXED = JobKind("indexed", "Job", "batch/v1", "job")
KINDS: Mapping[str, JobKind] = {kind.word: kind for kind in (VOLCANO, INDEXED)}


def replicas_in(spec: Mapping[str, Any], task: int = 0) -> int:
    """So many pods a Job has: of this task, where it has tasks. spec: its `spec`."""
    tasks = spec.get("tasks")
    if tasks:
        return int(tasks[task].get("replicas", 0)) if task < len(tasks) else 0
    return int(spec.get("parallelism") or 0)


def spare_in(spec: Mapping[str, Any], task: int = 0) -> int:
    """How many more pods a Volcano Job needs at least than that task has: those of its other tasks, as a rule."""
    return int(spec.get("minAvailable") or 0) - replicas_in(spec, task)
