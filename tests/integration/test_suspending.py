"""A run whose GPU memory is moved to the machine's memory and back: runner, suspending.py, and a driver that behaves as
a real one was seen to (tests/fake_suspend.c)."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from gpuloom.core.end_reason import EndReason
from gpuloom.executors.port import Cause, Rehearsal, RunPhase
from gpuloom.executors.runner import suspender
from suspending_kit import GIB, PROGRAM, Machine, environment, made
from until import until


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    library = tmp_path / "library"
    library.mkdir()
    made(library)
    for name, value in environment(library, tmp_path / "gpu").items():
        monkeypatch.setenv(name, value)
    machine = Machine(tmp_path, library)
    yield machine
    for status in machine.executor.runs():
        machine.executor.stop(status.run, reason=EndReason.CANCELLED, grace_s=0.0)
    until(lambda: all(status.exit for status in machine.executor.runs()), "all to end")
    machine.executor.close()


def test_a_program_gives_its_gpu_and_goes_on_where_it_was(machine: Machine) -> None:
    assert machine.executor.capabilities().suspends
    assert machine.executor.limits()["suspending"] == "driver 580.0.fake"
    machine.start("1.1")
    for _ in range(2):
        status = machine.suspended("1.1")
        assert status.suspended_mib == 1024
        assert status.moved_s is not None
        assert not machine.used()
        stood = machine.steps("1.1")
        machine.executor.thaw("1.1")
        until(lambda: machine.phase("1.1") is RunPhase.RUNNING, "it to be back")
        machine.works("1.1")
        assert machine.steps("1.1") > stood
        assert machine.used()


def test_its_memory_limit_is_higher_by_what_it_had_on_the_gpu_while_it_is_away(machine: Machine) -> None:
    machine.start("1.1", memory_mib=500)
    group = json.loads((machine.home / "runs" / "1.1" / "run.json").read_text())["cgroup"]
    if group is None or "memory" not in group[1]:
        pytest.skip("no control groups with memory limits on this machine")
    limit = Path(group[1]["memory"]) / ("memory.max" if group[0] == 2 else "memory.limit_in_bytes")
    assert int(limit.read_text()) == 500 << 20
    machine.suspended("1.1")
    assert int(limit.read_text()) == (500 + 1024 + 64) << 20
    machine.executor.thaw("1.1")
    until(lambda: machine.phase("1.1") is RunPhase.RUNNING, "it to be back")
    assert int(limit.read_text()) == 500 << 20
    machine.wrong("801")
    machine.executor.freeze("1.1")
    until(lambda: (last := machine.last("1.1")) and last.refused, "it to be refused")
    assert int(limit.read_text()) == 500 << 20
    machine.works("1.1")


def test_what_nvml_says_wrongly_leaves_the_program_running(machine: Machine) -> None:
    machine.start("1.1")
    machine.wrong("nvml")
    machine.executor.freeze("1.1")
    status = until(lambda: (last := machine.last("1.1")) and last.refused and last, "it to be refused")
    assert "NVMLError" in status.refused
    machine.works("1.1")


def test_while_it_is_away_another_has_all_the_memory_and_it_waits_for_that(machine: Machine) -> None:
    machine.start("1.1", gib=6)
    machine.suspended("1.1")
    machine.start("2.1", gib=7)
    machine.executor.thaw("1.1")
    machine.works("2.1")
    assert machine.phase("1.1") is RunPhase.FROZEN
    machine.executor.stop("2.1", reason=EndReason.CANCELLED, grace_s=0.0)
    until(lambda: machine.phase("1.1") is RunPhase.RUNNING, "it to be back")
    machine.works("1.1")


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ("801", "error 801"),
        ("no-lock", "was not done within 20 s"),
        ("no-checkpoint", "could not move its GPU memory (error 999)"),
    ],
)
def test_who_cannot_be_suspended_runs_on_and_says_why(machine: Machine, wrong: str, why: str) -> None:
    machine.start("1.1")
    machine.wrong(wrong)
    machine.executor.freeze("1.1")
    status = until(lambda: (last := machine.last("1.1")) and last.refused and last, "it to be refused")
    assert why in status.refused
    assert status.phase is RunPhase.RUNNING
    machine.works("1.1")
    machine.wrong(wrong, wrong=False)
    assert machine.suspended("1.1").refused == ""


def test_two_processes_with_cuda_are_not_suspended(machine: Machine) -> None:
    twice = "import os, ctypes\nos.fork()\n" + PROGRAM.format(bytes=GIB, saves=False)
    machine.start("1.1", code=twice)
    machine.executor.freeze("1.1")
    status = until(lambda: (last := machine.last("1.1")) and last.refused and last, "it to be refused")
    assert "2 of its processes use CUDA" in status.refused


def test_a_program_that_the_driver_loses_ends_with_that_reason(machine: Machine) -> None:
    machine.start("1.1")
    machine.suspended("1.1")
    machine.wrong("no-restore")
    machine.executor.thaw("1.1")
    status = until(lambda: (last := machine.last("1.1")) and last.exit and last, "it to end")
    assert status.exit is not None
    assert (status.exit.reason, status.exit.cause) == (EndReason.NODE, Cause.NODE)
    assert "could not bring back its GPU memory (error 2)" in status.exit.message


def test_told_to_end_while_it_is_away_it_ends_at_once(machine: Machine) -> None:
    machine.start("1.1", saves=True)
    machine.suspended("1.1")
    machine.executor.stop("1.1", reason=EndReason.CANCELLED, grace_s=60.0)
    status = until(lambda: (last := machine.last("1.1")) and last.exit and last, "it to end")
    assert status.exit is not None
    assert status.exit.reason is EndReason.CANCELLED
    assert b"saved" not in machine.log("1.1")


def test_one_that_waits_to_come_back_is_cancelled_within_moments(machine: Machine) -> None:
    machine.start("1.1", gib=6)
    machine.suspended("1.1")
    machine.start("2.1", gib=7)
    machine.executor.thaw("1.1")
    until(lambda: "resume" in (machine.home / "runs" / "1.1" / "state.json").read_text(), "it to be asked back")
    machine.executor.stop("1.1", reason=EndReason.CANCELLED, grace_s=0.0)
    status = until(lambda: (last := machine.last("1.1")) and last.exit and last, "it to end")
    assert status.exit is not None
    assert (status.exit.reason, status.exit.released) == (EndReason.CANCELLED, True)
    machine.works("2.1")


def test_told_to_end_while_its_memory_moves_out_it_is_brought_back_and_saves(machine: Machine) -> None:
    machine.start("1.1", saves=True)
    machine.wrong("stays")  # so that it takes its time, and fails
    machine.executor.freeze("1.1")
    until(lambda: (machine.home / "runs" / "1.1" / "suspended.json").exists(), "it to begin")
    machine.wrong("stays", wrong=False)
    machine.executor.stop("1.1", reason=EndReason.PREEMPTED, grace_s=30.0)
    status = until(lambda: (last := machine.last("1.1")) and last.exit and last, "it to end")
    assert status.exit is not None
    assert status.exit.exit_code == 0
    assert machine.log("1.1")[-1] == b"saved"


def test_told_to_end_on_its_way_back_it_saves(machine: Machine) -> None:
    machine.start("1.1", saves=True)
    machine.suspended("1.1")
    machine.executor.thaw("1.1")
    machine.executor.stop("1.1", reason=EndReason.PREEMPTED, grace_s=30.0)
    status = until(lambda: (last := machine.last("1.1")) and last.exit and last, "it to end")
    assert status.exit is not None
    assert (status.exit.exit_code, machine.log("1.1")[-1]) == (0, b"saved")


def movers(machine: Machine) -> list[psutil.Process]:
    """The programs that are moving memory on this machine."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            words = process.cmdline()
            if str(suspender.PROGRAM) in words and any(str(machine.home) in word for word in words):
                found.append(process)
    return found


def test_the_program_that_moves_its_memory_is_begun_again_if_somebody_kills_it(machine: Machine) -> None:
    machine.start("1.1")
    machine.wrong("hold-checkpoint")
    machine.executor.freeze("1.1")
    (mover,) = until(lambda: movers(machine), "the program that moves it")
    until(lambda: (machine.home / "runs" / "1.1" / "suspended.json").exists(), "it to begin")
    machine.wrong("hold-checkpoint", wrong=False)
    mover.kill()
    until(lambda: machine.phase("1.1") is RunPhase.FROZEN, "it to be suspended")
    machine.executor.thaw("1.1")
    until(lambda: machine.phase("1.1") is RunPhase.RUNNING, "it to be back")
    machine.works("1.1")


def test_one_whose_mover_is_killed_again_and_again_is_given_up(machine: Machine) -> None:
    machine.start("1.1")
    machine.wrong("hold-checkpoint")
    machine.executor.freeze("1.1")
    for _ in range(suspender.MOST_CUT_OFF + 1):
        (mover,) = until(lambda: movers(machine), "the program that moves it")
        mover.kill()
        until(lambda mover=mover: not mover.is_running(), "its end")  # type: ignore[misc]
    status = until(lambda: (last := machine.last("1.1")) and last.exit and last, "it to end")
    assert status.exit is not None
    assert status.exit.reason is EndReason.NODE
    assert "ended without a word" in status.exit.message


def test_whoever_is_to_make_way_while_it_is_rehearsed_does_so_under_the_next_runner_too(machine: Machine) -> None:
    machine.wrong("hold-checkpoint")
    machine.start("1.1", rehearse_s=0.05)
    (mover,) = until(lambda: movers(machine), "its rehearsal")
    machine.executor.freeze("1.1")
    runner = int(machine.executor._link.hello["pid"])
    os.kill(runner, signal.SIGKILL)
    machine.wrong("hold-checkpoint", wrong=False)
    mover.kill()
    until(lambda: machine.phase("1.1") is RunPhase.FROZEN, "it to be suspended")
    assert not machine.used()


@pytest.mark.parametrize("when", ["away", "moving out", "coming back"])
def test_a_runner_that_is_killed_leaves_nothing_locked(machine: Machine, when: str) -> None:
    machine.start("1.1", gib=6)
    if when == "moving out":
        machine.wrong("stays")
        machine.executor.freeze("1.1")
        until(lambda: (machine.home / "runs" / "1.1" / "suspended.json").exists(), "it to begin")
    else:
        machine.suspended("1.1")
    if when == "coming back":
        machine.start("2.1", gib=7, suspends=False)
        machine.executor.thaw("1.1")  # has to wait
        until(lambda: "resume" in (machine.home / "runs" / "1.1" / "state.json").read_text(), "it to be asked back")
    runner = int(machine.executor._link.hello["pid"])
    os.kill(runner, signal.SIGKILL)
    if when == "moving out":
        machine.wrong("stays", wrong=False)
    until(lambda: machine.executor._link.hello["pid"] != runner, "the next runner")
    if when == "coming back":
        machine.executor.stop("2.1", reason=EndReason.CANCELLED, grace_s=0.0)
        until(lambda: machine.phase("1.1") is RunPhase.RUNNING, "it to be back")
    else:
        until(lambda: machine.phase("1.1") is RunPhase.FROZEN, "it to be suspended")
        assert not machine.used()
        machine.executor.thaw("1.1")
        until(lambda: machine.phase("1.1") is RunPhase.RUNNING, "it to be back")
    machine.works("1.1")


def test_without_room_in_the_machines_memory_it_is_refused(machine: Machine) -> None:
    machine.wrong("total")
    (machine.gpu / "total").write_text(str(1 << 60))
    machine.start("1.1", gib=1 << 20)
    machine.executor.freeze("1.1")
    status = until(lambda: (last := machine.last("1.1")) and last.refused and last, "it to be refused")
    assert "MiB of memory left" in status.refused
    machine.works("1.1")


def seen(machine: Machine, run: str = "1.1") -> Rehearsal:
    status = until(lambda: (last := machine.last(run)) and last.rehearsal and last, f"{run} to be rehearsed")
    assert status.rehearsal is not None
    return status.rehearsal


def test_a_rehearsal_moves_its_memory_out_and_right_back(machine: Machine) -> None:
    machine.start("1.1", rehearse_s=0.1)
    found = seen(machine)
    assert (found.ok, found.mib, found.why, found.earnest) == (True, 1024, "", False)
    assert found.out_s > 0
    assert found.in_s > 0
    assert machine.phase("1.1") is RunPhase.RUNNING
    assert RunPhase.FROZEN not in [status.phase for status in machine.told], "nobody else had its GPU"
    machine.works("1.1")
    assert machine.suspended("1.1").rehearsal == found
    machine.executor.thaw("1.1")
    until(lambda: machine.phase("1.1") is RunPhase.RUNNING, "it to be back")
    machine.works("1.1")


def test_a_program_with_nothing_on_its_gpu_yet_is_rehearsed_later(machine: Machine) -> None:
    later = "import os, time\nprint(0, flush=True)\nwhile not os.path.exists('go'): time.sleep(0.01)\n"
    machine.start("1.1", rehearse_s=0.05, code=later + PROGRAM.format(bytes=GIB, saves=False))
    tried = machine.home / "runs" / "1.1" / "suspending.lock"
    until(tried.exists, "it to be tried")
    (machine.home / "go").touch()
    assert seen(machine).ok


@pytest.mark.parametrize(("wrong", "why"), [("801", "error 801"), ("no-checkpoint", "could not move its GPU memory")])
def test_a_program_that_does_not_bear_it_runs_on_and_is_known(machine: Machine, wrong: str, why: str) -> None:
    machine.wrong(wrong)
    machine.start("1.1", rehearse_s=0.05)
    found = seen(machine)
    assert not found.ok
    assert why in found.why
    machine.works("1.1")
    last = machine.last("1.1")
    assert last is not None
    assert (last.phase, last.refused) == (RunPhase.RUNNING, "")


def test_a_program_that_is_lost_in_a_rehearsal_ends_with_that_reason(machine: Machine) -> None:
    machine.wrong("no-restore")
    machine.start("1.1", rehearse_s=0.05)
    assert not seen(machine).ok
    status = until(lambda: (last := machine.last("1.1")) and last.exit and last, "it to end")
    assert status.exit is not None
    assert status.exit.reason is EndReason.NODE
    assert "could not bring back its GPU memory" in status.exit.message


def test_what_the_machine_hinders_says_nothing_of_the_program(machine: Machine) -> None:
    machine.wrong("nvml")
    machine.start("1.1", rehearse_s=0.05)
    until((machine.home / "runs" / "1.1" / "suspending.lock").exists, "it to be tried")
    machine.works("1.1")
    last = machine.last("1.1")
    assert last is not None
    assert last.rehearsal is None
    machine.wrong("nvml", wrong=False)
    assert seen(machine).ok


def test_one_that_must_make_way_while_it_is_rehearsed_does_afterwards(machine: Machine) -> None:
    machine.wrong("stays")
    machine.start("1.1", rehearse_s=0.05)
    until(lambda: (machine.home / "runs" / "1.1" / "suspended.json").exists(), "it to begin")
    machine.executor.freeze("1.1")
    machine.wrong("stays", wrong=False)
    until(lambda: machine.phase("1.1") is RunPhase.FROZEN, "it to be suspended")
    assert not machine.used()
    machine.executor.thaw("1.1")
    until(lambda: machine.phase("1.1") is RunPhase.RUNNING, "it to be back")
    machine.works("1.1")


def test_a_runner_that_is_killed_in_a_rehearsal_leaves_the_program_running(machine: Machine) -> None:
    machine.wrong("stays")
    machine.start("1.1", rehearse_s=0.05)
    until(lambda: (machine.home / "runs" / "1.1" / "suspended.json").exists(), "it to begin")
    runner = int(machine.executor._link.hello["pid"])
    os.kill(runner, signal.SIGKILL)
    machine.wrong("stays", wrong=False)
    until(lambda: machine.executor._link.hello["pid"] != runner, "the next runner")
    assert seen(machine).ok
    assert machine.phase("1.1") is RunPhase.RUNNING
    assert RunPhase.FROZEN not in [status.phase for status in machine.told]
    machine.works("1.1")


def test_one_told_to_end_in_a_rehearsal_is_brought_back_and_saves(machine: Machine) -> None:
    machine.wrong("stays")
    machine.start("1.1", saves=True, rehearse_s=0.05)
    until(lambda: (machine.home / "runs" / "1.1" / "suspended.json").exists(), "it to begin")
    machine.wrong("stays", wrong=False)
    machine.executor.stop("1.1", reason=EndReason.PREEMPTED, grace_s=30.0)
    status = until(lambda: (last := machine.last("1.1")) and last.exit and last, "it to end")
    assert status.exit is not None
    assert status.exit.exit_code == 0
    assert machine.log("1.1")[-1] == b"saved"
