"""A stand-in for a training script: its steps take time, are reported and saved, and it makes way when it is asked to.

python train.py [--lr RATE] [--steps N] [--seconds S]
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

from gpuloom.training import job

parser = argparse.ArgumentParser(description="A stand-in for a training script.")
parser.add_argument("--lr", type=float, default=0.01, help="learning rate")
parser.add_argument("--steps", type=int, default=50)
parser.add_argument("--seconds", type=float, default=0.1, help="time that a step takes")
given = parser.parse_args()

checkpoint = Path("runs") / f"train-{os.environ.get('GPULOOM_JOB_ID', 'alone')}.txt"
checkpoint.parent.mkdir(exist_ok=True)
start = int(checkpoint.read_text()) if job.resuming() and checkpoint.exists() else 0


def save(step: int) -> None:
    job.save_atomically(checkpoint, lambda file: file.write(str(step).encode()))


loss = 1.0
for step in job.steps(given.steps, start=start, save=save):
    time.sleep(given.seconds)
    loss = 1.0 / (1.0 + given.lr * (step + 1))
    job.progress(step + 1, given.steps, loss=loss)
print(f"{given.steps} steps with learning rate {given.lr:g}: loss {loss:.4f}")
