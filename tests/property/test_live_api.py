"""The API on a scheduler with a real store, driven at random and killed, against a simple model of what jobs become."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from api_client import TOKEN, Local
from fake_executor import FakeExecutor, short
from gpuloom.core.errors import ConflictError, ImpossibleJobError, InputError, NotFoundError
from gpuloom.core.job import NodeState
from gpuloom.core.share_class import is_pair
from gpuloom.live.submission.spec import job_spec
from gpuloom.server.app import make_app
from gpuloom.store.sqlite import SqliteStore
from live_builders import Live
from tiers import examples

pytestmark = pytest.mark.slow

SLOTS = 4
ENDED = ("finished", "failed", "cancelled")
ACTIVE = ("starting", "running", "stopping", "frozen")
SHARING = ("muri-xl", "antman")
POLICIES = ("fifo", "fifo:backfill=easy", "srtf", "tiresias", "gavel", *SHARING)
STATUS = {ConflictError: 409, NotFoundError: 404, ImpossibleJobError: 422, InputError: 400}

specs = st.fixed_dictionaries(
    {"gpus": st.integers(1, SLOTS + 1)},
    optional={
        "priority": st.integers(-1, 2),
        "retries": st.integers(0, 2),
        "hold": st.booleans(),
        "array": st.sampled_from(["0-1", "0-2%1"]),
        "on_preempt": st.sampled_from(["checkpoint", "freeze", "never"]),
        "estimate": st.integers(1_000, 1_000_000),
        "share_class": st.sampled_from(["high", "best-effort"]),
    },
)
picks = st.integers(0, 10_000)
"""Chooses one of the jobs there are, by its remainder."""


@dataclass
class Known:
    """What the model says of a job. state: 'live' where the policy decides whether it waits or runs."""

    spec: dict[str, Any]
    state: str = "live"
    failures: int = 0
    after: list[tuple[int, str]] = field(default_factory=list)


class LiveApi(RuleBasedStateMachine):
    """See the module. After every step the scheduler comes to rest."""

    def __init__(self) -> None:
        super().__init__()
        self.home = Path(tempfile.mkdtemp(prefix="live-api-"))
        self.pauses = patch(
            "gpuloom.live.dispatch.ends.MOST_PAUSE_S", 0.0
        )  # a retry that comes when time says so: no model has it
        self.pauses.start()
        self.executor = FakeExecutor()
        self.jobs: dict[int, Known] = {}
        self.keys: dict[str, tuple[dict[str, Any], list[int]]] = {}
        self.states: dict[int, str] = {}
        self.policy, self.node_state, self.alone = "fifo", "up", True
        self.up(policy="fifo")

    def up(self, **options: Any) -> None:
        self.live = Live(self.home, self.executor, **options)
        self.api = Local(make_app(self.live.service, token=TOKEN, default_user="ann"))
        self.settled()

    def settled(self) -> None:
        self.live.settle()
        self.states = {job: self.live.job(job).phase.value for job in self.jobs}

    def teardown(self) -> None:
        try:
            events = self.live.service.events(limit=1_000_000)
            assert [event.id for event in events] == list(range(1, len(events) + 1))
            assert [event.at_s for event in events] == sorted(event.at_s for event in events)
            started = [(event.job, event.data["attempt"]) for event in events if event.type == "attempt.starting"]
            assert len(started) == len(set(started))
            assert self.live.scheduler.failed is None
        finally:
            self.live.close()
            self.pauses.stop()
        with SqliteStore(self.home / "store.db", read_only=True) as store:
            assert store.check().findings == ()
        shutil.rmtree(self.home)

    # -- ways in --------------------------------------------------------------------------------------------------

    def ask(self, http: bool, method: str, path: str, body: Any, call: Any, key: str | None = None) -> tuple[int, Any]:
        """(status, answer) of a request, made through the API or of the service."""
        if http:
            headers = {} if key is None else {"Idempotency-Key": key}
            answer = self.api(method, path, json=body, headers=headers)
            return answer.status_code, answer.json()
        try:
            return 200, call()
        except tuple(STATUS) as error:
            return next(status for kind, status in STATUS.items() if isinstance(error, kind)), None

    def act(self, http: bool, action: str, jobs: list[int], **more: Any) -> int:
        method = "move_to_top" if action == "top" else action
        return self.ask(
            http,
            "POST",
            f"/v1/actions/{action}",
            {"jobs": jobs, **more},
            lambda: getattr(self.live.service, method)(jobs, *more.values()),
        )[0]

    def send(self, http: bool, spec: dict[str, Any], key: str | None) -> tuple[int, list[int]]:
        data = {"command": ["train"], **spec}
        status, answer = self.ask(
            http,
            "POST",
            "/v1/jobs",
            data,
            lambda: {"submitted": self.live.service.submit([job_spec(data)], user="ann", idempotency_key=key)},
            key,
        )
        return (200, answer["submitted"][0]) if status in (200, 201) else (status, [])

    def pick(self, number: int) -> int:
        return sorted(self.jobs)[number % len(self.jobs)]

    # -- the model ------------------------------------------------------------------------------------------------

    def broken(self, after: list[tuple[int, str]]) -> bool:
        return any(how == "ok" and self.jobs[other].state in ("failed", "cancelled") for other, how in after)

    def gone(self, job: int, state: str) -> None:
        """A job ends; those that wait for it and need it to end well are cancelled."""
        self.jobs[job].state = self.states[job] = state
        if state == "finished":
            return
        for other, known in self.jobs.items():
            if self.states[other] in ("queued", "held") and (job, "ok") in known.after:
                self.gone(other, "cancelled")

    def ends(self, run: str, code: int | None) -> None:
        job = int(run.partition(".")[0])
        known = self.jobs[job]
        if code == 0:
            self.gone(job, "finished")
        elif known.failures < known.spec.get("retries", 0):
            known.failures += 1
        else:
            known.failures += 1
            self.gone(job, "failed")

    # -- what happens ---------------------------------------------------------------------------------------------

    @initialize(
        policy=st.sampled_from(POLICIES),
        first=st.lists(st.tuples(specs, st.none() | picks), min_size=4, max_size=8),
    )
    def begins(self, policy: str, first: list[tuple[dict[str, Any], int | None]]) -> None:
        """With some jobs, each of which may wait for one before it."""
        self.chooses_policy(False, policy)
        for spec, after in first:
            self.submission(False, {**spec, "gpus": min(spec["gpus"], SLOTS)}, None, after, "ok")
        self.settled()

    def submission(self, http: bool, spec: dict[str, Any], key: str | None, after: int | None, how: str) -> None:
        spec = dict(spec)
        waits_for: list[tuple[int, str]] = []
        if after is not None and self.jobs:
            waits_for = [(self.pick(after), how)]
            spec["after" if how == "ok" else "after_any"] = [waits_for[0][0]]
        before = None if key is None else self.keys.get(key)
        status, numbers = self.send(http, spec, key)
        same = before is not None and job_spec(_whole(before[0])) == job_spec(_whole(spec))
        if before is not None and not same:
            assert status == 409
        elif before is None and spec["gpus"] > SLOTS:
            assert status == 422
        elif before is None and self.broken(waits_for):
            assert status == 400
        else:
            assert status == 200
            if before is not None:
                assert numbers == before[1]
                return
            first = max(self.jobs, default=0) + 1
            assert numbers == list(range(first, first + {"0-1": 2, "0-2%1": 3}.get(spec.get("array", ""), 1)))
            for number in numbers:
                self.jobs[number] = Known(spec, "held" if spec.get("hold") else "live", after=waits_for)
            if key is not None:
                self.keys[key] = (spec, numbers)

    @rule(
        http=st.booleans(),
        spec=specs,
        key=st.none() | st.sampled_from(["a", "b"]),
        after=st.none() | picks,
        how=st.sampled_from(["ok", "any"]),
    )
    def submits(self, http: bool, spec: dict[str, Any], key: str | None, after: int | None, how: str) -> None:
        self.submission(http, spec, key, after, how)
        self.settled()

    @rule(http=st.booleans(), numbers=st.lists(picks, min_size=1, max_size=3))
    def cancels(self, http: bool, numbers: list[int]) -> None:
        jobs = list(dict.fromkeys(self.pick(number) for number in numbers))
        left = [job for job in jobs if self.jobs[job].state not in ENDED]
        cancelled = all(self.jobs[job].state == "cancelled" for job in jobs)
        assert self.act(http, "cancel", jobs) == (200 if left or cancelled else 409)
        for job in left:
            self.gone(job, "cancelled")
        self.settled()

    @rule(http=st.booleans(), action=st.sampled_from(["hold", "release"]), number=picks)
    def holds_or_releases(self, http: bool, action: str, number: int) -> None:
        job = self.pick(number)
        waits = self.states[job] in ("queued", "held")
        runs = self.states[job] in ACTIVE
        assert self.act(http, action, [job]) == (200 if waits or (runs and action == "release") else 409)
        if waits:
            self.jobs[job].state = "held" if action == "hold" else "live"
        self.settled()

    @rule(http=st.booleans(), number=picks)
    def requeues(self, http: bool, number: int) -> None:
        job = self.pick(number)
        known = self.jobs[job]
        ended = known.state in ENDED
        refused = ended and self.broken(known.after)
        held = self.states[job] == "held"
        assert self.act(http, "requeue", [job]) == (409 if held else 400 if refused else 200)
        if ended and not refused:
            known.state, known.failures = "live", 0
        self.settled()

    @rule(
        http=st.booleans(),
        number=picks,
        change=st.sampled_from([{"priority": 3}, {"priority": -3}, {"gpus": 2}, {"gpus": 9}, {"retries": 1}]),
    )
    def updates(self, http: bool, number: int, change: dict[str, Any]) -> None:
        job = self.pick(number)
        known, active = self.jobs[job], self.states[job] in ACTIVE
        expected = 200
        if known.state in ENDED or (active and "gpus" in change):
            expected = 409
        elif not active and change.get("gpus", 0) > SLOTS:
            expected = 422
        elif not active and self.broken(known.after):
            expected = 400
        assert self.act(http, "update", [job], changes=change) == expected
        if expected == 200:
            known.spec = {**known.spec, **change}
        self.settled()

    @rule(http=st.booleans(), number=picks)
    def goes_to_the_top(self, http: bool, number: int) -> None:
        job = self.pick(number)
        known = self.jobs[job]
        refused = self.states[job] not in ACTIVE and self.broken(known.after)
        assert self.act(http, "top", [job]) == (409 if known.state in ENDED else 400 if refused else 200)
        self.settled()

    @rule(http=st.booleans(), policy=st.sampled_from(POLICIES))
    def chooses_policy(self, http: bool, policy: str) -> None:
        call = lambda: self.live.service.set_policy(policy)  # noqa: E731
        assert self.ask(http, "PUT", "/v1/policy", {"policy": policy}, call)[0] == 200
        self.policy = policy
        self.settled()

    @rule(http=st.booleans(), state=st.sampled_from(["up", "up", "cordoned", "draining"]))
    def opens_or_closes_the_machine(self, http: bool, state: str) -> None:
        node = self.live.service.nodes()[0]["name"]
        call = lambda: self.live.service.set_node(node, NodeState(state))  # noqa: E731
        assert self.ask(http, "POST", f"/v1/nodes/{node}", {"state": state}, call)[0] == 200
        self.node_state = state
        self.settled()

    @rule(number=picks, code=st.sampled_from([0, 0, 1, 85, None]))
    def a_run_ends(self, number: int, code: int | None) -> None:
        runs = sorted(self.executor.live())
        if not runs:  # no precondition: what is drawn must not depend on how far the scheduler's thread is
            return
        run = runs[number % len(runs)]
        self.executor.end(run, code, signal=9 if code is None else None)
        self.ends(run, code)
        self.settled()

    @rule(
        ends=st.lists(st.tuples(picks, st.sampled_from([0, 1])), max_size=2),
        spec=st.none() | specs,
        http=st.booleans(),
    )
    def is_killed_and_comes_back(self, ends: list[tuple[int, int]], spec: dict[str, Any] | None, http: bool) -> None:
        """Perhaps just after it has acknowledged a submission; and while it is away, runs end."""
        if spec is not None:
            self.submission(http, spec, None, None, "ok")
        self.live.crash()
        self.states = {job: self.live.job(job).phase.value for job in self.jobs}
        for number, code in ends:
            if runs := sorted(self.executor.live()):
                run = runs[number % len(runs)]
                self.executor.end(run, code)
                self.ends(run, code)
        self.up()

    # -- what holds always ----------------------------------------------------------------------------------------

    @invariant()
    def the_model_is_right(self) -> None:
        views = {}
        path = "/v1/jobs?limit=1000"
        for view in self.api("GET", path).json()["jobs"]:
            views[view["id"]] = view
        assert views.keys() == self.jobs.keys()
        for job, known in self.jobs.items():
            state, view = self.states[job], views[job]
            assert view["state"] == state
            told = "live" if state in ("queued", *ACTIVE) else state
            assert told == known.state, (job, state, known)
            assert view["gpus"] == known.spec["gpus"]
            assert (view["waiting"] is not None) == (state in ("queued", "held", "frozen"))
        assert self.live.service.policy()["policy"] == self.policy

    def is_pair(self, jobs: list[int]) -> bool:
        """Whether these may share a slot under any policy: a best-effort job beside a high one."""
        specs = [self.jobs[job].spec for job in jobs]
        return is_pair([str(spec.get("share_class")) for spec in specs]) and all(spec["gpus"] == 1 for spec in specs)

    @invariant()
    def slots_and_runs_agree(self) -> None:
        assert self.live.scheduler.problem == ""
        attempts = list(self.live.book.attempts.values())
        assert {short(attempt.run) for attempt in attempts} == self.executor.live()
        assert set(self.executor.starts.values()) <= {1}
        on: dict[int, list[int]] = {}
        for attempt in attempts:
            for _, gpus in attempt.allocation if attempt.phase != "frozen" else ():
                for slot in gpus:
                    on.setdefault(slot, []).append(attempt.job)
        assert set(on) <= set(range(SLOTS))
        shared = [jobs for jobs in on.values() if len(jobs) > 1 and not self.is_pair(jobs)]
        # Those that shared slots under the policy before go on.
        self.alone = self.policy not in SHARING and (self.alone or not shared)
        assert not (self.alone and shared)
        for attempt in attempts:
            assert sum(len(gpus) for _, gpus in attempt.allocation) == self.live.job(attempt.job).gpus
        if self.node_state == "draining":
            assert all(self.jobs[a.job].spec.get("on_preempt") == "never" for a in attempts)

    @invariant()
    def nothing_waits_beside_enough_free_slots(self) -> None:
        """First come first served, on an open machine, with nothing else to wait for: the head of the queue has not
        got its slots because they are not there."""
        if self.policy != "fifo" or self.node_state != "up":
            return
        attempts = self.live.book.attempts.values()
        free = SLOTS - len({gpu for a in attempts if a.phase != "frozen" for _, gpus in a.allocation for gpu in gpus})
        simple = [
            job
            for job, known in self.jobs.items()
            if self.states[job] == "queued" and not known.after and "%" not in known.spec.get("array", "")
        ]
        if simple:

            def turn(job: int) -> tuple[float, ...]:
                known = self.live.job(job)
                return -known.priority, known.submitted_s, job  # a requeued one counts as submitted anew

            head = min(simple, key=turn)
            queue = [job for job in self.jobs if self.states[job] in ("queued", "frozen")]
            if head == min(queue, key=turn):
                assert self.live.job(head).gpus > free


def _whole(spec: dict[str, Any]) -> dict[str, Any]:
    return {"command": ["train"], **spec}


LiveApi.TestCase.settings = settings(max_examples=examples(40), stateful_step_count=25, deadline=None)
TestLiveApi = LiveApi.TestCase
