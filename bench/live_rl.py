"""Does `rl` learn where live jobs run best? Its reward over many short jobs, beside every fixed placement.

    python bench/live_rl.py
    python bench/live_rl.py --jobs 100 --json -
    python bench/live_rl.py --write        (docs/results/live.md)

Two nodes of four CPU slots join a head without any. Jobs of three kinds may have 1 to 4 GPUs. They are processes that
read from their environment on how many nodes and GPUs they are, and go exactly as fast as a model of compute and
communication lets them there (`learning/comm_model.py`); they sleep, so that a busy machine does not change it. Their
kind is in the library of profiles: by that ratio `rl` groups them. What it knows of speeds at the beginning is what
jobs usually gain from more GPUs, which is wrong for all three.

A job's reward is process over cost: iterations per second that it reported, over the best that its kind can have, over
what the placement costs (with the policy's defaults). A fixed placement's is known from the model, for the same jobs;
the best one runs live as well.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gpuloom.cli.demo.home import TemporaryScheduler
from gpuloom.core.errors import GpuloomError
from gpuloom.learning.comm_model import CommModel
from gpuloom.placement.even import FRAGMENTATION, THRIFT
from live_policies import Cluster
from pages import with_part

PAGE = Path(__file__).resolve().parents[1] / "docs" / "results" / "live.md"
MARKS = ("<!-- begin live_rl -->", "<!-- end live_rl -->")
NODES = {"node-a": ("V100", 4), "node-b": ("V100", 4)}
GPUS, PER_NODE, MOST = 8, 4, 4
PLACEMENTS = ((1, 1), (1, 2), (2, 1), (1, 3), (1, 4), (2, 2))
"""(nodes, GPUs per node) of 1 to 4 GPUs."""
KINDS = {
    "dense": CommModel(0.001, 0.12, 0.0005, 0.01),
    "middle": CommModel(0.002, 0.08, 0.006, 0.05),
    "chatty": CommModel(0.002, 0.03, 0.04, 0.15),
}
"""Seconds per step: the same, compute of one GPU, all-reduce inside a node, between nodes."""
WINDOW = ("dense",) * 25 + ("middle",) * 15 + ("chatty",) * 10
"""Kinds of the jobs of a window, in another order each time."""
LASTS_S = (0.6, 1.0)
"""How long jobs run where they are fastest; less than half a second measures no speed."""
AT_ONCE = 3
"""Jobs in the system: another comes when one ends."""

JOB = """
import json, os, sys, time
from gpuloom.training import job

steps, step_s = int(sys.argv[1]), json.loads(sys.argv[2])
nodes, gpus = int(os.environ["GPULOOM_NODE_COUNT"]), int(os.environ["GPULOOM_REPLICAS"])
pause_s, leads = step_s[f"{nodes}x{gpus // nodes}"], os.environ["GPULOOM_NODE_RANK"] == "0"
began = time.monotonic()
job.progress(0, steps)
for step in range(steps):
    time.sleep(max(began + (step + 1) * pause_s - time.monotonic(), 0.0))
    if leads:
        job.progress(step + 1, steps)
"""


@dataclass(frozen=True, slots=True)
class Placed:
    """A job that ran. it_per_s: as it reported; NaN: it reported none."""

    kind: str
    placement: tuple[int, int]
    it_per_s: float

    @property
    def reward(self) -> float:
        return self.it_per_s / best_rate(self.kind) / cost(self.placement)


def rate(kind: str, placement: tuple[int, int]) -> float:
    """Steps per second."""
    nodes, per_node = placement
    step_s = KINDS[kind].step_s(np.array(float(nodes * per_node)), np.array(float(nodes)), np.array(1.0))
    return 1.0 / float(step_s)


def best_rate(kind: str) -> float:
    return max(rate(kind, placement) for placement in PLACEMENTS)


def cost(placement: tuple[int, int]) -> float:
    """As the policy's, with its defaults: the share of the GPUs, more on more nodes than needed."""
    nodes, per_node = placement
    gpus = nodes * per_node
    return float((gpus / GPUS * (nodes / math.ceil(gpus / PER_NODE)) ** FRAGMENTATION) ** THRIFT)


def reward(kind: str, placement: tuple[int, int]) -> float:
    """What a job of this kind earns there."""
    return rate(kind, placement) / best_rate(kind) / cost(placement)


def fixed(placement: tuple[int, int]) -> float:
    """Mean reward of a window in which all jobs have this placement."""
    return statistics.fmean(reward(kind, placement) for kind in WINDOW)


def best_fixed() -> tuple[int, int]:
    return max(PLACEMENTS, key=fixed)


def best_of_all() -> float:
    """Mean reward of a window in which each kind has its best placement."""
    return statistics.fmean(max(reward(kind, one) for one in PLACEMENTS) for kind in WINDOW)


def drawn(jobs: int, seed: int) -> list[tuple[str, int]]:
    """(kind, steps) of jobs, the same kinds in each window."""
    random = np.random.default_rng(seed)
    kinds = [str(kind) for _ in range(-(-jobs // len(WINDOW))) for kind in random.permutation(WINDOW)][:jobs]
    return [(kind, max(round(float(random.uniform(*LASTS_S)) * best_rate(kind)), 4)) for kind in kinds]


def profiles() -> str:
    """The library of profiles: compute and communication of each kind."""
    lines = ["model,gpus,iteration_s,storage_s,cpu_s,gpu_s,network_s"]
    for kind, model in KINDS.items():
        whole_s = model.fixed_s + model.per_sample_s + model.inter_s
        compute_s = model.fixed_s + model.per_sample_s
        lines += [f"{kind},{gpus},{whole_s},0,0,{compute_s},{model.inter_s}" for gpus in range(1, MOST + 1)]
    return "\n".join(lines) + "\n"


def live(plan: Sequence[tuple[str, int]], policy: str) -> tuple[list[Placed], dict[str, Any]]:
    """(the jobs in order of submission, the policy's state in the end)."""
    with ExitStack() as undo:
        scheduler = undo.enter_context(TemporaryScheduler(slots=0, policy=policy, interval_s=0.0, profiles=profiles()))
        undo.callback(Cluster(scheduler, NODES).close)
        (scheduler.work / "job.py").write_text(JOB)
        client = scheduler.client

        def submit(kind: str, steps: int) -> int:
            step_s = {f"{nodes}x{per}": 1.0 / rate(kind, (nodes, per)) for nodes, per in PLACEMENTS}
            command = [sys.executable, "-P", "job.py", str(steps), json.dumps(step_s)]
            spec = {
                "command": command, "workdir": str(scheduler.work), "name": kind, "model": kind, "elastic": f"1-{MOST}",
                "estimate": steps / rate(kind, (1, 1)), "hooks": False,
            }  # fmt: skip
            return int(client.submit([spec])[0][0])

        numbers: list[int] = []
        active: set[int] = set()
        heard_s = time.monotonic()
        while len(numbers) < len(plan) or active:
            while len(active) < AT_ONCE and len(numbers) < len(plan):
                numbers.append(submit(*plan[len(numbers)]))
                active.add(numbers[-1])
            views = client.jobs(ids=sorted(active))
            ended = {view["id"] for view in views if view["state"] in ("finished", "failed", "cancelled")}
            if bad := [view for view in views if view["state"] in ("failed", "cancelled")]:
                raise GpuloomError(f"{policy}: job {bad[0]['id']} has {bad[0]['state']}: {bad[0]['message']}")
            if ended:
                heard_s = time.monotonic()
            elif time.monotonic() > heard_s + 120.0:
                raise GpuloomError(f"{policy}: no job has ended for two minutes: {[view['waiting'] for view in views]}")
            active -= ended
            time.sleep(0.05)
        found = []
        for (kind, _), number in zip(plan, numbers, strict=True):
            attempts = client.show(number)["attempts"]
            attempt = attempts[0]
            nodes = len(attempt["members"])
            speed = attempt["it_per_s"]
            found.append(Placed(kind, (nodes, attempt["gpus"] // nodes), math.nan if speed is None else speed))
        state = client.policy(state=True)["state"]
        return found, dict(state) if state is not None else {}


def windows(ran: Sequence[Placed]) -> list[float]:
    """Mean reward of each window of jobs, of those that reported their speed."""
    size = len(WINDOW)
    return [
        statistics.fmean(one.reward for one in ran[first : first + size] if not math.isnan(one.it_per_s))
        for first in range(0, len(ran), size)
    ]


def usual(ran: Sequence[Placed]) -> dict[str, str]:
    """By kind, where most of them ran."""
    found = {}
    for kind in KINDS:
        count = Counter(one.placement for one in ran if one.kind == kind)
        found[kind] = ", ".join(f"{n}x{per} {100 * some // count.total()} %" for (n, per), some in count.most_common(3))
    return found


def measured(jobs: int, seed: int, policy: str) -> dict[str, Any]:
    plan, best = drawn(jobs, seed), best_fixed()
    ran, state = live(plan, policy)
    beside, _ = live(plan, f"rl:mode=fixed;fixed={best[0]}x{best[1]}")
    return {
        "policy": policy,
        "jobs": jobs,
        "windows": windows(ran),
        "last_half": usual(ran[jobs // 2 :]),
        "silent": sum(math.isnan(one.it_per_s) for one in ran),
        "fixed": {f"{n}x{per}": fixed((n, per)) for n, per in PLACEMENTS},
        "best_fixed": f"{best[0]}x{best[1]}",
        "best_fixed_live": windows(beside),
        "best_of_all": best_of_all(),
        "table": {key: state.get(key) for key in ("updates", "mean_change", "rewarded", "mean_reward", "tried")},
        "placed": [{"kind": one.kind, "placement": "{}x{}".format(*one.placement)} for one in ran],
    }


def page_part(found: dict[str, Any]) -> str:
    """The tables of docs/results/live.md."""
    ends = [min((n + 1) * len(WINDOW), found["jobs"]) for n in range(len(found["windows"]))]
    best = found["best_fixed"]
    lines = [
        f"| jobs | {' | '.join(f'to {end}' for end in ends)} |",
        "|---|" + "---|" * len(ends),
        f"| `{found['policy']}` | {' | '.join(f'{value:.2f}' for value in found['windows'])} |",
        f"| `rl:mode=fixed;fixed={best}` | {' | '.join(f'{value:.2f}' for value in found['best_fixed_live'])} |",
        "",
        f"| by the model | {' | '.join(f'all {name}' for name in found['fixed'])} | each kind its best |",
        "|---|" + "---|" * (len(found["fixed"]) + 1),
        f"| mean reward | {' | '.join(f'{value:.2f}' for value in found['fixed'].values())} "
        f"| {found['best_of_all']:.2f} |",
        "",
        f"Where the last half of the jobs ran (nodes x GPUs): {'; '.join(map(' '.join, found['last_half'].items()))}.",
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--policy", default="rl")
    parser.add_argument("--json", metavar="FILE|-", help="write the figures")
    parser.add_argument("--write", action="store_true", help="write the tables into docs/results/live.md")
    given = parser.parse_args()
    found = measured(given.jobs, given.seed, given.policy)
    print(page_part(found), file=sys.stderr)
    if given.write:
        PAGE.write_text(with_part(PAGE.read_text(encoding="utf-8"), *MARKS, page_part(found)), encoding="utf-8")
    if given.json is not None:
        text = json.dumps(found, indent=2) + "\n"
        sys.stdout.write(text) if given.json == "-" else Path(given.json).write_text(text)
    # The last window shows what was learnt.
    return 0 if found["windows"][-1] > found["fixed"][found["best_fixed"]] else 1


if __name__ == "__main__":
    sys.exit(main())
