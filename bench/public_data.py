"""Where the public traces are that several pages and benchmarks are made from."""

from __future__ import annotations

import os
import sys
from pathlib import Path

DATA = Path(os.environ.get("GPULOOM_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
"""The folder of public traces: $GPULOOM_DATA, else ../shared/data beside the checkout."""


def need(data: Path, *names: str) -> None:
    """End, exit code 2, if some of these files or folders are not there.

    Args:
        names: what is needed of the folder, such as `muri` or `pollux/workloads.tar.gz`.
    """
    missing = [name for name in names if not (data / name).exists()]
    if not missing:
        return
    what = ", ".join(missing)
    print(
        f"{Path(sys.argv[0]).name}: {what} missing in {data}: public data that is no part of gpuloom; "
        "docs/reference/data.md says where to get it (GPULOOM_DATA names the folder)",
        file=sys.stderr,
    )
    raise SystemExit(2)
