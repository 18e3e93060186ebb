"""`gavel:packed`: jobs that share GPUs in pairs, by measured speeds, are rows of Gavel's program, too.

Narayanan et al. (OSDI'20), section 3.1 ("space sharing"): besides each job alone, every two jobs of equally many GPUs
may run together, at the throughputs that were measured. X_rj is the share of time of row r on model j; a job's shares
in all of its rows add up to at most 1. The objective is max-min fairness of the jobs' throughputs over all rows.

Jobs that are alike (speeds, GPUs, weight, measured pairs) stand as one in the program, and two such kinds as one row:
all their pairs share its time evenly. Rounds then go by what each job is to have alone, and beside a job of each kind,
over what it had so since the last allocation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations_with_replacement

import numpy as np
from numpy.typing import NDArray

from gpuloom.core.decision import NOTHING, Decision, Place, Placement
from gpuloom.core.pairs import NO_KIND
from gpuloom.core.snapshot import Snapshot
from gpuloom.core.units import next_multiple
from gpuloom.core.workload import F8, Workload
from gpuloom.interleave.efficiency import Interleaving
from gpuloom.interleave.groups import GroupTimes
from gpuloom.interleave.worth import GroupSharing
from gpuloom.placement.pool import Pool, pools_of
from gpuloom.placement.shared import SharedPlacer
from gpuloom.policies.gavel_ledger import Memory
from gpuloom.policies.gavel_rounds import Cluster, Terms
from gpuloom.solvers.shares import Rows, Shares

Group = tuple[int, ...]


class PairSharing(GroupSharing):
    """Jobs beside each other at their measured speeds, each in a process of its own."""

    starts_together = False

    def __init__(self, workload: Workload) -> None:
        super().__init__(GroupTimes(workload, Interleaving()))


class PackedRounds(Cluster):
    """Rounds at multiples of their length; GPUs that fall free in between go to waiting jobs at once.

    Of the memory, `beside[m, j · (kinds + 1) + k]` is the share of its time for which job m is to be on model j beside
    a job of pair kind k (the last one: alone), `beside_s` the seconds for which it was since the last allocation.
    """

    def __init__(self, snapshot: Snapshot, memory: Memory, terms: Terms) -> None:
        super().__init__(snapshot, memory, terms)
        workload, models = snapshot.workload, len(self.pools)
        pairs = workload.pairs
        kinds = 0 if pairs is None else len(pairs.kinds)
        self._alone = kinds
        self._pair_kind = np.full(len(workload), NO_KIND) if pairs is None else pairs.of_job
        self._share = np.full((models, kinds + 1, kinds + 1), np.nan)
        """By model, what a job of a kind keeps of its speed beside one of another; NaN where it was not measured."""
        for model, name in enumerate(snapshot.cluster.models):
            known = None if pairs is None else pairs.on(name)
            if known is not None:
                self._share[model, :kinds, :kinds] = known
        profile = np.column_stack([self._kind, self._pair_kind])
        _, alike = np.unique(profile, axis=0, return_inverse=True)
        self._alike = alike.reshape(-1)
        self._placer = SharedPlacer(snapshot, layers=2, first_fit=False, restart_partners=False, moves_models=True)

    def decide(self, snapshot: Snapshot) -> Decision:
        self._account(snapshot.now_s)
        decision = self._decide(snapshot)
        for jobs in self._together().values():
            for job in jobs:
                other = next((one for one in jobs if one != job), None)
                self.memory.mate[job] = self._alone if other is None else self._pair_kind[other]
        return decision

    def _decide(self, snapshot: Snapshot) -> Decision:
        now_s, memory = snapshot.now_s, self.memory
        freed = self.observe(snapshot)
        if not self.present:
            return NOTHING
        waiting = len(self.present) > len(self.where)
        if now_s >= memory.round_at_s:
            memory.round_at_s = next_multiple(now_s, self.terms.round_s)
            decision = self._round(snapshot)
        elif waiting and (freed or snapshot.arrived) and snapshot.free_gpus:
            decision = self._fill(snapshot)
        else:
            decision = NOTHING
        return Decision(decision.run, decision.wait, memory.round_at_s)

    def observe(self, snapshot: Snapshot) -> bool:
        """Take in what happened; whether GPUs may have come free."""
        if snapshot.finished or snapshot.arrived:
            self.memory.stale = True
        gone = (*snapshot.finished, *snapshot.evicted)
        for job in gone:
            self.where.pop(job, None)
            self.memory.on[job] = -1
        for job in snapshot.finished:
            self.present.pop(job, None)
        self.present.update(dict.fromkeys(snapshot.arrived))
        return bool(gone or snapshot.nodes_up)

    # -- time -----------------------------------------------------------------------------------------------

    def _account(self, now_s: float) -> None:
        """Count the time that jobs have run, and beside whom, since the last call."""
        memory, width = self.memory, self._alone + 1
        elapsed = now_s - memory.since_s
        memory.since_s = now_s
        if elapsed > 0:
            on = {job: memory.on.item(job) for job in self.where} | self.lost
            for job, model in on.items():
                memory.beside_s[job, model * width + memory.mate.item(job)] += elapsed
                memory.receive(job, model, elapsed)
        self.lost.clear()

    def _together(self) -> dict[Place, list[int]]:
        found: dict[Place, list[int]] = {}
        for job, place in self.where.items():
            found.setdefault((place.nodes, place.masks), []).append(job)
        return found

    # -- the program ----------------------------------------------------------------------------------------

    def _allocate(self, snapshot: Snapshot) -> None:
        memory = self.memory
        if not memory.stale or snapshot.now_s < memory.solved_at_s + self.terms.reset_s:
            return
        jobs, present = self.described(snapshot)
        _, first, member = np.unique(self._alike[jobs], return_index=True, return_inverse=True)
        member = member.reshape(-1)
        count = np.bincount(member).astype(np.float64)
        kind = self._pair_kind[jobs[first]].astype(np.intp)
        rows, ends = self._rows(present.speed[first], present.gpus[first], count, kind)
        level = (present.gpus / present.equal)[first]
        weight = present.weight[first]
        share = Shares(rows, present.capacity, weight / level).fair(weight * level)[0]
        memory.allocate(jobs, snapshot.now_s, self.terms.round_s)
        memory.beside_s[:] = 0.0
        beside = np.zeros((len(first), share.shape[1], self._alone + 1))
        for entry, other in enumerate(ends):
            row, one = rows.row[entry], rows.job[entry]
            beside[one, :, other] += share[row] * rows.parts[entry]
        memory.beside[jobs] = beside.reshape(len(first), -1)[member]
        memory.share[jobs] = beside.sum(axis=2)[member]

    def _rows(self, speed: F8, gpus: F8, count: F8, kind: NDArray[np.intp]) -> tuple[Rows, list[int]]:
        """A row for each kind of job alone and for each two that may share; of each entry the pair kind beside it."""
        n = len(count)
        row, job, part, throughput = list(range(n)), list(range(n)), [1.0] * n, [speed]
        of_row, alike, ends = [*gpus.tolist()], [*count.tolist()], [self._alone] * n
        able = [one for one in range(n) if kind[one] != NO_KIND]
        for one, two in combinations_with_replacement(able, 2):
            if one == two and count[one] < 2:
                continue
            mine, its = self._share[:, kind[one], kind[two]], self._share[:, kind[two], kind[one]]
            fits = (np.nan_to_num(mine) > 0) & (np.nan_to_num(its) > 0)
            # No better than taking turns is no use to anybody.
            fits &= np.nan_to_num(mine) + np.nan_to_num(its) > 1.0
            if not (fits & (speed[one] > 0) & (speed[two] > 0)).any():
                continue
            fewer = min(count[one], count[two])
            sides = [(one, two, mine, fewer / count[one]), (two, one, its, fewer / count[two])]
            for here, there, share, of_time in sides[: 1 if one == two else 2]:
                row.append(len(of_row))
                job.append(here)
                part.append(of_time)
                throughput.append(np.where(fits, speed[here] * np.nan_to_num(share), 0.0)[None, :])
                ends.append(int(kind[there]))
            of_row.append(float(gpus[one]))
            alike.append(fewer / 2 if one == two else fewer)
        made = Rows(
            np.array(of_row),
            np.array(alike),
            np.array(row, dtype=np.intp),
            np.array(job, dtype=np.intp),
            np.concatenate(throughput),
            n,
            np.array(part),
            count,
        )
        return made, ends

    # -- rounds ---------------------------------------------------------------------------------------------

    def _round(self, snapshot: Snapshot) -> Decision:
        self._allocate(snapshot)
        running = self._placer.together(snapshot)
        rooms = self._placer.empty_pools(snapshot)
        groups: list[Group] = []
        places: list[Placement] = []
        placed: set[int] = set()
        for place, jobs in running.items():
            # Where starts take longer than rounds nobody would ever end.
            if any(snapshot.now_s - snapshot.works_from_s(job) < snapshot.again_s[job] for job in jobs):
                self._add(tuple(jobs), Placement(*place), groups, places, placed)
                rooms[self._pool_of_node[place[0][0]]].claim(Placement(*place))
        jobs_here = np.array(list(self.present), dtype=np.intp)
        for model in np.argsort(-self.speed[jobs_here].sum(axis=0), kind="stable").tolist():
            chosen = self._chosen(jobs_here, model, rooms[model].free_gpus, placed)
            for group in sorted(chosen, key=lambda group: -self.gpus(group[0])):
                taken = rooms[model].take(self.gpus(group[0]))
                if taken is not None:
                    self._add(group, taken, groups, places, placed)
        for job in self._in_order(jobs_here, placed):
            if (taken := self._fastest(job, rooms)) is not None:
                self._add((job,), taken, groups, places, placed)
        decision = self._placer.settle(snapshot, groups, places, running)
        for job in decision.wait:
            self.where.pop(job)
            self.memory.on[job] = -1
        self._run(decision.run)
        return decision if decision.run or decision.wait else NOTHING

    def _fill(self, snapshot: Snapshot) -> Decision:
        """Give free GPUs to waiting jobs, alone."""
        run: dict[int, Placement] = {}
        rooms = pools_of(snapshot.cluster, snapshot.idle_masks)
        waiting = np.array([job for job in self.present if job not in self.where], dtype=np.intp)
        for job in self._in_order(waiting, set()):
            if (taken := self._fastest(job, rooms)) is not None:
                run[job] = taken
        self._run(run)
        return Decision(run) if run else NOTHING

    def _run(self, run: Mapping[int, Placement]) -> None:
        for job, place in run.items():
            self.where[job] = place
            self.memory.on[job] = self._pool_of_node[place.nodes[0]]

    def _add(
        self, group: Group, place: Placement, groups: list[Group], places: list[Placement], placed: set[int]
    ) -> None:
        groups.append(group)
        places.append(place)
        placed.update(group)

    def _fastest(self, job: int, rooms: Sequence[Pool]) -> Placement | None:
        """GPUs of the model on which the job is fastest, of those that have room."""
        for model in np.argsort(-self.speed[job], kind="stable").tolist():
            taken: Placement | None = rooms[model].take(self.gpus(job)) if self.speed[job, model] > 0 else None
            if taken is not None:
                return taken
        return None

    def _in_order(self, jobs: NDArray[np.intp], placed: set[int]) -> list[int]:
        """Jobs without GPUs in the order in which they get what nobody else is to have: those that are most behind."""
        rest = [job for job in jobs.tolist() if job not in placed]
        had_s = self.memory.received_s[rest].sum(axis=1) if rest else np.zeros(0)
        owed = self.memory.share[rest].sum(axis=1) if rest else np.zeros(0)
        return [rest[at] for at in np.lexsort((had_s, -owed)).tolist()]

    def _chosen(self, jobs: NDArray[np.intp], model: int, free: int, placed: set[int]) -> list[Group]:
        """Jobs and pairs for one model: those first that are most behind."""
        width, alone = self._alone + 1, self._alone
        columns = slice(model * width, (model + 1) * width)
        share = self.memory.beside[jobs, columns]
        priority = share / (self.memory.beside_s[jobs, columns] + self.terms.round_s / 2)
        order = np.argsort(-priority, axis=None, kind="stable")
        order = order[priority.ravel()[order] > 0]
        of_kind: dict[int, list[int]] = {}
        for at, kind in enumerate(self._pair_kind[jobs].tolist()):
            if kind != NO_KIND:
                of_kind.setdefault(kind, []).append(at)
        taken: set[int] = set(placed)
        found: list[Group] = []
        for entry in order.tolist():
            if free <= 0:
                break
            at, kind = divmod(entry, width)
            job = int(jobs[at])
            if job in taken or self.gpus(job) > free:
                continue
            group: Group = (job,)
            if kind != alone:
                mine = int(self._pair_kind[job])
                others = [other for other in of_kind.get(kind, ()) if other != at and int(jobs[other]) not in taken]
                if not others:
                    continue
                best = max(others, key=lambda other: float(priority[other, mine]))
                if not priority[best, mine] > 0:
                    continue
                group = (job, int(jobs[best]))
            found.append(group)
            taken.update(group)
            free -= self.gpus(job)
        return found
