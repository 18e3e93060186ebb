"""What the live scheduler makes of one story of 20 jobs under some policies, on a clock that stands still: every event,
why jobs wait and when they are expected to start, who used how much, and what is exported.

As in test_schedules.py, nobody worked this out by hand: `python tests/golden/test_live_story.py` writes it anew after a
change that is meant to change it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
from gpuloom.core.events import Event
from gpuloom.core.job import NodeState, Phase
from gpuloom.live.forecasts import forecast
from gpuloom.live.trial.rehearsal import Rehearsal
from tiers import mostly_slow

KEPT = Path(__file__).with_name("live_story.json")
POLICIES = [
    "srtf",
    "tiresias:thresholds=100/400",
    "antman",
    "fifo:backfill=easy",
    "muri-l",
    "hlas",
    "themis:lease=2m",
    "rl",
    "elastic:base=srtf",
]
MODELS = ("resnet18", "vgg19", "bert", "gpt2")
PARTS = ("low", "median", "high")
TOLD = (
    "allocation",
    "reason",
    "next",
    "exit_code",
    "work_s",
    "saved",
    "phase",
    "changes",
    "policy",
    "state",
    "priority",
)
"""What is kept of an event's data."""


class Story:
    """The story so far, in lines."""

    def __init__(self, policy: str) -> None:
        self.live = Rehearsal(policy)
        self.lines: list[str] = []
        self._seen = 0
        self.began_s = self.live.now_s

    def look(self) -> None:
        """What has happened since the last look, and what those are told who wait."""
        for event in self.live.store.events(after=self._seen, limit=10_000):
            self._seen = event.id
            self.lines.append(self._line(event))
        for job in self.live.queued()[:2]:
            found: Any = self.live.service.why(job)
            spans = [
                [
                    None if (at := found[f"{what}_s_{part}"]) is None else round(at - self.live.now_s, 1)
                    for part in PARTS
                ]
                for what in ("start", "end")
            ]
            known = [found["source"], found["n"], found["rests_on"], found["unknown"], found["lacks"]]
            place = f"{found['position']} of {found['waiting']}"
            self.lines.append(f"  why {job}: {found['code']} {place} {spans} {known} {found['text']}")

    def _line(self, event: Event) -> str:
        data = {name: event.data[name] for name in TOLD if name in event.data}
        return f"{event.at_s - self.began_s:.1f} {event.type} {event.job} {json.dumps(data)}"


def made(policy: str) -> list[str]:
    story = Story(policy)
    live = story.live
    first = [
        {
            "gpus": (1, 2, 1, 4, 1, 2)[i % 6],
            "estimate": 50.0 + 130 * (i * i % 7),
            "name": f"job-{i % 4}",
            "model": MODELS[i % 4],
            "gpu_memory": "4GiB",  # jobs of unknown memory are not woven
            "priority": (0, 0, 1)[i % 3],
            "on_preempt": ("checkpoint", "checkpoint", "freeze", "never")[i % 4],
            **({"gpu_types": ["V100"]} if i % 5 == 3 else {}),
            **({"time_limit": 900.0} if i % 4 == 2 else {}),
            **({"retries": 1} if i % 3 == 0 else {}),
        }
        for i in range(10)
    ]
    del first[6]["estimate"]
    live.submit(*first[:6])
    story.look()
    live.later(45.0)
    live.submit(*first[6:], user="bob")
    story.look()
    for step in range(14):
        running = sorted(live.executor.live(), key=lambda run: tuple(map(int, run.split("."))))
        if running and step % 3 != 1:
            live.end(running[step % len(running)], (0, 0, 1, 85)[step % 4])
        live.later((20.0, 75.0, 240.0)[step % 3])
        if step == 2:
            live.submit(
                {"gpus": 1, "array": "0-3%2", "estimate": 90.0, "name": "sweep"},
                {"gpus": 2, "share_class": "high", "estimate": 60.0},
            )
        if step == 3 and live.queued():
            live.tell(lambda: live.service.hold(live.queued()[-1:]))
        if step == 4 and live.queued():
            live.tell(lambda: live.service.move_to_top(live.queued()[-1:]))
        if step == 5:
            live.gpus({1: "unhealthy"})
            live.restart(orderly=True)
        if step == 6 and live.queued():
            live.tell(lambda: live.service.update(live.queued()[:1], {"priority": 4, "gpus": 1}))
        if step == 7:
            live.tell(lambda: live.service.set_node("here", NodeState.CORDONED, reason="a fan"))
        if step == 8:
            live.tell(lambda: live.service.set_node("here", NodeState.UP))
            live.gpus({1: "ok"})
        if step == 9:
            live.tell(lambda: live.service.cancel(live.going()[1:2]))
            live.tell(lambda: live.service.release([n for n in live.going() if live.jobs[n].phase is Phase.HELD]))
        if step == 10:
            live.restart(orderly=False)
        if step == 11 and live.going():
            live.tell(lambda: live.service.requeue([job for job in live.jobs if job not in live.going()][:1]))
        story.look()
    for by in ("user", "name"):
        for row in live.service.usage(since_s=None, until_s=None, by=by):
            story.lines.append(f"usage {json.dumps(dict(row), sort_keys=True)}")
    story.lines += live.service.history(since_s=None, until_s=None).splitlines()
    return story.lines


@pytest.fixture(autouse=True)
def _patient() -> Iterator[None]:
    """Forecasts look at all cases, however long that takes."""
    with mock.patch.multiple(forecast, FIRST_CPU_S=60.0, RANGE_CPU_S=60.0, MOST_CPU_S=60.0, BOUND_CPU_S=60.0):
        yield


@pytest.mark.parametrize("policy", mostly_slow(POLICIES, *POLICIES[:3]))
def test_the_story_goes_as_before(policy: str) -> None:
    assert made(policy) == json.loads(KEPT.read_text(encoding="utf-8"))[policy]


if __name__ == "__main__":
    with mock.patch.multiple(forecast, FIRST_CPU_S=60.0, RANGE_CPU_S=60.0, MOST_CPU_S=60.0, BOUND_CPU_S=60.0):
        KEPT.write_text(
            json.dumps({policy: made(policy) for policy in POLICIES}, indent=1, ensure_ascii=False) + "\n",
            encoding="utf-8",
        )
