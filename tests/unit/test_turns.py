"""The order in which several workers run tests."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from turns import in_turns


class Test:
    """What is asked of a test: its file and its marks."""

    __test__ = False

    def __init__(self, path: str, number: int, *marks: str) -> None:
        self.path, self.number, self.marks = Path(path), number, marks

    def get_closest_marker(self, name: str) -> object | None:
        return name if name in self.marks else None


def made_of(files: dict[str, tuple[int, int]], *more: str) -> list[Test]:
    """Of each file so many slow ones, with `more` marks, and so many quick ones before each."""
    made: list[Test] = []
    for path, (slow, quick) in files.items():
        for _ in range(slow):
            made += [Test(path, len(made) + at) for at in range(quick)]
            made.append(Test(path, len(made), "slow", *more))
    return made


FILES = {"a": (9, 5), "b": (1, 0), "c": (30, 1), "d": (2, 8), "e": (12, 0), "f": (7, 20), "g": (1, 100)}


@pytest.mark.parametrize("workers", [2, 3, 5])
def test_each_piece_begins_with_its_share_of_what_is_slow(workers: int) -> None:
    given = made_of(FILES)
    ordered = in_turns(given, workers)  # type: ignore[arg-type]
    assert sorted(map(id, ordered)) == sorted(map(id, given)), "none is lost, none comes twice"
    at, first = 0, set()
    for worker in range(workers):
        piece = ordered[at : at + (len(ordered) - at) // (workers - worker)]
        at += len(piece)
        slow = ["slow" in test.marks for test in piece]  # type: ignore[attr-defined]
        assert slow == sorted(slow, reverse=True), "nothing slow after what is quick"
        assert any(slow)
        assert not all(slow)
        paths = [test.path for test, is_slow in zip(piece, slow, strict=True) if is_slow]
        assert len(set(paths)) == 1 + sum(a != b for a, b in pairwise(paths)), "files stay together"
        first.add(paths[0])
    assert len(first) == workers


def test_what_takes_longest_comes_first_of_all() -> None:
    longest = made_of({"z": (4, 0)}, "timeout")
    ordered = in_turns([*made_of(FILES), *longest], 2)  # type: ignore[list-item]
    half = len(ordered) // 2
    assert [ordered[0], ordered[1], ordered[half], ordered[half + 1]] == [*longest[0::2], *longest[1::2]]


@pytest.mark.parametrize("workers", [2, 3, 8])
def test_half_of_the_workers_begin_with_those_that_wait(workers: int) -> None:
    waiting = {f"tests/integration/{name}": (9, 0) for name in "abcdefgh"}
    computing = {f"tests/unit/{name}": (9, 50) for name in "abcdefgh"}
    ordered = in_turns(made_of({**waiting, **computing}), workers)  # type: ignore[arg-type]
    at = 0
    for worker in range(workers):
        paths = [str(test.path.parent) for test in ordered[at:] if "slow" in test.marks]  # type: ignore[attr-defined]
        assert paths[0] == ("tests/unit" if worker % 2 else "tests/integration")
        at += (len(ordered) - at) // (workers - worker)


def test_where_nothing_is_slow_or_nearly_all_is() -> None:
    quick = [Test("a", number) for number in range(9)]
    assert in_turns(quick, 3) == quick  # type: ignore[arg-type, comparison-overlap]
    slow = [Test("a", number, "slow") for number in range(9)]
    assert in_turns([*slow, *quick[:1]], 3) == [*slow, *quick[:1]]  # type: ignore[list-item, comparison-overlap]
