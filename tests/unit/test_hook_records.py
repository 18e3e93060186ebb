"""Records of hooks as they are written and as gpuloom reads them; what is torn or foreign is refused."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any

import pytest

from gpuloom.core.measured import Load, progress_by
from gpuloom.core.progress import it_per_s
from gpuloom.executors.local_files import LocalFiles, run_directory
from gpuloom.files import hook_records
from gpuloom.files.hook_records import Hooked, Sight, hooked, read_record, training_of
from gpuloom.fleet.codec import of_plain, plain
from hooks_kit import Clock, anew, records, stages

MS = 1_000_000


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Clock:
    return anew(monkeypatch, str(tmp_path))


def train(clock: Clock, iterations: int, *, load: int = 4, compute: int = 5, rest: int = 1) -> None:
    """Iterations of load + compute + rest ms."""
    records.begin("pytorch")
    for _ in range(iterations):
        line = stages.thread(steps=True)
        clock.now += rest * MS
        line.data_begins()
        clock.now += load * MS
        line.fetched(3 * MS, (load - 3) * MS)
        line.data_ends(True)
        records.facts.batches += 1
        clock.now += compute * MS
        line.iteration()


def test_both_sides_have_one_layout() -> None:
    for name in ("MAGIC", "VERSION", "TRAINER", "LOADER", "STATE_AT", "RING_AT", "DEVICE_CLOCK", "SYNCED"):
        assert getattr(records, name) == getattr(hook_records, name), name
    for name in ("OTHER_THREAD", "NO_QUEUE", "DATA_INSIDE"):
        assert getattr(records, name) == getattr(hook_records, name), name
    for name in ("HEADER", "STATE", "LOAD", "ROW"):
        assert getattr(records, name).format == getattr(hook_records, name).format, name
    assert records.HEADER.size <= records.STATE_AT
    assert records.STATE_AT + records.STATE.size + records.CRC.size <= records.RING_AT
    assert records.ROWS <= hook_records.MOST_ROWS


def test_what_is_written_is_read(clock: Clock, tmp_path: Path) -> None:
    records.facts.batch_size, records.facts.total_steps, records.facts.first_step = 32, 100, 10
    records.facts.memory_bytes = (5 << 20) + 1
    train(clock, 20)
    found = hooked(str(tmp_path))
    assert (found.sight, found.refused) == (Sight.PROFILE, ())
    training, measured = found.training, found.measured
    assert training is not None
    assert measured is not None
    assert (training.framework, training.iterations, training.batches) == ("pytorch", 20, 20)
    assert (measured.batch_size, measured.memory_mib, measured.batches) == (32, 6, 1.0)
    assert measured.iteration_s == pytest.approx(0.010)
    assert measured.stages_s == pytest.approx((0.003, 0.001, 0.005, 0.0))
    assert measured.rest_s == pytest.approx(0.001)
    told = progress_by(training)
    assert (told["step"], told["steps"], told["fraction"]) == (30, 100, 0.3)
    assert of_plain(Hooked, plain(found)) == found


def test_the_ring_keeps_the_last_iterations(clock: Clock, tmp_path: Path) -> None:
    train(clock, 300, compute=50)
    train(clock, records.ROWS, compute=5)
    found = hooked(str(tmp_path))
    assert found.training is not None
    assert found.measured is not None
    assert found.training.iterations == 300 + records.ROWS
    assert found.measured.iteration_s == pytest.approx(0.010)


def test_without_iterations_it_says_what_was_seen(clock: Clock, tmp_path: Path) -> None:
    assert hooked(str(tmp_path / "none")).sight is Sight.NONE
    assert hooked(str(tmp_path)).sight is Sight.NONE
    (tmp_path / "seen").touch()
    (tmp_path / "hooks.log").write_text("one\ntwo\n")
    found = hooked(str(tmp_path))
    assert (found.sight, found.log) == (Sight.PYTHON, ("one", "two"))
    train(clock, 1)
    found = hooked(str(tmp_path))
    assert (found.sight, found.measured) == (Sight.ITERATIONS, None)


def test_a_row_that_is_being_written_is_left_out_and_a_state_is_refused(clock: Clock, tmp_path: Path) -> None:
    train(clock, 20)
    (path,) = tmp_path.glob("*.train")
    data = bytearray(path.read_bytes())
    data[records.RING_AT + 8] ^= 1
    path.write_bytes(bytes(data))
    _, _, _, read, began_s = read_record(str(path))
    assert len(training_of(read, began_s).rows) == 18
    data[records.STATE_AT] ^= 1
    path.write_bytes(bytes(data))
    assert hooked(str(tmp_path)).refused == (f"{path.name}: half written",)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda data: b"", "not a record of gpuloom's hooks"),
        (lambda data: b"something else" * 100, "not a record of gpuloom's hooks"),
        (lambda data: data[:8] + struct.pack("<H", 9) + data[10:], "a record of version 9; this gpuloom reads version"),
        (lambda data: data[:-1], "its header makes no sense"),
        (lambda data: data[:10] + struct.pack("<H", 7) + data[12:], "its header makes no sense"),
        (lambda data: data[:20] + struct.pack("<I", 1 << 31) + data[24:], "its header makes no sense"),
        (lambda data: data + b"0" * (1 << 20), "bytes, a record has at most"),
    ],
)
def test_what_is_no_record_is_refused(change: Any, why: str, clock: Clock, tmp_path: Path) -> None:
    train(clock, 5)
    (path,) = tmp_path.glob("*.train")
    path.write_bytes(change(path.read_bytes()))
    found = hooked(str(tmp_path))
    assert found.training is None
    assert why in found.refused[0]


def test_a_pipe_in_place_of_a_record_blocks_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "1-a.train")
    os.mkfifo(tmp_path / "hooks.log")
    (tmp_path / "2-b.train").symlink_to(tmp_path / "gone")
    found = hooked(str(tmp_path))
    assert found.refused == ("1-a.train: no plain file",)
    assert found.log == ()


def test_workers_add_up_and_one_in_the_place_of_another_goes_on(clock: Clock, tmp_path: Path) -> None:
    records.facts.workers = 2
    train(clock, 20)
    first, second = records.Load(), records.Load()
    first.add(30 * MS, 10 * MS, 0)
    second.add(20 * MS, 0, 5 * MS)
    os.close(first.file.fd)
    again = records.Load()
    again.add(10 * MS, 0, 0)
    assert len(list(tmp_path.glob("*.load"))) == 2
    # Workers say whose they are by their parent's pid: here it is that of the test's own process.
    for path in tmp_path.glob("*.load"):
        data = bytearray(path.read_bytes())
        data[16:20] = struct.pack("<I", os.getpid())
        path.write_bytes(bytes(data))
    found = hooked(str(tmp_path))
    assert found.measured is not None
    assert found.measured.prefetches
    assert found.measured.stages_s[0] == pytest.approx(0.003 + 0.060 / 3 / 2)
    assert hook_records._together([Load(1, 1.0, 2.0), Load(2, 3.0, 4.0)]) == Load(3, 4.0, 6.0)


@pytest.mark.parametrize("links", [True, False])
def test_workers_that_begin_at_the_same_moment_have_a_file_each(
    links: bool, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*_: str) -> None:
        raise PermissionError("no second names here")

    with monkeypatch.context() as patched:
        if not links:
            patched.setattr(os, "link", none)
        first = records.Load()
        if links:  # the other one looked before this one had made its file
            patched.setattr(os.path, "exists", lambda path: False)
        second = records.Load()
    first.add(30 * MS, 10 * MS, 0)
    second.add(20 * MS, 0, 5 * MS)
    there = sorted(path.name for path in tmp_path.iterdir())
    assert there == [f"{os.getppid()}-{place}.load" for place in range(2)]
    assert sum(os.fstat(one.file.fd).st_nlink for one in (first, second)) == 2


def test_a_descriptor_that_the_job_closed_is_not_written_to(clock: Clock, tmp_path: Path) -> None:
    train(clock, 3)
    fd = records._file.fd
    os.close(fd)
    other = os.open(tmp_path / "of the job", os.O_RDWR | os.O_CREAT)
    assert other == fd
    train(clock, 1)
    os.close(other)
    assert (tmp_path / "of the job").read_bytes() == b""
    assert "records: switched off: OSError: the job has closed" in (tmp_path / "hooks.log").read_text()
    assert stages.sinks == []


def test_of_several_processes_the_lowest_rank_counts(
    clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank, iterations in ((3, 9), (1, 7), (2, 8)):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "4")
        records._forked()
        stages._begin_anew()
        train(clock, iterations)
    found = hooked(str(tmp_path)).training
    assert found is not None
    assert (found.rank, found.world_size, found.iterations) == (1, 4, 7)


def test_a_job_that_reports_nothing_itself_has_the_progress_that_hooks_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, run = LocalFiles(tmp_path), "7.1-ab"
    folder = run_directory(tmp_path, run) / "hooks"
    assert files.progress(run) == {}
    folder.mkdir(parents=True)
    clock = anew(monkeypatch, str(folder))
    train(clock, 12)
    assert files.progress(run)["step"] == 12
    assert files.hooks(run).sight is Sight.PROFILE
    (folder.parent / "progress.json").write_text('{"loss": 2.5}')
    assert files.progress(run)["loss"] == 2.5
    assert files.progress(run)["step"] == 12
    (folder.parent / "progress.json").write_text('{"step": 3, "steps": 4}')
    own = files.progress(run)
    assert (own["step"], own["fraction"], own["stages"]) == (3, 0.75, "ssscggggg.")
    assert "first_s" not in own


def test_the_speed_is_that_of_what_came_after_the_first_iteration(clock: Clock, tmp_path: Path) -> None:
    train(clock, 11)
    training = hooked(str(tmp_path)).training
    assert training is not None
    told = {**progress_by(training), "first_s": 100.0, "at_s": 105.0}
    assert it_per_s(told) == 2.0  # ten iterations in five seconds
