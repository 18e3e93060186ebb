"""Who is worth more GPUs, by hand; and the plan of who has which: growing, shrinking, gathering, going home."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from builders import jobs
from gpuloom.core.cluster import parse_cluster
from gpuloom.core.decision import Decision, Placement
from gpuloom.core.workload import Labels, Speeds
from gpuloom.facts.inputs import load_policy
from gpuloom.policies.gpu_allocator import GpuAllocator, Pays
from gpuloom.scaling import lending as module
from gpuloom.scaling.base_view import Sizes, replicas_of
from gpuloom.scaling.lending import Lending
from scaling import scaling_of
from test_policies_hlas import Bench

CURVE = np.array([[0.0, 0.0], [1.0, 1.0], [1.5, 1.25], [2.0, 1.75], [2.5, 2.25]])
"""Speed on 0 to 4 GPUs, of one node and of two."""


def lent(
    sizes: Sequence[tuple[int, int, int]],
    cluster: str,
    *,
    now_s: float = 0.0,
    overhead_s: float = 0.0,
    text: str = "elastic-goodput",
    **columns: Any,
) -> tuple[GpuAllocator, Lending, Any, Bench]:
    """Jobs (least, asked, most GPUs) of 1000 s that run at what they ask for since second 0."""
    n = len(sizes)
    least, asked, most = (np.array(part, dtype=np.int32) for part in zip(*sizes, strict=True))
    workload = jobs([(0.0, 1000.0, int(gpus)) for gpus in asked], **columns)
    scaling = scaling_of(workload.gpus, [CURVE], np.zeros(n, dtype=np.int32), least, most)
    workload = jobs([(0.0, 1000.0, int(gpus)) for gpus in asked], scaling=scaling, **columns)
    it = Bench(workload, parse_cluster(cluster), "fifo:upgrade=no", overhead_s=overhead_s)
    it.at(0.0, arrived=range(n))
    snapshot = it.engine.snapshot
    snapshot.now_s = now_s
    lending = Lending(snapshot, {})
    lending.take_in(snapshot)
    return GpuAllocator(load_policy(text).values, snapshot, lending), lending, snapshot, it


def test_speed_is_relative_to_the_smallest_size_on_the_best_model() -> None:
    speeds = Speeds(("A", "B"), np.array([[1.0, 0.5], [0.5, 2.0]]))
    desk, _, _, _ = lent([(1, 1, 4), (2, 2, 4)], "1x4:A,1x4:B", speeds=speeds)
    assert [desk.speed(0, gpus, 1, 0) for gpus in (1, 2, 4)] == [1.0, 1.5, 2.5]
    assert [desk.speed(0, 2, nodes, 0) for nodes in (2, 3)] == [1.25, 1.25]
    assert desk.speed(0, 4, 1, 1) == 1.25
    assert [desk.speed(1, 4, 1, model) for model in (0, 1)] == pytest.approx([2.5 / 1.5 / 4, 2.5 / 1.5])
    table = desk._rows([1, 0])[0]
    assert table[0].tolist() == pytest.approx([0, 0.25, 2 / 6, 2.5 / 6, 0, 1.0, 2 / 1.5, 2.5 / 1.5])
    assert table[1].tolist() == pytest.approx([1.0, 1.5, 2.0, 2.5, 0.5, 0.75, 1.0, 1.25])
    assert desk._kind(0) != desk._kind(1)


@pytest.mark.parametrize(
    ("alpha", "wanted"),
    [(0.0, [-math.inf, 0.0, math.log(4.0)]), (0.5, [-math.inf, 2.0, 4.0]), (-1.0, [-math.inf, -1.0, -0.25])],
)
def test_what_speed_is_worth(alpha: float, wanted: list[float]) -> None:
    desk, _, _, _ = lent([(1, 1, 4)], "1x4", text=f"elastic-goodput:alpha={alpha}")
    assert desk._utility(np.array([0.0, 1.0, 4.0])).tolist() == pytest.approx(wanted)


def test_weights() -> None:
    desk, lending, snapshot, _ = lent([(1, 1, 4), (2, 2, 4)], "1x4", weight=np.array([3.0, 6.0]))
    desk._unit = 6.0
    assert [desk._weight(job) for job in (0, 1)] == [0.5, 1.0]  # both run at the speed for which they asked
    small, _, _, _ = lent([(1, 2, 4), (1, 1, 4)], "1x4")
    assert [small._weight(job) for job in (0, 1)] == pytest.approx([1 / 1.5, 1.0])
    text = "elastic-goodput:weight=remaining;power=0.5;floor=200s"
    left, _, _, _ = lent([(1, 1, 4)], "1x4", now_s=300.0, text=text)
    left.lending.view.now_s = 300.0
    assert left._weight(0) == pytest.approx((700.0 + 200.0) ** -0.5)
    tiny, _, _, _ = lent([(1, 1, 4), (1, 1, 4)], "1x4", weight=np.array([1e-9, 1.0]))
    assert tiny._weight(0) == 1e-6
    # From two GPUs back to one, and from one to none less.
    loss, lending, snapshot, _ = lent([(1, 2, 4), (1, 1, 4)], "1x4", text="elastic-goodput:alpha=1")
    assert loss.loss_per_gpu(snapshot, 0) == pytest.approx((1.5 - 1.0) / 1.5)
    assert loss.loss_per_gpu(snapshot, 1) == 0.0
    lending.put(0, {0: 0b1011})
    assert loss.loss_per_gpu(snapshot, 0) == pytest.approx((2.0 - 1.0) / 1.5 / 2)


def later_of(pays_s: Pays, row: int = 0, jobs: int = 1) -> list[float]:
    """In how many seconds each of four options of a job begins to pay."""
    one = np.eye(4 * jobs, dtype=bool)[4 * row : 4 * row + 4].reshape(4, jobs, 4)
    return [pays_s(mask) for mask in one]


@pytest.mark.parametrize(("now_s", "quiet_s"), [(90.0, 0.0), (5.0, 0.0), (2500.0, 0.0), (2500.0, 9000.0)])
def test_what_a_change_is_worth(now_s: float, quiet_s: float) -> None:
    """The job has run since 0 s, and goes on for as long and 10 s, but for an hour at most, or while it was quiet.

    A change costs 10 s of work at the margin.
    """
    text = "elastic-goodput:alpha=0.5;floor=10s;horizon=1h"
    desk, _, snapshot, _ = lent([(1, 1, 4)], "1x4", now_s=now_s, overhead_s=10.0, text=text)
    worth, ratio, pays_s = desk._worth(snapshot, [0], quiet_s)
    lasts_s = now_s + 10.0
    time_s = min(lasts_s, max(3600.0, quiet_s))
    wanted, later = [0.0], [math.inf]
    for speed in (1.5, 2.0, 2.5):
        gain = 2 * math.sqrt(speed) - 2
        wanted.append((gain * max(time_s - 10, 0) - gain / (speed - 1) * 10) / time_s)
        needs_s = 10 + 10 / (speed - 1)
        later.append(math.inf if wanted[-1] > 0 else needs_s - lasts_s)
    assert worth.tolist() == [pytest.approx(wanted)]
    assert ratio.tolist() == [[1.0, 1.5, 2.0, 2.5]]
    assert later_of(pays_s) == pytest.approx(later)
    assert pays_s(np.ones((1, 4), dtype=bool)) == pytest.approx(min(later))


def test_a_known_end_is_what_a_change_lasts_to() -> None:
    """It ends at 1000 s: in 20 s a change that costs 10 s gains nothing, and never will."""
    text = "elastic-goodput:alpha=1;weight=remaining;power=0"
    desk, _, snapshot, _ = lent([(1, 1, 4)], "1x4", now_s=980.0, overhead_s=10.0, text=text)
    snapshot_end = snapshot.predicted_end_s(0)
    worth, _, pays_s = desk._worth(snapshot, [0], 0.0)
    lasts_s = snapshot_end - 980.0
    assert worth[0, 3] == pytest.approx((1.5 * (lasts_s - 10) - 10) / lasts_s)
    assert later_of(pays_s) == [math.inf] * 4
    short, _, snapshot, _ = lent([(1, 1, 4)], "1x4", now_s=1000.0, overhead_s=10.0, text=text)
    worth, _, pays_s = short._worth(snapshot, [0], 0.0)
    assert (worth[0, 1:] < 0).all()
    assert later_of(pays_s) == [math.inf] * 4


def test_jobs_that_gave_gpus_back_keep_what_they_have_and_fresh_ones_pay_nothing() -> None:
    text = "elastic-goodput:alpha=1"
    desk, lending, snapshot, _ = lent([(1, 1, 4), (1, 1, 4)], "1x4", now_s=5.0, overhead_s=10.0, text=text)
    lending.reclaimed.append(0)
    lending.run[1] = Placement((0,), (2,))
    worth, _, pays_s = desk._worth(snapshot, [0, 1], 0.0)
    assert worth[0].tolist() == [0.0, -math.inf, -math.inf, -math.inf]
    assert worth[1].tolist() == [0.0, 0.5, 1.0, 1.5]
    assert later_of(pays_s, 1, 2) == [math.inf] * 4  # they pay at once


def test_free_gpus_go_where_they_are_worth_most() -> None:
    desk, lending, snapshot, _ = lent([(1, 1, 4), (1, 1, 2)], "1x4", now_s=900.0, overhead_s=10.0)
    assert desk.share_out(snapshot, shift=False, quiet_s=0.0)  # jobs may yet take GPUs from others
    assert sum(lending.gpus.values()) == 4
    assert (desk.grown != [], desk.shrunk) == (True, [])
    assert lending.free == [0]
    assert desk.look_s == math.inf


def test_it_looks_again_when_a_change_begins_to_pay() -> None:
    """Growing to four GPUs pays after 10 + 10 / 1.5 s: from 6.67 s on, as it goes on for 10 s longer than it ran."""
    text = "elastic-goodput:alpha=0.5;floor=10s"
    desk, lending, snapshot, _ = lent([(1, 1, 4)], "1x4", now_s=5.0, overhead_s=10.0, text=text)
    assert desk.share_out(snapshot, shift=False, quiet_s=0.0)  # jobs may yet take GPUs from others
    assert lending.gpus == {0: 1}
    assert desk.look_s == pytest.approx(10 / 1.5 + 1.0)
    two, lending, snapshot, _ = lent([(1, 1, 4)], "1x3", now_s=5.0, overhead_s=10.0, text=text)
    two.share_out(snapshot, shift=True, quiet_s=0.0)
    assert two.look_s == pytest.approx(10.0 + 1.0)  # only three are free: 10 + 10 / 1


def test_gpus_move_from_who_loses_least_only_when_shifting() -> None:
    """Job 0 has three GPUs, of which the second and third bring it half as much as the first; it yields to job 1."""
    text = "elastic-goodput:alpha=-1"
    for shift in (False, True):
        desk, lending, snapshot, _ = lent([(1, 3, 4), (1, 1, 4)], "1x4", now_s=9000.0, text=text)
        owed = desk.share_out(snapshot, shift=shift, quiet_s=9000.0)
        assert owed is not shift
        assert lending.gpus == ({0: 2, 1: 2} if shift else {0: 3, 1: 1})
        assert (desk.grown, desk.shrunk) == (([1], [0]) if shift else ([], []))


def test_a_job_that_is_spread_comes_together_where_that_pays() -> None:
    for overhead_s, together in ((0.0, True), (5000.0, False)):
        desk, lending, snapshot, _ = lent([(1, 2, 2)], "2x2", now_s=100.0, overhead_s=overhead_s)
        lending.put(0, {0: 1, 1: 1})
        desk._gather(snapshot, 0, 0.0)
        assert (len(lending.held[0]) == 1) is together
        assert lending.gpus[0] == 2


@pytest.mark.parametrize(("larger", "gpus"), [(True, 4), (False, 1)])
def test_jobs_move_to_free_gpus_of_a_faster_model(larger: bool, gpus: int) -> None:
    speeds = Speeds(("A", "B"), np.array([[1.0, 0.25]]))
    desk, lending, snapshot, _ = lent([(1, 1, 4)], "1x4:B,1x4:A", now_s=9000.0, overhead_s=10.0, speeds=speeds)
    assert desk._model(0) == 0
    desk.move(snapshot, quiet_s=9000.0, larger=larger)
    assert lending.held[0] == {1: (1 << gpus) - 1}
    assert lending.free == [15, 15 ^ ((1 << gpus) - 1)]
    assert (desk.grown, desk.shrunk) == (([0], []) if larger else ([], [0]))


# -- who has which GPUs ----------------------------------------------------------------------------------------


def holding(pieces: dict[int, int], cluster: str = "3x4", least: int = 1) -> Lending:
    """One job of up to four GPUs; it has these."""
    _, lending, _, _ = lent([(least, least, 4)], cluster)
    lending.put(0, pieces)
    return lending


@pytest.mark.parametrize(
    ("pieces", "gpus", "wanted"),
    [
        ({0: 1}, 3, {0: 0b111}),
        ({1: 0b10}, 4, {1: 0b1111}),
        ({0: 1, 1: 0b11}, 4, {0: 0b11, 1: 0b11}),  # where more is free
    ],
)
def test_growing(pieces: dict[int, int], gpus: int, wanted: dict[int, int]) -> None:
    assert holding(pieces).extended(0, gpus) == wanted


def test_growing_onto_other_nodes() -> None:
    lending = holding({0: 1})
    lending.free[:] = [0b10, 0b1000, 0b1100]
    assert lending.extended(0, 4) == {0: 0b11, 2: 0b1100}
    assert lending.extended(0, 3) == {0: 0b11, 1: 0b1000}
    assert lending.extended(0, 5) == {0: 0b11, 2: 0b1100, 1: 0b1000}
    assert lending.extended(0, 6) is None


def sum_free(lending: Lending) -> int:
    return sum(mask.bit_count() for mask in lending.free)


def test_gathering() -> None:
    lending = holding({0: 1, 1: 0b100})
    lending.free[:] = [0b10, 0b1000, 0b11]
    assert lending.gathered(0, 2) == {0: 0b11}  # the fullest that holds all, its own first
    assert lending.gathered(0, 4) == {2: 0b11, 0: 0b11}
    assert lending.gathered(0, 5) == {2: 0b11, 1: 0b1100, 0: 0b1}
    assert lending.gathered(0, 6) == {2: 0b11, 1: 0b1100, 0: 0b11}
    assert lending.gathered(0, 7) is None


@pytest.mark.parametrize(
    ("pieces", "first", "gpus", "wanted"),
    [
        ({0: 0b1111}, None, 2, {0: 0b11}),
        ({0: 0b1, 1: 0b11, 2: 0b1}, None, 2, {0: 0b1, 1: 0b1}),  # where it has fewest; what is its own it keeps
        ({0: 0b1, 1: 0b11, 2: 0b1}, 1, 3, {0: 0b1, 1: 0b1, 2: 0b1}),
        ({0: 0b1, 1: 0b11, 2: 0b1}, 1, 2, {0: 0b1, 2: 0b1}),
    ],
)
def test_shrinking(pieces: dict[int, int], first: int | None, gpus: int, wanted: dict[int, int]) -> None:
    lending = holding(pieces)
    assert lending.own[0] == {0: 1}
    lending.shrink(0, gpus, first=first)
    assert (lending.held[0], lending.gpus[0]) == (wanted, gpus)
    assert sum_free(lending) == 12 - gpus


def test_borrowers_give_back_what_the_base_gives_to_others() -> None:
    """Job 0's home is node 0. It lives on node 1 altogether, and goes home when its GPU there is wanted, too."""
    _, lending, _, _ = lent([(1, 1, 4), (1, 1, 4)], "2x2")
    assert lending.own == {0: {0: 1}, 1: {0: 1}}
    lending.put(0, {1: 0b11})
    assert lending.free == [0b01, 0]
    lending._reclaim(1, 1, lambda job: job)
    assert (lending.held[0], lending.free, lending.reclaimed) == ({1: 0b1}, [0b01, 0b10], [0])
    lending._reclaim(1, 2, lambda job: job)
    assert (lending.held[0], lending.free, lending.reclaimed) == ({0: 0b1}, [0, 0b11], [0, 0])
    assert lending.decision(math.inf, {}) == Decision()  # all as it was
    lending.put(1, {0: 0b10, 1: 0b10})
    plan = lending.decision(5.0, {})
    assert (dict(plan.run), plan.wake_at_s) == ({1: Placement((0, 1), (2, 2))}, 5.0)


@pytest.mark.parametrize(
    ("room", "gpus", "wanted"),
    [
        ([(2, 0), (3, 1), (1, 2)], 2, [(0, 2)]),
        ([(2, 0), (3, 1), (1, 2)], 3, [(1, 3)]),
        ([(2, 0), (3, 1), (1, 2)], 4, [(1, 3), (2, 1)]),
        ([(2, 0), (3, 1), (1, 2)], 6, [(1, 3), (0, 2), (2, 1)]),
        ([(2, 0), (3, 1), (1, 2)], 7, None),
        ([(2, 1), (2, 0)], 1, [(0, 1)]),
        ([], 0, []),
    ],
)
def test_on_few_nodes(room: list[tuple[int, int]], gpus: int, wanted: Any) -> None:
    assert module._fewest_nodes(room, gpus) == wanted


def test_a_part_of_a_placement_and_the_same_in_another_order() -> None:
    whole = Placement((0, 1, 2), (0b1, 0b111, 0b11))
    assert module._part(whole, 2) == Placement((1,), (0b11,))
    assert module._part(whole, 4) == Placement((1, 2), (0b111, 0b1))
    assert module._part(whole, 9) == Placement((1, 2, 0), (0b111, 0b11, 0b1))
    assert module._same(whole, {2: 0b11, 0: 0b1, 1: 0b111})
    assert not module._same(whole, {2: 0b11, 0: 0b1, 1: 0b110})
    assert not module._same(whole, {2: 0b11, 0: 0b1})
    assert not module._same(Placement((0,), (1,)), {0: 1, 1: 1})


def test_a_wish_for_one_model_is_kept() -> None:
    speeds = Speeds(("A", "B"), np.array([[1.0, 0.25]]))
    wish = Labels.of(["B"])
    desk, lending, snapshot, _ = lent([(1, 1, 4)], "1x4:B,1x4:A", now_s=9000.0, speeds=speeds, gpu_type=wish)
    desk.move(snapshot, quiet_s=9000.0, larger=True)
    assert lending.held[0] == {0: 1}


# -- the world that the base sees ------------------------------------------------------------------------------


def test_a_restart_costs_what_the_job_does_meanwhile_at_the_size_that_it_has() -> None:
    """On four GPUs a job does 2.5 times what it would do at home, on one; the other one has no more than its own."""
    _, lending, snapshot, it = lent([(1, 4, 4), (2, 2, 2)], "1x4:A,1x2:A", overhead_s=30.0)
    assert list(lending.view.restart_overhead_s) == [75.0, 30.0]
    it.at(500.0, finished=[0])
    lending.take_in(snapshot)
    assert list(lending.view.restart_overhead_s) == [30.0, 30.0], "it has no GPUs any more"


@pytest.mark.parametrize("woven", [True, False])
def test_who_weaves_sees_elastic_jobs_where_they_live(woven: bool) -> None:
    """Else it would put another job there, and the one that lives there would have to go home. Others never move
    elastic jobs, and need to know only where there are rigid ones."""
    _, lending, snapshot, _ = lent([(1, 1, 4)], "1x4:A,1x4:B", speeds=Speeds(("A", "B"), np.array([[1.0, 2.0]])))
    lending.woven = woven
    (here,) = lending.home[0].nodes
    lending.put(0, {1 - here: 0b11})
    assert lending.rehome(snapshot) is woven
    assert lending.home[0].nodes == (1 - here if woven else here,)
    assert lending.view.placements[0] == lending.home[0]
    assert lending.own[0] == {lending.home[0].nodes[0]: 1}


def test_the_sizes_of_jobs() -> None:
    """Of a curve that lacks a size, of two rigid jobs, and of one whose smallest size is not what it asks for."""
    curve = np.array([[0.0], [1.0], [0.0], [2.0], [2.5]])
    workload = jobs(
        [(0, 10, 1), (0, 10, 2), (0, 10, 4), (0, 10, 3)], stage_s=np.array([[np.nan] * 3] * 3 + [[1.0] * 3])
    )
    of_job = (np.array([1, 2, 4, 1], np.int32), np.array([4, 2, 4, 4], np.int32))
    scaling = scaling_of(workload.gpus, [curve, CURVE], np.array([0, 1, 1, 1], np.int32), *of_job)
    workload = replace(workload, scaling=scaling)
    cluster = parse_cluster("2x4")
    assert Sizes(workload, cluster).of == [(1, 3, 4), (2,), (4,), (1, 2, 3, 4)]
    assert Sizes(workload, cluster).base_speed.tolist() == pytest.approx([1.0, 1.0, 1.0, 0.5])
    assert Sizes(workload, cluster).base_gpus.tolist() == [1, 2, 4, 1]
    woven = Sizes(workload, cluster, woven=True)
    assert woven.of == Sizes(workload, cluster).of
    assert woven.unlike.tolist() == [False, False, False, True]  # its stage times hold at three GPUs, not at one
    assert not Sizes(workload, cluster).unlike.any()
    assert (woven.any_elastic, Sizes(replace(workload, scaling=None), cluster).any_elastic) == (True, False)
    assert replicas_of((2, 4, 6), 2) == (1, 2, 3)


@pytest.mark.parametrize(
    ("replica", "least", "most", "cluster", "sizes"),
    [
        (2, 1, 2, "2x4", (2, 4)),
        (1, 3, 4, "1x4", (3, 4)),
        (1, 3, 4, "2x2", (3, 4)),
        (1, 3, 4, "1x2", (4,)),  # its smallest size does not fit: it is taken for rigid
        (4, 1, 1, "1x4", (4,)),
    ],
)
def test_the_sizes_of_a_job_of_four_gpus(
    replica: int, least: int, most: int, cluster: str, sizes: tuple[int, ...]
) -> None:
    plain = jobs([(0, 10, 4)])
    one = np.ones(1, dtype=np.int32)
    scaling = scaling_of(plain.gpus, [CURVE], 0 * one, one, 4 * one)
    scaling = replace(scaling, replica_gpus=replica * one, min_replicas=least * one, max_replicas=most * one)
    assert Sizes(replace(plain, scaling=scaling), parse_cluster(cluster)).of == [sizes]


def test_what_the_base_sees_of_a_job_that_runs_larger() -> None:
    """It asked for two GPUs; in the view it has one, at two thirds of the speed."""
    speeds = Speeds(("A", "B"), np.array([[1.0, 0.5]] * 2))
    _, lending, snapshot, it = lent([(1, 2, 4), (1, 1, 1)], "1x2:A,1x2:B", now_s=300.0, speeds=speeds)
    view = lending.view
    view.sync(snapshot)
    third = 1 / 1.5
    assert view.workload.gpus.tolist() == [1, 1]
    assert view.workload.duration_s.tolist() == pytest.approx([1500.0, 1000.0])
    assert view.workload.scaling is None
    assert view.remaining_s(0) == pytest.approx(700.0 / third)
    assert view.remaining_of(np.array([0])).tolist() == pytest.approx([700.0 / third])
    assert view.rate(0) == pytest.approx(1.5)
    assert view.predicted_end_s(0) == snapshot.predicted_end_s(0) == 1000.0
    assert (view.held_s(0), view.attained_gpu_s(0), view.gpus_of(0)) == (300.0, 300.0, 1)
    assert (view.may_move(0), view.may_move(1)) == (False, True)
    assert [view.starts(job) for job in range(2)] == [1, 1]
    assert view.free_masks() == view.idle_masks == [0b10, 0b10]
    assert (view.free_gpus, snapshot.free_gpus, view.waiting_count) == (2, 1, 0)
    # It runs slower with what it borrows than it would at home: the end is that at home.
    it.state.rate[0] = third / 2
    it.state.placements[0] = Placement((1,), (3,))
    now_s, end_s = 300.0, snapshot.predicted_end_s(0)
    left = snapshot.remaining_s(0)
    assert view.predicted_end_s(0) == pytest.approx(end_s - left * (2 / third - 1 / third))
    it.state.rate[0] = 0.0
    assert view.predicted_end_s(0) == pytest.approx(now_s + snapshot.remaining_s(0) / third)
    view.homeless.append(0)
    assert (view.is_running(0), view.is_waiting(0), view.waiting(), view.waiting_count) == (False, True, [0], 1)
    assert (view.is_running(1), view.is_waiting(1)) == (True, False)


def test_places_in_the_view() -> None:
    _, lending, _, _ = lent([(1, 1, 4), (1, 1, 4)], "2x2")
    view = lending.view
    assert view.placements == {0: Placement((0,), (1,)), 1: Placement((0,), (2,))}
    assert (view.who_has(Placement((0,), (2,))), view.who_has(Placement((0,), (3,)))) == (1, None)
    assert view.alone(0)
    view.put(9, Placement((0,), (1,), 1))
    assert (view.alone(0), view.alone(9), view.alone(1), view.alone(5)) == (False, False, True, True)
    view.remove(9)
    assert view.free_masks() == [0, 3]  # job 0 has that GPU still
    view.remove(0)
    assert view.free_masks() == [1, 3]
    view.rebuild({1: Placement((1,), (1,))}, [3, 3])
    assert (dict(view.placements), view.free_masks()) == ({1: Placement((1,), (1,))}, [3, 2])
    view.set_node(0, 0)
    assert view.free_gpus == 1


def test_a_job_that_the_base_moves_has_another_home_and_stays_where_it_lives() -> None:
    _, lending, _, _ = lent([(1, 1, 4)], "2x2")
    lending.apply(Decision({0: Placement((1,), (1,))}), lambda job: job)
    assert dict(lending.view.placements) == lending.home == {0: Placement((1,), (1,))}
    assert lending.view.free_masks() == [3, 2]
    assert (lending.held, lending.own, lending.run) == ({0: {0: 1}}, {0: {1: 1}}, {})


# -- the replica that joined last leaves first ------------------------------------------------------------------------


def test_of_equal_nodes_the_one_that_it_had_last_goes_first() -> None:
    _, lending, _, _ = lent([(1, 1, 4)], "3x1")
    first = next(iter(lending.held[0]))
    others = [node for node in range(3) if node != first]
    for joins in (others, others[::-1]):
        lending.put(0, {first: 1, joins[0]: 1, joins[1]: 1})
        lending.shrink(0, 2)
        assert list(lending.held[0]) == [first, joins[0]]
        lending.shrink(0, 1)
        assert list(lending.held[0]) == [first]


def test_a_node_of_which_it_holds_fewer_goes_before_one_that_it_had_later() -> None:
    _, lending, _, _ = lent([(1, 1, 4)], "3x2")
    first = next(iter(lending.held[0]))
    second, third = (node for node in range(3) if node != first)
    lending.put(0, {first: lending.held[0][first], second: 0b01, third: 0b11})
    lending.shrink(0, 3)
    assert list(lending.held[0]) == [first, third]


def test_of_one_node_the_gpus_go_that_it_had_last() -> None:
    _, lending, _, _ = lent([(1, 1, 4)], "1x4")
    lending.put(0, {0: 0b0010})
    grown = lending.extended(0, 3)
    assert grown == {0: 0b1110}, "above those that it has, where it can"
    lending.put(0, grown)
    assert lending.extended(0, 4) == {0: 0b1111}
    lending.shrink(0, 1)
    assert lending.held[0] == {0: 0b0010}


def test_gathered_it_keeps_its_first_nodes_first() -> None:
    _, lending, _, _ = lent([(1, 1, 4)], "2x2")
    first = next(iter(lending.held[0]))
    other = 1 - first
    lending.put(0, {other: 0b01, first: 0b01})
    assert list(lending.gathered(0, 4) or {}) == [other, first]
    lending.put(0, {first: 0b01, other: 0b01})
    assert list(lending.gathered(0, 4) or {}) == [first, other]
