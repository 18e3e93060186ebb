"""Why no policy could place a job now, in words: the GPUs that might be given away don't do for it."""

from __future__ import annotations

from gpuloom.core.book import Book
from gpuloom.core.decision import Reason, WaitCode
from gpuloom.core.job import Job
from gpuloom.core.words import are, plural
from gpuloom.live.planning.world import World
from gpuloom.live.records.fleet import fleet_of, open_slots, slots_of


def nothing_to_give(book: Book) -> Reason:
    """There is no GPU that a policy could give away."""
    if (fleet := fleet_of(book.nodes.values())) is not None:
        have = fleet.cluster.gpus
        all_of = f"All {have:,} GPUs in service are" if have > 1 else "The one GPU in service is"
        text = f"{all_of} held by jobs that are not preempted for it."
        return Reason(WaitCode.NOT_ENOUGH_FREE_GPUS, text, {"gpus_in_service": have, "free_gpus": 0})
    states = ", ".join(f"{node.name} is {node.state}" for node in book.nodes.values())
    text = f"No GPU in service accepts new jobs ({states or 'no machine has joined yet'})."
    return Reason(WaitCode.NO_GPU_IN_SERVICE, text)


def unplaceable(book: Book, job: Job, world: World) -> Reason:
    """The GPUs that could be given away don't do for the job, however they are free."""
    have, total = world.fleet.cluster.gpus, sum(len(node.gpus) for node in book.nodes.values())
    out = total - len(open_slots(book.nodes.values()))
    slots = set(world.fleet.at)
    keep = sorted(n for n, a in book.attempts.items() if slots.isdisjoint(slots_of(a.allocation)))
    why = []
    if keep:
        who = f"job {keep[0]}" if len(keep) == 1 else f"jobs {', '.join(map(str, keep[:5]))}" + "…" * (len(keep) > 5)
        verb = "is not preempted for it, holds" if len(keep) == 1 else "are not preempted for it, hold"
        why.append(f"{who}, which {verb} others")
    if out:
        why.append(f"{are(out)} out of service")
    text = f"It needs {plural(job.gpus, 'GPU')}{_types(job)}; {have} of {total} could be given to it"
    text += f", as {' and '.join(why)}." if why else ", but not together as it needs them."
    return Reason(WaitCode.GPUS_OUT_OF_SERVICE, text, {"gpus": job.gpus, "gpus_in_service": have})


def _types(job: Job) -> str:
    types = job.spec.gpu_types
    return f" of {' or '.join(types)}" if types else ""
