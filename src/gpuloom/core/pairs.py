"""Measured speeds of two jobs that share GPUs, by GPU model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gpuloom.core.sums import sum_floats

F8 = NDArray[np.float64]
I4 = NDArray[np.int32]

Kind = tuple[str, int]
"""What a measurement is of: a job's model (as traces give it) on so many GPUs."""
NO_KIND = -1
"""Of a job of whose like nothing was measured beside others."""


@dataclass(frozen=True, slots=True)
class PairTable:
    """Measurements as they were read, whatever jobs there are.

    Attributes:
        source: where they are from, for messages.
        share: by GPU model (upper case) and two kinds of equally many GPUs: the share of its speed alone on that GPU
            model that each keeps beside the other. (0, 0): they do not fit on it together.
    """

    source: str
    share: Mapping[tuple[str, Kind, Kind], tuple[float, float]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.share)

    def over(self, other: PairTable) -> PairTable:
        """Both tables; where both speak of a pair, this one is right."""
        both = dict(other.share)
        for (model, one, two), shares in self.share.items():
            both.pop((model, two, one), None)
            both[model, one, two] = shares
        if not other or other.source == self.source:
            return PairTable(self.source, both)
        return PairTable(f"{self.source}, {other.source}" if self else other.source, both)


@dataclass(frozen=True, slots=True)
class Apart:
    """Groups that were measured and did not pay: GPU model, kinds of the members, and what each keeps of its speed."""

    groups: tuple[tuple[str, tuple[Kind, ...], tuple[float, ...]], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.groups)

    def among(self, kinds: Sequence[Kind]) -> PairSpeeds | None:
        """As measured speeds of jobs of these kinds; None: it speaks of none of them."""
        there = set(kinds)
        groups = [group for group in self.groups if there.issuperset(group[1])]
        if not groups:
            return None
        known = sorted({kind for _, members, _ in groups for kind in members})
        number = {kind: index for index, kind in enumerate(known)}
        models = tuple(sorted({model.upper() for model, _, _ in groups}))
        share = np.full((len(models), len(known), len(known)), np.nan)
        apart = set[tuple[str, tuple[int, ...]]]()
        for model, members, shares in groups:
            numbers = [number[kind] for kind in members]
            apart.add((model.upper(), tuple(sorted(numbers))))
            if len(numbers) > 2:
                continue
            at, (one, two) = models.index(model.upper()), numbers
            share[at, one, two], share[at, two, one] = shares if one != two else [sum_floats(shares) / 2] * 2
        of_job = np.array([number.get(kind, NO_KIND) for kind in kinds], dtype=np.int32)
        return PairSpeeds(of_job, models, tuple(known), share, "groups that did not pay", frozenset(apart))


@dataclass(frozen=True, slots=True, eq=False)
class PairSpeeds:
    """How fast jobs of a workload run beside each other, as far as it was measured.

    Attributes:
        of_job: kind of each job, `NO_KIND` where nothing was measured.
        models: GPU models of the measurements, upper case.
        kinds: what the kinds are.
        share: shape (models, kinds, kinds): the share of its speed alone on that GPU model that a job of the row's
            kind keeps beside one of the column's. NaN: not measured. 0 for both: they do not fit together.
        source: where they are from, for messages.
        apart: groups that are not to be formed, nor any that they are part of: GPU model and kinds in rising order.
    """

    of_job: I4
    models: tuple[str, ...]
    kinds: tuple[Kind, ...]
    share: F8
    source: str = ""
    apart: frozenset[tuple[str, tuple[int, ...]]] = frozenset()

    def __len__(self) -> int:
        return len(self.of_job)

    def take(self, rows: NDArray[np.intp]) -> PairSpeeds:
        """The same for these jobs."""
        return PairSpeeds(self.of_job[rows], self.models, self.kinds, self.share, self.source, self.apart)

    def on(self, gpu_model: str) -> F8 | None:
        """`share` on one GPU model, shape (kinds, kinds); None where nothing was measured on it."""
        name = gpu_model.upper()
        return self.share[self.models.index(name)] if name in self.models else None

    @property
    def fits(self) -> NDArray[np.bool_]:
        """Of each kind whether it fits beside any of them, on any GPU model."""
        return np.asarray((np.nan_to_num(self.share) > 0).any(axis=(0, 2)))

    def may_share(self) -> NDArray[np.bool_]:
        """Of each job whether it fits beside any other of the kinds, on any GPU model."""
        able: NDArray[np.bool_] = np.append(self.fits, False)[self.of_job]
        return able
