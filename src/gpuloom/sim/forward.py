"""When will jobs that wait start, and those that run end? The simulator, run on from a live engine's state.

The prediction assumes that durations are as estimated, that no job is submitted (except `future`), cancelled or
changed, that no node is lost, and that the same policy goes on with its memory. The live objects are not changed: state
and memory are copied, and the policy and the model of sharing are separate objects.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from gpuloom.core.columns import floats
from gpuloom.core.commands import Command, Start
from gpuloom.core.errors import InputError
from gpuloom.core.state import JobState, State
from gpuloom.core.workload import F8
from gpuloom.engine.progress import Progress
from gpuloom.policies.base import Policy
from gpuloom.sim.compat import compat_mode
from gpuloom.sim.executor import SimExecutor
from gpuloom.sim.simulator import DEFAULT_INTERVAL_S, Begin, Settings, Simulation

MOST_EVENTS = 1_000_000


@dataclass(frozen=True, slots=True, eq=False)
class Forecast:
    """What is expected of each job (rows of the state).

    start_s: when it (next) starts; for a job that ran already, when it did. end_s: when it ends. Infinity: not within
        the forecast, or never.
    order: jobs in the order in which they start.
    until_s: the time up to which the simulation went. complete: everything asked for is known, or will never happen.
    events: steps that it took.
    """

    start_s: F8
    end_s: F8
    order: tuple[int, ...]
    until_s: float
    complete: bool
    events: int


class _Watch(SimExecutor):
    """Records first starts, and removes jobs from those still asked for.

    extra_s: by job, the work that it has beyond what the state says; below 0: less.
    """

    def __init__(self, state: State, wanted: set[int], event: Literal["start", "end"], extra_s: F8 | None) -> None:
        super().__init__(state, None)
        self._extra_s = None if extra_s is None else floats(np.ascontiguousarray(extra_s, dtype=np.float64))
        self.started: dict[int, float] = {}
        self._wanted, self._event = wanted, event

    def apply(self, commands: Sequence[Command], now_s: float) -> None:
        super().apply(commands, now_s)
        for command in commands:
            if isinstance(command, Start) and command.job not in self.started:
                self.started[command.job] = now_s
                if self._event == "start":
                    self._wanted.discard(command.job)

    def end_s(self, job: int) -> float:
        end_s = super().end_s(job)
        if self._extra_s is None or not math.isfinite(end_s):
            return end_s
        rate = self.state.rate[job]
        return max(end_s + (self._extra_s[job] / rate if rate > 0.0 else 0.0), self.state.work_from_s[job])

    def pop_ended(self, now_s: float) -> list[int]:
        ended = super().pop_ended(now_s)
        self._wanted.difference_update(ended)
        return ended


def forward(
    state: State,
    policy: Policy,
    memory: Any,
    *,
    progress: Progress,
    now_s: float,
    interval_s: float = DEFAULT_INTERVAL_S,
    wake_at_s: float | None = None,
    future: Mapping[int, float] | None = None,
    extra_s: F8 | None = None,
    fixed: frozenset[int] = frozenset(),
    memory_stays: bool = False,
    jobs: Collection[int] | None = None,
    until: Literal["start", "end"] = "start",
    horizon_s: float = math.inf,
    most_events: int = MOST_EVENTS,
    gives_up: Callable[[], bool] = lambda: False,
) -> Forecast:
    """Run the simulator forward from a live state.

    Args:
        state, policy, memory, progress: the live engine's; they are not changed. Update the work left of running jobs
            before: a job whose predicted end has passed is assumed to end now.
        interval_s: the scheduling interval, as in `Settings`.
        wake_at_s: when the policy will be asked again if nothing happens. None: it is asked now, as if it had not been
            asked since the last event.
        future: jobs of the state that are not submitted yet, and when they will be. Other such jobs never come.
        extra_s: by job, the work that it has beyond what the state, and so the policy, believes; below 0: less.
        fixed: running jobs that the policy must leave as they are. memory_stays: as in `Snapshot`.
        jobs: those whose start (or end, by `until`) is asked for; the forecast ends once these are known. None: all
            ends.
        horizon_s: how far to look, seconds from now. most_events: steps after which it gives up. gives_up: asked before
            every step whether to give up.

    Raises:
        InputError: a future job that is submitted already, or would be in the past.
        PlanError: the policy broke a rule (a bug in the policy).
    """
    for job, at_s in (future or {}).items():
        if state.status[job] != JobState.FUTURE or not at_s >= now_s:
            raise InputError(
                f"job {state.workload.job_id(job)} can't come at {at_s}: it must not be submitted yet, and the time "
                f"must be {now_s} or later"
            )
    coming = tuple(sorted((at_s, job) for job, at_s in (future or {}).items()))
    present = [*state.placements, *np.flatnonzero(state.status_column == JobState.WAITING).tolist()]
    event: Literal["start", "end"] = "end" if jobs is None else until
    wanted = {*present, *(job for _, job in coming)} if jobs is None else set(jobs)
    if event == "start":
        wanted.difference_update(state.placements)
    wanted -= set(np.flatnonzero(state.status_column == JobState.FINISHED).tolist())
    own, fresh = state.copy(), policy.twin()
    own.unfinished = len(present) + len(coming)
    executor = _Watch(own, wanted, event, extra_s)
    run = Simulation(
        own.workload,
        own.cluster,
        fresh,
        policy.id,
        Settings(interval_s=interval_s),
        compat_mode(None),
        None,
        Begin(
            state=own,
            memory=deepcopy(memory),
            progress=Progress(
                own.workload,
                own.cluster,
                progress.restart_overhead_s,
                fresh.sharing(own.workload),
                progress.resize_overhead_s,
            ),
            now_s=now_s,
            executor=executor,
            wake_at_s=wake_at_s,
            future=coming,
            fixed=fixed,
            memory_stays=memory_stays,
            horizon_s=now_s + horizon_s,
            until=lambda events: not wanted or events >= most_events or gives_up(),
        ),
    )
    run.loop()
    start_s = np.full(len(own.workload), np.inf)
    for job in state.placements:
        start_s[job] = state.run_from_s[job]
    for job, at_s in executor.started.items():
        if job not in state.placements:
            start_s[job] = at_s
    end_s = own.end_s_column.copy()
    end_s[np.isnan(end_s)] = np.inf
    gave_up = run.events >= most_events or gives_up() or now_s + horizon_s < run.next_s < math.inf
    return Forecast(
        start_s,
        end_s,
        tuple([job for job in executor.started if job not in state.placements]),
        run.now_s,
        not (wanted and gave_up),
        run.events,
    )
