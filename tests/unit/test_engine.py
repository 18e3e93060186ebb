"""The engine: plans that break a rule are refused, moves pay, failures cost what they should."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import pytest

from builders import engine_of, jobs
from gpuloom.core.cluster import cluster_from_mapping, parse_cluster
from gpuloom.core.commands import Command, Retime, Start, Stop
from gpuloom.core.decision import NOTHING, Decision, Placement
from gpuloom.core.errors import InvalidTransition, PlanError
from gpuloom.core.sharing import Sharing
from gpuloom.core.snapshot import Snapshot
from gpuloom.core.state import State
from gpuloom.core.workload import Labels, Speeds, Workload
from gpuloom.engine.check import PlanCheck
from gpuloom.engine.engine import Engine
from gpuloom.engine.progress import Progress
from gpuloom.policies.base import Policy, Traits
from gpuloom.policies.fifo import Fifo
from gpuloom.sim import Failure, simulate

Decide = Callable[[Snapshot], Decision]


class Half:
    """Everyone beside a neighbour runs at half speed."""

    starts_together = False

    def rate(self, job: int, layer: int, neighbours: list[tuple[int, int]], gpu_model: str = "") -> float:
        return 0.5 if neighbours else 1.0

    def source(self, job: int, neighbours: list[tuple[int, int]], gpu_model: str = "") -> str:
        return "a test"

    def most(self, job: int) -> int:
        return 2


class Told(Policy):
    """Does what the test says; with one layer, or with two that share at half speed."""

    id = "told"
    traits: ClassVar[Traits] = Traits("what a test says", "nothing", "yes", False, False, "-", "")

    def __init__(self, decide: Decide, layers: int = 1) -> None:
        super().__init__()
        self._decide, self.max_jobs_per_gpu = decide, layers

    def sharing(self, workload: Workload) -> Sharing | None:
        return Half() if self.max_jobs_per_gpu > 1 else None

    def decide(self, snapshot: Snapshot, memory: Any) -> tuple[Decision, Any]:
        return self._decide(snapshot), memory


def on(*pieces: tuple[int, int], layer: int = 0) -> Placement:
    """Placement from (node, mask) pairs."""
    return Placement(tuple(n for n, _ in pieces), tuple(m for _, m in pieces), layer)


def at(plans: Mapping[float, Decision]) -> Decide:
    """At each of these times this decision, and a wake-up at the next."""

    def decide(snapshot: Snapshot) -> Decision:
        plan = plans.get(snapshot.now_s, NOTHING)
        later = [time for time in plans if time > snapshot.now_s]
        return Decision(plan.run, plan.wait, min(later, default=math.inf))

    return decide


class Notes:
    """An executor that writes commands down."""

    def __init__(self) -> None:
        self.commands: list[Command] = []

    def apply(self, commands: Sequence[Command], now_s: float) -> None:
        self.commands.extend(commands)


def engine(workload: Workload, cluster: str, decide: Decide, *, layers: int = 1, overhead: float = 0.0, **more: Any):
    nodes, policy = parse_cluster(cluster), Told(decide, layers)
    progress = Progress(workload, nodes, np.full(len(workload), overhead), policy.sharing(workload))
    made = Engine(State(workload, nodes, layers=layers), policy, progress, Notes(), **more)
    made.take_in(0.0, arrived=range(len(workload)))
    return made


# -- the check -----------------------------------------------------------------------------------------------

MIXED = "2x4:V100,1x4:K80"


def checked(gpus: int, placement: Placement, *, cluster: str = MIXED, layers: int = 1, **columns: Any) -> None:
    workload = jobs([(0, 1, gpus)], job_ids=("gamma",), **columns)
    engine(workload, cluster, lambda _: Decision({0: placement}), layers=layers).decide(0.0)


def test_a_good_plan_passes() -> None:
    checked(2, on((0, 0b0110)))
    checked(6, on((1, 0b1111), (0, 0b0011)))
    checked(4, on((2, 0b1111)), gpu_type=Labels.of(["K80|P100"]))
    checked(1, on((0, 1), layer=1), layers=2)


@pytest.mark.parametrize(
    ("gpus", "placement", "message"),
    [
        (4, on((0, 0b0011)), "it needs 4 GPUs at once and was given 2"),
        (2, on((0, 0b0111)), "it needs 2 GPUs at once and was given 3"),
        (1, on(), "it needs 1 GPUs at once and was given 0"),
        (1, on((3, 1)), "node 3 has no GPUs 0x1"),
        (1, on((-1, 1)), "node -1 has no GPUs 0x1"),
        (1, on((0, 0b10000)), "node 0 has no GPUs 0x10"),
        (1, on((0, 0)), "node 0 has no GPUs 0x0"),
        (1, on((0, -1)), "node 0 has no GPUs"),
        (2, on((0, 1), (0, 2)), "a node is named twice"),
        (1, on((0, 1), layer=1), "the policy declared 1 sharing layers"),
        (1, on((0, 1), layer=-1), "the policy declared 1 sharing layers"),
        (5, on((0, 0b1111), (2, 0b0001)), r"a job must stay on one GPU model, not \['K80', 'V100'\]"),
    ],
)
def test_a_plan_that_breaks_a_rule_is_refused_and_names_the_job(gpus: int, placement: Placement, message: str) -> None:
    with pytest.raises(PlanError, match=f"bad plan for job gamma, .*: {message}"):
        checked(gpus, placement)


def test_the_wrong_gpu_model_is_refused() -> None:
    with pytest.raises(PlanError, match="V100"):
        checked(1, on((2, 1)), gpu_type=Labels.of(["V100"]))
    with pytest.raises(PlanError, match="bad plan for job gamma"):
        checked(1, on((0, 1)), cluster="1x4:V100", gpu_type=Labels.of(["P100"]))


def test_a_gpu_model_on_which_the_job_can_not_run_is_refused() -> None:
    """Speed 0 says that the job does not fit the model; it would hold its GPUs for ever."""
    with pytest.raises(PlanError, match="gamma"):
        checked(1, on((2, 1)), speeds=Speeds(("V100", "K80"), np.array([[1.0, 0.0]])))


def test_nodes_and_masks_of_different_length_are_refused() -> None:
    with pytest.raises(PlanError, match="gamma"):
        checked(1, Placement((0, 1), (1,)))


# -- decisions of a bad policy -------------------------------------------------------------------------------


def run_first(**run: Placement) -> Decide:
    return at({0.0: Decision({int(job[1:]): placement for job, placement in run.items()})})


TWO = [(0, 10, 1), (0, 10, 1)]


def test_a_gpu_given_twice_in_one_decision_is_refused() -> None:
    with pytest.raises(PlanError, match=r"job 1[ ,].*0x1"):
        simulate(jobs(TWO), "1x2", Told(run_first(j0=on((0, 1)), j1=on((0, 1)))))


def test_a_gpu_that_another_job_holds_is_refused() -> None:
    plans = {0.0: Decision({0: on((0, 1))}), 5.0: Decision({1: on((0, 1))})}
    with pytest.raises(PlanError, match=r"job 1[ ,].*only.* 0x2"):
        simulate(jobs(TWO), "1x2", Told(at(plans)))


def test_a_gpu_of_a_lost_node_is_refused() -> None:
    failures = (Failure(0, 1.0, 50.0),)
    with pytest.raises(PlanError, match=r"job 0[ ,].*only.* 0x0"):
        simulate(jobs(TWO), "1x2", Told(at({2.0: Decision({0: on((0, 1))}), 0.0: NOTHING})), failures=failures)


@pytest.mark.parametrize(
    "decision",
    [
        Decision(wait=[0]),
        Decision({0: on((0, 1))}, [0]),
        Decision({1: on((0, 1))}),
    ],
    ids=["stop one that waits", "stop and start one that waits", "start one that has not come"],
)
@pytest.mark.parametrize("layers", [1, 2])
def test_a_step_that_the_state_forbids_is_refused_with_the_job_s_story(decision: Decision, layers: int) -> None:
    workload = jobs([(0, 10, 1), (5, 10, 1)])
    with pytest.raises((InvalidTransition, PlanError), match=r"job [01] .*Submitted at"):
        simulate(workload, "1x2", Told(lambda _: decision, layers))


def test_a_job_that_does_not_exist_is_refused() -> None:
    with pytest.raises((InvalidTransition, PlanError)):
        simulate(jobs(TWO), "1x2", Told(run_first(j7=on((0, 1)))))


def test_a_refused_plan_changes_nothing() -> None:
    """The check comes before anything is applied (rules of the house, 4)."""
    plans = {0.0: Decision({0: on((0, 1))}), 5.0: Decision({1: on((0, 2), (0, 4))}, [0])}
    made = engine(jobs([(0, 10, 1), (0, 10, 2)]), "1x4", at(plans))
    made.decide(0.0)
    with pytest.raises(PlanError):
        made.decide(5.0)
    assert made.snapshot.is_running(0)
    assert made.state.free == [[0b1110]]


def test_a_policy_that_never_starts_anything_is_told_so() -> None:
    with pytest.raises(PlanError, match=r"policy 'told' leaves 2 jobs waiting forever.*the first is job 0\. Submitted"):
        simulate(jobs(TWO), "1x2", Told(lambda _: NOTHING))


def test_a_policy_that_never_starts_anything_in_rounds_is_told_so() -> None:
    with pytest.raises(PlanError, match="waiting forever"):
        simulate(jobs(TWO), "1x2", Told(lambda _: NOTHING), schedule="rounds", interval_s=60.0)


def test_a_policy_that_wants_to_be_asked_at_the_same_moment_again_and_again_is_told_so() -> None:
    """Nothing happens and time does not advance: an endless loop, unless the engine says so."""
    asked = 0

    def decide(snapshot: Snapshot) -> Decision:
        nonlocal asked
        asked += 1
        if asked > 20_000:
            raise AssertionError("asked 20,000 times at the same moment")
        return Decision(wake_at_s=snapshot.now_s)

    with pytest.raises(PlanError):
        simulate(jobs(TWO), "1x2", Told(decide))


def test_a_job_at_speed_zero_for_ever_ends_in_an_error_with_words() -> None:
    class Still(Half):
        starts_together = False

        def rate(self, job: int, layer: int, neighbours: list[tuple[int, int]], gpu_model: str = "") -> float:
            return 0.0

    policy = Told(run_first(j0=on((0, 1)), j1=on((0, 1), layer=1)), layers=2)
    policy.sharing = lambda workload: Still()  # type: ignore[method-assign]
    with pytest.raises(PlanError, match="forever"):
        simulate(jobs(TWO), "1x2", policy)


# -- what a good decision does -------------------------------------------------------------------------------


def test_a_decision_becomes_commands_stops_first() -> None:
    plans = {0.0: Decision({0: on((0, 1))}), 5.0: Decision({1: on((0, 1))}, [0])}
    made = engine(jobs(TWO), "1x2", at(plans))
    made.decide(0.0)
    assert made.decide(5.0) == math.inf
    assert made.executor.commands == [Start(0, on((0, 1))), Stop(0), Start(1, on((0, 1)))]


def test_a_move_pays_a_restart() -> None:
    plans = {0.0: Decision({0: on((0, 1))}), 40.0: Decision({0: on((0, 2))})}
    result = simulate(jobs([(0, 100, 1)]), "1x2", Told(at(plans)), restart_overhead_s=10.0, record_segments=True)
    assert result.end_s.tolist() == [120]
    assert result.restarts == 1
    assert result.attained_gpu_s.tolist() == [120]
    assert result.segments is not None
    assert result.segments.gpu_mask.tolist() == [1, 2]


def test_two_jobs_may_swap_places() -> None:
    plans = {
        0.0: Decision({0: on((0, 1)), 1: on((0, 2))}),
        5.0: Decision({0: on((0, 2)), 1: on((0, 1))}),
    }
    result = simulate(jobs(TWO), "1x2", Told(at(plans)), restart_overhead_s=1.0)
    assert result.end_s.tolist() == [12, 12]


def test_a_job_that_is_not_named_keeps_what_it_has() -> None:
    plans = {0.0: Decision({0: on((0, 1))}), 3.0: Decision({1: on((0, 2))})}
    result = simulate(jobs(TWO), "1x2", Told(at(plans)), restart_overhead_s=0.0)
    assert result.end_s.tolist() == [10, 13]
    assert result.restarts == 0


def test_neighbours_slow_each_other_down_while_they_share() -> None:
    plans = {0.0: Decision({0: on((0, 1))}), 4.0: Decision({1: on((0, 1), layer=1)})}
    workload = jobs([(0, 10, 1), (0, 10, 1)])
    # 0: 4 s alone, 6 s of work at half speed: 16. 1: 6 s of work done by then, 4 alone: 20.
    assert simulate(workload, "1x2", Told(at(plans), 2), restart_overhead_s=0.0).end_s.tolist() == [16, 20]
    made = engine(workload, "1x2", at(plans), layers=2)
    made.decide(0.0)
    made.decide(4.0)
    assert made.executor.commands[1:] == [Start(1, on((0, 1), layer=1)), Retime(0), Retime(1)]


def test_layers_on_different_gpus_don_t_slow_down() -> None:
    plans = {0.0: Decision({0: on((0, 1)), 1: on((0, 2), layer=1)})}
    assert simulate(jobs(TWO), "1x2", Told(at(plans), 2), restart_overhead_s=0.0).end_s.tolist() == [10, 10]


def test_speed_depends_on_the_gpu_model_and_is_one_where_unknown() -> None:
    workload = jobs([(0, 10, 1)], speeds=Speeds(("v100",), np.array([[4.0]])))
    progress = Progress(workload, parse_cluster(MIXED), np.zeros(1))
    assert progress.solo_rate(0, on((0, 1))) == 4.0
    assert progress.solo_rate(0, on((2, 1))) == 1.0


# -- when the policy is asked --------------------------------------------------------------------------------


def test_wake_at_is_honoured() -> None:
    plans = {0.0: NOTHING, 100.0: Decision({0: on((0, 1))})}
    result = simulate(jobs([(0, 10, 1)]), "1x1", Told(at(plans)), restart_overhead_s=0.0)
    assert (result.start_s[0], result.end_s[0]) == (100, 110)


def test_in_rounds_wake_at_means_the_next_round() -> None:
    plans = {0.0: Decision(wake_at_s=100.0), 120.0: Decision({0: on((0, 1))})}
    told = Told(lambda snapshot: plans.get(snapshot.now_s, NOTHING))
    result = simulate(jobs([(0, 10, 1)]), "1x1", told, restart_overhead_s=0.0, schedule="rounds", interval_s=60.0)
    assert result.start_s[0] == 120


def test_in_rounds_jobs_start_at_multiples_of_the_interval_only() -> None:
    rows = [(5, 30, 1), (10, 30, 1)]
    events = simulate(jobs(rows), "1x1", "fifo", restart_overhead_s=0.0)
    rounds = simulate(jobs(rows), "1x1", "fifo", restart_overhead_s=0.0, schedule="rounds", interval_s=60.0)
    assert events.start_s.tolist() == [5, 35]
    assert rounds.start_s.tolist() == [60, 120]
    assert rounds.end_s.tolist() == [90, 150]


def test_a_job_that_comes_exactly_at_a_round_starts_in_it() -> None:
    result = simulate(jobs([(120, 30, 1)]), "1x1", "fifo", restart_overhead_s=0.0, schedule="rounds", interval_s=60.0)
    assert result.start_s[0] == 120


def test_a_policy_whose_priorities_change_is_asked_at_every_interval() -> None:
    asked: list[float] = []

    class Periodic(Told):
        periodic = True

    def decide(snapshot: Snapshot) -> Decision:
        asked.append(snapshot.now_s)
        return Decision({0: on((0, 1))}) if len(asked) == 1 else NOTHING

    with pytest.raises(PlanError, match="forever"):
        simulate(jobs([(0, 100, 1), (0, 1, 1)]), "1x1", Periodic(decide), interval_s=30.0, restart_overhead_s=0.0)
    assert asked[:5] == [0, 30, 60, 90, 100]


def test_events_at_the_same_time_come_together_ends_first() -> None:
    seen: list[tuple[float, list[int], list[int]]] = []

    def decide(snapshot: Snapshot) -> Decision:
        seen.append((snapshot.now_s, list(snapshot.finished), list(snapshot.arrived)))
        return Decision({snapshot.waiting()[0]: on((0, 1))}) if snapshot.waiting() else NOTHING

    simulate(jobs([(0, 10, 1), (10, 10, 1)]), "1x1", Told(decide), restart_overhead_s=0.0)
    assert seen == [(0.0, [], [0]), (10.0, [0], [1]), (20.0, [1], [])]


# -- failures ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("checkpoint", "overhead", "end"),
    [
        (0.0, 0.0, 110.0),  # 50 done, 50 left at 60
        (30.0, 0.0, 130.0),  # back to 30 done
        (30.0, 10.0, 140.0),  # 40 done at 50, back to 30; 60 + 10 + 70
        (50.0, 0.0, 110.0),  # a checkpoint at this very moment loses nothing
        (1000.0, 0.0, 160.0),  # no checkpoint yet: all is lost
    ],
)
def test_a_lost_node_costs_the_work_since_the_last_checkpoint(checkpoint: float, overhead: float, end: float) -> None:
    result = simulate(
        jobs([(0, 100, 1)]),
        "1x1",
        "fifo",
        failures=(Failure(0, 50.0, 60.0),),
        checkpoint_s=checkpoint,
        restart_overhead_s=overhead,
    )
    assert result.end_s[0] == pytest.approx(end)
    assert result.restarts == 1


def test_a_second_failure_counts_from_all_the_work_done() -> None:
    # 50 done, back to 30; 25 more to 55 done at 85, back to 30 again; 70 left at 90.
    failures = (Failure(0, 50.0, 60.0), Failure(0, 85.0, 90.0))
    workload = jobs([(0, 100, 1)])
    result = simulate(workload, "1x1", "fifo", failures=failures, checkpoint_s=30.0, restart_overhead_s=0.0)
    assert result.end_s[0] == pytest.approx(160)


def test_only_jobs_on_the_lost_node_are_evicted_and_the_policy_hears_of_them() -> None:
    heard: list[tuple[float, list[int], list[int], list[int]]] = []

    def decide(snapshot: Snapshot) -> Decision:
        if snapshot.evicted or snapshot.nodes_up:
            heard.append((snapshot.now_s, *map(list, (snapshot.evicted, snapshot.nodes_down, snapshot.nodes_up))))  # type: ignore[arg-type]
        if snapshot.now_s == 0:
            return Decision({0: on((0, 1)), 1: on((1, 1)), 2: on((0, 2), (1, 2))})
        return Decision({0: on((0, 1)), 2: on((0, 2), (1, 2))}) if snapshot.nodes_up else NOTHING

    workload = jobs([(0, 100, 1), (0, 100, 1), (0, 100, 2)])
    result = simulate(workload, "2x2", Told(decide), failures=(Failure(0, 30.0, 40.0),), restart_overhead_s=0.0)
    assert heard == [(30.0, [0, 2], [0], []), (40.0, [], [], [0])]
    assert result.end_s.tolist() == [110, 100, 110]


def test_a_job_that_ends_as_its_node_fails_has_ended() -> None:
    result = simulate(
        jobs([(0, 50, 1)]), "1x1", "fifo", failures=(Failure(0, 50.0, 60.0),), checkpoint_s=30.0, restart_overhead_s=0.0
    )
    assert result.end_s[0] == 50
    assert result.restarts == 0


def test_a_neighbour_speeds_up_when_its_partner_is_evicted() -> None:
    """Job 1 shares with 0 on node 0 and also holds a GPU of node 1, where it shares with 2."""
    plans = {0.0: Decision({0: on((0, 1)), 1: on((1, 1), layer=0), 2: on((0, 2), (1, 1), layer=1)})}
    workload = jobs([(0, 100, 1), (0, 10, 1), (0, 100, 2)])

    def decide(snapshot: Snapshot) -> Decision:
        if snapshot.now_s == 0:
            return plans[0.0]
        waiting = snapshot.waiting()
        places = {0: on((0, 1)), 2: on((0, 2), (1, 1), layer=1)}
        return Decision({job: places[job] for job in waiting}) if snapshot.nodes_up else NOTHING

    result = simulate(workload, "2x2", Told(decide, 2), failures=(Failure(0, 4.0, 50.0),), restart_overhead_s=0.0)
    # 1 is at half speed for 4 s beside 2, then alone: 4 + 8.
    assert result.end_s[1] == 12


# -- the artifact's rule -------------------------------------------------------------------------------------


def test_charging_every_step_takes_the_overhead_from_every_step_that_ends_before_the_job() -> None:
    # Step at 50: job 0 has done 50 - 10. It ends at 50 + 60 = 110. Job 1 has done 110 - 50 - 10 = 50: ends 160.
    workload = jobs([(0, 100, 1), (50, 100, 1)])
    result = simulate(workload, "1x2", "srtf", compat="muri", restart_overhead_s=10.0)
    assert result.end_s.tolist() == [110, 160]
    own = simulate(workload, "1x2", "srtf", restart_overhead_s=10.0)
    assert own.end_s.tolist() == [110, 160]
    alone = simulate(jobs([(0, 100, 1)]), "1x2", "srtf", compat="muri", restart_overhead_s=10.0)
    assert alone.end_s.tolist() == [100], "no step ends before the job: nothing is charged"
    three = simulate(
        jobs([(0, 100, 1), (50, 200, 1), (80, 200, 1)]), "1x3", "srtf", compat="muri", restart_overhead_s=10.0
    )
    assert three.end_s[0] == 120, "two steps, two overheads"


def test_a_plan_that_overfills_a_gpu_s_memory_is_refused() -> None:
    workload = jobs([(0, 10, 1), (0, 10, 1)], gpu_memory_mib=np.array([9000.0, 8000.0]))
    cluster = cluster_from_mapping({"nodes": [{"gpus": 2, "gpu_memory": "16GiB"}]}, source="test")
    state = State(workload, cluster, layers=2)
    for job in (0, 1):
        state.submit(job, 0.0)
    beside = Decision({0: Placement((0,), (1,), 0), 1: Placement((0,), (1,), 1)})
    with pytest.raises(PlanError, match=r"need 17000 MiB together on GPU 0 of node .*, which has 16384 MiB"):
        PlanCheck(state).plan(beside, [])
    PlanCheck(state, spills_memory=True).plan(beside, [])
    PlanCheck(state).plan(Decision({0: Placement((0,), (1,), 0), 1: Placement((0,), (2,), 1)}), [])
    state.start(0, Placement((0,), (1,), 0), 0.0, 0.0, 1.0)
    with pytest.raises(PlanError, match="17000 MiB"):
        PlanCheck(state).plan(Decision({1: Placement((0,), (1,), 1)}), [])


def test_where_memory_stays_no_plan_exceeds_it_nor_shares_what_is_unknown() -> None:
    beside = Decision({0: Placement((0,), (1,), 0), 1: Placement((0,), (1,), 1)})

    def checked(*memory_mib: float, limit: str = "16GiB") -> None:
        workload = jobs([(0, 10, 1), (0, 10, 1)], gpu_memory_mib=np.array(memory_mib) if memory_mib else None)
        node = {"gpus": 1, "gpu_memory": limit} if limit else {"gpus": 1}
        state = State(workload, cluster_from_mapping({"nodes": [node]}, source="test"), layers=2)
        state.submit_all(np.arange(2))
        PlanCheck(state, spills_memory=True, memory_stays=True).plan(beside, [])

    checked(8000.0, 8000.0)
    checked(limit="")
    with pytest.raises(PlanError, match=r"need 17000 MiB together on GPU 0"):
        checked(9000.0, 8000.0)
    for unknown in ((), (9000.0, math.nan)):
        with pytest.raises(PlanError, match=r"together on GPU 0 of node .*, and how much GPU memory .* is unknown"):
            checked(*unknown)


class Together(Half):
    """Jobs that share GPUs run in one process."""

    starts_together = True


class InGroups(Told):
    def sharing(self, workload: Workload) -> Sharing | None:
        return Together()


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({0: on((0, 0b11)), 1: on((0, 0b110), layer=1)}, {}),
        ({0: on((0, 0b11)), 1: on((0, 0b11), layer=1)}, {0: on((0, 0b110))}),
        ({0: on((0, 0b11))}, {1: on((0, 0b1), (1, 0b1), layer=1)}),
    ],
)
def test_members_of_a_group_have_the_very_same_gpus(first: dict[int, Placement], second: dict[int, Placement]) -> None:
    plans = iter([Decision(first, (), 5.0), Decision(second)])

    def decide(snapshot: Snapshot) -> Decision:
        return next(plans, NOTHING)

    workload = jobs([(0.0, 100.0, 2), (0.0, 100.0, 2)])
    with pytest.raises(PlanError, match="it shares GPUs 0x"):
        simulate(workload, "2x4", InGroups(decide, layers=2), interval_s=0)


def test_what_a_policy_cached_in_an_earlier_run_is_forgotten() -> None:
    policy: Any = Fifo()
    workload, cluster = jobs([(0, 10, 1)]), parse_cluster("1x1")
    policy.cache = object()
    engine_of(policy, workload, cluster, State(workload, cluster))
    assert policy.cache is None
