"""Help for scripts that train with Keras 3: `preemptible`, one line before the training."""

from __future__ import annotations

import os

from gpuloom.training import saves

_MODULES = (
    "keras.src.backend.torch.trainer",
    "keras.src.backend.jax.trainer",
    "keras.src.backend.tensorflow.trainer",
)


def preemptible(folder: str | os.PathLike[str]) -> None:
    """From here on `Model.fit`, on any backend, saves here on SIGTERM, and the process exits with 85.

    The same command goes on from there (`gpuloom.training.saves`). Under gpuloom's own hooks nothing changes.

    `tf_keras`, which is Keras 2, is not saved by this, but by a loop of its own (examples/training/keras_2.py).

    Raises:
        OSError: the folder can't be made.
    """
    saves.keep(folder, _MODULES)
