"""A learnt table of placements as text (JSON), so that one run's knowledge can begin the next.

`{"format": "gpuloom-learnt-placement-1", "choices": ["wait", "packed", "1x1", …], "centres": […], "values": [[…], …],
"record": […], "submitted": n, "handled": n, "mean_value": x, "draws": n, "best": {…}}`. `values` has a row per centre
and, last, one for jobs of which no ratio is known; null: never tried. Any program may write it: `values` are
preferences, larger is better. All after `values` may be left out.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpuloom.bounded.json_text import load_json
from gpuloom.core.workload import F8

FORMAT = "gpuloom-learnt-placement-1"
_CHOICE = re.compile(r"wait|packed|[1-9]\d{0,5}x[1-9]\d{0,5}")


@dataclass(frozen=True, slots=True, eq=False)
class LearntTable:
    """choices: names of the columns of `values`. centres: logarithms of compute over communication, rising. values:
    shape (centres + 1, choices), NaN where nothing is known. record: ratios of jobs seen. submitted, handled: jobs so
    far. mean_value: running mean of max_a' Q(s', a'). draws: random numbers drawn. best: highest throughput seen, by
    `ratios.fingerprint` of the curve.
    """

    choices: tuple[str, ...]
    centres: F8
    values: F8
    record: F8 = field(default_factory=lambda: np.zeros(0))
    submitted: int = 0
    handled: int = 0
    mean_value: float = 0.0
    draws: int = 0
    best: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        unknown = [name for name in self.choices if not _CHOICE.fullmatch(name)]
        if unknown or len(set(self.choices)) != len(self.choices):
            raise ValueError(f"choices must be different and wait, packed or NODESxGPUS, not {unknown or self.choices}")
        if self.centres.ndim != 1 or not np.isfinite(self.centres).all() or (np.diff(self.centres) <= 0).any():
            raise ValueError("centres must be numbers in rising order")
        if self.values.shape != (len(self.centres) + 1, len(self.choices)) or np.isinf(self.values).any():
            raise ValueError(
                f"values must have {len(self.centres) + 1} rows (one per centre and one for unknown ratios) of "
                f"{len(self.choices)} numbers or null"
            )
        if not np.isfinite(self.record).all() or not np.isfinite(self.mean_value):
            raise ValueError("record and mean_value must be finite numbers")
        if self.submitted < 0 or self.handled < 0 or self.draws < 0:
            raise ValueError("submitted, handled and draws must be at least 0")
        if any(not math.isfinite(throughput) or throughput < 0 for throughput in self.best.values()):
            raise ValueError("best must be finite numbers of at least 0")

    def columns(self, choices: Sequence[str]) -> F8:
        """`values` with these columns; NaN for a choice that the table does not have."""
        place = {name: column for column, name in enumerate(self.choices)}
        found = np.full((len(self.values), len(choices)), np.nan)
        for column, name in enumerate(choices):
            if name in place:
                found[:, column] = self.values[:, place[name]]
        return found

    def text(self) -> str:
        """As JSON; floats are written so that they read back exactly."""
        known = [[None if np.isnan(value) else value for value in row] for row in self.values.tolist()]
        content = {
            "format": FORMAT,
            "choices": list(self.choices),
            "centres": self.centres.tolist(),
            "values": known,
            "record": self.record.tolist(),
            "submitted": self.submitted,
            "handled": self.handled,
            "mean_value": self.mean_value,
            "draws": self.draws,
            "best": dict(self.best),
        }
        return json.dumps(content) + "\n"


def read_table(text: str) -> LearntTable:
    """The table of a text.

    Raises:
        ValueError: it is not of the format (says what is wrong).
    """
    content: Any = load_json(text)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f'must be a JSON object with "format": "{FORMAT}"')
    try:
        values = [[np.nan if value is None else float(value) for value in row] for row in content["values"]]
        return LearntTable(
            tuple(map(str, content["choices"])),
            np.array(content["centres"], dtype=np.float64),
            np.array(values, dtype=np.float64),
            np.array(content.get("record", []), dtype=np.float64),
            int(content.get("submitted", 0)),
            int(content.get("handled", 0)),
            float(content.get("mean_value", 0.0)),
            int(content.get("draws", 0)),
            {str(curve): float(throughput) for curve, throughput in dict(content.get("best", {})).items()},
        )
    except KeyError as error:
        raise ValueError(f"lacks {error}") from error
    except TypeError as error:
        raise ValueError(str(error)) from error
