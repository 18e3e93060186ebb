"""Attempts as Jobs of one namespace: follows what is seen of them, writes what is wanted, tells their nodes.

A thread looks after each change (`wanted.py` says what is to be written); some others write. Nothing is kept here that
the cluster does not have too: whoever begins anew finds it there.
"""

from __future__ import annotations

import heapq
import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from gpuloom.core.end_reason import EndReason
from gpuloom.core.run_name import run_name_of
from gpuloom.core.spec import Launcher
from gpuloom.executors.kubernetes.kept import UNSEEN_S, Kept, update
from gpuloom.executors.kubernetes.kinds import INDEXED, VOLCANO
from gpuloom.executors.kubernetes.manifest import Setup
from gpuloom.executors.kubernetes.marks import HOME, attempt_of
from gpuloom.executors.kubernetes.pod_logs import PodFiles, Sight
from gpuloom.executors.kubernetes.pods import group_of, job_of, pod_of
from gpuloom.executors.kubernetes.there import There
from gpuloom.executors.kubernetes.wanted import (
    Attempt,
    Member,
    Offer,
    Seen,
    Stop,
    found_of,
    may_take_over,
    status_of,
    writes_for,
)
from gpuloom.executors.kubernetes.writer import Writer
from gpuloom.executors.kubernetes.writes import (
    CreateJob,
    TakeOver,
    Write,
)
from gpuloom.executors.node import RunSpec
from gpuloom.executors.port import ExecutorError, OnStatus, RunStatus
from gpuloom.kubernetes.api import Api, ApiError
from gpuloom.kubernetes.informer import Informer, read_first
from gpuloom.threads import Worker

log = logging.getLogger("gpuloom.kubernetes")

WRITERS = 8
REPEAT_S = 3.0
"""A write whose effect is not seen after so long is made once more."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0
LOOKED_S = 30.0
"""How long ends of before may take to be taken down when it begins."""
CLOSE_S = 2.0
CLAIMED_S = 90.0
"""The same once that is there, and what is written may fail for a while."""


class PodCluster:
    """`start` it, then make nodes of it (`PodNode`). Every call may come from any thread, and none but `start` waits.

    Args:
        resource_of: the name under which a node offers its GPUs. why_not: '' or why nothing may be written now.
    """

    def __init__(
        self, api: Api, setup: Setup, resource_of: Callable[[str], str], why_not: Callable[[], str] = lambda: ""
    ) -> None:
        self.api, self.setup = api, setup
        self._lock = threading.RLock()
        self._news, self._ended, self._looked = threading.Event(), threading.Event(), threading.Event()
        self._own: dict[str, Kept] = {}
        self._seen: dict[str, Seen] = {}
        self._listeners: dict[str, OnStatus] = {}
        self._gone: set[str] = set()
        """Nodes that were given up; whoever has not heard of that yet may still ask for runs there."""
        self._staying: dict[int, str] = {}
        """By job, the attempt of which members are to go on in the next one."""
        self._waits: dict[str, str] = {}
        """By such an attempt, the next one, which waits until it is over."""
        self._offered: Mapping[int, Offer] = {}
        """By job, what somebody else has made for it, and waits."""
        self._there = There()
        self._due: dict[str, float] = {}
        self._dues: list[tuple[float, str]] = []
        """When attempts are to be looked at though nothing changes; as a heap, in which times may be old ones."""
        labels, space = f"{HOME}={setup.home}", f"namespaces/{setup.namespace}"

        def informer(
            path: str,
            read: Callable[[Any], Any],
            take: Callable[[Any, Any], None],
            *,
            mine: bool,
            built_in: bool = False,
        ) -> Informer[Any]:
            def passed(before: Any, after: Any) -> None:
                with self._lock:
                    take(before, after)

            selector = labels if mine else ""
            return Informer(
                api, path, read, self._news.set, self._ended.wait, built_in=built_in, labels=selector, passed=passed
            )

        there = self._there
        self._lists: tuple[Informer[Any], ...] = (
            informer(f"/api/v1/{space}/pods", pod_of, there.pod, mine=True, built_in=True),
            informer(f"{setup.kind.path}/{space}/jobs", job_of, there.job, mine=True),
        )
        if setup.kind.groups:
            path = f"{setup.kind.groups}/{space}/podgroups"
            self._lists = (*self._lists, informer(path, group_of, there.group, mine=False))
        self._needed = self._lists
        if setup.kind is not INDEXED:  # of others, whose size may be changed
            self._lists = (*self._lists, informer(f"{INDEXED.path}/{space}/jobs", job_of, there.job, mine=True))
        self._watches = [Worker(f"watch {one.path}", one.run) for one in self._lists]
        self._worker = Worker("pods", self._run)
        self._writers = ThreadPoolExecutor(WRITERS, "kubernetes-write")
        self.files = PodFiles(api, setup.runs, self._sight, shared=bool(setup.claim))
        self._writer = Writer(api, setup, resource_of, self.files, self._lock, why_not)

    def start(self) -> None:
        """Read the lists, and begin to look.

        Raises:
            GpuloomError: they can't be read, or the cluster has no such Jobs.
        """
        for worker in (*self._watches, self._worker):
            if not worker.start():
                raise ExecutorError(worker.problem)
        read_first(self._lists)
        if why := next((one.absent for one in self._needed if one.absent), ""):
            kind = self.setup.kind
            what = "is Volcano installed, and may they be read?" if kind is VOLCANO else "may they be read?"
            raise ExecutorError(f"{why}; jobs are run as {kind.title}s: {what}")
        self._news.set()
        self._looked.wait(LOOKED_S)

    def close(self) -> None:
        """Let go; what runs goes on. What was acknowledged is taken away first, if that does not take long. Whoever
        made the API closes it, after this."""
        until_s = time.monotonic() + CLOSE_S
        while time.monotonic() < until_s and self._worker.alive and self._to_take_away():
            self._ended.wait(0.02)
        self._ended.set()
        self._news.set()
        self._worker.end(5.0)
        self._writers.shutdown(wait=True, cancel_futures=True)

    def _to_take_away(self) -> bool:
        with self._lock:
            return any(own.attempt.forgotten and not own.problem for own in self._own.values())

    def join(self) -> None:
        """Once the API is closed: wait for those who watch."""
        for one in self._watches:
            one.end(5.0)

    @property
    def problem(self) -> str:
        """'' or what is wrong now."""
        told = [one.problem or one.absent for one in self._lists]
        told += [one.problem for one in (*self._watches, self._worker)]
        with self._lock:
            told += [own.problem for own in self._own.values()]
        return "; ".join(dict.fromkeys(text for text in told if text))

    # -- what nodes are asked ---------------------------------------------------------------------------------------

    def listen(self, node: str, on_status: OnStatus | None) -> None:
        """Tell of the runs of a node from now on; None: no more."""
        with self._lock:
            if on_status is None:
                self._listeners.pop(node, None)
            else:
                self._listeners[node] = on_status

    def runs(self, node: str) -> list[RunStatus]:
        """What is known of the runs of a node. Of an attempt that a scheduler before began to make nothing is told
        until it is asked for again: what it takes to go on with it is not in the cluster. Raises ExecutorError: nothing
        was read yet."""
        if not self._looked.is_set():
            raise ExecutorError(f"{self.api.name}: the pods were not read yet")
        with self._lock:
            return [
                self._status(own.attempt, rank)
                for own in self._own.values()
                for rank, member in own.attempt.members.items()
                if member.node == node and not member.acknowledged and not own.attempt.unasked
            ]

    def start_run(self, node: str, spec: RunSpec) -> None:
        """Start a member; once all of its attempt are asked for, its Job is made."""
        name = attempt_of(spec.run)
        with self._lock:
            own = self._own.get(name)
            if own is None:
                nodes = [peer.node for peer in spec.peers] or [node]
                members = {rank: Member(one, spec.hold) for rank, one in enumerate(nodes)}
                own = self._own[name] = Kept(Attempt(name, members, adopted=spec.launcher is Launcher.ADOPTED))
                self._give_up_on(own, self._gone)
            member = own.attempt.members[spec.rank]
            if member.spec is None:
                member.spec, member.limit_s = spec, spec.limit_s
                member.go = member.go or not spec.hold
                member.told = None  # whoever asks hears how it is
            self._there.touched.add(name)
        self._news.set()

    def offer(self, offered: Mapping[int, Offer]) -> None:
        """By job, in the order of members: pods that somebody else has made for it, and that are nobody's yet."""
        with self._lock:
            before, self._offered = self._offered, offered
            jobs = {job for job in before.keys() | offered.keys() if before.get(job) != offered.get(job)}
            if not jobs:
                return
            self._there.touched |= {
                name for name in self._own if (run := run_name_of(name)) is not None and run.job in jobs
            }
        self._news.set()

    def go(self, run: str) -> None:
        """Let a prepared run begin."""
        self._on(run, lambda member: setattr(member, "go", True))

    def stop(self, run: str, reason: EndReason, grace_s: float) -> None:
        """End a run; of several times the earliest counts, and the first reason. RESIZED: it goes on in the next
        attempt, if that may be."""
        until_s = time.monotonic() + grace_s
        goes_on = reason is EndReason.RESIZED and self._may_go_on(run)

        def stop(member: Member) -> None:
            before = member.stop
            if before is None and goes_on and member.ended is None:
                member.stays = True
                if (name := run_name_of(run)) is not None:
                    self._staying[name.job] = attempt_of(run)
                return
            if before is None:
                member.stop = Stop(reason, until_s)
            elif until_s < before.until_s:
                member.stop = Stop(before.reason, until_s)

        if reason is EndReason.RESIZED and not goes_on:
            reason = EndReason.PREEMPTED
        self._on(run, stop)

    def _may_go_on(self, run: str) -> bool:
        with self._lock:
            found = self._member(run)
            if found is None:
                return False
            seen = self._seen.get(found[0].attempt.name, Seen())
            pod = seen.pods.get(found[2])
            there = seen.job is not None and seen.job.in_place and not seen.job.going_away
            return there and pod is not None and pod.going and pod.deleted_s is None

    def limit(self, run: str, limit_s: float | None) -> None:
        """Change a time limit."""

        def limit(member: Member) -> None:
            member.limit_s, member.limited = limit_s, True

        self._on(run, limit)

    def acknowledge(self, run: str) -> None:
        """Its end is written down."""

        def acknowledge(member: Member) -> None:
            member.acknowledged = True

        self._on(run, acknowledge)
        self.files.forget(run)

    def give_up(self, node: str) -> None:
        """A node is gone, and with it what ran there: nobody will ask for its runs any more."""
        with self._lock:
            self._gone.add(node)
            for own in self._own.values():
                self._give_up_on(own, {node})
            self._there.touched |= self._own.keys()
        self._news.set()

    def back(self, node: str) -> None:
        """A node of this name is there, for the first time or again."""
        with self._lock:
            self._gone.discard(node)

    def _give_up_on(self, own: Kept, nodes: Collection[str]) -> None:
        for member in own.attempt.members.values():
            if member.node in nodes:
                member.stop = member.stop or Stop(EndReason.NODE, time.monotonic())
                member.acknowledged = True

    def _on(self, run: str, do: Callable[[Member], None]) -> None:
        with self._lock:
            if (found := self._member(run)) is not None:
                do(found[1])
                self._there.touched.add(found[0].attempt.name)
        self._news.set()

    def _member(self, run: str) -> tuple[Kept, Member, int] | None:
        own, name = self._own.get(attempt_of(run)), run_name_of(run)
        if own is None or name is None or (member := own.attempt.members.get(name.member)) is None:
            return None
        return own, member, name.member

    def _sight(self, run: str) -> Sight | None:
        with self._lock:
            found = self._member(run)
            if found is None:
                return None
            own, member, rank = found
            pod = self._seen.get(own.attempt.name, Seen()).pods.get(rank)
            return Sight(self.setup.namespace, pod, member.ended)

    # -- looking ----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        due_s: float | None = None
        while not self._ended.is_set():
            self._news.wait(None if due_s is None else max(due_s - time.monotonic(), 0.0))
            self._news.clear()
            if all(one.settled.is_set() for one in self._lists):
                due_s = self._look()
                if not self._looked.is_set() and not self._ends_to_take():
                    self._looked.set()

    def _look(self) -> float | None:
        """See what has changed, tell of it, and have written what is to be written. When to look again."""
        now_s, tell = time.monotonic(), list[tuple[OnStatus, RunStatus]]()
        with self._lock:
            for name in self._to_look_at(now_s):
                seen = self._see(name)
                if (own := self._own.get(name)) is None:
                    continue
                dues = update(own, seen, now_s, self.setup, self._offered)
                if (waits := self._waits.pop(name, None)) is not None:
                    self._touch(waits)
                for rank, member in own.attempt.members.items():
                    status = self._status(own.attempt, rank)
                    if member.acknowledged or status == member.told or own.attempt.unasked:
                        continue
                    member.told = status
                    if (listener := self._listeners.get(member.node)) is not None:
                        tell.append((listener, status))
                left = seen.job is not None or seen.pods or own.busy or own.attempt.there(seen)
                if own.attempt.forgotten and not left:
                    del self._own[name]
                    if (run := run_name_of(name)) is not None and self._staying.get(run.job) == name:
                        del self._staying[run.job]
                    self._look_again(name, None)
                    continue
                dues += self._have_written(own, seen, now_s)
                self._look_again(name, min(dues, default=None))
            next_s = self._dues[0][0] if self._dues else None
        for listener, status in tell:
            listener(status)
        return next_s

    def _to_look_at(self, now_s: float) -> set[str]:
        """Attempts of which something has changed, and those that are due."""
        names = self._there.touched
        self._there.touched = set()
        while self._dues and self._dues[0][0] <= now_s:
            at_s, name = heapq.heappop(self._dues)
            if self._due.get(name) == at_s:
                del self._due[name]
                names.add(name)
        return names

    def _look_again(self, name: str, at_s: float | None) -> None:
        if at_s is None:
            self._due.pop(name, None)
        elif self._due.get(name) != at_s:
            self._due[name] = at_s
            heapq.heappush(self._dues, (at_s, name))

    def _ends_to_take(self) -> bool:
        """Whether pods are over whose ends are not taken down yet."""
        with self._lock:
            return any(
                pod.over and (member := own.attempt.members.get(rank)) is not None and member.ended is None
                for own in self._own.values()
                for rank, pod in self._seen.get(own.attempt.name, Seen()).pods.items()
            )

    def _see(self, name: str) -> Seen:
        seen = self._there.of(name)
        if seen == Seen():
            self._seen.pop(name, None)
            return seen
        if (own := self._own.get(name)) is not None and not own.attempt.forgotten:
            # Of a Job that somebody has deleted, those that the next attempt was to have: they are looked at later.
            seen = replace(seen, pods={rank: pod for rank, pod in seen.pods.items() if rank in own.attempt.members})
        self._seen[name] = seen
        if own is None:
            one = seen.job if seen.job is not None else next(iter(seen.pods.values()))
            gone = seen.job is None
            self._own[name] = Kept(found_of(name, one.members, hold=one.hold, gone=gone, adopted=one.adopted))
        return seen

    def _status(self, attempt: Attempt, rank: int) -> RunStatus:
        return status_of(attempt, rank, self._seen.get(attempt.name, Seen()).pods.get(rank))

    # -- writing ----------------------------------------------------------------------------------------------------

    def _have_written(self, own: Kept, seen: Seen, now_s: float) -> list[float]:
        if own.busy or self._ended.is_set():
            return []
        wanted = self._or_take_over(own.attempt, seen, writes_for(own.attempt, seen, now_s, time.time()))
        own.done = {write: at_s for write, at_s in own.done.items() if now_s - at_s < REPEAT_S}
        due = [write for write in wanted if write not in own.done]
        dues = [at_s + REPEAT_S for at_s in own.done.values()]
        group = seen.group
        if group is not None and not group.let_in and not seen.pods:
            dues.append(now_s + 1.0)
        if own.made_s is not None and not own.job_seen:
            dues.append(own.made_s + UNSEEN_S + 0.1)
        if not due:
            return dues
        if now_s < own.later_s:
            return [*dues, own.later_s]
        own.busy = True
        self._writers.submit(self._write_all, own, due, seen)
        return dues

    def _or_take_over(self, attempt: Attempt, seen: Seen, wanted: list[Write]) -> list[Write]:
        """In place of a new Job that of the attempt before, where members of it are to go on."""
        run = run_name_of(attempt.name)
        over = attempt.ends or attempt.refused is not None
        if run is None or not (over or CreateJob() in wanted):
            return wanted
        own = self._own.get(self._staying.get(run.job, ""))
        if own is None or own.attempt is attempt or not own.attempt.staying:
            return wanted if over else self._once_alone(attempt, run.job, wanted)
        before = own.attempt
        if over:
            if before.until_s is not None and before.until_s > 0.0 and not attempt.made:
                before.until_s = 0.0
                self._touch(before.name)
            return wanted
        seen_before = self._seen.get(before.name, Seen())
        may = may_take_over(attempt, seen, before, seen_before)
        if may is not False and before.until_s is not None:
            before.until_s = time.monotonic() + CLAIMED_S
        if may is None:
            self._waits[before.name] = attempt.name
            return []
        if may and seen_before.job is not None:
            return [TakeOver(seen_before.job.name, before.name, seen_before.job.kind)]
        before.until_s = 0.0  # nobody goes on with it
        self._touch(before.name)
        return self._once_alone(attempt, run.job, wanted)

    def _once_alone(self, attempt: Attempt, job: int, wanted: list[Write]) -> list[Write]:
        """A Job that somebody else has made is that of one attempt at a time."""
        if not attempt.sized or attempt.made:
            return wanted
        for name in self._own:
            other = run_name_of(name)
            if name != attempt.name and other is not None and other.job == job:
                self._waits[name] = attempt.name
                return []
        return wanted

    def _touch(self, name: str) -> None:
        self._there.touched.add(name)
        self._news.set()

    def _write_all(self, own: Kept, writes: list[Write], seen: Seen) -> None:
        problem, pause_s = "", 0.0
        try:
            for write in writes:
                self._writer.carry_out(own, write, seen)
                with self._lock:
                    own.done[write] = time.monotonic()
        except (ApiError, ExecutorError, OSError) as error:
            problem = str(error)
            pause_s = getattr(error, "retry_after_s", None) or 0.0
        except BaseException as error:
            log.critical("attempt %s: %s", own.attempt.name, error, exc_info=True)
            problem = f"attempt {own.attempt.name}: {type(error).__name__}: {error}"
        finally:
            with self._lock:
                own.busy = False
                self._there.touched.add(own.attempt.name)
                if problem and problem != own.problem:
                    log.warning("%s", problem)
                own.problem = problem
                own.failures = own.failures + 1 if problem else 0
                if problem:
                    least_s = min(FIRST_PAUSE_S * 2.0 ** (own.failures - 1), LONGEST_PAUSE_S)
                    own.later_s = time.monotonic() + max(pause_s, least_s)
            self._news.set()
