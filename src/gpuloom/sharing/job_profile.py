"""Which kernel profile a job shares its GPU with: what its spec names, else what is kept under the name of its model.

What a spec names is a file if there is a slash in it or it ends in `.kernels.jsonl`, and from the working directory on;
else it is a name. Names are looked up where the scheduler runs: in the user's library, then among the shipped ones.
"""

from __future__ import annotations

import os
from pathlib import Path

from gpuloom.core.errors import InputError
from gpuloom.sharing.find import no_such
from gpuloom.sharing.profiles import SUFFIX, library_folder
from gpuloom.sharing.shipped import SHIPPED
from gpuloom.sharing.table import table_of


def is_file_name(named: str) -> bool:
    """Whether a spec names a file, rather than a profile of the library."""
    return "/" in named or named.endswith(SUFFIX)


def job_profile(named: str | None, model: str | None, workdir: str) -> str:
    """The file's path, or the name of a shipped profile; '' for none. Nothing is read, a file need not be there.

    Args:
        named: by the spec. model: of the job. workdir: its working directory; '' where it is not known.
    """
    if named and is_file_name(named):
        return os.path.join(workdir, named)
    if named:
        return _stored(named) or named
    return _stored(model) if model else ""


def here(found: str) -> str:
    """The same on another machine than the scheduler's: where it does not see the file, one of that name of its own
    library, else a shipped one."""
    path = Path(found)
    if not os.path.isabs(found) or not found.endswith(SUFFIX) or path.is_file():
        return found
    return _stored(path.name.removesuffix(SUFFIX)) or found


def check_job_profile(named: str, workdir: str) -> None:
    """Refuse, when the job is submitted, what the shim could not read later.

    Raises:
        InputError: no such file or profile, or not a kernel profile; says what would be right.
    """
    found = job_profile(named, None, workdir)
    if is_file_name(named):
        if not Path(found).is_file():
            raise InputError(
                f"kernel_profile {named}: no such file{f' in {workdir}' if not os.path.isabs(named) else ''}; "
                f"gpuloom share profile --output FILE{SUFFIX} makes one"
            )
    elif not _stored(named):
        raise no_such(named)
    table_of(found)


def _stored(name: str) -> str:
    """The path of a profile of this name in the library, else its name if it is shipped, else ''."""
    if "/" not in name and "\0" not in name and len(os.fsencode(name)) < 200:
        kept = library_folder() / f"{name}{SUFFIX}"
        if kept.is_file():
            return str(kept)
    return name if name in SHIPPED else ""
