"""The seat of the policy: which one was set, what it has learnt and written down, and who sits in for it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from gpuloom.live.planning.asking import Call, PolicyFailure
from gpuloom.live.planning.chosen import learn, made, read, recalled
from gpuloom.live.planning.standby import FALLBACK, Standby
from gpuloom.live.planning.world import Memory
from gpuloom.policies.base import Policy

LEARN_EVERY = 20
"""After so many ends the policy is told anew what jobs that ended took."""


class Seat:
    """Used by the scheduler's thread alone, but for `written`, `interval_s` and what `standby` says of itself.

    Attributes:
        written: the policy that was set, as it was written. interval_s: at which it was set to decide.
        saved: its memory as it was written down last. standby: whether the fallback sits in for it.
        caught: the last failure, with its traceback, for whoever logs it.
    """

    def __init__(
        self,
        ended_gpu_s: Callable[[], Sequence[float]],
        *,
        written: str,
        interval_s: float,
        beside: bool,
        saved: bytes | None,
    ) -> None:
        """As of `Planning`."""
        self.written, self.interval_s, self.saved = written, interval_s, saved
        self.standby = Standby()
        self.caught: PolicyFailure | None = None
        self._ended_gpu_s, self._beside = ended_gpu_s, beside
        self._ends = 0
        """Ends since the policy was told what jobs that ended took."""

    @property
    def serves(self) -> str:
        """The policy that decides, as written."""
        return FALLBACK if self.standby.serving else self.written

    def made(self, written: str) -> Policy:
        """A policy to go on with. Raises PolicyError: no such policy, a bad parameter, or it fails to begin."""
        return made(written, beside=self._beside, ended_gpu_s=self._ended_gpu_s())

    def set(self, written: str, interval_s: float) -> None:
        """Another policy was set, or this one anew."""
        self.standby.reset()
        self.standby.unwritten = None
        self.written, self.interval_s, self.saved = written, interval_s, None
        self._ends = 0

    def fails(self, error: Exception, now_s: float, jobs: Hashable) -> Policy:
        """The policy has failed: the fallback, which decides from now on. jobs: what there is to decide about."""
        how = error if isinstance(error, PolicyFailure) else PolicyFailure(Call.BEGIN, error, None)
        self.caught, self._ends = how, 0
        self.standby.fails(self.written, how, now_s, jobs)
        return read(FALLBACK)

    def tries(self) -> tuple[Policy, Memory]:
        """The policy that failed, to decide again, and its memory. The second time it begins anew, without what it
        remembered.

        Raises:
            PolicyError: it can't.
        """
        failure = self.standby.failure
        policy = self.made(self.written)
        again = failure is not None and failure.times == 1 and failure.call is not Call.CARRIED
        self.standby.tries()
        self._ends = 0
        return policy, recalled(policy, self.saved) if again else Memory()

    def ended(self) -> None:
        """A job has ended."""
        self._ends += 1

    def teach(self, policy: Policy) -> None:
        """Tell the policy that decides what jobs that ended took, if there are new ones enough."""
        if self._ends >= LEARN_EVERY:
            learn(policy, self._ended_gpu_s())
            self._ends = 0
