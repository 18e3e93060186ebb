"""Which programs bear being suspended: tried once while little is lost, and remembered.

With `on_preempt: auto` a job is suspended where its program was seen to bear that, on this GPU model and with this
driver; else it has its notice and ends. Of a program of which nothing is known the runner moves the GPU memory out and
right back, some time after its start (`RunRequest.rehearse_s`). One that failed is not tried again. What was seen is in
the events `attempt.rehearsed`, so that a scheduler that begins knows it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gpuloom.core.events import Event
from gpuloom.core.job import Attempt, Job, Phase
from gpuloom.core.script_key import script_key
from gpuloom.core.spec import OnPreempt, Spec
from gpuloom.executors.port import Rehearsal
from gpuloom.live.records.ledger import Draft

REHEARSED = "attempt.rehearsed"
NO_SUSPENDING = "its node can't suspend; gpuloom share doctor there says why"
AFTER_S = 60.0
"""A program is rehearsed so long after its start: it has its memory by then, and little to lose."""
LOOKED_THROUGH = 10_000
"""So many of the last rehearsals are looked through by a scheduler that begins."""

Program = tuple[str, str, str]
"""Script with the arguments that matter, GPU model, driver."""


class Rehearsals:
    """What is known of programs.

    Args:
        driver_of: the version of NVIDIA's driver on a node that suspends; '' where it does not, or is not there.
    """

    def __init__(self, driver_of: Callable[[str], str] = lambda node: "", events: Iterable[Event] = ()) -> None:
        self._driver_of = driver_of
        self._seen: dict[Program, Rehearsal] = {}
        self._told: set[tuple[str, bool]] = set()
        """Runs, and what was seen of them, that are written down."""
        for event in events:
            self.learn(event.data)

    def way(self, job: Job, attempt: Attempt | None) -> OnPreempt:
        """What happens to a job that makes way: never AUTO."""
        on_preempt = job.spec.on_preempt
        if on_preempt is not OnPreempt.AUTO:
            return on_preempt
        if job.phase is Phase.FROZEN:
            return OnPreempt.SUSPEND
        return OnPreempt.CHECKPOINT if attempt is None or self.why_not(job, attempt) else OnPreempt.SUSPEND

    def why_not(self, job: Job, attempt: Attempt) -> str:
        """Why a job with on_preempt auto is not suspended where it runs; '' if it is."""
        if reason := unfit(job.spec, len(attempt.allocation)):
            return reason
        program = self._program(job, attempt)
        if program is None:
            return NO_SUSPENDING
        seen = self._seen.get(program)
        if seen is None:
            return "its program was not rehearsed yet"
        return "" if seen.ok else f"its program does not bear it: {seen.why}"

    def mib(self, job: Job, attempt: Attempt) -> float | None:
        """GPU memory that moves when its program is suspended, as was seen last; None: it was not."""
        program = self._program(job, attempt)
        seen = None if program is None else self._seen.get(program)
        return seen.mib if seen is not None and seen.ok else None

    def round_s(self, job: Job, attempt: Attempt) -> float | None:
        """How long moving its GPU memory out and back takes, as was seen last; None: it was not."""
        program = self._program(job, attempt)
        seen = None if program is None else self._seen.get(program)
        return seen.out_s + seen.in_s if seen is not None and seen.ok else None

    def able(self, attempt: Attempt) -> bool:
        """Whether the node of a run can suspend programs."""
        return bool(self._driver_of(attempt.nodes[0]))

    def due(self, job: Job, attempt: Attempt) -> bool:
        """Whether its program is to be rehearsed in this attempt."""
        if job.spec.on_preempt is not OnPreempt.AUTO or unfit(job.spec, len(attempt.allocation)):
            return False
        program = self._program(job, attempt)
        return program is not None and program not in self._seen

    def told(self, job: Job, attempt: Attempt, seen: Rehearsal) -> list[Draft]:
        """What was seen of a run, as an event; none if that is written down."""
        if (attempt.run, seen.ok) in self._told:
            return []
        program = self._program(job, attempt)
        if program is None:  # its node has gone, and with it what is said of its driver
            return []
        script, model, driver = program
        data: dict[str, Any] = {
            "run": attempt.run,
            "ok": seen.ok,
            "mib": seen.mib,
            "out_s": seen.out_s,
            "in_s": seen.in_s,
            "why": seen.why,
            "earnest": seen.earnest,
            "program": script,
            "gpu_model": model,
            "driver": driver,
        }
        return [(REHEARSED, job.id, data)]

    def learn(self, data: Mapping[str, Any]) -> None:
        """What an event says that is written down."""
        program = data["program"], data["gpu_model"], data["driver"]
        seen = Rehearsal(*(data[name] for name in ("ok", "mib", "out_s", "in_s", "why", "earnest")))
        self._told.add((data["run"], seen.ok))
        before = self._seen.get(program)
        if before is None or before.ok:  # once lost is enough
            self._seen[program] = seen

    def _program(self, job: Job, attempt: Attempt) -> Program | None:
        driver = self._driver_of(attempt.nodes[0])
        return (script_key(job.spec.command), attempt.gpu_model, driver) if driver else None


def unfit(spec: Spec, nodes: int) -> str:
    """What of a job keeps it from being suspended wherever it runs; '' if nothing does. nodes: that it has."""
    if spec.container:
        return "it runs in a container"
    if spec.elastic is not None:
        return "it is elastic"
    if spec.sharing_class:
        return "it may share its GPU"
    return f"it runs on {nodes} nodes" if nodes > 1 else ""
