"""Which nodes jobs get: those smaller than a node share nodes, all others have whole nodes; few move."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpuloom.core.sums import sum_ints
from gpuloom.goodput.base import Cluster, Held, Nodes
from gpuloom.goodput.job import Job
from gpuloom.solvers.sized_choices import Choice, choose

STAYS = 1e6
"""Worth of what a job that is just starting has: more than all else together."""


def best_choices(jobs: Sequence[Job], rows: Sequence[Sequence[Choice]], cluster: Cluster) -> Held:
    """Nodes of the jobs where each gets one of its choices, or none, and these are worth most together.

    Args:
        rows: by job its choices; their models are the cluster's pools.
    """
    chosen = choose(rows, [pool.total for pool in cluster.pools])
    wants = {
        job.name: (row[at].model, row[at].gpus)
        for job, row, at in zip(jobs, rows, chosen, strict=True)
        if at is not None
    }
    return pack_pools(wants, {job.name: job.nodes for job in jobs}, cluster)


def pack(wants: Mapping[str, int], held: Held, nodes: Nodes) -> dict[str, tuple[int, ...]]:
    """Nodes of the jobs, by the GPUs that each wants (0: none) and what it held before.

    Sizes from a whole node on must be multiples of a node's GPUs; smaller sizes must divide each other (1, 2). Then
    every job finds a place as long as the GPUs suffice. With other sizes some jobs may get none.
    """
    whole = {name: gpus // nodes.gpus for name, gpus in wants.items() if gpus >= nodes.gpus}
    parts = {name: gpus for name, gpus in wants.items() if 0 < gpus < nodes.gpus}
    stay = {name for name, gpus in wants.items() if gpus and len(held.get(name, ())) == gpus}
    load = [0] * nodes.count
    taken = [False] * nodes.count
    for name in stay:
        for node in held[name]:
            load[node] += name in parts
            taken[node] |= name in whole
    # Nodes to share: those on which most GPUs could stay; of equals, free nodes before those that one job has whole.
    ranked = sorted(range(nodes.count), key=lambda node: (-load[node], taken[node], node))
    shared = ranked[: nodes.count - sum_ints(whole.values())]
    found = _share(parts, held, stay, shared, nodes.gpus, keep_all=True)
    if len(found) < len(parts):
        found = _share(parts, held, stay, shared, nodes.gpus, keep_all=False)
    free = set(ranked[len(shared) :])
    for name in whole:
        if name in stay and free.issuperset(held[name]):
            found[name] = held[name]
            free.difference_update(held[name])
    for name, count in whole.items():
        if name not in found:
            before = held.get(name, ())
            chosen = sorted(sorted(free, key=lambda node: (node not in before, node))[:count])
            found[name] = tuple(node for node in chosen for _ in range(nodes.gpus))
            free.difference_update(chosen)
    return found


def pack_pools(wants: Mapping[str, tuple[int, int]], held: Held, cluster: Cluster) -> dict[str, tuple[int, ...]]:
    """Nodes of the jobs that want (pool, GPUs), pool by pool, numbered through the cluster."""
    found: dict[str, tuple[int, ...]] = {}
    begin = 0
    for at, pool in enumerate(cluster.pools):
        here = range(begin, begin + pool.count)
        of_it = {name: gpus for name, (wanted, gpus) in wants.items() if wanted == at}
        before = {
            name: tuple(node - begin for node in nodes)
            for name, nodes in held.items()
            if nodes and nodes[0] in here and name in of_it
        }
        for name, local in pack(of_it, before, pool).items():
            found[name] = tuple(node + begin for node in local)
        begin += pool.count
    return found


def _share(
    parts: Mapping[str, int], held: Held, stay: set[str], shared: list[int], gpus: int, *, keep_all: bool
) -> dict[str, tuple[int, ...]]:
    """Either all jobs that can stay first, or the larger first, each on its own node if that is still free.

    The second way always places every job.
    """
    free = dict.fromkeys(shared, gpus)
    found: dict[str, tuple[int, ...]] = {}

    def at_home(name: str) -> bool:
        return name in stay and held[name][0] in free

    order = sorted(
        parts, key=lambda name: (not at_home(name), -parts[name]) if keep_all else (-parts[name], not at_home(name))
    )
    for name in order:
        size = parts[name]
        fits = [node for node in shared if free[node] >= size]
        if not fits:
            continue
        node = held[name][0] if at_home(name) and held[name][0] in fits else min(fits, key=lambda n: (free[n], n))
        found[name] = (node,) * size
        free[node] -= size
    return found
