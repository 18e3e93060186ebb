"""Where the server listens, how it ends, and how fast it takes jobs."""

from __future__ import annotations

import gc
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from api_client import TOKEN, http, served
from fake_service import FakeService
from gpuloom.core.errors import InputError
from gpuloom.fleet.certificates import own
from gpuloom.server.run import serve
from tiers import slow
from until import until

TESTS = Path(__file__).parents[1]


@pytest.fixture
def service(tmp_path: Path) -> FakeService:
    return FakeService(tmp_path)


def refused(service: FakeService, **arguments: object) -> str:
    with pytest.raises(InputError) as caught, served(service, **arguments):
        pass
    return str(caught.value)


def test_loopback_and_a_free_port_by_default(service: FakeService) -> None:
    with served(service) as place, http(place) as client:
        assert place.host == "127.0.0.1"
        assert place.port > 1023
        assert place.url == f"http://127.0.0.1:{place.port}"
        assert client.get("/v1/health").json()["ok"] is True


def test_a_port_in_use_is_told(service: FakeService) -> None:
    with served(service) as place:
        assert f"port {place.port} of 127.0.0.1 is in use" in refused(service, port=place.port)


def test_another_port_will_do_where_one_is_taken_at_that_moment(service: FakeService) -> None:
    with served(service) as place, served(service, port=place.port, or_any=True) as other:
        assert other.port not in (0, place.port)
    with served(service, port=place.port, or_any=True) as again:
        assert again.port == place.port


def test_a_port_can_be_used_again_at_once(service: FakeService) -> None:
    with served(service) as place, http(place) as client:
        client.get("/v1/health")
    with served(service, port=place.port) as again:
        assert again.port == place.port


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"port": 65_536}, "from 0"),
        ({"port": -1}, "from 0"),
        ({"host": "no.such.host.invalid"}, "no.such.host.invalid"),
        ({"host": "x" * 300}, "not a host name|can't listen"),
        ({"host": "203.0.113.7"}, "needs TLS"),
        ({"host": "0.0.0.0", "token": None}, "needs a token"),
        ({"host": "203.0.113.7", "token": None}, "needs a token"),
        ({"host": "0.0.0.0", "token": ""}, "20 or more"),
        ({"token": "guess me"}, "20 or more"),
    ],
)
def test_places_that_are_refused(service: FakeService, arguments: dict[str, object], says: str) -> None:
    import re

    assert re.search(says, refused(service, **arguments))


def test_beyond_loopback_it_speaks_tls(service: FakeService, tmp_path: Path) -> None:
    certificate = own(tmp_path / "tls", ["gpu7.lab"])
    said = refused(service, host="203.0.113.7", certificate=certificate)
    assert "not an address of this machine" in said
    with served(service, host="0.0.0.0", certificate=certificate) as place:
        assert place.url == f"https://0.0.0.0:{place.port}"
        trusted = ssl.create_default_context(cafile=str(certificate.cert))
        with httpx.Client(verify=trusted, headers={"Authorization": f"Bearer {TOKEN}", "Host": "gpu7.lab"}) as client:
            assert client.get(f"https://127.0.0.1:{place.port}/v1/jobs").status_code == 200
        with pytest.raises(httpx.TransportError), http(place) as plain:
            plain.get(f"http://127.0.0.1:{place.port}/v1/health")


def test_loopback_needs_no_tls_and_no_token(service: FakeService) -> None:
    with served(service, host="localhost", token=None) as place, http(place) as client:
        assert client.get("/v1/jobs", headers={"Authorization": ""}).status_code == 200
        assert client.get("/v1/jobs", headers={"Host": "evil.example"}).status_code == 421


def test_ipv6(service: FakeService) -> None:
    if not Path("/proc/net/if_inet6").exists() or "00000000000000000000000000000001" not in Path(
        "/proc/net/if_inet6"
    ).read_text(encoding="ascii"):
        assert "::1" in refused(service, host="::1")
        return
    with served(service, host="::1") as place, http(place) as client:
        assert place.url.startswith("http://[::1]:")
        assert client.get("/v1/health").status_code == 200


def closed(port: int) -> bool:
    """Whether nobody listens there any more."""
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) != 0


def test_its_end_is_told_after_the_last_request(service: FakeService) -> None:
    order: list[str] = []
    with served(service, on_stop=lambda: order.append("stopped")) as place, http(place) as client:
        right = service.status

        def status() -> object:
            place.stop()
            until(lambda: closed(place.port), "it to take no more connections")
            order.append("answered")
            return right()

        service.status = status  # type: ignore[assignment,method-assign]
        assert client.get("/v1/status").status_code == 200
    assert order == ["answered", "stopped"]
    gc.collect()  # a connection that nobody closed would be told here, as a warning, and not in some later test


PROGRAM = """
import sys, pathlib
sys.path.insert(0, sys.argv[1])
from fake_service import FakeService
from gpuloom.fleet.certificates import own
from gpuloom.server.run import serve
service = FakeService(pathlib.Path(sys.argv[2]))
told = lambda place: print(place.url, flush=True)
ended = serve(service, token=sys.argv[3], on_ready=told, on_stop=lambda: print("stopped"))
print(ended.name, flush=True)
"""


def started(tmp_path: Path) -> tuple[subprocess.Popen[str], str]:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(TESTS), str(tmp_path), TOKEN],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


@pytest.mark.parametrize("number", [signal.SIGTERM, *slow(signal.SIGINT)])
@pytest.mark.slow
def test_a_signal_ends_it_in_order(tmp_path: Path, number: signal.Signals) -> None:
    from api_client import Stream
    from gpuloom.server.run import Listening

    process, url = started(tmp_path)
    place = Listening("127.0.0.1", int(url.rpartition(":")[2]), url, lambda: None)
    with Stream(place, "/v1/events?after=0") as stream:
        assert stream.next()
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert out == f"stopped\n{number.name}\n"
    assert (process.returncode, err) == (0, "")


@pytest.mark.slow
def test_it_sleeps_when_nobody_calls_and_stays_small(tmp_path: Path) -> None:
    if not Path("/proc/self/schedstat").exists():
        pytest.fail("needs Linux")
    process, url = started(tmp_path)
    try:
        import httpx

        headers = {"Authorization": f"Bearer {TOKEN}"}
        assert httpx.get(f"{url}/v1/jobs", headers=headers).status_code == 200
        status = Path(f"/proc/{process.pid}/status")

        def switches() -> int:
            return sum(
                int(line.split()[1])
                for task in Path(f"/proc/{process.pid}/task").iterdir()
                for line in (task / "status").read_text().splitlines()
                if line.startswith("voluntary_ctxt_switches")
            )

        def sleeps() -> bool:
            before = switches()
            time.sleep(0.5)
            return switches() - before <= 1

        until(sleeps, "it to sleep")
        resident = next(line for line in status.read_text().splitlines() if line.startswith("VmRSS"))
        assert int(resident.split()[1]) < 120 * 1024  # kB
    finally:
        process.terminate()
        process.communicate(timeout=20)


def test_jobs_are_taken_fast(service: FakeService) -> None:
    """Of many at once each takes less CPU time than of those that come one by one."""
    spec = {"command": ["python", "train.py"], "gpus": 2, "time_limit": "4h", "env": {"A": "b"}}
    with served(service) as place, http(place) as client:
        begun = time.process_time()
        for number in range(100):
            headers = {"Idempotency-Key": str(number)}
            assert client.post("/v1/jobs", json=spec, headers=headers).status_code == 201
        one_by_one, begun = time.process_time() - begun, time.process_time()
        assert client.post("/v1/jobs", json={"jobs": [spec] * 1000}).status_code == 201
        assert time.process_time() - begun < 10 * one_by_one


def test_the_process_keeps_its_own_signal_handlers(service: FakeService) -> None:
    before = signal.getsignal(signal.SIGTERM)
    number = serve(service, token=TOKEN, on_ready=lambda place: os.kill(os.getpid(), signal.SIGTERM))
    assert number is signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is before


def test_what_fails_when_ready_is_not_swallowed(service: FakeService) -> None:
    def on_ready(place: object) -> None:
        raise OSError("server.json: no space left")

    with pytest.raises(OSError, match="no space left"):
        serve(service, token=TOKEN, on_ready=on_ready)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
