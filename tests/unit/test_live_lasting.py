"""Nodes whose time with us ends, and jobs that can't be moved: they start only where they will have ended before."""

from __future__ import annotations

import random
from typing import Any

import pytest

from builders import POLICIES
from fake_node import FakeMachine
from gpuloom.core.job import NodeState, Phase
from gpuloom.live.pilot_nodes import wanted_of
from gpuloom.live.planning.lasting import SLACK_S, usable_s
from gpuloom.live.planning.scene import Coming
from gpuloom.slurm.pilots import LEAVES_S
from rehearsed_nodes import Cluster
from tiers import slow

HOUR = 3600.0
STAYS: dict[str, Any] = {"on_preempt": "never", "time_limit": 3 * HOUR, "gpus": 4}


class Ending(Cluster):
    """A head without GPUs to give away; each node is ours for so many hours more (None: for good)."""

    def __init__(self, policy: str = "fifo", **hours: float | None) -> None:
        super().__init__(policy=policy)
        self.tell(lambda: self.service.set_node("here", NodeState.CORDONED))
        for name, more in hours.items():
            self.comes(name, more)

    def comes(self, name: str, hours: float | None) -> None:
        if name not in self.machines:
            self.machines[name] = FakeMachine(name)
        until_s = None if hours is None else self.now_s + hours * HOUR
        self.join(name, until_s=until_s, engine_job="7")

    def why(self, job: int) -> Any:
        return self.service.job(job)["waiting"]

    def ends(self, job: int) -> None:
        attempt = self.scheduler.book.attempts[job]
        for run, (node, _) in zip(attempt.runs, attempt.allocation, strict=True):
            self.machines[node].end(run, 0)
        self.turn()


def test_it_waits_for_a_node_that_lasts_and_says_so() -> None:
    it = Ending(a=1.2)
    (job,) = it.submit(STAYS)
    why = it.why(job)
    assert why["code"] == "nodes_end_too_soon"
    left_s = 1.2 * HOUR - LEAVES_S
    assert why["numbers"] == {"needs_s": 3 * HOUR, "left_s": left_s, "nodes_too_short": 1, "nodes_lasting": 0}
    assert why["text"] == (
        "It can't be moved (on_preempt: never) and may run for 3h 00m (its time limit); node a is ours for 1h 10m more."
    )
    (other,) = it.submit({"gpus": 4, "time_limit": 3 * HOUR})
    assert it.where(other) == ["a:0,1,2,3"], "it takes nothing from one that can be moved"
    it.later(600.0)
    assert it.why(job)["numbers"]["left_s"] == left_s - 600.0
    assert "1 of 1" not in str(it.service.why(job, forecast=True)["text"])
    said = it.service.why(job, forecast=True)["sentences"]
    assert any("no node that is there is ours for long enough" in one for one in said), said
    it.comes("b", 8.0)
    assert it.where(job) == ["b:0,1,2,3"]


@pytest.mark.parametrize("policy", [one for one in POLICIES if one != "rl"])  # that may wait although there is room
def test_each_gets_a_node_that_does_for_it(policy: str) -> None:
    """Whoever comes first: one that can be moved has the node that ends, so that the other has the one that lasts."""
    for first, second in ((STAYS, {"gpus": 4, "estimate": 3 * HOUR}), ({"gpus": 4, "estimate": 3 * HOUR}, STAYS)):
        it = Ending(policy, a=1.0, b=8.0)
        jobs = it.submit(first, second)
        it.later(120.0)
        stays = jobs[0] if first is STAYS else jobs[1]
        assert sorted(it.where(*jobs)) == ["a:0,1,2,3", "b:0,1,2,3"]
        assert it.where(stays) == ["b:0,1,2,3"]


def test_a_gang_takes_nodes_that_all_last() -> None:
    it = Ending(a=1.0, b=8.0, c=None)
    (gang,) = it.submit({**STAYS, "gpus": 8})
    attempt = it.scheduler.book.attempts[gang]
    assert sorted(node for node, _ in attempt.allocation) == ["b", "c"]


def test_where_nodes_that_last_are_full_it_goes_next_and_blocks_nobody() -> None:
    it = Ending(b=8.0)
    (first,) = it.submit({"gpus": 4})
    it.comes("a", 1.0)
    stays, small = it.submit(STAYS, {"gpus": 1})
    assert it.where(small) == ["a:0"]
    why = it.why(stays)
    assert (why["code"], why["numbers"]["nodes_lasting"]) == ("nodes_end_too_soon", 1)
    assert why["text"].endswith("58m 00s more. 1 node lasts long enough, without room for it now.")
    (later,) = it.submit({"gpus": 4})
    it.ends(first)
    assert it.where(stays, later) == ["b:0,1,2,3", ""]


def test_time_takes_nodes_away_from_who_waits() -> None:
    it = Ending(a=4.0)
    (first,) = it.submit({"gpus": 4})
    (job,) = it.submit(STAYS)
    assert it.why(job)["code"] != "nodes_end_too_soon"
    it.later(HOUR - LEAVES_S - 10.0)
    assert it.why(job)["code"] != "nodes_end_too_soon"
    it.later(20.0)
    assert it.why(job)["code"] == "nodes_end_too_soon"
    it.ends(first)
    assert it.states(job) == ["queued"]


def test_what_it_was_given_is_taken_back_when_it_comes_too_late() -> None:
    it = Ending("srtf", a=3.2)
    (first,) = it.submit({"gpus": 4, "estimate": 30 * HOUR, "grace": 900})
    it.machines["a"].obedient = False
    (job,) = it.submit({**STAYS, "estimate": HOUR})
    it.later(120.0)
    assert it.states(first, job) == ["stopping", "queued"]
    assert job in it.scheduler.planning.claims.grants
    it.later(900.0)
    assert job not in it.scheduler.planning.claims.grants
    assert it.why(job)["code"] == "nodes_end_too_soon"


def test_the_time_limit_counts_before_the_estimate_and_a_guess_is_bounded_by_what_is_asked_for() -> None:
    it = Ending(a=2.0)
    limited, given, unknown = it.submit(
        {**STAYS, "gpus": 1, "estimate": 60.0},
        {"gpus": 1, "on_preempt": "never", "estimate": 5 * HOUR},
        {"gpus": 1, "on_preempt": "never"},
    )
    assert "may run for 3h 00m (its time limit)" in it.why(limited)["text"]
    assert "needs 5h 00m (its estimate)" in it.why(given)["text"]
    assert it.where(unknown) == ["a:0"], "an hour is reckoned with"
    it.later(HOUR)
    (second,) = it.submit({"gpus": 1, "on_preempt": "never"})
    assert "is reckoned to run for 1h 00m, as nothing is known of it" in it.why(second)["text"]
    it.tell(lambda: it.scheduler.planning.comes(Coming(0.5 * HOUR)))
    assert it.where(second) == ["a:1"], "no new one lasts an hour: it would wait for ever"
    assert usable_s(0.5 * HOUR) < 0.5 * HOUR - LEAVES_S


def test_what_would_be_right_is_said() -> None:
    it = Ending(a=1.0)
    (job,) = it.submit(STAYS)
    it.tell(lambda: it.scheduler.planning.comes(Coming(HOUR)))
    why = it.why(job)
    assert why["numbers"]["new_nodes_last_s"] == HOUR
    assert why["text"].endswith(
        "A new pilot lasts 1h 00m, which is too short as well: start the scheduler with `--hours 4`, or give the job a "
        "shorter time limit."
    )
    it.tell(lambda: it.scheduler.planning.comes(Coming(8 * HOUR, "A pilot waits.")))
    assert it.why(job)["text"].endswith("58m 00s more. A new pilot lasts long enough. A pilot waits.")


def test_it_is_said_before_there_is_any_node_too() -> None:
    it = Ending()
    (job,) = it.submit({**STAYS, "gpus": 1})
    it.tell(lambda: it.scheduler.planning.comes(Coming(HOUR)))
    why = it.why(job)
    assert (why["code"], why["numbers"]) == ("nodes_end_too_soon", {"needs_s": 3 * HOUR, "new_nodes_last_s": HOUR})
    assert "(its time limit). A new pilot lasts 1h 00m, which is too short: start" in why["text"]
    it.tell(lambda: it.scheduler.planning.comes(Coming(8 * HOUR)))
    assert it.why(job)["code"] == "no_gpu_in_service"


def test_pilots_are_told_how_long_it_needs_them() -> None:
    it = Ending(a=1.0)
    stays, moves = it.submit(STAYS, {"gpus": 4})
    (own,) = it.submit({"gpus": 4, "on_preempt": "never", "time_limit": 60.0})
    wanted = wanted_of(it.scheduler, ())
    assert wanted.for_s == {stays: 3 * HOUR + LEAVES_S + SLACK_S, own: 60.0 + LEAVES_S + SLACK_S}
    assert wanted.waiting == {stays: 4, own: 4}
    it.ends(moves)
    assert wanted_of(it.scheduler, ()).nodes["a"].stay == {own}


def test_nothing_is_kept_from_lower_priorities_where_it_can_not_start() -> None:
    it = Ending(a=1.0)
    high, low = it.submit({**STAYS, "priority": 5}, {"gpus": 4, "estimate": 20 * HOUR})
    assert it.states(high, low) == ["queued", "running"]
    it = Ending(b=8.0)
    (first,) = it.submit({"gpus": 4, "estimate": HOUR})
    it.comes("a", 2.0)
    high, low = it.submit({**STAYS, "priority": 5}, {"gpus": 1, "estimate": 20 * HOUR})
    assert it.where(first, high) == ["b:0,1,2,3", ""]
    it.ends(first)
    assert it.where(high) == ["b:0,1,2,3"]
    assert it.states(low) in (["running"], ["queued"])


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", [0, *slow(1, 2)])
def test_under_any_policy_nobody_is_cut_off_and_all_end(policy: str, seed: int) -> None:
    rng = random.Random(f"{policy} {seed}")
    it = Ending(policy, a=rng.uniform(0.5, 4.0), b=rng.uniform(0.5, 4.0), c=rng.uniform(6.0, 12.0))
    jobs = it.submit(
        *(
            {
                "gpus": rng.randint(1, 4),
                "estimate": rng.uniform(0.2, 5.0) * HOUR,
                "on_preempt": rng.choice(["never", "checkpoint"]),
                "priority": rng.choice([0, 0, 1]),
            }
            for _ in range(rng.randint(3, 9))
        )
    )
    book = it.scheduler.book
    began: set[tuple[int, int]] = set()
    for turn in range(60):
        for number, attempt in book.attempts.items():
            job = book.jobs[number]
            if (number, attempt.number) in began or job.spec.on_preempt.value != "never":
                continue
            began.add((number, attempt.number))
            assert job.spec.estimate is not None
            for node, _ in attempt.allocation:
                until_s = book.nodes[node].until_s
                assert until_s is None or attempt.started_s + job.spec.estimate < until_s - LEAVES_S
        running = [number for number in jobs if book.jobs[number].phase is Phase.RUNNING]
        if running and rng.random() < 0.5:
            it.ends(rng.choice(running))
        it.later(rng.choice([60.0, 600.0, 1800.0]))
        for name, node in list(book.nodes.items()):
            if node.until_s is not None and node.until_s < it.now_s and node.state is NodeState.UP:
                it.lose(name)
                it.comes(f"{name}{turn}", 12.0)
    while running := [number for number in jobs if book.jobs[number].phase is Phase.RUNNING]:
        it.ends(running[0])
        it.later(120.0)
    assert it.states(*jobs) == ["finished"] * len(jobs)
