"""How fast jobs run as pods of a large Kubernetes cluster: 1,000 nodes of 8 GPUs, 5,000 pods of others, and a queue.

    python bench/kubernetes.py [--nodes 1000] [--pods 5000] [--jobs 1000] [--json]

The API server is the fake one of the tests, in a process of its own beside Volcano's controller and kubelets that start
what they are given at once. It shares the machine with the scheduler and is no faster than it is: `cpu_ms_per_job` is
what the scheduler itself takes. `placements_per_s`: jobs from the first pin of a pod to the last one, all submitted at
once. `end_to_start_s`: on a full cluster, from the end of a pod to the pin of the pod of the job that gets its GPU.
`decision_to_write_ms`: from a cancellation to the deletion that ends the pod, median and worst of 50.
`resize_to_patch_ms`: on a cluster of that size where one GPU after another becomes free, from the decision that an
elastic job grows (its event `attempt.stopping`) to the patch of its Job, median and worst of 20.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from observe import PROGRAM, process, told

STEP_S = 0.005
SLOW_S = 600.0


class Engine:
    """What works beside the API server: it looks at what has changed alone. Times are those of the writes."""

    def __init__(self, api: Any) -> None:
        from fake_kubernetes.cluster import VCJOB
        from fake_kubernetes.volcano import Volcano

        self.api, self.store, self.job = api, api.store, VCJOB
        self.volcano = Volcano(api.store)
        self.seen = api.store.version
        self.pinned: dict[str, float] = {}
        self.ended: dict[str, float] = {}
        self.patched: dict[str, list[float]] = {}
        """By job, when its Job's size was changed."""
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)

    def run(self) -> None:
        from fake_kubernetes.cluster import POD

        while not self.over.is_set():
            with self.store.changed:
                self.store.changed.wait_for(lambda: self.store.version > self.seen or self.over.is_set(), 0.5)
                jobs = list(self.store.since(self.job, self.seen))
                pods = list(self.store.since(POD, self.seen))
                self.seen = self.store.version
            for one in jobs:
                about = (one.after or one.before)["metadata"]
                if one.before and one.after and size(one.before) != size(one.after):
                    self.patched.setdefault(about["labels"]["gpuloom.io/job"], []).append(time.time())
                with self.store.changed:
                    there = self.store.items[self.job].get((about["namespace"], about["name"]))
                    if there is not None and "deletionTimestamp" not in there["metadata"]:
                        self.volcano._job(there)
                    elif there is None:
                        self.gone(about)
            for one in pods:
                about = (one.after or one.before)["metadata"]
                with self.store.changed:
                    there = self.store.items[POD].get((about["namespace"], about["name"]))
                    if there is not None:
                        self.look(there)

    def gone(self, about: Any) -> None:
        from fake_kubernetes.cluster import POD

        for key, pod in list(self.store.items[POD].items()):
            if any(one["uid"] == about["uid"] for one in pod["metadata"].get("ownerReferences") or ()):
                self.store.delete(POD, *key)

    def look(self, pod: Any) -> None:
        from fake_kubernetes.cluster import POD

        about, spec, status = pod["metadata"], pod["spec"], pod.get("status") or {}
        name, phase = about["name"], status.get("phase")
        job = (about.get("labels") or {}).get("gpuloom.io/job")
        if job is None:
            return
        if "deletionTimestamp" in about and phase == "Running":
            self.ended[job] = time.time()
            self.finish(about["namespace"], name, 143)
        elif not spec.get("schedulingGates") and not spec.get("nodeName"):
            self.pinned[job] = time.time()
            (term,) = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
                "nodeSelectorTerms"
            ]
            node = term["matchFields"][0]["values"][0]
            running = {"name": "main", "state": {"running": {"startedAt": self.store.stamp()}}}
            self.store.update(
                POD, about["namespace"], name, lambda it: {**it, "spec": {**it["spec"], "nodeName": node}}, check=False
            )
            self.store.update(
                POD, about["namespace"], name,
                lambda it: {**it, "status": {**it["status"], "phase": "Running", "containerStatuses": [running]}},
                status=True, check=False,
            )  # fmt: skip

    def finish(self, namespace: str, name: str, code: int) -> None:
        from fake_kubernetes.cluster import POD

        now = self.store.stamp()
        state = {"terminated": {"exitCode": code, "startedAt": now, "finishedAt": now}}
        over = {"phase": "Failed" if code else "Succeeded", "containerStatuses": [{"name": "main", "state": state}]}
        self.store.update(
            POD, namespace, name, lambda it: {**it, "status": {**it["status"], **over}}, status=True, check=False
        )

    def finish_job(self, job: str) -> float:
        from fake_kubernetes.cluster import POD

        with self.store.changed:
            pods = self.store.items[POD].values()
            pod = next(one for one in pods if (one["metadata"].get("labels") or {}).get("gpuloom.io/job") == job)
            self.finish(pod["metadata"]["namespace"], pod["metadata"]["name"], 0)
        return time.time()


def size(job: Any) -> int:
    return sum(task["replicas"] for task in job["spec"]["tasks"])


def serve(there: Connection, folder: Path, nodes: int, pods: int) -> None:
    """The cluster; then does what it is told."""
    from fake_kubernetes.cluster import Cluster, pod
    from fake_kubernetes.server import FakeApi

    with FakeApi() as api:
        cluster = Cluster(api)
        for index in range(nodes):
            cluster.add_node(f"gpu-{index}")
        for index in range(pods):
            cluster.create(pod(f"other-{index}", 1, annotations={"about": "x" * 1500}))
            cluster.bind(f"other-{index}", f"gpu-{index % nodes}")
        api.kubeconfig(folder / "kubeconfig")
        engine = Engine(api)
        engine.thread.start()
        there.send("ready")
        while (asks := there.recv()) is not None:
            what, *rest = asks
            if what == "finish":
                there.send(engine.finish_job(*rest))
            elif what == "free":
                there.send(engine.finish("default", *rest, 0))
            else:
                there.send(getattr(engine, what))
        engine.over.set()


@contextmanager
def cluster_of(folder: Path, nodes: int, pods: int) -> Iterator[Connection]:
    here, there = multiprocessing.Pipe()
    server = multiprocessing.Process(target=serve, args=(there, folder, nodes, pods), daemon=True)
    server.start()
    try:
        here.recv()
        yield here
    finally:
        here.send(None)
        server.join(10.0)
        server.kill()


def asked(here: Connection, *what: str) -> Any:
    here.send(what)
    return here.recv()


def until(here: Connection, what: str, wanted: set[str]) -> dict[str, float]:
    begun = time.monotonic()
    while not wanted <= (found := asked(here, what)).keys():
        if time.monotonic() - begun > SLOW_S:
            raise SystemExit(f"{len(wanted - found.keys())} of {len(wanted)} jobs were not {what} in {SLOW_S:.0f} s")
        time.sleep(0.05)
    return {job: found[job] for job in wanted}


@contextmanager
def scheduler_of(folder: Path, *more: str) -> Iterator[int]:
    """Its process."""
    words = ["up", "--executor", "kubernetes", "--image", "train:1", "--port", "0", "--detach", "--json", *more]
    env = {**os.environ, "GPULOOM_HOME": str(folder / "home"), "KUBECONFIG": str(folder / "kubeconfig")}
    ready = subprocess.run([*PROGRAM, *words], env=env, capture_output=True, text=True, check=True).stdout
    try:
        yield int(json.loads(ready)["pid"])
    finally:
        subprocess.run([*PROGRAM, "down"], env=env, capture_output=True, check=True)


def measured(nodes: int, pods: int, jobs: int) -> dict[str, Any]:
    from gpuloom.client import Client

    with tempfile.TemporaryDirectory() as name, cluster_of(Path(name), nodes, pods) as here:
        folder, begun = Path(name), time.perf_counter()
        with scheduler_of(folder) as pid:
            ready_s = time.perf_counter() - begun
            found = loaded(here, Client(home=folder / "home"), pid, nodes, pods, jobs, begun)
    found["resize_to_patch_ms"] = resizes(nodes, 20)
    return {"nodes": nodes, "pods": pods, "jobs": jobs, "ready_s": round(ready_s, 2), **found}


def resizes(nodes: int, times: int) -> list[float]:
    """Milliseconds, median and worst."""
    from gpuloom.client import Client

    with tempfile.TemporaryDirectory() as name, cluster_of(Path(name), nodes, 8 * nodes - 1) as here:
        folder = Path(name)
        with scheduler_of(folder, "--policy", "elastic-goodput", "--interval", "1s") as _:
            client = Client(home=folder / "home")
            client.submit([{"command": ["torchrun", "train.py"], "elastic": f"1-{times + 1}"}])
            until(here, "pinned", {"1"})
            for index in range(times):
                asked(here, "free", f"other-{index}")
                begun = time.monotonic()
                while len(asked(here, "patched").get("1", ())) <= index:
                    if time.monotonic() - begun > SLOW_S:
                        raise SystemExit(f"the elastic job was not resized in {SLOW_S:.0f} s")
                    time.sleep(0.05)
            decided = [one["at_s"] for one in client.events(job=1) if one["type"] == "attempt.stopping"]
            client.close()
        took = sorted(1000.0 * (at - then) for then, at in zip(decided, asked(here, "patched")["1"], strict=True))
    return [round(took[len(took) // 2], 1), round(took[-1], 1)]


def loaded(here: Connection, client: Any, pid: int, nodes: int, pods: int, jobs: int, begun: float) -> dict[str, Any]:
    while len(client.nodes()) < nodes:
        time.sleep(0.05)
    sync_s = time.perf_counter() - begun
    cpu_s, peak_mib = process(pid)
    body = {"command": ["train"], "gpus": 1}
    client.submit([body] * jobs)
    numbers = {str(one) for one in range(1, jobs + 1)}
    times = sorted(until(here, "pinned", numbers).values())
    loaded_s, _ = process(pid)
    room = nodes * 8 - pods - jobs
    client.submit([body] * (room + 20))
    filled = {str(one) for one in range(jobs + 1, jobs + room + 1)}
    until(here, "pinned", filled)
    waiting = [str(jobs + room + 1 + index) for index in range(20)]
    starts = []
    for index, job in enumerate(waiting):
        at_s = asked(here, "finish", str(index + 1))
        starts.append(until(here, "pinned", {job})[job] - at_s)
    writes = []
    for number in range(100, 150):
        begun_s = time.time()
        client.cancel([number])
        writes.append(1000.0 * (until(here, "ended", {str(number)})[str(number)] - begun_s))
    writes.sort()
    starts.sort()
    after_s, peak_mib = process(pid)
    client.close()
    return {
        "sync_s": round(sync_s, 2),
        "sync_cpu_s": round(cpu_s, 2),
        "placements_per_s": round((jobs - 1) / (times[-1] - times[0]), 1),
        "cpu_ms_per_job": round(1000.0 * (loaded_s - cpu_s) / jobs, 2),
        "end_to_start_s": round(starts[len(starts) // 2], 3),
        "decision_to_write_ms": [round(writes[len(writes) // 2], 1), round(writes[-1], 1)],
        "cpu_s": round(after_s, 2),
        "peak_mib": peak_mib,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--pods", type=int, default=5000)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    told(measured(chosen.nodes, chosen.pods, chosen.jobs), as_json=chosen.json)


if __name__ == "__main__":
    main()
