"""Throughputs as Gavel (OSDI '20) and Shockwave (NSDI '23) publish them: steps per second by GPU model and job type.

The JSON is {GPU model: {"('job type', GPUs)": {"null": steps/s alone, "('other', GPUs)": [own, other], …}}}. Speeds are
absolute; 0 alone means that a job does not fit, [0, 0] that two do not fit together. GPU models whose name ends with
`_unconsolidated` (jobs spread over more nodes than needed) are passed over.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from gpuloom.bounded.json_text import load_json
from gpuloom.core.errors import TraceError
from gpuloom.core.pairs import Kind

_KEY = re.compile(r"\('(?P<job>.*)', (?P<gpus>\d+)\)")
_ALONE = "null"
_SPREAD = "_unconsolidated"

Rates = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""By GPU model in capital letters and job type with GPUs, as written: what the file says of it."""


def load_rates(data: bytes, file: str) -> Rates:
    """The JSON of throughputs, with a speed alone for each job type.

    Raises:
        TraceError: it is none; names `file`, and the place in it.
    """
    try:
        return _checked(load_json(data))
    except ValueError as error:
        raise TraceError(f"is not a throughput file of Gavel or Shockwave: {error}", file=file) from error


def _checked(raw: Any) -> Rates:
    found: dict[str, Mapping[str, Mapping[str, Any]]] = {}
    for model, jobs in raw.items() if isinstance(raw, dict) else ():
        if model.endswith(_SPREAD):
            continue
        if not isinstance(jobs, dict):
            raise ValueError(f"GPU model {model}: {jobs!r} must be an object of job types")
        for name, rates in jobs.items():
            kind_of(name)
            if not isinstance(rates, dict) or not _is_rate(rates.get(_ALONE)):
                raise ValueError(
                    f"{name} on {model}: {_ALONE!r}, its steps per second alone, must be a number of at least 0"
                )
        found[model.upper()] = jobs
    if not found:
        raise ValueError('it must be JSON as {"v100": {"(\'job type\', GPUs)": {"null": STEPS_PER_S}}}')
    return found


def _is_rate(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0


def speeds_alone(rates: Rates) -> dict[str, dict[Kind, float]]:
    """Steps per second alone, by GPU model, job type and GPUs."""
    return {model: {kind_of(name): float(told[_ALONE]) for name, told in jobs.items()} for model, jobs in rates.items()}


def speeds_of_pairs(rates: Rates, file: str) -> dict[tuple[str, Kind, Kind], tuple[float, float]]:
    """The share of its speed alone that each of two jobs keeps beside the other, by GPU model; each pair once.

    Raises:
        TraceError: what is said of a pair is not two numbers of at least 0.
    """
    found: dict[tuple[str, Kind, Kind], tuple[float, float]] = {}
    for model, jobs in rates.items():
        kinds = {name: kind_of(name) for name in jobs}
        solo = {name: float(told[_ALONE]) for name, told in jobs.items()}
        for name, told in jobs.items():
            for other, both in told.items():
                if other == _ALONE or other not in kinds:
                    continue
                one, two = kinds[name], kinds[other]
                if one[1] != two[1] or (model, two, one) in found or not (solo[name] > 0 and solo[other] > 0):
                    continue
                if not (isinstance(both, list) and len(both) == 2 and all(map(_is_rate, both))):
                    what = f"{name} beside {other} on {model}: {both!r} must be a list of two numbers of at least 0"
                    raise TraceError(f"is not a throughput file of Gavel or Shockwave: {what}", file=file)
                mine, its = float(both[0]) / solo[name], float(both[1]) / solo[other]
                found[model, one, two] = (mine, its) if mine > 0 and its > 0 else (0.0, 0.0)
    return found


def kind_of(text: str) -> Kind:
    """(job type, GPUs) of a key of Gavel's throughputs. Raises ValueError."""
    match = _KEY.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not of the form ('job type', GPUs)")
    return match["job"], int(match["gpus"])
