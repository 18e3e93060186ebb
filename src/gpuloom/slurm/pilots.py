"""The controller of pilots: what jobs need, and what Slurm says, into requests and ends. No I/O, no clock.

A *pilot* is an allocation of Slurm on whose nodes gpuloom's node process runs. The controller asks for one where jobs
wait that fit in nothing that is there or coming, gives one back that has stood idle, asks for the next before one
ends, and has its nodes emptied in time. What it is to do comes back from `step`; what happened goes in by `asked`,
`refused`, `see` and `unseen`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from gpuloom.slurm.parse import SlurmJob

MARGIN_S = 60.0
"""Between the time by which jobs must have saved and ended, and the end of their allocation. Slurm itself sends its
signals up to a minute early."""
LEAVES_S = 2 * MARGIN_S
"""So long before the end of its allocation a node may be told to leave: nobody stays longer."""
STARTS_S = 60.0
"""So much of a new allocation may be over until a job has started there."""
AHEAD_S = 1800.0
"""How long before the end of a pilot the next one is asked for, at most a fifth of its life."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 10.0, 600.0
"""Pause after a request that was refused; doubled at each one after it."""
JOIN_S = 300.0
"""How long the nodes of a pilot may take to join, at least."""
UNWANTED_S = 30.0
"""How long a request that nobody needs any more is kept in Slurm's queue."""
MOST_ASKED_AT_ONCE = 16


class PilotState(StrEnum):
    """Where an allocation is."""

    ASKED = "asked"
    """Slurm has not answered yet."""
    PENDING = "pending"
    RUNNING = "running"
    ENDING = "ending"
    """Nothing new starts there; it is given back once nothing runs there."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What may be asked for. nodes: most at a time (0: nothing is asked for). gpus_per_node: GPUs or slots of each.

    life_s: how long an allocation is asked for; None: as the partition has it. idle_s: after which an idle one is given
    back. margin_s: see MARGIN_S. whole: all of each node is asked for, so that it joins by its own name; a part of one
    joins with the number of its allocation, as there may be others of ours beside it. ends_all: when Slurm says that an
    allocation has ended, no process of it is left.
    """

    nodes: int
    gpus_per_node: int
    life_s: float | None = None
    idle_s: float = 600.0
    margin_s: float = MARGIN_S
    whole: bool = True
    ends_all: bool = True

    def names(self, job: SlurmJob) -> tuple[str, ...]:
        """The names with which the nodes of an allocation join."""
        return job.nodes if self.whole else tuple(f"{node}-{job.id}" for node in job.nodes)


@dataclass(frozen=True, slots=True)
class Use:
    """A node that is connected. free: GPUs that may be given away now. jobs: those with a part there, and the GPUs of
    each in all; stay: of these, jobs that can't be moved. grace_s: the longest time that one of the others has to
    save and end. engine_job: the job of Slurm to which it belongs, and until_s: until when it is ours, as far as the
    scheduler has been told; '' and None: not yet."""

    free: int
    jobs: Mapping[int, int] = field(default_factory=dict)
    grace_s: float = 0.0
    engine_job: str = ""
    until_s: float | None = None
    stay: Collection[int] = ()


@dataclass(frozen=True, slots=True)
class Wanted:
    """What jobs need. waiting: those that could start if there was room, and their GPUs. nodes: those connected.

    for_s: of jobs that wait and can't be moved, how long an allocation must last for them, seconds.
    """

    waiting: Mapping[int, int]
    nodes: Mapping[str, Use]
    for_s: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Pilot:
    """An allocation. ticket: its number here. job: its number in Slurm, once it is known.

    reason: why it waits, in Slurm's word, or why it is given back. since_s: in this state since. until_s: when it ends;
    limit_s: its whole time.
    idle_since_s: since when nothing has run there. unwanted_since_s: since when nobody has needed it, while it waits.
    joined: a node of it has. drained: nodes that were closed to new jobs. told: Slurm was told to end it. missed:
    Slurm's queue was looked at last without finding it.
    """

    ticket: int
    job: int | None
    node_count: int
    state: PilotState
    since_s: float
    reason: str = ""
    nodes: tuple[str, ...] = ()
    until_s: float | None = None
    limit_s: float | None = None
    idle_since_s: float | None = None
    unwanted_since_s: float | None = None
    joined: bool = False
    drained: tuple[str, ...] = ()
    told: bool = False
    missed: bool = False


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask Slurm for an allocation of so many nodes."""

    ticket: int
    nodes: int


@dataclass(frozen=True, slots=True)
class End:
    """Give an allocation back."""

    job: int
    why: str


@dataclass(frozen=True, slots=True)
class Drain:
    """Let nothing new start on a node, and have its jobs moved."""

    node: str
    why: str


@dataclass(frozen=True, slots=True)
class Until:
    """Until when a node is ours (None: without an end), and the job of Slurm to which it belongs."""

    node: str
    until_s: float | None
    job: int


@dataclass(frozen=True, slots=True)
class Gone:
    """A node is ours no more. job: of Slurm, to which it belonged. sure: nothing of ours runs there; else Slurm
    has lost the node, or does not end all processes, and what ran there may go on until its lease ends."""

    node: str
    why: str
    job: int | None
    sure: bool = True


Action = Ask | End | Drain | Until | Gone


class Controller:
    """See the module. Not for several threads at once."""

    def __init__(self, limits: Limits, log: str = "") -> None:
        """log: where a pilot's script writes, on its first node; `%j` stands for the number of its job."""
        self.limits, self._log = limits, log
        self.words = ""
        """Why the last request failed, in Slurm's words; '' once one has been granted."""
        self.unseen_words = ""
        """Why Slurm can't be asked now; '' if it can."""
        self._pilots: list[Pilot] = []
        self._tickets = 0
        self._pause_s = 0.0
        self._not_before_s = 0.0
        self._limit_s: tuple[int, float] | None = None
        """The newest request that Slurm has shown: its job, and the time limit with which it came."""
        self._own: set[int] = set()
        """Jobs of Slurm that were asked for here."""
        self._blocked_s = math.inf
        """Jobs that can't be moved wait, and no more may be asked for: the least time for which one needs its nodes."""
        self._given_up: frozenset[int] | None = None
        """Jobs that waited when an idle pilot was given back: for them alone nothing is asked until the pause ends."""
        self._out: list[Action] = []

    @property
    def pilots(self) -> Sequence[Pilot]:
        """Those that are asked for or there."""
        return tuple(self._pilots)

    @property
    def not_before_s(self) -> float:
        """When the next request may be made, after one that failed."""
        return self._not_before_s

    @property
    def coming_words(self) -> str:
        """What has become of the last requests, in a sentence; '' if nothing is asked for."""
        if self.unseen_words:
            return f"Slurm can't be asked for a pilot now: {self.unseen_words}."
        for pilot in reversed(self._pilots):
            if pilot.state is PilotState.PENDING:
                why = f" ({pilot.reason})" if pilot.reason else ""
                return f"A pilot, job {pilot.job} of Slurm, waits there{why}."
            if pilot.state is PilotState.RUNNING and not pilot.joined:
                return f"A pilot, job {pilot.job} of Slurm, has begun, and its nodes have not joined yet."
        return f"No pilot came of the last request: {self.words}." if self.words else ""

    @property
    def lasts_s(self) -> float | None:
        """How long an allocation lasts that is asked for: as Slurm has limited the last one, before that as it is asked
        for. None: nothing is asked for, or it is not known yet."""
        if not self.limits.nodes:
            return None
        return self.limits.life_s if self._limit_s is None else self._limit_s[1]

    # -- what happened ------------------------------------------------------------------------------------------

    def asked(self, ticket: int, job: int, now_s: float) -> None:
        """Slurm has taken a request."""
        self._own.add(job)
        if any(pilot.job == job for pilot in self._pilots):  # it was seen before its answer came
            self._pilots = [pilot for pilot in self._pilots if pilot.ticket != ticket or pilot.job is not None]
            return
        self._each(
            lambda pilot: (
                replace(pilot, job=job, state=PilotState.PENDING, since_s=now_s)
                if pilot.ticket == ticket and pilot.job is None
                else pilot
            )
        )

    def refused(self, ticket: int, words: str, now_s: float) -> None:
        """Slurm has refused a request, or not answered."""
        self._pilots = [pilot for pilot in self._pilots if pilot.ticket != ticket or pilot.job is not None]
        self._failed(words, now_s)

    def adopt(self, job: SlurmJob, now_s: float) -> None:
        """An allocation that is there already is a pilot, too."""
        if not job.ended and all(pilot.job != job.id for pilot in self._pilots):
            self._tickets += 1
            self._pilots.append(Pilot(self._tickets, job.id, job.node_count, PilotState.PENDING, now_s))

    def see(self, jobs: Iterable[SlurmJob], now_s: float) -> None:
        """What Slurm's queue holds of ours, also what has ended lately. Others under our name are taken up."""
        self.unseen_words = ""
        listed = {job.id: job for job in jobs}
        for job in listed.values():
            self.adopt(job, now_s)
            if job.id in self._own and not job.ended and (self._limit_s is None or self._limit_s[0] < job.id):
                self._limit_s = job.id, math.inf if job.limit_s is None else job.limit_s
        kept = []
        for pilot in self._pilots:
            found = listed.get(pilot.job) if pilot.job is not None else None
            if pilot.job is None:
                kept.append(pilot)
            elif found is None and not pilot.missed:
                kept.append(replace(pilot, missed=True))
            elif found is None or found.ended:
                self._over(pilot, found, now_s)
            else:
                kept.append(self._seen(replace(pilot, missed=False), found, now_s))
        self._pilots = kept

    def unseen(self, words: str) -> None:
        """Slurm can't be asked now: what runs is kept, and nothing is asked for or given back."""
        self.unseen_words = words

    # -- what to do ---------------------------------------------------------------------------------------------

    def step(self, now_s: float, wanted: Wanted) -> Sequence[Action]:
        """What is to be done now. Each End is given once; if it can't be done, say so by `not_ended`."""
        wanted = self._of_use(wanted)
        self._out = [action for action in self._out if not _of_another(action, wanted)]
        self._note_use(now_s, wanted)
        missing, unneeded = self._missing(now_s, wanted)
        self._each(lambda pilot: self._cared(pilot, pilot.ticket in unneeded, now_s, wanted))
        if not self.unseen_words and self._may_ask(now_s, wanted):
            for count in missing[:MOST_ASKED_AT_ONCE]:
                self._tickets += 1
                self._pilots.append(Pilot(self._tickets, None, count, PilotState.ASKED, now_s))
                self._out.append(Ask(self._tickets, count))
        actions, self._out = self._out, []
        return actions

    def not_drained(self, node: str) -> None:
        """A node could not be closed: it is tried again."""
        self._each(lambda pilot: replace(pilot, drained=tuple(one for one in pilot.drained if one != node)))

    def not_ended(self, job: int) -> None:
        """An allocation could not be given back: it is tried again."""
        self._each(lambda pilot: replace(pilot, told=False) if pilot.job == job else pilot)

    def close(self, wanted: Wanted) -> Sequence[Action]:
        """The scheduler ends: give back what nobody uses."""
        return [
            End(pilot.job, "the scheduler ends")
            for pilot in self._pilots
            if pilot.job is not None and not _used(pilot, wanted)
        ]

    # -- inside -------------------------------------------------------------------------------------------------

    def _each(self, change: Callable[[Pilot], Pilot]) -> None:
        self._pilots = [change(pilot) for pilot in self._pilots]

    def _failed(self, words: str, now_s: float) -> None:
        self.words = words
        self._pause_s = min(max(2 * self._pause_s, FIRST_PAUSE_S), LONGEST_PAUSE_S)
        self._not_before_s = now_s + self._pause_s

    def _seen(self, pilot: Pilot, job: SlurmJob, now_s: float) -> Pilot:
        if not job.running:
            state = PilotState.PENDING if pilot.state is PilotState.ASKED else pilot.state
            reason = pilot.reason if state is PilotState.ENDING else job.reason
            return replace(pilot, state=state, reason=reason, node_count=job.node_count)
        nodes = self.limits.names(job)
        for node in pilot.nodes:
            if node not in nodes:  # a node of it has died, and the allocation lives on without it
                self._out.append(Gone(node, f"Slurm took it out of job {job.id}", job.id, sure=False))
        if pilot.state is not PilotState.ENDING and pilot.state is not PilotState.RUNNING:
            pilot = replace(pilot, state=PilotState.RUNNING, since_s=now_s, idle_since_s=now_s, reason="")
        count = len(nodes) or pilot.node_count
        return replace(pilot, nodes=nodes, until_s=job.end_s, limit_s=job.limit_s, node_count=count)

    def _over(self, pilot: Pilot, found: SlurmJob | None, now_s: float) -> None:
        why = _end_words(pilot.job, found)
        sure = self.limits.ends_all and found is not None and "NODE_FAIL" not in found.states
        self._out.extend(Gone(node, why, pilot.job, sure) for node in pilot.nodes)
        if not pilot.joined and not pilot.told and pilot.state is not PilotState.ENDING:
            where = self._log.replace("%j", str(pilot.job)) if found is not None and found.nodes else ""
            more = f"; {where} on {found.nodes[0]} may say why" if found is not None and where else ""
            self._failed(f"{why} before a node of it had joined{more}", now_s)

    def _note_use(self, now_s: float, wanted: Wanted) -> None:
        """Which pilots have joined, and since when they are idle."""

        def noted(pilot: Pilot) -> Pilot:
            if pilot.state not in (PilotState.RUNNING, PilotState.ENDING):
                return pilot
            for node, use in _uses(pilot, wanted).items():
                if pilot.job is not None and (use.engine_job, use.until_s) != (str(pilot.job), pilot.until_s):
                    self._out.append(Until(node, pilot.until_s, pilot.job))
            if not pilot.joined and _uses(pilot, wanted):
                pilot = replace(pilot, joined=True, idle_since_s=now_s)
                if self._given_up is None:
                    self.words, self._pause_s, self._not_before_s = "", 0.0, 0.0
            if _used(pilot, wanted):
                if self._given_up is not None:
                    self._given_up, self.words, self._pause_s = None, "", 0.0
                return replace(pilot, idle_since_s=None)
            return pilot if pilot.idle_since_s is not None else replace(pilot, idle_since_s=now_s)

        self._each(noted)

    def _leaves(self, pilot: Pilot, now_s: float) -> bool:
        """Whether it ends soon enough for the next one to be asked for."""
        if pilot.state is PilotState.ENDING:
            return True
        if pilot.until_s is None or pilot.state is not PilotState.RUNNING:
            return False
        life_s = self.limits.life_s if pilot.limit_s is None else pilot.limit_s
        ahead_s = AHEAD_S if life_s is None else min(AHEAD_S, life_s / 5)
        return pilot.until_s - now_s <= max(ahead_s, self.limits.margin_s)

    def _missing(self, now_s: float, wanted: Wanted) -> tuple[list[int], frozenset[int]]:
        """(nodes of each allocation to ask for, tickets of requests that are no longer needed)."""
        per_node = self.limits.gpus_per_node
        leaving = {node for pilot in self._pilots if self._leaves(pilot, now_s) for node in pilot.nodes}
        demand = dict(wanted.waiting)
        for node in leaving & wanted.nodes.keys():
            use = wanted.nodes[node]
            demand.update({job: gpus for job, gpus in use.jobs.items() if job not in use.stay})
        staying = [pilot for pilot in self._pilots if not self._leaves(pilot, now_s)]
        free, coming, new_s = self._rooms(staying, leaving, now_s, wanted)
        room = self.limits.nodes - sum(pilot.node_count for pilot in staying)
        asked: list[int] = []
        new: list[_Room] = []  # nodes to be asked for
        self._blocked_s = math.inf
        for gpus, for_s in sorted(((n, wanted.for_s.get(job, 0.0)) for job, n in demand.items()), key=_who_first):
            count = -(-gpus // per_node)
            each = per_node if count > 1 else gpus
            for nodes in (free, coming, new):
                while count and _take(nodes, each, for_s):
                    count -= 1
            if count > room and for_s:
                self._blocked_s = min(self._blocked_s, for_s)
            if 0 < count <= room:  # all of them or none: a part of a gang does not start
                room -= count
                asked.append(count)
                new += [_Room(per_node - each, new_s) for _ in range(count)]
        used = {one.ticket for one in coming if one.gpus < per_node}
        pending = (PilotState.ASKED, PilotState.PENDING)
        unneeded = {p.ticket for p in staying if p.state in pending and p.ticket not in used}
        return asked, frozenset(unneeded)

    def _rooms(
        self, staying: Iterable[Pilot], leaving: Collection[str], now_s: float, wanted: Wanted
    ) -> tuple[list[_Room], list[_Room], float]:
        """Nodes with room that are there, and that are asked for or have not joined yet; how long what is asked for now
        will last."""
        new_s = math.inf if self.lasts_s is None else self.lasts_s - STARTS_S
        free = [
            _Room(use.free, math.inf if use.until_s is None else use.until_s - now_s)
            for name, use in wanted.nodes.items()
            if name not in leaving and use.free > 0
        ]
        coming: list[_Room] = []
        for pilot in staying:
            expected = len(pilot.nodes) - len(_uses(pilot, wanted)) if pilot.nodes else pilot.node_count
            lasts_s = new_s if pilot.until_s is None else pilot.until_s - now_s
            coming += [_Room(self.limits.gpus_per_node, lasts_s, pilot.ticket) for _ in range(expected)]
        return free, coming, new_s

    def _of_use(self, wanted: Wanted) -> Wanted:
        """The same without jobs that can't be moved and for which no allocation that is asked for lasts long enough."""
        if not wanted.for_s or self.lasts_s is None:
            return wanted
        most_s = self.lasts_s - STARTS_S
        waiting = {job: gpus for job, gpus in wanted.waiting.items() if wanted.for_s.get(job, 0.0) <= most_s}
        return replace(wanted, waiting=waiting)

    def _may_ask(self, now_s: float, wanted: Wanted) -> bool:
        if self._given_up is not None and self._given_up != frozenset(wanted.waiting):
            self._given_up, self._not_before_s, self._pause_s = None, now_s, 0.0
        return now_s >= self._not_before_s

    def _cared(self, pilot: Pilot, unneeded: bool, now_s: float, wanted: Wanted) -> Pilot:
        """A pilot after what is due for it."""
        if pilot.state is PilotState.RUNNING and (why := self._why_end(pilot, now_s, wanted)):
            pilot = replace(pilot, state=PilotState.ENDING, since_s=now_s, reason=why)
        elif pilot.state is PilotState.PENDING:
            since_s = (now_s if pilot.unwanted_since_s is None else pilot.unwanted_since_s) if unneeded else None
            pilot = replace(pilot, unwanted_since_s=since_s)
            if since_s is not None and now_s - since_s >= UNWANTED_S and not self.unseen_words:
                pilot = replace(pilot, state=PilotState.ENDING, since_s=now_s, reason="no job needs it any more")
        if pilot.state is not PilotState.ENDING or pilot.job is None:
            return pilot
        still_open = [node for node in _uses(pilot, wanted) if node not in pilot.drained]
        if still_open:  # given back once nothing runs there: from now on nothing new does
            self._out.extend(Drain(node, pilot.reason) for node in still_open)
            return replace(pilot, drained=(*pilot.drained, *still_open))
        if not pilot.told and not self.unseen_words and not _used(pilot, wanted):
            self._out.append(End(pilot.job, pilot.reason))
            return replace(pilot, told=True)
        return pilot

    def _relieved(self, pilot: Pilot, now_s: float, wanted: Wanted) -> bool:
        """Whether what runs there would fit in what stays: to wait longer would keep both."""
        needed = sum(gpus for use in _uses(pilot, wanted).values() for gpus in use.jobs.values())
        staying = [one for one in self._pilots if not self._leaves(one, now_s)]
        return 0 < needed <= sum(use.free for one in staying for use in _uses(one, wanted).values())

    def _why_end(self, pilot: Pilot, now_s: float, wanted: Wanted) -> str:
        """Why a running pilot is emptied and given back now; '' if it is not."""
        if pilot.until_s is not None:
            grace_s = max((use.grace_s for use in _uses(pilot, wanted).values()), default=0.0)
            if pilot.limit_s is not None:  # else a job that asks for more would be moved from one to the next at once
                grace_s = min(grace_s, pilot.limit_s / 2)
            if now_s >= pilot.until_s - grace_s - self.limits.margin_s:
                return f"the allocation, job {pilot.job} of Slurm, ends soon"
            if self._leaves(pilot, now_s) and self._relieved(pilot, now_s, wanted):
                return f"the allocation, job {pilot.job} of Slurm, ends soon, and the next one is there"
            if pilot.idle_since_s is not None and pilot.joined and pilot.until_s - now_s <= self._blocked_s < math.inf:
                return "a job that can't be moved needs an allocation that lasts longer"
        idle_s = 0.0 if pilot.idle_since_s is None else now_s - pilot.idle_since_s
        most_s = self.limits.idle_s if pilot.joined else max(self.limits.idle_s, JOIN_S)
        if pilot.idle_since_s is None or idle_s < most_s or self.unseen_words:
            return ""
        if not pilot.joined:
            where = self._log.replace("%j", str(pilot.job)) or "its log"
            self._failed(f"no node of job {pilot.job} of Slurm has joined; {where} there may say why", now_s)
            return "no node of it has joined"
        if wanted.waiting:  # they don't start here: the same again would not help them
            self._failed(f"job {pilot.job} of Slurm stood idle although jobs wait; `gpuloom why JOB` says why", now_s)
            self._given_up = frozenset(wanted.waiting)
        return "nothing has run there for some time"


def _used(pilot: Pilot, wanted: Wanted) -> bool:
    return any(use.jobs for use in _uses(pilot, wanted).values())


def _uses(pilot: Pilot, wanted: Wanted) -> dict[str, Use]:
    """Its nodes that are connected."""
    found = {node: wanted.nodes[node] for node in pilot.nodes if node in wanted.nodes}
    return {node: use for node, use in found.items() if use.engine_job in ("", str(pilot.job))}


def _of_another(action: Action, wanted: Wanted) -> bool:
    """Whether it says that a node is gone which has come back meanwhile, as part of another allocation."""
    use = wanted.nodes.get(action.node) if isinstance(action, Gone) else None
    return use is not None and isinstance(action, Gone) and use.engine_job not in ("", str(action.job))


@dataclass(slots=True)
class _Room:
    """A node with GPUs that nobody has been reckoned for. lasts_s: for how long it is ours from now on. ticket: of its
    pilot."""

    gpus: int
    lasts_s: float
    ticket: int = 0


def _who_first(need: tuple[int, float]) -> tuple[float, int]:
    """Of (GPUs, how long): who needs it longest, then who needs most."""
    gpus, for_s = need
    return -for_s, -gpus


def _take(nodes: Iterable[_Room], gpus: int, for_s: float) -> bool:
    """Take GPUs of the node on which the fewest are left by it, of those that last; whether there is one."""
    fitting = [room for room in nodes if room.gpus >= gpus and (not for_s or room.lasts_s >= for_s)]
    if not fitting:
        return False
    min(fitting, key=lambda room: (room.gpus, room.lasts_s)).gpus -= gpus
    return True


ENDS = {
    "CANCELLED": "was cancelled in Slurm (scancel)",
    "TIMEOUT": "reached its time limit",
    "DEADLINE": "reached its deadline",
    "PREEMPTED": "was preempted by Slurm",
    "NODE_FAIL": "lost its node, as Slurm says",
    "OUT_OF_MEMORY": "ran out of memory",
    "COMPLETED": "ended by itself",
}


def _end_words(job: int | None, found: SlurmJob | None) -> str:
    if found is None:
        return f"job {job} of Slurm is not in its queue any more"
    known = next((words for state, words in ENDS.items() if state in found.states), "")
    reason = f", reason {found.reason}" if found.reason else ""
    return f"job {job} of Slurm {known or f'ended in state {found.states[0]}{reason}'}"
