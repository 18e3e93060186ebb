"""Keeps the runs of the runner (runner.py): starts, stops, freezes, watches, and sees how they end.

None runs twice: a run's process waits until run.json says that it has been started. A runner killed in between leaves
no run.json and a child that ends by itself; killed later it leaves run.json, which is never started again.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import signal
import time

from gpuloom.core.faults import fault_text
from gpuloom.executors import cgroups, procs
from gpuloom.executors.hub import Hub
from gpuloom.executors.launch import Child, fork
from gpuloom.executors.life import TERM_SIGNAL, RunningJob
from gpuloom.executors.limits import Limits
from gpuloom.executors.log_keeper import LogKeeper
from gpuloom.executors.loop import RETRY_S, Loop, log
from gpuloom.executors.wire import LIVE, VERSION, Cause, read_json, remove, write_atomic

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from typing import Any

FIRST_WAIT_S = 20.0
"""For the first scheduler to connect."""
LINGER_S = 1.0
LEFT_GRACE_S = 2.0
"""What a leading process leaves behind is given this long after SIGTERM."""
UNKILLABLE_S = 10.0
"""After so long of SIGKILL the run is reported as ended, with what is left of it named."""
KILL_AGAIN_S = 0.1
GOING_ON = "its processes"
"""Of a run's files (`_files`): what freezes and thaws."""


class Keeper:
    """See the module. home_id: names the home in the environment of jobs and in control groups. files: that jobs may
    have open, their soft limit.

    What it does on files, processes and control groups can fail at any time; then it is told as trouble and done again.
    """

    def __init__(self, home: str, home_id: str, listener: socket.socket, files: int) -> None:
        """Raises OSError."""
        self.home, self.home_id = home, home_id
        self.groups = cgroups.none("not looked for yet")
        self.boot = procs.boot_id()
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        self.nofile = (files, hard)
        with contextlib.suppress(OSError, ValueError):  # then there are fewer files to be had
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        self.runs: dict[str, RunningJob] = {}
        self.loop = Loop()
        self.troubles = self.loop.troubles
        self.hub = Hub(self.loop, listener, self._answer, self._rest)
        self.troubles.changed = lambda text: self.hub.tell({"trouble": text})
        self._limits = Limits(self.loop, self.runs, self.stop, self._over_memory)
        self._unread: set[str] = {""}
        """Runs of an earlier runner that could not be looked at yet; with '' not even their names."""
        self._by_pid: dict[int, RunningJob] = {}
        self._reaped: list[tuple[RunningJob, int, float]] = []
        """Runs whose leading process has been waited for: (run, code, CPU seconds)."""
        self._children: dict[str, Child] = {}
        self._helpers: dict[int, RunningJob] = {}
        self._idle_until = time.monotonic() + FIRST_WAIT_S
        wake, waker = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        self.loop.add(wake, self._reap, "the ends of jobs")
        self._logs = LogKeeper(self.loop)

    def work(self) -> None:
        """Until it is needed no more."""
        self.loop.soon(self._take_over, "taking over the jobs of the runner before")
        while True:
            # What has ended, and is written down, the next runner can tell as well.
            if not self.hub.clients and not self._unread and all(run.at_rest for run in self.runs.values()):
                if time.monotonic() >= self._idle_until:
                    return
                self.loop.at(self._idle_until, lambda: None)
            self.loop.turn()

    def _rest(self) -> None:
        self._idle_until = time.monotonic() + LINGER_S

    def _answer(self, message: dict[str, Any]) -> dict[str, Any] | None:
        reply: dict[str, Any] = {"re": message["id"]}
        op = message["op"]
        if op == "hello":
            trouble = str(self.troubles)
            reply.update(
                version=VERSION, pid=os.getpid(), boot_id=self.boot, limits=self.groups.limits(), trouble=trouble
            )
        elif self._unread:
            return None  # who asks what runs, or starts something, has to know of all
        elif op == "runs":
            reply["runs"] = [run.status() for run in self.runs.values() if not run.acknowledged]
        elif op == "start":
            self.start(message["request"])
        elif (run := self.runs.get(message["run"])) is not None:
            if op == "stop":
                self.stop(run, message["reason"], message["grace_s"])
            elif op == "limit":
                self.limit(run, message["limit_s"])
            elif op == "freeze":
                self.freeze(run)
            elif op == "thaw":
                self.thaw(run)
            elif op == "acknowledge":
                self.acknowledge(run)
        return reply

    def _tell(self, run: RunningJob) -> None:
        if not run.acknowledged:
            self.hub.tell({"status": run.status()})

    # Start

    def start(self, request: dict[str, Any]) -> None:
        """Start a run, unless it ever was."""
        name, directory = request["run"], request["directory"]
        if (known := self.runs.get(name)) is not None:
            self._tell(known)
            return
        run = self.runs[name] = RunningJob(request, self.home_id, self.boot)
        doing, child = f"can't read {directory}", None
        try:
            known = RunningJob.read(directory, self.home_id)
            if known is not None:
                self._register(name, directory)
                self.adopt(known)
                self._tell(known)
                return
            doing = f"can't make {directory}"
            os.makedirs(directory, mode=0o700, exist_ok=True)
            doing = f"can't write {self.home}/{LIVE}/{name}"
            self._register(name, directory)
            doing = "can't make a process"
            child = fork(request, self.nofile)
            entry = procs.process(child.pid)
            run.pid, run.start_ticks = child.pid, None if entry is None else entry.start_ticks
            self._by_pid[child.pid] = run
            self._group(run, request)
            doing = f"can't write {directory}/run.json"
            run.write_run()
            doing = "can't let its process go on"
            child.release()
        except (OSError, MemoryError) as error:
            if child is not None:
                child.drop()
                self._files(run, "run.json", lambda: remove(f"{directory}/run.json"))
            self._not_started(run, Cause.EXECUTOR, fault_text(doing, error))
            return
        self._children[name] = child
        self.loop.add(child.said, lambda _: self._said(run), f"the start of run {name}")

    def _register(self, name: str, directory: str) -> None:
        write_atomic(f"{self.home}/{LIVE}/{name}", {"directory": directory})

    def _group(self, run: RunningJob, request: dict[str, Any]) -> None:
        """Put a child that waits into a control group of its own."""
        group = None
        try:
            group = self.groups.create(run.name, cpus=request["cpus"], memory_mib=run.memory_mib)
            if group is not None and run.pid is not None:
                group.add(run.pid)
                run.group = group
        except OSError as error:
            log(f"run {run.name}: no control group, its processes are watched instead: {error}")
            if group is not None:
                self._remove_group(group, tries=1)  # which does not kill: the run goes on without it

    def _said(self, run: RunningJob) -> None:
        """The pipe of a child ended: its program runs, or it said why not."""
        child = self._children.get(run.name)
        if child is None:
            return
        why = child.heard()
        del self._children[run.name]
        self.loop.drop(child.said)
        os.close(child.said)
        if why is not None:
            cause = Cause(why["cause"])
            if cause is not Cause.JOB:
                self._files(run, "run.json", lambda: remove(f"{run.directory}/run.json"))
            self._not_started(run, cause, why["message"])
            return
        if run.phase == "starting":
            run.phase = "running"
        self._tell(run)
        self._begin(run)

    def _not_started(self, run: RunningJob, cause: Cause, message: str) -> None:
        """Its program was not begun."""
        run.reason, run.cause, run.message = "not_started", cause, message
        run.ended = {"exit_code": None, "signal": None, "cpu_s": None, "peak_memory_mib": None}
        self._conclude(run, released=True)

    def _begin(self, run: RunningJob) -> None:
        """Enforce what a run under way is bound to."""
        self._limits.begin(run)
        self._logs.begin(run)

    # Runs of an earlier runner

    def _take_over(self) -> None:
        """Find the runs that an earlier runner left, and clean up after those that have ended. What can't be read now
        is read later; until then nothing is said or started, as it may be going on."""
        if "" in self._unread:
            os.makedirs(f"{self.home}/{LIVE}", mode=0o700, exist_ok=True)
            self._unread = set(os.listdir(f"{self.home}/{LIVE}"))
        for name in sorted(self._unread):
            path = f"{self.home}/{LIVE}/{name}"
            data = read_json(path)
            run = None if data is None else RunningJob.read(data["directory"], self.home_id)
            if run is None:
                remove(path)  # never started
            else:
                self.adopt(run)
            self._unread.discard(name)
        self.hub.go()
        for group in self.groups.stale(self.runs):
            self._remove_group(group)

    def adopt(self, run: RunningJob) -> None:
        """Watch a run that this runner did not start."""
        self.runs[run.name] = run
        if run.exit is not None:
            run.ended = run.exit
            if not run.exit["released"]:
                self._clean_soon(run)
            return
        self.loop.soon(lambda: self._look_after(run), f"run {run.name}, which an earlier runner started")

    def _look_after(self, run: RunningJob) -> None:
        run.log.load()
        fd = -1
        if run.boot == self.boot and run.pid is not None:
            try:
                fd = os.pidfd_open(run.pid)
            except OSError as error:
                if error.errno not in (errno.ESRCH, errno.EINVAL):
                    raise
        try:
            leads = fd >= 0 and run.pid is not None and run.leads(procs.process(run.pid))
        except BaseException:
            os.close(fd)
            raise
        if leads:
            self.loop.add(fd, lambda fd: self._adopted_ended(run, fd), f"the end of run {run.name}")
            self._begin(run)
            if run.deadline is not None:
                self.loop.at(run.deadline, lambda: self._deadline(run), f"the end of run {run.name}")
            return
        if fd >= 0:
            os.close(fd)
        if run.boot != self.boot:
            run.group, run.pid = None, None
            message = "the machine was restarted while it ran: how it ended is not known"
            self._lost(run, message, Cause.RESTARTED)
        else:
            self._lost(run, "it ended while no runner was there to see how (the runner was killed)")

    def _adopted_ended(self, run: RunningJob, fd: int) -> None:
        self.loop.drop(fd)
        os.close(fd)
        message = "it ended, but the runner that started it had been killed: its exit code is not known"
        self.loop.soon(lambda: self._lost(run, message), f"the end of run {run.name}")

    def _lost(self, run: RunningJob, message: str, cause: Cause = Cause.NONE) -> None:
        """It has ended, and only its parent could have known how."""
        self._out_of_memory(run)
        if not run.reason:
            run.reason, run.cause = "lost", cause
        run.message = run.message or message
        self._leader_ended(run, None, None, None)

    # Ends

    def _reap(self, fd: int) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(fd, 4096)
        while True:
            try:
                pid, status, used = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            self._helpers.pop(pid, None)
            run = self._by_pid.pop(pid, None)
            if run is not None:
                # Not the group's peak: that counts files that were read, which the kernel drops when memory is short.
                run.peak_mib = max(run.peak_mib or 0.0, used.ru_maxrss / 1024)
                code = os.waitstatus_to_exitcode(status)
                self._reaped.append((run, code, used.ru_utime + used.ru_stime))
        if self._reaped:
            self.loop.soon(self._leaders_ended, "the ends of jobs")

    def _leaders_ended(self) -> None:
        for run, _, _ in self._reaped:
            self._said(run)  # first what came first
        # Where the process table has to be read, once for all of them, and after the last of them went.
        watched = any(run.group is None and run.ended is None for run, _, _ in self._reaped)
        everything = procs.table() if watched else None
        while self._reaped:
            run, code, cpu_s = self._reaped[0]
            if run.ended is None:
                if code != 0:
                    self._out_of_memory(run)
                exit_code, number = (None, -code) if code < 0 else (code, None)
                self._leader_ended(run, exit_code, number, cpu_s, everything)
            self._reaped.pop(0)

    def _out_of_memory(self, run: RunningJob) -> None:
        """Give that as the reason, if nothing else was the reason and the kernel ended a process of it."""
        if not run.reason and run.group is not None and run.group.oom_kills():
            limit = f"its limit of {run.memory_mib:,} MiB" if run.memory_mib else "the machine's memory"
            run.reason, run.message = "out_of_memory", f"killed by the kernel: it needed more than {limit}"

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
            self._help(run, "kill")  # the tool has gone, but maybe not the container
        run.kill_at = now + LEFT_GRACE_S if run.deadline is None else max(min(now + LEFT_GRACE_S, run.deadline), now)
        try:
            left = self._left(run, everything)
        except (OSError, MemoryError):
            self._clean_soon(run)
            return
        if left and run.kill_at > now:
            self._thaw_quietly(run)
            with contextlib.suppress(OSError):  # what stays is killed a little later
                procs.send_all(left, TERM_SIGNAL)
        self.loop.soon(lambda: self._clean(run, left), f"the end of run {run.name}")

    def _left(self, run: RunningJob, everything: dict[int, procs.Process] | None = None) -> list[procs.Process]:
        """Its living processes, by this process table, or a new one."""
        if run.group is not None:
            return run.alive()
        everything = procs.table() if everything is None else everything
        return run.alive(everything, self._strays(run, everything))

    def _strays(self, run: RunningJob, everything: dict[int, procs.Process] | None = None) -> list[int]:
        """Orphans that came to us and carry no run's name: the run's, if no other can have had them."""
        if run.group is not None or any(other is not run and other.exit is None for other in self.runs.values()):
            return []
        known = {*self._by_pid, *self._helpers}
        table = procs.table() if everything is None else everything
        return [entry.pid for entry in table.values() if entry.ppid == os.getpid() and entry.pid not in known]

    def _clean_soon(self, run: RunningJob, pause_s: float = 0.0) -> None:
        next_s = min(max(pause_s, 0.005) * 1.5, 0.1)
        self.loop.after(pause_s, lambda: self._clean(run, None, next_s), f"the end of run {run.name}")

    def _clean(self, run: RunningJob, left: list[procs.Process] | None = None, pause_s: float = 0.005) -> None:
        """End what a run left behind; once nothing is left it has ended."""
        now = time.monotonic()
        left = self._left(run) if left is None else left
        if left and now >= run.kill_at:
            self._kill(run)
            left = self._left(run)
        if not left and (run not in self._helpers.values() or now > run.kill_at + UNKILLABLE_S):
            self._conclude(run, released=True)
            return
        if run.exit is None and now > run.kill_at + UNKILLABLE_S:
            names = ", ".join(f"{entry.pid} ({entry.name}, state {entry.state})" for entry in left[:5])
            text = f"processes that SIGKILL does not end: {names}"
            run.message = f"{run.message}; {text}" if run.message else text
            self._conclude(run, released=False)
        if run.exit is not None:
            pause_s = RETRY_S
        self._clean_soon(run, pause_s)

    def _kill(self, run: RunningJob) -> None:
        what = f"killing run {run.name}"
        try:
            run.kill(self._strays(run))
        except (OSError, MemoryError) as error:
            self.loop.failed(what, error)
        else:
            self.troubles.note(what, "")

    def _conclude(self, run: RunningJob, *, released: bool) -> None:
        assert run.ended is not None  # noqa: S101 - the leading process went first
        before = run.exit
        if before is not None and before["released"]:
            return
        run.phase = "exited"
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
        }
        self._logs.end(run)
        self.troubles.note(f"killing run {run.name}", "")
        if released and run.group is not None:
            self._remove_group(run.group)
            run.group = None
        # Of one that was never begun, by a fault that passes, nothing is to be remembered.
        if run.reason != "not_started" or run.cause is Cause.JOB:
            run.saved = False
            self._files(run, "exit.json", lambda: self._save(run))
        self._tell(run)
        if run.acknowledged and released:
            self._forget(run)

    def _save(self, run: RunningJob) -> None:
        run.write_exit()
        run.saved = True

    def _files(self, run: RunningJob, name: str, action: Callable[[], None]) -> None:
        """Do this to one of its files, now or as soon as it can be done. Of what was asked of one the last counts."""
        turn = run.turns[name] = run.turns.get(name, 0) + 1
        what = f"{run.directory}/{name}"

        def again() -> None:
            if run.turns[name] == turn and not run.forgotten:
                action()

        try:
            action()
        except (OSError, MemoryError) as error:
            self.loop.failed(what, error)
            self.loop.after(RETRY_S, again, what)
        else:
            self.troubles.note(what, "")

    def _remove_group(self, group: cgroups.Group, tries: int = 0) -> None:
        try:
            if tries == 0 and group.pids():
                group.kill()
            if group.remove():
                return
        except OSError as error:
            if tries in (0, 200):
                log(f"can't remove a control group: {error}")
        if tries < 200:
            self.loop.after(0.005 if tries < 20 else 0.25, lambda: self._remove_group(group, tries + 1))

    def acknowledge(self, run: RunningJob) -> None:
        """The scheduler has written down how it ended."""
        if run.exit is None:
            return
        run.acknowledged = run.saved = True
        if run.exit["released"]:
            self._forget(run)

    def _forget(self, run: RunningJob) -> None:
        run.forgotten = True
        self.runs.pop(run.name, None)
        self._rest()
        path = f"{self.home}/{LIVE}/{run.name}"
        # One that stays there is told of again by the next runner, and acknowledged again: that does no harm.
        try:
            remove(path)
        except OSError as error:
            self.loop.failed(path, error)
            self.loop.after(RETRY_S, lambda: None if run.name in self.runs else remove(path), path)

    # Stop, freeze, thaw

    def stop(self, run: RunningJob, reason: str, grace_s: float, message: str = "") -> None:
        """Give notice, and end it when `grace_s` is over. The earlier of two deadlines counts."""
        if run.ended is not None:
            return
        deadline = time.monotonic() + grace_s
        if run.deadline is not None and run.deadline <= deadline:
            return
        first = run.deadline is None
        if first:
            run.reason, run.message = reason, message
        run.deadline = deadline
        self._files(run, "notice", run.write_notice)
        self._thaw_quietly(run)
        run.phase = "stopping"
        self.loop.at(deadline, lambda: self._deadline(run), f"the end of run {run.name}")
        if first and grace_s > 0:
            self._files(run, "SIGTERM", lambda: run.signal_group(TERM_SIGNAL))
        self._tell(run)

    def _deadline(self, run: RunningJob) -> None:
        if run.ended is not None or run.deadline is None or run.deadline > time.monotonic() + 1e-3:
            return
        self._kill(run)
        if time.monotonic() < run.deadline + UNKILLABLE_S:
            self.loop.after(KILL_AGAIN_S, lambda: self._deadline(run), f"the end of run {run.name}")
            return
        # A leading process that SIGKILL does not end is told of as one that it left behind would be.
        run.ended = {"exit_code": None, "signal": None, "cpu_s": None, "peak_memory_mib": run.peak_mib}
        run.kill_at = run.deadline
        self._clean_soon(run)

    def _help(self, run: RunningJob, verb: str) -> None:
        """Let a container tool do this to the run's container, without waiting for it."""
        if run.container is None:
            return
        argv = (run.container[0], verb, run.container[1])
        ignored = (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE)
        what = " ".join(argv)

        def ask() -> None:
            null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
            try:
                actions = [(os.POSIX_SPAWN_DUP2, null, fd) for fd in (0, 1, 2)]
                pid = os.posix_spawnp(argv[0], argv, dict(os.environ), file_actions=actions, setsigdef=ignored)
                self._helpers[pid] = run
            except FileNotFoundError as error:  # the tool has been removed: trying again does not help
                log(f"{what}: {error.strerror}")
            finally:
                os.close(null)

        self._files(run, f"({what})", ask)

    def freeze(self, run: RunningJob) -> None:
        """Stop it where it is."""
        if run.phase != "running" or run.ended is not None:
            return
        self._help(run, "pause")
        self._files(run, GOING_ON, lambda: self._freeze_now(run))

    def _freeze_now(self, run: RunningJob) -> None:
        if run.phase != "running" or run.ended is not None:
            return
        if not run.freeze():
            log(f"run {run.name}: a process is slow to freeze")
        run.phase, run.frozen_since = "frozen", time.monotonic()
        self._files(run, "state.json", run.write_state)
        self._tell(run)

    def thaw(self, run: RunningJob) -> None:
        """Let it go on."""
        self._files(run, GOING_ON, lambda: None)  # should it be about to freeze
        if run.phase == "frozen" and run.ended is None:
            self._thaw_quietly(run)
            self._tell(run)

    def _thaw_quietly(self, run: RunningJob) -> None:
        if run.frozen_since is None:
            return
        self._help(run, "unpause")
        self._files(run, GOING_ON, run.thaw)
        run.frozen_s += time.monotonic() - run.frozen_since
        run.phase, run.frozen_since = "running", None
        self._files(run, "state.json", run.write_state)
        self._limits.look(run)

    # Limits

    def limit(self, run: RunningJob, limit_s: float | None) -> None:
        """Change its time limit."""
        if run.ended is not None:
            return
        run.limit_s = limit_s
        self._files(run, "run.json", run.write_run)
        self._limits.look(run)

    def _over_memory(self, run: RunningJob, used_mib: float) -> None:
        """It uses more memory than it may."""
        if not run.reason:
            text = f"it used {used_mib:,.0f} MiB of memory, and may use {run.memory_mib:,}"
            run.reason, run.message = "out_of_memory", text
        now = time.monotonic()
        if run.deadline is None or run.deadline > now:
            run.deadline = now
            self._deadline(run)
