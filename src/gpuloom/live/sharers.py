"""Who shares GPUs now: the groups, whose turn it is on their devices, and what was measured of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpuloom.core.events import Event
from gpuloom.core.job import Attempt, Job, gpus_in
from gpuloom.core.script_key import profile_key
from gpuloom.executors.gangs import Gangs
from gpuloom.executors.port import RunUsage
from gpuloom.live.clock import ServiceClock
from gpuloom.live.dispatch.turns import Turns
from gpuloom.live.planning.model_speeds import ModelSpeeds
from gpuloom.live.planning.planning import Planning
from gpuloom.live.planning.roster import alike
from gpuloom.live.records.fleet import model_of
from gpuloom.live.records.groups import Groups
from gpuloom.live.records.ledger import Ledger
from gpuloom.live.records.together import TOLD, Together
from gpuloom.live.records.work import WorkDone
from gpuloom.store.port import Store

TOLD_GROUPS = 1000
"""So many of the last events of groups say which ones the log knows."""


def _told_of_groups(store: Store) -> list[Event]:
    """The last judgements of groups and, however often groups change, the speeds alone that went with changes."""
    kinds = ("group.changed", "group.measured")
    told = [event for kind in kinds for event in store.events(types=(kind,), limit=TOLD, newest=True)]
    return sorted(told, key=lambda event: event.id)


class Sharers:
    """Used by the scheduler's thread alone."""

    def __init__(
        self,
        store: Store,
        ledger: Ledger,
        planning: Planning,
        work: WorkDone,
        speeds: ModelSpeeds,
        gangs: Gangs,
        clock: ServiceClock,
    ) -> None:
        self._ledger, self._planning, self._speeds, self._clock = ledger, planning, speeds, clock
        self.groups = Groups(
            ledger.book,
            clock.now,
            woven=self._woven,
            rate_of=work.rate_of,
            alone_of=lambda job: self.together.alone(job),
            events=store.events(types=("group.changed",), limit=TOLD_GROUPS, newest=True),
        )
        self.together = Together(
            ledger.book,
            self.groups,
            clock.now,
            known_alone=self._known_alone,
            kind_of=alike,
            events=_told_of_groups(store),
        )
        self.turns = Turns(ledger.book, self.groups, gangs, lambda: planning.policy.weaves)
        planning.worlds.apart = self.together.apart

    def judge(self) -> None:
        """Write down what was measured of groups; one that does not pay is not formed again for a while. Raises
        StoreError."""
        if self.together.lapsed():
            self._planning.stale()
        if self._planning.policy.weaves and (judged := self.together.news()):
            self._ledger.write(judged)
            if self.together.written(judged):
                self._planning.stale()

    def write(self) -> None:
        """Write down who is together since the last time. Raises StoreError."""
        if news := self.groups.news():
            self._ledger.write(news)
            self.groups.written()

    def crowded(self, job: int) -> tuple[int, ...]:
        """Who shares GPUs with a job that has just found no GPU memory left."""
        return self.together.crowded(job, apart=self._planning.policy.weaves)

    def sampled(self, used: Iterable[tuple[Attempt, RunUsage]]) -> None:
        """Runs have told how far they are."""
        if not self._planning.policy.weaves:
            return
        for attempt, usage in used:
            if isinstance(at_s := usage.progress.get("at_s"), float):
                self.together.take(attempt, usage.progress.get("step"), self._clock.from_wall(at_s))

    def _woven(self, jobs: Sequence[int]) -> tuple[Sequence[int] | None, float | None]:
        """Of jobs that share GPUs the order of their stages and γ, as the policy's model has them."""
        world = self._planning.world
        return (None, None) if world is None else world.woven(jobs)

    def _known_alone(self, job: Job, attempt: Attempt) -> float | None:
        """Iterations per second of a job alone on the GPUs that it has, by earlier runs of it or the user's profile."""
        nodes, profiles = self._ledger.book.nodes, self._planning.worlds.profiles
        gpus, gpu_model = gpus_in(attempt.allocation), model_of(nodes, attempt.allocation)
        found = self._speeds.it_per_s(job, gpu_model, gpus)
        if found is not None or not (key := profile_key(job.spec.model, job.spec.command, profiles)):
            return found
        return profiles.alone_it_per_s(key, gpus, gpu_model)
