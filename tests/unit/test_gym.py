"""The Gymnasium environment: Gymnasium's own checker, rewards that add up, and an agent from training to a policy."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from builders import jobs
from gpuloom.core.errors import InputError
from gpuloom.core.workload import Workload
from gpuloom.learning.learnt_table import read_table
from gpuloom.policies.rl import Rl
from gpuloom.sim import simulate
from test_policies_rl import SCALES, SUFFERS, Watched, elastic

gymnasium = pytest.importorskip("gymnasium")
from gymnasium.utils.env_checker import check_env  # noqa: E402

from gpuloom.sim.gym import FEATURES, PlacementEnv  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]


def played(env: PlacementEnv, seed: int, choose: Any) -> tuple[list[float], list[dict[str, Any]]]:
    observation, info = env.reset(seed=seed)
    rewards, infos, over = [], [info], False
    while not over:
        assert env.observation_space.contains(observation)
        action = choose(np.flatnonzero(observation["action_mask"]))
        observation, reward, over, truncated, info = env.step(action)
        assert not truncated
        rewards.append(reward)
        infos.append(info)
    assert env.observation_space.contains(observation)
    return rewards, infos


@pytest.mark.parametrize("reward", ["jct", "placement"])
def test_gymnasiums_own_checker_is_content(reward: str) -> None:
    """Its warnings are errors here (pyproject.toml)."""
    made = gymnasium.make("gpuloom/Placement-v0", workload=elastic(12, 500.0), cluster="4x4", reward=reward)
    check_env(made.unwrapped)
    made.close()


def test_the_checker_is_content_where_no_ratio_is_known() -> None:
    """Rigid jobs without curves or stage times."""
    workload = jobs([(10.0 * i, 300.0, 1 + i % 4) for i in range(12)])
    env = gymnasium.make("gpuloom/Placement-v0", workload=workload, cluster="2x4").unwrapped
    check_env(env)
    assert env.reset(seed=1)[1]["log_ratio"] is None
    env.close()


def test_an_episode_earns_minus_the_mean_completion_time_in_mean_durations() -> None:
    workload = elastic(30, 300.0)
    env = PlacementEnv(workload, "4x4", restart_overhead_s=0.0)
    rng = np.random.default_rng(1)
    rewards, infos = played(env, 0, rng.choice)
    assert sum(rewards) == pytest.approx(-infos[-1]["avg_jct_s"] / workload.duration_s.mean())
    assert env.result is not None
    assert env.result.finished == 30


def test_the_largest_placement_at_once_is_what_greedy_does() -> None:
    """The environment is the simulator: the same choices, the same schedule."""
    workload = elastic(30, 2000.0, models=(SCALES,))
    env = PlacementEnv(workload, "1x16")
    played(env, 0, lambda allowed: allowed[-1])
    assert env.result is not None
    assert env.result.end_s.tolist() == simulate(workload, "1x16", "rl:mode=greedy").end_s.tolist()


def test_rewards_of_placements_by_hand() -> None:
    """Twice the GPUs twice as fast: speed over share is 16 whatever is chosen; with thrift 0 speed alone counts."""
    workload = elastic(6, 100_000.0, models=(SCALES,))
    rng = np.random.default_rng(2)
    rewards, _ = played(PlacementEnv(workload, "1x16", reward="placement", thrift=1.0), 0, rng.choice)
    assert rewards == pytest.approx([1.0] * 6, rel=0.05)
    rewards, _ = played(PlacementEnv(workload, "1x16", reward="placement", thrift=0.0), 0, lambda allowed: allowed[0])
    assert rewards == pytest.approx([1 / 16] * 6, rel=0.05)


def test_rewards_of_placements_are_those_that_rl_learns_from() -> None:
    """Same choices, spread over more nodes than needed among them: the same R, with the defaults of both."""
    workload = elastic(20, 100_000.0)
    for fixed in ("1x1", "1x4", "2x1", "4x2", "4x4"):
        policy = Watched(mode="fixed", fixed=fixed)
        simulate(workload, "4x4", policy, restart_overhead_s=0.0)
        assert policy.memory is not None
        env = PlacementEnv(workload, "4x4", reward="placement")
        action = env.choices.names.index(fixed)
        rewards, _ = played(env, 0, lambda allowed, action=action: action)
        assert rewards == pytest.approx(policy.memory.reward.tolist(), rel=0.02), fixed


def test_what_is_not_allowed_is_replaced_and_said() -> None:
    env = PlacementEnv(elastic(3, 100_000.0), "1x16")
    env.reset(seed=0)
    *_, info = env.step(np.int64(0))  # nobody runs, so nobody can wait
    assert info["replaced"]
    env.close()


def test_waiting_is_allowed_once() -> None:
    env = PlacementEnv(elastic(2, 1.0, models=(SUFFERS,)), "1x16")
    env.reset(seed=0)
    observation, *_ = env.step(np.int64(2))
    assert observation["action_mask"][0] == 1
    observation, _, over, _, info = env.step(np.int64(0))
    assert not over
    assert info["job"] == 1
    assert observation["action_mask"][0] == 0
    assert observation["features"][FEATURES.index("whether it has waited by choice")] == 1
    env.close()


def test_at_the_end_nothing_is_left_to_choose() -> None:
    env = PlacementEnv(elastic(3, 500.0), "1x4")
    observation, _ = env.reset(seed=0)
    over = False
    while not over:
        observation, _, over, _, info = env.step(np.flatnonzero(observation["action_mask"])[-1])
    assert observation["action_mask"].tolist() == [1] + [0] * (len(observation["action_mask"]) - 1)
    assert not observation["features"].any()
    assert env.result is not None
    assert (info["avg_jct_s"], info["makespan_s"]) == (env.result.avg_jct_s, env.result.makespan_s)


def test_threads_do_not_outlive_their_episode() -> None:
    before = threading.active_count()
    env = PlacementEnv(elastic(12, 500.0), "4x4")
    for seed in range(5):
        env.reset(seed=seed)
    assert threading.active_count() == before + 1
    env.close()
    assert threading.active_count() == before
    with pytest.raises(InputError, match="reset"):
        env.step(np.int64(2))


def test_workloads_may_be_made_anew_for_every_episode() -> None:
    def make(rng: np.random.Generator) -> Workload:
        return elastic(int(rng.integers(3, 9)), 500.0)

    env = PlacementEnv(make, "4x4")
    jobs = set()
    for seed in range(6):
        played(env, seed, lambda allowed: allowed[-1])
        assert env.result is not None
        jobs.add(env.result.jobs)
    assert len(jobs) > 1


def test_errors_of_the_simulation_reach_the_agent() -> None:
    env = PlacementEnv(elastic(3, 1.0), "4x4", interval_s=-1)
    with pytest.raises(InputError, match="interval"):
        env.reset()
    with pytest.raises(InputError, match="no jobs"):
        PlacementEnv(elastic(3, 1.0).take([]), "4x4").reset()
    with pytest.raises(InputError, match="reward"):
        PlacementEnv(elastic(3, 1.0), "4x4", reward="x")


@pytest.mark.slow
def test_the_examples_agent_learns_and_then_runs_as_a_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "examples" / "gym_agent"))
    import train

    workload = elastic(60, 6000.0)
    env = PlacementEnv(workload, "4x4", reward="placement", thrift=0.5)
    agent = train.SoftmaxAgent(train.ratios_of(env), len(env.choices), step=0.3, seed=0)
    said: list[str] = []
    means = train.train(env, agent, 25, said.append)
    assert np.mean(means[-5:]) > 1.3 * means[0]
    assert len(said) == 25
    file = tmp_path / "agent.json"
    file.write_text(agent.table(env.choices.names))
    assert read_table(file.read_text()).values.shape == (3, len(env.choices))
    trained = simulate(workload, "4x4", f"rl:mode=frozen;accept=0;state={file}")
    chance = simulate(workload, "4x4", "rl:mode=random")
    assert trained.avg_jct_s < 0.8 * chance.avg_jct_s
    assert isinstance(Rl(state=read_table(file.read_text())), Rl)
    sys.modules.pop("train")
