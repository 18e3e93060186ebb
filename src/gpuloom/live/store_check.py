"""Checks the rest of a large store while the scheduler runs: the part that its start did not wait for."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from enum import StrEnum
from pathlib import Path

from gpuloom.store.errors import StoreDamagedError
from gpuloom.store.faults import READABLE, damaged_text
from gpuloom.store.home import Home
from gpuloom.store.port import CheckReport, Examined, Finding, Store
from gpuloom.threads import Worker

log = logging.getLogger("gpuloom")

LEAST_URGENT = 19
CLOSE_S = 10.0
"""So long the end of a check that was killed is waited for."""


class Checked(StrEnum):
    """How much of the store was checked since the scheduler began."""

    WHOLE = "whole"
    PART = "part"
    """What can cost a job was looked at; the rest is being checked, or its check failed."""
    DAMAGED = "damaged"


def examine(home: Home, store: Store) -> Examined:
    """As much of a check as a start can wait for. What it finds is left in the home: commands that read look there
    (`server/reading.py`), and need not examine a store that is sound.

    Raises:
        StoreDamagedError: it must not be gone on with.
    """
    found = store.examine()
    with suppress(OSError):  # the mark is a help, no more
        if found.report.findings:
            home.damaged.write_text(f"{damaged_text(home.db, found.report)}\n", encoding="utf-8")
        elif home.damaged.exists():
            home.damaged.unlink()
    if found.report.findings:
        raise StoreDamagedError(f"{damaged_text(home.db, found.report)}; {READABLE}")
    return found


class StoreCheck:
    """`gpuloom db check` as a process of the least urgency. told: called with the problem, or ''."""

    def __init__(self, db: Path, told: Callable[[str], None]) -> None:
        self.checked = Checked.PART
        self._db, self._told = db, told
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False
        self._lock = threading.Lock()
        self._worker = Worker("store-check", self._run, told)

    def start(self) -> None:
        self._worker.start()

    def close(self) -> None:
        """End it, if it is still under way."""
        with self._lock:
            self._closed = True
            if self._process is not None and self._process.poll() is None:
                self._process.kill()
        self._worker.end(CLOSE_S)

    def _run(self) -> None:
        program = "from gpuloom.cli.main import main; main()"
        argv = [sys.executable, "-P", "-c", program, "db", "check", "--json", "--home", str(self._db.parent)]
        try:
            with self._lock:
                if self._closed:
                    return
                self._process = subprocess.Popen(  # noqa: S603 - our own program
                    argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
                )
            os.setpriority(os.PRIO_PROCESS, self._process.pid, LEAST_URGENT)
            said, complained = self._process.communicate()
            if self._closed:
                return
            found = json.loads(said) if self._process.returncode in (0, 1) else None
        except (OSError, ValueError) as error:
            self._told(f"the rest of the store could not be checked ({error}); run `gpuloom db check`")
            return
        if found is None:
            last = complained.decode(errors="replace").strip().rpartition("\n")[2]
            self._told(f"the rest of the store could not be checked ({last}); run `gpuloom db check`")
        elif found["sound"]:
            self.checked = Checked.WHOLE
            log.info("the whole store was checked: it is sound")
        else:
            self.checked = Checked.DAMAGED
            findings = tuple(Finding(one["what"], one["detail"]) for one in found["findings"])
            report = CheckReport(found["events"], found["jobs"], found["attempts"], found["schema_version"], findings)
            self._told(damaged_text(self._db, report))
