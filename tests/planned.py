"""The live scheduler's planning on a virtual clock: real book, estimates and worlds; no store, processes or threads."""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpuloom.core.book import Book
from gpuloom.core.events import Event
from gpuloom.core.job import ENDED, Phase, gpus_in
from gpuloom.core.profile import Profiles
from gpuloom.core.share_class import is_pair
from gpuloom.live.planning.claims import ON_DISK, Step
from gpuloom.live.planning.estimates import Estimates
from gpuloom.live.planning.model_speeds import ModelSpeeds
from gpuloom.live.planning.planning import Planning
from gpuloom.live.records.fleet import model_of, slots_of
from gpuloom.live.records.work import WorkDone

MOST_TURNS = 20_000


@dataclass(frozen=True, slots=True)
class Task:
    """A job: when it is submitted, what it needs, how long it is said to take, and how long it takes; of several GPU
    models on the slowest. On others it is as fast as `speeds` in `more` says.

    late_s: its processes are there so much later than its GPUs are its own. slow_s: it stops so late when told to.
    """

    at_s: float
    gpus: int
    said_s: float
    takes_s: float
    late_s: float = 0.0
    slow_s: float = 0.0
    more: Mapping[str, Any] | None = None
    """Further fields of its spec."""


class Planned:
    """Runs tasks to their ends; jobs are numbered from 1 in the order of the tasks. Jobs that share GPUs are as fast as
    the policy's model of sharing says; a guest takes from nobody's speed.

    Attributes:
        first_s, end_s: by job. starts: (time, job, slots) of every start. builds: how often a world was built.
        together: how many starts were beside a job that ran.
        noticed_s: that long after an end the scheduler knows of it.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        policy: str,
        *,
        slots: int,
        interval_s: float = 0.0,
        overhead_s: float = 0.0,
        noticed_s: float = 0.0,
        models: Mapping[str, int] | None = None,
        profiles: Profiles | None = None,
        ended_gpu_s: Sequence[float] = (),
    ) -> None:
        """slots: of one machine. models: in place of them a machine for each GPU model, with so many GPUs. ended_gpu_s:
        GPU-seconds of jobs that ended before."""
        self.tasks, self.noticed_s = tasks, noticed_s
        self.book, self.work = Book(), WorkDone()
        self._events = 0
        for model, count in (models or {"cpu": slots}).items():
            name = "host" if models is None else f"host-{model}"
            gpus = [{"index": index, "uuid": f"{model}-{index}", "model": model} for index in range(count)]
            self._tell("node.changed", None, 0.0, node={"name": name, "gpus": gpus, "kind": "cpu"})
        estimates = Estimates(lambda user, name, limit: ())
        self.planning = Planning(
            self.book,
            self.work,
            estimates,
            ModelSpeeds(lambda user, name, limit: (), estimates),
            lambda: ended_gpu_s,
            policy=policy,
            interval_s=interval_s,
            overhead_s=overhead_s,
            beside=False,
        )
        if profiles is not None:
            self.planning.worlds.profiles = profiles
        self.first_s: dict[int, float] = {}
        self.end_s: dict[int, float] = {}
        self.starts: list[tuple[float, int, frozenset[tuple[str, int]]]] = []
        self.builds = self.together = 0
        self._coming: list[tuple[float, int, str, int]] = []
        self._count = 0
        self._ends: dict[int, int] = {}
        self._left_s: dict[int, float] = {}
        """Seconds that a run would take alone, from its start."""
        self._rate: dict[int, float] = {}
        for number, task in enumerate(tasks, 1):
            self._at(task.at_s, "submit", number)

    def run(self) -> Planned:
        """Until all jobs have ended."""
        planning, now = self.planning, 0.0
        for _ in range(MOST_TURNS):
            if len(self.end_s) == len(self.tasks):
                return self
            due = planning.due_s()
            now = max(now, min(due, self._coming[0][0] if self._coming else math.inf))
            assert now < math.inf, f"nothing will happen any more, and jobs wait: {self.waiting()}"
            self.work.at(now)
            while self._coming and self._coming[0][0] <= now:
                _, count, what, job = heapq.heappop(self._coming)
                getattr(self, f"_{what}")(job, now, count)
            if planning.due_s() <= now:
                self._pass(now)
            self._start(now)
        raise AssertionError("time does not pass")

    def waiting(self) -> list[int]:
        return [number for number, job in self.book.jobs.items() if job.phase is Phase.QUEUED]

    # -- what happens --------------------------------------------------------------------------------------------------

    def _submit(self, number: int, now: float, count: int) -> None:
        task = self.tasks[number - 1]
        said = {"command": ["train"], "name": f"job{number}", "gpus": task.gpus, "estimate": task.said_s}
        spec = {**said, **(task.more or {})}
        data = {"user": "ann", "spec": spec, "first": number, "count": 1, "held": False, "after": []}
        self._tell("jobs.submitted", number, now, **data, estimates=[[task.said_s, "given"]])
        self.planning.stale()

    def _run(self, number: int, now: float, count: int) -> None:
        self._tell("attempt.running", number, now)

    def _end(self, number: int, now: float, count: int) -> None:
        if self._ends.get(number) != count:
            return  # it was stopped before
        at = now - self.noticed_s
        self._ended(number, at, "finished", "finished", self.work.of(number, at))
        self.end_s[number] = at

    def _stopped(self, number: int, now: float, count: int) -> None:
        given = self.planning.claims.grants.get(number)
        had = self.book.attempts[number].allocation
        resized = given is not None and gpus_in(given) != gpus_in(had)
        done_s = max(self.work.of(number, now) - self.tasks[number - 1].slow_s, 0)
        self._ended(number, now, "resized" if resized else "preempted", "queued", done_s)

    def _ended(self, number: int, at: float, reason: str, after: str, work_s: float) -> None:
        attempt, before = self.book.attempts[number], self.book.jobs[number].work_s
        kept = {"work_s": before + work_s, "next": after, "ended_s": at}
        self._tell("attempt.ended", number, at, reason=reason, exit_code=0, **kept)
        job = self.book.jobs[number]
        self.work.end(number)
        if job.phase in ENDED:
            self.planning.claims.take_back(number)
            self.planning.job_left(job, attempt.allocation)
        elif self.planning.world is None:
            self.planning.stale()

    # -- what the scheduler does ---------------------------------------------------------------------------------------

    def _pass(self, now: float) -> None:
        self.builds += self.planning.world is None
        outcome = self.planning.run(now)
        # Passes take no time on this clock.
        self.planning.times.last_pass_s, self.planning.times.quiet_until_s = 0.0, -math.inf
        for number in outcome.stop:
            attempt = self.book.attempts.get(number)  # of one that was given GPUs and has not begun there is none
            if attempt is not None and attempt.stop_reason is None:
                self._ends.pop(number, None)
                self._tell("attempt.stopping", number, now, reason="preempted", deadline_s=now + 30.0)
                slow_s = self.tasks[number - 1].slow_s
                if slow_s:
                    self._at(now + slow_s, "stopped", number)
                else:
                    self._stopped(number, now, 0)

        for number in list(self._ends):
            rate = self.work.rate_of(number)
            if rate is not None and rate != self._rate[number]:
                self._rate[number] = rate
                self._ends_at(number, now, self._left_s[number] - self.work.of(number, now))

    def _ends_at(self, number: int, now: float, left_s: float) -> None:
        rate = self._rate[number]
        if rate > 0.0:
            self._ends[number] = self._at(now + left_s / rate + self.noticed_s, "end", number)
        else:
            self._ends[number] = 0

    def _start(self, now: float) -> None:
        held: dict[tuple[str, int], list[int]] = {}
        for attempt in self.book.attempts.values():
            for slot in slots_of(attempt.allocation):
                held.setdefault(slot, []).append(attempt.job)
        for number, allocation in list(self.planning.claims.grants.items()):
            slots = slots_of(allocation)
            job, task = self.book.jobs[number], self.tasks[number - 1]
            there = {other for slot in slots for other in held.get(slot, ())}
            if job.phase is not Phase.QUEUED or not self._may_join(number, there):
                continue
            where = [[name, list(gpus)] for name, gpus in allocation]
            model = model_of(self.book.nodes, allocation)
            speed = (task.more or {}).get("speeds", {}).get(model, 1.0)
            speed *= self.planning.scene.pace(job).at_size(gpus_in(allocation))
            self._tell("attempt.starting", number, now, attempt=job.attempts + 1, allocation=where, gpu_model=model)
            self._at(now + task.late_s, "run", number)
            for slot in slots:
                held.setdefault(slot, []).append(number)
            self.work.begin(number, now)
            self._rate[number] = self.planning.claims.take_rate(number)
            self.work.rate(number, self._rate[number])
            self._left_s[number] = task.late_s + (task.takes_s - self.planning.scene.done_s(job)) / speed
            self._ends_at(number, now, self._left_s[number])
            self.first_s.setdefault(number, now)
            self.together += bool(there)
            self.starts.append((now, number, frozenset(slots)))

    def _may_join(self, number: int, there: set[int]) -> bool:
        """Whether the GPUs given to a job are free, or have those on them that stay and may be beside it."""
        if any(self.book.attempts[other].stop_reason is not None for other in there):
            return False
        if len(there) < self.planning.policy.max_jobs_per_gpu and not self.planning.policy.pairs:
            return True
        return not there or is_pair([self.book.jobs[each].spec.sharing_class for each in (number, *there)])

    def _at(self, at_s: float, what: str, job: int) -> int:
        self._count += 1
        heapq.heappush(self._coming, (at_s, self._count, what, job))
        return self._count

    def _tell(self, kind: str, job: int | None, at_s: float, **data: Any) -> None:
        self._events += 1
        self.book.commit(self.book.stage([Event(self._events, at_s, kind, job, data)]))
        if job is not None and kind in ON_DISK:
            self.planning.claims.on(Step(kind), job, now_s=at_s)
