"""Whatever a client sends, the answer is a good one or a problem with its place; never a failure of the server."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from api_client import TOKEN, Local
from fake_service import FakeService
from gpuloom.live.submission.spec import JobSpec, job_spec
from gpuloom.server.app import make_app
from tiers import examples

SERVICE = FakeService(Path("/nonexistent"))
SERVICE.submit([job_spec({"command": ["./a"]})] * 5, user="ada")
API = Local(make_app(SERVICE, token=TOKEN, default_user="ada"))
ROUTES = [
    ("POST", "/v1/jobs"),
    ("PATCH", "/v1/jobs/1"),
    ("POST", "/v1/jobs/1/cancel"),
    ("POST", "/v1/jobs/2/hold"),
    ("POST", "/v1/actions/cancel"),
    ("POST", "/v1/actions/update"),
    ("POST", "/v1/actions/requeue"),
    ("POST", "/v1/nodes/node0"),
    ("PUT", "/v1/policy"),
    ("POST", "/v1/shutdown"),
]
FIELDS = [*JobSpec.model_fields, "jobs", "changes", "state", "reason", "policy", "interval", "stop_jobs"]

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["4h", "12GiB", "0-3", "0-99999999", "up", "draining", "fifo", "\ud800", "\0", "1e999s"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(FIELDS) | st.text(max_size=4), inner),
    max_leaves=8,
)
optional = dict.fromkeys(FIELDS[1:], values)
bodies = values | st.fixed_dictionaries({"command": st.lists(st.text(max_size=5))}, optional=optional)


def judge(answer: Any) -> None:
    assert answer.status_code < 500, answer.text
    if not answer.is_success:
        found = answer.json()
        assert answer.headers["content-type"] == "application/problem+json"
        assert found["detail"]
        if found["type"].endswith((":invalid-body", ":bad-request")):
            assert found["errors"]
            for error in found["errors"]:
                assert error["where"] == "" or error["where"].startswith(("/", "query ", "path ", "header "))
                assert error["message"]


@settings(max_examples=examples(120))
@given(route=st.sampled_from(ROUTES), body=bodies)
def test_bodies(route: tuple[str, str], body: Any) -> None:
    content = json.dumps(body).encode()
    judge(API(*route, content=content, headers={"Content-Type": "application/json"}))


@settings(max_examples=examples(100))
@given(route=st.sampled_from(ROUTES), content=st.binary(max_size=60))
def test_bytes(route: tuple[str, str], content: bytes) -> None:
    judge(API(*route, content=content, headers={"Content-Type": "application/json"}))


PATHS = "/v1/jobs /v1/jobs/1/log /v1/events /v1/usage /v1/jobs/1/why /v1/history.csv"
NAMES = "state user name id array limit cursor order since submitted_from after job type offset tail attempt newest x"
DATES = "2026-03-01 9999-12-31T23:59:59-14:00 0001-01-01 0001-01-01T00:00:00+14:00"


@settings(max_examples=examples(120))
@given(
    path=st.sampled_from(PATHS.split()),
    name=st.sampled_from(NAMES.split()),
    value=st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
    | st.integers().map(str)
    | st.sampled_from([*DATES.split(), "inf", "-1", "1e400", "true", "bjU", "*"]),
)
def test_parameters(path: str, name: str, value: str) -> None:
    judge(API("GET", f"{path}?{name}={quote(value)}"))


@pytest.mark.parametrize("put", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_a_log_that_is_none_any_more(tmp_path: Path, put: Any) -> None:
    service = FakeService(tmp_path)
    service.submit([job_spec({"command": ["./a"]})], user="ada")
    service.run(1)
    service.write(1, "one\n")
    path = service.log_path(1)
    path.unlink()
    put(path)
    api = Local(make_app(service, token=TOKEN))
    for query in ("", "?tail=3", "?offset=1"):
        answer = api("GET", f"/v1/jobs/1/log{query}")
        judge(answer)
        assert answer.status_code == 404
        assert "no longer the log" in answer.json()["detail"] or "can't be read" in answer.json()["detail"]
    service.finish(1)
    stream = api("GET", "/v1/jobs/1/log", headers={"Accept": "text/event-stream"}).text
    assert "event: end" in stream
    assert stream.count("output.log") == 1
