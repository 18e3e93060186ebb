"""What is kept of each attempt that is under way on some node: by the records, or as it was asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gpuloom.core.job import Attempt, Phase
from gpuloom.core.spec import Spec
from gpuloom.executors.gang import Gang
from gpuloom.executors.node import NodePort, RunSpec
from gpuloom.executors.port import RunExit, RunStatus

Wish = Callable[[NodePort], None]
"""Tells a node what was asked of a run."""


@dataclass(frozen=True, slots=True)
class Expected:
    """An attempt of the records: under way, as far as they know.

    runs, nodes: of its members, in the order of ranks. boots: the starts of their machines on which they began (None:
    not known). began: it is known to have run. stopping: it was told to end. frozen: it stands still, and its GPUs may
    be others' now. apart: as `Gang` has it.
    """

    runs: tuple[str, ...]
    nodes: tuple[str, ...]
    grace_s: float
    began: bool = False
    stopping: bool = False
    frozen: bool = False
    boots: tuple[str | None, ...] = ()
    apart: bool = False


def expected_of(attempt: Attempt, spec: Spec) -> Expected:
    """What is to be expected of an attempt that has not ended."""
    return Expected(
        attempt.runs,
        attempt.nodes,
        spec.grace,
        began=attempt.running_s is not None,
        stopping=attempt.stop_reason is not None,
        frozen=attempt.phase is Phase.FROZEN,
        boots=tuple(member.boot_id for member in attempt.parts),
        apart=spec.adopted and spec.elastic is None,
    )


@dataclass(slots=True)
class Single:
    """A run that is its attempt's only member.

    spec: while it was asked for and nothing was heard of it. last: what was heard. over: its node was lost, and its
    end told; what comes later is of no interest. wishes: what was asked of it since, by what it is about.
    """

    node: str
    spec: RunSpec | None = None
    last: RunStatus | None = None
    over: bool = False
    wishes: dict[str, Wish] | None = None


@dataclass(slots=True)
class Team:
    """An attempt with several members.

    places: (run, node) of each, in the order of ranks. specs: what they are started with, once it was asked for.
    expected: as the records had it. unmet: ranks on nodes that have not been met yet; until there are none, what is
    heard of the others is kept in `found`, and what was lost meanwhile in `lost`. limit: (time limit,) once changed.
    """

    gang: Gang
    places: Sequence[tuple[str, str]]
    expected: Expected | None = None
    specs: Sequence[RunSpec] = ()
    unmet: set[int] = field(default_factory=set)
    found: dict[int, RunStatus] = field(default_factory=dict)
    lost: dict[int, RunExit] = field(default_factory=dict)
    restarted: set[int] = field(default_factory=set)
    limit: tuple[float | None] | None = None

    @property
    def whole(self) -> bool:
        """All that its nodes know of it is known."""
        return not self.unmet
