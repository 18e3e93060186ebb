"""Pods and Jobs that somebody else has made: taken for an attempt, and given back with nothing of ours left on them."""

from __future__ import annotations

import json
import threading
import time

from gpuloom.core.run_name import run_name_of
from gpuloom.executors.kubernetes.kept import Kept
from gpuloom.executors.kubernetes.kinds import JobKind, replicas_in
from gpuloom.executors.kubernetes.manifest import Setup, adopted
from gpuloom.executors.kubernetes.marks import (
    ADOPTED,
    ENDED_BY,
    FINALIZER,
    HOLD,
    HOME,
    IN_PLACE,
    JOB,
    MEMBERS,
    RANK,
    RUN,
    SIZED_TASK,
)
from gpuloom.executors.kubernetes.pods import Job, Pod
from gpuloom.executors.kubernetes.wanted import Attempt, Seen
from gpuloom.executors.port import ExecutorError
from gpuloom.kubernetes.api import Api, ApiError, Object, unless_gone
from gpuloom.kubernetes.events import say


def say_resized(api: Api, setup: Setup, job: Object, replicas: int, kind: JobKind, task: int, more: str) -> None:
    """An Event of a Job, where its size changes. job: as it was before."""
    about = job["metadata"]
    before = replicas_in(job["spec"], task)
    if before != replicas:
        owner = {"apiVersion": kind.api_version, "kind": "Job", "name": about["name"], "uid": about["uid"]}
        say(api, setup.namespace, owner, "Resized", f"from {before} to {replicas} replicas; {more}")


class Adopter:
    """Used by the threads that write. lock: of whoever keeps the attempts. What fails is raised, and tried again."""

    def __init__(self, api: Api, setup: Setup, lock: threading.RLock) -> None:
        self._api, self._setup, self._lock = api, setup, lock

    def take_pod(self, own: Kept, rank: int, uid: str, name: str, seen: Seen) -> None:
        """Take a pod that somebody else has made, unless it is somebody's by now."""
        path = self._setup.path("/api/v1", "pods", name)
        with self._lock:
            if own.attempt.ends:
                return
            own.attempt.maybe, own.attempt.asked[rank] = True, name
        try:
            about = self._api.get(path)["metadata"]
        except ApiError as error:
            if error.status != 404:
                raise
            return
        if about["uid"] != uid or HOME in (about.get("labels") or {}) or "deletionTimestamp" in about:
            return
        run = run_name_of(own.attempt.name)
        notes = {HOLD: None, IN_PLACE: None, ENDED_BY: None, **self.marks(own.attempt, seen.job), RANK: str(rank)}
        change = {
            "resourceVersion": about["resourceVersion"],  # of two homes one takes it
            "labels": {HOME: self._setup.home, RUN: own.attempt.name, JOB: None if run is None else str(run.job)},
            "annotations": notes,
        }
        unless_gone(lambda: self._api.change(path, {"metadata": change}))

    def marks(self, attempt: Attempt, job: Job | None = None) -> dict[str, str]:
        """What is written on pods and Jobs that somebody else has made. job: on which it stands already."""
        with self._lock:
            members = [[one.node, len(one.spec.gpus) if one.spec else 0] for one in attempt.members.values()]
            hold, sized = any(one.hold for one in attempt.members.values()), attempt.sized
        if job is not None and job.in_place:
            members, hold, sized = [list(one) for one in job.members], job.hold, True
        marks = {ADOPTED: "true", MEMBERS: json.dumps(members)}
        return {**marks, **({HOLD: "true"} if hold else {}), **({IN_PLACE: "true"} if sized else {})}

    def take_job(self, own: Kept) -> None:
        """Take a Job that somebody else has made, at the size that it is to have. Raises ApiError, ExecutorError."""
        attempt, owner = own.attempt, own.attempt.offer.owner
        if owner is None:
            return
        kind = owner.kind
        path, replicas = self._setup.path(kind.path, "jobs", owner.name), len(attempt.members)
        try:
            job = self._api.get(path)
        except ApiError as error:
            if error.status != 404:
                raise
            return
        about = job["metadata"]
        labels = about.get("labels") or {}
        if about["uid"] != owner.uid or "deletionTimestamp" in about:
            return
        if (before := labels.get(RUN)) != attempt.name:  # else the answer was lost
            if HOME in labels:
                whose = f"attempt {before}" if labels[HOME] == self._setup.home else "another scheduler"
                raise ExecutorError(f"{kind.title} {owner.name} still belongs to {whose}")
            with self._lock:
                if attempt.ends:
                    return
                attempt.job, attempt.maybe, attempt.in_place = owner.name, True, True
            marks = self.marks(attempt)
            patch = adopted(job, self._setup.home, attempt.name, marks, replicas, kind, owner.task)
            self._api.change(path, patch)
            say_resized(self._api, self._setup, job, replicas, kind, owner.task, "it starts with these")
        with self._lock:
            attempt.job, attempt.made, own.made_s = owner.name, True, time.monotonic()

    def give_job_back(self, attempt: str, path: str) -> None:
        """Nothing of ours is left on a Job that somebody else has made, unless it is another attempt's by now."""

        def change() -> None:
            about = self._api.get(path)["metadata"]
            if (about.get("labels") or {}).get(RUN) != attempt:
                return
            marks = {
                "resourceVersion": about["resourceVersion"],
                "labels": dict.fromkeys((HOME, RUN, JOB)),
                "annotations": dict.fromkeys((ADOPTED, MEMBERS, HOLD, IN_PLACE, SIZED_TASK)),
            }
            self._api.change(path, {"metadata": marks})

        unless_gone(change)

    def find_pods(self, own: Kept) -> None:
        """Whether any of the pods that were to be taken is."""
        for name in list(own.attempt.asked.values()):
            try:
                labels = self._api.get(self._setup.path("/api/v1", "pods", name))["metadata"].get("labels") or {}
            except ApiError as error:
                if error.status != 404:
                    raise
                continue
            if (labels.get(HOME), labels.get(RUN)) == (self._setup.home, own.attempt.name):
                return  # it will be seen
        with self._lock:
            own.attempt.maybe = False

    def give_back(self, pod: Pod) -> None:
        """Nothing of ours is left on a pod that somebody else has made."""
        about = pod.item["metadata"]
        mine = dict.fromkeys((ADOPTED, MEMBERS, RANK, HOLD, IN_PLACE))
        change = {
            "resourceVersion": about["resourceVersion"],
            "labels": {HOME: None, RUN: None},
            "annotations": mine,
            "finalizers": [one for one in about.get("finalizers") or () if one != FINALIZER] or None,
        }
        unless_gone(lambda: self._api.change(self._setup.path("/api/v1", "pods", pod.name), {"metadata": change}))
