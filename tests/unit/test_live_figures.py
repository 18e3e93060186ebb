"""Figures over time: what is counted is exact, thinning keeps means and bounds, and a restart loses nothing."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from api_client import TOKEN, Local
from builders import jobs
from gpuloom.core.errors import InputError, NotFoundError
from gpuloom.core.metrics import jct_figures
from gpuloom.live.figures import sampler
from gpuloom.live.figures.sample import (
    KEPT_S,
    MOST_USERS,
    OTHERS,
    Figures,
    Machines,
    Thinning,
    UserFigures,
    fewer,
    figures_of,
    finest,
    mean,
    row_of,
)
from gpuloom.live.figures.tally import Tally
from gpuloom.live.trial.rehearsal import Rehearsal
from gpuloom.server.app import make_app
from gpuloom.sim import simulate
from gpuloom.store.errors import StoreError
from gpuloom.store.memory import MemoryStore
from gpuloom.store.port import SampleRow
from gpuloom.store.sqlite import SqliteStore
from live_builders import living
from planned import Planned, Task


def drawn(seed: int, count: int, slots: int) -> list[Task]:
    random = np.random.default_rng(seed)
    work = random.uniform(20.0, 400.0, count)
    at = np.cumsum(random.exponential(60.0, count))
    return [
        Task(float(a), int(random.integers(1, slots + 1)), float(w), float(w)) for a, w in zip(at, work, strict=True)
    ]


@pytest.mark.parametrize("policy", ["fifo", "srtf", "tiresias:thresholds=500/2000"])
def test_what_is_counted_live_is_what_the_simulator_counts(policy: str) -> None:
    """Queue length and utilisation, averaged over time, on one virtual clock: the same to nine digits."""
    tasks = drawn(1, 25, 4)
    live = Planned(tasks, policy, slots=4)
    clock = [0.0]
    commit = live._tell

    def tell(kind: str, job: int | None, at_s: float, **data: Any) -> None:
        clock[0] = at_s
        commit(kind, job, at_s, **data)

    live._tell = tell  # type: ignore[method-assign]
    tally = Tally(live.book, lambda: clock[0])
    live.run()
    span_s, every, of_users = tally.take(max(live.end_s.values()))
    again = simulate(
        jobs([(t.at_s, t.takes_s, t.gpus) for t in tasks]), "1x4", policy, interval_s=0.0, restart_overhead_s=0.0
    )
    whole_s = again.makespan_s
    assert every.queue_length * span_s / whole_s == pytest.approx(again.avg_queue_length, rel=1e-9)
    assert every.busy_gpus * span_s / whole_s / 4 == pytest.approx(again.utilization, rel=1e-9)
    assert every.queue_length > 0.1
    assert every.ended == len(tasks)
    jct = jct_figures(np.array([live.end_s[n] - task.at_s for n, task in enumerate(tasks, 1)]))
    assert every.jct_s / every.ended == pytest.approx(jct.avg_jct_s)
    assert jct.avg_jct_s == pytest.approx(again.avg_jct_s)
    assert jct.p99_jct_s == pytest.approx(again.p99_jct_s)
    assert of_users == {"ann": every}


def test_figures_of_job_completion_times_by_hand() -> None:
    found = jct_figures(np.arange(1.0, 201.0))
    assert (found.avg_jct_s, found.median_jct_s, found.p99_jct_s) == (100.5, 100.5, 199.0)
    assert math.isnan(jct_figures(np.zeros(0)).avg_jct_s)


# -- thinning ----------------------------------------------------------------------------------------------------------


def sample(from_s: float, queue: float = 1.0, *, span_s: float = 10.0, **more: Any) -> Figures:
    one = UserFigures(queue, 2.0, 3.0, 0.5, 1, 40.0)
    return Figures(from_s, span_s, one, 1.0, 4.0, 2.0, 1.0, Machines(**more), {"ann": one})


def fed(store: MemoryStore, samples: list[Figures]) -> None:
    thinning = Thinning(store.samples(since_s=0.0, until_s=math.inf))
    for one in samples:
        until_s = one.from_s + one.span_s
        store.put_samples(thinning.take(one), {width: until_s - kept for width, kept in KEPT_S.items()})


def widths(store: MemoryStore) -> dict[int, int]:
    found: dict[int, int] = {}
    for row in store.samples(since_s=0.0, until_s=math.inf):
        found[row.width_s] = found.get(row.width_s, 0) + 1
    return found


@pytest.mark.slow
def test_a_series_stays_bounded_and_its_means_stay_what_they_were() -> None:
    store = MemoryStore()
    hours = 25
    fed(store, [sample(10.0 * n, float(n % 6)) for n in range(360 * hours)])
    assert widths(store) == {10: 360, 60: 1440, 3600: hours}
    series = finest(store.samples(since_s=0.0, until_s=math.inf))
    assert [one.from_s for one in series] == sorted(one.from_s for one in series)
    ends = [one.from_s + one.span_s for one in series]
    assert [one.from_s for one in series[1:]] == pytest.approx(ends[:-1])  # no gap, nothing twice
    assert sum(one.span_s for one in series) == pytest.approx(hours * 3600)
    assert sum(one.all.queue_length * one.span_s for one in series) / (hours * 3600) == pytest.approx(2.5)
    assert sum(one.all.ended for one in series) == 360 * hours
    assert {one.all.queue_length for one in series if one.span_s > 10} == {2.5}


@pytest.mark.parametrize("cut", [1, 5, 6, 7, 359, 360, 361, 500])
def test_thinning_goes_on_after_a_restart(cut: int) -> None:
    """Whenever the scheduler ends, the minutes and hours are those of one that never did."""
    samples = [sample(10.0 * n, float(n % 7)) for n in range(800)]
    whole, parts = MemoryStore(), MemoryStore()
    fed(whole, samples)
    fed(parts, samples[:cut])
    fed(parts, samples[cut:])
    assert parts.samples(since_s=0.0, until_s=math.inf) == whole.samples(since_s=0.0, until_s=math.inf)


def test_a_time_without_a_scheduler_is_no_part_of_any_mean() -> None:
    store = MemoryStore()
    fed(store, [sample(0.0, 4.0), sample(10.0, 4.0)])
    fed(store, [sample(50.0, 1.0), sample(7200.0, 1.0)])
    minute = next(figures_of(row) for row in store.samples(since_s=0.0, until_s=1.0) if row.width_s == 60)
    assert (minute.span_s, minute.all.queue_length) == (30.0, 3.0)
    hour = next(figures_of(row) for row in store.samples(since_s=0.0, until_s=1.0) if row.width_s == 3600)
    assert (hour.span_s, hour.all.queue_length) == (30.0, 3.0)


def test_what_is_not_known_is_left_out_of_means() -> None:
    parts = [sample(0.0, cpu_percent=50.0), sample(10.0, span_s=30.0, cpu_percent=10.0), sample(40.0)]
    found = mean(parts, 0.0)
    assert found.machines.cpu_percent == pytest.approx((50 * 10 + 10 * 30) / 40)
    assert found.machines.gpu_utilization is None
    assert (found.span_s, found.gpus, found.nodes_up, found.all.ended, found.all.jct_s) == (50.0, 4.0, 1.0, 3, 120.0)
    with pytest.raises(ValueError, match="no samples"):
        mean([], 0.0)


def test_users_beyond_the_most_are_counted_as_others() -> None:
    of_users = {f"u{n:02}": UserFigures(1.0, 0.0, float(n), float(n), n, 1.0) for n in range(MOST_USERS + 3)}
    found = fewer(of_users)
    assert len(found) == MOST_USERS + 1
    assert found[OTHERS] == UserFigures(3.0, 0.0, 3.0, 1.0, 3, 3.0)  # the three with the least
    assert sum(one.busy_gpus for one in found.values()) == sum(one.busy_gpus for one in of_users.values())
    assert fewer(found) is found


def test_a_sample_comes_back_and_a_spoilt_one_says_so(caplog: pytest.LogCaptureFixture) -> None:
    one = sample(20.0, 1.25, gpu_utilization=97.0, read_mib_per_s=0.5)
    assert figures_of(row_of(10, one)) == one
    for data in ({}, {**row_of(10, one).data, "all": "x"}, {**row_of(10, one).data, "machines": {"moon": 1.0}}):
        with pytest.raises(StoreError, match=r"the sample of 20 s \(10 s wide\) can't be read"):
            figures_of(SampleRow(10, 20.0, 10.0, data))
    assert Thinning([SampleRow(10, 20.0, 10.0, {}), row_of(10, one)]).pending[60] == [one]
    assert "left out" in caplog.text


# -- the sampler -------------------------------------------------------------------------------------------------------


def sampled(live: Rehearsal, seconds: int) -> list[Figures]:
    for _ in range(seconds // 10):
        live.later(10.0)
    return finest(live.store.samples(since_s=0.0, until_s=math.inf))


def test_samples_of_a_scheduler_that_runs() -> None:
    live = Rehearsal("fifo", models=["V100"] * 4)
    first, second = live.submit({"gpus": 4, "estimate": "100s"}, {"gpus": 2, "estimate": "50s"})
    live.submit({"after": [first]})
    series = sampled(live, 30)
    assert [(one.all.queue_length, one.all.running, one.all.busy_gpus) for one in series] == [(1.0, 1.0, 4.0)] * 3
    assert [one.all.blocking_index for one in series] == pytest.approx([10 / 50, 20 / 50, 30 / 50])
    assert {one.gpus for one in series} == {4.0}
    live.end(f"{first}.1")  # now the second runs, and the third, which waited for the first
    series = sampled(live, 10)
    assert (series[-1].all.queue_length, series[-1].all.running, series[-1].all.busy_gpus) == (0.0, 2.0, 3.0)
    assert (series[-1].all.ended, series[-1].all.jct_s) == (1, 30.0)
    live.end(f"{second}.1")
    assert sampled(live, 10)[-1].of_users["ann"].busy_gpus == 1.0
    found = live.service.stats(since_s=None, until_s=None, user=None)
    assert (found["jobs"], found["finished"], found["avg_jct_s"], found["makespan_s"]) == (2, 2, 35.0, 40.0)
    assert found["covered_s"] == 50.0
    assert found["avg_queue_length"] == pytest.approx(30 / 50)
    assert found["utilization"] == pytest.approx((30 * 4 + 10 * 3 + 10 * 1) / (50 * 4))
    assert found["gpu_s"] == pytest.approx(30 * 4 + 10 * 3 + 10 * 1)
    assert found["blocking_index"] == pytest.approx((0.2 + 0.4 + 0.6) * 10 / 50)


def test_stats_have_what_resizes_cost_on_average() -> None:
    live = Rehearsal("fifo", models=["V100"] * 2)
    ann, bob = (live.submit({}, user=user)[0] for user in ("ann", "bob"))
    told = {"attempt": 1, "from_replicas": 1, "to_replicas": 2, "lost_steps": None, "cost_from": "steps"}
    for job, cost_s in ((ann, 2.0), (bob, 5.0), (bob, 8.0)):
        live.scheduler.ledger.write([("job.resize_cost", job, {**told, "cost_s": cost_s})])
    live.later(10.0)

    def mean_s(user: str | None, since_s: float | None = None) -> float | None:
        return live.service.stats(since_s=since_s, until_s=None, user=user)["resize_s"]

    assert (mean_s(None), mean_s("ann"), mean_s("bob")) == (5.0, 2.0, 6.5)
    assert mean_s(None, live.now_s - 5.0) is None


def test_stats_of_one_user() -> None:
    live = Rehearsal("srtf", models=["V100"] * 2)
    (long,) = live.submit({"gpus": 2, "estimate": "1h"}, user="ann")
    live.later(60.0)
    (short,) = live.submit({"gpus": 2, "estimate": "1m"}, user="bob")
    sampled(live, 60)
    live.end(f"{long}.1", 85)  # it makes way
    sampled(live, 60)
    live.end(f"{short}.1")
    sampled(live, 60)
    ann, bob = (live.service.stats(since_s=None, until_s=None, user=user) for user in ("ann", "bob"))
    assert (ann["preemptions"], ann["restarts"], ann["jobs"], ann["avg_jct_s"]) == (1, 1, 0, None)
    assert (bob["preemptions"], bob["jobs"], bob["makespan_s"]) == (0, 1, 120.0)
    every = live.service.stats(since_s=None, until_s=None, user=None)
    assert ann["utilization"] + bob["utilization"] == pytest.approx(every["utilization"])  # type: ignore[operator]
    assert ann["gpu_s"] + bob["gpu_s"] == pytest.approx(every["gpu_s"])
    points = live.service.series(since_s=None, until_s=None, user="bob")["points"]
    assert {user["user"] for point in points for user in point["by_user"]} == {"bob"}
    assert points[-1]["avg_jct_so_far_s"] == 120.0
    with pytest.raises(NotFoundError, match="no job of a user 'eve'"):
        live.service.stats(since_s=None, until_s=None, user="eve")
    for since_s, until_s in ((live.now_s + 1, None), (5.0, 5.0), (6.0, 5.0)):
        with pytest.raises(InputError, match="since"):
            live.service.series(since_s=since_s, until_s=until_s, user=None)


def test_the_series_survives_a_restart_and_a_kill() -> None:
    live = Rehearsal("fifo", models=["V100"])
    live.submit({})
    sampled(live, 40)
    live.restart(orderly=True)
    sampled(live, 40)
    live.now_s += 500.0
    live.restart(orderly=False)
    series = sampled(live, 40)
    assert [one.all.running for one in series] == [1.0] * len(series)
    assert sum(one.span_s for one in series) == pytest.approx(120.0)
    assert live.service.stats(since_s=None, until_s=None, user=None)["covered_s"] == pytest.approx(120.0)


def test_one_write_a_sample_and_none_between(tmp_path: Path) -> None:
    with living(tmp_path) as live:
        store = live.parts.store
        assert isinstance(store, SqliteStore)
        points: list[str] = []

        def look() -> None:
            live.scheduler.sampler.due_s, store._at = 0.0, points.append  # type: ignore[method-assign]
            assert live.scheduler.sampler.look(live.scheduler.clock.now()) == ""
            del store._at

        live.settle()
        live.scheduler.do(look)
        assert points == ["begin", "commit", "committed"]
        assert live.scheduler.sampler.due_s % 10 == 0


def test_a_store_that_takes_no_sample_is_told_of_and_the_next_one_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    live = Rehearsal("fifo", models=["V100"])

    def full(*_: Any) -> None:
        raise StoreError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(live.store, "put_samples", full)
        sampled(live, 10)
        assert live.scheduler.problems["store"] == "disk full"
    live.submit({})
    assert sampled(live, 10)[-1].all.running == 1.0
    assert live.scheduler.problems["store"] == ""


def test_of_many_that_wait_some_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "LOOKED_AT", 10)
    live = Rehearsal("fifo", models=["V100"])
    live.submit({"estimate": "100s"}, {"estimate": "100s", "array": "0-199"})
    asked: list[int] = []
    known = type(live.scheduler.sampler)._waited_s
    monkeypatch.setattr(
        type(live.scheduler.sampler), "_waited_s", lambda self, job, now: asked.append(job.id) or known(self, job, now)
    )
    (one,) = sampled(live, 10)
    assert (one.all.queue_length, len(asked)) == (200.0, 10)
    assert one.all.blocking_index == pytest.approx(0.1)


def test_the_monitors_rates_are_in_the_samples(tmp_path: Path) -> None:
    with living(tmp_path) as live:
        live.parts.machine.look(dict, lambda sample, changes: live.parts.sights.saw(live.scheduler.here, sample, {}))
        live.sampled()
        api = Local(make_app(live.service, token=TOKEN, default_user="ann"))
        *_, point = api("GET", "/v1/stats/series").json()["points"]  # on a slow machine it took one by itself before
        assert 0 < point["memory_used_mib"] < point["memory_mib"]
        assert point["disk_free_mib"] > 0
        assert (point["nodes"], point["gpus"], point["gpu_utilization"]) == (1, 4, None)
        assert api("GET", "/v1/stats?user=").status_code == 400
        assert api("GET", "/v1/stats?since=tomorrow").status_code == 400
        assert api("GET", "/v1/stats?since=9e10").json()["detail"].startswith("since 90000000000 s is later than now")
        assert api("GET", "/v1/stats/series?user=eve").status_code == 404
