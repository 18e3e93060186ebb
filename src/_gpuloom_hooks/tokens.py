"""Jobs that share devices take turns: for each resource there is a token, and who is in a stage on it holds the token.

A token is a lock (`flock`) on a file in the folder of the devices, so that it is free at once when its holder is
killed. The folder's page (`page.py`) says whether there is anybody to take turns with; alone a stage costs one look at
it. Who joins or leaves changes the page, and nobody is restarted.

- The one who has waited longest goes next. So who has just held a token lets a waiting one go first. Where stages are
  steady and another order does more, tokens go round in that order (`rotation.py`).
- A process holds one token at most: in a nested stage it gives that of the outer one back until it returns to it. So no
  two wait for each other.
- Nobody waits for long: a holder that is frozen or stuck is noted on the page, and the others go on without its token
  until it gives it back.
- One process of a job takes the tokens for all of its ranks, the first of rank 0: the others keep its pace as they
  exchange gradients. Ranks that took tokens one by one could wait for each other.
- A job that fetches its data ahead gains nothing by turns, and takes none.
- A GPU goes on after the call has returned. Where PyTorch uses CUDA, an event marks the end of the stage, and a thread
  gives the token back when it has come.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import select
import sys
import threading
from contextlib import suppress
from queue import SimpleQueue
from time import monotonic_ns

from . import page as pages
from . import say, switch_off
from .rotation import Rotation, owed, pass_by

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

HOOK = "tokens"
SETTING = "GPULOOM_DEVICES_DIR"
"""Environment variable: the folder of the devices that the job was given. Not set: no turns are taken."""
STORAGE, CPU, GPU, NETWORK = range(pages.RESOURCES)
DATA = (STORAGE, CPU)
"""Stages in which a script waits for its data."""

LOOK_MS = 5
"""A waiting one that nobody wakes looks so often whether the token is free: its holder may have been killed."""
LEAST_PATIENCE_NS, MOST_PATIENCE_NS = 1_000_000_000, 10_000_000_000
PATIENT = 4
"""A holder is stuck once somebody has waited for so many times the longest turn, between these two."""
JUDGE_EVERY = 32
"""Iterations after which it is judged whether the job fetches ahead."""
AHEAD, NOT_AHEAD = 0.02, 0.05
"""Below this part of its time that it waits for data a job counts as fetching ahead; above, it does so no more."""
AHEAD_NS = 500_000
"""And it waits less than this in an iteration: a fetched batch costs so much to take out of a queue."""
SEAT_EVERY = 64
"""A process that is not its job's first asks again after so many iterations: the first may have ended."""


def join(listeners: list[Any]) -> None:
    """Have this process take turns on the devices that it was given."""
    listeners.append(Tokens(os.environ[SETTING]))


class Tokens:
    """A listener of `stages`. All calls come from the thread that trains."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.job = _number("GPULOOM_JOB_ID")
        self.off = False
        """Takes no part: another rank, or something has failed."""
        self.stack = []  # type: list[int]
        self.held = -1
        """The resource whose token this thread holds; -1: none."""
        self.held_since_ns = 0
        self.pending = None  # type: Any
        """Event on the GPU after which its token goes back."""
        self.pending_since_ns = 0
        self.lock = threading.RLock()
        """Of `pending`, and of giving back: the thread that waits for a GPU does both. Taken again where a signal comes
        meanwhile and the script's handler begins a stage."""
        self.device = Device(self._gpu_done)
        self._forget()
        os.register_at_fork(after_in_child=self._in_child)
        atexit.register(self._at_exit)

    def _forget(self) -> None:
        self.page = None  # type: Any
        self.words = self.longs = ()  # type: Any
        self.seat = -1
        self.base = self.asks_at = self.iterations = 0
        self.files = []  # type: list[int]
        self.tokens = []  # type: list[int]
        self.wakes = {}  # type: dict[int, int]
        self.known = {}  # type: dict[int, tuple[int, int]]
        """Device and inode of each of our descriptors."""
        self.poll = None  # type: Any
        self.judged = Judged()
        self.rotation = None  # type: Any

    # -- what `stages` calls ------------------------------------------------------------------------------------------

    def begin(self, resource: int) -> None:
        """A stage begins: it goes on when it has the resource's token."""
        if self.off:
            return
        self.stack.append(resource)
        if self.seat < 0 and (self.iterations < self.asks_at or not self._sit()):
            return
        if self.held < 0 and not self.words[pages.AT_ON]:  # alone: all that a stage costs
            return
        try:
            self._let_go()
            if self._takes_turns():
                self._take(resource)
            if self.judged.stage < 0:
                self.judged.begins(resource)
        except Exception as error:
            self._fail(error)

    def end(self, resource: int) -> None:
        """It ends: its token goes back; the stage around it takes its own again."""
        stack = self.stack
        while stack and stack.pop() != resource:
            pass
        if self.off or self.seat < 0 or (self.held < 0 and not self.words[pages.AT_ON]):
            return
        try:
            if self.judged.stage == resource:
                self.judged.ends()
            self._let_go()
            if stack and self._takes_turns():
                self._take(stack[-1])
        except Exception as error:
            self._fail(error)

    def iteration(self) -> None:
        """An iteration has been made."""
        self.iterations += 1
        if self.off or self.seat < 0 or not self.words[pages.AT_ON]:
            return
        longs, base = self.longs, self.base
        longs[base + pages.ITERATIONS] = self.iterations
        self.rotation.iteration()
        ahead = self.judged.iteration(longs[base + pages.WAITED_NS])
        if ahead is not None and ahead != bool(longs[base + pages.APART]):
            longs[base + pages.APART] = int(ahead)
            say(HOOK, "fetches its data ahead: takes no turns" if ahead else "waits for its data: takes turns")

    # -- turns --------------------------------------------------------------------------------------------------------

    def _takes_turns(self) -> bool:
        return bool(self.words[pages.AT_ON]) and not self.longs[self.base + pages.APART]

    def _take(self, resource: int) -> None:
        """Wait for the token, but not for ever."""
        if resource == GPU and self.pending is not None and self._again():
            return
        stuck = self.words[pages.AT_STUCK + resource]
        if (stuck or self._may(resource)) and self._try(resource):
            pass
        elif not stuck:
            self._wait(resource)
        if self.held >= 0:
            self.longs[self.base + pages.TURNS] += 1

    def _again(self) -> bool:
        """Keep the GPU's token, which has not gone back yet; False: others wait for it, and now it has gone back."""
        with self.lock:
            event = self.pending
            if event is not None and next(self.page.others(self.seat, GPU), None) is None:
                self.held, self.held_since_ns, self.pending = GPU, self.pending_since_ns, None
                return True
        if event is not None:
            event.synchronize()
            self._gpu_done(event)
        return False

    def _may(self, resource: int) -> bool:
        """Whether it is this one's turn before it waits: nobody else does, or tokens go round, and it is next."""
        if self.words[pages.AT_CYCLE]:
            return not owed(self.page, self.seat, resource)
        return next(self.page.others(self.seat, resource), None) is None

    def _try(self, resource: int) -> bool:
        try:
            fcntl.flock(self._ours(self.tokens[resource]), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        self.words[pages.AT_STUCK + resource] = 0
        self.words[pages.AT_HOLDER + resource] = self.seat + 1
        if self.words[pages.AT_CYCLE]:
            self.rotation.turn(resource)
        self.held, self.held_since_ns = resource, monotonic_ns()
        return True

    def _wait(self, resource: int) -> None:
        words, longs = self.words, self.longs
        since_at = self.base + pages.SINCE + resource
        since = monotonic_ns()
        patience_ns = min(max(PATIENT * 1000 * longs[pages.AT_LONGEST], LEAST_PATIENCE_NS), MOST_PATIENCE_NS)
        late = False
        while True:
            longs[since_at] = since  # each time: one who came later may have taken us for dead
            if words[pages.AT_CYCLE]:
                first = owed(self.page, self.seat, resource)
                slips = bool(first) and monotonic_ns() - since > 1000 * words[pages.AT_CYCLE_US]
                if (slips or not first) and self._try(resource):
                    if slips:
                        pass_by(self.page, first, resource)
                    break
            else:
                earlier = [seat for seat, other in self.page.others(self.seat, resource) if other < since]
                if (late or not earlier) and self._try(resource):
                    for seat in earlier:  # the token was free, and they did not take it: frozen, or dead
                        longs[pages.AT_SEATS + seat * pages.SEAT_WORDS + pages.SINCE + resource] = 0
                    break
            if not words[pages.AT_ON]:
                break
            if words[pages.AT_STUCK + resource] or monotonic_ns() - since > patience_ns:
                words[pages.AT_STUCK + resource] = words[pages.AT_HOLDER + resource] or pages.SEATS + 1
                words[pages.AT_GAVE_UP + resource] += 1
                break
            late = not self.poll.poll(LOOK_MS)
            if not late:
                os.read(self._ours(self.wakes[self.seat]), 64)
        longs[since_at] = 0
        longs[self.base + pages.WAITED_NS] += monotonic_ns() - since

    def _let_go(self) -> None:
        """Give the token back: that of the GPU when the GPU has done what it was given."""
        resource = self.held
        if resource < 0:
            return
        with self.lock:
            self.held = -1
            if resource == GPU:
                self.pending, self.pending_since_ns = self.device.mark(), self.held_since_ns
                if self.pending is not None:
                    return
            self._give_back(resource, self.held_since_ns)

    def _gpu_done(self, event: Any) -> None:
        """The GPU has come to this event."""
        with self.lock:
            if self.pending is event:
                self.pending = None
                self._give_back(GPU, self.pending_since_ns)

    def _give_back(self, resource: int, since_ns: int) -> None:
        """The lock is held."""
        words, longs = self.words, self.longs
        if words[pages.AT_STUCK + resource] == self.seat + 1:
            words[pages.AT_STUCK + resource] = 0
        held_ns = monotonic_ns() - since_ns
        if held_ns <= MOST_PATIENCE_NS // PATIENT:  # longer ones are no turns
            self.rotation.held(resource, held_ns)
            longs[pages.AT_LONGEST] = max(longs[pages.AT_LONGEST], held_ns // 1000)
        words[pages.AT_HOLDER + resource] = 0
        fcntl.flock(self._ours(self.tokens[resource]), fcntl.LOCK_UN)
        waiting = sorted((since, seat) for seat, since in self.page.others(self.seat, resource))
        for _, seat in waiting:
            if not words[pages.AT_CYCLE] or not owed(self.page, seat, resource):
                self._wake(seat)
                break

    def _wake(self, seat: int) -> None:
        try:
            if seat not in self.wakes:
                self.wakes[seat] = self._open(f"wake.{seat}", os.O_NONBLOCK)
            os.write(self._ours(self.wakes[seat]), b"1")
        except (FileNotFoundError, BlockingIOError):
            pass  # it looks by itself, or has been woken often enough

    # -- its seat -----------------------------------------------------------------------------------------------------

    def _sit(self) -> bool:
        """Take a seat at the page, if this is the job's first process to ask; whether it has one."""
        self.asks_at = self.iterations + SEAT_EVERY
        if _number("RANK") > 0:  # not before now: a rank that was forked learns it after this was made
            self.off = True
            return False
        try:
            if not self._locked(os.path.join(os.environ.get("GPULOOM_RUN_DIR", self.folder), "turns")):
                return False
            page = pages.Page(self.folder)
            seat = next((seat for seat in range(pages.SEATS) if self._locked(self._place("seat", seat))), -1)
            if seat < 0:
                self._leave()
                return False
            self.page, self.words, self.longs = page, page.words, page.longs
            self.tokens = [self._open(f"token.{resource}", os.O_CREAT) for resource in range(pages.RESOURCES)]
            wake = self._place("wake", seat)
            if not os.path.exists(wake):
                os.mkfifo(wake, 0o600)
            self.wakes[seat] = self._open(f"wake.{seat}", os.O_NONBLOCK)
            self.poll = select.poll()
            self.poll.register(self.wakes[seat], select.POLLIN)
            self.base = pages.AT_SEATS + seat * pages.SEAT_WORDS
            for at in range(pages.SEAT_WORDS):
                self.longs[self.base + at] = 0
            self.longs[self.base + pages.JOB], self.longs[self.base + pages.PID] = self.job, os.getpid()
            self.rotation = Rotation(page, seat)
            self.seat = seat
        except Exception as error:
            self._fail(error)
            return False
        return True

    def _place(self, name: str, number: int) -> str:
        return os.path.join(self.folder, f"{name}.{number}")

    def _open(self, name: str, flags: int) -> int:
        file = os.open(os.path.join(self.folder, name), os.O_RDWR | os.O_CLOEXEC | flags, 0o600)
        self.known[file] = _identity(file)
        return file

    def _ours(self, file: int) -> int:
        """The descriptor. Raises OSError: the script has closed it; it may be of a file of the script's by now."""
        if self.known[file] != _identity(file):
            raise OSError("the script has closed the files of the tokens")
        return file

    def _shut(self, files: list[int]) -> None:
        """Close those that are still ours."""
        for file in files:
            with suppress(OSError):  # nothing of ours is left in it
                os.close(self._ours(file))

    def _locked(self, path: str) -> bool:
        """Whether the file is ours now, for as long as this process lives."""
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_CREAT, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            return False
        self.files.append(file)
        self.known[file] = _identity(file)
        return True

    def _leave(self) -> None:
        page, asks_at, iterations = self.page, self.asks_at, self.iterations
        self._shut(self._all_files())
        self._forget()
        self.asks_at, self.iterations = asks_at, iterations
        if page is not None:
            page.close()

    def _all_files(self) -> list[int]:
        return [*self.files, *self.tokens, *self.wakes.values()]

    def close(self) -> None:
        """Leave: at the end of the process, or where something has failed."""
        self.off = True
        with self.lock:
            held = [(GPU, self.pending_since_ns)] if self.pending is not None else []
            held += [(self.held, self.held_since_ns)] if self.held >= 0 else []
            self.held, self.pending = -1, None
            try:
                for resource, since_ns in held:
                    self._give_back(resource, since_ns)
            except OSError:
                pass  # the script has closed the files, and so has given back all tokens
            if self.seat >= 0:
                self.longs[self.base + pages.PID] = 0
            self._leave()

    def _at_exit(self) -> None:
        self.close()
        self.device.finish()

    def _fail(self, error: BaseException) -> None:
        switch_off(HOOK, error)
        self.off = True
        try:
            self.close()
        except Exception as again:  # ours; the job runs on, and its tokens end with it
            say(HOOK, f"can't leave: {again}")

    def _in_child(self) -> None:
        """A forked process has no part in what it inherited; should it train, it asks for a seat of its own."""
        page = self.page
        self._shut(self._all_files())  # the parent's locks stay with the parent, and end with it
        self.lock, self.held, self.pending, self.stack = threading.RLock(), -1, None, []
        self.device = Device(self._gpu_done)
        self._forget()
        if page is not None:
            page.close()


def _identity(file: int) -> tuple[int, int]:
    found = os.fstat(file)
    return found.st_dev, found.st_ino


def _number(variable: str) -> int:
    text = os.environ.get(variable, "")
    return int(text) if text.isdigit() else 0


class Device:
    """Marks on what PyTorch has given to the GPU, and a thread that waits for them. Without CUDA there are none.

    done: called with a mark that the GPU has come to.
    """

    def __init__(self, done: Callable[[Any], None]) -> None:
        self._done = done
        self._thread = None  # type: threading.Thread | None
        self._events = SimpleQueue()  # type: SimpleQueue[Any]

    def mark(self) -> Any:
        """An event that comes when the GPU has done all that it was given until now; None: there is no GPU in use."""
        cuda = getattr(sys.modules.get("torch"), "cuda", None)
        if cuda is None or not cuda.is_available() or not cuda.is_initialized():
            return None
        event = cuda.Event(blocking=True)  # whoever waits for it sleeps
        event.record()
        if self._thread is None:
            self._thread = threading.Thread(target=self._follow, name="gpuloom-tokens", daemon=True)
            self._thread.start()
        self._events.put(event)
        return event

    def finish(self) -> None:
        """Python is about to end: so does the thread. One that came back from CUDA to a Python that has gone would
        abort the process (pybind11 gives the interpreter's lock back in a destructor, which must not be unwound)."""
        if self._thread is not None:
            self._events.put(None)
            self._thread.join(MOST_PATIENCE_NS / 1e9)

    def _follow(self) -> None:
        while True:
            event = self._events.get()
            if event is None:
                return
            try:
                event.synchronize()
            except Exception as error:  # of CUDA: the script will see it as well
                say(HOOK, f"the GPU's event failed: {error}")
            try:
                self._done(event)
            except Exception as error:  # ours; its token goes back with the process at the latest
                switch_off(HOOK, error)


class Judged:
    """How much of its time a job waits for data: next to nothing where it fetches ahead."""

    def __init__(self) -> None:
        self.stage = -1
        """The stage for data that is open now; -1: none."""
        self.began_ns = self.data_ns = self.stages = self.count = 0
        self.since_ns = self.waited_ns = 0

    def begins(self, resource: int) -> None:
        """A stage has begun, and has its token."""
        if resource in DATA:
            self.stage, self.began_ns = resource, monotonic_ns()

    def ends(self) -> None:
        """The stage for data ends."""
        self.stage = -1
        self.stages += 1
        self.data_ns += monotonic_ns() - self.began_ns

    def iteration(self, waited_ns: int) -> bool | None:
        """Whether it fetches ahead, every `JUDGE_EVERY` iterations; None: not known now, or it announces no stages for
        data. waited_ns: for tokens, so far."""
        self.count += 1
        if self.count < JUDGE_EVERY:
            return None
        now_ns, ahead = monotonic_ns(), None
        if self.since_ns and self.stages:
            lasted_ns = now_ns - self.since_ns - (waited_ns - self.waited_ns)
            if self.data_ns < min(AHEAD * lasted_ns, AHEAD_NS * self.count):
                ahead = True
            elif self.data_ns > NOT_AHEAD * lasted_ns:
                ahead = False
        self.since_ns, self.waited_ns = now_ns, waited_ns
        self.data_ns = self.stages = self.count = 0
        return ahead
