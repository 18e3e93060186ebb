"""The bytes and JSON that the scheduler stores besides events."""

from __future__ import annotations

import json

from gpuloom.core.errors import InputError
from gpuloom.live.planning.world import Memory
from gpuloom.policies.base import Policy
from gpuloom.policies.memory import dump, load


def memory_to_bytes(memory: Memory, policy: Policy) -> bytes:
    """A policy's memory and the jobs and nodes that its rows are: a line of JSON, then the memory's own bytes."""
    content = {
        "jobs": memory.jobs,
        "nodes": memory.nodes,
        "met": memory.met,
        "held": list(memory.held.items()),
        "empty": memory.value is None,
    }
    return json.dumps(content).encode() + b"\n" + (b"" if memory.value is None else dump(memory.value, policy))


def memory_from_bytes(data: bytes, policy: Policy) -> Memory:
    """The same back.

    Raises:
        InputError: it is damaged, or another policy's.
    """
    head, _, body = data.partition(b"\n")
    try:
        read = json.loads(head)
        jobs, nodes, empty = tuple(map(int, read["jobs"])), tuple(map(str, read["nodes"])), bool(read["empty"])
        met = tuple(map(int, read["met"]))
        held = {int(job): tuple(map(int, on)) for job, on in read.get("held", ())}
        if not all(0 <= node < len(nodes) for on in held.values() for node in on):
            raise ValueError("a job ran on a node that no longer exists")
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"the head of a policy's memory can't be read: {error}") from error
    return Memory(None if empty else load(body, policy), jobs, nodes, met, held)
