"""What a policy would go by and is not told of on a live scheduler: it decides as if it did not matter."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from gpuloom.core.job import ENDED, NodeState
from gpuloom.core.words import plural
from gpuloom.live.planning.planning import Planning


class Input(StrEnum):
    """What may be lacking."""

    STAGES = "stages"
    """Stage times of jobs: which resources they use when."""
    SIZES = "sizes"
    """Numbers of GPUs on which jobs can run, and how fast."""
    SPEEDS = "speeds"
    """Speeds of jobs by GPU model."""


@dataclass(frozen=True, slots=True)
class Lack:
    """An input that lacks, of how many jobs, and a sentence on it."""

    input: Input
    jobs: int
    text: str


def lacks(planning: Planning) -> list[Lack]:
    """What the policy lacks now."""
    policy, written = planning.policy, planning.seat.written
    jobs = [job for job in list(planning.book.jobs.values()) if job.phase not in ENDED]
    found = []
    if policy.uses_stages:
        kinds: dict[tuple[str, int], int] = {}
        for job in jobs:
            kind = job.spec.model or "", job.gpus
            kinds[kind] = kinds.get(kind, 0) + 1
        without = sum(
            count for kind, count in kinds.items() if not kind[0] or planning.worlds.profiles.find(*kind) is None
        )
        if without:
            of = plural(len(jobs), "job")
            text = f"Policy {written} weaves jobs by their stage times, which are unknown for {without:,} of {of}"
            found.append(Lack(Input.STAGES, without, f"{text}: name a --model that `gpuloom profiles list` has."))
    if policy.resizes and jobs:
        text = f"Policy {written} resizes jobs whose speed on other numbers of GPUs is known"
        found.append(
            Lack(Input.SIZES, len(jobs), f"{text}; live jobs don't state it, so each keeps the GPUs it asks for.")
        )
    models = {
        gpu.model for node in list(planning.book.nodes.values()) if node.state != NodeState.DOWN for gpu in node.gpus
    }
    if policy.traits.heterogeneity and len(models) > 1 and jobs:
        text = f"Policy {written} uses the speed of each job on each GPU model"
        found.append(Lack(Input.SPEEDS, len(jobs), f"{text}; live it takes all models as equally fast."))
    return found
