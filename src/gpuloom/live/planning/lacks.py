"""What a policy would go by and is not told of on a live scheduler: it decides as if it did not matter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from gpuloom.core.job import ENDED, Job, NodeState
from gpuloom.core.pace import ESTIMATED, SpeedSource
from gpuloom.core.script_key import profile_key
from gpuloom.core.words import plural
from gpuloom.live.planning.planning import Planning
from gpuloom.live.records.fleet import models_of, shares_gpus


class Input(StrEnum):
    """What may be lacking."""

    STAGES = "stages"
    """Stage times of jobs: which resources they use when."""
    MEMORY = "memory"
    """GPU memory of jobs."""
    SIZES = "sizes"
    """Numbers of GPUs on which jobs can run, and how fast."""
    SPEEDS = "speeds"
    """Speeds of jobs by GPU model, measured."""
    RATIOS = "ratios"
    """Compute over communication of jobs."""
    RATES = "rates"
    """Throughput that jobs report of themselves."""
    SHARING = "sharing"
    """GPUs that several jobs may have."""


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
    if policy.max_jobs_per_gpu > 1 and jobs and not shares_gpus(list(planning.book.nodes.values())):
        text = f"Policy {written} puts jobs together on a GPU, and in this cluster a GPU is given to one pod alone"
        found.append(Lack(Input.SHARING, len(jobs), f"{text}: each job has its GPUs for itself."))
    else:
        if policy.uses_stages and (without := _without_stages(planning, jobs)):
            of = plural(len(jobs), "job")
            text = f"Policy {written} weaves jobs by their stage times, which are unknown for {without:,} of {of}"
            found.append(Lack(Input.STAGES, without, f"{text}: name a --model that `gpuloom profiles list` has."))
        if policy.weaves or policy.spills_memory:
            found += _memory(planning, jobs, woven=policy.weaves)
    if policy.rewarded:
        found += _rewards(planning, jobs)
    if policy.resizes and jobs:
        found += _sizes(planning, jobs)
    nodes = [node for node in list(planning.book.nodes.values()) if node.state != NodeState.DOWN]
    if policy.traits.heterogeneity and len(models_of(nodes)) > 1:
        guessed = _guessed(planning, jobs)
        if without := sum(guessed.values()):
            text = f"Policy {written} uses the speed of each job on each GPU model"
            how = (
                "nothing is known of some models, which count as slow as the slowest"
                if SpeedSource.UNKNOWN in guessed
                else "it is estimated from the facts of the models"
            )
            of = plural(len(jobs), "job")
            found.append(Lack(Input.SPEEDS, without, f"{text}, which was not measured for {without:,} of {of}: {how}."))
    return found


def _without_stages(planning: Planning, jobs: Sequence[Job]) -> int:
    """Jobs whose stage times are in no profile."""
    known = planning.worlds.profiles
    kinds = Counter([(profile_key(job.spec.model, job.spec.command, known), job.gpus) for job in jobs])
    return sum(count for kind, count in kinds.items() if not kind[0] or known.find(*kind) is None)


def _memory(planning: Planning, jobs: Sequence[Job], *, woven: bool) -> list[Lack]:
    """Of jobs that could share GPUs but for their GPU memory. woven: they also need stage times to do so."""
    if all(gpu.memory_mib is None for node in list(planning.book.nodes.values()) for gpu in node.gpus):
        return []
    known = planning.worlds.profiles
    without = 0
    for job in jobs:
        profile = known.find(profile_key(job.spec.model, job.spec.command, known), job.gpus)
        lacks_it = not woven if profile is None else profile.gpu_memory_mib is None
        without += lacks_it and planning.scene.memory.of_job(job) is None
    if not without:
        return []
    of = plural(len(jobs), "job")
    text = (
        f"Policy {planning.seat.written} puts jobs together only where their GPU memory is known, which it is not for"
    )
    return [
        Lack(
            Input.MEMORY,
            without,
            f"{text} {without:,} of {of}: say it (--gpu-memory); else it is measured while it runs alone.",
        )
    ]


def _rewards(planning: Planning, jobs: Sequence[Job]) -> list[Lack]:
    """What a policy that learns from rewards is not told."""
    found, written, worlds = [], planning.seat.written, planning.worlds
    if without := _without_stages(planning, jobs):
        of = plural(len(jobs), "job")
        text = f"Policy {written} groups jobs by compute over communication, which is unknown for {without:,} of {of}"
        text += ", which count as one group: name a --model that `gpuloom profiles list` has."
        found.append(Lack(Input.RATIOS, without, text))
    if worlds.silent:
        of = plural(worlds.silent + worlds.told, "job")
        text = f"Policy {written} is rewarded by measured progress, and {worlds.silent:,} of {of} that ended reported"
        text += " no iterations per second: nothing is learnt from those (docs/howto/write-jobs.md)."
        found.append(Lack(Input.RATES, worlds.silent, text))
    return found


def _sizes(planning: Planning, jobs: Sequence[Job]) -> list[Lack]:
    """What a policy that resizes jobs is not told of their sizes."""
    elastic = [job for job in jobs if job.spec.elastic]
    written = planning.seat.written
    if not elastic:
        text = f"Policy {written} resizes jobs, but none is elastic (`gpuloom submit --elastic`)."
        return [Lack(Input.SIZES, len(jobs), text)]
    known: dict[int, bool] = {}
    for job in elastic:
        if job.spec_id not in known:
            sizes = planning.scene.pace(job).sizes.values()
            known[job.spec_id] = len([size for size in sizes if size.source is SpeedSource.MEASURED]) > 1
    if not (without := sum(not known[job.spec_id] for job in elastic)):
        return []
    of = plural(len(elastic), "elastic job")
    text = (
        f"Policy {written} uses the speed of elastic jobs at each size, not measured for {without:,} of {of}: "
        "it takes what jobs usually gain."
    )
    return [Lack(Input.SIZES, without, text)]


def _guessed(planning: Planning, jobs: Sequence[Job]) -> Counter[SpeedSource]:
    """Jobs of which a speed is a guess on a GPU model that they accept, by what it rests on at worst."""
    found: Counter[SpeedSource] = Counter()
    by_spec: dict[int, SpeedSource | None] = {}
    for job in jobs:
        if job.spec_id not in by_spec:
            names = {name.strip().lower() for name in job.spec.gpu_types}
            sources = {
                speed.source
                for model, speed in planning.scene.pace(job).speeds.items()
                if not names or model.lower() in names
            }
            guesses = sources & ESTIMATED
            by_spec[job.spec_id] = (
                None if not guesses else SpeedSource.UNKNOWN if SpeedSource.UNKNOWN in guesses else SpeedSource.FACTS
            )
        if (guess := by_spec[job.spec_id]) is not None:
            found[guess] += 1
    return found
