"""How fast one job is on each GPU model and at each of its sizes, and how much work that makes of the time that it ran
there.

Speeds are relative to the cluster's slowest GPU model, by its facts, and to the size that the job asks for. *Work* is
counted in seconds on that model at that size. Where all GPUs are of one model and jobs of one size every speed is 1,
and work is time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from gpuloom.core.sums import sum_floats
from gpuloom.core.workload import Speeds


class SpeedSource(StrEnum):
    """Whence a speed is known."""

    MEASURED = "measured"
    """Iterations per second that its own runs reported."""
    RUNS = "earlier_runs"
    """Running times of its earlier runs."""
    PROFILES = "profiles"
    """Its profiles on these GPU models."""
    GIVEN = "given"
    """Its user says so."""
    FACTS = "facts"
    """Estimated from the facts of GPU models."""
    USUAL = "usual"
    """Of a size: jobs usually gain so much (Amdahl's law, the median of published measurements)."""
    UNKNOWN = "unknown"
    """Nothing is known: taken to be as fast as the slowest."""


ESTIMATED = frozenset({SpeedSource.FACTS, SpeedSource.USUAL, SpeedSource.UNKNOWN})


class ModelSpeed(NamedTuple):
    """Of a GPU model, or of a size. factor: work per second. it_per_s: iterations per second, where they were measured,
    in `runs` runs."""

    factor: float
    source: SpeedSource
    it_per_s: float | None = None
    runs: int = 0


class RanOn(NamedTuple):
    """Where a part of a job's work was done; as text 'V100', or 'V100*4' on so many GPUs. gpu_model: '' if it is not
    known. gpus: of an elastic job how many; None: of any other."""

    gpu_model: str
    gpus: int | None = None

    def __str__(self) -> str:
        return self.gpu_model if self.gpus is None else f"{self.gpu_model}*{self.gpus}"


def ran_on(text: str) -> RanOn:
    """What such a text says. Names of models hold no '*' (`live/records/fleet.py`)."""
    model, star, gpus = text.partition("*")
    return RanOn(model, int(gpus)) if star and gpus.isdigit() else RanOn(text)


@dataclass(frozen=True, slots=True)
class Pace:
    """Speeds of a job by GPU model, and by its number of GPUs. Of a model or a number that is not named nothing is
    known; it counts as 1."""

    speeds: Mapping[str, ModelSpeed]
    sizes: Mapping[int, ModelSpeed] = field(default_factory=dict)

    def of(self, gpu_model: str, gpus: int | None = None) -> float:
        """Work per second on this GPU model, on so many GPUs (None: as many as it asks for)."""
        speed = self.speeds.get(gpu_model)
        return (1.0 if speed is None else speed.factor) * self.at_size(gpus)

    def at_size(self, gpus: int | None) -> float:
        """Speed on so many GPUs, relative to that on as many as it asks for."""
        size = None if gpus is None else self.sizes.get(gpus)
        return 1.0 if size is None else size.factor

    def factors(self) -> tuple[tuple[str, float] | tuple[int, float], ...]:
        """All that `work_s` goes by: two paces with the same factors make the same of all work."""
        return (
            *[(model, speed.factor) for model, speed in self.speeds.items()],
            *[(gpus, speed.factor) for gpus, speed in self.sizes.items()],
        )

    def slowest(self, wanted: Sequence[str]) -> float:
        """Work per second on the slowest model that a job accepts: its user's estimate is for that."""
        names = {name.strip().lower() for name in wanted}
        found = [speed.factor for model, speed in self.speeds.items() if not names or model.lower() in names]
        return min(found, default=1.0)

    def work_s(self, whole_s: float, on: Mapping[str, float]) -> float:
        """Work of so many seconds on GPUs, of which these are known to have been on certain models and sizes (the texts
        of `RanOn`)."""
        if not on or not (self.speeds or self.sizes):
            return whole_s
        known = sum_floats(on.values())
        return max(whole_s - known, 0.0) + sum_floats(
            seconds * self.of(*ran_on(where)) for where, seconds in on.items()
        )


ALIKE = Pace({})
"""Where there is one GPU model, and one size."""


def speeds_of(paces: Sequence[Pace]) -> Speeds | None:
    """The speeds of these jobs as columns; None where there is one GPU model only."""
    kinds = {id(pace): pace for pace in paces}
    models = tuple(dict.fromkeys(model for pace in kinds.values() for model in pace.speeds))
    if not models:
        return None
    factors = {key: [pace.of(model) for model in models] for key, pace in kinds.items()}
    guesses = {
        key: [model not in pace.speeds or pace.speeds[model].source in ESTIMATED for model in models]
        for key, pace in kinds.items()
    }
    return Speeds(
        models,
        np.array([factors[id(pace)] for pace in paces], dtype=np.float64),
        np.array([guesses[id(pace)] for pace in paces], dtype=np.bool_),
    )
