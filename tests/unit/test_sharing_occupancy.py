"""Blocks per SM against a table filled block by block from NVIDIA's published limits, and against NVIDIA's own code.

Limits: CUDA Programming Guide, "Compute Capabilities", table of technical specifications per compute capability.
The cases of KNOWN were worked out by hand from the same limits. `cuda_occupancy.h`, of the wheel nvidia-cuda-runtime
(extra `dev`), is what the CUDA runtime answers with; it brings blocks per SM and all granularities of its own.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import pytest

from gpuloom.core.errors import InputError
from gpuloom.sharing.occupancy import LIMITS, blocks_per_sm, sm_slots
from gpuloom.sharing.shim import compiler

# Threads, blocks and kilobytes of shared memory that are resident on an SM; 64 K registers on all.
PUBLISHED = {
    "7.0": (2048, 32, 96),
    "7.5": (1024, 16, 64),
    "8.0": (2048, 32, 164),
    "8.6": (1536, 16, 100),
    "8.9": (1536, 24, 100),
    "9.0": (2048, 32, 228),
    "10.0": (2048, 32, 228),
    "12.0": (1536, 24, 100),
}
CASES = [
    case
    for case in itertools.product(
        PUBLISHED, (1, 32, 96, 128, 192, 256, 480, 1024), (0, 16, 37, 64, 128, 255), (0, 1, 5000, 16384, 48 * 1024)
    )
    if case[1] * case[2] <= 65536 * 0.98
]
KNOWN = [
    ("7.0", 1024, 32, 0, 2),
    ("7.0", 128, 255, 0, 2),
    ("7.5", 256, 64, 0, 4),
    ("8.0", 256, 32, 0, 8),
    ("8.0", 128, 40, 0, 12),
    ("8.0", 32, 16, 0, 32),
    ("8.0", 128, 32, 48 * 1024, 3),
    ("8.6", 256, 40, 0, 6),
    ("8.9", 64, 32, 0, 24),
    ("9.0", 128, 168, 0, 3),
    ("9.0", 384, 168, 227 * 1024, 1),
]


def filled(cc: str, threads: int, registers: int, shared: int) -> int:
    """Put blocks on an SM until one doesn't fit: each warp takes its registers from one of four equal parts."""
    max_threads, max_blocks, shared_kb = PUBLISHED[cc]
    parts, free_shared = [65536 // 4] * 4, shared_kb * 1024
    warp_registers = (registers * 32 + 255) // 256 * 256
    unit, reserved = (256, 0) if cc.startswith("7") else (128, 1024)
    resident = 0
    while resident < max_blocks:
        for _warp in range((threads + 31) // 32):
            roomiest = max(range(4), key=lambda index: parts[index])
            if parts[roomiest] < warp_registers:
                return resident
            parts[roomiest] -= warp_registers
        need = (shared + reserved + unit - 1) // unit * unit
        if free_shared < need or (resident + 1) * ((threads + 31) // 32 * 32) > max_threads:
            return resident
        free_shared -= need
        resident += 1
    return resident


def test_enough_cases() -> None:
    assert len(CASES) >= 200
    assert set(LIMITS) == set(PUBLISHED)


@pytest.mark.parametrize("cc", PUBLISHED)
def test_blocks_per_sm_as_filled_block_by_block(cc: str) -> None:
    for _, threads, registers, shared in (case for case in CASES if case[0] == cc):
        expected = filled(cc, threads, registers, shared)
        if expected:
            assert blocks_per_sm(cc, threads, registers, shared) == expected, (cc, threads, registers, shared)
            assert sm_slots(cc, 1000, threads, registers, shared) == -(-1000 // expected)
        else:
            with pytest.raises(InputError, match="does not fit"):
                blocks_per_sm(cc, threads, registers, shared)


def nvidias_header() -> Path | None:
    """The folder of cuda_occupancy.h of an installed wheel."""
    for folder in map(Path, sys.path):
        for inside in ("nvidia/cuda_runtime/include", "nvidia/cu13/include"):
            if (folder / inside / "cuda_occupancy.h").is_file():
                return folder / inside
    return None


def test_blocks_per_sm_as_nvidias_own_occupancy_code_says(tmp_path: Path) -> None:
    headers, command = nvidias_header(), compiler.compiler()
    if headers is None or command is None:
        pytest.skip("needs the wheel nvidia-cuda-runtime-cu12 (extra dev) and a C compiler")
    source = Path(__file__).parents[2] / "native" / "interposer" / "tests" / "occupancy.c"
    program = tmp_path / "occupancy"
    compiler.run_compiler([*command, "-O1", f"-I{headers}", str(source), "-o", str(program)], source.parent)
    threads = (1, 31, 33, 64, 96, 100, 128, 160, 224, 256, 288, 384, 512, 640, 768, 1024)
    registers = (0, 1, 8, 16, 24, 32, 33, 40, 48, 56, 63, 64, 72, 80, 96, 128, 129, 168, 200, 255)
    shared = (0, 1, 128, 1000, 2048, 5000, 9216, 16384, 30000, 49152, 65536, 99 * 1024, 100 * 1024, 227 * 1024)
    cases = list(itertools.product(PUBLISHED, threads, registers, shared))
    lines = []
    for cc, block, regs, bytes_ in cases:
        per_sm, _, shared_kb = PUBLISHED[cc]
        reserved = 0 if cc.startswith("7") else 1024
        lines.append(f"{cc.replace('.', ' ')} {per_sm} {shared_kb * 1024} {reserved} {block} {regs} {bytes_}\n")
    done = subprocess.run([str(program)], input="".join(lines), capture_output=True, text=True, check=True, timeout=60)
    expected = [int(line) for line in done.stdout.split()]
    assert len(expected) == len(cases) > 30_000
    assert min(expected) == 0
    assert max(expected) == 32
    for (cc, block, regs, bytes_), blocks in zip(cases, expected, strict=True):
        try:
            found = blocks_per_sm(cc, block, regs, bytes_)
        except InputError:
            found = 0
        assert found == blocks, (cc, block, regs, bytes_)


@pytest.mark.parametrize(("cc", "threads", "registers", "shared", "blocks"), KNOWN)
def test_known(cc: str, threads: int, registers: int, shared: int, blocks: int) -> None:
    assert blocks_per_sm(cc, threads, registers, shared) == blocks


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (("6.1", 32), "capability '6.1'"),
        (("8.0", 0), "0 threads"),
        (("8.0", 1025), "1025 threads"),
        (("8.0", 32, 256), "256 registers"),
        (("8.0", 32, 0, -1), "-1 bytes"),
        (("8.0", 32, 0, 2**20), "does not fit"),
    ],
)
def test_what_cannot_be_launched(given: tuple[str, int], told: str) -> None:
    with pytest.raises(InputError, match=told):
        blocks_per_sm(*given)
