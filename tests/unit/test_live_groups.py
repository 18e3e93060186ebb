"""Groups of jobs that share GPUs: who, where, since when."""

from __future__ import annotations

from typing import Any

import pytest

from gpuloom.core.book import Book
from gpuloom.core.events import Event
from gpuloom.core.usage import RunUsage
from gpuloom.live.records.groups import Group, Groups
from gpuloom.live.trial.rehearsal import Rehearsal
from store_builders import ended, starting, submitted


class Told:
    """A book that is told events, and the groups of its jobs."""

    def __init__(self) -> None:
        self.book, self.now_s, self.count = Book(), 0.0, 0
        self.groups = Groups(self.book, lambda: self.now_s)

    def tell(self, at_s: float, kind: str, job: int, data: Any) -> None:
        self.now_s, self.count = at_s, self.count + 1
        self.book.commit(self.book.stage([Event(self.count, at_s, kind, job, data)]))

    def start(self, at_s: float, *gpus: int, node: str = "host") -> int:
        job = self.book.next_job
        self.tell(at_s, "jobs.submitted", job, submitted(job))
        self.tell(at_s, "attempt.starting", job, starting(allocation=((node, gpus),)))
        return job

    def end(self, at_s: float, job: int) -> None:
        self.tell(at_s, "attempt.ended", job, ended())

    def told(self) -> list[tuple[tuple[int, ...], float]]:
        return [(group.members, group.since_s) for group in self.groups.all()]


def test_members_join_and_leave() -> None:
    told = Told()
    first = told.start(1.0, 0, 1)
    alone = told.start(2.0, 5)
    assert told.told() == []
    second = told.start(3.0, 0, 1)
    assert told.groups.all() == [Group((first, second), (("host", 0), ("host", 1)), 3.0)]
    third = told.start(4.0, 0, 1)
    assert told.told() == [((first, second, third), 4.0)]
    told.start(5.0, 0, node="other")  # GPU 0 of another machine
    told.end(6.0, alone)
    assert told.told() == [((first, second, third), 4.0)]
    told.end(7.0, first)
    assert told.told() == [((second, third), 7.0)]
    told.end(8.0, third)
    assert told.told() == []


def test_who_shares_with_a_third_is_in_one_group_until_that_one_leaves() -> None:
    told = Told()
    left, middle, right = told.start(1.0, 0), told.start(2.0, 0, 1), told.start(3.0, 1)
    assert told.told() == [((left, middle, right), 3.0)]
    told.end(4.0, middle)
    assert told.told() == []
    a, b = told.start(5.0, 0), told.start(6.0, 1)
    assert told.told() == [((left, a), 5.0), ((right, b), 6.0)]


def test_who_takes_over_knows_groups_by_their_last_members() -> None:
    told = Told()
    first, second = told.start(1.0, 0), told.start(3.0, 0)
    again = Groups(told.book, lambda: 100.0)
    assert again.all() == [Group((first, second), (("host", 0),), 3.0)]


def test_each_change_is_told_once() -> None:
    told = Told()
    assert told.groups.news() == []
    first, second = told.start(1.0, 0), told.start(2.0, 0)
    (draft,) = told.groups.news()
    assert told.groups.news() == [draft], "until it is on disk"
    assert draft == (
        "group.changed",
        None,
        {
            "members": [first, second],
            "was": [],
            "gpus": {"host": [0]},
            "order": None,
            "rates": {str(first): None, str(second): None},
            "efficiency": None,
            "alone": {str(first): None, str(second): None},
        },
    )
    told.groups.written()
    assert told.groups.news() == []
    third = told.start(3.0, 0)
    log = [draft]
    for members, was in (
        ([first, second, third], [first, second]),
        ([second, third], [first, second, third]),
        ([], [second, third]),
    ):
        if was == [first, second, third]:
            told.end(4.0, first)
        elif not members:
            told.end(5.0, third)
        (draft,) = told.groups.news()
        assert (draft[2]["members"], draft[2]["was"]) == (members, was)
        # Who takes over, and finds that it was not written down, tells it; who finds that it was does not.
        for events, news in ((log, [draft]), ([*log, draft], [])):
            known = [Event(number, 0.0, kind, job, data) for number, (kind, job, data) in enumerate(events)]
            assert Groups(told.book, lambda: 9.0, events=known).news() == news
        log.append(draft)
        told.groups.written()
    assert told.groups.news() == []


def test_two_groups_of_one() -> None:
    told = Told()
    left, middle, right = told.start(1.0, 0), told.start(2.0, 0, 1), told.start(3.0, 1)
    told.groups.written()
    a, b = told.start(4.0, 0), told.start(5.0, 1)
    told.groups.written()
    told.end(6.0, middle)
    assert [(data["members"], data["was"]) for _, _, data in told.groups.news()] == [
        ([left, a], [left, middle, right, a, b]),
        ([right, b], [left, middle, right, a, b]),
    ]


def test_a_pair_on_a_gpu_live() -> None:
    live = Rehearsal("fifo", models=["V100"])
    memory = {"gpu_memory": 1000, "estimate": "1h"}
    (high,) = live.submit({**memory, "share_class": "high", "name": "serve"})
    live.later(10.0)
    began_s = live.now_s
    (low,) = live.submit({**memory, "share_class": "best-effort"})
    live.later(5.0)
    run = live.scheduler.book.attempts[low].run
    told = {"step": 101, "first_step": 1, "first_s": 1.0, "at_s": 11.0}
    live.scheduler.intake.words.clear()
    usage = RunUsage(run, progress=told)
    live.sights.usage = lambda attempt: usage if attempt.run == run else None  # type: ignore[method-assign]
    (group,) = live.service.groups()
    assert [(one["job"], one["name"], one["it_per_s"]) for one in group["members"]] == [
        (high, "serve", None),
        (low, "train", 10.0),
    ]
    rates = [one["expected_rate"] for one in group["members"]]
    assert rates[0] is not None
    assert rates[1] is not None
    assert 0 < rates[1] <= 1
    assert (group["gpus"], group["since_s"]) == ({"here": [0]}, pytest.approx(began_s))
    assert live.service.show(high)["group"] == group
    live.end(f"{low}.1")
    assert live.service.show(high)["group"] is None
    assert live.service.groups() == []
