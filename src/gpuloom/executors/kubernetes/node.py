"""A node of a Kubernetes cluster as a NodePort: its runs are pods that are pinned to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpuloom.core.end_reason import EndReason
from gpuloom.executors.kubernetes.cluster import PodCluster
from gpuloom.executors.node import Capabilities, RunFiles, RunSpec, Weaving
from gpuloom.executors.port import OnStatus, RunStatus

CAN = Capabilities(
    freezes=False, limits=True, memory=True, cpus=True, kills_all=True, suspends=False, shares=False, resizes=True
)
LIMITS = {
    "processes": "their containers end with them",
    "freezing": "not here: pods can't be stopped where they are",
    "memory": "by the kernel, as limits of their containers",
    "cpus": "share of CPU time, as requests of their containers",
    "time": "by the scheduler, while it runs",
}


class PodNode:
    """A NodePort."""

    def __init__(self, name: str, cluster: PodCluster) -> None:
        self.name, self.cluster = name, cluster
        self.files: RunFiles = cluster.files

    def open(self, on_status: OnStatus, *, patience_s: float = 10.0) -> None:
        """See `NodePort`."""
        self.cluster.listen(self.name, on_status)

    def runs(self, *, patience_s: float = 10.0) -> Sequence[RunStatus]:
        """See `NodePort`."""
        return self.cluster.runs(self.name)

    def start(self, spec: RunSpec) -> None:
        """See `NodePort`."""
        self.cluster.start_run(self.name, spec)

    def go(self, run: str) -> None:
        """See `NodePort`."""
        self.cluster.go(run)

    def stop(self, run: str, *, reason: EndReason, grace_s: float) -> None:
        """See `NodePort`."""
        self.cluster.stop(run, reason, grace_s)

    def limit(self, run: str, limit_s: float | None) -> None:
        """See `NodePort`."""
        self.cluster.limit(run, limit_s)

    def freeze(self, run: str) -> None:
        """Pods don't freeze, as `capabilities` says: nothing happens."""

    def thaw(self, run: str) -> None:
        """See `freeze`."""

    def weave(self, weaving: Weaving) -> None:
        """Pods share no GPUs, as `capabilities` says: nobody is to be told."""

    def acknowledge(self, run: str) -> None:
        """See `NodePort`."""
        self.cluster.acknowledge(run)

    def boot_id(self) -> str:
        """Not known: pods end with their machine."""
        return ""

    def healthy(self) -> str:
        """See `NodePort`."""
        return self.cluster.problem

    def capabilities(self) -> Capabilities:
        """See `NodePort`."""
        return CAN

    def limits(self) -> Mapping[str, str]:
        """See `NodePort`."""
        return LIMITS

    def clear(self) -> None:
        """A person says that its GPUs are well: what the cluster says of them counts."""

    def close(self) -> None:
        """See `NodePort`."""
        self.cluster.listen(self.name, None)
