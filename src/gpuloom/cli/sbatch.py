"""The #SBATCH lines of a script, as options of `gpuloom submit`.

Source of the options: sbatch(1), Slurm 22.05 and 24.05. Of an option that comes twice the last one counts, as in Slurm.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpuloom.cli.scripts import head_of

SHORT = {
    "A": "account", "C": "constraint", "D": "chdir", "G": "gpus", "H": "hold", "J": "job-name", "N": "nodes",
    "a": "array", "c": "cpus-per-task", "d": "dependency", "e": "error", "n": "ntasks", "o": "output",
    "p": "partition", "q": "qos", "t": "time",
}  # fmt: skip
BARE = frozenset({"exclusive", "hold", "no-requeue", "overcommit", "oversubscribe", "requeue", "spread-job"})
"""Take no value, or only after '='."""
FOLLOWED = frozenset({"requeue", "parsable", "verbose", "quiet"})
"""What gpuloom does anyway, or what only sbatch's own words hang on."""
COUNTS = frozenset({"nodes", "ntasks", "ntasks-per-node"})
ELSEWHERE = {
    "output": "gpuloom logs shows what the job prints",
    "error": "gpuloom logs shows what the job prints",
    "nodes": "gpuloom counts GPUs; on which machines they are is decided when it starts",
    "ntasks": "the command runs once on each node, or with --per gpu once for each GPU",
    "ntasks-per-node": "the command runs once on each node, or with --per gpu once for each GPU",
}
TERM = frozenset({"TERM", "SIGTERM", "15"})
SIGNAL_S = 60
"""How long before the end Slurm sends its signal if no time is named."""

Words = dict[str, list[str]]
"""Words of `gpuloom submit` by the field that they set."""


@dataclass(slots=True)
class Sbatch:
    """What the #SBATCH lines of a script ask for. unlike: options that gpuloom does not follow."""

    words: Words = field(default_factory=dict)
    unlike: list[str] = field(default_factory=list)

    def instead(self, given: Collection[str]) -> list[str]:
        """The words of the fields that are not given."""
        return [word for name, words in self.words.items() if name not in given for word in words]

    @property
    def not_followed(self) -> str:
        """What is not followed, for people; '' if there is nothing."""
        named: dict[str, list[str]] = {}
        for name in self.unlike:
            named.setdefault(ELSEWHERE.get(name, ""), []).append(f"--{name}")
        return ", ".join(", ".join(names) + (f" ({where})" if where else "") for where, names in named.items())


def sbatch_of(file: str) -> Sbatch:
    """The #SBATCH lines of a script, which Slurm reads up to the first command.

    Raises:
        InputError: the script can't be read.
    """
    asked: dict[str, str] = {}
    for line in head_of(Path(file)).decode("utf-8", "replace").splitlines():
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
            if name:
                asked.pop(name, None)
                asked[name] = value
    return _told(asked)


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


def _told(asked: Mapping[str, str]) -> Sbatch:
    nodes = _whole(asked.get("nodes", "1").partition("-")[0])
    per_node = _whole(asked.get("ntasks-per-node", "1"))
    tasks = _whole(asked.get("ntasks", str((nodes or 1) * (per_node or 1))))
    gpus = _gpus_in_all(asked, nodes or 1, tasks or 1)
    cpus = _cpus_in_all(asked, tasks or 1, gpus or 0)
    found = Sbatch()
    for name, value in asked.items():
        if name in FOLLOWED or (name in COUNTS and value in ("1", "1-1")) or (name == "nodes" and nodes and gpus):
            continue
        words = _words(name, value, gpus, cpus)
        if words is None:
            found.unlike.append(name)
        else:
            found.words.update(words)
    return found


def _words(name: str, value: str, gpus: int | None, cpus: int | None) -> Words | None:
    """The words for one option; None: gpuloom has none like it. gpus, cpus: that the job asks for in all."""
    match name:
        case "gpus" | "gpus-per-node" | "gpus-per-task" | "gres":
            counted = _gres(value) if name == "gres" else _models(value)
            if counted is None or not gpus:
                return None
            return {"gpus": ["-g", str(gpus)], **({"gpu_types": ["--gpu-type", counted[1]]} if counted[1] else {})}
        case "cpus-per-task" | "cpus-per-gpu":
            return {"cpus": ["--cpus", str(cpus)]} if cpus else None
        case "mem":
            return _memory(value, 1)
        case "mem-per-gpu":
            return _memory(value, gpus or 0)
        case "mem-per-cpu":
            return _memory(value, cpus or 1)
        case "time":
            return _time(value)
        case "dependency":
            return _dependency(value)
        case "signal":
            return _signal(value)
        case "hold":
            return {"hold": ["--hold"]}
        case "export":
            return {"NONE": {"export": ["--export", "none"]}, "ALL": {}}.get(value.upper())
    flag = {"job-name": ("name", "--name"), "array": ("array", "--array"), "chdir": ("workdir", "--workdir")}.get(name)
    return None if flag is None or not value else {flag[0]: [flag[1], value]}


# -- counts --------------------------------------------------------------------------------------------------


def _whole(text: str) -> int | None:
    return int(text) if re.fullmatch(r"[0-9]{1,9}", text) else None


def _models(value: str) -> tuple[int, str] | None:
    """GPUs and their model in '2', 'a100:2'."""
    match = re.fullmatch(r"(?:([A-Za-z][\w.-]*):)?([0-9]{1,9})", value)
    return None if match is None or not int(match[2]) else (int(match[2]), (match[1] or "").upper())


def _gres(value: str) -> tuple[int, str] | None:
    """GPUs and their model in 'gpu', 'gpu:2', 'gpu:a100', 'gpu:a100:2', with what else there is."""
    for part in value.split(","):
        name, _, rest = part.partition("(")[0].removeprefix("gres/").replace("=", ":").partition(":")
        if name == "gpu":
            counted = ":" in rest or rest.isdecimal()
            return _models(rest if counted else f"{rest}:1" if rest else "1")
    return None


def _gpus_in_all(asked: Mapping[str, str], nodes: int, tasks: int) -> int | None:
    for name, times in (("gpus", 1), ("gpus-per-task", tasks), ("gpus-per-node", nodes), ("gres", nodes)):
        if name in asked:
            found = _gres(asked[name]) if name == "gres" else _models(asked[name])
            if found is not None:
                return found[0] * times
    return None


def _cpus_in_all(asked: Mapping[str, str], tasks: int, gpus: int) -> int | None:
    for name, times in (("cpus-per-task", tasks), ("cpus-per-gpu", gpus)):
        if name in asked:
            found = _whole(asked[name])
            return None if found is None else found * times
    return None


# -- values --------------------------------------------------------------------------------------------------


def _time(value: str) -> Words | None:
    """Minutes, M:S, H:M:S, D-H, D-H:M, D-H:M:S."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", value)
    if match is None:
        return {} if value.upper() in ("UNLIMITED", "INFINITE") else None
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


def _memory(value: str, times: int) -> Words | None:
    match = re.fullmatch(r"(\d+)([KMGT]?)B?", value, re.IGNORECASE)
    if match is None or not times:
        return None
    amount = int(match[1]) * times  # 0: all that the machine has
    return {"memory": ["--memory", f"{amount}{(match[2] or 'M').upper()}iB"]} if amount else {}


def _dependency(value: str) -> Words | None:
    """afterok:12:13 and afterany:14, all of which must hold."""
    jobs: dict[str, list[str]] = {}
    for part in value.split(","):
        match = re.fullmatch(r"(afterok|afterany)((?::\d+)+)", part)
        if match is None:
            return None
        jobs.setdefault(match[1], []).extend(match[2][1:].split(":"))
    names = {"afterok": ("after", "--after"), "afterany": ("after_any", "--after-any")}
    return {names[how][0]: [names[how][1], ",".join(numbers)] for how, numbers in jobs.items()}


def _signal(value: str) -> Words | None:
    """[B:]TERM@120: time between notice and end. Jobs get no other signal as a notice."""
    name, at, seconds = re.sub(r"^[RBS]+:", "", value.upper()).partition("@")
    told = _whole(seconds) if at else SIGNAL_S
    return {"grace": ["--grace", f"{told}s"]} if name in TERM and told else None
