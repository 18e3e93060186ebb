"""The admission rule: a thin binding of the C function `gl_admit` (native/interposer/admission.h).

There is one implementation, in C. The shim calls it in the launch path, the simulator calls it inside its event loop,
and this module calls it for tests and tools. Times are nanoseconds, utilisations 0..1, None where unknown.
"""

from __future__ import annotations

import ctypes
import math
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from typing import TYPE_CHECKING

from gpuloom.core.errors import GpuloomError, InputError
from gpuloom.sharing.shim.native import VERSION, library

if TYPE_CHECKING:
    from collections.abc import Sequence

RULES = ("none", "priority", "orion", "gpuloom")
CLASSES = ("unknown", "compute", "memory")
KINDS = ("kernel", "graph", "memory", "warm-up")
U64 = 2**64 - 1
UNKNOWN_SLACK = -(2**63)


class CKernel(ctypes.Structure):
    """struct gl_kernel."""

    _fields_ = (
        ("sm", ctypes.c_uint32),
        ("klass", ctypes.c_uint32),
        ("compute", ctypes.c_double),
        ("dram", ctypes.c_double),
        ("duration_ns", ctypes.c_uint64),
    )


class CParams(ctypes.Structure):
    """struct gl_params."""

    _fields_ = (
        ("version", ctypes.c_uint32),
        ("rule", ctypes.c_uint32),
        ("interference_threshold", ctypes.c_double),
        ("same_class_penalty", ctypes.c_double),
        ("unknown_utilisation", ctypes.c_double),
        ("duration_threshold", ctypes.c_double),
        ("max_hold_ns", ctypes.c_uint64),
        ("unknown_duration_ns", ctypes.c_uint64),
        ("idle_window_ns", ctypes.c_uint64),
        ("look_ahead", ctypes.c_uint32),
        ("lone", ctypes.c_uint32),
        ("idle_window", ctypes.c_double),
        ("budget", ctypes.c_double),
        ("price", ctypes.c_double),
        ("steepness", ctypes.c_double),
        ("target", ctypes.c_double),
        ("confidence", ctypes.c_double),
        ("overrun", ctypes.c_double),
        ("cache", ctypes.c_double),
        ("begin", ctypes.c_double),
        ("least", ctypes.c_double),
        ("step", ctypes.c_double),
        ("fall", ctypes.c_double),
        ("launch_ns", ctypes.c_uint64),
        ("reserved", ctypes.c_uint64 * 3),
    )


class CState(ctypes.Structure):
    """struct gl_state."""

    _fields_ = (
        ("version", ctypes.c_uint32),
        ("sm_count", ctypes.c_uint32),
        ("hp_busy", ctypes.c_uint32),
        ("hp_count", ctypes.c_uint32),
        ("hp", ctypes.POINTER(CKernel)),
        ("hp_elapsed_ns", ctypes.c_uint64),
        ("request_ns", ctypes.c_uint64),
        ("outstanding_ns", ctypes.c_uint64),
        ("outstanding", ctypes.c_uint32),
        ("outstanding_sm", ctypes.c_uint32),
        ("accumulated_ns", ctypes.c_uint64),
        ("pass_sm", ctypes.c_uint32),
        ("kind", ctypes.c_uint32),
        ("held_ns", ctypes.c_uint64),
        ("slack_ns", ctypes.c_int64),
        ("requests", ctypes.c_uint32),
        ("pad", ctypes.c_uint32),
        ("price_scale", ctypes.c_double),
        ("load", ctypes.c_double),
        ("backlog_ns", ctypes.c_uint64),
        ("reserved", ctypes.c_uint64 * 4),
    )


class CVerdict(ctypes.Structure):
    """struct gl_verdict."""

    _fields_ = (
        ("admit", ctypes.c_uint32),
        ("reason", ctypes.c_uint32),
        ("interference", ctypes.c_double),
        ("charge_ns", ctypes.c_uint64),
        ("recheck_ns", ctypes.c_uint64),
    )


class CTail(ctypes.Structure):
    """struct gl_tail."""

    _fields_ = (
        ("count", ctypes.c_uint32),
        ("bucket", ctypes.c_uint32 * 1024),
        ("done", ctypes.c_uint32),
        ("finish_ns", ctypes.c_uint64),
        ("scale", ctypes.c_double),
        ("first_ns", ctypes.c_uint64),
        ("last_ns", ctypes.c_uint64),
        ("alone_ns", ctypes.c_uint64),
        ("seen", ctypes.c_uint32 * 2048),
    )


@dataclass(frozen=True, slots=True)
class Kernel:
    """What the rule knows of a kernel.

    Attributes:
        sm: SMs that its blocks would fill, `ceil(blocks / blocks per SM)`, not capped at the device's.
        klass: "compute", "memory" or "unknown".
        compute, dram: utilisation of the compute units and of memory bandwidth, 0..1, None unknown.
        duration_ns: alone; 0 unknown.
    """

    sm: int
    klass: str = "unknown"
    compute: float | None = None
    dram: float | None = None
    duration_ns: int = 0

    def as_c(self) -> CKernel:
        """The struct. Raises InputError if a value does not fit it."""
        if self.klass not in CLASSES:
            raise InputError(f"class {self.klass!r} of a kernel must be one of {', '.join(CLASSES)}")
        return CKernel(
            _fits("sm", self.sm, 2**32 - 1),
            CLASSES.index(self.klass),
            -1.0 if self.compute is None else self.compute,
            -1.0 if self.dram is None else self.dram,
            _fits("duration_ns", self.duration_ns, U64),
        )


@dataclass(frozen=True, slots=True)
class Params:
    """Parameters of a rule; `Params.default(rule)` has the defaults that docs/explanation/sharing.md explains."""

    rule: str
    interference_threshold: float = 0.5
    same_class_penalty: float = 0.25
    unknown_utilisation: float = 0.5
    duration_threshold: float = 0.025
    max_hold_ns: int = 100_000_000
    unknown_duration_ns: int = 100_000
    idle_window_ns: int = 0
    look_ahead: int = 0
    lone: int = 0
    idle_window: float = 0.0
    budget: float = 0.0
    price: float = 0.0
    steepness: float = 0.0
    target: float = 0.0
    confidence: float = 0.0
    overrun: float = 0.0
    cache: float = 0.0
    begin: float = 1.0
    least: float = 0.0
    step: float = 0.0
    fall: float = 0.0
    launch_ns: int = 0

    @classmethod
    def default(cls, rule: str) -> Params:
        """The documented defaults of a rule, as the C function has them. Raises InputError if it is unknown."""
        if rule not in RULES:
            raise InputError(f"no sharing rule {rule!r}; there are {', '.join(RULES)}")
        c = CParams()
        _bound().gl_params_default(ctypes.byref(c), RULES.index(rule))
        return cls(rule, **{f.name: getattr(c, f.name) for f in fields(cls) if f.name != "rule"})

    def as_c(self) -> CParams:
        """The struct. Raises InputError if a value is out of its range."""
        if self.rule not in RULES:
            raise InputError(f"no sharing rule {self.rule!r}; there are {', '.join(RULES)}")
        c = CParams(version=VERSION, rule=RULES.index(self.rule))
        for name, value in asdict(self).items():
            if name == "rule":
                continue
            if isinstance(value, float) and not (math.isfinite(value) and value >= 0):
                raise InputError(f"{name} of a sharing rule is {value}, must be a number from 0")
            setattr(c, name, value if isinstance(value, float) else _fits(name, value, _LIMITS.get(name, U64)))
        return c


_LIMITS = {"look_ahead": 1, "lone": 2**32 - 1}


@dataclass(frozen=True, slots=True)
class Situation:
    """What the gate knows when a best-effort program launches; attributes as `struct gl_state` explains them."""

    sm_count: int
    hp_busy: bool = False
    hp: Sequence[Kernel] = ()
    hp_elapsed_ns: int = 0
    request_ns: int = 0
    outstanding_ns: int = 0
    outstanding: int = 0
    outstanding_sm: int = 0
    accumulated_ns: int = 0
    pass_sm: int = 0
    kind: str = "kernel"
    held_ns: int = 0
    slack_ns: int | None = None
    requests: int = 1
    price_scale: float = 0.0
    load: float = 0.0
    backlog_ns: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a launch goes now, and why."""

    admit: bool
    reason: str
    interference: float
    charge_ns: int
    recheck_ns: int


@dataclass(slots=True)
class Tail:
    """The service's latency as it would be alone: a virtual queue fed with the real arrivals (`struct gl_tail`)."""

    c: CTail = field(default_factory=CTail)

    def add(self, arrival_ns: int, alone_ns: int) -> int:
        """Take in a request; returns when it would finish alone."""
        return int(_bound().gl_tail_add(ctypes.byref(self.c), arrival_ns, alone_ns))

    def quantile_ns(self, quantile: float) -> int:
        """A quantile 0..1 of the virtual latencies, within 2.2 %; 0 before the first request."""
        return int(_bound().gl_tail_quantile(ctypes.byref(self.c), quantile))

    def budget_ns(self, params: Params, virtual_latency_ns: int) -> int:
        """By how much a request of this virtual latency may be delayed."""
        p = params.as_c()
        return int(_bound().gl_tail_budget(ctypes.byref(p), ctypes.byref(self.c), virtual_latency_ns))

    def load(self) -> float:
        """Share of the time that the service is busy, alone; 0 before the third request."""
        return float(_bound().gl_tail_load(ctypes.byref(self.c)))

    def done(self, params: Params, virtual_latency_ns: int, latency_ns: int) -> float:
        """A request has finished; returns the scale of the price from now on."""
        p = params.as_c()
        return float(_bound().gl_tail_done(ctypes.byref(p), ctypes.byref(self.c), virtual_latency_ns, latency_ns))


def admit(params: Params, situation: Situation, kernel: Kernel) -> Verdict:
    """Ask the C function whether a best-effort kernel may be launched now.

    Raises:
        InputError: a value does not fit its field.
    """
    s = situation
    if s.kind not in KINDS:
        raise InputError(f"kind {s.kind!r} of a launch must be one of {', '.join(KINDS)}")
    queue = (CKernel * max(1, len(s.hp)))(*(k.as_c() for k in s.hp))
    state = CState(
        version=VERSION,
        sm_count=_fits("sm_count", s.sm_count, 2**32 - 1),
        hp_busy=int(s.hp_busy),
        hp_count=len(s.hp),
        hp=ctypes.cast(queue, ctypes.POINTER(CKernel)),
        hp_elapsed_ns=_fits("hp_elapsed_ns", s.hp_elapsed_ns, U64),
        request_ns=_fits("request_ns", s.request_ns, U64),
        outstanding_ns=_fits("outstanding_ns", s.outstanding_ns, U64),
        outstanding=_fits("outstanding", s.outstanding, 2**32 - 1),
        outstanding_sm=_fits("outstanding_sm", s.outstanding_sm, 2**32 - 1),
        accumulated_ns=_fits("accumulated_ns", s.accumulated_ns, U64),
        pass_sm=_fits("pass_sm", s.pass_sm, 2**32 - 1),
        kind=KINDS.index(s.kind),
        held_ns=_fits("held_ns", s.held_ns, U64),
        slack_ns=UNKNOWN_SLACK if s.slack_ns is None else s.slack_ns,
        requests=_fits("requests", s.requests, 2**32 - 1),
        price_scale=s.price_scale,
        load=s.load,
        backlog_ns=_fits("backlog_ns", s.backlog_ns, U64),
    )
    verdict = CVerdict()
    c_params, c_kernel = params.as_c(), kernel.as_c()
    _bound().gl_admit(ctypes.byref(c_params), ctypes.byref(state), ctypes.byref(c_kernel), ctypes.byref(verdict))
    return Verdict(
        bool(verdict.admit), reason_name(verdict.reason), verdict.interference, verdict.charge_ns, verdict.recheck_ns
    )


def interference(params: Params, kernel: Kernel, hp: Kernel, sm_count: int) -> float:
    """The score 0..1 of a best-effort kernel beside a high-priority one."""
    p, k, h = params.as_c(), kernel.as_c(), hp.as_c()
    return float(_bound().gl_interference(ctypes.byref(p), ctypes.byref(k), ctypes.byref(h), sm_count))


def reason_name(code: int) -> str:
    """The short name of a reason's number."""
    name: bytes = _bound().gl_reason_name(code)
    return name.decode()


def _fits(name: str, value: int, limit: int) -> int:
    if not 0 <= value <= limit:
        raise InputError(f"{name} is {value}, must be from 0 to {limit}")
    return value


@cache
def _bound() -> ctypes.CDLL:
    """The library with its functions' types. Raises GpuloomError if its layout is not the one declared here."""
    lib = library()
    pointer = ctypes.c_void_p
    lib.gl_params_default.argtypes, lib.gl_params_default.restype = [pointer, ctypes.c_uint32], None
    lib.gl_admit.argtypes, lib.gl_admit.restype = [pointer] * 4, None
    lib.gl_interference.argtypes, lib.gl_interference.restype = [pointer] * 3 + [ctypes.c_uint32], ctypes.c_double
    lib.gl_reason_name.argtypes, lib.gl_reason_name.restype = [ctypes.c_uint32], ctypes.c_char_p
    lib.gl_struct_size.argtypes, lib.gl_struct_size.restype = [ctypes.c_uint32], ctypes.c_uint32
    lib.gl_tail_add.argtypes, lib.gl_tail_add.restype = [pointer, ctypes.c_uint64, ctypes.c_uint64], ctypes.c_uint64
    lib.gl_tail_quantile.argtypes, lib.gl_tail_quantile.restype = [pointer, ctypes.c_double], ctypes.c_uint64
    lib.gl_tail_budget.argtypes, lib.gl_tail_budget.restype = [pointer, pointer, ctypes.c_uint64], ctypes.c_int64
    lib.gl_tail_load.argtypes, lib.gl_tail_load.restype = [pointer], ctypes.c_double
    lib.gl_tail_done.argtypes = [pointer, pointer, ctypes.c_uint64, ctypes.c_uint64]
    lib.gl_tail_done.restype = ctypes.c_double
    for index, struct in enumerate((CKernel, CParams, CState, CVerdict)):
        if lib.gl_struct_size(index) != ctypes.sizeof(struct):
            raise GpuloomError(
                f"the compiled admission rule has another layout of {struct.__name__[1:].lower()} than this gpuloom "
                f"({lib.gl_struct_size(index)} bytes, not {ctypes.sizeof(struct)}); install gpuloom again"
            )
    return lib
