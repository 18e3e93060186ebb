"""How runs end: the leading process exits, the processes it leaves behind are killed, and the outcome is recorded."""

from __future__ import annotations

import contextlib
import os
import signal
import time

from gpuloom.core.end_reason import EndReason
from gpuloom.executors import procs
from gpuloom.executors.runner.again import Again
from gpuloom.executors.runner.life import TERM_SIGNAL, RunningJob
from gpuloom.executors.runner.loop import RETRY_S, Loop
from gpuloom.executors.wire import FAILED_FILE, GUARD_MARK, Cause, RunPhase, read_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

GUARD = f"{GUARD_MARK}=1".encode()
LEFT_GRACE_S = 2.0
"""Time between SIGTERM and SIGKILL for processes that a leading process leaves behind, unless it died of the notice."""
UNKILLABLE_S = 10.0
"""This long after SIGKILL the run is reported as ended, and the processes that are left are named."""
KILL_AGAIN_S = 0.1
LEASE_OVER = "the lease of its node was over: the head could not be reached for too long"


class Ends:
    """runs: those that there are. ended: called for a child whose process has gone, before its end is looked at.
    thaw: lets a frozen run go on. concluded: called when it is known how a run ended.

    children: by process, the runs that this runner started.
    """

    def __init__(
        self,
        loop: Loop,
        again: Again,
        runs: Mapping[str, RunningJob],
        ended: Callable[[RunningJob], None],
        thaw: Callable[[RunningJob], None],
        concluded: Callable[[RunningJob], None],
    ) -> None:
        """Raises OSError."""
        self._loop, self._again, self._runs = loop, again, runs
        self._ended, self._thaw, self._concluded = ended, thaw, concluded
        self.fenced: Callable[[RunningJob], bool] = lambda run: False
        """Whether a run was ended because the node's lease was over."""
        self.children: dict[int, RunningJob] = {}
        self._reaped: list[tuple[RunningJob, int, float]] = []
        """Runs whose leading process has been waited for: (run, code, CPU seconds)."""
        wake, waker = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        loop.add(wake, self._reap, "the ends of jobs")

    def not_started(self, run: RunningJob, cause: Cause, message: str, reason: str = EndReason.NOT_STARTED) -> None:
        """Its program was not begun."""
        run.reason, run.cause, run.message = reason, cause, message
        run.ended = {"exit_code": None, "signal": None, "cpu_s": None, "peak_memory_mib": None}
        self._conclude(run, released=True)

    def lost(self, run: RunningJob, message: str, cause: Cause = Cause.NONE) -> None:
        """It has ended, and only its parent could have known how."""
        self._out_of_memory(run)
        if cause is not Cause.RESTARTED:
            self._by_guard(run)
        if not run.reason:
            run.reason, run.cause = EndReason.LOST, cause
        run.message = run.message or message
        self._leader_ended(run, None, None, None)

    def has_ended(self, run: RunningJob) -> bool:
        """Whether its leading process has gone, maybe a moment ago and not yet looked at."""
        if run.ended is None:
            self._wait()
        return run.ended is not None or any(other is run for other, _, _ in self._reaped)

    def _reap(self, fd: int) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(fd, 4096)
        self._wait()

    def _wait(self) -> None:
        """For children that have gone; their runs' ends are looked at next."""
        while True:
            try:
                pid, status, used = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            self._again.helpers.pop(pid, None)
            run = self.children.pop(pid, None)
            if run is not None:
                # Not the group's peak: that counts files that were read, which the kernel drops when memory is short.
                run.peak_mib = max(run.peak_mib or 0.0, used.ru_maxrss / 1024)
                code = os.waitstatus_to_exitcode(status)
                self._reaped.append((run, code, used.ru_utime + used.ru_stime))
        if self._reaped:
            self._loop.soon(self._leaders_ended, "the ends of jobs")

    def _leaders_ended(self) -> None:
        for run, _, _ in self._reaped:
            self._ended(run)  # first what came first
        # Where the process table has to be read, once for all of them, and after the last of them went.
        watched = any(run.group is None and run.ended is None for run, _, _ in self._reaped)
        everything = procs.table() if watched else None
        while self._reaped:
            run, code, cpu_s = self._reaped[0]
            if run.ended is None:
                if code != 0:
                    self._out_of_memory(run)
                    self._by_guard(run)
                exit_code, number = (None, -code) if code < 0 else (code, None)
                self._leader_ended(run, exit_code, number, cpu_s, everything)
            self._reaped.pop(0)

    def _out_of_memory(self, run: RunningJob) -> None:
        """Give that as the reason, if nothing else was the reason and the kernel ended a process of it."""
        if not run.reason and run.group is not None and run.group.oom_kills():
            limit = f"its limit of {run.memory_mib:,} MiB" if run.memory_mib else "the machine's memory"
            run.reason, run.message = EndReason.OUT_OF_MEMORY, f"killed by the kernel: it needed more than {limit}"

    def _by_guard(self, run: RunningJob) -> None:
        """Give that as the reason, if nothing else was and it was so."""
        if not run.reason and self.fenced(run):
            run.reason, run.cause, run.message = EndReason.NODE, Cause.NODE, LEASE_OVER

    def _leader_ended(
        self,
        run: RunningJob,
        exit_code: int | None,
        number: int | None,
        cpu_s: float | None,
        everything: dict[int, procs.Process] | None = None,
    ) -> None:
        if run.ended is not None:
            return
        if run.group is not None:
            cpu_s = run.group.cpu_s() or cpu_s
        run.ended = {"exit_code": exit_code, "signal": number, "cpu_s": cpu_s, "peak_memory_mib": run.peak_mib}
        now = time.monotonic()
        if exit_code != 0:
            self._again.help(run, "kill")  # the tool has gone, but maybe not the container
        # A shell dies of the notice's own signal, while the program that it started saves: that has the whole grace.
        noticed = run.deadline is not None and number == TERM_SIGNAL
        run.kill_at = now + LEFT_GRACE_S
        if run.deadline is not None:
            run.kill_at = max(run.deadline if noticed else min(run.kill_at, run.deadline), now)
        try:
            left = self._left(run, everything)
        except (OSError, MemoryError):
            self.clean_soon(run)
            return
        if left and run.kill_at > now:
            self._thaw(run)
            told = [entry for entry in left if not (noticed and entry.pgrp == run.pid)]
            with contextlib.suppress(OSError):  # what stays is killed a little later
                procs.send_all(told, TERM_SIGNAL)
        self._loop.soon(lambda: self._clean(run, left), f"the end of run {run.name}")

    def _left(self, run: RunningJob, everything: dict[int, procs.Process] | None = None) -> list[procs.Process]:
        """Its living processes, by this process table, or a new one."""
        if run.group is not None:
            return run.alive()
        everything = procs.table() if everything is None else everything
        return run.alive(everything, self._strays(run, everything))

    def _strays(self, run: RunningJob, everything: dict[int, procs.Process] | None = None) -> list[int]:
        """Orphans that came to us and carry no run's name: the run's, if no other can have had them."""
        if run.group is not None or any(other is not run and other.exit is None for other in self._runs.values()):
            return []
        known = {*self.children, *self._again.helpers}
        table = procs.table() if everything is None else everything
        found = [entry.pid for entry in table.values() if entry.ppid == os.getpid() and entry.pid not in known]
        return [pid for pid in found if not procs.marked(pid, GUARD)]

    def clean_soon(self, run: RunningJob, pause_s: float = 0.0) -> None:
        """End what a run left behind, after a pause."""
        next_s = min(max(pause_s, 0.005) * 1.5, 0.1)
        self._loop.after(pause_s, lambda: self._clean(run, None, next_s), f"the end of run {run.name}")

    def _clean(self, run: RunningJob, left: list[procs.Process] | None = None, pause_s: float = 0.005) -> None:
        """End what a run left behind; once nothing is left it has ended."""
        now = time.monotonic()
        left = self._left(run) if left is None else left
        if left and now >= run.kill_at:
            self._kill(run)
            left = self._left(run)
        if not left and (run not in self._again.helpers.values() or now > run.kill_at + UNKILLABLE_S):
            self._conclude(run, released=True)
            return
        if run.exit is None and now > run.kill_at + UNKILLABLE_S:
            names = ", ".join(f"{entry.pid} ({entry.name}, state {entry.state})" for entry in left[:5])
            text = f"processes that SIGKILL does not kill: {names}"
            run.message = f"{run.message}; {text}" if run.message else text
            self._conclude(run, released=False)
        if run.exit is not None:
            pause_s = RETRY_S
        self.clean_soon(run, pause_s)

    def _kill(self, run: RunningJob) -> None:
        what = f"killing run {run.name}"
        try:
            run.kill(self._strays(run))
        except (OSError, MemoryError) as error:
            self._loop.failed(what, error)
        else:
            self._loop.troubles.note(what, "")

    def _conclude(self, run: RunningJob, *, released: bool) -> None:
        assert run.ended is not None  # noqa: S101 - the leading process went first
        before = run.exit
        if before is not None and before["released"]:
            return
        run.phase = RunPhase.EXITED
        run.exit = {
            "exit_code": run.ended["exit_code"],
            "signal": run.ended["signal"],
            "reason": run.reason,
            "cause": run.cause,
            "message": run.message,
            "at_s": time.time() if before is None else before["at_s"],
            "peak_memory_mib": run.ended["peak_memory_mib"],
            "cpu_s": run.ended["cpu_s"],
            "released": released,
            **(_failed_first(run) if run.reason in ("", None, EndReason.OUT_OF_MEMORY) else {}),
        }
        self._loop.troubles.note(f"killing run {run.name}", "")
        if released and run.group is not None:
            self._again.remove_group(run.group)
            run.group = None
        # Of one that was never begun, by a fault that passes, nothing is to be remembered.
        if run.reason != EndReason.NOT_STARTED or run.cause is Cause.JOB:
            run.saved = False
            self._again.do(run, "exit.json", lambda: self._save(run))
        self._concluded(run)

    def _save(self, run: RunningJob) -> None:
        run.write_exit()
        run.saved = True

    def deadline(self, run: RunningJob) -> None:
        """Kill it if its deadline has come, again and again until it has gone."""
        if run.ended is not None or run.deadline is None or run.deadline > time.monotonic() + 1e-3:
            return
        self._kill(run)
        if time.monotonic() < run.deadline + UNKILLABLE_S:
            self._loop.after(KILL_AGAIN_S, lambda: self.deadline(run), f"the end of run {run.name}")
            return
        # A leading process that SIGKILL does not end is told of as one that it left behind would be.
        run.ended = {"exit_code": None, "signal": None, "cpu_s": None, "peak_memory_mib": run.peak_mib}
        run.kill_at = run.deadline
        self.clean_soon(run)


def _failed_first(run: RunningJob) -> dict[str, int]:
    """Which of its processes failed first while others ran, as direct.py tells; jobs can write there, too."""
    if run.ended is None or run.ended["exit_code"] == 0:
        return {}
    try:
        found = read_json(f"{run.directory}/{FAILED_FILE}")
    except OSError:  # who failed first is worth knowing, but not a run that never ends
        return {}
    if found is None:
        return {}
    rank, code = found.get("rank"), found.get("others_code")
    if type(rank) is not int or type(code) is not int or rank < 0:
        return {}
    return {"failed_rank": rank, "others_code": code}
