"""What a training script may tell gpuloom, and ask it. Standard library only; outside gpuloom it does no harm.

    from gpuloom.training import job

    start = load() if job.resuming() else 0
    for step in job.steps(total, start=start, save=save):
        loss = train_one(step)
        job.progress(step + 1, total, loss=loss)

When gpuloom wants the GPUs for other jobs it gives notice (SIGTERM, and a file); the script saves and exits with code
85, which means "preempted, my work is saved". `steps` does that by itself; `should_stop` and `exit_preempted` are for
loops of one's own. A script without a framework marks its stages (`stage`). docs/howto/write-jobs.md tells the same for
shell scripts and other languages.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time

# What costs time to import is imported where it is needed: this module is read at every start of a script.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType, TracebackType
    from typing import IO, Any, NoReturn

EXIT_PREEMPTED = 85
"""Exit code: preempted, and the work is saved."""

REPORT_EVERY_S = 1.0
LOOK_EVERY_S = 0.05


class _Notice:
    """Whether gpuloom gave notice: by SIGTERM, or by a file where no signal arrives."""

    def __init__(self) -> None:
        self.seen, self.seen_s = False, 0.0
        self.pid = 0
        self.before: Any = None
        self.looked_s = float("-inf")

    def install(self) -> None:
        """Install the SIGTERM handler, once. Only the main thread may; in others only the file tells."""
        if self.pid == os.getpid() or threading.current_thread() is not threading.main_thread():
            return
        if self.pid == 0:  # a forked child inherits the handler
            self.before = signal.signal(signal.SIGTERM, self.on_signal)
            atexit.register(self.leave)
        self.pid = os.getpid()

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self.pid and not _notice_text():
            # A helper process (a data loader's worker), ended by its parent: the handler was meant for the parent.
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        self.see()
        if callable(self.before):
            self.before(number, frame)

    def leave(self) -> None:
        """The process is ending by itself: a notice now must not turn its exit code into a signal."""
        if self.pid == os.getpid() and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def see(self) -> None:
        if not self.seen:
            self.seen, self.seen_s = True, time.time()

    def look(self) -> bool:
        if not self.seen:
            now = time.monotonic()
            if now - self.looked_s >= LOOK_EVERY_S:
                self.looked_s = now
                if _notice_text() is not None:
                    self.see()
        return self.seen


def _notice_text() -> str | None:
    """What the notice file says; None if there is none."""
    path = os.environ.get("GPULOOM_NOTICE_FILE")
    if not path:
        return None
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(4096) or " "
    except OSError:
        return None


_notice = _Notice()


def should_stop() -> bool:
    """Whether gpuloom gave notice: save at the next step boundary and call `exit_preempted`. Costs about a microsecond.

    Call it early from the main thread: the first call takes SIGTERM, which would end the process otherwise. A handler
    that was there before is called too.
    """
    _notice.install()
    return _notice.look()


def deadline_s() -> float | None:
    """After a notice, when the process will be ended, epoch seconds. None before, or if it is not known."""
    text = _notice_text()
    if text is not None:
        import json

        try:
            data = json.loads(text)
        except ValueError:
            data = None
        found = data.get("deadline_s") if isinstance(data, dict) else data
        if isinstance(found, int | float) and not isinstance(found, bool) and _finite(found):
            return float(found)
    if not _notice.seen:
        return None
    try:
        grace = float(os.environ.get("GPULOOM_GRACE_S", ""))
    except ValueError:
        return None
    return _notice.seen_s + grace if _finite(grace) else None


def _finite(number: float) -> bool:
    return abs(number) < float("inf")  # False for NaN too


def resuming() -> bool:
    """Whether this job ran before and was stopped: look for a checkpoint. (There may be none, if it never saved.)"""
    return os.environ.get("GPULOOM_RESUME", "") not in ("", "0")


def exit_preempted() -> NoReturn:
    """Exit with code 85: preempted, the work is saved. gpuloom starts the job again later.

    `finally` blocks and `atexit` functions run as with any exit. Then the process ends at once: to take a framework's
    modules apart, object by object, takes PyTorch a second of a processor, for which the GPUs would wait.
    """
    _progress.flush()
    sys.stdout.flush()
    _leaving.prepare()
    raise _Preempted(EXIT_PREEMPTED)


class _Preempted(SystemExit):
    """Ends the process, unless the script catches it and works on."""

    def __del__(self) -> None:
        # The interpreter drops it when no function is left that could catch it, and ends with its code.
        if sys._getframe().f_back is None:
            _leaving.wanted = True


class _Leaving:
    """The end of the process after `exit_preempted`: the first of the `atexit` functions, which runs the others."""

    def __init__(self) -> None:
        self.wanted = False

    def prepare(self) -> None:
        """See that it is the first one, as the last that was registered."""
        atexit.unregister(self.leave)
        atexit.register(self.leave)

    def leave(self) -> None:
        run_others: Callable[[], object] | None = getattr(atexit, "_run_exitfuncs", None)
        if not self.wanted or run_others is None:
            return
        atexit.unregister(self.leave)
        try:
            run_others()
        except BaseException:  # of older Pythons, which raise what a function raised; newer ones tell it themselves
            sys.excepthook(*sys.exc_info())
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError):
                continue  # it was closed: nobody reads it any more
        os._exit(EXIT_PREEMPTED)


_leaving = _Leaving()


# -- progress ----------------------------------------------------------------------------------------------------


class _Progress:
    """The newest report, written at most once in `REPORT_EVERY_S`, and at the end."""

    def __init__(self) -> None:
        self.waiting: dict[str, object] | None = None
        self.last: dict[str, object] = {}
        self.step: float | None = None
        self.saves: dict[str, object] = {}
        """The newest save, which every report repeats."""
        self.began_s: float | None = None
        self.first_step: float | None = None
        self.at_s: float | None = None
        self.written_s = float("-inf")
        self.warned = False
        self.registered = False
        self.lock = threading.Lock()

    def begin(self, step: float) -> None:
        """The work itself has begun: imports and loading before it are repeated at every start."""
        if self.began_s is None:
            self.began_s, self.first_step = time.time(), step

    def report(self, step: float, steps: float | None, metrics: dict[str, object]) -> None:
        _stages.stepped(step)
        self.step = step
        self.begin(step)
        self.at_s = time.time()
        path = self.path()
        if path is None:
            return
        with self.lock:
            self.waiting = self.last = {"step": step, "steps": steps, **metrics}
            if not self.registered:
                self.registered = True
                atexit.register(self.flush)
            if time.monotonic() - self.written_s >= REPORT_EVERY_S or (steps is not None and step >= steps):
                self._write(path)

    def saved(self, step: float) -> None:
        self.begin(step)
        path = self.path()
        if path is None:
            return
        with self.lock:
            self.saves = {"saved_step": step, "saved_s": time.time()}
            self.waiting = self.last
            self._write(path)

    def path(self) -> str | None:
        """Where to report to. Only the first rank of a job reports."""
        path = os.environ.get("GPULOOM_PROGRESS_FILE")
        return path if path and os.environ.get("RANK", "0") == "0" else None

    def flush(self) -> None:
        with self.lock:
            path = os.environ.get("GPULOOM_PROGRESS_FILE")
            if path and self.waiting is not None:
                self._write(path)

    def _write(self, path: str) -> None:
        import json

        data = {key: _plain(value) for key, value in (self.waiting or {}).items() if value is not None}
        data.update(self.saves)
        data["first_s"], data["at_s"] = self.began_s, self.at_s or time.time()
        data["first_step"] = _plain(self.first_step)
        self.waiting, self.written_s = None, time.monotonic()
        # No fsync: it does not matter if a crash of the machine takes a report.
        temporary = f"{path}.{os.getpid()}.tmp"
        try:
            with open(temporary, "w", encoding="utf-8") as file:
                json.dump(data, file)
            os.replace(temporary, path)
        except OSError as error:
            # Training goes on without reports; the fault is told once.
            if not self.warned:
                self.warned = True
                print(f"gpuloom: progress can't be written to {path}: {error}", file=sys.stderr)


def _plain(value: object) -> object:
    """A number or text for JSON. Numbers of NumPy and tensors of one element become numbers."""
    if isinstance(value, str | bool | int):
        return value
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return str(value)[:200]
    return number if _finite(number) else str(number)


_progress = _Progress()


def progress(step: float, steps: float | None = None, **metrics: object) -> None:
    """Report `step` done (of `steps`, if known), with metrics to show (`loss=0.3`).

    May be called at every step: written at most once a second. Nothing happens outside gpuloom, or in later ranks.
    """
    _progress.report(step, steps, metrics)


# -- stages ------------------------------------------------------------------------------------------------------

RESOURCES = ("storage", "cpu", "gpu", "network")
"""What a stage may need."""


class _Stages:
    """What a script says of its stages, handed on to gpuloom's hooks where they are in this Python."""

    def __init__(self) -> None:
        self.hooks: Any = None
        self.marked = False
        self.step: float | None = None
        self.counted = 0

    def timeline(self) -> Any:
        """Of this thread; None: there are no hooks, or it is not the thread that trains."""
        if self.hooks is None:
            self.hooks = False
            if "_gpuloom_hooks" in sys.modules:
                from importlib import import_module

                self.hooks = import_module("_gpuloom_hooks.stages")
        return self.hooks.thread() if self.hooks else None

    def stepped(self, step: float) -> None:
        """So many steps are done: an iteration has been made for each."""
        before, self.step = self.step, step
        if self.marked and before is not None and step > before:
            timeline = self.timeline()
            if timeline is not None and timeline.iterations == self.counted:  # else hooks of a framework count them
                from importlib import import_module

                import_module("_gpuloom_hooks.records").begin("marked")  # once
                count = max(int(step - before), 1)
                self.counted += count
                timeline.iteration(count)


_stages = _Stages()


class stage:  # noqa: N801 - used as a function is
    """`with job.stage("cpu"): …`: what happens here needs mainly this resource: storage, cpu, gpu or network.

    gpuloom learns from it how long the script's stages take, and lets scripts that share devices take turns: the block
    may wait for its turn. Costs about a microsecond; outside gpuloom nothing happens. An iteration ends at `progress`.

    Raises:
        ValueError: there is no such resource.
    """

    def __init__(self, resource: str) -> None:
        if resource not in RESOURCES:
            raise ValueError(f"stage {resource!r}: must be one of {', '.join(RESOURCES)}")
        self._resource = RESOURCES.index(resource)

    def __enter__(self) -> None:
        _stages.marked = True
        self._timeline = _stages.timeline()
        if self._timeline is not None:
            self._timeline.begin(self._resource, self._resource, self)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timeline is not None:
            self._timeline.end_of(self)


def saved(step: float) -> None:
    """Report that the work up to `step` is saved, right after it is: what gpuloom counts as kept should the job be
    ended. `steps` does it by itself. Written at once."""
    _progress.saved(step)


# -- checkpoints -------------------------------------------------------------------------------------------------


class OvertakenError(RuntimeError):
    """This process belongs to an attempt that gpuloom has given up: a later attempt of its job saves here now."""


def save_atomically(path: str | os.PathLike[str], writer: Callable[[IO[bytes]], object]) -> None:
    """Write a file so that readers see either the old file or the whole new one, even after a crash or a kill.

    writer: gets the open file: `lambda file: torch.save(state, file)`. If it raises, the old file stays.

    On a shared file system, too: once a later attempt of the job has begun to save in this folder, earlier ones that
    still run somewhere replace nothing there any more.

    Raises:
        OvertakenError: this is such an earlier one. Nothing was changed.
        OSError: it can't be written.
    """
    target = os.path.abspath(path)
    folder, name = os.path.split(target)
    attempt = _Attempt.of_environment()
    of_attempt = "" if attempt is None else f".{attempt.key}-{attempt.number}"
    mine = f".{name}{of_attempt}.{os.uname().nodename}-"
    if attempt is not None:
        attempt.claim(folder)
    for old in os.listdir(folder):
        # Left by a save that was killed half-way: checkpoints are large, and there may be many kills.
        number = old.removeprefix(mine).removesuffix(".tmp")
        if old.startswith(mine) and number.isdigit() and not _lives(int(number)):
            _remove(os.path.join(folder, old))
    temporary = os.path.join(folder, f"{mine}{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            writer(file)
            file.flush()
            os.fsync(file.fileno())
        if attempt is not None:
            attempt.overtake(folder, target)
        _replace(temporary, target, attempt)
    except BaseException:
        _remove(temporary)
        raise
    _sync(folder)


class _Attempt:
    """Who saves: an attempt of a job, in a folder that attempts on other machines may see as well.

    No locks, which not every file system has between machines. An attempt first leaves its mark in the folder. To
    replace a file it writes a temporary one, and then looks at the folder: where it sees the mark of a later attempt it
    gives up; temporary files of earlier ones it removes; then it renames its own. An earlier attempt that looked before
    the later one's mark was there had its temporary file there before, too: either the later one removes it, and the
    rename fails, or the rename came first, and the later one replaces what it brought.
    """

    def __init__(self, key: str, number: int) -> None:
        self.key, self.number = key, number

    @classmethod
    def of_environment(cls) -> _Attempt | None:
        """None outside gpuloom."""
        key = os.environ.get("GPULOOM_JOB_KEY", "")
        number = os.environ.get("GPULOOM_ATTEMPT", "")
        return cls(key, int(number)) if key and "/" not in key and number.isascii() and number.isdigit() else None

    def claim(self, folder: str) -> None:
        """Leave our mark."""
        mark = os.path.join(folder, f".{self.key}-{self.number}.attempt")
        os.close(os.open(mark, os.O_WRONLY | os.O_CREAT, 0o666))

    def overtake(self, folder: str, target: str) -> None:
        """Give up if a later attempt has left its mark; see that no earlier one replaces anything from now on."""
        for old in os.listdir(folder):
            number, kind = self._named(old)
            if kind == "attempt" and number > self.number:
                raise self.overtaken(target, f"attempt {number} of its job saves there now")
            if 0 <= number < self.number:
                _remove(os.path.join(folder, old))

    def _named(self, name: str) -> tuple[int, str]:
        """Of which attempt of our job this file is (-1: of none), and what it is: its mark, or a temporary file."""
        if not name.startswith(".") or not name.endswith((".attempt", ".tmp")):
            return -1, ""
        head, _, kind = name.rpartition(".")
        if kind == "tmp":
            # .NAME.KEY-NUMBER.NODE-PID.tmp, where the name and the node may hold dots.
            head = head[head.find(f".{self.key}-") :]
        number = head.removeprefix(f".{self.key}-").partition(".")[0] if head.startswith(f".{self.key}-") else ""
        return (int(number), kind) if number.isascii() and number.isdigit() else (-1, "")

    def overtaken(self, target: str, why: str) -> OvertakenError:
        return OvertakenError(
            f"{target} was not replaced: {why}, and this is attempt {self.number}, which gpuloom has given up, as its "
            "node could not be reached. End this process"
        )


def _replace(temporary: str, target: str, attempt: _Attempt | None) -> None:
    try:
        os.replace(temporary, target)
    except FileNotFoundError:
        if attempt is None or os.path.lexists(temporary):
            raise
        raise attempt.overtaken(target, "a later attempt of its job saves there now") from None


def _sync(folder: str) -> None:
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return  # another rank was faster, or it was never made


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return pid != os.getpid()


def steps(total: int, *, start: int = 0, save: Callable[[int], object], every_s: float | None = 600.0) -> Iterator[int]:
    """The steps from `start` to `total`, each reported when its body is done.

    save: called with the number of steps done: every `every_s` seconds (None: never), after the last step, and on
    notice, whereupon the process exits with code 85. Between two saves is what can be lost when a machine fails.
    In a job of several ranks, each sees the notice at its own step: agree on one (docs/howto/write-jobs.md) instead.
    """
    should_stop()
    if start < total:
        progress(start, total)  # the work begins: what came before was starting up
    saved_s, at = time.monotonic(), start
    for step in range(start, total):
        if should_stop():
            # Also before the first step: what was loaded is still the newest checkpoint, if there was one.
            if at != step or step == start:
                save(step)
                saved(step)
            exit_preempted()
        yield step
        if _progress.step != step + 1:
            progress(step + 1, total)
        if every_s is not None and time.monotonic() - saved_s >= every_s and step + 1 < total:
            save(step + 1)
            saved(step + 1)
            saved_s, at = time.monotonic(), step + 1
    if start < total:
        save(total)
        saved(total)
    _progress.flush()
