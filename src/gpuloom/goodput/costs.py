"""Restart times and slowdowns by application, as a user gives them."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from gpuloom.core.errors import InputError
from gpuloom.goodput.applications import Application

EVERY = "*"
"""The name that stands for all applications that are not named."""
RESTARTS_S = (0.0, 86_400.0)
"""Restart times that may be given, seconds: a day takes longer than any that was measured (250 s)."""
SLOWDOWNS = (1e-3, 100.0)
"""Slowdowns that may be given (Sia's calibration: 1.2 to 1.8)."""


def read_values(option: str, text: str, bounds: tuple[float, float]) -> dict[str, float]:
    """A number for all ('30'), pairs ('cifar10=50,bert=120'), or a CSV file with rows of an application and a number.

    Args:
        option: to name in errors.
        bounds: the least number that may be given, and the most.

    Raises:
        InputError: none of these.
    """
    where = f"{option} {text}"
    if (table := _table(option, text)) is not None:
        pairs = [(f"{where}:{line}", row[0], row[1] if len(row) == 2 else "") for line, row in table if row]
        if pairs and _number(pairs[0][2]) is None:
            pairs = pairs[1:]  # its header
    elif "=" in text:
        parts = [part.partition("=") for part in text.split(",")]
        pairs = [(where, name, value) for name, _, value in parts]
    elif _number(text) is not None:
        pairs = [(where, EVERY, text)]
    else:
        raise InputError(f"{where}: no such file; give a number for all, APP=NUMBER,..., or a CSV file of both")
    found: dict[str, float] = {}
    least, most = bounds
    for place, name, value in pairs:
        number, app = _number(value), name.strip()
        if not app or number is None or not least <= number <= most:
            who = "" if app == EVERY else f"{f'{app}={value.strip()}'!r} must be an application and a number"
            raise InputError(f"{place}: {who or 'must be a number'} from {least:g} to {most:,.0f}")
        if app in found:
            raise InputError(f"{place}: {app} is given twice")
        found[app] = number
    if not found:
        raise InputError(f"{where}: holds no application and number")
    return found


def _table(option: str, text: str) -> list[tuple[int, list[str]]] | None:
    """The rows of a CSV file with their lines; None: there is no such file."""
    try:
        data = Path(text).read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        if isinstance(error, UnicodeDecodeError):
            raise InputError(f"{option} {text}: is no CSV file: {error}") from error
        return None
    return list(enumerate(csv.reader(data.splitlines()), start=1))


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def with_costs(
    applications: Mapping[str, Mapping[str, Application]],
    restarts_s: Mapping[str, float] | None,
    slowdowns: Mapping[str, float] | None,
) -> dict[str, dict[str, Application]]:
    """The applications by GPU model and name, with these values where they are named (`EVERY`: all others).

    Raises:
        InputError: a name that is no application.
    """
    known = {name for of_model in applications.values() for name in of_model}
    for what, values in (("restart times", restarts_s), ("slowdowns", slowdowns)):
        if unknown := sorted((values or {}).keys() - known - {EVERY}):
            raise InputError(f"{what}: no application {unknown[0]!r}, must be one of {', '.join(sorted(known))}")

    def changed(name: str, app: Application) -> Application:
        def value(values: Mapping[str, float] | None, default: float) -> float:
            return (values or {}).get(name, (values or {}).get(EVERY, default))

        return replace(app, restart_s=value(restarts_s, app.restart_s), slowdown=value(slowdowns, app.slowdown))

    return {
        model: {name: changed(name, app) for name, app in of_model.items()} for model, of_model in applications.items()
    }
