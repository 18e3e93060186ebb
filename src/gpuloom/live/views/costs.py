"""What GPU time costs at the on-demand prices of its GPU models (`gpuloom gpus`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gpuloom.core.job import Attempt, Phase, gpus_in
from gpuloom.facts.gpus import HOUR_S, price_usd_per_hour


def cost_usd(gpu_s: Mapping[str, float]) -> float | None:
    """Of GPU-seconds by GPU model ('': not known which), US dollars; None where a price is not known."""
    total = 0.0
    for model, seconds in gpu_s.items():
        if seconds > 0.0:
            price = price_usd_per_hour(model)
            if price is None:
                return None
            total += seconds / HOUR_S * price
    return total


def attempt_cost_usd(attempt: Attempt, now_s: float) -> float | None:
    """Of an attempt until now. One that shares its GPUs counts them whole, as `held_s` does."""
    holds = attempt.phase is not None and attempt.phase is not Phase.FROZEN
    held_s = attempt.held_s + (max(now_s - attempt.since_s, 0.0) if holds else 0.0)
    return cost_usd({attempt.gpu_model: held_s * gpus_in(attempt.allocation)})


def job_cost_usd(attempts: Iterable[Attempt], now_s: float) -> float | None:
    """Of a job until now; None where that of an attempt is not known."""
    costs = [attempt_cost_usd(attempt, now_s) for attempt in attempts]
    known = [cost for cost in costs if cost is not None]
    return sum(known) if len(known) == len(costs) else None
