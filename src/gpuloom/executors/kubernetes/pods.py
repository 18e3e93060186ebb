"""What is read of our own pods and Jobs, and what a pod's state says of its member."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpuloom.core.end_reason import EndReason
from gpuloom.executors.kubernetes.kinds import INDEXED, VOLCANO, JobKind, replicas_in, spare_in
from gpuloom.executors.kubernetes.marks import (
    ADOPTED,
    COMPLETION_INDEX,
    ENDED_BY,
    FINALIZER,
    GATE,
    GRACE,
    HOLD,
    IN_PLACE,
    INDEX,
    LIMIT,
    OWN_TASK,
    PART_OF,
    RANK,
    RESTARTS,
    RUN,
    TASK,
    VARIABLES,
    members_in,
    sized_task,
    tasks_of,
    values_in,
)
from gpuloom.executors.port import Cause, RunExit
from gpuloom.kubernetes.api import Object
from gpuloom.kubernetes.objects import SCHEDULER
from gpuloom.kubernetes.quantities import quantity, time_s

_UNSEEN = 0.5
"""Times are in whole seconds, cut off."""
_HOPELESS = frozenset(("InvalidImageName", "ErrImageNeverPull", "CreateContainerConfigError", "CreateContainerError"))
_NO_IMAGE = frozenset(("ErrImagePull", "ImagePullBackOff", "RegistryUnavailable"))
IMAGE_S = 120.0
"""So long an image that can't be pulled is waited for: registries have bad minutes."""
HOPELESS_S = 20.0
NO_ROOM_S = 60.0
"""So long kube-scheduler may find no room on the node to which a pod is pinned."""
_NODE_ENDED_IT = frozenset(("ContainerStatusUnknown", "Unknown"))
"""The kubelet, or containerd, found a container gone when it came back: its machine was restarted."""
_NEVER_RAN = frozenset(("StartError", "ContainerCannotRun", "RunContainerError"))


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod of an attempt. item: as it was read, for patches.

    job: uid of its Job. members: (node, GPUs) of all members. ended_by: why gpuloom ended it. began_s, ended_s,
    deleted_s: seconds since the epoch by the cluster's clock; deleted_s: when it was asked to end. held: our finalizer
    keeps it. in_place: it may go on in the next attempt. restarts: pods that its member had before it. adopted:
    somebody else has made it. container: the one whose log and end are the member's.
    """

    item: Object
    uid: str
    name: str
    job: str
    attempt: str
    rank: int
    members: tuple[tuple[str, int], ...]
    gated: bool
    held: bool
    node: str
    over: bool
    began_s: float | None
    ended_s: float | None
    exit_code: int | None
    reason: str
    message: str
    waiting: str
    waits_why: str
    unschedulable: str
    disrupted: str
    deleted_s: float | None
    created_s: float
    ended_by: str
    limit_s: float | None
    grace_s: float
    hold: bool
    in_place: bool
    restarts: int
    adopted: bool
    container: str

    @property
    def going(self) -> bool:
        """It was let go, and has not ended."""
        return not self.gated and not self.over

    @property
    def by_us(self) -> EndReason | None:
        """Why gpuloom ended it; None: it did not."""
        return EndReason(self.ended_by) if self.ended_by in EndReason._value2member_map_ else None


@dataclass(frozen=True, slots=True)
class Job:
    """The Job of an attempt. values: by rank, annotations that a pod gets when it is pinned. secret: its pods need a
    Secret of its name. in_place: they may go on in the next attempt. replicas: of its task. suspended: no pods of
    it are made before it is told to begin. grouped: they are made once its PodGroup is let in.
    adopted: somebody else has made it, or it stands for pods that somebody else has made. task: number of the one whose
    pods are members. spare: how many more pods than those it needs at least."""

    uid: str
    name: str
    attempt: str
    members: tuple[tuple[str, int], ...]
    values: tuple[Mapping[str, str], ...]
    hold: bool
    secret: bool
    going_away: bool
    in_place: bool
    replicas: int
    suspended: bool
    grouped: bool
    adopted: bool = False
    task: int = 0
    spare: int = 0

    @property
    def kind(self) -> JobKind:
        return VOLCANO if self.grouped else INDEXED


@dataclass(frozen=True, slots=True)
class Group:
    """The PodGroup of a Volcano Job. owner: uid of the Job. let_in: its pods may be made. judged: Volcano's scheduler
    has said something of it."""

    name: str
    owner: str
    let_in: bool
    judged: bool
    created_s: float


def pod_of(item: Object) -> Pod | None:
    """None: it is none of an attempt."""
    about, spec, status = item["metadata"], item.get("spec") or {}, item.get("status") or {}
    labels, annotations = about.get("labels") or {}, about.get("annotations") or {}
    members = members_in(annotations)
    rank = _rank(labels, annotations, members)
    if rank is None:
        return None
    containers = status.get("containerStatuses") or ()
    adopted, container = ADOPTED in annotations, _container(spec)
    main: Mapping[str, Any] = next(
        (one for one in containers if one.get("name") == container), containers[0] if containers else {}
    )
    state = main.get("state") or {}
    ended, running, waiting = (state.get(name) or {} for name in ("terminated", "running", "waiting"))
    conditions = {one.get("type"): one for one in status.get("conditions") or ()}
    bound, disrupted = conditions.get("PodScheduled") or {}, conditions.get("DisruptionTarget") or {}
    phase = str(status.get("phase") or "")
    grace = about.get("deletionGracePeriodSeconds") or 0
    deletion_s = time_s(about.get("deletionTimestamp"))
    # What a template adds beside our own container may go on; others may have theirs begun anew in the same pod.
    over = phase in ("Succeeded", "Failed") or (bool(ended) and not adopted)
    times = [time_s(one.get("lastTransitionTime")) or 0.0 for one in conditions.values()]
    return Pod(
        item=item,
        uid=str(about["uid"]),
        name=str(about["name"]),
        job=next((str(one.get("uid")) for one in about.get("ownerReferences") or ()), ""),
        attempt=str(labels[RUN]),
        rank=rank,
        members=members,
        gated=any(one.get("name") == GATE for one in spec.get("schedulingGates") or ())
        or (spec.get("schedulerName") == SCHEDULER and not spec.get("nodeName") and not over),
        held=FINALIZER in (about.get("finalizers") or ()),
        node=str(spec.get("nodeName") or ""),
        over=over,
        began_s=time_s(running.get("startedAt") or ended.get("startedAt")),
        ended_s=(time_s(ended.get("finishedAt")) or max(times, default=0.0) or time.time()) if over else None,
        exit_code=ended.get("exitCode"),
        reason=str(ended.get("reason") or status.get("reason") or ""),
        message=" ".join(str(ended.get("message") or status.get("message") or "").split())[:500],
        waiting=str(waiting.get("reason") or ""),
        waits_why=" ".join(str(waiting.get("message") or "").split())[:500],
        unschedulable=_said(bound) if bound.get("reason") == "Unschedulable" else "",
        disrupted=_said(disrupted) if disrupted.get("status") == "True" else "",
        deleted_s=None if deletion_s is None else deletion_s - grace,
        created_s=time_s(about.get("creationTimestamp")) or 0.0,
        ended_by=str(annotations.get(ENDED_BY) or ""),
        limit_s=_number(annotations.get(LIMIT)),
        grace_s=_number(annotations.get(GRACE)) or 0.0,
        hold=HOLD in annotations,
        in_place=IN_PLACE in annotations,
        restarts=int(_number(annotations.get(RESTARTS)) or 0),
        adopted=adopted,
        container=container,
    )


def job_of(item: Object) -> Job | None:
    """None: it is none of an attempt."""
    about = item["metadata"]
    annotations = about.get("annotations") or {}
    run, members = (about.get("labels") or {}).get(RUN), members_in(annotations)
    if not run or not members or PART_OF in annotations:
        return None
    spec, task = item.get("spec") or {}, sized_task(annotations)
    return Job(
        uid=str(about["uid"]),
        name=str(about["name"]),
        attempt=str(run),
        members=members,
        values=values_in(annotations),
        hold=HOLD in annotations,
        secret=VARIABLES in annotations,
        going_away="deletionTimestamp" in about,
        in_place=IN_PLACE in annotations,
        replicas=replicas_in(spec, task),
        suspended=bool(spec.get("suspend")),
        grouped="tasks" in spec,
        adopted=ADOPTED in annotations,
        task=task,
        spare=spare_in(spec, task),
    )


def job_of_adopted(pod: Pod) -> Job:
    """What stands for the Job of pods that somebody else has made. pod: one of them."""
    owner = next(iter(pod.item["metadata"].get("ownerReferences") or ()), None)
    return Job(
        uid="",
        name=pod.name if owner is None else str(owner.get("name")),
        attempt=pod.attempt,
        members=pod.members,
        values=(),
        hold=pod.hold,
        secret=False,
        going_away=False,
        in_place=False,
        replicas=len(pod.members),
        suspended=False,
        grouped=False,
        adopted=True,
    )


def group_of(item: Object) -> Group | None:
    """None: it belongs to nobody."""
    about, status = item["metadata"], item.get("status") or {}
    owner = next(iter(about.get("ownerReferences") or ()), None)
    if owner is None:
        return None
    let_in = status.get("phase") in ("Inqueue", "Running", "Unknown")
    created_s = time_s(about.get("creationTimestamp")) or 0.0
    return Group(str(about["name"]), str(owner.get("uid")), let_in, bool(status.get("conditions")), created_s)


def exit_of(pod: Pod) -> RunExit:
    """How a pod that is over ended."""
    at_s = pod.ended_s or time.time()
    by = pod.by_us
    code: int | None = pod.exit_code
    number: int | None = None
    if code is not None and 128 < code < 128 + 65:
        number, code = code - 128, None  # of a signal
    if by is None and pod.reason in _NEVER_RAN:
        return RunExit(None, None, EndReason.NOT_STARTED, pod.message or pod.reason, at_s, cause=Cause.JOB)
    if pod.reason == "OOMKilled":
        return RunExit(code, number, EndReason.OUT_OF_MEMORY, pod.message, at_s)
    if by is not None:
        return RunExit(code, number, by, pod.message, at_s)
    taken = pod.deleted_s is not None and at_s + _UNSEEN > pod.deleted_s
    if taken or leaves_node(pod) or pod.reason in _NODE_ENDED_IT:
        lost = pod.reason if pod.reason in _NODE_ENDED_IT else "its pod was deleted by somebody else"
        why = pod.disrupted or pod.message or lost
        return RunExit(code, number, EndReason.NODE, f"{pod.node}: {why}", at_s, cause=Cause.NODE)
    if pod.reason in ("UnexpectedAdmissionError", "OutOfcpu", "OutOfmemory", "OutOfpods") or (
        code is None and number is None
    ):
        why = pod.message or pod.reason or "its container did not start"
        return RunExit(None, None, EndReason.NOT_STARTED, f"on node {pod.node}: {why}", at_s, cause=Cause.PLACE)
    return RunExit(code, number, None, pod.message, at_s)


def ended_well(owner: Object) -> bool:
    """Whether the work of a Job of Volcano, or of Kubernetes, is done: then its other pods are taken away."""
    status = owner.get("status") or {}
    if str((status.get("state") or {}).get("phase") or "") in ("Completing", "Completed"):
        return True
    conditions = status.get("conditions") or ()
    return any(
        one.get("type") in ("Complete", "SuccessCriteriaMet") and one.get("status") == "True" for one in conditions
    )


def leaves_node(pod: Pod) -> bool:
    """The cluster has it leave its node, where none like it could go on now."""
    return bool(pod.disrupted) or pod.reason in ("Evicted", "NodeLost", "Preempting", "Shutdown", "Terminated")


def hopeless(pod: Pod, node: str) -> tuple[float, RunExit] | None:
    """Why it will not run if this does not change, and after how many seconds that is for sure; None: it may. node: to
    which it is pinned."""
    now_s = time.time()
    if pod.gated or pod.over:
        return None
    why = f"{pod.waiting}: {pod.waits_why}" if pod.waits_why else pod.waiting
    if pod.waiting in _NO_IMAGE:
        return IMAGE_S, RunExit(None, None, EndReason.NOT_STARTED, why, now_s, cause=Cause.JOB)
    if pod.waiting in _HOPELESS:
        return HOPELESS_S, RunExit(None, None, EndReason.NOT_STARTED, why, now_s, cause=Cause.JOB)
    if pod.unschedulable and not pod.node:
        text = f"kube-scheduler finds no room for it on node {node}: {pod.unschedulable}"
        return NO_ROOM_S, RunExit(None, None, EndReason.NOT_STARTED, text, now_s, cause=Cause.PLACE)
    return None


def _rank(
    labels: Mapping[str, Any], annotations: Mapping[str, Any], members: tuple[tuple[str, int], ...]
) -> int | None:
    try:
        if ADOPTED in annotations:
            rank = int(annotations[RANK])
            return rank if RUN in labels and 0 <= rank < len(members) else None
        index = int(labels[INDEX] if INDEX in labels else annotations[COMPLETION_INDEX])
        if IN_PLACE in annotations:
            return index if RUN in labels and members else None
        name = labels[TASK] if TASK in labels else labels[OWN_TASK]
        task = next(one for one in tasks_of([gpus for _, gpus in members]) if one.name == name)
        return task.ranks[index] if RUN in labels else None
    except (KeyError, ValueError, IndexError, StopIteration):
        return None


def _container(spec: Mapping[str, Any]) -> str:
    """Our own is called 'main'; of others' the one with most GPUs, else the first."""
    containers = spec.get("containers") or ()
    if any(one.get("name") == "main" for one in containers):
        return "main"
    main: Mapping[str, Any] = max(containers, key=_devices, default={})
    return str(main.get("name") or "main")


def _devices(container: Mapping[str, Any]) -> int:
    """So many devices it asks for: what has a name with a slash is no CPU and no memory."""
    limits = (container.get("resources") or {}).get("limits") or {}
    return max((int(quantity(count)) for name, count in limits.items() if "/" in name), default=0)


def _said(condition: Mapping[str, Any]) -> str:
    return " ".join(str(condition.get("message") or condition.get("reason") or "").split())[:500]


def _number(text: object) -> float | None:
    try:
        return float(str(text))
    except ValueError:
        return None
