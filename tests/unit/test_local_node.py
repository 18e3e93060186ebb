"""This machine as a node: what can't be prepared is an exit, and everything else is the executor's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fake_executor import FakeExecutor
from gpuloom.core.job import EndReason
from gpuloom.executors import local_node
from gpuloom.executors.local_node import LocalNode
from gpuloom.executors.node import Capabilities, NodePort, RunSpec
from gpuloom.executors.port import Cause, RunPhase, RunStatus


class Here:
    """A node on an executor without processes, and what it told."""

    def __init__(self, runs: Path) -> None:
        self.executor, self.told = FakeExecutor(), list[RunStatus]()
        self.node: NodePort = LocalNode("a", self.executor, runs)
        self.node.open(self.told.append)


@pytest.fixture
def here(tmp_path: Path) -> Here:
    return Here(tmp_path)


def spec(**given: Any) -> RunSpec:
    plain: dict[str, Any] = {"run": "1.1-ab", "command": ("./a",), "workdir": "/", "env": {}, "gpus": (0,)}
    return RunSpec(**{**plain, "gpu_uuids": ("G0",), **given})


def test_a_member_is_prepared_and_run(here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/h")
    monkeypatch.setenv("SECRET", "x")
    here.node.start(spec(env={"PATH": "/own", "A": "1"}, workdir="", limit_s=9.0, memory_mib=5, resumes=True))
    request = here.executor.requests["1.1"]
    assert (request.run, request.argv, request.cwd) == ("1.1-ab", ("./a",), "/h")
    assert (request.directory, request.limit_s) == (f"{tmp_path}/0000/1/1-ab", 9.0)
    assert (request.memory_mib, request.resumes, request.gpu_uuids) == (5, True, ("G0",))
    wanted = {"PATH": "/own", "A": "1", "HOME": "/h", "PYTHONUNBUFFERED": "1"}
    assert wanted.items() <= request.env.items()
    assert "SECRET" not in request.env
    assert [status.phase for status in here.told] == [RunPhase.RUNNING]


def test_a_job_s_own_settings_win(here: Here) -> None:
    here.node.start(spec(env={"PYTHONUNBUFFERED": "0"}))
    assert here.executor.requests["1.1"].env["PYTHONUNBUFFERED"] == "0"


def test_what_can_t_be_prepared_is_an_exit_until_it_is_acknowledged(here: Here, tmp_path: Path) -> None:
    unprepared = spec(venv=str(tmp_path / "gone"))
    here.node.start(unprepared)
    here.node.start(unprepared)
    first, again = here.told
    assert first == again
    assert first.exit is not None
    assert (first.phase, first.exit.reason, first.exit.cause) == (RunPhase.EXITED, EndReason.NOT_STARTED, Cause.JOB)
    assert "there is no directory" in first.exit.message
    here.node.stop("1.1-ab", reason=EndReason.CANCELLED, grace_s=0.0)
    assert list(here.node.runs()) == [first]
    here.node.acknowledge("1.1-ab")
    assert list(here.node.runs()) == []
    assert not here.executor.starts


def test_without_a_page_for_turns_a_job_starts_all_the_same(
    here: Here, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "devices").write_text("no folder")
    here.node.start(spec())
    assert [status.phase for status in here.told] == [RunPhase.RUNNING]
    assert f"run 1.1-ab takes no turns with others: can't use {tmp_path}/devices" in caplog.text


@pytest.mark.parametrize(("number", "cause"), [(5, Cause.PLACE), (13, Cause.JOB), (24, Cause.EXECUTOR)])
def test_a_place_that_can_t_be_reached(here: Here, monkeypatch: pytest.MonkeyPatch, number: int, cause: Cause) -> None:
    def broken(*_: object, **__: object) -> None:
        raise OSError(number, "broken", "/far/venv")

    monkeypatch.setattr(local_node, "request_of", broken)
    here.node.start(spec())
    (told,) = here.told
    assert told.exit is not None
    assert (told.exit.reason, told.exit.cause) == (EndReason.NOT_STARTED, cause)
    assert told.exit.message.startswith("can't use /far/venv: ")


def test_what_else_is_asked_goes_to_the_executor(here: Here) -> None:
    here.node.start(spec())
    here.node.freeze("1.1-ab")
    here.node.thaw("1.1-ab")
    here.node.limit("1.1-ab", 3.0)
    here.node.stop("1.1-ab", reason=EndReason.PREEMPTED, grace_s=1.0)
    assert here.executor.limits_set == {"1.1": 3.0}
    assert [status.phase.value for status in here.told] == ["running", "frozen", "running", "exited"]
    here.node.acknowledge("1.1-ab")
    assert (list(here.node.runs()), here.executor.acknowledged) == ([], {"1.1"})
    assert (here.node.boot_id(), here.node.healthy(), here.node.limits()) == ("boot", "", {})
    assert here.node.capabilities() == Capabilities()
    here.node.close()
