"""What head and node say to each other, as data.

Two kinds of text frames (JSON objects) go over the link. *Messages* are numbered, each side's own, and arrive once and
in order however often the link breaks (`stream.py`): ``{"n": 7, "m": {"kind": "stop", …}, "ack": 4}``. All else goes
for the moment: greetings (`Hello`, `Welcome`, `Refused`), heartbeats (``{"beat": S, "ack": 4}`` of the node, echoed as
``{"beaten": S, "ack": 7}``; S, nanoseconds, is the node's own business), ``{"hold": SECONDS}`` of a head that ends in
order (until so long after the last heartbeat that was answered the node's runs may go on), and questions of the head
(``{"ask": 3, "what": "read_log", "with": {…}}``) with their answers (``{"reply": 3, "data": …}`` or ``"error"``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, Union

from gpuloom.agent.sample import Sample
from gpuloom.core.end_reason import EndReason
from gpuloom.core.job import Gpu, NodeRecord
from gpuloom.executors.node import Capabilities, RunSpec, Weaving
from gpuloom.executors.port import RunStatus
from gpuloom.fleet.codec import CodecError, of_plain, plain

VERSION = 2
"""Of what is said here. Head and node of different versions don't work together."""
PATH = "/v1/nodes/link"
"""Of the WebSocket at the head."""
MOST_BYTES = 1 << 25
"""Of one frame."""


# -- greetings --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hello:
    """The node's first frame.

    home: identifies the node's home directory; process: the process that works for it. session, received: that it
    wants to go on with, and the highest number that came in it; '' and 0 for none. lease_s: that it asks for, None: the
    usual one. left_s: until the end of the lease that it has, seconds, 0 where it is over; None: not known. stuck: why
    it can't come back yet though its lease is over; it calls only to say so.
    """

    version: int
    name: str
    home: str
    process: str
    boot_id: str
    gpuloom: str = ""
    session: str = ""
    received: int = 0
    lease_s: float | None = None
    left_s: float | None = None
    stuck: str = ""


@dataclass(frozen=True, slots=True)
class Welcome:
    """The head's answer. resumed: the node's session goes on; else both sides begin anew, and the node says `Joined`.

    lease_s: seconds after a heartbeat for which it lets the node's runs go on. beat_s: between heartbeats.
    """

    session: str
    received: int
    resumed: bool
    lease_s: float
    beat_s: float


@dataclass(frozen=True, slots=True)
class Refused:
    """The head does not take the node. final: asking again is of no use."""

    why: str
    final: bool


# -- the node says ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Joined:
    """The first message of a session: all that there is. fenced: its lease ran out since the session before, and what
    ran then has been ended."""

    record: NodeRecord
    runs: tuple[RunStatus, ...]
    capabilities: Capabilities = field(default_factory=Capabilities)
    limits: Mapping[str, str] = field(default_factory=dict)
    healthy: str = ""
    fenced: bool = False


@dataclass(frozen=True, slots=True)
class Status:
    """A run has changed."""

    status: RunStatus


@dataclass(frozen=True, slots=True)
class Sampled:
    """What the monitor saw. notes: by GPU, what is worth showing. Only the newest is kept while the link is cut."""

    sample: Sample
    notes: Mapping[int, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Gpus:
    """All GPUs as they are now, where one of them has changed."""

    gpus: tuple[Gpu, ...]


@dataclass(frozen=True, slots=True)
class Flagged:
    """Something to say of the job of a run; an empty text takes it back."""

    run: str
    flag: str
    text: str


@dataclass(frozen=True, slots=True)
class Health:
    """'' or what is wrong with the executor of the node."""

    text: str


@dataclass(frozen=True, slots=True)
class Leaving:
    """It wants to leave: give it nothing more, and move its jobs. It leaves once nothing is left there."""

    why: str


@dataclass(frozen=True, slots=True)
class Left:
    """It has left in order: nothing of the head's runs there any more."""

    why: str


# -- the head says ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Start:
    spec: RunSpec


@dataclass(frozen=True, slots=True)
class Go:
    run: str


@dataclass(frozen=True, slots=True)
class Stop:
    run: str
    reason: EndReason
    grace_s: float


@dataclass(frozen=True, slots=True)
class Limit:
    run: str
    limit_s: float | None


@dataclass(frozen=True, slots=True)
class Freeze:
    run: str


@dataclass(frozen=True, slots=True)
class Thaw:
    run: str


@dataclass(frozen=True, slots=True)
class Weave:
    weaving: Weaving


@dataclass(frozen=True, slots=True)
class Acknowledge:
    run: str


@dataclass(frozen=True, slots=True)
class Clear:
    """A person says that all GPUs are well again."""


@dataclass(frozen=True, slots=True)
class Leave:
    """It shall leave, as if it had been told so there."""

    why: str


NodeSays = Union[Joined, Status, Sampled, Gpus, Flagged, Health, Leaving, Left]  # noqa: UP007 - one type, used as one
HeadSays = Union[Start, Go, Stop, Limit, Freeze, Thaw, Weave, Acknowledge, Clear, Leave]  # noqa: UP007

_OF_NODE: Mapping[str, type[NodeSays]] = {
    kind.__name__.lower(): kind for kind in (Joined, Status, Sampled, Gpus, Flagged, Health, Leaving, Left)
}
_OF_HEAD: Mapping[str, type[HeadSays]] = {
    kind.__name__.lower(): kind for kind in (Start, Go, Stop, Limit, Freeze, Thaw, Weave, Acknowledge, Clear, Leave)
}
M = TypeVar("M")


def data_of(message: NodeSays | HeadSays) -> dict[str, Any]:
    """A message as it is sent."""
    return {"kind": type(message).__name__.lower(), **plain(message)}


def _of(kinds: Mapping[str, type[M]], data: Any) -> M:
    kind = str(data.get("kind")) if isinstance(data, dict) else ""
    if kind not in kinds:
        raise CodecError(f"{kind!r} is no kind of message")
    return of_plain(kinds[kind], data)


def of_node(data: Any) -> NodeSays:
    """What a node said. Raises CodecError."""
    return _of(_OF_NODE, data)


def of_head(data: Any) -> HeadSays:
    """What the head said. Raises CodecError."""
    return _of(_OF_HEAD, data)
