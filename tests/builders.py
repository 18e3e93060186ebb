"""Short ways to make what tests need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from gpuloom.core.cluster import Cluster
from gpuloom.core.state import State
from gpuloom.core.workload import Labels, Speeds, Workload
from gpuloom.engine.engine import Engine
from gpuloom.engine.progress import Progress
from gpuloom.policies.base import Policy

POLICIES = (
    "fifo",
    "fifo:backfill=easy",
    "fifo:backfill=greedy",
    "sjf",
    "srtf",
    "srtf:placement=scatter",
    "srsf",
    "tiresias",
    "tiresias:promote=2",
    "tiresias:scatter=yes",
    "gittins",
    "themis",
    "antman",
    "gavel",
    "gavel:objective=makespan",
    "hlas",
    "hlas:literal=yes",
    "hlas:blind=yes",
    "hlas:work_conserving=no;gain=iterations",
    "rl",
    "rl:mode=random",
)
ALONE = tuple(policy for policy in POLICIES if policy != "antman")
"""Policies that give a GPU to one job at a time."""


def jobs(rows: Sequence[tuple[float, float, int]], **columns: Any) -> Workload:
    """A workload from (submit, duration, GPUs)."""
    submit, duration, gpus = zip(*rows, strict=True) if rows else ((), (), ())
    return Workload.sorted_by_submit(
        "test",
        np.array(submit, dtype=np.float64),
        np.array(duration, dtype=np.float64),
        np.array(gpus, dtype=np.int32),
        **columns,
    )


@st.composite
def workloads(draw: st.DrawFn, *, most: int = 14, largest: int = 8, hetero: bool = False) -> Workload:
    """Random workloads with ties in submission, equal and zero durations, gangs of odd sizes."""
    n = draw(st.integers(1, most))
    submit = st.one_of(st.integers(0, 12).map(lambda x: x * 100.0), st.floats(0, 5000))
    duration = st.one_of(st.sampled_from([0.0, 1.0, 50.0, 500.0]), st.floats(0, 20_000, allow_subnormal=False))
    rows = draw(st.lists(st.tuples(submit, duration, st.integers(1, largest)), min_size=n, max_size=n))
    columns: dict[str, Any] = {}
    if draw(st.booleans()):
        columns["priority"] = np.array(draw(st.lists(st.integers(0, 1), min_size=n, max_size=n)), dtype=np.int32)
    if hetero:
        factors = st.lists(st.sampled_from([0.25, 0.5, 1.0, 2.0]), min_size=2, max_size=2)
        columns["speeds"] = Speeds(("V100", "K80"), np.array(draw(st.lists(factors, min_size=n, max_size=n))))
        kinds = st.sampled_from(["", "V100", "K80", "V100|K80"])
        columns["gpu_type"] = Labels.of(draw(st.lists(kinds, min_size=n, max_size=n)))
    return jobs(rows, **columns)


REQUIRED = {
    "policy",
    "trace",
    "cluster",
    "jobs",
    "gpus",
    "avg_jct_s",
    "median_jct_s",
    "p99_jct_s",
    "makespan_s",
    "avg_queue_length",
    "blocking_index",
    "utilization",
    "lower_bound_avg_jct_s",
    "wall_s",
    "restarts",
    "events",
    "settings",
}
"""What every result's JSON object holds."""


class Nobody:
    """An executor that does nothing."""

    def apply(self, commands: Any, now_s: float) -> None:
        return


def engine_of(policy: Policy, workload: Workload, cluster: Cluster, state: State, memory: Any = None) -> Engine:
    """An engine whose decisions nobody carries out."""
    progress = Progress(workload, cluster, np.zeros(len(workload)), policy.sharing(workload))
    return Engine(state, policy, progress, Nobody(), memory=memory)


def with_stages(workload: Workload) -> Workload:
    """The same jobs with stage times that can be woven; of some they are not known."""
    kinds = np.array([(3.0, 0.2, 0.1), (0.2, 3.0, 0.1), (0.2, 0.3, 3.0), (1.0, 1.0, 1.0), (np.nan,) * 3])
    return replace(workload, stage_s=kinds[np.arange(len(workload)) * 7 % 11 % 5])
