"""`gpuloom logs`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuloom.cli.live import JOBS_HELP, connect_or_name_files, live_options, one_number, say_json, say_json_line
from gpuloom.core.words import plural

if TYPE_CHECKING:
    from gpuloom.client import Client
    from gpuloom.client.logs import LogPiece

LONGEST_CUT = 1 << 16
"""A line that was cut is left out, unless it is longer than this."""


@click.command(epilog=JOBS_HELP)
@click.argument("job", metavar="JOB")
@click.option(
    "--follow", "-f", is_flag=True, help="Follow the log until the job ends, across preemptions and restarts."
)
@click.option("--lines", "-n", "tail", type=click.IntRange(0), metavar="N", help="Begin with the last N lines.")
@click.option("--attempt", type=click.IntRange(1), metavar="K", help="The log of this attempt [the last].")
@live_options
def logs(job: str, follow: bool, tail: int | None, attempt: int | None, as_json: bool, home: Path | None) -> None:
    """Print what a job has written to standard output and error.

    With -f it follows the log, and at the end says on standard error how the job ended. The exit code is 0 however the
    job ended (that of gpuloom wait differs). Ctrl-C stops the watching only: the job keeps running. The oldest parts of
    a long log are not kept; standard error says how much is missing. --json prints one object, {attempt, text}; with -f
    it prints such an object per line, and at the end {end: {state, exit_code}}.

    \b
    Examples:
      gpuloom logs 12
      gpuloom logs -f -n 20 12
      gpuloom logs 12_3 --attempt 1
    """
    with connect_or_name_files(home, job, follows=follow) as client:
        number = one_number(client, job)
        if follow:
            try:
                follow_log(client, number, tail=tail, attempt=attempt, as_json=as_json)
                if not as_json:
                    _say_end(client, number)
            except KeyboardInterrupt:
                click.echo(f"\njob {number} keeps running", err=True)
            return
        if not as_json:
            print_log(client, number, tail=tail, attempt=attempt)
            return
        read = client.read_log(number, attempt=attempt, tail=tail)
        text = read.content.decode("utf-8", "replace")
        # With --lines the start says nothing of what is kept.
        skipped = read.offset - len(read.content) if tail is None else 0
        found = {"job": number, "attempt": read.attempt, "text": text, "offset": read.offset, "skipped": skipped}
        say_json({**found, "ended": read.ended})


def _say_end(client: Client, job: int) -> None:
    """How the job ended; of an attempt that was followed while the job goes on, in which state it is now."""
    from gpuloom.cli.jobs import ended_line

    sys.stdout.flush()
    click.echo(f"gpuloom: {ended_line(client.job(job))}", err=True)


def print_log(client: Client, job: int, *, tail: int | None = None, attempt: int | None = None) -> None:
    """Write the bytes of a log as they come; say on standard error what of it is missing."""
    out = sys.stdout.buffer
    pieces: Iterable[LogPiece] = client.log_pieces(job, attempt=attempt, tail=tail)
    at = 0
    if tail is not None:
        kept = list(pieces)  # the scheduler sends no more than 16 MiB of last lines
        content = b"".join(piece.content for piece in kept)
        if content.count(b"\n") + (not content.endswith(b"\n")) >= tail:
            at = kept[0].start  # what comes before was not asked for
        pieces = kept
    for missing, content in whole_lines(pieces, at):
        if missing:
            out.flush()
            _say_missing(job, missing)
        out.write(content)
    out.flush()


def whole_lines(pieces: Iterable[LogPiece], at: int) -> Iterator[tuple[int, bytes]]:
    """(bytes missing before it, bytes) from the offset `at` on; what follows a gap begins at a line."""
    missing, cut = 0, b""
    for piece in pieces:
        missing += piece.start - at
        at = piece.start + len(piece.content)
        content, cut = cut + piece.content, b""
        if missing and piece.content:
            end = content.find(b"\n") + 1
            if not end and len(content) < LONGEST_CUT:
                cut = content
                continue
            missing, content = missing + end, content[end:]
        if missing or content:
            yield missing, content
        missing = 0


def _say_missing(job: int, missing: int) -> None:
    text = f"{plural(missing, 'byte')} of its log before this {'is' if missing == 1 else 'are'} no longer kept"
    click.echo(f"gpuloom: job {job}: {text}", err=True)


def follow_log(
    client: Client, job: int, *, as_json: bool, tail: int | None = None, attempt: int | None = None, whole: bool = False
) -> None:
    """Print the log until the job (or that attempt) ends. whole: from the first attempt on.

    A new attempt is told on standard error, and so is what is no longer kept.
    """
    for part in client.follow_log(job, tail=tail, attempt=attempt, from_first=whole):
        if as_json:
            found = {"attempt": part.attempt, "text": part.text} | ({"skipped": part.skipped} if part.skipped else {})
            say_json_line(found if part.end is None else {"end": {**part.end}})
        elif part.text:
            text = part.text
            if part.skipped:
                cut, newline, rest = text.partition("\n")
                text = rest if newline else text
                _say_missing(job, part.skipped + (len(f"{cut}\n".encode()) if newline else 0))
            sys.stdout.write(text)
            sys.stdout.flush()
        elif part.end is None and part.attempt > 1:
            click.echo(f"gpuloom: job {job}, attempt {part.attempt}", err=True)
