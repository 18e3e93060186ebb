"""How the program ends: which error becomes which exit code, and what is said."""

from __future__ import annotations

import io
import signal
import sys
from collections.abc import Callable
from typing import Any

import click
import pytest

from gpuloom.cli import main as program
from gpuloom.core.errors import GpuloomError, InputError

REPORT = "gpuloom: internal error, please report: KeyError: 'x' (test_cli_main.py:"


@pytest.mark.parametrize(
    ("outcome", "code", "said"),
    [
        (3, 3, ""),
        (0, 0, ""),
        (None, 0, ""),
        ("text", 0, ""),
        (click.exceptions.Abort(), 1, "interrupted\n"),
        (click.UsageError("bad flag"), 2, "Error: bad flag\n"),
        (InputError("bad file"), 2, "gpuloom: bad file\n"),
        (GpuloomError("it failed"), 1, "gpuloom: it failed\n"),
        (FileNotFoundError(2, "No such file", "f"), 2, "gpuloom: f: No such file\n"),
        (PermissionError(13, "Permission denied", "f"), 2, "gpuloom: f: Permission denied\n"),
        (IsADirectoryError(21, "Is a directory", "f"), 2, "gpuloom: f: Is a directory\n"),
        (OSError(28, "No space left"), 1, "gpuloom: No space left\n"),
        (OSError("odd"), 1, "gpuloom: odd\n"),
        (KeyError("x"), 1, REPORT),
    ],
)
@pytest.mark.parametrize("debug", ["0", "1"])
def test_exit_codes(
    outcome: Any, code: int, said: str, debug: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*, standalone_mode: bool) -> Any:
        assert not standalone_mode
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    handlers: list[Any] = []
    monkeypatch.setattr(signal, "signal", lambda *given: handlers.append(given))
    monkeypatch.setattr(program.cli, "main", run)
    monkeypatch.setenv("GPULOOM_DEBUG", debug)
    with pytest.raises(SystemExit) as ended:
        program.main()
    assert ended.value.code == code
    assert handlers == [(signal.SIGTERM, program._end)]
    err = capsys.readouterr().err
    if said != REPORT:
        assert err == said
        return
    assert ("Traceback (most recent call last)" in err) == (debug == "1")
    line = err.splitlines()[-1]
    assert line.startswith(REPORT)
    assert line.endswith("); GPULOOM_DEBUG=1 prints the traceback")


def test_where_nobody_reads_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(**_: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(signal, "signal", lambda *given: None)
    monkeypatch.setattr(program.cli, "main", run)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with pytest.raises(SystemExit) as ended:
        program.main()
    assert ended.value.code == 1
    assert sys.stderr.closed


def test_asked_to_end_it_ends_as_by_an_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []
    handler: list[Callable[..., None] | int] = [lambda number, frame: told.append(number)]
    monkeypatch.setattr(signal, "getsignal", lambda number: handler[0] if number == signal.SIGINT else None)
    program._end(15, None)
    assert told == [signal.SIGINT]
    handler[0] = signal.SIG_IGN
    with pytest.raises(KeyboardInterrupt):
        program._end(15, None)
