"""Whatever happens in a cluster, and however often nobody watches: the records end up as the cluster is."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("lightkube", reason="lightkube is not installed: pip install 'gpuloom[kubernetes]'")

from fake_kubernetes.cluster import NODE, POD, Cluster, pod
from fake_kubernetes.server import FakeApi
from gpuloom.core.book import Book
from gpuloom.core.job import gpus_in
from gpuloom.kubernetes.jobs import State, standings
from gpuloom.kubernetes.objects import Reader
from gpuloom.live.parts import LiveScheduler
from gpuloom.live.watching import WatchingScheduler
from gpuloom.store.home import Home
from tiers import examples

NODES, GPUS = 3, 4
ACTIONS = ["create", "gang", "bind", "bind", "finish", "fail", "delete", "look", "look", "restart", "cordon", "ungate"]


class Cell:
    """A cluster without its server's clock, and records of it."""

    def __init__(self, api: FakeApi, folder: Path, rng: random.Random) -> None:
        self.cluster, self.rng, self.reader = Cluster(api), rng, Reader()
        self.cluster.at_s = 1_700_000_000.0
        self.path = folder / f"{rng.getrandbits(64):x}"
        for index in range(NODES):
            self.cluster.add_node(f"n{index}", GPUS)
        self.made = 0
        self.open()

    def open(self) -> None:
        self.live = LiveScheduler(Home(self.path), watches="https://cell", local=False)
        scheduler = self.live.scheduler
        assert isinstance(scheduler, WatchingScheduler)
        self.scheduler, self.store, self.ledger, self.jobs = (
            scheduler,
            self.live.store,
            scheduler.ledger,
            scheduler.jobs,
        )

    def pods(self) -> list[dict]:
        return self.cluster.store.at(POD, "default", self.cluster.store.version)

    def do(self, action: str) -> None:
        cluster, rng = self.cluster, self.rng
        assert cluster.at_s is not None
        cluster.at_s += rng.choice([0.0, 1.0, 7.0, 100.0])
        waiting = [one for one in self.pods() if not one["spec"].get("nodeName")]
        gated = [one for one in waiting if one["spec"].get("schedulingGates")]
        waiting = [one for one in waiting if one not in gated]
        running = [one for one in self.pods() if one["status"]["phase"] == "Running"]
        match action:
            case "create":
                self.made += 1
                gates = {"schedulingGates": [{"name": "x.io/quota"}]} if rng.random() < 0.3 else {}
                cluster.create(pod(f"p-{self.made}", rng.randint(1, GPUS), priority=rng.choice([0, 10]), **gates))
            case "ungate" if gated:
                cluster.change(rng.choice(gated)["metadata"]["name"], schedulingGates=[])
            case "gang":
                self.made += 1
                labels = {"scheduling.x-k8s.io/pod-group": f"g-{self.made}"}
                for index in range(rng.randint(1, 3)):
                    cluster.create(pod(f"g-{self.made}-{index}", rng.randint(1, 2), labels=labels))
            case "bind" if waiting:
                one = rng.choice(waiting)
                free = self.free()
                asks = self.reader.asked(one["spec"], {}).gpus
                if fits := [node for node in sorted(free) if free[node] >= asks]:
                    cluster.bind(one["metadata"]["name"], rng.choice(fits))
            case "finish" | "fail" if running:
                cluster.finish(rng.choice(running)["metadata"]["name"], 1 if action == "fail" else 0)
            case "delete" if self.pods():
                cluster.delete(rng.choice(self.pods())["metadata"]["name"])
            case "look":
                self.look()
            case "restart":
                self.live.close_unstarted()
                self.open()
            case "cordon":
                cluster.change(f"n{rng.randrange(NODES)}", NODE, unschedulable=rng.random() < 0.5)

    def free(self) -> Counter[str]:
        found = Counter({f"n{index}": GPUS for index in range(NODES)})
        for one in self.pods():
            if one["spec"].get("nodeName") and one["status"]["phase"] in ("Pending", "Running"):
                found[one["spec"]["nodeName"]] -= self.reader.asked(one["spec"], {}).gpus
        return found

    def look(self) -> None:
        """Catch up, and compare."""
        now_s = float(self.cluster.at_s or 0.0)
        pods = [seen for one in self.pods() if (seen := self.reader.pod(one)) is not None]
        nodes = [
            seen
            for one in self.cluster.store.at(NODE, "", self.cluster.store.version)
            if (seen := self.reader.node(one)) is not None
        ]
        found = standings(pods, [], now_s)
        self.scheduler.take(found, nodes)
        again = self.jobs.catch_up(found, nodes, now_s)
        assert not again.drafts, "what is written is written again"
        self.check(found)

    def check(self, found: list) -> None:
        book = self.ledger.book
        held = Counter[str]()
        taken = set()
        assert {n for n in book.attempts if self.scheduler.work.knows(n)} == book.attempts.keys()
        for attempt in book.attempts.values():
            for node, gpus in attempt.allocation:
                held[node] += len(gpus)
                for gpu in gpus:
                    assert (node, gpu) not in taken, "a GPU is given twice"
                    taken.add((node, gpu))
                    assert gpu < len(book.nodes[node].gpus) == GPUS
            assert gpus_in(attempt.allocation) == book.jobs[attempt.job].gpus
        wanted = Counter[str]()
        for one in found:
            if one.state is State.HOLDS:
                for part in one.parts:
                    wanted[part.node] += part.gpus
        assert held == wanted
        present = ("queued", "held", "running")
        states = Counter(job.phase.value for job in book.jobs.values() if job.phase.value in present)
        going_on = [one for one in found if one.state is not State.ENDED]
        assert states == Counter(
            "held" if one.held else "running" if one.state is State.HOLDS else "queued" for one in going_on
        )
        replayed = Book()
        for event in self.store.events(limit=100_000):
            replayed.commit(replayed.stage([event]))
        assert replayed.jobs == book.jobs
        assert replayed.attempts == book.attempts


@pytest.mark.slow
@settings(max_examples=examples(40))
@given(seed=st.integers(0, 2**32), steps=st.integers(1, 90))
def test_the_records_end_up_as_the_cluster_is(seed: int, steps: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    rng = random.Random(seed)
    with FakeApi() as api:
        cell = Cell(api, tmp_path_factory.getbasetemp(), rng)
        try:
            for _ in range(steps):
                cell.do(rng.choice(ACTIONS))
            assert cell.cluster.at_s is not None
            cell.cluster.at_s += 60.0
            cell.look()
        finally:
            cell.live.close_unstarted()
