"""What is known of a job's runs where a trace was taken: on which GPUs, when, and with whom it shared them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple


class Run(NamedTuple):
    """A span in which a job held the same GPUs. Seconds on the trace's clock.

    ended_by: why it ended (`EndReason`, or 'frozen'). parts: the GPUs of each node, by the node's name. stood_s: of one
    that begins with a resize, for how long the job stood still for it; lost_steps: steps that it did again. None: not
    known, or it begins with none.
    """

    start_s: float
    end_s: float
    ended_by: str
    parts: tuple[tuple[str, tuple[int, ...]], ...]
    stood_s: float | None = None
    lost_steps: float | None = None

    @property
    def gpus(self) -> int:
        """How many it held."""
        return len([gpu for _, gpus in self.parts for gpu in gpus])

    def moved(self, by_s: float) -> Run:
        """The same on a clock whose time 0 is so much later."""
        return self._replace(start_s=self.start_s - by_s, end_s=self.end_s - by_s)


class Together(NamedTuple):
    """A span in which a job shared GPUs with the same others. Seconds on the trace's clock.

    members: ids of all of them. ordered: they are in the order in which their stages followed each other.
    efficiency: γ as it was planned, 0 to 1; None: not known.
    """

    since_s: float
    until_s: float
    members: tuple[str, ...]
    ordered: bool
    efficiency: float | None

    def moved(self, by_s: float) -> Together:
        """The same on a clock whose time 0 is so much later."""
        return self._replace(since_s=self.since_s - by_s, until_s=self.until_s - by_s)


@dataclass(frozen=True, slots=True)
class Runs:
    """Per job its runs, in order, and its times with others. nodes: names in the order of the trace's cluster; (): they
    are as a short form numbers them."""

    runs: tuple[tuple[Run, ...], ...]
    together: tuple[tuple[Together, ...], ...]
    nodes: tuple[str, ...] = ()

    def take(self, rows: Sequence[int]) -> Runs:
        """The same for these jobs."""
        return replace(
            self, runs=tuple(self.runs[row] for row in rows), together=tuple(self.together[row] for row in rows)
        )

    def stood_s(self) -> list[float]:
        """For how long jobs stood still for resizes, as far as that was measured."""
        return [run.stood_s for each in self.runs for run in each if run.stood_s is not None]

    def groups(self) -> list[Together]:
        """Every group once, by when it began."""
        return sorted({one for each in self.together for one in each}, key=lambda one: one[:3])
