"""A Kubernetes cluster is watched: its jobs are in the records as they are there, whatever happens on the way."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("lightkube", reason="lightkube is not installed: pip install 'gpuloom[kubernetes]'")

from fake_kubernetes.cluster import JOB, NODE, VCJOB, WORKLOAD, Cluster, owner, pod
from fake_kubernetes.errors import status_object
from fake_kubernetes.server import FakeApi, Fault, Request
from gpuloom.core.errors import ConflictError, GpuloomError, InputError
from gpuloom.core.job import EndReason, NodeState
from gpuloom.executors.port import ExecutorError
from gpuloom.live.parts import LiveScheduler
from gpuloom.store.home import Home
from observed_cluster import Observer, observed
from until import until

pytestmark = pytest.mark.slow

Watched = tuple[FakeApi, Cluster, Observer]


@pytest.fixture
def there(tmp_path: Path) -> Iterator[Watched]:
    """A cluster of two nodes with 8 GPUs each, not watched yet."""
    with observed(tmp_path) as found:
        _, cluster, _ = found
        cluster.at_s = time.time() - 7200.0
        cluster.add_node("n1")
        cluster.add_node("n2")
        cluster.at_s = None
        yield found


def test_the_past_is_caught_up_with_as_it_was(there: Watched) -> None:
    _, cluster, observer = there
    begun_s = cluster.at_s = float(int(time.time())) - 6000.0
    cluster.create(pod("first", 4))
    cluster.at_s += 10.0
    cluster.bind("first", "n1")
    cluster.at_s += 600.0
    cluster.finish("first")
    cluster.create(pod("second", 8))
    cluster.at_s += 5.0
    cluster.bind("second", "n1")
    cluster.create(pod("third", 2))
    cluster.at_s = None
    cluster.unschedulable("third", "0/2 nodes are available")
    observer.start()
    assert observer.states() == {"first": "finished", "second": "running", "third": "queued"}
    first = observer.book.jobs[observer.number("first")]
    assert (first.submitted_s, first.first_start_s, first.ended_s) == (begun_s, begun_s + 10.0, begun_s + 610.0)
    assert (first.work_s, first.held_gpu_s, first.reason) == (600.0, 2400.0, EndReason.FINISHED)
    assert (first.user, first.spec.container) == ("default", "train:1")
    assert observer.held() == {"second": {"n1": 8}}
    found = observer.service.why(observer.number("third"))
    assert "0/2 nodes are available" in found["text"]
    assert observer.view("second")["log"] == "kubectl logs -n default second"


def test_jobs_come_start_end_and_fail(there: Watched) -> None:
    _, cluster, observer = there
    observer.start()
    cluster.create(pod("a", 8))
    observer.becomes(a="queued")
    cluster.bind("a", "n1")
    observer.becomes(a="running")
    cluster.create(pod("b", 2))
    cluster.bind("b", "n2")
    observer.becomes(b="running")
    assert observer.held() == {"a": {"n1": 8}, "b": {"n2": 2}}
    cluster.finish("a", 3)
    cluster.finish("b")
    observer.becomes(a="failed", b="finished")
    job = observer.book.jobs[observer.number("a")]
    assert (job.reason, job.exit_code) == (EndReason.FAILED, 3)
    cluster.create(pod("c", 1))
    cluster.bind("c", "n1")
    observer.becomes(c="running")
    cluster.delete("c")
    observer.becomes(c="cancelled")
    assert observer.book.jobs[observer.number("c")].message == "its pods were deleted"


def test_what_happens_while_nobody_watches_is_caught_up_with(there: Watched) -> None:
    api, cluster, observer = there
    cluster.create(pod("a", 8))
    cluster.bind("a", "n1")
    cluster.create(pod("b", 8))
    observer.start()
    observer.becomes(a="running", b="queued")
    observer.stop()
    cluster.finish("a")
    cluster.bind("b", "n1")
    cluster.create(pod("c", 4))
    api.store.compact()
    observer.start()
    assert observer.states() == {"a": "finished", "b": "running", "c": "queued"}
    observer.stop()
    observer.start()
    assert observer.states() == {"a": "finished", "b": "running", "c": "queued"}
    assert observer.live is not None
    kinds = [event.type for event in observer.live.store.events(job=observer.number("b"))]
    assert kinds == ["jobs.submitted", "attempt.starting", "attempt.running"]


def test_an_elastic_job_of_volcano_grows_and_shrinks(there: Watched) -> None:
    _, cluster, observer = there
    spec = {"minAvailable": 1, "tasks": [{"name": "worker", "replicas": 2, "template": {"spec": pod("x", 4)["spec"]}}]}
    vc = cluster.create({"metadata": {"name": "vc"}, "spec": spec}, VCJOB)
    observer.start()
    assert observer.states() == {"vc": "queued"}
    assert "Volcano has not let it in" in observer.service.why(observer.number("vc"))["text"]
    labels, made = {"volcano.sh/job-name": "vc"}, owner("Job", vc)
    for index in range(2):
        cluster.create(pod(f"vc-worker-{index}", 4, labels=labels, ownerReferences=made))
        cluster.bind(f"vc-worker-{index}", "n1")
    cluster.change("vc", VCJOB, status=True, state={"phase": "Running"})
    until(lambda: observer.held() == {"vc": {"n1": 8}}, "the records to follow")
    cluster.create(pod("vc-worker-2", 4, labels=labels, ownerReferences=made))
    cluster.bind("vc-worker-2", "n2")
    until(lambda: observer.held() == {"vc": {"n1": 8, "n2": 4}}, "the records to follow")
    cluster.delete("vc-worker-2")
    until(lambda: observer.held() == {"vc": {"n1": 8}}, "the records to follow")
    assert observer.live is not None
    attempts = observer.live.store.attempts([observer.number("vc")])
    assert [attempt.reason for attempt in attempts][:-1] == [EndReason.RESIZED] * (len(attempts) - 1)
    for index in range(2):
        cluster.finish(f"vc-worker-{index}")
    cluster.change("vc", VCJOB, status=True, state={"phase": "Completed", "lastTransitionTime": cluster.store.stamp()})
    observer.becomes(vc="finished")


def test_a_batch_job_is_retried_and_one_that_is_suspended_is_held(there: Watched) -> None:
    _, cluster, observer = there
    spec = {"parallelism": 1, "completions": 1, "suspend": True, "template": {"spec": pod("x", 2)["spec"]}}
    job = cluster.create({"metadata": {"name": "job"}, "spec": spec}, JOB)
    observer.start()
    assert observer.states() == {"job": "held"}
    assert "suspended" in observer.service.why(observer.number("job"))["text"]
    cluster.change("job", JOB, suspend=False)
    observer.becomes(job="queued")
    for attempt, code, state in ((0, 1, "queued"), (1, 0, "finished")):
        cluster.create(pod(f"job-{attempt}", 2, ownerReferences=owner("Job", job)))
        cluster.bind(f"job-{attempt}", "n1")
        observer.becomes(job="running")
        cluster.finish(f"job-{attempt}", code)
        observer.becomes(job=state)
    done = {"type": "Complete", "status": "True", "lastTransitionTime": cluster.store.stamp()}
    cluster.change("job", JOB, status=True, conditions=[done])
    cluster.create(pod("other", 1))
    observer.becomes(job="finished", other="queued")
    assert observer.live is not None
    attempts = observer.live.store.attempts([observer.number("job")])
    assert [attempt.exit_code for attempt in attempts] == [1, 0]


def test_what_kueue_holds_back_waits_in_its_words(there: Watched) -> None:
    api, cluster, observer = there
    sets = [{"name": "main", "count": 2, "template": {"spec": pod("x", 8)["spec"]}}]
    about = {
        "name": "train-x",
        "ownerReferences": [{"kind": "TrainJob", "name": "train", "uid": "t-1", "controller": True}],
    }
    cluster.create({"metadata": about, "spec": {"queueName": "ml", "podSets": sets}}, WORKLOAD)
    said = {"type": "QuotaReserved", "status": "False", "message": "insufficient unused quota for nvidia.com/gpu"}
    cluster.change("train-x", WORKLOAD, status=True, conditions=[said])
    observer.start()
    assert observer.states() == {"train": "queued"}
    found = observer.service.why(observer.number("train"))
    assert "Kueue has not admitted it (queue ml): insufficient unused quota" in found["text"]
    api.faults.append(Fault(lambda request: "workloads" in request.path, 404, "404 page not found\n", times=None))
    api.cut_watches()
    observer.becomes(train="cancelled")  # Kueue was taken out of the cluster, and all that it held with it


def test_nodes_are_as_the_cluster_has_them(there: Watched) -> None:
    _, cluster, observer = there
    cluster.create(pod("a", 4))
    cluster.bind("a", "n1")
    observer.start()
    cluster.change("n2", NODE, unschedulable=True)
    until(lambda: observer.book.nodes["n2"].state is NodeState.CORDONED, "the records to follow")
    assert observer.book.nodes["n2"].reason == "cordoned in Kubernetes"
    cluster.change("n2", NODE, unschedulable=False, taints=[{"key": "team", "value": "x", "effect": "NoSchedule"}])
    until(lambda: "tainted team=x:NoSchedule" in observer.book.nodes["n2"].reason, "the records to follow")
    tolerates = [{"key": "team", "operator": "Exists"}]
    cluster.create(pod("b", 1, tolerations=tolerates))
    until(lambda: observer.book.nodes["n2"].state is NodeState.UP, "the records to follow")
    counts = {"nvidia.com/gpu": "6", "cpu": "64", "memory": "512Gi"}
    cluster.change("n1", NODE, status=True, allocatable=counts)
    until(
        lambda: sum(gpu.state.value == "unhealthy" for gpu in observer.book.nodes["n1"].gpus) == 2,
        "the records to follow",
    )
    assert [gpu.index for gpu in observer.book.nodes["n1"].gpus if gpu.state.value == "unhealthy"] == [6, 7]
    cluster.delete("n1", NODE)
    until(
        lambda: observer.book.nodes["n1"].state is NodeState.CORDONED, "the records to follow"
    )  # its pod is still there
    cluster.delete("a")
    until(lambda: observer.book.nodes["n1"].state is NodeState.DOWN, "the records to follow")
    observer.becomes(a="cancelled")


def of_pods(request: Request) -> bool:
    return request.path == "/api/v1/pods"


def watches(request: Request) -> bool:
    return of_pods(request) and "watch" in request.query


@pytest.mark.parametrize(
    "fault",
    [
        Fault(watches, 500, status_object(500, "etcdserver: leader changed"), times=2),
        Fault(watches, 429, "Too many requests, please try again later.\n", {"Retry-After": "1"}),
        Fault(watches, 504, status_object(504, "Timeout", "Timeout")),
        Fault(watches, 0),
        Fault(watches, 410, status_object(410, "too old", "Expired")),
        Fault(of_pods, 404, "404 page not found\n", times=2),
        Fault(of_pods, 403, status_object(403, "pods is forbidden", "Forbidden"), times=2),
    ],
    ids=["500", "429", "504", "cut", "410", "404", "403"],
)
def test_whatever_goes_wrong_with_a_watch_it_is_up_to_date_again(there: Watched, fault: Fault) -> None:
    api, cluster, observer = there
    cluster.create(pod("a", 8))
    cluster.bind("a", "n1")
    observer.start()
    api.faults.append(fault)
    api.cut_watches()
    if fault.status == 410:
        api.store.compact()
    cluster.finish("a")
    cluster.create(pod("b", 4))
    cluster.bind("b", "n2")
    observer.becomes(a="finished", b="running")
    assert observer.watching.problem() == ""


@pytest.mark.parametrize("status", [401, 403, 404])
def test_pods_that_can_t_be_read_any_more_end_no_job(there: Watched, status: int) -> None:
    api, cluster, observer = there
    cluster.create(pod("a", 8))
    cluster.bind("a", "n1")
    observer.start()
    api.faults.append(Fault(of_pods, status, status_object(status, "pods: no"), times=None))
    api.cut_watches()
    until(lambda: "pods: no" in observer.watching.problem(), "the records to follow")
    cluster.create(pod("b", 1, namespace="default"))
    time.sleep(1.5)  # a look in between
    assert observer.states() == {"a": "running"}
    assert "pods: no" in observer.service.status()["executor"]["problem"]


def test_without_the_right_to_read_pods_it_does_not_start(there: Watched) -> None:
    api, _, observer = there
    api.faults.append(Fault(of_pods, 403, status_object(403, "pods is forbidden", "Forbidden"), times=None))
    with pytest.raises(GpuloomError, match=r"pods is forbidden.*needs the right to list and watch nodes and pods"):
        observer.start()


def test_at_first_a_failure_is_waited_out(there: Watched) -> None:
    api, cluster, observer = there
    api.faults.append(Fault(of_pods, 429, "Too many requests\n", {"Retry-After": "1"}))
    cluster.create(pod("a", 8))
    observer.start()
    assert observer.states() == {"a": "queued"}


def test_a_server_that_is_not_there_is_told_soon(there: Watched) -> None:
    api, _, observer = there
    api.close()
    with pytest.raises(GpuloomError, match="GET /api/v1/nodes"):
        observer.start()


def test_nothing_can_be_done_to_its_jobs(there: Watched) -> None:
    _, cluster, observer = there
    cluster.create(pod("a", 8))
    cluster.bind("a", "n1")
    observer.start()
    number = observer.number("a")
    with pytest.raises(ConflictError, match="only observe"):
        observer.service.cancel([number])
    with pytest.raises(ConflictError, match="only observe"):
        observer.service.stop(stop_jobs=True)
    (log,) = observer.service.logs(number)
    with pytest.raises(ExecutorError, match="kubectl logs"):
        observer.service.files_of(log).read_log(log.run)


def test_only_some_namespaces(tmp_path: Path) -> None:
    with observed(tmp_path, namespaces=("ml",)) as (api, cluster, observer):
        cluster.add_node("n1")
        cluster.create(pod("a", 1))
        ml = Cluster(api, "ml")
        ml.create({"metadata": {"name": "ml"}}, next(kind for kind in api.store.items if kind.kind == "Namespace"))
        ml.create(pod("b", 1))
        observer.start()
        assert observer.states() == {"b": "queued"}


def test_a_home_is_for_one_cluster_and_for_nothing_else(there: Watched, tmp_path: Path) -> None:
    _, cluster, observer = there
    cluster.create(pod("a", 1))
    observer.start()
    observer.stop()
    with pytest.raises(InputError, match="has what was seen of cluster http"):
        LiveScheduler(Home(observer.home), slots=1)
    with pytest.raises(InputError, match="give another --home"):
        LiveScheduler(Home(observer.home), watches="https://elsewhere:6443", local=False)
    own = LiveScheduler(Home(tmp_path / "own"), slots=1)
    own.start()
    own.close()
    with pytest.raises(InputError, match="of a scheduler of its own"):
        LiveScheduler(Home(tmp_path / "own"), watches="https://elsewhere:6443", local=False)


def test_what_fits_no_rule_is_shown_all_the_same(there: Watched) -> None:
    """A job on two GPU models, more GPUs on a node than it offers, priorities as Kubernetes has them."""
    _, cluster, observer = there
    cluster.add_node("v1", 8, model="Tesla-V100-SXM2-32GB")
    group = {"labels": {"scheduling.x-k8s.io/pod-group": "mixed"}}
    for index, to in enumerate(("n1", "v1")):
        cluster.create(pod(f"mixed-{index}", 4, **group))
        cluster.bind(f"mixed-{index}", to)
    for index in range(3):
        cluster.create(pod(f"over-{index}", 8, priority=2_000_000_000))
        cluster.bind(f"over-{index}", "n2")
    cluster.create(pod("waits", 8, priority=1_000_000_000))
    cluster.create(pod("never", 64, priority=-5))
    observer.start()
    assert observer.held() == {"mixed": {"n1": 4, "v1": 4}, **{f"over-{index}": {"n2": 8} for index in range(3)}}
    assert len(observer.book.nodes["n2"].gpus) == 24
    for name in ("waits", "never"):
        assert observer.service.why(observer.number(name))["sentences"]
    for index in range(2):
        cluster.finish(f"over-{index}")
        cluster.finish(f"mixed-{index}")
    observer.becomes(over_0="finished", over_1="finished", mixed="finished")
    until(lambda: len(observer.book.nodes["n2"].gpus) == 8, "the node has its own GPUs again")
    assert observer.watching.problem() == ""
    assert observer.service.why(observer.number("waits"))["state"] == "queued"


def test_a_forecast_comes_with_how_far_off_others_were(there: Watched) -> None:
    """Eight jobs of ten minutes, one after the other on the same GPUs."""
    _, cluster, observer = there
    begun_s = cluster.at_s = time.time() - 7000.0
    for index in range(9):
        cluster.create(pod(f"train-{index}", 8, nodeName=""))
    cluster.change("n2", NODE, unschedulable=True)
    for index in range(8):
        cluster.at_s = begun_s + 1.0 + 600.0 * index
        cluster.bind(f"train-{index}", "n1")
        cluster.at_s = begun_s + 600.0 * (index + 1)
        cluster.finish(f"train-{index}")
    for index in range(9, 16):  # of these it is known how long they run
        cluster.at_s += 1.0
        cluster.create(pod(f"train-{index}", 8))
    for index in range(9, 15):
        cluster.at_s += 1.0
        cluster.bind(f"train-{index}", "n1")
        cluster.at_s += 300.0
        cluster.finish(f"train-{index}")
    cluster.bind("train-8", "n1")
    cluster.at_s = None
    observer.start()
    record = until(lambda: observer.watching.track_record.record, "the track record")
    assert record.jobs >= 5
    found = observer.service.why(observer.number("train-15"))
    assert found["numbers"]["start_off_s"] == record.off_s
    assert record.sentence in found["sentences"]


def test_a_job_that_ended_long_ago_begins_anew(there: Watched) -> None:
    """Its record has been forgotten in memory; the store has it."""
    _, cluster, observer = there
    labels = {"scheduling.x-k8s.io/pod-group": "g"}
    cluster.create(pod("g-0", 2, labels=labels))
    cluster.bind("g-0", "n1")
    observer.start()
    cluster.finish("g-0")
    observer.becomes(g="finished")
    number = observer.number("g")
    assert observer.live is not None
    observer.live.scheduler.do(lambda: observer.book.forget(number))
    cluster.create(pod("g-1", 4, labels=labels))
    cluster.bind("g-1", "n2")
    observer.becomes(g="running")
    assert observer.number("g") == number
    assert observer.held() == {"g": {"n2": 4}}
