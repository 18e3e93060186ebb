"""The examples do what they say: the policy plug-in, the library script."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from builders import jobs, workloads
from gpuloom.core.workload import Labels, Workload
from gpuloom.live.trial.rehearsal import Rehearsal
from gpuloom.policies.registry import ENTRY_POINTS, policy_class, policy_ids
from gpuloom.sim import Failure, simulate
from tiers import examples

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PLUGIN = EXAMPLES / "policy_plugin"


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(PLUGIN))
    return importlib.import_module("gpuloom_user_fair")


@pytest.fixture
def installed(module: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """What pip would write, as the example's pyproject.toml says, in a folder on sys.path."""
    project = tomllib.loads((PLUGIN / "pyproject.toml").read_text())["project"]
    info = tmp_path / "site" / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    points = project["entry-points"][ENTRY_POINTS]
    lines = [f"[{ENTRY_POINTS}]", *(f"{name} = {value}" for name, value in points.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    monkeypatch.syspath_prepend(str(info.parent))
    return info.parent


def two_users(**columns: object) -> Workload:
    """ann submits six jobs of 100 s at once, ben one a second later."""
    rows = [(0.0, 100.0, 1)] * 6 + [(1.0, 100.0, 1)]
    return jobs(rows, user=Labels.of(["ann"] * 6 + ["ben"]), **columns)


def test_who_comes_rarely_does_not_queue_behind_who_submits_much(module: ModuleType) -> None:
    fair = simulate(two_users(), "1x1", module.UserFair(), restart_overhead_s=0.0)
    fifo = simulate(two_users(), "1x1", "fifo", restart_overhead_s=0.0)
    assert (fair.start_s[6], fifo.start_s[6]) == (100.0, 600.0)
    # ann's own jobs keep their order.
    assert (np.diff(fair.start_s[:6]) > 0).all()


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("orderly", [True, False])
def test_it_serves_users_in_turn_on_a_live_scheduler_through_swaps_and_restarts(orderly: bool) -> None:
    live = Rehearsal("fifo", models=["V100"])
    live.submit({"gpus": 1}, user="ann")
    live.tell(lambda: live.service.set_policy("user-fair:charge=job"))
    anns = live.submit({"gpus": 1}, {"gpus": 1}, {"gpus": 1}, user="ann")
    (bens,) = live.submit({"gpus": 1}, user="ben")
    live.later(60.0)
    order = []
    while live.going():
        assert not live.scheduler.problem
        (run,) = live.executor.live()
        order.append(int(run.partition(".")[0]))
        live.restart(orderly=orderly)
        live.end(run)
    assert order == [1, anns[0], bens, anns[1], anns[2]] or order[1:3] == [bens, anns[0]]
    assert order[3:] == anns[1:]


def test_a_job_is_charged_by_its_size_unless_told_otherwise(module: ModuleType) -> None:
    # One long job of ann's against ben's short ones: by GPU-time ben has much to go before ann's next.
    rows = [(0.0, 1000.0, 1), (0.0, 100.0, 1)] + [(1.0, 100.0, 1)] * 4
    workload = jobs(rows, user=Labels.of(["ann", "ann", "ben", "ben", "ben", "ben"]))
    by_time = simulate(workload, "1x1", module.UserFair(), restart_overhead_s=0.0)
    by_job = simulate(workload, "1x1", module.UserFair(charge="job"), restart_overhead_s=0.0)
    assert by_time.start_s.tolist() == [0.0, 1400.0, 1000.0, 1100.0, 1200.0, 1300.0]
    assert by_job.start_s.tolist() == [0.0, 1100.0, 1000.0, 1200.0, 1300.0, 1400.0]


def test_weights_make_a_job_cheaper(module: ModuleType) -> None:
    weight = np.array([4.0] * 6 + [1.0])
    result = simulate(two_users(weight=weight), "1x1", module.UserFair(), restart_overhead_s=0.0)
    # Tags of ann: 0, 25, 50, 75, 100, 125; of ben: 0 (virtual time when he came).
    assert result.start_s.tolist() == [0.0, 200.0, 300.0, 400.0, 500.0, 600.0, 100.0]


def test_a_job_that_lost_its_node_keeps_its_tag(module: ModuleType) -> None:
    result = simulate(two_users(), "1x1", module.UserFair(), restart_overhead_s=0.0, failures=(Failure(0, 50.0, 60.0),))
    assert result.starts.tolist() == [2, 1, 1, 1, 1, 1, 1]
    assert (result.end_s[0], result.end_s[6]) == (110.0, 210.0)


@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(workload=workloads(most=20))
def test_one_user_alone_is_first_in_first_out(module: ModuleType, workload: Workload) -> None:
    fair = simulate(workload, "2x8", module.UserFair(), restart_overhead_s=5.0)
    fifo = simulate(workload, "2x8", "fifo:backfill=greedy", restart_overhead_s=5.0)
    assert fair.end_s.tolist() == fifo.end_s.tolist()


@pytest.mark.usefixtures("installed")
def test_the_entry_point_is_found(module: ModuleType) -> None:
    assert policy_ids()[-1] == "user-fair"
    assert policy_class("user-fair") is module.UserFair
    result = simulate(two_users(), "1x1", "user-fair:charge=job", restart_overhead_s=0.0)
    assert (result.policy, result.start_s[6]) == ("user-fair:charge=job", 100.0)


def test_the_command_knows_it(installed: Path) -> None:
    command = [sys.executable, "-c", "from gpuloom.cli.main import main; main()", "policies", "user-fair"]
    path = os.pathsep.join([str(installed), str(PLUGIN)])
    told = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=True)
    assert "user-fair: users in turn, by start-time fair queueing" in told.stdout
    assert "charge = gpu_time" in told.stdout


@pytest.mark.slow
def test_the_library_script(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    target = tmp_path / "jobs.csv"
    command = [sys.executable, "-W", "error", str(EXAMPLES / "compare_policies.py"), str(target)]
    told = subprocess.run(command, capture_output=True, text=True, check=True)
    rows = [line.split()[0] for line in told.stdout.splitlines()[2:5]]
    assert rows == ["fifo:backfill=easy", "tiresias", "srsf"]
    frame = pandas.read_csv(target)
    assert frame.groupby("policy").size().to_dict() == dict.fromkeys(rows, 500)
    assert (frame["wait_s"] >= 0).all()


def test_the_cluster_file() -> None:
    from gpuloom.facts.inputs import load_cluster

    cluster = load_cluster(str(EXAMPLES / "cluster.yaml"))
    assert (str(cluster), cluster.name, cluster.nodes[4].name) == ("4x8:V100,16x4:K80", "lab", "k0")
    # docs/reference/clusters.md shows it as it is.
    shown = (
        (EXAMPLES.parent / "docs" / "reference" / "clusters.md").read_text().split("```yaml\n", 1)[1].split("```", 1)[0]
    )
    assert shown == (EXAMPLES / "cluster.yaml").read_text().split("\n", 1)[1]
