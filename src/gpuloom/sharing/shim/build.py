"""Find the shim (`libcuda.so.1`), or compile it on first use.

An installed gpuloom brings it in `gpuloom/sharing/native/gpuloom_shim/`, if a compiler was at hand when its wheel was
made. A checkout, or an installation without it, compiles it (`compiler`). Where the machine's driver exports names that
the shim lacks, one that has them is compiled.
"""

from __future__ import annotations

import os
import re
import struct
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from gpuloom.core.errors import InputError
from gpuloom.sharing.shim.compiler import (
    PACKAGED,
    compiled_once,
    compiler,
    no_compiler,
    run_compiler,
)
from gpuloom.sharing.shim.compiler import source_folder as folder_with

C_SOURCES = (
    "shim.c", "gate.c", "track.c", "measure.c", "memory.c", "kernels.c", "profile.c", "driver.c", "log.c", "shm.c",
    "admission.c", "stubs.S",
)  # fmt: skip
HEADERS = (
    "abi.h", "admission.h", "driver.h", "gate.h", "kernels.h", "log.h", "memory.h", "process.h", "profile.h", "shm.h",
    "hooks.def", "symbols.def", "shim.map",
)  # fmt: skip
FLAGS = ("-std=gnu11", "-O2", "-fPIC", "-fvisibility=hidden")
MACHINES = ("x86_64", "aarch64")
EXPORTED = re.compile(r"(cu[A-Z]|cudbg)[A-Za-z0-9_]*\Z")


def installed_shim() -> Path | None:
    """The shim that came with the package, if it did."""
    path = PACKAGED / "gpuloom_shim" / "libcuda.so.1"
    return path if path.is_file() else None


def source_folder() -> Path | None:
    """The shim's sources: of a checkout, else those that the package carries; None if there are none."""
    return folder_with((*C_SOURCES, *HEADERS))


def exported(library: Path) -> frozenset[str]:
    """Names of CUDA functions that a 64-bit ELF library exports; none if it can't be read as one."""
    try:
        data = library.read_bytes()
        if data[:6] != b"\x7fELF\x02\x01":
            return frozenset()
        start, size, count = *struct.unpack_from("<Q", data, 40), *struct.unpack_from("<HH", data, 58)
        sections = [struct.unpack_from("<IIQQQQIIQQ", data, start + i * size) for i in range(count)]
        names = set()
        for section in sections:
            if section[1] != 11:  # SHT_DYNSYM
                continue
            strings = sections[section[6]][4]
            for at in range(section[4], section[4] + section[5], 24):
                name, info, _, place, _, _ = struct.unpack_from("<IBBHQQ", data, at)
                if place != 0 and info & 15 in (2, 10) and info >> 4 in (1, 2):  # defined functions, global or weak
                    end = data.index(b"\0", strings + name)
                    names.add(data[strings + name : end].decode("ascii", "replace"))
    except (OSError, struct.error, ValueError, IndexError, OverflowError):
        return frozenset()
    return frozenset(name for name in names if EXPORTED.match(name))


def known(folder: Path) -> frozenset[str]:
    """Names that the shim of these sources exports."""
    text = (folder / "symbols.def").read_text() + (folder / "hooks.def").read_text()
    return frozenset(re.findall(r"^(?:SYMBOL|HOOK)\((\w+)", text, re.MULTILINE))


def shim_path(driver: Path | None = None) -> Path:
    """The shim for this driver; compiles it if it must be.

    Raises:
        InputError: it is neither installed nor can it be compiled here.
    """
    installed, folder, command = installed_shim(), source_folder(), compiler()
    if os.uname().machine not in MACHINES or sys.platform != "linux":
        raise InputError(f"the shim is for Linux on {' and '.join(MACHINES)}; this is {os.uname().machine}")
    lacking: frozenset[str] = frozenset()
    if driver is not None:
        names = exported(installed) if installed is not None else known(folder) if folder else frozenset()
        lacking = exported(driver) - names
    if installed is not None and (not lacking or folder is None or command is None):
        return installed
    if folder is None:
        raise InputError(
            "the shim is not installed, and its sources are missing; install gpuloom again, or run from a checkout"
        )
    if command is None:
        raise InputError(f"the shim must be compiled once, and {no_compiler()}")
    return compiled(folder, command, lacking)


def compiled(folder: Path, command: Sequence[str], extra: Iterable[str] = ()) -> Path:
    """The shim of these sources with further symbols, from the cache or compiled.

    Raises:
        InputError: the compiler fails, or the cache can't be written.
    """
    symbols = sorted(extra)

    def make(made: Path) -> None:
        further = []
        if symbols:
            listed = made.with_name("extra.def")
            listed.write_text("".join(f"SYMBOL({name})\n" for name in symbols))
            further = [f'-DGLS_EXTRA_SYMBOLS="{listed}"']
        link(folder, command, made, further)

    said = (*command, *FLAGS, *symbols)
    return compiled_once("shim-{}/libcuda.so.1", "shim", folder, (*C_SOURCES, *HEADERS), said, make)


def link(folder: Path, command: Sequence[str], target: Path, flags: Sequence[str] = ()) -> None:
    """Compile and link the shim of these sources to `target`.

    Raises:
        InputError: the compiler fails.
    """
    sources = [str(folder / name) for name in C_SOURCES]
    linking = (
        "-shared", "-Wl,-soname,libcuda.so.1", "-Wl,-Bsymbolic", "-Wl,-z,now", "-Wl,-z,nodelete",
        f"-Wl,--version-script={folder / 'shim.map'}", "-lpthread", "-ldl", "-lm",
    )  # fmt: skip
    run_compiler([*command, *FLAGS, *flags, *sources, "-o", str(target), *linking], folder)
