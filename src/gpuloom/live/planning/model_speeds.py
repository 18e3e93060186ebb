"""How fast each job is on each GPU model: by what its runs showed, by what is said of it, by the models' facts. Of
elastic jobs also how fast at which size (`size_speeds.py`).

Sources, the best first; what one of them does not tell the next one does, scaled to it on a model that both know:
1. iterations per second that earlier runs of this very job reported while they had their GPUs for themselves,
2. running times of earlier runs that were on one model from begin to end,
3. its profiles on each GPU model, on as many GPUs (`gpuloom profiles`),
4. what its user said (`speeds`),
5. estimates from the facts of GPU models (facts/speeds.py).
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import NamedTuple

import numpy as np

from gpuloom.core.cluster import ANY_MODEL, plain_model
from gpuloom.core.job import Job
from gpuloom.core.pace import ALIKE, ModelSpeed, Pace, SpeedSource
from gpuloom.core.profile import Profiles
from gpuloom.core.script_key import profile_key
from gpuloom.facts.gpus import find_gpu
from gpuloom.facts.speeds import fill, rating_of
from gpuloom.live.planning.estimates import MOST_NAMES, Estimates, Like, like_of
from gpuloom.live.planning.size_speeds import KEEP, size_speeds
from gpuloom.store.port import MeasuredRun

REMEMBER = 60
"""Measured runs of a name that are looked through for those."""


def in_order(models: Iterable[str]) -> tuple[str, ...]:
    """GPU models, the slowest by its facts first; those of which nothing is known go by name, behind the others."""

    def key(model: str) -> tuple[float, str]:
        return (math.inf if find_gpu(model) is None else rating_of(model)), model

    return tuple(sorted({model for model in models if model != ANY_MODEL}, key=key))


class ModelSpeeds:
    """Remembers what was measured; asks the store once for what was before.

    Attributes:
        models: of the cluster's GPUs, in the order of `in_order`.
    """

    def __init__(
        self,
        earlier: Callable[[str, str, int], Sequence[MeasuredRun]],
        estimates: Estimates,
    ) -> None:
        """earlier: (user, name, limit) → runs of which something was measured, the oldest first."""
        self._earlier, self._estimates = earlier, estimates
        self.models: tuple[str, ...] = ()
        self._facts = ALIKE
        self._profiled: Mapping[tuple[str, int], Mapping[str, float]] = {}
        """Iterations per second by GPU model, of a key of profiles and so many GPUs."""
        self._keys: frozenset[str] = frozenset()
        self._runs: OrderedDict[tuple[str, str], tuple[_Run, ...]] = OrderedDict()
        self._known: dict[tuple[str, str], dict[_Asked, Pace]] = {}
        self._lock = threading.Lock()

    def copy(self, estimates: Estimates) -> ModelSpeeds:
        """What is known now, for another thread."""
        twin = ModelSpeeds(self._earlier, estimates)
        with self._lock:
            twin.models, twin._facts, twin._runs = self.models, self._facts, self._runs.copy()
            twin._profiled, twin._keys = self._profiled, self._keys
        return twin

    def see(self, models: Iterable[str]) -> None:
        """The cluster's GPUs are of these models now."""
        found = in_order(models)
        if found != self.models:
            with self._lock:
                self.models = found
                self._known.clear()
                self._facts = ALIKE if len(found) < 2 else _pace(found, {})

    def profiled(self, profiles: Profiles) -> None:
        """These are the profiles from now on. Counted are the user's own that name their GPU model."""
        found: dict[tuple[str, int], dict[str, float]] = {}
        for one in sorted(profiles.own, key=lambda one: one.batch_size or 0):
            if one.gpu_model and one.iteration_s > 0.0:
                found.setdefault((one.model, one.gpus), {}).setdefault(one.gpu_model, 1.0 / one.iteration_s)
        if found != self._profiled:
            with self._lock:
                self._profiled, self._keys = found, frozenset(key for key, _ in found)
                self._known.clear()

    def measured(self, like: Like, gpu_model: str, it_per_s: float, *, stored: bool, on_gpus: int = 0) -> None:
        """A run of such a job, alone on GPUs of this model, made so many iterations per second. stored: the store tells
        of it when it is asked. on_gpus: of an elastic job, on how many."""
        key = like.user, like.name
        if not stored:
            self._measured(like)
        with self._lock:
            if (runs := self._runs.get(key)) is not None:
                self._runs[key] = (*runs, _Run(like, gpu_model, it_per_s, on_gpus or like.gpus))[-REMEMBER:]
            self._known.pop(key, None)

    def finished(self, like: Like) -> None:
        """A run of such a job has finished well, and `Estimates` knows of it."""
        with self._lock:
            self._known.pop((like.user, like.name), None)

    def of(self, like: Like, given: Mapping[str, float], sizes: tuple[int, ...] = (), model: str | None = None) -> Pace:
        """The speeds of such a job. given: what its user said. sizes: GPUs that it may have, if it is elastic. model:
        what it trains, if its user says so; else its profiles are those of its script."""
        if len(self.models) < 2 and not sizes:
            return ALIKE
        key = like.user, like.name
        asked = _Asked(like, tuple(sorted(given.items())), sizes, model)
        with self._lock:
            if (pace := self._known.get(key, {}).get(asked)) is not None:
                return pace
        runs = self._same(like)
        by_size = size_speeds(like.gpus, sizes, _rates(runs)) if sizes else {}
        pace = self._facts if len(self.models) > 1 else ALIKE
        layers = [
            *self._of_runs(like, runs, Pace({}, by_size)),
            _Layer(SpeedSource.PROFILES, self._named(self._by_profiles(like, model))),
            _Layer(SpeedSource.GIVEN, self._named(given)),
        ]
        if len(self.models) > 1 and (told := [layer for layer in layers if layer.speeds]):
            pace = _pace(self.models, _joined(told))
        if by_size:
            pace = Pace(pace.speeds, by_size)
        with self._lock:
            if len(self._known) >= MOST_NAMES:
                self._known.clear()
            self._known.setdefault(key, {})[asked] = pace
        return pace

    def of_job(self, job: Job) -> Pace:
        """The speeds of this job."""
        like = like_of(job.spec, job.user, job.gpus, job.array_id)
        return self.of(like, job.spec.speeds, job.spec.sizes, job.spec.model)

    def it_per_s(self, job: Job, gpu_model: str, gpus: int) -> float | None:
        """Iterations per second of earlier runs of this very job, alone on so many GPUs of this model; None: none was
        measured."""
        runs = self._same(like_of(job.spec, job.user, job.gpus, job.array_id))
        rates = [run.it_per_s for run in runs if (run.gpu_model, run.on_gpus) == (gpu_model, gpus)]
        return median(rates[-KEEP:]) if rates else None

    def _same(self, like: Like) -> list[_Run]:
        """Measured runs of this very job."""
        same = [run for run in self._measured(like) if run.like.gpus == like.gpus and run.like.similar == like.similar]
        return [run for run in same if run.like.exact == like.exact] or same

    def _of_runs(self, like: Like, runs: Sequence[_Run], sizes: Pace) -> list[_Layer]:
        rates: dict[str, list[float]] = {}
        for run in runs:
            rates.setdefault(run.gpu_model, []).append(run.it_per_s / sizes.at_size(run.on_gpus))
        took_s = self._estimates.by_model(like)
        return [
            _Layer(SpeedSource.MEASURED, {m: median(v[-KEEP:]) for m, v in rates.items()}, _counts(rates)),
            _Layer(SpeedSource.RUNS, {m: 1.0 / median(v[-KEEP:]) for m, v in took_s.items()}, _counts(took_s)),
        ]

    def _by_profiles(self, like: Like, model: str | None) -> Mapping[str, float]:
        if not self._profiled:
            return {}
        return self._profiled.get((profile_key(model, like.command, self._keys), like.gpus), {})

    def _measured(self, like: Like) -> tuple[_Run, ...]:
        key = like.user, like.name
        with self._lock:
            if (known := self._runs.get(key)) is not None:
                self._runs.move_to_end(key)
                return known
        found = tuple(  # without the lock: the store may be slow to answer
            _Run(
                like_of(run.spec, like.user, run.gpus, run.array_id),
                run.gpu_model,
                run.it_per_s,
                run.on_gpus or run.gpus,
            )
            for run in self._earlier(*key, REMEMBER)
            if run.it_per_s > 0.0
        )
        with self._lock:
            if len(self._runs) >= MOST_NAMES:
                self._runs.popitem(last=False)
            return self._runs.setdefault(key, found)

    def _named(self, speeds: Mapping[str, float]) -> Mapping[str, float]:
        """Speeds by the names that the cluster gives its models; of others they are left out."""
        if not speeds:
            return {}
        plain = {_plain(name): speed for name, speed in speeds.items()}
        return {model: plain[name] for model in self.models if (name := _plain(model)) in plain}


class _Run(NamedTuple):
    like: Like
    gpu_model: str
    it_per_s: float
    on_gpus: int


class _Asked(NamedTuple):
    like: Like
    given: tuple[tuple[str, float], ...]
    sizes: tuple[int, ...]
    model: str | None


class _Layer(NamedTuple):
    """Speeds by GPU model in a unit of their own, and by how many runs each is known."""

    source: SpeedSource
    speeds: Mapping[str, float]
    runs: Mapping[str, int] = {}


def _rates(runs: Sequence[_Run]) -> dict[str, dict[int, list[float]]]:
    found: dict[str, dict[int, list[float]]] = {}
    for run in runs:
        found.setdefault(run.gpu_model, {}).setdefault(run.on_gpus, []).append(run.it_per_s)
    return found


def _counts(runs: Mapping[str, Sequence[float]]) -> Mapping[str, int]:
    return {model: len(found) for model, found in runs.items()}


def _plain(model: str) -> str:
    """Equal for names of one GPU model."""
    facts = find_gpu(model)
    return plain_model(model if facts is None else facts.model)


def _joined(layers: Sequence[_Layer]) -> dict[str, ModelSpeed]:
    """What the layers tell together, in the unit of the first. A layer that shares no model with those before it is
    left out: nothing says how its unit compares."""
    found: dict[str, ModelSpeed] = {}
    for layer in layers:
        both = [found[model].factor / speed for model, speed in layer.speeds.items() if model in found]
        if found and not both:
            continue
        scale = median(both) if both else 1.0
        for model, speed in layer.speeds.items():
            if model not in found:
                rate = speed if layer.source in (SpeedSource.MEASURED, SpeedSource.PROFILES) else None
                found[model] = ModelSpeed(speed * scale, layer.source, rate, layer.runs.get(model, 0))
    return found


def _pace(models: Sequence[str], known: Mapping[str, ModelSpeed]) -> Pace:
    """Speeds on all these models, relative to the first. What no facts tell is as fast as the slowest that is known."""
    if known:
        least = min(speed.factor for speed in known.values())
        factor = np.array([[known[model].factor / least if model in known else math.nan for model in models]])
        filled, _ = fill(models, factor)
        factors = filled[0].tolist()
    else:
        factors = [math.nan if find_gpu(model) is None else rating_of(model) for model in models]
        factors = [factors[0] if factor != factor else factor for factor in factors]
        factors = [1.0 if factor != factor else factor for factor in factors]
    speeds = {}
    for model, factor in zip(models, factors, strict=True):
        source = SpeedSource.UNKNOWN if find_gpu(model) is None else SpeedSource.FACTS
        speed = known.get(model, ModelSpeed(factor, source))
        speeds[model] = speed._replace(factor=factor / factors[0])
    return Pace(speeds)
