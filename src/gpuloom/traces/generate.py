"""Generate workloads: as many jobs as wanted, at a chosen load of a cluster, the same for the same seed.

The rate of arrivals follows from the load: with the total work W (GPU·seconds) of the jobs drawn, the jobs
arrive within `T = W / (load · gpus)` seconds, so that the offered load over T is exactly `load` (but for the
rounding of times to 1 ms). A Poisson stream conditioned on its number of arrivals in T stays Poisson.

Every aspect (durations, GPU counts, arrivals, models, users, priorities) has a random stream of its own:
another choice of users leaves the durations as they are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from gpuloom.core import logs, products
from gpuloom.core.errors import InputError
from gpuloom.core.share_class import CLASSES
from gpuloom.core.units import format_duration
from gpuloom.core.workload import F8, I4, Labels, Speeds, Workload
from gpuloom.facts.speeds import rating_of

Arrival = Literal["poisson", "uniform", "bursty", "diurnal", "batch"]
DurationShape = Literal["lognormal", "exponential", "pareto", "fixed", "philly", "empirical"]

ARRIVALS: tuple[str, ...] = get_args(Arrival)
DURATIONS: tuple[str, ...] = get_args(DurationShape)

MODELS = ("vgg16", "vgg19", "resnet18", "shufflenet_v2_x1_0", "bert", "gpt2", "a2c", "dqn")
"""The models of Muri's traces (SIGCOMM '22), each equally likely by default."""

GPU_MIXES: Mapping[str, Mapping[int, float]] = {
    # Shares of Gavel's multi-GPU traces after Philly (OSDI '20): 70 % one GPU, 25 % two to four, 5 % eight.
    "gavel": {1: 0.70, 2: 0.125, 4: 0.125, 8: 0.05},
    # Shares of the 82,247 jobs of the Philly trace that the Pollux artifact publishes, rounded.
    "philly": {1: 0.932, 2: 0.022, 4: 0.023, 8: 0.020, 16: 0.002, 32: 0.001},
}

# Quantiles of the durations of the same Philly trace, rounded to two digits; between them the logarithm of
# the duration is linear. The scale is free: `duration_mean_s` or `duration_median_s` stretches the curve.
_PHILLY = (
    (0.0, 1.0),
    (0.01, 17.0),
    (0.05, 48.0),
    (0.25, 120.0),
    (0.50, 1100.0),
    (0.75, 2900.0),
    (0.90, 11_000.0),
    (0.95, 44_000.0),
    (0.99, 250_000.0),
    (0.999, 1_200_000.0),
    (1.0, 4_600_000.0),
)
# A job's speed on another GPU model is off what the facts say by a factor of 1.36 in the median (Gavel's measurements,
# docs/explanation/heterogeneity.md). Half of a normal distribution lies within 0.6745 deviations.
_SPEED_SPREAD = math.log(1.36) / 0.6745
_MAX_JOBS = 100_000_000
_DAY_S = 86_400.0
_FEWEST_S = 0.001


@dataclass(frozen=True, slots=True)
class GeneratorConfig:
    """What to generate.

    jobs: number of jobs.
    gpus: GPUs of the cluster that the load is for.
    load: offered load, GPU-seconds that arrive per second and GPU; above 1 the queue grows without end.
    arrival: `poisson`; `uniform` (equal gaps); `bursty` (gamma gaps whose standard deviation is `burstiness`
        times their mean); `diurnal` (Poisson whose rate swings by ± `swing` over a day, lowest at time 0);
        `batch` (all at 0: the load has no meaning).
    duration: shape of the durations (alone, in seconds). `lognormal` takes mean and median; `exponential` and
        `fixed` one of them; `pareto` one of them and `pareto_shape`; `philly` (quantiles of the Philly trace)
        and `empirical` (`duration_samples`, drawn with replacement) keep their own scale unless mean or
        median is given.
    duration_mean_s, duration_median_s: None takes the shape's own (lognormal: mean 7200, median 1800;
        exponential, pareto and fixed: mean 7200).
    duration_max_s: longer durations are cut to it.
    gpu_mix: shares by GPU count, or the name of a mix (`gavel`, `philly`). Counts above `max_gpus` are left
        out, and the rest is scaled up.
    max_gpus: most GPUs of one job; at most `gpus`, which is the default.
    models: shares by model name. Empty: jobs without a model.
    users: number of users; user i submits in proportion to `1 / i ** user_skew` (Zipf). 0: no users.
    opportunistic: share of jobs of priority 1 (opportunistic); the others have 0 (guaranteed).
    high, best_effort: shares of jobs of these share classes; the others have none, and share no GPU.
    gpu_models: GPU models on which jobs have a speed of their own; durations, and the load, are those on the first.
        Empty: jobs are as fast everywhere. A training model's speed is what the facts of the GPU models say, times
        a factor drawn for the two, as far off as such estimates are.
    seed: same seed and parameters, same jobs.
    """

    jobs: int
    gpus: int
    load: float = 0.8
    arrival: Arrival = "poisson"
    burstiness: float = 4.0
    swing: float = 0.8
    duration: DurationShape = "lognormal"
    duration_mean_s: float | None = None
    duration_median_s: float | None = None
    duration_max_s: float = math.inf
    pareto_shape: float = 1.5
    duration_samples: F8 | None = field(default=None, compare=False)
    gpu_mix: Mapping[int, float] | str = "gavel"
    max_gpus: int | None = None
    models: Mapping[str, float] = field(default_factory=lambda: dict.fromkeys(MODELS, 1.0))
    users: int = 20
    user_skew: float = 1.0
    opportunistic: float = 0.0
    high: float = 0.0
    best_effort: float = 0.0
    gpu_models: tuple[str, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        _whole("jobs", self.jobs, 1, _MAX_JOBS)
        _whole("gpus", self.gpus, 1, 2**31 - 1)
        _whole("users", self.users, 0, 2**31 - 1)
        _whole("seed", self.seed, 0, 2**64 - 1)
        _number("load", self.load, above=0)
        _number("burstiness", self.burstiness, above=0)
        _number("swing", self.swing, least=0, most=1)
        _number("pareto_shape", self.pareto_shape, above=1)
        _number("user_skew", self.user_skew, least=0)
        for name in ("opportunistic", "high", "best_effort"):
            _number(name, getattr(self, name), least=0, most=1)
        if self.high + self.best_effort > 1:
            raise InputError(
                f"high and best_effort are shares of the jobs: {self.high:g} + {self.best_effort:g} is above 1"
            )
        _choice("arrival", self.arrival, ARRIVALS)
        _choice("duration", self.duration, DURATIONS)
        if self.max_gpus is not None:
            _whole("max_gpus", self.max_gpus, 1, self.gpus)
        if not self.duration_max_s > 0:
            raise InputError(f"duration_max_s is {self.duration_max_s}, must be above 0")
        _shares("models", self.models)
        for model in self.gpu_models:
            rating_of(model)
        if len({model.lower() for model in self.gpu_models}) < len(self.gpu_models):
            raise InputError(f"gpu_models names one twice: {', '.join(self.gpu_models)}")
        self.mix()
        self._check_duration()

    def mix(self) -> dict[int, float]:
        """The shares by GPU count that fit the cap, adding up to 1."""
        shares = self.gpu_mix
        if isinstance(shares, str):
            _choice("gpu_mix", shares, tuple(GPU_MIXES))
            shares = GPU_MIXES[shares]
        _shares("gpu_mix", shares)
        if not shares:
            raise InputError("gpu_mix is empty, must give a share to at least one GPU count")
        for count in shares:
            _whole("a GPU count of gpu_mix", count, 1, 2**31 - 1)
        cap = self.gpus if self.max_gpus is None else self.max_gpus
        fitting = {count: share for count, share in sorted(shares.items()) if count <= cap and share > 0}
        if not fitting:
            raise InputError(f"gpu_mix gives no share to jobs of at most {cap} GPUs")
        total = math.fsum(fitting.values())
        return {count: share / total for count, share in fitting.items()}

    def _check_duration(self) -> None:
        mean, median = self.duration_mean_s, self.duration_median_s
        for name, value in (("duration_mean_s", mean), ("duration_median_s", median)):
            if value is not None:
                _number(name, value, above=0)
        if mean is not None and median is not None:
            if self.duration != "lognormal":
                raise InputError(f"duration {self.duration} takes duration_mean_s or duration_median_s, not both")
            if median > mean:
                raise InputError(
                    f"duration_median_s is {median:g}, must be at most duration_mean_s ({mean:g}) for lognormal"
                )
        if (self.duration == "empirical") != (self.duration_samples is not None):
            raise InputError("duration_samples and duration 'empirical' belong together: give both or neither")
        if self.duration_samples is not None:
            samples = np.asarray(self.duration_samples)
            if not len(samples) or not (np.isfinite(samples) & (samples >= 0)).all() or not samples.any():
                raise InputError("duration_samples must be durations of at least 0 s, not all of them 0")


def generate(config: GeneratorConfig) -> Workload:
    """The workload of this configuration. Times are rounded to 1 ms, durations are at least 1 ms."""
    streams = [np.random.Generator(np.random.PCG64(s)) for s in np.random.SeedSequence(config.seed).spawn(8)]
    mix = config.mix()
    gpus = np.asarray(list(mix), dtype=np.int32)[_draw(streams[0], mix.values(), config.jobs)]
    duration_s = _durations(config, streams[1])
    work = products.dot(duration_s, gpus.astype(np.float64))
    horizon_s = work / (config.load * config.gpus)
    submit_s = np.round(_arrivals(config, streams[2], horizon_s), 3)
    models = {name: share for name, share in config.models.items() if share > 0}
    model = _labels(streams[3], models, config.jobs) if models else None
    notes = [_note(config, mix, horizon_s)]
    if config.gpu_models:
        others = f"; drawn around the facts of {', '.join(config.gpu_models[1:])}" * (len(config.gpu_models) > 1)
        notes.append(f"durations are those on {config.gpu_models[0]}{others}")
    return Workload(
        name=f"generated-{config.seed}",
        submit_s=submit_s,
        duration_s=duration_s,
        gpus=gpus,
        model=model,
        user=_users(config, streams[4]) if config.users else None,
        priority=_priority(config, streams[5]) if config.opportunistic > 0 else None,
        share_class=_share_classes(config, streams[6]) if config.high + config.best_effort > 0 else None,
        speeds=_speeds(config, model, streams[7]) if config.gpu_models else None,
        notes=tuple(notes),
    )


def _durations(config: GeneratorConfig, rng: np.random.Generator) -> F8:
    n, mean, median = config.jobs, config.duration_mean_s, config.duration_median_s
    if config.duration == "lognormal":
        mean, median = _lognormal(mean, median)
        drawn = median * logs.exp(math.sqrt(2 * math.log(mean / median)) * rng.standard_normal(n))
    elif config.duration == "exponential":
        drawn = rng.standard_exponential(n) * (mean or (median / math.log(2) if median else 7200.0))
    elif config.duration == "pareto":
        shape = config.pareto_shape
        least = median / 2 ** (1 / shape) if median else (mean or 7200.0) * (shape - 1) / shape
        drawn = least * logs.power(1.0 - rng.random(n), -1 / shape)
    elif config.duration == "fixed":
        drawn = np.full(n, mean or median or 7200.0)
    elif config.duration == "philly":
        level, seconds = np.asarray(_PHILLY).T
        grid = logs.exp(np.interp((np.arange(100_000) + 0.5) / 100_000, level, logs.log(seconds)))
        drawn = logs.exp(np.interp(rng.random(n), level, logs.log(seconds))) * _scale(grid, mean, median)
    else:
        samples = np.asarray(config.duration_samples, dtype=np.float64)
        drawn = samples[rng.integers(0, len(samples), n)] * _scale(samples, mean, median)
    kept: F8 = np.maximum(np.round(np.minimum(drawn, config.duration_max_s), 3), _FEWEST_S)
    if not np.isfinite(kept).all():
        raise InputError("a drawn duration is not finite: lower the mean or set duration_max_s")
    return kept


def _lognormal(mean: float | None, median: float | None) -> tuple[float, float]:
    """Mean and median, with the default ratio of 4 where one of them is not given."""
    if mean is None:
        mean = 7200.0 if median is None else 4 * median
    return mean, mean / 4 if median is None else median


def _scale(values: F8, mean: float | None, median: float | None) -> float:
    if mean is not None:
        return mean / float(values.mean())
    if median is not None:
        middle = float(np.median(values))
        if middle == 0:
            raise InputError("duration_median_s can't be reached: the median of the samples is 0")
        return median / middle
    return 1.0


def _arrivals(config: GeneratorConfig, rng: np.random.Generator, horizon_s: float) -> F8:
    """Times of submission in order, the last one at `horizon_s` (batch: all at 0)."""
    n = config.jobs
    if config.arrival == "batch":
        return np.zeros(n)
    if config.arrival == "uniform":
        return horizon_s * np.arange(1, n + 1) / n
    if config.arrival == "bursty":
        gaps = rng.standard_gamma(1 / config.burstiness**2, n)
    else:
        gaps = rng.standard_exponential(n)
    passed = np.cumsum(gaps)
    if passed[-1] == 0:
        raise InputError(f"burstiness {config.burstiness:g} is too high: all gaps between jobs are 0")
    share: F8 = passed / passed[-1]
    return _diurnal(share, config.swing, horizon_s) if config.arrival == "diurnal" else horizon_s * share


def _diurnal(share: F8, swing: float, horizon_s: float) -> F8:
    """Warp time so that the rate is proportional to `1 - swing · cos(2π t / day)`."""
    turn = 2 * math.pi / _DAY_S
    points = min(2_000_000, max(1000, math.ceil(horizon_s / 60)))
    time_s = np.linspace(0.0, horizon_s, points)
    passed = time_s - swing / turn * np.sin(turn * time_s)
    warped: F8 = np.interp(share, passed / passed[-1], time_s)
    return warped


def _draw(rng: np.random.Generator, shares: object, n: int) -> NDArray[np.intp]:
    """Indices drawn in proportion to the shares."""
    steps = np.cumsum(np.fromiter(shares, dtype=np.float64))  # type: ignore[call-overload]
    drawn: NDArray[np.intp] = np.searchsorted(steps / steps[-1], rng.random(n), side="right")
    return drawn


def _labels(rng: np.random.Generator, shares: Mapping[str, float], n: int) -> Labels:
    return Labels(_draw(rng, shares.values(), n).astype(np.int32), tuple(shares))


def _users(config: GeneratorConfig, rng: np.random.Generator) -> Labels:
    weights = logs.power(np.arange(1, config.users + 1), -config.user_skew)
    codes = _draw(rng, weights, config.jobs).astype(np.int32)
    return Labels(codes, tuple(f"user{i}" for i in range(1, config.users + 1)))


def _priority(config: GeneratorConfig, rng: np.random.Generator) -> I4:
    return (rng.random(config.jobs) < config.opportunistic).astype(np.int32)


def _share_classes(config: GeneratorConfig, rng: np.random.Generator) -> Labels:
    drawn = rng.random(config.jobs)
    codes = np.where(drawn < config.high, 1, np.where(drawn < config.high + config.best_effort, 2, 0))
    return Labels(codes.astype(np.int32), ("", *CLASSES))


def _speeds(config: GeneratorConfig, model: Labels | None, rng: np.random.Generator) -> Speeds:
    """Speeds by GPU model relative to the first: one for each training model, or each job where jobs have none."""
    ratings = np.array([rating_of(name) for name in config.gpu_models])
    rows = config.jobs if model is None else len(model.names)
    off = logs.exp(_SPEED_SPREAD * rng.standard_normal((rows, len(ratings))))
    off[:, 0] = 1.0
    factor = np.round(ratings / ratings[0] * off, 3).clip(min=0.001)
    return Speeds(config.gpu_models, factor if model is None else factor[model.codes])


def _note(config: GeneratorConfig, mix: Mapping[int, float], horizon_s: float) -> str:
    counts = ", ".join(f"{share:.1%} {count}" for count, share in mix.items())
    when = (
        "all at time 0"
        if config.arrival == "batch"
        else f"{config.arrival} over {format_duration(horizon_s)}, load {config.load:g} of {config.gpus} GPUs"
    )
    return f"generated with seed {config.seed}: {when}; durations {config.duration}; GPUs per job: {counts}"


def _whole(name: str, value: object, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not least <= value <= most:
        raise InputError(f"{name} is {value!r}, must be a whole number from {least} to {most}")


def _number(
    name: str, value: float, *, above: float = -math.inf, least: float = -math.inf, most: float = math.inf
) -> None:
    if not (math.isfinite(value) and value > above and least <= value <= most):
        wanted = f"above {above:g}" if above > -math.inf else f"at least {least:g}"
        if most < math.inf:
            wanted += f" and at most {most:g}"
        raise InputError(f"{name} is {value}, must be a number {wanted}")


def _choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise InputError(f"{name} is {value!r}, must be one of {', '.join(choices)}")


def _shares(name: str, shares: Mapping[int, float] | Mapping[str, float]) -> None:
    for key, share in shares.items():
        _number(f"the share of {key!r} in {name}", share, least=0)
    if shares and not math.fsum(shares.values()) > 0:
        raise InputError(f"the shares of {name} are all 0")
