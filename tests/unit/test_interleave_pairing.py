"""Who shares GPUs where pairs were measured: the programs against enumeration and by hand."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import jobs
from gpuloom.core.pairs import PairTable
from gpuloom.core.workload import F8, Labels, Speeds, Workload
from gpuloom.facts.pairs import with_pairs
from gpuloom.interleave.efficiency import Interleaving
from gpuloom.interleave.groups import GroupTimes
from gpuloom.interleave.pairing import Chosen, Pairing
from gpuloom.sim import simulate
from tiers import slow

MODELS = ("V100", "K80")
Shares = dict[tuple[str, str, str], tuple[float, float]]


def paired(names: str, share: Shares, durations: list[float] | None = None, speeds: F8 | None = None) -> Workload:
    """Jobs of one GPU at second 0 of these models (a letter each), a quarter as fast on a K80."""
    rows = [(0.0, duration, 1) for duration in durations or [1000.0] * len(names)]
    factor = np.array([[1.0, 0.25]] * len(names)) if speeds is None else speeds
    table = {(gpu, (one, 1), (two, 1)): shares for (gpu, one, two), shares in share.items()}
    workload = jobs(rows, model=Labels.of(names), speeds=Speeds(MODELS, factor))
    return with_pairs(workload, PairTable("test", table))


def pairing_of(workload: Workload) -> tuple[Pairing, np.ndarray[tuple[int], np.dtype[np.intp]], F8]:
    times = GroupTimes(workload, Interleaving())
    assert workload.speeds is not None
    return Pairing(times, MODELS), np.array(times.of_job, dtype=np.intp), workload.speeds.factor


def chosen(workload: Workload, worth: F8, capacity: tuple[int, int], *, own: bool = False, **held: F8) -> list[Chosen]:
    pairing, profile, speed = pairing_of(workload)
    n = len(workload)
    nobody = np.full(n, -1, dtype=np.intp)
    return pairing.choose(
        profile,
        worth,
        speed,
        np.ones(n),
        np.array(capacity, dtype=float),
        held.get("starts", np.zeros(n)),
        held.get("on", nobody).astype(np.intp),
        held.get("beside", nobody).astype(np.intp),
        own=own,
    )


# -- who, where, beside whom -----------------------------------------------------------------------------------


def test_two_share_the_fast_gpu_where_that_is_worth_more_than_the_slow_one() -> None:
    worth = np.ones(2)
    assert chosen(paired("ab", {("V100", "a", "b"): (0.9, 0.6)}), worth, (1, 1)) == [Chosen(0, (0, 1))]
    apart = chosen(paired("ab", {("V100", "a", "b"): (0.7, 0.5)}), worth, (1, 1))
    assert sorted(one.model for one in apart) == [0, 1]
    assert chosen(paired("ab", {("V100", "a", "b"): (0.0, 0.0)}), worth, (1, 0)) in (
        [Chosen(0, (0,))],
        [Chosen(0, (1,))],
    )


@pytest.mark.parametrize(("gpu_mib", "share"), [(3000.0, True), (2999.0, False)])
def test_two_share_a_gpu_into_which_both_just_fit(gpu_mib: float, share: bool) -> None:
    workload = replace(paired("ab", {("V100", "a", "b"): (0.9, 0.6)}), gpu_memory_mib=np.array([1000.0, 2000.0]))
    times = GroupTimes(workload, Interleaving())
    pairing, profile = Pairing(times, MODELS, gpu_mib), np.array(times.of_job, dtype=np.intp)
    nobody, none = np.full(2, -1, dtype=np.intp), np.zeros(2)
    speed = np.array([[1.0, 0.25]] * 2)
    found = pairing.choose(profile, np.ones(2), speed, np.ones(2), np.ones(2), none, nobody, nobody, own=False)
    assert (found == [Chosen(0, (0, 1))]) is share


def test_who_runs_stays_where_a_start_costs_more_than_it_brings() -> None:
    workload = paired("ab", {("V100", "a", "b"): (0.9, 0.6)})
    at = {"on": np.array([0, 1]), "beside": np.array([-1, -1])}
    assert chosen(workload, np.ones(2), (1, 1), starts=np.full(2, 0.4), **at) == [Chosen(0, (0,)), Chosen(1, (1,))]
    together = {"on": np.array([0, 0]), "beside": np.array([1, 0])}
    assert chosen(workload, np.ones(2), (2, 1), starts=np.full(2, 0.9), **together) == [Chosen(0, (0, 1))]
    assert len(chosen(workload, np.ones(2), (2, 1), starts=np.zeros(2), **together)) == 2


def test_with_processes_of_their_own_only_who_joins_has_to_start() -> None:
    """Job 0 has the fast GPU, job 1 none. Together they are worth 1.5 less a start; 1 + 0.25 apart."""
    workload = paired("ab", {("V100", "a", "b"): (0.9, 0.6)})
    at = {"on": np.array([0, -1]), "beside": np.array([-1, -1])}
    starts = np.array([0.4, 0.1])
    assert chosen(workload, np.ones(2), (1, 1), starts=starts, **at) == [Chosen(0, (0,)), Chosen(1, (1,))]
    assert chosen(workload, np.ones(2), (1, 1), own=True, starts=starts, **at) == [Chosen(0, (0, 1))]
    both = {"on": np.array([0, 0]), "beside": np.array([-1, -1])}  # apart on two GPUs of one model: one has to move
    assert chosen(workload, np.ones(2), (1, 1), own=True, starts=starts, **both) == [Chosen(0, (0, 1))]


def best_value(worth: F8, speed: F8, share: F8, capacity: tuple[int, int]) -> float:
    """By trying all ways: share[model, a, b] of its speed that a keeps beside b, 0 where they can't."""

    @cache
    def best(rest: tuple[int, ...], fast: int, slow: int) -> float:
        if not rest:
            return 0.0
        job, others = rest[0], rest[1:]
        found = best(others, fast, slow)
        for model, free in ((0, fast), (1, slow)):
            if not free:
                continue
            left = (fast - (model == 0), slow - (model == 1))
            found = max(found, worth[job] * speed[job, model] + best(others, *left))
            for other in others:
                mine, its = share[model, job, other], share[model, other, job]
                if mine and its:
                    value = worth[job] * speed[job, model] * mine + worth[other] * speed[other, model] * its
                    found = max(found, value + best(tuple(one for one in others if one != other), *left))
        return found

    return best(tuple(range(len(worth))), *capacity)


@given(st.data())
def test_what_is_chosen_is_possible_and_nearly_the_best(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 6))
    names = "".join(data.draw(st.lists(st.sampled_from("abcd"), min_size=n, max_size=n)))
    numbers = st.sampled_from([0.0, 0.3, 0.6, 0.8, 1.0])
    table: Shares = {}
    for model in MODELS:
        for index, one in enumerate("abcd"):
            for two in "abcd"[index:]:
                mine = data.draw(numbers)
                its = mine if one == two else data.draw(numbers)
                table[model, one, two] = (mine, its) if mine and its else (0.0, 0.0)
    share = np.zeros((2, n, n))
    for at, model in enumerate(MODELS):
        for one in range(n):
            for two in range(n):
                pair = table.get((model, names[one], names[two]))
                mine, its = pair if pair is not None else table[model, names[two], names[one]][::-1]
                if mine + its > 1:
                    share[at, one, two] = mine
    speed = np.column_stack([np.ones(n), data.draw(st.lists(numbers, min_size=n, max_size=n))])
    worth = np.array(data.draw(st.lists(st.sampled_from([0.2, 1.0, 2.5]), min_size=n, max_size=n)))
    capacity = (data.draw(st.integers(0, 2)), data.draw(st.integers(0, 2)))
    found = chosen(paired(names, table, speeds=speed), worth, capacity)
    members = [job for one in found for job in one.members]
    assert len(members) == len(set(members))
    value = 0.0
    for model in range(2):
        here = [one.members for one in found if one.model == model]
        assert len(here) <= capacity[model]
        for group in here:
            if len(group) == 1:
                value += worth[group[0]] * speed[group[0], model]
            else:
                a, b = group
                assert share[model, a, b] * share[model, b, a] > 0
                value += (
                    worth[a] * speed[a, model] * share[model, a, b] + worth[b] * speed[b, model] * share[model, b, a]
                )
    best = best_value(worth, speed, share, capacity)
    assert value <= best + 1e-9
    assert value >= 0.75 * best
    if not share.any():
        assert value == pytest.approx(best), "without pairs the program is an assignment problem"


# -- what work costs -------------------------------------------------------------------------------------------


def test_work_that_fits_beside_others_costs_less_where_gpus_are_short() -> None:
    workload = paired("abc", {("V100", "a", "b"): (1.0, 1.0)})
    pairing, profile, speed = pairing_of(workload)
    cost = pairing.costs(profile, speed, np.ones(3), np.array([1.0, 0.0]))
    assert cost.mean() == pytest.approx(1.0)
    assert cost[0] + cost[1] == pytest.approx(cost[2], rel=0.05), "the two take the time of one"


def test_a_second_is_worth_the_same_to_every_job_where_gpus_are_plenty() -> None:
    workload = paired("abc", {("V100", "a", "b"): (0.9, 0.9)}, speeds=np.array([[1.0, 0.2], [1.0, 2.0], [1.0, 0.5]]))
    pairing, profile, speed = pairing_of(workload)
    cost = pairing.costs(profile, speed, np.ones(3), np.array([9.0, 9.0]))
    assert cost * [1.0, 2.0, 1.0] == pytest.approx([1.2, 1.2, 1.2]), "per second at its best speed"


def test_between_the_two_a_job_pays_for_its_own_time_and_its_gpus() -> None:
    """Nobody is short of K80s: a second of a's work costs v, the price of a job's time. Work of b at a tenth of its
    speed is done there, too, so that it costs 10 v, and a V100 9 v."""
    workload = paired("abb", {}, speeds=np.array([[1.0, 1.0], [1.0, 0.1], [1.0, 0.1]]))
    pairing, profile, speed = pairing_of(workload)
    cost = pairing.costs(profile, speed, np.ones(3), np.array([1.0, 4.0]))
    assert cost == pytest.approx([1 / 7, 10 / 7, 10 / 7])
    assert pairing.costs(profile[:0], speed[:0], np.ones(0), np.array([1.0, 4.0])).tolist() == []


# -- under weave -----------------------------------------------------------------------------------------------


def test_weave_packs_the_fast_gpu_and_leaves_the_slow_one_idle_where_that_is_faster() -> None:
    workload = paired("ab", {("V100", "a", "b"): (0.9, 0.9)})
    found = simulate(workload, "1x1:V100,1x1:K80", "weave", restart_overhead_s=0.0)
    assert found.makespan_s == pytest.approx(1000 / 0.9)
    assert found.held_gpu_s[:, 1].sum() == 0


@pytest.mark.parametrize("schedule", ["rounds", "events"])
@pytest.mark.parametrize("overhead_s", [*slow(0.0), 60.0])
def test_weave_ends_every_job_and_gains_by_pairs(schedule: str, overhead_s: float) -> None:
    rng = np.random.default_rng(5)
    n = 60
    share: Shares = {("V100", "a", "b"): (0.9, 0.7), ("V100", "b", "b"): (0.6, 0.6), ("V100", "a", "a"): (0.0, 0.0)}
    names = "".join(rng.choice(list("abbabc"), n))
    workload = paired(names, share, rng.lognormal(8, 1, n).tolist())
    cluster = "1x3:V100,1x2:K80"
    found, alone = (
        simulate(workload, cluster, policy, restart_overhead_s=overhead_s, schedule=schedule)
        for policy in ("weave", "weave:group_size=1")
    )
    assert np.isfinite(found.end_s).all()
    assert found.avg_jct_s < 0.97 * alone.avg_jct_s
