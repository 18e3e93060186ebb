"""Iteration times of groups against a simulation of their own; matchings and groupings on random instances."""

from __future__ import annotations

from itertools import pairwise, permutations

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuloom.interleave.efficiency import MEASURED_OVERHEAD, Interleaving
from gpuloom.interleave.grouping import group_jobs
from gpuloom.solvers.matching import Matcher
from tiers import examples

ONES = (1.0, 1.0, 1.0, 1.0)
SECONDS = st.one_of(st.sampled_from([0.0, 1.0, 2.0]), st.floats(0.001, 20))


@st.composite
def groups(draw: st.DrawFn, *, stages: int) -> list[list[float]]:
    jobs = draw(st.integers(2, min(4, stages) if stages != 3 else 4))
    return draw(st.lists(st.lists(SECONDS, min_size=stages, max_size=stages), min_size=jobs, max_size=jobs))


def barrier_round_s(placed: list[list[float] | None]) -> float:
    """Play one iteration: in each step every job works on one resource, and all wait for the slowest."""
    stages = len(placed)
    clock, done = 0.0, [0] * stages
    at = list(range(stages))  # the resource that each slot's job works on
    for _ in range(stages):
        assert len(set(at)) == stages, "no resource is used twice at once"
        ends = [clock + (job[at[slot]] if job is not None else 0.0) for slot, job in enumerate(placed)]
        for slot in range(stages):
            done[slot] += 1
            at[slot] = (at[slot] + 1) % stages
        clock = max(ends)
    assert done == [stages] * stages
    return clock


@settings(max_examples=examples(80))
@given(groups(stages=4), st.sampled_from(["best", "worst", "none"]))
def test_the_barrier_model_is_what_a_simulation_of_its_steps_gives(group: list[list[float]], ordering: str) -> None:
    spare: list[list[float] | None] = [None] * (4 - len(group))
    tried = [barrier_round_s([*(group[job] for job in order), *spare]) for order in permutations(range(len(group)))]
    expected = {"best": min(tried), "worst": max(tried), "none": tried[0]}[ordering]
    model = Interleaving(model="barrier", ordering=ordering, overhead=ONES)
    found = model.iteration_s(np.array([group]))
    assert found[0] == pytest.approx(expected, rel=1e-12, abs=1e-12)
    if expected > 0:
        busy = [sum(job[resource] for job in group) / expected for resource in range(4)]
        assert model.efficiency(np.array([group]), found)[0] == pytest.approx(sum(busy) / 4)


def measured_round_s(order: list[list[float]]) -> float:
    """Play two rounds of four moments. A moment comes when all that has to end by then has ended.

    Between two moments one job sends, the next one in the ring computes; a load begins a moment earlier than that.
    """
    activities: list[tuple[int, int, float]] = []  # from moment, to moment, seconds
    for moment in range(8):
        for ahead, (spans, stage) in {1: (1, 2), 2: (1, 1), 3: (2, 0)}.items():
            slot = (moment + ahead) % 4
            if slot < len(order) and moment + 1 >= spans:
                activities.append((moment + 1 - spans, moment + 1, order[slot][stage]))
    reached = [0.0] * 9
    for moment in range(1, 9):
        reached[moment] = max((reached[begun] + s for begun, ended, s in activities if ended == moment), default=0.0)
    lasted = [reached[moment] - reached[moment - 4] for moment in range(4, 9)]
    for before, now in pairwise(lasted):
        if now > 0 and abs(now - before) <= 1e-3 * max(abs(now), abs(before)):
            return now
    return lasted[-1]


@settings(max_examples=examples(80))
@given(groups(stages=3), st.sampled_from(["best", "worst", "none"]))
def test_the_measured_model_is_what_a_simulation_of_its_moments_gives(group: list[list[float]], ordering: str) -> None:
    tried = [measured_round_s([group[job] for job in order]) for order in permutations(range(len(group)))]
    expected = tried[0]
    if ordering != "none":
        if len(group) == 2:
            (load, compute, network), (its_load, its_compute, its_network) = group
            tried.append(max(load, its_compute + its_network) + max(its_load, compute + network))
        expected = min(tried) if ordering == "best" else max(tried)
    found = Interleaving(ordering=ordering).iteration_s(np.array([group]))[0]
    assert found == pytest.approx(expected * MEASURED_OVERHEAD[len(group) - 1], rel=1e-9, abs=1e-12)


def test_many_groups_take_as_long_as_each_on_its_own() -> None:
    rng = np.random.default_rng(0)
    for jobs in (2, 3, 4):
        stage_s = rng.random((6000, jobs, 3)) ** 2
        for ordering in ("best", "worst"):
            model = Interleaving(ordering=ordering)
            seconds, slots = model.scheduled(stage_s)
            for index in range(0, 6000, 500):
                alone = model.scheduled(stage_s[index : index + 1])
                assert seconds[index] == alone[0][0]
                assert (slots[index] == alone[1][0]).all()


@st.composite
def matchings(draw: st.DrawFn) -> tuple[np.ndarray, list[int]]:
    types = draw(st.integers(1, 6))
    entry = st.one_of(st.sampled_from([0.0, 1.0, 2.0, -1.0, float("nan"), float("-inf")]), st.floats(0.01, 3))
    weight = np.zeros((types, types))
    for a in range(types):
        for b in range(a, types):
            weight[a, b] = weight[b, a] = draw(entry)
    symmetric = np.where(np.isnan(weight), 0.0, weight)
    return symmetric, draw(st.lists(st.integers(0, 4), min_size=types, max_size=types))


@settings(max_examples=examples(120))
@given(matchings(), st.sampled_from(["auto", "columns", "exact"]))
def test_matchings_weigh_what_networkx_finds(instance: tuple[np.ndarray, list[int]], solver: str) -> None:
    weight, counts = instance
    kinds = np.repeat(np.arange(len(counts)), counts)
    graph = nx.Graph()
    for i, kind in enumerate(kinds):
        for j in range(i):
            if weight[kind, kinds[j]] > 0:
                graph.add_edge(i, j, weight=float(weight[kind, kinds[j]]))
    optimum = sum(graph[a][b]["weight"] for a, b in nx.max_weight_matching(graph))
    matcher = Matcher(weight)
    matcher.solve(np.ones(len(counts)))
    found = matcher.solve(counts, solver=solver)
    assert found.weight <= optimum + 1e-9
    assert found.bound >= optimum - 1e-7
    if found.optimal:
        assert found.weight == pytest.approx(optimum, rel=1e-7)
    if solver == "exact":
        assert found.optimal
    spent = np.zeros(len(counts))
    for a, b, count in found.pairs:
        assert weight[a, b] > 0
        spent[a] += count
        spent[b] += count
    assert (spent <= counts).all()
    assert found == Matcher(weight).solve(counts, solver=solver)


@settings(max_examples=examples(40))
@given(
    st.lists(st.lists(st.floats(0.01, 5), min_size=3, max_size=3), min_size=1, max_size=5),
    st.lists(st.integers(0, 4), min_size=1, max_size=16),
    st.integers(1, 4),
    st.sampled_from(["efficiency", "throughput"]),
)
def test_rounds_are_never_better_than_exact(
    profiles: list[list[float]], picks: list[int], size: int, objective: str
) -> None:
    stage_s = np.array([profiles[pick % len(profiles)] for pick in picks])
    model = Interleaving()
    solo_s = stage_s.sum(axis=1)
    for other in ("multiround", "greedy"):
        rounds = group_jobs(stage_s, method=other, size=size, interleaving=model, objective=objective)
        exact = group_jobs(
            stage_s, method="exact", size=size, groups=len(rounds.groups), interleaving=model, objective=objective
        )
        assert exact.value >= rounds.value - 1e-6 * max(1.0, rounds.value)
        assert len(exact.groups) <= max(len(rounds.groups), exact.wanted)
        for found in (rounds, exact):
            assert sorted(row for group in found.groups for row in group) == list(range(len(picks)))
            for group, seconds in zip(found.groups, found.iteration_s, strict=True):
                assert len(group) <= size
                assert seconds <= solo_s[list(group)].sum() * (1 + 1e-6)
