"""How many steps a training is to have in all, where the framework knows it: HF Trainer and Lightning."""

from __future__ import annotations

from functools import wraps

from . import guarded, records

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

HOOK = "totals"


def _after(owner: Any, name: str, function: Any) -> None:
    original = getattr(owner, name)
    done = guarded(HOOK, function)

    @wraps(original)
    def method(self: Any, *args: Any, **more: Any) -> Any:
        result = original(self, *args, **more)
        done(self, *args)
        return result

    setattr(owner, name, method)


def install_hf(module: Any) -> None:
    """Ask HF Trainer when it begins to train. module: transformers.trainer_callback."""
    _after(module.CallbackHandler, "on_train_begin", _hf_begins)


def _hf_begins(handler: Any, args: Any, state: Any, *more: Any) -> None:
    _known(state.max_steps, state.global_step)


def install_lightning(module: Any) -> None:
    """Ask Lightning at the start of its fit loop. module: lightning.pytorch.loops.fit_loop, or pytorch_lightning's."""
    _after(module._FitLoop, "on_run_start", _lightning_begins)


def _lightning_begins(loop: Any, *more: Any) -> None:
    trainer = loop.trainer
    if len(trainer.optimizers) == 1:  # its count of steps is that of all optimizers together
        _known(trainer.estimated_stepping_batches, trainer.global_step)


def _known(steps: Any, done: Any) -> None:
    if 0 < steps < float("inf"):
        records.planned(int(steps), int(done))
