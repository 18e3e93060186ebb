"""A cluster that is watched only: its jobs and nodes become records like any others, and nothing is ever started there.

The scheduler below decides, as it would, for its reasons and its forecasts, and none of that is carried out: whoever
schedules the cluster (kube-scheduler, Kueue, Volcano) goes on as before.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from gpuloom.core.decision import Reason, WaitCode
from gpuloom.core.errors import GpuloomError
from gpuloom.core.job import Phase
from gpuloom.kubernetes.api import Api, ApiError, Object
from gpuloom.kubernetes.informer import Informer, read_first
from gpuloom.kubernetes.jobs import Standing, standings
from gpuloom.kubernetes.objects import NodeSeen, Reader
from gpuloom.live.planning.estimates import like_of
from gpuloom.live.planning.followed import Followed
from gpuloom.live.scheduler import Scheduler
from gpuloom.live.track_record import TrackRecord
from gpuloom.live.watched_jobs import Caught, WatchedJobs
from gpuloom.store.errors import StoreError
from gpuloom.threads import Worker

log = logging.getLogger("gpuloom.watching")

T = TypeVar("T")

KUEUE = "kueue.x-k8s.io"

REST_S, QUIET = 1.0, 4.0
"""Least time between two looks at what has changed, and by how much longer than the last look took."""
LATEST_S = 10.0
"""So often it is looked in any case: a group that has not all its pods counts as started after a while."""
FIRST_S = 60.0
"""How long the first lists may take."""

_ROOM = Reason(
    WaitCode.ENGINE_DECIDES, "There are free GPUs for it, and the cluster's own scheduler has not placed it yet."
)


class WatchingScheduler(Scheduler):
    """A scheduler that carries nothing out."""

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        self.jobs = WatchedJobs(self.ledger, self.estimates)
        self._followed = Followed(self.work, self.planning.claims, self.estimates, self.speeds)
        self._changed = True
        self.standing: Mapping[int, Standing] = {}
        """How each job stands that has not ended, as seen last."""
        self.planning.watches = True

        self.work.at(self.clock.now())
        for attempt in self.book.attempts.values():
            # What held GPUs when it was last watched is taken to hold them until the cluster is looked at.
            self.work.begin(attempt.job, self.clock.now(), attempt.since_s, done_s=attempt.held_s)

    def start(self) -> None:
        """Nothing is to be taken up: nobody runs anything for it."""
        self._thread.start()

    def take(self, found: Sequence[Standing], nodes: Sequence[NodeSeen]) -> None:
        """Write down how the cluster stands. In the scheduler's thread, or before it begins. Raises StoreError."""
        caught = self.jobs.catch_up(found, nodes, self.clock.now())
        self._write(caught)
        self.jobs.written(caught)
        self.standing, self.planning.engine_says = caught.standing, caught.says

    def _write(self, caught: Caught) -> None:
        if not caught.drafts:
            return
        before, begun = dict(self.book.attempts), set[int]()
        for event in self.ledger.write(caught.drafts, caught.submissions, at_s=caught.at_s):
            number = event.job
            if number is None or number not in self.book.jobs:
                continue
            job = self.book.jobs[number]
            if event.type == "attempt.ended" and (last := before.pop(number, None)) is not None:
                self._followed.take(event, last, job, stored=True)
            elif event.type == "attempt.ended" and job.phase is Phase.FINISHED:  # it came and went since the last look
                like = like_of(job.spec, job.user, job.gpus, job.array_id)
                self.estimates.finished(like, job.work_s, given_s=job.spec.estimate, on=job.work_on)
            elif event.type in ("attempt.starting", "attempt.running"):
                # Of several runs since the last look the last one may go on.
                attempt = self.book.attempts.get(number)
                if attempt is not None and event.data.get("attempt") == attempt.number:
                    begun.add(number)
                if attempt is not None and number in begun:
                    self._followed.take(event, attempt, job)
        self._changed = True
        self.planning.stale()

    def pods_of(self, job: int) -> tuple[str, Sequence[str]]:
        """(namespace, names) of a job's pods, while it has not ended."""
        one = self.standing.get(job)
        return ("", ()) if one is None else (one.namespace, one.pods)

    def _act(self, now: float) -> None:
        if not self._changed or now < self.planning.times.quiet_until_s:
            return
        self._changed = False
        self._pass(now)
        granted = list(self.planning.claims.grants)
        self.planning.claims.take_all_back()
        self.planning.worlds.close()
        # What comes next is up to the cluster: the policy is asked again when something has happened there.
        self.planning.times.rest(math.inf)
        self.planning.reasons |= dict.fromkeys(granted, _ROOM)


class Watching:
    """The thread that keeps records of a cluster up to date. `first`, then `start`, then `stop`.

    Args:
        store: the file of the scheduler's store. namespaces: whose pods are read; none: all of them.
    """

    def __init__(
        self,
        api: Api,
        scheduler: WatchingScheduler,
        reader: Reader,
        store: Path,
        namespaces: Sequence[str] = (),
    ) -> None:
        self._api, self.scheduler, self.cluster = api, scheduler, api.name
        self._ended, self._news = threading.Event(), threading.Event()

        def informers(path: str, read: Callable[[Object], T | None], *, built_in: bool = False) -> list[Informer[T]]:
            paths = [_within(path, name) for name in namespaces] or [path]
            return [Informer(api, one, read, self._news.set, self._ended.wait, built_in=built_in) for one in paths]

        self._nodes = Informer(api, "/api/v1/nodes", reader.node, self._news.set, self._ended.wait, built_in=True)
        self._pods = informers("/api/v1/pods", reader.pod, built_in=True)
        self._origins = [
            *informers("/apis/batch/v1/jobs", reader.batch_job),
            *informers("/apis/batch.volcano.sh/v1alpha1/jobs", reader.volcano_job),
            *informers(f"/apis/{KUEUE}/{_version(api, KUEUE)}/workloads", reader.kueue_workload),
        ]
        self._needed: list[Informer[Any]] = [self._nodes, *self._pods]
        self._watches = [Worker(f"watch {one.path}", one.run) for one in (*self._needed, *self._origins)]
        self._worker = Worker("watching", self._run)
        self.track_record = TrackRecord(store)

    def first(self) -> None:
        """Read the lists and write down what they show, as far back as it goes.

        Raises:
            GpuloomError: nodes or pods can't be read.
        """
        begun_s = time.monotonic()
        for worker in self._watches:
            if not worker.start():
                raise GpuloomError(worker.problem)
        read_first(self._needed)
        for one in self._needed:
            if one.absent:
                raise GpuloomError(f"{one.absent}; watching needs the right to list and watch nodes and pods")
        for origin in self._origins:
            origin.settled.wait(FIRST_S)
        found, nodes = self._seen()
        self.scheduler.take(found, nodes)
        took_s = time.monotonic() - begun_s
        log.info("%d nodes with GPUs and %d jobs were read in %.1f s", len(nodes), len(found), took_s)

    def start(self) -> None:
        """Go on with what changes."""
        self._worker.start()
        self.track_record.start()

    def stop(self) -> None:
        self._ended.set()
        self._news.set()
        self._worker.end(5.0)
        self.track_record.stop()
        self._api.close()
        for one in self._watches:
            one.end(5.0)

    def problem(self) -> str:
        """'' or why what is shown may not be how the cluster stands."""
        told = [one.problem for one in self._needed] + [one.problem for one in (*self._watches, self._worker)]
        return "; ".join(dict.fromkeys(text for text in told if text))

    def unread(self) -> list[str]:
        """Paths of kinds that are not read, as the cluster does not have them or they may not be."""
        return [one.path for one in self._origins if one.absent]

    def _seen(self) -> tuple[list[Standing], list[NodeSeen]]:
        pods = [pod for each in self._pods for pod in each.items()]
        origins = [origin for each in self._origins for origin in each.items()]
        return standings(pods, origins, self.scheduler.clock.now()), self._nodes.items()

    def _run(self) -> None:
        took_s = 0.0
        while not self._ended.is_set():
            self._news.wait(LATEST_S)
            if self._ended.wait(max(REST_S, QUIET * took_s)):
                return
            self._news.clear()
            begun_s = time.monotonic()
            try:
                self.scheduler.do(partial(self.scheduler.take, *self._seen()))
            except StoreError as error:
                if self._ended.is_set():
                    return
                log.error("what the cluster shows can't be written down: %s", error)
                self._news.set()
            took_s = time.monotonic() - begun_s


def _version(api: Api, group: str) -> str:
    """The version of a group's kinds that the cluster prefers."""
    try:
        return str(api.get(f"/apis/{group}")["preferredVersion"]["version"])
    except (ApiError, KeyError, TypeError):  # it has none of them, as is seen when they are listed
        return "v1beta1"


def _within(path: str, namespace: str) -> str:
    head, _, kind = path.rpartition("/")
    return f"{head}/namespaces/{namespace}/{kind}"
