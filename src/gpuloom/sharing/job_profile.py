"""Which kernel profile a job shares its GPU with: what its spec names, else what is kept under the name of its model.

What a spec names is a file if there is a slash in it or it ends in `.kernels.jsonl`, and from the working directory on;
else it is a name. Names are looked up where the scheduler runs: in the user's library, then among the shipped ones. The
load of a service may stand behind it (core/kernel_pairs.py). `auto` is the one under the model's name, and where there
is none it is taken while the job runs.
"""

from __future__ import annotations

import os
from pathlib import Path

from gpuloom.core.errors import InputError
from gpuloom.core.kernel_load import profile_and_load
from gpuloom.sharing.find import no_such
from gpuloom.sharing.profiles import SUFFIX, library_folder
from gpuloom.sharing.shipped import SHIPPED
from gpuloom.sharing.table import table_of

AUTO, TAKE = "auto", "take:"
"""What a user writes, and what a node is told: to take the profile and keep it in the file named behind it."""
MOST_BYTES = 200
"""A longer name is no file's."""


def is_file_name(named: str) -> bool:
    """Whether a spec names a file, rather than a profile of the library."""
    return "/" in named or named.endswith(SUFFIX)


def job_profile(named: str | None, model: str | None, workdir: str) -> str:
    """The file's path, or the name of a shipped profile; '' for none; `take:` and a path where it is to be taken.
    Nothing is read, a file need not be there.

    Args:
        named: by the spec. model: of the job. workdir: its working directory; '' where it is not known.
    """
    if not named:
        return _kept(model) if model else ""
    name, _ = profile_and_load(named)
    if name == AUTO:
        return _kept(model or "") or f"{TAKE}{library_folder() / f'{model}{SUFFIX}'}"
    return os.path.join(workdir, name) if is_file_name(name) else _stored(name) or name


def named_profile(named: str | None, model: str | None, workdir: str) -> str:
    """The same as a user would write it anywhere: a path from the root on or a name, with the load; '' for none."""
    if not named:
        return model if model and _kept(model) else ""
    name, _ = profile_and_load(named)
    if name == AUTO:
        return f"{model}{named[len(name) :]}" if _kept(model or "") else ""
    return os.path.join(workdir, name) + named[len(name) :] if is_file_name(name) else named


def here(found: str) -> str:
    """The same on another machine than the scheduler's: where it does not see the file, one of that name of its own
    library, else a shipped one."""
    path = Path(found.removeprefix(TAKE))
    if found.startswith(TAKE):
        return found if path.parent.is_dir() else f"{TAKE}{library_folder() / path.name}"
    if not os.path.isabs(found) or not found.endswith(SUFFIX) or path.is_file():
        return found
    return _stored(path.name.removesuffix(SUFFIX)) or found


def check_job_profile(named: str, workdir: str) -> None:
    """Refuse, when the job is submitted, what the shim could not read later. `auto` can always be.

    Raises:
        InputError: no such file or profile, or not a kernel profile; says what would be right.
    """
    name, _ = profile_and_load(named)
    if name == AUTO:
        return
    found = job_profile(name, None, workdir)
    if is_file_name(name):
        if not Path(found).is_file():
            raise InputError(
                f"kernel_profile {name}: no such file{f' in {workdir}' if not os.path.isabs(name) else ''}; "
                f"gpuloom share profile --output FILE{SUFFIX} makes one"
            )
    elif not _stored(name):
        raise no_such(name)
    table_of(found)


def _stored(name: str) -> str:
    """The path of a profile of this name in the library, else its name if it is shipped, else ''."""
    return _kept(name) or (name if name in SHIPPED else "")


def _kept(name: str) -> str:
    """The path of a profile of this name in the library; '' where there is none. The shipped ones are estimates of one
    inference and one training, and not of whatever job has a model of that name."""
    try:
        if "/" in name or "\0" in name or len(os.fsencode(name)) >= MOST_BYTES:
            return ""
        kept = library_folder() / f"{name}{SUFFIX}"
        return str(kept) if kept.is_file() else ""
    except (UnicodeEncodeError, OSError):  # no name of a file, or of one that may not be looked at
        return ""
