"""What was seen last of every node: its sample, the notes on its GPUs, the rates of its runs.

Monitors write, each of its own node, in threads of theirs; the API reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gpuloom.agent.sample import Sample
from gpuloom.core.job import Attempt, NodeRecord
from gpuloom.core.usage import RunUsage


@dataclass(frozen=True, slots=True)
class Seen:
    """One look at a node, None: there was none. notes: by GPU, what is worth showing."""

    sample: Sample | None = None
    notes: Mapping[int, tuple[str, ...]] = field(default_factory=dict)


NOTHING = Seen()


class Sights:
    """See the module."""

    def __init__(self) -> None:
        self._seen: dict[str, Seen] = {}
        self.cut: dict[str, str] = {}
        """Nodes that can't be talked to now, and since when or why."""

    def saw(self, node: str, sample: Sample, notes: Mapping[int, tuple[str, ...]]) -> None:
        """A monitor has looked."""
        self._seen[node] = Seen(sample, dict(notes))

    def forget(self, node: str) -> None:
        """The node is gone: what was seen of it is not so any more."""
        self._seen.pop(node, None)
        self.cut.pop(node, None)

    def usage(self, attempt: Attempt) -> RunUsage | None:
        """The rates of an attempt: of all its members together, as far as they were seen."""
        found = [
            usage
            for run, (node, _) in zip(attempt.runs, attempt.allocation, strict=False)
            if (sample := self.of(node).sample) is not None and (usage := sample.runs.get(run)) is not None
        ]
        return found[0] if len(found) == 1 else together(attempt.run, found)

    def free_mib(self, node: NodeRecord) -> float | None:
        """Main memory that a node has left, MiB, as was seen last; None: it was not."""
        sample = self.of(node.name).sample
        used = None if sample is None or sample.node is None else sample.node.memory_used_mib
        return None if node.memory_mib is None or used is None else node.memory_mib - used

    def of(self, node: str) -> Seen:
        """The newest look at a node."""
        return self._seen.get(node, NOTHING)


def together(run: str, members: Iterable[RunUsage]) -> RunUsage | None:
    """The rates of a gang. Amounts are sums and utilisation the mean, over the members of which they are known;
    progress is what the member of the lowest rank reports that reports any."""
    members = list(members)
    if not members:
        return None
    busy = [usage.gpu_utilization for usage in members if usage.gpu_utilization is not None]
    return RunUsage(
        run,
        cpu_cores=_sum(usage.cpu_cores for usage in members),
        memory_mib=_sum(usage.memory_mib for usage in members),
        gpu_utilization=sum(busy) / len(busy) if busy else None,
        gpu_memory_mib=_sum(usage.gpu_memory_mib for usage in members),
        read_mib_per_s=_sum(usage.read_mib_per_s for usage in members),
        write_mib_per_s=_sum(usage.write_mib_per_s for usage in members),
        log_mib=_sum(usage.log_mib for usage in members),
        progress=next((usage.progress for usage in members if usage.progress), {}),
    )


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
