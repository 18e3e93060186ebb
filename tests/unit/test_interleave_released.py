"""The released simulator's matcher: best where rounding does not matter, and its runs job by job."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from gpuloom.core.decision import Decision
from gpuloom.core.snapshot import Snapshot
from gpuloom.interleave.released import released_partners
from gpuloom.policies.muri import MuriL
from gpuloom.sim import simulate
from gpuloom.traces.generate import GeneratorConfig, generate


def best_weight(weight: np.ndarray) -> float:
    """By trying every matching."""

    def tried(free: tuple[int, ...]) -> Iterator[float]:
        if not free:
            yield 0.0
            return
        first, rest = free[0], free[1:]
        yield from tried(rest)
        for other in rest:
            if weight[first, other] > 0:
                left = tuple(node for node in rest if node != other)
                for more in tried(left):
                    yield weight[first, other] + more

    return max(tried(tuple(range(len(weight)))))


def weight_of(partner: list[int], weight: np.ndarray) -> float:
    """Of a matching, after checking that it is one."""
    for node, other in enumerate(partner):
        if other >= 0:
            assert partner[other] == node != other
            assert weight[node, other] > 0
    return sum(float(weight[node, other]) for node, other in enumerate(partner) if other > node)


def graph(rng: np.random.Generator, nodes: int, allowed: float, most: int) -> np.ndarray:
    weight = np.where(rng.random((nodes, nodes)) < allowed, rng.integers(1, most + 1, (nodes, nodes)), 0).astype(float)
    return np.triu(weight, 1) + np.triu(weight, 1).T


@pytest.mark.parametrize("most", [1, 3, 50])
@pytest.mark.parametrize("allowed", [0.3, 0.6, 1.0])
def test_whole_weights_are_matched_best(allowed: float, most: int) -> None:
    rng = np.random.default_rng(int(10 * allowed) + most)
    for _ in range(40):
        weight = graph(rng, int(rng.integers(2, 9)), allowed, most)
        assert weight_of(released_partners(weight), weight) == best_weight(weight)


def test_blossoms_within_blossoms_fall_apart_again() -> None:
    """Two-way odd circles joined in chains: many are shrunk in one search and dissolved in a later one."""
    rng = np.random.default_rng(5)
    nx = pytest.importorskip("networkx")
    for _ in range(30):
        weight = graph(rng, 24, 0.25, 7)
        edges = [(u, v, weight[u, v]) for u in range(24) for v in range(u) if weight[u, v] > 0]
        known = nx.Graph()
        known.add_weighted_edges_from(edges)
        best = sum(known[u][v]["weight"] for u, v in nx.max_weight_matching(known))
        assert weight_of(released_partners(weight), weight) == best


def test_fractions_come_close_to_the_best() -> None:
    rng = np.random.default_rng(6)
    for _ in range(30):
        drawn = rng.uniform(0.2, 0.9, (8, 8))
        weight = np.triu(drawn, 1) + np.triu(drawn, 1).T
        assert weight_of(released_partners(weight), weight) >= best_weight(weight) * (1 - 1e-4)


def test_of_equal_pairs_the_first_ones_are_taken() -> None:
    assert released_partners(np.ones((6, 6))) == [1, 0, 3, 2, 5, 4]


def test_a_last_bit_of_one_direction_decides() -> None:
    """Seen from its first node the edge is tight at once, so the walk takes it before the others."""
    weight = np.full((4, 4), 0.7)
    weight[0, 2] = np.nextafter(0.7, 1.0)
    assert released_partners(weight) == [2, 3, 0, 1]


@pytest.mark.parametrize("weight", [[], [[1.0]], [[0.0, 0.0], [0.0, 0.0]], [[1.0, -1.0], [-1.0, 1.0]]])
def test_without_edges_everyone_stays_alone(weight: list[list[float]]) -> None:
    assert released_partners(weight) == [-1] * len(weight)


def test_the_same_graph_gives_the_same_pairs() -> None:
    weight = graph(np.random.default_rng(7), 40, 0.8, 1000) / 999
    once = released_partners(weight)
    assert released_partners(weight.copy()) == once
    assert released_partners(weight.tolist()) == once


class LosesItsCache(MuriL):
    """Plans anew from memory alone at every call."""

    def decide(self, snapshot: Snapshot, memory: Any) -> tuple[Decision, Any]:
        self.cache = None
        return super().decide(snapshot, list(memory))


@pytest.mark.slow
def test_memory_is_all_that_a_plan_needs() -> None:
    workload = generate(GeneratorConfig(jobs=60, gpus=16, load=2.0, seed=3))
    values = {"matcher": "released", "slow_groups": "split", "first_fit": True, "restart_partners": False}
    kept = simulate(workload, "2x8", MuriL(**values), compat="muri")
    lost = simulate(workload, "2x8", LosesItsCache(**values), compat="muri")
    assert np.array_equal(kept.end_s, lost.end_s)
