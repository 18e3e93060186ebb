"""Hazards learnt from ends: against counting by hand, and their index against Gittins' definition."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray

from gpuloom.learning.hazard import BINS, FIRST_S, GROWTH, OWN_JOBS, PRIOR, PRIOR_JOBS, Hazards

F8 = NDArray[np.float64]
EDGES = [0.0, *(FIRST_S * GROWTH**n for n in range(BINS))]


def fresh(kinds: int = 1) -> Hazards:
    return Hazards(np.zeros((kinds, BINS)), np.zeros((kinds, BINS)))


def kind(*values: int) -> NDArray[np.intp]:
    return np.array(values, dtype=np.intp)


def gittins(hazard: list[float], at: int) -> float:
    """The definition: over all times to stop, the chance of an end by then over the work expected until then.

    The hazard is constant within a bin (per bin, not per second), and one stops at edges of bins.
    """
    best, alive, ends, spent = 0.0, 1.0, 0.0, 0.0
    for b in range(at, BINS):
        width, survives = EDGES[b + 1] - EDGES[b], math.exp(-hazard[b])
        rate = hazard[b] / width
        spent += alive * (1 - survives) / rate
        ends += alive * (1 - survives)
        alive *= survives
        best = max(best, ends / spent)
    return best


def smoothed(seen: Hazards, exposure: F8) -> F8:
    pool = (seen.ends.sum(axis=0) + PRIOR_JOBS * PRIOR) / (exposure.sum(axis=0) + PRIOR_JOBS)
    return np.asarray((seen.ends + OWN_JOBS * pool) / (exposure + OWN_JOBS))


@pytest.mark.parametrize("seed", range(4))
def test_the_index_is_gittins_s(seed: int) -> None:
    """On a few sharp durations, by two classes."""
    rng = np.random.default_rng(seed)
    seen = fresh(2)
    sharp = np.array([10.0, 400.0, 5000.0, 90_000.0])
    kinds = rng.integers(0, 2, 80)
    seen.ended(kinds, rng.choice(sharp, 80, p=[0.4, 0.3, 0.2, 0.1]))
    work = np.array([0.0, 5.0, 301.0, 420.0, 6000.0, 80_000.0, 1e6])
    for one in (0, 1):
        found = seen.index(np.full(len(work), one), work)
        exposure = seen.exposure.copy()
        for done in work:
            exposure[one] += [min(max((done - a) / (b - a), 0), 1) for a, b in pairwise(EDGES)]
        hazard = smoothed(seen, exposure)[one].tolist()
        bins = [max(n for n in range(BINS) if EDGES[n] <= done) for done in work.tolist()]
        assert found == pytest.approx([gittins(hazard, at) for at in bins], rel=1e-9)


def test_what_has_ended_is_counted_once_in_its_bin_and_seen_in_those_before() -> None:
    seen = fresh(2)
    seen.ended(kind(1, 1, 0), np.array([FIRST_S / 2, FIRST_S * GROWTH**2, 0.0]))
    assert seen.ends.sum() == 3
    assert seen.ends[0, 0] == 1
    assert seen.ends[1, 0] == 1
    assert seen.ends[1, 2] == 1, "an end on an edge is the end of the bin before it"
    assert seen.exposure[0].sum() == 0
    assert seen.exposure[1, :4].tolist() == pytest.approx([1.5, 1, 1, 0])
    seen.ended(kind(1, 1), np.array([FIRST_S / 2] * 2))
    assert seen.ends[1, 0] == 3, "several at once count each"
    assert seen.exposure[1, 0] == pytest.approx(2.5)


def test_asking_changes_nothing() -> None:
    seen = fresh(2)
    seen.ended(kind(0, 1), np.array([100.0, 9000.0]))
    before = seen.exposure.tobytes(), seen.ends.tobytes()
    first = seen.index(kind(0, 1), np.array([50.0, 5e5]))
    assert (seen.exposure.tobytes(), seen.ends.tobytes()) == before
    assert seen.index(kind(0, 1), np.array([50.0, 5e5])).tolist() == first.tolist()


def test_active_jobs_count_as_survivors() -> None:
    """A hundred that are still there after a day make an early end less likely."""
    seen = fresh()
    alone = seen.index(kind(0), np.array([0.0]))[0]
    among = seen.index(np.zeros(101, dtype=np.intp), np.array([0.0] + [86_400.0] * 100))[0]
    assert among < alone / 2


def test_after_many_short_jobs_a_young_job_is_likelier_to_end_than_an_old_one() -> None:
    seen = fresh()
    rng = np.random.default_rng(1)
    before = seen.index(kind(0, 0), np.array([0.0, 50_000.0]))
    seen.ended(np.zeros(500, dtype=np.intp), np.concatenate([rng.exponential(200, 450), rng.uniform(5e4, 5e6, 50)]))
    after = seen.index(kind(0, 0), np.array([0.0, 50_000.0]))
    assert after[0] > 5 * after[1]
    assert after[0] > before[0]
    assert after[0] == pytest.approx(1 / 250, rel=0.5), "about one end per 250 s"


def test_a_job_near_the_one_duration_there_is_comes_first() -> None:
    """All jobs take 10,000 s: who has worked for 9,000 s has an end in sight."""
    seen = fresh()
    seen.ended(np.zeros(300, dtype=np.intp), np.full(300, 10_000.0))
    young, old, past = seen.index(kind(0, 0, 0), np.array([0.0, 9000.0, 40_000.0]))
    assert old > 3 * young
    assert past < old


def test_with_nothing_seen_less_work_done_means_a_higher_index() -> None:
    """From the second bin on: the first one is four times as wide as the next, and ends as many."""
    work = np.array(EDGES[:BINS])
    index = np.array([fresh(3).index(kind(2), np.array([done]))[0] for done in work])
    assert np.isfinite(index).all()
    assert (index > 0).all()
    assert (np.diff(index[1:]) < 0).all()


def test_no_work_no_jobs_and_endless_work() -> None:
    seen = fresh()
    assert seen.index(kind(), np.zeros(0)).shape == (0,)
    seen.ended(kind(), np.zeros(0))
    assert not seen.ends.any()
    seen.ended(np.zeros(10_000, dtype=np.intp), np.zeros(10_000))
    seen.ended(kind(0, 0), np.array([1e12, 5e-324]))
    index = seen.index(kind(0, 0, 0), np.array([0.0, 1e12, 1e300]))
    assert np.isfinite(index).all()
    assert (index > 0).all()
    assert seen.ends[0, -1] == 1, "beyond the last edge: the last bin"


def test_a_class_of_which_little_is_known_leans_on_all_together() -> None:
    seen = fresh(3)
    seen.ended(np.zeros(2000, dtype=np.intp), np.full(2000, 100.0))
    seen.ended(np.ones(2000, dtype=np.intp), np.full(2000, 100_000.0))
    short, long, unseen = (float(seen.index(kind(k), np.zeros(1))[0]) for k in range(3))
    assert short > unseen > long
    pooled = Hazards(seen.exposure.sum(axis=0, keepdims=True), seen.ends.sum(axis=0, keepdims=True))
    assert unseen == pytest.approx(float(pooled.index(kind(0), np.zeros(1))[0]), rel=0.05)
    # Of its own ends it soon learns more than of others'.
    seen.ended(np.full(100, 2), np.full(100, 100_000.0))
    assert float(seen.index(kind(2), np.zeros(1))[0]) < unseen / 3


def test_the_bins_of_work() -> None:
    seen = fresh()
    work = np.array([0.0, 299.9, 300.0, 374.9, 375.0, 1e30])
    assert seen.bins(work).tolist() == [0, 0, 1, 1, 2, BINS - 1]
    assert seen.edge_s.tolist() == pytest.approx(EDGES)
