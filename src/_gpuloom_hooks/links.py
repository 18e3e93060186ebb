"""Where a script's own trackers have its run: Weights & Biases, MLflow, TensorBoard. gpuloom shows it with the job.

Each place is a line of `links` among the records: kind, a tab, address or path. Only the first rank tells.
"""

from __future__ import annotations

import os
import sys
from functools import wraps

from . import folder, guarded

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

FILE = "links"
WANDB, MLFLOW, TENSORBOARD = "wandb", "mlflow", "tensorboard"

_told = set()  # type: set[tuple[int, str, str]]


def tell(kind: str, where: str) -> None:
    """One place, once for each process."""
    place, one = folder(), (os.getpid(), kind, where)
    rank = os.environ.get("RANK") or os.environ.get("LOCAL_RANK") or "0"
    if place is None or one in _told or rank != "0" or not where:
        return
    _told.add(one)
    line = f"{kind}\t{' '.join(where.split())}\n".encode("utf-8", "replace")
    file = os.open(os.path.join(place, FILE), os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, 0o644)
    try:
        os.write(file, line)
    finally:
        os.close(file)


def _after(kind: str, owner: Any, name: str, told: Callable[..., None]) -> None:
    """Call `told` with what a function returned, and what it was given. One tracker's fault is none of another's."""
    original, told = getattr(owner, name), guarded("links of " + kind, told)

    @wraps(original)
    def call(*given: Any, **more: Any) -> Any:
        returned = original(*given, **more)
        told(returned, *given, **more)
        return returned

    setattr(owner, name, call)


def install_wandb(module: Any) -> None:
    """module: wandb."""

    def begun(run: Any, *_: Any, **__: Any) -> None:
        tell(WANDB, str(getattr(run, "url", None) or getattr(run, "dir", None) or ""))

    _after(WANDB, module, "init", begun)


def install_mlflow(module: Any) -> None:
    """module: mlflow.tracking.client, by which every run of MLflow is made."""

    def made(run: Any, client: Any, *_: Any, **__: Any) -> None:
        _mlflow(run, str(getattr(client, "tracking_uri", "")))

    _after(MLFLOW, module.MlflowClient, "create_run", made)


def install_mlflow_start(module: Any) -> None:
    """module: mlflow.tracking.fluent. A run that goes on is started, and not made."""

    def begun(run: Any, *_: Any, **__: Any) -> None:
        _mlflow(run, str(sys.modules["mlflow"].get_tracking_uri()))

    _after(MLFLOW, module, "start_run", begun)


def _mlflow(run: Any, server: str) -> None:
    from urllib.parse import urlsplit

    parts = urlsplit(server)
    if parts.scheme in ("http", "https"):
        base = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}"  # a password is not shown
        tell(MLFLOW, f"{base}/#/experiments/{run.info.experiment_id}/runs/{run.info.run_id}")
    else:
        tell(MLFLOW, f"{server} run {run.info.run_id}")


def install_tensorboard(module: Any) -> None:
    """module: torch.utils.tensorboard.writer, or tensorboardX.writer."""

    def begun(_: Any, writer: Any, *__: Any, **___: Any) -> None:
        tell(TENSORBOARD, _path(getattr(writer, "log_dir", None) or getattr(writer, "logdir", "")))

    _after(TENSORBOARD, module.SummaryWriter, "__init__", begun)


def install_tensorflow(module: Any) -> None:
    """module: tensorflow.python.ops.summary_ops_v2; Keras' callback writes by it, too."""

    def begun(_: Any, logdir: Any, *__: Any, **___: Any) -> None:
        tell(TENSORBOARD, _path(logdir))

    _after(TENSORBOARD, module, "create_file_writer_v2", begun)


def _path(where: Any) -> str:
    text = os.fspath(where) if isinstance(where, (str, os.PathLike)) else ""
    return text if "://" in text or not text else os.path.abspath(text)
