"""The runner, with a fault in its system calls. Started by path in its place, with the plan in GPULOOM_TEST_FAULTS:
{seen: file that gets a line for each call not made before, fault: as `Fault.written`, or null, failed: file that gets a
byte for each call that failed, over: the file whose being there ends the fault, once: the first failure makes it,
groups: where control groups are to be, as plain files, or ''}.
"""

from __future__ import annotations

import json
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path += [HERE, os.path.join(os.path.dirname(HERE), "src")]

import fake_cgroups  # noqa: E402 - as below
import faults  # noqa: E402 - its place is known by now
from faulty_calls import Seen  # noqa: E402 - as above
from gpuloom.executors.runner import main as runner  # noqa: E402 - as above

plan = json.loads(os.environ["GPULOOM_TEST_FAULTS"])
injector = faults.Injector(
    ("executors",),
    None if plan["fault"] is None else faults.Fault.read(plan["fault"]),
    faults.teller(plan["failed"], plan["over"] if plan["once"] else ""),
    Seen(plan["seen"]),  # type: ignore[arg-type]
)
if plan["groups"]:
    fake_cgroups.install(plan["groups"])
with injector:
    code = runner.main(*sys.argv[1:])
sys.exit(code)
