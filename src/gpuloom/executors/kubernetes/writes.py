"""What may be written for an attempt, each write as a value: `wanted.py` asks for them, `writer.py` carries
them out."""

from __future__ import annotations

from dataclasses import dataclass

from gpuloom.executors.kubernetes.kinds import JobKind


@dataclass(frozen=True, slots=True)
class CreateJob:
    """Make its Job."""


@dataclass(frozen=True, slots=True)
class Adopt:
    """Take a pod that somebody else has made as this member."""

    rank: int
    uid: str
    name: str


@dataclass(frozen=True, slots=True)
class FindJob:
    """See whether its Job was made, or pods were taken, where the answer was lost."""


@dataclass(frozen=True, slots=True)
class MakeSecret:
    """Make the Secret with its variables, before any of its pods is let go. It goes with the Job of this uid."""

    uid: str


@dataclass(frozen=True, slots=True)
class Begin:
    """Make what goes with a suspended Job, and have its pods made. uid: of the Job."""

    uid: str


@dataclass(frozen=True, slots=True)
class LetIn:
    """Let a PodGroup in, where Volcano's scheduler does not run."""

    group: str


@dataclass(frozen=True, slots=True)
class Open:
    """Let a pod go, to its node."""

    rank: int
    uid: str


@dataclass(frozen=True, slots=True)
class Note:
    """Write on a pod why it is ended."""

    rank: int
    uid: str
    reason: str


@dataclass(frozen=True, slots=True)
class DeleteJob:
    """Its pods go with it; those that have run are kept by their finalizers."""

    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class DeletePod:
    """Notice, and the end at a time. until_s: monotonic."""

    rank: int
    uid: str
    until_s: float


@dataclass(frozen=True, slots=True)
class SetLimit:
    """Write a changed time limit on a pod. limit_s: seconds; None: none any more."""

    rank: int
    uid: str
    limit_s: float | None


@dataclass(frozen=True, slots=True)
class TakeEnd:
    """Fetch what is left of its log, and take its end down."""

    rank: int
    uid: str


@dataclass(frozen=True, slots=True)
class Replace:
    """Take a pod away whose member failed, so that another one is made: the others train on."""

    rank: int
    uid: str


@dataclass(frozen=True, slots=True)
class Release:
    """Take our finalizer off."""

    rank: int
    uid: str


@dataclass(frozen=True, slots=True)
class GiveBack:
    """Leave nothing of ours on a Job that somebody else has made."""

    name: str
    uid: str
    kind: JobKind


@dataclass(frozen=True, slots=True)
class TakeOver:
    """Take the Job of the attempt before over, at this one's size: one guarded patch."""

    name: str
    before: str
    kind: JobKind


@dataclass(frozen=True, slots=True)
class Leave:
    """Take the end of a member down that goes on in the next attempt."""

    rank: int
    uid: str


@dataclass(frozen=True, slots=True)
class Shrink:
    """Have the members behind the first `to` ones ended: one guarded patch."""

    name: str
    replicas: int
    to: int


@dataclass(frozen=True, slots=True)
class Relabel:
    """Write on a pod that goes on of which attempt it is now."""

    rank: int
    uid: str


Write = (
    CreateJob
    | Adopt
    | FindJob
    | MakeSecret
    | Begin
    | LetIn
    | Open
    | Note
    | DeleteJob
    | DeletePod
    | SetLimit
    | TakeEnd
    | Replace
    | Release
    | GiveBack
    | TakeOver
    | Leave
    | Shrink
    | Relabel
)
