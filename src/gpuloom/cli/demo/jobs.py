"""The jobs of the demo, and the lines that report their events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuloom.cli.demo.home import last_report
from gpuloom.core.words import noun, plural

if TYPE_CHECKING:
    from gpuloom.live.views.job_answers import EventView

STEP_S = 0.05


@dataclass(frozen=True, slots=True)
class Planned:
    """A job of the demo: submitted so many seconds after the first; slots; seconds of work alone."""

    name: str
    at_s: float
    gpus: int
    work_s: float

    @property
    def steps(self) -> int:
        return max(round(self.work_s / STEP_S), 1)


PLAN = (
    Planned("alpha", 0.0, 4, 14.0),
    Planned("bravo", 1.5, 1, 3.0),
    Planned("charlie", 2.5, 2, 8.0),
    Planned("delta", 4.0, 1, 10.0),
    Planned("echo", 5.5, 2, 4.0),
    Planned("foxtrot", 7.5, 1, 6.0),
    Planned("golf", 11.5, 3, 5.0),
    Planned("hotel", 15.0, 1, 2.0),
)
"""Jobs that take turns: alpha makes way for small ones, delta twice, and everybody's end comes closer to alone."""


@dataclass(slots=True)
class Story:
    """The state of the demo, built from events.

    Attributes:
        began_s: when the first job was submitted. spans: (slot, from, to or None, job) of every attempt.
    """

    home: Path
    names: dict[int, str] = field(default_factory=dict)
    began_s: float | None = None
    last: int = 0
    spans: list[list[Any]] = field(default_factory=list)
    state: dict[int, str] = field(default_factory=dict)
    _attempt: dict[int, int] = field(default_factory=dict)

    def tell(self, events: Sequence[EventView]) -> list[str]:
        """Take in events in their order; a line of text for each that matters."""
        lines = []
        for event in events:
            self.last = event["id"]
            told = self._one(event)
            if told and event["job"] is not None and self.began_s is not None:
                (what, text), name = told, self.names[event["job"]]
                lines.append(f"{event['at_s'] - self.began_s:6.1f} s  {what:<10} {name:<9} {text}".rstrip())
        return lines

    def _one(self, event: EventView) -> tuple[str, str] | None:
        kind, job, data, at = event["type"], event["job"], event["data"], event["at_s"]
        if job is None:
            return None
        if kind == "jobs.submitted":
            self.began_s = at if self.began_s is None else self.began_s
            self.names[job] = data["spec"]["name"]
            self.state[job] = "queued"
            gpus = data["spec"]["gpus"]
            return "submitted", f"{plural(gpus, 'slot')}, {data['spec']['estimate']:g} s of work"
        if kind == "attempt.starting":
            slots = [gpu for _, gpus in data["allocation"] for gpu in gpus]
            self.spans += [[slot, at, None, job] for slot in slots]
            number = self._attempt[job] = data["attempt"]
            self.state[job] = "running"
            where = f"on {noun(len(slots), 'slot')} {','.join(map(str, slots))}"
            if number == 1:
                return "starts", where
            step, steps = self.progress(job, number - 1)
            return "resumes", f"{where}, continues from step {step} of {steps}"
        if kind == "attempt.stopping":
            self.state[job] = "stopping"
            return "notice", "is asked to save and free its GPUs"
        if kind == "attempt.ended":
            for span in self.spans:
                if span[3] == job and span[2] is None:
                    span[2] = data.get("ended_s") or at
            self.state[job] = data["next"]
            if data["next"] == "queued":
                how = f"exit code {data['exit_code']}" if data["signal"] is None else f"signal {data['signal']}"
                return data["reason"], f"{'has saved' if data['saved'] else 'without saving'} ({how}), waits again"
            return data["next"], data["message"]
        return None

    def progress(self, job: int, attempt: int | None = None) -> tuple[int, int]:
        """(steps done, steps in all) as the job reported last; of an earlier attempt if this one has said nothing."""
        number = attempt or self._attempt.get(job, 0)
        while number >= 1:
            found = last_report(self.home, job, number)
            step, steps = found.get("step"), found.get("steps")
            if isinstance(step, int) and isinstance(steps, int):
                return step, steps
            number -= 1
        return 0, 0

    def chart(self, slots: int, now_s: float, width: int) -> list[str]:
        """A line per slot, time to the right: who had it, by the first letter of its name; '.' for nobody."""
        if self.began_s is None or now_s <= self.began_s:
            return [""] * slots
        cell = max((now_s - self.began_s) / width, 0.5)
        count = min(int((now_s - self.began_s) / cell) + 1, width)
        lines = [["."] * count for _ in range(slots)]
        for slot, start, end, job in self.spans:
            first = int((start - self.began_s) / cell)
            # The end of one and the start of the next share a cell: it is the next one's.
            last = max(int(((now_s if end is None else end) - self.began_s) / cell), first + 1)
            for at in range(first, min(last, count)):
                lines[slot][at] = self.names[job][0].upper()
        return ["".join(line) for line in lines]
