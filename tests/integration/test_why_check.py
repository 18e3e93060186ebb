"""`gpuloom why --check`: forecasts of the past, made again and compared with what happened."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gpuloom.cli.main import cli
from gpuloom.core.events import Event
from gpuloom.live.forecasts.backtest import Checked, as_json, check, events_of
from gpuloom.live.planning.estimates import Source
from gpuloom.live.submission.spec import job_spec
from gpuloom.store.home import home_of
from gpuloom.store.sqlite import SqliteStore
from live_builders import living

NODE = {"name": "node", "gpus": [{"index": 0, "uuid": "0", "model": "V100"}], "state": "up"}


class Log:
    """A log of one machine with one GPU, on which jobs run in turn."""

    def __init__(self) -> None:
        self.told: list[tuple[float, str, int | None, dict[str, Any]]] = [
            (0.0, "node.changed", None, {"node": NODE}),
            (0.0, "policy.set", None, {"policy": "fifo", "interval_s": 60.0}),
        ]
        self.jobs = 0

    def submit(self, at_s: float, **fields: Any) -> int:
        self.jobs += 1
        spec = job_spec({"command": ["t.py"], "name": "t", **fields}, source="a test").model_dump(mode="json")
        data = {"user": "ann", "spec": spec, "first": self.jobs, "count": 1, "indices": None, "held": False}
        self.told.append((at_s, "jobs.submitted", self.jobs, {**data, "after": [], "estimates": [[1.0, "unknown"]]}))
        return self.jobs

    def run(self, job: int, start_s: float, end_s: float) -> None:
        self.told += [
            (start_s, "attempt.starting", job, {"attempt": 1, "allocation": [["node", [0]]]}),
            (start_s, "attempt.running", job, {}),
            (end_s, "attempt.ended", job, {"reason": "finished", "next": "finished", "work_s": end_s - start_s}),
        ]

    def events(self) -> list[Event]:
        rank = {"attempt.ended": 0, "jobs.submitted": 1}
        told = sorted(self.told, key=lambda one: (one[0], rank.get(one[1], 2 if one[0] else -1)))
        return [Event(number, *one) for number, one in enumerate(told, 1)]

    def check(self, **settings: Any) -> Checked:
        return check(self.events, policy="fifo", interval_s=60.0, **settings)


def test_only_what_was_known_then_is_used() -> None:
    log = Log()
    for number in range(4):  # two at a time: the second waits for the first
        at = 1000.0 * number
        first, second = log.submit(at + 1), log.submit(at + 2)
        log.run(first, at + 1, at + 101)
        log.run(second, at + 101, at + 201)
    cases = {case.job: case for case in log.check().cases}
    assert len(cases) == 8
    assert cases[2].start_by is Source.UNKNOWN, "no run had ended when it was submitted"
    assert cases[2].start.median is None
    later = cases[8]
    assert later.start_by is Source.EARLIER_RUNS
    assert later.start.median == pytest.approx(3102.0, abs=2.0)
    assert later.start.low < 3101.0 < later.start.high
    assert (later.started_s, later.ended_s) == (3101.0, 3201.0)
    assert later.end.low < 3201.0 < later.end.high


def test_errors_by_source_and_how_often_ranges_held() -> None:
    log = Log()
    for number in range(30):
        at = 1000.0 * number
        first, second = log.submit(at + 1), log.submit(at + 2)
        took = 100.0 + 10.0 * (number % 5)
        log.run(first, at + 1, at + 1 + took)
        log.run(second, at + 1 + took, at + 1 + 2 * took)
    found = {(one["what"], one["source"]): one for one in as_json(log.check(since_s=10_000.0))["errors"]}
    start = found["start", "earlier_runs"]
    assert (start["cases"], start["unknown"], start["ranges"]) == (20, 0, 20)
    assert start["abs_error_s"]["p50"] <= 20.0
    assert start["within"] >= 0.6
    assert found["start", "did not wait"]["abs_error_s"] == {"p10": 0.0, "p50": 0.0, "p90": 0.0}
    assert len(log.check(sample=7).cases) == 7


def test_what_its_user_changed_is_not_compared() -> None:
    log = Log()
    first, held, gone = log.submit(1.0, estimate=50), log.submit(2.0, estimate=50), log.submit(3.0, estimate=50)
    log.told.append((4.0, "job.held", held, {}))
    log.told.append((5.0, "job.cancelled", gone, {"message": "", "reason": "cancelled"}))
    log.run(first, 1.0, 60.0)
    assert [(case.job, case.started_s) for case in log.check().cases] == [(1, 1.0), (2, None), (3, None)]


def test_ctrl_c_ends_with_what_there_is() -> None:
    log = Log()
    for number in range(5):
        log.run(log.submit(100.0 * number + 1), 100.0 * number + 1, 100.0 * number + 50)

    def interrupt(done: int, total: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    found = log.check(on_progress=interrupt)
    assert (len(found.cases), found.ended_early) == (3, True)


def run(home: Path, *args: str) -> Result:
    return CliRunner().invoke(cli, ["why", "--check", "--home", str(home), *args], standalone_mode=False)


def test_the_command_on_the_history_of_a_home(tmp_path: Path) -> None:
    with living(tmp_path, slots=1) as live:
        for _ in range(4):
            first, second = live.submit(1, name="one", estimate=5), live.submit(1, name="one", estimate=5)
            live.end(first)
            live.end(second)
    told = json.loads(run(tmp_path, "--json").stdout)
    assert (told["submissions"], told["checked"], told["failed"], told["interrupted"]) == (8, 8, 0, False)
    assert {one["what"] for one in told["errors"]} == {"start", "end"}
    shown = run(tmp_path).stdout
    assert "8 forecasts of 8 submissions" in shown
    assert "given" in shown
    with SqliteStore(home_of(tmp_path).db, read_only=True) as store:
        assert [event.id for event in events_of(store)] == list(range(1, store.load().last_event + 1))


def test_an_empty_history_says_so(tmp_path: Path) -> None:
    with living(tmp_path, slots=1):
        pass
    assert "no job was submitted in that time" in run(tmp_path).stdout
    assert json.loads(run(tmp_path, "--json").stdout)["checked"] == 0


@pytest.mark.parametrize("args", [["3", "--check"], ["--since", "7d"], []])
def test_what_does_not_go_together(args: Iterable[str], tmp_path: Path) -> None:
    found = CliRunner().invoke(cli, ["why", *args, "--home", str(tmp_path)])
    assert found.exit_code == 2
