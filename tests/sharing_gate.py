"""The admission rule's C functions (native/interposer/admission.h), called as the shim and the simulator call them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

from gpuloom.core.errors import InputError
from gpuloom.sharing.rule import U64, CKernel, Kernel, Params, _fits, reason_name
from gpuloom.sharing.shim.native import VERSION, library

KINDS = ("kernel", "graph", "memory", "warm-up")
UNKNOWN_SLACK = -(2**63)


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
        ("spare_ns", ctypes.c_uint64),
        ("lag_ns", ctypes.c_uint64),
        ("reserved", ctypes.c_uint64 * 2),
    )


class CVerdict(ctypes.Structure):
    """struct gl_verdict."""

    _fields_ = (
        ("admit", ctypes.c_uint32),
        ("reason", ctypes.c_uint32),
        ("interference", ctypes.c_double),
        ("charge_ns", ctypes.c_uint64),
        ("recheck_ns", ctypes.c_uint64),
        ("lag_ns", ctypes.c_uint64),
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
    spare_ns: int = 0
    lag_ns: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a launch goes now, and why."""

    admit: bool
    reason: str
    interference: float
    charge_ns: int
    recheck_ns: int
    lag_ns: int = 0


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
        spare_ns=_fits("spare_ns", s.spare_ns, U64),
        lag_ns=_fits("lag_ns", s.lag_ns, U64),
    )
    verdict = CVerdict()
    c_params, c_kernel = params.as_c(), kernel.as_c()
    _bound().gl_admit(ctypes.byref(c_params), ctypes.byref(state), ctypes.byref(c_kernel), ctypes.byref(verdict))
    return Verdict(
        bool(verdict.admit),
        reason_name(verdict.reason),
        verdict.interference,
        verdict.charge_ns,
        verdict.recheck_ns,
        verdict.lag_ns,
    )


def interference(params: Params, kernel: Kernel, hp: Kernel, sm_count: int) -> float:
    """The score 0..1 of a best-effort kernel beside a high-priority one."""
    p, k, h = params.as_c(), kernel.as_c(), hp.as_c()
    return float(_bound().gl_interference(ctypes.byref(p), ctypes.byref(k), ctypes.byref(h), sm_count))


@cache
def _bound() -> ctypes.CDLL:
    """The library with its functions' types."""
    lib = library()
    pointer = ctypes.c_void_p
    lib.gl_admit.argtypes, lib.gl_admit.restype = [pointer] * 4, None
    lib.gl_interference.argtypes, lib.gl_interference.restype = [pointer] * 3 + [ctypes.c_uint32], ctypes.c_double
    lib.gl_struct_size.argtypes, lib.gl_struct_size.restype = [ctypes.c_uint32], ctypes.c_uint32
    lib.gl_tail_add.argtypes, lib.gl_tail_add.restype = [pointer, ctypes.c_uint64, ctypes.c_uint64], ctypes.c_uint64
    lib.gl_tail_quantile.argtypes, lib.gl_tail_quantile.restype = [pointer, ctypes.c_double], ctypes.c_uint64
    lib.gl_tail_budget.argtypes, lib.gl_tail_budget.restype = [pointer, pointer, ctypes.c_uint64], ctypes.c_int64
    lib.gl_tail_load.argtypes, lib.gl_tail_load.restype = [pointer], ctypes.c_double
    lib.gl_tail_done.argtypes = [pointer, pointer, ctypes.c_uint64, ctypes.c_uint64]
    lib.gl_tail_done.restype = ctypes.c_double
    assert [lib.gl_struct_size(index) for index in (2, 3)] == [ctypes.sizeof(CState), ctypes.sizeof(CVerdict)]
    return lib
