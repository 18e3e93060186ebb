"""The real shim on recorded kernels (Orion's, V100): two processes, the fake driver's virtual clock.

A run is as another, but for the figures that a change of rule or gate brings; `python bench/shim_pairs.py` prints them
all. Behind each bound stands what was measured.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from shim_kit import ROOT, built
from shim_pairs_kit import ShimPair

DATA = Path(os.environ.get("GPULOOM_DATA", ROOT.parent / "shared" / "data")) / "orion"
PAIRS = [
    ("resnet50_4_fwd", "resnet50_32_fb1"),
    ("resnet50_4_fwd", "mobilenetv2_32_fb1"),
    ("mobilenetv2_4_fwd", "mobilenetv2_96_fb1"),
    ("mobilenetv2_4_fwd", "bert_8_fb1"),
    ("transformer_xl_4_fwd", "mobilenetv2_64_fb1"),
]

pytestmark = [pytest.mark.data, pytest.mark.skipif(not DATA.is_dir(), reason=f"no {DATA}: see docs/reference/data.md")]


@pytest.mark.slow
@pytest.mark.parametrize(("service", "training"), PAIRS)
def test_the_service_keeps_its_tail_and_the_training_gets_what_is_left(
    tmp_path: Path, service: str, training: str
) -> None:
    """Measured: p99 up to 1.06 of alone, training from 0.49 on and from 0.78 on of the simulator's."""
    pair = ShimPair(built("plain"), tmp_path, DATA, service, training, requests=600)
    ours, simulated = pair.under("gpuloom"), pair.simulated("gpuloom")
    assert ours.p99_over_alone < 1.08
    assert ours.best_effort_over_alone > 0.48
    assert ours.best_effort_over_alone > 0.76 * simulated.best_effort_over_alone
    assert ours.longest_hold_ms < 101.0  # 100.07: the maximum hold, and a timer


@pytest.mark.slow
def test_the_rules_do_what_they_do_in_the_simulator(tmp_path: Path) -> None:
    """Measured over the simulator's: p99 0.74, 1.01 and 1.00, training 1.000, 1.004 and 1.028."""
    pair = ShimPair(built("plain"), tmp_path, DATA, "resnet50_4_fwd", "resnet50_32_fb1", requests=300)
    for rule, near in (("none", 0.3), ("priority", 0.05), ("orion", 0.05)):
        ours, simulated = pair.under(rule), pair.simulated(rule)
        assert ours.p99_over_alone == pytest.approx(simulated.p99_over_alone, rel=near), rule
        assert ours.best_effort_over_alone == pytest.approx(simulated.best_effort_over_alone, rel=0.05), rule
        if rule != "orion":
            assert ours.p99_over_alone > 2, "there is something to protect from"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("service", "training", "pause_us", "at_least"),
    [("mobilenetv2_4_fwd", "bert_8_fb1", 60, 0.8), ("resnet50_4_fwd", "resnet50_32_fb1", 60, 0.66)],
)
def test_beside_a_service_that_is_slower_than_the_gpu_training_gets_what_it_leaves(
    tmp_path: Path, service: str, training: str, pause_us: int, at_least: float
) -> None:
    """Measured: p99 1.00 and 1.01, training 0.90 and 0.74; 0.53 and 0.54 where the rule does not count on it."""
    pair = ShimPair(built("plain"), tmp_path, DATA, service, training, requests=300, pause_ns=pause_us * 1000)
    ours = pair.under("gpuloom", skip=30)
    assert ours.p99_over_alone < 1.05
    assert ours.best_effort_over_alone > at_least


@pytest.mark.slow
def test_a_run_is_as_another(tmp_path: Path) -> None:
    made = [ShimPair(built("plain"), tmp_path / str(i), DATA, *PAIRS[3], requests=60) for i in range(2)]
    assert made[0].under("gpuloom") == made[1].under("gpuloom")


def test_without_a_profile_the_shim_learns_and_protects_from_the_first_request_on(tmp_path: Path) -> None:
    """What is not known yet runs between requests. Measured: 1.002 and 0.476; 1.326 with the first requests before."""
    pair = ShimPair(built("plain"), tmp_path, DATA, *PAIRS[0], requests=300, profiled=False)
    ours = pair.under("gpuloom")
    assert ours.p99_over_alone < 1.05
    assert ours.best_effort_over_alone > 0.45


@pytest.mark.slow
def test_a_training_of_which_each_kernel_is_launched_twice_is_never_known_and_keeps_out(tmp_path: Path) -> None:
    """Measured: 1.037 and 0.247; 7.8 before, when first launches passed."""
    pair = ShimPair(built("plain"), tmp_path, DATA, *PAIRS[3], requests=300, profiled=False)
    ours = pair.under("gpuloom")
    assert ours.p99_over_alone < 1.06
    assert ours.best_effort_over_alone > 0.2
