"""The best goodput of an application on a number of packed GPUs in an epoch, and the batch that reaches it.

As in Pollux' agent (OSDI '21, section 4.1), 50 batch sizes are tried, evenly spaced in logarithms, from the smallest
that the GPUs can share to the largest that was measured. Step times and gradient noise are the measured ones; the agent
only estimates them.
"""

from __future__ import annotations

import numpy as np

from gpuloom.core.workload import F8
from gpuloom.goodput.applications import MOST_NODES, Application
from gpuloom.goodput.base import Nodes
from gpuloom.goodput.job import Batch, iteration_s, split

TRIED = 50
FIXED_BATCH = {"ncf": 32768}
"""Not adapted by Pollux' artifact either; such jobs stay on one GPU."""


def sizes_of(app: Application, nodes: Nodes) -> tuple[int, ...]:
    """1, 2, 4 GPUs of a node and whole nodes, as far as there are, and as far as was measured."""
    inside = [gpus for gpus in (1, 2, 4) if gpus < nodes.gpus]
    whole = [n * nodes.gpus for n in range(1, min(nodes.count, MOST_NODES) + 1)]
    if app.model:
        # Between measured numbers of nodes it interpolates; beyond them there is nothing.
        most = max(len(placement) for placement in app.placements)
        most = max(most, int(app.scalability[:, 0].max()))
        whole = [gpus for gpus in whole if gpus // nodes.gpus <= most]
        return tuple(gpus for gpus in (*inside, *whole) if app.least_local * gpus <= app.most_batch)
    spread = {(int(n), int(gpus)) for n, gpus in app.scalability[:, :2].tolist()}
    return tuple(
        gpus
        for gpus in (*inside, *whole)
        if nodes.packed(gpus) in app.placements or (len(nodes.packed(gpus)), gpus) in spread
    )


class Goodputs:
    """Of equal nodes; everything is computed once."""

    def __init__(self, nodes: Nodes) -> None:
        self.nodes = nodes
        self._batches: dict[tuple[str, int], tuple[list[Batch], list[float]]] = {}
        self._best: dict[tuple[str, int, int], tuple[float, Batch]] = {}
        self._left_s: dict[str, tuple[F8, F8]] = {}
        self._sizes: dict[str, tuple[int, ...]] = {}

    def sizes(self, app: Application) -> tuple[int, ...]:
        """Numbers of GPUs that an application can use: 1, 2, 4 on a node, and whole nodes, as far as measured."""
        if app.name not in self._sizes:
            self._sizes[app.name] = tuple(gpus for gpus in sizes_of(app, self.nodes) if self._choices(app, gpus)[0])
        return self._sizes[app.name]

    def best(self, app: Application, gpus: int, epoch: int) -> tuple[float, Batch]:
        """Progress per second, and the batch, for one of the `sizes`."""
        key = app.name, gpus, epoch
        found = self._best.get(key)
        if found is None:
            batches, seconds = self._choices(app, gpus)
            rates = [
                app.gain(batch.size(gpus), epoch) / s / app.slowdown for batch, s in zip(batches, seconds, strict=True)
            ]
            at = max(range(len(rates)), key=rates.__getitem__)
            found = self._best[key] = rates[at], batches[at]
        return found

    def left_s(self, app: Application, epoch: int, progress: float) -> float:
        """Seconds to the end on one GPU, or on as few as the application can use."""
        if app.name not in self._left_s:
            least = self.sizes(app)[0]
            steps = np.diff(app.progress_after)
            spent = np.array([step / self.best(app, least, at)[0] for at, step in enumerate(steps.tolist())])
            self._left_s[app.name] = spent, np.append(np.cumsum(spent[::-1])[::-1], 0.0)
        spent, left = self._left_s[app.name]
        begun, end = app.progress_after[epoch : epoch + 2]
        return float(left[epoch] - (progress - begun) / (end - begun) * spent[epoch])

    def _choices(self, app: Application, gpus: int) -> tuple[list[Batch], list[float]]:
        """The batches to try, and the seconds of an iteration with each."""
        key = app.name, gpus
        if key not in self._batches:
            least = max(app.least_batch, app.least_local * gpus)
            totals: list[float]
            if app.name in FIXED_BATCH and not app.model:
                totals = [FIXED_BATCH[app.name]] if gpus == 1 else []
            else:
                totals = np.geomspace(least, app.most_batch, TRIED).tolist() if least <= app.most_batch else []
            placement = self.nodes.packed(gpus)
            most = app.most_local_on(placement) if app.model else app.most_local
            batches: dict[Batch, float] = {}
            for total in totals if most is not None else []:
                batch = split(app, total, gpus, accumulate_alone=total > app.least_batch + 1e-8, most_local=most)
                fits = app.least_local <= batch.local <= (most or 0)
                if fits and app.least_batch <= batch.size(gpus) <= app.most_batch:
                    batches[batch] = iteration_s(app, placement, batch)
            self._batches[key] = list(batches), list(batches.values())
        return self._batches[key]
