"""Names of runs, printed and read again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloom.core.run_name import RunName, run_name_of


@pytest.mark.parametrize(
    ("name", "text", "folder"),
    [
        (RunName(12, 1), "12.1", "1"),
        (RunName(12, 1, identity="9f3a02bc"), "12.1-9f3a02bc", "1-9f3a02bc"),
        (RunName(12, 1, 3), "12.1.3", "1.3"),
        (RunName(12, 10, 3, "9f"), "12.10.3-9f", "10.3-9f"),
    ],
)
def test_how_they_are_written(name: RunName, text: str, folder: str) -> None:
    assert (str(name), name.folder) == (text, folder)
    assert run_name_of(text) == name


@pytest.mark.parametrize(
    "text",
    [
        "",
        "12",
        "12.",
        ".1",
        "a.1",
        "12.1.0",
        "12.1.03",
        "12.1-",
        "12.1.",
        "12.1-a/b",
        "12.1-..",
        "12.1 ",
        "1.1\n",
        "²․1",
    ],
)
def test_what_is_no_name_of_a_run(text: str) -> None:
    assert run_name_of(text) is None


@given(st.builds(RunName, *[st.integers(0, 10**9)] * 3, st.sampled_from(["", "0", "9f3a02bc", "Zz"])))
def test_what_is_written_is_read_again(name: RunName) -> None:
    assert run_name_of(str(name)) == name
