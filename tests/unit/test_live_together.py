"""Groups are measured against running alone, and one that does not pay is dissolved and remembered."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuloom.core.pairs import Apart
from gpuloom.core.usage import RunUsage
from gpuloom.live.dispatch.faults import MOST_CROWDED
from gpuloom.live.dispatch.last_words import Words
from gpuloom.live.planning.gpu_memory import raised_mib
from gpuloom.live.records.together import KEPT, REMEMBERED_S, Reports
from gpuloom.live.trial.rehearsal import Rehearsal

PROFILES = """model,gpus,iteration_s,storage_s,cpu_s,gpu_s,network_s
reader,1,1,1.0,0,0,0
learner,1,1,0,0,1.0,0
"""


@pytest.fixture(autouse=True)
def _profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPULOOM_HOME", str(tmp_path))
    (tmp_path / "profiles.csv").write_text(PROFILES)


class Live(Rehearsal):
    """Jobs that report steps."""

    def __init__(self, policy: str = "muri-l", gpus: int = 1) -> None:
        super().__init__(policy, models=["V100"] * gpus, interval_s=0.0)
        self.steps: dict[int, float] = {}

    def job(self, model: str, **more: object) -> int:
        spec = {"model": model, "estimate": "5h", "gpu_memory": 1000, "command": ["train", model], **more}
        return self.submit(spec)[0]

    def run(self, seconds: float, **it_per_s: float) -> None:
        """Time goes on, and jobs (j1=2.0: job 1, 2 iterations per second) report every five seconds."""
        for _ in range(int(seconds / 5)):
            self.later(5.0)
            for name, rate in it_per_s.items():
                job = int(name[1:])
                if (attempt := self.scheduler.book.attempts.get(job)) is None:
                    continue
                self.steps[job] = self.steps.get(job, 0.0) + rate * 5.0
                progress: dict[str, object] = {"step": self.steps[job], "at_s": self.now_s}
                self.scheduler.sampled("here", {attempt.run: RunUsage(attempt.run, progress=progress)}, [], [])
            self.turn()

    def together(self) -> list[tuple[int, ...]]:
        return [group.members for group in self.scheduler.sharers.groups.all()]

    def judged(self) -> list[dict[str, object]]:
        return [dict(event.data) for event in self.store.events(types=("group.measured",), limit=100)]

    def why(self, job: int) -> str:
        return " ".join(self.service.why(job, forecast=False)["sentences"])


def test_a_group_that_pays_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    live = Live()
    one = live.job("reader")
    live.run(60.0, j1=2.0)  # twice what its profile says
    two = live.job("learner")
    assert live.together() == [(one, two)]
    (group,) = live.service.groups()
    assert [group["gain"], *(member["alone_it_per_s"] for member in group["members"])] == [None, 2.0, 1.0]
    live.run(15.0, j1=1.6)
    live.run(20.0, j1=1.6, j2=0.9)
    assert live.service.groups()[0]["gain"] is None, "too little was seen of the second"
    live.run(60.0, j1=1.6, j2=0.9)
    (group,) = live.service.groups()
    assert group["gain"] == pytest.approx(0.8 + 0.9)
    shares = [(member["job"], member["beside_it_per_s"], member["share"]) for member in group["members"]]
    assert shares == [(one, pytest.approx(1.6), pytest.approx(0.8)), (two, pytest.approx(0.9), pytest.approx(0.9))]
    (judged,) = live.judged()
    assert (judged["members"], judged["pays"], judged["gain"]) == ([one, two], True, pytest.approx(1.7))
    assert live.together() == [(one, two)]
    assert "did not pay" not in live.why(one)
    live.run(620.0, j1=1.6, j2=0.9)
    assert len(live.judged()) == 1, "judged again, and nothing has changed"


@pytest.mark.parametrize("policy", ["muri-l", "muri-xs", "weave"])
def test_a_group_that_does_not_pay_is_dissolved_and_remembered(policy: str) -> None:
    live = Live(policy)
    one, two = live.job("reader"), live.job("learner")
    assert live.together() == [(one, two)]
    live.run(150.0, j1=0.4, j2=0.5)
    (judged,) = live.judged()
    assert (judged["members"], judged["pays"]) == ([one, two], False)
    assert live.together() == []
    waiting = {one: two, two: one}[next(iter(live.scheduler.book.attempts))]
    said = "of its speed alone job 1 0.40, job 2 0.50 was left, in all 0.90 of one job; such are kept apart for"
    assert said in live.why(waiting)
    live.restart(orderly=False)
    live.run(30.0)
    assert live.together() == [], "also by the scheduler that takes over"
    three = live.job("learner" if waiting == two else "reader")
    live.run(30.0)
    readers = {one, three} if waiting == one else {one}
    for group in live.together():
        assert readers.issuperset(group) or readers.isdisjoint(group), "nor are others of their kind"
    assert said in live.why(three)
    live.later(REMEMBERED_S)
    assert not live.scheduler.sharers.together.apart()
    assert said not in live.why(three)
    if policy == "muri-l":
        assert live.together() != [], "it is tried again"


def test_a_later_measurement_counts() -> None:
    live = Live(gpus=1)
    live.job("reader"), live.job("learner")
    live.run(150.0, j1=0.9, j2=0.9)
    assert [one["pays"] for one in live.judged()] == [True]
    live.run(650.0, j1=0.3, j2=0.3)  # other phases of theirs
    assert [one["pays"] for one in live.judged()] == [True, False]
    assert live.together() == []


def test_a_job_of_unknown_gpu_memory_is_alone() -> None:
    live = Live()
    one = live.job("reader", gpu_memory=None)
    live.job("learner", gpu_memory=None)
    assert live.together() == []
    lacks = {lack["input"]: lack["text"] for lack in live.service.policy()["lacks"]}
    assert "unknown" not in lacks.get("stages", "")
    assert "puts jobs together only where their GPU memory is known" in lacks["memory"]
    live.end(f"{one}.1")
    three = live.job("reader", gpu_memory=1000)
    live.job("learner", gpu_memory=1000)
    live.run(10.0)
    assert three not in live.scheduler.book.attempts, "the one of unknown memory has the GPU for itself"


def test_running_out_of_gpu_memory_in_a_group_is_no_failure() -> None:
    live = Live()
    one, two = live.job("reader"), live.job("learner")
    assert live.together() == [(one, two)]
    run = live.scheduler.book.attempts[two].run
    live.scheduler.intake.words[run] = Words({"gpu_memory_full": True})
    live.end(f"{two}.1", code=1)
    view = live.service.show(two)
    assert (view["job"]["state"], live.jobs[two].failures) == ("queued", 0)
    (attempt,) = view["attempts"]
    assert attempt["reason"] == "out_of_memory"
    assert "no GPU memory was left beside job 1: that is no failure" in attempt["message"]
    assert live.together() == []
    assert f"did not hold jobs {one}, {two} together" in live.why(two)
    live.restart(orderly=False)
    live.later(30.0)
    assert live.together() == []
    live.end(f"{one}.1")
    live.later(30.0)
    run = live.scheduler.book.attempts[two].run
    live.scheduler.intake.words[run] = Words({"gpu_memory_full": True})
    live.end(f"{two}.2", code=1)
    assert live.service.show(two)["job"]["state"] == "failed", "alone it is"


def test_who_found_too_little_memory_is_taken_to_need_more_than_was_left() -> None:
    live = Live()
    one, two = live.job("reader", gpu_memory=9000), live.job("learner", gpu_memory=None)
    live.scheduler.planning.scene.memory.saw(two, 2000.0)
    live.scheduler.planning.stale()
    live.turn()
    assert live.together() == [(one, two)]
    run = live.scheduler.book.attempts[two].run
    live.scheduler.intake.words[run] = Words({"gpu_memory_full": True})
    live.end(f"{two}.1", code=1)
    needs = 16_000 - 9000 + 1  # of a rehearsal's GPU
    view = live.service.show(two)
    assert view["attempts"][0]["gpu_memory_mib"] == needs
    assert view["gpu_memory"] == {"mib": needs, "source": "measured", "runs": 0}
    third = live.job("reader", gpu_memory=9000)
    live.restart(orderly=False)
    live.end(f"{one}.1")
    live.later(30.0)
    assert live.together() == [], "it does not fit beside another that needs as much as the first"
    assert {two, third} - set(live.scheduler.book.attempts) != set()


@pytest.mark.parametrize(
    ("need", "others", "gpu", "found"),
    [
        (2000, [9000], 16_384, 7385),  # it needs more than was left
        (2000, [9000, 5000], 16_384, 2385),
        (2000, [9000, 6000], 16_384, 2500),  # they never fitted, by what is known
        (15_000, [9000], 16_384, 16_384),  # no more than the GPU has
        (2000, [None], 16_384, 2500),
        (2000, [9000], None, 2500),
        (0, [9000], 16_384, 7385),
        (0, [None], None, None),
        (7000, [9000], 16_384, 7385),
        (7380, [9000], 16_384, 7749),  # by so much that it is another decision
    ],
)
def test_by_how_much_the_figure_is_raised(need: float, others: list[float | None], gpu: float, found: float) -> None:
    more = raised_mib(need, others, gpu)
    assert more == (found if found is None else pytest.approx(found))


def test_where_jobs_are_not_kept_apart_it_is_forgiven_only_so_often() -> None:
    live = Live("antman")
    one, two = live.job("reader"), live.job("learner", priority=-1)
    for number in range(1, MOST_CROWDED + 2):
        assert live.together() == [(one, two)]
        run = live.scheduler.book.attempts[two].run
        live.scheduler.intake.words[run] = Words({"gpu_memory_full": True})
        live.end(f"{two}.{number}", code=1)
        live.turn()
        message = live.service.show(two)["attempts"][number - 1]["message"]
        assert message.endswith("that is no failure") == (number <= MOST_CROWDED)
    assert live.service.show(two)["job"]["state"] == "failed"
    assert live.scheduler.sharers.together.news() == live.judged() == []


def test_groups_of_three_are_kept_apart_as_a_whole() -> None:
    kinds = [("a", 1), ("b", 1), ("c", 1), ("d", 1)]
    apart = Apart(
        (("V100", (kinds[2], kinds[0], kinds[1]), (0.3, 0.3, 0.3)), ("V100", (kinds[1], kinds[0]), (0.4, 0.5)))
    )
    pairs = apart.among([*kinds, kinds[1]])
    assert pairs is not None
    assert pairs.of_job.tolist() == [0, 1, 2, -1, 1]
    assert pairs.apart == {("V100", (0, 1, 2)), ("V100", (0, 1))}
    share = pairs.on("v100")
    assert share is not None
    assert (share[0, 1], share[1, 0]) == (0.5, 0.4)
    assert apart.among(kinds[2:]) is None


def test_reports_are_thinned_out_and_still_tell_the_rate() -> None:
    told = Reports("1.1")
    for second in range(20 * KEPT):
        told.take(float(second), 3.0 * second)
    assert len(told._told) <= KEPT + 1
    done, took_s = told.between(100.0, 4000.0)
    assert done / took_s == 3.0
    assert took_s > 3000
    told.take(6000.0, 5.0)
    assert told.between(0.0) == (0.0, 0.0), "it began anew"
