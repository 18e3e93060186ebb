"""What hooks measured of a training that runs: times of its stages, from the rows of its last iterations.

A row of a loader with W workers is no sample by itself: of W iterations one waits long and the others hardly. So means
are taken over windows of a whole number of rounds, and the middle half of the windows counts: an evaluation, a
checkpoint or a busy moment changes none of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from gpuloom.core.sums import sum_floats, sum_ints

WARM_UP = 3
"""Iterations that are left out at the start, where there are enough: allocations, compilation, first reads."""
MOST_WINDOWS = 24
FEWEST_ROWS = 2


class Doubt(StrEnum):
    """Something that could not be measured."""

    SPLIT = "split"
    """Waits for data are not told apart into storage and CPU: batches are made where no hook looks."""
    INSIDE = "inside"
    """The framework fetches its data within its step: waits for data count as computing."""
    QUEUE = "queue"
    """Waits for a core count as storage: this kernel doesn't tell them."""
    ASYNC = "async"
    """The device's own times are not known: computing is what its Python waited for."""
    FEW = "few"
    """Too few iterations for a steady figure."""


@dataclass(frozen=True, slots=True)
class Row:
    """Seconds of some iterations of one process (count of them, numbered up to `number`), as it recorded them.

    network: of collectives that it called; comm, overlap: of gradient sync beside the backward pass, None: not looked
    at. device: by the GPU's clock, None: not known.
    """

    number: int
    count: int
    took: float
    storage: float
    cpu: float
    gpu: float
    network: float
    wait: float
    turn: float
    device: float | None
    comm: float | None
    overlap: float | None
    batches: int


@dataclass(frozen=True, slots=True)
class Load:
    """What the workers of a loader did: batches, and seconds for all of them together."""

    batches: int
    storage_s: float
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Training:
    """A process that trains, as it recorded itself. steps, memory_bytes, batch_size: None where not known. first_step:
    done before it started. at_s, began_s: newest record, and its first, epoch seconds."""

    framework: str
    iterations: int
    first_step: int
    steps: int | None
    began_s: float
    at_s: float
    memory_bytes: int | None
    batches: int
    batch_size: int | None
    workers: int
    doubts: tuple[Doubt, ...]
    synced: bool
    world_size: int
    rank: int
    rows: tuple[Row, ...]
    load: Load | None = None


@dataclass(frozen=True, slots=True)
class Measured:
    """A profile of a run, measured from within.

    Attributes:
        framework: that told of the iterations. iterations: done by this process; first_step, steps: see Training.
        timed: of these iterations are the times. iteration_s: mean time of one.
        storage_s … rest_s: the parts of an iteration, one after the other: waits for storage and for the CPU's work on
            batches, computing, communication that nothing hides, waits for a turn, and all else. They add up to it.
        stages_s: seconds per iteration on storage, CPU, GPU and network, whether or not they are hidden behind each
            other: what a profile has.
        noise: how far windows of iterations differ (standard deviation over mean, of their middle half). drift: change
            of the iteration time from the first quarter to the last, as a share.
        prefetches: batches are made while it computes. workers: processes that make them. batches: in an iteration.
        memory_mib: most that the framework took of a GPU. cores: of the machine.
        doubts: what could not be measured.
    """

    framework: str
    iterations: int
    first_step: int
    steps: int | None
    began_s: float
    at_s: float
    timed: int
    iteration_s: float
    storage_s: float
    cpu_s: float
    gpu_s: float
    network_s: float
    turn_s: float
    rest_s: float
    stages_s: tuple[float, float, float, float]
    noise: float | None
    drift: float | None
    prefetches: bool
    workers: int
    batches: float
    batch_size: int | None
    memory_mib: int | None
    world_size: int
    cores: int
    doubts: tuple[Doubt, ...] = ()

    @property
    def rate_per_s(self) -> float:
        """Iterations per second."""
        return 1.0 / self.iteration_s

    @property
    def wait_s(self) -> float:
        """Seconds of an iteration in which it waits for data."""
        return self.storage_s + self.cpu_s

    @property
    def compute_ratio(self) -> float | None:
        """Computing over communication; None: it does not communicate."""
        return self.stages_s[2] / self.stages_s[3] if self.stages_s[3] > 0 else None


def progress_by(training: Training) -> dict[str, object]:
    """What a job would report of its progress, as core/progress.py reads it, by what hooks recorded of it."""
    step = training.first_step + training.iterations
    told: dict[str, object] = {
        "step": step,
        "first_step": training.first_step + 1,  # the record begins with the end of the first iteration
        "first_s": training.began_s,
        "at_s": training.at_s,
        "by": "hooks",
    }
    if training.steps is not None:
        told["steps"] = training.steps
        told["fraction"] = min(1.0, step / training.steps)
    return told


def with_hooks(told: Mapping[str, object], training: Training | None, measured: Measured | None) -> dict[str, object]:
    """What a job reports of its progress, with what hooks saw of it: its steps, where it tells none, its speed, and a
    bar of its stages. measured: its profile, if there is one."""
    if training is None:
        return dict(told)
    seen: dict[str, object] = {} if "step" in told else progress_by(training)
    if measured is not None:
        seen |= {"it_per_s": float(f"{measured.rate_per_s:.4g}"), "stages": stage_bar(measured)}
    return {**seen, **told}


BAR = 10
LETTERS = "scgnt."
"""In a bar of stages: storage, CPU, GPU, network, waits for turns, the rest."""


def stage_bar(measured: Measured) -> str:
    """The parts of an iteration as ten letters in their order: 'ssccggggn.' (LETTERS). They are shared out by largest
    remainders."""
    m = measured
    parts = (m.storage_s, m.cpu_s, m.gpu_s, m.network_s, m.turn_s, m.rest_s)
    whole = sum_floats(parts)
    exact = [BAR * part / whole for part in parts]
    counts = [int(each) for each in exact]
    by_remainder = sorted(range(len(parts)), key=lambda at: (counts[at] - exact[at], at))
    for at in by_remainder[: BAR - sum_ints(counts)]:
        counts[at] += 1
    return "".join(letter * count for letter, count in zip(LETTERS, counts, strict=True))


def measured_of(training: Training, cores: int) -> Measured | None:
    """The profile; None: fewer than two iterations were timed."""
    rows = training.rows
    if len(rows) > 2 * WARM_UP:
        rows = tuple(row for row in rows if row.number > WARM_UP)
    if len(rows) < FEWEST_ROWS:
        return None
    windows = _windows(rows, training.workers)
    usual = _middle(windows)
    used = [row for window in usual for row in window]
    count = sum_ints(row.count for row in used)

    def mean(name: str) -> float:
        return sum_floats(getattr(row, name) for row in used) / count

    took, wait = mean("took"), max(mean("wait"), 0.0)
    inside = mean("storage"), mean("cpu")
    comm, hidden = _sync(rows)
    device = [row.device for row in used if row.device is not None]
    exposed = max(comm - hidden, 0.0)
    network, turn = mean("network"), mean("turn")
    gpu = mean("gpu") if not device else sum_floats(device) / count
    gpu = max(min(gpu, took) - exposed, 0.0)
    batches = sum_ints(row.batches for row in used) / count
    storage, cpu, stage_storage, stage_cpu, split = _loading(training, inside, wait, batches)
    doubts = set(training.doubts) | (set() if split else {Doubt.SPLIT})
    if len(windows) < 4:
        doubts.add(Doubt.FEW)
    rest = took - storage - cpu - gpu - exposed - network - turn
    return Measured(
        framework=training.framework,
        iterations=training.iterations,
        first_step=training.first_step,
        steps=training.steps,
        began_s=training.began_s,
        at_s=training.at_s,
        timed=count,
        iteration_s=took,
        storage_s=storage,
        cpu_s=cpu,
        gpu_s=gpu,
        network_s=exposed + network,
        turn_s=turn,
        rest_s=max(rest, 0.0),
        stages_s=(stage_storage, stage_cpu, gpu, comm + network),
        noise=_noise(windows),
        drift=_drift(windows),
        prefetches=training.workers > 0,
        workers=training.workers,
        batches=batches,
        batch_size=training.batch_size,
        memory_mib=None if training.memory_bytes is None else -(-training.memory_bytes // (1 << 20)),
        world_size=training.world_size,
        cores=cores,
        doubts=tuple(sorted(doubts)),
    )


def _loading(
    training: Training, inside: tuple[float, float], wait: float, batches: float
) -> tuple[float, float, float, float, bool]:
    """Of an iteration: waits for storage and for CPU, the stages of both, and whether the two are told apart.

    Work of W workers takes 1/W of its time, as W batches are made at a time.
    """
    load = training.load
    if training.workers and load is not None and load.batches:
        both = load.storage_s + load.cpu_s
        share = load.storage_s / both if both > 0 else 0.0
        scale = batches / load.batches / training.workers
        return (
            inside[0] + wait * share,
            inside[1] + wait * (1.0 - share),
            inside[0] + load.storage_s * scale,
            inside[1] + load.cpu_s * scale,
            True,
        )
    split = not training.workers or wait == 0.0
    # What is left of a wait in the thread itself is its own work: the sampler's, say.
    return inside[0], inside[1] + wait, inside[0], inside[1] + wait, split


def _sync(rows: Sequence[Row]) -> tuple[float, float]:
    """Seconds of gradient sync in an iteration, and of these hidden behind computing: medians of the rows that tell."""
    told = [(row.comm / row.count, (row.overlap or 0.0) / row.count) for row in rows if row.comm is not None]
    if not told:
        return 0.0, 0.0
    return _median([comm for comm, _ in told]), _median([overlap for _, overlap in told])


def _windows(rows: Sequence[Row], workers: int) -> list[Sequence[Row]]:
    """Rows in windows of a whole number of rounds of the loader's workers; the oldest that fill none are left out."""
    size = max(workers, 1)
    size *= max(math.ceil(len(rows) / (size * MOST_WINDOWS)), 1)
    if len(rows) < 2 * size:
        return [rows]
    return [rows[at : at + size] for at in range(len(rows) % size, len(rows), size)]


def _iteration_s(window: Sequence[Row]) -> float:
    return sum_floats(row.took for row in window) / sum_ints(row.count for row in window)


def _middle(windows: Sequence[Sequence[Row]]) -> list[Sequence[Row]]:
    """Without the quickest and the slowest quarter."""
    by_time = sorted(windows, key=_iteration_s)
    cut = len(by_time) // 4
    return by_time[cut : len(by_time) - cut]


def _noise(windows: Sequence[Sequence[Row]]) -> float | None:
    """The interquartile range as a standard deviation (a normal distribution has 1.349 of them), over the median."""
    if len(windows) < 4:
        return None
    times = sorted(map(_iteration_s, windows))
    n = len(times)
    middle = _median(times)
    return (times[(3 * n) // 4] - times[n // 4]) / 1.349 / middle if middle > 0 else None


def _drift(windows: Sequence[Sequence[Row]]) -> float | None:
    if len(windows) < 8:
        return None
    times = list(map(_iteration_s, windows))
    quarter = len(times) // 4
    first, last = _median(times[:quarter]), _median(times[-quarter:])
    return last / first - 1.0 if first > 0 else None


def _median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    n = len(ordered)
    return (ordered[(n - 1) // 2] + ordered[n // 2]) / 2.0
