"""A live scheduler for tests: a real store, a machine of CPU slots, and an executor without processes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fake_executor import FakeExecutor
from gpuloom.core.job import Job
from gpuloom.live.facade import LiveService
from gpuloom.live.parts import LiveScheduler
from gpuloom.live.submission.spec import JobSpec, job_spec
from gpuloom.live.views.job_answers import JobView
from gpuloom.store.home import home_of
from until import until


class Live:
    """A running scheduler, and short ways to use it."""

    until = staticmethod(until)

    def __init__(self, home: Path, executor: FakeExecutor, **options: Any) -> None:
        self.executor = executor
        self.parts = LiveScheduler(home_of(home), executor=executor, **{"slots": 4, "interval_s": 0.0, **options})
        self.scheduler, self.book = self.parts.scheduler, self.parts.scheduler.book
        self.stopped = False
        self.service = LiveService(
            self.scheduler,
            self.parts.sights,
            machine=self.parts.machine,
            store_path=str(self.parts.home.db),
            on_stop=lambda: None,
            links=self.parts.links_problem,
        )
        self.parts.start()

    def submit(self, gpus: int = 1, **fields: Any) -> int:
        """Submit one job; its number."""
        return self.submit_all([spec(gpus, **fields)])[0]

    def submit_unsettled(self, one: JobSpec) -> int:
        """Submit without waiting for what comes of it."""
        return self.service.submit([one], user="ann")[0][0]

    def submit_all(self, specs: Sequence[JobSpec]) -> list[int]:
        found = self.service.submit(specs, user="ann")
        self.settle()
        return [job for group in found for job in group]

    def settle(self, timeout_s: float = 150.0) -> None:
        """Wait until the scheduler has nothing left to do now."""
        scheduler = self.scheduler
        until = time.monotonic() + timeout_s
        while time.monotonic() < until:
            if scheduler.do(lambda: not scheduler.busy()):
                return
            time.sleep(0.002)
        raise AssertionError(f"the scheduler does not settle: {scheduler.problem}")

    def sampled(self) -> None:
        """Have a sample of the cluster taken now."""

        def look() -> str:
            self.scheduler.sampler.due_s = 0.0
            return self.scheduler.sampler.look(self.scheduler.clock.now())

        assert self.scheduler.do(look) == ""

    def end(self, job: int, code: int | None = 0, **how: Any) -> None:
        """The run of a job ends."""
        self.executor.end(f"{job}.{self.job(job).attempts}", code, **how)
        self.settle()

    def job(self, job: int) -> Job:
        return self.book.jobs[job]

    def state(self, *jobs: int) -> list[str]:
        return [self.job(job).phase.value for job in jobs]

    def view(self, job: int) -> JobView:
        return self.service.job(job)

    def why(self, job: int) -> Mapping[str, Any]:
        """The reason why a job waits."""
        found = self.view(job)["waiting"]
        assert found is not None
        return found

    def crash(self) -> None:
        """Leave without a word, as by kill -9: nothing is written any more, the executor goes on."""
        self.stopped = True
        self.parts.machine.stop()
        self.executor.close()
        self.scheduler.stop(stop_jobs=False)
        self.scheduler.policy_record.unsaved = False
        assert self.scheduler.join(10.0)
        self.parts.store.close()
        self.parts.lock.release()

    def close(self) -> None:
        if not self.stopped:
            self.stopped = True
            self.parts.close()


def spec(gpus: int = 1, **fields: Any) -> JobSpec:
    """A spec with little to say."""
    return job_spec({"command": ["train"], "gpus": gpus, **fields})


@contextmanager
def living(home: Path, executor: FakeExecutor | None = None, **options: Any) -> Iterator[Live]:
    """A live scheduler that is ended in order, and whose store is sound then."""
    live = Live(home, executor or FakeExecutor(), **options)
    try:
        yield live
        assert live.scheduler.failed is None
    finally:
        live.close()
    from gpuloom.store.sqlite import SqliteStore

    with SqliteStore(live.parts.home.db, read_only=True) as store:
        report = store.check()
    assert not report.findings, report.findings
