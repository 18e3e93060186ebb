"""A store whose numbers nobody would take today: everything opens, answers, and can be put right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from api_client import TOKEN, Local
from fake_executor import FakeExecutor
from gpuloom.server.app import make_app
from live_builders import living, spec
from tiers import slow

POISON: list[dict[str, Any]] = [
    {"estimate": 1e17},
    {"estimate": 1e300, "time_limit": 1e308},
    {"estimate": 1e-308},
    {"time_limit": 1e-308},
    {"grace": 1e308},
    {"retries": 10**15, "priority": 10**15},
    {"cpus": 1e-300},
]
READ = "/v1/jobs/{} /v1/jobs/{}/why /v1/jobs/{}/why?forecast=false /v1/jobs/{}/log"
ALL = "/v1/jobs /v1/nodes /v1/status /v1/policy /v1/usage /v1/history.csv /v1/events"


@pytest.mark.parametrize("policy", ["fifo:backfill=easy", *slow("srtf", "weave")])
def test_numbers_of_an_old_store_cost_no_answer(tmp_path: Path, policy: str) -> None:
    executor = FakeExecutor()
    with living(tmp_path, executor, slots=2, policy=policy) as before:
        jobs = before.submit_all([spec(1).model_copy(update=fields) for fields in POISON] + [spec(1), spec(2)])
    with living(tmp_path, executor, slots=2, policy=policy) as live:
        api = Local(make_app(live.service, token=TOKEN))
        paths = [path.format(job) for job in jobs for path in READ.split()] + ALL.split()
        for path in paths:
            answer = api("GET", path)
            assert answer.status_code < 500, f"{path}: {answer.text}"
        for job in jobs:
            answer = api("PATCH", f"/v1/jobs/{job}", json={"name": "renamed"})
            assert answer.status_code == 200, answer.text
            found = api("GET", f"/v1/jobs/{job}").json()["spec"]
            assert (found["estimate"] or 1) <= 1e9
            assert (found["time_limit"] or 1) <= 1e9
        live.settle()
        for job in [job for job in jobs if live.state(job) == ["running"]]:
            live.end(job)
        for path in paths:
            answer = api("GET", path)
            assert answer.status_code in (200, 404), f"{path}: {answer.text}"


@pytest.mark.parametrize("interval", [1e-308, 1e308, -1.0])
def test_an_interval_of_an_old_store_is_brought_within_bounds(tmp_path: Path, interval: float) -> None:
    with living(tmp_path, policy="srtf") as before:
        before.scheduler.do(
            lambda: before.scheduler.ledger.write([("policy.set", None, {"policy": "srtf", "interval_s": interval})])
        )
    with living(tmp_path, interval_s=None) as live:
        live.submit_all([spec(4), spec(4)])
        live.settle()
        assert live.service.status()["interval_s"] in (0.0, 0.1, 1e9)


def test_what_runs_has_used_nothing_of_the_future(tmp_path: Path) -> None:
    with living(tmp_path) as live:
        live.submit(2)
        api = Local(make_app(live.service, token=TOKEN))
        for by in ("day", "user", "node", "name"):
            answer = api("GET", f"/v1/usage?by={by}&until=9e10")
            assert answer.status_code == 200, answer.text
            assert sum(row["gpu_s"] for row in answer.json()["usage"]) < 86_400
        assert api("GET", "/v1/usage?by=day&until=5.9e16").status_code == 400


@pytest.mark.parametrize("field", ["time_limit", "estimate", "grace", "memory", "gpu_memory", "hold", "cpus", "gpus"])
def test_a_value_of_another_kind_is_not_taken_for_a_number(tmp_path: Path, field: str) -> None:
    with living(tmp_path) as live:
        api = Local(make_app(live.service, token=TOKEN))
        wrong = 1 if field == "hold" else True
        answer = api("POST", "/v1/jobs", json={"command": ["a"], field: wrong})
        assert answer.status_code == 422
        assert answer.json()["errors"][0]["where"] == f"/{field}"
