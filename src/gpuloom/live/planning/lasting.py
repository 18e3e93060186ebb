"""Nodes whose time with us ends, and jobs that can't be moved: who may start where.

A node of an allocation is ours until a time. A job that can be moved is told before that, saves and goes on elsewhere.
One with `on_preempt: never` would be cut off with all that it has done: it starts only where it will have ended before.
How long it holds its GPUs is what it may (its time limit) or, where it has none, what is expected of it.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from gpuloom.core.decision import Reason, WaitCode
from gpuloom.core.job import Allocation, Job, NodeRecord, NodeState
from gpuloom.core.spec import OnPreempt
from gpuloom.core.units import format_duration
from gpuloom.core.words import are
from gpuloom.live.planning.estimates import Source
from gpuloom.live.planning.scene import Scene
from gpuloom.slurm.pilots import LEAVES_S, STARTS_S

SLACK_S = 1.0
"""A node must last so much longer than a job that starts there."""
TICK_S = 0.01
"""Passes by so much later than the moment for which they are due see that it has come."""


def must_last_s(stay_s: float) -> float:
    """How long a node must be ours for a job that stays so long, seconds."""
    return stay_s + LEAVES_S + SLACK_S


def usable_s(lasts_s: float) -> float:
    """What a job has of a new allocation that lasts so long, seconds."""
    return max(lasts_s - must_last_s(0.0) - STARTS_S, 0.0)


def stay_of(scene: Scene, job: Job) -> tuple[float, Source] | None:
    """For how long a node must be ours when this job starts there, seconds, and what that rests on.

    None: as short as it likes, as the job can be moved. Of a job of which nothing is known it is what scheduling
    reckons with, and no more than a new allocation gives: a guess keeps no job waiting for ever.
    """
    if job.spec.on_preempt is not OnPreempt.NEVER:
        return None
    if job.spec.time_limit is not None:  # counts anew for each attempt
        return job.spec.time_limit, Source.TIME_LIMIT
    known = scene.estimate(job)
    needs_s = scene.left_s(job) + (scene.work.usual_s or 0.0)
    if known.source is Source.UNKNOWN and scene.coming.last_s is not None:
        needs_s = min(needs_s, usable_s(scene.coming.last_s))
    return needs_s, known.source


def lefts_of(nodes: Iterable[NodeRecord], now_s: float) -> dict[str, float]:
    """How long a job may still run on each open node that is ours until a time, seconds."""
    return {
        node.name: max(node.until_s - LEAVES_S - now_s, 0.0)
        for node in nodes
        if node.until_s is not None and node.state is NodeState.UP
    }


@dataclass(frozen=True, slots=True)
class Tied:
    """A job that can't be moved, where nodes end too soon for it.

    short: these nodes. lasting: number of other open nodes.
    """

    short: frozenset[str]
    lasting: int


@dataclass(frozen=True, slots=True)
class Lasting:
    """tied: by job. next_s: when the next node becomes too short for one of the jobs that were asked about."""

    tied: Mapping[int, Tied]
    next_s: float = math.inf


NO_ENDS = Lasting({})


def lasting(scene: Scene, jobs: Iterable[int], now_s: float) -> Lasting:
    """Which of these jobs may not start on which nodes."""
    nodes = scene.book.nodes.values()
    lefts = sorted((left_s, name) for name, left_s in lefts_of(nodes, now_s).items())
    if not lefts:
        return NO_ENDS
    times = [left_s for left_s, _ in lefts]
    there = sum(node.state is NodeState.UP for node in nodes)
    sets: dict[int, frozenset[str]] = {}
    found: dict[int, Tied] = {}
    next_s = math.inf
    for number in jobs:
        stay = stay_of(scene, scene.book.jobs[number])
        if stay is None:
            continue
        count = bisect_right(times, stay[0] + SLACK_S)
        if count < len(times):
            next_s = min(next_s, now_s + times[count] - stay[0] - SLACK_S + TICK_S)
        if count:
            if count not in sets:
                sets[count] = frozenset(name for _, name in lefts[:count])
            found[number] = Tied(sets[count], there - count)
    return Lasting(found, next_s)


def outlasts(scene: Scene, job: Job, allocation: Allocation, now_s: float) -> bool:
    """Whether the job, started there now, would be cut off by the end of a node."""
    stay = stay_of(scene, job)
    if stay is None:
        return False
    nodes = [scene.book.nodes[name] for name, _ in allocation if name in scene.book.nodes]
    return any(left_s <= stay[0] + SLACK_S for left_s in lefts_of(nodes, now_s).values())


def by_short(tied: Mapping[int, Tied], jobs: Collection[int]) -> list[tuple[frozenset[str], set[int]]]:
    """Jobs by the nodes that are too short for them; who has the fewest others first."""
    found: dict[frozenset[str], set[int]] = {}
    for job in jobs:
        found.setdefault(tied[job].short, set()).add(job)
    return sorted(found.items(), key=lambda entry: (-len(entry[0]), sorted(entry[0])))


def too_short(scene: Scene, job: Job, now_s: float) -> Reason | None:
    """Why a job waits for nodes that last longer; None: it does not. Where no node is open at all, it does if those
    that are asked for would be too short."""
    stay, tied = stay_of(scene, job), lasting(scene, [job.id], now_s).tied.get(job.id)
    if stay is None:
        return None
    needs_s, source = stay
    text, numbers = f"It can't be moved (on_preempt: never) and {_needs(needs_s, source)}", {"needs_s": needs_s}
    if tied is not None:
        said, more = _of_nodes(scene, tied, now_s)
        text, numbers = f"{text}; {said}", numbers | more
    lasts_s = scene.coming.last_s
    if lasts_s is not None and math.isfinite(lasts_s):
        numbers["new_nodes_last_s"] = lasts_s
        if must_last_s(needs_s) > lasts_s - STARTS_S:
            hours = math.ceil((must_last_s(needs_s) + STARTS_S) / 3600.0)
            also = " as well" if tied is not None else ""
            text += (
                f". A new pilot lasts {format_duration(lasts_s)}, which is too short{also}: start the scheduler with "
                f"`--hours {hours}`, or give the job a shorter time limit"
            )
            return Reason(WaitCode.NODES_END_TOO_SOON, f"{text}.", numbers)
        if tied is not None and not tied.lasting:
            text += ". A new pilot lasts long enough"
    return None if tied is None else Reason(WaitCode.NODES_END_TOO_SOON, f"{text}.", numbers)


def _of_nodes(scene: Scene, tied: Tied, now_s: float) -> tuple[str, dict[str, float]]:
    """What is to be said of the nodes that are there, and its numbers."""
    lefts = lefts_of([scene.book.nodes[name] for name in tied.short], now_s)
    left_s, name = max((left_s, name) for name, left_s in lefts.items())
    text = f"node {name} is ours for {format_duration(left_s)} more"
    if len(tied.short) > 1:
        text = f"{are(len(tied.short), 'node')} ours for less, at most {format_duration(left_s)} more ({name})"
    if tied.lasting:
        text += f". {are(tied.lasting, 'node', ('lasts', 'last'))} long enough, without room for it now"
    return text, {"left_s": left_s, "nodes_too_short": len(tied.short), "nodes_lasting": tied.lasting}


def _needs(needs_s: float, source: Source) -> str:
    lasts = format_duration(needs_s)
    match source:
        case Source.TIME_LIMIT:
            return f"may run for {lasts} (its time limit)"
        case Source.UNKNOWN:
            return f"is reckoned to run for {lasts}, as nothing is known of it (--time-limit or --estimate says it)"
        case Source.GIVEN:
            return f"needs {lasts} (its estimate)"
        case _:
            return f"needs {lasts} (as earlier runs did)"
