"""Find the compiled admission rule and virtual GPU, or compile them on first use.

The sources are `native/interposer/{admission,virtual_gpu}.{c,h}`. A checkout compiles them itself, so that what runs is
what stands there; an installed gpuloom brings the library in `gpuloom/sharing/native/`, if a compiler was at hand when
its wheel was made. Where it was not, it is compiled (`compiler`).
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

from gpuloom.core.errors import InputError
from gpuloom.sharing.shim.compiler import (
    PACKAGED,
    checkout,
    compiled_once,
    compiler,
    no_compiler,
    run_compiler,
    source_folder,
)

SOURCES = ("admission.c", "virtual_gpu.c", "admission.h", "virtual_gpu.h")
LIBRARY = "libgpuloom_admission.so"
FLAGS = ("-std=c11", "-O2", "-shared", "-fPIC", "-fvisibility=hidden")
VERSION = 1


@cache
def library() -> ctypes.CDLL:
    """The library, loaded.

    Raises:
        InputError: it is neither installed nor can it be compiled here.
    """
    path = library_path()
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise InputError(
            f"{path}: can't be loaded ({error}); delete it, or install gpuloom again on this machine"
        ) from error


def library_path() -> Path:
    """Where the library is; compiles it if it must be.

    Raises:
        InputError: it is neither installed nor can it be compiled here.
    """
    installed, folder, command = installed_library(), source_folder(SOURCES), compiler()
    if installed is not None and not (command and folder == checkout()):
        return installed
    if folder is None:
        raise InputError(
            "the compiled admission rule is missing, and so are its sources; install gpuloom again, or run from a "
            "checkout"
        )
    if command is None:
        raise InputError(f"the admission rule must be compiled once, and {no_compiler()}")
    files = [str(folder / name) for name in SOURCES if name.endswith(".c")]
    return compiled_once(
        "admission-{}.so",
        "admission rule",
        folder,
        SOURCES,
        (*command, *FLAGS),
        lambda made: run_compiler([*command, *FLAGS, *files, "-o", str(made), "-lm"], folder),
    )


def installed_library() -> Path | None:
    """The library that came with the package, if it did."""
    path = PACKAGED / LIBRARY
    return path if path.is_file() else None
