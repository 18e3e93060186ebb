"""Writes to the cluster, carried out: none does harm when it is made twice."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from gpuloom.core.end_reason import EndReason
from gpuloom.core.errors import InputError
from gpuloom.core.run_name import run_name_of
from gpuloom.executors.kubernetes.adopter import Adopter, say_resized
from gpuloom.executors.kubernetes.kept import Kept
from gpuloom.executors.kubernetes.kinds import KINDS, JobKind
from gpuloom.executors.kubernetes.manifest import (
    Manifest,
    Setup,
    direct_name,
    manifest,
    pinned,
    scaled,
    taken_over,
)
from gpuloom.executors.kubernetes.marks import (
    ENDED_BY,
    FINALIZER,
    GATE,
    HOME,
    LIMIT,
    MEMBERS,
    RESTARTS,
    RUN,
    first_run,
    run_of,
    sized_task,
)
from gpuloom.executors.kubernetes.pod_logs import PodFiles
from gpuloom.executors.kubernetes.pods import Job, Pod, ended_well
from gpuloom.executors.kubernetes.wanted import (
    Attempt,
    Seen,
    end_of,
    what_happened,
)
from gpuloom.executors.kubernetes.writes import (
    Adopt,
    Begin,
    CreateJob,
    DeleteJob,
    DeletePod,
    FindJob,
    GiveBack,
    Leave,
    LetIn,
    MakeSecret,
    Note,
    Open,
    Relabel,
    Release,
    Replace,
    SetLimit,
    Shrink,
    TakeEnd,
    TakeOver,
    Write,
)
from gpuloom.executors.launchers import DIRECT
from gpuloom.executors.local_files import run_directory
from gpuloom.executors.port import Cause, ExecutorError, RunExit
from gpuloom.executors.wire import NOTICE_FILE, write_atomic
from gpuloom.kubernetes.api import Api, ApiError, Object, unless_gone
from gpuloom.kubernetes.events import pod_reference, say

log = logging.getLogger("gpuloom.kubernetes")

LOG_TRIES = 3


class Writer:
    """Used by the threads that write. lock: of whoever keeps the attempts. files: of runs, where logs go. why_not: ''
    or why nothing may be written now."""

    def __init__(
        self,
        api: Api,
        setup: Setup,
        resource_of: Callable[[str], str],
        files: PodFiles,
        lock: threading.RLock,
        why_not: Callable[[], str],
    ) -> None:
        self.api, self.setup, self._resource_of, self._files, self._lock = api, setup, resource_of, files, lock
        self._why_not = why_not
        self._adopter = Adopter(api, setup, lock)

    def carry_out(self, own: Kept, write: Write, seen: Seen) -> None:
        """Carry one write out. Raises ApiError, ExecutorError, OSError: it is to be tried again."""
        if why := self._why_not():
            raise ExecutorError(why)
        match write:
            case CreateJob():
                self._create(own)
            case Adopt(rank, uid, name):
                self._adopter.take_pod(own, rank, uid, name, seen)
            case FindJob():
                self._find(own)
            case MakeSecret(uid):
                self._make_secret(own, uid)
            case LetIn(group):
                unless_gone(
                    lambda: self.api.change(
                        self.setup.path(self.setup.kind.groups, "podgroups", group), {"status": {"phase": "Inqueue"}}
                    )
                )
            case Begin(uid):
                self._begin(own, uid)
            case Open(rank, uid):
                self._open(own, rank, uid, seen)
            case Note(rank, _, reason):
                self._notice(own.attempt, rank, seen.pods[rank])
                path = self._pod_path(seen.pods[rank])
                note = {"metadata": {"annotations": {ENDED_BY: reason}}}
                unless_gone(lambda: self.api.change(path, note))
                if seen.pods[rank].adopted:
                    self._say_of_pod(seen.pods[rank], "Stopped", f"gpuloom ends it: {reason.replace('_', ' ')}")
            case SetLimit(rank, _, limit_s):
                text = None if limit_s is None else f"{limit_s:g}"
                path = self._pod_path(seen.pods[rank])
                unless_gone(lambda: self.api.change(path, {"metadata": {"annotations": {LIMIT: text}}}))
            case DeleteJob(name, uid):
                path = self._job_path(name)
                # Without a policy it would leave its pods behind, running.
                unless_gone(lambda: self.api.delete(path, propagationPolicy="Background", preconditions={"uid": uid}))
                stop = own.attempt.members[0].stop
                if stop is not None:
                    owner = self._owner(name, uid)
                    why = f"gpuloom ends it: {stop.reason.value.replace('_', ' ')}"
                    say(self.api, self.setup.namespace, owner, "Stopped", why)
            case DeletePod(rank, uid, until_s):
                # 0 would take the pod away before anybody has seen that its processes are gone.
                grace_s = max(round(until_s - time.monotonic()), 1)
                path = self._pod_path(seen.pods[rank])
                unless_gone(lambda: self.api.delete(path, gracePeriodSeconds=grace_s, preconditions={"uid": uid}))
            case TakeEnd(rank, _):
                self._take_end(own, rank, seen.pods[rank])
            case Replace(rank, _):
                self._replace(own, rank, seen)
            case Release(rank, _):
                self._release(seen.pods[rank])
            case GiveBack(name, _, kind):
                self._adopter.give_job_back(own.attempt.name, self._job_path(name, kind))
            case TakeOver(name, before, kind):
                self._take_over(own, name, before, kind)
            case Leave(rank, _):
                self._leave(own, rank)
            case Shrink(name, replicas, to):
                job = seen.job
                assert job is not None  # noqa: S101 - else nobody asks for it
                patch = scaled(replicas, to, job.kind, job.task, job.spare)
                unless_gone(lambda: self.api.change(self._job_path(name, job.kind), patch))
                self._say(job, "Resized", f"from {replicas} to {to} replicas; the last ones leave")
            case Relabel(rank, _):
                members = json.dumps([list(one) for one in seen.job.members]) if seen.job is not None else None
                about = {"labels": {RUN: own.attempt.name}, "annotations": {MEMBERS: members, RESTARTS: None}}
                path = self._pod_path(seen.pods[rank])
                unless_gone(lambda: self.api.change(path, {"metadata": about}))

    def _take_over(self, own: Kept, name: str, before: str, kind: JobKind) -> None:
        """Raises ApiError."""
        attempt, path = own.attempt, self._job_path(name, kind)
        job = self.api.get(path)
        if job["metadata"]["labels"][RUN] != attempt.name:  # else the answer was lost
            if attempt.adopted:
                marks = self._adopter.marks(attempt)
            elif (made := self._prepared(own, name)) is not None:
                marks = made.job["metadata"]["annotations"]
            else:
                return
            replicas = len(attempt.members)
            if attempt.adopted:  # it may be ours then, whatever is answered
                with self._lock:
                    attempt.job, attempt.maybe, attempt.in_place = name, True, True
            self.api.change(path, taken_over(job, before, attempt.name, marks, replicas, kind))
            task = sized_task(job["metadata"]["annotations"])
            say_resized(self.api, self.setup, job, replicas, kind, task, "pods that run stay")
        for rank in attempt.members:
            self._files.goes_on(run_of(before, rank), run_of(attempt.name, rank))
        with self._lock:
            attempt.job, attempt.made, attempt.secret, own.made_s = name, True, True, time.monotonic()

    def _leave(self, own: Kept, rank: int) -> None:
        """Take its end down; its log until now is the attempt's."""
        run = run_of(own.attempt.name, rank)
        try:
            self._files.take_rest(run)
        except ExecutorError as error:
            log.warning("run %s: its log is read later: %s", run, error)
        with self._lock:
            own.attempt.members[rank].ended = RunExit(None, None, EndReason.RESIZED, "", time.time())

    def _bind(self, pod: Pod, node: str, values: Mapping[str, str], attempt: str) -> None:
        """Let a pod go that waits for a scheduler of our name. values: annotations that it needs before it begins.
        Raises ApiError."""
        path, about = self._pod_path(pod), pod.item["metadata"]
        if not pod.held:
            change = {
                "resourceVersion": about["resourceVersion"],
                "finalizers": [*(about.get("finalizers") or ()), FINALIZER],
                "labels": {RUN: attempt},
                "annotations": dict(values),
            }
            self.api.change(path, {"metadata": change})
        bound = {"name": pod.name, "namespace": self.setup.namespace, "uid": pod.uid}
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        item = {"apiVersion": "v1", "kind": "Binding", "metadata": bound, "target": target}
        self.api.create(f"{path}/binding", item)

    def _find(self, own: Kept) -> None:
        attempt = own.attempt
        if attempt.adopted and not attempt.in_place:
            self._adopter.find_pods(own)
            return
        owner = attempt.offer.owner
        kind = owner.kind if owner is not None and attempt.adopted else None
        found = True
        try:
            about = self.api.get(self._job_path(attempt.job_name, kind))["metadata"]
            found = (about.get("labels") or {}).get(RUN) == attempt.name
        except ApiError as error:
            if error.status != 404:
                raise
            found = False
        with self._lock:
            own.attempt.made, own.attempt.maybe = found, False
            own.made_s = time.monotonic() if found else None

    def _create(self, own: Kept) -> None:
        attempt = own.attempt
        if attempt.adopted:
            self._adopter.take_job(own)
            return
        name = attempt.job_name
        if (made := self._prepared(own, name)) is None:
            return
        with self._lock:
            attempt.maybe = True
        try:
            if made.direct:
                self._make_direct()
            if self._another(own, made.job):
                return
        except ApiError as error:
            self._refused(own, error)
            return
        with self._lock:
            attempt.made, own.made_s = True, time.monotonic()

    def _refused(self, own: Kept, error: ApiError) -> None:
        """What it takes can't be made. Raises the error: it is to be tried again."""
        if error.status in (400, 413, 422):
            self._refuse(own, Cause.JOB, f"Kubernetes refuses it: {error}")
        elif error.status in (403, 404):
            self._refuse(own, Cause.EXECUTOR, f"no {self.setup.kind.title} can be made: {error}")
        else:
            raise error

    def _another(self, own: Kept, job: Object) -> bool:
        """Make a Job; whether somebody else's has its name, so that the attempt is refused. Raises ApiError."""
        name = str(job["metadata"]["name"])
        try:
            self.api.create(self._job_path(), job)
        except ApiError as error:
            if error.status != 409:
                raise
            there = self.api.get(self._job_path(name))["metadata"].get("labels") or {}
            if (there.get(HOME), there.get(RUN)) != (self.setup.home, own.attempt.name):
                what = f"there is another {self.setup.kind.title} {name} in {self.setup.namespace}"
                self._refuse(own, Cause.EXECUTOR, what)
                return True
        return False

    def _begin(self, own: Kept, uid: str) -> None:
        """Make the Service and the Jobs of further tasks, which go with the first one, and have that make its pods."""
        if (made := self._prepared(own, own.attempt.job_name)) is None:
            return
        owner = self._owner(own.attempt.job_name, uid)
        try:
            if made.service is not None:
                self._make_owned("services", made.service, owner)
            for one in made.others:
                one["metadata"]["ownerReferences"] = [owner]
                if self._another(own, one):
                    return
        except ApiError as error:
            self._refused(own, error)
            return
        path = "/spec/suspend"
        patch = [{"op": "test", "path": path, "value": True}, {"op": "replace", "path": path, "value": False}]
        unless_gone(lambda: self.api.change(self._job_path(own.attempt.job_name), patch))

    def _owner(self, name: str, uid: str, kind: JobKind | None = None) -> Object:
        return {"apiVersion": (kind or self.setup.kind).api_version, "kind": "Job", "name": name, "uid": uid}

    def _prepared(self, own: Kept, name: str) -> Manifest | None:
        """What is sent for an attempt, whose folders are there by then; None: it is refused. name: of the Job."""
        try:
            made = self._manifest(own.attempt, name)
        except InputError as error:
            self._refuse(own, Cause.JOB, str(error))
            return None
        for rank in own.attempt.members if self.setup.claim else ():
            folder = run_directory(self.setup.runs, run_of(own.attempt.name, rank))
            folder.mkdir(parents=True, exist_ok=True)
            os.chmod(folder, 0o777)  # noqa: S103 - pods may run as any user
        return made

    def _manifest(self, attempt: Attempt, name: str) -> Manifest:
        """name: of the Job. Raises InputError."""
        with self._lock:
            members = [member for _, member in sorted(attempt.members.items())]
            asked = [member.spec for member in members if member.spec is not None]
        nodes = [member.node for member in members]
        return manifest(asked, nodes, self.setup, [self._resource_of(node) for node in nodes], name=name)

    def _refuse(self, own: Kept, cause: Cause, message: str) -> None:
        with self._lock:
            own.attempt.maybe = False
            own.attempt.refused = RunExit(None, None, EndReason.NOT_STARTED, message, time.time(), cause=cause)

    def _make_direct(self) -> None:
        name = direct_name()
        about = {"name": name, "namespace": self.setup.namespace, "labels": {"app.kubernetes.io/managed-by": "gpuloom"}}
        item = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": about,
            "immutable": True,
            "data": {"direct.py": Path(DIRECT).read_text()},
        }
        self._make_once("configmaps", item)

    def _say(self, job: Job, reason: str, message: str) -> None:
        """An Event of a Job."""
        say(self.api, self.setup.namespace, self._owner(job.name, job.uid, job.kind), reason, message)

    def _say_of_pod(self, pod: Pod, reason: str, message: str) -> None:
        say(self.api, self.setup.namespace, pod_reference(pod.name, pod.uid), reason, message)

    def _make_once(self, plural: str, item: Object) -> bool:
        """Whether it was not there."""
        try:
            self.api.create(self.setup.path("/api/v1", plural), item)
        except ApiError as error:
            if error.status != 409:
                raise
            return False
        return True

    def _make_owned(self, plural: str, item: Object, owner: Object) -> None:
        """Make what goes with a Job."""
        about = {**item["metadata"], "ownerReferences": [owner]}
        if self._make_once(plural, {**item, "metadata": about}):
            return
        # It may have been another Job's.
        patch = {"metadata": {"ownerReferences": [owner]}}
        unless_gone(lambda: self.api.change(self.setup.path("/api/v1", plural, about["name"]), patch))

    def _make_secret(self, own: Kept, uid: str) -> None:
        name = own.attempt.job_name
        item = self._manifest(own.attempt, name).secret
        owner = self._owner(name, uid)
        if item is not None:
            self._make_owned("secrets", item, owner)
        with self._lock:
            own.attempt.secret = True

    def _open(self, own: Kept, rank: int, uid: str, seen: Seen) -> None:
        pod, member = seen.pods[rank], own.attempt.members[rank]
        assert seen.job is not None  # noqa: S101 - else it is not to be opened
        values = seen.job.values[rank] if rank < len(seen.job.values) else {}
        with self._lock:
            if member.stop is not None:
                return
            member.pod = uid  # it may have been let go, whatever is answered
        if pod.adopted:
            run = run_name_of(own.attempt.name)
            number = "" if run is None else f" (`gpuloom show {run.job}`)"
            self._say_of_pod(pod, "Placed", f"gpuloom lets it go to node {member.node}{number}")
        if seen.job.in_place:
            values = {**values, MEMBERS: json.dumps([list(one) for one in seen.job.members])}
        if member.restarts:
            values = {**values, RESTARTS: str(member.restarts)}
        if not any(one.get("name") == GATE for one in pod.item["spec"].get("schedulingGates") or ()):
            unless_gone(lambda: self._bind(pod, member.node, values, own.attempt.name))
            return
        try:
            self.api.change(self._pod_path(pod), pinned(pod.item, member.node, values, own.attempt.name))
        except ApiError as error:
            # 422: its gate is gone, or it has changed since; what is seen next tells.
            if error.status not in (404, 422):
                raise

    def _notice(self, attempt: Attempt, rank: int, pod: Pod) -> None:
        stop = attempt.members[rank].stop
        if not self.setup.claim or stop is None or pod.adopted:
            return
        annotations = pod.item["metadata"].get("annotations") or {}
        folder = run_directory(self.setup.runs, first_run(annotations, run_of(attempt.name, rank)))
        deadline_s = time.time() + stop.until_s - time.monotonic()
        place = str(folder / NOTICE_FILE)
        write_atomic(place, {"reason": stop.reason.value, "deadline_s": deadline_s})
        os.chmod(place, 0o644)

    def _take_end(self, own: Kept, rank: int, pod: Pod) -> None:
        self._take_rest(own, rank)
        how = end_of(own.attempt, rank, pod)
        if pod.adopted and how.reason is EndReason.NODE and self._owner_is_done(pod):
            how = RunExit(0, None, None, "its owner's work is done", how.at_s)
        with self._lock:
            own.attempt.members[rank].ended = how

    def _owner_is_done(self, pod: Pod) -> bool:
        """Whether a pod that was taken away is not needed any more. Raises ApiError."""
        owner: Object = next(iter(pod.item["metadata"].get("ownerReferences") or ()), {})
        group = str(owner.get("apiVersion"))
        if owner.get("kind") != "Job" or group not in {kind.api_version for kind in KINDS.values()}:
            return False
        try:
            item = self.api.get(self.setup.path(f"/apis/{group}", "jobs", str(owner["name"])))
        except ApiError as error:
            if error.status != 404:
                raise
            return False
        return item["metadata"]["uid"] == owner["uid"] and ended_well(item)

    def _take_rest(self, own: Kept, rank: int) -> None:
        """Of its log, whose pod is over."""
        run = run_of(own.attempt.name, rank)
        try:
            self._files.take_rest(run)
        except ExecutorError as error:
            own.log_tries[rank] = tries = own.log_tries.get(rank, 0) + 1
            if tries < LOG_TRIES:
                raise
            log.warning("run %s: the end of its log is lost: %s", run, error)

    def _replace(self, own: Kept, rank: int, seen: Seen) -> None:
        attempt, pod = own.attempt, seen.pods[rank]
        member, run = attempt.members[rank], run_of(attempt.name, rank)
        self._take_rest(own, rank)
        with self._lock:
            if member.stop is not None:
                return
            first = member.replaced != pod.uid  # else it was done, and is not seen yet
            if first:
                member.replaced, member.restarts, member.pod = pod.uid, pod.restarts + 1, ""
                member.go = True  # as it had begun
                member.restarted, member.over_s, member.missing_s = what_happened(pod), None, None
                own.log_tries.pop(rank, None)
        self._release(pod)
        self._files.again(run)
        if first and seen.job is not None:
            text = f"member {rank} {member.restarted}; a new pod takes its place on {member.node}, the others run on"
            self._say(seen.job, "MemberRestarted", text)

    def _release(self, pod: Pod) -> None:
        if pod.adopted:
            self._adopter.give_back(pod)
            return
        held = list(pod.item["metadata"].get("finalizers") or ())
        if FINALIZER in held:
            place = f"/metadata/finalizers/{held.index(FINALIZER)}"
            patch = [{"op": "test", "path": place, "value": FINALIZER}, {"op": "remove", "path": place}]
            unless_gone(lambda: self.api.change(self._pod_path(pod), patch))
        if pod.deleted_s is None:  # its Job is gone, and nobody else would take it away
            unless_gone(lambda: self.api.delete(self._pod_path(pod), preconditions={"uid": pod.uid}))

    def _job_path(self, name: str = "", kind: JobKind | None = None) -> str:
        return self.setup.path((kind or self.setup.kind).path, "jobs", name)

    def _pod_path(self, pod: Pod) -> str:
        return self.setup.path("/api/v1", "pods", pod.name)
