"""A job that runs on a slow GPU moves to a faster one that stands idle, if it ends sooner so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from builders import jobs
from gpuloom.core.cluster import parse_cluster
from gpuloom.core.decision import Decision, Placement
from gpuloom.core.workload import Speeds, Workload
from gpuloom.facts.inputs import load_policy
from gpuloom.interleave.opportunistic import OpportunisticSharing
from gpuloom.live.planning.chosen import read
from gpuloom.placement.upgrades import Moves, Upgrades, _Mover, merged
from gpuloom.sim import SimResult, simulate
from gpuloom.sim.explain import explain

ORDERINGS = (
    "fifo",
    "fifo:backfill=easy",
    "fifo:backfill=greedy",
    "sjf",
    "srtf",
    "srsf",
    "tiresias",
    "gittins",
    "themis",
    "muri-s",
    "muri-l",
    "muri-xs",
    "muri-xl",
)
MODELS = ("V100", "K80")


def two(slow: float = 0.1, *, first_s: float = 1000.0, second_s: float = 36_000.0) -> Workload:
    """The second job has to begin on a K80; the first leaves the V100 after `first_s`."""
    speeds = Speeds(MODELS, np.array([[1.0, slow]] * 2))
    return jobs([(0, first_s, 1), (1, second_s, 1)], speeds=speeds)


def run(workload: Workload, policy: str, overhead_s: float = 30.0, cluster: str = "1x1:V100,1x1:K80") -> SimResult:
    return simulate(workload, cluster, policy, restart_overhead_s=overhead_s)


@pytest.mark.parametrize("policy", ORDERINGS)
def test_nobody_stays_on_a_slow_gpu_beside_an_idle_fast_one(policy: str) -> None:
    # 1,000 s at a tenth of the speed, a restart, the rest at full speed; muri and the like look every 360 s.
    found = run(two(), policy)
    assert 36_930 <= found.makespan_s <= 36_930 + 400
    assert found.moves == 1


@pytest.mark.parametrize("policy", ORDERINGS)
def test_the_textbook_policy_stays(policy: str) -> None:
    found = run(two(), f"{policy}{';' if ':' in policy else ':'}upgrade=no")
    assert found.makespan_s == pytest.approx(360_031)
    assert found.moves == 0


def test_who_knows_when_jobs_end_moves_only_one_that_ends_sooner_so() -> None:
    # At 1,000 s the V100 is free. Of what is left on the K80, at half the speed, the move saves half.
    for overhead_s, moves in ((500.0, 1), (800.0, 0)):
        left_s = 2.0 * 800.0 - (1000.0 - 1.0 - overhead_s)
        assert (left_s / 2 > overhead_s) == bool(moves)
        workload = replace(two(0.5, second_s=800.0), restart_overhead_s=np.array([0.0, overhead_s]))
        found = simulate(workload, "1x1:V100,1x1:K80", "sjf")
        assert found.moves == moves
        assert found.end_s[1] == pytest.approx(1000.0 + (overhead_s + left_s / 2 if moves else left_s))


def test_who_does_not_know_waits_until_it_has_run_for_as_long_as_the_move_must_save() -> None:
    # Twice as fast: the move pays once twice the restart has passed. 400 s · 2 = 800 s after the start.
    workload = two(0.5, first_s=100.0)
    found = simulate(workload, "1x1:V100,1x1:K80", "fifo", restart_overhead_s=400.0, record_segments=True)
    assert found.segments is not None
    later = found.segments.start_s[(found.segments.job == 1) & (found.segments.start_s > 1.0)]
    assert later.tolist() == pytest.approx([801.0])


def test_weave_moves_jobs_to_idle_gpus_however_long_a_restart_takes() -> None:
    # A restart takes longer than the 900 s in which its plans must pay. Ten times as fast, it pays after 1,111 s.
    found = simulate(two(), "1x1:V100,1x1:K80", "weave", restart_overhead_s=1000.0, record_segments=True)
    assert found.moves == 1
    assert found.makespan_s < 36_000 + 4000


def test_jobs_alike_on_both_models_stay() -> None:
    assert run(two(1.0), "srtf").moves == 0
    # Who starts goes where it is fastest at once, for nothing; who comes later follows.
    found = run(two(2.0), "srtf", 0.0)
    assert found.end_s[0] == pytest.approx(500.0)
    assert found.moves == 1


def test_those_who_gain_most_go_first_and_others_follow() -> None:
    # The first leaves the A100; the V100's job gains nothing there, the K80's most of all.
    speeds = Speeds(("A100", "V100", "K80"), np.array([[1, 1, 1], [1, 1, 1], [1.0, 0.5, 0.1]]))
    workload = jobs([(0, 1000, 1), (1, 50_000, 1), (2, 20_000, 1)], speeds=speeds)
    found = simulate(workload, "1x1:A100,1x1:V100,1x1:K80", "fifo", restart_overhead_s=0.0, record_segments=True)
    assert found.segments is not None
    assert found.segments.node[found.segments.job == 2].tolist() == [2, 0]
    # One who leaves makes room for the next.
    speeds = Speeds(("A100", "V100", "K80"), np.array([[1, 1, 1], [1.0, 0.2, 0.1], [1.0, 0.9, 0.5]]))
    workload = jobs([(0, 1000, 1), (1, 50_000, 1), (2, 20_000, 1)], speeds=speeds)
    found = simulate(workload, "1x1:A100,1x1:V100,1x1:K80", "fifo", restart_overhead_s=0.0, record_segments=True)
    assert found.segments is not None
    assert found.segments.node[found.segments.job == 1].tolist() == [1, 0]
    assert found.segments.node[found.segments.job == 2].tolist() == [2, 1]


def test_what_a_job_leaves_serves_one_that_waits() -> None:
    # The third may use K80s only; it waits until the second has moved.
    speeds = Speeds(MODELS, np.array([[1.0, 0.1], [1.0, 0.1], [0.0, 1.0]]))
    workload = jobs([(0, 1000, 1), (1, 36_000, 1), (2, 500, 1)], speeds=speeds)
    for policy in ("fifo:backfill=greedy", "sjf", "srtf", "tiresias", "muri-s"):
        assert run(workload, policy, 0.0).avg_jct_s < 15_000
    # In order, GPUs that are free while jobs wait are kept for the first of them.
    assert run(workload, "fifo", 0.0).moves == 0


def test_a_group_moves_as_one() -> None:
    # Two jobs are woven on the K80; both go to the V100.
    stages = np.array([[0.1, 0.1, 0.1], [1.0, 0.1, 0.0], [0.1, 1.0, 0.0]])
    speeds = Speeds(MODELS, np.array([[1.0, 0.0], [1.0, 0.1], [1.0, 0.1]]))
    workload = jobs([(0, 5000, 1), (1, 36_000, 1), (1, 36_000, 1)], speeds=speeds, stage_s=stages)
    found = simulate(workload, "1x1:V100,1x1:K80", "muri-l", restart_overhead_s=10.0, record_segments=True)
    segments = found.segments
    assert segments is not None
    for job in (1, 2):
        assert 0 in segments.node[segments.job == job].tolist()
    assert found.makespan_s < 150_000


def test_why_says_what_a_move_saves() -> None:
    found = explain(two(), parse_cluster("1x1:V100,1x1:K80"), load_policy("tiresias"), "1")
    said = [step.why for step in found.steps if step.why is not None and step.why.code == "upgraded"]
    assert len(said) == 1
    assert said[0].text.startswith("V100 GPUs stood idle, on which it is 10 times as fast as on K80: of the 1")
    assert said[0].numbers["ratio"] == pytest.approx(10.0)


@pytest.mark.parametrize("policy", ["fifo", "srtf", "tiresias", "themis", "gittins"])
def test_on_one_model_nothing_changes(policy: str) -> None:
    rng = np.random.default_rng(3)
    rows = [
        (float(t), float(d), int(g))
        for t, d, g in zip(
            np.sort(rng.uniform(0, 5e4, 60)), rng.lognormal(8, 1, 60), rng.choice([1, 2, 4], 60), strict=True
        )
    ]
    workload = jobs(rows, speeds=Speeds(("V100",), rng.uniform(0.5, 2.0, (60, 1))))
    found = [simulate(workload, "2x4:V100", f"{policy}:upgrade={on}").end_s for on in ("yes", "no")]
    assert np.array_equal(*found)


def test_on_a_cluster_with_users_only_who_preempts_moves_jobs_unasked() -> None:
    assert not read("fifo").moves_running
    assert not read("fifo").stops_running
    assert not read("sjf", beside=True).moves_running
    assert read("fifo:upgrade=yes", beside=True).stops_running
    assert read("tiresias").moves_running
    # Live, each of them has a process of its own.
    assert (read("muri-s").values["processes"], read("weave:processes=one").values["processes"]) == ("own", "one")
    assert not read("tiresias:upgrade=no").moves_running


P, Q, R = (Placement((0,), (mask,)) for mask in (1, 2, 4))


def above(place: Placement) -> Placement:
    return replace(place, layer=1)


@pytest.mark.parametrize(
    ("run", "wait", "alone", "shared"),
    [
        ({}, [], [([0], P, False), ([1], above(P), False), ([2], Q, False)], [([0, 1], P, False), ([2], Q, False)]),
        ({}, [1], [([0], P, False), ([2], Q, False)], [([2], Q, False)]),  # who is left of a pair is no pair
        ({3: R, 4: above(R)}, [2], [([0], P, False), ([1], above(P), False), ([3], R, True), ([4], above(R), True)],
         [([0, 1], P, False), ([3, 4], R, True)]),
        ({2: R}, [], [([0], P, False), ([1], above(P), False)], [([0, 1], P, False)]),  # moved by the policy itself
        ({3: above(Q)}, [], [([0], P, False), ([1], above(P), False), ([2], Q, False), ([3], above(Q), True)],
         [([0, 1], P, False)]),  # it joins who runs there
    ],
)  # fmt: skip
def test_who_may_be_moved(run: Mapping[int, Placement], wait: list[int], alone: list[Any], shared: list[Any]) -> None:
    snapshot: Any = SimpleNamespace(placements={0: P, 1: above(P), 2: Q}, may_move=lambda job: True)
    workload, cluster = two(), parse_cluster("1x4")
    sharing = OpportunisticSharing(workload, 0.5)
    for how, wanted in ((None, alone), (sharing, shared)):
        upgrades = Upgrades(workload, cluster, known=True, sharing=how)
        # All of them are faster on a model that is not there.
        upgrades._faster, upgrades._pool_of = np.full((5, 1), 0b10), {0: 0}
        found = list(upgrades._candidates(snapshot, Decision(run, wait)))
        assert [(jobs, place, starts) for jobs, place, _, _, starts in found] == wanted
        assert {(pool, wants) for _, _, pool, wants, _ in found} == {(0, 0b10)}
        assert list(upgrades._candidates(snapshot, Decision(run, wait), True)) == [one for one in found if one[4]]
        fixed: Any = SimpleNamespace(placements=snapshot.placements, may_move=lambda job: job != 0)
        assert not [one for one in upgrades._candidates(fixed, Decision(run, wait)) if 0 in one[0]]
        upgrades._faster = np.zeros((5, 1), dtype=np.int64)
        assert not list(upgrades._candidates(snapshot, Decision(run, wait)))


def test_moves_are_added_to_the_decision() -> None:
    before = Decision({1: P}, [2], 50.0, {1: "why"})  # type: ignore[dict-item]
    assert merged(before, Moves({3: Q}, 60.0)) == Decision({1: P, 3: Q}, [2], 50.0, {1: "why"})  # type: ignore[dict-item]
    assert merged(before, Moves({1: Q}, 40.0, {1: "so"})) == Decision({1: Q}, [2], 40.0, {1: "so"})  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("known", "expected"), [(True, "it has"), (False, "it is expected to have (as long as it has run)")]
)
def test_why_a_job_moves(known: bool, expected: str) -> None:
    upgrades = Upgrades(two(), parse_cluster("1x1:V100,1x1:K80"), known=known)
    mover = _Mover([1], [0], P, 1, 1, 1, 30.0, [400.0], ready=True, starts=False)
    found = upgrades._reason(mover, 0, 4.0, 1)
    assert (found.code, found.numbers) == ("upgraded", {"ratio": 4.0, "left_s": 400.0, "restart_s": 30.0})
    assert found.text == (
        f"V100 GPUs stood idle, on which it is 4 times as fast as on K80: of the 400 s that {expected} left there it "
        "saves 300 s, and its restart takes 30 s."
    )
    starts = upgrades._reason(replace(mover, starts=True), 0, 4.0, 1)
    assert starts.text == "It starts on V100, where it is 4 times as fast as on K80."
    assert starts.numbers == {"ratio": 4.0, "left_s": 0.0, "restart_s": 0.0}
