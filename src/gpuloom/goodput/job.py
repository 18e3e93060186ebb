"""A job that trains in epochs: its batch size, and how far it gets in some seconds.

Progress is counted in iterations at the application's smallest batch size m₀. An iteration at batch size m brings
r = (σ² + μ²) / (σ² · m₀ / m + μ²) of these (Pollux, OSDI '21, section 3). It takes the step time of its placement and
local batch, plus that of `accumulated` further passes that don't synchronise. Goodput = gain / time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from gpuloom.core.sums import sum_ints
from gpuloom.goodput.applications import Application, Placement

_EPS = 1e-8


@dataclass(frozen=True, slots=True)
class Batch:
    """How a batch is put together: samples per pass and GPU, and passes before the one that synchronises."""

    local: int
    accumulated: int

    def size(self, gpus: int) -> int:
        return gpus * self.local * (self.accumulated + 1)


def split(
    app: Application,
    batch_size: float,
    gpus: int,
    *,
    accumulate_alone: bool | None = None,
    most_local: int | None = None,
) -> Batch:
    """A batch of about `batch_size` on so many GPUs, in as few passes as the local batch allows.

    Args:
        accumulate_alone: make at least two passes on one GPU, as else the gradient's noise can't be measured
            (default: if the batch is larger than the application's smallest).
        most_local: samples that fit a GPU (default: the application's largest local batch).
    """
    share = math.ceil(batch_size / gpus - _EPS)
    accumulated = math.ceil(share / (most_local or app.most_local) - _EPS) - 1
    if gpus == 1 and (batch_size > app.least_batch if accumulate_alone is None else accumulate_alone):
        accumulated = max(1, accumulated)
    local = math.ceil(share / (accumulated + 1) - _EPS)
    return Batch(min(local, app.most_batch // (gpus * (accumulated + 1))), accumulated)


def iteration_s(app: Application, placement: Placement, batch: Batch) -> float:
    """Seconds of one iteration, as measured."""
    step, sync = app.step_s(placement, batch.local)
    return step + (step - sync) * batch.accumulated


def goodput(app: Application, placement: Placement, batch: Batch, epoch: int) -> float:
    """Progress per second in an epoch."""
    return app.gain(batch.size(sum_ints(placement)), epoch) / iteration_s(app, placement, batch) / app.slowdown


Chooser = Callable[["Job"], Batch]
"""The batch of a job on its present placement; chosen again when it gets other GPUs, and after each step and epoch."""
Seen = dict[tuple[int, int, int], tuple[float, float]]
"""Seconds of a step and of its synchronisation, by (nodes, GPUs, local batch)."""


@dataclass(eq=False, slots=True)
class Job:
    """`gpus` and `batch_size`: as submitted. `nodes`: the node of each GPU that it holds, one node after the other.

    app: its application on the GPU model it runs on, or ran on last; apps: on each model.
    """

    name: str
    app: Application
    submit_s: float
    gpus: int
    batch_size: int
    nodes: tuple[int, ...] = ()
    placement: Placement = ()
    batch: Batch | None = None
    epoch: int = 0
    progress: float = 0.0
    wait_s: float = 0
    """Seconds of the present rescaling left."""
    end_s: int | None = None
    starts: int = 0
    most_gpus: int = 0
    """The most GPUs it has trained on."""
    gpu_s: float = 0
    """GPU-seconds held."""
    apps: Mapping[str, Application] = field(default_factory=dict)
    seen: dict[str, Seen] = field(default_factory=dict)
    """What it has measured of its own steps, by GPU model."""
    noise: tuple[float, float] | None = None
    """Squared norm and variance of the gradient, as last measured."""
    _rate: float = field(default=0.0)
    _rated: tuple[Application, Placement, Batch, int] | None = None

    @property
    def restarts(self) -> int:
        return max(0, self.starts - 1)

    def hold(self, nodes: tuple[int, ...], choose: Chooser, model: str = "") -> None:
        """Give the job these GPUs, of that model (none: stop it). It pays for the change."""
        self.nodes = nodes
        self.placement = tuple(nodes.count(node) for node in dict.fromkeys(nodes))
        if nodes:
            self.app = self.apps.get(model, self.app)
            self.batch = choose(self)
            self.wait_s = self.app.restart_s
            self.starts += 1
        else:
            self.batch = None

    def train(self, now_s: int, seconds: int, choose: Chooser) -> None:
        """Train from `now_s` for some seconds. An epoch ends on a whole second, maybe the same as the one before."""
        if self.batch is None or self.end_s is not None:
            return
        waited = min(self.wait_s, seconds)
        self.wait_s -= waited
        self.gpu_s += waited * len(self.nodes)
        left: float = seconds - waited
        while left > 0 and self.end_s is None:
            rate = self._goodput(self.batch)
            self.most_gpus = max(self.most_gpus, len(self.nodes))
            target = self.app.progress_after[self.epoch + 1]
            if self.progress + rate * left < target:
                self.progress += rate * left
                spent = left
                self.batch = choose(self)
            else:
                spent = round((target - self.progress) / rate)
                self.epoch += 1
                self.progress = target
                if self.epoch == self.app.epochs:
                    self.end_s = round(now_s + seconds - left + spent)
                else:
                    self.batch = choose(self)
            self.gpu_s += spent * len(self.nodes)
            left -= spent

    def _goodput(self, batch: Batch) -> float:
        """Progress per second now."""
        key = self.app, self.placement, batch, self.epoch
        if key != self._rated:
            self._rated, self._rate = key, goodput(*key)
            self._measure(batch)
        return self._rate

    def _measure(self, batch: Batch) -> None:
        """What a job sees of itself while it trains."""
        gpus = len(self.nodes)
        self.noise = self.app.noise(batch.size(gpus), self.epoch)
        seen = self.seen.setdefault(self.app.model, {})
        key = len(self.placement), gpus, batch.local
        if key not in seen:
            seen[key] = self.app.step_s(self.placement, batch.local)
