"""Why no policy could place a job now, in words: the GPUs that might be given away don't do for it."""

from __future__ import annotations

from collections.abc import Mapping

from gpuloom.core.book import Book
from gpuloom.core.decision import Reason, WaitCode
from gpuloom.core.job import Job, NodeRecord, NodeState
from gpuloom.core.words import are, plural
from gpuloom.live.planning.world import World
from gpuloom.live.records.fleet import fleet_of, open_slots, slots_of


def nothing_to_give(book: Book, shut: Mapping[str, str]) -> Reason:
    """There is no GPU that a policy could give away. shut: nodes on which nothing can be started now, and why."""
    if (fleet := fleet_of(node for node in book.nodes.values() if node.name not in shut)) is not None:
        have = fleet.cluster.gpus
        all_of = f"All {have:,} GPUs in service are" if have > 1 else "The one GPU in service is"
        text = f"{all_of} held by jobs that are not preempted for it."
        return Reason(WaitCode.NOT_ENOUGH_FREE_GPUS, text, {"gpus_in_service": have, "free_gpus": 0})
    states = ", ".join(_on(node, shut) or f"{node.name} is {node.state}" for node in book.nodes.values())
    text = f"No GPU in service accepts new jobs ({states or 'no machine has joined yet'})."
    return Reason(WaitCode.NO_GPU_IN_SERVICE, text)


def not_now(book: Book, shut: Mapping[str, str]) -> str:
    """On which nodes that are up nothing can be started now, as a sentence; '' for none."""
    found = [on for node in book.nodes.values() if (on := _on(node, shut))]
    return f"Nothing can be started now on {'; '.join(found)}." if found else ""


def _on(node: NodeRecord, shut: Mapping[str, str]) -> str:
    why = shut.get(node.name, "")
    return f"{node.name}: {why}" if why and node.state is NodeState.UP else ""


def unplaceable(book: Book, shut: Mapping[str, str], job: Job, world: World) -> Reason:
    """The GPUs that could be given away don't do for the job, however they are free. shut: as above."""
    have, total = world.fleet.cluster.gpus, sum(len(node.gpus) for node in book.nodes.values())
    in_service = open_slots(book.nodes.values())
    out, aside = total - len(in_service), sum(name in shut for name, _ in in_service)
    slots = world.fleet.at.keys() | {slot for slot in in_service if slot[0] in shut}
    keep = sorted(n for n, a in book.attempts.items() if slots.isdisjoint(slots_of(a.allocation)))
    why = []
    if keep:
        who = f"job {keep[0]}" if len(keep) == 1 else f"jobs {', '.join(map(str, keep[:5]))}" + "…" * (len(keep) > 5)
        verb = "is not preempted for it, holds" if len(keep) == 1 else "are not preempted for it, hold"
        why.append(f"{who}, which {verb} others")
    if out:
        why.append(f"{are(out)} out of service")
    if aside:
        why.append(f"{are(aside)} on nodes where nothing can be started now")
    text = f"It needs {plural(job.gpus, 'GPU')}{_types(job)}; {have} of {total} could be given to it"
    text += f", as {' and '.join(why)}." if why else ", but not together as it needs them."
    return Reason(WaitCode.GPUS_OUT_OF_SERVICE, text, {"gpus": job.gpus, "gpus_in_service": have})


def _types(job: Job) -> str:
    types = job.spec.gpu_types
    return f" of {' or '.join(types)}" if types else ""
