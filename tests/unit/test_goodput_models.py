"""Sia's ground: GPU models, curves that are learnt, costs by application; on made-up profiles worked out by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from gpuloom.cli.main import cli
from gpuloom.core.errors import GpuloomError, InputError, PolicyError, TraceError
from gpuloom.goodput import (
    Application,
    Cluster,
    Nodes,
    Submission,
    create_rule,
    load_models,
    parse_cluster,
    read_submissions,
    simulate,
)
from gpuloom.goodput.base import Mixed
from gpuloom.goodput.costs import read_values, with_costs
from gpuloom.goodput.job import Batch, Job
from gpuloom.goodput.knowledge import Learnt, Told, restart_kept
from gpuloom.goodput.packing import pack_pools
from gpuloom.goodput.shares import _unknown
from gpuloom.goodput.sia import Sia
from gpuloom.goodput.tiresias import Tiresias
from gpuloom.traces import read_trace

MIXED = "2x4:slow,1x8:fast"
SPEED = {"slow": 1.0, "fast": 4.0}
SYNC = {"1": 0.0, "2": 0.1, "4": 0.1, "8": 0.1, "44": 0.2}


def write(place: Path) -> Path:
    """`net`: 4 epochs, 100 iterations each at batch 16; 50 at 32, worth 1.5 each. A pass takes 1 s for 16 samples on
    `slow`, a quarter on `fast`, where 32 fit a GPU."""
    folder = place / "net"
    folder.mkdir(parents=True)
    for model, speed in SPEED.items():
        sizes = (4, 8, 16) if model == "slow" else (4, 8, 16, 32)
        rows = [f"{p},{b},{(b / 16 + sync) / speed},{sync / speed}" for p, sync in SYNC.items() for b in sizes]
        (folder / f"placements-{model}.csv").write_text("placement,local_bsz,step_time,sync_time\n" + "\n".join(rows))
        wide = [f"2,16,{b},{(b / 16 + 0.2) / speed},{0.2 / speed}" for b in sizes]
        (folder / f"scalability-{model}.csv").write_text(
            "num_nodes,num_replicas,local_bsz,step_time,sync_time\n" + "\n".join(wide)
        )
    for size, iterations in ((16, 100), (32, 50), (64, 25)):
        epochs = [f"{100 * n},{iterations * n},0.5,1,2" for n in range(1, 5)]
        (folder / f"validation-{size}.csv").write_text(
            "progress,iteration,metric,grad_sqr,grad_var\n" + "\n".join(epochs)
        )
    return place


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "profiles")


@pytest.fixture
def apps(folder: Path) -> dict[str, dict[str, Application]]:
    return load_models(folder, ["slow", "fast"])


@pytest.fixture
def mixed() -> Cluster:
    return parse_cluster(MIXED)


def job(apps: dict[str, dict[str, Application]], name: str = "a") -> Job:
    return Job(name, apps["slow"]["net"], 0, 1, 16, apps={model: known["net"] for model, known in apps.items()})


def row(name: str = "a", at: float = 0, batch: int = 16) -> Submission:
    return Submission(name, at, "net", 1, batch)


# -- what is read -----------------------------------------------------------------------------------------------------


def test_clusters() -> None:
    assert parse_cluster("16x4") == Nodes(16, 4)
    assert parse_cluster("6x4:aws,2x8:dgx-ext,3x8:rtx") == Mixed(
        (Nodes(6, 4, "aws"), Nodes(2, 8, "dgx-ext"), Nodes(3, 8, "rtx"))
    )
    assert parse_cluster("6x4:aws,2x8:dgx-ext,3x8:rtx").total == 64


@pytest.mark.parametrize("text", ["2x4,1x8", "2x4:a,1x8:a", "2x4:a,1x8", "1x10:a", "0x4:a", "2x4:", "x"])
def test_clusters_that_are_none(text: str) -> None:
    with pytest.raises(InputError):
        parse_cluster(text)


def test_profiles_by_model(folder: Path, apps: dict[str, dict[str, Application]]) -> None:
    slow, fast = apps["slow"]["net"], apps["fast"]["net"]
    assert (slow.model, fast.model) == ("slow", "fast")
    assert slow.step_s((1,), 16) == (1.0, 0.0)
    assert fast.step_s((1,), 16) == (0.25, 0.0)
    assert (slow.most_local_on((1,)), fast.most_local_on((1,)), slow.most_local_on((8, 8))) == (16, 32, 16)
    assert slow.most_local_on((4,) * 5) is None
    assert slow.seconds_per_sample() / fast.seconds_per_sample() == 4
    assert (slow.restart_s, slow.slowdown) == (30, 1)  # nothing is known of `net`
    with pytest.raises(InputError, match="GPU model 'V100', must be one of fast, slow"):
        load_models(folder, ["V100"])


def test_known_applications_have_the_costs_that_sia_measured(tmp_path: Path) -> None:
    place = write(tmp_path)
    (place / "net").rename(place / "ncf")
    (place / "ncf" / "validation-16.csv").write_text(
        "progress,iteration,grad_sqr,grad_var\n" + "\n".join(f"{n},{n},1,1" for n in range(1, 11))
    )
    for name in ("validation-32.csv", "validation-64.csv"):
        (place / "ncf" / name).unlink()
    app = load_models(place, ["slow"])["slow"]["ncf"]
    assert (app.restart_s, app.slowdown) == (15, 1.5)


HEADER = "name,time,application,num_replicas,batch_size\n"


def test_times_may_have_fractions() -> None:
    (one,) = read_submissions((HEADER + "a,487.661836,net,8,16\n").encode(), "f")
    assert one.submit_s == 487.661836
    for bad in ("1e3", "nan", "-1", "", ".5"):
        with pytest.raises(TraceError, match="column 'time'"):
            read_submissions((HEADER + f"a,{bad},net,8,16\n").encode(), "f")


def test_costs_by_application(tmp_path: Path, apps: dict[str, dict[str, Application]]) -> None:
    assert read_values("--x", "30", (0, 30)) == {"*": 30}
    assert read_values("--x", "a=1.5,b=2", (1, 2)) == {"a": 1.5, "b": 2}
    file = tmp_path / "costs.csv"
    file.write_text("application,restart_s\nnet,75\n")
    assert read_values("--x", str(file), (0, 100)) == {"net": 75}
    found = with_costs(apps, {"net": 75}, {"*": 2})
    assert {(app.restart_s, app.slowdown) for known in found.values() for app in known.values()} == {(75, 2)}
    file.write_bytes(b"net,\xff")
    with pytest.raises(InputError, match="is no CSV file"):
        read_values("--x", str(file), (0, 100))
    for text in ("a=", "x", "x" * 5000, str(tmp_path), "a=0.5", "=3", "a=inf"):
        with pytest.raises(InputError, match="--x"):
            read_values("--x", text, (1, 100))
    with pytest.raises(InputError, match="no application 'other', must be one of net"):
        with_costs(apps, {"other": 1}, None)


# -- a job by hand ----------------------------------------------------------------------------------------------------


def test_a_job_by_hand(apps: dict[str, dict[str, Application]], mixed: Cluster) -> None:
    """Submitted at 60.5 s, seen at 120 s, 45 s to start; 400 iterations of 0.25 s, twice as long for the slowdown."""

    class OneFast(Sia):
        def allocate(self, now_s: int, jobs: object, nodes: object) -> dict[str, tuple[int, ...]]:
            return {"a": (2,)}

        def batch(self, job: Job) -> Batch:
            return Batch(16, 0)

    run = simulate([row(at=60.5)], with_costs(apps, {"net": 45}, {"net": 2}), OneFast(mixed), mixed)
    assert run.end_s.tolist() == [120 + 45 + 200]
    assert run.jct_s.tolist() == [304.5]
    assert run.gpu_s.tolist() == [245]


def test_nobody_has_gpus_of_two_models(apps: dict[str, dict[str, Application]], mixed: Cluster) -> None:
    class Both(Sia):
        def allocate(self, now_s: int, jobs: object, nodes: object) -> dict[str, tuple[int, ...]]:
            return {"a": (1, 2)}

    with pytest.raises(GpuloomError, match="GPUs of several models"):
        simulate([row()], apps, Both(mixed), mixed)


def test_a_change_of_model_costs_a_restart(apps: dict[str, dict[str, Application]]) -> None:
    one = job(apps)
    choose = Learnt(parse_cluster(MIXED)).batch
    one.hold((0,), choose, "slow")
    one.train(0, 60, choose)
    assert one.seen == {"slow": {(1, 1, 16): (1.0, 0.0)}}
    one.hold((2,), choose, "fast")
    assert (one.app.model, one.wait_s, one.restarts) == ("fast", 30, 1)


# -- knowledge --------------------------------------------------------------------------------------------------------


def test_who_has_not_trained_knows_nothing(apps: dict[str, dict[str, Application]], mixed: Cluster) -> None:
    options = Learnt(mixed).options(job(apps))
    assert [(one.pool, one.gpus, one.goodput) for one in options] == [(0, 1, 1.0), (1, 1, 1.0)]


def test_what_is_learnt_on_one_model_is_carried_to_the_other(
    apps: dict[str, dict[str, Application]], mixed: Cluster
) -> None:
    pytest.importorskip("scipy")
    known = Learnt(mixed)
    one = job(apps)
    one.hold((0,), known.batch, "slow")
    assert one.batch == Batch(16, 0)  # the smallest batch, as nothing is known
    one.train(0, 60, known.batch)
    found = {(x.pool, x.gpus): x.goodput for x in known.options(one)}
    assert set(found) == {(0, 1), (0, 2), (1, 1), (1, 2)}  # at most twice as many as it trained on
    assert found[1, 1] == pytest.approx(4 * found[0, 1])
    # Batch 32 is worth 1.5 times 16; nothing is known of the network, so that a second GPU looks free.
    assert found[0, 2] == pytest.approx(1.5 * found[0, 1], rel=1e-3)
    one.hold((2, 2), known.batch, "fast")
    one.train(60, 60, known.batch)
    assert max(gpus for _, gpus in ((x.pool, x.gpus) for x in known.options(one))) == 4


def test_told_curves_are_the_measured_ones(apps: dict[str, dict[str, Application]], mixed: Cluster) -> None:
    options = {(x.pool, x.gpus): x.goodput for x in Told(mixed).options(job(apps))}
    assert set(options) == {(0, 1), (0, 2), (0, 4), (0, 8), (1, 1), (1, 2), (1, 4), (1, 8)}
    assert options[0, 1] == pytest.approx(1.0)
    assert options[1, 1] == pytest.approx(4.0, rel=0.02)


@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(1, 16), st.integers(4, 512)), min_size=1, max_size=8),
    st.lists(st.floats(0.02, 2), min_size=7, max_size=7),
)
def test_the_gradient_of_the_fit(keys: list[tuple[int, int, int]], x: list[float]) -> None:
    from gpuloom.goodput.fitting import _error

    nodes, gpus, local = (np.array(column, dtype=float) for column in zip(*keys, strict=True))
    compute = 0.05 + 0.001 * local
    told = (local, nodes > 1, gpus > 1, np.maximum(gpus - 2, 1e-8), np.log(compute), np.log(compute + 0.01 * gpus))
    at = np.array(x)
    at[6] += 1
    _, gradient = _error(at, *told)
    steps = np.eye(7) * 1e-6
    numeric = [(_error(at + step, *told)[0] - _error(at - step, *told)[0]) / 2e-6 for step in steps]
    assert gradient == pytest.approx(numeric, rel=1e-3, abs=1e-4)


def test_a_fit_of_one_step_takes_half_of_it_for_constant() -> None:
    pytest.importorskip("scipy")
    from gpuloom.goodput.fitting import fit_steps

    model = fit_steps({(1, 1, 128): (0.2, 0.001)})
    assert model.values[0] == pytest.approx(0.199 / 2)
    step = model.step_s(model.compute_s(np.array([128.0])), np.array([1]), np.array([1]))
    assert step == pytest.approx([0.2], rel=0.01)


@pytest.mark.parametrize(
    ("sizes", "nothing"),
    [
        ([(1, 1)], {2: 1.1, 3: 1.1, 4: 1.0, 5: 1.0}),  # between nodes it is a tenth slower than on one
        ([(1, 1), (1, 2)], {3: 1.1, 5: 1.0}),
        ([(1, 1), (2, 2)], {3: 1.0, 4: 1.0, 5: 1.0}),
        ([(1, 1), (2, 8)], {4: 1.0, 5: 1.0}),
    ],
)
def test_a_fit_makes_nothing_of_what_was_not_seen(sizes: list[tuple[int, int]], nothing: dict[int, float]) -> None:
    """Of time between nodes, on one node, and by the GPUs beyond two; in units of the least that it may be."""
    pytest.importorskip("scipy")
    from gpuloom.goodput.fitting import fit_steps

    seen = {(nodes, gpus, local): (local / 100 + 0.1 * gpus, 0.1 * gpus) for nodes, gpus in sizes for local in (16, 64)}
    values = fit_steps(seen).values
    assert {at: values[at] / 1e-8 for at in nothing} == pytest.approx(nothing)
    assert all(values[at] > 1e-7 for at in range(2, 6) if at not in nothing)


def test_a_fit_finds_what_made_the_steps() -> None:
    pytest.importorskip("scipy")
    from gpuloom.goodput.fitting import fit_steps

    sizes = [(1, 1), (1, 2), (1, 4), (2, 8), (3, 12)]
    seen = {}
    for nodes, gpus in sizes:
        for local in (16, 64, 128):
            compute = 0.05 + 0.001 * local
            network = 0.0 if gpus == 1 else 0.02 + 0.0005 * (gpus - 2) if nodes == 1 else 0.08 + 0.001 * (gpus - 2)
            seen[nodes, gpus, local] = compute + network, network
    model = fit_steps(seen)
    for (nodes, gpus, local), (step, _) in seen.items():
        found = model.step_s(model.compute_s(np.array([float(local)])), np.array([nodes]), np.array([gpus]))
        assert found[0] == pytest.approx(step, rel=0.15)


def test_what_a_restart_leaves(apps: dict[str, dict[str, Application]]) -> None:
    one = job(apps)
    one.starts = 3
    assert restart_kept(one, 300) == pytest.approx((300 - 2 * 30) / 330)
    assert restart_kept(one, 30) == 0


# -- rules ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["sia", "sia:know=told", "sia:p=0.5", "goodput", "goodput:know=told"])
@pytest.mark.parametrize("cluster", [MIXED, "1x4:slow", "1x1:slow,1x1:fast"])
def test_every_rule_ends_every_job(apps: dict[str, dict[str, Application]], text: str, cluster: str) -> None:
    pytest.importorskip("scipy")
    rng = np.random.default_rng(3)
    times = np.sort(rng.uniform(0, 2000, 15)).round(3)
    work = [row(f"j{i}", float(at), int(rng.choice([16, 32, 64]))) for i, at in enumerate(times)]
    nodes = parse_cluster(cluster)
    run = simulate(work, apps, create_rule(text, nodes), nodes)
    assert np.isfinite(run.end_s).all()
    assert run.gpu_s.sum() <= nodes.total * run.end_s.max()
    again = simulate(work, apps, create_rule(text, nodes), nodes)
    assert again.end_s.tolist() == run.end_s.tolist()


@pytest.mark.parametrize("text", ["sia", "goodput", "sia:know=told", "goodput:know=told"])
def test_a_job_alone_ends_on_the_fast_model(apps: dict[str, dict[str, Application]], mixed: Cluster, text: str) -> None:
    pytest.importorskip("scipy")
    rule = create_rule(text, mixed)
    long = {model: {"net": known["net"]} for model, known in with_costs(apps, None, {"net": 100}).items()}
    one = job(long)
    for step in range(1, 40):
        held = rule.allocate(60 * step, [one], mixed).get("a", ())
        if held != one.nodes:
            one.hold(held, rule.batch, "slow" if held[0] < 2 else "fast")
        one.train(60 * step, 60, rule.batch)
    assert one.app.model == "fast"
    assert len(one.nodes) >= 4


def test_jobs_that_are_starting_keep_what_they_have(apps: dict[str, dict[str, Application]], mixed: Cluster) -> None:
    for text in ("sia:know=told", "goodput:know=told"):
        rule = create_rule(text, mixed)
        one = job(apps)
        one.hold((0,), rule.batch, "slow")
        assert rule.allocate(60, [one], mixed) == {"a": (0,)}
        one.wait_s = 0
        assert rule.allocate(60, [one], mixed) != {"a": (0,)}


def test_a_new_job_goes_where_others_found_it_fast(apps: dict[str, dict[str, Application]], mixed: Cluster) -> None:
    pytest.importorskip("scipy")
    rule = create_rule("goodput", mixed)
    old, new = job(apps, "old"), job(apps, "new")
    assert rule.allocate(60, [new], mixed) == {"new": (0,)}
    old.hold((0,), rule.batch, "slow")
    old.train(60, 60, rule.batch)
    rule.allocate(120, [old], mixed)
    assert rule.allocate(180, [new], mixed) == {"new": (2,)}


def test_rules_that_know_one_model_refuse_several(mixed: Cluster) -> None:
    for text in ("tiresias", "optimus"):
        with pytest.raises(PolicyError, match="knows one GPU model only"):
            create_rule(text, mixed)
    with pytest.raises(PolicyError, match="knows one GPU model only"):
        Tiresias().allocate(60, [], mixed)


@pytest.mark.parametrize(
    "text", ["sia:p=0", "sia:p=x", "sia:know=all", "goodput:know=all", "goodput:ends=known", "goodput:explore=no"]
)
def test_parameters_that_are_none(mixed: Cluster, text: str) -> None:
    with pytest.raises(PolicyError):
        create_rule(text, mixed)


@given(st.data())
def test_pools_are_packed_each_for_itself(data: st.DataObject) -> None:
    mixed = parse_cluster(MIXED)
    held: dict[str, tuple[int, ...]] = {}
    for _ in range(3):
        wants: dict[str, tuple[int, int]] = {}
        left = [8, 8]
        for name in "abcdefgh":
            pool, gpus = data.draw(st.integers(0, 1)), data.draw(st.sampled_from([1, 2, 4, 8]))
            if gpus <= left[pool]:
                left[pool] -= gpus
                wants[name] = pool, gpus
        found = pack_pools(wants, held, mixed)
        assert {name: len(nodes) for name, nodes in found.items()} == {name: gpus for name, (_, gpus) in wants.items()}
        for name, nodes in found.items():
            assert all((node < 2) == (wants[name][0] == 0) for node in nodes)
        assert pack_pools(wants, found, mixed) == found
        held = found


# -- command ----------------------------------------------------------------------------------------------------------


def test_the_command(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("scipy")
    file = tmp_path / "w.csv"
    file.write_text(HEADER + "a,61.25,net,1,16\nb,0,net,2,32\nc,5,net,2,32\n")
    words = ["pollux", str(file), "--throughputs", str(folder), "--cluster", MIXED]
    cli.main([*words, "--json", "-", "--window", "0-1"], standalone_mode=False)
    found = json.loads(capsys.readouterr().out)["results"]
    assert [(one["policy"], one["window"], one["jobs"]) for one in found] == [
        ("sia", [0, 1], 3),
        ("goodput", [0, 1], 3),
    ]
    assert all(one["avg_jct_s"] == one["median_jct_s"] for one in found)
    jobs = tmp_path / "jobs.csv"
    cli.main([*words, "--policies", "sia", "--jobs-csv", str(jobs), "--window", "1-3"], standalone_mode=False)
    assert jobs.read_text().splitlines()[1].startswith("w,sia,a,61.25,")
    assert "of the 2 jobs 1 to 2" in capsys.readouterr().out
    slow = [*words, "--policies", "goodput:know=told", "--json", "-"]
    ends = []
    for more in ([], ["--slowdowns", "net=3"], ["--restart-times", "200"]):
        cli.main([*slow, *more], standalone_mode=False)
        ends.append(json.loads(capsys.readouterr().out)["results"][0]["avg_jct_s"])
    assert ends[1] > 1.5 * ends[0]
    assert ends[2] > ends[0] + 100


@pytest.mark.parametrize(
    "more",
    [
        ["--cluster", "2x4:V100"],
        ["--policies", "tiresias"],
        ["--restart-times", "cat=3"],
        ["--slowdowns", "0"],
        ["--slowdowns", "101"],
        ["--restart-times", "1e9"],
        ["--restart-times", "net=86401"],
        ["--interval", "2d"],
        ["--window", "0-9"],
    ],
)
def test_the_command_refuses(folder: Path, tmp_path: Path, more: list[str]) -> None:
    file = tmp_path / "w.csv"
    file.write_text(HEADER + "a,61,net,1,16\n")
    with pytest.raises((InputError, PolicyError)):
        cli.main(["pollux", str(file), "--throughputs", str(folder), "--cluster", MIXED, *more], standalone_mode=False)


def test_numbers_that_can_not_be_are_told_with_their_range(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "w.csv"
    file.write_text(HEADER + "a,61,net,1,16\n")
    words = ["pollux", str(file), "--throughputs", str(folder), "--cluster", MIXED]
    for more, told in (
        (["--restart-times", "1e9"], "--restart-times 1e9: must be a number from 0 to 86,400"),
        (
            ["--slowdowns", "net=1e9"],
            "--slowdowns net=1e9: 'net=1e9' must be an application and a number from 0.001 to 100",
        ),
        (["--interval", "1e9"], "--interval 1e+09: must be a whole number of seconds, from 1 to 86,400"),
    ):
        found = CliRunner().invoke(cli, [*words, *more])
        assert isinstance(found.exception, InputError)
        assert told in str(found.exception)


@pytest.mark.parametrize("most", [["--restart-times", "86400"], ["--slowdowns", "100"], ["--interval", "1d"]])
def test_the_largest_numbers_that_can_be_end(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], most: list[str]
) -> None:
    pytest.importorskip("scipy")
    file = tmp_path / "w.csv"
    file.write_text(HEADER + "a,61,net,1,16\nb,0,net,2,32\nc,5,net,2,32\n")
    words = ["pollux", str(file), "--throughputs", str(folder), "--cluster", MIXED, "--json", "-"]
    cli.main([*words, *most], standalone_mode=False)
    assert len(json.loads(capsys.readouterr().out)["results"]) == 2


class Swaps:
    """Two jobs, one GPU: it goes to the other one at every step, or at the second of them for a while."""

    gives_submitted_gpus = False

    def __init__(self, often: bool) -> None:
        self.often = often

    def allocate(self, now_s: int, jobs: list[Job], nodes: Cluster) -> dict[str, tuple[int, ...]]:
        return {jobs[now_s // (60 if self.often else 600) % len(jobs)].name: (0,)}

    def batch(self, job: Job) -> Batch:
        return Batch(16, 0)


def test_a_rule_under_which_nobody_ever_trains_is_told(folder: Path) -> None:
    apps = with_costs(load_models(folder, ["slow"]), {"*": 120.0}, None)
    jobs = [Submission(name, 0.0, "net", 1, 16) for name in "ab"]
    nodes = Nodes(1, 1, "slow")
    assert simulate(jobs, apps, Swaps(often=False), nodes).end_s.tolist() == [580, 1120]
    with pytest.raises(GpuloomError, match="at 3720 s: nobody has trained for 1h 01m: jobs are given other GPUs"):
        simulate(jobs, apps, Swaps(often=True), nodes)


def test_a_restart_counts_as_long_as_it_takes_when_goodput_weighs_it(folder: Path) -> None:
    """Not always Pollux' 30 s: who has little time left of its age after restarts keeps its GPUs."""
    app = load_models(folder, ["slow"])["slow"]["net"]
    cheap, dear = (
        Job("a", replace(app, restart_s=seconds), 0.0, 1, 16, nodes=(0,), starts=3) for seconds in (30.0, 300.0)
    )
    assert _unknown(600, cheap)[1] == pytest.approx((600 - 60) / 630)
    assert _unknown(600, dear)[1] == 0.0


# -- the same workloads in gpuloom's own simulation -------------------------------------------------------------------


@pytest.fixture
def workload(folder: Path, tmp_path: Path) -> Path:
    file = tmp_path / "w.csv"
    file.write_text(HEADER + "a,0.5,net,1,16\nb,1.25,net,2,32\n")
    return file


def test_a_trace_with_profiles_by_model_has_speeds(folder: Path, workload: Path) -> None:
    found = read_trace([workload], throughputs=folder).workload
    assert found.speeds is not None
    assert found.speeds.models == ("fast", "slow")  # no model is named aws: the first by name
    assert found.speeds.factor == pytest.approx(np.array([[1, 0.25], [1, 0.25]]))
    assert found.duration_s.tolist() == pytest.approx([400 * 0.25, 200 * 1.1 / 4])
    assert found.submit_s.tolist() == [0.5, 1.25]
    on_slow = read_trace([workload], throughputs=folder, gpu_model="slow").workload
    assert on_slow.duration_s.tolist() == pytest.approx([400, 220])
    with pytest.raises(InputError, match="on GPU model 'V100', only on fast, slow"):
        read_trace([workload], throughputs=folder, gpu_model="V100")


def test_names_of_profiles_stand_for_what_is_sold(folder: Path, workload: Path) -> None:
    for file in (folder / "net").glob("*-slow.csv"):
        file.rename(file.with_name(file.name.replace("-slow", "-aws")))
    found = read_trace([workload], throughputs=folder).workload
    assert found.speeds is not None
    assert found.speeds.models == ("aws", "fast", "T4")
    assert found.speeds.factor == pytest.approx(np.array([[1, 4, 1], [1, 4, 1]]))
    assert read_trace([workload], throughputs=folder, gpu_model="t4").workload.duration_s[0] == 400


def test_it_runs_faster_on_the_fast_model(folder: Path, workload: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ends = []
    for cluster in ("1x4:slow", "1x4:fast"):
        words = ["simulate", str(workload), "--throughputs", str(folder), "--cluster", cluster, "--json", "-", "-q"]
        cli.main([*words, "--policy", "fifo", "--restart-overhead", "0"], standalone_mode=False)
        ends.append(json.loads(capsys.readouterr().out)["avg_jct_s"])
    assert ends[0] == pytest.approx(4 * ends[1])


def test_profiles_without_models_are_as_alike_as_before(
    folder: Path, workload: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for file in list((folder / "net").iterdir()):
        if file.stem.endswith("-fast"):
            file.unlink()
        elif file.stem.endswith("-slow"):
            file.rename(file.with_name(file.name.replace("-slow", "")))
    words = ["simulate", str(workload), "--throughputs", str(folder), "--cluster", "1x4:V100,1x4:K80"]
    cli.main([*words, "--policy", "fifo"], standalone_mode=False)
    assert "V100 and K80 count as equally fast" in capsys.readouterr().err
