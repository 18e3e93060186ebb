"""Help for scripts that train with PyTorch Lightning: `preemptible`, one line before the training."""

from __future__ import annotations

import os

from gpuloom.training import saves

_MODULES = ("lightning.pytorch.trainer.trainer", "pytorch_lightning.trainer.trainer")


def preemptible(folder: str | os.PathLike[str]) -> None:
    """From here on `Trainer.fit` saves here on SIGTERM, and the process exits with 85.

    The same command goes on from there (`gpuloom.training.saves`). Under gpuloom's own hooks nothing changes.

    Raises:
        OSError: the folder can't be made.
    """
    saves.keep(folder, _MODULES)
