"""When the policy is asked next, and whether it may stop running jobs then: one rule, simulated and live.

It is asked
1. when something happens (a job comes or ends, a node fails, …);
2. when it asked to be woken (`Decision.wake_at_s`);
3. at the next multiple of the interval, if some jobs wait and some run, and one of two things holds: running jobs are
   stopped for others only at intervals (`Policy.preempts_at_intervals`) and the present time is not one, or priorities
   change as time passes (`Policy.periodic`).
If running jobs are stopped only at intervals, 2 waits for the next multiple, and at 1 the policy must not stop them. In
rounds everything waits for the next multiple.

The live loop adds two rules: there is a least pause between two calls (`least_pause_s`), and the policy is asked again
when a job has not ended by its expected time (`overrun_s`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from gpuloom.core.units import is_multiple, next_multiple
from gpuloom.policies.base import Policy

LEAST_OVERRUN_S = 1.0
OVERRUN_PASSES = 20.0
"""An overrun is looked at after this many times the duration of a pass: scheduling must not use up the machine."""


@dataclass(frozen=True, slots=True)
class Clockwork:
    """See the module. Times in seconds; infinity: not before something happens.

    gated: running jobs are stopped for others at multiples of the interval only. periodic: the policy is asked at each
    of them while some jobs wait and some run. rounds: it is asked at them only. aligned: gated, or in rounds.
    plain: neither aligned nor periodic: it may always preempt, and is asked next when it wants. A loop may then skip
        the questions below.
    """

    interval_s: float
    gated: bool
    periodic: bool
    rounds: bool
    aligned: bool
    plain: bool
    least_pause_s: float

    @classmethod
    def of(
        cls,
        policy: Policy,
        interval_s: float,
        *,
        rounds: bool = False,
        every_event: bool = False,
        least_pause_s: float = -math.inf,
    ) -> Clockwork:
        """The clockwork of a policy. every_event: whatever it says, jobs are stopped for others at every event."""
        gated = interval_s > 0 and policy.preempts_at_intervals and not (rounds or every_event)
        periodic = interval_s > 0 and policy.periodic
        plain = not (gated or rounds or periodic) and least_pause_s == -math.inf
        return cls(interval_s, gated, periodic, rounds, gated or rounds, plain, least_pause_s)

    def may_preempt(self, now_s: float, due_s: float) -> bool | None:
        """Whether the policy may stop running jobs for others if it is asked now; None: it is not asked now.

        due_s: when it was due, by `due_s`. A loop on a real clock is late, but never early.
        """
        if not self.aligned or now_s >= due_s or is_multiple(now_s, self.interval_s):
            return True
        return None if self.rounds else False

    def due_s(
        self, now_s: float, wake_s: float, may_preempt: bool | None, waiting: int, running: int, unseen: bool = False
    ) -> float:
        """When the policy is asked next if nothing happens.

        Args:
            now_s: the time of the last event. wake_s: when the policy last said that it wants to be asked.
            may_preempt: what it was told now; None: it was not asked.
            waiting, running: numbers of such jobs after its decision.
            unseen: whether something happened about which it has not been asked (in rounds).
        """
        due_s, step_s = wake_s, self.interval_s
        if not self.aligned or step_s < self.least_pause_s:
            due_s = max(due_s, now_s + self.least_pause_s)  # else multiples are pause enough, and none is left out
        if self.aligned and due_s < math.inf:
            due_s = due_s if is_multiple(due_s, step_s) else next_multiple(due_s, step_s)
            due_s = max(due_s, next_multiple(now_s, step_s))
        if unseen or (waiting and running and (self.periodic or (self.gated and not may_preempt))):
            due_s = min(due_s, next_multiple(now_s, step_s))
        return due_s


def overrun_s(now_s: float, stands_until_s: float, pass_s: float) -> float:
    """When the policy is asked because a job has not ended. For a live loop, while jobs wait.

    stands_until_s: until when the expected ends of running jobs hold. pass_s: how long asking takes.
    """
    return max(stands_until_s, now_s + max(LEAST_OVERRUN_S, OVERRUN_PASSES * pass_s))
