"""Pollux' simulation on a made-up application whose figures can be worked out by hand."""

from __future__ import annotations

import dataclasses
import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloom.cli.main import cli
from gpuloom.core.errors import GpuloomError, InputError, PolicyError, TraceError
from gpuloom.goodput import (
    Application,
    Nodes,
    Submission,
    create_rule,
    load_applications,
    read_submissions,
    simulate,
)
from gpuloom.goodput.job import Batch, Job, goodput, split
from gpuloom.goodput.optimus import Optimus, iterations_left, most_gpus
from gpuloom.goodput.packing import pack
from gpuloom.goodput.shares import Shares
from gpuloom.goodput.tables import Goodputs
from gpuloom.goodput.tiresias import Tiresias

PLACEMENTS = {"1": 0.0, "2": 0.1, "4": 0.1, "11": 0.2, "12": 0.2, "22": 0.2, "44": 0.2}
"""Seconds of synchronisation. A pass takes 0.5 s for 8 samples, 1 s for 16."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An application `net` of 4 epochs, 100 iterations each at batch 16; 50 at 32, which are worth 1.5 each."""
    place = tmp_path / "profiles" / "net"
    place.mkdir(parents=True)
    rows = [f"{name},{size},{size / 16 + sync},{sync}" for name, sync in PLACEMENTS.items() for size in (8, 16)]
    (place / "placements.csv").write_text("\n".join(["placement,local_bsz,step_time,sync_time", *rows]) + "\n")
    scaled = [f"{n},{4 * n},{size},{size / 16 + 0.4},0.4" for n in (6, 8, 16) for size in (8, 16)]
    (place / "scalability.csv").write_text(
        "\n".join(["num_nodes,num_replicas,local_bsz,step_time,sync_time", *scaled]) + "\n"
    )
    for size, iterations in ((16, 100), (32, 50), (64, 25)):
        epochs = [f"{100 * n},{iterations * n},0.5,1,2" for n in range(1, 5)]
        text = "\n".join(["progress,iteration,metric,grad_sqr,grad_var", *epochs])
        (place / f"validation-{size}.csv").write_text(text + "\n")
    return tmp_path / "profiles"


@pytest.fixture
def net(folder: Path) -> Application:
    return load_applications(folder)["net"]


def row(name: str = "a", at: int = 0, gpus: int = 1, batch: int = 16) -> Submission:
    return Submission(name, at, "net", gpus, batch)


# -- applications -----------------------------------------------------------------------------------------------------


def test_what_is_read(net: Application) -> None:
    assert (net.epochs, net.least_batch, net.most_batch, net.least_local, net.most_local) == (4, 16, 64, 8, 16)
    assert net.progress_after == [0, 100, 200, 300, 400]
    assert net.step_s((1,), 16) == (1.0, 0.0)
    assert net.step_s((1,), 12) == (0.75, 0.0)
    assert net.step_s((2, 1), 8) == pytest.approx((0.7, 0.2))  # 2+1 is 1+2 turned around
    assert net.step_s((4,) * 6, 12) == pytest.approx((1.15, 0.4))
    assert net.iterations_after(32, 1) == 100
    assert net.iterations_after(24, 1) == 150  # half way between 16 and 32
    assert net.gain(16, 0) == 1
    assert net.gain(32, 0) == pytest.approx(1.5)  # (2 + 1) / (2 / 2 + 1)


def test_between_placements_it_interpolates_in_simplices(net: Application) -> None:
    pytest.importorskip("scipy")
    step, sync = net.step_s((4,) * 7, 12)  # half way between 6 and 8 nodes, which agree
    assert (step, sync) == pytest.approx((1.15, 0.4))


def test_outside_of_all_measurements_is_an_error(net: Application) -> None:
    with pytest.raises(InputError, match=r"1 GPUs on 1 nodes \(1\) with 99 samples"):
        net.step_s((1,), 99)
    for batch in (15, 65):
        with pytest.raises(InputError, match=f"batch size {batch} is outside 16 to 64"):
            net.noise(batch, 0)


def test_an_application_of_one_epoch_and_files_that_are_none_of_it(folder: Path) -> None:
    net = folder / "net"
    for size in (16, 32, 64):
        lines = (net / f"validation-{size}.csv").read_text().splitlines()
        (net / f"validation-{size}.csv").write_text("\n".join(lines[:2]) + "\n")
    (net / "validation-notes.csv").write_text("nothing\n")
    (net / "other-128.csv").write_text("nothing\n")
    found = load_applications(folder)["net"]
    assert (found.epochs, found.progress_after, found.batch_sizes.tolist()) == (1, [0, 100], [16, 32, 64])
    for size in (16, 32, 64):
        (net / f"validation-{size}.csv").unlink()
    with pytest.raises(TraceError, match="application net has no validation-<batch size>"):
        load_applications(folder)


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("placements.csv", "placement,local_bsz\n1,8\n", "step_time"),
        ("placements.csv", "placement,local_bsz,step_time,sync_time\n1,8,nan,0\n", "finite"),
        ("placements.csv", "placement,local_bsz,step_time,sync_time\n1,8,1,0\n", "two local batch sizes"),
        ("scalability.csv", "", "no rows"),
        ("validation-16.csv", "progress,iteration,metric,grad_sqr,grad_var\n1,x,1,1,1\n", "validation-16.csv"),
    ],
)
def test_profiles_that_are_wrong_are_named(folder: Path, file: str, text: str, said: str) -> None:
    (folder / "net" / file).write_text(text)
    with pytest.raises(TraceError, match=said):
        load_applications(folder)


# -- batches and progress ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("batch", "gpus", "expected"),
    [
        (16, 1, Batch(16, 0)),
        (32, 1, Batch(16, 1)),
        (20, 1, Batch(10, 1)),  # larger than the smallest on one GPU: two passes
        (32, 2, Batch(16, 0)),
        (64, 2, Batch(16, 1)),
        (40, 3, Batch(14, 0)),  # rounded up
        (64, 3, Batch(10, 1)),  # rounded up it would be 66, more than the largest
    ],
)
def test_how_a_batch_is_split(net: Application, batch: int, gpus: int, expected: Batch) -> None:
    assert split(net, batch, gpus) == expected


@given(batch=st.integers(16, 64), gpus=st.integers(1, 16))
def test_a_split_covers_the_batch_as_far_as_may_be(batch: int, gpus: int) -> None:
    app = Application("x", 1, 1, 16, np.array([16, 64]), *(np.ones((2, 1)) for _ in range(4)), {}, np.ones((1, 5)))
    found = split(app, batch, gpus)
    assert 1 <= found.local <= 16
    assert found.size(gpus) <= 64
    assert found.size(gpus) >= min(batch, 64 - gpus * (found.accumulated + 1) + 1)


def test_goodput(net: Application) -> None:
    # two passes of 1 s, of which one synchronises for 0.1 s; gain of 64: 3 / (2 / 4 + 1)
    assert goodput(net, (2,), Batch(16, 1), 0) == pytest.approx(2 / 2.1)


def test_a_job_by_hand(net: Application) -> None:
    """Submitted at 61 s, seen at 120 s, 30 s to start, 400 iterations of 1 s."""
    run = simulate([row(at=61)], {"net": net}, Tiresias(), Nodes(1, 4))
    assert run.end_s.tolist() == [120 + 30 + 400]
    assert run.jct_s.tolist() == [489]
    assert run.gpu_s.tolist() == [430]
    assert (run.restarts, run.decisions) == (0, 8)


def test_epochs_end_on_whole_seconds(net: Application) -> None:
    """An iteration of 1.2 s on two nodes, worth 1.5: an epoch takes 80 s; of 1.1 s on one: 73.33, counted as 73."""
    spread = simulate([row(gpus=2, batch=32)], {"net": net}, Tiresias(), Nodes(2, 1))
    assert spread.end_s.tolist() == [60 + 30 + 4 * 80]
    packed = simulate([row(gpus=2, batch=32)], {"net": net}, Tiresias(), Nodes(1, 2))
    assert packed.end_s.tolist() == [pytest.approx(60 + 30 + 4 * 73.33, abs=2)]
    assert packed.end_s[0] % 1 == 0


def test_long_gaps_cost_nothing_and_change_nothing(net: Application) -> None:
    run = simulate([row("a"), row("b", at=3_000_000_001)], {"net": net}, Tiresias(), Nodes(1, 1))
    assert run.jct_s.tolist() == [60 + 430, 3_000_000_060 + 430 - 3_000_000_001]


def test_an_empty_cluster_of_time_is_not_an_error_but_a_rule_that_starves_is(net: Application) -> None:
    class Nobody(Tiresias):
        def allocate(self, *_: object) -> dict[str, tuple[int, ...]]:  # type: ignore[override]
            return {}

    class Twice(Tiresias):
        def allocate(self, *_: object) -> dict[str, tuple[int, ...]]:  # type: ignore[override]
            return {"a": (0, 0)}

    with pytest.raises(GpuloomError, match="none has run for an hour"):
        simulate([row()], {"net": net}, Nobody(), Nodes(1, 1))
    with pytest.raises(GpuloomError, match="2 GPUs given of node 0, which has 1"):
        simulate([row()], {"net": net}, Twice(), Nodes(1, 1))


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (row(gpus=3), "needs 3 GPUs, the cluster has 2"),
        (row(batch=65), "batch size 65 is outside"),
        (dataclasses.replace(row(), application="gpt"), "no profile of application 'gpt', must be one of net"),
    ],
)
def test_jobs_that_can_not_run(net: Application, bad: Submission, said: str) -> None:
    with pytest.raises(InputError, match=said):
        simulate([bad], {"net": net}, Tiresias(), Nodes(1, 2))


# -- rules ------------------------------------------------------------------------------------------------------------


def job(net: Application, name: str, gpus: int = 1, batch: int = 16) -> Job:
    return Job(name, net, 0, gpus, batch)


def test_tiresias_sinks_a_job_after_16_gpu_hours(net: Application) -> None:
    rule, nodes = Tiresias(), Nodes(1, 4)
    old, new = job(net, "old", 4), job(net, "new", 4)
    assert rule.allocate(60, [old], nodes) == {"old": (0, 0, 0, 0)}
    hours = 60 + 4 * 3600
    assert set(rule.allocate(hours - 60, [old, new], nodes)) == {"old"}
    assert rule.allocate(hours, [old, new], nodes) == {"new": (0, 0, 0, 0)}
    assert rule.second == ["old"]
    assert set(rule.allocate(hours + 60, [old], nodes)) == {"old"}


def test_tiresias_passes_who_does_not_fit(net: Application) -> None:
    jobs = [job(net, "a", 2), job(net, "b", 4), job(net, "c", 2)]
    assert set(Tiresias().allocate(60, jobs, Nodes(2, 2))) == {"a", "c"}


def test_gpus_come_from_the_emptiest_nodes(net: Application) -> None:
    jobs = [job(net, "a", 1), job(net, "b", 3), job(net, "c", 2)]
    assert Tiresias().allocate(60, jobs, Nodes(3, 2)) == {"a": (0,), "b": (1, 1, 2), "c": (0, 2)}


def test_optimus_gives_where_time_is_saved(net: Application) -> None:
    """Batch 16 can be shared by two, 64 by eight; one GPU takes two passes even for 16."""
    small, large = job(net, "small", batch=16), job(net, "large", batch=64)
    assert (most_gpus(small), most_gpus(large)) == (2, 8)
    assert (iterations_left(small), iterations_left(large)) == (300, 75)
    held = Optimus().allocate(60, [small, large], Nodes(1, 4))
    # A second GPU saves `small` (1.0 - 0.6) * 300 s, `large` (4.0 - 2.1) * 75 s first.
    assert {name: len(nodes) for name, nodes in held.items()} == {"small": 2, "large": 2}
    large.epoch = 3
    assert iterations_left(large) == 1


def test_optimus_has_one_gpu_for_each_in_order(net: Application) -> None:
    held = Optimus().allocate(60, [job(net, name) for name in "abc"], Nodes(1, 2))
    assert {name: len(nodes) for name, nodes in held.items()} == {"a": 1, "b": 1}


def test_the_tables_hold_the_best_batch(net: Application) -> None:
    tables = Goodputs(Nodes(16, 4))
    assert tables.sizes(net) == (1, 2, 4, 8)  # 24 and more GPUs would need batches above 64
    for gpus in tables.sizes(net):
        rate, batch = tables.best(net, gpus, 0)
        placement = Nodes(16, 4).packed(gpus)
        assert rate == pytest.approx(goodput(net, placement, batch, 0))
        assert 16 <= batch.size(gpus) <= 64
        for total in (16, 24, 32, 48, 64):
            other = split(net, total, gpus)
            if other.local >= 8:
                assert rate >= goodput(net, placement, other, 0) * 0.97
    alone = tables.best(net, 1, 0)[0]
    assert tables.left_s(net, 0, 0.0) == pytest.approx(400 / alone)
    assert tables.left_s(net, 2, 250.0) == pytest.approx(150 / alone)


def test_goodput_uses_idle_gpus_and_shares_them_when_others_come(net: Application) -> None:
    rule, nodes = Shares(Nodes(2, 4)), Nodes(2, 4)
    one = job(net, "one")
    assert len(rule.allocate(60, [one], nodes)["one"]) == 8
    many = [job(net, f"n{i}") for i in range(20)]
    held = rule.allocate(120, many, nodes)
    assert sorted(map(len, held.values())) == [1] * 8


def test_goodput_with_doubling_starts_with_one(net: Application) -> None:
    rule, nodes = Shares(Nodes(2, 4), explore="doubling"), Nodes(2, 4)
    one = job(net, "one")
    sizes = []
    for step in range(1, 200, 20):
        one.most_gpus = len(one.nodes)
        one.hold(rule.allocate(60 * step, [one], nodes)["one"], rule.batch)
        sizes.append(len(one.nodes))
    assert sizes[0] == 1
    assert all(after <= 2 * before for before, after in pairwise(sizes))
    assert sizes[-1] == 8


def test_goodput_prefers_short_jobs_when_it_knows(net: Application) -> None:
    short, long = job(net, "short"), job(net, "long")
    short.epoch, short.progress = 3, 399.0
    held = Shares(Nodes(1, 1), ends="known").allocate(60, [long, short], Nodes(1, 1))
    assert set(held) == {"short"}


@pytest.mark.parametrize(
    "text",
    [
        "goodput",
        "goodput:ends=known",
        "goodput:explore=doubling",
        "goodput:know=learnt",
        "sia",
        "sia:know=told",
        "tiresias",
        "optimus",
    ],
)
def test_every_rule_ends_every_job_on_every_cluster(net: Application, text: str) -> None:
    if text in ("goodput:know=learnt", "sia"):
        pytest.importorskip("scipy")
    rng = np.random.default_rng(3)
    work = [
        row(f"j{i}", int(at), int(rng.integers(1, 3)), int(rng.choice([16, 32, 64])))
        for i, at in enumerate(np.sort(rng.integers(0, 2000, 25)))
    ]
    for nodes in (Nodes(1, 2), Nodes(2, 1), Nodes(2, 2), Nodes(1, 4)):
        run = simulate(work, {"net": net}, create_rule(text, nodes), nodes)
        assert (run.jct_s >= 30 + 50).all()
        assert run.gpu_s.sum() <= nodes.total * run.end_s.max()
    again = simulate(work, {"net": net}, create_rule(text, nodes), nodes)
    assert again.end_s.tolist() == run.end_s.tolist()


def test_ncf_keeps_its_batch_and_its_gpu_as_in_pollux(net: Application) -> None:
    """Its batch is the one the artifact gives it, cut to what was measured."""
    one = job(dataclasses.replace(net, name="ncf", most_local=64), "one")
    rule = create_rule("goodput:know=learnt", Nodes(2, 4))
    for step in range(1, 4):
        held = rule.allocate(60 * step, [one], Nodes(2, 4))["one"]
        assert len(held) == 1
        if held != one.nodes:
            one.hold(held, rule.batch)
        one.wait_s = 0
    assert one.batch is not None
    assert one.batch.size(1) <= 64


@pytest.mark.parametrize("text", ["srtf", "tiresias:ends=known", "goodput:ends=maybe", "goodput:speed=1", "goodput:x"])
def test_rules_that_do_not_exist(text: str) -> None:
    with pytest.raises(PolicyError):
        create_rule(text, Nodes(16, 4))


# -- packing ----------------------------------------------------------------------------------------------------------


@given(st.data())
def test_all_that_fit_by_number_find_a_place_and_the_rest_of_a_step_stays(data: st.DataObject) -> None:
    nodes = Nodes(4, 4)
    held: dict[str, tuple[int, ...]] = {}
    for _ in range(4):
        sizes = data.draw(st.lists(st.sampled_from([0, 1, 2, 4, 8, 12]), max_size=16))
        wants, total = {}, 0
        for name, size in zip("abcdefghijklmnop", sizes, strict=False):
            wants[name] = size if total + size <= nodes.total else 0
            total += wants[name]
        found = pack(wants, held, nodes)
        assert {name: len(got) for name, got in found.items()} == {n: size for n, size in wants.items() if size}
        used = [sum(got.count(node) for got in found.values()) for node in range(nodes.count)]
        assert max(used) <= nodes.gpus
        for name, got in found.items():
            assert len(set(got)) == max(1, wants[name] // nodes.gpus)
        assert pack(wants, found, nodes) == found  # nothing moves without need
        held = found


# -- files and command ------------------------------------------------------------------------------------------------

HEADER = "name,time,application,num_replicas,batch_size\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a,b\n1,2\n", "the header lacks name, time"),
        (HEADER, "no jobs"),
        (HEADER + "a,0,net,1,16\na,1,net,1,16\n", r"f:3, column 'name': 'a' was used before, on line 2"),
        (HEADER + "a,-1,net,1,16\n", r"f:2, column 'time'"),
        (HEADER + "a,0,net,0,16\n", "num_replicas"),
        (HEADER + "a,0,net,1\n", "batch_size"),
        (HEADER + "a,0,,1,16\n", "application"),
        (HEADER + ",0,net,1,16\n", "name"),
    ],
)
def test_workloads_that_are_wrong(text: str, said: str) -> None:
    with pytest.raises(TraceError, match=said):
        read_submissions(text.encode(), "f")


def test_the_command(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "w.csv"
    file.write_text(HEADER + "a,61,net,1,16\nb,0,net,2,32\n")
    words = ["pollux", str(file), "--throughputs", str(folder), "--cluster", "1x4"]
    cli.main([*words, "--policies", "tiresias,goodput"], standalone_mode=False)
    assert [line.split()[:2] for line in capsys.readouterr().out.splitlines()[1:]] == [
        ["w", "tiresias"],
        ["w", "goodput"],
    ]
    cli.main([*words, "--json", "-", "--policies", "tiresias"], standalone_mode=False)
    (result,) = json.loads(capsys.readouterr().out)["results"]
    assert result["jobs"] == 2
    assert result["avg_jct_s"] == pytest.approx((489 + result["makespan_s"] * 2) / 2, rel=1)
    jobs = tmp_path / "jobs.csv"
    cli.main([*words, "--jobs-csv", str(jobs), "--policies", "tiresias"], standalone_mode=False)
    assert "w,tiresias,a,61,550,489,430" in jobs.read_text().splitlines()


@pytest.mark.parametrize(
    "more",
    [["--cluster", "8x8"], ["--cluster", "big"], ["--interval", "0.5"], ["--policies", "srtf"], ["--policies", ","]],
)
def test_the_command_refuses(folder: Path, tmp_path: Path, more: list[str]) -> None:
    file = tmp_path / "w.csv"
    file.write_text(HEADER + "a,61,net,1,16\n")
    with pytest.raises(InputError):
        cli.main(["pollux", str(file), "--throughputs", str(folder), *more], standalone_mode=False)


def test_the_command_says_that_profiles_are_missing(tmp_path: Path) -> None:
    file = tmp_path / "w.csv"
    file.write_text(HEADER + "a,61,net,1,16\n")
    with pytest.raises(InputError, match="--throughputs"):
        cli.main(["pollux", str(file)], standalone_mode=False)
