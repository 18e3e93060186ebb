"""The profile library: profiles that ship with gpuloom, and the user's own in one CSV file (docs/howto/profiles.md)."""

from __future__ import annotations

import csv
import fcntl
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from importlib.resources import files
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np

from gpuloom.core.errors import GpuloomError, InputError
from gpuloom.core.profile import Profile, Profiles
from gpuloom.core.sums import sum_ints
from gpuloom.core.words import plural
from gpuloom.core.workload import F8, Workload
from gpuloom.facts.profile_tables import parse_profiles, refuse_twice
from gpuloom.files.source import Source
from gpuloom.files.whole import text_output

SHIPPED = "data/profiles.csv"
HOME = "GPULOOM_HOME"
FILE = "profiles.csv"
COLUMNS = (
    "model",
    "gpus",
    "batch_size",
    "gpu_model",
    "iteration_s",
    "load_s",
    "compute_s",
    "storage_s",
    "cpu_s",
    "gpu_s",
    "network_s",
    "gpu_memory_mib",
    "start_s",
    "noise",
    "date",
    "source",
)
"""Columns of the library as it is written. A row fills load, compute, network or storage, cpu, gpu, network."""

LOCK_WAIT_S = 30.0


# -- where it lies ----------------------------------------------------------------------------------------------------


def library_path() -> Path:
    """The user's library: $GPULOOM_HOME/profiles.csv, else in the user's data directory.

    Raises:
        InputError: neither is known.
    """
    home = os.environ.get(HOME)
    if home:
        return Path(home).expanduser() / FILE
    data = os.environ.get("XDG_DATA_HOME", "")
    if os.path.isabs(data):  # relative ones are ignored, as the XDG base directory specification says
        return Path(data) / "gpuloom" / FILE
    try:
        return Path.home() / ".local" / "share" / "gpuloom" / FILE
    except RuntimeError as error:
        raise InputError(f"no home directory is known to keep profiles in: set {HOME} to a folder") from error


@cache
def shipped() -> tuple[Profile, ...]:
    """The profiles that come with gpuloom."""
    data = files("gpuloom").joinpath(SHIPPED).read_bytes()
    return tuple(parse_profiles(Source(SHIPPED, "profiles", data)))


def load_profiles(path: Path | None = None) -> Profiles:
    """Shipped profiles and the user's library.

    Args:
        path: file of the library, which must exist; None: where `library_path` says, if there is one.

    Raises:
        InputError: the file is not there or can't be read; names line, column and value.
    """
    file = library_path() if path is None else path
    if path is not None and not path.exists():
        raise InputError(f"{path}: no such profile library; gpuloom profiles add --library {path} … creates one")
    return Profiles(shipped(), tuple(read_library(file)), str(file))


def read_library(path: Path) -> list[Profile]:
    """The user's profiles; none if the file is not there."""
    _refuse_no_file(path)
    if not path.exists():
        return []
    profiles = parse_profiles(Source(str(path), path.stem, path.read_bytes(), path))
    refuse_twice(str(path), profiles)
    return profiles


def _refuse_no_file(path: Path) -> None:
    if path.exists() and not path.is_file():
        raise InputError(f"{path} is not a file, must be a profile library (CSV)")


# -- writing ----------------------------------------------------------------------------------------------------------


def add_profiles(path: Path, added: Sequence[Profile], *, replacing: bool = False) -> int:
    """Put profiles into a library, all or none. Returns how many took the place of others.

    Raises:
        InputError: one of that model, GPUs and batch size is there and `replacing` is not set.
        OSError: the library can't be written; it is as before.
    """
    replaced = 0

    def change(profiles: list[Profile]) -> list[Profile]:
        nonlocal replaced
        table = {profile.row_key: profile for profile in profiles}
        there = [profile for profile in added if profile.row_key in table]
        if there and not replacing:
            more = f" (and {len(there) - 1} more)" if len(there) > 1 else ""
            raise InputError(f"{path}: it has a {there[0]} already{more}; --overwrite replaces it")
        replaced = len(there)
        return [*(table | {profile.row_key: profile for profile in added}).values()]

    change_library(path, change)
    return replaced


def remove_profiles(path: Path, model: str, gpus: int | None = None) -> int:
    """Remove a model from a library, or only its profiles on this many GPUs. Returns how many were removed.

    Raises:
        InputError: there is none.
        OSError: the library can't be written; it is as before.
    """
    removed = 0

    def change(profiles: list[Profile]) -> list[Profile]:
        nonlocal removed
        kept = [p for p in profiles if p.model != model or (gpus is not None and p.gpus != gpus)]
        removed = len(profiles) - len(kept)
        if not removed:
            raise InputError(_why_not_removed(path, profiles, model, gpus))
        return kept

    change_library(path, change)
    return removed


def change_library(path: Path, change: Callable[[list[Profile]], list[Profile]]) -> None:
    """Replace a library by the result of `change`. Writers take turns; readers see either the old file or the new one.

    Raises:
        GpuloomError: another process holds the library for longer than `LOCK_WAIT_S`.
        OSError: it can't be written; it is as before.
    """
    _refuse_no_file(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with _locked(path):
        real = Path(os.path.realpath(path))
        for left in real.parent.glob(f".{real.name}.*.tmp"):  # of a writer that was killed: we hold the lock
            left.unlink(missing_ok=True)
        comments = _comments(path)
        profiles = sorted(
            change(read_library(path)), key=lambda p: (p.model, p.gpus, p.batch_size or 0, p.gpu_model or "")
        )
        with text_output(path) as file:
            file.write(comments + as_csv(profiles))
        _sync_folder(path)


def as_csv(profiles: Sequence[Profile]) -> str:
    """Profiles as the library writes them: a header and a row each."""
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for profile in profiles:
        row: dict[str, Any] = {
            "model": profile.model,
            "gpus": profile.gpus,
            "batch_size": profile.batch_size,
            "gpu_model": profile.gpu_model,
            "iteration_s": repr(profile.iteration_s),
            "gpu_memory_mib": profile.gpu_memory_mib,
            "start_s": None if profile.start_s is None else repr(profile.start_s),
            "noise": None if profile.noise is None else f"{profile.noise:.4g}",
            "date": profile.date,
            "source": profile.source,
        } | {f"{name}_s": repr(value) for name, value in zip(profile.stage_names, profile.stage_s, strict=True)}
        writer.writerow([row.get(name) for name in COLUMNS])
    return text.getvalue()


def _why_not_removed(path: Path, profiles: list[Profile], model: str, gpus: int | None) -> str:
    own = Profiles(own=tuple(profiles))
    if model in own.models():
        counts = sorted({profile.gpus for profile in profiles if profile.model == model})
        return f"{path}: no profile of {model} on {gpus} GPUs; there are {', '.join(map(str, counts))}"
    if any(profile.model == model for profile in shipped()):
        return f"{path}: no profile of {model}; shipped ones can't be removed, but your own replace them"
    return f"{path}: {own.unknown(model)}"


def _comments(path: Path) -> str:
    """The comment lines before the header, which stay."""
    if not path.exists():
        return ""
    kept = []
    with path.open(encoding="utf-8", errors="replace", newline="") as file:
        for line in file:
            if not line.startswith("#"):
                break
            kept.append(line)
    return "".join(kept)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the library against other writers. The lock is a file of its own, as the library is replaced."""
    real = Path(os.path.realpath(path))
    lock = real.with_name(f".{real.name}.lock")
    with lock.open("a") as file:
        end = time.monotonic() + LOCK_WAIT_S
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() > end:
                    raise GpuloomError(f"{path}: another process has held {lock} for {LOCK_WAIT_S:g} s") from error
                time.sleep(0.02)
        yield  # closing the file ends the lock


def _sync_folder(path: Path) -> None:
    """Make the new name last over a power cut."""
    folder = os.open(os.path.dirname(os.path.realpath(path)), os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


# -- use --------------------------------------------------------------------------------------------------------------


def with_profiles(workload: Workload, profiles: Profiles) -> Workload:
    """The workload with stage times by model and GPUs where the trace has none.

    Where the trace tells a job's iteration time, the profile's stages are stretched to it. Memory is filled in
    where the trace tells none, start times from the user's own profiles only (shipped ones are looked up by
    `sim.overheads`). Jobs that have stage times keep them; a note says how many jobs were filled in.
    """
    if workload.model is None or not len(workload):
        return workload
    n = len(workload)
    stage_s = np.full((n, 3), np.nan) if workload.stage_s is None else workload.stage_s.copy()
    columns: dict[str, F8] = {
        name: np.full(n, np.nan) if (column := getattr(workload, name)) is None else column.copy()
        for name in ("iteration_s", "gpu_memory_mib", "restart_overhead_s")
    }
    lacking = np.isnan(stage_s.sum(axis=1))
    filled = {True: 0, False: 0}
    elsewhere = 0
    kinds = np.stack([workload.model.codes.astype(np.int64), workload.gpus.astype(np.int64)], axis=1)
    distinct, kind = np.unique(kinds, axis=0, return_inverse=True)
    kind = kind.reshape(-1)
    order = np.argsort(kind, kind="stable")
    rows_of = np.split(order, np.flatnonzero(np.diff(kind[order])) + 1)
    own = {*profiles.own}
    for (code, gpus), rows in zip(distinct.tolist(), rows_of, strict=True):
        profile = profiles.find(workload.model.names[code], gpus)
        if profile is None:
            continue
        todo = rows[lacking[rows]]
        known = columns["iteration_s"][todo]
        alone = np.where(np.isfinite(known) & (known > 0), known, profile.iteration_s)
        stage_s[todo] = np.array(profile.three_stages_s) * (alone / profile.iteration_s)[:, None]
        columns["iteration_s"][todo] = alone
        filled[profile in own] += len(todo)
        elsewhere += len(todo) * (profile.gpus != gpus)
        _fill(columns["gpu_memory_mib"], rows, profile.gpu_memory_mib)
        _fill(columns["restart_overhead_s"], rows, profile.start_s if profile in own else None)
    notes = workload.notes
    if total := sum_ints(filled.values()):
        sources = []
        if filled[True]:
            sources.append(f"{filled[True]:,} from {profiles.library or 'your library'}")
        if filled[False]:
            sources.append(f"{filled[False]:,} from those shipped with gpuloom")
        note = f"stage times of {total:,} of {plural(n, 'job')} are from profiles by model: {' and '.join(sources)}"
        notes += (note + (f"; {elsewhere:,} measured on another number of GPUs" if elsewhere else ""),)
    # A column that the trace lacks and no profile fills is left out.
    known_columns = {
        name: column
        for name, column in columns.items()
        if getattr(workload, name) is not None or np.isfinite(column).any()
    }
    keeps = workload.stage_s is None and not total
    return replace(workload, stage_s=None if keeps else stage_s, notes=notes, **known_columns)  # type: ignore[arg-type]


def _fill(column: F8, rows: Any, value: float | None) -> None:
    if value is not None:
        column[rows] = np.where(np.isnan(column[rows]), value, column[rows])
