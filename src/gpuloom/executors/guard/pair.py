"""The guard and its standby: one sleeps until the lease is over and ends what runs, the other is there should it fail.

They share a lock, so it is held while one of them lives. When the standby dies the guard forks another; when the guard
dies the standby, which has all in memory that it needs, is the guard from then on, and forks one. The standby looks
itself a second after the deadline: a guard that is stopped or stuck keeps no run alive.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import time

from gpuloom.executors.guard.alarm import Alarm, Removal
from gpuloom.executors.guard.ending import Ending
from gpuloom.executors.lease import NO_LEASE, LeaseFile, boottime_ns
from gpuloom.executors.runner.cgroups import Cgroups
from gpuloom.executors.runner.life import RunningJob
from gpuloom.executors.runner.loop import log
from gpuloom.executors.runner.restarts import Restarts, free, holder, sign, signed, unsign, watched
from gpuloom.executors.wire import GUARD_MARK, LIVE, LOCK, NODE_LOCK, RUNNER_LOG, read_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

STANDBY_S = 1.0
"""How much later than the guard the standby ends what runs."""
OVER_S = 1.0
"""While the lease is over: between looks at whether it still is."""
FAULT_S, LASTING_S = 0.2, 2.0
"""After a fault, when to look again: at first, and where it lasts."""
OTHERS_FIRST_S = 1.0
"""Whoever else starts the runner again may do so first."""
UNSIGNED_S = 1.0
"""Where we could not say who we are, when to try again."""
LONGEST_S = 60.0
"""Between looks at whether the runner lives."""
ABANDONED_S = 600.0
"""A lease that has been over for so long, of a node process that is gone, is taken away: nobody comes back for it."""


class Guard:
    """Guard or standby. lock: our file, held. score: of the OOM killer, as it was, for what we start."""

    def __init__(self, home: str, home_id: str, lock: int, score: str) -> None:
        """Raises OSError."""
        self._home, self._home_id, self._lock, self._score = home, home_id, lock, score
        self._lease = LeaseFile(home)
        self._ending = Ending(home, home_id, self._lease)
        self._alarm, self._removal = Alarm(), Removal(self._lease.path)
        self._late_s = 0.0
        """0 for the guard."""
        self._other: int | None = None
        """A pidfd: of the standby, or of the guard."""
        self._standby: int | None = None
        self._signed = False
        """Whether others can read who we are."""
        self._runner: int | None = None
        """A pidfd."""
        self._runner_gone_s = 0.0
        self._standbys, self._runners = Restarts(), Restarts()
        self._faults: dict[str, float] = {}
        """By what failed last, the pause before it is tried again."""
        self._scan_s = 0.0
        """While the lease is over, when to look for processes again; on the monotonic clock."""
        self._began_ns = boottime_ns()

    def work(self) -> None:
        """Until there is no lease any more and nothing to end."""
        while (wait_s := self._turn()) is not None or not self._ends():
            self._sleep(boottime_ns() + int((wait_s or 0.0) * 1e9))
        if self._standby is not None and not self._late_s:
            with contextlib.suppress(OSError):
                os.kill(self._standby, signal.SIGKILL)

    def _ends(self) -> bool:
        """Whether it may end, there being no lease. Who makes one looks for a guard afterwards: we say first that there
        is none, and then look for a lease once more, so that one of both sees the other."""
        if self._late_s:
            return True
        try:
            unsign(self._lock)
        except OSError as error:
            log(f"can't write that the guard ends: {error.strerror}")
        self._signed = False
        if not self._lease.there():
            return True
        self._began_ns = boottime_ns()
        return False

    def _turn(self) -> float | None:
        """What is to be done now. Seconds until the next time; None: nothing ever."""
        until_s = self._tried("the lease", self._look)
        if until_s is None:
            return None
        others_s = self._tried("the others", self._look_at_others)
        return min(until_s, LONGEST_S if others_s is None else others_s, LONGEST_S)

    def _tried(self, what: str, look: Callable[[], float | None]) -> float | None:
        """What it says; if it fails, when to try again."""
        try:
            found = look()
        except Exception as error:  # whatever it is, also a bug of ours: who would look after the runs?
            log(f"can't look after {what}: {error!r}")
            self._faults[what] = min(2 * self._faults.get(what, FAULT_S / 2), LASTING_S)
            return self._faults[what]
        self._faults.pop(what, None)
        return found

    def _look(self) -> float | None:
        """End what runs, if the lease is over. Seconds until to look at it again; None: there is none any more."""
        self._removal.arm()  # first: what is taken away from here on wakes us
        deadline = self._lease.deadline_ns()
        if deadline == NO_LEASE:
            return None
        over_s = (boottime_ns() - deadline) / 1e9 - self._late_s
        if over_s < 0 and not self._ending.unfinished():
            self._ending.again()
            self._scan_s = 0.0
            return -over_s
        now = time.monotonic()
        if now >= self._scan_s:
            self._scan_s = now + self._ending.step()
        if not self._ending.unfinished() and (not self._lease.there() or self._abandoned(deadline)):
            return None
        # It may be extended at any moment, and then be over again before the next look for processes.
        return min(max(self._scan_s - time.monotonic(), 0.0), OVER_S)

    def _abandoned(self, deadline_ns: int) -> bool:
        """Take the lease away, if nobody has used it for long and nothing is left of what ran under it."""
        over_s = (boottime_ns() - max(deadline_ns, self._began_ns)) / 1e9
        if self._late_s or over_s < ABANDONED_S or not self._lease.settled():
            return False
        lock = os.open(f"{self._home}/{NODE_LOCK}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            # A node process that starts now waits for this lock, and makes a lease of its own once it has it.
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            if self._lease.deadline_ns() != deadline_ns or self._left_alone():
                return False
            log(f"no node process was started again for {ABANDONED_S:g} s, and nothing is left here: the guard ends")
            self._lease.remove()
        except BlockingIOError:
            return False  # there is one; it does not reach the head
        finally:
            os.close(lock)
        return True

    def _sleep(self, until_ns: int) -> None:
        watching = [fd for fd in (self._other, self._runner, self._removal.fd) if fd is not None and fd >= 0]
        try:
            ready = self._alarm.wait(until_ns, watching)
        except (OSError, MemoryError):
            time.sleep(FAULT_S)
            return
        if self._removal.fd in ready:
            self._removal.hear()
        if self._other in ready:
            self._other = self._closed(self._other)
            if self._late_s:
                log("the guard has died: its standby takes its place")
                self._late_s, self._signed = 0.0, False
        if self._runner in ready:
            self._runner = self._closed(self._runner)
            self._runner_gone_s = time.monotonic()

    @staticmethod
    def _closed(fd: int | None) -> None:
        if fd is not None:
            os.close(fd)

    # The others

    def _look_at_others(self) -> float:
        """Start what has died. Seconds until to look again."""
        if self._late_s:
            return LONGEST_S
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        now = time.monotonic()
        if not self._signed:
            self._sign()
        if self._other is None and self._standbys.due(now):
            self._fork()
        if self._late_s:
            return LONGEST_S  # we are the standby now
        waits = [LONGEST_S if self._signed else UNSIGNED_S]
        if self._other is None:
            waits.append(self._standbys.wait_s(now))
        if self._runner is None:
            waits.append(self._find_runner(now))
        return min(waits)

    def _fork(self) -> None:
        """Have a standby. In the child: be it."""
        me = os.pidfd_open(os.getpid())
        try:
            child = os.fork()
        except BaseException:
            os.close(me)
            raise
        if child == 0:
            self._late_s, self._other, self._standby = STANDBY_S, me, None
            with contextlib.suppress(OSError):
                os.setsid()
            for fd in (self._alarm.fd, self._removal.fd):
                if fd >= 0:
                    os.close(fd)  # both would be shared
            self._alarm, self._removal = Alarm(), Removal(self._lease.path)
            self._runner = self._closed(self._runner)
            return
        os.close(me)
        try:
            self._other = watched(child)
        except BaseException:  # one that can't be watched would be one too many
            os.kill(child, signal.SIGKILL)
            raise
        self._standby = child
        self._sign()

    def _sign(self) -> None:
        self._signed = sign(self._lock, {"standby": self._standby})

    def _find_runner(self, now: float) -> float:
        """Watch the runner that there is, or start another where it has left runs."""
        lock = f"{self._home}/{LOCK}"
        note = signed(lock)
        if note is None:
            return LONGEST_S
        version, bases = note["groups"]
        self._ending.groups = Cgroups(version, bases)
        if holder(lock) is not None:
            self._runner = watched(note["pid"])
            return LONGEST_S if self._runner is not None else OTHERS_FIRST_S
        if not free(lock) or not self._left_alone():
            return LONGEST_S
        wait_s = max(self._runner_gone_s + OTHERS_FIRST_S - now, self._runners.wait_s(now))
        if wait_s > 0:
            return wait_s
        if self._runners.due(now):
            log("the runner has died: another one is started")
            self._start(note["argv"])
        return OTHERS_FIRST_S

    def _left_alone(self) -> bool:
        """Whether there are runs whose end nobody has written down."""
        try:
            names = os.listdir(f"{self._home}/{LIVE}")
        except FileNotFoundError:  # there never was a runner
            return False
        for name in names:
            data = read_json(f"{self._home}/{LIVE}/{name}")
            run = None if data is None else RunningJob.read(data["directory"], self._home_id)
            if run is not None and (run.exit is None or not run.exit["released"]):
                return True
        return False

    def _start(self, argv: list[str]) -> None:
        """A program in the background, as if we had not been in between."""
        child = os.fork()
        if child:
            return
        try:
            os.setsid()
            with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
                file.write(self._score)  # jobs would inherit ours
            for number in (signal.SIGINT, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
            said = os.open(f"{self._home}/{RUNNER_LOG}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.dup2(said, 1)
            os.dup2(said, 2)
            environment = {key: text for key, text in os.environ.items() if key != GUARD_MARK}
            os.execve(argv[0], argv, environment)  # noqa: S606 - our own program, no shell
        finally:
            os._exit(127)
