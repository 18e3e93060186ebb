"""Muri: who shares with whom, how fast that goes, what it costs, when it changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from builders import jobs
from gpuloom.core.cluster import Cluster, cluster_from_mapping, parse_cluster
from gpuloom.core.commands import Command, Start, Stop
from gpuloom.core.decision import Decision
from gpuloom.core.errors import ClusterError, PolicyError
from gpuloom.core.snapshot import Snapshot
from gpuloom.core.state import State
from gpuloom.core.workload import Labels, Speeds, Workload
from gpuloom.engine.engine import Engine
from gpuloom.engine.progress import Progress
from gpuloom.interleave.worth import GroupSharing
from gpuloom.placement.queues import ShapeQueues
from gpuloom.policies.muri import _MANY, Muri, MuriL, MuriS, _Queues
from gpuloom.policies.registry import create_policy
from gpuloom.sim import Failure, SimResult, simulate

BOTH = pytest.mark.parametrize("policy", ["muri-s", "muri-l"])
NAN = float("nan")
A, B = (3.0, 1.0, 0.0), (1.0, 2.0, 0.0)
"""Alone 4 s and 3 s an iteration; together 4 s, half a round apart: max(3, 2) + max(1, 1)."""
LOADS, COMPUTES, SYNCS = (4.0, 0.0, 0.0), (0.0, 4.0, 0.0), (0.0, 0.0, 4.0)
UNKNOWN = (NAN, NAN, NAN)
FREE = "interleave_overhead=none"

Row = tuple[float, float, int, tuple[float, float, float]]


def woven(rows: Sequence[Row], **columns: Any) -> Workload:
    """A workload from (submit, duration, GPUs, stages)."""
    return jobs([row[:3] for row in rows], stage_s=np.array([row[3] for row in rows]), **columns)


def run(workload: Workload, cluster: str | Cluster, policy: str, *values: str, **settings: Any) -> SimResult:
    text = f"{policy}:{';'.join(values)}" if values else policy
    return simulate(workload, cluster, text, **{"restart_overhead_s": 0.0, "record_segments": True, **settings})


def moments(result: SimResult) -> list[dict[tuple[int, int], list[int]]]:
    """At each moment when somebody starts: the jobs of every GPU in use."""
    segments = result.segments
    assert segments is not None
    found = []
    for now in np.unique(segments.start_s).tolist():
        users: dict[tuple[int, int], list[int]] = {}
        for row in np.flatnonzero((segments.start_s <= now) & (segments.end_s > now)).tolist():
            for gpu in range(64):
                if segments.gpu_mask[row] >> gpu & 1:
                    users.setdefault((int(segments.node[row]), gpu), []).append(int(segments.job[row]))
        found.append(users)
    return found


def most_together(result: SimResult) -> int:
    return max(len(users) for moment in moments(result) for users in moment.values())


def groups(result: SimResult) -> set[frozenset[int]]:
    """All sets of jobs that ever held a GPU together."""
    return {frozenset(users) for moment in moments(result) for users in moment.values()}


# -- two jobs on one GPU ---------------------------------------------------------------------------------------


@BOTH
def test_two_jobs_that_are_slow_on_different_resources_share_a_gpu(policy: str) -> None:
    """In 400 s B makes the 100 iterations for which it needs 300 s alone; A is not slowed down at all."""
    result = run(woven([(0, 1000, 1, A), (0, 300, 1, B)]), "1x1", policy, FREE)
    assert result.end_s == pytest.approx([1000, 400])
    assert result.starts.tolist() == [1, 1]
    assert result.segments is not None
    assert sorted(result.segments.layer.tolist()) == [0, 1]
    assert result.segments.gpu_mask.tolist() == [1, 1]


@BOTH
def test_the_measured_overhead_slows_both_and_who_is_left_speeds_up(policy: str) -> None:
    """T = 4 s · 1.33 / 1.015. B ends after 100 T; by then A has made 100 of its 250 iterations, 4 s each alone."""
    t = 4 * 1.33 / 1.015
    result = run(woven([(0, 1000, 1, A), (0, 300, 1, B)]), "1x1", policy)
    assert result.end_s == pytest.approx([100 * t + 150 * 4, 100 * t])
    assert result.starts.tolist() == [1, 1], "who is left goes on without a restart"


@BOTH
def test_a_factor_for_each_number_of_jobs(policy: str) -> None:
    """Three take max(4, 4, 4) = 4 s an iteration, at a factor of 1.5: all end after 25 · 6 s."""
    rows = [(0.0, 100.0, 1, stages) for stages in (LOADS, COMPUTES, SYNCS)]
    three = run(woven(rows), "1x1", policy, "interleave_overhead=1.2/1.5/1.1")
    assert most_together(three) == 3
    assert three.end_s == pytest.approx([150] * 3)
    two = run(woven(rows), "1x1", policy, "interleave_overhead=1.2/1.5/1.1", "group_size=2")
    assert sorted(two.end_s.tolist()) == pytest.approx([25 * 4 * 1.2] * 2 + [25 * 4 * 1.2 + 100])


@BOTH
def test_the_solo_time_is_the_iteration_time_where_it_is_known(policy: str) -> None:
    """Alone B overlaps its own stages and needs 2 s an iteration, so that its 300 s are 150 iterations of 4 s."""
    workload = woven([(0, 1000, 1, A), (0, 300, 1, B)], iteration_s=np.array([4.0, 2.0]))
    assert run(workload, "1x1", policy, FREE).end_s == pytest.approx([1000, 600])


@BOTH
def test_gangs_share_too_and_over_several_nodes(policy: str) -> None:
    result = run(woven([(0, 1000, 8, A), (0, 300, 8, B)]), "2x4", policy, FREE)
    assert result.end_s == pytest.approx([1000, 400])
    assert len(moments(result)[0]) == 8


# -- who shares and who does not -------------------------------------------------------------------------------


@BOTH
def test_jobs_of_different_gpu_counts_never_share(policy: str) -> None:
    result = run(woven([(0, 300, 1, A), (0, 300, 2, B), (0, 400, 1, COMPUTES)]), "1x2", policy, FREE)
    assert groups(result) <= {frozenset({0}), frozenset({1}), frozenset({2}), frozenset({0, 2})}
    assert result.finished == 3


@BOTH
def test_jobs_without_stage_times_run_alone(policy: str) -> None:
    rows = [(0.0, 300.0, 1, stages) for stages in (A, UNKNOWN, B, UNKNOWN, (0.0, 0.0, 0.0))]
    result = run(woven(rows), "1x1", policy, FREE)
    assert {group for group in groups(result) if len(group) > 1} == {frozenset({0, 2})}
    assert result.finished == 5


def test_without_any_stage_times_muri_s_is_srsf() -> None:
    workload = jobs([(float(i * 70), 900.0 - 41 * i, 1) for i in range(12)])
    woven_, plain = (simulate(workload, "1x3", policy) for policy in ("muri-s", "srsf"))
    assert woven_.end_s.tolist() == plain.end_s.tolist()


@BOTH
def test_what_fits_the_cluster_is_not_made_to_share(policy: str) -> None:
    result = run(woven([(0, 1000, 1, A), (0, 300, 1, B), (5, 300, 2, B)]), "2x2", policy)
    assert most_together(result) == 1
    assert result.end_s.tolist() == [1000, 300, 305]


@pytest.mark.parametrize("interval", [0.0, 360.0])
def test_groups_of_one_are_plain_srsf(interval: float) -> None:
    rng = np.random.default_rng(3)
    rows = [
        (float(rng.uniform(0, 5000)), float(rng.uniform(1, 4000)), 1, tuple(rng.uniform(0.1, 3, 3))) for _ in range(60)
    ]
    alone = run(woven(rows), "1x4", "muri-s", "group_size=1", interval_s=interval, restart_overhead_s=9.0)
    plain = run(woven(rows), "1x4", "srsf", interval_s=interval, restart_overhead_s=9.0)
    assert alone.end_s == pytest.approx(plain.end_s)
    assert alone.starts.tolist() == plain.starts.tolist()


@pytest.mark.parametrize("cluster", ["1x8", "4x8"])
def test_groups_of_one_are_the_released_simulator_s_srsf(cluster: str) -> None:
    rng = np.random.default_rng(4)
    gpus = rng.choice([1, 2, 4, 8], 80)
    rows = [
        (float(rng.uniform(0, 9000)), float(rng.uniform(1, 4000)), int(gpus[i]), tuple(rng.uniform(0.1, 3, 3)))
        for i in range(80)
    ]
    alone = run(woven(rows), cluster, "muri-s", "group_size=1", compat="muri", restart_overhead_s=9.0)
    plain = run(woven(rows), cluster, "srsf", compat="muri", restart_overhead_s=9.0)
    assert alone.end_s == pytest.approx(plain.end_s)


@BOTH
@pytest.mark.parametrize("size", [2, 3, 4])
def test_a_gpu_has_at_most_group_size_jobs(policy: str, size: int) -> None:
    kinds = [LOADS, COMPUTES, SYNCS, (2.0, 2.0, 0.1), (0.1, 2.0, 2.0)]
    result = run(woven([(0, 500.0 + i, 1, kinds[i % 5]) for i in range(20)]), "1x2", policy, f"group_size={size}")
    assert most_together(result) in {2: {2}, 3: {2, 3}, 4: {3, 4}}[size]


# -- memory ----------------------------------------------------------------------------------------------------


def with_memory(*memory: str | None, gpus: int = 1) -> Cluster:
    nodes = [{"gpus": gpus} if m is None else {"gpus": gpus, "gpu_memory": m} for m in memory]
    return cluster_from_mapping({"nodes": nodes}, source="test.yaml")


@BOTH
@pytest.mark.parametrize("grouping", ["multiround", "greedy", "exact"])
@pytest.mark.parametrize(
    ("memory", "shares"), [("16 GiB", True), ("15 GiB", False), (None, True)], ids=["fits", "does not fit", "unknown"]
)
def test_a_group_has_to_fit_the_gpu_s_memory(policy: str, grouping: str, memory: str | None, shares: bool) -> None:
    workload = woven([(0, 1000, 1, A), (0, 300, 1, B)], gpu_memory_mib=np.array([10 * 1024.0, 6 * 1024.0]))
    result = run(workload, with_memory(memory), policy, FREE, f"grouping={grouping}")
    assert most_together(result) == 1 + shares
    assert result.end_s.max() == pytest.approx(1000 if shares else 1300)


@BOTH
def test_where_nodes_differ_a_group_has_to_fit_the_smallest_memory(policy: str) -> None:
    rows = [(0.0, 300.0, 1, A), (0.0, 300.0, 1, B)] * 3
    memory = np.full(6, 8 * 1024.0)
    assert most_together(run(woven(rows, gpu_memory_mib=memory), with_memory("32 GiB", "12 GiB"), policy)) == 1
    assert most_together(run(woven(rows, gpu_memory_mib=memory), with_memory("32 GiB", "16 GiB"), policy)) == 2
    assert most_together(run(woven(rows, gpu_memory_mib=memory), with_memory("16 GiB", None), policy)) == 2


@BOTH
def test_memory_that_is_not_known_counts_as_none(policy: str) -> None:
    workload = woven([(0, 1000, 1, A), (0, 300, 1, B)], gpu_memory_mib=np.array([NAN, 15 * 1024.0]))
    assert most_together(run(workload, with_memory("16 GiB"), policy)) == 2


# -- groups that are slower than one after another --------------------------------------------------------------

ONE_KIND = [(float(i), 500.0 - 30 * i, 1, COMPUTES) for i in range(8)]


@BOTH
@pytest.mark.parametrize("grouping", ["multiround", "greedy"])
def test_jobs_with_one_kind_of_bottleneck_do_not_share(policy: str, grouping: str) -> None:
    for slow in ("avoid", "split"):
        result = run(woven(ONE_KIND), "1x2", policy, f"grouping={grouping}", f"slow_groups={slow}")
        assert most_together(result) == 1, slow
    assert most_together(run(woven(ONE_KIND), "1x2", policy, f"grouping={grouping}", "slow_groups=keep")) > 1


def test_jobs_with_one_kind_of_bottleneck_are_not_worse_off_than_under_srsf() -> None:
    result, plain = run(woven(ONE_KIND), "1x2", "muri-s"), run(woven(ONE_KIND), "1x2", "srsf")
    assert result.avg_jct_s <= plain.avg_jct_s * (1 + 1e-9)
    assert result.makespan_s <= plain.makespan_s * (1 + 1e-9)
    kept = run(woven(ONE_KIND), "1x2", "muri-s", "slow_groups=keep")
    assert kept.avg_jct_s > plain.avg_jct_s * 1.05


@BOTH
def test_avoid_looks_at_each_group_and_not_at_pairs_only(policy: str) -> None:
    """Two of A and B gain; at a factor of 3 four of them would not, and are not put together."""
    rows = [(0.0, 400.0, 1, LOADS), (0.0, 400.0, 1, COMPUTES)] * 2
    result = run(woven(rows), "1x1", policy, "interleave_overhead=1.1/3/3")
    assert most_together(result) == 2


# -- restarts --------------------------------------------------------------------------------------------------


@BOTH
def test_the_start_of_a_group_costs_what_its_members_starts_cost_together(policy: str) -> None:
    workload = woven([(0, 1000, 1, A), (0, 300, 1, B)], restart_overhead_s=np.array([7.0, 30.0]))
    result = run(workload, "1x1", policy, FREE, restart_overhead_s=None)
    assert result.end_s == pytest.approx([1037, 437])


@BOTH
def test_a_job_that_joins_waits_for_the_interval_and_restarts_its_partner(policy: str) -> None:
    """A has worked from 10 to 360 s, both go on from 380 s."""
    workload = woven([(0, 1000, 1, A), (100, 300, 1, B)])
    result = run(workload, "1x1", policy, FREE, restart_overhead_s=10.0)
    assert result.start_s.tolist() == [0, 360]
    assert result.starts.tolist() == [2, 1]
    assert result.end_s == pytest.approx([380 + 650, 380 + 400])
    assert result.restarts == 1


@BOTH
def test_or_does_not_restart_it_if_so_told(policy: str) -> None:
    workload = woven([(0, 1000, 1, A), (100, 300, 1, B)])
    result = run(workload, "1x1", policy, FREE, "restart_partners=no", restart_overhead_s=10.0)
    assert result.start_s.tolist() == [0, 360]
    assert result.starts.tolist() == [1, 1]
    assert result.end_s[0] == pytest.approx(1010), "it has worked all the time, at full speed"
    assert result.restarts == 0


@BOTH
def test_processes_of_their_own_restart_nobody_and_wait_for_nobody(policy: str) -> None:
    """B starts at 360 s and works from 370 s; A works all the time, slower from then on."""
    workload = woven([(0, 1000, 1, A), (100, 300, 1, B)], restart_overhead_s=np.array([10.0, 40.0]))
    result = run(workload, "1x1", policy, FREE, "processes=own", restart_overhead_s=None)
    one = run(workload, "1x1", policy, FREE, "restart_partners=no", restart_overhead_s=None)
    assert result.starts.tolist() == one.starts.tolist() == [1, 1]
    assert result.start_s.tolist() == one.start_s.tolist() == [0, 360]
    assert result.end_s[1] == pytest.approx(one.end_s[1] - 10), "in one process it pays for its partner's start, too"


@BOTH
def test_a_group_that_stays_as_it_is_is_not_restarted(policy: str) -> None:
    """Others come, wait, run and end beside it at every interval."""
    others = [(100.0 * i, 100.0, 1, UNKNOWN) for i in range(1, 20)] + [(3000.0, 5.0, 2, UNKNOWN)]
    rows = [(0.0, 1500.0, 2, A), (0.0, 1500.0, 2, B), *others]
    result = run(woven(rows), "1x3", policy, FREE)
    pair = sorted(np.flatnonzero(result.job_gpus == 2).tolist())[:2]
    assert result.starts[pair].tolist() == [1, 1]
    assert frozenset(pair) in groups(result)


@BOTH
def test_between_two_intervals_only_free_gpus_are_given_away(policy: str) -> None:
    rows = [(0.0, 2000.0, 1, A), (0.0, 2000.0, 1, COMPUTES), (50.0, 10.0, 1, B), (400.0, 10.0, 1, B)]
    result = run(woven(rows), "1x3", policy, FREE)
    assert result.start_s.tolist() == [0, 0, 50, 400], "there was a free GPU"
    result = run(woven(rows), "1x2", policy, FREE)
    assert result.start_s.tolist() == [0, 0, 360, 720]
    segments = result.segments
    assert segments is not None
    ends = set(result.end_s.tolist())
    assert all(end in ends or end % 360 == 0 for end in segments.end_s.tolist()), "stopped at intervals only"


@BOTH
def test_waiting_jobs_are_grouped_on_free_gpus_between_intervals(policy: str) -> None:
    """At 100 s a GPU becomes free, and A and B start on it together."""
    rows = [(0.0, 2000.0, 1, UNKNOWN), (0.0, 100.0, 1, UNKNOWN), (20.0, 1000.0, 1, A), (20.0, 300.0, 1, B)]
    result = run(woven(rows), "1x2", policy, FREE)
    assert result.start_s.tolist() == [0, 0, 100, 100]
    assert result.end_s.tolist()[2:] == pytest.approx([1100, 500])


@BOTH
def test_groups_are_split_at_the_next_interval_once_gpus_are_free(policy: str) -> None:
    """C ends at 100 s and nobody waits; from 360 s A and B run alone, one of them on the other GPU.

    At T = 4 · 1.2 A does 4 / 4.8 of its solo work a second and B 3 / 4.8.
    """
    rows = [(0.0, 1000.0, 1, A), (0.0, 900.0, 1, B), (0.0, 100.0, 1, UNKNOWN)]
    result = run(woven(rows), "1x2", policy, "interleave_overhead=1.2")
    assert result.end_s == pytest.approx([360 + 1000 - 300, 360 + 900 - 225, 100])
    assert sorted(result.starts.tolist()) == [1, 1, 2], "one stays where it is"


# -- failures --------------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("gpus", [1, 2], ids=["one node", "two nodes"])
def test_a_node_that_fails_sends_all_members_back_and_they_finish_later(policy: str, gpus: int) -> None:
    """One pair a node, or one pair over both: whoever touches node 0 stops at 100 s, together."""
    rows = [(0.0, 1000.0, gpus, A), (0.0, 900.0, gpus, B)] * (2 if gpus == 1 else 1)
    result = run(woven(rows), "2x1", policy, failures=(Failure(0, 100.0, 600.0),))
    assert result.finished == len(rows)
    segments = result.segments
    assert segments is not None
    here = segments.node == 0
    stopped = segments.end_s == 100.0
    assert int((here & stopped).sum()) == 2
    assert not (here & (segments.start_s < 600) & (segments.end_s > 100)).any()
    for job in segments.job[here & stopped].tolist():
        assert result.starts[job] > 1
        later = segments.start_s[(segments.job == job) & (segments.start_s >= 100)]
        assert later.min() >= (360 if gpus == 1 else 600)
    if gpus == 1:
        calm = set(segments.job[~here & (segments.start_s == 0)].tolist())
        assert not calm & set(segments.job[stopped].tolist()), "the pair on the other node goes on"


# -- what they look at -----------------------------------------------------------------------------------------


class Blind:
    """A snapshot without anything that tells how long a job takes."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self.workload = replace(snapshot.workload, duration_s=np.zeros(len(snapshot.workload)), estimate_s=None)

    def __getattr__(self, name: str) -> Any:
        if name in {"remaining_s", "remaining_of", "remaining_column", "predicted_end_s"}:
            raise AssertionError(f"{name} was read")
        return getattr(self._snapshot, name)


class BlindL(MuriL):
    id = "muri-l"

    def decide(self, snapshot: Snapshot, memory: Any) -> tuple[Decision, Any]:
        return super().decide(Blind(snapshot), memory)  # type: ignore[arg-type]


class BlindS(MuriS):
    id = "muri-s"

    def decide(self, snapshot: Snapshot, memory: Any) -> tuple[Decision, Any]:
        return super().decide(Blind(snapshot), memory)  # type: ignore[arg-type]


def crowd(seed: int = 1, n: int = 40, gpus: Sequence[int] = (1, 1, 2, 4)) -> Workload:
    rng = np.random.default_rng(seed)
    kinds = [A, B, LOADS, COMPUTES, SYNCS, (1.0, 1.0, 1.0), UNKNOWN]
    rows = [
        (
            float(rng.uniform(0, 3000)),
            float(rng.uniform(100, 6000)),
            int(rng.choice(gpus)),
            kinds[rng.integers(len(kinds))],
        )
        for _ in range(n)
    ]
    workload = woven(rows)
    return replace(workload, estimate_s=workload.duration_s * rng.uniform(0.5, 2, n))


@pytest.mark.parametrize("grouping", ["multiround", "greedy"])
def test_muri_l_never_looks_at_durations(grouping: str) -> None:
    workload = crowd()
    blind = simulate(workload, "2x4", BlindL(grouping=grouping))
    assert blind.end_s.tolist() == simulate(workload, "2x4", f"muri-l:grouping={grouping}").end_s.tolist()
    with pytest.raises(AssertionError, match="remaining_s was read"):
        simulate(workload, "2x4", BlindS())


def test_until_the_first_job_ends_muri_l_decides_alike_whatever_the_durations() -> None:
    workload = crowd()
    starts = []
    for factor in (1.0, 7.0):
        result = run(replace(workload, duration_s=workload.duration_s * factor), "2x4", "muri-l")
        segments = result.segments
        assert segments is not None
        rows = zip(segments.start_s.tolist(), segments.job.tolist(), segments.node.tolist(), strict=True)
        starts.append((result.end_s.min(), list(rows)))
    (first, one), (_, other) = starts
    until = [[row for row in rows if row[0] < first] for rows in (one, other)]
    assert until[0] == until[1]
    assert len(until[0]) > 8


def test_muri_s_takes_the_shortest_gpu_time_and_muri_l_the_least_attained() -> None:
    def starts(policy: str, *rows: Row) -> list[float]:
        return run(woven(rows), "1x2", policy).start_s.tolist()

    first, long, wide = (0.0, 500.0, 2, UNKNOWN), (10.0, 5000.0, 1, UNKNOWN), (20.0, 100.0, 2, UNKNOWN)
    assert starts("muri-s", first, long) == [0, 500], "140 s · 2 GPUs are left of the first"
    assert starts("muri-l", first, long) == [0, 360]
    assert starts("muri-s", first, wide) == [0, 360]
    assert starts("muri-l", first, wide) == [0, 360]
    assert starts("muri-s", first, long, wide) == [0, 500 + 100, 360]
    assert starts("muri-l", first, long, wide) == [0, 460, 360], "equal: more GPUs first"


def test_an_interval_before_which_nothing_has_happened_changes_nothing() -> None:
    """At 720 s the second has attained more than the third; swapping them at every interval would cost restarts."""
    rows = [(0.0, 5000.0, 1, UNKNOWN), (10.0, 400.0, 1, UNKNOWN), (20.0, 300.0, 1, UNKNOWN)]
    assert run(woven(rows), "1x1", "muri-l").start_s.tolist() == [0, 360, 760]


@pytest.mark.parametrize(("setting", "order"), [("yes", [200, 0]), ("no", [0, 100])])
def test_the_first_estimate_orders_jobs_that_have_not_run_yet(setting: str, order: list[float]) -> None:
    """The trace believes that the first one takes longer than the second, which is wrong."""
    workload = woven([(0, 100, 1, UNKNOWN), (0, 200, 1, UNKNOWN)], estimate_s=np.array([500.0, 300.0]))
    assert run(workload, "1x1", "muri-s", f"first_estimate={setting}", interval_s=0.0).start_s.tolist() == order


# -- clusters with several GPU models --------------------------------------------------------------------------

MIXED = "1x2:V100,1x2:K80"


@BOTH
def test_groups_stay_on_gpus_that_all_members_may_use(policy: str) -> None:
    kinds, wishes = [A, B], ["V100", "K80", "", "V100|K80"]
    rows = [(0.0, 300.0 + i, 1 + i % 2, kinds[i // 2 % 2]) for i in range(32)]
    workload = woven(rows, gpu_type=Labels.of([wishes[i // 4 % 4] for i in range(32)]))
    result = run(workload, MIXED, policy, FREE)
    assert result.finished == 32
    assert most_together(result) > 1
    segments = result.segments
    assert segments is not None
    for job, node in zip(segments.job.tolist(), segments.node.tolist(), strict=True):
        assert ("V100", "K80")[node] in (wishes[job // 4 % 4] or "V100|K80")


@BOTH
def test_a_group_s_speed_is_a_share_of_what_its_gpus_give_each_member(policy: str) -> None:
    """Half as fast on a K80: the same 100 iterations of B take twice as long; A runs at half speed as well."""
    workload = woven(
        [(0, 1000, 1, A), (0, 300, 1, B)], speeds=Speeds(("V100", "K80"), np.array([[1.0, 0.5], [1.0, 0.5]]))
    )
    assert run(workload, "1x1:K80", policy, FREE).end_s == pytest.approx([2000, 800])
    assert run(workload, "1x1:V100", policy, FREE).end_s == pytest.approx([1000, 400])


@BOTH
def test_jobs_for_one_model_are_grouped_though_the_other_one_lies_idle(policy: str) -> None:
    workload = woven([(0, 1000, 1, A), (0, 300, 1, B)], gpu_type=Labels.of(["V100", "V100"]))
    assert run(workload, "1x1:V100,1x8:K80", policy, FREE).end_s == pytest.approx([1000, 400])


@BOTH
def test_jobs_share_when_gpus_are_free_only_in_pieces(policy: str) -> None:
    """Three jobs of 3 GPUs on two nodes of 5: the GPUs suffice, the nodes do not."""
    workload = woven([(0, 1000, 3, A), (0, 1000, 3, B), (0, 1000, 3, A)])
    assert sorted(run(workload, "2x5", policy, FREE).start_s.tolist()) == [0, 0, 0]


@BOTH
def test_first_fit_is_for_nodes_that_are_alike(policy: str) -> None:
    with pytest.raises(ClusterError, match="alike"):
        run(woven([(0, 1000, 4, A)]), "1x8,1x4", policy, "first_fit=yes")
    with pytest.raises(ClusterError, match="alike"):
        run(woven([(0, 1000, 4, A)]), "1x4:V100,1x4:K80", policy, compat="muri")


# -- noise -----------------------------------------------------------------------------------------------------


@BOTH
def test_noise_changes_plans_and_comes_from_the_seed(policy: str) -> None:
    rng = np.random.default_rng(8)
    rows = [(0.0, float(rng.uniform(500, 3000)), 1, tuple(rng.uniform(0.1, 3, 3))) for _ in range(24)]
    workload = woven(rows)

    def ends(*values: str, **settings: Any) -> list[float]:
        return run(workload, "1x4", policy, *values, **settings).end_s.tolist()

    noisy = ends("profile_noise=0.8")
    assert noisy == ends("profile_noise=0.8")
    assert noisy != ends()
    assert noisy != ends("profile_noise=0.8", "seed=1")
    assert ends("profile_noise=0.8", "seed=1") == ends("profile_noise=0.8", seed=1)
    assert ends("seed=1") == ends(), "without noise nothing is drawn"


# -- through an engine, step by step ---------------------------------------------------------------------------


class Notes:
    """An executor that writes commands down."""

    def __init__(self) -> None:
        self.commands: list[Command] = []

    def apply(self, commands: Sequence[Command], now_s: float) -> None:
        self.commands.extend(commands)

    def taken(self) -> list[Command]:
        taken, self.commands = self.commands, []
        return taken


def engine(workload: Workload, cluster: str, text: str, *, overhead: float = 0.0, **more: Any) -> tuple[Engine, Notes]:
    nodes, policy, notes = parse_cluster(cluster), create_policy(text), Notes()
    progress = Progress(workload, nodes, np.full(len(workload), overhead), policy.sharing(workload))
    return Engine(State(workload, nodes, layers=policy.max_jobs_per_gpu), policy, progress, notes, **more), notes


@BOTH
def test_rates_while_partners_come_and_go(policy: str) -> None:
    workload = woven([(0, 1000, 1, A), (0, 300, 1, B), (0, 10, 1, UNKNOWN)])
    made, notes = engine(workload, "1x1", f"{policy}:{FREE}", overhead=10.0)
    state = made.state
    made.take_in(0.0, arrived=[0])
    made.decide(0.0)
    assert (state.rate[0], state.work_from_s[0]) == (1.0, 10.0)
    made.take_in(100.0, arrived=[1])
    made.decide(100.0, may_preempt=False)
    assert list(state.placements) == [0], "no GPU is free"
    assert [type(command) for command in notes.taken()] == [Start]
    made.decide(360.0)
    assert sorted(state.placements) == [0, 1]
    commands = [(type(command), command.job) for command in notes.taken()]
    assert commands.index((Stop, 0)) < commands.index((Start, 0))
    assert (Start, 1) in commands
    assert (state.starts[0], state.starts[1]) == (2, 1)
    assert (state.rate[0], state.rate[1]) == pytest.approx((1.0, 0.75))
    assert (state.work_from_s[0], state.work_from_s[1]) == (380.0, 380.0)
    assert state.remaining_at(0, 370.0) == pytest.approx(650)
    assert state.remaining_at(1, 480.0) == pytest.approx(300 - 75)
    made.take_in(500.0, finished=[0])
    assert state.rate[1] == 1.0, "alone again"
    made.decide(500.0, may_preempt=False)
    assert state.starts[1] == 1


@BOTH
def test_what_does_not_change_is_not_commanded(policy: str) -> None:
    made, notes = engine(woven([(0, 1000, 1, A), (0, 300, 1, B)]), "1x1", policy)
    made.take_in(0.0, arrived=[0, 1])
    made.decide(0.0)
    assert len(notes.taken()) >= 2
    for now in (10.0, 20.0, 360.0):
        made.decide(now)
    assert notes.taken() == []


@BOTH
def test_with_free_gpus_and_nobody_waiting_it_asks_for_the_next_interval(policy: str) -> None:
    made, _ = engine(woven([(0, 1000, 1, A), (0, 300, 1, B), (0, 100, 1, UNKNOWN)]), "1x2", policy)
    made.take_in(0.0, arrived=[0, 1, 2])
    made.decide(0.0)
    made.take_in(100.0, finished=[2])
    assert made.decide(100.0, may_preempt=False) == 100.0
    assert made.decide(360.0) == float("inf")
    assert {placement.masks for placement in made.state.placements.values()} == {(1,), (2,)}


@BOTH
def test_every_step_of_a_group_costs_the_sum_under_compat(policy: str) -> None:
    """The released simulator charges every running job, at every event, what its whole group's start costs."""
    made, _ = engine(
        woven([(0, 1000, 1, A), (0, 300, 1, B)]), "1x1", f"{policy}:{FREE}", overhead=10.0, charge_every_step=True
    )
    made.take_in(0.0, arrived=[0, 1])
    made.decide(0.0)
    made.take_in(100.0)
    assert made.state.remaining_s[0] == pytest.approx(1000 - 80)
    assert made.state.remaining_s[1] == pytest.approx(300 - 80 * 0.75)
    made.take_in(200.0, finished=[1])
    made.decide(200.0)
    made.take_in(300.0)
    assert made.state.remaining_s[0] == pytest.approx(1000 - 2 * 80 - 90), "alone, it pays for itself only"


# -- parameters ------------------------------------------------------------------------------------------------


@BOTH
def test_parameters_as_they_are_written(policy: str) -> None:
    made = create_policy(f"{policy}:group_size=2;ordering=worst;grouping=greedy;slow_groups=keep;profile_noise=0.5")
    assert isinstance(made, Muri)
    assert (made.values["group_size"], made.values["ordering"], made.values["grouping"]) == (2, "worst", "greedy")
    for text, factors in {
        "none": (1.0, 1.0, 1.0, 1.0),
        "1.2": (1.0, 1.2, 1.2, 1.2),
        "1.3/1.5/1.4": (1.0, 1.3, 1.5, 1.4),
        "measured": pytest.approx((1.0, 1.33 / 1.015, 1.5 / 1.015, 1.37 / 1.015)),
    }.items():
        assert create_policy(f"{policy}:interleave_overhead={text}").values["interleave_overhead"] == factors
    assert made.values["interleave_overhead"] == create_policy(policy).values["interleave_overhead"]


@BOTH
@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("group_size=5", r"group_size='5': must be 1 to 4"),
        ("group_size=0", r"group_size='0': must be a whole number of at least 1"),
        ("group_size=two", r"group_size='two': must be a whole number"),
        ("interleave_overhead=a/b", r"interleave_overhead='a/b'"),
        ("interleave_overhead=1.3/1.5", r"must be 'measured', 'none', one factor, or three for 2, 3 and 4 jobs"),
        ("interleave_overhead=1.3/0/1.4", r"at least 1"),
        ("interleave_overhead=nan", r"must be a finite number"),
        ("ordering=fastest", r"must be one of best, worst, none"),
        ("grouping=blossom", r"must be one of multiround, exact, greedy"),
        ("slow_groups=yes", r"must be one of avoid, split, keep"),
        ("profile_noise=1.5", r"must be between 0 and 1"),
        ("profile_noise=-0.1", r"must be between 0 and 1"),
        ("restart_partners=maybe", r"must be yes or no"),
        ("seed=-1", r"must be a whole number of at least 0"),
    ],
)
def test_wrong_parameters_are_refused_by_name(policy: str, value: str, message: str) -> None:
    with pytest.raises(PolicyError, match=rf"policy '{policy}': .*{message}"):
        create_policy(f"{policy}:{value}")


def test_only_muri_s_has_a_first_estimate() -> None:
    with pytest.raises(PolicyError, match="policy 'muri-l' has no parameter 'first_estimate'"):
        create_policy("muri-l:first_estimate=yes")


# -- many jobs at once -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("changed", [3, _MANY])
def test_queues_that_many_jobs_leave_and_join_are_those_of_job_by_job(changed: int) -> None:
    rng = np.random.default_rng(changed)
    workload = jobs([(0.0, 100.0, gpus) for gpus in rng.choice([1, 2, 4], 3 * _MANY).tolist()])
    state = State(workload, parse_cluster("8x8"))
    keys = rng.integers(0, 40, len(workload)).astype(float)  # many are equal
    first = rng.permutation(len(workload))
    state.submit_all(first[: 2 * _MANY])
    view = Snapshot(state, np.zeros(len(workload)))
    at_once, one_by_one = (cls(view, lambda _, job: keys[job]) for cls in (_Queues, ShapeQueues))
    gone, come = first[:changed].tolist(), first[2 * _MANY :][:changed].tolist()
    keys[gone] += 1  # they were stored by what they had
    at_once.exchange(view, gone, come)
    for job in gone:
        one_by_one.remove(job)
    for job in come:
        one_by_one.add(view, job)
    assert at_once.waiting == one_by_one.waiting
    assert len(at_once) == len(one_by_one) == 2 * _MANY
    at_once.exchange(view, come, gone)
    for job in come:
        one_by_one.remove(job)
    for job in gone:
        one_by_one.add(view, job)
    assert at_once.waiting == one_by_one.waiting


def test_plans_and_progress_share_one_model_and_a_twin_has_its_own() -> None:
    workload = woven([(0, 100, 1, A), (0, 100, 1, B)])
    policy = create_policy("muri-l")
    assert isinstance(policy, MuriL)
    model = policy.times(workload)
    assert policy.times(workload) is model
    twin = policy.twin()
    assert isinstance(twin, MuriL)
    assert twin.times(workload) is not model
    assert policy.times(replace(workload)) is not model


def test_groups_that_run_already_are_taken_over_at_the_rates_that_they_have() -> None:
    rng = np.random.default_rng(5)
    rows: list[Row] = [(0.0, 500.0, int(rng.choice([1, 2, 8, 12])), (A, B, LOADS, UNKNOWN)[n % 4]) for n in range(120)]
    workload, cluster, policy = woven(rows), parse_cluster("4x8"), create_policy("muri-l")

    notes = Notes()

    def engine_of(state: State) -> Engine:
        return Engine(state, policy, Progress(workload, cluster, np.zeros(120), policy.sharing(workload)), notes)

    ran = engine_of(State(workload, cluster, layers=4))
    ran.take_in(0.0, arrived=range(120))
    ran.decide(0.0)
    running = np.array(list(ran.state.placements), dtype=np.intp)
    placements = list(ran.state.placements.values())
    assert cluster.gpus < sum(placement.gpus for placement in placements)
    sharing = policy.sharing(workload)
    assert isinstance(sharing, GroupSharing)
    shares = sharing.rates(running.tolist(), placements)
    assert shares is not None
    state = State(workload, cluster, layers=4)
    state.submit_all(running)
    zero = np.zeros(len(running))
    state.adopt(running, placements, run_from_s=zero, work_from_s=zero, rate=np.array(shares))
    assert state.rate_column.tolist() == ran.state.rate_column.tolist()
    assert min(shares) < 1.0
    notes.taken()
    engine_of(state).settle(0.0)
    assert not notes.commands  # nobody's rate changes
