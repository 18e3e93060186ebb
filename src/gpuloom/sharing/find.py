"""Find a kernel profile by the name a user writes."""

from __future__ import annotations

from pathlib import Path

from gpuloom.core.errors import InputError
from gpuloom.core.words import did_you_mean
from gpuloom.sharing.imports import read_any
from gpuloom.sharing.orion import is_orion
from gpuloom.sharing.profiles import SUFFIX, KernelProfile, library_folder, read_text
from gpuloom.sharing.shipped import SHIPPED, shipped

MAX_FILES = 20_000


def find_profile(name: str, folder: Path | None = None) -> tuple[KernelProfile, str]:
    """A profile and where it came from, in words.

    With a folder: a file below it of that name (of its own format, with or without suffix, or Orion's). Several files
    of one name that hold the same profile are one; of others the least deep one counts, by path, and it is said.
    Without: a file's path, the user's library, then the shipped profiles.

    Raises:
        InputError: there is none; says which there are.
    """
    if folder is None:
        return _known(name)
    if not folder.is_dir():
        raise InputError(f"--profiles {folder}: no such folder")
    files = profile_files(folder)
    found = [path for path in files if name in (path.name, path.name.removesuffix(SUFFIX))]
    if not found:
        names = sorted({path.name.removesuffix(SUFFIX) for path in files if not path.name.endswith("_fb0")})
        near = [known for known in names if name.lower() in known.lower() or known.lower() in name.lower()] or names
        raise InputError(
            f"no profile {name} below {folder}; there are {', '.join(near[:20])}" + ", …" * (len(near) > 20)
        )
    profile = read_profile(found[0])
    note = str(found[0])
    others = [path for path in found[1:] if path.read_bytes() != found[0].read_bytes()]
    if others:
        note += f" (not {', '.join(map(str, others))})"
    return profile, note


def profile_files(folder: Path) -> list[Path]:
    """Files below a folder that look like profiles, least deep first, then by path."""
    found = []
    for count, path in enumerate(sorted(folder.rglob("*"), key=lambda p: (len(p.parts), str(p)))):
        if count >= MAX_FILES:
            raise InputError(f"{folder} holds more than {MAX_FILES} files; name a folder of profiles")
        if path.is_file() and (path.name.endswith(SUFFIX) or ("." not in path.name and _begins_as_orion(path))):
            found.append(path)
    return found


def read_profile(path: Path) -> KernelProfile:
    """Read a file of any format that tells the GPU's SMs.

    Raises:
        InputError: it is of none, or a placeholder.
    """
    return read_any(path, read_text(path))


def stored_profile(name: str) -> tuple[KernelProfile, str] | None:
    """A profile of the user's library, else a shipped one, and where it came from; None if there is none.

    Raises:
        InputError: its file can't be read.
    """
    kept = library_folder() / f"{name}{SUFFIX}"
    if "/" not in name and kept.is_file():
        return read_profile(kept), str(kept)
    return (shipped(name), "shipped: an estimate, not measured") if name in SHIPPED else None


def no_such(name: str) -> InputError:
    """What to say where neither the library nor gpuloom has a profile of a name."""
    library = library_folder()
    own = sorted(path.name.removesuffix(SUFFIX) for path in library.glob(f"*{SUFFIX}")) if library.is_dir() else []
    near = did_you_mean(name, [*own, *SHIPPED])
    return InputError(
        f"no kernel profile {name}, and no file of that name{near}; there are {', '.join([*own, *SHIPPED])}; "
        "gpuloom share profile makes one, gpuloom share profiles import adds one"
    )


def _known(name: str) -> tuple[KernelProfile, str]:
    stored = stored_profile(name)
    if stored is not None:
        return stored
    if Path(name).is_file():
        return read_profile(Path(name)), name
    raise no_such(name)


def _begins_as_orion(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return is_orion(file.read(100).decode("utf-8-sig", "replace"))
    except OSError:
        return False
