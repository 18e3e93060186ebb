"""Pairs chosen by what their kernel profiles lead to expect: the figures, and what policies make of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from builders import jobs
from gpuloom.cli.main import cli
from gpuloom.core.errors import InputError, PolicyError
from gpuloom.core.kernel_load import Load, profile_and_load
from gpuloom.core.kernel_pairs import Beside, KernelPairs, kinds_of
from gpuloom.core.pairs import NO_KIND, PairSpeeds
from gpuloom.core.workload import Labels, Workload
from gpuloom.policies.pair_speeds import Expected
from gpuloom.policies.registry import create_policy
from gpuloom.sharing import expected as module
from gpuloom.sharing.expected import busy_share, expected, profile_of, with_kernel_pairs
from gpuloom.sharing.profiles import KernelProfile, KernelRecord, save
from gpuloom.sharing.shipped import shipped
from gpuloom.sharing.simulate import Machine, Pair, poisson_arrivals, request_alone_ns
from gpuloom.sim import simulate
from gpuloom.traces import read_trace, write_trace

HIGH, LOW, NONE = "high", "best-effort", ""


def profile(name: str, *kernels: tuple[int, float], sm_count: int = 80) -> KernelProfile:
    """Kernels of (SMs, microseconds)."""
    records = tuple(KernelRecord(f"{name}{i}", sm, round(us * 1000), 0.3, 0.3) for i, (sm, us) in enumerate(kernels))
    return KernelProfile(name, sm_count, records, tuple(range(len(records))))


SERVICE, TRAINING = profile("service", (40, 80.0), (80, 60.0)), profile("training", (80, 90.0), (30, 70.0))


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library and a cache of their own."""
    monkeypatch.setenv("GPULOOM_HOME", str(tmp_path / "library"))
    monkeypatch.setattr(module, "pairs_folder", lambda: tmp_path / "pairs")
    monkeypatch.setattr(module, "MOST_REQUESTS", 200)  # enough here, and five times as fast


def world(
    rows: Sequence[tuple[float, float, str, str]], known: dict[tuple[str, str], Beside], **columns: Any
) -> Workload:
    """Jobs of one GPU: (submit, duration, class, kernel profile); known: by the profiles of service and training."""
    of_job, kinds, _ = kinds_of([row[3] for row in rows], [row[2] for row in rows])
    pairs = KernelPairs(of_job, kinds, {(kinds.index(a), kinds.index(b)): found for (a, b), found in known.items()})
    shaped = [(submit, duration, 1) for submit, duration, _, _ in rows]
    return jobs(shaped, share_class=Labels.of([row[2] for row in rows]), kernel_pairs=pairs, **columns)


def ends(workload: Workload, policy: str = "fifo:beside=yes", cluster: str = "1x1") -> list[float]:
    result = simulate(workload, cluster, policy, restart_overhead_s=0.0, interval_s=0.0)
    return [round(end, 6) for end in result.end_s.tolist()]


class TestPolicies:
    def test_each_pair_has_its_speed(self) -> None:
        """Beside the service 0.8 of its speed for 300 s, then 760 s alone; the service loses nothing."""
        rows = [(0.0, 300.0, HIGH, "s"), (0.0, 1000.0, LOW, "t")]
        assert ends(world(rows, {("s", "t"): Beside(0.8, 1.02)})) == [300, 1060]
        assert ends(world(rows, {})) == [300, 1150]
        unknown = [(0.0, 300.0, HIGH, ""), (0.0, 1000.0, LOW, "t")]
        assert ends(world(unknown, {}), "fifo:beside=yes;beside_speed=0.3") == [300, 1210]

    @pytest.mark.parametrize(
        ("policy", "p99", "shares"),
        [
            ("fifo:beside=yes", 1.05, True),
            ("fifo:beside=yes", 1.051, False),
            ("fifo:beside=yes;beside_p99=1.2", 1.2, True),
            ("fifo:beside=yes;beside_p99=1", 1.001, False),
        ],
    )
    @pytest.mark.parametrize("first", [HIGH, LOW])
    def test_no_pair_whose_service_would_be_too_slow(self, policy: str, p99: float, shares: bool, first: str) -> None:
        """Whichever of the two was there first."""
        second = LOW if first == HIGH else HIGH
        rows = [(0.0, 300.0, first, first), (1.0, 100.0, second, second)]
        found = ends(world(rows, {(HIGH, LOW): Beside(0.5, p99)}), policy)
        assert (found[1] < 300) is shares

    def test_it_joins_where_it_loses_least(self) -> None:
        services = [(0.0, 900.0, HIGH, "busy"), (0.0, 800.0, HIGH, "idle"), (0.0, 1000.0, HIGH, "middling")]
        known = {
            ("busy", "t"): Beside(0.2, 1.0),
            ("idle", "t"): Beside(0.9, 1.0),
            ("middling", "t"): Beside(0.95, 1.06),  # its p99 would suffer
        }
        workload = world([*services, (1.0, 90.0, LOW, "t")], known)
        assert ends(workload, cluster="1x3")[3] == 101  # 90 s of work at 0.9
        known["idle", "t"] = Beside(0.1, 1.0)
        assert ends(world([*services, (1.0, 90.0, LOW, "t")], known), cluster="1x3")[3] == 451

    def test_a_service_joins_where_the_training_loses_least(self) -> None:
        trainings = [(0.0, 1000.0, LOW, "slow"), (0.0, 500.0, LOW, "fast")]
        known = {("s", "slow"): Beside(0.3, 1.0), ("s", "fast"): Beside(0.8, 1.0)}
        found = ends(world([*trainings, (10.0, 100.0, HIGH, "s")], known), cluster="1x2")
        assert found == [1000, 520, 110]

    def test_before_whom_others_wait_it_ends_in_time(self) -> None:
        """A plain job counts on the GPUs at 300 and 400; beside the second service the training takes too long."""
        services = [(0.0, 300.0, HIGH, "first"), (0.0, 400.0, HIGH, "second"), (0.0, 50.0, NONE, "")]
        known = {("first", "t"): Beside(0.5, 1.0), ("second", "t"): Beside(0.25, 1.0)}
        found = ends(world([*services, (1.0, 140.0, LOW, "t")], known), cluster="1x2")
        assert found == [300, 400, 350, 281]

    def test_what_was_measured_wins(self) -> None:
        rows = [(0.0, 300.0, HIGH, "s"), (0.0, 1000.0, LOW, "t")]
        share = np.full((1, 2, 2), np.nan)
        share[0, 0, 1], share[0, 1, 0] = 0.9, 0.6
        measured = PairSpeeds(np.array([0, 1], dtype=np.int32), ("V100",), (("a", 1), ("b", 1)), share, "table.csv")
        columns: dict[str, Any] = {"pairs": measured, "gpu_memory_mib": np.full(2, 100.0)}
        workload = world(rows, {("s", "t"): Beside(0.8, 1.02)}, **columns)
        assert ends(workload, cluster="1x1:V100") == [300, 1120]  # 0.6, and the service keeps its speed
        assert ends(workload, cluster="1x1:A100") == [300, 1060]  # measured on another model: the profiles
        words = Expected(workload, 0.5, 1.05).words
        assert words(0, 1, "V100") == "measured, table.csv; p99 of the service 1.020 of alone"
        assert words(0, 1, "A100") == "kernel profiles; p99 of the service 1.020 of alone"
        late = world(rows, {("s", "t"): Beside(0.8, 1.3)}, **columns)
        assert ends(late, cluster="1x1:V100") == [300, 1300]  # the table says nothing of the p99
        share[0] = 0.0
        apart = replace(workload, pairs=replace(measured, share=share))
        assert ends(apart, cluster="1x1:V100") == [300, 1300]  # measured not to fit together

    def test_why_it_waits(self) -> None:
        policy = create_policy("fifo:beside=yes;beside_p99=1.1")
        found: dict[str, Any] = {}

        rows = [(0.0, 300.0, HIGH, "s"), (0.0, 100.0, LOW, "t")]
        workload = world(rows, {("s", "t"): Beside(0.8, 1.3)})
        decide = policy.decide

        def told(snapshot: Any, memory: Any) -> Any:
            made = decide(snapshot, memory)
            if snapshot.now_s == 0.0:
                found["reason"] = policy.reason(snapshot, 1)
            return made

        policy.decide = told  # type: ignore[method-assign]
        simulate(workload, "1x1", policy, restart_overhead_s=0.0)
        assert "the service's p99 is expected above 1.1 of alone (beside_p99)" in found["reason"].text
        assert found["reason"].numbers["gpus_too_slow_for_the_service"] == 1

    def test_the_bound_as_it_is_written(self) -> None:
        assert create_policy("srtf:beside=yes").values["beside_p99"] == 1.05
        with pytest.raises(PolicyError, match="must be at least 1"):
            create_policy("srtf:beside_p99=0.9")


class TestExpected:
    def test_by_the_rules_own_simulator(self) -> None:
        rate = 0.5 / (request_alone_ns(SERVICE, Machine()) / 1e9)
        runs = [
            Pair(SERVICE, TRAINING, poisson_arrivals(rate, 200, seed), seed=seed).outcome("gpuloom") for seed in (0, 1)
        ]
        found = expected(SERVICE, TRAINING, None)
        assert found.speed == pytest.approx(np.mean([run.best_effort_over_alone for run in runs]), abs=6e-4)
        assert found.p99 == pytest.approx(np.mean([run.p99_over_alone for run in runs]), abs=6e-4)
        assert expected(SERVICE, TRAINING, Load(None, rate)) == found  # as requests per second
        assert expected(SERVICE, TRAINING, Load(0.2)).speed > found.speed > expected(SERVICE, TRAINING, Load(0.8)).speed

    def test_it_is_computed_once(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        found = expected(SERVICE, TRAINING, None)
        monkeypatch.setattr(module, "Pair", None)  # from now on none is simulated
        assert expected(SERVICE, TRAINING, None) == found
        longer = replace(TRAINING, order=(0, 1, 1))
        with pytest.raises(TypeError):
            expected(SERVICE, longer, None)
        (file,) = (tmp_path / "pairs").iterdir()
        for damaged in ("", "{}", "[1]", '{"speed": null, "p99": 1}'):
            file.write_text(damaged)
            with pytest.raises(TypeError):
                expected(SERVICE, TRAINING, None)
        file.write_text('{"speed": 0.25, "p99": 1.5}')
        assert expected(SERVICE, TRAINING, None) == Beside(0.25, 1.5)

    def test_services_of_long_requests_are_simulated_for_fewer(self) -> None:
        assert module._requests(SERVICE, TRAINING, 0.5) == 200
        long = profile("long", (80, 1e6))
        assert module._requests(long, TRAINING, 0.5) == 100
        between = profile("between", (80, 200_000.0))
        assert module._requests(between, TRAINING, 0.5) == pytest.approx(500_000 / (1 + 5_000), abs=1)

    def test_what_a_service_can_serve(self) -> None:
        alone_s = request_alone_ns(SERVICE, Machine()) / 1e9
        assert busy_share(SERVICE, Load(None, 0.3 / alone_s)) == pytest.approx(0.3, abs=1e-3)
        with pytest.raises(InputError, match=r"service: .* requests/s, but alone it serves at most"):
            expected(SERVICE, TRAINING, Load(None, 1.1 / alone_s))

    def test_of_a_workload(self) -> None:
        library = {"s": SERVICE, "t": TRAINING, "a100": profile("a100", (108, 90.0), sm_count=108)}
        rows = [(HIGH, "s:30%"), (LOW, "t"), (LOW, "a100"), (NONE, "t"), (LOW, ""), (HIGH, "s")]
        workload = jobs(
            [(0, 10, 1)] * 5 + [(0, 10, 2)],
            share_class=Labels.of([row[0] for row in rows]),
            kernel_profile=Labels.of([row[1] for row in rows]),
        )

        def read(text: str) -> tuple[KernelProfile, Load | None]:
            name, load = profile_and_load(text)
            return library[name], load

        found = with_kernel_pairs(workload, read)
        pairs = found.kernel_pairs
        assert pairs is not None
        assert pairs.kinds == ("s:30%", "t", "a100")
        assert pairs.of_job.tolist() == [0, 1, 2, NO_KIND, NO_KIND, NO_KIND]  # the last has two GPUs
        assert pairs.beside(0, 1) == expected(SERVICE, TRAINING, Load(0.3))
        assert pairs.beside(0, 2) is None  # of another GPU model
        assert pairs.beside(0, 4) is pairs.beside(5, 1) is None
        assert "of 1 pair of kinds, training at" in found.notes[0]
        assert "(s:30% and a100): there beside_speed counts" in found.notes[1]
        taken = found.take([3, 1, 0])
        assert taken.kernel_pairs is not None
        assert taken.kernel_pairs.beside(2, 1) == pairs.beside(0, 1)
        for lacking in ("share_class", "kernel_profile"):
            assert with_kernel_pairs(replace(workload, **{lacking: None}), read).kernel_pairs is None
        with pytest.raises(InputError, match="no kernel profile s, and no file of that name"):
            with_kernel_pairs(workload)

    def test_profiles_by_name_and_by_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        assert profile_of("resnet50:15rps") == (shipped("resnet50"), Load(None, 15.0))
        save(replace(TRAINING, name="own"), tmp_path / "library" / "kernels")
        assert profile_of("own")[0].records == TRAINING.records
        monkeypatch.chdir(tmp_path)
        save(replace(SERVICE, name="here"), tmp_path)
        assert profile_of("here.kernels.jsonl:20%") == (replace(SERVICE, name="here"), Load(0.2))
        for text, told in (
            ("gone.kernels.jsonl", "kernel profile gone.kernels.jsonl: no such file"),
            ("gone", "no kernel profile gone"),
            ("own:0%", "kernel_profile: the load of 'own:0%' must be above 0 % and below 100 %"),
        ):
            with pytest.raises(InputError) as caught:
                profile_of(text)
            assert told in str(caught.value)


@pytest.mark.parametrize(
    ("text", "name", "load"),
    [
        ("resnet50", "resnet50", None),
        ("resnet50:30%", "resnet50", Load(0.3)),
        ("resnet50: 15 rps", "resnet50", Load(None, 15.0)),
        ("a/b:c.kernels.jsonl:2.5/s", "a/b:c.kernels.jsonl", Load(None, 2.5)),
        ("odd:3", "odd:3", None),
    ],
)
def test_profile_and_load(text: str, name: str, load: Load | None) -> None:
    assert profile_and_load(text) == (name, load)


@pytest.mark.parametrize("text", [":30%", "a:0%", "a:100%", "a:1.2.3%", "a:0rps", "a:.rps"])
def test_no_load(text: str) -> None:
    with pytest.raises(ValueError, match="load"):
        profile_and_load(text)


TRACE = """job_id,submit_s,duration_s,gpus,model,share_class,kernel_profile
service,0,1000,1,resnet50,high,resnet50:30%
training,1,1000,1,other,best-effort,
"""


class TestTraces:
    def test_the_column(self, tmp_path: Path) -> None:
        (tmp_path / "t.csv").write_text(TRACE)
        workload = read_trace(tmp_path / "t.csv").workload
        assert workload.kernel_profile is not None
        assert [workload.kernel_profile[job] for job in range(2)] == ["resnet50:30%", ""]
        write_trace(workload, tmp_path / "again.csv")
        again = read_trace(tmp_path / "again.csv").workload.kernel_profile
        assert again is not None
        assert again.names == workload.kernel_profile.names
        (tmp_path / "t.csv").write_text(TRACE.replace("30%", "300%"))
        with pytest.raises(InputError, match=r"kernel_profile.*must be above 0 % and below 100 %"):
            read_trace(tmp_path / "t.csv")

    def test_simulate_and_explain(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "expected", lambda service, best_effort, load: Beside(0.75, 1.012))
        (tmp_path / "t.csv").write_text(TRACE)

        def run(*words: str) -> Any:
            line = [words[0], str(tmp_path / "t.csv"), "--cluster", "1x1", *words[1:]]
            return CliRunner().invoke(cli, line, catch_exceptions=False)

        by_model = ("--kernel-profile", "other=resnet50-train", "--kernel-profile", "resnet50=resnet50:80%")
        how = ("--policy", "fifo:beside=yes", "--restart-overhead", "0", "--job", "training")
        told = run("explain", *how, *by_model)
        assert "note: kernel profiles: of 1 pair of kinds, training at 0.75 to 0.75 of alone" in told.stderr
        assert "Beside job service it keeps 75% of its speed alone (kernel profiles; p99 of the service 1.012" in (
            told.stdout
        )
        steps = json.loads(run("explain", *how, *by_model, "--json").stdout)["steps"]
        assert steps[-1]["time_s"] == pytest.approx(1250.75)  # 749.25 s of its work in 999 s, then alone
        assert "the default of beside_speed: no kernel profiles of both" in run("explain", *how).stdout
        for words, message in (
            (("other",), "--kernel-profile other: write MODEL=NAME"),
            (("vgg=resnet50",), "has no job of model 'vgg'"),
            (("other=rsnet50",), "no kernel profile rsnet50, and no file of that name; did you mean 'resnet50'?"),
        ):
            with pytest.raises(InputError) as caught:
                run("explain", *how, "--kernel-profile", *words)
            assert message in str(caught.value)
