"""A log that is followed: a stream of what the members of an attempt write, attempt after attempt.

Each member is read by itself, so that a node that does not answer keeps nobody from what the others write.
"""

from __future__ import annotations

import asyncio
import codecs
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass

from starlette.concurrency import run_in_threadpool

from gpuloom.core.job import ENDED
from gpuloom.executors.logs import NoLogError
from gpuloom.executors.port import ExecutorError
from gpuloom.live.service import LogOf
from gpuloom.live.views.job_answers import JobView, LogAttempt, LogEnd, LogText
from gpuloom.server.context import Context
from gpuloom.server.encoded import encoded
from gpuloom.server.sse import HEARTBEAT, Follower, message, wire_of

CHUNK = 256 * 1024
"""Bytes of one read."""
TAIL_BYTES = 16 * 1024 * 1024
"""The most that 'the last lines' may be, of all members of an attempt together."""
AGAIN_S = 2.0
"""A member whose node could not be asked is read again after this time."""


def whole_characters(data: bytes) -> int:
    """How many of the bytes are whole characters in UTF-8; up to 3 at the end may begin one that is not complete."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(data)
    return len(data) - len(decoder.getstate()[0])


@dataclass(frozen=True, slots=True)
class _Piece:
    """What was read. data: as it is sent. at: the offset after it. inside: it ends within a line."""

    data: bytes
    at: int
    inside: bool


class _Member:
    """Of one member's log, how far it is read.

    at: offset after what was sent. tail: send only so many last lines of what there is. fresh: there may be more.
    complete: nothing will be written any more. over: all was sent. inside: what was sent ends within a line.
    trouble: why it could not be read last, as it was said.
    """

    def __init__(self, log: LogOf, at: int, tail: int | None) -> None:
        self.log, self.at, self.tail = log, at, tail
        self.fresh, self.complete, self.over, self.inside = True, False, False, False
        self.trouble = ""
        self.reading: asyncio.Task[_Piece | None] | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """What to follow. attempt: this one alone. member: of each attempt this one alone. offset, tail: where in the first
    log to begin. resume: instead of these, an attempt and the offsets in its logs to go on from."""

    job: int
    attempt: int | None = None
    member: int | None = None
    offset: int | None = None
    tail: int | None = None
    resume: tuple[int, tuple[int, ...]] | None = None


class Following:
    """One stream: from a place in an attempt's logs over all later attempts (unless one was asked for) to the end.

    attempt: the one that is read, 0 before the first.
    """

    def __init__(self, context: Context, asked: Asked) -> None:
        self.context, self.asked = context, asked
        resume = asked.resume if asked.resume is not None and asked.attempt in (None, asked.resume[0]) else None
        self.resumes = resume is not None
        self.attempt, self.offsets = resume or (0, (asked.offset or 0,))
        self.tail = None if self.resumes else asked.tail
        self.state: JobView
        self.logs: Sequence[LogOf] = ()
        self.nodes: list[str] = []
        """Of all members of the attempt that is read."""
        self.members: list[_Member] = []
        self.follower: Follower

    async def parts(self) -> AsyncGenerator[bytes, None]:
        """The stream, event by event."""
        hub = self.context.hub
        self.follower, seen = await hub.join()
        try:
            await run_in_threadpool(self._ask)
            if not self.resumes and self.logs:
                self._turn_to(self.logs[-1].attempt)
                yield self._begun()
            while not hub.closed:
                if not self.members and self._turn_to(self.attempt):
                    yield self._begun()  # whoever resumes with an id of a gang need not know its nodes
                live = self._look()
                for member in self.members:
                    if (part := self._sent(member)) is not None:
                        yield part
                    self._read_on(member)
                if not live and all(member.over for member in self.members):
                    after = next((log.attempt for log in self.logs if log.attempt > self.attempt), None)
                    if after is not None:
                        self.offsets, self.tail = (), None
                        self._turn_to(after)
                        yield self._begun()
                        continue
                    if self.state["state"] in ENDED or (self.asked.attempt is not None and self.nodes):
                        yield self._ended()
                        return
                hub.look_at(self.follower, [member.log for member in self.members] if live else ())
                if not await self.follower.wait():
                    yield HEARTBEAT
                found = hub.after(seen)
                if found is None or any(told.concerns(self.asked.job) for told in found):
                    await run_in_threadpool(self._ask)
                seen = hub.last if found is None else found[-1].id if found else seen
        finally:
            hub.leave(self.follower)
            for member in self.members:
                if member.reading is not None:
                    member.reading.cancel()

    def _ask(self) -> None:
        """The job first: if it has ended by then, its attempts say all there is."""
        self.state = self.context.service.job(self.asked.job)
        self.logs = self.context.service.logs(self.asked.job, self.asked.attempt)

    def _turn_to(self, attempt: int) -> bool:
        """Read the logs of this attempt from now on, from `offsets` on or the last lines. Whether it is a gang's."""
        self.attempt = attempt
        logs = [log for log in self.logs if log.attempt == attempt]
        self.nodes = [log.node for log in logs]
        logs = [log for log in logs if self.asked.member in (None, log.member)]
        offsets = [*self.offsets, *[0] * len(logs)]
        self.members = [_Member(log, at, self.tail) for log, at in zip(logs, offsets, strict=False)]
        return len(self.members) > 1

    def _look(self) -> bool:
        """What has changed since the last time; whether the attempt may still write."""
        live = any(log.live for log in self.logs if log.attempt == self.attempt)
        changed, self.follower.changed = self.follower.changed, set()
        for member in self.members:
            if member.log in changed or (not live and not member.complete):
                member.fresh, member.complete = True, not live
        return live

    def _read_on(self, member: _Member) -> None:
        if member.fresh and not member.over and member.reading is None:
            member.fresh = False
            most = TAIL_BYTES // len(self.members)
            read = self.context.hub.off_loop(self._piece, member.log, member.at, member.tail, member.complete, most)
            member.reading = asyncio.ensure_future(read)
            member.reading.add_done_callback(lambda _: self.follower.news.set())

    def _piece(self, log: LogOf, at: int, tail: int | None, complete: bool, most: int) -> _Piece | None:
        """The next text of a log; None: no more for now."""
        files = self.context.service.files_of(log)
        if tail is not None:
            data, after = files.read_log(log.run, None, tail, most)
            at = after - len(data)  # what comes before was not asked for
        else:
            data, after = files.read_log(log.run, at, None, CHUNK)
        start = after - len(data)
        whole = whole_characters(data)
        if complete and not whole:
            whole = len(data)  # the log ends within a character
        if not whole and tail is None:
            return None
        fields: LogText = {"text": data[:whole].decode("utf-8", "replace")}
        if start > at:
            fields["skipped"] = start - at  # gone: rotated away before it was read
        return _Piece(self._data(log, fields) if whole else b"", start + whole, not data[:whole].endswith(b"\n"))

    def _data(self, log: LogOf, fields: LogText) -> bytes:
        if len(self.nodes) > 1:
            fields["member"] = log.member
        return encoded(fields)

    def _sent(self, member: _Member) -> bytes | None:
        """The next event of a member, if one was read."""
        if member.reading is None or not member.reading.done():
            return None
        reading, member.reading = member.reading, None
        complete = member.complete and not member.fresh
        try:
            piece = reading.result()
        except NoLogError as error:
            member.over = complete
            # Told once: the stream goes on to the end of the job.
            return self._trouble(member, error) if complete else None
        except ExecutorError as error:
            member.over = complete
            if not member.over:
                asyncio.get_running_loop().call_later(AGAIN_S, self._again, member)
            return self._trouble(member, error)
        if piece is None:
            member.over = complete
            return None
        member.fresh, member.trouble, member.tail = True, "", None
        member.at = piece.at
        if not piece.data:
            return None
        member.inside = piece.inside
        return wire_of(piece.data, event="log", id_=self._id())

    def _again(self, member: _Member) -> None:
        member.fresh = True
        self.follower.news.set()

    def _trouble(self, member: _Member, error: Exception) -> bytes | None:
        if str(error) == member.trouble:
            return None
        member.trouble = str(error)
        fields: LogText = {"text": "\n" * member.inside + f"({error})\n"}
        member.inside = False
        return wire_of(self._data(member.log, fields), event="log", id_=self._id())

    def _id(self) -> str:
        return f"{self.attempt}:{','.join(str(member.at) for member in self.members) or 0}"

    def _begun(self) -> bytes:
        fields: LogAttempt = {"attempt": self.attempt}
        if len(self.nodes) > 1:
            fields["members"] = self.nodes
        return message(fields, event="attempt", id_=self._id())

    def _ended(self) -> bytes:
        job = self.state
        fields = LogEnd(state=job["state"], exit_code=job["exit_code"], reason=job["reason"])
        return message(fields, event="end", id_=self._id())
