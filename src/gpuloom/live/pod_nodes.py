"""The nodes of a Kubernetes cluster on which jobs run as pods: passed on to the scheduler as they come, change and go.

A node that is not ready, cordoned or tainted gets nothing new, and what runs there goes on: whether it does is the
cluster's to say. Only when a node's object is gone is what ran there given up.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, replace

from gpuloom.agent.health import Changes
from gpuloom.agent.inventory import model_name
from gpuloom.agent.sample import Sample
from gpuloom.core.job import Gpu, GpuState, NodeRecord, NodeSource, Phase
from gpuloom.core.usage import RunUsage
from gpuloom.executors.kubernetes.cluster import PodCluster
from gpuloom.executors.kubernetes.lease import Lease
from gpuloom.executors.kubernetes.manifest import Setup
from gpuloom.executors.kubernetes.marks import ADOPTED, HOME
from gpuloom.executors.kubernetes.node import PodNode
from gpuloom.executors.port import ExecutorError
from gpuloom.kubernetes.api import Api, Object
from gpuloom.kubernetes.informer import Informer, read_first
from gpuloom.kubernetes.objects import (
    GPU_RESOURCES,
    NodeSeen,
    PodSeen,
    Reader,
    Toleration,
    for_gpuloom,
    toleration_of,
)
from gpuloom.live.adopting import Adopting
from gpuloom.live.joining import Joining
from gpuloom.live.scheduler import Scheduler
from gpuloom.threads import Worker

log = logging.getLogger("gpuloom.nodes")

PROGRESS_S = 2.0
"""So often jobs' files are looked at for what they report, where they can be."""
REST_S, LATEST_S, QUIET = 0.2, 5.0, 4.0
"""Least and longest time between two looks, and by how much longer than a look it is."""
KNOWN_S = 5.0
"""So long the start may wait until the nodes that were seen are written down."""
_GONE = "its node was deleted from the cluster"


@dataclass(frozen=True, slots=True)
class PodOptions:
    """How jobs run as pods. gpu_resources: names under which nodes offer GPUs; none: the usual ones."""

    setup: Setup
    gpu_resources: tuple[str, ...] = ()


_Facts = tuple[NodeSeen, list[PodSeen], set[int], NodeRecord | None]


class PodNodes:
    """`lead`, `open` it with a scheduler that has not started, then `start`, `stop` and `close`."""

    def __init__(self, api: Api, options: PodOptions) -> None:
        self.api, self.setup = api, options.setup
        self._news, self._ended = threading.Event(), threading.Event()
        names = options.gpu_resources or GPU_RESOURCES
        reader = Reader(names)
        self._resources: dict[str, str] = {}
        self._default = names[0]
        self._tolerated = tuple(map(toleration_of, (self.setup.template.get("spec") or {}).get("tolerations") or ()))

        def foreign(item: Object) -> PodSeen | None:
            about = item["metadata"]
            own = (about.get("labels") or {}).get(HOME) == self.setup.home
            if own and ADOPTED not in (about.get("annotations") or {}):
                return None
            comes = about.get("namespace") == self.setup.namespace and for_gpuloom(item.get("spec") or {})
            return reader.pod(item, any_of_them=comes)

        self._nodes = Informer(api, "/api/v1/nodes", reader.node, self._news.set, self._ended.wait, built_in=True)
        self._others = Informer(api, "/api/v1/pods", foreign, self._news.set, self._ended.wait)
        self._watches = [Worker(f"watch {one.path}", one.run) for one in (self._nodes, self._others)]
        self._worker = Worker("pod-nodes", self._run)
        self._reports = Worker("pod-progress", self._read_reports)
        self.lease = Lease(api, self.setup.namespace, self.setup.home)
        self.pods = PodCluster(
            api, self.setup, lambda node: self._resources.get(node, self._default), lambda: self.lease.why_not
        )
        self._adopting = Adopting(
            api,
            self.setup.namespace,
            self.setup.home,
            self.setup.kind,
            reader,
            self._others.items,
            self.pods.offer,
            self._news.set,
            self._ended.wait,
        )
        self._ports: dict[str, PodNode] = {}
        self._records: dict[str, NodeRecord] = {}
        self._away: dict[str, str] = {}
        self._settled: dict[str, _Facts] = {}
        """What the last look at a node went by, if there was nothing to say."""

    def lead(self, *, waits: bool, say: Callable[[str], None], on_lost: Callable[[], None]) -> None:
        """Be the one scheduler that acts for this home and namespace, before anything of the home is read.

        Args:
            waits: while another one does. say: told for whom it waits. on_lost: called in another thread once another
                one acts.

        Raises:
            ExecutorError: another one acts, and `waits` is not set; or nobody can tell.
        """
        self.lease.take(waits=waits, say=say)
        self.lease.start(on_lost)

    def open(self) -> None:
        """Read what the cluster has.

        Raises:
            GpuloomError: nodes, pods or Jobs can't be read.
        """
        for worker in self._watches:
            if not worker.start():
                raise ExecutorError(worker.problem)
        read_first((self._nodes, self._others))
        if self._nodes.absent:
            raise ExecutorError(f"{self._nodes.absent}; gpuloom needs the right to list and watch nodes")
        if self._others.absent:
            log.warning("%s: GPUs that other pods have are taken for free ones", self._others.absent)
        self._resources = {node.name: node.resource for node in self._nodes.items()}
        self.pods.start()

    def start(self, scheduler: Scheduler, joining: Joining) -> None:
        """Pass on what there is, and go on with what changes."""
        self._scheduler, self._joining = scheduler, joining
        self._adopting.start(scheduler)
        self._look()
        self._wait_until_known()
        self._worker.start()
        if self.setup.claim:
            self._reports.start()

    def _wait_until_known(self) -> None:
        """So that whoever submits at once is not told that there are fewer GPUs than there are."""
        until_s = time.monotonic() + KNOWN_S
        while self._ports.keys() - self._scheduler.book.nodes.keys() and time.monotonic() < until_s:
            if self._ended.wait(0.01):
                return

    def stop(self) -> None:
        """Pass on and write nothing more; what runs goes on."""
        self._ended.set()
        self._news.set()
        self._worker.end(5.0)
        self._reports.end(5.0)
        self.pods.close()

    def close(self) -> None:
        """Let another scheduler act: call it once this one has let go of its home."""
        self.stop()
        self.lease.close()
        self.api.close()
        self.pods.join()
        self._adopting.join()
        for one in self._watches:
            one.end(5.0)

    @property
    def problem(self) -> str:
        """'' or why nodes may be other than they are shown."""
        told = [self._nodes.problem, *(one.problem for one in (*self._watches, self._worker)), self.pods.problem]
        told += [self.lease.problem, self._adopting.problem]
        return "; ".join(dict.fromkeys(text for text in told if text))

    def _run(self) -> None:
        took_s = 0.0
        while not self._ended.is_set():
            self._news.wait(LATEST_S)
            if self._ended.wait(max(REST_S, QUIET * took_s)):
                return
            self._news.clear()
            begun_s = time.monotonic()
            self._look()
            self._adopting.look()
            took_s = time.monotonic() - begun_s

    def _read_reports(self) -> None:
        while not self._ended.wait(PROGRESS_S):
            runs: dict[str, dict[str, RunUsage]] = {name: {} for name in list(self._ports)}
            for attempt in list(self._scheduler.book.attempts.values()):
                for run, (node, _) in zip(attempt.runs, attempt.allocation, strict=True):
                    if attempt.phase is Phase.RUNNING and node in runs:
                        runs[node][run] = RunUsage(run, progress=self.pods.files.progress(run))
            for node, usages in runs.items():
                self._joining.sampled(node, Sample(time.time(), None, runs=usages), Changes())

    def _look(self) -> None:
        seen = {node.name: node for node in self._nodes.items()}
        self._resources = {name: node.resource for name, node in seen.items()}
        used: dict[str, list[PodSeen]] = {}
        for pod in self._others.items():
            if pod.node and not pod.over and pod.home != self.setup.home:
                used.setdefault(pod.node, []).append(pod)
        held: dict[str, set[int]] = {}
        for attempt in list(self._scheduler.book.attempts.values()):
            for name, gpus in attempt.allocation:
                held.setdefault(name, set()).update(gpus)
        book, settled = self._scheduler.book.nodes, self._settled
        for name, node in seen.items():
            facts = (node, used.get(name, []), held.get(name, set()), book.get(name))
            if settled.get(name) == facts:
                continue
            if self._there(*facts):
                settled.pop(name, None)
            else:
                settled[name] = facts
        known = {
            name
            for name, record in list(self._scheduler.book.nodes.items())
            if record.source is NodeSource.KUBERNETES and name in self._scheduler.gangs.waiting
        }
        for name in (self._ports.keys() | known) - seen.keys():
            self._ports.pop(name, None)
            self._settled.pop(name, None)
            self._records.pop(name, None)
            self._away.pop(name, None)
            self.pods.give_up(name)
            self._joining.lost(name, _GONE)

    def _there(self, node: NodeSeen, others: list[PodSeen], held: set[int], known: NodeRecord | None) -> bool:
        """Say what of a node is new. False: nothing is.

        held: GPUs that jobs of ours have there. known: what the scheduler has of it.
        """
        name, before = node.name, self._records.get(node.name)
        record = _record(node, self._states(node, others, held, known))
        told = True
        if before is None or _frame(before) != _frame(record):
            port = self._ports.get(name) or PodNode(name, self.pods)
            self._ports[name] = port
            self.pods.back(name)
            self._joining.joined(port, record, ())
        elif known is None or len(known.gpus) != len(record.gpus):
            told = False
        else:
            now_s = self._scheduler.clock.now()
            changed = [
                replace(gpu, since_s=now_s)
                for gpu, was in zip(record.gpus, known.gpus, strict=True)
                if (gpu.state, gpu.reason) != (was.state, was.reason)
            ]
            told = bool(changed)
            if changed:
                self._scheduler.sampled(name, {}, changed, [])
        self._records[name] = record
        why = self._why_away(node)
        if why != self._away.get(name, ""):
            self._away[name], told = why, True
            if why:
                self._joining.cut(name, why)
            else:
                self._joining.back(name)
        return told

    def _why_away(self, node: NodeSeen) -> str:
        borne = (*self._tolerated, Toleration(node.resource, "Exists", "", ""))
        kept = [taint for taint in node.taints if not any(one.bears(taint) for one in borne)]
        if node.away or not kept:
            return node.away
        return f"tainted {kept[0]}: a pod template with that toleration lets jobs go there (gpuloom up --pod-template)"

    def _states(
        self, node: NodeSeen, others: Iterable[PodSeen], held: Set[int], known: NodeRecord | None
    ) -> Mapping[int, tuple[GpuState, str]]:
        """GPUs that can't be had, and why. Which of them it is nobody knows, so it is those that no job of ours has."""
        marked = {gpu.index for gpu in known.gpus if gpu.state is not GpuState.OK} if known is not None else set()
        spare = sorted(set(range(node.whole)) - held, key=lambda index: (index not in marked, -index))
        why = [(GpuState.UNHEALTHY, f"the node offers {node.gpus} of its {node.whole} GPUs")] * (node.whole - node.gpus)
        for pod in sorted(others, key=lambda one: (one.namespace, one.name)):
            why += [(GpuState.FOREIGN, f"pod {pod.namespace}/{pod.name} has it")] * pod.asked.gpus
        return dict(zip(spare, why, strict=False))


def _record(node: NodeSeen, states: Mapping[int, tuple[GpuState, str]]) -> NodeRecord:
    model = (model_name(node.model, node.memory_mib) if node.model else "") or "GPU"
    gpus = [Gpu(index, f"{node.name}/{index}", model, node.share_mib) for index in range(node.whole)]
    for index, (state, why) in states.items():
        gpus[index] = replace(gpus[index], state=state, reason=why)
    return NodeRecord(
        name=node.name,
        gpus=tuple(gpus),
        cpus=node.cpus,
        memory_mib=node.main_mib,
        source=NodeSource.KUBERNETES,
        address=node.address,
    )


def _frame(record: NodeRecord) -> NodeRecord:
    """A record without the states of its GPUs."""
    return replace(record, gpus=tuple(replace(gpu, state=GpuState.OK, reason="") for gpu in record.gpus))
