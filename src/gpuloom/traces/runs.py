"""The runs of jobs, and their times together, as text in a column of gpuloom's own trace (docs/reference/traces.md).

A run is `START/END REASON NODE:GPU|GPU NODE:GPU`, and of one that begins with a resize `+STOOD/LOST` behind that:
seconds that the job stood still for it, and steps that it did again ('-': not known). A time with others is
`SINCE/UNTIL ID+ID EFFICIENCY`, with '>' in place of '+' where the members are in the order of their stages. Several are
put together with ';'. Names and ids are quoted as in addresses (%20 for a space).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeVar
from urllib.parse import quote, unquote

from gpuloom.core.ran import Run, Together

_MOST_GPU = 4096
"""A larger number of a GPU within its node is a typing error, and would take much memory."""
_PLAIN = "-._#"

One = TypeVar("One")


def runs_text(runs: Sequence[Run]) -> str:
    """Of one job."""
    return ";".join(
        " ".join(
            [
                f"{run.start_s!r}/{run.end_s!r}",
                run.ended_by or "-",
                *(f"{_quoted(node)}:{'|'.join(map(str, gpus))}" for node, gpus in run.parts),
                *(
                    ()
                    if run.stood_s is None
                    else (f"+{run.stood_s!r}/{'-' if (n := run.lost_steps) is None else repr(n)}",)
                ),
            ]
        )
        for run in runs
    )


def together_text(times: Sequence[Together]) -> str:
    """Of one job."""
    return ";".join(
        " ".join(
            [
                f"{one.since_s!r}/{one.until_s!r}",
                (">" if one.ordered else "+").join(map(_quoted, one.members)),
                *(() if one.efficiency is None else (repr(one.efficiency),)),
            ]
        )
        for one in times
    )


def runs_of(text: str) -> tuple[Run, ...]:
    """The runs of such a text. Raises ValueError: says what is wrong."""
    return tuple(
        _read(
            text,
            _run,
            "START/END REASON NODE:GPU|GPU, as in 0.0/12.5 finished n0:0|1, with +STOOD/LOST behind a resize",
        )
    )


def together_of(text: str) -> tuple[Together, ...]:
    """The times with others of such a text. Raises ValueError: says what is wrong."""
    return tuple(_read(text, _together, "SINCE/UNTIL ID+ID, as in 0.0/12.5 1+2 0.8"))


def names_text(names: Sequence[str]) -> str:
    """Names of nodes as one line."""
    return " ".join(map(_quoted, names))


def names_of(text: str) -> tuple[str, ...]:
    """The names of such a line."""
    return tuple(map(unquote, text.split()))


def _quoted(word: str) -> str:
    return quote(word, safe=_PLAIN)


def _read(text: str, one: Callable[[list[str]], One], wanted: str) -> list[One]:
    found = []
    for part in text.split(";") if text else ():
        try:
            found.append(one(part.split()))
        except ValueError as error:
            raise ValueError(f"{part!r} must be {wanted}") from error
    return found


def _span(text: str) -> tuple[float, float]:
    start, _, end = text.partition("/")
    begin, until = float(start), float(end)
    if not (math.isfinite(begin) and math.isfinite(until) and begin <= until):
        raise ValueError(text)
    return begin, until


def _run(words: list[str]) -> Run:
    span, ended_by, *parts = words
    stood: tuple[float | None, float | None] = (None, None)
    if parts and parts[-1].startswith("+"):
        stood = _stood(parts.pop())
    found = []
    for part in parts:
        node, colon, gpus = part.partition(":")
        numbers = tuple(map(int, gpus.split("|")))
        if not node or not colon or len(set(numbers)) < len(numbers) or not all(0 <= n < _MOST_GPU for n in numbers):
            raise ValueError(part)
        found.append((unquote(node), numbers))
    if not found:
        raise ValueError("no GPUs")
    return Run(*_span(span), "" if ended_by == "-" else ended_by, tuple(found), *stood)


def _stood(word: str) -> tuple[float, float | None]:
    text, slash, lost = word[1:].partition("/")
    numbers = [float(one) for one in (text, lost) if one != "-"]
    if not slash or text == "-" or not all(math.isfinite(one) and one >= 0 for one in numbers):
        raise ValueError(word)
    return numbers[0], numbers[1] if len(numbers) > 1 else None


def _together(words: list[str]) -> Together:
    span, members, *gamma = words
    ids = tuple(map(unquote, members.split(">" if ">" in members else "+")))
    if len(ids) < 2 or "" in ids or len(gamma) > 1:
        raise ValueError(members)
    efficiency = float(gamma[0]) if gamma else None
    if efficiency is not None and not 0.0 <= efficiency <= 1.0:
        raise ValueError(gamma[0])
    return Together(*_span(span), ids, ">" in members, efficiency)
