"""Disks that are full, clocks that jump, jobs and policies that misbehave: the right reason, and nothing lost."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import textwrap
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from fake_executor import FakeExecutor
from gpuloom.client import ClientError
from gpuloom.executors import paper
from gpuloom.live.clock import ServiceClock
from gpuloom.store.errors import StoreError
from gpuloom.store.home import home_of
from gpuloom.store.sqlite import SqliteStore
from live_builders import living
from real_scheduler import Real, alive, real
from until import until

pytestmark = pytest.mark.slow


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Real]:
    with real(tmp_path) as found:
        yield found


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if os.geteuid() != 0:
        pytest.skip("only root may mount a small file system")
    _mount("-t", "tmpfs", "-o", "size=8m", "tmpfs", str(disk))
    try:
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)


def _fill(disk: Path) -> Path:
    """Leave no byte free."""
    path = disk / "filler"
    with path.open("ab", buffering=0) as file:
        size = 1 << 16
        while size:
            try:
                file.write(b"\0" * size)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                size //= 2
    return path


# -- the store ----------------------------------------------------------------------------------------------------


def test_a_full_disk_refuses_submissions_and_loses_no_end(tmp_path: Path, small_disk: Path) -> None:
    with real(tmp_path, home=small_disk / "home") as live:
        live.up("--policy", "fifo")
        running = [live.client.submit(live.waiting())[0][0] for _ in range(4)]
        live.in_state("running", running)
        queued = live.client.submit([live.waiting() for _ in range(2)])
        queued = [job for group in queued for job in group]
        filler = _fill(small_disk)
        refused: ClientError | None = None
        known = running + queued
        # What is left in the log's file may take a submission yet. One is refused as a whole or taken as a whole.
        for _ in range(50):
            try:
                many = live.client.submit([{"command": ["true"], "env": {"X": "x" * 3000}, "hold": True}] * 50)
                known = known + [job for group in many for job in group]
            except ClientError as error:
                refused = error
                break
            _fill(small_disk)
        assert refused is not None
        assert refused.status == 503
        assert "the disk is full" in str(refused)
        assert "Nothing was changed" in str(refused)
        assert {view["id"] for view in live.client.jobs()} == set(known)
        live.end(running[0], code=0)
        live.end(running[1], code=9)
        until(lambda: not live.client.status()["store"]["ok"], "that the status says so")
        assert "full" in live.client.status()["store"]["problem"]
        live.kill()  # the ends are not on disk, and the scheduler that knew of them is gone
        filler.unlink()
        live.up()
        live.in_state("running", queued)
        views = {view["id"]: view for view in live.client.jobs(ids=running)}
        assert [(views[job]["state"], views[job]["exit_code"]) for job in running] == [
            ("finished", 0),
            ("failed", 9),
            ("running", None),
            ("running", None),
        ]
        assert live.client.status()["store"]["ok"]
        live.end(*running[2:], *queued)
        live.client.wait(running + queued, timeout_s=30)
        live.ran(dict.fromkeys(running + queued, 1))
        live.down("--stop-jobs")
        live.check()
        live.nothing_left()


def test_room_on_a_full_disk_heals_without_a_restart(tmp_path: Path, small_disk: Path) -> None:
    with real(tmp_path, home=small_disk / "home", slots=1) as live:
        live.up("--policy", "fifo")
        first, second = (live.client.submit(live.waiting())[0][0] for _ in range(2))
        live.in_state("running", [first])
        filler = _fill(small_disk)

        def full() -> bool:
            _fill(small_disk)
            with suppress(ClientError):
                live.client.submit([{"command": ["true"], "env": {"X": "x" * 3000}, "hold": True}] * 50)
                return False
            return True

        until(full, "a full disk")
        live.end(first, code=3)
        until(lambda: not live.client.status()["store"]["ok"], "that the end can't be written")
        assert live.states([first, second]) == {first: "running", second: "queued"}
        filler.unlink()
        live.in_state("running", [second])
        found = live.client.job(first)
        assert (found["reason"], found["message"], found["exit_code"]) == ("failed", "exit code 3", 3)
        until(lambda: live.client.status()["store"]["ok"], "that the status says so")
        live.end(second)
        live.client.wait([second], timeout_s=30)
        live.down("--stop-jobs")
        live.check()


def test_a_store_that_is_read_only_at_the_start_is_refused(tmp_path: Path, small_disk: Path) -> None:
    with real(tmp_path, home=small_disk / "home") as live:
        live.up()
        job = live.client.submit(live.waiting())[0][0]
        live.in_state("running", [job])
        live.kill()
        runner = live.runner()
        _mount("-o", "bind", str(small_disk), str(small_disk))
        try:
            _mount("-o", "remount,bind,ro", str(small_disk))
            found = live.run("up", "--slots", "4", "--port", "0")
            assert found.returncode in (1, 2)
            assert "Read-only" in found.stderr or "read-only" in found.stderr
            assert "Traceback" not in found.stderr
        finally:
            subprocess.run(["umount", "--lazy", str(small_disk)], check=True)
        assert alive(runner)
        live.up()
        assert live.states([job]) == {job: "running"}
        live.end(job)
        live.client.wait([job], timeout_s=30)
        live.down()


def test_a_store_that_becomes_read_only_refuses_and_keeps(tmp_path: Path) -> None:
    store = SqliteStore(home_of(tmp_path).create().db)
    executor = FakeExecutor()

    def read_only(on: bool) -> None:
        with store._lock:
            assert store._writer is not None
            store._writer.execute(f"PRAGMA query_only = {int(on)}")

    with living(tmp_path, executor, store=store) as live:
        running, waits = live.submit(4), live.submit(4)
        live.scheduler.do(lambda: read_only(True))
        for change in (lambda: live.submit(1), lambda: live.service.cancel([waits])):
            with pytest.raises(StoreError, match="read-only"):
                change()
        executor.end(f"{running}.1", 5)
        live.until(lambda: "read-only" in live.service.status()["store"]["problem"])
        assert live.state(running, waits) == ["running", "queued"]
        assert executor.acknowledged == set()
        live.scheduler.do(lambda: read_only(False))
        live.until(lambda: live.state(running, waits) == ["failed", "running"])
        assert live.view(running)["exit_code"] == 5


# -- the clock ----------------------------------------------------------------------------------------------------


class Wall:
    """A wall clock that can be set."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead_s


@pytest.mark.parametrize("ahead_s", [86_400.0, -86_400.0])
def test_a_wall_clock_that_jumps_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead_s: float
) -> None:
    wall = Wall()
    monkeypatch.setattr("gpuloom.live.parts.ServiceClock", lambda at_s: ServiceClock(at_s, wall=wall))
    executor = FakeExecutor()

    # The executor takes its times from the same wall clock.
    monkeypatch.setattr(paper, "time", SimpleNamespace(time=wall))
    with living(tmp_path, executor, policy="fifo") as live:
        limited, second = live.submit(2, time_limit=3600), live.submit(2)
        waits = live.submit(4, estimate=60)
        time.sleep(0.05)
        wall.ahead_s = ahead_s
        live.end(second)  # before anyone has noticed
        assert 0.05 <= live.job(second).held_s < 20.0
        live.scheduler.sampled(live.scheduler.here, {}, (), ())
        live.until(lambda: any(event.type == "clock.jumped" for event in live.service.events()))
        live.end(limited)
        assert 0.05 <= live.job(limited).held_s < 20.0
        assert live.state(limited, second, waits) == ["finished", "finished", "running"]
        assert executor.stops == {}
        live.end(waits)
        found = live.service.events(limit=1000)
        jumps = [event.data["seconds"] for event in found if event.type == "clock.jumped"]
        assert jumps == [pytest.approx(ahead_s, abs=1.0)]
        times = [event.at_s for event in found]
        assert times == sorted(times)
        assert times[-1] - times[0] < 60.0
        assert live.view(waits)["jct_s"] < 60.0
    with living(tmp_path, executor, policy="fifo") as live:  # begins at the wall's new time, or at the last event's
        job = live.submit(4, time_limit=3600)
        assert live.state(job) == ["running"]
        live.end(job)
        times = [event.at_s for event in live.service.events(limit=1000)]
        assert times == sorted(times)


# -- jobs that misbehave -------------------------------------------------------------------------------------------


def test_jobs_that_misbehave_end_for_the_right_reason_and_leave_nothing(live: Real) -> None:
    live.up("--policy", "fifo")
    limits = live.client.status()["executor"]["limits"]
    hungry = "import time; x = bytearray(400 << 20); time.sleep(60)"
    scripts = {
        "deaf": live.shell("trap '' TERM INT HUP; echo up; while :; do sleep 1; done", grace=0.3),
        "daemons": live.shell(
            "setsid sh -c 'trap \"\" TERM; setsid sleep 61 & sleep 62' & echo up; sleep 63", grace=0.3
        ),
        "leaves": live.shell("setsid setsid sleep 64 > /dev/null 2>&1 & exit 6"),
        "slow": live.shell("sleep 65", time_limit=0.5, grace=0.2),
        "unknown": {"command": ["no-such-program-of-ours", "--x"], "workdir": str(live.files)},
        "folder": {"command": [str(live.files)], "workdir": str(live.files)},
        "hungry": {"command": ["python3", "-c", hungry], "workdir": str(live.files), "memory": "64MiB"},
        "signal": live.shell("kill -KILL $$"),
        "chatty": live.shell("yes 0123456789abcdef | head -c 399999987; echo the end"),
    }
    numbers = [group[0] for group in live.client.submit([{**spec, "name": name} for name, spec in scripts.items()])]
    job = dict(zip(scripts, numbers, strict=True))
    for name in ("deaf", "daemons"):
        until(lambda name=name: b"up" in live.client.log(job[name]), f"{name} runs")
        live.client.cancel([job[name]])
    live.client.wait(numbers, timeout_s=90)
    views = {view["name"]: view for view in live.client.jobs(ids=numbers)}
    reasons = {name: (view["state"], view["reason"]) for name, view in views.items()}
    assert reasons == {
        "deaf": ("cancelled", "cancelled"),
        "daemons": ("cancelled", "cancelled"),
        "leaves": ("failed", "failed"),
        "slow": ("failed", "timed_out"),
        "unknown": ("failed", "not_started"),
        "folder": ("failed", "not_started"),
        "hungry": ("failed", "out_of_memory"),
        "signal": ("failed", "failed"),
        "chatty": ("finished", "finished"),
    }, (limits, views)
    assert "no-such-program-of-ours" in views["unknown"]["message"]
    assert str(live.files) in views["folder"]["message"]
    assert "SIGKILL" in views["signal"]["message"]
    assert views["leaves"]["exit_code"] == 6
    assert live.client.log(job["chatty"], tail=1) == b"the end\n"
    directory = Path(live.client.show(job["chatty"])["log"]).parent
    kept = sum(path.stat().st_size for path in directory.iterdir())
    assert kept <= 6 * 64 * 2**20
    left = [line for line in live.processes().values() if "sleep" in line]
    assert left == []
    assert {gpu["state"] for gpu in live.client.nodes()[0]["gpus"]} == {"ok"}
    live.down()
    live.check()
    live.nothing_left()


def test_a_frozen_job_can_be_cancelled(live: Real) -> None:
    live.up("--policy", "srtf", "--interval", "1s")
    frozen = live.client.submit(live.shell("sleep 66", gpus=4, estimate=1000, on_preempt="freeze"))[0][0]
    live.in_state("running", [frozen])
    short = live.client.submit(live.waiting(gpus=4, estimate=1))[0][0]
    live.in_state("frozen", [frozen])
    live.in_state("running", [short])
    live.client.cancel([frozen], grace_s=0.5)
    live.in_state("cancelled", [frozen])
    assert live.client.job(frozen)["reason"] == "cancelled"
    live.end(short)
    live.in_state("finished", [short])
    live.down()
    live.nothing_left()


# -- parts that fail -------------------------------------------------------------------------------------------------


def _plug_in(folder: Path) -> Path:
    """A package with a policy that fails while a file is there."""
    info = folder / "fragile-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fragile\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[gpuloom.policies]\nfragile = fragile_policy:Fragile\n")
    (folder / "fragile_policy.py").write_text(
        textwrap.dedent(
            f"""
            from dataclasses import replace
            from pathlib import Path
            from gpuloom.policies.sjf import Sjf

            class Fragile(Sjf):
                id = "fragile"
                traits = replace(Sjf.traits, summary="fails on demand")

                def decide(self, snapshot, memory):
                    if Path({str(folder / "fail")!r}).exists():
                        raise ZeroDivisionError("on purpose")
                    return super().decide(snapshot, memory)
            """
        )
    )
    return folder


def test_a_policy_that_raises_leaves_running_jobs_alone_and_fifo_serves_until_it_is_replaced(
    live: Real, tmp_path: Path
) -> None:
    folder = _plug_in(tmp_path / "plug")
    live.env["PYTHONPATH"] = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    live.up("--policy", "fragile")
    running = live.client.submit(live.waiting(gpus=3))[0][0]
    live.in_state("running", [running])
    (folder / "fail").touch()
    first, second = (live.client.submit(live.waiting())[0][0] for _ in range(2))
    until(lambda: "fragile" in live.client.status()["policy_problem"], "that the status says so")
    assert "on purpose" in live.client.status()["policy_problem"]
    assert live.client.status()["store"]["ok"]
    assert "on purpose" in live.run("status").stdout
    live.in_state("running", [first])  # fifo is used in its place
    assert live.states([running, second]) == {running: "running", second: "queued"}
    assert "fifo is used in its place" in live.client.why(second)["text"]
    assert live.client.status()["policy_failure"]["serves"] == "fifo"
    live.end(running)  # an end is taken in all the same
    live.in_state("finished", [running])
    done = live.run("policy", "set", "fifo")
    assert done.returncode == 0, done.stderr
    live.in_state("running", [first, second])
    until(lambda: not live.client.status()["policy_problem"], "that all is well")
    live.end(first, second)
    live.client.wait([first, second], timeout_s=30)
    live.down()
    live.check()


def test_a_runner_that_is_killed_is_replaced_and_the_jobs_go_on(live: Real) -> None:
    live.up("--policy", "fifo")
    jobs = [group[0] for group in live.client.submit([live.waiting() for _ in range(5)])]
    live.in_state("running", jobs, 4)
    before = live.attempts(jobs[:4])
    runner = live.runner()
    live.kill(runner)
    until(lambda: [p for p, line in live.processes().items() if "executors/runner/main.py" in line], "another runner")
    assert live.runner() != runner
    assert live.states(jobs[:4]) == dict.fromkeys(jobs[:4], "running")
    assert live.attempts(jobs[:4]) == before
    until(lambda: live.client.status()["executor"]["ok"], "that the executor works again")
    live.client.cancel(jobs[:1])
    live.in_state("cancelled", jobs[:1])
    live.in_state("running", jobs[4:])
    live.end(*jobs[1:])
    live.end(*jobs[1:4], attempt=2)  # nobody saw how those ended that the killed runner had started: they ran again
    live.client.wait(jobs, timeout_s=90)
    assert live.states(jobs[1:]) == dict.fromkeys(jobs[1:], "finished")
    live.ran({**dict.fromkeys(jobs, 1), **dict.fromkeys(jobs[1:4], 2)})
    live.down()
    live.check()
    live.nothing_left()


def test_ten_thousand_queued_jobs_are_no_burden_and_outlive_a_kill(live: Real) -> None:
    live.up("--policy", "tiresias")
    first = [live.client.submit(live.waiting())[0][0] for _ in range(4)]
    live.in_state("running", first)
    spec = {"command": ["true"], "workdir": str(live.files), "gpus": 2, "estimate": 60}

    def submit() -> list[int]:
        numbers = [live.client.submit([spec] * 1000) for _ in range(10)]
        return [job for groups in numbers for group in groups for job in group]

    jobs = submit()
    assert len(set(jobs)) == 10_000
    page = list(live.client.jobs(limit=100))
    assert [view["id"] for view in page] == sorted(jobs, reverse=True)[:100]
    live.client.show(jobs[5000])
    assert live.client.why(jobs[-1], forecast=False)["code"]
    live.client.cancel([jobs[-1]])
    live.client.status()
    live.kill(live.pid)
    live.up()
    assert live.client.status()["jobs"]["queued"] == 9_999
    assert live.client.status()["jobs"]["cancelled"] == 1
    assert live.states(first) == dict.fromkeys(first, "running")
    assert list(live.client.jobs(limit=100))
    os.kill(live.pid, signal.SIGTERM)
    until(lambda: not alive(live.pid), "its end")
    live.check()
