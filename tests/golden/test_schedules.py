"""What each policy does with some 25 jobs, at every parameter: when jobs start, stop and end, and where they run.

Nobody has worked these schedules out by hand: they are what the program made when they were written down, at which time
the tests by hand and the published figures (docs/results) were right. A change that is not meant to change schedules
must not change them. After one that is meant to, `python tests/golden/test_schedules.py` writes them anew, and the
difference tells what else has changed.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
from builders import jobs, with_stages
from gpuloom.core.pairs import PairSpeeds
from gpuloom.core.scaling import Scaling
from gpuloom.core.workload import Labels, Speeds, Workload
from gpuloom.sim import Failure, SimResult, simulate

KEPT = Path(__file__).with_name("schedules.json")

PLAIN = [
    "fifo",
    "fifo:backfill=easy",
    "fifo:backfill=easy;depth=2",
    "fifo:backfill=greedy",
    "sjf",
    "srtf",
    "srtf:placement=scatter",
    "srsf",
    "tiresias:thresholds=600/2000",
    "tiresias:thresholds=600/2000;promote=2",
    "tiresias:thresholds=600/2000;promote=0.5;scatter=yes;whole_seconds=yes",
    "gittins",
    "gittins:levels=4",
    "themis:lease=300",
    "antman",
    "antman:opportunistic=0.7;share=0.3;seed=3",
    "hlas",
    "rl",
    "rl:mode=random",
    "rl:initial=zero;optimism=0.5;epsilon_start=0.5",
]
EVEN = [
    "srtf:placement=repack",
    "srsf:placement=repack",
    "themis:mode=muri",
    "antman",
    "muri-s",
    "muri-s:group_size=2;ordering=worst",
    "muri-s:grouping=exact",
    "muri-s:grouping=greedy;ordering=none",
    "muri-s:matcher=released;slow_groups=split;first_fit=yes;restart_partners=no;floor=no",
    "muri-s:profile_noise=0.5;seed=2;first_estimate=yes",
    "muri-s:group_size=3;slow_groups=keep",
    "muri-l",
    "muri-l:grouping=exact;group_size=3",
    "muri-l:restart_partners=no;floor=no",
    "muri-xs",
    "muri-xs:power=1;ageing=0.3;patience=5;horizon=600",
    "muri-xl",
    "muri-xl:sticky=0.5;group_size=2;patience=3",
    "weave",
    "weave:durations=known;patience=5",
]
MIXED = [
    "fifo",
    "fifo:backfill=easy",
    "fifo:upgrade=no",
    "sjf",
    "srtf",
    "srtf:upgrade=no",
    "srsf",
    "tiresias:thresholds=600/2000;promote=1",
    "gittins",
    "themis:lease=300",
    "antman",
    "gavel",
    "gavel:objective=water_filling;round=120;reset=240",
    "gavel:objective=finish_time_fairness;queue=global",
    "gavel:objective=makespan;round=120;reset=120",
    "gavel:objective=cost;reset=360",
    "gavel:objective=allox;reset=360",
    "gavel:objective=max_sum_throughput;reset=360",
    "gavel:blind=yes;reset=360",
    "gavel:packed=yes;reset=360",
    "hlas",
    "hlas:literal=yes",
    "hlas:blind=yes",
    "hlas:gain=iterations;tick=60;min_seconds_between_moves=100;performance=bandwidth",
    "hlas:work_conserving=no;demote_only_if_waiting=no;gain_horizon=no;upgrade=no",
    "rl",
    "muri-s",
    "muri-l",
    "muri-xs",
    "muri-xl",
    "weave",
    "weave:durations=known",
]
RELEASED = [
    "gavel:released=yes;reset=360",
    "gavel:released=yes;objective=makespan;round=120;reset=120",
    "gavel:released=yes;objective=finish_time_fairness;reset=240",
    "gavel:released=yes;objective=max_sum_throughput;queue=global;reset=360",
]
ELASTIC = [
    "srtf",
    "elastic",
    "elastic:base=srtf;proportion=0.5",
    "elastic:base=fifo;expand_policy=priority;shrink_policy=fair;check_minutes=1",
    "elastic:literal=yes",
    "elastic-goodput",
    "elastic-goodput:base=srtf;weight=remaining;alpha=-1;period=60;least=0.02",
    "weave",
    "weave:durations=known;period=60;least=0.02;alpha=0",
    "rl",
]
SOLVED = ("gavel", "grouping=exact")
"""Of several best answers, which one a solver finds may differ from version to version: averages are compared."""


def staged(workload: Workload) -> Workload:
    """The same with stage times, of which an iteration takes a little more than the sum."""
    found = with_stages(workload)
    assert found.stage_s is not None
    return replace(found, iteration_s=1.05 * np.nan_to_num(found.stage_s.sum(axis=1), nan=0.5))


def plain() -> Workload:
    n = 26
    rows = [
        (i * 53 % 1700 * 1.0, 60.0 + i * i * 61 % 1900, (1, 1, 2, 4, 1, 8, 2, 1, 3, 1, 2, 1, 6)[i % 13])
        for i in range(n)
    ]
    number = np.arange(n)
    return staged(
        jobs(
            rows,
            priority=(number % 3 == 0).astype(np.int32),
            restart_overhead_s=np.where(number % 4, 20.0, 45.0),
            estimate_s=100.0 + number * 37 % 1500,
            model=Labels.of([f"model-{i % 4}" for i in range(n)]),
            user=Labels.of([f"user-{i % 3}" for i in range(n)]),
        )
    )


def mixed() -> Workload:
    n = 24
    rows = [(i * 41 % 1300 * 1.0, 90.0 + i * i * 71 % 1700, (1, 2, 1, 4, 1, 1, 2, 3)[i % 8]) for i in range(n)]
    number = np.arange(n)
    factor = np.stack([np.ones(n), 0.4 + number % 4 * 0.15, 0.2 + number * 5 % 7 * 0.1], axis=1)
    factor[number % 9 == 4, 2] = 0.0
    return staged(
        jobs(
            rows,
            weight=np.array([1.0, 2.0, 0.5, 1.0, 3.0])[number % 5],
            restart_overhead_s=np.full(n, 15.0),
            speeds=Speeds(("V100", "P100", "K80"), factor),
            gpu_type=Labels.of([("", "", "", "V100|P100", "", "K80", "")[i % 7] for i in range(n)]),
            model=Labels.of([f"model-{i % 4}" for i in range(n)]),
            pairs=PairSpeeds(
                of_job=np.where(np.array([row[2] for row in rows]) == 1, number % 3, -1).astype(np.int32),
                models=("V100", "K80"),
                kinds=(("model-0", 1), ("model-1", 1), ("model-2", 1)),
                share=np.array([0.9, 0.7, np.nan, 0.6, 0.55, 0.8, np.nan, 0.75, 0.0] * 2).reshape(2, 3, 3),
            ),
        )
    )


def elastic() -> Workload:
    n = 18
    rows = [(i * 41 % 900 * 1.0, 200.0 + i * i * 71 % 1700, (1, 2, 4)[i % 3]) for i in range(n)]
    number = np.arange(n, dtype=np.int32)
    gpus, nodes = np.arange(9.0)[:, None], np.arange(1.0, 4)[None, :]
    curves = tuple(gpus / (1 + cost * (gpus - 1) + (nodes - 1) * cost * 3 * (gpus > 0)) for cost in (0.02, 0.2))
    rigid = number % 6 == 5
    asked = np.array([row[2] for row in rows])
    scaling = Scaling(
        np.ones(n, dtype=np.int32),
        np.where(rigid, asked, 1).astype(np.int32),
        np.where(rigid, asked, 8).astype(np.int32),
        np.where(rigid, -1, number % 2).astype(np.int32),
        np.where(rigid, 1.0, [curves[i % 2][gpus_, 0] for i, gpus_ in enumerate(asked.tolist())]),
        curves,
    )
    return staged(
        jobs(
            rows,
            scaling=scaling,
            priority=number % 2,
            weight=np.array([1.0, 2.0, 1.0, 0.5])[number % 4],
            restart_overhead_s=np.full(n, 15.0),
        )
    )


def made(name: str) -> SimResult:
    scene, _, policy = name.partition(" ")
    if scene == "plain":
        how: Any = {"failures": (Failure(0, 700.0, 1100.0),), "checkpoint_s": 50.0, "interval_s": 60.0}
        return simulate(plain(), "2x4,1x8", policy, record_segments=True, **how)
    if scene == "even":
        outage = (Failure(1, 300.0, 900.0),)
        return simulate(plain(), "2x8", policy, record_segments=True, interval_s=60.0, failures=outage)
    if scene == "rounds":
        return simulate(plain(), "2x8", policy, record_segments=True, interval_s=90.0, schedule="rounds")
    if scene == "muri":
        return simulate(plain(), "2x8", policy, record_segments=True, interval_s=60.0, compat="muri")
    if scene == "mixed":
        return simulate(mixed(), "2x4:V100,1x4:P100,2x2:K80", policy, record_segments=True, interval_s=60.0)
    return simulate(elastic(), "2x4:V100,1x8:V100", policy, record_segments=True, interval_s=60.0)


NAMES = [
    *(f"plain {policy}" for policy in PLAIN),
    *(f"even {policy}" for policy in EVEN),
    *(f"rounds {policy}" for policy in ("fifo", "srtf", "tiresias:thresholds=600/2000", "muri-s", "muri-xl")),
    *(f"muri {policy}" for policy in ("srtf", "srsf", "tiresias:thresholds=600/2000", "themis", "antman")),
    *(f"muri {policy}" for policy in ("muri-s", "muri-l", "muri-xs", "muri-xl", "weave")),
    *(f"mixed {policy}" for policy in MIXED),
    *(f"mixed {policy}" for policy in RELEASED),
    *(f"elastic {policy}" for policy in ELASTIC),
]


def solved(name: str) -> bool:
    return any(part in name for part in SOLVED)


def told(result: SimResult) -> list[str]:
    """A line for each job: its end, and each run of it with its first second and its GPUs, as node.GPU."""
    found = result.segments
    assert found is not None
    spans: list[dict[float, list[str]]] = [{} for _ in result.job_ids]
    columns = (found.job, found.start_s, found.end_s, found.node, found.gpu_mask)
    for job, start, end, node, mask in zip(*(column.tolist() for column in columns), strict=True):
        if end > start:
            spans[job].setdefault(start, []).append(f"{node}.{mask:x}")
    return [
        f"{end:.2f}: " + ", ".join(f"{start:.2f} {'+'.join(sorted(where))}" for start, where in sorted(span.items()))
        for end, span in zip(result.end_s.tolist(), spans, strict=True)
    ]


@pytest.fixture(scope="module")
def kept() -> dict[str, list[str] | float]:
    return json.loads(KEPT.read_text())


def marks(name: str) -> list[pytest.MarkDecorator]:
    found = [pytest.mark.ecos] if "released=yes" in name else []
    return [*found, pytest.mark.slow] if "grouping=exact" in name else found


@pytest.mark.parametrize("name", [pytest.param(name, marks=marks(name)) for name in NAMES])
def test_the_schedule_is_as_before(name: str, kept: dict[str, list[str] | float]) -> None:
    if "gavel:released" in name:
        pytest.importorskip("ecos")
    result = made(name)
    if solved(name):
        assert result.avg_jct_s == pytest.approx(kept[name], rel=0.02)
    else:
        assert told(result) == kept[name]


if __name__ == "__main__":
    found = {name: made(name) for name in NAMES}
    KEPT.write_text(
        json.dumps({n: round(r.avg_jct_s, 1) if solved(n) else told(r) for n, r in found.items()}, indent=1) + "\n"
    )
