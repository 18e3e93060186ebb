"""Tables of profiles and of jobs: CSV in gpuloom's columns or the Muri artifact's, checked row by row."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from gpuloom.core.errors import InputError, TraceError
from gpuloom.core.profile import STAGES_3, STAGES_4, Profile, Profiles
from gpuloom.core.sums import sum_floats
from gpuloom.core.words import plural
from gpuloom.core.workload import F8
from gpuloom.files.load import load
from gpuloom.files.source import ReadOptions, Source
from gpuloom.files.table import Column, Table, raise_or_collect, read_table

MOST_JOBS = 1_000_000
_ARTIFACT = {
    "iteration": "iteration_time_ms",
    "load": "stage0_dataload_ms",
    "compute": "stage1_gpu_ms",
    "network": "stage2_network_ms",
    "start": "start_overhead_s",
}
"""Columns of the Muri artifact's table of stage times."""
_SPELLINGS = {"gpus": ("gpus", "num_gpu", "num_gpus"), "job": ("job", "job_id")} | {
    name: (f"{name}_s", f"{name}_ms", *([_ARTIFACT[name]] if name in _ARTIFACT else []))
    for name in dict.fromkeys(("iteration", *STAGES_3, *STAGES_4, "start"))
}
"""How the header may write a column. A time has its unit at the end of its name."""


def read_profiles(path: Path | str) -> list[Profile]:
    """Profiles of a CSV file ('-': standard input), in gpuloom's columns or the Muri artifact's.

    Raises:
        InputError: no such file, no profiles in it, or a bad row; names line, column and value.
    """
    source = _load(path)
    profiles = parse_profiles(source)
    if not profiles:
        raise InputError(f"{source.name}: holds no profiles, only a header")
    refuse_twice(source.name, profiles)
    return profiles


def parse_profiles(source: Source) -> list[Profile]:
    """The profiles of a CSV file, in its order."""
    if _is_empty(source, "profiles"):
        return []
    table, seconds = _read(
        source,
        ("iteration", "start"),
        Column("model", "text"),
        Column("gpus", "whole", minimum=1),
        Column("batch_size", "whole", minimum=1, empty=math.nan, optional=True),
        Column("gpu_model", "text", empty="", optional=True),
        Column("gpu_memory_mib", "whole", minimum=1, empty=math.nan, optional=True),
        Column("source", "text", empty="", optional=True),
        Column("noise", minimum=0, empty=math.nan, optional=True),
        Column("date", "text", empty="", optional=True),
    )
    if "iteration" not in seconds:
        raise TraceError("the header lacks column iteration_s (or iteration_ms)", file=source.name)
    empty = np.isnan(seconds["iteration"])
    table.reject(empty, "iteration", lambda row: "iteration time is empty, must be a time above 0")
    _require_stage_columns(source, seconds)
    raise_or_collect(table.bad, table.options)
    found = []
    for row, line in enumerate(table.line.tolist()):
        stage_s = _stages_of(source, seconds, row, line)
        if stage_s is None:
            raise TraceError("has no stage times", file=source.name, line=line)
        start_s = _optional(seconds.get("start"), row)
        try:
            profile = Profile(
                model=table.texts["model"][row],
                gpus=int(table["gpus"][row]),
                iteration_s=float(seconds["iteration"][row]),
                stage_s=stage_s,
                batch_size=_whole(table.numbers.get("batch_size"), row),
                gpu_model=_text(table, "gpu_model", row) or None,
                gpu_memory_mib=_whole(table.numbers.get("gpu_memory_mib"), row),
                start_s=start_s,
                source=_text(table, "source", row),
                noise=_optional(table.numbers.get("noise"), row),
                date=_text(table, "date", row),
            )
        except InputError as error:
            raise TraceError(str(error), file=source.name, line=line) from error
        found.append(profile)
    return found


@dataclass(frozen=True, slots=True)
class JobSet:
    """Jobs to weave, a row per kind of job.

    Attributes:
        job: name of each kind.
        count: how many alike.
        gpus: GPUs of each.
        stage_s: shape (kinds, 3 or 4), seconds per iteration.
        solo_s: seconds per iteration alone; the sum of the stages where nothing else is known.
        memory_mib: memory on each GPU, NaN where unknown.
        notes: what was taken from where.
    """

    job: tuple[str, ...]
    count: tuple[int, ...]
    gpus: tuple[int, ...]
    stage_s: F8
    solo_s: F8
    memory_mib: F8
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.job)


def read_jobs(path: Path | str, profiles: Callable[[], Profiles]) -> JobSet:
    """Jobs to weave from a CSV file ('-': standard input): columns in docs/howto/profiles.md.

    Args:
        profiles: gives the profile library; asked only if a job has no stage times of its own.

    Raises:
        InputError: what can't be read, or a job of which no stage times are known; names line, column and value.
    """
    source = _load(path)
    if _is_empty(source, "jobs"):
        raise InputError(f"{source.name}: holds no jobs, only a header")
    if source.head.has("submit_s", "duration_s"):
        raise TraceError(
            "is a trace (it has submit_s and duration_s): a list of jobs to weave has their stage times or models, and "
            "no times of submission (docs/howto/profiles.md)",
            file=source.name,
        )
    table, seconds = _read(
        source,
        ("iteration", "start"),
        Column("job", "text", optional=True),
        Column("model", "text", empty="", optional=True),
        Column("gpus", "whole", minimum=1, empty=1.0, optional=True),
        Column("count", "whole", minimum=1, empty=1.0, optional=True),
        Column("batch_size", "whole", minimum=1, empty=math.nan, optional=True),
        Column("gpu_memory_mib", "whole", minimum=1, empty=math.nan, optional=True),
        *(Column(name, "text", empty="", optional=True) for name in ("gpu_model", "source", "date")),
        Column("noise", minimum=0, empty=math.nan, optional=True),  # these are there as a library has them
    )
    if "job" not in table and "model" not in table:
        raise TraceError("the header lacks column job (or job_id, or model)", file=source.name)
    if "job" in table:
        table.unique("job")
    if seconds.keys() & {*STAGES_3, *STAGES_4}:
        _require_stage_columns(source, seconds)
    elif "model" not in table:
        raise TraceError(
            "the header has neither stage times (load_s, compute_s, network_s or storage_s, cpu_s, gpu_s, network_s) "
            "nor a model whose profile has them",
            file=source.name,
        )
    raise_or_collect(table.bad, table.options)
    ones = np.ones(len(table), dtype=np.int64)
    count = table["count"].astype(np.int64) if "count" in table else ones
    gpus = table["gpus"].astype(np.int64) if "gpus" in table else ones
    if count.sum() > MOST_JOBS:
        raise InputError(f"{source.name}: {count.sum():,} jobs, at most {MOST_JOBS:,} are woven at once")
    library: Profiles | None = None
    stages: list[tuple[float, ...]] = []
    solo_s, memory_mib = [], []
    looked_up = elsewhere = 0
    for row, line in enumerate(table.line.tolist()):
        stage_s = _stages_of(source, seconds, row, line)
        iteration_s = _optional(seconds.get("iteration"), row)
        memory = _optional(table.numbers.get("gpu_memory_mib"), row)
        if stage_s is None:
            model = _text(table, "model", row)
            if not model:
                raise TraceError("has neither stage times nor a model", file=source.name, line=line)
            library = library or profiles()
            batch_size = _whole(table.numbers.get("batch_size"), row)
            profile = library.find(model, int(gpus[row]), batch_size)
            if profile is None:
                reason = library.unknown(model)
                if model in library.models():
                    known = sorted({p.batch_size for p, _ in library.of(model) if p.batch_size is not None})
                    reason = f"model {model!r} has no profile of batch size {batch_size}, only of {known}"
                raise TraceError(reason, file=source.name, line=line, column="model")
            stage_s, iteration_s = scaled(profile, iteration_s)
            memory = memory if memory is not None or profile.gpu_memory_mib is None else float(profile.gpu_memory_mib)
            looked_up += int(count[row])
            elsewhere += int(count[row]) * (profile.gpus != gpus[row])
        elif sum_floats(stage_s) <= 0:
            raise TraceError("all stages take 0 s, at least one must take time", file=source.name, line=line)
        stages.append(stage_s)
        solo_s.append(sum_floats(stage_s) if iteration_s is None else iteration_s)
        memory_mib.append(math.nan if memory is None else memory)
    notes = []
    if library is not None:
        notes.append(f"stage times of {plural(looked_up, 'job')} are from the profile library, by model and GPUs")
        if elsewhere:
            notes[-1] += f" ({elsewhere:,} measured on another number of GPUs)"
    names = table.texts["job"] if "job" in table else _distinct(table.texts["model"], gpus.tolist())
    if len({len(stage_s) for stage_s in stages}) > 1:
        notes.append("some jobs have 3 stages: storage and CPU of the others are added up as load")
        stages = [stage_s if len(stage_s) == 3 else (sum_floats(stage_s[:2]), *stage_s[2:]) for stage_s in stages]
    return JobSet(
        tuple(names),
        tuple(count.tolist()),
        tuple(gpus.tolist()),
        np.array(stages),
        np.array(solo_s),
        np.array(memory_mib),
        tuple(notes),
    )


def scaled(profile: Profile, iteration_s: float | None) -> tuple[tuple[float, ...], float]:
    """Stage times and iteration time of a profile, stretched to an iteration time that is known from elsewhere."""
    if iteration_s is None:
        return profile.stage_s, profile.iteration_s
    factor = iteration_s / profile.iteration_s
    return tuple(factor * stage for stage in profile.stage_s), iteration_s


def _read(source: Source, times: Sequence[str], *columns: Column) -> tuple[Table, dict[str, F8]]:
    """The table with gpuloom's names, and its stages and `times` in seconds by name; NaN where empty."""
    header = [word.strip().strip('"') for word in source.head.lines[0].split(",")]
    wanted: list[Column] = []
    names: dict[str, str] = {}
    for column in (*columns, *(_time_column(name) for name in dict.fromkeys((*times, *STAGES_3, *STAGES_4)))):
        spellings = _SPELLINGS.get(column.name, (column.name,))
        there = [spelling for spelling in spellings if spelling in header]
        if len(there) > 1:
            raise TraceError(f"the header has {' and '.join(there)}, which mean the same: keep one", file=source.name)
        if there:
            names[there[0]] = column.name
        # A column that is not there is named in messages as gpuloom writes it.
        wanted.append(replace(column, name=(there or spellings)[0]))
    table = read_table(source, ReadOptions(), wanted, refuse_unknown=True)
    of_times = {name: written for written, name in names.items() if name in (*times, *STAGES_3, *STAGES_4)}
    seconds = {name: table[written] / _units_a_second(written) for name, written in of_times.items()}
    for written, name in names.items():
        if written in table.texts:
            table.texts[name] = table.texts.pop(written)
        elif written in table.numbers:
            table.numbers[name] = table.numbers.pop(written)
    return table, seconds


def _time_column(name: str) -> Column:
    if name == "iteration":
        return Column(name, above=0, empty=math.nan, optional=True)
    return Column(name, minimum=0, empty=math.nan, optional=True)


def _units_a_second(written: str) -> float:
    return 1e3 if written.endswith("_ms") else 1.0


def _require_stage_columns(source: Source, seconds: dict[str, F8]) -> None:
    """Refuse a header that has a part of the stages only."""
    three, four = set(STAGES_3) & seconds.keys(), set(STAGES_4) & seconds.keys()
    complete = len(three) == len(STAGES_3) or len(four) == len(STAGES_4)
    part_of_three = three - {"network"} and len(three) < len(STAGES_3)
    part_of_four = four - {"network"} and len(four) < len(STAGES_4)
    if complete and not part_of_three and not part_of_four:
        return
    wanted = STAGES_4 if len(four) > len(three) else STAGES_3
    missing = [f"{name}_s" for name in wanted if name not in seconds]
    raise TraceError(
        f"the header lacks the stage {'time' if len(missing) == 1 else 'times'} {', '.join(missing)} (or in _ms): "
        f"give {', '.join(STAGES_3)} or {', '.join(STAGES_4)}",
        file=source.name,
    )


def _stages_of(source: Source, seconds: dict[str, F8], row: int, line: int) -> tuple[float, ...] | None:
    """The 3 or 4 stage times of a row; None if it has none."""
    there = {name: value for name in {*STAGES_3, *STAGES_4} if (value := _optional(seconds.get(name), row)) is not None}
    if not there:
        return None
    for names in (STAGES_3, STAGES_4):
        if there.keys() == set(names):
            return tuple(there[name] for name in names)
    raise TraceError(
        f"has the stages {', '.join(sorted(there))}, must have {', '.join(STAGES_3)} or {', '.join(STAGES_4)}",
        file=source.name,
        line=line,
    )


def refuse_twice(name: str, profiles: Sequence[Profile]) -> None:
    seen = set()
    for profile in profiles:
        if profile.row_key in seen:
            raise InputError(f"{name}: {profile} is there twice")
        seen.add(profile.row_key)


def _load(path: Path | str) -> Source:
    if str(path) != "-" and not Path(path).exists():
        raise InputError(f"{path}: no such file")
    if str(path) != "-" and Path(path).is_dir():
        raise InputError(f"{path} is a folder, must be a CSV file")
    return load(path)


def _is_empty(source: Source, what: str) -> bool:
    """Whether there is only a header.

    Raises:
        TraceError: not even that.
    """
    if not source.head.lines:
        reason = "is not a text file" if source.data.strip() and not _has_text(source) else f"is empty: no {what} in it"
        raise TraceError(reason, file=source.name)
    if len(source.head.lines) > 1 or len(source.data) > source.head.SIZE:
        return False
    if not source.head.has("model") and not source.head.has("job") and not source.head.has("job_id"):
        raise TraceError(f"is not a table of {what}: its only line is {source.head.lines[0][:60]!r}", file=source.name)
    return True


def _has_text(source: Source) -> bool:
    return b"\0" not in source.data and not source.data.startswith(b"PAR1")


def _optional(column: F8 | None, row: int) -> float | None:
    return None if column is None or math.isnan(column[row]) else float(column[row])


def _whole(column: F8 | None, row: int) -> int | None:
    value = _optional(column, row)
    return None if value is None else int(value)


def _text(table: Table, name: str, row: int) -> str:
    return table.texts[name][row] if name in table.texts else ""


def _distinct(models: Sequence[str], gpus: Sequence[int]) -> list[str]:
    """Names of jobs by model: with the GPUs, and then numbered, where one comes more than once."""
    often = Counter(models)
    names = [f"{model}@{n}" if often[model] > 1 else model for model, n in zip(models, gpus, strict=True)]
    seen: dict[str, int] = {}
    found = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        found.append(f"{name}/{seen[name]}" if seen[name] > 1 else name)
    return found
