"""What a policy is: one method that decides, declared parameters, declared traits."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, is_dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Any, ClassVar

from gpuloom.core.carrying import Rows, carry
from gpuloom.core.cluster import Cluster, plain_model
from gpuloom.core.decision import Decision, Reason
from gpuloom.core.errors import InputError, PolicyError
from gpuloom.core.policy_state import NoState, PolicyState
from gpuloom.core.sharing import Sharing
from gpuloom.core.snapshot import Snapshot
from gpuloom.core.units import parse_duration_s
from gpuloom.core.words import are, did_you_mean, plural
from gpuloom.core.workload import F8, Workload


class Preemptive(StrEnum):
    """When a policy stops running jobs for others."""

    NO = "no"
    YES = "yes"
    AT_ROUNDS = "at rounds"
    AT_LEASE_ENDS = "at lease ends"
    AS_BASE = "as the base"


@dataclass(frozen=True, slots=True)
class Traits:
    """The row of a policy in docs/reference/policies.md. preemptive: may be given as the word."""

    summary: str
    knows: str
    preemptive: Preemptive
    heterogeneity: bool
    sharing: bool
    paper: str
    weights: str
    """What a job's weight (`Workload.weight`) means; empty: nothing, it is ignored."""

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "preemptive", Preemptive(self.preemptive))
        except ValueError:
            raise PolicyError(f"preemptive is {self.preemptive!r}: must be one of {', '.join(Preemptive)}") from None

    @property
    def preempts(self) -> bool:
        """It may stop running jobs for others."""
        return self.preemptive is not Preemptive.NO


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a policy: how it is written, what it means, what it is by default."""

    name: str
    default: Any
    parse: Callable[[str], Any]
    help: str
    shown: str | None = None
    """The default as one would write it; None: as Python prints it."""
    names_file: bool = False
    """The value is the name of a file of numbers, which the caller reads: policies do no I/O."""
    names_measure: bool = False
    """The value may be the name of a measure of GPU models, for which the caller hands in numbers by model."""
    content: Callable[[Any], Any] | None = None
    """Of a parameter that names a file: makes the value of the file's text, ValueError if it can't (None: numbers)."""
    yaml: bool = False
    """The file is YAML, and `content` is given what it holds."""


class Capabilities:
    """What the engine, the simulator and the live scheduler have to know of a policy. Each policy sets what is not so
    by default; one that asks another has all of that one's but those that it names (`Policy.take_capabilities`).
    """

    max_jobs_per_gpu: int = 1
    """How many jobs may hold a GPU at once, each on a sharing layer of its own."""
    shares_with: str = ""
    """The parameter with which it shares GPUs, if it does so only then."""
    periodic: bool = False
    """Priorities change as time passes: wants to be asked at every scheduling interval, even if nothing happened."""
    spills_memory: bool = False
    """Jobs on one GPU may need more memory together than it has: what is too much lies in the host's."""
    uses_stages: bool = False
    """Decides by the stage times of jobs, or has jobs slow each other down by them."""
    weaves: bool = False
    """Jobs that share GPUs take turns on each resource, stage by stage."""
    preempts_at_intervals: bool = False
    """Running jobs are stopped for others at scheduling intervals only (`Snapshot.may_preempt`)."""
    rewarded: bool = False
    """Learns from the throughput that jobs report (`Snapshot.measured`), and groups them by compute over communication:
    stage times are filled in where jobs really run."""
    resizes: bool = False
    """Gives jobs other numbers of GPUs than they asked for, within their `Workload.scaling`."""
    own_priorities: bool = False
    """Goes by `Workload.priority` itself: guaranteed jobs, and opportunistic ones that run beside them."""
    ranks_priorities: bool = False
    """Goes by `Workload.priority` among running jobs, 0 the highest: live priorities come to it as such ranks."""
    moves_running: bool = False
    """Restarts running jobs on other GPUs, even if it never stops one for another."""
    pairs: bool = False
    """Puts best-effort jobs beside high-priority ones (`Workload.share_class`), and such as are in `Snapshot.fixed`."""
    heeds_weights: bool = False
    """Weights of jobs mean something (`Traits.weights`), as it has been set up."""
    remembers: tuple[type, ...] = ()
    """The dataclasses that its memory is made of; `policies/memory.py` writes and reads no others."""


CAPABILITIES = tuple(Capabilities.__annotations__)
"""Their names."""


class Policy(Capabilities, ABC):
    """One scheduling policy. The same object serves the simulator and a cluster.

    A policy may hold caches (orderings, free lists); they are built from any snapshot. What it must not forget
    over a restart is its memory, which the engine keeps, hands in and takes back: plain values, lists and NumPy
    arrays only, so that a store can write them.
    """

    id: ClassVar[str]
    traits: ClassVar[Traits]
    parameters: ClassVar[tuple[Parameter, ...]] = ()
    explains: frozenset[int] = frozenset()
    """Jobs of which `Decision.why` shall say why they start, move, rise or stop."""
    inner: Policy | None = None
    """A policy that this one asks: the caller hands what it reads in to it as well."""
    cache: Any = None
    """Orderings and the like, built from the first snapshot of a run; the engine clears it when a run begins."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if isinstance(said := cls.__dict__.get("traits"), Traits):
            cls.heeds_weights = bool(said.weights)

    def __init__(self, **values: Any) -> None:
        known = {parameter.name: parameter for parameter in self.parameters}
        for name in values:
            if name not in known:
                names = ", ".join(known) or "none"
                hint = did_you_mean(name, known)
                raise PolicyError(f"policy {self.id!r} has no parameter {name!r}{hint} (it has: {names})")
        self.values: dict[str, Any] = {p.name: p.default for p in self.parameters}
        for name, value in values.items():
            self.values[name] = self.parsed(known[name], value)

    def stands_for(self, other: Policy, **own: Any) -> None:
        """Be to others as that policy is, but for the capabilities that are named here."""
        self.take_capabilities(other, **own)
        self.values = other.values
        self.parameters, self.traits = other.parameters, other.traits  # type: ignore[misc]

    def take_capabilities(self, other: Policy, **own: Any) -> None:
        """Have the capabilities of another policy, but for those that are named here."""
        if unknown := own.keys() - set(CAPABILITIES):
            raise TypeError(f"{', '.join(sorted(unknown))}: no capability of a policy")
        for name in CAPABILITIES:
            setattr(self, name, own[name] if name in own else getattr(other, name))

    def parsed(self, parameter: Parameter, value: Any) -> Any:
        """The value of a parameter, from how it is written. Raises PolicyError."""
        # Numbers and truth values are checked as if they had been written; else it is what `parse` makes of text.
        if value is None and parameter.default is not None:
            raise PolicyError(f"policy {self.id!r}: {parameter.name} is None ({parameter.help})")
        if not isinstance(value, str | int | float):
            return value
        written = ("yes" if value else "no") if isinstance(value, bool) else str(value)
        try:
            return parameter.parse(written)
        except (ValueError, InputError) as error:
            explained = "" if parameter.help in str(error) else f" ({parameter.help})"
            raise PolicyError(f"policy {self.id!r}: {parameter.name}={value!r}: {error}{explained}") from error

    def new_memory(self, workload: Workload, cluster: Cluster) -> Any:
        """The memory to begin with."""
        return None

    def carried(self, memory: Any, rows: Rows, nodes: Rows, workload: Workload, cluster: Cluster) -> Any:
        """The memory for another workload and cluster, in which the same jobs and nodes have other numbers.

        A memory that is a dataclass says by the metadata of its fields what these are numbered by (`core/carrying.py`);
        any other is taken to hold no numbers of jobs or nodes. What was learnt from jobs that are gone is kept.

        Args:
            rows: by new number of a job its old one, -1 for a new job.
            nodes: by old number of a node its new one, -1 for a node that is gone.
        """
        if not is_dataclass(memory) or isinstance(memory, type):
            return memory
        return carry(memory, self.new_memory(workload, cluster), rows, nodes)

    @property
    def stops_running(self) -> bool:
        """It may stop running jobs: for others, or to move them."""
        return self.traits.preempts or self.moves_running

    def forget(self) -> None:
        """Drop what it keeps between calls for speed alone: what it knows of is no longer so."""
        self.cache = None

    def twin(self) -> Policy:
        """Another object of the same policy, with caches of its own: what it decides does not touch this one."""
        twin = copy(self)
        twin.cache, twin.explains = None, frozenset()
        if self.inner is not None:
            twin.inner = self.inner.twin()
        return twin

    def learn_from(self, ended_gpu_s: F8) -> None:
        """Total GPU-time of jobs that have ended, for a policy that goes by its distribution: where durations are not
        known. Call it before `new_memory` and `carried`."""

    def sees(self, gpus: int) -> int | None:
        """Of jobs that wait, have never run and are alike but for when they came, how many it has to be shown.

        With that many of the first of them its decision is the one that it would make with all of them in sight; None:
        only with all. So a scheduler need not build a world of a hundred thousand equal jobs.

        Args:
            gpus: of the whole cluster.
        """
        return None

    def sharing(self, workload: Workload) -> Sharing | None:
        """How jobs slow each other down, for a policy that shares GPUs."""
        return None

    @abstractmethod
    def decide(self, snapshot: Snapshot, memory: Any) -> tuple[Decision, Any]:
        """What shall change now, and the new memory."""

    def saved(self, memory: Any) -> str | None:
        """What of its memory is worth keeping for other workloads, as text; None: nothing."""
        return None

    def describe(self, snapshot: Snapshot, memory: Any) -> PolicyState:
        """Its own state at the snapshot's time, as far as it has any; nothing comes of it."""
        return NoState()

    def reason(self, snapshot: Snapshot, job: int) -> Reason:
        """Why a waiting job waits."""
        gpus, free = int(snapshot.workload.gpus[job]), snapshot.free_gpus
        numbers: Mapping[str, float] = {"gpus": gpus, "free_gpus": free, "waiting": snapshot.waiting_count}
        if free < gpus:
            return Reason(
                "not_enough_free_gpus",
                f"It needs {plural(gpus, 'GPU')} at once and {are(free)} free.",
                numbers,
            )
        return Reason(
            "behind_others",
            f"{are(free, 'GPU')} free, but not {gpus} together where {self.id} would place this job, or they are "
            f"reserved for jobs before it.",
            numbers,
        )


# -- parsers for parameters ---------------------------------------------------------------------------------


def whole(text: str) -> int:
    value = _integer(text)
    if value < 1:
        raise ValueError("must be a whole number of at least 1")
    return value


def seed(text: str) -> int:
    value = _integer(text)
    if value < 0:
        raise ValueError("must be a whole number of at least 0")
    return value


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError("must be a whole number") from None


def number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"must be a number, not {text!r}") from None
    if not math.isfinite(value):
        raise ValueError("must be a finite number")
    return value


def positive(text: str) -> float:
    value = number(text)
    if value <= 0:
        raise ValueError("must be above 0")
    return value


def not_negative(text: str) -> float:
    value = number(text)
    if value < 0:
        raise ValueError("must not be below 0")
    return value


def fraction(text: str) -> float:
    value = number(text)
    if not 0 <= value <= 1:
        raise ValueError("must be between 0 and 1")
    return value


def share(text: str) -> float:
    value = number(text)
    if not 0 < value <= 1:
        raise ValueError("must be above 0 and at most 1")
    return value


def at_least_one(text: str) -> float:
    value = number(text)
    if value < 1:
        raise ValueError("must be at least 1")
    return value


def duration(text: str) -> float:
    value = parse_duration_s(text)
    if value <= 0:
        raise ValueError("must be above 0")
    return value


def duration_or_0(text: str) -> float:
    value = parse_duration_s(text)
    if value < 0:
        raise ValueError("must not be below 0")
    return value


def yes_or_no(text: str) -> bool:
    if text.lower() in {"1", "true", "yes", "on"}:
        return True
    if text.lower() in {"0", "false", "no", "off"}:
        return False
    raise ValueError("must be yes or no")


def one_of(*choices: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError(f"must be one of {', '.join(choices)}")
        return text

    return parse


def rising_numbers(text: str) -> tuple[float, ...]:
    """Numbers above 0 in rising order, separated by '/'."""
    if "," in text:
        raise ValueError("numbers are separated by '/', as in 3250/7200")
    values = tuple(positive(part) for part in text.split("/"))
    if any(b <= a for a, b in pairwise(values)):
        raise ValueError("must rise, written as in 3250/7200")
    return values


def by_model(*measures: str) -> Callable[[str], str | dict[str, float]]:
    """Parses the name of one of these measures of GPU models, or numbers by plain model: 'V100:2/K80:1'."""

    def parse(text: str) -> str | dict[str, float]:
        if text in measures:
            return text
        found: dict[str, float] = {}
        for part in text.split("/"):
            model, colon, value = part.partition(":")
            if not colon or not model.strip():
                raise ValueError(f"must be {', '.join(measures)}, or numbers as in V100:2/K80:1")
            found[plain_model(model)] = positive(value)
        return found

    return parse


# -- parameters that several policies have ------------------------------------------------------------------

PLACEMENT = Parameter(
    "placement",
    "sticky",
    one_of("sticky", "scatter", "repack"),
    "sticky: as few nodes as possible, running jobs stay; scatter: any free GPUs, running jobs stay; repack: all "
    "jobs are placed again at every event (Muri's artifact)",
)
