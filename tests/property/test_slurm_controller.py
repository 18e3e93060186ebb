"""The controller of pilots against a Slurm that grants, refuses, ends, loses and keeps silent at random."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloom.slurm.parse import SlurmJob
from gpuloom.slurm.pilots import (
    STARTS_S,
    Ask,
    Controller,
    Drain,
    End,
    Gone,
    Limits,
    PilotState,
    Until,
    Use,
    Wanted,
)

GPUS = 4


@dataclass
class World:
    """A Slurm with some nodes, and a scheduler above it that places jobs where there is room."""

    limits: Limits
    room: int
    friendly: bool = True
    rng: random.Random = field(default_factory=lambda: random.Random(0))
    now_s: float = 1000.0
    jobs: dict[int, SlurmJob] = field(default_factory=dict)
    asks: list[float] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    waiting: dict[int, int] = field(default_factory=dict)
    placed: dict[int, tuple[str, int]] = field(default_factory=dict)
    """job → node, GPUs"""
    known: dict[str, int] = field(default_factory=dict)
    """nodes that have joined → job of Slurm"""
    until: dict[str, float | None] = field(default_factory=dict)
    closed: set[str] = field(default_factory=set)
    numbers: int = 100

    def __post_init__(self) -> None:
        self.controller = Controller(self.limits)

    def wanted(self) -> Wanted:
        nodes = {}
        for node, job in self.known.items():
            here = {number: gpus for number, (where, gpus) in self.placed.items() if where == node}
            free = 0 if node in self.closed else GPUS - sum(here.values())
            nodes[node] = Use(free, here, 30.0, str(job), self.until.get(node))
        return Wanted(dict(self.waiting), nodes)

    def place(self) -> None:
        for number, gpus in sorted(self.waiting.items()):
            for node, use in self.wanted().nodes.items():
                if use.free >= gpus:
                    del self.waiting[number]
                    self.placed[number] = (node, gpus)
                    break

    def turn(self, seconds: float = 5.0, *, silent: bool = False) -> None:
        self.now_s += seconds
        busy = {node for job in self.jobs.values() if job.running for node in job.nodes}
        for job in list(self.jobs.values()):
            if job.running and job.end_s is not None and self.now_s >= job.end_s:
                self.over(job.id, "TIMEOUT")
        for job in list(self.jobs.values()):
            free = [f"n{i}" for i in range(self.room) if f"n{i}" not in busy]
            if not job.running and not job.ended and len(free) >= job.node_count:
                nodes = tuple(free[: job.node_count])
                busy.update(nodes)
                end = None if self.limits.life_s is None else self.now_s + self.limits.life_s
                self.jobs[job.id] = replace(job, states=("RUNNING",), nodes=nodes, end_s=end)
        if silent:
            self.controller.unseen("no answer")
        else:
            self.controller.see(self.jobs.values(), self.now_s)
        for job in self.living:
            for node in self.limits.names(job):
                if self.known.get(node) != job.id and node not in self.known:
                    self.known[node] = job.id
                    self.closed.discard(node)
        for action in self.controller.step(self.now_s, self.wanted()):
            self.do(action, silent)
        self.place()

    def do(self, action: object, silent: bool) -> None:
        match action:
            case Ask(ticket, nodes):
                self.asks.append(self.now_s)
                assert not silent, "nothing is asked of a Slurm that does not answer"
                if not self.friendly and self.rng.random() < 0.3:
                    self.controller.refused(ticket, "sbatch: error: no", self.now_s)
                    return
                self.numbers += 1
                self.jobs[self.numbers] = SlurmJob(self.numbers, "pilot", ("PENDING",), "Resources", node_count=nodes)
                if self.friendly or self.rng.random() < 0.7:
                    self.controller.asked(ticket, self.numbers, self.now_s)
                else:  # it was taken, but its answer is lost
                    self.controller.refused(ticket, "no answer within 30 s", self.now_s)
            case End(job, _):
                assert not silent
                assert job not in self.ends, "told twice"
                held = {node for node, owner in self.known.items() if owner == job}
                assert not [n for n, (node, _) in self.placed.items() if node in held], "a job runs there"
                assert held <= self.closed, "a job could start between the decision and the end"
                self.ends.append(job)
                self.over(job, "CANCELLED")
            case Drain(node, why):
                assert why
                assert node in self.known
                self.closed.add(node)
                for number, (where, gpus) in list(self.placed.items()):
                    if where == node:
                        del self.placed[number]
                        self.waiting[number] = gpus
            case Until(node, until_s, job):
                assert self.jobs[job].end_s == until_s
                assert self.known[node] == job
                assert self.until.get(node, -1.0) != until_s, "told twice"
                self.until[node] = until_s
            case Gone(node, why, _, _):
                assert why
                self.known.pop(node, None)
                self.until.pop(node, None)
                for number, (where, gpus) in list(self.placed.items()):
                    if where == node:
                        del self.placed[number]
                        self.waiting[number] = gpus

    def over(self, job: int, state: str) -> None:
        if not self.jobs[job].ended:
            self.jobs[job] = replace(self.jobs[job], states=(state,), end_s=self.now_s)

    @property
    def living(self) -> list[SlurmJob]:
        return [job for job in self.jobs.values() if not job.ended]


@given(
    jobs=st.lists(st.integers(1, GPUS), min_size=1, max_size=12),
    most=st.integers(1, 6),
    room=st.integers(1, 8),
    seed=st.integers(0, 2**32 - 1),
)
def test_whatever_slurm_does_its_rules_hold(jobs: list[int], most: int, room: int, seed: int) -> None:
    rng = random.Random(seed)
    life_s, whole = rng.choice([None, 900.0, 3600.0]), rng.random() < 0.5
    limits = Limits(most, GPUS, life_s=life_s, idle_s=60.0, whole=whole)
    world = World(limits, room, friendly=False, rng=rng)
    for number, gpus in enumerate(jobs):
        world.waiting[number] = gpus
    for _ in range(80):
        if rng.random() < 0.05 and world.living:
            world.over(rng.choice(world.living).id, rng.choice(["PREEMPTED", "NODE_FAIL", "CANCELLED", "FAILED"]))
        if rng.random() < 0.1 and world.placed:
            del world.placed[rng.choice(list(world.placed))]
        if rng.random() < 0.05:
            world.waiting[len(jobs) + world.numbers] = rng.randint(1, GPUS)
        if rng.random() < 0.2:  # the end of a lost node's lease, before Slurm says that it is over
            for node, owner in list(world.known.items()):
                if world.jobs[owner].ended:
                    world.do(Gone(node, "its lease is over", owner), False)
        world.turn(rng.choice([1.0, 5.0, 20.0]), silent=rng.random() < 0.1)
        lost = sum(job.node_count for job in world.living if job.id not in {p.job for p in world.controller.pilots})
        staying = [p for p in world.controller.pilots if p.state is not PilotState.ENDING]
        assert sum(p.node_count for p in staying) <= 2 * most, "at most as many, and as many to take over from them"
        assert lost <= most
        assert len({pilot.ticket for pilot in world.controller.pilots}) == len(world.controller.pilots)
        assert world.known.keys() >= {node for node, _ in world.placed.values()}


@given(jobs=st.lists(st.integers(1, GPUS), min_size=1, max_size=8), most=st.integers(1, 8))
def test_what_waits_gets_room_and_what_is_idle_is_given_back(jobs: list[int], most: int) -> None:
    world = World(Limits(most, GPUS, life_s=None, idle_s=60.0), room=8)
    world.waiting.update(enumerate(jobs))
    for _ in range(4):
        world.turn()
    capacity = sum(job.node_count for job in world.living)
    assert capacity <= most
    assert not world.waiting or capacity == most, "there was room for more"
    assert capacity <= len(jobs)
    for _ in range(200):  # each ends after a while
        world.placed.clear()
        world.turn(10.0)
    assert not world.waiting
    assert not world.living, "all given back"
    assert not world.known
    assert not world.controller.pilots


@pytest.mark.parametrize("gpus", [5, 8, 12])
def test_a_gang_over_nodes_is_asked_for_as_a_whole(gpus: int) -> None:
    controller = Controller(Limits(3, GPUS))
    actions = controller.step(0.0, Wanted({1: gpus, 2: 1}, {}))
    whole = -(-gpus // GPUS)
    assert [action.nodes for action in actions if isinstance(action, Ask)] == ([whole, 1] if whole < 3 else [whole])


def test_small_jobs_share_the_nodes_that_are_asked_for() -> None:
    controller = Controller(Limits(3, GPUS))
    actions = controller.step(0.0, Wanted({1: 1, 2: GPUS - 1, 3: 2, 4: 2}, {}))
    assert [action.nodes for action in actions if isinstance(action, Ask)] == [1, 1]
    assert controller.step(1.0, Wanted({1: 1, 2: GPUS - 1, 3: 2, 4: 2}, {})) == [], "what is asked for has room"


@pytest.mark.parametrize(
    ("free", "asked"), [((GPUS, GPUS), []), ((GPUS,), [1]), ((GPUS, GPUS - 1), [1]), ((GPUS - 1, 1), [2]), ((), [2])]
)
def test_a_gang_takes_whole_nodes_that_are_free_and_asks_for_the_others(
    free: tuple[int, ...], asked: list[int]
) -> None:
    controller = Controller(Limits(3, GPUS))
    nodes = {f"n{number}": Use(count) for number, count in enumerate(free)}
    actions = controller.step(0.0, Wanted({1: 2 * GPUS}, nodes))
    assert [action.nodes for action in actions if isinstance(action, Ask)] == asked


def test_a_gang_that_is_too_large_for_the_limit_is_not_begun() -> None:
    controller = Controller(Limits(2, GPUS))
    assert controller.step(0.0, Wanted({1: 3 * GPUS}, {})) == []


def test_the_next_one_is_asked_for_before_the_old_one_ends_and_its_jobs_move() -> None:
    world = World(Limits(1, GPUS, life_s=3600.0, idle_s=60.0), room=2)
    world.waiting[1] = 2
    world.turn()
    world.turn()
    (first,) = world.living
    assert first.end_s is not None
    while world.now_s < first.end_s - 730.0:
        world.turn(10.0)
    assert world.living == [first]
    while world.now_s < first.end_s - 700.0:
        world.turn(10.0)
    assert len(world.asks) == 2, "a fifth of its life before the end"
    world.turn()
    world.turn()
    world.turn()
    assert world.placed[1][0] not in first.nodes, "it moves once there is room"
    assert world.ends == [first.id], "and the old one is given back"


@pytest.mark.parametrize("life_s", [None, 360.0])
def test_short_ones_are_not_asked_for_again_at_once(life_s: float | None) -> None:
    """Their limit may be the partition's, or among the options for sbatch."""
    controller = Controller(Limits(1, GPUS, life_s=life_s))
    running = grants_one(controller, 7, Wanted({1: 1}, {}), limit_s=360.0)
    wanted = Wanted({}, {"n7": Use(3, {1: 1}, engine_job="7", until_s=running.end_s)})
    assert controller.step(10.0, wanted) == controller.step(280.0, wanted) == []
    assert controller.step(290.0, wanted) == [Ask(2, 1)]


def test_what_can_not_move_yet_is_told_in_time_before_the_end() -> None:
    world = World(Limits(1, GPUS, life_s=3600.0, idle_s=60.0), room=1)
    world.waiting[1] = 2
    world.turn()
    world.turn()
    (first,) = world.living
    assert first.end_s is not None
    while world.now_s < first.end_s - 95.0:
        world.turn(5.0)
    assert world.placed.keys() == {1}
    while world.now_s < first.end_s - 90.0:  # 30 s to save and end, and the margin
        world.turn(5.0)
    assert world.waiting.keys() == {1}
    world.turn(5.0)
    assert world.ends == [first.id]
    world.turn()
    world.turn()
    assert world.placed.keys() == {1}, "in the next one"


def test_what_slurm_refuses_is_asked_again_ever_more_slowly_and_told() -> None:
    controller = Controller(Limits(1, GPUS))
    wanted, times = Wanted({1: 1}, {}), []
    for second in range(2000):
        for action in controller.step(float(second), wanted):
            assert isinstance(action, Ask)
            times.append(second)
            controller.refused(action.ticket, "sbatch: error: invalid partition specified: nope", float(second))
    assert times == [0, 10, 30, 70, 150, 310, 630, 1230, 1830]
    assert "invalid partition" in controller.words


def test_a_pilot_that_ends_before_it_joined_counts_as_refused() -> None:
    controller = Controller(Limits(1, GPUS), "/tmp/%j.log")
    (ask,) = controller.step(0.0, Wanted({1: 1}, {}))
    assert isinstance(ask, Ask)
    controller.asked(ask.ticket, 7, 0.0)
    controller.see([SlurmJob(7, "p", ("FAILED",), "NonZeroExitCode", ("n0",))], 1.0)
    assert controller.step(1.0, Wanted({1: 1}, {})) == []
    assert controller.words == (
        "job 7 of Slurm ended in state FAILED, reason NonZeroExitCode before a node of it had joined; /tmp/7.log on n0 "
        "may say why"
    )


def test_a_request_that_nobody_needs_any_more_is_taken_back() -> None:
    controller = Controller(Limits(1, GPUS))
    (ask,) = controller.step(0.0, Wanted({1: 1}, {}))
    assert isinstance(ask, Ask)
    controller.asked(ask.ticket, 7, 0.0)
    waits = SlurmJob(7, "p", ("PENDING",), "Resources")
    controller.see([waits], 1.0)
    assert controller.pilots[0].reason == "Resources"
    assert controller.step(1.0, Wanted({}, {})) == []
    assert controller.step(20.0, Wanted({2: 1}, {})) == []
    assert controller.step(40.0, Wanted({}, {})) == [], "needed in between"
    assert controller.step(70.0, Wanted({}, {})) == [End(7, "no job needs it any more")]
    assert controller.step(71.0, Wanted({}, {})) == []
    controller.not_ended(7)
    assert controller.step(72.0, Wanted({}, {})) == [End(7, "no job needs it any more")]


def test_a_pilot_that_helps_nobody_is_not_asked_for_again_at_once() -> None:
    """The jobs that wait can't use it (another GPU model, a held dependency): the same again would not help them."""
    world = World(Limits(1, GPUS, idle_s=60.0), room=1)
    world.waiting[1] = 1
    world.place = lambda: None  # type: ignore[method-assign]
    for _ in range(100):
        world.turn(5.0)
    assert 4 <= len(world.asks) <= 6, "an idle minute each, and a pause of 10, 20, 40, … s"
    assert "stood idle although jobs wait" in world.controller.words
    while world.living:
        world.turn(5.0)
    before = len(world.asks)
    world.waiting[2] = 1
    world.turn(1.0)
    assert len(world.asks) == before + 1, "a new job is asked for without that pause"


def test_slurm_without_its_controller_keeps_what_runs() -> None:
    world = World(Limits(2, GPUS, idle_s=30.0, whole=False), room=2)
    world.waiting[1] = 4
    for _ in range(3):
        world.turn()
    world.waiting[2] = 4
    for _ in range(20):
        world.turn(5.0, silent=True)
    assert world.placed.keys() == {1}
    assert world.controller.unseen_words == "no answer"
    world.turn()
    world.turn()
    assert world.placed.keys() == {1, 2}


def test_one_of_several_nodes_dies_and_the_others_go_on() -> None:
    controller = Controller(Limits(2, GPUS))
    (ask,) = controller.step(0.0, Wanted({1: 8}, {}))
    assert isinstance(ask, Ask)
    controller.asked(ask.ticket, 7, 0.0)
    job = SlurmJob(7, "p", ("RUNNING",), nodes=("n0", "n1"), node_count=2)
    controller.see([job], 1.0)
    controller.step(1.0, Wanted({1: 8}, {}))
    controller.see([replace(job, nodes=("n0",))], 2.0)
    assert Gone("n1", "Slurm took it out of job 7", 7, sure=False) in controller.step(2.0, Wanted({1: 8}, {}))


def test_an_old_node_of_the_same_name_is_not_taken_for_the_new_one() -> None:
    controller = Controller(Limits(1, GPUS, idle_s=5.0))
    controller.see([SlurmJob(8, "p", ("RUNNING",), nodes=("n0",))], 0.0)
    controller.step(0.0, Wanted({}, {"n0": Use(0, {1: 4}, engine_job="7")}))
    assert not controller.pilots[0].joined
    controller.step(1.0, Wanted({}, {"n0": Use(0, {1: 4}, engine_job="8")}))
    assert controller.pilots[0].joined


def test_a_node_that_came_back_with_another_allocation_is_not_gone() -> None:
    controller = Controller(Limits(2, GPUS))
    controller.see([SlurmJob(7, "p", ("RUNNING",), nodes=("n0", "n1"), node_count=2)], 0.0)
    ended = SlurmJob(7, "p", ("PREEMPTED",), nodes=("n0", "n1"), node_count=2)
    controller.see([ended, SlurmJob(8, "p", ("RUNNING",), nodes=("n0",))], 1.0)
    actions = controller.step(1.0, Wanted({}, {"n0": Use(4, engine_job="8"), "n1": Use(4, engine_job="7")}))
    assert actions == [Gone("n1", "job 7 of Slurm was preempted by Slurm", 7)]


def test_one_that_has_just_joined_is_not_idle_yet() -> None:
    controller = Controller(Limits(1, GPUS, idle_s=5.0))
    controller.adopt(SlurmJob(7, "us", ("RUNNING",), nodes=("n7",)), 0.0)
    controller.see([SlurmJob(7, "us", ("RUNNING",), nodes=("n7",))], 0.0)
    controller.step(0.0, Wanted({}, {}))
    joined = Wanted({}, {"n7": Use(GPUS, engine_job="7")})
    assert controller.step(100.0, joined) == []
    assert controller.step(104.0, joined) == []
    assert [type(action) for action in controller.step(105.0, joined)] == [Drain]


def test_the_end_gives_back_what_is_idle() -> None:
    controller = Controller(Limits(3, GPUS))
    controller.see(
        [
            SlurmJob(7, "p", ("RUNNING",), nodes=("n0",)),
            SlurmJob(8, "p", ("RUNNING",), nodes=("n1",)),
            SlurmJob(9, "p", ("PENDING",)),
        ],
        0.0,
    )
    wanted = Wanted({}, {"n0": Use(0, {1: 4}), "n1": Use(4)})
    assert controller.close(wanted) == [End(8, "the scheduler ends"), End(9, "the scheduler ends")]


def grants_one(controller: Controller, job: int, wanted: Wanted, *, limit_s: float, now_s: float = 0.0) -> SlurmJob:
    """One is asked for, and runs."""
    (ask,) = [action for action in controller.step(now_s, wanted) if isinstance(action, Ask)]
    controller.asked(ask.ticket, job, now_s)
    nodes, end_s = (f"n{job}",), now_s + limit_s
    running = SlurmJob(job, "p", ("RUNNING",), nodes=nodes, end_s=end_s, limit_s=limit_s)
    controller.see([running], now_s)
    return running


def test_who_can_not_be_moved_is_no_reason_to_ask_where_a_node_lasts() -> None:
    controller = Controller(Limits(3, GPUS, life_s=7200.0))
    there = {"n0": Use(4, engine_job="7", until_s=4000.0), "n1": Use(4, engine_job="7", until_s=9000.0)}
    assert controller.step(0.0, Wanted({1: 4, 2: 4}, there, {2: 5000.0})) == [], "the other one takes what ends"
    (ask,) = controller.step(0.0, Wanted({1: 4, 2: 4, 3: 4}, there, {2: 5000.0, 3: 5000.0}))
    assert isinstance(ask, Ask)


def test_nothing_is_asked_for_that_does_not_last_either() -> None:
    controller = Controller(Limits(3, GPUS, life_s=3600.0))
    for_s = {1: 3600.0 - STARTS_S + 0.1}
    assert controller.lasts_s == 3600.0
    assert controller.step(0.0, Wanted({1: 4}, {}, for_s)) == []
    assert controller.step(0.0, Wanted({1: 4, 2: 4}, {}, for_s)) == [Ask(1, 1)], "for the other one"
    assert controller.step(0.0, Wanted({1: 4, 2: 4, 3: 4}, {}, {1: 4000.0, 3: 3000.0})) == [Ask(2, 1)]


def test_how_long_they_last_is_what_slurm_says_of_its_own_requests() -> None:
    controller = Controller(Limits(2, GPUS))
    assert controller.lasts_s is None
    controller.see([SlurmJob(5, "p", ("RUNNING",), nodes=("n5",), end_s=900.0, limit_s=900.0)], 0.0)
    assert controller.lasts_s is None, "of a scheduler before this one, which may have asked for less"
    long = Wanted({1: 4}, {}, {1: 5000.0})
    grants_one(controller, 7, long, limit_s=1800.0)
    assert controller.lasts_s == 1800.0
    assert controller.step(10.0, long) == []
    assert Controller(Limits(0, GPUS)).lasts_s is None


def test_an_idle_one_that_is_too_short_makes_room_for_one_that_lasts() -> None:
    controller = Controller(Limits(1, GPUS, life_s=3600.0, idle_s=600.0))
    running = grants_one(controller, 7, Wanted({1: 4}, {}), limit_s=3600.0)
    busy = Use(0, {1: 4}, engine_job="7", until_s=running.end_s)
    stays = Wanted({2: 4}, {"n7": busy}, {2: 3000.0})
    assert controller.step(1000.0, stays) == [], "a job runs there"
    idle = replace(stays, nodes={"n7": replace(busy, free=4, jobs={})})
    why = "a job that can't be moved needs an allocation that lasts longer"
    assert controller.step(1001.0, idle) == [Drain("n7", why)], "nothing starts there any more"
    assert controller.step(1002.0, replace(idle, nodes={"n7": replace(busy, jobs={})})) == [End(7, why), Ask(2, 1)]


def test_who_ends_with_its_node_needs_no_other_one() -> None:
    for stay, asks in (({1}, 0), (set[int](), 1)):
        controller = Controller(Limits(1, GPUS, life_s=3600.0))
        running = grants_one(controller, 7, Wanted({1: 4}, {}), limit_s=3600.0)
        use = Use(0, {1: 4}, engine_job="7", until_s=running.end_s, stay=stay)
        found = [
            action for at_s in (100.0, 3000.0, 3300.0) for action in controller.step(at_s, Wanted({}, {"n7": use}))
        ]
        assert sum(isinstance(action, Ask) for action in found) == asks


def test_what_became_of_the_last_requests_is_said_in_a_sentence() -> None:
    controller, wanted = Controller(Limits(1, GPUS)), Wanted({1: 1}, {})
    assert controller.coming_words == ""
    (ask,) = controller.step(0.0, wanted)
    assert isinstance(ask, Ask)
    controller.refused(ask.ticket, "sbatch: error: no", 0.0)
    assert controller.coming_words == "No pilot came of the last request: sbatch: error: no."
    controller.unseen("no answer within 30 s")
    assert controller.coming_words == "Slurm can't be asked for a pilot now: no answer within 30 s."
    controller.see([SlurmJob(7, "p", ("PENDING",), "Resources")], 20.0)
    assert controller.coming_words == "A pilot, job 7 of Slurm, waits there (Resources)."
    controller.see([SlurmJob(7, "p", ("RUNNING",), nodes=("n0",))], 30.0)
    assert controller.coming_words == "A pilot, job 7 of Slurm, has begun, and its nodes have not joined yet."
    controller.step(31.0, Wanted({}, {"n0": Use(4, engine_job="7")}))
    assert controller.coming_words == ""
