"""Advice follows from the numbers of a profile; its row of the library has what was measured."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuloom.core.measured import Doubt, Measured
from gpuloom.facts.measured_profiles import Remedy, advice_of, profile_of

BUSY = Measured(
    framework="pytorch",
    iterations=60,
    first_step=0,
    steps=None,
    began_s=0.0,
    at_s=1.0,
    timed=40,
    iteration_s=0.100,
    storage_s=0.0,
    cpu_s=0.001,
    gpu_s=0.097,
    network_s=0.0,
    turn_s=0.0,
    rest_s=0.002,
    stages_s=(0.0, 0.001, 0.097, 0.0),
    noise=0.02,
    drift=None,
    prefetches=False,
    workers=0,
    batches=1.0,
    batch_size=32,
    memory_mib=900,
    world_size=1,
    cores=8,
)


def test_who_computes_all_the_time_is_told_so() -> None:
    found = advice_of(BUSY)
    assert (found.remedy, found.saves) == (Remedy.NONE, 0.0)
    assert found.text == "computes 97% of the time: neither its data nor its sync holds it up"
    inside = advice_of(replace(BUSY, doubts=(Doubt.INSIDE,)))
    assert inside.text == "computes or waits for data 97% of the time: its framework does not tell the two apart"
    assert inside.remedy is Remedy.NONE


def test_workers_so_that_batches_are_made_in_the_time_of_the_rest() -> None:
    waits = replace(BUSY, storage_s=0.060, cpu_s=0.0, gpu_s=0.040, rest_s=0.0, stages_s=(0.060, 0.0, 0.040, 0.0))
    found = advice_of(waits)
    assert (found.remedy, found.workers) == (Remedy.WORKERS, 2)  # 60 ms of work in 40 ms
    assert found.text == "waits 60% of the time for data: num_workers 0 → 2 (about 10 → 25 it/s)"
    assert found.saves == pytest.approx(0.60)
    # Two workers that make a batch in 240 ms each.
    two = replace(waits, workers=2, prefetches=True, stages_s=(0.120, 0.0, 0.040, 0.0))
    assert advice_of(two).workers == 6


def test_no_more_workers_than_there_are_cores_for() -> None:
    waits = replace(BUSY, cpu_s=0.060, gpu_s=0.040, rest_s=0.0, stages_s=(0.0, 0.300, 0.040, 0.0), workers=2, cores=4)
    assert advice_of(waits).remedy is Remedy.CORES  # 600 ms by four cores are no less than it takes now
    assert "making batches keeps all 4 cores busy" in advice_of(waits).text
    some = replace(waits, stages_s=(0.0, 0.150, 0.040, 0.0))
    assert (advice_of(some).workers, advice_of(some).saves) == (4, pytest.approx(0.25))  # 300 ms by 4 rather than 2


def test_sync_and_rest() -> None:
    synced = replace(BUSY, gpu_s=0.05, network_s=0.047, stages_s=(0.0, 0.001, 0.05, 0.06))
    assert (advice_of(synced).remedy, advice_of(synced).saves) == (Remedy.SYNC, pytest.approx(0.235))
    slower = replace(synced, iteration_s=0.2, network_s=0.1, gpu_s=0.1)
    assert (advice_of(slower).saves, advice_of(slower).text[:27]) == (
        pytest.approx(0.25),
        "syncs gradients 50% of the ",
    )
    idle = replace(BUSY, gpu_s=0.04, rest_s=0.059)
    assert advice_of(idle).remedy is Remedy.REST
    assert "59% of the time outside" in advice_of(idle).text


def test_waits_that_nobody_can_explain_give_no_number_of_workers() -> None:
    waits = replace(BUSY, cpu_s=0.060, gpu_s=0.038, doubts=(Doubt.SPLIT,), stages_s=(0.0, 0.060, 0.038, 0.0))
    assert advice_of(waits).workers is None


def test_the_row_of_the_library() -> None:
    row = profile_of(BUSY, "train", gpus=2, gpu_model="V100", date="2026-11-25", source="a run")
    assert row is not None
    assert (row.key, row.gpu_model, row.date, row.noise) == (("train", 2, 32), "V100", "2026-11-25", 0.02)
    assert (row.stage_s, row.gpu_memory_mib) == ((0.0, 0.001, 0.097, 0.0), 900)
    unsplit = profile_of(replace(BUSY, doubts=(Doubt.SPLIT,)), "train", gpus=1, gpu_model=None, date="", source="")
    assert unsplit is not None
    assert unsplit.stage_s == (0.001, 0.097, 0.0)
    nothing = replace(BUSY, stages_s=(0.0, 0.0, 0.0, 0.0))
    assert profile_of(nothing, "train", gpus=1, gpu_model=None, date="", source="") is None
