"""Jobs that share GPUs live, as processes: who joins or leaves disturbs nobody, and what is known of their group."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuloom.core.cluster import parse_cluster
from gpuloom.report.as_it_ran import as_it_ran
from gpuloom.sim.simulator import simulate
from gpuloom.traces import read_trace
from real_scheduler import Real, real
from until import until

pytestmark = pytest.mark.slow

PROFILES = """model,gpus,iteration_s,storage_s,cpu_s,gpu_s,network_s
reader,1,1,1.0,0,0,0
learner,1,1,0,0,1.0,0
"""
"""They use different parts of a machine, and lose nothing beside each other."""


def woven(it: Real, policy: str) -> None:
    """A scheduler that knows both models."""
    it.home.mkdir(parents=True)
    it.env["GPULOOM_HOME"] = str(it.home)
    (it.home / "profiles.csv").write_text(PROFILES)
    it.up("--policy", policy, "--interval", "0")


@pytest.mark.parametrize("policy", ["muri-s", "muri-xs", "weave"])
def test_who_joins_and_who_leaves_restarts_nobody(tmp_path: Path, policy: str) -> None:
    with real(tmp_path, slots=1) as it:
        woven(it, policy)
        one = it.client.submit([it.waiting(model="reader", estimate=1000)])[0][0]
        until(lambda: it.marks()[one] == 1, "the first job runs")
        two = it.client.submit([it.waiting(model="learner", estimate=1000)])[0][0]
        until(lambda: it.marks()[two] == 1, "the second job runs beside it")
        (group,) = it.client.groups()
        assert [member["job"] for member in group["members"]] == [one, two]
        assert sorted(group["order"] or []) == [one, two]
        assert group["efficiency"] == pytest.approx(0.5, abs=0.2)  # two of four resources are busy
        assert it.client.show(one)["group"] == it.client.show(two)["group"] != None  # noqa: E711
        told = [event["data"] for event in it.client.events(types=["group.changed"])]
        assert [(event["members"], event["was"]) for event in told] == [([one, two], [])]
        assert (told[0]["gpus"], told[0]["efficiency"]) == (group["gpus"], group["efficiency"])
        # A scheduler that takes over knows of it, and tells nothing twice.
        it.kill()
        it.up()
        assert [member["job"] for member in it.client.groups()[0]["members"]] == [one, two]
        it.end(two)
        until(lambda: it.client.groups() == [], "the group is gone")
        told = [event["data"] for event in it.client.events(types=["group.changed"])]
        assert [(event["members"], event["was"]) for event in told] == [([one, two], []), ([], [one, two])]
        it.end(one)
        (view,) = it.client.wait([one], timeout_s=60)
        assert (view["state"], view["attempts"], it.marks()[one]) == ("finished", 1, 1)
        _replays(it, policy)


def _replays(it: Real, policy: str) -> None:
    """The history has the stage times by which jobs were put together, on which GPUs they ran, and who was in which
    group; the simulator, which does not know these models, puts the same together."""
    week = it.files / "week.csv"
    assert it.run("history", "export", str(week)).returncode == 0
    workload = read_trace(week).workload
    assert workload.stage_s is not None
    assert workload.ran is not None
    assert workload.ran.runs is not None
    runs = workload.ran.runs
    assert [len(each) for each in runs.runs] == [1, 1]
    (group,) = runs.groups()
    assert (sorted(group.members), group.ordered) == (["1", "2"], True)
    assert group.efficiency == pytest.approx(0.5, abs=0.2)
    both = max(each[0].start_s for each in runs.runs), min(each[0].end_s for each in runs.runs)
    assert (group.since_s, group.until_s) == (pytest.approx(both[0], abs=5.0), pytest.approx(both[1], abs=5.0))
    past = as_it_ran(workload, parse_cluster(workload.cluster))
    again = simulate(workload, workload.cluster, f"{policy}:processes=own", interval_s=0.0, record_segments=True)
    assert past is not None
    for result in (past, again):
        assert result.segments is not None
        # One after the other on the only slot: the second on a layer above the first.
        assert result.segments.layer.tolist() == [0, 1], result.policy
        assert result.timeline.busy_gpus.max() == 1
    assert past.notes[0].endswith(f"in 1 group of mean efficiency {group.efficiency:.2f}")
