"""One GPU on a virtual clock: a service and a training job share it under an admission rule.

The event loop is C (native/interposer/virtual_gpu.c), because a pair has millions of kernels; it asks the same
`gl_admit` as the shim, at the same place: inside the launch call of the best-effort program. This module prepares the
input, draws the arrivals, runs the service and the training job alone for comparison, and sums up.

What is modelled, from which sources, and what is not: docs/explanation/sharing.md.
"""

from __future__ import annotations

import ctypes
import math
import threading
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuloom.core.errors import GpuloomError, InputError
from gpuloom.sharing.rule import CKernel, CParams, Params, reason_name
from gpuloom.sharing.shim.native import library

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gpuloom.sharing.profiles import KernelProfile

REASONS = 19
SPANS = ("high", "best-effort", "hold")
MOST_VIRTUAL_S = 86_400.0
"""Longest time that is simulated: beyond, a mistyped rate is more likely than patience."""
LOOK_EVERY_S = 0.2
NOT_RUN = 2**32 - 1


class CSpan(ctypes.Structure):
    """struct gl_span."""

    _fields_ = (
        ("start_ns", ctypes.c_double),
        ("end_ns", ctypes.c_double),
        ("kind", ctypes.c_uint32),
        ("value", ctypes.c_uint32),
    )


class CSim(ctypes.Structure):
    """struct gl_sim."""

    _fields_ = (
        ("version", ctypes.c_uint32),
        ("sm_count", ctypes.c_uint32),
        ("params", ctypes.POINTER(CParams)),
        ("high", ctypes.POINTER(CKernel)),
        ("best_effort", ctypes.POINTER(CKernel)),
        ("arrival_ns", ctypes.c_void_p),
        ("high_count", ctypes.c_uint32),
        ("best_effort_count", ctypes.c_uint32),
        ("requests", ctypes.c_uint32),
        ("queue_depth", ctypes.c_uint32),
        ("launch_ns", ctypes.c_double),
        ("submit_ns", ctypes.c_double),
        ("gap_ns", ctypes.c_double),
        ("wake_ns", ctypes.c_double),
        ("cache_interference", ctypes.c_double),
        ("jitter", ctypes.c_double),
        ("seed", ctypes.c_uint64),
        ("request_ns", ctypes.c_uint64),
        ("end_ns", ctypes.c_double),
        ("trace_from_ns", ctypes.c_double),
        ("trace_to_ns", ctypes.c_double),
        ("trace_capacity", ctypes.c_uint32),
        ("trace", ctypes.POINTER(CSpan)),
        ("start_ns", ctypes.c_void_p),
        ("finish_ns", ctypes.c_void_p),
    )


class CResult(ctypes.Structure):
    """struct gl_sim_result."""

    _fields_ = (
        ("end_ns", ctypes.c_double),
        ("best_effort_ns", ctypes.c_double),
        ("sm_ns", ctypes.c_double * 2),
        ("held_ns", ctypes.c_double),
        ("max_held_ns", ctypes.c_double),
        ("reason_ns", ctypes.c_double * REASONS),
        ("reason_count", ctypes.c_uint64 * REASONS),
        ("kernels", ctypes.c_uint64 * 2),
        ("held", ctypes.c_uint64),
        ("calls", ctypes.c_uint64),
        ("spans", ctypes.c_uint64),
        ("error", ctypes.c_uint32),
        ("pad", ctypes.c_uint32),
    )


@dataclass(frozen=True, slots=True)
class Machine:
    """What launching costs and how programs get in each other's way; reasons in docs/explanation/sharing.md.

    Attributes:
        launch_us: a launch call, on the CPU.
        submit_us: from the call's return until the GPU can start the kernel.
        gap_us: between dependent kernels of a stream.
        wake_us: from when a held launch may go until its caller goes on.
        cache_interference: slowdown per unit of memory bandwidth that the other program uses.
        jitter: half width of the relative error of kernel durations, uniform.
        queue_depth: launches that may be ahead of the GPU.
    """

    launch_us: float = 4.0
    submit_us: float = 2.0
    gap_us: float = 1.0
    wake_us: float = 3.0
    cache_interference: float = 0.05
    jitter: float = 0.05
    queue_depth: int = 1024

    def __post_init__(self) -> None:
        for name in ("submit_us", "gap_us", "wake_us", "cache_interference", "jitter"):
            value = getattr(self, name)
            if not (math.isfinite(value) and 0 <= value < 1e6) or (name == "jitter" and value >= 1):
                raise InputError(f"{name} is {value}, must be from 0")
        if not (math.isfinite(self.launch_us) and 0 < self.launch_us < 1e6):
            raise InputError(f"launch_us is {self.launch_us}, must be above 0")
        if not 1 <= self.queue_depth <= 2**20:
            raise InputError(f"queue_depth is {self.queue_depth}, must be from 1 to {2**20}")


@dataclass(frozen=True, slots=True)
class Span:
    """Something that lasted: SMs held by a program, or a launch that waited and why."""

    kind: str
    start_ns: float
    end_ns: float
    value: int | str


@dataclass(frozen=True, slots=True)
class Outcome:
    """A pair under one rule. Times of requests from arrival to finish, in milliseconds."""

    rule: str
    requests: int
    load: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    alone_p50_ms: float
    alone_p95_ms: float
    alone_p99_ms: float
    p99_over_alone: float
    best_effort_over_alone: float
    best_effort_it_per_s: float
    best_effort_alone_it_per_s: float
    sm_utilisation: float
    sm_utilisation_high: float
    held_share: float
    max_held_ms: float
    held_launches: int
    admitted: dict[str, int]
    held_first: dict[str, int]
    held_ms: dict[str, float]
    duration_s: float
    kernels: int
    spans: tuple[Span, ...] = field(default=(), repr=False)
    served: tuple[tuple[float, float, float], ...] = field(default=(), repr=False)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, without the timeline."""
        return {name: getattr(self, name) for name in self.__slots__ if name not in ("spans", "served")}


@dataclass(frozen=True, slots=True)
class Raw:
    """What a run of the virtual GPU gives."""

    c: CResult
    start_ns: NDArray[np.float64]
    finish_ns: NDArray[np.float64]
    spans: tuple[Span, ...]


class Pair:
    """A service and a training job on one GPU. Runs alone are made once and shared by all rules.

    Args:
        high: the kernels of a request.
        best_effort: the kernels of a training iteration.
        arrival_s: when requests arrive, ascending.
        seed: of the jitter of kernel durations.

    Raises:
        InputError: profiles of GPUs of different size, arrivals that don't ascend, or more than a day of virtual time.
    """

    def __init__(
        self,
        high: KernelProfile,
        best_effort: KernelProfile,
        arrival_s: NDArray[np.float64],
        machine: Machine | None = None,
        seed: int = 0,
    ) -> None:
        if high.sm_count != best_effort.sm_count:
            raise InputError(
                f"{high.name} was recorded on a GPU of {high.sm_count} SMs, {best_effort.name} on one of "
                f"{best_effort.sm_count}: both must be of one GPU model"
            )
        if (
            len(arrival_s) < 1
            or not np.all(np.isfinite(arrival_s))
            or arrival_s[0] < 0
            or np.any(np.diff(arrival_s) < 0)
        ):
            raise InputError("arrivals must be at least one, finite, from 0, ascending")
        _check_time(float(arrival_s[-1]), len(arrival_s), "arrive over", "a higher rate, or fewer requests")
        self.high, self.best_effort, self.machine, self.seed = high, best_effort, machine or Machine(), seed
        self.arrival_ns = np.ascontiguousarray(np.round(arrival_s * 1e9), dtype=np.uint64)
        self._high, self._best_effort = _kernels(high), _kernels(best_effort)
        self.request_ns = request_alone_ns(high, self.machine)
        _check_time(len(arrival_s) * self.request_ns / 1e9, len(arrival_s), "take", "fewer requests")
        self.iteration_ns = self._iteration_alone()
        alone = self.run(Params.default("none"), best_effort=False)
        self.alone_ns = alone.finish_ns - self.arrival_ns
        self.load = float(self.request_ns * len(self.arrival_ns) / max(1.0, float(alone.c.end_ns)))

    def outcome(self, rule: str, params: Params | None = None, trace_s: tuple[float, float] | None = None) -> Outcome:
        """Run the pair under a rule.

        Args:
            params: of the rule; its defaults if None.
            trace_s: from when to when the timeline is kept.

        Raises:
            InputError: an unknown rule, or bad parameters.
        """
        raw = self.run(params or Params.default(rule), trace_s=trace_s)
        c, latency = raw.c, raw.finish_ns - self.arrival_ns
        shared, alone = _percentiles_ms(latency), _percentiles_ms(self.alone_ns)
        iterations = c.best_effort_ns / self.best_effort.duration_ns
        per_s = iterations / (c.end_ns / 1e9)
        counts = {reason_name(i): int(n) for i, n in enumerate(c.reason_count) if n}
        held = {reason_name(i): n / 1e6 for i, n in enumerate(c.reason_ns) if n}
        sms = c.end_ns * self.high.sm_count
        served: tuple[tuple[float, float, float], ...] = ()
        if trace_s is not None:
            seen = (raw.finish_ns >= trace_s[0] * 1e9) & (self.arrival_ns <= trace_s[1] * 1e9)
            columns = (self.arrival_ns[seen], raw.start_ns[seen], raw.finish_ns[seen])
            served = tuple((float(a), float(s), float(f)) for a, s, f in zip(*columns, strict=True))
        return Outcome(
            rule,
            len(latency),
            self.load,
            shared[0],
            shared[1],
            shared[2],
            alone[0],
            alone[1],
            alone[2],
            shared[2] / alone[2],
            per_s * self.iteration_ns / 1e9,
            per_s,
            1e9 / self.iteration_ns,
            (c.sm_ns[0] + c.sm_ns[1]) / sms,
            c.sm_ns[0] / sms,
            c.held_ns / c.end_ns,
            round(c.max_held_ns / 1e6, 3),  # to the microsecond: the clock's rounding shows beyond
            int(c.held),
            {name: n for name, n in counts.items() if name in _ADMITS},
            {name: n for name, n in counts.items() if name not in _ADMITS},
            held,
            c.end_ns / 1e9,
            int(c.kernels[0] + c.kernels[1]),
            raw.spans,
            served,
        )

    def run(
        self,
        params: Params,
        best_effort: bool = True,
        trace_s: tuple[float, float] | None = None,
        trace_capacity: int = 200_000,
    ) -> Raw:
        """Run the virtual GPU once over all arrivals."""
        count = len(self.arrival_ns)
        start, finish = np.zeros(count), np.zeros(count)
        sim = self._sim(params)
        sim.high, sim.high_count = self._high, len(self._high)
        if best_effort:
            sim.best_effort, sim.best_effort_count = self._best_effort, len(self._best_effort)
        sim.arrival_ns, sim.requests = self.arrival_ns.ctypes.data, count
        sim.start_ns, sim.finish_ns = start.ctypes.data, finish.ctypes.data
        sim.request_ns = round(self.request_ns)
        spans = (CSpan * (trace_capacity if trace_s else 0))()
        if trace_s:
            sim.trace_from_ns, sim.trace_to_ns = trace_s[0] * 1e9, trace_s[1] * 1e9
            sim.trace, sim.trace_capacity = spans, trace_capacity
        result = _simulate(sim, self.arrival_ns, start, finish)
        kept = spans[: min(trace_capacity, result.spans)]
        return Raw(
            result,
            start,
            finish,
            tuple(
                Span(SPANS[s.kind], s.start_ns, s.end_ns, reason_name(s.value) if s.kind == 2 else s.value)
                for s in kept
            ),
        )

    def _iteration_alone(self) -> float:
        """Time of a training iteration alone, in nanoseconds, over several."""
        sim = self._sim(Params.default("none"))
        sim.best_effort, sim.best_effort_count = self._best_effort, len(self._best_effort)
        launches = len(self._best_effort) * self.machine.launch_us * 1e3
        sim.end_ns = 20.0 * max(self.best_effort.duration_ns, launches)
        result = _simulate(sim)
        return float(result.end_ns * self.best_effort.duration_ns / result.best_effort_ns)

    def _sim(self, params: Params) -> CSim:
        m = self.machine
        return CSim(
            version=1,
            sm_count=self.high.sm_count,
            params=ctypes.pointer(params.as_c()),
            queue_depth=m.queue_depth,
            launch_ns=m.launch_us * 1e3,
            submit_ns=m.submit_us * 1e3,
            gap_ns=m.gap_us * 1e3,
            wake_ns=m.wake_us * 1e3,
            cache_interference=m.cache_interference,
            jitter=m.jitter,
            seed=self.seed & (2**64 - 1),
        )


_ADMITS = ("free", "idle", "beside", "exempt", "max_hold", "priced")


def request_alone_ns(profile: KernelProfile, machine: Machine) -> float:
    """Time of one request alone, kernels as long as recorded, in nanoseconds."""
    sim = CSim(version=1, sm_count=profile.sm_count, params=ctypes.pointer(Params.default("none").as_c()))
    kernels = _kernels(profile)
    arrival, start, finish = np.zeros(1, np.uint64), np.zeros(1), np.zeros(1)
    sim.high, sim.high_count, sim.requests, sim.queue_depth = kernels, len(kernels), 1, 1
    sim.arrival_ns, sim.start_ns, sim.finish_ns = arrival.ctypes.data, start.ctypes.data, finish.ctypes.data
    sim.launch_ns, sim.submit_ns, sim.gap_ns = machine.launch_us * 1e3, machine.submit_us * 1e3, machine.gap_us * 1e3
    _simulate(sim, arrival, start, finish)
    return float(finish[0])


def poisson_arrivals(rate_per_s: float, requests: int, seed: int) -> NDArray[np.float64]:
    """Arrivals of a Poisson process, in seconds.

    Raises:
        InputError: a rate or a number that is not above 0.
    """
    if not (math.isfinite(rate_per_s) and rate_per_s > 0):
        raise InputError(f"a rate of {rate_per_s} requests/s, must be above 0")
    if not 1 <= requests <= 10_000_000:
        raise InputError(f"{requests} requests, must be from 1 to 10,000,000")
    gaps: NDArray[np.float64] = np.random.default_rng(seed).exponential(1.0 / rate_per_s, requests)
    with np.errstate(over="ignore"):  # what is infinite is refused where arrivals are used
        return np.cumsum(gaps)


def trace_arrivals(gaps_s: Sequence[float], requests: int, rate_per_s: float | None = None) -> NDArray[np.float64]:
    """Arrivals with recorded gaps, repeated as often as needed; scaled to a rate if one is given.

    Raises:
        InputError: no gaps, or one that is not a number from 0.
    """
    gaps = np.asarray(gaps_s, dtype=np.float64)
    if gaps.ndim != 1 or not len(gaps) or not np.all(np.isfinite(gaps)) or gaps.min() < 0 or gaps.max() <= 0:
        raise InputError("gaps between requests must be numbers from 0, at least one of them above 0")
    if gaps.max() > MOST_VIRTUAL_S:
        raise InputError(f"a gap of {gaps.max():.4g} s between requests: at most a day ({MOST_VIRTUAL_S:,.0f} s)")
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):  # refused where arrivals are used
        if rate_per_s is not None:
            gaps = gaps / (gaps.mean() * rate_per_s)
        return np.cumsum(np.resize(gaps, requests))


def _percentiles_ms(latency_ns: NDArray[np.float64]) -> tuple[float, float, float]:
    p50, p95, p99 = (float(value) / 1e6 for value in np.percentile(latency_ns, (50, 95, 99)))
    return p50, p95, p99


def _kernels(profile: KernelProfile) -> Any:
    records = [record.as_kernel().as_c() for record in profile.records]
    return (CKernel * len(profile.order))(*(records[index] for index in profile.order))


def _check_time(time_s: float, requests: int, verb: str, cure: str) -> None:
    if time_s > MOST_VIRTUAL_S:
        raise InputError(
            f"{requests:,} requests {verb} {time_s:.4g} s of virtual time, at most a day ({MOST_VIRTUAL_S:,.0f} s) is "
            f"simulated: give {cure}"
        )


def _simulate(sim: CSim, *arrays: NDArray[Any]) -> CResult:
    """Run the virtual GPU in a thread of its own: Python handles no signal while its main thread is inside C.

    Args:
        arrays: to which `sim` has bare pointers. The thread keeps them, as it outlives a caller that is interrupted.
    """
    result = CResult(error=NOT_RUN)
    thread = threading.Thread(target=_run, args=(sim, result, arrays), name="virtual-gpu", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(LOOK_EVERY_S)
    if result.error:
        raise GpuloomError(f"the virtual GPU stopped with error {result.error}, please report")
    return result


def _run(sim: CSim, result: CResult, _kept: tuple[NDArray[Any], ...]) -> None:
    _bound().gl_simulate(ctypes.byref(sim), ctypes.byref(result))


@cache
def _bound() -> ctypes.CDLL:
    lib = library()
    lib.gl_simulate.argtypes, lib.gl_simulate.restype = [ctypes.c_void_p] * 2, None
    lib.gl_sim_size.argtypes, lib.gl_sim_size.restype = [ctypes.c_uint32], ctypes.c_uint32
    for index, struct in enumerate((CSim, CResult, CSpan)):
        if lib.gl_sim_size(index) != ctypes.sizeof(struct):
            raise GpuloomError(
                f"the compiled virtual GPU has another layout of {struct.__name__[1:]}; install gpuloom again"
            )
    return lib
