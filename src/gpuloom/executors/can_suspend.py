"""Whether this machine can suspend programs that use its GPUs: asked once, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpuloom.executors import suspending

NVIDIA = Path("/dev/nvidiactl")
TIMEOUT_S = 10.0


class SuspendingCheck:
    """Text: as `gpuloom nodes NODE` shows it; '' where there is no NVIDIA GPU."""

    def __init__(self) -> None:
        self._outcome: Mapping[str, Any] = {"ok": False, "why": ""}
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Ask, if there is anything to ask, without waiting for the answer."""
        if self._thread is None and (NVIDIA.exists() or os.environ.get("GPULOOM_SHARE_DRIVER")):
            self._thread = threading.Thread(target=self._ask, name="suspending", daemon=True)
            self._thread.start()

    def _ask(self) -> None:
        command = [sys.executable, "-I", suspending.__file__, "check"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)  # noqa: S603
            self._outcome = json.loads(done.stdout)
        except (OSError, ValueError, subprocess.TimeoutExpired) as error:
            self._outcome = {"ok": False, "why": f"the driver does not say ({type(error).__name__})"}

    def outcome(self) -> Mapping[str, Any]:
        """What was found: {ok, why, driver}; waits for the answer if it must."""
        if self._thread is not None:
            self._thread.join(TIMEOUT_S + 1.0)
        return self._outcome

    def __str__(self) -> str:
        found = self.outcome()
        if self._thread is None:
            return ""
        return f"driver {found['driver']}" if found["ok"] else f"no: {found['why']}"
