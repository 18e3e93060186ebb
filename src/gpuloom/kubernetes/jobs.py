"""What jobs the objects of a cluster stand for, and where each of them is.

A job is what starts together. Pods with one owner that is known to be a training job (a Volcano Job, an Indexed Job, a
Kubeflow job, a JobSet), or with one label of a group, are one job; any other pod is one by itself. What Kueue or
Volcano holds back has no pods yet, and waits all the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from gpuloom.core.end_reason import EndReason
from gpuloom.core.sums import sum_ints
from gpuloom.kubernetes.objects import QUEUE_GATES, Asked, End, Kind, OriginSeen, PodPhase, PodSeen

APART = frozenset({"ReplicaSet", "StatefulSet", "DaemonSet", "ReplicationController", "Node"})
"""Owners whose pods are jobs of their own: services, each replica of which starts when it can."""
SETTLES_S = 5.0
"""A group of which some pods have nodes counts as started without the others after so long; a job whose pods failed
waits to be tried again, unless its controller has given it up by then."""


class State(StrEnum):
    """Where a job is."""

    WAITS = "waits"
    HOLDS = "holds"
    """It has GPUs."""
    ENDED = "ended"


class Part(NamedTuple):
    """A pod that holds GPUs."""

    uid: str
    node: str
    gpus: int


@dataclass(frozen=True, slots=True)
class Ended:
    """How a job's last run ended. at_s: None where no clock of the cluster tells it."""

    reason: EndReason
    at_s: float | None
    exit_code: int | None = None
    message: str = ""


@dataclass(frozen=True, slots=True)
class Standing:
    """A job at a moment.

    key: never used for another one. gpus: those that it holds, else those that it asks for. parts: where it holds them,
    by node; of one that has ended, those of its last run. submitted_s, began_s: when it came, and when the last of its
    present pods got a node. ended: of its newest run; None: it goes on, or there was none. waits: why, in the words of
    who decides it. held: somebody keeps it back, so that it waits for no GPUs yet. pods: their names.
    """

    key: str
    kind: str
    namespace: str
    name: str
    state: State
    gpus: int
    asked: Asked
    priority: int
    parts: tuple[Part, ...]
    submitted_s: float
    began_s: float | None
    ended: Ended | None
    waits: str
    held: bool
    pods: tuple[str, ...]


def standings(pods: Iterable[PodSeen], origins: Iterable[OriginSeen], now_s: float) -> list[Standing]:
    """All jobs of these objects. now_s: by the cluster's clocks."""
    known = {one.uid: one for one in origins}
    made = {uid: one for uid, one in known.items() if one.kind is not Kind.KUEUE}
    groups: dict[str, list[PodSeen]] = {}
    key_of: dict[str, str] = {}
    for pod in pods:
        key = key_of[pod.uid] = _key(pod, made)
        groups.setdefault(key, []).append(pod)
    let_in: dict[str, OriginSeen] = {}
    for one in known.values():
        if one.kind is Kind.KUEUE and one.owner is not None:
            let_in[key_of.get(one.owner.uid) or _root(one.owner.uid, made)] = one
    roots: dict[str, list[OriginSeen]] = {}
    for one in made.values():
        roots.setdefault(_root(one.uid, made), []).append(one)
    makers = {pod.owner.uid for each in groups.values() for pod in each if pod.owner is not None}
    found = []
    for key in {**groups, **roots, **let_in}:
        its_pods, its_origins = groups.get(key, []), roots.get(key, [])
        apart = bool(its_origins) and not its_pods and key in makers  # its pods are jobs of their own
        standing = None if apart else _standing(key, its_pods, its_origins, let_in.get(key), now_s)
        if standing is not None:
            found.append(standing)
    return found


def _key(pod: PodSeen, made: Mapping[str, OriginSeen]) -> str:
    owner = pod.owner
    if owner is not None and (origin := made.get(owner.uid)) is not None:
        single = origin.kind is Kind.BATCH and not (pod.indexed or pod.gang or pod.queue or origin.queue)
        many = origin.asked is not None and origin.gpus > origin.asked.gpus
        return pod.uid if single and many else _root(owner.uid, made)
    if pod.gang:
        return f"{pod.namespace}/{pod.gang}"
    if owner is None or owner.kind in APART or (owner.kind == "Job" and not pod.indexed):
        return pod.uid
    return owner.uid


def _root(uid: str, made: Mapping[str, OriginSeen]) -> str:
    """Of an object that another one has made (a Job of a JobSet) that one. Of a CronJob each Job is a job."""
    for _ in range(4):
        one = made.get(uid)
        if one is None or one.owner is None or one.owner.kind == "CronJob":
            return uid
        uid = one.owner.uid
    return uid


def _standing(
    key: str, pods: Sequence[PodSeen], origins: Sequence[OriginSeen], let_in: OriginSeen | None, now_s: float
) -> Standing | None:
    """None: it is over, and nothing tells when and where it ran."""
    about = [*origins, *([] if let_in is None else [let_in])]
    alive = [pod for pod in pods if not pod.over]
    bound = [pod for pod in alive if pod.node]
    ends = [one for one in about if one.end is not End.NOT]
    goes_on = bool(about) and len(ends) < len(about)
    if not (pods or goes_on):
        return None
    last = _last_run(pods)
    state = State.WAITS
    if bound and (len(bound) == len(alive) or now_s - min(_bound_s(pod) for pod in bound) > SETTLES_S):
        state = State.HOLDS
    elif not alive and last and goes_on and let_in is None:
        # Its controller has yet to say whether that was all, and does so soon.
        well = all(pod.phase is PodPhase.SUCCEEDED for pod in last)
        settled = now_s - max(map(_ended_s, last)) > SETTLES_S
        state = State.ENDED if well else State.WAITS if settled else State.HOLDS
    elif not alive and not goes_on:
        state = State.ENDED
    kind, namespace, name = _name(pods, about)
    gpus = sum_ints(pod.asked.gpus for pod in bound or last) if state is State.HOLDS else 0
    gpus = gpus or sum_ints(one.gpus for one in origins) or (0 if let_in is None else let_in.gpus)
    gpus = gpus or sum_ints(pod.asked.gpus for pod in alive or pods)
    asked = max((pod.asked for pod in pods), key=lambda one: one.gpus, default=None)
    asked = asked or next(one.asked for one in about if one.asked is not None)
    return Standing(
        key=key,
        kind=kind,
        namespace=namespace,
        name=name,
        state=state,
        gpus=gpus,
        asked=asked,
        priority=max([*(pod.priority for pod in pods), *(one.priority for one in about)], default=0),
        parts=() if state is State.WAITS else _parts(bound or last),
        submitted_s=min([*(one.created_s for one in about), *(pod.created_s for pod in pods)]),
        began_s=_began_s(bound or pods),
        ended=_ended(last or pods, ends) if not alive and state is not State.HOLDS and (ends or pods) else None,
        waits=_waits(alive, about) if state is State.WAITS else "",
        held=state is State.WAITS and _is_held(alive, about),
        pods=tuple(sorted(pod.name for pod in pods)),
    )


def _parts(pods: Iterable[PodSeen]) -> tuple[Part, ...]:
    return tuple(sorted((Part(pod.uid, pod.node, pod.asked.gpus) for pod in pods), key=lambda one: (one.node, one.uid)))


def _last_run(pods: Sequence[PodSeen]) -> list[PodSeen]:
    """Of pods that are over those that were there together at the end: others were replaced before."""
    began_s = _began_s(pods)
    return [pod for pod in pods if pod.node and began_s is not None and _ended_s(pod) >= began_s]


def base_name(name: str) -> str:
    """A name without numbers, dates and random letters at its end: runs of one job are called alike but for those."""
    return _SUFFIX.sub("", name) or name


_SUFFIX = re.compile(r"([-_.]([0-9]+|[0-9a-f]{6,}|(?=[a-z]*[0-9])[a-z0-9]{5,10}))+$")


def _bound_s(pod: PodSeen) -> float:
    at_s = pod.bound_s if pod.bound_s is not None else pod.began_s
    return pod.created_s if at_s is None else at_s


def _began_s(pods: Sequence[PodSeen]) -> float | None:
    return max((_bound_s(pod) for pod in pods if pod.node), default=None)


def _name(pods: Sequence[PodSeen], about: Sequence[OriginSeen]) -> tuple[str, str, str]:
    """(kind, namespace, name): of who made its pods, else of the pod or its group."""
    for one in about:
        owner = one.owner
        if owner is not None and owner.kind not in ("CronJob", "Pod"):
            return owner.kind, one.namespace, owner.name
    if about:
        return about[0].kind.value, about[0].namespace, about[0].name
    first = min(pods, key=lambda pod: (pod.created_s, pod.name))
    owner = first.owner
    if first.gang and (owner is None or owner.kind in APART or owner.kind == "Job"):
        return "group", first.namespace, first.gang.partition("=")[2].rpartition("/")[2]
    if owner is None or owner.kind in APART or (owner.kind == "Job" and not first.indexed):
        return "Pod", first.namespace, first.name
    return owner.kind, first.namespace, owner.name


_OF_THE_NODE = frozenset({"NodeLost", "Evicted", "NodeShutdown", "Terminated", "TerminationByKubelet"})
_OF_THE_NODE |= {"DeletionByTaintManager", "DeletionByPodGC", "EvictionByEvictionAPI", "UnexpectedAdmissionError"}
_PREEMPTED = frozenset({"PreemptionByScheduler", "Preempted", "WorkloadEvictedDueToPreempted"})


def _ended(pods: Sequence[PodSeen], ends: Sequence[OriginSeen]) -> Ended:
    """How it ended, by its objects, and by its pods where they don't tell."""
    at_s = max((pod.ended_s for pod in pods if pod.ended_s is not None), default=None)
    if at_s is None:
        at_s = max((one.ended_s for one in ends if one.ended_s is not None), default=None)
    failed = [pod for pod in pods if pod.phase is PodPhase.FAILED]
    first = min(failed, key=_ended_s) if failed else None
    message = next((one.message for one in ends if one.message), "")
    if ends and all(one.end is End.WELL for one in ends):
        return Ended(EndReason.FINISHED, at_s, 0)
    if any(one.end is End.STOPPED for one in ends):
        return Ended(EndReason.CANCELLED, at_s, message=message or "it was terminated")
    if first is None:
        if any(one.end is End.BADLY for one in ends):
            return Ended(EndReason.FAILED, at_s, message=message)
        return Ended(EndReason.FINISHED, at_s, 0)
    reason = EndReason.FAILED
    if first.reason == "OOMKilled":
        reason = EndReason.OUT_OF_MEMORY
    elif first.reason == "DeadlineExceeded":
        reason = EndReason.TIMED_OUT
    elif first.reason in _PREEMPTED:
        reason = EndReason.PREEMPTED
    elif first.reason in _OF_THE_NODE:
        reason = EndReason.NODE
    said = ": ".join(part for part in (first.reason, first.message) if part)
    words = f"pod {first.name}: {said}" if said and len(pods) > 1 else said
    return Ended(reason, at_s, first.exit_code, words or message)


def _ended_s(pod: PodSeen) -> float:
    return pod.created_s if pod.ended_s is None else pod.ended_s


def _is_held(alive: Sequence[PodSeen], about: Sequence[OriginSeen]) -> bool:
    """Whether it waits for something else than its turn: a gate that is no queue's, or somebody who suspended it."""
    if any(not gate.startswith(QUEUE_GATES) for pod in alive for gate in pod.gates):
        return True
    return any(
        one.suspended and not (one.kind is Kind.BATCH and one.queue) for one in about if one.kind is not Kind.KUEUE
    )


def _waits(alive: Sequence[PodSeen], about: Sequence[OriginSeen]) -> str:
    """Why it waits, as those say who decide."""
    if held := next((one.waits for one in reversed(about) if one.waits), ""):
        return f"{held[0].upper()}{held[1:]}."
    gates = sorted({gate for pod in alive for gate in pod.gates})
    if gates:
        return f"Kubernetes does not schedule it before its scheduling gates are gone: {', '.join(gates)}."
    waiting = [pod for pod in alive if not pod.node]
    said = next((pod for pod in waiting if pod.waits), None)
    if said is not None:
        who = "" if len(alive) == 1 else f" (of pod {said.name})"
        return f"Its scheduler says{who}: {said.waits}."
    if len(waiting) < len(alive):
        return f"{len(alive) - len(waiting)} of its {len(alive)} pods have a node."
    return ""
