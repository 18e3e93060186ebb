"""What is kept of an attempt, what is seen of it, and what time does to it: limits, patience, what is given up."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from gpuloom.core.end_reason import EndReason
from gpuloom.core.run_name import run_name_of
from gpuloom.executors.kubernetes.manifest import Setup
from gpuloom.executors.kubernetes.pods import Pod, hopeless
from gpuloom.executors.kubernetes.wanted import (
    NOTHING,
    REPLACED_AFTER_S,
    Attempt,
    Member,
    Offer,
    Seen,
    Stop,
    end_without_pod,
    may_replace,
)
from gpuloom.executors.kubernetes.writes import (
    Write,
)
from gpuloom.executors.port import Cause, RunExit

UNSEEN_S = 30.0
"""A Job that was made and is not seen after so long is made once more, which changes nothing if it is there."""
NO_PODS_S = 60.0
"""So long none of the pods may be made that may be."""
NOT_OFFERED_S = 20.0
"""So long pods that others make may be away: they are made anew after a pause."""
UNASKED_S = 300.0
"""What was begun to be made, and nobody asks for, is taken away after so long: no record knows of it."""
STAYS_S = 10.0
"""So long members of an attempt that is over wait for the next one of their job, in which they go on."""


@dataclass(slots=True)
class Kept:
    """What this process keeps of an attempt beside what is wanted. done: writes, and when. later_s: nothing is written
    before, as something failed. since: what a pod waits for, and since when."""

    attempt: Attempt
    done: dict[Write, float] = field(default_factory=dict)
    busy: bool = False
    failures: int = 0
    later_s: float = 0.0
    problem: str = ""
    since: dict[int, tuple[str, float]] = field(default_factory=dict)
    job_seen: bool = False
    no_pods_s: float | None = None
    made_s: float | None = None
    found_s: float = field(default_factory=time.monotonic)
    log_tries: dict[int, int] = field(default_factory=dict)


def update(own: Kept, seen: Seen, now_s: float, setup: Setup, offered: Mapping[int, Offer]) -> list[float]:
    """Take up what is seen of an attempt. When there is something to do even if nothing else changes."""
    attempt, dues = own.attempt, list[float]()
    if attempt.adopted and (run := run_name_of(attempt.name)) is not None:
        attempt.offer = offered.get(run.job, NOTHING)
        if len(seen.pods) == len(attempt.members):
            attempt.maybe = False
    if seen.job is not None:
        own.job_seen = attempt.made = True
        attempt.job, attempt.in_place = seen.job.name, seen.job.in_place
    elif own.job_seen:
        attempt.gone = True
    elif attempt.made and own.made_s is not None and now_s - own.made_s > UNSEEN_S:
        attempt.made, attempt.maybe, own.made_s = False, False, None
    for rank, one in seen.pods.items():
        member = None if one.gated else attempt.members.get(rank)
        if member is not None and member.pod == "" and member.replaced != one.uid:
            member.pod = one.uid
            attempt.secret = True  # else it would not have been let go
            if one.attempt == attempt.name and one.restarts > member.restarts:
                member.restarts, member.restarted = one.restarts, "failed before this scheduler began"
    if attempt.unasked and (seen.job is not None or seen.pods):
        if now_s - own.found_s < UNASKED_S:
            return [own.found_s + UNASKED_S]
        for member in attempt.members.values():
            member.acknowledged = True
    if attempt.staying and attempt.forgotten:
        attempt.until_s = now_s + STAYS_S if attempt.until_s is None else attempt.until_s
        if attempt.until_s > now_s:
            dues.append(attempt.until_s)
    dues += _pods_come(own, seen, now_s, setup)
    for rank, member in attempt.members.items():
        pod = seen.pods.get(rank)
        if pod is not None and pod.going and pod.began_s is not None and member.began_s is None:
            member.began_s = now_s
            if member.spec is None:  # it was found: by the cluster's clock, at most as long as it runs for us
                member.began_s -= max(time.time() - pod.began_s, 0.0)
        if pod is not None and member.spec is None and not member.limited:
            member.limit_s = pod.limit_s
        dues += _limit(member, pod, now_s)
        dues += _patience(own, rank, member, pod, now_s)
        dues += _replaced(attempt, rank, seen, now_s)
        if member.ended is None and (how := end_without_pod(attempt, rank, seen)) is not None:
            member.ended = how
    return dues


def _pods_come(own: Kept, seen: Seen, now_s: float, setup: Setup) -> list[float]:
    """Give an attempt up of which pods may be made and none are: they were refused, or somebody else's are gone."""
    members, name, adopted = own.attempt.members.values(), own.attempt.job_name, own.attempt.adopted
    waits = (seen.may_have_pods or adopted) and not own.attempt.ends
    if not waits or len(seen.pods) == len(members) or any(one.pod for one in members):
        own.no_pods_s = None
        return []
    own.no_pods_s = now_s if own.no_pods_s is None else own.no_pods_s
    patience_s = NOT_OFFERED_S if adopted else NO_PODS_S
    if now_s - own.no_pods_s < patience_s:
        return [own.no_pods_s + patience_s]
    kind = setup.kind
    why = f"`kubectl describe {kind.kubectl} {name} -n {setup.namespace}` says why"
    text = f"no pods are made of its {kind.title} {name}: {why}"
    if adopted:
        text = f"{len(members)} pods of it were to wait to be let go, and {len(seen.pods)} do"
    cause = Cause.PLACE if adopted else Cause.EXECUTOR
    how = RunExit(None, None, EndReason.NOT_STARTED, text, time.time(), cause=cause)
    for member in members:
        member.failed = member.failed or how
    return []


def _limit(member: Member, pod: Pod | None, now_s: float) -> list[float]:
    if member.began_s is None or member.limit_s is None or member.stop is not None or member.ended is not None:
        return []
    if pod is None or pod.over:
        return []
    due_s = member.began_s + member.limit_s
    if now_s < due_s:
        return [due_s]
    grace_s = pod.grace_s if member.spec is None else member.spec.grace_s
    member.stop = Stop(EndReason.TIMED_OUT, now_s + grace_s)
    return []


def _patience(own: Kept, rank: int, member: Member, pod: Pod | None, now_s: float) -> list[float]:
    """Give a pod up that has not begun, where nothing of what it waits for has changed for long."""
    waits = pod is not None and member.stop is None and member.failed is None
    if pod is not None and pod.adopted and not pod.job:
        waits = False  # nobody would make it anew
    found = hopeless(pod, member.node) if pod is not None and waits else None
    if found is None:
        own.since.pop(rank, None)
        return []
    patience_s, how = found
    what, since_s = own.since.get(rank, ("", now_s))
    kind = how.cause.value
    if what != kind:
        since_s = now_s
    own.since[rank] = kind, since_s
    if now_s - since_s < patience_s:
        return [since_s + patience_s]
    # In the place of one that ran it is no fault of the job's: what the others have done is to be saved.
    member.failed = replace(how, reason=EndReason.NODE, cause=Cause.NODE) if member.restarts else how
    return []


def _replaced(attempt: Attempt, rank: int, seen: Seen, now_s: float) -> list[float]:
    """Of a member that failed while the others train on, and of the pod that comes in its place."""
    member, pod = attempt.members[rank], seen.pods.get(rank)
    if pod is None or not may_replace(attempt, seen, rank):
        member.over_s = None
    elif member.replaced != pod.uid:
        member.over_s = now_s if member.over_s is None else member.over_s
        return [member.over_s + REPLACED_AFTER_S] if now_s < member.over_s + REPLACED_AFTER_S else []
    waits = member.replaced and pod is None and not attempt.ends and member.ended is None
    if not waits:
        member.missing_s = None
        return []
    member.missing_s = now_s if member.missing_s is None else member.missing_s
    if now_s - member.missing_s < NO_PODS_S:
        return [member.missing_s + NO_PODS_S]
    why = f"no pod was made in the place of that of member {rank}, which {member.restarted}"
    member.failed = RunExit(None, None, EndReason.NODE, why, time.time(), cause=Cause.NODE)
    return []
