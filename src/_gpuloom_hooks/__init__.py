"""What gpuloom puts into a job's own Python: hooks that are installed once the job has imported a framework.

It enters by the environment alone (`gpuloom.training.inject.environment`): `site/sitecustomize.py` loads this package
by its path and calls `start`. No framework is imported here: `AFTER_IMPORT` says which module of ours waits for which.

Standard library only, Python 3.8 or newer, no import of gpuloom, which the job's Python may lack. It prints nothing. A
hook in which something fails switches itself off and says so in one line of `hooks.log`; the job runs on.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any, TypeVar

    Result = TypeVar("Result")

AFTER_IMPORT = (
    ("torch.utils.data.dataloader", "loaders", "install"),
    ("torch.utils.data._utils.signal_handling", "notice", "shield_workers"),
    ("torch.serialization", "saving_own", "install"),
    ("accelerate.accelerator", "saving_own", "install_accelerate"),
    ("lightning.pytorch.trainer.trainer", "saving_lightning", "install"),
    ("pytorch_lightning.trainer.trainer", "saving_lightning", "install"),
    ("transformers.trainer", "saving_hf", "install"),
    ("keras.src.backend.torch.trainer", "saving_keras", "install"),
    ("keras.src.backend.jax.trainer", "saving_keras", "install"),
    ("keras.src.backend.tensorflow.trainer", "saving_keras", "install"),
    ("torch.optim.optimizer", "torch_steps", "install"),
    ("torch.autograd", "torch_steps", "install_backward"),
    ("torch.utils.data.dataloader", "torch_data", "install_loader"),
    ("torch.utils.data._utils.fetch", "torch_data", "install_fetch"),
    ("torch.nn.parallel.distributed", "torch_comm", "install_ddp"),
    ("torch.distributed.distributed_c10d", "torch_comm", "install_collectives"),
    ("keras.src.callbacks.callback_list", "keras_steps", "install"),
    ("tf_keras.src.callbacks", "keras_steps", "install"),
    ("transformers.trainer_callback", "totals", "install_hf"),
    ("lightning.pytorch.loops.fit_loop", "totals", "install_lightning"),
    ("pytorch_lightning.loops.fit_loop", "totals", "install_lightning"),
    ("torch", "gpu_memory", "install"),
    ("tensorflow", "gpu_memory", "install"),
    ("jax", "gpu_memory", "install"),
    ("jax", "jax_steps", "install"),
    ("wandb", "links", "install_wandb"),
    ("mlflow.tracking.client", "links", "install_mlflow"),
    ("mlflow.tracking.fluent", "links", "install_mlflow_start"),
    ("torch.utils.tensorboard.writer", "links", "install_tensorboard"),
    ("tensorboardX.writer", "links", "install_tensorboard"),
    ("tensorflow.python.ops.summary_ops_v2", "links", "install_tensorflow"),
)
"""Rows of: a module that the job imports, a module of this package, its function, which is called with the former."""

SETTING = "GPULOOM_HOOKS"
"""Environment variable: the folder for records and log; "off", set by the user: no hooks."""
OFF = "off"
SEEN = "seen"
"""Empty file in the folder: a Python with hooks has started. Without it there was none, or it ran with -I, -E or -S."""
LOG = "hooks.log"

started = False
"""All of them wait for their imports. Else the script asked for some by itself (`gpuloom.training.saves`)."""
switched_off = set()  # type: set[str]
"""Names of hooks in which something failed."""
at_switch_off = {}  # type: dict[str, Callable[[BaseException], object]]
"""By hook: what is to be done when something has failed in it, such as giving a signal back."""


def folder() -> str | None:
    """Where records and the log go; None: hooks are off."""
    setting = os.environ.get(SETTING)
    return None if not setting or setting == OFF else setting


def start() -> None:
    """Wait for the imports of `AFTER_IMPORT`, and leave the mark that Python has started with hooks."""
    global started
    place = folder()
    if place is None:
        return
    started = True
    if not os.path.isdir(place):
        with suppress(FileExistsError):  # another Python of the job was first
            os.mkdir(place, 0o700)  # the run's own folder is there
    os.close(os.open(os.path.join(place, SEEN), os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))
    after_import(AFTER_IMPORT)


def after_import(rows: Iterable[tuple[str, str, str]]) -> None:
    """Call a function of ours once a module has been imported, at once if it is there already.

    rows: name of the module to wait for, our module (below this package), its function. The function gets the module.
    """
    wanted = {}  # type: dict[str, list[tuple[str, str]]]
    for name, where, function in rows:
        wanted.setdefault(name, []).append((where, function))
    finder = AfterImport(wanted)
    sys.meta_path.insert(0, finder)
    for name in list(wanted):
        if name in sys.modules:
            finder.imported(name, sys.modules[name])


class AfterImport:
    """A finder that finds nothing of its own: it extends the loader that others find for a module we wait for."""

    def __init__(self, wanted: dict[str, list[tuple[str, str]]]) -> None:
        self.wanted = wanted
        self.busy = set()  # type: set[str]

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in self.wanted or name in self.busy:
            return None
        self.busy.add(name)  # another finder may ask all of them again
        try:
            spec = self._found_by_others(name, path, target)
        finally:
            self.busy.discard(name)
        loader = getattr(spec, "loader", None)
        execute = getattr(loader, "exec_module", None)
        if loader is None or execute is None or isinstance(loader, type):  # a class serves many modules
            return spec

        def exec_module(module: Any) -> None:
            execute(module)
            if module.__name__ == name:
                self.imported(name, module)

        try:
            loader.exec_module = exec_module  # on this object; that of a zip file serves others as well
        except (AttributeError, TypeError) as error:
            for where, _ in self.wanted.pop(name, ()):
                switch_off(where, error)
        return spec

    def _found_by_others(self, name: str, path: Any, target: Any) -> Any:
        for finder in list(sys.meta_path):
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec = None if find is None else find(name, path, target)
            if spec is not None:
                return spec
        return None

    def imported(self, name: str, module: Any) -> None:
        """Call who waits for the module; once, also where it is imported anew."""
        for where, function in self.wanted.pop(name, ()):
            try:
                getattr(import_module(__name__ + "." + where), function)(module)
            except Exception as error:  # ours; the job runs on
                switch_off(where, error)


def guarded(hook: str, function: Callable[..., Result]) -> Callable[..., Result | None]:
    """The function, which does nothing once something has failed in the hook; None then."""

    def call(*args: Any, **more: Any) -> Result | None:
        if hook in switched_off:
            return None
        try:
            return function(*args, **more)
        except Exception as error:
            switch_off(hook, error)
            return None

    return call


def switch_off(hook: str, error: BaseException) -> None:
    """Note that something failed in a hook, with one line in the log. Its wrappers do nothing from now on."""
    if hook in switched_off:
        return
    switched_off.add(hook)
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = "" if trace is None else f" ({os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno})"
    say(hook, f"switched off: {type(error).__name__}: {error}{place}")
    undo = at_switch_off.pop(hook, None)
    if undo is not None:
        try:
            undo(error)
        except Exception as again:  # ours; the job runs on
            say(hook, f"can't be undone: {type(again).__name__}: {again}")


def say(hook: str, text: str) -> None:
    """One line in the log of the folder; on stderr where there is none, as the script has asked for hooks itself."""
    place = folder()
    if place is None:
        sys.stderr.write(f"gpuloom: {' '.join(text.split())[:1000]}\n")
        return
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    line = f"{stamp} {os.getpid()} {hook}: {' '.join(text.split())[:1000]}\n"
    try:
        file = os.open(os.path.join(place, LOG), os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            os.write(file, line.encode("utf-8", "replace"))
        finally:
            os.close(file)
    except OSError:
        pass  # no folder any more, or a full disk: there is nobody to tell, and the job runs on
