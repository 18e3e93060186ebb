"""The simulator: the engine under a virtual clock.

Events at equal times are taken in together, in this order: ends, nodes back, nodes lost, arrivals; then the policy
is asked once. Two ways to schedule (`schedule`):
    events: at every arrival, end and failure, and when the policy asked to be woken, GPUs that are free are given
        away; running jobs are stopped for others at multiples of `interval_s` only (at every event if it is 0).
    rounds: everything at multiples of `interval_s` only, as on Muri's testbed.
"""

from __future__ import annotations

import math
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuloom.core.cluster import Cluster
from gpuloom.core.errors import ImpossibleJobError, InputError, PlanError
from gpuloom.core.metrics import jct_figures, time_mean
from gpuloom.core.state import JobState, State
from gpuloom.core.words import plural
from gpuloom.core.workload import Workload
from gpuloom.engine.clockwork import Clockwork
from gpuloom.engine.engine import Engine
from gpuloom.engine.progress import Progress
from gpuloom.facts.gpus import hand_in_facts, with_known_memory
from gpuloom.facts.inputs import load_cluster, load_policy
from gpuloom.facts.profiles import load_profiles, with_profiles
from gpuloom.facts.speeds import all_alike, with_speeds
from gpuloom.placement.shapes import impossible_jobs, shapes_of, why_impossible
from gpuloom.policies.base import Policy
from gpuloom.policies.registry import parse_policy
from gpuloom.sim.bound import lower_bound_avg_jct_s
from gpuloom.sim.compat import Compat, compat_mode
from gpuloom.sim.executor import EveryStepExecutor, SegmentLog, SimExecutor
from gpuloom.sim.failures import Failure, Outages, RandomOutages
from gpuloom.sim.overheads import restart_overheads_s
from gpuloom.sim.result import SimResult, Timeline
from gpuloom.sim.suspend import Restart, Suspend, Suspended, parse_preempt

DEFAULT_INTERVAL_S = 360.0
_MOST_AT_A_MOMENT = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How to simulate. Times in seconds.

    interval_s: scheduling interval; 0: none, jobs are stopped for others at every event.
    schedule: 'events' or 'rounds'.
    restart_overhead_s: what every start costs; None: by the trace or the job's model (see `overheads`).
    resize_overhead_s: what a change of a running job's size costs; None: as much as a start.
    preempt: how jobs make way for others: 'restart' (they save, and begin anew at the cost of a start), 'kill' (they
        begin anew from their last checkpoint), or 'suspend' (with all they have on their GPUs: `suspend.Suspend`).
    seed: of everything random (failures, AntMan's job classes).
    compat: None or the name of another simulator whose semantics to use ('muri').
    failures: nodes out of service. mtbf_s, repair_s: or random ones, per node.
    checkpoint_s: a job that loses its node, is killed, or can't go on where it was suspended, falls back to a multiple
        of this much work; 0: loses nothing.
    record_segments: keep who ran where and when (for the Gantt chart and for checks).
    skip_impossible: leave out jobs that can never be placed, instead of refusing the trace.
    parameters: values of policy parameters, for every policy that has them; a policy's written form goes before.
    """

    interval_s: float = DEFAULT_INTERVAL_S
    schedule: str = "events"
    restart_overhead_s: float | None = None
    resize_overhead_s: float | None = None
    preempt: str = "restart"
    seed: int = 0
    compat: str | None = None
    failures: tuple[Failure, ...] = ()
    mtbf_s: float | None = None
    repair_s: float = 3600.0
    checkpoint_s: float = 0.0
    record_segments: bool = False
    skip_impossible: bool = False
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not (math.isfinite(self.interval_s) and self.interval_s >= 0):
            raise InputError(f"the interval is {self.interval_s}, must be 0 or more seconds")
        if self.schedule not in {"events", "rounds"}:
            raise InputError(f"schedule is {self.schedule!r}, must be 'events' or 'rounds'")
        if self.schedule == "rounds" and self.interval_s == 0:
            raise InputError("scheduling in rounds needs an interval above 0")
        for what, overhead in (("restart", self.restart_overhead_s), ("resize", self.resize_overhead_s)):
            if overhead is not None and not (math.isfinite(overhead) and overhead >= 0):
                raise InputError(f"the {what} overhead is {overhead}, must be 0 or more seconds")
        way = parse_preempt(self.preempt)
        if way != Restart() and self.compat is not None:
            raise InputError(f"--compat {self.compat} has jobs save and start again; it can't be used with {way}")
        if way == Restart(saves=False) and self.checkpoint_s == 0:
            raise InputError(
                "kill needs a checkpoint interval (--checkpoint TIME): killed jobs go back to their last checkpoint"
            )
        for name, value in (("mean time between failures", self.mtbf_s), ("mean repair time", self.repair_s)):
            if value is not None and not (math.isfinite(value) and value > 0):
                raise InputError(f"the {name} is {value}, must be above 0 seconds")
        if self.mtbf_s is not None and self.failures:
            raise InputError("give either failures or mtbf_s, not both")
        if not (math.isfinite(self.checkpoint_s) and self.checkpoint_s >= 0):
            raise InputError(f"the checkpoint interval is {self.checkpoint_s}, must be 0 or more seconds")
        if not isinstance(self.parameters, Mapping) or not all(isinstance(name, str) for name in self.parameters):
            raise InputError(f"parameters are {self.parameters!r}, must map names of policy parameters to values")
        if self.compat is not None:
            compat_mode(self.compat)
            if self.schedule == "rounds":
                raise InputError(f"--compat {self.compat} schedules at events; it can't be used with rounds")


OnProgress = Callable[[int, int], None]
"""Called now and then with (jobs finished, jobs)."""


def simulate(
    workload: Workload | str | Path,
    cluster: Cluster | str,
    policy: Policy | str = "srtf",
    *,
    on_progress: OnProgress | None = None,
    **settings: Any,
) -> SimResult:
    """Replay a workload on a cluster under a policy.

    Args:
        workload: jobs, or the path of a trace.
        cluster: nodes, their short form ('8x8:V100'), or the path of a YAML file.
        policy: a policy, or its written form ('tiresias:thresholds=3250/7200').
        settings: see `Settings`.

    Returns:
        Everything measured; an interrupt (Ctrl-C) ends early with `interrupted` set.

    Raises:
        InputError: what was given is wrong. ImpossibleJobError: a job never fits the cluster.
        PlanError: the policy broke a rule (a bug in the policy).
    """
    if isinstance(workload, str | Path):
        from gpuloom.traces import read_trace

        workload = read_trace(workload).workload
    if isinstance(cluster, str):
        cluster = load_cluster(cluster)
    known = [field.name for field in fields(Settings)]
    for name in settings:
        if name not in known:
            raise InputError(f"simulate has no setting {name!r}; it has: {', '.join(known)}")
    chosen = Settings(**settings)
    mode = compat_mode(chosen.compat)
    name = policy if isinstance(policy, str) else policy.id
    if isinstance(policy, str):
        preset = mode.parameters.get(parse_policy(policy)[0], {})
        written = parse_policy(policy)[1]
        policy = load_policy(policy, **{"seed": chosen.seed, **preset, **chosen.parameters})
        taken = {k: v for k, v in chosen.parameters.items() if k in policy.values and k not in written}
        chosen = replace(chosen, parameters=taken)  # what is said of the run is what it went by
    elif chosen.parameters:
        raise InputError("parameters are for policies given by name; a Policy object has its own")
    profiles = load_profiles()
    if policy.uses_stages or profiles.own:
        workload = with_profiles(workload, profiles)
    hand_in_facts(policy)
    cluster = with_known_memory(cluster)
    alike = all_alike(workload, cluster)
    workload = with_speeds(workload, cluster)
    workload = without_impossible(workload, cluster, skip=chosen.skip_impossible)
    result = Simulation(workload, cluster, policy, name, chosen, mode, on_progress).run()
    return result if alike is None else replace(result, notes=(*result.notes, alike))


def without_impossible(workload: Workload, cluster: Cluster, *, skip: bool) -> Workload:
    """The workload without the jobs that can never be placed; without `skip` there must be none.

    Raises:
        ImpossibleJobError: names the first such job, says how many there are and what to do.
    """
    bad = impossible_jobs(shapes_of(workload, cluster), cluster)
    if len(bad) == 0:
        return workload
    text = why_impossible(workload, cluster, int(bad[0]))
    if not skip:
        more = f"; {len(bad):,} of {plural(len(workload), 'job')} can never be placed" if len(bad) > 1 else ""
        raise ImpossibleJobError(
            f"{workload.name}: {text}{more}. Choose a larger --cluster, or leave such jobs out with --skip-impossible"
        )
    keep = np.ones(len(workload), dtype=bool)
    keep[bad] = False
    if workload.job_ids is None:  # a job's row is its name, and stays so
        workload = replace(workload, job_ids=tuple(map(str, range(len(workload)))))
    kept = workload.take(np.flatnonzero(keep))
    many = plural(len(bad), "job that can never be placed was", "jobs that can never be placed were")
    note = f"{many} left out (the first: {text})"
    return replace(kept, notes=(*kept.notes, note))


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """The beginning of a simulation that does not start empty.

    state, memory: the simulation takes them over and changes them. wake_at_s: when the policy is asked again if nothing
    happens; None: it is asked now, and again at the next interval if jobs wait. future: (time, job) of jobs that are
    submitted later, in order of time; other jobs of the state that are not submitted never come.
    fixed: running jobs that the policy must leave as they are. memory_stays: as in `Snapshot`.
    horizon_s: it ends before the first event after that. until: asked before every event whether to end here.
    """

    state: State
    memory: Any
    progress: Progress
    now_s: float
    executor: SimExecutor
    wake_at_s: float | None = None
    future: tuple[tuple[float, int], ...] = ()
    fixed: frozenset[int] = frozenset()
    memory_stays: bool = False
    horizon_s: float = math.inf
    until: Callable[[int], bool] | None = None


class Simulation:
    """One simulation: of a whole workload, or on from some state."""

    def __init__(
        self,
        workload: Workload,
        cluster: Cluster,
        policy: Policy,
        name: str,
        settings: Settings,
        mode: Compat,
        on_progress: OnProgress | None,
        begin: Begin | None = None,
    ) -> None:
        self.workload, self.cluster, self.policy, self.name = workload, cluster, policy, name
        self.settings, self.mode, self.on_progress, self.begin = settings, mode, on_progress, begin
        self.log = SegmentLog() if settings.record_segments else None
        if begin is None:
            overheads = restart_overheads_s(workload, settings.restart_overhead_s)
            self.state = State(workload, cluster, layers=policy.max_jobs_per_gpu)
            resize = settings.resize_overhead_s
            resizes = overheads if resize is None else np.full(len(workload), resize)
            progress = Progress(workload, cluster, overheads, policy.sharing(workload), resizes)
            executor = EveryStepExecutor if mode.charge_every_step else SimExecutor
            self.executor = executor(self.state, self.log)
            self.now_s = float(workload.submit_s[0]) if len(workload) else 0.0
        else:
            self.state, self.executor, progress = begin.state, begin.executor, begin.progress
            self.now_s = begin.now_s
        way = parse_preempt(settings.preempt)
        self.suspended = Suspended(workload, cluster, way) if isinstance(way, Suspend) else None
        self.engine = Engine(
            self.state,
            policy,
            progress,
            self.executor,
            charge_every_step=mode.charge_every_step,
            checkpoint_s=settings.checkpoint_s,
            memory=None if begin is None else begin.memory,
            memory_stays=begin is not None and begin.memory_stays,
            saves=way != Restart(saves=False),
            suspending=self.suspended,
        )
        if begin is not None:
            self.engine.snapshot.fixed = begin.fixed
        self.times, self.queue, self.busy = array("d"), array("i"), array("i")
        self.events = 0
        self.next_s = -math.inf
        """The event before which it ended early: beyond the horizon, or infinity if there was none."""
        self.moment_s, self.at_moment = -math.inf, 0

    def run(self) -> SimResult:
        begun = time.perf_counter()
        interrupted = False
        try:
            self.loop()
        except KeyboardInterrupt:
            interrupted = True
        return self._result(time.perf_counter() - begun, interrupted)

    def loop(self) -> None:
        """Go from event to event, until all jobs have ended or `Begin` says so."""
        state, engine, executor = self.state, self.engine, self.executor
        n = len(self.workload)
        begin = self.begin
        rows: Sequence[int] = range(n)
        if begin is None:
            submits, horizon_s, until = self.workload.submit_s.tolist(), math.inf, None
        else:
            submits, horizon_s, until = [at_s for at_s, _ in begin.future], begin.horizon_s, begin.until
            rows = [job for _, job in begin.future]
        submits.append(math.inf)
        outages = self._outages()
        outage_s, nobody = outages.next_s(), list[int]()
        clockwork = Clockwork.of(
            self.policy,
            self.settings.interval_s,
            rounds=self.settings.schedule == "rounds",
            # With the artifact's rules every event reschedules everyone.
            every_event=self.mode.charge_every_step,
        )
        plain, ask_at, due_at = clockwork.plain, clockwork.may_preempt, clockwork.due_s
        wake = math.inf
        may_preempt: bool | None = True
        unseen = False  # in rounds: something has happened that the next one has to look at
        arriving = 0
        age, record = executor.age, self._record
        report_at = 0
        if begin is not None:
            executor.adopt(self.now_s)
            if begin.wake_at_s is not None:
                wake = begin.wake_at_s
            else:
                may_preempt = not clockwork.gated
                wake = engine.decide(self.now_s, may_preempt=may_preempt)
        while state.unfinished:
            if until is not None and until(self.events):
                break
            now = min(submits[arriving], executor.next_end_s())
            alarm = wake
            if not plain:
                alarm = due_at(self.now_s, wake, may_preempt, state.waiting, len(state.placements), unseen)
            if outages.endless and now == alarm == math.inf and not (state.placements or state.down):
                self._stuck()
            if outage_s < now:
                now = outage_s
            if alarm < now:
                now = alarm
            if now > horizon_s or (now == math.inf and begin is not None):
                self.next_s = now
                break
            if now == math.inf:
                self._stuck()
            self.now_s = now
            self.events += 1
            if now == alarm:
                self._check_pace(now)
            age.advance(now)
            finished = executor.pop_ended(now)
            first = arriving
            while submits[arriving] <= now:
                arriving += 1
            down, up = nobody, nobody
            if outage_s <= now:
                down, up = outages.pop(now)
                outage_s = outages.next_s()
            arrived = rows[first:arriving]
            engine.take_in(now, finished=finished, down=down, up=up, arrived=arrived)
            for job in arrived:
                age.enter(job)
            may_preempt = plain or ask_at(now, alarm)
            if may_preempt is not None:
                wake, unseen = engine.decide(now, may_preempt=may_preempt), False
            else:
                unseen = unseen or bool(finished or arrived or down or up)
            record(now)
            if self.on_progress is not None and self.events >= report_at:
                report_at = self.events + 512
                self.on_progress(n - state.unfinished, n)
        if self.on_progress is not None:
            self.on_progress(n, n)

    def _outages(self) -> Outages:
        settings = self.settings
        if settings.mtbf_s is None:
            return Outages(settings.failures, self.cluster)
        return RandomOutages(
            self.cluster,
            mtbf_s=settings.mtbf_s,
            repair_s=settings.repair_s,
            start_s=self.now_s,
            seed=settings.seed,
        )

    def _record(self, now: float) -> None:
        state = self.state
        waiting, busy = state.waiting, state.busy_gpus
        if self.queue and self.queue[-1] == waiting and self.busy[-1] == busy:
            return
        if self.times and self.times[-1] == now:
            self.queue[-1], self.busy[-1] = waiting, busy
            return
        self.times.append(now)
        self.queue.append(waiting)
        self.busy.append(busy)

    def _stuck(self) -> None:
        """Nothing will happen any more, and not every job has ended."""
        waiting = [job for job in range(len(self.workload)) if self.state.status[job] == JobState.WAITING]
        stalled = sorted(self.state.placements)
        job = (waiting or stalled)[0]
        what = (
            f"{plural(len(waiting), 'job')} waiting forever"
            if waiting
            else f"{plural(len(stalled), 'job')} running at speed 0 forever"
        )
        raise PlanError(
            f"policy {self.name!r} leaves {what}, as no further event will come; the first is job "
            f"{self.workload.job_id(job)}. {self.state.story(job)}"
        )

    def _jobs_per_gpu(self) -> int | NDArray[np.intp]:
        """How many jobs can be on the GPUs of each job at once."""
        sharing, most = self.engine.progress.sharing, self.policy.max_jobs_per_gpu
        if sharing is None or most == 1:
            return most
        return np.array([min(sharing.most(job), most) for job in range(len(self.workload))], dtype=np.intp)

    def _check_pace(self, now: float) -> None:
        """A policy that asks to be woken at the same moment again and again would never let time pass."""
        if now > self.moment_s:
            self.moment_s, self.at_moment = now, 0
        self.at_moment += 1
        if self.at_moment > _MOST_AT_A_MOMENT + 4 * len(self.workload):
            raise PlanError(
                f"policy {self.name!r} asked {self.at_moment:,} times to be woken at {now} s and time does not advance"
            )

    def _result(self, wall_s: float, interrupted: bool) -> SimResult:
        state, workload = self.state, self.workload
        n = len(workload)
        end = state.end_s_column.copy()
        jct = end - workload.submit_s
        done = jct[np.isfinite(jct)]
        first = float(workload.submit_s[0]) if n else 0.0
        last = float(np.nanmax(end)) if len(done) else first
        until = self.now_s if interrupted else last
        timeline = Timeline(
            np.array(self.times, dtype=np.float64),
            np.array(self.queue, dtype=np.int32),
            np.array(self.busy, dtype=np.int32),
        )
        span = until - first
        lengths = np.diff(np.append(timeline.time_s, until)) if len(timeline.time_s) else np.zeros(0)
        busy_s = float((lengths * timeline.busy_gpus).sum())
        queued_s = float((lengths * timeline.queue_length).sum())
        jcts = jct_figures(done)
        held = state.held_gpu_s_column.copy()
        for job, placement in state.placements.items():
            model = self.cluster.models.index(self.cluster.nodes[placement.nodes[0]].gpu_model)
            held[job, model] += (self.now_s - state.run_from_s[job]) * placement.gpus
        settings = self.settings
        return SimResult(
            policy=self.name,
            trace=workload.name,
            cluster=str(self.cluster),
            jobs=n,
            gpus=self.cluster.gpus,
            avg_jct_s=jcts.avg_jct_s,
            median_jct_s=jcts.median_jct_s,
            p99_jct_s=jcts.p99_jct_s,
            makespan_s=math.nan if n and not len(done) else last if self.mode.absolute_makespan else last - first,
            avg_queue_length=time_mean(queued_s, span),
            blocking_index=self.executor.age.mean(span),
            utilization=time_mean(busy_s, span * self.cluster.gpus),
            lower_bound_avg_jct_s=lower_bound_avg_jct_s(
                workload,
                self.cluster,
                jobs_per_gpu=self._jobs_per_gpu(),
                resizes=self.policy.resizes,
            ),
            wall_s=wall_s,
            restarts=self.executor.restarts,
            moves=self.engine.moves,
            resizes=self.engine.resizes,
            suspensions=0 if self.suspended is None else self.suspended.times,
            events=self.events,
            finished=len(done),
            interrupted=interrupted,
            settings={
                "interval_s": settings.interval_s,
                "schedule": settings.schedule,
                "restart_overhead_s": settings.restart_overhead_s,
                "resize_overhead_s": settings.resize_overhead_s,
                "preempt": settings.preempt,
                "seed": settings.seed,
                "compat": settings.compat,
                "mtbf_s": settings.mtbf_s,
                "repair_s": settings.repair_s,
                "checkpoint_s": settings.checkpoint_s,
                "parameters": dict(settings.parameters),
            },
            job_ids=workload.job_ids if workload.job_ids is not None else tuple(map(str, range(n))),
            job_gpus=workload.gpus,
            submit_s=workload.submit_s,
            start_s=state.first_start_s_column.copy(),
            end_s=end,
            jct_s=jct,
            held_gpu_s=held,
            gpu_models=self.cluster.models,
            starts=state.starts_column.copy(),
            timeline=timeline,
            segments=self.log.close(self.now_s) if self.log is not None else None,
            node_names=tuple(node.name for node in self.cluster.nodes),
            notes=() if self.suspended is None else tuple(self.suspended.notes(workload)),
            saved=self.policy.saved(self.engine.memory),
        )
