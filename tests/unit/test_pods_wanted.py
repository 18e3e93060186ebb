"""Pods, without a cluster: what is sent for an attempt, what is read of a pod, what is written next, and logs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fake_kubernetes.patches import json_patch
from gpuloom.core.end_reason import EndReason
from gpuloom.core.errors import InputError
from gpuloom.core.spec import Launcher
from gpuloom.executors.kubernetes.kinds import INDEXED
from gpuloom.executors.kubernetes.manifest import SAID, Manifest, Setup, manifest, pinned, scaled, taken_over
from gpuloom.executors.kubernetes.marks import GATE, VALUE, host_of, name_of, tasks_of
from gpuloom.executors.kubernetes.pod_logs import nanoseconds, new_lines
from gpuloom.executors.kubernetes.pods import Group, Job, Pod, exit_of, hopeless, job_of, pod_of
from gpuloom.executors.kubernetes.there import There
from gpuloom.executors.kubernetes.wanted import (
    MOST_REPLACED,
    REPLACED_AFTER_S,
    WELL_S,
    Attempt,
    Member,
    Seen,
    Stop,
    end_without_pod,
    found_of,
    may_replace,
    status_of,
    writes_for,
)
from gpuloom.executors.kubernetes.writes import (
    Begin,
    CreateJob,
    DeleteJob,
    DeletePod,
    FindJob,
    LetIn,
    MakeSecret,
    Note,
    Open,
    Release,
    Replace,
    TakeEnd,
)
from gpuloom.executors.node import Peer, RunSpec
from gpuloom.executors.port import Cause, RunPhase
from tiers import mostly_slow

RUN = "12.1-9f3a02bc"
SETUP = Setup("train", "0123456789ab", Path("/home/runs"), image="here:1")


def spec(*command: str, rank: int = 0, gpus: tuple[int, ...] = (1,), **more: Any) -> RunSpec:
    nodes = [Peer(f"n{number}", f"10.0.0.{number}", count) for number, count in enumerate(gpus)]
    run = RUN if rank == 0 else f"12.1.{rank}-9f3a02bc"
    fields = {"command": command or ("python", "train.py"), "workdir": "/work", "env": {}, "gpu_uuids": (), **more}
    return RunSpec(run, gpus=tuple(range(gpus[rank])), peers=tuple(nodes), rank=rank, port=29500, **fields)


def made(*specs: RunSpec, setup: Setup = SETUP) -> dict[str, Any]:
    nodes = [one.peers[one.rank].node for one in specs]
    return manifest(specs, nodes, setup, ["nvidia.com/gpu"] * len(nodes)).job


def main_of(job: Mapping[str, Any], task: int = 0) -> Any:
    return job["spec"]["tasks"][task]["template"]["spec"]["containers"][0]


class TestWhatIsSent:
    def test_members_with_other_counts_are_other_tasks(self) -> None:
        assert [(one.name, one.gpus, one.ranks) for one in tasks_of([4, 2, 4])] == [
            ("worker", 4, (0, 2)),
            ("worker-2", 2, (1,)),
        ]
        job = made(*(spec(rank=rank, gpus=(4, 2, 4)) for rank in range(3)))
        asked = [main_of(job, task)["resources"] for task in (0, 1)]
        assert asked == [{part: {"nvidia.com/gpu": count} for part in ("limits", "requests")} for count in ("4", "2")]
        assert [(task["replicas"], task["minAvailable"]) for task in job["spec"]["tasks"]] == [(2, 2), (1, 1)]
        assert host_of(name_of(RUN), [4, 2, 4], 2) == "gpuloom-12-1-9f3a02bc-worker-1.gpuloom-12-1-9f3a02bc"

    def test_what_differs_between_members_is_written_when_they_are_pinned(self) -> None:
        job = made(*(spec("torchrun", "train.py", rank=rank, gpus=(2, 2)) for rank in range(2)))
        values = json.loads(job["metadata"]["annotations"]["gpuloom.io/values"])
        assert [one["gpuloom.io/rank"] for one in values] == ["0", "1"]
        assert [one[f"{VALUE}GPULOOM_NODE_RANK"] for one in values] == ["0", "1"]
        command = main_of(job)["command"]
        differs = [word for word in command if word.startswith("$(")]
        assert len(differs) == 1
        assert [one[VALUE + differs[0][2:-1]] for one in values] == ["--node_rank=0", "--node_rank=1"]
        assert f"--rdzv_endpoint={host_of(name_of(RUN), [2, 2], 0)}:29500" in command
        for name in ("GPULOOM_NODE_RANK", differs[0][2:-1]):
            source = next(one for one in main_of(job)["env"] if one["name"] == name)
            assert source["valueFrom"]["fieldRef"]["fieldPath"] == f"metadata.annotations['{VALUE}{name}']"

    def test_dollars_are_the_users_own(self) -> None:
        job = made(spec("sh", "-c", "echo $$ $(date) $HOME"))
        assert main_of(job)["command"] == ["sh", "-c", "echo $$$$ $$(date) $$HOME"]

    def test_pods_end_in_order(self) -> None:
        pod = made(spec(grace_s=45.0))["spec"]["tasks"][0]["template"]["spec"]
        assert pod["restartPolicy"] == "Never"
        assert "preemptionPolicy" not in pod, "a cluster takes it from a PriorityClass alone"
        assert pod["terminationGracePeriodSeconds"] == 45
        assert pod["shareProcessNamespace"] is True, "else process 1 would not hear SIGTERM"

    def test_a_template_is_kept(self) -> None:
        template = {
            "metadata": {"labels": {"team": "a"}},
            "spec": {
                "serviceAccountName": "trainer",
                "schedulingGates": [{"name": "kueue.x-k8s.io/admission"}],
                "containers": [{"name": "sidecar", "image": "s:1"}],
            },
        }
        task = made(spec(), setup=replace(SETUP, template=template))["spec"]["tasks"][0]
        assert task["template"]["metadata"]["labels"]["team"] == "a"
        pod = task["template"]["spec"]
        assert pod["serviceAccountName"] == "trainer"
        assert [one["name"] for one in pod["schedulingGates"]] == ["kueue.x-k8s.io/admission", GATE]
        assert [one["name"] for one in pod["containers"]] == ["main", "sidecar"]

    def test_a_process_for_each_gpu(self) -> None:
        found = manifest([spec(per_gpu=True, gpus=(2,))], ["n0"], SETUP, ["nvidia.com/gpu"])
        assert found.direct
        mounts = main_of(found.job)["volumeMounts"]
        assert main_of(found.job)["command"][:4] == ["python3", "-I", "-S", mounts[0]["mountPath"]]

    @pytest.mark.parametrize(
        ("more", "said"),
        [
            ({"venv": "/opt/venv"}, "venv /opt/venv"),
            ({"conda": "base"}, "conda base"),
            ({"sharing_class": "high"}, "share a GPU"),
            ({"env": {"A.B": "1"}}, "'A.B'"),
        ],
    )
    def test_what_pods_can_not_be(self, more: dict[str, Any], said: str) -> None:
        with pytest.raises(InputError, match=said):
            made(spec(**more))

    def test_an_image_is_needed(self) -> None:
        with pytest.raises(InputError, match="--container IMAGE"):
            made(spec(), setup=replace(SETUP, image=""))

    def test_launchers_find_the_master_by_its_name(self) -> None:
        job = made(*(spec("python", "t.py", rank=rank, gpus=(1, 1), launcher=Launcher.TENSORFLOW) for rank in range(2)))
        assert any(host_of(name_of(RUN), [1, 1], 1) in word for word in main_of(job)["command"])


class TestIndexedJobs:
    setup = replace(SETUP, kind=INDEXED)

    def made(self, *specs: RunSpec) -> Manifest:
        nodes = [one.peers[one.rank].node for one in specs]
        return manifest(specs, nodes, self.setup, ["nvidia.com/gpu"] * len(nodes))

    def test_one_member_alone_needs_nothing_else(self) -> None:
        found = self.made(spec())
        assert (found.others, found.service) == ((), None)
        about, asked = found.job["metadata"], found.job["spec"]
        assert (found.job["apiVersion"], about["name"]) == ("batch/v1", name_of(RUN))
        assert (asked["completionMode"], asked["completions"], asked["parallelism"]) == ("Indexed", 1, 1)
        assert "suspend" not in asked
        assert "subdomain" not in asked["template"]["spec"]

    def test_a_job_for_each_number_of_gpus(self) -> None:
        found = self.made(*(spec(rank=rank, gpus=(4, 2, 4)) for rank in range(3)))
        jobs = [found.job, *found.others]
        name = name_of(RUN)
        assert [(one["metadata"]["name"], one["spec"]["completions"]) for one in jobs] == [(name, 2), (f"{name}-g2", 1)]
        assert [one["spec"].get("suspend", False) for one in jobs] == [True, False]
        assert [one is None for one in map(job_of, jobs_there(jobs))] == [False, True], "the attempt has one Job"
        assert host_of(name, [4, 2, 4], 1, INDEXED) == f"{name}-g2-0.{name}"
        assert host_of(name, [4, 2, 4], 2, INDEXED) == f"{name}-1.{name}"
        assert found.service is not None
        wanted = found.service["spec"]["selector"].items()
        for one in jobs:
            template = one["spec"]["template"]
            assert wanted <= template["metadata"]["labels"].items()
            assert template["spec"]["subdomain"] == found.service["metadata"]["name"] == name

    def test_its_pods_are_known_by_their_index_and_task(self) -> None:
        found = self.made(*(spec(rank=rank, gpus=(4, 2, 4)) for rank in range(3)))
        ranks = []
        for job in (found.job, *found.others):
            for index in range(job["spec"]["completions"]):
                about = job["spec"]["template"]["metadata"]
                annotations = {**about["annotations"], "batch.kubernetes.io/job-completion-index": str(index)}
                metadata = {"name": "p", "uid": f"u{index}", "labels": about["labels"], "annotations": annotations}
                one = pod_of({"metadata": metadata, "spec": job["spec"]["template"]["spec"]})
                assert one is not None
                ranks.append(one.rank)
        assert ranks == [0, 2, 1]

    def test_elastic_jobs_may_grow_from_one(self) -> None:
        found = self.made(spec("torchrun", "train.py", sizes=(1, 4)))
        assert found.job["spec"]["suspend"] is True
        assert found.service is not None
        bigger = self.made(*(spec("torchrun", "train.py", rank=rank, gpus=(1, 1), sizes=(1, 4)) for rank in range(2)))
        job = jobs_there([found.job])[0]
        patch = taken_over(job, RUN, "next", bigger.job["metadata"]["annotations"], 2, INDEXED)
        assert json_patch(job, patch)["spec"]["completions"] == 2
        assert json_patch(job, scaled(1, 3, INDEXED))["spec"]["parallelism"] == 3

    def test_variables_of_the_job_alone_are_kept_in_a_secret(self) -> None:
        """What gpuloom says to every job is none, so that most jobs need no Secret."""
        said = dict.fromkeys(SAID, "1")
        found = self.made(spec("train", env=said))
        assert found.secret is None
        env = found.job["spec"]["template"]["spec"]["containers"][0]["env"]
        assert {one["name"] for one in env} >= SAID
        found = self.made(spec("train", env={**said, "GPULOOM_TOKEN": "t", "A": "1"}))
        assert found.secret is not None
        assert set(found.secret["data"]) == {"GPULOOM_TOKEN", "A"}
        main = found.job["spec"]["template"]["spec"]["containers"][0]
        assert main["envFrom"] == [{"secretRef": {"name": found.secret["metadata"]["name"]}}]

    @pytest.mark.parametrize("version", mostly_slow(["1.28", "1.30", "1.33", "1.36"], "1.36"))
    def test_all_of_it_fits_the_schemas_of_kubernetes(self, version: str) -> None:
        schemas = pytest.importorskip("kubernetes_validate")
        claimed = replace(self.setup, claim="runs/home")
        specs = [spec("torchrun", "t.py", rank=rank, gpus=(2, 1), env={"A": "1"}, cpus=1.5) for rank in range(2)]
        found = manifest(specs, ["n1", "n2"], claimed, ["nvidia.com/gpu"] * 2)
        for item in (found.job, *found.others, found.service, found.secret):
            schemas.validate(item, version, strict=True)


def jobs_there(jobs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """As the cluster has them."""
    return [{**one, "metadata": {**one["metadata"], "uid": f"j{number}"}} for number, one in enumerate(jobs)]


REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
IS_N1 = {"key": "metadata.name", "operator": "In", "values": ["n1"]}


class TestPinning:
    @pytest.mark.parametrize(
        ("affinity", "terms"),
        [
            (None, [{"matchFields": [IS_N1]}]),
            ({"podAffinity": {}}, [{"matchFields": [IS_N1]}]),
            ({"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}, [{"matchFields": [IS_N1]}]),
            (
                {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [1]}, {"matchFields": [2]}]}}},
                [{"matchExpressions": [1], "matchFields": [IS_N1]}, {"matchFields": [2, IS_N1]}],
            ),
        ],
    )
    def test_each_term_gets_the_node(self, affinity: Any, terms: Any) -> None:
        gates = [{"name": "other"}, {"name": GATE}]
        item = {
            "metadata": {"annotations": {"a": "b"}, "finalizers": ["theirs"]},
            "spec": {"schedulingGates": gates, **({} if affinity is None else {"affinity": affinity})},
        }
        after = json_patch(json.loads(json.dumps(item)), pinned(item, "n1", {"gpuloom.io/rank": "1"}))
        assert after["spec"]["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"] == terms
        assert after["metadata"]["finalizers"] == ["theirs", "gpuloom.io/end"]
        assert after["metadata"]["annotations"] == {"a": "b", "gpuloom.io/rank": "1"}
        assert after["spec"]["schedulingGates"] == [{"name": "other"}]


def pod(state: Mapping[str, Any] | None = None, *, phase: str = "Running", gated: bool = False, **about: Any) -> Pod:
    annotations = {"gpuloom.io/members": '[["n1", 1]]', **about.pop("annotations", {})}
    status: dict[str, Any] = {"phase": phase, **about.pop("status", {})}
    if state is not None:
        status["containerStatuses"] = [{"name": "main", "state": state}]
    labels = {"gpuloom.io/run": RUN, "volcano.sh/task-spec": "worker", "volcano.sh/task-index": "0"}
    spec = {"schedulingGates": [{"name": GATE}]} if gated else {"nodeName": about.pop("node", "n1")}
    base = {"name": "p", "uid": "u1", "labels": labels, "annotations": annotations, "creationTimestamp": _at(0)}
    found = pod_of({"metadata": {**base, **about}, "spec": spec, "status": status})
    assert found is not None
    return found


def _at(second: int) -> str:
    return f"2026-11-27T10:00:{second:02d}Z"


def over(code: int, *, at: int = 5, **about: Any) -> Pod:
    reason = about.pop("reason", "Error" if code else "Completed")
    ended = {"exitCode": code, "reason": reason, "startedAt": _at(1), "finishedAt": _at(at)}
    if message := about.pop("message", ""):
        ended["message"] = message
    return pod({"terminated": ended}, phase="Failed" if code else "Succeeded", **about)


class TestEnds:
    @pytest.mark.parametrize(
        ("found", "how"),
        [
            (over(0), (0, None, None, Cause.NONE)),
            (over(7), (7, None, None, Cause.NONE)),
            (over(137), (None, 9, None, Cause.NONE)),
            (over(137, reason="OOMKilled"), (None, 9, EndReason.OUT_OF_MEMORY, Cause.NONE)),
            (over(128, reason="StartError"), (None, None, EndReason.NOT_STARTED, Cause.JOB)),
            (over(85, annotations={"gpuloom.io/ended-by": "preempted"}), (85, None, EndReason.PREEMPTED, Cause.NONE)),
            # Somebody else has deleted it before it ended; after; and an eviction.
            (over(0, deletionTimestamp=_at(33), deletionGracePeriodSeconds=30), (0, None, EndReason.NODE, Cause.NODE)),
            (over(0, deletionTimestamp=_at(38), deletionGracePeriodSeconds=30), (0, None, None, Cause.NONE)),
            (
                pod(phase="Failed", status={"reason": "Evicted", "message": "low on memory"}),
                (None, None, EndReason.NODE, Cause.NODE),
            ),
            (
                pod(phase="Failed", status={"reason": "UnexpectedAdmissionError", "message": "no GPU"}),
                (None, None, EndReason.NOT_STARTED, Cause.PLACE),
            ),
        ],
    )
    def test_how_it_ended(self, found: Pod, how: Any) -> None:
        end = exit_of(found)
        assert (end.exit_code, end.signal, end.reason, end.cause) == how

    @pytest.mark.parametrize(
        ("disrupted", "message", "says"),
        [
            ("it is drained", "Pod was evicted", "n0: it is drained"),
            ("", "Pod was evicted", "n0: Pod was evicted"),
            ("", "", "n0: its pod was deleted by somebody else"),
        ],
    )
    def test_of_one_that_was_taken_away_why(self, disrupted: str, message: str, says: str) -> None:
        found = replace(over(143), reason="Evicted", disrupted=disrupted, message=message, node="n0")
        assert exit_of(found).message == says

    @pytest.mark.parametrize(("code", "reason"), [(137, "ContainerStatusUnknown"), (255, "Unknown")])
    def test_one_that_was_lost_over_a_restart_of_its_machine(self, code: int, reason: str) -> None:
        how = exit_of(replace(over(code), reason=reason, node="n0"))
        assert (how.reason, how.cause, how.message) == (EndReason.NODE, Cause.NODE, f"n0: {reason}")

    def test_it_ends_with_its_own_container(self) -> None:
        sidecar = {"name": "proxy", "state": {"running": {"startedAt": _at(1)}}}
        ended = {"terminated": {"exitCode": 3, "startedAt": _at(1), "finishedAt": _at(5)}}
        found = pod(phase="Running", status={"containerStatuses": [sidecar, {"name": "main", "state": ended}]})
        assert found.over
        assert exit_of(found).exit_code == 3

    def test_what_will_never_run(self) -> None:
        waiting = {"waiting": {"reason": "InvalidImageName", "message": "bad"}}
        found = hopeless(pod(waiting, phase="Pending"), "n0")
        assert found is not None
        assert (found[1].cause, found[1].message) == (Cause.JOB, "InvalidImageName: bad")
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no room"}
        found = hopeless(pod(phase="Pending", node="", status={"conditions": [condition]}), "n0")
        assert found is not None
        assert found[1].cause is Cause.PLACE
        assert hopeless(pod({"running": {"startedAt": _at(1)}}), "n0") is None
        assert hopeless(pod(phase="Pending", gated=True), "n0") is None


JOB = Job(
    "j1",
    name_of(RUN),
    RUN,
    (("n1", 1),),
    ({},),
    hold=False,
    secret=False,
    going_away=False,
    in_place=False,
    replicas=1,
    suspended=False,
    grouped=True,
)
RUNS = pod({"running": {"startedAt": _at(1)}}, finalizers=["gpuloom.io/end"])


class TestWhatIsWrittenNext:
    def attempt(self, **more: Any) -> Attempt:
        return Attempt(RUN, {0: Member("n1", spec=spec(), go=True, **more)}, made=True)

    def writes(self, attempt: Attempt, seen: Seen, wall_s: float = 0.0) -> list[Any]:
        return writes_for(attempt, seen, 100.0, wall_s)

    def test_from_the_start_to_the_end(self) -> None:
        attempt = self.attempt()
        attempt.made = False
        assert self.writes(attempt, Seen()) == [CreateJob()]
        attempt.made = True
        assert self.writes(attempt, Seen()) == []
        gated = pod(phase="Pending", gated=True)
        assert self.writes(attempt, Seen(pods={0: gated})) == [], "what differs between members is on its Job"
        assert self.writes(attempt, Seen(JOB, pods={0: gated})) == [Open(0, "u1")]
        assert self.writes(attempt, Seen(JOB, pods={0: RUNS})) == []
        ended = replace(RUNS, over=True)
        assert self.writes(attempt, Seen(JOB, pods={0: ended})) == [TakeEnd(0, "u1")]
        attempt.members[0].ended = exit_of(over(0))
        attempt.members[0].acknowledged = True
        assert self.writes(attempt, Seen(JOB, pods={0: ended})) == [DeleteJob(JOB.name, "j1")]
        assert self.writes(attempt, Seen(replace(JOB, going_away=True), pods={0: ended})) == []
        assert self.writes(attempt, Seen(pods={0: ended})) == [Release(0, "u1")]

    def test_held_until_all_are_told_to_go(self) -> None:
        attempt = self.attempt()
        attempt.members[0].go = False
        assert self.writes(attempt, Seen(JOB, pods={0: pod(phase="Pending", gated=True)})) == []

    def test_one_that_is_stopped_says_why_before_it_goes(self) -> None:
        attempt = self.attempt(stop=Stop(EndReason.PREEMPTED, 130.0))
        assert self.writes(attempt, Seen(JOB, pods={0: RUNS})) == [Note(0, "u1", "preempted")]
        noted = replace(RUNS, ended_by="preempted")
        assert self.writes(attempt, Seen(JOB, pods={0: noted})) == [
            DeleteJob(JOB.name, "j1"),
            DeletePod(0, "u1", 130.0),
        ]
        item = {"metadata": {"deletionGracePeriodSeconds": 30}}
        going = replace(noted, deleted_s=1000.0, item=item)
        attempt.gone = True
        assert self.writes(attempt, Seen(pods={0: going}), wall_s=1000.0) == []
        attempt.members[0].stop = Stop(EndReason.PREEMPTED, 105.0)
        assert self.writes(attempt, Seen(pods={0: going}), wall_s=1000.0) == [DeletePod(0, "u1", 105.0)]

    def test_one_that_is_stopped_before_it_began_loses_its_job_alone(self) -> None:
        attempt = self.attempt(stop=Stop(EndReason.CANCELLED, 100.0))
        gated = pod(phase="Pending", gated=True)
        assert self.writes(attempt, Seen(JOB, pods={0: gated})) == [DeleteJob(JOB.name, "j1")]
        assert end_without_pod(attempt, 0, Seen(JOB)) is None
        assert end_without_pod(attempt, 0, Seen()) is None, "it was made, and is not seen yet"
        attempt.gone = True
        end = end_without_pod(attempt, 0, Seen())
        assert end is not None
        assert end.reason is EndReason.CANCELLED

    def test_one_whose_making_was_not_answered_is_looked_for(self) -> None:
        attempt = self.attempt(stop=Stop(EndReason.CANCELLED, 100.0))
        attempt.made, attempt.maybe = False, True
        assert self.writes(attempt, Seen()) == [FindJob()]
        assert end_without_pod(attempt, 0, Seen()) is None
        attempt.maybe = False
        assert end_without_pod(attempt, 0, Seen()) is not None

    def test_its_variables_come_before_it_begins(self) -> None:
        attempt, gated, job = self.attempt(), pod(phase="Pending", gated=True), replace(JOB, secret=True)
        assert self.writes(attempt, Seen(job, pods={0: gated})) == [MakeSecret("j1")]
        attempt.secret = True
        assert self.writes(attempt, Seen(job, pods={0: gated})) == [Open(0, "u1")]
        found = found_of(RUN, JOB.members, hold=False)
        assert self.writes(found, Seen(job, pods={0: gated})) == [], "until it is asked for again"

    def test_a_pod_that_was_made_again_is_not_let_go(self) -> None:
        attempt = self.attempt(pod="u0")
        gated = pod(phase="Pending", gated=True)
        assert self.writes(attempt, Seen(JOB, pods={0: gated})) == []
        end = end_without_pod(attempt, 0, Seen(JOB, pods={0: gated}))
        assert end is not None
        assert end.reason is EndReason.NODE

    def test_a_group_that_nobody_looks_at_is_let_in(self) -> None:
        group = Group("g", "j1", let_in=False, judged=False, created_s=1000.0)
        assert self.writes(self.attempt(), Seen(JOB, group), wall_s=1004.0) == []
        assert self.writes(self.attempt(), Seen(JOB, group), wall_s=1006.0) == [LetIn("g")]
        judged = replace(group, judged=True)
        assert self.writes(self.attempt(), Seen(JOB, judged), wall_s=1006.0) == [], "a full queue is Volcano's to say"

    def test_a_suspended_job_begins_once_all_members_are_asked_for(self) -> None:
        job = replace(JOB, suspended=True, grouped=False)
        attempt = self.attempt()
        assert not Seen(job).may_have_pods
        assert self.writes(attempt, Seen(job)) == [Begin("j1")]
        assert self.writes(attempt, Seen(replace(job, suspended=False))) == []
        assert Seen(replace(job, suspended=False)).may_have_pods
        attempt.members[1] = Member("n2")
        assert self.writes(attempt, Seen(job)) == [], "the second one's pods could not be made"
        attempt.members[0].stop = Stop(EndReason.CANCELLED, 100.0)
        assert self.writes(attempt, Seen(job)) == [DeleteJob(JOB.name, "j1")]

    def test_one_that_is_stopped_before_it_has_a_node(self) -> None:
        attempt = self.attempt(stop=Stop(EndReason.PREEMPTED, 130.0), pod="u1")
        unbound = replace(RUNS, node="", began_s=None, deleted_s=1000.0, ended_by="preempted")
        end = end_without_pod(attempt, 0, Seen(JOB, pods={0: unbound}))
        assert end is not None
        assert (end.reason, end.exit_code) == (EndReason.PREEMPTED, None)
        assert end_without_pod(attempt, 0, Seen(JOB, pods={0: replace(unbound, node="n1")})) is None
        attempt.members[0].stop = None
        told = end_without_pod(attempt, 0, Seen(JOB, pods={0: unbound}))
        assert told is not None
        assert told.reason is EndReason.PREEMPTED, "a scheduler before has stopped it"
        by_others = end_without_pod(attempt, 0, Seen(JOB, pods={0: replace(unbound, ended_by="")}))
        assert by_others is not None
        assert by_others.reason is EndReason.NODE

    def test_a_job_that_somebody_deletes(self) -> None:
        attempt = self.attempt()
        attempt.gone = True
        end = end_without_pod(attempt, 0, Seen())
        assert end is not None
        assert (end.reason, end.cause) == (EndReason.NODE, Cause.NODE)

    def test_one_that_is_found_again(self) -> None:
        attempt = found_of(RUN, JOB.members, hold=False)
        assert self.writes(attempt, Seen(JOB, pods={0: pod(phase="Pending", gated=True)})) == [], "nobody asked yet"
        assert status_of(attempt, 0, RUNS).phase is RunPhase.RUNNING
        assert status_of(attempt, 0, None).phase is RunPhase.STARTING
        assert attempt.unasked
        attempt.members[0].pod = "u1"
        assert not attempt.unasked
        held = found_of(RUN, JOB.members, hold=True)
        assert status_of(held, 0, pod(phase="Pending", gated=True)).phase is RunPhase.PREPARED


class TestAMemberThatFails:
    """Of three, in place of which another may come while the others train on."""

    AFTER_S = 100.0 + REPLACED_AFTER_S

    def attempt(self) -> Attempt:
        members = {rank: Member("n1", spec=spec(), go=True, pod=f"u{rank}", over_s=100.0) for rank in range(3)}
        return Attempt(RUN, members, made=True)

    def seen(self, **more: Any) -> Seen:
        job = replace(JOB, in_place=True, replicas=3, members=(("n1", 1),) * 3)
        fails = replace(RUNS, uid="u1", over=True, began_s=1.0, ended_s=10.0, exit_code=1, rank=1, **more)
        return Seen(job, pods={0: replace(RUNS, uid="u0"), 1: fails, 2: replace(RUNS, uid="u2")})

    def test_is_replaced_once_it_is_clear_that_the_others_run_on(self) -> None:
        attempt, seen = self.attempt(), self.seen()
        assert may_replace(attempt, seen, 1)
        assert writes_for(attempt, seen, self.AFTER_S - 0.1, 0.0) == []
        assert writes_for(attempt, seen, self.AFTER_S, 0.0) == [Replace(1, "u1")]
        attempt.members[1].over_s = None
        assert writes_for(attempt, seen, self.AFTER_S, 0.0) == [], "it has not been looked at yet"

    def test_runs_for_others_until_the_new_one_does(self) -> None:
        attempt, seen = self.attempt(), self.seen()
        member = attempt.members[1]
        member.replaced, member.restarts, member.restarted, member.pod = "u1", 1, "failed (exit code 1)", ""
        gated = replace(RUNS, uid="u3", gated=True, began_s=None)
        for pod_then in (None, gated, replace(gated, gated=False)):
            told = status_of(attempt, 1, pod_then)
            assert (told.phase, told.pod, told.restarts) == (RunPhase.RUNNING, "u1", 1)
        told = status_of(attempt, 1, replace(RUNS, uid="u3"))
        assert (told.pod, told.restarted) == ("u3", "failed (exit code 1)")
        there = replace(seen, pods={**seen.pods, 1: gated})
        assert end_without_pod(attempt, 1, there) is None
        assert writes_for(attempt, there, 200.0, 0.0) == [Open(1, "u3")]
        member.stop = Stop(EndReason.CANCELLED, 200.0)
        assert status_of(attempt, 1, gated).phase is RunPhase.STOPPING

    @pytest.mark.parametrize(
        ("more", "may"),
        [
            ({"exit_code": 0}, False),
            ({"exit_code": 137}, True),
            ({"reason": "OOMKilled", "exit_code": 137}, True),
            ({"deleted_s": 9.0, "exit_code": 143}, True),
            ({"began_s": None}, False),
            ({"ended_by": "preempted"}, False),
            ({"reason": "Evicted"}, False),
            ({"disrupted": "it is drained"}, False),
            ({"reason": "StartError"}, False),
            ({"restarts": MOST_REPLACED}, False),
            ({"restarts": MOST_REPLACED - 1}, True),
            ({"restarts": MOST_REPLACED, "ended_s": 1.0 + WELL_S}, True),
        ],
    )
    def test_by_how_it_ended(self, more: dict[str, Any], may: bool) -> None:
        seen = self.seen()
        pods = {**seen.pods, 1: replace(seen.pods[1], **more)}
        assert may_replace(self.attempt(), replace(seen, pods=pods), 1) is may

    def test_by_how_the_others_and_its_job_are(self) -> None:
        attempt, seen = self.attempt(), self.seen()
        assert seen.job is not None
        for change in ({"in_place": False}, {"going_away": True}, {"replicas": 2}):
            assert not may_replace(attempt, replace(seen, job=replace(seen.job, **change)), 1)
        first = seen.pods[0]
        for of_first in (replace(first, over=True), replace(first, deleted_s=1.0), replace(first, began_s=None)):
            assert not may_replace(attempt, replace(seen, pods={**seen.pods, 0: of_first}), 1)
        assert not may_replace(attempt, replace(seen, pods={0: seen.pods[1], 1: first}), 0), "the others meet there"
        attempt.members[2].stop = Stop(EndReason.CANCELLED, 100.0)
        assert not may_replace(attempt, seen, 1)
        attempt.members[2].stop, attempt.members[0].stays = None, True
        assert not may_replace(attempt, seen, 1), "it is being resized"


class TestLogs:
    def test_times(self) -> None:
        assert nanoseconds(b"1970-01-01T00:00:01.5Z") == 1_500_000_000
        assert nanoseconds(b"1970-01-01T00:00:01Z") == 1_000_000_000
        assert nanoseconds(b"1970-01-01T00:00:01.000000001Z") == 1_000_000_001
        assert nanoseconds(b"hello") is None

    def test_only_what_is_new_is_taken(self) -> None:
        one, two = b"2026-11-27T10:00:00.1Z a\n", b"2026-11-27T10:00:00.1Z b\n"
        three, rest = b"2026-11-27T10:00:00.11Z c\n", b"2026-11-27T10:00:01Z d"
        found, at_ns, same = new_lines(one, 0, 0, whole=False)
        assert (found, same) == (b"a\n", 1)
        found, at_ns, same = new_lines(one + two + three + rest, at_ns, same, whole=False)
        assert (found, same) == (b"b\nc\n", 1), "a line without an end may grow"
        found, at_ns, same = new_lines(one + two + three + rest, at_ns, same, whole=True)
        assert found == b"d"
        assert new_lines(one + two + three + rest, at_ns, same, whole=True)[0] == b""


class TestWhatIsThere:
    def test_pods_of_a_job_that_is_gone_are_of_the_attempt_that_had_it_last(self) -> None:
        """Also one whose label still says that it is of the attempt before: else nobody would let it go."""
        there, after = There(), "12.2-00"
        job = replace(JOB, in_place=True, members=(("n1", 1), ("n1", 1)), replicas=2)
        there.job(None, job)
        mine = [replace(RUNS, uid=f"u{rank}", rank=rank, job="j1", attempt=RUN, in_place=True) for rank in (0, 1)]
        for one in mine:
            there.pod(None, one)
        taken = replace(job, attempt=after)
        there.job(job, taken)
        told = replace(mine[0], attempt=after)
        there.pod(mine[0], told)
        there.job(taken, None)
        assert there.of(RUN) == Seen()
        assert there.of(after) == Seen(pods={0: told, 1: mine[1]})
        there.touched.clear()
        there.pod(mine[1], None)
        assert after in there.touched
        assert there.of(after) == Seen(pods={0: told})
        there.pod(told, None)
        assert there.of(after) == Seen()
        again = replace(mine[1], uid="u9")
        there.pod(None, again)
        assert there.of(RUN) == Seen(pods={1: again}), "nothing is known of its Job any more"
