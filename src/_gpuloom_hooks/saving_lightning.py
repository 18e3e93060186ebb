"""PyTorch Lightning: `Trainer.fit` saves on notice, and goes on from there on the next attempt.

A save is the trainer's own checkpoint, and what that lacks for going on within an epoch: the position in the data, the
state of random generators, of metrics and of means over the epoch, per rank. It is made before the next batch is
fetched, when no gradients are being accumulated.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module

from . import chance, guarded, loaders, notice, saving, say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

HOOK = "saving_lightning"
CHECKPOINT = "lightning.ckpt"

_fit = None  # type: Fit | None
"""The fit that runs now, and can be saved."""


class Fit:
    """A call of Trainer.fit."""

    def __init__(self, trainer: Any, loop: saving.Loop) -> None:
        self.trainer, self.loop = trainer, loop
        self.resumes = None  # type: dict[str, Any] | None
        """This rank's own part of the save it goes on from, until that is done."""
        self.chosen = None  # type: str | None

    def checkpoint(self, theirs: Any) -> Any:
        """The checkpoint to go on from. theirs: what the script or Lightning would have chosen."""
        found = self.loop.newest()
        if found is None:
            return theirs
        path, about = found
        if theirs and os.path.exists(str(theirs)) and os.path.getmtime(str(theirs)) > about["saved_s"]:
            say(HOOK, f"goes on from {theirs}, which is newer than the save of step {about['step']}")
            return theirs
        own = os.path.join(path, self._own_name())
        if os.path.exists(own) and about.get("world") == self.trainer.world_size:
            self.resumes = sys.modules["torch"].load(own, map_location="cpu", weights_only=False)
        else:
            say(HOOK, f"saved by {about.get('world')} ranks: the order of data within the epoch is not the same")
        say(HOOK, f"goes on from the save of step {about['step']}")
        self.chosen = os.path.join(path, CHECKPOINT)
        return self.chosen

    def _own_name(self) -> str:
        return f"rank-{self.trainer.global_rank}.pt"

    def loaders_ready(self, fit_loop: Any) -> None:
        """The loaders are made, and about to be iterated over."""
        if self.resumes is None:
            return
        ours = fit_loop._combined_loader.flattened
        if len(ours) != len(self.resumes["loaders"]):
            say(HOOK, "other loaders than when it was saved: the epoch's data begins anew")
            return
        for loader, found in zip(ours, self.resumes["loaders"]):
            if found is not None:
                loaders.go_on(loader, found)

    def restore(self, epoch_loop: Any) -> None:
        """Right before the first batch after a resume: what Lightning's checkpoint does not hold."""
        own, self.resumes = self.resumes, None
        if own is None:
            return
        epoch_loop.restarting = False  # batch, validation and schedulers are all done: nothing is to be done again
        epoch_loop.val_loop.restarting = False
        module = self.trainer.lightning_module
        modules = dict(module.named_modules())
        for name, states in own["metrics"].items():
            _set_metric(modules[name], states)
        epoch_loop._results._gpuloom = own["means"]  # of a logged value: put in place when it is logged again
        self.trainer._logger_connector._callback_metrics.update(own["callback_metrics"])
        parameters = dict(module.named_parameters())
        for name, gradient in own["gradients"].items():
            parameters[name].grad = gradient.to(parameters[name].device)
        chance.restore(own["chance"])

    def own_state(self, epoch_loop: Any, fetcher: Any) -> dict[str, Any]:
        """What a checkpoint of Lightning lacks."""
        module = self.trainer.lightning_module
        ahead = len(getattr(fetcher, "batches", ()))
        manual = not module.automatic_optimization
        return {
            "loaders": [_position(one, ahead) for one in fetcher.combined_loader.flattened],
            "metrics": {name: _metric(one) for name, one in module.named_modules() if hasattr(one, "_update_count")},
            "means": {key: _metric(one) for key, one in epoch_loop._results.items() if not one.has_reset},
            "callback_metrics": dict(self.trainer._logger_connector._callback_metrics),
            "gradients": {name: one.grad for name, one in module.named_parameters() if manual and one.grad is not None},
            "chance": chance.state(),
        }

    def between_batches(self, epoch_loop: Any, fetcher: Any) -> None:
        """No batch is under way. Saves and ends the process if it is time."""
        trainer = self.trainer
        accumulates = trainer.accumulate_grad_batches if trainer.lightning_module.automatic_optimization else 1
        if epoch_loop.batch_progress.current.ready % accumulates:
            return
        if not self.loop.due(trainer.global_step, _steps(trainer)):
            return

        def write(path: str) -> None:
            own = self.own_state(epoch_loop, fetcher)
            sys.modules["torch"].save(own, os.path.join(path, self._own_name()))
            trainer.save_checkpoint(os.path.join(path, CHECKPOINT))

        self.loop.save_and_leave(write, trainer.is_global_zero)


def _position(loader: Any, ahead: int) -> dict[str, Any] | None:
    if hasattr(loader, "state_dict") or not hasattr(loader, "_dataset_kind"):
        return None  # Lightning keeps it, or there is nothing to keep
    return loaders.position(loader, ahead=ahead)


def _metric(metric: Any) -> dict[str, Any]:
    """The state of a metric of torchmetrics."""
    return {"count": metric._update_count, "states": {name: getattr(metric, name) for name in metric._defaults}}


def _set_metric(metric: Any, found: dict[str, Any]) -> None:
    device = metric.device
    for name, value in found["states"].items():
        here = [one.to(device) for one in value] if isinstance(value, list) else value.to(device)
        setattr(metric, name, here)
    metric._update_count, metric._computed = found["count"], None


def _steps(trainer: Any) -> int | None:
    """How many steps there will be, if that is known."""
    limits = [trainer.max_steps] if trainer.max_steps not in (None, -1) else []
    batches, epochs = trainer.num_training_batches, trainer.max_epochs
    if epochs not in (None, -1) and batches != float("inf") and trainer.lightning_module.automatic_optimization:
        limits.append(-(-batches // trainer.accumulate_grad_batches) * epochs)
    return int(min(limits)) if limits else None


def _of(trainer: Any) -> Fit | None:
    """The fit that runs now, if it is this trainer's."""
    return _fit if _fit is not None and _fit.trainer is trainer else None


def _begin(trainer: Any) -> None:
    global _fit
    looks_around = any(getattr(one, "_early_exit", False) for one in trainer.callbacks)  # for a batch size, or a rate
    if _fit is None and not looks_around and not trainer.fast_dev_run:
        loop = saving.begin("Lightning", HOOK)
        _fit = None if loop is None else Fit(trainer, loop)


def _end(trainer: Any) -> None:
    global _fit
    fit = _of(trainer)
    if fit is not None:
        _fit = None
        fit.loop.end(trainer.global_step)


def install(module: Any) -> None:
    """module: lightning.pytorch.trainer.trainer, or pytorch_lightning.trainer.trainer."""
    root = module.__name__[: -len(".trainer.trainer")]
    fit_loop = import_module(root + ".loops.fit_loop")._FitLoop
    epoch_loop = import_module(root + ".loops.training_epoch_loop")._TrainingEpochLoop
    checkpoints = import_module(root + ".trainer.connectors.checkpoint_connector")._CheckpointConnector
    results = import_module(root + ".trainer.connectors.logger_connector.result")._ResultCollection
    signals = import_module(root + ".trainer.connectors.signal_connector")._SignalConnector

    def fit(original: Any, self: Any, *given: Any, **more: Any) -> Any:
        guarded(HOOK, _begin)(self)
        try:
            return original(self, *given, **more)
        finally:
            guarded(HOOK, _end)(self)

    def choose(original: Any, self: Any, *given: Any, **more: Any) -> Any:
        theirs, running = original(self, *given, **more), _of(self.trainer)
        return theirs if running is None else guarded(HOOK, running.checkpoint)(theirs) or theirs

    def load(original: Any, self: Any, path: Any = None, *given: Any, **more: Any) -> Any:
        running = _of(self.trainer)
        if running is not None and path is not None and path == running.chosen and "weights_only" in more:
            more["weights_only"] = False  # our own file, which holds more than weights
        return original(self, path, *given, **more)

    def ready(original: Any, self: Any) -> Any:
        done, running = original(self), _of(self.trainer)
        if running is not None:
            guarded(HOOK, running.loaders_ready)(self)
        return done

    def start(original: Any, self: Any, fetcher: Any) -> Any:
        done, running = original(self, fetcher), _of(self.trainer)
        if running is not None:
            guarded(HOOK, running.restore)(self)
        return done

    def advance(original: Any, self: Any, fetcher: Any) -> Any:
        running = _of(self.trainer)
        if running is not None:
            guarded(HOOK, running.between_batches)(self, fetcher)
        return original(self, fetcher)

    def logged(original: Any, self: Any, key: str, *given: Any, **more: Any) -> Any:
        means = self.__dict__.get("_gpuloom")
        if means and key in means:
            guarded(HOOK, _set_metric)(self[key], means.pop(key))
        return original(self, key, *given, **more)

    def register(original: Any, self: Any) -> Any:
        done = original(self)
        if _of(self.trainer) is not None:
            notice.take()  # Lightning's own handler makes it leave with nothing saved
        return done

    saving.wrap(
        (module.Trainer, "fit", fit),
        (checkpoints, "_select_ckpt_path", choose),
        (checkpoints, "resume_start", load),
        (fit_loop, "_load_combined_loader_states", ready),
        (epoch_loop, "on_run_start", start),
        (epoch_loop, "advance", advance),
        (results, "update_metrics", logged),
        (signals, "register_signal_handlers", register),
    )
