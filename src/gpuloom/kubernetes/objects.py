"""What is read of pods, nodes and the objects that pods are made from. All else is dropped: clusters are large."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from gpuloom.core.errors import InputError
from gpuloom.core.sums import sum_ints
from gpuloom.core.units import parse_duration_s
from gpuloom.kubernetes.api import Object
from gpuloom.kubernetes.quantities import quantity, time_s

GPU_RESOURCES = (
    "nvidia.com/gpu",
    "nvidia.com/gpu.shared",
    "amd.com/gpu",
    "gpu.intel.com/i915",
    "gpu.intel.com/xe",
    "habana.ai/gaudi",
)
"""Names under which device plugins offer GPUs."""
MODEL_LABELS = (
    "nvidia.com/gpu.product",
    "amd.com/gpu.product-name",
    "cloud.google.com/gke-accelerator",
    "k8s.amazonaws.com/accelerator",
    "karpenter.k8s.aws/instance-gpu-name",
)
"""Labels of nodes that name the GPU model."""
MEMORY_LABEL = "nvidia.com/gpu.memory"
"""MiB of one GPU."""
SHARES_LABEL, SHARING_LABEL = "nvidia.com/gpu.replicas", "nvidia.com/gpu.sharing-strategy"
"""How often the device plugin offers each GPU; by which of its ways (none, time-slicing, mps)."""
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
ESTIMATE = "gpuloom.io/estimate"
"""Annotation of a pod, or of the template of pods: how long the job will run ('2h'), as its user expects."""
GATE = "gpuloom.io/queue"
"""The scheduling gate that holds a pod until gpuloom lets it go."""
HOME = "gpuloom.io/home"
"""Label: of which scheduler's home."""
SCHEDULER = "gpuloom"
"""Pods with this `schedulerName` are bound by gpuloom."""
QUEUE_GATES = ("kueue.x-k8s.io/", GATE)
"""Scheduling gates that begin so are those of a queue: what they hold back waits like anything else."""


class PodPhase(StrEnum):
    """Where a pod is, as its kubelet says."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    UNKNOWN = "Unknown"


class Owner(NamedTuple):
    """The object that made another one."""

    kind: str
    name: str
    uid: str


class Toleration(NamedTuple):
    """Which taints somebody bears. key '': any. operator: 'Equal' or 'Exists'. effect '': any."""

    key: str
    operator: str
    value: str
    effect: str

    def bears(self, taint: Taint) -> bool:
        if self.effect and self.effect != taint.effect:
            return False
        if not self.key:
            return self.operator == "Exists"
        return self.key == taint.key and (self.operator == "Exists" or self.value == taint.value)


class Taint(NamedTuple):
    """What keeps pods off a node."""

    key: str
    value: str
    effect: str

    def __str__(self) -> str:
        return f"{self.key}={self.value}:{self.effect}" if self.value else f"{self.key}:{self.effect}"


@dataclass(frozen=True, slots=True)
class Asked:
    """What one pod asks for. models: GPU models on which it may run; () for any."""

    gpus: int
    models: tuple[str, ...]
    tolerations: tuple[Toleration, ...]
    image: str
    command: tuple[str, ...]
    deadline_s: float | None
    estimate_s: float | None = None
    grace_s: float = 30.0
    """Between notice and end."""


@dataclass(frozen=True, slots=True)
class PodSeen:
    """A pod that asks for GPUs.

    Times are seconds since the epoch by the cluster's clocks. bound_s: when it was given its node. waits: what its
    scheduler says of it while it has none. gates: what keeps it from being scheduled. gang: the group with which it
    starts, as labels have it; ''. indexed: it is one of the numbered members of a batch Job.
    """

    uid: str
    namespace: str
    name: str
    phase: PodPhase
    node: str
    asked: Asked
    priority: int
    owner: Owner | None
    gang: str
    indexed: bool
    queue: str
    gates: tuple[str, ...]
    waits: str
    created_s: float
    bound_s: float | None
    began_s: float | None
    ended_s: float | None
    exit_code: int | None
    reason: str
    message: str
    home: str = ""
    """Of gpuloom, in whose hands it is."""
    comes: bool = False
    """It waits for gpuloom to let it go: at its gate, or by its scheduler's name."""
    index: int = 0
    """Which of the pods of its owner it is, where they have numbers."""
    notes: Mapping[str, str] = field(default_factory=dict)
    """Its annotations that gpuloom reads, without `gpuloom.io/`."""

    @property
    def over(self) -> bool:
        """It holds nothing any more."""
        return self.phase in (PodPhase.SUCCEEDED, PodPhase.FAILED)


@dataclass(frozen=True, slots=True)
class NodeSeen:
    """A node with GPUs. gpus: that can be given away; whole: that it has, those that are ill included. memory_mib: of
    one GPU. away: why nothing new starts there, but for its taints; ''. resource: the name under which it offers most
    of its GPUs. shares: how often it offers each GPU, by time-slicing or MPS: `gpus` and `whole` are shares then."""

    name: str
    gpus: int
    whole: int
    model: str
    memory_mib: int | None
    cpus: int | None
    main_mib: int | None
    address: str
    taints: tuple[Taint, ...]
    away: str
    since_s: float | None
    resource: str
    shares: int = 1

    @property
    def share_mib(self) -> int | None:
        """Memory of what it offers as one GPU: MPS gives each no more, and with time-slicing all have to do with it."""
        return None if self.memory_mib is None else self.memory_mib // self.shares


class Kind(StrEnum):
    """What pods are made from, as far as gpuloom knows it."""

    BATCH = "Job"
    VOLCANO = "Job.batch.volcano.sh"
    KUEUE = "Workload.kueue.x-k8s.io"


class End(StrEnum):
    """How an object's work ended, as it says."""

    NOT = ""
    WELL = "well"
    BADLY = "badly"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class OriginSeen:
    """An object from which pods are made. gpus: of all its pods together; asked: of one of them. owner: who made it, if
    that is another such object. waits: why it has no pods, as it or its controller says. suspended: it may have none
    for now. replicas: its pods, where they are alike and numbered, so that their number can be changed.
    task: number of the one that makes them, where it has several."""

    kind: Kind
    uid: str
    namespace: str
    name: str
    owner: Owner | None
    gpus: int
    asked: Asked | None
    priority: int
    queue: str
    created_s: float
    suspended: bool
    end: End
    ended_s: float | None
    waits: str
    message: str
    replicas: int | None = None
    task: int = 0


class Reader:
    """Reads objects. gpus: the names of the resources that are GPUs."""

    def __init__(self, gpus: Iterable[str] = GPU_RESOURCES) -> None:
        self._gpus = frozenset(gpus)

    # -- pods ---------------------------------------------------------------------------------------------------

    def pod(self, item: Object, *, any_of_them: bool = False) -> PodSeen | None:
        """None: it asks for no GPU. any_of_them: those too."""
        spec, status, about = item.get("spec") or {}, item.get("status") or {}, item["metadata"]
        asked = self.asked(spec, about)
        if not asked.gpus and not any_of_them:
            return None
        conditions = {one.get("type"): one for one in status.get("conditions") or ()}
        bound = conditions.get("PodScheduled") or {}
        ends = [
            each["state"]["terminated"]
            for each in status.get("containerStatuses") or ()
            if (each.get("state") or {}).get("terminated")
        ]
        begun = [
            at_s
            for each in status.get("containerStatuses") or ()
            for state in ((each.get("state") or {}).values())
            if (at_s := time_s((state or {}).get("startedAt"))) is not None
        ]
        worst = next((one for one in ends if one.get("exitCode")), ends[0] if ends else {})
        phase = _phase(status.get("phase"))
        disrupted = conditions.get("DisruptionTarget") or {}
        labels = about.get("labels") or {}
        over = phase in (PodPhase.SUCCEEDED, PodPhase.FAILED)
        ended = [at_s for one in ends if (at_s := time_s(one.get("finishedAt"))) is not None]
        created_s = time_s(about.get("creationTimestamp")) or 0.0
        last_s = max((time_s(one.get("lastTransitionTime")) or 0.0 for one in conditions.values()), default=0.0)
        return PodSeen(
            uid=str(about["uid"]),
            namespace=str(about.get("namespace", "")),
            name=str(about["name"]),
            phase=phase,
            node=str(spec.get("nodeName") or ""),
            asked=asked,
            priority=int(spec.get("priority") or 0),
            owner=_owner(about),
            gang=_gang(labels, about.get("annotations") or {}),
            indexed="batch.kubernetes.io/job-completion-index" in (about.get("annotations") or {}),
            queue=str(labels.get(QUEUE_LABEL) or labels.get("volcano.sh/queue-name") or ""),
            gates=tuple(str(one.get("name")) for one in spec.get("schedulingGates") or ()),
            waits=_words(bound) if bound.get("status") == "False" else "",
            created_s=created_s,
            bound_s=time_s(bound.get("lastTransitionTime")) if bound.get("status") == "True" else None,
            began_s=min(begun) if begun else time_s(status.get("startTime")),
            ended_s=(max(ended) if ended else (last_s or created_s)) if over else None,
            exit_code=worst.get("exitCode"),
            reason=str(disrupted.get("reason") or status.get("reason") or worst.get("reason") or ""),
            message=str(disrupted.get("message") or status.get("message") or worst.get("message") or "")[:500],
            home=str(labels.get(HOME) or ""),
            comes=not spec.get("nodeName") and phase is PodPhase.PENDING and for_gpuloom(spec),
            index=_index(labels, about.get("annotations") or {}),
            notes=_notes(about.get("annotations") or {}),
        )

    def asked(self, spec: Mapping[str, Any], about: Mapping[str, Any]) -> Asked:
        """What a pod of this spec asks for. about: its metadata."""
        containers = spec.get("containers") or ()
        sidecars = [one for one in spec.get("initContainers") or () if one.get("restartPolicy") == "Always"]
        first = [one for one in spec.get("initContainers") or () if one.get("restartPolicy") != "Always"]
        together = [*containers, *sidecars]
        gpus = max([sum_ints(map(self._gpus_of, together)), *map(self._gpus_of, first)])
        main: Mapping[str, Any] = max(containers, key=self._gpus_of, default={})
        return Asked(
            gpus=gpus,
            models=_models(spec),
            tolerations=tuple(toleration_of(one) for one in spec.get("tolerations") or ()),
            image=str(main.get("image") or ""),
            command=tuple(map(str, (*(main.get("command") or ()), *(main.get("args") or ())))),
            deadline_s=_positive(spec.get("activeDeadlineSeconds")),
            estimate_s=_duration((about.get("annotations") or {}).get(ESTIMATE)),
            grace_s=float(spec.get("terminationGracePeriodSeconds", 30)),
        )

    def _of_template(self, template: Mapping[str, Any] | None) -> Asked:
        found = template or {}
        return self.asked(found.get("spec") or {}, found.get("metadata") or {})

    def _gpus_of(self, container: Mapping[str, Any]) -> int:
        asks = container.get("resources") or {}
        both = {**(asks.get("limits") or {}), **(asks.get("requests") or {})}
        return sum_ints(int(quantity(count)) for name, count in both.items() if name in self._gpus)

    # -- nodes --------------------------------------------------------------------------------------------------

    def node(self, item: Object) -> NodeSeen | None:
        """None: it has no GPUs."""
        spec, status, about = item.get("spec") or {}, item.get("status") or {}, item["metadata"]
        labels, capacity = about.get("labels") or {}, status.get("capacity") or {}
        gives = status.get("allocatable") or capacity
        gpus, whole = self._count(gives), self._count(capacity)
        if not max(gpus, whole):
            return None
        told = {one.get("type"): one for one in status.get("conditions") or ()}
        ready = told.get("Ready") or {}
        away = ""
        if ready.get("status") != "True":
            away = f"not ready: {_words(ready) or 'nothing is heard of it'}"
        elif spec.get("unschedulable"):
            away = "cordoned in Kubernetes"
        memory = _positive(labels.get(MEMORY_LABEL))
        cpus, main = quantity(gives.get("cpu", 0)), quantity(gives.get("memory", 0))
        addresses = {one.get("type"): one.get("address") for one in status.get("addresses") or ()}
        return NodeSeen(
            name=str(about["name"]),
            gpus=gpus,
            whole=max(gpus, whole),
            model=_model(labels),
            memory_mib=None if memory is None else int(memory),
            cpus=int(cpus) or None,
            main_mib=int(main / 2**20) or None,
            address=str(addresses.get("InternalIP") or ""),
            taints=tuple(
                Taint(str(one.get("key")), str(one.get("value") or ""), str(one.get("effect")))
                for one in spec.get("taints") or ()
                if one.get("effect") in ("NoSchedule", "NoExecute")
            ),
            away=away,
            since_s=time_s(ready.get("lastTransitionTime")) if away else None,
            resource=max(
                (name for name in {**capacity, **gives} if name in self._gpus),
                key=lambda name: quantity(capacity.get(name) or gives.get(name) or 0),
            ),
            shares=_shares(labels),
        )

    def _count(self, resources: Mapping[str, Any]) -> int:
        return sum_ints(int(quantity(count)) for name, count in resources.items() if name in self._gpus)

    # -- what pods are made from ----------------------------------------------------------------------------------

    def batch_job(self, item: Object) -> OriginSeen | None:
        """A `batch/v1` Job whose pods ask for GPUs."""
        spec, status, about = item.get("spec") or {}, item.get("status") or {}, item["metadata"]
        asked = self._of_template(spec.get("template"))
        if not asked.gpus:
            return None
        conditions = {one.get("type"): one for one in status.get("conditions") or () if one.get("status") == "True"}
        end, how = End.NOT, conditions.get("Complete") or conditions.get("Failed") or {}
        if how:
            end = End.WELL if "Complete" in conditions else End.BADLY
        suspended = bool(spec.get("suspend"))
        completions = spec.get("completions")
        pods = min(int(spec.get("parallelism", 1)), int(completions) if completions is not None else math.inf)
        return OriginSeen(
            kind=Kind.BATCH,
            uid=str(about["uid"]),
            namespace=str(about.get("namespace", "")),
            name=str(about["name"]),
            owner=_owner(about),
            gpus=asked.gpus * int(pods),
            asked=asked,
            priority=0,
            queue=str((about.get("labels") or {}).get(QUEUE_LABEL) or ""),
            created_s=time_s(about.get("creationTimestamp")) or 0.0,
            suspended=suspended,
            end=end,
            ended_s=time_s(status.get("completionTime")) or time_s(how.get("lastTransitionTime")),
            waits="its Job is suspended" if suspended else "",
            message=_words(how) if end is End.BADLY else "",
            replicas=int(pods) if spec.get("completionMode") == "Indexed" and completions == pods else None,
        )

    def volcano_job(self, item: Object) -> OriginSeen | None:
        """A Job of Volcano whose pods ask for GPUs."""
        spec, status, about = item.get("spec") or {}, item.get("status") or {}, item["metadata"]
        tasks = spec.get("tasks") or ()
        each = [(self._of_template(one.get("template")), int(one.get("replicas", 1))) for one in tasks]
        gpus = sum_ints(asked.gpus * replicas for asked, replicas in each)
        if not gpus:
            return None
        with_gpus = [number for number, (asked, _) in enumerate(each) if asked.gpus]
        state = status.get("state") or {}
        phase = str(state.get("phase") or "")
        end = _VOLCANO_ENDS.get(phase, End.NOT)
        waits = ""
        if phase in ("", "Pending"):
            waits = f"Volcano has not let it in yet (queue {spec.get('queue') or 'default'})"
        elif phase in ("Aborting", "Aborted"):
            waits = "it was suspended in Volcano"
        return OriginSeen(
            kind=Kind.VOLCANO,
            uid=str(about["uid"]),
            namespace=str(about.get("namespace", "")),
            name=str(about["name"]),
            owner=None,
            gpus=gpus,
            asked=max((asked for asked, _ in each), key=lambda one: one.gpus),
            priority=0,
            queue=str(spec.get("queue") or ""),
            created_s=time_s(about.get("creationTimestamp")) or 0.0,
            suspended=phase in ("Aborting", "Aborted"),
            end=end,
            ended_s=time_s(state.get("lastTransitionTime")) if end is not End.NOT else None,
            waits=waits,
            message=str(state.get("message") or ""),
            replicas=each[with_gpus[0]][1] if len(with_gpus) == 1 else None,
            task=with_gpus[0] if len(with_gpus) == 1 else 0,
        )

    def kueue_workload(self, item: Object) -> OriginSeen | None:
        """A Workload of Kueue whose pods ask for GPUs: it stands for the object that owns it."""
        spec, status, about = item.get("spec") or {}, item.get("status") or {}, item["metadata"]
        each = [(self._of_template(one.get("template")), int(one.get("count", 1))) for one in spec.get("podSets") or ()]
        gpus = sum_ints(asked.gpus * count for asked, count in each)
        if not gpus:
            return None
        told = {one.get("type"): one for one in status.get("conditions") or ()}
        holds = {kind for kind, one in told.items() if one.get("status") == "True"}
        end, queue = End.NOT, str(spec.get("queueName") or "")
        if "Finished" in holds:
            end = End.BADLY if "fail" in str(told["Finished"].get("reason", "")).lower() else End.WELL
        waits = ""
        if spec.get("active") is False:
            waits = f"it is deactivated in Kueue (queue {queue})"
        elif "Admitted" not in holds and end is End.NOT:
            words = _words(told.get("QuotaReserved") or {}) or _words(told.get("Evicted") or {})
            waits = f"Kueue has not admitted it (queue {queue})" + (f": {words}" if words else "")
        return OriginSeen(
            kind=Kind.KUEUE,
            uid=str(about["uid"]),
            namespace=str(about.get("namespace", "")),
            name=str(about["name"]),
            owner=_owner(about, any_of_them=True),
            gpus=gpus,
            asked=max((asked for asked, _ in each), key=lambda one: one.gpus),
            priority=int(spec.get("priority") or 0),
            queue=queue,
            created_s=time_s(about.get("creationTimestamp")) or 0.0,
            suspended=bool(waits),
            end=end,
            ended_s=time_s(told["Finished"].get("lastTransitionTime")) if end is not End.NOT else None,
            waits=waits,
            message=_words(told["Finished"]) if end is End.BADLY else "",
        )


_VOLCANO_ENDS = {
    "Completed": End.WELL,
    "Failed": End.BADLY,
    "Terminated": End.STOPPED,
}
_GANG_LABELS = (
    "leaderworkerset.sigs.k8s.io/group-key",
    "jobset.sigs.k8s.io/jobset-uid",
    "jobset.sigs.k8s.io/jobset-name",
    "training.kubeflow.org/job-name",
    "ray.io/cluster",
    "kueue.x-k8s.io/pod-group-name",
    "scheduling.x-k8s.io/pod-group",
    "pod-group.scheduling.sigs.k8s.io",
)
"""Labels of pods that are one job together, but for those of which one owner tells it."""


def _phase(said: object) -> PodPhase:
    # `phase` takes any string.
    return PodPhase(str(said)) if said in PodPhase._value2member_map_ else PodPhase.UNKNOWN


def _owner(about: Mapping[str, Any], *, any_of_them: bool = False) -> Owner | None:
    """Its controller. any_of_them: else whoever owns it."""
    owners = about.get("ownerReferences") or ()
    found = next((one for one in owners if one.get("controller")), owners[0] if owners and any_of_them else None)
    return None if found is None else Owner(str(found["kind"]), str(found["name"]), str(found["uid"]))


def _gang(labels: Mapping[str, Any], annotations: Mapping[str, Any]) -> str:
    for name in _GANG_LABELS:
        if value := labels.get(name):
            return f"{name}={value}"
    group = annotations.get("scheduling.k8s.io/group-name")
    return f"scheduling.k8s.io/group-name={group}" if group else ""


def for_gpuloom(spec: Mapping[str, Any]) -> bool:
    """Whether gpuloom is to say where a pod of this spec goes, and when."""
    gates = [one.get("name") for one in spec.get("schedulingGates") or ()]
    return GATE in gates or (spec.get("schedulerName") == SCHEDULER and not gates)


def _index(labels: Mapping[str, Any], annotations: Mapping[str, Any]) -> int:
    for found in (annotations.get("batch.kubernetes.io/job-completion-index"), *map(labels.get, _INDEX_LABELS)):
        if str(found or "").isdecimal():
            return int(str(found))
    return 0


_INDEX_LABELS = ("volcano.sh/task-index", "training.kubeflow.org/replica-index", "apps.kubernetes.io/pod-index")
NOTES = ("user", "gpu-types", "model", "on-preempt", "apart", "elastic")
"""Annotations `gpuloom.io/…` of a pod that say more of its job; `gpuloom.io/estimate` is read elsewhere, too."""


def _notes(annotations: Mapping[str, Any]) -> Mapping[str, str]:
    return {name: str(text) for name in NOTES if (text := annotations.get(f"gpuloom.io/{name}"))}


def _words(condition: Mapping[str, Any]) -> str:
    """A condition in words: its message, else its reason."""
    return " ".join(str(condition.get("message") or condition.get("reason") or "").split())[:500].rstrip(".")


def toleration_of(one: Mapping[str, Any]) -> Toleration:
    said = (one.get("key"), one.get("operator") or "Equal", one.get("value"), one.get("effect"))
    return Toleration(*(str(each or "") for each in said))


def _model(labels: Mapping[str, Any]) -> str:
    return next((str(labels[name]) for name in MODEL_LABELS if labels.get(name)), "")


def _shares(labels: Mapping[str, Any]) -> int:
    replicas = str(labels.get(SHARES_LABEL) or "")
    if not replicas.isdecimal() or labels.get(SHARING_LABEL) == "none":
        return 1
    return max(int(replicas), 1)


def _models(spec: Mapping[str, Any]) -> tuple[str, ...]:
    """GPU models that the pod's selector or its required affinity names; () for any."""
    selector = spec.get("nodeSelector") or {}
    if named := [str(selector[name]) for name in MODEL_LABELS if selector.get(name)]:
        return (named[0],)
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    terms = (affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}).get("nodeSelectorTerms") or ()
    found: list[str] = []
    for term in terms:
        names = [
            str(value)
            for one in term.get("matchExpressions") or ()
            if one.get("key") in MODEL_LABELS and one.get("operator") == "In"
            for value in one.get("values") or ()
        ]
        if not names:
            return ()  # terms are alternatives: this one takes any model
        found += names
    return tuple(dict.fromkeys(found))


def _duration(text: object) -> float | None:
    try:
        return parse_duration_s(str(text)) if text else None
    except InputError:  # who wrote it sees that no estimate is known
        return None


def _positive(text: object) -> float | None:
    found = quantity(text) if text is not None else 0.0
    return found if found > 0 else None
