"""Pairs of jobs on one GPU under every policy that gives jobs GPUs of their own: what must always hold."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import workloads
from gpuloom.core.decision import Decision
from gpuloom.core.kernel_pairs import Beside as Expected
from gpuloom.core.kernel_pairs import KernelPairs
from gpuloom.core.pairs import NO_KIND
from gpuloom.core.snapshot import Snapshot
from gpuloom.core.workload import Labels, Workload
from gpuloom.facts.inputs import load_policy
from gpuloom.policies.beside import Beside
from gpuloom.sim import Failure, simulate
from gpuloom.sim.rebuilt import OUTAGES, Rebuilt
from gpuloom.traces.generate import GeneratorConfig, generate
from tiers import examples

pytestmark = pytest.mark.slow

BASES = (
    "fifo",
    "fifo:backfill=easy",
    "sjf",
    "srtf",
    "srtf:placement=repack",
    "srsf",
    "tiresias",
    "gittins",
    "themis",
    "gavel",
    "hlas",
)


def beside(base: str) -> str:
    return f"{base}{';' if ':' in base else ':'}beside=yes"


class Checked(Beside):
    """Looks at what runs whenever it is asked."""

    def __init__(self, text: str) -> None:
        made = load_policy(beside(text))
        assert isinstance(made, Beside)
        super().__init__(made.inner, made.values["beside_speed"])
        self.shared = 0

    def decide(self, snapshot: Snapshot, memory: Any) -> tuple[Decision, Any]:
        on: dict[tuple[int, int], list[int]] = {}
        for job, placement in snapshot.placements.items():
            for node, mask in zip(placement.nodes, placement.masks, strict=True):
                for gpu in range(mask.bit_length()):
                    if mask >> gpu & 1:
                        on.setdefault((node, gpu), []).append(job)
        workload = snapshot.workload
        for (node, _), jobs in on.items():
            if len(jobs) > 1:
                self.shared += 1
                assert workload.share_class is not None
                assert sorted(workload.share_class[job] for job in jobs) == ["best-effort", "high"]
                assert all(workload.gpus[job] == 1 for job in jobs)
                room = snapshot.cluster.nodes[node].gpu_memory_mib
                if room is not None:
                    assert workload.gpu_memory_mib is not None
                    assert workload.gpu_memory_mib[jobs].sum() <= room
        decision, memory = super().decide(snapshot, memory)
        view = getattr(self.cache, "view", None)
        if view is not None:
            # A job is seen by the policy, or is a guest, or waits: never two of these.
            assert view.hidden.isdisjoint(view.placements)
        return decision, memory


def crowded(seed: int, jobs: int = 70) -> Workload:
    """More than 24 GPUs can take, most jobs of one GPU, of all three classes, some with memory."""
    config = GeneratorConfig(
        jobs=jobs, gpus=24, load=1.3, seed=seed, gpu_mix={1: 0.8, 2: 0.1, 8: 0.1}, high=0.3, best_effort=0.5
    )
    memory = np.array([4000.0, 12_000.0, 9000.0, np.nan])[np.arange(jobs) * 5 % 9 % 4]
    return replace(generate(config), gpu_memory_mib=memory)


@pytest.mark.parametrize("base", BASES)
def test_only_proper_pairs_share_and_all_jobs_end(base: str) -> None:
    for cluster in ("3x8", "3x8:V100"):  # of V100s the memory is known
        policy = Checked(base)
        result = simulate(crowded(3), cluster, policy, failures=OUTAGES, restart_overhead_s=20.0)
        assert np.isfinite(result.end_s).all()
        assert policy.shared > 5


def profiled(workload: Workload, seed: int) -> Workload:
    """Most jobs have one of four kernel profiles, of pairs of which half are known, some too slow for the service."""
    rng = np.random.default_rng(seed)
    known = {
        (one, two): Expected(round(float(rng.uniform(0.05, 1.0)), 3), round(float(rng.uniform(1.0, 1.08)), 3))
        for one in range(4)
        for two in range(4)
        if rng.random() < 0.8
    }
    of_job = rng.integers(NO_KIND, 4, len(workload)).astype(np.int32)
    return replace(workload, kernel_pairs=KernelPairs(of_job, tuple("abcd"), known))


@pytest.mark.parametrize("base", BASES)
def test_pairs_by_kernel_profiles(base: str) -> None:
    """No service is with a job that it should not be with, and each job runs at the speed of its pair."""
    workload = profiled(crowded(11), 1)

    class Profiled(Checked):
        def decide(self, snapshot: Snapshot, memory: Any) -> tuple[Decision, Any]:
            on: dict[tuple[Any, ...], list[int]] = {}
            for job, placement in snapshot.placements.items():
                on.setdefault((placement.nodes, placement.masks), []).append(job)
            for jobs in on.values():
                labels, pairs = snapshot.workload.share_class, snapshot.workload.kernel_pairs
                assert labels is not None
                assert pairs is not None
                if len(jobs) == 2:
                    service, training = sorted(jobs, key=lambda job: labels[job] != "high")
                    found = pairs.beside(service, training)
                    assert snapshot.rate(service) == 1.0
                    assert snapshot.rate(training) == (0.5 if found is None else found.speed)
                    assert found is None or found.p99 <= 1.05
                    self.by_profile += found is not None
            return super().decide(snapshot, memory)

        by_profile = 0

    policy = Profiled(base)
    result = simulate(workload, "3x8", policy, failures=OUTAGES, restart_overhead_s=20.0)
    assert np.isfinite(result.end_s).all()
    assert policy.by_profile > 0
    again = simulate(workload, "3x8", Rebuilt(beside(base), compact=True), failures=OUTAGES, restart_overhead_s=20.0)
    assert "repack" in base or again.end_s.tolist() == result.end_s.tolist()


@pytest.mark.parametrize("base", [base for base in BASES if "repack" not in base])
def test_a_world_built_anew_decides_the_same(base: str) -> None:
    text = beside(base)
    plain = simulate(crowded(5), "3x8", text, failures=OUTAGES)
    for compact in (False, True):
        rebuilt = simulate(crowded(5), "3x8", Rebuilt(text, compact=compact), failures=OUTAGES)
        assert rebuilt.end_s.tolist() == plain.end_s.tolist()


@pytest.mark.parametrize("base", BASES)
def test_without_classes_it_is_the_policy_itself(base: str) -> None:
    workload = replace(crowded(8), share_class=None)
    assert (
        simulate(workload, "3x8", beside(base), failures=OUTAGES).end_s.tolist()
        == simulate(workload, "3x8", base, failures=OUTAGES).end_s.tolist()
    )


@pytest.mark.parametrize("base", ["fifo", "fifo:backfill=easy", "srtf", "tiresias", "hlas"])
@settings(max_examples=examples(40))
@given(
    workload=workloads(largest=3),
    codes=st.lists(st.integers(0, 2), min_size=14, max_size=14),
    interval=st.sampled_from([0.0, 60.0]),
    failures=st.booleans(),
)
def test_small_worlds(base: str, workload: Workload, codes: list[int], interval: float, failures: bool) -> None:
    labels = Labels(np.array(codes[: len(workload)], dtype=np.int32), ("", "high", "best-effort"))
    workload = replace(workload, share_class=labels)
    outages = (Failure(0, 100.0, 700.0), Failure(1, 900.0, 1000.0)) if failures else ()
    result = simulate(workload, "2x2", Checked(base), failures=outages, interval_s=interval, restart_overhead_s=7.0)
    assert np.isfinite(result.end_s).all()
