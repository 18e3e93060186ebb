"""Why a job waits, and when it will start: the policy's reason, and a forecast (live/forecasts), in words."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from gpuloom.core.decision import Reason
from gpuloom.core.errors import GpuloomError
from gpuloom.core.job import ENDED, Job, Phase
from gpuloom.core.spec import OnPreempt
from gpuloom.core.units import format_duration, money
from gpuloom.core.words import plural
from gpuloom.live.forecasts import words as said
from gpuloom.live.forecasts.forecast import ForecastFailed, Outlook, Queue, outlook
from gpuloom.live.forecasts.left import Left
from gpuloom.live.forecasts.preview import gate_of, preview
from gpuloom.live.planning.lacks import lacks
from gpuloom.live.planning.lasting import lasting
from gpuloom.live.planning.planning import Planning
from gpuloom.live.planning.reasons import why
from gpuloom.live.scheduler import Scheduler
from gpuloom.live.views.costs import job_cost_usd
from gpuloom.live.views.job_answers import WhyView
from gpuloom.live.views.jobs import ends_in
from gpuloom.live.views.sizes import why_this_size

log = logging.getLogger("gpuloom.scheduler")

FRESH_S = 2.0
"""How long a forecast is reused if nothing happens."""
KEPT = 2
"""Number of moments or priorities whose prepared state is kept: it may be large."""


@dataclass(frozen=True, slots=True)
class _Prepared:
    """For forecasts of a moment. queue: None if no GPU can be given away at all. told: by job."""

    at_s: float
    queue: Queue | None
    told: dict[int, Outlook] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a job at a moment.

    reason: why it waits; None: it does not. left: of its work. starting_s: it goes on starting up for so long. since_s:
    so long it has held its GPUs. lacks: what the policy is not told of.
    """

    job: Job
    reason: Reason | None
    now_s: float
    left: Left
    starting_s: float = 0.0
    since_s: float | None = None
    lacks: Sequence[str] = ()
    size: str = ""
    """Of an elastic job that runs, a sentence on its size."""
    cost_usd: float | None = None
    """Of one that does not wait, until now; None: not known."""
    apart: Sequence[str] = ()
    """Sentences on the jobs beside which it did not pay."""


@dataclass(frozen=True, slots=True)
class Among:
    """The queue in which a job waits. names: of the jobs on which its start depends. assumptions: of the forecast."""

    waiting: int
    names: Mapping[int, str] = field(default_factory=dict)
    assumptions: Sequence[str] = ()


class _Key(NamedTuple):
    """Of jobs with the same forecasts. closed: nodes whose time with us ends too soon for them."""

    event: int
    priority: int
    policy: str
    closed: frozenset[str]


@dataclass(frozen=True, slots=True)
class _Facts:
    """What the scheduler's thread hands out, all of one moment. prepared: for a forecast, as another has left it;
    planning: a copy, to prepare one. key: of what is prepared."""

    known: Known
    prepared: _Prepared | None
    planning: Planning | None
    key: _Key


class Whys:
    """Answers to `gpuloom why`, from any thread. Forecasts are made in the caller's; those of one moment share their
    preparations."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._lock = threading.Lock()
        self._kept: OrderedDict[_Key, _Prepared] = OrderedDict()

    def view(self, job: Job, *, forecast: bool) -> WhyView:
        """The answer for one job."""
        scheduler = self._scheduler

        def facts() -> _Facts:
            now = scheduler.clock.now()
            current = scheduler.book.jobs.get(job.id, job)
            attempt = scheduler.book.attempts.get(job.id)
            reason = why(scheduler.planning, [job.id], now).get(job.id)
            wanted = forecast and reason is not None
            key = self._key(current, now)
            prepared = self._prepared(key, now) if wanted else None
            known = Known(
                current,
                reason,
                now,
                scheduler.left(current),
                scheduler.work.starting_s(job.id, now),
                None if attempt is None else attempt.since_s,
                [lack.text for lack in lacks(scheduler.planning)] if current.phase not in ENDED else [],
                why_this_size(scheduler.planning, current, _resized(scheduler, current)),
                None if reason is not None else job_cost_usd(scheduler.store.attempts([job.id]), now),
                kept_apart(scheduler, current, now) if scheduler.planning.policy.weaves else [],
            )
            copied = scheduler.planning.copy() if wanted and prepared is None else None
            return _Facts(known, prepared, copied, key)

        asked = scheduler.do(facts)
        known = asked.known
        if known.reason is None or not forecast:
            return why_view(known)
        try:
            queue, found = self._outlook(asked)
        except GpuloomError as error:
            text = str(error) if isinstance(error, ForecastFailed) else f"the forecast failed: {error}"
            return why_view(known, Outlook(known.left, cause=text))
        except BaseException as error:  # of the policy, which may be anybody's: it must not cost the rest of the answer
            log.exception("a forecast failed")
            text = f"the forecast failed: {type(error).__name__}: {error}"
            return why_view(known, Outlook(known.left, cause=text))
        return why_view(known, found, None if queue is None or found is None else _among(queue, found))

    def _key(self, job: Job, now_s: float) -> _Key:
        scheduler, planning = self._scheduler, self._scheduler.planning
        tied = lasting(planning.scene, [job.id] if job.id in scheduler.book.jobs else [], now_s).tied.get(job.id)
        closed = frozenset[str]() if tied is None or not tied.lasting else tied.short
        return _Key(scheduler.ledger.newest, job.priority, planning.seat.written, closed)

    def _prepared(self, key: _Key, now_s: float) -> _Prepared | None:
        with self._lock:
            found = self._kept.get(key)
        return found if found is not None and now_s - found.at_s <= FRESH_S else None

    def _outlook(self, asked: _Facts) -> tuple[Queue | None, Outlook | None]:
        """What is expected of the job; (None, None): no GPU can be given away at all."""
        prepared, known = asked.prepared, asked.known
        if prepared is None:
            assert asked.planning is not None  # noqa: S101 - one of the two is there
            found = preview(asked.planning, known.job.priority, known.now_s, closed=asked.key.closed)
            prepared = _Prepared(known.now_s, None if found is None else Queue(found))
            with self._lock:
                self._kept[asked.key] = prepared
                while len(self._kept) > KEPT:
                    self._kept.popitem(last=False)
        queue, told = prepared.queue, prepared.told
        if queue is None:
            return None, None
        if known.job.id not in told:
            told[known.job.id] = outlook(queue, gate_of(queue.preview, known.job), known.job.id)
        return queue, told[known.job.id]


def _resized(scheduler: Scheduler, job: Job) -> tuple[str, Sequence[int]] | None:
    """Why the present attempt has another size than the one before, and the other jobs that this was about."""
    if not job.spec.elastic:
        return None
    told = scheduler.store.events(job=job.id, types=("job.resized",), limit=1, newest=True)
    if not told or told[-1].data["attempt"] != job.attempts:
        return None
    return str(told[-1].data["why"]), list(told[-1].data["jobs"])


def kept_apart(scheduler: Scheduler, job: Job, now_s: float) -> list[str]:
    """With whom a job is not put together for a while, as that was measured and did not pay."""
    if job.phase in ENDED:
        return []
    said = []
    for one in scheduler.sharers.together.against(job):
        if one.full:
            which = ", ".join(map(str, one.members))
            left = format_duration(one.until_s - now_s)
            text = f"The memory of a {one.gpu_model} did not hold jobs {which} together"
            said.append(f"{text}; such are kept apart for {left} more.")
            continue
        kept = ", ".join(f"job {member} {share:.2f}" for member, share in zip(one.members, one.shares, strict=True))
        left = format_duration(one.until_s - now_s)
        said.append(
            f"On {one.gpu_model} jobs {', '.join(map(str, one.members))} were measured together and did not pay: of "
            f"its speed alone {kept} was left, in all {one.gain:.2f} of one job; such are kept apart for {left} more."
        )
    return said


def _among(queue: Queue, found: Outlook) -> Among:
    jobs = queue.preview.planning.book.jobs
    names = {number: jobs[number].name for number in found.unknown}
    return Among(queue.preview.waiting, names, () if found.cause else said.assumptions(found, queue.preview))


def why_view(known: Known, found: Outlook | None = None, among: Among | None = None) -> WhyView:
    """The answer. found: what is expected of one that waits; None: nobody asked, or nothing is. among: its queue."""
    if known.reason is None:
        return _of_one_that_does_not_wait(known)
    return _of_one_that_waits(known, known.reason, found, among)


def _of_one_that_does_not_wait(known: Known) -> WhyView:
    job, now = known.job, known.now_s
    view = _view(known, "does_not_wait", "")
    view["start_s"] = job.first_start_s
    if job.phase in ENDED:
        ago = format_duration(max(now - (job.ended_s or now), 0.0))
        text = f"Job {job.id} does not wait: it has {_ended(job)}, {ago} ago."
        if job.message:
            text += f" {job.message[0].upper()}{job.message[1:]}."
        view["end_s"] = job.ended_s
    elif job.phase is Phase.STOPPING:
        text = f"Job {job.id} does not wait: it was told to stop, and is saving its work or ending."
    else:
        since = format_duration(max(now - (known.since_s or now), 0.0))
        text = f"Job {job.id} does not wait: it is {job.phase} and has held its GPUs for {since}."
        low, median, high = (None if at is None else at + known.starting_s for at in ends_in(known.left))
        view["end_s_low"], view["end_s_median"], view["end_s_high"] = (
            None if at is None else now + at for at in (low, median, high)
        )
        text += f" {said.end_of_one_that_runs(known.left, job, (low, median, high), now)}"
    view["text"] = text
    view["sentences"] = [text, *([known.size] if known.size else []), *known.apart]
    if known.cost_usd:
        view["numbers"] = {"cost_usd": known.cost_usd}
        far = "" if job.phase in ENDED else " so far"
        view["sentences"].append(f"Its GPUs cost {money(known.cost_usd)}{far}, at on-demand prices.")
    return view


def _ended(job: Job) -> str:
    how = "" if job.reason is None or job.reason.value == job.phase.value else f" ({job.reason.replace('_', ' ')})"
    return {"finished": "finished", "failed": "failed", "cancelled": "been cancelled"}[job.phase.value] + how


def _of_one_that_waits(known: Known, reason: Reason, found: Outlook | None, among: Among | None) -> WhyView:
    job, now = known.job, known.now_s
    view = _view(known, reason.code, reason.text)
    view["numbers"] = {key: float(value) for key, value in reason.numbers.items()}
    frozen = "frozen" if job.spec.on_preempt is OnPreempt.FREEZE else "suspended"
    state = f"is {frozen} and waits" if job.phase is Phase.FROZEN else "waits"
    sentences = [f"Job {job.id} ({job.name}, {plural(job.gpus, 'GPU')}) {state}. {reason.text}", *known.apart]
    view["sentences"] = sentences
    if job.phase is Phase.FROZEN and job.spec.suspend_limit is not None:
        limit = format_duration(job.spec.suspend_limit)
        sentences.append(f"It may lie so for {limit} at a time; then it begins anew from its last checkpoint.")
    if found is None:
        return view
    if among is not None:
        view["waiting"] = among.waiting
    view["start_s_low"], view["start_s_median"], view["start_s_high"] = found.start
    view["end_s_low"], view["end_s_median"], view["end_s_high"] = found.end
    view["position"] = found.position
    view["rests_on"] = {source.value: count for source, count in found.rests_on.items()}
    view["unknown"] = list(found.unknown)
    if found.position is not None and among is not None:
        sentences.append(said.position(found, among.waiting))
    sentences.append(said.start(found, among.names if among is not None else {}, now))
    if not found.cause:
        sentences.append(said.own(found, job, now))
    if among is not None:
        view["assumptions"] = list(among.assumptions)
    sentences += known.lacks
    return view


def _view(known: Known, code: str, text: str) -> WhyView:
    left = known.left
    return WhyView(
        job=known.job.id,
        state=known.job.phase.value,
        code=code,
        text=text,
        numbers={},
        position=None,
        waiting=0,
        start_s=None,
        start_s_low=None,
        start_s_median=None,
        start_s_high=None,
        end_s=None,
        end_s_low=None,
        end_s_median=None,
        end_s_high=None,
        source=left.source.value,
        n=len(left.runs),
        overrun_s=left.late_s if known.since_s is not None else 0.0,
        rests_on={},
        unknown=[],
        lacks=list(known.lacks),
        assumptions=[],
        sentences=[],
    )
