"""Any policy that gives each job GPUs of its own, with best-effort jobs beside high-priority ones on the same GPU.

Written `beside=yes` among the parameters of that policy. `policies/pairs.py` says who may share, and what the policy
sees of it. The share class of a job (`Workload.share_class`) says that it may share a GPU at all; kernels are then
admitted by the rule of docs/explanation/sharing.md, so that the high-priority one keeps its latency.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

from gpuloom.core.carrying import JOBS, Rows, carry
from gpuloom.core.cluster import Cluster
from gpuloom.core.decision import Decision, Reason
from gpuloom.core.policy_state import PolicyState
from gpuloom.core.sharing import Sharing
from gpuloom.core.snapshot import Snapshot
from gpuloom.core.workload import F8, Workload
from gpuloom.policies.base import Parameter, Policy, at_least_one, share, yes_or_no
from gpuloom.policies.pair_speeds import IS_BEST_EFFORT, IS_HIGH, NONE, Expected, KernelSharing, pairable
from gpuloom.policies.pairs import Hinders, Pairs

BESIDE = Parameter("beside", False, yes_or_no, "best-effort jobs may run beside high-priority ones on one GPU", "no")
SPEED = Parameter(
    "beside_speed",
    0.5,
    share,
    "speed of a best-effort job beside a high-priority one, relative to alone, where no kernel profiles tell it",
)
P99 = Parameter(
    "beside_p99",
    1.05,
    at_least_one,
    "most p99 of a service beside a best-effort job, over its p99 alone, as kernel profiles lead to expect",
)


@dataclass(slots=True)
class Memory:
    """base: the memory of the policy within. guests: jobs that are guests of another one on its GPU."""

    base: Any
    guests: list[int] = field(default_factory=list, metadata=JOBS)


class Beside(Policy):
    """See the module. It has the id and the parameters of the policy within."""

    cache: Pairs | str | None

    def __init__(self, inner: Policy, speed: float, most_p99: float = P99.default) -> None:
        remembers = (Memory, *inner.remembers)
        self.stands_for(inner, max_jobs_per_gpu=2, pairs=True, spills_memory=False, remembers=remembers)
        self.inner: Policy = inner
        self.id = inner.id  # type: ignore[misc]
        self.values |= {BESIDE.name: True, SPEED.name: speed, P99.name: most_p99}
        self.parameters = (*inner.parameters, BESIDE, SPEED, P99)  # type: ignore[misc]
        self.traits = replace(inner.traits, sharing=True)  # type: ignore[misc]
        self._speed, self._most_p99 = speed, most_p99

    def new_memory(self, workload: Workload, cluster: Cluster) -> Memory:
        return Memory(self.inner.new_memory(workload, cluster))

    def carried(self, memory: Memory, rows: Rows, nodes: Rows, workload: Workload, cluster: Cluster) -> Memory:
        found = carry(memory, self.new_memory(workload, cluster), rows, nodes)
        found.base = self.inner.carried(memory.base, rows, nodes, workload, cluster)
        return found

    def learn_from(self, ended_gpu_s: F8) -> None:
        """Nothing: whoever tells this one tells the policy within."""

    def sees(self, gpus: int) -> int | None:
        return self.inner.sees(gpus)  # where no job may share a GPU, it is that policy and nothing else

    def sharing(self, workload: Workload) -> Sharing:
        return KernelSharing(workload, self._expected(workload))

    def _expected(self, workload: Workload) -> Expected:
        return Expected(workload, self._speed, self._most_p99)

    def saved(self, memory: Memory) -> str | None:
        return self.inner.saved(memory.base)

    def decide(self, snapshot: Snapshot, memory: Memory) -> tuple[Decision, Memory]:
        inner = self.inner
        if self.cache is None:
            inner.cache = None
            kinds = set(pairable(snapshot.workload))
            able = {IS_HIGH, IS_BEST_EFFORT} <= kinds or bool(snapshot.fixed)
            stops = inner.traits.preempts
            expected = self._expected(snapshot.workload)
            self.cache = Pairs(snapshot, memory.guests, expected=expected, stops=stops) if able else "none"
        inner.explains = self.explains
        if not isinstance(self.cache, Pairs):
            decision, memory.base = inner.decide(snapshot, memory.base)
            return decision, memory
        pairs = self.cache
        pairs.take_in(snapshot)
        if pairs.stale:
            inner.cache, pairs.stale = None, False
        decision, memory.base = inner.decide(pairs.view, memory.base)
        plan = pairs.plan(snapshot, decision)
        memory.guests = sorted(pairs.guests)
        return plan, memory

    def describe(self, snapshot: Snapshot, memory: Memory) -> PolicyState:
        view = self.cache.view if isinstance(self.cache, Pairs) else snapshot
        view.now_s = snapshot.now_s
        return self.inner.describe(view, memory.base)

    def reason(self, snapshot: Snapshot, job: int) -> Reason:
        if not isinstance(self.cache, Pairs):
            return self.inner.reason(snapshot, job)
        found = self.inner.reason(self.cache.view, job)
        kind = pairable(snapshot.workload)[job]
        if kind == NONE:
            return found
        other = "a high-priority" if kind == IS_BEST_EFFORT else "a best-effort"
        hinders = list(self.cache.alone_beside(job).values())
        there = hinders.count(Hinders.NOTHING)
        late = hinders.count(Hinders.LATENCY)
        memory, nodes = snapshot.workload.gpu_memory_mib, snapshot.cluster.nodes
        unknown = memory is None or math.isnan(memory[job])
        if unknown and all(node.gpu_memory_mib is not None for node in nodes):
            text = "How much GPU memory it needs is unknown, so it shares no GPU."
        elif there:
            text = f"There is room beside {other} job, but jobs before it would then wait longer."
        elif Hinders.PENDING in hinders:
            text = (
                f"What {other} job and this one can expect of each other is being computed from their kernel profiles."
            )
        elif late:
            text = (
                f"Where it could join {other} job, the service's p99 is expected above {self._most_p99:g} of alone "
                "(beside_p99), by their kernel profiles."
            )
        else:
            text = f"No GPU has {other} job alone on it that leaves room for it."
        numbers = {"gpus_to_share": there} | ({"gpus_too_slow_for_the_service": late} if late else {})
        return Reason(found.code, f"{found.text} {text}", {**found.numbers, **numbers})
