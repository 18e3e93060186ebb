"""The guard, with a fault in its system calls: as faulty_runner.py, with the plan in GPULOOM_TEST_FAULTS."""

from __future__ import annotations

import json
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path += [HERE, os.path.join(os.path.dirname(HERE), "src")]

import faults  # noqa: E402 - its place is known by now
from faulty_calls import Seen  # noqa: E402 - as above
from gpuloom.executors.guard import main as guard  # noqa: E402 - as above

plan = json.loads(os.environ["GPULOOM_TEST_FAULTS"])
injector = faults.Injector(
    ("executors",),
    None if plan["fault"] is None else faults.Fault.read(plan["fault"]),
    faults.teller(plan["failed"], plan["over"]),
    Seen(plan["seen"]),  # type: ignore[arg-type]
)
with injector:
    code = guard.main(*sys.argv[1:])
sys.exit(code)
