"""Pilots of Slurm in the running scheduler: the thread that looks at Slurm's queue and at what jobs need, and does what
the controller (`slurm/pilots.py`) says.
"""

from __future__ import annotations

import logging
import math
import os
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Protocol

from gpuloom.core.errors import GpuloomError
from gpuloom.live.planning.scene import NONE_COMES, Coming
from gpuloom.live.views.pilots import PilotsView, pilots_view
from gpuloom.slurm.commands import Slurm, SlurmError
from gpuloom.slurm.parse import SlurmJob
from gpuloom.slurm.pilots import Action, Ask, Controller, Drain, End, Gone, Limits, PilotState, Until, Wanted
from gpuloom.slurm.plan import Allocation
from gpuloom.slurm.script import TOKEN, Request, options_of, script_of, step_of, step_options
from gpuloom.threads import Worker

log = logging.getLogger("gpuloom.pilots")

SOON_S, LATER_S = 2.0, 15.0
"""Between looks at Slurm's queue while something changes there, and else."""
PATIENT_S = 120.0
"""After so long in Slurm's queue a request is looked at as seldom as what runs."""
REST_S = 0.2
"""Least time between two looks at what jobs need."""


class PilotNodes(Protocol):
    """The scheduler above: what its jobs need, and what it is told of nodes. Times are of its clock."""

    def wanted(self) -> Wanted: ...

    def ours_until(self, name: str, until_s: float | None, engine_job: str) -> None: ...

    def comes(self, coming: Coming) -> None:
        """What is known of nodes that are asked for."""
        ...

    def closes(self, name: str, why: str) -> None:
        """Its time with us ends: nothing new starts there, and jobs are moved away."""
        ...

    def gone(self, name: str, why: str) -> None:
        """It is not ours any more, and nothing of ours runs there."""
        ...


class Tokens(Protocol):
    """Tokens with which nodes join."""

    def mint(self) -> tuple[str, str]:
        """(its number, the token)."""
        ...

    def revoke(self, number: str) -> None: ...


class Pilots:
    """See the module. `start`, then `stop`.

    Args:
        wait: returns once something has happened after the event of this number, or after so many seconds; the number
            of the newest. now: the scheduler's clock. inside: see Allocation; then none is asked for.
    """

    def __init__(
        self,
        slurm: Slurm,
        limits: Limits,
        request: Request,
        nodes: PilotNodes,
        tokens: Tokens,
        *,
        wait: Callable[[int, float], int],
        now: Callable[[], float],
        inside: Allocation | None = None,
    ) -> None:
        if inside is not None:
            limits = replace(limits, nodes=0, idle_s=math.inf)
        self.limits, self.request, self.inside = limits, request, inside
        self._slurm, self._nodes, self._tokens, self._wait, self._now = slurm, nodes, tokens, wait, now
        self._controller = Controller(limits, request.log)
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._look_s = 0.0
        self._said_coming = NONE_COMES
        self._ahead_s: float | None = None
        self._token_of: dict[int, str] = {}
        """Job of Slurm → number of its token."""
        self._loose: list[str] = []
        """Tokens of requests that failed. Slurm may have taken them all the same: those pilots join with them."""
        self._steps: subprocess.Popen[bytes] | None = None
        self._worker = Worker("pilots", self._work)

    def start(self) -> None:
        """Begin to look."""
        self._worker.start()

    def stop(self) -> None:
        """End; allocations that nobody uses are given back, the others go on."""
        self._ended.set()
        self._worker.end(5.0)
        with suppress(GpuloomError):
            wanted = self._nodes.wanted()
            if not self._controller.unseen_words:  # one that has just begun, and has jobs by now
                self._look(wanted)
            with self._lock:
                ends = self._controller.close(wanted)
            for end in ends:
                self._do(end)
        self._end_steps()

    @property
    def problem(self) -> str:
        """'' or why pilots are not looked after."""
        return self._worker.problem

    def view(self) -> PilotsView:
        """What there is, and what is wrong. From any thread."""
        with self._lock:
            return pilots_view(self._controller, self.request, self.problem)

    # -- the thread ---------------------------------------------------------------------------------------------

    def _work(self) -> None:
        after = 0
        while not self._ended.is_set():
            begun = time.monotonic()
            self.turn()
            took_s = time.monotonic() - begun
            if self._ended.wait(max(REST_S, 4 * took_s)):
                return
            after = self._wait(after, max(min(self._look_s - time.monotonic(), SOON_S), 0.0))

    def turn(self) -> None:
        """Look once, and do what is due."""
        try:
            wanted = self._nodes.wanted()
        except GpuloomError as error:  # the scheduler ends, or a decision takes long
            log.info("pilots are not looked after now: %s", error)
            return
        if time.monotonic() >= self._look_s or self._news(wanted):
            self._look(wanted)
        with self._lock:
            actions = self._controller.step(self._now(), wanted)
            coming = Coming(self._controller.lasts_s, self._controller.coming_words)
        if coming != self._said_coming:
            with suppress(GpuloomError):  # the scheduler ends, or a decision takes long: with the next turn
                self._nodes.comes(coming)
                self._said_coming = coming
        for action in actions:
            try:
                self._do(action)
            except GpuloomError as error:  # the scheduler ends, or can't write
                log.warning("not done: %s: %s", action, error)
                if isinstance(action, Drain):
                    with self._lock:
                        self._controller.not_drained(action.node)

    def _news(self, wanted: Wanted) -> bool:
        """Whether a node has joined whose pilot is not known to run yet."""
        pending = {str(p.job) for p in self._controller.pilots if p.state is PilotState.PENDING}
        return any(use.engine_job in pending for use in wanted.nodes.values())

    def _look(self, wanted: Wanted) -> None:
        try:
            jobs = self._jobs()
        except SlurmError as error:
            if not self._controller.unseen_words:
                log.warning("Slurm can't be asked; what runs goes on: %s", error)
            with self._lock:
                self._controller.unseen(str(error))
        else:
            if self._controller.unseen_words:
                log.warning("Slurm answers again")
            with self._lock:
                self._controller.see(jobs, self._now())
            living = {pilot.job for pilot in self._controller.pilots}
            there = {use.engine_job for use in wanted.nodes.values()}
            for job in [job for job in self._token_of if job not in living and str(job) not in there]:
                self._revoke(self._token_of.pop(job))
            while self._loose and living <= self._token_of.keys() | {None}:
                self._revoke(self._loose.pop())
        self._look_s = time.monotonic() + (SOON_S if self._unsettled() else LATER_S)

    def _unsettled(self) -> bool:
        now_s = self._now()
        return any(
            (pilot.state is not PilotState.RUNNING and now_s - pilot.since_s < PATIENT_S)
            or (pilot.state is PilotState.RUNNING and not pilot.joined)
            for pilot in self._controller.pilots
        )

    def _jobs(self) -> Sequence[SlurmJob]:
        if self.inside is None:
            found = self._slurm.jobs(self.request.name)
        else:
            job = self._slurm.job(self.inside.job)
            found = [] if job is None else [job]
            self._begin_steps(found)
        # Slurm's times are of the wall clock.
        ahead_s = round(self._now() - time.time(), 1)
        if self._ahead_s is None or abs(ahead_s - self._ahead_s) > 1.0:  # else each look would say another end
            self._ahead_s = ahead_s
        return [job if job.end_s is None else replace(job, end_s=job.end_s + self._ahead_s) for job in found]

    def _do(self, action: Action) -> None:
        match action:
            case Ask(ticket, nodes):
                self._ask(ticket, nodes)
            case End(job, why):
                self._end(job, why)
            case Drain(node, why):
                log.info("node %s is emptied: %s", node, why)
                self._nodes.closes(node, why)
            case Until(node, until_s, job):
                self._nodes.ours_until(node, until_s, str(job))
            case Gone(node, why, _, sure):
                log.info("node %s is ours no more: %s", node, why)
                self._nodes.gone(node, why) if sure else self._nodes.closes(node, why)

    def _ask(self, ticket: int, nodes: int) -> None:
        number = ""
        try:
            number, token = self._tokens.mint()
            job = self._slurm.submit(script_of(self.request), options_of(self.request, nodes), {TOKEN: token})
        except GpuloomError as error:
            log.warning("no pilot: %s", error)
            with self._lock:
                self._controller.refused(ticket, str(error), self._now())
            if number:
                self._loose.append(number)
            return
        log.info("asked Slurm for a pilot on %d nodes: job %d", nodes, job)
        self._token_of[job] = number
        with self._lock:
            self._controller.asked(ticket, job, self._now())
        self._look_s = min(self._look_s, time.monotonic() + SOON_S)

    def _end(self, job: int, why: str) -> None:
        log.info("job %d of Slurm is given back: %s", job, why)
        if self.inside is not None:
            self._end_steps()
            return
        try:
            self._slurm.cancel(job)
        except SlurmError as error:
            log.warning("job %d of Slurm can't be given back now: %s", job, error)
            self._controller.not_ended(job)
            self._controller.unseen(str(error))
        self._look_s = min(self._look_s, time.monotonic() + SOON_S)

    def _revoke(self, number: str) -> None:
        try:
            self._tokens.revoke(number)
        except GpuloomError as error:
            log.warning("the token of a pilot that is over still counts: %s", error)

    # -- inside an allocation -----------------------------------------------------------------------------------

    def _begin_steps(self, found: Sequence[SlurmJob]) -> None:
        """Run the node processes in the allocation that there is, once."""
        if self.inside is None or self._steps is not None or not found or not found[0].running:
            return
        _, token = self._tokens.mint()
        command = ["srun", f"--jobid={self.inside.job}", f"--nodes={self.inside.nodes}", *step_options(overlap=True)]
        environment: Mapping[str, str] = {**os.environ, TOKEN: token}
        self._steps = subprocess.Popen(  # noqa: S603 - a command of Slurm, no shell
            [*command, "/bin/sh", "-c", step_of(self.request)],
            env=environment,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )

    def _end_steps(self) -> None:
        if self._steps is not None and self._steps.poll() is None:
            self._steps.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._steps.wait(5.0)
