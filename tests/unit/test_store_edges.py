"""Figures, bounds and messages of the store, each on the smallest case that shows it."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fake_views import attempt, record
from gpuloom.core.errors import InputError
from gpuloom.core.events import Event
from gpuloom.core.job import EndReason, Needed, Phase
from gpuloom.store import backup, connect, faults, home, queries, replay, restore, rows, usage
from gpuloom.store.errors import StoreBusy, StoreError
from gpuloom.store.port import CheckReport, Finding, Usage
from gpuloom.store.sqlite import SqliteStore
from gpuloom.store.usage import Rest, Stretch, UsageRun
from store_builders import spec, submitted

DAY_S = 86_400.0
ONE, TWO = (("a", (0,)),), (("a", (0, 1)), ("b", (2,)))


# -- usage ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "frozen"),
    [
        ({}, False),
        ({"phase": Phase.FROZEN}, True),
        ({"since_s": 1.0}, True),
        ({"phase": None, "ended_s": 9.0, "held_s": 9.0}, False),
        ({"phase": None, "ended_s": 9.0, "held_s": 8.0}, True),
        ({"phase": None, "ended_s": -1.0, "held_s": 0.0}, False),  # a clock that went back
    ],
)
def test_whether_a_run_gave_its_gpus_back_for_a_while(changes: dict[str, Any], frozen: bool) -> None:
    assert usage.was_frozen(attempt(**changes)) is frozen


def starts(at_s: float, number: int, gpus: object = (("a", (0,)),)) -> Event:
    return Event(1, at_s, "attempt.starting", 1, {"attempt": number, "allocation": gpus})


def comes(at_s: float, kind: str, **data: Any) -> Event:
    return Event(1, at_s, f"attempt.{kind}", 1, data)


def test_when_runs_held_their_gpus() -> None:
    told = [
        starts(10.0, 1),
        comes(20.0, "frozen"),
        comes(30.0, "thawed", allocation=TWO),
        comes(40.0, "stopping"),
        comes(50.0, "ended", ended_s=45.0),
        starts(60.0, 2),
        comes(70.0, "frozen"),
        comes(80.0, "stopping"),  # it goes on, to end
        comes(90.0, "ended", ended_s=None),
        starts(100.0, 3),
        comes(110.0, "ended", ended_s=99.0),
        comes(120.0, "ended"),  # it holds nothing any more
        starts(130.0, 4),
    ]
    assert usage.stretches(told) == {
        1: [Stretch(10.0, 20.0, ONE, Rest(20.0, 30.0, 0.0)), Stretch(30.0, 45.0, TWO)],
        2: [Stretch(60.0, 70.0, ONE, Rest(70.0, 80.0, 0.0)), Stretch(80.0, 90.0, ONE)],
        3: [Stretch(100.0, 100.0, ONE)],
        4: [Stretch(130.0, None, ONE)],
    }
    assert usage.stretches([]) == {}


def test_a_job_s_events_are_asked_for_once_and_only_where_its_record_does_not_say_it() -> None:
    asked: list[int] = []

    def events(job: int) -> list[Event]:
        asked.append(job)
        return [starts(1.0, 1), comes(2.0, "ended"), starts(3.0, 2)]

    told: dict[int, Any] = {}
    plain = attempt(started_s=5.0, since_s=5.0)
    assert usage.held(plain, told, events) == (Stretch(5.0, None, plain.allocation),)
    ended = attempt(started_s=5.0, since_s=5.0, ended_s=4.0)
    assert usage.held(ended, told, events) == (Stretch(5.0, 5.0, ended.allocation),)
    assert asked == []
    for number, found in ((1, [Stretch(1.0, 2.0, ONE)]), (2, [Stretch(3.0, None, ONE)])):
        assert usage.held(attempt(number=number, since_s=1.0), told, events) == found
    assert asked == [1]


def run(*stretches: Stretch, user: str = "ada", failed_s: float | None = None, **changes: Any) -> UsageRun:
    return UsageRun(user, f"{user}'s", failed_s, attempt(**changes), stretches)


@pytest.mark.parametrize(
    ("stretch", "held_s"),
    [
        (Stretch(0.0, 10.0, ONE), None),  # ends as the span begins
        (Stretch(10.0, 10.0, ONE), 0.0),
        (Stretch(5.0, 11.0, ONE), 1.0),
        (Stretch(19.0, None, ONE), 1.0),
        (Stretch(0.0, None, ONE), 10.0),
        (Stretch(20.0, 20.0, ONE), None),  # begins as the span ends
        (Stretch(20.0, None, ONE), None),
    ],
)
def test_what_of_a_run_lies_in_a_span(stretch: Stretch, held_s: float | None) -> None:
    found = usage.tally([run(stretch)], since_s=10.0, until_s=20.0, by="user")
    assert [each.held_s for each in found] == ([] if held_s is None else [held_s])


def test_for_how_long_runs_lay_suspended_in_a_span_and_with_how_much() -> None:
    times = [
        Stretch(0.0, 2.0, ONE, Rest(2.0, 12.0, 100.0)),  # began before it
        Stretch(12.0, 13.0, ONE, Rest(13.0, 15.0, 200.0)),
        Stretch(15.0, 18.0, ONE, Rest(18.0, None, 400.0)),  # goes on after it
    ]
    (found,) = usage.tally([run(*times)], since_s=10.0, until_s=20.0, by="user")
    assert (found.suspensions, found.suspended_s, found.suspended_mib) == (2, 6.0, 600.0)
    assert found.held_s == 4.0
    (found,) = usage.tally([run(*times)], since_s=3.0, until_s=9.0, by="node")
    assert found == Usage(ONE[0][0], 1, 1, 0.0, 0.0, 0, {}, 0, 6.0, 0.0)
    assert usage.tally([run(times[1])], since_s=15.0, until_s=20.0, by="user") == []
    still = usage.stretches([starts(1.0, 1), comes(4.0, "frozen", suspended_mib=7.0)])
    assert still == {1: [Stretch(1.0, 4.0, ONE, Rest(4.0, None, 7.0))]}
    assert usage.stretches([starts(1.0, 1), comes(4.0, "frozen"), comes(9.0, "ended")])[1][0].rest == Rest(
        4.0, 9.0, 0.0
    )


def test_a_run_that_ended_before_the_span_counts_in_none_of_it() -> None:
    late = Stretch(0.0, 15.0, ONE)
    assert usage.tally([run(late, ended_s=9.0)], since_s=10.0, until_s=20.0, by="user") == []
    assert usage.tally([run(late, ended_s=10.0)], since_s=10.0, until_s=20.0, by="user") != []


@pytest.mark.parametrize(("failed_s", "failed"), [(None, 0), (9.0, 0), (10.0, 1), (19.0, 1), (20.0, 0)])
def test_a_job_counts_as_failed_where_it_failed_in_the_span(failed_s: float | None, failed: int) -> None:
    found = usage.tally([run(Stretch(0.0, None, ONE), failed_s=failed_s)], since_s=10.0, until_s=20.0, by="name")
    assert found == [Usage("ada's", 1, 1, 10.0, 10.0, failed, {"": 10.0})]


def test_most_gpu_time_first_and_of_equals_by_name() -> None:
    runs = [
        run(Stretch(0.0, 10.0, ONE), user="cy"),
        run(Stretch(0.0, 10.0, ONE), user="bo"),
        run(Stretch(0.0, 10.0, TWO), user="di"),
        run(Stretch(10.0, 20.0, ONE), user="bo", number=2),
    ]
    assert usage.tally(runs, since_s=0.0, until_s=100.0, by="user") == [
        Usage("di", 1, 1, 10.0, 30.0, 0, {"": 30.0}),
        Usage("bo", 1, 2, 20.0, 20.0, 0, {"": 20.0}),
        Usage("cy", 1, 1, 10.0, 10.0, 0, {"": 10.0}),
    ]
    assert [(each.key, each.gpu_s) for each in usage.tally(runs, since_s=0.0, until_s=100.0, by="node")] == [
        ("a", 50.0),
        ("b", 10.0),
    ]


def test_days_are_cut_at_midnight_and_a_failure_counts_on_its_day() -> None:
    runs = [run(Stretch(0.0, 2 * DAY_S, TWO)), run(Stretch(DAY_S - 5.0, DAY_S + 7.0, ONE), job=2, failed_s=DAY_S)]
    assert usage.tally(runs, since_s=0.0, until_s=9 * DAY_S, by="day") == [
        Usage("1970-01-01", 2, 2, DAY_S + 5.0, 3 * DAY_S + 5.0, 0, {"": 3 * DAY_S + 5.0}),
        Usage("1970-01-02", 2, 2, DAY_S + 7.0, 3 * DAY_S + 7.0, 1, {"": 3 * DAY_S + 7.0}),
    ]
    assert [usage.day_of(at_s) for at_s in (0.0, DAY_S - 1e-3, DAY_S)] == ["1970-01-01", "1970-01-01", "1970-01-02"]


# -- the log against the records -----------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "more"), [(20, ""), (21, "… and 1 more"), (1520, "… and 1,500 more")])
def test_of_each_kind_of_finding_the_first_few_are_named(count: int, more: str) -> None:
    found = replay.Findings()
    found.add("log", "alone")
    for number in range(count):
        found.add("job", f"{number}")
    details = [finding.detail for finding in found.all()]
    assert details == ["alone", *map(str, range(20)), *([more] if more else [])]


def test_records_are_compared_both_ways() -> None:
    found = replay.Findings()
    job, run = record(), attempt()
    told = replay.Records(jobs={1: job, 2: job}, attempts={(1, 1): run}, settings={"x": 1}, next_job=3)
    kept = replay.Records(jobs={1: record(gpus=2, user="bo"), 3: job}, attempts={}, settings={"x": "two"}, next_job=2)
    replay.compare(told, kept, found)
    assert [(finding.what, finding.detail) for finding in found.all()] == [
        ("job", "job 1: user is 'bo' in the table, 'ada' by the log, gpus is 2 in the table, 1 by the log"),
        ("job", "job 2 is in the log and not in the table"),
        ("job", "job 3 is in the table and not in the log"),
        ("attempt", "attempt 1.1 is in the log and not in the table"),
        ("setting", "setting x: the table says 'two', the log 1"),
        ("setting", "the next job's number is 2, but by the log it is 3"),
    ]


@pytest.mark.parametrize(("letters", "text"), [(78, f"'{78 * 'x'}'"), (79, f"'{76 * 'x'}…")])
def test_long_values_are_cut(letters: int, text: str) -> None:
    assert replay._short(letters * "x") == text


@pytest.mark.parametrize(
    ("numbers", "whole", "findings", "events"),
    [((1, 2), True, 0, 2), ((1, 3), True, 1, None), ((4, 9), False, 0, 2), ((2, 3), True, 1, None)],
)
def test_gaps_matter_where_the_log_is_whole(
    numbers: tuple[int, ...], whole: bool, findings: int, events: int | None
) -> None:
    found = replay.Findings()
    told = replay.replay([Event(n, 5.0, "scheduler.started", None, {}) for n in numbers], found, whole=whole)
    assert (len(found.all()), None if told is None else told.events) == (findings, events)


def test_what_a_log_leads_to() -> None:
    found = replay.Findings()
    events = [Event(1, 5.0, "jobs.submitted", None, submitted(7)), starts(4.5, 1)]
    events[1] = Event(2, 4.5, "attempt.starting", 7, {"attempt": 1, "allocation": [["a", [0]]]})
    told = replay.replay(events, found)
    assert told is not None
    assert (list(told.specs), list(told.jobs), list(told.attempts), told.next_job) == ([1], [7], [(7, 1)], 8)
    assert [finding.detail for finding in found.all()] == ["event 2 is at 4.500, before the previous one (5.000)"]
    assert replay.replay([Event(1, 5.0, "job.held", 9, {})], found) is None
    assert "event 1 (job.held) can't be replayed: " in found.all()[-1].detail


# -- statements and rows -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "bound"), [(5, 5), (2**63, 2**63 - 1), (2**63 - 1, 2**63 - 1), (-(2**70), 1 - 2**63)]
)
def test_numbers_that_sqlite_can_not_take_are_bounded(number: int, bound: int) -> None:
    assert queries.bounded(number) == bound


@pytest.mark.parametrize(
    ("name", "is_one", "glob"), [("a", False, "a"), ("a*", True, "a*"), ("?", True, "?"), ("x[1]*", True, "x[[]1]*")]
)
def test_names_with_wildcards(name: str, is_one: bool, glob: str) -> None:
    assert (queries.is_pattern(name), queries.pattern(name)) == (is_one, glob)


@pytest.mark.parametrize(("limit", "given"), [(5, 5), (0, 0), (-3, 0)])
def test_a_limit_below_0_is_0(limit: int, given: int) -> None:
    assert queries.events(0, None, (), limit, False)[1] == [0, given]
    assert queries.jobs_to_load([], limit)[1] == ["[]", given]


@pytest.mark.parametrize("value", ["plain", "größe", "x\udcff"])
def test_text_comes_back_as_it_was(value: str) -> None:
    kept = rows.text(value)
    assert isinstance(kept, bytes) is (value == "x\udcff")
    assert rows.untext(kept) == value


def test_what_is_no_text_is_damage() -> None:
    with pytest.raises(ValueError, match="5 is stored where text is expected"):
        rows.untext(5)
    with pytest.raises(TypeError, match=r"can't be written as JSON"):
        rows.dumps({"a": {1}})
    with pytest.raises(ValueError, match="JSON"):
        rows.dumps(float("inf"))
    assert rows.dumps({"a": [1, None]}) == '{"a":[1,null]}'


def test_columns_and_what_replaces_a_row() -> None:
    assert (rows.columns(("a", "b")), rows.columns(("a", "b"), "t")) == ("a, b", "t.a, t.b")
    assert rows.upsert("t", ("a", "b", "c"), ("a", "b")) == (
        "INSERT INTO t (a, b, c) VALUES (?, ?, ?) ON CONFLICT (a, b) DO UPDATE SET c = excluded.c"
    )


@pytest.mark.parametrize(
    ("kind", "data", "part"),
    [
        ("job.held", {}, True),
        ("attempt.ended", {}, False),
        ("job.updated", {}, False),
        ("job.updated", {"changes": {"gpus": 2}}, True),
        ("job.updated", {"changes": {"name": "b"}}, False),
    ],
)
def test_which_events_change_a_part_of_a_row(kind: str, data: dict[str, Any], part: bool) -> None:
    assert rows.changes_part(Event(1, 0.0, kind, 1, data)) is part


def test_jobs_that_an_event_leaves_alike_share_a_row() -> None:
    jobs = [record(id=1), record(id=2, phase=Phase.HELD), record(id=3)]
    assert rows.changed_rows("job.held", jobs) == [("queued", "[1,3]"), ("held", "[2]")]
    assert rows.changed_rows("job.released", [record(queued_s=4.0)]) == [("queued", 4.0, "[1]")]
    cancelled = record(phase=Phase.CANCELLED, ended_s=9.0, reason=EndReason.CANCELLED, message="no")
    assert rows.changed_rows("job.cancelled", [cancelled]) == [("cancelled", 9.0, "cancelled", "no", "[1]")]
    assert rows.changed_rows("job.cancelled", [record()]) == [("queued", None, None, "", "[1]")]
    updated = record(after=((7, Needed.OK),), estimate_s=5.0, estimate_from="user")
    assert rows.changed_rows("job.updated", [updated]) == [(1, 0, 1, '[[7,"ok"]]', 5.0, "user", "[1]")]
    requeued = record(failures=2, held_s=3.0, held_gpu_s=6.0, work_s=1.0, work_on={"T4": 1.0}, flags={"idle": "x"})
    assert rows.changed_rows("job.requeued", [requeued]) == [
        ("queued", 0.0, 0.0, None, 0.0, None, 2, 3.0, 6.0, 1.0, '{"T4":1.0}', '{"idle":"x"}', "[1]")
    ]


def test_a_spec_goes_without_the_values_of_its_environment() -> None:
    written = rows.dumps(spec(env={"A": "secret"}))
    assert connect._environment_of(written) == '{"A":"secret"}'
    assert connect._environment_of(rows.dumps(spec(env={}))) is None
    assert connect._environment_of(rows.dumps(spec())) is None
    for data in (written, rows.dumps({"spec": spec(env={"A": "secret"}), "first": 3})):
        masked = connect._without_environment(data)
        assert "secret" not in masked
        assert '"A"' in masked
        assert ('"first":3' in masked) is ('"first"' in data)


def test_steps_of_the_schema_are_cut_into_statements() -> None:
    assert connect._statements("SELECT 1;\nSELECT\n2;\n-- the end\n") == ["SELECT 1;\n", "SELECT\n2;\n"]
    with pytest.raises(ValueError, match="half a statement: 'SELECT 3'"):
        connect._statements("SELECT 2;\nSELECT 3\n")
    assert [step.number for step in connect.migrations()] == list(range(1, connect.schema_version() + 1))


# -- what is wrong with a file -------------------------------------------------------------------------------


def failed(name: str, text: str = "x") -> sqlite3.OperationalError:
    error = sqlite3.OperationalError(text)
    if name:
        error.sqlite_errorname = name
    return error


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets what the file system has left."""

    def left(free: int = 2**20, inodes: int = 9, *, blocks: int = 9, files: int = 9) -> None:
        found = SimpleNamespace(f_bavail=free, f_frsize=1, f_blocks=blocks, f_files=files, f_favail=inodes)
        monkeypatch.setattr(os, "statvfs", lambda path: found)

    left()
    return left


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (failed("SQLITE_FULL"), r"can't write: the disk is full; make room on the disk \(.* has 1\.0 MiB free\)"),
        (failed("", "database or disk is full"), "the disk is full"),
        (OSError(errno.ENOSPC, "x"), "the disk is full"),
        (OSError(errno.EDQUOT, "x"), "the disk is full"),
        (failed("SQLITE_READONLY_DBMOVED"), "read-only, or belongs to another user"),
        (OSError(errno.EROFS, "x"), "read-only"),
        (OSError(errno.EACCES, "x"), "read-only"),
        (OSError(errno.EPERM, "x"), "read-only"),
        (failed("SQLITE_AUTH"), "read-only"),
        (failed("SQLITE_NOTADB"), "this is not a gpuloom store"),
        (failed("SQLITE_CORRUPT_INDEX"), "the file is damaged.*gpuloom db restore"),
        (failed("SQLITE_CANTOPEN"), "there is no such file, and .* may not be written to by user"),
        (OSError(errno.ENOENT, "x"), "there is no such file"),
        (OSError(errno.EMFILE, "x"), "there is no such file"),
        (OSError(errno.EIO, "x"), r"the disk failed \(.*SQLITE_IOERR\)"),
        (failed("SQLITE_IOERR_READ"), "the disk failed.*SQLITE_IOERR_READ"),
        (sqlite3.IntegrityError("twice"), r"the database refused this \(twice\): this is a bug"),
        (failed("", "odd"), r"can't write: odd \(OperationalError\)"),
        (failed("SQLITE_MISUSE", "odd"), r"odd \(SQLITE_MISUSE\)"),
    ],
)
def test_errors_in_words(tmp_path: Path, room: Callable[..., None], error: Any, says: str) -> None:
    found = faults.store_error(error, tmp_path / "store.db", "write")
    with pytest.raises(StoreError, match=says):
        raise found
    assert not isinstance(found, StoreBusy)


@pytest.mark.parametrize("name", ["SQLITE_BUSY_SNAPSHOT", "SQLITE_LOCKED", ""])
def test_a_file_that_another_process_holds(tmp_path: Path, name: str) -> None:
    found = faults.store_error(failed(name, "database is locked"), tmp_path / "store.db", "read")
    assert isinstance(found, StoreBusy)
    assert "can't read: another process keeps it locked" in str(found)


@pytest.mark.parametrize(("free", "says"), [(64 * 1024, "the disk failed"), (64 * 1024 - 1, "the disk is full")])
def test_a_disk_that_fails_for_lack_of_room_is_full(
    tmp_path: Path, room: Callable[..., None], free: int, says: str
) -> None:
    room(free)
    assert says in str(faults.store_error(failed("SQLITE_IOERR_SHMSIZE"), tmp_path / "store.db", "write"))


@pytest.mark.parametrize(
    ("left", "says"),
    [
        ({}, ""),
        ({"free": 0}, "no space is left"),
        ({"inodes": 0}, "no inodes are left"),
        ({"free": 0, "blocks": 0}, ""),  # file systems that do not count them
        ({"inodes": 0, "files": 0}, ""),
    ],
)
def test_what_a_disk_has_run_out_of(tmp_path: Path, room: Callable[..., None], left: dict[str, int], says: str) -> None:
    room(**left)
    assert faults.no_room(tmp_path) == says
    full = str(faults.store_error(failed("SQLITE_FULL"), tmp_path / "store.db", "write"))
    assert ("no inodes are left" in full) is (says == "no inodes are left")
    unopened = str(faults.store_error(failed("SQLITE_CANTOPEN"), tmp_path / "store.db", "open"))
    assert unopened.endswith(f"{says} on the disk of {tmp_path}; make room there") is bool(says)


def test_where_nobody_knows_what_room_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(path: object) -> None:
        raise OSError

    monkeypatch.setattr(os, "statvfs", fails)
    assert faults.no_room(tmp_path) == ""
    assert "unknown space free" in str(faults.store_error(failed("SQLITE_FULL"), tmp_path / "store.db", "write"))
    assert "the disk failed" in str(faults.store_error(failed("SQLITE_IOERR"), tmp_path / "store.db", "write"))


def test_why_a_path_can_not_be_opened(tmp_path: Path) -> None:
    error = failed("SQLITE_CANTOPEN")
    (there := tmp_path / "there.db").touch()
    assert "this is a directory; name the file" in str(faults.store_error(OSError(1, "x"), tmp_path, "open"))
    assert "does not exist; create it" in str(faults.store_error(error, tmp_path / "no" / "store.db", "open"))
    assert "too many open files" in str(faults.store_error(error, there, "open"))


@pytest.mark.parametrize(("count", "others"), [(1, ": first; "), (2, ": first (and 1 more); ")])
def test_a_damaged_store_in_words(count: int, others: str) -> None:
    findings = (Finding("job", "first"), Finding("log", "second"))[:count]
    text = faults.damaged_text(Path("s.db"), CheckReport(1, 1, 1, 1, findings))
    assert text == f"s.db: the store is damaged{others}{faults.RESTORE}"


# -- the home directory --------------------------------------------------------------------------------------


def test_where_the_home_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/h")
    monkeypatch.setenv(home.HOME, "/of/env")
    assert home.home_of().path == Path("/of/env")
    assert home.home_of("~/x").path == Path("/h/x")
    assert home.home_of(tmp_path).path == tmp_path
    monkeypatch.setenv(home.HOME, "")
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    assert home.home_of().path == Path("/data/gpuloom")
    for passed_over in ("", "relative"):
        monkeypatch.setenv("XDG_DATA_HOME", passed_over)
        assert home.home_of().path == Path("/h/.local/share/gpuloom")
    monkeypatch.chdir(tmp_path)
    found = home.home_of("x")
    names = [found.db, found.token, found.server_json, found.lock, found.log, found.damaged, found.runs, found.live]
    assert [path.relative_to(tmp_path / "x").as_posix() for path in names] == [
        "store.db", "token", "server.json", "scheduler.lock", "scheduler.log", "store.damaged", "runs", "live",
    ]  # fmt: skip


def test_a_home_is_its_owner_s_alone(tmp_path: Path) -> None:
    (old := tmp_path / "old").mkdir(mode=0o755)
    for path in (old, tmp_path / "a" / "new"):
        found = home.home_of(path)
        assert found.create() is found
        assert path.stat().st_mode & 0o777 == 0o700
    (file := tmp_path / "file").touch()
    with pytest.raises(InputError, match="must be a directory"):
        home.home_of(file).create()
    with pytest.raises(InputError, match=r"can't be used as home directory \(.*\); set GPULOOM_HOME"):
        home.home_of(file / "x").create()


def test_a_home_has_one_holder(tmp_path: Path) -> None:
    found = home.home_of(tmp_path)
    found.lock.write_text("a long text of before")
    with home.take_lock(found) as lock:
        assert found.lock.read_text() == f"{os.getpid()}\n"
        with pytest.raises(StoreBusy, match=rf"a scheduler \(pid {os.getpid()}\) has this home open"):
            home.take_lock(found)
    lock.release()
    found.lock.unlink()
    home.take_lock(found).release()
    assert found.lock.stat().st_mode & 0o777 == 0o600
    with pytest.raises(StoreError, match=r"can't be opened \(No such file or directory\); make .* writable"):
        home.take_lock(home.home_of(tmp_path / "none"))


@pytest.mark.parametrize(("number", "name"), [(0, "store.db.replaced-s"), (1, "store.db.replaced-s-1")])
def test_the_name_under_which_a_store_stays(number: int, name: str) -> None:
    assert restore._kept_name(Path("/h/store.db"), "s", number) == Path("/h") / name


def test_runs_that_a_backup_does_not_know(tmp_path: Path) -> None:
    found = home.home_of(tmp_path)
    assert restore._strangers(found, set()) == ()
    found.live.mkdir()
    for name in ("3.1", "2.1", "1.1", "4.1.new"):
        (found.live / name).touch()
    assert restore._strangers(found, {"1.1"}) == ("2.1", "3.1")


def test_a_copy_is_on_disk_before_it_has_its_name_and_its_name_before_it_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []

    def sync(path: Path) -> None:
        synced.append(path.name)
        assert (tmp_path / "copy.db").exists() is (path == tmp_path)

    monkeypatch.setattr(backup, "sync", sync)
    with closing(sqlite3.connect(":memory:")) as source:
        backup.copy_database(source, tmp_path / "store.db", tmp_path / "copy.db", overwrite=False)
    assert len(synced) == 2
    assert synced[0].startswith(".copy.db.")
    assert synced[1] == tmp_path.name
    assert [path.name for path in tmp_path.iterdir()] == ["copy.db"]


def test_a_new_store_begins_with_job_1(tmp_path: Path) -> None:
    for name in ("a", "b"):
        with SqliteStore(tmp_path / name) as store:
            assert (store.load().next_job, store.load().last_event) == (1, 0)
    ids = []
    for name in ("a", "b"):
        with closing(sqlite3.connect(tmp_path / name)) as connection:
            meta = dict(connection.execute("SELECT key, value FROM meta"))
            ids.append(meta["store_id"])
            assert set(meta) >= {"store_id", "created_s", "next_job"}
    assert ids[0] != ids[1]


def test_each_step_from_the_first_schema_on_leaves_what_a_store_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its id, when it was made, and the number of its next job, written once."""
    steps = connect.migrations()
    found = []
    for count in range(1, len(steps) + 1):
        with monkeypatch.context() as context:
            context.setattr(connect, "migrations", lambda count=count: steps[:count])
            with closing(connect.open_writer(tmp_path / "store")) as connection:
                assert connect.version_of(connection) == count
                meta = dict(connection.execute("SELECT key, value FROM meta"))
                found.append([meta[key] for key in ("store_id", "created_s", "next_job")])
    assert len(found) > 1
    assert found == found[:1] * len(found)
