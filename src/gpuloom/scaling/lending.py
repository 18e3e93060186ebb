"""A view in which elastic jobs have their smallest size, for a base policy that knows nothing of sizes.

In the view every job has its smallest number of GPUs (its *base size*). GPUs beyond that are borrowed; the view shows
them as free. So the base policy alone chooses who runs, and borrowed GPUs never keep a job waiting. Durations and work
left are those at the base size, so the view is a workload of its own; the end of a running job is the true one, at its
present size. `Lending` keeps the view and the true cluster in step. A job that the base starts gets its base GPUs; if
they are borrowed, the borrowers give them back. A job that the base stops gives up all its GPUs.

The view and the cluster agree on how many GPUs of each node a job's base part holds, not on which ones. If the base
takes a borrowed GPU while another GPU of the node is free, it gets the free one, and nobody shrinks.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gpuloom.core.decision import NOTHING, Decision, Place, Placement, Reason, place_of
from gpuloom.core.snapshot import Snapshot
from gpuloom.core.sums import sum_ints
from gpuloom.placement.pool import lowest_bits, pool_of_node
from gpuloom.scaling.base_view import BaseView, Sizes

Pieces = dict[int, int]
"""{node: mask of GPUs, or their number}, the node first that the job had first."""


class Lending:
    """Who has which GPUs, who borrows how many of each node, and the plan of one call.

    The order of a call: `take_in` what happened; `apply` the base's decision; give jobs other GPUs with `put`; then
    `decision`.

    A job's *home* is its place in the base's view: that many GPUs of these nodes are its own. All it holds beyond that
    is borrowed, even if it runs on other nodes altogether; its own GPUs at home may then be lent to others. When the
    base needs GPUs, borrowers give them back: they shrink. If they would fall below their base size, they go home, for
    which others may have to give GPUs back in turn. This ends, because the view has room for all homes. Jobs that share
    GPUs in the view share them on the cluster, too, at their base sizes.

    Args:
        home: the place in the base's view of every running job that is not rigid. Belongs to the policy's memory; this
            class writes it.
        woven: see `Sizes`.
    """

    def __init__(self, snapshot: Snapshot, home: dict[int, Placement], *, woven: bool = False) -> None:
        cluster = snapshot.cluster
        self.sizes = Sizes(snapshot.workload, cluster, woven=woven)
        self.woven = woven
        """Whether jobs may share GPUs in the base's view."""
        self.view = BaseView(snapshot, self.sizes)
        self.home = home
        self.held: dict[int, Pieces] = {}
        """GPUs of every running job that is not rigid."""
        self.gpus: dict[int, int] = {}
        """Their number."""
        self.own: dict[int, Pieces] = {}
        """GPUs that are its own: {node: number}."""
        self._borrowers: list[set[int]] = [set() for _ in cluster.nodes]
        self.pool_of = pool_of_node(cluster)
        self.nodes_of: list[list[int]] = [[] for _ in cluster.models]
        """Nodes of each GPU model."""
        for node, pool in self.pool_of.items():
            self.nodes_of[pool].append(node)
        self._full = [(1 << node.gpus) - 1 for node in cluster.nodes]
        self.free: list[int] = []
        """GPUs of each node that are free on the cluster, by the plan so far."""
        self._before = snapshot.placements
        self.run: dict[int, Placement] = {}
        """Jobs that the base starts or moves in this call."""
        self._touched: dict[int, None] = {}
        self._wait: list[int] = []
        self.reclaimed: list[int] = []
        """Jobs that had to give GPUs back in this call."""
        self.attached: Any = None
        """What the policy stores here; it lives as long as this object."""
        self._rebuild(snapshot)
        self._built = True

    def _rebuild(self, snapshot: Snapshot) -> None:
        """Set up from the true placements. `home` may still name jobs that have ended or lost their node."""
        free = [0 if node in snapshot.nodes_out else full for node, full in enumerate(self._full)]
        base: dict[int, Placement] = {}
        shared: dict[Place, tuple[int, ...]] = {}
        known = {job: home for job, home in self.home.items() if job in snapshot.placements}
        self.home.clear()
        without_room = self._without_room(snapshot, known, free)
        for job, placement in snapshot.placements.items():
            place = placement
            if len(self.sizes.of[job]) > 1:
                place = known.get(job) or _part(placement, self.sizes.of[job][0])
                if job in without_room or any(node in snapshot.nodes_out for node in place.nodes):
                    self._lose_home(job, dict(zip(placement.nodes, placement.masks, strict=True)))
                    continue
            masks = shared.get(place_of(placement))
            if masks is None:
                taken = []
                for node, mask in zip(place.nodes, place.masks, strict=True):
                    taken.append(lowest_bits(free[node], mask.bit_count()))
                    free[node] &= ~taken[-1]
                masks = shared[place_of(placement)] = tuple(taken)
            base[job] = Placement(place.nodes, masks, placement.layer)
            if len(self.sizes.of[job]) > 1:
                self._settle(job, base[job])
                self._enter(job, dict(zip(placement.nodes, placement.masks, strict=True)))
        self.view.rebuild(base, free)

    def _without_room(self, snapshot: Snapshot, known: dict[int, Placement], free: list[int]) -> set[int]:
        """Jobs for which there is no home where they live. A home among `known` that others have taken meanwhile is
        dropped: a scheduler that was killed may remember an older one than its records tell."""
        room = [mask.bit_count() for mask in free]
        seen, found = set[Place](), set[int]()
        # Who has one size is where it is.
        for job, placement in sorted(snapshot.placements.items(), key=lambda pair: len(self.sizes.of[pair[0]]) > 1):
            if place_of(placement) in seen:
                continue
            seen.add(place_of(placement))
            if len(self.sizes.of[job]) == 1:
                homes = [placement]
            else:
                homes = [home for home in (known.get(job), _part(placement, self.sizes.of[job][0])) if home is not None]
            if any(node in snapshot.nodes_out for node in homes[0].nodes):
                continue  # that home is lost in any case
            for home in homes:
                needs = [(node, mask.bit_count()) for node, mask in zip(home.nodes, home.masks, strict=True)]
                if all(room[node] >= count for node, count in needs):
                    for node, count in needs:
                        room[node] -= count
                    break
                known.pop(job, None)
            else:
                found.add(job)
        return found

    def _lose_home(self, job: int, pieces: Pieces) -> None:
        self.view.homeless.append(job)
        self.home.pop(job, None)
        self.own[job] = {}
        self._enter(job, pieces)

    def _move_in(self, job: int, wanted: Placement) -> None:
        """Give a job that stays where it lives another home, of which it is the only one: on the layer that it has, or
        who joins it there would be given that one."""
        home = Placement(wanted.nodes, wanted.masks, self._before[job].layer)
        self.view.put(job, home)
        self._settle(job, home)

    def _settle(self, job: int, home: Placement) -> None:
        self.home[job] = home
        self.own[job] = {node: mask.bit_count() for node, mask in zip(home.nodes, home.masks, strict=True)}

    # -- what happened --------------------------------------------------------------------------------------

    def take_in(self, snapshot: Snapshot) -> None:
        """Events since the last call (nothing, if this was just built from this snapshot)."""
        self.view.sync(snapshot)
        self._before = snapshot.placements
        self.free = list(snapshot.idle_masks)
        self.run, self._touched, self._wait = {}, {}, []
        self.reclaimed = []
        if self._built:
            self._built = False
            return
        for job in (*snapshot.finished, *snapshot.evicted):
            self.view.remove(job)
            self._forget(job)
        for job in snapshot.resized:  # also those that lost a node and go on with the rest
            placement = snapshot.placements.get(job)
            if job in self.own and placement is not None:
                self._enter(job, dict(zip(placement.nodes, placement.masks, strict=True)))
        for node in (*snapshot.nodes_down, *snapshot.nodes_up):  # a node that is back was down in between
            for job in [job for job, own in self.own.items() if node in own]:
                self.view.remove(job)
                self._lose_home(job, self.held[job])
        for node in snapshot.nodes_down:
            self.view.set_node(node, 0)
        if self.view.homeless:
            self.view.evicted = [*snapshot.evicted, *self.view.homeless]
        for node in snapshot.nodes_up:
            self.view.set_node(node, self._full[node])

    def _forget(self, job: int) -> None:
        self.home.pop(job, None)
        if job in self.own:
            del self.own[job], self.gpus[job]
            for node in self.held.pop(job):
                self._borrowers[node].discard(job)

    def _enter(self, job: int, pieces: Pieces) -> None:
        """Record that the job holds these GPUs; the caller updates `free`."""
        own, borrowers = self.own[job], self._borrowers
        for node in self.held.get(job, ()):
            borrowers[node].discard(job)
        gpus = 0
        for node, mask in pieces.items():
            count = mask.bit_count()
            gpus += count
            if count > own.get(node, 0):
                borrowers[node].add(job)
        self.held[job] = pieces
        self.gpus[job] = gpus

    # -- the base's decision --------------------------------------------------------------------------------

    def apply(self, decision: Decision, first_to_shrink: Callable[[int], Any]) -> None:
        """Carry the base's decision over to the true cluster.

        Args:
            first_to_shrink: key of a job that borrows; small ones give GPUs back first.
        """
        self._wait = list(decision.wait)
        if not (decision.run or decision.wait or self.view.homeless):
            return
        homeless, self.view.homeless = self.view.homeless, []
        for job in homeless[:]:
            if job in decision.run and self.woven:
                # It may share its new home with others: it moves there.
                homeless.remove(job)
                for node, mask in self.held[job].items():
                    self.free[node] |= mask
                self._forget(job)
            elif job in decision.run:
                # It has a home again, and stays where it is.
                self._move_in(job, decision.run[job])
                self._enter(job, self.held[job])
            else:
                for node, mask in self.held[job].items():
                    self.free[node] |= mask
                self._forget(job)
                self._wait.append(job)
        staying = self._staying(decision, homeless)
        for job in staying:
            self.view.remove(job)
        for job in staying:
            self._move_in(job, decision.run[job])
            self._enter(job, self.held[job])
        homeless += staying
        leaving = [
            job for job in (*decision.wait, *decision.run) if job in self.view.placements and job not in homeless
        ]
        gone = set(leaving)
        for job in leaving:
            shares = not self.view.alone(job)
            for node, mask in zip(self._before[job].nodes, self._before[job].masks, strict=True):
                self.free[node] |= mask & ~self._kept(node, gone) if shares else mask
            self.view.remove(job)
            self._forget(job)
        # The places of group members that join others, or each other.
        true: dict[Place, tuple[int, ...]] = {}
        for job, wanted in decision.run.items():
            if job in homeless:
                continue
            masks = true.get(place_of(wanted))
            if masks is None:
                masks = true[place_of(wanted)] = self._masks(wanted, first_to_shrink)
            self.view.put(job, wanted)
            self.run[job] = Placement(wanted.nodes, masks, wanted.layer)
            if len(self.sizes.of[job]) > 1:
                self._settle(job, wanted)
                self._enter(job, dict(zip(wanted.nodes, masks, strict=True)))

    def _staying(self, decision: Decision, homeless: list[int]) -> list[int]:
        """Jobs of several sizes that the base moves to other GPUs of their own: they get another home, and where they
        live is not the base's to say."""
        moved = [
            job
            for job in decision.run
            if job in self.own and job in self.view.placements and job not in homeless and self.view.alone(job)
        ]
        if not moved or not self.woven:
            return moved
        places = Counter(place_of(placement) for placement in decision.run.values())
        return [
            job
            for job in moved
            if places[place_of(decision.run[job])] == 1 and self.view.who_has(decision.run[job]) is None
        ]

    def _kept(self, node: int, leaving: set[int]) -> int:
        """The GPUs of a node that staying jobs hold on the cluster."""
        kept = 0
        for job, placement in self._before.items():
            if job not in leaving and node in placement.nodes:
                kept |= placement.masks[placement.nodes.index(node)]
        return kept

    def _masks(self, wanted: Placement, first_to_shrink: Callable[[int], Any]) -> tuple[int, ...]:
        """The cluster's GPUs for a place of the base's view: those of a job that has it and stays, or free ones."""
        host = self.view.who_has(wanted)
        if host is not None and host in self.own:
            if self.held[host].keys() != self.own[host].keys() or self.gpus[host] > self.sizes.of[host][0]:
                self._go_home(host, first_to_shrink)
                self.reclaimed.append(host)
            return tuple([self.held[host][node] for node in wanted.nodes])
        if host is not None:
            before = self.run.get(host, self._before.get(host))
            if before is not None:
                pieces = dict(zip(before.nodes, before.masks, strict=True))
                return tuple([pieces[node] for node in wanted.nodes])
        masks = []
        for node, mask in zip(wanted.nodes, wanted.masks, strict=True):
            count = mask.bit_count()
            self._reclaim(node, count, first_to_shrink)
            taken = mask if not mask & ~self.free[node] else lowest_bits(self.free[node], count)
            self.free[node] &= ~taken
            masks.append(taken)
        return tuple(masks)

    def _reclaim(self, node: int, count: int, first_to_shrink: Callable[[int], Any]) -> None:
        """Have borrowers on the node give GPUs back until `count` of its GPUs are free."""
        while (missing := count - self.free[node].bit_count()) > 0:
            job = min(self._borrowers[node], key=lambda j: (first_to_shrink(j), j))
            lent = self.held[job][node].bit_count() - self.own[job].get(node, 0)
            left = self.gpus[job] - min(missing, lent)
            self.reclaimed.append(job)
            if left >= self.sizes.of[job][0]:
                self.shrink(job, max(size for size in self.sizes.of[job] if size <= left), first=node)
            else:
                self._go_home(job, first_to_shrink)

    def _go_home(self, job: int, first_to_shrink: Callable[[int], Any]) -> None:
        own, before = self.own[job], self.held[job]
        kept = {}
        for node, count in own.items():
            mask = before.get(node, 0)
            if mask:
                kept[node] = lowest_bits(mask, min(count, mask.bit_count()))
        self.put(job, kept)
        for node, count in own.items():
            missing = count - kept.get(node, 0).bit_count()
            if missing:
                self._reclaim(node, missing, first_to_shrink)
                kept = {**kept, node: kept.get(node, 0) | lowest_bits(self.free[node], missing)}
                self.put(job, kept)

    # -- who holds what -------------------------------------------------------------------------------------

    def put(self, job: int, pieces: Pieces) -> None:
        """Give these GPUs to a running job that is not rigid. They must be free, or held by it now."""
        for node, mask in self.held[job].items():
            self.free[node] |= mask
        for node, mask in pieces.items():
            self.free[node] &= ~mask
        self._enter(job, pieces)
        self._touched[job] = None

    def shrink(self, job: int, gpus: int, *, first: int | None = None) -> None:
        """A job gives borrowed GPUs back until it has `gpus`: first those on node `first`, then those on the nodes of
        which it holds fewest, so that it is on few nodes; of equal ones the node that it had last. Of a node's GPUs
        those go that it had last: `extended` takes higher ones where it can."""
        pieces, own = dict(self.held[job]), self.own[job]
        left = self.gpus[job] - gpus
        nodes: Iterable[int] = tuple(pieces)
        if len(pieces) > 1:
            came = {n: at for at, n in enumerate(pieces)}
            nodes = sorted(pieces, key=lambda n: (n != first, pieces[n].bit_count(), -came[n]))
        for node in nodes:
            held = pieces[node].bit_count()
            count = min(left, held - own.get(node, 0))
            if count > 0:
                pieces[node] = lowest_bits(pieces[node], held - count)
                if not pieces[node]:
                    del pieces[node]
                left -= count
        self.put(job, pieces)

    def extended(self, job: int, gpus: int) -> Pieces | None:
        """GPUs with which a running job grows to `gpus`: its own and free ones, on its own nodes first, then on as few
        others as possible, which come last. None if there are not enough."""
        free = self.free
        pieces = dict(self.held[job])
        left = gpus - self.gpus[job]
        nodes: Iterable[int] = tuple(pieces)
        if len(pieces) > 1:
            nodes = sorted(nodes, key=lambda n: (-free[n].bit_count(), n))
        for node in nodes:
            count = min(left, free[node].bit_count())
            if count:
                pieces[node] |= _bits_above(pieces[node], free[node], count)
                left -= count
        if left:
            others = [n for n in self._nodes(job) if free[n] and n not in pieces]
            more = _fewest_nodes([(free[n].bit_count(), n) for n in others], left)
            if more is None:
                return None
            for node, count in more:
                pieces[node] = lowest_bits(free[node], count)
        return pieces

    def gathered(self, job: int, gpus: int, model: int | None = None) -> Pieces | None:
        """`gpus` GPUs for a running job on as few nodes as possible, wherever they are. None if not enough.

        Args:
            model: of this GPU model (an index); None: of the job's own.
        """
        held, free = self.held[job], self.free
        there = [(free[n].bit_count() + held.get(n, 0).bit_count(), n) for n in self._nodes(job, model)]
        chosen = _fewest_nodes([(count, n) for count, n in there if count], gpus)
        if chosen is None:
            return None
        pieces = {}
        # Its first nodes stay its first: there are its first replicas.
        order = {node: at for at, node in enumerate(held)}
        for node, count in sorted(chosen, key=lambda part: order.get(part[0], len(order))):
            mine = held.get(node, 0)
            kept = lowest_bits(mine, min(count, mine.bit_count()))
            pieces[node] = kept | lowest_bits(free[node], count - kept.bit_count())
        return pieces

    def _nodes(self, job: int, model: int | None = None) -> list[int]:
        """Nodes of a GPU model, or of the job's own."""
        if model is not None:
            return self.nodes_of[model]
        return self.nodes_of[self.pool_of[next(iter(self.held[job]))]]

    def rehome(self, snapshot: Snapshot) -> bool:
        """Have jobs that live on another GPU model than their homes be at home where they live, as far as the base's
        world has room there: else GPUs that stand idle look taken to rigid jobs. A base that weaves moves elastic jobs,
        too: it would put one where another lives, which would have to go home, a restart that nobody has weighed.
        Whether any home changed: what the base has noted of places is wrong then."""
        if len(self.nodes_of) == 1 or (not self.woven and len(self.own) == len(snapshot.placements)):
            return False
        changed = False
        for job, home in list(self.home.items()):
            pieces = self.held[job]
            if self.pool_of[home.nodes[0]] == self.pool_of[next(iter(pieces))] or not self.view.alone(job):
                continue
            part = _part(Placement(tuple(pieces), tuple(pieces.values())), self.sizes.of[job][0])
            free = self.view.free_masks()
            counts = [(node, mask.bit_count()) for node, mask in zip(part.nodes, part.masks, strict=True)]
            if any(count > free[node].bit_count() for node, count in counts):
                continue
            masks = tuple([lowest_bits(free[node], count) for node, count in counts])
            self.view.remove(job)
            self.view.put(job, Placement(part.nodes, masks, home.layer))
            self._settle(job, Placement(part.nodes, masks, home.layer))
            self._enter(job, pieces)
            changed = True
        return changed

    def decision(self, wake_at_s: float, why: Mapping[int, Reason]) -> Decision:
        """The plan of this call."""
        run = self.run
        for job in self._touched:
            pieces = self.held[job]
            before = self._before.get(job)
            layer = run[job].layer if job in run else 0 if before is None else before.layer
            if job in run or before is None or not _same(before, pieces):
                run[job] = Placement(tuple(pieces), tuple(pieces.values()), layer)
        if not run and not self._wait and wake_at_s == math.inf:
            return NOTHING
        return Decision(run, self._wait, wake_at_s, why)


def _same(placement: Placement, pieces: Pieces) -> bool:
    """Whether a placement consists of exactly these GPUs, in any order of nodes."""
    if len(placement.nodes) != len(pieces):
        return False
    return all(pieces.get(node) == mask for node, mask in zip(placement.nodes, placement.masks, strict=True))


def _bits_above(held: int, free: int, count: int) -> int:
    """`count` of the free GPUs of a node for a job that holds some there: above these first, so that they come last."""
    above = free >> held.bit_length() << held.bit_length()
    taken = lowest_bits(above, min(count, above.bit_count()))
    return taken | lowest_bits(free & ~taken, count - taken.bit_count())


def _fewest_nodes(room: list[tuple[int, int]], gpus: int) -> list[tuple[int, int]] | None:
    """Choose GPUs on few nodes: (node, number) from (free GPUs, node). None if there are not enough.

    Takes the fullest node that holds all that is still needed, else the emptiest, and so on.
    """
    room = sorted(room)
    if sum_ints([count for count, _ in room]) < gpus:
        return None
    chosen = []
    while gpus:
        place = next((i for i, (count, _) in enumerate(room) if count >= gpus), len(room) - 1)
        count, node = room.pop(place)
        chosen.append((node, min(count, gpus)))
        gpus -= min(count, gpus)
    return chosen


def _part(placement: Placement, gpus: int) -> Placement:
    """`gpus` GPUs of a placement, on the nodes where it has most, of equal ones on those that it had first; all of them
    if it has fewer."""
    pieces: Pieces = {}
    left = gpus
    for mask, node in sorted(zip(placement.masks, placement.nodes, strict=True), key=lambda p: -p[0].bit_count()):
        count = min(left, mask.bit_count())
        if count:
            pieces[node] = lowest_bits(mask, count)
            left -= count
    return Placement(tuple(pieces), tuple(pieces.values()))
