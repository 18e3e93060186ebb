"""How many blocks of a kernel fit on an SM, and so how many SMs a kernel needs.

Limits by compute capability: NVIDIA, CUDA Programming Guide, appendix "Compute Capabilities", table "Technical
Specifications per Compute Capability" (resident warps, resident blocks, 32-bit registers and shared memory per SM).
Resident blocks, the sizes that shared memory can be set to, and granularities of allocation (registers by warp in units
of 256, four parts of an SM, shared memory in units of 256 B on 7.x and 128 B since 8.0) are also in NVIDIA's
`cuda_occupancy.h` of CUDA 12.9, by which the tests check all of them. Since 8.0 the system keeps 1 KiB of it per
block (Ampere tuning guide). The shared memory is the largest that an SM can be set to.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuloom.core.errors import InputError

WARP = 32
REGISTER_UNIT = 256
WARP_STEP = 4
MAX_THREADS = 1024
MAX_REGISTERS = 255


@dataclass(frozen=True, slots=True)
class Limits:
    """What an SM holds: warps, blocks, 32-bit registers, bytes of shared memory; bytes a shared block is rounded up to,
    and bytes the system keeps per block."""

    warps: int
    blocks: int
    registers: int
    shared_bytes: int
    shared_unit: int
    reserved_bytes: int


LIMITS = {
    "7.0": Limits(64, 32, 65536, 98304, 256, 0),
    "7.5": Limits(32, 16, 65536, 65536, 256, 0),
    "8.0": Limits(64, 32, 65536, 167936, 128, 1024),
    "8.6": Limits(48, 16, 65536, 102400, 128, 1024),
    "8.9": Limits(48, 24, 65536, 102400, 128, 1024),
    "9.0": Limits(64, 32, 65536, 233472, 128, 1024),
    "10.0": Limits(64, 32, 65536, 233472, 128, 1024),
    "12.0": Limits(48, 24, 65536, 102400, 128, 1024),
}


def limits_of(cc: str) -> Limits:
    """The limits of a compute capability ("8.0"). Raises InputError if it is not known."""
    if cc not in LIMITS:
        raise InputError(f"compute capability {cc!r} is not known; there are {', '.join(LIMITS)}")
    return LIMITS[cc]


def blocks_per_sm(cc: str, threads: int, registers: int = 0, shared_bytes: int = 0) -> int:
    """Blocks of a kernel that are resident on one SM at a time.

    Args:
        threads: per block.
        registers: per thread; 0 where unknown.
        shared_bytes: per block, static and dynamic.

    Raises:
        InputError: unknown compute capability, or a kernel that can't be launched on it.
    """
    limits = limits_of(cc)
    if not 1 <= threads <= MAX_THREADS:
        raise InputError(f"a block of {threads} threads, must have 1 to {MAX_THREADS}")
    if not 0 <= registers <= MAX_REGISTERS:
        raise InputError(f"{registers} registers per thread, must be 0 to {MAX_REGISTERS}")
    if shared_bytes < 0:
        raise InputError(f"{shared_bytes} bytes of shared memory, must be 0 or more")
    warps = -(-threads // WARP)
    fitting = [limits.warps // warps, limits.blocks]
    if registers:
        per_warp = _up(registers * WARP, REGISTER_UNIT)
        # Each of the SM's four parts holds a quarter of the registers, and a warp lives in one of them.
        fitting.append(limits.registers // WARP_STEP // per_warp * WARP_STEP // warps)
    shared = _up(shared_bytes + limits.reserved_bytes, limits.shared_unit)
    if shared:
        fitting.append(limits.shared_bytes // shared)
    blocks = min(fitting)
    if blocks == 0:
        raise InputError(
            f"a block of {threads} threads with {registers} registers each and {shared_bytes} bytes of shared memory "
            f"does not fit on an SM of compute capability {cc}"
        )
    return blocks


def sm_slots(cc: str, blocks: int, threads: int, registers: int = 0, shared_bytes: int = 0) -> int:
    """SMs that all blocks of a kernel would fill at once; more than the device has means several waves.

    Raises:
        InputError: as `blocks_per_sm`, or no blocks.
    """
    if blocks < 1:
        raise InputError(f"a grid of {blocks} blocks, must have at least 1")
    return -(-blocks // blocks_per_sm(cc, threads, registers, shared_bytes))


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
