"""Many simulations, each done once: a file of results, used again until the code or the trace behind one changes.

Shared by bench/figures.py and bench/league.py. A run has a process of its own, so that one that takes too long or dies
harms no other. The limit is in CPU seconds, which a busy machine does not change.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import json
import math
import os
import signal
import sys
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any, Generic, TypeVar

import gpuloom
from gpuloom.core.cluster import Cluster
from gpuloom.core.errors import GpuloomError
from gpuloom.core.workload import Workload
from gpuloom.policies.registry import create_policy, parse_policy, policy_class
from gpuloom.sim import simulate

PACKAGE = Path(gpuloom.__file__).resolve().parent
EVERYTHING = ("gpuloom.core", "gpuloom.engine", "gpuloom.sim")
NO_PART = ("gpuloom.cli", "gpuloom.policies.registry", "gpuloom.sim.gym", "gpuloom.report")
"""What no figure of a run depends on."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What is kept of a run; NaN where it failed or has not run yet."""

    avg_jct_s: float = math.nan
    p99_jct_s: float = math.nan
    makespan_s: float = math.nan
    restarts: float = math.nan
    jobs: int = 0
    cpu_s: float = math.nan
    wall_s: float = math.nan


def measured(workload: Workload, cluster: Cluster | str, policy: str, **settings: Any) -> Figures | str:
    """The figures of one simulation, or why there are none."""
    try:
        begun = time.process_time()
        result = simulate(workload, cluster, policy, **settings)
    except (GpuloomError, NotImplementedError, ImportError) as error:
        return f"{type(error).__name__}: {error}"
    if result.interrupted:
        return "interrupted"
    return Figures(
        avg_jct_s=result.avg_jct_s,
        p99_jct_s=result.p99_jct_s,
        makespan_s=result.makespan_s,
        restarts=result.restarts,
        jobs=result.jobs,
        cpu_s=time.process_time() - begun,
        wall_s=result.wall_s,
    )


# -- what a result depends on -----------------------------------------------------------------------------------------


@cache
def code_of(policy: str, roots: tuple[str, ...] = EVERYTHING, without: tuple[str, ...] = ()) -> str:
    """A hash of the code that a run under this policy may use.

    Args:
        policy: as it is written; a policy that it asks in its turn counts too.
        roots: modules, and packages with all in them, that every run uses. What these and the policy's module import
            from gpuloom, at any depth, counts too; the package's data always does.
        without: modules and packages that are left out, besides `NO_PART`.
    """
    return _hash(_modules_of(policy), roots, (*NO_PART, *without))


def _modules_of(policy: str) -> tuple[str, ...]:
    """Modules of the classes of a policy and of those that it asks."""
    found = [policy_class(parse_policy(policy)[0])]
    try:
        asked = create_policy(policy).inner
    except GpuloomError:  # which the run itself will tell
        asked = None
    while asked is not None:
        found.append(type(asked))
        asked = asked.inner
    return tuple(cls.__module__ for cls in found)


@cache
def _hash(modules: tuple[str, ...], roots: tuple[str, ...], out: tuple[str, ...]) -> str:
    todo: dict[str, Path] = {}
    for root in roots:
        todo |= _within(root)
    digest = hashlib.sha256()
    for module in modules:
        if module.startswith("gpuloom."):
            todo |= _found(module)
            continue
        file = Path(str(sys.modules[module].__file__))  # another package's: its own file, and what that imports of ours
        digest.update(file.read_bytes())
        for name in _imports(file, module):
            todo |= _found(name)
    seen: dict[str, Path] = {}
    while todo:
        name, path = todo.popitem()
        if name in seen or any(name == part or name.startswith(f"{part}.") for part in out):
            continue
        seen[name] = path
        for used in _imports(path, name):
            todo |= _found(used)
    for path in sorted([*seen.values(), *(PACKAGE / "data").glob("*")]):
        digest.update(str(path.relative_to(PACKAGE)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def _found(name: str) -> dict[str, Path]:
    """A module of gpuloom by its full name; nothing if there is none."""
    base = PACKAGE.joinpath(*name.split(".")[1:])
    for path in (base.with_suffix(".py"), base / "__init__.py"):
        if path.is_file():
            return {name: path}
    return {}


def _within(name: str) -> dict[str, Path]:
    """A module, or a package with all modules in it."""
    base = PACKAGE.joinpath(*name.split(".")[1:])
    inside = {}
    for path in base.rglob("*.py") if base.is_dir() else ():
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        inside[".".join(("gpuloom", *(parts[:-1] if parts[-1] == "__init__" else parts)))] = path
    return inside or _found(name)


@cache
def _imports(path: Path, name: str) -> tuple[str, ...]:
    """Full names of what a file imports from gpuloom, at its top or inside: modules, and things in modules."""
    names: list[str] = []
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_bytes(), filename=str(path))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            origin = ".".join([*above, *([node.module] if node.module else [])])
            names += [origin, *(f"{origin}.{alias.name}" for alias in node.names)]
    return tuple(dict.fromkeys(n for n in names if n == "gpuloom" or n.startswith("gpuloom.")))


# -- the file and the runs --------------------------------------------------------------------------------------------

R = TypeVar("R")


class Grid(ABC, Generic[R]):
    """Runs what is asked for, once, and remembers it in a file.

    Until `run` is called, `find` notes what is wanted and answers NaN: pages are written twice. `R` is what tells
    runs apart; as text it is the key in the file. A run that took too long is remembered with its limit.
    """

    def __init__(self, store: Path, limit_s: float = math.inf) -> None:
        self.store, self.limit_s = store, limit_s
        self.wanted: dict[R, None] = {}
        self.failed: dict[R, str] = {}
        self._known = self._read()

    def _read(self) -> dict[str, dict[str, Any]]:
        if not self.store.is_file():
            return {}
        try:
            known: dict[str, dict[str, Any]] = json.loads(self.store.read_text(encoding="utf-8"))
        except ValueError:
            print(f"{self.store} can't be read and is made anew", file=sys.stderr)
            return {}
        return known

    @abstractmethod
    def policy_of(self, run: R) -> str:
        """The policy of a run, as it is written."""

    @abstractmethod
    def code(self, run: R) -> str:
        """What the run depends on: its result is used again as long as this stays the same."""

    @abstractmethod
    def measure(self, run: R) -> Figures | str:
        """The figures, or why there are none. Called in a process of its own."""

    def find(self, run: R) -> Figures:
        self.wanted[run] = None
        entry = self._entry(run)
        if entry is None or entry["figures"] is None:
            return Figures()
        return Figures(**entry["figures"])

    def too_long(self, run: R) -> bool:
        """Whether the run was ended as it took longer than allowed, now or in an earlier command."""
        entry = self._entry(run)
        return entry is not None and entry["figures"] is None and entry["over_s"] >= self.limit_s

    def _entry(self, run: R) -> dict[str, Any] | None:
        entry = self._known.get(str(run))
        return entry if entry is not None and entry["code"] == self.code(run) else None

    def todo(self) -> list[R]:
        """What is wanted and not known."""
        return [r for r in self.wanted if not math.isfinite(self.find(r).avg_jct_s) and not self.too_long(r)]

    def run(self, jobs: int) -> None:
        """Run what is wanted and not known, in as many processes at a time."""
        todo = self.todo()
        print(f"{len(todo)} of {len(self.wanted)} runs to do", file=sys.stderr)
        for run in todo:
            self._import(run)
        begun = time.monotonic()
        try:
            for done, (run, found) in enumerate(apart(self.measure, todo, jobs, self.limit_s), start=1):
                if isinstance(found, str):
                    self.failed[run] = text = found
                elif found is None:
                    self._keep(run, {"code": self.code(run), "figures": None, "over_s": self.limit_s})
                    text = f"more than {self.limit_s:g} s"
                else:
                    kept = {name: getattr(found, name) for name in Figures.__slots__}
                    self._keep(run, {"code": self.code(run), "figures": kept})
                    text = f"{found.cpu_s:.1f} s"
                left = (time.monotonic() - begun) / done * (len(todo) - done)
                print(f"[{done}/{len(todo)}] {run}: {text}   (about {left:.0f} s left)", file=sys.stderr)
        except KeyboardInterrupt:
            raise SystemExit("interrupted; what is done is kept") from None

    def _import(self, run: R) -> None:
        """The code as of now, should files change meanwhile. What can't be imported is told by the run itself."""
        try:
            self.code(run)
            importlib.import_module(policy_class(parse_policy(self.policy_of(run))[0]).__module__)
        except (GpuloomError, ImportError) as error:
            print(f"{run}: {error}", file=sys.stderr)

    def _keep(self, run: R, entry: dict[str, Any]) -> None:
        self._known = self._read() | {str(run): entry}  # read again: another command may have added to it
        self.store.parent.mkdir(parents=True, exist_ok=True)
        new = self.store.with_suffix(f".{os.getpid()}")
        new.write_text(json.dumps(self._known, indent=1), encoding="utf-8")
        new.replace(self.store)


def apart(
    measure: Callable[[R], Figures | str], runs: Sequence[R], jobs: int, limit_s: float = math.inf
) -> Iterator[tuple[R, Figures | str | None]]:
    """Every run in a forked process of its own, `jobs` at a time; answers as they come.

    Yields:
        A run and what it answered; None: it took more than `limit_s` CPU seconds.
    """
    fork = get_context("fork")
    waiting, running = list(reversed(runs)), dict[Connection, tuple[R, ForkProcess]]()
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                run = waiting.pop()
                ours, theirs = fork.Pipe(duplex=False)
                process = fork.Process(target=_child, args=(theirs, measure, run, limit_s), daemon=True)
                process.start()
                theirs.close()
                running[ours] = run, process
            for ready in wait(list(running)):
                assert isinstance(ready, Connection)
                run, process = running[ready]
                found: Figures | str | None = None
                try:
                    found = ready.recv()
                except EOFError:  # it ended without an answer
                    process.join()
                    if process.exitcode != -signal.SIGXCPU:
                        found = f"the process ended with exit code {process.exitcode}"
                process.join()
                del running[ready]
                ready.close()
                yield run, found
    finally:
        for _, process in running.values():
            process.kill()
            process.join()


def _child(answer: Connection, measure: Callable[[R], Figures | str], run: R, limit_s: float) -> None:
    import resource

    if math.isfinite(limit_s):
        seconds = max(1, math.ceil(time.process_time() + limit_s))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))
    try:
        found = measure(run)
    except Exception as error:  # a bug: told here in full, and beside the run
        traceback.print_exc()
        found = f"{type(error).__name__}: {error}"
    answer.send(found)
    answer.close()
