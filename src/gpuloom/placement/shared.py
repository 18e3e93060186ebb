"""Where groups of jobs go that share their GPUs, each member on a sharing layer of its own.

A group is placed like one job of that many GPUs. Groups keep the GPUs that most of their members hold already, if the
others fit around them; otherwise all go where they were found to fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gpuloom.core.cluster import Cluster
from gpuloom.core.decision import Decision, Place, Placement
from gpuloom.core.snapshot import Snapshot
from gpuloom.placement.pool import Pool, pool_of_node, pools_of
from gpuloom.placement.repack import FirstFit, require_alike
from gpuloom.placement.shapes import Shape

Group = tuple[int, ...]


class Room(Protocol):
    """Free GPUs on which to try things."""

    def take(self, shape: Shape) -> Placement | None:
        """GPUs for one more of the shape; None if it does not fit."""
        ...


class PooledRoom:
    """Room by pools: best fit, on as few nodes as possible."""

    def __init__(self, pools: Sequence[Pool]) -> None:
        self.pools = pools

    def take(self, shape: Shape) -> Placement | None:
        for index in shape.pools:
            placement = self.pools[index].take(shape.gpus)
            if placement is not None:
                return placement
        return None


class FirstFitRoom:
    """Room on alike nodes, filled first-fit (the rule of the released Muri simulator)."""

    def __init__(self, first_fit: FirstFit) -> None:
        self._first_fit = first_fit

    def take(self, shape: Shape) -> Placement | None:
        return self._first_fit.take(shape.gpus)


class SharedPlacer:
    """Keeps who runs with whom, and turns wanted groups into a decision.

    Args:
        layers: most jobs on a GPU.
        first_fit: what fits is found first-fit on alike nodes, instead of by best fit.
        restart_partners: a job that joins a group restarts the members that run already.
        moves_models: whether a group moves when it was found to fit on another GPU model than it has.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        *,
        layers: int,
        first_fit: bool,
        restart_partners: bool,
        moves_models: bool = False,
    ) -> None:
        if first_fit:
            require_alike(snapshot.cluster)
        self._cluster: Cluster = snapshot.cluster
        self._layers, self._first_fit, self._restart_partners = layers, first_fit, restart_partners
        self._moves_models = moves_models
        self._pool_of_node = pool_of_node(snapshot.cluster)
        self._pools = pools_of(snapshot.cluster)
        self._empty: list[Pool] = []
        self._down: frozenset[int] | None = None

    # -- room -----------------------------------------------------------------------------------------------

    def emptied(self, snapshot: Snapshot) -> Room:
        """The cluster as if no job ran."""
        if self._first_fit:
            return FirstFitRoom(FirstFit(self._cluster, snapshot.nodes_out))
        return PooledRoom(self.empty_pools(snapshot))

    def free(self, snapshot: Snapshot) -> Room:
        """GPUs that no job uses."""
        return PooledRoom(self.idle_pools(snapshot))

    def empty_pools(self, snapshot: Snapshot) -> list[Pool]:
        """The pools of the nodes in service as if no job ran; the caller's own."""
        if self._down != snapshot.nodes_out:
            self._down = snapshot.nodes_out
            masks = [0 if i in self._down else (1 << node.gpus) - 1 for i, node in enumerate(self._cluster.nodes)]
            self._empty = [pool.with_free(masks) for pool in self._pools]
        return [pool.copy() for pool in self._empty]

    def idle_pools(self, snapshot: Snapshot) -> list[Pool]:
        """The pools as they are, GPUs that no job uses free; the caller's own."""
        idle = snapshot.idle_masks
        return [pool.with_free(idle) for pool in self._pools]

    # -- decisions ------------------------------------------------------------------------------------------

    def together(self, snapshot: Snapshot) -> dict[Place, list[int]]:
        """Running groups by their place."""
        groups: dict[Place, list[int]] = {}
        for job, placement in snapshot.placements.items():
            groups.setdefault((placement.nodes, placement.masks), []).append(job)
        return groups

    def settle(
        self, snapshot: Snapshot, groups: Sequence[Group], fitted: Sequence[Placement], running: dict[Place, list[int]]
    ) -> Decision:
        """The decision that leads to these groups, and to no others.

        Args:
            groups: all groups that run from now on; each was found to fit at the placement of `fitted`.
            running: `together` of this snapshot.
        """
        places = self._keep(snapshot, groups, fitted)
        held = snapshot.placements
        run: dict[int, Placement] = {}
        stay: set[int] = set()
        for group, place in zip(groups, places, strict=True):
            stay.update(group)
            nodes, masks = place
            staying = [job for job in group if job in held and held[job].masks == masks and held[job].nodes == nodes]
            if len(staying) == len(group):
                continue
            before = running.get(place)
            joining = [job for job in group if job not in staying]
            taken = {held[job].layer for job in staying}
            layers = iter([layer for layer in range(self._layers) if layer not in taken])
            for job in joining:
                run[job] = Placement(*place, next(layers))
            if self._restart_partners and before:
                run.update({job: held[job] for job in staying})
        return Decision(run, [job for job in held if job not in stay])

    def start(self, groups: Sequence[Group], fitted: Sequence[Placement]) -> dict[int, Placement]:
        """Groups of waiting jobs on free GPUs."""
        return {
            job: Placement(place.nodes, place.masks, layer)
            for group, place in zip(groups, fitted, strict=True)
            for layer, job in enumerate(group)
        }

    def _keep(self, snapshot: Snapshot, groups: Sequence[Group], fitted: Sequence[Placement]) -> list[Place]:
        """Places for all: those that running members hold where that is possible."""
        held, pool_of = snapshot.placements, self._pool_of_node
        wishes: list[tuple[int, int, Place]] = []
        for index, group in enumerate(groups):
            votes: dict[Place, int] = {}
            for job in group:
                now = held.get(job)
                if now is not None and (
                    not self._moves_models or pool_of[now.nodes[0]] == pool_of[fitted[index].nodes[0]]
                ):
                    voted = (now.nodes, now.masks)
                    votes[voted] = votes.get(voted, 0) + 1
            if votes:
                count = max(votes.values())
                wishes.append((-count, index, next(place for place in votes if votes[place] == count)))
        wishes.sort()
        everyone = range(len(groups))
        # Nobody who runs is moved; if that leaves no room for somebody, smaller groups make way for larger ones; if
        # that does not do, all go where they were found to fit.
        places = self._in_waves(snapshot, [everyone], wishes, fitted)
        if places is None:
            sizes = sorted({placement.gpus for placement in fitted}, reverse=True)
            waves = [[n for n in everyone if fitted[n].gpus == gpus] for gpus in sizes]
            places = self._in_waves(snapshot, waves, wishes, fitted)
        if places is not None:
            return places
        return [(placement.nodes, placement.masks) for placement in fitted]

    def _in_waves(
        self,
        snapshot: Snapshot,
        waves: Sequence[Sequence[int]],
        wishes: Sequence[tuple[int, int, Place]],
        fitted: Sequence[Placement],
    ) -> list[Place] | None:
        """Wave by wave: wishes first, then the others by size; None if somebody finds no room."""
        pools = self.empty_pools(snapshot)
        sizes = [placement.gpus for placement in fitted]
        places: dict[int, Place] = {}
        for wave in waves:
            members = set(wave)
            for _, index, place in wishes:
                if index in members and pools[self._pool_of_node[place[0][0]]].claims(*place):
                    places[index] = place
            # The largest first; of one size in order.
            for index in sorted([n for n in wave if n not in places], key=lambda n: -sizes[n]):
                found = pools[self._pool_of_node[fitted[index].nodes[0]]].take(sizes[index])
                if found is None:
                    return None
                places[index] = (found.nodes, found.masks)
        return [places[index] for index in range(len(fitted))]
