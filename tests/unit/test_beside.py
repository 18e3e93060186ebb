"""Best-effort jobs beside high-priority ones: who joins whom, how fast, who leaves; and jobs that must stay."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from builders import jobs
from gpuloom.core.cluster import Cluster, parse_cluster
from gpuloom.core.decision import Placement
from gpuloom.core.errors import InputError, PolicyError
from gpuloom.core.share_class import job_class
from gpuloom.core.state import State
from gpuloom.core.workload import Labels, Workload
from gpuloom.engine.engine import Engine
from gpuloom.engine.progress import Progress
from gpuloom.live.planning.world import Collector
from gpuloom.policies.registry import create_policy
from gpuloom.sim import simulate

HIGH, LOW, NONE = "high", "best-effort", ""


def classed(rows: list[tuple[float, float, int, str]], **columns: Any) -> Workload:
    return jobs([row[:3] for row in rows], share_class=Labels.of([row[3] for row in rows]), **columns)


def ends(workload: Workload, policy: str = "fifo:beside=yes", cluster: str = "1x1", **settings: Any) -> list[float]:
    result = simulate(workload, cluster, policy, restart_overhead_s=0.0, interval_s=0.0, **settings)
    return [round(end, 6) for end in result.end_s.tolist()]


def test_a_guest_runs_at_its_share_and_then_alone() -> None:
    """Beside the service half of its speed for 300 s, then 850 s alone; the service loses nothing."""
    workload = classed([(0, 300, 1, HIGH), (0, 1000, 1, LOW)])
    assert ends(workload) == [300, 1150]
    assert ends(workload, "fifo:beside=yes;beside_speed=0.3") == [300, 1210]
    assert ends(workload, "fifo") == ends(workload, "fifo:beside=no") == [300, 1300]


@pytest.mark.parametrize(("one", "other"), [(HIGH, HIGH), (LOW, LOW), (HIGH, NONE), (NONE, LOW), (NONE, NONE)], ids=str)
def test_others_do_not_share(one: str, other: str) -> None:
    assert ends(classed([(0, 300, 1, one), (0, 1000, 1, other)])) == [300, 1300]


def test_jobs_of_several_gpus_do_not_share() -> None:
    assert ends(classed([(0, 300, 2, HIGH), (0, 1000, 1, LOW)]), cluster="1x2") == [300, 1300]
    assert ends(classed([(0, 300, 1, HIGH), (0, 1000, 2, LOW)]), cluster="1x2") == [300, 1300]


def test_a_service_joins_training_that_has_the_gpu() -> None:
    assert ends(classed([(0, 1000, 1, LOW), (100, 300, 1, HIGH)])) == [1150, 400]


@pytest.mark.parametrize("policy", ["srtf", "srsf"])
def test_a_host_is_not_stopped_because_its_guest_slows_it(policy: str) -> None:
    """The least is left of the second, whose guest, the third, halves its speed: the first waits all the same."""
    workload = classed([(0, 100, 1, NONE), (5, 60, 1, LOW), (5, 300, 1, HIGH), (10, 1000, 1, NONE)])
    assert ends(workload, f"{policy}:beside=yes") == [220, 125, 400, 1400]


def test_only_one_guest() -> None:
    assert ends(classed([(0, 900, 1, HIGH), (0, 60, 1, LOW), (0, 60, 1, LOW)])) == [900, 120, 240]


@pytest.mark.parametrize(
    ("memory", "shares"),
    [
        ((8000.0, 8000.0), True),
        ((8000.0, 9000.0), False),
        ((np.nan, 1.0), False),
        ((1.0, np.nan), False),
        (None, False),
    ],
)
def test_memory_for_both(memory: tuple[float, float] | None, shares: bool) -> None:
    """A V100 of the cluster below has 16,000 MiB; what is not known may be anything."""
    cluster = Cluster(
        tuple(type(node)(**_fields(node), gpu_memory_mib=16_000) for node in parse_cluster("1x1:V100").nodes)
    )
    columns = {} if memory is None else {"gpu_memory_mib": np.array(memory)}
    found = simulate(
        classed([(0, 300, 1, HIGH), (0, 100, 1, LOW)], **columns), cluster, "fifo:beside=yes", restart_overhead_s=0.0
    )
    assert found.start_s[1] == (0 if shares else 300)


def _fields(node: Any) -> dict[str, Any]:
    return {"name": node.name, "gpus": node.gpus, "gpu_model": node.gpu_model}


def test_nobody_who_came_before_waits_longer() -> None:
    """The second job gets the GPU when the service ends; a guest may come if it ends before that, and no other."""
    rows = [(0.0, 300.0, 1, HIGH), (0.0, 50.0, 1, NONE)]
    assert ends(classed([*rows, (1, 140, 1, LOW)])) == [300, 350, 281]
    assert ends(classed([*rows, (1, 190, 1, LOW)])) == [300, 350, 540]
    # Who came before it does not wait for it.
    assert ends(classed([(0, 300, 1, HIGH), (0, 190, 1, LOW), (1, 50, 1, NONE)])) == [300, 340, 390]


def test_a_service_does_not_slow_training_that_others_wait_for() -> None:
    """The plain job gets the GPU at 1000, as it would without the service, which takes its turn."""
    rows = [(0.0, 1000.0, 1, LOW), (1.0, 50.0, 1, NONE), (2.0, 10.0, 1, HIGH)]
    assert ends(classed(rows)) == [1000, 1050, 1060]


def test_a_policy_that_stops_jobs_stops_guests() -> None:
    """srtf gives the service's GPU to a job that can't be anybody's partner; both wait for it."""
    rows = [(0.0, 1000.0, 1, HIGH), (0.0, 2000.0, 1, LOW), (100.0, 50.0, 1, NONE)]
    assert ends(classed(rows), "srtf:beside=yes") == [1050, pytest.approx(1050 + 2000 - 0.5 * 1000), 150]


def test_it_goes_where_its_speed_is_best_and_may_run() -> None:
    workload = classed([(0, 300, 1, HIGH), (0, 300, 1, HIGH), (0, 60, 1, LOW)], gpu_type=Labels.of(["", "", "K80"]))
    result = simulate(workload, "1x1:V100,1x1:K80", "fifo:beside=yes", restart_overhead_s=0.0)
    assert result.start_s[2] >= 300  # memory is known of both models, and not of the jobs
    workload = classed(
        [(0, 300, 1, HIGH), (0, 300, 1, HIGH), (0, 60, 1, LOW)],
        gpu_type=Labels.of(["", "", "K80"]),
        gpu_memory_mib=np.full(3, 100.0),
    )
    result = simulate(workload, "1x1:V100,1x1:K80", "fifo:beside=yes", restart_overhead_s=0.0)
    assert result.start_s[2] == 0


class TestFixed:
    """Running jobs that must be left as they are: those of a higher priority, and those that may not be stopped."""

    def world(self, policy: str, rows: list[tuple[float, float, int, str]], fixed: set[int]) -> tuple[State, Engine]:
        workload, cluster = classed(rows), parse_cluster("1x1")
        state = State(workload, cluster, layers=2)
        made = create_policy(policy)
        progress = Progress(workload, cluster, np.zeros(len(rows)), made.sharing(workload))
        engine = Engine(state, made, progress, Collector())
        state.submit_all(np.arange(1))
        zero, first = np.zeros(1), [Placement((0,), (1,))]
        state.adopt(np.zeros(1, dtype=np.intp), first, run_from_s=zero, work_from_s=zero, rate=np.ones(1))
        engine.snapshot.fixed = frozenset(fixed)
        engine.take_in(10.0, arrived=range(1, len(rows)))
        engine.decide(10.0)
        return state, engine

    def test_a_shorter_job_does_not_stop_it(self) -> None:
        rows = [(0.0, 1000.0, 1, HIGH), (0.0, 5.0, 1, NONE)]
        assert list(self.world("srtf:beside=yes", rows, set())[0].placements) == [1]
        assert list(self.world("srtf:beside=yes", rows, {0})[0].placements) == [0]

    def test_a_guest_may_come_and_stays_when_it_ends(self) -> None:
        state, engine = self.world("srtf:beside=yes", [(0.0, 1000.0, 1, HIGH), (0.0, 500.0, 1, LOW)], {0})
        assert {job: placement.layer for job, placement in state.placements.items()} == {0: 0, 1: 1}
        assert state.rate[1] == 0.5
        engine.take_in(100.0, finished=[0])
        engine.decide(100.0)
        assert list(state.placements) == [1]
        assert state.rate[1] == 1.0

    def test_its_guest_is_not_stopped_either(self) -> None:
        rows = [(0.0, 1000.0, 1, HIGH), (0.0, 500.0, 1, LOW), (0.0, 1.0, 1, NONE)]
        assert list(self.world("srtf:beside=yes", rows, {0})[0].placements) == [0, 1]


def test_reasons() -> None:
    workload, cluster = (
        classed([(0, 300, 1, HIGH), (0, 50, 1, NONE), (0, 900, 1, LOW), (0, 9, 1, HIGH)]),
        parse_cluster("1x1"),
    )
    state = State(workload, cluster, layers=2)
    made = create_policy("fifo:beside=yes")
    engine = Engine(state, made, Progress(workload, cluster, np.zeros(4), made.sharing(workload)), Collector())
    engine.take_in(0.0, arrived=range(4))
    engine.decide(0.0)
    assert list(state.placements) == [0]
    texts = [made.reason(engine.snapshot, job).text for job in (1, 2, 3)]
    assert "beside" not in texts[0]
    assert "room beside a high-priority job, but jobs before it would then wait longer" in texts[1]
    assert "No GPU has a best-effort job alone on it" in texts[2]


def test_whoever_has_a_guest_already_is_no_room_for_another() -> None:
    workload, cluster = classed([(0, 900, 1, HIGH), (0, 60, 1, LOW), (0, 60, 1, LOW)]), parse_cluster("1x1")
    state = State(workload, cluster, layers=2)
    made = create_policy("fifo:beside=yes")
    engine = Engine(state, made, Progress(workload, cluster, np.zeros(3), made.sharing(workload)), Collector())
    engine.take_in(0.0, arrived=range(3))
    engine.decide(0.0)
    assert list(state.placements) == [0, 1]
    found = made.reason(engine.snapshot, 2)
    assert "No GPU has a high-priority job alone on it" in found.text
    assert found.numbers["gpus_to_share"] == 0


class TestWritten:
    @pytest.mark.parametrize("base", ["muri-s", "weave", "antman", "elastic"])
    def test_not_for_policies_that_share_or_resize(self, base: str) -> None:
        with pytest.raises(PolicyError, match="beside is for policies that give each job GPUs of its own"):
            create_policy(f"{base}:beside=yes")
        assert create_policy(base, beside=True).id == base  # as a default it is for those that can

    def test_values(self) -> None:
        policy = create_policy("tiresias:thresholds=100;beside=yes;beside_speed=0.7")
        assert (policy.id, policy.max_jobs_per_gpu, policy.traits.sharing) == ("tiresias", 2, True)
        assert policy.values["thresholds"] == (100.0,)
        assert (policy.values["beside"], policy.values["beside_speed"]) == (True, 0.7)
        assert create_policy("tiresias:beside=no", beside=True).max_jobs_per_gpu == 1
        assert create_policy("tiresias:beside_speed=0.7").values["beside_speed"] == 0.7  # who says how fast wants it
        for text, what in (("fifo:beside=maybe", "must be yes or no"), ("fifo:beside=yes;beside_speed=2", "at most 1")):
            with pytest.raises(PolicyError, match=what):
                create_policy(text)

    def test_in_a_workload(self) -> None:
        with pytest.raises(InputError, match="share_class 'low' must be high or best-effort, or empty"):
            classed([(0, 1, 1, "low")])


def test_antman_takes_best_effort_jobs_as_opportunistic() -> None:
    workload = classed([(0, 300, 1, HIGH), (0, 100, 1, LOW)])
    assert simulate(workload, "1x1", "antman", restart_overhead_s=0.0).start_s.tolist() == [0, 0]


@pytest.mark.parametrize("policy", ["muri-s", "muri-xl", "weave"])
def test_who_is_to_keep_its_latency_is_not_woven(policy: str) -> None:
    stages = {"stage_s": np.array([[0.2, 3.0, 0.1], [0.1, 0.2, 3.0]]), "iteration_s": np.full(2, 3.3)}
    woven = simulate(jobs([(0, 900, 1)] * 2, **stages), "1x1", policy, restart_overhead_s=0.0)
    assert woven.start_s.tolist() == [0, 0]
    apart = simulate(classed([(0, 900, 1, HIGH), (0, 900, 1, NONE)], **stages), "1x1", policy, restart_overhead_s=0.0)
    assert max(apart.start_s) >= min(apart.end_s)


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ((None, None, None, False), ""),
        ((None, "training", None, False), LOW),
        ((None, "batch", "low", False), LOW),
        ((None, None, "low", False), LOW),
        ((None, "inference", None, False), HIGH),
        ((None, "interactive", "low", False), HIGH),
        ((None, "training", "high", False), HIGH),
        ((None, "training", "low", True), HIGH),
        ((None, None, None, True), HIGH),
        ((LOW, "inference", "high", True), LOW),
        ((HIGH, "training", "low", False), HIGH),
    ],
)
def test_class_of_a_job(given: tuple[str | None, str | None, str | None, bool], found: str) -> None:
    klass, task, importance, real_time = given
    assert job_class(klass, task, importance, real_time=real_time) == found
