"""When the policy is asked next if nothing happens: one rule for the simulator and the live scheduler."""

from __future__ import annotations

import math

from gpuloom.core.units import is_multiple, next_multiple


def next_alarm_s(now_s: float, wake_s: float, *, interval_s: float, aligned: bool, pending: bool) -> float:
    """When the policy is asked next, seconds; infinity: not before something happens.

    Args:
        now_s: when it was asked last. wake_s: when it wants to be asked (infinity: it does not).
        interval_s: the scheduling interval. aligned: what it wants to look at is decided at an interval.
        pending: there is something that the next interval has to look at.
    """
    alarm = wake_s
    if aligned and wake_s < math.inf:
        alarm = wake_s if is_multiple(wake_s, interval_s) else next_multiple(wake_s, interval_s)
        alarm = max(alarm, next_multiple(now_s, interval_s))
    return min(alarm, next_multiple(now_s, interval_s)) if pending else alarm
