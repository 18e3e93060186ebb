"""Machines on this one: a network namespace with one link to it, that can be cut. Needs root and `ip`."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest


class Far:
    """A machine at the other end of a link. here, there: the addresses of its ends."""

    def __init__(self) -> None:
        # Tests that run at the same time, and whatever else this machine has, stay apart.
        number = random.SystemRandom().randrange(1 << 20)
        self.name = f"gl{number:x}"
        self._device = f"{self.name}h"
        block = 4 * (number % (1 << 14))
        self.here, self.there = (f"10.213.{(block + at) // 256}.{(block + at) % 256}" for at in (1, 2))

    def make(self) -> None:
        ip("netns", "add", self.name)
        ip("link", "add", self._device, "type", "veth", "peer", "name", "up0", "netns", self.name)
        ip("addr", "add", f"{self.here}/30", "dev", self._device)
        ip("link", "set", self._device, "up")
        ip("-n", self.name, "addr", "add", f"{self.there}/30", "dev", "up0")
        ip("-n", self.name, "link", "set", "up0", "up")
        ip("-n", self.name, "link", "set", "lo", "up")

    def remove(self) -> None:
        subprocess.run(["ip", "link", "del", self._device], check=False)
        subprocess.run(["ip", "netns", "del", self.name], check=False)

    def cut(self) -> None:
        """No packet comes through, and neither side is told."""
        ip("-n", self.name, "link", "set", "up0", "down")

    def mend(self) -> None:
        ip("-n", self.name, "link", "set", "up0", "up")

    def run(self, argv: Sequence[str], timeout_s: float = 90.0) -> subprocess.CompletedProcess[str]:
        """A program there."""
        return subprocess.run(
            ["ip", "netns", "exec", self.name, *argv], capture_output=True, text=True, timeout=timeout_s, check=False
        )


def ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")


@contextmanager
def far_machine() -> Iterator[Far]:
    """Skips the test where such a machine can't be made."""
    if os.geteuid() != 0:
        pytest.skip("only root may make network namespaces")
    if shutil.which("ip") is None:
        pytest.skip("`ip` is missing: scripts/install-system-parts installs it")
    far = Far()
    try:
        far.make()
    except OSError as error:
        far.remove()
        pytest.skip(f"network namespaces can't be made here: {error}")
    try:
        yield far
    finally:
        far.remove()
