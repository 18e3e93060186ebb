"""Checks a submission against the cluster and the jobs that exist, and turns it into events."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence

from gpuloom.core.book import Book
from gpuloom.core.errors import ImpossibleJobError, InputError
from gpuloom.core.job import ENDED, DeviceKind, Job, Needed, NodeRecord, NodeSource
from gpuloom.executors.environment import prepared
from gpuloom.live.planning.eligible import broken
from gpuloom.live.records.fleet import Needs, why_never
from gpuloom.live.submission.spec import JobSpec
from gpuloom.sharing.job_profile import check_job_profile

MOST_NEEDS = 1000
"""Answers that are remembered."""


class Admission:
    """Makes the checks of each request. From any thread.

    Why what asks for this much can never be placed is remembered while the machines stay as they are.
    """

    def __init__(
        self, book: Book, find: Callable[[int], Job | None], may_come: Callable[[], float] = lambda: 0.0
    ) -> None:
        """may_come: GPUs of nodes that are not known yet: what fits on so many is taken, and may wait for them."""
        self._book, self._find, self._may_come = book, find, may_come
        self._known: tuple[tuple[NodeRecord, ...], dict[Needs, str]] = (), {}

    def checks(self) -> Checks:
        """The checks of one request."""
        nodes = tuple(self._book.nodes.values())
        of, never = self._known
        if of != nodes or len(never) >= MOST_NEEDS:
            never = {}
            self._known = nodes, never
        return Checks(nodes, self._find, never, self._may_come())


class Checks:
    """Whether the specs of a request can be taken.

    never: by what jobs ask for, why they can never be placed ('': they can), as far as it is known.
    """

    def __init__(
        self,
        nodes: Sequence[NodeRecord],
        find: Callable[[int], Job | None],
        never: dict[Needs, str],
        may_come: float = 0.0,
    ) -> None:
        self._nodes, self._find, self._never, self._may_come = nodes, find, never, may_come
        self._elsewhere = bool(may_come or nodes) and all(node.source is not NodeSource.HERE for node in nodes)
        """No job runs on this machine: what its folders hold says nothing."""
        self._folders: set[str] = set()
        self._profiles: set[tuple[str, str]] = set()

    def spec(self, spec: JobSpec, where: str) -> None:
        """Raises ImpossibleJobError or InputError, naming the submission, what can't be and what there is."""
        comes = spec.gpus <= self._may_come
        if not comes and spec.gpu_memory is not None and all(node.kind == DeviceKind.CPU for node in self._nodes):
            raise ImpossibleJobError(
                f"{where} can never start: it asks for {spec.gpu_memory} MiB of GPU memory; this cluster has only "
                f"CPU slots"
            )
        # A machine must have room for one replica at least.
        memory = spec.memory if spec.replica_memory is None else spec.replica_memory
        cpus = spec.cpus if spec.replica_cpus is None else spec.replica_cpus
        needs = Needs(spec.gpus, tuple(spec.gpu_types), spec.gpu_memory, memory, cpus)
        never = self._never.get(needs)
        if never is None:
            never = self._never[needs] = why_never(self._nodes, needs)
        if never and not comes:
            raise ImpossibleJobError(f"{where} can never start: {never}")
        if not self._elsewhere:
            self._places(spec, where)
        self.after(spec.dependencies(), where)

    def after(self, dependencies: Iterable[tuple[int, Needed]], where: str) -> None:
        """Raises InputError where a job that is waited for is not there, or has ended badly."""
        for number, how in dependencies:
            other = self._find(number)
            if other is None:
                raise InputError(f"{where}: after is {number}, but there is no job {number}")
            if other.phase in ENDED and (ended := broken(other, how)):
                raise InputError(f"{where} can never start: job {number} {ended}")

    def _places(self, spec: JobSpec, where: str) -> None:
        if spec.workdir and spec.workdir not in self._folders:
            if not os.path.isdir(spec.workdir):
                raise InputError(f"{where}: workdir {spec.workdir} is not a folder on this machine")
            self._folders.add(spec.workdir)
        if spec.kernel_profile and (spec.kernel_profile, spec.workdir) not in self._profiles:
            try:
                check_job_profile(spec.kernel_profile, spec.workdir or os.path.expanduser("~"))
            except InputError as error:
                raise InputError(f"{where}: {error}") from error
            self._profiles.add((spec.kernel_profile, spec.workdir))
        if spec.venv or spec.conda or spec.container:
            try:
                prepared(
                    tuple(spec.command),
                    dict(spec.env),
                    venv=spec.venv,
                    conda=spec.conda,
                    container=spec.container,
                    cwd=spec.workdir or "/",
                    gpus=(),
                    gpu_uuids=(),
                    kind="cpu",
                    run="0.0",
                )
            except InputError as error:
                raise InputError(f"{where}: {error}") from error
