"""Measured throughputs of Gavel and Shockwave: steps per second by GPU model, job type and GPU count.

The JSON is {GPU model: {"('job type', GPUs)": {"null": steps/s alone, …}}}; models whose name ends with
`_unconsolidated` (a job spread over more nodes than needed) are not read; 0 means that a job does not fit. What it says
of jobs that share GPUs is read by `facts/pairs.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gpuloom.bounded.json_text import load_json
from gpuloom.core.errors import InputError, TraceError
from gpuloom.core.pairs import PairTable
from gpuloom.core.workload import F8, Labels
from gpuloom.facts.pairs import gavel_pairs, kind_of
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
    try:
        raw = load_json(read_unpacked(path))
        alone = {
            model.upper(): {kind_of(name): float(rates["null"]) for name, rates in jobs.items()}
            for model, jobs in raw.items()
            if not model.endswith("_unconsolidated")
        }
        pairs = PairTable(path.name, gavel_pairs(raw))
    except FileNotFoundError as error:
        raise InputError(f"throughputs file {path}: no such file") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise TraceError(
            f"is not a throughput file of Gavel or Shockwave: {type(error).__name__}: {error}", file=str(path)
        ) from error
    if reference not in alone:
        raise InputError(f"{path} has no throughputs for GPU model {reference!r}; it has {', '.join(alone)}")
    bad = next((job for jobs in alone.values() for job, rate in jobs.items() if not 0 <= rate < np.inf), None)
    if bad is not None:
        raise TraceError(f"the throughput of {bad} is not a number of at least 0", file=str(path))
    others = sorted((model for model in alone if model != reference), reverse=True)
    return Throughputs(path, (reference, *others), alone, pairs)
