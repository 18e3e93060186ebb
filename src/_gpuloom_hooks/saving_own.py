"""Scripts with a loop of their own, plain PyTorch and Accelerate: the checkpoints that they write by themselves.

Where a loop stands is in the script's own variables, which can't be put back from outside. So nothing is added to what
the script saves. But it is told to gpuloom, so that it counts as kept, and on notice the script goes on to its next
checkpoint, if that is to be expected before the deadline, and leaves then. Else it is ended at once, as without us.

A checkpoint is what has the state of an optimizer in it. A script that was started again, and loaded none before its
first step, begins at the beginning each time: its checkpoints don't count.

Rank 0 decides. The others learn from the store of torch.distributed that there are checkpoints, and at which step all
leave.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time

from . import at_switch_off, guarded, notice, ranks, report, saving, say, stages

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

HOOK = "saving_own"
LOOK_EVERY_S = 1.0
"""How often other ranks look whether rank 0 has written a checkpoint."""
SLACK = 1.2
"""Checkpoints come a little later than the time between the last two says."""
DEEPEST = 3
LEAVE, END = 85, 1


class Own:
    """What is known of this process's checkpoints."""

    def __init__(self) -> None:
        self.steps = 0
        self.began_s = 0.0
        self.last_s = 0.0
        """When the last checkpoint was written, and how long after the one before (or the first step)."""
        self.every_s = 0.0
        self.written_at = 0
        """The step of the last checkpoint."""
        self.loaded = False
        self.inside = 0
        self.left_alone = False
        self.taken = False
        self.looked_s = 0.0
        self.waits = False
        self.fresh = False
        """There is one since the notice."""
        self.leaves_at = 0

    def stepped(self, took: int, spent: Any, count: int) -> None:
        """After each step of the optimizer, in the thread that trains."""
        if not self.steps:
            self.began_s = time.monotonic()
        self.steps += count
        if saving.running:
            return
        if ranks.world() > 1 and ranks.rank() and not self.taken:
            self._look()
        if not self.taken:
            return
        if ranks.rank() == 0:
            report.progress(self.steps)
        if not notice.asked():
            return
        if ranks.world() > 1:
            self._together()
        elif (how := self._decision()) is not None:
            self._go(how)

    def written(self, what: str, by: str) -> None:
        """A whole checkpoint was written. by: "script", or "framework"."""
        if saving.running or threading.current_thread() is not threading.main_thread() or not self.steps:
            return
        if os.environ.get("GPULOOM_RESUME") == "1" and not self.loaded:
            if not self.left_alone:
                self.left_alone = True
                report.not_saved(f"{what}: the script writes checkpoints, but loaded none when it was started again")
            return
        now = time.monotonic()
        if self.steps != self.written_at:  # else it is another file of the same checkpoint
            self.every_s, self.written_at = now - (self.last_s or self.began_s), self.steps
        self.last_s = now
        self.fresh = notice.asked()
        if ranks.rank() == 0:
            report.saved(self.steps, by, what)
        if ranks.world() > 1 and not self.taken and ranks.rank() == 0:
            ranks.store().add(_key("checkpoints"), 1)
        self._take()

    def _take(self) -> None:
        if not self.taken and os.environ.get(notice.FILE) and not notice.why_not():
            notice.take()
            self.taken = True
            at_switch_off[HOOK] = self._failed

    def _failed(self, error: BaseException) -> None:
        """Nothing here hears a notice any more: SIGTERM is left to its default, and if it has come, takes effect."""
        notice.give_back()
        if notice.asked() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            os.kill(os.getpid(), signal.SIGTERM)

    def _look(self) -> None:
        now = time.monotonic()
        if now - self.looked_s >= LOOK_EVERY_S:
            self.looked_s = now
            if ranks.store().add(_key("checkpoints"), 0):
                self._take()

    def _decision(self) -> int | None:
        """After a notice: leave with exit code 85, or end; None: go on to the next checkpoint."""
        if self.fresh:
            return LEAVE
        if not self.waits:
            self.waits = True
            due_s = max(self.last_s + self.every_s * SLACK - time.monotonic(), 0.0)
            if due_s > _left_s():
                say(HOOK, f"the next checkpoint is due in {due_s:.0f} s, after the deadline: ended at once")
                return END
            say(HOOK, f"goes on to the next checkpoint, due in {due_s:.0f} s")
        return None

    def _together(self) -> None:
        """Rank 0 tells the others at which step all leave."""
        store, key = ranks.store(), _key("leave")
        if not self.leaves_at and ranks.rank() == 0:
            how = self._decision()
            if how is not None:
                self.leaves_at = store.add(key, (self.steps + ranks.APART) * 100 + how)
        elif not self.leaves_at:
            self.leaves_at = store.add(key, 0)
        if self.leaves_at and self.steps >= self.leaves_at // 100:
            self._go(self.leaves_at % 100)

    def _go(self, how: int) -> None:
        if how == LEAVE:
            say(HOOK, f"leaves after step {self.steps}: a checkpoint was written since the notice")
            notice.leave_out()
            ranks.close_at_exit()
            sys.stdout.flush()
            raise SystemExit(saving.EXIT_PREEMPTED)
        notice.give_back()
        os.kill(os.getpid(), signal.SIGTERM)


own = Own()


def _key(name: str) -> str:
    restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return f"gpuloom/own/{os.environ.get('GPULOOM_ATTEMPT', '')}/{restarts}/{name}"


def _left_s() -> float:
    """Until the deadline."""
    try:
        with open(os.environ[notice.FILE], encoding="utf-8") as file:
            return float(json.load(file)["deadline_s"]) - time.time()
    except (KeyError, OSError, TypeError, ValueError):  # only the signal came, or another program wrote the file
        return float(os.environ.get("GPULOOM_GRACE_S", "0"))


def has_optimizer(found: Any, depth: int = 0) -> bool:
    """Whether the state of an optimizer is somewhere in it."""
    if not isinstance(found, dict) or depth > DEEPEST:
        return False
    if "param_groups" in found and "state" in found:
        return True
    return any(has_optimizer(one, depth + 1) for one in found.values())


def install(module: Any) -> None:
    """module: torch.serialization."""

    def save(original: Any, obj: Any, f: Any, *given: Any, **more: Any) -> Any:
        done = original(obj, f, *given, **more)
        if isinstance(f, (str, os.PathLike)) and not own.inside:
            guarded(HOOK, _saved)(obj)
        return done

    def load(original: Any, *given: Any, **more: Any) -> Any:
        found = original(*given, **more)
        if not own.loaded:
            own.loaded = bool(guarded(HOOK, has_optimizer)(found))
        return found

    saving.wrap((module, "save", save), (module, "load", load))
    stages.sinks.append(own.stepped)


def _saved(obj: Any) -> None:
    if has_optimizer(obj):
        own.written("PyTorch", "script")


def install_accelerate(module: Any) -> None:
    """module: accelerate.accelerator."""

    def save_state(original: Any, self: Any, *given: Any, **more: Any) -> Any:
        own.inside += 1
        try:
            done = original(self, *given, **more)
        finally:
            own.inside -= 1
        guarded(HOOK, own.written)("Accelerate", "framework")
        return done

    saving.wrap((module.Accelerator, "save_state", save_state))
