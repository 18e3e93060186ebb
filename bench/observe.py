"""What it costs to watch a large Kubernetes cluster: 1,000 nodes of 8 GPUs and 5,000 pods, on the fake API server.

    python bench/observe.py [--nodes 1000] [--pods 5000] [--json]

The server is a process of its own. Of `gpuloom observe`: the time until all lists are read and written down and its API
answers; its processor time and memory; how long `why` and `ls` take there, and how long a pod that ends takes to be
seen.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

PROGRAM = [sys.executable, "-c", "from gpuloom.cli.main import main; main()"]


def serve(there: Connection, folder: Path, nodes: int, pods: int) -> None:
    """The cluster: a third of its pods have ended, half run, the others wait. Then does what it is told."""
    from fake_kubernetes.cluster import Cluster, pod
    from fake_kubernetes.server import FakeApi

    with FakeApi() as api:
        cluster = Cluster(api)
        cluster.at_s = time.time() - 86_400.0
        for index in range(nodes):
            cluster.add_node(f"gpu-{index}")
        for index in range(pods):
            cluster.at_s += 80_000.0 / pods
            cluster.create(pod(f"train-{index}", 1, annotations={"about": "x" * 1500}))
            if index < pods * 5 // 6:
                cluster.bind(f"train-{index}", f"gpu-{index % nodes}")
            if index < pods // 3:
                cluster.finish(f"train-{index}")
        cluster.at_s = None
        api.kubeconfig(folder / "kubeconfig")
        there.send("ready")
        while (name := there.recv()) is not None:
            cluster.finish(name)
            there.send("done")


def timed(*words: str, env: dict[str, str]) -> tuple[float, str]:
    begun = time.perf_counter()
    done = subprocess.run([*PROGRAM, *words], env=env, capture_output=True, text=True, check=True)
    return time.perf_counter() - begun, done.stdout


def process(pid: int) -> tuple[float, int]:
    """(processor seconds, peak MiB)"""
    ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[11:13]
    status = Path(f"/proc/{pid}/status").read_text()
    peak = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
    return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK"), peak >> 10


def measured(nodes: int, pods: int) -> dict[str, Any]:
    here, there = multiprocessing.Pipe()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        server = multiprocessing.Process(target=serve, args=(there, folder, nodes, pods), daemon=True)
        server.start()
        here.recv()
        env = {**os.environ, "GPULOOM_HOME": str(folder / "home"), "KUBECONFIG": str(folder / "kubeconfig")}
        ready_s, told = timed("observe", "--detach", "--json", "--port", "0", env=env)
        pid = int(json.loads(told)["pid"])
        cpu_s, peak_mib = process(pid)
        log = (folder / "home" / "scheduler.log").read_text()
        read_s = float(re.findall(r"were read in ([0-9.]+) s", log)[-1])
        waits = pods * 11 // 12
        why_s, _ = timed("why", f"train-{waits}", "--json", env=env)
        again_s, _ = timed("why", f"train-{waits}", "--json", env=env)
        ls_s, _ = timed("ls", "--limit", "100", env=env)
        ends = f"train-{pods // 2}"
        here.send(ends)
        here.recv()
        begun = time.perf_counter()
        while "running" in json.loads(timed("show", ends, "--json", env=env)[1])["job"]["state"]:
            time.sleep(0.05)
        seen_s = time.perf_counter() - begun
        after_s, peak_mib = process(pid)
        timed("down", env=env)
        here.send(None)
        server.join(10.0)
    return {
        "nodes": nodes,
        "pods": pods,
        "read_s": read_s,
        "ready_s": round(ready_s, 2),
        "cpu_s": round(cpu_s, 2),
        "why_s": round(why_s, 2),
        "why_again_s": round(again_s, 2),
        "ls_s": round(ls_s, 2),
        "end_seen_s": round(seen_s, 2),
        "cpu_after_s": round(after_s, 2),
        "peak_mib": peak_mib,
    }


def told(found: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        print(f"{name:22} {value}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--pods", type=int, default=5000)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    told(measured(chosen.nodes, chosen.pods), as_json=chosen.json)


if __name__ == "__main__":
    main()
