"""The admission rule's parameters, and what it knows of kernels (native/interposer/admission.h).

The rule stands once, in C: the shim calls it in the launch path, the simulator inside its event loop. Times are
nanoseconds, utilisations 0..1, None where unknown.
"""

from __future__ import annotations

import ctypes
import math
from dataclasses import asdict, dataclass, fields
from functools import cache

from gpuloom.core.errors import GpuloomError, InputError
from gpuloom.sharing.shim.native import VERSION, library

RULES = ("none", "priority", "orion", "gpuloom", "literal")
"""By their numbers in C. literal: as the patent application has it, without what gpuloom adds."""
COMPARED = ("none", "priority", "orion", "gpuloom")
"""Rules that are compared where none is asked for."""
CLASSES = ("unknown", "compute", "memory")
U64 = 2**64 - 1


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
        ("absorb", ctypes.c_double),
        ("reserved", ctypes.c_uint64 * 2),
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
    absorb: float = 0.0

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
    lib.gl_reason_name.argtypes, lib.gl_reason_name.restype = [ctypes.c_uint32], ctypes.c_char_p
    lib.gl_struct_size.argtypes, lib.gl_struct_size.restype = [ctypes.c_uint32], ctypes.c_uint32
    for index, struct in enumerate((CKernel, CParams)):
        if lib.gl_struct_size(index) != ctypes.sizeof(struct):
            raise GpuloomError(
                f"the compiled admission rule has another layout of {struct.__name__[1:].lower()} than this gpuloom "
                f"({lib.gl_struct_size(index)} bytes, not {ctypes.sizeof(struct)}); install gpuloom again"
            )
    return lib
