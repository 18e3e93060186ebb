"""Shapes: which jobs may go where, and which can go nowhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from builders import jobs
from gpuloom.core.cluster import parse_cluster
from gpuloom.core.errors import ClusterError
from gpuloom.core.workload import Labels, Speeds
from gpuloom.placement.shapes import (
    best_speeds,
    impossible_jobs,
    model_allowed,
    shapes_of,
    speeds_on,
    why_impossible,
)

MIXED = "1x4:V100,2x4:K80"


def pools(cluster: str, *gpus: int, **columns: Any) -> list[tuple[int, tuple[int, ...]]]:
    """(GPUs, pools) of each job."""
    shapes = shapes_of(jobs([(0, 1, g) for g in gpus], **columns), parse_cluster(cluster))
    return [(shapes.shapes[i].gpus, shapes.shapes[i].pools) for i in shapes.of_job]


def types(*names: str) -> Labels:
    return Labels.of(names)


@pytest.mark.parametrize(
    ("wanted", "model", "allowed"),
    [
        ("", "V100", True),
        ("V100", "V100", True),
        ("v100", "V100", True),
        ("V100", "K80", False),
        ("K80 | v100", "V100", True),
        ("V100", "GPU", True),
        ("V10", "V100", False),
    ],
)
def test_a_wish_names_models_in_any_case(wanted: str, model: str, allowed: bool) -> None:
    assert model_allowed(wanted, model) is allowed


def test_jobs_without_a_wish_may_use_every_pool() -> None:
    assert pools(MIXED, 1, 4) == [(1, (0, 1)), (4, (0, 1))]


def test_a_wish_narrows_the_pools() -> None:
    got = pools(MIXED, 1, 1, 1, 1, gpu_type=types("V100", "k80", "V100|K80", "P100"))
    assert got == [(1, (0,)), (1, (1,)), (1, (0, 1)), (1, ())]


def test_a_job_does_not_go_where_its_speed_is_zero() -> None:
    speeds = Speeds(("K80", "V100"), np.array([[0.0, 1.0], [0.5, 0.0], [0.0, 0.0]]))
    assert pools(MIXED, 1, 1, 1, speeds=speeds) == [(1, (0,)), (1, (1,)), (1, ())]


def test_alike_jobs_share_a_shape() -> None:
    shapes = shapes_of(jobs([(0, 1, 2), (0, 9, 2), (0, 1, 4)]), parse_cluster(MIXED))
    assert shapes.of_job[0] == shapes.of_job[1] != shapes.of_job[2]
    assert len(shapes.shapes) == 2


def test_speeds_are_one_where_nothing_is_known_and_names_match_in_any_case() -> None:
    workload = jobs([(0, 1, 1)], speeds=Speeds(("v100",), np.array([[3.0]])))
    assert speeds_on(workload, ("K80", "V100")).tolist() == [[1.0, 3.0]]


def test_the_best_speed_is_over_the_models_that_the_job_may_use() -> None:
    speeds = Speeds(("V100", "K80"), np.array([[4.0, 1.0], [4.0, 1.0], [0.0, 0.5]]))
    workload = jobs([(0, 1, 1)] * 3, speeds=speeds, gpu_type=types("", "K80", ""))
    assert best_speeds(workload, parse_cluster(MIXED)).tolist() == [4.0, 1.0, 0.5]
    assert best_speeds(jobs([(0, 1, 1)]), parse_cluster(MIXED)).tolist() == [1.0]


def impossible(cluster: str, *gpus: int, **columns: Any) -> list[int]:
    made = parse_cluster(cluster)
    workload = jobs([(0, 1, g) for g in gpus], **columns)
    return impossible_jobs(shapes_of(workload, made), made).tolist()


def test_impossible_jobs_are_those_that_the_empty_cluster_can_not_hold() -> None:
    assert impossible(MIXED, 1, 4, 8, 9, 12) == [3, 4], "a gang stays on one model: 8 K80 are the most"
    assert impossible("3x4,1x8", 20, 21, 16) == [1]
    assert impossible(MIXED, 8, 8, gpu_type=types("V100", "K80")) == [0]
    assert impossible(MIXED) == []


@pytest.mark.parametrize(
    ("cluster", "gpus", "columns", "text"),
    [
        ("1x8", 9, {}, "job 0 asks for 9 GPUs; the cluster 1x8 has 8 (up to 8 a node)"),
        (
            MIXED,
            9,
            {},
            "job 0 asks for 9 GPUs; the cluster 1x4:V100,2x4:K80 has 4 V100, 8 K80 "
            "(up to 4 a node, and a job stays on one GPU model)",
        ),
        (
            "1x8:V100",
            2,
            {"gpu_type": types("P100")},
            "job 0 asks for 2 GPUs of model P100; the cluster 1x8:V100 has 8 V100 (up to 8 a node)",
        ),
    ],
)
def test_the_sentence_says_what_the_job_needs_and_what_there_is(
    cluster: str, gpus: int, columns: dict[str, Any], text: str
) -> None:
    said = why_impossible(jobs([(0, 1, gpus)], **columns), parse_cluster(cluster), 0)
    assert said.replace(" GPUs (up", " (up") == text


def test_the_sentence_says_that_the_job_runs_on_no_model_of_the_cluster() -> None:
    """Enough GPUs are there; saying only how many would leave the user puzzled."""
    workload = jobs([(0, 1, 1)], speeds=Speeds(("V100",), np.array([[0.0]])))
    text = why_impossible(workload, parse_cluster("1x8:V100"), 0)
    assert "speed" in text or "throughput" in text or "can't run on" in text, text


def test_more_models_than_supported_are_refused() -> None:
    with pytest.raises(ClusterError, match="has 40 GPU models; at most 31"):
        shapes_of(jobs([(0, 1, 1)]), parse_cluster(",".join(f"1x1:M{i}" for i in range(40))))
