"""What names a home in the environment of its jobs and in control groups."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path


def home_id_of(home: Path) -> str:
    """Of this user's home at this place; other places have other names."""
    return hashlib.sha256(os.fsencode(f"{os.getuid()}:{home.resolve()}")).hexdigest()[:12]
