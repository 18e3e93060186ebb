"""A training loop of a framework, which on notice saves at the end of a step, and goes on from there the next time.

`begin` says whether a loop that is about to run can be saved. The hook of its framework then asks `Loop.due` at each
step, and has the state written. docs/howto/training-frameworks.md tells users what becomes of their jobs.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from functools import wraps
from zlib import crc32

from . import at_switch_off, kept, notice, ranks, report, say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

EXIT_PREEMPTED = 85
"""Exit code: preempted, and the work is saved."""

running = 0
"""Loops that run now, and are ours to save."""
_counts = {}  # type: dict[str, int]
"""Loops begun so far, by framework."""


class Loop:
    """framework: its name, for people. kind: of its saves. hook: that of the framework."""

    def __init__(self, framework: str, kind: str, hook: str) -> None:
        self.framework, self.kind, self.hook = framework, kind, hook
        self.agreement = ranks.Agreement(kind)
        self.at_step = 0

    def newest(self) -> tuple[str, dict[str, Any]] | None:
        """The save to go on from, with what was said of it; None: begin at the beginning."""
        return kept.newest(self.kind)

    def due(self, step: int, steps: int | None = None) -> bool:
        """Called between two steps, by every rank: whether to save now, and leave. step: done so far (of steps)."""
        self.at_step = step
        if ranks.rank() == 0:
            report.progress(step, steps)
        return self.agreement.leaves(notice.asked())

    def save(self, write: Callable[[str], object], first: bool, **about: Any) -> None:
        """Save. write: called by every rank with a folder to write to. first: this rank begins and ends the save."""
        save = kept.Save(self.kind, self.at_step)
        try:
            if first:
                save.begin()
            ranks.barrier()
            write(save.path)
            ranks.barrier()
            if first:
                save.commit(framework=self.framework, world=ranks.world(), **about)
        except Exception:
            if first:
                save.drop()  # of a full disk, say: others need the room
            raise
        if first:
            report.saved(self.at_step, "hook", self.framework)

    def leave(self) -> NoReturn:
        """End this process: the work is saved."""
        ranks.barrier()
        say("saving", f"{self.framework}: saved at step {self.at_step}")
        notice.leave_out()
        ranks.close_at_exit()
        sys.stdout.flush()
        raise SystemExit(EXIT_PREEMPTED)

    def save_and_leave(self, write: Callable[[str], object], first: bool, **about: Any) -> None:
        """Both. If it can't be saved, the process ends of SIGTERM, as it would have without us."""
        try:
            self.save(write, first, **about)
        except Exception as error:
            self.failed(error)
            return
        self.leave()

    def failed(self, error: BaseException) -> None:
        """Something went wrong: say so. SIGTERM is left to its default, and if it has come, takes effect."""
        why = f"{self.framework}: can't be saved: {type(error).__name__}: {error}"
        say("saving", why)
        report.not_saved(why)
        came = notice.asked()
        notice.give_back()
        if came and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            os.kill(os.getpid(), signal.SIGTERM)

    def end(self, step: int) -> None:
        """The loop has ended by itself, or by an error, with so many steps done."""
        global running
        running -= 1
        at_switch_off.pop(self.hook, None)
        if ranks.rank() == 0:
            report.progress(step)
        notice.give_back()
        if sys.exc_info()[0] is None:
            kept.mark_ended(self.kind)


def command() -> str:
    """Which of a job's commands this process runs: eight digits, the same in all of its ranks and attempts."""
    script = getattr(sys.modules.get("__main__"), "__file__", None) or sys.argv[0]
    words = [script if os.path.isabs(script) else os.path.basename(script)]
    after_rank = False
    for word in sys.argv[1:]:
        # What launchers add differs by rank: --local_rank=1, and what Lightning says to Hydra.
        ours = (
            word.startswith("hydra.") or re.match("--?([a-z]+[-_])*rank(=|$)", word) or (after_rank and word.isdigit())
        )
        after_rank = bool(ours) and word.startswith("-") and "=" not in word
        if not ours:
            words.append(word)
    return f"{crc32(chr(0).join(words).encode('utf-8', 'surrogateescape')):08x}"


def begin(framework: str, hook: str) -> Loop | None:
    """A loop begins; None: it is not ours to save. framework: "Lightning". hook: that of the framework.

    Saves are told apart by command: a job may train several times, in one process after another.
    """
    if kept.folder() is None or not os.environ.get(notice.FILE):
        return None
    global running
    count = _counts[framework] = _counts.get(framework, -1) + 1
    kind = f"{framework.lower().replace(' ', '-')}-{count}-{command()}"
    if count:
        report.trains_again()
    why = notice.why_not()
    if not why and count:
        why = f"it trains for the {count + 1}. time in this process, and what was trained before is not kept"
    if not why and kept.has_ended(kind):
        why = "the same command has trained before in this job, and what was trained then is not kept"
    if why:
        say("saving", f"{framework}: not saved on notice: {why}")
        report.not_saved(f"{framework}: {why}")
        return None
    notice.take()
    running += 1
    loop = Loop(framework, kind, hook)
    at_switch_off[hook] = loop.failed
    return loop


def wrap(*rows: tuple[Any, str, Callable[..., Any]]) -> None:
    """Call functions of ours in place of a framework's methods: class, name, ours, which gets the original first.

    All or none: of a version of the framework that lacks one, nothing is changed. Raises AttributeError then.
    """
    originals = [getattr(owner, name) for owner, name, _ in rows]
    for (owner, name, ours), original in zip(rows, originals):
        setattr(owner, name, _wrapper(original, ours))


def _wrapper(original: Callable[..., Any], ours: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def call(*given: Any, **more: Any) -> Any:
        return ours(original, *given, **more)

    return call
