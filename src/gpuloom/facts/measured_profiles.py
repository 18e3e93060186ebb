"""From what hooks measured of a run to a row of the profile library, and to the advice that pays most."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from gpuloom.core.measured import Doubt, Measured
from gpuloom.core.profile import Profile
from gpuloom.core.words import plural

WORTH = 0.05
"""Advice is given where it saves this share of an iteration."""
DOUBTS = {
    Doubt.SPLIT: "batches are made where no hook looks, so storage and CPU are not told apart",
    Doubt.INSIDE: "the framework fetches data within its step, so waits for data count as computing",
    Doubt.QUEUE: "this kernel doesn't tell how long threads wait for a core, so that counts as storage",
    Doubt.ASYNC: "the GPU's own clock was not read, so computing is what Python waited for",
    Doubt.FEW: "few iterations were seen: the figures may be off",
}


class Remedy(StrEnum):
    """What would make a training faster."""

    WORKERS = "workers"
    """More processes that make batches."""
    CORES = "cores"
    """More cores: the machine's are all needed to make batches."""
    SYNC = "sync"
    """Fewer or better hidden gradient syncs."""
    REST = "rest"
    """Less work between the steps."""
    NONE = "none"
    """It computes nearly all the time."""


@dataclass(frozen=True, slots=True)
class Advice:
    """remedy: what pays most. text: a sentence of it, with numbers. saves: share of an iteration's time, estimated.
    workers: how many processes should make batches, if that is it."""

    remedy: Remedy
    text: str
    saves: float = 0.0
    workers: int | None = None


def advice_of(measured: Measured) -> Advice:
    """The one change that saves most of an iteration's time, by its numbers."""
    found = [one for one in (_data(measured), _sync(measured), _rest(measured)) if one is not None]
    best = max(found, key=lambda one: one.saves, default=None)
    if best is not None and best.saves >= WORTH:
        return best
    share = measured.gpu_s / measured.iteration_s
    if Doubt.INSIDE in measured.doubts:
        text = f"computes or waits for data {share:.0%} of the time: its framework does not tell the two apart"
        return Advice(Remedy.NONE, text)
    return Advice(Remedy.NONE, f"computes {share:.0%} of the time: neither its data nor its sync holds it up")


def _faster(measured: Measured, saves_s: float) -> str:
    return f"about {measured.rate_per_s:.3g} → {1.0 / (measured.iteration_s - saves_s):.3g} it/s"


def _data(measured: Measured) -> Advice | None:
    """Workers so that making batches takes no longer than the rest of an iteration, as far as there are cores."""
    wait_s = measured.wait_s
    if wait_s <= 0.0:
        return None
    waits = f"waits {wait_s / measured.iteration_s:.0%} of the time for data"
    now = measured.workers
    # Seconds that one process would work on the batches of an iteration.
    storage_s, cpu_s = (each * max(now, 1) for each in measured.stages_s[:2])
    if storage_s + cpu_s <= 0.0 or Doubt.SPLIT in measured.doubts:
        return Advice(Remedy.REST, f"{waits}; what makes its batches is not a DataLoader that hooks know", 0.0)
    others_s = max(measured.iteration_s - wait_s, 1e-6)
    wanted = max(math.ceil((storage_s + cpu_s) / others_s), now + 1)
    most = max(math.floor(measured.cores * (storage_s + cpu_s) / cpu_s), 1) if cpu_s > 0.0 else wanted
    number = min(wanted, most)
    saves_s = max(measured.iteration_s - max(others_s, (storage_s + cpu_s) / number), 0.0)
    if number <= now or (number < wanted and saves_s < WORTH * measured.iteration_s):
        return Advice(
            Remedy.CORES,
            f"{waits}, and making batches keeps all {plural(measured.cores, 'core')} busy: more cores, or less "
            f" work on a batch ({cpu_s * 1000:.3g} ms of CPU)",
            wait_s / measured.iteration_s,
        )
    text = f"{waits}: num_workers {now} → {number} ({_faster(measured, saves_s)})"
    return Advice(Remedy.WORKERS, text, saves_s / measured.iteration_s, number)


def _sync(measured: Measured) -> Advice | None:
    """Accumulating two batches halves the syncs of a sample."""
    if measured.network_s <= 0.0:
        return None
    share, saves_s = measured.network_s / measured.iteration_s, measured.network_s / 2.0
    return Advice(
        Remedy.SYNC,
        f"syncs gradients {share:.0%} of the time with nothing beside it: accumulate over 2 batches, or larger ones "
        f"({_faster(measured, saves_s)} for the same samples)",
        saves_s / measured.iteration_s,
    )


def _rest(measured: Measured) -> Advice | None:
    share = measured.rest_s / measured.iteration_s
    return Advice(
        Remedy.REST,
        f"spends {share:.0%} of the time outside of loading, computing and sync: look at what stands between the steps "
        f"(loss.item(), logging, metrics)",
        share / 2.0,  # some of it has to be
    )


def profile_of(
    measured: Measured, model: str, *, gpus: int, gpu_model: str | None, date: str, source: str
) -> Profile | None:
    """The row of the library. None: no stage took any time that was seen."""
    storage_s, cpu_s, gpu_s, network_s = measured.stages_s
    split = Doubt.SPLIT not in measured.doubts
    stages = (storage_s, cpu_s, gpu_s, network_s) if split else (storage_s + cpu_s, gpu_s, network_s)
    if not any(each > 0.0 for each in stages):
        return None
    return Profile(
        model=model,
        gpus=gpus,
        iteration_s=measured.iteration_s,
        stage_s=stages,
        batch_size=measured.batch_size,
        gpu_model=gpu_model,
        gpu_memory_mib=measured.memory_mib or None,
        source=source,
        noise=measured.noise,
        date=date,
    )
