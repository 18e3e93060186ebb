"""JAX: iterations by the compiled function that trains, and the most memory that XLA has taken of a GPU.

Of all functions that the script compiles by `jax.jit` or `jax.pmap`, a step is one that is called with what its last
call returned (parameters, an optimizer's state). Where several do so, the one with most such arrays counts, as long as
it is called. A call that trains for many steps at once, by `lax.scan`, say, is one iteration.

JAX computes behind its Python, and data comes by whatever way the script has. So all but waits for a hooked data loader
counts as computing.
"""

from __future__ import annotations

import sys
from functools import update_wrapper
from threading import local
from types import MethodType
from weakref import WeakKeyDictionary

from . import guarded, records, stages, switched_off

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

HOOK = "jax_steps"
LOOKS = 20
"""A function that was called so often without getting back what it returned is no step."""
SURE = 2
"""So often in a row it must get that back."""
PATIENCE = 100
"""So many calls of other steps in a row: the one that counted is no longer called."""
EARLY, EVERY = 16, 50
"""Memory is looked at after each of the first EARLY iterations, then after each EVERY."""

_thread = local()
_steps = WeakKeyDictionary()  # type: WeakKeyDictionary[Any, Step]
"""By function that was compiled."""
_counts = None  # type: Step | None
"""The step that counts."""
_others = 0


class Step:
    """What is known of a compiled function."""

    def __init__(self) -> None:
        self.looks = LOOKS
        self.returned = frozenset()  # type: frozenset[int]
        """Ids of the arrays of the last call, while it is looked at."""
        self.arrays = self.row = 0
        """Arrays that it got back, and how often in a row it did."""
        self.before = 0
        """Its calls before it was known to be a step."""

    def called(self, given: Any) -> None:
        """Before a call that is looked at."""
        back = len(self.returned.intersection(_arrays(given)))
        self.row = self.row + 1 if back else 0
        self.arrays = max(self.arrays, back)

    def done(self, returned: Any) -> None:
        """After it."""
        self.looks -= 1
        self.returned = frozenset(_arrays(returned)) if self.looks and self.row < SURE else frozenset()
        if self.row >= SURE:
            self.looks = 0
            _is_step(self)
        else:
            self.before += 1


def _arrays(tree: Any) -> list[int]:
    jax = sys.modules["jax"]
    return [id(leaf) for leaf in jax.tree_util.tree_leaves(tree) if isinstance(leaf, jax.Array)]


def _is_step(step: Step) -> None:
    """One more step is known."""
    global _counts, _others
    if _counts is None or step.arrays > _counts.arrays:
        _counts, _others = step, 0


def _ends(step: Step) -> None:
    """A call of a step has ended."""
    global _counts, _others
    if step is not _counts:
        _others += 1
        if _others <= PATIENCE:
            return
        _counts = step
    _others = 0
    line = stages.thread(steps=True)
    if line is None or stages.counted_elsewhere:  # by Keras
        return
    records.begin("jax")
    if not records.facts.all_batches and not records.facts.batches:
        records.facts.flags |= records.DATA_INSIDE
    line.iteration(1 if line.iterations else 1 + step.before)
    line.begin(stages.GPU, stages.GPU, stages.COMPUTING)


class Compiled:
    """Stands for a function that JAX has compiled, and is like it in all else."""

    def __init__(self, made: Any, function: Any) -> None:
        update_wrapper(self, made, updated=())
        self._made = made
        self._step = _step_of(function)

    def __call__(self, *given: Any, **more: Any) -> Any:
        step = self._step
        if getattr(_thread, "inside", False) or HOOK in switched_off or (not step.looks and step.row < SURE):
            return self._made(*given, **more)
        _thread.inside = True  # functions that it calls are part of it
        try:
            if step.looks:
                _called(step, (given, more))
            returned = self._made(*given, **more)
        finally:
            _thread.inside = False
        if step.looks:
            _done(step, returned)
        if not step.looks and step.row >= SURE:
            _ended(step)
        return returned

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else MethodType(self, instance)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_made"], name)

    def __reduce__(self) -> Any:
        return _same, (self._made,)


def _step_of(function: Any) -> Step:
    """The same for a function that is compiled anew for each of its calls."""
    try:
        return _steps.setdefault(function, Step())
    except TypeError:  # nothing can refer to it weakly
        return Step()


def _same(made: Any) -> Any:
    return made


_called, _done, _ended = guarded(HOOK, Step.called), guarded(HOOK, Step.done), guarded(HOOK, _ends)
_compiled = guarded(HOOK, Compiled)


def install(module: Any) -> None:
    """module: jax."""
    for name in ("jit", "pmap"):
        setattr(module, name, _compiling(getattr(module, name)))
    records.before.append(guarded(HOOK, _look))


def _compiling(original: Callable[..., Any]) -> Any:
    def compile_(*given: Any, **more: Any) -> Any:
        made = original(*given, **more)
        if given:
            return _compiled(made, given[0]) or made

        def decorated(function: Any) -> Any:  # with options
            compiled = made(function)
            return _compiled(compiled, function) or compiled

        return decorated

    return update_wrapper(compile_, original)


def _look(number: int) -> None:
    """Before a row: memory of the first device of this process."""
    if records.facts.framework != "jax" or (number > EARLY and number % EVERY):
        return
    found = sys.modules["jax"].local_devices()[0].memory_stats()
    if found:
        records.facts.memory_bytes = int(found.get("peak_bytes_in_use", 0))
