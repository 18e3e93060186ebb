"""The ports behind which side effects stand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gpuloom.core.commands import Command


class CommandSink(Protocol):
    """Carries commands out. What becomes of them comes back to the engine as events."""

    def apply(self, commands: Sequence[Command], now_s: float) -> None:
        """Carry out the commands, in order."""
        ...
