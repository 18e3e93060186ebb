"""A sample of the cluster: what held over a span of time. How samples are averaged, thinned, written down and read.

Every ten seconds one is taken. Those of a minute become one of a minute, those of an hour one of an hour: means weighed
by the time that each stands for, and sums of what is counted. The finest that is kept of a time is shown.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import groupby, pairwise
from typing import Any

from gpuloom.core.sums import sum_floats, sum_ints
from gpuloom.live.figures import each as eachs
from gpuloom.store.errors import StoreError
from gpuloom.store.port import SampleRow

log = logging.getLogger("gpuloom.scheduler")

WIDTHS_S = (10, 60, 3600)
"""For how long a sample of each kind stands, the finest first."""
KEPT_S: Mapping[int, float] = {10: 3600.0, 60: 86_400.0, 3600: 366 * 86_400.0}
"""For how long samples of each kind are kept: 360, 1,440 and 8,784 of them at most."""
MOST_USERS = 32
"""In one sample; what the others have, the least, counts as of OTHERS."""
OTHERS = ""


@dataclass(frozen=True, slots=True)
class UserFigures:
    """Of one user: jobs that wait, jobs and GPUs that run, on average; the blocking index; jobs that ran and ended, and
    the sum of their JCTs, seconds."""

    queue_length: float = 0.0
    running: float = 0.0
    busy_gpus: float = 0.0
    blocking_index: float = 0.0
    ended: int = 0
    jct_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Machines:
    """Rates of all nodes together, by their monitors; None: not known. Utilisations are 0 to 100.

    read, write: what jobs read and write on disks. received, sent: by network.
    """

    gpu_utilization: float | None = None
    gpu_memory_used_mib: float | None = None
    gpu_memory_mib: float | None = None
    cpu_percent: float | None = None
    memory_used_mib: float | None = None
    memory_mib: float | None = None
    disk_free_mib: float | None = None
    read_mib_per_s: float | None = None
    write_mib_per_s: float | None = None
    received_mib_per_s: float | None = None
    sent_mib_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class Figures:
    """What held from `from_s` on for `span_s` seconds, on average; `all` is of all users.

    gpus, nodes: those that are not down. users: those with jobs that wait or run. each: what each of them used, by the
    monitors.
    """

    from_s: float
    span_s: float
    all: UserFigures
    users: float = 0.0
    gpus: float = 0.0
    nodes: float = 0.0
    nodes_up: float = 0.0
    machines: Machines = Machines()
    of_users: Mapping[str, UserFigures] = field(default_factory=dict)
    each: eachs.Each = field(default_factory=dict)

    def of(self, user: str | None) -> UserFigures:
        """Of one user; None: of all."""
        return self.all if user is None else self.of_users.get(user, NOTHING)


NOTHING = UserFigures()
_COUNTED = ("users", "gpus", "nodes", "nodes_up")


def mean(parts: Sequence[Figures], from_s: float) -> Figures:
    """One for several that follow each other. Raises ValueError: there are none."""
    if not parts:
        raise ValueError("no samples to average")
    spans = [part.span_s for part in parts]
    whole_s = sum_floats(spans)
    names = dict.fromkeys(user for part in parts for user in part.of_users)

    def averaged(value: Callable[[Figures], float]) -> float:
        return (
            sum_floats(value(part) * span for part, span in zip(parts, spans, strict=True)) / whole_s
            if whole_s
            else 0.0
        )

    def of(figures: Callable[[Figures], UserFigures]) -> UserFigures:
        return UserFigures(
            averaged(lambda part: figures(part).queue_length),
            averaged(lambda part: figures(part).running),
            averaged(lambda part: figures(part).busy_gpus),
            averaged(lambda part: figures(part).blocking_index),
            sum_ints(figures(part).ended for part in parts),
            sum_floats(figures(part).jct_s for part in parts),
        )

    counted = {name: averaged(lambda part, name=name: getattr(part, name)) for name in _COUNTED}  # type: ignore[misc]
    machines = {one.name: _known(parts, one.name) for one in fields(Machines)}
    of_users = {user: of(lambda part, user=user: part.of(user)) for user in names}  # type: ignore[misc]
    return Figures(
        from_s,
        whole_s,
        of(lambda part: part.all),
        **counted,
        machines=Machines(**machines),
        of_users=fewer(of_users),
        each=eachs.mean([(part.each, part.span_s) for part in parts]),
    )


def _known(parts: Sequence[Figures], name: str) -> float | None:
    """The mean over the parts in which it is known."""
    known = [(value, part.span_s) for part in parts if (value := getattr(part.machines, name)) is not None]
    whole_s = sum_floats(span for _, span in known)
    return sum_floats(value * span for value, span in known) / whole_s if whole_s else None


def fewer(of_users: Mapping[str, UserFigures]) -> Mapping[str, UserFigures]:
    """At most MOST_USERS, those that hold and wait most, and OTHERS."""
    if len(of_users) <= MOST_USERS + 1:
        return of_users
    ordered = sorted(
        (user for user in of_users if user != OTHERS),
        key=lambda user: (-of_users[user].busy_gpus - of_users[user].queue_length, user),
    )
    rest = [of_users[user] for user in (*ordered[MOST_USERS:], *([OTHERS] if OTHERS in of_users else ()))]
    waiting = sum_floats(one.queue_length for one in rest)
    blocked = sum_floats(one.blocking_index * one.queue_length for one in rest)
    others = UserFigures(
        waiting,
        sum_floats(one.running for one in rest),
        sum_floats(one.busy_gpus for one in rest),
        blocked / waiting if waiting else 0.0,
        sum_ints(one.ended for one in rest),
        sum_floats(one.jct_s for one in rest),
    )
    return {**{user: of_users[user] for user in ordered[:MOST_USERS]}, OTHERS: others}


# -- thinning ----------------------------------------------------------------------------------------------------------


class Thinning:
    """Makes one sample of those of a minute, and of an hour, once it is over.

    pending: by width, the finer samples that are not part of one of that width yet, in order.
    """

    def __init__(self, rows: Iterable[SampleRow] = ()) -> None:
        """rows: what the store has of the last hours; of what was not thinned when the scheduler ended, it is now."""
        found: dict[int, list[SampleRow]] = {width: [] for width in WIDTHS_S}
        for row in rows:
            if row.width_s in found:
                found[row.width_s].append(row)
        self.pending: dict[int, list[Figures]] = {}
        for finer, width in pairwise(WIDTHS_S):
            done_s = max((row.from_s + width for row in _readable(found[width])), default=0.0)
            late = [row for row in found[finer] if row.from_s >= done_s]
            self.pending[width] = [figures_of(row, each=True) for row in _readable(late, each=True)]

    def take(self, sample: Figures) -> list[SampleRow]:
        """What is to be written down with a new sample of the finest kind: it, and those of times that are over."""
        until_s = sample.from_s + sample.span_s
        rows, new = [row_of(WIDTHS_S[0], sample)], [sample]
        for width in WIDTHS_S[1:]:
            waiting = [*self.pending[width], *new]
            over = [one for one in waiting if _begin(one.from_s, width) + width <= until_s]
            self.pending[width] = [one for one in waiting if _begin(one.from_s, width) + width > until_s]
            means = [mean(list(group), start) for start, group in groupby(over, lambda one: _begin(one.from_s, width))]  # noqa: B023
            new = [replace(one, each=eachs.kept(one.each, width)) for one in means]
            rows += [row_of(width, one) for one in new]
        return rows


def _readable(rows: Iterable[SampleRow], *, each: bool = False) -> list[SampleRow]:
    found = []
    for row in rows:
        try:
            figures_of(row, each=each)
        except StoreError as error:
            log.warning("%s; it is left out of what is made of it", error)
            continue
        found.append(row)
    return found


def _begin(at_s: float, width_s: int) -> float:
    return at_s // width_s * width_s


def finest(rows: Iterable[SampleRow], *, each: bool = False) -> list[Figures]:
    """The series: of each time the finest samples that are kept, in order. each: with what each node, … used."""
    by_width: dict[int, list[Figures]] = {}
    for row in rows:
        by_width.setdefault(row.width_s, []).append(figures_of(row, each=each))
    found: list[Figures] = []
    for width in sorted(by_width):
        first_s = found[0].from_s if found else None
        coarser = [one for one in by_width[width] if first_s is None or _begin(one.from_s, width) + width <= first_s]
        later = []
        if found:  # thinned already, and the finer ones are gone: a scheduler that was down for long
            later = [one for one in by_width[width] if one.from_s > found[-1].from_s + found[-1].span_s]
        found = [*coarser, *found, *later]
    return found


# -- rows --------------------------------------------------------------------------------------------------------------

_NAMES = tuple(one.name for one in fields(UserFigures))


def row_of(width_s: int, figures: Figures) -> SampleRow:
    """As the store keeps it."""
    machines = {name: _short(value) for name, value in asdict(figures.machines).items() if value is not None}
    data = {
        "all": _numbers(figures.all),
        **{name: _short(getattr(figures, name)) for name in _COUNTED},
        "machines": machines,
        "of_users": {user: _numbers(one) for user, one in figures.of_users.items()},
        **({"each": eachs.text_of(figures.each)} if figures.each else {}),
    }
    return SampleRow(width_s, figures.from_s, figures.span_s, data)


def figures_of(row: SampleRow, *, each: bool = False) -> Figures:
    """The same back; what each node, … used only where it is asked for.

    Raises:
        StoreError: gpuloom did not write it.
    """
    data = row.data
    try:
        return Figures(
            row.from_s,
            row.span_s,
            _of_user(data["all"]),
            **{name: float(data[name]) for name in _COUNTED},
            machines=Machines(**data["machines"]),
            of_users={user: _of_user(numbers) for user, numbers in data["of_users"].items()},
            each=eachs.each_of(data["each"]) if each and "each" in data else {},
        )
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise StoreError(f"the sample of {row.from_s:.0f} s ({row.width_s} s wide) can't be read: {error!r}") from error


def _of_user(numbers: Sequence[float]) -> UserFigures:
    queue, running, gpus, blocking, ended, jct_s = map(float, numbers)
    return UserFigures(queue, running, gpus, blocking, int(ended), jct_s)


def _numbers(one: UserFigures) -> list[Any]:
    return [_short(getattr(one, name)) for name in _NAMES]


def _short(value: float) -> float:
    """With seven digits: a third of the text."""
    return float(f"{value:.7g}") if isinstance(value, float) else value
