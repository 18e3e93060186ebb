"""Which running jobs must stop so that waiting jobs can run: as few as possible, those with most service first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from gpuloom.core.decision import Placement
from gpuloom.core.sums import sum_ints
from gpuloom.placement.feedback import Entry
from gpuloom.placement.pool import Pool


def make_room(
    pools: Sequence[Pool],
    waiting: Iterable[tuple[Entry, Callable[[], None]]],
    candidates: Sequence[Entry],
    *,
    gpus: Sequence[int] | memoryview[int],
    models_of: Callable[[int], tuple[int, ...]],
    where: Mapping[int, Placement],
    pool_of_node: Mapping[int, int],
) -> list[Entry]:
    """The candidates to stop so that waiting jobs that don't fit now can run. The pools are not changed.

    Args:
        waiting: as from `FeedbackQueues.in_order`; a job may take GPUs only of candidates with more service than it.
        candidates: running jobs, most service first. gpus: of each job. models_of: pools on which a job can run, the
            best first. where: placements of the candidates.
    """
    trial = _Trial(pools, where)
    left: list[list[Entry]] = [[] for _ in pools]
    for entry in candidates:
        left[pool_of_node[where[entry[1]].nodes[0]]].append(entry)
    chosen: list[Entry] = []
    for (service, job), leave_out in waiting:
        need, models = gpus[job], models_of(job)
        onto = next((model for model in models if trial.pools[model].fits(need)), -1)
        if onto >= 0:
            trial.own(onto).take(need)
            continue
        freed: list[Entry] = []
        for model in models:
            there = [entry for entry in left[model] if entry[0] > service]
            if there and trial.pools[model].free_gpus + sum_ints([gpus[other] for _, other in there]) >= need:
                freed = trial.free(model, there, need)
                if freed:
                    left[model] = [entry for entry in left[model] if entry not in freed]
                    break
        if not freed:
            leave_out()
            continue
        chosen += freed
        if not any(left):
            break
    return chosen


class _Trial:
    """Pools to try things on; each is copied before it is changed."""

    def __init__(self, pools: Sequence[Pool], where: Mapping[int, Placement]) -> None:
        self.pools, self._copied, self._where = list(pools), [False] * len(pools), where

    def own(self, pool: int) -> Pool:
        if not self._copied[pool]:
            self.pools[pool], self._copied[pool] = self.pools[pool].copy(), True
        return self.pools[pool]

    def free(self, pool: int, there: list[Entry], gpus: int) -> list[Entry]:
        """Stop jobs of the pool to free this many GPUs, and take these; the jobs stopped, none if it takes more."""
        one_node = gpus <= self.pools[pool].size
        freed = self._on_one_node(self.pools[pool], there, gpus) if one_node else self._on_many(pool, there, gpus)
        if freed:
            trial = self.own(pool)
            for _, job in freed:
                trial.release(self._where[job])
            trial.take(gpus)
        return freed

    def _on_one_node(self, pool: Pool, there: list[Entry], gpus: int) -> list[Entry]:
        """For GPUs of one node: they fit as soon as it has so many."""
        where, free = self._where, pool.free
        room: dict[int, int] = {}
        freed: list[Entry] = []
        fits = False
        for entry in there:
            freed.append(entry)
            placement = where[entry[1]]
            for node, mask in zip(placement.nodes, placement.masks, strict=True):
                count = room[node] = (room[node] if node in room else free[node].bit_count()) + mask.bit_count()
                fits = fits or count >= gpus
            if fits:
                break
        if not fits:
            return []
        for entry in reversed(freed.copy()):  # jobs that need not stop after all stay
            placement = where[entry[1]]
            for node, mask in zip(placement.nodes, placement.masks, strict=True):
                room[node] -= mask.bit_count()
            if max(room.values()) >= gpus:
                freed.remove(entry)
            else:
                for node, mask in zip(placement.nodes, placement.masks, strict=True):
                    room[node] += mask.bit_count()
        return freed

    def _on_many(self, pool: int, there: list[Entry], gpus: int) -> list[Entry]:
        """For GPUs of several nodes."""
        trial, freed = self.pools[pool].copy(), []
        for entry in there:
            trial.release(self._where[entry[1]])
            freed.append(entry)
            if trial.fits(gpus):
                break
        if not trial.fits(gpus):
            return []
        for entry in reversed(freed.copy()):
            trial.claim(self._where[entry[1]])
            if trial.fits(gpus):
                freed.remove(entry)
            else:
                trial.release(self._where[entry[1]])
        return freed
