"""How fast jobs really are beside each other: measured by what they report, against what they did alone.

A member's *share* is its iterations per second beside the others over those alone; the sum over a group is its measured
normalised throughput, its *gain*: 1 is what its jobs would do one after another. A group that does not come to more
than that, by a margin, does not pay: it is kept apart for some hours, as a measured pair (or group) in what the policy
goes by. Each judgement is an event, `group.measured`, so that a scheduler that takes over knows of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from gpuloom.core.book import Book
from gpuloom.core.cluster import ANY_MODEL
from gpuloom.core.events import Event
from gpuloom.core.job import Attempt, Job, gpus_in
from gpuloom.core.pairs import Apart
from gpuloom.live.records.fleet import model_of
from gpuloom.live.records.groups import Group, Groups
from gpuloom.live.records.ledger import Draft

LEAST_ITERATIONS, LEAST_S = 30, 20.0
"""Of each member, alone and beside the others, until they are compared."""
LOOK_S = 1.0
"""Groups are looked at no more often."""
AGAIN_S = 600.0
"""A group is judged anew so often, by what was reported since."""
MARGIN = 0.02
"""A gain that is not larger than this is not worth a start, nor more than noise."""
REMEMBERED_S = 6 * 3600.0
"""For so long a group that did not pay is not formed again."""
KEPT = 256
"""Reports of a job that are kept: of more, every other one."""
TOLD = 1000
"""So many of the last judgements are looked through by a scheduler that begins."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Of a group, by member: iterations per second alone and beside the others (None: not known), their ratio, and how
    many iterations that rests on. gain: the sum of the ratios; None: not all are known."""

    alone: Mapping[int, float | None]
    beside: Mapping[int, float | None]
    share: Mapping[int, float | None]
    iterations: Mapping[int, float]
    gain: float | None


@dataclass(frozen=True, slots=True)
class Judgement:
    """A group that did not pay, on this GPU model, and until when it is not formed again. kinds: what its jobs are
    (`alike`), in the order of members; shares: what each kept of its speed."""

    members: tuple[int, ...]
    kinds: tuple[str, ...]
    gpu_model: str
    gpus: int
    shares: tuple[float, ...]
    gain: float
    until_s: float
    full: bool = False
    """The GPUs' memory did not hold them; shares and gain are 0."""


class Reports:
    """What a job reported of its steps in an attempt: (seconds, step), thinned out."""

    def __init__(self, run: str) -> None:
        self.run = run
        self._told: list[tuple[float, float]] = []
        self._apart_s = 0.0

    def take(self, at_s: float, step: float) -> None:
        """A report. One of a step before the last begins anew."""
        told = self._told
        if told and step < told[-1][1]:
            told.clear()
        if told and at_s <= told[-1][0]:
            return
        if len(told) > 1 and at_s - told[-2][0] < self._apart_s:
            told[-1] = at_s, step
            return
        told.append((at_s, step))
        if len(told) > KEPT:
            del told[1:-1:2]
            self._apart_s = max(2 * self._apart_s, (told[-1][0] - told[0][0]) / KEPT)

    def first_after(self, from_s: float) -> float | None:
        """When the first step was reported since then."""
        return next((at_s for at_s, _ in self._told if at_s >= from_s), None)

    def between(self, from_s: float, to_s: float = math.inf) -> tuple[float, float]:
        """Iterations and seconds from the first to the last report in this time."""
        within = [one for one in self._told if from_s <= one[0] <= to_s]
        return (within[-1][1] - within[0][1], within[-1][0] - within[0][0]) if len(within) > 1 else (0.0, 0.0)


_Where = tuple[int, str, int]
"""A job, a GPU model, how many GPUs: what its speed alone is known of."""


class Together:
    """Used by the scheduler's thread alone."""

    def __init__(
        self,
        book: Book,
        groups: Groups,
        now: Callable[[], float],
        *,
        known_alone: Callable[[Job, Attempt], float | None] = lambda job, attempt: None,
        kind_of: Callable[[Job], str],
        events: Iterable[Event] = (),
    ) -> None:
        """known_alone: iterations per second of a job alone on its GPUs, by earlier runs or its profile. kind_of: a
        name that all runs of one job share. events: of groups, in order: what was measured before."""
        self._book, self._groups, self._now = book, groups, now
        self._known_alone, self._kind_of = known_alone, kind_of
        self._reports: dict[int, Reports] = {}
        self._alone_from_s: dict[int, float] = {}
        """Since when those are alone again that were not."""
        self._alone: dict[_Where, float] = {}
        """Iterations per second, of jobs that were alone for long enough."""
        self._shared: set[int] = set()
        self._judged_s: dict[frozenset[int], float] = {}
        self._judgements: dict[tuple[str, tuple[str, ...]], Judgement] = {}
        self._looked = -1
        self._pending: list[Draft] = []
        self._next_s = 0.0
        for event in events:
            if event.type == "group.measured":
                self._remember(_judgement_of(event.data), event.data["pays"])
                self._judged_s[frozenset(event.data["members"])] = event.at_s
            for job, rate in event.data.get("alone", {}).items():
                if rate is not None and (attempt := book.attempts.get(int(job))) is not None:
                    self._alone[self._where(attempt)] = float(rate)

    def _where(self, attempt: Attempt) -> _Where:
        model = model_of(self._book.nodes, attempt.allocation) or ANY_MODEL
        return attempt.job, model, gpus_in(attempt.allocation)

    # -- what is seen -------------------------------------------------------------------------------------------------

    def take(self, attempt: Attempt, step: object, at_s: float) -> None:
        """An attempt has reported so many steps at this time."""
        if isinstance(step, bool) or not isinstance(step, int | float):
            return
        found = self._reports.get(attempt.job)
        if found is None or found.run != attempt.run:
            if len(self._reports) > 2 * len(self._book.attempts) + KEPT:
                self._reports = {job: told for job, told in self._reports.items() if job in self._book.attempts}
            found = self._reports[attempt.job] = Reports(attempt.run)
        found.take(at_s, float(step))

    def look(self) -> None:
        """See who is alone now, and who was until now. To be called before a change of groups is told."""
        if self._looked == self._groups.changes:
            return
        attempts, groups = self._book.attempts, self._groups.all()
        self._looked = self._groups.changes
        self._reports = {job: told for job, told in self._reports.items() if job in attempts}
        since_s = {job: group.since_s for group in groups for job in group.members}
        before, self._shared = self._shared, set(since_s)
        for job in (self._shared - before) & self._reports.keys():
            attempt = attempts[job]
            from_s = max(self._alone_from_s.get(job, 0.0), attempt.since_s)
            done, took_s = self._reports[job].between(from_s, since_s[job])
            if done >= LEAST_ITERATIONS and took_s > 0.0:
                self._alone[self._where(attempt)] = done / took_s
        now = self._now()
        self._alone_from_s = {job: s for job, s in self._alone_from_s.items() if job in attempts}
        self._alone_from_s |= dict.fromkeys((before - self._shared) & attempts.keys(), now)
        self._alone = {where: rate for where, rate in self._alone.items() if where[0] in self._book.jobs}
        there = {frozenset(group.members) for group in groups}
        self._judged_s = {members: at_s for members, at_s in self._judged_s.items() if members in there}

    def alone(self, job: int) -> float | None:
        """Iterations per second of a job alone on the GPUs that it has: its own, else what is known of it."""
        attempt = self._book.attempts.get(job)
        if attempt is None:
            return None
        own = self._alone.get(self._where(attempt))
        return self._known_alone(self._book.jobs[job], attempt) if own is None else own

    # -- what is measured ---------------------------------------------------------------------------------------------

    def of(self, group: Group, *, from_s: float | None = None) -> Measured:
        """What is measured of a group. from_s: since then; by default since all of its members have begun."""
        alone: dict[int, float | None] = {}
        beside: dict[int, float | None] = {}
        share: dict[int, float | None] = {}
        iterations: dict[int, float] = {}
        begun = [
            None if (told := self._reports.get(job)) is None else told.first_after(group.since_s)
            for job in group.members
        ]
        since_s = math.inf if None in begun else max(at_s for at_s in begun if at_s is not None)
        for job in group.members:
            told = self._reports.get(job)
            alone[job] = self.alone(job)
            done, took_s = (0.0, 0.0) if told is None else told.between(max(since_s, from_s or 0.0))
            iterations[job] = done
            enough = done >= LEAST_ITERATIONS and took_s >= LEAST_S
            beside[job] = done / took_s if enough else None
            one, two = alone[job], beside[job]
            share[job] = two / one if one is not None and two is not None and one > 0.0 else None
        shares = [share[job] for job in group.members]
        gain = None if None in shares else math.fsum(one for one in shares if one is not None)
        return Measured(alone, beside, share, iterations, gain)

    # -- what comes of it ---------------------------------------------------------------------------------------------

    def news(self) -> list[Draft]:
        """Judgements to be written down: of groups that are measured for the first time, and later of those of which
        they have changed. Told once."""
        self.look()
        drafts, now = list(self._pending), self._now()
        if now < self._next_s:
            return drafts
        self._next_s = now + LOOK_S
        for group in self._groups.all():
            members = frozenset(group.members)
            judged_s = self._judged_s.get(members)
            if judged_s is not None and now - judged_s < AGAIN_S:
                continue
            found = self.of(group, from_s=judged_s)
            places = {self._book.attempts[job].allocation for job in group.members}
            if found.gain is None or len(places) > 1:
                continue
            data = {
                **self._named(group),
                "shares": [found.share[job] for job in group.members],
                "iterations": [found.iterations[job] for job in group.members],
                "gain": found.gain,
                "pays": found.gain >= 1.0 + MARGIN,
                "until_s": now + REMEMBERED_S,
                "full": False,
            }
            known = _judgement_of(data)
            before = self._judgements.get(_key(known))
            if judged_s is None or not data["pays"] or (before is not None and before.until_s > now):
                drafts.append(("group.measured", None, data))
            else:
                self._judged_s[members] = now
        return drafts

    def crowded(self, job: int, *, apart: bool) -> tuple[int, ...]:
        """A job has found no GPU memory left: those that share its GPUs. apart: they are not put together again for a
        while, which `news` tells."""
        for group in self._groups.all():
            if job in group.members:
                none = [0.0] * len(group.members)
                data = {**self._named(group), "shares": none, "iterations": none, "gain": 0.0, "pays": False}
                until_s = self._now() + REMEMBERED_S
                if apart:
                    self._pending.append(("group.measured", None, {**data, "until_s": until_s, "full": True}))
                return tuple(other for other in group.members if other != job)
        return ()

    def _named(self, group: Group) -> dict[str, object]:
        """Of a judgement: who, and where."""
        allocation = self._book.attempts[group.members[0]].allocation
        return {
            "members": list(group.members),
            "kinds": [self._kind_of(self._book.jobs[job]) for job in group.members],
            "gpu_model": model_of(self._book.nodes, allocation) or ANY_MODEL,
            "gpus": gpus_in(allocation),
        }

    def written(self, drafts: Iterable[Draft]) -> bool:
        """These judgements are on disk; whether planning has to heed one of them."""
        changed = False
        self._pending.clear()
        for _, _, data in drafts:
            self._judged_s[frozenset(data["members"])] = self._now()
            changed |= self._remember(_judgement_of(data), data["pays"])
        return changed

    def _remember(self, one: Judgement, pays: bool) -> bool:
        before = self._judgements.pop(_key(one), None)
        if not pays:
            self._judgements[_key(one)] = one
        return not pays or before is not None

    def lapsed(self) -> bool:
        """Forget what is too old; whether something was."""
        now, before = self._now(), len(self._judgements)
        self._judgements = {key: one for key, one in self._judgements.items() if one.until_s > now}
        return len(self._judgements) < before

    def apart(self) -> Apart:
        """What the policy is to heed: groups that did not pay."""
        return Apart(
            tuple(
                (one.gpu_model, tuple((kind, one.gpus) for kind in one.kinds), one.shares)
                for one in self._judgements.values()
            )
        )

    def against(self, job: Job) -> list[Judgement]:
        """Judgements by which a job is kept from others."""
        if not self._judgements:
            return []
        kind = self._kind_of(job)
        return [one for one in self._judgements.values() if kind in one.kinds and one.gpus == job.gpus]


def _key(one: Judgement) -> tuple[str, tuple[str, ...]]:
    return f"{one.gpu_model}*{one.gpus}", tuple(sorted(one.kinds))


def _judgement_of(data: Mapping[str, object]) -> Judgement:
    return Judgement(
        members=tuple(data["members"]),  # type: ignore[arg-type]
        kinds=tuple(data["kinds"]),  # type: ignore[arg-type]
        gpu_model=str(data["gpu_model"]),
        gpus=int(data["gpus"]),  # type: ignore[call-overload]
        shares=tuple(data["shares"]),  # type: ignore[arg-type]
        gain=float(data["gain"]),  # type: ignore[arg-type]
        until_s=float(data["until_s"]),  # type: ignore[arg-type]
        full=bool(data.get("full")),
    )
