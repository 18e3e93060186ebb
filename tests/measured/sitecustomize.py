"""Coverage of every process of the tests. Those that Python starts with this folder on PYTHONPATH begin here. Runners
are started with `-I -S` and see neither that nor this, so they are begun by runner.py.

GPULOOM_COVERAGE names the folder that takes the data (`make coverage` and scripts/mutants.py set it).
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

RUNNERS = ("gpuloom/executors/runner/main.py", "tests/faulty_runner.py")
BEGIN = str(Path(__file__).with_name("runner.py"))

start = subprocess.Popen.__init__


def measured(self: subprocess.Popen[Any], args: Any, *rest: Any, **named: Any) -> None:
    """A runner is begun by ours, which measures it; all else as ever."""
    if isinstance(args, list) and args[1:3] == ["-I", "-S"] and str(args[3]).endswith(RUNNERS):
        args = [*args[:3], BEGIN, *args[3:]]
    start(self, args, *rest, **named)


if "GPULOOM_COVERAGE" in os.environ:
    import begin

    begin.measure()
    subprocess.Popen.__init__ = measured  # type: ignore[method-assign]
