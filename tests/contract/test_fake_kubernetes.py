"""The fake API server answers as a real one did, as far as it goes.

Each group of recorded pairs is replayed. What the fake lacks of a group has its reason here; a group may gain pairs,
and lose none.
"""

from __future__ import annotations

import pytest

from fake_kubernetes.recorded import FOLDER, pairs, replayed

NOT_HERE = {
    "auth": "rights (RBAC) are not played",
    "auth_volcano": "rights (RBAC) are not played",
    "bookmarks": "a bookmark comes once a minute: tests of the informer set a shorter time",
    "dra": "claims of devices are not played",
    "events": "events are stored, and not checked",
    "evictretry": "disruption budgets are not played",
    "extras": "of several parts that are not played",
    "faults": "faults are asked for by tests (server.py: Fault)",
    "faults2": "faults are asked for by tests (server.py: Fault)",
    "nodegone": "the node lifecycle controller is not played yet",
    "podgc": "the collector of pods is not played yet",
    "podgroup": "Kubernetes' own PodGroups are not there",
    "podgroup_off": "Kubernetes' own PodGroups are not there",
    "quota": "quotas are not played",
    "volcano_admission": "Volcano's admission is not played yet",
    "volcano_nosched": "Volcano's controller is not played yet",
    "volcano_sched": "Volcano's scheduler is not played",
    "volcano_sched_nocache": "Volcano's scheduler is not played",
}
LEAST = {
    "first": (22, "Volcano's controller and admission, and server-side apply, are not played yet"),
    "ends": (43, "budgets, the garbage collector and objects made between the recorded calls"),
    "expired": (2, "versions of before the recording began"),
    "gate": (47, "kube-scheduler, and what a binding checks, are not played here"),
    "ijob": (18, "the controller is not played here (test_fake_jobs.py); templates are printed shorter"),
    "ijobfail": (29, "the controller is not played here; policies of failure and success, and deadlines"),
    "ijobrep": (16, "the controller is not played here (test_fake_jobs.py)"),
    "leases": (18, "the form of times is not checked"),
    "lists": (71, "tables, and what was changed between the recorded calls"),
    "volcano": (49, "Volcano's controller is not played here (volcano.py)"),
    "writes": (50, "server-side apply, field validation and limits of size"),
}
"""By group how many of its pairs are answered alike at least, and what the others are about."""


@pytest.fixture(autouse=True)
def recording() -> None:
    if not FOLDER.is_dir():
        pytest.skip(f"no recorded answers in {FOLDER}")


def test_each_group_is_replayed_or_has_a_reason() -> None:
    assert {pair.group for pair in pairs()} == NOT_HERE.keys() | LEAST.keys()


@pytest.mark.slow
@pytest.mark.parametrize("group", LEAST)
def test_it_answers_as_recorded(group: str) -> None:
    least, why = LEAST[group]
    same, others = replayed(group)
    print(f"{group}: {same} alike, {len(others)} not ({why})", *others, sep="\n")
    assert same >= least
