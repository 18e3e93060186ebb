"""How long a gang over many nodes takes to start, beside a job on one node.

    python bench/gang_start.py [--nodes 16] [--slots 4] [--times 5] [--json]

A head and so many node processes, all of this machine, joined over loopback: real processes throughout. Each job asks
for all slots of all nodes (`--per gpu`: one process a slot), or for one slot. From the decision (event
`attempt.starting`) to the run of all members (`attempt.running`); median and worst. All nodes share the cores of one
machine here, which a cluster's do not.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from gpuloom.client import Client

GPULOOM = [sys.executable, "-m", "gpuloom"]


def started_s(client: Client, slots: int, per: str) -> float:
    """Seconds from decision to run of one job."""
    job = client.submit({"command": ["true"], "gpus": slots, "per": per, "workdir": "/"})[0][0]
    while client.job(job)["state"] not in ("finished", "failed", "cancelled"):
        time.sleep(0.05)
    if client.job(job)["state"] != "finished":
        raise SystemExit(f"job {job}: {client.job(job)['message']}")
    at = {event["type"]: event["at_s"] for event in client.events(job=job)}
    return float(at["attempt.running"] - at["attempt.starting"])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=16)
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        home = Path(place, "head")
        at = ["--home", str(home)]
        up = [*GPULOOM, "up", "--no-local", "--port", "0", "--detach", "--policy", "fifo", *at]
        subprocess.run(up, check=True, capture_output=True)
        url = json.loads((home / "server.json").read_text())["url"]
        mint = [*GPULOOM, "node", "token", *at]
        token = subprocess.run(mint, check=True, capture_output=True, text=True).stdout.split()[-1]
        homes = [Path(place, f"n{number}") for number in range(given.nodes)]
        try:
            for number, node in enumerate(homes):
                join = [*GPULOOM, "node", "join", url, "--name", f"n{number}", "--slots", str(given.slots)]
                subprocess.run(
                    [*join, "--token", token, "--home", str(node), "--detach"], check=True, capture_output=True
                )
            with Client(home=home) as client:
                all_of = given.nodes * given.slots
                found = {
                    f"{all_of} processes on {given.nodes} nodes": [
                        started_s(client, all_of, "gpu") for _ in range(given.times)
                    ],
                    f"{given.nodes} processes on {given.nodes} nodes": [
                        started_s(client, all_of, "node") for _ in range(given.times)
                    ],
                    "1 process on 1 node": [started_s(client, 1, "node") for _ in range(given.times)],
                }
        finally:
            for node in homes:
                subprocess.run([*GPULOOM, "node", "leave", "--now", "--home", str(node)], capture_output=True)
            subprocess.run([*GPULOOM, "down", *at], capture_output=True)
    if given.json:
        print(json.dumps({"nodes": given.nodes, "slots": given.slots, "seconds": found}))
        return
    print("from decision to run, seconds:          median   worst")
    for what, seconds in found.items():
        print(f"  {what:36}{statistics.median(seconds):8.2f}{max(seconds):8.2f}")


if __name__ == "__main__":
    main()
