"""Keras (`keras`, `tf_keras`): iterations by its list of callbacks, through which every `fit` goes.

Between the two calls around a batch it computes; with TensorFlow and JAX the step also fetches its data, which can't be
told apart.
"""

from __future__ import annotations

import sys
from functools import wraps

from . import guarded, records, stages

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

HOOK = "keras_steps"
TAG = "keras"

_begun = 0


def install(module: Any) -> None:
    """Hear of batches of `fit`. module: the one that has CallbackList."""
    listed = module.CallbackList
    inside = records.DATA_INSIDE if module.__name__.startswith("tf_keras") or _backend() in ("tensorflow", "jax") else 0
    _around(listed, "on_train_batch_begin", before=guarded(HOOK, _begins))
    _around(listed, "on_train_batch_end", before=guarded(HOOK, lambda self, batch: _ends(batch, inside)))
    _around(listed, "on_train_begin", before=guarded(HOOK, lambda self, *_: _trains(self)))


def _around(listed: Any, name: str, *, before: Any) -> None:
    original = getattr(listed, name)

    @wraps(original)
    def method(self: Any, *args: Any, **more: Any) -> Any:
        before(self, *(args or tuple(more.values()))[:1])
        return original(self, *args, **more)

    setattr(listed, name, method)


def _backend() -> str:
    config = sys.modules.get("keras.src.backend.config")
    return str(config.backend()) if config is not None else "tensorflow"


def _trains(callbacks: Any) -> None:
    said = getattr(callbacks, "params", None) or {}
    epochs, steps = said.get("epochs"), said.get("steps")
    if isinstance(epochs, int) and isinstance(steps, int):
        records.planned(epochs * steps)


def _begins(callbacks: Any, batch: Any) -> None:
    global _begun
    line = stages.thread(steps=True)
    if line is None:
        return
    stages.counted_elsewhere = True
    records.begin("keras")
    _begun = int(batch)
    line.begin(stages.GPU, stages.GPU, TAG)


def _ends(batch: Any, inside: int) -> None:
    line = stages.thread(steps=True)
    if line is None:
        return
    records.facts.flags |= inside
    line.end_of(TAG)
    line.iteration(max(int(batch) - _begun + 1, 1))  # several with steps_per_execution
