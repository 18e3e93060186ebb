"""A node process as small as can be: it has a guard, a runner and a lease that it renews while there is no file `cut`.

Arguments: home, seconds of the lease, then the jobs' programs. Writes `ready` once they run.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from gpuloom.executors.guard.start import ensure_guard
from gpuloom.executors.lease import LeaseFile
from gpuloom.executors.local import LocalExecutor
from gpuloom.executors.port import RunPhase, RunRequest
from gpuloom.fleet.lease import NodeLease, Terms, least_margin_s


def main(home: Path, lease_s: float, programs: list[str]) -> None:
    ensure_guard(home)
    lease = NodeLease(LeaseFile(str(home)), Terms(lease_s, least_margin_s(lease_s), lease_s / 10))
    assert lease.answered(lease.beat())
    executor = LocalExecutor(home)
    executor.open(lambda status: None)
    for number, program in enumerate(programs, 1):
        executor.start(
            RunRequest(
                run=f"{number}.1-abc",
                argv=("sh", "-c", program),
                cwd="/",
                env={"PATH": os.environ["PATH"]},
                directory=str(home / "runs" / str(number)),
                gpus=(),
                gpu_uuids=(),
                grace_s=5.0,
            )
        )
    ready = home / "ready"
    while True:
        if not (home / "cut").exists():
            lease.answered(lease.beat())
        if not ready.exists() and sum(status.phase is RunPhase.RUNNING for status in executor.runs()) == len(programs):
            ready.write_text(str(os.getpid()))
        time.sleep(lease_s / 10)


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3:])
