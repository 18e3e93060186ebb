"""What is read of the objects of a Kubernetes cluster."""

from __future__ import annotations

from typing import Any

import pytest

from fake_kubernetes.cluster import node, pod
from gpuloom.kubernetes.objects import End, PodPhase, Reader, Taint, Toleration
from gpuloom.kubernetes.quantities import quantity, time_s
from gpuloom.live.pod_nodes import _record

AT = "2026-11-22T08:57:56Z"
AT_S = 1795337876.0
READER = Reader()


@pytest.mark.parametrize(
    ("text", "number"),
    [("8", 8.0), ("500m", 0.5), ("64Gi", 64 * 2**30), ("1k", 1000.0), ("1e3", 1000.0), (3, 3.0), ("", 0.0), ("x", 0.0)],
)
def test_quantities(text: object, number: float) -> None:
    assert quantity(text) == number


def test_times() -> None:
    assert time_s(AT) == AT_S
    assert time_s("2026-11-22T08:57:56.250000Z") == AT_S + 0.25
    assert time_s(None) is None
    assert time_s("soon") is None


def made(item: dict[str, Any], **status: Any) -> dict[str, Any]:
    """As the server has it."""
    about = {"uid": "u1", "namespace": "team", "creationTimestamp": AT, **item["metadata"]}
    return {**item, "metadata": about, "status": {"phase": "Pending", **status}}


def test_a_pod_without_gpus_does_not_matter() -> None:
    assert READER.pod(made(pod("a", 0))) is None


def test_gpus_are_those_of_all_containers_or_of_the_largest_that_comes_before_them() -> None:
    item = made(pod("a", 2))
    more = {"name": "b", "resources": {"requests": {"nvidia.com/gpu": "1"}}}
    item["spec"]["containers"].append(more)
    found = READER.pod(item)
    assert found is not None
    assert found.asked.gpus == 3
    first = {"name": "init", "resources": {"limits": {"nvidia.com/gpu": "8"}}}
    item["spec"]["initContainers"] = [first]
    found = READER.pod(item)
    assert found is not None
    assert found.asked.gpus == 8
    item["spec"]["initContainers"] = [{**more, "restartPolicy": "Always"}]  # a sidecar
    found = READER.pod(item)
    assert found is not None
    assert found.asked.gpus == 4


def test_gpus_of_other_makers_and_by_another_name() -> None:
    item = made(pod("a"))
    item["spec"]["containers"][0]["resources"] = {"limits": {"amd.com/gpu": 4}}
    found = READER.pod(item)
    assert found is not None
    assert found.asked.gpus == 4
    assert Reader(["acme.io/gpu"]).pod(item) is None


def test_a_pod_that_waits() -> None:
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "0/3 nodes.\n no room.",
    }
    item = made(pod("a", nodeSelector={"nvidia.com/gpu.product": "Tesla-V100"}), conditions=[condition])
    item["metadata"]["annotations"] = {"gpuloom.io/estimate": "2h"}
    item["spec"]["schedulingGates"] = [{"name": "x.io/quota"}]
    found = READER.pod(item)
    assert found is not None
    assert (found.node, found.waits, found.gates) == ("", "0/3 nodes. no room", ("x.io/quota",))
    assert (found.asked.models, found.asked.estimate_s) == (("Tesla-V100",), 7200.0)
    assert (found.bound_s, found.ended_s, found.over) == (None, None, False)


def test_an_estimate_that_is_none_is_not_known() -> None:
    item = made(pod("a"))
    item["metadata"]["annotations"] = {"gpuloom.io/estimate": "long"}
    found = READER.pod(item)
    assert found is not None
    assert found.asked.estimate_s is None


def affinity(*terms: list[dict[str, Any]]) -> dict[str, Any]:
    required = {"nodeSelectorTerms": [{"matchExpressions": term} for term in terms]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


def test_models_of_an_affinity() -> None:
    key = "nvidia.com/gpu.product"
    two = affinity(
        [{"key": key, "operator": "In", "values": ["A", "B"]}], [{"key": key, "operator": "In", "values": ["C"]}]
    )
    found = READER.pod(made(pod("a", affinity=two)))
    assert found is not None
    assert found.asked.models == ("A", "B", "C")
    any_of_them = affinity([{"key": key, "operator": "In", "values": ["A"]}], [{"key": "zone", "operator": "Exists"}])
    found = READER.pod(made(pod("a", affinity=any_of_them)))
    assert found is not None
    assert found.asked.models == ()


def test_a_pod_that_ran_out_of_memory() -> None:
    ended = {"exitCode": 137, "reason": "OOMKilled", "startedAt": AT, "finishedAt": "2026-11-22T09:57:56Z"}
    item = made(
        pod("a", nodeName="n1"),
        phase="Failed",
        conditions=[{"type": "PodScheduled", "status": "True", "lastTransitionTime": AT}],
        containerStatuses=[
            {"name": "side", "state": {"terminated": {"exitCode": 0, "reason": "Completed", "finishedAt": AT}}},
            {"name": "main", "state": {"terminated": ended}},
        ],
    )
    found = READER.pod(item)
    assert found is not None
    assert (found.phase, found.bound_s, found.began_s, found.ended_s) == (PodPhase.FAILED, AT_S, AT_S, AT_S + 3600)
    assert (found.exit_code, found.reason, found.over, found.node) == (137, "OOMKilled", True, "n1")


def test_a_phase_that_nobody_knows() -> None:
    found = READER.pod(made(pod("a"), phase="Dancing"))
    assert found is not None
    assert found.phase is PodPhase.UNKNOWN


@pytest.mark.parametrize(
    ("labels", "shares", "mib"),
    [
        ({}, 1, 81_920),
        ({"gpu.replicas": "1", "gpu.sharing-strategy": "none"}, 1, 81_920),
        ({"gpu.replicas": "4", "gpu.sharing-strategy": "none"}, 1, 81_920),  # of an earlier configuration
        ({"gpu.replicas": "4", "gpu.sharing-strategy": "time-slicing"}, 4, 20_480),
        ({"gpu.replicas": "3", "gpu.sharing-strategy": "mps"}, 3, 27_306),
        ({"gpu.replicas": "4"}, 4, 20_480),  # the device plugin of before 0.15 tells no strategy
        ({"gpu.replicas": "0"}, 1, 81_920),
        ({"gpu.replicas": "many"}, 1, 81_920),
    ],
)
def test_gpus_that_a_node_offers_in_shares(labels: dict[str, str], shares: int, mib: int) -> None:
    item = node("n1", 8)
    item["metadata"]["labels"] |= {f"nvidia.com/{name}": text for name, text in labels.items()}
    found = READER.node(item)
    assert found is not None
    assert (found.shares, found.memory_mib, found.share_mib) == (shares, 81_920, mib)
    item["metadata"]["labels"]["nvidia.com/gpu.product"] += "-SHARED"
    named = READER.node(item)
    assert named is not None
    record = _record(named, {})
    assert {(gpu.model, gpu.memory_mib) for gpu in record.gpus} == {("A100-80GB-SHARED", mib)}
    del item["metadata"]["labels"]["nvidia.com/gpu.memory"]
    unknown = READER.node(item)
    assert unknown is not None
    assert unknown.share_mib is None


def test_nodes() -> None:
    item = {**node("n1", 8), "metadata": {**node("n1")["metadata"], "creationTimestamp": AT}}
    found = READER.node(item)
    assert found is not None
    assert (found.gpus, found.whole, found.model, found.memory_mib) == (8, 8, "NVIDIA-A100-SXM4-80GB", 81920)
    assert (found.cpus, found.main_mib, found.address, found.away) == (64, 512 * 1024, "10.0.0.1", "")
    item["status"]["allocatable"]["nvidia.com/gpu"] = "7"
    item["spec"] = {"unschedulable": True, "taints": [{"key": "a", "value": "b", "effect": "NoSchedule"}]}
    found = READER.node(item)
    assert found is not None
    assert (found.gpus, found.whole, found.away) == (7, 8, "cordoned in Kubernetes")
    assert found.taints == (Taint("a", "b", "NoSchedule"),)
    del item["status"]["addresses"]
    item["status"]["conditions"] = [{"type": "Ready", "status": "Unknown", "message": "Kubelet stopped posting."}]
    found = READER.node(item)
    assert found is not None
    assert (found.away, found.address) == ("not ready: Kubelet stopped posting", "")
    item["status"]["capacity"] = {"nvidia.com/gpu": "1", "amd.com/gpu": "4", "cpu": "9"}
    item["status"]["allocatable"] = {"amd.com/gpu": "4", "cpu": "9"}
    found = READER.node(item)
    assert found is not None
    assert found.resource == "amd.com/gpu", "of what it has most"
    item["status"]["capacity"] = item["status"]["allocatable"] = {"cpu": "4"}
    assert READER.node(item) is None


@pytest.mark.parametrize(
    ("toleration", "bears"),
    [
        (Toleration("", "Exists", "", ""), True),
        (Toleration("a", "Exists", "", "NoSchedule"), True),
        (Toleration("a", "Equal", "b", ""), True),
        (Toleration("a", "Equal", "c", ""), False),
        (Toleration("a", "Exists", "", "NoExecute"), False),
        (Toleration("z", "Exists", "", ""), False),
    ],
)
def test_tolerations(toleration: Toleration, bears: bool) -> None:
    assert toleration.bears(Taint("a", "b", "NoSchedule")) is bears


def batch(**status: Any) -> dict[str, Any]:
    spec = {"parallelism": 4, "completions": 3, "template": {"spec": pod("x", 2)["spec"]}}
    item = {"metadata": {"name": "j"}, "spec": spec}
    return {**made(item), "status": status}


def test_a_batch_job() -> None:
    found = READER.batch_job(batch())
    assert found is not None
    assert (found.gpus, found.suspended, found.end, found.waits) == (6, False, End.NOT, "")
    item = batch()
    item["spec"]["suspend"] = True
    item["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "ml"}
    found = READER.batch_job(item)
    assert found is not None
    assert (found.suspended, found.queue, found.waits) == (True, "ml", "its Job is suspended")
    failed = {"type": "Failed", "status": "True", "message": "too many", "lastTransitionTime": AT}
    found = READER.batch_job(batch(conditions=[failed]))
    assert found is not None
    assert (found.end, found.ended_s, found.message) == (End.BADLY, AT_S, "too many")
    done = {"type": "Complete", "status": "True", "lastTransitionTime": AT}
    found = READER.batch_job(batch(conditions=[done], completionTime=AT))
    assert found is not None
    assert (found.end, found.ended_s) == (End.WELL, AT_S)


def test_a_job_of_volcano() -> None:
    tasks = [
        {"name": "master", "replicas": 1, "template": {"spec": pod("x", 1)["spec"]}},
        {"name": "worker", "replicas": 3, "template": {"spec": pod("x", 4)["spec"]}},
    ]
    item = made({"metadata": {"name": "v"}, "spec": {"queue": "q", "tasks": tasks}})
    item["status"] = {}
    found = READER.volcano_job(item)
    assert found is not None
    assert (found.gpus, found.queue, found.end) == (13, "q", End.NOT)
    assert found.waits == "Volcano has not let it in yet (queue q)"
    for phase, end in (
        ("Completed", End.WELL),
        ("Failed", End.BADLY),
        ("Terminated", End.STOPPED),
        ("Running", End.NOT),
    ):
        item["status"] = {"state": {"phase": phase, "lastTransitionTime": AT}}
        found = READER.volcano_job(item)
        assert found is not None
        assert (found.end, found.waits) == (end, "")
    item["status"] = {"state": {"phase": "Aborted"}}
    found = READER.volcano_job(item)
    assert found is not None
    assert found.suspended


def test_a_workload_of_kueue() -> None:
    sets = [{"name": "main", "count": 2, "template": {"spec": pod("x", 8)["spec"]}}]
    item = made({"metadata": {"name": "w"}, "spec": {"queueName": "ml", "priority": 7, "podSets": sets}})
    item["metadata"]["ownerReferences"] = [{"kind": "Job", "name": "j", "uid": "u9"}]
    said = {"type": "QuotaReserved", "status": "False", "message": "insufficient quota for nvidia.com/gpu"}
    item["status"] = {"conditions": [said]}
    found = READER.kueue_workload(item)
    assert found is not None
    assert (found.gpus, found.priority, found.owner and found.owner.uid) == (16, 7, "u9")
    assert found.waits == "Kueue has not admitted it (queue ml): insufficient quota for nvidia.com/gpu"
    item["status"] = {"conditions": [{"type": "Admitted", "status": "True"}]}
    found = READER.kueue_workload(item)
    assert found is not None
    assert (found.waits, found.suspended) == ("", False)
    item["spec"]["active"] = False
    found = READER.kueue_workload(item)
    assert found is not None
    assert found.waits == "it is deactivated in Kueue (queue ml)"
