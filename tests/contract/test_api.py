"""The API, route by route: what it answers, what it asks of the scheduler, and how it says no."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from api_client import Local, app_over
from fake_service import FakeService
from gpuloom.live.submission.spec import job_spec

SPEC = {"command": ["python", "train.py"]}


@pytest.fixture
def service(tmp_path: Path) -> FakeService:
    return FakeService(tmp_path)


@pytest.fixture
def api(service: FakeService) -> Local:
    return Local(app_over(service, default_user="ada"))


def problem(answer: httpx.Response, status: int, kind: str) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    found: dict[str, Any] = answer.json()
    assert found["type"] == f"urn:gpuloom:problem:{kind}"
    assert found["status"] == status
    assert found["detail"]
    assert "Traceback" not in answer.text
    return found


def good(answer: httpx.Response, status: int = 200) -> Any:
    assert answer.status_code == status, answer.text
    return answer.json()


def submit(api: Local, *specs: dict[str, Any]) -> list[list[int]]:
    found: list[list[int]] = good(api("POST", "/v1/jobs", json={"jobs": list(specs)}), 201)["submitted"]
    return found


# -- submitting -------------------------------------------------------------------------------------------------------


def test_one_job_is_submitted(api: Local, service: FakeService) -> None:
    assert good(api("POST", "/v1/jobs", json={**SPEC, "gpus": 2, "gpu_memory": "12GiB"}), 201) == {"submitted": [[1]]}
    job = service.book.jobs[1]
    assert (job.name, job.user, job.gpus, job.spec.gpu_memory) == ("train", "ada", 2, 12 * 1024)


def test_a_batch_gives_the_numbers_of_each_spec(api: Local) -> None:
    assert submit(api, SPEC, {**SPEC, "array": "0-2"}, SPEC) == [[1], [2, 3, 4], [5]]


def test_a_bad_spec_in_a_batch_names_its_place_and_nothing_is_submitted(api: Local, service: FakeService) -> None:
    jobs = [SPEC, {**SPEC, "gpu": 2}, {**SPEC, "memory": "lots"}, {"env": {"A/B=": "x"}}]
    found = problem(api("POST", "/v1/jobs", json={"jobs": jobs}), 422, "invalid-body")
    told = {entry["where"]: entry["message"] for entry in found["errors"]}
    assert set(told) == {"/jobs/1/gpu", "/jobs/2/memory", "/jobs/3/command", "/jobs/3/env"}
    assert "did you mean 'gpus'" in told["/jobs/1/gpu"]
    assert "16GiB" in told["/jobs/2/memory"]
    assert told["/jobs/3/command"] == "is missing"
    assert service.book.jobs == {}


@pytest.mark.parametrize(
    ("body", "where", "says"),
    [
        ({}, "/command", "is missing"),
        ({"command": "python"}, "/command", "list"),
        ({**SPEC, "gpus": 0}, "/gpus", "greater than or equal to 1"),
        ({**SPEC, "after": ["x"]}, "/after/0", "integer"),
        ({**SPEC, "venv": "v", "conda": "c"}, "", "give only one of venv and conda"),
        ({**SPEC, "name": "\ud800"}, "/name", "unicode"),
        ({"jobs": []}, "/jobs", "at least 1"),
        ({"jobs": [SPEC], "user": "x"}, "/user", "known: jobs"),
        ({"jobs": [SPEC] * 10_001}, "/jobs", "10000"),
        ([SPEC], "", "a JSON object, not a list"),
        (None, "", "a JSON object, not null"),
    ],
)
def test_a_bad_spec_is_told_with_its_place(api: Local, body: Any, where: str, says: str) -> None:
    content = json.dumps(body)
    answer = api("POST", "/v1/jobs", content=content, headers={"Content-Type": "application/json"})
    found = problem(answer, 422, "invalid-body")
    assert found["errors"][0]["where"] == where
    assert says in found["errors"][0]["message"]


def test_of_many_mistakes_the_first_are_told(api: Local) -> None:
    found = problem(api("POST", "/v1/jobs", json={"jobs": [{"x": 1}] * 500}), 422, "invalid-body")
    assert len(found["errors"]) == 20
    assert "and 997 more" in found["detail"]


@pytest.mark.parametrize(
    ("body", "where"),
    [
        (b'{"command":\n  ["a" 1]}', "line 2, column 8"),
        (b'{"command": ["a"', "line 1, column 17"),
        (b'{"name":\n"\xff"}', "line 2, column 2"),
    ],
)
def test_malformed_json_is_told_with_line_and_column(api: Local, body: bytes, where: str) -> None:
    answer = api("POST", "/v1/jobs", content=body, headers={"Content-Type": "application/json"})
    found = problem(answer, 400, "malformed-json")
    assert found["errors"][0]["where"] == where
    assert where in found["detail"]


@pytest.mark.parametrize("body", [b"", b"  ", b'{"command": ["a"], "cpus": NaN}', b"[" * 100_000, b"1" * 5000])
def test_what_is_no_json_is_refused(api: Local, body: bytes) -> None:
    answer = api("POST", "/v1/jobs", content=body, headers={"Content-Type": "application/json"})
    problem(answer, 400, "malformed-json")


def test_a_form_is_refused_with_the_remedy(api: Local) -> None:
    answer = api("POST", "/v1/jobs", content=b"{}", headers={"Content-Type": "application/x-www-form-urlencoded"})
    assert "Content-Type: application/json" in problem(answer, 415, "not-json")["detail"]


def test_an_impossible_job_is_refused(api: Local) -> None:
    found = problem(api("POST", "/v1/jobs", json={**SPEC, "gpus": 5}), 422, "impossible-job")
    assert "5 GPUs" in found["detail"]


def test_a_key_used_again_gives_the_same_numbers(api: Local, service: FakeService) -> None:
    headers = {"Idempotency-Key": "monday run, first"}
    first = api("POST", "/v1/jobs", json=SPEC, headers=headers)
    again = api("POST", "/v1/jobs", json=SPEC, headers=headers)
    assert good(first, 201) == good(again, 201) == {"submitted": [[1]]}
    problem(api("POST", "/v1/jobs", json={**SPEC, "gpus": 2}, headers=headers), 409, "conflict")
    assert len(service.book.jobs) == 1


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("Idempotency-Key", "x" * 201),
        ("Idempotency-Key", "a\tb"),
        ("Idempotency-Key", ""),
        ("X-Gpuloom-User", "u" * 65),
        ("X-Gpuloom-User", b"\xff\xfe"),
    ],
)
def test_bad_headers_are_refused(api: Local, header: str, value: str | bytes) -> None:
    found = problem(api("POST", "/v1/jobs", json=SPEC, headers={header: value}), 400, "bad-request")
    assert found["errors"][0]["where"] == f"header {header}"


def test_the_user_may_be_given(api: Local, service: FakeService) -> None:
    api("POST", "/v1/jobs", json=SPEC, headers={"X-Gpuloom-User": "grüße".encode()})
    assert service.book.jobs[1].user == "grüße"


# -- lists ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["newest", "oldest"])
def test_pages_go_on_without_gap_or_repetition(api: Local, order: str) -> None:
    submit(api, {**SPEC, "array": "0-6"})
    seen: list[int] = []
    cursor: str | None = None
    pages = 0
    while True:
        page = good(
            api("GET", "/v1/jobs", params={"limit": 3, "order": order} | ({"cursor": cursor} if cursor else {}))
        )
        seen += [job["id"] for job in page["jobs"]]
        if pages == 0:
            submit(api, SPEC)  # what comes in between does not shift the pages
        pages, cursor = pages + 1, page["next"]
        if cursor is None:
            break
    assert seen == ([*range(1, 9)] if order == "oldest" else [*range(7, 0, -1)])


def test_a_full_last_page_has_no_next(api: Local) -> None:
    submit(api, SPEC, SPEC)
    assert good(api("GET", "/v1/jobs?limit=2"))["next"] is None


def test_lists_are_filtered(api: Local, service: FakeService) -> None:
    submit(api, {**SPEC, "name": "bert"}, {**SPEC, "name": "gpt-a"}, {**SPEC, "name": "gpt-b", "array": "3,4"})
    api("POST", "/v1/jobs", json=SPEC, headers={"X-Gpuloom-User": "bob"})
    service.run(2)

    def ids(query: str) -> list[int]:
        return [job["id"] for job in good(api("GET", f"/v1/jobs?order=oldest&{query}"))["jobs"]]

    assert ids("state=running") == [2]
    assert ids("state=running&state=queued&user=ada") == [1, 2, 3, 4]
    assert ids("name=gpt*&name=bert") == [1, 2, 3, 4]
    assert ids("id=1&id=5&id=99") == [1, 5]
    assert ids("array=3") == [3, 4]
    assert ids("submitted_from=2999-01-01") == []
    assert ids("submitted_until=2999-01-01T00:00:00%2B02:00") == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("query", "where", "says"),
    [
        ("limt=3", "query limt", "did you mean 'limit'"),
        ("colour=red", "query colour", "known: state, user, name, id, array, limit, cursor"),
        ("limit=0", "query limit", "greater than or equal to 1"),
        ("limit=1001", "query limit", "1000"),
        ("limit=1&limit=2", "query limit", "more than once"),
        ("state=sleeping", "query state 0", "'queued'"),
        ("id=0", "query id 0", "greater"),
        ("id=99999999999999999999", "query id 0", "less"),
        ("submitted_from=yesterday", "query submitted_from", "2026-03-01"),
        ("submitted_from=nan", "query submitted_from", "finite"),
        ("cursor=abc", "query cursor", "use 'next'"),
        ("cursor=%C3%A9", "query cursor", "use 'next'"),
        ("cursor=bjU&order=oldest", "query cursor", "same 'order'"),
    ],
)
def test_bad_parameters_are_told(api: Local, query: str, where: str, says: str) -> None:
    found = problem(api("GET", f"/v1/jobs?{query}"), 400, "bad-request")
    assert found["errors"][0]["where"] == where
    assert says in found["errors"][0]["message"]


def test_a_route_without_parameters_takes_none(api: Local) -> None:
    assert "takes none" in problem(api("GET", "/v1/nodes?x=1"), 400, "bad-request")["detail"]


# -- one job ----------------------------------------------------------------------------------------------------------


def test_a_job_is_shown_with_its_story(api: Local, service: FakeService) -> None:
    submit(api, SPEC)
    service.run(1)
    service.preempt(1)
    shown = good(api("GET", "/v1/jobs/1"))
    assert shown["job"]["state"] == "queued"
    assert shown["spec"]["command"] == SPEC["command"]
    assert [attempt["reason"] for attempt in shown["attempts"]] == ["preempted"]
    assert shown["events"][-1]["type"] == "attempt.ended"


@pytest.mark.parametrize("path", ["/v1/jobs/7", "/v1/jobs/7/why", "/v1/jobs/7/log"])
def test_a_job_that_is_not_there(api: Local, path: str) -> None:
    assert "job 7" in problem(api("GET", path), 404, "not-found")["detail"]


@pytest.mark.parametrize("number", ["0", "-1", "x", "99999999999999999999"])
def test_what_is_no_job_number(api: Local, number: str) -> None:
    assert problem(api("GET", f"/v1/jobs/{number}"), 400, "bad-request")["errors"][0]["where"] == "path job"


def test_why(api: Local) -> None:
    submit(api, SPEC, SPEC)
    assert good(api("GET", "/v1/jobs/2/why"))["position"] == 2
    assert good(api("GET", "/v1/jobs/2/why?forecast=false"))["start_s_median"] is None


def test_fields_are_changed_in_their_plain_form(api: Local, service: FakeService) -> None:
    submit(api, {**SPEC, "time_limit": "1h"})
    answer = api("PATCH", "/v1/jobs/1", json={"priority": 5, "time_limit": "4h", "gpu_memory": None})
    assert good(answer)["priority"] == 5
    assert service.calls[-1][1]["changes"] == {"priority": 5, "time_limit": 14400.0, "gpu_memory": None}


@pytest.mark.parametrize(
    ("changes", "where"),
    [({"prio": 1}, "/prio"), ({"gpus": -1}, "/gpus"), ({}, ""), ([], ""), ({"command": []}, "/command")],
)
def test_bad_changes_are_told(api: Local, changes: Any, where: str) -> None:
    submit(api, SPEC)
    found = problem(api("PATCH", "/v1/jobs/1", json=changes), 422, "invalid-body")
    assert found["errors"][0]["where"] == where
    many = problem(api("POST", "/v1/actions/update", json={"jobs": [1], "changes": changes}), 422, "invalid-body")
    assert many["errors"][0]["where"] == "/changes" + where


def test_what_a_running_job_can_not_change(api: Local, service: FakeService) -> None:
    submit(api, SPEC)
    service.run(1)
    assert "gpus can't change" in problem(api("PATCH", "/v1/jobs/1", json={"gpus": 2}), 409, "conflict")["detail"]


# -- actions ----------------------------------------------------------------------------------------------------------


def test_actions_follow_the_states_of_a_job(api: Local, service: FakeService) -> None:
    submit(api, SPEC, SPEC)
    for action, state in [
        ("hold", "held"),
        ("release", "queued"),
        ("top", "queued"),
        ("cancel", "cancelled"),
        ("requeue", "queued"),
    ]:
        assert good(api("POST", f"/v1/jobs/1/{action}"))["state"] == state
        if action != "requeue":
            assert good(api("POST", f"/v1/actions/{action}", json={"jobs": [2]}))["jobs"][0]["state"] == state
    assert good(api("POST", "/v1/jobs/1/release"))["changed"] is False
    api("POST", "/v1/jobs/1/cancel")
    problem(api("POST", "/v1/jobs/1/release"), 409, "conflict")
    assert service.book.jobs[1].priority == 1


def test_a_running_job_is_suspended_and_resumed(api: Local, service: FakeService) -> None:
    submit(api, SPEC, SPEC)
    problem(api("POST", "/v1/jobs/1/suspend"), 409, "conflict")
    service.run(1)
    for action, told in (("suspend", True), ("resume", False)):
        assert good(api("POST", f"/v1/jobs/1/{action}"))["changed"] is True
        assert service.book.jobs[1].suspended is told
        assert good(api("POST", f"/v1/actions/{action}", json={"jobs": [1]}))["jobs"][0]["changed"] is False


def test_cancel_takes_the_grace(api: Local, service: FakeService) -> None:
    submit(api, SPEC, SPEC)
    api("POST", "/v1/jobs/1/cancel", json={"grace": "2m"})
    assert service.calls[-1] == ("cancel", {"jobs": [1], "grace_s": 120.0})
    api("POST", "/v1/actions/cancel", json={"jobs": [2], "grace": 0})
    assert service.calls[-1] == ("cancel", {"jobs": [2], "grace_s": 0.0})
    found = problem(api("POST", "/v1/jobs/1/cancel", json={"grace": "soon"}), 422, "invalid-body")
    assert found["errors"][0]["where"] == "/grace"


def test_an_action_is_done_for_all_or_none(api: Local, service: FakeService) -> None:
    submit(api, SPEC, SPEC)
    problem(api("POST", "/v1/actions/cancel", json={"jobs": [1, 2, 3]}), 404, "not-found")
    assert {job.phase for job in service.book.jobs.values()} == {"queued"}


@pytest.mark.parametrize("body", [{}, {"jobs": []}, {"jobs": [0]}, {"jobs": ["x"]}, {"jobs": [1], "grace": 1}])
def test_bad_bodies_of_actions(api: Local, body: Any) -> None:
    problem(api("POST", "/v1/actions/hold", json=body), 422, "invalid-body")


# -- the rest ---------------------------------------------------------------------------------------------------------


def test_nodes(api: Local) -> None:
    assert good(api("GET", "/v1/nodes"))["nodes"][0]["gpus"][0]["model"] == "H100"
    node = good(api("POST", "/v1/nodes/node0", json={"state": "draining", "reason": "fans"}))
    assert (node["state"], node["reason"]) == ("draining", "fans")
    problem(api("POST", "/v1/nodes/other", json={"state": "up"}), 404, "not-found")
    found = problem(api("POST", "/v1/nodes/node0", json={"state": "asleep"}), 422, "invalid-body")
    assert "'cordoned'" in found["errors"][0]["message"]


def test_policy(api: Local) -> None:
    assert good(api("GET", "/v1/policy"))["policy"] == "fifo"
    swapped = good(api("PUT", "/v1/policy", json={"policy": "tiresias", "interval": "30s"}))
    assert (swapped["policy"], swapped["interval_s"], swapped["previous"]) == ("tiresias", 30.0, "fifo")
    assert "known: fifo" in problem(api("PUT", "/v1/policy", json={"policy": "best"}), 400, "invalid-input")["detail"]


def test_usage_and_history(api: Local, service: FakeService) -> None:
    submit(api, SPEC)
    service.run(1)
    service.finish(1)
    assert good(api("GET", "/v1/usage?by=name&since=2020-01-01"))["usage"][0]["key"] == "train"
    assert good(api("GET", "/v1/usage?until=2020-01-01"))["usage"] == []
    problem(api("GET", "/v1/usage?by=moon"), 400, "bad-request")
    history = api("GET", "/v1/history.csv")
    assert history.headers["content-type"].startswith("text/csv")
    assert len(history.text.splitlines()) == 2


def test_events_are_paged(api: Local) -> None:
    submit(api, *[SPEC] * 5)
    first = good(api("GET", "/v1/events?limit=3&type=jobs.submitted"))
    assert [event["id"] for event in first["events"]] == [4, 5, 6]
    assert first["last"] == 6
    rest = good(api("GET", "/v1/events", params={"after": first["last"], "type": "jobs.submitted"}))
    assert [event["id"] for event in rest["events"]] == [7, 8]
    assert rest["last"] == 8
    newest = good(api("GET", "/v1/events?newest=true&limit=1"))
    assert ([event["id"] for event in newest["events"]], newest["last"]) == ([8], 8)
    assert good(api("GET", "/v1/events?job=2&limit=10"))["events"][0]["data"]["first"] == 2


def test_status_and_shutdown(api: Local, service: FakeService) -> None:
    assert good(api("GET", "/v1/status"))["executor"]["name"] == "fake"
    assert good(api("POST", "/v1/shutdown", json={"stop_jobs": True}), 202)["ending"] is True
    assert service.calls[-1] == ("stop", {"stop_jobs": True})


def test_the_schema_of_a_job(api: Local) -> None:
    schema = good(api("GET", "/v1/schema/job.json", headers={"Authorization": ""}))
    assert schema["title"] == "gpuloom job"


def test_logs(api: Local, service: FakeService) -> None:
    submit(api, SPEC)
    log = "/v1/jobs/1/log"
    answer = api("GET", log)
    assert (answer.content, answer.headers["x-gpuloom-attempt"], answer.headers["x-gpuloom-ended"]) == (
        b"",
        "0",
        "false",
    )
    service.run(1)
    service.write(1, b"one\ntwo\n\xff")
    answer = api("GET", log)
    assert answer.content == b"one\ntwo\n\xff"
    assert answer.headers["x-gpuloom-offset"] == "9"
    assert answer.headers["x-gpuloom-ended"] == "false"
    assert api("GET", f"{log}?offset=4").content == b"two\n\xff"
    assert api("GET", f"{log}?offset=900").content == b""
    assert api("GET", f"{log}?tail=2").content == b"two\n\xff"
    service.preempt(1)
    service.run(1)
    service.write(1, "again\n")
    service.finish(1)
    answer = api("GET", log)
    assert (answer.content, answer.headers["x-gpuloom-attempt"], answer.headers["x-gpuloom-ended"]) == (
        b"again\n",
        "2",
        "true",
    )
    assert api("GET", f"{log}?attempt=1").content == b"one\ntwo\n\xff"
    problem(api("GET", f"{log}?attempt=3"), 404, "not-found")
    problem(api("GET", f"{log}?tail=1&offset=1"), 400, "bad-request")


def test_logs_of_a_gang(api: Local, service: FakeService) -> None:
    service.submit([job_spec({**SPEC, "gpus": 2})], user="ada")
    log = "/v1/jobs/1/log"
    assert api("GET", f"{log}?member=7").content == b""  # it has not run yet
    service.run_gang(1, "node-a", "näme b")
    service.write(1, "master\n")
    service.write(1, "one\ntwo\n", member=1)
    names = ("Attempt", "Start", "Offset", "Ended", "Member", "Members", "Node")
    answer = api("GET", log)
    assert answer.content == b"master\n"
    assert [answer.headers[f"X-Gpuloom-{name}"] for name in names] == ["1", "0", "7", "false", "0", "2", "node-a"]
    answer = api("GET", f"{log}?member=1&offset=4")
    assert answer.content == b"two\n"
    found = [answer.headers[f"X-Gpuloom-{name}"] for name in names]
    assert found == ["1", "4", "8", "false", "1", "2", "n%C3%A4me%20b"]
    assert api("GET", f"{log}?member=1&tail=1").content == b"two\n"
    assert "has 2 members, so none with number 2" in problem(api("GET", f"{log}?member=2"), 404, "not-found")["detail"]
    problem(api("GET", f"{log}?member=-1"), 400, "bad-request")
    service.silent.add("näme b")
    for query in "", "&tail=1", "&offset=3":
        said = problem(api("GET", f"{log}?member=1{query}"), 504, "node-unreachable")
        assert said["detail"] == "node näme b does not answer"
    assert api("GET", log).content == b"master\n"
    service.finish(1)
    service.submit([job_spec(SPEC)], user="ada")
    service.run(2)
    answer = api("GET", "/v1/jobs/2/log?member=0")
    assert not [name for name in answer.headers if name.lower().startswith("x-gpuloom-") and "member" in name.lower()]


def test_a_long_log_comes_whole(api: Local, service: FakeService) -> None:
    submit(api, SPEC)
    service.run(1)
    text = b"".join(b"%08d\n" % i for i in range(120_000))
    service.write(1, text)
    answer = api("GET", "/v1/jobs/1/log")
    assert answer.content == text
    assert answer.headers["x-gpuloom-offset"] == str(len(text))
    assert api("GET", "/v1/jobs/1/log?offset=500001").content == text[500_001:]


# -- when it does not work --------------------------------------------------------------------------------------------


def test_a_full_disk_is_told(api: Local, service: FakeService) -> None:
    service.broken = "store.db: no space left on the device"
    answer = api("POST", "/v1/jobs", json=SPEC)
    assert "Nothing was changed" in problem(answer, 503, "store-unavailable")["detail"]
    assert answer.headers["retry-after"] == "5"


def test_a_bug_shows_nothing_of_the_inside(api: Local, service: FakeService, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise KeyError("secret-of-the-inside")

    monkeypatch.setattr(service, "status", broken)
    answer = api("GET", "/v1/status")
    problem(answer, 500, "internal-error")
    assert "secret" not in answer.text


def test_numbers_without_a_json_form_become_null(api: Local, service: FakeService) -> None:
    submit(api, {**SPEC, "name": "a"})
    service.run(1)
    service.report(1, loss=float("nan"), name="half \ud800")
    progress = good(api("GET", "/v1/jobs"))["jobs"][0]["progress"]
    assert progress == {"loss": None, "name": "half \ud800"}


def test_unknown_routes_and_methods(api: Local) -> None:
    assert "did you mean '/v1/jobs'" in problem(api("GET", "/v1/job"), 404, "no-such-route")["detail"]
    answer = api("DELETE", "/v1/jobs")
    assert "it has GET, POST" in problem(answer, 405, "method-not-allowed")["detail"]
    assert answer.headers["allow"] == "GET, POST"
    problem(api("GET", "/docs"), 404, "no-such-route")


def test_an_array_is_changed_as_a_whole(api: Local, service: FakeService) -> None:
    array = service.submit([job_spec({"command": ["./a"], "array": "0-2"})], user="ada")[0][0]
    assert good(api("POST", f"/v1/arrays/{array}/hold")) == {"array": array, "changed": {"held": 3}}
    assert good(api("POST", f"/v1/arrays/{array}/hold", json={}))["changed"] == {}
    assert good(api("PATCH", f"/v1/arrays/{array}", json={"priority": 9})) == {"array": array, "changed": {"held": 3}}
    assert good(api("GET", f"/v1/jobs/{array + 2}"))["job"]["priority"] == 9
    assert good(api("POST", f"/v1/arrays/{array}/top"))["array"] == array
    problem(api("PATCH", f"/v1/arrays/{array}", json={"priorty": 9}), 422, "invalid-body")
    problem(api("PATCH", "/v1/arrays/999", json={"priority": 9}), 404, "not-found")
    assert good(api("POST", f"/v1/arrays/{array}/cancel", json={"grace": "2s"}))["changed"] == {"cancelled": 3}
    problem(api("POST", f"/v1/arrays/{array}/hold", json={"grace": 1}), 422, "invalid-body")
    problem(api("POST", f"/v1/arrays/{array}/end"), 400, "bad-request")
    problem(api("POST", "/v1/arrays/999/cancel"), 404, "not-found")


# -- the OpenAPI document ---------------------------------------------------------------------------------------------


def test_the_document_is_complete(api: Local) -> None:
    document = good(api("GET", "/openapi.json", headers={"Authorization": ""}))
    schemas = document["components"]["schemas"]
    tags = {tag["name"] for tag in document["tags"]}
    operations = [
        (path, method, operation) for path, item in document["paths"].items() for method, operation in item.items()
    ]
    assert len(operations) == 39
    assert len({operation["operationId"] for _, _, operation in operations}) == len(operations)
    for path, method, operation in operations:
        where = f"{method} {path}"
        assert operation["summary"].endswith("."), where
        assert set(operation["tags"]) <= tags, where
        assert operation["tags"], where
        (fine,) = [code for code in operation["responses"] if code.startswith("2")]
        assert all("schema" in content for content in operation["responses"][fine]["content"].values()), where
        refused = {code for code in operation["responses"] if not code.startswith("2")}
        assert {"400", "500"} <= refused, where
        for code in refused:
            content = operation["responses"][code]["content"]["application/problem+json"]
            assert content == {"schema": {"$ref": "#/components/schemas/Problem"}}, where
        if operation.get("security") != []:
            assert "401" in refused, where
        if "{job}" in path:
            assert "404" in refused, where
        for parameter in operation.get("parameters", []):
            if parameter["in"] == "query":
                assert parameter["description"], where
        if "requestBody" in operation:
            assert {"413", "415", "422"} <= refused, where
    used = set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(document)))
    assert used == set(schemas)
    assert schemas["JobView"]["properties"]["where"]["description"].startswith("Node and GPUs")
    assert document["security"] == [{"token": []}]


def test_examples_of_the_document_are_right(api: Local) -> None:
    document = good(api("GET", "/openapi.json"))
    submit(api, *[SPEC] * 13, {**SPEC, "array": "0-1"})
    for path, item in document["paths"].items():
        for method, operation in item.items():
            example = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("example")
            if example is None or path == "/v1/actions/release":
                continue
            answer = api(method.upper(), path.format(job=1, name="node0", array=14), json=example)
            # The job may be in another state by then, but the body is never at fault.
            assert answer.status_code in (200, 201, 202, 409), f"{method} {path}: {answer.text}"
