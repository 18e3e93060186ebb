"""A script given instead of a job file: the command that runs it, and its #SBATCH lines as gpuloom options."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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
    head, place = _head(path), os.path.abspath(file)
    if head.startswith((b"#!", ELF)) and os.access(path, os.X_OK):
        return [place]
    if head.startswith(b"#!"):
        words = head.partition(b"\n")[0][2:].decode("utf-8", "replace").strip().split(None, 1)
        if words:
            return [*words, place]
    if suffix == ".py":
        return [_python(file, own_python), place]
    return [SHELLS[suffix], place] if suffix in SHELLS else None


def _head(path: Path) -> bytes:
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


# -- #SBATCH -----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Slurm:
    """What the #SBATCH lines of a script ask for. flags: words of `gpuloom submit` by field; unlike: without a like."""

    flags: dict[str, list[str]] = field(default_factory=dict)
    unlike: list[str] = field(default_factory=list)


SHORT = {
    "A": "account", "D": "chdir", "G": "gpus", "H": "hold", "J": "job-name", "N": "nodes", "a": "array",
    "c": "cpus-per-task", "d": "dependency", "e": "error", "n": "ntasks", "o": "output", "p": "partition",
    "q": "qos", "t": "time",
}  # fmt: skip
BARE = ("hold", "requeue", "exclusive", "no-requeue", "overcommit")
ONE = ("nodes", "ntasks", "ntasks-per-node")
"""Of which 1 is what every job is here."""


def slurm_of(file: str) -> Slurm:
    """The #SBATCH lines of a script, which Slurm reads up to the first command."""
    found = Slurm()
    for line in _head(Path(file)).decode("utf-8", "replace").splitlines():
        if line.strip() and not line.startswith("#"):
            break
        if not line.startswith("#SBATCH"):
            continue
        try:
            words = shlex.split(line.removeprefix("#SBATCH"), comments=True)
        except ValueError:
            words = line.split()[1:]
        while words:
            name, value, used = _option(words)
            words = words[used:]
            if not name or (name in ONE and value in ("1", "1-1")):
                continue
            told = _TOLD[name](value) if name in _TOLD else None
            if told is None:
                found.unlike.append(f"--{name}")
            else:
                found.flags.update(told)
    return found


def _option(words: Sequence[str]) -> tuple[str, str, int]:
    """Name, value and the number of words of the option that comes first; no name where there is none."""
    first = words[0]
    if first.startswith("--"):
        name, equals, value = first[2:].partition("=")
        if equals or name in BARE or len(words) == 1:
            return name, value, 1
        return name, words[1], 2
    if first.startswith("-") and len(first) > 1:
        name = SHORT.get(first[1], first[1:2])
        if len(first) > 2 or name in BARE or len(words) == 1:
            return name, first[2:].removeprefix("="), 1
        return name, words[1], 2
    return "", "", 1


def _gpus(value: str) -> dict[str, list[str]] | None:
    """'2', 'a100:2'."""
    match = re.fullmatch(r"(?:([A-Za-z]\w*):)?(\d+)", value)
    if match is None or not int(match[2]):
        return None
    return {"gpus": ["-g", match[2]]} | ({"gpu_types": ["--gpu-type", match[1].upper()]} if match[1] else {})


def _gres(value: str) -> dict[str, list[str]] | None:
    """'gpu', 'gpu:2', 'gpu:a100:2', with what else there is."""
    for part in value.split(","):
        name, _, rest = part.partition("(")[0].removeprefix("gres/").partition(":")
        if name == "gpu":
            counted = ":" in rest or rest.isdecimal()
            return _gpus(rest if counted else f"{rest}:1" if rest else "1")
    return None


def _time(value: str) -> dict[str, list[str]] | None:
    """Minutes, M:S, H:M:S, D-H, D-H:M, D-H:M:S."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", value)
    if match is None:
        return None
    days, one, two, three = (None if part is None else int(part) for part in match.groups())
    if days is not None:
        seconds = ((days * 24 + (one or 0)) * 60 + (two or 0)) * 60 + (three or 0)
    elif three is not None:
        seconds = ((one or 0) * 60 + (two or 0)) * 60 + three
    else:
        seconds = (one or 0) * 60 + (two or 0)
    if not seconds:  # no limit
        return {}
    unit_s, unit = next((u for u in ((86400, "d"), (3600, "h"), (60, "m")) if seconds % u[0] == 0), (1, "s"))
    return {"time_limit": ["--time-limit", f"{seconds // unit_s}{unit}"]}


def _memory(value: str) -> dict[str, list[str]] | None:
    match = re.fullmatch(r"(\d+)([KMGT]?)B?", value, re.IGNORECASE)
    return None if match is None else {"memory": ["--memory", f"{match[1]}{(match[2] or 'M').upper()}iB"]}


def _as(name: str, flag: str) -> Callable[[str], dict[str, list[str]] | None]:
    return lambda value: {name: [flag, value]} if value else None


_TOLD: Mapping[str, Callable[[str], dict[str, list[str]] | None]] = {
    "gpus": _gpus,
    "gpus-per-node": _gpus,
    "gres": _gres,
    "time": _time,
    "mem": _memory,
    "job-name": _as("name", "--name"),
    "cpus-per-task": _as("cpus", "--cpus"),
    "array": _as("array", "--array"),
    "chdir": _as("workdir", "--workdir"),
    "hold": lambda _: {"hold": ["--hold"]},
    "export": lambda value: {"export": ["--export", "none"]} if value.upper() == "NONE" else None,
}


def check_slurm(file: str, args: Sequence[str], given: Mapping[str, Any]) -> str | None:
    """A note on #SBATCH lines, where there are any.

    Args:
        args: the arguments of `gpuloom submit`. given: fields that options gave.

    Raises:
        InputError: they ask for what no option says; with the line to type.
    """
    asked = slurm_of(file)
    missing = [word for name, words in asked.flags.items() if name not in given for word in words]
    unlike = f"gpuloom has no option like {', '.join(dict.fromkeys(asked.unlike))}" if asked.unlike else ""
    if missing:
        line = f"gpuloom submit {shlex.join([*missing, *args])}"
        raise InputError(
            f"{file} has #SBATCH lines, which gpuloom does not read; as options: {line}"
            + (f" ({unlike})" if unlike else "")
        )
    if asked.flags or asked.unlike:
        return f"{file}: gpuloom does not read its #SBATCH lines" + (f"; {unlike}" if unlike else "")
    return None
