"""Jobs that others make in the cluster (with `kubectl apply`, a pipeline, an operator), and that gpuloom schedules.

Their pods wait at gpuloom's gate, or for a scheduler of its name, in the namespace in which it runs jobs. What starts
together (kubernetes/jobs.py: Standing) is a job of the queue like any other; where the policy starts it, the executor
takes its pods and lets them go. Whoever has made them makes them anew where that is to be, and then it waits again.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from gpuloom.agent.inventory import model_name
from gpuloom.core.cluster import plain_model
from gpuloom.core.decision import WaitCode
from gpuloom.core.end_reason import EndReason
from gpuloom.core.errors import GpuloomError
from gpuloom.core.job import ACTIVE, ENDED, Job, Phase
from gpuloom.core.replicas import Replicas, replicas_of
from gpuloom.core.spec import Launcher, OnPreempt, Spec
from gpuloom.core.sums import sum_ints
from gpuloom.executors.kubernetes.kinds import INDEXED, VOLCANO, JobKind
from gpuloom.executors.kubernetes.marks import ADOPTED
from gpuloom.executors.kubernetes.wanted import Offer, Offered, Owner
from gpuloom.kubernetes.api import Api, ApiError, Object
from gpuloom.kubernetes.events import pod_reference, say
from gpuloom.kubernetes.informer import Informer
from gpuloom.kubernetes.jobs import SETTLES_S, Standing, State, base_name, standings
from gpuloom.kubernetes.objects import GATE, HOME, Kind, OriginSeen, PodSeen, Reader
from gpuloom.live.planning.cluster_jobs import submitted, updated
from gpuloom.live.planning.reasons import why
from gpuloom.live.records.ledger import Draft
from gpuloom.live.scheduler import Scheduler
from gpuloom.store.port import Submission
from gpuloom.threads import Worker

log = logging.getLogger("gpuloom.adopting")

GONE_S = 60.0
"""A job of which nothing was seen for so long is gone: its owner may be about to make its pods anew."""
MOST_PRIORITY = 1_000_000
SAY_S = 60.0
"""Least time between two Events of why a job waits."""
AGAIN_S = 30.0
"""What is still there so long after it was told to go is told once more."""
_KINDS: Mapping[Kind, JobKind] = {Kind.BATCH: INDEXED, Kind.VOLCANO: VOLCANO}
_KEY = "pods:"
_GONE = "its pods were deleted"
_OVER = "it ended without another run"
_PATHS = {
    "Job": "/apis/batch/v1/namespaces/{}/jobs/{}",
    "Job.batch.volcano.sh": "/apis/batch.volcano.sh/v1alpha1/namespaces/{}/jobs/{}",
    "Pod": "/api/v1/namespaces/{}/pods/{}",
}
"""Of what a cancelled job is deleted with: the object by which its pods are made, by its kind."""


@dataclass(frozen=True, slots=True)
class _Found:
    """A job as it stands in the cluster. waits: its pods that wait for us, in the order of members. ready: those are
    all that it is to have now. settled: for a while no other ones have come. origin: the object that makes them, where
    that is known."""

    standing: Standing
    waits: tuple[PodSeen, ...]
    ready: bool
    settled: bool
    origin: OriginSeen | None


class Adopting:
    """Used by one thread: `look` after each change. `start` it once the scheduler has begun.

    Args:
        kind: of Jobs that are made here; of others those that are seen can change their size. pods: those of all
            namespaces that are none of our own attempts. offer: told which pods wait for which job.
    """

    def __init__(
        self,
        api: Api,
        namespace: str,
        home: str,
        kind: JobKind,
        reader: Reader,
        pods: Callable[[], Iterable[PodSeen]],
        offer: Callable[[Mapping[int, Offer]], None],
        news: Callable[[], None],
        waits: Callable[[float], bool],
    ) -> None:
        self._api, self._namespace, self._home, self._pods, self._offer = api, namespace, home, pods, offer
        self._sized = {Kind.BATCH, Kind.VOLCANO} if kind is VOLCANO else {Kind.BATCH}

        def others(read: Callable[[Object], OriginSeen | None]) -> Callable[[Object], OriginSeen | None]:
            def seen(item: Object) -> OriginSeen | None:
                about = item["metadata"]
                own = HOME in (about.get("labels") or {}) and ADOPTED not in (about.get("annotations") or {})
                return None if own else read(item)

            return seen

        within = f"namespaces/{namespace}/jobs"
        self._origins = [
            Informer(api, f"/apis/batch/v1/{within}", others(reader.batch_job), news, waits),
            Informer(api, f"/apis/batch.volcano.sh/v1alpha1/{within}", others(reader.volcano_job), news, waits),
        ]
        self._watches = [Worker(f"watch {one.path}", one.run) for one in self._origins]
        self._numbers: dict[str, int | None] = {}
        """By key of a standing, its job; None: it has none."""
        self._since: dict[str, tuple[frozenset[str], float]] = {}
        """By key: pods that wait, and since when these."""
        self._unseen: dict[int, float] = {}
        """By job, since when nothing of it is to be seen."""
        self._waiting: set[int] = set()
        """Jobs that had not ended when they were last looked at."""
        self._looked_up: set[str] = set()
        """Pods that were asked for in the store by themselves."""
        self._told: set[tuple[str, str]] = set()
        """What was said to be wrong with pods, by their uids."""
        self._why: dict[int, tuple[str, float]] = {}
        """By job, the code of the reason that was said last, and when."""
        self._deleted: dict[str, float] = {}
        """By uid, when an object was last told to go."""

    def start(self, scheduler: Scheduler) -> None:
        """Begin to read. Raises GpuloomError: nothing can be read."""
        self._scheduler = scheduler
        jobs = list(scheduler.book.jobs.items())
        self._waiting = {number for number, job in jobs if job.spec.adopted and job.phase not in ENDED}
        for worker in self._watches:
            if not worker.start():
                raise GpuloomError(worker.problem)

    def join(self) -> None:
        """Once the API is closed: wait for those who watch."""
        for one in self._watches:
            one.end(5.0)

    @property
    def problem(self) -> str:
        told = [*(one.problem for one in self._origins), *(one.problem for one in self._watches)]
        return "; ".join(dict.fromkeys(text for text in told if text))

    def look(self) -> None:
        """Bring the queue and the cluster together; now and then, too, though nothing has changed."""
        if not all(one.settled.is_set() for one in self._origins):
            return
        for pod in self._pods():
            if pod.namespace == self._namespace and not pod.asked.gpus:
                self._let_go(pod)
        now_s = self._scheduler.clock.now()
        found = self._found(now_s)
        self._numbers = {key: self._numbers.get(key) for key in found}
        uids = {pod.uid for pod in self._pods()}
        self._told = {told for told in self._told if told[0] in uids}
        if not found and not self._waiting:
            return
        try:
            self._scheduler.do(lambda: self._take(found, now_s))
        except GpuloomError as error:  # a full disk, a job that has changed meanwhile: it is looked at again
            log.error("jobs that were made in the cluster can't be written down: %s", error)
            return
        offered: dict[int, Offer] = {}
        jobs = self._scheduler.book.jobs
        for key, one in found.items():
            number = self._numbers.get(key)
            job = None if number is None else jobs.get(number)
            if number is None or job is None:
                continue
            if job.phase is Phase.CANCELLED and job.reason is EndReason.CANCELLED and one.standing.state != State.ENDED:
                self._delete(job, one)
            elif job.phase not in ENDED:
                pods = tuple(Offered(pod.uid, pod.name, pod.index) for pod in one.waits)
                offered[number] = Offer(pods, None if job.spec.elastic is None else _owner(one.origin))
        self._offer(offered)
        self._say_why(found, time.monotonic())

    # -- what is in the cluster -------------------------------------------------------------------------------------

    def _found(self, now_s: float) -> dict[str, _Found]:
        """All jobs with pods that wait for us, or that we have, or of which that may be so again. By key."""
        pods = self._concerned()
        origins = [one for each in self._origins for one in each.items()]
        singles = {pod.uid for pod in pods if pod.notes.get("apart") == "true" or self._is_single(pod)}
        known = self._seen(pods, origins, singles, now_s)
        # Pods that come while it runs (it was scaled up, or one has failed) are jobs of their own; but of a job whose
        # size changes they are its members.
        late = {pod.uid for key, one in known.items() if one.settled and self._runs_fixed(key) for pod in one.waits}
        return self._seen(pods, origins, singles | late, now_s) if late else known

    def _is_single(self, pod: PodSeen) -> bool:
        """Whether a pod was a job of its own before, though it has an owner."""
        if pod.owner is None or not (pod.comes or pod.home):
            return False
        if pod.uid not in self._looked_up:
            self._looked_up.add(pod.uid)
            self._number(pod.uid)
        return self._numbers.get(pod.uid) is not None

    def _runs_fixed(self, key: str) -> bool:
        number = self._numbers.get(key)
        job = None if number is None else self._scheduler.book.jobs.get(number)
        return job is not None and job.phase is Phase.RUNNING and job.spec.elastic is None

    def _seen(
        self, pods: Sequence[PodSeen], origins: Sequence[OriginSeen], singles: Set[str], now_s: float
    ) -> dict[str, _Found]:
        """By key. singles: uids of pods that are jobs of their own."""
        there = {pod.uid for pod in pods} | {one.uid for one in origins}
        self._deleted = {uid: at_s for uid, at_s in self._deleted.items() if uid in there}
        self._looked_up &= there
        by_name = {pod.name: pod for pod in pods}
        by_uid = {one.uid: one for one in origins}
        makers = {*by_uid, *(one.owner.uid for one in origins if one.owner is not None)}
        since, found = self._since, dict[str, _Found]()
        self._since = {}
        loose = [replace(pod, owner=None, gang="") if pod.uid in singles else pod for pod in pods]
        for one in standings(loose, origins, now_s):
            its = [by_name[name] for name in one.pods if name in by_name]
            waits = sorted((pod for pod in its if pod.comes and not pod.home), key=_order)
            if not (waits or any(pod.home == self._home for pod in its) or one.key in self._numbers):
                continue
            names, origin = frozenset(pod.uid for pod in waits), by_uid.get(one.key)
            before, at_s = since.get(one.key, (names, now_s))
            self._since[one.key] = names, at_s if before == names else now_s
            alive = [pod for pod in its if not pod.over]
            only_ours = all(pod.gates in ((), (GATE,)) for pod in waits)
            whole = bool(waits) and len(alive) == len(waits) and only_ours and not one.held
            settled = now_s - self._since[one.key][1] >= SETTLES_S
            number = self._number(one.key)
            made = one.key in makers
            all_there = made and sum_ints(pod.asked.gpus for pod in waits) == one.gpus
            alone = any(pod.uid == one.key for pod in its)
            ready = whole and (all_there or alone or ((number is not None or not made) and settled))
            found[one.key] = _Found(one, tuple(waits), ready, settled, origin)
        return found

    def _concerned(self) -> list[PodSeen]:
        """Pods that wait for us, that we have or had, and those with which these are one job: others may be many."""
        pods = [pod for pod in self._pods() if pod.namespace == self._namespace and pod.asked.gpus]
        ours = [pod for pod in pods if pod.comes or pod.home or pod.uid in self._numbers]
        owners = {*self._numbers, *(pod.owner.uid for pod in ours if pod.owner is not None)}
        gangs = {pod.gang for pod in ours if pod.gang}

        def with_ours(pod: PodSeen) -> bool:
            return pod.gang in gangs or (pod.owner is not None and pod.owner.uid in owners)

        return [pod for pod in pods if pod.comes or pod.home or pod.uid in self._numbers or with_ours(pod)]

    def _number(self, key: str) -> int | None:
        number = self._numbers.get(key)
        if number is None and (stored := self._scheduler.store.submission(_KEY + key)) is not None:
            number = self._numbers[key] = stored.jobs[0]
        return number

    # -- what is in the records: in the scheduler's thread ----------------------------------------------------------

    def _take(self, found: Mapping[str, _Found], now_s: float) -> None:
        drafts: list[Draft] = []
        submissions: list[Submission] = []
        ledger, estimates = self._scheduler.ledger, self._scheduler.estimates
        number = ledger.book.next_job
        new: dict[str, int] = {}
        back: set[int] = set()
        for key, one in sorted(found.items(), key=lambda each: (each[1].standing.submitted_s, each[1].standing.name)):
            known = self._number(key)
            if not one.ready:
                continue
            spec = self._spec(one)
            if known is None:
                drafts.append(submitted(number, _user(one), spec, one.standing.name, estimates))
                submissions.append(Submission(_KEY + key, one.standing.kind, (number,), one.standing.submitted_s))
                new[key] = number
                number += 1
                continue
            job = ledger.book.jobs.get(known) or self._scheduler.store.job(known)
            if (
                job is None
                or job.phase in ACTIVE
                or (job.phase is Phase.CANCELLED and job.reason is EndReason.CANCELLED)
            ):
                continue
            ledger.book.jobs.setdefault(known, job)
            if job.phase in ENDED:
                drafts.append(("job.requeued", known, {}))
                back.add(known)
            had, has = (replace(one, gpus=0) if one.elastic else one for one in (job.spec, spec))
            if (had.gpus, had.replica_gpus, had.elastic) != (has.gpus, has.replica_gpus, has.elastic):
                spec = replace(job.spec, gpus=spec.gpus, replica_gpus=spec.replica_gpus, elastic=spec.elastic)
                drafts.append(updated(known, _user(one), spec, one.standing.name, estimates))
        drafts += self._vanished(found, now_s)
        if not drafts:
            return
        ledger.write(drafts, submissions)
        self._numbers |= new
        self._waiting |= {*new.values(), *back}
        self._scheduler.planning.stale()

    def _vanished(self, found: Mapping[str, _Found], now_s: float) -> list[Draft]:
        """Jobs that wait, and of which nothing is there any more."""
        goes_on = {
            number
            for key, one in found.items()
            if one.standing.state is not State.ENDED and (number := self._number(key)) is not None
        }
        over = {
            number
            for key, one in found.items()
            if one.standing.state is State.ENDED and (number := self._number(key)) is not None
        }
        drafts: list[Draft] = []
        unseen: dict[int, float] = {}
        jobs = self._scheduler.book.jobs
        self._waiting = {number for number in self._waiting if number in jobs and jobs[number].phase not in ENDED}
        for number in self._waiting:
            if (job := jobs[number]).phase in ACTIVE or number in goes_on:
                continue
            since_s = self._unseen.get(number, now_s)
            if number in over or now_s - since_s >= (GONE_S if job.attempts else 0.0):
                data = {"message": _OVER if number in over else _GONE, "reason": EndReason.LOST.value}
                drafts.append(("job.cancelled", number, data))
            else:
                unseen[number] = since_s
        self._unseen = unseen
        return drafts

    def _spec(self, one: _Found) -> Spec:
        first = max(one.waits, key=lambda pod: pod.asked.gpus)
        asked, notes, each = first.asked, first.notes, first.asked.gpus
        models = [model_name(name, None) or name for name in asked.models]
        if given := [name.strip() for name in notes.get("gpu-types", "").split(",") if name.strip()]:
            models = [name for name in given if plain_model(name)]
            if models != given:
                self._say(first, "gpu-types", "names of GPU models, such as A100,H100")
        sizes = self._sizes(one, first)
        gpus = each * len(one.waits)
        if sizes is not None:  # what was made anew has the size that it was given last
            gpus = min(max(gpus, sizes.sizes[0]), sizes.sizes[-1])
        on_preempt, usual = OnPreempt.NEVER, OnPreempt.NEVER if sizes is None else OnPreempt.CHECKPOINT
        if (text := notes.get("on-preempt", usual.value)) == OnPreempt.CHECKPOINT.value and first.owner is not None:
            on_preempt = OnPreempt.CHECKPOINT
        elif text != OnPreempt.NEVER.value:
            why = "checkpoint or never" if first.owner is not None else "never, as nobody makes this pod anew"
            self._say(first, "on-preempt", why)
        return Spec(
            command=tuple(filter(None, (asked.image, *asked.command))) or ("pod",),
            name=base_name(one.standing.name),
            gpus=gpus,
            elastic=None if sizes is None else f"{sizes.least}-{sizes.most}",
            replica_gpus=each,
            launcher=Launcher.ADOPTED,
            gpu_types=tuple(dict.fromkeys(models)),
            priority=max(min(one.standing.priority, MOST_PRIORITY), -MOST_PRIORITY),
            estimate=asked.estimate_s,
            grace=asked.grace_s,
            on_preempt=on_preempt,
            container=asked.image or None,
            model=notes.get("model"),
        )

    def _sizes(self, one: _Found, first: PodSeen) -> Replicas | None:
        """How many of its pods it may have; None: as many as there are."""
        if (text := first.notes.get("elastic")) is None:
            return None
        origin = one.origin
        if origin is None or origin.replicas is None or origin.kind not in self._sized:
            others = " or a Volcano Job with GPUs in one task" if Kind.VOLCANO in self._sized else ""
            right = f"only an Indexed Job with as many completions as pods{others} can be resized"
            self._warn(first, "BadAnnotation", f"gpuloom.io/elastic counts for nothing: {right}")
            return None
        try:
            return replicas_of(text, first.asked.gpus)
        except ValueError as error:
            self._say(first, "elastic", f"the fewest and the most pods, such as 1-8 ({error})")
            return None

    # -- what is written to the cluster -----------------------------------------------------------------------------

    def _let_go(self, pod: PodSeen) -> None:
        """One without GPUs (a launcher, a parameter server) waits for nothing; but nobody else binds it without a
        gate."""
        if not pod.gates:
            self._warn(pod, "NoGpus", "it asks for no GPU, and gpuloom binds none such: give it another schedulerName")
        if pod.gates != (GATE,):
            return
        path = "/spec/schedulingGates/0"
        patch = [{"op": "test", "path": f"{path}/name", "value": GATE}, {"op": "remove", "path": path}]
        try:
            self._api.change(_PATHS["Pod"].format(self._namespace, pod.name), patch)
        except (ApiError, OSError) as error:
            if getattr(error, "status", None) not in (404, 422):
                log.warning("pod %s/%s can't be let go: %s", pod.namespace, pod.name, error)

    def _delete(self, job: Job, one: _Found) -> None:
        """Its user has cancelled it, so that its pods are not to be made anew."""
        kind = one.origin.kind.value if one.origin is not None else one.standing.kind
        name = one.origin.name if one.origin is not None else one.standing.name
        uid = one.origin.uid if one.origin is not None else next((pod.uid for pod in one.waits), "")
        now_s = time.monotonic()
        if (path := _PATHS.get(kind)) is None or not uid or now_s - self._deleted.get(uid, -math.inf) < AGAIN_S:
            return
        self._deleted[uid] = now_s
        try:
            self._api.delete(
                path.format(self._namespace, name), propagationPolicy="Background", preconditions={"uid": uid}
            )
        except (ApiError, OSError) as error:
            if getattr(error, "status", None) not in (404, 409):
                log.warning("job %d: %s %s can't be deleted: %s", job.id, kind, name, error)

    def _say_why(self, found: Mapping[str, _Found], now_s: float) -> None:
        """Why each waits, as an Event of its first pod: when that has become another reason, and not too often."""
        jobs, told = self._scheduler.book.jobs, self._why
        waits = {
            number: one.waits[0]
            for key, one in found.items()
            if (number := self._numbers.get(key)) is not None
            and one.waits
            and number in jobs
            and jobs[number].phase in (Phase.QUEUED, Phase.HELD)
        }
        self._why = {number: told.get(number, ("", -math.inf)) for number in waits}
        due = [number for number, (_, at_s) in self._why.items() if now_s - at_s >= SAY_S]
        if not due:
            return
        planning, clock = self._scheduler.planning, self._scheduler.clock
        for number, reason in self._scheduler.do(lambda: why(planning, due, clock.now())).items():
            before, at_s = self._why[number]
            if reason.code == WaitCode.QUEUED and at_s == -math.inf:
                continue  # it has only come
            self._why[number] = reason.code, now_s
            if reason.code != before:
                of = pod_reference(waits[number].name, waits[number].uid)
                say(self._api, self._namespace, of, "Waits", f"{reason.text} (`gpuloom why {number}`)")

    def _say(self, pod: PodSeen, note: str, right: str) -> None:
        """That an annotation counts for nothing."""
        text = f"gpuloom.io/{note} is {pod.notes.get(note, '')!r:.100} and counts for nothing: it may be {right}"
        self._warn(pod, "BadAnnotation", text)

    def _warn(self, pod: PodSeen, reason: str, text: str) -> None:
        """Once, in the log and as an Event."""
        if (pod.uid, text) in self._told:
            return
        self._told.add((pod.uid, text))
        log.warning("pod %s/%s: %s", pod.namespace, pod.name, text)
        say(self._api, self._namespace, pod_reference(pod.name, pod.uid), reason, text, warns=True)


def _owner(origin: OriginSeen | None) -> Owner | None:
    if origin is None or origin.kind not in _KINDS:
        return None
    return Owner(origin.name, origin.uid, _KINDS[origin.kind], origin.task)


def _order(pod: PodSeen) -> tuple[int, float, str]:
    return pod.index, pod.created_s, pod.name


def _user(one: _Found) -> str:
    """Whose it is: as an annotation says, else its queue (of Kueue or Volcano), else its namespace."""
    first = one.waits[0]
    return first.notes.get("user") or first.queue or one.standing.namespace
