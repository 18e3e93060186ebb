"""What must hold where jobs share GPUs, checked on what the simulator wrote down by a model written apart from it."""

from __future__ import annotations

from itertools import chain, combinations, pairwise, permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import jobs
from gpuloom.core.cluster import Cluster, cluster_from_mapping, parse_cluster
from gpuloom.core.decision import Decision
from gpuloom.core.snapshot import Snapshot
from gpuloom.core.workload import Labels, Speeds, Workload
from gpuloom.policies.base import Policy
from gpuloom.policies.registry import create_policy
from gpuloom.sim import Failure, SimResult, simulate
from released_times import Stages, one_order_s
from tiers import examples

pytestmark = pytest.mark.slow

Sharer = tuple[int, float, float, int]
"""(job, start, end, layer) of a run"""

VARIANTS = [
    f"{policy}:grouping={grouping};ordering={ordering}"
    for policy in ("muri-s", "muri-l")
    for grouping in ("multiround", "exact", "greedy")
    for ordering in ("best", "worst", "none")
] + [f"{policy}:ordering={ordering}" for policy in ("muri-xs", "muri-xl") for ordering in ("best", "worst", "none")]
EVERY = pytest.mark.parametrize("text", VARIANTS)
CLUSTERS = ("1x8", "2x4", "4x2", "2x2,1x4", "3x4,1x8")
OVERHEADS = {
    "none": (1.0, 1.0, 1.0, 1.0),
    "measured": (1.0, 1.33 / 1.015, 1.5 / 1.015, 1.37 / 1.015),
    "1.1/1.7/1.3": (1.0, 1.1, 1.7, 1.3),
}
NAN = float("nan")


# -- random workloads ------------------------------------------------------------------------------------------

stage = st.one_of(st.sampled_from([0.0, 0.1, 0.5, 1.0, 2.0]), st.floats(0.05, 3.0))
profile = st.tuples(stage, stage, stage).filter(lambda row: sum(row) > 0)


@st.composite
def woven(draw: st.DrawFn, *, most: int = 20, largest: int = 8, hetero: bool = False) -> Workload:
    """Jobs of few profiles, some unknown; ties in submission and duration; solo times that are not the stages' sum."""
    n = draw(st.one_of(st.integers(8, most), st.integers(1, most)))
    profiles = draw(st.lists(profile, min_size=1, max_size=4))
    submit = st.one_of(st.sampled_from([0.0, 100.0, 360.0]), st.floats(0, 2000))
    duration = st.one_of(st.sampled_from([0.0, 1.0, 500.0, 3000.0]), st.floats(0, 9000), st.floats(1000, 9000))
    gpus = st.sampled_from(draw(st.sampled_from([(2,), (1, 2, 4), (1, 1, 2, 3, 4, 8), (4, 8)])))
    gpus = gpus.map(lambda g: min(g, largest))
    rows = draw(st.lists(st.tuples(submit, duration, gpus), min_size=n, max_size=n))
    kinds = draw(st.lists(st.integers(0, len(profiles) + (draw(st.integers(0, 3)) == 0)), min_size=n, max_size=n))
    table = [*profiles, (NAN, 1.0, 1.0), (NAN, NAN, NAN)]
    columns: dict[str, Any] = {"stage_s": np.array([table[kind] for kind in kinds])}
    if draw(st.booleans()):
        share = draw(st.lists(st.sampled_from([0.6, 1.0, 1.2, NAN]), min_size=len(table), max_size=len(table)))
        columns["iteration_s"] = np.array([np.nansum(table[kind]) * share[kind] for kind in kinds])
    if draw(st.booleans()):
        memory = st.sampled_from([1000.0, 6000.0, 9000.0, NAN])
        columns["gpu_memory_mib"] = np.array(draw(st.lists(memory, min_size=n, max_size=n)))
    if hetero:
        factors = st.lists(st.sampled_from([0.25, 0.5, 1.0, 2.0]), min_size=2, max_size=2)
        columns["speeds"] = Speeds(("V100", "K80"), np.array(draw(st.lists(factors, min_size=n, max_size=n))))
        wishes = st.sampled_from(["", "V100", "K80", "V100|K80"])
        columns["gpu_type"] = Labels.of(draw(st.lists(wishes, min_size=n, max_size=n)))
    return jobs(rows, **columns)


# -- the model, written apart from the one under test ----------------------------------------------------------


class Model:
    """Seconds of an iteration alone and together, from the columns of a workload."""

    def __init__(self, workload: Workload, ordering: str, overhead: str) -> None:
        assert workload.stage_s is not None
        self.stages: list[Stages] = [tuple(row) for row in workload.stage_s.tolist()]
        total = workload.stage_s.sum(axis=1)
        alone = total if workload.iteration_s is None else workload.iteration_s
        self.solo = [a if a > 0 else t for a, t in zip(alone.tolist(), total.tolist(), strict=True)]
        memory = np.zeros(len(workload)) if workload.gpu_memory_mib is None else np.nan_to_num(workload.gpu_memory_mib)
        self.memory: list[float] = memory.tolist()
        self.ordering, self.factors = ordering, OVERHEADS[overhead]
        self._seen: dict[tuple[tuple[Stages, float, float], ...], float] = {}

    def known(self, job: int) -> bool:
        return sum(self.stages[job]) > 0

    def together_s(self, members: list[int]) -> float:
        key = tuple(sorted((self.stages[job], self.solo[job], self.memory[job]) for job in members))
        if key not in self._seen:
            self._seen[key] = self._together_s([stages for stages, _, _ in key])
        return self._seen[key]

    def _together_s(self, group: list[Stages]) -> float:
        factor = self.factors[len(group) - 1]
        if self.ordering == "none":
            return factor * one_order_s(group)
        tried = [one_order_s(list(way)) for way in permutations(group)]
        if len(group) == 2:
            (load, compute, network), (load2, compute2, network2) = group
            tried.append(max(load, compute2 + network2) + max(load2, compute + network))
        return factor * (max(tried) if self.ordering == "worst" else min(tried))

    def pays(self, group: list[int]) -> bool:
        return sum(self.solo[job] for job in group) >= self.together_s(group) * (1 - 1e-9)

    def rate(self, job: int, partners: list[int]) -> float:
        return self.solo[job] / self.together_s([job, *partners]) if partners else 1.0


# -- checks ----------------------------------------------------------------------------------------------------


def runs_by_place(result: SimResult, *, brief: bool = False) -> dict[tuple[tuple[int, int], ...], list[Sharer]]:
    """By place ((node, mask), …) who ran there, in order of start; runs without length only if `brief`."""
    segments = result.segments
    assert segments is not None
    pieces: dict[tuple[int, float, float], list[tuple[int, int]]] = {}
    layers: dict[tuple[int, float, float], int] = {}
    for row in range(len(segments.job)):
        start, end, layer = float(segments.start_s[row]), float(segments.end_s[row]), int(segments.layer[row])
        if end > start or brief:
            key = (int(segments.job[row]), start, end)
            pieces.setdefault(key, []).append((int(segments.node[row]), int(segments.gpu_mask[row])))
            assert layers.setdefault(key, layer) == layer
    places: dict[tuple[tuple[int, int], ...], list[Sharer]] = {}
    for (job, start, end), place in pieces.items():
        places.setdefault(tuple(sorted(place)), []).append((job, start, end, layers[job, start, end]))
    return {place: sorted(runs, key=lambda run: (run[1], run[0])) for place, runs in places.items()}


def check_sharing(result: SimResult, workload: Workload, cluster: Cluster, size: int, model: Model) -> None:
    """Layers, whole gangs, same GPUs, group sizes, memory."""
    assert not result.interrupted
    assert result.finished == len(workload)
    assert (result.start_s >= workload.submit_s).all()
    assert (result.end_s >= result.start_s).all()
    places = runs_by_place(result)
    memory = min([node.gpu_memory_mib for node in cluster.nodes if node.gpu_memory_mib is not None], default=np.inf)
    held = np.zeros(len(workload))
    spans: dict[tuple[int, int], list[tuple[float, float, int]]] = {}
    by_job: dict[int, list[tuple[float, float]]] = {}
    for index, (place, runs) in enumerate(places.items()):
        gpus = sum(mask.bit_count() for _, mask in place)
        assert all(mask < 1 << cluster.nodes[node].gpus for node, mask in place)
        for job, start, end, _ in runs:
            assert gpus == workload.gpus[job], "gangs are whole, and members of a group have as many GPUs each"
            held[job] += (end - start) * gpus
            by_job.setdefault(job, []).append((start, end))
            for node, mask in place:
                for gpu in range(mask.bit_length()):
                    if mask >> gpu & 1:
                        spans.setdefault((node, gpu), []).append((start, end, index))
        for now in {start for _, start, _, _ in runs}:
            group = [(job, layer) for job, start, end, layer in runs if start <= now < end]
            assert len(group) <= size
            assert len({layer for _, layer in group}) == len(group), "no layer of a GPU is used twice"
            if len(group) > 1:
                assert all(model.known(job) for job, _ in group)
                assert sum(model.memory[job] for job, _ in group) <= memory
    for users in spans.values():
        users.sort()
        until: dict[int, float] = {}
        for start, end, place_index in users:
            assert all(over <= start for other, over in until.items() if other != place_index), "same GPUs or none"
            until[place_index] = max(end, until.get(place_index, 0.0))
    for job, of_job in by_job.items():
        of_job.sort()
        assert all(later >= earlier for (_, earlier), (later, _) in pairwise(of_job)), "one run at a time"
        assert of_job[-1][1] <= result.end_s[job]
    assert result.attained_gpu_s == pytest.approx(held, rel=1e-9, abs=1e-6)


def work_done(result: SimResult, model: Model, cluster: Cluster, workload: Workload, overhead_s: float) -> Any:
    """Work of each job, integrated over its runs: at solo / T beside the partners of each moment.

    A run works from its start on, after the overheads of all who are in the group when it starts.
    """
    done = np.zeros(len(workload))
    for place, runs in runs_by_place(result).items():
        gpu_model = cluster.nodes[place[0][0]].gpu_model
        for job, start, end, _ in runs:
            speed = 1.0
            if workload.speeds is not None and gpu_model in workload.speeds.models:
                speed = float(workload.speeds.factor[job, workload.speeds.models.index(gpu_model)])
            others = [run for run in runs if run[0] != job and run[1] < end and run[2] > start]
            beside = [other for other, s, e, _ in others if s <= start < e]
            begin = start + overhead_s * (1 + len(beside))
            cuts = sorted({begin, end, *(t for _, s, e, _ in others for t in (s, e) if begin < t < end)})
            for left, right in pairwise(cuts):
                if left >= begin and right <= end:
                    partners = [other for other, s, e, _ in others if s <= left and e >= right]
                    done[job] += (right - left) * speed * model.rate(job, partners)
    return done


def no_group_is_slower(result: SimResult, model: Model, size: int) -> None:
    """A group that starts does at least as much as its jobs one after another.

    Jobs of no length are gone as soon as they start: the group that was chosen may have had some of them.
    """
    for runs in runs_by_place(result, brief=True).values():
        for now in {start for _, start, _, _ in runs}:
            group = [job for job, start, end, _ in runs if start <= now < end]
            if len(group) > 1:
                gone = [job for job, start, end, _ in runs if start == now == end]
                chosen = chain.from_iterable(combinations(gone, more) for more in range(size - len(group) + 1))
                assert any(model.pays([*group, *more]) for more in chosen), group


def parts(text: str) -> dict[str, str]:
    return dict(part.split("=") for part in text.partition(":")[2].split(";"))


# -- the properties --------------------------------------------------------------------------------------------


@EVERY
@settings(max_examples=examples(15))
@given(
    workload=woven(),
    shape=st.sampled_from(CLUSTERS),
    size=st.integers(1, 4),
    overhead=st.sampled_from([0.0, 7.0, 300.0]),
    factors=st.sampled_from(list(OVERHEADS)),
    slow=st.sampled_from(["avoid", "split", "keep"]),
    partners=st.sampled_from(["yes", "no"]),
    interval=st.sampled_from([0.0, 360.0]),
)
def test_groups_hold_together_and_do_the_work_that_the_model_says(
    text: str,
    workload: Workload,
    shape: str,
    size: int,
    overhead: float,
    factors: str,
    slow: str,
    partners: str,
    interval: float,
) -> None:
    cluster = parse_cluster(shape)
    policy = f"{text};group_size={size};interleave_overhead={factors};restart_partners={partners};floor=no"
    if "grouping" in text:
        policy += f";slow_groups={slow}"  # Muri-XS and -XL never form any
    result = simulate(workload, cluster, policy, restart_overhead_s=overhead, interval_s=interval, record_segments=True)
    model = Model(workload, parts(text)["ordering"], factors)
    check_sharing(result, workload, cluster, size, model)
    done = work_done(result, model, cluster, workload, overhead)
    assert done == pytest.approx(workload.duration_s, rel=1e-7, abs=1e-5)
    if slow != "keep" or "grouping" not in text:
        no_group_is_slower(result, model, size)


@EVERY
@settings(max_examples=examples(8))
@given(workload=woven(largest=4, hetero=True), overhead=st.sampled_from([0.0, 30.0]))
def test_on_mixed_gpu_models(text: str, workload: Workload, overhead: float) -> None:
    nodes = [{"count": 2, "gpus": 4, "gpu_model": "V100"}, {"gpus": 4, "gpu_model": "K80", "gpu_memory": "12 GiB"}]
    cluster = cluster_from_mapping({"nodes": nodes}, source="test")
    result = simulate(workload, cluster, text, restart_overhead_s=overhead, record_segments=True)
    model = Model(workload, parts(text)["ordering"], "measured")
    check_sharing(result, workload, cluster, 4, model)
    done = work_done(result, model, cluster, workload, overhead)
    assert done == pytest.approx(workload.duration_s, rel=1e-7, abs=1e-5)
    segments = result.segments
    assert segments is not None
    assert workload.gpu_type is not None
    for job, node in zip(segments.job.tolist(), segments.node.tolist(), strict=True):
        assert cluster.nodes[node].gpu_model in (workload.gpu_type[job] or "V100|K80").split("|")


@EVERY
@settings(max_examples=examples(8))
@given(
    workload=woven(),
    failures=st.lists(st.tuples(st.integers(0, 1), st.floats(0, 8000), st.floats(1, 3000)), max_size=4),
)
def test_when_nodes_fail(text: str, workload: Workload, failures: list[tuple[int, float, float]]) -> None:
    free_from: dict[int, float] = {}
    outages = []
    for node, start, length in sorted(failures, key=lambda f: f[1]):
        if start > free_from.get(node, -1.0):
            outages.append(Failure(node, start, start + length))
            free_from[node] = start + length
    cluster = parse_cluster("2x4")
    result = simulate(workload, cluster, text, failures=tuple(outages), restart_overhead_s=10.0, record_segments=True)
    model = Model(workload, parts(text)["ordering"], "measured")
    check_sharing(result, workload, cluster, 4, model)
    done = work_done(result, model, cluster, workload, 10.0)
    assert done == pytest.approx(workload.duration_s, rel=1e-7, abs=1e-5)
    segments = result.segments
    assert segments is not None
    for outage in outages:
        overlap = (segments.start_s < outage.end_s) & (segments.end_s > outage.start_s)
        assert not ((segments.node == outage.node) & overlap & (segments.end_s > segments.start_s)).any()


@EVERY
@settings(max_examples=examples(6))
@given(workload=woven())
def test_in_rounds_groups_change_at_intervals_only(text: str, workload: Workload) -> None:
    cluster = parse_cluster("2x4")
    result = simulate(workload, cluster, text, schedule="rounds", interval_s=60.0, record_segments=True)
    check_sharing(result, workload, cluster, 4, Model(workload, parts(text)["ordering"], "measured"))
    segments = result.segments
    assert segments is not None
    assert (segments.start_s % 60.0 == 0).all()


@EVERY
@settings(max_examples=examples(8))
@given(workload=woven(), size=st.integers(1, 4))
def test_under_compat_groups_hold_together_too(text: str, workload: Workload, size: int) -> None:
    cluster = parse_cluster("2x4")
    result = simulate(workload, cluster, f"{text};group_size={size}", compat="muri", record_segments=True)
    check_sharing(result, workload, cluster, size, Model(workload, parts(text)["ordering"], "measured"))


def forgetful(text: str, at: frozenset[int]) -> Policy:
    """The policy, which loses its cache before these calls."""
    made = create_policy(text)
    calls = 0
    decide = made.decide

    def forget(snapshot: Snapshot, memory: Any) -> tuple[Decision, Any]:
        nonlocal calls
        calls += 1
        if calls in at:
            made.cache = None
        return decide(snapshot, memory)

    made.decide = forget  # type: ignore[method-assign]
    return made


@EVERY
@settings(max_examples=examples(10))
@given(
    workload=woven(most=24),
    shape=st.sampled_from(CLUSTERS),
    at=st.frozensets(st.integers(2, 60), min_size=1, max_size=30),
    noise=st.sampled_from(["0", "0.5"]),
)
def test_a_policy_that_is_replaced_in_mid_run_decides_alike(
    text: str, workload: Workload, shape: str, at: frozenset[int], noise: str
) -> None:
    """Nothing but the snapshot counts: not what was solved before, nor when. Twice the same is the same, too."""
    noisy = f"{text};profile_noise={noise};seed=5"
    whole = simulate(workload, shape, noisy)
    for other in (noisy, forgetful(noisy, at)):
        again = simulate(workload, shape, other)
        assert again.end_s.tobytes() == whole.end_s.tobytes()
        assert again.starts.tolist() == whole.starts.tolist()
        assert again.attained_gpu_s.tobytes() == whole.attained_gpu_s.tobytes()


@settings(max_examples=examples(25))
@given(workload=woven(), shape=st.sampled_from(CLUSTERS))
def test_groups_of_one_never_share(workload: Workload, shape: str) -> None:
    result = simulate(workload, shape, "muri-s:group_size=1", record_segments=True)
    assert result.segments is not None
    assert not result.segments.layer.any()
