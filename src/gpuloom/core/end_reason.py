"""Why an attempt of a job ended. The runner loads it: light, and of the standard library alone."""

from __future__ import annotations

from enum import StrEnum


class EndReason(StrEnum):
    """Why an attempt ended."""

    FINISHED = "finished"
    """Exit code 0."""
    FAILED = "failed"
    """Another exit code, or a signal that gpuloom did not send."""
    PREEMPTED = "preempted"
    """Stopped for other jobs; it goes on later."""
    RESIZED = "resized"
    """Stopped to go on at once with another number of replicas."""
    TIMED_OUT = "timed_out"
    """It reached its time limit."""
    CANCELLED = "cancelled"
    """Its user ended it."""
    REQUEUED = "requeued"
    """Its user put it back into the queue."""
    LOST = "lost"
    """Its process is gone, and how it ended is unknown (the machine went down)."""
    OUT_OF_MEMORY = "out_of_memory"
    """It was killed for using more memory than it may."""
    NOT_STARTED = "not_started"
    """Its program could not be started (no such file, no permission, …)."""
    NODE = "node"
    """Its node or GPU was taken out of service."""
    PEER = "peer"
    """Of a member of a gang: another member ended, and the gang with it."""
