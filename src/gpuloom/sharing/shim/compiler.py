"""The C compiler, the C sources, and the cache of what was compiled from them.

The sources are those of `native/interposer`: of a checkout, else those that every wheel carries. What is compiled is
kept in the user's cache, by a hash of the sources and of the command.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from gpuloom.core.errors import InputError

PACKAGED = Path(__file__).parents[1] / "native"
"""Where the wheel has what was compiled with it (CMake installs there), and the sources."""
COMPILERS = ("cc", "gcc", "clang")
TIMEOUT_S = 180


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
        return f"CC={given} was not found; set CC to a C compiler, or unset it"
    return f"there is no C compiler ({', '.join(COMPILERS)}); install gcc or clang, or point CC at one"


def checkout() -> Path:
    """Where the sources are if this is a checkout."""
    return Path(__file__).resolve().parents[4] / "native" / "interposer"


def source_folder(names: Iterable[str]) -> Path | None:
    """The folder that has these C sources: of a checkout, else of the package; None if there is none."""
    for folder in (checkout(), PACKAGED / "interposer"):
        if all((folder / name).is_file() for name in names):
            return folder
    return None


def cache_folder() -> Path:
    """Where compiled libraries are kept: $XDG_CACHE_HOME/gpuloom, else ~/.cache/gpuloom."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base else Path.home() / ".cache") / "gpuloom"


def compiled_once(
    kept: str, what: str, folder: Path, names: Iterable[str], command: Sequence[str], make: Callable[[Path], None]
) -> Path:
    """The library of these sources, from the cache or compiled; several processes may do so at once.

    Args:
        kept: its path in the cache, with {} for the hash.
        what: it, in words.
        command: all that matters to the result beside the sources.
        make: makes it at a path, in a folder of its own.

    Raises:
        InputError: the compiler fails, or the cache can't be written.
    """
    digest = hashlib.sha256(repr(tuple(command)).encode())
    for name in names:
        digest.update(name.encode() + b"\0" + (folder / name).read_bytes())
    target = cache_folder() / kept.format(digest.hexdigest()[:20])
    if target.is_file():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
            made = Path(scratch) / target.name
            make(made)
            made.replace(target)
    except OSError as error:
        raise InputError(
            f"{target.parent}: can't keep the compiled {what} there ({error.strerror}); "
            "set XDG_CACHE_HOME to a folder that can be written"
        ) from error
    return target


def run_compiler(command: Sequence[str], folder: Path) -> None:
    """Run a compiler.

    Raises:
        InputError: it fails; the first lines that say why are in the message.
    """
    try:
        done = subprocess.run(  # noqa: S603 - the compiler the user has set
            list(command), capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError(f"{command[0]} could not compile {folder}: {error}") from error
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or ["no message"]
        wrong = [line for line in lines if "error" in line] or lines
        raise InputError(f"{command[0]} could not compile {folder}: {' | '.join(wrong[:3])}")
