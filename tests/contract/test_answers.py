"""Every answer of a real scheduler is what the published document says: every field of it, and no other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from api_client import TOKEN, Local
from gpuloom.core.job import ACTIVE, EndReason, Phase, SavedBy
from gpuloom.live.figures.each import COLUMNS, Of
from gpuloom.live.planning.estimates import Source
from gpuloom.live.store_check import Checked
from gpuloom.live.stored import StoredService
from gpuloom.live.submission.spec import JobSpec
from gpuloom.live.views import cluster_answers, job_answers
from gpuloom.server import docs
from gpuloom.server.app import make_app
from gpuloom.server.shapes import model_of
from gpuloom.store.sqlite import SqliteStore
from live_builders import Live, living, spec


def api_of(service: Any) -> Local:
    return Local(make_app(service, token=TOKEN, default_user="ann"))


def good(api: Local, method: str, path: str, body: Any = None) -> Any:
    answer = api(method, path, **({} if body is None else {"json": body}))
    assert answer.is_success, f"{method} {path}: {answer.text}"
    return answer.json()


def test_every_answer_is_as_published(tmp_path: Path) -> None:
    with living(tmp_path, policy="srtf") as live:
        api = api_of(live.service)
        states = all_states(live)
        assert len(states) >= 5
        live.parts.machine.look(dict, lambda *_: None)
        live.sampled()
        for job in range(1, 7):
            spec = JobSpec.model_validate(good(api, "GET", f"/v1/jobs/{job}")["spec"])
            assert spec.command == ["train"]
            for query in "", "?forecast=false":
                good(api, "GET", f"/v1/jobs/{job}/why{query}")
        for path in (
            "jobs",
            "jobs?limit=2",
            "events",
            "nodes",
            "pilots",
            "policy",
            "policy?state=true",
            "usage?by=user",
            "groups",
            "stats",
            "stats/series",
            "stats/series/node",
            "status",
        ):
            assert good(api, "GET", f"/v1/{path}")
        good(api, "GET", "/v1/health")
        for action in "suspend", "resume":
            good(api, "POST", f"/v1/jobs/3/{action}")
            live.settle()
            good(api, "POST", f"/v1/actions/{action}", {"jobs": [3]})
        ((single,), array) = good(
            api,
            "POST",
            "/v1/jobs",
            {"jobs": [{"command": ["a"], "gpus": 4}, {"command": ["a"], "gpus": 4, "array": "0-3"}]},
        )["submitted"]
        live.settle()
        good(api, "PATCH", f"/v1/jobs/{single}", {"priority": 5})
        good(api, "POST", "/v1/actions/update", {"jobs": [single], "changes": {"priority": 6}})
        for action in "hold", "top", "cancel", "requeue", "hold", "release":
            good(api, "POST", f"/v1/jobs/{single}/{action}")
            live.settle()
        for action in "hold", "top", "cancel", "requeue", "hold", "release":
            good(api, "POST", f"/v1/actions/{action}", {"jobs": array})
            live.settle()
        good(api, "POST", f"/v1/arrays/{array[0]}/hold")
        good(api, "PATCH", f"/v1/arrays/{array[0]}", {"priority": 5})
        node = good(api, "GET", "/v1/nodes")["nodes"][0]["name"]
        good(api, "POST", f"/v1/nodes/{node}", {"state": "cordoned", "reason": "new fans"})
        good(api, "PUT", "/v1/policy", {"policy": "fifo", "interval": "30s"})
        assert good(api, "GET", "/v1/status")["policy"] == "fifo"
        live.service.stop = lambda *, stop_jobs: None  # type: ignore[method-assign]
        good(api, "POST", "/v1/shutdown")
        assert api.seen == set(docs.ANSWERS)


def all_states(live: Live) -> set[str]:
    """Submit jobs and bring them into different states; which those are."""
    ended, failed, running = live.submit_all([spec(1), spec(1), spec(2, on_preempt="freeze")])
    live.end(ended)
    live.end(failed, 3)
    queued, held, cancelled = live.submit_all([spec(4), spec(4), spec(4, after=[running])])
    live.service.cancel([cancelled])
    live.service.hold([held])
    live.settle()
    return {live.service.job(job)["state"] for job in (ended, failed, running, queued, held, cancelled)}


def test_what_a_damaged_store_answers_is_as_published(tmp_path: Path) -> None:
    with living(tmp_path) as live:
        all_states(live)
        db, runs = live.parts.home.db, live.parts.home.runs
    with SqliteStore(db, read_only=True) as store:
        api = api_of(StoredService(store, runs, "a record is missing"))
        assert {good(api, "GET", f"/v1/jobs/{job}")["job"]["id"] for job in range(1, 7)} == set(range(1, 7))
        status = good(api, "GET", "/v1/status")
        assert (status["store"]["ok"], status["executor"]["name"]) == (False, "none")
        for path in "jobs", "events", "usage":
            assert good(api, "GET", f"/v1/{path}")
        assert api("GET", "/v1/nodes").status_code == 503


def test_an_answer_that_is_not_as_published_is_found(tmp_path: Path) -> None:
    with living(tmp_path) as live:
        status = live.service.status
        live.service.status = lambda: {**status(), "secret": 1}  # type: ignore[method-assign,typeddict-unknown-key]
        with pytest.raises(ValueError, match="Extra inputs"):
            api_of(live.service)("GET", "/v1/status")


def test_words_of_answers_are_those_of_the_records() -> None:
    assert set(get_args(job_answers.StateOfJob)) == set(Phase)
    assert set(get_args(job_answers.StateOfAttempt)) == {*ACTIVE, "ended"}
    assert set(get_args(job_answers.ReasonOfEnd)) == set(EndReason)
    assert set(get_args(job_answers.SourceOfEstimate)) == set(Source)
    assert set(get_args(job_answers.SavedHow)) == set(SavedBy) - {SavedBy.NOTHING}
    assert set(get_args(cluster_answers.FigureOfEach)) == {column for columns in COLUMNS.values() for column in columns}
    assert set(get_args(get_type_hints(cluster_answers.EachSeriesView)["by"])) == set(Of)
    assert set(Checked) == {"whole", "part", "damaged"}


def test_examples_of_answers_are_whole() -> None:
    for operation in (
        docs.submit,
        docs.jobs,
        docs.array_action,
        docs.update_array,
        docs.events,
        docs.usage,
        docs.health,
    ):
        (good,) = [found for status, found in operation["responses"].items() if status < 300]
        model = model_of(docs.ANSWERS[operation["operation_id"]])
        model.model_validate_json(json.dumps(good["content"]["application/json"]["example"]), strict=True)
