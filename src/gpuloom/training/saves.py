"""Saving on notice where gpuloom's hooks are not there to do it: under `--no-hooks`, in a script of Slurm, by hand.

`gpuloom.training.lightning`, `.hf` and `.keras` each have `preemptible(folder)`, to be called before the training:

    from gpuloom.training.lightning import preemptible

    preemptible("runs/saves")
    trainer.fit(model, data)                 # as ever

On SIGTERM, or gpuloom's notice, the training saves at the end of a step, and the process exits with 85. The same
command then goes on from there, to the same weights. What can be kept: docs/howto/training-frameworks.md.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from importlib import import_module

HOOKS = "_gpuloom_hooks"
SAVES, OFF, NOTICE = "GPULOOM_SAVES", "off", "GPULOOM_NOTICE_FILE"
LOADERS = ("torch.utils.data.dataloader", "torch.utils.data._utils.signal_handling")
"""Modules whose hooks all frameworks on PyTorch need to go on within an epoch."""

SAVING = frozenset({"loaders", "notice", "saving_lightning", "saving_hf", "saving_keras"})
"""Hooks that save, and no others."""

_waits_for: set[str] = set()


def keep(folder: str | os.PathLike[str], modules: Iterable[str]) -> None:
    """Save trainings of a framework in this folder. modules: of the framework, that our hooks wait for.

    Where gpuloom's hooks save already, nothing changes: they have a folder of the job's own. Else the folder is made,
    and what was saved there is removed when the training has ended well.

    Raises:
        OSError: the folder can't be made.
    """
    if os.environ.get(SAVES, OFF) not in ("", OFF):
        return
    place = os.path.abspath(folder)
    os.makedirs(place, exist_ok=True)
    os.environ[SAVES] = place
    os.environ.setdefault(NOTICE, os.path.join(place, "notice"))
    hooks = import_module(HOOKS)
    if hooks.started:
        return  # they are all there, and only the folder was missing
    wanted = {*LOADERS, *modules} - _waits_for
    _waits_for.update(wanted)
    hooks.after_import([row for row in hooks.AFTER_IMPORT if row[0] in wanted and row[1] in SAVING])
