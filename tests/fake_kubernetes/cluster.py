"""What else a cluster has, for tests: nodes with GPUs, a plain scheduler, kubelets that run pods for as long as told.

All of it works on the store of a `FakeApi` directly, as what it plays is not what is tested.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from fake_kubernetes.kinds import BY_PATH
from fake_kubernetes.server import FakeApi
from fake_kubernetes.store import Item

POD, NODE = BY_PATH["", "v1", "pods"], BY_PATH["", "v1", "nodes"]
JOB, VCJOB = BY_PATH["batch", "v1", "jobs"], BY_PATH["batch.volcano.sh", "v1alpha1", "jobs"]
WORKLOAD = BY_PATH["kueue.x-k8s.io", "v1beta1", "workloads"]


def node(name: str, gpus: int = 8, model: str = "NVIDIA-A100-SXM4-80GB", **spec: Any) -> Item:
    """A node that is ready."""
    counts = {"cpu": "64", "memory": "512Gi", "nvidia.com/gpu": str(gpus)}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {"nvidia.com/gpu.product": model, "nvidia.com/gpu.memory": "81920"},
        },
        "spec": spec,
        "status": {
            "capacity": counts,
            "allocatable": dict(counts),
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}],
            "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
        },
    }


def pod(name: str, gpus: int = 1, *, labels: Mapping[str, str] | None = None, **more: Any) -> Item:
    """A pod that asks for GPUs. more: of its metadata if they are fields of that, else of its spec."""
    about: Item = {"name": name, **({"labels": dict(labels)} if labels else {})}
    for field in ("ownerReferences", "annotations", "finalizers", "namespace"):
        if field in more:
            about[field] = more.pop(field)
    container = {
        "name": "main",
        "image": "train:1",
        "command": ["python", "train.py"],
        "resources": {"limits": {"nvidia.com/gpu": str(gpus)}},
    }
    spec = {"restartPolicy": "Never", "containers": [container], **more}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": spec}


def owner(kind: str, item: Item) -> list[Item]:
    """The reference of its controller."""
    about = item["metadata"]
    return [{"apiVersion": "v1", "kind": kind, "name": about["name"], "uid": about["uid"], "controller": True}]


class Cluster:
    """See the module. at_s: the cluster's time; None: the present."""

    def __init__(self, api: FakeApi, namespace: str = "default") -> None:
        self.api, self.store, self.namespace = api, api.store, namespace
        self.at_s: float | None = None
        self.store.now = lambda: time.time() if self.at_s is None else self.at_s

    def create(self, item: Item, kind: Any = POD) -> Item:
        namespace = self.namespace if kind.namespaced else ""
        item = {**item, "metadata": {"namespace": namespace, **item["metadata"]}}
        if not kind.namespaced:
            del item["metadata"]["namespace"]
        return self.store.create(kind, item)

    def add_node(self, name: str, gpus: int = 8, **more: Any) -> Item:
        return self.create(node(name, gpus, **more), NODE)

    def change(self, name: str, kind: Any = POD, *, status: bool = False, **fields: Any) -> Item:
        """Set fields of its spec, or of its status."""
        part = "status" if status else "spec"

        def changed(item: Item) -> Item:
            return {**item, part: {**(item.get(part) or {}), **fields}}

        where = self.namespace if kind.namespaced else ""
        if kind is NODE and status:
            with self.store.changed:
                before = self.store.get(kind, where, name)
                return self.store._put(kind, before, {**changed(before), "metadata": dict(before["metadata"])})
        return self.store.update(kind, where, name, changed, status=status, check=False)

    def bind(self, name: str, to: str) -> None:
        """It gets its node, and runs."""
        stamp = self.store.stamp()
        self.change(name, nodeName=to)
        self.change(
            name,
            status=True,
            phase="Running",
            startTime=stamp,
            conditions=[{"type": "PodScheduled", "status": "True", "lastTransitionTime": stamp}],
            containerStatuses=[{"name": "main", "state": {"running": {"startedAt": stamp}}}],
        )

    def unschedulable(self, name: str, message: str) -> None:
        condition = {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": message,
            "lastTransitionTime": self.store.stamp(),
        }
        self.change(name, status=True, phase="Pending", conditions=[condition])

    def finish(self, name: str, exit_code: int = 0, reason: str = "") -> None:
        """Its container ends."""
        before = self.store.get(POD, self.namespace, name)["status"]
        ended = {
            "exitCode": exit_code,
            "reason": reason or ("Error" if exit_code else "Completed"),
            "startedAt": before.get("startTime"),
            "finishedAt": self.store.stamp(),
        }
        self.change(
            name,
            status=True,
            phase="Failed" if exit_code else "Succeeded",
            containerStatuses=[{"name": "main", "state": {"terminated": ended}}],
        )

    def delete(self, name: str, kind: Any = POD) -> None:
        """It is gone, as by a kubelet that ends it at once."""
        self.store.delete(kind, self.namespace if kind.namespaced else "", name, {"gracePeriodSeconds": 0})
