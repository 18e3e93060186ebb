"""Keras 3, on PyTorch, JAX or TensorFlow: `Model.fit` saves on notice, and goes on from there on the next attempt.

A save is made after a batch, or, where the place within the epoch can't be kept (generators, `steps_per_epoch`), after
an epoch with its validation. It has the variables of model, optimizer and metrics, seeds, random states, the position
in the data, and the plain attributes of callbacks, such as how long EarlyStopping has waited.
"""

from __future__ import annotations

import os
import pickle
import sys
import tempfile
from importlib import import_module

from . import chance, guarded, keras_data, ranks, report, saving, say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

HOOK = "saving_keras"
FILE = "rank-%d.pickle"
TRAINERS = {
    "torch": ("TorchTrainer", "TorchEpochIterator"),
    "jax": ("JAXTrainer", "JAXEpochIterator"),
    "tensorflow": ("TensorFlowTrainer", "TFEpochIterator"),
}
"""By backend: Keras' classes that fit, and that iterate over an epoch."""
KEPT = ("model", "optimizer", "seeds")
"""Kinds of variables that are there when a training begins."""
COSMETIC = ("ProgbarLogger", "TensorBoard")

_run = None  # type: Run | None
"""The fit that runs now, and can be saved."""


class Run:
    """A call of fit."""

    def __init__(self, model: Any, loop: saving.Loop, data: keras_data.Torch) -> None:
        self.model, self.loop, self.data = model, loop, data
        self.callbacks = None  # type: Any
        self.epoch = 0
        self.iterator = None  # type: Any
        """The EpochIterator of training; evaluation has others."""
        self.waits = False
        """An epoch has begun: the next iterator that asks for data is that of training."""
        self.source = None  # type: Any
        """What that one iterates over."""
        self.tells = True
        """Where its data stands can be told, as far as is known."""
        self.resumes = None  # type: dict[str, Any] | None
        """The save it goes on from, until that is done."""
        self.resumes_in = ""
        """The folder of that save."""
        self.skip = 0
        """So many batches of its first epoch were done."""

    def train_begins(self, callbacks: Any) -> None:
        """All is built; on_train_begin of the callbacks has been called."""
        self.callbacks = callbacks
        found = self.loop.newest()
        if found is None:
            return
        path, about = found
        with open(os.path.join(path, FILE % ranks.rank()), "rb") as file:
            state = pickle.load(file)  # noqa: S301 - our own
        variables, theirs = self._variables(), state["variables"]
        for name in KEPT:
            if [tuple(one.shape) for one in variables[name]] != [one.shape for one in theirs[name]]:
                raise ValueError(f"the model has other variables ({name}) than when it was saved")
        if state["backend"] != self.data.name:
            raise ValueError(f"it was saved on {state['backend']}, and this is Keras on {self.data.name}")
        self.resumes, self.resumes_in, self.model._initial_epoch = state, path, state["epoch"]
        self._assign(variables, KEPT)
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
        for callback, (kind, attributes) in zip(self.callbacks.callbacks, state["callbacks"]):
            if type(callback).__name__ == kind:
                callback.__dict__.update(attributes)
        self.skip = state["batches"]

    def _goes_on_counting(self) -> None:
        """Metrics of the epoch. TensorFlow makes their variables in the first step only."""
        metrics = (self.resumes or {})["variables"]["metrics"]
        if len(self.model.metrics_variables) != len(metrics):
            self.model._symbolic_build(data_batch=next(iter(self.source)))
        self._assign(self._variables(), ("metrics",))

    def asks(self, iterator: Any, source: Any) -> Any:
        """An iterator begins; what it is to iterate over in place of this source."""
        if self.waits:
            self.waits, self.iterator = False, iterator
        if iterator is not self.iterator or not self._in_epoch(iterator):
            return source
        self.source = source
        goes_on = self.resumes is not None and self.skip
        return self.data.begins(source, (self.resumes or {})["position"] if goes_on else None)

    def _in_epoch(self, iterator: Any) -> bool:
        """Whether the place within an epoch can be kept, as far as is known."""
        kind = type(iterator.data_adapter).__name__
        return self.tells and kind in self.data.kinds and not iterator.steps_per_epoch and bool(iterator.num_batches)

    def first_step(self, steps: Any) -> None:
        """The iterator of training begins with an epoch. Steps that were done are left out, without their data."""
        state = self.resumes or {}
        if self.skip:
            for _ in range(-(-self.skip // self.iterator.steps_per_execution)):
                iterator = next(steps)[-1]
            self._goes_on_counting()
            self.data.reached(iterator, self.resumes_in)
        self.resumes = None
        chance.restore(state["chance"])

    def batch_ended(self, last: int) -> None:
        """Batch `last` of the epoch is done, counted from 0."""
        iterator = self.iterator
        if self._in_epoch(iterator) and last + 1 < iterator.num_batches:
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
        if batches and not self._told(batches):
            return  # after the epoch, then

        def write(path: str) -> None:
            convert = sys.modules["keras"].ops.convert_to_numpy
            sync = getattr(self.model, "jax_state_sync", None)
            if sync is not None:
                sync()  # between batches the variables are not the model's
            state = {
                "backend": self.data.name,
                "epoch": epoch,
                "batches": batches,
                "variables": {name: [convert(one) for one in some] for name, some in self._variables().items()},
                "callbacks": [(type(one).__name__, _plain_attributes(one)) for one in self.callbacks.callbacks],
                "position": self.data.position(self.iterator._current_iterator, batches, path) if batches else None,
                "chance": chance.state(),
            }
            with open(os.path.join(path, FILE % ranks.rank()), "wb") as file:
                pickle.dump(state, file)

        self.loop.save_and_leave(write, ranks.rank() == 0)

    def _told(self, batches: int) -> bool:
        """Whether the data's position can be told here: of some pipelines that is seen only when it is asked for."""
        with tempfile.TemporaryDirectory() as folder:
            try:
                self.data.position(self.iterator._current_iterator, batches, folder)
            except Exception as error:
                self.tells = False
                why = f"{type(error).__name__}: {error}"
                say(HOOK, f"saves after the epoch, as where the data stands can't be told: {why}")
        return self.tells

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


def _begin(model: Any, data: keras_data.Torch) -> None:
    global _run
    if _run is not None:
        return
    strategy = getattr(model, "distribute_strategy", None)
    if getattr(getattr(strategy, "extended", None), "_in_multi_worker_mode", bool)():
        why = "Keras: not saved on notice: TensorFlow trains it in several workers"
        say("saving", why)
        report.not_saved(why)
        return
    loop = saving.begin("Keras", HOOK)
    _run = None if loop is None else Run(model, loop, data)


def _end(run: Run, whole: bool) -> None:
    global _run
    _run = None
    run.model._initial_epoch = None
    run.loop.end(run.steps_done() if whole else run.loop.at_step)


def install(module: Any) -> None:
    """module: keras.src.backend.BACKEND.trainer."""
    backend = keras_data.BACKENDS[module.__name__.split(".")[-2]]
    trainer, epochs = TRAINERS[backend.name]
    callbacks = import_module("keras.src.callbacks.callback_list").CallbackList
    base = import_module("keras.src.trainers.epoch_iterator").EpochIterator

    def of(model: Any) -> Run | None:
        return _run if _run is not None and _run.model is model else None

    def fit(original: Any, self: Any, *given: Any, **more: Any) -> Any:
        inner = _run is not None
        guarded(HOOK, _begin)(self, backend())
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
        source = original(self)
        if _run is None:
            return source
        found = guarded(HOOK, _run.asks)(self, source)
        return source if found is None else found

    def steps(original: Any, self: Any) -> Any:
        found = original(self)
        if _run is not None and (_run.waits or self is _run.iterator) and _run.resumes is not None:
            _run.waits, _run.iterator = False, self
            guarded(HOOK, _run.first_step)(found)
        return found

    saving.wrap(
        (getattr(module, trainer), "fit", fit),
        (getattr(module, epochs), "_get_iterator", data),
        (base, "_enumerate_iterator", steps),
        (callbacks, "on_train_begin", train_begins),
        (callbacks, "on_epoch_begin", epoch_begins),
        (callbacks, "on_train_batch_end", batch_ended),
        (callbacks, "on_epoch_end", epoch_ended),
    )
