"""When a job will start and end: the simulator, run forward several times with running times drawn from what is known.

Each run takes one value for what is left of each job (left.py) and tells when the job starts and ends in that
case; the range is what eight of ten cases fall into. Within a case the jobs go together in part: what makes one slower
than expected (a busy disk, other data) often does so to others.

For a job of unknown running time two cases are tried: it ends at once, and it never ends. If the start in question is
the same in both, the job does not matter. If not, the two starts are the range, with no most likely value in it.

A long queue is not simulated job by job. If the job does not start among the first, a sample of the queue stands for
all of it, and time in it runs faster by the same factor.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuloom.core.errors import GpuloomError
from gpuloom.core.state import JobState, State
from gpuloom.core.workload import F8
from gpuloom.engine.progress import Progress
from gpuloom.live.forecasts.left import HIGH, LOW, MIDDLE, Left, share_below, standard_normal
from gpuloom.live.forecasts.preview import Gate, Preview, part_of
from gpuloom.live.planning.estimates import LEAST_S, MOST_S, Source
from gpuloom.sim.forward import Forecast, forward

Rows = NDArray[np.intp]

RUNS = 9
"""Number of simulated cases: the first and last of nine stand for the 10th and 90th percentile."""
FEW = 200
"""Longest queue that is simulated job by job."""
FIRST_EVENTS, NEXT = 1000, 60
"""Of a longer queue: events that are simulated to see whether the job starts early; jobs that are then looked at behind
those that started."""
IN_ORDER = 0.75
"""A queue counts as worked off in order if this share of the jobs that start first are at its head."""
PART = 150
"""Size of the sample that stands for a longer queue."""
MOST_EVENTS = 20_000
"""Of one run."""
TOGETHER = 0.3
"""How far the jobs of a case go together: their correlation."""
SAME, SAME_S = 0.01, 1.0
"""Starts that differ by less than this part of the wait, or this much, are one."""
NEVER_S = MOST_S / 10
"""What takes longer is said not to happen."""
ENOUGH = 3
"""With fewer runs (the middle, a good and a bad one) nothing is said of the range."""
FIRST_CPU_S, RANGE_CPU_S = 0.05, 0.12
"""CPU time after which the first events are enough, and no further case is begun."""
MOST_CPU_S, BOUND_CPU_S = 2.0, 0.1
"""CPU time after which a case is given up; one in which jobs never end, so that a policy may go round for ever."""


class Span(NamedTuple):
    """A time that lies between low and high in eight of ten cases, in half of them before the median. None: unknown;
    a low alone: not before."""

    low: float | None = None
    median: float | None = None
    high: float | None = None


NOTHING = Span()
SHARED = tuple([standard_normal(number / (RUNS + 1)) for number in (1, 9, 3, 7, 2, 8, 4, 6)])
"""How badly the cases go, besides the middle one. The outermost first: a range that is cut short is as wide."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """What is expected of a job that waits.

    start, end: seconds of the scheduler's clock. position: 1 is next to start. pace: the position and times are of a
    part of the queue, in which one job stands for so many.
    own: what is left of the job itself. rests_on: what is known of the jobs that run or go before it, by source.
    unknown: of those, jobs of which nothing is known and on which the start depends. late: those that have outlived
    what was known. cause: why nothing can be said; "" if something can. runs: simulations that it took.
    """

    own: Left
    start: Span = NOTHING
    end: Span = NOTHING
    position: int | None = None
    pace: float = 1.0
    rests_on: Mapping[Source, int] = field(default_factory=dict)
    unknown: tuple[int, ...] = ()
    late: tuple[int, ...] = ()
    cause: str = ""
    runs: int = 0


class _Case(NamedTuple):
    """One way in which it may go. order: of starts, by place in the sample; complete: all was simulated."""

    start_s: float
    end_s: float
    order: tuple[int, ...]
    complete: bool


class ForecastFailed(GpuloomError):  # noqa: N818 - what it says
    """The policy failed in a forecast."""


class Queue:
    """The jobs that wait at one moment, as forecasts of any of them need them; forecasts share it."""

    def __init__(self, preview: Preview) -> None:
        self.preview = preview
        self.lefts: dict[int, Left] = {}

    def left(self, row: int) -> Left:
        found = self.lefts.get(row)
        if found is None:
            found = self.lefts[row] = self.preview.left(row)
        return found

    @cached_property
    def waiting(self) -> Rows:
        """Rows that wait."""
        return np.flatnonzero(self.preview.world.state.status_column == JobState.WAITING)

    @cached_property
    def in_order(self) -> bool:
        """Whether jobs start about in the order of the rows: then who comes later hardly matters."""
        order = self.first.order
        last = int(self.waiting[min(2 * len(order), len(self.waiting) - 1)])
        return sum(row <= last for row in order) >= IN_ORDER * len(order)

    @cached_property
    def first(self) -> Forecast:
        """The first events, by the numbers that scheduling reckons with."""
        begun = time.thread_time()
        preview = self.preview
        world, planning = preview.world, preview.planning
        return forward(
            world.state,
            planning.policy,
            world.engine.memory,
            progress=world.engine.progress,
            now_s=preview.now_s,
            interval_s=planning.seat.interval_s,
            wake_at_s=preview.wake_at_s,
            fixed=world.engine.snapshot.fixed,
            memory_stays=True,
            most_events=FIRST_EVENTS,
            gives_up=lambda: time.thread_time() > begun + FIRST_CPU_S,
        )


def outlook(queue: Queue, gate: Gate, job: int) -> Outlook:
    """What is expected of a job (its number).

    Raises:
        ForecastFailed: says what the policy did.
    """
    world = queue.preview.world
    if gate.never or job not in world.row_of:
        own = queue.preview.left(world.row_of[job]) if job in world.row_of else Left(Source.UNKNOWN, LEAST_S, 0.0)
        return Outlook(own, cause=gate.never or "it is not in the queue")
    try:
        return _Forecast(queue, gate, world.row_of[job]).told()
    except GpuloomError as error:
        raise ForecastFailed(str(error)) from error


class _Sample(NamedTuple):
    """Some jobs of the world. rows: in rising order; at: where each is among them. stretch: what is left of each counts
    for so many times as much. expected_s: what the policy takes to be left. The rest: as the engine needs them."""

    rows: list[int]
    at: dict[int, int]
    lefts: list[Left]
    stretch: F8
    expected_s: F8
    overhead_s: F8
    memory: Any
    fixed: frozenset[int]


class _Forecast:
    """One job's forecast.

    one_by_one: rows that are simulated as they are; others: those of which a part stands for all.
    """

    def __init__(self, queue: Queue, gate: Gate, row: int) -> None:
        self.queue, self.gate, self.row = queue, gate, row
        self.preview, self.world = queue.preview, queue.preview.world
        self.policy = self.preview.planning.policy
        self.now_s = self.preview.now_s
        self.done = 0
        self.own = queue.left(row)
        self.rng = np.random.default_rng(self.world.jobs[row])
        self.one_by_one = {*self.world.state.placements, row, *gate.waits_for}
        waiting = queue.waiting
        early = gate.open and len(waiting) > FEW and row in queue.first.order
        self.least_s = queue.first.until_s if gate.open and len(waiting) > FEW and not early else self.now_s
        if early:
            waiting = np.array(sorted(queue.first.order), dtype=np.intp)
        elif len(waiting) > FEW and queue.in_order:
            waiting = waiting[waiting <= max(row, *gate.waits_for, 0)]
        self.others: Rows = np.zeros(0, dtype=np.intp)
        if early or len(waiting) <= FEW:
            self.one_by_one.update(waiting.tolist())
        else:
            self.others = waiting[~np.isin(waiting, list(self.one_by_one))]
        if len(waiting) < len(queue.waiting):
            behind = queue.waiting[queue.waiting > row][: NEXT + len(self.one_by_one)].tolist()
            self.one_by_one.update([other for other in behind if other not in self.one_by_one][:NEXT])
        self.pace = max(len(self.others) / PART, 1.0)
        self.begun_s = time.thread_time()
        self.sample = self._sampled(middle=True)
        self.follows = self.preview.planning.scene.preempts or self.policy.max_jobs_per_gpu > 1
        """Whether its end can only be told by going on with the simulation after its start."""

    @cached_property
    def _blocks(self) -> list[Rows]:
        """The others in groups that are alike and have about as much work, as many as there are in a part."""
        left = self.world.state.remaining_s_column[self.others]
        order = np.lexsort((left, self.others > self.row, self.world.workload.gpus[self.others]))
        return np.array_split(self.others[order], round(len(self.others) / self.pace))

    def _sampled(self, *, middle: bool) -> _Sample:
        """One of each block, for all of it; the middle one, or any."""
        state, scale = self.world.state, dict[int, float]()
        if len(self.others):
            for block in self._blocks:
                left = state.remaining_s_column[block]
                place = len(block) // 2 if middle else int(self.rng.integers(len(block)))
                size = len(block) / self.pace
                scale[int(block[place])] = size * float(left.mean()) / max(float(left[place]), LEAST_S)
        rows = sorted({*self.one_by_one, *scale})
        at = {other: place for place, other in enumerate(rows)}
        index = np.array(rows, dtype=np.intp)
        stretch = np.array([scale.get(other, 1.0) for other in rows])
        stretch[state.status_column[index] == JobState.RUNNING] /= self.pace
        nodes = np.arange(len(state.cluster.nodes))
        engine = self.world.engine
        return _Sample(
            rows,
            at,
            [self.queue.left(other) for other in rows],
            stretch,
            state.remaining_s_column[index] * stretch,
            engine.progress.restart_overhead_s[index],
            self.policy.carried(engine.memory, index, nodes, self.world.workload.take(index), state.cluster),
            frozenset(at[other] for other in engine.snapshot.fixed if other in at),
        )

    def told(self) -> Outlook:
        sample, me = self.sample, self.sample.at[self.row]
        middle = self._case(sample, self._at(MIDDLE))
        if not math.isfinite(middle.start_s) and all(left.known for left in sample.lefts):
            return Outlook(self.own, cause=self._why_not(middle), runs=self.done)
        running = self.world.state.placements
        order = middle.order[: middle.order.index(me)] if me in middle.order else middle.order
        turn = 0 if self.gate.turns is None else self.gate.turns[0]
        position = round(len(order) * self.pace) + 1 + turn if me in middle.order else None
        before = {**dict.fromkeys(running, 1), **{sample.rows[other]: round(self.pace) for other in order}}
        rests_on: Counter[Source] = Counter()
        for other, count in before.items():
            rests_on[self.queue.left(other).source] += count
        late = tuple([self.world.jobs[other] for other in before if self.queue.left(other).late_s > 0.0])
        start, end, unknown = self._spans(middle)
        cause = self._why_not(middle) if start.low is None and start.median is None else ""
        numbers = tuple([self.world.jobs[other] for other in unknown])
        return Outlook(self.own, start, end, position, self.pace, rests_on, numbers, late, cause, self.done)

    def _spans(self, middle: _Case) -> tuple[Span, Span, tuple[int, ...]]:
        """(start, end, rows of which nothing is known and on which the start depends)."""
        sample, me = self.sample, self.sample.at[self.row]
        if any(not left.known for place, left in enumerate(sample.lefts) if place != me or self._own_matters):
            least, most = (self._case(sample, self._bounds(MIDDLE, low=low), BOUND_CPU_S) for low in (True, False))
            apart = most.start_s - least.start_s
            same_s = max(SAME_S, SAME * (most.start_s - self.now_s)) if math.isfinite(most.start_s) else 0.0
            if not apart <= same_s:
                return self._bounded(least, most)
        cases = [middle]
        if self.pace > 1.0 or any(left.spreads for left in sample.lefts):
            for shared in SHARED:
                if self._spent_s() > RANGE_CPU_S:
                    break
                drawn = sample if self.pace == 1.0 else self._sampled(middle=False)
                cases.append(self._case(drawn, self._draw(drawn, shared)))
            if len(cases) < ENOUGH:
                return self._within(Span(None, middle.start_s, None)), NOTHING, ()
        starts, ends = sorted(case.start_s for case in cases), sorted(case.end_s for case in cases)
        middle_of = len(cases) // 2
        start = self._within(Span(starts[0], starts[middle_of], starts[-1]))
        if not self.own.known:
            return start, NOTHING, ()
        if self.follows and self.pace == 1.0:
            return start, self._within(Span(ends[0], ends[middle_of], ends[-1])), ()
        # As if nobody stopped it once it runs.
        cost, low, high = float(sample.overhead_s[me]), self.own.at(LOW), self.own.at(HIGH)
        if self.follows:
            return start, self._within(Span(starts[0] + cost + low, None, None)), ()
        return start, self._within(Span(starts[0] + cost + low, ends[middle_of], starts[-1] + cost + high)), ()

    def _bounded(self, least: _Case, most: _Case) -> tuple[Span, Span, tuple[int, ...]]:
        """The start lies between that if all unknown jobs ended at once, and that if none did before its limit."""
        sample, me = self.sample, self.sample.at[self.row]
        low = self._case(sample, self._bounds(LOW, low=True), BOUND_CPU_S)
        high = self._case(sample, self._bounds(HIGH, low=False), BOUND_CPU_S) if math.isfinite(most.start_s) else most
        start = self._within(Span(min(low.start_s, least.start_s), None, max(high.start_s, most.start_s)))
        end = NOTHING
        if self.own.known:
            cost, closed = float(sample.overhead_s[me]), start.high is not None and not self.follows
            end = Span(
                None if start.low is None else start.low + cost + self.own.at(LOW),
                None,
                start.high + cost + self.own.at(HIGH) if closed and start.high is not None else None,
            )
        # Those that matter are the ones that run, or go before it.
        order = least.order[: least.order.index(me)] if me in least.order else least.order
        early = [*self.world.state.placements, *(sample.rows[other] for other in order)]
        return start, self._within(end), tuple([other for other in early if not self.queue.left(other).known])

    def _within(self, span: Span) -> Span:
        """Without what is too far away to be said."""
        return Span(*[None if at is None or not at - self.now_s < NEVER_S else at for at in span])

    def _spent_s(self) -> float:
        return time.thread_time() - self.begun_s

    # -- cases --------------------------------------------------------------------------------------------------

    def _at(self, quantile: float) -> F8:
        return _array([left.at(quantile) for left in self.sample.lefts]) * self.sample.stretch

    def _bounds(self, quantile: float, *, low: bool) -> F8:
        """Jobs of which nothing is known end at once, or as late as they may."""
        found = [
            left.at(quantile) if left.known else LEAST_S if low else min(max(left.most_s, LEAST_S), MOST_S)
            for left in self.sample.lefts
        ]
        if not self._own_matters:
            found[self.sample.at[self.row]] = self.own.at(quantile)
        return _array(found) * self.sample.stretch

    @property
    def _own_matters(self) -> bool:
        """Whether its start depends on how long it runs itself: it stands for members of its array that go before."""
        return self.gate.turns is not None and self.gate.turns[0] >= len(self.gate.turns[1])

    def _draw(self, sample: _Sample, shared: float) -> F8:
        """What is left of each in a case in which all goes as badly as `shared` says, a standard normal variable."""
        spreads = [place for place, left in enumerate(sample.lefts) if left.spreads]
        found = [left.at(MIDDLE) if not left.spreads else 0.0 for left in sample.lefts]
        together = max(TOGETHER, 1.0 / max(len(spreads), 1))  # one alone: its range is the start's
        noise = self.rng.standard_normal(len(spreads)) * math.sqrt(1.0 - together)
        for place, one in zip(spreads, noise.tolist(), strict=True):
            at = share_below(math.sqrt(together) * shared + one)
            found[place] = sample.lefts[place].at(min(max(at, 0.001), 0.999))
        return _array(found) * sample.stretch

    def _case(self, sample: _Sample, left_s: F8, most_cpu_s: float = MOST_CPU_S) -> _Case:
        """What happens if so much is left of each, while the policy expects what it expects."""
        self.done += 1
        until_s = time.thread_time() + most_cpu_s

        def gives_up() -> bool:
            return time.thread_time() > until_s

        state = part_of(self.world, sample.rows, sample.expected_s, pace=self.pace, now_s=self.now_s)
        extra_s, me = left_s - sample.expected_s, sample.at[self.row]
        future: dict[int, float] = {}
        gate = self.gate
        if gate.waits_for:
            others = [sample.at[other] for other in gate.waits_for]
            ends = self._run(sample, state, extra_s, {}, others, "end", gives_up)
            at = max(float(ends.end_s[other]) for other in others)
            if not math.isfinite(at):
                return _Case(math.inf, math.inf, ends.order, ends.complete)
            future[me] = max(at, self.now_s)
        elif gate.comes_s is not None:
            future[me] = self.now_s + max(gate.comes_s - self.now_s, 0.0) / self.pace
        elif gate.turns is not None:
            ahead, runs = gate.turns
            places = [sample.at[other] for other in runs]
            ends_s = sorted(max(state.predicted_end_s(one) + float(extra_s[one]), self.now_s) for one in places)
            rounds, place = divmod(ahead, len(ends_s))
            future[me] = ends_s[place] + rounds * float(left_s[me]) / self.pace
        to_end = self.follows and self.own.known and self.pace == 1.0
        found = self._run(sample, state, extra_s, future, [me], "end" if to_end else "start", gives_up)
        start_s = max(self._real(float(found.start_s[me])), self.least_s)
        end_s = float(found.end_s[me]) if to_end else start_s + float(sample.overhead_s[me] + left_s[me])
        return _Case(start_s, end_s, found.order, found.complete)

    def _real(self, at_s: float) -> float:
        return self.now_s + self.pace * (at_s - self.now_s)

    def _run(
        self,
        sample: _Sample,
        state: State,
        extra_s: F8,
        future: Mapping[int, float],
        jobs: list[int],
        until: Literal["start", "end"],
        gives_up: Callable[[], bool],
    ) -> Forecast:
        planning = self.preview.planning
        return forward(
            state,
            self.policy,
            sample.memory,
            progress=Progress(state.workload, state.cluster, sample.overhead_s),
            now_s=self.now_s,
            interval_s=planning.seat.interval_s,
            wake_at_s=self.preview.wake_at_s,
            future=future,
            extra_s=extra_s,
            fixed=sample.fixed,
            memory_stays=True,
            jobs=jobs,
            until=until,
            most_events=MOST_EVENTS,
            gives_up=gives_up,
        )

    def _why_not(self, case: _Case) -> str:
        if self.gate.waits_for and case.complete:
            return "the jobs it waits for don't end in the forecast"
        if not case.complete:
            return "the forecast would take too long"
        return "it does not start while the present jobs run"


def _array(values: list[float]) -> F8:
    return np.array(values, dtype=np.float64)
