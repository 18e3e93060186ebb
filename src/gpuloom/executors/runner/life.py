"""What the runner knows of one run, and its files. The runner (main.py) makes it move."""

from __future__ import annotations

import contextlib
import os
import time

from gpuloom.executors import procs
from gpuloom.executors.runner.cgroups import MIB, Group, settle
from gpuloom.executors.runner.loop import log
from gpuloom.executors.runner.rotation import Log
from gpuloom.executors.wire import (
    EXIT_FILE,
    NOTICE_FILE,
    RUN_FILE,
    STATE_FILE,
    Cause,
    RunPhase,
    StartRequest,
    read_json,
    start_request_of,
    write_atomic,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

FREEZE_TIMEOUT_S = 0.25
ROUNDS = 20
_NOT_NOTED: Mapping[str, Any] = {"argv": (), "cwd": "/", "env": {}, "cpus": None}
"""Fields of a request that are not needed once the run has been started."""
STOP_SIGNAL, CONT_SIGNAL, KILL_SIGNAL, TERM_SIGNAL = 19, 18, 9, 15


MARKS = procs.Marks()


class RunningJob:
    """One run. Times are on the monotonic clock, seconds; `exit` is set once it has ended."""

    def __init__(self, request: StartRequest, home_id: str, boot: str) -> None:
        self.name = request.run
        self.directory = request.directory
        self.grace_s = request.grace_s
        self.limit_s = request.limit_s
        self.memory_mib = request.memory_mib
        self.container = request.container
        self.marker = f"GPULOOM_RUN={home_id}:{self.name}".encode()
        self.gpu_uuids = request.gpu_uuids
        self.suspends = request.suspends and bool(request.gpu_uuids)
        self.moving = ""
        """What its GPU memory is being asked to do: 'suspend', 'resume', or ''."""
        self.away_mib: float | None = None
        """Its GPU memory, while that is in the machine's memory."""
        self.moved_s: float | None = None
        self.refused = ""
        self.rehearse_s = request.rehearse_s if self.suspends else None
        self.rehearsing = False
        """Its memory moves only to see whether its program bears that."""
        self.rehearsed: dict[str, Any] | None = None
        """What was seen of that: the fields of a `Rehearsal`."""
        self.leaves = False
        """It was told to make way while it was being rehearsed."""
        self.waited_s = 0.0
        """Before that rehearsal."""
        self.out_s = 0.0
        """What moving its memory out took last."""
        self.cut_off = 0
        """How often in a row somebody has killed the program that moves it."""
        self.log = Log(self.directory, int(request.log_mib * MIB), request.log_files)
        self.boot = boot
        self.fences = 0
        """How often this node's runs had been ended when it began, because the node's lease was over."""
        self.phase = RunPhase.STARTING
        self.pid: int | None = None
        self.start_ticks: int | None = None
        self.group: Group | None = None
        self.started = time.monotonic()
        self.frozen_s = 0.0
        self.frozen_since: float | None = None
        self.reason = ""
        """An `EndReason`, or the reason given to `stop`; '' if it ended by itself."""
        self.cause = Cause.NONE
        self.message = ""
        self.deadline: float | None = None
        self.ended: dict[str, Any] | None = None
        """How the leading process ended; what it left behind may still be there."""
        self.kill_at = 0.0
        self.exit: dict[str, Any] | None = None
        self.saved = True
        self.acknowledged = self.forgotten = False
        self.turns: dict[str, int] = {}
        """How often something was asked of each of its files: only what came last is tried again."""
        self.held = request.hold
        """It waits to be told to begin; its program has not been run."""
        self.may_begin = False
        """It was told to, before it was ready."""
        self.stopped = False
        """It was frozen by signals to its processes, though it has a group."""
        self.known: set[tuple[int, int]] = set()
        self.peak_mib: float | None = None
        """Most resident memory: of its largest process, or of all together where that is watched."""

    # Files

    def write_run(self) -> None:
        """Say that it has been started. Raises OSError."""
        self._write(
            RUN_FILE,
            {
                "run": self.name,
                "pid": self.pid,
                "start_ticks": self.start_ticks,
                "boot_id": self.boot,
                "fences": self.fences,
                "started": self.started,
                "started_s": time.time() - time.monotonic() + self.started,
                "directory": self.directory,
                "grace_s": self.grace_s,
                "limit_s": self.limit_s,
                "memory_mib": self.memory_mib,
                "container": self.container,
                "gpu_uuids": self.gpu_uuids,
                "log_mib": self.log.limit / MIB,
                "log_files": self.log.keep,
                "hold": self.held,
                "suspends": self.suspends,
                "rehearse_s": self.rehearse_s,
                "cgroup": None if self.group is None else [self.group.version, self.group.places],
            },
        )

    @classmethod
    def read(cls, directory: str, home_id: str) -> RunningJob | None:
        """A run that was started before, from its files; None if it never was, or the job wrote over them."""
        try:
            return cls._read(directory, home_id)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            log(f"{directory}: its files can't be understood ({error!r}): it is no longer watched")
            return None

    @classmethod
    def _read(cls, directory: str, home_id: str) -> RunningJob | None:
        data = read_json(f"{directory}/{RUN_FILE}")
        ended = read_json(f"{directory}/{EXIT_FILE}")
        if data is None:
            if ended is None:
                return None
            run = cls(StartRequest(ended["run"], directory), home_id, "")
            run.exit, run.phase = ended["exit"], RunPhase.EXITED
            return run
        run = cls(start_request_of({**_NOT_NOTED, **data}), home_id, data["boot_id"])
        ticks = data["start_ticks"]
        run.pid, run.start_ticks, run.started = int(data["pid"]), None if ticks is None else int(ticks), data["started"]
        run.fences = int(data.get("fences", 0))
        run.known.add((data["pid"], ticks))
        if data["cgroup"] is not None and (group := Group(*data["cgroup"])).exists():
            run.group = group
        state = read_json(f"{directory}/{STATE_FILE}") or {}
        run.frozen_s, run.frozen_since = state.get("frozen_s", 0.0), state.get("frozen_since")
        run.stopped = state.get("stopped", False)
        run.moving, run.away_mib = state.get("moving", ""), state.get("away_mib")
        run.rehearsing, run.rehearsed = state.get("rehearsing", False), state.get("rehearsed")
        run.out_s, run.waited_s = state.get("out_s", 0.0), run.rehearse_s or 0.0
        run.leaves, run.refused = state.get("leaves", False), state.get("refused", "")
        notice = read_json(f"{directory}/{NOTICE_FILE}")
        if notice is not None:
            run.reason, run.message, run.deadline = notice["reason"], notice["message"], float(notice["monotonic"])
        run.phase = RunPhase.STOPPING if run.reason else RunPhase.PREPARED if run.held else RunPhase.RUNNING
        if run.frozen_since is not None:
            run.phase = RunPhase.FROZEN
        if ended is not None:
            run.exit, run.phase = ended["exit"], RunPhase.EXITED
        return run

    def write_notice(self) -> None:
        """Tell the job, and the next runner, that it is to end. Raises OSError."""
        deadline = self.deadline if self.deadline is not None else time.monotonic()
        self._write(
            NOTICE_FILE,
            {
                "reason": self.reason,
                "deadline_s": time.time() + deadline - time.monotonic(),
                "message": self.message,
                "monotonic": deadline,
            },
        )

    def write_exit(self) -> None:
        """Say how it ended. Raises OSError."""
        assert self.exit is not None  # noqa: S101 - called once it has ended
        self._write(EXIT_FILE, {"run": self.name, "exit": self.exit})

    def write_state(self) -> None:
        """Raises OSError."""
        self._write(
            STATE_FILE,
            {
                "frozen_s": self.frozen_s,
                "frozen_since": self.frozen_since,
                "stopped": self.stopped,
                "moving": self.moving,
                "away_mib": self.away_mib,
                "rehearsing": self.rehearsing,
                "rehearsed": self.rehearsed,
                "out_s": self.out_s,
                "leaves": self.leaves,
                "refused": self.refused,
            },
        )

    def _write(self, name: str, data: Mapping[str, Any]) -> None:
        write_atomic(f"{self.directory}/{name}", data)

    # What it is

    @property
    def at_rest(self) -> bool:
        """It has ended, nothing of it is left, and how it ended is on disk."""
        return self.exit is not None and self.exit["released"] and self.saved

    def status(self) -> dict[str, Any]:
        """As it goes to the scheduler."""
        return {
            "run": self.name,
            "phase": self.phase if self.ended is None or self.exit is not None else RunPhase.STOPPING,
            "pid": self.pid,
            "start_ticks": self.start_ticks,
            "boot_id": self.boot,
            "exit": self.exit,
            "gpu_uuids": self.gpu_uuids,
            "suspended_mib": self.away_mib if self.phase is RunPhase.FROZEN else None,
            "moved_s": self.moved_s,
            "refused": self.refused,
            "rehearsal": self.rehearsed,
        }

    def running_s(self, now: float) -> float:
        """Seconds since its start, those spent frozen not counted."""
        frozen = self.frozen_s + (now - self.frozen_since if self.frozen_since is not None else 0.0)
        return now - self.started - frozen

    def leads(self, entry: procs.Process | None) -> bool:
        """Whether this is its leading process, and alive."""
        return entry is not None and entry.start_ticks == self.start_ticks and not entry.dead

    # Its processes

    def alive(
        self, everything: dict[int, procs.Process] | None = None, strays: Iterable[int] = ()
    ) -> list[procs.Process]:
        """Its living processes."""
        if self.group is not None:
            found = (procs.process(pid) for pid in self.group.pids())
            return [entry for entry in found if entry is not None and not entry.dead]
        if self.pid is None or self.start_ticks is None:
            return []
        return procs.members(
            procs.table() if everything is None else everything,
            leader=self.pid,
            start_ticks=self.start_ticks,
            marker=self.marker,
            marks=MARKS,
            known=self.known,
            strays=strays,
        )

    def signal_group(self, number: int) -> None:
        """To its process group."""
        if self.pid is None or not self.leads(procs.process(self.pid)):
            return
        try:
            os.killpg(self.pid, number)
        except OSError:  # a child that has not made its group yet, one that ended in this moment, another user's
            with contextlib.suppress(OSError):
                os.kill(self.pid, number)

    def kill(self, strays: Iterable[int] = ()) -> None:
        """SIGKILL to all of it."""
        if self.group is not None:
            self.group.kill()
            return
        try:
            found = self._stop_all(strays)
        except OSError:  # one that can't be stopped does not keep the others alive
            procs.send_all(self.alive(strays=strays), KILL_SIGNAL)
            raise
        procs.send_all(found, KILL_SIGNAL)

    def freeze(self) -> bool:
        """Stop all of it where it is; False: not all of it stands still."""
        if self.group is not None:
            try:
                self.group.freeze()
                return settle(self.group, timeout_s=FREEZE_TIMEOUT_S)
            except OSError:
                self.stopped = True
        self._stop_all(())
        return True

    def thaw(self) -> None:
        """Let all of it go on."""
        if self.group is not None:
            self.group.thaw()
        if self.group is None or self.stopped:
            procs.send_all(self.alive(), CONT_SIGNAL)
            self.stopped = False

    def _stop_all(self, strays: Iterable[int]) -> list[procs.Process]:
        """SIGSTOP until a look finds no process that was not stopped before: none of them can fork any more."""
        seen: set[tuple[int, int]] = set()
        found: list[procs.Process] = []
        for _ in range(ROUNDS):
            found = self.alive(strays=strays)
            new = [entry for entry in found if (entry.pid, entry.start_ticks) not in seen]
            if not new:
                break
            procs.send_all(new, STOP_SIGNAL)
            seen.update((entry.pid, entry.start_ticks) for entry in new)
        return found

    def memory_over(self, everything: dict[int, procs.Process]) -> float | None:
        """MiB that its processes use, if that is more than it may; memory they share counts once."""
        if self.memory_mib is None or self.moving or self.away_mib is not None:  # a copy of its GPU memory counts too
            return None
        found = self.alive(everything)
        used = sum(entry.rss for entry in found) / MIB
        if used > self.memory_mib and len(found) > 1:
            used = sum(procs.proportional_bytes(entry.pid) for entry in found) / MIB
        self.peak_mib = max(self.peak_mib or 0.0, used)
        return used if used > self.memory_mib else None
