"""Matchings of types of nodes, against hand-made graphs and networkx."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest

from gpuloom.core.errors import InputError
from gpuloom.solvers.matching import TABLE_TYPES, Matcher, Matching

SOLVERS = ("auto", "exact", "table", "columns")


def heaviest(weight: np.ndarray, counts: object = None, *, solver: str = "auto") -> Matching:
    return Matcher(weight).solve(counts, solver=solver)  # type: ignore[arg-type]


def blossom(weight: np.ndarray, counts: np.ndarray) -> float:
    """Weight of networkx' matching of all nodes, each on its own."""
    kinds = np.repeat(np.arange(len(weight)), counts)
    graph = nx.Graph()
    for i in range(len(kinds)):
        for j in range(i):
            if weight[kinds[i], kinds[j]] > 0:
                graph.add_edge(i, j, weight=float(weight[kinds[i], kinds[j]]))
    return sum(graph[a][b]["weight"] for a, b in nx.max_weight_matching(graph))


def symmetric(rng: np.random.Generator, types: int, allowed: float = 1.0) -> np.ndarray:
    weight = np.where(rng.random((types, types)) < allowed, rng.random((types, types)), 0.0)
    return np.triu(weight) + np.triu(weight, 1).T


def used(matching: Matching, types: int) -> np.ndarray:
    nodes = np.zeros(types, dtype=int)
    for a, b, count in matching.pairs:
        nodes[a] += count
        nodes[b] += count
    return nodes


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("odd", [3, 5, 7])
def test_an_odd_cycle_leaves_one_node_out(solver: str, odd: int) -> None:
    weight = np.zeros((odd, odd))
    for node in range(odd):
        after = (node + 1) % odd
        weight[node, after] = weight[after, node] = 1.0
    found = heaviest(weight, solver=solver)
    assert found.weight == (odd - 1) / 2, "half of every edge would weigh odd / 2"
    assert found.optimal
    assert used(found, odd).max() == 1


@pytest.mark.parametrize("solver", SOLVERS)
def test_two_triangles_joined_by_a_light_edge(solver: str) -> None:
    weight = np.zeros((6, 6))
    for a, b, w in ((0, 1, 4), (1, 2, 4), (0, 2, 4), (3, 4, 4), (4, 5, 4), (3, 5, 4), (2, 3, 1)):
        weight[a, b] = weight[b, a] = w
    found = heaviest(weight, solver=solver)
    assert found.weight == 9, "an edge of each triangle and the bridge; halves of the triangles weigh 12"
    assert found.pairs == ((0, 1, 1), (2, 3, 1), (4, 5, 1))


@pytest.mark.parametrize("solver", SOLVERS)
def test_nodes_of_one_type_pair_among_themselves(solver: str) -> None:
    weight = np.array([[3.0, 1.0], [1.0, 0.5]])
    assert heaviest(weight, [4, 2], solver=solver).pairs == ((0, 0, 2), (1, 1, 1))
    assert heaviest(weight, [3, 1], solver=solver).pairs == ((0, 0, 1), (0, 1, 1))
    assert heaviest(weight, [1, 1], solver=solver).pairs == ((0, 1, 1),)


@pytest.mark.parametrize("banned", [0.0, -1.0, -np.inf, np.nan])
def test_what_is_not_above_zero_is_not_paired(banned: float) -> None:
    weight = np.array([[banned, banned, 1.0], [banned, banned, banned], [1.0, banned, banned]])
    for solver in SOLVERS:
        assert heaviest(weight, [5, 5, 2], solver=solver).pairs == ((0, 2, 2),)
    assert heaviest(np.full((3, 3), banned)).pairs == ()


def test_nothing_to_pair() -> None:
    assert heaviest(np.zeros((0, 0))).weight == 0
    assert heaviest(np.ones((2, 2)), [1, 0]).pairs == ()
    assert heaviest(np.ones((1, 1)), [5]).pairs == ((0, 0, 2),)


@pytest.mark.parametrize("solver", SOLVERS)
def test_same_weight_as_networkx(solver: str) -> None:
    rng = np.random.default_rng(7)
    for trial in range(60):
        types = int(rng.integers(1, 8))
        weight = symmetric(rng, types, 0.4 if trial % 2 else 1.0)
        if trial % 3 == 0:
            weight = np.round(weight * 3)  # many ties
        counts = rng.integers(0, 4, types)
        found = heaviest(weight, counts, solver=solver)
        assert found.weight == pytest.approx(blossom(weight, counts), abs=1e-9)
        assert found.bound >= found.weight
        assert (used(found, types) <= counts).all()


def test_exact_is_the_optimum_of_many_types() -> None:
    rng = np.random.default_rng(3)
    weight = symmetric(rng, 60, 0.1)
    found = heaviest(weight, solver="exact")
    assert found.weight == pytest.approx(blossom(weight, np.ones(60, dtype=int)), abs=1e-9)
    assert found.optimal


@pytest.mark.slow
def test_many_types_are_near_the_bound() -> None:
    rng = np.random.default_rng(4)
    types = 3 * TABLE_TYPES
    weight = symmetric(rng, types)
    found = heaviest(weight)
    assert found.weight >= 0.99 * found.bound
    assert used(found, types).max() == 1
    best = blossom(weight, np.ones(types, dtype=int))
    assert 0.995 * best <= found.weight <= best + 1e-9
    assert found.bound >= best - 1e-7


def test_the_answer_does_not_depend_on_what_was_solved_before() -> None:
    rng = np.random.default_rng(5)
    weight = np.round(symmetric(rng, 12) * 4)  # many optima
    asked = [rng.integers(0, 9, 12) for _ in range(12)]
    used_before = Matcher(weight)
    for counts in asked:
        used_before.solve(counts)
    for counts in asked[::-1]:
        assert used_before.solve(counts) == Matcher(weight).solve(counts)


def test_the_matrix_given_is_not_changed() -> None:
    weight = np.array([[0.0, 1.0], [1.0, np.nan]])
    heaviest(weight)
    assert np.isnan(weight[1, 1])
    assert weight[0, 0] == 0


@pytest.mark.parametrize(
    ("weight", "counts", "says"),
    [
        (np.ones((2, 3)), None, "square"),
        (np.array([[0.0, 1.0], [2.0, 0.0]]), None, "symmetric"),
        (np.array([[0.0, np.inf], [np.inf, 0.0]]), None, "infinite"),
        (np.ones((2, 2)), [1], "counts of 2 types"),
        (np.ones((2, 2)), [1, -1], "whole numbers"),
        (np.ones((2, 2)), [1, 1.5], "whole numbers"),
        (np.ones((2, 2)), [1, np.nan], "whole numbers"),
    ],
)
def test_what_can_not_be(weight: np.ndarray, counts: list[float] | None, says: str) -> None:
    with pytest.raises(InputError, match=says):
        heaviest(weight, counts)
    with pytest.raises(InputError, match="matching solver 'magic'"):
        heaviest(np.ones((2, 2)), solver="magic")


def test_types_without_nodes_change_nothing() -> None:
    """The wide program is solved without them, and its pairs carry the numbers of all types."""
    rng = np.random.default_rng(8)
    weight = symmetric(rng, TABLE_TYPES + 4, 0.3)
    counts = np.where(rng.random(len(weight)) < 0.4, rng.integers(1, 3, len(weight)), 0)
    found = heaviest(weight, counts, solver="columns")
    assert (used(found, len(weight)) <= counts).all()
    assert found.weight == pytest.approx(sum(weight[a, b] * n for a, b, n in found.pairs))
    assert found.weight == pytest.approx(blossom(weight, counts))
    assert found.bound >= found.weight * (1 - 1e-9)
