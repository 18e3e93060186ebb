"""What is wanted of an attempt, what is seen of it, and from both what is to be written next. No I/O.

Whoever carries the writes out calls again after each change: a write that was lost, or whose answer was, is asked for
once more, and none does harm twice.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from gpuloom.core.end_reason import EndReason
from gpuloom.executors.gang_ends import good
from gpuloom.executors.kubernetes.kinds import JobKind
from gpuloom.executors.kubernetes.marks import name_of, run_of
from gpuloom.executors.kubernetes.pods import Group, Job, Pod, exit_of, leaves_node
from gpuloom.executors.kubernetes.writes import (
    Adopt,
    Begin,
    CreateJob,
    DeleteJob,
    DeletePod,
    FindJob,
    GiveBack,
    Leave,
    LetIn,
    MakeSecret,
    Note,
    Open,
    Relabel,
    Release,
    Replace,
    SetLimit,
    Shrink,
    TakeEnd,
    Write,
)
from gpuloom.executors.node import RunSpec
from gpuloom.executors.port import Cause, RunExit, RunPhase, RunStatus

SLACK_S = 1.5
"""Earlier ends than those that are written down are asked for if they are earlier by so much: times are in seconds."""
LET_IN_S = 5.0
"""A PodGroup of which Volcano's scheduler has said nothing for so long waits for nobody: there is no such scheduler."""

REPLACED_AFTER_S = 3.0
"""A member that failed is replaced so long after that: where the program is broken the others have failed by then."""
MOST_REPLACED = 3
"""A member is replaced so often in a row,"""
WELL_S = 600.0
"""unless it ran for so long meanwhile."""


@dataclass(frozen=True, slots=True)
class Stop:
    """A member is to end. until_s: monotonic; killed then."""

    reason: EndReason
    until_s: float


@dataclass(slots=True)
class Member:
    """hold: it begins only when it is told to. spec: once it was asked for. ended: how, once that is known and its log
    is here. began_s: monotonic, when it was first seen to run. failed: why it is given up though nobody stopped it.
    pod: uid of the pod that was let go. limited: its time limit was changed. stays: it is to go on in the next attempt
    of its job. over_s: monotonic, when the pod was first seen to have failed that may be replaced. replaced: uid of the
    pod that was replaced last; restarts, restarted: how often, and why. missing_s: monotonic, since when the one that
    comes in its place was not seen."""

    node: str
    hold: bool = False
    spec: RunSpec | None = None
    go: bool = False
    stop: Stop | None = None
    failed: RunExit | None = None
    ended: RunExit | None = None
    acknowledged: bool = False
    began_s: float | None = None
    limit_s: float | None = None
    limited: bool = False
    pod: str = ""
    told: RunStatus | None = None
    stays: bool = False
    over_s: float | None = None
    replaced: str = ""
    restarts: int = 0
    restarted: str = ""
    missing_s: float | None = None


class Offered(NamedTuple):
    """A pod that somebody else has made, and that waits to be let go. number: which of its Job's it is."""

    uid: str
    name: str
    number: int = 0


class Owner(NamedTuple):
    """The Job by which pods are made that are offered, and whose size may be changed. task: the number of the one
    that makes them."""

    name: str
    uid: str
    kind: JobKind
    task: int = 0


class Offer(NamedTuple):
    """What somebody else has made for a job: pods that are nobody's yet."""

    pods: tuple[Offered, ...] = ()
    owner: Owner | None = None


NOTHING = Offer()


@dataclass(slots=True)
class Attempt:
    """members: by rank. maybe: its Job was asked for, and may be there whatever was answered. made: that was created,
    or is seen. gone: it was seen, and is no more. secret: its Secret was made. refused: it can't be made.
    adopted: somebody else has made its pods; maybe: some may have been taken and were not seen yet. in_place: and their
    Job was taken, too. offer: what of its job waits and is in nobody's hands. asked: by rank, the name of the one that
    was to be taken last.
    job: name of that Job; '' while it is to have its own. until_s: monotonic; until then the next attempt may take the
    Job over, with the members that stay; None: that begins once all ends are written down."""

    name: str
    members: dict[int, Member]
    maybe: bool = False
    made: bool = False
    gone: bool = False
    secret: bool = False
    refused: RunExit | None = None
    job: str = ""
    until_s: float | None = None
    adopted: bool = False
    in_place: bool = False
    offer: Offer = NOTHING
    asked: dict[int, str] = field(default_factory=dict)

    @property
    def job_name(self) -> str:
        return self.job or name_of(self.name)

    @property
    def staying(self) -> int:
        """So many members, from the first on, are to go on in the next attempt."""
        return next((rank for rank, one in sorted(self.members.items()) if not one.stays), len(self.members))

    @property
    def sized(self) -> bool:
        """Somebody else has made its Job, and lets its size be changed."""
        specs = (one.spec for one in self.members.values())
        return self.adopted and any(spec is not None and spec.sizes is not None for spec in specs)

    @property
    def whole(self) -> bool:
        return all(member.spec is not None for member in self.members.values())

    def there(self, seen: Seen) -> bool:
        """Whether its Job is there, or may be: pods may still come."""
        if self.adopted and not self.in_place and (self.ends or self.forgotten):
            return self.maybe
        if seen.job is not None:
            return not seen.job.going_away
        return (self.made or self.maybe) and not self.gone

    @property
    def unasked(self) -> bool:
        """It was found, nobody has asked for it or anything of it, and none of it was let go."""
        return not any(member.spec or member.go or member.stop or member.pod for member in self.members.values())

    @property
    def forgotten(self) -> bool:
        return all(member.acknowledged for member in self.members.values())

    @property
    def ends(self) -> bool:
        """Something of it is to end, or has to be given up."""
        return any(member.stop or member.failed for member in self.members.values())


@dataclass(frozen=True, slots=True)
class Seen:
    """What the lists of the cluster have of an attempt. pods: by rank."""

    job: Job | None = None
    group: Group | None = None
    pods: Mapping[int, Pod] = field(default_factory=dict)

    @property
    def may_have_pods(self) -> bool:
        """Nothing keeps its pods from being made."""
        if self.job is None or self.job.suspended:
            return False
        return not self.job.grouped or (self.group is not None and self.group.let_in)


def writes_for(attempt: Attempt, seen: Seen, now_s: float, wall_s: float) -> list[Write]:
    """What is to be written now. now_s: monotonic; wall_s: since the epoch."""
    found: list[Write] = []
    for rank, pod in seen.pods.items():
        member = attempt.members.get(rank)
        if member is None or not pod.over or member.ended is not None:
            continue
        if not may_replace(attempt, seen, rank):
            found.append(TakeEnd(rank, pod.uid))
        elif member.over_s is not None and now_s >= member.over_s + REPLACED_AFTER_S:
            found.append(Replace(rank, pod.uid))
    if attempt.made and attempt.gone:
        for rank, pod in seen.pods.items():
            if pod.gated and (member := attempt.members.get(rank)) is not None and member.pod == pod.uid:
                found.append(DeletePod(rank, pod.uid, now_s))  # it was about to be let go
    if attempt.staying and (attempt.until_s is None or now_s < attempt.until_s):
        return [*found, *_resizing(attempt, seen, now_s, wall_s)]
    if attempt.forgotten:
        if attempt.adopted:
            return _given_back(attempt, seen, now_s)
        if seen.job is not None and not seen.job.going_away:
            return [DeleteJob(seen.job.name, seen.job.uid)]
        if seen.job is None:  # else it would have the pod made again
            return [Release(rank, pod.uid) for rank, pod in seen.pods.items() if pod.held or pod.deleted_s is None]
        return []
    if attempt.ends or attempt.refused is not None:
        ending = _ending(attempt, seen, now_s, wall_s)
        # One that would be replaced, were this scheduler killed now, has ended once the others are told to end.
        return ending if any(isinstance(one, Note) for one in ending) else [*ending, *found]
    if attempt.sized and not attempt.made:
        return [CreateJob()] if attempt.whole and attempt.offer.owner is not None else []
    if attempt.adopted:
        found += _adopting(attempt, seen)
    elif seen.job is None and not attempt.made:
        return [CreateJob()] if attempt.whole else []
    group = seen.group
    waits = group is not None and not group.let_in and not group.judged and not seen.pods
    if group is not None and waits and wall_s - group.created_s > LET_IN_S:
        found.append(LetIn(group.name))
    if seen.job is not None and seen.job.suspended and attempt.whole:
        found.append(Begin(seen.job.uid))
    lacks = seen.job is not None and seen.job.secret and not attempt.secret
    if seen.job is not None and lacks and attempt.whole:
        found.append(MakeSecret(seen.job.uid))
    for rank, member in attempt.members.items():
        one = seen.pods.get(rank)
        if one is not None and one.gated:
            # What differs between members is written on the Job.
            if member.go and member.pod in ("", one.uid) and seen.job is not None and not lacks:
                found.append(Open(rank, one.uid))
        elif one is not None and one.going and member.limited and one.limit_s != member.limit_s:
            found.append(SetLimit(rank, one.uid, member.limit_s))
        elif one is not None and one.going and one.attempt != attempt.name:
            found.append(Relabel(rank, one.uid))
    return found


def _adopting(attempt: Attempt, seen: Seen) -> list[Write]:
    """Of a member without a pod: the next one that is offered, once there are enough. Where the size of their Job
    changes the last ones leave first, so that each member is the one of its number."""
    lack = [rank for rank, member in attempt.members.items() if rank not in seen.pods and not member.pod]
    pods = attempt.offer.pods
    if not lack or len(pods) < len(lack):
        return []
    if seen.job is not None and seen.job.in_place:  # which says all of it, after a restart too
        numbered = {one.number: one for one in pods}
        if not numbered.keys() >= set(lack):
            return []
        return [Adopt(rank, numbered[rank].uid, numbered[rank].name) for rank in lack]
    if not attempt.whole:
        return []
    return [Adopt(rank, one.uid, one.name) for rank, one in zip(lack, pods, strict=False)]


def _given_back(attempt: Attempt, seen: Seen, now_s: float) -> list[Write]:
    """Of an attempt that is over, and whose pods somebody else has made. Who was to go on in the next one ends, if
    there is none."""
    found: list[Write] = [FindJob()] if attempt.maybe else []
    for rank, pod in seen.pods.items():
        if pod.in_place and pod.going and pod.deleted_s is None:
            found.append(DeletePod(rank, pod.uid, now_s + pod.grace_s))
        else:
            found.append(Release(rank, pod.uid))
    if seen.job is not None and seen.job.in_place:
        found.append(GiveBack(seen.job.name, seen.job.uid, seen.job.kind))
    return found


def _resizing(attempt: Attempt, seen: Seen, now_s: float, wall_s: float) -> list[Write]:
    """Of an attempt whose first members go on in the next one."""
    found: list[Write] = []
    notes: list[Write] = []
    for rank, pod in seen.pods.items():
        if (member := attempt.members.get(rank)) is None:
            continue
        if member.ended is None and member.stays and not pod.over:
            found.append(Leave(rank, pod.uid))
        elif member.acknowledged and not member.stays and pod.over and pod.held:
            found.append(Release(rank, pod.uid))
        elif member.stop is not None and not pod.over:
            ends_s = _ends_s(pod)
            if not pod.ended_by:
                notes.append(Note(rank, pod.uid, member.stop.reason.value))
            elif ends_s is not None and max(member.stop.until_s - now_s, 1.0) + wall_s < ends_s - SLACK_S:
                found.append(DeletePod(rank, pod.uid, member.stop.until_s))
    to = attempt.staying
    if not notes and seen.job is not None and seen.job.replicas > to and not seen.job.going_away:
        found.append(Shrink(seen.job.name, seen.job.replicas, to))
    return [*notes, *found]


def may_replace(attempt: Attempt, seen: Seen, rank: int) -> bool:
    """Whether the pod of a member has failed, and another one may take its place while the others train on.

    Where those meet, the first one has to run on. A pod that the cluster has leave its node could not come back there.
    """
    job, member, pod, first = seen.job, attempt.members[rank], seen.pods.get(rank), seen.pods.get(0)
    if job is None or not job.in_place or job.going_away or job.replicas != len(attempt.members):
        return False
    if attempt.ends or attempt.staying or attempt.refused is not None or member.ended is not None:
        return False
    if rank == 0 or pod is None or not pod.over or pod.began_s is None or pod.ended_s is None or pod.ended_by:
        return False
    if first is None or not first.going or first.began_s is None or first.deleted_s is not None:
        return False
    how = exit_of(pod)
    if good(how) or how.reason is EndReason.NOT_STARTED or leaves_node(pod):
        return False
    return pod.restarts < MOST_REPLACED or pod.ended_s - pod.began_s >= WELL_S


def may_take_over(attempt: Attempt, seen: Seen, before: Attempt, seen_before: Seen) -> bool | None:
    """Whether an attempt that is to begin goes on with the Job of the one before it, and with the members of it that
    stay; None: not yet, as something of it is still there that does not stay."""
    job, stays = seen_before.job, before.staying
    if seen.job is not None or attempt.made or not stays or job is None or job.going_away:
        return False
    for rank in range(stays):
        there, own, pod = before.members.get(rank), attempt.members.get(rank), seen_before.pods.get(rank)
        if there is None or own is None or pod is None or there.node != own.node or not pod.going or pod.deleted_s:
            return False
    left = any(rank >= stays for rank in seen_before.pods)
    return None if left or job.replicas > stays or not before.forgotten else True


def _ending(attempt: Attempt, seen: Seen, now_s: float, wall_s: float) -> list[Write]:
    notes: list[Write] = []
    deletes: list[Write] = []
    for rank, pod in seen.pods.items():
        member = attempt.members[rank]
        stop = member.stop
        if attempt.adopted and pod.gated:  # it goes back to where it waited, unless it is let go meanwhile
            deletes.append(Release(rank, pod.uid))
        if pod.over or pod.gated or (stop is None and member.failed is None):
            continue
        if stop is not None and not pod.ended_by:
            notes.append(Note(rank, pod.uid, stop.reason.value))
            continue
        until_s = now_s if stop is None else stop.until_s
        ends_s = _ends_s(pod)
        if ends_s is None or max(until_s - now_s, 1.0) + wall_s < ends_s - SLACK_S:
            deletes.append(DeletePod(rank, pod.uid, 0.0 if stop is None else until_s))
    if notes:
        return notes
    found: list[Write] = []
    if attempt.there(seen) and (seen.job is None or attempt.adopted):
        found.append(FindJob())
    if seen.job is not None and seen.job.in_place and attempt.adopted:
        found.append(GiveBack(seen.job.name, seen.job.uid, seen.job.kind))
    elif seen.job is not None and not seen.job.going_away and not attempt.adopted:
        found.append(DeleteJob(seen.job.name, seen.job.uid))
    return found + deletes


def _ends_s(pod: Pod) -> float | None:
    """When it will be killed, by the cluster's clock; None: it is not being ended."""
    if pod.deleted_s is None:
        return None
    return pod.deleted_s + float(pod.item["metadata"].get("deletionGracePeriodSeconds") or 0.0)


def status_of(attempt: Attempt, rank: int, pod: Pod | None) -> RunStatus:
    """What is to be told of a member."""
    member, run = attempt.members[rank], run_of(attempt.name, rank)
    if member.ended is not None:
        ran = member.began_s is not None or (member.ended.exit_code, member.ended.signal) != (None, None)
        return RunStatus(run, RunPhase.EXITED, exit=member.ended, pod=member.pod if ran else "")
    if pod is None or pod.gated:
        if member.stop is not None or member.failed is not None or attempt.refused is not None:
            return RunStatus(run, RunPhase.STOPPING)
        if member.restarts:
            return _again(member, run, "")
        return RunStatus(run, RunPhase.PREPARED if pod is not None and member.hold else RunPhase.STARTING)
    began = pod.uid if pod.began_s is not None else ""
    if member.stop is not None or pod.deleted_s is not None or member.failed is not None:
        return RunStatus(run, RunPhase.STOPPING, pod=began)
    if pod.over:  # its log is fetched
        return member.told or RunStatus(run, RunPhase.RUNNING, pod=began)
    if began or member.restarts:
        return _again(member, run, began)
    return RunStatus(run, RunPhase.PREPARED if member.hold else RunPhase.STARTING)


def _again(member: Member, run: str, began: str) -> RunStatus:
    """Of a member that runs, or for which another pod comes: the attempt goes on meanwhile."""
    pod = began or member.replaced
    return RunStatus(run, RunPhase.RUNNING, pod=pod, restarts=member.restarts, restarted=member.restarted)


def end_of(attempt: Attempt, rank: int, pod: Pod) -> RunExit:
    """How a member ended whose pod is over."""
    member, how = attempt.members[rank], exit_of(pod)
    return how if member.failed is None or how.reason is not None else member.failed


def what_happened(pod: Pod) -> str:
    """How a pod ended that is replaced, for people."""
    how = exit_of(pod)
    if how.reason is not None:
        return f"ended ({how.reason.value.replace('_', ' ')}{': ' if how.message else ''}{how.message})"
    return f"failed ({f'signal {how.signal}' if how.signal is not None else f'exit code {how.exit_code}'})"


def end_without_pod(attempt: Attempt, rank: int, seen: Seen) -> RunExit | None:
    """How a member ended of which no pod is left, or none was made; None: one may come, or is there."""
    member, at_s, pod = attempt.members[rank], time.time(), seen.pods.get(rank)
    again = pod is not None and pod.gated and member.pod not in ("", pod.uid)  # another one was made
    # Nobody binds a pod any more that is being deleted: our finalizer alone keeps it.
    never = pod is not None and pod.held and pod.deleted_s is not None and not pod.node and not pod.over
    at_s = at_s if pod is None or pod.deleted_s is None else pod.deleted_s
    # Somebody has deleted its Job, and left its pods: who waits at the gate would wait for ever.
    # One that we were about to let go may begin yet.
    orphaned = pod is not None and pod.gated and attempt.made and attempt.gone and member.pod != pod.uid
    if (pod is not None and not (again or never or orphaned)) or member.ended is not None:
        return None
    there = attempt.there(seen)
    if attempt.refused is not None and not there:
        return attempt.refused
    if member.failed is not None and (never or not there):
        return member.failed
    if member.stop is not None and (never or not there):
        began = member.began_s is not None
        why = "its pod was taken away before its end was seen" if began else "it was stopped before it started"
        return RunExit(None, None, member.stop.reason, why, at_s)
    if never and pod is not None and pod.by_us is not None:  # by a scheduler before
        return RunExit(None, None, pod.by_us, "it was stopped before it started", at_s)
    if never or (attempt.made and attempt.gone):
        why = f"its {'pod' if never else 'Job'} was deleted by somebody else"
        return RunExit(None, None, EndReason.NODE, why, at_s, cause=Cause.NODE)
    if member.pod and there:
        why = "its pod was taken away by force before its end was seen"
        return RunExit(None, None, EndReason.NODE, why, at_s, cause=Cause.NODE)
    return None


def found_of(
    name: str, members: Sequence[tuple[str, int]], *, hold: bool, gone: bool = False, adopted: bool = False
) -> Attempt:
    """An attempt that is in the cluster, and that nobody here has asked for yet: until somebody does, none of it that
    has not begun is let go. gone: its Job is there no more. adopted: somebody else has made its pods."""
    found = {rank: Member(node, hold) for rank, (node, _) in enumerate(members)}
    return Attempt(name, found, made=True, gone=gone, adopted=adopted)
