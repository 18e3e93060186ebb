"""What a rule knows of the goodput of a job on so many GPUs of a model, and the batch a job chooses by it.

Told: the measured step times and gradient noise of the application, on all GPUs, from the start.
Learnt: what the job itself has seen, as in Sia (SOSP '23, section 3.2). On the GPU models it has trained on, the step
model fitted to its steps (`fitting.py`) and the gradient noise as last measured. For other models the same curve, times
the ratio of the throughputs on one GPU (a short profile of each model, which Sia takes at a job's start). Before it has
trained at all, nothing: one GPU of any model is as good as of another. A job may have at most twice as many GPUs as it
has trained on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gpuloom.core.workload import F8
from gpuloom.goodput.applications import Application
from gpuloom.goodput.base import Cluster, Nodes
from gpuloom.goodput.fitting import StepModel, fit_steps
from gpuloom.goodput.job import Batch, Job, split
from gpuloom.goodput.tables import FIXED_BATCH, TRIED, Goodputs, sizes_of

KNOW = ("learnt", "told")
"""What a rule's parameter of that name may be."""
MOST_GPUS = 64
"""Nobody asks for more."""
_EPS = 1e-8
_STEPS = np.linspace(0.0, 1.0, TRIED)[:, None]


@dataclass(frozen=True, slots=True)
class Expected:
    """Goodput, in a unit of the job's own, on `gpus` GPUs of a pool."""

    pool: int
    gpus: int
    goodput: float


class Knowledge(Protocol):
    def options(self, job: Job) -> tuple[Expected, ...]:
        """What the job could have, as far as it is known; at least one GPU of some pool."""
        ...

    def batch(self, job: Job) -> Batch:
        """What a job trains with on its present placement."""
        ...


class Told:
    """explore=doubling: at most twice as many GPUs as the job has trained on."""

    def __init__(self, cluster: Cluster, *, doubling: bool = False) -> None:
        self.tables = {pool.model: Goodputs(pool) for pool in cluster.pools}
        self.pools, self.doubling = cluster.pools, doubling

    def options(self, job: Job) -> tuple[Expected, ...]:
        most = 2 * job.most_gpus if self.doubling else MOST_GPUS
        held = len(job.nodes)
        found = []
        for at, pool in enumerate(self.pools):
            app, table = app_on(job, pool), self.tables[pool.model]
            sizes = table.sizes(app)
            found += [
                Expected(at, size, table.best(app, size, job.epoch)[0])
                for size in sizes
                if size in (sizes[0], held) or size <= most
            ]
        return tuple(found)

    def batch(self, job: Job) -> Batch:
        return self.tables[job.app.model].best(job.app, len(job.nodes), job.epoch)[1]


class Learnt:
    """user_batch: a rule counts on no larger batch than the user chose, as the artifact of Sia does; jobs train with
    larger ones all the same."""

    def __init__(self, cluster: Cluster, *, user_batch: bool = False) -> None:
        self.pools, self.user_batch = cluster.pools, user_batch
        self._sizes: dict[str, list[tuple[NDArray[np.intp], NDArray[np.intp]]]] = {}
        self._fits: dict[tuple[object, ...], StepModel] = {}
        self._of_job: dict[tuple[str, str], tuple[int, StepModel]] = {}
        self._options: dict[str, tuple[object, tuple[Expected, ...]]] = {}

    def options(self, job: Job) -> tuple[Expected, ...]:
        if _is_fixed(job.app):
            return tuple(Expected(at, 1, 1.0) for at in range(len(self.pools)))
        known = [pool for pool in self.pools if job.seen.get(pool.model)]
        if not known or job.noise is None:
            return tuple(Expected(at, 1, 1.0) for at in range(len(self.pools)))
        key = (job.noise, tuple(len(job.seen[pool.model]) for pool in known))
        cached = self._options.get(job.name)
        if cached is None or cached[0] != key:
            cached = self._options[job.name] = key, self._expected(job, known)
        return cached[1]

    def _expected(self, job: Job, known: Sequence[Nodes]) -> tuple[Expected, ...]:
        most = max(_most_gpus(job, pool) for pool in self.pools)
        found: list[Expected] = []
        for at, (pool, (nodes, gpus)) in enumerate(zip(self.pools, self._sizes_of(job), strict=True)):
            fits = gpus <= most
            seen = pool if pool in known else known[0]
            app, ratio = app_on(job, seen), 1.0
            if seen is not pool:
                ratio = app.seconds_per_sample() / app_on(job, pool).seconds_per_sample()
                nodes = -(-gpus // seen.gpus)
            largest = min(app.most_batch, max(job.batch_size, app.least_batch)) if self.user_batch else app.most_batch
            rates, _, _ = best_expected(
                app,
                self._fit(job, seen.model),
                job.noise or (1.0, 1.0),
                nodes[fits],
                gpus[fits],
                largest,
                app.most_local,
            )
            found += [
                Expected(at, size, ratio * rate)
                for size, rate in zip(gpus[fits].tolist(), rates.tolist(), strict=True)
                if rate > 0
            ]
        return tuple(found)

    def batch(self, job: Job) -> Batch:
        app, gpus, nodes = job.app, len(job.nodes), len(job.placement)
        if _is_fixed(app):
            return split(app, FIXED_BATCH[app.name], gpus)
        most_local = app.most_local_on(job.placement) or app.most_local
        if job.noise is None or not job.seen.get(app.model):
            chosen = split(app, max(app.least_batch, app.least_local * gpus), gpus, most_local=most_local)
        else:
            _, local, passes = best_expected(
                app,
                self._fit(job, app.model),
                job.noise,
                np.array([nodes]),
                np.array([gpus]),
                app.most_batch,
                most_local,
            )
            chosen = Batch(int(local[0]), int(passes[0]))
        at_most = min(app.most_local_at(gpus) or chosen.local, app.most_batch // (gpus * (chosen.accumulated + 1)))
        return Batch(min(chosen.local, at_most), chosen.accumulated)

    def _fit(self, job: Job, model: str) -> StepModel:
        """Jobs that have seen the same share a fit."""
        seen = job.seen[model]
        mine = self._of_job.get((job.name, model))
        if mine is None or mine[0] != len(seen):
            key = (job.app.name, model, *seen.items())
            if key not in self._fits:
                self._fits[key] = fit_steps(seen)
            mine = self._of_job[job.name, model] = len(seen), self._fits[key]
        return mine[1]

    def _sizes_of(self, job: Job) -> list[tuple[NDArray[np.intp], NDArray[np.intp]]]:
        """Nodes and GPUs of the sizes on each pool."""
        found = self._sizes.get(job.app.name)
        if found is None:
            found = []
            for pool in self.pools:
                gpus = np.array(sizes_of(app_on(job, pool), pool), dtype=np.intp)
                found.append((-(-gpus // pool.gpus), gpus))
            self._sizes[job.app.name] = found
        return found


def _is_fixed(app: Application) -> bool:
    return app.name in FIXED_BATCH and not app.model


def app_on(job: Job, pool: Nodes) -> Application:
    return job.apps.get(pool.model, job.app)


def _most_gpus(job: Job, pool: Nodes) -> int:
    app = app_on(job, pool)
    seen = max((gpus for _, gpus, _ in job.seen.get(pool.model, ())), default=0)
    return min(max(2 * seen, 1), MOST_GPUS, app.most_batch // app.least_local)


def best_expected(
    app: Application,
    model: StepModel,
    noise: tuple[float, float],
    nodes: NDArray[np.intp],
    gpus: NDArray[np.intp],
    largest: int,
    most_local: int,
) -> tuple[F8, NDArray[np.intp], NDArray[np.intp]]:
    """Goodput (gain per second; 0: no batch fits), local batch and further passes, by size: the best of 50 batches.

    Args:
        nodes, gpus: of each size, shape (sizes,).
        largest: batch; most_local: samples that fit a GPU.
    """
    least = np.maximum(app.least_batch, app.least_local * gpus).astype(np.float64)
    totals = least * (largest / least) ** _STEPS
    totals[-1] = largest
    share = totals / gpus
    passes = np.ceil(share / most_local - _EPS) - 1
    passes = np.where((gpus == 1) & (share > app.least_batch + _EPS), np.maximum(passes, 1), passes)
    local = np.ceil(share / (passes + 1) - _EPS)
    squared, variance = noise
    scale = gpus * local * (passes + 1) / app.least_batch
    compute = model.compute_s(local)
    seconds = passes * compute + model.step_s(compute, nodes, gpus)
    rates = (variance + squared) / (variance / scale + squared) / seconds
    rates = np.where((local >= app.least_local) & (local <= most_local), rates, 0.0)
    at = rates.argmax(axis=0), np.arange(len(gpus))
    return rates[at], local[at].astype(np.intp), passes[at].astype(np.intp)


def restart_kept(job: Job, now_s: float) -> float:
    """What is left of a job's time if it restarts as often as so far: (age - lost) / (age + restart), section 4.2."""
    age_s, cost_s = now_s - job.submit_s, job.app.restart_s
    return max(0.0, age_s - job.restarts * cost_s) / (age_s + cost_s) if cost_s > 0 else 1.0
