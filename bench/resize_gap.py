"""How long a PyTorch DDP job stands still when it is resized, by its number of processes.

    python bench/resize_gap.py --python build/training/bin/python [--launcher torchrun] [--apart] [--policy weave]

A scheduler of its own on three CPU slots trains `examples/training/train_ddp.py` (gloo), and other jobs come and go, so
that it has 1, 2, 3, 2 and 1 processes in turn. Of each resize: from its last step before to its first one after
(`cost_s`), from the notice to the end of the old processes (`leave_s`), from there to the start of the new ones
(`start_s`), and the steps that it did again. JSON on standard output; with the load of the machine before and after.
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
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpuloom.client import Client

GPULOOM = [sys.executable, "-m", "gpuloom"]
SCRIPT = Path(__file__).parents[1] / "examples" / "training" / "train_ddp.py"
PATIENCE_S = 180.0
FIRST = """
import os, runpy, sys
with open("/proc/self/autogroup", "w") as file:
    file.write(sys.argv[1])
os.nice(int(sys.argv[1]))
sys.argv = sys.argv[2:]
sys.path[0] = os.path.dirname(sys.argv[0])
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Goes before the script where the machine is busy: Linux weighs sessions against each other (sched_autogroup)."""


def wait(so: Callable[[], bool], what: str) -> None:
    """Until something is so. Raises SystemExit: it takes too long."""
    end_s = time.monotonic() + PATIENCE_S
    while not so():
        if time.monotonic() > end_s:
            raise SystemExit(f"resize_gap: it takes longer than {PATIENCE_S:g} s until {what}")
        time.sleep(0.05)


FILLER = {"command": ["sleep", "100000"], "workdir": "/", "grace": 0, "name": "filler"}


def resized(client: Client, job: int, fillers: list[int], rounds: int) -> None:
    """Give it 1, 2, 3, 2 and 1 processes, so many times. fillers: two other jobs, which run."""

    def trains(replicas: int) -> None:
        def so() -> bool:
            view = client.job(job)
            if view["state"] in ("finished", "failed", "cancelled"):
                raise SystemExit(f"resize_gap: the job is {view['state']}: {view['message']}")
            now = (view["replicas"] or {}).get("now")
            paid = client.show(job)["resizes"]
            return now == replicas and "step" in view["progress"] and (not paid or paid[-1]["cost_s"] is not None)

        wait(so, f"it trains with {replicas} processes")

    trains(1)
    for _ in range(rounds):
        for replicas in (2, 3):
            client.cancel([fillers.pop(0)])
            trains(replicas)
        for replicas in (2, 1):
            fillers += [number for (number,) in client.submit([FILLER])]
            trains(replicas)
    client.cancel([*fillers, job])


def figures(client: Client, job: int) -> list[dict[str, Any]]:
    """Of each resize."""
    told: dict[int, dict[str, float]] = {}
    number = 0
    for event in client.events(job=job, limit=1000):
        kind, data = event["type"], event["data"]
        if kind == "attempt.starting":
            number = data["attempt"]
        at_s = data["ended_s"] if kind == "attempt.ended" else event["at_s"]
        told.setdefault(number, {})[kind] = at_s
    found = []
    for one in client.show(job)["resizes"]:
        before, after = told[one["attempt"] - 1], told[one["attempt"]]
        left_s = before["attempt.ended"]
        times = {"leave_s": left_s - before["attempt.stopping"], "start_s": after["attempt.running"] - left_s}
        times = {name: round(seconds, 3) for name, seconds in {"cost_s": one["cost_s"] or 0.0, **times}.items()}
        sizes = {"from": one["from_replicas"], "to": one["to_replicas"], "lost_steps": one["lost_steps"]}
        found.append({**sizes, **times, "cost_from": one["cost_from"]})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--python", type=Path, default=Path("build/training/bin/python"), help="one that has PyTorch")
    parser.add_argument("--launcher", choices=("direct", "torchrun"), default="direct")
    parser.add_argument("--policy", default="elastic-goodput")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--nice", type=int, default=0, help="of the job's processes, on a busy machine (-19: first)")
    parser.add_argument("--apart", action="store_true", help="each rank imports PyTorch by itself")
    given = parser.parse_args()
    load = [os.getloadavg()[0]]
    with tempfile.TemporaryDirectory() as place:
        at = ["--home", str(Path(place, "home"))]
        up = [*GPULOOM, "up", "--detach", "--port", "0", "--slots", "3", "--interval", "0s", "--policy", given.policy]
        subprocess.run([*up, *at], check=True, capture_output=True)
        try:
            with Client(home=Path(place, "home")) as client:
                fillers = [number for (number,) in client.submit([FILLER, FILLER])]
                wait(lambda: all(client.job(one)["state"] == "running" for one in fillers), "the others run")
                venv = os.path.abspath(given.python.parent.parent)
                options = ["--epochs", "100000", "--pause", "0.3", "--checkpoint", str(Path(place, "ddp.pt"))]
                Path(place, "first.py").write_text(FIRST)
                before = [str(Path(place, "first.py")), str(given.nice)] if given.nice else []
                job = {
                    "command": ["torchrun", *before, str(SCRIPT), *options],
                    "launcher": given.launcher,
                    "elastic": "1-3",
                    "env": {"GPULOOM_FORKS": "off"} if given.apart else {},
                }
                ((number,),) = client.submit([{**job, "venv": venv, "workdir": place}])
                resized(client, number, fillers, given.rounds)
                found = figures(client, number)
        finally:
            subprocess.run([*GPULOOM, "down", "--stop-jobs", *at], capture_output=True)
    load.append(os.getloadavg()[0])
    by_size = {
        to: round(statistics.median(one["cost_s"] for one in found if one["to"] == to), 2)
        for to in sorted({one["to"] for one in found})
    }
    says = {
        "launcher": given.launcher,
        "policy": given.policy,
        "nice": given.nice,
        "apart": given.apart,
        "load": load,
        "median_cost_s_by_processes": by_size,
    }
    print(json.dumps({**says, "resizes": found}, indent=1))


if __name__ == "__main__":
    main()
