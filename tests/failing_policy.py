"""A policy that fails when a test says so, and otherwise is `sjf`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from gpuloom.core.decision import Decision, Placement, Reason
from gpuloom.core.snapshot import Snapshot
from gpuloom.core.workload import Workload
from gpuloom.policies.sjf import Sjf


@dataclass(slots=True)
class Memory:
    calls: int = 0
    odd: Any = None


class Failing(Sjf):
    """`faults` by method: what it does in place of its work."""

    id = "failing"
    traits = replace(Sjf.traits, summary="fails on demand")
    remembers: tuple[type, ...] = (Memory,)
    faults: ClassVar[dict[str, Callable[..., Any]]] = {}
    seen: ClassVar[list[int]] = []
    """Calls that its memory knows of, at each decision."""

    def __init__(self, **values: Any) -> None:
        self._fault("begin")
        super().__init__(**values)

    def _fault(self, name: str, *arguments: Any) -> Any:
        fault = self.faults.get(name)
        return None if fault is None else fault(*arguments)

    def new_memory(self, workload: Workload, cluster: Any) -> Memory:
        self._fault("new_memory")
        return Memory()

    def carried(self, memory: Memory, *rest: Any) -> Memory:
        self._fault("carried")
        return memory

    def sharing(self, workload: Workload) -> Any:
        self._fault("sharing")
        return super().sharing(workload)

    def learn_from(self, ended_gpu_s: Any) -> None:
        self._fault("learn_from")

    def decide(self, snapshot: Snapshot, memory: Memory) -> tuple[Decision, Memory]:
        answer = self._fault("decide", snapshot, memory)
        if answer is not None:
            return answer  # type: ignore[no-any-return]
        memory.calls += 1
        self.seen.append(memory.calls)
        decision, _ = super().decide(snapshot, None)
        return decision, memory

    def reason(self, snapshot: Snapshot, job: int) -> Reason:
        self._fault("reason")
        return super().reason(snapshot, job)


def raises(error: BaseException | type[BaseException]) -> Callable[..., Any]:
    """A fault that raises this."""

    def fault(*arguments: Any) -> Any:
        raise error

    return fault


def recursion(*arguments: Any) -> Any:
    return recursion(*arguments)


def everyone_everywhere(snapshot: Snapshot, memory: Memory) -> Any:
    """A plan that gives GPUs twice."""
    return Decision({job: Placement((0,), (1,)) for job in snapshot.waiting()}), memory
