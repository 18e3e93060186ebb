"""Does every policy decide live, on GPUs of several models, what it decides in the simulator? With real processes.

    python bench/live_policies.py
    python bench/live_policies.py --policies hlas,weave --jobs 8 --json -
    python bench/live_policies.py --policies hlas,hlas:blind=yes,tiresias --together --jobs 12
    python bench/live_policies.py --write          (docs/results/live.md)

A head without GPUs, and three nodes that join it: two CPU slots that pretend to be V100, twice two that pretend to be
K80. Jobs are processes that really go as fast as their node's model lets them, save when they are told to, and go on
from there. Under policies that resize jobs half of those that ask for one GPU may have two, and are faster then by
Amdahl's law. Under each policy a scheduler of its own runs a whole workload; then the simulator is given the same jobs,
with the cost of a start that was seen. Compared are who ran on how many GPUs of which model, in which order, and the
average JCT.

Where two things happen within milliseconds of each other, what is decided hangs on the machine's noise. So each policy
gets the first of many random workloads of which the simulator decides the same whatever a start costs and if each
submission is some hundredths of a second late.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gpuloom.cli.demo.home import TemporaryScheduler
from gpuloom.core.errors import GpuloomError
from gpuloom.core.profile import Profiles
from gpuloom.core.scaling import NO_CURVE, Scaling
from gpuloom.core.workload import Labels, Speeds, Workload
from gpuloom.facts.profile_tables import parse_profiles
from gpuloom.facts.profiles import with_profiles
from gpuloom.files.source import Source
from gpuloom.policies.registry import parse_policy
from gpuloom.sim import SimResult, simulate
from gpuloom.traces.elastic import PARALLEL, amdahl_curve
from pages import with_part

PAGE = Path(__file__).resolve().parents[1] / "docs" / "results" / "live.md"
MARKS = ("<!-- begin live_policies -->", "<!-- end live_policies -->")
NODES = {"fast": ("V100", 2), "slow-a": ("K80", 2), "slow-b": ("K80", 2)}
CLUSTER = "1x2:V100,2x2:K80"
MODELS = ("K80", "V100")
ROUND_S, CHECK_S = 4.0, 6.0
"""Of policies that decide in rounds, and between the checks of an elastic pool."""
BOTH_S = 12.0
"""A multiple of both."""
START_S = 0.1
"""About what a start costs, for workloads in which every job changed its model."""
STEP_S = 0.05
"""A step of a job on a K80, seconds."""
STARTS_S, LATE_S = (0.06, 0.12, 0.2, 0.3), 0.05
"""Costs of a start, and the most that a submission may be late, under which a workload must be decided alike."""
TRIED = 2_000
"""Seeds, of which the first is taken that is."""
BOUND = 0.03
PARTS = {"reader": "1.01,0,0,0", "learner": "0,0,1.01,0"}
"""Stages over the time alone (storage, CPU, GPU, network): a reader and a learner don't slow each other down, as jobs
that mostly sleep don't; two of a kind would, so they are never put together."""
POLICIES = {
    "fifo": "fifo:backfill=easy;upgrade=yes",
    "sjf": "sjf:upgrade=yes",
    "srtf": "srtf",
    "srsf": "srsf",
    "tiresias": "tiresias:thresholds=5/15",
    "gittins": "gittins",
    "themis": f"themis:lease={ROUND_S}s",
    "antman": "antman:opportunistic=0",  # CPU slots are not shared kernel by kernel
    "gavel": f"gavel:round={ROUND_S}s",
    "elastic": f"elastic:check_minutes={CHECK_S / 60:g}",
    "elastic-goodput": "elastic-goodput",
    "hlas": f"hlas:min_seconds_between_moves={ROUND_S}",
    "muri-s": "muri-s:group_size=2;processes=own;interleave_overhead=none",
    "muri-l": "muri-l:group_size=2;processes=own;interleave_overhead=none",
    "muri-xs": "muri-xs:group_size=2;processes=own;interleave_overhead=none",
    "muri-xl": "muri-xl:group_size=2;processes=own;interleave_overhead=none",
    "weave": "weave:processes=own;interleave_overhead=none",
    "rl": "rl:mode=random",
}
"""By id, with times that fit jobs of seconds."""
RESIZING = ("elastic", "elastic-goodput", "weave")
"""Those that change the sizes of jobs that run."""

JOB = """
import json, os, sys, time
from gpuloom.training import job

steps, speeds, path = int(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3]
replicas, leads = int(os.environ.get("GPULOOM_REPLICAS", "1")), os.environ["GPULOOM_NODE_RANK"] == "0"
pause_s = {step_s!r} / speeds[os.environ["GPULOOM_NODE_NAMES"].split(",")[0]]
pause_s *= {serial!r} + (1 - {serial!r}) / replicas
done = int(open(path).read()) if os.path.exists(path) else 0

def save(step):
    if leads:
        job.save_atomically(path, lambda file: file.write(str(step).encode()))

began, first = time.monotonic(), done
for step in job.steps(steps, start=done, save=save):
    until = began + (step + 1 - first) * pause_s
    while (left := until - time.monotonic()) > 0 and not job.should_stop():
        time.sleep(min(left, 0.02))
    if leads:
        job.progress(step + 1, steps)
""".replace("{step_s!r}", repr(STEP_S)).replace("{serial!r}", repr(round(1.0 - PARALLEL, 6)))


@dataclass(frozen=True, slots=True)
class Planned:
    """A job: submitted so long after the first one; steps; how much faster a step is on a V100."""

    at_s: float
    gpus: int
    steps: int
    faster: float
    model: str
    most: int
    """GPUs at most; more than `gpus`: it is elastic."""

    @property
    def takes_s(self) -> float:
        """On a K80."""
        return self.steps * STEP_S


def drawn(jobs: int, seed: int, scale: float, *, gaps: float = 1.0, elastic: bool = False) -> list[Planned]:
    """A workload: 1 or 2 GPUs, 3 to 12 s of work on a K80 (log-uniform) times `scale`, more of it than the cluster
    can do at once. Times of submission differ by what is more than any start takes."""
    random = np.random.default_rng(seed)
    gpus = random.choice([1, 2], jobs, p=[0.7, 0.3])
    takes = scale * np.exp(random.uniform(np.log(3.0), np.log(12.0), jobs))
    faster = random.choice([1.25, 2.0, 4.0], jobs)
    at = np.concatenate([[0.0], np.cumsum(random.uniform(0.4, 1.2, jobs - 1))]) * scale * gaps
    models = random.choice(list(PARTS), jobs)
    most = np.where(elastic & (gpus == 1) & (random.random(jobs) < 0.5), 2, gpus)
    return [
        Planned(float(a), int(g), round(float(t) / STEP_S), float(f), str(m), int(n))
        for a, g, t, f, m, n in zip(at, gpus, takes, faster, models, most, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class Ran:
    """jct_s: by job, in order of submission. on: by job, the GPUs that it ran on ('2 V100'), one after the other."""

    jct_s: tuple[float, ...]
    on: tuple[tuple[str, ...], ...]

    @property
    def avg_jct_s(self) -> float:
        return sum(self.jct_s) / len(self.jct_s)


@dataclass(frozen=True, slots=True)
class Compared:
    """A policy live and simulated."""

    policy: str
    live: Ran
    simulated: Ran
    start_s: float

    @property
    def difference(self) -> float:
        """Of the average JCT, as a part of the live one."""
        return self.simulated.avg_jct_s / self.live.avg_jct_s - 1.0

    @property
    def others(self) -> list[int]:
        """Jobs that ran on other models than simulated, or in another order. A restart on the same model is no
        difference: live, GPUs that others still leave are not free yet, and a place on others of the model is."""
        pairs = zip(self.live.on, self.simulated.on, strict=True)
        return [job for job, (a, b) in enumerate(pairs, 1) if _visits(a) != _visits(b)]

    def as_json(self) -> dict[str, Any]:
        rows = zip(self.live.jct_s, self.simulated.jct_s, self.live.on, self.simulated.on, strict=True)
        return {
            "policy": self.policy,
            "live_avg_jct_s": self.live.avg_jct_s,
            "simulated_avg_jct_s": self.simulated.avg_jct_s,
            "difference": self.difference,
            "start_s": self.start_s,
            "jobs_placed_differently": self.others,
            "jobs": [
                {"job": n, "live_jct_s": a, "simulated_jct_s": b, "live_on": c, "simulated_on": d}
                for n, (a, b, c, d) in enumerate(rows, 1)
            ],
        }


def _visits(on: Sequence[str]) -> list[str]:
    return [model for index, model in enumerate(on) if index == 0 or on[index - 1] != model]


def profiles() -> str:
    """The library of profiles of `PARTS`."""
    lines = ["model,gpus,iteration_s,storage_s,cpu_s,gpu_s,network_s"]
    for model, parts in PARTS.items():
        lines += [
            f"{model},{n},{STEP_S}," + ",".join(str(float(one) * STEP_S) for one in parts.split(",")) for n in (1, 2)
        ]
    return "\n".join(lines) + "\n"


KNOWN = Profiles(own=tuple(parse_profiles(Source("bench", "profiles", profiles().encode()))))
"""The same, for the simulator: what the live scheduler knows of jobs beside each other."""


class Cluster:
    """Nodes that are joined to a scheduler."""

    def __init__(self, scheduler: TemporaryScheduler, nodes: Mapping[str, tuple[str, int]] = NODES) -> None:
        """nodes: GPU model that each pretends, and slots."""
        self.scheduler = scheduler
        self.homes = {name: scheduler.folder / name for name in nodes}
        token = json.loads(self._said("node", "token", "--json", "--home", str(scheduler.home)))["token"]
        url = json.loads((scheduler.home / "server.json").read_text())["url"]
        for name, (model, slots) in nodes.items():
            words = ["--name", name, "--slots", str(slots), "--slot-model", model, "--detach"]
            self._said("node", "join", url, *words, "--home", str(self.homes[name]), GPULOOM_NODE_TOKEN=token)
        until_s = time.monotonic() + 30.0
        while sum(node["state"] == "up" for node in scheduler.client.nodes() if node["name"] in nodes) < len(nodes):
            if time.monotonic() > until_s:
                raise GpuloomError("the nodes have not joined within 30 s")
            time.sleep(0.05)

    def close(self) -> None:
        for home in self.homes.values():
            self._said("node", "leave", "--home", str(home))

    def _said(self, *words: str, **env: str) -> str:
        done = subprocess.run(
            [sys.executable, "-P", "-c", "from gpuloom.cli.main import main; main()", *words],
            capture_output=True, text=True, env={**os.environ, **env}, check=False,
        )  # fmt: skip
        if done.returncode:
            raise GpuloomError(f"gpuloom {' '.join(words[:2])}: {done.stderr.strip()}")
        return done.stdout


def live(plan: Sequence[Planned], policy: str) -> tuple[Ran, list[float], float]:
    """(what happened, times of submission, seconds that a start takes)."""
    with ExitStack() as undo:
        scheduler = undo.enter_context(TemporaryScheduler(slots=0, policy=policy, interval_s=0.0, profiles=profiles()))
        cluster = Cluster(scheduler)
        undo.callback(cluster.close)
        (scheduler.work / "job.py").write_text(JOB)

        def submit(name: str, job: Planned) -> int:
            by_node = {node: job.faster if model == "V100" else 1.0 for node, (model, _) in NODES.items()}
            spec = {
                "command": [sys.executable, "-P", "job.py", str(job.steps), json.dumps(by_node), f"{name}.step"],
                "gpus": job.gpus, "workdir": str(scheduler.work), "name": name, "model": job.model,
                "gpu_types": list(MODELS), "speeds": {"K80": 1.0, "V100": job.faster}, "estimate": job.takes_s,
                "grace": 10.0,
            } | ({} if job.most == job.gpus else {"elastic": f"{job.gpus}-{job.most}"})  # fmt: skip
            return int(scheduler.client.submit([spec])[0][0])

        # What a start costs is learnt from what ran; a scheduler that knows nothing yet takes a second for it.
        scheduler.client.wait([submit("first", Planned(0.0, 1, 20, 1.0, "learner", 1))], timeout_s=60.0)
        # Rounds and checks are at multiples of their length since the epoch; the simulator's time begins with the first
        # submission.
        time.sleep(-time.time() % BOTH_S)
        numbers: list[int] = []
        began = time.monotonic()
        for index, job in enumerate(plan):
            time.sleep(max(began + job.at_s - time.monotonic(), 0.0))
            numbers.append(submit(f"job{index}", job))
        views = sorted(scheduler.client.wait(numbers, timeout_s=600.0), key=lambda view: view["id"])
        if bad := [view for view in views if view["state"] != "finished"]:
            raise GpuloomError(f"{policy}: job {bad[0]['id']} has {bad[0]['state']}: {bad[0]['message']}")
        attempts = [scheduler.client.show(number)["attempts"] for number in numbers]
        starts = [
            (sum((one["ended_s"] or 0.0) - one["started_s"] for one in ran) - job.takes_s / faster) / len(ran)
            for job, ran in zip(plan, attempts, strict=True)
            for faster in [job.faster if ran[0]["gpu_model"] == "V100" else 1.0]
            if len({one["gpu_model"] for one in ran}) == 1 and job.most == job.gpus
        ]
        on = [tuple(f"{one['gpus']} {one['gpu_model']}" for one in ran) for ran in attempts]
        first_s = views[0]["submitted_s"]
        jct_s = tuple(float(view["jct_s"] or 0.0) for view in views)
        return (
            Ran(jct_s, tuple(on)),
            [view["submitted_s"] - first_s for view in views],
            statistics.median(starts or [START_S]),
        )


def simulated(plan: Sequence[Planned], at_s: Sequence[float], policy: str, start_s: float) -> Ran:
    """The same jobs in the simulator. start_s: what a start costs."""
    workload = Workload(
        "planned",
        np.array(at_s),
        np.array([job.takes_s for job in plan]),
        np.array([job.gpus for job in plan], dtype=np.int32),
        job_ids=tuple(str(number) for number in range(1, len(plan) + 1)),
        model=Labels.of([job.model for job in plan]),
        speeds=Speeds(MODELS, np.array([[1.0, job.faster] for job in plan])),
        scaling=_sizes(plan),
    )
    workload = with_profiles(workload, KNOWN)
    found = simulate(workload, CLUSTER, policy, interval_s=0.0, restart_overhead_s=start_s, record_segments=True)
    return Ran(tuple(found.jct_s.tolist()), _models(found))


def _sizes(plan: Sequence[Planned]) -> Scaling | None:
    """What is known of elastic jobs' speeds by size: what is usual, which these obey."""
    if all(job.most == job.gpus for job in plan):
        return None
    usual = amdahl_curve(sum(slots for _, slots in NODES.values()))
    elastic = np.array([job.most > job.gpus for job in plan])
    gpus, most = (np.array([getattr(job, name) for job in plan], dtype=np.int32) for name in ("gpus", "most"))
    curve = np.where(elastic, 0, NO_CURVE).astype(np.int32)
    reference = np.where(elastic, usual[gpus, 0], 1.0)
    return Scaling(np.ones(len(plan), dtype=np.int32), gpus, most, curve, reference, (usual,))


def _models(found: SimResult) -> tuple[tuple[str, ...], ...]:
    """By job, GPUs and models of its runs."""
    assert found.segments is not None
    model_of = [model for part in CLUSTER.split(",") for model in [part.split(":")[1]] * int(part.split("x")[0])]
    runs: list[dict[float, tuple[int, str]]] = [{} for _ in found.job_ids]
    rows = zip(*(getattr(found.segments, name) for name in ("job", "start_s", "node", "gpu_mask")), strict=True)
    for job, begun_s, node, mask in rows:
        before, _ = runs[int(job)].get(float(begun_s), (0, ""))
        runs[int(job)][float(begun_s)] = before + int(mask).bit_count(), model_of[int(node)]
    return tuple(tuple(f"{gpus} {model}" for _, (gpus, model) in sorted(one.items())) for one in runs)


def steady(policies: Sequence[str], jobs: int, scale: float, first: int = 1, gaps: float = 1.0) -> list[Planned]:
    """The first workload that each of these policies decides alike however small things come, and in which somebody's
    size changes if one of them resizes. Raises GpuloomError: there is none."""
    resizing = [policy for policy in policies if parse_policy(policy)[0] in RESIZING]
    for seed in range(first, first + TRIED):
        plan = drawn(jobs, seed, scale, gaps=gaps, elastic=bool(resizing))
        found = {policy: _decided(plan, policy, seed) for policy in policies}
        if None not in found.values() and all(_resizes(found[policy] or ()) for policy in resizing):
            return plan
    raise GpuloomError(
        f"{', '.join(policies)}: of {TRIED} workloads each hangs on milliseconds; take fewer jobs, or longer ones"
    )


def _decided(plan: Sequence[Planned], policy: str, seed: int) -> tuple[tuple[str, ...], ...] | None:
    """Who runs where; None if that hangs on milliseconds."""
    random = np.random.default_rng(seed)
    at, jobs = np.array([job.at_s for job in plan]), len(plan)
    found: set[tuple[tuple[str, ...], ...]] = set()
    for start_s in STARTS_S:
        for late in (np.zeros(jobs), random.uniform(0.0, LATE_S, jobs), random.uniform(0.0, LATE_S, jobs)):
            found.add(simulated(plan, (at + late - late[0]).tolist(), policy, start_s).on)
            if len(found) > 1:
                return None
    return found.pop()


def _resizes(on: Sequence[Sequence[str]]) -> bool:
    return any(len({run.split()[0] for run in runs}) > 1 for runs in on)


def compared(plan: Sequence[Planned], policy: str) -> Compared:
    """Run a policy live, then simulate it."""
    ran, at_s, start_s = live(plan, policy)
    return Compared(policy, ran, simulated(plan, at_s, policy, start_s), start_s)


def page_part(rows: Sequence[dict[str, Any]]) -> str:
    """The table of docs/results/live.md."""
    lines = [
        "| policy | live | simulated | difference | jobs with another way over models and sizes |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        others, jobs = row["jobs_placed_differently"], len(row["jobs"])
        lines.append(
            f"| `{row['policy']}` | {row['live_avg_jct_s']:.2f} s | {row['simulated_avg_jct_s']:.2f} s | "
            f"{100 * row['difference']:+.2f} % | {f'{len(others)} of {jobs}' if others else 'none'} |"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1, help="the first workload that is tried")
    parser.add_argument("--scale", type=float, default=1.0, help="jobs so many times as long")
    parser.add_argument("--gaps", type=float, default=1.0, help="between submissions, so many times as long")
    parser.add_argument(
        "--policies", type=lambda text: text.split(","), default=list(POLICIES), help="ids or full texts"
    )
    parser.add_argument("--together", action="store_true", help="the same workload under all of these policies")
    parser.add_argument("--json", metavar="FILE|-", help="write the figures, with every job's")
    parser.add_argument("--write", action="store_true", help="write the table into docs/results/live.md")
    given = parser.parse_args()
    print(f"{'policy':<72} {'live':>8} {'simulated':>10} {'differ':>9}  placed differently", file=sys.stderr)
    rows: list[dict[str, Any]] = []
    texts = [POLICIES.get(policy, policy) for policy in given.policies]
    together = steady(texts, given.jobs, given.scale, given.seed, given.gaps) if given.together else []
    for text in texts:
        plan = together if given.together else steady([text], given.jobs, given.scale, given.seed, given.gaps)
        one = compared(plan, text)
        rows.append(one.as_json())
        print(
            f"{one.policy:<72} {one.live.avg_jct_s:6.2f} s {one.simulated.avg_jct_s:8.2f} s "
            f"{100 * one.difference:+7.2f} %  {', '.join(map(str, one.others)) or '-'}",
            file=sys.stderr, flush=True,
        )  # fmt: skip
    if given.write:
        PAGE.write_text(with_part(PAGE.read_text(encoding="utf-8"), *MARKS, page_part(rows)), encoding="utf-8")
    if given.json is not None:
        text = json.dumps(rows, indent=2) + "\n"
        sys.stdout.write(text) if given.json == "-" else Path(given.json).write_text(text)
    return 0 if all(abs(row["difference"]) <= BOUND for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
