"""Machines, policy, usage and the scheduler itself as the API shows them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import cast

from gpuloom import __version__
from gpuloom.agent.sample import Foreign, Sample
from gpuloom.core.job import Attempt, GpuState, NodeRecord, NodeState
from gpuloom.live.planning.lacks import Lack
from gpuloom.live.planning.standby import Failure
from gpuloom.live.store_check import Checked
from gpuloom.live.views.answers import ExecutorView, MonitorView, SharingView, StatusView, StoreView
from gpuloom.live.views.cluster_answers import (
    FailureView,
    ForeignView,
    GpuView,
    KindOfDevice,
    NodeView,
    StateOfGpu,
    StateOfNode,
    UsageRow,
)
from gpuloom.live.views.costs import cost_usd
from gpuloom.live.views.policy import lack_view
from gpuloom.store.port import Usage

Holders = Mapping[tuple[str, int], Sequence[int]]
"""By node and GPU: the jobs that hold it."""


def holders(attempts: Iterable[Attempt]) -> Holders:
    """The jobs on each GPU."""
    found: dict[tuple[str, int], list[int]] = {}
    for attempt in attempts:
        for name, gpus in attempt.allocation:
            for gpu in gpus:
                found.setdefault((name, gpu), []).append(attempt.job)
    return found


def node_view(
    node: NodeRecord,
    held: Holders,
    sample: Sample | None,
    notes: Mapping[int, Sequence[str]],
    cut: str = "",
    shut: str = "",
    limits: Mapping[str, str] | None = None,
    suspended: Mapping[int, float] = MappingProxyType({}),
) -> NodeView:
    """A machine with its GPUs, who runs there, and the newest rates.

    Args:
        notes: by GPU, what was noticed of it. cut: why it can't be talked to now; '' where it can.
        shut: why nothing can be started there now, though it is up. limits: how limits are kept there.
        suspended: by job that lies there, the GPU memory that is in the node's memory, MiB.
    """
    rates = None if sample is None else sample.node
    of_gpu = {} if sample is None else {gpu.index: gpu for gpu in sample.gpus}
    gpus: list[GpuView] = []
    for gpu in node.gpus:
        seen = of_gpu.get(gpu.index)
        gpus.append(
            {
                "index": gpu.index,
                "uuid": gpu.uuid,
                "model": gpu.model,
                "memory_mib": gpu.memory_mib,
                "state": cast("StateOfGpu", gpu.state),
                "reason": gpu.reason,
                "since_s": gpu.since_s,
                "utilization": None if seen is None else seen.utilization,
                "memory_used_mib": None if seen is None else seen.memory_used_mib,
                "temperature_c": None if seen is None else seen.temperature_c,
                "power_w": None if seen is None else seen.power_w,
                "jobs": sorted(held.get((node.name, gpu.index), ())),
                "foreign": [] if seen is None else [_foreign(one) for one in seen.foreign],
                "notes": list(notes.get(gpu.index, ())),
            }
        )
    return {
        "name": node.name,
        "state": cast("StateOfNode", node.state),
        "reason": node.reason,
        "source": node.source.value,
        "address": node.address,
        "until_s": node.until_s,
        "engine_job": node.engine_job,
        "cut": cut,
        "shut": shut,
        "since_s": node.since_s,
        "kind": cast("KindOfDevice", node.kind),
        "cpus": node.cpus,
        "memory_mib": node.memory_mib,
        "cpu_percent": None if rates is None else rates.cpu_percent,
        "memory_used_mib": None if rates is None else rates.memory_used_mib,
        "disk_free_mib": None if rates is None else rates.disk_free_mib,
        "load": None if rates is None else rates.load,
        "received_mib_per_s": None if rates is None else rates.received_mib_per_s,
        "sent_mib_per_s": None if rates is None else rates.sent_mib_per_s,
        "sampled_s": None if sample is None else sample.at_s,
        "limits": dict(limits or {}),
        "gpus": gpus,
        "topology": list(node.topology),
        "jobs": sorted({job for gpu in node.gpus for job in held.get((node.name, gpu.index), ())}),
        "suspended": [{"job": job, "mib": mib} for job, mib in sorted(suspended.items())],
    }


def _foreign(found: Foreign) -> ForeignView:
    return {"pid": found.pid, "user": found.user, "name": found.name, "memory_mib": found.memory_mib}


def failure_view(failure: Failure) -> FailureView:
    """How the policy fails."""
    return {
        "policy": failure.policy,
        "call": failure.call.value,
        "error": failure.error,
        "where": failure.where,
        "since_s": failure.since_s,
        "last_s": failure.last_s,
        "times": failure.times,
        "serves": failure.serves,
    }


def usage_row(found: Usage) -> UsageRow:
    """What one of them used."""
    return {
        "key": found.key,
        "jobs": found.jobs,
        "attempts": found.attempts,
        "held_s": found.held_s,
        "gpu_s": found.gpu_s,
        "failed": found.failed,
        "cost_usd": cost_usd(found.gpu_s_on),
        "suspensions": found.suspensions,
        "suspended_s": found.suspended_s,
        "suspended_mib": found.suspended_mib,
    }


def store_view(path: str, schema_version: int, problem: str, checked: Checked) -> StoreView:
    """The store. problem: what is wrong with it; '' for nothing."""
    return {
        "kind": "sqlite",
        "path": path,
        "schema_version": schema_version,
        "ok": not problem,
        "problem": problem,
        "checked": checked.value,
    }


def executor_view(name: str, problem: str, limits: Mapping[str, str]) -> ExecutorView:
    """What runs jobs."""
    return {"name": name, "ok": not problem, "problem": problem, "limits": dict(limits)}


def monitor_view(problem: str) -> MonitorView:
    """What looks at the machine."""
    return {"ok": not problem, "problem": problem}


def sharing_view(*, on: bool, gated: bool, text: str) -> SharingView:
    """Whether jobs share GPUs."""
    return {"on": on, "gated": gated, "text": text}


def status_view(
    *,
    home: Path,
    started_s: float,
    now_s: float,
    store: StoreView,
    executor: ExecutorView,
    monitor: MonitorView,
    policy: str,
    policy_problem: str,
    policy_failure: FailureView | None,
    policy_lacks: Sequence[Lack],
    interval_s: float,
    sharing: SharingView,
    jobs: Mapping[str, int],
    nodes: Sequence[NodeRecord],
    attempts: Iterable[Attempt],
    last_pass_s: float,
) -> StatusView:
    """The scheduler about itself. jobs: how many by state. attempts: those that hold GPUs."""
    return {
        "version": __version__,
        "pid": os.getpid(),
        "started_s": started_s,
        "now_s": now_s,
        "home": str(home),
        "store": store,
        "executor": executor,
        "monitor": monitor,
        "policy": policy,
        "policy_problem": policy_problem,
        "policy_failure": policy_failure,
        "policy_lacks": [lack_view(one) for one in policy_lacks],
        "interval_s": interval_s,
        "sharing": sharing,
        "jobs": dict(jobs),
        "gpus": {
            "total": sum(len(node.gpus) for node in nodes),
            "busy": len(holders(attempts)),
            "in_service": sum(
                gpu.state == GpuState.OK for node in nodes if node.state == NodeState.UP for gpu in node.gpus
            ),
            "kind": cast("KindOfDevice", nodes[0].kind) if nodes else "gpu",
        },
        "nodes": len(nodes),
        "last_pass_s": last_pass_s,
    }
