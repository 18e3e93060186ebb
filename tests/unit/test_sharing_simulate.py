"""The virtual GPU against what can be worked out by hand, and the commands around it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from gpuloom.cli.share.group import share
from gpuloom.core.errors import InputError
from gpuloom.report.shared_gpu import save_timeline, sms_over_time
from gpuloom.sharing.profiles import KernelProfile, KernelRecord
from gpuloom.sharing.rule import Params
from gpuloom.sharing.shim.native import library_path
from gpuloom.sharing.shipped import shipped
from gpuloom.sharing.simulate import Machine, Pair, poisson_arrivals, request_alone_ns, trace_arrivals
from sharing_gate import Tail
from tiers import slow

EXACT = Machine(launch_us=1.0, submit_us=1.0, gap_us=1.0, wake_us=1.0, cache_interference=0.0, jitter=0.0)


def profile(name: str, *kernels: tuple[int, float], compute: float = 0.0, dram: float = 0.0) -> KernelProfile:
    """Kernels of (SMs, microseconds)."""
    records = tuple(
        KernelRecord(f"{name}{i}", sm, round(us * 1000), compute, dram) for i, (sm, us) in enumerate(kernels)
    )
    return KernelProfile(name, 80, records, tuple(range(len(records))))


def test_request_alone_by_hand() -> None:
    # Launch 1, submit 1, then 10 + 1 + 20 + 1 + 30 us: launches run ahead of the GPU.
    assert request_alone_ns(profile("h", (80, 10), (8, 20), (200, 30)), EXACT) == pytest.approx(64_000)
    # A kernel that is shorter than a launch waits for its own: 4 launches, submit, the last kernel.
    slow = replace(EXACT, launch_us=10.0)
    assert request_alone_ns(profile("h", *[(1, 2.0)] * 4), slow) == pytest.approx(43_000)


def test_queue_alone_is_served_in_order() -> None:
    service = profile("h", (80, 98))
    pair = Pair(service, profile("b", (80, 50)), np.array([0.0, 50e-6, 60e-6, 1.0]), EXACT)
    assert pair.request_ns == 100_000
    assert pair.alone_ns.tolist() == pytest.approx([100_000, 150_000, 240_000, 100_000])


def test_a_running_block_is_not_preempted_and_a_queued_one_gives_way() -> None:
    # Training kernels of one wave of 100 us on all SMs: a request waits for the rest of the running one, no more.
    arrivals = np.array([0.010_030])
    pair = Pair(profile("h", (80, 98)), profile("b", (80, 100)), arrivals, EXACT)
    delay = pair.run(Params.default("priority")).finish_ns[0] - arrivals[0] * 1e9 - 100_000
    assert 0 < delay <= 100_000
    # Without priority, the deep queue of the training job makes no difference: its stream runs one kernel at a time.
    assert pair.run(Params.default("none")).finish_ns[0] - arrivals[0] * 1e9 - 100_000 <= 2 * 100_000 + 2_000


def test_many_waves_free_their_sms_early() -> None:
    # The same 100 us in ten waves: the wait is at most a wave of 10 us.
    pair = Pair(profile("h", (80, 98)), profile("b", (800, 100)), np.array([0.010_030]), EXACT)
    assert pair.run(Params.default("priority")).finish_ns[0] - 10_030_000 - 100_000 <= 10_000


def test_side_by_side_where_both_fit_and_slowed_where_memory_is_oversubscribed() -> None:
    arrivals = np.array([0.010_030])
    free = Pair(profile("h", (40, 98)), profile("b", (40, 100)), arrivals, EXACT)
    assert free.run(Params.default("priority")).finish_ns[0] - 10_030_000 == pytest.approx(100_000, abs=1)
    busy = Pair(profile("h", (40, 98), dram=0.8), profile("b", (40, 100), dram=0.8), arrivals, EXACT)
    slow = busy.run(Params.default("priority")).finish_ns[0] - 10_030_000
    assert 98_000 * 1.5 < slow <= 2_000 + 98_000 * 1.6 + 1  # 1.6 of the bandwidth is asked for, but in gaps


def test_best_effort_alone_is_bound_by_kernels_or_by_launches() -> None:
    long = Pair(profile("h", (1, 1)), profile("b", (80, 99)), np.array([0.0]), EXACT)
    assert long.iteration_ns == pytest.approx(100_000, rel=0.1)
    short = Pair(profile("h", (1, 1)), profile("b", *[(80, 1.0)] * 100), np.array([0.0]), replace(EXACT, launch_us=5.0))
    assert short.iteration_ns == pytest.approx(500_000, rel=0.05)


def pair_of_shipped(seed: int = 3, requests: int = 300) -> Pair:
    service = shipped("resnet50")
    rate = 0.5e9 / request_alone_ns(service, Machine())
    return Pair(service, shipped("resnet50-train"), poisson_arrivals(rate, requests, seed), seed=seed)


def test_same_seed_same_outcome() -> None:
    one, two = (pair_of_shipped(requests=60).outcome("gpuloom") for _ in range(2))
    assert one == two
    assert pair_of_shipped(seed=4, requests=60).outcome("gpuloom") != one


def test_rules_in_the_order_they_must_be() -> None:
    pair = pair_of_shipped()
    none, priority, orion, ours = (pair.outcome(rule) for rule in ("none", "priority", "orion", "gpuloom"))
    assert none.p99_over_alone > priority.p99_over_alone > ours.p99_over_alone
    assert ours.p99_over_alone < 1.15
    assert ours.best_effort_over_alone > 0.45
    assert orion.max_held_ms <= 100.1
    assert ours.max_held_ms <= 100.1
    assert sum(ours.held_ms.values()) == pytest.approx(ours.held_share * ours.duration_s * 1e3, rel=1e-3)
    assert ours.sm_utilisation > ours.sm_utilisation_high > 0


def test_max_hold_lets_go_while_the_service_never_ends() -> None:
    service = profile("h", *[(80, 1000)] * 400)  # a request of 0.4 s
    pair = Pair(service, profile("b", (80, 100)), np.array([0.001]), EXACT)
    outcome = pair.outcome("gpuloom", replace(Params.default("gpuloom"), price=0.0))
    assert outcome.max_held_ms == pytest.approx(100, abs=0.1)
    assert outcome.max_held_ms == round(outcome.max_held_ms, 3)
    assert outcome.admitted["max_hold"] >= 3


def test_bad_input() -> None:
    service, training = shipped("resnet50"), shipped("resnet50-train")
    with pytest.raises(InputError, match="both must be of one GPU model"):
        Pair(service, replace(training, sm_count=108), np.array([0.0]))
    for arrivals in ([], [1.0, 0.5], [-1.0], [float("nan")]):
        with pytest.raises(InputError, match="arrivals"):
            Pair(service, training, np.array(arrivals))
    with pytest.raises(InputError, match="above 0"):
        poisson_arrivals(0, 10, 0)
    with pytest.raises(InputError, match="gaps"):
        trace_arrivals([0.0], 10)
    with pytest.raises(InputError, match="jitter"):
        Machine(jitter=1.0)


def test_trace_arrivals_repeat_and_scale() -> None:
    assert trace_arrivals([1, 3], 4).tolist() == [1, 4, 5, 8]
    assert trace_arrivals([1, 3], 4, rate_per_s=5).tolist() == pytest.approx([0.1, 0.4, 0.5, 0.8])


def test_virtual_queue() -> None:
    tail, rng = Tail(), np.random.default_rng(0)
    arrivals = np.cumsum(rng.exponential(2e6, 5000)).astype(int)
    finish, latencies = 0, []
    for arrival in arrivals.tolist():
        finish = max(finish, arrival) + 1_000_000
        assert tail.add(arrival, 1_000_000) == finish
        latencies.append(finish - arrival)
    assert tail.quantile_ns(0.99) == pytest.approx(np.percentile(latencies, 99), rel=0.022)
    assert tail.load() == pytest.approx(0.5, rel=0.05)


def fed(load: float, requests: int) -> tuple[Tail, list[int]]:
    """A virtual queue after random arrivals of requests of 1 ms, and their latencies alone."""
    tail, latencies = Tail(), []
    for arrival in np.cumsum(np.random.default_rng(1).exponential(1e6 / load, requests)).astype(int).tolist():
        latencies.append(tail.add(arrival, 1_000_000) - arrival)
    return tail, latencies


def test_price_follows_the_distance_of_the_real_p99_from_the_virtual_one() -> None:
    params = replace(Params.default("gpuloom"), target=0.035, step=0.01)
    scales = {}
    for late in (1.0, 1.02, params.target + 1, 1.1):
        tail, latencies = fed(0.5, 1000)
        scales[late] = [tail.done(params, latency, round(latency * late)) for latency in latencies][-1]
    assert scales[1.0] == 1.0
    assert scales[1.02] == 1.0
    assert params.least < scales[params.target + 1] < 1.0  # within the resolution of the histogram
    assert scales[1.1] == params.least


def test_budget_of_a_request_by_its_virtual_latency() -> None:
    params = Params.default("gpuloom")
    tail, latencies = fed(0.5, 2000)
    p99 = float(np.percentile(latencies, 99))
    lone, middle, slow = (tail.budget_ns(params, round(share * p99)) for share in (0.1, 0.9, 1.5))
    assert 0.15 * p99 < lone <= params.budget * p99 * 1.022
    assert slow < middle <= lone
    assert slow == pytest.approx(params.overrun * p99, rel=0.2)
    few, _ = fed(0.5, 20)
    assert few.budget_ns(params, 10**6) < lone  # not much is known of the p99 yet


def test_timeline(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    pair = pair_of_shipped(requests=40)
    window = (0.05, 0.1)
    outcome = pair.outcome("gpuloom", trace_s=window)
    high = sms_over_time(outcome.spans, "high", window, 100)
    both = high + sms_over_time(outcome.spans, "best-effort", window, 100)
    assert 0 < both.max() <= 80 + 1e-6
    assert {span.value == "window" for span in outcome.spans if span.kind == "hold"} == {True, False}
    save_timeline([outcome], window, 80, tmp_path / "t.png", "pair")
    save_timeline([outcome], window, 80, tmp_path / "t.svg", "pair")
    drawn = (tmp_path / "t.svg").read_text()
    assert all(drawn.count(f'"{colour}"') > 1 for colour in ("#d9b44a", "#b9cfe4")), "bars, beside the legend's"
    assert (tmp_path / "t.png").stat().st_size > 5000
    with pytest.raises(InputError, match=r"ends in \.png"):
        save_timeline([outcome], window, 80, tmp_path / "t.gif", "pair")


def test_cli_simulate() -> None:
    run = CliRunner().invoke(
        share,
        ["simulate", "--high", "resnet50:100rps", "--best-effort", "resnet50-train", "--requests", "50", "--json", "-"],
    )
    assert run.exit_code == 0, run.output
    outcomes = json.loads(run.stdout)
    assert [o["rule"] for o in outcomes] == ["none", "priority", "orion", "gpuloom"]
    assert all(o["p99_over_alone"] >= 0.99 and 0 < o["best_effort_over_alone"] <= 1.01 for o in outcomes)
    table = CliRunner().invoke(
        share, ["simulate", "--high", "resnet50", "--best-effort", "resnet50-train", "--requests", "9"]
    )
    assert "p99/alone" in table.stdout


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--high", "resnet50:rps"], "NAME or NAME:RATE"),
        (["--high", "resnet50:0rps"], "rate must be above 0 and finite"),
        (["--high", "resnet50:-5rps"], "rate must be above 0 and finite"),
        (["--high", "resnet50:nanrps"], "rate must be above 0 and finite"),
        (["--high", "resnet50:9999rps"], "alone serves at most"),
        (["--high", "resnet50:9rps", "--load", "0.5"], "give one of them"),
        (["--high", "resnet50", "--load", "1"], "above 0 and below 1"),
        (["--high", "nothing"], "no kernel profile nothing"),
        (["--high", "resnet50", "--profiles", "/no/such"], "no such folder"),
    ],
)
def test_cli_refuses(options: list[str], told: str) -> None:
    run = CliRunner().invoke(share, ["simulate", "--best-effort", "resnet50-train", *options])
    assert isinstance(run.exception, InputError)
    assert told in str(run.exception)


@pytest.mark.parametrize(
    ("rate", "told"),
    [("1e-9", "of virtual time, at most a day"), ("1e-12", "of virtual time, at most a day"), ("1e-320", "finite")],
)
def test_more_than_a_day_is_refused(rate: str, told: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        options = ["--high", f"resnet50:{rate}rps", "--best-effort", "resnet50-train", "--requests", "50"]
        run = CliRunner().invoke(share, ["simulate", *options])
    assert isinstance(run.exception, InputError)
    assert told in str(run.exception)


def test_gaps_and_queues_of_more_than_a_day_are_refused() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for gaps in ([0.1, 0.1, 1e300], [1.7e308, 1.7e308]):
            with pytest.raises(InputError, match="at most a day"):
                trace_arrivals(gaps, 10)
        assert not np.isfinite(trace_arrivals([1e-300], 3, rate_per_s=1e-320)[-1])
    with pytest.raises(InputError, match=r"100 requests take 1e\+05 s"):
        Pair(profile("h", (80, 1e9)), profile("b", (80, 50)), np.zeros(100), EXACT)


@pytest.mark.parametrize("number", [signal.SIGINT, *slow(signal.SIGTERM)])
def test_a_run_can_be_interrupted(number: signal.Signals) -> None:
    options = ["--high", "resnet50:0.02rps", "--best-effort", "resnet50-train"]  # half a day: minutes
    command = [sys.executable, "-m", "gpuloom", "share", "simulate", *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert [process.stderr.readline() for _ in range(2)][1].startswith("resnet50-train:")
        try:
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.2)
            process.send_signal(number)
            assert process.wait(10) == 1
            assert process.stderr.read().strip() == "interrupted"
        finally:
            process.kill()


def test_cli_profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPULOOM_HOME", str(tmp_path))
    source = tmp_path / "a_fwd"
    source.write_text("Name,Profile,Memory_footprint,SM_usage,Duration\nf,1,0,9,7000\n")
    assert CliRunner().invoke(share, ["profiles", "import", str(source), "--name", "mine"]).exit_code == 0
    listed = json.loads(CliRunner().invoke(share, ["profiles", "ls", "--json"]).stdout)
    assert [row["name"] for row in listed] == ["mine", "resnet50", "resnet50-train"]
    shown = json.loads(CliRunner().invoke(share, ["profiles", "show", "mine", "--json"]).stdout)
    assert shown["by_kernel"] == [
        {"launches": 1, "duration_ns": 7000, "sm_slots": 9, "longest_ns": 7000, "class": "compute", "name": "f"}
    ]
    compared = json.loads(CliRunner().invoke(share, ["profiles", "diff", "mine", "resnet50", "--json"]).stdout)
    assert compared["total_ns"][0] == 7000
    hidden = CliRunner().invoke(share, ["profiles", "import", str(source), "--name", "resnet50"])
    assert hidden.exit_code == 0
    assert "resnet50 now names this profile instead of the shipped one" in hidden.stderr


def test_compiled_once_and_said_where_it_cannot(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    if library_path().parent != tmp_path / "gpuloom":
        pytest.skip("an installed library is used, nothing is compiled")
    first = library_path()
    assert library_path() == first
    assert [path.name for path in (tmp_path / "gpuloom").iterdir()] == [first.name]
    monkeypatch.setenv("CC", "false")
    with pytest.raises(InputError, match="false could not compile"):
        library_path()
    monkeypatch.setenv("CC", "no-such-compiler")
    monkeypatch.setattr("gpuloom.sharing.shim.compiler.__file__", str(tmp_path / "nowhere" / "x" / "y" / "compiler.py"))
    with pytest.raises(InputError, match="so are its sources"):
        library_path()
