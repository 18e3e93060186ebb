"""Elastic jobs live: what is refused, how fast they are at which size, what their processes are told."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fake_views import attempt, record
from gpuloom.core.errors import InputError, PolicyError
from gpuloom.core.job import MAKES_WAY, Attempt, EndReason, NodeRecord, Phase
from gpuloom.core.job import Gpu as GpuRecord
from gpuloom.core.pace import ModelSpeed, Pace, RanOn, SpeedSource, ran_on
from gpuloom.core.replicas import Replicas, replicas_of
from gpuloom.core.scaling import NO_CURVE
from gpuloom.core.spec import Spec, spec_of
from gpuloom.facts.inputs import load_policy, with_whole_paths
from gpuloom.live.dispatch.launch import run_specs
from gpuloom.live.dispatch.resizes import limit_left_s
from gpuloom.live.planning.estimates import Estimates, like_of
from gpuloom.live.planning.model_speeds import ModelSpeeds
from gpuloom.live.planning.size_speeds import size_speeds
from gpuloom.live.records.scaling import scaling_of
from gpuloom.live.submission.spec import job_spec
from gpuloom.live.views.jobs import preemptions_of
from gpuloom.store.port import MeasuredRun
from gpuloom.traces.elastic import PARALLEL, amdahl_curve


def spec(**fields: Any) -> Spec:
    return job_spec({"command": ["./a"], **fields}).kept()


# -- what is asked for -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "gpus", "sizes"),
    [
        ({"elastic": "1-3"}, 1, (1, 2, 3)),
        ({"elastic": " 2 - 4 "}, 2, (2, 3, 4)),
        ({"elastic": "2-3", "replica_gpus": 4}, 8, (8, 12)),
        ({"elastic": "1-8", "gpus": 5}, 5, tuple(range(1, 9))),
        ({"elastic": "4-4"}, 4, (4,)),
        ({"gpus": 3}, 3, ()),
    ],
)
def test_sizes_and_the_gpus_that_it_asks_for(fields: Mapping[str, Any], gpus: int, sizes: tuple[int, ...]) -> None:
    found = spec(**fields)
    assert (found.gpus, found.sizes) == (gpus, sizes)
    assert spec_of(found.to_json()) == found


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"elastic": "4-1"}, "the most (1) are fewer than the fewest (4): write 1-4"),
        ({"elastic": "0-4"}, "must be 1 to 1024 replicas"),
        ({"elastic": "1-1025"}, "must be 1 to 1024 replicas"),
        ({"elastic": "4"}, "such as 1-8"),
        ({"elastic": 4}, "valid string"),
        ({"replica_gpus": 2}, "replica_gpus is of elastic jobs: give elastic as well"),
        ({"replica_cpus": 2}, "replica_cpus is of elastic jobs"),
        ({"replica_memory": "1GiB"}, "replica_memory is of elastic jobs"),
        ({"elastic": "1-4", "gpus": 5}, "gpus is 5, but 1-4 replicas of 1 GPU each were asked for: it must be 1 to 4"),
        ({"elastic": "1-4", "gpus": 3, "replica_gpus": 2}, "must be a multiple of 2 from 2 to 8"),
        ({"elastic": "1-4", "replica_gpus": 0}, "greater than or equal to 1"),
        ({"elastic": "1-4", "cpus": 2, "replica_cpus": 2}, "give only one of cpus"),
        ({"elastic": "1-4", "memory": 64, "replica_memory": 64}, "give only one of memory"),
        ({"elastic": "1-4", "on_preempt": "freeze"}, "saving, ending and starting again"),
        ({"elastic": "1-4", "share_class": "high"}, "has its GPUs for itself"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_reason(fields: Mapping[str, Any], said: str) -> None:
    with pytest.raises(InputError) as error:
        job_spec({"command": ["./a"], **fields})
    assert said in str(error.value)


def test_cpus_and_memory_go_by_replicas() -> None:
    found = spec(elastic="1-4", replica_gpus=2, replica_cpus=8, replica_memory=1000)
    assert (found.cpus_beside(4), found.memory_beside(4)) == (16.0, 2000)
    assert (found.cpus_beside(1), found.memory_beside(1)) == (4.0, 500)
    plain = spec(cpus=3, memory=7)
    assert (plain.cpus_beside(4), plain.memory_beside(4)) == (3, 7)


# -- speeds by size ----------------------------------------------------------------------------------------------------


def test_without_measurements_a_size_is_as_fast_as_in_the_simulator() -> None:
    usual = amdahl_curve(8)[:, 0]
    found = size_speeds(2, range(1, 9), {})
    assert [found[gpus].factor for gpus in range(1, 9)] == pytest.approx(usual[1:] / usual[2])
    assert {speed.source for speed in found.values()} == {SpeedSource.USUAL}


def test_measured_sizes_are_kept_and_others_bent_through_them() -> None:
    found = size_speeds(1, range(1, 9), {"V100": {1: [10.0, 10.0], 4: [40.0]}, "K80": {1: [1.0]}})
    assert found[1] == ModelSpeed(1.0, SpeedSource.MEASURED, 10.0, 2)
    assert found[4] == ModelSpeed(pytest.approx(4.0), SpeedSource.MEASURED, 40.0, 1)
    usual = amdahl_curve(8)[:, 0]
    assert found[8].factor == pytest.approx(4.0 * usual[8] / usual[4])
    assert found[2].factor == pytest.approx(usual[2] * (4.0 / usual[4]) ** 0.5)
    assert found[8].source is SpeedSource.USUAL


def test_what_runs_of_other_sizes_report_does_not_make_a_gpu_model_faster() -> None:
    asked = spec(name="a", elastic="1-4", workdir="/w")
    like = like_of(asked, "ann", 1, None)

    def run(model: str, rate: float, on: int) -> MeasuredRun:
        return MeasuredRun(1, None, asked, model, rate, on)

    runs = [run("K80", 1.0, 1), run("K80", 3.0, 4), run("V100", 12.0, 4)]
    speeds = ModelSpeeds(lambda user, name, limit: runs, Estimates(lambda user, name, limit: ()))
    speeds.see(["K80", "V100"])
    pace = speeds.of(like, {}, asked.sizes)
    assert pace.at_size(4) == pytest.approx(3.0)
    assert pace.of("V100") == pytest.approx(4.0)
    assert pace.of("V100", 4) == pytest.approx(12.0)
    assert pace.sizes[4].source is SpeedSource.MEASURED


def test_work_is_counted_at_the_size_that_the_job_asks_for() -> None:
    pace = Pace({}, size_speeds(1, (1, 2), {"": {1: [1.0], 2: [1.5]}}))
    assert [ran_on(str(where)) for where in (RanOn("V100", 4), RanOn("V100"), RanOn("", 2))] == [
        ("V100", 4),
        ("V100", None),
        ("", 2),
    ]
    assert pace.work_s(30.0, {"*2": 20.0, "*1": 4.0}) == pytest.approx(6.0 + 4.0 + 20.0 * 1.5)


def test_the_scaling_of_a_world_has_no_size_that_makes_a_job_slower() -> None:
    sizes = {gpus: ModelSpeed(speed, SpeedSource.MEASURED) for gpus, speed in ((2, 1.0), (4, 1.5), (6, 1.2))}
    found = scaling_of([(3, None), (2, Replicas(1, 3, 2))], [Pace({}), Pace({}, sizes)])
    assert found is not None
    assert (found.min_gpus.tolist(), found.max_gpus.tolist()) == ([3, 2], [3, 4])
    assert found.curve.tolist() == [NO_CURVE, 0]
    assert found.curves[0][:, 0].tolist() == [0.0, 0.0, 1.0, 0.0, 1.5]
    assert scaling_of([(3, None)], [Pace({})]) is None
    capped = scaling_of([(1, replicas_of("1-1024"))], [Pace({}, size_speeds(1, range(1, 1025), {}))], 8)
    assert capped is not None
    assert capped.max_gpus.tolist() == [8]
    assert capped.curves[0][8, 0] == pytest.approx(1 / (1 - PARALLEL + PARALLEL / 8))


# -- what its processes are told ---------------------------------------------------------------------------------------


def test_members_are_told_of_the_replicas_and_get_their_share() -> None:
    nodes = {
        name: NodeRecord(name, tuple(GpuRecord(index, f"{name}{index}", "V100") for index in range(4)))
        for name in ("a", "b")
    }
    job = record(spec=spec(elastic="1-4", replica_gpus=2, replica_cpus=3), gpus=2, phase=Phase.STARTING)
    run = attempt(allocation=(("a", (0, 1, 2, 3)), ("b", (0, 1))))
    first, second = run_specs(job, run, nodes, resumes=False)
    names = ("GPULOOM_REPLICAS", "GPULOOM_MIN_REPLICAS", "GPULOOM_MAX_REPLICAS")
    assert [first.env[name] for name in names] == ["3", "1", "4"]
    assert (first.cpus, second.cpus) == (6.0, 3.0)
    plain = run_specs(record(), attempt(allocation=(("a", (0,)),)), nodes, resumes=False)
    assert not set(names) & plain[0].env.keys()


def test_a_resize_makes_way_and_is_no_preemption_in_the_counts() -> None:
    assert EndReason.RESIZED in MAKES_WAY
    ended = attempt(phase=None, reason=EndReason.RESIZED, ended_s=1.0)
    assert preemptions_of({1: [ended]}, 1) == 0


def test_a_resize_does_not_begin_the_time_limit_anew() -> None:
    job = record(spec=spec(elastic="1-4", time_limit=100.0))

    def ended(number: int, reason: EndReason, held_s: float) -> Attempt:
        return attempt(number=number, phase=None, reason=reason, ended_s=1.0, held_s=held_s)

    before = [
        ended(1, EndReason.PREEMPTED, 50.0),
        ended(2, EndReason.RESIZED, 30.0),
        ended(3, EndReason.RESIZED, 10.0),
    ]
    assert limit_left_s(job, 4, before) == 60.0
    assert limit_left_s(job, 2, before) == 100.0
    assert limit_left_s(job, 4, [*before[:2], ended(3, EndReason.RESIZED, 99.0)]) == 0.001
    assert limit_left_s(record(), 4, before) is None


def test_the_patents_keys_are_read_in_any_case(tmp_path: Path) -> None:
    file = tmp_path / "elastic.yaml"
    file.write_text("elasticconfig:\n  elasticproportion: 0.5\n  HPACHECKMINUTES: 2\n  Scalingthreshold: 1.8\n")
    policy = load_policy(f"elastic:config={file}")
    assert policy.values["config"] == {"proportion": 0.5, "check_minutes": 2.0, "shrink_threshold": 1.8}
    file.write_text("elastic:\n  elasticproportion: 0.5\n  proportion: 0.5\n")
    with pytest.raises(PolicyError, match="given twice"):
        load_policy(f"elastic:config={file}")


def test_files_that_a_policy_names_are_found_from_another_folder(tmp_path: Path) -> None:
    assert with_whole_paths("elastic:config=a/b.yaml;proportion=0.5", tmp_path) == (
        f"elastic:config={tmp_path}/a/b.yaml;proportion=0.5"
    )
    for text in ("elastic:config=/a/b.yaml", "fifo:backfill=easy", "elastic:proportion=0.5"):
        assert with_whole_paths(text, tmp_path) == text
