"""Durations and memory sizes as people write them, and the exit codes of errors."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpuloom.core import errors
from gpuloom.core.errors import GpuloomError, InputError, MissingDependencyError, PlanError, TraceError
from gpuloom.core.units import format_duration, money, parse_duration_s, parse_memory_mib


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90.0),
        ("90s", 90.0),
        ("250ms", 0.25),
        ("6m", 360.0),
        ("6min", 360.0),
        ("1.5h", 5400.0),
        ("2d", 172800.0),
        ("1w", 604800.0),
        (" 10 s ", 10.0),
        ("1e3", 1000.0),
        ("0", 0.0),
        (12.5, 12.5),
    ],
)
def test_durations_are_read_with_every_unit(text: str | float, seconds: float) -> None:
    assert parse_duration_s(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "h", "-1", "1y", "1 2", "inf", "nan", "1e999", "1,5h", "1h30m", "6M", "1..5"])
def test_what_is_no_duration_is_refused_with_a_right_example(text: str) -> None:
    with pytest.raises(InputError, match=r"is not a duration.*6m"):
        parse_duration_s(text)


@pytest.mark.parametrize(
    ("text", "mib"),
    [("16GiB", 16384), ("16G", 16384), ("16gb", 16384), ("512MiB", 512), ("512", 512), (80, 80), ("1.5T", 1572864)],
)
def test_memory_is_read_with_every_unit(text: str | float, mib: int) -> None:
    assert parse_memory_mib(text) == mib


@pytest.mark.parametrize("text", ["", "0", "-1G", "lots", "16 GHz", "1.2.3G", "nan"])
def test_what_is_no_memory_size_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="is not a memory size"):
        parse_memory_mib(text)


@pytest.mark.parametrize("text", ["1k", "0.001", "100KiB"])
def test_a_memory_size_that_rounds_to_nothing_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="is not a memory size"):
        parse_memory_mib(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (0.25, "0.25s"),
        (47, "47s"),
        (60, "1m 00s"),
        (750, "12m 30s"),
        (3599.7, "1h 00m"),
        (11100, "3h 05m"),
        (86399, "1d 00h"),
        (187200, "2d 04h"),
        (math.nan, "-"),
        (math.inf, "-"),
    ],
)
def test_durations_are_written_for_people(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@given(st.floats(0, 1e9))
@example(59.7)
@example(3599.9)
@example(86399.0)
@example(9.99)
def test_a_written_duration_never_says_sixty_seconds_or_minutes_or_24_hours(seconds: float) -> None:
    parts = format_duration(seconds).split()
    assert "60s" not in parts
    assert "60m" not in parts
    assert parts[-1] != "24h"


@given(st.floats(1, 1e8))
def test_a_written_duration_is_close_to_the_true_one(seconds: float) -> None:
    units = {"s": 1, "m": 60, "h": 3600, "d": 86400}
    parts = format_duration(seconds).split()
    total = sum(float(part[:-1]) * units[part[-1]] for part in parts)
    assert abs(total - seconds) <= units[parts[-1][-1]] * 0.5 + 1e-6 + (0.5 if len(parts) > 1 else 0)


def every_error() -> list[type[GpuloomError]]:
    found = [GpuloomError]
    for cls in found:
        found.extend(cls.__subclasses__())
    return found


def test_exit_codes_are_2_for_what_the_user_gave_and_1_for_failed_work() -> None:
    for cls in every_error():
        assert cls.exit_code == (2 if issubclass(cls, InputError) else 1), cls
    assert {cls.__name__ for cls in every_error()} >= {"ClusterError", "PolicyError", "TraceError", "PlanError"}
    assert errors.InvalidTransition.exit_code == PlanError.exit_code == 1


def test_a_trace_error_names_file_line_and_column() -> None:
    error = TraceError("is 'x', must be a number", file="a.csv", line=7, column="gpus")
    assert str(error) == "a.csv:7, column 'gpus': is 'x', must be a number"
    assert str(TraceError("no rows", file="a.csv")) == "a.csv: no rows"
    assert str(TraceError("no rows")) == "no rows"


def test_a_missing_dependency_says_what_to_install() -> None:
    error = MissingDependencyError("a plot", "matplotlib", "plot")
    assert str(error) == "a plot needs matplotlib, which is not installed: pip install 'gpuloom[plot]'"


def test_money_has_cents_and_below_them_one_digit() -> None:
    assert [money(usd) for usd in (0.0, 0.01, 1234.5, 0.0099, 0.00012, 0.00009)] == [
        "$0.00", "$0.01", "$1,234.50", "$0.01", "$0.0001", "<$0.0001",
    ]  # fmt: skip
