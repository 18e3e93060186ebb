"""Jobs as columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import jobs
from gpuloom.core.errors import InputError
from gpuloom.core.workload import Labels, Speeds, Workload


def raw(submit: list[float], duration: list[float], gpus: list[int], **columns: Any) -> Workload:
    return Workload("w", np.array(submit), np.array(duration), np.array(gpus, dtype=np.int32), **columns)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (([0.0], [1.0, 2.0], [1]), r"workload 'w': column duration_s has 2 rows, submit_s has 1"),
        (([0.0], [1.0], []), r"column gpus has 0 rows"),
        (([0.0, np.nan], [1.0, 1.0], [1, 1]), r"submit_s of job 1 is nan"),
        (([0.0, np.inf], [1.0, 1.0], [1, 1]), r"submit_s of job 1 is inf"),
        (([0.0], [-1.0], [1]), r"duration_s of job 0 is -1.0"),
        (([0.0], [np.inf], [1]), r"duration_s of job 0 is inf"),
        (([0.0, 1.0], [1.0, 1.0], [1, 0]), r"gpus of job 1 is 0"),
        (([1.0, 0.0], [1.0, 1.0], [1, 1]), r"not in order of submission \(use Workload.sorted_by_submit\)"),
    ],
)
def test_columns_that_can_not_be_are_refused(columns: tuple[Any, Any, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        raw(*columns)


def test_optional_columns_must_be_as_long_as_the_others() -> None:
    with pytest.raises(InputError, match="column priority has 1 rows, submit_s has 2"):
        raw([0.0, 0.0], [1.0, 1.0], [1, 1], priority=np.array([1], dtype=np.int32))
    with pytest.raises(InputError, match=r"speeds has shape \(1, 2\), not \(1, models\)"):
        raw([0.0], [1.0], [1], speeds=Speeds(("V100",), np.ones((1, 2))))


def test_messages_use_the_traces_own_ids() -> None:
    with pytest.raises(InputError, match="duration_s of job beta is"):
        raw([0.0, 1.0], [1.0, -2.0], [1, 1], job_ids=("alpha", "beta"))


def test_take_keeps_rows_of_every_column_in_the_order_asked_for() -> None:
    whole = jobs(
        [(0, 1, 1), (0, 2, 2), (0, 3, 3)],
        job_ids=("a", "b", "c"),
        model=Labels.of(["x", "y", "x"]),
        stage_s=np.arange(9.0).reshape(3, 3),
        speeds=Speeds(("V100",), np.array([[1.0], [2.0], [3.0]])),
        notes=("kept",),
    )
    part = whole.take([2, 0], name="part")
    assert part.name == "part"
    assert part.job_ids == ("c", "a")
    assert part.duration_s.tolist() == [3.0, 1.0]
    assert part.gpus.dtype == np.int32
    assert part.model is not None
    assert [part.model[0], part.model[1], len(part.model)] == ["x", "x", 2]
    assert part.stage_s is not None
    assert part.stage_s.tolist() == [[6, 7, 8], [0, 1, 2]]
    assert part.speeds is not None
    assert part.speeds.factor.tolist() == [[3.0], [1.0]]
    assert part.notes == ("kept",)
    assert whole.take([1]).name == "test"
    assert len(whole.take([])) == 0


@given(st.lists(st.integers(0, 3), max_size=30))
def test_sorting_by_submission_is_stable(submits: list[int]) -> None:
    ids = tuple(str(row) for row in range(len(submits)))
    workload = jobs([(float(s), 1.0, 1) for s in submits], job_ids=ids)
    assert workload.job_ids is not None
    assert [int(x) for x in workload.job_ids] == sorted(range(len(submits)), key=lambda row: submits[row])
    assert workload.submit_s.tolist() == sorted(map(float, submits))


def test_sorting_moves_every_column_and_leaves_the_notes() -> None:
    workload = jobs(
        [(5, 50, 5), (1, 10, 1)],
        job_ids=["late", "early"],
        user=Labels.of(["ann", "bob"]),
        weight=np.array([5.0, 1.0]),
        speeds=Speeds(("A",), np.array([[5.0], [1.0]])),
        notes=("first note", "second note", "third note"),
    )
    assert workload.job_ids == ("early", "late")
    assert workload.weight is not None
    assert workload.weight.tolist() == [1.0, 5.0]
    assert workload.user is not None
    assert workload.user[0] == "bob"
    assert workload.speeds is not None
    assert workload.speeds.factor.tolist() == [[1.0], [5.0]]
    assert workload.notes == ("first note", "second note", "third note")


@given(st.lists(st.text(max_size=3), max_size=20))
def test_labels_give_the_words_back(words: list[str]) -> None:
    labels = Labels.of(words)
    assert [labels[row] for row in range(len(labels))] == words
    assert len(set(labels.names)) == len(labels.names)


def test_jobs_without_ids_are_named_by_row() -> None:
    assert jobs([(0, 1, 1), (0, 1, 1)]).job_id(1) == "1"
    assert len(jobs([])) == 0
