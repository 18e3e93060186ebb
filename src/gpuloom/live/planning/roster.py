"""Jobs as rows that are made once, so that a world of ten thousand of them is built in milliseconds."""

from __future__ import annotations

from collections.abc import Container, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import NamedTuple

import numpy as np

from gpuloom.core.job import Job
from gpuloom.core.pace import Pace, speeds_of
from gpuloom.core.replicas import Replicas
from gpuloom.core.script_key import profile_key
from gpuloom.core.spec import OnPreempt
from gpuloom.core.workload import F8, Labels, Workload
from gpuloom.live.planning.estimates import Estimates, Like, like_of
from gpuloom.live.planning.gpu_memory import GpuMemory, larger
from gpuloom.live.planning.model_speeds import ModelSpeeds
from gpuloom.live.records.fleet import wanted_types
from gpuloom.live.records.scaling import scaling_of
from gpuloom.sharing.job_profile import named_profile


class _Asks(NamedTuple):
    """What of a spec says how long a job takes, and how fast it is."""

    like: Like
    given_s: float | None
    limit_s: float | None
    wanted: tuple[str, ...]
    speeds: tuple[tuple[str, float], ...]
    replicas: Replicas | None
    model: str | None


class _Row(NamedTuple):
    """What a world needs of a job and what changes with its spec only."""

    submitted_s: float
    gpus: int
    job_id: str
    user: str
    model: str
    gpu_type: str
    gpu_memory_mib: float
    behind: bool
    share_class: str
    kernel_profile: str
    asks: _Asks


@dataclass(frozen=True, slots=True)
class Columns:
    """Rows as columns. total_s: estimate of each job's whole work, seconds on the GPU model of speed 1, at the size
    that it asks for. paces: how fast each is; None: there is one GPU model only, and no job is elastic."""

    rows: Sequence[_Row]
    total_s: F8
    paces: Sequence[Pace] | None

    def workload(
        self, duration_s: F8, earlier_s: F8 | None, most_gpus: int, held: Mapping[int, int], *, slower: bool
    ) -> Workload:
        """A workload in which jobs take so long, submitted so much earlier than they were. most_gpus: of the cluster:
        elastic jobs can't have more. held, slower: as for `scaling_of`."""
        submitted, gpus, ids, users, models, types, memory, behind, classes, _, _ = zip(*self.rows, strict=True)
        memory_mib = np.array(memory, dtype=np.float64)
        speeds = None if self.paces is None else speeds_of(self.paces)
        return Workload(
            "live",
            np.array(submitted, dtype=np.float64) - (0.0 if earlier_s is None else earlier_s),
            duration_s,
            np.array(gpus, dtype=np.int32),
            job_ids=ids,
            model=Labels.of(models) if any(models) else None,
            user=Labels.of(users),
            gpu_type=Labels.of(types) if any(types) else None,
            priority=np.array(behind, dtype=np.int32),
            share_class=Labels.of(classes) if any(classes) else None,
            gpu_memory_mib=None if np.isnan(memory_mib).all() else memory_mib,
            speeds=speeds,
            scaling=None
            if self.paces is None
            else scaling_of(self.rows_sizes(), self.paces, most_gpus, held=held, slower=slower),
        )

    def kernels(self) -> tuple[list[str], list[str]]:
        """Of each job its kernel profile and its class for sharing a GPU, '' for none."""
        return [row.kernel_profile for row in self.rows], [row.share_class for row in self.rows]

    def rows_sizes(self) -> list[tuple[int, Replicas | None]]:
        """Of each job the GPUs that it asks for, and its sizes."""
        return [(row.gpus, row.asks.replicas) for row in self.rows]


class Roster:
    """Remembers rows by job for as long as the job's spec stays the same."""

    def __init__(self, estimates: Estimates, speeds: ModelSpeeds, memory: GpuMemory | None = None) -> None:
        """memory: what the monitor has seen; None: nothing of what users don't say."""
        self._estimates, self._speeds, self._memory = estimates, speeds, memory
        self._rows: dict[int, tuple[int, float, _Row]] = {}

    def copy(self, estimates: Estimates, speeds: ModelSpeeds, memory: GpuMemory | None = None) -> Roster:
        """The same rows, for another thread."""
        twin = Roster(estimates, speeds, memory)
        twin._rows = self._rows  # never changed in place
        return twin

    def columns(self, jobs: Sequence[Job], keys: Container[str] = ()) -> Columns:
        """The columns of these jobs. Rows of others are forgotten. keys: of scripts of which there are profiles,
        which stand for the model of jobs that name none."""
        known, kept = self._rows, {}
        rows = []
        for job in jobs:
            entry = known.get(job.id)
            if entry is None or entry[:2] != (job.spec_id, job.submitted_s):  # changed, or requeued
                entry = (job.spec_id, job.submitted_s, _row(job))
            kept[job.id] = entry
            row = entry[2]
            if not row.model and keys and (key := profile_key(None, job.spec.command, keys)):
                row = row._replace(model=key)
            rows.append(row)
        self._rows = kept
        distinct = {row.asks for row in rows}
        planned: Sequence[_Row] = rows
        if self._memory is not None:
            planned = _with_memory(self._memory, jobs, rows, {asks.like for asks in distinct})
        totals: dict[_Asks, float] = {}
        paces: dict[_Asks, Pace] = {}
        for asks in distinct:
            sizes = () if asks.replicas is None else asks.replicas.sizes
            pace = paces[asks] = self._speeds.of(asks.like, dict(asks.speeds), sizes, asks.model)
            totals[asks] = self._estimates.of(
                asks.like, given_s=asks.given_s, time_limit_s=asks.limit_s, pace=pace, wanted=asks.wanted
            ).total_s
        several = len(self._speeds.models) > 1 or any(pace.sizes for pace in paces.values())
        return Columns(
            planned,
            np.array([totals[row.asks] for row in rows], dtype=np.float64),
            [paces[row.asks] for row in rows] if several else None,
        )


def _with_memory(memory: GpuMemory, jobs: Sequence[Job], rows: Sequence[_Row], likes: Iterable[Like]) -> Sequence[_Row]:
    """Rows with what is known of GPU memory that no user says. likes: of all of them."""
    memory.look_up(jobs)
    own, of_like = memory.own(), {like: need for like in likes if (need := memory.of_like(like)) is not None}
    if not own and not of_like:
        return rows
    found = []
    for job, row in zip(jobs, rows, strict=True):
        need = None
        if job.spec.gpu_memory is None:
            need = larger(of_like.get(row.asks.like), own.get(job.id, 0.0))
        found.append(row if need is None else row._replace(gpu_memory_mib=float(need.mib)))
    return found


def alike(job: Job) -> str:
    """A name that all runs of one job share: same user, name, GPUs, folder and command, but for numbers of options."""
    like = like_of(job.spec, job.user, job.gpus, job.array_id)
    return sha256(repr((like.user, like.name, like.gpus, like.similar)).encode()).hexdigest()[:16]


def kind_of(job: Job) -> Hashable:
    """What a world shows of a job but its number and when it was submitted, its priority, and whether it can be moved:
    one that can't be may not start on nodes whose time ends."""
    _, gpus, _, *others = _row(job)
    return gpus, *others, job.priority, job.spec.on_preempt is OnPreempt.NEVER


def _row(job: Job) -> _Row:
    spec = job.spec
    return _Row(
        job.submitted_s,
        job.gpus,
        str(job.id),
        job.user,
        spec.model or "",
        wanted_types(spec),
        np.nan if spec.gpu_memory is None else float(spec.gpu_memory),
        job.priority < 0,
        spec.sharing_class,
        named_profile(spec.kernel_profile, spec.model, spec.workdir) if spec.sharing_class else "",
        _Asks(
            like_of(spec, job.user, job.gpus, job.array_id),
            spec.estimate,
            spec.time_limit,
            spec.gpu_types,
            tuple(sorted(spec.speeds.items())),
            spec.replicas,
            spec.model,
        ),
    )
