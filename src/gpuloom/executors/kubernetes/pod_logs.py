"""Logs of pods: copied to the files of their runs as they are asked for, and once more at the end.

The API has no offsets, so that lines are told apart by their times (nanoseconds), and what was copied last is written
down beside the copy. A kubelet keeps the newest file of a log alone: of a pod that prints much and that nobody looks
at, what it has thrown away meanwhile is lost.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from gpuloom.core.run_name import run_name_of
from gpuloom.executors.kubernetes.marks import first_run
from gpuloom.executors.kubernetes.pods import Pod
from gpuloom.executors.local_files import LocalFiles, run_directory
from gpuloom.executors.port import ExecutorError, RunExit
from gpuloom.executors.wire import LOG_FILE, read_json, write_atomic
from gpuloom.kubernetes.api import Api, ApiError

REST_S = 0.25
"""Least time between two looks at one log."""
MOST_BYTES = 1 << 28
"""So much of a log is kept."""
_AT = "log-at.json"
"""Beside a copy: {at_ns, same, size}: time of its last line, how many lines of that time it has, and its length."""
_SIGHTS_OF = Callable[[str], "Sight | None"]


@dataclass(frozen=True, slots=True)
class Sight:
    """What is known of a run now. pod: None: there is none."""

    namespace: str
    pod: Pod | None
    ended: RunExit | None = None


@dataclass(slots=True)
class _Copy:
    lock: threading.Lock = field(default_factory=threading.Lock)
    looked_s: float = -1e9
    whole: bool = False


class PodFiles(LocalFiles):
    """Implements `RunFiles` for pods. runs: the folder of copies. sight_of: what is known of a run. shared: pods see
    that folder too."""

    def __init__(self, api: Api, runs: Path, sight_of: _SIGHTS_OF, *, shared: bool) -> None:
        super().__init__(runs)
        self._api, self._sight_of, self._shared = api, sight_of, shared
        self._lock = threading.Lock()
        self._copies: dict[str, _Copy] = {}

    def read_log(
        self, run: str, offset: int | None = None, tail_lines: int | None = None, max_bytes: int = 1 << 20
    ) -> tuple[bytes, int]:
        """See `RunFiles`."""
        self._catch_up(run)
        return super().read_log(run, offset, tail_lines, max_bytes)

    def log_mark(self, run: str) -> tuple[int, ...]:
        """See `RunFiles`."""
        self._catch_up(run)
        return super().log_mark(run)

    def progress(self, run: str) -> Mapping[str, object]:
        """See `RunFiles`. Where pods don't see the folder there is none."""
        if not self._shared:
            return {}
        sight = self._sight_of(run)
        annotations = {} if sight is None or sight.pod is None else sight.pod.item["metadata"].get("annotations") or {}
        return super().progress(first_run(annotations, run))

    def noticed_s(self, run: str) -> float | None:
        """See `RunFiles`."""
        sight = self._sight_of(run)
        return None if sight is None or sight.pod is None else sight.pod.deleted_s

    def exit_of(self, run: str, pid: int | None, start_ticks: int | None) -> RunExit | None:
        """See `RunFiles`."""
        sight = self._sight_of(run)
        return None if sight is None else sight.ended

    def take_rest(self, run: str) -> None:
        """Copy what is left of a log whose pod is over. Raises ExecutorError."""
        self._catch_up(run, whole=True)

    def goes_on(self, run: str, after: str) -> None:
        """What is read of a log from now on is of the run that its pod goes on as."""
        folder, before = run_directory(self.runs, after), read_json(str(run_directory(self.runs, run) / _AT))
        if before is not None and not (folder / _AT).exists():
            folder.mkdir(parents=True, exist_ok=True)
            write_atomic(str(folder / _AT), {**before, "size": 0})

    def again(self, run: str) -> None:
        """Another pod comes in the place of the one whose log was copied: what that prints follows."""
        with self._lock:
            self._copies.pop(run, None)

    def forget(self, run: str) -> None:
        """Its end is written down."""
        with self._lock:
            self._copies.pop(run, None)

    def _catch_up(self, run: str, *, whole: bool = False) -> None:
        sight = self._sight_of(run)
        if sight is None or (pod := sight.pod) is None or pod.gated or run_name_of(run) is None:
            return
        with self._lock:
            copy = self._copies.setdefault(run, _Copy())
        with copy.lock:
            if copy.whole or (not whole and time.monotonic() - copy.looked_s < REST_S):
                return
            try:
                self._copy(run, sight.namespace, pod, whole=pod.over)
            except ApiError as error:
                if error.status not in (400, 404):  # 400: its container has not begun
                    raise ExecutorError(f"the log of pod {pod.name} can't be read: {error}") from None
            except OSError as error:
                raise ExecutorError(f"the log of run {run} can't be kept: {error.strerror}: {error.filename}") from None
            copy.looked_s, copy.whole = time.monotonic(), pod.over

    def _copy(self, run: str, namespace: str, pod: Pod, *, whole: bool) -> None:
        folder = run_directory(self.runs, run)
        place, note = folder / LOG_FILE, str(folder / _AT)
        before = read_json(note) or {}
        at_ns, same, size = (int(before.get(name, 0)) for name in ("at_ns", "same", "size"))
        if size >= MOST_BYTES:
            return
        query = {"container": pod.container, "timestamps": "true"}
        if at_ns:
            query["sinceTime"] = datetime.fromtimestamp(at_ns // 10**9, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        text = self._api.text(f"/api/v1/namespaces/{namespace}/pods/{pod.name}/log", **query)
        found, at_ns, same = new_lines(text, at_ns, same, whole=whole)
        if not found:
            return
        found = found[: MOST_BYTES - size]
        folder.mkdir(parents=True, exist_ok=True)
        fd = os.open(place, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        with open(fd, "r+b") as file:
            file.truncate(size)  # what was copied and not written down comes again
            file.seek(size)
            file.write(found)
        write_atomic(note, {"at_ns": at_ns, "same": same, "size": size + len(found)})


def new_lines(text: bytes, at_ns: int, same: int, *, whole: bool) -> tuple[bytes, int, int]:
    """Of a log with times, what comes after the `same` lines of time `at_ns`: (lines, time of the last one, how many
    lines have that time). whole: take a line, too, that has no end yet."""
    found: list[bytes] = []
    skipped = 0
    *lines, last = text.split(b"\n")
    for line in [*(line + b"\n" for line in lines), *([last] if last else [])]:
        stamp, _, rest = line.partition(b" ")
        line_ns = nanoseconds(stamp)
        if line_ns is None:
            if found:
                found.append(line)
            continue
        if line_ns < at_ns or (not whole and not line.endswith(b"\n")):
            continue
        if line_ns == at_ns and not found and skipped < same:
            skipped += 1
            continue
        same = same + 1 if line_ns == at_ns else 1
        at_ns = line_ns
        found.append(rest)
    return b"".join(found), at_ns, same


def nanoseconds(stamp: bytes) -> int | None:
    """A time as kubelets write it ('2026-11-22T08:57:56.123456789Z'), since the epoch; None: it is none."""
    main, _, rest = stamp.partition(b".")
    digits = rest.rstrip(b"Z") if rest else b"0"
    try:
        whole = datetime.fromisoformat(main.removesuffix(b"Z").decode() + "+00:00")
        return int(whole.timestamp()) * 10**9 + int(digits.ljust(9, b"0")[:9])
    except (ValueError, UnicodeDecodeError):
        return None
