"""`gpuloom up`, `down` and `status` with real schedulers on CPU slots, as processes of their own."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gpuloom.cli import service
from gpuloom.cli.main import cli
from gpuloom.client.home import alive
from gpuloom.core.errors import GpuloomError, PolicyError

POPEN = subprocess.Popen
PROGRAM = [sys.executable, "-c", "from gpuloom.cli.main import main; main()"]


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A home; whatever runs there at the end is ended."""
    folder = tmp_path / "home"
    yield folder
    gpuloom(folder, "down", "--stop-jobs")
    # A runner goes by itself once it has no jobs; what tests leave behind goes now.
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if any(word.endswith(b"/executors/runner/main.py") for word in words) and str(folder).encode() in b"\0".join(
            words
        ):
            os.kill(int(path.parent.name), signal.SIGKILL)


def gpuloom(home: Path, *args: object) -> Result:
    """A command of this process; schedulers that it starts are processes of their own."""
    result = CliRunner().invoke(cli, [str(args[0]), "--home", str(home), *map(str, args[1:])])
    if result.exception is not None and not isinstance(result.exception, SystemExit | GpuloomError):
        raise result.exception
    return result


def told(home: Path, *args: object) -> Any:
    return json.loads(gpuloom(home, args[0], "--json", *args[1:]).stdout)


def test_up_down_and_up_again(home: Path) -> None:
    done = gpuloom(home, "up", "--detach", "--slots", "2", "--policy", "srtf", "--interval", "30s", "--port", 0)
    assert done.exit_code == 0, done.output
    assert "2 CPU slots, no GPUs" in done.stdout
    found = told(home, "status")
    assert (found["running"], found["policy"], found["interval_s"]) == (True, "srtf", 30)
    assert found["url"] in done.stdout
    assert alive(found["pid"])
    assert os.getsid(found["pid"]) == found["pid"]  # a session of its own: closing the terminal does not end it
    assert {p.name: p.stat().st_mode & 0o777 for p in home.glob("scheduler.log")} == {"scheduler.log": 0o600}
    assert home.stat().st_mode & 0o777 == 0o700

    again = gpuloom(home, "up", "--detach", "--slots", "2")
    assert (again.exit_code, f"pid {found['pid']}" in again.stdout) == (0, True)
    assert found["url"] in str(gpuloom(home, "up", "--slots", "2").exception)
    same = ["--slots", "2", "--policy", "srtf", "--interval", "30s", "--host", "localhost", "--port", "0"]
    assert gpuloom(home, "up", "--detach", *same).exit_code == 0
    other = ["--slots", "3", "--policy", "fifo", "--interval", "1m", "--host", "127.0.0.2", "--port", "1"]
    error = gpuloom(home, "up", "--detach", *other).exception
    assert isinstance(error, service.UpError)
    assert error.exit_code == 1
    for text in (
        "it has 2 CPU slots, no GPUs, and --slots is 3 (gpuloom down, then up again)",
        "and --port is 1 (",
        "it listens at 127.0.0.1, and --host is 127.0.0.2 (",
        "its policy is srtf, and --policy is fifo (gpuloom policy set)",
        "its interval is 30s, and --interval is 1m 00s (gpuloom policy set POLICY",
    ):
        assert text in str(error)

    done = gpuloom(home, "submit", "--watch", "--", "sh", "-c", "echo out; exit 7")
    assert (done.exit_code, done.stdout) == (1, "out\n")
    assert "exit code 7" in done.stderr

    # It dies; what to do is said, and done.
    os.kill(found["pid"], signal.SIGKILL)
    until = time.monotonic() + 10
    while alive(found["pid"]) and time.monotonic() < until:
        time.sleep(0.01)
    assert f"(pid {found['pid']}) has died; its jobs keep running" in str(gpuloom(home, "ls").exception)
    for command in ("logs", "show"):
        assert f"lies in {home}/runs/0000/1/ATTEMPT/output.log" in str(gpuloom(home, command, "1").exception)
    assert "lies in" not in str(gpuloom(home, "logs", "77").exception)
    ready = told(home, "up", "--detach", "--slots", "2", "--port", 0)
    assert ready["pid"] != found["pid"]
    assert ready["policy"] == "srtf"
    assert [job["state"] for job in told(home, "ls")] == ["failed"]
    assert told(home, "down") == {"was_running": True, "pid": ready["pid"], "stopped_jobs": False, "pilots_left": []}
    assert not alive(ready["pid"])
    assert told(home, "status")["running"] is False


def test_where_others_can_connect_it_speaks_tls_and_commands_know_its_certificate(home: Path) -> None:
    done = gpuloom(home, "up", "--detach", "--slots", "1", "--host", "0.0.0.0", "--port", 0)
    assert done.exit_code == 0, done.output
    assert "is up at https://0.0.0.0:" in done.stdout
    assert told(home, "status")["running"]
    made = json.loads(CliRunner().invoke(cli, ["node", "token", "--json", "--home", str(home)]).stdout)
    assert made["url"].startswith("https://")
    assert made["fingerprint"] == json.loads((home / "server.json").read_text())["fingerprint"]
    assert told(home, "down")["was_running"]
    (home / "other.pem").write_text("no certificate")
    files = ("--tls-cert", home / "other.pem", "--tls-key", home / "tls" / "key.pem")
    assert "holds no certificate" in str(gpuloom(home, "up", "--slots", "1", *files).exception)
    assert "go together" in str(gpuloom(home, "up", "--slots", "1", *files[:2]).exception)


@pytest.mark.slow
def test_in_the_foreground_it_says_when_it_is_ready_and_ends_by_ctrl_c(home: Path) -> None:
    command = [*PROGRAM, "up", "--home", str(home), "--slots", "1", "--port", "0", "--log-level", "error"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        line = process.stdout.readline()
        assert f"(pid {process.pid}, home {home}), 1 CPU slot, no GPUs" in line
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0, process.stderr.read()
    assert not (home / "server.json").exists()


@pytest.mark.slow
def test_a_scheduler_that_can_not_start_shows_why(home: Path) -> None:
    home.mkdir(mode=0o700)
    (home / "scheduler.log").write_text("of the start before\n")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        error = gpuloom(home, "up", "--detach", "--slots", "1", "--port", port).exception
    assert isinstance(error, service.UpError)
    assert error.exit_code == 2  # that of the scheduler: what it was given is wrong
    assert "the scheduler ended with exit code 2" in str(error)
    assert str(port) in str(error)
    assert "of the start before" not in str(error)  # only what this start wrote


def test_a_policy_that_there_is_not_is_told_before_anything_starts(home: Path) -> None:
    for words in (["--detach"], []):
        error = gpuloom(home, "up", *words, "--slots", "1", "--policy", "tiresais").exception
        assert isinstance(error, PolicyError)
        assert "did you mean 'tiresias'?" in str(error)
    assert not home.exists()


def test_one_that_is_slow_to_be_ready_says_what_it_waits_for_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    begun: list[subprocess.Popen[bytes]] = []

    def popen(command: object, **kw: Any) -> subprocess.Popen[bytes]:
        said = "not ready after 4 s: it is opening the store"
        script = (
            f"echo 'warning: {said}'; echo 'warning: of a library'; echo '{said}' >&$GPULOOM_WARNINGS_TO; sleep 600"
        )
        begun.append(POPEN(["bash", "-c", script], **kw))
        return begun[-1]

    monkeypatch.setattr(service, "_answers", lambda home, pid: False)
    (tmp_path / "scheduler.log").write_text("of before\n")
    monkeypatch.setattr(service.subprocess, "Popen", popen)
    with pytest.raises(
        service.UpError, match=r"(?s)not ready after 1 s, and is still starting: .*stops it; .*opening the store"
    ):
        service.start_detached(tmp_path, [], timeout_s=1.0)
    (process,) = begun
    assert Path(f"/proc/{process.pid}").exists()
    os.kill(process.pid, signal.SIGKILL)
    os.waitpid(process.pid, 0)
    assert capsys.readouterr().err == "gpuloom: warning: not ready after 4 s: it is opening the store\n"


def test_a_home_that_can_not_be_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(service.UpError, match="file"):
        service.start_detached(tmp_path / "file" / "home", [])
