"""What policies share that don't know GPU models: a running job may still move to a faster one that stands idle.

See `placement/upgrades.py` for who moves. The policy's own order decides who runs; a move changes only where.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpuloom.core.decision import Decision, Placement
from gpuloom.core.snapshot import Snapshot
from gpuloom.core.sums import sum_ints
from gpuloom.placement.upgrades import Upgrades, merged
from gpuloom.policies.base import Parameter, Policy, yes_or_no

UPGRADE = Parameter(
    "upgrade",
    True,
    yes_or_no,
    "running jobs move to faster GPUs that stand idle, if they end sooner so, restart counted; no: the textbook's rule",
    "yes",
)


class Upgrading(Policy):
    """Call `upgraded` with each decision. knows_ends: goes by when jobs end; else by how long they have run."""

    knows_ends: bool = False
    _upgrades: Upgrades | None = None

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)
        self.moves_running = bool(self.values[UPGRADE.name])

    def upgraded(
        self,
        snapshot: Snapshot,
        decision: Decision,
        tell: Callable[[int, Placement], None] | None = None,
        *,
        in_order: bool = False,
    ) -> Decision:
        """The decision, with moves to faster idle GPUs, of running jobs and of those that it starts.

        Args:
            tell: called with each job that moves, and where to: for books that the policy keeps.
            in_order: GPUs that are free while jobs wait are kept for the first of these, and do not stand idle.
        """
        upgrades, workload, cluster = self._upgrades, snapshot.workload, snapshot.cluster
        if upgrades is None or upgrades.workload is not workload or upgrades.cluster is not cluster:
            if not self.values[UPGRADE.name]:
                return decision
            sharing = self.sharing(workload)
            self._upgrades = upgrades = Upgrades(workload, cluster, known=self.knows_ends, sharing=sharing)
        if not upgrades.possible or not (snapshot.placements or decision.run):
            return decision
        starts = sum_ints([job not in snapshot.placements for job in decision.run])
        waits = snapshot.waiting_count + len(decision.wait) > starts
        if in_order and waits:
            return decision
        # Running jobs that must stay only matter for when to look again.
        starts_only = not snapshot.may_preempt and decision.wake_at_s <= snapshot.now_s
        if starts_only and not starts:
            return decision
        moves = upgrades.plan(snapshot, decision, self.explains, starts_only=starts_only)
        if not moves.to:
            return decision if moves.look_s >= decision.wake_at_s else merged(decision, moves)
        if tell is not None:
            for job, placement in moves.to.items():
                tell(job, placement)
        if waits:
            moves.look_s = snapshot.now_s  # what they leave may serve a job that waits
        return merged(decision, moves)
