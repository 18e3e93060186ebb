"""From a submission to a job that runs: in a pilot of Slurm, beside `sbatch` itself, in the same run.

python bench/slurm_latency.py [--jobs N]      (a real Slurm of four nodes on this machine: scripts/install-system-parts)

Each job writes the time at which it begins; measured is from just before the submission to that.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from gpuloom.client import Client
from slurm_kit import CPUS, RealSlurm, wait

PROGRAM = [sys.executable, "-c", "from gpuloom.cli.main import main; main()"]
BEGIN = "date +%s.%N > {0}.new; mv {0}.new {0}"


def begun(path: Path) -> float:
    """When a job began, once it has."""
    wait(path.exists, f"{path}")
    return float(path.read_text())


def by_sbatch(slurm: RealSlurm, folder: Path, number: int) -> float:
    path = folder / f"sbatch-{number}"
    start = time.time()
    slurm.said("sbatch", "--output=/dev/null", text=f"#!/bin/sh\n{BEGIN.format(path)}\n")
    return begun(path) - start


def by_command(slurm: RealSlurm, home: Path, folder: Path, number: int) -> float:
    path = folder / f"command-{number}"
    start = time.time()
    subprocess.run(
        [*PROGRAM, "submit", "--home", str(home), "--", "sh", "-c", BEGIN.format(path)],
        env=slurm.env, check=True, capture_output=True, cwd=folder,
    )  # fmt: skip
    return begun(path) - start


def by_client(client: Client, folder: Path, number: int) -> float:
    path = folder / f"client-{number}"
    start = time.time()
    client.submit([{"command": ["sh", "-c", BEGIN.format(path)], "workdir": str(folder)}])
    return begun(path) - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=20)
    jobs = parser.parse_args().jobs
    with tempfile.TemporaryDirectory(prefix="gpuloom-slurm-") as name:
        folder = Path(name)
        (folder / "slurm").mkdir()
        slurm, home = RealSlurm(folder / "slurm"), folder / "home"
        try:
            slurm.start()
            up = ["up", "--slurm", "--slots", str(CPUS), "-N", "1", "--host", "127.0.0.1", "--port", "0", "--detach"]
            subprocess.run([*PROGRAM, *up, "--home", str(home)], env=slurm.env, check=True, capture_output=True)
            os.environ["GPULOOM_HOME"] = str(home)
            with Client(home) as client:
                cold = by_client(client, folder, -1)  # asks Slurm for the pilot
                times: dict[str, list[float]] = {"sbatch": [], "gpuloom submit": [], "Client.submit": []}
                for number in range(jobs):  # in turns
                    times["sbatch"].append(by_sbatch(slurm, folder, number))
                    times["gpuloom submit"].append(by_command(slurm, home, folder, number))
                    times["Client.submit"].append(by_client(client, folder, number))
            subprocess.run([*PROGRAM, "down", "--home", str(home)], env=slurm.env, check=True, capture_output=True)
        finally:
            slurm.close()
    print(f"first job, with the request of the pilot: {cold:.2f} s")
    for how, found in times.items():
        ordered = sorted(found)
        print(
            f"{how:15} median {statistics.median(found):.3f} s, 90 % {ordered[int(0.9 * len(ordered))]:.3f} s, "
            f"{statistics.median(found) / statistics.median(times['sbatch']):.2f} x sbatch ({jobs} jobs)"
        )
    print(json.dumps({how: [round(one, 4) for one in found] for how, found in times.items()}))


if __name__ == "__main__":
    main()
