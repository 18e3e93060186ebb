"""What the policy that decides shows of itself, on a live scheduler."""

from __future__ import annotations

from gpuloom.core.policy_state import PolicyState
from gpuloom.live.planning.asking import Asking, Call
from gpuloom.live.planning.planning import Planning


def state_of(planning: Planning, now_s: float) -> PolicyState | None:
    """The state of the policy that decides; None: it has not been asked yet. With jobs of several priorities it is that
    of the last pass, which does not see all of them. In the scheduler's thread.

    Raises:
        PolicyFailure: the policy can't say.
    """
    world = planning.world or (planning.seen[-1] if planning.seen else None)
    if world is None:
        return None
    snapshot = world.engine.snapshot
    snapshot.now_s = now_s
    with Asking(Call.DESCRIBE, world.policy):
        return world.policy.describe(snapshot, world.engine.memory)
