"""How fast jobs are taken to be on each GPU model of a live cluster, and what time there is as work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from gpuloom.core.cluster import ANY_MODEL
from gpuloom.core.pace import ALIKE, ModelSpeed, Pace, SpeedSource, speeds_of
from gpuloom.core.profile import Profile, Profiles
from gpuloom.core.progress import it_per_s
from gpuloom.core.script_key import script_key
from gpuloom.core.spec import Spec
from gpuloom.facts.speeds import rating_of
from gpuloom.live.planning.estimates import Estimates, Like, Source, like_of
from gpuloom.live.planning.model_speeds import ModelSpeeds, in_order
from gpuloom.store.port import EndedRun, MeasuredRun

COMMAND = ("python", "train.py", "--lr", "0.1")
SPEC = Spec(COMMAND, name="train", workdir="/w")
LIKE = like_of(SPEC, "ada", 1, None)
RATIO = rating_of("V100") / rating_of("K80")


def ran(seconds: float, on: Mapping[str, float] | None = None, gpus: int = 1) -> EndedRun:
    return EndedRun(gpus, seconds, None, SPEC, {} if on is None else on)


def measured(model: str, rate: float, gpus: int = 1, command: Sequence[str] = COMMAND) -> MeasuredRun:
    return MeasuredRun(gpus, None, Spec(tuple(command), name="train", workdir="/w"), model, rate)


def speeds(*runs: MeasuredRun, ended: Sequence[EndedRun] = (), models: Sequence[str] = ("K80", "V100")) -> ModelSpeeds:
    estimates = Estimates(lambda user, name, limit: list(ended) if (user, name) == ("ada", "train") else [])
    found = ModelSpeeds(lambda user, name, limit: list(runs)[-limit:], estimates)
    found.see(models)
    return found


def known(pace: Pace) -> dict[str, tuple[float, str]]:
    return {model: (round(speed.factor, 6), speed.source.value) for model, speed in pace.speeds.items()}


def test_one_model_alone_has_no_speeds_and_the_slowest_counts_one() -> None:
    assert speeds(measured("V100", 9.0), models=["V100"]).of(LIKE, {}) is ALIKE
    assert ALIKE.of("V100") == 1.0
    assert in_order(["V100", "Odd", "A100", "K80", ANY_MODEL]) == ("K80", "V100", "A100", "Odd")


def test_without_a_run_the_facts_say_it() -> None:
    found = speeds(models=["V100", "K80", "Odd"]).of(LIKE, {})
    assert known(found) == {"K80": (1.0, "facts"), "V100": (round(RATIO, 6), "facts"), "Odd": (1.0, "unknown")}


def test_what_its_runs_reported_comes_first_and_is_the_median_of_the_last_five() -> None:
    slow = [measured("K80", rate) for rate in (99.0, 2.0, 2.0, 2.0, 3.0, 1.0)]
    found = speeds(*slow, measured("V100", 10.0), ended=[ran(1.0, {"V100": 1.0}), ran(2.0, {"K80": 2.0})])
    pace = found.of(LIKE, {"K80": 1.0, "V100": 7.0})
    assert known(pace) == {"K80": (1.0, "measured"), "V100": (5.0, "measured")}
    assert (pace.speeds["V100"].it_per_s, pace.speeds["K80"].runs) == (10.0, 6)


def test_other_sizes_and_other_commands_measure_nothing_but_other_learning_rates_do() -> None:
    pair = [measured("K80", 1.0), measured("V100", 6.0)]
    assert known(speeds(*[run for m in pair for run in (m,)]).of(LIKE, {}))["V100"] == (6.0, "measured")
    two = [measured("K80", 1.0, gpus=2), measured("V100", 6.0, gpus=2)]
    assert known(speeds(*two).of(LIKE, {}))["V100"][1] == "facts"
    others = [measured(m, r, command=("python", "other.py")) for m, r in (("K80", 1.0), ("V100", 6.0))]
    assert known(speeds(*others).of(LIKE, {}))["V100"][1] == "facts"
    rates = [measured(m, r, command=(*COMMAND[:3], "0.5")) for m, r in (("K80", 1.0), ("V100", 6.0))]
    assert known(speeds(*rates).of(LIKE, {}))["V100"] == (6.0, "measured")


def profile(gpu_model: str | None, iteration_s: float, gpus: int = 1, model: str = "train --lr 0.1") -> Profile:
    return Profile(model, gpus, iteration_s=iteration_s, stage_s=(0.0, iteration_s, 0.0), gpu_model=gpu_model)


def test_profiles_say_it_before_a_user_does_and_after_what_ran() -> None:
    found = speeds()
    key = script_key(COMMAND)
    rows = (profile("K80", 0.5, model=key), profile("V100", 0.1, model=key), profile(None, 9.0, model=key))
    found.profiled(Profiles(own=rows))
    pace = found.of(LIKE, {"K80": 1.0, "V100": 7.0})
    assert known(pace) == {"K80": (1.0, "profiles"), "V100": (5.0, "profiles")}
    assert pace.speeds["V100"].it_per_s == 10.0
    assert known(found.of(LIKE._replace(gpus=2), {}))["V100"][1] == "facts"
    # One that names a training model goes by that one's alone.
    assert known(found.of(LIKE, {}, model="gpt2"))["V100"][1] == "facts"
    found.profiled(Profiles(own=(profile("K80", 0.3, model="gpt2"), profile("V100", 0.1, model="gpt2"))))
    assert known(found.of(LIKE, {}, model="gpt2"))["V100"] == (3.0, "profiles")
    assert known(found.of(LIKE, {}))["V100"][1] == "facts"

    ran_there = speeds(measured("K80", 2.0))
    ran_there.profiled(Profiles(own=rows))
    assert known(ran_there.of(LIKE, {})) == {"K80": (1.0, "measured"), "V100": (5.0, "profiles")}
    assert known(ran_there.copy(ran_there._estimates).of(LIKE, {}))["V100"] == (5.0, "profiles")


def test_running_times_count_where_a_run_was_on_one_model_and_scale_to_what_was_measured() -> None:
    runs = [ran(100.0, {"K80": 100.0}), ran(20.0, {"V100": 20.0}), ran(50.0, {"K80": 30.0, "V100": 20.0})]
    assert known(speeds(ended=runs).of(LIKE, {})) == {"K80": (1.0, "earlier_runs"), "V100": (5.0, "earlier_runs")}
    # It reported 8 it/s on the V100; by the running times a K80 does a fifth.
    pace = speeds(measured("V100", 8.0), ended=runs).of(LIKE, {})
    assert known(pace) == {"K80": (1.0, "earlier_runs"), "V100": (5.0, "measured")}
    assert known(speeds(ended=[ran(9.0), ran(4.0, {"V100": 2.0})]).of(LIKE, {}))["V100"][1] == "facts"


def test_the_users_word_fills_what_no_run_told() -> None:
    pace = speeds(measured("K80", 2.0), models=["K80", "V100", "T4"]).of(
        LIKE, {"v100": 90.0, "t4": 45.0, "Tesla K80": 30}
    )
    assert known(pace) == {"K80": (1.0, "measured"), "T4": (1.5, "given"), "V100": (3.0, "given")}


def test_a_word_that_nothing_ties_to_a_measurement_is_left_out() -> None:
    pace = speeds(measured("V100", 8.0), models=["K80", "V100", "Odd"]).of(LIKE, {"K80": 5.0})
    assert known(pace) == {
        "K80": (1.0, "facts"),
        "V100": (round(RATIO, 6), "measured"),
        "Odd": (round(RATIO, 6), "unknown"),
    }


def test_a_new_measurement_is_used_at_once() -> None:
    found = speeds(measured("K80", 1.0))
    assert known(found.of(LIKE, {}))["V100"][1] == "facts"
    found.measured(LIKE, "V100", 7.0, stored=True)
    assert known(found.of(LIKE, {}))["V100"] == (7.0, "measured")
    twin = found.copy(Estimates(lambda user, name, limit: ()))
    assert known(twin.of(LIKE, {})) == known(found.of(LIKE, {}))
    found.see(["K80", "V100", "T4"])
    assert set(found.of(LIKE, {}).speeds) == {"K80", "V100", "T4"}


def test_a_measurement_that_the_store_does_not_tell_is_kept_beside_what_it_tells() -> None:
    found = speeds(measured("K80", 1.0))
    found.measured(LIKE, "V100", 7.0, stored=False)
    assert known(found.of(LIKE, {})) == {"K80": (1.0, "measured"), "V100": (7.0, "measured")}


def test_an_end_makes_running_times_count() -> None:
    estimates = Estimates(lambda user, name, limit: ())
    found = ModelSpeeds(lambda user, name, limit: (), estimates)
    found.see(["K80", "V100"])
    assert known(found.of(LIKE, {}))["V100"][1] == "facts"
    for seconds, model in ((30.0, "K80"), (10.0, "V100")):
        estimates.finished(LIKE, seconds, on={model: seconds})
    found.finished(LIKE)
    assert known(found.of(LIKE, {}))["V100"] == (3.0, "earlier_runs")


FAST = Pace({"K80": ModelSpeed(1.0, SpeedSource.MEASURED), "V100": ModelSpeed(4.0, SpeedSource.FACTS)})


def test_time_on_a_fast_model_is_more_work() -> None:
    assert FAST.work_s(100.0, {"K80": 60.0, "V100": 30.0}) == 10.0 + 60.0 + 120.0
    assert ALIKE.work_s(100.0, {"V100": 100.0}) == 100.0
    assert (FAST.of("V100"), FAST.of("T4"), FAST.slowest(()), FAST.slowest(["v100"]), FAST.slowest(["T4"])) == (
        4,
        1,
        1,
        4,
        1,
    )


def test_speeds_as_columns() -> None:
    assert speeds_of([ALIKE, ALIKE]) is None
    found = speeds_of([FAST, FAST, ALIKE])
    assert found is not None
    assert found.estimated is not None
    assert found.models == ("K80", "V100")
    assert found.factor.tolist() == [[1.0, 4.0], [1.0, 4.0], [1.0, 1.0]]
    assert found.estimated.tolist() == [[False, True], [False, True], [True, True]]


def like(**changes: object) -> Like:
    return LIKE._replace(**changes)  # type: ignore[arg-type]


def test_estimates_are_work() -> None:
    estimates = Estimates(lambda user, name, limit: ())
    estimates.of(LIKE, given_s=None, time_limit_s=None)
    estimates.finished(LIKE, 30.0, on={"V100": 30.0})
    found = estimates.of(LIKE, given_s=None, time_limit_s=None, pace=FAST)
    assert (found.total_s, found.source, found.runs) == (120.0, Source.EARLIER_RUNS, (120.0,))
    other = like(name="other")
    # What its user says of times is said of the slowest model that it accepts.
    assert estimates.of(other, given_s=10.0, time_limit_s=20.0, pace=FAST).total_s == 10.0
    only = estimates.of(other, given_s=10.0, time_limit_s=20.0, pace=FAST, wanted=["V100"])
    assert (only.total_s, only.limit_s) == (40.0, 80.0)
    assert estimates.by_model(LIKE) == {"V100": [30.0]}


@pytest.mark.parametrize(
    ("told", "speed"),
    [
        ({"step": 21, "first_step": 1, "first_s": 100.0, "at_s": 110.0}, 2.0),
        ({"step": 2, "first_step": 1, "first_s": 100.0, "at_s": 110.0}, None),
        ({"step": 21, "first_step": 1, "first_s": 100.0, "at_s": 100.2}, None),
        ({"step": 21, "first_s": 100.0, "at_s": 110.0}, None),
        ({"step": "21", "first_step": 1, "first_s": 100.0, "at_s": 110.0}, None),
        ({"step": 1e308, "first_step": -1e308, "first_s": 0.0, "at_s": 1.0}, None),
    ],
)
def test_iterations_per_second_of_a_report(told: Mapping[str, object], speed: float | None) -> None:
    assert it_per_s(told) == speed
