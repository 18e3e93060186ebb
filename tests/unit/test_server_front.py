"""What a browser shows, and requests as browsers, proxies and curious people send them."""

from __future__ import annotations

import os
from html.parser import HTMLParser
from pathlib import Path

import pytest

import gpuloom
from api_client import TOKEN, Local, app_over
from fake_service import FakeService
from gpuloom.live.submission.spec import job_spec
from gpuloom.server.app import make_app
from gpuloom.server.context import os_user

BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"


@pytest.fixture
def api(tmp_path: Path) -> Local:
    service = FakeService(tmp_path)
    service.submit([job_spec({"command": ["./secret-name"]})] * 3, user="ada")
    service.run(1)
    service.write(1, "one\ntwo\n")
    return Local(app_over(service, default_user="ada"))


def test_jobs_that_come_without_a_name_are_those_of_the_process_s_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.setenv(variable, "grace")
    assert os_user() == "grace"
    api = Local(make_app(FakeService(tmp_path), token=TOKEN))
    assert api("POST", "/v1/jobs", json={"jobs": [{"command": ["./train"]}]}).status_code == 201
    assert api("GET", "/v1/jobs/1").json()["job"]["user"] == "grace"

    def no_name() -> str:
        raise KeyError("uid not found")

    monkeypatch.setattr("getpass.getuser", no_name)
    assert os_user() == f"uid{os.geteuid()}"


class Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value or "" for name, value in attrs if name in ("href", "src")]


def test_a_browser_is_told_what_this_is_and_where_to_go_on(api: Local) -> None:
    api.headers.clear()
    page = api("GET", "/", headers={"Accept": BROWSER})
    assert page.status_code == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert page.headers["content-security-policy"].startswith("default-src 'none'")
    assert page.headers["connection"] == "close"
    for word in ("gpuloom status", "Authorization: Bearer", "token", gpuloom.__version__):
        assert word in page.text
    for word in ("secret-name", "ada", TOKEN):
        assert word not in page.text
    links = Links()
    links.feed(page.text)
    assert len(links.found) == 3
    for link in links.found:  # all of them can be opened as the page was: without a token
        assert api("GET", link, headers={"Accept": BROWSER}).status_code == 200


def test_a_program_is_told_in_json(api: Local) -> None:
    api.headers.clear()
    found = api("GET", "/").json()
    assert found["name"] == "gpuloom"
    assert api("GET", found["api"]).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("HEAD", "/", 200),
        ("HEAD", "/v1/jobs", 405),
        ("OPTIONS", "/v1/jobs", 405),
        ("OPTIONS", "/", 405),
        ("DELETE", "/v1/jobs/1", 405),
        ("PATCH", "/v1/policy", 405),
        ("GET", "/v1/shutdown", 405),
        ("TRACE", "/v1/jobs", 405),
        ("BREW", "/v1/jobs", 405),
        ("GET", "/v1/jobs/", 404),
        ("GET", "/v1//jobs", 404),
        ("GET", "//v1/jobs", 404),
        ("GET", "/v1/jobs/1/", 404),
        ("GET", "/v1/jobs/%00", 400),
        ("GET", "/v1/jobs/%ff%fe", 400),
        ("GET", "/v1/jobs/1%2Flog", 200),
        ("GET", "/v1/jobs/-1", 400),
        ("GET", "/v1/jobs/1e3", 400),
        ("GET", "/v1/jobs/0x1", 400),
        ("GET", "/v1/jobs/99999999999999999999999999", 400),
        ("GET", "/v1/jobs/" + "9" * 5000, 400),
        ("GET", "/v1/jobs?limit=" + "9" * 5000, 400),
        ("GET", "/v1/jobs?submitted_from=1e400", 400),
        ("GET", "/v1/jobs?name=%ff%00", 200),
        ("GET", "/v1/jobs?cursor=%00", 400),
        ("GET", "/v1/events?type=" + "x" * 5000, 200),
        ("GET", "/../../etc/passwd", 404),
        ("GET", "/v1/..%2f..%2fetc/passwd", 404),
    ],
)
def test_odd_requests(api: Local, method: str, path: str, status: int) -> None:
    answer = api(method, path)
    assert answer.status_code == status, answer.text
    if status >= 400:
        assert answer.headers["content-type"] == "application/problem+json"
        assert len(answer.content) < 4000
    if status == 405:
        assert answer.headers["allow"]


@pytest.mark.parametrize(
    "headers",
    [
        {"Range": "bytes=0-1"},
        {"Range": "bytes=9-1,-5,,"},
        {"If-None-Match": "*"},
        {"If-Match": '"x"'},
        {"If-Modified-Since": "never"},
        {"Last-Event-ID": "1:99999999999999999999"},
        {"Last-Event-ID": "\u00ff"},
        {"Accept": "nothing/at all;;;q=x"},
        {"Accept-Encoding": "gzip;q=0, *;q=9"},
        {"Content-Length": "0"},
        {"Cookie": "a=" + "b" * 4000},
        {"X-Forwarded-For": "1.2.3.4, \u00e9", "X-Forwarded-Host": "evil.example"},
    ],
)
def test_odd_headers_change_nothing(api: Local, headers: dict[str, str]) -> None:
    encoded = {name: value.encode("latin-1") for name, value in headers.items()}
    for path in ("/v1/jobs/1/log", "/v1/jobs", "/v1/events"):
        answer = api("GET", path, headers=encoded)
        assert answer.status_code == 200, answer.text
    assert api("GET", "/v1/jobs/1/log", headers=encoded).text == "one\ntwo\n"


@pytest.mark.parametrize(
    ("name", "value"),
    [("Idempotency-Key", b""), ("Idempotency-Key", b"x" * 201), ("X-Gpuloom-User", b"\xff"), ("X-Gpuloom-User", b"\t")],
)
def test_odd_values_of_our_own_headers_are_told(api: Local, name: str, value: bytes) -> None:
    answer = api("POST", "/v1/jobs", json={"command": ["./a"]}, headers={name: value})
    assert answer.status_code == 400
    assert answer.json()["errors"][0]["where"] == f"header {name}"
