"""The Job controller that is played does as the recorded one did (`ijob`, `ijobfail` and `ijobrep` in
shared/data/kubernetes/contract-2.jsonl; the words in quotes are the labels of recorded pairs)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from fake_kubernetes.cluster import JOB, POD, Cluster
from fake_kubernetes.errors import Refused
from fake_kubernetes.indexed import INDEX, TRACKED, IndexedJobs
from fake_kubernetes.machines import collect
from fake_kubernetes.server import FakeApi

HELD = "gpuloom.io/end"


class Played:
    """A cluster with the controller, whose time stands still."""

    def __init__(self, api: FakeApi) -> None:
        self.cluster = Cluster(api)
        self.cluster.at_s = 1_800_000_000.0
        self.store, self.controller = api.store, IndexedJobs(api.store)

    def job(self, name: str, size: int, *, finalizers: list[str] | None = None, **spec: Any) -> None:
        container = {"name": "main", "image": "train:1", "command": ["true"]}
        about = {"labels": {"app": name}, **({"finalizers": finalizers} if finalizers else {})}
        template = {"metadata": about, "spec": {"restartPolicy": "Never", "containers": [container]}}
        sizes = {"completionMode": "Indexed", "completions": size, "parallelism": size}
        item = {"metadata": {"name": name}, "spec": {**sizes, **spec, "template": template}}
        self.cluster.create(item, JOB)
        self.look()

    def look(self, after_s: float = 0.0) -> None:
        assert self.cluster.at_s is not None
        self.cluster.at_s += after_s
        self.controller.look()

    def resize(self, name: str, size: int) -> None:
        self.cluster.change(name, JOB, completions=size, parallelism=size)
        self.look()

    def status(self, name: str) -> dict[str, Any]:
        return dict(self.store.get(JOB, "default", name)["status"])

    def pods(self) -> list[tuple[int, list[str], bool]]:
        """(index, finalizers, told to end) of each, by index and name."""
        found = [
            (int(about["annotations"][INDEX]), list(about.get("finalizers") or ()), "deletionTimestamp" in about)
            for about in (one["metadata"] for one in self.store.items[POD].values())
        ]
        return sorted(found)

    def named(self, index: int) -> str:
        """The first pod of this index."""
        names = [
            one["metadata"]["name"]
            for one in self.store.items[POD].values()
            if one["metadata"]["annotations"][INDEX] == str(index)
        ]
        return str(names[0])

    def run(self, *indices: int) -> None:
        for index in indices:
            self.cluster.bind(self.named(index), "n1")
        self.look()


@pytest.fixture
def played() -> Iterator[Played]:
    with FakeApi() as api:
        yield Played(api)


def test_a_suspended_job_has_no_pods(played: Played) -> None:
    """'suspended: status', 'suspended: no pods', 'unsuspend (guarded by test)', 'running: job status'."""
    played.job("j", 2, suspend=True)
    assert played.pods() == []
    assert [(one["type"], one["status"], one["reason"]) for one in played.status("j")["conditions"]] == [
        ("Suspended", "True", "JobSuspended")
    ]
    played.cluster.change("j", JOB, suspend=False)
    played.look()
    assert played.pods() == [(0, [TRACKED], False), (1, [TRACKED], False)]
    assert [(one["status"], one["reason"]) for one in played.status("j")["conditions"]] == [("False", "JobResumed")]
    assert played.status("j")["active"] == 2
    spec = next(iter(played.store.items[POD].values()))["spec"]
    assert spec["hostname"] == "j-0"


def test_a_shrink_takes_the_finalizer_off_before_it_deletes(played: Played) -> None:
    """'shrinking: the job controller takes its finalizer off before it deletes', 'survivors keep their uids'."""
    played.job("j", 4)
    played.run(0, 1, 2, 3)
    before = {one["metadata"]["uid"] for one in played.store.items[POD].values()}
    played.resize("j", 2)
    assert played.pods() == [(0, [TRACKED], False), (1, [TRACKED], False), (2, [], True), (3, [], True)]
    assert {one["metadata"]["uid"] for one in played.store.items[POD].values()} == before
    assert (played.status("j")["active"], played.status("j")["terminating"]) == (2, 2)


def test_a_removed_member_is_not_counted_and_a_new_one_may_run_beside_it(played: Played) -> None:
    """'job: the removed member is not counted as failed', 'members: a new index 2 beside the held one'."""
    played.job("fin", 3, finalizers=[HELD])
    played.run(0, 1, 2)
    played.resize("fin", 2)
    played.cluster.finish(played.named(2), 143)
    played.look()
    assert "failed" not in played.status("fin")
    played.resize("fin", 3)
    assert [one for one in played.pods() if one[0] == 2] == [(2, [HELD], True), (2, [HELD, TRACKED], False)]


def test_a_failed_member_is_made_anew_after_a_while(played: Played) -> None:
    """'failed pod with our finalizer is replaced meanwhile': after 10 s of back-off, twice as long the next time."""
    played.job("z", 2, finalizers=[HELD])
    played.run(0, 1)
    played.cluster.finish(played.named(0), 1)
    played.look(after_s=9.0)
    played.look()
    assert [one for one in played.pods() if one[0] == 0] == [(0, [HELD], False)], "its end can be read"
    played.look(after_s=11.0)
    assert [one for one in played.pods() if one[0] == 0] == [(0, [HELD], False), (0, [HELD, TRACKED], False)]
    assert played.status("z")["failed"] == 1


def test_all_done_is_complete_and_a_shrink_to_nothing_too(played: Played) -> None:
    """'one index done: job', 'done pod: finalizer removed', 'complete: job', 'job shrunk to 0 becomes Complete',
    'completedIndexes after the shrink'."""
    played.job("j", 2)
    played.run(0, 1)
    played.cluster.finish(played.named(1))
    played.look()
    assert played.status("j")["completedIndexes"] == "1"
    assert played.pods() == [(0, [TRACKED], False), (1, [], False)]
    played.resize("j", 1)
    assert "completedIndexes" not in played.status("j"), "what had succeeded above is forgotten"
    played.resize("j", 0)
    assert [one["type"] for one in played.status("j")["conditions"]] == ["SuccessCriteriaMet", "Complete"]


def test_sizes_change_together_or_not_at_all(played: Played) -> None:
    """'completions alone (422)', 'parallelism + completions not equal (422)', 'suspended: completionMode (refused)'."""
    played.job("j", 2)
    for fields in ({"completions": 3}, {"completions": 4, "parallelism": 3}, {"completionMode": "NonIndexed"}):
        with pytest.raises(Refused) as refused:
            played.store.update(JOB, "default", "j", lambda it, more=fields: {**it, "spec": {**it["spec"], **more}})
        assert refused.value.status == 422


def test_deleted_without_a_policy_its_pods_run_on(played: Played) -> None:
    """'delete a running job without propagationPolicy: pods are orphaned and run on', 'delete the job (Background)'."""
    played.job("del", 1)
    played.run(0)
    played.store.delete(JOB, "default", "del")
    collect(played.store)
    assert played.pods() == [(0, [], False)]
    played.job("z", 1, finalizers=[HELD])
    played.store.delete(JOB, "default", "z", {"propagationPolicy": "Background"})
    collect(played.store)
    played.look()
    assert played.pods() == [(0, [], False), (0, [HELD], True)]
