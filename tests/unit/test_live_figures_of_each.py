"""What each node, GPU, user and job used over time: as the monitors saw it, bounded, also of a store of before."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gpuloom.agent.sample import GpuSample, NodeRates, Sample
from gpuloom.core.errors import NotFoundError
from gpuloom.core.usage import RunUsage
from gpuloom.live.figures import each
from gpuloom.live.figures.each import COLUMNS, MOST, Of, Table, kept, mean, table, text_of
from gpuloom.live.figures.sample import Figures, Thinning, UserFigures, figures_of, finest, row_of
from gpuloom.live.figures.sampler import STALE_S
from gpuloom.live.trial.rehearsal import Rehearsal
from gpuloom.store.errors import StoreError
from gpuloom.store.port import SampleRow


def gpus(**use: float | None) -> Table:
    return table(Of.GPU, {name: (value, None, None) for name, value in use.items()})


def test_means_are_over_the_time_in_which_a_figure_is_known_and_the_most_stays_it() -> None:
    def node(**row: float) -> each.Each:
        return {Of.NODE: table(Of.NODE, {"n": [row.get(column) for column in COLUMNS[Of.NODE]]})}

    first = {**node(gpu_utilization=20.0, gpu_utilization_most=90.0, cpu_percent=8.0), Of.GPU: gpus(a=1.0, b=None)}
    found = mean([(first, 10.0), (node(gpu_utilization=60.0, gpu_utilization_most=70.0), 30.0), ({}, 20.0)])
    row = dict(zip(COLUMNS[Of.NODE], found[Of.NODE].values[0].tolist(), strict=True))
    assert (row["gpu_utilization"], row["gpu_utilization_most"], row["cpu_percent"]) == (50.0, 90.0, 8.0)
    assert math.isnan(row["disk_free_mib"])
    assert found[Of.GPU] == gpus(a=1.0), "nothing is known of b"
    assert set(found) == {Of.NODE, Of.GPU}


def test_of_more_than_are_kept_those_stay_that_use_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(each, "MOST", {10: {Of.GPU: 2}, 60: {Of.GPU: 1}})
    few = {Of.GPU: gpus(c=5.0, a=None, d=9.0, b=7.0)}
    assert kept(few, 10) == {Of.GPU: gpus(d=9.0, b=7.0)}
    assert kept(few, 60) == {Of.GPU: gpus(d=9.0)}
    assert [row[0] for row in kept(few, 60)[Of.GPU].values] == [9.0]


def test_of_gpus_that_are_as_busy_those_stay_that_have_more_of_the_second_figure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(each, "MOST", {10: {Of.GPU: 2}})
    second = COLUMNS[Of.GPU].index(each._RANKS[Of.GPU][1])
    assert second in (1, 2)
    rows: dict[str, list[float | None]] = {name: [50.0, None, None] for name in "abc"}
    for name, value in (("b", 3.0), ("c", 8.0)):
        rows[name][second] = value
    found = kept({Of.GPU: table(Of.GPU, rows)}, 10)[Of.GPU]
    assert found.names == ("b", "c")


def of(from_s: float, **use: float | None) -> Figures:
    return Figures(from_s, 10.0, UserFigures(), each={Of.GPU: gpus(**use)} if use else {})


def test_minutes_are_made_of_samples_and_both_come_back_from_the_store() -> None:
    thinning = Thinning()
    rows = [row for n in range(6) for row in thinning.take(of(10.0 * n, a=10.0 * n, b=4.0))]
    (minute,) = [row for row in rows if row.width_s == 60]
    assert figures_of(minute, each=True).each == {Of.GPU: gpus(a=25.0, b=4.0)}
    assert figures_of(minute).each == {}, "who asks for other figures does not read these"
    assert Thinning(rows[:4]).take(of(50.0, a=50.0, b=4.0))[0] == rows[5]
    assert minute.data["each"] == '{"gpu":{"a":[25.0,null,null],"b":[4.0,null,null]}}'


def test_a_sample_of_before_is_read_and_a_spoilt_one_says_so() -> None:
    before = row_of(10, of(0.0))
    assert "each" not in before.data
    assert figures_of(before, each=True).each == {}
    thinning = Thinning([before])
    (minute,) = [row for n in range(1, 6) for row in thinning.take(of(10.0 * n, a=6.0)) if row.width_s == 60]
    assert figures_of(minute, each=True).each == {Of.GPU: gpus(a=6.0)}
    for spoilt in ('{"moon":{}}', '{"gpu":{"a":[1.0]}}', '{"gpu":{"a":"x"}}', "[]", "{", 1):
        with pytest.raises(StoreError, match="can't be read"):
            finest([SampleRow(10, 0.0, 10.0, {**before.data, "each": spoilt})], each=True)
        (found,) = finest([SampleRow(10, 0.0, 10.0, {**before.data, "each": spoilt})])
        assert found.each == {}, "it is not read where nobody asks for it"


def test_a_year_of_a_thousand_machines_is_bounded() -> None:
    random = np.random.default_rng(1)
    full = {
        one: Table(
            tuple(f"gpu-machine-{n:04}.cluster:0" for n in range(8_000 if one is Of.GPU else 1_000)),
            random.uniform(0.0, 1e6, (8_000 if one is Of.GPU else 1_000, len(COLUMNS[one]))),
        )
        for one in Of
    }
    for width_s, most in ((10, 360), (60, 1440), (3600, 8784)):
        less = kept(full, width_s)
        assert {one: len(rows.names) for one, rows in less.items()} == {
            one: min(MOST[width_s][one], len(full[one].names)) for one in Of
        }
        assert len(text_of(less)) * most < 60e6


# -- the scheduler ----------------------------------------------------------------------------------------------------


def looked(it: Rehearsal, busy: float, runs: dict[str, RunUsage]) -> None:
    rates = NodeRates(50.0, 2048.0, 8192.0, 1.0, 1e6, 3.0, None)
    uuids = [gpu.uuid for gpu in it.node.gpus]
    seen = (GpuSample(0, uuids[0], busy, 4_000.0), GpuSample(1, uuids[1], 10.0, 1_000.0), GpuSample(2, uuids[2]))
    it.sights.saw("here", Sample(it.now_s, rates, seen, runs), {})


def last(it: Rehearsal, by: Of, name: str | None = None) -> dict[str, dict[str, Any]]:
    found = it.service.each_series(by=by, name=name, since_s=None, until_s=None)
    assert all(len(row) == len(found["from_s"]) for line in found["lines"] for row in line["figures"].values())
    return {line["name"]: {key: row[-1] for key, row in line["figures"].items()} for line in found["lines"]}


def test_what_each_used_as_the_monitors_saw_it() -> None:
    it = Rehearsal("fifo", models=["V100"] * 3)
    (mine, other) = it.submit({}, {}, user="ann")
    (bobs,) = it.submit({}, user="bob")
    usage = RunUsage("", 2.0, 100.0, 90.0, 4_000.0, 5.0, None)
    run_of = {job: it.scheduler.book.attempts[job].run for job in (mine, other, bobs)}
    looked(
        it, 90.0, {run_of[mine]: usage, run_of[other]: replace(usage, gpu_utilization=10.0), run_of[bobs]: RunUsage("")}
    )
    it.later(10.0)
    (node,) = last(it, Of.NODE).values()
    assert (node["cpu_percent"], node["memory_used_mib"], node["disk_free_mib"]) == (50.0, 2048.0, 1e6)
    assert (node["received_mib_per_s"], node["sent_mib_per_s"], node["read_mib_per_s"]) == (3.0, None, 10.0)
    assert (node["gpu_utilization"], node["gpu_utilization_most"], node["gpu_memory_used_mib"]) == (50.0, 90.0, 5_000.0)
    assert node["gpu_memory_mib"] == 32_000.0, "of those that tell"
    assert last(it, Of.GPU) == {
        "here:0": {"gpu_utilization": 90.0, "gpu_memory_used_mib": 4_000.0, "gpu_memory_mib": 16_000.0},
        "here:1": {"gpu_utilization": 10.0, "gpu_memory_used_mib": 1_000.0, "gpu_memory_mib": 16_000.0},
    }
    assert set(last(it, Of.GPU, "here:1")) == {"here:1"}
    (ann,) = last(it, Of.USER).values()
    assert ann == {
        "cpu_cores": 4.0,
        "memory_used_mib": 200.0,
        "gpu_utilization": 50.0,
        "gpu_memory_used_mib": 8_000.0,
        "read_mib_per_s": 10.0,
        "write_mib_per_s": None,
    }
    jobs = last(it, Of.JOB)
    assert {job: row["gpu_utilization"] for job, row in jobs.items()} == {str(mine): 90.0, str(other): 10.0}
    with pytest.raises(NotFoundError, match="no figures of node 'moon' in that time"):
        last(it, Of.NODE, "moon")
    it.restart(orderly=False)  # nothing has been seen since
    it.later(STALE_S)
    assert set(last(it, Of.NODE)["here"].values()) == {None}
    (line,) = it.service.each_series(by=Of.NODE, name=None, since_s=None, until_s=None)["lines"]
    assert line["figures"]["cpu_percent"][0] == 50.0


def test_what_was_seen_long_ago_is_not_known() -> None:
    it = Rehearsal("fifo", models=["V100"] * 3)
    looked(it, 90.0, {})
    for _ in range(int(STALE_S) // 10 + 1):
        it.later(10.0)
    (line,) = it.service.each_series(by=Of.NODE, name="here", since_s=None, until_s=None)["lines"]
    known = [value is not None for value in line["figures"]["cpu_percent"]]
    assert known == [True] * (int(STALE_S) // 10) + [False]
