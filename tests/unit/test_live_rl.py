"""`rl` on a live scheduler: rewarded by the progress that jobs report, to the number; groups by profiled ratios."""

from __future__ import annotations

from typing import Any

import pytest

from gpuloom.core.job import gpus_in
from gpuloom.core.spec import Spec
from gpuloom.core.usage import RunUsage
from gpuloom.live.dispatch.last_words import Words
from gpuloom.live.planning.estimates import like_of
from gpuloom.live.planning.roster import alike
from gpuloom.live.planning.size_speeds import size_speeds
from gpuloom.live.trial.rehearsal import Rehearsal
from gpuloom.live.views.policy_answers import RlStateView

BY_HAND = "rl:epsilon_start=0;epsilon_end=0;thrift=1;fragmentation=0;initial=zero;alpha=0.2;gamma=0.1"
"""Cost is the share of the GPUs, and the table begins at 0."""


TWICE = (("vgg19", "vgg19"), (1, 2))


class Learning:
    """A scheduler whose jobs report, as they end, how fast they were."""

    def __init__(self, policy: str = BY_HAND, *, gpus: int = 4) -> None:
        self.live = Rehearsal(policy, models=["V100"] * gpus)

    def run(self, it_per_s: float | None, *, gpus: int = 2, name: str = "train", **more: Any) -> int:
        """A job that is submitted, runs for 100 s and ends."""
        (job,) = self.live.submit({"gpus": gpus, "name": name, "estimate": "100s", **more})
        self.end(job, it_per_s)
        return job

    def end(self, job: int, it_per_s: float | None) -> None:
        live = self.live
        live.later(100.0)
        run = live.scheduler.book.attempts[job].run
        told = {"step": 1 + 100 * it_per_s, "first_step": 1, "first_s": 1.0, "at_s": 101.0} if it_per_s else {}
        live.scheduler.intake.words[run] = Words(told)
        live.end(f"{job}.1")

    def reports(self, job: int, it_per_s: float, *, over_s: float) -> None:
        """What the monitor saw of a job that runs."""
        told = {"step": 1 + over_s * it_per_s, "first_step": 1, "first_s": 1.0, "at_s": 1.0 + over_s}
        run = self.live.scheduler.book.attempts[job].run
        self.live.scheduler.intake.sampled("here", {run: RunUsage(run, progress=told)}, [], [])

    @property
    def state(self) -> RlStateView:
        found = self.live.service.policy(state=True)["state"]
        assert found is not None
        assert found["kind"] == "rl"
        return found

    def value(self, placement: str) -> float | None:
        """Of jobs of which no ratio is known."""
        return next(e["value"] for e in self.state["groups"][-1]["entries"] if e["placement"] == placement)


def test_the_update_by_hand() -> None:
    """Jobs one after the other, of 2 of 4 GPUs: cost 0.5. Q += 0.2 · (R + 0.1 · V - Q), V the best value of the state
    of the job that comes next."""
    told = Learning()
    told.run(10.0)  # process 10 / 10, R = 1 / 0.5 = 2; the next job's value is 0 yet
    told.run(5.0)
    assert told.value("1x2") == pytest.approx(0.0 + 0.2 * (2.0 + 0.1 * 0.0 - 0.0), abs=1e-12) == 0.4
    told.run(20.0)  # the job before: process 5 / 10, R = 1, and V = 0.4 as this one came
    assert told.value("1x2") == pytest.approx(0.4 + 0.2 * (1.0 + 0.1 * 0.4 - 0.4)) == pytest.approx(0.528)
    told.run(10.0)  # the job before: the best ever, R = 2, V = 0.528
    assert told.value("1x2") == pytest.approx(0.528 + 0.2 * (2.0 + 0.1 * 0.528 - 0.528)) == pytest.approx(0.83296)
    assert told.state["updates"] == 3
    assert told.state["handled"] == 4


def test_jobs_that_overlap_are_learnt_from_as_they_end() -> None:
    told = Learning()
    first, second = told.live.submit(*[{"gpus": 2, "estimate": "100s", "name": "train"}] * 2)
    told.end(first, 8.0)  # the second was decided on since, with a value of 0
    assert told.value("1x2") == pytest.approx(0.2 * 2.0)
    told.end(second, 4.0)  # nobody came since: owed
    assert told.state["updates"] == 1
    told.run(8.0)
    assert told.value("1x2") == pytest.approx(0.4 + 0.2 * (1.0 + 0.1 * 0.4 - 0.4))


def test_a_job_that_runs_is_rewarded_once_at_the_first_scheduling_point_at_which_it_was_measured() -> None:
    """The update by hand, of jobs that go on running: cost 0.25."""
    told = Learning()
    live = told.live
    (first,) = live.submit({"gpus": 1, "name": "train", "estimate": "1h"})
    told.reports(first, 10.0, over_s=30.0)
    (second,) = live.submit({"gpus": 1, "name": "train", "estimate": "1h"})
    assert told.state["updates"] == 0, "30 s are less than `measure`"
    told.reports(first, 10.0, over_s=90.0)
    assert told.state["updates"] == 0, "a report is no scheduling point"
    (third,) = live.submit({"gpus": 1, "name": "train", "estimate": "1h"})
    assert told.value("1x1") == pytest.approx(0.2 * 4.0), "R = (10 / 10) / 0.25, and the second's value was 0"
    assert (told.state["updates"], told.state["rewarded"], told.state["mean_reward"]) == (1, 1, 4.0)
    # What it reports later, and as it ends, is not counted again, nor the second, which told nothing.
    told.reports(first, 20.0, over_s=200.0)
    told.end(first, 20.0)
    told.end(second, None)
    assert (told.state["updates"], told.value("1x1")) == (1, pytest.approx(0.8))
    # The third is measured half as fast as its best, and nobody was decided on since: it is learnt from once it is
    # known what the next job's state is worth.
    told.reports(third, 5.0, over_s=90.0)
    live.submit({"gpus": 1, "name": "train", "estimate": "1h"})
    assert (told.state["rewarded"], told.state["updates"]) == (2, 1)
    live.submit({"gpus": 1, "name": "train", "estimate": "1h"})
    assert told.state["updates"] == 2
    assert told.value("1x1") == pytest.approx(0.8 + 0.2 * (0.5 * 4.0 + 0.1 * 0.8 - 0.8))


@pytest.mark.parametrize("orderly", [True, False])
def test_a_job_that_was_rewarded_while_it_ran_is_not_rewarded_again_after_a_restart(orderly: bool) -> None:
    told = Learning()
    live = told.live
    (first,) = live.submit({"gpus": 1, "name": "train", "estimate": "1h"})
    told.reports(first, 10.0, over_s=90.0)
    live.submit({"gpus": 1, "name": "train", "estimate": "1h"})
    if not orderly:
        live.scheduler._save_memory(force=True)
    live.restart(orderly=orderly)
    told.reports(first, 10.0, over_s=190.0)
    live.submit({"gpus": 1, "name": "train", "estimate": "1h"})
    told.end(first, 10.0)
    assert (told.state["updates"], told.state["rewarded"]) == (1, 1)
    assert told.value("1x1") == pytest.approx(0.2 * 4.0)


def test_one_that_was_started_anew_is_not_measured_by_what_it_reported_before() -> None:
    told = Learning()
    live = told.live
    (first,) = live.submit({"gpus": 1, "name": "train", "estimate": "1h", "retries": 1})
    told.reports(first, 10.0, over_s=90.0)
    live.end(f"{first}.1", 1)
    live.later(60.0)
    assert live.scheduler.book.attempts[first].number == 2
    live.submit({"gpus": 1, "name": "train", "estimate": "1h"})
    live.submit({"gpus": 1, "name": "train", "estimate": "1h"})
    assert told.state["rewarded"] == 0


def test_other_jobs_are_no_measure() -> None:
    """A slow program does as well by its own best as a fast one by its own."""
    told = Learning()
    told.run(1000.0, name="fast")
    told.run(0.5, name="slow")
    told.run(1000.0, name="fast")
    told.run(1000.0, name="fast")
    values = [0.0]
    for following in (0.0, 0.4, 0.728):
        values.append(values[-1] + 0.2 * (2.0 + 0.1 * following - values[-1]))
    assert told.value("1x2") == pytest.approx(values[-1])


def test_where_nothing_is_reported_nothing_is_learnt_and_it_is_said() -> None:
    told = Learning()
    for _ in range(3):
        told.run(None)
    assert (told.state["updates"], told.state["tried"], told.state["handled"]) == (0, 0, 3)
    told.run(10.0)
    lacks = {lack["input"]: lack for lack in told.live.service.status()["policy_lacks"]}
    assert lacks["rates"]["jobs"] == 3
    assert (
        "3 of 4 jobs that ended reported no iterations per second: nothing is learnt from those"
        in lacks["rates"]["text"]
    )
    (waits,) = told.live.submit({"gpus": 4}, {"gpus": 4})[1:]
    assert any("iterations per second" in text for text in told.live.service.why(waits)["lacks"])


@pytest.mark.parametrize("orderly", [True, False])
def test_what_is_owed_survives_a_restart(orderly: bool) -> None:
    told = Learning()
    told.run(10.0)
    if not orderly:
        told.live.scheduler._save_memory(force=True)
    told.live.restart(orderly=orderly)
    told.run(10.0)
    told.run(10.0)
    assert told.value("1x2") == pytest.approx(0.4 + 0.2 * (2.0 + 0.1 * 0.4 - 0.4))


def test_groups_are_formed_by_profiles_and_anew_every_20_jobs() -> None:
    told = Learning("rl:groups=2;epsilon_start=0;epsilon_end=0")
    models = ("resnet18", "vgg19", "bert", "gpt2")
    for number in range(19):
        told.run(10.0, gpus=2, model=models[number % 4], name=models[number % 4])
    before = told.state
    assert before["regroups_in"] == 1
    told.run(10.0, gpus=2, model="gpt2", name="gpt2")
    after = told.state
    assert after["regroups_in"] == 20
    assert len(after["groups"]) == 3  # two, and jobs of which no ratio is known
    assert [group["ratio"] for group in after["groups"]] != [group["ratio"] for group in before["groups"]]
    assert after["updates"] == pytest.approx(sum(e["visits"] for g in after["groups"] for e in g["entries"]))
    assert "ratios" not in {lack["input"] for lack in told.live.service.status()["policy_lacks"]}
    told.live.submit({"gpus": 1})
    lacks = {lack["input"]: lack for lack in told.live.service.status()["policy_lacks"]}
    assert lacks["ratios"]["jobs"] == 1


def test_learning_finds_the_better_placement() -> None:
    """Two nodes of 2 GPUs: jobs of 2 GPUs go three times as fast on one node. It begins with what it can't know."""
    told = Learning("rl:epsilon_start=1;epsilon_end=0;epsilon_jobs=40;initial=zero;fragmentation=0")
    live = told.live
    live.gpus({})
    rewards: list[float] = []
    for _ in range(60):
        (job,) = live.submit({"gpus": 2, "name": "train", "estimate": "100s"})
        where = live.scheduler.book.attempts[job].allocation
        spread = len({index // 2 for _, indices in where for index in indices})
        rewards.append(1.0 if spread == 1 else 1 / 3)
        told.end(job, 9.0 if spread == 1 else 3.0)
    assert sum(rewards[-15:]) == 15


def test_runs_of_one_job_are_alike_but_for_numbers_of_options(monkeypatch: pytest.MonkeyPatch) -> None:
    live = Rehearsal("fifo", models=["V100"])
    same = live.submit(
        {"command": ["train", "--lr", "0.1"], "name": "a"}, {"command": ["train", "--lr", "0.2"], "name": "a"}
    )
    others = live.submit({"command": ["train", "--lr", "0.1"], "name": "b"}, {"command": ["test"], "name": "a"})
    names = [alike(live.jobs[job]) for job in (*same, *others)]
    assert names[0] == names[1]
    assert len(set(names)) == 3
    assert isinstance(live.jobs[same[0]].spec, Spec)


@pytest.mark.parametrize("policy", ["elastic-goodput", "rl:mode=greedy"])
def test_a_job_may_have_a_size_that_turns_out_to_be_slow(policy: str) -> None:
    """Two GPUs are slower than one, as others of its kind report while it has two: planning goes on."""
    live = Rehearsal(policy, models=["V100"] * 3)
    (job,) = live.submit({"elastic": "1-2", "name": "train", "estimate": "1h"})
    assert gpus_in(live.scheduler.book.attempts[job].allocation) == 2
    record = live.jobs[job]
    like = like_of(record.spec, record.user, record.gpus, record.array_id)
    for gpus, speed in ((1, 10.0), (2, 4.0)):
        live.scheduler.planning.scene.speeds.measured(like, "V100", speed, stored=False, on_gpus=gpus)
    (other,) = live.submit({"gpus": 1, "name": "other", "estimate": "1h"})
    assert live.service.job(other)["state"] in ("starting", "running")
    assert not live.scheduler.problem


def test_the_best_known_of_an_elastic_job_is_also_what_its_model_makes_of_a_run() -> None:
    """As in the simulator: on its smaller size it is as far from its best as jobs usually are, until both were
    measured."""
    told = Learning(f"{BY_HAND};initial=model;optimism=0;mode=fixed;fixed=1x1", gpus=2)
    told.run(10.0, gpus=1, elastic="1-2")
    usual = size_speeds(1, (1, 2), {})[2].factor
    assert told.state["mean_reward"] == pytest.approx(2.0 / usual, rel=0.02)
    rigid = Learning(f"{BY_HAND};initial=model;optimism=0;mode=fixed;fixed=1x1", gpus=2)
    rigid.run(10.0, gpus=1)
    assert rigid.state["mean_reward"] == 2.0


def test_elastic_jobs_are_grouped_by_what_was_measured_on_several_gpus() -> None:
    """The shipped profiles: vgg19 on one GPU synchronises nothing, on two it computes twice as long as it does."""
    told = Learning()
    told.live.submit({"gpus": 1, "model": "vgg19"}, {"model": "vgg19", "elastic": "1-2"})
    alone, together = (row.three_stages_s for row in map(told.live.scheduler.planning.worlds.profiles.find, *TWICE))
    assert (alone[2], together[2] > 0) == (0.0, True)
    ratios = [group["ratio"] for group in told.state["groups"] if group["ratio"] is not None]
    assert ratios == [pytest.approx(together[1] / together[2]), pytest.approx(1e6)]
