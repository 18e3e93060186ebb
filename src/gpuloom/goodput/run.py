"""Pollux' simulation: time in steps; GPUs are reallocated after each.

Source: github.com/petuum/adaptdl, branch osdi21-artifact, `simulator/simulator.py`, with its default settings: 16
nodes of 4 GPUs, steps of 60 s, no interference. In a step every job trains on the GPUs that it holds. Then the rule is
asked about all jobs that are submitted and not done; jobs that get other GPUs than before pay 30 s.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gpuloom.core.errors import GpuloomError, InputError
from gpuloom.core.sums import sum_floats, sum_ints
from gpuloom.core.units import format_duration
from gpuloom.core.words import plural
from gpuloom.core.workload import F8
from gpuloom.goodput.applications import Application
from gpuloom.goodput.base import Cluster, Nodes, Rule, pool_of_nodes
from gpuloom.goodput.job import Job
from gpuloom.goodput.workload import Submission

STEP_S = 60
NODES = Nodes(16, 4)


@dataclass(frozen=True, slots=True, eq=False)
class PolluxResult:
    """What became of a workload. Arrays are in the order of the workload; times in seconds, gpu_s in GPU-seconds."""

    names: tuple[str, ...]
    submit_s: F8
    end_s: F8
    gpu_s: F8
    restarts: int
    decisions: int

    @property
    def jct_s(self) -> F8:
        return self.end_s - self.submit_s

    @property
    def avg_jct_s(self) -> float:
        return float(self.jct_s.mean())

    @property
    def p99_jct_s(self) -> float:
        return float(np.percentile(self.jct_s, 99))

    @property
    def makespan_s(self) -> float:
        return float(self.end_s.max() - self.submit_s.min())


def simulate(
    workload: Sequence[Submission],
    applications: Mapping[str, Application] | Mapping[str, Mapping[str, Application]],
    rule: Rule,
    nodes: Cluster = NODES,
    step_s: int = STEP_S,
) -> PolluxResult:
    """Run a workload to its end.

    Args:
        applications: by name; of a cluster whose nodes have GPU models, by model and name (`load_models`).

    Raises:
        InputError: a job that can't run (unknown application, too many GPUs, batch size not profiled), or a step that
            is not a whole number of seconds, at least 1.
        GpuloomError: the rule gives GPUs twice, or gives none to anybody for an hour, or changes them so often that
            nobody trains: for an hour, and for as long as four of the longest restarts or steps.
    """
    if step_s < 1 or step_s != int(step_s):
        raise InputError(f"steps of {step_s} s: must be a whole number of seconds, at least 1")
    by_model = _by_model(applications, nodes)
    jobs = [_job(one, by_model, nodes.total if rule.gives_submitted_gpus else None) for one in workload]
    pools = nodes.pools
    pool_of = pool_of_nodes(nodes)
    now_s, idle_since, decisions = 0, 0, 0
    longest_s = max((app.restart_s for job in jobs for app in job.apps.values()), default=0.0)
    patience_s = max(3600.0, 4 * longest_s, 4.0 * step_s)
    trained_s, done = 0, (0, 0, 0.0)
    active = list(jobs)
    while active:
        for job in active:
            job.train(now_s, step_s, rule.batch)
        now_s += step_s
        active = [job for job in active if job.end_s is None]
        present = [job for job in active if job.submit_s <= now_s]
        if not present:
            if active:  # nobody runs: skip to the step in which the next job comes
                first_s = min(job.submit_s for job in active)
                now_s = max(now_s, (math.ceil(first_s / step_s) - 1) * step_s)
            idle_since = trained_s = now_s
            continue
        before, done = done, _done(jobs, present)
        if done != before:
            trained_s = now_s
        elif now_s - trained_s > patience_s:
            raise GpuloomError(
                f"at {now_s} s: nobody has trained for {format_duration(now_s - trained_s)}: jobs are given other GPUs "
                "before their restarts are over; give shorter restart times, or a longer interval"
            )
        held = rule.allocate(now_s, present, nodes)
        decisions += 1
        _check(held, nodes, now_s)
        if held:
            idle_since = now_s
        elif now_s - idle_since > 3600:
            raise GpuloomError(f"at {now_s} s: {len(present)} jobs wait and none has run for an hour")
        for job in present:
            given = held.get(job.name, ())
            if given != job.nodes:
                job.hold(given, rule.batch, pools[pool_of[given[0]]].model if given else "")
    return PolluxResult(
        tuple(job.name for job in jobs),
        np.array([job.submit_s for job in jobs], dtype=np.float64),
        np.array([job.end_s for job in jobs], dtype=np.float64),
        np.array([job.gpu_s for job in jobs], dtype=np.float64),
        sum_ints(job.restarts for job in jobs),
        decisions,
    )


def _done(jobs: Sequence[Job], present: Sequence[Job]) -> tuple[int, int, float]:
    """Changes when a job comes, ends or trains."""
    ended = sum_ints(job.end_s is not None for job in jobs)
    return ended, len(present), sum_floats([job.progress for job in present])


def _by_model(
    applications: Mapping[str, Application] | Mapping[str, Mapping[str, Application]], nodes: Cluster
) -> dict[str, Mapping[str, Application]]:
    found: dict[str, dict[str, Application]] = {pool.model: {} for pool in nodes.pools}
    for name, value in applications.items():
        if isinstance(value, Application):
            for of_model in found.values():
                of_model[name] = value
        elif name in found:
            found[name] = dict(value)
    return dict(found)


def _job(one: Submission, applications: Mapping[str, Mapping[str, Application]], gpus: int | None) -> Job:
    """The job. gpus: of the cluster, where the job shall have those it was submitted with; None: any number will do."""
    apps: dict[str, Application] = {}
    for model, known in applications.items():
        if one.application not in known:
            on = f" on {model}" if model else ""
            raise InputError(
                f"job {one.name}: no profile of application {one.application!r}{on}, must be one of "
                f"{', '.join(sorted(known))}"
            )
        apps[model] = known[one.application]
    app = next(iter(apps.values()))
    if gpus is not None and one.gpus > gpus:
        raise InputError(f"job {one.name} needs {plural(one.gpus, 'GPU')}, the cluster has {gpus}")
    if not app.least_batch <= one.batch_size <= app.most_batch:
        raise InputError(
            f"job {one.name}: batch size {one.batch_size} is outside what was profiled of {app.name}, "
            f"{app.least_batch} to {app.most_batch}"
        )
    return Job(one.name, app, one.submit_s, one.gpus, one.batch_size, apps=apps)


def _check(held: Mapping[str, tuple[int, ...]], nodes: Cluster, now_s: int) -> None:
    pool_of = pool_of_nodes(nodes)
    used = [0] * len(pool_of)
    for name, given in held.items():
        if len({pool_of[node] for node in given}) > 1:
            raise GpuloomError(f"at {now_s} s: job {name} was given GPUs of several models")
        for node in given:
            used[node] += 1
    for node, count in enumerate(used):
        most = nodes.pools[pool_of[node]].gpus
        if count > most:
            raise GpuloomError(f"at {now_s} s: {count} GPUs given of node {node}, which has {most}")
