"""What the files of a node's runs tell, wherever they lie. Each way to read them passes all of this."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpuloom.core.end_reason import EndReason
from gpuloom.executors.local_files import LocalFiles, run_directory
from gpuloom.executors.logs import NoLogError
from gpuloom.executors.node import RunFiles
from gpuloom.executors.port import ExecutorError
from gpuloom.executors.runner.rotation import Log
from gpuloom.fleet.channel import AnswerError
from gpuloom.fleet.joined import JoinedFiles
from gpuloom.fleet.questions import CHUNK, answered

RUN = "1234.2.1-9f3a02bc"


@contextmanager
def _local(runs: Path) -> Iterator[RunFiles]:
    yield LocalFiles(runs)


class Wire:
    """A channel whose other end is in this process. What goes over it are texts all the same."""

    peer = "node-b"

    def __init__(self, files: RunFiles) -> None:
        self.node: Any = SimpleNamespace(files=files)

    def ask(self, what: str, **arguments: Any) -> Any:
        asked = json.loads(json.dumps({"ask": 1, "what": what, "with": arguments}))
        text = json.dumps(answered(self.node, asked))
        assert len(text) < 2 * CHUNK
        found = json.loads(text)
        if "error" in found:
            raise AnswerError(found["error"], found["kind"])
        return found["data"]


@contextmanager
def _joined(runs: Path) -> Iterator[RunFiles]:
    wire: Any = Wire(LocalFiles(runs))
    yield JoinedFiles(wire)


WAYS: dict[str, Callable[[Path], Any]] = {"local": _local, "joined": _joined}
"""By name: a context with the files of the runs below a folder."""


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path / "runs"


@pytest.fixture(params=list(WAYS))
def files(request: pytest.FixtureRequest, runs: Path) -> Iterator[RunFiles]:
    with WAYS[request.param](runs) as found:
        yield found


@pytest.fixture
def place(runs: Path) -> Path:
    """Where the run's files are."""
    (found := runs / "0001" / "1234" / "2.1-9f3a02bc").mkdir(parents=True)
    return found


@pytest.mark.parametrize(
    ("run", "place"),
    [("999.2", "0000/999/2"), ("1000.1-ab", "0001/1000/1-ab"), ("12345678.3.2-ab", "12345/12345678/3.2-ab")],
)
def test_where_they_lie(run: str, place: str) -> None:
    assert run_directory(Path("/r"), run) == Path("/r") / place
    assert LocalFiles(Path("/r")).log_path(run) == Path("/r") / place / "output.log"
    with pytest.raises(ValueError, match="no name of a run"):
        run_directory(Path("/r"), "../etc")


def test_of_a_run_that_never_was_there_is_nothing(files: RunFiles) -> None:
    assert files.read_log(RUN) == (b"", 0)
    assert files.read_log(RUN, 7) == (b"", 7)
    assert files.log_mark(RUN) == ()
    assert files.progress(RUN) == {}
    assert files.noticed_s(RUN) is None
    assert files.exit_of(RUN, 1, 2) is None


def test_a_log_is_read_by_offsets_of_all_that_was_ever_written(files: RunFiles, place: Path) -> None:
    log, lines = Log(str(place), limit=50, keep=2), [f"line {n}\n".encode() for n in range(40)]
    for start in range(0, 40, 10):
        with (place / "output.log").open("ab") as file:
            file.write(b"".join(lines[start : start + 10]))
        if start < 30:
            log.look()
    every = b"".join(lines)
    first = len(b"".join(lines[:10]))  # the oldest part is not kept
    assert files.read_log(RUN) == (every[first:], len(every))
    assert files.read_log(RUN, 3) == (every[first:], len(every))
    assert files.read_log(RUN, first + 5, max_bytes=8) == (every[first + 5 : first + 13], first + 13)
    assert files.read_log(RUN, tail_lines=3) == (b"".join(lines[-3:]), len(every))
    assert files.read_log(RUN, tail_lines=0) == (b"", len(every))
    assert files.read_log(RUN, len(every) + 9) == (b"", len(every) + 9)


def test_much_of_a_log_comes_as_one(files: RunFiles, place: Path) -> None:
    lines = [f"line {n}\n".encode() for n in range(50_000)]
    every = b"".join(lines)
    (place / "output.log").write_bytes(every)
    assert files.read_log(RUN) == (every, len(every))
    assert files.read_log(RUN, max_bytes=200_001) == (every[:200_001], 200_001)
    assert files.read_log(RUN, 7, max_bytes=CHUNK) == (every[7 : CHUNK + 7], CHUNK + 7)
    assert files.read_log(RUN, tail_lines=20_000) == (b"".join(lines[-20_000:]), len(every))
    assert files.read_log(RUN, tail_lines=20_000, max_bytes=100_000) == (every[-100_000:], len(every))
    assert files.read_log(RUN, tail_lines=100_000, max_bytes=1 << 24) == (every, len(every))


def test_what_follows_a_gap_is_for_the_next_call(files: RunFiles, place: Path) -> None:
    old, new = b"x" * 100_000, b"y" * 70_000
    (place / "output.log.1").write_bytes(old)
    (place / "output.log").write_bytes(new)
    (place / "log.json").write_text(json.dumps({"base": 150_000, "parts": [[0, 100_000]]}))
    assert files.read_log(RUN) == (old, 100_000)
    assert files.read_log(RUN, 100_000) == (new, 220_000)


def test_a_mark_is_another_one_when_the_log_has_grown_or_was_rotated(files: RunFiles, place: Path) -> None:
    marks = [files.log_mark(RUN)]
    path = place / "output.log"
    path.touch()
    marks.append(files.log_mark(RUN))
    for _ in range(2):
        with path.open("ab") as file:
            file.write(b"x" * 100)
        marks.append(files.log_mark(RUN))
        assert files.log_mark(RUN) == marks[-1]
    Log(str(place), limit=50, keep=2).look()
    marks.append(files.log_mark(RUN))
    assert marks[0] == ()
    assert len(set(marks)) == 5


def test_what_is_no_log_any_more_is_not_read_and_has_a_mark(files: RunFiles, place: Path) -> None:
    (place / "secret").write_text("not for everybody")
    (place / "output.log").symlink_to(place / "secret")
    assert files.log_mark(RUN)
    with pytest.raises(NoLogError, match="is a link, no longer the log"):
        files.read_log(RUN)
    with pytest.raises(NoLogError):
        files.read_log(RUN, tail_lines=3)


def test_progress_is_what_the_job_reported(files: RunFiles, place: Path) -> None:
    (place / "progress.json").write_text(json.dumps({"step": 5, "steps": 20, "loss": 0.5, "deep": {}}))
    assert dict(files.progress(RUN)) == {"step": 5, "steps": 20, "loss": 0.5, "fraction": 0.25}


@pytest.mark.parametrize("put", [b"", b"nothing of sense", b"[1]", b"\xff", b"[" * 100_000, b" " * 70_000 + b"{}"])
def test_a_report_that_is_none_is_nothing(files: RunFiles, place: Path, put: bytes) -> None:
    (place / "progress.json").write_bytes(put)
    assert files.progress(RUN) == {}


def test_nor_is_a_pipe_a_folder_or_a_link(files: RunFiles, place: Path) -> None:
    report = place / "progress.json"
    os.mkfifo(report)
    assert files.progress(RUN) == {}
    report.unlink()
    report.mkdir()
    assert files.progress(RUN) == {}
    report.rmdir()
    (place / "other").write_text('{"step": 1}')
    report.symlink_to(place / "other")
    assert files.progress(RUN) == {}


def test_when_it_got_notice(files: RunFiles, place: Path) -> None:
    (place / "notice").write_text("{}")
    os.utime(place / "notice", (5.0, 5.0))
    assert files.noticed_s(RUN) == 5.0


EXIT = {"exit_code": 3, "signal": None, "reason": "timed_out", "message": "m", "at_s": 9.0, "cause": ""}


def test_how_it_ended(files: RunFiles, place: Path) -> None:
    (place / "run.json").write_text(json.dumps({"pid": 5, "start_ticks": 6}))
    assert files.exit_of(RUN, 5, 6) is None
    (place / "exit.json").write_text(json.dumps({"exit": EXIT}))
    found = files.exit_of(RUN, 5, 6)
    assert found is not None
    assert (found.exit_code, found.reason, found.message, found.at_s) == (3, EndReason.TIMED_OUT, "m", 9.0)
    assert files.exit_of(RUN, None, None) == found
    assert files.exit_of(RUN, 5, 7) is None  # of another process
    assert files.exit_of(RUN, 4, 6) is None


@pytest.mark.parametrize(
    ("begun", "ended"),
    [
        ({}, {"exit": EXIT}),
        ({"pid": 5, "start_ticks": 6}, {}),
        ({"pid": 5, "start_ticks": 6}, {"exit": None}),
        ({"pid": 5, "start_ticks": 6}, {"exit": {**EXIT, "reason": "bored"}}),
        ({"pid": 5, "start_ticks": 6}, {"exit": {**EXIT, "more": 1}}),
    ],
)
def test_an_end_that_a_job_made_up_badly_is_none(files: RunFiles, place: Path, begun: Any, ended: Any) -> None:
    (place / "run.json").write_text(json.dumps(begun))
    (place / "exit.json").write_text(json.dumps(ended))
    assert files.exit_of(RUN, 5, 6) is None


def test_when_its_checkpoint_was_written(files: RunFiles, tmp_path: Path) -> None:
    def write(name: str, at_s: float, text: str = "x") -> None:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        os.utime(path, (at_s, at_s))

    write("out/a/1.ckpt", 10.0)
    write("out/b/2.ckpt", 20.0)
    write("out/b/log.txt", 30.0)
    write("out/b/empty.ckpt", 40.0, text="")
    write("odd [1].ckpt", 50.0)
    there = str(tmp_path)
    assert files.checkpoint_s(RUN, "out/a/1.ckpt", there) == 10.0
    assert files.checkpoint_s(RUN, "out", there) == 30.0
    assert files.checkpoint_s(RUN, "out/**/*.ckpt", there) == 20.0
    assert files.checkpoint_s(RUN, f"{there}/out/*/*.ckpt", "/elsewhere") == 20.0
    assert files.checkpoint_s(RUN, "odd [1].ckpt", there) == 50.0  # as it is, before it is a pattern
    assert files.checkpoint_s(RUN, "none/*.ckpt", there) is None
    assert files.checkpoint_s(RUN, "out/b/empty.ckpt", there) is None


@pytest.mark.parametrize(
    ("call", "answer"),
    [
        (lambda files: files.read_log(RUN), None),
        (lambda files: files.read_log(RUN), ["x", 1]),
        (lambda files: files.log_mark(RUN), ["a"]),
        (lambda files: files.log_mark(RUN), 5),
        (lambda files: files.progress(RUN), 5),
        (lambda files: files.noticed_s(RUN), {}),
        (lambda files: files.checkpoint_s(RUN, "a", "/"), "soon"),
        (lambda files: files.exit_of(RUN, 1, 2), {"exit_code": "none"}),
    ],
)
def test_an_answer_that_makes_no_sense_is_an_error_of_the_node(call: Any, answer: Any) -> None:
    wire: Any = SimpleNamespace(peer="node-b", ask=lambda what, **_: answer)
    with pytest.raises(ExecutorError, match="node-b answers no "):
        call(JoinedFiles(wire))
