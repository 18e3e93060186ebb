"""What a policy would show of itself: its own state at a moment, typed, and nothing in prose.

`Policy.describe` gives one of these. Jobs are named as the workload names them (`Workload.job_id`). Times of what
happened are seconds on the clock of the snapshot; NaN and infinity stand for what the field's text says.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class StateKind(StrEnum):
    """Which state it is."""

    NONE = "none"
    HLAS = "hlas"
    ELASTIC = "elastic"
    RL = "rl"
    LEVELS = "levels"
    SHARES = "shares"


@dataclass(frozen=True, slots=True)
class NoState:
    """It keeps nothing but what everybody sees: who waits, who runs, since when."""

    kind: StateKind = StateKind.NONE


# -- hlas --------------------------------------------------------------------------------------------------------------


class HlasQueue(StrEnum):
    """Where a job is. A starving one is in Q2 and has waited so long that the next pass promotes it to Q1."""

    RUNNING = "running"
    Q1 = "q1"
    Q2 = "q2"
    STARVING = "starving"


@dataclass(frozen=True, slots=True)
class HlasJob:
    """attained: service since its first start or last promotion, GPU-seconds weighed by the GPU models' performance.
    over: it runs and has more than `HlasState.threshold`. waited_s: in its queue. ran_s: since that promotion.
    promoted_after_s: of one in Q2: how long it has to wait there; else infinity. gpu_model: of its GPUs; '' if none."""

    job: str
    queue: HlasQueue
    gpus: int
    gpu_model: str
    attained: float
    over: bool
    waited_s: float
    ran_s: float
    promoted_after_s: float


@dataclass(frozen=True, slots=True)
class HlasState:
    """mean: attained service of the running jobs, on average; threshold: that times the ratio, above which a running
    job is to be suspended. performance: by GPU model, relative to the slowest."""

    mean: float
    threshold: float
    priority_threshold_ratio: float
    starve_threshold_ratio: float
    performance: tuple[tuple[str, float], ...]
    jobs: tuple[HlasJob, ...]
    kind: StateKind = StateKind.HLAS


# -- elastic -----------------------------------------------------------------------------------------------------------


class ResizeWhy(StrEnum):
    """Why a job got another number of GPUs."""

    BELOW_EXPAND_THRESHOLD = "below_expand_threshold"
    """The pool was used less than the expand threshold says."""
    ABOVE_SHRINK_THRESHOLD = "above_shrink_threshold"
    """The pool was used more than the shrink threshold says."""
    AS_ASKED = "as_asked"
    """It started, and the size that it asks for was free."""
    GAINS = "gains"
    """It runs faster so, or on another GPU model."""
    GIVEN_BACK = "given_back"
    """A job that waited needed what it had borrowed."""


@dataclass(frozen=True, slots=True)
class Resized:
    """A job that grew or shrank. from_gpus: 0 for one that just started."""

    at_s: float
    job: str
    from_gpus: int
    to_gpus: int
    why: ResizeWhy


class PoolAction(StrEnum):
    """What the thresholds say."""

    EXPAND = "expand"
    SHRINK = "shrink"
    HOLD = "hold"


@dataclass(frozen=True, slots=True)
class ElasticPool:
    """The pool, by the names of the text: A cluster_gpus, a used_gpus, EU elastic_gpus, M pool_gpus, t utilization
    (infinity: there is no pool), ET, ST and MT; budget_gpus: what the next check may give or take. checked_s: when it
    was looked at last; check_at_s: when it is next (infinity: not before something happens)."""

    cluster_gpus: int
    used_gpus: int
    elastic_gpus: int
    pool_gpus: float
    utilization: float
    expand_threshold: float
    shrink_threshold: float
    target: float
    action: PoolAction
    budget_gpus: float
    checked_s: float
    check_at_s: float


@dataclass(frozen=True, slots=True)
class ElasticSize:
    """An elastic job that runs: its GPUs, the fewest and most that it may have, what it asks for; how often it grew and
    shrank."""

    job: str
    gpus: int
    smallest: int
    asked: int
    largest: int
    expansions: int
    shrinks: int


@dataclass(frozen=True, slots=True)
class ElasticState:
    """pool: None where no thresholds are used. changes: the last ones, the newest last. base: the policy that decides
    who runs, and its own state."""

    pool: ElasticPool | None
    jobs: tuple[ElasticSize, ...]
    changes: tuple[Resized, ...]
    base_policy: str
    base: HlasState | LevelsState | SharesState | NoState
    kind: StateKind = StateKind.ELASTIC


# -- rl ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RlEntry:
    """A placement, what it is worth to a group of jobs (NaN: never tried), and how often it was learnt from."""

    placement: str
    value: float
    visits: float


@dataclass(frozen=True, slots=True)
class RlGroup:
    """A group of jobs: the ratio of compute to communication of its centre (NaN: jobs of which none is known), and the
    entries of its row of the table, the best first."""

    ratio: float
    entries: tuple[RlEntry, ...]


@dataclass(frozen=True, slots=True)
class RlState:
    """epsilon: chance that the next choice is exploratory. handled: jobs placed so far; submitted: recorded. updates:
    of the table so far. mean_change: |ΔQ| of an update, the mean over about the last fifty: the table has settled when
    it is near 0. mean_value: of max_a' Q(s', a'). rewarded: placements that had their reward; mean_reward: of about the
    last fifty. regroups_in: so many more jobs until the groups are formed anew."""

    mode: str
    groups: tuple[RlGroup, ...]
    placements: int
    tried: int
    epsilon: float
    handled: int
    submitted: int
    updates: int
    mean_change: float
    mean_value: float
    rewarded: int
    mean_reward: float
    regroups_in: int
    kind: StateKind = StateKind.RL


# -- attained service in levels; shares --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LevelJob:
    """level: of its service, from 0 on; -1: to be found at the next decision. attained_gpu_s: since its first start or
    last promotion, over its weight."""

    job: str
    level: int
    running: bool
    gpus: int
    attained_gpu_s: float


@dataclass(frozen=True, slots=True)
class LevelsState:
    """limits_gpu_s: where each level ends (the last has no end). ranks: the place of each in the order."""

    limits_gpu_s: tuple[float, ...]
    ranks: tuple[int, ...]
    jobs: tuple[LevelJob, ...]
    kind: StateKind = StateKind.LEVELS


@dataclass(frozen=True, slots=True)
class ShareJob:
    """share: of its time on each GPU model, by the last allocation. received_s: the seconds that it has run there since
    then, half a round included. on: the GPU model that it runs on; '' if it waits."""

    job: str
    share: tuple[float, ...]
    received_s: tuple[float, ...]
    on: str


@dataclass(frozen=True, slots=True)
class SharesState:
    """gpu_models: names of the columns. solved_s: when shares were last made (NaN: never); stale: jobs have come or
    gone since. round_at_s: when the next round begins."""

    gpu_models: tuple[str, ...]
    solved_s: float
    stale: bool
    round_at_s: float
    jobs: tuple[ShareJob, ...]
    kind: StateKind = StateKind.SHARES


BaseState = HlasState | LevelsState | SharesState | NoState
"""State of a policy that may be the base of another one."""
PolicyState = BaseState | ElasticState | RlState
"""What `Policy.describe` gives."""
