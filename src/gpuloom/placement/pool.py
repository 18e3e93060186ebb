"""Free GPUs of one kind of node, indexed so that a place is found in constant time.

A job goes on as few nodes as it can (consolidation): on the fullest node that still holds it (best fit), or, when
it is larger than a node, on wholly free nodes plus the fullest node that holds the remainder. Ties go to the
node that comes first. On a node it takes the GPUs that are connected best (core/links.py), the first ones where that is
not known. Rules:
    best_fit: as said.
    scatter: any free GPUs, first nodes first: GPUs are only counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from gpuloom.core.cluster import Cluster
from gpuloom.core.decision import Placement
from gpuloom.core.links import closest
from gpuloom.core.sums import sum_ints


class Pool:
    """Nodes of one GPU model. A policy's own book-keeping; the engine checks its plan against the true state."""

    __slots__ = ("_buckets", "_links", "_of_size", "_rank", "free", "free_gpus", "nodes", "scatter", "size", "sizes")

    def __init__(self, cluster: Cluster, nodes: Sequence[int], free: Sequence[int], *, scatter: bool = False) -> None:
        self.nodes = tuple(nodes)
        self.scatter = scatter
        self._rank = {node: rank for rank, node in enumerate(self.nodes)}
        self.size = max(cluster.nodes[node].gpus for node in nodes)
        """GPUs of the largest node."""
        self.sizes = {node: cluster.nodes[node].gpus for node in nodes}
        self._links = {node: links for node in nodes if (links := cluster.nodes[node].links)}
        self.free = {node: free[node] for node in nodes}
        self._buckets = [0] * (self.size + 1)
        """_buckets[c]: the nodes with exactly c free GPUs, as a bit mask over their rank."""
        self._of_size = [
            (size, sum_ints(1 << rank for rank, node in enumerate(self.nodes) if self.sizes[node] == size))
            for size in sorted(set(self.sizes.values()), reverse=True)
        ]
        self.free_gpus = 0
        for node, mask in self.free.items():
            count = mask.bit_count()
            self._buckets[count] |= 1 << self._rank[node]
            self.free_gpus += count

    def copy(self) -> Pool:
        """A pool to try things on."""
        twin = object.__new__(Pool)
        twin.nodes, twin.scatter, twin.size, twin.sizes = self.nodes, self.scatter, self.size, self.sizes
        twin._rank, twin._of_size, twin._links = self._rank, self._of_size, self._links
        twin.free, twin._buckets, twin.free_gpus = dict(self.free), list(self._buckets), self.free_gpus
        return twin

    def with_free(self, free: Sequence[int]) -> Pool:
        """A pool of the same nodes with these GPUs free (a mask per node of the cluster): cheaper than a new one."""
        twin = object.__new__(Pool)
        twin.nodes, twin.scatter, twin.size, twin.sizes = self.nodes, self.scatter, self.size, self.sizes
        twin._rank, twin._of_size, twin._links = self._rank, self._of_size, self._links
        buckets, total, bit = [0] * (self.size + 1), 0, 1
        masks = [free[node] for node in self.nodes]
        for mask in masks:
            count = mask.bit_count()
            buckets[count] |= bit
            total += count
            bit <<= 1
        twin.free, twin._buckets, twin.free_gpus = dict(zip(self.nodes, masks, strict=True)), buckets, total
        return twin

    def fits(self, gpus: int) -> bool:
        """Whether a job of this many GPUs could be placed now."""
        if gpus > self.free_gpus:
            return False
        if self.scatter:
            return True
        if gpus <= self.size:
            return any(self._buckets[gpus:])
        return self._spread(gpus) is not None

    def take(self, gpus: int) -> Placement | None:
        """Place a job; None if it does not fit."""
        if gpus > self.free_gpus:
            return None
        if self.scatter:
            return self._scattered(gpus)
        if gpus <= self.size:
            node = self._find(gpus)
            if node < 0:
                return None
            return Placement((node,), (self._allocate(node, gpus),))
        pieces = self._spread(gpus)
        if pieces is None:
            return None
        masks = tuple(self._allocate(node, count) for node, count in pieces)
        return Placement(tuple(node for node, _ in pieces), masks)

    def release(self, placement: Placement) -> None:
        for node, mask in zip(placement.nodes, placement.masks, strict=True):
            self._set(node, self.free[node] | mask)

    def claim(self, placement: Placement) -> None:
        """Mark the GPUs of a placement as taken (they must be free)."""
        for node, mask in zip(placement.nodes, placement.masks, strict=True):
            self._set(node, self.free[node] & ~mask)

    def claims(self, nodes: Sequence[int], masks: Sequence[int]) -> bool:
        """Take these GPUs if all of them are free."""
        free = self.free
        for node, mask in zip(nodes, masks, strict=True):
            if mask & ~free[node]:
                return False
        for node, mask in zip(nodes, masks, strict=True):
            self._set(node, free[node] & ~mask)
        return True

    def node_down(self, node: int) -> None:
        self._set(node, 0)

    def node_up(self, node: int) -> None:
        self._set(node, (1 << self.sizes[node]) - 1)

    def _find(self, gpus: int) -> int:
        """Node for a job that fits one node, or -1."""
        for bucket in self._buckets[gpus:]:
            if bucket:
                return self.nodes[(bucket & -bucket).bit_length() - 1]
        return -1

    def _scattered(self, gpus: int) -> Placement:
        nodes: list[int] = []
        masks: list[int] = []
        union = 0
        for bucket in self._buckets[1:]:
            union |= bucket
        while gpus:
            low = union & -union
            union ^= low
            node = self.nodes[low.bit_length() - 1]
            count = min(gpus, self.free[node].bit_count())
            nodes.append(node)
            masks.append(self._allocate(node, count))
            gpus -= count
        return Placement(tuple(nodes), tuple(masks))

    def _spread(self, gpus: int) -> list[tuple[int, int]] | None:
        """Nodes and counts for a job larger than any node: whole nodes, largest first, then the remainder."""
        pieces: list[tuple[int, int]] = []
        left = gpus
        taken = 0
        for size, of_size in self._of_size:
            whole = self._buckets[size] & of_size
            while whole and left >= size:
                low = whole & -whole
                whole ^= low
                pieces.append((self.nodes[low.bit_length() - 1], size))
                taken |= low
                left -= size
        if left == 0:
            return pieces
        if left >= self.size:
            return None
        for bucket in self._buckets[left:]:
            rest = bucket & ~taken
            if rest:
                pieces.append((self.nodes[(rest & -rest).bit_length() - 1], left))
                return pieces
        return None

    def _allocate(self, node: int, count: int) -> int:
        mask = self.free[node]
        if mask.bit_count() == count:
            self._set(node, 0)
            return mask
        links = self._links.get(node)
        taken = lowest_bits(mask, count) if links is None else closest(mask, count, links)
        self._set(node, mask & ~taken)
        return taken

    def _set(self, node: int, mask: int) -> None:
        before, after = self.free[node].bit_count(), mask.bit_count()
        self.free[node] = mask
        if before != after:
            bit = 1 << self._rank[node]
            self._buckets[before] ^= bit
            self._buckets[after] |= bit
            self.free_gpus += after - before


@lru_cache(maxsize=1 << 16)
def lowest_bits(mask: int, count: int) -> int:
    """The `count` lowest set bits of a mask that has at least so many."""
    if count == mask.bit_count():
        return mask
    left = mask
    for _ in range(count):
        left &= left - 1
    return mask ^ left


def pools_of(cluster: Cluster, free: Sequence[int] | None = None, *, scatter: bool = False) -> list[Pool]:
    """One pool per GPU model, in the cluster's order of models. `free`: mask per node (default: all free)."""
    masks: Sequence[int] = [(1 << node.gpus) - 1 for node in cluster.nodes] if free is None else free
    by_model: dict[str, list[int]] = {model: [] for model in cluster.models}
    for index, node in enumerate(cluster.nodes):
        by_model[node.gpu_model].append(index)
    return [Pool(cluster, nodes, masks, scatter=scatter) for nodes in by_model.values()]


def pool_of_node(cluster: Cluster) -> dict[int, int]:
    """Index in `pools_of` of each node's pool."""
    index = {model: number for number, model in enumerate(cluster.models)}
    return {node: index[entry.gpu_model] for node, entry in enumerate(cluster.nodes)}
