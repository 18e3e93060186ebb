"""Who may call the API: the token and its file, the Host header, other web pages, bodies that are too large."""

from __future__ import annotations

import re
import socket
import threading
from pathlib import Path

import httpx
import pytest

from api_client import TOKEN, Local, app_over, http, served
from fake_service import FakeService
from gpuloom.core.errors import InputError
from gpuloom.server.app import make_app
from gpuloom.server.auth import allowed, check_token, load_or_make_token
from gpuloom.server.guard import OPEN


@pytest.fixture
def service(tmp_path: Path) -> FakeService:
    return FakeService(tmp_path)


@pytest.fixture
def api(service: FakeService) -> Local:
    return Local(app_over(service, hosts=("localhost", "gpu.lab"), most_bytes=1000))


# -- the file ---------------------------------------------------------------------------------------------------------


def test_a_token_is_made_once_and_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "token"
    token = load_or_make_token(path)
    assert len(token) >= 40
    assert path.stat().st_mode & 0o777 == 0o600
    assert load_or_make_token(path) == token
    assert [file.name for file in tmp_path.iterdir()] == ["token"]


def test_every_token_is_another(tmp_path: Path) -> None:
    assert len({load_or_make_token(tmp_path / str(i)) for i in range(5)}) == 5


def test_who_starts_at_the_same_time_gets_the_same_token(tmp_path: Path) -> None:
    found: list[str] = []
    barrier = threading.Barrier(8)

    def make() -> None:
        barrier.wait()
        found.append(load_or_make_token(tmp_path / "token"))

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(found)) == 1


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o666, 0o620])
def test_a_file_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "token"
    load_or_make_token(path)
    path.chmod(mode)
    with pytest.raises(InputError, match=rf"mode {mode:04o}.*chmod 600"):
        load_or_make_token(path)


@pytest.mark.parametrize("content", [b"", b"short", b"two words and much more text", b"\xff" * 30, b"a" * 30 + b"\nb"])
def test_a_file_without_a_token_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "token"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(InputError, match="one line of 20 or more"):
        load_or_make_token(path)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a file"):
        load_or_make_token(tmp_path)


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="can't be written: No such file"):
        load_or_make_token(tmp_path / "none" / "token")


def test_headers() -> None:
    token = TOKEN.encode()
    assert allowed(b"Bearer " + token, token)
    assert allowed(b"bearer  " + token, token)
    for header in (None, b"", token, b"Basic " + token, b"Bearer", b"Bearer " + token[:-1], b"Bearer " + token + b"x"):
        assert not allowed(header, token)
    with pytest.raises(InputError):
        check_token("ä" * 30, "x")


# -- requests ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("authorization", ["", "Bearer wrong", f"Basic {TOKEN}"])
@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/status", "/v1/jobs/1", "/v1/none", "/favicon.ico"])
def test_without_the_token_nothing_is_told(api: Local, path: str, authorization: str) -> None:
    answer = api("GET", path, headers={"Authorization": authorization})
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"].startswith("Bearer")
    assert answer.json()["type"].endswith(":unauthorized")


def test_every_other_route_needs_the_token(service: FakeService, api: Local) -> None:
    document = api("GET", "/openapi.json").json()
    for path, item in document["paths"].items():
        for method, operation in item.items():
            answer = api(method.upper(), re.sub(r"{\w+}", "1", path), headers={"Authorization": ""})
            assert (answer.status_code == 401) == (path not in OPEN), path
            assert (operation.get("security") == []) == (path in OPEN), path
    assert service.calls == []


def test_without_a_token_set_all_may_call(service: FakeService) -> None:
    api = Local(make_app(service, token=None))
    assert api("GET", "/v1/jobs", headers={"Authorization": ""}).status_code == 200


@pytest.mark.parametrize(
    "host",
    ["localhost", "localhost:80", "LOCALHOST", "127.0.0.1:8000", "[::1]", "[::1]:8000", "gpu.lab:1"],
)
def test_our_own_names(api: Local, host: str) -> None:
    assert api("GET", "/v1/health", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "10.0.0.1", "[fe80::1]:80", ""])
def test_other_names_are_refused(api: Local, host: str) -> None:
    answer = api("GET", "/v1/health", headers={"Host": host})
    assert answer.status_code == 421
    assert "gpu.lab" in answer.json()["detail"]


def test_other_web_pages_are_refused(api: Local) -> None:
    def status(origin: str) -> int:
        return api("POST", "/v1/shutdown", headers={"Origin": origin, "Host": "localhost:80"}).status_code

    assert status("http://evil.example") == status("null") == status("http://localhost:81") == 403
    assert status("http://localhost:80") == 202


def test_no_answer_allows_other_web_pages(api: Local) -> None:
    answer = api("OPTIONS", "/v1/jobs", headers={"Access-Control-Request-Method": "POST"})
    assert not any(name.startswith("access-control") for name in answer.headers)
    assert answer.headers["cache-control"] == "no-store"
    assert "GMT" in answer.headers["date"]


def test_a_body_that_says_that_it_is_too_large(api: Local) -> None:
    answer = api("POST", "/v1/jobs", content=b" " * 1001, headers={"Content-Type": "application/json"})
    assert answer.status_code == 413
    assert "1,000 bytes" in answer.json()["detail"]


def test_a_body_that_turns_out_to_be_too_large(service: FakeService, tmp_path: Path) -> None:
    sent = 0

    def parts() -> object:
        nonlocal sent
        for _ in range(80):
            sent += 2**20
            yield b" " * 2**20

    with served(service) as place:
        with http(place) as client:
            answer = client.post("/v1/jobs", content=parts(), headers={"Content-Type": "application/json"})  # type: ignore[arg-type]
        assert answer.status_code == 413
        assert sent < 80 * 2**20  # it was not read to its end
        with socket.create_connection((place.host, place.port), timeout=10) as raw:
            raw.sendall(
                f"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n"
                "Content-Type: application/json\r\nContent-Length: 99999999999\r\n\r\n".encode()
            )
            assert raw.recv(100).startswith(b"HTTP/1.1 413")
    assert service.calls == []


def test_names_do_not_matter_beyond_loopback(service: FakeService) -> None:
    api = Local(make_app(service, token=TOKEN, hosts=()))
    assert api("GET", "/v1/jobs", headers={"Host": "gpu7.lab.example"}).status_code == 200
    assert isinstance(api("GET", "/v1/jobs"), httpx.Response)


def test_a_token_file_that_is_a_folder_is_refused_as_such(tmp_path: Path) -> None:
    (tmp_path / "token").mkdir(mode=0o700)
    with pytest.raises(InputError, match="token is not a file: remove it"):
        load_or_make_token(tmp_path / "token")
