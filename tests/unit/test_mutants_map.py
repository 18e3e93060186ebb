"""scripts/mutants_map.py and mutants.py: which tests are asked, and what they have seen."""

from __future__ import annotations

import importlib
import sqlite3
from pathlib import Path
from types import ModuleType

import pytest

SOURCE = '''
LIMIT = 7
A, (B, C) = 1, (2, 3)
TWICE = [LIMIT, LIMIT]
if LIMIT:
    INNER = 4


class Job:
    """A class."""

    size: int = 2

    def area(self, by: Job = LIMIT) -> int:
        return self.size * by


@decorated(LIMIT)
def used(job: Job) -> int:
    return TWICE[0] + job.area()
'''


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "scripts"))
    return importlib.import_module("mutants_map")


def line_of(text: str) -> int:
    return next(number for number, line in enumerate(SOURCE.splitlines(), 1) if text in line)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("LIMIT = 7", {"LIMIT"}),
        ("A, (B, C)", {"A", "B", "C"}),
        ("INNER = 4", {"INNER"}),
        ("size: int", {"Job", "size"}),
        ("def area", {"Job", "area"}),
        ("@decorated", {"used"}),
    ],
)
def test_what_a_line_outside_of_functions_defines(tool: ModuleType, text: str, names: set[str]) -> None:
    assert tool._defined(SOURCE, line_of(text)) == names


def test_where_names_are_used_types_do_not_count(tool: ModuleType) -> None:
    inside, outside = tool._mentioned(SOURCE, frozenset({"LIMIT", "size"}))
    assert inside == {line_of("return self.size")}
    assert outside == {
        line_of(text) for text in ("LIMIT = 7", "TWICE = ", "if LIMIT", "size: int", "def area", "@deco")
    }
    assert tool._mentioned(SOURCE, frozenset({"Job"})) == (set(), set())


def test_a_constant_is_tried_with_the_tests_of_what_uses_it(tool: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that reaches the use through another constant; before it, one whose file imports the module."""
    db = sqlite3.connect(":memory:")
    db.executescript(tool.SCHEMA)
    names = [("tests/unit/test_own.py", "own"), ("tests/unit/test_far.py", "far"), ("tests/unit/test_no.py", "no")]
    for file, name in names:
        db.execute("insert into tests (file, name, seconds) values (?, ?, 0.1)", (file, f"{file}::{name}"))
    db.execute("insert into sources values ('h', ?)", (SOURCE,))
    for test, line in ((2, "return TWICE"), (3, "return self.size")):
        bits = 1 << line_of(line)
        blob = bits.to_bytes((bits.bit_length() + 7) // 8, "little")
        db.execute("insert into lines values (?, 'src/gpuloom/other.py', 'h', ?, 4)", (test, blob))
    monkeypatch.setattr(tool, "_sources", lambda: ["src/gpuloom/other.py"])
    monkeypatch.setattr(tool, "_asking", lambda path: {"tests/unit/test_own.py"})
    monkeypatch.setattr(tool.Map, "_text", lambda self, path: SOURCE if path.endswith("other.py") else "LIMIT = 7\n")
    near, others = tool.Map(db).tests("src/gpuloom/one.py", "LIMIT = 7\n", 1, 1, 10.0, 10.0)
    assert [name.partition("::")[2] for name in near] == ["own", "far"]
    assert others == []


BROKEN = """
==================================== ERRORS ====================================
___________________ ERROR collecting tests/unit/test_x.py ____________________
E   ValueError: x
=========================== short test summary info ============================
ERROR tests/unit/test_x.py - ValueError: x
!!!!!!!!!!!!!!!!!!!!!!!!!! stopping after 1 failures !!!!!!!!!!!!!!!!!!!!!!!!!!!
1 error in 0.87s
ERROR: found no collectors for /copy/tests/unit/test_x.py::test_a

"""
FAILED = "FAILED tests/unit/test_x.py::test_a[1] - assert 1 == 2\nFAILED tests/unit/test_y.py::test_b\n"
RENAMED = "\nERROR: not found: /copy/tests/unit/test_x.py::test_a\n(no match in any of [<Module test_x.py>])\n"


@pytest.mark.parametrize(
    ("said", "by"),
    [(BROKEN, "ERROR tests/unit/test_x.py"), (FAILED, "FAILED tests/unit/test_x.py::test_a[1]"), (RENAMED, "")],
)
def test_a_fault_that_keeps_a_test_from_being_imported_is_seen(tool: ModuleType, said: str, by: str) -> None:
    assert importlib.import_module("mutants").failed_in(said) == by


def test_what_has_another_name_by_now_has_seen_nothing(tool: ModuleType) -> None:
    tests = ["tests/unit/test_x.py::test_a", "tests/unit/test_x.py::test_a2", "tests/unit/gone.py::test_b"]
    not_there = importlib.import_module("mutants").not_there
    assert not_there(tests, Path("/copy"), RENAMED) == {tests[0]}
    assert not_there(tests, Path("/copy"), f"ERROR: file or directory not found: {tests[2]}\n\n") == {tests[2]}
    assert not_there(tests, Path("/copy"), BROKEN) == set()
