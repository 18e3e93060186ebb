"""hlas: queues, thresholds, records, switches."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from builders import jobs
from gpuloom.core.cluster import Cluster, Node, parse_cluster
from gpuloom.core.decision import Decision
from gpuloom.core.errors import PolicyError
from gpuloom.core.snapshot import Snapshot
from gpuloom.core.state import State
from gpuloom.core.workload import Labels, Speeds, Workload
from gpuloom.engine.engine import Engine
from gpuloom.engine.progress import Progress
from gpuloom.facts.gpus import hand_in_facts
from gpuloom.facts.inputs import load_policy
from gpuloom.policies.hlas import Hlas
from gpuloom.policies.hlas_terms import IN_Q1, IN_Q2, ON_GPUS
from gpuloom.policies.registry import create_policy
from gpuloom.sim import Failure, simulate

TWO = parse_cluster("1x1:V100,1x1:K80")


class Deaf:
    def apply(self, commands: Any, now_s: float) -> None:
        pass


class Bench:
    """An engine that is told what happens."""

    def __init__(
        self,
        workload: Workload,
        cluster: Cluster,
        policy: str,
        *,
        overhead_s: float = 0.0,
        memory: Any = None,
        memory_stays: bool = False,
    ) -> None:
        self.policy = load_policy(policy)
        self.state = State(workload, cluster, layers=self.policy.max_jobs_per_gpu)
        overheads_s = np.full(len(workload), overhead_s)
        progress = Progress(workload, cluster, overheads_s, self.policy.sharing(workload))
        self.engine = Engine(self.state, self.policy, progress, Deaf(), memory=memory, memory_stays=memory_stays)
        self.wake_s = 0.0

    def at(self, now_s: float, **events: Any) -> Bench:
        self.engine.take_in(now_s, **events)
        self.wake_s = self.engine.decide(now_s)
        return self

    def queue(self, job: int) -> int:
        return int(self.engine.memory.state[job])

    @property
    def running(self) -> dict[int, int]:
        """First node of each running job."""
        return {job: placement.nodes[0] for job, placement in self.state.placements.items()}

    def attained(self, job: int) -> float:
        return float(self.engine.memory.gpu_s[job] @ self.policy.cache._performance)


BASIC = (
    "hlas:performance=V100:2/K80:1;min_seconds_between_moves=0;priority_threshold_ratio=1.2;starve_threshold_ratio=2"
)


def test_service_is_seconds_times_gpus_times_performance() -> None:
    bench = Bench(jobs([(0, 1000, 2), (0, 1000, 1)]), parse_cluster("1x2:V100,1x2:K80"), BASIC)
    bench.at(0.0, arrived=[0, 1])
    assert bench.running == {0: 0, 1: 1}
    running = bench.policy.cache._running
    assert dict(zip(running.job.tolist(), running.attained(100.0).tolist(), strict=True)) == {0: 400.0, 1: 100.0}


def test_demoted_when_above_the_ratio_and_somebody_gets_to_run_by_it() -> None:
    bench = Bench(jobs([(0, 1000, 1), (0, 1000, 1), (100, 1000, 1)]), TWO, BASIC)
    bench.at(0.0, arrived=[0, 1])
    # Mean of 200 (V100) and 100 (K80) is 150; 200 > 1.2 · 150.
    bench.at(100.0, arrived=[2])
    assert bench.running == {1: 1, 2: 0}
    assert bench.queue(0) == IN_Q2
    assert bench.attained(0) == 200.0


def test_nobody_is_demoted_while_nobody_waits_unless_literal() -> None:
    rows = [(0, 1000, 1), (0, 1000, 1)]
    calm = Bench(jobs(rows), TWO, BASIC).at(0.0, arrived=[0, 1]).at(100.0)
    assert sorted(calm.running) == [0, 1]
    literal = Bench(jobs(rows), TWO, BASIC + ";literal=yes").at(0.0, arrived=[0, 1]).at(100.0)
    assert sorted(literal.running) == [1]
    assert literal.queue(0) == IN_Q2


def test_a_newcomer_never_preempts_by_itself() -> None:
    bench = Bench(jobs([(0, 1000, 1), (0, 1000, 1), (50, 10, 1)]), parse_cluster("2x1:V100"), BASIC)
    bench.at(0.0, arrived=[0, 1]).at(50.0, arrived=[2])
    assert sorted(bench.running) == [0, 1]  # both at the mean, none above 1.2 times of it
    assert bench.queue(2) == IN_Q1


def test_starving_is_waiting_longer_than_the_ratio_of_the_time_run() -> None:
    bench = Bench(jobs([(0, 1000, 1), (0, 1000, 1), (100, 1000, 1)]), TWO, BASIC)
    bench.at(0.0, arrived=[0, 1]).at(100.0, arrived=[2])
    assert bench.queue(0) == IN_Q2  # it ran 100 s, so it starves after 200 s
    assert bench.at(300.0).queue(0) == IN_Q2  # not more than
    bench.at(300.1)
    assert bench.queue(0) in (IN_Q1, ON_GPUS)
    assert bench.attained(0) == 0.0
    assert bench.engine.memory.ran_s[0] == 0.0


def test_a_job_that_never_ran_starves_at_once() -> None:
    bench = Bench(jobs([(0, 1000, 1)]), TWO, BASIC)
    memory = bench.policy.new_memory(bench.state.workload, TWO)
    memory.state[0], memory.queued_s[0] = IN_Q2, 5.0
    again = Bench(jobs([(0, 1000, 1)]), TWO, BASIC + ";work_conserving=no", memory=memory)
    again.state.submit(0, 5.0)
    again.at(5.0)
    assert again.running == {0: 0}
    assert again.policy.cache.promotions == 1


def test_the_next_look_is_when_a_job_starves_or_has_had_its_share() -> None:
    bench = Bench(jobs([(0, 1000, 1), (0, 1000, 1), (100, 1000, 1), (100, 1000, 1)]), TWO, BASIC + ";tick=10")
    bench.at(0.0, arrived=[0, 1]).at(100.0, arrived=[2, 3])
    assert 100.0 < bench.wake_s <= 310.0
    assert bench.wake_s % 10.0 == 0.0


def test_idle_gpus_go_to_q2_only_if_work_conserving() -> None:
    for work_conserving, runs in (("yes", True), ("no", False)):
        bench = Bench(
            jobs([(0, 1000, 1), (0, 1000, 1), (100, 1000, 1)]), TWO, f"{BASIC};work_conserving={work_conserving}"
        )
        bench.at(0.0, arrived=[0, 1]).at(100.0, arrived=[2])
        bench.at(120.0, finished=[2])
        assert (0 in bench.running) == runs
        assert (bench.queue(0) == ON_GPUS) == runs


def test_q1_is_by_service_then_submission() -> None:
    # Job 0 loses its node with service, so the newer jobs go first; it keeps its place before Q2.
    workload = jobs([(0, 1000, 1), (60, 1000, 1), (61, 1000, 1)])
    bench = Bench(workload, parse_cluster("1x1:V100,1x1:V100"), BASIC)
    bench.at(0.0, arrived=[0]).at(50.0, down=[1])
    bench.at(55.0, down=[0])
    assert (bench.queue(0), bench.attained(0)) == (IN_Q1, 55.0)
    bench.at(60.0, arrived=[1]).at(61.0, arrived=[2])
    bench.at(70.0, up=[0])
    assert list(bench.running) == [1]
    bench.at(80.0, finished=[1])
    assert list(bench.running) == [2]
    bench.at(90.0, finished=[2])
    assert list(bench.running) == [0]


def test_a_job_that_does_not_fit_is_skipped() -> None:
    bench = Bench(jobs([(0, 1000, 2), (1, 1000, 2), (2, 10, 1)]), parse_cluster("1x3:V100"), BASIC)
    bench.at(0.0, arrived=[0]).at(1.0, arrived=[1]).at(2.0, arrived=[2])
    assert sorted(bench.running) == [0, 2]


def test_memory_keeps_a_job_off_small_gpus() -> None:
    workload = jobs([(0, 100, 1), (1, 100, 1), (2, 100, 1)], gpu_memory_mib=np.array([14_000.0, 14_000.0, 1_000.0]))
    result = simulate(workload, "1x1:K80,1x1:V100", "hlas", record_segments=True)  # K80s have 12 GiB
    assert result.segments is not None
    nodes = dict(zip(result.segments.job.tolist(), result.segments.node.tolist(), strict=True))
    assert (nodes[0], nodes[1], nodes[2]) == (1, 1, 0)
    assert result.start_s[1] == result.end_s[0]


def test_a_swap_respects_memory() -> None:
    # By throughput job 1 had better move to the V100 and leave the K80 to job 2, which does not fit there.
    speeds = Speeds(("V100", "K80"), np.array([[1.0, 1.0], [1.0, 0.1], [1.0, 1.0]]))
    rows = [(0.0, 50.0, 1), (0.0, 10_000.0, 1), (50.0, 10_000.0, 1)]
    for memory, swapped in ((1_000.0, True), (14_000.0, False)):
        workload = jobs(
            rows, speeds=speeds, gpu_type=Labels.of(["V100", "", ""]), gpu_memory_mib=np.array([1e3, 1e3, memory])
        )
        policy = load_policy("hlas:upgrade=no")
        simulate(workload, "1x1:V100,1x1:K80", policy)
        assert policy.cache.swaps == int(swapped)


def test_a_swap_must_pay_for_its_restart() -> None:
    # a gains 0.1 of its best speed per second, for as long as a job runs on average: the first guess of 3,600 s and
    # the 500 s + overhead of the job that has ended make 2,150 s or 2,200 s, so 215 s or 220 s of work are gained.
    speeds = Speeds(("V100", "K80"), np.array([[1.0, 1.0], [1.0, 0.9], [1.0, 1.0]]))
    rows = [(0.0, 500.0, 1), (0.0, 50_000.0, 1), (500.0, 50_000.0, 1)]
    workload = jobs(rows, speeds=speeds, gpu_type=Labels.of(["V100", "", ""]))
    for overhead_s, horizon, swaps in ((200.0, "yes", 1), (300.0, "yes", 0), (300.0, "no", 1)):
        policy = load_policy(f"hlas:upgrade=no;gain_horizon={horizon}")
        simulate(workload, "1x1:V100,1x1:K80", policy, restart_overhead_s=overhead_s)
        assert policy.cache.swaps == swaps, (overhead_s, horizon)


def test_moves_of_a_job_are_bounded() -> None:
    rng = np.random.default_rng(3)
    n = 60
    speeds = Speeds(("V100", "P100", "K80"), rng.uniform(0.1, 1.0, (n, 3)))
    workload = jobs([(float(i * 40), float(rng.uniform(200, 4000)), 1) for i in range(n)], speeds=speeds)
    for bound_s in (300.0, 3000.0):
        moved: dict[int, list[float]] = {}

        class Look(Hlas):
            moved_at = moved

            def decide(self, snapshot: Snapshot, memory: Any) -> tuple[Decision, Any]:
                decision, memory = super().decide(snapshot, memory)
                for job in decision.run:
                    if job in snapshot.placements:
                        self.moved_at.setdefault(job, []).append(snapshot.now_s)
                return decision, memory

        simulate(workload, "1x3:V100,1x3:P100,1x3:K80", Look(min_seconds_between_moves=bound_s))
        assert moved
        gaps = np.concatenate([np.diff(times) for times in moved.values() if len(times) > 1] or [np.array([bound_s])])
        assert (gaps >= bound_s).all()


def test_running_jobs_move_up_when_nobody_waits() -> None:
    workload = jobs([(0, 100, 1), (0, 10_000, 1)], speeds=Speeds(("V100", "K80"), np.array([[1.0, 0.2], [1.0, 0.2]])))
    policy = load_policy("hlas")
    up = simulate(workload, "1x1:V100,1x1:K80", policy, restart_overhead_s=0.0)
    assert policy.cache.upgrades == 1
    stay = simulate(workload, "1x1:V100,1x1:K80", "hlas:upgrade=no", restart_overhead_s=0.0)
    assert up.makespan_s < stay.makespan_s


def test_blind_sees_no_difference() -> None:
    speeds = Speeds(("K80", "V100"), np.array([[0.1, 1.0]] * 3))
    workload = jobs([(0, 100, 1), (10, 100, 1), (20, 100, 1)], speeds=speeds)
    blind = simulate(workload, "1x2:K80,1x1:V100", "hlas:blind=yes", record_segments=True)
    aware = simulate(workload, "1x2:K80,1x1:V100", "hlas", record_segments=True)
    assert blind.segments is not None
    assert blind.segments.node.tolist() == [0, 0, 1]  # the cluster's order
    assert aware.segments is not None
    assert aware.segments.node[0] == 1


def test_memory_survives_a_restart_of_the_scheduler() -> None:
    """With the memory written down and read back, a new engine and policy go on as the old ones would have."""
    workload = jobs([(0, 1000, 1), (0, 1000, 1), (100, 1000, 1), (130, 50, 1)])
    old = Bench(workload, TWO, BASIC).at(0.0, arrived=[0, 1]).at(100.0, arrived=[2])
    fresh = load_policy(BASIC)
    memory = pickle.loads(pickle.dumps(old.engine.memory))
    again = Engine(old.state, fresh, old.engine.progress, Deaf(), memory=memory)
    again.take_in(130.0, arrived=[3])
    again.decide(130.0)
    # Job 2 has had 60 and job 1 130, more than 1.2 times their mean, so it makes room for job 3.
    assert memory.state.tolist() == [IN_Q2, IN_Q2, ON_GPUS, ON_GPUS]
    running = fresh.cache._running
    service = dict(zip(running.job.tolist(), running.attained(130.0).tolist(), strict=True))
    assert service == {2: 60.0, 3: 0.0}
    assert (memory.gpu_s @ fresh.cache._performance).tolist() == [200.0, 130.0, 0.0, 0.0]
    again.take_in(300.1)
    again.decide(300.1)
    assert memory.gpu_s[0].sum() == 0.0
    assert int(memory.state[0]) in (IN_Q1, ON_GPUS)


def test_literal_is_every_switch_off() -> None:
    rng = np.random.default_rng(5)
    speeds = Speeds(("V100", "K80"), np.column_stack([np.ones(40), rng.uniform(0.1, 0.9, 40)]))
    workload = jobs(
        [(float(i * 60), float(rng.uniform(60, 3000)), 1 + i % 2) for i in range(40)],
        speeds=speeds,
        iteration_s=rng.uniform(0.1, 5.0, 40),
    )
    switches = "work_conserving=no;demote_only_if_waiting=no;gain_horizon=no;upgrade=no;min_seconds_between_moves=0"
    one = simulate(workload, "2x2:V100,2x2:K80", "hlas:literal=yes")
    two = simulate(workload, "2x2:V100,2x2:K80", f"hlas:gain=iterations;{switches}")
    three = simulate(workload, "2x2:V100,2x2:K80", "hlas")
    assert one.end_s.tolist() == two.end_s.tolist()
    assert one.end_s.tolist() != three.end_s.tolist()


def test_long_jobs_are_not_starved_by_a_stream_of_short_ones() -> None:
    stream = [(float(i * 100), 190.0, 1) for i in range(1, 400)]  # alone they ask for 95 % of the two GPUs
    workload = jobs([(0.0, 3000.0, 1), *stream])
    result = simulate(workload, "2x1:V100", "hlas", restart_overhead_s=0.0)
    assert result.jct_s[0] < 20_000  # the stream lasts 40,000 s
    assert result.finished == len(workload)


def test_a_failed_node_costs_no_service_that_was_not_held() -> None:
    workload = jobs([(0, 500, 1), (5, 500, 1)])
    policy = load_policy("hlas:performance=V100:1")
    result = simulate(
        workload, "2x1:V100", policy, failures=(Failure(0, 100.0, 350.0),), schedule="rounds", interval_s=60.0
    )
    assert result.finished == 2
    assert policy.cache.memory.gpu_s.sum() <= result.attained_gpu_s.sum() + 1e-9


def test_reasons_of_jobs_in_q2() -> None:
    bench = Bench(jobs([(0, 1000, 1), (0, 1000, 1), (100, 1000, 1)]), TWO, BASIC)
    bench.at(0.0, arrived=[0, 1]).at(100.0, arrived=[2])
    reason = bench.policy.reason(bench.engine.snapshot, 0)
    assert "suspended to Q2" in reason.text
    assert reason.numbers["rises_after_s"] == 200.0


@pytest.mark.parametrize("value", ["fp17", "V100", "V100:0", "V100:x/K80:1", ":2"])
def test_bad_performance_is_refused(value: str) -> None:
    with pytest.raises(PolicyError, match="performance"):
        load_policy(f"hlas:performance={value}")


def test_performance_comes_from_the_facts_relative_to_the_slowest() -> None:
    cluster = parse_cluster("1x1:V100,1x1:K80,1x1:mystery")
    for text, want in (("hlas", [125 / 4.37, 1.0, 1.0]), ("hlas:performance=fp32", [15.7 / 4.37, 1.0, 1.0])):
        bench = Bench(jobs([(0, 10, 1)]), cluster, text).at(0.0, arrived=[0])
        assert bench.policy.cache._performance == pytest.approx(want)


@pytest.mark.parametrize("name", ["Tesla-V100", "tesla_v100", "V100", "TeslaV100"])
def test_performance_is_found_whatever_the_name_s_case_and_hyphens(name: str) -> None:
    cluster = Cluster((Node("a", 1, name), Node("b", 1, "K80")))
    policy = load_policy("hlas")
    hand_in_facts(policy)
    result = simulate(jobs([(0.0, 100.0, 1)]), cluster, policy)
    assert result.finished == 1
    assert policy.cache._performance.tolist() == pytest.approx([125 / 4.37, 1.0])


def test_a_measure_whose_numbers_nobody_handed_in_is_refused() -> None:
    bench = Bench(jobs([(0.0, 100.0, 1)]), parse_cluster("1x1:V100,1x1:K80"), "hlas")
    bench.engine.policy = create_policy("hlas")
    with pytest.raises(PolicyError, match="its numbers were not passed"):
        bench.at(0.0, arrived=[0])
