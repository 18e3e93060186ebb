"""The metrics of a report: name, value, how it is written, which way is better, what it means."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from gpuloom.core.definitions import DEFINITIONS
from gpuloom.core.units import format_duration
from gpuloom.core.words import plural
from gpuloom.facts.gpus import prices_usd_per_s
from gpuloom.sim.result import SimResult


@dataclass(frozen=True, slots=True)
class Metric:
    """One column of a table. `keep` says how long it stays when the room gets short: 0 goes first."""

    title: str
    short: str
    keep: int
    better: Literal["low", "high"]
    value: Callable[[SimResult], float]
    text: Callable[[float], str]
    definition: str


def number(value: float) -> str:
    """A plain number at a precision that fits its size; '-' for NaN."""
    if not math.isfinite(value):
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.1f}" if abs(value) >= 100 else f"{value:.2f}"


def percent(value: float) -> str:
    return f"{100 * value:.1f}" if math.isfinite(value) else "-"


def whole(value: float) -> str:
    return f"{value:,.0f}" if math.isfinite(value) else "-"


def over_bound(result: SimResult) -> float:
    """Average JCT over its lower bound; NaN where there is none, or where the average is not over all jobs."""
    bound = math.nan if result.interrupted else result.lower_bound_avg_jct_s
    return result.avg_jct_s / bound if math.isfinite(bound) and bound > 0 else math.nan


METRICS: tuple[Metric, ...] = (
    Metric(
        "avg JCT",
        "avg JCT",
        9,
        "low",
        lambda result: result.avg_jct_s,
        format_duration,
        DEFINITIONS["avg_jct_s"],
    ),
    Metric(
        "median JCT",
        "median",
        4,
        "low",
        lambda result: result.median_jct_s,
        format_duration,
        DEFINITIONS["median_jct_s"],
    ),
    Metric(
        "p99 JCT",
        "p99",
        8,
        "low",
        lambda result: result.p99_jct_s,
        format_duration,
        DEFINITIONS["p99_jct_s"],
    ),
    Metric(
        "makespan",
        "makespan",
        7,
        "low",
        lambda result: result.makespan_s,
        format_duration,
        f"{DEFINITIONS['makespan_s']} (from time 0 where a compatibility mode says so).",
    ),
    Metric(
        "avg queue",
        "queue",
        3,
        "low",
        lambda result: result.avg_queue_length,
        number,
        DEFINITIONS["avg_queue_length"],
    ),
    Metric(
        "blocking index",
        "blocking",
        2,
        "low",
        lambda result: result.blocking_index,
        number,
        DEFINITIONS["blocking_index"],
    ),
    Metric(
        "utilisation %",
        "util %",
        5,
        "high",
        lambda result: result.utilization,
        percent,
        DEFINITIONS["utilization"],
    ),
    Metric(
        "restarts",
        "restarts",
        1,
        "low",
        lambda result: float(result.restarts),
        whole,
        DEFINITIONS["restarts"],
    ),
    Metric(
        "× lower bound",
        "× bound",
        6,
        "low",
        over_bound,
        number,
        "Average JCT divided by a lower bound: an average that no schedule can beat in which each job gets all its "
        "GPUs at once and exclusively (if the policy lets k jobs share a GPU: with k times the GPUs). 1.00 could not "
        "be "
        "better; the bound itself may be out of reach. Not given for an interrupted run.",
    ),
    Metric(
        "wall time",
        "wall",
        0,
        "low",
        lambda result: result.wall_s,
        format_duration,
        "What the simulation itself took on the machine that ran it.",
    ),
)


COST = Metric(
    "$ per job",
    "$/job",
    6,
    "low",
    lambda result: cost_per_job_usd(result),
    number,
    "GPU time held on each GPU model times its on-demand price (gpuloom gpus), per job that ended. Given for clusters "
    "of several GPU models whose prices are all known.",
)
"""A column for mixed clusters."""


def priced(result: SimResult) -> bool:
    """Whether a run has a cost worth telling: several GPU models, all with known prices."""
    return len(result.gpu_models) > 1 and prices_usd_per_s(result.gpu_models) is not None


def cost_per_job_usd(result: SimResult) -> float:
    """What the GPU time held costs at on-demand prices, per job that ended; NaN where a price is unknown."""
    prices = prices_usd_per_s(result.gpu_models)
    if prices is None or result.finished == 0:
        return math.nan
    return float((result.held_gpu_s @ prices).sum()) / result.finished


def best(metric: Metric, results: Sequence[SimResult]) -> str | None:
    """How the best value is written; None if there is nothing to choose.

    Interrupted runs don't compete: their averages leave out the jobs that had not ended.
    """
    values = [metric.value(result) for result in results if not result.interrupted]
    values = [value for value in values if math.isfinite(value)]
    if not values:
        return None
    found = metric.text(min(values) if metric.better == "low" else max(values))
    return found if any(metric.text(value) != found for value in values) else None


def escape(text: str) -> str:
    """Text as HTML; characters that a page can't hold are replaced."""
    return html.escape("".join(c if c.isprintable() or c == "\n" else "�" for c in text), quote=True)


def interruption(result: SimResult) -> str:
    return f"(interrupted, {result.finished:,} of {plural(result.jobs, 'job')})" if result.interrupted else ""


def facts(results: Sequence[SimResult]) -> list[str]:
    """What the results have in common: trace, cluster, jobs, GPUs, the lower bound."""

    def shared(values: Sequence[str]) -> str:
        different = list(dict.fromkeys(values))
        return different[0] if len(different) == 1 else f"{', '.join(different[:-1])} and {different[-1]}"

    if not results:
        return ["no results"]
    found = [
        f"trace {shared([result.trace for result in results])}",
        f"cluster {shared([result.cluster for result in results])}",
        shared([plural(result.jobs, "job") for result in results]),
        shared([plural(result.gpus, "GPU") for result in results]),
    ]
    bounds = {result.policy: format_duration(result.lower_bound_avg_jct_s) for result in results}
    known = list(dict.fromkeys(bound for bound in bounds.values() if bound != "-"))
    if len({result.trace for result in results}) > 1 or len({result.cluster for result in results}) > 1 or not known:
        return found  # one for each: the column × lower bound says it
    usual = max(known, key=list(bounds.values()).count)
    others = [f"{bound} for {policy}" for policy, bound in bounds.items() if bound not in {usual, "-"}]
    found.append(f"lower bound of the average JCT {usual}" + (f" ({', '.join(others)})" if others else ""))
    return found
