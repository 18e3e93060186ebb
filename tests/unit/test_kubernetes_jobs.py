"""Which jobs the objects of a cluster stand for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpuloom.core.end_reason import EndReason
from gpuloom.kubernetes.jobs import Standing, State, base_name, standings
from gpuloom.kubernetes.objects import Asked, End, Kind, OriginSeen, Owner, PodPhase, PodSeen

ASKED = Asked(2, (), (), "image", ("train",), None)
NOW_S = 1000.0
POD = PodSeen(
    uid="",
    namespace="team",
    name="",
    phase=PodPhase.PENDING,
    node="",
    asked=ASKED,
    priority=0,
    owner=None,
    gang="",
    indexed=False,
    queue="",
    gates=(),
    waits="",
    created_s=100.0,
    bound_s=None,
    began_s=None,
    ended_s=None,
    exit_code=None,
    reason="",
    message="",
)
ORIGIN = OriginSeen(
    kind=Kind.BATCH,
    uid="o",
    namespace="team",
    name="job",
    owner=None,
    gpus=4,
    asked=ASKED,
    priority=0,
    queue="",
    created_s=90.0,
    suspended=False,
    end=End.NOT,
    ended_s=None,
    waits="",
    message="",
)


def a_pod(name: str, **fields: Any) -> PodSeen:
    return replace(POD, uid=f"uid-{name}", name=name, **fields)


def bound(name: str, node: str = "n1", at_s: float = 200.0, **fields: Any) -> PodSeen:
    return a_pod(name, node=node, bound_s=at_s, phase=PodPhase.RUNNING, **fields)


def ended(name: str, phase: PodPhase = PodPhase.SUCCEEDED, **fields: Any) -> PodSeen:
    about = {"bound_s": 200.0, "ended_s": 500.0, **fields}
    return a_pod(name, node="n1", phase=phase, **about)


def one(pods: list[PodSeen], origins: list[OriginSeen] | None = None) -> Standing:
    (found,) = standings(pods, origins or [], NOW_S)
    return found


def test_a_pod_is_a_job_by_itself() -> None:
    found = one([a_pod("a", waits="0/1 nodes are available")])
    assert (found.key, found.kind, found.name, found.state) == ("uid-a", "Pod", "a", State.WAITS)
    assert found.waits == "Its scheduler says: 0/1 nodes are available."
    assert (found.gpus, found.parts, found.held) == (2, (), False)
    found = one([bound("a")])
    assert (found.state, found.began_s, found.waits) == (State.HOLDS, 200.0, "")
    assert [(part.node, part.gpus) for part in found.parts] == [("n1", 2)]


@pytest.mark.parametrize("kind", ["ReplicaSet", "StatefulSet", "DaemonSet"])
def test_replicas_of_services_start_one_by_one(kind: str) -> None:
    owner = Owner(kind, "serve", "r")
    found = standings([bound("a", owner=owner), a_pod("b", owner=owner)], [], NOW_S)
    assert [(each.name, each.state) for each in found] == [("a", State.HOLDS), ("b", State.WAITS)]


def test_pods_of_one_owner_are_one_job() -> None:
    owner = Owner("PyTorchJob", "bert", "p")
    found = one([bound("bert-0", owner=owner), bound("bert-1", "n2", 300.0, owner=owner)])
    assert (found.kind, found.name, found.gpus, found.began_s) == ("PyTorchJob", "bert", 4, 300.0)
    assert found.pods == ("bert-0", "bert-1")


def test_a_group_that_has_not_all_its_nodes_has_started_after_a_while() -> None:
    owner = Owner("PyTorchJob", "bert", "p")
    found = one([bound("a", at_s=NOW_S - 1.0, owner=owner), a_pod("b", owner=owner)])
    assert (found.state, found.gpus, found.waits) == (State.WAITS, 4, "1 of its 2 pods have a node.")
    found = one([bound("a", at_s=NOW_S - 60.0, owner=owner), a_pod("b", owner=owner)])
    assert (found.state, found.gpus) == (State.HOLDS, 2)


def test_a_group_by_its_label() -> None:
    gang = "scheduling.x-k8s.io/pod-group=g1"
    found = one([a_pod("a", gang=gang), a_pod("b", gang=gang)])
    assert (found.kind, found.name, found.gpus) == ("group", "g1", 4)


def test_a_work_queue_starts_pod_by_pod_and_an_indexed_job_together() -> None:
    owner = Owner("Job", "job", "o")
    pods = [bound("a", owner=owner), a_pod("b", owner=owner)]
    assert [each.name for each in standings(pods, [ORIGIN], NOW_S)] == ["a", "b"]
    assert [each.name for each in standings(pods, [], NOW_S)] == ["a", "b"]  # Jobs can't be read
    together = [replace(each, indexed=True) for each in pods]
    assert [each.name for each in standings(together, [ORIGIN], NOW_S)] == ["job"]
    assert [each.name for each in standings(together, [], NOW_S)] == ["job"]


def test_a_job_whose_pods_are_jobs_does_not_wait_itself_once_they_are_gone() -> None:
    owner = Owner("Job", "job", "o")
    found = standings([ended("a", owner=owner), ended("b", owner=owner)], [ORIGIN], NOW_S)
    assert sorted(each.name for each in found) == ["a", "b"]


def test_what_volcano_holds_back_waits_without_pods() -> None:
    vc = replace(ORIGIN, kind=Kind.VOLCANO, waits="Volcano has not let it in yet (queue q)", queue="q")
    found = one([], [vc])
    assert (found.state, found.gpus) == (State.WAITS, 4)
    assert found.waits == "Volcano has not let it in yet (queue q)."
    assert not found.held


def test_a_suspended_job_is_held_unless_a_queue_has_it() -> None:
    suspended = replace(ORIGIN, suspended=True, waits="its Job is suspended")
    assert one([], [suspended]).held
    assert not one([], [replace(suspended, queue="ml")]).held
    workload = replace(
        ORIGIN, kind=Kind.KUEUE, uid="w", owner=Owner("Job", "job", "o"), waits="Kueue has not admitted it", priority=5
    )
    found = one([], [replace(suspended, queue="ml"), workload])
    assert (found.waits, found.priority, found.key) == ("Kueue has not admitted it.", 5, "o")


def test_a_workload_stands_for_its_owner_where_that_is_not_read() -> None:
    workload = replace(
        ORIGIN, kind=Kind.KUEUE, uid="w", name="trainjob-x", owner=Owner("JobSet", "x", "js"), waits="Kueue waits"
    )
    found = one([], [workload])
    assert (found.kind, found.name, found.key) == ("JobSet", "x", "js")


def test_jobs_of_a_jobset_are_one_and_those_of_a_cronjob_are_several() -> None:
    first = replace(ORIGIN, uid="o1", name="set-a", owner=Owner("JobSet", "set", "js"))
    second = replace(ORIGIN, uid="o2", name="set-b", owner=Owner("JobSet", "set", "js"))
    found = one([], [first, second])
    assert (found.key, found.name, found.gpus) == ("js", "set", 8)
    cron = [replace(each, owner=Owner("CronJob", "nightly", "c")) for each in (first, second)]
    assert sorted(each.name for each in standings([], cron, NOW_S)) == ["set-a", "set-b"]


def test_gates_hold_it_back_unless_they_are_a_queue_s() -> None:
    found = one([a_pod("a", gates=("x.io/quota",))])
    assert found.held
    assert "x.io/quota" in found.waits
    assert not one([a_pod("a", gates=("kueue.x-k8s.io/admission",))]).held


@pytest.mark.parametrize(
    ("pods", "reason", "code"),
    [
        ([ended("a")], EndReason.FINISHED, 0),
        ([ended("a", PodPhase.FAILED, exit_code=3)], EndReason.FAILED, 3),
        ([ended("a", PodPhase.FAILED, exit_code=137, reason="OOMKilled")], EndReason.OUT_OF_MEMORY, 137),
        ([ended("a", PodPhase.FAILED, reason="DeadlineExceeded")], EndReason.TIMED_OUT, None),
        ([ended("a", PodPhase.FAILED, reason="Evicted")], EndReason.NODE, None),
        ([ended("a", PodPhase.FAILED, reason="PreemptionByScheduler")], EndReason.PREEMPTED, None),
    ],
)
def test_how_it_ended(pods: list[PodSeen], reason: EndReason, code: int | None) -> None:
    found = one(pods)
    assert (found.state, found.ended and found.ended.at_s) == (State.ENDED, 500.0)
    assert found.ended is not None
    assert (found.ended.reason, found.ended.exit_code) == (reason, code)


def test_a_job_goes_on_while_its_controller_replaces_pods() -> None:
    owner = Owner("Job", "job", "o")
    failed = ended("a", PodPhase.FAILED, exit_code=1, owner=owner, indexed=True)
    found = one([failed], [ORIGIN])
    assert (found.state, found.ended and found.ended.reason) == (State.WAITS, EndReason.FAILED)
    again = bound("b", at_s=600.0, owner=owner, indexed=True)
    found = one([failed, again], [ORIGIN])
    assert (found.state, found.began_s, found.ended) == (State.HOLDS, 600.0, None)
    over = replace(ORIGIN, end=End.WELL, ended_s=900.0)
    done = ended("b", bound_s=600.0, ended_s=900.0, owner=owner, indexed=True)
    found = one([failed, done], [over])
    assert (found.state, found.ended and found.ended.reason) == (State.ENDED, EndReason.FINISHED)
    assert [part.uid for part in found.parts] == ["uid-b"]  # the first was gone before


def test_what_ended_without_a_trace_is_no_job() -> None:
    assert standings([], [replace(ORIGIN, end=End.WELL)], NOW_S) == []


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("train-9", "train"),
        ("train-20261126-3f9ab2c1", "train"),
        ("bert-large", "bert-large"),
        ("sweep-x7k2p", "sweep"),
        ("model", "model"),
        ("1234", "1234"),
        ("resnet-50", "resnet"),
    ],
)
def test_base_names(name: str, base: str) -> None:
    assert base_name(name) == base
