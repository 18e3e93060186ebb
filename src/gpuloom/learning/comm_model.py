"""How long a data-parallel training step takes, by GPUs and nodes: compute and exposed communication.

A step on n GPUs on w nodes with b samples a GPU:
    compute C = fixed + b · per_sample. A batch larger than a GPU holds is split into m equal micro-batches, of which
        only the last synchronises: (m - 1) · C go before.
    communication S of a ring all-reduce (Patarasuk and Yuan, 2009), 2(n - 1)/n · bytes / bandwidth + 2(n - 1) · hop,
        at the bandwidth inside a node for w = 1, at that of the network else. S = 0 for one GPU.
    overlap: (C^γ + S^γ)^(1/γ); γ = 1: one after the other, large γ: the longer one hides the other
        (Qiao et al., "Pollux", OSDI '21, equation 11).
Of bytes and bandwidth only the quotient shows in step times; it is what a fit gives (`intra_s`, `inter_s`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gpuloom.core import logs, products
from gpuloom.core.errors import InputError
from gpuloom.core.workload import F8

OVERLAPS = (1.0, 1.3, 1.8, 2.5, 4.0)
"""Values of γ from which a fit begins."""
_MOST_OVERLAP = 10.0
_SMALLEST_S = 1e-9
_ROUNDS = 60


@dataclass(frozen=True, slots=True)
class CommModel:
    """See the module.

    fixed_s, per_sample_s: compute of a micro-batch, seconds.
    intra_s, inter_s: gradient bytes over the bandwidth inside a node and between nodes, seconds.
    hop_s: latency of a hop of the ring, seconds.
    overlap: γ, at least 1.
    most_samples: samples a GPU holds at once (infinity: any number).
    """

    fixed_s: float
    per_sample_s: float
    intra_s: float
    inter_s: float
    hop_s: float = 0.0
    overlap: float = 1.0
    most_samples: float = np.inf

    def __post_init__(self) -> None:
        times = (self.fixed_s, self.per_sample_s, self.intra_s, self.inter_s, self.hop_s)
        if not all(np.isfinite(value) and value >= 0 for value in times) or self.fixed_s + self.per_sample_s <= 0:
            raise InputError(f"communication model: times must be finite, at least 0, and compute above 0: {self}")
        if not self.overlap >= 1.0 or not self.most_samples > 0:
            raise InputError(f"communication model: overlap must be at least 1 and most_samples above 0: {self}")

    def communication_s(self, gpus: F8, nodes: F8) -> F8:
        """Seconds of an all-reduce that nothing hides."""
        gpus, nodes = np.asarray(gpus, dtype=np.float64), np.asarray(nodes, dtype=np.float64)
        transfer = np.where(nodes > 1, self.inter_s, self.intra_s)
        found: F8 = 2.0 * (gpus - 1.0) / gpus * transfer + 2.0 * (gpus - 1.0) * self.hop_s
        return found

    def step_s(self, gpus: F8, nodes: F8, samples: F8) -> F8:
        """Seconds per step on `gpus` GPUs on `nodes` nodes with a global batch of `samples`; arrays broadcast."""
        gpus = np.asarray(gpus, dtype=np.float64)
        local = np.asarray(samples, dtype=np.float64) / gpus
        micro = np.maximum(np.ceil(local / self.most_samples - 1e-9), 1.0)
        compute = self.fixed_s + local / micro * self.per_sample_s
        found: F8 = (micro - 1.0) * compute + overlapped(compute, self.communication_s(gpus, nodes), self.overlap)
        return found

    def ratio(self, samples: float) -> float:
        """Compute over communication of an iteration: seconds of `samples` on one GPU by seconds that the gradients
        take over the slowest link. Infinite for a job that does not communicate."""
        micro = max(float(np.ceil(samples / self.most_samples - 1e-9)), 1.0)
        compute = micro * self.fixed_s + samples * self.per_sample_s
        link = max(self.intra_s, self.inter_s)
        return compute / link if link > _SMALLEST_S else float("inf")


def overlapped(compute_s: F8, communication_s: F8, overlap: float) -> F8:
    """(C^γ + S^γ)^(1/γ), computed so that large γ does not overflow."""
    longest = np.maximum(compute_s, communication_s)
    share = np.minimum(compute_s, communication_s) / longest
    found: F8 = longest * logs.power(1.0 + logs.power(share, overlap), 1.0 / overlap)
    return found


@dataclass(frozen=True, slots=True)
class Fit:
    """A fitted model. error: root mean square of log(fitted / measured); worst: the largest of them."""

    model: CommModel
    error: float
    worst: float


def fit(
    gpus: F8, nodes: F8, samples: F8, step_s: F8, *, most_samples: float = np.inf, starts: tuple[float, ...] = OVERLAPS
) -> Fit:
    """The model that comes closest to measured step times, in the mean square of log(fitted / measured).

    Levenberg-Marquardt on the logarithms of the parameters (they stay above 0, and are of one scale, so that the normal
    equations are well conditioned); what the points say nothing of (the network, if all lie on one node) is taken from
    the other link.

    Args:
        gpus, nodes, samples, step_s: one entry per measurement; `samples` is the global batch.
        starts: values of γ to begin with; the best end counts.

    Raises:
        InputError: no measurements, or some are no numbers above 0.
    """
    gpus, nodes, samples, step_s = (np.asarray(x, dtype=np.float64) for x in (gpus, nodes, samples, step_s))
    points = np.stack([gpus, nodes, samples, step_s])
    if points.shape[1] == 0 or not (np.isfinite(points) & (points > 0)).all():
        raise InputError("communication model: a fit needs measurements, all of them numbers above 0")
    known = np.array([True, True, bool(((nodes == 1) & (gpus > 1)).any()), bool((nodes > 1).any()), True])
    target = logs.log(step_s)

    def model_of(x: F8) -> CommModel:
        fixed, per_sample, intra, inter, hop = logs.exp(x[:5]).tolist()
        if not known[2]:
            intra = inter if known[3] else 0.0
        if not known[3]:
            inter = intra
        if not (known[2] or known[3]):
            hop = 0.0
        overlap = 1.0 + (_MOST_OVERLAP - 1.0) / (1.0 + logs.exp(-x[5]))
        return CommModel(fixed, per_sample, intra, inter, hop, float(overlap), most_samples)

    def residual(x: F8) -> F8:
        found: F8 = logs.log(model_of(x).step_s(gpus, nodes, samples)) - target
        return found

    best = _start(gpus, nodes, samples, step_s, starts[0])
    best_cost = np.inf
    for overlap in starts:
        x = _descend(residual, _start(gpus, nodes, samples, step_s, overlap))
        cost = float((residual(x) ** 2).mean())
        if cost < best_cost * (1 - 1e-6):
            best, best_cost = x, cost
    left = np.abs(residual(best))
    return Fit(model_of(best), float(np.sqrt((left**2).mean())), float(left.max()))


def _start(gpus: F8, nodes: F8, samples: F8, step_s: F8, overlap: float) -> F8:
    """Logarithms of parameters to begin with: compute from the points that communicate least, the rest from what is
    above it."""
    local = samples / gpus
    alone = gpus == gpus.min()
    rate = float(np.median(step_s[alone] / local[alone]))
    compute = np.minimum(local * rate, step_s)
    above = np.maximum(step_s - compute * 0.5, 0.05 * step_s)
    scale = np.where(gpus > 1, 2.0 * (gpus - 1.0) / gpus, np.nan)
    inside, between = (nodes == 1) & (gpus > 1), nodes > 1
    intra = float(np.median((above / scale)[inside])) if inside.any() else float(step_s.min())
    inter = float(np.median((above / scale)[between])) if between.any() else float(step_s.min())
    at = float(step_s.min())
    gamma = logs.log((overlap - 1.0 + 1e-2) / (_MOST_OVERLAP - overlap))
    return np.append(logs.log([0.2 * at, 0.8 * rate, intra, inter, 1e-3 * at]), gamma)


def _descend(residual: Callable[[F8], F8], x: F8) -> F8:
    """Levenberg-Marquardt with a numerical Jacobian."""
    damping = 1e-2
    here = residual(x)
    cost = products.dot(here, here)
    lowest, highest = x - 16.0, x + 16.0
    for _ in range(_ROUNDS):
        step = 1e-5
        columns = []
        for index in range(len(x)):
            moved = x.copy()
            moved[index] += step
            columns.append((residual(moved) - here) / step)
        jacobian = np.stack(columns, axis=1)
        normal, gradient = products.product(jacobian.T, jacobian), products.times(jacobian.T, here)
        for _ in range(8):
            # The damping also bounds directions of which the points say nothing.
            move = products.solved(normal + damping * (np.diag(np.diag(normal)) + 1e-6 * np.eye(len(x))), -gradient)
            tried = np.clip(x + np.clip(move, -2.0, 2.0), lowest, highest)
            there = residual(tried)
            if products.dot(there, there) < cost:
                break
            damping *= 4.0
        else:
            return x
        gained = cost - products.dot(there, there)
        x, here, cost = tried, there, cost - gained
        damping = max(damping / 9.0, 1e-12)
        if gained < 1e-10 * cost:
            return x
    return x
