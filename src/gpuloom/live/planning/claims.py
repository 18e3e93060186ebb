"""What each job has of GPUs: those that it was given, and the hold of its run on those where it is.

One small state machine: steps in, instructions out, no clock and no I/O. Planning gives GPUs and takes them back,
dispatch and intake say what happened and carry out what is answered. Nobody else keeps a part of it.

States of a run's hold (in brackets the phase in which the records have the job):

    without     no run is open (queued, held or ended)
    written     its start is on disk, the executor has not been asked for it (starting)
    asked       the executor was asked for it and has not answered: it may have begun (starting)
    doubtful    as `asked`, and it was told to stop (stopping)
    starting    the executor has it, its process is not known yet (starting)
    running     (running)
    freezing    it was told to freeze (running)
    frozen      its processes stand still; it holds no GPU (frozen)
    thawing     it was told to go on, on the GPUs that it was given (frozen)
    refreezing  as `thawing`, and it is to freeze again once it goes on (frozen)
    stopping    it was told to stop (stopping)

Steps, and where they lead (`TABLE`; what is not named here raises `InvalidTransition` with the job's story):

    decided     make_way, make_way_frozen: the plan has it leave its GPUs; go_on: it thaws on the GPUs that it was given
    written     attempt.starting, .running, .frozen, .thawed, .stopping, .ended: it is on disk
    executor    ask: about to be asked for it; taken: it has the run; unknown: it does not know the run any more

GPUs may be given in any state. A run that holds GPUs and is given others leaves first: nobody joins it (`leaves`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType

from gpuloom.core.errors import InvalidTransition
from gpuloom.core.job import Allocation, Attempt, Phase
from gpuloom.live.records.fleet import Slot, slots_of

KEEP = 2000
"""Steps that are remembered, for stories."""


class State(StrEnum):
    """Of a run's hold; see the module."""

    WITHOUT = "without"
    WRITTEN = "written"
    ASKED = "asked"
    DOUBTFUL = "doubtful"
    STARTING = "starting"
    RUNNING = "running"
    FREEZING = "freezing"
    FROZEN = "frozen"
    THAWING = "thawing"
    REFREEZING = "refreezing"
    STOPPING = "stopping"


class Step(StrEnum):
    """What is decided or happens; see the module. Those that are written down have the names of their events."""

    MAKE_WAY = "make_way"
    MAKE_WAY_FROZEN = "make_way_frozen"
    GO_ON = "go_on"
    STARTING = "attempt.starting"
    RUNNING = "attempt.running"
    FROZEN = "attempt.frozen"
    THAWED = "attempt.thawed"
    STOPPING = "attempt.stopping"
    ENDED = "attempt.ended"
    ASK = "ask"
    TAKEN = "taken"
    UNKNOWN = "unknown"


class Do(StrEnum):
    """Instructions: what is to be done next for a job."""

    ASK_FOR_IT = "ask_for_it"
    """Ask the executor to start the run."""
    LOOK_FOR_IT = "look_for_it"
    """See whether the executor has begun the run: if not it never will."""
    FREEZE = "freeze"
    """Tell the executor to freeze it."""
    THAW = "thaw"
    """Tell the executor that it goes on."""
    WRITE_STOP = "write_stop"
    """Write down that it is told to end (then comes `attempt.stopping`)."""
    STOP = "stop"
    """Tell the executor to end it."""
    NEVER_BEGAN = "never_began"
    """Say that it ended: the executor has never heard of it."""
    WRITE_START = "write_start"
    """Write down that it starts on the GPUs that it was given (then comes `attempt.starting`)."""
    GO_ON = "go_on"
    """Its GPUs are free: have it go on (the step)."""
    TAKE_BACK = "take_back"
    """Take back what it was given: it can't have it any more."""


_S = State
_ACTIVE = tuple(state for state in State if state is not State.WITHOUT)
_UNTOLD = (_S.WRITTEN, _S.ASKED, _S.DOUBTFUL)

Row = Mapping[State, tuple[State, Do | None]]


def _stay(*states: State, do: Do | None = None) -> Row:
    return {state: (state, do) for state in states}


_LEAVING: Row = {
    **_stay(_S.WITHOUT, _S.FROZEN, _S.REFREEZING, _S.STOPPING, _S.DOUBTFUL),  # it has none, or it leaves already
    **_stay(_S.WRITTEN, _S.ASKED, _S.STARTING, do=Do.WRITE_STOP),
    _S.THAWING: (_S.REFREEZING, None),  # the executor has been told that it shall go on
}

TABLE: Mapping[Step, Row] = {
    Step.MAKE_WAY: {**_LEAVING, **_stay(_S.RUNNING, _S.FREEZING, do=Do.WRITE_STOP)},
    Step.MAKE_WAY_FROZEN: {**_LEAVING, _S.RUNNING: (_S.FREEZING, Do.FREEZE), **_stay(_S.FREEZING)},
    Step.GO_ON: {_S.FROZEN: (_S.THAWING, Do.THAW)},
    Step.STARTING: {_S.WITHOUT: (_S.WRITTEN, None)},
    Step.RUNNING: dict.fromkeys((_S.WRITTEN, _S.ASKED, _S.STARTING), (_S.RUNNING, None)),
    Step.FROZEN: dict.fromkeys((_S.RUNNING, _S.FREEZING), (_S.FROZEN, None)),
    Step.THAWED: {
        **dict.fromkeys((_S.FROZEN, _S.THAWING), (_S.RUNNING, None)),
        _S.REFREEZING: (_S.FREEZING, Do.FREEZE),
    },
    Step.STOPPING: {
        **dict.fromkeys(_ACTIVE, (_S.STOPPING, Do.STOP)),
        _S.WRITTEN: (_S.STOPPING, Do.NEVER_BEGAN),
        **dict.fromkeys((_S.ASKED, _S.DOUBTFUL), (_S.DOUBTFUL, Do.STOP)),
    },
    Step.ENDED: dict.fromkeys(_ACTIVE, (_S.WITHOUT, None)),
    Step.ASK: {
        **dict.fromkeys((_S.WRITTEN, _S.ASKED), (_S.ASKED, Do.ASK_FOR_IT)),
        _S.DOUBTFUL: (_S.DOUBTFUL, Do.LOOK_FOR_IT),
    },
    Step.TAKEN: {
        **_stay(*_ACTIVE),
        **dict.fromkeys((_S.WRITTEN, _S.ASKED), (_S.STARTING, None)),
        _S.DOUBTFUL: (_S.STOPPING, None),
    },
    Step.UNKNOWN: {_S.STARTING: (_S.WRITTEN, None), **_stay(_S.WRITTEN, _S.ASKED)},
}
"""By step and state: the state after it, and what is to be done."""

ON_DISK = frozenset(
    {Step.STARTING, Step.RUNNING, Step.FROZEN, Step.THAWED, Step.STOPPING, Step.ENDED},
)
"""Steps that are events of the records."""

_OF_PHASE = {
    Phase.STARTING: _S.STARTING,
    Phase.RUNNING: _S.RUNNING,
    Phase.FROZEN: _S.FROZEN,
    Phase.STOPPING: _S.STOPPING,
}
_GOING = frozenset({_S.DOUBTFUL, _S.STOPPING, _S.FREEZING, _S.REFREEZING})


@dataclass(frozen=True, slots=True)
class Hold:
    """Of an open run: its state, and the GPUs where it is (of one that thaws: where it will be).

    told_s: when it was told to freeze.
    """

    state: State
    allocation: Allocation
    told_s: float = 0.0


class Claims:
    """See the module. By job; used by the scheduler's thread alone."""

    def __init__(self) -> None:
        self._grants: dict[int, Allocation] = {}
        self._rates: dict[int, float] = {}
        """How fast jobs will work on the GPUs that they were given, where that is not as if they were alone."""
        self._holds: dict[int, Hold] = {}
        self._log: deque[tuple[int, str]] = deque(maxlen=KEEP)
        self.grants: Mapping[int, Allocation] = MappingProxyType(self._grants)
        """GPUs that were given to jobs which have not begun, or gone on, there; in the order in which they were."""

    @classmethod
    def of(cls, attempts: Iterable[Attempt]) -> Claims:
        """Those of runs that are open, as far as records tell."""
        claims = cls()
        for attempt in attempts:
            if attempt.phase is not None:
                claims._holds[attempt.job] = Hold(_OF_PHASE[attempt.phase], attempt.allocation)
                claims._log.append((attempt.job, f"found {attempt.phase} on {_text(attempt.allocation)}"))
        return claims

    def copy(self) -> Claims:
        """The same, for another thread."""
        twin = Claims()
        twin._grants.update(self._grants)
        twin._rates.update(self._rates)
        twin._holds.update(self._holds)
        twin._log.extend(self._log)
        return twin

    # -- GPUs that are given ----------------------------------------------------------------------------------

    def give(self, job: int, allocation: Allocation) -> None:
        """The job is to have these GPUs, once those who hold them have left and it has left its own.

        Raises:
            InvalidTransition: these are none.
        """
        if not slots_of(allocation):
            raise InvalidTransition(f"job {job} can't be given no GPUs at all: {self.story(job)}")
        self._grants[job] = allocation
        self._rates.pop(job, None)
        self._log.append((job, f"given {_text(allocation)}"))

    def take_back(self, job: int) -> bool:
        """It is not to have what it was given; whether it had been given something."""
        there = self._grants.pop(job, None) is not None
        if there:
            self._rates.pop(job, None)
            self._log.append((job, "taken back"))
        return there

    def take_all_back(self) -> None:
        """What was given and not taken yet is given to nobody."""
        for job in list(self._grants):
            self.take_back(job)

    def put_back(self, grants: Mapping[int, Allocation]) -> None:
        """What was given is to be what it was before (a copy of `grants`)."""
        self._grants.clear()
        self._grants.update(grants)
        self._log.extend([(job, f"again given {_text(there)}") for job, there in grants.items()])

    def set_rate(self, job: int, rate: float) -> None:
        """So fast will a job work on the GPUs that it was given."""
        self._rates[job] = rate

    def take_rate(self, job: int) -> float:
        """How fast a job works that has begun, or gone on."""
        return self._rates.pop(job, 1.0)

    def forget_rates(self) -> None:
        """Who is given GPUs works as if it were alone, as far as is known."""
        self._rates.clear()

    # -- runs -------------------------------------------------------------------------------------------------

    def on(
        self, step: Step, job: int, *, allocation: Allocation | None = None, now_s: float | None = None
    ) -> Do | None:
        """A step of a job's run; what is to be done next.

        Args:
            allocation: of `attempt.starting`, the GPUs on which it starts. now_s: of steps after which it may be
                freezing, the time.

        Raises:
            InvalidTransition: it can't come to the job as it is, with the job's story. Nothing has changed then.
        """
        before = self._holds.get(job)
        state = State.WITHOUT if before is None else before.state
        row = TABLE[step].get(state)
        if row is None:
            legal = " or ".join(TABLE[step])
            raise InvalidTransition(f"{step} can't come to job {job}; it must be {legal}: {self.story(job)}")
        after, do = row
        if do is Do.FREEZE and now_s is None:
            raise ValueError("freezing begins at a time")
        if step is Step.GO_ON:
            allocation = self._grants.get(job)
            if allocation is None:
                raise InvalidTransition(f"job {job} can't go on, it was given no GPUs: {self.story(job)}")
            del self._grants[job]
        elif step is Step.STARTING:
            allocation = self._grants.get(job) if allocation is None else allocation
            if allocation is None:
                raise InvalidTransition(f"job {job} can't start, it was given no GPUs: {self.story(job)}")
            self._grants.pop(job, None)
        if after is not state or do is not None:
            self._log.append((job, f"{step}: {after}" + (f" on {_text(allocation)}" if allocation is not None else "")))
        if after is State.WITHOUT:
            self._holds.pop(job, None)
            if job not in self._grants:
                self._rates.pop(job, None)
        elif before is None:
            assert allocation is not None  # noqa: S101 - only `attempt.starting` leads here
            self._holds[job] = Hold(after, allocation)
        elif after is not state:
            self._holds[job] = replace(
                before,
                state=after,
                allocation=before.allocation if allocation is None else allocation,
                told_s=before.told_s if now_s is None else now_s,
            )
        return do

    def state(self, job: int) -> State:
        hold = self._holds.get(job)
        return State.WITHOUT if hold is None else hold.state

    def where(self, job: int) -> Allocation:
        """The GPUs where its run is, or will be once it has thawed. Raises KeyError: no run is open."""
        return self._holds[job].allocation

    def stands(self, job: int) -> Allocation | None:
        """The GPUs on which its run stands still, or will; None: none of it does."""
        hold = self._holds.get(job)
        return hold.allocation if hold is not None and hold.state in (State.FREEZING, State.FROZEN) else None

    def target(self, job: int) -> Allocation | None:
        """The GPUs to which a job is on its way: those that it was given, or on which it thaws."""
        given = self._grants.get(job)
        if given is not None:
            return given
        hold = self._holds.get(job)
        thaws = hold is not None and hold.state in (State.THAWING, State.REFREEZING)
        return hold.allocation if hold is not None and thaws else None

    def untold(self) -> list[int]:
        """Jobs whose start is written down and not settled with the executor, in that order."""
        return [job for job, hold in self._holds.items() if hold.state in _UNTOLD]

    def freezing(self) -> dict[int, float]:
        """Jobs that were told to freeze and have not yet: when they were told."""
        return {job: hold.told_s for job, hold in self._holds.items() if hold.state is State.FREEZING}

    def leaves(self, job: int) -> bool:
        """Whether a job that holds GPUs is about to leave them."""
        hold = self._holds.get(job)
        return hold is not None and (hold.state in _GOING or job in self._grants)

    def holders(self) -> dict[Slot, list[int]]:
        """By GPU the jobs that have processes at work on it, or are about to."""
        found: dict[Slot, list[int]] = {}
        for job, hold in self._holds.items():
            if hold.state is not State.FROZEN:
                for slot in slots_of(hold.allocation):
                    found.setdefault(slot, []).append(job)
        return found

    def ready(
        self,
        *,
        in_service: Collection[Slot],
        queued: Collection[int],
        blocked: Collection[int],
        most: int,
        pair: Callable[[int, Collection[int]], bool] | None,
        moves: Collection[str],
        starts: float,
    ) -> list[tuple[Do, int]]:
        """What is to be done for those who were given GPUs: who begins or goes on, as all who held them are gone.

        Args:
            in_service: GPUs that may be used. queued: jobs that wait to be started; blocked: that may not be now.
            most: jobs a GPU. pair: whether a job and others may share a GPU; None: any may. moves: nodes on which a
                frozen run can go on in other slots. starts: how many may be started at once.
        """
        in_service = frozenset(in_service)
        holders = self.holders()
        found: list[tuple[Do, int]] = []
        going_on: set[int] = set()
        for job, allocation in self._grants.items():
            slots = slots_of(allocation)
            if not in_service.issuperset(slots) or job in blocked:
                found.append((Do.TAKE_BACK, job))
                continue
            on_them = [[other for other in holders.get(slot, ()) if other != job] for slot in slots]
            if any(
                len(others) >= most or any(self.leaves(other) and other not in going_on for other in others)
                for others in on_them
            ):
                continue
            # A policy before may have given GPUs of which this one shares only those of pairs.
            if pair is not None and any(on_them) and (len(on_them) != 1 or not pair(job, on_them[0])):
                continue
            if job in queued:
                if starts <= 0:
                    continue
                starts -= 1
                found.append((Do.WRITE_START, job))
            elif self.state(job) is not State.FROZEN:
                continue
            elif self._goes_on(job, allocation, moves):
                going_on.add(job)
                found.append((Do.GO_ON, job))
            else:  # what it has on its GPUs can't move with it
                found.append((Do.WRITE_STOP, job))
                continue
            for slot in slots:
                holders.setdefault(slot, []).append(job)
        return found

    def _goes_on(self, job: int, there: Allocation, moves: Collection[str]) -> bool:
        """Whether a frozen run can go on there: what it has on GPUs can't move, and no process leaves its node."""
        was = self.where(job)
        return there == was or ([n for n, _ in there] == [n for n, _ in was] and all(n in moves for n, _ in there))

    def story(self, job: int) -> str:
        """What has become of a job, as far as it is remembered, for messages."""
        hold = self._holds.get(job)
        now = "has no run" if hold is None else f"is {hold.state} on {_text(hold.allocation)}"
        given = f", was given {_text(self._grants[job])}" if job in self._grants else ""
        steps = "; ".join([text for number, text in self._log if number == job])
        return f"job {job} {now}{given}; before: {steps or 'nothing is remembered'}"


def _text(allocation: Allocation) -> str:
    return " ".join([f"{name}:{','.join(map(str, gpus))}" for name, gpus in allocation])
