"""Which jobs of an array that is throttled a policy is shown, while some of them have been given GPUs."""

from __future__ import annotations

import pytest

from gpuloom.live.trial import rehearsal
from gpuloom.live.trial.rehearsal import Rehearsal
from gpuloom.sharing.start import Ability


@pytest.mark.parametrize(("given", "found", "kept"), [((), {1, 2}, {}), ((1,), {2}, {3: "array_throttle"})])
def test_a_throttled_array_beside_what_was_given(
    given: tuple[int, ...], found: set[int], kept: dict[int, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rehearsal, "Ability", lambda *_: Ability(False, False, "not here"))
    live = Rehearsal("fifo", models=["V100"] * 4)
    live.submit({"gpus": 1, "array": "0-4%2", "hold": True})
    live.service.release([1, 2, 3, 4, 5])  # and the scheduler has not looked yet
    planning = live.scheduler.planning
    for job in given:
        planning.claims.give(job, (("here", (job,)),))
    eligible, reasons, _ = planning.candidates.first(live.now_s)
    assert not planning.candidates.sees_all
    assert (eligible, {job: reason.code for job, reason in reasons.items()}) == (found, kept)


def test_why_held_jobs_wait() -> None:
    """Before anything else it is told that somebody holds it."""
    live = Rehearsal("fifo", models=["V100"])
    first = live.submit({"gpus": 1})
    live.submit({"gpus": 1, "hold": True})
    live.submit({"gpus": 1, "hold": True, "after": [first[0]]})
    live.turn()
    _, reasons, _ = live.scheduler.planning.candidates.eligible(live.now_s)
    assert {job: reason.code for job, reason in reasons.items()} == {2: "held", 3: "held"}
