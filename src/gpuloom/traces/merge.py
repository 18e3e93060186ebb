"""The jobs of several files as one workload."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from gpuloom.core.errors import InputError
from gpuloom.core.ran import Runs
from gpuloom.core.scaling import NO_CURVE, Scaling
from gpuloom.core.workload import F8, Labels, Ran, Speeds, Workload
from gpuloom.files.clock import describe
from gpuloom.files.source import Part, Source

# The value for a column that a job's file lacks and another file has.
_MISSING: dict[str, str | float] = {
    "model": "",
    "user": "",
    "group": "",
    "gpu_type": "",
    "gpu_milli": 1000,
    "priority": 0,
    "share_class": "",
    "kernel_profile": "",
    "weight": 1.0,
    "restart_overhead_s": np.nan,
    "iteration_s": np.nan,
    "estimate_s": np.nan,
    "gpu_memory_mib": np.nan,
    "stage_s": np.nan,
    "line": 0,
}


def merge(name: str, sources: Sequence[Source], parts: Sequence[Part]) -> Workload:
    """One workload of all parts, in order of submission.

    Raises:
        InputError: calendar times and plain seconds are mixed, or speeds are for different GPU models.
    """
    notes = _gathered(sources, parts)
    if len({part.calendar for part in parts}) > 1:
        raise InputError("some files give calendar times, others seconds: they can't be put on one clock")
    submit_s = np.concatenate([part.submit_s for part in parts])
    origin = 0.0
    if parts[0].calendar:
        if len({part.utc for part in parts}) > 1:
            raise InputError("some files give the offset of their times from UTC, others don't: can't be merged")
        origin = float(submit_s.min())
        submit_s = submit_s - origin
        notes.append(f"time 0 is {describe(origin, utc=parts[0].utc)} of the trace's calendar")
    columns: dict[str, object] = {}
    for key in _MISSING:
        if any(key in part.columns for part in parts):
            columns[key] = _joined(key, parts)
    told = len(notes)
    if any("job_ids" in part.columns for part in parts):
        columns["job_ids"] = _job_ids(sources, parts, notes)
    if any("speeds" in part.columns for part in parts):
        columns["speeds"] = _speeds(parts)
    if any("scaling" in part.columns for part in parts):
        columns["scaling"] = _scaling(parts)
    if all("ran" in part.columns for part in parts):
        columns["ran"] = _ran(parts, origin, renamed=len(notes) > told)
    workload = Workload.sorted_by_submit(
        name,
        submit_s,
        np.concatenate([part.duration_s for part in parts]),
        np.concatenate([part.gpus for part in parts]),
        **columns,
    )
    clusters = {part.cluster for part in parts}
    return replace(workload, notes=tuple(notes), cluster=clusters.pop() if len(clusters) == 1 else "")


def _ran(parts: Sequence[Part], origin: float, *, renamed: bool) -> Ran:
    """renamed: jobs have other ids than in their files."""
    each = [ran for part in parts if isinstance(ran := part.columns["ran"], Ran)]
    return Ran(
        np.concatenate([ran.start_s for ran in each]) - origin,
        np.concatenate([ran.end_s for ran in each]) - origin,
        np.concatenate([ran.held_s for ran in each]),
        np.concatenate([ran.starts for ran in each]),
        None if renamed or len({part.cluster for part in parts}) > 1 else _runs([ran.runs for ran in each], origin),
    )


def _runs(each: Sequence[Runs | None], origin: float) -> Runs | None:
    """All that is known of the runs on one cluster; None where a file does not say."""
    known = [runs for runs in each if runs is not None]
    if len(known) < len(each) or len({runs.nodes for runs in known}) > 1:
        return None
    return Runs(
        tuple(tuple(run.moved(origin) for run in job) for runs in known for job in runs.runs),
        tuple(tuple(one.moved(origin) for one in job) for runs in known for job in runs.together),
        known[0].nodes,
    )


def _gathered(sources: Sequence[Source], parts: Sequence[Part]) -> list[str]:
    """The notes of all files; a note on several files is kept once."""
    said: dict[str, list[str]] = {}
    for source, part in zip(sources, parts, strict=True):
        for note in part.notes:
            said.setdefault(note.removeprefix(f"{source.name}: "), []).append(source.name)
    return [
        f"{names[0]}: {note}" if len(names) == 1 else f"each of {len(names)} files: {note}"
        for note, names in said.items()
    ]


def _joined(key: str, parts: Sequence[Part]) -> object:
    missing = _MISSING[key]
    values = [part.columns.get(key) for part in parts]
    if isinstance(missing, str):
        names: dict[str, int] = {}
        codes = []
        for part, value in zip(parts, values, strict=True):
            labels = value if isinstance(value, Labels) else Labels(_zeros(len(part)), (missing,))
            new = np.asarray([names.setdefault(word, len(names)) for word in labels.names], dtype=np.int32)
            codes.append(new[labels.codes] if len(new) else labels.codes)
        return Labels(np.concatenate(codes), tuple(names))
    shape = next(value.shape[1:] for value in values if isinstance(value, np.ndarray))
    dtype = next(value.dtype for value in values if isinstance(value, np.ndarray))
    return np.concatenate(
        [
            value if isinstance(value, np.ndarray) else np.full((len(part), *shape), missing, dtype=dtype)
            for part, value in zip(parts, values, strict=True)
        ]
    )


def _zeros(rows: int) -> NDArray[np.int32]:
    return np.zeros(rows, dtype=np.int32)


def _job_ids(sources: Sequence[Source], parts: Sequence[Part], notes: list[str]) -> tuple[str, ...]:
    per_file: list[tuple[str, ...]] = []
    for part in parts:
        ids = part.columns.get("job_ids")
        per_file.append(ids if isinstance(ids, tuple) else tuple(map(str, range(len(part)))))
    flat = tuple(job for ids in per_file for job in ids)
    if len(set(flat)) == len(flat):
        return flat
    stems = [source.stem for source in sources]
    if len(set(stems)) < len(stems):  # files of one name in different folders
        stems = [source.name for source in sources]
    notes.append("several files use the same job ids: each id got the name of its file in front")
    return tuple(f"{stem}:{job}" for stem, ids in zip(stems, per_file, strict=True) for job in ids)


def _speeds(parts: Sequence[Part]) -> Speeds:
    speeds = [part.columns.get("speeds") for part in parts]
    found = [speed for speed in speeds if isinstance(speed, Speeds)]
    models = found[0].models
    if len(found) < len(parts) or any(set(speed.models) != set(models) for speed in found):
        raise InputError("the files give speeds for different GPU models: they can't be merged")
    columns = [[speed.models.index(model) for model in models] for speed in found]
    factor = np.concatenate([speed.factor[:, order] for speed, order in zip(found, columns, strict=True)])
    if all(speed.estimated is None for speed in found):
        return Speeds(models, factor)
    marks = [
        np.zeros(speed.factor.shape, dtype=bool) if speed.estimated is None else speed.estimated[:, order]
        for speed, order in zip(found, columns, strict=True)
    ]
    return Speeds(models, factor, np.concatenate(marks))


def _scaling(parts: Sequence[Part]) -> Scaling:
    """The scaling of all files, one set of curves after the other; jobs of a file without any are rigid."""
    found: list[Scaling] = []
    curves: list[F8] = []
    for part in parts:
        scaling = part.columns.get("scaling")
        if not isinstance(scaling, Scaling):
            one = np.ones(len(part), dtype=np.int32)
            none = np.full(len(part), NO_CURVE, dtype=np.int32)
            scaling = Scaling(one, part.gpus, part.gpus, none, np.ones(len(part)), ())
        moved = np.where(scaling.curve == NO_CURVE, NO_CURVE, scaling.curve + len(curves)).astype(np.int32)
        curves.extend(scaling.curves)
        found.append(replace(scaling, curve=moved, curves=tuple(curves)))
    return Scaling(
        np.concatenate([one.replica_gpus for one in found]),
        np.concatenate([one.min_replicas for one in found]),
        np.concatenate([one.max_replicas for one in found]),
        np.concatenate([one.curve for one in found]),
        np.concatenate([one.reference for one in found]),
        tuple(curves),
    )
