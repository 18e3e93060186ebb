"""Find the compiled admission rule and virtual GPU, or compile them on first use.

The sources are `native/interposer/{admission,virtual_gpu}.{c,h}`. A checkout compiles them itself, so that what runs is
what stands there; an installed gpuloom brings the library in `gpuloom/sharing/native/`, if a compiler was at hand when
its wheel was made. Where it was not, the sources that every wheel carries in `native/interposer/` there are compiled
with `$CC`, `cc`, `gcc` or `clang` into the user's cache, by a hash of what they say.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from gpuloom.core.errors import InputError

PACKAGED = Path(__file__).parents[1] / "native"
"""Where the wheel has them (CMake installs there)."""
SOURCES = ("admission.c", "virtual_gpu.c", "admission.h", "virtual_gpu.h")
LIBRARY = "libgpuloom_admission.so"
FLAGS = ("-std=c11", "-O2", "-shared", "-fPIC", "-fvisibility=hidden")
COMPILERS = ("cc", "gcc", "clang")
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
    installed, folder, command = installed_library(), source_folder(), compiler()
    if installed is not None and not (command and folder == _checkout()):
        return installed
    if folder is None:
        raise InputError(
            "the compiled admission rule is missing, and so are its sources; install gpuloom again, or run from a "
            "checkout"
        )
    if command is None:
        raise InputError(f"the admission rule must be compiled once, and {no_compiler()}")
    return _compiled(folder, command)


def installed_library() -> Path | None:
    """The library that came with the package, if it did."""
    path = PACKAGED / LIBRARY
    return path if path.is_file() else None


def source_folder(names: Iterable[str] = SOURCES) -> Path | None:
    """The folder of C sources: of a checkout, else those that the package carries; None if there are none."""
    for folder in (_checkout(), PACKAGED / "interposer"):
        if all((folder / name).is_file() for name in names):
            return folder
    return None


def compiler() -> list[str] | None:
    """The C compiler's command: `$CC`, or the first that there is of `cc`, `gcc`, `clang`; None if there is none."""
    given = shlex.split(os.environ.get("CC", ""))
    if given:
        return given if shutil.which(given[0]) else None
    return next(([name] for name in COMPILERS if shutil.which(name)), None)


def no_compiler() -> str:
    """Why `compiler` finds none, and what to do."""
    given = os.environ.get("CC", "").strip()
    if given:
        return f"CC={given} is no C compiler that can be found; set CC to one, or unset it"
    return f"there is no C compiler ({', '.join(COMPILERS)}); install gcc or clang, or point CC at one"


def _checkout() -> Path:
    return Path(__file__).resolve().parents[4] / "native" / "interposer"


def cache_folder() -> Path:
    """Where compiled libraries are kept: $XDG_CACHE_HOME/gpuloom, else ~/.cache/gpuloom."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base else Path.home() / ".cache") / "gpuloom"


def _compiled(folder: Path, command: list[str]) -> Path:
    """The library of these sources, from the cache or compiled; several processes may do so at once."""
    digest = hashlib.sha256(" ".join((*command, *FLAGS)).encode())
    for name in SOURCES:
        digest.update(name.encode() + b"\0" + (folder / name).read_bytes())
    target = cache_folder() / f"admission-{digest.hexdigest()[:20]}.so"
    if target.is_file():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=target.parent, suffix=".so")
    except OSError as error:
        raise InputError(
            f"{target.parent}: can't keep the compiled admission rule there ({error.strerror}); "
            "set XDG_CACHE_HOME to a folder that can be written"
        ) from error
    os.close(handle)
    files = [str(folder / file) for file in SOURCES if file.endswith(".c")]
    try:
        done = subprocess.run(  # noqa: S603 - the compiler the user has set
            [*command, *FLAGS, *files, "-o", name, "-lm"], capture_output=True, text=True, timeout=120, check=False
        )
        if done.returncode != 0:
            lines = done.stderr.strip().splitlines() or ["no message"]
            raise InputError(f"{' '.join(command)} could not compile {folder}: {lines[0]}")
        Path(name).replace(target)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError(f"{' '.join(command)} could not compile {folder}: {error}") from error
    finally:
        Path(name).unlink(missing_ok=True)
    return target
