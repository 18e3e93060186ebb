"""The model of step times, its fit, and the curves made from measured profiles."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuloom.core.errors import InputError
from gpuloom.facts.scaling import elasticflow_curves, micro_step_s, pollux_curve, pollux_fit
from gpuloom.learning.comm_model import CommModel, fit, overlapped
from gpuloom.sim import simulate
from gpuloom.traces import read_trace
from gpuloom.traces.pollux import load_profiles
from tiers import examples

GRID = np.array([(g, w, b) for g in (1, 2, 4, 8, 16) for w in (1, 2, 4) for b in (64, 256) if w <= g], dtype=float).T


def at(value: float) -> np.ndarray:
    return np.array(value, dtype=np.float64)


class TestModel:
    def test_a_step_by_hand(self) -> None:
        """4 GPUs on 2 nodes, 8 samples each: C = 0.1 + 8 · 0.05 = 0.5; S = 2 · 3/4 · 0.4 + 6 · 0.01 = 0.66."""
        model = CommModel(0.1, 0.05, 0.2, 0.4, hop_s=0.01, overlap=2.0)
        assert model.step_s(at(4), at(2), at(32)) == pytest.approx(math.hypot(0.5, 0.66))
        # On one node the faster link counts: S = 1.5 · 0.2 + 0.06 = 0.36.
        assert model.step_s(at(4), at(1), at(32)) == pytest.approx(math.hypot(0.5, 0.36))
        # One GPU has nobody to talk to.
        assert model.step_s(at(1), at(1), at(8)) == pytest.approx(0.5)

    def test_a_batch_too_large_for_a_gpu_is_split_and_synchronises_once(self) -> None:
        model = CommModel(0.1, 0.05, 0.2, 0.4, most_samples=4)
        # 2 micro-batches of 4 a GPU: C = 0.3 each; S = 2 · 1/2 · 0.2.
        assert model.step_s(at(2), at(1), at(16)) == pytest.approx(0.3 + 0.3 + 0.2)

    def test_ratio(self) -> None:
        assert CommModel(0.0, 0.1, 0.1, 1.0).ratio(20) == pytest.approx(2.0)
        assert CommModel(0.1, 0.1, 0, 0).ratio(1) == math.inf

    @pytest.mark.parametrize("bad", [(-1, 1, 1, 1), (0, 0, 1, 1), (0, math.nan, 1, 1), (0, 1, math.inf, 1)])
    def test_times_that_can_not_be(self, bad: tuple[float, ...]) -> None:
        with pytest.raises(InputError, match="communication model"):
            CommModel(*bad)

    @given(c=st.floats(1e-6, 1e6), s=st.floats(1e-9, 1e6), overlap=st.floats(1, 500))
    def test_overlap_lies_between_hiding_all_and_hiding_nothing(self, c: float, s: float, overlap: float) -> None:
        step = float(overlapped(at(c), at(s), overlap))
        assert max(c, s) * (1 - 1e-12) <= step <= (c + s) * (1 + 1e-12)


class TestFit:
    @settings(max_examples=examples(25))
    @given(
        fixed=st.floats(0.01, 0.5),
        per_sample=st.floats(0.001, 0.05),
        intra=st.floats(0.01, 0.5),
        slower=st.floats(1.5, 20),
        overlap=st.floats(1, 4),
    )
    def test_finds_what_made_the_measurements(
        self, fixed: float, per_sample: float, intra: float, slower: float, overlap: float
    ) -> None:
        truth = CommModel(fixed, per_sample, intra, intra * slower, 1e-4, overlap)
        found = fit(*GRID, truth.step_s(*GRID))
        assert found.error < 0.02
        # Also where nothing was measured, between the points.
        assert found.model.step_s(at(6), at(2), at(128)) == pytest.approx(truth.step_s(at(6), at(2), at(128)), rel=0.1)

    def test_noise_shows_as_the_error(self) -> None:
        truth = CommModel(0.1, 0.01, 0.1, 0.5, 1e-3, 2.0)
        noise = np.exp(np.random.default_rng(1).normal(0, 0.2, GRID.shape[1]))
        found = fit(*GRID, truth.step_s(*GRID) * noise)
        assert 0.1 < found.error < 0.25
        assert found.worst >= found.error

    def test_one_node_only_and_one_gpu_only(self) -> None:
        truth = CommModel(0.1, 0.01, 0.1, 0.5)
        one_node = GRID[:, GRID[1] == 1]
        found = fit(*one_node, truth.step_s(*one_node)).model
        assert found.inter_s == found.intra_s > 0
        alone = GRID[:, GRID[0] == 1]
        assert fit(*alone, truth.step_s(*alone)).model.ratio(64) == math.inf

    @pytest.mark.parametrize("steps", [[], [1.0, 0.0], [1.0, math.nan]])
    def test_measurements_that_are_none(self, steps: list[float]) -> None:
        ones = np.ones(len(steps))
        with pytest.raises(InputError, match="needs measurements"):
            fit(ones, ones, ones, np.array(steps))


class TestCurves:
    def test_elasticflow_tables(self, tmp_path: Path) -> None:
        (tmp_path / "net.csv").write_text("global_batch_size,1,2,4,8\n64,,2,8,nan\n128,1,1.5,2,0\n")
        curves = elasticflow_curves(tmp_path)
        assert curves["net", 64][:, 0].tolist() == pytest.approx([0, 0, 2, 2 * 4 ** math.log2(1.5), 8])
        assert curves["net", 128].shape == (5, 1)

    @pytest.mark.parametrize(
        ("text", "what"),
        [("global_batch_size,1,x\n", "header"), ("global_batch_size,1\n64,nan\n", "csv:2"), ("", "header")],
    )
    def test_tables_that_are_none(self, tmp_path: Path, text: str, what: str) -> None:
        (tmp_path / "net.csv").write_text(text)
        with pytest.raises(InputError, match=what):
            elasticflow_curves(tmp_path)
        (tmp_path / "net.csv").unlink()
        with pytest.raises(InputError, match="holds no"):
            elasticflow_curves(tmp_path)

    @pytest.mark.slow
    def test_measured_points_are_kept_and_the_rest_lies_near_the_model(self, data: Path) -> None:
        profiles = load_profiles(data / "pollux" / "profiles_traces.tar.gz")
        for name, batch in (("cifar10", 2048), ("bert", 384), ("ncf", 32768)):
            profile = profiles[name]
            curve = pollux_curve(profile, batch, 64, 16)
            assert curve.throughput.shape == curve.measured.shape == (65, 16)
            assert (curve.throughput[0] == 0).all()
            assert (curve.throughput[1:] > 0).all()
            assert curve.measured.sum() == len(profile.steps)
            for (gpus, nodes), rows in profile.steps.items():
                assert curve.throughput[gpus, nodes - 1] == 1.0 / micro_step_s(rows, batch / gpus)
            model = pollux_fit(profile).model
            gpus, nodes = np.nonzero(~curve.measured[1:])
            real = gpus + 1 >= nodes + 1
            gpus, nodes = gpus[real] + 1.0, nodes[real] + 1.0
            modelled = 1.0 / model.step_s(gpus, nodes, at(batch))
            off = np.abs(np.log(curve.throughput[gpus.astype(int), nodes.astype(int) - 1] / modelled))
            assert off.max() < np.log(2.5)

    @pytest.mark.slow
    def test_no_fit_is_far_off(self, data: Path) -> None:
        """Root mean square of 17 % over all placements; docs/results/learning.md has the figures."""
        for name, profile in load_profiles(data / "pollux" / "profiles_traces.tar.gz").items():
            assert pollux_fit(profile).error < 0.17, name

    @pytest.mark.slow
    def test_pollux_jobs_are_elastic_and_their_durations_hold_at_the_reference(self, data: Path) -> None:
        trace = f"{data / 'pollux/workloads.tar.gz'}::workloads/workload-6.csv"
        workload = read_trace(trace, throughputs=data / "pollux" / "profiles_traces.tar.gz").workload
        scaling, iteration_s = workload.scaling, workload.iteration_s
        assert scaling is not None
        assert iteration_s is not None
        assert (scaling.min_gpus == 1).all()
        assert (scaling.max_gpus == 64).all()
        # All submitted sizes were profiled: the reference is the step time behind the duration.
        assert scaling.reference == pytest.approx(1.0 / iteration_s)
        for job in range(len(workload)):
            gpus = int(workload.gpus[job])
            assert gpus > 16 or scaling.speed(job, gpus, -(-gpus // 4)) == 1.0

    @pytest.mark.slow
    def test_a_rigid_policy_pays_for_spreading(self, data: Path) -> None:
        trace = f"{data / 'pollux/workloads.tar.gz'}::workloads/workload-6.csv"
        workload = read_trace(trace, throughputs=data / "pollux" / "profiles_traces.tar.gz").workload
        packed, spread = (simulate(workload, cluster, "fifo") for cluster in ("16x4", "64x1"))
        assert spread.jct_s.mean() > packed.jct_s.mean()
