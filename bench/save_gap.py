"""From the notice to the save and to the exit of unmodified scripts, by framework.

    python bench/save_gap.py --python build/training/bin/python [--rounds 3] [--nice -19]

Each script of `tests/training/scripts` trains with gpuloom's hooks, in steps of 50 ms, and gets its notice at a random
moment, once it has done two steps: the file, and SIGTERM. `saved_s`: until the save is whole and reported; `exit_s`:
until the process has ended, with 85. Seconds, medians; JSON on standard output, with the load of the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from gpuloom.training import inject

SCRIPTS = Path(__file__).parents[1] / "tests" / "training" / "scripts"
JOBS = {"Lightning": "lightning_job.py", "HF Trainer": "hf_job.py", "Keras": "keras_job.py"}
PATIENCE_S = 300.0


def preempted(python: str, script: str, nice: int) -> tuple[float, float]:
    """Seconds from the notice to the save, and to the exit. Raises SystemExit: it did not save."""
    with tempfile.TemporaryDirectory() as place:
        progress, notice = Path(place, "progress.json"), Path(place, "notice")
        env = {**os.environ, "OMP_NUM_THREADS": "1", "GPULOOM_JOB_KEY": "1-a", "STEP_S": "0.05", "GPULOOM_ATTEMPT": "1"}
        env |= inject.environment(env, Path(place, inject.FOLDER)) | inject.saves(env, place)
        env |= {"GPULOOM_NOTICE_FILE": str(notice), "GPULOOM_PROGRESS_FILE": str(progress)}
        command = ["nice", "-n", str(nice), python, str(SCRIPTS / script)]
        with subprocess.Popen(command, cwd=place, env=env, stdout=sys.stderr) as job:
            end_s = time.monotonic() + PATIENCE_S
            while not progress.exists() or json.loads(progress.read_text()).get("step", 0) < 1:
                if job.poll() is not None or time.monotonic() > end_s:
                    job.kill()
                    raise SystemExit(f"save_gap: {script} does not train")
                time.sleep(0.01)
            time.sleep(random.Random().random() * 0.3)
            notice_s = time.time()
            notice.write_text("{}")
            job.terminate()
            code = job.wait(PATIENCE_S)
            exit_s = time.time() - notice_s
        told = json.loads(progress.read_text())
        if code != 85 or "saved_s" not in told:
            raise SystemExit(f"save_gap: {script} ended with {code}, and reported {told}")
        return told["saved_s"] - notice_s, exit_s


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True, help="an interpreter that has the frameworks")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--nice", type=int, default=0)
    given = parser.parse_args()
    python = os.path.abspath(given.python)
    found: dict[str, object] = {"load_before": os.getloadavg()[0]}
    for name, script in JOBS.items():
        times = [preempted(python, script, given.nice) for _ in range(given.rounds)]
        saved_s, exit_s = (statistics.median(one) for one in zip(*times, strict=True))
        found[name] = {"saved_s": round(saved_s, 3), "exit_s": round(exit_s, 3), "all": times}
    found["load_after"] = os.getloadavg()[0]
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
