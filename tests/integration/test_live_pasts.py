"""A home whose store was put back to an older state: numbers are given again, and nothing of the other past is taken
for what has them now."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from fake_executor import FakeExecutor
from gpuloom.core.job import Attempt, Phase
from gpuloom.executors.port import RunPhase, RunStatus
from gpuloom.live.dispatch import ports
from gpuloom.store.sqlite import SqliteStore
from live_builders import Live, living
from real_scheduler import Real, alive, real

pytestmark = pytest.mark.slow


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Real]:
    with real(tmp_path) as found:
        yield found


def log_of(live: Real, job: int) -> str:
    return Path(live.client.show(job)["log"]).read_text()


def copied_back(live: Real, copy: Path) -> None:
    """As somebody does who knows nothing of `db restore`."""
    for beside in live.home.glob("store.db*"):
        beside.unlink()
    shutil.copy(copy, live.home / "store.db")


@pytest.mark.parametrize("by_hand", [False, True])
def test_a_number_given_again_is_another_job_with_a_log_of_its_own(live: Real, tmp_path: Path, by_hand: bool) -> None:
    live.up()
    live.client.submit([live.shell("echo first")])
    live.in_state("finished", [1])
    live.down()
    copy = tmp_path / "copy.db"
    assert live.run("db", "backup", str(copy)).returncode == 0
    live.up()
    live.client.submit([live.shell("echo of the other past")])
    live.in_state("finished", [2])
    other = Path(live.client.show(2)["log"])
    live.down()
    if by_hand:
        copied_back(live, copy)
    else:
        assert live.run("db", "restore", str(copy)).returncode == 0
    live.up()
    assert live.client.submit([live.shell('echo "$GPULOOM_JOB_ID" >> marks; echo of this past')]) == [[2]]
    live.in_state("finished", [2])
    live.ran({2: 1})
    assert log_of(live, 2).strip() == "of this past"
    assert log_of(live, 1).strip() == "first"
    assert other.read_text().strip() == "of the other past"  # kept
    live.down()
    live.check()


def test_what_ran_after_the_backup_runs_again_and_what_ended_after_it_has_ended(live: Real, tmp_path: Path) -> None:
    live.up("--slots", "1")
    runs, waits = (group[0] for group in live.client.submit([live.waiting(), live.waiting()]))
    live.in_state("running", [runs])
    copy = tmp_path / "copy.db"
    assert live.run("db", "backup", str(copy)).returncode == 0
    live.end(runs, code=3)
    live.in_state("running", [waits])
    live.end(waits)
    live.in_state("finished", [waits])
    live.down()
    copied_back(live, copy)
    (live.files / f"{waits}.1.p").unlink()
    live.up("--slots", "1")
    live.in_state("failed", [runs])  # it ran when the copy was made, and how it ended is known
    assert live.client.job(runs)["exit_code"] == 3
    live.in_state("running", [waits])
    live.end(waits)
    live.in_state("finished", [waits])
    live.ran({runs: 1, waits: 2})


def test_a_run_of_another_past_that_goes_on_is_ended_and_told(live: Real, tmp_path: Path) -> None:
    live.up("--slots", "1")
    live.client.submit([live.shell("true")])
    live.in_state("finished", [1])
    copy = tmp_path / "copy.db"
    assert live.run("db", "backup", str(copy)).returncode == 0
    live.client.submit([live.shell("trap '' TERM; echo old; while :; do sleep 0.1; done")])
    live.in_state("running", [2])
    ((_, pid),) = live.attempts([2])[2]
    live.kill()
    done = live.run("db", "restore", str(copy))
    assert done.returncode == 0
    assert "1 run that the backup does not know is still running" in done.stdout
    live.up("--slots", "1")
    found = live.client.status()["executor"]
    assert not found["ok"]
    assert "does not know to be running" in found["problem"]
    live.client.submit([live.shell('echo "$GPULOOM_JOB_ID" >> marks; echo new')])
    live.in_state("finished", [2])
    assert not alive(pid)
    assert log_of(live, 2).strip() == "new"
    assert live.client.status()["executor"]["ok"]


def test_a_run_that_the_copy_knows_goes_on(live: Real, tmp_path: Path) -> None:
    live.up("--slots", "1")
    (group,) = live.client.submit([live.waiting()])
    live.in_state("running", group)
    before = live.attempts(group)
    copy = tmp_path / "copy.db"
    assert live.run("db", "backup", str(copy)).returncode == 0
    live.kill()
    copied_back(live, copy)
    live.up("--slots", "1")
    live.in_state("running", group)
    assert live.attempts(group) == before
    live.end(*group)
    live.in_state("finished", group)
    live.ran({group[0]: 1})


def test_nothing_starts_beside_runs_that_nobody_accounts_for(tmp_path: Path) -> None:
    executor = FakeExecutor(obedient=False)
    executor.states["99.1"] = RunStatus("99.1-0000", RunPhase.RUNNING, 4242, 1, "boot")
    with living(tmp_path, executor) as live:
        job = live.submit()
        assert live.state(job) == ["queued"]
        assert "99.1-0000" in live.service.status()["executor"]["problem"]
        executor.end("99.1", None, signal=9)
        live.until(lambda: live.state(job) == ["running"])
        assert live.service.status()["executor"]["ok"]


def test_a_home_of_before_is_taken_up_with_its_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs had no identity, and the store no column for it."""
    monkeypatch.setattr(ports, "IDENTITY_BYTES", 0)
    executor = FakeExecutor()
    before = Live(tmp_path, executor)
    job = before.submit()
    assert executor.requests["1.1"].run == "1.1"
    before.crash()
    monkeypatch.undo()
    with closing(sqlite3.connect(before.parts.home.db)) as connection, connection:
        connection.execute("DROP TABLE environments")
        connection.execute("DROP TABLE samples")
        for column in ("work_on", "suspended"):
            connection.execute(f"ALTER TABLE jobs DROP COLUMN {column}")
        for column in ("identity", "saved_by", "members", "gpu_model", "it_per_s", "kept", "gpu_memory_mib"):
            connection.execute(f"ALTER TABLE attempts DROP COLUMN {column}")
        connection.execute(
            "UPDATE events SET data = json_remove(data, '$.identity', '$.gpu_model') WHERE type = 'attempt.starting'"
        )
        connection.execute("PRAGMA user_version = 1")
    with living(tmp_path, executor) as after:
        after.settle()
        assert after.state(job) == ["running"]
        executor.end("1.1")
        after.settle()
        assert after.state(job) == ["finished"]
        again = after.submit()
        assert after.book.attempts[again].run.startswith(f"{again}.1-")
    assert executor.starts == {"1.1": 1, f"{again}.1": 1}
    with SqliteStore(before.parts.home.db, read_only=True) as store:
        assert [attempt.identity for attempt in store.attempts([job])] == [""]


def test_names_of_runs_differ_where_numbers_do_not() -> None:
    one, other = (Attempt(12, 1, Phase.STARTING, (), 0.0, 0.0, identity=text) for text in ("9f3a02bc", "00000000"))
    assert one.run == "12.1-9f3a02bc" != other.run
