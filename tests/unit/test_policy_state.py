"""What policies show of themselves: by hand, in simulation and live; and that looking changes nothing."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, get_args, get_type_hints

import click
import numpy as np
import pytest
from click.testing import CliRunner

from api_client import TOKEN, Local
from builders import POLICIES, jobs
from gpuloom.cli.policy_state import say_policy, say_state
from gpuloom.core.decision import Decision
from gpuloom.core.policy_state import (
    ElasticState,
    HlasQueue,
    HlasState,
    LevelsState,
    NoState,
    PolicyState,
    PoolAction,
    ResizeWhy,
    RlState,
    SharesState,
    StateKind,
)
from gpuloom.core.scaling import Scaling
from gpuloom.core.snapshot import Snapshot
from gpuloom.core.workload import Speeds, Workload
from gpuloom.facts.inputs import load_policy
from gpuloom.learning.q_learning import counts_over
from gpuloom.live.trial.rehearsal import Rehearsal
from gpuloom.live.views import policy_answers
from gpuloom.live.views.policy import parameters_of, state_view
from gpuloom.policies.base import Policy
from gpuloom.server.app import make_app
from gpuloom.sim import simulate
from live_builders import living, spec


def watched(policy: Policy, take: list[tuple[float, PolicyState]]) -> Policy:
    """The policy, which is asked for its state before and after each decision, as long as the snapshot is of then."""
    decide = policy.decide

    def asked(snapshot: Snapshot, memory: Any) -> tuple[Decision, Any]:
        decision, after = decide(snapshot, memory)
        take.append((snapshot.now_s, policy.describe(snapshot, after)))
        return decision, after

    policy.decide = asked  # type: ignore[method-assign]
    return policy


def mixed(count: int = 30) -> Workload:
    random = np.random.default_rng(3)
    rows = [(float(60 * n), float(random.uniform(50, 2000)), int(random.integers(1, 5))) for n in range(count)]
    speeds = Speeds(("V100", "K80"), np.column_stack([random.uniform(1, 4, count), np.ones(count)]))
    return jobs(rows, speeds=speeds)


@pytest.mark.parametrize("written", [*POLICIES, "elastic", "elastic-goodput:base=srtf", "muri-s", "weave"])
def test_to_look_at_a_policy_changes_nothing(written: str) -> None:
    workload = mixed()
    seen: list[tuple[float, PolicyState]] = []
    cluster = "2x4:V100,2x4:K80"
    found = simulate(workload, cluster, watched(load_policy(written), seen), interval_s=60.0)
    assert found.end_s.tolist() == simulate(workload, cluster, load_policy(written), interval_s=60.0).end_s.tolist()
    assert len(seen) > 20
    names, on = {str(n) for n in range(len(workload))}, set[str]()
    for _, state in seen:
        text = json.dumps(state_view(state))  # JSON, with no number that is none
        assert "NaN" not in text
        assert "Infinity" not in text
        if isinstance(state, HlasState | LevelsState | SharesState):
            assert {one.job for one in state.jobs} <= names
            assert len({one.job for one in state.jobs}) == len(state.jobs)
        if isinstance(state, SharesState):
            on.update(one.on for one in state.jobs)
    assert on in (set(), {"V100", "K80", ""})  # of the one kind of state that tells where jobs run


def test_which_policy_has_which_state() -> None:
    kinds = {}
    for written in (
        "fifo",
        "srtf",
        "hlas",
        "tiresias",
        "gittins",
        "gavel",
        "rl",
        "elastic",
        "elastic-goodput",
        "weave",
    ):
        seen: list[tuple[float, PolicyState]] = []
        simulate(mixed(4), "2x4:V100,2x4:K80", watched(load_policy(written), seen))
        kinds[written] = seen[-1][1].kind
    assert kinds == {
        "fifo": StateKind.NONE,
        "srtf": StateKind.NONE,
        "hlas": StateKind.HLAS,
        "tiresias": StateKind.LEVELS,
        "gittins": StateKind.LEVELS,
        "gavel": StateKind.SHARES,
        "rl": StateKind.RL,
        "elastic": StateKind.ELASTIC,
        "elastic-goodput": StateKind.ELASTIC,
        "weave": StateKind.ELASTIC,
    }


# -- hlas --------------------------------------------------------------------------------------------------------------


def test_the_queues_of_hlas_by_hand() -> None:
    """One GPU, ratio 2, and a suspension at any time: job 1 runs, is suspended for job 2 by hand of memory."""
    policy = load_policy("hlas:literal=yes;priority_threshold_ratio=1.5;performance=V100:2/K80:1")
    seen: list[tuple[float, PolicyState]] = []
    workload = jobs([(0.0, 10_000.0, 1), (1000.0, 10_000.0, 1), (1000.0, 10_000.0, 1)])
    simulate(workload, "1x1:V100,1x1:K80", watched(policy, seen), restart_overhead_s=0.0, interval_s=0.0)
    at = {now: state for now, state in seen if isinstance(state, HlasState)}
    begin = at[1000.0]
    # p of the V100 is 2: job 0 has attained 1000 s · 1 GPU · 2, job 1 has just started, job 2 waits in Q1.
    of = {one.job: one for one in begin.jobs}
    assert (of["0"].attained, of["1"].attained) == (2000.0, 0.0)
    assert (begin.mean, begin.threshold) == (2000.0, 3000.0) or of["1"].queue is HlasQueue.Q1
    assert of["2"].queue is HlasQueue.Q1
    assert begin.performance == (("V100", 2.0), ("K80", 1.0))


def test_suspended_starving_and_promoted_live() -> None:
    live = Rehearsal("hlas:literal=yes;starve_threshold_ratio=1;tick=1h", models=["V100"] * 2)
    first, second = live.submit({"estimate": "10h"}, {"estimate": "10h"})
    live.later(100.0)
    scene = live.scheduler.planning
    state = live.service.policy(state=True)["state"]
    assert state is not None
    assert state["kind"] == "hlas"
    assert (state["mean"], state["threshold"]) == (pytest.approx(100.0, abs=1), pytest.approx(200.0, abs=2))
    assert [(one["job"], one["queue"], one["over"]) for one in state["jobs"]] == [
        (first, "running", False),
        (second, "running", False),
    ]
    (third,) = live.submit({"estimate": "10h"})
    live.later(10.0)
    state = live.service.policy(state=True)["state"]
    assert state is not None
    assert state["kind"] == "hlas"
    waits = state["jobs"][-1]
    assert (waits["job"], waits["queue"], waits["attained"], waits["promoted_after_s"]) == (third, "q1", 0.0, None)
    assert waits["waited_s"] == pytest.approx(10.0, abs=0.1)
    assert scene.policy.id == "hlas"


def test_who_is_over_the_threshold_and_who_starves() -> None:
    """By the memory itself: job 0 runs with 900, job 1 with 100; 2 and 3 are in Q2, and 3 has waited long enough."""
    policy = load_policy("hlas:priority_threshold_ratio=1.5;starve_threshold_ratio=2")
    seen: list[tuple[float, PolicyState]] = []
    shown: list[HlasState] = []
    decide = policy.decide

    def asked(snapshot: Snapshot, memory: Any) -> tuple[Decision, Any]:
        decision, memory = decide(snapshot, memory)
        if snapshot.now_s == 10.0:
            memory.gpu_s[:, 0] = (900.0, 100.0, 50.0, 50.0, 0.0)
            memory.ran_s[:] = (900.0, 100.0, 50.0, 4.0, 0.0)
            memory.state[2:4], memory.queued_s[2:4] = 2, 0.0
            memory.held_before_s[:2] = [snapshot.held_s(0), snapshot.held_s(1)]
            found = policy.describe(snapshot, memory)
            assert isinstance(found, HlasState)
            shown.append(found)
            raise StopIteration
        return decision, memory

    policy.decide = asked  # type: ignore[method-assign]
    with pytest.raises(StopIteration):
        simulate(jobs([(0.0, 1e4, 1)] * 4 + [(10.0, 1e4, 1)]), "1x2", policy, restart_overhead_s=0.0)
    (state,) = shown
    assert (state.mean, state.threshold) == (500.0, 750.0)
    told = {one.job: (one.queue, one.over, one.attained, one.promoted_after_s) for one in state.jobs}
    assert told == {
        "0": (HlasQueue.RUNNING, True, 900.0, math.inf),
        "1": (HlasQueue.RUNNING, False, 100.0, math.inf),
        "2": (HlasQueue.Q2, False, 50.0, 100.0),
        "3": (HlasQueue.STARVING, False, 50.0, 8.0),
        "4": (HlasQueue.Q1, False, 0.0, math.inf),
    }
    assert not seen


# -- elastic -----------------------------------------------------------------------------------------------------------


def linear(submit: list[float], *, least: int, asks: int, most: int, hours: float) -> Workload:
    n = len(submit)
    ones = np.ones(n, dtype=np.int32)
    curve = np.arange(most + 1, dtype=np.float64)[:, None]
    scaling = Scaling(ones, least * ones, most * ones, 0 * ones, asks * np.ones(n), (curve,))
    return jobs([(at, hours * 3600, asks) for at in submit], scaling=scaling)


def test_the_pool_by_the_letter() -> None:
    """16 GPUs, p = 0.3: one job on 1 GPU leaves M = 15 · 0.3 = 4.5, EU = 1, t = 1 / 4.5, below ET = 0.3: it grows by
    (0.6 - t) · M = 1.7 GPUs, that is by one."""
    seen: list[tuple[float, PolicyState]] = []
    workload = linear([10.0], least=1, asks=4, most=16, hours=1.0)
    policy = watched(load_policy("elastic:literal"), seen)
    simulate(workload, "2x8", policy, restart_overhead_s=0.0, resize_overhead_s=0.0, interval_s=0.0)
    states = [(now, state) for now, state in seen if isinstance(state, ElasticState)]
    first = states[0][1]
    assert first.pool is not None
    assert (first.pool.cluster_gpus, first.pool.used_gpus, first.pool.elastic_gpus) == (16, 1, 1)
    assert first.pool.pool_gpus == pytest.approx(4.5)
    assert first.pool.utilization == pytest.approx(1 / 4.5)
    assert (first.pool.expand_threshold, first.pool.shrink_threshold, first.pool.target) == (0.3, 0.9, 0.6)
    assert (first.pool.action, first.pool.budget_gpus) == (PoolAction.EXPAND, pytest.approx((0.6 - 1 / 4.5) * 4.5))
    assert first.pool.check_at_s == 300.0
    (one,) = first.jobs
    assert (one.job, one.gpus, one.smallest, one.asked, one.largest, one.expansions) == ("0", 1, 1, 4, 16, 0)
    now, grown = next((now, state) for now, state in states if state.changes)
    assert now == 300.0
    assert [(c.at_s, c.job, c.from_gpus, c.to_gpus, c.why) for c in grown.changes] == [
        (300.0, "0", 1, 2, ResizeWhy.BELOW_EXPAND_THRESHOLD)
    ]
    assert grown.jobs[0].expansions == 1
    assert (grown.base_policy, grown.base.kind) == ("tiresias", StateKind.LEVELS)


def test_borrowed_gpus_are_given_back_to_a_job_that_waits() -> None:
    seen: list[tuple[float, PolicyState]] = []
    workload = linear([1.0, 1000.0], least=2, asks=4, most=8, hours=2.0)
    simulate(workload, "1x8", watched(load_policy("elastic"), seen), restart_overhead_s=0.0, resize_overhead_s=0.0)
    states = [state for now, state in seen if isinstance(state, ElasticState) and now <= 1000.0]
    why = [(c.at_s, c.job, c.from_gpus, c.why) for c in states[-1].changes]
    assert (1.0, "0", 0, ResizeWhy.AS_ASKED) in why
    assert any(c[:2] == (1000.0, "0") and c[3] is ResizeWhy.GIVEN_BACK for c in why)
    assert sum(one.gpus for one in states[-1].jobs) <= 8


def test_a_twin_keeps_changes_of_its_own() -> None:
    policy: Any = load_policy("elastic")
    twin: Any = policy.twin()
    twin.changes.append("x")
    assert not policy.changes


def test_without_elastic_jobs_the_pool_is_what_is_free() -> None:
    seen: list[tuple[float, PolicyState]] = []
    simulate(jobs([(0.0, 100.0, 3), (10.0, 100.0, 1)]), "1x8", watched(load_policy("elastic:base=fifo"), seen))
    state = next(state for now, state in seen if now == 10.0)
    assert isinstance(state, ElasticState)
    assert state.pool is not None
    assert (state.pool.cluster_gpus, state.pool.used_gpus, state.pool.elastic_gpus, state.jobs) == (8, 3, 0, ())
    assert state.base == NoState()


# -- rl ----------------------------------------------------------------------------------------------------------------


def test_what_rl_has_learnt() -> None:
    seen: list[tuple[float, PolicyState]] = []
    workload = jobs([(600.0 * n, 300.0, 1 + n % 2) for n in range(50)])
    simulate(workload, "2x2", watched(load_policy("rl:epsilon_start=0.2;epsilon_end=0;epsilon_jobs=100"), seen))
    states = [state for _, state in seen if isinstance(state, RlState)]
    last = states[-1]
    assert (last.handled, last.submitted, last.regroups_in) == (50, 50, 10)
    assert last.epsilon == pytest.approx(0.1)
    assert last.updates == sum(entry.visits for group in last.groups for entry in group.entries) > 40
    assert last.tried == sum(not math.isnan(entry.value) for group in last.groups for entry in group.entries)
    assert last.placements == len(last.groups[0].entries)
    (group,) = last.groups  # no ratio is known
    assert math.isnan(group.ratio)
    values = [entry.value for entry in group.entries if not math.isnan(entry.value)]
    assert values == sorted(values, reverse=True)
    assert 0 < last.mean_change < states[10].mean_change  # it settles
    assert [state.updates for state in states] == sorted(state.updates for state in states)


def test_visits_are_shared_out_and_none_is_lost() -> None:
    before, after = np.array([0.0, 1.0, 9.0]), np.array([0.5, 2.0, 9.5])
    values = np.array([0.0, 0.0, 1.0, 1.0, 1.9, 9.0])  # of 1.0's group two go to 0.5 and one to 2.0
    counts = np.array([[4.0, 0.0], [6.0, 3.0], [5.0, 1.0]])
    assert counts_over(counts, before, after, values).tolist() == [[8.0, 2.0], [2.0, 1.0], [5.0, 1.0]]
    assert counts_over(counts, before, after, np.array([0.0])).sum() == counts.sum()


# -- live --------------------------------------------------------------------------------------------------------------


def test_every_kind_of_state_has_the_fields_of_its_answer() -> None:
    """The dataclasses of core and the types of the API: the same names, at every depth."""
    kinds = {get_args(get_type_hints(view)["kind"])[0]: view for view in get_args(policy_answers.PolicyStateView)}
    states: list[tuple[float, PolicyState]] = []
    for written in ("fifo", "hlas", "tiresias", "gavel", "rl"):
        simulate(mixed(6), "2x4:V100,2x4:K80", watched(load_policy(written), states))
    workload = linear([0.0, 1000.0], least=2, asks=4, most=8, hours=2.0)
    simulate(workload, "1x8", watched(load_policy("elastic"), states))
    assert {state.kind.value for _, state in states} == set(kinds)

    def check(value: Any, kind: Any) -> None:
        for part in get_args(kind) or (kind,):
            if isinstance(value, dict) and hasattr(part, "__required_keys__"):
                if "kind" in value and get_args(get_type_hints(part)["kind"])[0] != value["kind"]:
                    continue
                hints = get_type_hints(part)
                assert value.keys() == hints.keys()
                for name, one in value.items():
                    check(one, hints[name])
            elif isinstance(value, list) and hasattr(part, "__required_keys__"):
                for one in value:
                    check(one, part)

    for _, state in states:
        check(state_view(state), kinds[state.kind.value])


def test_the_policy_by_the_api(tmp_path: Path) -> None:
    with living(tmp_path, policy="tiresias:thresholds=100/400", slots=1) as live:
        api = Local(make_app(live.service, token=TOKEN, default_user="ann"))
        before = api("GET", "/v1/policy?state=yes").json()
        assert (before["state"], before["state_problem"]) == (None, "")
        first, second = live.submit_all([spec(1), spec(1)])
        assert api("GET", "/v1/policy").json()["state"] is None
        found = api("GET", "/v1/policy?state=true").json()
        assert found["state"]["limits_gpu_s"] == [100.0, 400.0]
        told = [(one["job"], one["running"]) for one in found["state"]["jobs"]]
        assert told == [(first, True), (second, False)]
        values = {one["name"]: one["value"] for one in found["parameters"]}
        assert (values["thresholds"], values["promote"]) == ("100/400", "0")
        assert api("GET", "/v1/policy?state=perhaps").status_code == 400


def test_what_a_policy_lacks_is_named() -> None:
    live = Rehearsal("muri-l", models=["V100"])
    live.submit({})
    (lack,) = live.service.policy()["lacks"]
    assert (lack["input"], lack["jobs"]) == ("stages", 1)


def test_a_policy_that_fails_to_tell_costs_its_state_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    live = Rehearsal("srtf", models=["V100"])
    live.submit({})

    def broken(*_: Any) -> PolicyState:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr(live.scheduler.planning.policy, "describe", broken)
    found = live.service.policy(state=True)
    assert found["state"] is None
    assert found["state_problem"].startswith("ZeroDivisionError: oh")
    assert found["state_problem"].endswith("in describe")
    assert live.service.status()["policy_problem"] == ""


def test_parameters_are_written_as_one_would_write_them(tmp_path: Path) -> None:
    config = tmp_path / "elastic.yaml"
    config.write_text("elastic:\n  check_minutes: 3\n")

    def values(written: str) -> dict[str, str]:
        return {one["name"]: one["value"] for one in parameters_of(load_policy(written))}

    assert values("tiresias")["thresholds"] == "3250/7200"
    assert values("tiresias:thresholds=10/20.5")["thresholds"] == "10/20.5"
    given = values("hlas:literal=yes;performance=V100:2/K80:1")
    assert (given["literal"], given["performance"], given["tick"]) == ("yes", "v100:2/k80:1", "6m")
    assert values("elastic:config=" + str(config))["config"] == "as read from its file"
    assert values("elastic:check_minutes=2")["check_minutes"] == "2"


# -- printed -----------------------------------------------------------------------------------------------------------


def printed(written: str, workload: Workload, cluster: str, at: int, **more: Any) -> str:
    seen: list[tuple[float, PolicyState]] = []
    simulate(workload, cluster, watched(load_policy(written), seen), **more)

    @click.command()
    def say() -> None:
        say_state(state_view(seen[at][1]))

    result = CliRunner().invoke(say, [], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_states_are_printed() -> None:
    assert "it keeps no state of its own" in printed("srtf", mixed(3), "2x4:V100,2x4:K80", 1)
    hlas = printed("hlas:performance=V100:2/K80:1", mixed(9), "1x4:V100", 5)
    assert "attained service: mean of the running jobs" in hlas
    assert ["id", "queue", "GPUs", "model", "attained", "waited", "ran", "to", "Q1", "after"] in words(hlas)
    assert "levels of attained service end at 3,250, 7,200 GPU-seconds" in printed("tiresias", mixed(9), "1x4:V100", 5)
    gavel = printed("gavel", mixed(9), "1x4:V100,1x4:K80", 5)
    assert gavel.startswith("shares made ")
    assert ["id", "on", "V100", "K80"] in words(gavel)
    rl = printed("rl", mixed(9), "1x4:V100", -1)
    assert "table: 1 × " in rl
    assert "compute/communication unknown: 1x" in rl
    assert " visits)" in rl


def test_what_lacks_is_printed_on_a_line_of_its_own() -> None:
    live = Rehearsal("muri-l", models=["V100"])
    live.submit({})

    @click.command()
    def say() -> None:
        say_policy(live.service.policy(state=True))

    lines = CliRunner().invoke(say, [], catch_exceptions=False).stdout.splitlines()
    assert any(line.startswith("lacks stages: Policy muri-l weaves jobs by their stage times") for line in lines)
    assert lines[-1].startswith("it keeps no state of its own")


def words(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_the_elastic_pool_is_printed() -> None:
    workload = linear([1.0, 1000.0], least=2, asks=4, most=8, hours=2.0)
    text = printed("elastic", workload, "1x8", 2, restart_overhead_s=0.0, resize_overhead_s=0.0)
    assert "pool: A 8 GPUs, a " in text
    assert ", between ET 1 and ST 1.2: " in text
    assert ["id", "GPUs", "fewest", "asked", "most", "grew", "shrank"] in words(text)
    assert "the size that it asks for was free" in text
    assert "base policy: tiresias" in text
    assert "levels of attained service" in text
    assert "no elastic jobs run" in printed("elastic", jobs([(0.0, 9.0, 1)]), "1x8", 0)
