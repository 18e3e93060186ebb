"""A policy's parameters and its own state as the API shows them: the types (core/policy_state.py says what they mean).

Beside `answers.py`, in the same form. Times are epoch seconds.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypedDict


class ParameterView(TypedDict):
    """A parameter of the policy."""

    name: str
    value: Annotated[str, "As one would write it."]
    default: str
    help: str


class NoPolicyStateView(TypedDict):
    """It keeps nothing but what everybody sees: who waits, who runs, since when."""

    kind: Literal["none"]


class HlasJobView(TypedDict):
    """A job in the queues of `hlas`."""

    job: int
    queue: Annotated[
        Literal["running", "q1", "q2", "starving"], "starving: in Q2, and promoted to Q1 by the next pass."
    ]
    gpus: int
    gpu_model: Annotated[str, "Of its GPUs; '': it has none."]
    attained: Annotated[float, "Service since its first start or last promotion: GPU-seconds × performance / weight."]
    over: Annotated[bool, "It runs, and has more than `threshold`."]
    waited_s: Annotated[float, "In its queue."]
    ran_s: Annotated[float, "Since its first start or last promotion."]
    promoted_after_s: Annotated[float | None, "Of one in Q2: when it has waited there for so long."]


class HlasStateView(TypedDict):
    """Queues of `hlas`, and each job's attained service against mean and threshold."""

    kind: Literal["hlas"]
    mean: Annotated[float, "Attained service of the running jobs, on average."]
    threshold: Annotated[float, "mean · priority_threshold_ratio: who runs and has more is to be suspended."]
    priority_threshold_ratio: float
    starve_threshold_ratio: float
    performance: Annotated[dict[str, float], "By GPU model, relative to the slowest."]
    jobs: list[HlasJobView]


class LevelJobView(TypedDict):
    """A job and the level of its service."""

    job: int
    level: Annotated[int, "From 0 on; -1: to be found at the next decision."]
    running: bool
    gpus: int
    attained_gpu_s: Annotated[float, "GPU-seconds since its first start or last promotion, over its weight."]


class LevelsStateView(TypedDict):
    """Levels of attained service (`tiresias`, `gittins`)."""

    kind: Literal["levels"]
    limits_gpu_s: Annotated[list[float], "Where each level ends; the last one has no end."]
    ranks: Annotated[list[int], "The place of each level in the order, the first to run 0."]
    jobs: list[LevelJobView]


class ShareJobView(TypedDict):
    """A job and its shares."""

    job: int
    share: Annotated[list[float], "Of its time on each GPU model, by the last allocation."]
    received_s: Annotated[list[float], "Seconds that it has run there since then, half a round included."]
    on: Annotated[str, "The GPU model that it runs on; '': it waits."]


class SharesStateView(TypedDict):
    """Shares by GPU model (`gavel`)."""

    kind: Literal["shares"]
    gpu_models: Annotated[list[str], "In the order of the shares."]
    solved_s: Annotated[float | None, "When shares were last made."]
    stale: Annotated[bool, "Jobs have come or gone since."]
    round_at_s: Annotated[float | None, "When the next round begins."]
    jobs: list[ShareJobView]


class ElasticPoolView(TypedDict):
    """The elastic pool, by the names of the text."""

    cluster_gpus: Annotated[int, "A."]
    used_gpus: Annotated[int, "a: in use by all jobs."]
    elastic_gpus: Annotated[int, "EU: by elastic jobs; above their smallest sizes, unless `literal`."]
    pool_gpus: Annotated[float, "M."]
    utilization: Annotated[float | None, "t = EU / M; null: infinite, as there is no pool."]
    expand_threshold: Annotated[float, "ET."]
    shrink_threshold: Annotated[float, "ST."]
    target: Annotated[float, "MT."]
    action: Literal["expand", "shrink", "hold"]
    budget_gpus: Annotated[float, "What a check may give or take now."]
    checked_s: Annotated[float | None, "When it was looked at last."]
    check_at_s: Annotated[float | None, "When it is next; null: not before something happens."]


class ElasticSizeView(TypedDict):
    """An elastic job that runs."""

    job: int
    gpus: int
    smallest: int
    asked: int
    largest: int
    expansions: Annotated[int, "How often it grew."]
    shrinks: int


class ResizedView(TypedDict):
    """A job that grew or shrank."""

    at_s: float
    job: int
    from_gpus: Annotated[int, "0: it had just started."]
    to_gpus: int
    why: Literal["below_expand_threshold", "above_shrink_threshold", "as_asked", "gains", "given_back"]


class ElasticStateView(TypedDict):
    """Sizes of jobs (`elastic`, `elastic-goodput`, `weave`)."""

    kind: Literal["elastic"]
    pool: Annotated[ElasticPoolView | None, "null: it goes by no thresholds."]
    jobs: list[ElasticSizeView]
    changes: Annotated[list[ResizedView], "The last 50 since the scheduler began, the newest last."]
    base_policy: Annotated[str, "Decides who runs."]
    base: Annotated[
        HlasStateView | LevelsStateView | SharesStateView | NoPolicyStateView, "The base policy's own state."
    ]


class RlEntryView(TypedDict):
    """An entry of the table of `rl`."""

    placement: Annotated[str, "NODESxGPUS, packed or wait."]
    value: Annotated[float | None, "null: never tried."]
    visits: Annotated[float, "How often it was learnt from; shared out when groups are formed anew."]


class RlGroupView(TypedDict):
    """A group of alike jobs, and its row of the table."""

    ratio: Annotated[float | None, "Compute over communication at its centre; null: jobs of which none is known."]
    entries: Annotated[list[RlEntryView], "The best first, what was never tried last."]


class RlStateView(TypedDict):
    """What `rl` has learnt."""

    kind: Literal["rl"]
    mode: str
    groups: list[RlGroupView]
    placements: Annotated[int, "Columns of the table."]
    tried: Annotated[int, "Entries with a value."]
    epsilon: Annotated[float, "Chance that the next choice is exploratory."]
    handled: Annotated[int, "Jobs placed so far."]
    submitted: Annotated[int, "Jobs recorded so far."]
    updates: Annotated[int, "Of the table."]
    mean_change: Annotated[float, "|ΔQ| of an update, the mean over about the last 50: near 0 when it has settled."]
    mean_value: float
    rewarded: Annotated[int, "Placements that had their reward: measured while the job ran, or at its end."]
    mean_reward: Annotated[float, "Process over cost, the mean over about the last 50."]
    regroups_in: Annotated[int, "So many more jobs until the groups are formed anew."]


PolicyStateView = NoPolicyStateView | HlasStateView | ElasticStateView | RlStateView | LevelsStateView | SharesStateView
