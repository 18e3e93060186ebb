"""What the benches for a GPU machine have in common: results that are whole at any moment, and progress on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write(out: Path, result: Mapping[str, Any]) -> None:
    """Write what is known so far as JSON, whole or not at all. Raises OSError."""
    out.parent.mkdir(parents=True, exist_ok=True)
    part = out.with_name(f".{out.name}.part")
    part.write_text(json.dumps(result, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    part.replace(out)


def say(text: str) -> None:
    """On stderr, at once."""
    print(text, file=sys.stderr, flush=True)
