"""A Gymnasium environment over the simulator: an agent chooses each job's placement.

An episode is the replay of one workload. A step is one decision: for the first job in order of submission of which some
placement fits, the agent chooses one, or to wait (once a job, and only while something runs). Simulated time passes
between steps by itself. Needs the package `gymnasium` (`pip install 'gpuloom[gym]'`).

    actions: `Discrete`; 0: wait, 1: packed (as few nodes as possible, for jobs that fit only unevenly), from 2 on the
        even placements of the cluster (`PlacementEnv.choices.names`).
    observations: a `Dict` of `features` (see `FEATURES`) and `action_mask` (1: allowed now).
    rewards: `jct`: minus the time that jobs have spent in the system since the last step, in units such that an
        episode's sum is minus the mean completion time over the mean duration; `placement`: R = process / cost of the
        policy `rl`, with its defaults: speed over the job's best, by the share of the cluster that it takes, times
        (nodes / fewest nodes)^`fragmentation`, to the power of `thrift`. Speeds are those of the job's true curve,
        where `rl` has what it measured.

It is registered as `gpuloom/Placement-v0`.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuloom.core.cluster import Cluster
from gpuloom.core.decision import NOTHING, Decision
from gpuloom.core.errors import InputError, MissingDependencyError
from gpuloom.core.scaling import NO_CURVE
from gpuloom.core.snapshot import Snapshot
from gpuloom.core.sums import sum_ints
from gpuloom.core.workload import F8, Workload
from gpuloom.facts.inputs import load_cluster
from gpuloom.learning.ratios import MOST_LOG_RATIO, log_ratios, models_of
from gpuloom.placement.even import (
    FRAGMENTATION,
    HOLD,
    PACKED,
    THRIFT,
    WAIT,
    Choices,
    EvenQueue,
    Kind,
    Mask,
    choices_of,
    cost_of,
)
from gpuloom.policies.base import Policy, Preemptive, Traits
from gpuloom.sim.result import SimResult
from gpuloom.sim.simulator import simulate

try:
    import gymnasium
    from gymnasium import spaces
except ImportError as error:
    raise MissingDependencyError("the Gymnasium environment", "gymnasium", "gym") from error

FEATURES = (
    "log of compute over communication, -1 to 1",
    "whether it is known",
    "log2 of the fewest GPUs / 16",
    "log2 of the most GPUs / 16",
    "log2 of the GPUs asked for / 16",
    "whether it has waited by choice",
    "jobs waiting, n / (n + 10)",
    "jobs running, n / (n + 10)",
    "share of GPUs that are free",
)
"""`features` in order; then, for each number of GPUs from 1 to those of the largest node, the share of nodes with at
least so many free."""

REWARDS = ("jct", "placement")

Observation = dict[str, NDArray[Any]]


class PlacementEnv(gymnasium.Env[Observation, np.int64]):
    """See the module.

    Args:
        workload: the jobs, or a function that makes them anew for each episode from a random generator.
        cluster: nodes, or their short form ('16x4'). A function's first workload (of seed 0) must have the largest job.
        reward: 'jct' or 'placement'. thrift: power of the cost in the latter; fragmentation: how much more a placement
            on more nodes than needed costs there.
        settings: see `gpuloom.sim.Settings`.

    Raises:
        InputError: no jobs, or an unknown reward.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012  (as Gymnasium declares it)

    def __init__(
        self,
        workload: Workload | Callable[[np.random.Generator], Workload],
        cluster: Cluster | str,
        *,
        reward: str = "jct",
        thrift: float = THRIFT,
        fragmentation: float = FRAGMENTATION,
        **settings: Any,
    ) -> None:
        if reward not in REWARDS:
            raise InputError(f"reward is {reward!r}, must be one of {', '.join(REWARDS)}")
        self._cluster = load_cluster(cluster) if isinstance(cluster, str) else cluster
        self._make = workload
        self._reward, self._settings = reward, settings
        self._weights = {"thrift": thrift, "fragmentation": fragmentation}
        first = workload if isinstance(workload, Workload) else workload(np.random.default_rng(0))
        self.choices: Choices = choices_of(first, self._cluster)
        node_gpus = max(node.gpus for node in self._cluster.nodes)
        self.action_space = spaces.Discrete(len(self.choices))
        self._nothing = np.zeros(len(FEATURES) + node_gpus, dtype=np.float32)
        self.observation_space: spaces.Dict[Any] = spaces.Dict(  # type: ignore[assignment]
            {
                "features": spaces.Box(-1.0, 1.0, self._nothing.shape, np.float32),
                "action_mask": spaces.Box(0, 1, (len(self.choices),), np.int8),
            }
        )
        self._episode: _Episode | None = None
        self._mask = np.ones(len(self.choices), dtype=bool)
        self.result: SimResult | None = None
        """Of the episode that ended last."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed)
        self.close()
        workload = self._make if isinstance(self._make, Workload) else self._make(self.np_random)
        if len(workload) == 0:
            raise InputError("the workload has no jobs: there is nothing to decide")
        if not set(choices_of(workload, self._cluster).names) <= set(self.choices.names):
            raise InputError("the workload has a larger job than the first one had: there are no actions for it")
        self._episode = _Episode(self, workload)
        observation, _, _, info = self._next_question()
        return observation, info

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Decide. An action that is not allowed now is replaced by the first allowed one (info: `replaced`)."""
        if self._episode is None:
            raise InputError("the episode has ended: reset the environment first")
        chosen = int(action)
        replaced = not self._mask[chosen]
        if replaced:
            chosen = int(self._mask.argmax())
        self._episode.answer(chosen)
        observation, reward, terminated, info = self._next_question()
        return observation, reward, terminated, False, info | {"replaced": replaced}

    def close(self) -> None:
        if self._episode is not None:
            self._episode.abandon()
            self._episode = None

    def _next_question(self) -> tuple[Observation, float, bool, dict[str, Any]]:
        """The next question of the simulation, or its end."""
        assert self._episode is not None  # noqa: S101
        heard = self._episode.from_simulation()
        if isinstance(heard, _Question):
            self._mask = heard.mask
            return heard.observation, heard.reward, False, heard.info
        self._episode = None
        if isinstance(heard, Exception):
            raise heard
        self.result, reward = heard
        self._mask = np.zeros(len(self.choices), dtype=bool)
        self._mask[WAIT] = True
        info = {"avg_jct_s": self.result.avg_jct_s, "makespan_s": self.result.makespan_s}
        return {"features": self._nothing.copy(), "action_mask": self._mask.astype(np.int8)}, reward, True, info


class _Question:
    """What the agent is asked; reward: for what it chose before."""

    __slots__ = ("info", "mask", "observation", "reward")

    def __init__(self, observation: Observation, mask: Mask, reward: float, info: dict[str, Any]) -> None:
        self.observation, self.mask, self.reward, self.info = observation, mask, reward, info


class _AbandonedError(Exception):
    """The agent does not want to go on."""


class _Episode:
    """A simulation in a thread of its own; it and the agent take turns, so that only one of them ever runs."""

    def __init__(self, env: PlacementEnv, workload: Workload) -> None:
        self._to_agent: SimpleQueue[_Question | tuple[SimResult, float] | Exception] = SimpleQueue()
        self._to_policy: SimpleQueue[int | None] = SimpleQueue()
        self._policy = _Asking(self, env, workload)
        self._args = workload, env._cluster, env._settings
        self._thread = threading.Thread(target=self._simulate, daemon=True)
        self._thread.start()

    def _simulate(self) -> None:
        workload, cluster, settings = self._args
        try:
            result = simulate(workload, cluster, self._policy, **settings)
            self._to_agent.put((result, self._policy.earned()))
        except _AbandonedError:
            return
        except Exception as error:  # handed on to the agent's thread
            self._to_agent.put(error)

    def from_simulation(self) -> _Question | tuple[SimResult, float] | Exception:
        return self._to_agent.get()

    def answer(self, action: int) -> None:
        self._to_policy.put(action)

    def ask(self, question: _Question) -> int:
        """In the simulation's thread: put a question, wait for the answer."""
        self._to_agent.put(question)
        answer = self._to_policy.get()
        if answer is None:
            raise _AbandonedError
        return answer

    def abandon(self) -> None:
        self._to_policy.put(None)
        self._thread.join()


class _Asking(Policy):
    """The policy that asks the agent."""

    id = "agent"
    traits = Traits("an agent's choices", "what the agent observes", Preemptive.NO, False, False, "", "")
    resizes = True

    def __init__(self, episode: _Episode, env: PlacementEnv, workload: Workload) -> None:
        super().__init__()
        self._episode, self._env, self._workload = episode, env, workload
        self._choices = env.choices
        self._ratio = log_ratios(workload, models_of(workload))
        self._waited = np.zeros(len(workload), dtype=bool)
        self._unit = 1.0 / (len(workload) * max(float(workload.duration_s.mean()), 1e-9))
        self._present, self._since_s, self._time = 0, 0.0, 0.0
        self._placed = 0.0

    def decide(self, snapshot: Snapshot, memory: Any) -> tuple[Decision, Any]:
        if self.cache is None:
            self.cache = EvenQueue(snapshot, self._choices)
        self._snapshot = snapshot
        queue: EvenQueue = self.cache
        queue.observe(snapshot)
        self._time += self._present * (snapshot.now_s - self._since_s)
        self._present, self._since_s = queue.waiting + queue.running, snapshot.now_s
        if not queue.waiting:
            return NOTHING, memory
        run = queue.walk(self._choose)
        return (Decision(run) if run else NOTHING), memory

    def earned(self) -> float:
        """The reward since the last question."""
        if self._env._reward == "placement":
            earned, self._placed = self._placed, 0.0
        else:
            earned, self._time = -self._time * self._unit, 0.0
        return earned

    def _choose(self, job: int, kind: Kind, fits: Mask) -> int:
        queue: EvenQueue = self.cache
        mask = np.zeros(len(self._choices), dtype=bool)
        mask[kind.choices] = fits
        mask[WAIT] = queue.running > 0 and not self._waited[job]
        observation: Observation = {"features": self._features(job, queue), "action_mask": mask.astype(np.int8)}
        ratio = float(self._ratio[job])
        # Not NaN, which is not equal to itself: steps that are alike must look alike.
        known = None if math.isnan(ratio) else ratio
        info = {"job": job, "log_ratio": known, "now_s": self._snapshot.now_s}
        action = self._episode.ask(_Question(observation, mask, self.earned(), info))
        if action == WAIT:
            self._waited[job] = True
            return HOLD
        choice = 0 if action == PACKED else int(np.searchsorted(kind.choices, action))
        self._placed += float(self._rewards(job, kind)[choice])
        return choice

    def _rewards(self, job: int, kind: Kind) -> F8:
        """R of each of the kind's choices."""
        speed = np.ones(len(kind.choices))
        scaling = self._workload.scaling
        if kind.curve != NO_CURVE and scaling is not None:
            curve = scaling.curves[kind.curve]
            speed = curve[kind.gpus, np.minimum(kind.nodes, curve.shape[1]) - 1]
        worth: F8 = speed / speed.max() / cost_of(kind, self._env._cluster, **self._env._weights)
        return worth

    def _features(self, job: int, queue: EvenQueue) -> NDArray[np.float32]:
        workload, scaling, cluster = self._workload, self._workload.scaling, self._env._cluster
        asked = int(workload.gpus[job])
        least = asked if scaling is None else int(scaling.min_gpus[job])
        most = asked if scaling is None else int(scaling.max_gpus[job])
        ratio = float(self._ratio[job])
        known = not math.isnan(ratio)
        sizes = [math.log2(size) / 16.0 for size in (least, most, asked)]
        counts = [count / (count + 10.0) for count in (queue.waiting, queue.running)]
        node_gpus = max(node.gpus for node in cluster.nodes)
        ready = np.zeros(node_gpus + 1)
        for pool in queue.pools:
            by_free = pool.ready()
            ready[: len(by_free)] += by_free
        free = sum_ints(pool.free_gpus for pool in queue.pools) / cluster.gpus
        return np.array(
            [
                ratio / MOST_LOG_RATIO if known else 0.0,
                known,
                *sizes,
                self._waited[job],
                *counts,
                free,
                *(ready[1:] / len(cluster.nodes)),
            ],
            dtype=np.float32,
        ).clip(-1.0, 1.0)


gymnasium.register("gpuloom/Placement-v0", entry_point="gpuloom.sim.gym:PlacementEnv")
