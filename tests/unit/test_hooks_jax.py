"""Which of a script's compiled functions counts as its step, with a made-up JAX whose arrays are objects."""

from __future__ import annotations

import importlib
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from hooks_kit import anew, records, stages

jax_steps: Any = importlib.import_module("_gpuloom_hooks.jax_steps")


class Array:
    """Of JAX."""


class Made:
    """A compiled function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function, self.lower, self.__name__ = function, "lower", function.__name__

    def __call__(self, *given: Any, **more: Any) -> Any:
        return self.function(*given, **more)


def leaves(tree: Any) -> list[Any]:
    if isinstance(tree, dict):
        tree = list(tree.values())
    return [leaf for one in tree for leaf in leaves(one)] if isinstance(tree, list | tuple) else [tree]


@pytest.fixture
def jax(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    anew(monkeypatch, str(tmp_path))
    made: Any = ModuleType("jax")
    made.Array, made.tree_util = Array, ModuleType("jax.tree_util")
    made.tree_util.tree_leaves = leaves
    made.memory = {"peak_bytes_in_use": 5 << 20}

    class Device:
        def memory_stats(self) -> Any:
            return made.memory

    made.local_devices = lambda: [Device()]

    def jit(function: Any = None, **options: Any) -> Any:
        return Made(function) if function is not None else Made

    made.jit = made.pmap = jit
    monkeypatch.setitem(sys.modules, "jax", made)
    for name, value in (("_counts", None), ("_others", 0)):
        monkeypatch.setattr(jax_steps, name, value)
    jax_steps.install(made)
    return made


def arrays(count: int) -> list[Array]:
    return [Array() for _ in range(count)]


def counted() -> int:
    line = stages.thread()
    assert line is not None
    return int(line.iterations)


def test_who_gets_back_what_it_returned_is_a_step_and_all_its_calls_count(jax: Any) -> None:
    step = jax.jit(lambda state, batch: (arrays(3), Array()))
    evaluate = jax.jit(lambda state, batch: Array())
    state = arrays(3)
    for number in range(1, 8):
        state, _ = step(state, Array())
        evaluate(state, Array())
        assert counted() == (0 if number < 3 else number), "it is sure at the third call, and counts those before"
    assert (records.facts.framework, records.facts.flags) == ("jax", records.DATA_INSIDE)
    assert records.facts.memory_bytes == 5 << 20
    jax.memory = None  # on CPUs
    step(state, Array())
    assert records.facts.memory_bytes == 5 << 20
    jax.memory = {"bytes_in_use": 7}  # a device that does not keep the peak
    step(state, Array())
    assert records.facts.memory_bytes == 0


def test_of_several_the_one_with_most_arrays_counts_as_long_as_it_is_called(jax: Any) -> None:
    mean = jax.jit(lambda old, new: arrays(1))
    step = jax.jit(lambda state: arrays(3))
    state, old = arrays(3), arrays(1)
    for _ in range(10):
        old = mean(old, state)
        state = step(state)
    assert counted() == 11, "one of them was the mean's, before the step was known"
    before = counted()
    for _ in range(jax_steps.PATIENCE + 5):
        old = mean(old, state)
    assert counted() == before + 5


def test_functions_that_a_step_calls_are_part_of_it(jax: Any) -> None:
    inner = jax.jit(lambda state: arrays(2))
    outer = jax.jit(lambda state: inner(state))
    state = arrays(2)
    for _ in range(9):
        state = outer(state)
    assert counted() == 9


def test_a_function_that_is_compiled_anew_for_each_call(jax: Any) -> None:
    def train(state: Any) -> Any:
        return arrays(2)

    state = arrays(2)
    for _ in range(6):
        state = jax.jit(train)(state)
    assert counted() == 6


def test_who_is_no_step_is_not_looked_at_for_long(jax: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[Any] = []
    monkeypatch.setattr(jax_steps, "_arrays", lambda tree: looked.append(tree) or [])
    plain = jax.jit(lambda x: Array())
    for _ in range(50):
        plain(Array())
    assert len(looked) <= 2 * jax_steps.LOOKS
    assert counted() == 0


def test_it_stands_for_what_was_compiled(jax: Any) -> None:
    def train(state: Any) -> Any:
        """Trains."""
        return state

    made = jax.jit(train)
    assert (made.lower, made.__name__, made.__wrapped__.function) == ("lower", "train", train)
    assert jax.jit(donate_argnums=0)(train).lower == "lower"
    with pytest.raises(AttributeError):
        made.nothing  # noqa: B018
    assert isinstance(jax_steps._same(made), jax_steps.Compiled)
    assert made.__reduce__()[1][0] is made._made
    assert pickle.loads(pickle.dumps(jax_steps._same)) is jax_steps._same

    class Model:
        @jax.jit  # type: ignore[untyped-decorator]
        def step(self, x: int) -> int:
            return x + 1

    assert Model().step(1) == 2


def test_errors_are_the_script_s_own_and_what_fails_here_stops_nothing(
    jax: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(x: Any) -> Any:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        jax.jit(fails)(Array())
    again = jax.jit(lambda state: arrays(1))
    monkeypatch.setattr(jax_steps, "_arrays", lambda tree: 1 / 0)
    for _ in range(5):
        assert len(again(arrays(1))) == 1
    assert counted() == 0


def test_under_keras_its_own_count_counts(jax: Any) -> None:
    stages.counted_elsewhere = True
    step = jax.jit(lambda state: arrays(1))
    state = arrays(1)
    for _ in range(5):
        state = step(state)
    assert counted() == 0
