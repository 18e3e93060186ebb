"""Checks a policy as the simulator and the live scheduler will use it, and says which requirements it does not meet.

Each check is a function that raises: a `PolicyFailure` of the policy's code, a `PlanError` of a plan that is refused, a
`Fault` for anything else that does not hold.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gpuloom.core.cluster import parse_cluster
from gpuloom.core.decision import Decision, Reason
from gpuloom.core.errors import ClusterError, GpuloomError
from gpuloom.core.snapshot import Snapshot
from gpuloom.core.state import State
from gpuloom.core.workload import Labels, Speeds, Workload
from gpuloom.facts.inputs import load_policy
from gpuloom.live.planning.asking import PolicyFailure
from gpuloom.live.trial.rehearsal import FLEET, Rehearsal
from gpuloom.policies.base import Policy, Traits
from gpuloom.policies.blame import said, where
from gpuloom.policies.memory import dump, load
from gpuloom.sim import Failure, simulate
from gpuloom.sim.rebuilt import OUTAGES, Rebuilt
from gpuloom.sim.result import SimResult
from gpuloom.traces.generate import GeneratorConfig, generate

HISTORIES, STEPS = 6, 60
"""Histories of live events that are tried, and events of each."""
JOBS = 40


class Fault(Exception):  # noqa: N818 - it is no error of the program
    """What does not hold."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What came of a check. outcome: 'ok', 'failed' or 'skipped'; why: in words; where: a line of the policy's code."""

    check: str
    outcome: str
    why: str = ""
    where: str = ""

    def view(self) -> dict[str, str]:
        return {"check": self.check, "outcome": self.outcome, "why": self.why, "where": self.where}


class _Skipped(Exception):  # noqa: N818
    pass


def check_policy(text: str, *, seed: int = 1) -> Iterator[Finding]:
    """Check the policy that is written so (an id with its parameters), one finding after another.

    Raises:
        PolicyError: there is no such policy, or it can't be made.
    """
    policy = load_policy(text)
    for name, check in CHECKS.items():
        try:
            check(text, seed)
        except _Skipped as why:
            yield Finding(name, "skipped", str(why))
        except PolicyFailure as failure:
            yield Finding(name, "failed", f"{failure.error}, in {failure.call.value}", failure.where)
        except Fault as fault:
            yield Finding(name, "failed", str(fault))
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            if isinstance(error, KeyboardInterrupt) and not where(error, policy):
                raise  # by whoever waits for the checks
            yield Finding(name, "failed", said(error), where(error, policy))
        else:
            yield Finding(name, "ok")


# -- workloads -------------------------------------------------------------------------------------------------


def _workload(seed: int, *, mixed: bool = False) -> Workload:
    """A crowded day of 16 GPUs: users, priorities, models with stage times, equal times, jobs of no length."""
    made = generate(GeneratorConfig(jobs=JOBS, gpus=16, load=1.3, seed=seed, opportunistic=0.3))
    n, turn = len(made), np.arange(len(made))
    submit = made.submit_s.copy()
    submit[1::7] = submit[0 : n - 1 : 7]  # some at the same time
    kinds = np.array([(3.0, 0.2, 0.1), (0.2, 3.0, 0.1), (0.2, 0.3, 3.0), (np.nan,) * 3])
    made = replace(
        made,
        submit_s=np.sort(submit),
        duration_s=np.where(turn % 13 == 5, 0.0, np.minimum(made.duration_s, 20_000.0)),
        gpus=np.minimum(made.gpus, 8).astype(np.int32),
        stage_s=kinds[turn * 7 % 11 % 4],
        user=Labels.of([("ann", "ben", "eve")[i % 5 % 3] for i in range(n)]),
    )
    if mixed:
        factor = np.array([(1.0, 0.25), (1.0, 0.5), (1.0, 1.0), (0.5, 1.0)])[turn * 5 % 7 % 4]
        types = Labels.of([("", "", "K80", "V100")[i % 7 % 4] for i in range(n)])
        made = replace(made, speeds=Speeds(("V100", "K80"), factor), gpu_type=types, gpus=np.minimum(made.gpus, 4))
    return made


def _simulated(text: str | Policy, workload: Workload, cluster: str, failures: tuple[Failure, ...] = ()) -> SimResult:
    """The result, in which every job has ended."""
    result = simulate(workload, cluster, text, failures=failures)
    if result.finished != len(workload):
        raise Fault(f"{len(workload) - result.finished} of {len(workload)} jobs never end on {cluster}")
    return result


def _same(first: SimResult, second: SimResult, why: str) -> None:
    differ = np.flatnonzero(first.end_s != second.end_s)
    if len(differ):
        job = int(differ[0])
        raise Fault(
            f"{why}: {len(differ)} of {len(first.end_s)} jobs end at other times (one at {first.end_s[job]:g} s, then "
            f"at {second.end_s[job]:g} s)"
        )


# -- the checks ------------------------------------------------------------------------------------------------


def _says_what_it_is(text: str, seed: int) -> None:
    policy = load_policy(text)
    traits = policy.traits
    if not isinstance(traits, Traits) or not (traits.summary and traits.knows):
        raise Fault("traits must be a Traits that says summary and knows")
    if traits.sharing != (policy.max_jobs_per_gpu > 1):
        raise Fault(f"traits.sharing is {traits.sharing}, max_jobs_per_gpu {policy.max_jobs_per_gpu}")
    for parameter in policy.parameters:
        if not parameter.help:
            raise Fault(f"parameter {parameter.name} has no help")


def _nothing_to_decide(text: str, seed: int) -> None:
    some = _workload(seed)
    for workload in (some.take(np.zeros(0, dtype=np.intp)), some.take(np.arange(1))):
        cluster = parse_cluster("2x4")
        policy = load_policy(text)
        policy.cache = None
        state = State(workload, cluster, layers=policy.max_jobs_per_gpu)
        decision, _ = policy.decide(Snapshot(state, np.zeros(len(workload))), policy.new_memory(workload, cluster))
        if decision.run or list(decision.wait):
            raise Fault("it makes a decision although no job has been submitted")


def _one_model(text: str, seed: int) -> None:
    _simulated(text, _workload(seed), "2x8")


def _several_models(text: str, seed: int) -> None:
    with _unless_it_says_so():
        _simulated(text, _workload(seed, mixed=True), "2x4:V100,2x4:K80")


@contextmanager
def _unless_it_says_so() -> Iterator[None]:
    try:
        yield
    except ClusterError as error:
        raise _Skipped(f"it says that it can't: {error}") from error


def _machines_fail(text: str, seed: int) -> None:
    _simulated(text, _workload(seed), "2x8", OUTAGES)


def _the_same_twice(text: str, seed: int) -> None:
    workload, policy = _workload(seed), load_policy(text)
    first = _simulated(policy, workload, "2x8")
    _simulated(policy, _workload(seed + 1), "2x8")
    _same(first, _simulated(policy, workload, "2x8"), "the same object decides differently after other runs")
    _same(first, _simulated(text, workload, "2x8"), "another object of the policy decides differently")


def _memory_written_down(text: str, seed: int) -> None:
    class Watched(_Inside):
        def decide(self, snapshot: Snapshot, memory: Any) -> tuple[Decision, Any]:
            decision, after = super().decide(snapshot, memory)
            written = dump(after, self.policy)
            if dump(load(written, self.policy), self.policy) != written:
                raise Fault("its memory differs after it was saved and loaded")
            return decision, after

    _simulated(Watched(text), _workload(seed), "2x8")


def _restarts(text: str, seed: int) -> None:
    workload = _workload(seed)
    plain = _simulated(text, workload, "2x8")
    again = _simulated(Rebuilt(text, compact=False), workload, "2x8")
    _same(plain, again, "it decides differently when restarted before each decision, so its memory lacks something")


def _other_numbers(text: str, seed: int) -> None:
    workload = _workload(seed)
    plain = _simulated(text, workload, "2x8")
    again = _simulated(Rebuilt(text, compact=True), workload, "2x8")
    _same(plain, again, "it decides differently when jobs are renumbered (Policy.carried, core/carrying.py)")


def _sharing(text: str, seed: int) -> None:
    policy = load_policy(text)
    if policy.max_jobs_per_gpu == 1:
        raise _Skipped("it gives each GPU to one job")
    workload = _workload(seed)
    rates = policy.sharing(workload)
    if rates is None:
        raise Fault(f"max_jobs_per_gpu is {policy.max_jobs_per_gpu}, but sharing() gives no speeds")
    _simulated(text, replace(workload, gpu_memory_mib=np.full(len(workload), 6_000.0)), "2x8:V100")


def _reasons(text: str, seed: int) -> None:
    class Asked(_Inside):
        def decide(self, snapshot: Snapshot, memory: Any) -> tuple[Decision, Any]:
            answer = super().decide(snapshot, memory)
            for job in snapshot.waiting():
                if job in answer[0].run:
                    continue
                reason = self.policy.reason(snapshot, job)
                if not isinstance(reason, Reason) or not reason.code or not reason.text:
                    raise Fault(f"reason() returns {reason!r}, must be a Reason with code and text")
            return answer

    _simulated(Asked(text), _workload(seed), "2x8")


class _Inside(Policy):
    """A policy within another object that looks on."""

    id = "inside"

    def __init__(self, text: str) -> None:
        self.policy = policy = load_policy(text)
        policy.forget()
        self.stands_for(policy)

    def forget(self) -> None:
        self.policy.forget()

    def new_memory(self, workload: Workload, cluster: Any) -> Any:
        return self.policy.new_memory(workload, cluster)

    def sharing(self, workload: Workload) -> Any:
        return self.policy.sharing(workload)

    def decide(self, snapshot: Snapshot, memory: Any) -> tuple[Decision, Any]:
        return self.policy.decide(snapshot, memory)


# -- live ------------------------------------------------------------------------------------------------------


def _live(text: str, seed: int) -> None:
    for history in range(HISTORIES):
        walk = _Walk(text, random.Random(seed * 1000 + history))
        for _ in range(STEPS):
            walk.step()
        walk.all_end()


class _Walk:
    """A random history of a live scheduler: jobs, ends, restarts, swaps, GPUs that come and go, time."""

    def __init__(self, text: str, draw: random.Random) -> None:
        self.text, self.draw = text, draw
        self.live = Rehearsal(text)
        self.did: list[str] = []

    def step(self) -> None:
        steps = (self.submit, self.submit, self.end, self.end, self.wait, self.restart, self.swap, self.gpus, self.ask)
        step: Callable[[], None] = self.draw.choice(steps)
        self.did.append(step.__name__)
        step()
        self.well()

    def well(self) -> None:
        """Raises Fault if the policy has failed."""
        planning = self.live.scheduler.planning
        failure = planning.seat.standby.failure or planning.seat.standby.unwritten
        if planning.seat.written == self.text and failure is not None:
            at = f" ({failure.where})" if failure.where else ""
            raise Fault(f"{failure.error}{at}, in {failure.call.value}, after: {', '.join(self.did[-6:])}")

    def submit(self) -> None:
        draw, specs = self.draw, []
        for _ in range(draw.randint(1, 3)):
            spec: dict[str, Any] = {"gpus": draw.randint(1, 4), "estimate": draw.choice([5.0, 500.0, 50_000.0])}
            spec["priority"] = draw.choice([-1, 0, 0, 0, 2])
            if draw.random() < 0.3:
                spec["gpu_types"] = [draw.choice(["V100", "K80"])]
                spec["gpus"] = min(spec["gpus"], FLEET.count(spec["gpu_types"][0]))
            if draw.random() < 0.3:
                spec["on_preempt"] = draw.choice(["freeze", "never"])
            if draw.random() < 0.3:
                spec["share_class"] = draw.choice(["high", "best-effort"])
            specs.append(spec)
        self.live.submit(*specs, user=draw.choice(["ann", "ben"]))

    def end(self) -> None:
        if runs := sorted(self.live.executor.live()):
            self.live.end(self.draw.choice(runs), self.draw.choice([0, 0, 0, 1]))

    def wait(self) -> None:
        self.live.later(self.draw.choice([1.0, 60.0, 4_000.0]))

    def restart(self) -> None:
        self.live.restart(orderly=self.draw.random() < 0.5)

    def swap(self) -> None:
        self.live.tell(lambda: self.live.service.set_policy(self.draw.choice(["srtf", "antman", "muri-l"])))
        self.live.later(30.0)
        self.live.tell(lambda: self.live.service.set_policy(self.text))

    def gpus(self) -> None:
        draw = self.draw
        self.live.gpus(
            {gpu: draw.choice(["ok", "ok", "unhealthy"]) for gpu in range(len(FLEET)) if draw.random() < 0.4}
        )

    def ask(self) -> None:
        action = self.draw.choice(["cancel", "hold", "release", "requeue", "why"])
        if going := self.live.going():
            job = self.draw.choice(going)
            with suppress(GpuloomError):  # not every job can
                call = getattr(self.live.service, action)
                self.live.tell(lambda: call(job) if action == "why" else call([job]))

    def all_end(self) -> None:
        """With everything in service and no further job, all jobs end."""
        live = self.live
        live.gpus(dict.fromkeys(range(len(FLEET)), "ok"))
        with suppress(GpuloomError):
            live.tell(lambda: live.service.release([n for n in live.going() if live.jobs[n].phase == "held"]))
        for turn in range(20 * (len(live.going()) + 5)):
            if not live.going():
                return
            for run in sorted(live.executor.live())[: 1 + turn % 3]:
                live.executor.end(run, 0)
            live.turn()
            live.later(1000.0 if turn % 3 else 1.0)
            self.well()
        if left := live.going():
            raise Fault(f"{len(left)} jobs wait forever although all GPUs are free, after: {', '.join(self.did[-6:])}")


CHECKS: dict[str, Callable[[str, int], None]] = {
    "says what it is": _says_what_it_is,
    "decides nothing without jobs": _nothing_to_decide,
    "every job ends": _one_model,
    "several GPU models": _several_models,
    "machines that fail": _machines_fail,
    "jobs that share GPUs": _sharing,
    "decides the same twice": _the_same_twice,
    "gives reasons": _reasons,
    "memory can be saved and loaded": _memory_written_down,
    "restarts": _restarts,
    "jobs numbered anew": _other_numbers,
    "live, in any order of events": _live,
}
"""By name, in this order."""
