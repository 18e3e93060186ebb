"""Stage times of a program that can't be looked into, from samples of what it used.

The method of Muri's patent application: each resource's use is normalised to its peak; at each moment the resource that
is used most is what the job is at; uses below a threshold count as none. What a resource was used most for, divided by
the iterations, is its stage time.

A file has a row per sample: `time_s` and one column or more of `storage`, `cpu`, `gpu`, `network`, each in any unit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gpuloom.core.errors import EmptyTableError, InputError
from gpuloom.core.profile import STAGES_4
from gpuloom.core.workload import F8
from gpuloom.files.load import load
from gpuloom.files.source import ReadOptions
from gpuloom.files.table import Column, raise_or_collect, read_table

THRESHOLD = 0.1
"""Share of its peak below which a resource counts as not used."""
FEWEST_PER_ITERATION = 4.0
"""Samples of an iteration: with fewer, stages fall between them."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Samples: `time_s` rises; `used` has a column for each of STAGES_4, zeros where the file has none."""

    source: str
    time_s: F8
    used: F8
    told: tuple[str, ...]
    """Resources that the file has a column for."""


@dataclass(frozen=True, slots=True)
class UsageStages:
    """What the samples say of one iteration.

    Attributes:
        stage_s: seconds per iteration, by STAGES_4.
        idle_s: seconds per iteration in which nothing was used above the threshold.
        iteration_s: seconds per iteration, all in all.
        iterations: iterations that the samples cover.
        peaks: what each resource's use was divided by; of those that were used.
        samples: number of samples.
    """

    stage_s: tuple[float, ...]
    idle_s: float
    iteration_s: float
    iterations: float
    peaks: Mapping[str, float]
    samples: int

    @property
    def doubt(self) -> str | None:
        """Why these times may be wrong, or None."""
        if self.samples < FEWEST_PER_ITERATION * self.iterations:
            return (
                f"{self.samples / self.iterations:.2g} samples per iteration: stages fall between them; "
                f"sample at least {FEWEST_PER_ITERATION:g} times an iteration, or trust only the long ones"
            )
        return None


def read_usage(path: Path | str) -> Usage:
    """The samples of a CSV file ('-': standard input).

    Raises:
        InputError: no such file, no column of a resource, fewer than two samples, or times that don't rise.
        TraceError: a row that can't be; names line, column and value.
    """
    if str(path) != "-" and not Path(path).is_file():
        raise InputError(f"usage samples {path}: no such file")
    source = load(path)
    columns = [Column("time_s"), *(Column(name, minimum=0, empty=0.0, optional=True) for name in STAGES_4)]
    try:
        table = read_table(source, ReadOptions(), columns)
    except EmptyTableError as error:
        raise InputError(f"usage samples {source.name}: holds no samples") from error
    raise_or_collect(table.bad, table.options)
    told = tuple(name for name in STAGES_4 if name in table)
    if not told:
        raise InputError(f"usage samples {source.name}: needs a column of a resource: {', '.join(STAGES_4)}")
    time_s = table["time_s"]
    if len(time_s) < 2:
        raise InputError(f"usage samples {source.name}: holds one sample, needs two or more")
    early = np.flatnonzero(np.diff(time_s) <= 0)
    if len(early):
        row = int(early[0]) + 1
        raise InputError(
            f"usage samples {source.name}:{table.line[row]}: time_s {time_s[row]:g} comes after {time_s[row - 1]:g}, "
            "times must rise"
        )
    used = np.column_stack([table[name] if name in told else np.zeros(len(time_s)) for name in STAGES_4])
    return Usage(source.name, time_s, used, told)


def stages_of(
    usage: Usage,
    *,
    iterations: float | None = None,
    iteration_s: float | None = None,
    peaks: Mapping[str, float] | None = None,
    threshold: float = THRESHOLD,
) -> UsageStages:
    """Stage times of one iteration.

    Args:
        iterations, iteration_s: one of them: how many iterations the samples cover, or seconds of one.
        peaks: the most that a resource can give, in the unit of its column; without one its largest sample counts.
        threshold: share of the peak below which a resource counts as not used, 0 to 1.

    Raises:
        InputError: both or none of the two are given, a peak of a resource without a column, or nothing was used.
    """
    if (iterations is None) == (iteration_s is None):
        raise InputError("say how many iterations the samples cover, or how long one takes: one of the two")
    peaks = peaks or {}
    for name, most in peaks.items():
        if name not in usage.told:
            raise InputError(
                f"peak of {name}: usage samples {usage.source} have no such column; there are {', '.join(usage.told)}"
            )
        if not (np.isfinite(most) and most > 0):
            raise InputError(f"peak of {name} is {most:g}, must be above 0")
    steps = np.diff(usage.time_s)
    lasts_s = np.append(steps, np.median(steps))  # the last sample holds as long as samples do
    total_s = float(lasts_s.cumsum()[-1])
    count = float(iterations) if iterations is not None else total_s / float(iteration_s or 0.0)
    most_used = usage.used.max(axis=0)
    limits = np.array([peaks.get(name, float(most)) for name, most in zip(STAGES_4, most_used, strict=True)])
    share = np.divide(usage.used, limits, out=np.zeros_like(usage.used), where=limits > 0)
    share[share < threshold] = 0.0
    at = np.where(share.max(axis=1) > 0, share.argmax(axis=1), len(STAGES_4))
    seconds = np.bincount(at, weights=lasts_s, minlength=len(STAGES_4) + 1) / count
    if not seconds[:-1].any():
        raise InputError(f"usage samples {usage.source}: nothing was used above {threshold:g} of its peak")
    return UsageStages(
        stage_s=tuple(seconds[:-1].tolist()),
        idle_s=float(seconds[-1]),
        iteration_s=total_s / count,
        iterations=count,
        peaks={name: float(limit) for name, limit in zip(STAGES_4, limits, strict=True) if limit > 0},
        samples=len(usage.time_s),
    )
