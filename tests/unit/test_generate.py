"""The generator: determinism, the promised load, shares, and refusals."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from gpuloom.core.errors import InputError
from gpuloom.traces.generate import ARRIVALS, DURATIONS, GPU_MIXES, MODELS, GeneratorConfig, generate

SAMPLES = np.asarray([1.0, 2.0, 900.0])


def config(**changes: object) -> GeneratorConfig:
    return dataclasses.replace(GeneratorConfig(jobs=2000, gpus=64), **changes)


def shape(duration: str, **changes: object) -> GeneratorConfig:
    samples = SAMPLES if duration == "empirical" else None
    return config(duration=duration, duration_samples=samples, **changes)


@pytest.mark.parametrize("duration", DURATIONS)
@pytest.mark.parametrize("arrival", ARRIVALS)
def test_same_seed_same_jobs_and_the_promised_load(arrival: str, duration: str) -> None:
    wanted = shape(duration, arrival=arrival, load=0.9, users=5)
    w, again = generate(wanted), generate(wanted)
    for name in ("submit_s", "duration_s", "gpus"):
        assert getattr(w, name).tobytes() == getattr(again, name).tobytes()
    assert w.user.codes.tobytes() == again.user.codes.tobytes()
    assert w.model.codes.tobytes() == again.model.codes.tobytes()
    assert len(w) == 2000
    if arrival == "batch":
        assert not w.submit_s.any()
    else:
        assert (w.duration_s @ w.gpus) / w.submit_s[-1] / 64 == pytest.approx(0.9, rel=1e-3)


def test_another_seed_gives_other_jobs() -> None:
    assert (generate(config(seed=1)).duration_s != generate(config(seed=2)).duration_s).any()


def test_one_aspect_does_not_disturb_the_others() -> None:
    base, other = generate(config()), generate(config(users=3, opportunistic=0.5, models={"m": 1}))
    np.testing.assert_array_equal(base.duration_s, other.duration_s)
    np.testing.assert_array_equal(base.submit_s, other.submit_s)
    np.testing.assert_array_equal(base.gpus, other.gpus)


@pytest.mark.parametrize(
    ("changes", "mean", "median"),
    [
        ({"duration": "lognormal", "duration_mean_s": 1000, "duration_median_s": 500}, 1000, 500),
        ({"duration": "lognormal", "duration_median_s": 500}, 2000, 500),
        ({"duration": "lognormal", "duration_mean_s": 1000}, 1000, 250),
        ({"duration": "lognormal", "duration_mean_s": 1000, "duration_median_s": 1000}, 1000, 1000),
        ({"duration": "exponential", "duration_mean_s": 1000}, 1000, 1000 * np.log(2)),
        ({"duration": "exponential", "duration_median_s": 500}, 500 / np.log(2), 500),
        ({"duration": "pareto", "duration_mean_s": 1000, "pareto_shape": 4}, 1000, 750 * 2**0.25),
        ({"duration": "pareto", "duration_median_s": 500, "pareto_shape": 4}, 500 / 2**0.25 * 4 / 3, 500),
        ({"duration": "fixed", "duration_mean_s": 77}, 77, 77),
        ({"duration": "fixed"}, 7200, 7200),
        ({"duration": "philly"}, None, 1100),
        ({"duration": "philly", "duration_mean_s": 1000}, 1000, None),
        ({"duration": "empirical", "duration_samples": SAMPLES, "duration_mean_s": 602}, 602, 4),
        ({"duration": "empirical", "duration_samples": SAMPLES, "duration_median_s": 6}, 903, 6),
    ],
)
def test_durations_have_the_asked_scale(changes: dict, mean: float | None, median: float | None) -> None:
    durations = generate(config(jobs=100_000, **changes)).duration_s
    if mean is not None:
        assert durations.mean() == pytest.approx(mean, rel=0.08)
    if median is not None:
        assert np.median(durations) == pytest.approx(median, rel=0.05)


def test_durations_are_cut_and_never_zero() -> None:
    w = generate(config(duration_max_s=100))
    assert w.duration_s.max() == 100
    zeros = generate(config(duration="empirical", duration_samples=np.asarray([0.0, 5.0])))
    assert set(zeros.duration_s.tolist()) == {0.001, 5.0}


@pytest.mark.parametrize("mix", [*GPU_MIXES, {1: 3, 4: 1}])
def test_gpu_shares(mix: object) -> None:
    wanted = config(jobs=50_000, gpu_mix=mix)
    w = generate(wanted)
    for count, share in wanted.mix().items():
        assert (w.gpus == count).mean() == pytest.approx(share, abs=0.01)
    assert sum(wanted.mix().values()) == pytest.approx(1)


def test_gpu_counts_are_capped() -> None:
    assert generate(config(gpus=4)).gpus.max() == 4
    assert generate(config(max_gpus=2)).gpus.max() == 2
    assert config(gpus=4).mix() == pytest.approx({1: 0.7 / 0.95, 2: 0.125 / 0.95, 4: 0.125 / 0.95})


def test_models_users_and_priorities() -> None:
    w = generate(config(jobs=20_000, users=4, user_skew=1.0, opportunistic=0.25))
    assert w.model.names == MODELS
    np.testing.assert_allclose(np.bincount(w.model.codes) / 20_000, 1 / 8, atol=0.015)
    weights = np.asarray([1, 1 / 2, 1 / 3, 1 / 4])
    np.testing.assert_allclose(np.bincount(w.user.codes) / 20_000, weights / weights.sum(), atol=0.015)
    assert w.priority.mean() == pytest.approx(0.25, abs=0.015)
    bare = generate(config(models={}, users=0))
    assert (bare.model, bare.user, bare.priority) == (None, None, None)


def test_speeds_are_those_of_the_facts_but_for_what_a_training_model_differs_by() -> None:
    from gpuloom.facts.speeds import rating_of

    plain, mixed = generate(config(seed=3)), generate(config(seed=3, gpu_models=("V100", "K80", "A100")))
    for name in ("submit_s", "duration_s", "gpus"):
        np.testing.assert_array_equal(getattr(plain, name), getattr(mixed, name))
    np.testing.assert_array_equal(plain.model.codes, mixed.model.codes)
    assert plain.speeds is None
    speeds = mixed.speeds
    assert (speeds.models, set(speeds.factor[:, 0])) == (("V100", "K80", "A100"), {1.0})
    assert (
        generate(config(seed=3, gpu_models=("V100", "K80", "A100"))).speeds.factor.tobytes() == speeds.factor.tobytes()
    )
    # Jobs of one training model are alike; two training models are not.
    assert len(np.unique(speeds.factor, axis=0)) == len(MODELS)
    # Where every job draws for itself the median is what the facts say, and half are within a factor of 1.36 of it.
    alone = generate(config(jobs=20_000, models={}, gpu_models=("V100", "K80"))).speeds.factor[:, 1]
    told = rating_of("K80") / rating_of("V100")
    assert np.median(alone) == pytest.approx(told, rel=0.02)
    assert np.mean(np.abs(np.log(alone / told)) < np.log(1.36)) == pytest.approx(0.5, abs=0.02)


def test_arrivals_differ_as_named() -> None:
    def gaps(arrival: str, **changes: object) -> np.ndarray:
        return np.diff(generate(config(jobs=20_000, arrival=arrival, **changes)).submit_s)

    def spread(values: np.ndarray) -> float:
        return float(values.std() / values.mean())

    assert spread(gaps("uniform")) < 0.001
    assert spread(gaps("poisson")) == pytest.approx(1, abs=0.05)
    assert spread(gaps("bursty", burstiness=4.0)) == pytest.approx(4, rel=0.15)


def test_diurnal_jobs_come_around_noon() -> None:
    # At a swing of 1 the half of the day around 12:00 gets 1/2 + 1/π of the jobs.
    w = generate(config(jobs=50_000, arrival="diurnal", swing=1.0, duration="fixed"))
    hour = (w.submit_s % 86400) / 3600
    assert ((hour >= 6) & (hour < 18)).mean() == pytest.approx(0.5 + 1 / np.pi, abs=0.02)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"jobs": 0}, "jobs is 0, must be a whole number from 1"),
        ({"jobs": 1.5}, "jobs is 1.5"),
        ({"jobs": True}, "jobs is True"),
        ({"gpus": 0}, "gpus is 0"),
        ({"load": 0}, "load is 0, must be a number above 0"),
        ({"load": float("nan")}, "load is nan"),
        ({"arrival": "never"}, "arrival is 'never', must be one of poisson, uniform"),
        ({"duration": "long"}, "duration is 'long', must be one of lognormal"),
        ({"burstiness": -1}, "burstiness is -1"),
        ({"swing": 1.5}, "swing is 1.5, must be a number at least 0 and at most 1"),
        ({"pareto_shape": 1}, "pareto_shape is 1, must be a number above 1"),
        ({"duration_mean_s": 0}, "duration_mean_s is 0"),
        ({"duration_mean_s": 1, "duration_median_s": 2}, "duration_median_s is 2, must be at most"),
        ({"duration": "fixed", "duration_mean_s": 1, "duration_median_s": 1}, "not both"),
        ({"duration_max_s": 0}, "duration_max_s is 0"),
        ({"duration": "empirical"}, "belong together"),
        ({"duration_samples": SAMPLES}, "belong together"),
        ({"duration": "empirical", "duration_samples": np.asarray([-1.0])}, "duration_samples must be"),
        ({"duration": "empirical", "duration_samples": np.zeros(2)}, "not all of them 0"),
        ({"gpu_mix": {}}, "gpu_mix is empty"),
        ({"gpu_mix": "x"}, "gpu_mix is 'x', must be one of gavel, philly"),
        ({"gpu_mix": {0: 1}}, "a GPU count of gpu_mix is 0"),
        ({"gpu_mix": {1: -1}}, "the share of 1 in gpu_mix is -1"),
        ({"gpu_mix": {1: 0}}, "the shares of gpu_mix are all 0"),
        ({"gpu_mix": {128: 1}}, "no share to jobs of at most 64 GPUs"),
        ({"max_gpus": 65}, "max_gpus is 65, must be a whole number from 1 to 64"),
        ({"models": {"a": 0.0}}, "the shares of models are all 0"),
        ({"users": -1}, "users is -1"),
        ({"user_skew": -1}, "user_skew is -1"),
        ({"opportunistic": 2}, "opportunistic is 2"),
        ({"seed": -1}, "seed is -1"),
    ],
)
def test_parameters_that_are_refused(changes: dict, reason: str) -> None:
    with pytest.raises(InputError) as caught:
        config(**changes)
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("models", "reason"),
    [(("V100", "W200"), "nothing is known of GPU model 'W200'"), (("V100", "v100"), "names one twice")],
)
def test_gpu_models_that_are_refused(models: tuple[str, ...], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        config(gpu_models=models)


def test_burstiness_without_end() -> None:
    with pytest.raises(InputError, match="burstiness"):
        generate(config(jobs=2, arrival="bursty", burstiness=1e9))
    mostly_zero = np.asarray([0.0, 0.0, 1.0])
    with pytest.raises(InputError, match="median of the samples is 0"):
        generate(config(duration="empirical", duration_samples=mostly_zero, duration_median_s=5))


def test_a_single_job() -> None:
    w = generate(config(jobs=1, duration="fixed", gpu_mix={2: 1}, load=0.5))
    assert w.submit_s.tolist() == [7200 * 2 / 0.5 / 64]


def test_the_notes_say_what_the_jobs_were_drawn_from() -> None:
    """Whoever finds the file later can tell, and draw them again."""
    (note,) = generate(config(seed=3)).notes
    for word in ("seed 3", "load 0.8"):
        assert word in note, note
    plain, speeds = generate(config(seed=3, gpu_models=("V100",))).notes
    assert (plain, speeds) == (note, "durations are those on V100")
    assert generate(config(seed=3, gpu_models=("V100", "P100", "K80"))).notes[1] == (
        "durations are those on V100; drawn around the facts of P100, K80"
    )
