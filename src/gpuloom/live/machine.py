"""This machine as the scheduler sees it: inventory, rates, and the monitor's findings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from gpuloom.agent.health import HealthSettings
from gpuloom.agent.looking import EVERY_S, Looker
from gpuloom.agent.nvml import Nvml
from gpuloom.core.job import NodeRecord


class Machine(Looker):
    """Samples the machine in a thread of its own.

    Args:
        limits: what limits are enforced how (`LocalExecutor.limits`). The rest: see `Looker`.
    """

    def __init__(
        self,
        node: NodeRecord,
        nvml: Nvml,
        *,
        disk: Path,
        limits: Callable[[], Mapping[str, str]],
        settings: HealthSettings | None = None,
        flags: Mapping[str, Mapping[str, str]] | None = None,
        every_s: float = EVERY_S,
    ) -> None:
        super().__init__(node, nvml, disk=disk, settings=settings, flags=flags, every_s=every_s)
        self.limits = limits
