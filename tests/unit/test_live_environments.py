"""Values of environment variables: jobs get them, and nobody else reads them or keeps them for ever."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from fake_executor import FakeExecutor
from gpuloom.core.errors import ConflictError
from gpuloom.core.masked import MASK, masked, unmasked
from gpuloom.live.records.forgetting import FORGET_EVERY_S, KEEP_ENVIRONMENTS_S
from gpuloom.store.connect import _statements, migrations
from gpuloom.store.rows import dumps
from gpuloom.store.sqlite import SqliteStore
from live_builders import Live, living

SECRET = "hunter2-hunter2"
ENV = {"WANDB_API_KEY": SECRET, "LANG": "C"}


def everything(live: Live) -> str:
    """All that the API says, and all that the log keeps."""
    jobs = [live.service.show(job) for job in sorted(live.book.jobs)]
    events = [event.data for event in live.service.events(limit=10_000)]
    return json.dumps([jobs, events], default=str)


def test_the_job_gets_them_also_after_a_restart_and_nobody_else_reads_them(tmp_path: Path) -> None:
    executor = FakeExecutor()
    with living(tmp_path, executor) as live:
        runs, waits = live.submit(4, env=ENV), live.submit(4, env=ENV)
        assert executor.requests[f"{runs}.1"].env.items() >= ENV.items()
        assert SECRET not in everything(live)
        assert live.service.show(runs)["spec"]["env"] == dict.fromkeys(ENV, MASK)
    with living(tmp_path, executor) as live:
        live.end(runs)
        assert executor.requests[f"{waits}.1"].env.items() >= ENV.items()
        live.end(waits)
        assert live.service.requeue([waits])
        live.settle()
        assert executor.requests[f"{waits}.2"].env.items() >= ENV.items()


def test_they_are_changed_with_the_spec_and_a_masked_one_stays(tmp_path: Path) -> None:
    executor = FakeExecutor()
    with living(tmp_path, executor) as live:
        first, waits = live.submit(4), live.submit(4, env=ENV)
        live.service.update([waits], {"priority": 3})
        live.service.update([waits], {"env": {"LANG": "de", "WANDB_API_KEY": MASK, "NEW": "1"}})
        events = len(live.service.events(job=waits))
        live.service.update([waits], {"env": {"LANG": "de", "WANDB_API_KEY": MASK, "NEW": "1"}})
        assert len(live.service.events(job=waits)) == events
        live.end(first)
        found = executor.requests[f"{waits}.1"].env
        assert {name: found[name] for name in (*ENV, "NEW")} == {**ENV, "LANG": "de", "NEW": "1"}
        assert SECRET not in everything(live)


def test_an_array_keeps_one_copy_until_the_last_of_it_has_ended_long_ago(tmp_path: Path) -> None:
    executor = FakeExecutor()
    with living(tmp_path, executor) as live:
        jobs = live.submit_all([live_spec(array="0-5", env=ENV)])
        spec_id, store = live.job(jobs[0]).spec_id, live.parts.store
        for job in jobs[:4]:
            live.end(job)
        ended_s = live.scheduler.clock.now()
        store.forget_environments(ended_s + 1.0)
        assert store.environment(spec_id) == ENV
        for job in jobs[4:]:
            live.end(job)
        store.forget_environments(ended_s)
        assert store.environment(spec_id) == ENV
        store.forget_environments(live.scheduler.clock.now() + 1.0)
        assert store.environment(spec_id) is None
        with pytest.raises(ConflictError, match="7 days after its end; submit it again"):
            live.service.requeue([jobs[0]])
    store_file = live.parts.home.db.read_bytes()
    assert SECRET.encode() not in store_file  # overwritten, not only unlinked


def test_the_scheduler_forgets_them_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuloom.live.records.forgetting.KEEP_ENVIRONMENTS_S", -KEEP_ENVIRONMENTS_S)
    with living(tmp_path) as live:
        job = live.submit(env=ENV)
        live.end(job)
        live.scheduler.forgetting.forgot_s -= FORGET_EVERY_S
        live.submit()
        live.until(lambda: live.parts.store.environment(live.job(job).spec_id) is None)


def test_a_store_of_before_is_freed_of_them(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    spec = {"command": ["x"], "name": "x", "gpus": 1, "priority": 0, "env": {**ENV, "odd\udcff": "größe\udcff"}}
    with closing(sqlite3.connect(path, isolation_level=None)) as old:
        for migration in migrations()[:3]:
            for statement in _statements(migration.sql):
                old.execute(statement)
        old.execute("PRAGMA user_version = 3")
        old.executemany("INSERT INTO meta VALUES (?, ?)", [("store_id", '"a"'), ("created_s", "1"), ("next_job", "1")])
        data = {
            "spec": spec,
            "first": 1,
            "count": 0,
            "indices": [],
            "held": False,
            "after": [],
            "estimates": [[1, "u"]],
        }
        data["user"] = "ann"
        none = {**data, "spec": {**spec, "env": {}}}
        for number, each in enumerate((data, none), 1):
            old.execute("INSERT INTO events VALUES (?, 1.0, 'jobs.submitted', 1, ?)", (number, dumps(each)))
            old.execute("INSERT INTO specs VALUES (?, ?)", (number, dumps(each["spec"])))
    with SqliteStore(path) as store:
        assert store.environment(1) == spec["env"]
        assert store.environment(2) is None
        assert not store.check().findings
        assert store.events()[0].data["spec"] == masked(spec)
        store.forget_environments(10.0)
    assert SECRET.encode() not in path.read_bytes()


def test_masks() -> None:
    assert masked({"a": 1}) == {"a": 1}
    assert masked({"env": {"A": "b"}}) == {"env": {"A": MASK}}
    assert unmasked({"A": MASK, "B": MASK, "C": "d"}, {"A": "x"}) == {"A": "x", "B": MASK, "C": "d"}


def live_spec(**fields: object) -> object:
    from live_builders import spec

    return spec(**fields)  # type: ignore[arg-type]
