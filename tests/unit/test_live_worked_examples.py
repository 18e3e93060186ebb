"""The worked examples of hlas and elastic happen live, to the number."""

from __future__ import annotations

import pytest

from gpuloom.live.trial.rehearsal import Rehearsal


@pytest.mark.parametrize(("a", "s", "gain"), [((10.0, 1.0), (2.0, 1.0), 8.0), ((2.0, 1.0), (10.0, 1.0), -8.0)])
def test_hlas_swaps_where_the_gain_is_positive(a: tuple[float, float], s: tuple[float, float], gain: float) -> None:
    """Speeds on V100 and K80, as the jobs say them."""
    of_a, of_s = (dict(zip(("V100", "K80"), speeds, strict=True)) for speeds in (a, s))
    it = Rehearsal("hlas:gain=iterations;min_seconds_between_moves=0", models=["V100", "K80"], interval_s=0.0)
    (filler,) = it.submit({"gpu_types": ["V100"], "estimate": "10h"})
    (first,) = it.submit({"name": "a", "speeds": of_a, "estimate": "10h"})
    assert [it.service.job(job)["where"] for job in (filler, first)] == ["here:0", "here:1"]
    (second,) = it.submit({"name": "s", "speeds": of_s, "estimate": "10h"})
    assert it.service.job(second)["state"] == "queued"
    it.end(it.scheduler.book.attempts[filler].run)
    where = [it.service.job(job)["where"] for job in (first, second)]
    assert where == (["here:0", "here:1"] if gain > 0 else ["here:1", "here:0"])


def test_elastic_rounds_by_the_letter() -> None:
    """A = 20, p = 0.3, ET = 0.3, ST = 0.9, MT = 0.6. With one replica: M = 19·0.3 = 5.7, t = 1/5.7 = 0.18 < ET, and
    the budget is (0.6 - 0.18)·5.7 = 2.42: two more. Then M = 5.1, t = 3/5.1 = 0.59: hold. With 16 GPUs in use by
    others M = 0.3, t = 10 > ST, and the budget of 2.82 takes them back."""
    it = Rehearsal("elastic:literal=yes", models=["V100"] * 20, interval_s=0.0)
    (job,) = it.submit({"elastic": "1-8"})

    def now() -> object:
        replicas = it.service.job(job)["replicas"]
        return None if replicas is None else replicas["now"]

    assert now() == 1
    it.later(300.0)
    assert now() == 3
    it.later(600.0)
    assert now() == 3
    it.submit({"gpus": 16, "estimate": "10h"})
    assert now() == 3, "there is room for both until the next check"
    it.later(300.0)
    assert now() == 1
