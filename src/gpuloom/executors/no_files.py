"""The files of runs on a node that is not there: each call says so."""

from __future__ import annotations

from collections.abc import Mapping

from gpuloom.executors.node import RunFiles
from gpuloom.executors.port import ExecutorError, RunExit
from gpuloom.files.hook_records import Hooked


class NoFiles:
    """Implements `RunFiles` (executors/node.py)."""

    def __init__(self, node: str, left: RunFiles | None = None, *, why: str = "") -> None:
        """left: where logs of its runs may lie all the same. why: they can't be read; '': the node is not there."""
        self._node, self._left = node, left
        self._why = why or f"node {node} is not there: its files can't be read now"

    def read_log(
        self, run: str, offset: int | None = None, tail_lines: int | None = None, max_bytes: int = 1 << 20
    ) -> tuple[bytes, int]:
        if self._left is not None and self._left.log_mark(run):
            return self._left.read_log(run, offset, tail_lines, max_bytes)
        raise self._error()

    def log_mark(self, run: str) -> tuple[int, ...]:
        if self._left is not None and (mark := self._left.log_mark(run)):
            return mark
        raise self._error()

    def progress(self, run: str) -> Mapping[str, object]:
        raise self._error()

    def hooks(self, run: str) -> Hooked:
        raise self._error()

    def noticed_s(self, run: str) -> float | None:
        raise self._error()

    def checkpoint_s(self, run: str, written: str, workdir: str) -> float | None:
        raise self._error()

    def exit_of(self, run: str, pid: int | None, start_ticks: int | None) -> RunExit | None:
        raise self._error()

    def _error(self) -> ExecutorError:
        return ExecutorError(self._why)
