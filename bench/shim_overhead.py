"""What the shim adds to a launch: against the unhooked call of the same run, on the fake driver's empty launch.

    python bench/shim_overhead.py [--batches N] [--json]

Pinned to one processor; each figure is the median over batches of 1,000 launches, batches of the hooked and the
unhooked call taken in turns. Needs a C compiler and no GPU. Targets: pass-through ≤ 100 ns, managed ≤ 300 ns.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from shim_kit import Stage, built

TARGET_NS = {"pass-through": 100, "high": 300, "best-effort": 300, "best-effort beside a service": 300}


def measured(stage: Stage, klass: str, batches: int) -> dict[str, float]:
    """One run of the overhead program."""
    done = subprocess.run(
        [str(stage.made.program("overhead")), str(batches), "1000"],
        env=stage.environment(klass, FAKE_NULL="1", GPULOOM_SHARE_LOG=""),
        capture_output=True,
        text=True,
        check=True,
    )
    return {key: float(value) for key, value in (pair.split("=") for pair in done.stdout.split())}


def main() -> None:
    """Measure all modes and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, default=1000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        stage = Stage(built("plain"), Path(folder))
        for mode, klass in (("pass-through", ""), ("high", "high"), ("best-effort", "best-effort")):
            rows.append({"mode": mode, **measured(stage, klass, options.batches)})
        service = stage.start("high", "events", "0", "60e9")  # one that has launched, waited and now idles
        while not stage.programs():
            time.sleep(0.01)
        rows.append({"mode": "best-effort beside a service", **measured(stage, "best-effort", options.batches)})
        del service
        stage.end()
    if options.json:
        print(json.dumps({"processors": os.cpu_count(), "rows": rows}))
        return
    print(f"{'':30}{'unhooked':>12}{'hooked':>12}{'extra':>12}{'target':>12}")
    for row in rows:
        numbers = (row["unhooked_ns"], row["hooked_ns"], row["extra_ns"], TARGET_NS[row["mode"]])
        print(f"{row['mode']:30}" + "".join(f"{number:>9.1f} ns" for number in numbers))


if __name__ == "__main__":
    main()
