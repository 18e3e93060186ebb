"""The sizes of an elastic job: how many replicas it may have, and what one of them is."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

MOST_REPLICAS = 1024
"""Of one job."""
_RANGE = re.compile(r"\s*([0-9]{1,9})\s*-\s*([0-9]{1,9})\s*")


class Replicas(NamedTuple):
    """least, most: replicas (N1 and N2). gpus: of one replica."""

    least: int
    most: int
    gpus: int = 1

    @property
    def sizes(self) -> tuple[int, ...]:
        """GPUs that the job may have in all, fewest first."""
        return tuple(range(self.least * self.gpus, self.most * self.gpus + 1, self.gpus))

    def of(self, gpus: int) -> int:
        """Replicas on so many GPUs."""
        return gpus // self.gpus

    def __str__(self) -> str:
        return f"{self.least}-{self.most}"


def replicas_of(text: str, gpus: int = 1) -> Replicas:
    """The sizes that '1-8' says, with so many GPUs for a replica.

    Raises:
        ValueError: what is wrong, and what would be right.
    """
    found = _RANGE.fullmatch(text)
    if found is None:
        raise ValueError("must be the fewest and the most replicas, such as 1-8")
    least, most = int(found[1]), int(found[2])
    if least < 1 or most > MOST_REPLICAS:
        raise ValueError(f"must be 1 to {MOST_REPLICAS} replicas")
    if most < least:
        raise ValueError(f"the most ({most}) are fewer than the fewest ({least}): write {most}-{least}")
    return Replicas(least, most, gpus)


class CostFrom(StrEnum):
    """Between what the time was measured that a resize cost."""

    STEPS = "steps"
    """From the last step that the job reported before to the first one after."""
    PROCESSES = "processes"
    """From the notice to the start of the new processes: the job reports no steps."""


class ResizeWhy(StrEnum):
    """Why an attempt of an elastic job has another size than the one before it."""

    FREE_GPUS = "free_gpus"
    """It grew on GPUs that nobody had."""
    FROM_OTHERS = "from_others"
    """It grew on GPUs that other jobs gave up."""
    MADE_ROOM = "made_room"
    """It shrank, and other jobs got its GPUs."""
    POLICY = "policy"
    """It shrank because its policy says so (the pool's thresholds); nobody got its GPUs at once."""
    NODE = "node"
    """It lost a node or a GPU, and goes on with what is left."""
    REPLICA = "replica"
    """A replica failed by itself, and it goes on with the rest."""
    RESTARTED = "restarted"
    """It was stopped or failed, and started again at another size."""


_WORDS = {
    ResizeWhy.FREE_GPUS: "it grew on free GPUs",
    ResizeWhy.FROM_OTHERS: "it grew on GPUs that {jobs} gave up",
    ResizeWhy.MADE_ROOM: "it made room for {jobs}",
    ResizeWhy.POLICY: "the policy took GPUs from it",
    ResizeWhy.NODE: "it lost a node or a GPU",
    ResizeWhy.REPLICA: "a replica failed, and it went on with the rest",
    ResizeWhy.RESTARTED: "it started again after it had been stopped",
}


def resize_words(why: str, jobs: Sequence[int]) -> str:
    """Why a job has another size than before, in few words. jobs: that it is about."""
    names = f"{'job' if len(jobs) == 1 else 'jobs'} {', '.join(map(str, jobs))}" if jobs else "other jobs"
    return _WORDS[ResizeWhy(why)].format(jobs=names)
