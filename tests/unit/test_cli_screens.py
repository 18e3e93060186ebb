"""Tables that are drawn again and again, on a terminal and elsewhere, and what is shown of programs on shared GPUs."""

from __future__ import annotations

import io
import json
import os
import pty
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest

from gpuloom.cli import screen
from gpuloom.cli.live_tables import Column
from gpuloom.cli.screen import Screen
from gpuloom.cli.share import top as share_top
from gpuloom.core.errors import InputError
from gpuloom.sharing.shim import shm

COLUMNS: list[Column[Any]] = [Column("name", lambda row: row), Column("long", lambda row: row * 2)]


def test_a_screen_that_is_printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    slept: list[float] = []
    monkeypatch.setattr(screen.time, "sleep", slept.append)
    looks = iter(range(10))

    def show(times: int, *, as_json: bool = False) -> str:
        Screen(every_s=0.5, as_json=as_json, times=times).run(
            lambda: next(looks),
            lambda found: [(COLUMNS, ["a"] * found), (COLUMNS, [])],
            lambda found: [f"look {found}"],
        )
        return capsys.readouterr().out

    assert show(1) == "look 0\n"
    assert slept == []
    assert show(2) == "look 1\n\nname  long\na     aa\n\nlook 2\n\nname  long\na     aa\na     aa\n"
    assert slept == [0.5]
    assert show(2, as_json=True) == "3\n4\n"


@pytest.mark.parametrize(("every", "good"), [(0.1, True), (0.09, False), (86_400.0, True), (86_401.0, False)])
def test_how_often(every: float, good: bool) -> None:
    if good:
        assert Screen(every_s=every, as_json=False).times is None
    else:
        with pytest.raises(click.UsageError) as error:
            Screen(every_s=every, as_json=False)
        assert error.value.message == f"--every is {every:g} s, must be from 0.1 s to a day"


def test_a_screen_is_left_by_an_interrupt() -> None:
    def look() -> int:
        raise KeyboardInterrupt

    Screen(every_s=1.0, as_json=True, times=3).run(look, lambda found: [], lambda found: [])


class Terminal(io.StringIO):
    """A terminal of 20 columns and 10 lines."""

    def isatty(self) -> bool:
        return True


def test_a_screen_of_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """What does not fit is counted: one head, the first table in part, of the other one row."""
    for name, value in (("COLUMNS", "20"), ("LINES", "10"), ("TERM", "xterm")):
        monkeypatch.setenv(name, value)
    waited: list[float] = []

    def keys() -> Iterator[Any]:
        yield lambda seconds: waited.append(seconds) or len(waited) == 3

    monkeypatch.setattr(screen, "_keys", screen.contextmanager(keys))
    out = Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    looks: list[int] = []

    def look() -> int:
        looks.append(1)
        return len(looks)

    def shown(*tables: int, times: int | None = None) -> str:
        out.seek(0)
        out.truncate()
        looks.clear()
        waited.clear()
        rows = [[f"r{number}" for number in range(count)] for count in tables]
        Screen(every_s=0.5, as_json=False, times=times).run(
            look, lambda found: [(COLUMNS, one) for one in rows], lambda found: [f"look {found}"]
        )
        return out.getvalue()

    text = shown(7)
    assert (len(looks), waited) == (3, [0.5] * 3)
    assert "look 3" in text
    assert "r4" in text
    assert "r5" not in text
    assert "… and 2 more" in text
    assert "more" not in shown(5)
    text = shown(3, 7)
    assert "… and 6 more" in text
    shown(times=2)
    assert (len(looks), waited) == (2, [0.5] * 2)


def test_keys_of_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "r") as typed, os.fdopen(ours, "wb", buffering=0) as fingers:
        monkeypatch.setattr(sys, "stdin", typed)
        with screen._keys() as wait:
            assert not wait(0.0)
            fingers.write(b"x")
            assert not wait(0.01)
            fingers.write(b"Q")
            assert wait(30.0)
    slept: list[float] = []
    now = [0.0]
    monkeypatch.setattr(screen, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=lambda s: slept.append(s)))
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    with screen._keys() as wait:
        now[0] = 1.0
        slept.clear()

        def sleep(seconds: float) -> None:
            slept.append(seconds)
            now[0] += seconds

        screen.time.sleep = sleep  # type: ignore[misc, assignment]
        assert not wait(2.0)
    assert slept == [2.0]


def test_programs_on_shared_gpus_again_and_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(share_top, "time", SimpleNamespace(sleep=sleep))
    monkeypatch.setattr(share_top.shim, "shared_folder", lambda environ: tmp_path)
    monkeypatch.setattr(
        share_top, "look", lambda folder: {"/g": SimpleNamespace(problem="of another version", programs=(), uuid="g")}
    )
    cleared: list[int] = []
    monkeypatch.setattr(click, "clear", lambda: cleared.append(1))
    call = share_top.top.callback
    assert call is not None
    call(once=True, as_json=False, every_s=0.1)
    said = capsys.readouterr()
    assert said == (f"no program shares a GPU ({tmp_path})\n", "/g: of another version\n")
    assert (slept, cleared) == ([0.1], [])
    call(once=True, as_json=True, every_s=86_400.0)
    assert json.loads(capsys.readouterr().out) == {
        "folder": str(tmp_path), "programs": [], "problems": ["/g: of another version"],
    }  # fmt: skip
    slept.clear()
    with pytest.raises(KeyboardInterrupt):
        call(once=False, as_json=False, every_s=2.0)
    assert (slept, cleared) == ([2.0] * 3, [1, 1])
    for every in (0.09, 86_401.0):
        with pytest.raises(InputError) as error:
            call(once=True, as_json=False, every_s=every)
        assert str(error.value) == f"--every is {every:g} s, must be from 0.1 s to a day"


def program(**fields: Any) -> shm.Program:
    plain: dict[str, Any] = dict.fromkeys(shm.Program.__dataclass_fields__, 0)
    return shm.Program(**{**plain, "name": "p", "klass": "high", "held_as": None, "reasons": {}, **fields})


@pytest.mark.parametrize(
    ("fields", "state"),
    [
        ({"busy": True}, "in a request"),
        ({"busy": False}, "idle"),
        ({"klass": "exempt"}, "passing"),
        ({"klass": "best-effort", "busy": True}, "running"),
    ],
)
def test_states_of_programs(fields: dict[str, Any], state: str) -> None:
    assert share_top.state_of(program(**fields)) == state


def test_reasons_most_frequent_first() -> None:
    assert share_top.reasons_text({"a": 1, "b": 2000, "c": 1}) == "b 2,000, a 1, c 1"
    assert share_top.reasons_text({}) == ""
