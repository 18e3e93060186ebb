"""A stand-in for an elastic training script: the more replicas it has, the sooner a step is done. No framework needed.

gpuloom submit --elastic 1-4 -- python elastic.py [--steps N] [--seconds S]

Each attempt reads its number of replicas, goes on from what was saved, and splits the same batch among the replicas: so
a step is the same work at every size, and gpuloom can compare the speeds. On notice it saves at the end of a step.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

from gpuloom.training import job

SERIAL = 0.14
"""Part of a step that does not get faster with more replicas."""

parser = argparse.ArgumentParser(description="A stand-in for an elastic training script.")
parser.add_argument("--steps", type=int, default=100)
parser.add_argument("--seconds", type=float, default=0.2, help="time that a step takes with one replica")
given = parser.parse_args()

replicas = int(os.environ.get("GPULOOM_REPLICAS", "1"))
checkpoint = Path("runs") / f"elastic-{os.environ.get('GPULOOM_JOB_ID', 'alone')}.txt"
checkpoint.parent.mkdir(exist_ok=True)
start = int(checkpoint.read_text()) if job.resuming() and checkpoint.exists() else 0
print(f"{replicas} replicas, from step {start}", flush=True)


def save(step: int) -> None:
    job.save_atomically(checkpoint, lambda file: file.write(str(step).encode()))


for _ in job.steps(given.steps, start=start, save=save):
    time.sleep(given.seconds * (SERIAL + (1 - SERIAL) / replicas))
