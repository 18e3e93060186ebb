"""Groups by rounds of maximum weight matching (Muri, SIGCOMM'22, section 4.2).

In every round the groups so far are the nodes of a graph. The weight of an edge is the efficiency of the two groups
merged. The pairs of a maximum weight matching are merged; two rounds make groups of four. Nodes of the same type (the
same multiset of job profiles) are interchangeable, so the matching is solved over types, and once for the same counts
of types.

The matcher of the released simulator (`released.py`) does depend on the order of the nodes, and of the members of a
group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import repeat
from operator import itemgetter

import numpy as np

from gpuloom.core.sums import sum_ints
from gpuloom.core.workload import F8
from gpuloom.interleave.groups import UNKNOWN, GroupTimes, Profiles
from gpuloom.interleave.released import released_partners
from gpuloom.interleave.worth import GroupWorth
from gpuloom.solvers.matching import Matcher

Node = tuple[int, ...]
"""Jobs that run as one group."""

Allowed = Callable[[Profiles], bool]
Limits = Sequence[tuple[frozenset[int], int]]
"""(pools, their number of GPUs together)"""
GroupOf = Callable[[int, int], int]
"""(job, answer for a job that does not run) -> the group that it runs in now"""
_KEPT = 100_000
_TYPES = 2_000
"""The most types kept; their weights take 8 bytes a pair."""
MATCHERS = ("exact", "released")
_MOST_RELEASED = 32
"""The most nodes that the released matcher is given: its time grows with their cube. No bucket of the artifact's
published runs has more."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """Jobs of the same number of GPUs that may run in the same pools, in order."""

    gpus: int
    pools: frozenset[int]
    jobs: Sequence[int]


class Rounds:
    """Forms groups; remembers what it has solved.

    Args:
        size: most jobs in a group.
        allowed: whether a group of these profiles may be formed at all (it fits the memory and is not slower than
            its jobs one after another).
        matcher: 'exact', or 'released': the released simulator's pairs, for problems that are not too large.
        worth: what groups are worth; None: by stage times alone.
    """

    def __init__(
        self,
        times: GroupTimes,
        size: int,
        allowed: Allowed,
        *,
        matcher: str = "exact",
        worth: GroupWorth | None = None,
    ) -> None:
        self._times, self._size, self._allowed = times, size, allowed
        self._worth = worth or GroupWorth(times)
        # The released rounds can't form groups of three: no single is left to join a pair.
        self._released = matcher == "released" and size != 3
        self.exhausted = False
        """Whether the last groups were merged as far as possible: fewer GPUs would have given the same."""
        self._forget()

    def _forget(self) -> None:
        """Forget all types, and what was solved: that is kept by the numbers of the types."""
        self._ids: dict[Profiles, int] = {}
        self._types: list[Profiles] = []
        self._full: list[bool] = []
        """By type: whether nobody can join any more."""
        self._of_profile: dict[int, int] = {}
        self._of_pair: dict[tuple[int, int], int] = {}
        self._weight = np.full((16, 16), np.nan)
        self._matchers: dict[tuple[int, ...], Matcher] = {}
        self._solved: dict[tuple[tuple[int, int], ...], tuple[tuple[int, int, int], ...]] = {}
        self._solved_in_order: dict[tuple[int, ...], list[int]] = {}

    def form(self, buckets: Sequence[Bucket], limits: Limits, group_of: GroupOf) -> list[list[Node]]:
        """Groups of each bucket's jobs.

        Args:
            limits: number of GPUs by pools. Groups are merged, in order, only while the groups that can use no other
                pools need more GPUs than that.
            group_of: the group that a job runs in now. Among equal merges those that keep groups together win.
        """
        if len(self._types) > _TYPES:
            self._forget()
        missing = [
            sum_ints([bucket.gpus * len(bucket.jobs) for bucket in buckets if bucket.pools <= pools]) - gpus
            for pools, gpus in limits
        ]
        concerned = [[n for n, (pools, _) in enumerate(limits) if bucket.pools <= pools] for bucket in buckets]
        found: list[list[Node]] = [[(job,) for job in bucket.jobs] for bucket in buckets]
        kinds = [self._kinds_of(bucket.jobs) for bucket in buckets]
        for round_ in range(self._size):
            if max(missing, default=0) <= 0:
                break
            before = sum_ints(missing)
            for index, bucket in enumerate(buckets):
                nodes, of_node, bounds = found[index], kinds[index], concerned[index]
                of_pair = self._of_pair
                partner = self._partners(nodes, of_node, group_of)
                if self._size == 3 and round_ == 0 and not self._released:
                    self._leave_singles(partner, of_node)
                merged: list[Node] = []
                of_merged: list[int] = []
                more = any(missing[n] > 0 for n in bounds)
                for place, other in enumerate(partner):
                    if other < 0:
                        merged.append(nodes[place])
                        of_merged.append(of_node[place])
                    elif other < place:
                        # The pair stands where its second half stood, as in the released code.
                        if more:
                            merged.append(nodes[other] + nodes[place])
                            pair = of_node[other], of_node[place]
                            kind = of_pair.get(pair)
                            of_merged.append(self._merged(pair) if kind is None else kind)
                            more = False
                            for n in bounds:
                                missing[n] -= bucket.gpus
                                more = more or missing[n] > 0
                        else:
                            merged += (nodes[other], nodes[place])
                            of_merged += (of_node[other], of_node[place])
                found[index], kinds[index] = merged, of_merged
            if sum_ints(missing) == before:
                break
        self.exhausted = all(any(missing[n] > 0 for n in bounds) for bounds in concerned)
        return found

    def _leave_singles(self, partner: list[int], kinds: list[int]) -> None:
        """Keep only the heaviest pairs, one for every three nodes: each needs a single to become a group of three."""
        pairs = [(a, b) for a, b in enumerate(partner) if a < b]
        pairs.sort(key=lambda pair: -self._weight[kinds[pair[0]], kinds[pair[1]]])
        for a, b in pairs[(len(partner) + 1) // 3 :]:
            partner[a] = partner[b] = -1

    def _partners(self, nodes: list[Node], kinds: list[int], group_of: GroupOf) -> list[int]:
        """For every node the index of its partner in the matching, or -1."""
        partner = [-1] * len(nodes)
        places: dict[int, list[int]] = {}
        full = self._full
        if self._released:
            able = [place for place, kind in enumerate(kinds) if not full[kind]]
            if len(able) <= _MOST_RELEASED:
                for place, other in zip(able, self._in_order(tuple([kinds[place] for place in able])), strict=True):
                    partner[place] = able[other] if other >= 0 else -1
                return partner
            kinds = [self._id(tuple(sorted(self._types[kind]))) for kind in kinds]
        places = {kind: [] for kind in dict.fromkeys(kinds) if not full[kind]}
        for place, kind in enumerate(kinds):
            if kind in places:
                places[kind].append(place)
        if not places:
            return partner
        # Sorted by the types themselves, as their numbers depend on what was seen before.
        counts = tuple([(kind, len(places[kind])) for kind in sorted(places, key=self._types.__getitem__)])
        groups = list(map(group_of, map(itemgetter(0), nodes), repeat(-1)))
        for one, two, count in self._matching(counts):
            _pair_up(groups, places, one, two, count, partner)
        return partner

    def _kinds_of(self, jobs: Sequence[int]) -> list[int]:
        """Type of each job."""
        of_job, of_profile = self._times.of_job, self._of_profile
        profiles = [of_job[job] for job in jobs]
        for profile in dict.fromkeys(profiles):
            if profile not in of_profile:
                of_profile[profile] = self._id((profile,))
        return [of_profile[profile] for profile in profiles]

    def _merged(self, pair: tuple[int, int]) -> int:
        """Type of two merged groups, when the pair is new."""
        kind = self._of_pair[pair] = self._id(self._together(*pair))
        return kind

    def _together(self, one: int, two: int) -> Profiles:
        """Profiles of two merged groups. The released code adds up busy seconds in the order of the members."""
        both = self._types[one] + self._types[two]
        return both if self._released else tuple(sorted(both))

    def _in_order(self, kinds: tuple[int, ...]) -> list[int]:
        """The partners that the released matcher gives to nodes of these types."""
        found = self._solved_in_order.get(kinds)
        if found is None:
            if len(self._solved_in_order) > _KEPT:
                self._solved_in_order.clear()
            distinct = list(dict.fromkeys(kinds))
            row_of = {kind: row for row, kind in enumerate(distinct)}
            rows = np.array([row_of[kind] for kind in kinds], dtype=np.intp)
            weight = self._weights(tuple(distinct))[np.ix_(rows, rows)]
            found = self._solved_in_order[kinds] = released_partners(weight)
        return found

    def _matching(self, counts: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int, int], ...]:
        """(type, type, how many pairs) of a maximum weight matching."""
        found = self._solved.get(counts)
        if found is None:
            kinds = tuple(kind for kind, _ in counts)
            matcher = self._matchers.get(kinds)
            if matcher is None:
                if len(self._matchers) > _KEPT // 100:
                    self._matchers.clear()
                weight = np.triu(self._weights(kinds))
                matcher = self._matchers[kinds] = Matcher(weight + np.triu(weight, 1).T)
            if len(self._solved) > _KEPT:
                self._solved.clear()
            pairs = matcher.solve(np.array([count for _, count in counts])).pairs
            found = tuple((kinds[one], kinds[two], count) for one, two, count in pairs)
            self._solved[counts] = found
        return found

    def _id(self, profiles: Profiles) -> int:
        kind = self._ids.get(profiles)
        if kind is None:
            kind = self._ids[profiles] = len(self._types)
            self._types.append(profiles)
            self._full.append(len(profiles) >= self._size or UNKNOWN in profiles)
            if kind == len(self._weight):
                grown = np.full((2 * kind, 2 * kind), np.nan)
                grown[:kind, :kind] = self._weight
                self._weight = grown
        return kind

    def _weights(self, kinds: tuple[int, ...]) -> F8:
        """Efficiency of the merged group for every two of these types; 0 where they may not be merged."""
        rows = np.array(kinds, dtype=np.intp)
        part: F8 = self._weight[np.ix_(rows, rows)]
        missing = np.argwhere(np.isnan(part))
        if len(missing):
            pairs = [(kinds[a], kinds[b]) for a, b in missing.tolist()]
            merged = [self._together(a, b) for a, b in pairs]
            # All at once: one by one, as `allowed` asks, is many times slower.
            sets = [tuple(sorted(group)) for group in merged if len(group) <= self._size and UNKNOWN not in group]
            self._worth.gains(sets)
            able = [len(group) <= self._size and self._allowed(tuple(sorted(group))) for group in merged]
            weights = self._worth.weights([group for group, good in zip(merged, able, strict=True) if good])
            rest = iter(weights)
            for (a, b), good in zip(pairs, able, strict=True):
                self._weight[a, b] = next(rest) if good else 0.0
            part = self._weight[np.ix_(rows, rows)]
        return part


def _pair_up(
    groups: list[int], places: dict[int, list[int]], one: int, two: int, count: int, partner: list[int]
) -> None:
    """Choose which nodes of two types are paired: those that already run together, then in order.

    Args:
        groups: by node: the group that its first job runs in now, or -1.
    """
    left, right = places[one], places[two]
    kept: list[tuple[int, int]] = []
    seat_of_group: dict[int, int] = {}
    if one != two:  # of several in a group the first one counts
        seat_of_group = {group: place for place in reversed(right) if (group := groups[place]) >= 0}
    if one == two or seat_of_group:
        for place in left:
            if len(kept) == count:
                break
            if (group := groups[place]) >= 0:
                other = seat_of_group.pop(group, -1)
                if other >= 0:
                    kept.append((other, place))
                elif one == two:
                    seat_of_group[group] = place
    if kept:
        taken = {place for pair in kept for place in pair}
        left = [place for place in left if place not in taken]
        right = left if one == two else [place for place in right if place not in taken]
    missing = count - len(kept)
    if one == two:
        pairs = [*kept, *zip(left[0 : 2 * missing : 2], left[1 : 2 * missing : 2], strict=True)]
        places[one] = left[2 * missing :]
    else:
        pairs = [*kept, *zip(left[:missing], right[:missing], strict=True)]
        places[one], places[two] = left[missing:], right[missing:]
    for a, b in pairs:
        partner[a], partner[b] = b, a
