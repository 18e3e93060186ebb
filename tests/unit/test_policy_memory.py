"""A policy's memory as bytes, and under other numbers of jobs and nodes."""

from __future__ import annotations

import json
import math
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import pytest

from builders import POLICIES, engine_of, jobs
from gpuloom.core.cluster import parse_cluster
from gpuloom.core.decision import Decision, Placement
from gpuloom.core.errors import PolicyError
from gpuloom.core.snapshot import Snapshot
from gpuloom.core.state import State
from gpuloom.facts.inputs import load_policy
from gpuloom.learning.hazard import BINS
from gpuloom.placement.levels import UNKNOWN, LevelMemory
from gpuloom.policies import antman, composed, fifo, gavel_ledger, gittins, hlas_terms, rl, themis, valued
from gpuloom.policies.base import Policy
from gpuloom.policies.memory import FORMAT, dump, load
from gpuloom.sim import simulate
from gpuloom.traces.generate import GeneratorConfig, generate

EVERY = (
    *POLICIES,
    *("muri-s", "muri-l", "muri-l:matcher=released", "muri-xs", "muri-xl", "weave", "themis:mode=muri"),
    *("elastic", "elastic:base=gittins", "elastic-goodput"),
)
STAGES = np.array([(3.0, 0.2, 0.1), (0.2, 3.0, 0.1), (0.2, 0.3, 3.0), (np.nan,) * 3])


def alike(one: Any, two: Any) -> bool:
    """Equal to the bit and of the same types."""
    if type(one) is not type(two):
        return False
    if isinstance(one, np.ndarray):
        return one.dtype == two.dtype and one.shape == two.shape and one.tobytes() == two.tobytes()
    if is_dataclass(one):
        return all(alike(getattr(one, each.name), getattr(two, each.name)) for each in fields(one))
    if isinstance(one, dict):
        return list(one) == list(two) and all(alike(one[key], two[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(two) and all(map(alike, one, two))
    return bool(one == two) or one != one


def kept_of(text: str) -> tuple[Policy, list[tuple[bytes, Any]]]:
    """What was written at every call of a run, and what was read of it."""
    policy = load_policy(text)
    seen: list[tuple[bytes, Any]] = []
    decide = policy.decide

    def watching(snapshot: Snapshot, memory: Any) -> tuple[Decision, Any]:
        decision, after = decide(snapshot, memory)
        data = dump(after, policy)
        read = load(data, policy)
        assert alike(after, read), text
        seen.append((data, read))
        return decision, after

    policy.decide = watching  # type: ignore[method-assign]
    workload = generate(GeneratorConfig(jobs=40, gpus=16, load=1.5, seed=2, opportunistic=0.5))
    simulate(replace(workload, stage_s=STAGES[np.arange(40) % 4]), "2x8", policy)
    return policy, seen


@pytest.mark.parametrize("text", EVERY)
def test_reads_back_what_was_written_at_every_call(text: str) -> None:
    policy, seen = kept_of(text)
    assert len(seen) > 40
    assert dump(seen[-1][1], policy) == seen[-1][0]


class Odd(Policy):
    """Its memory is whatever a test says."""

    id = "odd"

    def decide(self, snapshot: Snapshot, memory: Any) -> tuple[Decision, Any]:
        raise AssertionError


def test_values_of_all_kinds_keep_their_types_and_order() -> None:
    memory = {
        3: (1, 2.5, -0.0, math.inf, -math.inf, True, None, "ü\n"),
        1: [np.arange(6, dtype=np.int16).reshape(2, 3), np.zeros((0, 4)), np.array([np.nan, 1.0]), np.array(True)],
        "x": {2: Placement((1, 0), (3, 1 << 90), 1)},
        (1, 2): [],
    }
    assert alike(load(dump(memory, Odd()), Odd()), memory)


@pytest.mark.parametrize(
    "value", [{1, 2}, object(), b"x", np.array(["a"]), np.array([None]), Exception, 1j, fifo.Memory()]
)
def test_refuses_to_write_what_it_could_not_read(value: Any) -> None:
    with pytest.raises(PolicyError, match=r"memory\[0\]\[1\].*(can't be saved|must be of numbers)"):
        dump([(1, value)], Odd())


def written(memory: Any) -> bytes:
    """What is well packed, with this as its content."""
    data = dump(None, Odd())
    head = json.dumps({"policy": "odd", "base": None, "memory": memory})
    return f"{FORMAT}\n{head}\n".encode() + data.split(b"\n", 2)[2]


@pytest.mark.parametrize(
    "memory",
    [
        [1],
        {"set": [1]},
        {},
        {"list": 1},
        {"dict": [[1]]},
        {"dict": [[{"list": []}, 1]]},
        {"float": "1"},
        {"array": ["|O", [1]]},
        {"array": ["<f8", [1]]},
        {"array": ["<f8", [-1]]},
        {"array": ["nonsense", [0]]},
        {"of": "os:system", "fields": {}},
        {"of": "gpuloom.policies.fifo:Memory", "fields": {}},
        {"of": "gpuloom.core.decision:Placement", "fields": {"nodes": 1, "masks": 1}},
        {"of": "gpuloom.core.decision:Placement", "fields": {"nodes": 1, "masks": 1, "layer": 0, "more": 1}},
    ],
)
def test_refuses_what_it_does_not_know(memory: Any) -> None:
    with pytest.raises(PolicyError, match="damaged, or of another version"):
        load(written(memory), Odd())


def test_refuses_other_formats_policies_and_damage() -> None:
    tiresias = load_policy("tiresias")
    data = dump(tiresias.new_memory(jobs([(0, 1, 1)] * 3), parse_cluster("1x4")), tiresias)
    with pytest.raises(PolicyError, match="must be 'gpuloom-memory-1'"):
        load(data.replace(b"memory-1", b"memory-2", 1), tiresias)
    with pytest.raises(PolicyError, match="was written by 'tiresias', not by 'gittins'"):
        load(data, load_policy("gittins"))
    with pytest.raises(PolicyError, match="was written by 'tiresias', not by 'elastic' over 'tiresias'"):
        load(data, load_policy("elastic"))
    for cut in range(len(data)):
        with pytest.raises(PolicyError):
            load(data[:cut], tiresias)
    with pytest.raises(PolicyError):
        load(data + b"x", tiresias)


# -- other numbers ------------------------------------------------------------------------------------------

CLUSTER = parse_cluster("2x4:A,2x8:B")
AFTER = parse_cluster("2x8:B,1x4:C,1x4:A")
ROWS, NODES = np.array([2, -1, 0]), np.array([3, -1, 0, 1])
"""Jobs 2, new, 0; node 1 is gone, the models A and B have changed places, C is new."""


def carried(policy: Policy, memory: Any, **columns: Any) -> Any:
    return policy.carried(memory, ROWS, NODES, jobs([(0, 10, 1), (1, 10, 2), (2, 10, 8)], **columns), AFTER)


def begun(policy: Policy, **columns: Any) -> Any:
    return policy.new_memory(jobs([(0, 10, 1), (1, 10, 2), (2, 10, 4)], **columns), CLUSTER)


def test_levels_are_carried() -> None:
    policy = load_policy("tiresias")
    memory: LevelMemory = begun(policy)
    memory.level[:], memory.place[:], memory.front, memory.contested = (0, 1, 2), (5.0, 6.0, 7.0), -3.0, True
    found = carried(policy, memory)
    assert found.level.tolist() == [2, 0, 0]
    assert found.level.dtype == np.int16
    assert found.place[[0, 2]].tolist() == [7.0, 5.0]
    assert math.isnan(found.place[1])
    assert math.isinf(found.due_s[1])
    assert (found.front, found.contested) == (-3.0, True)


def test_columns_by_gpu_model_follow_the_model() -> None:
    policy = load_policy("gavel")
    memory: gavel_ledger.Memory = begun(policy)
    memory.received_s[:] = [[1, 2], [3, 4], [5, 6]]
    memory.on[:] = [0, 1, -1]
    found = carried(policy, memory)
    assert found.models == ("B", "C", "A")
    assert found.received_s.tolist() == [[6, 0, 5], [0, 0, 0], [2, 0, 1]]
    assert found.on.tolist() == [-1, -1, 2]
    other = load_policy("hlas")
    terms: hlas_terms.Memory = begun(other)
    terms.model[:], terms.upgrade_at_s[:] = [0, 1, 1], [7.0, 8.0]
    moved = carried(other, terms)
    assert moved.model.tolist() == [0, 0, 2]
    assert moved.upgrade_at_s.tolist() == [8.0, -math.inf, 7.0]


def test_places_on_nodes_that_are_gone_are_dropped() -> None:
    policy = load_policy("elastic")
    memory: composed.Memory = begun(policy)
    memory.home = {0: Placement((0, 2), (1, 3)), 2: Placement((1,), (1,)), 1: Placement((0,), (2,))}
    memory.expansions[:] = (1, 2, 3)
    found = carried(policy, memory)
    assert found.home == {2: Placement((3, 0), (1, 3))}
    assert found.expansions.tolist() == [3, 0, 1]
    assert len(found.base.level) == 3


def test_gpus_kept_by_waiting_jobs_and_the_classes_of_jobs_are_carried() -> None:
    policy = load_policy("antman:opportunistic=0.5")
    memory: antman.Memory = begun(policy)
    memory.opportunistic[:] = (False, True, True)
    memory.reserved = {0: {0: 3, 2: 1}, 1: {0: 4}}
    found = carried(policy, memory)
    assert found.opportunistic[[0, 2]].tolist() == [True, False]
    assert found.reserved == {2: {3: 3, 0: 1}}
    # A new job's class goes by its name, not by its row.
    rows, nodes = np.array([-1] * 400), np.arange(4)
    names = tuple(f"job-{n}" for n in range(400))
    many = jobs([(0, 1, 1)] * 400, job_ids=names)
    classes = policy.carried(memory, rows, nodes, many, CLUSTER).opportunistic
    back = policy.carried(memory, rows, nodes, replace(many, job_ids=names[::-1]), CLUSTER).opportunistic
    assert back.tolist() == classes[::-1].tolist()
    assert 150 < classes.sum() < 250
    given = carried(policy, memory, priority=np.array([0, 0, 1], dtype=np.int32))
    assert given.opportunistic.tolist() == [False, False, True]
    assert given.reserved == {}


def test_what_was_learnt_of_classes_that_are_gone_is_kept() -> None:
    policy = load_policy("muri-xl")
    memory: valued.Memory = begun(policy)
    assert memory.classes.tolist() == [1, 2, 4]
    memory.ends[:] = np.arange(3)[:, None] + np.zeros(BINS)
    found = carried(policy, memory)
    assert found.classes.tolist() == [1, 2, 4, 8]
    assert found.ends[:, 0].tolist() == [0, 1, 2, 0]
    assert found.rows(np.array([8, 2])).tolist() == [3, 1]


def test_learnt_choices_are_known_by_their_names() -> None:
    policy = load_policy("rl")
    memory: rl.Memory = begun(policy)
    memory.table[0] = np.arange(len(memory.choices))
    names = memory.choices
    memory.choice[:] = (names.index("2x2"), names.index("1x1"), names.index("1x4"))
    memory.open, memory.last = [0, 1, 2], 1
    found = carried(policy, memory)
    assert {name: value for name, value in zip(found.choices, found.table[0], strict=True) if name in names} == {
        name: float(index) for index, name in enumerate(names)
    }
    assert math.isnan(found.table[0][found.choices.index("1x8")])
    assert [found.choices[choice] for choice in found.choice[[0, 2]]] == ["1x4", "2x2"]
    assert found.choice[1] == -1
    assert (found.open, found.last) == ([2, 0], -1)


def test_lists_of_jobs_are_translated() -> None:
    policy = load_policy("muri-l:matcher=released")
    assert carried(policy, [1, 2, 0]) == [0, 2]
    assert carried(load_policy("muri-l"), None) is None
    other = load_policy("themis:mode=muri")
    memory: themis.Memory = begun(other)
    memory.order = [2, 1, 0]
    assert carried(other, memory).order == [0, 2]
    easy = load_policy("fifo:backfill=easy")
    assert carried(easy, fifo.Memory({0: Placement((2,), (7,))}, 5.0)) == fifo.Memory({2: Placement((0,), (7,))}, 5.0)
    assert carried(easy, fifo.Memory({1: Placement((2,), (7,))}, 5.0)).reserved == {}


# -- a live world -------------------------------------------------------------------------------------------


def test_gittins_goes_by_ended_jobs_where_durations_are_not_known() -> None:
    policy = load_policy("gittins:levels=4")
    assert isinstance(policy, gittins.Gittins)
    policy.learn_from(np.arange(1.0, 6.0))
    few: gittins.Memory = begun(policy)
    assert (few.limits_gpu_s, few.ranks) == ((3250.0, 7200.0), (0, 1, 2))
    few.level[:] = (0, 1, 2)
    same = carried(policy, few)
    assert same.level.tolist() == [2, 0, 0]
    policy.learn_from(np.repeat([100.0, 200.0, 300.0, 400.0], 10))
    more = carried(policy, few)
    assert more.limits_gpu_s == (100.0, 200.0, 300.0)
    assert (more.level == UNKNOWN).all()
    over = load_policy("elastic:base=gittins")
    over.learn_from(np.repeat([100.0, 200.0], 20))
    assert begun(over).base.limits_gpu_s[0] == 100.0


def adopt_first(state: State, since_s: float) -> None:
    """Job 0 runs already, on the first GPU."""
    since = np.array([since_s])
    state.adopt(
        np.zeros(1, dtype=np.intp), [Placement((0,), (1,))], run_from_s=since, work_from_s=since, rate=np.ones(1)
    )


def test_a_job_that_was_served_begins_in_its_level_when_limits_change() -> None:
    policy = load_policy("gittins:levels=4")
    policy.learn_from(np.repeat([100.0, 200.0, 300.0, 400.0], 10))
    workload, cluster = jobs([(0, 9e9, 1), (0, 9e9, 2), (0, 9e9, 1)]), parse_cluster("1x2")
    state = State(workload, cluster)
    now_s = 1.7e9
    held_s = np.array([250.0, 60.0, 0.0])
    for job in range(3):
        state.submit(job, now_s)
    state.restore(
        np.arange(3),
        held_s=held_s,
        held_gpu_s=held_s,
        starts=(held_s > 0).astype(np.int32),
        first_start_s=np.full(3, np.nan),
        remaining_s=workload.duration_s,
    )
    adopt_first(state, now_s)
    memory = policy.new_memory(workload, cluster)
    memory.level[:] = UNKNOWN
    engine = engine_of(policy, workload, cluster, state, memory)
    engine.decide(now_s)
    assert memory.level.tolist() == [2, 1, 0]


@pytest.mark.parametrize("text", ["themis", "gavel", "themis:mode=muri"])
def test_time_before_the_first_call_does_not_count(text: str) -> None:
    """Wall-clock seconds since 1970 are no time that jobs were present or ran."""
    policy = load_policy(text)
    workload, cluster = jobs([(1.7e9, 9e9, 1), (1.7e9 + 10, 9e9, 1), (1.7e9 + 20, 9e9, 1)]), parse_cluster("1x2")
    state = State(workload, cluster)
    state.submit(0, 1.7e9 + 30)
    adopt_first(state, 1.7e9)
    engine = engine_of(policy, workload, cluster, state)
    engine.take_in(1.7e9 + 30, arrived=[1, 2])
    engine.decide(1.7e9 + 30)
    engine.decide(1.7e9 + 40)
    memory = engine.memory
    if text == "gavel":
        assert memory.received_s[0, 0] == 10.0
    elif text == "themis":
        assert memory.present_s == 30.0
        assert memory.at_submit.tolist() == [-90.0, 0.0, 0.0]
    else:
        assert memory.should_receive_s.max() <= 10.0


def test_a_job_that_ended_early_is_learnt_from_by_the_work_it_did() -> None:
    policy = load_policy("muri-xl")
    workload, cluster = jobs([(0, 1e6, 1)]), parse_cluster("1x2")
    engine = engine_of(policy, workload, cluster, State(workload, cluster, layers=policy.max_jobs_per_gpu))
    engine.take_in(0.0, arrived=[0])
    engine.decide(0.0)
    engine.take_in(200.0, finished=[0])
    assert engine.state.spare_s[0] == pytest.approx(1e6 - 200.0)
    engine.decide(200.0)
    assert engine.memory.ends[0, 0] == 1.0
    assert engine.memory.exposure.sum() < 1.0


@pytest.mark.parametrize("text", ["tiresias", "gavel", "fifo"])
def test_memory_outlives_the_forming_of_pairs(text: str) -> None:
    """It is kept where `beside` comes or goes: a driver was installed, a compiler is missing, …"""
    workload, cluster = jobs([(0, 10, 1), (0, 10, 1)]), parse_cluster("1x2")
    plain, pairs = load_policy(text), load_policy(text, beside=True)
    memory = plain.new_memory(workload, cluster)
    wrapped = load(dump(memory, plain), pairs)
    assert dump(wrapped.base, plain) == dump(memory, plain)
    assert wrapped.guests == []
    wrapped.guests.append(1)
    assert dump(load(dump(wrapped, pairs), plain), plain) == dump(memory, plain)
    assert load(dump(wrapped, pairs), pairs).guests == [1]
    with pytest.raises(PolicyError, match="was written by"):
        load(dump(wrapped, pairs), load_policy("srsf"))
