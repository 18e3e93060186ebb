"""Many simulations at once, in processes."""

import subprocess
import sys


def test_signals_that_the_caller_has_blocked_stay_so() -> None:
    """In a process of its own: processes are forked, and there are no threads."""
    code = (
        "import signal\n"
        "import numpy as np\n"
        "from gpuloom.core.cluster import parse_cluster\n"
        "from gpuloom.core.workload import Workload\n"
        "from gpuloom.sim.runner import Task, run_all\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])\n"
        "jobs = Workload.sorted_by_submit('two', np.zeros(2), np.full(2, 60.0), np.ones(2, np.int32))\n"
        "task = Task(jobs, parse_cluster('1x1'), 'fifo')\n"
        "outcome = run_all([task, task], {}, processes=2)\n"
        "assert len(outcome.done) == 2, outcome\n"
        "assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == {signal.SIGTERM}\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
