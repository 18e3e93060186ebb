"""bench/live_policies.py: policies live on nodes of two pretended GPU models, beside the simulator."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))
import live_policies
from gpuloom.core.errors import GpuloomError
from gpuloom.policies.registry import policy_ids


def test_every_policy_is_there() -> None:
    assert list(live_policies.POLICIES) == list(policy_ids())[:18]


def test_a_workload_that_hangs_on_milliseconds_is_not_taken() -> None:
    plan = live_policies.steady(["srtf"], 6, 1.0)
    for start_s in (0.07, 0.25):
        late = [job.at_s + (0.03 if index % 2 else 0.0) for index, job in enumerate(plan)]
        again = live_policies.simulated(plan, late, "srtf", start_s)
        assert again.on == live_policies.simulated(plan, [job.at_s for job in plan], "srtf", 0.12).on


def test_under_policies_that_resize_some_jobs_change_their_size() -> None:
    plan = live_policies.steady(["elastic-goodput"], 8, 1.0)
    on = live_policies.simulated(plan, [job.at_s for job in plan], "elastic-goodput", 0.12).on
    assert any(len({run.split()[0] for run in runs}) > 1 for runs in on)
    assert all(job.most == job.gpus for job in live_policies.steady(["srtf"], 8, 1.0))


def test_where_none_is_found_it_says_what_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_policies, "TRIED", 3)
    monkeypatch.setattr(live_policies, "STARTS_S", (0.1, 50.0))
    with pytest.raises(GpuloomError, match="srtf: of 3 workloads each hangs on milliseconds; take fewer jobs"):
        live_policies.steady(["srtf"], 8, 1.0)


@pytest.mark.slow
def test_jobs_really_run_and_move(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = tmp_path / "found.json"
    words = ["--policies", "hlas", "--jobs", "3", "--json", str(found)]
    monkeypatch.setattr("sys.argv", ["live_policies.py", *words])
    live_policies.main()
    (row,) = json.loads(found.read_text())
    plan = live_policies.steady([live_policies.POLICIES["hlas"]], 3, 1.0)
    for job, planned in zip(row["jobs"], plan, strict=True):
        assert {run.split()[1] for run in job["live_on"]} <= {"K80", "V100"}
        assert job["live_jct_s"] >= planned.takes_s / planned.faster, "no faster than its fastest model lets it"
        assert {run.split()[0] for run in job["live_on"]} == {str(planned.gpus)}
    assert live_policies.page_part([row]).splitlines()[2].startswith("| `hlas:")
