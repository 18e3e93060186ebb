"""docs/reference/api.md agrees with the API: every route has an example, every example works, every error is listed."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from api_client import TOKEN, Local, Stream, served
from fake_service import FakeService
from gpuloom.live.submission.spec import job_spec
from gpuloom.server.app import make_app
from gpuloom.server.problems import TITLES

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "api.md").read_text(encoding="utf-8")


def examples() -> list[tuple[str, str, dict[str, str], str | None]]:
    """(method, path with parameters, headers, body) of every line that calls the API."""
    found = []
    page = PAGE.replace("$PWD", "/home/ada").replace("$(hostname -s)", "node0")  # as a shell would
    for line in re.findall(r'^api "\$URL.*$', page, flags=re.MULTILINE):
        words = iter(shlex.split(line, comments=True)[1:])
        path, method, headers, body = next(words).removeprefix("$URL"), "", dict[str, str](), None
        for word in words:
            if word == "-X":
                method = next(words)
            elif word == "-d":
                body = next(words)
            elif word == "-H":
                name, _, value = next(words).partition(": ")
                headers[name] = value
            else:
                assert word == "-N"
        found.append((method or ("GET" if body is None else "POST"), path, headers, body))
    return found


@pytest.fixture
def service(tmp_path: Path) -> FakeService:
    service = FakeService(tmp_path)
    service.submit([*[job_spec({"command": ["./a"]})] * 2, job_spec({"command": ["./a"], "array": "0-17"})], user="ada")
    for job in (1, 4, 5):
        service.run(job)
    service.write(1, "one\n" * 2000)
    service.finish(1)
    return service


def test_every_example_works(service: FakeService) -> None:
    api = Local(make_app(service, token=TOKEN))
    plain = [example for example in examples() if "Accept" not in example[2]]
    assert len(plain) > 30
    for method, path, headers, body in plain:
        more: dict[str, Any] = {} if body is None else {"content": body}
        answer = api(method, path, headers={"Content-Type": "application/json", **headers}, **more)
        assert answer.is_success, f"{method} {path}: {answer.text}"


def test_every_stream_works(service: FakeService) -> None:
    streams = [example for example in examples() if "Accept" in example[2]]
    assert len(streams) == 4
    service.submit([job_spec({"command": ["./a"]})] * 60, user="ada")
    with served(service) as place:
        for _, path, headers, _ in streams:
            with Stream(place, path, headers.get("Last-Event-ID", "")) as stream:
                assert stream.next(), path


def test_every_route_has_an_example(service: FakeService) -> None:
    document = Local(make_app(service, token=TOKEN))("GET", "/openapi.json").json()
    shown = [(method, urlsplit(path).path) for method, path, _, _ in examples()]
    for path, item in document["paths"].items():
        pattern = re.compile(re.sub(r"\{\w+\}", "[^/]+", path))
        for method in item:
            assert any(m == method.upper() and pattern.fullmatch(p) for m, p in shown), f"{method} {path}"


def test_every_error_is_listed() -> None:
    listed = re.findall(r"^\| (\d{3}) \| `([\w-]+)` \|", PAGE, flags=re.MULTILINE)
    assert sorted(listed) == sorted((str(status), kind) for kind, (status, _) in TITLES.items())
