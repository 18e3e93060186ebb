"""A plan by value: what a job is worth, worked out by hand; into which rooms groups go; and what a plan scores."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from builders import jobs
from gpuloom.core.cluster import parse_cluster
from gpuloom.core.decision import Placement
from gpuloom.core.workload import Labels, Speeds
from gpuloom.interleave.valued import Group
from gpuloom.placement.pool import pools_of
from gpuloom.policies.valued_plan import Planner
from gpuloom.policies.valued_score import Score
from gpuloom.policies.weave import _Woven
from test_policies_hlas import Bench

STAGES = np.array([[0.9, 0.1, 0.0], [0.1, 0.9, 0.0]])
"""Two kinds of jobs that use different resources; alone an iteration takes a second."""


def planner(
    rows: Sequence[tuple[float, float, int]],
    cluster: str,
    *,
    now_s: float = 0.0,
    overhead_s: float = 0.0,
    **columns: Any,
) -> tuple[Planner, Any]:
    """One that weighs GPU models if there are speeds, and knows durations; all jobs wait."""
    values = columns.pop("values", {})
    it = Bench(jobs(rows, **columns), parse_cluster(cluster), "muri-xs", overhead_s=overhead_s)
    for job, row in enumerate(rows):
        it.state.submit(job, row[0])
    snapshot = it.engine.snapshot
    snapshot.now_s = now_s
    policy = _Woven(durations="known", **values)
    policy.weighs_models = "speeds" in columns
    return Planner(snapshot, policy), snapshot


@pytest.mark.parametrize(
    ("values", "weight", "factors"),
    [
        ({"ageing": 0.0}, None, [1.0, 1.0]),
        ({"ageing": 1.0}, None, [2.0, 1.125]),  # 1 + the share of its time that it has waited
        ({"ageing": 0.0, "patience": 0.5}, None, [2.0, 1.0]),  # twice the limit, a quarter of it
        ({"ageing": 0.0, "patience": 0.0625}, None, [16.0, 2.0]),
        ({"ageing": 0.0}, [1.0, 3.0], [1.0, 3.0]),
    ],
)
def test_what_a_job_is_worth(values: dict[str, float], weight: list[float] | None, factors: list[float]) -> None:
    """Per GPU-second that it needs, to the power of a half: 1 / √100, and 2 / √(2 · 800)."""
    it, snapshot = planner(
        [(0, 100, 1), (0, 800, 2)],
        "1x2",
        now_s=100.0,
        values={"power": 0.5, "patience": 20.0, **values},
        weight=None if weight is None else np.array(weight),
    )
    found, value = it._values(snapshot, None)
    assert found.tolist() == [0, 1]
    worth = np.array([0.1, 0.05]) * factors
    assert value.tolist() == pytest.approx((worth / worth.max()).tolist())


def test_running_jobs_come_first_and_by_what_is_left() -> None:
    workload = jobs([(0, 100, 1), (0, 300, 1), (0, 50, 1)])
    it = Bench(workload, parse_cluster("1x2"), "muri-xs:power=1;ageing=0")
    it.at(0.0, arrived=[1, 0]).at(60.0, arrived=[2])
    assert sorted(it.running) == [0, 2]  # job 1 was stopped after 60 of its 300 s
    it.engine.snapshot.now_s = 70.0
    found, value = it.policy.cache._values(it.engine.snapshot, None)
    assert found.tolist() == [*it.state.placements, 1]
    left = {0: 30.0, 2: 40.0, 1: 240.0}
    assert value.tolist() == pytest.approx([30.0 / left[job] for job in found.tolist()])


@pytest.mark.parametrize(
    ("count", "share"), [(7, 0.0), (8, 0.0), (9, 0.5), (10, 1.0), (16, 1.0)]
)  # a crowd asks for a quarter more than there is
def test_how_much_size_counts_goes_by_how_many_there_are(count: int, share: float) -> None:
    """The first job needs 100 s, the others 200 s; it does twice as much on its best GPUs."""
    speeds = Speeds(("A", "B"), np.array([[2.0, 0.5]] + [[1.0, 0.5]] * (count - 1)))
    rows = [(0.0, 100.0, 1)] + [(0.0, 200.0, 1)] * (count - 1)
    it, snapshot = planner(rows, "1x4:A,1x4:B", now_s=50.0, speeds=speeds, values={"power": 0.4, "ageing": 0.3})
    snapshot.arrived = list(range(count))
    _, value = it._values(snapshot, None)
    own = share * 0.4 + (1 - share) * 0.1
    wanted = own * math.log(2.0) + share * 0.3 * math.log(1.5 / 1.25) - math.log(2.0)
    assert math.log(value[0] / value[1]) == pytest.approx(wanted)
    assert value[1:].tolist() == [value[1]] * (count - 1)


@pytest.mark.parametrize(
    ("arrived", "evicted", "by_time", "by_gpus"),
    [([0, 1], [], 0.1, 0.5), ([1], [0], 0.1, 0.5), ([1], [], 0.4, 0.6), ([], [], 0.4, 0.6)],
)
def test_whoever_waits_makes_a_crowd(arrived: list[int], evicted: list[int], by_time: float, by_gpus: float) -> None:
    """Two jobs on 8 GPUs, of 4 GPUs and 100 s and of 1 GPU and 200 s: those that came just now do not wait yet."""
    speeds = Speeds(("A", "B"), np.ones((2, 2)))
    rows = [(0.0, 100.0, 4), (0.0, 200.0, 1)]
    it, snapshot = planner(rows, "1x4:A,1x4:B", speeds=speeds, values={"power": 0.4, "ageing": 0.0})
    snapshot.arrived, snapshot.evicted = arrived, evicted
    _, value = it._values(snapshot, None)
    assert math.log(value[0] / value[1]) == pytest.approx(by_time * math.log(2.0) + by_gpus * math.log(4.0))


def test_worth_by_gpu_model_and_what_it_costs_to_leave() -> None:
    """A start takes 90 of the 900 s that are looked ahead; who runs on B, at half the speed, has it already."""
    speeds = Speeds(("A", "B"), np.array([[1.0, 0.5], [1.0, 0.25], [1.0, 0.0]]))
    it, _ = planner([(0, 100, 1)] * 3, "1x1:A,1x2:B", speeds=speeds)
    speed = it._speed_by_pool
    assert speed is not None
    found = it._by_pool(np.arange(3), np.array([2.0, 4.0, 6.0]), speed, it._held_at([1], [90.0]))
    assert found.tolist() == pytest.approx(np.array([[1.8, 1.0], [4.0, 1.0], [6.0, 0.0]]))
    plain = it._by_pool(np.arange(3), np.array([2.0, 4.0, 6.0]), speed, it._held_at([], []))
    assert plain.tolist() == [[2.0, 1.0], [4.0, 1.0], [6.0, 0.0]]
    dear = it._by_pool(np.arange(1), np.array([2.0]), speed, it._held_at([0], [1e9]))
    assert dear.tolist() == [[2.0, 0.0]]
    rooms = pools_of(parse_cluster("1x1:A,1x2:B"))
    best = it._best_pools(np.arange(3), np.array([2.0, 4.0, 6.0]), rooms)
    assert best is not None
    assert best.tolist() == [1, 1, 0]  # job 2 can't use B


def test_gangs_bid_for_whole_nodes() -> None:
    """By prices alone the job of one GPU has A, where it gains most per GPU, and one gang B: no other gang fits
    on the three GPUs beside it. Two gangs are worth more."""
    rows = [(0.0, 1000.0, 1), (0.0, 1000.0, 4), (0.0, 300.0, 4), (0.0, 1e5, 4)]
    speeds = Speeds(("A", "B"), np.array([[1.0, 0.5]] * len(rows)))
    it, snapshot = planner(rows, "1x4:A,1x4:B", speeds=speeds, values={"power": 0.4, "ageing": 0.0})
    run = it.plan(snapshot, None).run
    assert {job: place.nodes for job, place in run.items()} == {1: (1,), 2: (0,)}


def score_of(
    it: Planner,
    snapshot: Any,
    together: dict[Any, list[int]],
    held: dict[int, Placement] | None = None,
    value: Sequence[float] = (),
) -> Score:
    """`held`, `value`: of the jobs that run."""
    held = held or {}
    now: Any = SimpleNamespace(placements=held, again_s=snapshot.again_s)
    jobs = np.array([*held], dtype=np.intp)
    speed, pools = it._speed_by_pool, it._pool_of_node
    return Score(now, together, jobs, np.array(value), it._solo_s, speed, pools, it._horizon_s, own=it._own)


def test_a_start_is_taken_off_the_score_of_a_new_group() -> None:
    it, snapshot = planner([(0, 100, 1)] * 3, "2x2", overhead_s=90.0, stage_s=STAGES[[0, 1, 0]])
    table = it._tables[0]
    column = it._column_of.tolist()
    pair = Group(table, 0, [0, 1], column[:2], [1.0, 1.0])
    lone = Group(table, 0, [2], column[2:], [3.0])
    places = [Placement((0,), (1,)), Placement((1,), (2,))]
    going = {((0,), (1,)): [1, 0], ((1,), (2,)): [2]}
    assert it._horizon_s == 900.0
    assert lone.value == pytest.approx(3.0)
    assert score_of(it, snapshot, going).of([pair, lone], places) == pytest.approx(pair.value + 3.0)
    assert score_of(it, snapshot, {}).of([pair, lone], places) == pytest.approx(pair.value * 0.8 + 2.7)
    moved = {((1,), (1,)): [0, 1]}  # of one model it does not matter where
    assert score_of(it, snapshot, moved).of([pair], places[:1]) == pytest.approx(pair.value)
    apart = {((0,), (1,)): [2, 0]}
    assert score_of(it, snapshot, apart).of([lone], places[:1]) == pytest.approx(2.7)


def test_only_who_joins_has_to_start_where_each_has_its_own_process() -> None:
    """Job 0 runs on GPU 0 of node 0 and goes on there while job 1 joins it: a tenth of what job 1 brings is lost."""
    it, snapshot = planner(
        [(0, 100, 1)] * 3, "2x2", overhead_s=90.0, stage_s=STAGES[[0, 1, 0]], values={"processes": "own"}
    )
    column = it._column_of.tolist()
    pair = Group(it._tables[0], 0, [0, 1], column[:2], [3.0, 1.0])
    here = Placement((0,), (1,))
    going: dict[Any, list[int]] = {((0,), (1,)): [0]}
    assert score_of(it, snapshot, going, {0: here}, [3.0]).of([pair], [here]) == pytest.approx(pair.value * 0.975)
    both = {0: here, 1: Placement((1,), (1,))}
    going |= {((1,), (1,)): [1]}
    # Of two that run apart one stays.
    assert score_of(it, snapshot, going, both, [3.0, 1.0]).of([pair], [here]) == pytest.approx(pair.value * 0.975)
    assert score_of(it, snapshot, {}).of([pair], [here]) == pytest.approx(pair.value * 0.9)
    lone = Group(it._tables[0], 0, [0], column[:1], [3.0])
    parted = {((0,), (1,)): [0, 1]}
    assert score_of(it, snapshot, parted, {0: here, 1: here}, [3.0, 1.0]).of([lone], [here]) == lone.value


def test_on_another_gpu_model_a_group_is_new() -> None:
    speeds = Speeds(("A", "B"), np.ones((1, 2)))
    it, snapshot = planner([(0, 100, 1)], "1x1:A,1x1:B", overhead_s=450.0, speeds=speeds)
    group = Group(it._tables[0], 0, [0], [0], [2.0])
    here = Placement((0,), (1,))
    score = score_of(it, snapshot, {((0,), (1,)): [0]}, {0: here}, [2.0])
    for node, wanted in ((0, 2.0), (1, 1.0)):
        assert score.of([group], [Placement((node,), (1,))]) == pytest.approx(wanted)


@pytest.mark.parametrize(("overhead_s", "starts", "stops"), [(45.0, 0.05, 0.0), (300.0, 0.055, 0.5 * (1 / 3 - 0.055))])
def test_whoever_is_stopped_pays_for_dear_starts_on_several_models(
    overhead_s: float, starts: float, stops: float
) -> None:
    """Job 0 runs at half speed on B. Job 1, which waits, is to take its place; the horizon is 900 s."""
    speeds = Speeds(("A", "B"), np.array([[1.0, 0.5], [1.0, 1.0]]))
    it, snapshot = planner([(0, 100, 1)] * 2, "1x1:A,1x1:B", overhead_s=overhead_s, speeds=speeds)
    here = Placement((1,), (1,))
    score = score_of(it, snapshot, {((1,), (1,)): [0]}, {0: here}, [4.0])
    goes_on, comes = Group(it._tables[0], 0, [0], [0], [2.0]), Group(it._tables[0], 0, [1], [0], [6.0])
    assert score.of([goes_on], [here]) == pytest.approx(2.0)
    assert score.of([comes], [here]) == pytest.approx(6.0 * (1 - starts) - 4.0 * 0.5 * stops)
    both = [here, Placement((0,), (1,))]
    assert score.of([goes_on, comes], both) == pytest.approx(2.0 + 6.0 * (1 - starts))


# -- rooms -----------------------------------------------------------------------------------------------------


def test_who_could_be_placed_the_best_first() -> None:
    """Six jobs of one GPU (two kinds), one of four; a GPU holds four at most."""
    kinds = [0, 1, 0, 0, 1, 0, 0]
    it, _ = planner([(0, 100, 1)] * 6 + [(0, 100, 4)], "1x4", stage_s=STAGES[kinds])
    filling, value = it._filling, np.array([1.0, 5.0, 3.0, 2.0, 6.0, 3.0, 9.0])
    columns = it._column_of.tolist()
    shape = it._shape_of.tolist()
    found = filling.stacks(np.arange(7), value, 0, 3, {3})
    assert found == {
        shape[0]: {columns[0]: ([2, 5, 0], [3.0, 3.0, 1.0]), columns[1]: ([4, 1], [6.0, 5.0])},
    }
    assert filling.stacks(np.arange(7), value, 0, 4, set())[shape[6]] == {columns[6]: ([6], [9.0])}
    assert filling.stacks(np.arange(7), value, 0, 0, set()) == {}
    many, _ = planner([(0, 100, 1)] * 6, "1x4", stage_s=STAGES[[0] * 6])
    assert many._filling.stacks(np.arange(6), np.ones(6), 0, 1, set()) == {0: {0: ([0, 1, 2, 3], [1.0] * 4)}}


def test_stacks_go_by_the_speed_there() -> None:
    speeds = Speeds(("A", "B"), np.array([[1.0, 0.5], [0.25, 1.0]]))
    wish = Labels.of(["", "B"])
    it, _ = planner([(0, 100, 1)] * 2, "1x2:A,1x2:B", speeds=speeds, gpu_type=wish)
    filling, shape = it._filling, it._shape_of.tolist()
    value = np.array([2.0, 3.0])
    assert filling.stacks(np.arange(2), value, 0, 2, set()) == {shape[0]: {0: ([0], [2.0])}}
    assert filling.stacks(np.arange(2), value, 1, 2, set()) == {
        shape[0]: {0: ([0], [1.0])},
        shape[1]: {0: ([1], [3.0])},
    }
    assert filling.choices(0, shape[0], -1) == (0, 1)
    assert list(filling.choices(0, shape[0], 1)) == [1, 0]
    assert list(filling.choices(0, shape[0], 0)) == [0, 1]
    assert (filling.speed(0, 1), filling.speed(1, 0)) == (0.5, 0.25)


@pytest.mark.parametrize(
    ("rows", "best", "nodes"),
    [
        ([1, 2, 4], None, {2: 0, 1: 1, 0: 1}),  # the largest first, and all fit
        ([1, 2, 5], None, {}),  # eight GPUs in all, but not five on a node
        ([4, 4, 1], None, {}),  # nine
        ([1, 1, 1], [1, 0, 1], {0: 1, 1: 0, 2: 1}),
        ([1, 1, 4], [1, 1, 1], {2: 1, 0: 0, 1: 0}),  # the wish of the largest comes true
    ],
)
def test_all_alone_or_nobody(rows: list[int], best: list[int] | None, nodes: dict[int, int]) -> None:
    speeds = Speeds(("A", "B"), np.array([[1.0, 0.5]] * 3))
    it, _ = planner([(0, 100, gpus) for gpus in rows], "1x4:A,1x4:B", speeds=speeds)
    rooms = pools_of(parse_cluster("1x4:A,1x4:B"))
    groups: list[Group] = []
    places: list[Placement] = []
    placed: set[int] = set()
    wish = None if best is None else np.array(best)
    it._filling.alone(dict(enumerate(rooms)), np.arange(3), np.full(3, 2.0), placed, groups, places, wish)
    assert {group.jobs[0]: place.nodes[0] for group, place in zip(groups, places, strict=True)} == nodes
    assert placed == set(nodes)
    assert [group.values for group in groups] == [[2.0 if node == 0 else 1.0] for node in nodes.values()]
    assert sum(room.free_gpus for room in rooms) == 8 - (sum(rows) if nodes else 0)


def test_jobs_that_are_placed_already_are_left_out() -> None:
    it, _ = planner([(0, 100, 2)] * 3, "1x4")
    for placed, added in (({0}, [1, 2]), ({0, 1, 2}, []), (set(), [])):
        groups: list[Group] = []
        rooms = pools_of(parse_cluster("1x4"))
        it._filling.alone({0: rooms[0]}, np.arange(3), np.ones(3), set(placed), groups, [])
        assert [group.jobs[0] for group in groups] == added


def test_members_that_do_not_pay_after_all_wait() -> None:
    """Planned as if it did: the least valuable leaves, unless the group runs already."""
    it, _ = planner([(0, 100, 1)] * 3, "1x4", stage_s=np.array([[0.0, 1.0, 0.0]] * 3))
    table = it._tables[0]
    assert not table.worth.pays(it._times.profiles_of([0, 1]))
    for clustered, running, left in ((True, [], [2]), (False, [], [0, 1, 2]), (True, [[2, 1, 0]], [0, 1, 2])):
        table.clustered = clustered
        group = Group(table, 0, [0, 1, 2], [0, 0, 0], [2.0, 1.0, 3.0])
        it._filling.trim([group], running)
        assert (group.jobs, len(group.columns), group.total) == (left, len(left), 3.0 if left == [2] else 6.0)


# -- what is learnt of durations -------------------------------------------------------------------------------


def test_ends_are_seen_by_gpu_count_and_work_done() -> None:
    workload = jobs([(0, 1000, 1), (0, 1000, 4)])
    it = Bench(workload, parse_cluster("1x1,1x4"), "muri-xl").at(0.0, arrived=[0, 1])
    memory = it.engine.memory
    assert (memory.classes.tolist(), memory.exposure.sum(), memory.ends.sum()) == ([1, 4], 0.0, 0.0)
    it.at(330.0, finished=[1])  # it did 330 s of work: the first bin of 300 s, and 30 s of the second of 75 s
    assert memory.ends[:, :3].tolist() == [[0.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
    assert memory.exposure[1, :3].tolist() == pytest.approx([1.0, 0.4, 0.0])
    assert memory.exposure[0].sum() == 0.0


def test_a_job_that_has_outlived_most_is_expected_to_go_on() -> None:
    it = Bench(jobs([(0, 1e6, 1), (0, 1e6, 1)]), parse_cluster("1x2"), "muri-xl:sticky=0.25").at(0.0, arrived=[0, 1])
    memory = it.engine.memory
    memory.exposure[:, 0], memory.ends[:, 0] = 100.0, 90.0
    memory.exposure[:, 1:] = 50.0
    young, old = it.policy.time_s(it.engine.snapshot, memory, np.arange(2), np.array([1e6, 1e6 - 400.0]))
    assert young * 5 < old
    assert it.policy.bonus() == 1.25


def test_what_was_learnt_of_other_gpu_counts_is_kept() -> None:
    policy: Any = Bench(jobs([(0, 1, 1), (0, 1, 4)]), parse_cluster("1x4"), "muri-xl").policy
    memory = policy.new_memory(jobs([(0, 1, 1), (0, 1, 4)]), parse_cluster("1x4"))
    memory.ends[:, 0], memory.exposure[:, 1] = (3.0, 5.0), (7.0, 9.0)
    rows = np.array([-1], dtype=np.intp)
    found = policy.carried(memory, rows, rows, jobs([(0, 1, 2)]), parse_cluster("1x4"))
    assert found.classes.tolist() == [1, 2, 4]
    assert found.ends[:, 0].tolist() == [3.0, 0.0, 5.0]
    assert found.exposure[:, 1].tolist() == [7.0, 0.0, 9.0]
    assert found.rows(np.array([4, 1, 2])).tolist() == [2, 0, 1]


@pytest.mark.parametrize(
    ("text", "cluster", "share"),
    [
        ("muri-s:grouping=greedy", "1x2", False),  # both fit: nobody is made to share
        ("muri-s:grouping=greedy", "1x1", True),
        ("muri-s:slow_groups=split", "1x1", True),  # only groups that don't pay are split
    ],
)
def test_who_shares_in_muri(text: str, cluster: str, share: bool) -> None:
    it = Bench(jobs([(0, 100, 1)] * 2, stage_s=STAGES), parse_cluster(cluster), text).at(0.0, arrived=[0, 1])
    assert len(it.state.placements) == 2
    assert (len({(place.nodes, place.masks) for place in it.state.placements.values()}) == 1) is share


def test_like_the_artifact_keys_that_are_equal_stand_as_before() -> None:
    """The list of the last plan is kept: who is gone leaves it, who comes is last."""
    policy: Any = Bench(jobs([(0, 1, 1)]), parse_cluster("1x1"), "muri-s:matcher=released").policy
    found = policy.carried(
        [2, 0, 1], np.array([1, -1, 2, 0]), np.arange(1), jobs([(0, 1, 1)] * 4), parse_cluster("1x1")
    )
    assert found == [2, 3, 0]
    assert policy.carried(None, np.arange(1), np.arange(1), jobs([(0, 1, 1)]), parse_cluster("1x1")) is None
