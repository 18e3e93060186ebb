"""weave on workloads with everything at once: stage times, sizes, GPU models, memory, failures, restarts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import jobs
from forgetful import Forgetful
from gpuloom.core.cluster import Cluster, parse_cluster
from gpuloom.core.scaling import Scaling
from gpuloom.core.workload import Speeds, Workload
from gpuloom.policies.registry import create_policy
from gpuloom.scaling.base_view import Sizes
from gpuloom.sim import Failure, SimResult, simulate
from gpuloom.traces.elastic import amdahl_curve
from tiers import examples

CLUSTERS = ("1x8", "2x4:V100,2x4:K80", "1x8:V100,4x2:K80", "3x4", "2x4:V100,1x8:K80")
TEXTS = ("weave", "weave:processes=own", "weave:restart_partners=no", "weave:durations=known;least=0;alpha=1;period=30")
CURVES = (
    np.array([[0.0, 0], [1, 1], [1.9, 1.5], [2.6, 2], [3.2, 2.4], [3.7, 2.6], [4.1, 2.8], [4.4, 3], [4.6, 3.1]]),
    np.array([[0.0], [1], [2], [3], [4], [5], [6], [7], [8]]),
    np.array([[0.0], [1], [0], [0], [2], [0], [0], [0], [2.5]]),
)


@st.composite
def everything(draw: st.DrawFn, *, most: int = 18) -> Workload:
    """Random jobs, some of several sizes, some that can be woven, some both."""
    n = draw(st.integers(1, most))
    times = st.one_of(st.sampled_from([0.0, 0.0, 100.0, 700.0]), st.floats(0, 3000))
    stages = draw(st.lists(st.tuples(*[st.sampled_from([0.1, 0.5, 1.0])] * 3), min_size=2, max_size=3))
    rows, curve, low, high, reference, stage_s = [], [], [], [], [], []
    for _ in range(n):
        index = draw(st.integers(-1, len(CURVES) - 1))
        able = [1, 2, 4] if index < 0 else [g for g in (1, 2, 4, 8) if CURVES[index][g, 0] > 0]
        gpus = draw(st.sampled_from(able[:2] + able))
        rows.append((draw(times), draw(st.sampled_from([0.0, 900.0, 3000.0, 9000.0])), gpus))
        elastic = index >= 0 and draw(st.booleans())
        curve.append(index if elastic else -1)
        low.append(min(able) if elastic else gpus)
        high.append(8 if elastic else gpus)
        reference.append(CURVES[index][gpus, 0] if elastic else 1.0)
        woven = draw(st.integers(0, 2)) > 0
        stage_s.append(draw(st.sampled_from(stages)) if woven else (np.nan,) * 3)
    ones = np.ones(n, dtype=np.int32)
    columns: dict[str, Any] = {
        "scaling": Scaling(
            ones,
            np.array(low, np.int32),
            np.array(high, np.int32),
            np.array(curve, np.int32),
            np.array(reference),
            CURVES,
        ),
        "stage_s": np.array(stage_s),
    }
    if draw(st.booleans()):
        factors = st.lists(st.sampled_from([0.25, 0.5, 1.0, 2.0]), min_size=2, max_size=2)
        columns["speeds"] = Speeds(("V100", "K80"), np.array(draw(st.lists(factors, min_size=n, max_size=n))))
    return jobs(rows, **columns)


def check(result: SimResult, workload: Workload, cluster: Cluster) -> None:
    """Everyone ends; runs on one of its sizes and on one model; on a layer a GPU serves one job at a time, and who
    shares GPUs has the very same ones."""
    segments = result.segments
    assert segments is not None
    assert result.finished == len(workload)
    sizes = Sizes(workload, cluster, woven=True).of
    held: dict[tuple[int, float], dict[int, int]] = {}
    spans: dict[tuple[int, float], tuple[float, int]] = {}
    for row in range(len(segments.job)):
        key = int(segments.job[row]), float(segments.start_s[row])
        if segments.end_s[row] > segments.start_s[row]:
            held.setdefault(key, {})[int(segments.node[row])] = int(segments.gpu_mask[row])
            spans[key] = float(segments.end_s[row]), int(segments.layer[row])
    for (job, _), pieces in held.items():
        assert sum(mask.bit_count() for mask in pieces.values()) in sizes[job]
        assert len({cluster.nodes[node].gpu_model for node in pieces}) == 1
    keys = sorted(held)
    for place, one in enumerate(keys):
        for two in keys[place + 1 :]:
            if one[0] == two[0] or two[1] >= spans[one][0] or one[1] >= spans[two][0]:
                continue
            common = [node for node in held[one] if held[one][node] & held[two].get(node, 0)]
            if common:
                assert held[one] == held[two]
                assert spans[one][1] != spans[two][1]


@pytest.mark.parametrize("text", [TEXTS[0], *(pytest.param(text, marks=pytest.mark.slow) for text in TEXTS[1:])])
@settings(max_examples=examples(40))
@given(
    workload=everything(),
    cluster=st.sampled_from(CLUSTERS),
    overhead=st.sampled_from([0.0, 10.0, 200.0]),
    interval=st.sampled_from([0.0, 60.0, 360.0]),
    failures=st.booleans(),
)
def test_what_always_holds(
    text: str, workload: Workload, cluster: str, overhead: float, interval: float, failures: bool
) -> None:
    nodes = parse_cluster(cluster)
    outages = (Failure(0, 150.0, 900.0), Failure(len(nodes.nodes) - 1, 700.0, 2500.0)) if failures else ()
    result = simulate(
        workload,
        nodes,
        text,
        restart_overhead_s=overhead,
        interval_s=interval,
        failures=outages if len(nodes.nodes) > 1 else (),
        record_segments=True,
    )
    check(result, workload, nodes)


def test_a_job_that_lives_elsewhere_keeps_its_layer() -> None:
    """An elastic job that stays where it is while its home moves: who joins it there later got its layer, and the
    plan was refused."""
    learns, reads = (0.0, 1.01, 0.0), (1.01, 0.0, 0.0)
    kinds = [(learns, 2), (learns, 1), (reads, 2), (learns, 2), (reads, 1), (learns, 2)]
    faster = [1.25, 4.0, 1.25, 4.0, 1.25, 2.0]
    rows = [
        (0.0, 11.4, 1),
        (0.9655428842383046, 3.1, 1),
        (1.4647391538738677, 5.65, 1),
        (2.1236829882749717, 7.85, 2),
        (3.147154280306246, 8.95, 1),
        (4.011456776944665, 4.05, 2),
    ]
    gpus, most = np.array([row[2] for row in rows], np.int32), np.array([most for _, most in kinds], np.int32)
    usual = amdahl_curve(6)
    curve = np.where(most > gpus, 0, -1).astype(np.int32)
    reference = np.where(most > gpus, usual[gpus, 0], 1.0)
    workload = jobs(
        rows,
        stage_s=np.array([stages for stages, _ in kinds]),
        iteration_s=np.ones(len(rows)),
        speeds=Speeds(("K80", "V100"), np.array([[1.0, factor] for factor in faster])),
        scaling=Scaling(np.ones(len(rows), np.int32), gpus, most, curve, reference, (usual,)),
    )
    cluster = parse_cluster("1x2:V100,2x2:K80")
    found = simulate(
        workload,
        cluster,
        "weave:processes=own;interleave_overhead=none",
        interval_s=0.0,
        restart_overhead_s=0.06,
        record_segments=True,
    )
    check(found, workload, cluster)


@settings(max_examples=examples(40))
@given(
    workload=everything(),
    cluster=st.sampled_from(CLUSTERS),
    at=st.frozensets(st.integers(2, 40), max_size=6),
)
def test_it_goes_on_from_its_memory(workload: Workload, cluster: str, at: frozenset[int]) -> None:
    nodes = parse_cluster(cluster)
    result = simulate(workload, nodes, Forgetful("weave", at, through_store=True), record_segments=True, interval_s=60)
    check(result, workload, nodes)


@settings(max_examples=examples(30))
@given(workload=everything(), cluster=st.sampled_from(("1x8", "3x4")))
def test_on_one_gpu_model_without_sizes_it_is_muri_xl(workload: Workload, cluster: str) -> None:
    rigid = replace(workload, scaling=None, speeds=None)
    ours = simulate(rigid, cluster, "weave")
    theirs = simulate(rigid, cluster, create_policy("muri-xl", **same_values()))
    assert ours.end_s.tolist() == theirs.end_s.tolist()


def same_values() -> dict[str, Any]:
    """weave's values of the parameters that muri-xl has as well."""
    weave, xl = create_policy("weave"), create_policy("muri-xl")
    return {name: weave.values[name] for name in xl.values if name in weave.values}
