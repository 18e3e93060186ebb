"""`gpuloom logs`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import click

from gpuloom.cli.live import JOBS_HELP, connect_or_name_files, live_options, one_number, say_json, say_json_line
from gpuloom.cli.marked import MarkedLines, coloured
from gpuloom.core.words import plural

if TYPE_CHECKING:
    from gpuloom.client import Client
    from gpuloom.client.errors import ClientError
    from gpuloom.client.logs import LogPart, LogPiece, LogRead

NOT_FOUND, UNREACHABLE = 404, 504
"""Answers of HTTP: there is no such member; its node does not answer."""

LONGEST_CUT = 1 << 16
"""A line that was cut is left out, unless it is longer than this."""


@click.command(epilog=JOBS_HELP)
@click.argument("job", metavar="JOB")
@click.option(
    "--follow", "-f", is_flag=True, help="Follow the log until the job ends, across preemptions and restarts."
)
@click.option("--lines", "-n", "tail", type=click.IntRange(0), metavar="N", help="Begin with the last N lines.")
@click.option("--attempt", type=click.IntRange(1), metavar="K", help="The log of this attempt [the last].")
@click.option("--member", type=click.IntRange(0), metavar="R", help="Of a gang, the log of this member alone [all].")
@live_options
def logs(
    job: str,
    follow: bool,
    tail: int | None,
    attempt: int | None,
    member: int | None,
    as_json: bool,
    home: Path | None,
) -> None:
    """Print what a job has written to standard output and error.

    With -f it follows the log, and at the end says on standard error how the job ended. The exit code is 0 however the
    job ended (that of gpuloom wait differs). Ctrl-C stops the watching only: the job keeps running. The oldest parts of
    a long log are not kept; standard error says how much is missing. --json prints one object, {attempt, text}; with -f
    it prints such an object per line, and at the end {end: {state, exit_code}}.

    Each member of a gang has a log of its own. All are printed, one after the other, or with -f line by line as they
    come; every line begins with its member, such as [1 node-b]. With --member it is one, without marks. -n is the last
    lines of each. --json has {attempt, members: [{member, node, text}, …]}; with -f each object says its member.

    \b
    Examples:
      gpuloom logs 12
      gpuloom logs -f -n 20 12
      gpuloom logs 12_3 --attempt 1
      gpuloom logs 14 --member 1
    """
    with connect_or_name_files(home, job, follows=follow) as client:
        number = one_number(client, job)
        if follow:
            try:
                follow_log(client, number, tail=tail, attempt=attempt, member=member, as_json=as_json)
                if not as_json:
                    _say_end(client, number)
            except KeyboardInterrupt:
                click.echo(f"\njob {number} keeps running", err=True)
        elif as_json:
            _say_as_json(client, number, tail=tail, attempt=attempt, member=member)
        else:
            print_log(client, number, tail=tail, attempt=attempt, member=member)


def _say_as_json(client: Client, job: int, *, tail: int | None, attempt: int | None, member: int | None) -> None:
    from gpuloom.client.errors import ClientError

    def read(rank: int | None, number: int | None) -> LogRead:
        return client.read_log(job, attempt=number, tail=tail, member=rank)

    found: dict[str, Any] = {"job": job}
    members: list[dict[str, Any]] = []
    ended = True
    for rank, log in members_of(read, member, attempt):
        if isinstance(log, ClientError):
            members.append({"member": rank, "problem": str(log)})
            continue
        found["attempt"], ended = log.attempt, ended and log.ended
        of_gang = {"member": rank, "node": log.node} if log.members > 1 else {}
        # With --lines the start says nothing of what is kept.
        skipped = log.offset - len(log.content) if tail is None else 0
        text = log.content.decode("utf-8", "replace")
        members.append({**of_gang, "text": text, "offset": log.offset, "skipped": skipped})
    say_json({**found, **(members[0] if len(members) == 1 else {"members": members}), "ended": ended})


class _Read(Protocol):
    """A log that is read, or begins to be. members: how many the attempt has."""

    @property
    def attempt(self) -> int: ...

    @property
    def members(self) -> int: ...


R = TypeVar("R", bound=_Read)


def members_of(
    read: Callable[[int | None, int | None], R], member: int | None, attempt: int | None
) -> Iterator[tuple[int, R | ClientError]]:
    """What is read of each member of an attempt (None: the last), or of the one that is asked for; instead, why a
    member can't be read that is not the only one. read: takes member and attempt.

    Raises:
        ClientError: the only one can't be read; there is no such job, attempt or member.
    """
    from gpuloom.client.errors import ClientError

    if member is not None:
        yield member, read(member, attempt)
        return
    members: int | None = None
    held: list[tuple[int, R | ClientError]] = []
    rank = 0
    while members is None or rank < members:
        found: R | ClientError
        try:
            found = read(rank or None, attempt)
            members, attempt = found.members, found.attempt or attempt
        except ClientError as error:
            if rank and members is None and error.status == NOT_FOUND:
                break  # the one before was the last
            if error.status != UNREACHABLE and not (rank and error.status == NOT_FOUND):
                raise
            found = error
        held.append((rank, found))
        rank += 1
        if members is not None:
            yield from held
            held.clear()
    if len(held) == 1 and isinstance(held[0][1], ClientError):
        raise held[0][1]
    yield from held


@dataclass(frozen=True, slots=True)
class _Opened:
    """A log of which the first piece is there."""

    attempt: int
    members: int
    node: str
    pieces: Iterable[LogPiece]


def print_log(
    client: Client, job: int, *, tail: int | None = None, attempt: int | None = None, member: int | None = None
) -> None:
    """Write the bytes of a log as they come; say on standard error what of it is missing. Of a gang, the logs of all
    members one after the other, or of one."""
    from gpuloom.client.errors import ClientError

    def opened(rank: int | None, number: int | None) -> _Opened:
        pieces = client.log_pieces(job, attempt=number, tail=tail, member=rank)
        first = next(pieces)
        return _Opened(first.attempt, first.members, first.node, chain([first], pieces))

    out = sys.stdout.buffer
    for rank, log in members_of(opened, member, attempt):
        if isinstance(log, ClientError):
            out.write(MarkedLines({}, colours=coloured()).add(rank, f"({log})\n".encode()))
            continue
        lines = None
        if log.members > 1 and member is None:
            lines = MarkedLines({rank: log.node}, colours=coloured())
        for missing, content in _kept(log.pieces, tail):
            if missing:
                out.flush()
                _say_missing(job, missing, rank if log.members > 1 else None)
            out.write(content if lines is None else lines.add(rank, content))
        if lines is not None:
            out.write(lines.rest())
    out.flush()


def _kept(pieces: Iterable[LogPiece], tail: int | None) -> Iterator[tuple[int, bytes]]:
    """(bytes missing before it, bytes) of a log, of which the last lines were asked for or all."""
    at = 0
    if tail is not None:
        kept = list(pieces)  # the scheduler sends no more than 16 MiB of last lines
        content = b"".join(piece.content for piece in kept)
        if content.count(b"\n") + (not content.endswith(b"\n")) >= tail:
            at = kept[0].start  # what comes before was not asked for
        pieces = kept
    return whole_lines(pieces, at)


def _say_end(client: Client, job: int) -> None:
    """How the job ended; of an attempt that was followed while the job goes on, in which state it is now."""
    from gpuloom.cli.jobs import ended_line

    sys.stdout.flush()
    click.echo(f"gpuloom: {ended_line(client.job(job))}", err=True)


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


def _say_missing(job: int, missing: int, member: int | None = None) -> None:
    whose = f"job {job}" if member is None else f"job {job}, member {member}"
    text = f"{plural(missing, 'byte')} of its log before this {'is' if missing == 1 else 'are'} no longer kept"
    click.echo(f"gpuloom: {whose}: {text}", err=True)


def follow_log(
    client: Client,
    job: int,
    *,
    as_json: bool,
    tail: int | None = None,
    attempt: int | None = None,
    member: int | None = None,
    whole: bool = False,
) -> None:
    """Print the log until the job (or that attempt) ends. member: of a gang, that of one alone, without marks.
    whole: from the first attempt on.

    A new attempt is told on standard error, and so is what is no longer kept.
    """
    lines = MarkedLines({})
    try:
        for part in client.follow_log(job, tail=tail, attempt=attempt, member=member, from_first=whole):
            if as_json:
                say_json_line(_as_json(part))
            elif part.text:
                content = _whole_text(job, part).encode("utf-8", "replace")
                _write(content if part.member is None or member is not None else lines.add(part.member, content))
            elif part.end is None:
                _write(lines.rest())
                lines = MarkedLines(dict(enumerate(part.nodes)), colours=coloured())
                if part.attempt > 1:
                    click.echo(f"gpuloom: job {job}, attempt {part.attempt}", err=True)
    finally:
        _write(lines.rest())


def _as_json(part: LogPart) -> dict[str, Any]:
    if part.end is not None:
        return {"end": {**part.end}}
    found: dict[str, Any] = {"attempt": part.attempt}
    if part.member is not None:
        found["member"] = part.member
    found["text"] = part.text
    return found | ({"skipped": part.skipped} if part.skipped else {}) | ({"members": part.nodes} if part.nodes else {})


def _whole_text(job: int, part: LogPart) -> str:
    """The text from its first whole line on, if what came before it is no longer kept; that is told."""
    if not part.skipped:
        return part.text
    cut, newline, rest = part.text.partition("\n")
    _say_missing(job, part.skipped + (len(f"{cut}\n".encode()) if newline else 0), part.member)
    return rest if newline else part.text


def _write(content: bytes) -> None:
    if content:
        sys.stdout.flush()
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
