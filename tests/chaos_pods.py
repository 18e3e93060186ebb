"""Chaos on a Kubernetes cluster of twenty nodes (fake_kubernetes), whose pods are real processes.

Besides what may happen to the head: requests fail, whether they were done or not, watches are cut and too old, pods and
Jobs are deleted, pods evicted, nodes cordoned, and nodes lost with all that ran there. At the end, and once in
between, the cluster has exactly the pods of the attempts that the head says are there.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from chaos_base import PATIENCE_S, Chaos
from fake_kubernetes.cluster import JOB, NODE, POD, VCJOB, Cluster
from fake_kubernetes.errors import Refused
from fake_kubernetes.machines import Machines
from fake_kubernetes.server import FakeApi, Fault, Request
from gpuloom.client.errors import ConnectionLostError, NoSchedulerError, ServerError
from until import until

NODES = tuple(f"n{number}" for number in range(1, 21))
GPUS = 2
"""Of each node."""


class PodsChaos(Chaos):
    """See the module."""

    FAULTS: ClassVar[Mapping[str, int]] = {
        "head": 10,
        "head stands still": 4,
        "head: requests fail": 14,
        "watches are cut": 8,
        "watches are too old": 6,
        "node: a pod is deleted": 10,
        "node: a pod is taken away by force": 4,
        "node: a Job is deleted": 6,
        "node: a Job is deleted, and not its pods": 4,
        "node cordoned": 6,
        "node lost": 8,
        "job": 10,
    }

    def __init__(self, folder: Path, seed: int, jobs: int, stack: ExitStack) -> None:
        super().__init__(folder, seed, jobs, stack, ("head",))
        kind = ("volcano", "indexed")[seed % 2]
        self.api = FakeApi()
        stack.callback(self.api.close)
        self.cluster = Cluster(self.api)
        self.machines = stack.enter_context(Machines(self.api, back_off_s=0.3))
        for name in NODES:
            self.cluster.add_node(name, GPUS)
        config = self.api.kubeconfig(folder / "kubeconfig")
        placement = ("gate", "bind")[seed // 2 % 2]
        self._up("--executor", "kubernetes", "--kubeconfig", str(config), "--job-kind", kind, "--image", "here:1",
                 "--placement", placement)  # fmt: skip

    def _begin(self) -> None:
        """Nodes are there as soon as the head is."""

    def _excused(self, name: str) -> bool:
        """Whoever stood still for too long has lost its lease, and ends."""
        return self._lately("head") or super()._excused(name)

    def _do(self, kind: str) -> bool:
        match kind:
            case "head stands still":
                return "head" not in self.hurt and self._stand_still("head", self.processes["head"].pid)
            case "head: requests fail":
                return self._fail()
            case "watches are cut" | "watches are too old":
                if kind == "watches are too old":
                    self.api.store.compact()
                self.api.cut_watches()
                return True
            case "node: a pod is deleted" | "node: a pod is taken away by force":
                force = {"gracePeriodSeconds": 0} if "force" in kind else {}
                return self._delete(POD, force)
            case "node: a Job is deleted" | "node: a Job is deleted, and not its pods":
                policy = "Orphan" if "not its pods" in kind else "Background"
                return self._delete(self.rng.choice((VCJOB, JOB)), {"propagationPolicy": policy})
            case "node cordoned" | "node lost":
                return self._strike_node(kind, self.rng.choice(NODES))
        return super()._do(kind)

    def _fail(self) -> bool:
        """The next requests, or those of some seconds; others between them are answered."""
        status, done = self.rng.choice((0, 429, 500, 504)), self.rng.random() < 0.5
        writes = self.rng.random() < 0.7
        part = self.rng.random()

        def wanted(request: Request) -> bool:
            return (request.method != "GET" or not writes) and self.rng.random() < part

        times = self.rng.choice((1, 3, 20))
        fault = Fault(wanted, status=status, body="no", done=done and status != 429, times=times)
        self.api.faults.append(fault)

        def over() -> None:
            if fault in self.api.faults:
                self.api.faults.remove(fault)

        self._for(self.rng.uniform(0.5, 4), f"requests {id(fault)}", over)
        return True

    def _items(self, kind: Any) -> list[Any]:
        with self.api.store.changed:
            return list(self.api.store.items[kind].values())

    def _delete(self, kind: Any, how: dict[str, Any]) -> bool:
        names = sorted(one["metadata"]["name"] for one in self._items(kind))
        if not names:
            return False
        try:
            self.api.store.delete(kind, "default", self.rng.choice(names), how)
        except Refused:  # it has gone meanwhile
            return False
        return True

    def _strike_node(self, kind: str, name: str) -> bool:
        if any(one.startswith("node") for one in self.hurt if one.endswith(f" {name}")):
            return False
        if kind == "node cordoned":
            self.cluster.change(name, NODE, unschedulable=True)
            open_again = partial(self.cluster.change, name, NODE, unschedulable=None)
            self._for(self.rng.uniform(0.5, 6), f"node {name}", open_again)
            return True
        self.machines.lose(name)
        gone = self.rng.random() < 0.5

        def back() -> None:
            if gone:
                self.cluster.add_node(name, GPUS)
            else:
                self._set_ready(name, "True")
            self.machines.find(name)

        if gone:
            self.api.store.delete(NODE, "", name, {})
        else:
            self._set_ready(name, "Unknown")
        self._for(self.rng.uniform(0.5, 6), f"node {name}", back)
        return True

    def _set_ready(self, name: str, status: str) -> None:
        """As its node controller does, or its kubelet."""
        self.cluster.change(name, NODE, status=True, conditions=[{"type": "Ready", "status": status}])

    def _mend(self) -> None:
        super()._mend()
        self.api.faults.clear()
        try:
            until(self._as_said, "the cluster to have what the head says", PATIENCE_S)
        except AssertionError as error:
            raise AssertionError(f"{error}: {self._both()}") from None

    def _both(self) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
        """What runs as the head says, and in the cluster: attempt and node of each member."""
        there = [
            (one["metadata"]["labels"]["gpuloom.io/run"].partition("-")[0], one["spec"]["nodeName"])
            for one in self._items(POD)
            if one["status"].get("phase") == "Running" and "deletionTimestamp" not in one["metadata"]
        ]
        said = []
        for view in self.home.client.jobs(states=("running",)):
            one = self.home.client.show(view["id"])["attempts"][-1]
            nodes = [place.partition(":")[0] for place in one["where"].split()]
            said += [(f"{view['id']}.{one['number']}", node) for node in nodes]
        return sorted(said), sorted(there)

    def _as_said(self) -> bool:
        try:
            said, there = self._both()
        except (ConnectionLostError, NoSchedulerError, ServerError):
            return False
        return said == there

    def _all_free(self) -> bool:
        gpus = [gpu for node in self._nodes() for gpu in node["gpus"]]
        return len(gpus) == GPUS * len(NODES) and not any(gpu["jobs"] for gpu in gpus)

    def _leave(self) -> None:
        """Nothing of what it made is left."""
        until(lambda: not any(map(self._items, (POD, JOB, VCJOB))), "nothing to be left in the cluster", PATIENCE_S)
