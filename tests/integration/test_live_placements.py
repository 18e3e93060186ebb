"""bench/live_rl.py: jobs that obey a model of compute and communication by where `rl` placed them."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))
import live_rl
from gpuloom.client import Client
from real_scheduler import real
from until import until

SCRIPT = """
import os, time
from gpuloom.training import job
names = ("GPULOOM_NODE_COUNT", "GPULOOM_REPLICAS", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "RANK", "LOCAL_RANK")
with open(f"seen.{os.environ['GPULOOM_JOB_ID']}.{os.environ['RANK']}", "w") as file:
    print(*[os.environ[name] for name in names], file=file)
for step in range(10**6):
    with job.stage("gpu"):
        time.sleep(0.012)
    with job.stage("network"):
        time.sleep(0.004)
    job.progress(step + 1)
"""


def test_rewards_are_process_over_cost() -> None:
    """dense on one GPU: 0.001 + 0.12 s a step; on four of a node 0.001 + 0.03 + 1.5 · 0.0005 s, its best."""
    slow, fast = 0.121, 0.001 + 0.03 + 2 * 3 / 4 * 0.0005
    assert live_rl.best_rate("dense") == pytest.approx(1 / fast)
    assert live_rl.reward("dense", (1, 1)) == pytest.approx(fast / slow / (1 / 8) ** 0.7)
    assert live_rl.reward("dense", (1, 4)) == pytest.approx(1 / (4 / 8) ** 0.7)
    # Two GPUs on two nodes cost 2^0.2 as much as on one.
    assert live_rl.cost((2, 1)) == pytest.approx((2 / 8 * 2**0.2) ** 0.7)
    assert live_rl.best_fixed() == max(live_rl.PLACEMENTS, key=live_rl.fixed)
    assert live_rl.fixed(live_rl.best_fixed()) < 0.9 * live_rl.best_of_all()


def test_each_window_has_the_same_jobs_in_another_order() -> None:
    plan = live_rl.drawn(100, 1)
    first, second = plan[:50], plan[50:]
    assert Counter(kind for kind, _ in first) == Counter(kind for kind, _ in second) == Counter(live_rl.WINDOW)
    assert [kind for kind, _ in first] != [kind for kind, _ in second]
    # They last long enough for their speed to be measured, wherever they run.
    assert all(steps / live_rl.best_rate(kind) > 0.5 for kind, steps in plan)


@pytest.mark.slow
def test_jobs_really_run_where_they_are_placed_and_report_how_fast(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "found.json"
    monkeypatch.setattr("sys.argv", ["live_rl.py", "--jobs", "6", "--policy", "rl:mode=random", "--json", str(file)])
    live_rl.main()
    found = json.loads(file.read_text())
    assert found["silent"] == 0
    assert found["table"]["rewarded"] == 6
    assert {one["placement"] for one in found["placed"]} <= {f"{n}x{per}" for n, per in live_rl.PLACEMENTS}
    most = [live_rl.reward(one["kind"], tuple(map(int, one["placement"].split("x")))) for one in found["placed"]]
    assert found["windows"][0] <= 1.02 * sum(most) / 6, "no faster than the model lets them"
    assert live_rl.page_part(found).splitlines()[2].startswith("| `rl:mode=random` | ")


def _state(client: Client) -> Any:
    return client.policy(state=True)["state"]


@pytest.mark.slow
def test_a_placement_reaches_the_script_and_its_speed_and_ratio_come_back(tmp_path: Path) -> None:
    """A script without a profile: a process for each GPU reads where it is from torchrun's variables. By what it
    reports its placement is rewarded while it runs, and by its stages the next job of it has a group."""
    with real(tmp_path, slots=2) as it:
        it.up("--policy", "rl:epsilon_start=0;epsilon_end=0;measure=1s", "--interval", "0")
        (it.files / "train.py").write_text(SCRIPT)
        command = [sys.executable, "train.py"]
        job = {"command": command, "workdir": str(it.files), "elastic": "1-2", "per": "gpu", "estimate": "1h"}
        ((first,),) = it.client.submit([job])
        until((it.home / "measured.csv").exists, "a profile of the job that runs")
        (attempt,) = it.client.show(first)["attempts"]
        gpus = attempt["gpus"]
        for rank in range(gpus):
            seen = it.files / f"seen.{first}.{rank}"
            until(seen.exists, f"rank {rank}")
            assert list(map(int, seen.read_text().split())) == [1, gpus, gpus, gpus, rank, rank]
        until(lambda: (it.client.job(first)["progress"] or {}).get("step", 0) > 100, "more than a second's steps")
        it.client.submit([job])
        until(lambda: _state(it.client)["rewarded"] >= 1, "the first job's reward while it runs")
        # 12 ms of compute over 4 ms of network, where a busy machine does not make these sleeps longer.
        *ratios, unknown = [group["ratio"] for group in _state(it.client)["groups"]]
        assert unknown is None
        assert ratios
        assert all(0.2 < ratio < 50.0 for ratio in ratios), ratios
        it.down("--stop-jobs")
