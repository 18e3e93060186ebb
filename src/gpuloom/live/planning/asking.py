"""Calls of a policy's code, which may be anybody's: what it raises is a failure of that policy, and of nothing else."""

from __future__ import annotations

from enum import StrEnum
from types import TracebackType

from gpuloom.core.errors import PolicyError
from gpuloom.policies.base import Policy
from gpuloom.policies.blame import said, where


class Call(StrEnum):
    """What a policy was asked for."""

    BEGIN = "begin"
    """It is loaded and made."""
    LEARN_FROM = "learn_from"
    NEW_MEMORY = "new_memory"
    CARRIED = "carried"
    SHARING = "sharing"
    SEES = "sees"
    DECIDE = "decide"
    """The check of its plan included."""
    REASON = "reason"
    DESCRIBE = "describe"
    WRITE_MEMORY = "write memory"
    READ_MEMORY = "read memory"


class PolicyFailure(PolicyError):  # noqa: N818 - the name says it
    """A policy's code raised something, or answered what can't be used.

    Attributes:
        call: what it was asked for. error: what it raised, in words. where: the line of its code, '' if unknown.
    """

    def __init__(self, call: Call, error: BaseException, policy: Policy | None) -> None:
        self.call, self.error, self.where = call, said(error), where(error, policy)
        super().__init__(f"{self.error}{f' ({self.where})' if self.where else ''}, in {call.value}")


class Asking:
    """`with Asking(call, policy):` around a call of a policy: all that comes out of it is a `PolicyFailure`.

    Also what ends a program elsewhere (SystemExit, KeyboardInterrupt): here it is the policy that raised it.
    """

    def __init__(self, call: Call, policy: Policy | None) -> None:
        self._call, self._policy = call, policy

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and not isinstance(error, PolicyFailure):
            raise PolicyFailure(self._call, error, self._policy) from error
