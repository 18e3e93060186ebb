"""What NVIDIA's XID error numbers mean for a scheduler: the program's fault, or the GPU's.

After NVIDIA's "XID Errors" (docs.nvidia.com/deploy/xid-errors, with its catalogue of immediate actions) and "GPU Memory
Error Management" (docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt). Numbers that are not here are shown and change
nothing: most numbers that the driver knows say that a program did wrong, or that the driver repaired something.
"""

from __future__ import annotations

RESET: dict[int, str] = {
    46: "GPU stopped processing",
    48: "uncorrectable (double-bit) ECC error",
    62: "internal micro-controller halted",
    64: "row remapping or page retirement could not be recorded",
    74: "NVLink error",
    79: "GPU has fallen off the bus",
    95: "uncontained memory error",
    110: "security fault",
    119: "GSP did not answer in time",
    120: "GSP error",
    140: "unrecovered ECC error",
    143: "GPU could not be initialised",
}
"""The GPU must be reset (or the machine rebooted) before it can be trusted again."""

PASSING: dict[int, str] = {
    92: "high rate of single-bit ECC errors",
    94: "contained memory error",
    109: "context switch timed out",
}
"""The GPU may go on, but is watched before it gets new jobs. 94: only the program that met the error is lost. 109: the
catalogue asks for a reset, but a program that hangs brings it about too; newer drivers say themselves if one is needed.
"""

PROGRAM: dict[int, str] = {
    8: "GPU stopped processing a channel",
    11: "invalid or corrupted commands",
    13: "graphics engine exception",
    31: "GPU memory page fault",
    32: "invalid or corrupted commands",
    43: "GPU stopped processing",
    45: "channel torn down, often because the program ended",
    68: "video decoder exception",
    69: "graphics engine class error",
}
"""Most often an error of the program that ran. The GPU is not to blame."""

KNOWN: dict[int, str] = {
    **RESET,
    **PASSING,
    **PROGRAM,
    63: "memory row remapped or page retired: active after the next reset",
    154: "recovery action changed",
}


def xid_text(xid: int) -> str:
    """'XID 79 (GPU has fallen off the bus)'."""
    return f"XID {xid} ({KNOWN[xid]})" if xid in KNOWN else f"XID {xid}"
