"""Many simulations, in this process or in several, with progress and an orderly end on Ctrl-C."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from typing import Any

from gpuloom.core.cluster import Cluster
from gpuloom.core.errors import GpuloomError
from gpuloom.core.workload import Workload
from gpuloom.sim.result import SimResult
from gpuloom.sim.simulator import simulate

_ENDS = (signal.SIGINT, signal.SIGTERM)
_PATIENCE_S = 20.0
"""How long workers may take to hand in what they have after an interrupt."""


@dataclass(frozen=True, slots=True)
class Task:
    """One simulation to run.

    more: its own settings, beside those of all. name: of its result; "": the policy's.
    """

    workload: Workload
    cluster: Cluster
    policy: str
    more: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""

    def run(self, settings: Mapping[str, Any], on_progress: Callable[[int, int], None]) -> SimResult:
        """Simulate it. Raises what `simulate` raises."""
        result = simulate(
            self.workload, self.cluster, self.policy, on_progress=on_progress, **{**settings, **self.more}
        )
        return replace(result, policy=self.name) if self.name else result


@dataclass(slots=True)
class Outcome:
    """The outcome of a task: a result, an error, or neither (never started)."""

    results: list[SimResult | None]
    errors: list[GpuloomError | None]
    interrupted: bool = False

    @property
    def done(self) -> list[SimResult]:
        """Results, those of interrupted simulations included, in the tasks' order."""
        return [result for result in self.results if result is not None]


OnTask = Callable[[int, int, int], None]
"""Called with (task, jobs finished, jobs)."""


def run_all(
    tasks: Sequence[Task], settings: dict[str, Any], *, processes: int = 1, on_progress: OnTask | None = None
) -> Outcome:
    """Run every task with these `simulate` settings.

    A task that fails does not stop the others. An interrupt ends those under way, which hand in what they have
    (`interrupted` results), and begins no more.

    Args:
        processes: how many run at once; 1: in this process.
    """
    outcome = Outcome([None] * len(tasks), [None] * len(tasks))
    report: OnTask = on_progress if on_progress is not None else lambda *_: None
    if processes <= 1 or len(tasks) <= 1:
        _run_here(tasks, settings, outcome, report)
    else:
        _run_in_processes(tasks, settings, outcome, report, processes)
    return outcome


def _run_here(tasks: Sequence[Task], settings: dict[str, Any], outcome: Outcome, report: OnTask) -> None:
    for index, task in enumerate(tasks):
        try:
            result = task.run(settings, lambda done, jobs, index=index: report(index, done, jobs))  # type: ignore[misc]
        except GpuloomError as error:
            outcome.errors[index] = error
            continue
        except KeyboardInterrupt:
            outcome.interrupted = True
            return
        outcome.results[index] = result
        if result.interrupted:
            outcome.interrupted = True
            return


def _work(task: Task, settings: dict[str, Any], pipe: Connection, others: Sequence[Connection]) -> None:
    """In a worker: simulate, report progress a few times a second, hand in the result.

    Args:
        others: our parent's ends of the pipes, which a fork inherits. Were they left open here, a worker whose
            parent is gone could go on writing to a sibling's pipe for ever.
    """
    message: tuple[str, Any] = ("nothing", None)
    last = 0.0

    def on_progress(done: int, jobs: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last > 0.2 or done == jobs:
            last = now
            pipe.send(("progress", (done, jobs)))

    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)  # our parent ends us so, even if it ignores Ctrl-C
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDS)
        for end in others:
            end.close()
        message = ("result", task.run(settings, on_progress))
        # The result is complete: a further Ctrl-C must not tear it on its way.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    except GpuloomError as error:
        message = ("error", error)
    except KeyboardInterrupt:
        pass  # what there is goes to our parent, should this have come after the end
    except BrokenPipeError:
        return  # nobody is left to report to
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(BrokenPipeError):
        pipe.send(message)
    pipe.close()


def _run_in_processes(
    tasks: Sequence[Task], settings: dict[str, Any], outcome: Outcome, report: OnTask, processes: int
) -> None:
    # Forked workers share the trace's memory with us. (None of our threads hold locks: there are none.)
    context = multiprocessing.get_context("fork")
    todo = list(range(len(tasks)))[::-1]
    running: dict[Connection, tuple[int, Any]] = {}
    deadline = float("inf")
    try:
        while todo or running:
            try:
                while todo and len(running) < processes and not outcome.interrupted:
                    index = todo.pop()
                    ours, theirs = context.Pipe(duplex=False)
                    worker = context.Process(
                        target=_work, args=(tasks[index], settings, theirs, [ours, *running]), daemon=True
                    )
                    # It takes signals when it can answer them, not in the middle of beginning.
                    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDS)
                    try:
                        worker.start()
                        theirs.close()
                        running[ours] = (index, worker)
                    finally:
                        signal.pthread_sigmask(signal.SIG_SETMASK, before)
                if not running:
                    break
                ready = wait(list(running), timeout=min(0.5, max(deadline - time.monotonic(), 0.0)))
                _collect((pipe for pipe in ready if isinstance(pipe, Connection)), running, outcome, report)
                if time.monotonic() >= deadline:
                    break
            except KeyboardInterrupt:
                outcome.interrupted = True
                todo.clear()
                deadline = min(deadline, time.monotonic() + _PATIENCE_S)
                for _, worker in running.values():
                    # Ctrl-C has reached the workers too; a signal sent to us alone has not.
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(worker.pid, signal.SIGINT)
    finally:
        for pipe, (_, worker) in running.items():
            worker.terminate()
            worker.join()
            pipe.close()


def _collect(
    ready: Iterable[Connection], running: dict[Connection, tuple[int, Any]], outcome: Outcome, report: OnTask
) -> None:
    for pipe in ready:
        index, worker = running[pipe]
        try:
            kind, content = pipe.recv()
        except EOFError:
            worker.join()
            kind, content = "error", GpuloomError(f"the process was ended from outside (exit code {worker.exitcode})")
        if kind == "progress":
            report(index, *content)
            continue
        if kind == "result":
            outcome.results[index] = content
            outcome.interrupted = outcome.interrupted or content.interrupted
        elif kind == "error":
            outcome.errors[index] = content
        del running[pipe]
        pipe.close()
        worker.join()
