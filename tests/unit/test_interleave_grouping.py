"""Plans of groups, against the spec's examples and all partitions of a few jobs."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

import numpy as np
import pytest

from gpuloom.core.errors import InputError
from gpuloom.interleave.efficiency import Interleaving
from gpuloom.interleave.grouping import Grouping, group_jobs

PLAIN = Interleaving(model="barrier", overhead=(1.0, 1.0, 1.0, 1.0))
MEASURED = Interleaving()


def partitions(rows: list[int], size: int) -> Iterator[list[list[int]]]:
    """Every way to put the rows into groups of at most `size`."""
    if not rows:
        yield []
        return
    first, rest = rows[0], rows[1:]
    for partition in partitions(rest, size):
        yield [[first], *partition]
        for index, group in enumerate(partition):
            if len(group) < size:
                yield [*partition[:index], [first, *group], *partition[index + 1 :]]


def best(
    stage_s: np.ndarray, size: int, groups: int, model: Interleaving, objective: str, solo_s: np.ndarray
) -> tuple[int, float]:
    """(groups formed, value) of the best partition; more groups than asked for only where fewer can't be."""
    found: dict[int, float] = {}
    worth: dict[tuple[int, ...], float] = {}
    for partition in partitions(list(range(len(stage_s))), size):
        total = 0.0
        for group in partition:
            key = tuple(sorted(group))
            if key not in worth:
                seconds = float(solo_s[key[0]])
                if len(key) > 1:
                    seconds = float(model.iteration_s(stage_s[None, list(key)])[0])
                alone = float(solo_s[list(key)].sum())
                resources = 4 if model.model == "measured" else stage_s.shape[1]
                gamma = float(stage_s[list(key)].sum()) / (resources * seconds)
                value = gamma if objective == "efficiency" else alone / seconds
                worth[key] = value if seconds <= alone * (1 + 1e-9) else -inf
            total += worth[key]
        if total > -inf:
            formed = max(groups, len(partition))
            found[formed] = max(found.get(formed, -inf), total)
    return min(found), found[min(found)]


def rows_of(grouping: Grouping) -> list[int]:
    return sorted(row for group in grouping.groups for row in group)


def test_the_worked_examples_of_the_paper() -> None:
    a, b, c = (2.0, 1.0), (1.0, 2.0), (2.0, 1.0)
    good = group_jobs(np.array([a, b]), size=2, interleaving=PLAIN)
    assert (good.groups, good.iteration_s, good.efficiency) == (((0, 1),), (3.0,), (1.0,))
    poor = group_jobs(np.array([a, c]), size=2, interleaving=PLAIN)
    assert (poor.iteration_s, poor.efficiency) == ((4.0,), (0.75,))


@pytest.mark.parametrize("method", ["multiround", "exact"])
def test_jobs_of_opposite_stages_are_paired(method: str) -> None:
    stage_s = np.array([[2.0, 1.0], [2.0, 1.0], [1.0, 2.0], [1.0, 2.0]])
    found = group_jobs(stage_s, method=method, size=2, interleaving=PLAIN)
    assert sorted(found.groups) == [(0, 2), (1, 3)]
    assert found.value == 2.0
    assert found.optimal is (method == "exact")
    assert group_jobs(stage_s, method="greedy", size=2, interleaving=PLAIN).groups == ((0, 1), (2, 3))


@pytest.mark.parametrize("objective", ["efficiency", "throughput"])
@pytest.mark.parametrize(
    ("model", "stages", "size"),
    [(PLAIN, 4, 2), (PLAIN, 4, 3), (PLAIN, 4, 4), (PLAIN, 3, 3), (MEASURED, 3, 2), (MEASURED, 3, 3), (MEASURED, 3, 4)],
)
def test_exact_is_the_best_partition(objective: str, model: Interleaving, stages: int, size: int) -> None:
    rng = np.random.default_rng(size * 10 + stages)
    for jobs in (1, 2, 4, 5, 6, 7):
        base = rng.random((4, stages)) ** 2 + 0.01
        stage_s = base[rng.integers(0, 4, jobs)] if jobs % 2 else rng.random((jobs, stages)) ** 3 + 0.01
        solo_s = stage_s.sum(axis=1)
        wanted = -(-jobs // size) + jobs % 2
        found = group_jobs(
            stage_s, method="exact", size=size, groups=wanted, interleaving=model, objective=objective, solo_s=solo_s
        )
        formed, value = best(stage_s, size, wanted, model, objective, solo_s)
        assert found.value == pytest.approx(value, rel=1e-6)
        assert max(wanted, len(found.groups)) == formed
        assert found.optimal
        assert rows_of(found) == list(range(jobs))


@pytest.mark.slow
def test_exact_beats_the_rounds_where_these_are_greedy() -> None:
    rng = np.random.default_rng(11)
    behind = 0
    for _ in range(10):
        stage_s = rng.random((24, 4)) ** 2 + 0.01
        exact = group_jobs(stage_s, method="exact", interleaving=PLAIN)
        rounds = group_jobs(stage_s, interleaving=PLAIN)
        assert len(exact.groups) == len(rounds.groups) == 6
        assert rounds.value <= exact.value + 1e-9
        behind += rounds.value < exact.value - 1e-3
    assert behind >= 5


def test_overhead_is_counted() -> None:
    stage_s = np.array([[2.0, 1.0], [1.0, 2.0]])
    slow = Interleaving(model="barrier", overhead=(1.0, 1.5, 1.0, 1.0))
    found = group_jobs(stage_s, size=2, interleaving=slow)
    assert found.iteration_s == (4.5,)
    assert found.efficiency[0] == pytest.approx(1 / 1.5)


@pytest.mark.parametrize("method", ["multiround", "exact", "greedy"])
def test_no_group_is_slower_than_its_jobs_one_after_another(method: str) -> None:
    # Together they take 3 · 2.5 = 7.5 s, one after another 6 s: they stay apart although one group was asked for.
    stage_s = np.array([[2.0, 1.0], [1.0, 2.0]])
    slow = Interleaving(model="barrier", overhead=(1.0, 2.5, 1.0, 1.0))
    found = group_jobs(stage_s, method=method, size=2, interleaving=slow)
    assert found.groups == ((0,), (1,))
    assert (found.wanted, found.iteration_s) == (1, (3.0, 3.0))


def test_solo_times_are_what_a_job_takes_alone() -> None:
    # Alone the first takes 1.4 s as its stages overlap: 1.4 + 1.4 s one after another beat the pair's 3 s.
    stage_s = np.array([[2.0, 1.0], [1.0, 2.0]])
    found = group_jobs(stage_s, size=2, interleaving=PLAIN, solo_s=np.array([1.4, 1.4]), objective="throughput")
    assert found.groups == ((0,), (1,))
    assert found.iteration_s == (1.4, 1.4)
    assert found.value == 2.0


@pytest.mark.parametrize("method", ["multiround", "exact", "greedy"])
def test_a_group_fits_the_memory(method: str) -> None:
    stage_s = np.array([[2.0, 1.0], [1.0, 2.0], [2.0, 1.0], [1.0, 2.0]])
    memory = np.array([10.0, 7.0, 5.0, 6.0])
    found = group_jobs(
        stage_s, method=method, size=2, interleaving=PLAIN, memory_mib=memory, gpu_memory_mib=16.0, groups=3
    )
    for group in found.groups:
        assert memory[list(group)].sum() <= 16
    assert rows_of(found) == [0, 1, 2, 3]
    assert len(found.groups) <= 3


def test_orderings() -> None:
    rng = np.random.default_rng(6)
    stage_s = rng.random((4, 4)) + 0.1
    times = {
        ordering: group_jobs(
            stage_s,
            method="greedy",
            interleaving=Interleaving(model="barrier", ordering=ordering, overhead=(1.0, 1.0, 1.0, 1.0)),
        ).iteration_s[0]
        for ordering in ("best", "none", "worst")
    }
    assert times["best"] < times["none"] < times["worst"]


@pytest.mark.parametrize("size", [2, 3, 4])
def test_groups_are_full_where_all_may_be_grouped(size: int) -> None:
    stage_s = np.tile(np.eye(4) + 0.01, (6, 1))
    for method in ("multiround", "exact"):
        found = group_jobs(stage_s, method=method, size=size, interleaving=PLAIN)
        assert [len(group) for group in found.groups] == [size] * (24 // size)


def test_no_more_is_merged_than_the_gpus_need() -> None:
    stage_s = np.tile(np.eye(4) + 0.01, (3, 1))
    for groups in (3, 5, 7, 12):
        assert len(group_jobs(stage_s, groups=groups, interleaving=PLAIN).groups) == groups
        exact = group_jobs(stage_s, method="exact", groups=groups, interleaving=PLAIN)
        assert len(exact.groups) <= groups
        assert exact.value >= group_jobs(stage_s, groups=groups, interleaving=PLAIN).value - 1e-9


def test_slots_are_those_of_the_model() -> None:
    stage_s = np.random.default_rng(1).random((8, 3)) + 0.1
    found = group_jobs(stage_s, method="exact", interleaving=MEASURED)
    for group, slots, seconds in zip(found.groups, found.slots, found.iteration_s, strict=True):
        assert len(group) == len(slots)
        if len(group) > 1:
            expected_s, expected = MEASURED.scheduled(stage_s[None, list(group)])
            assert slots == tuple(expected[0])
            assert seconds == expected_s[0]


@pytest.mark.parametrize("method", ["multiround", "exact", "greedy"])
def test_the_same_answer_after_other_calls(method: str) -> None:
    rng = np.random.default_rng(8)
    stage_s = rng.random((6, 3))[rng.integers(0, 6, 18)] + 0.05
    first = group_jobs(stage_s, method=method, interleaving=MEASURED)
    group_jobs(rng.random((11, 3)) + 0.1, method=method, interleaving=MEASURED)
    group_jobs(stage_s[::-1], method=method, interleaving=MEASURED)
    assert group_jobs(stage_s, method=method, interleaving=MEASURED) == first


def test_more_profiles_than_are_enumerated(monkeypatch: pytest.MonkeyPatch) -> None:
    stage_s = np.random.default_rng(9).random((16, 4)) + 0.05
    exact = group_jobs(stage_s, method="exact", interleaving=PLAIN)
    monkeypatch.setattr("gpuloom.interleave.grouping.ENUMERATED", 10)
    found = group_jobs(stage_s, method="exact", interleaving=PLAIN)
    assert found.bound == inf
    assert not found.optimal
    assert group_jobs(stage_s, interleaving=PLAIN).value <= found.value <= exact.value + 1e-9
    assert rows_of(found) == list(range(16))


def test_no_jobs() -> None:
    assert group_jobs(np.zeros((0, 3)), interleaving=MEASURED).groups == ()


@pytest.mark.parametrize(
    ("stage_s", "options", "says"),
    [
        ([[1.0, 1.0, 1.0]], {"method": "best"}, "grouping method 'best'"),
        ([[1.0, 1.0, 1.0]], {"objective": "jobs"}, "objective 'jobs'"),
        ([[1.0, 1.0, 1.0]], {"size": 0}, "group size 0"),
        ([[1.0, 1.0, 1.0]], {"size": 5}, "group size 5"),
        ([[1.0, 1.0, 1.0]], {"groups": 0}, "0 groups"),
        ([1.0, 1.0, 1.0], {}, "shape"),
        ([[1.0, 1.0, 1.0], [1.0, np.nan, 1.0]], {}, "job 1: stage times"),
        ([[1.0, 1.0, 1.0], [1.0, -0.5, 1.0]], {}, "job 1: stage times"),
        ([[0.0, 0.0, 0.0]], {}, "job 0: stage times"),
        ([[1.0, 1.0, 1.0]], {"solo_s": np.array([0.0])}, "job 0: solo times"),
        ([[1.0, 1.0, 1.0]], {"solo_s": np.array([1.0, 1.0])}, "one for each of 1 jobs"),
        ([[1.0, 1.0, 1.0]], {"memory_mib": np.array([17.0]), "gpu_memory_mib": 16.0}, "job 0: needs more memory"),
        ([[1.0, 1.0]] * 2, {}, "measured model takes 3 stages"),
    ],
)
def test_what_can_not_be(stage_s: list[object], options: dict[str, object], says: str) -> None:
    with pytest.raises(InputError, match=says):
        group_jobs(np.array(stage_s), interleaving=MEASURED, **options)
