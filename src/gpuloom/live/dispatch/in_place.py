"""Resizes in which the members that a job keeps go on: where its nodes can, and its launcher lets members come and go.

There an elastic job has a member for each replica. The last members leave first, and new ones come behind those that
stay: rank 0 is where all meet. Which GPU of a node a member has is not known there, so that members of one node may
change places in the records.
"""

from __future__ import annotations

from collections.abc import Callable

from gpuloom.core.job import Allocation
from gpuloom.core.spec import Spec
from gpuloom.executors.port import Capabilities
from gpuloom.executors.recognise import may_resize

CapabilitiesOf = Callable[[str], Capabilities | None]
"""What can be done on the node of this name; None: it is not there."""


def resizes_in_place(spec: Spec, allocation: Allocation, can: CapabilitiesOf) -> bool:
    """Whether a job, where it is or is to be, is run so that its members may go on in the next attempt."""
    if not may_resize(spec):
        return False
    found = [can(node) for node, _ in allocation]
    return all(one is not None and one.resizes for one in found)


def in_members(given: Allocation, each: int, before: Allocation = ()) -> Allocation:
    """These GPUs, with a member for each replica: first those that go on from the attempt before, in its order.

    each: GPUs of a replica. before: of that attempt, with a member for each replica too; (): none goes on.
    """
    left = {node: list(gpus) for node, gpus in given}
    members: list[tuple[str, tuple[int, ...]]] = []

    def take(node: str, wanted: tuple[int, ...] = ()) -> None:
        there = left[node]
        taken = wanted if wanted and set(wanted) <= set(there) else tuple(there[:each])
        left[node] = [gpu for gpu in there if gpu not in taken]
        members.append((node, taken))

    for node, gpus in before[: goes_on(before, given, each)]:
        take(node, gpus)
    for node in left:
        while left[node]:
            take(node)
    return tuple(members)


def goes_on(had: Allocation, given: Allocation, each: int) -> int:
    """How many members, from the first on, go on when a job is given these GPUs. had: a member for each replica, else
    nobody goes on."""
    if any(len(gpus) != each for _, gpus in had):
        return 0
    room = {node: 0 for node, _ in given}
    for node, gpus in given:
        room[node] += len(gpus) // each
    for count, (node, _) in enumerate(had):
        if room.get(node, 0) == 0:
            return count
        room[node] -= 1
    return len(had)
