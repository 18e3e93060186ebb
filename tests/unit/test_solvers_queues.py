"""Jobs to machines and places in their queues: the least sum of times of completion, by trying every assignment."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from gpuloom.solvers.queues import first_in_queues


def total(kind_of: dict[int, int], time_s: np.ndarray, machines: np.ndarray) -> float:
    """The least sum for jobs of which each runs on machines of a given kind: the longest go last, one a machine."""
    found = 0.0
    for kind, count in enumerate(machines.astype(int).tolist()):
        mine = sorted((time_s[job, kind] for job, on in kind_of.items() if on == kind), reverse=True)
        found += sum((at // count + 1) * time for at, time in enumerate(mine)) if count else (np.inf if mine else 0.0)
    return found


@pytest.mark.parametrize("machines", [[1.0], [2.0], [1.0, 1.0], [2.0, 1.0], [0.0, 2.0]])
def test_all_jobs_have_places_and_the_sum_is_the_least(machines: list[float]) -> None:
    rng, counts = np.random.default_rng(3), np.array(machines)
    for jobs in (1, 2, 3, 4, 5):
        for _ in range(3):
            time_s = rng.uniform(1.0, 20.0, (jobs, len(machines)))
            found = first_in_queues(time_s, counts)
            assert sorted(job for job, _ in found) == list(range(jobs))
            every = product(range(len(machines)), repeat=jobs)
            best = min(total(dict(enumerate(kinds)), time_s, counts) for kinds in every)
            assert total(dict(found), time_s, counts) == pytest.approx(best)
            # On each kind shorter jobs go first.
            for kind in range(len(machines)):
                mine = [time_s[job, kind] for job, on in found if on == kind]
                assert mine == sorted(mine)


def test_what_can_run_nowhere_has_no_place_and_who_costs_most_has_one() -> None:
    assert first_in_queues(np.array([[7.0]]), np.array([1.0])) == [(0, 0)]
    assert first_in_queues(np.array([[np.inf, 5.0], [np.inf, np.inf]]), np.array([1.0, 1.0])) == [(0, 1)]
    assert first_in_queues(np.array([[5.0]]), np.array([0.0])) == []
