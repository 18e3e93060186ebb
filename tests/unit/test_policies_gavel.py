"""Gavel: its rounds, its weights and its objectives, on small cases."""

from __future__ import annotations

import csv
import os
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import engine_of, jobs
from gpuloom.cli.main import cli
from gpuloom.core.cluster import parse_cluster
from gpuloom.core.errors import GpuloomError, PolicyError
from gpuloom.core.state import State
from gpuloom.core.workload import Speeds, Workload
from gpuloom.facts.inputs import load_policy
from gpuloom.policies.gavel_ledger import Memory
from gpuloom.policies.gavel_objectives import OBJECTIVES, Present
from gpuloom.policies.registry import ALIASES
from gpuloom.sim import simulate
from gpuloom.sim.rebuilt import Rebuilt
from gpuloom.solvers import interior
from gpuloom.traces import read_trace
from gpuloom.traces.generate import GeneratorConfig, generate
from tiers import examples

DATA = Path(os.environ.get("GPULOOM_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))
BESIDE = DATA / "gavel" / "side_by_side"
RESULTS = list(csv.DictReader((BESIDE / "results.csv").read_text().splitlines())) if BESIDE.is_dir() else []
MIXED = "1x12:V100,1x12:P100,1x12:K80"
without_ecos = pytest.mark.skipif(find_spec("ecos") is None, reason="ECOS is not installed (gpuloom[gavel])")


def needs_ecos(test: Callable[..., None]) -> Callable[..., None]:
    """Skip it where there is no ECOS."""
    marked: Callable[..., None] = pytest.mark.ecos(without_ecos(test))
    return marked


ONE_AND_TWO = "1x1:V100,2x1:K80"


def mixed(rows: list[tuple[float, float, int]], *factors: tuple[float, ...], **columns: Any) -> Workload:
    return jobs(rows, speeds=Speeds(("V100", "K80", "P100")[: len(factors[0])], np.array(factors)), **columns)


def shares(text: str, workload: Workload, cluster: str) -> np.ndarray[Any, Any]:
    """Those of the first allocation, all jobs there from the start."""
    policy, nodes = load_policy(text), parse_cluster(cluster)
    engine = engine_of(policy, workload, nodes, State(workload, nodes, layers=1))
    engine.take_in(0.0, arrived=list(range(len(workload))))
    engine.decide(0.0)
    return engine.memory.share


# -- service -------------------------------------------------------------------------------------------------


def ledger() -> Memory:
    """Two jobs on one model, with shares of 3/4 and 1/4 since time 0; rounds of 100 s."""
    memory = Memory.of(3, ("V100",))
    memory.allocate(np.array([0, 1]), 0.0, 100.0)
    memory.share[:2, 0] = (0.75, 0.25)
    return memory


def test_priority_is_the_share_over_the_part_of_all_job_time_which_begins_at_half_a_round() -> None:
    memory, both = ledger(), np.array([0, 1])
    assert memory.priorities(both, 100.0)[:, 0] == pytest.approx([0.75 / 0.5, 0.25 / 0.5])
    memory.receive(0, 0, 300.0)
    assert memory.priorities(both, 100.0)[:, 0] == pytest.approx([0.75 / (350 / 400), 0.25 / (50 / 400)])
    assert memory.queue(both, 0, memory.priorities(both, 100.0)).tolist() == [1, 0]


def test_time_counts_from_the_last_allocation_on() -> None:
    memory, both = ledger(), np.array([0, 1])
    memory.receive(0, 0, 1000.0)
    memory.allocate(both, 1000.0, 100.0)
    assert memory.priorities(both, 100.0)[:, 0] == pytest.approx([1.5, 0.5])
    # It got 1,000 s where 750 were due, the other none of its 250.
    assert memory.deficit_s[:2, 0].tolist() == [-250.0, 250.0]


def test_of_equal_priorities_the_larger_deficit_goes_first_then_the_larger_share() -> None:
    memory, both = ledger(), np.array([0, 1])
    even = np.ones((2, 1))
    assert memory.queue(both, 0, even).tolist() == [0, 1]
    memory.deficit_s[1] = 10.0
    assert memory.queue(both, 0, even).tolist() == [1, 0]


def test_a_job_that_came_after_the_last_allocation_has_no_priority_yet() -> None:
    memory = ledger()
    memory.share[2] = 0.9  # of another job that had this row
    assert memory.priorities(np.array([0, 2]), 100.0)[:, 0] == pytest.approx([1.5, 0.0])


@pytest.mark.parametrize(("reset", "allocations"), [("0", 3), ("1000", 1), ("600", 2)])
def test_an_allocation_is_made_when_reset_has_passed_since_the_last_one(reset: str, allocations: int) -> None:
    """Jobs come at 0, 400 and 700, and are looked at by the rounds of 100 s."""
    policy, nodes = load_policy(f"gavel:reset={reset};round=100"), parse_cluster("1x1:V100,1x1:K80")
    workload = mixed([(0, 9e3, 1), (400, 9e3, 1), (700, 9e3, 1)], (1.0, 0.5), (1.0, 0.5), (1.0, 0.5))
    engine = engine_of(policy, workload, nodes, State(workload, nodes, layers=1))
    seen = set()
    for now_s in range(0, 900, 100):
        engine.take_in(float(now_s), arrived=[job for job in range(3) if workload.submit_s[job] == now_s])
        engine.decide(float(now_s))
        seen.add(engine.memory.solved_at_s)
    assert len(seen) == allocations


# -- weights -------------------------------------------------------------------------------------------------


def test_the_heavier_of_two_alike_jobs_ends_first_where_much_is_left_over() -> None:
    """A and B are alike but for their weights, 5 and 1; with the left-over valued by 1/weight B ended first."""
    workload = mixed(
        [(0, 400_000, 1), (0, 100_000, 1), (0, 100_000, 1)],
        (1.0, 0.5),
        (1.0, 0.5),
        (1.0, 0.5),
        weight=np.array([5.0, 5.0, 1.0]),
    )
    share = shares("gavel", workload, ONE_AND_TWO)
    assert share[:, 0] == pytest.approx([0.5, 0.5, 0.0], abs=1e-3)
    result = simulate(workload, ONE_AND_TWO, "gavel", restart_overhead_s=0.0)
    assert result.end_s[1] <= result.end_s[2]
    assert result.end_s[1] < 134_000


# -- the released simulator ----------------------------------------------------------------------------------


def run(workload: Workload, cluster: str, policy: str, **settings: Any) -> Any:
    return simulate(workload, cluster, policy, **{"restart_overhead_s": 0.0, **settings})


def test_the_released_rounds_need_a_solver_that_is_named_where_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interior, "find_spec", lambda name: None)
    with pytest.raises(GpuloomError, match=r"^gavel:released needs the solver ECOS.*pip install 'gpuloom\[gavel\]'"):
        load_policy("gavel:released")
    load_policy("gavel")
    load_policy("gavel:released;objective=allox")
    with pytest.raises(PolicyError, match="gavel:packed is for max_min_fairness, not for released"):
        load_policy("gavel:released;packed")


@needs_ecos
def test_released_rounds_last_until_the_last_job_has_done_its_whole_steps() -> None:
    """A round of 100 s holds 3 steps of 30 s and 2 of 40 s: it ends at 90, and the other job idles from 80 on."""
    workload = jobs([(0, 240, 1), (0, 240, 1)], iteration_s=np.array([30.0, 40.0]))
    result = run(workload, "1x2", "gavel:released;round=100", record_segments=True)
    # 3 + 3 + 2 steps; 2 + 2 + 2, from 0, 90 and 180 on.
    assert result.end_s.tolist() == pytest.approx([240, 260])
    assert result.starts.tolist() == [1, 3]


@needs_ecos
@pytest.mark.parametrize("objective", ["max_min_fairness", "finish_time_fairness", "makespan", "max_sum_throughput"])
def test_a_step_of_no_time_is_one_of_unknown_time(objective: str) -> None:
    rows = [(0.0, 300.0, 1), (0.0, 500.0, 1), (0.0, 200.0, 1)]
    text = f"gavel:released;round=100;objective={objective}"
    with np.errstate(divide="raise", invalid="raise"):
        found = run(jobs(rows, iteration_s=np.array([0.0, 0.0, 7.0])), "1x2", text)
    unknown = run(jobs(rows, iteration_s=np.array([np.nan, np.nan, 7.0])), "1x2", text)
    assert found.end_s.tolist() == unknown.end_s.tolist()


@needs_ecos
def test_released_rounds_have_no_room_for_who_comes_within_one() -> None:
    workload = jobs([(0, 150, 1), (10, 100, 1)])
    result = run(workload, "1x2", "gavel:released;round=100;reset=0")
    assert result.start_s.tolist() == [0, 100]
    assert result.end_s.tolist() == [150, 200]


@needs_ecos
def test_a_job_without_a_share_takes_gpus_from_those_behind_it_and_does_not_run() -> None:
    """It came at 10; the next allocation may be made at 500 only, or when nothing runs any more."""
    workload = jobs([(0, 350, 1), (10, 100, 1)])
    result = run(workload, "1x2", "gavel:released;round=100;reset=500")
    assert result.start_s.tolist() == [0, 500]
    result = run(workload, "1x2", "gavel:released;round=100;reset=300")
    assert result.start_s.tolist() == [0, 300]


@needs_ecos
def test_a_restart_lengthens_a_released_round() -> None:
    workload = jobs([(0, 300, 1), (0, 300, 1)])
    result = run(workload, "1x1", "gavel:released;round=100", restart_overhead_s=150.0)
    assert result.finished == 2


@needs_ecos
@settings(deadline=None, max_examples=examples(40))
@given(
    rows=st.lists(
        st.tuples(st.integers(0, 900), st.integers(1, 900), st.sampled_from([1, 1, 2, 4]), st.integers(1, 70)),
        min_size=1,
        max_size=12,
    ),
    overhead=st.sampled_from([0.0, 7.0, 150.0]),
    schedule=st.sampled_from(["events", "rounds"]),
)
def test_all_jobs_end_under_the_released_rounds(
    rows: list[tuple[int, int, int, int]], overhead: float, schedule: str
) -> None:
    workload = mixed(
        [(float(submit), float(work), gpus) for submit, work, gpus, _ in rows],
        *[(1.0, 0.3)] * len(rows),
        iteration_s=np.array([float(step) for *_, step in rows]),
    )
    result = run(
        workload,
        "1x4:V100,1x4:K80",
        "gavel:released;round=100;reset=150",
        restart_overhead_s=overhead,
        schedule=schedule,
        interval_s=100.0,
    )
    assert result.finished == len(rows)


@needs_ecos
def test_the_interior_point_gives_everybody_some_of_what_is_left() -> None:
    """One job of four GPUs fixes the level; the others share the rest of the fast model, none to its brim."""
    share = interior.interior_shares(
        np.array([[1.0, 0.2], [1.0, 0.5], [1.0, 0.5]]), np.array([1.0, 1.0, 1.0]), np.array([1.0, 3.0])
    )
    assert share[:, 0].sum() == pytest.approx(1.0, abs=1e-6)
    assert ((share > 0.01) & (share < 0.99)).all()


@needs_ecos
def test_with_a_term_for_throughput_the_sum_counts_too() -> None:
    """Job 1 is twice as fast on the fast GPU. At equal levels it has a part, for the largest sum all of it."""
    value, one = np.array([[1.0, 0.1], [2.0, 0.1]]), np.ones(2)
    fair, term = interior.interior_shares(value, one, one), interior.interior_shares(value, one, one, 10.0)
    assert (value * fair).sum(axis=1) == pytest.approx([0.1 + 0.9 * 1.9 / 2.8] * 2, abs=1e-5)
    assert term == pytest.approx(np.array([[0.0, 1.0], [1.0, 0.0]]), abs=1e-5)


@needs_ecos
def test_the_term_for_throughput_reaches_the_rounds() -> None:
    speeds = Speeds(("A", "B"), np.array([[1.0, 0.5], [1.0, 0.9]]))
    workload = jobs([(0.0, 3600.0, 1)] * 2, speeds=speeds)
    policies = ("gavel:released", "gavel:released;throughput_term=100")
    ends = [simulate(workload, "1x1:A,1x1:B", policy, restart_overhead_s=0.0).end_s.tolist() for policy in policies]
    assert ends[1] == pytest.approx([3600.0, 3960.0]), "each is where both do most, until one has ended"
    assert ends[0] != ends[1]


@pytest.mark.parametrize(
    "policy", ["gavel", pytest.param("gavel:released;objective=makespan", marks=[pytest.mark.ecos, without_ecos])]
)
def test_the_term_for_throughput_is_for_released_max_min_alone(policy: str) -> None:
    with pytest.raises(PolicyError, match="throughput_term is for gavel:released with objective=max_min_fairness"):
        load_policy(f"{policy}{';' if ':' in policy else ':'}throughput_term=1e-4")


# -- names ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alias", ALIASES)
def test_gavel_s_own_names_are_aliases(alias: str) -> None:
    meant, again = load_policy(ALIASES[alias]), load_policy(f"{alias}:round=5m")
    assert again.id == "gavel"
    assert again.values == meant.values | {"round": 300.0}


@pytest.mark.parametrize(
    ("name", "objective"),
    [
        ("max_min_fairness_perf", "max_min_fairness"),
        ("max_min_fairness_water_filling_perf", "water_filling"),
        ("min_total_duration_perf", "makespan"),
        ("finish_time_fairness_perf", "finish_time_fairness"),
        ("max_sum_throughput_perf", "max_sum_throughput"),
        ("max_sum_throughput_normalized_by_cost_perf", "cost"),
    ],
)
def test_and_those_that_look_at_throughputs_objectives(name: str, objective: str) -> None:
    assert load_policy(f"gavel:objective={name}").values["objective"] == objective


def test_names_without_perf_are_no_objectives() -> None:
    with pytest.raises(PolicyError, match="must be one of max_min_fairness"):
        load_policy("gavel:objective=min_total_duration")


def test_an_alias_works_on_the_command_line() -> None:
    assert "policy:        gavel" in CliRunner().invoke(cli, ["policies", "allox"]).stdout
    assert "did you mean 'max_min_fairness_perf'" in str(
        CliRunner().invoke(cli, ["policies", "max_min_fairness_pref"]).exception
    )


# -- objectives ----------------------------------------------------------------------------------------------

TWO = (1.0, 0.5)


def test_max_sum_throughput_gives_the_fast_gpu_to_who_gains_most_by_weight() -> None:
    speeds = (1.0, 0.9), (1.0, 0.2)
    workload = mixed([(0, 1e5, 1), (0, 1e5, 1)], *speeds)
    assert shares("gavel:objective=max_sum_throughput", workload, "1x1:V100,1x1:K80").tolist() == [[0, 1], [1, 0]]
    workload = mixed([(0, 1e5, 1), (0, 1e5, 1)], *speeds, weight=np.array([9.0, 1.0]))
    assert shares("gavel:objective=max_sum_throughput", workload, "1x1:V100,1x1:K80").tolist() == [[1, 0], [0, 1]]


def test_cost_prefers_what_does_most_for_a_dollar() -> None:
    """Half the speed for a tenth of the price."""
    workload = mixed([(0, 1e5, 1)], TWO)
    text = "gavel:objective=cost;prices=V100:10/K80:1"
    assert shares(text, workload, "1x1:V100,1x1:K80").tolist() == [[0, 1]]
    assert shares(text.replace("K80:1", "K80:9"), workload, "1x1:V100,1x1:K80").tolist() == [[1, 0]]


def test_cost_needs_every_price() -> None:
    workload = jobs([(0, 1e5, 1)])
    with pytest.raises(PolicyError, match="needs the price of every GPU model"):
        shares("gavel:objective=cost", workload, "1x1:Unheard-of,1x1:K80")
    assert shares("gavel:objective=cost", workload, "1x1:V100,1x1:K80").shape == (1, 2)


def test_allox_runs_the_shortest_of_the_oldest_jobs_first() -> None:
    """Of ten jobs it looks at three."""
    workload = jobs([(0, work, 1) for work in (900, 100, 500, *[50] * 7)])
    share = shares("gavel:objective=allox", workload, "1x1:V100")
    assert np.flatnonzero(share[:, 0]).tolist() == [1]


def test_allox_puts_jobs_where_the_sum_of_their_times_is_least() -> None:
    """Two at once: the first loses little on the K80, the other much."""
    workload = mixed([(0, 100, 1), (0, 110, 1)], (1.0, 0.9), (1.0, 0.1))
    share = shares("gavel:objective=allox", workload, "1x1:V100,1x1:K80")
    assert share.tolist() == [[0, 1], [1, 0]]


def test_allox_keeps_who_has_a_gpu() -> None:
    """The second is much shorter, but comes later."""
    workload = mixed([(0, 900, 1), (100, 50, 1)], TWO, TWO)
    result = run(workload, "1x1:V100", "gavel:objective=allox;round=10;reset=0")
    assert result.end_s.tolist() == [900, 950]


def test_finish_time_fairness_levels_the_lateness() -> None:
    """Alike jobs on one GPU, the first of which has waited: each is as late as the other."""
    present = Present(
        speed=np.ones((2, 1)),
        gpus=np.ones(2),
        weight=np.ones(2),
        left_s=np.array([1000.0, 1000.0]),
        age_s=np.array([4000.0, 0.0]),
        had=np.zeros((2, 1)),
        kind=np.zeros(2, dtype=np.intp),
        capacity=np.ones(1),
        price=None,
    )
    share = OBJECTIVES["finish_time_fairness"](present)[:, 0]
    late = (present.age_s + 1000 / share) / (present.age_s + 1000 / 0.5)
    assert late[0] == pytest.approx(late[1], rel=1e-3)
    assert share.sum() == pytest.approx(1.0, abs=1e-4)


def test_blind_takes_models_for_equally_fast() -> None:
    workload = mixed([(0, 1e5, 1), (0, 1e5, 1)], (1.0, 0.9), (1.0, 0.1))
    share = shares("gavel:blind", workload, "1x1:V100,1x1:K80")
    assert share.sum(axis=1) == pytest.approx([1.0, 1.0], abs=1e-5)


@needs_ecos
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_every_objective_works_in_released_rounds(objective: str) -> None:
    rows = [(0.0, 400.0, 1), (10.0, 300.0, 1), (250.0, 500.0, 2), (260.0, 90.0, 1)]
    workload = mixed(rows, *[(1.0, 0.4)] * 4, iteration_s=np.array([0.5, 1.0, 2.0, 30.0]))
    result = run(workload, "1x2:V100,1x2:K80", f"gavel:released;round=100;reset=150;objective={objective}")
    assert result.finished == 4


@needs_ecos
@pytest.mark.slow
@pytest.mark.parametrize(
    ("trace", "cluster", "name"),
    [
        ("homo", "1x24:V100", "max_min_fairness_perf"),
        ("single", MIXED, "max_min_fairness_perf"),
        ("multi", MIXED, "max_min_fairness_perf"),
        ("single", MIXED, "finish_time_fairness_perf"),
        ("multi", MIXED, "finish_time_fairness_perf"),
        ("single", MIXED, "allox"),
    ],
)
def test_gavel_s_own_simulator_is_reproduced(trace: str, cluster: str, name: str) -> None:
    published = [row for row in RESULTS if row["trace"] == trace and row["policy"] == name]
    published = [row for row in published if row["seconds_between_allocations"] == "1920"]
    if not published:
        pytest.skip(f"no results of Gavel in {BESIDE}: docs/reference/data.md says where to get them")
    workload = read_trace(
        BESIDE / f"{trace}.trace", throughputs=BESIDE.parent / "simulation_throughputs.json.gz"
    ).workload
    result = run(workload, cluster, f"{name}:released")
    assert result.avg_jct_s / 3600 == pytest.approx(float(published[0]["avg_jct_h"]), rel=0.005)
    assert result.makespan_s / 3600 == pytest.approx(float(published[0]["makespan_h"]), rel=0.01)


def test_a_program_that_ends_in_numerical_trouble_is_solved_from_the_start() -> None:
    # In this trace HiGHS, going on from the first optimum, ends with the status "Unknown" (highspy 1.15).
    config = GeneratorConfig(
        jobs=500, gpus=64, load=1.1, seed=1, duration_max_s=12 * 3600.0, gpu_models=("V100", "K80")
    )
    result = simulate(generate(config), "4x8:V100,4x8:K80", "gavel")
    assert np.isfinite(result.end_s).all()


@needs_ecos
@pytest.mark.parametrize("objective", ["max_min_fairness", "finish_time_fairness", "allox"])
def test_released_rounds_go_on_where_the_scheduler_is_built_anew(objective: str) -> None:
    rng = np.random.default_rng(5)
    submits, works = np.sort(rng.integers(0, 900, 20)).tolist(), rng.integers(50, 900, 20).tolist()
    rows = [(float(submit), float(work), 1) for submit, work in zip(submits, works, strict=True)]
    speed = [(1.0, float(slow)) for slow in rng.choice([0.2, 0.5, 0.9], 20)]
    workload = mixed(rows, *speed, iteration_s=rng.choice([1.0, 13.0, 30.0], 20))
    policy = f"gavel:released;round=100;reset=250;objective={objective}"
    again = simulate(workload, "1x3:V100,1x3:K80", Rebuilt(policy, compact=True), restart_overhead_s=0.0)
    assert again.end_s == pytest.approx(run(workload, "1x3:V100,1x3:K80", policy).end_s)
