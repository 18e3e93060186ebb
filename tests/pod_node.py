"""A node of a fake Kubernetes cluster, whose kubelets run pods as processes of this machine."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from fake_kubernetes.cluster import Cluster
from fake_kubernetes.machines import Machines
from fake_kubernetes.server import FakeApi
from gpuloom.executors.kubernetes.cluster import PodCluster
from gpuloom.executors.kubernetes.kinds import VOLCANO, JobKind
from gpuloom.executors.kubernetes.manifest import Setup
from gpuloom.executors.kubernetes.node import PodNode
from gpuloom.executors.node import NodePort
from gpuloom.kubernetes.api import connect

NAME = "n1"


class PodTarget:
    """A cluster of one node. shared: pods see the folder of their runs. kind: what jobs are made as."""

    runner = None
    pods = True

    def __init__(self, home: Path, *, shared: bool = True, kind: JobKind = VOLCANO) -> None:
        home.mkdir(parents=True)
        self.home, self.shared, self.kind = home, shared, kind
        self.template: Mapping[str, Any] = {}
        self._stack = ExitStack()
        self.api = self._stack.enter_context(FakeApi())
        self.machines = self._stack.enter_context(Machines(self.api))
        self.cluster = Cluster(self.api)
        self.cluster.add_node(NAME, 8)
        self.cluster.add_node("there", 8)
        self.pods: PodCluster | None = None

    def setup(self) -> Setup:
        claim = "runs" if self.shared else ""
        runs = self.home / "runs"
        return Setup("default", "0123456789ab", runs, "here:1", self.template, claim, kind=self.kind)

    def connect(self) -> NodePort:
        self._let_go()
        api = connect(self.api.kubeconfig(self.home / "kubeconfig"))
        self.pods = PodCluster(api, self.setup(), lambda node: "nvidia.com/gpu")
        self.pods.start()
        return PodNode(NAME, self.pods)

    def _let_go(self) -> None:
        if self.pods is not None:
            self.pods.close()
            self.pods.api.close()
            self.pods.join()
            self.pods = None

    def close(self) -> None:
        self._let_go()
        self._stack.close()
