"""Runs jobs as processes of this machine. The processes belong to the runner (runner/), and outlive the scheduler."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from gpuloom.core.end_reason import EndReason
from gpuloom.core.errors import InputError
from gpuloom.core.job import DeviceKind
from gpuloom.core.run_name import run_name_of
from gpuloom.executors.can_suspend import SuspendingCheck
from gpuloom.executors.containers import limited, named_container
from gpuloom.executors.home_id import home_id_of
from gpuloom.executors.link import CONNECT_S, REPLY_S, Link
from gpuloom.executors.port import (
    Capabilities,
    Cause,
    ExecutorError,
    OnStatus,
    Rehearsal,
    RunExit,
    RunPhase,
    RunRequest,
    RunStatus,
    exit_of,
    not_run,
)
from gpuloom.executors.verify import GpuCheck, GpuProcesses
from gpuloom.executors.wire import NOTICE_FILE, PROGRESS_FILE, StartRequest

NOT_BEGUN = (RunPhase.STARTING, RunPhase.PREPARED)
NO_HOLD = (
    "the runner here is one of an older gpuloom, which starts no jobs on several nodes; it ends when its last job has "
    "ended and no scheduler is connected"
)
CGROUP_MODES = ("auto", "v2", "v1", "off")


class LocalExecutor:
    """A LiveExecutor for this machine.

    home_dir: holds the runner's socket and its list of runs; made if it is not there. gpu_processes: from uuids of GPUs
    to the pids that use each of them now; with it a GPU counts as free only when none of a run's processes holds it.
    cgroups: 'auto', 'v2', 'v1' or 'off'; by default what GPULOOM_CGROUPS says, else 'auto'.

    Raises:
        InputError: `cgroups` is none of these.
        ExecutorError: not on Linux.
    """

    name = "local"

    def __init__(
        self, home_dir: Path, *, gpu_processes: GpuProcesses | None = None, cgroups: str | None = None
    ) -> None:
        if not sys.platform.startswith("linux"):
            raise ExecutorError(f"running jobs needs Linux, but this is {sys.platform}; simulations work everywhere")
        mode = cgroups or os.environ.get("GPULOOM_CGROUPS") or "auto"
        if mode not in CGROUP_MODES:
            raise InputError(f"GPULOOM_CGROUPS is {mode!r}: must be one of {', '.join(CGROUP_MODES)}")
        self._home = Path(home_dir).resolve()
        self._home.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._home_id = home_id_of(self._home)
        self._link = Link(self._home, self._home_id, mode, self._on_message, self._on_new_runner)
        self._on_status: OnStatus | None = None
        self._lock = threading.Lock()
        self._telling = threading.Lock()
        self._last: dict[str, RunStatus] = {}
        self._asked: set[str] = set()
        self._opening = False
        self._trouble = ""
        self._suspending = SuspendingCheck()
        self._check = None if gpu_processes is None else GpuCheck(gpu_processes, self._home_id, self._emit)

    # The port

    def open(self, on_status: OnStatus, *, patience_s: float = CONNECT_S) -> None:
        """Connect to the runner, or start one. Raises ExecutorError."""
        end = time.monotonic() + patience_s
        self._on_status = on_status
        with self._lock:
            self._opening = True  # what is told from now on is news, also of runs that nobody here has started
        self._suspending.begin()
        if self._check is not None:
            self._check.start()
        self._link.open(patience_s)
        self._trouble = self._link.hello.get("trouble", "")
        known = self._runs_of_runner(max(end - time.monotonic(), 0.1))
        with self._lock:
            for status, _ in known:
                self._last.setdefault(status.run, status)  # news came later than this
            self._opening = False

    def runs(self, *, patience_s: float = REPLY_S) -> Sequence[RunStatus]:
        """Raises ExecutorError if the runner does not answer."""
        return [self._checked(status, gpus) for status, gpus in self._runs_of_runner(patience_s)]

    def start(self, request: RunRequest) -> None:
        """See the port. That a program can't be run comes as an exit, reason 'not_started'."""
        allowed = set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
        if not request.run or not set(request.run) <= allowed or request.run.startswith("."):
            raise ExecutorError(f"{request.run!r} is not a valid name of a run: use letters, digits, '.', '_' and '-'")
        if not request.argv:
            raise ExecutorError(f"run {request.run}: there is no program to run")
        directory = Path(request.directory)
        if not directory.is_absolute():
            raise ExecutorError(f"run {request.run}: its directory {request.directory!r} must be absolute")
        argv = limited(request.argv, cpus=request.cpus, memory_mib=request.memory_mib)
        what = StartRequest(
            run=request.run,
            directory=str(directory),
            argv=argv,
            cwd=request.cwd,
            env=job_environment(request, self._home_id),
            limit_s=request.limit_s,
            grace_s=request.grace_s,
            cpus=request.cpus,
            memory_mib=request.memory_mib,
            log_mib=request.log_mib,
            log_files=request.log_files,
            container=named_container(argv),
            gpu_uuids=request.gpu_uuids,
            hold=request.hold,
            suspends=request.suspends,
            rehearse_s=request.rehearse_s,
        )
        with self._lock:
            self._asked.add(request.run)
        if request.hold and not self._link.hello.get("holds", False):
            self._take_status(_unknown(request.run, NO_HOLD, begun=False), ())
            return
        self._link.ask("start", failed=partial(self._start_failed, request.run), request=what.to_json())

    def go(self, run: str) -> None:
        """See the port."""
        self._link.ask("go", run=run)

    def stop(self, run: str, *, reason: EndReason, grace_s: float) -> None:
        """See the port."""
        self._link.ask("stop", run=run, reason=reason.value, grace_s=max(grace_s, 0.0))

    def limit(self, run: str, limit_s: float | None) -> None:
        """See the port."""
        self._link.ask("limit", run=run, limit_s=limit_s)

    def freeze(self, run: str) -> None:
        """See the port."""
        self._link.ask("freeze", run=run)

    def thaw(self, run: str) -> None:
        """See the port."""
        self._link.ask("thaw", run=run)

    def acknowledge(self, run: str) -> None:
        """See the port."""
        with self._lock:
            self._last.pop(run, None)
            self._asked.discard(run)
        self._link.never_start(run)
        if self._check is not None:
            self._check.forget(run)
        self._link.ask("acknowledge", run=run)

    def boot_id(self) -> str:
        """See the port."""
        return str(self._link.hello.get("boot_id", ""))  # a runner of an older gpuloom does not say

    def healthy(self) -> str:
        """See the port."""
        return self._link.problem or self._trouble or ("" if self._check is None else self._check.problem)

    def close(self) -> None:
        """See the port."""
        self._link.close()
        if self._check is not None:
            self._check.close()

    def capabilities(self) -> Capabilities:
        """See the port. Memory is held to by control groups, or watched."""
        cpus = "cpus" in self._link.hello.get("enforces", ())
        found = self._suspending.outcome()
        return Capabilities(memory=True, cpus=cpus, suspends=found["ok"], driver=found["driver"] if found["ok"] else "")

    def limits(self) -> Mapping[str, str]:
        """What is enforced on this machine, and how: 'processes', 'freezing', 'memory', 'cpus', 'time'; where it has
        GPUs 'suspending'."""
        limits: dict[str, str] = dict(self._link.hello.get("limits", {}))
        if (told := str(self._suspending)) != "":
            limits["suspending"] = told
        return limits

    # What the runner says

    def _runs_of_runner(self, patience_s: float) -> list[tuple[RunStatus, Sequence[str]]]:
        try:
            return _statuses_of(self._link.question("runs", patience_s))
        except ExecutorError as error:
            raise ExecutorError(f"{error}; it says: {self._trouble}" if self._trouble else str(error)) from None

    def _on_message(self, message: dict[str, Any]) -> None:
        if "trouble" in message:
            self._trouble = message["trouble"]
        elif "status" in message:
            self._take_status(status_of(message["status"]), message["status"]["gpu_uuids"])

    def _on_new_runner(self) -> None:
        """A new runner answers: what it knows comes as news, and of what it does not know, that it was not begun."""
        self._trouble = self._link.hello.get("trouble", "")
        with self._lock:
            asked = set(self._asked)
        self._settle(asked, "the runner was stopped before it could start the job")

    def _start_failed(self, run: str, why: str) -> None:
        """The runner could not handle the request: has the run begun all the same?"""
        self._settle({run}, f"the runner can't start the job: {why}")

    def _settle(self, asked: Collection[str], why: str) -> None:
        """What the runner knows comes as news; and of those that it was asked for and does not know, why they were not
        begun."""

        def caught_up(reply: dict[str, Any]) -> None:
            known = _statuses_of(reply)
            for status, gpus in known:
                self._take_status(status, gpus)
            for run in sorted(set(asked) - {status.run for status, _ in known}):
                with self._lock:
                    last = self._last.get(run)
                    forgotten = run not in self._asked
                if not forgotten and (last is None or last.exit is None):
                    self._take_status(_unknown(run, why, begun=last is not None and last.phase not in NOT_BEGUN), ())

        with suppress(ExecutorError):  # closed: nobody wants to know
            self._link.ask("runs", caught_up)

    def _take_status(self, status: RunStatus, gpus: Sequence[str]) -> None:
        with self._lock:
            before = self._last.get(status.run)
            if before == status or (before is None and status.run not in self._asked and not self._opening):
                return
            self._last[status.run] = status
        if self._checked(status, gpus) is status:
            self._emit(status)

    def _checked(self, status: RunStatus, gpus: Sequence[str]) -> RunStatus:
        """The status itself, or for a run that ended what is known of its GPUs: until they are free it is stopping."""
        if self._check is None or status.exit is None or not gpus:
            return status
        return self._check.of(status, gpus)

    def _emit(self, status: RunStatus) -> None:
        with self._telling:
            if self._on_status is not None:
                self._on_status(status)


def _statuses_of(reply: Mapping[str, Any]) -> list[tuple[RunStatus, Sequence[str]]]:
    return [(status_of(entry), entry["gpu_uuids"]) for entry in reply["runs"]]


def _unknown(run: str, why: str, *, begun: bool) -> RunStatus:
    """The end of a run of which the runner finds nothing: none runs before its files are written. why: it was
    not begun."""
    if not begun:
        return not_run(run, EndReason.NOT_STARTED, why, Cause.EXECUTOR)
    how = RunExit(None, None, EndReason.LOST, "its files are gone: how it ended is unknown", time.time())
    return RunStatus(run, RunPhase.EXITED, exit=how)


def status_of(entry: Mapping[str, Any]) -> RunStatus:
    """From what the runner says."""
    ended, seen = entry["exit"], entry.get("rehearsal")
    return RunStatus(
        run=entry["run"],
        phase=RunPhase(entry["phase"]),
        pid=entry["pid"],
        start_ticks=entry["start_ticks"],
        boot_id=entry["boot_id"] or None,
        exit=None if ended is None else exit_of(ended),
        suspended_mib=entry.get("suspended_mib"),
        moved_s=entry.get("moved_s"),
        refused=entry.get("refused", ""),
        rehearsal=None if seen is None else Rehearsal(**seen),
    )


def job_environment(request: RunRequest, home_id: str) -> dict[str, str]:
    """The whole environment of a run: what was asked for, and what gpuloom tells it (docs/reference/executor.md)."""
    name = run_name_of(request.run)
    visible = "" if request.kind == DeviceKind.CPU else ",".join(request.gpu_uuids or map(str, request.gpus))
    return {
        **request.env,
        "CUDA_VISIBLE_DEVICES": visible,
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "GPULOOM_JOB_ID": request.run if name is None else str(name.job),
        "GPULOOM_ATTEMPT": "1" if name is None else str(name.attempt),
        "GPULOOM_RUN": f"{home_id}:{request.run}",
        "GPULOOM_GPUS": str(len(request.gpus)),
        "GPULOOM_SLOTS": ",".join(map(str, request.gpus)),
        "GPULOOM_RUN_DIR": request.directory,
        "GPULOOM_NOTICE_FILE": f"{request.directory}/{NOTICE_FILE}",
        "GPULOOM_PROGRESS_FILE": f"{request.directory}/{PROGRESS_FILE}",
        "GPULOOM_RESUME": "1" if request.resumes else "0",
        "GPULOOM_GRACE_S": f"{request.grace_s:g}",
    }
