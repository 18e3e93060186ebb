"""The state machine of what jobs have of GPUs: its whole table, its stories, and who of those that wait is next."""

from __future__ import annotations

import pytest

from claimed import PHASE
from gpuloom.core.errors import InvalidTransition
from gpuloom.core.job import TRANSITIONS, Allocation, Attempt, Phase
from gpuloom.live.planning.claims import KEEP, ON_DISK, Claims, Do, State, Step

HERE: Allocation = (("host", (0,)),)
THERE: Allocation = (("host", (1,)),)
BOTH: Allocation = (("host", (0, 1)),)

GRID = """
                  without  written     asked      doubtful  starting  running   freezing  frozen  thawing    refreezing stopping
make_way          =        =write_stop =write_stop =        =write_stop =write_stop =write_stop = refreezing =          =
make_way_frozen   =        =write_stop =write_stop =        =write_stop freezing/freeze = =     refreezing   =          =
go_on             -        -           -          -         -         -         -         thawing/thaw -     -          -
attempt.starting  written  -           -          -         -         -         -         -       -          -          -
attempt.running   -        running     running    -         running   -         -         -       -          -          -
attempt.frozen    -        -           -          -         -         frozen    frozen    -       -          -          -
attempt.thawed    -        -           -          -         -         -         -         running running    freezing/freeze -
attempt.stopping  -        stopping/never_began doubtful/stop doubtful/stop stopping/stop stopping/stop stopping/stop stopping/stop stopping/stop stopping/stop stopping/stop
attempt.ended     -        without     without    without   without   without   without   without without    without    without
ask               -        asked/ask_for_it asked/ask_for_it doubtful/look_for_it - - - -       -          -          -
taken             -        starting    starting   stopping  =         =         =         =       =          =          =
unknown           -        =           =          -         written   -         -         -       -          -          -
"""  # noqa: E501 - a table
"""What is expected: the state after the step (=: the same) and the instruction; -: it can't come."""

PATHS: dict[State, tuple[Step, ...]] = {State.WITHOUT: (), State.WRITTEN: (Step.STARTING,)}
PATHS[State.ASKED] = (*PATHS[State.WRITTEN], Step.ASK)
PATHS[State.DOUBTFUL] = (*PATHS[State.ASKED], Step.STOPPING)
PATHS[State.STARTING] = (*PATHS[State.ASKED], Step.TAKEN)
PATHS[State.RUNNING] = (*PATHS[State.STARTING], Step.RUNNING)
PATHS[State.FREEZING] = (*PATHS[State.RUNNING], Step.MAKE_WAY_FROZEN)
PATHS[State.FROZEN] = (*PATHS[State.FREEZING], Step.FROZEN)
PATHS[State.THAWING] = (*PATHS[State.FROZEN], Step.GO_ON)
PATHS[State.REFREEZING] = (*PATHS[State.THAWING], Step.MAKE_WAY)
PATHS[State.STOPPING] = (*PATHS[State.RUNNING], Step.STOPPING)


def cells() -> list[tuple[Step, State, str]]:
    head, *rows = [line.split() for line in GRID.strip().splitlines()]
    return [(Step(step), State(state), cell) for step, *row in rows for state, cell in zip(head, row, strict=True)]


def test_the_table_of_this_test_names_every_step_and_state() -> None:
    assert {(step, state) for step, state, _ in cells()} == {(step, state) for step in Step for state in State}


def brought(claims: Claims, job: int, state: State, allocation: Allocation = HERE) -> Claims:
    """A job on its way to this state, by steps that are legal."""
    for step in PATHS[state]:
        if step in (Step.STARTING, Step.GO_ON):
            claims.give(job, allocation)
        claims.on(step, job, now_s=5.0)
    assert claims.state(job) is state
    return claims


@pytest.mark.parametrize(("step", "state", "cell"), cells(), ids=lambda value: str(value))
def test_every_step_in_every_state(step: Step, state: State, cell: str) -> None:
    claims = brought(Claims(), 7, state)
    given = step in (Step.STARTING, Step.GO_ON)
    if given:
        claims.give(7, HERE)
    if cell == "-":
        with pytest.raises(InvalidTransition) as error:
            claims.on(step, 7, now_s=9.0)
        assert claims.state(7) is state
        assert (7 in claims.grants) == given
        text = str(error.value)
        assert text.startswith(f"{step} can't come to job 7; it must be ")
        assert ("job 7 has no run" if state is State.WITHOUT else f"job 7 is {state} on host:0") in text
        assert all(part in text for part in PATHS[state] if part is not Step.TAKEN)
        return
    after, _, do = cell.replace("=", f"{state}/" if cell != "=" else state).partition("/")
    assert claims.on(step, 7, now_s=9.0) == (Do(do) if do else None)
    assert claims.state(7) is State(after)
    assert 7 not in claims.grants


@pytest.mark.parametrize("state", list(State))
def test_what_the_records_allow_is_legal_and_leads_to_the_same_phase(state: State) -> None:
    """The steps that are on disk come after the fact: whatever the records have taken must be taken here."""
    phase = PHASE[state] or Phase.QUEUED
    for step in ON_DISK:
        before, after = TRANSITIONS[step]
        if phase not in before:
            continue
        claims = brought(Claims(), 1, state)
        claims.on(step, 1, allocation=HERE, now_s=0.0)
        assert (PHASE[claims.state(1)] or Phase.QUEUED) in after


@pytest.mark.parametrize("phase", [Phase.STARTING, Phase.RUNNING, Phase.FROZEN, Phase.STOPPING])
def test_what_is_found_in_the_records_is_taken_up(phase: Phase) -> None:
    claims = Claims.of([Attempt(3, 1, phase, HERE, 0.0, 0.0), Attempt(4, 1, None, HERE, 0.0, 0.0)])
    assert PHASE[claims.state(3)] is phase
    assert claims.where(3) == HERE
    assert claims.state(4) is State.WITHOUT
    assert "found" in claims.story(3)


# -- GPUs that are given -----------------------------------------------------------------------------------------------


def test_what_is_given_is_taken_by_the_start() -> None:
    claims = Claims()
    claims.give(1, BOTH)
    claims.set_rate(1, 0.5)
    assert claims.target(1) == BOTH
    claims.on(Step.STARTING, 1)
    assert (claims.where(1), dict(claims.grants), claims.target(1)) == (BOTH, {}, None)
    assert (claims.take_rate(1), claims.take_rate(1)) == (0.5, 1.0)


@pytest.mark.parametrize("step", [Step.STARTING, Step.GO_ON])
def test_who_was_given_nothing_can_not_take_it(step: Step) -> None:
    claims = brought(Claims(), 1, State.WITHOUT if step is Step.STARTING else State.FROZEN)
    with pytest.raises(InvalidTransition, match="it was given no GPUs: job 1"):
        claims.on(step, 1)


def test_no_gpus_at_all_can_not_be_given() -> None:
    with pytest.raises(InvalidTransition, match="no GPUs at all"):
        Claims().give(1, ())


def test_what_is_taken_back_is_gone_with_its_rate() -> None:
    claims = Claims()
    claims.give(1, HERE)
    claims.set_rate(1, 0.5)
    assert (claims.take_back(1), claims.take_back(1)) == (True, False)
    claims.give(1, HERE)
    claims.on(Step.STARTING, 1)
    assert claims.take_rate(1) == 1.0
    claims.give(2, HERE)
    claims.set_rate(2, 0.5)
    claims.forget_rates()
    claims.take_all_back()
    assert not claims.grants
    assert claims.take_rate(2) == 1.0


def test_a_rate_ends_with_the_run_that_never_asked_for_it() -> None:
    claims = Claims()
    claims.give(1, HERE)
    claims.set_rate(1, 0.5)
    claims.on(Step.STARTING, 1)
    claims.on(Step.ENDED, 1)
    assert claims.take_rate(1) == 1.0


def test_what_a_pass_that_failed_has_given_is_as_it_was_before() -> None:
    claims = Claims()
    for job in (3, 1, 2):
        claims.give(job, HERE)
    before = dict(claims.grants)
    claims.take_back(1)
    claims.give(4, THERE)
    claims.put_back(before)
    assert list(claims.grants) == [3, 1, 2]


def test_one_that_thaws_is_where_it_will_be() -> None:
    claims = brought(Claims(), 1, State.FROZEN)
    claims.give(1, THERE)
    claims.on(Step.GO_ON, 1)
    assert (claims.where(1), claims.target(1)) == (THERE, THERE)
    claims.on(Step.THAWED, 1)
    assert (claims.where(1), claims.target(1)) == (THERE, None)


def test_a_copy_stays_as_it_was() -> None:
    claims = brought(Claims(), 1, State.RUNNING)
    claims.give(2, HERE)
    twin = claims.copy()
    claims.on(Step.ENDED, 1)
    claims.take_back(2)
    assert (twin.state(1), dict(twin.grants)) == (State.RUNNING, {2: HERE})
    assert "attempt.running" in twin.story(1)


def test_who_is_slow_to_freeze_is_known_since_it_was_told() -> None:
    claims = brought(Claims(), 1, State.RUNNING)
    claims.on(Step.MAKE_WAY_FROZEN, 1, now_s=42.0)
    claims.on(Step.MAKE_WAY_FROZEN, 1, now_s=43.0)
    assert claims.freezing() == {1: 42.0}
    with pytest.raises(ValueError, match="at a time"):
        brought(Claims(), 1, State.RUNNING).on(Step.MAKE_WAY_FROZEN, 1)


def test_who_is_not_settled_with_the_executor_comes_in_the_order_of_the_starts() -> None:
    claims = Claims()
    for job, state in ((5, State.ASKED), (2, State.DOUBTFUL), (9, State.STARTING), (1, State.WRITTEN)):
        brought(claims, job, state)
    assert claims.untold() == [5, 2, 1]


def test_stories_go_back_so_far() -> None:
    claims = brought(Claims(), 1, State.RUNNING)
    for _ in range(KEEP):
        claims.give(2, HERE)
    assert claims.story(1).endswith("nothing is remembered")


# -- who is next -------------------------------------------------------------------------------------------------------


def ready(claims: Claims, **more: object) -> list[tuple[Do, int]]:
    named = {
        "in_service": {("host", 0), ("host", 1)},
        "queued": [job for job in claims.grants if claims.state(job) is State.WITHOUT],
        "blocked": (),
        "most": 1,
        "pair": None,
        "moves": (),
        "starts": 9,
    }
    return claims.ready(**{**named, **more})  # type: ignore[arg-type]


@pytest.mark.parametrize("state", [state for state in State if state not in (State.WITHOUT, State.FROZEN)])
def test_nobody_begins_where_somebody_is(state: State) -> None:
    claims = brought(Claims(), 1, state)
    claims.give(2, BOTH)
    assert ready(claims) == []
    claims.on(Step.ENDED, 1)
    assert ready(claims) == [(Do.WRITE_START, 2)]


@pytest.mark.parametrize(
    ("state", "joins"),
    [
        (State.WRITTEN, True),
        (State.RUNNING, True),
        (State.THAWING, True),
        (State.FREEZING, False),
        (State.REFREEZING, False),
        (State.STOPPING, False),
        (State.DOUBTFUL, False),
    ],
)
def test_nobody_joins_who_leaves(state: State, joins: bool) -> None:
    claims = brought(Claims(), 1, state)
    claims.give(2, HERE)
    assert ready(claims, most=2) == ([(Do.WRITE_START, 2)] if joins else [])
    claims.give(1, THERE)  # it is to move
    assert ready(claims, most=2) == []


def test_a_frozen_one_holds_nothing_and_goes_on_once_its_gpus_are_free() -> None:
    claims = brought(Claims(), 1, State.FROZEN)
    claims.give(2, HERE)
    assert ready(claims) == [(Do.WRITE_START, 2)]
    claims.on(Step.STARTING, 2)
    claims.give(1, HERE)
    assert ready(claims) == []
    claims.on(Step.ENDED, 2)
    assert ready(claims) == [(Do.GO_ON, 1)]


def test_a_frozen_one_that_can_not_move_ends() -> None:
    claims = brought(Claims(), 1, State.FROZEN)
    claims.give(1, THERE)
    assert ready(claims) == [(Do.WRITE_STOP, 1)]
    assert ready(claims, moves={"host"}) == [(Do.GO_ON, 1)]
    claims.give(2, THERE)
    assert ready(claims) == [(Do.WRITE_STOP, 1), (Do.WRITE_START, 2)], "it takes no GPU from the next one"
    assert ready(claims, moves={"host"}) == [(Do.GO_ON, 1)]


def test_a_frozen_one_goes_on_in_other_slots_of_its_node_and_on_no_other_node() -> None:
    elsewhere = (("other", (0,)),)
    service = {("host", 0), ("host", 1), ("other", 0)}
    claims = brought(Claims(), 1, State.FROZEN)
    claims.give(1, elsewhere)
    assert ready(claims, in_service=service, moves={"host", "other"}) == [(Do.WRITE_STOP, 1)]
    claims.give(1, THERE)
    assert ready(claims, in_service=service, moves={"other"}) == [(Do.WRITE_STOP, 1)]
    assert ready(claims, in_service=service, moves={"host"}) == [(Do.GO_ON, 1)]


def test_nothing_begins_on_a_node_that_can_not_be_talked_to() -> None:
    claims = Claims()
    claims.give(1, (("host", (0,)), ("other", (0,))))
    claims.give(2, THERE)
    service = {("host", 0), ("host", 1), ("other", 0)}
    assert ready(claims, in_service=service - {("other", 0)}) == [(Do.TAKE_BACK, 1), (Do.WRITE_START, 2)]
    assert ready(claims, in_service=service) == [(Do.WRITE_START, 1), (Do.WRITE_START, 2)]


def test_of_two_only_the_first_begins() -> None:
    claims = Claims()
    claims.give(2, HERE)
    claims.give(1, BOTH)
    assert ready(claims) == [(Do.WRITE_START, 2)]
    assert ready(claims, most=2) == [(Do.WRITE_START, 2), (Do.WRITE_START, 1)]
    frozen = brought(Claims(), 1, State.FROZEN)
    frozen.give(1, HERE)
    frozen.give(2, HERE)
    assert ready(frozen) == [(Do.GO_ON, 1)]
    assert ready(frozen, most=2) == [(Do.GO_ON, 1), (Do.WRITE_START, 2)]


def test_so_many_begin_at_once() -> None:
    claims = brought(Claims(), 3, State.FROZEN, THERE)
    claims.give(1, HERE)
    claims.give(2, THERE)
    claims.give(3, THERE)
    assert ready(claims, starts=1) == [(Do.WRITE_START, 1), (Do.GO_ON, 3)]
    assert ready(claims, starts=0) == [(Do.GO_ON, 3)]


def test_what_can_not_be_had_any_more_is_taken_back() -> None:
    claims = Claims()
    claims.give(1, BOTH)
    claims.give(2, HERE)
    assert ready(claims, in_service={("host", 0)}) == [(Do.TAKE_BACK, 1), (Do.WRITE_START, 2)]
    assert ready(claims, blocked=[1]) == [(Do.TAKE_BACK, 1), (Do.WRITE_START, 2)]


def test_who_is_held_waits() -> None:
    claims = Claims()
    claims.give(1, HERE)
    assert ready(claims, queued=()) == []


def test_only_pairs_share() -> None:
    claims = brought(Claims(), 1, State.RUNNING)
    claims.give(2, HERE)
    asked: list[tuple[int, list[int]]] = []
    assert ready(claims, most=2, pair=lambda job, others: bool(asked.append((job, list(others))))) == []
    assert asked == [(2, [1])]
    assert ready(claims, most=2, pair=lambda job, others: True) == [(Do.WRITE_START, 2)]
    claims.give(2, BOTH)
    assert ready(claims, most=2, pair=lambda job, others: True) == []
    claims.give(2, THERE)
    assert ready(claims, most=2, pair=lambda job, others: False) == [(Do.WRITE_START, 2)]
