"""A script given instead of a job file: the command that runs it."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Collection, Sequence
from pathlib import Path

from gpuloom.core.errors import InputError

JOB_FILES = (".yaml", ".yml", ".json")
SHELLS = {".sh": "sh", ".bash": "bash"}
ELF = b"\x7fELF"
MOST_READ = 1 << 16


def command_of(file: str, *, own_python: bool = False) -> list[str] | None:
    """The command that runs a script or program; None for what is none, such as a job file.

    An executable file runs as it is, one with `#!` by what that names, .py by python, .sh by sh, .bash by bash.

    Args:
        own_python: the job has an environment of its own (--venv and their like), where its python is.

    Raises:
        InputError: a Python script, and there is no Python on PATH.
    """
    path = Path(file)
    suffix = path.suffix.lower()
    if suffix in JOB_FILES or not path.is_file():
        return None
    head, place = head_of(path), os.path.abspath(file)
    if head.startswith((b"#!", ELF)) and os.access(path, os.X_OK):
        return [place]
    if head.startswith(b"#!"):
        words = head.partition(b"\n")[0][2:].decode("utf-8", "replace").strip().split(None, 1)
        if words:
            return [*words, place]
    if suffix == ".py":
        return [_python(file, own_python), place]
    return [SHELLS[suffix], place] if suffix in SHELLS else None


def head_of(path: Path) -> bytes:
    """The first bytes of a script. Raises InputError: it can't be read."""
    try:
        with path.open("rb") as opened:
            return opened.read(MOST_READ)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None


def _python(file: str, own: bool) -> str:
    for name in ("python", "python3"):
        if own or shutil.which(name):
            return name
    raise InputError(f"no python is on PATH; name the one to run it with: gpuloom submit -- /path/to/python {file}")


def instead(args: Sequence[str], bare: Collection[str]) -> str | None:
    """The line to type where a command stands in the arguments of `gpuloom submit` without -- before it.

    None where no word is a script or a program.

    Args:
        bare: options that take no value.
    """
    for index, word in enumerate(args):
        before = args[index - 1] if index else ""
        if word.startswith("-") or (before.startswith("-") and "=" not in before and before not in bare):
            continue  # an option, or its value
        command = command_of(word) or ([word] if shutil.which(word) and not Path(word).is_file() else None)
        if command is not None:
            return f"gpuloom submit {shlex.join([*args[:index], '--', *command, *args[index + 1 :]])}"
    return None
