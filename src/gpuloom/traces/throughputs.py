"""Measured throughputs of a trace of Gavel or Shockwave: where they lie, and the speeds of its jobs by them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gpuloom.core.errors import InputError, TraceError
from gpuloom.core.pairs import PairTable
from gpuloom.core.workload import F8, Labels
from gpuloom.facts.gavel_rates import load_rates, speeds_alone, speeds_of_pairs
from gpuloom.files.load import read_unpacked
from gpuloom.files.source import ReadOptions, Source

REFERENCE = "V100"


@dataclass(frozen=True, slots=True)
class Throughputs:
    """Steps per second alone by (GPU model, job type, GPUs). `models` begins with the reference model.

    pairs: what it says of two jobs that share GPUs.
    """

    path: Path
    models: tuple[str, ...]
    alone: dict[str, dict[tuple[str, int], float]]
    pairs: PairTable

    @property
    def reference(self) -> str:
        return self.models[0]

    def steps_per_s(self, job_type: Labels, gpus: F8) -> F8:
        """Shape (jobs, models); NaN where the file does not know the job, 0 where it does not fit."""
        pairs, place = np.unique(
            np.stack([job_type.codes, np.nan_to_num(gpus).astype(np.int64)], axis=1),
            axis=0,
            return_inverse=True,
        )
        rates = [
            [self.alone[model].get((job_type.names[code], count), np.nan) for model in self.models]
            for code, count in pairs.tolist()
        ]
        table: F8 = np.asarray(rates, dtype=np.float64).reshape(len(pairs), len(self.models))
        return table[place.reshape(-1)]


def find_throughputs(source: Source, options: ReadOptions, names: Sequence[str]) -> Throughputs | None:
    """The throughputs that the user named, else the first of `names` (.json, .json.gz) beside the trace.

    Raises:
        TraceError: the file is not a throughput file.
        InputError: it does not know the GPU model asked for.
    """
    path = options.throughputs
    if path is None:
        candidates = (
            folder / f"{name}{end}" for name in names for folder in source.companions() for end in ("", ".gz")
        )
        path = next((candidate for candidate in candidates if candidate.is_file()), None)
    return None if path is None else _load(path, (options.gpu_model or REFERENCE).upper())


def needs_throughputs(source: Source, file: str, project: str) -> TraceError:
    """What to raise where none are found."""
    return TraceError(
        "gives steps, not durations: pass the measured throughputs with --throughputs FILE "
        f"({file} of {project}, also looked for beside the trace)",
        file=source.name,
    )


def _load(path: Path, reference: str) -> Throughputs:
    if path.is_dir():
        raise InputError(f"throughputs {path}: is a folder, must be the JSON of Gavel or Shockwave")
    rates = load_rates(read_unpacked(path), str(path))
    known = speeds_alone(rates)
    if reference not in known:
        raise InputError(f"{path} has no throughputs for GPU model {reference!r}; it has {', '.join(known)}")
    others = sorted((model for model in known if model != reference), reverse=True)
    return Throughputs(path, (reference, *others), known, PairTable(path.name, speeds_of_pairs(rates, str(path))))
