"""A bound on what any policy can gain by choosing GPU models and pairs, on traces of Gavel's generator, one GPU each.

    python bench/pairs_bound.py THROUGHPUTS.json.gz --lam 2000 --seeds 3,4 [--jobs 400] [--gpus 12]

Alone on its best GPU model a job takes L seconds. While jobs S are there, they lose at least |S| less the most that S
can do per second, each counted in shares of its best speed: the optimum of a linear program over jobs alone and
measured pairs (fractions allowed, so a bound from below). Fewer jobs never lose more. Under every policy a job is there
for at least L seconds from its submission. So the average JCT is at least that of L, plus what those lose who would be
there if each were alone on its best GPU. The bound knows all durations and moves jobs for nothing.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import gavel_traces
from gpuloom.solvers.linear import maximize

_KEY = re.compile(r"\('(.*)', 1\)")
F8 = NDArray[np.float64]


class Speeds:
    """Shares of its best speed of each kind of job, alone (kinds, models) and in pairs (models, kinds, kinds)."""

    def __init__(self, throughputs: Path, gpus: int) -> None:
        raw = json.loads(gzip.decompress(throughputs.read_bytes()))
        models = [name for name in raw if "unconsolidated" not in name]
        known = [{m[1]: entry for name, entry in raw[model].items() if (m := _KEY.fullmatch(name))} for model in models]
        self.kind = {name: number for number, name in enumerate(sorted(known[0]))}
        rate = np.array([[of_model[name]["null"] for of_model in known] for name in self.kind])
        self.best = rate.max(axis=1)
        self.alone: F8 = rate / self.best[:, None]
        self.paired: F8 = np.zeros((len(models), len(rate), len(rate)))
        for model, of_model in enumerate(known):
            for name, one in self.kind.items():
                for key, both in of_model[name].items():
                    other = _KEY.fullmatch(key)
                    if other and both:
                        self.paired[model, one, self.kind[other[1]]] = both[0] / self.best[one]
        self._gpus, self._most = float(gpus), dict[bytes, float]()

    def most(self, kinds: NDArray[np.intp]) -> float:
        """The most that these jobs can do per second, in shares of their best speeds."""
        count = np.bincount(kinds, minlength=len(self.kind))
        key = count.tobytes()
        if key not in self._most:
            self._most[key] = self._solved(np.flatnonzero(count), count)
        return self._most[key]

    def _solved(self, present: NDArray[np.intp], count: NDArray[np.intp]) -> float:
        value: list[float] = []
        entries: list[tuple[int, int, float]] = []
        models = len(self.paired)
        for model in range(models):
            for row, one in enumerate(present):
                entries += [(row, len(value), 1.0), (len(present) + model, len(value), 1.0)]
                value.append(self.alone[one, model])
                for later, two in enumerate(present[row:], row):
                    mine, its = self.paired[model, one, two], self.paired[model, two, one]
                    if min(mine, its) <= 0:
                        continue
                    members = [(row, 2.0)] if row == later else [(row, 1.0), (later, 1.0)]
                    entries += [(member, len(value), jobs) for member, jobs in members]
                    entries.append((len(present) + model, len(value), 1.0))
                    value.append(mine + its)
        rows, columns, values = (np.array(part) for part in zip(*entries, strict=True))
        upper = np.concatenate([count[present].astype(np.float64), np.full(models, self._gpus)])
        cost = np.array(value)
        x = maximize(cost, rows, columns, values, np.full(len(upper), -np.inf), upper, np.full(len(cost), np.inf))
        return float(cost @ x)


def bound(throughputs: Path, speeds: Speeds, jobs: int, lam_s: float, seed: int) -> tuple[float, float]:
    """Average JCT, hours: with each job alone on its best GPU, and the bound."""
    drawn = gavel_traces.draw(throughputs, jobs, lam_s, seed)
    kind = np.array([speeds.kind[name] for name, _, _, _ in drawn])
    steps, submit_s = np.array([row[2] for row in drawn]), np.array([row[3] for row in drawn])
    ends_s = submit_s + steps / speeds.best[kind]
    times = np.unique(np.concatenate([submit_s, ends_s]))
    lost_s = 0.0
    for begin, end in pairwise(times.tolist()):
        here = kind[(submit_s <= begin) & (ends_s > begin)]
        if len(here):
            lost_s += (len(here) - speeds.most(here)) * (end - begin)
    ideal_s = float((ends_s - submit_s).mean())
    return ideal_s / 3600, (ideal_s + lost_s / jobs) / 3600


def main() -> None:
    """Print both for each seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("throughputs", type=Path)
    parser.add_argument("--jobs", type=int, default=400)
    parser.add_argument("--lam", type=float, default=2000.0, help="mean seconds between submissions")
    parser.add_argument("--seeds", default="3,4")
    parser.add_argument("--gpus", type=int, default=12, help="of each model")
    asked = parser.parse_args()
    speeds = Speeds(asked.throughputs, asked.gpus)
    for seed in map(int, asked.seeds.split(",")):
        alone, least = bound(asked.throughputs, speeds, asked.jobs, asked.lam, seed)
        print(f"lam {asked.lam:g} s, seed {seed}: each alone on its best GPU {alone:.2f} h, any policy {least:.2f} h")


if __name__ == "__main__":
    main()
