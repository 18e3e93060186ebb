"""The pairs that the matcher of the released Muri simulator chooses.

That matcher is Galil's primal-dual search for a maximum weight matching ("Efficient algorithms for finding maximum
matching in graphs", ACM Computing Surveys 18(1), 1986) in floating point. An edge is tight if its slack is not above 0
after rounding. The search ends once a free node's label comes within 1e-5 of 0. Of equally good pairs, the one found
first in the order of the nodes wins. So the result is not always optimal: it depends on the order of the nodes and on
the last bits of the weights. This module makes the same decisions by the same operations on floats, in an order that
suits arrays.

Within a search, labels move only when the queue is empty (the end of "a drain" below). Tight edges are therefore looked
up once per drain, and the best edges into each tree or free node are found for all nodes at its end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gpuloom.core.workload import F8

_CLOSE = 1e-5
"""Relative difference below which the released code treats a label and a step as equal."""
_EVEN, _ODD, _OUTSIDE = 0, 1, -1
"""A node's place in the search: an even or odd number of edges from a free node, or not reached."""


def released_partners(weight: Sequence[Sequence[float]] | F8) -> list[int]:
    """The partner of every node, or -1.

    Args:
        weight: shape (nodes, nodes); 0 or less: no edge. Both directions are looked at, as their last bits may differ.
    """
    given = np.asarray(weight, dtype=np.float64)
    nodes = len(given)
    if nodes < 2:
        return [-1] * nodes
    table = np.zeros((nodes + 1, nodes + 1))
    table[1:, 1:] = given
    np.fill_diagonal(table, 0.0)
    if not (table > 0).any():
        return [-1] * nodes
    search = _Search(table)
    while search.augment():
        pass
    match = search.match
    # Where the two ends name different partners, the released code leaves the node unmatched.
    return [other - 1 if other and match[other] == node else -1 for node, other in enumerate(match[1 : nodes + 1], 1)]


class _Search:
    """Labels, blossoms and the matching so far.

    Nodes are numbered from 1, blossoms after them; 0 is nobody. By node or blossom:
        top: the outermost blossom that contains it, itself if none; 0 for a dissolved blossom.
        match: the node at the other end of its matched edge.
        parent: the node by which the search came to it.
        place: _EVEN, _ODD or _OUTSIDE.
        slack: the even node with the least slack towards it.
        ring: of a blossom, its parts in order, from its base.
    """

    def __init__(self, weight: F8) -> None:
        self.n = n = len(weight) - 1
        self.last = n
        self.top = list(range(n + 1))
        self.match = [0] * (n + 1)
        self.parent = [0] * (n + 1)
        self.place = [_OUTSIDE] * (n + 1)
        self.ring: list[list[int]] = [[] for _ in range(n + 1)]
        self.seen = [0] * (n + 1)
        self.clock = 0
        self.twice = weight * 2.0
        self.edge = weight > 0
        self.gap = np.where(self.edge, self.twice, -np.inf)
        self.label = np.full(n + 1, weight.max())
        self.label[0] = np.inf
        self.own: list[float] = [0.0] * (n + 1)
        """Labels of blossoms."""
        self.size = n + 1 + n // 2 + 2
        self.slack: NDArray[np.intp] = np.zeros(self.size, dtype=np.intp)
        self.ends: NDArray[np.intp] | None = None
        """[x, y]: the node of x at which the edge from x to y begins; kept once there are blossoms."""
        self.part: dict[int, dict[int, int]] = {}
        """Of a blossom: which of its parts holds each node."""
        self.within: dict[int, NDArray[np.bool_]] = {}
        """Of a blossom: the nodes in it."""
        self.reach: dict[int, NDArray[np.bool_]] = {}
        """Of a blossom: the nodes that an edge joins to it."""
        self.everyone = np.arange(n + 1)
        self.stands: NDArray[np.int8] = np.zeros(n + 1, dtype=np.int8)
        """By node: the place of the outermost blossom around it."""
        self.alone = np.ones(n + 1, dtype=bool)
        """By node: whether it is in no blossom."""
        self.alone[0] = False
        self.stuck = False
        """Whether the last step was too small to move a label."""
        self.queue: list[int] = []
        self.rows: list[int] = []
        """Even nodes walked in this drain."""
        self.since: dict[int, int] = {}
        """By node that became even during the drain: the first row that counts for its slack."""
        self.slacks = np.empty((n + 1, n + 1))
        """Rows of slacks by the present labels, as far as asked for."""
        self.tight: dict[int, list[int]] = {}
        """Of those rows: where the slack is not above 0."""

    # -- the search -----------------------------------------------------------------------------------------

    def augment(self) -> bool:
        """Search from all free nodes at once until a path between two of them is found, and match along it."""
        top, match = self.top, self.match
        self.place = [_OUTSIDE] * (self.last + 1)
        self.stands.fill(_OUTSIDE)
        self.slack.fill(0)
        self.queue = []
        for x in range(1, self.last + 1):
            if top[x] == x and match[x] == 0:
                self.parent[x] = 0
                self._stand(x, _EVEN)
                self._enqueue(x)
        if not self.queue:
            return False
        while True:
            if self._drain():
                return True
            step = self._step()
            if not self._move_labels(step):
                return False
            self.queue = []
            self.rows = []
            if self._follow_slacks():
                return True
            for b in range(self.n + 1, self.last + 1):
                if top[b] == b and self.place[b] == _ODD and self.own[b] <= 0:
                    self._dissolve(b)
                    self.stuck = False
            if self.stuck and not self.queue:
                return False  # the step was lost in rounding: here the released code would never end

    def _drain(self) -> bool:
        """Walk the tight edges of all queued nodes. Returns whether that led to a path."""
        top, place, tight, queue = self.top, self.place, self.tight, self.queue
        self.rows = rows = []
        self.since.clear()
        asked = [u for u in queue if u not in tight]
        if asked:
            self._look_up(asked)
        for u in queue:  # grows while it is walked
            if place[top[u]] == _ODD:
                continue
            rows.append(u)
            ends = tight.get(u)
            if ends is None:
                ends = self._look_up([u])
            for v in ends:
                if top[u] != (x := top[v]) and place[x] != _ODD and self._found(u, v):
                    return True
        return False

    def _look_up(self, nodes: list[int]) -> list[int]:
        """Compute the slacks from these nodes and which are tight; returns the tight ones of the last node."""
        label = self.label
        self.slacks[nodes] = found = label[nodes, None] + label - self.gap[nodes]
        ends: list[int] = []
        for u, row in zip(nodes, found <= 0, strict=True):
            ends = self.tight[u] = row.nonzero()[0].tolist()
        return ends

    def _found(self, u: int, v: int) -> bool:
        """Take in a tight edge from the even node `u`. Returns whether it closes a path between two free nodes."""
        place, top = self.place, self.top
        tree, x = top[u], top[v]
        if place[x] == _OUTSIDE:
            self.parent[x] = u
            self._stand(x, _ODD)
            mate = top[self.match[x]]
            self.slack[x] = self.slack[mate] = 0
            self._stand(mate, _EVEN)
            self._forget(mate, u, v)
            self._enqueue(mate)
        elif place[x] == _EVEN:
            base = self._meeting(tree, x)
            if base == 0:
                self._match_along(tree, x)
                self._match_along(x, tree)
                return True
            self._shrink(tree, base, x)
        return False

    def _forget(self, mate: int, u: int, v: int) -> None:
        """From here on only these slacks towards `mate` count: the rest of the row of `u`, and later rows."""
        if not self.rows:
            return
        ahead = mate > v if mate <= self.n else any(leaf > v and self.edge[u, leaf] for leaf in self.part[mate])
        self.since[mate] = len(self.rows) - ahead

    def _step(self) -> float:
        """How far labels can move; brings `slack` up to date with the rows of this drain."""
        n, top, place, slack = self.n, self.top, self.place, self.slack
        rows, near = self.rows, slack[: n + 1]
        best = self.label[near] + self.label - self.gap[near, self.everyone]
        if rows:
            block = self.slacks[rows]
            for x, first in self.since.items():
                if x <= n:
                    block[:first, x] = np.inf
            pick = block.argmin(axis=0)
            least = block[pick, self.everyone]
            better = (least < best).nonzero()[0]
            slack[better] = np.array(rows)[pick[better]]
            np.minimum(best, least, out=best)
        step = math.inf
        for b in range(n + 1, self.last + 1):
            if top[b] != b:
                continue
            if place[b] == _ODD:
                step = min(step, self.own[b] / 2.0)
            else:
                towards = self._relax(b)
                step = min(step, towards if place[b] == _OUTSIDE else towards / 2.0)
        outside = best[self.alone & (self.stands == _OUTSIDE)]
        if len(outside):
            step = min(step, float(outside.min()))
        even = best[self.alone & (self.stands == _EVEN)]
        if len(even):
            step = min(step, float(even.min()) / 2.0)
        return step

    def _relax(self, b: int) -> float:
        """The same for a blossom: its least slack."""
        ends, label = self._ends(), self.label
        u = int(self.slack[b])
        least = math.inf
        if u:
            least = self._slack_of(u, b)
        reach, top = self.reach[b], self.top
        rows = [row for row in self.rows[self.since.get(b, 0) :] if top[row] != b and reach[row]]
        if rows:
            near, far = ends[rows, b], ends[b, rows]
            towards = label[near] + label[far] - self.twice[near, far]
            pick = int(towards.argmin())
            if towards[pick] < least:
                least = float(towards[pick])
                self.slack[b] = rows[pick]
        return least

    def _move_labels(self, step: float) -> bool:
        """False if a free node's label would not stay above 0: the matching is done."""
        n, top, place = self.n, self.top, self.place
        label, own = self.label, self.own
        even = self.stands == _EVEN
        least = float(label[even].min())
        if least < step or math.isclose(least, step, rel_tol=_CLOSE):
            return False
        moved = label[even] - step
        self.stuck = bool((moved == label[even]).all())
        label[even] = moved
        label[self.stands == _ODD] += step
        self.tight.clear()
        for b in range(n + 1, self.last + 1):
            if top[b] == b:
                if place[b] == _EVEN:
                    own[b] += step * 2
                elif place[b] == _ODD:
                    own[b] -= step * 2
        return True

    def _follow_slacks(self) -> bool:
        """Take in the edges that the new labels made tight. Returns whether that led to a path."""
        n, top, slack, label = self.n, self.top, self.slack, self.label
        last = self.last
        u = slack[: n + 1]
        towards = label[u] + label - self.gap[u, self.everyone]
        for x in (towards <= 0).nonzero()[0].tolist():
            near = int(slack[x])
            if top[x] == x and near and top[near] != x and self._found(near, x):
                return True
        for b in range(n + 1, last + 1):
            near = int(slack[b])
            tight = top[b] == b and near and top[near] != b and self._slack_of(near, b) <= 0
            if tight and self._found(self._end(near, b), self._end(b, near)):
                return True
        return False

    def _stand(self, x: int, place: int) -> None:
        self.place[x] = place
        self.stands[x if x <= self.n else self.within[x]] = place

    # -- edges ----------------------------------------------------------------------------------------------

    def _slack_of(self, x: int, y: int) -> float:
        near, far = self._end(x, y), self._end(y, x)
        return float(self.label[near] + self.label[far] - self.twice[near, far])

    def _end(self, x: int, y: int) -> int:
        """The node of `x` at which the edge from `x` to `y` begins."""
        return x if x <= self.n else int(self._ends()[x, y])

    def _ends(self) -> NDArray[np.intp]:
        if self.ends is None:
            self.ends = np.zeros((self.size, self.size), dtype=np.intp)
            self.ends[: self.n + 1] = np.arange(self.n + 1)[:, None]
        return self.ends

    def _enqueue(self, x: int) -> None:
        """Queue all nodes of `x`, level by level."""
        level = [x]
        for part in level:
            if part <= self.n:
                self.queue.append(part)
            else:
                level += self.ring[part]

    # -- blossoms -------------------------------------------------------------------------------------------

    def _meeting(self, u: int, v: int) -> int:
        """Where the paths of two even nodes to their roots meet, 0 if they don't. Goes up both in turn."""
        self.clock += 1
        top, match, parent, seen = self.top, self.match, self.parent, self.seen
        while u or v:
            if u:
                if seen[u] == self.clock:
                    return u
                seen[u] = self.clock
                u = top[match[u]]
                if u:
                    u = top[parent[u]]
            u, v = v, u
        return 0

    def _shrink(self, u: int, base: int, v: int) -> None:
        """Shrink the odd cycle from `base` through `u` and `v` into one node."""
        n, top, match, parent = self.n, self.top, self.match, self.parent
        b = n + 1
        while b <= self.last and top[b]:
            b += 1
        if b > self.last:
            self.last = b
            for column in (self.top, self.match, self.parent, self.seen):
                column.append(0)
            self.place.append(_EVEN)
            self.ring.append([])
            self.own.append(0.0)
        self.own[b], self.place[b], match[b] = 0.0, _EVEN, match[base]
        sides = []
        for x in (u, v):
            side: list[int] = []
            while x != base:
                odd = top[match[x]]
                side += (x, odd)
                self._enqueue(odd)
                x = top[parent[odd]]
            sides.append(side)
        self.ring[b] = ring = [base, *reversed(sides[0]), *sides[1]]
        self._put(b, b)
        self._join_edges(b, ring)
        self.stands[self.within[b]] = _EVEN
        self.alone[self.within[b]] = False
        self.since[b] = len(self.rows)
        self._find_slack(b)

    def _join_edges(self, b: int, ring: list[int]) -> None:
        """Towards everyone else, the blossom keeps the edge of its parts that has the least slack."""
        ends, label, n = self._ends(), self.label, self.n
        others = slice(0, self.last + 1)
        near, far = ends[ring, others], ends[others, ring].T
        twice = self.twice[near, far]
        towards = label[near] + label[far] - twice
        joined = twice > 0
        # The released code also compares pairs that no edge joins; such a pair may displace an edge.
        pick = np.where(joined, towards, np.inf).argmin(axis=0)
        for x in np.nonzero(~joined.all(axis=0))[0].tolist():
            if self.top[x] in (0, b):
                continue  # nobody, dissolved or inside
            at = 0
            for i in range(1, len(ring)):
                if not joined[at, x] or towards[i, x] < towards[at, x]:
                    at = i
            pick[x] = at
        columns = np.arange(self.last + 1)
        ends[b, others], ends[others, b] = near[pick, columns], far[pick, columns]
        part: dict[int, int] = {}
        within, reach = np.zeros(n + 1, dtype=bool), np.zeros(n + 1, dtype=bool)
        for x in ring:
            if x <= n:
                part[x] = x
                within[x] = True
                reach |= self.edge[x]
            else:
                part.update(dict.fromkeys(self.part[x], x))
                within |= self.within[x]
                reach |= self.reach[x]
        self.part[b], self.within[b], self.reach[b] = part, within, reach

    def _find_slack(self, x: int) -> None:
        """The even node with the least slack towards `x`, of all."""
        n, label = self.n, self.label
        if x <= n:
            towards = label + label[x] - self.gap[:, x]
            towards[self.stands != _EVEN] = np.inf
        else:
            ends = self._ends()
            near, far = ends[: n + 1, x], ends[x, : n + 1]
            twice = self.twice[near, far]
            towards = label[near] + label[far] - twice
            towards[(self.stands != _EVEN) | self.within[x] | (twice <= 0)] = np.inf
        pick = int(towards.argmin())
        self.slack[x] = pick if towards[pick] < np.inf else 0

    def _put(self, x: int, outer: int) -> None:
        self.top[x] = outer
        for part in self.ring[x]:
            self._put(part, outer)

    def _dissolve(self, b: int) -> None:
        """Dissolve an odd blossom whose label is 0; the even way round from its entry stays in the tree."""
        parent, ring = self.parent, self.ring[b]
        for x in ring:
            self._put(x, x)
            if x <= self.n:
                self.alone[x] = True
        entry = self.part[b][self._end(b, parent[b])]
        at = self._turn(b, entry)
        ring = self.ring[b]
        for i in range(0, at, 2):
            odd, even = ring[i], ring[i + 1]
            parent[odd] = self._end(even, odd)
            self._stand(odd, _ODD)
            self._stand(even, _EVEN)
            self.slack[odd] = 0
            self._find_slack(even)
            self._enqueue(even)
        self._stand(entry, _ODD)
        parent[entry] = parent[b]
        for x in ring[at + 1 :]:
            self._stand(x, _OUTSIDE)
            self._find_slack(x)
        self.top[b] = 0

    def _turn(self, b: int, part: int) -> int:
        """An even position of `part` in the ring, which is reversed if need be."""
        ring = self.ring[b]
        at = ring.index(part)
        if at % 2 == 0:
            return at
        self.ring[b] = [ring[0], *reversed(ring[1:])]
        return len(ring) - at

    # -- the matching ---------------------------------------------------------------------------------------

    def _match_along(self, u: int, v: int) -> None:
        """Match `u` to `v`, and swap matched and unmatched edges on the path from `u` to its root."""
        top, match, parent = self.top, self.match, self.parent
        while True:
            before = top[match[u]]
            self._set_match(u, v)
            if before == 0:
                return
            above = top[parent[before]]
            self._set_match(before, above)
            u, v = above, before

    def _set_match(self, u: int, v: int) -> None:
        self.match[u] = self._end(v, u)
        if u <= self.n:
            return
        part = self.part[u][self._end(u, v)]
        at = self._turn(u, part)
        ring = self.ring[u]
        for i in range(at):
            self._set_match(ring[i], ring[i ^ 1])
        self._set_match(part, v)
        self.ring[u] = ring[at:] + ring[:at]
