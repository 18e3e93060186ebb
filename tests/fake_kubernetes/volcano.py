"""Volcano's controller, as far as recorded: what it makes of its Jobs (pods, PodGroup, Service, ConfigMap), and how
these end.

Its scheduler is a switch alone: with `admits` a PodGroup is let in at once, as its enqueue action does for any
scheduler name; without, it waits for somebody else to do that.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from copy import deepcopy
from typing import Any

from fake_kubernetes.errors import Refused
from fake_kubernetes.kinds import BY_PATH
from fake_kubernetes.store import Item, Store

POD, SERVICE = BY_PATH["", "v1", "pods"], BY_PATH["", "v1", "services"]
CONFIGMAP = BY_PATH["", "v1", "configmaps"]
JOB = BY_PATH["batch.volcano.sh", "v1alpha1", "jobs"]
GROUP = BY_PATH["scheduling.volcano.sh", "v1beta1", "podgroups"]
LET_IN = ("Inqueue", "Running")
OVER = ("Completed", "Failed", "Terminated", "Aborted")


class Volcano:
    """`look` does what there is to do now; somebody calls it after each change."""

    def __init__(self, store: Store, *, admits: bool = True) -> None:
        self.store, self.admits = store, admits

    def look(self) -> None:
        with self.store.changed:
            for job in list(self.store.items[JOB].values()):
                self._job(job)

    def _job(self, job: Item) -> None:
        about, spec = job["metadata"], job["spec"]
        if "deletionTimestamp" in about:
            return
        name, namespace = about["name"], about["namespace"]
        self._belongings(job)
        group = self.store.items[GROUP].get((namespace, self._group_name(job)))
        phase = ((job.get("status") or {}).get("state") or {}).get("phase", "")
        if group is None or phase in OVER:
            return
        said = (group.get("status") or {}).get("phase")
        if said not in LET_IN:
            if not self.admits:
                return
            self.store.update(
                GROUP, namespace, group["metadata"]["name"], lambda it: {**it, "status": {"phase": "Inqueue"}}
            )
        retries = int((job.get("status") or {}).get("retryCount", 0))
        restarts = any(
            one.get("event") == "PodFailed" and one.get("action") == "RestartPod" for one in spec.get("policies") or ()
        )
        for task in spec["tasks"]:
            wanted = int(task.get("replicas", 1))
            for index in range(wanted):
                key = (namespace, f"{name}-{task['name']}-{index}")
                there = self.store.items[POD].get(key)
                if there is None:
                    with suppress(Refused):  # an event says so, and it tries again
                        self.store.create(POD, self._pod(job, task, index))
                elif restarts and _phase(there) == "Failed" and "deletionTimestamp" not in there["metadata"]:
                    retries += 1
                    self.store.delete(POD, namespace, key[1])
            for pod in self._pods(namespace, name, task["name"]):
                about = pod["metadata"]
                if int(about["labels"]["volcano.sh/task-index"]) >= wanted and "deletionTimestamp" not in about:
                    self.store.delete(POD, namespace, about["name"])
        self._status(job, retries)

    def _status(self, job: Item, retries: int) -> None:
        about, spec = job["metadata"], job["spec"]
        counts: dict[str, int] = {}
        for task in spec["tasks"]:
            for pod in self._pods(about["namespace"], about["name"], task["name"]):
                gone = "deletionTimestamp" in pod["metadata"] and _phase(pod) not in ("Succeeded", "Failed")
                word = "terminating" if gone else _phase(pod).lower()
                counts[word] = counts.get(word, 0) + 1
        least = int(spec.get("minAvailable", 1))
        total = sum(int(task.get("replicas", 1)) for task in spec["tasks"])
        before = (job.get("status") or {}).get("state") or {}
        done, failed = counts.get("succeeded", 0), counts.get("failed", 0)
        phase = before.get("phase", "Pending")
        if done + failed >= total and done >= least:
            phase = "Completed"
        elif counts.get("running", 0) + done >= least:
            phase = "Running"
        state = (
            dict(before) if before.get("phase") == phase else {"phase": phase, "lastTransitionTime": self.store.stamp()}
        )
        status = {**{key: value for key, value in counts.items() if value}, "state": state, "minAvailable": least}
        if retries:
            status["retryCount"] = retries
        self.store.update(
            JOB, about["namespace"], about["name"], lambda it: {**it, "status": status}, status=True, check=False
        )

    def _belongings(self, job: Item) -> None:
        """What its plugins and its gang make beside the pods."""
        about, spec = job["metadata"], job["spec"]
        owner, namespace = [_owner(job)], about["namespace"]
        tasks = spec["tasks"]
        self._make(
            GROUP,
            {
                "metadata": {"name": self._group_name(job), "namespace": namespace, "ownerReferences": owner},
                "spec": {
                    "minMember": spec.get("minAvailable", 1),
                    "minTaskMember": {one["name"]: one.get("minAvailable", one.get("replicas", 1)) for one in tasks},
                    "queue": spec.get("queue", "default"),
                },
                "status": {},
            },
        )
        if "svc" not in (spec.get("plugins") or {}):
            return
        hosts = {
            f"{one['name']}.host": "".join(
                f"{about['name']}-{one['name']}-{index}.{about['name']}\n"
                for index in range(int(one.get("replicas", 1)))
            )
            for one in tasks
        }
        self._make(
            CONFIGMAP,
            {
                "metadata": {"name": f"{about['name']}-svc", "namespace": namespace, "ownerReferences": owner},
                "data": hosts,
            },
        )
        there = self.store.items[CONFIGMAP][namespace, f"{about['name']}-svc"]
        if there.get("data") != hosts:
            self.store.update(CONFIGMAP, namespace, f"{about['name']}-svc", lambda it: {**it, "data": hosts})
        self._make(
            SERVICE,
            {
                "metadata": {"name": about["name"], "namespace": namespace, "ownerReferences": owner},
                "spec": {"clusterIP": "None", "selector": {"volcano.sh/job-name": about["name"]}},
            },
        )

    def _make(self, kind: Any, item: Item) -> None:
        about = item["metadata"]
        if (about["namespace"], about["name"]) not in self.store.items[kind]:
            with suppress(Refused):  # of a name that is no name of such an object
                self.store.create(kind, item)

    def _group_name(self, job: Item) -> str:
        return f"{job['metadata']['name']}-{job['metadata']['uid']}"

    def _pods(self, namespace: str, name: str, task: str) -> Iterable[Item]:
        for pod in list(self.store.of_job.get((namespace, name), ())):
            found = self.store.items[POD][namespace, pod]
            if found["metadata"]["labels"].get("volcano.sh/task-spec") == task:
                yield found

    def _pod(self, job: Item, task: Item, index: int) -> Item:
        about, template = job["metadata"], deepcopy(task["template"])
        marks = {
            "volcano.sh/job-name": about["name"],
            "volcano.sh/queue-name": job["spec"].get("queue", "default"),
            "volcano.sh/task-index": str(index),
            "volcano.sh/task-spec": task["name"],
        }
        name = f"{about['name']}-{task['name']}-{index}"
        of_template = template.get("metadata") or {}
        spec = template["spec"]
        spec.setdefault("schedulerName", job["spec"].get("schedulerName", "volcano"))
        if "svc" in (job["spec"].get("plugins") or {}):
            spec |= {"hostname": name, "subdomain": about["name"]}
        if "env" in (job["spec"].get("plugins") or {}):
            for each in spec["containers"]:
                each["env"] = [*(each.get("env") or ()), {"name": "VC_TASK_INDEX", "value": str(index)}]
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {  # the template's finalizers are dropped
                "name": name,
                "namespace": about["namespace"],
                "labels": {
                    **(of_template.get("labels") or {}),
                    **marks,
                    "volcano.sh/job-namespace": about["namespace"],
                },
                "annotations": {
                    **(of_template.get("annotations") or {}),
                    **marks,
                    "scheduling.k8s.io/group-name": self._group_name(job),
                },
                "ownerReferences": [_owner(job)],
            },
            "spec": spec,
        }


def _owner(job: Item) -> Item:
    about = job["metadata"]
    return {
        "apiVersion": JOB.api_version,
        "kind": "Job",
        "name": about["name"],
        "uid": about["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def _phase(pod: Item) -> str:
    return str((pod.get("status") or {}).get("phase", "Pending"))
