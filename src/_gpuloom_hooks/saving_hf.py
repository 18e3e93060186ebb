"""Hugging Face Trainer: `train` saves on notice, and goes on from there on the next attempt.

A save is the trainer's own checkpoint with everything (optimizer, scheduler, random state, trainer state), made after a
step, and after the epoch's evaluation where the step was its last. Going on is its own `resume_from_checkpoint`.
"""

from __future__ import annotations

import os
import sys

from . import guarded, saving, say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

HOOK = "saving_hf"
LOSSES = "gpuloom-losses.pt"
"""What the trainer's state lacks: sums of losses since the last line of the log, and since the start."""
SUMS = ("_tr_loss", "_total_loss_scalar", "_globalstep_last_logged", "_initial_global_step")

_run = None  # type: Run | None
"""The call of `train` that runs now, and can be saved."""


class Run:
    """A call of Trainer.train."""

    def __init__(self, trainer: Any, loop: saving.Loop) -> None:
        self.trainer, self.loop = trainer, loop
        self.resumes = None  # type: str | None
        """The checkpoint it goes on from, until that is done."""
        self.saves_to = None  # type: str | None
        self.ended_at = -1
        """The step that was the last of an epoch; the epoch's own work is to be done first."""

    def checkpoint(self, theirs: Any) -> Any:
        """The checkpoint to go on from. theirs: what the script says."""
        found = self.loop.newest()
        if found is None:
            return theirs
        path, about = found
        if theirs is True:
            theirs = sys.modules["transformers.trainer"].get_last_checkpoint(self.trainer.args.output_dir)
        state = os.path.join(str(theirs), "trainer_state.json")
        if theirs and os.path.exists(state) and os.path.getmtime(state) > about["saved_s"]:
            say(HOOK, f"goes on from {theirs}, which is newer than the save of step {about['step']}")
            return theirs
        say(HOOK, f"goes on from the save of step {about['step']}")
        self.resumes = os.path.join(path, f"checkpoint-{about['step']}")
        return self.resumes

    def restore(self) -> None:
        """An epoch begins. After a resume, set what the trainer has not."""
        path, self.resumes = self.resumes, None
        if path is None:
            return
        found = sys.modules["torch"].load(os.path.join(path, LOSSES), map_location="cpu", weights_only=True)
        for name, value in found.items():
            now = getattr(self.trainer, name)
            setattr(self.trainer, name, value.to(now.device) if hasattr(now, "device") else value)

    def after_step(self, model: Any, trial: Any) -> None:
        """All that follows a step, or an epoch, is done. Saves and ends the process if it is time."""
        trainer = self.trainer
        state, args = trainer.state, trainer.args
        if trainer.control.should_training_stop:
            return  # the script comes to its end
        if state.epoch is not None and state.epoch == int(state.epoch) and self.ended_at != state.global_step:
            self.ended_at = state.global_step
            return
        if not self.loop.due(state.global_step, state.max_steps if state.max_steps > 0 else None):
            return

        def write(path: str) -> None:
            self.saves_to = path
            kept = {name: getattr(args, name) for name in ("save_only_model", "push_to_hub", "save_total_limit")}
            try:
                args.save_only_model, args.push_to_hub, args.save_total_limit = False, False, None
                trainer._save_checkpoint(model, trial)
            finally:
                self.saves_to = None
                for name, value in kept.items():
                    setattr(args, name, value)
            if trainer.is_world_process_zero():
                sums = {name: getattr(trainer, name) for name in SUMS}
                folder = os.path.join(path, f"checkpoint-{state.global_step}")
                sys.modules["torch"].save(sums, os.path.join(folder, LOSSES))

        self.loop.save_and_leave(write, trainer.is_world_process_zero())


def _of(trainer: Any) -> Run | None:
    """The run that is under way, if it is this trainer's."""
    return _run if _run is not None and _run.trainer is trainer else None


def _begin(trainer: Any) -> None:
    global _run
    if _run is None:
        loop = saving.begin("HF Trainer", HOOK)
        _run = None if loop is None else Run(trainer, loop)


def _end(trainer: Any) -> None:
    global _run
    run = _of(trainer)
    if run is not None:
        _run = None
        run.loop.end(trainer.state.global_step)


def install(module: Any) -> None:
    """module: transformers.trainer."""

    def train(original: Any, self: Any, resume_from_checkpoint: Any = None, *given: Any, **more: Any) -> Any:
        trial = given[0] if given else more.get("trial")
        if trial is None and not getattr(self.args, "enable_jit_checkpoint", False):
            guarded(HOOK, _begin)(self)
        run = _of(self)
        if run is not None:
            resume_from_checkpoint = guarded(HOOK, run.checkpoint)(resume_from_checkpoint) or resume_from_checkpoint
        try:
            return original(self, resume_from_checkpoint, *given, **more)
        finally:
            guarded(HOOK, _end)(self)

    def run_epoch(original: Any, self: Any, *given: Any, **more: Any) -> Any:
        run = _of(self)
        if run is not None:
            guarded(HOOK, run.restore)()
        return original(self, *given, **more)

    def after(
        original: Any, self: Any, tr_loss: Any, grad_norm: Any, model: Any, trial: Any, *given: Any, **more: Any
    ) -> Any:
        done, run = original(self, tr_loss, grad_norm, model, trial, *given, **more), _of(self)
        if run is not None:
            guarded(HOOK, run.after_step)(model, trial)
        return done

    def output_dir(original: Any, self: Any, trial: Any) -> Any:
        run = _of(self)
        return run.saves_to if run is not None and run.saves_to is not None else original(self, trial=trial)

    saving.wrap(
        (module.Trainer, "train", train),
        (module.Trainer, "_run_epoch", run_epoch),
        (module.Trainer, "_maybe_log_save_evaluate", after),
        (module.Trainer, "_get_output_dir", output_dir),
    )
