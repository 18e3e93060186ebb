"""What every store keeps to. A new one adds a factory to STORES.

A factory takes an empty folder and gives a store; for those that last, the same folder gives the same store again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpuloom.core.book import Book, Changes
from gpuloom.core.errors import InputError
from gpuloom.core.events import Event
from gpuloom.core.job import EndReason, Phase
from gpuloom.store.errors import StoreError
from gpuloom.store.memory import MemoryStore
from gpuloom.store.port import Completed, JobQuery, Runs, SampleRow, Store, Submission, Usage
from gpuloom.store.sqlite import SqliteStore
from store_builders import NODE, Writer, ended, same, starting, submitted

STORES: dict[str, Callable[[Path], Store]] = {
    "sqlite": lambda folder: SqliteStore(folder / "store.db"),
    "memory": lambda folder: MemoryStore(),
}
LASTING = [name for name in STORES if name != "memory"]


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    made = STORES[request.param](tmp_path)
    yield made
    made.close()


@pytest.fixture
def writer(store: Store) -> Writer:
    return Writer(store)


def numbers(store: Store, **query: object) -> list[int]:
    return [job.id for job in store.jobs(JobQuery(**query))]  # type: ignore[arg-type]


class TestWriting:
    def test_an_empty_store_has_nothing(self, store: Store) -> None:
        loaded = store.load()
        same(loaded, Book())
        assert (loaded.last_event, loaded.last_event_s, loaded.memory) == (0, 0.0, None)
        assert store.events() == []
        assert store.check().findings == ()
        assert store.check().schema_version == store.schema_version > 0

    def test_everything_comes_back_as_it_was(self, writer: Writer, store: Store) -> None:
        writer.write(("node.changed", None, {"node": NODE}), ("policy.set", None, {"policy": "srtf", "interval_s": 6}))
        array = writer.submit(name="x\udcff", indices=[4, 2, 9], count=3, after=[[1, "any"]], env={"ö": "\0"})
        plain = writer.submit(user="größe", held=True)
        writer.start(array, allocation=(("a", (0, 1)), ("b", (2,))))
        writer.write(("job.flagged", array, {"flag": "idle", "text": "for 600 s"}))
        writer.write(("attempt.stopping", array, {"reason": "preempted", "deadline_s": 1234.5}))
        loaded = store.load()
        same(loaded, writer.book)
        assert loaded.last_event == writer.last
        assert loaded.last_event_s == writer.now
        assert store.job(array) == writer.book.jobs[array]
        assert store.job(array + 2).name == "x\udcff[9]"  # type: ignore[union-attr]
        assert store.job(plain).phase is Phase.HELD  # type: ignore[union-attr]
        assert store.job(99) is None
        assert list(store.events()) == writer.events

    def test_ended_jobs_are_loaded_the_newest_alone(self, writer: Writer, store: Store) -> None:
        jobs = [writer.submit() for _ in range(5)]
        for job in (jobs[3], jobs[0], jobs[4]):
            writer.write(("job.cancelled", job, {}))
        assert [job.id for job in store.load(recent=2).jobs] == [jobs[0], jobs[1], jobs[2], jobs[4]]
        assert [job.id for job in store.load(recent=0).jobs] == [jobs[1], jobs[2]]
        assert len(store.load().jobs) == 5

    def test_ended_attempts_are_kept_and_not_loaded(self, writer: Writer, store: Store) -> None:
        job = writer.submit()
        writer.start(job)
        writer.end(job, reason="preempted", after="queued")
        writer.start(job)
        first, second = store.attempts([job])
        assert (first.run, first.phase, first.reason) == (f"{job}.1", None, EndReason.PREEMPTED)
        assert [attempt.run for attempt in store.load().attempts] == [f"{job}.2"] == [second.run]

    def test_an_append_is_all_or_nothing(self, writer: Writer, store: Store) -> None:
        writer.write(("jobs.submitted", None, submitted(1)), submissions=[Submission("key", "d", (1,), 5.0)])
        before = store.load()
        event = Event(2, 2000.0, "jobs.submitted", None, submitted(2))
        changes = writer.book.stage([event])
        with pytest.raises(StoreError):  # the key is taken, which comes to light last
            store.append([event], changes, [Submission("key", "other", (2,), 6.0)])
        assert store.load() == before
        assert len(store.events()) == 1
        store.append([event], changes, [Submission("another", "other", (2,), 6.0)])
        assert store.submission("another") == Submission("another", "other", (2,), 6.0)
        assert store.submission("key") == Submission("key", "d", (1,), 5.0)
        assert store.submission("none") is None
        assert store.check().findings == ()

    @pytest.mark.parametrize("number", [1, 3])
    def test_the_log_has_no_gaps(self, writer: Writer, store: Store, number: int) -> None:
        writer.submit()
        with pytest.raises(StoreError, match=f"event {number} can't follow event 1"):
            store.append([Event(number, 2000.0, "scheduler.started")], Changes())
        assert len(store.events()) == 1
        writer.submit()

    @pytest.mark.parametrize("value", [float("nan"), {1, 2}])
    def test_what_is_no_json_is_refused_whole(self, writer: Writer, store: Store, value: object) -> None:
        writer.submit()
        events = [Event(2, 1.0, "scheduler.started"), Event(3, 1.0, "scheduler.started", None, {"x": value})]
        with pytest.raises((TypeError, ValueError)):
            store.append(events, Changes())
        assert len(store.events()) == 1
        writer.submit()

    def test_nothing_given_nothing_written(self, store: Store) -> None:
        store.append([], Changes())
        assert store.events() == []

    def test_what_was_handed_in_may_be_changed_later(self, store: Store) -> None:
        data = submitted(1, env={"A": "1"})
        events = [Event(1, 1.0, "jobs.submitted", None, data)]
        store.append(events, Book().stage(events))
        data["spec"]["env"]["A"] = "2"
        assert store.job(1).spec.env == {"A": "1"}  # type: ignore[union-attr]
        assert store.events()[0].data["spec"]["env"] == {"A": "1"}

    def test_the_policys_memory_is_replaced(self, store: Store) -> None:
        store.save_memory("rl", b"\0one")
        store.save_memory("tiresias", b"two")
        assert store.load().memory == ("tiresias", b"two")

    def test_after_close_every_call_is_refused(self, store: Store) -> None:
        store.close()
        store.close()
        for call in (store.load, store.counts, store.check, lambda: store.save_memory("x", b"")):
            with pytest.raises(StoreError, match="closed"):
                call()


@pytest.mark.parametrize("name", LASTING)
def test_a_store_opened_again_is_the_same(name: str, tmp_path: Path) -> None:
    store = STORES[name](tmp_path)
    writer = Writer(store)
    job = writer.submit()
    writer.start(job)
    store.save_memory("rl", b"table")
    loaded = store.load()
    store.close()
    again = STORES[name](tmp_path)
    assert again.load() == loaded
    writer.store = again
    writer.end(job)
    same(again.load(), writer.book)
    assert again.check().findings == ()
    again.close()


class TestJobs:
    @pytest.fixture(autouse=True)
    def _some(self, writer: Writer) -> None:
        writer.submit(name="train", user="ada")  # 1, at 1001
        writer.submit(name="train[0]", user="bob")  # 2: looks like an array's
        writer.submit(name="eval", user="ada", indices=[0, 1, 2], count=3)  # 3, 4, 5, at 1003
        writer.submit(name="trainer", user="bob", held=True)  # 6, at 1004
        writer.write(("job.cancelled", 4, {}))

    @pytest.mark.parametrize(
        ("query", "expected"),
        [
            ({}, [6, 5, 4, 3, 2, 1]),
            ({"oldest_first": True}, [1, 2, 3, 4, 5, 6]),
            ({"limit": 2}, [6, 5]),
            ({"limit": 0}, []),
            ({"limit": 2, "before": 5}, [4, 3]),
            ({"limit": 2, "after": 2, "oldest_first": True}, [3, 4]),
            ({"limit": 2, "after": 2}, [6, 5]),
            ({"phases": ("queued",)}, [5, 3, 2, 1]),
            ({"phases": ("held", "cancelled")}, [6, 4]),
            ({"phases": ("running",)}, []),
            ({"users": ("ada",)}, [5, 4, 3, 1]),
            ({"users": ("ada", "bob"), "names": ("train",)}, [1]),
            ({"users": ("a*",)}, []),
            ({"names": ("train",)}, [1]),
            ({"names": ("train*",)}, [6, 2, 1]),
            ({"names": ("train[*",)}, [2]),
            ({"names": ("train[0]",)}, [2]),
            ({"names": ("?val[?]", "trainer")}, [6, 5, 4, 3]),
            ({"names": ("eval",)}, [5, 4, 3]),
            ({"names": ("eval[1]", "eva?")}, [5, 4, 3]),
            ({"names": ("eval[1]",)}, [4]),
            ({"names": ("eva",)}, []),
            ({"names": ("TRAIN",)}, []),
            ({"names": ("' OR 1=1 --",)}, []),
            ({"ids": (2, 5, 77, 2**70, -1)}, [5, 2]),
            ({"array_id": 3}, [5, 4, 3]),
            ({"array_id": 3, "phases": ("queued",)}, [5, 3]),
            ({"submitted_from_s": 1003.0}, [6, 5, 4, 3]),
            ({"submitted_until_s": 1003.0}, [2, 1]),
            ({"before": 2**80}, [6, 5, 4, 3, 2, 1]),
        ],
    )
    def test_queries(self, store: Store, query: dict[str, object], expected: list[int]) -> None:
        assert numbers(store, **query) == expected

    def test_counts_name_every_phase(self, store: Store) -> None:
        expected = dict.fromkeys((phase.value for phase in Phase), 0) | {"held": 1, "queued": 4, "cancelled": 1}
        assert store.counts() == expected

    def test_many_numbers_at_once(self, store: Store) -> None:
        assert numbers(store, ids=tuple(range(100_000))) == [6, 5, 4, 3, 2, 1]
        assert store.attempts(range(100_000)) == []


class TestEvents:
    def test_by_number_job_and_type(self, writer: Writer, store: Store) -> None:
        one, two = writer.submit(), writer.submit()
        writer.start(two)
        writer.write(("job.held", one, {}))

        def ids(**given: object) -> list[int]:
            return [event.id for event in store.events(**given)]  # type: ignore[arg-type]

        assert ids() == [1, 2, 3, 4, 5]
        assert ids(after=3) == [4, 5]
        assert ids(after=5) == []
        assert ids(limit=2) == [1, 2]
        assert ids(limit=2, newest=True) == [4, 5]
        assert ids(after=4, limit=2, newest=True) == [5]
        assert ids(limit=0, newest=True) == []
        assert ids(job=two) == [2, 3, 4]
        assert ids(types=("jobs.submitted", "job.held")) == [1, 2, 5]
        assert ids(types=("jobs.submitted", "job.held"), limit=2, newest=True) == [2, 5]
        assert ids(job=one, types=("attempt.running",)) == []

    def test_an_array_is_submitted_by_an_event_of_all_its_jobs(self, writer: Writer, store: Store) -> None:
        writer.write(("jobs.submitted", 1, submitted(1, count=3, indices=[0, 1, 2])))
        writer.write(("jobs.submitted", 4, submitted(4)))
        writer.write(("job.held", 3, {}))
        assert [event.type for event in store.events(job=3)] == ["jobs.submitted", "job.held"]
        assert [event.job for event in store.events(job=2)] == [1]
        assert [event.job for event in store.events(job=4)] == [4]


class TestEndedRuns:
    def test_of_a_user_and_name(self, writer: Writer, store: Store) -> None:
        for work_s, given in (
            (1.0, {"name": "a"}),
            (2.0, {"name": "b", "gpus": 2}),
            (3.0, {"name": "a", "user": "bob"}),
            (4.0, {"name": "a", "indices": [7]}),
            (5.0, {"name": "a"}),
        ):
            job = writer.submit(**given)
            writer.start(job)
            writer.end(job, work_s=work_s)
        job = writer.submit(name="a")
        writer.start(job)
        writer.end(job, reason="failed", after="failed", work_s=99.0)

        def runs(name: str, limit: int) -> list[tuple[int, float, int | None]]:
            return [(run.gpus, run.work_s, run.array_id) for run in store.ended_runs("ada", name, limit)]

        assert runs("a", 10) == [(1, 1.0, None), (1, 4.0, 4), (1, 5.0, None)]
        assert runs("a", 2) == [(1, 4.0, 4), (1, 5.0, None)]
        assert runs("", 3) == [(2, 2.0, None), (1, 4.0, 4), (1, 5.0, None)]
        assert [run.spec.name for run in store.ended_runs("ada", "", 2)] == ["a", "a"]
        assert list(store.ended_runs("ada", "", 0)) == []
        assert list(store.ended_runs("cy", "", 3)) == []

    def test_gpu_memory_is_measured_without_a_speed(self, writer: Writer, store: Store) -> None:
        job = writer.submit(name="m")
        writer.start(job, gpu_model="V100")
        writer.end(job, it_per_s=None, gpu_memory_mib=2048.5)
        (run,) = store.measured_runs("ada", "m", 9)
        assert (run.gpu_model, run.it_per_s, run.gpu_memory_mib) == ("V100", 0.0, 2048.5)
        assert store.attempts([job])[0].gpu_memory_mib == 2048.5

    def test_by_gpu_model(self, writer: Writer, store: Store) -> None:
        job = writer.submit(name="a", gpus=2)
        writer.start(job, gpu_model="K80")
        writer.end(job, reason="preempted", after="queued", work_s=4.0, it_per_s=2.0)
        writer.start(job)
        writer.end(job, reason="preempted", after="queued", work_s=5.0, it_per_s=None)
        assert (store.ended_runs("ada", "a", 9), store.measured_runs("ada", "a", 9)) == ([], [])
        writer.start(job, gpu_model="V100")
        writer.end(job, work_s=15.0, it_per_s=9.0)
        (run,) = store.ended_runs("ada", "a", 9)
        assert (run.work_s, run.work_on) == (15.0, {"K80": 4.0, "V100": 10.0})
        measured = store.measured_runs("ada", "a", 9)
        assert [(one.gpus, one.gpu_model, one.it_per_s) for one in measured] == [(2, "K80", 2.0), (2, "V100", 9.0)]
        assert [one.on_gpus for one in measured] == [0, 0]  # as many as it asked for: it is not elastic
        assert measured[0].spec.name == "a"
        assert [one.it_per_s for one in store.measured_runs("ada", "a", 1)] == [9.0]
        assert list(store.measured_runs("bob", "a", 9)) == list(store.measured_runs("ada", "b", 9)) == []

    def test_work_that_is_lost_is_on_no_model(self, writer: Writer, store: Store) -> None:
        job = writer.submit(name="a")
        writer.start(job, gpu_model="K80")
        writer.end(job, reason="preempted", after="queued", work_s=4.0)
        writer.start(job, gpu_model="V100")
        writer.end(job, reason="requeued", after="queued", work_s=0.0)
        writer.start(job, gpu_model="V100")
        writer.end(job, reason="failed", after="failed", work_s=1.0)
        assert (found := store.job(job)) is not None
        assert found.work_on == {"V100": 1.0}
        writer.write(("job.requeued", job, {}))
        assert (again := store.job(job)) is not None
        assert again.work_on == {}


def used(key: str, jobs: int, attempts: int, held_s: float, gpu_s: float, failed: int, **on: float) -> Usage:
    return Usage(key, jobs, attempts, held_s, gpu_s, failed, on or {"": gpu_s})


def lay(usage: Usage, times: int, suspended_s: float, mib: float = 0.0) -> Usage:
    """The same of one that lay suspended."""
    return replace(usage, suspensions=times, suspended_s=suspended_s, suspended_mib=mib)


class TestUsage:
    DAY = 86_400.0

    def usage(self, store: Store, by: str, since_s: float = 0.0, until_s: float = 1e6) -> list[Usage]:
        return list(store.usage(since_s=since_s, until_s=until_s, by=by))

    def test_gpu_time_by_model(self, writer: Writer, store: Store) -> None:
        job = writer.submit(user="ada", gpus=2)
        for model, at in (("K80", 0.0), ("V100", 100.0), ("K80", 200.0)):
            writer.start(job, at=at, gpu_model=model, allocation=(("a", (0, 1)),))
            writer.end(job, at=at + 10.0, reason="preempted", after="queued", work_s=1.0)
        assert self.usage(store, "user") == [used("ada", 1, 3, 30.0, 60.0, 0, K80=40.0, V100=20.0)]
        assert self.usage(store, "user", 95.0, 205.0) == [used("ada", 1, 2, 15.0, 30.0, 0, V100=20.0, K80=10.0)]

    def test_a_run_by_all_four(self, writer: Writer, store: Store) -> None:
        job = writer.submit(user="ada", name="big", gpus=3)
        writer.start(job, at=self.DAY - 100.0, allocation=(("a", (0, 1)), ("b", (0,))))
        writer.end(job, at=self.DAY + 200.0, reason="failed", after="failed")
        assert self.usage(store, "user") == [used("ada", 1, 1, 300.0, 900.0, 1)]
        assert self.usage(store, "name") == [used("big", 1, 1, 300.0, 900.0, 1)]
        assert self.usage(store, "node") == [used("a", 1, 1, 300.0, 600.0, 1), used("b", 1, 1, 300.0, 300.0, 1)]
        assert self.usage(store, "day") == [
            used("1970-01-01", 1, 1, 100.0, 300.0, 0),
            used("1970-01-02", 1, 1, 200.0, 600.0, 1),
        ]

    def test_what_lies_in_the_span_counts(self, writer: Writer, store: Store) -> None:
        job = writer.submit()
        writer.start(job, at=2000.0)
        writer.end(job, at=2100.0)
        assert self.usage(store, "user", 2050.0, 2060.0) == [used("ada", 1, 1, 10.0, 10.0, 0)]
        assert self.usage(store, "user", 2100.0, 3000.0) == []
        assert self.usage(store, "user", 1000.0, 2000.0) == []

    def test_runs_under_way_count_up_to_the_end_of_the_span(self, writer: Writer, store: Store) -> None:
        writer.start(writer.submit(indices=[0, 1], count=2), at=2000.0)
        writer.start(2, at=2010.0)
        assert self.usage(store, "name", until_s=2050.0) == [used("train", 2, 2, 90.0, 90.0, 0)]

    def test_frozen_time_is_not_held(self, writer: Writer, store: Store) -> None:
        job = writer.submit(gpus=2)
        writer.start(job, at=2000.0, allocation=(("a", (0, 1)),))
        writer.write(("attempt.frozen", job, {}), at=2010.0)
        assert self.usage(store, "user", until_s=2100.0) == [lay(used("ada", 1, 1, 10.0, 20.0, 0), 1, 90.0)]
        writer.write(("attempt.thawed", job, {"allocation": [["b", [2, 3]]]}), at=2500.0)
        assert self.usage(store, "user", until_s=2503.0) == [lay(used("ada", 1, 1, 13.0, 26.0, 0), 1, 490.0)]
        writer.write(("attempt.frozen", job, {"suspended_mib": 64.0, "moved_s": 1.0}), at=2505.0)
        writer.write(("attempt.stopping", job, {"reason": "cancelled", "deadline_s": None}), at=2600.0)
        writer.end(job, at=2601.0, reason="cancelled", after="cancelled")
        assert self.usage(store, "node") == [
            lay(used("a", 1, 1, 10.0, 20.0, 0), 1, 490.0),
            lay(used("b", 1, 1, 6.0, 12.0, 0), 1, 95.0, 64.0),
        ]
        assert self.usage(store, "user", 2005.0, 2502.0) == [lay(used("ada", 1, 1, 7.0, 14.0, 0), 1, 490.0)]
        # What the records say in all is what the stretches add up to.
        assert store.job(job).held_s == 16.0  # type: ignore[union-attr]
        assert store.job(job).held_gpu_s == 32.0  # type: ignore[union-attr]

    def test_an_end_that_was_written_down_later_counts_when_it_came(self, writer: Writer, store: Store) -> None:
        job = writer.submit()
        writer.start(job, at=2000.0)
        writer.end(job, at=5000.0, reason="preempted", after="queued", ended_s=2010.0)
        writer.start(job, at=6000.0)
        writer.write(("attempt.frozen", job, {}), at=6010.0)
        writer.write(("attempt.thawed", job, {"allocation": [["host", [0]]]}), at=6020.0)
        writer.end(job, at=9000.0, ended_s=6021.0)
        assert self.usage(store, "user") == [lay(used("ada", 1, 2, 21.0, 21.0, 0), 1, 10.0)]
        assert store.job(job).held_s == 21.0  # type: ignore[union-attr]

    def test_a_run_that_took_no_time_is_a_run(self, writer: Writer, store: Store) -> None:
        job = writer.submit()
        writer.write(("attempt.starting", job, starting()), at=2000.0)
        writer.end(job, at=2000.0, reason="not_started", after="failed")
        assert self.usage(store, "user") == [used("ada", 1, 1, 0.0, 0.0, 1)]

    def test_several_attempts_of_a_job(self, writer: Writer, store: Store) -> None:
        job = writer.submit()
        for at in (2000.0, 3000.0):
            writer.start(job, at=at)
            writer.end(job, at=at + 10.0, reason="preempted", after="queued")
        writer.start(writer.submit(user="bob"), at=4000.0)
        assert self.usage(store, "user", until_s=4050.0) == [
            used("bob", 1, 1, 50.0, 50.0, 0),
            used("ada", 1, 2, 20.0, 20.0, 0),
        ]

    def test_by_what_else_is_refused(self, store: Store) -> None:
        with pytest.raises(InputError, match="one of user, name, day, node"):
            store.usage(since_s=0.0, until_s=1.0, by="moon")


class TestHistory:
    def test_jobs_of_a_span_with_their_attempts(self, writer: Writer, store: Store) -> None:
        jobs = [writer.submit() for _ in range(4)]  # at 1001 to 1004
        writer.start(jobs[1])
        writer.end(jobs[1], reason="preempted", after="queued")
        writer.start(jobs[1])
        found = list(store.history(since_s=1002.0, until_s=1004.0))
        assert [job.id for job, _ in found] == [jobs[1], jobs[2]]
        assert [attempt.run for attempt in found[0][1]] == ["2.1", "2.2"]
        assert found[1][1] == ()

    def test_more_than_a_page_while_others_write(self, writer: Writer, store: Store) -> None:
        writer.submit(count=1300, indices=list(range(1300)))
        seen = []
        for job, _ in store.history(since_s=0.0, until_s=1500.0):
            if job.id % 400 == 0:
                writer.submit()
            seen.append(job.id)
        assert seen[:1300] == list(range(1, 1301))


class TestCare:
    def test_a_backup_can_be_opened_and_is_not_overwritten(self, writer: Writer, store: Store, tmp_path: Path) -> None:
        writer.start(writer.submit())
        store.save_memory("rl", b"x")
        loaded, copy = store.load(), tmp_path / "copy.db"
        store.backup(copy)
        writer.submit()
        with SqliteStore(copy, read_only=True) as opened:
            assert opened.load() == loaded
            assert opened.check().findings == ()
        assert copy.stat().st_mode & 0o777 == 0o600
        written = copy.read_bytes()
        with pytest.raises(InputError, match="already"):
            store.backup(copy)
        assert copy.read_bytes() == written
        assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(("copy", ".copy"))) == [
            "copy.db"
        ]

    def test_check_counts_what_it_saw(self, writer: Writer, store: Store) -> None:
        writer.start(writer.submit(count=3, indices=[0, 1, 2]))
        report = store.check()
        assert (report.events, report.jobs, report.attempts, report.findings) == (3, 3, 1, ())

    def test_check_finds_records_that_the_log_does_not_tell(self, writer: Writer, store: Store) -> None:
        job = writer.submit()
        event = Event(2, 2000.0, "job.held", job)
        changes = writer.book.stage([event])
        writer.book.commit(changes)
        store.append([Event(2, 2000.0, "scheduler.started")], changes)
        details = " ".join(finding.detail for finding in store.check().findings)
        assert f"job {job}: phase is 'held' in the table, 'queued' by the log" in details

    def test_check_finds_times_that_go_back(self, writer: Writer, store: Store) -> None:
        job = writer.submit()
        writer.write(("job.held", job, {}), at=writer.now - 5.0)
        (finding,) = store.check().findings
        assert "event 2 is at 996.000, before the previous one (1001.000)" in finding.detail

    def test_check_finds_a_log_that_can_not_be_told(self, store: Store) -> None:
        events = [Event(1, 1.0, "jobs.submitted", None, submitted(1))]
        store.append(events, Book().stage(events))
        store.append([Event(2, 2.0, "attempt.ended", 1, ended())], Changes())
        (finding,) = store.check().findings
        assert "event 2 (attempt.ended) can't be replayed" in finding.detail
        assert "job 1 (train, queued)" in finding.detail


def test_readers_in_other_threads_see_whole_appends(writer: Writer, store: Store) -> None:
    """Every append submits a job and holds it: no reader may see it queued."""
    done, wrong = threading.Event(), list[object]()

    def read() -> None:
        try:
            while not done.is_set():
                loaded = store.load()
                if loaded.last_event != 2 * len(loaded.jobs) or {job.phase for job in loaded.jobs} - {Phase.HELD}:
                    wrong.append(loaded)
                store.counts()
        except Exception as error:
            wrong.append(error)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for job in range(1, 41):
        writer.write(("jobs.submitted", None, submitted(job)), ("job.held", job, {}))
    done.set()
    for reader in readers:
        reader.join()
    assert wrong == []
    same(store.load(), writer.book)


class TestFigures:
    """Samples, and what `stats` asks for."""

    def row(self, width_s: int, from_s: float, **data: object) -> SampleRow:
        return SampleRow(width_s, from_s, float(width_s), data)

    def test_samples_come_back_by_kind_and_time(self, store: Store) -> None:
        fine = [self.row(10, 20.0, of={"grö\udcff": [1, 2.5]}), self.row(10, 30.0)]
        store.put_samples([*fine[::-1], self.row(60, 0.0)], {})
        assert store.samples(since_s=0.0, until_s=100.0) == [*fine, self.row(60, 0.0)]
        assert store.samples(since_s=20.0, until_s=30.0) == [fine[0]]

    def test_a_sample_takes_the_place_of_one_of_its_kind_and_time(self, store: Store) -> None:
        store.put_samples([self.row(10, 20.0, a=1), self.row(60, 20.0, a=3)], {})
        store.put_samples([self.row(10, 20.0, a=2)], {})
        assert [row.data["a"] for row in store.samples(since_s=0.0, until_s=100.0)] == [2, 3]

    def test_old_ones_are_dropped_by_kind(self, store: Store) -> None:
        store.put_samples([self.row(width, at) for width in (10, 60) for at in (0.0, 60.0, 120.0)], {})
        store.put_samples([self.row(10, 180.0)], {10: 100.0, 60: 60.0})
        found = [(row.width_s, row.from_s) for row in store.samples(since_s=0.0, until_s=1e9)]
        assert found == [(10, 120.0), (10, 180.0), (60, 60.0), (60, 120.0)]

    def test_samples_are_no_events_and_are_no_finding(self, writer: Writer, store: Store) -> None:
        writer.submit()
        store.put_samples([self.row(10, 0.0)], {})
        assert store.load().last_event == writer.last
        assert store.check().findings == ()

    def test_jobs_that_ran_and_ended_in_a_span(self, writer: Writer, store: Store) -> None:
        first, second, third = writer.submit(user="ann"), writer.submit(user="größe"), writer.submit()
        writer.start(first, at=2000.0)
        writer.start(second, at=2000.0)
        writer.end(second, at=2050.0, reason="failed", after="failed")
        writer.end(first, at=2100.0)
        writer.write(("job.cancelled", third, {}))  # never ran
        ended_2 = Completed(Phase.FAILED, writer.book.jobs[second].submitted_s, 2050.0)
        ended_1 = Completed(Phase.FINISHED, writer.book.jobs[first].submitted_s, 2100.0)
        assert store.completed(since_s=0.0, until_s=1e6, user=None) == [ended_2, ended_1]
        assert store.completed(since_s=2050.0, until_s=2100.0, user=None) == [ended_2]
        assert store.completed(since_s=0.0, until_s=1e6, user="größe") == [ended_2]
        assert store.completed(since_s=0.0, until_s=1e6, user="ada") == []

    def test_attempts_by_end_and_starts_of_jobs_that_had_run(self, writer: Writer, store: Store) -> None:
        job, other = writer.submit(user="ann"), writer.submit(user="bob")
        for at in (2000.0, 2100.0, 2200.0):
            writer.start(job, at=at)
            if at < 2200.0:
                writer.end(job, at=at + 50.0, reason="preempted", after="queued")
        writer.start(other, at=2300.0)
        writer.end(other, at=2350.0)
        assert store.run_counts(since_s=0.0, until_s=1e6, user=None) == Runs(2, {"finished": 1, "preempted": 2})
        assert store.run_counts(since_s=0.0, until_s=1e6, user="bob") == Runs(0, {"finished": 1})
        assert store.run_counts(since_s=2100.0, until_s=2200.0, user="ann") == Runs(1, {"preempted": 1})
        assert store.run_counts(since_s=2060.0, until_s=2100.0, user="ann") == Runs(0, {})
