"""This machine as a node: prepares what is to run, and has an executor run it. Serves head and node process alike."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from gpuloom.core.end_reason import EndReason
from gpuloom.core.errors import InputError
from gpuloom.core.faults import fault_text
from gpuloom.core.run_name import run_name_of
from gpuloom.executors.devices import SETTING, Devices, MappedPages
from gpuloom.executors.kept_saves import remove_saves, saves_of
from gpuloom.executors.link import CONNECT_S, REPLY_S
from gpuloom.executors.local_files import LocalFiles, run_directory
from gpuloom.executors.node import Capabilities, RunFiles, RunSpec, Weaving
from gpuloom.executors.port import Cause, ExecutorError, LiveExecutor, OnStatus, RunStatus, blamed, not_run
from gpuloom.executors.prepare import Shared, alone, request_of

log = logging.getLogger("gpuloom.executor")


class LocalNode:
    """A NodePort on an executor of this machine.

    What can't be prepared has not been begun: its exit is told from within `start`, and again by `runs`, until it is
    acknowledged.
    """

    def __init__(
        self,
        name: str,
        executor: LiveExecutor,
        runs: Path,
        *,
        files: RunFiles | None = None,
        shared: Shared = alone,
        devices: Devices | None = None,
    ) -> None:
        """name: of the node, as records have it. runs: folder of the files of its runs. files: others than those in
        it. shared: how a job is started that may share its GPU. devices: where jobs that share devices know of each
        other, if not in pages beside these files."""
        self.name, self.executor, self.directory, self.shared = name, executor, runs, shared
        self.files: RunFiles = LocalFiles(runs) if files is None else files
        self.devices: Devices = MappedPages(runs) if devices is None else devices
        self._unprepared: dict[str, RunStatus] = {}
        self._on_status: OnStatus | None = None
        self._lock = threading.Lock()

    def open(self, on_status: OnStatus, *, patience_s: float = CONNECT_S) -> None:
        """See `NodePort`."""
        self._on_status = on_status
        self.executor.open(on_status, patience_s=patience_s)

    def runs(self, *, patience_s: float = REPLY_S) -> Sequence[RunStatus]:
        """See `NodePort`."""
        known = self.executor.runs(patience_s=patience_s)
        with self._lock:
            return [*known, *self._unprepared.values()]

    def start(self, spec: RunSpec) -> None:
        """See `NodePort`. Looks at the files that the spec names (venv, container's tool), in the caller's thread."""
        with self._lock:
            before = self._unprepared.get(spec.run)
        if before is not None:
            self._tell(before)
            return
        try:
            request = request_of(spec, self.directory, shared=self.shared)
        except InputError as error:
            self._not_started(spec.run, Cause.JOB, str(error))
        except OSError as error:  # a venv on a dead disk, say
            where = f"can't use {error.filename}" if error.filename else "can't prepare it"
            self._not_started(spec.run, blamed(error), fault_text(where, error))
        else:
            if SETTING in request.env:
                self._make_page(spec)
            self.executor.start(request)

    def _make_page(self, spec: RunSpec) -> None:
        """The page by which it takes turns with others. A job starts without it: what keeps it from being made (a full
        disk, say) mostly keeps the executor from starting anything, which says so itself."""
        try:
            self.devices.make(spec.kind, spec.gpus)
        except OSError as error:
            where = f"run {spec.run} takes no turns with others: can't use {error.filename}"
            log.warning("%s", fault_text(where, error))

    def _not_started(self, run: str, cause: Cause, message: str) -> None:
        status = not_run(run, EndReason.NOT_STARTED, message, cause)
        with self._lock:
            self._unprepared[run] = status
        self._tell(status)

    def _tell(self, status: RunStatus) -> None:
        if self._on_status is not None:
            self._on_status(status)

    def go(self, run: str) -> None:
        """See `NodePort`."""
        self.executor.go(run)

    def stop(self, run: str, *, reason: EndReason, grace_s: float) -> None:
        """See `NodePort`."""
        self.executor.stop(run, reason=reason, grace_s=grace_s)

    def limit(self, run: str, limit_s: float | None) -> None:
        """See `NodePort`."""
        self.executor.limit(run, limit_s)

    def freeze(self, run: str) -> None:
        """See `NodePort`."""
        self.executor.freeze(run)

    def thaw(self, run: str) -> None:
        """See `NodePort`."""
        self.executor.thaw(run)

    def weave(self, weaving: Weaving) -> None:
        """See `NodePort`."""
        try:
            self.devices.tell(weaving)
        except OSError as error:
            raise ExecutorError(fault_text("can't say which jobs share devices", error)) from None

    def acknowledge(self, run: str) -> None:
        """See `NodePort`."""
        with self._lock:
            unprepared = self._unprepared.pop(run, None)
        if unprepared is None:
            self.executor.acknowledge(run)
            self._tidy_up(run)

    def _tidy_up(self, run: str) -> None:
        """What hooks have kept of a job that has ended well, which may be large and lie far away, is removed."""
        if run_name_of(run) is None or saves_of(place := run_directory(self.directory, run)) is None:
            return
        try:
            threading.Thread(target=remove_saves, args=(place,), name="remove-saves", daemon=True).start()
        except RuntimeError:  # no thread is to be had: they stay
            log.warning("run %s: its saves are not removed", run)

    def boot_id(self) -> str:
        """See `NodePort`."""
        return self.executor.boot_id()

    def healthy(self) -> str:
        """See `NodePort`."""
        return self.executor.healthy()

    def capabilities(self) -> Capabilities:
        """See `NodePort`."""
        return self.executor.capabilities()

    def limits(self) -> Mapping[str, str]:
        """See `NodePort`."""
        limits: Mapping[str, str] = getattr(self.executor, "limits", dict)()
        return limits

    def close(self) -> None:
        """See `NodePort`."""
        self.executor.close()
