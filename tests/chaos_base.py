"""What chaos tests have in common: a head whose jobs users submit and cancel, faults at random moments, and the judge.

Where the nodes come from, and what can happen to them: chaos_nodes.py, chaos_slurm.py. Jobs: chaos_jobs.py.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from chaos_jobs import SCRIPT, Ledger, Wanted, drawn, faults_of, kill_one, marked
from gpuloom.client import Client
from gpuloom.client.errors import ConflictError, ConnectionLostError, NoSchedulerError, ServerError
from gpuloom.executors.runner.restarts import holder
from gpuloom.executors.wire import GUARD_LOCK, LOCK
from real_scheduler import PROGRAM, real
from until import until

T = TypeVar("T")

SLOTS = 2
"""Of each node."""
POLICY = "tiresias:thresholds=0.6/2"
"""Who has had 0.6 s of a slot makes way for those who have not."""
DISK_MIB = 64
PATIENCE_S = 240.0
"""For what must come to its end when all is well again: far more than it takes."""
LATELY_S = 30.0
"""So long after a fault was over somebody may still say that it met it."""


class Process:
    """A program that is started again when it was killed."""

    def __init__(self, argv: list[str], env: dict[str, str], log: Path) -> None:
        self.argv, self._env, self._log = argv, env, log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as said:
            self._process = subprocess.Popen(
                self.argv, stdin=subprocess.DEVNULL, stdout=said, stderr=said, env=self._env, start_new_session=True
            )

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """0: it does not run."""
        return self._process.pid if self._process is not None and self.running else 0

    def kill(self, number: int = signal.SIGKILL) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def wait(self) -> int | None:
        """Its exit code, once it has ended."""
        return None if self._process is None else self._process.wait(PATIENCE_S)

    def again(self) -> tuple[int, str]:
        """Started a second time beside itself: exit code and output."""
        done = subprocess.run(self.argv, capture_output=True, text=True, env=self._env, timeout=PATIENCE_S, check=False)
        return done.returncode, done.stdout + done.stderr


@dataclass
class Outcome:
    """What came of a seed. faults: how often each was done. wrong: what is not as it must be, a sentence each."""

    seed: int
    seconds: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    states: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        def row(name: str, counts: Counter[str]) -> str:
            return f"  {name:9}" + ", ".join(f"{what} {count}" for what, count in sorted(counts.items()))

        rows = [f"seed {self.seed}: {sum(self.states.values())} jobs in {self.seconds:.0f} s"]
        rows += [row("faults", self.faults), row("jobs", self.states), row("attempts", self.reasons)]
        return "\n".join([*rows, *(f"  WRONG: {text}" for text in self.wrong)])


class Chaos(ABC):
    """A head, its nodes, and what is done to them: faults by one thread, what users do by another one."""

    FAULTS: ClassVar[Mapping[str, int]]
    """How often each is drawn."""

    def __init__(self, folder: Path, seed: int, jobs: int, stack: ExitStack, disks: Sequence[str]) -> None:
        """disks: homes in the folder that are to be small disks of their own, where that may be."""
        self.folder, self.outcome = folder, Outcome(seed)
        self.rng = random.Random(f"{seed} faults")
        (folder / "locks").mkdir()
        (folder / "job.sh").write_text(SCRIPT)
        self.wanted = drawn(random.Random(f"{seed} jobs"), folder, jobs)
        self.submitted: dict[int, Wanted] = {}
        self.killed: list[tuple[int, int, int]] = []
        self.later: list[tuple[float, Callable[[], None]]] = []
        self.hurt: set[str] = set()
        """What has a fault now: 'head', 'n1', 'link n1', 'disk n1', 'disk head'."""
        self.mended: dict[str, float] = {}
        """When what had one was well again the last time."""
        self.users = threading.Thread(target=self._use, args=(random.Random(f"{seed} users"),), daemon=True)
        self.env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        self.disks = {name for name in disks if _small_disk(folder / name, stack)}
        self.home = stack.enter_context(real(folder, home=folder / "head"))
        self.processes: dict[str, Process] = {}
        stack.callback(self._end)

    def _process(
        self, name: str, *words: str, more: Sequence[str] = (), token: str = "", before: Sequence[str] = ()
    ) -> Process:
        """A command of gpuloom on the home of this name. more: words behind all others. before: what it is run by."""
        env = self.env | ({"GPULOOM_NODE_TOKEN": token} if token else {})
        argv = [*before, *PROGRAM, *words, "--home", str(self.folder / name), *more]
        self.processes[name] = Process(argv, env, self.folder / f"{name}.said")
        return self.processes[name]

    def _up(self, *words: str, more: Sequence[str] = ()) -> None:
        """Start the head."""
        known = ("--policy", POLICY, "--interval", "500ms", "--port", "0")
        self._process("head", "up", *words, *known, more=more).start()
        until(lambda: (self.home.home / "server.json").exists(), "the head", PATIENCE_S)

    def _end(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()
        for pid in marked(self.folder):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def run(self) -> Outcome:
        """Start all, strike until enough was done, mend all, and look at what came of it."""
        since = time.monotonic()
        try:
            self._begin()
            self.users.start()
            self._strike(max(12, len(self.wanted) // 5))
            self._mend()
            self._settle()
            self._judge()
            self._leave()
        except AssertionError as error:
            self._wrong(str(error))
            self.outcome.wrong += [f"it ran while something held the same: {at}" for at in self._ledger().twice]
        self.outcome.seconds = time.monotonic() - since
        return self.outcome

    @abstractmethod
    def _begin(self) -> None:
        """Start what is there besides the head."""

    @abstractmethod
    def _all_free(self) -> bool:
        """Whether all that there is stands idle, and is fine."""

    @abstractmethod
    def _leave(self) -> None:
        """End what is there besides the head; what is not as it must be then is wrong."""

    def _wrong(self, text: str) -> None:
        self.outcome.wrong.append(text)

    # -- users --------------------------------------------------------------------------------------------------------

    def _use(self, rng: random.Random) -> None:
        """Submit all jobs, some at a time, and cancel those that are to be."""
        left, due = list(self.wanted), list[tuple[float, int]]()
        with Client(self.home.home, user="ann", patience_s=10.0) as client:
            while left or due:
                count = rng.randint(1, 6)
                some, left = left[:count], left[count:]
                if some:
                    key = f"so many are left: {len(left)}"
                    numbers = _insist(partial(client.submit, [one.spec for one in some], idempotency_key=key))
                    for wanted, jobs in zip(some, numbers, strict=True):
                        self.submitted.update(dict.fromkeys(jobs, wanted))
                        if wanted.cancel_s is not None:
                            due += [(time.monotonic() + wanted.cancel_s, job) for job in jobs]
                now = time.monotonic()
                for job in [job for at, job in due if at <= now]:
                    with suppress(ConflictError):  # it has ended
                        _insist(partial(client.cancel, [job]))
                due = [one for one in due if one[0] > now]
                time.sleep(rng.uniform(0.05, 0.6))

    # -- faults -------------------------------------------------------------------------------------------------------

    def _strike(self, faults: int) -> None:
        """So many of them, at random moments; what they need to be over happens meanwhile."""
        done = 0
        while done < faults:
            end = time.monotonic() + self.rng.uniform(0.1, 2.0)
            while time.monotonic() < end:
                self._look()
                time.sleep(0.02)
            (kind,) = self.rng.choices(list(self.FAULTS), list(self.FAULTS.values()))
            if self._do(kind):
                done += 1
                self.outcome.faults[kind] += 1

    def _look(self) -> None:
        """Do what is due; who has ended without being told to is wrong."""
        now = time.monotonic()
        due, self.later = [one for one in self.later if one[0] <= now], [one for one in self.later if one[0] > now]
        for _, do in due:
            do()
        for name, process in self.processes.items():
            if name in self.hurt or process.running:
                continue
            if not self._excused(name):
                self._wrong(f"{name} ended by itself with code {process.wait()} (see {name}.said)")
            self.outcome.faults[f"{'head' if name == 'head' else 'node'} gave up"] += 1
            self._for(1.0, name, process.start)

    def _excused(self, name: str) -> bool:
        """Whether it may have ended by itself: one that begins while its disk is full says so, and gives up."""
        return self._lately("disk")

    def _lately(self, what: str) -> bool:
        """Whether something of this kind is hurt, or was until a moment ago."""
        now = time.monotonic()
        ended = [one for one, at in self.mended.items() if now < at + LATELY_S]
        return any(one.startswith(what) for one in (*self.hurt, *ended))

    def _for(self, seconds: float, what: str, over: Callable[[], object]) -> None:
        """It is hurt until then."""

        def end() -> None:
            self.hurt.discard(what)
            over()
            self.mended[what] = time.monotonic()

        self.hurt.add(what)
        self.later.append((time.monotonic() + seconds, end))

    def _do(self, kind: str) -> bool:
        """A fault; False where it can't be done now."""
        match kind:
            case "head":
                return self._kill("head")
            case "job":
                struck = kill_one(self.rng, self.folder)
                self.killed += [struck] if struck else []
                return struck is not None
            case "second head":
                return self._second("head")
            case "disk of the head":
                return self._fill("head")
        raise AssertionError(kind)

    def _kill(self, name: str) -> bool:
        if name in self.hurt:
            return False
        process = self.processes[name]
        process.kill()
        process.wait()
        self._for(self._while(), name, process.start)
        return True

    def _while(self) -> float:
        """How long something is away, seconds: not at all, shorter, or longer than what waits for it may wait."""
        return self.rng.choice((0.0, self.rng.uniform(0, 4), self.rng.uniform(8, 14)))

    def _kill_of(self, home: Path, *who: str) -> bool:
        """Of a node's runner, guard and standby, all at one moment."""
        pids = [pid for one in who if (pid := pid_of(home, one))]
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return bool(pids)

    def _stand_still(self, what: str, pid: int) -> bool:
        """A process that does not die, and does nothing for a while. what: names it, while it is hurt."""
        if not pid or what in self.hurt:
            return False

        def go_on() -> None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

        os.kill(pid, signal.SIGSTOP)
        self._for(self.rng.choice((self.rng.uniform(0.5, 4), self.rng.uniform(4, 15))), what, go_on)
        return True

    def _second(self, name: str) -> bool:
        """Another one on the same home: refused, and told why."""
        if name in self.hurt or any(one.startswith("disk") for one in self.hurt):
            return False
        if name == "head" and not self._answers():
            return False
        code, said = self.processes[name].again()
        if code != 1 or "here already" not in said:
            self._wrong(f"a second {name} on the same home ended with code {code}: {said}")
        return True

    def _fill(self, name: str) -> bool:
        """Its disk is full for a while."""
        if name not in self.disks or f"disk {name}" in self.hurt:
            return False
        file = self.folder / name / "filled"
        with suppress(OSError), file.open("wb", buffering=0) as out:
            while out.write(bytes(1 << 16)):
                pass
        self._for(self.rng.uniform(1, 6), f"disk {name}", file.unlink)
        return True

    # -- the end ------------------------------------------------------------------------------------------------------

    def _mend(self) -> None:
        """All is well again."""
        while self.later:
            self._look()
            time.sleep(0.02)

    def _settle(self) -> None:
        """Until every job has ended."""
        until_s = time.monotonic() + PATIENCE_S
        while self.users.is_alive() and time.monotonic() < until_s:
            self._look()  # what ends by itself, as its disk was full when it began, is begun again
            self.users.join(0.1)
        assert not self.users.is_alive(), "not all jobs could be submitted"

        def open_jobs() -> list[tuple[int, str, str]] | None:
            self._look()
            with suppress(ConnectionLostError, NoSchedulerError, ServerError):
                states = ("held", "queued", "starting", "running", "stopping", "frozen")
                views = self.home.client.jobs(states=states)
                return [(view["id"], view["state"], str(view["waiting"] or view["where"])) for view in views]
            return None

        end, least = time.monotonic() + PATIENCE_S, len(self.wanted)
        while (found := open_jobs()) is None or found:
            if found is not None and len(found) < least:  # some have ended
                end, least = time.monotonic() + PATIENCE_S, len(found)
            assert time.monotonic() < end, f"these jobs did not end: {found}; {self.home.run('nodes').stdout}"
            time.sleep(0.2)
        until(self._all_free, f"all slots are free: {self.home.run('nodes').stdout}", PATIENCE_S)

    def _judge(self) -> None:
        left = marked(self.folder)
        if left:
            self._wrong(f"processes of jobs are left: {left}")
        shown: dict[int, Any] = {job: self.home.client.show(job) for job in self.submitted}
        self.outcome.states = Counter(view["job"]["state"] for view in shown.values())
        self.outcome.reasons = Counter(str(one["reason"]) for view in shown.values() for one in view["attempts"])
        ledger = self._ledger()
        self.outcome.wrong += faults_of(self.submitted, shown, ledger, self.outcome.faults, self.killed)
        done = self.home.run("db", "check")
        if done.returncode:
            self._wrong(f"db check: {done.stdout}{done.stderr}")
        if len(list(self.home.client.jobs())) != len(shown):
            self._wrong("there are jobs that nobody submitted")

    def _ledger(self) -> Ledger:
        return Ledger(self.folder).read()

    def _answers(self) -> bool:
        with suppress(ConnectionLostError, NoSchedulerError, ServerError):
            return self.home.client.health()["ok"] is True
        return False

    def _nodes(self) -> Sequence[Any]:
        with suppress(ConnectionLostError, NoSchedulerError, ServerError):
            return self.home.client.nodes()
        return ()


def pid_of(home: Path, who: str) -> int:
    """A node's runner, guard or standby, as their locks say, whose holder is checked; 0: there is none."""
    with suppress(OSError):
        note = holder(str(home / (LOCK if who == "runner" else GUARD_LOCK)))
        return 0 if note is None else int(note.get("standby" if who == "standby" else "pid") or 0)
    return 0


def _insist(do: Callable[[], T]) -> T:
    """What a user does who tries again until the scheduler has taken it."""
    end = time.monotonic() + PATIENCE_S
    while True:
        try:
            return do()
        except (ConnectionLostError, NoSchedulerError, ServerError):
            if time.monotonic() > end:
                raise
            time.sleep(0.2)


def _small_disk(place: Path, stack: ExitStack) -> bool:
    """A home that can be filled, where that may be mounted."""
    place.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "tmpfs", str(place)]
    try:
        if os.geteuid() or subprocess.run(words, capture_output=True, check=False).returncode:
            return False
    except FileNotFoundError:
        return False
    stack.callback(subprocess.run, ["umount", "--lazy", str(place)], check=True)
    return True
