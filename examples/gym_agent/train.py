"""Train an agent of one's own in gpuloom's Gymnasium environment, and save it as a table that the policy `rl` can run.

The agent is a softmax policy gradient (Williams, 1992) over a table of preferences: a row per group of alike jobs, a
column per placement. It knows the environment by its spaces and its `info` only.

    python examples/gym_agent/train.py TRACE --throughputs PROFILES --cluster 16x4 --out agent.json
    gpuloom compare TRACE --throughputs PROFILES --cluster 16x4 \
        --policies 'rl:mode=random,rl:mode=frozen;accept=0;state=agent.json'
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import gymnasium
import numpy as np
from numpy.typing import NDArray

import gpuloom.sim.gym  # noqa: F401  (registers gpuloom/Placement-v0)
from gpuloom.traces import read_trace

F8 = NDArray[np.float64]


class SoftmaxAgent:
    """Preferences by (group, action); a group is the nearest of `centres` to the job's log ratio, the last one is for
    jobs without."""

    def __init__(self, centres: F8, actions: int, *, step: float, seed: int) -> None:
        self.centres, self.step = centres, step
        self.preferences = np.zeros((len(centres) + 1, actions))
        self.baseline = np.zeros(len(centres) + 1)
        self.scale = np.ones(len(centres) + 1)
        self.seen = np.zeros(len(centres) + 1, dtype=int)
        self.rng = np.random.default_rng(seed)

    def group(self, log_ratio: float | None) -> int:
        if log_ratio is None or len(self.centres) == 0:
            return len(self.centres)
        return int(np.abs(self.centres - log_ratio).argmin())

    def chances(self, group: int, mask: NDArray[np.bool_]) -> F8:
        raised = np.exp(self.preferences[group] - self.preferences[group][mask].max()) * mask
        chances: F8 = raised / raised.sum()
        return chances

    def act(self, group: int, mask: NDArray[np.bool_]) -> int:
        return int(self.rng.choice(len(mask), p=self.chances(group, mask)))

    def learn(self, group: int, mask: NDArray[np.bool_], action: int, reward: float) -> None:
        """REINFORCE with the group's mean reward as the baseline, in units of its spread."""
        self.seen[group] += 1
        weight = max(1.0 / self.seen[group], 0.02)
        off = reward - self.baseline[group]
        self.baseline[group] += weight * off
        self.scale[group] += weight * (abs(off) - self.scale[group])
        gradient = -self.chances(group, mask)
        gradient[action] += 1.0
        self.preferences[group] += self.step * off / max(self.scale[group], 1e-9) * gradient * mask

    def table(self, choices: tuple[str, ...]) -> str:
        """The agent as a learnt table of gpuloom (docs/explanation/learning.md)."""
        return json.dumps(
            {
                "format": "gpuloom-learnt-placement-1",
                "choices": list(choices),
                "centres": self.centres.tolist(),
                "values": self.preferences.tolist(),
            }
        )


def ratios_of(env: gymnasium.Env) -> F8:
    """The different log ratios of the jobs that one episode of first allowed actions comes across, rising."""
    found = set()
    observation, info = env.reset(seed=0)
    over = False
    while not over:
        if info["log_ratio"] is not None:
            found.add(round(info["log_ratio"], 9))
        observation, _, over, _, following = env.step(int(np.argmax(observation["action_mask"])))
        info = info if over else following
    return np.array(sorted(found))


def train(env: gymnasium.Env, agent: SoftmaxAgent, episodes: int, report: Callable[[str], None]) -> list[float]:
    """Mean reward per decision of each episode."""
    means = []
    for episode in range(episodes):
        observation, info = env.reset(seed=episode)
        rewards, over = [], False
        while not over:
            group, mask = agent.group(info["log_ratio"]), observation["action_mask"].astype(bool)
            action = agent.act(group, mask)
            observation, reward, over, _, info = env.step(action)
            agent.learn(group, mask, action, float(reward))
            rewards.append(float(reward))
        means.append(float(np.mean(rewards)))
        report(f"episode {episode}: mean reward {means[-1]:.3f}, average JCT {info['avg_jct_s']:,.0f} s")
    return means


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trace", type=Path)
    parser.add_argument("--throughputs", type=Path)
    parser.add_argument("--cluster", default="16x4")
    parser.add_argument("--episodes", type=int, default=40)
    parser.add_argument("--thrift", type=float, default=0.7, help="power of the cost in the reward")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("agent.json"))
    given = parser.parse_args()
    workload = read_trace(given.trace, throughputs=given.throughputs).workload
    env = gymnasium.make(
        "gpuloom/Placement-v0", workload=workload, cluster=given.cluster, reward="placement", thrift=given.thrift
    )
    choices = env.get_wrapper_attr("choices").names
    agent = SoftmaxAgent(ratios_of(env), len(choices), step=0.3, seed=given.seed)
    train(env, agent, given.episodes, print)
    given.out.write_text(agent.table(choices), encoding="utf-8")
    print(f"wrote {given.out}")


if __name__ == "__main__":
    main()
