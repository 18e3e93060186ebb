"""Keeps the runs of the runner (main.py): starts, stops, freezes and watches them, and sees how they end.

None runs twice: a run's process waits until run.json says that it has been started. A runner killed in between leaves
no run.json and a child that ends by itself; killed later it leaves run.json, which is never started again. Of a run
that is held run.json says so until it is told to begin: killed before that, its runner leaves one that never ran.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import time

from gpuloom.core.end_reason import EndReason
from gpuloom.core.faults import fault_text
from gpuloom.executors import procs
from gpuloom.executors.runner import cgroups
from gpuloom.executors.runner.again import Again
from gpuloom.executors.runner.ends import LEASE_OVER, Ends
from gpuloom.executors.runner.hub import Hub
from gpuloom.executors.runner.launch import Child, fork
from gpuloom.executors.runner.leased import Leased
from gpuloom.executors.runner.life import KILL_SIGNAL, TERM_SIGNAL, RunningJob
from gpuloom.executors.runner.limits import Limits
from gpuloom.executors.runner.log_keeper import LogKeeper
from gpuloom.executors.runner.loop import RETRY_S, Loop, log
from gpuloom.executors.runner.moves import Moves
from gpuloom.executors.runner.suspender import RESUME
from gpuloom.executors.wire import (
    LIVE,
    VERSION,
    Cause,
    RunPhase,
    StartRequest,
    read_json,
    remove,
    start_request_of,
    write_atomic,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from typing import Any

FIRST_WAIT_S = 20.0
"""For the first scheduler to connect."""
LINGER_S = 1.0
GOING_ON = "its processes"
"""Of a run's files (`Again.do`): what freezes and thaws."""


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
        self.hub = Hub(self.loop, listener, self._answer, self._wait_for_scheduler)
        self.troubles.changed = lambda text: self.hub.tell({"trouble": text})
        self._limits = Limits(self.loop, self.runs, self.stop, self._over_memory)
        self._unread: set[str] = {""}
        """Runs of an earlier runner that could not be looked at yet; with '' not even their names."""
        self._children: dict[str, Child] = {}
        self._idle_until = time.monotonic() + FIRST_WAIT_S
        self._again = Again(self.loop)
        self._ends = Ends(self.loop, self._again, self.runs, self._child_answered, self._thaw_quietly, self._concluded)
        self._logs = LogKeeper(self.loop)
        self._moves = Moves(
            self.loop, self._again, stop=self.stop, away=self._stand_still, back=self._thaw_quietly, report=self._report
        )
        self._leased = Leased(home, home_id, self.loop, self._lease_over)
        self._ends.fenced = lambda run: self._leased.ended(run.fences)

    def work(self) -> None:
        """Until it is needed no more."""
        self.loop.soon(self._take_over, "taking over the jobs of the runner before")
        self.loop.at(self._idle_until, lambda: None)  # it may be that nothing ever wakes it, as nobody comes
        while True:
            # What has ended, and is written down, the next runner can tell as well.
            if not self.hub.clients and not self._unread and all(run.at_rest for run in self.runs.values()):
                if time.monotonic() >= self._idle_until:
                    return
                self.loop.at(self._idle_until, lambda: None)
            self.loop.turn()

    def _wait_for_scheduler(self) -> None:
        self._idle_until = time.monotonic() + LINGER_S

    def _answer(self, message: dict[str, Any]) -> dict[str, Any] | None:
        reply: dict[str, Any] = {"re": message["id"]}
        op = message["op"]
        if op == "hello":
            trouble = str(self.troubles)
            reply.update(
                version=VERSION,
                pid=os.getpid(),
                boot_id=self.boot,
                limits=self.groups.limits(),
                enforces=["cpus"] if self.groups.limits_cpus else [],
                trouble=trouble,
                holds=True,
            )
        elif self._unread:
            return None  # who asks what runs, or starts something, has to know of all
        elif op == "runs":
            reply["runs"] = [run.status() for run in self.runs.values() if not run.acknowledged]
        elif op == "start":
            self.start(start_request_of(message["request"]))
        elif (run := self.runs.get(message["run"])) is not None:
            if op == "go":
                self.go(run)
            elif op == "stop":
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

    def _report(self, run: RunningJob) -> None:
        if not run.acknowledged:
            self.hub.tell({"status": run.status()})

    # Start

    def start(self, request: StartRequest) -> None:
        """Start a run, unless it ever was."""
        name, directory = request.run, request.directory
        if (known := self.runs.get(name)) is not None:
            self._report(known)
            return
        run = self.runs[name] = RunningJob(request, self.home_id, self.boot)
        run.fences = self._leased.fences()
        doing, child = f"can't read {directory}", None
        try:
            known = RunningJob.read(directory, self.home_id)
            if known is not None:
                self._register(name, directory)
                self.adopt(known)
                self._report(known)
                return
            self._leased.look()
            if (refused := self._leased.refusal()) is not None:
                self._ends.not_started(run, *refused)
                return
            doing = f"can't make {directory}"
            os.makedirs(directory, mode=0o700, exist_ok=True)
            doing = f"can't write {self.home}/{LIVE}/{name}"
            self._register(name, directory)
            doing = "can't create a process"
            child = fork(request, self.nofile, self._leased.refusal)
            entry = procs.process(child.pid)
            run.pid, run.start_ticks = child.pid, None if entry is None else entry.start_ticks
            self._ends.children[child.pid] = run
            self._group(run, request)
            doing = f"can't write {directory}/run.json"
            run.write_run()
            doing = "can't let its process continue"
            if request.hold:
                child.hold()
            else:
                child.release()
        except (OSError, MemoryError) as error:
            if child is not None:
                child.drop()
                self._again.do(run, "run.json", lambda: remove(f"{directory}/run.json"))
            self._ends.not_started(run, Cause.EXECUTOR, fault_text(doing, error))
            return
        self._children[name] = child
        self.loop.add(child.said, lambda _: self._child_answered(run), f"the start of run {name}")

    def _register(self, name: str, directory: str) -> None:
        write_atomic(f"{self.home}/{LIVE}/{name}", {"directory": directory})

    def _group(self, run: RunningJob, request: StartRequest) -> None:
        """Put a child that waits into a control group of its own."""
        group = None
        try:
            group = self.groups.create(run.name, cpus=request.cpus, memory_mib=run.memory_mib)
            if group is not None and run.pid is not None:
                group.add(run.pid)
                run.group = group
        except OSError as error:
            log(f"run {run.name}: no control group; its processes are watched instead: {error}")
            if group is not None:
                self._again.remove_group(group, tries=1)  # which does not kill: the run goes on without it

    def _child_answered(self, run: RunningJob) -> None:
        """A child that is held is ready; or its pipe ended: its program runs, or it said why not."""
        child = self._children.get(run.name)
        if child is None:
            return
        if run.held and child.ready():
            run.phase = RunPhase.PREPARED
            if run.may_begin:
                self.go(run)
            else:
                self._report(run)
            return
        why = child.heard()
        del self._children[run.name]
        self.loop.drop(child.said)
        os.close(child.said)
        if why is not None:
            cause = Cause(why["cause"])
            if cause is not Cause.JOB:
                self._again.do(run, "run.json", lambda: remove(f"{run.directory}/run.json"))
            self._ends.not_started(run, cause, why["message"])
            return
        if run.phase is RunPhase.STARTING:
            run.phase = RunPhase.RUNNING
        self._report(run)
        self._enforce_limits(run)

    def go(self, run: RunningJob) -> None:
        """Have one that is held run its program, once it is ready."""
        child = self._children.get(run.name)
        if not run.held or run.ended is not None or child is None:
            return
        if run.phase is not RunPhase.PREPARED:
            run.may_begin = True
            return
        run.held, run.phase, run.started = False, RunPhase.STARTING, time.monotonic()
        try:
            run.write_run()
            child.release()
        except (OSError, MemoryError) as error:
            self._never_began(run, Cause.EXECUTOR, fault_text("can't let its process continue", error))

    def _never_began(self, run: RunningJob, cause: Cause, message: str, reason: str = EndReason.NOT_STARTED) -> None:
        """The end of one that was held."""
        child = self._children.pop(run.name, None)
        if child is not None:
            self.loop.drop(child.said)
            child.drop()
        run.pid = run.start_ticks = None
        self._again.do(run, "run.json", lambda: remove(f"{run.directory}/run.json"))
        self._ends.not_started(run, cause, message, reason)

    def _enforce_limits(self, run: RunningJob) -> None:
        """Enforce what a run under way is bound to."""
        self._limits.begin(run)
        self._logs.begin(run)
        self._moves.rehearse_later(run, run.rehearse_s)

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
        self._leased.look()
        self.hub.go()
        for group in self.groups.stale(self.runs):
            self._again.remove_group(group)

    def adopt(self, run: RunningJob) -> None:
        """Watch a run that this runner did not start."""
        self.runs[run.name] = run
        if run.exit is not None:
            run.ended = run.exit
            if not run.exit["released"]:
                self._ends.clean_soon(run)
            return
        if run.held:
            self.loop.soon(lambda: self._held_before(run), f"run {run.name}, which waited to begin")
            return
        self.loop.soon(lambda: self._watch_adopted(run), f"run {run.name}, which an earlier runner started")

    def _held_before(self, run: RunningJob) -> None:
        """An earlier runner held it: its process has ended with that one, or is about to."""
        if run.boot == self.boot and run.pid is not None:
            entry = procs.process(run.pid)
            if entry is not None and run.leads(entry):
                procs.send_all([entry], KILL_SIGNAL)
        elif run.boot != self.boot:
            run.group = None
        self._never_began(run, Cause.EXECUTOR, "the runner was killed before it was told to begin")

    def _watch_adopted(self, run: RunningJob) -> None:
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
            if run.moving:  # the earlier runner was killed in between
                self._moves.begin(run, run.moving)
            self._enforce_limits(run)
            if run.deadline is not None:
                self.loop.at(run.deadline, lambda: self._ends.deadline(run), f"the end of run {run.name}")
            return
        if fd >= 0:
            os.close(fd)
        if run.boot != self.boot:
            run.group, run.pid = None, None
            message = "the machine was restarted while it ran; how it ended is unknown"
            self._ends.lost(run, message, Cause.RESTARTED)
        else:
            self._ends.lost(run, "it ended while no runner was watching (the runner had been killed)")

    def _adopted_ended(self, run: RunningJob, fd: int) -> None:
        self.loop.drop(fd)
        os.close(fd)
        message = "it ended, but the runner that started it had been killed: its exit code is unknown"
        self.loop.soon(lambda: self._ends.lost(run, message), f"the end of run {run.name}")

    # Ends

    def _concluded(self, run: RunningJob) -> None:
        self._logs.end(run)
        self._report(run)
        if run.acknowledged and run.exit is not None and run.exit["released"]:
            self._forget(run)

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
        self._wait_for_scheduler()
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
        if self._ends.has_ended(run):  # by itself, whatever was meant to end it
            return
        if run.held:
            cause = Cause.NODE if reason == EndReason.NODE else Cause.NONE
            self._never_began(run, cause, message or "it was stopped before it began", reason)
            return
        deadline = time.monotonic() + grace_s
        if run.deadline is not None and run.deadline <= deadline:
            return
        first = run.deadline is None
        if first:
            run.reason, run.message = reason, message
        if run.away_mib is not None and run.moving != RESUME:
            deadline = time.monotonic()  # without its GPU it can't save, and would only wait
        run.deadline = deadline
        self._again.do(run, "notice", run.write_notice)
        self._thaw_quietly(run)
        run.phase = RunPhase.STOPPING
        self.loop.at(deadline, lambda: self._ends.deadline(run), f"the end of run {run.name}")
        if first and grace_s > 0:
            self._again.do(run, "SIGTERM", lambda: run.signal_group(TERM_SIGNAL))
        self._report(run)

    def freeze(self, run: RunningJob) -> None:
        """Stop it where it is."""
        if run.phase is not RunPhase.RUNNING or run.ended is not None:
            return
        if run.suspends:
            self._moves.suspend(run)
        else:
            self._stand_still(run)

    def _stand_still(self, run: RunningJob) -> None:
        self._again.help(run, "pause")
        self._again.do(run, GOING_ON, lambda: self._freeze_now(run))

    def _freeze_now(self, run: RunningJob) -> None:
        if run.phase is not RunPhase.RUNNING or run.ended is not None:
            return
        if not run.freeze():
            log(f"run {run.name}: a process is slow to freeze")
        run.phase, run.frozen_since = RunPhase.FROZEN, time.monotonic()
        self._again.do(run, "state.json", run.write_state)
        self._report(run)

    def thaw(self, run: RunningJob) -> None:
        """Let it go on."""
        self._again.do(run, GOING_ON, lambda: None)  # should it be about to freeze
        self._moves.stay(run)
        if run.phase is not RunPhase.FROZEN or run.ended is not None:
            return
        if run.away_mib is not None:
            if not run.moving:
                self._again.help(run, "unpause")
                self._again.do(run, GOING_ON, run.thaw)  # the driver can't reach one that stands still
                self._moves.resume(run)
            return
        self._thaw_quietly(run)
        self._report(run)

    def _thaw_quietly(self, run: RunningJob) -> None:
        if run.frozen_since is None:
            return
        self._again.help(run, "unpause")
        self._again.do(run, GOING_ON, run.thaw)
        run.frozen_s += time.monotonic() - run.frozen_since
        run.phase, run.frozen_since = RunPhase.RUNNING, None
        self._again.do(run, "state.json", run.write_state)
        self._limits.look(run)

    # Limits

    def limit(self, run: RunningJob, limit_s: float | None) -> None:
        """Change its time limit."""
        if run.ended is not None:
            return
        run.limit_s = limit_s
        self._again.do(run, "run.json", run.write_run)
        self._limits.look(run)

    def _lease_over(self) -> None:
        """The node's lease is over: nothing may run."""
        for run in list(self.runs.values()):
            if run.ended is None and (run.deadline is None or run.deadline > time.monotonic()):
                if not run.reason:
                    run.cause = Cause.NODE
                self.stop(run, EndReason.NODE, 0.0, LEASE_OVER)

    def _over_memory(self, run: RunningJob, used_mib: float) -> None:
        """It uses more memory than it may."""
        if not run.reason:
            text = f"it used {used_mib:,.0f} MiB of memory, but may use {run.memory_mib:,}"
            run.reason, run.message = EndReason.OUT_OF_MEMORY, text
        now = time.monotonic()
        if run.deadline is None or run.deadline > now:
            run.deadline = now
            self._ends.deadline(run)
