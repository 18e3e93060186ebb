"""Programs that `gpuloom share` runs: with their signals passed on, and ended as they ended."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import NoReturn

from gpuloom.core.errors import GpuloomError

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


class NotStartedError(GpuloomError):
    """The program can't be started. Exit code as of env and nohup: 127 there is none, 126 it can't be run."""

    def __init__(self, command: str, error: OSError) -> None:
        super().__init__(f"{command}: {error.strerror}; give a program that can be run")
        self.exit_code = 127 if error.errno == errno.ENOENT else 126


def end_as(code: int) -> NoReturn:
    """End as the program did: with its exit code, or below 0 by its signal, which a scheduler tells from a code."""
    if code < 0:
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the program's own core is the one of interest
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


def replace(command: Sequence[str], environment: Mapping[str, str]) -> None:
    """Become the program.

    Raises:
        NotStartedError: there is no such program, or it can't be run.
    """
    try:
        os.execvpe(command[0], list(command), dict(environment))  # noqa: S606 - what the user asked for
    except OSError as error:
        raise NotStartedError(command[0], error) from error


def attend(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run the program, passing signals on, and return its exit code; below 0: the signal that ended it.

    Raises:
        NotStartedError: there is no such program, or it can't be run.
    """
    child: subprocess.Popen[bytes] | None = None
    early: list[int] = []

    def forward(number: int, _: FrameType | None) -> None:
        if child is None:
            early.append(number)
        else:
            child.send_signal(number)

    # Before there is a program: a signal in between must not end us and leave the program behind.
    before = {number: signal.signal(number, forward) for number in FORWARDED}
    try:
        try:
            child = subprocess.Popen(list(command), env=dict(environment))  # noqa: S603 - what the user asked for
        except OSError as error:
            raise NotStartedError(command[0], error) from error
        for number in early:
            child.send_signal(number)
        code = child.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return code
