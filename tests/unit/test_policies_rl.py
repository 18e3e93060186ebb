"""The policy rl: rewards and updates by hand, what it learns, what it may not do, and what it remembers."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from builders import jobs
from gpuloom.cli.main import cli
from gpuloom.core.cluster import parse_cluster
from gpuloom.core.decision import Decision
from gpuloom.core.errors import PolicyError
from gpuloom.core.scaling import Scaling
from gpuloom.core.snapshot import Snapshot
from gpuloom.core.state import State
from gpuloom.core.workload import Workload
from gpuloom.engine.engine import Engine
from gpuloom.engine.progress import Progress
from gpuloom.facts.inputs import load_policy
from gpuloom.learning.comm_model import CommModel
from gpuloom.learning.learnt_table import LearntTable, read_table
from gpuloom.learning.ratios import log_ratios, models_of
from gpuloom.policies.rl import Memory, Rl
from gpuloom.sim import Failure, simulate
from gpuloom.sim.executor import SimExecutor

CLUSTER = "4x4"
SCALES = CommModel(0.0, 1.0, 0.001, 0.002)
"""Twice the GPUs, twice the speed."""
SUFFERS = CommModel(0.0, 1.0, 1.0, 30.0)
"""Slower on several nodes than on one GPU."""


def elastic(count: int, gap_s: float, *, models: tuple[CommModel, ...] = (SCALES, SUFFERS), **columns: Any) -> Workload:
    """Jobs of the models in turn, of 1 to 16 GPUs, an hour each on 4 GPUs of a node."""
    gpus, nodes = np.arange(1.0, 17)[:, None], np.arange(1.0, 5)[None, :]
    curves = tuple(np.vstack([np.zeros(4), 1.0 / m.step_s(gpus, nodes, np.array(1.0))]) for m in models)
    curve = (np.arange(count) % len(models)).astype(np.int32)
    ones = np.ones(count, dtype=np.int32)
    reference = np.array([curves[index][4, 0] for index in curve])
    scaling = Scaling(ones, ones, ones * 16, curve, reference, curves)
    return jobs([(gap_s * i, 3600.0, 4) for i in range(count)], scaling=scaling, **columns)


class Watched(Rl):
    """Keeps every decision and the last memory."""

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)
        self.placed: dict[int, tuple[int, int]] = {}
        self.slots: list[tuple[float, list[int]]] = []
        self.memory: Memory | None = None

    def decide(self, snapshot: Snapshot, memory: Memory) -> tuple[Decision, Memory]:
        decision, self.memory = super().decide(snapshot, memory)
        for job, placement in decision.run.items():
            self.placed[job] = len(placement.nodes), placement.gpus
        if decision.run:
            self.slots.append((snapshot.now_s, list(decision.run)))
        return decision, self.memory


def watched(
    workload: Workload, cluster: str = CLUSTER, *, settings: dict[str, Any] | None = None, **values: Any
) -> Watched:
    policy = Watched(**values)
    result = simulate(workload, cluster, policy, restart_overhead_s=0.0, **(settings or {}))
    assert result.finished == len(workload)
    return policy


class TestLearning:
    def test_reward_and_update_by_hand(self) -> None:
        """Two jobs, one after the other, α = 0.5, γ = 0.5, values of 0 at first: only one placement is known after."""
        workload = elastic(3, 100_000.0, models=(SCALES,))
        policy = watched(
            workload, mode="learn", initial="zero", epsilon_start=0, epsilon_end=0, alpha=0.5, gamma=0.5, thrift=1.0
        )
        memory = policy.memory
        assert memory is not None
        # Ties go to the smallest placement: 1 GPU. The best throughput known is its own; it holds 1/16.
        assert policy.placed == {0: (1, 1), 1: (1, 1), 2: (1, 1)}
        assert memory.reward.tolist() == pytest.approx([16.0, 16.0, 16.0])
        # The first job was learnt from when the second was decided on: Q = 0.5 · (16 + 0.5 · 0) = 8; the second:
        # 8 + 0.5 · (16 + 0.5 · 8 - 8) = 14. The third has nobody after it.
        column = memory.choices.index("1x1")
        assert memory.table[0, column] == pytest.approx(14.0)

    def test_learns_different_placements_for_different_groups(self) -> None:
        workload = elastic(600, 6000.0)
        policy = watched(
            workload, initial="zero", thrift=0.5, alpha=0.5, epsilon_start=0.8, epsilon_jobs=400, accept=0.0
        )
        late = {job: place for job, place in policy.placed.items() if job >= 450}
        scales = [gpus for job, (_, gpus) in late.items() if job % 2 == 0]
        suffers = [nodes for job, (nodes, _) in late.items() if job % 2 == 1]
        assert np.median(scales) >= 8
        assert np.mean(np.array(suffers) == 1) > 0.9

    def test_learning_beats_chance_in_reward_and_time(self) -> None:
        workload = elastic(200, 4000.0)
        mean = {
            mode: simulate(workload, CLUSTER, f"rl:mode={mode}", restart_overhead_s=0.0).avg_jct_s
            for mode in ("learn", "random", "greedy")
        }
        assert mean["learn"] < 0.7 * mean["random"]
        assert mean["learn"] < 0.7 * mean["greedy"]

    def test_the_model_saves_the_first_jobs_from_bad_placements(self) -> None:
        workload = elastic(12, 50_000.0)
        jct = {
            name: simulate(workload, CLUSTER, f"rl:initial={name};epsilon_start=0").avg_jct_s
            for name in ("model", "zero")
        }
        assert jct["model"] < 0.5 * jct["zero"]

    @pytest.mark.slow
    def test_groups_are_formed_anew_every_twenty_jobs(self) -> None:
        models = tuple(CommModel(0.0, 1.0, share / 2, share) for share in (0.001, 0.0011, 0.5, 0.51, 20.0, 21.0))
        policy = watched(elastic(19, 9000.0, models=models), groups=3)
        assert policy.memory is not None
        first = policy.memory.centres
        policy = watched(elastic(20, 9000.0, models=models), groups=3)
        assert policy.memory is not None
        assert len(first) == len(policy.memory.centres) == 3
        # Until then the first three ratios are the centres; then one lies in the middle of each pair.
        assert np.ptp(first) < 8 < np.ptp(policy.memory.centres)
        assert policy.memory.table.shape == (4, len(policy.memory.choices))


class TestRules:
    def test_a_job_waits_by_choice_at_most_once(self) -> None:
        workload = elastic(60, 100.0, models=(SUFFERS,))
        saved = simulate(workload, CLUSTER, "rl").saved
        assert saved is not None
        known = read_table(saved)
        values = np.zeros_like(known.values)
        values[:, 0] = 1e9  # nothing is as good as waiting
        state = LearntTable(known.choices, known.centres, values)
        policy = watched(workload, mode="frozen", state=state, accept=0.0)
        assert policy.memory is not None
        # The first job has nobody to wait for; all others waited, and ran all the same.
        assert policy.memory.waited.tolist() == [False] + [True] * 59

    def test_no_exploration_with_jobs_of_high_priority(self) -> None:
        """Exploring always, guaranteed jobs still get the placement of the most value."""
        priority = (np.arange(60) % 2).astype(np.int32)
        workload = elastic(60, 20_000.0, models=(SCALES,), priority=priority)
        settings = {"epsilon_start": 1.0, "epsilon_end": 1.0, "optimism": 0.0, "accept": 0.0, "alpha": 0.01}
        safe = watched(workload, safe=True, **settings).placed
        assert len({safe[job] for job in range(60) if priority[job] == 0}) == 1
        assert len({safe[job] for job in range(60) if priority[job] == 1}) > 5
        unsafe = watched(workload, safe=False, **settings).placed
        assert len({unsafe[job] for job in range(60) if priority[job] == 0}) > 5

    def test_bad_placements_are_not_accepted_until_patience_ends(self) -> None:
        """A rigid job holds 15 of 16 GPUs for 30,000 s; one that scales does not want the last while it is patient."""
        mixed = elastic(2, 10.0, models=(SCALES,))
        assert mixed.scaling is not None
        scaling = replace(
            mixed.scaling,
            min_replicas=np.array([15, 1], dtype=np.int32),
            max_replicas=np.array([15, 16], dtype=np.int32),
            reference=np.array([mixed.scaling.curves[0][15, 0], mixed.scaling.reference[1]]),
        )
        workload = replace(
            mixed, scaling=scaling, gpus=np.array([15, 4], dtype=np.int32), duration_s=np.array([30_000.0, 3600.0])
        )
        settings = {"mode": "frozen", "thrift": 0.0}
        assert watched(workload, "1x16", accept=0.0, **settings).placed[1] == (1, 1)
        patient = watched(workload, "1x16", accept=0.9, patience="10h", **settings)
        assert (patient.slots[1][0], patient.placed[1]) == (30_000.0, (1, 16))

    def test_first_come_first_served(self) -> None:
        workload = elastic(40, 1.0, models=(SUFFERS,))
        order = [job for _, started in watched(workload, mode="greedy").slots for job in started]
        assert order == sorted(order)

    @pytest.mark.parametrize("fixed", ["1x2", "2x2", "4x4"])
    def test_fixed_is_what_every_job_gets(self, fixed: str) -> None:
        nodes, per_node = map(int, fixed.split("x"))
        placed = watched(elastic(20, 500.0), mode="fixed", fixed=fixed).placed
        assert set(placed.values()) == {(nodes, nodes * per_node)}

    def test_fixed_falls_back_to_what_the_job_can_have(self) -> None:
        workload = jobs([(0, 10, 2), (0, 10, 3)])
        assert watched(workload, "2x4", mode="fixed", fixed="2x4").placed == {0: (2, 2), 1: (1, 3)}

    def test_survives_failures(self) -> None:
        outages = (Failure(0, 5000.0, 9000.0), Failure(1, 7000.0, 60_000.0))
        policy = watched(elastic(60, 700.0), settings={"failures": outages})
        assert policy.memory is not None
        assert np.isfinite(policy.memory.reward).sum() > 40

    @pytest.mark.parametrize(
        ("text", "what"),
        [
            ("rl:fixed=2", "NODESxGPUS"),
            ("rl:fixed=0x4", "NODESxGPUS"),
            ("rl:alpha=0", "above 0"),
            ("rl:mode=x", "one of"),
        ],
    )
    def test_bad_parameters(self, text: str, what: str) -> None:
        with pytest.raises(PolicyError, match=what):
            load_policy(text)


class TestMemory:
    def test_a_restart_in_the_middle_changes_nothing(self) -> None:
        """A fresh policy with the pickled memory goes on as the old one would have."""
        workload = elastic(80, 900.0)
        whole = simulate(workload, CLUSTER, "rl", seed=5)

        class Restarting(Rl):
            calls = 0

            def decide(self, snapshot: Snapshot, memory: Memory) -> tuple[Decision, Memory]:
                self.calls += 1
                if self.calls % 7 == 0:
                    self.cache = None
                    memory = pickle.loads(pickle.dumps(memory))
                return super().decide(snapshot, memory)

        again = simulate(workload, CLUSTER, Restarting(seed=5))
        np.testing.assert_array_equal(whole.end_s, again.end_s)
        assert whole.saved == again.saved

    def test_the_engine_takes_the_memory_of_an_earlier_one(self) -> None:
        workload, cluster = elastic(2, 0.0), parse_cluster(CLUSTER)
        policy = Rl()
        memory = policy.new_memory(workload, cluster)
        memory.centres = log_ratios(workload, models_of(workload))[:1]
        memory.table = np.zeros((2, len(memory.choices)))
        memory.table[:, memory.choices.index("2x3")] = 5.0
        memory.submitted = memory.handled = 500
        state = State(workload, cluster)
        progress = Progress(workload, cluster, np.zeros(2))
        engine = Engine(state, Rl(epsilon_end=0), progress, SimExecutor(state, None), memory=memory)
        engine.take_in(0.0, arrived=[0])
        engine.decide(0.0)
        assert (len(state.placements[0].nodes), state.placements[0].gpus) == (2, 6)
        assert engine.memory is memory
        assert memory.submitted == 501

    def test_the_same_seed_the_same_run(self) -> None:
        workload = elastic(80, 900.0)
        one, two, other = (simulate(workload, CLUSTER, "rl:epsilon_end=0.3", seed=s) for s in (1, 1, 2))
        assert one.saved == two.saved
        assert one.end_s.tolist() == two.end_s.tolist()
        assert one.end_s.tolist() != other.end_s.tolist()

    def test_what_was_saved_is_where_the_next_run_begins(self, tmp_path: Path) -> None:
        workload = elastic(600, 6000.0)
        learning = "rl:initial=zero;thrift=0.5;accept=0;alpha=0.5;epsilon_start=0.8;epsilon_jobs=400"
        saved = simulate(workload, CLUSTER, learning).saved
        assert saved is not None
        file = tmp_path / "table.json"
        file.write_text(saved)
        later = "rl:initial=zero;thrift=0.5;accept=0"
        cold = simulate(elastic(20, 6000.0), CLUSTER, later)
        warm = simulate(elastic(20, 6000.0), CLUSTER, f"{later};state={file}")
        assert warm.avg_jct_s < 0.7 * cold.avg_jct_s
        assert warm.saved is not None
        assert json.loads(warm.saved)["submitted"] == 620

    def test_frozen_learns_nothing(self) -> None:
        workload = elastic(60, 900.0)
        saved = simulate(workload, CLUSTER, "rl").saved
        assert saved is not None
        table = read_table(saved)
        frozen = simulate(workload, CLUSTER, Rl(mode="frozen", state=table)).saved
        assert frozen is not None
        np.testing.assert_array_equal(read_table(frozen).values, table.values)

    def test_a_table_that_is_none(self, tmp_path: Path) -> None:
        file = tmp_path / "table.json"
        with pytest.raises(PolicyError, match=r"state=.*table\.json"):
            load_policy(f"rl:state={file}")
        file.write_text("{}")
        with pytest.raises(PolicyError, match="gpuloom-learnt-placement-1"):
            load_policy(f"rl:state={file}")


class TestCommand:
    def test_save_memory(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        Path("jobs.csv").write_text("submit_s,duration_s,gpus\n0,100,1\n5,50,8\n6,10,16\n")
        run = CliRunner().invoke
        done = run(cli, ["simulate", "jobs.csv", "--cluster", "4x4", "--policy", "rl", "--save-memory", "t.json"])
        assert done.exit_code == 0, done.output
        assert read_table(Path("t.json").read_text()).handled == 3
        again = run(cli, ["simulate", "jobs.csv", "--cluster", "4x4", "--policy", "rl:state=t.json", "--json", "-"])
        assert again.exit_code == 0, again.output

    def test_policies_that_learn_nothing_have_nothing_to_save(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from gpuloom.core.errors import InputError

        monkeypatch.chdir(tmp_path)
        Path("jobs.csv").write_text("submit_s,duration_s,gpus\n0,100,1\n")
        words = ["simulate", "jobs.csv", "--cluster", "4x4", "--policy", "srtf", "--save-memory", "t.json"]
        with pytest.raises(InputError, match="learns nothing"):
            cli.main(words, standalone_mode=False)
        assert not Path("t.json").exists()
