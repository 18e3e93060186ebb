"""Keras 3 on PyTorch: `Model.fit` saves on notice, and goes on from there on the next attempt.

A save is made after a batch, or, where the place within the epoch can't be kept (generators, `steps_per_epoch`), after
an epoch with its validation. It has the variables of model, optimizer and metrics, seeds, random states, the position
in the data, and the plain attributes of callbacks, such as how long EarlyStopping has waited.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module

from . import chance, guarded, loaders, ranks, saving, say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

HOOK = "saving_keras"
IN_EPOCH = ("ArrayDataAdapter", "TorchDataLoaderAdapter")
"""Data of which the place within an epoch can be kept."""
COSMETIC = ("ProgbarLogger", "TensorBoard")

_run = None  # type: Run | None
"""The fit that runs now, and can be saved."""


class Run:
    """A call of fit."""

    def __init__(self, model: Any, loop: saving.Loop) -> None:
        self.model, self.loop = model, loop
        self.callbacks = None  # type: Any
        self.epoch = 0
        self.iterator = None  # type: Any
        """The EpochIterator of training; evaluation has others."""
        self.waits = False
        """An epoch has begun: the next iterator that asks for data is that of training."""
        self.loader = None  # type: Any
        self.resumes = None  # type: dict[str, Any] | None
        """The save it goes on from, until that is done."""
        self.skip = 0
        """So many batches of its first epoch were done."""

    def train_begins(self, callbacks: Any) -> None:
        """All is built; on_train_begin of the callbacks has been called."""
        self.callbacks = callbacks
        found = self.loop.newest()
        if found is None:
            return
        path, about = found
        own = os.path.join(path, f"rank-{ranks.rank()}.pt")
        state = sys.modules["torch"].load(own, map_location="cpu", weights_only=False)
        variables = self._variables()
        kinds = {name: [tuple(one.shape) for one in some] for name, some in variables.items()}
        theirs = {name: [one.shape for one in some] for name, some in state["variables"].items()}
        if kinds != theirs:
            raise ValueError("the model has other variables than when it was saved")
        self.resumes, self.model._initial_epoch = state, state["epoch"]
        self._assign(variables, ("model", "optimizer", "seeds"))
        say(HOOK, f"goes on from the save of step {about['step']}")

    def _variables(self) -> dict[str, list[Any]]:
        model, optimizer = self.model, self.model.optimizer
        if not optimizer.built:
            optimizer.build(model.trainable_variables)
        seeds = import_module("keras.src.random.seed_generator").global_seed_generator()
        return {
            "model": list(model.variables),
            "optimizer": list(optimizer.variables),
            "metrics": list(model.metrics_variables),
            "seeds": [seeds.state],
        }

    def _assign(self, variables: dict[str, list[Any]], names: tuple[str, ...]) -> None:
        for name in names:
            for one, value in zip(variables[name], (self.resumes or {})["variables"][name]):
                one.assign(value)

    def epoch_begins(self, epoch: int) -> None:
        """Metrics have been reset."""
        self.epoch, self.waits = epoch, self.iterator is None
        state = self.resumes
        if state is None:
            return
        if state["batches"]:
            self._assign(self._variables(), ("metrics",))
        for callback, (kind, attributes) in zip(self.callbacks.callbacks, state["callbacks"]):
            if type(callback).__name__ == kind:
                callback.__dict__.update(attributes)
        self.skip = state["batches"]

    def asks(self, iterator: Any, loader: Any) -> None:
        """An iterator begins with a loader of PyTorch."""
        if self.waits:
            self.waits, self.iterator = False, iterator
        if iterator is not self.iterator:
            return
        self.loader = loader
        if self.resumes is not None and self.skip:
            loaders.go_on(loader, self.resumes["position"])

    def first_step(self, steps: Any) -> None:
        """The iterator of training begins with an epoch. Steps that were done are left out, without their data."""
        state = self.resumes or {}
        for _ in range(-(-self.skip // self.iterator.steps_per_execution)):
            next(steps)
        self.resumes = None
        chance.restore(state["chance"])

    def batch_ended(self, last: int) -> None:
        """Batch `last` of the epoch is done, counted from 0."""
        iterator = self.iterator
        kept = type(iterator.data_adapter).__name__ in IN_EPOCH and not iterator.steps_per_epoch
        if kept and iterator.num_batches and last + 1 < iterator.num_batches:
            self._maybe_save(self.epoch, last + 1)

    def epoch_ended(self) -> None:
        """So is its validation."""
        if not self.model.stop_training and self.epoch + 1 < self.callbacks.params["epochs"]:
            self._maybe_save(self.epoch + 1, 0)

    def _maybe_save(self, epoch: int, batches: int) -> None:
        in_epoch, epochs = self.iterator.num_batches, self.callbacks.params["epochs"]
        per_epoch = in_epoch or 1
        if not self.loop.due(epoch * per_epoch + batches, epochs * per_epoch):
            return

        def write(path: str) -> None:
            convert = sys.modules["keras"].ops.convert_to_numpy
            state = {
                "epoch": epoch,
                "batches": batches,
                "variables": {name: [convert(one) for one in some] for name, some in self._variables().items()},
                "callbacks": [(type(one).__name__, _plain_attributes(one)) for one in self.callbacks.callbacks],
                "position": loaders.position(self.loader) if batches else None,
                "chance": chance.state(),
            }
            sys.modules["torch"].save(state, os.path.join(path, f"rank-{ranks.rank()}.pt"))

        self.loop.save_and_leave(write, ranks.rank() == 0)

    def steps_done(self) -> int:
        """When it has ended by itself."""
        per_epoch = (self.iterator.num_batches if self.iterator is not None else None) or 1
        return (self.epoch + 1) * per_epoch if self.iterator is not None else 0


def _plain_attributes(callback: Any) -> dict[str, Any]:
    if type(callback).__name__ in COSMETIC:
        return {}
    return {
        key: value for key, value in callback.__dict__.items() if _is_plain(value) and key not in ("params", "_params")
    }


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(_is_plain(one) for one in value)
    if isinstance(value, dict):
        return all(_is_plain(one) for pair in value.items() for one in pair)
    return value is None or isinstance(value, (bool, int, float, str)) or type(value).__module__ == "numpy"


def _begin(model: Any) -> None:
    global _run
    if _run is None:
        loop = saving.begin("Keras", HOOK)
        _run = None if loop is None else Run(model, loop)


def _end(run: Run, whole: bool) -> None:
    global _run
    _run = None
    run.model._initial_epoch = None
    run.loop.end(run.steps_done() if whole else run.loop.at_step)


def install(module: Any) -> None:
    """module: keras.src.backend.torch.trainer."""
    callbacks = import_module("keras.src.callbacks.callback_list").CallbackList
    base = import_module("keras.src.trainers.epoch_iterator").EpochIterator

    def of(model: Any) -> Run | None:
        return _run if _run is not None and _run.model is model else None

    def fit(original: Any, self: Any, *given: Any, **more: Any) -> Any:
        inner = _run is not None
        guarded(HOOK, _begin)(self)
        run = of(self)
        whole = False
        try:
            done = original(self, *given, **more)
            whole = True
            return done
        finally:
            if run is not None and not inner:
                guarded(HOOK, _end)(run, whole)

    def train_begins(original: Any, self: Any, *given: Any, **more: Any) -> Any:
        done, run = original(self, *given, **more), of(self.model)
        if run is not None:
            guarded(HOOK, run.train_begins)(self)
        return done

    def epoch_begins(original: Any, self: Any, epoch: int, *given: Any, **more: Any) -> Any:
        done, run = original(self, epoch, *given, **more), of(self.model)
        if run is not None:
            guarded(HOOK, run.epoch_begins)(epoch)
        return done

    def batch_ended(original: Any, self: Any, batch: int, *given: Any, **more: Any) -> Any:
        done, run = original(self, batch, *given, **more), of(self.model)
        if run is not None and run.iterator is not None:
            guarded(HOOK, run.batch_ended)(batch)
        return done

    def epoch_ended(original: Any, self: Any, *given: Any, **more: Any) -> Any:
        done, run = original(self, *given, **more), of(self.model)
        if run is not None and run.iterator is not None:
            guarded(HOOK, run.epoch_ended)()
        return done

    def data(original: Any, self: Any) -> Any:
        loader = original(self)
        if _run is not None:
            guarded(HOOK, _run.asks)(self, loader)
        return loader

    def steps(original: Any, self: Any) -> Any:
        found = original(self)
        if _run is not None and (_run.waits or self is _run.iterator) and _run.resumes is not None:
            _run.waits, _run.iterator = False, self
            guarded(HOOK, _run.first_step)(found)
        return found

    saving.wrap(
        (module.TorchTrainer, "fit", fit),
        (module.TorchEpochIterator, "_get_iterator", data),
        (base, "_enumerate_iterator", steps),
        (callbacks, "on_train_begin", train_begins),
        (callbacks, "on_epoch_begin", epoch_begins),
        (callbacks, "on_train_batch_end", batch_ended),
        (callbacks, "on_epoch_end", epoch_ended),
    )
