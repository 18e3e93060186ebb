"""How long a job will run: by its user, by earlier runs of similar jobs, or unknown.

Two things are kept apart. What is *said* of a job's running time (`Estimate.source`) is known: it is its user's, or
rests on earlier runs of this very job. What scheduling *reckons with* (`Estimate.total_s`) is always a number: where
nothing is known, a guess that nobody is shown.

Users' earlier runs predict better than their own limits (Tsafrir, Etsion, Feitelson, "Backfilling Using System-
Generated Predictions Rather Than User Runtime Estimates", IEEE TPDS 18(6), 2007: the mean of a user's last two jobs).
Here it is the median of the last five of the same user and name, as a job's name says more than its user.
"""

from __future__ import annotations

import math
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from functools import lru_cache
from statistics import median
from types import MappingProxyType
from typing import NamedTuple, Protocol

from gpuloom.core.pace import ALIKE, Pace, ran_on
from gpuloom.core.sums import sum_floats
from gpuloom.store.port import EndedRun

DEFAULT_S = 3600.0
KEEP = 5
"""Runs of which scheduling takes the median."""
SAMPLE = 20
"""Runs on which a forecast rests, at most."""
REMEMBER = 60
"""Runs of a name that are looked through for those."""
ENOUGH = 3
"""From this many ended members on, an array predicts its others better than runs before it; this many estimates make a
user's record."""
ASKS = 5
"""While runs end, the store is asked up to this many times; after that its last answer is used and not remembered."""
MOST_NAMES = 10_000
"""Names that are remembered; the store has all."""
NOWHERE: Mapping[str, float] = MappingProxyType({})
WHOLE = 0.99
"""A run that did this part of its work on one GPU model counts as having been there all the time."""
LEAST_S, MOST_S = 0.001, 1e9
"""Running times that are reckoned with. What lies beyond (thirty years) may stand in an old store."""


class Source(StrEnum):
    """What is known of a job's running time, and whence."""

    GIVEN = "given"
    """Its user's estimate; if there are runs, by how that user's earlier estimates turned out."""
    PROGRESS = "progress"
    """What it reports of its own progress."""
    ARRAY = "array"
    """Members of its array that have ended."""
    EARLIER_RUNS = "earlier_runs"
    """Earlier runs of this very job: same user, name, GPUs, folder and command, but for numbers among its options."""
    TIME_LIMIT = "time_limit"
    """Only an upper bound: its time limit."""
    UNKNOWN = "unknown"
    """Nothing."""


class Like(NamedTuple):
    """What makes two jobs alike. exact, similar: the command and its folder, to the letter and but for numbers."""

    user: str
    name: str
    gpus: int
    exact: str
    similar: str
    array_id: int | None

    @property
    def command(self) -> tuple[str, ...]:
        """Its words."""
        return tuple(self.exact.split("\0")[1:])


class Estimate(NamedTuple):
    """What scheduling reckons with, seconds of work; what is known; the running times by which it is, shortest first.

    limit_s: its time limit. All are seconds on the GPU model of speed 1 (`pace`).
    """

    total_s: float
    source: Source
    runs: tuple[float, ...] = ()
    limit_s: float | None = None


class Called(Protocol):
    """What of a spec makes jobs alike: those of records have it, and those of submissions."""

    @property
    def name(self) -> str: ...

    @property
    def command(self) -> Sequence[str]: ...

    @property
    def workdir(self) -> str: ...


def like_of(spec: Called, user: str, gpus: int, array_id: int | None) -> Like:
    """The same for jobs that may be taken for runs of one job."""
    exact, similar = _signatures(tuple(spec.command), spec.workdir)
    return Like(user, spec.name, gpus, exact, similar, array_id)


_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
_AMOUNT = re.compile(r"epoch|step|iter|time|hour|minute|second|sample|size|length|layer|dim|num|max|count|limit|batch")
"""Options whose numbers say how much there is to do."""


@lru_cache(maxsize=4096)
def _signatures(command: tuple[str, ...], folder: str) -> tuple[str, str]:
    """A command to the letter; and with a blank for each number that an option has (`--lr 0.1`, `--lr=0.1`, `lr=0.1`),
    unless the option's name says that it is an amount of work."""
    words, option = [], ""
    for word in command:
        name, equals, value = word.partition("=")
        if equals and _NUMBER.fullmatch(value) and not _AMOUNT.search(name.lower()):
            words.append(f"{name}=")
        elif option and _NUMBER.fullmatch(word) and not _AMOUNT.search(option.lower()):
            words.append("")
        else:
            words.append(word)
        option = word if word.startswith("--") and not equals else ""
    return "\0".join((folder, *command)), "\0".join((folder, *words))


Earlier = Callable[[str, str, int], Sequence[EndedRun]]
"""(user, name, limit) → the last jobs that finished well; name '' for any."""


class _Past(NamedTuple):
    """An ended job. given_s: its user's estimate. on: of work_s, what it did on which GPU model."""

    work_s: float
    like: Like
    given_s: float | None
    on: Mapping[str, float]


class Estimates:
    """Remembers the last runs by user and name; asks the store once for those of before."""

    def __init__(self, earlier: Earlier) -> None:
        self._earlier = earlier
        self._runs: OrderedDict[tuple[str, str], tuple[_Past, ...]] = OrderedDict()
        self._ended = 0
        """Runs that ended so far: while one does, what the store is being asked for may lack it or have it already."""
        self._lock = threading.Lock()
        self._parts: dict[tuple[object, ...], tuple[Sequence[_Past], tuple[float, ...]]] = {}
        """By runs and pace: what `_turned_out` found. Each pass asks for every job that waits, and these are few."""

    def copy(self) -> Estimates:
        """What is known now, for another thread."""
        twin = Estimates(self._earlier)
        with self._lock:
            twin._runs = self._runs.copy()
        return twin

    def finished(
        self, like: Like, work_s: float, *, given_s: float | None = None, on: Mapping[str, float] = NOWHERE
    ) -> None:
        """A job finished well. given_s: what its user had estimated. on: of work_s, what it did on which GPU model."""
        with self._lock:
            self._ended += 1
            for key in ((like.user, like.name), (like.user, "")):
                if (runs := self._runs.get(key)) is not None:
                    self._runs[key] = (*runs, _Past(_bounded(work_s), like, _number(given_s), on))[-REMEMBER:]

    def of(
        self,
        like: Like,
        *,
        given_s: float | None,
        time_limit_s: float | None,
        pace: Pace = ALIKE,
        wanted: Sequence[str] = (),
    ) -> Estimate:
        """What is known now of the running time of such a job.

        pace: how fast it is on each GPU model. wanted: models that it accepts; what its user says of times is said of
        the slowest of them.
        """
        slowest = pace.slowest(wanted)
        given_s, limit_s = _number(given_s, slowest), _number(time_limit_s, slowest)
        most = math.inf if limit_s is None else limit_s
        named = self._of((like.user, like.name))
        if given_s is not None:
            turned_out = self._turned_out(named, pace, slowest)
            turned_out = turned_out or self._turned_out(self._of((like.user, "")), pace, slowest)
            return Estimate(given_s, Source.GIVEN, tuple([_bounded(given_s * part) for part in turned_out]), limit_s)
        source, known = _alike(like, named)
        if known:
            runs = [_work_s(run, pace) for run in known[-SAMPLE:]]
            return Estimate(min(median(runs[-KEEP:]), most), source, tuple(sorted(runs)), limit_s)
        source = Source.UNKNOWN if limit_s is None else Source.TIME_LIMIT
        if named:
            return Estimate(min(_usual(named, pace), most), source, (), limit_s)
        if limit_s is not None:
            return Estimate(limit_s, source, (), limit_s)
        others = self._of((like.user, ""))
        return Estimate(_usual(others, pace) if others else DEFAULT_S * slowest, source)

    def by_model(self, like: Like) -> Mapping[str, list[float]]:
        """Running times of earlier runs of this very job by GPU model, of those that ran on one model only, at the size
        that they asked for."""
        found: dict[str, list[float]] = {}
        for run in _alike(like, self._of((like.user, like.name)))[1]:
            if len(run.on) == 1 and sum_floats(run.on.values()) >= WHOLE * run.work_s:
                where = ran_on(next(iter(run.on)))
                if where.gpu_model and where.gpus in (None, like.gpus):
                    found.setdefault(where.gpu_model, []).append(run.work_s)
        return found

    def _turned_out(self, runs: Sequence[_Past], pace: Pace, slowest: float) -> tuple[float, ...]:
        """Running times as parts of what their user had estimated, smallest first; none if that is too few to go by."""
        key = (id(runs), slowest, *pace.factors())
        known = self._parts.get(key)
        if known is not None and known[0] is runs:  # which are kept, so that nothing else has their id
            return known[1]
        said = [(run, run.given_s * slowest) for run in runs if run.given_s is not None]
        found = sorted([_work_s(run, pace) / given_s for run, given_s in said[-SAMPLE:]])
        parts = tuple(found) if len(said) >= ENOUGH else ()
        if len(self._parts) >= MOST_NAMES:
            self._parts.clear()
        self._parts[key] = (runs, parts)
        return parts

    def _of(self, key: tuple[str, str]) -> tuple[_Past, ...]:
        runs: tuple[_Past, ...] = ()
        for _ in range(ASKS):
            with self._lock:
                known = self._runs.get(key)
                if known is not None:
                    self._runs.move_to_end(key)
                    return known
                ended = self._ended
            runs = tuple(  # without the lock: the store may be slow to answer
                [
                    _Past(
                        _bounded(run.work_s),
                        like_of(run.spec, key[0], run.gpus, run.array_id),
                        _number(run.spec.estimate),
                        run.work_on,
                    )
                    for run in self._earlier(*key, REMEMBER)
                ]
            )
            with self._lock:
                if ended == self._ended and key not in self._runs:
                    if len(self._runs) >= MOST_NAMES:
                        self._runs.popitem(last=False)
                    self._runs[key] = runs
                    return runs
        return runs


def _alike(like: Like, named: Sequence[_Past]) -> tuple[Source, list[_Past]]:
    """Of runs of this name those that tell something of such a job, the closest kind that there is."""
    same = [run for run in named if run.like.gpus == like.gpus and run.like.similar == like.similar]
    exact = [run for run in same if run.like.exact == like.exact]
    if like.array_id is not None:
        array = [run for run in exact if run.like.array_id == like.array_id]
        if array and (len(array) >= ENOUGH or len(array) == len(exact)):
            return Source.ARRAY, array
    return Source.EARLIER_RUNS, exact or same


def _usual(runs: Sequence[_Past], pace: Pace) -> float:
    return median([_work_s(run, pace) for run in runs[-KEEP:]])


def _work_s(run: _Past, pace: Pace) -> float:
    return pace.work_s(run.work_s, run.on)


def _bounded(seconds: float) -> float:
    return min(max(seconds, LEAST_S), MOST_S) if seconds == seconds else LEAST_S


def _number(seconds: float | None, times: float = 1.0) -> float | None:
    """A running time of a spec, times so much. One that is no number at all says nothing."""
    if seconds is None or seconds != seconds or seconds <= 0.0:
        return None
    return min(seconds * times, MOST_S)


TOLERANCE, TOLERANCE_S = 0.1, 10.0
"""A job that has overrun its estimate by no more than this part of it, or this much, is expected to end now."""
NOW_S = 0.001
"""Work left of a job that is expected to end now: policies ask for more than none."""


def left_s(total_s: float, done_s: float, told_s: float | None = None) -> float:
    """Work left of a job, seconds, always above 0.

    Args:
        total_s: its estimate. done_s: work done so far. told_s: its whole work, as its own reports imply it.

    A job that reports its progress is believed. One that overruns what was expected is due now: what is kept for those
    that wait for its GPUs stays theirs. After an overrun that is no longer small it is expected to overrun by twice the
    tolerance, then by four times as much, and so on: short jobs may then use what would lie idle. (Tsafrir et al. also
    correct predictions that were too short little by little, as each correction lets others go first.)
    """
    expected_s = total_s if told_s is None else told_s
    if done_s < expected_s:
        return expected_s - done_s
    over_s, tolerated_s = done_s - expected_s, _tolerated(expected_s)
    if over_s < tolerated_s:
        return NOW_S
    return max(2.0 ** (math.floor(math.log2(over_s / tolerated_s)) + 1) * tolerated_s - over_s, NOW_S)


def stands_s(total_s: float, done_s: float, told_s: float | None = None) -> float:
    """How long after the end that `left_s` expects another one has to be expected, seconds of work."""
    expected_s = total_s if told_s is None else told_s
    over_s, tolerated_s = done_s - expected_s, _tolerated(expected_s)
    return 0.0 if over_s >= tolerated_s else tolerated_s - max(over_s, 0.0)


def _tolerated(expected_s: float) -> float:
    return max(TOLERANCE * expected_s, TOLERANCE_S)
