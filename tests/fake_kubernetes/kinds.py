"""The kinds that the fake API server has."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Kind:
    """A resource. group '' is the core. custom: defined by a CustomResourceDefinition, where some rules differ.
    generation: its `spec` is counted. fields: field selectors that are known besides name and namespace."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True
    custom: bool = False
    generation: bool = False
    fields: tuple[str, ...] = ()
    subresources: tuple[str, ...] = ()

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def singular(self) -> str:
        return self.kind.lower()


POD_FIELDS = (
    "spec.nodeName",
    "spec.restartPolicy",
    "spec.schedulerName",
    "spec.serviceAccountName",
    "spec.hostNetwork",
    "status.phase",
    "status.podIP",
    "status.nominatedNodeName",
)

KINDS = (
    Kind("", "v1", "namespaces", "Namespace", namespaced=False, subresources=("status",)),
    Kind("", "v1", "nodes", "Node", namespaced=False, fields=("spec.unschedulable",), subresources=("status",)),
    Kind(
        "",
        "v1",
        "pods",
        "Pod",
        generation=True,
        fields=POD_FIELDS,
        subresources=("status", "binding", "eviction", "log"),
    ),
    Kind("", "v1", "configmaps", "ConfigMap"),
    Kind("", "v1", "secrets", "Secret"),
    Kind("", "v1", "events", "Event", fields=("involvedObject.name", "reason", "type")),
    Kind("", "v1", "services", "Service", subresources=("status",)),
    Kind("", "v1", "serviceaccounts", "ServiceAccount"),
    Kind("", "v1", "resourcequotas", "ResourceQuota", subresources=("status",)),
    Kind("", "v1", "limitranges", "LimitRange"),
    Kind("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", subresources=("status",)),
    Kind("batch", "v1", "jobs", "Job", generation=True, fields=("status.successful",), subresources=("status",)),
    Kind("coordination.k8s.io", "v1", "leases", "Lease"),
    Kind("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", generation=True, subresources=("status",)),
    Kind("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", namespaced=False),
    Kind("batch.volcano.sh", "v1alpha1", "jobs", "Job", custom=True, generation=True, subresources=("status",)),
    Kind("scheduling.volcano.sh", "v1beta1", "podgroups", "PodGroup", custom=True, generation=True),
    Kind(
        "scheduling.volcano.sh",
        "v1beta1",
        "queues",
        "Queue",
        namespaced=False,
        custom=True,
        generation=True,
        subresources=("status",),
    ),
    Kind("bus.volcano.sh", "v1alpha1", "commands", "Command", custom=True),
    Kind("kueue.x-k8s.io", "v1beta1", "workloads", "Workload", custom=True, generation=True, subresources=("status",)),
)
BY_PATH = {(kind.group, kind.version, kind.plural): kind for kind in KINDS}
GROUPS = {(kind.group, kind.version) for kind in KINDS}
