"""Jobs that others make in a cluster, without one: what is read of their pods, and what is written next."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fake_kubernetes.cluster import pod
from fake_kubernetes.errors import Refused
from fake_kubernetes.patches import json_patch
from gpuloom.core.end_reason import EndReason
from gpuloom.core.spec import Launcher
from gpuloom.executors.gang import Gang
from gpuloom.executors.kubernetes.kinds import INDEXED, VOLCANO, JobKind
from gpuloom.executors.kubernetes.manifest import adopted, scaled
from gpuloom.executors.kubernetes.pods import Job, Pod, ended_well, job_of, pod_of
from gpuloom.executors.kubernetes.there import There
from gpuloom.executors.kubernetes.wanted import (
    Attempt,
    Member,
    Offer,
    Offered,
    Owner,
    Seen,
    Stop,
    end_without_pod,
    found_of,
    writes_for,
)
from gpuloom.executors.kubernetes.writes import (
    Adopt,
    CreateJob,
    DeletePod,
    FindJob,
    GiveBack,
    Note,
    Open,
    Release,
)
from gpuloom.executors.node import RunSpec
from gpuloom.executors.orders import Stop as StopMember
from gpuloom.executors.port import RunExit, RunPhase, RunStatus
from gpuloom.kubernetes.objects import Reader

RUN = "7.1-00"
GATES = [{"name": "gpuloom.io/queue"}]


def attempt(members: int = 2, **more: Any) -> Attempt:
    spec = RunSpec(RUN, ("train",), "", {}, (0,), (), launcher=Launcher.ADOPTED)
    return Attempt(RUN, {rank: Member("n1", spec=spec, **more) for rank in range(members)}, adopted=True)


def taken(rank: int, *, members: int = 2, gated: bool = True, by_name: bool = False, **more: Any) -> Pod:
    """A pod of somebody else that is a member by now."""
    notes = {"adopted": "true", "rank": str(rank), "members": str([["n1", 1]] * members).replace("'", '"')}
    item = pod(f"made-{rank}", labels={"gpuloom.io/run": RUN, "gpuloom.io/home": "h"},
               annotations={f"gpuloom.io/{name}": text for name, text in notes.items()}, **more)  # fmt: skip
    item["metadata"] |= {"uid": f"u{rank}", "finalizers": [] if gated else ["gpuloom.io/end"]}
    if by_name:
        item["spec"]["schedulerName"] = "gpuloom"
    elif gated:
        item["spec"]["schedulingGates"] = GATES
    found = pod_of(item)
    assert found is not None
    return found


def seen(*pods: Pod) -> Seen:
    there = There()
    for one in pods:
        there.pod(None, one)
    return there.of(RUN)


def test_members_are_taken_once_there_are_enough() -> None:
    one = attempt()
    assert writes_for(one, Seen(), 0.0, 0.0) == []
    one.offer = Offer((Offered("u0", "made-0"),))
    assert writes_for(one, Seen(), 0.0, 0.0) == []
    one.offer = Offer((*one.offer.pods, Offered("u1", "made-1"), Offered("u2", "made-2")))
    assert writes_for(one, Seen(), 0.0, 0.0) == [Adopt(0, "u0", "made-0"), Adopt(1, "u1", "made-1")]
    one.offer = Offer((Offered("u1", "made-1"),))
    assert writes_for(one, seen(taken(0)), 0.0, 0.0) == [Adopt(1, "u1", "made-1")], "the first one is taken"
    one.members[1].spec = None
    assert writes_for(one, seen(taken(0)), 0.0, 0.0) == [], "not all of it was asked for"


def test_who_is_told_to_begin_is_let_go() -> None:
    one = attempt(go=True)
    assert writes_for(one, seen(taken(0), taken(1)), 0.0, 0.0) == [Open(0, "u0"), Open(1, "u1")]
    assert taken(0, by_name=True).gated, "its scheduler is gpuloom"
    assert not taken(0, by_name=True, nodeName="n1").gated


def test_what_is_over_is_given_back_and_nothing_of_it_is_deleted() -> None:
    one = attempt()
    for member in one.members.values():
        member.acknowledged = True
    assert writes_for(one, seen(taken(0, gated=False)), 0.0, 0.0) == [Release(0, "u0")]


def test_who_is_told_to_end_before_it_began_goes_back_to_its_gate() -> None:
    one = attempt(stop=Stop(EndReason.PREEMPTED, 5.0))
    there = seen(taken(0), taken(1, gated=False))
    assert writes_for(one, there, 0.0, 0.0) == [Note(1, "u1", "preempted")], "its Job is nobody's to delete"
    assert end_without_pod(one, 0, there) is None, "it may be let go meanwhile"
    assert end_without_pod(one, 1, there) is None, "it is being ended"
    how = end_without_pod(one, 0, seen(taken(1, gated=False)))
    assert how is not None
    assert how.reason is EndReason.PREEMPTED
    noted = taken(1, gated=False)
    noted.item["metadata"]["annotations"]["gpuloom.io/ended-by"] = "preempted"
    again = pod_of(noted.item)
    assert again is not None
    assert writes_for(one, seen(taken(0), again), 0.0, 0.0) == [Release(0, "u0"), DeletePod(1, "u1", 5.0)]


def test_one_that_is_found_is_known_to_be_somebody_else_s() -> None:
    there = seen(taken(0), taken(1))
    assert there.job is not None
    assert (there.job.adopted, there.job.members, there.job.replicas) == (True, (("n1", 1), ("n1", 1)), 2)
    found = found_of(RUN, there.job.members, hold=True, adopted=there.job.adopted)
    assert writes_for(found, there, 0.0, 0.0) == [], "nobody has asked for it"


def test_a_container_that_is_begun_anew_in_its_pod_is_not_its_end() -> None:
    ended = {"terminated": {"exitCode": 1, "finishedAt": "2026-01-01T00:00:00Z"}}
    one = taken(0, gated=False, nodeName="n1")
    one.item["status"] = {"phase": "Running", "containerStatuses": [{"name": "main", "state": ended}]}
    assert not pod_of(one.item).over  # type: ignore[union-attr]
    one.item["status"]["phase"] = "Failed"
    assert pod_of(one.item).over  # type: ignore[union-attr]


@pytest.mark.parametrize(("rank", "fits"), [("1", True), ("2", False), ("-1", False), ("x", False)])
def test_the_member_that_a_pod_is(rank: str, fits: bool) -> None:
    item = taken(0).item
    item["metadata"]["annotations"]["gpuloom.io/rank"] = rank
    assert (pod_of(item) is not None) == fits


def test_its_container_is_the_one_with_the_gpus() -> None:
    item = taken(0).item
    sidecar = {"name": "logs", "image": "x", "resources": {"limits": {"cpu": "8"}}}
    item["spec"]["containers"] = [sidecar, {**item["spec"]["containers"][0], "name": "trainer"}]
    assert pod_of(item).container == "trainer"  # type: ignore[union-attr]
    item["spec"]["containers"][0]["name"] = "main"
    assert pod_of(item).container == "main"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("spec", "comes"),
    [
        ({}, False),
        ({"schedulingGates": GATES}, True),
        ({"schedulingGates": [{"name": "other/gate"}, *GATES]}, True),
        ({"schedulingGates": [{"name": "other/gate"}]}, False),
        ({"schedulerName": "gpuloom"}, True),
        ({"schedulerName": "gpuloom", "schedulingGates": [{"name": "other/gate"}]}, False),
        ({"schedulerName": "gpuloom", "nodeName": "n1"}, False),
    ],
)
def test_which_pods_wait_for_gpuloom(spec: dict[str, Any], comes: bool) -> None:
    item = pod("one", annotations={"gpuloom.io/user": "ada", "gpuloom.io/other": "x"}, **spec)
    item["metadata"]["uid"] = "u"
    item["status"] = {"phase": "Pending"}
    found = Reader().pod(item)
    assert found is not None
    assert (found.comes, dict(found.notes)) == (comes, {"user": "ada"})
    assert (found.asked.grace_s, found.home) == (30.0, "")


@pytest.mark.parametrize(("apart", "rank", "code"), [(False, 0, 0), (False, 1, 3), (True, 0, 0), (True, 1, 3)])
def test_one_s_end_is_the_others_only_in_a_gang_of_ours(apart: bool, rank: int, code: int) -> None:
    members = [(RUN, "n1"), ("7.1.1-00", "n1")]
    gang = Gang(RUN, members, 1.0, apart=apart)
    gang.start(0.0)
    for member, (run, _) in enumerate(members):
        gang.heard(member, RunStatus(run, RunPhase.PREPARED), 0.0)
    for member, (run, _) in enumerate(members):
        gang.heard(member, RunStatus(run, RunPhase.RUNNING), 0.0)
    ended = RunStatus(members[rank][0], RunPhase.EXITED, exit=RunExit(code, None, None, "", 1.0))
    orders = gang.heard(rank, ended, 1.0) + gang.look(100.0) + gang.look(200.0)
    assert any(isinstance(order, StopMember) for order in orders) != apart
    if apart:
        assert gang.status.phase is RunPhase.RUNNING
        other = 1 - rank
        gang.heard(other, RunStatus(members[other][0], RunPhase.EXITED, exit=RunExit(0, None, None, "", 2.0)), 2.0)
        assert gang.status.phase is RunPhase.EXITED
        assert gang.status.exit is not None
        assert gang.status.exit.exit_code == code


@pytest.mark.parametrize(
    ("status", "done"),
    [
        ({}, False),
        ({"state": {"phase": "Running"}}, False),
        ({"state": {"phase": "Completing"}}, True),
        ({"conditions": [{"type": "Complete", "status": "True"}]}, True),
        ({"conditions": [{"type": "SuccessCriteriaMet", "status": "True"}]}, True),
        ({"conditions": [{"type": "Complete", "status": "False"}, {"type": "Failed", "status": "True"}]}, False),
    ],
)
def test_whether_an_owner_s_work_is_done(status: dict[str, Any], done: bool) -> None:
    assert ended_well({"metadata": {}, "status": status}) == done


def test_an_orphan_is_nobody_else_s() -> None:
    """Somebody deletes the Job of an elastic attempt and leaves its pods: they stay what their labels say."""
    item = taken(0, gated=False, nodeName="n1").item
    item["metadata"]["annotations"] |= {"gpuloom.io/in-place": "true"}
    del item["metadata"]["annotations"]["gpuloom.io/adopted"]
    item["metadata"]["labels"] |= {"volcano.sh/task-index": "0", "volcano.sh/task-spec": "worker"}
    owned = {**item, "metadata": {**item["metadata"], "ownerReferences": [{"kind": "Job", "name": "j", "uid": "j1"}]}}
    before, after = pod_of(owned), pod_of(item)
    assert before is not None
    assert after is not None
    assert (before.job, after.job, after.in_place) == ("j1", "", True)
    there = There()
    there.pod(None, before)
    there.pod(before, after)
    assert there.of(RUN).pods == {0: after}
    assert there.of("8.1-00") == Seen()
    there.pod(after, None)
    assert there.of(RUN) == Seen()


def test_pods_that_may_have_been_taken_are_looked_for_before_it_ends() -> None:
    one = attempt(stop=Stop(EndReason.PREEMPTED, 5.0))
    one.maybe = True
    assert writes_for(one, Seen(), 0.0, 0.0) == [FindJob()]
    assert end_without_pod(one, 0, Seen()) is None
    one.maybe = False
    assert writes_for(one, Seen(), 0.0, 0.0) == []
    assert end_without_pod(one, 0, Seen()) is not None


def sized(members: int = 2) -> Attempt:
    """An attempt of a Job that somebody else has made, and whose size may be changed."""
    one = attempt(members)
    for member in one.members.values():
        assert member.spec is not None
        member.spec = replace(member.spec, sizes=(1, 4))
    return one


def job_there(replicas: int) -> tuple[dict[str, Any], Job]:
    """A Job as it is once an attempt has taken it."""
    spec = {"completionMode": "Indexed", "completions": replicas, "parallelism": replicas}
    item = {"metadata": {"name": "ours", "uid": "j", "resourceVersion": "3"}, "spec": spec}
    marks = {
        "gpuloom.io/adopted": "true",
        "gpuloom.io/in-place": "true",
        "gpuloom.io/members": '[["n1", 1], ["n1", 1]]',
    }
    taken = json_patch(item, adopted(item, "h", RUN, marks, replicas, INDEXED, 0))
    found = job_of(taken)
    assert found is not None
    return taken, found


def test_a_job_whose_size_is_changed_is_taken_first_and_then_its_pods_by_their_numbers() -> None:
    one = sized()
    one.offer = Offer((Offered("u1", "made-1", 1),))
    assert writes_for(one, Seen(), 0.0, 0.0) == [], "whose they are is not known"
    one.offer = Offer(one.offer.pods, Owner("ours", "j", INDEXED))
    assert writes_for(one, Seen(), 0.0, 0.0) == [CreateJob()]
    one.made = one.in_place = True
    _, job = job_there(2)
    assert writes_for(one, Seen(job), 0.0, 0.0) == [], "the first one is still to come"
    one.offer = Offer((*one.offer.pods, Offered("u0", "made-0", 0), Offered("u2", "made-2", 2)), one.offer.owner)
    for member in one.members.values():
        member.spec = None  # a scheduler that was begun anew goes by the Job
    assert writes_for(one, Seen(job), 0.0, 0.0) == [Adopt(0, "u0", "made-0"), Adopt(1, "u1", "made-1")]


def test_who_ends_gives_the_job_back_before_the_ends_are_waited_for() -> None:
    one = sized()
    _, job = job_there(2)
    one.made = one.in_place = True
    assert one.there(Seen(job))
    for member in one.members.values():
        member.stop = Stop(EndReason.PREEMPTED, 5.0)
    assert one.there(Seen(job)), "pods of it may still come"
    assert writes_for(one, Seen(job), 0.0, 0.0) == [FindJob(), GiveBack("ours", "j", INDEXED)]
    one.gone = True
    assert not one.there(Seen())


@pytest.mark.parametrize(
    ("tasks", "least", "task", "right"),
    [
        ([("worker", 2)], 2, 0, 3),
        ([("master", 1), ("worker", 2)], 3, 1, 4),
        ([("master", 1), ("worker", 2)], 1, 1, 2),
        ([("worker", 4)], 1, 0, 1),
    ],
)
def test_the_size_of_one_task_is_changed(tasks: list[tuple[str, int]], least: int, task: int, right: int) -> None:
    spec = {"minAvailable": least, "tasks": [{"name": name, "replicas": count} for name, count in tasks]}
    item = {"metadata": {"name": "ours", "uid": "j", "resourceVersion": "3", "labels": {"a": "b"}}, "spec": spec}
    members = {"gpuloom.io/members": '[["n1", 1]]'}
    patch = adopted(item, "h", RUN, members, 3 if tasks[task][1] == 2 else 2, VOLCANO, task)
    after = json_patch(item, patch)
    assert after["metadata"]["labels"] == {
        "a": "b",
        "gpuloom.io/home": "h",
        "gpuloom.io/run": RUN,
        "gpuloom.io/job": "7",
    }
    assert after["spec"]["minAvailable"] == right
    assert after["spec"]["tasks"][task]["replicas"] == after["spec"]["tasks"][task]["minAvailable"]
    found = job_of(after)
    assert found is not None
    assert (found.task, found.replicas, found.kind) == (task, after["spec"]["tasks"][task]["replicas"], VOLCANO)
    smaller = json_patch(after, scaled(found.replicas, 1, found.kind, found.task, found.spare))
    assert smaller["spec"]["tasks"][task]["replicas"] == 1
    others = [one["replicas"] for number, one in enumerate(smaller["spec"]["tasks"]) if number != task]
    assert others == [count for number, (_, count) in enumerate(tasks) if number != task]


def test_a_job_that_has_changed_meanwhile_is_not_taken() -> None:
    taken, _ = job_there(2)
    patch = adopted({**taken, "metadata": {**taken["metadata"], "resourceVersion": "2"}}, "h", RUN, {}, 2, INDEXED, 0)
    with pytest.raises(Refused):
        json_patch(taken, patch)


@pytest.mark.parametrize("kind", [INDEXED, VOLCANO])
def test_which_jobs_can_not_change_their_size(kind: JobKind) -> None:
    """Those with more completions than pods, and those with several tasks that have GPUs."""
    limits = {"containers": [{"resources": {"limits": {"nvidia.com/gpu": "1"}}}]}
    about = {"name": "ours", "uid": "j"}
    if kind is INDEXED:
        spec: dict[str, Any] = {"completionMode": "Indexed", "completions": 5, "parallelism": 2}
        spec["template"] = {"spec": limits}
        found = Reader().batch_job({"metadata": about, "spec": spec})
    else:
        task = {"replicas": 2, "template": {"spec": limits}}
        found = Reader().volcano_job({"metadata": about, "spec": {"tasks": [task, task]}})
    assert found is not None
    assert found.replicas is None
