"""What is expected of a best-effort job beside a service on one GPU, from profiles of their kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuloom.core.pairs import NO_KIND
from gpuloom.core.share_class import BEST_EFFORT, HIGH

I4 = NDArray[np.int32]


class Beside(NamedTuple):
    """A pair. speed: of the best-effort job, relative to alone. p99: of the service's requests, over theirs alone."""

    speed: float
    p99: float


@dataclass(frozen=True, slots=True, eq=False)
class KernelPairs:
    """What is expected of the jobs of a workload beside each other, as far as it is known.

    Attributes:
        of_job: kind of each job, `NO_KIND` where it has no kernel profile.
        kinds: profile and load as they were written.
        known: by the kinds of a service and of a best-effort job. pending: pairs that are being computed, and known in
            a moment.
    """

    of_job: I4
    kinds: tuple[str, ...]
    known: Mapping[tuple[int, int], Beside]
    pending: frozenset[tuple[int, int]] = frozenset()

    def __len__(self) -> int:
        return len(self.of_job)

    def take(self, rows: NDArray[np.intp]) -> KernelPairs:
        """The same for these jobs."""
        return KernelPairs(self.of_job[rows], self.kinds, self.known, self.pending)

    def beside(self, service: int, best_effort: int) -> Beside | None:
        """Of two jobs, by their rows; None: not known."""
        return self.known.get((int(self.of_job[service]), int(self.of_job[best_effort])))

    def is_pending(self, service: int, best_effort: int) -> bool:
        """Of two jobs, by their rows."""
        return (int(self.of_job[service]), int(self.of_job[best_effort])) in self.pending


def kinds_of(profiles: Sequence[str], classes: Sequence[str]) -> tuple[I4, tuple[str, ...], list[tuple[int, int]]]:
    """Of jobs by their profiles ('' for none) and classes: the kind of each, the kinds, and which pairs can occur."""
    number: dict[str, int] = {}
    roles: dict[str, dict[int, None]] = {HIGH: {}, BEST_EFFORT: {}}
    of_job = np.full(len(profiles), NO_KIND, dtype=np.int32)
    for row, (profile, klass) in enumerate(zip(profiles, classes, strict=True)):
        if profile and klass in roles:
            of_job[row] = kind = number.setdefault(profile, len(number))
            roles[klass][kind] = None
    return of_job, tuple(number), [(one, two) for one in roles[HIGH] for two in roles[BEST_EFFORT]]
