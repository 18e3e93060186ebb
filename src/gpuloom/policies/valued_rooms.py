"""Groups by value in the rooms that there are, GPUs of one model each (see `policies/valued_plan.py`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby, islice
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from gpuloom.core.decision import Placement
from gpuloom.core.sums import sum_ints
from gpuloom.core.workload import F8
from gpuloom.interleave.groups import GroupTimes
from gpuloom.interleave.tables import SetTable
from gpuloom.interleave.valued import Filler, Group, Stacks, share_nodes
from gpuloom.placement.pool import Pool
from gpuloom.placement.shapes import Shape
from gpuloom.solvers.assignment import NOWHERE

Jobs = NDArray[np.intp]
_FEW = 64
"""So many jobs are put in order faster one by one than as arrays."""


class Filling:
    """Puts groups of jobs into rooms.

    Args:
        shape_of, column_of: of each job.
        tables_of: by pool and shape.
        speeds: by job and GPU model; None: all alike.
        by_pool: the same by pool, where models are weighed; otherwise they are filled one after another.
    """

    def __init__(
        self,
        shapes: Sequence[Shape],
        shape_of: Jobs,
        tables_of: Sequence[Sequence[SetTable]],
        column_of: Jobs,
        times: GroupTimes,
        speeds: F8 | None,
        by_pool: F8 | None,
    ) -> None:
        self._shapes, self._shape_of = shapes, shape_of
        self._tables_of, self._column_of, self._times = tables_of, column_of, times
        self._speeds, self._speed_by_pool = speeds, by_pool

    def fill_rooms(
        self,
        rooms: Sequence[Pool],
        jobs: Jobs,
        value: F8,
        groups: list[Group],
        places: list[Placement],
        *,
        alone: bool = True,
        best: NDArray[np.intp] | None = None,
    ) -> None:
        """Add groups of the jobs not yet in one, in whatever room there is; split groups when nobody waits.

        Args:
            alone: if the jobs not yet in a group all fit alone, they run alone.
            best: the pool that each job should be in, if it can.
        """
        placed = {job for group in groups for job in group.jobs}
        every = dict(enumerate(rooms))
        if alone and len(every) > 1:
            self.alone(every, jobs, value, placed, groups, places, best)
        if best is not None:
            for index, room in every.items():
                here = best == index
                self._fill_room(index, room, jobs[here], value[here], placed, groups, places, alone=alone)
        for index, room in every.items():
            self._fill_room(index, room, jobs, value, placed, groups, places, alone=alone)

    def _fill_room(
        self,
        index: int,
        room: Pool,
        jobs: Jobs,
        value: F8,
        placed: set[int],
        groups: list[Group],
        places: list[Placement],
        *,
        alone: bool,
    ) -> None:
        """The same for one room."""
        if not room.free_gpus:
            return
        if placed.issuperset(jobs.tolist()) and all(len(group.jobs) == 1 for group in groups):
            return  # nobody is left, and no group can be split
        if alone:
            self.alone({index: room}, jobs, value, placed, groups, places)
        filler = Filler(
            self._tables_of[index],
            [number for number, shape in enumerate(self._shapes) if index in shape.pools],
            self.stacks(jobs, value, index, room.free_gpus, placed),
        )
        # Members may be split off from groups in other rooms, too.
        here = [group for group in groups if index in self._shapes[group.shape].pools]
        filler.groups = here[:]
        found: list[Placement] = []

        def fits(shape: int) -> bool:
            place = room.take(self._shapes[shape].gpus)
            if place is None:
                return False
            found.append(place)
            return True

        filler.fill(room.free_gpus, fits)
        added = filler.groups[len(here) :]
        groups += added
        places += found
        placed.update(job for group in added for job in group.jobs)

    def alone(
        self,
        rooms: Mapping[int, Pool],
        jobs: Jobs,
        value: F8,
        placed: set[int],
        groups: list[Group],
        places: list[Placement],
        best: NDArray[np.intp] | None = None,
    ) -> None:
        """Add every job not yet placed on GPUs of its own in these rooms (by pool), if all of them fit."""
        wish: dict[int, int] = {} if best is None else dict(zip(jobs.tolist(), best.tolist(), strict=True))
        shape_of, free = self._shape_of[jobs].tolist(), sum_ints(room.free_gpus for room in rooms.values())
        rest = [
            (job, shape, worth)
            for job, shape, worth in zip(jobs.tolist(), shape_of, value.tolist(), strict=True)
            if job not in placed and not rooms.keys().isdisjoint(self._shapes[shape].pools)
        ]
        if not rest or sum_ints(self._shapes[shape].gpus for _, shape, _ in rest) > free:
            return
        trial = {pool: room.copy() for pool, room in rooms.items()}
        found: list[Group] = []
        taken: list[tuple[int, Placement]] = []
        # Large ones first, and those with little choice.
        rest.sort(key=lambda entry: (-self._shapes[entry[1]].gpus, len(self._shapes[entry[1]].pools), entry[0]))
        for job, shape, worth in rest:
            for pool in self.choices(job, shape, wish.get(job, NOWHERE)):
                place = trial[pool].take(self._shapes[shape].gpus) if pool in trial else None
                if place is not None:
                    break
            else:
                return
            worth *= self.speed(job, pool)
            found.append(Group(self._tables_of[pool][shape], shape, [job], [int(self._column_of[job])], [worth]))
            taken.append((pool, place))
        for pool, place in taken:
            rooms[pool].claim(place)
        groups += found
        places += [place for _, place in taken]
        placed.update([group.jobs[0] for group in found])

    def choices(self, job: int, shape: int, first: int) -> Sequence[int]:
        """Pools for a job, the best first."""
        pools = self._shapes[shape].pools
        speed = self._speed_by_pool
        if speed is None or first == NOWHERE:
            return pools
        return sorted(pools, key=lambda pool: (pool != first, -speed[job, pool], pool))

    def speed(self, job: int, pool: int) -> float:
        return 1.0 if self._speeds is None else self._speeds.item(job, pool)

    def trim(self, groups: Sequence[Group], running: Iterable[Sequence[int]] = ()) -> None:
        """Profiles taken together are planned as one. Where that errs so far that a new group would be slower than
        its jobs one after another, the least valuable wait."""
        same = {frozenset(jobs) for jobs in running}
        times = self._times
        for group in groups:
            if not group.table.clustered or len(group.jobs) == 1 or frozenset(group.jobs) in same:
                continue
            while len(group.jobs) > 1 and not group.table.worth.pays(times.profiles_of(group.jobs)):
                least = group.values.index(min(group.values))
                for members in (group.jobs, group.columns, group.values):
                    del members[least]
                group.changed()

    def stacks(self, jobs: Jobs, value: F8, pool: int, free: int, placed: set[int]) -> Stacks:
        """The jobs not yet placed that may run in the pool by shape and column, best first: as many as could ever be
        placed."""
        if len(jobs) <= _FEW:
            return self._stacks_of_few(jobs, value, pool, free, placed)
        if placed:
            rest = np.fromiter((job not in placed for job in jobs.tolist()), dtype=bool, count=len(jobs))
            jobs, value = jobs[rest], value[rest]
        worth = value if self._speeds is None else value * self._speeds[jobs, pool]
        shape, column = self._shape_of[jobs], self._column_of[jobs]
        stacks: Stacks = {}
        if not len(jobs):
            return stacks
        order = np.lexsort((jobs, -worth, column, shape))
        jobs, worth, shape, column = jobs[order], worth[order], shape[order], column[order]
        change = ((shape[1:] != shape[:-1]) | (column[1:] != column[:-1])).nonzero()[0] + 1
        first = [0, *change.tolist()]
        parts = zip(first, [*first[1:], len(jobs)], shape[first].tolist(), column[first].tolist(), strict=True)
        for begin, end, number, kind in parts:
            gpus = self._tables_of[0][number].gpus
            if pool not in self._shapes[number].pools or gpus > free:
                continue
            end = min(end, begin + self._tables_of[0][number].size * (free // gpus))
            stacks.setdefault(number, {})[kind] = (jobs[begin:end].tolist(), worth[begin:end].tolist())
        return stacks

    def _stacks_of_few(self, jobs: Jobs, value: F8, pool: int, free: int, placed: set[int]) -> Stacks:
        """The same for a few jobs."""
        worth = value if self._speeds is None else value * self._speeds[jobs, pool]
        rows = zip(
            self._shape_of[jobs].tolist(), self._column_of[jobs].tolist(), (-worth).tolist(), jobs.tolist(), strict=True
        )
        entries = sorted([row for row in rows if row[3] not in placed])
        stacks: Stacks = {}
        for (shape, column), alike in groupby(entries, itemgetter(0, 1)):
            table = self._tables_of[0][shape]
            if pool not in self._shapes[shape].pools or table.gpus > free:
                continue
            first = list(islice(alike, table.size * (free // table.gpus)))
            stacks.setdefault(shape, {})[column] = ([row[3] for row in first], [-row[2] for row in first])
        return stacks


def deal_out(
    filling: Filling,
    tables_of: Sequence[Sequence[SetTable]],
    rooms: Sequence[Pool],
    jobs: Jobs,
    offered: F8,
    groups: list[Group],
    places: list[Placement],
) -> bool:
    """Deal the nodes of each room out among GPU counts and fill them, one room after another. False: no room has nodes
    of one size only, and those of several sizes can't be dealt out alike.

    Args:
        offered: by job and room, what the job counts for there per iteration at speed 1; 0: it does not come there.
    """
    placed: set[int] = set()
    dealt_out = False
    for index, room in enumerate(rooms):
        sizes = {mask.bit_count() for mask in room.free.values() if mask}
        if len(sizes) != 1:
            continue
        comes = offered[:, index] > 0
        stacks = filling.stacks(jobs[comes], offered[comes, index], index, room.free_gpus, placed)
        size = sizes.pop()
        dealt_out = True
        dealt, _ = share_nodes(tables_of[index], stacks, room.free_gpus // size, size)
        for group in sorted(dealt, key=lambda group: -group.table.gpus):
            place = room.take(group.table.gpus)
            if place is not None:
                groups.append(group)
                places.append(place)
                placed.update(group.jobs)
    return dealt_out
