"""A run's profile from its rows: what counts, what is left out, and that the parts add up."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuloom.core.measured import Doubt, Load, Measured, Row, Training, measured_of, stage_bar, with_hooks

PLAIN = Row(0, 1, 0.1, 0.0, 0.0, 0.06, 0.0, 0.03, 0.0, None, None, None, 1)
RUN = Training("pytorch", 100, 0, None, 0.0, 9.0, None, 100, 8, 0, (), False, 1, 0, ())


def run(rows: list[Row], **given: object) -> Measured:
    numbered = tuple(replace(row, number=at + 1) for at, row in enumerate(rows))
    found = measured_of(replace(RUN, rows=numbered, **given), 4)  # type: ignore[arg-type]
    assert found is not None
    parts = found.storage_s + found.cpu_s + found.gpu_s + found.network_s + found.turn_s + found.rest_s
    assert parts == pytest.approx(found.iteration_s)
    return found


def test_a_slow_start_an_evaluation_and_a_checkpoint_change_nothing() -> None:
    slow = replace(PLAIN, took=5.0, gpu=4.9)
    rows = [slow] * 3 + [PLAIN] * 20 + [slow] + [PLAIN] * 20 + [slow] * 2 + [PLAIN] * 10
    found = run(rows)
    assert found.iteration_s == pytest.approx(0.1)
    assert found.stages_s == pytest.approx((0.0, 0.03, 0.06, 0.0))
    assert found.rest_s == pytest.approx(0.01)
    assert found.noise == pytest.approx(0.0)
    assert found.doubts == ()


def test_of_a_loader_with_workers_one_iteration_in_a_round_waits_for_all() -> None:
    waits = replace(PLAIN, took=0.31, wait=0.25)
    quick = replace(PLAIN, took=0.06, wait=0.0)
    load = Load(batches=400, storage_s=40.0, cpu_s=10.0)
    found = run([waits, quick, quick, quick] * 16, workers=4, load=load)
    assert found.iteration_s == pytest.approx((0.31 + 3 * 0.06) / 4)
    assert found.wait_s == pytest.approx(0.25 / 4)
    assert found.storage_s == pytest.approx(0.8 * 0.25 / 4)
    assert found.stages_s == pytest.approx((0.025, 0.00625, 0.06, 0.0))
    assert found.prefetches


def test_gradient_sync_is_network_and_what_nothing_hides_is_no_computing() -> None:
    synced = replace(PLAIN, comm=0.04, overlap=0.03)
    found = run(([PLAIN] * 7 + [synced]) * 4)
    assert found.stages_s == pytest.approx((0.0, 0.03, 0.05, 0.04))
    assert found.network_s == pytest.approx(0.01)
    assert found.compute_ratio == pytest.approx(1.25)
    assert run([PLAIN] * 9).compute_ratio is None


def test_the_device_s_clock_is_believed_rather_than_the_python_that_drives_it() -> None:
    found = run([replace(PLAIN, gpu=0.005, device=0.065)] * 12)
    assert found.gpu_s == pytest.approx(0.065)
    assert found.rest_s == pytest.approx(0.005)


def test_several_iterations_in_one_row_count_as_such() -> None:
    found = run([replace(PLAIN, count=5)] * 12)
    assert found.iteration_s == pytest.approx(0.02)
    assert found.batches == pytest.approx(0.2)


def test_what_could_not_be_told_is_said() -> None:
    assert run([PLAIN] * 12, workers=2).doubts == (Doubt.SPLIT,)
    assert run([PLAIN] * 12, doubts=(Doubt.QUEUE,)).doubts == (Doubt.QUEUE,)
    assert Doubt.FEW in run([PLAIN] * 3).doubts
    assert measured_of(replace(RUN, rows=(PLAIN,)), 4) is None


def test_noise_and_drift() -> None:
    rows = [replace(PLAIN, took=0.1 * (1 + 0.01 * at)) for at in range(43)]
    found = run(rows)
    assert found.drift is not None
    assert 0.2 < found.drift < 0.4
    assert found.noise is not None
    assert found.noise > 0.05
    assert run(rows[:9]).drift is None


def test_a_bar_has_ten_letters_whatever_the_parts() -> None:
    found = run([PLAIN] * 12)  # 30 ms of waiting, 60 of computing, 10 of the rest
    assert stage_bar(found) == "cccgggggg."
    thirds = replace(found, storage_s=1.0, cpu_s=1.0, gpu_s=1.0, network_s=0.0, rest_s=0.0)
    assert stage_bar(thirds) == "sssscccggg"


def test_a_job_s_own_report_goes_before_what_hooks_counted() -> None:
    measured = run([PLAIN] * 12)
    seen = with_hooks({}, RUN, measured)
    assert (seen["step"], seen["it_per_s"], seen["by"]) == (100, 10.0, "hooks")
    own = with_hooks({"step": 7, "loss": 0.5}, RUN, measured)
    assert own == {"step": 7, "loss": 0.5, "it_per_s": 10.0, "stages": stage_bar(measured)}
    assert with_hooks({"step": 7}, None, None) == {"step": 7}
