"""What jobs have of GPUs, under random decisions and an executor that is late, silent or does not obey."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from claimed import PHASE
from gpuloom.core.job import TRANSITIONS, Allocation, Phase
from gpuloom.live.planning.claims import Claims, Do, State, Step
from gpuloom.live.records.fleet import Slot, slots_of
from tiers import examples

pytestmark = pytest.mark.slow

GPUS = 2
JOBS = range(1, 5)
WAITS = (State.WITHOUT, State.FREEZING, State.FROZEN, State.REFREEZING, State.STOPPING, State.DOUBTFUL)

jobs = st.sampled_from(JOBS)
picks = st.integers(0, len(JOBS) - 1)
often = st.sampled_from([True, True, True, False])
WHATS = {"plan": 1, "plan and look": 3, "plan and obey": 6, "take back": 1, "look": 2, "ask": 1, "hear": 2, "obey": 4}
WHATS |= {"freeze": 1, "end": 2, "too slow": 1, "cancel": 1}
whats = st.sampled_from([what for what, times in WHATS.items() for _ in range(times)])
HOSTS = {"host"}
places = st.sets(st.integers(0, GPUS - 1), min_size=1, max_size=2).map(lambda gpus: (("host", tuple(sorted(gpus))),))


class Cluster(RuleBasedStateMachine):
    """Dispatch and intake in few lines, and an executor whose processes do what they are told when they like to."""

    def __init__(self) -> None:
        super().__init__()
        self.claims, self.now_s = Claims(), 0.0
        self.phase: dict[int, Phase] = dict.fromkeys(JOBS, Phase.QUEUED)
        """As the records have it."""
        self.up: dict[int, tuple[Slot, ...]] = {}
        """Processes at work, and their GPUs."""
        self.still: dict[int, tuple[Slot, ...]] = {}
        """Processes that stand still."""
        self.gone: set[int] = set()
        """Runs that have ended, and whose end has not been heard of."""
        self.thawed_to_end: set[int] = set()
        """They were told to end while they stood still: they have to go on for that, whoever is on their GPUs."""
        self.to_leave: set[int] = set()
        """They were told to leave their GPUs, and have not."""

    @initialize(most=st.integers(1, 2), pairs=st.booleans(), moves=st.booleans())
    def begin(self, most: int, pairs: bool, moves: bool) -> None:
        self.most, self.moves = most, moves
        self.pair = (lambda job, others: len(others) == 1 and (job + sum(others)) % 2 == 1) if pairs else None

    # -- what dispatch does with instructions --------------------------------------------------------------------

    def on(self, step: Step, job: int, **more: float) -> None:
        if step in TRANSITIONS:
            before, after = TRANSITIONS[step]
            assert self.phase[job] in before
            self.phase[job] = Phase.QUEUED if step is Step.ENDED else min(after, key=lambda phase: len(after) > 1)
        if step in (Step.MAKE_WAY, Step.MAKE_WAY_FROZEN) and self.claims.state(job) not in WAITS:
            self.to_leave.add(job)
        elif step in (Step.FROZEN, Step.ENDED):
            self.to_leave.discard(job)
        self.carry_out(self.claims.on(step, job, now_s=self.now_s), job)

    def carry_out(self, do: Do | None, job: int) -> None:
        match do:
            case Do.WRITE_STOP:
                self.on(Step.STOPPING, job)
            case Do.WRITE_START:
                self.on(Step.STARTING, job)
            case Do.GO_ON:
                self.on(Step.GO_ON, job)
            case Do.TAKE_BACK:
                self.claims.take_back(job)
            case Do.STOP if job in self.still:
                self.up[job] = self.still.pop(job)
                self.thawed_to_end.add(job)
            case Do.THAW if job in self.still:
                there, was = tuple(slots_of(self.claims.where(job))), self.still.pop(job)
                assert self.moves or there == was
                self.up[job] = there
            case Do.NEVER_BEGAN:
                self.gone.add(job)

    def ask(self, job: int, begins: bool, answers: bool) -> None:
        if self.claims.state(job) is State.DOUBTFUL:
            self.on(Step.ASK, job)
            if answers:
                if job not in self.up:
                    self.gone.add(job)
                self.on(Step.TAKEN, job)
            return
        self.on(Step.ASK, job)
        if (begins or answers) and job not in self.gone:
            self.up.setdefault(job, tuple(slots_of(self.claims.where(job))))
        if answers:
            self.on(Step.TAKEN, job)

    def hear(self, job: int) -> None:
        """What intake makes of the executor's word of a run."""
        claims = self.claims
        if job in self.gone:
            self.gone.discard(job)
            self.up.pop(job, None)
            self.still.pop(job, None)
            self.thawed_to_end.discard(job)
            self.on(Step.TAKEN, job)
            self.on(Step.ENDED, job)
        elif job in self.up or job in self.still:
            self.on(Step.TAKEN, job)
            if self.phase[job] is Phase.STARTING:
                self.on(Step.RUNNING, job)
            if job in self.still and self.phase[job] is Phase.RUNNING:
                self.on(Step.FROZEN, job)
            elif job in self.up and self.phase[job] is Phase.FROZEN:
                self.on(Step.THAWED, job)
        assert PHASE[claims.state(job)] in (self.phase[job], None)

    # -- what happens --------------------------------------------------------------------------------------------

    @rule(what=whats, job=jobs, there=places, pick=picks, leave=often, frozen=often)
    def happens(self, what: str, job: int, there: Allocation, pick: int, leave: bool, frozen: bool) -> None:
        """One rule for all: Hypothesis would leave some out for a whole run, and a run needs them all."""
        match what:
            case "plan":
                self.plan(job, there, leave, frozen)
            case "plan and look":
                self.plan(job, there, leave, frozen)
                self.look(9, set(), set())
            case "plan and obey":
                self.plan(job, there, leave, frozen)
                self.look(9, set(), set())
                self.all_obey_and_are_heard()
                self.look(9, set(), set())
            case "take back":
                self.take_back(job)
            case "look":
                self.look(pick, set() if leave else {job}, set() if frozen else {0})
            case "ask":
                self.ask_all(begins=leave, answers=frozen)
            case "hear":
                self.is_heard(pick)
            case "obey":
                self.all_obey_and_are_heard()
            case "freeze":
                self.freezes(pick)
            case "end":
                self.ends(pick)
            case "too slow":
                self.does_not_freeze_in_time()
            case "cancel":
                self.is_cancelled(job)

    def plan(self, job: int, there: Allocation, leave: bool, frozen: bool) -> None:
        """The policy gives a job GPUs; one that holds some is to leave them, and so may be those who are there."""
        if self.claims.state(job) is State.FROZEN and not self.moves and frozen:
            there = self.claims.where(job)
        slots = set(slots_of(there))
        if leave:
            for other, given in list(self.claims.grants.items()):
                if other != job and slots & set(slots_of(given)):
                    self.claims.take_back(other)
        leaving = {other for slot in slots for other in self.claims.holders().get(slot, ())} if leave else set()
        self.claims.give(job, there)
        for other in leaving | ({job} if self.claims.state(job) not in WAITS else set()):
            self.on(Step.MAKE_WAY_FROZEN if frozen else Step.MAKE_WAY, other)

    def take_back(self, job: int) -> None:
        if self.claims.state(job) in WAITS:
            self.claims.take_back(job)

    def look(self, starts: int, blocked: set[int], out: set[int]) -> None:
        due = self.claims.ready(
            in_service={("host", gpu) for gpu in range(GPUS) if gpu not in out},
            queued=[job for job in self.claims.grants if self.phase[job] is Phase.QUEUED],
            blocked=blocked,
            most=self.most,
            pair=self.pair,
            moves=HOSTS if self.moves else (),
            starts=starts,
        )
        for do, job in due:
            self.carry_out(do, job)

    def ask_all(self, begins: bool, answers: bool) -> None:
        for job in self.claims.untold():
            self.ask(job, begins, answers)

    def freezes(self, pick: int) -> None:
        if slow := [job for job in self.claims.freezing() if job in self.up]:
            job = slow[pick % len(slow)]
            self.still[job] = self.up.pop(job)

    def ends(self, pick: int) -> None:
        if there := sorted(self.up.keys() - self.gone):
            self.gone.add(there[pick % len(there)])

    def is_heard(self, pick: int) -> None:
        if there := sorted(self.up.keys() | self.still.keys() | self.gone):
            self.hear(there[pick % len(there)])

    def all_obey_and_are_heard(self) -> None:
        self.ask_all(begins=True, answers=True)
        for job in JOBS:
            self.freezes(0)
            self.hear(job)

    def does_not_freeze_in_time(self) -> None:
        self.now_s += 10.0
        for job, told_s in self.claims.freezing().items():
            if self.now_s - told_s > 5.0:
                self.on(Step.STOPPING, job)

    def is_cancelled(self, job: int) -> None:
        if self.claims.state(job) is not State.WITHOUT:
            self.on(Step.STOPPING, job)
            self.claims.take_back(job)

    # -- what holds always ---------------------------------------------------------------------------------------

    @invariant()
    def no_gpu_serves_two_that_do_not_share_it(self) -> None:
        on: dict[Slot, list[int]] = {}
        for job, slots in self.up.items():
            if job not in self.thawed_to_end and job not in self.gone:
                for slot in slots:
                    on.setdefault(slot, []).append(job)
        for there in on.values():
            assert len(there) <= self.most, there
            if self.pair is not None and len(there) > 1:
                assert self.pair(there[0], there[1:]), there

    @invariant()
    def processes_are_where_they_are_known_to_be(self) -> None:
        for job, slots in self.up.items():
            if job not in self.thawed_to_end and job not in self.gone:
                assert set(slots) == set(slots_of(self.claims.where(job)))
                assert self.claims.state(job) is not State.FROZEN or job not in self.up

    @invariant()
    def records_agree(self) -> None:
        for job in JOBS:
            assert (PHASE[self.claims.state(job)] or Phase.QUEUED) is self.phase[job]

    @invariant()
    def who_is_given_gpus_waits_or_leaves(self) -> None:
        for job in self.claims.grants:
            assert self.claims.state(job) in WAITS

    def settle(self) -> None:
        """The executor answers and obeys, GPUs are in service: what can go on does."""
        for _ in range(8):
            self.look(9, set(), set())
            self.ask_all(begins=True, answers=True)
            for job in JOBS:
                self.freezes(0)
                if self.claims.state(job) is State.STOPPING and job in self.up:
                    self.gone.add(job)
                self.hear(job)

    def teardown(self) -> None:
        """Nothing is stuck: a frozen one goes on, who was given GPUs runs, and all end."""
        self.settle()
        assert not self.to_leave, [self.claims.story(job) for job in self.to_leave]
        for job in JOBS:
            assert self.claims.state(job) in (State.WITHOUT, State.RUNNING, State.FROZEN), self.claims.story(job)
        began: set[int] = set()
        owed = set(self.claims.grants) | {job for job in JOBS if self.claims.state(job) is State.FROZEN}
        for job in owed - set(self.claims.grants):
            self.claims.give(job, self.claims.where(job))
        for _ in range(2 * len(JOBS)):
            self.settle()
            running = {job for job in JOBS if self.claims.state(job) is State.RUNNING}
            began |= running
            self.gone |= running
        self.settle()
        assert owed <= began, [self.claims.story(job) for job in owed - began]
        assert not self.claims.grants
        assert all(self.claims.state(job) is State.WITHOUT for job in JOBS)


TestCluster = Cluster.TestCase
TestCluster.settings = settings(max_examples=examples(150), stateful_step_count=60)
