"""The policy rl: who is refused and until when, what is learnt from what, and what a saved table goes on with."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import jobs
from gpuloom.core.decision import Decision
from gpuloom.core.snapshot import Snapshot
from gpuloom.core.workload import Labels, Speeds, Workload
from gpuloom.facts.inputs import load_cluster, load_policy
from gpuloom.learning.learnt_table import LearntTable, read_table
from gpuloom.learning.ratios import fingerprint
from gpuloom.placement.even import WAIT
from gpuloom.policies import rl as module
from gpuloom.policies.rl import Memory, Rl
from gpuloom.policies.rl_learner import Learner
from gpuloom.sim import Failure, simulate
from scaling import scaling_of
from test_policies_rl import SCALES, SUFFERS, Watched, elastic
from tiers import examples

LARGE, SMALL = [0.1, 0.1, 0.9], [0.1, 0.9, 0.1]
"""Stage times of jobs that want four GPUs, and of those that want one, by `TABLE`."""
TABLE = LearntTable(
    ("wait", "packed", "1x1", "1x2", "1x3", "1x4"),
    np.array([-2.0, 2.0]),
    np.array([[0, np.nan, 0.1, 0.1, 0.1, 10], [0, np.nan, 10, 0.1, 0.1, 0.1], [0] * 6]),
)
PATIENCE_S = 6 * 3600.0


def grouped(rows: list[tuple[float, float]], stages: list[list[float]]) -> Workload:
    """Jobs (submit, duration) of one kind, 1 to 4 GPUs and twice the speed on twice as many; groups by stage times."""
    n = len(rows)
    workload = jobs([(submit, duration, 1) for submit, duration in rows], stage_s=np.array(stages))
    curve = np.arange(5.0)[:, None]
    of_each = np.zeros(n, dtype=np.int32), np.ones(n, dtype=np.int32), np.full(n, 4, dtype=np.int32)
    return replace(workload, scaling=scaling_of(workload.gpus, [curve], *of_each))


def started(workload: Workload, state: LearntTable = TABLE, **values: Any) -> list[float]:
    policy = Rl(mode="frozen", state=state, **values)
    starts: list[float] = simulate(workload, "1x4", policy, restart_overhead_s=0.0).start_s.tolist()
    return starts


class TestRefusals:
    def test_one_groups_refusal_does_not_hold_up_others_of_the_kind(self) -> None:
        """Job 1 wants the whole node, of which job 0 has a GPU; job 2 takes one that is free, as it does without 1."""
        workload = grouped([(0, 1e6), (10, 100), (20, 100)], [SMALL, LARGE, SMALL])
        assert started(workload)[2] == 20.0

    def test_all_of_a_refusing_group_wait_and_all_of_the_other_go_on(self) -> None:
        rows = [(0.0, 1e5)] + [(10.0 + job, 100.0) for job in range(20)]
        starts = started(grouped(rows, [SMALL] + [LARGE, SMALL] * 10), patience="10d")
        assert max(starts[2::2]) < 1000
        assert min(starts[1::2]) == 1e5

    def test_patience_ends_without_an_event(self) -> None:
        """Until then it refuses less than the node; nothing else happens before job 0 ends at 1,000,000 s."""
        workload = grouped([(0, 1e6), (10, 100), (500, 100)], [SMALL, LARGE, LARGE])
        assert started(workload)[1:] == [10 + PATIENCE_S, 500 + PATIENCE_S]

    @settings(max_examples=examples(25), deadline=None)
    @given(submit=st.floats(0.1, 1e7), patience=st.floats(0.1, 1e6))
    def test_the_end_of_patience_is_one_call(self, submit: float, patience: float) -> None:
        """However submission and patience round: no call too early, which would be asked again at once for ever."""
        workload = grouped([(0, 1e8), (submit, 100)], [SMALL, LARGE])
        assert started(workload, patience=f"{patience}s")[1] == submit + patience

    def test_nobody_is_woken_who_would_not_fit_anyway(self) -> None:
        workload = jobs([(0, 1e6, 3), (10, 100, 2)])
        wakes = []

        class Look(Rl):
            def decide(self, snapshot: Snapshot, memory: Memory) -> tuple[Decision, Memory]:
                decision, memory = super().decide(snapshot, memory)
                wakes.append(decision.wake_at_s)
                return decision, memory

        simulate(workload, "1x4", Look())
        assert set(wakes) == {np.inf}

    @pytest.mark.parametrize("shift", [0.0, -100.0])
    def test_without_accept_nothing_is_refused(self, shift: float) -> None:
        """Also where an outside agent's preferences are all below 0."""
        values = TABLE.values.copy()
        values[:, 1:] += shift
        values[:, 0] = -np.inf if shift == 0 else 2 * shift
        state = replace(TABLE, values=np.where(np.isinf(values), -1e6, values))
        workload = grouped([(0, 1e6), (10, 100)], [SMALL, LARGE])
        assert started(workload, state, accept=0.0) == [0.0, 10.0]

    def test_the_best_is_taken_also_if_all_values_are_below_0(self) -> None:
        state = replace(TABLE, values=TABLE.values - 100.0)
        assert started(grouped([(0, 1e6), (10, 100)], [SMALL, SMALL]), state) == [0.0, 10.0]

    def test_groups_that_change_while_jobs_wait(self) -> None:
        """Learning, with many ratios: all end, and a restart at every call changes nothing."""
        rng = np.random.default_rng(4)
        rows = [(50.0 * job, float(rng.uniform(500, 9000))) for job in range(150)]
        workload = grouped(rows, rng.uniform(0.01, 1.0, (150, 3)).tolist())

        class Forgetful(Rl):
            def decide(self, snapshot: Snapshot, memory: Memory) -> tuple[Decision, Memory]:
                self.cache = None
                return super().decide(snapshot, memory)

        whole = simulate(workload, "4x4", Rl())
        assert whole.finished == 150
        anew = simulate(workload, "4x4", Forgetful())
        assert anew.end_s.tolist() == whole.end_s.tolist()
        assert anew.saved == whole.saved


class TestWhatIsLearnt:
    def test_every_call_sees_its_own_snapshot(self) -> None:
        """As a service would call it: a new snapshot each time."""
        begun: list[Any] = []

        class Fresh(Rl):
            def decide(self, snapshot: Snapshot, memory: Memory) -> tuple[Decision, Memory]:
                twin = Snapshot(snapshot._state, np.asarray(snapshot.restart_overhead_s))
                for name in ("now_s", "arrived", "finished", "evicted", "nodes_down", "nodes_up"):
                    setattr(twin, name, getattr(snapshot, name))
                decision, memory = super().decide(twin, memory)
                begun.append(memory.begun_s.copy())
                return decision, memory

        workload = jobs([(100.0 * job, 500.0, 2) for job in range(30)])
        result = simulate(workload, "2x4", Fresh())
        assert begun[-1].tolist() == result.start_s.tolist()
        assert result.start_s[-1] > 0

    def test_waiting_is_never_learnt_with_a_placements_reward(self, monkeypatch: pytest.MonkeyPatch) -> None:
        learnt: list[tuple[int, float]] = []
        before = Learner.learn

        def learn(self: Any, job: int, choice: int, reward: float) -> None:
            learnt.append((choice, reward))
            before(self, job, choice, reward)

        monkeypatch.setattr(Learner, "learn", learn)
        for seed in range(12):
            rng = np.random.default_rng(seed)
            rows = [(20.0 * job, float(rng.uniform(100, 5000)), int(rng.choice([1, 2, 4]))) for job in range(100)]
            workload = jobs(rows, stage_s=rng.uniform(0.01, 1, (100, 3)))
            simulate(workload, "4x4", "rl:epsilon_start=1;epsilon_end=1", mtbf_s=2000, repair_s=500.0, seed=seed)
        waits = [reward for choice, reward in learnt if choice == WAIT]
        assert len(waits) > 100
        assert set(waits) == {0.0}
        assert max(reward for choice, reward in learnt if choice != WAIT) > 1

    def test_a_lost_node_closes_what_was_open(self) -> None:
        """Job 0 is measured at 100 s, when job 1 comes; nobody is decided on from then until the node is lost."""
        workload = jobs([(0, 5000, 4), (100, 10, 4)])
        seen: list[tuple[float, list[int], float]] = []

        class Look(Rl):
            def decide(self, snapshot: Snapshot, memory: Memory) -> tuple[Decision, Memory]:
                decision, memory = super().decide(snapshot, memory)
                seen.append((snapshot.now_s, list(memory.open), memory.reward.item(0)))
                return decision, memory

        simulate(workload, "1x4", Look(), failures=(Failure(0, 1000.0, 2000.0),), restart_overhead_s=0.0)
        assert seen[1] == (100.0, [0], 1.0)
        assert seen[2][:2] == (1000.0, [])

    def test_the_next_jobs_value_counts_waiting_where_it_may_wait(self) -> None:
        """To wait is worth 40, a placement 1: what follows job 0 is 40, since job 1 may wait; what follows job 1's
        wait is the value of a placement, since nothing runs any more when it is decided on again."""
        names = ("wait", "packed", "1x1", "1x2", "2x1")
        state = LearntTable(names, np.zeros(0), np.array([[40.0, 1, 1, 1, 1]]))
        followed: list[float] = []

        class Look(Rl):
            def decide(self, snapshot: Snapshot, memory: Memory) -> tuple[Decision, Memory]:
                decision, memory = super().decide(snapshot, memory)
                followed.append(memory.next_value.item(0))
                return decision, memory

        policy = Look(state=state, epsilon_start=0.0, epsilon_end=0.0, gamma=0.5, alpha=0.5)
        result = simulate(jobs([(0, 100, 1), (10, 10, 1)]), "1x2", policy, restart_overhead_s=0.0)
        assert followed[1] == 40.0
        assert result.saved is not None
        placed = 1 + 0.5 * (1 / 0.5**0.7 + 0.5 * 40 - 1)  # job 0: one of two GPUs
        assert read_table(result.saved).values[0, 0] == pytest.approx(40 + 0.5 * (0 + 0.5 * placed - 40))

    def test_no_random_number_is_used_twice(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from gpuloom.learning import q_learning as learning

        used: list[int] = []
        before = learning.uniform

        def uniform(seed: int, draw: int) -> float:
            used.append(draw)
            return before(seed, draw)

        monkeypatch.setattr(learning, "uniform", uniform)
        monkeypatch.setattr(module, "uniform", uniform)
        rng = np.random.default_rng(1)
        rows = [(50.0 * job, float(rng.uniform(100, 2000)), int(rng.choice([1, 2, 4]))) for job in range(120)]
        workload = jobs(rows, stage_s=rng.uniform(0.01, 1, (120, 3)))
        first = simulate(workload, "4x4", "rl")
        assert len(used) == len(set(used)) > 120
        # A run that begins with what was saved draws new ones too.
        assert first.saved is not None
        drawn = max(used)
        used.clear()
        simulate(workload, "4x4", Rl(state=read_table(first.saved)))
        assert min(used) > drawn

    @pytest.mark.parametrize("scales", [True, False], ids=["elastic", "rigid"])
    @pytest.mark.parametrize("duration_s", [30.0, 9000.0], ids=["measured at the end", "measured while it runs"])
    def test_the_speed_of_the_gpu_model_is_no_reward(self, scales: bool, duration_s: float) -> None:
        """The same job on a GPU model and on another of four times the speed, placed alike: the same reward."""
        wishes = Labels.of(["V100", "K80"] * 10)
        speeds = Speeds(("V100", "K80"), np.tile([1.0, 0.25], (20, 1)))
        workload = elastic(20, 50_000.0, models=(SUFFERS,), gpu_type=wishes, speeds=speeds)
        workload = replace(workload, duration_s=np.full(20, duration_s))
        if not scales:
            workload = replace(workload, scaling=None)
        policy = Watched(mode="fixed", fixed="1x2")
        simulate(workload, load_cluster("2x4:V100,2x4:K80"), policy, restart_overhead_s=0.0)
        assert policy.memory is not None
        assert len(set(policy.placed.values())) == 1
        assert policy.memory.reward.tolist() == pytest.approx([policy.memory.reward[0]] * 20)
        assert policy.memory.reward[0] > 1


class TestSaved:
    def test_the_best_throughputs_go_on_by_curve(self) -> None:
        """Jobs on one GPU, far from their best: what an earlier run has seen is what they are measured by."""
        workload = elastic(2, 50_000.0, models=(SCALES, SUFFERS))
        assert workload.scaling is not None
        small = "rl:initial=zero;epsilon_start=0;epsilon_end=0;mode=fixed;fixed="
        saved = simulate(workload, "4x4", f"{small}1x4").saved
        assert saved is not None
        table = read_table(saved)
        # SCALES runs four times as fast on four GPUs as on one, but for a little communication.
        assert table.best[fingerprint(workload.scaling.curves[0])] == pytest.approx(4.0, rel=0.01)
        backwards = elastic(2, 50_000.0, models=(SUFFERS, SCALES))  # the curves have other numbers here
        cold, warm = Watched(initial="zero", mode="fixed"), Watched(initial="zero", mode="fixed", state=table)
        for policy in (cold, warm):
            simulate(backwards, "4x4", policy, restart_overhead_s=0.0)
        assert cold.memory is not None
        assert warm.memory is not None
        assert warm.memory.reward[1] == pytest.approx(cold.memory.reward[1] / 4, rel=0.01)

    def test_draws_and_best_are_read_back(self) -> None:
        table = LearntTable(("wait",), np.zeros(0), np.zeros((1, 1)), draws=71, best={"ab": 1 / 3})
        again = read_table(table.text())
        assert (again.draws, again.best) == (71, {"ab": 1 / 3})

    def test_files_from_before_are_read(self) -> None:
        content = json.loads(TABLE.text())
        del content["draws"], content["best"]
        old = read_table(json.dumps(content))
        assert (old.draws, dict(old.best)) == (0, {})
        assert load_policy("rl").new_memory(jobs([(0, 1, 1)]), load_cluster("1x4")).draws == 0

    @pytest.mark.parametrize(
        ("field", "value", "what"),
        [("draws", -1, "at least 0"), ("best", {"ab": -1}, "best"), ("best", {"ab": "x"}, "'x'"), ("best", 3, "int")],
    )
    def test_says_what_is_wrong(self, field: str, value: Any, what: str) -> None:
        with pytest.raises(ValueError, match=what):
            read_table(json.dumps(json.loads(TABLE.text()) | {field: value}))
