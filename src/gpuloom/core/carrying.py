"""A policy's memory translated to another workload: the same jobs and nodes under other numbers.

The metadata of each field of a memory's dataclass says what the field is numbered by. Fields without stay as they are:

    level: NDArray[np.int16] = field(metadata=PER_JOB)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from gpuloom.core.decision import Placement

Rows = NDArray[np.intp]
Kind = Mapping[str, str]
M = TypeVar("M")


def _kind(name: str) -> Kind:
    return MappingProxyType({"carrying": name})


PER_JOB = _kind("per job")
"""An array with an entry (or row) per job."""
PER_JOB_AND_MODEL = _kind("per job and model")
"""An array of shape (jobs, GPU models)."""
PER_JOB_A_MODEL = _kind("per job a model")
"""An array with the number of a GPU model per job; -1: none."""
PER_MODEL = _kind("per model")
"""An array with an entry per GPU model."""
MODELS = _kind("models")
"""Names of the cluster's GPU models, in the order of their numbers."""
JOBS = _kind("jobs")
"""A list of jobs."""
NODES = _kind("nodes")
"""A list of nodes."""
A_JOB = _kind("a job")
"""One job; -1: none."""
PLACES_BY_JOB = _kind("places by job")
"""{job: placement}"""
MASKS_BY_JOB = _kind("masks by job")
"""{job: {node: mask of GPUs}}"""


def carry(memory: M, fresh: M, rows: Rows, nodes: Rows) -> M:
    """The memory of the same jobs under other numbers.

    Args:
        fresh: a new memory for the new workload and cluster; new jobs and models take their entries from it.
        rows: the old number of each job, by its new one; -1 for a new job.
        nodes: the new number of each node, by its old one; -1 for a node that is gone.
    """
    new_row = {old: new for new, old in enumerate(rows.tolist()) if old >= 0}
    own: Sequence[str] = ()
    names: Sequence[str] = ()
    for one in fields(memory):  # type: ignore[arg-type]  # any dataclass
        if one.metadata.get("carrying") == "models":
            own, names = getattr(memory, one.name), getattr(fresh, one.name)
    columns = np.array([own.index(name) if name in own else -1 for name in names], dtype=np.intp)
    changed: dict[str, Any] = {}
    for one in fields(memory):  # type: ignore[arg-type]
        kind = one.metadata.get("carrying")
        if kind is None:
            continue
        old, new = getattr(memory, one.name), getattr(fresh, one.name)
        if kind == "per job":
            new = carried_rows(old, new, rows)
        elif kind == "per job and model":
            new = carried_rows(_columns(old, new, columns), new, rows)
        elif kind == "per model":
            new = _columns(old[None, :], new[None, :], columns)[0]
        elif kind == "per job a model":
            after = np.array([*[names.index(name) if name in names else -1 for name in own], -1], dtype=old.dtype)
            new = carried_rows(after[old], new, rows)
        elif kind == "jobs":
            new = [new_row[job] for job in old if job in new_row]
        elif kind == "a job":
            new = new_row.get(old, -1)
        elif kind == "places by job":
            new = _by_job(old, new_row, lambda place: moved(place, nodes))
        elif kind == "nodes":
            new = [int(nodes[node]) for node in old if nodes[node] >= 0]
        elif kind == "masks by job":
            new = _by_job(old, new_row, lambda masks: _moved_masks(masks, nodes))
        changed[one.name] = new
    return replace(memory, **changed)  # type: ignore[type-var]


def carried_rows(old: NDArray[Any], new: NDArray[Any], rows: Rows) -> NDArray[Any]:
    """The entries of `old` by their new numbers; for new jobs those of `new`."""
    known = rows >= 0
    found = new.copy()
    found[known] = old[rows[known]]
    return found


def moved(place: Placement, nodes: Rows) -> Placement | None:
    """A placement on nodes under other numbers; None if one of them is gone."""
    numbers = tuple([int(nodes[node]) for node in place.nodes])
    return None if min(numbers, default=0) < 0 else Placement(numbers, place.masks, place.layer)


def _moved_masks(masks: Mapping[int, int], nodes: Rows) -> dict[int, int] | None:
    found = {int(nodes[node]): mask for node, mask in masks.items()}
    return None if min(found, default=0) < 0 else found


def _by_job(
    old: Mapping[int, Any], new_row: Mapping[int, int], translated: Callable[[Any], Any | None]
) -> dict[int, Any]:
    found = {new_row[job]: translated(value) for job, value in old.items() if job in new_row}
    return {job: value for job, value in found.items() if value is not None}


def _columns(old: NDArray[Any], new: NDArray[Any], columns: Rows) -> NDArray[Any]:
    """The columns of `old` by their new numbers; for new models those of a new memory."""
    found = np.empty((len(old), len(columns)), dtype=old.dtype)
    known = columns >= 0
    found[:, known] = old[:, columns[known]]
    if not known.all():
        found[:, ~known] = new[:1, ~known] if len(new) else 0
    return found
