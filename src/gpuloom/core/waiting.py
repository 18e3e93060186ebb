"""How long one call may wait.

epoll, poll and sockets count milliseconds in 31 bits (24.86 days), and other calls refuse larger numbers. A longer wait
is made of several calls.
"""

from __future__ import annotations

MOST_WAIT_S = 3600.0


def one_wait_s(seconds: float) -> float:
    """What to hand to a call that waits: from 0 to `MOST_WAIT_S`. After it, look again whether the time has come."""
    return min(max(seconds, 0.0), MOST_WAIT_S)
