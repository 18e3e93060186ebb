"""Who decides when the policy fails: the fallback, until the policy works again.

A policy that fails costs one decision. The fallback answers in its place at once; the policy is asked again after a
pause that doubles each time, and sooner when jobs have come or left. It works again when it has decided for as long as
the last pause without failing: one that fails now and then is not told as many failures.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import asdict, dataclass, replace
from typing import Any

from gpuloom.live.planning.asking import Call, PolicyFailure

FALLBACK = "fifo"
"""Decides while the policy that was set fails: the plainest one, which stops nobody."""
FIRST_PAUSE_S = 5.0
MOST_PAUSE_S = 600.0


@dataclass(frozen=True, slots=True)
class Failure:
    """That a policy fails, and how it did last.

    call: what it was asked for. where: the line of its code. since_s, last_s: the first and the last time; times: how
    often. serves: the policy that decides now (itself, if only its memory can't be written down).
    """

    policy: str
    call: Call
    error: str
    where: str
    since_s: float
    last_s: float
    times: int
    serves: str

    def text(self, clock: str) -> str:
        """In a sentence; clock: `since_s` for people."""
        how = f"{self.error}{f' ({self.where})' if self.where else ''}"
        often = "" if self.times == 1 else f", {self.times} times"
        if self.call is Call.WRITE_MEMORY:
            after = "it still decides, but forgets what it knows when the scheduler restarts"
            return f"the memory of policy {self.policy} can't be saved since {clock}: {how}; {after}"
        if self.serves == self.policy:
            after = "it is in use again, on trial"
        elif self.serves:
            after = f"{self.serves} is used in its place until it works again"
        else:
            after = "the fallback policy fails as well: no job is started"
        return f"policy {self.policy} fails since {clock}{often}: {how}, in {self.call.value}; {after}"

    def to_json(self) -> dict[str, Any]:
        """As events hold it."""
        return {**asdict(self), "call": self.call.value}


class Standby:
    """Used by the scheduler's thread alone, but for `failure` and `unwritten`, which anyone may read.

    Attributes:
        failure: how the policy fails, while it does. unwritten: that its memory can't be written down.
        serving: the fallback decides. again_s: when the policy is asked again, then.
    """

    def __init__(self) -> None:
        self.failure: Failure | None = None
        self.unwritten: Failure | None = None
        self.serving = False
        self.again_s = math.inf
        self._pause_s = FIRST_PAUSE_S
        self._jobs: Hashable = None
        self._works_since_s = math.inf

    @property
    def settles_s(self) -> float:
        """When a policy that is on trial will have passed it; infinity: none is."""
        return self._works_since_s + self._pause_s

    def fails(self, policy: str, how: PolicyFailure, now_s: float, jobs: Hashable) -> None:
        """The policy has failed; the fallback decides from now on. jobs: what there is to decide about."""
        before = self.failure
        if before is None:
            self._pause_s = FIRST_PAUSE_S
            self.failure = Failure(policy, how.call, how.error, how.where, now_s, now_s, 1, FALLBACK)
        else:
            self._pause_s = min(2 * self._pause_s, MOST_PAUSE_S)
            self.failure = Failure(
                policy, how.call, how.error, how.where, before.since_s, now_s, before.times + 1, FALLBACK
            )
        self.serving, self.again_s = True, now_s + self._pause_s
        self._jobs, self._works_since_s = jobs, math.inf

    def cannot_write(self, policy: str, how: PolicyFailure, now_s: float) -> None:
        """The policy's memory can't be written down; it decides all the same."""
        since_s, times = (now_s, 0) if self.unwritten is None else (self.unwritten.since_s, self.unwritten.times)
        self.unwritten = Failure(policy, how.call, how.error, how.where, since_s, now_s, times + 1, policy)

    def nobody_serves(self) -> None:
        """The fallback has failed too."""
        if self.failure is not None:
            self.failure = replace(self.failure, serves="")

    def asks_again(self, now_s: float, jobs: Hashable) -> bool:
        """Whether it is time to ask the policy again."""
        if self.failure is None or not self.serving:
            return False
        if jobs != self._jobs:
            self.again_s = min(self.again_s, self.failure.last_s + FIRST_PAUSE_S)
        return now_s >= self.again_s

    def tries(self) -> None:
        """The policy decides again, on trial."""
        self.serving, self.again_s = False, math.inf
        if self.failure is not None:
            self.failure = replace(self.failure, serves=self.failure.policy)

    def decided(self, now_s: float) -> None:
        """The policy, not the fallback, has decided without failing."""
        if self.failure is not None and not self.serving:
            self._works_since_s = min(self._works_since_s, now_s)

    def recovered(self, now_s: float) -> Failure | None:
        """The failure that is over now, until `reset` is called."""
        return None if now_s < self.settles_s else self.failure

    def reset(self) -> None:
        """Another policy was set, or this one anew."""
        self.failure, self.serving, self.again_s = None, False, math.inf
        self._pause_s, self._works_since_s = FIRST_PAUSE_S, math.inf
