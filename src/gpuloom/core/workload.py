"""Jobs as columns: what is known of every job before it runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from gpuloom.core.errors import InputError
from gpuloom.core.kernel_pairs import KernelPairs
from gpuloom.core.pairs import PairSpeeds
from gpuloom.core.ran import Runs
from gpuloom.core.scaling import Scaling
from gpuloom.core.share_class import CLASSES

F8 = NDArray[np.float64]
I4 = NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class Labels:
    """A column of words, stored as integer codes into `names`."""

    codes: I4
    names: tuple[str, ...]

    @classmethod
    def of(cls, values: Iterable[str]) -> Labels:
        index: dict[str, int] = {}
        codes = [index.setdefault(value, len(index)) for value in values]
        return cls(np.asarray(codes, dtype=np.int32), tuple(index))

    def __getitem__(self, job: int) -> str:
        return self.names[int(self.codes[job])]

    def __len__(self) -> int:
        return len(self.codes)

    def take(self, rows: NDArray[np.intp]) -> Labels:
        return Labels(self.codes[rows], self.names)


@dataclass(frozen=True, slots=True, eq=False)
class Speeds:
    """How fast each job runs on each GPU model, relative to the model its `duration_s` was measured on.

    `factor` has shape (jobs, models); 0 means that the job does not fit that model. `estimated`, of the same shape,
    marks factors that were not measured but derived from the GPU models' facts (None: all are measured).
    """

    models: tuple[str, ...]
    factor: F8
    estimated: NDArray[np.bool_] | None = None

    def take(self, rows: NDArray[np.intp]) -> Speeds:
        """The same for these jobs."""
        return Speeds(self.models, self.factor[rows], None if self.estimated is None else self.estimated[rows])


@dataclass(frozen=True, slots=True, eq=False)
class Ran:
    """What happened to each job where the trace was taken. For comparison only: no simulation uses it.

    start_s, end_s: its first start and its end, on the trace's clock. held_s: for how long it held its GPUs.
    starts: how often it was (re)started. runs: on which GPUs, and with whom; None: the trace does not say.
    """

    start_s: F8
    end_s: F8
    held_s: F8
    starts: I4
    runs: Runs | None = None

    def take(self, rows: NDArray[np.intp]) -> Ran:
        """The same for these jobs."""
        runs = None if self.runs is None else self.runs.take(rows.tolist())
        return Ran(self.start_s[rows], self.end_s[rows], self.held_s[rows], self.starts[rows], runs)


@dataclass(frozen=True, slots=True, eq=False)
class Workload:
    """The jobs of a trace, in order of submission (equal times keep the order of the trace).

    Required columns, one entry per job:
        submit_s: time of submission, seconds on the trace's own clock.
        duration_s: time the job needs alone on its GPUs, seconds, without any restart overhead.
        gpus: whole GPUs, all of them at once (gang).
    Optional columns (None: the trace does not say):
        job_ids: the trace's own ids. Without them a job is named by its row, from 0.
        model, user, group: training model, submitter, virtual cluster or queue.
        gpu_type: GPU models the job accepts, separated by '|'; '' accepts any.
        gpu_milli: thousandths of a GPU asked for, 1000 unless the job asks for a part of one.
        priority: 0 guaranteed, 1 opportunistic (AntMan's classes).
        share_class: 'high' or 'best-effort', for jobs that may share a GPU kernel by kernel; '' for others.
        kernel_profile: profile of the kernels of such a job, a service's load behind it ('resnet50:30%'); '' for none.
        weight: share weight, 1 by default (Gavel).
        restart_overhead_s: seconds to (re)start the job; NaN where unknown.
        estimate_s: an estimate of `duration_s` made before the job ran; NaN where unknown.
        gpu_memory_mib: peak memory of the job on each of its GPUs; NaN where unknown.
        iteration_s: seconds per training iteration alone; NaN where unknown.
        stage_s: shape (jobs, 3): seconds per iteration of data loading (storage and CPU), GPU compute and
            network synchronisation.
        speeds: relative speed by GPU model.
        kernel_pairs: what is expected of such jobs beside each other, by their kernel profiles.
        pairs: measured speeds beside other jobs on the same GPUs, by GPU model.
        scaling: numbers of GPUs on which each job can run, and how fast. `gpus` is then the number at which
            `duration_s` was measured; policies that don't resize jobs give this number.
        ran: what happened to the jobs where the trace was taken.
        line: line of the trace that each job came from (for messages).
    `cluster` is the one on which the trace was taken, in short form, '' where it does not say; `notes` are sentences on
    what the reader left out or assumed.
    """

    name: str
    submit_s: F8
    duration_s: F8
    gpus: I4
    job_ids: tuple[str, ...] | None = None
    model: Labels | None = None
    user: Labels | None = None
    group: Labels | None = None
    gpu_type: Labels | None = None
    gpu_milli: I4 | None = None
    priority: I4 | None = None
    share_class: Labels | None = None
    kernel_profile: Labels | None = None
    weight: F8 | None = None
    restart_overhead_s: F8 | None = None
    estimate_s: F8 | None = None
    gpu_memory_mib: F8 | None = None
    iteration_s: F8 | None = None
    stage_s: F8 | None = None
    speeds: Speeds | None = None
    pairs: PairSpeeds | None = None
    kernel_pairs: KernelPairs | None = None
    scaling: Scaling | None = None
    ran: Ran | None = None
    line: I4 | None = None
    cluster: str = ""
    notes: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        n = len(self.submit_s)
        for name in ("duration_s", "gpus", *OPTIONAL_COLUMNS):
            column = getattr(self, name)
            if column is not None and len(column) != n:
                raise InputError(f"workload {self.name!r}: column {name} has {len(column)} rows, submit_s has {n}")
        for name in () if self.share_class is None else {self.share_class[row] for row in range(n)}:
            if name not in ("", *CLASSES):
                raise InputError(
                    f"workload {self.name!r}: share_class {name!r} must be {' or '.join(CLASSES)}, or empty"
                )
        if self.speeds is not None and self.speeds.factor.shape != (n, len(self.speeds.models)):
            raise InputError(f"workload {self.name!r}: speeds has shape {self.speeds.factor.shape}, not ({n}, models)")
        if self.pairs is not None and len(self.pairs) != n:
            raise InputError(f"workload {self.name!r}: pairs has {len(self.pairs)} rows, submit_s has {n}")
        if self.kernel_pairs is not None and len(self.kernel_pairs) != n:
            raise InputError(
                f"workload {self.name!r}: kernel_pairs has {len(self.kernel_pairs)} rows, submit_s has {n}"
            )
        if self.scaling is not None:
            self._check_scaling(self.scaling)
        for name, bad in (
            ("submit_s", ~np.isfinite(self.submit_s)),
            ("duration_s", ~(np.isfinite(self.duration_s) & (self.duration_s >= 0))),
            ("gpus", self.gpus < 1),
        ):
            if bad.any():
                row = int(bad.argmax())
                value = getattr(self, name)[row]
                raise InputError(f"workload {self.name!r}: {name} of job {self.job_id(row)} is {value}")
        if n and (np.diff(self.submit_s) < 0).any():
            raise InputError(
                f"workload {self.name!r}: jobs are not in order of submission (use Workload.sorted_by_submit)"
            )

    def _check_scaling(self, scaling: Scaling) -> None:
        if len(scaling) != len(self):
            raise InputError(f"workload {self.name!r}: scaling has {len(scaling)} rows, submit_s has {len(self)}")
        able = np.array([scaling.allows(job, gpus) for job, gpus in enumerate(self.gpus.tolist())], dtype=bool)
        bad = (
            ~able
            | (self.gpus < scaling.min_gpus)
            | (self.gpus > scaling.max_gpus)
            | (self.gpus % scaling.replica_gpus > 0)
        )
        if bad.any():
            row = int(bad.argmax())
            raise InputError(
                f"workload {self.name!r}: job {self.job_id(row)} asks for {self.gpus[row]} GPUs, which is not one of "
                f"its sizes ({scaling.min_gpus[row]} to {scaling.max_gpus[row]} GPUs in steps of "
                f"{scaling.replica_gpus[row]}, as far as its curve is above 0)"
            )

    def __len__(self) -> int:
        return len(self.submit_s)

    @property
    def weights(self) -> F8 | None:
        """The weights, where any job has another one than 1."""
        return None if self.weight is None or bool((self.weight == 1.0).all()) else self.weight

    def job_id(self, job: int) -> str:
        return self.job_ids[job] if self.job_ids is not None else str(job)

    def take(self, rows: Sequence[int] | NDArray[np.intp], *, name: str | None = None) -> Workload:
        """The same workload with these rows only, in this order."""
        index = np.asarray(rows, dtype=np.intp)
        return _take(self, index, self.name if name is None else name)

    @staticmethod
    def sorted_by_submit(name: str, submit_s: F8, duration_s: F8, gpus: I4, **columns: object) -> Workload:
        """Build a workload from columns in any order; equal submission times keep their order."""
        order = np.argsort(np.asarray(submit_s, dtype=np.float64), kind="stable")
        taken = {key: value if key == "notes" else take_column(value, order) for key, value in columns.items()}
        return Workload(
            name=name,
            submit_s=np.asarray(submit_s, dtype=np.float64)[order],
            duration_s=np.asarray(duration_s, dtype=np.float64)[order],
            gpus=np.asarray(gpus, dtype=np.int32)[order],
            **taken,  # type: ignore[arg-type]
        )


OPTIONAL_COLUMNS = (
    "job_ids",
    "model",
    "user",
    "group",
    "gpu_type",
    "gpu_milli",
    "priority",
    "share_class",
    "kernel_profile",
    "weight",
    "restart_overhead_s",
    "estimate_s",
    "gpu_memory_mib",
    "iteration_s",
    "stage_s",
    "line",
)


def take_column(value: object, rows: NDArray[np.intp]) -> object:
    """These rows of it, if it is a column."""
    if isinstance(value, Labels | Speeds | PairSpeeds | KernelPairs | Scaling | Ran):
        return value.take(rows)
    if isinstance(value, np.ndarray):
        return value[rows]
    if isinstance(value, list | tuple):
        return tuple(value[row] for row in rows.tolist())
    return value


def _take(workload: Workload, rows: NDArray[np.intp], name: str) -> Workload:
    keys = ("submit_s", "duration_s", "gpus", "speeds", "pairs", "kernel_pairs", "scaling", "ran", *OPTIONAL_COLUMNS)
    columns = {key: take_column(getattr(workload, key), rows) for key in keys}
    return replace(workload, name=name, **columns)  # type: ignore[arg-type]
