"""A small real training job: a two-layer network learns two interleaved spirals, with Adam, in NumPy alone.

It shows what a job needs for gpuloom: it saves atomically, goes on from its checkpoint, reports its progress, and when
gpuloom gives notice it saves and exits with code 85. Interrupted or not, it ends with the very same loss.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import IO

# Several of these share few cores; small matrices gain nothing from threads.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from gpuloom.training import job

if __name__ == "__main__":
    job.should_stop()  # imports take time: a notice that comes meanwhile is taken, and the job leaves at its first step

import numpy as np

BATCH = 64


def spirals(seed: int, points: int = 2000) -> tuple[np.ndarray, np.ndarray]:
    """Points of two spirals: (points, 2) and their classes, 0 or 1."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, 2, points)
    angle = random.uniform(0.5, 3.5 * np.pi, points)
    side = np.where(labels == 1, 1.0, -1.0)
    xy = side[:, None] * np.stack([angle * np.cos(angle), angle * np.sin(angle)], axis=1) / 10.0
    return xy + random.normal(0.0, 0.02, xy.shape), labels.astype(float)


class Network:
    """Two hidden layers, and the state of its optimizer."""

    def __init__(self, seed: int, hidden: int) -> None:
        random = np.random.default_rng([seed, 1])
        self.state: dict[str, np.ndarray] = {"step": np.array(0)}
        for name, rows, columns in (("a", 2, hidden), ("b", hidden, hidden), ("c", hidden, 1)):
            self.state[f"w{name}"] = random.normal(0.0, 1.0 / np.sqrt(rows), (rows, columns))
            self.state[f"o{name}"] = np.zeros(columns)
        for name in [key for key in self.state if key != "step"]:
            self.state[f"m_{name}"] = np.zeros_like(self.state[name])
            self.state[f"v_{name}"] = np.zeros_like(self.state[name])

    def forward(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Both hidden layers, and the probability of class 1."""
        s = self.state
        first = np.tanh(x @ s["wa"] + s["oa"])
        second = np.tanh(first @ s["wb"] + s["ob"])
        return first, second, 1.0 / (1.0 + np.exp(-np.clip(second @ s["wc"] + s["oc"], -30.0, 30.0)[:, 0]))

    def train(self, x: np.ndarray, y: np.ndarray, rate: float) -> float:
        """One step of Adam; the loss before it."""
        s = self.state
        first, second, p = self.forward(x)
        out = ((p - y) / len(y))[:, None]
        back2 = (out @ s["wc"].T) * (1.0 - second**2)
        back1 = (back2 @ s["wb"].T) * (1.0 - first**2)
        slopes = {"wc": second.T @ out, "wb": first.T @ back2, "wa": x.T @ back1}
        slopes |= {"oc": out.sum(0), "ob": back2.sum(0), "oa": back1.sum(0)}
        s["step"] = s["step"] + 1
        step = int(s["step"])
        for name, slope in slopes.items():
            m = s[f"m_{name}"] = 0.9 * s[f"m_{name}"] + 0.1 * slope
            v = s[f"v_{name}"] = 0.999 * s[f"v_{name}"] + 0.001 * slope**2
            s[name] = s[name] - rate * (m / (1.0 - 0.9**step)) / (np.sqrt(v / (1.0 - 0.999**step)) + 1e-8)
        return cross_entropy(p, y)


def cross_entropy(p: np.ndarray, y: np.ndarray) -> float:
    p = np.clip(p, 1e-12, 1.0 - 1e-12)
    return float(-np.mean(y * np.log(p) + (1.0 - y) * np.log(1.0 - p)))


def keep_pace(until_s: float) -> None:
    """Sleep for what is left of a step, but not once gpuloom gave notice: the step's work is done."""
    while (left := until_s - time.monotonic()) > 0.0 and not job.should_stop():
        time.sleep(min(left, 0.05))


def main(words: list[str] | None = None) -> float:
    """Train; the final loss over all points."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument(
        "--step-seconds", type=float, default=0.05, help="time for a step on average, to be predictable"
    )
    parser.add_argument("--checkpoint", type=Path, required=True, help="file to save to and to continue from")
    parser.add_argument("--save-every", type=float, default=30.0, metavar="SECONDS")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--hidden", type=int, default=32)
    parser.add_argument("--rate", type=float, default=0.01, help="learning rate")
    given = parser.parse_args(words)

    x, y = spirals(given.seed)
    network = Network(given.seed, given.hidden)
    given.checkpoint.parent.mkdir(parents=True, exist_ok=True)
    if given.checkpoint.exists():
        with np.load(given.checkpoint) as saved:
            network.state = {name: saved[name] for name in saved.files}
        print(f"continues from step {int(network.state['step'])}", flush=True)
    start = int(network.state["step"])

    def save(step: int) -> None:
        def write(file: IO[bytes]) -> None:
            np.savez(file, **network.state)  # type: ignore[arg-type]  # the stub takes the names for options

        job.save_atomically(given.checkpoint, write)
        print(f"saved at step {step}", flush=True)

    began_s = time.monotonic()
    for step in job.steps(given.steps, start=start, save=save, every_s=given.save_every):
        # The batch depends on seed and step alone: a run that goes on sees what an uninterrupted one would.
        chosen = np.random.default_rng([given.seed, 2, step]).integers(0, len(y), BATCH)
        loss = network.train(x[chosen], y[chosen], given.rate)
        if (step + 1) % 50 == 0:
            print(f"step {step + 1}: loss {loss:.4f}", flush=True)
        # By the clock from the first step on: what one step takes too long the next ones make up for.
        keep_pace(began_s + (step + 1 - start) * given.step_seconds)
        job.progress(step + 1, given.steps, loss=loss)

    final = cross_entropy(network.forward(x)[2], y)
    print(f"final loss {final!r}", flush=True)
    return final


if __name__ == "__main__":
    main()
