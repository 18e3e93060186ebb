"""A program under the shim has no more GPU memory than it may."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from shim_kit import Stage, built

OK, NO_VALUE, FULL = "0", "1", "2"


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(built("plain"), tmp_path)
    yield made
    made.end()


def does(stage: Stage, steps: str, mib: str = "8", klass: str = "best-effort") -> tuple[list[str], str]:
    """What each step came to, and what the program was told on its stderr."""
    more = {"GPULOOM_SHARE_MEMORY_MIB": mib} if mib else {}
    process = stage.start(klass, *steps.split(), program="memory", loader="", **more)
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    return out.splitlines(), errors


@pytest.mark.parametrize("way", ["alloc", "managed", "async", "pool", "create", "by-name"])
def test_what_would_pass_the_bound_is_out_of_memory(stage: Stage, way: str) -> None:
    found, said = does(stage, f"{way} a 5 {way} b 4 {way} c 3 {way} d 0.001")
    assert found == [OK, FULL, OK, FULL]
    assert said == (
        "gpuloom: out of GPU memory: beside others this program may have 8 MiB (gpu_memory), has 5 and asked for 4 "
        "more\n"
    ), "it is told once"
    assert "has 8 and asked for 1 more" in stage.log


@pytest.mark.parametrize(
    ("takes", "gives"), [("alloc", "free"), ("async", "free-async"), ("pool", "free"), ("create", "release")]
)
def test_what_is_freed_may_be_had_again(stage: Stage, takes: str, gives: str) -> None:
    found, _ = does(stage, f"{takes} a 8 {takes} b 1 {gives} a {takes} b 8 {takes} c 1")
    assert found == [OK, FULL, OK, OK, FULL]


def test_rows_count_as_long_as_they_become(stage: Stage) -> None:
    # 8 rows of 1,025 KiB would pass the bound; beside 7 rows 1,017 KiB are left.
    found, _ = does(stage, "pitch a 1025 8 pitch a 1025 7 info alloc b 0.995 alloc b 0.993")
    assert found == [FULL, OK, "0 8", FULL, OK]


def test_main_memory_does_not_count(stage: Stage) -> None:
    assert does(stage, "host a 100 alloc b 8")[0] == [OK, OK]


def test_what_cannot_be_freed_changes_nothing(stage: Stage) -> None:
    assert does(stage, "alloc a 8 wrong alloc b 1 free a alloc b 8")[0] == [OK, NO_VALUE, FULL, OK, OK]


def test_a_program_sees_a_gpu_of_that_size(stage: Stage) -> None:
    """Frameworks that take a share of what is free take a share of that."""
    assert does(stage, "info alloc a 3 info free a info")[0] == ["8 8", OK, "5 8", OK, "8 8"]
    assert does(stage, "info", "1e6")[0] == [f"{60 << 10} {80 << 10}"]


@pytest.mark.parametrize(("mib", "klass"), [("", "best-effort"), ("0", "high"), ("8", ""), ("many", "high")])
def test_without_a_bound_there_is_none(stage: Stage, mib: str, klass: str) -> None:
    assert does(stage, "alloc a 100 info", mib, klass) == ([OK, f"{60 << 10} {80 << 10}"], "")


def test_a_context_takes_its_memory_along(stage: Stage) -> None:
    assert does(stage, "alloc a 8 context alloc b 8 alloc c 1", klass="high")[0] == [OK, OK, OK, FULL]


def test_the_books_stay_right_over_many_allocations(stage: Stage) -> None:
    found, _ = does(stage, "alloc a 1 many 1500 info threads 8 info alloc b 7 alloc c 0.1")
    assert found == [OK, OK, "7 8", OK, "7 8", OK, FULL]


@pytest.mark.slow
def test_threads_that_allocate_at_once_race_for_nothing(tmp_path: Path) -> None:
    stage = Stage(built("thread"), tmp_path)
    try:
        assert does(stage, "threads 6 info many 300 alloc a 8 alloc b 1")[0] == [OK, "8 8", OK, OK, FULL]
    finally:
        stage.end()


@pytest.mark.slow
def test_the_books_are_sound(tmp_path: Path) -> None:
    stage = Stage(built("address"), tmp_path)
    try:
        assert does(stage, "many 2500 alloc a 8 alloc b 1 context info")[0] == [FULL, OK, FULL, OK, "8 8"]
    finally:
        stage.end()
