"""What every policy of the registry must keep to, whatever it decides."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import POLICIES, jobs, with_stages, workloads
from forgetful import Forgetful
from gpuloom.core.cluster import parse_cluster
from gpuloom.core.decision import Decision
from gpuloom.core.snapshot import Snapshot
from gpuloom.core.state import State
from gpuloom.core.workload import Labels, Speeds, Workload
from gpuloom.facts.inputs import load_policy
from gpuloom.policies.base import Parameter
from gpuloom.policies.registry import BUILT_IN, policy_ids
from gpuloom.sim import Failure, simulate
from tiers import examples, slow

WOVEN = ("muri-s", "muri-s:grouping=exact", "muri-l", "muri-xs", "muri-xl")
EVERY = (
    *POLICIES,
    *WOVEN,
    "themis:mode=muri",
    "srtf:placement=repack",
    "srsf:placement=repack",
    "elastic",
    "elastic:base=srtf",
    "elastic-goodput",
)


def plain(value: Any) -> bool:
    """Whether a store could write it down: numbers, words, arrays of them, and lists, mappings, dataclasses thereof."""
    if value is None or isinstance(value, bool | int | float | str):
        return True
    if isinstance(value, np.ndarray):
        return value.dtype.kind in "biufU"
    if isinstance(value, np.generic):
        return True
    if isinstance(value, list | tuple):
        return all(map(plain, value))
    if isinstance(value, dict):
        return all(plain(k) and plain(v) for k, v in value.items())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return all(plain(getattr(value, field.name)) for field in dataclasses.fields(value))
    return False


@pytest.mark.parametrize("text", EVERY)
class TestPolicy:
    """One contract, every policy."""

    def test_says_what_it_is(self, text: str) -> None:
        policy = load_policy(text)
        assert policy.id in policy_ids()
        traits = policy.traits
        assert all([traits.summary, traits.knows, traits.preemptive, traits.paper])
        assert traits.sharing == (policy.max_jobs_per_gpu > 1)
        assert f"{type(policy).__module__}:{type(policy).__name__}" == BUILT_IN[policy.id]
        assert policy.id.replace("-", "_").startswith(
            type(policy).__module__.removeprefix("gpuloom.policies.").removesuffix("_x")
        )

    def test_parameters_have_help_and_defaults_that_can_be_written(self, text: str) -> None:
        for parameter in load_policy(text).parameters:
            assert isinstance(parameter, Parameter)
            assert parameter.help
            default = parameter.default
            if default is None:
                continue
            word = "/".join(f"{x:g}" for x in default) if isinstance(default, tuple) else str(default)
            assert parameter.parse(parameter.shown or word) == default, parameter.name

    def test_decides_nothing_where_there_is_nothing(self, text: str) -> None:
        for workload in (jobs([]), jobs([(5, 10, 1)])):
            cluster = parse_cluster("2x4")
            policy = load_policy(text)
            state = State(workload, cluster, layers=policy.max_jobs_per_gpu)
            snapshot = Snapshot(state, np.zeros(len(workload)))
            decision, _ = policy.decide(snapshot, policy.new_memory(workload, cluster))
            assert not decision.run
            assert not list(decision.wait)

    def test_no_jobs_at_all(self, text: str) -> None:
        assert simulate(jobs([]), "2x4", text).finished == 0

    def test_memory_is_plain_data_all_the_way(self, text: str) -> None:
        seen: list[bool] = []

        class Look(Forgetful):
            def decide(self, snapshot: Snapshot, memory: Any) -> tuple[Decision, Any]:
                assert plain(memory), memory
                decision, after = super().decide(snapshot, memory)
                assert plain(after), after
                seen.append(True)
                return decision, after

        workload = with_stages(jobs([(float(i), 500.0 * i, 1 + i % 4) for i in range(8)]))
        simulate(workload, "2x4", Look(text, frozenset()))
        assert seen

    def test_the_snapshot_is_read_only(self, text: str) -> None:
        state = State(jobs([(0, 1, 1)]), parse_cluster("1x1"))
        snapshot = Snapshot(state, np.zeros(1))
        with pytest.raises(ValueError, match="read-only"):
            snapshot.remaining_column()[0] = 0.0
        with pytest.raises(ValueError, match="read-only"):
            snapshot.remaining_column()[0] = 1.0
        with pytest.raises(TypeError):
            snapshot.restart_overhead_s[0] = 1.0
        with pytest.raises(TypeError):
            snapshot.placements[0] = None  # type: ignore[index]

    def test_every_waiting_job_has_a_reason(self, text: str) -> None:
        reasons = []

        class Ask(Forgetful):
            def decide(self, snapshot: Snapshot, memory: Any) -> tuple[Decision, Any]:
                for job in snapshot.waiting():
                    reason = self._inner.reason(snapshot, job)
                    assert reason.code
                    assert reason.text.endswith(".")
                    assert reason.numbers["gpus"] == snapshot.workload.gpus[job]
                    reasons.append(reason.code)
                return super().decide(snapshot, memory)

        simulate(jobs([(float(i), 50.0, 1 + i % 4) for i in range(8)]), "1x4", Ask(text, frozenset()))
        assert "not_enough_free_gpus" in reasons

    @pytest.mark.parametrize("calm", [*slow(True), False], ids=["call without an end or a failure", "call"])
    @settings(max_examples=examples(15))
    @given(
        workload=workloads(),
        at=st.frozensets(st.integers(1, 40), max_size=12),
        failures=st.booleans(),
        through_store=st.booleans(),
    )
    def test_caches_can_be_rebuilt_at_any(
        self, text: str, calm: bool, workload: Workload, at: frozenset[int], failures: bool, through_store: bool
    ) -> None:
        """The engine checks every plan; the run must end with every job done."""
        workload = with_stages(workload)
        outages = (Failure(0, 100.0, 700.0), Failure(1, 900.0, 1000.0)) if failures else ()
        policy = Forgetful(text, at, through_store=through_store, calm=calm)
        result = simulate(workload, "2x8", policy, failures=outages, record_segments=True)
        assert result.finished == len(workload)
        assert (result.start_s >= result.submit_s).all()
        assert (result.jct_s >= workload.duration_s * (1 - 1e-9) - 1e-6).all()

    @pytest.mark.parametrize("calm", [*slow(True), False], ids=["call without an end or a failure", "call"])
    def test_a_policy_that_is_replaced_at_every_call_decides_alike(self, text: str, calm: bool) -> None:
        """With nothing but the memory a policy must come to a schedule of much the same quality."""
        workload = with_stages(jobs([(float(i * 40), 100.0 + 37 * (i % 5), 1 + i % 4) for i in range(30)]))
        whole = simulate(workload, "2x4", text, restart_overhead_s=0.0)
        anew = simulate(
            workload, "2x4", Forgetful(text, frozenset(range(2, 10_000)), calm=calm), restart_overhead_s=0.0
        )
        assert anew.finished == 30
        assert anew.avg_jct_s == pytest.approx(whole.avg_jct_s, rel=0.35)
        if text.partition(":")[0] == "rl":
            assert anew.end_s.tolist() == whole.end_s.tolist()
            assert anew.saved == whole.saved

    def test_the_same_object_may_not_carry_one_run_into_the_next(self, text: str) -> None:
        """One policy object, two simulations one after the other: the second must be as with a fresh object."""
        first, second = jobs([(0, 50, 2), (1, 20, 4), (2, 30, 1)]), jobs([(0, 10, 4), (3, 40, 3), (4, 5, 1), (5, 9, 2)])
        first, second = with_stages(first), with_stages(second)
        policy = load_policy(text)
        simulate(first, "1x4", policy)
        again = simulate(second, "1x4", policy)
        assert again.end_s.tolist() == simulate(second, "1x4", text).end_s.tolist()

    def test_gpu_wishes_and_speeds_are_kept_to(self, text: str) -> None:
        if "repack" in text or text == "themis:mode=muri":
            return  # repacking policies refuse such a cluster (test_placement_pool)
        workload = jobs(
            [(0, 10, 1)] * 4,
            gpu_type=Labels.of(["K80", "V100", "", ""]),
            speeds=Speeds(("V100", "K80"), np.array([[1.0, 1.0], [1.0, 1.0], [0.0, 1.0], [1.0, 0.0]])),
        )
        result = simulate(workload, "1x4:V100,1x4:K80", text, record_segments=True)
        assert result.segments is not None
        where = dict(zip(result.segments.job.tolist(), result.segments.node.tolist(), strict=True))
        assert where == {0: 1, 1: 0, 2: 1, 3: 0}
