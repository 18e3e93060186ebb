"""What a group of jobs is worth on a GPU model: how fast each of its members runs. Plans and progress share it.

Sources, the first that speaks of a group is right:
    1. measured pairs (`core/pairs.py`): two jobs, each at the share of its own speed that was measured beside the
       other on this GPU model;
    2. stage times (`groups.py`): up to four jobs, which make one iteration each in the group's time;
    3. none: such groups are not formed.
Where two of a larger group's jobs were measured not to fit together, the group is not formed either; nor is one
that was measured and did not pay (`PairSpeeds.apart`), or that holds such a one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from enum import StrEnum

import numpy as np

from gpuloom.core.decision import Place, Placement
from gpuloom.core.pairs import NO_KIND
from gpuloom.core.sums import sum_floats
from gpuloom.core.workload import F8
from gpuloom.interleave.efficiency import MAX_GROUP
from gpuloom.interleave.groups import UNKNOWN, GroupTimes, Profiles

Rates = tuple[float, ...]
"""Of each member of a group, in the order of its profiles: the share of its speed alone."""
_KEPT = 200_000
"""Groups whose rates are remembered."""


class Source(StrEnum):
    """Where it is known from how fast jobs run beside each other."""

    ALONE = "alone"
    MEASURED = "measured pair"
    STAGES = "stage times"
    NONE = "nothing"


class GroupWorth:
    """What groups are worth on GPUs of these models: of several, what they are worth at least on any.

    Args:
        gpu_models: () stands for GPUs on which no pairs were measured.
    """

    def __init__(self, times: GroupTimes, gpu_models: Iterable[str] = ()) -> None:
        self.times = times
        pairs, gpu_models = times.pairs, tuple(gpu_models)
        found = [None if pairs is None else pairs.on(model) for model in dict.fromkeys(gpu_models)] or [None]
        distinct: list[F8 | None] = []
        for share in found:
            if not any(
                share is one or (share is not None and one is not None and _same(share, one)) for one in distinct
            ):
                distinct.append(share)
        self._shares = distinct
        wanted = {model.upper() for model in gpu_models}
        apart = () if pairs is None else pairs.apart
        self._apart = {kinds for model, kinds in apart if not wanted or model in wanted}
        self.measured = any(share is not None for share in distinct) or bool(self._apart)
        """Whether any pair was measured on any of these models."""
        self._rates: dict[Profiles, Rates | None] = {}

    def source(self, group: Profiles) -> Source:
        """Where it is known from how fast the group runs."""
        if len(group) < 2:
            return Source.ALONE
        if self.measured and any(self._pair(group, share) is not None for share in self._shares):
            return Source.MEASURED
        return Source.STAGES if self._staged(group) else Source.NONE

    def rates(self, group: Profiles) -> Rates | None:
        """The planned rates of a group's members; None if nothing is known of it, or its jobs do not fit together."""
        return self.rates_of([group])[0]

    def rates_of(self, groups: Sequence[Profiles]) -> list[Rates | None]:
        """The same for many groups."""
        known = self._rates
        missing = list(dict.fromkeys([group for group in groups if group not in known]))
        if len(known) + len(missing) > _KEPT:
            known.clear()
            missing = list(dict.fromkeys(groups))
        staged = [group for group in missing if len(group) > 1 and self._staged(group)]
        seconds = dict(zip(staged, self.times.planned_iteration_s(staged), strict=True))
        for group in missing:
            known[group] = self._least(group, seconds.get(group))
        return [known[group] for group in groups]

    def gains(self, groups: Sequence[Profiles]) -> list[float]:
        """Normalised throughput of each group: jobs at solo speed that it is worth; 0: can't be formed."""
        if not self.measured:
            staged = [group for group in groups if self._staged(group)]
            known = iter(self.times.gains(staged))
            if len(staged) == len(groups):
                return list(known)
            return [next(known) if self._staged(group) else float(len(group) == 1) for group in groups]
        return [0.0 if rates is None else sum_floats(rates) for rates in self.rates_of(groups)]

    def weights(self, groups: Sequence[Profiles]) -> list[float]:
        """What matching goes by: γ as in the paper; where pairs were measured, which have no γ, `gains`."""
        return self.gains(groups) if self.measured else self.times.efficiency(groups)

    def pair_gains(self) -> F8:
        """`gains` of every two profiles that were measured beside each other, NaN of others: (profiles, profiles)."""
        profiles = range(len(self.times.kind))
        gains = np.full((len(profiles), len(profiles)), np.nan)
        pairs = [(one, two) for one in profiles for two in profiles[one:]]
        pairs = [pair for pair in pairs if self.source(pair) is Source.MEASURED]
        for (one, two), gain in zip(pairs, self.gains(pairs), strict=True):
            gains[one, two] = gains[two, one] = gain
        return gains

    def pays(self, group: Profiles) -> bool:
        """Whether the group is planned to be no slower than its jobs one after another."""
        return self.gains([group])[0] >= 1.0

    def known(self, group: Profiles) -> bool:
        """Whether it is known how fast the group runs, and its jobs fit together as far as that was measured."""
        if not self.measured:
            return self._staged(group)
        return self.rates(group) is not None

    def _staged(self, group: Profiles) -> bool:
        staged = self.times.staged
        return group[0] != UNKNOWN and all(map(staged.__getitem__, group))

    def _pair(self, group: Profiles, share: F8 | None) -> Rates | None:
        """What was measured of two jobs beside each other, if it was."""
        if share is None or len(group) != 2 or group[0] == UNKNOWN:
            return None
        one, two = self.times.kind[group[0]], self.times.kind[group[1]]
        if one == NO_KIND or two == NO_KIND:
            return None
        mine, its = float(share[one, two]), float(share[two, one])
        return None if mine != mine or its != its else (mine, its)

    def _least(self, group: Profiles, seconds: float | None) -> Rates | None:
        """Of each member the lowest rate on any of the models.

        Args:
            seconds: of an iteration by stage times, if these are known.
        """
        if len(group) == 1:
            return (1.0,)
        if group[0] == UNKNOWN or (self._apart and self._is_apart(group)):
            return None
        found: list[Rates] = []
        for share in self._shares:
            rates = self._pair(group, share)
            if rates is None and seconds is not None and seconds > 0 and self._fits(group, share):
                solo = self.times.solo_s
                rates = tuple([solo[profile] / seconds for profile in group])
            if rates is None or min(rates) <= 0:
                return None
            found.append(rates)
        return found[0] if len(found) == 1 else tuple(map(min, zip(*found, strict=True)))

    def _is_apart(self, group: Profiles) -> bool:
        """Whether these, or some of them, were measured together and did not pay."""
        kinds = Counter(self.times.kind[profile] for profile in group)
        return any(Counter(apart) <= kinds for apart in self._apart)

    def _fits(self, group: Profiles, share: F8 | None) -> bool:
        """Whether no two of a group of several were measured not to fit together."""
        if share is None:
            return True
        kinds = [kind for profile in group if (kind := self.times.kind[profile]) != NO_KIND]
        return not any(share[one, two] == 0 for at, one in enumerate(kinds) for two in kinds[at + 1 :])


def _same(one: F8 | None, two: F8 | None) -> bool:
    if one is None or two is None:
        return one is two
    return bool(np.array_equal(one, two, equal_nan=True))


class GroupSharing:
    """How fast jobs that share GPUs really run, by the sources of `GroupWorth`. Implements `Sharing`.

    Jobs of which nothing is known beside each other take turns.

    Args:
        together: they run in one process; else each has its own, and starts by itself.
    """

    def __init__(self, times: GroupTimes, *, together: bool = True) -> None:
        self.starts_together = together
        self._times, self._of_job = times, times.of_job
        self._rates: dict[tuple[str, tuple[int, ...]], float] = {}
        """By GPU model and the profiles of a job and of its neighbours, in their order."""
        self._share: dict[str, F8 | None] = {}

    def rate(self, job: int, layer: int, neighbours: list[tuple[int, int]], gpu_model: str = "") -> float:
        """Share of its solo speed that `job` gets."""
        if not neighbours:
            return 1.0
        of_job = self._of_job
        profiles = [of_job[job]]
        for _, other in neighbours:  # faster than a comprehension for so few
            profiles.append(of_job[other])
        key = gpu_model, tuple(profiles)
        rate = self._rates.get(key)
        if rate is None:
            if len(self._rates) > _KEPT:
                self._rates.clear()
            rate = self._rates[key] = self._rate(key[1], gpu_model)
        return rate

    def rates(
        self, jobs: Sequence[int], placements: Sequence[Placement], gpu_models: Sequence[str] = ()
    ) -> list[float] | None:
        """`rate` of each of these jobs if nobody else runs; None if some share a part of their GPUs only.

        Args:
            gpu_models: of each node of the cluster; (): no pairs were measured on them.
        """
        together: dict[Place, list[tuple[int, int, int]]] = {}
        for index, (job, placement) in enumerate(zip(jobs, placements, strict=True)):
            together.setdefault((placement.nodes, placement.masks), []).append((placement.layer, job, index))
        taken: dict[int, int] = {}
        for place in together:
            for node, mask in zip(*place, strict=True):
                before = taken.get(node, 0)
                if before & mask:
                    return None
                taken[node] = before | mask
        rates = [1.0] * len(jobs)
        of_job, known = self._of_job, dict[tuple[str, Profiles], list[float]]()
        for (nodes, _), members in together.items():
            if len(members) > 1:
                members.sort()
                gpu_model = gpu_models[nodes[0]] if gpu_models else ""
                profiles = tuple([of_job[job] for _, job, _ in members])
                found = known.get((gpu_model, profiles))
                if found is None:
                    found = known[gpu_model, profiles] = [
                        self._rate((own, *profiles[:at], *profiles[at + 1 :]), gpu_model)
                        for at, own in enumerate(profiles)
                    ]
                for (_, _, index), rate in zip(members, found, strict=True):
                    rates[index] = rate
        return rates

    def source(self, job: int, neighbours: list[tuple[int, int]], gpu_model: str = "") -> str:
        """Where its rate is from: a measured pair and its file, stage times, or nothing."""
        times = self._times
        group = times.profiles_of([job, *(other for _, other in neighbours)])
        found = GroupWorth(times, [gpu_model]).source(group)
        if found is Source.MEASURED and times.pairs is not None:
            return f"{found} of {times.pairs.source}"
        return "no stage times or pairs known: they take turns" if found is Source.NONE else found.value

    def order(self, jobs: Sequence[int]) -> list[int] | None:
        """These jobs in the order in which their stages follow each other; None where stage times are not known."""
        times = self._times
        profiles = [self._of_job[job] for job in jobs]
        if UNKNOWN in profiles or len(profiles) > MAX_GROUP or not all(times.staged[one] for one in profiles):
            return None
        _, slots = times.interleaving.scheduled(times.planned_s[profiles][None])
        return [job for _, job in sorted(zip(slots[0].tolist(), jobs, strict=True))]

    def efficiency(self, jobs: Sequence[int]) -> float | None:
        """γ of these jobs together: how busy the resources are, 0 to 1; None where stage times are not known."""
        times = self._times
        profiles = times.profiles_of(jobs)
        if profiles[0] == UNKNOWN or len(profiles) > MAX_GROUP or not all(times.staged[one] for one in profiles):
            return None
        return times.efficiency([profiles])[0]

    def most(self, job: int) -> int:
        """How many jobs may run on the GPUs of `job` at once: by stage times up to four, by measured pairs two."""
        profile = self._of_job[job]
        if profile == UNKNOWN:
            return 1
        if self._times.staged[profile]:
            return MAX_GROUP
        pairs = self._times.pairs
        return 2 if pairs is not None and pairs.fits[self._times.kind[profile]] else 1

    def _rate(self, profiles: Profiles, gpu_model: str) -> float:
        """Share of its solo speed that a job of the first profile gets beside the others."""
        group = tuple(sorted(profiles))
        if group[0] == UNKNOWN or len(group) > MAX_GROUP:
            return 1.0 / len(group)
        times = self._times
        if len(group) == 2 and times.pairs is not None:
            share = self._share.setdefault(gpu_model, times.pairs.on(gpu_model))
            one, two = times.kind[profiles[0]], times.kind[profiles[1]]
            if share is not None and one != NO_KIND and two != NO_KIND and (rate := float(share[one, two])) == rate:
                return rate
        if not all(map(times.staged.__getitem__, group)):
            return 1.0 / len(group)
        return times.solo_s[profiles[0]] / times.iteration_s(group)
