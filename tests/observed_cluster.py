"""A fake cluster, and a scheduler of this process that watches it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fake_kubernetes.cluster import Cluster
from fake_kubernetes.server import FakeApi
from gpuloom.core.book import Book
from gpuloom.kubernetes.api import connect
from gpuloom.kubernetes.objects import Reader
from gpuloom.live.observed import ObservedService
from gpuloom.live.parts import LiveScheduler
from gpuloom.live.watching import Watching, WatchingScheduler
from gpuloom.store.home import Home
from until import until


class Observer:
    """Watches the cluster of a fake API server. `records` are those of the scheduler."""

    def __init__(self, api: FakeApi, folder: Path, *, namespaces: tuple[str, ...] = ()) -> None:
        self._kubeconfig = api.kubeconfig(folder / "kubeconfig")
        self.home, self._namespaces = folder / "home", namespaces
        self.live: LiveScheduler | None = None

    def start(self) -> None:
        api = connect(self._kubeconfig)
        self.live = LiveScheduler(
            Home(self.home), watches=api.server, default_policy="fifo:backfill=greedy", local=False
        )
        scheduler = self.live.scheduler
        assert isinstance(scheduler, WatchingScheduler)
        self.watching = Watching(api, scheduler, Reader(), self.live.home.db, self._namespaces)
        try:
            self.watching.first()
        except BaseException:
            self.watching.stop()
            self.live.close_unstarted()
            self.live = None
            raise
        self.live.start()
        self.watching.start()
        self.service = ObservedService(self.watching, self.live.sights, store_path="", on_stop=lambda: None)

    def stop(self) -> None:
        if self.live is not None:
            self.watching.stop()
            self.live.close()
            self.live = None

    @property
    def book(self) -> Book:
        assert self.live is not None
        return self.live.scheduler.book

    def states(self) -> dict[str, str]:
        """By name of a job its state."""
        return {job.name: job.phase.value for job in list(self.book.jobs.values())}

    def becomes(self, **states: str) -> None:
        """Wait until these jobs are so."""
        wanted = {name.replace("_", "-"): state for name, state in states.items()}
        until(lambda: {name: self.states().get(name) for name in wanted} == wanted, "the records to follow")

    def held(self) -> dict[str, dict[str, int]]:
        """By name of a job that holds GPUs, how many on each node."""
        jobs = self.book.jobs
        return {
            jobs[number].name: {node: len(gpus) for node, gpus in attempt.allocation}
            for number, attempt in list(self.book.attempts.items())
        }

    def number(self, name: str) -> int:
        return max(number for number, job in self.book.jobs.items() if job.name == name)

    def view(self, name: str) -> Any:
        return self.service.show(self.number(name))


@contextmanager
def observed(folder: Path, **more: Any) -> Iterator[tuple[FakeApi, Cluster, Observer]]:
    """A fake cluster, and who watches it once started."""
    with FakeApi() as api:
        observer = Observer(api, folder, **more)
        try:
            yield api, Cluster(api), observer
        finally:
            observer.stop()
