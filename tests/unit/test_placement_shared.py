"""Where groups go, who keeps a place, who is restarted; and the queues that groups are chosen from."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import jobs
from gpuloom.core.cluster import parse_cluster
from gpuloom.core.decision import Decision, Placement
from gpuloom.core.errors import ClusterError
from gpuloom.core.snapshot import Snapshot
from gpuloom.core.state import State
from gpuloom.core.workload import Labels
from gpuloom.placement.queues import ShapeQueues
from gpuloom.placement.shapes import Shape, shapes_of
from gpuloom.placement.shared import SharedPlacer

LAYERS = 4


def on(*pieces: tuple[int, int], layer: int = 0) -> Placement:
    """Placement from (node, mask) pairs."""
    return Placement(tuple(n for n, _ in pieces), tuple(m for _, m in pieces), layer)


def snapshot(
    gpus: Sequence[int], cluster: str, running: dict[int, Placement] | None = None, down: Sequence[int] = ()
) -> Snapshot:
    """All jobs are submitted; these run."""
    workload, nodes = jobs([(float(i), 1000.0, g) for i, g in enumerate(gpus)]), parse_cluster(cluster)
    state = State(workload, nodes, layers=LAYERS)
    for job in range(len(workload)):
        state.submit(job, 0.0)
    for job, placement in (running or {}).items():
        state.start(job, placement, 0.0, 0.0, 1.0)
    for node in down:
        state.node_down(node)
    return Snapshot(state, np.zeros(len(workload)))


def placer(view: Snapshot, *, first_fit: bool = False, restart_partners: bool = True) -> SharedPlacer:
    return SharedPlacer(view, layers=LAYERS, first_fit=first_fit, restart_partners=restart_partners)


def settle(
    view: Snapshot, groups: Sequence[tuple[int, ...]], *, restart_partners: bool = True, first_fit: bool = False
) -> Decision:
    """Fit the groups in this order on the emptied cluster, as the policies do, and settle."""
    made = placer(view, first_fit=first_fit, restart_partners=restart_partners)
    shapes = shapes_of(view.workload, view.cluster)
    room = made.emptied(view)
    fitted = []
    for group in groups:
        placement = room.take(shapes.shapes[shapes.of_job[group[0]]])
        assert placement is not None
        fitted.append(placement)
    return made.settle(view, groups, fitted, made.together(view))


def after(view: Snapshot, decision: Decision) -> dict[int, Placement]:
    """Who runs where once the decision is carried out."""
    left = {job: place for job, place in view.placements.items() if job not in decision.wait}
    return {**left, **decision.run}


def place(placement: Placement) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return placement.nodes, placement.masks


def check(view: Snapshot, groups: Sequence[tuple[int, ...]], decision: Decision) -> None:
    """The groups run, and nobody else; each on GPUs of its own, each member on a layer of its own."""
    running = after(view, decision)
    assert sorted(running) == sorted(job for group in groups for job in group)
    used: dict[int, int] = {}
    for group in groups:
        assert len({place(running[job]) for job in group}) == 1
        assert len({running[job].layer for job in group}) == len(group)
        assert all(0 <= running[job].layer < LAYERS for job in group)
        for node, mask in zip(*place(running[group[0]]), strict=True):
            assert not used.get(node, 0) & mask
            assert node not in view.nodes_out
            used[node] = used.get(node, 0) | mask
        assert running[group[0]].gpus == view.workload.gpus[group[0]]


# -- settling --------------------------------------------------------------------------------------------------


def test_a_new_group_starts_with_a_layer_for_each() -> None:
    view = snapshot([2, 2, 2], "1x4")
    decision = settle(view, [(2, 0, 1)])
    check(view, [(2, 0, 1)], decision)
    assert sorted(decision.run) == [0, 1, 2]
    assert list(decision.wait) == []


def test_nothing_changes_for_a_group_that_stays_as_it_is() -> None:
    held = {0: on((1, 0b0011)), 1: on((1, 0b0011), layer=1), 2: on((0, 0b1100))}
    view = snapshot([2, 2, 2], "2x4", held)
    decision = settle(view, [(2,), (1, 0)])
    assert dict(decision.run) == {}
    assert list(decision.wait) == []


def test_a_job_that_joins_takes_a_free_layer_and_restarts_the_rest_where_they_are() -> None:
    held = {0: on((0, 1), layer=2), 1: on((0, 1))}
    view = snapshot([1, 1, 1], "1x1", held)
    decision = settle(view, [(0, 1, 2)])
    check(view, [(0, 1, 2)], decision)
    assert {job: decision.run[job] for job in held} == held
    assert decision.run[2].layer == 1


def test_without_restarts_of_partners_only_the_one_that_joins_starts() -> None:
    view = snapshot([1, 1, 1], "1x1", {0: on((0, 1), layer=2), 1: on((0, 1))})
    decision = settle(view, [(0, 1, 2)], restart_partners=False)
    assert dict(decision.run) == {2: on((0, 1), layer=1)}


@pytest.mark.parametrize("restart_partners", [True, False])
def test_a_job_that_leaves_does_not_disturb_the_rest(restart_partners: bool) -> None:
    view = snapshot([1, 1, 1], "1x1", {0: on((0, 1)), 1: on((0, 1), layer=1), 2: on((0, 1), layer=2)})
    decision = settle(view, [(0, 2)], restart_partners=restart_partners)
    assert dict(decision.run) == {}
    assert list(decision.wait) == [1]


@pytest.mark.parametrize("restart_partners", [True, False])
def test_a_group_that_is_split_keeps_the_first_and_moves_the_other(restart_partners: bool) -> None:
    view = snapshot([1, 1], "1x2", {0: on((0, 1)), 1: on((0, 1), layer=1)})
    decision = settle(view, [(0,), (1,)], restart_partners=restart_partners)
    check(view, [(0,), (1,)], decision)
    assert list(decision.run) == [1]
    assert place(decision.run[1]) == ((0,), (2,))


def test_a_job_that_takes_the_layer_of_one_that_leaves() -> None:
    view = snapshot([1] * 5, "1x1", {job: on((0, 1), layer=job) for job in range(4)})
    decision = settle(view, [(0, 1, 2, 4)], restart_partners=False)
    assert dict(decision.run) == {4: on((0, 1), layer=3)}
    assert list(decision.wait) == [3]


def test_a_group_goes_where_most_of_its_members_are() -> None:
    held = {0: on((0, 1)), 1: on((1, 1)), 2: on((1, 1), layer=1)}
    view = snapshot([1, 1, 1], "2x1", held)
    decision = settle(view, [(0, 1, 2)], restart_partners=False)
    assert dict(decision.run) == {0: on((1, 1), layer=2)}


def test_two_groups_that_want_one_place() -> None:
    """The one with more members there keeps it."""
    held = {0: on((0, 1)), 1: on((0, 1), layer=1), 2: on((0, 1), layer=2)}
    view = snapshot([1, 1, 1], "2x1", held)
    decision = settle(view, [(0,), (1, 2)], restart_partners=False)
    check(view, [(0,), (1, 2)], decision)
    assert list(decision.run) == [0]


def test_a_place_that_another_wish_overlaps_is_left() -> None:
    """A job of 4 GPUs lies where two groups of 2 have been; all are placed without overlap."""
    held = {0: on((0, 0b0011)), 1: on((0, 0b1100)), 2: on((1, 0b0011))}
    view = snapshot([2, 2, 2, 4], "2x4", held)
    decision = settle(view, [(3,), (0, 1), (2,)])
    check(view, [(3,), (0, 1), (2,)], decision)


def test_all_go_where_they_were_found_to_fit_if_places_held_leave_no_room() -> None:
    """Jobs of 2 on both nodes: a job of 4 fits only if one of them moves."""
    held = {0: on((0, 0b0011)), 1: on((1, 0b0011))}
    view = snapshot([2, 2, 4], "2x4", held)
    decision = settle(view, [(0,), (1,), (2,)])
    check(view, [(0,), (1,), (2,)], decision)
    assert 2 in decision.run


def test_groups_over_several_nodes() -> None:
    held = {0: on((0, 0b1111), (1, 0b1111)), 1: on((0, 0b1111), (1, 0b1111), layer=1)}
    view = snapshot([8, 8, 8], "3x4", held)
    decision = settle(view, [(1, 0, 2)], restart_partners=False)
    assert dict(decision.run) == {2: on((0, 0b1111), (1, 0b1111), layer=2)}


def test_nothing_is_put_on_a_lost_node() -> None:
    view = snapshot([1, 1, 1], "2x2", {0: on((1, 1))}, down=[0])
    decision = settle(view, [(0, 1), (2,)])
    check(view, [(0, 1), (2,)], decision)


sizes = st.sampled_from([1, 1, 2, 3, 4, 8])


@given(data=st.data(), restart_partners=st.booleans())
def test_whatever_runs_and_whatever_is_wanted_the_decision_leads_there(
    data: st.DataObject, restart_partners: bool
) -> None:
    gpus = data.draw(st.lists(sizes, min_size=1, max_size=12))
    view = snapshot(gpus, "2x4,1x8")
    running: dict[int, Placement] = {}
    for _ in range(2):
        order = data.draw(st.permutations(range(len(gpus))))
        groups: list[tuple[int, ...]] = []
        for job in order:
            mates = [i for i, g in enumerate(groups) if gpus[g[0]] == gpus[job] and len(g) < LAYERS]
            index = data.draw(st.sampled_from([-1, *mates]))
            if index < 0:
                groups.append((job,))
            else:
                groups[index] += (job,)
        view = snapshot(gpus, "2x4,1x8", running)
        made = placer(view, restart_partners=restart_partners)
        shapes = shapes_of(view.workload, view.cluster)
        room = made.emptied(view)
        fits = [(group, room.take(shapes.shapes[shapes.of_job[group[0]]])) for group in groups]
        chosen = [group for group, placement in fits if placement is not None]
        fitted = [placement for _, placement in fits if placement is not None]
        decision = made.settle(view, chosen, fitted, made.together(view))
        check(view, chosen, decision)
        before = running
        running = after(view, decision)
        for group in chosen:
            joined = [job for job in group if before.get(job) != running[job]]
            if not joined:
                assert not set(group) & set(decision.run), "nobody joined: nobody is restarted"
            elif not restart_partners:
                assert set(group) & set(decision.run) == set(joined)


# -- room ------------------------------------------------------------------------------------------------------


def test_the_emptied_cluster_has_room_where_jobs_run_and_free_gpus_are_those_nobody_uses() -> None:
    view = snapshot([2, 2], "1x4", {0: on((0, 0b0011), layer=1)})
    made = placer(view)
    everything = made.emptied(view)
    assert everything.take(Shape(4, (0,))) == on((0, 0b1111))
    assert everything.take(Shape(1, (0,))) is None
    free = made.free(view)
    assert free.take(Shape(2, (0,))) == on((0, 0b1100))
    assert free.take(Shape(1, (0,))) is None
    assert made.emptied(view).take(Shape(4, (0,))) is not None, "tried on a copy"


def test_room_follows_nodes_that_are_lost_and_come_back() -> None:
    workload, nodes = jobs([(0, 1, 1)]), parse_cluster("2x4")
    state = State(workload, nodes, layers=LAYERS)
    view = Snapshot(state, np.zeros(1))
    for first_fit in (False, True):
        made = placer(view, first_fit=first_fit)
        for down, found in (([], 2), ([0], 1), ([0, 1], 0), ([1], 1), ([], 2)):
            for node in (0, 1):
                (state.node_down if node in down else state.node_up)(node)
            room = made.emptied(view)
            assert sum(room.take(Shape(4, (0,))) is not None for _ in range(3)) == found


def test_room_is_looked_for_in_the_pools_that_a_job_may_use() -> None:
    view = snapshot([1], "1x2:V100,1x2:K80")
    room = placer(view).emptied(view)
    assert room.take(Shape(2, (1,))) == on((1, 0b11))
    assert room.take(Shape(2, (1,))) is None
    assert room.take(Shape(2, (0, 1))) == on((0, 0b11))


def test_first_fit_takes_the_first_node_that_holds_the_job_and_not_the_fullest() -> None:
    view = snapshot([1], "2x4")
    taken = {}
    for first_fit in (False, True):
        room = placer(view, first_fit=first_fit).emptied(view)
        assert [room.take(Shape(gpus, (0,))) for gpus in (2, 3)] == [on((0, 0b0011)), on((1, 0b0111))]
        taken[first_fit] = room.take(Shape(1, (0,)))
    assert taken == {False: on((1, 0b1000)), True: on((0, 0b0100))}


@pytest.mark.parametrize("cluster", ["1x4,1x8", "1x4:V100,1x4:K80"])
def test_first_fit_wants_nodes_that_are_alike(cluster: str) -> None:
    with pytest.raises(ClusterError, match="alike"):
        placer(snapshot([1], cluster), first_fit=True)


# -- queues ----------------------------------------------------------------------------------------------------


def test_queues_give_the_first_of_waiting_and_running_jobs_in_order() -> None:
    view = snapshot([1, 1, 2, 1, 1], "1x4", {3: on((0, 1))})
    keys = {0: 5.0, 1: 2.0, 2: 9.0, 3: 0.0, 4: 5.0}
    queues = ShapeQueues(view, lambda _, job: keys[job])
    one, two = queues.shape_of[0], queues.shape_of[2]
    assert (queues.gpus[one], queues.gpus[two]) == (1, 2)
    assert len(queues) == 4
    assert queues.first(one, [], 9) == [(2.0, 1), (5.0, 0), (5.0, 4)]
    assert queues.first(one, [(3.0, 3)], 9) == [(2.0, 1), (3.0, 3), (5.0, 0), (5.0, 4)]
    assert queues.first(one, [(3.0, 3)], 2) == [(2.0, 1), (3.0, 3)]
    assert queues.first(one, [(5.0, 3)], 3) == [(2.0, 1), (5.0, 0), (5.0, 3)]
    assert queues.first(two, [], 9) == [(9.0, 2)]


def test_queues_are_asked_for_a_key_when_a_job_begins_to_wait_and_not_again() -> None:
    view = snapshot([1, 1, 1], "1x4", {2: on((0, 1))})
    asked: list[int] = []

    def key(_: Snapshot, job: int) -> float:
        asked.append(job)
        return float(len(asked))

    queues = ShapeQueues(view, key)
    queues.observe(view)
    queues.remove(0)
    queues.add(view, 2)
    queues.remove(2)
    view.evicted, view.arrived = [2], [0]
    queues.observe(view)
    assert asked == [0, 1, 2, 2, 0]
    assert [job for _, job in queues.first(0, [], 9)] == [1, 2, 0]
    assert len(queues) == 3


def test_jobs_with_other_gpu_models_wait_in_queues_of_their_own() -> None:
    workload = jobs([(0, 1, 1)] * 3, gpu_type=Labels.of(["V100", "", "K80"]))
    nodes = parse_cluster("1x2:V100,1x2:K80")
    queues = ShapeQueues(Snapshot(State(workload, nodes), np.zeros(3)), lambda *_: 0.0)
    assert len({queues.shape_of[job] for job in range(3)}) == 3


@given(
    steps=st.lists(st.tuples(st.integers(0, 7), st.sampled_from([0.0, 1.0, 2.5])), max_size=60),
    most=st.integers(0, 9),
)
def test_queues_agree_with_a_list_that_is_sorted_anew(steps: list[tuple[int, float]], most: int) -> None:
    gpus = [1, 2, 1, 2, 1, 2, 1, 1]
    view = snapshot(gpus, "1x8")
    keys = dict.fromkeys(range(8), 0.0)
    queues = ShapeQueues(view, lambda _, job: keys[job])
    waiting = dict.fromkeys(range(8), 0.0)
    for job, key in steps:
        keys[job] = key
        if job in waiting:
            queues.remove(job)
            del waiting[job]
        else:
            queues.add(view, job)
            waiting[job] = key
        for shape in range(len(queues.gpus)):
            running = [(keys[j], j) for j in range(8) if j not in waiting and queues.shape_of[j] == shape]
            expected = sorted((k, j) for j, k in waiting.items() if queues.shape_of[j] == shape)
            assert queues.first(shape, running, most) == sorted(expected + running)[:most]
    assert len(queues) == len(waiting)
