"""The Job controller of Kubernetes, as far as recorded, for Indexed Jobs: what it makes of them, replaces and ends."""

from __future__ import annotations

from contextlib import suppress
from copy import deepcopy
from typing import Any

from fake_kubernetes.errors import Refused
from fake_kubernetes.kinds import BY_PATH
from fake_kubernetes.store import Item, Store

POD, JOB = BY_PATH["", "v1", "pods"], BY_PATH["batch", "v1", "jobs"]
TRACKED = "batch.kubernetes.io/job-tracking"
INDEX = "batch.kubernetes.io/job-completion-index"


class IndexedJobs:
    """`look` does what there is to do now; somebody calls it after each change, and at `due_s`.

    back_off_s: until what failed once is made again; it doubles each time. The real one takes 10 s.
    """

    def __init__(self, store: Store, *, back_off_s: float = 10.0) -> None:
        self.store, self.back_off_s = store, back_off_s
        self.due_s: float | None = None
        """When there is something to do though nothing changes, by the store's clock."""
        self._failed: dict[str, tuple[int, float]] = {}
        """By the uid of a Job: how many pods have failed in a row, and when the last one did."""

    def look(self) -> None:
        self.due_s = None
        with self.store.changed:
            jobs = {one["metadata"]["uid"]: one for one in self.store.items[JOB].values()}
            of_job: dict[str, list[Item]] = {}
            for pod in list(self.store.items[POD].values()):
                if (owner := self._owner(pod)) in jobs:
                    of_job.setdefault(owner, []).append(pod)
                elif TRACKED in (pod["metadata"].get("finalizers") or ()):
                    self._let_go(pod)  # of a Job that is gone
            for uid, job in jobs.items():
                mode = job["spec"].get("completionMode")
                if "deletionTimestamp" not in job["metadata"] and mode == "Indexed" and "managedBy" not in job["spec"]:
                    self._job(job, of_job.get(uid, []))

    def _job(self, job: Item, pods: list[Item]) -> None:
        about, spec, status = job["metadata"], job["spec"], deepcopy(job.get("status") or {})
        conditions = {one["type"]: one for one in status.get("conditions") or ()}
        if any(conditions.get(name, {}).get("status") == "True" for name in ("Complete", "Failed")):
            return
        wanted = min(int(spec["parallelism"]), int(spec["completions"]))
        done = {int(one) for one in str(status.get("completedIndexes") or "").split(",") if one}
        done = {index for index in done if index < int(spec["completions"])}
        failed, active, ending = int(status.get("failed", 0)), set[int](), set[int]()
        for pod in pods:
            index, phase = int(pod["metadata"]["annotations"][INDEX]), _phase(pod)
            counted = TRACKED not in (pod["metadata"].get("finalizers") or ())
            # Who is ended before it has a node counts as failed: the collector of pods says so.
            nowhere = "deletionTimestamp" in pod["metadata"] and not pod["spec"].get("nodeName")
            if phase in ("Succeeded", "Failed") or nowhere:
                if not counted:
                    self._let_go(pod)
                if not counted and index < wanted and phase == "Succeeded":
                    done.add(index)
                    self._failed.pop(about["uid"], None)
                elif not counted and index < wanted:
                    failed += 1
                    before, _ = self._failed.get(about["uid"], (0, 0.0))
                    self._failed[about["uid"]] = before + 1, self.store.now()
            elif "deletionTimestamp" in pod["metadata"]:
                ending.add(index)
            elif index >= wanted or spec.get("suspend"):
                if not counted:
                    self._let_go(pod)
                with suppress(Refused):
                    self.store.delete(POD, about["namespace"], pod["metadata"]["name"])
                ending.add(index)
            else:
                active.add(index)
        if spec.get("suspend"):
            status = {"conditions": [self._condition(conditions, "Suspended", "True", "JobSuspended")]}
        elif len(done) >= int(spec["completions"]):
            status["conditions"] = [
                *(status.get("conditions") or ()),
                self._condition({}, "SuccessCriteriaMet", "True", "CompletionsReached"),
                self._condition({}, "Complete", "True", "CompletionsReached"),
            ]
            status.setdefault("completionTime", self.store.stamp())
        else:
            if "Suspended" in conditions:
                status["conditions"] = [self._condition(conditions, "Suspended", "False", "JobResumed")]
            status.setdefault("startTime", self.store.stamp())
            missing = [index for index in range(wanted) if index not in done | active | ending]
            if missing and self._waits(about["uid"]):
                missing = []
            for index in missing:
                with suppress(Refused):  # an event says so, and it tries again
                    self.store.create(POD, self._pod(job, index))
                    active.add(index)
        counts = {"active": len(active), "succeeded": len(done), "failed": failed}
        status |= {name: count for name, count in counts.items() if count}
        for name in [name for name, count in counts.items() if not count]:
            status.pop(name, None)
        status.pop("completedIndexes", None)
        if done:
            status["completedIndexes"] = ",".join(map(str, sorted(done)))
        ready = sum(1 for pod in pods if _phase(pod) == "Running" and "deletionTimestamp" not in pod["metadata"])
        status |= {"terminating": len(ending), "uncountedTerminatedPods": {}, "ready": ready}
        if status != job.get("status"):
            self.store.update(
                JOB, about["namespace"], about["name"], lambda it: {**it, "status": status}, status=True, check=False
            )

    def _waits(self, uid: str) -> bool:
        """It makes no pods now, as some have failed."""
        times, at_s = self._failed.get(uid, (0, 0.0))
        if not times:
            return False
        until_s = at_s + self.back_off_s * 2 ** (times - 1)
        if self.store.now() >= until_s:
            return False
        self.due_s = until_s if self.due_s is None else min(self.due_s, until_s)
        return True

    def _condition(self, before: dict[str, Item], name: str, holds: str, reason: str) -> Item:
        was = before.get(name)
        if was is not None and was["status"] == holds:
            return was
        stamp = self.store.stamp()
        text = {
            "JobSuspended": "Job suspended",
            "JobResumed": "Job resumed",
            "CompletionsReached": "Reached expected number of succeeded pods",
        }[reason]
        return {
            "type": name,
            "status": holds,
            "lastProbeTime": stamp,
            "lastTransitionTime": stamp,
            "reason": reason,
            "message": text,
        }

    def _let_go(self, pod: Item) -> None:
        about = pod["metadata"]
        left = [one for one in about.get("finalizers") or () if one != TRACKED]
        with suppress(Refused):
            self.store.update(
                POD,
                about["namespace"],
                about["name"],
                lambda it: {**it, "metadata": {**it["metadata"], "finalizers": left}},
                check=False,
            )

    def _owner(self, pod: Item) -> str:
        owners = pod["metadata"].get("ownerReferences") or ()
        return next((str(one["uid"]) for one in owners if one.get("controller") and one.get("kind") == "Job"), "")

    def _pod(self, job: Item, index: int) -> Item:
        about, template = job["metadata"], deepcopy(job["spec"]["template"])
        of_template, spec = template.get("metadata") or {}, template["spec"]
        labels = {
            **(of_template.get("labels") or {}),
            "batch.kubernetes.io/controller-uid": about["uid"],
            INDEX: str(index),
            "batch.kubernetes.io/job-name": about["name"],
            "controller-uid": about["uid"],
            "job-name": about["name"],
        }
        spec["hostname"] = f"{about['name']}-{index}"
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": about["name"], "uid": about["uid"]}
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "generateName": f"{about['name']}-{index}-",
                "namespace": about["namespace"],
                "labels": labels,
                "annotations": {**(of_template.get("annotations") or {}), INDEX: str(index)},
                "finalizers": [*(of_template.get("finalizers") or ()), TRACKED],
                "ownerReferences": [{**owner, "controller": True, "blockOwnerDeletion": True}],
            },
            "spec": spec,
        }


def _phase(pod: Item) -> Any:
    return (pod.get("status") or {}).get("phase", "Pending")
