"""Takes a sample of the cluster every ten seconds, and writes it down."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

from gpuloom.agent.sample import Sample
from gpuloom.core.job import Job, NodeRecord, NodeState
from gpuloom.core.metrics import blocking_per_s
from gpuloom.core.sums import sum_floats
from gpuloom.core.usage import RunUsage
from gpuloom.live.figures.each import kept
from gpuloom.live.figures.looked import looked
from gpuloom.live.figures.sample import KEPT_S, WIDTHS_S, Figures, Machines, Thinning, UserFigures, fewer
from gpuloom.live.figures.tally import Tally
from gpuloom.live.planning.scene import Scene
from gpuloom.live.records.history import ready_s
from gpuloom.live.records.ledger import Ledger
from gpuloom.live.sights import Sights
from gpuloom.store.errors import StoreError

LOOKED_AT = 1000
"""Of more jobs that wait the blocking index is that of so many, evenly spaced."""
STALE_S = 60.0
"""What a monitor saw longer ago than this is not known any more."""


class Sampler:
    """Used by the scheduler's thread alone."""

    def __init__(self, ledger: Ledger, scene: Scene, sights: Sights) -> None:
        self._ledger, self._scene, self._sights = ledger, scene, sights
        now_s = self._from_s = ledger.clock.now()
        self._tally = Tally(ledger.book, ledger.clock.now, ledger.waits_for)
        # What the coarsest kind may lack yet, and a little more.
        self._thinning = Thinning(ledger.store.samples(since_s=now_s - KEPT_S[WIDTHS_S[1]], until_s=now_s))
        self.due_s = _next(now_s)

    def look(self, now_s: float) -> str:
        """Take a sample if it is time to; why the store can't take it, '' if it could."""
        if now_s < self.due_s:
            return ""
        self.due_s = _next(now_s)
        begin_s, self._from_s = self._from_s, now_s
        span_s, every, of_users = self._tally.take(now_s)
        blocking, of_user = self._blocking(now_s)
        nodes = [node for node in self._ledger.book.nodes.values() if node.state is not NodeState.DOWN]
        seen = self._seen(nodes, now_s)
        found = Figures(
            begin_s,
            span_s,
            _with(every, blocking),
            users=len(of_users),
            gpus=sum(len(node.gpus) for node in nodes),
            nodes=len(nodes),
            nodes_up=sum(node.state is NodeState.UP for node in nodes),
            machines=_machines(nodes, [sample for _, sample in seen]),
            of_users=fewer({user: _with(one, of_user.get(user, 0.0)) for user, one in of_users.items()}),
            each=kept(looked(self._ledger.book, seen), WIDTHS_S[0]),
        )
        keep_from_s = {width: now_s - kept_s for width, kept_s in KEPT_S.items()}
        try:
            self._ledger.store.put_samples(self._thinning.take(found), keep_from_s)
        except StoreError as error:  # this sample is lost; the next one tries again
            return str(error)
        return ""

    def _blocking(self, now_s: float) -> tuple[float, Mapping[str, float]]:
        """The blocking index now: of all jobs that wait, and of each user's."""
        jobs, waiting = self._ledger.book.jobs, self._tally.waiting
        step = max(-(-len(waiting) // LOOKED_AT), 1)
        left: dict[tuple[int, str, int], float] = {}
        found: dict[str, list[float]] = {}
        for number in islice(waiting, 0, None, step):
            job = jobs[number]
            found.setdefault(job.user, []).append(self._waited_s(job, now_s) * blocking_per_s(self._left_s(job, left)))
        every = [share for shares in found.values() for share in shares]
        return _mean(every), {user: _mean(shares) for user, shares in found.items()}

    def _waited_s(self, job: Job, now_s: float) -> float:
        jobs = self._ledger.book.jobs
        ends: dict[int, float] = {}
        for other, _ in job.after:
            if other in jobs and (end_s := jobs[other].ended_s) is not None:
                ends[other] = end_s
        return max(now_s - ready_s(job, ends) - job.held_s, 0.0)

    def _left_s(self, job: Job, known: dict[tuple[int, str, int], float]) -> float:
        """Run time that remains of a job that waits, as far as is known. known: of jobs that have done nothing yet."""
        if job.work_s > 0.0:
            return self._scene.left_s(job)
        key = job.spec_id, job.user, job.gpus
        if key not in known:
            known[key] = self._scene.left_s(job)
        return known[key]

    def _seen(self, nodes: Sequence[NodeRecord], now_s: float) -> list[tuple[NodeRecord, Sample]]:
        """What the monitors saw last, of nodes that can be talked to."""
        return [
            (node, sample)
            for node in nodes
            if node.name not in self._sights.cut
            and (sample := self._sights.of(node.name).sample) is not None
            and now_s - sample.at_s <= STALE_S
        ]


def _machines(nodes: Sequence[NodeRecord], seen: Sequence[Sample]) -> Machines:
    """All of them together."""
    gpus = [gpu for sample in seen for gpu in sample.gpus]
    runs = [run for sample in seen for run in sample.runs.values()]
    memory = {gpu.uuid: gpu.memory_mib for node in nodes for gpu in node.gpus}
    rates = [sample.node for sample in seen if sample.node is not None]
    return Machines(
        gpu_utilization=_mean_of(gpu.utilization for gpu in gpus),
        gpu_memory_used_mib=_sum(gpu.memory_used_mib for gpu in gpus),
        gpu_memory_mib=_sum(memory.get(gpu.uuid) for gpu in gpus if gpu.memory_used_mib is not None),
        cpu_percent=_mean_of(rate.cpu_percent for rate in rates),
        memory_used_mib=_sum(rate.memory_used_mib for rate in rates),
        memory_mib=_sum(rate.memory_mib for rate in rates),
        disk_free_mib=_sum(rate.disk_free_mib for rate in rates),
        read_mib_per_s=_of_runs(runs, "read_mib_per_s"),
        write_mib_per_s=_of_runs(runs, "write_mib_per_s"),
        received_mib_per_s=_sum(rate.received_mib_per_s for rate in rates),
        sent_mib_per_s=_sum(rate.sent_mib_per_s for rate in rates),
    )


def _next(now_s: float) -> float:
    return (now_s // WIDTHS_S[0] + 1) * WIDTHS_S[0]


def _with(one: UserFigures, blocking: float) -> UserFigures:
    return UserFigures(one.queue_length, one.running, one.busy_gpus, blocking, one.ended, one.jct_s)


def _mean(values: Sequence[float]) -> float:
    return sum_floats(values) / len(values) if values else 0.0


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _mean_of(values: Iterable[float | None]) -> float | None:
    known = _known(values)
    return _mean(known) if known else None


def _sum(values: Iterable[float | None]) -> float | None:
    known = _known(values)
    return sum_floats(known) if known else None


def _of_runs(runs: Iterable[RunUsage], name: str) -> float | None:
    return _sum(getattr(run, name) for run in runs)
